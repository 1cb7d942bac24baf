"""A file that a program appends to: whole again once a full disk has room."""

from __future__ import annotations

import io
import math
import os
import time
from pathlib import Path


class AppendFile:
    """A file, made with its first bytes; what a full disk did not take is written with the next ones.

    After `seconds` the next addition forces the file to the disk; with None only `flush` does.
    """

    def __init__(self, path: Path, seconds: float | None = None) -> None:
        self.path = path.absolute()
        self.seconds = math.inf if seconds is None else seconds
        self._waiting = b""
        self._forced = time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, data: bytes) -> None:
        """Write these bytes after those that wait; OSError: not all could be written, the rest waits."""
        self._waiting += data
        self._write(force=time.monotonic() - self._forced >= self.seconds)

    def flush(self) -> None:
        """Write what waits, and force the file to the disk; OSError: not all could be written."""
        self._write(force=True)

    def _write(self, force: bool) -> None:
        # Without a buffer: what a call was given is with the system, even if this process dies next.
        with io.FileIO(self.path, "a") as file:
            while self._waiting:
                self._waiting = self._waiting[file.write(self._waiting) :]
            if force:
                os.fsync(file.fileno())
                self._forced = time.monotonic()
