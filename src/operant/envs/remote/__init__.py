"""Environments elsewhere: in processes, and on other machines. `connect` is the entry point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from operant.envs.catalog import resolve
from operant.envs.env_spec import EnvSpec, refuse_same
from operant.envs.environment import Environment
from operant.envs.remote.connection import (
    Connection,
    ConnectionLimits,
    LocalConnection,
    RestartingConnection,
    VectorizedConnection,
    close_all,
)
from operant.envs.remote.processes import ProcessConnection
from operant.envs.vector.base import refuse_different
from operant.errors import UsageError, suggest, value_error, whole
from operant.spec import build

if TYPE_CHECKING:
    from ssl import SSLContext

Remote = Literal["multiprocessing", "socket-client", "ray"]
REMOTE: tuple[str, ...] = get_args(Remote)
"""The places where an environment can be."""

_REACH_SECONDS = 30.0

__all__ = ["REMOTE", "ConnectionLimits", "check", "connect", "credentials", "read_ports", "start"]


def connect(
    environment: Any = None,
    *,
    environments: Sequence[Any] | None = None,
    num_parallel: int | None = None,
    max_episode_timesteps: int | None = None,
    remote: Remote | None = None,
    blocking: bool = False,
    host: str | Sequence[str] | None = None,
    port: int | str | Sequence[int] | None = None,
    timeout_seconds: float = 60.0,
    start_seconds: float | None = None,
    max_restarts: int = 3,
    side_by_side: bool = False,
    **kwargs: Any,
) -> list[Connection]:
    """Connect to environments: here, in processes, or served on other machines.

    Args:
        environment: what `Environment.create` takes, for all; without `remote` also an object, which stays
            open.
        environments: instead, a list with one for each.
        num_parallel: how many (default: one, or as many as `environments`, hosts or ports).
        max_episode_timesteps: steps after which an episode is cut.
        remote: None: in this process. `multiprocessing`: each in a process of its own, which imports neither
            JAX nor Keras. `socket-client`: at servers (`operant serve`), which define environment and time
            limit. `ray`: each in an actor of a Ray cluster.
        blocking: whether requests wait for their answers; only with `remote`.
        host: name or address of the server, or one for each environment; with `ray`, of the cluster's head
            (default: the variable `RAY_ADDRESS`, or else a cluster on this machine).
        port: of the server, or one for each environment; a single host and port stand for an increasing
            sequence of ports. With `ray`, of the head.
        timeout_seconds: how long an answer may take before the environment counts as lost.
        start_seconds: how long a process or an actor may take to start (default: 120), or a server to be
            reached (default: 30).
        max_restarts: how often each may be replaced, or reached again, without an episode ending in between.
        side_by_side: whether a vectorizable environment in this process runs `num_parallel` episodes itself,
            behind one connection with that many actors.
        kwargs: arguments of the environment; for `socket-client`, `token`, `token_file` and `certificate`
            (see `credentials`).

    Raises:
        SpecError: a specification is not understood, or cannot be sent.
        UsageError: arguments exclude one another, or the environments' spaces differ.
        EnvError: an environment cannot be made, or a server cannot be reached.
    """
    check(remote, blocking, host, port)
    num_parallel = whole("num_parallel", num_parallel, optional=True)
    if start_seconds is None:
        start_seconds = _REACH_SECONDS if remote == "socket-client" else 120.0
    limits = ConnectionLimits(timeout_seconds, start_seconds, max_restarts)
    if remote == "socket-client":
        options = {
            "environment": environment,
            "environments": environments,
            "max_episode_timesteps": max_episode_timesteps,
        }
        refuse_options(options)
        return _reach(_addresses(host, port, num_parallel), limits, blocking, **kwargs)
    sources = [
        resolve(each, max_episode_timesteps=max_episode_timesteps, arguments=kwargs)
        for each in _each(environment, environments)
    ]
    if environments is None:
        sources *= num_parallel or 1
    elif num_parallel not in (None, len(sources)):
        must = f"{len(sources)}, as many as environments"
        raise value_error("num_parallel", must, num_parallel, "Leave it out.")
    if remote is None:
        refuse_same([] if environments is None else sources)
        return _local(sources, side_by_side and environments is None and num_parallel is not None)
    return start(sources, remote, limits, blocking, host, port)


def refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse options (not None, by name) that the server decides on, with remote='socket-client'."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(
                "With remote='socket-client' the server defines the environment. Leave "
                f"{name} out here, and give it to the server. Received: {name}={value!r}."
            )


def _local(sources: Sequence[EnvSpec], side_by_side: bool) -> list[Connection]:
    source, n = sources[0], len(sources)
    owned = not source.is_object
    first = source.create()
    if side_by_side and first.is_vectorizable():
        return [VectorizedConnection(first, n, owned)]
    if n > 1 and all(each is source for each in sources) and not owned:
        raise UsageError(
            f"The environment {source.name!r} exists already, and there is only one of it. "
            f"Received: num_parallel={n}. Give its id or its class, or a list of objects as environments."
        )
    return _met(
        LocalConnection(first if i == 0 else each.create(), not each.is_object)
        for i, each in enumerate(sources)
    )


def start(
    sources: Sequence[EnvSpec],
    remote: str,
    limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008  (immutable)
    blocking: bool = False,
    host: Any = None,
    port: Any = None,
) -> list[Connection]:
    """Start environments in processes or on a cluster; the arguments are those of `connect`."""
    if remote == "multiprocessing":
        return _met(ProcessConnection(source, i, limits, blocking) for i, source in enumerate(sources))
    from operant.envs.remote import cluster

    for source in sources:
        cluster.sendable(source)  # what cannot be sent is refused before a cluster is started
    cluster.join(host, port)
    cpus = cluster.share(len(sources))
    return _met(cluster.RayConnection(source, i, limits, blocking, cpus) for i, source in enumerate(sources))


def check(remote: Any, blocking: Any, host: Any, port: Any, modes: Sequence[str] = REMOTE) -> None:
    """Check the arguments that say where an environment is to be; `modes` are the values of `remote`."""
    if remote is not None and remote not in modes:
        hint = suggest(remote, modes).strip() if isinstance(remote, str) else ""
        raise value_error("remote", f"None, {', '.join(map(repr, modes))}", remote, hint)
    if not isinstance(blocking, bool):
        raise value_error("blocking", "True or False", blocking)
    if blocking and remote not in REMOTE:
        raise UsageError(
            f"blocking is for remote environments ({', '.join(REMOTE)}). Received: blocking=True with "
            f"remote={remote!r}."
        )
    for name, value in (("host", host), ("port", port)):
        if value is not None and remote in (None, "multiprocessing"):
            raise UsageError(
                f"{name} is for servers and clusters. Received: {name}={value!r} with remote={remote!r}."
            )
        if value is None and remote == "socket-client":
            raise UsageError(
                f"remote='socket-client' needs {name}: where the server listens. Received: host={host!r}, "
                f"port={port!r}."
            )
    if remote == "ray" and host is None and port is not None:
        raise UsageError(f"port is that of the cluster's head. Give host too. Received: port={port!r}.")


def _reach(
    addresses: Sequence[tuple[str, int]], limits: ConnectionLimits, blocking: bool, **kwargs: Any
) -> list[Connection]:
    from operant.envs.remote.client import SocketConnection

    token, context = build(credentials, kwargs, "remote='socket-client'")
    return _met(
        SocketConnection(host, port, i, limits, blocking, token, context)
        for i, (host, port) in enumerate(addresses)
    )


def _met(making: Iterable[Connection]) -> list[Connection]:
    """Return connections once all environments are ready, started side by side; if one fails, close all."""
    connections: list[Connection] = []
    try:
        connections.extend(making)
        for connection in connections:
            if isinstance(connection, RestartingConnection):
                connection.meet()
        names = [f"Environment {i} ({each.name!r})" for i, each in enumerate(connections)]
        refuse_different([each.spaces for each in connections], names)
    except BaseException:
        close_all(connections)
        raise
    return connections


def credentials(
    token: str | None = None, token_file: str | None = None, certificate: str | None = None
) -> tuple[bytes, SSLContext | None]:
    """Return what a client needs to connect: the token, and the TLS context or None.

    Args:
        token: the one that both sides know (default: that of `token_file`, or else the variable
            `OPERANT_TOKEN`).
        token_file: a file that holds it, and that only its owner may read.
        certificate: file of the server's certificate, or of that of its signer; ``'system'``: what the system
            trusts. The connection uses TLS if this is given.
    """
    from operant.envs.remote.auth import read_token
    from operant.envs.remote.client import tls_context

    return read_token(token, token_file), tls_context(certificate)


def read_ports(port: Any) -> list[int]:
    """Read one port, several in a list, or several separated by commas; SpecError: one is not a port."""
    parts = port.split(",") if isinstance(port, str) else port if isinstance(port, list | tuple) else [port]
    ports: list[int] = []
    for part in parts:
        text = part.strip() if isinstance(part, str) else part
        whole = isinstance(text, int) and not isinstance(text, bool)
        number = int(text) if whole or (isinstance(text, str) and text.isdecimal()) else -1
        if not 0 <= number < 2**16:
            raise value_error("port", "a whole number of at most 65535, or several", port)
        ports.append(number)
    return ports


def _addresses(host: Any, port: Any, num_parallel: int | None) -> list[tuple[str, int]]:
    hosts = [part.strip() for part in host.split(",")] if isinstance(host, str) else list(host)
    ports = read_ports(port)
    if not hosts or not all(isinstance(one, str) and one for one in hosts):
        raise value_error("host", "a name or address, or several", host)
    count = num_parallel or max(len(hosts), len(ports))
    if len(ports) == 1:
        # One host and one port stand for consecutive ports; several hosts may all use the same port.
        ports = [ports[0] + i for i in range(count)] if len(hosts) == 1 else ports * count
    if len(hosts) == 1:
        hosts *= count
    for name, values, given in (("host", hosts, host), ("port", ports, port)):
        if len(values) != count:
            raise value_error(name, f"one, or {count}, as many as environments", given)
    if ports[-1] >= 2**16:
        raise value_error("port", f"at most {2**16 - count} for {count} environments", port)
    return list(zip(hosts, ports, strict=True))


def _each(environment: Any, environments: Any) -> list[Any]:
    if (environment is None) == (environments is None):
        received = "none of them" if environment is None else "both"
        raise UsageError(f"Give either environment or environments. Received: {received}.")
    if environments is None:
        return [environment]
    if isinstance(environments, str | Environment) or not isinstance(environments, Iterable):
        raise value_error("environments", "a list of environments", environments, "For one: environment=")
    specifications = list(environments)
    if not specifications:
        raise value_error("environments", "a list of at least one environment", environments)
    return specifications
