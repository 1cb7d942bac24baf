"""What agents that learn nothing share: no network, no memory, no update."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from operant.agents.base.protocol import Counters
from operant.agents.base.update_counter import UpdateCount, UpdateCounter
from operant.nn import Model
from operant.spec.spaces import Spaces
from operant.types import Key, Tree


class State(NamedTuple):
    """Nothing changes."""

    update_count: UpdateCount
    """Stays at 0."""


@dataclasses.dataclass(frozen=True, eq=False)
class RandomPolicy(UpdateCounter):
    """Base of agents without parameters. A subclass adds `create`, `noise`, `act` and `update`."""

    config: Any
    spaces: Spaces
    actors: int

    @property
    def rows(self) -> int:
        """Rows per call of `update`: enough to make the call cheap."""
        return 64

    @property
    def memory(self) -> None:
        """None."""
        return

    @property
    def models(self) -> dict[str, Model]:
        """None."""
        return {}

    def init(self, key: Key) -> State:
        """There is nothing to initialise."""
        return State(UpdateCount.zero())

    def weights(self, state: Any) -> dict[str, Tree]:
        """Return nothing."""
        return {}

    def with_weights(self, state: Any, weights: dict[str, Tree]) -> Any:
        """Return the state as it is."""
        return state

    def acting(self, state: Any, counters: Counters) -> Tree:
        """Acting needs nothing."""
        return ()

    def initial_carry(self, n: int) -> Tree:
        """No recurrent state."""
        return ()
