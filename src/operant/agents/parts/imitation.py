"""Imitation losses: how far networks are from the actions taken, and values from their returns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from operant.ops import losses
from operant.types import Array, Arrays

VALUE_WEIGHT = 0.5
"""Weight of the values' error against the policy's: both start at about 1, and a shared network should
serve actions first."""
MARGIN = 0.8
"""By how much demonstrated actions should be worth more than others (Hester et al. 2018, appendix)."""


def policy(log_prob: Float[Array, "*B"], valid: Bool[Array, "*B"]) -> Float[Array, ""]:
    """Return -mean log π(a|s) over valid rows (behavioural cloning)."""
    return -losses.weighted_mean(log_prob, valid.astype(jnp.float32))


def distance(chosen: Arrays, wanted: Arrays, valid: Bool[Array, "*B"]) -> Float[Array, ""]:
    """Return the mean squared distance of actions `[*B, *shape]` over elements and valid rows."""
    return _mean([losses.squared(chosen[k] - wanted[k]) for k in chosen], valid)


def value(
    predicted: Float[Array, "*B"], target: Float[Array, "*B"], valid: Bool[Array, "*B"]
) -> Float[Array, ""]:
    """Return `VALUE_WEIGHT` times the mean squared error of values over the mean square of the returns.

    Divided: returns of any scale must not drown the log-probabilities that share a network with them.
    """
    weight, target = valid.astype(jnp.float32), jax.lax.stop_gradient(target)
    error = losses.weighted_mean(losses.squared(predicted - target), weight)
    return VALUE_WEIGHT * error / (1.0 + losses.weighted_mean(losses.squared(target), weight))


def margin(q_values: Arrays, action: Arrays, masks: Arrays, valid: Bool[Array, "*B"]) -> Float[Array, ""]:
    """Return by how much values come too near demonstrated ones' (Hester et al. 2018, equation 5).

    max_a (Q(s, a) + m [a ≠ a_E]) - Q(s, a_E), the mean over action elements and valid rows. By action name
    `q_values` are `[*B, *shape, K]`, the actions taken `[*B, *shape]`, and masks `[*B, *shape, K]`.
    """
    margins = []
    for name, q in q_values.items():
        taken = action[name].astype(jnp.int32)
        other = ~jax.nn.one_hot(taken, q.shape[-1], dtype=jnp.bool_)
        q_margin = jnp.where(other, q + jnp.asarray(MARGIN, q.dtype), q)
        if name in masks:
            q_margin = jnp.where(masks[name], q_margin, -jnp.inf)
        margins.append(jnp.max(q_margin, axis=-1) - losses.pick(q, taken))
    return _mean(margins, valid)


def _mean(actions: list[Array], valid: Array) -> Array:
    """Return the mean over all elements of all actions `[*B, *shape]`, and over valid rows."""
    elements = jnp.concatenate([x.reshape(*valid.shape, -1) for x in actions], axis=-1)
    return losses.weighted_mean(jnp.mean(elements, axis=-1), valid.astype(jnp.float32))
