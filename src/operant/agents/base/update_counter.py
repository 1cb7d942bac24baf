"""How algorithms count in which not every block makes an update.

An environment step is a row that holds one: the row after an episode's end, which only carries its last
observation, is none. An update is a block from which the algorithm learnt: not one of the warm-up, nor one
in which no update was due. `operant.agents.base.learner.Learner.update` adds both to the counters of a run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool, UInt32

from operant.agents.base.protocol import Counters, counted
from operant.memory.replay import Replay
from operant.types import Array, Rollout, Tree


class UpdateCount(NamedTuple):
    """The field `update_count` of a state."""

    made: UInt32[Array, ""]
    """Updates so far."""
    forced: Bool[Array, ""]
    """Whether the next call of `update` makes one, due or not."""

    @classmethod
    def zero(cls) -> UpdateCount:
        """Return the count of a run that has not begun."""
        return cls(jnp.zeros((), jnp.uint32), jnp.zeros((), jnp.bool_))

    def after(self, made: Array) -> UpdateCount:
        """Return the count after a call of `update` that made an update, or none."""
        return UpdateCount(counted(self.made, made.astype(jnp.uint32)), jnp.zeros((), jnp.bool_))


class UpdateCounter:
    """Base of these algorithms. Their state has the field `update_count`."""

    def updates(self, state: Any) -> Array:
        """Return how many updates a state has seen."""
        count: UpdateCount = state.update_count
        return count.made

    def force_update(self, state: Any) -> Any:
        """Return a state whose next call of `update` makes an update, due or not."""
        return state._replace(update_count=state.update_count._replace(forced=jnp.ones((), jnp.bool_)))

    def resumed(self, state: Any, counters: Counters) -> Any:
        """Return a state that continues counting from these counters, as if the last update had just been
        made.
        """
        made = jnp.copy(counters.updates)
        return state._replace(update_count=UpdateCount(made, jnp.zeros((), jnp.bool_)))


def passed(counters: Counters, block: Rollout, every: int) -> Bool[Array, ""]:
    """Return whether environment steps passed a multiple in a block, which `counters` include."""
    number = jnp.uint32(min(every, 2**32 - 1))  # steps are counted up to there
    before = counters.timesteps - jnp.sum(block.valid, dtype=jnp.uint32)
    return counters.timesteps // number > before // number


class ReplayCounter(UpdateCounter):
    """Base of algorithms that replay: an update follows every `train_every` steps of each environment, on
    average, once the memory is filled.
    """

    config: Any
    actors: int
    memory: Any
    models: Any
    sequence_rows: Any

    def due(self, state: Any, memory: Tree, block: Rollout, counters: Counters) -> Bool[Array, ""]:
        """Return whether a block makes an update: environment steps passed a multiple of `train_every` times
        the actors, or one was asked for and there is anything to learn from. `counters` and the memory
        include the block.
        """
        initial = self.config.initial_size
        filled = (counters.timesteps >= jnp.uint32(initial)) & self.memory.begun(memory, initial)
        due = filled & passed(counters, block, self.config.train_every * self.actors)
        due |= state.update_count.forced & (Replay.size(memory) > 0)
        if any(model.recurrent for model in self.models.values()):
            due &= Replay.has_sequence(memory, self.sequence_rows)
        return due
