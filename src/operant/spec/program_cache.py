"""Compiled programs, kept in a folder of the user's for the next process that needs them.

JAX has such a cache, whose files do not suit what starts and ends at any moment: an entry that a process left
incomplete, or that the disk damaged, stays and warns for ever. Here an entry is whole and unchanged, or
compiled anew, without a word.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

VARIABLE = "OPERANT_COMPILATION_CACHE"
"""The environment variable that names the folder; 0: nothing is kept."""
MOST_BYTES = 512 << 20
"""Size of the folder from which on entries go that were not used for the longest time. A program takes some
100 kB."""
DIGEST = hashlib.sha256().digest_size
LEFT_SECONDS = 3600.0
"""Age of a file that is still being written from which on its writer must have died."""


class ProgramCache:
    """What JAX asks for a compiled program before it compiles: bytes by key. No call fails or warns.

    An entry is a file of its own: a digest of key and bytes, then the bytes. Many processes may use the
    folder.

    Args:
        folder: where the files are.
        salt: of what a program depends on that JAX's key may lack: another salt finds other entries.
        limit: most bytes of the folder.
    """

    def __init__(self, folder: Path, salt: str, limit: int = MOST_BYTES) -> None:
        self._path = folder  # JAX reads it
        self._salt = salt
        self._limit = limit
        self._unseen = limit  # bytes written since the folder was looked through, by this process
        self.on_miss: Callable[[], None] | None = None
        """Called if a program is not there, and so is compiled."""

    def get(self, key: str) -> bytes | None:
        """Return what was kept under a key; None: nothing, or not what was written."""
        path, data = self._file(key), b""
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            os.utime(path)  # used now
        value = data[DIGEST:]
        if data and data[:DIGEST] == self._digest(key, value):
            return value
        if self.on_miss is not None:
            self.on_miss()
        return None

    def put(self, key: str, value: bytes) -> None:
        """Keep bytes under a key, if there is room and the folder can be written to."""
        self._unseen += len(value)
        with contextlib.suppress(OSError):
            if self._unseen >= self._limit / 16:
                self._make_room(len(value))
                self._unseen = len(value)
            if len(value) > self._limit:
                return
            with tempfile.NamedTemporaryFile(dir=self._path, delete=False) as file:
                try:
                    file.write(self._digest(key, value) + value)
                    file.close()
                    os.replace(file.name, self._file(key))
                except BaseException:
                    os.unlink(file.name)
                    raise

    def _file(self, key: str) -> Path:
        return self._path / hashlib.sha256(f"{self._salt}\n{key}".encode()).hexdigest()

    def _digest(self, key: str, value: bytes) -> bytes:
        return hashlib.sha256(self._file(key).name.encode() + value).digest()

    def _make_room(self, size: int) -> None:
        """Remove what was not used for the longest time, and what writers that died have left."""
        now, files = time.time(), []
        with os.scandir(self._path) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process removes, too
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        left = len(entry.name) < 2 * DIGEST and now - status.st_mtime > LEFT_SECONDS
                        files.append((0.0 if left else status.st_mtime, status.st_size, entry.path))
        total = sum(length for _, length, _ in files) + size
        for used, length, path in sorted(files):
            if used and total <= self._limit:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= length


def opened(threads: object, limit: int = MOST_BYTES) -> ProgramCache | None:
    """Return the cache that the user's variables name; None: there is to be none, or there can be none.

    A folder that others can write to is not used, which a warning says: who writes there decides what this
    process runs.

    Args:
        threads: of XLA on CPU. JAX's key lacks them, though other programs are made for other numbers.
        limit: most bytes of the folder.
    """
    named = os.environ.get(VARIABLE, "")
    if named == "0":
        return None
    folder = _usual() if named in ("", "1") else Path(named).expanduser().absolute()
    if folder is None:
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fault = _fault(folder.resolve())
    except (OSError, RuntimeError):  # it cannot be made, or there is none
        return None
    if fault is not None:
        warnings.warn(
            f"Compiled programs are not kept: {fault}, and who writes to {str(folder)!r} decides what this "
            f"program runs. Make it yours alone (chmod 700), or name another folder ({VARIABLE}=FOLDER; 0: "
            "keep none).",
            RuntimeWarning,
            stacklevel=5,
        )
        return None
    return ProgramCache(folder, f"{threads}\n{_processor()}", limit)


def _usual() -> Path | None:
    """Return the folder for what the user's programs may compute again; None: the user has no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # to be ignored then
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "operant", "programs") if os.path.isabs(base) else None


def _fault(folder: Path) -> str | None:
    """Say who else can write to a folder, or put another in its place; None: nobody."""
    if not hasattr(os, "geteuid"):
        return None
    for place in (folder, *folder.parents):
        status = place.stat()
        mode = status.st_mode
        group = mode & stat.S_IWGRP and status.st_gid != status.st_uid  # a user's own group has their number
        if status.st_uid not in (os.geteuid(), *([] if place == folder else [0])):
            return f"{str(place)!r} belongs to another user"
        if (mode & stat.S_IWOTH or group) and (place == folder or not mode & stat.S_ISVTX):
            return f"others can write to {str(place)!r}"
    return None


def _processor() -> str:
    """Return what tells processors apart for which other programs are made."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n", 1)[0].splitlines()
        return "\n".join(
            line for line in lines if line.startswith(("model name", "flags", "Features", "CPU"))
        )
    return f"{platform.machine()} {platform.processor()}"
