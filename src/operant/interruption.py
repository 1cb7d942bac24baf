"""Ctrl-C, and a request to terminate, as an orderly end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def orderly(
    stop: Callable[[], None], numbers: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[None]:
    """Turn the first Ctrl-C (or request to terminate) inside into a call of `stop`; a second one ends at once.

    An exception in the middle of a compiled call would lose donated arrays, in the middle of a write it could leave a file locked.
    Outside of the main thread nothing changes: its owner handles signals.
    """
    asked = False

    def request(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        stop()

    try:
        before = {s: signal.signal(s, request) for s in numbers}
    except ValueError:  # not in the main thread
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let a Ctrl-C inside wait for the end; a second one ends at once.

    For a compiled call that consumes its arguments and the assignment of what it returns: between the two the state is nowhere.
    """
    waiting: list[bool] = []
    try:
        with orderly(lambda: waiting.append(True), (signal.SIGINT,)):
            yield
    finally:
        if waiting:
            signal.raise_signal(signal.SIGINT)
