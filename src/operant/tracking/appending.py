"""Files to which a run adds as it goes: readable at any time, and whole again once a full disk has room."""

from __future__ import annotations

import io
import os
from pathlib import Path


class Appended:
    """A file to which bytes are added, those that a full disk did not take with the next ones.

    Args:
        path: the file; its folder is made if missing, itself with the first bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting = b""
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, data: bytes) -> None:
        """Write these bytes after those that wait.

        Raises:
            OSError: not all could be written; the rest waits.
        """
        self._waiting += data
        self._write(force=False)

    def flush(self) -> None:
        """Write what waits, and force the file to the disk.

        Raises:
            OSError: not all could be written; the rest waits.
        """
        self._write(force=True)

    def _write(self, force: bool) -> None:
        # Without a buffer: what a call was given is the system's, also where this process dies next.
        with io.FileIO(self.path, "a") as file:
            while self._waiting:
                self._waiting = self._waiting[file.write(self._waiting) :]
            if force:
                os.fsync(file.fileno())
