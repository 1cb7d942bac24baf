"""Divergence monitoring: lower the learning rate on a plateau, stop after several plateaus."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from operant.spec.run import RunConfig
from operant.training.episodes import RollingScore

Verdict: TypeAlias = Literal["reduce", "stop"]


class Monitor:
    """Counts checks, every `reward_buffer_size` episodes, without improvement of the best rolling mean.

    After `plateau_reduce_patience` of them the learning rate is to be lowered; after `early_stop_patience`
    reductions without an improvement between them, training is to stop. Active from
    `divergence_monitoring_steps` on.
    """

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        self.best: float | None = None
        self.plateau = 0
        self.reductions = 0
        self.episodes = 0
        self.due: list[Verdict] = []
        """What the loop is to do when it next looks."""

    def until_check(self, steps: np.ndarray, episodes: int) -> int:
        """Return how many of the episodes that end at these steps come up to the next check, if any does.

        `episodes` have ended before.
        """
        after = self.run.divergence_monitoring_steps
        if after is None:
            return len(steps)
        missing = self.run.reward_buffer_size - (episodes - self.episodes)
        return max(missing, int(np.searchsorted(steps, after)) + 1)

    def check(self, step: int, score: RollingScore) -> None:
        """Judge the rolling mean after an episode that ended at this step, if a check is due."""
        after = self.run.divergence_monitoring_steps
        if after is None or step < after or score.episodes - self.episodes < self.run.reward_buffer_size:
            return
        self.episodes = score.episodes
        if self.best is None or score.mean > self.best:
            self.best, self.plateau, self.reductions = score.mean, 0, 0
            return
        self.plateau += 1
        if self.plateau < self.run.plateau_reduce_patience:
            return
        self.plateau = 0
        self.reductions += 1
        self.due.append("stop" if self.reductions >= self.run.early_stop_patience else "reduce")

    def verdicts(self) -> list[Verdict]:
        """Return what is to be done now, in order."""
        due, self.due = self.due, []
        return due

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data that `restore` takes."""
        return {name: getattr(self, name) for name in ("best", "plateau", "reductions", "episodes", "due")}

    def restore(self, data: dict[str, Any]) -> None:
        """Continue counting."""
        vars(self).update({name: data[name] for name in self.to_dict()})
