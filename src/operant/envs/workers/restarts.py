"""How often the other side of a connection that is lost is replaced. Vectors replace: see `async_vector`."""

from __future__ import annotations

import logging

from operant.errors import EnvError

_log = logging.getLogger("operant")


class LostError(Exception):
    """The other side died, does not answer, or sends answers that make no sense; if `final`, for good."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


class RestartPolicy:
    """Allows `max_restarts` replacements without an episode ending in between; `remedy` ends the error."""

    def __init__(self, max_restarts: int, remedy: str) -> None:
        self._max_restarts, self._remedy = max_restarts, remedy
        self._count = 0

    def spend(self, name: str, lost: LostError) -> None:
        """Count a replacement of the lost side `name`, and warn; EnvError: there were too many."""
        if lost.final or self._count >= self._max_restarts:
            times = "once" if self._count == 1 else f"{self._count} times"
            already = f", and it was replaced {times} already" if self._count else ""
            remedy = "" if lost.final else self._remedy
            raise EnvError(f"{name} {_continued(str(lost), f'{already}. {remedy}'.rstrip())}")
        self._count += 1
        _log.warning("%s %s", name, _continued(str(lost), "; it is replaced."))

    def forgive(self) -> None:
        """Count anew: episodes came to their end, or another user begins."""
        self._count = 0


def _continued(text: str, end: str) -> str:
    """Append the end of a sentence to the first line of a text, before its traceback."""
    first, newline, rest = text.partition("\n")
    return f"{first.rstrip('.')}{end}{newline}{rest}"
