"""How far a run has come: what a later part of it continues from, beside the driver's state."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from operant.spec.run import RunConfig
from operant.tracking.record import Origin
from operant.training.episodes import RollingScore
from operant.training.plateau import Monitor


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
        _expect(data, Progress(self.monitor.run).to_dict(), "training")
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
