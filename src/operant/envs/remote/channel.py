"""A socket that passes frames, each within a time limit, and the greeting that shows who may connect.

Both sides prove that they know the shared token without sending it. Each contributes a fresh random number,
and answers with HMAC-SHA256, keyed with the token, over both numbers and a word for its role: a recorded
greeting is worth nothing in another connection, nor is a side's own proof sent back to it. The client proves
first. The keys for the frames that follow are derived in the same way.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import select
import socket
import ssl
import stat
import struct
import time
from pathlib import Path

from operant.envs.remote.wire import (
    GREETING_BYTES,
    HELLO,
    MAC,
    PROOF,
    REFUSED,
    VERSION,
    WELCOME,
    Frames,
    WireError,
    frame,
    printable,
)
from operant.envs.workers.process import LostError, milliseconds
from operant.errors import SpecError, UsageError, quoted

_CHUNK = 1 << 16
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds of silence before the first probe, seconds between probes, and how many go unanswered before the
other machine counts as gone. The system's default of two hours would keep an environment from other clients
for as long."""


class Channel:
    """One end of a connection; it owns its socket. No call takes longer than the seconds it is given."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._frames = Frames(GREETING_BYTES)
        self._mac: MAC | None = None
        self._frame: tuple[int, memoryview] | None = None
        sock.setblocking(False)
        if sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def secure(self, context: ssl.SSLContext, seconds: float, host: str | None = None) -> None:
        """Put TLS under the frames, as the server or `host`'s client; LostError: the other side fails."""
        until = time.monotonic() + seconds
        try:
            wrapped = context.wrap_socket(
                self._sock, server_side=host is None, server_hostname=host, do_handshake_on_connect=False
            )
            self._sock = wrapped
            while True:
                try:
                    wrapped.do_handshake()
                    return
                except ssl.SSLWantReadError:
                    self._wait(select.POLLIN, until)
                except ssl.SSLWantWriteError:
                    self._wait(select.POLLOUT, until)
        except (OSError, ValueError) as error:
            raise LostError(f"did not agree on TLS: {error}") from None

    def protect(self, theirs: MAC, ours: MAC) -> None:
        """From now on, check the tags of received frames, and add tags to those that are sent."""
        self._frames.mac, self._mac = theirs, ours

    def limit(self, size: int) -> None:
        """Accept frames of up to `size` bytes from now on."""
        self._frames.limit = size

    def send(self, kind: int, content: bytes = b"", *, seconds: float) -> None:
        """Send a frame; LostError: the other side closed the connection, or does not read."""
        until = time.monotonic() + seconds
        rest = memoryview(frame(kind, content, self._mac))
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(select.POLLOUT, until)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, until)
            except OSError as error:
                raise LostError(f"closed the connection ({_reason(error)})") from None

    def poll(self, seconds: float) -> bool:
        """Tell whether a whole frame is there, after waiting for at most `seconds`.

        Raises:
            LostError: the other side closed the connection.
            WireError: what arrived is not a frame.
        """
        until = time.monotonic() + seconds
        while self._frame is None:
            self._frame = self._frames.next()
            if self._frame is None and not self._fill(until):
                return False
        return True

    def _fill(self, until: float) -> bool:
        while True:
            try:
                data = self._sock.recv(_CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError):
                if not self._ready(select.POLLIN, until):
                    return False
            except ssl.SSLWantWriteError:
                if not self._ready(select.POLLOUT, until):
                    return False
            except OSError as error:
                raise LostError(f"closed the connection ({_reason(error)})") from None
            else:
                if not data:
                    raise LostError("closed the connection")
                self._frames.add(data)
                return True

    def receive(self, seconds: float) -> tuple[int, memoryview]:
        """Return kind and content of the next frame.

        Raises:
            LostError: the other side closed the connection, or did not send one within `seconds`.
            WireError: what arrived is not a frame.
        """
        if not self.poll(seconds):
            raise LostError(f"did not answer within {seconds:g} s")
        assert self._frame is not None
        message, self._frame = self._frame, None
        return message

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _ready(self, event: int, until: float) -> bool:
        self._poll.modify(self._sock, event)
        return bool(self._poll.poll(milliseconds(until - time.monotonic())))

    def _wait(self, event: int, until: float) -> None:
        if not self._ready(event, until):
            raise LostError("did not go on in time")


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


VARIABLE = "OPERANT_TOKEN"
_MAGIC = b"operant\0"
_HELLO = struct.Struct("<8sH32s")
_PROOF = struct.Struct("<H32s32s")
_LEAST = 16
_RECIPE = "(umask 077; python -c 'import secrets; print(secrets.token_hex(32))' > token)"


def read_token(token: str | None = None, token_file: str | Path | None = None) -> bytes:
    """Return the token given, or of the file, or of `OPERANT_TOKEN`; SpecError: too short, or not secret."""
    source = "token"
    if token is None and token_file is not None:
        source, token = f"The token in {str(token_file)!r}", _read_file(Path(token_file))
    elif token is None and VARIABLE in os.environ:
        source, token = f"The variable {VARIABLE}", os.environ[VARIABLE]
    if token is None:
        return b""
    try:
        secret = token.strip().encode()
    except UnicodeEncodeError:  # bytes of a variable that are no UTF-8
        raise SpecError(f"{source} must be UTF-8 text. Make one: {_RECIPE}") from None
    if len(secret) < _LEAST:  # the message does not show it
        raise SpecError(
            f"{source} must have at least {_LEAST} characters. Received: {len(secret)}. Make one: {_RECIPE}"
        )
    return secret


def _read_file(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"The token file {str(path)!r} cannot be read: {error}. Make one: {_RECIPE}"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SpecError(
            f"The token file {str(path)!r} must be its owner's alone: chmod 600 {quoted(str(path))}. "
            f"Where a file system has no such modes, give the token in the variable {VARIABLE}."
        )
    return text


def is_loopback(host: str) -> bool:
    """Tell whether a name or address stands for this machine alone."""
    if not host:
        return False  # all interfaces
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SpecError(f"host {host!r} is not known: {error}.") from None
    addresses = {str(entry[4][0]) for entry in entries}
    return all(address == "::1" or address.startswith("127.") for address in addresses)


def check_reach(host: str, token: bytes, what: str) -> None:
    """Refuse (UsageError) to connect beyond this machine without a token."""
    if not token and not is_loopback(host):
        raise UsageError(
            f"{what} {host!r} goes beyond this machine, and needs a token that both sides know: "
            f"--token-file, or the variable {VARIABLE}. Make one: {_RECIPE}"
        )


def welcome(channel: Channel, token: bytes, seconds: float) -> None:
    """Greet a client, as the server: after this, frames are sealed.

    Raises:
        WireError: it is not a client of operant's, or does not know the token.
        LostError: it closed the connection, or is too slow.
    """
    ours = secrets.token_bytes(32)
    channel.send(HELLO, _HELLO.pack(_MAGIC, VERSION, ours), seconds=seconds)
    kind, content = channel.receive(seconds)
    if kind != PROOF or len(content) != _PROOF.size:
        raise WireError("no greeting")
    version, theirs, proof = _PROOF.unpack(content)
    if version != VERSION:
        channel.send(
            REFUSED, f"It speaks version {VERSION} of the protocol, not {version}.".encode(), seconds=seconds
        )
        raise WireError(f"version {version} of the protocol")
    if not hmac.compare_digest(proof, _derive(token, b"client proof", ours, theirs)):
        channel.send(REFUSED, b"The token is not the server's.", seconds=seconds)
        raise WireError("a wrong token")
    channel.send(WELCOME, _derive(token, b"server proof", ours, theirs), seconds=seconds)
    channel.protect(
        MAC(_derive(token, b"client frames", ours, theirs)),
        MAC(_derive(token, b"server frames", ours, theirs)),
    )


def greet(channel: Channel, token: bytes, seconds: float) -> None:
    """Greet a server, as the client: after this, frames are sealed.

    Raises:
        LostError: for good if it does not know the token, or speaks another version; also if it is not a
            server of operant's, closed the connection, or is too slow.
    """
    kind, content = channel.receive(seconds)
    if kind != HELLO or len(content) < _HELLO.size or bytes(content[:8]) != _MAGIC:
        raise WireError("no greeting of operant's")
    _, version, theirs = _HELLO.unpack_from(content)
    if version != VERSION:
        raise LostError(
            f"speaks version {version} of the protocol, and this side version {VERSION}. Install the same "
            "version of operant on both.",
            final=True,
        )
    ours = secrets.token_bytes(32)
    proof = _derive(token, b"client proof", theirs, ours)
    channel.send(PROOF, _PROOF.pack(VERSION, ours, proof), seconds=seconds)
    kind, content = channel.receive(seconds)
    if kind == REFUSED:
        reason = printable(bytes(content).decode(errors="replace"))
        raise LostError(
            f"refused: {reason} Give the server's token: token_file, or the variable {VARIABLE}.", final=True
        )
    if kind != WELCOME or not hmac.compare_digest(content, _derive(token, b"server proof", theirs, ours)):
        raise LostError("does not know the token. It may not be the server that you mean.", final=True)
    channel.protect(
        MAC(_derive(token, b"server frames", theirs, ours)),
        MAC(_derive(token, b"client frames", theirs, ours)),
    )


def _derive(token: bytes, role: bytes, server: bytes, client: bytes) -> bytes:
    return hmac.digest(token, role + struct.pack("<H", VERSION) + server + client, hashlib.sha256)
