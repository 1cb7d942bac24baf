"""What training tells: records, which sinks write. The training loop knows no sink."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Record(NamedTuple):
    """Values at one moment of a run."""

    step: int
    """Environment steps so far."""
    time: float
    """Seconds of training so far, continued on resume."""
    values: dict[str, float]
    """By documented name, `group/name`."""


class Episode(NamedTuple):
    """One finished episode."""

    step: int
    time: float
    episode_reward: float
    length: int
    actor: int
    mean_reward: float
    """Mean of the last episodes, this one included."""
    best_reward: float
    """Best that the mean has been, this one included."""


class Origin(NamedTuple):
    """Where the counts of a run begin: at nothing, or where the history ends that it continues."""

    step: int = 0
    time: float = 0.0
    episodes: int = 0
    best_reward: float | None = None


class Sink(Protocol):
    """What writes records."""

    def episodes(self, episodes: list[Episode]) -> None:
        """Take finished episodes, in order of time."""
        ...

    def record(self, record: Record) -> None:
        """Take values."""
        ...

    def message(self, text: str) -> None:
        """Take a line for the user."""
        ...

    def flush(self) -> None:
        """Put what was taken on the disk: a checkpoint is about to say that it is there."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...
