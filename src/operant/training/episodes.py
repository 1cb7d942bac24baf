"""Finished episodes, and the rolling mean by which progress is judged."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class EpisodeResult(NamedTuple):
    """One finished episode."""

    step: int
    """Environment steps of all actors when it ended."""
    reward: float
    """Undiscounted return."""
    length: int
    """Environment steps."""
    actor: int
    info: Mapping[str, float] = MappingProxyType({})
    """What the environment reported at its last step, by name in `info_keywords`; NaN: nothing."""


class EpisodeStatistics:
    """Return and length of the running episode of each of `n` actors."""

    def __init__(self, n: int) -> None:
        self.reward = np.zeros(n, np.float64)
        self.length = np.zeros(n, np.int64)

    def row(
        self,
        finished: list[EpisodeResult],
        step: int,
        reward: np.ndarray,
        valid: np.ndarray,
        ended: np.ndarray,
        infos: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        """Account for one row of all actors, which brings the run to `step`; append the episodes it ended."""
        self.reward += reward
        self.length += valid
        if not ended.any():
            return
        # Length 0: its environment was lost at the first step.
        for i in np.flatnonzero(ended & (self.length > 0)):
            info = {key: float(values[i]) for key, values in infos.items()}
            finished.append(EpisodeResult(step, float(self.reward[i]), int(self.length[i]), int(i), info))
        self.reward[ended] = 0.0
        self.length[ended] = 0


def info_means(infos: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each reported value over the episodes, by the name of its metric, `info/NAME`."""
    reported: dict[str, list[float]] = {}
    for info in infos:
        for key, value in info.items():
            if math.isfinite(value):
                reported.setdefault(f"info/{key}", []).append(value)
    return {name: sum(values) / len(values) for name, values in reported.items()}


def _sums(values: np.ndarray, window: int, first: int) -> np.ndarray:
    """Return the sums of up to `window` values that end at each place from `first` on.

    Each is added up from its left: so it does not depend on how many are asked for at once.
    """
    parts = [np.add.accumulate(values[:window])[first:]]
    begin = max(first, window) + 1 - window
    if begin + window <= len(values):
        number = len(values) + 1 - window - begin
        if number < 2 * window:
            windows = np.lib.stride_tricks.sliding_window_view(values[begin:], window)
            parts.append(np.add.accumulate(windows, axis=1)[:, -1])
        else:  # the same sums, of all windows at a time
            sums = values[begin : begin + number].copy()
            for i in range(begin + 1, begin + window):
                sums += values[i : i + number]
            parts.append(sums)
    return np.concatenate(parts)


class RollingScore:
    """Rolling mean of the last episodes' returns, and the best that it has been after any episode."""

    def __init__(self, window: int = 100) -> None:
        self.rewards: collections.deque[float] = collections.deque(maxlen=window)
        self.lengths: collections.deque[int] = collections.deque(maxlen=window)
        self.infos: collections.deque[dict[str, float]] = collections.deque(maxlen=window)
        self.best = -math.inf
        self.episodes = 0
        self._kept = -math.inf  # the mean when `improved` last said yes
        self._kept_full = False  # and whether the window was full then

    @property
    def mean(self) -> float:
        """Mean return of the last episodes; NaN before the first."""
        if not self.rewards:
            return math.nan
        return float(np.add.accumulate(self.rewards)[-1]) / len(self.rewards)

    @property
    def full(self) -> bool:
        """Whether the window is full."""
        return len(self.rewards) == self.rewards.maxlen

    def add(
        self,
        rewards: ArrayLike,
        lengths: ArrayLike,
        infos: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add finished episodes, `[E]` each; return the mean and the best mean after each of them, `[E]`."""
        window, before = self.rewards.maxlen or 1, len(self.rewards)
        every = np.concatenate([np.asarray(self.rewards, np.float64), np.asarray(rewards, np.float64)])
        means = _sums(every, window, before) / np.minimum(np.arange(before, len(every)) + 1, window)
        bests = np.maximum.accumulate(np.fmax(means, self.best))
        self.rewards.extend(every[before:][-window:].tolist())
        self.lengths.extend(np.asarray(lengths)[-window:].tolist())
        columns = [values[-window:].tolist() for values in infos.values()]
        for values in zip(*columns, strict=True) if columns else [()] * min(len(means), window):
            named = zip(infos, values, strict=True)
            self.infos.append({key: value for key, value in named if math.isfinite(value)})
        self.episodes += len(means)
        self.best = float(bests[-1])
        return means, bests

    def count(self, episodes: int) -> None:
        """Count episodes of the warm-up, whose actions are no policy's."""
        self.episodes += episodes

    def improved(self) -> bool:
        """Tell whether the mean is better than at any earlier call: whether the policy is worth keeping.

        The mean of a full window beats any mean over fewer episodes: the first one may be lucky.
        """
        if self.rewards and (self.full, self.mean) > (self._kept_full, self._kept):
            self._kept_full, self._kept = self.full, self.mean
            return True
        return False

    @property
    def judged(self) -> bool:
        """Whether `improved` has ever said yes, here or in an earlier history."""
        return math.isfinite(self._kept)

    def go_on(self, episodes: int, best: float) -> None:
        """Continue counting from an earlier history, but not its window: it is another policy's."""
        self.episodes, self.best, self._kept = episodes, best, best
        self._kept_full = math.isfinite(best)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data that `restore` takes."""
        best, kept = (None if math.isinf(x) else x for x in (self.best, self._kept))
        return {
            "rewards": list(self.rewards),
            "lengths": list(self.lengths),
            "infos": list(self.infos) if any(self.infos) else [],
            "best": best,
            "kept": kept,
            "kept_full": self._kept_full,
            "episodes": self.episodes,
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Continue from what `to_dict` returned; episodes counted so far are forgotten."""
        window = self.rewards.maxlen
        self.rewards = collections.deque(data["rewards"], window)
        self.lengths = collections.deque(data["lengths"], window)
        self.infos = collections.deque(data["infos"], window)
        self.best, self._kept = (-math.inf if x is None else x for x in (data["best"], data["kept"]))
        self._kept_full = data["kept_full"]
        self.episodes = data["episodes"]
