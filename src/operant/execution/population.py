"""Several runs of one definition at once: `vmap` makes them one program with one more axis."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from operant.agents.learner import Learner, Train
from operant.envs.native import NativeEnv
from operant.errors import UsageError
from operant.execution.device import CHECK_STEPS, DeviceRun, Ends, World, finished_episodes
from operant.execution.episodes import Finished
from operant.types import Array, Key, Tree


class Population:
    """Independent runs on a native environment, one per key, mapped over by `vmap` into one program.

    Args:
        learner: the algorithm.
        env: the environment.
        n: actors of one run.
        keys: typed keys `[S]`, the root of each run.
        hyper: traced options of all runs `[H]` or of each `[S, H]` (default: the algorithm's own).
        blocks: most blocks that one call of `advance` may run.
        name: of the environment, for messages.
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
    ) -> None:
        self.learner = learner
        self.name = name or type(env).__name__
        self.size: int = keys.shape[0]
        self.loop = DeviceRun(learner, env, n)
        self.block_steps = learner.rows * n
        self.blocks = blocks or max(1, CHECK_STEPS // self.block_steps)
        hyper = learner.hyper() if hyper is None else hyper
        hyper = jnp.broadcast_to(hyper, (self.size, hyper.shape[-1]))
        self.train: Train = jax.jit(functools.partial(begun, learner))(keys, hyper)
        self.world: World = jax.jit(jax.vmap(self.loop.begin))(keys)
        self.steps = np.zeros(self.size, np.int64)
        self.faults: list[str | None] = [None] * self.size
        """What was wrong with each run's environments in the last call of `advance`; such a run began new episodes."""
        self._meter = jnp.stack([learner.meter()] * self.size)
        self._compiled: Any = None

    def compile(self) -> Any:
        """Return the compiled loop; the first call compiles it."""
        if self._compiled is None:
            loop = functools.partial(self.loop.iterate, limit=self.blocks)
            mapped = jax.vmap(loop, in_axes=(0, 0, 0, None))
            arguments = (self.train, self.world, self._meter, np.int32(0))
            self._compiled = jax.jit(mapped, donate_argnums=(0, 1, 2)).lower(*arguments).compile()
        return self._compiled

    def advance(self, blocks: int = 1) -> list[list[Finished]]:
        """Run that many blocks (at most `self.blocks`); return each run's finished episodes, in order of time."""
        blocks = min(blocks, self.blocks)
        loop = self.compile()
        self.train, self.world, self._meter, ends = loop(
            self.train, self.world, self._meter, np.int32(blocks)
        )
        ends = jax.device_get(ends)
        finished = []
        for i in range(self.size):
            own = Ends(*(x[i, :blocks] for x in ends))
            episodes, self.steps[i] = finished_episodes(own, int(self.steps[i]))
            self.faults[i] = self.loop.fault(own, self.name)
            if self.faults[i] is not None:
                self._restart(i)
            finished.append(episodes)
        return finished

    def _restart(self, index: int) -> None:
        """Begin new episodes in one run, so that it can continue from what is saved."""
        train, world = _of(self.train, index), _of(self.world, index)
        world = jax.jit(self.loop.restart)(train.key, train.counters.rows, world.actors.observation)
        self.world = _with(self.world, index, world)

    def metrics(self, index: int) -> dict[str, float]:
        """Return a run's averages of the metrics since the last call."""
        meter = np.asarray(self._meter[index])
        self._meter = self._meter.at[index].set(0.0)
        return self.learner.read(meter)

    def skipped(self, index: int) -> int:
        """Return how many of a run's gradient steps were left out since the last call of `metrics`."""
        return self.learner.skipped(np.asarray(self._meter[index]))

    def put(self, index: int, train: Train, world: World | None = None, step: int | None = None) -> None:
        """Replace the state of a run, and set its step (default: that of its counters)."""
        self.train = _with(self.train, index, train)
        if world is not None:
            self.world = _with(self.world, index, world)
        self.steps[index] = int(train.counters.timesteps) if step is None else step


class Member:
    """One run of a population as a driver for the training loop, except that only the population advances, all runs at once.

    Args:
        population: the runs.
        index: which of them this is.
    """

    unreported: Sequence[Finished] = ()
    """Always empty: the population says what failed."""
    deadline: float = math.inf
    """Has no effect: a compiled block is completed."""

    def __init__(self, population: Population, index: int) -> None:
        self.population = population
        self.index = index
        self.blocks = population.blocks
        self.block_steps = population.block_steps

    @property
    def train(self) -> Train:
        """The learning state."""
        train: Train = _of(self.population.train, self.index)
        return train

    @property
    def step(self) -> int:
        """Environment steps so far."""
        return int(self.population.steps[self.index])

    def advance(self, blocks: int) -> list[Finished]:
        """Refuse: a member advances with the others."""
        raise UsageError("A member of a population advances with the others: call Population.advance.")

    def metrics(self) -> dict[str, float]:
        """Return the averages of the metrics since the last call."""
        return self.population.metrics(self.index)

    def skipped(self) -> int:
        """Return how many gradient steps were left out since the last call of `metrics`."""
        return self.population.skipped(self.index)

    def snapshot(self) -> dict[str, Any]:
        """Return the environments' part of what is needed to continue; a single run can continue from it, too."""
        return {"world": _of(self.population.world, self.index)}

    def snapshot_like(self) -> dict[str, Any]:
        """Return the shapes of a snapshot."""
        return self.snapshot()

    def put(self, train: Train) -> None:
        """Replace the learning state, before the run begins."""
        self.population.put(self.index, train)

    def restore(self, train: Train, snapshot: dict[str, Any], step: int | None = None) -> None:
        """Continue exactly where `train` and the snapshot were taken."""
        self.population.put(self.index, train, snapshot["world"], step)

    def scale_lr(self, factor: float) -> tuple[float, float]:
        """Multiply the learning rate; return the old and the new one."""
        train, old, new = self.population.learner.scaled_lr(self.train, factor)
        self.population.put(self.index, train)
        return old, new


def begun(learner: Learner, keys: Key, hyper: Array) -> Train:
    """Initialise the learning state of each of `S` runs, with keys `[S]` and traced options `[S, H]`.

    On CPU one after the other: JAX's kernels for batches of matrices, such as the factorisations of orthogonal initialisers, wait for
    threads of the same pool that they run in. In a pool of two threads, two such kernels wait for ever (JAX 0.10.2).
    """
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda run: learner.init(*run), (keys, hyper))
    return jax.vmap(learner.init)(keys, hyper)


def _of(tree: Tree, index: int) -> Tree:
    return jax.tree.map(lambda x: _over(x, lambda words: words[index]), tree)


def _with(tree: Tree, index: int, one: Tree) -> Tree:
    def put(all_: Array, own: Array) -> Array:
        own = jax.random.key_data(own) if _is_key(own) else own
        return _over(all_, lambda words: words.at[index].set(own))

    return jax.tree.map(put, tree, one)


def _is_key(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _over(x: Array, f: Callable[[Array], Array]) -> Array:
    """Apply a function to an array, or to the words of a key: JAX would count slicing a key as using it."""
    if not _is_key(x):
        return f(x)
    return jax.random.wrap_key_data(f(jax.random.key_data(x)), impl=jax.random.key_impl(x))
