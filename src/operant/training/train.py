"""One call from options to a trained agent: what `operant train` runs, and a program may call."""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from operant import checkpoint
from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import Learner
from operant.agents.table import config_class
from operant.envs.catalog import full_id, is_own
from operant.envs.vector.base import VectorEnv
from operant.envs.vector.sync_vector import refuse_repeated
from operant.errors import CheckpointError, SpecError, UsageError, quoted, reading, shown, value_error
from operant.spec import default, effective, options, plain, presets, runtime, traced
from operant.spec.run import PROCESSES, TOGETHER, RunConfig, located
from operant.tracking import History, LoggerGroup
from operant.tracking.console import wait
from operant.tracking.history import check_place, end_of
from operant.tracking.record import Logger, Origin
from operant.tracking.runs import BEST, EVALUATIONS, read_run
from operant.tracking.tensorboard import PREFIX
from operant.training import run_dir
from operant.training.environments import Environments, evaluation_count, host_vector, make_environments
from operant.training.evaluate import Evaluation, Evaluator
from operant.training.loggers import create_loggers, loggers_of
from operant.training.loop import TrainingLoop, counted
from operant.training.session import ExperimentSetup, fitting

RESUMABLE = frozenset((
    *TOGETHER, "max_steps", "target_reward", "quiet", "log_frequency", "display_precision", "save_seconds",
    "save_memory", "save_frequency", "keep_checkpoints", "resume", "logger", "eval_frequency",
    "eval_episodes",
))  # fmt: skip
"""Options of a run that may change when it is resumed; the others define the run."""


class ExperimentConfig(NamedTuple):
    """A training run before anything is built or written."""

    agent: Any
    """Specification of the agent."""
    options: dict[str, Any]
    """Hyperparameters beside it; of a run to continue, those that change."""
    run: RunConfig
    resume: Path | None = None
    """Folder of the run to continue."""
    untried: bool = False
    """Whether nobody measured these settings: the run names some that were measured on its environment."""


class TrainingResult(NamedTuple):
    """A finished training run."""

    outcome: Any
    """`operant.training.loop.Outcome`."""
    directory: Path
    """Folder of the run, absolute: `run.json`, `checkpoints/`, `history.parquet/`, `metrics.jsonl`, event
    files."""


def resumed(directory: str | Path, changes: dict[str, Any]) -> ExperimentConfig:
    """Return the plan of the run in a folder, with some options changed.

    Raises:
        SpecError: there is no run in the folder, or an option may not change.
        UsageError: the run has already gone as far as it is now to go.
    """
    directory = Path(directory)
    file = directory / "run.json"
    if not file.is_file():
        raise SpecError(
            f"There is no run to resume in {shown(directory)!r}: {file.name} is "
            f"missing.{run_dir.runs_within(directory)}"
        )
    saved = read_run(file)
    with reading(repr(shown(file))):
        by_program = saved["given"]
        parts = saved.get("resumed", [])
        agent = {**saved["agent"], **{n: v for part in parts for n, v in part.get("options", {}).items()}}
        last = parts[-1] if parts else {}
        limits = {name: last[name] for name in run_dir.LIMITS if name in last}
        RunConfig.from_dict({**saved["run"], **limits})
    known = options(RunConfig)
    hyper = {n: v for n, v in changes.items() if n not in known}
    changes = {n: v for n, v in changes.items() if n in known}
    if "env" in changes:
        changes["env"] = full_id(changes["env"])
    if changes.get("eval_frequency", ...) is None:  # evaluations end
        changes.setdefault("eval_episodes", default(RunConfig, "eval_episodes"))
    numbers = _changeable(agent) if hyper else ()
    typed = located(RunConfig.from_dict({**saved["run"], **limits, **changes})).to_dict()
    refused = [n for n in changes if n not in RESUMABLE and saved["run"].get(n, ...) != typed[n]]
    for name in refused + [n for n, v in hyper.items() if n not in numbers and agent.get(n, ...) != v]:
        raise SpecError(
            f"{name} cannot change when a run is resumed. May change: "
            f"{', '.join(sorted(RESUMABLE - {'resume'}))}, and numbers "
            "that updates use, such as lr. Begin a new run from its weights instead: --weights."
        )
    if by_program:
        raise SpecError(
            f"The run in {shown(directory)!r} was trained in environments that its program made, which "
            f"cannot be made again from {saved['run']['env']!r}. Go on with its agent in that program: "
            f"Agent.load(directory={shown(directory)!r})."
        )
    alone = dict.fromkeys(PROCESSES)
    fresh = {**alone, "quiet": default(RunConfig, "quiet")}
    run = RunConfig.from_dict({**saved["run"], **limits, **fresh, **changes, "run_dir": str(directory)})
    limit = run.max_steps if changes.get("max_steps") is not None else None
    if limit is not None and 0 < limit <= (reached := _reached(directory, limit)):
        raise UsageError(
            f"The run in {shown(directory)!r} has {reached} steps already. Received: max_steps={limit}. "
            "Give more, which counts them in."
        )
    return ExperimentConfig(agent, {n: v for n, v in hyper.items() if n in numbers}, run, directory)


def _changeable(agent: Mapping[str, Any]) -> list[str]:
    """Return the options that may change on resuming: numbers that updates use, and that have an effect."""
    cls = config_class(agent["type"])
    known = options(cls)
    idle = [n for n, meta in known.items() if meta.needs is not None and not effective(meta.needs, agent)]
    return [n for n in traced(cls) if not known[n].settled and n not in idle]


def finished(plan: ExperimentConfig) -> bool:
    """Return whether the run that is to be continued has already reached its limit."""
    limit = plan.run.max_steps
    return plan.resume is not None and limit is not None and _reached(plan.resume, limit) >= limit


def _reached(directory: Path, limit: int) -> int:
    """Return the step of the checkpoint that a run continues from, as `max_steps` counts; 0 if it has none.

    One at the limit or beyond, which leaves nothing to do, is trusted only after all of it has been read.
    """
    place = directory / "checkpoints"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # resuming will say which ones were skipped
        with reading(repr(shown(place))):
            step = _step(checkpoint.newest(place, without=""), limit)
            if step >= limit:
                step = _step(checkpoint.newest(place), limit)
    return step


def _step(saved: checkpoint.Checkpoint | None, limit: int) -> int:
    if saved is None:
        return 0
    numbers = saved.header["training"]
    step, rows, rollout = (int(numbers[name]) for name in ("step", "rows", "rollout"))
    return counted(limit, step, rows, rollout, int(numbers["origin"]["step"]))


def train(plan: ExperimentConfig, command: str | None = None, logger: Any = None) -> TrainingResult:
    """Train as planned; `command` is the command line to record, `logger` one of your own (or a list).

    Everything is built and checked before the run's folder is made: a plan that is refused leaves nothing
    behind. Relative paths are of the working directory at this call.

    Raises:
        OperantError: the plan cannot be carried out; the message names what is wrong and the remedy.
    """
    own = [*loggers_of(plan.run.logger), *loggers_of(logger)]
    with _prepared(plan, command, own) as (training, directory):
        outcome = training.loop()
        training.keep_unjudged()
        training.loggers.message(_farewell(outcome, directory, training))
    return TrainingResult(outcome, directory)


def _of_record(plan: ExperimentConfig) -> contextlib.AbstractContextManager[None]:
    """Name the file of a run that is resumed in all that comes of what it says."""
    if plan.resume is None:
        return contextlib.nullcontext()
    return reading(repr(shown(plan.resume / "run.json")), SpecError)


@contextlib.contextmanager
def _prepared(
    plan: ExperimentConfig, command: str | None, own: Sequence[Logger]
) -> Iterator[tuple[TrainingLoop, Path]]:
    """Build all that a plan needs, and hold the folder of its run meanwhile."""
    run = plan.run
    expect_evaluations(run)
    if run.seed is None:
        run = run.replace(seed=secrets.randbelow(2**31))
    if plan.resume is None:
        run = run.replace(env=full_id(run.env))
    run = located(run)
    with _of_record(plan):
        parse_agent(plan.agent)
    definition = parse_agent(plan.agent, **plan.options)
    if not run.quiet:
        wait(f"Building {definition.name} for {run.env}")
    if plan.resume is None:
        definition = fitting(definition, run.weights)
    # Of several processes that train together, one makes the folder and writes.
    first = run.coordinator is None or runtime.join(run.coordinator, run.n_processes, run.process_id)
    with contextlib.ExitStack() as stack:
        directory = Path(run.run_dir or "runs").absolute()
        if first:
            if plan.resume is None:
                directory = stack.enter_context(run_dir.claimed(run, definition.name))
            else:
                stack.enter_context(run_dir.held(directory))
            stack.enter_context(run_dir.history_held(run.history_checkpoint, directory))
        origin = history_origin(run) if plan.resume is None else Origin()
        if plan.resume is not None and checkpoint.list_checkpoints(directory / "checkpoints"):
            run = run.replace(weights=())  # those that it began from may be gone
        with _of_record(plan):
            environments = make_environments(run)
            stack.callback(environments.close)
            setup = ExperimentSetup(definition, environments, run)
        training = setup.training(run, directory / "checkpoints" if first else None)
        if plan.resume is not None and _restored(training, directory, plan.options):
            if run_dir.has_written_all(directory):
                refuse_rows_of_others(training, run_dir.history_of(run, directory))
        elif plan.resume is None:
            training.progress.begin_at(origin)
        if not first:
            setup.weights.paths = ()
            yield training, directory
            return
        if plan.resume is not None:
            now = definition.to_dict()
            changed = {name: now[name] for name in plan.options if now[name] != plan.agent.get(name, ...)}
            run_dir.describe_resume(directory, training, run, command, changed)
        else:
            stack.enter_context(run_dir.removed_in_vain(training, directory))
            run_dir.describe(directory, definition.to_dict(), run, environments, command, origin=origin)
        begins_anew = plan.resume is not None and _lost_history(directory, run, training)
        training.loggers = create_loggers(directory, run, training, plan.resume is not None, own)
        stack.enter_context(training.loggers)
        for text in (
            _greeting(definition.name, run, environments, directory),
            *(measured_settings(definition.name, run.env) if plan.untried else ()),
            *environments.remarks,
            *definition.remarks(training.own_steps),
        ):
            training.loggers.message(text)
        if training.memory_anew:
            training.loggers.message(
                "The replay memory begins anew: the run's checkpoints leave it out (--no-save-memory)"
            )
        if begins_anew:
            training.loggers.message(
                "The run's history is not there, and begins anew: its "
                f"{training.progress.score.episodes} episodes so far are in no row"
            )
        if origin.step:
            training.loggers.message(
                f"Continuing the history {shown(run.history_checkpoint or '')}: {origin.step} steps, "
                f"{origin.episodes} episodes"
            )
        stack.enter_context(evaluating([training], setup.learner))
        yield training, directory


def expect_evaluations(run: RunConfig) -> None:
    """Refuse evaluations that would begin after a run's end: a SpecError names `eval_frequency`."""
    if run.eval_frequency is not None and run.max_steps is not None and run.eval_frequency > run.max_steps:
        must = f"at most max_steps={run.max_steps}, or nothing is evaluated"
        raise value_error("eval_frequency", must, run.eval_frequency)


@contextlib.contextmanager
def evaluating(
    trainings: Sequence[TrainingLoop], learner: Learner, env: VectorEnv | None = None
) -> Iterator[None]:
    """Have runs of one agent evaluate its policy while they train, if their options say so.

    A run that has a folder writes the results there: `evaluations.parquet`, and the best policy in `best`.
    Without `env`, as many environments as are needed are made, and closed afterwards.

    Raises:
        OperantError: the environments cannot be made.
    """
    run = trainings[0].run
    if run.eval_frequency is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        made = env is None
        env = host_vector(run, evaluation_count(run)) if env is None else env
        refuse_repeated(run.env, getattr(trainings[0].driver, "env", None), env)
        if made:  # closed only then: what is refused trains
            stack.enter_context(env)
        evaluator = Evaluator(learner, env)
        for training in trainings:
            folder = None if training.directory is None else training.directory.parent
            logger = None
            if folder is not None:
                logger = LoggerGroup([History(folder / EVALUATIONS, resume_at_step=training.step)])
                stack.callback(logger.close)
            training.evaluation = Evaluation(
                evaluator,
                run.eval_frequency,
                run.eval_episodes,
                training.run.seed or 0,
                logger,
                None if folder is None else folder / BEST,
            )
        yield


def history_origin(run: RunConfig) -> Origin:
    """Return where the history that a new run continues ends; at zero if the run has one of its own.

    Raises:
        SpecError: the history cannot be read, or cannot be continued.
        UsageError: it already goes as far as the run is to go.
    """
    origin = Origin()
    if run.history_checkpoint is not None:
        check_place(run.history_checkpoint, "history_checkpoint")
        origin = end_of(run.history_checkpoint)
    if run.max_steps is not None and 0 < run.max_steps <= origin.step:
        raise UsageError(
            f"The history {shown(run.history_checkpoint or '')!r} is continued, and it has {origin.step} "
            "steps already. "
            f"Received: max_steps={run.max_steps}. Give more, which counts them in, or another history."
        )
    return origin


def _restored(training: TrainingLoop, directory: Path, changed: Collection[str] = ()) -> bool:
    """Continue from the newest checkpoint of a run; return False if there is none: it begins anew.

    Numbers that updates use are taken from the options if they are in `changed`, else from the checkpoint.

    Raises:
        CheckpointError: there are some, and none can be read.
        SpecError: the run continued another run's history, and its `run.json` does not say where that ended.
    """
    newest = checkpoint.newest(directory / "checkpoints")
    if newest is not None:
        # Beside those, what an earlier part changed that stopped before a checkpoint of its own.
        with reading(repr(shown(newest.path))):
            saved, agent = newest.header["specification"]["agent"], plain(training.specification["agent"])
            changed = {*changed, *(n for n in agent if saved.get(n) != agent[n])}
        training.restore(newest, changed)
    elif checkpoint.list_checkpoints(directory / "checkpoints"):
        raise CheckpointError(
            f"No checkpoint in {shown(directory / 'checkpoints')!r} can be read. Put a whole one there, or "
            "move these elsewhere: then the run begins anew, and so does its history."
        )
    elif training.run.history_checkpoint is not None:
        training.progress.begin_at(first_origin(directory))
    return newest is not None


def first_origin(directory: Path) -> Origin:
    """Return where a run began that has no checkpoint; SpecError: its `run.json` does not say so."""
    with reading(repr(shown(directory / "run.json"))):
        origin = read_run(directory / "run.json")["origin"]
    if origin is None:
        raise SpecError(
            f"There is no checkpoint to resume from in {shown(directory / 'checkpoints')!r}. Train anew, in "
            "another folder."
        )
    return Origin(**origin)


def _lost_history(directory: Path, run: RunConfig, training: TrainingLoop) -> bool:
    """Tell whether a run that is resumed has had episodes, but its history is gone."""
    history = run_dir.history_of(run, directory)
    assert history is not None
    return training.progress.score.episodes > 0 and not any(history.glob("*.parquet"))


def refuse_rows_of_others(training: TrainingLoop, history: Path | None) -> None:
    """Refuse to continue a history that another run has continued since: its rows would be dropped.

    Raises:
        UsageError: it has rows beyond the step where the run stands, which has written all of its own.
    """
    if history is not None and (reached := end_of(history).step) > training.step:
        raise UsageError(
            f"This run ended at step {training.step}, and the history {shown(history)!r} goes up to step "
            f"{reached}: another run has continued it. Start a new run that continues the history, from this "
            "one's weights (--weights), or continue the other run."
        )


def _greeting(agent: str, run: RunConfig, environments: Environments, directory: Path) -> str:
    return (
        f"Training {agent} on {run.env}: {run.n_envs} environment{'s' if run.n_envs > 1 else ''}, "
        f"{environments.how}; seed {run.seed}; run {shown(directory)}"
    )


def measured_settings(agent: str, env: str) -> Iterator[str]:
    """Name settings that were measured on an environment: the agent's own, or else the best of others."""
    measured = [p for p in presets.every() if p.settings["env"] == env and p.measured is not None]
    own = [p for p in measured if p.agent == agent]
    best = sorted(measured, key=lambda p: p.measured or 0.0, reverse=True)[:2]
    names = [f"--preset {p.name}" for p in own] or [
        f"operant train {p.agent} --preset {p.name}" for p in best
    ]
    if names:
        yield f"Settings measured on {env}: {' or '.join(names)} (their scores: operant list presets)"


def resuming(directory: str | Path, agent: str, env: str) -> str:
    """Return the command that continues a run; it names what comes from the user's modules."""
    words = ["operant", "train", *([agent] if is_own(agent) else []), "--resume", shown(directory)]
    return quoted(*words, *(["--env", env] if is_own(env) else []))


def _farewell(outcome: Any, directory: Path, training: TrainingLoop) -> str:
    lines, run, place = [outcome.summary], training.run, shown(directory)
    gone = [name for name in ("run.json", f"{PREFIX}*") if not any(directory.glob(name))]
    if gone:
        lost = "" if "run.json" not in gone else " Without run.json the run cannot be resumed."
        lines.append(f"{' and '.join(gone)} are missing in {shown(directory)}: removed meanwhile.{lost}")
    else:
        lines.append(f"Everything was written to {place}")
        agent, bare = training.definition.name, run.env.rpartition(":")[2]
        named = [agent] if is_own(agent) else []
        look = ["--video-dir", "videos"] if bare in gymnasium.registry else ["--episodes", "10"]
        own = ["--env", run.env] if is_own(run.env) else []
        lines += [
            f"Watch:       {quoted('operant', 'play', *named, place, *own, *look)}",
            f"Plot:        {quoted('operant', 'plot', place)}",
        ]
        if importlib.util.find_spec("tensorboard") is not None:
            lines.append(f"TensorBoard: {quoted('tensorboard', '--logdir', place)}")
        more = " --target-reward none" if outcome.reason == "target" else ""
        if outcome.reason in ("target", "max_steps"):
            more += f" --max-steps {2 * max(run.max_steps or 0, outcome.step)}"
        lines.append(f"Continue:    {resuming(directory, agent, run.env)}{more}")
    return "\n".join(lines)
