"""The loggers of a training run, as its options say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from operant.errors import value_error, working_directory
from operant.spec import import_object
from operant.spec.run import RunConfig
from operant.tracking.console import Console
from operant.tracking.history import History
from operant.tracking.logger_group import LoggerGroup
from operant.tracking.metrics import MetricsFile
from operant.tracking.record import Logger, Origin
from operant.tracking.tensorboard import TensorBoard
from operant.tracking.wandb import WandB
from operant.training.loop import TrainingLoop
from operant.training.run_dir import history_of


def create_loggers(
    directory: Path | None,
    run: RunConfig,
    training: TrainingLoop,
    again: bool = False,
    own: Sequence[Logger] = (),
) -> LoggerGroup:
    """Return what a run writes: history, metrics, event files, console, and the user's `own` loggers.

    Without a folder that is what options name. If a run is continued (`again`), what it wrote beyond its
    current step is dropped.
    """
    resume = training.step if again or training.driver.step else None
    history = history_of(run, directory)
    loggers: list[Any] = [] if history is None else [History(history, resume_at_step=resume)]
    if directory is not None:
        loggers.append(MetricsFile(directory / "metrics.jsonl", resume_at_step=resume))
        loggers.append(TensorBoard(directory, resume_at_step=resume))
    loggers.append(console(run, training))
    if run.monitor_session is not None:
        loggers.append(monitored(directory, run, training))
    group = LoggerGroup([*loggers, *own])
    group.begin({"agent": training.specification["agent"], "run": run.to_dict()})
    return group


def loggers_of(given: Any) -> list[Logger]:
    """Return loggers of the user's own: objects, or `module:Name` of classes and functions that make one.

    Raises:
        SpecError: something else was given, or it cannot be imported.
    """
    many = given if isinstance(given, list | tuple) else () if given is None else (given,)
    loggers = [import_object(one, "logger")() if isinstance(one, str) else one for one in many]
    for one in loggers:
        wanted = [name for name, method in vars(Logger).items() if callable(method)]
        if lacking := [name for name in wanted if not callable(getattr(one, name, None))]:
            raise value_error(
                "logger",
                f"an object with the methods of operant.tracking.Logger (it has no {', '.join(lacking)})",
                one,
                "Let its class inherit from operant.tracking.Logger.",
            )
    return loggers


def console(run: RunConfig, training: TrainingLoop) -> Console:
    """Return the console of a run, which counts on from where the run is."""
    progress = training.progress
    return Console(
        max_steps=run.max_steps,
        target_reward=run.target_reward,
        display_precision=run.display_precision,
        quiet=run.quiet,
        start=Origin(training.step, progress.elapsed, progress.score.episodes, progress.score.best),
    )


def monitored(directory: Path | None, run: RunConfig, training: TrainingLoop) -> WandB:
    """Return the W&B logger of a run; a later part continues the W&B run that folder or progress name."""
    file = None if directory is None else directory / "wandb" / "id"
    known = training.progress.monitored
    if file is not None:
        known = file.read_text(encoding="utf-8").strip() if file.is_file() else None
    assert run.monitor_session is not None
    config = {"agent": training.specification["agent"], "run": run.to_dict()}
    logger = WandB(run.monitor_session, directory or working_directory(), config, known)
    training.progress.monitored = logger.id
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(logger.id + "\n", encoding="utf-8")
    return logger
