"""Exploration on top of a policy: random values of choices, noise on floats and on parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from operant.agents.base.protocol import fold
from operant.spec.spaces import Spaces
from operant.types import Array, Arrays, Key, Scalar, Tree


def noise(key: Key, spaces: Spaces, n: int) -> Tree:
    """Return the randomness of `deviate` for `n` actors: plain arrays `[n, ...]` by action."""
    result = {}
    for i, (name, leaf) in enumerate(spaces.actions.components.items()):
        shape = (n, *leaf.shape)
        if leaf.type == "float":
            result[name] = {"normal": jax.random.normal(fold(key, i), shape, jnp.float32)}
            continue
        coin, values = jax.random.split(fold(key, i))
        drawn = jax.random.uniform(values, (*shape, leaf.num_values or 2), jnp.float32)
        result[name] = {"coin": jax.random.uniform(coin, shape, jnp.float32), "values": drawn}
    return result


def deviate(action: Arrays, noise: Tree, amount: Scalar, masks: Arrays) -> Arrays:
    """Return actions `[n, *shape]` by name after exploration, by the noise of the function of this name.

    `amount` is the probability of a random value that the mask `[n, *shape, K]` allows, for each element of a
    choice independently; for floats the standard deviation of the noise, in their own unit.
    """
    result: Arrays = {}
    for name, x in action.items():
        draws = noise[name]
        if "normal" in draws:
            result[name] = x + jnp.asarray(amount, x.dtype) * draws["normal"].astype(x.dtype)
            continue
        values = jnp.where(masks[name], draws["values"], -1.0) if name in masks else draws["values"]
        result[name] = jnp.where(draws["coin"] < amount, jnp.argmax(values, axis=-1).astype(x.dtype), x)
    return result


def perturbed(params: Arrays, key: Key, deviation: Scalar) -> Arrays:
    """Return parameters with Gaussian noise added: Plappert et al. 2018, without its adaptation."""
    keys = jax.random.split(key, max(len(params), 1))

    def moved(x: Array, key_of_leaf: Key) -> Array:
        return x + jnp.asarray(deviation, x.dtype) * jax.random.normal(key_of_leaf, x.shape, x.dtype)

    # By name, as compiled functions sort a dict: otherwise the same key would draw different noise outside of
    # them.
    return {
        name: moved(params[name], key_of_leaf)
        for name, key_of_leaf in zip(sorted(params), keys, strict=False)
    }
