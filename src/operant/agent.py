"""The agent that a program holds: act, observe, save, load."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from operant import checkpoint, runtime
from operant.agents import AGENTS
from operant.agents.learner import Learner
from operant.agents.making import Definition, define
from operant.engine import Engine
from operant.errors import SpaceError, SpecError, UsageError, value_error
from operant.spaces import Spaces
from operant.types import Block, Tree

ROUND_TRIP = Literal["timesteps", "episodes", "updates"]


class Row(NamedTuple):
    """One row of one actor, NumPy leaves without leading axes."""

    observation: dict[str, np.ndarray]
    action: Tree
    reward: Any
    terminated: Any
    truncated: Any
    valid: Any
    extras: Tree
    carry: Tree
    """Recurrent state before the row."""


class Told(NamedTuple):
    """What `observe` was told of one actor, checked."""

    actor: Actor
    reward: float
    terminal: int
    last: dict[str, np.ndarray] | None
    """Observation after the episode's last action, if it was given."""


class Actor:
    """One actor's side of the interaction: its unfinished rows and where it stands."""

    def __init__(self, index: int, carry: Tree) -> None:
        self.index = index
        self.start_carry = carry
        self.carry = carry
        self.rows: list[Row] = []
        self.row = 0
        """Address of the next row's randomness."""
        self.first = True
        """Whether the next row begins an episode."""
        self.acted = False
        """Whether an action waits for its reward."""
        self.length = 0

    def begin_row(self, observation: dict[str, np.ndarray]) -> None:
        """Open a row: what it will hold beside the observation is not known yet."""
        carry = self.start_carry if self.first else self.carry
        self.rows.append(Row(observation, None, 0.0, False, False, True, None, carry))

    def fill_row(self, **fields: Any) -> None:
        """Complete the newest row."""
        self.rows[-1] = self.rows[-1]._replace(**fields)

    def end_episode(self, observation: dict[str, np.ndarray]) -> None:
        """Add the row of an episode's last observation."""
        last = self.rows[-1]
        zeros = jax.tree.map(np.zeros_like, (last.action, last.extras))
        self.rows.append(Row(observation, zeros[0], 0.0, False, False, False, zeros[1], last.carry))
        self.row += 1
        self.first, self.length = True, 0

    def column(self, rows: int) -> tuple[int, list[Row]] | None:
        """Take the oldest `rows` rows if the observation after them is known; it comes as one row more."""
        if len(self.rows) <= rows:
            return None
        taken, self.rows = self.rows[: rows + 1], self.rows[rows:]
        # The last row is there for its observation; what else it will hold is not known yet and does not count.
        taken[-1] = taken[-1]._replace(action=taken[0].action, extras=taken[0].extras)
        return self.index, taken


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
        runtime.start([leaf.shape for leaf in spaces.states.components.values()])
        self._build()

    def _build(self) -> None:
        definition, n = self.definition, self.parallel_interactions
        self.learner = Learner(definition.cls.create(definition.config, self.spaces, n))
        self.engine: Engine | None = Engine(self.learner, jax.random.key(self.seed), n)
        self._columns: list[tuple[int, list[Row]]] = []
        self._reported = 0
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

    def _start(self) -> None:
        carry = jax.device_get(self.learner.algorithm.initial_carry(1))
        carry = jax.tree.map(lambda x: x[0], carry)
        self.actors = [Actor(i, carry) for i in range(self.parallel_interactions)]
        for actor in self.actors:
            actor.row = self._engine.counter("rows")

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
        **options: Any,
    ) -> Agent:
        """Create an agent.

        Args:
            agent: its specification: a name (`'ppo'`), a dict with `type`, a JSON file, or an algorithm class.
            environment: an `Environment`, from which states, actions and the time limit are taken.
            states: instead, the specification of states: `dict(type='float', shape=(4,))`, or a nested dict of such.
                `'<action>_mask'` entries declare action masks.
            actions: the specification of actions: `dict(type='int', num_values=3)`, or a nested dict of such.
            max_episode_timesteps: longest episode; more steps are an error.
            parallel_interactions: how many actors act in turn.
            seed: root of all randomness (default 0).
            config: settings that are not hyperparameters: `seed`.
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
        if agent is None:
            known = ", ".join(AGENTS)
            raise SpecError(f"agent must be given: a name ({known}), a dict with 'type', or a JSON file.")
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
        definition = define(agent, **options)
        spaces = Spaces.read(states, actions)
        return Agent(
            definition,
            spaces,
            parallel_interactions=parallel_interactions,
            max_episode_timesteps=max_episode_timesteps,
            seed=seed,
        )

    # Counters

    @property
    def timesteps(self) -> int:
        """Environment steps that the agent acted in."""
        waiting = sum(row.valid for actor in self.actors for row in actor.rows)
        waiting += sum(row.valid for _, rows in self._columns for row in rows[:-1])
        return self._engine.counter("timesteps") + waiting

    @property
    def episodes(self) -> int:
        """Episodes that ended."""
        rows = [row for actor in self.actors for row in actor.rows]
        rows += [row for _, column in self._columns for row in column[:-1]]
        return self._engine.counter("episodes") + sum(row.terminated or row.truncated for row in rows)

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
            self._collect(actor)
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
        drawn, carried = _stack(noise), _stack(carry)
        first = np.zeros(len(actors), bool)  # a row's carry is the start's where an episode begins
        action = jax.tree.map(np.asarray, engine.act(observation, carried, first, drawn))
        for i, actor in enumerate(actors):
            own = jax.tree.map(lambda x, i=i: x[i], action)
            actor.fill_row(action=own.action, extras=own.extras)
            actor.carry = own.carry
            actor.row += 1
            actor.first, actor.acted = False, True
            actor.length += 1
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
        if terminal:
            last = actor.rows[-1].observation if last is None else last
            actor.end_episode({name: np.array(x) for name, x in last.items()})
            self._collect(actor)

    def _collect(self, actor: Actor) -> None:
        while (column := actor.column(self.learner.rows)) is not None:
            self._columns.append(column)

    def _learn(self) -> None:
        """Update for every set of columns that is complete."""
        n = self.parallel_interactions
        while len(self._columns) >= n and not self._held:
            taken, self._columns = self._columns[:n], self._columns[n:]
            taken.sort(key=lambda column: column[0])  # stable: an actor's older column stays first
            block = _block(taken)
            if [index for index, _ in taken] == list(range(n)):
                self._engine.absorb(block)
            else:  # actors out of step: some column is there twice
                self._engine.absorb_columns(block, [index for index, _ in taken])

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
            actors = self.actors
        else:
            single = isinstance(parallel, int | np.integer)
            actors = self._actors([parallel] if single else parallel)
            if next_states is not None and single:
                next_states = [next_states]
        given = [None if next_states is None else _take(next_states, i) for i in range(len(actors))]
        observations = [None if states is None else self.spaces.observe(states, ()) for states in given]
        for actor, last in zip(actors, observations, strict=True):
            if actor.acted:
                self._observe(actor, 0.0, 2, last)
            elif not actor.first and actor.rows and actor.rows[-1].valid:
                actor.fill_row(truncated=True)
                last = actor.rows[-1].observation if last is None else last
                actor.end_episode({name: np.array(x) for name, x in last.items()})
                self._collect(actor)
        self._learn()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Record without learning: no update is made inside; what came due is learnt from at the first call after."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before

    # Files

    def get_specification(self) -> dict[str, Any]:
        """Return the agent's definition as JSON data."""
        return {
            "agent": self.definition.to_dict(),
            "spaces": self.spaces.to_spec(),
            "parallel_interactions": self.parallel_interactions,
            "max_episode_timesteps": self.max_episode_timesteps,
            "seed": self.seed,
        }

    def save(self, directory: str | Path, filename: str = "agent", append: ROUND_TRIP | None = None) -> str:
        """Write everything that the agent needs to go on exactly: parameters, optimizer, memory, unfinished rows, keys.

        Args:
            directory: where; made if it does not exist.
            filename: name of the checkpoint in it.
            append: add this counter's value to the name.

        Returns:
            The path written.
        """
        name = filename if append is None else f"{filename}-{getattr(self, append)}"
        tree, shapes = self._snapshot()
        header = {"specification": self.get_specification(), "interaction": shapes}
        return str(checkpoint.save(directory, tree, header, name=name))

    def _snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state as a tree of arrays, and the number of rows in each of its parts."""
        parts: dict[str, list[Row]] = {f"actor-{a.index}": a.rows for a in self.actors}
        parts |= {f"column-{i}": rows for i, (_, rows) in enumerate(self._columns)}
        tree = {
            "train": self._engine.train,
            "rows": {name: _stack(_filled(rows)) for name, rows in parts.items() if rows},
            "carry": _stack([a.carry for a in self.actors]),
        }
        shapes = {
            "rows": {name: len(rows) for name, rows in parts.items() if rows},
            "columns": [index for index, _ in self._columns],
            "actors": [[a.row, a.first, a.length, a.acted] for a in self.actors],
            "reported": self._reported,
        }
        return tree, shapes

    @staticmethod
    def load(
        directory: str | Path,
        filename: str | None = None,
        environment: Any = None,
        agent: Any = None,
        parallel_interactions: int | None = None,
    ) -> Agent:
        """Load an agent: a checkpoint, the newest one in a folder, or the newest one of a training run.

        Args:
            directory: a run's folder, a folder of checkpoints, or a checkpoint.
            filename: name of the checkpoint in the folder (default: the newest).
            environment: checked against the saved spaces, if given.
            agent: the algorithm's class, for one that is not operant's own: a file never says what to import.
            parallel_interactions: how many actors act, if others than when it was saved. Parameters, optimizer and
                counters are taken over then; unfinished episodes and a replay memory stay behind.

        Raises:
            CheckpointError: there is none, or it cannot be used; the message says why.
        """
        path = Path(directory)
        if (path / "checkpoints").is_dir():
            path = path / "checkpoints"
        if filename is not None:
            path = path / filename
        elif not checkpoint.is_checkpoint(path):
            found = checkpoint.latest(path)
            if found is None:
                raise checkpoint.CheckpointError(f"There is no checkpoint in {str(directory)!r}.")
            path = found
        header = checkpoint.read_header(path)
        return Agent._loaded(path, header, environment, agent, parallel_interactions)

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
            raise checkpoint.CheckpointError(
                f"The checkpoint {str(path)!r} does not hold an agent: no {error}."
            ) from None
        if agent is None and name not in AGENTS:
            raise checkpoint.CheckpointError(
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
        if actors in (None, saved["parallel_interactions"]):
            agent._restore(path, header.get("interaction"))
        else:
            agent._take_over(path)
        return agent

    def _take_over(self, path: Path) -> None:
        """Restore what was learnt from a checkpoint of another number of actors."""
        fresh = self._engine.train
        if jax.tree.leaves(fresh.memory):
            warnings.warn(
                f"The replay memory starts empty: that of {str(path)!r} belongs to another number of actors.",
                RuntimeWarning,
                stacklevel=4,
            )
        fields = [name for name in fresh._fields if name != "memory"]
        parts = {name: checkpoint.load_part(path, "train", getattr(fresh, name), name) for name in fields}
        self._engine.put(fresh._replace(**parts))
        self._start()

    def _restore(self, path: Path, interaction: dict[str, Any] | None) -> None:
        like: dict[str, Any] = {"train": self._engine.train}
        if interaction is None:  # a training run's: environments are not part of it
            self._engine.put(checkpoint.load_part(path, "train", self._engine.train))
            self._start()
            return
        row = self._row_like()
        like["rows"] = {
            name: jax.tree.map(lambda x, count=count: np.zeros((count, *x.shape), x.dtype), row)
            for name, count in interaction["rows"].items()
        }
        like["carry"] = _stack([a.carry for a in self.actors])
        tree, _ = checkpoint.load(path, like)
        self._engine.put(tree["train"])
        rows = {name: _unstack(part, interaction["rows"][name]) for name, part in tree["rows"].items()}
        for i, actor in enumerate(self.actors):
            actor.row, actor.first, actor.length, actor.acted = interaction["actors"][i]
            actor.rows = rows.get(f"actor-{i}", [])
            actor.carry = jax.tree.map(lambda x, i=i: x[i], tree["carry"])
        self._columns = [(index, rows[f"column-{i}"]) for i, index in enumerate(interaction["columns"])]
        self._reported = interaction["reported"]

    def _row_like(self) -> Row:
        block = self.learner.block_shape(1)
        rows = jax.tree.map(lambda x: np.zeros(x.shape[2:], x.dtype), block._replace(carry=()))
        carry = self.actors[0].start_carry
        reward, flag = np.float32(0), np.bool_(False)
        return Row(rows.observation, rows.action, reward, flag, flag, flag, rows.extras, carry)

    def close(self) -> None:
        """Release the compiled functions and arrays; further calls are errors."""
        self.engine = None


def _count(actors: Any) -> int:
    if isinstance(actors, bool) or not isinstance(actors, int) or actors < 1:
        raise value_error("parallel_interactions", "a whole number of at least 1", actors)
    return actors


def _stack(trees: Sequence[Tree]) -> Tree:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _unstack(tree: Row, count: int) -> list[Row]:
    rows = [jax.tree.map(lambda x, i=i: np.asarray(x[i]), tree) for i in range(count)]
    return [
        r._replace(
            reward=float(r.reward),
            terminated=bool(r.terminated),
            truncated=bool(r.truncated),
            valid=bool(r.valid),
        )
        for r in rows
    ]


def _filled(rows: list[Row]) -> list[Row]:
    """Give scalars their storage types."""
    return [
        r._replace(
            reward=np.float32(r.reward),
            terminated=np.bool_(r.terminated),
            truncated=np.bool_(r.truncated),
            valid=np.bool_(r.valid),
        )
        for r in rows
    ]


def _take(states: Any, i: int) -> Any:
    return {k: _take(v, i) for k, v in states.items()} if isinstance(states, dict) else states[i]


def _block(columns: list[tuple[int, list[Row]]]) -> Block:
    """Stack columns of `T + 1` rows (the last one for its observation only) into a block `[T, N]`."""
    observation: dict[str, Any] = {}
    for name in columns[0][1][0].observation:
        observation[name] = np.stack([[row.observation[name] for row in rows] for _, rows in columns], axis=1)

    def leaves(get: Any) -> Tree:
        per_column = [_stack([get(row) for row in rows[:-1]]) for _, rows in columns]
        return jax.tree.map(lambda *x: np.stack(x, axis=1), *per_column)

    def scalars(field: str, dtype: Any) -> Any:
        return np.array([[getattr(row, field) for row in rows[:-1]] for _, rows in columns], dtype).T

    return Block(
        observation=observation,
        action=leaves(lambda row: row.action),
        reward=scalars("reward", np.float32),
        terminated=scalars("terminated", bool),
        truncated=scalars("truncated", bool),
        valid=scalars("valid", bool),
        extras=leaves(lambda row: row.extras),
        carry=_stack([rows[0].carry for _, rows in columns]),
    )
