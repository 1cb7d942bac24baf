"""What algorithms with one network share."""

from __future__ import annotations

import dataclasses
from typing import Any

from operant.agents.base.protocol import Counters
from operant.nn import Model
from operant.spec.spaces import Spaces
from operant.types import Tree


@dataclasses.dataclass(frozen=True, eq=False)
class OneNetwork:
    """Base of these algorithms: their state has the field `variables`."""

    config: Any
    spaces: Spaces
    actors: int
    model: Model

    @property
    def models(self) -> dict[str, Model]:
        """The one network."""
        return {"model": self.model}

    def weights(self, state: Any) -> dict[str, Tree]:
        """Return its variables."""
        return {"model": state.variables}

    def with_weights(self, state: Any, weights: dict[str, Tree]) -> Any:
        """Replace its variables."""
        return state._replace(variables=weights["model"])

    def acting(self, state: Any, counters: Counters) -> Tree:
        """Acting needs the network."""
        return state.variables

    def initial_carry(self, n: int) -> Tree:
        """Return the recurrent state at the start of an episode."""
        return self.model.initial_carry(n)
