"""What the training loop needs of a driver, and what all of them share."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from operant.agents.base.learner import Learner, TrainState, without_buffer
from operant.agents.base.metric_accumulator import METRIC_SLOTS
from operant.training.episodes import EpisodeResult


class Driver(abc.ABC):
    """Moves rows of `n` actors between an algorithm and environments.

    `check_steps`, the environment steps of one call, are few enough that the clock and the target are looked
    at often, and many enough that this costs nothing. Fixed, not measured: a run always stops at the same
    step.
    """

    train: TrainState
    """Everything that is needed to continue, except the environments."""
    unreported: Sequence[EpisodeResult] = ()
    """Episodes that ended in blocks that were learnt from, in a call of `advance` that failed later."""
    on_step: Callable[[Any], None] | None = None
    """Called with each `VectorStep`, on the host."""
    processes: int = 1
    """How many processes train together."""

    @property
    def goes_ahead(self) -> bool:
        """Whether the next call may begin before the last one is booked."""
        return False

    def __init__(self, learner: Learner, n: int, check_steps: int) -> None:
        self.learner = learner
        self.block_steps = learner.rows * n
        """Environment steps of one block, if no episode ends in it."""
        self.blocks = max(1, check_steps // self.block_steps)
        """Most blocks of one call: after so many the loop looks at the target."""
        self.step = 0
        """Environment steps so far."""

    @property
    def settled_step(self) -> int:
        """Environment steps up to the end of the last block, where `train` stands."""
        return self.step

    @property
    def learnt(self) -> TrainState:
        """The same without a replay memory, of which a copy may not fit on the device: for acting."""
        return without_buffer(self.train)

    @abc.abstractmethod
    def advance(self, blocks: int, ahead: int = 0) -> Sequence[EpisodeResult]:
        """Collect and learn from that many blocks; return the episodes that ended, in order of time.

        `ahead` is the number of blocks of the next call, if the run simply goes on: a device may begin them.
        """

    def end_by(self, deadline: float) -> None:
        """Discard a block that is not complete by then (`time.perf_counter`); a compiled one is completed."""
        return None

    def settle(self) -> None:
        """Release a call that was begun in vain, since the run has ended."""
        return None

    @abc.abstractmethod
    def metrics(self) -> dict[str, float]:
        """Return the averages of the metrics since the last call."""

    @abc.abstractmethod
    def skipped(self) -> int:
        """Return how many gradient steps were left out since the last call of `metrics`."""

    @abc.abstractmethod
    def scale_lr(self, factor: float) -> tuple[float, float]:
        """Multiply the learning rate; return the old and the new one. Compiles nothing."""

    def agree(self, seconds: float, flag: bool) -> tuple[float, bool]:
        """Return seconds and a flag as they hold for all processes of the run."""
        return seconds, flag

    def put(self, train: TrainState) -> None:
        """Replace the learning state, before the run begins."""
        self.train = train

    @abc.abstractmethod
    def snapshot(self) -> dict[str, Any]:
        """Return the environments' part of what is needed to continue, between blocks."""

    def snapshot_like(self) -> dict[str, Any]:
        """Return the shapes of a snapshot."""
        return self.snapshot()

    @abc.abstractmethod
    def restore(self, train: TrainState, snapshot: dict[str, Any], step: int | None = None) -> None:
        """Continue from there, at a step of the run (default: that of the counters)."""


class NativeDriver(Driver):
    """A driver of a native environment, whose whole state is on the devices: it continues exactly."""

    world: Any
    """`RunnerState`: the environments' part."""

    def __init__(self, learner: Learner, n: int, check_steps: int) -> None:
        super().__init__(learner, n, check_steps)
        self.meter = np.zeros((2, METRIC_SLOTS))
        """Sums and counts of the metrics since they were last read."""

    def metrics(self) -> dict[str, float]:
        """Return the averages of the metrics since the last call."""
        meter, self.meter = self.meter, np.zeros_like(self.meter)
        return self.learner.metrics.read(meter)

    def skipped(self) -> int:
        """Return how many gradient steps were left out since the last call of `metrics`."""
        return self.learner.metrics.skipped(self.meter)

    def snapshot(self) -> dict[str, Any]:
        """Return the environments' part of what is needed to continue."""
        return {"world": self.world}

    def restore(self, train: TrainState, snapshot: dict[str, Any], step: int | None = None) -> None:
        """Continue exactly where `train` and the snapshot were taken."""
        self.put(train)
        self.world = snapshot["world"]
        self.step = int(train.counters.timesteps) if step is None else step

    def begin_anew(self, begin: Callable[..., Any]) -> None:
        """Begin new episodes (by `DeviceRun.restart`), so that the run can continue from what is saved."""
        train = self.learnt
        self.world = jax.jit(begin)(train.key, train.counters.rows, self.world.actors.observation)
