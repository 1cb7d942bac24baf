"""What the training loop needs of a driver, what all of them share, and the calls that go ahead."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from operant.agents.base.allocation import memory_errors
from operant.agents.base.learner import Learner, TrainState, without_buffer
from operant.agents.base.updates import METRIC_SLOTS
from operant.errors import BackendError
from operant.training.episodes import EpisodeResult
from operant.types import Tree


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


Loop: TypeAlias = Callable[..., tuple[Any, ...]]
"""(*state, blocks) to (*state, report, kept)."""


class Call(NamedTuple):
    """A call that was begun: what it began from, and what it will return."""

    start: tuple[Tree, ...]
    blocks: int
    state: tuple[Tree, ...]
    report: Tree
    kept: Tree


class CallsAhead:
    """Makes calls one after the other; with `ahead`, the next one before the results of the last are read.

    A device that has a call to go on with does not wait for the host. Nothing that is learnt depends on it:
    a call made too early, since the run ended or its state was replaced in between, is not used.

    Where `ahead` is true, the loop must leave its arguments as they are.
    """

    def __init__(self, ahead: bool) -> None:
        self.ahead = ahead
        self._next: Call | None = None

    def advance(self, run: Loop, state: tuple[Tree, ...], blocks: int, ahead: int = 0) -> Call:
        """Run that many blocks, and return the call, whose report is on its way to the host.

        Its state must replace the one before at once: that one may be gone.

        Args:
            run: the loop. Of what it returns, the host reads `report`, and `kept` stays.
            state: what it begins from.
            blocks: of this call.
            ahead: of the next one, if the run simply goes on; 0: that is not known.
        """
        call, self._next = self._next, None
        if (
            call is None
            or call.blocks != blocks
            or any(a is not b for a, b in zip(call.start, state, strict=True))
        ):
            call = None  # and released, before another one needs room
            call = self._begin(run, state, blocks)
        if self.ahead and ahead:
            try:
                self._next = self._begin(run, call.state, ahead)
            except BackendError:  # no room for the states of two calls
                self.ahead = False
        return call

    def forget(self) -> None:
        """Release the call that was begun in vain, if any."""
        self._next = None

    def _begin(self, run: Loop, state: tuple[Tree, ...], blocks: int) -> Call:
        with memory_errors:
            *after, report, kept = run(*state, np.int32(blocks))
        if self.ahead:
            for array in jax.tree.leaves(report):
                array.copy_to_host_async()
        return Call(state, blocks, tuple(after), report, kept)
