"""Estimators of returns and advantages from a rollout of consecutive rows.

All arrays are time-major, `[T, ...]`, with any trailing axes (usually the actors, `N`). Row `t` holds the
observation s_t, the action a_t and the reward r_t that followed it; the observation that followed is s_{t+1},
so values are given for `T + 1` rows or, as `v_tp1`, for the `T` successors. Two arrays say what follows a
row:

==============  =====================================================================================
`discount_t`    multiplies whatever follows: gamma, or 0 after a termination (`discounts`)
`lambda_t`      how far later rows are trusted over the bootstrap v(s_{t+1}): lambda, or 0 where the
                next row belongs to another episode (`traces`)
==============  =====================================================================================

So at a time limit the discount stays and the trace is cut: the estimate is r_t + gamma v(s_{t+1}). Rows on
which no action was taken get a finite number that means nothing and reaches no other row; losses give them
weight 0. None of the estimators stops gradients: that is for the loss to do.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from operant.types import Array


def discounts(terminated: Bool[Array, "*B"], *, gamma: float | Float[Array, ""]) -> Float[Array, "*B"]:
    """Return gamma, or 0 where the environment ended: what multiplies the value of the next row.

    Args:
        terminated: where nothing follows. Truncated rows are not among them.
        gamma: discount factor in [0, 1].
    """
    return jnp.where(terminated, 0.0, jnp.asarray(gamma, jnp.float32))


def traces(
    truncated: Bool[Array, "*B"], valid: Bool[Array, "*B"], *, lambda_: float | Float[Array, ""] = 1.0
) -> Float[Array, "*B"]:
    """Return lambda, or 0 where the next row does not continue this one: at truncations, invalid rows, and
    the rows before these.

    A row before an invalid one is an episode's last, flagged or not: an interrupted run flags nothing.

    Args:
        truncated: where the episode was cut (the value of the next row counts, its reward does not).
        valid: False on the row of an episode's last observation. Time is the first axis.
        lambda_: trace decay in [0, 1].
    """
    last = jnp.concatenate([~valid[1:], jnp.zeros_like(valid[:1])])
    return jnp.where(truncated | ~valid | last, 0.0, jnp.asarray(lambda_, jnp.float32))


def _accumulate(x_t: Float[Array, "T *N"], decay_t: Float[Array, "T *N"]) -> Float[Array, "T *N"]:
    """Solve y_t = x_t + decay_t * y_{t+1} backwards from y_T = 0."""

    def step(y_tp1: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        x, decay = row
        y = x + decay * y_tp1
        return y, y

    return jax.lax.scan(step, jnp.zeros_like(x_t[0]), (x_t, decay_t), reverse=True)[1]


def gae(
    r_t: Float[Array, "T *N"],
    discount_t: Float[Array, "T *N"],
    v: Float[Array, "T+1 *N"],
    lambda_t: Float[Array, "T *N"],
) -> Float[Array, "T *N"]:
    """Generalised advantage estimation.

    Aₜ = δₜ + γₜ λₜ Aₜ₊₁ with δₜ = rₜ + γₜ v(sₜ₊₁) - v(sₜ): Schulman et al. 2016, equations 11, 12 and 16,
    with the discount and the trace of each row. `gae(...) + v[:-1]` are the λ-returns (TD(λ) targets of the
    critic).

    Args:
        r_t: rewards.
        discount_t: gamma, 0 after a termination.
        v: values of rows 0 to T.
        lambda_t: trace decay, 0 where the next row is another episode's.

    Returns:
        Advantages.
    """
    delta_t = r_t + discount_t * v[1:] - v[:-1]
    return _accumulate(delta_t, discount_t * lambda_t)


def lambda_returns(
    r_t: Float[Array, "T *N"],
    discount_t: Float[Array, "T *N"],
    v_tp1: Float[Array, "T *N"],
    lambda_t: Float[Array, "T *N"],
) -> Float[Array, "T *N"]:
    """λ-returns: Gₜ = rₜ + γₜ [(1 - λₜ) v(sₜ₊₁) + λₜ Gₜ₊₁], where the last row bootstraps whatever its λ.

    Sutton and Barto 2018, equation 12.18, with the state values of the successors. λ = 0 gives one-step
    targets, λ = 1 discounted sums of rewards up to the end of the episode or of the rollout.

    Args:
        r_t: rewards.
        discount_t: gamma, 0 after a termination.
        v_tp1: values of the rows that follow, 1 to T.
        lambda_t: trace decay, 0 where the next row is another episode's.
    """
    lambda_t = lambda_t.at[-1].set(0.0)
    return _accumulate(r_t + discount_t * (1.0 - lambda_t) * v_tp1, discount_t * lambda_t)


def n_step_sums(
    r: Float[Array, "*B n"],
    known: Bool[Array, "*B n"],
    terminated: Bool[Array, "*B n"],
    *,
    gamma: float | Float[Array, ""],
) -> tuple[Float[Array, "*B"], Float[Array, "*B"], Int[Array, "*B"]]:
    """The two parts of an n-step return, for targets that are more than a number: Σ_{i<m} γⁱ rᵢ, and γᵐ.

    The step takes the `m` rows before the first that is not known: at most `n`, fewer where the episode or
    what is known of it ends. `sum + discount * v` bootstraps with the value of the row that follows the `m`.

    Args:
        r: rewards of the rows from the first of each step on.
        known: False from an episode's last observation on, and where nothing is known of what followed a row.
        terminated: where nothing follows.
        gamma: discount factor.

    Returns:
        The sum, the discount (0 after a termination), and `m`.
    """
    n = r.shape[-1]
    gamma = jnp.asarray(gamma, jnp.float32)
    steps = jnp.arange(n, dtype=jnp.int32).reshape((1,) * (r.ndim - 1) + (n,))
    length = jnp.where(known, n, steps).min(axis=-1)
    taken = steps < length[..., None]
    alive = ~jnp.any(terminated & taken, axis=-1)
    powers = jnp.power(gamma, steps.astype(jnp.float32))
    total = (jnp.where(taken, r, 0.0) * powers).sum(axis=-1)
    return total, jnp.where(alive, jnp.power(gamma, length.astype(jnp.float32)), 0.0), length


def truncated_lambda_returns(
    r_t: Float[Array, "T *N"],
    discount_t: Float[Array, "T *N"],
    v_tp1: Float[Array, "T *N"],
    lambda_t: Float[Array, "T *N"],
    *,
    n: int | float | Float[Array, ""],
) -> Float[Array, "T *N"]:
    """λ-returns of at most `n` rewards: Gₜ⁽¹⁾ = rₜ + γₜ v(sₜ₊₁), Gₜ⁽ⁿ⁾ = rₜ + γₜ [(1 - λₜ) v(sₜ₊₁) + λₜ
    Gₜ₊₁⁽ⁿ⁻¹⁾].

    Sutton and Barto 2018, equation 12.18, applied `n` times. λ = 1 gives n-step returns
    (equation 7.1), `n >= T` `lambda_returns`.

    Args:
        r_t: rewards.
        discount_t: gamma, 0 after a termination.
        v_tp1: values of the rows that follow, 1 to T.
        lambda_t: trace decay, 0 where the next row is another episode's.
        n: number of rewards, rounded down, at least 1; may be traced. Costs `min(n, T)` passes.
    """
    lambda_t = lambda_t.at[-1].set(0.0)

    def longer(_: Array, g_t: Array) -> Array:
        following = (1.0 - lambda_t) * v_tp1 + lambda_t * jnp.roll(g_t, -1, axis=0)
        return r_t + discount_t * following

    passes = jnp.minimum(jnp.asarray(n).astype(jnp.int32), len(r_t))
    return jax.lax.fori_loop(1, passes, longer, r_t + discount_t * v_tp1)


def retrace(
    q_sa: Float[Array, "T *N"],
    v: Float[Array, "T+1 *N"],
    r_t: Float[Array, "T *N"],
    discount_t: Float[Array, "T *N"],
    rho_t: Float[Array, "T *N"],
    lambda_t: Float[Array, "T *N"],
) -> Float[Array, "T *N"]:
    """Retrace targets of the action values.

    Qʳᵉᵗₜ = rₜ + γₜ [v(sₜ₊₁) + λₜ min(1, ρₜ₊₁) (Qʳᵉᵗₜ₊₁ - q(sₜ₊₁, aₜ₊₁))]: Wang et al. 2017 (ACER), equation
    5; the operator is equation 3 of Munos et al. 2016. The row after the rollout has no action, so row T - 1
    bootstraps from v(s_T) alone, and so does any row with λₜ = 0. `rho_t[0]` is not used: the ratio of a row
    weighs its correction in the rows before it.

    Args:
        q_sa: action values q(sₜ, aₜ) of the actions taken.
        v: expected action values Σₐ π(a|sₜ) q(sₜ, a) of rows 0 to T.
        r_t: rewards.
        discount_t: gamma, 0 after a termination.
        rho_t: importance ratios π(aₜ|sₜ) / μ(aₜ|sₜ) of the actions taken.
        lambda_t: trace decay from row t to row t + 1, 0 where the next row is another episode's.

    Returns:
        Targets Qʳᵉᵗ of q(sₜ, aₜ).
    """
    c_t = jnp.minimum(1.0, rho_t)
    c_tp1 = jnp.roll(c_t, -1, axis=0)  # what wraps around is multiplied by the zero after the last row
    error_t = r_t + discount_t * v[1:] - q_sa
    return q_sa + _accumulate(error_t, discount_t * lambda_t * c_tp1)
