"""What training reports: records, which loggers write. The training loop knows no particular logger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar, overload

import numpy as np

from operant.errors import SpecError, as_number

Row = TypeVar("Row", bound=tuple[Any, ...])


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


class EpisodeTable(Sequence[Row]):
    """Finished episodes as columns, in order of time; a row is made where one is asked for.

    With thousands of environments, objects for their episodes would take longer than learning from them.

    Args:
        row: kind of the rows, with a field `info`: `EpisodeRecord`, for one.
        columns: each other field of the rows, `[episodes]`.
        info: what environments reported, `[episodes]` by name; NaN: nothing.
    """

    def __init__(
        self, row: type[Row], columns: Mapping[str, np.ndarray], info: Mapping[str, np.ndarray] | None = None
    ) -> None:
        self.row = row
        self.columns = dict(columns)
        self.info = dict(info or {})

    @classmethod
    def of(cls, row: type[Row], rows: Sequence[Row]) -> EpisodeTable[Row]:
        """Return rows as a table, which they may be already."""
        if isinstance(rows, EpisodeTable):
            return rows
        *names, _ = row._fields  # type: ignore[attr-defined]
        *columns, infos = zip(*rows, strict=True) if rows else [()] * (len(names) + 1)
        keys = dict.fromkeys(key for info in infos for key in info)
        return cls(
            row,
            {name: np.asarray(column) for name, column in zip(names, columns, strict=True)},
            {key: np.asarray([info.get(key, np.nan) for info in infos], np.float64) for key in keys},
        )

    @classmethod
    def joined(cls, row: type[Row], parts: Sequence[EpisodeTable[Row]]) -> EpisodeTable[Row]:
        """Return the rows of all parts, one part after the other."""
        parts = [part for part in parts if len(part)]
        if len(parts) < 2:
            return parts[0] if parts else cls.of(row, ())
        info = {}
        for key in dict.fromkeys(key for part in parts for key in part.info):
            info[key] = np.concatenate([part.info.get(key, np.full(len(part), np.nan)) for part in parts])
        names = parts[0].columns
        return cls(
            row, {name: np.concatenate([part.columns[name] for part in parts]) for name in names}, info
        )

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __iter__(self) -> Iterator[Row]:
        columns = [column.tolist() for column in self.columns.values()]
        if not self.info:
            return iter(map(self.row, *columns))
        rows = zip(*(column.tolist() for column in self.info.values()), strict=True)
        return iter(map(self.row, *columns, [dict(zip(self.info, row, strict=True)) for row in rows]))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Row | Self:
        if not isinstance(index, slice):
            place = range(len(self))[index]
            return next(iter(self[place : place + 1]))
        columns, info = ({k: x[index] for k, x in each.items()} for each in (self.columns, self.info))
        return type(self)(self.row, columns, info)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


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

    def episodes(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Take finished episodes, in order of time."""

    def record(self, record: Record) -> None:
        """Take values."""

    def message(self, text: str) -> None:
        """Take a line for the user."""

    def flush(self) -> None:
        """Force what was taken to the disk: a checkpoint that counts on it is about to be written."""

    def close(self) -> None:
        """Write what is left: what `flush` writes, unless there is more to do."""
        self.flush()
