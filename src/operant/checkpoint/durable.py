"""Files that are whole or not there: forced to the disk when written, hashed and bounded when read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from operant.errors import CheckpointError

_CHUNK = 8 << 20  # bytes that are hashed while the next ones are read
ALIGN = 64
"""Array files put their arrays at multiples of this many bytes."""
_UNKNOWN = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
"""How some network and cluster file systems say that they cannot lock folders, or cannot force them to the
disk."""
TEMPORARY = ".tmp-"
"""How the names of files begin that are being written: they are left behind if the process dies."""
WARNING_SECONDS = 60.0
"""Seconds between two warnings that the same thing cannot be written."""
_WARNED: dict[str, float] = {}
"""When the last of these warnings was given, by what it was about."""


def write(path: Path, parts: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write a new file, force it to the disk, and return its size (`bytes`) and `sha256`."""
    digest = hashlib.sha256()
    size = 0
    with ThreadPoolExecutor(1) as pool, open(path, "xb") as file:
        hashed = pool.submit(lambda: None)
        for part in parts:
            hashed.result()  # at most one part waits to be hashed: it may be a copy of a device's memory
            hashed = pool.submit(digest.update, part)
            size += file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def read(path: Path, limit: int, size: int | None = None, sha256: str | None = None) -> np.ndarray:
    """Read a plain file of at most `limit` bytes whole, uint8 `[size]`; links and devices are refused.

    With `size` and `sha256` it must have so many bytes, and that hash.

    Raises:
        CheckpointError: naming the file and what is wrong.
    """
    with _opened(path, size) as (file, length):
        if length > limit:
            raise CheckpointError(f"{path} has {length} bytes; at most {limit} are read.")
        return _read_hashed(path, file, length, sha256)


def measure(path: Path, size: int) -> None:
    """Check, without reading it, that a plain file has this size, or raise `CheckpointError`."""
    with _opened(path, size):
        pass


@contextlib.contextmanager
def _opened(path: Path, size: int | None) -> Iterator[tuple[Any, int]]:
    """Open a plain file, of that size if one is given; failures meanwhile become `CheckpointError`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path} is not a plain file.")
            if size is not None and status.st_size != size:
                raise CheckpointError(
                    f"{path} has {status.st_size} bytes where {size} were written: truncated?"
                )
            yield file, status.st_size
    except (OSError, MemoryError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from None


def _read_hashed(path: Path, file: Any, size: int, sha256: str | None) -> np.ndarray:
    data = np.empty(size + ALIGN, np.uint8)
    data = data[-(data.ctypes.data + 8) % ALIGN :][:size]  # what follows the 8 bytes of length is aligned
    view = data.data
    digest = hashlib.sha256()
    position = 0
    with ThreadPoolExecutor(1) as pool:
        while position < size:
            n = file.readinto(view[position : position + _CHUNK])
            if not n:
                raise CheckpointError(f"{path} ended after {position} of {size} bytes.")
            if sha256 is not None:
                pool.submit(digest.update, view[position : position + n])
            position += n
    if sha256 is not None and digest.hexdigest() != sha256:
        raise CheckpointError(f"{path} is corrupted: its SHA-256 is not the one that was recorded.")
    return data


def sync(folder: Path) -> None:
    """Force the names in a folder to the disk, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replaced(final: Path) -> Iterator[Path]:
    """Yield a temporary path that no other process uses.

    The file written there is forced to the disk and replaces `final`.
    """
    with temporary(final) as path:
        yield path
        with open(path, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(path, final)
        sync(final.parent)


@contextlib.contextmanager
def temporary(final: Path) -> Iterator[Path]:
    """Yield the path of a new file beside `final`, to be written in place; at the end it is gone.

    It is locked meanwhile: those of the same suffix that are not were left by writers that died, and go.
    """
    for left in final.parent.glob(f"{TEMPORARY}????????-*{final.suffix}"):
        with contextlib.suppress(OSError):  # it is being written, or there are no locks
            descriptor = hold(left)
            try:
                left.unlink()
            finally:
                os.close(descriptor)
    while True:
        path = final.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{final.name}")
        held = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        if not lock(held, wait=True) or path.exists():
            break
        os.close(held)  # it was taken for a leftover before it was locked
    try:
        yield path
    except OSError as error:
        if error.filename is None:  # a full disk, as writing to an open file tells it
            error.filename = str(final)
        raise
    finally:
        path.unlink(missing_ok=True)
        os.close(held)


@contextlib.contextmanager
def outliving(what: str, about: str | None = None) -> Iterator[None]:
    """The one rule for disks that fill and later have room: a write that fails inside is only a warning.

    There is at most one a minute; work goes on, and it is tried again at its next turn. What still cannot be
    written at the end is to be written outside of this, so that it is an error. A file that is not ours where
    it would be written is a warning, too, and stays.
    """
    try:
        yield
    except (OSError, CheckpointError) as error:
        key, now = about or what, time.monotonic()
        if now - _WARNED.get(key, -WARNING_SECONDS) >= WARNING_SECONDS:
            _WARNED[key] = now
            warnings.warn(f"{what}: {error}", RuntimeWarning, stacklevel=3)


def hold(path: Path) -> int:
    """Open and lock a file or folder until the descriptor is closed or the process dies.

    An OSError, `BlockingIOError` if it is locked already, says that this cannot be done.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if not lock(descriptor):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def lock(descriptor: int, wait: bool = False) -> bool:
    """Lock an open file until it is closed or the process dies; return False where there are no locks.

    Raises:
        BlockingIOError: it is locked already, and `wait` is False.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        return False
    return True


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder that exists against other writers, once none is at work."""
    descriptor = os.open(folder.resolve(), os.O_RDONLY)
    try:
        lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)
