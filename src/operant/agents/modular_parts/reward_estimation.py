"""Returns of the rows in a memory, and which rows make a batch; arrays are time-major, `[L, N]`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, UInt32

from operant.ops import returns
from operant.types import Array, Rollout, Scalar

NEVER = np.uint32(2**32 - 1)
"""Stands for the age of rows that are still to come."""


def estimate(
    block: Rollout,
    values: Float[Array, "L+1 N E"] | None,
    *,
    gamma: Scalar,
    lambda_: Scalar,
    horizon: Scalar | None,
    predict_terminal_values: bool = False,
) -> Float[Array, "L N *E"]:
    """Return the returns of a block's rows: at most `horizon` rewards, then the predicted value of what
    follows.

    G⁽¹⁾ₜ = rₜ + γ V(sₜ₊₁) and G⁽ⁿ⁾ₜ = rₜ + γ [(1 - λ) V(sₜ₊₁) + λ G⁽ⁿ⁻¹⁾ₜ₊₁] (Sutton and Barto 2018, equation
    12.18, n times). At a time limit V is that of the last observation; after a termination nothing is added.

    Args:
        block: rows and the observation after them.
        values: predicted for all rows and for what follows the last; None: nothing is predicted, which counts
            as 0.
        gamma: discount factor; may be traced, as may the next two.
        lambda_: how far later rewards are trusted over the prediction.
        horizon: maximal number of rewards in a return; None: all up to the end of the episode or of the
            block.
        predict_terminal_values: whether the value of an episode's last state is added after a termination
            too.

    Returns:
        `[L, N, E]` like the values; `[L, N, 1]` without them.
    """
    if values is None:
        values = jnp.zeros((len(block.reward) + 1, block.reward.shape[1], 1), jnp.float32)
    cut = jnp.zeros_like(block.terminated) if predict_terminal_values else block.terminated
    discount = returns.discounts(cut, gamma=gamma)
    trace = returns.traces(block.truncated | (block.terminated & ~cut), block.valid, lambda_=lambda_)
    reward, discount, trace = (
        jnp.broadcast_to(x[..., None], values[:-1].shape) for x in (block.reward, discount, trace)
    )
    if horizon is None:
        return returns.lambda_returns(reward, discount, values[1:], trace)
    return returns.truncated_lambda_returns(reward, discount, values[1:], trace, n=horizon)


def known(block: Rollout, horizon: Scalar | None) -> Int[Array, "L N"]:
    """Return the index of the row with which each row's return becomes known, L where that is still to come.

    That row holds the last of the return's `horizon` rewards, or ends the episode; if an episode was
    interrupted without a flag, it is the row after the episode's last.
    """
    rows, ended = len(block.reward), _ended(block)
    row = jnp.arange(rows, dtype=jnp.int32)[:, None]
    flagged = block.terminated | block.truncated
    known_at = _next(ended, jnp.where(flagged, row, row + 1))
    return (
        known_at
        if horizon is None
        else jnp.minimum(known_at, row + jnp.asarray(horizon).astype(jnp.int32) - 1)
    )


def newest(
    block: Rollout,
    known_at: Int[Array, "L N"],
    age: UInt32[Array, "L N"],
    count: Int[Array, ""] | int,
    skip: Int[Array, ""] | int = 0,
) -> Bool[Array, "L N"]:
    """Return the rows whose returns became known with the newest `count` steps of any actors.

    Apart from the last `skip`. If `count` is the number of steps since the last update, every row is chosen
    once: with the row that made it known (`known_at`, from `known`). `age` is how many steps came after each.
    """
    behind = jnp.concatenate([age, jnp.full_like(age[:1], NEVER)])
    since = jnp.take_along_axis(behind, known_at, axis=0)
    since -= jnp.asarray(skip).astype(jnp.uint32)  # those that are skipped come out large
    return block.valid & (since < jnp.asarray(count).astype(jnp.uint32))


def newest_episodes(
    block: Rollout, age: UInt32[Array, "L N"], count: Int[Array, ""] | int
) -> Bool[Array, "L N"]:
    """Return the rows of the `count` episodes that ended last, or of all if there are fewer.

    `age` as in `newest`; in a random order instead, they are random episodes.
    """
    ended = _ended(block)
    since = jnp.where(ended, age, NEVER)
    place = jnp.clip(jnp.asarray(count) - 1, 0, since.size - 1)
    chosen = ended & (since <= jnp.sort(since, axis=None)[place])
    chosen = jnp.concatenate([chosen, jnp.zeros_like(ended[:1])])
    row = jnp.arange(len(ended), dtype=jnp.int32)[:, None]
    return block.valid & jnp.take_along_axis(chosen, _next(ended, row), axis=0)


def _ended(block: Rollout) -> Bool[Array, "L N"]:
    """Return the rows with which episodes end: flagged, or (interrupted) followed by an invalid row."""
    last = jnp.concatenate([~block.valid[1:], jnp.zeros_like(block.valid[:1])])
    return block.valid & (block.terminated | block.truncated | last)


def _next(ended: Bool[Array, "L N"], row: Int[Array, "L _"]) -> Int[Array, "L N"]:
    return jax.lax.cummin(jnp.where(ended, row, len(ended)), axis=0, reverse=True)
