"""A socket that passes frames, each within a time limit."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time

from operant.envs.remote.wire import GREETING_BYTES, MAC, Frames, frame
from operant.envs.workers.process import milliseconds
from operant.envs.workers.restarts import LostError

_CHUNK = 1 << 16
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds of silence before the first probe, seconds between probes, and how many go unanswered before the
other machine counts as gone. The system's default of two hours would keep an environment from other clients
for as long."""

_UNTRUSTED = (18, 19, 20, 21)
"""OpenSSL's codes of a certificate whose issuer is not known here; others are of its names or its dates."""


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
        except ssl.SSLCertVerificationError as error:
            text = f"shows a certificate that is not accepted: {error.verify_message.rstrip('.')}."
            if error.verify_code in _UNTRUSTED:
                text += " Give certificate: the server's own, or that of its authority."
            raise LostError(text, final=True) from None
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
