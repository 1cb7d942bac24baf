"""Sink that writes event files for TensorBoard."""

from __future__ import annotations

from pathlib import Path

from operant.tracking.events import EventFile
from operant.tracking.record import EpisodeRecord, Record


class TensorBoard:
    """Writes every record's scalars at their true environment step, under their names of `METRICS`.

    Args:
        directory: where the event files go; made if missing. View them with
            ``tensorboard --logdir DIRECTORY``.
        resume_at_step: hides what an earlier process wrote beyond this step, which a resumed run writes
            again.

    Raises:
        OSError: the first event cannot be written.
    """

    def __init__(self, directory: str | Path, *, resume_at_step: int | None = None) -> None:
        self._file = EventFile(directory, resume_at_step=resume_at_step)

    def episodes(self, episodes: list[EpisodeRecord]) -> None:
        """Single episodes are left to the history; records carry their averages."""

    def record(self, record: Record) -> None:
        """Write scalars."""
        from tensorboardX.summary import scalar

        self._file.add(record.step, *(scalar(name, value) for name, value in record.values.items()))

    def message(self, text: str) -> None:
        """Messages are left to the console."""

    def flush(self) -> None:
        """Force what was written to the disk."""
        self._file.flush()

    def close(self) -> None:
        """Force what was written to the disk."""
        self._file.flush()
