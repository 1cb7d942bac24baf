"""Running mean and variance of observations, and the scale of rewards.

The numbers are right after hundreds of millions of rows in float32: the count is an integer (a float32 count
stops at 2^24), the variance is kept rather than a growing sum of squares, and what an addition to mean or
variance rounds away is kept beside it and added the next time (Knuth 1997, section 4.2.2, theorem B).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, Num

from operant.types import Array

_ROWS_LIMIT = 2**31 - 1
_LEAST_STD = 1e-12
"""Standard deviation below which an element counts as constant; also if it is below this share of the mean,
where it is rounding:"""
_ROUNDING = 2.0**-22
_LARGE = 2.0**50
"""Size from which on first rows set a unit of their own."""


class Moments(NamedTuple):
    """Mean and variance of the rows seen so far, element by element."""

    rows: Int[Array, ""]
    """How many; the count stops at 2^31 - 1, from where on old rows fade."""
    mean: Float[Array, "*S"]
    var: Float[Array, "*S"]
    """Population variance; 0 before the first row."""
    mean_rest: Float[Array, "*S"]
    """What rounding left out of `mean`."""
    var_rest: Float[Array, "*S"]
    """What rounding left out of `var`."""
    exponent: Int[Array, "*S"]
    """Of the power of two that is the unit of the other fields: 0, unless the first rows are so large that
    their squares would overflow."""

    @property
    def unit(self) -> Float[Array, "*S"]:
        """The unit of the other fields."""
        return jnp.ldexp(jnp.ones_like(self.mean), self.exponent)


class RewardScale(NamedTuple):
    """Running discounted return of each actor, and its moments over all rows of all actors."""

    total: Float[Array, " N"]
    moments: Moments
    columns: Int[Array, " C"] | tuple[()] = ()
    """The actor of each column of the next rows, if these are not all actors in order: one may have
    several, and N is none."""


def init(shape: tuple[int, ...]) -> Moments:
    """Return the moments of no rows of that shape."""
    zeros = jnp.zeros(shape, jnp.float32)
    return Moments(jnp.zeros((), jnp.int32), zeros, zeros, zeros, zeros, jnp.zeros(shape, jnp.int32))


def _in_unit(moments: Moments, x: Array, valid: Array, lead: tuple[int, ...]) -> Moments:
    """Set the unit by the first rows: by the smallest, so that one stray number does not set it."""
    least = jnp.min(jnp.where(valid & jnp.isfinite(x), jnp.abs(x), jnp.inf), axis=lead)
    first = (moments.rows == 0) & (least > _LARGE) & (least < jnp.inf)
    return moments._replace(exponent=jnp.where(first, jnp.frexp(least)[1] - 1, moments.exponent))


def _add(value: Array, rest: Array, increment: Array) -> tuple[Array, Array]:
    """Return the sum of the three as a float and what it rounded away."""
    b = rest + increment
    total = value + b
    b_seen = total - value
    return total, (value - (total - b_seen)) + (b - b_seen)


def _from(mean: Array, x: Array) -> Array:
    """Return x - mean `[*L, *S]` as float32; of int32 exactly, though float32 does not hold these."""
    mean = jnp.broadcast_to(mean, x.shape)
    far = x.astype(jnp.float32) - mean
    if x.dtype != jnp.int32:
        return far
    middle = jnp.clip(jnp.round(mean), -(2.0**31), 2.0**31 - 128).astype(jnp.int32)
    near = (x - middle).astype(jnp.float32) - (mean - middle.astype(jnp.float32))
    return jnp.where(jnp.abs(far) < 2.0**30, near, far)


def update(moments: Moments, x: Num[Array, "..."], valid: Bool[Array, "*L"]) -> Moments:
    """Add rows: the pairwise merge of Chan, Golub and LeVeque 1983, equations 2.1.

    With f the new rows' share of all rows and d the difference of the means, the mean grows by f d and the
    variance by f (new variance - variance + (1 - f) d²).

    Rows that are not finite, or so far off that squares overflow, do not count: a single one would spoil the
    moments for ever.

    Args:
        moments: what was seen before.
        x: rows `[*L, *S]` with any leading axes, at least one.
        valid: rows that count.
    """
    lead = tuple(range(valid.ndim))
    trailing = tuple(range(valid.ndim, x.ndim))
    if x.dtype == jnp.float32:
        moments = _in_unit(moments, x, jnp.expand_dims(valid, trailing), lead)
        x = x / jnp.broadcast_to(moments.unit, x.shape)
    # Differences from the running mean are small, and the second pass below removes what the first one
    # rounded: it begins anew, from a mean that is known exactly.
    difference = _from(moments.mean, x)
    summed = 4.0 * valid.size * jnp.square(difference)  # bounds the sum of squares around the new mean
    valid = valid & jnp.all(jnp.isfinite(summed), axis=trailing)
    weight = jnp.broadcast_to(jnp.expand_dims(valid, trailing), x.shape)
    n = jnp.sum(valid, dtype=jnp.int32)

    def mean_of(rows: Array) -> Array:
        total = jnp.sum(jnp.where(weight, rows, 0.0), axis=lead)
        return total / jnp.maximum(n, 1).astype(jnp.float32)

    middle = moments.mean + mean_of(difference)
    first = middle - moments.mean
    centred = _from(middle, x)
    second = mean_of(centred)
    new_var = jnp.maximum(mean_of(jnp.square(centred)) - jnp.square(second), 0.0)

    before = jnp.minimum(moments.rows, _ROWS_LIMIT - n)
    share = n.astype(jnp.float32) / jnp.maximum(before + n, 1).astype(jnp.float32)
    second = second - moments.mean_rest
    mean, mean_rest = _add(*_add(moments.mean, moments.mean_rest, share * first), share * second)
    growth = share * (new_var - moments.var + (1.0 - share) * jnp.square(first + second))
    var, var_rest = _add(moments.var, moments.var_rest, growth)
    return Moments(before + n, mean, jnp.maximum(var, 0.0), mean_rest, var_rest, moments.exponent)


def normalise(
    moments: Moments, x: Num[Array, "..."], *, clip: float | Float[Array, ""]
) -> Float[Array, "..."]:
    """Return (x - mean) / sqrt(var), clipped to ±clip; before the first row x itself, clipped.

    An element that never changed becomes 0, and one that changes no more than rounding does stays near it.

    Args:
        moments: of rows of the shape `[*S]`.
        x: rows `[*L, *S]`.
        clip: bound of the result.
    """
    if x.dtype == jnp.float32:
        x = x / jnp.broadcast_to(moments.unit, x.shape)
    centred = _from(moments.mean, x) - jnp.broadcast_to(moments.mean_rest, x.shape)
    return jnp.clip(centred / jnp.broadcast_to(_std(moments, x.dtype == jnp.int32), x.shape), -clip, clip)


def _std(moments: Moments, exact: bool = False) -> Array:
    least = _LEAST_STD if exact else jnp.maximum(_LEAST_STD, _ROUNDING * jnp.abs(moments.mean))
    return jnp.where(moments.rows > 0, jnp.maximum(jnp.sqrt(moments.var), least), 1.0)


def init_reward_scale(n: int) -> RewardScale:
    """Return the scale of `n` actors before their first reward."""
    return RewardScale(jnp.zeros((n,), jnp.float32), init(()))


def scale_rewards(
    scale: RewardScale,
    reward: Float[Array, "T N"],
    ended: Bool[Array, "T N"],
    valid: Bool[Array, "T N"],
    *,
    gamma: float | Float[Array, ""],
    clip: float | Float[Array, ""] = 10.0,
) -> tuple[RewardScale, Float[Array, "T N"]]:
    """Divide rewards by the standard deviation of the discounted return: Engstrom et al. 2020, algorithm 1.

    Row by row Rₜ = γ Rₜ₋₁ + rₜ enters the moments and rₜ is divided by their standard deviation, so it does
    not matter how the rows are cut into rollouts. Rewards are not centred: that would change which policy is
    best. A reward that is not finite stays as it is and affects nothing else.

    Args:
        scale: what was seen before, and whose the columns are. Several columns of one actor follow one
            another in time.
        reward: rewards as the environment returned them.
        ended: where the episode terminated or was truncated: R starts again at 0.
        valid: False on rows without an action, which become 0. R starts again there too: such a row ends an
            episode, flagged or not.
        gamma: discount of R.
        clip: bound of the scaled rewards.
    """

    def step(scale: RewardScale, row: tuple[Array, ...]) -> tuple[RewardScale, Array]:
        r_t, ended_t, valid_t = row
        finite_t = jnp.isfinite(r_t)
        total = jnp.where(valid_t & finite_t, gamma * scale.total + r_t, scale.total)
        moments = update(scale.moments, total, valid_t & finite_t)
        scaled = jnp.where(finite_t, jnp.clip(r_t / moments.unit / _std(moments), -clip, clip), r_t)
        over = ended_t | ~valid_t
        return RewardScale(jnp.where(over, 0.0, total), moments), jnp.where(valid_t, scaled, 0.0)

    if isinstance(scale.columns, tuple):
        return jax.lax.scan(step, scale, (reward, ended, valid))

    def column(scale: RewardScale, values: tuple[Array, ...]) -> tuple[RewardScale, Array]:
        actor, *rows = values
        before = jnp.where(actor < scale.total.shape[0], scale.total[actor], 0.0)
        one = RewardScale(before[None], scale.moments)
        one, scaled = jax.lax.scan(step, one, tuple(x[:, None] for x in rows))
        return RewardScale(scale.total.at[actor].set(one.total[0], mode="drop"), one.moments), scaled[:, 0]

    whose = (scale.columns, reward.T, ended.T, valid.T)
    scale, scaled = jax.lax.scan(column, scale._replace(columns=()), whose)
    return scale, scaled.T


def scaled(
    scale: RewardScale,
    reward: Float[Array, "*B"],
    *,
    clip: float | Float[Array, ""] = 10.0,
) -> Float[Array, "*B"]:
    """Divide replayed rewards by the standard deviation that `scale_rewards` has found so far.

    Args:
        scale: what was seen.
        reward: rewards as the environment returned them.
        clip: bound of the result.
    """
    return jnp.clip(reward / scale.moments.unit / _std(scale.moments), -clip, clip)
