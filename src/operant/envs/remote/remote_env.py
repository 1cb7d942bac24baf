"""What `Environment.create` does: it makes every kind of environment, here or elsewhere."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from operant.envs import environment as environment_module
from operant.envs.catalog import resolve
from operant.envs.environment import Shaping, SpacesEnv
from operant.envs.remote import REMOTE, check, connect, refuse_options, start
from operant.envs.remote.connection import Answer, Connection
from operant.envs.remote.serve import ServeConfig, serve
from operant.envs.validated_env import ValidatedEnv
from operant.errors import UsageError


class RemoteEnv(SpacesEnv):
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
        """Take a step and wait for its result; terminal 2 with the last states if it was lost."""
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


def create(
    environment: Any,
    max_episode_timesteps: int | None,
    reward_shaping: Shaping | None,
    remote: str | None,
    blocking: bool,
    host: Any,
    port: Any,
    **kwargs: Any,
) -> ValidatedEnv | None:
    """See `Environment.create`."""
    place: dict[str, Any] = {"remote": remote, "blocking": blocking, "host": host, "port": port}
    if environment is None and remote == "socket-client":
        check(**place)
        refuse_options({"max_episode_timesteps": max_episode_timesteps})
        (connection,) = connect(**place, **kwargs)
        return ValidatedEnv(RemoteEnv(connection), None, reward_shaping, connection.name)
    source = resolve(
        environment,
        max_episode_timesteps=max_episode_timesteps,
        reward_shaping=reward_shaping,
        arguments=kwargs,
        remote=place,
    )
    check(**place, modes=(*REMOTE, "socket-server"))
    remote = place.pop("remote")
    if remote is None:
        return source.create()
    if remote == "socket-client":
        refuse_options({"environment": environment})
    source, reward_shaping = dataclasses.replace(source, reward_shaping=None), source.reward_shaping
    if remote == "socket-server":
        if reward_shaping is not None:
            raise UsageError(
                "Rewards of served environments are shaped by the client. Give reward_shaping there."
            )
        options = {name: place[name] for name in ("host", "port") if place[name] is not None}
        in_main = threading.current_thread() is threading.main_thread()
        serve(ServeConfig(**options, sessions=None if in_main else 1), source)
        return None
    (connection,) = start([source], remote, **place)
    return ValidatedEnv(RemoteEnv(connection), None, reward_shaping, connection.name)


environment_module._create = create
