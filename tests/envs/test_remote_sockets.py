"""Environments served over sockets: the same answers as here, who is let in, and what happens when a side
is lost."""

import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.asking import ask

from operant import Runner
from operant.cli import main
from operant.envs import Environment
from operant.envs.catalog import resolve
from operant.envs.remote import connect, wire
from operant.envs.remote.auth import _HELLO, greet, is_loopback, read_token, welcome
from operant.envs.remote.channel import Channel
from operant.envs.remote.connection import ConnectionLimits
from operant.envs.remote.serve import ServeConfig, greeting, start
from operant.envs.remote.server import PORT, Server, Timeouts, tls_context
from operant.envs.workers.restarts import LostError
from operant.errors import EnvError, SpecError, UsageError

FOLDER = Path(__file__).parents[1]
HOST = "127.0.0.1"
TOKEN = "0123456789abcdef0123456789abcdef"


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def _no_token(monkeypatch):
    monkeypatch.delenv("OPERANT_TOKEN", raising=False)


@pytest.fixture(scope="module")
def module():
    sys.path.insert(0, str(FOLDER))
    import remote_envs

    yield remote_envs
    sys.path.remove(str(FOLDER))


def serving(environment, limit=None, **kwargs):
    """A server whose environments run in its own process, unless told otherwise."""
    arguments = kwargs.pop("arguments", {})
    source = resolve(environment, max_episode_timesteps=limit, arguments=arguments)
    return Server(source, **{"processes": False, **kwargs})


@contextlib.contextmanager
def clients(port, **kwargs):
    found = connect(remote="socket-client", host=HOST, port=port, **kwargs)
    try:
        yield found
    finally:
        for connection in found:
            connection.close()


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


def play(connection, steps, name):
    """Answers to fixed actions, with the time that they took left out."""
    generator = np.random.default_rng(0)
    found = [ask(connection, seed=3)]
    for _ in range(steps):
        actors = 3 if found[-1].parallel is None else len(found[-1].parallel)
        if name in ("Team", "Told"):
            actions = generator.uniform(-0.9, 0.9, (actors, 1)).astype(np.float32)
        elif name == "Pendulum-v1":
            actions = generator.uniform(-2, 2, 1).astype(np.float32)
        else:
            actions = int(generator.integers(2))
        found.append(ask(connection, actions))
        if np.all(found[-1].terminal):
            break
    return [answer._replace(seconds=0.0) for answer in found], connection.episode_return()


@pytest.mark.parametrize("name", ["Masked", "Team", "Told", "CartPole-v1", slow("Pendulum-v1")])
def test_answers_are_those_of_an_environment_here(module, name):
    given = getattr(module, name, name)
    (here,) = connect(given, max_episode_timesteps=20)
    with serving(given, 20) as server, clients(server.ports[0]) as (there,):
        assert (here.name, here.spaces, here.num_actors) == (there.name, there.spaces, there.num_actors)
        assert here.max_episode_timesteps == there.max_episode_timesteps == 20
        (a, own), (b, other_own) = play(here, 30, name), play(there, 30, name)
        assert len(a) == len(b) and own == other_own
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x.reward, y.reward, rtol=1e-12)
            np.testing.assert_equal(x._replace(reward=0)._asdict(), y._replace(reward=0)._asdict())
    here.close()


@pytest.mark.parametrize("size", [1, 4096, 65537, *map(slow, (4095, 4097, 65535, 65536, 1 << 24))])
def test_states_of_all_sizes(module, size):
    with (
        serving(module.Pixels, arguments=dict(size=size)) as server,
        clients(server.ports[0]) as (connection,),
    ):
        want = np.resize(np.arange(251, dtype=np.uint8), size)
        np.testing.assert_array_equal(ask(connection).states, want)
        np.testing.assert_array_equal(ask(connection, 0).states, want[::-1])


def test_two_servers_on_two_ports_with_two_environments_each():
    with serving("CartPole-v1", num_envs=2) as a, serving("CartPole-v1", num_envs=2) as b:
        ports = [*a.ports * 2, *b.ports * 2]
        with clients(ports, num_parallel=4) as found:
            for i, connection in enumerate(found):
                connection.send_reset(i)
            first = [connection.receive().states for connection in found]
            assert len({tuple(states.tolist()) for states in first}) == 4
            for connection in found:
                connection.send_execute(1)
            while not all(connection.ready(1.0) for connection in found):
                pass
            assert [connection.receive().terminal for connection in found] == [0] * 4
        # Whoever comes next finds them free.
        with clients(ports) as found:
            assert [ask(connection).terminal for connection in found] == [0] * 4


def test_ports_in_a_row_for_one_host_and_port():
    with serving("CartPole-v1") as a:
        second = a.ports[0] + 1
        try:
            b = serving("CartPole-v1", ports=[second])
        except EnvError:
            pytest.skip(f"port {second} is taken by another program")
        with b, clients(a.ports[0], num_parallel=2) as found:
            assert [c._place() for c in found] == [f"{HOST}:{a.ports[0]}", f"{HOST}:{second}"]


# Who is let in


def test_only_who_knows_the_token_is_let_in(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    with serving("CartPole-v1", token=TOKEN.encode()) as server:
        port, reasons, reject = server.ports[0], [], server._reject

        def noted(address, reason):
            reasons.append(reason)
            reject(address, reason)

        monkeypatch.setattr(server, "_reject", noted)
        for wrong in ({}, {"token": TOKEN[::-1]}):
            with pytest.raises(EnvError, match=rf"\({HOST}:{port}\) refused: The token is not the server's"):
                connect(remote="socket-client", host=HOST, port=port, **wrong)
        wait_until(lambda: server.rejected == 2)
        assert reasons == ["sent a wrong token"] * 2
        for right in ({"token": TOKEN}, {"token_file": str(file)}):
            with clients(port, **right) as (connection,):
                assert ask(connection).terminal == 0
        monkeypatch.setenv("OPERANT_TOKEN", TOKEN)
        with clients(port) as (connection,):
            assert ask(connection).terminal == 0
        # Others came while the environment was not yet free again, and tried once more.
        assert reasons.count("sent a wrong token") == 2


def test_a_server_that_does_not_know_the_token_is_not_trusted():
    """It greets as ours do, and lets anybody in."""
    listener = socket.create_server((HOST, 0))

    def pretend():
        sock, _ = listener.accept()
        channel = Channel(sock)
        channel.send(1, _HELLO.pack(b"operant\0", 1, bytes(32)), seconds=5)
        channel.receive(5)
        channel.send(3, bytes(32), seconds=5)
        channel.close()

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(EnvError, match=r"does not know the token. It may not be the server that you mean"):
        connect(remote="socket-client", host=HOST, port=listener.getsockname()[1], token=TOKEN)
    thread.join()
    listener.close()


def test_another_version_is_named():
    listener = socket.create_server((HOST, 0))

    def pretend():
        sock, _ = listener.accept()
        channel = Channel(sock)
        channel.send(1, _HELLO.pack(b"operant\0", 2, bytes(32)), seconds=5)
        channel.close()

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(EnvError, match=r"speaks version 2 of the protocol, and this side version 1"):
        connect(remote="socket-client", host=HOST, port=listener.getsockname()[1])
    thread.join()
    listener.close()


def test_beyond_this_machine_a_token_is_needed(caplog):
    for host in ("0.0.0.0", "", "::"):
        with pytest.raises(UsageError, match=r"goes beyond this machine, and needs a token.*OPERANT_TOKEN"):
            serving("CartPole-v1", host=host)
    with pytest.raises(UsageError, match=r"The server at '192.0.2.1' goes beyond this machine"):
        connect(remote="socket-client", host="192.0.2.1", port=1)
    with (
        caplog.at_level(logging.WARNING, "operant"),
        serving("CartPole-v1", host="0.0.0.0", token=TOKEN.encode()) as server,
    ):
        assert f"host='{socket.gethostname()}'" in greeting(server)  # no client reaches 0.0.0.0
        assert "Without TLS (certificate, key) others on the network can read" in caplog.text
    with pytest.raises(SpecError, match=r"host 'no.such.host.invalid' is not known"):
        connect(remote="socket-client", host="no.such.host.invalid", port=1)


def test_a_name_that_stands_for_other_machines_too_goes_beyond_this_one(monkeypatch):
    def found(*addresses):
        return lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses]

    for addresses, here in ((("127.0.0.1", "127.1.2.3"), True), (("127.0.0.1", "192.0.2.1"), False)):
        monkeypatch.setattr(socket, "getaddrinfo", found(*addresses))
        assert is_loopback("both") == here


def test_token_files_are_their_owners_alone(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    for mode in (0o644, 0o640, 0o604, 0o660):
        file.chmod(mode)
        with pytest.raises(SpecError, match=r"must be its owner's alone: chmod 600"):
            read_token(token_file=file)
    file.chmod(0o600)
    assert read_token(token_file=file) == TOKEN.encode()
    file.write_text("short")
    with pytest.raises(SpecError, match=r"must have at least 16 characters. Received: 5. Make one") as error:
        read_token(token_file=file)
    assert "short" not in str(error.value)
    with pytest.raises(SpecError, match=r"cannot be read"):
        read_token(token_file=tmp_path / "none")
    monkeypatch.setenv("OPERANT_TOKEN", "")
    with pytest.raises(SpecError, match=r"The variable OPERANT_TOKEN must have at least 16"):
        read_token()
    monkeypatch.setitem(os.environb, b"OPERANT_TOKEN", b"\xff" * 20)
    with pytest.raises(SpecError, match=r"The variable OPERANT_TOKEN must be UTF-8 text. Make one"):
        read_token()
    monkeypatch.delenv("OPERANT_TOKEN")
    assert read_token() == b""


def test_a_recorded_session_cannot_be_replayed(caplog):
    """What a client sent, sent again in another connection, is turned away; it does not hold the token."""
    caplog.set_level(logging.DEBUG)
    with serving("CartPole-v1", token=TOKEN.encode(), num_envs=2) as server:
        recorded = []

        class Recorder(socket.socket):
            def send(self, data, *args):
                count = super().send(data, *args)
                recorded.append(bytes(data[:count]))
                return count

        sock = Recorder(socket.AF_INET, socket.SOCK_STREAM)
        sock.connect((HOST, server.ports[0]))
        channel = Channel(sock)
        greet(channel, TOKEN.encode(), 5.0)
        channel.limit(1 << 20)
        channel.send(16, seconds=5)
        assert channel.receive(5.0)[0] == 32
        channel.close()
        replay = socket.create_connection((HOST, server.ports[0]), timeout=5)
        replay.sendall(b"".join(recorded))
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := replay.recv(4096):
                received += piece
        assert b"The token is not the server's" in received
        assert TOKEN.encode() not in b"".join(recorded) + received and TOKEN not in caplog.text
        replay.close()
        wait_until(lambda: server.rejected == 1)


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    paths = str(folder / "cert.pem"), str(folder / "key.pem")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    )
    files = ["-out", paths[0], "-keyout", paths[1], "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    return paths


@pytest.mark.parametrize("as_server", [True, False])
def test_a_side_that_says_nothing_does_not_hold_up_tls(certificate, as_server):
    with socket.create_server((HOST, 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        channel = Channel(ours)
        context = tls_context(*certificate) if as_server else ssl.create_default_context()
        began = time.monotonic()
        with theirs, pytest.raises(LostError, match="did not"):
            channel.secure(context, 0.3, None if as_server else HOST)
        assert time.monotonic() - began < 5
        channel.close()


def test_a_machine_that_vanishes_is_noticed():
    """Its system no longer answers the probes that ours sends along a connection on which nothing comes."""
    with (
        socket.create_server((HOST, 0)) as listener,
        socket.create_connection(listener.getsockname()) as sock,
    ):
        Channel(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            waits = [
                sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{x}"))
                for x in ("IDLE", "INTVL", "CNT")
            ]
            assert waits[0] + waits[1] * waits[2] <= 120


def test_tls(module, certificate):
    context = tls_context(*certificate)
    with serving(
        module.Pixels, token=TOKEN.encode(), context=context, arguments=dict(size=100_000)
    ) as server:
        port = server.ports[0]
        with clients(port, token=TOKEN, certificate=certificate[0]) as (connection,):
            assert isinstance(connection._channel._sock, ssl.SSLSocket)
            assert ask(connection).states.shape == (100_000,)
            assert ask(connection, 1).states[-1] == 0
        # It will show no other, so it is not tried again until 30 s are over.
        with pytest.raises(EnvError, match=r"not accepted: self-signed certificate\. Give certificate: "):
            connect(remote="socket-client", host=HOST, port=port, token=TOKEN, certificate="system")
        wait_until(lambda: server.rejected == 1)
        with pytest.raises(EnvError, match=r"not accepted: Hostname mismatch.* for 'localhost'\.$"):
            connect(
                remote="socket-client",
                host="localhost",
                port=port,
                token=TOKEN,
                certificate=certificate[0],
            )
        with pytest.raises(EnvError, match=r"could not be reached within 0.5 s"):
            connect(remote="socket-client", host=HOST, port=port, token=TOKEN, start_seconds=0.5)
        with clients(port, token=TOKEN, certificate=certificate[0]) as (connection,):
            assert ask(connection).states.shape == (100_000,)
    with (
        serving("CartPole-v1") as server,
        pytest.raises(EnvError, match=r"could not be reached within 0.5 s"),
    ):
        connect(
            remote="socket-client",
            host=HOST,
            port=server.ports[0],
            certificate=certificate[0],
            start_seconds=0.5,
        )


def test_a_runner_has_the_token_and_the_certificate(certificate, tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    ways = {"token_file": token, "certificate": certificate[0]}
    with serving("CartPole-v1", token=TOKEN.encode(), context=tls_context(*certificate)) as server:
        server_at = {"remote": "socket-client", "host": HOST, "port": server.ports[0]}
        with Runner("random", **server_at, **ways) as runner:
            assert isinstance(runner.environments[0]._channel._sock, ssl.SSLSocket)
            runner.run(num_timesteps=5, use_tqdm=False)
        flags = ["--remote", "socket-client", "--host", HOST, "--port", str(server.ports[0])]
        flags += ["--token-file", str(token), "--certificate", certificate[0], "--quiet"]
        assert main(["run", "--agent", "random", "--timesteps", "5", *flags]) == 0


@pytest.mark.parametrize("name", ["token_file", "certificate"])
def test_only_servers_are_shown_a_token_or_a_certificate(name, capsys):
    with pytest.raises(UsageError, match=rf"{name} is for servers \(remote='socket-client'\)"):
        Runner("random", "CartPole-v1", **{name: "x"})
    flag = "--" + name.replace("_", "-")
    assert (
        main(["run", "--agent", "random", "--environment", "CartPole-v1", "--episodes", "1", flag, "x"]) == 2
    )
    assert f"--{name.replace('_', '-')} is for --remote socket-client" in capsys.readouterr().err


def test_certificates_that_cannot_be_used(certificate, tmp_path):
    with pytest.raises(SpecError, match=r"certificate and key go together"):
        tls_context(certificate[0], None)
    with pytest.raises(SpecError, match=r"cannot be used"):
        tls_context(certificate[0], str(tmp_path / "none"))
    with pytest.raises(SpecError, match=r"certificate '.*none' cannot be used"):
        connect(remote="socket-client", host=HOST, port=1, certificate=str(tmp_path / "none"))


# What is lost


@pytest.mark.parametrize("action", [1, slow(3), slow(5)])
def test_an_environment_that_is_lost_at_the_server_costs_an_episode(module, action):
    with serving(module.Count, processes=True) as server, clients(server.ports[0]) as (connection,):
        first = ask(connection)
        last = ask(connection, 0)
        answer = ask(connection, action)
        assert (answer.terminal, answer.reward, connection.restarts) == (2, 0.0, 1)
        np.testing.assert_equal(answer.states, last.states)
        reason = {1: "the motor is stuck", 3: "exit code 5", 5: "must be finite"}[action]
        assert re.search(
            rf"\({HOST}:{server.ports[0]}\) Environment 0 of 'Count' \(process \d+\).*{reason}", answer.lost
        )
        assert ask(connection).states["pid"] != first.states["pid"]
        assert ask(connection, 0).terminal == 0


def test_an_error_in_the_servers_own_process_comes_with_its_traceback(module):
    with serving(module.Count) as server, clients(server.ports[0]) as (connection,):
        ask(connection)
        answer = ask(connection, 1)
        assert (answer.terminal, connection.restarts) == (2, 1)
        assert re.search(r"(?s)failed: RuntimeError: the motor is stuck\nTraceback.*in execute", answer.lost)
        assert ask(connection).terminal == 0  # another connection, another environment


@pytest.mark.slow
def test_environments_that_fail_too_often_are_made_anew_for_the_next_client(module):
    with serving(module.Count, processes=True, limits=ConnectionLimits(max_restarts=0)) as server:
        with clients(server.ports[0], max_restarts=0) as (connection,):
            ask(connection)
            with pytest.raises(EnvError, match=r"(?s)failed: Environment 0 of 'Count'.*the motor is stuck"):
                ask(connection, 1)
        with clients(server.ports[0]) as (connection,):
            assert ask(connection).terminal == 0


def test_an_environment_that_cannot_be_made_anew_is_tried_again(module, monkeypatch):
    def no_licence(self):
        raise RuntimeError("no licence is free")

    with serving(module.Count) as server:
        with clients(server.ports[0]) as (connection,):
            ask(connection)
            monkeypatch.setattr(module.Count, "__init__", no_licence)
            assert ask(connection, 1).terminal == 2
        with pytest.raises(EnvError, match=r"within 0.5 s: The environment cannot be made.*no licence"):
            connect(remote="socket-client", host=HOST, port=server.ports[0], start_seconds=0.5)
        monkeypatch.undo()
        with clients(server.ports[0]) as (connection,):
            assert ask(connection).terminal == 0


@pytest.fixture
def processes():
    """Start servers in processes of their own; whatever is left of them is killed."""
    started = []

    def start_one(*flags, port=0):
        process = subprocess.Popen(
            [sys.executable, "-m", "operant", "serve", "--port", str(port), *flags],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), *filter(None, sys.path)])},
        )
        started.append(process)
        assert process.stdout.readline().startswith("Starting ")
        return process, int(re.search(r"on port (\d+)", process.stdout.readline()).group(1))

    yield start_one
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_a_server_that_is_killed_is_named_and_found_again(processes, caplog):
    process, port = processes("--environment", "remote_envs.Count")
    with clients(port, timeout_seconds=5.0) as (connection,):
        pid = ask(connection).states["pid"]
        last = ask(connection, 0)
        connection.send_execute(2)  # the environment hangs
        time.sleep(0.2)
        process.kill()
        begun = time.monotonic()
        with caplog.at_level(logging.WARNING, "operant"):
            answer = connection.receive()
        assert time.monotonic() - begun < 5.0
        assert answer.terminal == 2
        np.testing.assert_equal(answer.states, last.states)
        name = rf"Environment 0 of 'remote_envs.Count' \({HOST}:{port}\) closed the connection"
        assert re.search(name, answer.lost) and re.search(name + ".*; it is replaced", caplog.text)
        process.wait()
        wait_until(lambda: is_gone(pid))  # though it hung
        waiting = threading.Thread(target=connection.send_reset)  # until the server is there again
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        again, _ = processes("--environment", "remote_envs.Count", port=port)
        waiting.join(30.0)
        assert connection.ready(30.0)
        assert connection.receive().states["pid"] != pid
        pid = ask(connection, 0).states["pid"]
        assert connection.restarts == 1
        again.send_signal(signal.SIGTERM)
        assert again.wait(20) == 0
        assert is_gone(pid)


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_server_that_does_not_come_back_is_named():
    server = serving("CartPole-v1")
    with clients(server.ports[0], start_seconds=0.5) as (connection,):
        ask(connection)
        server.close()
        assert ask(connection, 0).terminal == 2
        with pytest.raises(
            EnvError,
            match=(
                rf"'CartPole-v1' \({HOST}:{server.ports[0]}\) could not be reached within 0.5 s: "
                r".*refused, and it was"
            ),
        ):
            ask(connection)
    with pytest.raises(EnvError, match=rf"Environment 0 \({HOST}:{server.ports[0]}\) could not be reached"):
        connect(remote="socket-client", host=HOST, port=server.ports[0], start_seconds=0.2)


@pytest.mark.slow
def test_a_server_that_is_silent_is_named(module):
    before = set(threading.enumerate())
    with (
        pytest.warns(RuntimeWarning, match="Worker 0 did not end within 10 s of close"),
        serving(module.Count, processes=True) as server,
        clients(server.ports[0], timeout_seconds=0.5) as (c,),
    ):
        ask(c)
        begun = time.monotonic()
        answer = ask(c, 2)
        assert time.monotonic() - begun < 5
        assert answer.lost.endswith(f"({HOST}:{server.ports[0]}) did not answer within 0.5 s")
    for thread in set(threading.enumerate()) - before:
        thread.join(5.0)
        assert not thread.is_alive(), "a thread of the closed server goes on"


def test_a_server_that_never_stops_answering_is_left():
    listener = socket.create_server((HOST, 0))
    (here,) = connect("CartPole-v1")

    def pretend():
        sock, _ = listener.accept()
        channel = Channel(sock)
        welcome(channel, b"", 5.0)
        channel.receive(5.0)
        channel.send(wire.DESCRIPTION, wire.pack_description(here), seconds=5.0)
        with contextlib.suppress(LostError):
            while True:
                channel.send(wire.ANSWER, seconds=5.0)
        channel.close()

    server = threading.Thread(target=pretend)
    server.start()
    (connection,) = connect(remote="socket-client", host=HOST, port=listener.getsockname()[1])
    closing = threading.Thread(target=connection.close, daemon=True)
    closing.start()
    closing.join(5.0)
    assert not closing.is_alive()
    server.join()
    listener.close()
    here.close()


def test_another_environment_in_its_place_is_refused():
    first = serving("CartPole-v1")
    port = first.ports[0]
    with clients(port) as (connection,):
        ask(connection)
        first.close()
        with serving("Pendulum-v1", ports=[port]):
            assert ask(connection, 0).terminal == 2
            with pytest.raises(EnvError, match=r"came back with another environment"):
                ask(connection)


def test_one_client_for_one_environment():
    with serving("CartPole-v1") as server:
        taken = pytest.raises(EnvError, match=r"within 0.3 s: All 1 environments are taken")
        with clients(server.ports[0]), taken:
            connect(remote="socket-client", host=HOST, port=server.ports[0], start_seconds=0.3)
        with clients(server.ports[0]) as (connection,):
            assert ask(connection).terminal == 0


def test_silent_clients_lose_their_environment():
    timeouts = Timeouts(idle_seconds=0.2)
    with serving("CartPole-v1", timeouts=timeouts) as server, clients(server.ports[0]) as (silent,):
        ask(silent)
        time.sleep(0.4)
        with clients(server.ports[0]) as (other,):
            assert ask(other).terminal == 0


def test_both_sides_wait_without_limit():
    with (
        serving("CartPole-v1", timeouts=Timeouts(1e10, 1e10)) as server,
        clients(server.ports[0], timeout_seconds=1e10, start_seconds=float("inf")) as (connection,),
    ):
        assert ask(connection).terminal == ask(connection, 0).terminal == 0


def test_silent_strangers_are_sent_away():
    with serving("CartPole-v1", timeouts=Timeouts(greeting_seconds=0.2)) as server:
        stranger = socket.create_connection((HOST, server.ports[0]), timeout=5)
        assert stranger.recv(100)[5:12] == b"operant"
        assert stranger.recv(100) == b""  # the end
        stranger.close()
        wait_until(lambda: server.rejected == 1)


def test_the_server_ends_after_so_many_sessions():
    with serving("CartPole-v1", sessions=2) as server:
        for _ in range(2):
            assert not server._ended.is_set()
            with clients(server.ports[0]) as (connection,):
                ask(connection)
        server.wait()


def test_a_port_that_is_taken():
    taken = pytest.raises(EnvError, match=rf"Port \d+ of host '{HOST}' cannot be listened on")
    with serving("CartPole-v1") as server, taken:
        serving("CartPole-v1", ports=server.ports)


# Arguments


@pytest.mark.parametrize(
    ("host", "port", "num_parallel", "want"),
    [
        ("a", 7, None, [("a", 7)]),
        ("a", 7, 3, [("a", 7), ("a", 8), ("a", 9)]),
        ("a,b", "7,8", 2, [("a", 7), ("b", 8)]),
        (["a", "b"], 7, None, [("a", 7), ("b", 7)]),
        ("a", [7, 7, 9], None, [("a", 7), ("a", 7), ("a", 9)]),
    ],
)
def test_hosts_and_ports(host, port, num_parallel, want):
    from operant.envs.remote import _addresses

    assert _addresses(host, port, num_parallel) == want


def test_a_server_listens_where_it_is_told_to_be_looked_for():
    """`operant serve` does not load what serves before it is asked to, so that its port stands there once
    more."""
    assert ServeConfig().port == PORT


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (dict(host=HOST), r"needs port"),
        (
            dict(host=HOST, port="x"),
            r"port must be a whole number of at most 65535, or several. Received: port='x'",
        ),
        (dict(host=HOST, port=[1, 2], num_parallel=3), r"port must be one, or 3, as many as environments"),
        (dict(host=[HOST, 3], port=1), r"host must be a name or address, or several"),
        (dict(host=HOST, port=65535, num_parallel=2), r"port must be at most 65534 for 2 environments"),
        (dict(environment="CartPole-v1", host=HOST, port=1), r"the server defines the environment"),
        (dict(host=HOST, port=1, max_episode_timesteps=3), r"the server defines the environment"),
        (dict(host=HOST, port=1, tokn="x"), r"takes no argument 'tokn'. Did you mean 'token'"),
        (dict(host=HOST, port=1, token="x"), r"token must have at least 16 characters"),
    ],
    ids=str,
)
def test_arguments_that_make_no_client(arguments, match):
    with pytest.raises((UsageError, SpecError), match=match):
        connect(remote="socket-client", **arguments)


def test_environment_create_of_a_server(caplog):
    with serving("CartPole-v1", 30) as server:
        env = Environment.create(
            remote="socket-client",
            host=HOST,
            port=server.ports[0],
            reward_shaping=lambda s, a, t, r, n: 2 * r,
        )
        assert (env.name, env.max_episode_timesteps()) == ("CartPole-v1", 30)
        assert env.reset(seed=1).shape == (4,)
        assert env.execute(0)[1:] == (0, 2.0)
        env.close()
        with pytest.raises(UsageError, match=r"the server defines the environment"):
            Environment.create("CartPole-v1", remote="socket-client", host=HOST, port=server.ports[0])
        with pytest.raises(UsageError, match=r"Leave max_episode_timesteps out here"):
            Environment.create(
                remote="socket-client", max_episode_timesteps=3, host=HOST, port=server.ports[0]
            )


def test_environment_create_serves(tmp_path):
    """As the environment machine of the documents does, and with the agent's side in this process."""
    script = tmp_path / "serve.py"
    script.write_text(
        "from operant import Environment\n"
        "assert Environment.create('gym', level='CartPole-v1', remote='socket-server', port=0) is None\n"
        "print('ended')\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert process.stdout.readline() == "Starting CartPole-v1 ...\n"  # at once
    told = process.stdout.readline()
    port = int(
        re.fullmatch(
            r"Serving 1 x CartPole-v1 on port (\d+) at 127.0.0.1 \(no token, no TLS\)\n", told
        ).group(1)
    )
    assert process.stdout.readline().startswith("Use it by Environment.create(")
    with clients(port) as (connection,):
        assert ask(connection).terminal == 0
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0] == "ended\n" and process.returncode == 0


def test_environment_create_in_a_thread_ends_with_its_client(capsys):
    """Nothing could interrupt it there, and the program would wait for its thread for ever."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    thread = threading.Thread(
        target=Environment.create, args=["CartPole-v1"], kwargs={"remote": "socket-server", "port": port}
    )
    thread.start()
    environment = Environment.create(remote="socket-client", host=HOST, port=port)
    environment.reset()
    environment.close()
    thread.join(20)
    assert not thread.is_alive() and "Serving 1 x CartPole-v1" in capsys.readouterr().out


# The command


def test_serve_helps_and_refuses(capsys):
    assert main(["serve"]) == 0
    out = capsys.readouterr().out
    assert "operant serve --level" in out and "--token-file" in out
    for flags, message in (
        (["--port", "0"], "level must be given"),
        (["--level", "CartPole-v1", "--host", "0.0.0.0"], "goes beyond this machine, and needs a token"),
        (["--level", "CartPole-v1", "--certificate", "x"], "certificate and key go together"),
        (["--level", "CartPole-v1", "--arguments", "[3]"], "arguments must be a dict"),
        (["--level", "CartPole-v1", "--port", "7x"], "port must be a whole number"),
        (["--level", "CartPol-v1", "--port", "0"], "Did you mean 'CartPole-v1'"),
        (["--levl", "CartPole-v1"], "Did you mean '--level'"),
    ):
        assert main(["serve", *flags]) == 2
        assert message in capsys.readouterr().err


def test_serving_loads_neither_jax_nor_keras():
    code = (
        "import sys, threading\n"
        "from operant.envs.remote.serve import ServeConfig, start\n"
        "from operant.envs.remote import connect\n"
        "with start(ServeConfig(level='CartPole-v1', port=0, max_episode_timesteps=5)) as server:\n"
        "    (c,) = connect(remote='socket-client', host='127.0.0.1', port=server.ports[0])\n"
        "    c.send_reset(); c.receive(); c.send_execute(0); c.receive(); c.close()\n"
        "import operant.cli.serving\n"
        "print({'jax', 'keras'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout == "set()\n", run.stderr


@pytest.mark.slow
def test_serve_several_ports_with_arguments(module):
    config = ServeConfig(environment="remote_envs.Count", arguments=dict(length=2), port=[0, 0], num_envs=2)
    with start(config) as server:
        ports = ", ".join(map(str, server.ports))
        assert str(server) == f"4 x remote_envs.Count on port {ports} at 127.0.0.1 (no token, no TLS)"
        with clients([*server.ports, *server.ports]) as found:
            assert len({ask(connection).states["pid"] for connection in found}) == 4
            assert [ask(found[0], 0).terminal for _ in range(2)] == [0, 1]


# The documents


def test_the_example_of_the_page_runs():
    page = (FOLDER.parent / "docs" / "remote.md").read_text()
    code = re.search(r"```python\n(from operant import Environment.*?)```", page, re.S).group(1)
    names = {}
    exec(compile(code, "docs/remote.md", "exec"), names)
    assert (names["terminal"], names["reward"]) == (0, 1.0)


def test_an_environment_in_another_language():
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here to run examples/remote/corridor.mjs")
    process = subprocess.Popen(
        [node, str(FOLDER.parent / "examples" / "remote" / "corridor.mjs"), "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPERANT_TOKEN": TOKEN},
    )
    try:
        port = int(process.stdout.readline().split()[-1])
        address = dict(remote="socket-client", host=HOST, port=port)
        env = Environment.create(**address, token=TOKEN)
        assert env.name == "corridor" and env.max_episode_timesteps() == 100
        for action, steps, end, terminal in ((1, 9, 9.0, 1), (0, 100, 0.0, 2)):
            assert env.reset(seed=1).tolist() == [0.0]
            answers = [env.execute(action) for _ in range(steps)]
            assert [answer[1] for answer in answers] == [0] * (steps - 1) + [terminal]
            assert answers[-1][0].tolist() == [end] and answers[-1][2] == -1.0
        env.close()
        with pytest.raises(EnvError, match=r"refused: The token is not the server's"):
            connect(**address, token=TOKEN[::-1])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
