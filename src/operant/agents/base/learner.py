"""The iteration that every driver runs, as pure functions around an algorithm.

A `TrainState` is everything that a run needs to continue, apart from the environments: the algorithm's state,
its memory, the hyperparameters in force, the run's key and the counters. All randomness is addressed: the
noise of row `t` is a function of (key, `t`), the key of update `u` a function of (key, `u`).
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from operant import checkpoint
from operant.agents.base import updates
from operant.agents.base.metric_accumulator import METRIC_SLOTS, MetricAccumulator
from operant.agents.base.protocol import Algorithm, Counters, count_valid, counted, fold
from operant.agents.base.update_counter import ReplayCounter, UpdateCounter
from operant.errors import SpecError
from operant.memory.replay import Replay, RowSpec
from operant.memory.ring import ReplayState
from operant.ops import schedules
from operant.spec import Config, Schedule, traced
from operant.spec.random_streams import Purpose
from operant.types import Action, Array, Arrays, Key, Metrics, Rollout, Tree


class TrainState(NamedTuple):
    """Everything that continuing a run needs, apart from the environments."""

    state: Tree
    memory: Tree
    hyper: Float[Array, " H"]
    """The traced options, in the order of `traced(Config)`. For an option with a schedule this is a factor
    (1)."""
    key: Key
    counters: Counters


class PolicyState(NamedTuple):
    """What one call of `act` needs of a `TrainState`."""

    policy: Tree
    hyper: Float[Array, " H"]


def without_buffer(train: TrainState) -> TrainState:
    """Leave a replay memory out; one of the newest rows only, which is small, stays."""
    return train._replace(memory=()) if isinstance(train.memory, ReplayState) else train


def learnt_by(
    actors: int, saved: checkpoint.Checkpoint, fresh: TrainState, algorithm: Algorithm
) -> TrainState:
    """Return what another number of actors learnt, in the place of a fresh state.

    What belongs to actors begins anew: running returns, and a memory, with a warning. So does the count of
    steps to the next update.
    """
    if jax.tree.leaves(fresh.memory):
        path = str(saved.path)
        text = f"The replay memory starts empty: that of {path!r} belongs to another number of actors."
        warnings.warn(text, RuntimeWarning, stacklevel=5)
    like = fresh
    scale: Any = getattr(fresh.state, "reward_scale", ())
    if scale != ():
        others = scale._replace(total=np.zeros(actors, np.float32))
        like = fresh._replace(state=fresh.state._replace(reward_scale=others))
    fields = [name for name in fresh._fields if name != "memory"]
    parts = {name: saved.part("train", getattr(like, name), name) for name in fields}
    if scale != ():
        kept = parts["state"].reward_scale._replace(total=scale.total)
        parts["state"] = parts["state"]._replace(reward_scale=kept)
    if isinstance(algorithm, UpdateCounter):
        parts["state"] = algorithm.resumed(parts["state"], parts["counters"])
    return fresh._replace(**parts)


def with_empty_buffer(train: TrainState) -> TrainState:
    """Empty a replay memory."""
    memory = train.memory
    return train._replace(memory=Replay.emptied(memory)) if isinstance(memory, ReplayState) else train


class Learner:
    """An algorithm with its memory: `init`, `act`, `update`. All that changes is in `TrainState`."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.names = traced(type(algorithm.config))
        self.metrics = MetricAccumulator()

    @property
    def learns_from_every_block(self) -> bool:
        """Whether a block is a rollout, and each makes an update."""
        return not isinstance(self.algorithm, UpdateCounter)

    @property
    def warmup(self) -> int:
        """Environment steps with random actions, before the first update."""
        algorithm = self.algorithm
        return int(algorithm.config.initial_size) if isinstance(algorithm, ReplayCounter) else 0

    @property
    def rows(self) -> int:
        """Rows per actor that one update consumes."""
        return self.algorithm.rows

    @property
    def replays(self) -> bool:
        """Whether it learns from a replay memory, which may be left out of what is saved."""
        return isinstance(self.algorithm.memory, Replay)

    def hyper(self, config: Config | None = None) -> Float[Array, " H"]:
        """Return the traced options of a config (default: the algorithm's) as one vector.

        Compiled functions take this vector, so that another learning rate does not compile again.
        """
        config = self.algorithm.config if config is None else config
        values = [getattr(config, name) for name in self.names]
        for name, value in zip(self.names, values, strict=True):
            current = getattr(self.algorithm.config, name)
            if not (isinstance(value, int | float) and isinstance(current, int | float)) and value != current:
                raise SpecError(f"{name} cannot become {value!r} in a running agent. Create a new one.")
        return jnp.asarray([v if isinstance(v, int | float) else 1.0 for v in values], jnp.float32)

    def scaled_lr(self, train: TrainState, factor: float) -> tuple[TrainState, float, float]:
        """Multiply the learning rates in force (of single models, too); return the train and both `lr`."""
        config = self.algorithm.config
        if "lr" not in self.names:  # nothing is learned
            return train, 0.0, 0.0
        rates = [
            i
            for i, name in enumerate(self.names)
            if (name == "lr" or name.endswith("_lr")) and getattr(config, name) is not None
        ]
        old = float(self.now(train.hyper, train.counters)[self.names.index("lr")])
        hyper = train.hyper.at[np.asarray(rates)].multiply(factor)
        return train._replace(hyper=hyper), old, old * factor

    def at(self, hyper: Float[Array, " H"]) -> Algorithm:
        """Return the algorithm with these numbers, to which `now` applied schedules, as traced options."""
        config = self.algorithm.config
        put = {n: hyper[i] for i, n in enumerate(self.names) if getattr(config, n) is not None}
        return dataclasses.replace(self.algorithm, config=config.with_values(put))  # type: ignore[type-var]

    def now(self, hyper: Float[Array, " H"], counters: Counters) -> Float[Array, " H"]:
        """Return the traced options at these counters: a schedule's factor becomes the value."""
        scheduled = {
            i: getattr(self.algorithm.config, name)
            for i, name in enumerate(self.names)
            if isinstance(getattr(self.algorithm.config, name), Schedule)
        }
        for i, schedule in scheduled.items():
            step = getattr(counters, schedule.unit)
            hyper = hyper.at[i].set(hyper[i] * schedules.value(schedule, step))
        return hyper

    def init(self, key: Key, hyper: Float[Array, " H"]) -> TrainState:
        """Return the start of a run: everything in it is a function of the key and the hyperparameters."""
        counters = Counters.zero()
        algorithm = self.at(self.now(hyper, counters))
        state = algorithm.init(fold(key, Purpose.INIT))
        memory = () if algorithm.memory is None else algorithm.memory.init(self.example())
        return TrainState(state, memory, hyper, key, counters)

    def example(self) -> RowSpec:
        """Return shapes and dtypes of one row of one actor."""
        block = self.block_shape(1)
        row = RowSpec(block.observation, block.action, block.extras)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), row)

    @functools.cached_property
    def _one(self) -> tuple[Tree, Tree, Tree]:
        """Shapes of one actor's observation, action and carry; tracing them takes a while, so once."""
        algorithm = self.algorithm
        leaves = algorithm.spaces.observation_components
        observation = {k: jax.ShapeDtypeStruct((1, *v.shape), v.dtype) for k, v in leaves.items()}
        carry = jax.eval_shape(lambda: algorithm.initial_carry(1))
        action = jax.eval_shape(self._first_action, jax.random.key(0), observation, carry)
        return observation, action, carry

    def block_shape(self, n: int) -> Rollout:
        """Return shapes and dtypes of the block that `n` actors fill for one update."""
        rows, (observation, action, carry) = self.rows, self._one

        def wide(tree: Tree, *lead: int) -> Tree:
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape[1:]), x.dtype), tree)

        flag: Any = jax.ShapeDtypeStruct((rows, n), jnp.bool_)
        reward: Any = jax.ShapeDtypeStruct((rows, n), jnp.float32)
        return Rollout(
            observation=wide(observation, rows + 1, n),
            action=wide(action.action, rows, n),
            reward=reward,
            terminated=flag,
            truncated=flag,
            valid=flag,
            extras=wide(action.extras, rows, n),
            carry=wide(carry, n),
        )

    def start_carry(self, n: int | None = None) -> Tree:
        """Return the recurrent state of one actor at the start of an episode, or of `n`, as NumPy arrays."""
        carry = jax.device_get(self.algorithm.initial_carry(1 if n is None else n))
        return carry if n is not None else jax.tree.map(lambda x: x[0], carry)

    @property
    def carry_shape(self) -> Tree:
        """Shapes and dtypes of one actor's recurrent state."""
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self._one[2])

    def _first_action(self, key: Key, observation: Arrays, carry: Tree) -> Action:
        counters = Counters.zero()
        algorithm = self.at(self.hyper())
        acting = algorithm.acting(algorithm.init(fold(key, Purpose.INIT)), counters)
        return algorithm.act(acting, observation, carry, algorithm.noise(fold(key, Purpose.ACT), 1), True)

    def acting(self, train: TrainState) -> PolicyState:
        """Return what `act` needs."""
        hyper = self.now(train.hyper, train.counters)
        return PolicyState(self.at(hyper).acting(train.state, train.counters), hyper)

    def noise(self, key: Key, row: Array, n: int) -> Tree:
        """Return the randomness of row `row` of a run with `n` actors."""
        return self.algorithm.noise(fold(key, Purpose.ACT, row), n)

    @functools.cached_property
    def independent_noise(self) -> Callable[[Key, np.uint32, int], Tree]:
        """Function that returns the randomness of a numbered draw outside of the run, for `n` observations.

        A program of its own: XLA on CPU takes up to four times as long for one that draws and acts.
        """

        def noise(key: Key, draw: np.uint32, n: int) -> Tree:
            return self.algorithm.noise(fold(key, Purpose.INDEPENDENT, draw), n)

        return jax.jit(noise, static_argnums=2)

    def act(
        self,
        acting: PolicyState,
        observation: Arrays,
        carry: Tree,
        first: Bool[Array, " n"],
        noise: Tree,
        *,
        explore: bool,
    ) -> Action:
        """Act on observations `[n, ...]`.

        `first` marks actors that begin an episode here (their carry starts anew).
        """
        algorithm = self.at(acting.hyper)
        carry = reset_carry(algorithm, carry, first)
        return algorithm.act(acting.policy, observation, carry, noise, explore)

    @functools.cached_property
    def relevant_carry(self) -> tuple[bool, ...]:
        """Whether actions without exploration depend on each leaf of the recurrent state, now or in later
        steps.

        They do not depend on that of a critic which is carried along only for learning.
        """
        observation, _, carry = self._one
        if not (count := len(jax.tree.leaves(carry))):
            return ()
        algorithm = self.at(self.hyper())

        def act(carry: Tree, observation: Arrays) -> tuple[Tree, Tree]:
            counters = Counters.zero()
            acting = algorithm.acting(algorithm.init(jax.random.key(0)), counters)
            noise = algorithm.noise(jax.random.key(1), 1)
            action = algorithm.act(acting, observation, carry, noise, False)
            return action.action, action.carry

        jaxpr = jax.make_jaxpr(act)(carry, observation).jaxpr
        reads = {id(x): {i} for i, x in enumerate(jaxpr.invars[:count])}
        for equation in jaxpr.eqns:
            read = {i for x in equation.invars for i in reads.get(id(x), ())}
            reads |= {id(x): read for x in equation.outvars}
        outputs = [reads.get(id(x), set()) for x in jaxpr.outvars]
        relevant: set[int] = set().union(*outputs[:-count])
        while more := {i for leaf in relevant for i in outputs[-count:][leaf]} - relevant:
            relevant |= more
        return tuple(i in relevant for i in range(count))

    def recall(
        self, acting: PolicyState, observation: Arrays, carry: Tree, first: Bool[Array, " n"], action: Arrays
    ) -> Action:
        """Return what `act` would have returned for observations `[n, ...]`, had it chosen these actions."""
        algorithm = self.at(acting.hyper)
        carry = reset_carry(algorithm, carry, first)
        if hasattr(algorithm, "recall"):
            return algorithm.recall(acting.policy, observation, carry, action)
        # What other algorithms store besides an action does not depend on it.
        noise = algorithm.noise(jax.random.key(0), first.shape[0])
        return algorithm.act(acting.policy, observation, carry, noise, True)._replace(action=action)

    def emit(self, action: Arrays) -> Arrays:
        """Return actions as environments take them: floats clipped to their bounds."""
        leaves = self.algorithm.spaces.actions.components

        def clip(name: str, x: Array) -> Array:
            if leaves[name].type != "float":
                return x
            low, high = (
                jnp.broadcast_to(jnp.asarray(b, x.dtype), x.shape)
                for b in (leaves[name].low, leaves[name].high)
            )
            return jnp.clip(x, low, high)

        return {name: clip(name, x) for name, x in action.items()}

    def update_key(self, key: Key, update: Array) -> Key:
        """Return the key of call number `update` of the algorithm's `update` in a run.

        It is an argument of `update`, not made there: hashing keys one at a time costs as much as a small
        update, many at once cost nothing.
        """
        return fold(key, Purpose.UPDATE, update)

    def add(self, train: TrainState, block: Rollout, actors: Array | None = None) -> TrainState:
        """Put rows of some actors (None: of all, in order) into the memory."""
        if self.algorithm.memory is None:
            return train
        memory = self.algorithm.memory.add(train.memory, block, actors)
        # Without the barrier XLA fuses writing with the reads that follow, and copies a whole ring to do so.
        return train._replace(memory=jax.lax.optimization_barrier(memory))

    def update(
        self,
        train: TrainState,
        block: Rollout,
        key: Key,
        *,
        segments: Array | None = None,
        stored: bool = False,
    ) -> tuple[TrainState, Metrics]:
        """Learn from the next block `[T, N]`: put it into the memory, unless `stored`, update once, count.

        `key` is that of `update_key`. `segments` are the actors of segments; one may have two, and `N` stands
        for none; None: segment i is actor i's.

        Raises:
            SpecError: there are more than `METRIC_SLOTS` metrics.
        """
        train = train if stored else self.add(train, block)
        if segments is not None:
            train = train._replace(state=updates.with_segments(train.state, segments))
        block = self.mask_padding(block)
        before = train.counters
        steps, episodes = count_valid(block)
        counters = before._replace(
            timesteps=counted(before.timesteps, steps),
            episodes=counted(before.episodes, episodes),
            rows=before.rows + jnp.uint32(block.reward.shape[0]),
        )
        algorithm = self.at(self.now(train.hyper, counters))
        state, memory, metrics = algorithm.update(train.state, train.memory, block, counters, key)
        if len(metrics) > METRIC_SLOTS:
            raise SpecError(
                f"{type(algorithm).__name__}.update must return at most {METRIC_SLOTS} metrics. "
                f"Received: {len(metrics)}. Leave some out."
            )
        number = (
            algorithm.updates(state)
            if isinstance(algorithm, UpdateCounter)
            else counted(before.updates, jnp.uint32(1))
        )
        counters = counters._replace(updates=number)
        return train._replace(state=state, memory=memory, counters=counters), metrics

    def mask_padding(self, block: Rollout) -> Rollout:
        """Return a block as losses read it: without padding, if a network standardises by all rows."""
        if any(model.averages for model in self.algorithm.models.values()):
            return updates.mask_padding(block, self.algorithm.spaces)
        return block


def reset_carry(algorithm: Algorithm, carry: Tree, first: Bool[Array, " n"]) -> Tree:
    """Start the recurrent state of some actors anew."""
    if not jax.tree.leaves(carry):
        return carry
    start = algorithm.initial_carry(first.shape[0])

    def pick(new: Array, old: Array) -> Array:
        return jnp.where(first.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    return jax.tree.map(pick, start, carry)
