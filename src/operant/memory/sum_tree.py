"""Sums over a large vector of weights: draw an entry in proportion to its weight, change some of the weights.

Schaul et al. 2016, "Prioritized Experience Replay", appendix B.2.1. The tree is 32 wide, not binary: a
million weights are four levels instead of twenty, and every level is one gather. Sums are recomputed from
their children, never added to, so they do not drift.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Float, Int

from operant.ops import prng
from operant.types import Array, Key

WIDTH = 32
Tree = tuple[Float[Array, " _"], ...]
"""Weights first, then sums of `WIDTH` entries of the level before, until one level has at most `WIDTH`
entries."""


def init(size: int) -> Tree:
    """Return `size` weights of zero."""
    levels: list[Array] = []
    while not levels or size > 1:
        blocks = -(-size // WIDTH)
        levels.append(jnp.zeros(blocks * WIDTH, jnp.float32))
        size = blocks
    return tuple(levels)


def total(tree: Tree) -> Float[Array, ""]:
    """Return the sum of all weights."""
    return tree[-1].sum()


def assign(tree: Tree, index: Int[Array, " M"], weight: Float[Array, " M"]) -> Tree:
    """Set the weights (at least 0) of some entries.

    An index of `tree[0].size` is ignored. Of several weights for one index the largest is kept, so that the
    result does not depend on the order of writing.
    """
    leaves = tree[0].at[index].set(0.0, mode="drop").at[index].max(weight, mode="drop")
    levels = [leaves]
    index = jnp.minimum(index, leaves.size - 1)
    for level in tree[1:]:
        index = index // WIDTH
        levels.append(level.at[index].set(_children(levels[-1], index).sum(axis=-1)))
    return tuple(levels)


def draw(tree: Tree, key: Key, count: int) -> tuple[Int[Array, " count"], Float[Array, " count"]]:
    """Draw entries (index, weight) in proportion to their weights, one from each of `count` equal shares of
    the total.

    An entry of weight zero is never drawn; if all are zero, the index is 0.
    """
    coarse, fine = prng.uniform(key, (2, count))
    mass = total(tree)
    rest = (jnp.arange(count, dtype=jnp.float32) + coarse) / count * mass
    index = jnp.zeros(count, jnp.int32)
    place = jnp.arange(WIDTH, dtype=jnp.int32)[None]
    upto = jnp.triu(jnp.ones((WIDTH, WIDTH), jnp.float32))
    for depth, level in enumerate(reversed(tree)):
        weights = _children(level, index)
        # Cumulative sums as a product: several times faster than `cumsum` on a CPU.
        sums = jnp.matmul(weights, upto, precision="highest")
        hit = (weights > 0) & (sums > rest[:, None])
        # Rounding may carry the point past every child: then it belongs to the last one that has any weight.
        last = jnp.where(weights > 0, place, 0).max(axis=-1)
        child = jnp.minimum(jnp.where(hit, place, WIDTH).min(axis=-1), last)
        rest = rest - jnp.where(place < child[:, None], weights, 0.0).sum(axis=-1)
        if depth == 0:
            # A float cannot tell a million entries apart: below the first level a second draw fills its gaps.
            rest = rest + fine * mass * 2.0**-23
        rest = jnp.maximum(rest, 0.0)
        index = index * WIDTH + child
    weight = tree[0].at[index].get(mode="promise_in_bounds")
    # Whatever uses the index waits for the weight, so that a later `assign` cannot overtake this read: XLA
    # would have to copy all weights to allow that.
    return jnp.where(weight > 0, index, 0), weight


def _children(level: Float[Array, " size"], parent: Int[Array, " M"]) -> Float[Array, "M width"]:
    return level.reshape(-1, WIDTH).at[parent].get(mode="clip")
