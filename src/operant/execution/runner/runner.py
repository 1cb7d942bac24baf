"""`Runner`: an agent and one or many environments, for so many episodes, timesteps or updates."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from operant.agents.base.agent_spec import parse_agent
from operant.envs.connection import Connection, close_all
from operant.envs.vector.base import seed_of
from operant.errors import (
    SpaceError,
    SpecError,
    UsageError,
    naming_misspelt,
    value_error,
    whole,
    working_directory,
)
from operant.execution.agent import Agent, specified
from operant.execution.runner.bar import Bar
from operant.execution.runner.connections import open_environments
from operant.execution.runner.fast_path import FastPath
from operant.execution.runner.interaction import Interaction, RunLimits
from operant.execution.runner.run_statistics import RunOptions, RunStatistics, flags
from operant.execution.runner.slots import EnvSlot
from operant.training import signals

WRITERS = ("recorder", "saver", "summarizer")
"""Arguments of an agent that name the folders of what it writes."""


class Runner:
    """Runs an agent in one environment, or in several at once, here, in other processes or on other machines.

        runner = Runner(agent="ppo", environment="CartPole-v1", num_parallel=5)
        runner.run(num_episodes=100, batch_agent_calls=True)
        runner.close()

    It closes what it made; agents and environments that were given as objects stay open. It is a context
    manager that closes itself.

    Args:
        agent: a specification as `Agent.create` takes it, an `Agent`, or a dict of arguments of `Agent.load`
            (with `directory`). The environment's states, actions and time limit are passed on, and
            `num_parallel` as `parallel_interactions`; an agent that exists must have at least as many.
        environment: a specification as `Environment.create` takes it, or an `Environment`.
        max_episode_timesteps: steps after which an episode is cut; at most the environment's own limit, the
            default.
        num_parallel: number of environments, or of episodes side by side in one vectorizable environment.
        environments: instead of `environment` and `num_parallel`, one specification or object for each.
        evaluation: whether the last of several environments evaluates: the agent takes its best action there,
            and neither records nor learns.
        remote: None: in this process; ``'multiprocessing'``: each environment in a process of its own;
            ``'socket-client'``: on servers started by ``Environment.create(..., remote='socket-server')``;
            ``'ray'``: each in an actor of a Ray cluster.
        blocking: whether each call of a remote environment waits for its answer.
        host: where the servers are, for ``'socket-client'``: one host, or one for each environment; for
            ``'ray'`` the cluster's head (default: `RAY_ADDRESS`, or else a cluster on this machine).
        port: their ports: one for each environment, or the first of an increasing sequence on a single host.
        token_file: file of the token that servers ask for (default: the variable `OPERANT_TOKEN`); for
            ``'socket-client'``.
        certificate: file of the servers' certificate, or of whoever signed it, or ``'system'``; turns TLS on.
            For ``'socket-client'``.

    Raises:
        UsageError: arguments that exclude one another, or one that is missing.
        SpecError: a value or a specification that is not understood.
        SpaceError: the agent does not fit the environment.
    """

    @naming_misspelt
    def __init__(
        self,
        agent: Any,
        environment: Any = None,
        max_episode_timesteps: int | None = None,
        num_parallel: int | None = None,
        environments: Sequence[Any] | None = None,
        evaluation: bool = False,
        remote: str | None = None,
        blocking: bool = False,
        host: Any = None,
        port: Any = None,
        *,
        token_file: str | Path | None = None,
        certificate: str | Path | None = None,
    ) -> None:
        if not isinstance(evaluation, bool):
            raise value_error("evaluation", "True or False", evaluation)
        self.is_environment_remote = remote is not None
        self.is_agent_external = isinstance(agent, Agent)
        self.evaluation = evaluation
        agent = read(agent)
        self.environments: list[Connection] = open_environments(
            environment, environments, max_episode_timesteps=max_episode_timesteps, num_parallel=num_parallel,
            evaluation=evaluation, remote=remote, blocking=blocking, host=host, port=port,
            token_file=token_file, certificate=certificate,
        )  # fmt: skip
        self._seats: list[EnvSlot] = []
        try:
            learning = self.environments[:-1] if evaluation else self.environments
            self.agent = _agent(agent, self.environments[0], sum(c.num_actors for c in learning))
        except BaseException:
            close_all(self.environments)
            raise
        first = 0
        for i, connection in enumerate(self.environments):
            trains = not (evaluation and i == len(self.environments) - 1)
            self._seats.append(EnvSlot(connection, first, trains, counts=trains))
            first += connection.num_actors
        self._actors = first
        self._shortcut: FastPath | None = None
        if environments is None and remote is None and not evaluation:
            self._shortcut = FastPath(environment, max_episode_timesteps, first)
        self._runs = 0
        self._running = False
        self._closed = False
        self._ledger = RunStatistics(self, RunOptions.read(), first, evaluation)

    # What was recorded

    @property
    def num_environments(self) -> int:
        """How many environments there are."""
        return len(self.environments)

    @property
    def restarts(self) -> int:
        """How many environments were lost and replaced since the Runner was made."""
        return sum(connection.restarts for connection in self.environments)

    @property
    def driver(self) -> str:
        """What drove this run, as far as its limits allowed: ``'device'``, ``'host'``, or
        ``'interactive'`` (single steps).
        """
        return self._ledger.driver

    @property
    def timesteps(self) -> int:
        """Timesteps of this run, without those of an evaluation environment."""
        return self._ledger.timesteps

    @property
    def episodes(self) -> int:
        """Episodes that ended in this run, without those of an evaluation environment."""
        return self._ledger.episodes

    @property
    def updates(self) -> int:
        """Updates that the agent made in this run."""
        return self._ledger.updates

    @property
    def best_evaluation_score(self) -> float:
        """Best score of this run; minus infinity before the first."""
        return self._ledger.best

    @property
    def episode_returns(self) -> list[float]:
        """Return of each episode of this run, in the order in which they ended."""
        return self._ledger.training.returns

    @property
    def episode_timesteps(self) -> list[int]:
        """Length of each episode."""
        return self._ledger.training.timesteps

    @property
    def episode_seconds(self) -> list[float]:
        """How long each episode took."""
        return self._ledger.training.seconds

    @property
    def episode_agent_seconds(self) -> list[float]:
        """How long the agent computed while each episode ran, for whichever environment."""
        return self._ledger.training.agent_seconds

    @property
    def episode_env_seconds(self) -> list[float]:
        """How long the environment itself computed in each episode."""
        return self._ledger.training.env_seconds

    @property
    def evaluation_returns(self) -> list[float]:
        """Return of each evaluation episode.

        Without an evaluation environment, the list `episode_returns`.
        """
        return self._ledger.evaluations.returns

    @property
    def evaluation_timesteps(self) -> list[int]:
        """Length of each evaluation episode."""
        return self._ledger.evaluations.timesteps

    @property
    def evaluation_seconds(self) -> list[float]:
        """How long each evaluation episode took."""
        return self._ledger.evaluations.seconds

    @property
    def evaluation_agent_seconds(self) -> list[float]:
        """How long the agent computed while each evaluation episode ran."""
        return self._ledger.evaluations.agent_seconds

    @property
    def evaluation_env_seconds(self) -> list[float]:
        """How long the environment itself computed in each evaluation episode."""
        return self._ledger.evaluations.env_seconds

    @property
    def episode_return(self) -> list[float]:
        """Return so far of each actor's episode, by parallel index.

        In a callback, that of the one that just ended.
        """
        return self._ledger.tally.returns

    @property
    def episode_timestep(self) -> list[int]:
        """Timesteps so far of each actor's episode, by parallel index."""
        return self._ledger.tally.timesteps

    # Running

    @naming_misspelt
    def run(
        self,
        num_episodes: int | None = None,
        num_timesteps: int | None = None,
        num_updates: int | None = None,
        batch_agent_calls: bool = False,
        sync_timesteps: bool = False,
        sync_episodes: bool = False,
        num_sleep_secs: float = 0.001,
        callback: Any = None,
        callback_episode_frequency: int | None = None,
        callback_timestep_frequency: int | None = None,
        use_tqdm: bool = True,
        mean_horizon: int = 1,
        evaluation: bool = False,
        save_best_agent: str | Path | None = None,
        evaluation_callback: Any = None,
    ) -> None:
        """Run until the first of the limits; a later call goes on with new episodes and an empty record.

        Limits are sums over all environments and actors, and exact. At the end, open episodes are cut: the
        agent learns that they were (terminal 2), and they are not recorded.

        With `num_updates` or `num_timesteps`, and neither callbacks nor scores, a driver of training runs
        takes all steps that make whole blocks: in JAX-native environments (``'jax:CartPole-v1'``), compiled
        with the agent into one program, and in Gymnasium environments in this process, with
        `batch_agent_calls` or a single one. `driver` and the bar say so; single steps continue from there to
        the exact number of timesteps. The time of an episode is then its share of the total. docs/runner.md
        says what else requires single steps.

        Args:
            num_episodes: episodes to run. No more are begun than that, so none is cut and short ones are not
                preferred.
            num_timesteps: timesteps to run.
            num_updates: updates of the agent to run.
            batch_agent_calls: act and observe for all environments in one call; implies `sync_timesteps`.
            sync_timesteps: let all environments take their steps together.
            sync_episodes: let all environments begin their episodes together.
            num_sleep_secs: longest wait, in seconds, between two looks for environments that are ready.
            callback: called as ``callback(runner, parallel)``, or a list of such; False ends the run.
            callback_episode_frequency: episodes between callbacks (default 1 if the next is not given).
            callback_timestep_frequency: timesteps between callbacks.
            use_tqdm: show a progress bar: return, ts/ep, sec/ep, ms/ts, agent (share of the time that the
                agent computes) and, for remote environments, comm (share that neither agent nor environment
                explain).
            mean_horizon: episodes over which the bar's figures and the score are averaged.
            evaluation: only evaluate, in a single environment: best actions, nothing recorded by the agent or
                learnt.
            save_best_agent: directory where the agent is saved, as ``best-model``, whenever the score is the
                best of this run. The score is taken after each episode of evaluation, or of training if there
                is none, as soon as there are `mean_horizon` of them.
            evaluation_callback: called as ``evaluation_callback(runner)``, returns the score (or None for
                none); or a number of episodes over which to average the return instead of `mean_horizon`.

        Raises:
            UsageError: no limit and no callback, settings that exclude one another, or a run inside a run.
            SpecError: a value that is not understood.
            EnvironmentError: an environment failed.
            SystemExit: the process was asked to terminate (SIGTERM, or SIGHUP of a closed terminal) and had
                no handler of its own: the run has ended as if a callback had ended it. The status is 143
                (129).
        """
        self._expect_idle()
        limits = {"num_episodes": num_episodes, "num_timesteps": num_timesteps, "num_updates": num_updates}
        limits = {name: whole(name, value, optional=True) for name, value in limits.items()}
        num_episodes, num_timesteps, num_updates = limits.values()
        manner = {
            "batch_agent_calls": batch_agent_calls,
            "sync_timesteps": sync_timesteps,
            "sync_episodes": sync_episodes,
        }
        flags(**manner, use_tqdm=use_tqdm, evaluation=evaluation)
        if not isinstance(num_sleep_secs, int | float) or not 0 <= num_sleep_secs < math.inf:
            raise value_error("num_sleep_secs", "a number of at least 0", num_sleep_secs)
        order = RunOptions.read(
            callback=callback,
            every_episodes=callback_episode_frequency,
            every_timesteps=callback_timestep_frequency,
            horizon=mean_horizon,
            evaluation_callback=evaluation_callback,
            directory=save_best_agent,
            comm=self.is_environment_remote,
        )
        self._expect_end(limits, evaluation, bool(order.calls.callbacks))
        plan = RunLimits(num_episodes, num_timesteps, num_updates, **manner, num_sleep_secs=num_sleep_secs)
        self._ledger = RunStatistics(self, order, self._actors, self.evaluation)
        for seat in self._seats:
            seat.drain()
            seat.trains = seat.counts and not evaluation
        if not evaluation:
            with self.agent.hold():  # updates that an earlier run left to make count in this one
                self.agent.reset()
        if use_tqdm:
            counted, total = next(
                (pair for pair in limits.items() if pair[1] is not None), ("num_episodes", None)
            )
            self._ledger.bar = Bar(counted.removeprefix("num_"), total)
        self._runs += 1
        seed = seed_of(self.agent.seed, self.agent.timesteps + self._runs)
        self._running = True
        with signals.terminable(self._ledger.end):
            try:
                shortcut = self._shortcut
                if shortcut is not None and not (order.tells or evaluation):
                    shortcut.run(self.agent, plan, self._ledger, seed)
                Interaction(self.agent, self._seats, plan, self._ledger, seed).run()
            finally:
                self._running = False
                if self._ledger.bar is not None:
                    self._ledger.show(episode=True)
                    self._ledger.bar.close()

    def _expect_idle(self) -> None:
        """Refuse to run when closed, or inside a run."""
        if self._closed:
            raise UsageError("The Runner is closed. Make another one.")
        if self._running:
            raise UsageError(
                "run was called inside a run, from a callback. To evaluate there, make a Runner of its own "
                "with the same agent: "
                "Runner(agent=runner.agent, environment=...).run(num_episodes=10, evaluation=True)."
            )

    def _expect_end(self, limits: Mapping[str, int | None], evaluation: bool, called: bool) -> None:
        """Refuse a run that would not end, and an evaluation with limits or environments that it cannot have.

        Args:
            limits: by argument of `run`.
            evaluation: whether it only evaluates.
            called: whether there are callbacks, which may end it.
        """
        if set(limits.values()) == {None} and not called:
            raise UsageError(
                "Give num_episodes, num_timesteps or num_updates, or a callback that ends the run by "
                "returning False."
            )
        num_updates = limits["num_updates"]
        if evaluation and (self.num_environments > 1 or num_updates is not None):
            what = "several environments" if num_updates is None else "num_updates, but nothing is learnt"
            raise UsageError(f"run(evaluation=True) is for a single environment. Received: {what}.")
        limited = called or any(limits[name] is not None for name in ("num_episodes", "num_timesteps"))
        learns = self.agent.definition.learns and self.agent.learner.algorithm.models
        if not limited and not learns:
            raise UsageError(
                f"num_updates is no limit for the agent {self.agent.definition.name!r}, which never updates. "
                "Give num_episodes or num_timesteps."
            )

    def close(self) -> None:
        """Close what the Runner made: the agent and the environments that were not given as objects.

        Environments are closed even if the agent cannot write what it had left to write; it may then be saved
        elsewhere.
        """
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as stack:  # closes the last first, and the others if that fails
            stack.callback(close_all, self.environments)
            if not self.is_agent_external:
                stack.callback(self.agent.close)
            if self._shortcut is not None:
                stack.callback(self._shortcut.close)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ConnectionSpecs:
    """What an agent asks an environment for, answered by a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def states(self) -> Any:
        return self._connection.spaces.declaration()

    def actions(self) -> Any:
        return self._connection.spaces.actions.to_spec()

    def max_episode_timesteps(self) -> int | None:
        return self._connection.max_episode_timesteps


def read(agent: Any) -> Any:
    """Return an `Agent` as it is, and a specification with its files read, since environments may change the
    working directory.

    Raises:
        SpecError: a file cannot be read, or the agent or one of its options is not known.
    """
    if agent is None or isinstance(agent, Agent):
        return agent
    loaded = isinstance(agent, Mapping) and "directory" in agent
    given = dict(agent) if loaded else specified(agent)
    if not loaded or given.get("agent") is not None:
        given["agent"] = parse_agent(given["agent"])
    if loaded and isinstance(given["directory"], str | Path) and Path(given["directory"]).is_dir():
        given["directory"] = str(working_directory() / given["directory"])
    return given | {name: _placed(given[name]) for name in WRITERS if name in given}


def _placed(writer: Any) -> Any:
    """Return a writer's folder, or its options, with the folder as an absolute path."""
    if isinstance(writer, str | Path):
        return str(working_directory() / writer)
    if isinstance(writer, Mapping) and isinstance(writer.get("directory"), str | Path):
        return {**writer, "directory": _placed(writer["directory"])}
    return writer


def _agent(agent: Any, connection: Connection, actors: int) -> Agent:
    """Make, load or check the agent of so many actors."""
    if isinstance(agent, Agent):
        made = agent
        if (made.spaces.states, made.spaces.actions) != (connection.spaces.states, connection.spaces.actions):
            raise SpaceError(
                f"The agent does not fit the environment {connection.name!r}. "
                f"Agent: {made.spaces.to_spec()}. Environment: {connection.spaces.to_spec()}."
            )
    elif isinstance(agent, Mapping) and "directory" in agent:
        given = {"environment": _ConnectionSpecs(connection), **agent}
        made = Agent.load(**given)
        if made.parallel_interactions < actors and "parallel_interactions" not in agent:
            made.close()
            made = Agent.load(**given, parallel_interactions=actors)
    else:
        made = _created(agent, connection, actors)
    own, limit = made.max_episode_timesteps, connection.max_episode_timesteps
    if made.parallel_interactions < actors:
        fault = (
            f"The agent has parallel_interactions={made.parallel_interactions}, and {actors} are needed: "
            "one for each "
            f"environment that it learns from. Make it with parallel_interactions={actors}."
        )
    elif own is not None and (limit is None or limit > own):
        fault = (
            f"The agent's max_episode_timesteps={own} is below the environment's ({limit}). "
            f"Give the Runner max_episode_timesteps={own}, or the agent a larger one."
        )
    else:
        return made
    if made is not agent:
        made.close()
    raise UsageError(fault)


def _created(agent: Any, connection: Connection, actors: int) -> Agent:
    """Make an agent from a specification, which may hold any argument of `Agent.create`."""
    given = specified(agent)
    for name in ("environment", "states", "actions"):
        if name in given:
            raise SpecError(
                f"The agent takes {name} from the Runner's environment. Leave it out of the agent."
            )
    return Agent.create(
        **{"parallel_interactions": actors, **given, "environment": _ConnectionSpecs(connection)}
    )
