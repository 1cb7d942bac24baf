"""An environment at a server on another machine."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time

from operant.envs.remote import wire
from operant.envs.remote.auth import check_reach, greet
from operant.envs.remote.channel import Channel
from operant.envs.remote.connection import Answer, ConnectionLimits, EnvDescription, RestartingConnection
from operant.envs.remote.service import lost_by
from operant.envs.remote.wire import Schema, WireError
from operant.envs.vector.base import Flat
from operant.envs.workers.restarts import LostError
from operant.errors import SpecError

_TRY_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
_LEAVE_SECONDS = 1.0


def reach(
    host: str, port: int, token: bytes, context: ssl.SSLContext | None, seconds: float
) -> tuple[Channel, EnvDescription]:
    """Connect to a server within so many seconds, and learn of its environment.

    A server that is not there yet, or is busy, is tried again. `token` is the one that both sides know,
    `context` is for TLS.
    """
    until = time.monotonic() + seconds
    reason = "no time"
    while (left := until - time.monotonic()) > 0:
        try:
            return _greeted(host, port, token, context, min(left, _TRY_SECONDS))
        except LostError as error:
            if error.final:
                raise
            reason = str(error)
        except OSError as error:
            reason = str(error)
        except UnicodeError as error:  # no name of a host
            raise LostError(f"could not be reached: {error}", final=True) from None
        time.sleep(min(_PAUSE_SECONDS, max(0.0, until - time.monotonic())))
    raise LostError(f"could not be reached within {seconds:g} s: {reason}", final=True)


def _greeted(
    host: str, port: int, token: bytes, context: ssl.SSLContext | None, seconds: float
) -> tuple[Channel, EnvDescription]:
    channel = Channel(socket.create_connection((host, port), timeout=seconds))
    try:
        if context is not None:
            channel.secure(context, seconds, host)
        greet(channel, token, seconds)
        channel.limit(wire.DESCRIPTION_BYTES)
        channel.send(wire.DESCRIBE, seconds=seconds)
        kind, content = channel.receive(seconds)
        if kind == wire.FAULT:
            raise LostError(wire.unpack_fault(content)[1])  # it has no environment for us now
        if kind != wire.DESCRIPTION:
            raise WireError(f"a frame of kind {kind} instead of a description")
        return channel, wire.unpack_description(content)
    except BaseException:
        channel.close()
        raise


class SocketConnection(RestartingConnection):
    """An environment at a server. If the connection is lost, it is made again, a bounded number of times.

    Servers on other machines need the token that both sides know (UsageError); `context` is for TLS. The
    other arguments are those of `RestartingConnection`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        index: int,
        limits: ConnectionLimits,
        blocking: bool = False,
        token: bytes = b"",
        context: ssl.SSLContext | None = None,
    ) -> None:
        check_reach(host, token, "The server at")
        super().__init__(index, limits, blocking)
        self._address = (host, port, token, context, limits.start_seconds)
        self._channel: Channel | None = None
        self._acted = 0

    def _introduction(self) -> EnvDescription:
        self._channel, self._description = reach(*self._address)
        self._schema = Schema(self._description.spaces, self._description.num_actors)
        self._channel.limit(self._schema.answer_limit)
        return self._description

    def _place(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    def _open(self) -> None:
        self._channel, description = reach(*self._address)
        if description != self._description:
            raise LostError("came back with another environment", final=True)
        self._channel.limit(self._schema.answer_limit)

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None

    def _ask(self, request: int | Flat | None) -> None:
        assert self._channel is not None
        kind, content, self._acted = self._schema.pack_request(request)
        self._channel.send(kind, content, seconds=self._limits.timeout_seconds)

    def _arrived(self, seconds: float) -> bool:
        assert self._channel is not None
        return self._channel.poll(seconds)

    def _read(self) -> tuple[Answer, float | None] | None:
        assert self._channel is not None
        kind, content = self._channel.receive(0.0)
        if kind == wire.FAULT:
            raise lost_by(content)
        if kind != wire.ANSWER:
            raise WireError(f"a frame of kind {kind} instead of an answer")
        answer, episode_return = self._schema.unpack_answer(content, self._acted)
        if answer.lost:
            self.restarts += 1
            answer = answer._replace(lost=f"{self.where} {answer.lost}")
        return answer, episode_return

    def _finish(self) -> None:
        if self._channel is not None:
            with contextlib.suppress(LostError):
                until = time.monotonic() + _LEAVE_SECONDS
                self._channel.send(wire.CLOSE, seconds=_LEAVE_SECONDS)
                while (left := until - time.monotonic()) > 0 and self._channel.receive(left)[
                    0
                ] != wire.CLOSED:
                    pass  # an answer that nobody awaits any more
        self._drop()


def tls_context(certificate: str | None) -> ssl.SSLContext | None:
    """Return the client's TLS, trusting a file or ``'system'``; None: no TLS; SpecError: a useless file."""
    if certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=None if certificate == "system" else certificate)
    except OSError as error:
        raise SpecError(f"certificate {certificate!r} cannot be used: {error}.") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
