"""What training reports: records, which loggers write. The training loop knows no particular logger."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from operant.errors import SpecError, as_number


class Record(NamedTuple):
    """Values at one moment of a run."""

    step: int
    """Environment steps so far."""
    time: float
    """Seconds of training so far, continued on resume."""
    values: dict[str, float]
    """By documented name, `group/name`."""


def numbers(values: Mapping[Any, Any]) -> dict[str, float]:
    """Return the values of a record as loggers take them, after a callback may have changed them.

    Raises:
        SpecError: a value is no number (a truth value counts as 0 or 1), or a name cannot be one.
    """
    scalars = {}
    for name, value in values.items():
        if not isinstance(name, str) or name in ("", *Record._fields):
            raise SpecError(
                "A callback's names in record.values must be strings such as 'mine/score', none of "
                f"{', '.join(Record._fields)}. Received: {name!r}."
            )
        number = as_number(value)
        if number is None:
            raise SpecError(
                f"A callback's record.values[{name!r}] must be a number. Received: {value!r} "
                f"({type(value).__name__}). Add one name for each number: record.values['mine/score'] = 1.0."
            )
        scalars[name] = number
    return scalars


class EpisodeRecord(NamedTuple):
    """One finished episode."""

    step: int
    time: float
    episode_reward: float
    length: int
    actor: int
    mean_reward: float
    """Mean of the last episodes, this one included; NaN in the warm-up, whose actions are random."""
    best_reward: float
    """Best mean so far, this one included; NaN in the warm-up."""
    info: Mapping[str, float] = MappingProxyType({})
    """What the environment reported at its last step, by name in `info_keywords`; NaN: nothing."""


class Origin(NamedTuple):
    """Where a run's counts begin: at zero, or at the end of the history that it continues."""

    step: int = 0
    time: float = 0.0
    episodes: int = 0
    best_reward: float | None = None


class Logger:
    """What writes records: operant's own loggers, and those of users. Each overrides what concerns it."""

    must_write = False
    """Whether what it could not write by the end is an error, as of files that a run is read from."""

    def begin(self, options: Mapping[str, Any]) -> None:
        """Take what is to be trained, before all else: `agent` and `run`, options by name, as JSON data."""

    def episodes(self, episodes: list[EpisodeRecord]) -> None:
        """Take finished episodes, in order of time."""

    def record(self, record: Record) -> None:
        """Take values."""

    def message(self, text: str) -> None:
        """Take a line for the user."""

    def flush(self) -> None:
        """Force what was taken to the disk: a checkpoint that counts on it is about to be written."""

    def close(self) -> None:
        """Write what is left."""
