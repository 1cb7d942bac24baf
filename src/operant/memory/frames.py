"""Observations that are stacks of the last `k` frames, stored frame by frame.

A stack `[..., H, W, k]` (oldest first) holds `k - 1` frames of the row before, so each row adds one frame,
and an episode's first row all `k`: whatever the environment filled the stack with at its reset is returned
exactly. A row whose newest frame is number `f` of its column has the stack of frames `f - k + 1` to `f`,
without exception.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from operant.errors import SpecError, suggest, value_error
from operant.types import Array, Arrays, Tree


@dataclasses.dataclass(frozen=True)
class Stacks:
    """The stacked components of an observation, and the rings of frames that store them."""

    sizes: tuple[tuple[str, int], ...]
    """Component and its `k`."""
    rows: int
    """Rows of one column that the frames must serve."""

    @property
    def depth(self) -> int:
        """Frames of an episode's first row, K: those of the deepest stack; 1 without stacks."""
        return max((k for _, k in self.sizes), default=1)

    @property
    def length(self) -> int:
        """Frames per column, F: a 64th more than rows, for episodes' first rows."""
        return self.rows + self.rows // 64 + 4 * self.depth if self.sizes else 0

    @property
    def longest_rollout(self) -> int:
        """Rows that may be written at once: frames must fit even if each row is the first of an episode."""
        return min(self.rows, self.length // self.depth - 1) if self.sizes else self.rows

    def split(self, observation: Arrays) -> tuple[Arrays, Arrays]:
        """Return the other components, and the stacks."""
        names = dict(self.sizes)
        rest = {name: x for name, x in observation.items() if name not in names}
        return rest, {name: x for name, x in observation.items() if name in names}

    def example(self, observation: Tree) -> Tree:
        """Return the shapes of single frames.

        Raises:
            SpecError: the observation lacks a component, or its last axis is not `k`.
        """
        for name, k in self.sizes:
            if name not in observation:
                raise SpecError(
                    f"frames names {name!r}, which the observation lacks.{suggest(name, observation)}"
                )
            shape = observation[name].shape
            if not shape or shape[-1] != k:
                raise value_error(
                    f"frames[{name!r}]", f"the last axis of the observation, of shape {shape}", k
                )
        return {
            name: jax.eval_shape(lambda x: x[..., 0], _shape(observation[name])) for name, _ in self.sizes
        }

    def numbers(self, next: Int[Array, "1 n"], first: Bool[Array, "T n"]) -> Int[Array, "T n"]:
        """Return the number, not wrapped around, of each row's newest frame; `next` is the first to come."""
        return next + jnp.cumsum(jnp.where(first, self.depth, 1), axis=0, dtype=jnp.int32) - 1

    def write(
        self,
        rings: Arrays,
        stacks: Arrays,
        column: Int[Array, "1 n"],
        number: Int[Array, "T n"],
        first: Bool[Array, "T n"],
    ) -> Arrays:
        """Store the frames of `T` rows; stacks are `[T, n, ..., k]`."""
        written = {}
        for name, k in self.sizes:
            back = jnp.arange(k - 1, -1, -1, dtype=jnp.int32)[:, None, None]
            place = column[None] * self.length + (number[None] - back) % self.length
            place = jnp.where((back == 0) | first[None], place, len(rings[name]))
            written[name] = rings[name].at[place].set(jnp.moveaxis(stacks[name], -1, 0), mode="drop")
        return written

    def read(self, rings: Arrays, column: Int[Array, "*S"], number: Int[Array, "*S"]) -> Arrays:
        """Return stacks `[*S, ..., k]` from the numbers of their newest frames."""
        stacks = {}
        for name, k in self.sizes:
            back = jnp.arange(k - 1, -1, -1, dtype=jnp.int32).reshape(*[1] * number.ndim, k)
            place = column[..., None] * self.length + (number[..., None] - back) % self.length
            stack = rings[name].at[place].get(mode="promise_in_bounds")
            stacks[name] = jnp.moveaxis(stack, number.ndim, -1)
        return stacks


def _shape(x: Tree) -> Tree:
    return jax.eval_shape(lambda: jnp.zeros(x.shape, x.dtype))
