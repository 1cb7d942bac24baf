"""What `Environment.create` does: it makes every kind of environment, here or elsewhere."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from operant.envs import environment as environment_module
from operant.envs.catalog import resolve
from operant.envs.environment import Shaping
from operant.envs.remote import REMOTE, check, connect, refuse_options, start
from operant.envs.remote.remote_env import RemoteEnv
from operant.envs.remote.serve import ServeConfig, serve
from operant.envs.validated_env import ValidatedEnv
from operant.errors import UsageError


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
