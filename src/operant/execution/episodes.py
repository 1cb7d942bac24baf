"""Finished episodes, and the rolling mean by which progress is judged."""

from __future__ import annotations

import collections
import math
from typing import Any, NamedTuple

import numpy as np


class Finished(NamedTuple):
    """One finished episode."""

    step: int
    """Environment steps of all actors when it ended."""
    reward: float
    """Undiscounted return."""
    length: int
    """Environment steps."""
    actor: int


class Accounts:
    """Return and length of the running episode of each of `n` actors."""

    def __init__(self, n: int) -> None:
        self.reward = np.zeros(n, np.float64)
        self.length = np.zeros(n, np.int64)

    def row(
        self, finished: list[Finished], step: int, reward: np.ndarray, valid: np.ndarray, ended: np.ndarray
    ) -> None:
        """Account for one row of all actors, after which the run stands at `step`; append the episodes that it ended."""
        self.reward += reward
        self.length += valid
        if not ended.any():
            return
        for i in np.flatnonzero(ended):
            finished.append(Finished(step, float(self.reward[i]), int(self.length[i]), int(i)))
        self.reward[ended] = 0.0
        self.length[ended] = 0


class Score:
    """Rolling mean of the last episodes' returns, and the best that it has been."""

    def __init__(self, window: int = 100) -> None:
        self.rewards: collections.deque[float] = collections.deque(maxlen=window)
        self.lengths: collections.deque[int] = collections.deque(maxlen=window)
        self.best = -math.inf
        self.episodes = 0

    @property
    def mean(self) -> float:
        """Mean return of the last episodes; NaN before the first."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else math.nan

    @property
    def mean_length(self) -> float:
        """Mean length of the last episodes; NaN before the first."""
        return sum(self.lengths) / len(self.lengths) if self.lengths else math.nan

    @property
    def full(self) -> bool:
        """Whether as many episodes as the window holds were seen."""
        return len(self.rewards) == self.rewards.maxlen

    def add(self, reward: float, length: int) -> None:
        """Add one finished episode."""
        self.rewards.append(reward)
        self.lengths.append(length)
        self.episodes += 1

    def update_best(self) -> bool:
        """Compare the mean with the best so far; return whether it is a new best."""
        if self.rewards and self.mean > self.best:
            self.best = self.mean
            return True
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data that `restore` takes."""
        best = None if math.isinf(self.best) else self.best
        return {
            "rewards": list(self.rewards),
            "lengths": list(self.lengths),
            "best": best,
            "episodes": self.episodes,
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Continue from there."""
        self.rewards.extend(data["rewards"])
        self.lengths.extend(data["lengths"])
        self.best = -math.inf if data["best"] is None else data["best"]
        self.episodes = data["episodes"]
