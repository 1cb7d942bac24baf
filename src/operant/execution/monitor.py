"""Divergence monitoring: lower the learning rate on a plateau, stop after several plateaus."""

from __future__ import annotations

from typing import Any, Literal

from operant.execution.config import RunConfig
from operant.execution.episodes import Score


class Monitor:
    """Counts looks without improvement of the best rolling mean; a look is due every `reward_buffer_size` episodes.

    After `plateau_reduce_patience` of them the learning rate is to be lowered; after `early_stop_patience` reductions
    without an improvement between them, training is to stop. Active from `divergence_monitoring_steps` on.
    """

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        self.best: float | None = None
        self.plateau = 0
        self.reductions = 0
        self.episodes = 0

    def look(self, step: int, score: Score) -> Literal["reduce", "stop"] | None:
        """Judge the rolling mean, if it is time."""
        after = self.run.divergence_monitoring_steps
        if after is None or step < after or score.episodes - self.episodes < self.run.reward_buffer_size:
            return None
        self.episodes = score.episodes
        if self.best is None or score.mean > self.best:
            self.best, self.plateau, self.reductions = score.mean, 0, 0
            return None
        self.plateau += 1
        if self.plateau < self.run.plateau_reduce_patience:
            return None
        self.plateau = 0
        self.reductions += 1
        return "stop" if self.reductions >= self.run.early_stop_patience else "reduce"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data that `restore` takes."""
        return {name: getattr(self, name) for name in ("best", "plateau", "reductions", "episodes")}

    def restore(self, data: dict[str, Any]) -> None:
        """Continue counting."""
        vars(self).update(data)
