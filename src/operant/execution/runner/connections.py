"""From the Runner's arguments to the environments that it drives, in this process or elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from operant.envs.catalog import resolve
from operant.envs.connection import Answer, Connection, LocalConnection
from operant.envs.env_spec import refuse_same
from operant.envs.environment import Environment
from operant.envs.remote import check
from operant.envs.remote import connect as elsewhere
from operant.envs.validated_env import ValidatedEnv
from operant.errors import UsageError, value_error, whole


class VectorizedConnection(LocalConnection):
    """A vectorizable environment in this process, with several episodes side by side."""

    def __init__(self, environment: ValidatedEnv, num_parallel: int, own: bool = True) -> None:
        super().__init__(environment, own)
        self.num_actors = num_parallel

    def send_reset(self, seed: int | None = None, count: int | None = None) -> None:
        """Begin `count` episodes (default: as many as there are actors)."""
        began = time.perf_counter()
        parallel, states = self.environment.reset(num_parallel=count or self.num_actors, seed=seed)
        self._answer = Answer(states, 0, 0.0, parallel, time.perf_counter() - began)


def connect(
    environment: Any,
    environments: Sequence[Any] | None,
    *,
    max_episode_timesteps: int | None,
    num_parallel: int | None,
    evaluation: bool,
    remote: str | None,
    blocking: bool,
    host: Any,
    port: Any,
    **credentials: str | Path | None,
) -> list[Connection]:
    """Make the environments; the arguments are those of `Runner`.

    Raises:
        UsageError: arguments that exclude one another, one that is missing, one object twice, or environments
            whose spaces differ.
        SpecError: a value, or a specification, that is not understood.
    """
    if environments is not None:
        if isinstance(environments, str | Environment) or not isinstance(environments, Iterable):
            raise value_error("environments", "a list of environments", environments, "For one: environment=")
        environments = list(environments)
    _check_remote(remote, blocking, host, port)
    kept: dict[str, Any] = {name: value for name, value in credentials.items() if value is not None}
    for name, value in kept.items():
        if remote != "socket-client":
            raise UsageError(
                f"{name} is for servers (remote='socket-client'). Received: {name}={str(value)!r}."
            )
    _check_which(environment, environments, remote, max_episode_timesteps)
    num_parallel = _count(num_parallel, environments, evaluation)
    objects = [e for e in environments or [environment] if _is_object(e)]
    if remote is not None and objects:
        raise UsageError(
            f"An environment object cannot run remotely. Received: {objects[0]!r} with remote={remote!r}. "
            "Give its id, its class or a dict."
        )
    if remote is not None:
        mode: Any = remote  # one of REMOTE, as was checked
        made: list[Connection] = elsewhere(
            environment, num_parallel=num_parallel, remote=mode, blocking=blocking, host=host, port=port,
            max_episode_timesteps=max_episode_timesteps, environments=environments, **kept,
        )  # fmt: skip
    elif environments is not None:
        refuse_same([resolve(environment) for environment in environments])
        made = _local(environments, max_episode_timesteps)
    else:
        made = _copies(environment, num_parallel, max_episode_timesteps, evaluation)
    try:
        _check_equal(made)
    except BaseException:
        close(made)
        raise
    return made


def close(connections: Sequence[Connection]) -> None:
    """Close all of them, even after one has failed to."""
    failed: Exception | None = None
    for connection in connections:
        try:
            connection.close()
        except Exception as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _check_remote(remote: Any, blocking: Any, host: Any, port: Any) -> None:
    if remote == "socket-server":
        raise UsageError(
            "A Runner does not serve environments. Use Environment.create(..., remote='socket-server'), or "
            "`operant run --remote socket-server`, and remote='socket-client' here."
        )
    check(remote, blocking, host, port)


def _check_which(environment: Any, environments: Any, remote: str | None, limit: Any) -> None:
    given = {"environment": environment, "environments": environments}
    if remote == "socket-client":
        for name, value in {**given, "max_episode_timesteps": limit}.items():
            if value is not None:
                raise UsageError(f"With remote='socket-client' the server decides on {name}. Leave it out.")
    elif (environment is None) == (environments is None):
        what = "none of them" if environment is None else "both"
        raise UsageError(f"Give either environment or environments. Received: {what}.")


def _count(num_parallel: Any, environments: Any, evaluation: bool) -> int | None:
    """Return how many environments there will be; None for a single one."""
    remedy = "Leave it out for a single environment."
    num_parallel = whole("num_parallel", num_parallel, 2, optional=True, remedy=remedy)
    if environments is not None:
        if not environments:
            raise value_error("environments", "a list of at least one environment", environments)
        if num_parallel not in (None, len(environments)):
            raise UsageError(
                f"num_parallel={num_parallel} does not fit the {len(environments)} environments given. "
                "Leave it out."
            )
        num_parallel = len(environments)
    if evaluation and (num_parallel or 1) < 2:
        raise UsageError(
            "evaluation=True makes the last of several environments the one that evaluates. "
            "Give num_parallel or environments; for a single one use run(evaluation=True)."
        )
    return num_parallel


def _is_object(environment: Any) -> bool:
    """Tell whether it is an environment that exists already."""
    return environment is not None and resolve(environment).is_object


def _local(environments: Sequence[Any], limit: int | None) -> list[Connection]:
    made: list[Connection] = []
    for environment in environments:
        own = not _is_object(environment)
        try:
            made.append(LocalConnection(Environment.create(environment, max_episode_timesteps=limit), own))
        except BaseException:
            close(made)
            raise
    return made


def _copies(
    environment: Any, num_parallel: int | None, limit: int | None, evaluation: bool
) -> list[Connection]:
    """Make one environment, one that runs several episodes side by side, or several environments."""
    own = not _is_object(environment)
    first = Environment.create(environment, max_episode_timesteps=limit)
    if num_parallel is None:
        return [LocalConnection(first, own)]
    if first.is_vectorizable() and not evaluation:
        return [VectorizedConnection(first, num_parallel, own)]
    if not own:
        raise UsageError(
            f"{first!r} is one object and cannot run {num_parallel} times. "
            "Give its id, class or dict, or a list of objects as environments."
        )
    try:
        others = _local([environment] * (num_parallel - 1), limit)
    except BaseException:
        first.close()
        raise
    return [LocalConnection(first), *others]


def _check_equal(connections: Sequence[Connection]) -> None:
    first = connections[0]
    for other in connections[1:]:
        if other.spaces != first.spaces:
            raise UsageError(
                f"All environments must have the same states and actions. {first.name!r}: "
                f"{first.spaces.to_spec()}. "
                f"{other.name!r}: {other.spaces.to_spec()}."
            )
