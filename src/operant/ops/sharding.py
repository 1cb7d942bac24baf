"""Work of one compiled program spread over several devices.

Without a mesh of devices nothing here has an effect.
"""

from __future__ import annotations

from typing import TypeVar

import jax
from jax.sharding import PartitionSpec

from operant.types import Array, Tree

AXIS = "devices"
"""Name of the mesh's only axis."""
T = TypeVar("T", bound=Tree)


def spread(tree: T, axis: int) -> T:
    """Let every device of the mesh in force (`jax.set_mesh`) hold its share of all leaves along an axis.

    What is computed from them, gradients included, is then spread too: XLA arranges this, and the sums over
    devices. It changes where numbers are, not the numbers. Leaves whose axis does not divide into as many
    equal shares stay as they are.

    Args:
        tree: leaves with at least `axis + 1` axes.
        axis: the one to split, of independent units such as actors, rows of a minibatch, runs.
    """
    size = jax.sharding.get_abstract_mesh().shape.get(AXIS, 1)
    if size == 1:
        return tree
    share = PartitionSpec(*[None] * axis, AXIS)

    def one(x: Array) -> Array:
        return x if x.shape[axis] % size else jax.lax.with_sharding_constraint(x, share)

    spread_out: T = jax.tree.map(one, tree)
    return spread_out
