"""Sink that writes event files for TensorBoard."""

from __future__ import annotations

import time
from pathlib import Path

from operant.execution.records import Episode, Record


class TensorBoard:
    """Writes every record's scalars at their true environment step, under their names of `METRICS`.

    Args:
        directory: where the event files go; made if missing. View them by ``tensorboard --logdir DIRECTORY``.
        resume_at_step: hides what an earlier process wrote beyond this step, which a resumed run writes again.
    """

    def __init__(self, directory: str | Path, *, resume_at_step: int | None = None) -> None:
        from tensorboardX import SummaryWriter

        purge = None if resume_at_step is None else resume_at_step + 1
        # File names tell whole seconds: without the suffix, a run resumed at once would overwrite the first file.
        suffix = f".{time.time_ns()}"
        self._writer = SummaryWriter(str(directory), purge_step=purge, flush_secs=10, filename_suffix=suffix)

    def episodes(self, episodes: list[Episode]) -> None:
        """Single episodes are left to the history; records carry their averages."""

    def record(self, record: Record) -> None:
        """Write scalars."""
        for name, value in record.values.items():
            self._writer.add_scalar(name, value, record.step)

    def message(self, text: str) -> None:
        """Messages are left to the console."""

    def flush(self) -> None:
        """Put what was written on the disk."""
        self._writer.flush()

    def close(self) -> None:
        """Force what was written to the disk and close the file."""
        self._writer.close()
