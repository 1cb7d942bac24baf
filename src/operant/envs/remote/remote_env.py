"""A remote environment that is used like any other: `Environment.create(remote=...)`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from operant.envs.connection import Answer, Connection
from operant.envs.env_spec import EnvSpec
from operant.envs.environment import Environment, Shaping
from operant.envs.remote import REMOTE, ConnectionLimits, check, connect, read_ports, start
from operant.envs.validated_env import ValidatedEnv
from operant.errors import UsageError

_log = logging.getLogger("operant")
MODES = (*REMOTE, "socket-server")


class RemoteEnv(Environment):
    """An environment at the other side of a connection; every call waits for its answer."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.spaces = connection.spaces

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("connection", "spaces"):
            raise UsageError(
                f"{name!r} cannot be set on an environment elsewhere. Give it as an argument when the "
                "environment is made."
            )
        super().__setattr__(name, value)

    def states(self) -> Any:
        """Return the specification of the states, masks included."""
        return self.spaces.declaration()

    def actions(self) -> Any:
        """Return the specification of the actions."""
        return self.spaces.actions.to_spec()

    def max_episode_timesteps(self) -> int | None:
        """Return the time limit."""
        return self.connection.max_episode_timesteps

    def num_actors(self) -> int:
        """Return how many actors act in it."""
        return self.connection.num_actors

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode and wait for its first states; this works after an interrupted call, too."""
        self.connection.forget()
        self.connection.send_reset(seed)
        answer = self.connection.receive()
        return answer.states if self.num_actors() == 1 else (answer.parallel, answer.states)

    def execute(self, actions: Any) -> tuple[Any, ...]:
        """Take a step and wait for its result.

        If the environment was lost, that is terminal 2 with the last states.
        """
        self.connection.send_execute(actions)
        answer: Answer = self.connection.receive()
        if self.num_actors() == 1:
            return answer.states, answer.terminal, answer.reward
        return answer.parallel, answer.states, answer.terminal, answer.reward

    def episode_return(self, parallel: int | None = None) -> float | None:
        """Return what the environment reports."""
        return self.connection.episode_return()

    def close(self) -> None:
        """Close the environment, or leave the server."""
        self.connection.close()


def serve(source: EnvSpec, host: str | None, port: Any) -> None:
    """Serve one environment until interrupted; `operant.envs.remote.serve.serve` has more options."""
    from operant.envs.remote.auth import read_token
    from operant.envs.remote.server import PORT, Server

    ports = [PORT] if port is None else read_ports(port)
    with Server(source, "127.0.0.1" if host is None else host, ports, token=read_token()) as server:
        _log.info("Serving %s.", server)
        with contextlib.suppress(KeyboardInterrupt):
            server.wait()


def create(
    source: EnvSpec | None,
    reward_shaping: Shaping | None,
    arguments: Mapping[str, Any],
    *,
    remote: str | None,
    blocking: bool,
    host: Any,
    port: Any,
) -> ValidatedEnv | None:
    """Do what `Environment.create` does with `remote`; return None after a server has ended.

    Args:
        source: the environment, without `reward_shaping`; None for `socket-client`.
        reward_shaping: runs in this process.
        arguments: for `socket-client`, those of the connection.
        remote: one of `MODES`, or None if only others of the arguments below were given.
        blocking: for connections.
        host: for sockets and clusters.
        port: for sockets and clusters.
    """
    check(remote, blocking, host, port, MODES)
    if remote == "socket-client":
        if source is not None:
            raise UsageError(
                "With remote='socket-client' the server defines the environment. Leave environment and "
                "max_episode_timesteps out here, and give them to the server."
            )
        (connection,) = connect(remote="socket-client", blocking=blocking, host=host, port=port, **arguments)
        return ValidatedEnv(RemoteEnv(connection), None, reward_shaping, connection.name)
    assert source is not None
    if remote == "socket-server":
        if reward_shaping is not None:
            raise UsageError(
                "Rewards of served environments are shaped by the client. Give reward_shaping there."
            )
        serve(source, host, port)
        return None
    assert remote is not None
    (connection,) = start([source], remote, ConnectionLimits(), blocking, host, port)
    return ValidatedEnv(RemoteEnv(connection), None, reward_shaping, connection.name)
