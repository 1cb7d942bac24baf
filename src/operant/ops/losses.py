"""Losses per element, and the weighted reductions that turn them into numbers.

Losses come back per element so that the caller decides what counts: rows on which no action was taken have
weight 0, prioritised samples their importance weight. Nothing here stops gradients.
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from operant.types import Array

Weight: TypeAlias = Float[Array, "*B"] | Bool[Array, "*B"]
"""Weight of each element, not negative; a mask of bools reads as 0 and 1."""


def weighted_mean(x: Float[Array, "*B"], weight: Weight) -> Float[Array, ""]:
    """Return Σ w x / Σ w over all axes, or 0 if every weight is 0.

    Elements of weight 0 take no part, not even a NaN among them, and have a gradient of 0.
    """
    weight = weight.astype(x.dtype)
    total = jnp.sum(weight)
    weighted = jnp.sum(jnp.where(weight > 0, x, 0.0) * weight)
    return jnp.where(total > 0, weighted / jnp.where(total > 0, total, 1.0), 0.0)


def squared(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Return x², not halved: the gradient is 2 x."""
    return jnp.square(x)


def huber(x: Float[Array, "*B"], *, delta: float | Float[Array, ""] = 1.0) -> Float[Array, "*B"]:
    """Return x² / 2 for |x| <= delta, else delta (|x| - delta / 2): Huber 1964.

    The gradient is x clipped to ±delta.

    Note the half, which `squared` lacks.

    Args:
        x: errors.
        delta: where the loss turns from quadratic to linear, above 0. Mnih et al. 2015 clip errors at 1.
    """
    clipped = jnp.clip(x, -delta, delta)
    # x c - c²/2 equals both pieces; the clip's own gradient cancels in it, (x - c) being 0 wherever c moves.
    return x * clipped - 0.5 * jnp.square(clipped)


LOG_RATIO = 20.0
"""Beyond this, up or down, the logarithm of a ratio of probabilities is clipped, and has no gradient."""


def importance_ratio(log_ratio: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Return ρ, the exponential of ``log π(a|s) - log π_old(a|s)``.

    It stays finite for any finite argument, within e^±20. An infinite ρ would turn the gradient of the whole
    batch into NaN even if its row is clipped or does not count, as 0 times infinity. Such ratios occur in
    experience from elsewhere, and in the idle rows after an episode's end.
    """
    return jnp.exp(jnp.clip(log_ratio, -LOG_RATIO, LOG_RATIO))


def clipped_surrogate(
    log_ratio: Float[Array, "*B"], advantage: Float[Array, "*B"], *, clip: float | Float[Array, ""]
) -> Float[Array, "*B"]:
    """Return -min(ρ A, clip(ρ, 1 - ε, 1 + ε) A), to be minimised: Schulman et al. 2017 (PPO), equation 7.

    Args:
        log_ratio: log π(a|s) - log π_old(a|s); ρ is its exponential.
        advantage: A, a constant for gradients.
        clip: ε.
    """
    ratio = importance_ratio(log_ratio)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def clipped_value_loss(
    v: Float[Array, "*B"],
    v_old: Float[Array, "*B"],
    target: Float[Array, "*B"],
    *,
    clip: float | Float[Array, ""],
) -> Float[Array, "*B"]:
    """Return max((v - G)², (v_old + clip(v - v_old, -ε, ε) - G)²), not halved.

    The value loss of the PPO implementation of Dhariwal et al. 2017 (OpenAI Baselines); it is in no paper's
    equations. Engstrom et al. 2020, section 3, describe it.

    Args:
        v: values under the present parameters.
        v_old: values when the data was gathered.
        target: returns G.
        clip: ε, in units of the value.
    """
    v_clipped = v_old + jnp.clip(v - v_old, -clip, clip)
    return jnp.maximum(jnp.square(v - target), jnp.square(v_clipped - target))


def pick(x: Float[Array, "*B K"], index: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """Return x[..., index]: the element that was chosen along the last axis.

    If K is small, by a product with a one-hot row: its gradient is a product too, while that of a gather is a
    scatter.
    """
    if x.shape[-1] > 64:
        return jnp.take_along_axis(x, index[..., None], axis=-1)[..., 0]
    chosen = index[..., None] == jnp.arange(x.shape[-1], dtype=index.dtype).reshape((1,) * index.ndim + (-1,))
    return jnp.sum(jnp.where(chosen, x, 0.0), axis=-1)


def max_target(q_next: Float[Array, "*B K"], mask: Bool[Array, "*B K"] | None) -> Float[Array, "*B"]:
    """Return the largest action value among the allowed actions: the bootstrap of Mnih et al. 2015.

    Args:
        q_next: target network's action values of the next state.
        mask: actions allowed there, None for all. A row that allows none gives 0: nothing can follow it.
    """
    return double_target(q_next, q_next, mask)


def double_target(
    q_next_target: Float[Array, "*B K"], q_next_online: Float[Array, "*B K"], mask: Bool[Array, "*B K"] | None
) -> Float[Array, "*B"]:
    """Return the target network's value of the online network's best allowed action.

    Double Q-learning: van Hasselt et al. 2016, equation 4.

    Args:
        q_next_target: target network's action values of the next state.
        q_next_online: online network's, which choose.
        mask: actions allowed there, None for all. A row that allows none gives 0: nothing can follow it.
    """
    if mask is None:
        best = jnp.argmax(q_next_online, axis=-1, keepdims=True)
        return jnp.take_along_axis(q_next_target, best, axis=-1)[..., 0]
    best = jnp.argmax(jnp.where(mask, q_next_online, -jnp.inf), axis=-1, keepdims=True)
    value = jnp.take_along_axis(q_next_target, best, axis=-1)[..., 0]
    return jnp.where(jnp.any(mask, axis=-1), value, 0.0)


def normalise(
    x: Float[Array, "*B"], weight: Weight, *, epsilon: float | Float[Array, ""] = 1e-8
) -> Float[Array, "*B"]:
    """Return (x - mean) / (std + epsilon) with weighted mean and population standard deviation.

    Advantages are usually standardised like this over a minibatch (Andrychowicz et al. 2021 compare
    variants). The result is a constant for gradients.

    Args:
        x: what to standardise.
        weight: weight of each element; elements of weight 0 become 0. A single one that counts stays as it
            is: it has no deviation, and only its sign is informative.
        epsilon: keeps the quotient finite if all elements are equal.
    """
    x = jax.lax.stop_gradient(x)
    counts = weight.astype(x.dtype) > 0
    centred = x - weighted_mean(x, weight)
    # Centred twice: equal elements differ from their rounded mean in its last digit, which dividing would
    # blow up to 1.
    centred = centred - weighted_mean(centred, weight)
    std = jnp.sqrt(weighted_mean(jnp.square(centred), weight))
    standardised = jnp.where(jnp.sum(counts) > 1, centred / (std + epsilon), x)
    return jnp.where(counts, standardised, 0.0)


def explained_variance(v: Float[Array, "*B"], target: Float[Array, "*B"], weight: Weight) -> Float[Array, ""]:
    """Return 1 - Var[G - v] / Var[G]: 1 for a perfect critic, 0 for a constant one, below 0 for a harmful
    one.

    Also 0 if the targets do not vary, where it is undefined.
    """

    def variance(x: Array) -> Array:
        return weighted_mean(jnp.square(x - weighted_mean(x, weight)), weight)

    total = variance(target)
    return jnp.where(total > 0, 1.0 - variance(target - v) / jnp.where(total > 0, total, 1.0), 0.0)


def approx_kl(log_ratio: Float[Array, "*B"], weight: Weight) -> Float[Array, ""]:
    """Estimate KL(π_old || π) as the mean of (ρ - 1) - log ρ over actions that π_old drew.

    Schulman 2020, "Approximating KL divergence", estimator k3: unbiased, and never negative.

    Args:
        log_ratio: log ρ = log π(a|s) - log π_old(a|s).
        weight: weight of each element.
    """
    return weighted_mean(jnp.expm1(log_ratio) - log_ratio, weight)
