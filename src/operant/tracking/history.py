"""The history of a run: one row per episode, in Parquet, on the disk within seconds.

A Parquet file cannot be read before it is closed, so a history is a folder of part files, and the last part
is written again with every flush until it is full. Each write goes to a temporary name and is then renamed:
whenever the process dies, the folder is a valid history without double rows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from operant.errors import SpecError, as_folder, shown, value_error
from operant.tracking.record import EpisodeRecord, EpisodeTable, Logger, Origin, Record

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = {
    "mean_reward": "float64",
    "best_reward": "float64",
    "episode_reward": "float64",
    "step": "int64",
    "time": "float64",
}
"""The documented columns and their dtypes; see `EpisodeRecord` for what they mean."""

OPTIONAL = {"episode_length": "int64", "actor": "int64"}
"""Columns beside them, which a history written elsewhere may lack."""

INFO = "info/"
"""Prefix of columns that hold what environments reported at the end of episodes (`info_keywords`). A history
may have any of these."""

_FIELDS = {"episode_length": "length"}  # columns whose name is not that of the field of `EpisodeRecord`
_PART = re.compile(r"part-([0-9]{6})\.parquet")


class History(Logger):
    """Writes episodes to the folder `path`; one that exists is continued.

    Readable at any time by `read_history`, and by `pyarrow.parquet.read_table(path)` or
    `pandas.read_parquet(path)`.

    Args:
        path: folder, named ``*.parquet``.
        resume_at_step: drop the rows of an existing history that are beyond this step, which a resumed run
            will write again; None keeps all.

    Raises:
        SpecError: for another ending, a path that is a single file, or a history of other columns.
    """

    must_write = True

    def __init__(
        self,
        path: str | Path,
        *,
        resume_at_step: int | None = None,
        flush_seconds: float = 5.0,
        flush_rows: int = 50_000,
        part_rows: int = 50_000,
    ) -> None:
        from operant.checkpoint import durable  # brings JAX, which those who only read do not need

        self.path = check_place(path)
        self._flush_seconds = flush_seconds
        self._flush_rows = flush_rows
        self._part_rows = part_rows
        self._part = 0  # number of the part that is being filled
        self._written: pa.Table | None = None  # the rows of that part that are on the disk
        self._waiting: list[EpisodeTable[EpisodeRecord]] = []
        self._rows = 0  # of those that wait
        self._flushed = time.monotonic()
        self.path.mkdir(parents=True, exist_ok=True)
        for leftover in self.path.glob(f"{durable.TEMPORARY}*"):
            leftover.unlink()
        if resume_at_step is not None:
            _drop_after(self.path, resume_at_step)
        self._continue()

    def episodes(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Take in finished episodes."""
        if len(episodes):
            self._waiting.append(EpisodeTable.of(EpisodeRecord, episodes))
            self._rows += len(episodes)
        self._flush_if_due()

    def record(self, record: Record) -> None:
        """Look at the clock: scalars are not part of the history."""
        self._flush_if_due()

    def flush(self) -> None:
        """Write the episodes that wait."""
        self._flushed = time.monotonic()
        while self._waiting:
            old = 0 if self._written is None else self._written.num_rows
            waiting, room = EpisodeTable.joined(EpisodeRecord, self._waiting), self._part_rows - old
            self._waiting = [waiting]
            rows = _table(waiting[:room])
            if self._written is not None:
                rows = _joined([self._written, rows]).combine_chunks()
            self.path.mkdir(parents=True, exist_ok=True)  # if it was removed, the rest can still be kept
            _write(self.path / f"part-{self._part:06d}.parquet", rows)
            # Only now: a failed write is tried again with the next flush.
            self._waiting = [waiting[room:]] if len(waiting) > room else []
            self._rows = max(0, len(waiting) - room)
            self._written = rows
            if rows.num_rows >= self._part_rows:
                self._part += 1
                self._written = None

    def _flush_if_due(self) -> None:
        late = time.monotonic() - self._flushed >= self._flush_seconds
        if self._waiting and (late or self._rows >= self._flush_rows):
            self.flush()

    def _continue(self) -> None:
        """Continue the last part of an existing history if it is not full."""
        parts = _parts(self.path)
        for part in parts:
            _check_columns(part)
        numbered = [part for part in parts if _PART.fullmatch(part.name)]
        if not numbered:
            return
        last = numbered[-1]
        self._part = int(last.stem.removeprefix("part-"))
        rows = _read([last])
        if rows.num_rows >= self._part_rows:
            self._part += 1
        else:
            self._written = rows


def check_place(path: str | Path, argument: str = "history") -> Path:
    """Return the path of a history that can be written or continued; its contents are not looked at.

    Raises:
        SpecError: another ending, or a path that is or is inside a file; names the `argument`.
    """
    if Path(path).suffix != ".parquet":
        raise value_error(argument, "a path that ends with .parquet", shown(path))
    if Path(path).is_file():
        raise SpecError(
            f"The history {shown(path)} is a single file, which cannot be continued. Received: "
            f"{argument}={shown(path)!r}. Give another path: operant makes a folder of that name."
        )
    return as_folder(argument, path, shown(path))


def read_history(path: str | Path) -> dict[str, np.ndarray]:
    """Read a history: a folder that `History` wrote, or a single Parquet file.

    Returns:
        The columns by name, each `[episodes]`, sorted by step, then time. A history that was written
        elsewhere may lack `episode_length` and `actor`; they are -1 then. Columns `info/NAME` are NaN where
        none was reported.

    Raises:
        SpecError: if there is none, it cannot be read, or a documented column is missing.
    """
    path = Path(path)
    if not path.exists():
        raise SpecError(f"The history {path} does not exist.")
    parts = [path] if path.is_file() else _parts(path)
    if not parts and path.suffix != ".parquet":  # a history of that name may have no rows yet
        raise SpecError(
            f"The folder {path} is not a history: it holds no Parquet files. Give the history of a run: "
            "RUN/history.parquet."
        )
    table = _read(parts)
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    order = np.lexsort((columns["time"], columns["step"]))
    return {name: np.ascontiguousarray(column[order]) for name, column in columns.items()}


def end_of(path: str | Path) -> Origin:
    """Return the end of a history's last episode, zero if there is none; SpecError: it cannot be read."""
    if not Path(path).exists():
        return Origin()
    rows = read_history(path)
    count = len(rows["step"])
    if not count:
        return Origin()
    best = rows["best_reward"][np.isfinite(rows["best_reward"])]
    return Origin(
        int(rows["step"][-1]), float(rows["time"].max()), count, float(best.max()) if len(best) else None
    )


def _parts(folder: Path) -> list[Path]:
    """Parquet files in a folder, in the order in which they were written."""
    return sorted(
        part for part in folder.glob("*.parquet") if not part.name.startswith((".", "_")) and part.is_file()
    )


def _schema() -> pa.Schema:
    import pyarrow as pa

    types = {"float64": pa.float64(), "int64": pa.int64()}
    return pa.schema([(name, types[dtype]) for name, dtype in {**COLUMNS, **OPTIONAL}.items()])


def _table(episodes: EpisodeTable[EpisodeRecord]) -> pa.Table:
    import pyarrow as pa

    columns = {
        name: np.ascontiguousarray(episodes.columns[_FIELDS.get(name, name)], dtype)
        for name, dtype in {**COLUMNS, **OPTIONAL}.items()
    }
    for key, values in episodes.info.items():
        columns[INFO + key] = np.ascontiguousarray(values, np.float64)
    # `pa.array` would load pandas, to see whether they are of its kind.
    arrays = [
        pa.Array.from_buffers(pa.from_numpy_dtype(x.dtype), len(x), [None, pa.py_buffer(x)])
        for x in columns.values()
    ]
    return pa.Table.from_arrays(arrays, names=list(columns))


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables; where one lacks a column of `info`, it has no value there, which reads as NaN."""
    import pyarrow as pa

    return pa.concat_tables(tables, promote_options="default")


def _unreadable(part: Path, error: Exception) -> SpecError:
    """Return the error of a file that cannot be read; of one of several, with what to do without it."""
    remedy = " Move it elsewhere to go on without its episodes." if _PART.fullmatch(part.name) else ""
    return SpecError(f"The history file {part} cannot be read: {str(error).rstrip('.')}.{remedy}")


def _check_columns(part: Path) -> None:
    import pyarrow.parquet as pq

    try:
        given = pq.read_schema(part).names
    except Exception as error:  # Arrow has errors of its own
        raise _unreadable(part, error) from None
    names = set(given)
    others = {name for name in names - COLUMNS.keys() - OPTIONAL.keys() if not name.startswith(INFO)}
    if not COLUMNS.keys() <= names or others or len(names) < len(given):
        raise SpecError(
            f"{part} is not a history. Expected the following columns: {', '.join(COLUMNS)} "
            f"(and {', '.join(OPTIONAL)}), got {', '.join(sorted(given))}."
        )


def _read(parts: Sequence[Path]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema()
    tables = []
    for part in parts:
        _check_columns(part)
        try:
            table = pq.ParquetFile(part).read()
            for name in OPTIONAL.keys() - set(table.column_names):
                table = table.append_column(name, pa.array(np.full(table.num_rows, -1)))
            infos = [name for name in table.column_names if name.startswith(INFO)]
            full = pa.schema([*schema, *((name, pa.float64()) for name in infos)])
            tables.append(table.select(full.names).cast(full))
            if lacking := [name for name in COLUMNS if tables[-1].column(name).null_count]:
                raise ValueError(f"its column {lacking[0]!r} has rows without a number")
        except Exception as error:
            raise _unreadable(part, error) from None
    return _joined(tables) if tables else schema.empty_table()


def _write(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    from operant.checkpoint import durable

    with durable.replaced(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _drop_after(folder: Path, step: int) -> None:
    """Remove the rows beyond a step, from the last part back: the rest is a valid history at any moment."""
    for part in reversed(_parts(folder)):
        rows: Any = _read([part])
        kept = rows.filter(rows.column("step").to_numpy() <= step)
        if not kept.num_rows:
            part.unlink()
        elif kept.num_rows < rows.num_rows:
            _write(part, kept)
