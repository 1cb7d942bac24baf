"""Whatever strangers send: every frame is rejected, and the server goes on serving."""

import contextlib
import hashlib
import hmac
import random
import socket
import struct
import threading
import time

import pytest

from operant.envs.catalog import resolve
from operant.envs.remote import connect
from operant.envs.remote.auth import _PROOF, _derive, greet
from operant.envs.remote.channel import Channel
from operant.envs.remote.server import Server
from operant.envs.remote.wire import MAC, RESET, STEP, frame

HOST = "127.0.0.1"
TOKEN = b"0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def server():
    with Server(resolve("CartPole-v1"), num_envs=6, token=TOKEN, processes=False) as found:
        yield found


class Stranger:
    """A connection to a server; says whether it was turned away."""

    def __init__(self, server):
        self.sock = socket.create_connection((HOST, server.ports[0]), timeout=10)
        # Reset at the end: a hundred thousand closed connections would else use up the ports.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def hear(self, count):
        data = b""
        while len(data) < count and (piece := self.sock.recv(count - len(data))):
            data += piece
        return data

    def greeting(self):
        """Return the server's random number."""
        hello = self.hear(5 + 42)
        assert hello[5:13] == b"operant\0"
        return hello[-32:]

    def turned_away(self, data, end=False):
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            self.sock.sendall(data)
            if end:
                self.sock.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := self.sock.recv(4096):
                answer += piece
            kinds = answer[4:5]
            self.sock.close()
            return kinds in (b"", b"\x04")  # nothing, or a refusal
        self.sock.close()
        return True


def proof(token, theirs, ours, version=1):
    return frame(2, _PROOF.pack(version, ours, _derive(token, b"client proof", theirs, ours)))


def attack(server, kind, chance, recorded):
    """Send one bad frame to the server; tell whether it was rejected."""
    if kind in INSIDE:
        return attack_inside(server, kind, chance)
    stranger = Stranger(server)
    theirs = stranger.greeting()
    if kind == "random":
        return stranger.turned_away(chance.randbytes(chance.randrange(1, 300)), end=True)
    if kind == "truncated":
        whole = proof(TOKEN, theirs, chance.randbytes(32))
        return stranger.turned_away(whole[: chance.randrange(len(whole))], end=True)
    if kind == "oversized":
        return stranger.turned_away(struct.pack("<IB", chance.randrange(257, 2**32), 2) + bytes(100))
    if kind == "replayed":
        return stranger.turned_away(recorded)
    if kind == "wrong-token":
        return stranger.turned_away(proof(chance.randbytes(32), theirs, chance.randbytes(32)))
    if kind == "reflected":  # the server's own number, as if it were ours
        return stranger.turned_away(proof(b"", theirs, theirs))
    assert kind == "version"
    return stranger.turned_away(proof(TOKEN, theirs, chance.randbytes(32), chance.randrange(2, 2**16)))


def attack_inside(server, kind, chance):
    """The same from a client that knows the token, or from somebody who took over its connection."""
    stranger = Stranger(server)
    channel = Channel(stranger.sock)
    greet(channel, TOKEN, 10.0)
    ours = channel._mac
    stranger.sock.settimeout(10)
    if kind == "sealed":
        bad = frame(RESET, struct.pack("<q", -1), MAC(chance.randbytes(32)))
    elif kind == "truncated-sealed":
        bad = frame(RESET, bytes(chance.randrange(8)), ours)
    elif kind == "oversized-sealed":  # more than any request of this environment, and only begun
        bad = struct.pack("<IB", chance.randrange(1000, 2**26), RESET) + bytes(100)
    elif kind == "kind":
        bad = frame(
            chance.choice([k for k in range(256) if k not in range(16, 20)]), chance.randbytes(9), ours
        )
    else:
        good = frame(RESET, struct.pack("<q", -1), ours)
        stranger.sock.sendall(good)
        length = struct.unpack("<I", stranger.hear(4))[0]
        assert stranger.hear(length)[:1] == bytes([33])
        bad = good
    return stranger.turned_away(bad)


KINDS = ["random", "truncated", "oversized", "replayed", "wrong-token", "reflected", "version"]
INSIDE = ["sealed", "truncated-sealed", "oversized-sealed", "kind", "replayed-sealed"]


def recording(server):
    """What a client sent that was let in."""
    stranger = Stranger(server)
    said = proof(TOKEN, stranger.greeting(), bytes(range(32)))
    stranger.sock.sendall(said)
    assert stranger.hear(5)[4] == 3  # welcome
    stranger.sock.close()
    return said


def flood(server, count, seed):
    """Send bad frames of all kinds, by two clients at once; return how many of each were not rejected."""
    recorded = recording(server)
    through: dict[str, int] = {}

    def send(part):
        chance = random.Random(seed + part)
        for i in range(count // 2):
            kind = (INSIDE if i % 10 == 0 else KINDS)[
                i // 10 % len(INSIDE) if i % 10 == 0 else i % len(KINDS)
            ]
            if not attack(server, kind, chance, recorded):
                through[kind] = through.get(kind, 0) + 1

    threads = [threading.Thread(target=send, args=(1,))]
    threads[0].start()
    send(0)
    threads[0].join()
    return through


def serves(server):
    (connection,) = connect(remote="socket-client", host=HOST, port=server.ports[0], token=TOKEN.decode())
    connection.send_reset(1)
    assert connection.receive().terminal == 0
    connection.send_execute(0)
    assert connection.receive().terminal == 0
    connection.close()


@pytest.mark.parametrize("kind", [*KINDS, *INSIDE])
def test_bad_frames_are_rejected(server, kind):
    recorded, chance = recording(server), random.Random(0)
    for _ in range(20):
        assert attack(server, kind, chance, recorded)
    serves(server)


def test_the_attacks_would_be_noticed(server):
    """The control: a good frame is not turned away."""
    stranger = Stranger(server)
    theirs = stranger.greeting()
    stranger.sock.settimeout(0.5)
    with pytest.raises(TimeoutError):
        stranger.turned_away(proof(TOKEN, theirs, bytes(32)))
    stranger.sock.close()


def test_steps_out_of_order_and_actions_that_are_none(server):
    for first, actions in ((False, struct.pack("<i", 0)), (True, struct.pack("<i", 7)), (True, b"")):
        stranger = Stranger(server)
        channel = Channel(stranger.sock)
        greet(channel, TOKEN, 10.0)
        channel.limit(1 << 20)
        if first:
            channel.send(RESET, struct.pack("<q", -1), seconds=5)
            assert channel.receive(10.0)[0] == 33
        channel.send(STEP, actions, seconds=5)
        stranger.sock.settimeout(10)
        assert stranger.turned_away(b"")
    serves(server)


def test_many_that_only_hold_the_line_do_not_lock_others_out():
    from operant.envs.remote.server import Timeouts

    timeouts = Timeouts(greeting_seconds=1.0)
    with Server(resolve("CartPole-v1"), token=TOKEN, processes=False, timeouts=timeouts) as server:
        strangers = [Stranger(server) for _ in range(100)]
        time.sleep(0.2)
        assert threading.active_count() < 90
        serves(server)
        for stranger in strangers:
            stranger.sock.close()


@pytest.mark.parametrize("lacking", ["Channel", "thread"])
def test_clients_that_cannot_be_greeted_lock_nobody_out(monkeypatch, lacking):
    """As many as are greeted at once, for each of whom something fails before the greeting."""
    from operant.envs.remote import server as module

    with Server(resolve("CartPole-v1"), token=TOKEN, processes=False) as server:
        with monkeypatch.context() as patched:
            if lacking == "Channel":

                def fail(sock):
                    raise OSError("the client went")

                patched.setattr(module, "Channel", fail)
            else:
                start = threading.Thread.start

                def refuse(thread):
                    if thread._target == server._client:
                        raise RuntimeError("can't start new thread")
                    start(thread)

                patched.setattr(threading.Thread, "start", refuse)
            strangers = [Stranger(server) for _ in range(module._MOST_GREETINGS)]
            deadline = time.monotonic() + 20
            while server.rejected < len(strangers) and time.monotonic() < deadline:
                time.sleep(0.01)
        serves(server)
        assert server.rejected == len(strangers) and server._greeting == 0
        for stranger in strangers:
            assert stranger.sock.recv(1) == b""  # closed
            stranger.sock.close()


def test_the_proof_is_that_of_the_documents():
    """HMAC-SHA256(token, role, version, server's number, client's number), in another hand."""
    server, client = bytes(32), bytes(range(32))
    want = hmac.new(TOKEN, b"client proof\x01\x00" + server + client, hashlib.sha256).digest()
    assert _derive(TOKEN, b"client proof", server, client) == want


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "count",
    [pytest.param(10_000, marks=pytest.mark.slow), pytest.param(100_000, marks=pytest.mark.exhaustive)],
)
def test_bad_frames_without_end(server, count):
    begun = server.rejected
    threads = threading.active_count()
    assert flood(server, count, seed=0) == {}
    serves(server)
    assert server.rejected - begun > 0.9 * count
    deadline = time.monotonic() + 20
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= threads
