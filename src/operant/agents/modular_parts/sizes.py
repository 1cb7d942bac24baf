"""How many rows the blocks and the memory of the modular agent have, and how far apart its updates are."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from operant.agents.options.modular_options import ModularConfig
from operant.errors import SpecError, value_error
from operant.spec import Schedule

REPLAY_CAPACITY = 10_000
"""Rows of a replay memory for which no capacity is given."""
REPLAY_WARMUP = 20
"""Warm-up rows before a replayed one, for recurrent networks whose layers have no horizon."""


def extent(value: Any) -> float:
    """Return the largest value of an option: itself, or the maximum of its schedule."""
    return value.range()[1] if isinstance(value, Schedule) else float(value)


def block_rows(config: ModularConfig, actors: int) -> int:
    """Return the rows of a block: all between two updates if they divide evenly among the actors, else 1."""
    if config.unit == "episodes" or isinstance(config.frequency, Schedule):
        return 1
    frequency = float(interval(config, config.batch_size if not config.frequency else config.frequency))
    return int(frequency) // actors if frequency % actors == 0 else 1


def interval(config: ModularConfig, frequency: Any) -> Any:
    """Return the timesteps or episodes between updates, given as a share of the batch or as a number."""
    size = config.batch_size * (1.0 + 1e-6)  # 0.29 x 100 is 29, however a type rounds
    if isinstance(frequency, int | float):
        return max(1, int(frequency * size)) if frequency < 1 else int(frequency)
    share = jnp.maximum(jnp.floor(frequency * size), 1.0)
    return jnp.where(frequency < 1.0, share, jnp.floor(frequency))


def replay_rows(config: ModularConfig, actors: int, sequence: int) -> int:
    """Return a replay memory's rows for sequences of `sequence` rows; SpecError: `capacity` is too small."""
    least = (sequence + 1) * actors
    capacity = max(REPLAY_CAPACITY, least) if config.capacity is None else config.capacity
    if sequence > 1 and capacity <= sequence * actors:
        raise value_error(
            "capacity",
            f"above {sequence * actors} for a recurrent network: {actors} actor(s) x {sequence} rows, the "
            "layer's horizon and that of returns",
            capacity,
            "Use a larger capacity, or a smaller horizon of the layer.",
        )
    return max(capacity, 2 * actors)


def recent_rows(config: ModularConfig, actors: int, rows: int, warmup: int = 0) -> int:
    """Return how many rows per actor a batch of the newest steps or episodes may take, and `warmup` more.

    Timesteps take up to twice as many rows: one more holds the last observation of each episode. One of
    several actors may contribute twice its share, since they get out of step and a block may hold one of them
    twice. And an update may come late, by less than a block.

    Raises:
        SpecError: episodes may be of any length, or `capacity` is too small.
    """
    share = math.ceil(config.batch_size / actors)
    least, most = _room(config, share, warmup), 2 * (share + rows) * min(actors, 2)
    if config.unit == "episodes":
        most = math.ceil((config.batch_size + actors - 1) / actors)
    if config.capacity is not None:
        held = config.capacity // actors
        if held < max(least or 1, rows):
            raise SpecError(
                f"capacity must be at least {max(least or 1, rows) * actors}, for "
                f"batch_size={config.batch_size} {config.unit} "
                f"of {actors} actor(s). Received: capacity={config.capacity}. Leave it out to get enough."
            )
        return held
    room = _room(config, most, warmup)
    if config.memory == "replay":  # whole episodes
        return max(room or 1, rows, math.ceil(REPLAY_CAPACITY / actors))
    if room is None:
        why = "unit='episodes'" if config.unit == "episodes" else "horizon=None without predicted values"
        raise SpecError(
            f"{why} needs to know how long episodes can be. Received: episode_limit=None. "
            "Give max_episode_timesteps with the agent or the environment, or episode_limit, or capacity."
        )
    return max(room, rows)


def _room(config: ModularConfig, count: int, warmup: int) -> int | None:
    """Return the rows of `count` timesteps or episodes and their returns; None: of any length."""
    limit = config.episode_limit
    if config.unit == "episodes":
        return None if limit is None else (count + 1) * (limit + 1) + warmup
    if config.bootstraps:
        return count + warmup
    if config.horizon is None:
        return None if limit is None else count + limit + 1 + warmup
    return count + int(extent(config.horizon)) + warmup
