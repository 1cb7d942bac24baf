"""The interactive driver: a program's calls of `act` and `observe` become rows, and rows become updates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from operant.agents.base.agent_spec import AgentSpec
from operant.agents.base.compiled import CompiledAgent, act_independently
from operant.agents.base.learner import Learner, TrainState
from operant.envs.environment import take
from operant.envs.validation_errors import reward_error
from operant.errors import NumericalError, SpaceError, UsageError, value_error
from operant.execution.actors import Actor, Actors, stack
from operant.execution.agent_callbacks import AgentCallbacks
from operant.spec import Config, option, runtime
from operant.spec.spaces import Spaces, mask_name
from operant.spec.spaces.masks import SUFFIX
from operant.training.signals import held
from operant.types import Rollout, Tree


class Settings(Config):
    """Settings of an agent that are not hyperparameters. Of these only the seed is saved with the agent."""

    seed: int = option(0, "Seed of all randomness", low=0, high=2**32 - 1)
    device: str | None = option(
        None, "Device that holds the arrays: cpu, gpu, tpu, gpu:1 (default: JAX's own choice)"
    )
    precision: str | None = option(
        None,
        "Precision of float32 matrix products and convolutions, on processors that offer a choice "
        "(default: JAX's own)",
        choices=("bfloat16", "tensorfloat32", "float32"),
    )
    debug: bool = option(False, "Raise an error at an update that is not finite, instead of skipping it")


class StepOutcome(NamedTuple):
    """What followed one actor's last action, checked."""

    actor: Actor
    reward: float
    terminal: int
    last: dict[str, np.ndarray] | None
    """Observation after the episode's last action, if it was given."""


class DetachedState(NamedTuple):
    """What a driver of training runs needs of an agent to continue."""

    train: TrainState
    last: dict[str, np.ndarray] | None
    """Last observations `[N, ...]` of the actors' episodes, which no block holds yet. None: no actor has
    acted yet."""


class InteractiveAgent:
    """An algorithm that acts when a program calls it, and learns from what the program reports.

    `parallel_interactions` actors act in turn; more steps of an episode than `max_episode_timesteps` are an
    error.
    """

    def __init__(
        self,
        definition: AgentSpec,
        spaces: Spaces,
        *,
        parallel_interactions: int = 1,
        max_episode_timesteps: int | None = None,
        settings: Settings | None = None,
    ) -> None:
        settings = Settings.from_dict({}) if settings is None else settings
        self.definition = definition
        self.spaces = spaces
        self.parallel_interactions = parallel_interactions
        self.max_episode_timesteps = max_episode_timesteps
        self.seed = settings.seed
        self._callbacks = AgentCallbacks()
        shapes = [leaf.shape for leaf in spaces.states.components.values()]
        runtime.start(shapes, product=definition.product(parallel_interactions))
        self._device = None if settings.device is None else runtime.device(settings.device)
        self._precision = settings.precision
        self._debug = settings.debug
        self._draws = 0
        self._build(self._learner_for(spaces))

    def _learner_for(self, spaces: Spaces) -> Learner:
        definition = self.definition
        return Learner(definition.cls.create(definition.config, spaces, self.parallel_interactions))

    def _build(self, learner: Learner) -> None:
        n = self.parallel_interactions
        self.learner = learner
        key = jax.random.key(self.seed)
        # The one before is released first: a device need not have room for two.
        self.engine: CompiledAgent | None = None
        self.engine = CompiledAgent(learner, key, n, self._device, self._precision, held)
        self._reported = 0
        self._last_block: Rollout | None = None
        self._limit: int | None = None
        self._start()

    def _placing(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context for arrays on the agent's device: JAX's first may have no room for them."""
        return jax.default_device(self._device)

    def _declare_masks(self, states: Any) -> None:
        """Declare masks in the first states that the specification did not mention."""
        if not isinstance(states, Mapping):
            return
        actions = [
            key.removesuffix(SUFFIX) for key in states if isinstance(key, str) and key.endswith(SUFFIX)
        ]
        known = self.spaces.actions.components
        new = [name for name in actions if name in known and name not in self.spaces.masks]
        if not new:
            return
        if any(actor.rows or actor.row for actor in self.actors):
            raise UsageError(
                f"A mask for {new[0]!r} came after the agent had begun. Declare it in the states' "
                "specification: "
                f"{{{mask_name(new[0])!r}: dict(type='bool', shape=...)}}, or give it from the first act on."
            )
        self._take_masks(new)

    def _take_masks(self, new: Sequence[str]) -> None:
        spaces = Spaces.read(self.spaces.states, self.spaces.actions, masks=(*self.spaces.masks, *new))
        before, limit = self._engine.train._replace(memory=()), self._limit
        learner = self._learner_for(spaces)  # which may refuse them
        self.spaces = spaces
        self._build(learner)
        # Masks are no inputs of networks: what was loaded or learnt so far stays.
        self._engine.put(before._replace(memory=self._engine.train.memory))
        self._start()
        self._reported, self._limit = self.updates, limit
        self._callbacks.spaces_changed(self.spaces)

    def _start(self) -> None:
        learner = self.learner
        self.actors = Actors(
            self.parallel_interactions, learner.rows, learner.start_carry(), self._engine.counter("rows")
        )

    @property
    def _engine(self) -> CompiledAgent:
        if self.engine is None:
            raise UsageError("The agent is closed. Create or load another one.")
        return self.engine

    # Counters

    @property
    def timesteps(self) -> int:
        """Environment steps that the agent acted in."""
        return self._engine.counter("timesteps") + sum(1 for row in self.actors.waiting if row.valid)

    @property
    def episodes(self) -> int:
        """Episodes that ended."""
        ended = sum(1 for row in self.actors.waiting if row.terminated or row.truncated)
        return self._engine.counter("episodes") + ended

    @property
    def updates(self) -> int:
        """Updates made."""
        return self._engine.updates

    # Acting

    def act(
        self,
        states: Any,
        internals: Any = None,
        parallel: int | Sequence[int] = 0,
        independent: bool = False,
        deterministic: bool = True,
        evaluation: bool = False,
    ) -> Any:
        """Choose actions.

        Args:
            states: one state in the structure of the specification, with `'<action>_mask'` entries if actions
                are masked; with a list as `parallel`, one more leading axis (or a list of states).
            internals: recurrent state, for independent calls of a recurrent agent: what `initial_internals`
                or the call before gave.
            parallel: index of the actor, or a list of such for a batched call.
            independent: act without recording or counting; `observe` must not follow.
            deterministic: independent calls take the best action; False draws as in training.
            evaluation: another word for `independent`.

        Returns:
            Actions in the structure of the specification; `(actions, internals)` if `internals` were given.

        Raises:
            SpaceError: the states do not fit the specification.
            UsageError: the actor's last action was not followed by `observe`.
        """
        if independent or evaluation:
            return self._act_independently(states, internals, deterministic)
        if internals is not None:
            raise UsageError("internals are kept by the agent. Give them with independent=True only.")
        batched = not isinstance(parallel, int | np.integer)
        actors = self._actors(parallel if batched else [parallel])
        for actor in actors:
            if actor.acted:
                raise UsageError(
                    f"act was called twice for parallel={actor.index}. Call observe after each act, or "
                    "reset() where the environments begin anew, as after Agent.load."
                )
            limit = self.max_episode_timesteps
            if limit is not None and actor.length >= limit:
                raise UsageError(
                    f"The episode of parallel={actor.index} is longer than max_episode_timesteps={limit}. "
                    "Call observe with terminal=2 at the limit, or reset() where the environments begin "
                    "anew, as after Agent.load."
                )
        several = batched and isinstance(states, list | tuple) and states
        self._declare_masks(states[0] if several else states)
        actors = [self.actors[actor.index] for actor in actors]
        observation = self._observation(states, len(actors), batched)
        try:
            for i, actor in enumerate(actors):
                actor.begin_row({name: np.array(x[i]) for name, x in observation.items()})
            for actor in actors:
                self.actors.collect(actor)
            self._learn()
            return self._act_recorded(actors, observation, batched)
        except BaseException:  # Ctrl-C, too: rows without an action would be in what is saved
            for actor in actors:
                actor.drop_open()
            raise

    def _actor(self, index: Any) -> Actor:
        if not isinstance(index, int | np.integer) or not 0 <= index < self.parallel_interactions:
            raise value_error(
                "parallel", f"an index below parallel_interactions={self.parallel_interactions}", index
            )
        return self.actors[int(index)]

    def _actors(self, parallel: Any) -> list[Actor]:
        try:
            actors = [self._actor(index) for index in parallel]
        except TypeError:  # not iterable
            actors = []
        if not actors or len({actor.index for actor in actors}) < len(actors):
            raise value_error("parallel", "an index, or a list of different ones", parallel)
        return actors

    def _observation(self, states: Any, count: int, batched: bool) -> dict[str, np.ndarray]:
        if not batched:
            observation = self.spaces.observe(states, ())
            return {name: np.asarray(x)[None] for name, x in observation.items()}
        if isinstance(states, list | tuple) and len(states) == count and isinstance(states[0], dict):
            each = [self.spaces.observe(s, ()) for s in states]
            return {name: np.stack([o[name] for o in each]) for name in each[0]}
        return self.spaces.observe(states, (count,))

    def _act_recorded(self, actors: list[Actor], observation: dict[str, np.ndarray], batched: bool) -> Any:
        carry = actors[0].rows[-1].carry
        if carry != ():
            carry = stack([actor.rows[-1].carry for actor in actors])
        first = np.zeros(len(actors), bool)  # a row's carry is the start's where an episode begins
        action = self._engine.act(observation, carry, first, self._noise(actors))
        leaves, structure = jax.tree.flatten(action)
        leaves = [np.asarray(x) for x in leaves]
        for i, actor in enumerate(actors):
            one = jax.tree.unflatten(structure, [x[i] for x in leaves])
            actor.fill_row(action=one.action, extras=one.extras)
            actor.carry = one.carry
            actor.row += 1
            actor.first, actor.acted = False, True
            actor.length += 1
        return self._emitted(jax.tree.unflatten(structure, leaves).action if batched else one.action)

    def _noise(self, actors: list[Actor]) -> Tree:
        """Return actors' randomness `[n, ...]` at their rows; those that are in step share one call."""
        noise, rows = self._engine.noise, {actor.row for actor in actors}
        if len(rows) > 1:
            return stack([jax.tree.map(lambda x, a=a: x[a.index], noise(a.row)) for a in actors])
        shared, indices = noise(rows.pop()), [actor.index for actor in actors]
        if indices == list(range(self.parallel_interactions)):
            return shared
        return jax.tree.map(lambda x: x[indices], shared)

    def _emitted(self, action: dict[str, np.ndarray]) -> Any:
        clipped = self.spaces.actions.clip(action)
        return self.spaces.actions.unflatten(
            {name: x.astype(np.int64) if x.dtype.kind == "i" else x for name, x in clipped.items()}
        )

    def _act_independently(self, states: Any, internals: Any, deterministic: bool) -> Any:
        self._declare_masks(states)
        observation = self.spaces.observe(states, None)
        engine, explore = self._engine, not deterministic
        action, after = act_independently(
            self.learner, engine.act, engine.train.key, self._draws, observation, internals, explore=explore
        )
        self._draws += explore
        emitted = self._emitted(action)
        return emitted if internals is None else (emitted, after)

    def initial_internals(self, batch: int | None = None) -> Tree:
        """Return the recurrent state at the start of an episode; empty for a feed-forward agent.

        With `batch` it is for so many states in one call, with a leading axis.
        """
        return self.learner.start_carry(batch)

    # Observing

    def observe(
        self,
        reward: Any = 0.0,
        terminal: Any = False,
        parallel: Any = 0,
        next_states: Any = None,
    ) -> int:
        """Report the reward that followed an actor's last action, and whether its episode ended.

        Args:
            reward: the reward; a list for a batched call.
            terminal: False or 0: the episode goes on; True or 1: it ended; 2: it was aborted by a time limit,
                so that the value of what would have followed counts.
            parallel: index of the actor, or a list of such.
            next_states: the state after the episode's last action. Without it the value at a time limit is
                taken at the last state that was acted on, which is one step old. Ignored while the episode
                goes on.

        Returns:
            Updates made since the last call of `observe`.

        Raises:
            SpaceError: a reward that is not finite, or a terminal other than 0, 1, 2.
            UsageError: the actor did not act.
        """
        if isinstance(parallel, int | np.integer):
            outcomes = [self._outcome(self._actor(parallel), reward, terminal, next_states)]
        else:
            outcomes = self._outcomes(self._actors(parallel), reward, terminal, next_states)
        for outcome in outcomes:  # all of them were checked: what is refused changes nothing
            self._callbacks.observed(*outcome)
            self._complete(*outcome)
        self._learn()
        updates = self.updates - self._reported
        self._reported += updates
        self._callbacks.save_if_due()  # between calls only: inside of them rows are incomplete
        return updates

    def _outcomes(
        self, actors: list[Actor], reward: Any, terminal: Any, next_states: Any
    ) -> list[StepOutcome]:
        for name, value in (("reward", reward), ("terminal", terminal)):
            if np.shape(value) not in ((), (len(actors),)):
                raise SpaceError(
                    f"{name} must be one number, or one for each of {len(actors)} actors. Received: "
                    f"{name}={value!r}."
                )
        rewards, terminals = np.broadcast_to(reward, len(actors)), np.broadcast_to(terminal, len(actors))
        outcomes = []
        for i, actor in enumerate(actors):
            last = None
            if next_states is not None and terminals[i]:
                try:
                    last = take(next_states, i)
                except (IndexError, KeyError, TypeError):
                    raise SpaceError(
                        f"next_states must hold a state for each of {len(actors)} actors. Received none for "
                        f"parallel={actor.index}."
                    ) from None
            outcomes.append(self._outcome(actor, rewards[i], terminals[i], last))
        return outcomes

    def _outcome(self, actor: Actor, reward: Any, terminal: Any, next_states: Any) -> StepOutcome:
        if not actor.acted:
            raise UsageError(f"observe was called without act for parallel={actor.index}. Call act first.")
        try:
            reward = float(reward)
        except (TypeError, ValueError):
            listed = isinstance(reward, list | tuple | np.ndarray)
            several = " Those of several actors need parallel=[0, 1, ...]." if listed else ""
            raise SpaceError(f"reward must be a number. Received: reward={reward!r}.{several}") from None
        if fault := reward_error(reward):
            raise SpaceError(f"reward must be {fault}. Received: reward={reward}.")
        try:
            known = terminal in (0, 1, 2)
        except ValueError:  # an array
            known = False
        if not known:
            raise SpaceError(
                f"terminal must be 0, 1 or 2 (aborted by a time limit). Received: terminal={terminal!r}."
            )
        ended = next_states is not None and terminal
        last = self.spaces.observe(next_states, (), over=True) if ended else None
        return StepOutcome(actor, reward, int(terminal), last)

    def _complete(
        self, actor: Actor, reward: float, terminal: int, last: dict[str, np.ndarray] | None
    ) -> None:
        """Complete an actor's row; `last` is the observation after an episode's last action."""
        actor.fill_row(reward=reward, terminated=terminal == 1, truncated=terminal == 2)
        actor.acted = False
        if terminal:
            last = actor.rows[-1].observation if last is None else last
            actor.end_episode({name: np.array(x) for name, x in last.items()})
            self.actors.collect(actor)

    @property
    def _may_learn(self) -> bool:
        return self._limit is None or self.updates < self._limit

    def _learn(self) -> None:
        blocks = self.actors.blocks()
        while self._may_learn and (complete := next(blocks, None)) is not None:
            block, owners = complete
            if owners is None:
                self._engine.update(block)
            else:  # actors out of step: one has several segments
                self._engine.update_segments(block, owners)
            self._last_block = block
            self._callbacks.updated()
            self._check()

    def _check(self) -> None:
        if self._debug and self._engine.skipped():
            metrics = ", ".join(f"{name} {value:g}" for name, value in self._engine.metrics().items())
            raise NumericalError(
                f"Update {self.updates} was left out: its gradients are not finite. Look for rewards or "
                f"states that are very large, or a learning rate that is. {metrics}."
            )

    def reset(self, parallel: Any = None, next_states: Any = None) -> None:
        """Cut unfinished episodes as a time limit would: their experience so far is kept.

        An action that no call of `observe` followed is left out, as its reward is unknown: the episode is cut
        at the state that it was chosen for, whatever `next_states` says. So is an episode whose call of `act`
        was interrupted while the agent learnt.

        Args:
            parallel: index of the actor whose episode is cut, or a list of such; None: all of them.
            next_states: the state (with a list as `parallel`, a list of states) after each episode's last
                action. Without it the value at the cut is taken at the last state that was acted on. It needs
                `parallel`.

        Raises:
            UsageError: `next_states` without `parallel`.
            SpecError: there is no such actor.
            SpaceError: a state does not fit.
        """
        if parallel is None:
            if next_states is not None:
                raise UsageError("next_states belong to actors. Give their indices as parallel.")
            actors = list(self.actors)
        else:
            single = isinstance(parallel, int | np.integer)
            actors = self._actors([parallel] if single else parallel)
            if next_states is not None and single:
                next_states = [next_states]
        observations = [
            None if next_states is None else self.spaces.observe(take(next_states, i), (), over=True)
            for i in range(len(actors))
        ]
        self._callbacks.forget([actor.index for actor in actors])
        for actor, last in zip(actors, observations, strict=True):
            if actor.acted:
                actor.drop_unanswered()
            elif actor.interrupted:
                actor.end_here()
            elif not actor.first and actor.rows and actor.rows[-1].valid:
                self._complete(actor, actor.rows[-1].reward, 2, last)
        self._callbacks.recount()
        self._learn()

    @contextlib.contextmanager
    def hold(self, updates: int = 0) -> Iterator[None]:
        """Record without learning: updates that come due inside are made at the first call after it.

        So many `updates` may be made inside all the same.
        """
        before, limit = self._limit, self.updates + updates
        self._limit = limit if before is None else min(before, limit)
        try:
            yield
        finally:
            self._limit = before

    # Another driver

    def detach_state(self, n: int) -> DetachedState | None:
        """Return what another driver of `n` actors needs to continue, or None if something would be lost.

        Something would be while experience waits for an update, while a recorder, saver or summarizer is on,
        while updates are held back, or if a device, a precision or `debug` was chosen, which other drivers do
        not support. The agent must not be used until `attach_state`.
        """
        chosen = (self._device, self._precision, self._limit) != (None, None, None)
        if chosen or self._debug or self._callbacks.are_on or n != self.parallel_interactions:
            return None
        return DetachedState(self._engine.train, self.actors.last) if self.actors.idle else None

    def attach_state(self, train: TrainState, last: dict[str, np.ndarray]) -> None:
        """Continue with a driver's training state; its episodes are cut at these observations `[N, ...]`."""
        self._engine.put(train)
        self._start()
        self.actors.end_at(last, self.learner.block_shape(1))
        self._reported = self.updates
        self._last_block = None

    def close(self) -> None:
        """Write what is left, and release the compiled functions and arrays; further calls are errors."""
        if self.engine is None:
            return
        self._callbacks.close()
        self.engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
