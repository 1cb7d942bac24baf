"""An environment at a server on another machine."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time

from operant.envs.connection import Answer
from operant.envs.remote import wire
from operant.envs.remote.auth import RefusedError, check_reach, greet
from operant.envs.remote.channel import Channel
from operant.envs.remote.restarting import ConnectionLimits, EnvDescription, RestartingConnection
from operant.envs.remote.service import lost_by
from operant.envs.remote.wire import Schema, WireError
from operant.envs.vector.base import Flat
from operant.envs.workers.restarts import LostError
from operant.errors import EnvironmentError, SpecError

_TRY_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
_LEAVE_SECONDS = 1.0


class _Busy(Exception):  # noqa: N818  (no error: another try may find it free)
    """The server has no environment for us now: all are taken, or one cannot be made."""


class Dial:
    """Connects to a server, in a thread of its own, so that other environments need not wait.

    Args:
        host: name or address of the server.
        port: of the server.
        token: the one that both sides know.
        context: for TLS; None: without.
        seconds: how long to try. A server that is not there yet, or is busy, is tried again.
    """

    def __init__(
        self, host: str, port: int, token: bytes, context: ssl.SSLContext | None, seconds: float
    ) -> None:
        self._host, self._port, self._token, self._context = host, port, token, context
        self._seconds = seconds
        self._stop = threading.Event()
        self._lock = (
            threading.Lock()
        )  # so that what is found either is stopped with the rest, or sees that it came too late
        self._found: tuple[Channel, EnvDescription] | None = None
        self._error: LostError | None = None
        self._thread = threading.Thread(target=self._run, name="operant-dial", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> tuple[Channel, EnvDescription] | None:
        """Return the connection and what the server tells of its environment, or None if it is not there yet.

        Raises:
            LostError: the server cannot be reached.
        """
        self._thread.join(min(max(0.0, seconds), threading.TIMEOUT_MAX))
        if self._thread.is_alive():
            return None
        if self._error is not None:
            raise self._error
        return self._found

    def stop(self) -> None:
        """Give up. If the server answers only after this, the connection is closed then."""
        with self._lock:
            self._stop.set()
        self._thread.join(_TRY_SECONDS)
        if self._found is not None:
            self._found[0].close()

    def _run(self) -> None:
        until = time.monotonic() + self._seconds
        reason = "no time"
        while not self._stop.is_set():
            left = until - time.monotonic()
            if left <= 0:
                self._error = LostError(
                    f"could not be reached within {self._seconds:g} s: {reason}", final=True
                )
                return
            try:
                found = self._reach(min(left, _TRY_SECONDS))
                with self._lock:
                    if not self._stop.is_set():
                        self._found = found
                        return
                found[0].close()
                return
            except RefusedError as error:
                self._error = LostError(str(error), final=True)
                return
            except (OSError, LostError, WireError, _Busy) as error:
                reason = str(error)
            except Exception as error:  # it would otherwise be lost with the thread
                self._error = LostError(f"could not be reached: {type(error).__name__}: {error}", final=True)
                return
            self._stop.wait(min(_PAUSE_SECONDS, max(0.0, until - time.monotonic())))

    def _reach(self, seconds: float) -> tuple[Channel, EnvDescription]:
        channel = Channel(socket.create_connection((self._host, self._port), timeout=seconds))
        try:
            if self._context is not None:
                channel.secure(self._context, seconds, self._host)
            greet(channel, self._token, seconds)
            channel.limit(wire.DESCRIPTION_BYTES)
            channel.send(wire.DESCRIBE, seconds=seconds)
            kind, content = channel.receive(seconds)
            if kind == wire.FAULT:
                raise _Busy(wire.unpack_fault(content)[1])
            if kind != wire.DESCRIPTION:
                raise WireError(f"a frame of kind {kind} instead of a description")
            return channel, wire.unpack_description(content)
        except BaseException:
            channel.close()
            raise


class SocketConnection(RestartingConnection):
    """An environment at a server. If the connection is lost, it is made again, a bounded number of times.

    The server is reached in the background; `meet` waits for it.

    Args:
        host: name or address of the server.
        port: of the server.
        index: number of the environment, for messages.
        limits: how long to wait for an answer and for the server, and how often to reach it again.
        blocking: whether requests wait for their answers.
        token: the one that both sides know; empty: none, for servers on this machine.
        context: for TLS; None: without.

    Raises:
        UsageError: the server is on another machine, and there is no token.
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
        self.name = "remote"
        self._address = (host, port, token, context, limits.start_seconds)
        self._channel: Channel | None = None
        self._waiting: bytes | None = None  # a request to send once the server is reached
        self._waiting_kind = 0
        self._acted = 0
        self._dial: Dial | None = Dial(*self._address)

    def meet(self) -> None:
        """Learn the spaces of the environment.

        Raises:
            EnvironmentError: the server cannot be reached, or refuses.
        """
        assert self._dial is not None
        try:
            found = self._dial.wait(self._limits.start_seconds + 2 * _TRY_SECONDS)
            if found is None:
                raise LostError(f"could not be reached within {self._limits.start_seconds:g} s")
            self._channel, description = found
            self._dial = None
            self._description = description
            self.name, self.spaces, self.max_episode_timesteps, self.num_actors = description
            self._schema = Schema(self.spaces, self.num_actors)
            self._channel.limit(self._schema.answer_limit)
        except LostError as lost:
            self.close()
            raise EnvironmentError(f"Environment {self.index} ({self._place()}) {lost}") from None
        except BaseException:
            self.close()
            raise

    def _place(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    def _open(self) -> None:
        self._dial = Dial(*self._address)

    def _drop(self) -> None:
        if self._dial is not None:
            self._dial.stop()
        if self._channel is not None:
            self._channel.close()
        self._dial = self._channel = None

    def _ask(self, request: int | Flat | None) -> None:
        kind, content, self._acted = self._schema.pack_request(request)
        if self._channel is None:
            self._waiting_kind, self._waiting = kind, content
        else:
            self._channel.send(kind, content, seconds=self._limits.timeout_seconds)

    def _arrived(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        try:
            if self._dial is not None and not self._reached(seconds):
                return False
            assert self._channel is not None
            return self._channel.poll(until - time.monotonic())
        except WireError as error:
            raise LostError(f"sent {error}") from None

    def _read(self) -> tuple[Answer, float | None] | None:
        assert self._channel is not None
        try:
            kind, content = self._channel.receive(0.0)
            if kind == wire.FAULT:
                raise lost_by(content)
            if kind != wire.ANSWER:
                raise WireError(f"a frame of kind {kind} instead of an answer")
            answer, own = self._schema.unpack_answer(content, self._acted)
        except WireError as error:
            raise LostError(f"sent {error}") from None
        if answer.lost:
            self.restarts += 1
            answer = answer._replace(lost=f"{self.where} {answer.lost}")
        return answer, own

    def _reached(self, seconds: float) -> bool:
        """Use the connection once the dial has made it, and send the request that waits.

        Return whether it has.
        """
        assert self._dial is not None
        found = self._dial.wait(seconds)
        if found is None:
            return False
        self._channel, description = found
        self._dial = None
        if description != self._description:
            raise LostError("came back with another environment", final=True)
        self._channel.limit(self._schema.answer_limit)
        if self._waiting is not None:
            self._channel.send(self._waiting_kind, self._waiting, seconds=self._limits.timeout_seconds)
            self._waiting = None
        return True

    def _finish(self) -> None:
        if self._channel is not None:
            with contextlib.suppress(LostError, WireError):
                until = time.monotonic() + _LEAVE_SECONDS
                self._channel.send(wire.CLOSE, seconds=_LEAVE_SECONDS)
                while (left := until - time.monotonic()) > 0 and self._channel.receive(left)[
                    0
                ] != wire.CLOSED:
                    pass  # an answer that nobody awaits any more
        self._drop()


def tls_context(certificate: str | None) -> ssl.SSLContext | None:
    """Return the client's side of TLS: trusting a file of certificates, or ``'system'``, what the system
    trusts; None: no TLS.

    Raises:
        SpecError: the file cannot be used.
    """
    if certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=None if certificate == "system" else certificate)
    except OSError as error:
        raise SpecError(f"certificate {certificate!r} cannot be used: {error}.") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
