"""Distributions of returns instead of their means: fixed atoms with learned weights, or learned quantiles.

A *categorical* distribution has weights (softmax of logits) on `K` evenly spaced atoms (Bellemare et al.
2017, "A Distributional Perspective on Reinforcement Learning"); a *quantile* distribution has equal weights
on `K` learned positions (Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile
Regression"). Nothing here stops gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Float

from operant.types import Array, Scalar


def support(low: Scalar, high: Scalar, atoms: int) -> Float[Array, " K"]:
    """Return the atoms z_i = low + i (high - low) / (K - 1), i = 0 to K - 1."""
    return low + jnp.arange(atoms, dtype=jnp.float32) * ((high - low) / (atoms - 1))


def project(
    position: Float[Array, "*B J"], weight: Float[Array, "*B J"], low: Scalar, high: Scalar, atoms: int
) -> Float[Array, "*B K"]:
    """Return the weights on the atoms of `support` that represent weights at arbitrary positions.

    m_i = Σ_j [1 - |clip(T z_j, low, high) - z_i| / Δz]₀¹ p_j: Bellemare et al. 2017, equation 7, which their
    algorithm 1 computes. A position's weight goes to its two neighbours in proportion to nearness; positions
    beyond the ends go to the ends. The sum of the weights is kept, and so is the mean if no position lies
    beyond the ends.

    Args:
        position: where the weights are, T z_j = r + γ z_j.
        weight: p_j, each row's sum 1.
        low: first atom.
        high: last atom, above `low`.
        atoms: K, at least 2.
    """
    index = (jnp.clip(position, low, high) - low) * ((atoms - 1) / (high - low))
    index, share = index.reshape(-1, index.shape[-1]), weight.reshape(-1, weight.shape[-1])
    # A NaN goes to the first atoms, where it shows; as a whole number it might fall out of range and be lost.
    lower = jnp.where(index >= 1.0, jnp.minimum(jnp.floor(index), atoms - 2.0), 0.0)
    upper_share = share * (index - lower)
    row, left = jnp.arange(len(index))[:, None], lower.astype(jnp.int32)
    # By adding in place: the K² products per row of equation 7 take hundreds of times as long on a CPU.
    result = jnp.zeros((len(index), atoms), weight.dtype).at[row, left].add(share - upper_share)
    return result.at[row, left + 1].add(upper_share).reshape(*position.shape[:-1], atoms)


def cross_entropy(target: Float[Array, "*B K"], logits: Float[Array, "*B K"]) -> Float[Array, "*B"]:
    """Return -Σ_i m_i log p_i with p the softmax of the logits, in nats: the loss of Bellemare et al.
    2017, algorithm 1.
    """
    return -jnp.sum(target * jax.nn.log_softmax(logits, axis=-1), axis=-1)


def entropy(weight: Float[Array, "*B K"]) -> Float[Array, "*B"]:
    """Return -Σ_i m_i log m_i in nats, atoms of weight 0 adding nothing.

    Cross-entropy less this is the divergence KL(m || p).
    """
    some = weight > 0
    return -jnp.sum(jnp.where(some, weight * jnp.log(jnp.where(some, weight, 1.0)), 0.0), axis=-1)


def midpoints(quantiles: int) -> Float[Array, " K"]:
    """Return the fractions τ̂_i = (2 i - 1) / 2 K, i = 1 to K, at whose quantiles K equal weights should be.

    Dabney et al. 2018, lemma 2.
    """
    return (jnp.arange(quantiles, dtype=jnp.float32) + 0.5) / quantiles


def quantile_huber(
    quantile: Float[Array, "*B K"], target: Float[Array, "*B J"], *, delta: Scalar = 1.0
) -> Float[Array, "*B"]:
    """Return Σ_i mean_j |τ̂_i - 1{u_ij < 0}| L_κ(u_ij) with u_ij = T θ_j - θ_i: Dabney et al. 2018, equation
    10, algorithm 1.

    Args:
        quantile: θ_i, fitted to the fractions `midpoints`.
        target: samples T θ_j of the distribution that is fitted.
        delta: κ, where the loss of an error turns from quadratic to linear (`operant.ops.losses.huber`),
            above 0.
    """
    fraction = midpoints(quantile.shape[-1]).reshape((1,) * (quantile.ndim - 1) + (-1,))

    def loss(error: Array) -> Array:
        # L_κ(u) = u c - c²/2 has the gradient c: holding c constant loses nothing and saves half of the time.
        clipped = jax.lax.stop_gradient(jnp.clip(error, -delta, delta))
        side = jnp.where(error < 0, 1.0 - fraction, fraction)
        return side * (error * clipped - 0.5 * jnp.square(clipped))

    return jnp.sum(_mean_over(target, quantile, loss), axis=-1)


def distance(quantile: Float[Array, "*B K"], target: Float[Array, "*B J"]) -> Float[Array, "*B"]:
    """Return the mean of |T θ_j - θ_i| over all pairs."""
    return jnp.mean(_mean_over(target, quantile, jnp.abs), axis=-1)


def _mean_over(target: Array, quantile: Array, function: Callable[[Array], Array]) -> Array:
    """Return mean_j f(T θ_j - θ_i), `[*B, K]`.

    Summed one target after the other: XLA's reduction of all pairs takes some forty times as long on a CPU.
    """

    def add(total: Array, sample: Array) -> tuple[Array, None]:
        return total + function(sample[..., None] - quantile), None

    samples = jnp.moveaxis(target, -1, 0)
    return jax.lax.scan(add, jnp.zeros_like(quantile), samples)[0] / len(samples)
