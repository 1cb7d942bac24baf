"""Options of DQN. Imports no JAX: help reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from operant.agents.options.shared_options import (
    EpsilonConfig,
    ModelConfig,
    SequenceConfig,
    number,
    update_interval,
)
from operant.spec import Scalar, Schedule, option


class DQNConfig(EpsilonConfig, SequenceConfig, ModelConfig):
    """Options of DQN."""

    double: bool = option(
        False, "Double DQN: the online network chooses the next action, the target network values it"
    )
    target_sync_steps: int = option(
        1000, "Steps between syncs of the target network", unit="environment steps", low=1, search="int"
    )
    tau: Scalar = number(
        1.0, "Weight of the online network when the target is synced (1: copy)", low_open=True, high=1.0
    )
    train_every: int = update_interval()
    gradient_steps: int = option(1, "Gradient steps per update", low=1, search="int")
    n_steps: int = option(
        1, "Number of steps in the n-step return", low=1, search="categorical", aliases=None
    )
    huber: float | None = option(
        None,
        "TD error beyond which the loss is linear (default: squared everywhere)",
        low=0.0,
        low_open=True,
        search="log_uniform",
    )
    dueling: bool = option(
        False, "Separate streams for the value of the state and the advantages of the actions"
    )
    prioritized: bool = option(False, "Replay transitions in proportion to their last TD error")
    priority_alpha: Scalar = number(
        0.6,
        "With prioritized: exponent of the priorities (0: uniform)",
        high=1.0,
        needs=("prioritized", True),
    )
    priority_beta: Scalar = number(
        0.4,
        "With prioritized: exponent of the importance weights (1: full correction)",
        high=1.0,
        needs=("prioritized", True),
    )

    distributional: Literal["none", "c51", "quantile"] = option(
        "none",
        "Learn the distribution of the return instead of its mean (none): c51 (fixed atoms) or quantile",
        choices=("none", "c51", "quantile"),
    )
    atoms: int = option(
        51,
        "With distributional: number of atoms (c51) or quantiles (quantile)",
        low=2,
        search="categorical",
        needs=("distributional", ("c51", "quantile")),
    )
    value_min: Scalar = option(
        -10.0,
        "With c51: return at the first atom",
        unit="reward",
        traced=True,
        needs=("distributional", "c51"),
        settled=True,
    )
    value_max: Scalar = option(
        10.0,
        "With c51: return at the last atom",
        unit="reward",
        traced=True,
        needs=("distributional", "c51"),
        settled=True,
    )
    noisy: bool = option(
        False, "Explore by learned noise on the weights of dense layers, instead of by epsilon"
    )
    noisy_std: Scalar = number(
        0.5,
        "With noisy: initial standard deviation of the noise",
        unit="1 / √inputs of a layer",
        needs=("noisy", True),
        settled=True,
    )

    @property
    def decay_begins(self) -> int | None:
        """After the random steps."""
        return None if self.noisy else self.initial_size

    def check(self) -> Iterator[str]:
        """Refuse atoms without distance between them, and an unused loss, besides the common checks."""
        yield from super().check()
        low, high = self.value_min, self.value_max
        highest = low.range()[1] if isinstance(low, Schedule) else low
        if highest >= (high.range()[0] if isinstance(high, Schedule) else high):
            yield f"value_min must be below value_max. Received: value_min={low}, value_max={high}."
        if self.distributional == "c51" and self.huber is not None:
            yield (
                "huber bounds an error, and distributional='c51' learns by cross-entropy. "
                f"Received: huber={self.huber}. Leave it out, or use distributional='quantile'."
            )
