"""The progress bar of a run: one line that fills, one with the figures of the last episodes."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TextIO, cast

from operant.tracking.console import OutputStream

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress

EVERY = 10.0
"""Seconds between two lines if there is no terminal to draw on."""


class Bar:
    """Shows how far a run is, of `total` (None: unknown) episodes, timesteps or updates (`what`).

    On a terminal it is a bar with a line of figures below it; elsewhere a line every ten seconds and one at
    the end.
    """

    def __init__(self, what: str, total: int | None, stream: TextIO | None = None) -> None:
        self.what = what
        self.total = total
        self._stream = OutputStream(sys.stderr if stream is None else stream)
        self._count = 0
        self._figures: Mapping[str, str] = {}
        self._began = self._printed = time.perf_counter()
        self._progress: Progress | None = None
        if self._stream.isatty():
            with contextlib.suppress(Exception):  # a run outlives its terminal, and a full disk under its log
                self._progress = self._drawn()
                self._progress.start()

    def show(self, count: int, figures: Mapping[str, str] | None = None) -> None:
        """Update it; figures by name, None to keep the current ones."""
        self._count = count
        if figures is not None:
            self._figures = figures
        with contextlib.suppress(Exception):
            if self._progress is not None:
                self._progress.update(self._progress.task_ids[0], completed=count)
            elif time.perf_counter() - self._printed >= EVERY:
                self._print()

    def close(self) -> None:
        """End it, leaving the last state in place."""
        with contextlib.suppress(Exception):
            if self._progress is not None:
                self._progress.stop()
            else:
                self._print()

    def line(self) -> str:
        """Return the figures as text."""
        return "  ".join(f"{name}={value}" for name, value in self._figures.items())

    def _print(self) -> None:
        self._printed = time.perf_counter()
        of = "" if self.total is None else f"/{self.total}"
        elapsed = f"{self._printed - self._began:.0f} s"
        text = "  ".join(part for part in (f"{self.what} {self._count}{of}", elapsed, self.line()) if part)
        print(text, file=self._stream, flush=True)

    def _drawn(self) -> Progress:
        from rich import progress
        from rich.console import Console
        from rich.text import Text

        bar = self

        class Display(progress.Progress):
            def get_renderables(self) -> Iterable[RenderableType]:
                return [*super().get_renderables(), Text(bar.line())]

        columns: list[progress.ProgressColumn] = [
            progress.TextColumn(self.what), progress.MofNCompleteColumn(), progress.TimeElapsedColumn()
        ]  # fmt: skip
        if self.total is None:
            columns.insert(0, progress.SpinnerColumn())
        else:
            columns.insert(1, progress.BarColumn(bar_width=None))
            columns.append(progress.TimeRemainingColumn())
        console = Console(file=cast(TextIO, self._stream), force_terminal=True)
        display = Display(*columns, console=console, expand=self.total is not None, refresh_per_second=4)
        display.add_task("", total=self.total)
        return display


def figure(value: float, digits: int) -> str:
    """Return a number with so many decimals, or ``-`` if it is not finite."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"
