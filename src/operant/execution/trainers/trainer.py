"""Algorithms as classes, one made from each entry of the table: `PPO(envs, model).fit(target_reward=475)`.

They train through the same session and loop as the command line; what differs is only that environments and
networks are objects of the user's program.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import secrets
import threading
import typing
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Self, TypeAlias, TypeVar

import jax
import numpy as np

from operant import checkpoint
from operant.agents.base.agent_spec import parse_agent, refuse_numbers
from operant.agents.base.compiled import act_independently
from operant.agents.table import AGENTS, config_class
from operant.checkpoint import list_checkpoints
from operant.envs.vector.base import VectorStep
from operant.envs.vector.sync_vector import refuse_repeated
from operant.errors import (
    METHODS,
    CheckpointError,
    MismatchError,
    SpecError,
    UsageError,
    instead,
    naming_misspelt,
    suggest,
    whole,
)
from operant.execution.play import PlayConfig, PlayResult
from operant.execution.play import run as run_episodes
from operant.execution.saving import checkpoint_in
from operant.execution.trainers import inputs
from operant.execution.trainers.arguments import (
    MODELS,
    NOT_OPTIONS,
    buffer_options,
    named,
    optimizer_options,
    refuse_shared_weights,
    slots,
    split,
    warn_of_bounded_values,
)
from operant.ops.optimise import CustomOptimizer
from operant.spec import Config, default, options, plain, traced
from operant.spec.run import IMAGES, RunConfig, located
from operant.tracking.console import say
from operant.tracking.history import check_place
from operant.tracking.record import EpisodeRecord, Logger, Record
from operant.tracking.runs import read_run
from operant.training import run_dir, signals
from operant.training.callbacks import callbacks_of, none_refuses
from operant.training.environments import make_environments
from operant.training.loggers import create_loggers, loggers_of
from operant.training.loop import Outcome, TrainingLoop
from operant.training.progress import EvaluationScores, Progress
from operant.training.session import ExperimentSetup, fitting
from operant.training.train import evaluating, first_origin, history_origin, refuse_rows_of_others
from operant.tuning.trial import report_steps

CLASSES = {entry.cls: agent for agent, entry in reversed(AGENTS.items())}
"""Classes by name, and the agent of the table that each stands for."""
P = ParamSpec("P")
R = TypeVar("R")
Callback: TypeAlias = Callable[["Trainer", Record], bool | None]
"""What `fit` calls whenever training reports."""


class _Turns:
    """Lets other threads in between two blocks of `fit`: updates consume the arrays that they would read."""

    def __init__(self) -> None:
        self._next, self._turn = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._next:  # whoever waits longest: `fit` would take its turn back at once
            self._turn.acquire()

    def __exit__(self, *_: object) -> None:
        self._turn.release()

    def let_in(self) -> None:
        """Let those who wait have their turn."""
        self.__exit__()
        self.__enter__()


def _by_one_thread(method: Callable[P, R]) -> Callable[P, R]:
    """Have a call from elsewhere wait for the end of a block while `fit` trains; refuse `fit` and `load`."""

    @functools.wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        agent: Any = arguments[0] if arguments else None
        if not isinstance(agent, Trainer):
            raise UsageError(
                f"{method.__name__} is called on an object: make it with its environments, "
                f"agent = Class(envs, ...), then agent.{method.__name__}(...). To act only, "
                "Agent.load(directory=...) needs no environments."
            )
        here, before = threading.get_ident(), agent._thread
        if before not in (None, here):
            if method.__name__ in ("fit", "load"):
                raise UsageError(
                    f"{method.__name__} was called while fit trains in another thread. Wait for its end, or "
                    "end it by a callback that returns False."
                )
            with agent._turns:
                return method(*arguments, **named)
        if method.__name__ != "fit" or before == here:
            return method(*arguments, **named)
        with agent._turns:
            agent._thread = here
            try:
                return method(*arguments, **named)
            finally:
                agent._thread = None

    return call


class Trainer:
    """An algorithm with the environments that it trains in.

    Each call of `fit` continues where the last one stopped.

    Args:
        envs: Gymnasium environments (a list of objects), or an id, a vector (Gymnasium's, or of
            `operant.envs.vector.create.create`) or a JAX-native environment.
        parts: the networks, actor before critic, then the replay buffers (a list, one for each environment),
            as far as the algorithm has them. Keywords `model`, `actor_model`, `critic_model` and `buffers` do
            the same.
        n_envs: how many environments, if `envs` is an id.
        eval_envs: with `eval_frequency`: environments in which the policy is evaluated, as `envs` may be
            (default: others like those that train).
        weights: files of variables to start from, one for each model (default: none).
        resume: with `run_dir`: go on with the run there, if it holds one, as a program that is started again
            does; its seed is the run's.
        trial: an Optuna trial to report the mean reward to, at twenty equal parts of `max_steps`; it may end
            `fit` by `optuna.TrialPruned`.
        settings: hyperparameters, and options of the run that concern a program (`seed`, `checkpoints`,
            `quiet`, `history_checkpoint`, `reward_buffer_size`, `eval_frequency`, ...; `env_kwargs`:
            arguments of the environments that an id makes). None stands for the default of a network, of
            buffers and of an option of the run (only `keep_checkpoints=None` keeps all checkpoints); for a
            hyperparameter it is a value of its own (`grad_norm=None`: gradients are not clipped).

    Networks given as compiled Keras models bring their optimizer. Their weights are the trained ones after
    `fit`. Hyperparameters and options of the run are attributes (`gamma`, `n_envs`, `seed`).

    Raises:
        OperantError: environments, networks and options do not fit together; the message names which and the
            remedy.
    """

    agent: ClassVar[str]
    """Name of the algorithm in the table."""

    @naming_misspelt
    def __init__(
        self,
        envs: Any,
        *parts: Any,
        n_envs: int | None = None,
        eval_envs: Any = None,
        weights: Sequence[str | Path] | None = None,
        trial: Any = None,
        resume: bool = False,
        **settings: Any,
    ) -> None:
        n_envs = settings.pop("num_envs", None) if n_envs is None else n_envs
        inputs.refuse_no_environments(envs)
        inputs.refuse_other_count(envs, n_envs)
        self.trial = trial
        self._envs = envs
        config, count = config_class(self.agent), _count(envs, n_envs)
        arguments, hyperparameters = split(self.agent, named(self.agent, parts, settings), count)
        self.models = {name: hyperparameters[name] for name in MODELS if name in hyperparameters}
        refuse_shared_weights(self.models)
        warn_of_bounded_values(self.agent, self.models)
        self.buffers = hyperparameters.pop("buffers", None)
        hyperparameters |= buffer_options(config, self.buffers, count, hyperparameters)
        hyperparameters |= optimizer_options(config, self.models, hyperparameters)
        seed, folder = arguments.pop("seed", None), Path(arguments.get("run_dir") or "")
        if resume and "run_dir" not in arguments:
            raise UsageError("resume=True goes on with the run in a folder. Give run_dir, too.")
        self._resumed = resume and (folder / "run.json").is_file()
        if self._resumed:
            seed = read_run(folder / "run.json")["run"].get("seed")
        goes_on = self._resumed and bool(list_checkpoints(folder / "checkpoints"))
        weights = () if weights is None or goes_on else weights  # those that it began from may be gone
        self.run_config = located(  # relative paths are those of this call
            RunConfig.from_dict(
                {
                    **arguments,
                    "env": envs if isinstance(envs, str) else type(envs).__name__,
                    "n_envs": 1 if n_envs is None else n_envs,
                    "weights": weights,
                    "seed": secrets.randbelow(2**31) if seed is None else seed,
                    "max_steps": 1,  # `fit` says how many
                }
            )
        )
        if self.run_config.run_dir is not None and not self._resumed:
            run_dir.new_directory(self.run_config, self.agent)  # refuse one that holds something
        if self.run_config.history_checkpoint is not None:
            check_place(self.run_config.history_checkpoint, "history_checkpoint")
        origins = [str(folder)] if goes_on else self.run_config.weights
        definition = fitting(parse_agent(self.agent, **hyperparameters), origins)
        environments = make_environments(self.run_config, None if isinstance(envs, str) else envs, n_envs)
        if environments.vector is not None:
            self.run_config = self.run_config.replace(
                env=environments.vector.name, n_envs=environments.vector.num_envs
            )
        try:
            opaque = isinstance(vars(definition.config).get("optimizer"), CustomOptimizer)
            if opaque and self.run_config.divergence_monitoring_steps is not None:
                raise SpecError(
                    "divergence_monitoring_steps lowers the learning rate, which an optax transformation "
                    "keeps to itself. Give the optimizer by name or as a dict, with lr."
                )
            self.session = ExperimentSetup(definition, environments, self.run_config)
            self._evaluating = inputs.evaluation_envs(self.run_config, envs, eval_envs, environments.spaces)
        except BaseException:
            if environments.vector is not envs:  # the user may give it again, with what was wrong put right
                environments.close()
            raise
        self._progress = Progress(self.run_config)
        self._begun, self._part, self._plays = False, 0, 0
        self._acting: Any = None
        """The training state that acted last, and what acting needs of it."""
        self._loaded: str | None = None
        self._thread: int | None = None
        """The thread in which `fit` trains."""
        self._turns = _Turns()
        self._wrote = False
        """Whether its rows in the history go up to where it stands: not after `load`, until it has trained
        again."""
        if goes_on:
            self.load(folder)
            self._loaded, self._wrote = None, run_dir.has_written_all(folder)

    def __repr__(self) -> str:
        run = self.run_config
        mean = "" if math.isnan(self.mean_reward) else f", mean return {self.mean_reward:.4g}"
        return f"<{type(self).__name__} on {run.env}: n_envs={run.n_envs}, {self.steps:,} steps{mean}>"

    @property
    def envs(self) -> Any:
        """The environments that train: the list that was given, a list of Gymnasium's if each steps in this
        process, else a vector or a JAX-native environment.
        """
        if isinstance(self._envs, list):
            return self._envs
        made = self.session.environments
        several = getattr(made.vector, "envs", None)
        return (made.native or made.vector) if several is None else [each.env for each in several]

    @property
    def elapsed(self) -> float:
        """Seconds of training so far."""
        return self._progress.elapsed

    @naming_misspelt
    @_by_one_thread
    def fit(
        self,
        *unnamed: Any,
        target_reward: float | None = None,
        max_steps: int | None = None,
        monitor_session: str | None = None,
        callback: Callback | Sequence[Callback] | None = None,
        callback_episode_frequency: int | None = None,
        callback_timestep_frequency: int | None = None,
        logger: Logger | Sequence[Logger] | None = None,
    ) -> Outcome:
        """Train until the mean of the last episodes reaches a reward, or for a number of steps.

        Meanwhile other threads may call `act`, `play`, `evaluate` and `save`, which wait for the end of a
        block; so a callback must not wait for them.

        A Ctrl-C ends it, and the program goes on; a request to terminate (SIGTERM, or SIGHUP of a closed
        terminal) ends the program when all is saved, with status 143 (129).

        Args:
            unnamed: nothing: a number alone does not say which of these it is.
            target_reward: mean reward of the last `reward_buffer_size` episodes at which training ends.
            max_steps: environment steps of all environments, over all calls, at which training ends; those of
                the history that `history_checkpoint` continues count.
            monitor_session: name of a Weights & Biases run to write metrics to, the same one in all calls.
            callback: called with this object and a `Record` of step, time and metrics whenever training
                reports: about every second, or after every `log_frequency`-th episode, and after each
                evaluation. Numbers that it adds to `record.values`, or changes there, are recorded with the
                others.
                Training ends if it returns False. A list: all are called with the same record, in order.
            callback_episode_frequency: call it after every so many episodes instead, when their rollout has
                been learnt from. `record.values` has `episode/reward` and `episode/length`.
            callback_timestep_frequency: call it while rollouts are collected, after every so many environment
                steps, of all environments. `record.values` has the mean `step/reward`, and `envs` are where
                they stand. Not in JAX-native environments, whose rollouts are compiled whole.
            logger: a logger of your own, or several in a list; each call begins and closes it.

        Raises:
            UsageError: neither was given, or no `max_steps` with a trial.
            SpecError: a callback added what is no number.
            OperantError: an environment failed.
            SystemExit: the process was asked to terminate.
        """
        if unnamed:
            first = unnamed[0]
            raise UsageError(
                f"fit takes its arguments by name: fit(max_steps={first!r}) for steps, "
                f"fit(target_reward={first!r}) for a mean reward. Received: {', '.join(map(repr, unnamed))}."
            )
        if target_reward is None and max_steps is None:
            raise UsageError("`target_reward` or `max_steps` should be specified when fit() is called.")
        callbacks = callbacks_of(
            callback, "a function of this object and a record, or a list of such", arguments=2
        )
        own = loggers_of(logger)
        changes = {"target_reward": target_reward, "max_steps": max_steps, "monitor_session": monitor_session}
        run = RunConfig.from_dict({**self.run_config.to_dict(), **changes})
        directory = Path(run.run_dir) if run.run_dir else None
        checkpoints = None if directory is None else directory / "checkpoints"
        training = self.session.training(run, checkpoints, self._progress)
        training.between_blocks = self._turns.let_in
        self._call(callbacks, training, callback_episode_frequency, callback_timestep_frequency)
        with contextlib.ExitStack() as stack:
            stack.enter_context(signals.terminating())
            stack.enter_context(run_dir.history_held(run.history_checkpoint, directory))
            if not self._begun:
                died = directory if self._resumed and run.history_checkpoint is not None else None
                self._progress.begin_at(history_origin(run) if died is None else first_origin(died))
                self._begun = True
            elif self._wrote:
                refuse_rows_of_others(training, run_dir.history_of(run, directory))
            self._wrote = True
            if directory is not None:
                directory.mkdir(parents=True, exist_ok=True)
                stack.enter_context(run_dir.held(directory))
                begun = self._part or self._resumed
                if not begun and (directory / "run.json").exists():  # taken meanwhile
                    run_dir.new_directory(run, self.agent)
                if not self._resumed:
                    stack.enter_context(run_dir.removed_in_vain(training, directory))
                self._describe(directory, run, training)
            return self._train(training, directory, run, own)

    def _call(self, callbacks: Sequence[Callback], training: TrainingLoop, episodes: Any, steps: Any) -> None:
        """Have callbacks called at every report, or after so many episodes and environment steps."""
        episodes = whole("callback_episode_frequency", episodes, optional=True)
        steps = whole("callback_timestep_frequency", steps, optional=True)
        if steps is not None and self.session.environments.native is not None:
            raise UsageError(
                "callback_timestep_frequency is for environments that step on the host. Received: "
                f"{self.run_config.env!r}, whose rollouts are compiled whole. Leave it out."
            )
        ended, stepped = 0, training.step

        def call(record: Record) -> bool:
            return none_refuses([each(self, record) for each in callbacks])

        def tell(step: int, **values: float) -> None:
            named = {name.replace("_", "/"): float(value) for name, value in values.items()}
            if not call(Record(step, self.elapsed, named)):
                training.call_off()

        def on_episode(episode: EpisodeRecord) -> None:
            nonlocal ended
            ended += 1
            if ended % episodes == 0:
                tell(episode.step, episode_reward=episode.episode_reward, episode_length=episode.length)

        def on_step(step: VectorStep) -> None:
            nonlocal stepped
            before, stepped = stepped, training.step
            if before // steps < stepped // steps:
                tell(stepped, step_reward=np.mean(step.reward))

        training.on_record = call if callbacks and episodes is steps is None else None
        training.on_episode = None if episodes is None else on_episode
        self.session.driver.on_step = None if steps is None else on_step

    def _describe(self, directory: Path, run: RunConfig, training: TrainingLoop) -> None:
        if self._resumed:
            run_dir.describe_resume(directory, training, run, None, {})
            return
        session, given = self.session, not inputs.is_id(self._envs)
        run_dir.describe(
            directory,
            session.specification["agent"],
            run,
            session.environments,
            None,
            given=given,
            loaded=self._loaded,
            origin=self._progress.origin if self._loaded is None else None,
            part=self._part,
        )
        training.part, self._part = self._part, self._part + 1

    def _train(
        self, training: TrainingLoop, directory: Path | None, run: RunConfig, own: Sequence[Logger]
    ) -> Outcome:
        training.loggers = create_loggers(directory, run, training, self._resumed, own=own)
        try:
            with training.loggers:
                remarks = self.session.definition.remarks(training.own_steps)
                for text in (*self.session.environments.remarks, *remarks):
                    training.loggers.message(text)
                with evaluating([training], self.session.learner, self._evaluating):
                    outcome = training.loop() if self.trial is None else self._train_trial(training)
                    training.keep_unjudged()
                training.loggers.message(outcome.summary)
        finally:
            self._assign_models()
        return outcome

    @_by_one_thread
    def act(self, observation: Any, internals: Any = None, deterministic: bool = True) -> Any:
        """Choose actions with the current policy; training is not touched, and nothing is learnt from it.

        Observations and actions are those of the environments: for Gymnasium's what `reset` and `step` return
        and `step` takes, for others in the structure of their specification. Masks come in the observation.

        Args:
            observation: one, or several at once with one more leading axis of every array, as vectors of
                Gymnasium return them.
            internals: recurrent state, for recurrent networks: what the previous call returned, at first
                `initial_internals()`.
            deterministic: take the best action; False draws as in training.

        Returns:
            An action, or several; `(actions, internals)` if `internals` were given.

        Raises:
            SpaceError: the observation or the internals do not fit.
            UsageError: internals are missing.
        """
        environments, driver = self.session.environments, self.session.driver
        spaces, vector = environments.spaces, environments.vector
        codec = None if vector is None else vector.codec
        batched = False
        if codec is not None:
            observation, batched = inputs.encoded(codec, observation, spaces.unflatten, self.run_config.env)
        actions, after = act_independently(
            self.session.learner,
            self._act,
            driver.learnt.key,
            self._progress.draws,
            spaces.observe(observation),
            internals,
            explore=not deterministic,
        )
        self._progress.draws += not deterministic
        actions = spaces.actions.clip(actions)
        action = spaces.actions.unflatten(actions) if codec is None else codec.decode(actions, batched)
        return action if internals is None else (action, after)

    def initial_internals(self, batch: int | None = None) -> Any:
        """Return the recurrent state at the start of an episode, for `act`; empty for feed-forward networks.

        With `batch` it is for so many observations in one call, with a leading axis.
        """
        return self.session.learner.start_carry(batch)

    @functools.cached_property
    def _compiled(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The functions that extract acting's parameters from the training state, and that act with them."""
        learner = self.session.learner
        return jax.jit(learner.acting), jax.jit(learner.act, static_argnames="explore")

    def _act(self, *arguments: Any, explore: bool) -> Any:
        acting, act = self._compiled
        learnt = self.session.driver.learnt  # to hold on to a memory would keep it when `load` brings another
        if self._acting is None or any(a is not b for a, b in zip(self._acting[0], learnt, strict=True)):
            self._acting = learnt, acting(learnt)
        return act(self._acting[1], *arguments, explore=explore)

    @naming_misspelt
    @_by_one_thread
    def play(
        self,
        video_dir: str | None = None,
        render: bool = False,
        frame_dir: str | None = None,
        frame_delay: float = 0.0,
        max_steps: int | None = None,
        action_idx: int = 0,
        frame_frequency: int = 1,
        episodes: int = 1,
        env: Any = None,
    ) -> PlayResult:
        """Play with the current policy, in a separate environment; training is not touched.

        Every call plays new episodes, none of which training has seen; a program that is run again plays the
        same ones.

        Args:
            video_dir: folder for a video (mp4) of each episode.
            render: show a window.
            frame_dir: folder for pictures (jpg).
            frame_delay: seconds between rendered frames.
            max_steps: environment steps after which it ends.
            action_idx: 0: the best action, 1: one drawn from the policy.
            frame_frequency: write every n-th frame to `frame_dir`.
            episodes: how many.
            env: the environment: an id, an object (left open; made with `render_mode='rgb_array'` if pictures
                are asked for), or a class or function that makes one. The run's time limit and `env_kwargs`
                apply only to the id, class or function that also trains. Default: one like those that train,
                if they are an id, a class or a function, or were made by `gymnasium.make`.

        Raises:
            SpecError: the environment cannot be rendered, cannot be made once more, or is one that trains.
            SpaceError: it has other states or actions than those that train.
        """
        played = self._played(
            env,
            video_dir=video_dir,
            render=render,
            frame_dir=frame_dir,
            frame_delay=float(frame_delay),
            max_steps=max_steps,
            action_idx=action_idx,
            frame_frequency=frame_frequency,
            episodes=episodes,
        )
        if not self.run_config.quiet:
            say(str(played))
        return played

    @naming_misspelt
    @_by_one_thread
    def evaluate(self, episodes: int = 10, deterministic: bool = True, env: Any = None) -> PlayResult:
        """Return what the current policy achieves in new episodes: `mean`, `std` and the returns (`rewards`).

        Args:
            episodes: how many.
            deterministic: take the best actions; False draws as in training.
            env: as in `play`, which shows the episodes, too.

        Raises:
            SpecError: the environment cannot be made once more, or is one that trains.
            SpaceError: it has other states or actions than those that train.
        """
        return self._played(env, episodes=episodes, action_idx=0 if deterministic else 1)

    def _played(self, env: Any, **how: Any) -> PlayResult:
        shared = ("env", "env_kwargs", "seed", "max_episode_timesteps", *IMAGES)
        options = {**{name: getattr(self.run_config, name) for name in shared}, **how}
        config = PlayConfig.from_dict(options).located()
        spaces = self.session.environments.spaces
        vector = inputs.play_env(config, self._envs, env, spaces, self.run_config.episodic_life)
        refuse_repeated(vector.name, self.session.environments.vector, vector)
        played = run_episodes(
            self.session.learner,
            self.session.driver.learnt,
            vector,
            config,
            self._plays,
            leave_open=env is not None and not inputs.makes(env),
        )
        self._plays += 1
        return played

    @naming_misspelt
    @_by_one_thread
    def save(self, directory: str | Path, **others: Any) -> str:
        """Write a checkpoint of everything that is needed to continue.

        `load` continues from it, and `Agent.load(directory)` makes an agent from it, which acts in a program
        and writes weights and policies in other formats. A callback of `fit` may save, too.

        Args:
            directory: folder to which it is added, as `step-N`.
            others: nothing: `format` and the like are arguments of an agent's `save`.

        Returns:
            The path of the checkpoint.

        Raises:
            SpecError: the folder cannot be made.
            UsageError: there were other arguments.
        """
        if others:
            received = ", ".join(f"{name}={value!r}" for name, value in others.items())
            raise UsageError(
                f"save of {type(self).__name__} writes a checkpoint to a directory, and takes nothing else. "
                f"Received: {received}. For weights or a policy in another format: save(directory), then "
                "Agent.load(directory=...).save(directory=..., format=...)."
            )
        training = self.session.training(self.run_config, None, self._progress)
        return str(training.write(Path(directory), keep=None, memory=self.run_config.save_memory))

    @_by_one_thread
    def load(self, directory: str | Path) -> Self:
        """Continue from a checkpoint: of `save`, or of a run of the same algorithm with the same options.

        What was learnt here before is lost; counts and mean rewards continue from those of the checkpoint. So
        does a replay memory, unless there are more environments or fewer: then it starts empty.

        Args:
            directory: a checkpoint, a folder of such (the newest is taken), or the folder of a run.

        Returns:
            This object.

        Raises:
            CheckpointError: there is none, or it does not fit.
        """
        place = Path(directory)
        place = place / "checkpoints" if (place / "checkpoints").is_dir() else place
        found = checkpoint_in(place, None)
        differing = self._differing(found)
        agent, saved = self.session.specification["agent"], found.header["specification"]["agent"]
        config, source = self.session.definition.config, f"The checkpoint {str(found.path)!r}"
        refuse_numbers(type(config), plain(agent), saved, source, exchanged=True)
        training = self.session.training(self.run_config, None, self._progress)
        try:
            training.restore(found)
        except MismatchError as error:
            remedy = f"\n{differing} Give what it was trained with." if differing else ""
            raise MismatchError(f"{error}{remedy}") from None
        if differing:
            warnings.warn(
                f"{differing} Numbers used in updates, such as lr, are the checkpoint's.",
                RuntimeWarning,
                stacklevel=2,
            )
        numbers = {n: x for n in traced(type(config)) if isinstance(x := saved.get(n), int | float)}
        agent.update(numbers)
        self.session.definition = self.session.definition._replace(config=config.replace(**numbers))
        self._begun, self._wrote, self._loaded = True, False, str(place)
        self._assign_models()
        return self

    def _differing(self, found: checkpoint.Checkpoint) -> str:
        """Say in which options or spaces a checkpoint differs, if any.

        Raises:
            CheckpointError: it was made by another agent.
        """
        saved, current = found.header.get("specification") or {}, plain(self.session.specification)
        agents = saved.get("agent") or {}, current["agent"]
        there, here = (agent.get("type") for agent in agents)
        if there != here:
            raise CheckpointError(
                f"The checkpoint {str(found.path)!r} does not fit {type(self).__name__}: its type is "
                f"{there}, not {here}. Agent.load({str(found.path)!r}) makes the agent that it is of."
            )
        was, now = (
            {**(each.get("spaces") or {}), **each["agent"]} for each in ({"agent": {}, **saved}, current)
        )
        shown = ", ".join(
            f"{name} {was[name]!r} there, {now[name]!r} here"
            for name in now
            if name in was and was[name] != now[name]
        )
        return f"The checkpoint {str(found.path)!r} was made with: {shown}." if shown else ""

    def _train_trial(self, training: TrainingLoop) -> Outcome:
        """Train from report to report, at the same steps in every trial: a pruner compares like with like."""
        run = training.run
        if run.max_steps is None:
            raise UsageError("An Optuna trial needs max_steps, so that all trials report at the same steps.")
        outcome = None
        points = report_steps(min(training.counted, run.max_steps), run.max_steps)
        for step, following in zip(points, [*points[1:], math.inf], strict=True):
            training.run = run.replace(max_steps=step)
            outcome = training.loop()
            if outcome.reason != "max_steps":
                break
            # If a block went beyond the next report, the mean is reported there, for comparison with other
            # trials.
            if training.counted >= following or not training.progress.score.rewards:
                continue
            self.trial.report(outcome.mean_reward, step)
            if step < run.max_steps and self.trial.should_prune():
                import optuna

                raise optuna.TrialPruned
        assert outcome is not None  # there is always one step at least, the last
        return outcome

    def _assign_models(self) -> None:
        algorithm = self.session.learner.algorithm
        weights = algorithm.weights(self.session.driver.learnt.state)
        for option, model in self.models.items():
            name = next(name for name in weights if name.startswith(MODELS[option]))
            if hasattr(model, "stateless_call"):
                algorithm.models[name].assign(weights[name])

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name: str) -> Any:
            """Return an option of the algorithm or of the run; else say what to call in place of a method."""
            session = vars(self).get("session")
            for given in () if session is None else (session.definition.config, self.run_config):
                if name in options(type(given)):
                    return getattr(given, name)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.{instead(name, METHODS)}")

        def __setattr__(self, name: str, value: Any) -> None:
            """Refuse options of the algorithm: what is compiled has taken them."""
            session = vars(self).get("session")
            taken = () if session is None else options(type(session.definition.config))
            if name in taken and not hasattr(type(self), name):
                raise AttributeError(
                    f"{name} is given when the object is made: {type(self).__name__}(..., {name}={value!r}). "
                    "A new object goes on from this one's weights: weights=..."
                )
            super().__setattr__(name, value)

    @property
    def model(self) -> Any:
        """The network that was given (of several the actor), which holds the trained weights; or None."""
        return next(iter(self.models.values()), None)

    @property
    def n_actions(self) -> int:
        """How many discrete actions there are, or how many numbers a continuous action has."""
        leaves = self.session.environments.spaces.actions.components.values()
        return sum(math.prod(x.shape) if x.num_values is None else x.num_values for x in leaves)

    @property
    def steps(self) -> int:
        """Environment steps so far, of all environments, those of a history that is continued included."""
        return int(self.session.driver.step) + self._progress.origin.step

    @property
    def games(self) -> int:
        """Episodes finished so far."""
        return self._progress.score.episodes

    @property
    def total_rewards(self) -> list[float]:
        """Returns of the last `reward_buffer_size` episodes."""
        return list(self._progress.score.rewards)

    @property
    def mean_reward(self) -> float:
        """Mean of `total_rewards`; NaN before the first episode."""
        return self._progress.score.mean

    @property
    def evaluated(self) -> EvaluationScores:
        """Results of the evaluations: step and mean of the last one and of the best one."""
        return self._progress.evaluated

    @property
    def best_reward(self) -> float:
        """The best value that `mean_reward` has had."""
        return self._progress.score.best

    def close(self) -> None:
        """Close the environments."""
        self.session.environments.close()
        if self._evaluating is not None:
            self._evaluating.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _count(envs: Any, n_envs: int | None) -> int | None:
    if isinstance(envs, list | tuple):
        return len(envs)
    if isinstance(envs, str):
        return 1 if n_envs is None else n_envs
    return getattr(envs, "num_envs", None)


@functools.cache
def trainer(name: str) -> type[Trainer]:
    """Return the class of an algorithm by its name in the table, `PPO`; SpecError: there is none."""
    if name not in CLASSES:
        raise SpecError(f"There is no algorithm class {name!r}.{suggest(name, CLASSES)}")
    agent = CLASSES[name]
    config, lines = config_class(agent), []
    for option, meta in options(config).items():
        value = default(config, option)
        shown = "" if value is None else f" (default: {value!r})"  # what None means, the help says
        lines.append(f"    {option}: {' '.join(meta.help.split())}{shown}")
    hyperparameters = "\n".join(lines)
    doc = f"{AGENTS[agent].help}.\n\n{inspect.getdoc(Trainer)}\n\nHyperparameters:\n{hyperparameters}\n"
    members = {"agent": agent, "__doc__": doc, "__module__": __name__, "__signature__": signature(config)}
    return type(name, (Trainer,), members)


def signature(config: type[Config]) -> inspect.Signature:
    """Return the parameters of an algorithm's class: networks and buffers by place, options by name."""
    parameters = dict(inspect.signature(Trainer.__init__).parameters)
    settings, envs = parameters.pop("settings"), parameters["envs"]
    first = [envs, *(envs.replace(name=name, default=None) for name in slots(config))]
    hints = typing.get_type_hints(config) | typing.get_type_hints(RunConfig)
    by_name = {name: each for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    for each in (config, RunConfig):
        for name in options(each):
            if name not in NOT_OPTIONS and name not in MODELS:
                value = default(each, name)
                by_name[name] = inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=hints[name]
                )
    return inspect.Signature([*first, *by_name.values(), settings])
