"""Sequences from a replay memory for recurrent networks: the stored state warmed up, n-step targets.

Paper: Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning"
(https://openreview.net/forum?id=r1lyTjAqYX), section 3.

The state that an older network stored when it acted is not what the present one would have. So the first rows
of a sequence (burn-in) only bring the state up to date with the present network, and no gradient passes
through them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Int

from operant.errors import SpecError, value_error
from operant.nn import Model
from operant.ops import returns
from operant.types import Array, Rollout, Transition, Tree


def require_room(config: Any, actors: int, rows: int) -> None:
    """Refuse a memory too small for a sequence of every actor: a SpecError names the options."""
    if config.buffer_max_size > actors * rows:
        return
    parts = f"burn_in {config.burn_in} + sequence_length {config.sequence_length}"
    if beyond := rows - config.burn_in - config.sequence_length:
        parts += f" + n_steps {beyond + 1} - 1"
    environments = f"{actors} environment{'s' if actors > 1 else ''}"
    raise value_error(
        "buffer_max_size",
        f"above {actors * rows} for a recurrent network: {environments} x ({parts}) rows",
        config.buffer_max_size,
        "Use a larger buffer_max_size, a smaller sequence_length or burn_in, or fewer environments.",
    )


def refuse_averages(models: Mapping[str, Model]) -> None:
    """Refuse (SpecError) running averages beside recurrent networks: batches hold rows without actions."""
    remembering = [name for name, model in models.items() if model.recurrent]
    for name, model in models.items():
        if model.averages and remembering:
            raise SpecError(
                f"{name} must not have running averages, such as batch normalisation, beside the recurrent "
                f"{remembering[0]}. Received: {', '.join(model.averages)}. Use layer normalisation instead "
                "(layer_normalization)."
            )


def begins(valid: Array, rows: int | None = None) -> Array:
    """Return where episodes begin: after each invalid row; `[rows, B]` from `[T, B]`, rows <= T + 1."""
    return jnp.concatenate([jnp.zeros_like(valid[:1]), ~valid])[: len(valid) if rows is None else rows]


def states(model: Model, variables: Tree, block: Rollout, rows: int) -> Tree:
    """Return recurrent states before rows from `rows` on and after the last: `[T - rows + 1, B, size]`.

    No gradient passes through the first `rows` rows. See `warmed`. The observation after the last row is not
    read.
    """
    carry, rest = warmed(model, variables, block, rows), cut(block, rows)
    observation = {name: x[: len(rest.valid)] for name, x in rest.observation.items()}
    return model.states(variables, observation, carry, begins(rest.valid))


def warmed(model: Model, variables: Tree, block: Rollout, rows: int) -> Tree:
    """Return the recurrent state after the first `rows` rows of a block `[T, B]`, a constant for gradients.

    The block has the state before its row 0; `rows` is from 0 to T.
    """
    if rows == 0:
        return block.carry
    observation = {name: x[:rows] for name, x in block.observation.items()}
    first = begins(block.valid[:rows])
    carry = model.unroll(jax.lax.stop_gradient(variables), observation, block.carry, first)[1]
    goes_on = block.valid[rows - 1, :, None]
    return jax.tree.map(lambda x: jnp.where(goes_on, x, 0.0), jax.lax.stop_gradient(carry))


def cut(block: Rollout, rows: int) -> Rollout:
    """Return a block without its first rows; the state after these is not known here: see `warmed`."""
    return jax.tree.map(lambda x: x[rows:], block._replace(carry=()))


def transitions(
    block: Rollout, rows: int, n: int, gamma: float | Array
) -> tuple[Transition, Int[Array, "rows B"]]:
    """Return the n-step transitions from a block's first `rows` rows, flattened, and where they end.

    They are like those of `Replay.sample`; weights are 0 where no action was taken. `index` is row and column
    in the block `[rows + n - 1, B]`.
    """
    start = jnp.arange(rows, dtype=jnp.int32)[:, None]
    path = start + jnp.arange(n, dtype=jnp.int32)[None]

    def windows(x: Array) -> Array:
        return jnp.moveaxis(x[path], 1, -1)

    reward, discount, length = returns.n_step_sums(
        windows(block.reward), windows(block.valid), windows(block.terminated), gamma=gamma
    )
    after = start + length
    column = jnp.arange(after.shape[1], dtype=jnp.int32)[None]
    index = jnp.stack(jnp.broadcast_arrays(start, column), axis=-1)
    whole = Transition(
        observation={name: x[:rows] for name, x in block.observation.items()},
        action={name: x[:rows] for name, x in block.action.items()},
        reward=reward,
        discount=discount,
        next_observation={name: x[after, column] for name, x in block.observation.items()},
        extras=jax.tree.map(lambda x: x[:rows], block.extras),
        index=index,
        weight=block.valid[:rows].astype(jnp.float32),
    )
    return flat(whole), after


def flat(tree: Tree) -> Tree:
    """Merge rows and columns into one axis: leaves `[rows, B, ...]` become `[rows B, ...]`."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def at(tree: Tree, row: Int[Array, "rows B"]) -> Tree:
    """Take the given rows from every column, flattened: leaves `[T, B, ...]` become `[rows B, ...]`."""
    column = jnp.arange(row.shape[1], dtype=jnp.int32)[None]
    return flat(jax.tree.map(lambda x: x[row, column], tree))
