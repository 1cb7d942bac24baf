"""The reports of a run as a file of lines that spreadsheets and pandas read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from operant.errors import SpecError, reading
from operant.tracking.append_file import AppendFile
from operant.tracking.record import Logger, Record


class MetricsFile(Logger):
    """Appends each record to a file as a line of JSON: `step`, `time`, and the values under their names.

    A value that is not finite is null there, as JSON requires: readers see a missing value. Readable at any
    time, by ``pandas.read_json(path, lines=True)``; a run that dies leaves every record that was written, and
    none twice.

    Args:
        path: the file; one that exists is continued.
        resume_at_step: drop the lines of an existing file that are beyond this step, which a resumed run will
            write again; None keeps all.

    Raises:
        SpecError: something other than a file is at the path.
    """

    must_write = True

    def __init__(self, path: str | Path, *, resume_at_step: int | None = None) -> None:
        self.path = Path(path)
        if self.path.exists():
            if not self.path.is_file():
                raise SpecError(
                    f"{self.path} is no file, so reports cannot be added to it. Move it elsewhere."
                )
            _drop_after(self.path, math.inf if resume_at_step is None else resume_at_step)
        self._file = AppendFile(self.path)

    def record(self, record: Record) -> None:
        """Append a line."""
        values = {
            name: float(value) if math.isfinite(value) else None for name, value in record.values.items()
        }
        row = {"step": record.step, "time": record.time, **values}
        self._file.add(json.dumps(row, allow_nan=False).encode() + b"\n")

    def flush(self) -> None:
        """Force what was written to the disk."""
        self._file.flush()


def read_metrics(path: str | Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return by name where a number was reported (environment steps) and its finite values, in order of time.

    A file that is missing has none. Lines that cannot be read are left out, as are texts.

    Raises:
        SpecError: the file cannot be read.
    """
    path = Path(path)
    points: dict[str, list[tuple[float, float]]] = {}
    with reading(repr(str(path)), SpecError):
        for line in path.read_bytes().splitlines() if path.exists() else ():
            if math.isnan(step := _step(line)):
                continue
            for name, value in json.loads(line).items():
                if name not in Record._fields and isinstance(value, int | float):
                    points.setdefault(name, []).append((step, value))
    return {name: (np.array(pairs)[:, 0], np.array(pairs)[:, 1]) for name, pairs in points.items()}


def _drop_after(path: Path, step: float) -> None:
    """Truncate a file after its last whole line of at most that step; earlier lines stay as they are."""
    end = position = 0
    with open(path, "r+b") as file:
        for line in file:
            at = _step(line)
            if not line.endswith(b"\n") or at > step:
                break
            position += len(line)
            if not math.isnan(at):
                end = position
        file.truncate(end)


def _step(line: bytes) -> float:
    """Return the step of a line; NaN if it is not one of ours."""
    try:
        row: Any = json.loads(line)
        return float(row["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return math.nan
