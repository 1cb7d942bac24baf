"""The fan-out from training to loggers, which it outlives."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from operant.tracking.record import EpisodeRecord, Logger, Record

WARNING_SECONDS = 60.0
"""A logger that fails again within so many seconds gives no second warning."""


class LoggerGroup(Logger):
    """Hands everything to all loggers. Training survives one that fails: it is called again next time.

    A failure gives a warning, at most one a minute for each logger.
    """

    def __init__(self, loggers: Iterable[Logger] = ()) -> None:
        self.loggers = list(loggers)
        self._warned: dict[int, float] = {}

    def begin(self, options: Mapping[str, Any]) -> None:
        """Hand on what is to be trained."""
        self._each(lambda logger: logger.begin(options))

    def episodes(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Hand on finished episodes."""
        if len(episodes):
            self._each(lambda logger: logger.episodes(episodes))

    def record(self, record: Record) -> None:
        """Hand on scalars."""
        self._each(lambda logger: logger.record(record))

    def message(self, text: str) -> None:
        """Hand on one line for the user."""
        self._each(lambda logger: logger.message(text))

    def flush(self) -> None:
        """Have every logger force what it holds to the disk."""
        self._each(lambda logger: logger.flush())

    def close(self) -> None:
        """Close every logger, even after one failed to; OSError: one failed that must write."""
        if failures := self._each(lambda logger: logger.close()):
            raise OSError("; ".join(failures))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # another error is under way: what could not be written is a warning
            self._each(lambda logger: logger.close())

    def _each(self, call: Callable[[Logger], None]) -> list[str]:
        failures = []
        for i, logger in enumerate(self.loggers):
            try:
                call(logger)
            except Exception as error:
                name = type(logger).__name__
                if isinstance(error, OSError) and logger.must_write:
                    failures.append(f"{name} could not write everything: {error}")
                if time.monotonic() - self._warned.get(i, -WARNING_SECONDS) >= WARNING_SECONDS:
                    self._warned[i] = time.monotonic()
                    text = f"{name} failed, training goes on: {type(error).__name__}: {error}"
                    warnings.warn(text, RuntimeWarning, stacklevel=3)
        return failures
