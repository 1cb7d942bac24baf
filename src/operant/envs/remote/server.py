"""Environments served to other machines, each to one client at a time."""

from __future__ import annotations

import contextlib
import logging
import queue
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from operant.envs.env_spec import EnvSpec
from operant.envs.remote import wire
from operant.envs.remote.auth import check_reach, is_loopback, welcome
from operant.envs.remote.channel import Channel
from operant.envs.remote.connection import Connection, ConnectionLimits, LocalConnection
from operant.envs.remote.processes import ProcessConnection
from operant.envs.remote.service import Service, fault
from operant.envs.remote.wire import Schema, WireError
from operant.envs.workers.restarts import LostError
from operant.errors import EnvError, SpecError

PORT = 65432
"""Where a server listens by default."""
_MOST_GREETINGS = 64
"""How many clients may be greeted at once. More are turned away, so that they cannot use up threads and
memory."""
_SEND_SECONDS = 30.0
_LEAVE_SECONDS = 1.0
_log = logging.getLogger("operant")


class Timeouts(NamedTuple):
    """How long a server waits."""

    greeting_seconds: float = 10.0
    """For a client to prove that it knows the token."""
    idle_seconds: float = 3600.0
    """For a client's next request; then its environment is free for others."""


class Server:
    """Serves environments on one or more ports.

    Args:
        source: the environment.
        host: address to listen at.
        ports: to listen on; 0: any that is free (`ports` tells which).
        num_envs: environments for each port; that many clients can be served at once.
        token: what clients must know; empty: whoever reaches the port is served.
        context: for TLS; None: without.
        limits, timeouts: of the environments, and of clients.
        sessions: the server ends when this many clients have left; None: it does not.
        processes: whether environments run in processes of their own.

    Raises:
        UsageError: it could be reached from other machines without a token.
        SpecError: the environment cannot be made or sent to a process, or its states are too large.
        EnvError: a port is taken.
    """

    def __init__(
        self,
        source: EnvSpec,
        host: str = "127.0.0.1",
        ports: Sequence[int] = (0,),
        num_envs: int = 1,
        token: bytes = b"",
        context: ssl.SSLContext | None = None,
        limits: ConnectionLimits = ConnectionLimits(30.0),  # noqa: B008  (immutable)
        timeouts: Timeouts = Timeouts(),  # noqa: B008
        sessions: int | None = None,
        processes: bool = True,
    ) -> None:
        check_reach(host, token, "Serving at")
        self.host, self._source, self._token, self._context = host, source, token, context
        self._limits, self._timeouts, self._processes = limits, timeouts, processes
        self._remaining_sessions = sessions
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._channels: set[Channel] = set()
        self._threads: set[threading.Thread] = set()
        self._greeting = 0
        self.rejected = 0
        """How many connections were refused: of strangers, and of clients for whom no environment was
        free."""
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._environments: dict[int, Connection] = {}
        self._broken: set[int] = set()  # those that failed for good, and are to be made anew
        self._listeners: list[socket.socket] = []
        try:
            self._listen(host, ports)
            self._make(num_envs * len(self.ports))
        except BaseException:
            self.close()
            raise
        if not is_loopback(host) and context is None:
            _log.warning("Without TLS (certificate, key) others on the network can read what %r sends.", host)
        self._selector = selectors.DefaultSelector()
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ)
        self._acceptor = threading.Thread(target=self._accept, name="operant-accept", daemon=True)
        self._acceptor.start()

    def _listen(self, host: str, ports: Sequence[int]) -> None:
        self.ports: list[int] = []
        for port in ports:
            try:
                family, kind, proto, _, address = socket.getaddrinfo(
                    host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )[0]
                listener = socket.socket(family, kind, proto)
                self._listeners.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen(128)
            except OSError as error:
                raise EnvError(
                    f"Port {port} of host {host!r} cannot be listened on: {error}. Give another port or host."
                ) from None
            listener.setblocking(False)
            self.ports.append(listener.getsockname()[1])

    def _make(self, count: int) -> None:
        for index in range(count):
            self._environments[index] = self._start(index)
        for index, environment in self._environments.items():
            if isinstance(environment, ProcessConnection):
                environment.meet()
            self._free.put(index)
        first = self._environments[0]
        self._schema = Schema(first.spaces, first.num_actors)
        self._described = wire.pack_description(first)
        if len(self._described) > wire.DESCRIPTION_BYTES - 64:
            raise SpecError(
                f"The description of {first.name!r} takes {len(self._described)} bytes. Use fewer or "
                "smaller states."
            )

    def _start(self, index: int) -> Connection:
        if self._processes:
            return ProcessConnection(self._source, index, self._limits)
        return LocalConnection(self._source.create())

    def __str__(self) -> str:
        guard = "clients must know the token" if self._token else "no token"
        return (
            f"{len(self._environments)} x {self._environments[0].name} on port "
            f"{', '.join(map(str, self.ports))} at {self.host} "
            f"({guard}, {'no TLS' if self._context is None else 'TLS'})"
        )

    def wait(self) -> None:
        """Serve until `close`, or until `sessions` clients have left."""
        while not self._ended.wait(1.0):  # in pieces, so that signals are handled
            pass

    def close(self) -> None:
        """Close all connections and the environments; a second call does nothing."""
        self._ended.set()
        for listener in self._listeners:
            listener.close()
        if hasattr(self, "_acceptor"):
            self._acceptor.join(5.0)
            self._selector.close()
        with self._lock:
            channels, threads = list(self._channels), list(self._threads)
        for channel in channels:
            channel.close()
        deadline = time.monotonic() + _LEAVE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for environment in self._environments.values():
            environment.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            for key, _ in self._selector.select(0.2):
                listener = key.fileobj
                assert isinstance(listener, socket.socket)
                try:
                    sock, address = listener.accept()
                except BlockingIOError:
                    continue
                except OSError:  # no descriptors left, or closed
                    self._ended.wait(0.1)
                    continue
                with self._lock:
                    full = self._greeting >= _MOST_GREETINGS
                    self._greeting += not full
                if full:
                    sock.close()
                    self._reject(address, "too many are greeted at once")
                    continue
                thread = threading.Thread(target=self._client, args=(sock, address), daemon=True)
                with self._lock:
                    self._threads.add(thread)
                try:
                    thread.start()
                except RuntimeError as error:  # no more threads now; there may be one for the next client
                    with self._lock:
                        self._threads.discard(thread)
                        self._greeting -= 1
                    sock.close()
                    self._reject(address, str(error))

    def _client(self, sock: socket.socket, address: object) -> None:
        greeting = True
        channel: Channel | None = None
        try:
            channel = Channel(sock)
            with self._lock:
                self._channels.add(channel)
            if self._context is not None:
                channel.secure(self._context, self._timeouts.greeting_seconds)
            welcome(channel, self._token, self._timeouts.greeting_seconds)
            with self._lock:
                self._greeting -= 1
            greeting = False
            channel.limit(self._schema.request_limit)
            if self._session(channel):
                self._leave()
        except LostError as error:
            if greeting or isinstance(error, WireError):
                self._reject(address, str(error))
            else:
                _log.info("Client %s %s.", address, error)
        except Exception as error:
            if greeting and isinstance(error, OSError):
                self._reject(address, str(error))
            elif not self._ended.is_set():
                _log.exception("Client %s could not be served.", address)
        finally:
            (channel or sock).close()
            with self._lock:
                self._greeting -= greeting
                if channel is not None:
                    self._channels.discard(channel)
                self._threads.discard(threading.current_thread())

    def _reject(self, address: object, reason: str) -> None:
        with self._lock:
            self.rejected += 1
            count = self.rejected
        if count & (count - 1) == 0:  # the first, second, fourth, ...: a flood must not fill the disk
            _log.warning("Client %s was turned away: %s (%d so far).", address, reason, count)

    def _leave(self) -> None:
        with self._lock:
            if self._remaining_sessions is not None:
                self._remaining_sessions -= 1
                if self._remaining_sessions <= 0:
                    self._ended.set()

    def _session(self, channel: Channel) -> bool:
        """Serve a client that was greeted; return whether it said goodbye (CLOSE)."""
        try:
            index = self._free.get_nowait()
        except queue.Empty:
            self._turn_away(channel, f"All {len(self._environments)} environments are taken.")
            return False
        try:
            if index in self._broken and (reason := self._renew(index)):
                self._turn_away(channel, f"The environment cannot be made: {reason}")
                return False
            environment = self._environments[index]
            if isinstance(environment, ProcessConnection):
                environment.forgive()
            return self._answer(channel, Service(environment, self._schema))
        except LostError:
            raise
        except Exception as error:
            with contextlib.suppress(LostError):
                channel.send(wire.FAULT, fault(error), seconds=_SEND_SECONDS)
            self._broken.add(index)
            if not self._ended.is_set() and (
                reason := self._renew(index)
            ):  # now: the next need not wait for it
                _log.warning("Environment %d cannot be made anew: %s", index, reason)
            return False
        finally:
            self._free.put(index)

    def _turn_away(self, channel: Channel, reason: str) -> None:
        channel.send(wire.FAULT, wire.pack_fault("Busy", reason, ""), seconds=_SEND_SECONDS)
        self._reject("that is known", reason)

    def _renew(self, index: int) -> str:
        """Replace an environment that failed for good; return why that is not possible now, or nothing."""
        try:
            self._environments[index].close()
            new = self._environments[index] = self._start(index)
            if isinstance(new, ProcessConnection):
                new.meet()
        except Exception as error:
            return str(error)
        self._broken.discard(index)
        return ""

    def _answer(self, channel: Channel, service: Service) -> bool:
        """Answer requests until the client says goodbye (CLOSE); LostError: it is gone, or sends nonsense."""
        while True:
            kind, content = channel.receive(self._timeouts.idle_seconds)
            if kind == wire.DESCRIBE and not content:
                channel.send(wire.DESCRIPTION, self._described, seconds=_SEND_SECONDS)
            elif kind == wire.CLOSE and not content:
                channel.send(wire.CLOSED, seconds=_SEND_SECONDS)
                return True
            else:
                channel.send(wire.ANSWER, service.obey(kind, content), seconds=_SEND_SECONDS)


def tls_context(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return the server's TLS for a certificate chain and its key, if given; SpecError: they are no use."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise SpecError(
            f"certificate and key go together. Received: certificate={certificate!r}, key={key!r}."
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise SpecError(f"certificate {certificate!r} and key {key!r} cannot be used: {error}.") from None
    return context
