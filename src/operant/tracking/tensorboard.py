"""Event files, which `tensorboard` shows.

tensorboardX makes the messages and their checksums, but its writers do not write the file. `EventFileWriter`
puts events in a queue for a thread: on a full disk the thread dies, and once the queue is full, whoever adds
to it waits for ever. `EventsWriter` buffers up to 8 KiB: a killed process loses them, and leaves half a
record; on a full disk it skips part of a record, and readers then stop (after 136 of 1,001 events, in a
trial).
"""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path
from typing import Any

from operant.tracking.append_file import AppendFile
from operant.tracking.record import Logger, Record

PREFIX = "events.out.tfevents."
"""How the names of event files begin: what `tensorboard` looks for."""


class EventFile(AppendFile):
    """An event file in a folder, which is made if missing; OSError: its first event cannot be written.

    `resume_at_step` hides what an earlier file has beyond this step. After `seconds` the next addition forces
    it to the disk; with None only `flush` does.
    """

    def __init__(
        self, directory: str | Path, *, resume_at_step: int | None = None, seconds: float | None = None
    ) -> None:
        # Names in the order of time, even if a run is resumed within a second.
        now = time.time_ns()
        super().__init__(Path(directory) / f"{PREFIX}{now // 10**9}.{socket.gethostname()}.{now}", seconds)
        self._event(file_version="brain.Event:2")
        if resume_at_step is not None:
            from tensorboardX.proto.event_pb2 import SessionLog

            self._event(step=resume_at_step + 1, session_log=SessionLog(status=SessionLog.START))

    def summaries(self, step: int, *summaries: Any) -> None:
        """Write summaries (of `tensorboardX.summary`) at a step; OSError: the rest follows with the next."""
        from tensorboardX.proto.summary_pb2 import Summary

        whole = Summary()
        for summary in summaries:
            whole.MergeFrom(summary)
        self._event(step=step, summary=whole)

    def _event(self, **event: Any) -> None:
        """Write an event in TensorFlow's record format: length, then bytes, each followed by a checksum."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c

        data = Event(wall_time=time.time(), **event).SerializeToString()
        parts = struct.pack("<Q", len(data)), data
        self.add(b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in parts))


class TensorBoard(Logger):
    """Writes every record's scalars at their true step, under their names of `METRICS`; see `EventFile`."""

    must_write = True

    def __init__(self, directory: str | Path, *, resume_at_step: int | None = None) -> None:
        self._file = EventFile(directory, resume_at_step=resume_at_step)

    def record(self, record: Record) -> None:
        """Write scalars."""
        from tensorboardX.summary import scalar

        self._file.summaries(record.step, *(scalar(name, value) for name, value in record.values.items()))

    def flush(self) -> None:
        """Force what was written to the disk."""
        self._file.flush()
