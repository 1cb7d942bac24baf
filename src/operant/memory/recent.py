"""Memory of the newest rows of every actor, in time order, for algorithms of fresh experience.

Like a replay memory it holds the stream of `operant.types` as it comes, in a ring for each actor. Unlike a
replay memory it also holds the observation that followed the newest row, so that nothing has to wait for the
next rollout.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, UInt32

from operant.errors import value_error
from operant.memory.ring import RowSpec
from operant.types import Array, Arrays, Rollout, Tree


class RecentState(NamedTuple):
    """Contents of a memory: rings of `L + 1` slots, time first; after the newest row only an observation."""

    next: Int[Array, " N"]
    """Slot of the row to be written next."""
    observation: Arrays
    action: Arrays
    reward: Float[Array, "L+1 N"]
    terminated: Bool[Array, "L+1 N"]
    truncated: Bool[Array, "L+1 N"]
    valid: Bool[Array, "L+1 N"]
    """False also where nothing has been written yet."""
    extras: Tree
    arrived: UInt32[Array, "L+1 N"]
    """Number of each row in the order in which environment steps of all actors came, from 1, modulo 2^32. A
    row without one has the number of the next that comes."""
    total: UInt32[Array, ""]
    """Number of the newest environment step."""


@dataclasses.dataclass(frozen=True)
class Recent:
    """Description of a memory of the newest rows; hashable."""

    length: int
    """Rows of each actor, L."""
    columns: int = 1
    """Actors whose streams it holds, N."""

    def __post_init__(self) -> None:
        for name in ("length", "columns"):
            if getattr(self, name) < 1:
                raise value_error(name, "at least 1", getattr(self, name))

    def init(self, example: RowSpec) -> RecentState:
        """Return an empty memory for rows like `example`."""
        shape = (self.length + 1, self.columns)

        def ring(x: Array) -> Array:
            return jnp.zeros((*shape, *x.shape), x.dtype)

        no = jnp.zeros(shape, bool)
        return RecentState(
            next=jnp.zeros(self.columns, jnp.int32),
            observation=jax.tree.map(ring, example.observation),
            action=jax.tree.map(ring, example.action),
            reward=jnp.zeros(shape, jnp.float32),
            terminated=no,
            truncated=no,
            valid=no,
            extras=jax.tree.map(ring, example.extras),
            arrived=jnp.zeros(shape, jnp.uint32),
            total=jnp.zeros((), jnp.uint32),
        )

    def add(
        self, state: RecentState, rollout: Rollout, columns: Int[Array, " n"] | None = None
    ) -> RecentState:
        """Append the `T` rows of a rollout and the observation after them.

        Args:
            state: the memory.
            rollout: leaves `[T, n, ...]`, of at most L rows.
            columns: the `n` distinct columns that the rollout's actors write; None for all in order.

        Raises:
            SpecError: the rollout is longer than the memory.
        """
        T, n = rollout.reward.shape
        if self.length < T:
            raise value_error("rollout", f"of at most {self.length} rows", T, "Raise the memory's capacity.")
        where = (
            jnp.arange(self.columns, dtype=jnp.int32) if columns is None else jnp.asarray(columns, jnp.int32)
        )
        start, slots = state.next[where][None], self.length + 1
        slots_of_observations = (start + jnp.arange(T + 1, dtype=jnp.int32)[:, None]) % slots
        rows = slots_of_observations[:-1]

        steps = jnp.cumsum(rollout.valid.reshape(-1), dtype=jnp.uint32).reshape(T, n)
        arrived = state.total + steps + jnp.where(rollout.valid, jnp.uint32(0), jnp.uint32(1))

        def put(ring: Array, new: Array) -> Array:
            return ring.at[rows, where[None]].set(new)

        def watch(ring: Array, new: Array) -> Array:
            return ring.at[slots_of_observations, where[None]].set(new)

        return RecentState(
            next=state.next.at[where].set(slots_of_observations[-1]),
            observation=jax.tree.map(watch, state.observation, rollout.observation),
            action=jax.tree.map(put, state.action, rollout.action),
            reward=put(state.reward, rollout.reward),
            terminated=put(state.terminated, rollout.terminated),
            truncated=put(state.truncated, rollout.truncated),
            # The slot that now holds only an observation held the oldest row, which is gone.
            valid=put(state.valid, rollout.valid).at[slots_of_observations[-1], where].set(False),
            extras=jax.tree.map(put, state.extras, rollout.extras),
            arrived=put(state.arrived, arrived),
            total=state.total + steps[-1, -1],
        )

    def rollout(self, state: RecentState) -> Rollout:
        """Return the rows as a rollout `[L, N]`, oldest first; `valid` is False where there are none yet."""
        slots, column = self._order(state), jnp.arange(self.columns, dtype=jnp.int32)[None]
        rows = slots[:-1]

        def take(ring: Array) -> Array:
            return ring[rows, column]

        return Rollout(
            observation=jax.tree.map(lambda ring: ring[slots, column], state.observation),
            action=jax.tree.map(take, state.action),
            reward=take(state.reward),
            terminated=take(state.terminated),
            truncated=take(state.truncated),
            valid=take(state.valid),
            extras=jax.tree.map(take, state.extras),
            carry=(),
        )

    def age(self, state: RecentState) -> UInt32[Array, "L N"]:
        """Return how many environment steps, of all actors, have come after each row of `rollout`.

        The newest step has 0, a row after it that holds none 2^32 - 1: the step of its number is to come.
        """
        column = jnp.arange(self.columns, dtype=jnp.int32)[None]
        return state.total - state.arrived[self._order(state)[:-1], column]

    def _order(self, state: RecentState) -> Int[Array, "L+1 N"]:
        slots = self.length + 1
        return (state.next[None] + 1 + jnp.arange(slots, dtype=jnp.int32)[:, None]) % slots
