"""`Runner`: an agent and one or many environments, for so many episodes, timesteps or updates."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from operant.envs.catalog import resolve
from operant.envs.remote import connect
from operant.envs.remote.connection import Connection, close_all
from operant.envs.vector.base import seed_of
from operant.errors import SpaceError, SpecError, UsageError, naming_misspelt, value_error, whole
from operant.execution.agent import Agent, specified
from operant.execution.runner.bar import Bar
from operant.execution.runner.fast_path import FastPath
from operant.execution.runner.interaction import Interaction
from operant.execution.runner.run_options import RunOptions
from operant.execution.runner.run_statistics import RunStatistics, show
from operant.execution.runner.slots import EnvSlot
from operant.training import signals


class Runner(RunStatistics):
    """Runs an agent in one environment, or in several at once, here, in other processes or on other machines.

        runner = Runner(agent="ppo", environment="CartPole-v1", num_parallel=5)
        runner.run(num_episodes=100, batch_agent_calls=True)
        runner.close()

    It closes what it made; agents and environments that were given as objects stay open. It is a context
    manager that closes itself. What the last run counted and recorded are its attributes: `RunStatistics`.

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
        self.is_agent_external = isinstance(agent, Agent)
        spec = None
        if environment is not None and environments is None and remote is None and not evaluation:
            # Read first: an environment may change the working directory.
            spec = resolve(environment, max_episode_timesteps=max_episode_timesteps)
        self.environments: list[Connection] = _opened(
            environment, environments, max_episode_timesteps=max_episode_timesteps, num_parallel=num_parallel,
            evaluation=evaluation, remote=remote, blocking=blocking, host=host, port=port,
            token_file=token_file, certificate=certificate,
        )  # fmt: skip
        self._slots: list[EnvSlot] = []
        actors = 0
        for i, connection in enumerate(self.environments):
            trains = not (evaluation and i == len(self.environments) - 1)
            self._slots.append(EnvSlot(connection, actors, trains, counts=trains))
            actors += connection.num_actors
        super().__init__(actors, evaluation, remote is not None)
        try:
            learning = sum(slot.size for slot in self._slots if slot.trains)
            self.agent = _agent(agent, self.environments[0], learning)
        except BaseException:
            close_all(self.environments)
            raise
        self._fast_path = None if spec is None else FastPath(spec, self.environments, actors)
        self._runs = 0
        self._running = False
        self._closed = False

    def __repr__(self) -> str:
        where = f"{self.num_environments} x {self.environments[0].name}"
        return (
            f"<Runner of {self.agent!r} in {where}: {len(self.episode_returns):,} episodes in the last run>"
        )

    @property
    def num_environments(self) -> int:
        """How many environments there are."""
        return len(self.environments)

    @property
    def restarts(self) -> int:
        """How many environments were lost and replaced since the Runner was made."""
        return sum(connection.restarts for connection in self.environments)

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
            callback_timestep_frequency: timesteps of an episode between callbacks, for each environment.
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
            EnvError: an environment failed.
            SystemExit: the process was asked to terminate (SIGTERM, or SIGHUP of a closed terminal) and had
                no handler of its own: the run has ended as if a callback had ended it. The status is 143
                (129).
        """
        given = dict(locals())
        del given["self"]
        if self._closed:
            raise UsageError("The Runner is closed. Make another one.")
        if self._running:
            raise UsageError(
                "run was called inside a run, from a callback. To evaluate there, make a Runner of its own "
                "with the same agent: "
                "Runner(agent=runner.agent, environment=...).run(num_episodes=10, evaluation=True)."
            )
        options = RunOptions.read(**given)
        self._expect_end(options)
        self._begin_run(options.mean_horizon)
        for slot in self._slots:
            slot.drain()
            slot.trains = slot.counts and not options.evaluation
        if not options.evaluation:
            with self.agent.hold():  # updates that an earlier run left to make count in this one
                self.agent.reset()
            if not self._runs:
                steps = options.num_timesteps
                steps = None if steps is None else self.agent.timesteps + steps
                for text in self.agent.definition.remarks(steps):
                    logging.getLogger("operant").warning(text)
        self._runs += 1
        seed = seed_of(self.agent.seed, self.agent.timesteps + self._runs)
        with signals.terminable(self._end):
            try:
                self._running = True
                self.bar = Bar(*options.counted) if options.use_tqdm else None
                if self._fast_path is not None:
                    self._fast_path.run(self.agent, options, self, seed)
                Interaction(self.agent, self._slots, options, self, seed).run()
            finally:
                self._running = False
                if self.bar is not None:
                    show(self, episode=True)
                    self.bar.close()

    def _end(self) -> None:
        self.ending = True

    def _expect_end(self, options: RunOptions) -> None:
        """Refuse a run that would not end, or limits or environments that an evaluation cannot have."""
        num_updates = options.num_updates
        limited = options.callback or (options.num_episodes, options.num_timesteps) != (None, None)
        if not limited and num_updates is None:
            raise UsageError(
                "Give num_episodes, num_timesteps or num_updates, or a callback that ends the run by "
                "returning False."
            )
        if options.evaluation and (self.num_environments > 1 or num_updates is not None):
            what = "several environments" if num_updates is None else "num_updates, but nothing is learnt"
            raise UsageError(f"run(evaluation=True) is for a single environment. Received: {what}.")
        if not limited and not (self.agent.definition.learns and self.agent.learner.algorithm.models):
            raise UsageError(
                f"num_updates is no limit for the agent {self.agent.definition.name!r}, which never updates. "
                "Give num_episodes or num_timesteps."
            )

    def close(self) -> None:
        """Close what the Runner made: the agent and the environments that were not given as objects.

        Environments are closed even if the agent cannot write what is left; it may then be saved elsewhere.
        """
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as stack:  # closes the last first, and the others if that fails
            stack.callback(close_all, self.environments)
            if not self.is_agent_external:
                stack.callback(self.agent.close)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _agent(agent: Any, connection: Connection, actors: int) -> Agent:
    spaces = connection.spaces
    if isinstance(agent, Agent):
        result = agent
    elif isinstance(agent, Mapping) and "directory" in agent:
        result = Agent.load(**agent)
        if result.parallel_interactions < actors and "parallel_interactions" not in agent:
            result.close()
            result = Agent.load(**agent, parallel_interactions=actors)
    else:
        arguments = specified(agent)
        for name in ("environment", "states", "actions"):
            if name in arguments:
                raise SpecError(
                    f"The agent takes {name} from the Runner's environment. Leave it out of the agent."
                )
        defaults = {
            "parallel_interactions": actors,
            "max_episode_timesteps": connection.max_episode_timesteps,
        }
        result = Agent.create(
            **{**defaults, **arguments}, states=spaces.declaration(), actions=spaces.actions.to_spec()
        )
    error: Exception | None = None
    longest, limit = result.max_episode_timesteps, connection.max_episode_timesteps
    if (result.spaces.states, result.spaces.actions) != (spaces.states, spaces.actions):
        error = SpaceError(
            f"The agent does not fit the environment {connection.name!r}. "
            f"Agent: {result.spaces.to_spec()}. Environment: {spaces.to_spec()}."
        )
    elif result.parallel_interactions < actors:
        error = UsageError(
            f"The agent has parallel_interactions={result.parallel_interactions}, and {actors} are needed: "
            f"one for each environment that it learns from. Make it with parallel_interactions={actors}."
        )
    elif longest is not None and (limit is None or limit > longest):
        error = UsageError(
            f"The agent's max_episode_timesteps={longest} is below the environment's ({limit}). "
            f"Give the Runner max_episode_timesteps={longest}, or the agent a larger one."
        )
    if error is None:
        return result
    if result is not agent:
        result.close()
    raise error


def _opened(
    environment: Any,
    environments: Any,
    *,
    num_parallel: int | None,
    evaluation: bool,
    remote: Any,
    token_file: str | Path | None,
    certificate: str | Path | None,
    **options: Any,
) -> list[Connection]:
    if remote == "socket-server":
        raise UsageError(
            "A Runner does not serve environments. Use Environment.create(..., remote='socket-server'), or "
            "`operant run --remote socket-server`, and remote='socket-client' here."
        )
    for name, value in {"token_file": token_file, "certificate": certificate}.items():
        if value is None:
            continue
        if remote != "socket-client":
            raise UsageError(
                f"{name} is for servers (remote='socket-client'). Received: {name}={str(value)!r}."
            )
        options[name] = value
    remedy = "Leave it out for a single environment."
    num_parallel = whole("num_parallel", num_parallel, 2, optional=True, remedy=remedy)
    connections = connect(
        environment,
        environments=environments,
        num_parallel=num_parallel,
        remote=remote,
        side_by_side=not evaluation,
        **options,
    )
    if evaluation and len(connections) < 2:
        close_all(connections)
        raise UsageError(
            "evaluation=True makes the last of several environments the one that evaluates. "
            "Give num_parallel or environments; for a single one use run(evaluation=True)."
        )
    return connections
