"""What `operant run` adds to a `Runner`: saves of the agent, event files, a record of repeated runs."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from operant.checkpoint import durable
from operant.errors import shown, value_error
from operant.tracking.record import LoggerGroup, Record
from operant.tracking.tensorboard import TensorBoard

if TYPE_CHECKING:
    from operant.execution.runner.runner import Runner

SAVE_SECONDS = 300.0
RECORD_SECONDS = 1.0


class RunnerLogger:
    """A callback of `Runner.run`.

    Args:
        checkpoints: ``DIRECTORY[,NAME]`` where the agent is saved, every five minutes and at the end; None:
            not.
        summaries: ``DIRECTORY[,NAME]``: directory of the event files, in a folder of that name within it;
            None: none.
        horizon: episodes over which returns and lengths are averaged.

    Raises:
        SpecError: the agent cannot be saved under that name.
    """

    def __init__(self, checkpoints: str | None, summaries: str | None, horizon: int) -> None:
        self._directory, _, name = (checkpoints or "").partition(",")
        self._name = name or "agent"
        _expect_place(self._directory, self._name)
        place, _, folder = (summaries or "").partition(",")
        self._loggers = LoggerGroup([] if summaries is None else [TensorBoard(Path(place) / folder)])
        self._horizon = horizon
        self._began = self._saved = self._recorded = time.monotonic()

    def __call__(self, runner: Runner, parallel: int) -> bool:
        """Do what is due; the run goes on."""
        now = time.monotonic()
        if self._directory and now - self._saved >= SAVE_SECONDS:
            with durable.outliving(f"The agent is not saved in {self._directory!r}"):
                self._save(runner)
        if now - self._recorded >= RECORD_SECONDS:
            self._record(runner)
        return True

    def close(self, runner: Runner) -> None:
        """Save, and record what is left."""
        try:
            if self._directory:
                self._save(runner)
        finally:
            self._record(runner)
            self._loggers.close()

    def _save(self, runner: Runner) -> None:
        self._saved = time.monotonic()
        runner.agent.save(self._directory, filename=self._name)

    def _record(self, runner: Runner) -> None:
        self._recorded = time.monotonic()
        values = {"episode/count": float(runner.episodes), "update/count": float(runner.updates)}
        if returns := runner.episode_returns[-self._horizon :]:
            values["episode/reward_mean"] = statistics.fmean(returns)
            values["episode/reward_min"], values["episode/reward_max"] = min(returns), max(returns)
            values["episode/length_mean"] = statistics.fmean(runner.episode_timesteps[-self._horizon :])
        if runner.evaluation and (returns := runner.evaluation_returns[-self._horizon :]):
            values["evaluation/reward_mean"] = statistics.fmean(returns)
            values["evaluation/reward_std"] = statistics.pstdev(returns)
            values["evaluation/length_mean"] = statistics.fmean(runner.evaluation_timesteps[-self._horizon :])
        if runner.agent.engine is not None:
            values |= runner.agent.engine.metrics("run")
        self._loggers.record(Record(runner.timesteps, self._recorded - self._began, values))


def _expect_place(directory: str, name: str) -> None:
    """Refuse, before the run, a place to which the agent could not be saved at its end."""
    from operant import checkpoint

    if not directory:
        return
    received = f"{shown(directory)},{name}"
    if not checkpoint.named_well(name):
        raise value_error("checkpoints", f"a folder and a name that is {checkpoint.NAMED}", received)
    if not checkpoint.replaceable(Path(directory) / name):
        remedy = "Something else is there, which would be lost. Give another name."
        raise value_error(
            "checkpoints", "a folder and the name of a new agent or of a saved one", received, remedy
        )


LISTS = {
    "rewards": "episode_returns",
    "timesteps": "episode_timesteps",
    "seconds": "episode_seconds",
    "agent_seconds": "episode_agent_seconds",
}
"""What is written, and the attribute of a `Runner` that holds it."""


Run = dict[str, list[Any]]
"""What one run recorded."""


def recorded(runner: Runner) -> Run:
    """Return copies of the lists of a run."""
    return {name: list(getattr(runner, attribute)) for name, attribute in LISTS.items()}


def by_episode(runs: Sequence[Run]) -> dict[str, list[list[Any]]]:
    """Return lists ``[episode][repeat]``, as long as the shortest run."""
    return {name: [list(row) for row in zip(*(run[name] for run in runs), strict=False)] for name in LISTS}


def write_runs(runs: Sequence[Run], path: str | Path, style: str | None = None) -> list[Path]:
    """Write ``PATH.json`` and ``PATH.png``, in a style of matplotlib's, and make their folder if missing.

    They show the median over the repeats, and a band from minimum to maximum.
    """
    from matplotlib import style as styles
    from matplotlib.figure import Figure

    path, data = Path(path), by_episode(runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{extension}") for extension in ("json", "png")]
    files[0].write_text(json.dumps(data), encoding="utf-8")
    with styles.context(style or "default"):
        figure = Figure(figsize=(8, 5), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        for axes, name, label in ((upper, "rewards", "return"), (lower, "timesteps", "timesteps")):
            values = np.asarray(data[name], float).reshape(len(data[name]), len(runs))
            episodes = np.arange(1, len(values) + 1)
            if values.size:
                axes.fill_between(episodes, values.min(1), values.max(1), alpha=0.3, linewidth=0)
                axes.plot(episodes, np.median(values, 1))
            axes.set_ylabel(label)
            axes.grid(alpha=0.3)
        lower.set_xlabel("episode")
        figure.savefig(files[1], dpi=120)
    return files
