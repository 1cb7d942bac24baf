"""The agent that a program holds: act, observe, save, load."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from operant import checkpoint, experience, runtime, saving
from operant.actors import Actor, Actors, stack
from operant.agents import AGENTS, DEFAULT
from operant.agents.learner import Learner
from operant.agents.making import Definition, define
from operant.engine import Engine
from operant.errors import CheckpointError, SpaceError, SpecError, UsageError, value_error
from operant.saving import Format
from operant.spaces import Spaces
from operant.spec import plain
from operant.traces import Trace
from operant.types import Block, Tree
from operant.writers import Writers

ROUND_TRIP = Literal["timesteps", "episodes", "updates"]


class Told(NamedTuple):
    """What `observe` was told of one actor, checked."""

    actor: Actor
    reward: float
    terminal: int
    last: dict[str, np.ndarray] | None
    """Observation after the episode's last action, if it was given."""


class Agent:
    """An agent in the user's program.

    Made by `Agent.create` or `Agent.load`. For each of its actors, `act` and `observe` alternate:

        agent = Agent.create(agent="ppo", environment=environment)
        states = environment.reset()
        actions = agent.act(states=states)
        states, terminal, reward = environment.execute(actions=actions)
        agent.observe(reward=reward, terminal=terminal)

    Learning happens inside `act`, as soon as the observation that follows the last row of a block is known.
    """

    def __init__(
        self,
        definition: Definition,
        spaces: Spaces,
        *,
        parallel_interactions: int = 1,
        max_episode_timesteps: int | None = None,
        seed: int = 0,
    ) -> None:
        self.definition = definition
        self.spaces = spaces
        self.parallel_interactions = parallel_interactions
        self.max_episode_timesteps = max_episode_timesteps
        self.seed = seed
        self._writers = Writers()
        shapes = [leaf.shape for leaf in spaces.states.components.values()]
        runtime.start(shapes, product=definition.product(parallel_interactions))
        self._build()

    def _build(self) -> None:
        definition, n = self.definition, self.parallel_interactions
        self.learner = Learner(definition.cls.create(definition.config, self.spaces, n))
        self.engine: Engine | None = Engine(self.learner, jax.random.key(self.seed), n)
        self._reported = 0
        self._last_block: Block | None = None
        self._draws = 0
        self._held = False
        self._start()

    def _declare_masks(self, states: Any) -> None:
        """Take masks that the specification did not mention from the first states that bring them."""
        if not isinstance(states, Mapping):
            return
        known = self.spaces.actions.components
        brought = [key[: -len("_mask")] for key in states if isinstance(key, str) and key.endswith("_mask")]
        new = [name for name in brought if name in known and name not in self.spaces.masks]
        if not new:
            return
        if any(actor.rows or actor.row for actor in self.actors):
            raise UsageError(
                f"A mask for {new[0]!r} came after the agent had begun. Declare it in the states' specification: "
                f"{{'{new[0]}_mask': dict(type='bool', shape=...)}}, or give it from the first act on."
            )
        self.spaces = Spaces.read(self.spaces.states, self.spaces.actions, masks=(*self.spaces.masks, *new))
        self._build()
        self._writers.spaces_changed(self.spaces)

    def _start(self) -> None:
        carry = jax.device_get(self.learner.algorithm.initial_carry(1))
        carry = jax.tree.map(lambda x: x[0], carry)
        self.actors = Actors(
            self.parallel_interactions, self.learner.rows, carry, self._engine.counter("rows")
        )

    @property
    def _engine(self) -> Engine:
        if self.engine is None:
            raise UsageError("The agent is closed. Create or load another one.")
        return self.engine

    @staticmethod
    def create(
        agent: Any = None,
        environment: Any = None,
        *,
        states: Any = None,
        actions: Any = None,
        max_episode_timesteps: int | None = None,
        parallel_interactions: int = 1,
        seed: int | None = None,
        config: dict[str, Any] | None = None,
        recorder: Any = None,
        saver: Any = None,
        summarizer: Any = None,
        **options: Any,
    ) -> Agent:
        """Create an agent.

        Args:
            agent: its specification: a name (`'ppo'`), a dict with `type`, a JSON file, or an algorithm class. Default: the
                modular agent, whose parts the options choose.
            environment: an `Environment`, from which states, actions and the time limit are taken.
            states: instead, the specification of states: `dict(type='float', shape=(4,))`, or a nested dict of such.
                `'<action>_mask'` entries declare action masks.
            actions: the specification of actions: `dict(type='int', num_values=3)`, or a nested dict of such.
            max_episode_timesteps: longest episode; more steps are an error.
            parallel_interactions: how many actors act in turn.
            seed: root of all randomness (default 0).
            config: settings that are not hyperparameters: `seed`.
            recorder: a folder, or `dict(directory=..., frequency=1, start=0, max_traces=None)`: write finished episodes to
                trace files there, for `pretrain`.
            saver: a folder, or `dict(directory=..., filename='agent', frequency=10, unit='updates', max_checkpoints=10,
                load=False)`: write checkpoints there, every so many updates (or timesteps, episodes, seconds) and on `close`;
                with `load`, continue from the newest.
            summarizer: a folder, or `dict(directory=..., labels='all', frequency=100, custom={}, ...)`: write summaries for
                TensorBoard; see `operant.summaries`.
            options: hyperparameters of the algorithm by name.

        Raises:
            SpecError: an unknown agent, option or space specification; the message says the close match.
            SpaceError: the algorithm cannot serve the spaces.
        """
        settings = dict(config or {})
        if "seed" in settings:
            if seed is not None:
                raise SpecError("seed is given twice, as an argument and in config.")
            seed = settings.pop("seed")
        if settings:
            raise SpecError(f"config takes no {next(iter(settings))!r}. Known: seed.")
        if environment is not None:
            if states is not None or actions is not None:
                raise SpecError("Give either environment, or states and actions, not both.")
            states, actions = environment.states(), environment.actions()
            limit = environment.max_episode_timesteps()
            if max_episode_timesteps is None:
                max_episode_timesteps = limit
        elif states is None or actions is None:
            raise SpecError("Give environment, or both states and actions.")
        _count(parallel_interactions)
        seed = 0 if seed is None else seed
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
            raise value_error("seed", "a whole number from 0 to 2^32 - 1", seed)
        definition = define(DEFAULT if agent is None else agent, **options).limited(max_episode_timesteps)
        spaces = Spaces.read(states, actions)
        writers = Writers(recorder, saver, summarizer)
        made = Agent(
            definition,
            spaces,
            parallel_interactions=parallel_interactions,
            max_episode_timesteps=max_episode_timesteps,
            seed=seed,
        )
        if writers.saving is not None and writers.saving.load:
            made._resume(Agent._found(Path(writers.saving.directory), None))
        made._write_by(writers)
        return made

    def _write_by(self, writers: Writers) -> None:
        self._writers = writers
        writers.begin(self, self._save_checkpoint)

    # Counters

    @property
    def timesteps(self) -> int:
        """Environment steps that the agent acted in."""
        return self._engine.counter("timesteps") + sum(row.valid for row in self.actors.waiting)

    @property
    def episodes(self) -> int:
        """Episodes that ended."""
        ended = sum(row.terminated or row.truncated for row in self.actors.waiting)
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
    ) -> Any:
        """Choose actions.

        Args:
            states: one state in the structure of the specification, with `'<action>_mask'` entries where actions are
                masked; with a list as `parallel`, one more leading axis (or a list of states).
            internals: recurrent state, for independent calls of a recurrent agent: what `initial_internals` or the call
                before gave.
            parallel: index of the actor, or a list of such for a batched call.
            independent: act without recording or counting; `observe` must not follow.
            deterministic: independent calls take the best action; False draws as in training.

        Returns:
            Actions in the structure of the specification; `(actions, internals)` if `internals` were given.

        Raises:
            SpaceError: the states do not fit the specification.
            UsageError: the actor's last action was not followed by `observe`.
        """
        if independent:
            return self._act_independently(states, internals, deterministic)
        if internals is not None:
            raise UsageError("internals are kept by the agent. Give them with independent=True only.")
        batched = not isinstance(parallel, int | np.integer)
        actors = self._actors(parallel if batched else [parallel])
        for actor in actors:
            if actor.acted:
                raise UsageError(
                    f"act was called twice for parallel={actor.index}. Call observe after each act."
                )
            self._check_length(actor)
        self._declare_masks(states[0] if batched and isinstance(states, list | tuple) else states)
        actors = [self.actors[actor.index] for actor in actors]
        observation = self._observation(states, len(actors), batched)
        for i, actor in enumerate(actors):
            actor.begin_row({name: np.array(x[i]) for name, x in observation.items()})
        for actor in actors:
            self.actors.collect(actor)
        self._learn()
        return self._act_recorded(actors, observation, batched)

    def _check_length(self, actor: Actor) -> None:
        limit = self.max_episode_timesteps
        if limit is not None and actor.length >= limit:
            raise UsageError(
                f"The episode of parallel={actor.index} is longer than max_episode_timesteps={limit}. "
                "Call observe with terminal=2 at the limit."
            )

    def _actor(self, index: Any) -> Actor:
        if not isinstance(index, int | np.integer) or not 0 <= index < self.parallel_interactions:
            raise value_error(
                "parallel", f"an index below parallel_interactions={self.parallel_interactions}", index
            )
        return self.actors[int(index)]

    def _actors(self, parallel: Any) -> list[Actor]:
        actors = [self._actor(index) for index in parallel]
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
        engine = self._engine
        noise = [jax.tree.map(lambda x, a=a: x[a.index], engine.noise(a.row)) for a in actors]
        carry = [a.rows[-1].carry for a in actors]
        drawn, carried = stack(noise), stack(carry)
        first = np.zeros(len(actors), bool)  # a row's carry is the start's where an episode begins
        action = jax.tree.map(np.asarray, engine.act(observation, carried, first, drawn))
        for i, actor in enumerate(actors):
            own = jax.tree.map(lambda x, i=i: x[i], action)
            actor.fill_row(action=own.action, extras=own.extras)
            actor.carry = own.carry
            actor.row += 1
            actor.first, actor.acted = False, True
            actor.length += 1
        self._writers.acted(actors, action.action)
        return self._emitted(action.action, batched)

    def _emitted(self, action: dict[str, np.ndarray], batched: bool) -> Any:
        if not batched:
            action = {name: x[0] for name, x in action.items()}
        return self.spaces.actions.unflatten(self.spaces.actions.clip(action))

    def _act_independently(self, states: Any, internals: Any, deterministic: bool) -> Any:
        self._declare_masks(states)
        observation = self.spaces.observe(states, None)
        batch = self.spaces.states.batch_shape(observation)
        if len(batch) > 1:
            raise SpaceError(f"states may have one leading axis. Received: {len(batch)} leading axes.")
        if not batch:
            observation = {name: np.asarray(x)[None] for name, x in observation.items()}
        n = batch[0] if batch else 1
        start = jax.device_get(self.learner.algorithm.initial_carry(n))
        if jax.tree.leaves(start) and internals is None:
            raise UsageError(
                "A recurrent agent needs internals in independent calls. Start with initial_internals()."
            )
        carry = (
            start
            if internals is None
            else jax.tree.map(lambda x: np.reshape(x, (n, *np.shape(x)[len(batch) :])), internals)
        )
        self._draws += 1
        key = jax.random.fold_in(jax.random.key(self.seed ^ 0x5EED), self._draws)
        noise = self.learner.algorithm.noise(key, n)
        action = self._engine.act(observation, carry, np.zeros(n, bool), noise, explore=not deterministic)
        action = jax.tree.map(np.asarray, action)
        emitted = self._emitted(action.action, bool(batch))
        if internals is None:
            return emitted
        return emitted, action.carry if batch else jax.tree.map(lambda x: x[0], action.carry)

    def initial_internals(self) -> Tree:
        """Return the recurrent state at the start of an episode; empty for a feed-forward agent."""
        carry = jax.device_get(self.learner.algorithm.initial_carry(1))
        return jax.tree.map(lambda x: x[0], carry)

    # Observing

    def observe(
        self,
        reward: Any = 0.0,
        terminal: Any = False,
        parallel: Any = 0,
        next_states: Any = None,
    ) -> int:
        """Tell what the last action of an actor brought.

        Args:
            reward: the reward; a list for a batched call.
            terminal: False or 0: the episode goes on; True or 1: it ended; 2: it was aborted by a time limit, so that the
                value of what would have followed counts.
            parallel: index of the actor, or a list of such.
            next_states: the state after the episode's last action. Without it the value at a time limit is taken at the
                last state that was acted on, which is one step old. Ignored while the episode goes on.

        Returns:
            Updates made since the last call of `observe`.

        Raises:
            SpaceError: a reward that is not finite, or a terminal other than 0, 1, 2.
            UsageError: the actor did not act.
        """
        if isinstance(parallel, int | np.integer):
            told = [self._told(self._actor(parallel), reward, terminal, next_states)]
        else:
            told = self._told_batch(parallel, reward, terminal, next_states)
        for each in told:  # all of them were checked: what is refused changes nothing
            self._observe(*each)
        self._learn()
        made = self.updates - self._reported
        self._reported += made
        self._writers.look()  # between calls only: inside of them rows are incomplete
        return made

    def _told_batch(self, parallel: Any, reward: Any, terminal: Any, next_states: Any) -> list[Told]:
        actors = self._actors(parallel)
        rewards, terminals = np.broadcast_to(reward, len(actors)), np.broadcast_to(terminal, len(actors))
        told = []
        for i, actor in enumerate(actors):
            last = None
            if next_states is not None and terminals[i]:
                last = next_states[i] if isinstance(next_states, list | tuple) else _take(next_states, i)
            told.append(self._told(actor, rewards[i], terminals[i], last))
        return told

    def _told(self, actor: Actor, reward: Any, terminal: Any, next_states: Any) -> Told:
        """Check what an actor's last action brought."""
        if not actor.acted:
            raise UsageError(f"observe was called without act for parallel={actor.index}. Call act first.")
        reward = float(reward)
        if not np.isfinite(reward):
            raise SpaceError(f"reward must be finite. Received: reward={reward}.")
        if terminal not in (0, 1, 2):
            raise SpaceError(
                f"terminal must be 0, 1 or 2 (aborted by a time limit). Received: terminal={terminal!r}."
            )
        last = None if next_states is None or not terminal else self.spaces.observe(next_states, ())
        return Told(actor, reward, int(terminal), last)

    def _observe(
        self, actor: Actor, reward: float, terminal: int, last: dict[str, np.ndarray] | None
    ) -> None:
        """Complete an actor's row; `last` is the observation after an episode's last action."""
        actor.fill_row(reward=reward, terminated=terminal == 1, truncated=terminal == 2)
        actor.acted = False
        self._writers.observed(actor.index, reward, terminal, last)
        if terminal:
            last = actor.rows[-1].observation if last is None else last
            actor.end_episode({name: np.array(x) for name, x in last.items()})
            self.actors.collect(actor)

    def _learn(self) -> None:
        """Update for every block that is complete."""
        for block, columns in () if self._held else self.actors.blocks():
            if columns is None:
                self._engine.absorb(block)
            else:  # actors out of step: some column is there twice
                self._engine.absorb_columns(block, columns)
            self._last_block = block
            self._writers.updated()

    def reset(self, parallel: Any = None, next_states: Any = None) -> None:
        """Forget unfinished episodes: what they brought so far is kept, as if cut by a time limit.

        Args:
            parallel: index of the actor whose episode is cut, or a list of such; None: all of them.
            next_states: the state (with a list as `parallel`, a list of states) after each episode's last action.
                Without it the value at the cut is taken at the last state that was acted on. It needs `parallel`.
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
        given = [None if next_states is None else _take(next_states, i) for i in range(len(actors))]
        observations = [None if states is None else self.spaces.observe(states, ()) for states in given]
        self._writers.forget([actor.index for actor in actors])
        self._writers.pause(True)
        for actor, last in zip(actors, observations, strict=True):
            if actor.acted:
                self._observe(actor, 0.0, 2, last)
            elif not actor.first and actor.rows and actor.rows[-1].valid:
                actor.fill_row(truncated=True)
                last = actor.rows[-1].observation if last is None else last
                actor.end_episode({name: np.array(x) for name, x in last.items()})
                self.actors.collect(actor)
        self._learn()
        self._writers.pause(False)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Record without learning: no update is made inside; what came due is learnt from at the first call after."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before

    def summarize(self, summary: str, value: Any, step: int | None = None) -> None:
        """Write one of the `custom` summaries.

        Args:
            summary: its name.
            value: what its type takes: a number, an array of numbers, an image `[height, width, channels]` (or several), a sound
                `[samples]`, a text.
            step: where it stands (default: the timesteps so far).

        Raises:
            UsageError: the agent has no summarizer.
            SpecError: the name was not declared, or the value does not suit its type.
        """
        if not self._writers.summarize(summary, value, step):
            raise UsageError(
                "summarize needs a summarizer: Agent.create(..., summarizer=dict(directory=..., custom=...))."
            )

    # Experience from elsewhere

    def experience(
        self,
        states: Any,
        actions: Any,
        terminal: Any,
        reward: Any,
        internals: Any = None,
        next_states: Any = None,
    ) -> None:
        """Take experience of one or several episodes in; `update` learns from it.

        Log-probabilities and recurrent states that belong to the actions are those of the networks as they are now.

        Args:
            states: in the structure of the specification with a leading axis `[R]`, masks included, or a list of states.
            actions: likewise. They must obey the masks.
            terminal: `[R]`: False or 0; True or 1 at the end of an episode; 2 where it was cut. A last entry of 0 (part of
                an episode) counts as cut there.
            reward: `[R]`.
            internals: recurrent states before each step, leaves `[R, ...]`, as independent calls of `act` took and gave them.
            next_states: states `[E, ...]` after the last action of each of the episodes; without them the value of what
                follows a cut episode is taken at its last state.

        Raises:
            SpaceError: something does not fit the specification, or the lengths differ.
            UsageError: all actors are in the middle of an episode.
        """
        if not self.actors.waiting:
            self._declare_masks(states[0] if isinstance(states, list | tuple) else states)
        trace = Trace.read(self.spaces, states, actions, terminal, reward, next_states)
        actor = experience.idle(self.actors)
        experience.bring(self._engine, actor, trace, internals)
        self.actors.collect(actor)

    def update(self) -> int:
        """Learn from all experience that waits, in blocks of the algorithm's size; the last may be short.

        If none waits, update once more: from the last block, or from what the replay memory holds.

        Returns:
            Updates made.

        Raises:
            UsageError: there never was any experience.
        """
        before = self.updates
        self.actors.flush()
        self._learn()
        if self.updates == before:
            if self._last_block is None:
                raise UsageError(
                    "There is no experience to learn from. Call experience, or act and observe, first."
                )
            self._engine.learn_again(self._last_block)
        self._reported = self.updates
        self._writers.look()
        return self.updates - before

    def pretrain(
        self,
        directory: str | Path,
        num_iterations: int,
        num_traces: int | None = 1,
        num_updates: int = 1,
        extension: str = ".npz",
        *,
        imitate: bool | None = None,
        lr: float = 1e-3,
        batch_size: int = 256,
    ) -> None:
        """Learn from recorded traces.

        By imitation where the algorithm can: policies raise the probability of what was done and values fit the returns, Q-learners
        learn by a margin, deterministic actors by squared distance. Else by `experience` and `update`.

        Args:
            directory: folder of trace files, as `recorder` writes them.
            num_iterations: how often traces are drawn.
            num_traces: files in each draw; None: all of them.
            num_updates: passes over them (imitation), or calls of `update`.
            extension: how the files' names end.
            imitate: False: by `experience` and `update`; None: as the algorithm can.
            lr: imitation's learning rate.
            batch_size: imitation's steps in a gradient step, about.

        Raises:
            SpecError: there are no traces, or they do not fit the agent.
            UsageError: `imitate` is asked of an algorithm that cannot.
        """
        for name, value in (
            ("num_iterations", num_iterations),
            ("num_updates", num_updates),
            ("batch_size", batch_size),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise value_error(name, "a whole number of at least 1", value)
        able = hasattr(self.learner.algorithm, "imitation")
        if imitate and not able:
            raise UsageError(
                f"The agent {self.definition.name!r} cannot imitate. Leave imitate out: it learns by update()."
            )
        order = np.random.default_rng(self.seed)
        cloning = None
        if able and imitate is not False:
            cloning = experience.Cloning(self._engine, lr, batch_size, self.seed)
        for _ in range(num_iterations):
            trace = experience.choose(directory, extension, self.spaces, num_traces, order)
            if cloning is not None:
                cloning.learn(trace, num_updates)
                continue
            actor = experience.idle(self.actors)
            experience.bring(self._engine, actor, trace)
            self.actors.collect(actor)
            for _ in range(num_updates):
                self.update()
        if cloning is not None:
            cloning.finish()

    # Files

    def get_architecture(self) -> str:
        """Return the networks' layers, shapes and numbers of parameters, as text."""
        return "\n".join(
            f"{name}\n{model.summary()}" for name, model in self.learner.algorithm.models.items()
        )

    def get_specification(self) -> dict[str, Any]:
        """Return the agent's definition as JSON data."""
        return {
            "agent": self.definition.to_dict(),
            "spaces": self.spaces.to_spec(),
            "parallel_interactions": self.parallel_interactions,
            "max_episode_timesteps": self.max_episode_timesteps,
            "seed": self.seed,
        }

    def save(
        self,
        directory: str | Path,
        filename: str = "agent",
        format: Format = "checkpoint",
        append: ROUND_TRIP | None = None,
    ) -> str:
        """Write the agent to a file.

        Args:
            directory: where; made if it does not exist.
            filename: name of the file in it, without suffix.
            format: 'checkpoint': everything that it needs to go on exactly (parameters, optimizer, memory, unfinished rows,
                keys). 'numpy', 'hdf5', 'safetensors': weights and counters, as `operant.saving` describes, and the specification
                as JSON beside them.
            append: add this counter's value to the name: 'timesteps', 'episodes' or 'updates'.

        Returns:
            The path written.

        Raises:
            SpecError: an unknown format or counter.
        """
        saving.check_format(format)
        if append not in (None, *saving.COUNTERS):
            raise value_error("append", "one of 'timesteps', 'episodes', 'updates', or None", append)
        name = filename if append is None else f"{filename}-{getattr(self, append)}"
        if format == "checkpoint":
            return self._save_checkpoint(directory, name, None)
        arrays = saving.flatten(self.learner.algorithm.weights(self._engine.train.state))
        arrays |= {name: np.asarray(getattr(self, name), np.uint32) for name in saving.COUNTERS}
        return str(saving.write(directory, filename, name, format, arrays, self.get_specification()))

    def _save_checkpoint(self, directory: str | Path, name: str, keep: int | None) -> str:
        rows, shapes = self.actors.snapshot()
        tree = {"train": self._engine.train, **rows}
        header = {
            "specification": self.get_specification(),
            "interaction": {**shapes, "reported": self._reported},
        }
        return str(checkpoint.save(directory, tree, header, keep=keep, name=name))

    @staticmethod
    def load(
        directory: str | Path,
        filename: str | None = None,
        format: Format | None = None,
        environment: Any = None,
        agent: Any = None,
        parallel_interactions: int | None = None,
        recorder: Any = None,
        saver: Any = None,
        summarizer: Any = None,
    ) -> Agent:
        """Load an agent: a checkpoint or weights, the newest in a folder, or the newest checkpoint of a training run.

        Args:
            directory: a run's folder, a folder of checkpoints or weights, or one of these itself.
            filename: name in the folder (default: the newest).
            format: see `save`; default: a checkpoint if there is one, else weights of any format.
            environment: checked against the saved spaces, if given.
            agent: the algorithm's class, for one that is not operant's own: a file never says what to import.
            parallel_interactions: how many actors act, if others than when it was saved. Parameters, optimizer and
                counters are taken over then; unfinished episodes and a replay memory stay behind.
            recorder: as in `create`.
            saver: as in `create`; what it says of `load` does not count.
            summarizer: as in `create`.

        Raises:
            CheckpointError: there is none, or it cannot be used; the message says why.
        """
        if format is not None:
            saving.check_format(format)
        writers = Writers(recorder, saver, summarizer)
        path = Path(directory)
        if (path / "checkpoints").is_dir():
            path = path / "checkpoints"
        weights = saving.find(path, filename, format) if format != "checkpoint" else None
        if weights is not None and (format is not None or not Agent._has_checkpoint(path, filename)):
            header = {"specification": saving.header(weights)}
            loaded = Agent._loaded(weights, header, environment, agent, parallel_interactions)
            loaded._put_weights(saving.read(weights), weights)
        elif format in saving.FORMATS:
            raise CheckpointError(f"There are no weights (*{saving.FORMATS[format]}) in {str(directory)!r}.")
        else:
            path = Agent._found(path, filename)
            header = checkpoint.read_header(path)
            loaded = Agent._loaded(path, header, environment, agent, parallel_interactions)
            if loaded.parallel_interactions == header["specification"]["parallel_interactions"]:
                loaded._restore(path, header.get("interaction"))
            else:
                loaded._take_over(path)
        loaded._write_by(writers)
        return loaded

    @staticmethod
    def _has_checkpoint(path: Path, filename: str | None) -> bool:
        if filename is not None:
            return checkpoint.is_checkpoint(path / filename)
        return checkpoint.is_checkpoint(path) or (path.is_dir() and checkpoint.latest(path) is not None)

    @staticmethod
    def _found(path: Path, filename: str | None) -> Path:
        if filename is not None:
            return path / filename
        if checkpoint.is_checkpoint(path):
            return path
        found = checkpoint.latest(path)
        if found is None:
            raise CheckpointError(f"There is no checkpoint in {str(path)!r}.")
        return found

    def _put_weights(self, arrays: dict[str, np.ndarray], path: Path) -> None:
        """Take weights and counters of a file; an optimizer and a memory start anew."""
        algorithm, train = self.learner.algorithm, self._engine.train
        weights = saving.unflatten(arrays, algorithm.weights(train.state), path)
        counts = {name: jnp.asarray(arrays[name], jnp.uint32) for name in saving.COUNTERS if name in arrays}
        counters = train.counters._replace(**counts)
        self._engine.put(
            train._replace(state=algorithm.with_weights(train.state, weights), counters=counters)
        )
        self._start()
        self._reported = self.updates

    def _resume(self, path: Path) -> None:
        """Continue from a checkpoint of the same agent."""
        header = checkpoint.read_header(path)
        saved, own = header.get("specification"), self.get_specification()
        for name in ("spaces", "parallel_interactions"):
            if saved is None or saved.get(name) != plain(own[name]):
                raise CheckpointError(
                    f"The checkpoint {str(path)!r} does not fit the agent: its {name} differ. Saved: "
                    f"{None if saved is None else saved.get(name)}. The agent's: {own[name]}."
                )
        self._restore(path, header.get("interaction"))

    @staticmethod
    def _loaded(
        path: Path, header: dict[str, Any], environment: Any, agent: Any, actors: int | None
    ) -> Agent:
        try:
            saved = header["specification"]
            spaces = Spaces.from_spec(saved["spaces"])
            options = dict(saved["agent"])
            name = options.pop("type")
        except KeyError as error:
            raise CheckpointError(
                f"The checkpoint {str(path)!r} does not hold an agent: no {error}."
            ) from None
        if agent is None and name not in AGENTS:
            raise CheckpointError(
                f"The checkpoint {str(path)!r} is of an algorithm {name!r} that is not operant's own. "
                "Give its class: Agent.load(..., agent=TheClass)."
            )
        definition = define(name if agent is None else agent, **options)
        if environment is not None:
            given = Spaces.read(environment.states(), environment.actions())
            if given != spaces:
                raise SpaceError(
                    f"The environment does not fit the saved agent. Saved: {spaces.to_spec()}. Given: {given.to_spec()}."
                )
        agent = Agent(
            definition,
            spaces,
            parallel_interactions=saved["parallel_interactions"] if actors is None else _count(actors),
            max_episode_timesteps=saved["max_episode_timesteps"],
            seed=saved["seed"],
        )
        return agent

    def _take_over(self, path: Path) -> None:
        """Restore what was learnt from a checkpoint of another number of actors."""
        fresh = self._engine.train
        if jax.tree.leaves(fresh.memory):
            warnings.warn(
                f"The replay memory starts empty: that of {str(path)!r} belongs to another number of actors.",
                RuntimeWarning,
                stacklevel=3,
            )
        fields = [name for name in fresh._fields if name != "memory"]
        parts = {name: checkpoint.load_part(path, "train", getattr(fresh, name), name) for name in fields}
        self._engine.put(fresh._replace(**parts))
        self._start()

    def _restore(self, path: Path, interaction: dict[str, Any] | None) -> None:
        if interaction is None:  # a training run's: environments are not part of it
            self._engine.put(checkpoint.load_part(path, "train", self._engine.train))
            self._start()
            return
        like = self.actors.snapshot_like(self.learner.block_shape(1), interaction)
        tree, _ = checkpoint.load(path, {"train": self._engine.train, **like})
        self._engine.put(tree["train"])
        self.actors.restore(tree, interaction)
        self._reported = interaction["reported"]

    def close(self) -> None:
        """Write what is still to be written, and release the compiled functions and arrays; further calls are errors."""
        if self.engine is None:
            return
        self._writers.close()
        self.engine = None


def _count(actors: Any) -> int:
    if isinstance(actors, bool) or not isinstance(actors, int) or actors < 1:
        raise value_error("parallel_interactions", "a whole number of at least 1", actors)
    return actors


def _take(states: Any, i: int) -> Any:
    return {k: _take(v, i) for k, v in states.items()} if isinstance(states, dict) else states[i]
