"""An environment in an actor of a Ray cluster, wherever Ray places it.

What crosses the cluster is the content of the frames of `wire`, as bytes: see docs/cluster.md.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from operant.envs.env_spec import EnvSpec
from operant.envs.remote import wire
from operant.envs.remote.connection import (
    Answer,
    ConnectionLimits,
    EnvDescription,
    LocalConnection,
    RestartingConnection,
)
from operant.envs.remote.service import Service, fault, lost_by
from operant.envs.remote.wire import Schema
from operant.envs.vector.base import Flat
from operant.envs.workers.process import SECRET, error_named
from operant.envs.workers.restarts import LostError
from operant.errors import SpecError, UsageError, value_error
from operant.spec.run import ClusterConfig

PORT = 6379
"""Where the head of a Ray cluster listens by default."""
_REACH_SECONDS = 10.0
_LEAVE_SECONDS = 5.0


class RayEnvActor:
    """The cluster's side: one environment in an actor. It imports neither JAX nor Keras.

    Methods return kind and content of what would be a frame; errors, too, so that Ray sends no exceptions.
    """

    def make(self, literal: str) -> tuple[int, bytes]:
        """Make the environment of `EnvSpec.literal`, and describe it."""
        try:
            self._environment = LocalConnection(EnvSpec.from_literal(literal).create())
            self._service = Service(self._environment)
            return wire.DESCRIPTION, wire.pack_description(self._environment)
        except Exception as error:
            return wire.FAULT, fault(error)

    def obey(self, kind: int, content: bytes) -> tuple[int, bytes]:
        """Begin an episode or take a step."""
        try:
            return wire.ANSWER, self._service.obey(kind, memoryview(content))
        except Exception as error:
            return wire.FAULT, fault(error)

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()


class RayConnection(RestartingConnection):
    """An environment in an actor of a Ray cluster; a lost actor is replaced. It starts at once; `meet` waits.

    The actor reserves `cpus` processors, or that share of one; for the others see `RestartingConnection`.
    """

    def __init__(
        self, source: EnvSpec, index: int, limits: ConnectionLimits, blocking: bool = False, cpus: float = 1.0
    ) -> None:
        self._literal = sendable(source)
        super().__init__(index, limits, blocking)
        self.name = source.name
        self._cpus = cpus
        self._described: bytes | None = None
        self._schema: Schema
        self._actor: Any = None
        self._called = "Ray actor"
        self._description_reply: Any = None
        self._reply: Any = None
        self._arrival: tuple[int, bytes] | None = None
        self._acted = 0
        self._open()

    def _introduction(self) -> EnvDescription:
        seconds = max(self._limits.timeout_seconds, self._limits.start_seconds)
        reply = self._wait(self._description_reply, seconds)
        if reply is None:
            raise LostError(f"was not there within {seconds:g} s. Does the cluster have free processors?")
        kind, content = reply
        if kind == wire.FAULT:
            name, text, traceback = wire.unpack_fault(memoryview(content))
            raise error_named(name)(f"{text}\n{traceback}".rstrip())
        description = wire.unpack_description(memoryview(content))
        self._described, self._description_reply = content, None
        self._schema = Schema(description.spaces, description.num_actors)
        return description

    def _place(self) -> str:
        return self._called

    def _open(self) -> None:
        import ray

        # After a machine is lost, the others may have no processor to spare. A replacement reserves none, so
        # that it can be placed: slower is better than never.
        cpus = 0.0 if self.restarts else self._cpus
        options = {"num_cpus": cpus, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        self._actor = ray.remote(RayEnvActor).options(**options).remote()
        self._called = f"Ray actor {self._actor._actor_id.hex()[:8]}"
        self._description_reply = self._actor.make.remote(self._literal)

    def _drop(self) -> None:
        import ray

        if self._actor is not None:
            with contextlib.suppress(Exception):  # it is gone already, or Ray is
                ray.kill(self._actor)
        self._actor = self._description_reply = self._reply = None

    def _ask(self, request: int | Flat | None) -> None:
        kind, content, self._acted = self._schema.pack_request(request)
        # An actor serves one call after another, so this may be sent before the environment is made.
        self._reply = self._actor.obey.remote(kind, content)

    def _arrived(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        if not self._is_made(seconds):
            return False
        self._arrival = self._wait(self._reply, max(0.0, until - time.monotonic()))
        return self._arrival is not None

    def _read(self) -> tuple[Answer, float | None] | None:
        assert self._arrival is not None
        return self._schema.unpack_answer(_content(self._arrival), self._acted)

    def _is_made(self, seconds: float) -> bool:
        if self._description_reply is not None:
            reply = self._wait(self._description_reply, seconds)
            if reply is None:
                return False
            if bytes(_content(reply)) != self._described:
                raise LostError("came back as another environment", final=True)
            self._description_reply = None
        return True

    @staticmethod
    def _wait(reply: Any, seconds: float) -> tuple[int, bytes] | None:
        """Return what a call of the actor returned; None if it is not there in time."""
        import ray

        try:
            if seconds <= 0.0 and not ray.wait([reply], timeout=0)[0]:
                return None
            answer: tuple[int, bytes] = ray.get(reply, timeout=seconds or None)  # one call where it may wait
            return answer
        except ray.exceptions.GetTimeoutError:
            return None
        except ray.exceptions.RayError as error:
            raise LostError(f"was lost: {' '.join(str(error).split())}") from None

    def _finish(self) -> None:
        import ray

        if self._actor is not None and self._described is not None:
            with contextlib.suppress(Exception):  # a last courtesy
                ray.get(self._actor.close.remote(), timeout=_LEAVE_SECONDS)
        self._drop()


def _content(reply: tuple[int, bytes]) -> memoryview:
    kind, content = reply[0], memoryview(reply[1])
    if kind == wire.FAULT:
        raise lost_by(content)
    return content


def sendable(source: EnvSpec) -> str:
    """Return an environment as text; SpecError: it cannot be sent, or other machines cannot import it."""
    literal = source.literal()
    if "__main__:" in literal:
        raise SpecError(
            f"Environment {source.name!r} is defined in the program itself, which other machines do not "
            "have. Define it in a module that they can import."
        )
    return literal


class TaskPlacement(NamedTuple):
    """Which cluster computes tasks, and what each of them reserves there."""

    host: str | None
    port: int | None
    cpus: float = 1.0
    gpus: float = 0.0

    @classmethod
    def read(cls, config: ClusterConfig) -> TaskPlacement | None:
        """Read the options; None: there is no cluster."""
        if config.cluster is None:
            return None
        kind, _, address = config.cluster.partition(":")
        host, _, port = address.partition(":")
        if kind != "ray" or (address and not host) or (port and not port.isdecimal()):
            raise value_error("cluster", "ray or ray:HOST:PORT", config.cluster)
        return cls(host or None, int(port) if port else None, config.cluster_cpus, config.cluster_gpus)

    def join(self) -> None:
        """Join the cluster; UsageError: it cannot be joined."""
        join(self.host, self.port, "cluster='ray'")

    def options(self) -> dict[str, Any]:
        """Return what Ray needs to know of a task."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, "scheduling_strategy": "SPREAD"}


def join(host: Any = None, port: Any = None, wanted: str = "remote='ray'") -> None:
    """Join a Ray cluster (at this address, or `RAY_ADDRESS`, or a new one here), unless this process has.

    The process stays connected until it ends, or calls ``ray.shutdown()``.

    Raises:
        UsageError: Ray is not installed, or cannot be joined.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            f"{wanted} needs Ray. Install it: pip install 'operant[cluster]'. ({error})"
        ) from None
    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS")
    with _undisturbed():
        try:
            if host is not None:
                port = PORT if port is None else port
                address = f"{host}:{port}"
                socket.create_connection((host, port), _REACH_SECONDS).close()  # Ray would try for minutes
            if address:
                ray.init(address=address, logging_level="WARNING")
            else:  # the dashboard is a server that nobody here needs
                ray.init(address="local", include_dashboard=False, logging_level="WARNING")
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"The Ray cluster {'at ' + address if address else 'here'} cannot be joined: {error}. If it "
                "asks for a token, set RAY_AUTH_MODE=token and have the token in ~/.ray/auth_token."
            ) from None


def share(count: int) -> float:
    """Return how many processors each of `count` environments may reserve: at most one, so that all fit."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    return equal_share([node["Resources"].get("CPU", 0.0) for node in nodes], count)


def equal_share(cpus: Sequence[float], count: int) -> float:
    """Return the largest share of a processor, at most one, of which `count` fit on such machines."""
    shares = {
        min(1.0, int(each / k * 1e4) / 1e4) for each in cpus for k in range(1, count + 1)
    }  # Ray counts in 1e-4
    return max((x for x in shares if x and sum(int(each / x) for each in cpus) >= count), default=0.0)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep Ray from replacing the SIGTERM handler, passing on secrets, and warning needlessly."""
    hidden = {name: os.environ.pop(name) for name in SECRET if name in os.environ}
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if main else None
    try:
        with warnings.catch_warnings():
            # JAX warns of forks. Ray's processes are programs of their own from the start.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            yield
    finally:
        os.environ.update(hidden)
        if main:
            # None: it was not set from Python, and cannot be restored.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if handler is None else handler)
