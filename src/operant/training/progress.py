"""How far a run has come: what a later part of it continues from, beside the driver's state; and plateaus."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from operant.spec.run import RunConfig
from operant.tracking.record import Origin
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


class EvaluationScores(NamedTuple):
    """What the evaluations of a run came to so far."""

    step: int = 0
    """Environment steps of training at the last one."""
    mean_reward: float | None = None
    """Mean return of the last one."""
    best_reward: float | None = None
    """Mean return of the best one."""
    best_step: int = 0
    """Environment steps of training at the best one."""

    def next(self, step: int, mean: float) -> EvaluationScores:
        """Return this record with one more evaluation; among equal means the first stays the best."""
        if self.best_reward is None or mean > self.best_reward:
            return EvaluationScores(step, mean, mean, step)
        return self._replace(step=step, mean_reward=mean)


class Progress:
    """How far a run with these options has come, over all its parts."""

    def __init__(self, run: RunConfig) -> None:
        self.score = RollingScore(run.reward_buffer_size)
        self.monitor = Monitor(run)
        self.elapsed = 0.0
        """Seconds of training."""
        self.skipped = 0
        """Gradient steps that were left out because they were not finite."""
        self.origin = Origin()
        self.evaluated = EvaluationScores()
        self.draws = 0
        """Calls so far that drew actions outside of training; each call draws different ones."""
        self.monitored: str | None = None
        """Id of the Weights & Biases run that is written to. Not stored: a copy is a run of its own."""

    def begin_at(self, origin: Origin) -> None:
        """Continue counting from the last episode of an earlier history, before the run begins.

        Steps, time, episodes and the best reward continue. The rolling mean begins anew.
        """
        self.origin, self.elapsed = origin, origin.time
        best = -math.inf if origin.best_reward is None else origin.best_reward
        self.score.go_on(origin.episodes, best)
        self.monitor.episodes = origin.episodes
        self.evaluated = EvaluationScores(origin.step)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data that `restore` takes."""
        return {
            "elapsed": self.elapsed,
            "score": self.score.to_dict(),
            "monitor": self.monitor.to_dict(),
            "skipped": self.skipped,
            "origin": self.origin._asdict(),
            "evaluated": self.evaluated._asdict(),
            "draws": self.draws,
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Continue from what `to_dict` returned, if it is that.

        Raises:
            ValueError: a part is of another kind; names it.
        """
        _expect(data, self.to_dict(), "training")
        self.elapsed = data["elapsed"]
        self.skipped = data["skipped"]
        self.origin = Origin(**data["origin"])
        self.evaluated = EvaluationScores(**data["evaluated"])
        self.draws = data["draws"]
        self.score.restore(data["score"])
        self.monitor.restore(data["monitor"])


def _expect(data: Any, fresh: Any, name: str) -> None:
    """Refuse what is not of the kind of a fresh run's counts; lists are of numbers, or dicts of them."""
    if isinstance(fresh, dict):
        for key in fresh:
            _expect(data[key], fresh[key], key)
        return
    if isinstance(fresh, list) and isinstance(data, list):
        parts = (part.values() if isinstance(part, dict) else [part] for part in data)
        good = name == "due" or all(isinstance(x, int | float) for part in parts for x in part)
    else:
        kind = int if type(fresh) is int else int | float | type(fresh)
        good = isinstance(data, kind) and not isinstance(fresh, list)
    if not good:
        raise ValueError(f"{name} is {data!r:.60}")
