"""Episodes played elsewhere, given to an agent as if it had acted in them; pretraining from their files."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from operant.agents.base.compiled import CompiledAgent
from operant.errors import SpaceError, UsageError
from operant.execution import datasets, traces
from operant.execution.actors import Actor, ActorRow, Actors, block_of, stack
from operant.execution.traces import Flat, Trace
from operant.memory.recent import Recent
from operant.ops import normalization, optimise
from operant.spec.random_streams import Purpose, sequence
from operant.spec.spaces import Spaces
from operant.types import Action, Array, Arrays, Key, Rollout, Tree

COUNTED = 1024
"""Rows that enter running moments, of observations or of returns, in one call."""
SEGMENT = 64
"""Rows of a segment in pretraining: long enough for recurrent networks to learn from, short enough to
shuffle."""


def add_trace(engine: CompiledAgent, actors: Actors, trace: Trace, internals: Tree = None) -> None:
    """Add a trace's episodes to the rows of idle actors, with what the agent would have stored.

    Each episode goes to the actor with the fewest rows so far, so that memories with a part for each actor
    hold as much as possible. `internals` are the recurrent states before each step, leaves `[R, ...]` or a
    list of them; None: the networks, as they are now, compute them.

    Raises:
        SpaceError: internals do not fit the trace or the network.
        UsageError: all actors are in the middle of an episode.
    """
    actor = idle(actors)
    if internals is not None:
        internals = _joined(internals)
        _check(internals, actor.start_carry, len(trace.reward))
    memory = engine.learner.algorithm.memory
    for steps, last in trace.episodes():
        actor = idle(actors)
        length = len(trace.reward[steps])
        if isinstance(memory, Recent) and len(actors) > 1 and length > memory.length:
            warnings.warn(
                f"An episode of {length} steps is longer than the memory of one actor, {memory.length} "
                "rows: its first steps are "
                "forgotten. Give capacity, in rows of all actors, or parallel_interactions=1.",
                RuntimeWarning,
                stacklevel=3,
            )
        observation = {name: x[steps] for name, x in trace.observation.items()}
        action = {name: x[steps] for name, x in trace.action.items()}
        carries = None if internals is None else jax.tree.map(lambda x, s=steps: np.asarray(x)[s], internals)
        taken = _recalled(engine, actor, observation, action, carries)
        actor.add_episode(observation, taken, trace.reward[steps], trace.terminal[steps], last)
        actors.collect(actor)


def _recalled(
    engine: CompiledAgent, actor: Actor, observation: Flat, action: Flat, internals: Tree
) -> Action:
    count = len(next(iter(action.values())))
    start = actor.start_carry
    if internals is None and not jax.tree.leaves(start):
        internals = start
    if internals is not None:
        size = 1 << (count - 1).bit_length()  # few sizes, so that few programs are compiled
        wide = jax.tree.map(lambda x: _padded(x, size), (observation, internals, action))
        recalled = engine.recall(wide[0], wide[1], np.zeros(size, bool), wide[2])
        extras = jax.tree.map(lambda x: np.asarray(x)[:count], recalled.extras)
        return Action(action, extras, internals)  # type: ignore[arg-type]
    carry, steps = jax.tree.map(lambda x: x[None], start), []
    for i in range(count):
        one = jax.tree.map(lambda x, i=i: x[i : i + 1], (observation, action))
        recalled = engine.recall(one[0], carry, np.zeros(1, bool), one[1])
        steps.append(jax.tree.map(np.asarray, Action(one[1], recalled.extras, carry)))
        carry = recalled.carry
    return jax.tree.map(lambda *x: np.concatenate(x), *steps)


def _padded(x: Any, size: int) -> np.ndarray:
    x = np.asarray(x)
    return np.concatenate([x, np.repeat(x[-1:], size - len(x), axis=0)])


def _joined(internals: Tree) -> Tree:
    """Return recurrent states with a leading axis; those of single steps may come in a list."""
    if not (isinstance(internals, list | tuple) and internals):
        return internals
    try:
        return stack(internals)
    except (TypeError, ValueError):
        raise SpaceError(
            "internals in a list must be alike: for each step what act, or initial_internals, gave before it."
        ) from None


def _check(internals: Tree, start: Tree, count: int) -> None:
    expected = jax.tree.map(lambda x: (count, *np.shape(x)), start)
    received = jax.tree.map(np.shape, internals)
    if expected != received:
        raise SpaceError(f"internals must have the shapes {expected}. Received: {received}.")


class BehavioralCloning:
    """Imitation: gradient steps that make networks act as a trace does, and values fit the returns.

    The algorithm must have `imitation`. A step of Adam takes some `batch_size` timesteps; `seed` is that of
    their order, and of the noise of networks that have any.
    """

    def __init__(self, engine: CompiledAgent, batch_size: int, seed: int) -> None:
        self._engine = engine
        self._segments = max(1, batch_size // SEGMENT)
        self._order = np.random.default_rng(sequence(seed, Purpose.PRETRAINING))
        self._key, self._taken = jax.random.fold_in(jax.random.key(seed), Purpose.PRETRAINING), 0
        self._step, self._count = jax.jit(self._stepped), jax.jit(self._counted)
        self._models = engine.learner.algorithm.models
        self._hyper = engine.learner.now(engine.train.hyper, engine.train.counters)
        weights = engine.learner.algorithm.weights(engine.train.state)
        self._weights = jax.tree.map(jnp.copy, weights)
        self._state = _adam(0.0).init({name: w["params"] for name, w in weights.items()})
        scale: Any = getattr(engine.train.state, "reward_scale", ())
        self._scale: Any = () if scale == () else normalization.RewardScale(jnp.zeros(1), scale.moments)

    def _stepped(
        self, weights: Tree, state: Tree, hyper: Tree, block: Rollout, key: Key, lr: Array
    ) -> tuple[Tree, Tree]:
        algorithm: Any = self._engine.learner.at(hyper)
        block = self._engine.learner.mask_padding(block)
        params = {name: w["params"] for name, w in weights.items()}
        learning = {
            name: model.learning(weights[name], key, i)
            for i, (name, model) in enumerate(self._models.items())
        }

        def loss(params: Tree) -> Any:
            return algorithm.imitation(
                {name: {**learning[name], "params": params[name]} for name in weights}, block
            )

        params, state, _ = optimise.apply(_adam(lr), params, state, jax.grad(loss)(params))
        for name, model in self._models.items():
            if set(model.inputs) <= set(block.observation):  # critics that read actions do not imitate
                params[name] = model.averaged(params[name], learning[name], block.observation)
        return {name: {**weights[name], "params": params[name]} for name in weights}, state

    def _counted(
        self,
        weights: Tree,
        scale: Any,
        hyper: Tree,
        observation: Arrays,
        reward: Array,
        ended: Array,
        valid: Array,
    ) -> tuple[Tree, Any]:
        weights = {
            name: model.observe(weights[name], observation, valid) for name, model in self._models.items()
        }
        if scale != ():
            gamma = self._engine.learner.at(hyper).config.gamma
            rows = (x[:, None] for x in (reward, ended, valid))
            scale, _ = normalization.scale_rewards(scale, *rows, gamma=gamma)
        return weights, scale

    def _count_moments(self, trace: Trace, fresh: np.ndarray) -> None:
        """Let fresh steps, of whole episodes, enter the running moments of observations and returns."""
        normalized = {name for model in self._models.values() for name in model.normalized}
        if not normalized and self._scale == ():
            return
        arrays = {name: trace.observation[name] for name in normalized}, trace.reward, trace.terminal > 0
        rows = np.flatnonzero(fresh)
        for k in range(0, len(rows), COUNTED):
            part = rows[k : k + COUNTED]
            padded = jax.tree.map(lambda x, part=part: _padded(x[part], COUNTED), arrays)
            self._weights, self._scale = self._count(
                self._weights, self._scale, self._hyper, *padded, np.arange(COUNTED) < len(part)
            )

    def learn(self, trace: Trace, passes: int, fresh: np.ndarray, lr: float) -> None:
        """Go through a trace a number of times, in random order.

        `lr` is the learning rate. The running moments have not counted the steps that are `fresh` `[R]` yet.
        """
        self._count_moments(trace, fresh)
        if self._scale != ():  # values are fitted in the unit of updates
            trace = trace._replace(
                reward=np.asarray(normalization.scaled(self._scale, jnp.asarray(trace.reward)))
            )
        if jax.tree.leaves(self._engine.learner.start_carry()):
            self.hand_over()  # recurrent states are computed with what the agent has learnt so far
        segments = self._cut(trace)
        for _ in range(passes):
            for block in self._batches(segments):
                key = jax.random.fold_in(self._key, self._taken)
                self._weights, self._state = self._step(
                    self._weights, self._state, self._hyper, block, key, np.float32(lr)
                )
                self._taken += 1

    def _cut(self, trace: Trace) -> list[list[ActorRow]]:
        actors = Actors(1, SEGMENT, self._engine.learner.start_carry(), 0)
        add_trace(self._engine, actors, trace)
        actors.flush()
        return [rows for _, rows in actors.take()]

    def _batches(self, segments: list[list[ActorRow]]) -> list[Rollout]:
        order = self._order.permutation(len(segments))
        short = -len(order) % self._segments
        order = np.concatenate([order, self._order.choice(len(segments), short)]) if short else order
        return [
            block_of([(0, segments[i]) for i in order[k : k + self._segments]])
            for k in range(0, len(order), self._segments)
        ]

    def hand_over(self) -> None:
        """Give the agent what was learnt so far."""
        algorithm, train = self._engine.learner.algorithm, self._engine.train
        state: Any = algorithm.with_weights(train.state, self._weights)
        if self._scale != ():
            state = state._replace(reward_scale=state.reward_scale._replace(moments=self._scale.moments))
        self._engine.put(train._replace(state=state))


def _adam(lr: Any) -> optimise.Optimizer:
    return optimise.optimizer("adam", lr, max_norm=1.0)


def draws(
    source: str | Path, extension: str, spaces: Spaces, count: int | None, times: int, seed: int
) -> Iterator[tuple[Trace, np.ndarray]]:
    """Yield, `times` times, `count` random traces (None: all), joined, and their steps `[R]` that are new.

    They are files in a folder, or episodes of the dataset named after `minari:`, and must fit the spaces.

    Raises:
        SpecError: there are no traces, or one does not fit the spaces.
    """
    order = np.random.default_rng(sequence(seed, Purpose.TRACES))
    readers = _readers(source, extension, spaces)
    read: set[int] = set()
    for _ in range(times):
        chosen = range(len(readers)) if count is None else order.permutation(len(readers))[:count].tolist()
        drawn = [readers[i]() for i in chosen]
        fresh = [np.full(len(trace.reward), i not in read) for i, trace in zip(chosen, drawn, strict=True)]
        read.update(chosen)
        yield traces.join(drawn), np.concatenate(fresh)


def _readers(source: str | Path, extension: str, spaces: Spaces) -> list[Callable[[], Trace]]:
    if isinstance(source, str) and source.startswith(datasets.PREFIX):
        episodes = datasets.MinariEpisodes(source.removeprefix(datasets.PREFIX), spaces)
        return [functools.partial(episodes.__getitem__, i) for i in range(len(episodes))]
    return [functools.partial(traces.read, path, spaces) for path in traces.files(source, extension)]


def idle(actors: Actors) -> Actor:
    """Return the idle actor with the fewest rows; UsageError: all are in the middle of an episode."""
    free = [actor for actor in actors if actor.first and not actor.acted]
    if not free:
        raise UsageError(
            "experience was called in the middle of an episode. End it by observe, or call reset."
        )
    return min(free, key=lambda actor: (len(actor.rows), actor.row))
