"""What `Environment.create` does: it makes every kind of environment, here or elsewhere, from its
specification.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from operant.envs import environment as environment_module
from operant.envs.catalog import resolve
from operant.envs.env_spec import EnvSpec
from operant.envs.environment import Shaping
from operant.envs.remote.remote_env import create as create_elsewhere
from operant.envs.validated_env import ValidatedEnv
from operant.errors import value_error


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
    elsewhere: dict[str, Any] = {"remote": remote, "blocking": blocking, "host": host, "port": port}
    options: dict[str, Any] = {
        "max_episode_timesteps": max_episode_timesteps,
        "reward_shaping": reward_shaping,
    }
    source: EnvSpec | None = None
    if environment is not None or remote != "socket-client":
        source = resolve(environment, **options, arguments=kwargs, remote=elsewhere)
    if not any(value not in (None, False) for value in elsewhere.values()):
        assert source is not None
        return source.create()
    if source is not None:
        source, reward_shaping = dataclasses.replace(source, reward_shaping=None), source.reward_shaping
    elif max_episode_timesteps is not None:
        raise value_error(
            "max_episode_timesteps",
            "left out with remote='socket-client': the server defines it",
            max_episode_timesteps,
        )
    return create_elsewhere(source, reward_shaping, kwargs, **elsewhere)


environment_module._create = create
