"""Event files, which `tensorboard` shows, and other files that a program appends to: whole again once a full
disk has room.

tensorboardX's own writer puts events in a queue for a thread. On a full disk the thread dies, and once the
queue is full, whoever adds to it waits for ever.
"""

from __future__ import annotations

import io
import math
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

PREFIX = "events.out.tfevents."
"""How the names of event files begin: what `tensorboard` looks for."""


class AppendFile:
    """A file that bytes are appended to; what a full disk did not take is written with the next ones.

    Args:
        path: the file, made with the first bytes; its folder is made if missing.
        seconds: after how many the next addition forces the file to the disk; None: only `flush` does.
    """

    def __init__(self, path: Path, seconds: float | None = None) -> None:
        self.path = path
        self.seconds = math.inf if seconds is None else seconds
        self._waiting = b""
        self._forced = time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, data: bytes) -> None:
        """Write these bytes after those that wait.

        Raises:
            OSError: not all could be written; the rest waits.
        """
        self._waiting += data
        self._write(force=time.monotonic() - self._forced >= self.seconds)

    def flush(self) -> None:
        """Write what waits, and force the file to the disk.

        Raises:
            OSError: not all could be written; the rest waits.
        """
        self._write(force=True)

    def _write(self, force: bool) -> None:
        # Without a buffer: what a call was given is with the system, even if this process dies next.
        with io.FileIO(self.path, "a") as file:
            while self._waiting:
                self._waiting = self._waiting[file.write(self._waiting) :]
            if force:
                os.fsync(file.fileno())
                self._forced = time.monotonic()


class EventFile:
    """An event file.

    Args:
        directory: its folder; made if missing.
        resume_at_step: hides what an earlier file there has beyond this step.
        seconds: after how many the next addition forces it to the disk; None: only `flush` does.

    Raises:
        OSError: the first event cannot be written.
    """

    def __init__(
        self, directory: str | Path, *, resume_at_step: int | None = None, seconds: float | None = None
    ) -> None:
        # Names in the order of time, even if a run is resumed within a second.
        now = time.time_ns()
        name = f"{PREFIX}{now // 10**9}.{socket.gethostname()}.{now}"
        self._file = AppendFile(Path(directory) / name, seconds)
        self._add(file_version="brain.Event:2")
        if resume_at_step is not None:
            from tensorboardX.proto.event_pb2 import SessionLog

            self._add(step=resume_at_step + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, *summaries: Any) -> None:
        """Write summaries (of `tensorboardX.summary`) at a step.

        Raises:
            OSError: not all could be written; the rest follows with what is added next.
        """
        from tensorboardX.proto.summary_pb2 import Summary

        whole = Summary()
        for summary in summaries:
            whole.MergeFrom(summary)
        self._add(step=step, summary=whole)

    def flush(self) -> None:
        """Force what was added to the disk.

        Raises:
            OSError: not all could be written.
        """
        self._file.flush()

    def _add(self, **event: Any) -> None:
        """Write an event in TensorFlow's record format: the number of bytes, then the bytes, each followed
        by a checksum.
        """
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c

        data = Event(wall_time=time.time(), **event).SerializeToString()
        parts = struct.pack("<Q", len(data)), data
        self._file.add(b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in parts))
