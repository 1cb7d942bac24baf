"""Logger that shows the user how training goes: log lines, or a live display on a terminal."""

from __future__ import annotations

import contextlib
import datetime
import io
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TextIO, cast

from operant.tracking.record import EpisodeRecord, Logger, Origin, Record

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.progress import Progress, ProgressColumn

EVALUATION = "evaluation/reward_mean"


def number(value: float | None, precision: int) -> str:
    """Return a value rounded to `precision` decimals without trailing zeros (``22.7``); ``-`` for none."""
    return "-" if value is None or not math.isfinite(value) else str(round(float(value), precision))


class OutputStream:
    """Standard output or error as a program left it: closed, None, or an object with `write` alone."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Return whether it is a terminal on which a line can be written over, as a dumb one cannot."""
        try:
            return bool(self._stream.isatty()) and os.environ.get("TERM") != "dumb"
        except (AttributeError, OSError, ValueError):
            return False

    def write(self, text: str) -> None:
        """Write a text, if there is anything to write it to, in the place of what `wait` shows."""
        Ticker.end()
        if self._stream is not None:
            self._stream.write(text)

    def flush(self) -> None:
        """Write what waits."""
        getattr(self._stream, "flush", str)()


def tell(text: object) -> None:
    """Print what a command was asked for, in the place of what `wait` shows; it fails as `print` does."""
    print(text, file=OutputStream(sys.stdout), flush=True)


def say(text: str) -> None:
    """Print a line on standard output, if that takes it: no result depends on it."""
    with contextlib.suppress(Exception):
        tell(text)


class Ticker:
    """The last line of a terminal: what goes on there, and for how long, until something else is printed.

    Its cursor stays where the line begins, so that what others print takes the line's place.
    """

    _shown: ClassVar[Ticker | None] = None

    def __init__(self, text: str, stream: TextIO) -> None:
        self._text = text
        self._stream = stream
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)

    @classmethod
    def begin(cls, text: str) -> None:
        """Show a text in the place of the one before; not to be called where no terminal is."""
        cls.end()
        cls._shown = ticker = cls(text, sys.stdout)
        ticker._thread.start()

    @classmethod
    def end(cls) -> None:
        """Remove the line, if there is one."""
        ticker, cls._shown = cls._shown, None
        if ticker is not None:
            ticker._over.set()
            ticker._thread.join()
            ticker._write("\x1b[K")

    def _count(self) -> None:
        begun = time.monotonic()
        while not self._over.is_set():
            self._write(f"{self._text} ... {int(time.monotonic() - begun)} s\r")
            self._over.wait(0.5)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            self._stream.write(text)
            self._stream.flush()


def wait(text: str, line: bool = True) -> None:
    """Say what goes on until the next output: on a terminal with the seconds, elsewhere (`line`) once."""
    if OutputStream(sys.stdout).isatty():
        Ticker.begin(text)
    elif line:
        say(f"{text} ...")


class Console(Logger):
    """Prints progress to a stream.

    On a terminal it is one live display: a bar up to `max_steps` (or a spinner), speed, episodes,
    mean return of the last episodes, its best value and target. Elsewhere it is a line with each record that
    training sends::

        time: 0:00:02, steps: 240, episodes: 10, speed: 225 steps/s, mean return: 22.7, best mean return: 25.5

    Args:
        max_steps: environment steps at which training ends, if known.
        target_reward: mean return at which training ends, if any.
        display_precision: decimals of returns.
        quiet: print nothing at all.
        live: whether to show the live display; None: if the stream is a terminal.
        start: where the run was before this process (a resumed run); None: at its beginning.
        stream: where to print; None: standard output.
    """

    def __init__(
        self,
        *,
        max_steps: int | None = None,
        target_reward: float | None = None,
        display_precision: int = 2,
        quiet: bool = False,
        live: bool | None = None,
        start: Origin | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self.precision = display_precision
        self.quiet = quiet
        start = Origin() if start is None else start
        self._episodes = start.episodes
        self._stream = OutputStream(sys.stdout if stream is None else stream)
        self._notebook = stream is None and type(sys.stdout).__module__.startswith("ipykernel.")
        self._lines = not (self._stream.isatty() or self._notebook if live is None else live)
        self._best: float | None = start.best_reward
        self._logged = start.step, start.time  # when the speed was last taken
        self._target = target_reward
        self._max_steps = max_steps
        self._speed = 0.0
        self._mean: float | None = None
        self._evaluation: float | None = None
        self._step = start.step
        self._live: Live | None = None
        self._bar: Progress | None = None
        self._cell: Any = None
        """Where a notebook shows the display, and when it was last drawn there."""
        self._drawn = 0.0

    def episodes(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Update the display; lines wait for a record."""
        if self.quiet or not episodes:
            return
        self._episodes += len(episodes)
        last = episodes[-1]
        if math.isfinite(last.mean_reward):
            self._mean = last.mean_reward
        if not self._lines:
            if math.isfinite(last.best_reward):
                self._best = last.best_reward
            self._show(last.step, last.time)

    def record(self, record: Record) -> None:
        """Print a line, or update the display."""
        if self.quiet:
            return
        values = record.values
        count = int(values.get("episode/count", self._episodes))
        self._episodes = count if self._lines else max(count, self._episodes)  # it may have seen later ones
        self._mean = values.get("episode/reward_mean", self._mean)
        self._evaluation = values.get(EVALUATION, self._evaluation)
        if not self._lines:
            self._best = values.get("episode/reward_best", self._best)
            self._show(record.step, record.time)
        else:
            self._log(record)

    def message(self, text: str) -> None:
        """Print one line, above the display if there is one."""
        if self.quiet:
            return
        if self._live is None:
            print(text, file=self._stream, flush=True)
        else:
            # Unwrapped, for the terminal to wrap: a command with line breaks from here could not be copied.
            self._live.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def close(self) -> None:
        """End the display, and wipe it: a bar would stay where it was."""
        if self._cell is not None:
            self._cell.update({"text/plain": ""}, raw=True)
        if self._live is not None:
            with contextlib.suppress(Exception):  # the terminal is gone, or the stream closed
                self._live.stop()
            self._live = None

    def _log(self, record: Record) -> None:
        self._measure(record.step, record.time)
        best = record.values.get("episode/reward_best", self._best)
        old, new = number(self._best, self.precision), number(best, self.precision)
        if old != new:
            self.message(f"Best mean return updated: {old} -> {new}")
        self._best = best
        mean, evaluation = number(self._mean, self.precision), number(self._evaluation, self.precision)
        self.message(
            f"time: {datetime.timedelta(seconds=int(record.time))}, steps: {record.step}, "
            f"episodes: {self._episodes}, speed: {round(self._speed)} steps/s, mean return: {mean}, "
            f"best mean return: {new}"
            + (f", evaluation: {evaluation}" if EVALUATION in record.values else "")
        )

    def _measure(self, step: int, seconds: float) -> None:
        since, start = self._logged
        if seconds > start:
            self._speed = (step - since) / (seconds - start)
        self._logged = step, seconds

    def _show(self, step: int, seconds: float) -> None:
        if seconds - self._logged[1] >= 1.0:  # a shorter interval shows noise
            self._measure(step, seconds)
        self._step = step
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step)
        if self._notebook:
            self._draw()
        elif self._live is None:
            self._start()

    def _draw(self) -> None:
        """Draw the display in a notebook's output, not too often."""
        from IPython.display import display
        from rich.console import Console as RichConsole

        if time.monotonic() - self._drawn < 0.25:
            return
        self._drawn = time.monotonic()
        text = io.StringIO()
        console = RichConsole(file=text, width=100, force_jupyter=False)
        if self._bar is None:
            self._make_bar(console)
        console.print(self._render())
        data = {"text/plain": text.getvalue()}
        if self._cell is None:
            self._cell = display(data, raw=True, display_id=True)
        else:
            self._cell.update(data, raw=True)

    def _start(self) -> None:
        from rich.console import Console as RichConsole
        from rich.live import Live

        console = RichConsole(file=cast(TextIO, self._stream), force_terminal=True)
        self._make_bar(console)
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def _make_bar(self, console: Any) -> None:
        from rich import progress

        columns: list[ProgressColumn] = [progress.SpinnerColumn(), progress.TimeElapsedColumn()]
        if self._max_steps:
            columns = [
                progress.BarColumn(bar_width=None),
                progress.TaskProgressColumn(),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
            ]
        Ticker.end()
        self._bar = progress.Progress(
            *columns,
            console=console,
            expand=bool(self._max_steps),
            speed_estimate_period=600.0,  # of a study's trials, a report may take minutes
        )
        self._bar.add_task("", total=self._max_steps, completed=self._step)

    def _render(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        assert self._bar is not None
        return Group(self._bar.get_renderable(), Text(self._figures()))

    def _figures(self) -> str:
        """Return what stands below the bar."""
        parts = [
            f"{self._step:,} steps",
            f"{self._episodes:,} episodes",
            f"{f'{round(self._speed):,}' if self._speed else '-'} steps/s",
            f"mean {number(self._mean, self.precision)}",
            f"best {number(self._best, self.precision)}",
        ]
        if self._evaluation is not None:
            parts.append(f"evaluation {number(self._evaluation, self.precision)}")
        if self._target is not None:
            parts.append(f"target {self._target:g}")
        return "  ".join(parts)
