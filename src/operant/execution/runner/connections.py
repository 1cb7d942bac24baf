"""From the Runner's arguments to the environments that it drives, in this process or elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from operant.envs.remote import connect
from operant.envs.remote.connection import Connection, close_all
from operant.errors import UsageError, whole


def open_environments(
    environment: Any,
    environments: Any,
    *,
    num_parallel: int | None,
    evaluation: bool,
    remote: Any,
    token_file: str | Path | None,
    certificate: str | Path | None,
    **options: Any,
) -> list[Connection]:
    """Connect to the environments; the arguments are those of `Runner`.

    Raises:
        UsageError: arguments exclude one another, one is missing, an object is there twice, or spaces differ.
        SpecError: a value, or a specification, that is not understood.
    """
    if remote == "socket-server":
        raise UsageError(
            "A Runner does not serve environments. Use Environment.create(..., remote='socket-server'), or "
            "`operant run --remote socket-server`, and remote='socket-client' here."
        )
    for name, value in {"token_file": token_file, "certificate": certificate}.items():
        if value is None:
            continue
        if remote != "socket-client":
            raise UsageError(
                f"{name} is for servers (remote='socket-client'). Received: {name}={str(value)!r}."
            )
        options[name] = value
    remedy = "Leave it out for a single environment."
    num_parallel = whole("num_parallel", num_parallel, 2, optional=True, remedy=remedy)
    connections = connect(
        environment,
        environments=environments,
        num_parallel=num_parallel,
        remote=remote,
        side_by_side=not evaluation,
        **options,
    )
    if evaluation and len(connections) < 2:
        close_all(connections)
        raise UsageError(
            "evaluation=True makes the last of several environments the one that evaluates. "
            "Give num_parallel or environments; for a single one use run(evaluation=True)."
        )
    return connections
