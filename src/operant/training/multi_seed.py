"""One plan under several seeds: what `operant train --n-seeds` runs."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from operant.agents.base.agent_spec import parse_agent
from operant.agents.table import AGENTS
from operant.envs import catalog
from operant.envs.remote.cluster import TaskPlacement
from operant.errors import EnvError, UsageError, quoted, shown
from operant.spec import plain, runtime
from operant.spec.run import TOGETHER, ClusterConfig, RunConfig, located
from operant.tracking import LoggerGroup, interval
from operant.tracking.console import say, wait
from operant.tracking.record import EpisodeTable, Record
from operant.training import signals
from operant.training.cluster_seeds import train_on_cluster
from operant.training.drivers.seeds import MultiSeedRunner
from operant.training.environments import make_environments
from operant.training.episodes import EpisodeResult
from operant.training.loggers import console, create_loggers, loggers_of
from operant.training.loop import LOG_SECONDS, Outcome, TrainingLoop
from operant.training.run_dir import claimed, describe, removed_in_vain
from operant.training.session import ExperimentSetup, build, fitting, threads_together
from operant.training.train import (
    ExperimentConfig,
    TrainingResult,
    evaluating,
    expect_evaluations,
    measured_settings,
    resuming,
    train,
)

SINGLE = ("resume", "checkpoints", "history_checkpoint", "monitor_session", *TOGETHER)
"""Options that name what belongs to a single run, or that divide one among devices and processes."""


class MultiSeedResult(NamedTuple):
    """Finished runs of one plan."""

    results: tuple[TrainingResult, ...]
    directory: Path
    """Folder that holds theirs, `seed-N` each."""
    mean_reward: tuple[float, float, float]
    """Mean over seeds of the last `mean_reward`, and its 95% bootstrap interval."""


def replicate(
    plan: ExperimentConfig,
    n_seeds: int,
    command: str | None = None,
    cluster: ClusterConfig | None = None,
) -> MultiSeedResult:
    """Train as planned under a number of successive seeds, of which that of the plan is the first.

    On a JAX-native environment all train at the same time (`MultiSeedRunner`); each equals a single run with
    its seed, on accelerators up to the rounding of sums. On others they run one after the other. With a
    `cluster` each is a task of its own there. Each writes a folder of its own, which can be resumed,
    loaded, played and plotted like that of any run.

    Raises:
        OperantError: the plan cannot be carried out.
        SystemExit: the process was asked to terminate while the runs followed one another.
    """
    placement = None if cluster is None else TaskPlacement.read(cluster)
    run = located(plan.run.replace(env=catalog.full_id(plan.run.env)))
    plan = plan._replace(run=run)
    for name in SINGLE:
        if getattr(run, name) not in (None, ()):
            raise UsageError(
                f"{name} is for a single run. Received: {name}={getattr(run, name)!r}, n_seeds={n_seeds}. "
                "Leave one of them out."
            )
    expect_evaluations(run)
    first = secrets.randbelow(2**31) if run.seed is None else run.seed
    definition = fitting(parse_agent(plan.agent, **plan.options), run.weights)
    if plan.options or run.weights or not (isinstance(plan.agent, str) and plan.agent in AGENTS):
        # Files are read once, for all seeds.
        plan = plan._replace(agent=definition, options={})
    for text in measured_settings(definition.name, run.env) if plan.untried and not run.quiet else ():
        say(text)
    plan = plan._replace(untried=False)
    with claimed(run, definition.name) as directory:
        return _replicate(plan, first, n_seeds, directory, command, placement)


def _replicate(
    plan: ExperimentConfig,
    first: int,
    n_seeds: int,
    directory: Path,
    command: str | None,
    placement: TaskPlacement | None,
) -> MultiSeedResult:
    run = plan.run
    seeds = [(first + i) % 2**32 for i in range(n_seeds)]
    runs = [run.replace(seed=seed, run_dir=str(directory / f"seed-{seed}")) for seed in seeds]
    if placement is not None:
        definition = parse_agent(plan.agent, **plan.options)
        results = train_on_cluster(placement, definition, runs, command)
    elif catalog.native(run.env, **plain(run.env_kwargs or {})) is not None:
        results = _together(plan, runs, command)
    else:
        results = []
        for each in runs:
            with signals.terminating():  # Ctrl-C ends one seed, the request to terminate all
                results.append(train(plan._replace(run=each), command))
    rewards = [result.outcome.mean_reward for result in results]
    mean = interval(rewards) if all(math.isfinite(x) for x in rewards) else (math.nan, math.nan, math.nan)
    if not run.quiet:
        say(_farewell(plan, results, mean, directory))
    return MultiSeedResult(tuple(results), directory, mean)


def _farewell(
    plan: ExperimentConfig,
    results: Sequence[TrainingResult],
    mean: tuple[float, float, float],
    directory: Path,
) -> str:
    """Say what came out; an interval over seeds that did not go as far as planned would mislead."""
    cut = [result.directory for result in results if result.outcome.reason == "interrupted"]
    if cut:
        lines = [f"Interrupted: {len(cut)} of {len(results)} seeds ({', '.join(each.name for each in cut)})"]
        agent = parse_agent(plan.agent, **plan.options).name
        lines += [f"Continue: {resuming(directory / each.name, agent, plan.run.env)}" for each in cut]
    else:
        value, low, high = (round(x, plan.run.display_precision) for x in mean)
        lines = [f"Mean return over {len(results)} seeds: {value} [{low}, {high}] (95% bootstrap interval)"]
    place = shown(directory)
    return "\n".join(
        [*lines, f"Everything was written to {place}", f"Plot: {quoted('operant', 'plot', place)}"]
    )


def _together(plan: ExperimentConfig, runs: Sequence[RunConfig], command: str | None) -> list[TrainingResult]:
    own = [loggers_of(run.logger) for run in runs]
    definition = parse_agent(plan.agent, **plan.options)
    environments = make_environments(runs[0])
    learner = build(definition, environments, runs[0], len(runs))

    keys = jnp.stack([jax.random.key(run.seed or 0) for run in runs])
    runner = MultiSeedRunner(learner, environments.native, runs[0].n_envs, keys, name=runs[0].env)
    if not runner.mapped:
        threads = threads_together(definition, environments, runs[0], len(runs))
        runs = [run.replace(threads=threads) for run in runs]
    trainings: list[TrainingLoop] = []
    with contextlib.ExitStack() as stack:
        for i, run in enumerate(runs):
            setup = ExperimentSetup(definition, environments, run, learner, runner.drivers[i])
            directory = stack.enter_context(claimed(run, definition.name))
            training = setup.training(run, directory / "checkpoints")
            stack.enter_context(removed_in_vain(training, directory))
            together = len(runs) if runner.mapped else None
            describe(directory, definition.to_dict(), run, environments, command, together=together)
            training.loggers = loggers = create_loggers(
                directory, run.replace(quiet=True), training, own=own[i]
            )
            stack.enter_context(loggers)
            trainings.append(training)
        total = None if runs[0].max_steps is None else runs[0].max_steps * len(runs)
        display = LoggerGroup([console(runs[0].replace(max_steps=total), trainings[0])])
        display.message(
            f"Training {definition.name} on {runs[0].env}: {len(runs)} seeds at once, {runs[0].n_envs} "
            f"environment{'s' if runs[0].n_envs > 1 else ''} each, {environments.how}; seeds {runs[0].seed} "
            f"to {runs[-1].seed}; runs {shown(Path(runs[0].run_dir or '').parent)}"
        )
        for text in definition.remarks(trainings[0].own_steps):
            display.message(text)
        with evaluating(trainings, learner):
            outcomes = _loop(runner, trainings, display)
    return [
        TrainingResult(outcome, Path(run.run_dir or "")) for outcome, run in zip(outcomes, runs, strict=True)
    ]


def _loop(runner: MultiSeedRunner, trainings: Sequence[TrainingLoop], display: LoggerGroup) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    began = logged = time.perf_counter()
    every, told = trainings[0].run.log_frequency, 0

    def ended(i: int, outcome: Outcome) -> None:
        outcomes[i] = outcome
        display.message(f"Seed {trainings[i].run.seed}: {outcome.summary}")

    def failed(i: int, fault: str) -> None:
        raise EnvError(f"Seed {trainings[i].run.seed}: {fault}")

    def show() -> None:
        nonlocal logged, told
        now = time.perf_counter()
        episodes = sum(training.progress.score.episodes for training in trainings)
        if now - logged >= LOG_SECONDS if every is None else episodes // every > told:
            logged, told = now, episodes // (every or 1)
            display.record(_summary(trainings, outcomes, now - began))

    try:
        run_together(runner, dict(enumerate(trainings)), ended, failed, show)
    finally:
        display.close()
    return [outcomes[i] for i in range(len(trainings))]


def run_together(
    runner: MultiSeedRunner,
    trainings: Mapping[int, TrainingLoop],
    ended: Callable[[int, Outcome], object],
    failed: Callable[[int, str], object],
    show: Callable[[], object] = lambda: None,
) -> None:
    """Train some of a runner's runs, by their number in it, until each has ended or failed.

    Args:
        runner: holds their states.
        trainings: the loop of each.
        ended: called with a run's number and how it ended.
        failed: called with a run's number and what was wrong with its environments.
        show: called after each call of the runner.

    Raises:
        Exception: what a call, or one of these functions, raised; what was learnt before is saved.
    """
    wanted: dict[int, int] = {}  # blocks until a run looks
    waited: dict[int, float] = {}  # seconds for those blocks, without what other runs did meanwhile
    finished: dict[int, list[EpisodeTable[EpisodeResult]]] = {i: [] for i in trainings}

    def go_on(i: int, reason: str | None) -> None:
        if reason is None:
            wanted[i], waited[i] = trainings[i].blocks(), 0.0
            return
        wanted.pop(i, None)
        ended(i, trainings[i].end(reason))

    def interrupt() -> None:
        for training in trainings.values():
            training.interrupt()

    try:
        tell = None if next(iter(trainings.values())).run.quiet else wait
        with signals.orderly(interrupt), runtime.on_compilation(tell):
            for i, training in trainings.items():
                go_on(i, training.begin())
            while wanted:
                count = min(wanted.values())
                after = [left - count or trainings[i].ahead() for i, left in wanted.items()]
                began = time.perf_counter()
                episodes = runner.advance(count, wanted, min(after))
                seconds = time.perf_counter() - began
                for i in tuple(wanted):
                    finished[i].append(episodes[i])
                    waited[i] += seconds
                    wanted[i] -= count
                for i in tuple(wanted):
                    if (fault := runner.faults[i]) is not None:
                        failed(i, fault)
                        del wanted[i]
                    elif not wanted[i]:
                        taken, finished[i] = EpisodeTable.joined(EpisodeResult, finished[i]), []
                        go_on(i, trainings[i].take(taken, waited.pop(i)))
                show()
    except Exception:
        for i in wanted:
            unreported = EpisodeTable.of(EpisodeResult, runner.unreported[i])
            trainings[i].fail(EpisodeTable.joined(EpisodeResult, [*finished[i], unreported]))
        raise
    finally:
        runner.settle()


def _summary(trainings: Sequence[TrainingLoop], outcomes: Mapping[int, Outcome], seconds: float) -> Record:
    """Sum up how far all runs are; those that have ended count as of their end."""
    scores = [training.progress.score for training in trainings if training.progress.score.episodes]
    values = {"episode/count": float(sum(score.episodes for score in scores))}
    if scores:
        values["episode/reward_mean"] = sum(score.mean for score in scores) / len(scores)
        values["episode/reward_best"] = max(max(score.mean, score.best) for score in scores)
    steps = [outcomes[i].step if i in outcomes else each.driver.step for i, each in enumerate(trainings)]
    return Record(sum(steps), seconds, values)
