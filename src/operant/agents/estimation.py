"""What the actions of remembered rows were worth, and which rows make a batch.

All arrays are time-major, `[L, N]`, as in a block.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from operant.ops import returns
from operant.ops.optimise import Scalar
from operant.types import Array, Block


def estimate(
    block: Block,
    values: Float[Array, "L+1 N E"] | None,
    *,
    gamma: Scalar,
    lambda_: Scalar,
    horizon: Scalar | None,
    predict_terminal_values: bool = False,
) -> Float[Array, "L N *E"]:
    """Return the returns of a block's rows: at most `horizon` rewards, then the predicted value of what follows.

    G⁽¹⁾ₜ = rₜ + γ V(sₜ₊₁) and G⁽ⁿ⁾ₜ = rₜ + γ [(1 - λ) V(sₜ₊₁) + λ G⁽ⁿ⁻¹⁾ₜ₊₁] (Sutton and Barto 2018, equation 12.18, n times).
    At a time limit V is that of the last observation; after a termination nothing is added.

    Args:
        block: rows and the observation after them.
        values: of all rows and of what follows the last; None: nothing is predicted, which counts as 0.
        gamma: discount factor; may be traced, as may the next two.
        lambda_: how far later rewards are trusted over the prediction.
        horizon: most rewards of a return; None: all to the end of the episode or of the block.
        predict_terminal_values: whether the value of an episode's last state is added where the environment ended, too.

    Returns:
        `[L, N, E]` as the values; `[L, N, 1]` without.
    """
    if values is None:
        values = jnp.zeros((len(block.reward) + 1, block.reward.shape[1], 1))
    cut = jnp.zeros_like(block.terminated) if predict_terminal_values else block.terminated
    discount = returns.discounts(cut, gamma=gamma)
    trace = returns.traces(block.truncated | (block.terminated & ~cut), block.valid, lambda_=lambda_)
    reward, discount, trace = (
        jnp.broadcast_to(x[..., None], values[:-1].shape) for x in (block.reward, discount, trace)
    )
    if horizon is None:
        return returns.lambda_returns(reward, discount, values[1:], trace)
    return returns.truncated_lambda_returns(reward, discount, values[1:], trace, n=horizon)


def complete(block: Block, horizon: Scalar | None) -> Bool[Array, "L N"]:
    """Return which rows have all rewards of their return in the block: `horizon` of them, or those to the episode's end."""
    end = _next_end(block)
    rows = len(block.reward)
    known = end < rows
    if horizon is not None:
        known |= jnp.arange(rows)[:, None] + jnp.asarray(horizon).astype(jnp.int32) <= rows
    return block.valid & known


def newest(usable: Bool[Array, "L N"], count: int) -> Bool[Array, "L N"]:
    """Return the newest `count` of the usable rows, or all if there are fewer. In a row later actors count as newer."""
    flat = usable.reshape(-1)
    rank = jnp.cumsum(flat[::-1].astype(jnp.int32))[::-1]
    return (flat & (rank <= count)).reshape(usable.shape)


def newest_episodes(block: Block, count: int) -> Bool[Array, "L N"]:
    """Return the rows of the newest `count` episodes that ended, or of all if there are fewer."""
    ended = _ended(block)
    chosen = jnp.concatenate([newest(ended, count), jnp.zeros_like(ended[:1])])
    return block.valid & jnp.take_along_axis(chosen, _next_end(block), axis=0)


def _ended(block: Block) -> Bool[Array, "L N"]:
    """Return the rows with which episodes end: flagged, or behind them there is an invalid row (an interrupted run flags nothing)."""
    last = jnp.concatenate([~block.valid[1:], jnp.zeros_like(block.valid[:1])])
    return block.valid & (block.terminated | block.truncated | last)


def _next_end(block: Block) -> Int[Array, "L N"]:
    """Return the row with which the episode of each row ends, L where that is not known yet."""
    rows = len(block.reward)
    ended = _ended(block)
    row = jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32)[:, None], ended.shape)
    return jax.lax.cummin(jnp.where(ended, row, rows), axis=0, reverse=True)
