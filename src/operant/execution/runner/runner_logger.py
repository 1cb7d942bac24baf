"""What accompanies a `Runner` started from a shell: saves of the agent, and event files for TensorBoard."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from operant.checkpoint import durable
from operant.errors import shown, value_error
from operant.tracking.logger_group import LoggerGroup
from operant.tracking.record import Record
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
        self._logger = None if summaries is None else LoggerGroup([TensorBoard(Path(place) / folder)])
        self._horizon = horizon
        self._began = self._saved = self._recorded = time.monotonic()

    def __call__(self, runner: Runner, parallel: int) -> bool:
        """Do what is due; the run goes on."""
        now = time.monotonic()
        if self._directory and now - self._saved >= SAVE_SECONDS:
            with durable.outliving(f"The agent is not saved in {self._directory!r}"):
                self._save(runner)
        if self._logger is not None and now - self._recorded >= RECORD_SECONDS:
            self._record(runner)
        return True

    def close(self, runner: Runner) -> None:
        """Save, and record what is left."""
        try:
            if self._directory:
                self._save(runner)
        finally:
            if self._logger is not None:
                self._record(runner)
                self._logger.close()

    def _save(self, runner: Runner) -> None:
        self._saved = time.monotonic()
        runner.agent.save(self._directory, filename=self._name)

    def _record(self, runner: Runner) -> None:
        assert self._logger is not None
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
        self._logger.record(Record(runner.timesteps, self._recorded - self._began, values))


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
