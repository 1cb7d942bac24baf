"""Sink that writes event files for TensorBoard."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path
from typing import Any

from operant.execution.records import Episode, Record
from operant.tracking.appending import Appended


class TensorBoard:
    """Writes every record's scalars at their true environment step, under their names of `METRICS`.

    Args:
        directory: where the event files go; made if missing. View them by ``tensorboard --logdir DIRECTORY``.
        resume_at_step: hides what an earlier process wrote beyond this step, which a resumed run writes again.

    Raises:
        OSError: the first event cannot be written.
    """

    # tensorboardX's own writer puts events in a queue for a thread. On a full disk the thread dies, and once the queue
    # is full, whoever adds to it waits for ever.

    def __init__(self, directory: str | Path, *, resume_at_step: int | None = None) -> None:
        # What `tensorboard` looks for, in the order of time also where a run is resumed within a second.
        now = time.time_ns()
        name = f"events.out.tfevents.{now // 10**9}.{socket.gethostname()}.{now}"
        self._file = Appended(Path(directory) / name)
        self._add(file_version="brain.Event:2")
        if resume_at_step is not None:
            from tensorboardX.proto.event_pb2 import SessionLog

            start = SessionLog(status=SessionLog.START)
            self._add(step=resume_at_step + 1, session_log=start)

    def episodes(self, episodes: list[Episode]) -> None:
        """Single episodes are left to the history; records carry their averages."""

    def record(self, record: Record) -> None:
        """Write scalars."""
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import scalar

        summary = Summary()
        for name, value in record.values.items():
            summary.MergeFrom(scalar(name, value))
        self._add(step=record.step, summary=summary)

    def message(self, text: str) -> None:
        """Messages are left to the console."""

    def flush(self) -> None:
        """Put what was written on the disk."""
        self._file.flush()

    def close(self) -> None:
        """Force what was written to the disk."""
        self._file.flush()

    def _add(self, **event: Any) -> None:
        """Write an event in TensorFlow's format of records: the bytes, and their number before them, each with a checksum."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c

        data = Event(wall_time=time.time(), **event).SerializeToString()
        parts = struct.pack("<Q", len(data)), data
        self._file.add(b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in parts))
