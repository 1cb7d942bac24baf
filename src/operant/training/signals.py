"""Ctrl-C, and a request to terminate: a flag that loops read between blocks.

The first one is heard at once and ends a run in order; a second Ctrl-C ends the program. Python handles
signals between two of its own instructions, so not within a compiled call or a compilation: a thread answers
then.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class _SignalFlags:
    terminate: int | None = None
    heard = -math.inf
    """When a handler of Python's last ran, by the monotonic clock."""
    announced = False
    """Whether an answer to the last Ctrl-C was printed."""
    answer = (
        b"operant: interrupted, as soon as what is being compiled or computed is done; Ctrl-C ends at once\n"
    )


ORDERLY = b"operant: ending in order; Ctrl-C ends at once\n"
_END = b"\0"
"""What the thread reads as its end; no signal has this number."""
DEAF_SECONDS = 0.3
"""How long a Ctrl-C may wait for Python's handler before the thread answers."""


def _announce(text: bytes) -> None:
    if not _SignalFlags.announced:
        _SignalFlags.announced = True
        with contextlib.suppress(OSError):  # printing is not safe here: it may be what was interrupted
            os.write(2, text)


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Answer each Ctrl-C inside at once, even while Python cannot: one after an answer ends the process.

    For the command line, which owns the process; outside of the main thread nothing changes.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        _SignalFlags.heard = time.monotonic()
        raise KeyboardInterrupt

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, interrupt)
    thread = threading.Thread(target=_listen, args=(reader,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(before)
        os.write(writer, _END)  # closing ends nothing while a process that was forked has the pipe open
        thread.join()
        os.close(writer)
        os.close(reader)


def _listen(reader: int) -> None:
    """Read the numbers of signals, which the system's handler writes at once; each is one byte."""
    while (numbers := os.read(reader, 1)) != _END:
        if numbers[0] != signal.SIGINT:
            continue
        begun = time.monotonic()
        time.sleep(DEAF_SECONDS)
        if _SignalFlags.heard >= begun - DEAF_SECONDS:
            continue
        if _SignalFlags.announced:
            os.write(2, b"operant: interrupted\n")
            os._exit(130)
        _announce(_SignalFlags.answer)


def terminations() -> tuple[signal.Signals, ...]:
    """Return the signals that ask to terminate, that of a closed terminal only if not ignored (`nohup`)."""
    known = [s for s in signal.Signals if s.name in ("SIGTERM", "SIGHUP")]  # not every system has the latter
    return tuple(s for s in known if s == signal.SIGTERM or signal.getsignal(s) is not signal.SIG_IGN)


@contextlib.contextmanager
def orderly(stop: Callable[[], None], numbers: Sequence[signal.Signals] | None = None) -> Iterator[None]:
    """Turn the first Ctrl-C (or one of `numbers`) inside into a call of `stop`, and say so.

    A Ctrl-C after it raises `KeyboardInterrupt`. Outside of the main thread nothing changes: its owner
    handles signals.
    """
    asked = False

    def request(number: int, frame: Any) -> None:
        nonlocal asked
        _SignalFlags.heard = time.monotonic()
        if number != signal.SIGINT:
            _SignalFlags.terminate = number
        if not asked:
            asked = True
            _announce(ORDERLY)
            stop()
        elif number == signal.SIGINT:  # schedulers and `timeout` send theirs more than once
            raise KeyboardInterrupt

    numbers = (signal.SIGINT, *terminations()) if numbers is None else numbers
    try:
        before = {s: signal.signal(s, request) for s in numbers}
    except ValueError:  # not in the main thread
        before = {}
    answer, _SignalFlags.answer, _SignalFlags.announced = _SignalFlags.answer, ORDERLY, False
    try:
        yield
    finally:
        _SignalFlags.answer = answer
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """End the program after what is inside, if that ended because the process was asked to terminate."""
    before, _SignalFlags.terminate = _SignalFlags.terminate, None
    try:
        yield
    finally:  # an earlier one is for whoever runs this, such as `fit` whose callback trains something else
        asked, _SignalFlags.terminate = _SignalFlags.terminate, _SignalFlags.terminate or before
    if asked:
        raise SystemExit(128 + asked)


@contextlib.contextmanager
def terminable(stop: Callable[[], None]) -> Iterator[None]:
    """Turn a request to terminate inside, unhandled so far, into a call of `stop`, then end the program."""
    numbers = [s for s in terminations() if signal.getsignal(s) is signal.SIG_DFL]
    if signal.SIGTERM not in numbers:  # such as `fit` whose callback runs this
        yield
        return
    with terminating(), orderly(stop, numbers):
        yield


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let a Ctrl-C inside wait for the end; a second one ends at once.

    For a compiled call that consumes its arguments: until its results are assigned the state exists nowhere.
    """
    waiting: list[bool] = []

    def request(number: int, frame: Any) -> None:
        _SignalFlags.heard = time.monotonic()
        if waiting:
            raise KeyboardInterrupt
        waiting.append(True)

    try:
        before = signal.signal(signal.SIGINT, request)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if waiting:
            signal.raise_signal(signal.SIGINT)
