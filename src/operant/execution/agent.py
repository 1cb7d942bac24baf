"""The agent that a program holds: act, observe, save, load."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from operant import checkpoint
from operant.agents.base.agent_spec import (
    AgentSpec,
    from_file,
    parse_agent,
    parse_saved_agent,
    refuse_numbers,
)
from operant.agents.base.learner import TrainState, learnt_by, without_buffer
from operant.agents.base.update_counter import UpdateCounter
from operant.agents.table import DEFAULT
from operant.checkpoint import weight_files
from operant.errors import (
    AGENT_METHODS,
    CheckpointError,
    SpaceError,
    SpecError,
    UsageError,
    instead,
    naming_misspelt,
    reading,
    value_error,
    whole,
)
from operant.execution import export, pretraining, saving
from operant.execution.agent_callbacks import AgentCallbacks
from operant.execution.export import Exported
from operant.execution.interactive import InteractiveAgent, Settings
from operant.execution.saving import Format
from operant.execution.traces import Trace
from operant.nn.drawing import mermaid
from operant.spec import canonical, plain, read_json
from operant.spec.spaces import Spaces
from operant.spec.written_out import noting

ARGUMENTS = (
    "environment",
    "states",
    "actions",
    "max_episode_timesteps",
    "parallel_interactions",
    "seed",
    "config",
    "recorder",
    "saver",
    "summarizer",
)
"""Arguments of `Agent.create` that a specification may hold."""
CounterName = Literal["timesteps", "episodes", "updates"]
"""What `save` may add to a name, with its value."""


class Agent(InteractiveAgent):
    """An agent in the user's program.

    Made by `Agent.create` or `Agent.load`. For each of its actors, `act` and `observe` alternate:

        agent = Agent.create(agent="ppo", environment=environment)
        states = environment.reset()
        actions = agent.act(states=states)
        states, terminal, reward = environment.execute(actions=actions)
        agent.observe(reward=reward, terminal=terminal)

    Learning happens inside `act`, as soon as the observation that follows the last row of a block is known.
    """

    def __repr__(self) -> str:
        if self.engine is None:
            return f"<Agent {self.definition.name}: closed>"
        return (
            f"<Agent {self.definition.name}: {self.timesteps:,} timesteps, {self.episodes:,} episodes, "
            f"{self.updates:,} updates; parallel_interactions={self.parallel_interactions}>"
        )

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name: str) -> Any:
            """Say what to use here in place of an attribute of another library."""
            raise AttributeError(f"Agent has no attribute {name!r}.{instead(name, AGENT_METHODS)}")

    @staticmethod
    @naming_misspelt
    @noting()
    def create(
        agent: Any = None,
        environment: Any = None,
        *,
        states: Any = None,
        actions: Any = None,
        max_episode_timesteps: int | None = None,
        parallel_interactions: int | None = None,
        seed: int | None = None,
        config: dict[str, Any] | None = None,
        recorder: Any = None,
        saver: Any = None,
        summarizer: Any = None,
        **options: Any,
    ) -> Agent:
        """Create an agent.

        Args:
            agent: its specification: a name (`'ppo'`), a dict with `type`, a JSON file, or an algorithm
                class. Default: the modular agent, whose parts the options choose. A dict or file may hold the
                other arguments, too (`seed`, `saver`, ...); those that are given beside it win, of `config`
                each setting.
            environment: an `Environment`, from which states, actions and the time limit are taken.
            states: instead, the specification of states: `dict(type='float', shape=(4,))`, or a nested dict
                of such. `'<action>_mask'` entries declare action masks.
            actions: the specification of actions: `dict(type='int', num_values=3)`, or a nested dict of such.
            max_episode_timesteps: longest episode; more steps are an error.
            parallel_interactions: how many actors act in turn (default 1).
            seed: root of all randomness (default 0).
            config: settings that are not hyperparameters: `seed`; `device` of the arrays ('cpu', 'gpu',
                'gpu:1'; default: JAX's own choice); `precision` of matrix products ('bfloat16',
                'tensorfloat32', 'float32'; default: JAX's own, see `jax.default_matmul_precision`); `debug`:
                an update that is not finite is an error, instead of being left out and counted.
            recorder: a folder, or `dict(directory=..., frequency=1, start=0, max_traces=None)`: write
                finished episodes to trace files there, for `pretrain`.
            saver: a folder, or ``dict(directory=..., filename='agent', frequency=10, unit='updates',
                max_checkpoints=10, load=False)``: write checkpoints there, every so many updates (or
                timesteps, episodes, seconds) and on `close`; with `load`, continue from the newest of that
                name.
            summarizer: a folder, or `dict(directory=..., labels='all', frequency=100, custom={}, ...)`: write
                summaries for TensorBoard; see `operant.tracking.summaries`.
            options: hyperparameters of the algorithm by name.

        What only Tensorforce has (`tracking`, settings of its graphs in `config`, the `device` of a memory)
        is taken without effect, as a line in the log says.

        Raises:
            SpecError: an unknown agent, option or space specification (the message says the close match), or
                `environment` is not an `Environment`.
            SpaceError: the algorithm cannot serve the spaces.
        """
        arguments = specified(
            {
                "agent": DEFAULT if agent is None else agent,
                "environment": environment, "states": states, "actions": actions, "seed": seed,
                "max_episode_timesteps": max_episode_timesteps, "config": config,
                "parallel_interactions": parallel_interactions,
                "recorder": recorder, "saver": saver, "summarizer": summarizer,
            }
        )  # fmt: skip
        states, actions, limit = arguments.get("states"), arguments.get("actions"), None
        if "environment" in arguments:
            if states is not None or actions is not None:
                raise SpecError("Give either environment, or states and actions, not both.")
            states, actions, limit = _described(arguments["environment"])
        elif states is None or actions is None:
            raise SpecError("Give environment, or both states and actions.")
        limit = arguments.get("max_episode_timesteps", limit)
        callbacks = AgentCallbacks(*map(arguments.get, ("recorder", "saver", "summarizer")))
        created = Agent(
            parse_agent(arguments["agent"], **options).limited(limit),
            Spaces.read(states, actions),
            parallel_interactions=whole("parallel_interactions", arguments.get("parallel_interactions", 1)),
            max_episode_timesteps=limit,
            settings=Settings(**arguments["config"]),
        )
        if callbacks.saving is not None and callbacks.saving.load:
            place, name = Path(callbacks.saving.directory), callbacks.saving.filename
            created._resume(saving.checkpoint_in(place, name, numbered=True))
        created._begin_callbacks(callbacks)
        return created

    def _begin_callbacks(self, callbacks: AgentCallbacks) -> None:
        self._callbacks = callbacks
        callbacks.begin(self, self._save_checkpoint)

    def summarize(self, summary: str, value: Any, step: int | None = None) -> None:
        """Write one of the `custom` summaries.

        Args:
            summary: its name.
            value: what its type takes: a number, an array of numbers, an image `[height, width, channels]`
                (or several), a sound `[samples]`, a text.
            step: the step to write it at (default: the timesteps so far).

        Raises:
            UsageError: the agent has no summarizer.
            SpecError: the name was not declared, or the value does not suit its type.
        """
        if not self._callbacks.summarize(summary, value, step):
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
        """Take in experience of one or several episodes, from which `update` learns.

        The log-probabilities and recurrent states that belong to the actions are computed with the current
        networks.

        Args:
            states: in the structure of the specification with a leading axis `[R]`, masks included, or a list
                of states.
            actions: likewise. They must obey the masks.
            terminal: `[R]`: False or 0; True or 1 where an episode terminates; 2 where it was truncated. If
                the last entry is 0 (part of an episode), the episode counts as truncated there.
            reward: `[R]`.
            internals: recurrent states before each step, leaves `[R, ...]`, or a list of them, as independent
                calls of `act` took and gave them.
            next_states: states `[E, ...]` after the last action of each episode; without them, a truncated
                episode is bootstrapped from its last state.

        Raises:
            SpaceError: something does not fit the specification, or the lengths differ.
            UsageError: all actors are in the middle of an episode.
        """
        if not self.actors.waiting:
            self._declare_masks(states[0] if isinstance(states, list | tuple) and states else states)
        trace = Trace.read(self.spaces, states, actions, terminal, reward, next_states)
        pretraining.add_trace(self._engine, self.actors, trace, internals)
        self._callbacks.recount()

    def update(self) -> int:
        """Learn from all waiting experience, in blocks of the algorithm's size; the last may be short.

        If none is waiting, or too little for an update to be due, update once all the same: from the last
        block, or from what the memory holds.

        Returns:
            Updates made.

        Raises:
            UsageError: no experience was given yet, or updates are held back (`hold`).
        """
        if not self._may_learn:
            raise UsageError(
                "update was called inside hold(), which holds updates back. Call it after the with block."
            )
        before = self.updates
        self.actors.flush()
        self._learn()
        if self.updates == before:
            if self._last_block is None:
                raise UsageError(
                    "There is no experience to learn from. Call experience, or act and observe, first."
                )
            self._engine.update_again(self._last_block)
            self._callbacks.updated()
            self._check()
        self._reported = self.updates
        self._callbacks.save_if_due()
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
        lr: float = 3e-3,
        batch_size: int = 64,
    ) -> None:
        """Learn from recorded traces.

        By imitation if the algorithm can: policies raise the probability of the recorded actions and values
        are fitted to the returns, Q-learners learn by a margin, deterministic actors by squared distance.
        Otherwise by `experience` and `update`.

        Args:
            directory: folder of trace files, as `recorder` writes them; or `'minari:NAME'`: a Minari dataset
                on this machine.
            num_iterations: how often traces are drawn.
            num_traces: files (episodes of a dataset) in each draw; None: all of them.
            num_updates: passes over them (imitation), or calls of `update`.
            extension: how the files' names end.
            imitate: True: by imitation, or an error; False: by `experience` and `update`; None: by imitation
                if the algorithm can.
            lr: learning rate of imitation in the first iteration; it falls linearly, to 0 after the last.
            batch_size: approximate number of environment steps in a gradient step of imitation.

        Raises:
            SpecError: there are no traces, or they do not fit the agent.
            UsageError: `imitate=True` for an algorithm that cannot.
        """
        num_iterations = whole("num_iterations", num_iterations)
        num_traces = whole("num_traces", num_traces, optional=True)
        num_updates = whole("num_updates", num_updates)
        batch_size = whole("batch_size", batch_size)
        imitates = hasattr(self.learner.algorithm, "imitation")
        if imitate and not imitates:
            raise UsageError(
                f"The agent {self.definition.name!r} cannot imitate. Leave imitate out: it learns by "
                "update()."
            )
        drawn = pretraining.draws(directory, extension, self.spaces, num_traces, num_iterations, self.seed)
        if imitates and imitate is not False:
            cloning = pretraining.BehavioralCloning(self._engine, batch_size, self.seed)
            for i, (trace, fresh) in enumerate(drawn):
                cloning.learn(trace, num_updates, fresh, lr * (1.0 - i / num_iterations))
            cloning.hand_over()
            self._callbacks.changed()
            return
        for trace, _ in drawn:
            pretraining.add_trace(self._engine, self.actors, trace)
            self._callbacks.recount()
            for _ in range(num_updates):
                self.update()

    # Files

    def get_architecture(self, format: Literal["text", "mermaid"] = "text") -> str:
        """Describe the networks as text.

        Args:
            format: 'text': tables of layers, shapes and numbers of parameters. 'mermaid': a flowchart in
                Mermaid's language, with the names of registered tensors.

        Raises:
            SpecError: an unknown format.
        """
        models = self.learner.algorithm.models
        if format == "text":
            return "\n".join(f"{name}\n{model.summary()}" for name, model in models.items())
        if format != "mermaid":
            raise value_error("format", "'text' or 'mermaid'", format)
        return mermaid(models)

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
        format: Format | Exported = "checkpoint",
        append: CounterName | None = None,
    ) -> str:
        """Write the agent to a file.

        Args:
            directory: where; made if it does not exist.
            filename: name of the file in it, with or without the format's suffix.
            format: 'checkpoint': everything that it needs to continue exactly (parameters, optimizer, memory,
                unfinished rows, keys). 'numpy', 'hdf5', 'safetensors': weights and counters, as
                `checkpoint/weight_files.py` describes, the specification as JSON beside them. 'stablehlo',
                'onnx', 'saved-model': the policy alone, to act without operant; see
                `operant.execution.export`.
            append: add this counter's value to the name: 'timesteps', 'episodes' or 'updates'.

        Returns:
            The path written.

        Raises:
            SpecError: an unknown format or counter, a name that no file may have, or a layer that an exported
                policy cannot have.
            UsageError: a policy's actions are drawn by chance, or what its format needs is not installed.
        """
        saving.check_format(format, *export.FORMATS)
        if append not in (None, *weight_files.COUNTERS):
            raise value_error("append", "one of 'timesteps', 'episodes', 'updates', or None", append)
        if not isinstance(filename, str) or not checkpoint.named_well(filename):
            raise value_error("filename", checkpoint.NAMED, filename)
        filename = filename.removesuffix((weight_files.FORMATS | export.FORMATS).get(format, ""))
        name = filename if append is None else f"{filename}-{getattr(self, append)}"
        if format == "checkpoint":
            return self._save_checkpoint(directory, name, None)
        if format in export.FORMATS:
            from operant.execution.export import formats

            kind = self.definition.name
            return str(formats.write(directory, name, format, self.learner, self._engine.acting, kind))
        arrays = weight_files.of_agent(self.learner.algorithm.weights(self._engine.train.state), self)
        path = Path(directory) / f"{name}{weight_files.FORMATS[format]}"
        return str(weight_files.write(path, arrays, self.get_specification(), filename))

    def _save_checkpoint(self, directory: str | Path, name: str, keep: int | None) -> str:
        rows, shapes = self.actors.snapshot()
        tree = {"train": self._engine.train, **rows}
        header = {
            "specification": self.get_specification(),
            "interaction": {**shapes, "reported": self._reported, "draws": self._draws},
        }
        return str(checkpoint.save(directory, tree, header, keep=keep, name=name))

    @staticmethod
    @naming_misspelt
    def load(
        directory: str | Path,
        filename: str | None = None,
        format: Format | None = None,
        environment: Any = None,
        agent: Any = None,
        parallel_interactions: int | None = None,
        config: dict[str, Any] | None = None,
        recorder: Any = None,
        saver: Any = None,
        summarizer: Any = None,
    ) -> Agent:
        """Load an agent: a checkpoint or weights, the newest in a folder, or a run's newest checkpoint.

        From a checkpoint the agent continues in the middle of the episodes that were open. If the
        environments begin anew, call `reset()` after loading: it cuts these episodes.

        Args:
            directory: a run's folder, a folder of checkpoints or weights, or one of these itself.
            filename: name in the folder (default: the newest); also without the number at its end, for the
                newest of that name.
            format: see `save`; default: a checkpoint if there is one, else weights of any format.
            environment: checked against the saved spaces, if given.
            agent: what the file cannot hold, since a file never says what to import: the class of an
                algorithm that is not operant's own, or a specification with the optimizer or networks made by
                code (`dict(type='ppo', model=...)`).
            parallel_interactions: how many actors act, if not as many as when it was saved. Parameters,
                optimizer and counters are then taken over; unfinished episodes and a replay memory are left
                behind.
            config: `device`, `precision` and `debug`, as in `create`; the seed is the saved one.
            recorder: as in `create`.
            saver: as in `create`; its `load` is ignored.
            summarizer: as in `create`.

        Raises:
            CheckpointError: there is none, or it cannot be used; the message says why.
            SpecError: `config` holds something else.
        """
        if not isinstance(directory, str | Path):
            raise value_error("directory", "the path of a folder", directory)
        settings = _settings({} if config is None else config)
        if "seed" in settings:
            remedy = "The agent goes on with the randomness that it began with."
            raise value_error("config", "without a seed, which is saved", config, remedy)
        callbacks = AgentCallbacks(recorder, saver, summarizer)
        saved = saving.find_saved(Path(directory), filename, format)
        if isinstance(saved, Path):
            path, header = saved, {"specification": weight_files.header(saved)}
        else:
            path, header = saved.path, saved.header
        own = None if agent is None else parse_agent(agent)
        loaded = Agent._specified_by(path, header, environment, own, parallel_interactions, settings)
        actors = header["specification"]["parallel_interactions"]
        with loaded._placing(), reading(f"The checkpoint {str(path)!r}"):
            if isinstance(saved, Path):
                loaded._put_weights(weight_files.read(saved), saved)
            elif loaded.parallel_interactions == actors:
                loaded._restore(saved)
            else:
                loaded._take_over(saved, actors)
        loaded._begin_callbacks(callbacks)
        return loaded

    def _put_weights(self, arrays: dict[str, np.ndarray], path: Path) -> None:
        algorithm, train = self.learner.algorithm, self._engine.train
        weights, counts = weight_files.unflatten(arrays, algorithm.weights(train.state), path)
        state, counters = algorithm.with_weights(train.state, weights), train.counters._replace(**counts)
        if isinstance(algorithm, UpdateCounter):
            state = algorithm.resumed(state, counters)
        self._put_learnt(train._replace(state=state, counters=counters))

    def _put_learnt(self, train: TrainState) -> None:
        self._engine.put(train)
        self._start()
        self._reported = self.updates

    def _resume(self, saved: checkpoint.Checkpoint) -> None:
        specification = saved.header.get("specification") or {}
        masks = specification.get("spaces", {}).get("masks", ())
        if new := [x for x in masks if x in self.spaces.actions.components and x not in self.spaces.masks]:
            self._take_masks(new)  # they came with its first states
        current = self.get_specification()
        for name in ("spaces", "parallel_interactions"):
            if specification.get(name) != plain(current[name]):
                raise CheckpointError(
                    f"The checkpoint {str(saved.path)!r} does not fit the agent: its {name} differ. Saved: "
                    f"{specification.get(name)}. The agent's: {current[name]}."
                )
        source = f"The checkpoint {str(saved.path)!r}"
        agent, config = plain(current["agent"]), type(self.definition.config)
        refuse_numbers(config, agent, specification.get("agent") or {}, source)
        with self._placing(), reading(source):
            self._restore(saved)

    @staticmethod
    def _specified_by(
        path: Path,
        header: dict[str, Any],
        environment: Any,
        own: AgentSpec | None,
        actors: int | None,
        settings: dict[str, Any],
    ) -> Agent:
        what = f"The checkpoint {str(path)!r}"
        with reading(what):
            specification = header["specification"]
            spaces = Spaces.from_spec(specification["spaces"])
            definition = parse_saved_agent(specification["agent"], what, own)
            actors = specification["parallel_interactions"] if actors is None else actors
            limit = specification["max_episode_timesteps"]
            limit = whole("max_episode_timesteps", limit, optional=True)
            settings = {**settings, "seed": specification["seed"]}
        if environment is not None:
            states, actions, _ = _described(environment)
            other = Spaces.read(states, actions)
            if other != spaces:
                raise SpaceError(
                    f"The environment does not fit the saved agent. Saved: {spaces.to_spec()}. Given: "
                    f"{other.to_spec()}. Give one with the same states and actions, or leave environment out."
                )
        with from_file(what):
            return Agent(
                definition,
                spaces,
                parallel_interactions=whole("parallel_interactions", actors),
                max_episode_timesteps=limit,
                settings=Settings.from_dict(settings),
            )

    def _take_over(self, saved: checkpoint.Checkpoint, actors: int) -> None:
        """Restore what was learnt from a checkpoint of another number of actors."""
        self._put_learnt(learnt_by(actors, saved, self._engine.train, self.learner.algorithm))
        counts = saved.header.get("interaction") or saved.header.get("training") or {}
        self._draws = whole("draws", counts.get("draws", 0), 0)

    def _last_observations(self, saved: checkpoint.Checkpoint) -> dict[str, np.ndarray]:
        """Return the last observations `[N, ...]` in a training run's checkpoint, as far as they fit."""
        arrays: dict[str, np.ndarray] = {}
        for place in ("['driver']['observation']", "['driver']['world'].actors.observation"):
            names = {f"{place}[{name!r}]": name for name in self.spaces.observation_components}
            arrays |= {names[leaf]: np.asarray(x) for leaf, x in saved.leaves(names).items()}
        return arrays if arrays.keys() == self.spaces.observation_components.keys() else {}

    def _restore(self, saved: checkpoint.Checkpoint) -> None:
        interaction, training = saved.header.get("interaction"), saved.header.get("training", {})
        fresh = self._engine.train
        forgets = interaction is None and not training.get("memory", True)
        train = jax.eval_shape(lambda train: train, without_buffer(fresh) if forgets else fresh)
        if not forgets:  # a device need not have room for two replay memories
            fresh = without_buffer(fresh)
            self._engine.put(fresh)
        if interaction is not None:
            like = self.actors.snapshot_like(self.learner.block_shape(1), interaction)
            tree = saved.load({"train": train, **like})
            self._reported, self._draws = (
                whole(name, interaction[name], 0) for name in ("reported", "draws")
            )
            self.actors.restore(tree, interaction)
            self._engine.put(tree["train"])
            return
        learnt = saved.part("train", train)  # of a training run, whose environments do not go on here
        if forgets:
            learnt = learnt._replace(memory=fresh.memory)
            text = f"The replay memory starts empty: {str(saved.path)!r} leaves it out."
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        self._engine.put(learnt)
        self._start()
        self._reported, self._draws = self.updates, whole("draws", training.get("draws", 0), 0)
        if (last := self._last_observations(saved)) and self._engine.counter("rows"):
            self.actors.end_at(last, self.learner.block_shape(1))


def _settings(config: Any) -> dict[str, Any]:
    """Return the settings of `config` by name; SpecError: it is no dict, or there is no such setting."""
    if not isinstance(config, Mapping):
        raise value_error("config", "a dict", config)
    return canonical(Settings, config, "config")


def specified(agent: Any) -> dict[str, Any]:
    """Return the arguments of `Agent.create` that a specification stands for, without those that are None.

    `agent` is what remains of it, for `parse_agent`; `config` holds the seed, too. A dict or JSON file may
    hold the arguments beside options, and one in it (`agent`) those that count if the outer one gives none.

    Raises:
        SpecError: a file cannot be read, `config` is no dict or holds what is no setting, or the seed is
            given twice.
    """
    if isinstance(agent, Path) or (isinstance(agent, str) and agent.endswith(".json")):
        agent = read_json(agent, "agent")
    if not isinstance(agent, Mapping):
        return {"agent": agent, "config": {}}
    arguments = {name: agent[name] for name in ARGUMENTS if agent.get(name) is not None}
    rest = {name: value for name, value in agent.items() if name not in ARGUMENTS}
    kind = "agent" if rest.get("agent") else "type"
    inner = specified(rest.get(kind))
    config, seed = _settings(arguments.get("config", {})), arguments.pop("seed", None)
    if seed is not None:
        if "seed" in config:
            raise SpecError(
                f"seed is given twice. Received: {seed} and {config['seed']}, in config. Give one."
            )
        config["seed"] = seed
    config = {**inner["config"], **config}
    return {**inner, **arguments, "config": config, "agent": {**rest, kind: inner["agent"]}}


def _described(environment: Any) -> tuple[Any, Any, int | None]:
    if not isinstance(environment, type) and hasattr(environment, "max_episode_timesteps"):
        return environment.states(), environment.actions(), environment.max_episode_timesteps()
    raise value_error(
        "environment", "an Environment", environment, "Make one first: Environment.create(environment=...)."
    )
