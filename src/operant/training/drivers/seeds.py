"""Several runs of one definition at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from operant.agents.base.allocation import compiled, initializer, memory_errors
from operant.agents.base.learner import Learner, TrainState, without_buffer
from operant.envs.native.native_env import NativeEnv
from operant.errors import UsageError
from operant.spec.runtime import processors
from operant.tracking.record import EpisodeTable
from operant.training.drivers.calls_ahead import CallsAhead
from operant.training.drivers.device_driver import (
    CHECK_STEPS,
    DeviceRun,
    EpisodeEnds,
    PackedEnds,
    RunnerState,
    accelerated,
)
from operant.training.drivers.driver import NativeDriver
from operant.training.episodes import EpisodeResult
from operant.types import Array, Key, Tree


class MultiSeedRunner:
    """Independent runs of `n` actors on a native environment, one per key.

    On an accelerator `vmap` makes them one program with one more axis. On CPU one program is called for each
    run, by as many threads as there are cores: under `vmap` both branches of every condition are computed,
    and eight seeds of TD3 take 14.5 times as long as one; so, on two cores, 5.1 times
    (benchmarks/results/seeds.md).

    Args:
        keys: typed keys `[S]`, the root of each run.
        hyper: traced options of all runs `[H]` or of each `[S, H]` (default: the algorithm's own).
        mapped: whether `vmap` maps over the runs; None: as said above.
    """

    def __init__(
        self,
        learner: Learner,
        env: NativeEnv,
        n: int,
        keys: Key,
        hyper: Array | None = None,
        blocks: int | None = None,
        name: str = "",
        mapped: bool | None = None,
    ) -> None:
        self.learner = learner
        self.name = name or type(env).__name__
        self.size: int = keys.shape[0]
        self.loop = DeviceRun(learner, env, n)
        hyper = learner.hyper() if hyper is None else hyper
        hyper = jnp.broadcast_to(hyper, (self.size, hyper.shape[-1]))
        self.mapped = accelerated() if mapped is None else mapped
        self.drivers = [(_VmapDriver if self.mapped else SeedDriver)(self, i, n) for i in range(self.size)]
        """Each run, as the training loop sees it."""
        self.blocks = blocks or self.drivers[0].blocks
        for driver in self.drivers:
            driver.blocks = self.blocks
        runs = _VmapRuns if self.mapped else _SeparateRuns
        self.states: Any = runs(self.drivers, self.loop, keys, hyper, self.blocks)
        self.unreported: list[Sequence[EpisodeResult]] = [()] * self.size
        """Each run's episodes that ended in a call of `advance` that failed for another run."""
        self.faults: list[str | None] = [None] * self.size
        """What was wrong with each run's environments in the last call of `advance`. Such a run began new
        episodes."""

    def advance(
        self, blocks: int = 1, wanted: Collection[int] | None = None, ahead: int = 0
    ) -> list[EpisodeTable[EpisodeResult]]:
        """Run that many blocks (at most `self.blocks`); return each run's finished episodes, in time order.

        The runs that are not `wanted` (default: all are) may advance with the others. A device may begin
        the next call, of `ahead` blocks, at once.

        Raises:
            Exception: what a call raised; other runs have advanced, and their episodes are in `unreported`.
        """
        blocks = min(blocks, self.blocks)
        wanted = range(self.size) if wanted is None else sorted(wanted)
        finished = [EpisodeTable.of(EpisodeResult, ())] * self.size
        self.unreported = [()] * self.size
        advanced, error = self.states.advance(blocks, wanted, min(ahead, self.blocks))
        for i, ends, meter, unpacked in advanced:
            driver = self.drivers[i]
            driver.meter += meter
            finished[i], driver.step, fault = self.loop.finished(ends, unpacked, driver.step, self.name)
            self.faults[i] = fault
            if fault is not None:
                driver.begin_anew(self.loop.restart)
        if error is not None:
            self.unreported = list(finished)
            raise error
        return finished

    def settle(self) -> None:
        """Release a call that was begun in vain, since all runs have ended."""
        self.states.calls.forget()

    @property
    def steps(self) -> np.ndarray:
        """Environment steps of each run so far."""
        return np.asarray([driver.step for driver in self.drivers])


_Ends: TypeAlias = tuple[int, EpisodeEnds | PackedEnds, np.ndarray, Callable[[], EpisodeEnds]]
"""A run that advanced, its ends, its metrics, and what fetches the ends that were packed."""
_Advanced: TypeAlias = tuple[list[_Ends], BaseException | None]
"""The runs that advanced, and the first error of those that failed."""


class _SeparateRuns:
    """Each run by itself: one program for all, called for each, by as many threads as there are cores."""

    def __init__(
        self, drivers: Sequence[SeedDriver], loop: DeviceRun, keys: Key, hyper: Array, blocks: int
    ) -> None:
        self.calls = CallsAhead(ahead=False)
        self._drivers, learner, begin = drivers, loop.learner, jax.jit(loop.begin)
        init = initializer(learner, loop.n, learner.init, _of(keys, 0), hyper[0], copies=len(drivers))
        for i, driver in enumerate(drivers):
            key = _of(keys, i)
            # One after the other, for the reason that `begun` says.
            driver.train, driver.world = jax.block_until_ready((init(key, hyper[i]), begin(key)))
        self._loop = functools.partial(loop.iterate, limit=blocks)

    @functools.cached_property
    def compiled(self) -> Any:
        first = self._drivers[0]
        jitted = jax.jit(self._loop, donate_argnums=(0, 1))
        return compiled(jitted, (first.train, first.world, np.int32(0)))

    @functools.cached_property
    def _threads(self) -> ThreadPoolExecutor:
        # JAX's kernels for batches of matrices, such as the physics of brax, may hold threads of XLA's pool
        # while they wait for others: two at once could wait for ever (see `begun`).
        alone = "lapack_" in self.compiled.as_text()
        return ThreadPoolExecutor(1 if alone else min(len(self._drivers), processors()), "operant-run")

    def advance(self, blocks: int, wanted: Sequence[int], ahead: int) -> _Advanced:
        loop = self.compiled

        def call(driver: SeedDriver) -> tuple[Any, Any]:
            with memory_errors:
                driver.train, driver.world, report, kept = loop(driver.train, driver.world, np.int32(blocks))
            return jax.device_get(report), kept

        calls = {i: self._threads.submit(call, self._drivers[i]) for i in wanted}
        wait(calls.values())
        advanced, errors = [], []
        for i, each in calls.items():
            if (error := each.exception()) is not None:
                errors.append(error)
                continue
            report, kept = each.result()
            advanced.append((i, *report, functools.partial(jax.device_get, kept)))
        return advanced, errors[0] if errors else None


class _VmapRuns:
    def __init__(
        self, drivers: Sequence[SeedDriver], loop: DeviceRun, keys: Key, hyper: Array, blocks: int
    ) -> None:
        learner = loop.learner
        init = functools.partial(begun, learner)
        self.train: TrainState = initializer(learner, loop.n, init, keys, hyper)(keys, hyper)
        self.world: RunnerState = jax.jit(jax.vmap(loop.begin))(keys)
        self._loop = functools.partial(loop.iterate, limit=blocks)
        self._compiled: dict[bool, Any] = {}
        # As of a single run: see `DeviceDriver`.
        self.calls = CallsAhead(ahead=loop.packs and not learner.replays)

    def compile(self) -> Any:
        """Return the compiled loop of all runs; the first call compiles it."""
        ahead = self.calls.ahead
        if ahead not in self._compiled:
            mapped = jax.vmap(self._loop, in_axes=(0, 0, None))
            jitted = jax.jit(mapped, donate_argnums=() if ahead else (0, 1))
            self._compiled[ahead] = compiled(jitted, (self.train, self.world, np.int32(0)))
        return self._compiled[ahead]

    def advance(self, blocks: int, wanted: Sequence[int], ahead: int) -> _Advanced:
        call = self.calls.advance(self.compile(), (self.train, self.world), blocks, ahead)
        self.train, self.world = call.state
        with memory_errors:
            ends, meter = jax.device_get(call.report)
        fetch = functools.cache(functools.partial(jax.device_get, call.kept))

        def unpacked(index: int) -> EpisodeEnds:
            return EpisodeEnds(*(x[index] for x in fetch()))

        runs = enumerate(zip(*ends, strict=True))  # each a tuple of one run's arrays
        return [(i, type(ends)(*own), meter[i], functools.partial(unpacked, i)) for i, own in runs], None


class SeedDriver(NativeDriver):
    """Run `index` of several as a driver for the training loop, except that only all advance, at once."""

    def __init__(self, runner: MultiSeedRunner, index: int, n: int) -> None:
        super().__init__(runner.learner, n, CHECK_STEPS)
        self.runner = runner
        self.index = index

    @property
    def goes_ahead(self) -> bool:
        """Whether the next call may begin before the last one is booked."""
        return self.runner.states.calls.ahead

    def advance(self, blocks: int, ahead: int = 0) -> Sequence[EpisodeResult]:
        """Refuse: a run advances with the others."""
        raise UsageError("One of several runs advances with the others: call MultiSeedRunner.advance.")

    def scale_lr(self, factor: float) -> tuple[float, float]:
        """Multiply the learning rate; the replay memory stays where it is."""
        self.train, old, new = self.learner.scaled_lr(self.train, factor)
        return old, new


class _VmapDriver(SeedDriver):
    """A run whose state is a part of that of all: what it returns is good until the runs advance."""

    @property
    def train(self) -> TrainState:
        return _of(self.runner.states.train, self.index)

    @train.setter
    def train(self, train: TrainState) -> None:
        states = self.runner.states
        states.train = _with(states.train, np.int32(self.index), train)

    @property
    def learnt(self) -> TrainState:
        return _of(without_buffer(self.runner.states.train), self.index)

    @property
    def world(self) -> RunnerState:
        return _of(self.runner.states.world, self.index)

    @world.setter
    def world(self, world: RunnerState) -> None:
        states = self.runner.states
        states.world = _with(states.world, np.int32(self.index), world)

    def scale_lr(self, factor: float) -> tuple[float, float]:
        states = self.runner.states
        learnt, old, new = self.learner.scaled_lr(self.learnt, factor)
        hyper = _with(states.train.hyper, np.int32(self.index), learnt.hyper)
        states.train = states.train._replace(hyper=hyper)
        return old, new


def begun(learner: Learner, keys: Key, hyper: Array) -> TrainState:
    """Initialise the learning state of each of `S` runs, with keys `[S]` and traced options `[S, H]`.

    On CPU one after the other: JAX's kernels for batches of matrices, such as the factorisations of
    orthogonal initialisers, wait for threads of their own pool; two of them in a pool of two wait for ever
    (JAX 0.10.2).
    """
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda run: learner.init(*run), (keys, hyper))
    return jax.vmap(learner.init)(keys, hyper)


@jax.jit
def _of(tree: Tree, index: int | Array) -> Tree:
    return jax.tree.map(lambda x: _over(x, lambda words: words[index]), tree)


@functools.partial(jax.jit, donate_argnums=0)
def _with(tree: Tree, index: Array, one: Tree) -> Tree:
    """Put one run's arrays in their place among those of all: a copy would need the memory once more."""

    def put(all_: Array, value: Array) -> Array:
        value = jax.random.key_data(value) if _is_key(value) else value
        return _over(all_, lambda words: words.at[index].set(value))

    return jax.tree.map(put, tree, one)


def _is_key(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _over(x: Array, f: Callable[[Array], Array]) -> Array:
    """Apply a function to an array or to the words of a key: JAX would count slicing a key as using it."""
    if not _is_key(x):
        return f(x)
    return jax.random.wrap_key_data(f(jax.random.key_data(x)), impl=jax.random.key_impl(x))
