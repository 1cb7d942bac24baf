"""What a run counts and records of its timesteps and episodes, and the progress bar that shows it."""

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


EPISODE = ("returns", "timesteps", "seconds", "agent_seconds", "env_seconds")
"""What is recorded of an episode: lists `episode_<name>`, and `evaluation_<name>` of evaluations."""


class RunStatistics:
    """Counts and records of one run of so many actors. A `Runner` has them as its attributes.

    `evaluation` tells of a separate environment that evaluates, `remote` of communication to show.
    """

    def __init__(self, actors: int, evaluation: bool = False, remote: bool = False) -> None:
        self.evaluation, self.is_environment_remote = evaluation, remote
        self._actors = actors
        self._begin_run()

    def _begin_run(self, mean_horizon: int = 1) -> None:
        """Start anew; the bar's figures are means over `mean_horizon` episodes."""
        self.mean_horizon = mean_horizon
        self.timesteps = 0
        """Timesteps of this run, without those of an evaluation environment."""
        self.episodes = 0
        """Episodes that ended in this run, without those of an evaluation environment."""
        self.updates = 0
        """Updates that the agent made in this run."""
        self.driver = "interactive"
        """What drove this run, as far as its limits allowed: ``'device'``, ``'host'``, or ``'interactive'``
        (single steps)."""
        self.best_evaluation_score = -math.inf
        """Best score of this run; minus infinity before the first."""

        self.episode_returns: list[float] = []
        """Return of each episode of this run, in the order in which they ended."""
        self.episode_timesteps: list[int] = []
        """Length of each episode."""
        self.episode_seconds: list[float] = []
        """How long each episode took."""
        self.episode_agent_seconds: list[float] = []
        """How long the agent computed while each episode ran, for whichever environment."""
        self.episode_env_seconds: list[float] = []
        """How long the environment itself computed in each episode."""
        separate = self.evaluation
        self.evaluation_returns: list[float] = [] if separate else self.episode_returns
        """Return of each evaluation episode; without an evaluation environment, `episode_returns`. So the
        others."""
        self.evaluation_timesteps: list[int] = [] if separate else self.episode_timesteps
        self.evaluation_seconds: list[float] = [] if separate else self.episode_seconds
        self.evaluation_agent_seconds: list[float] = [] if separate else self.episode_agent_seconds
        self.evaluation_env_seconds: list[float] = [] if separate else self.episode_env_seconds

        self.episode_return = [0.0] * self._actors
        """Return so far of each actor's episode, by parallel index; in a callback, that of the one that just
        ended."""
        self.episode_timestep = [0] * self._actors
        """Timesteps so far of each actor's episode, by parallel index."""
        self.ending = False
        """Whether the run is to end soon, as if a callback had ended it."""
        self.bar: Bar | None = None


def add_episode(statistics: RunStatistics, *values: float, evaluation: bool = False) -> None:
    """Record an episode: its values in the order of `EPISODE`."""
    kind = "evaluation" if evaluation else "episode"
    for name, value in zip(EPISODE, values, strict=True):
        getattr(statistics, f"{kind}_{name}").append(value)


def show(statistics: RunStatistics, episode: bool = False) -> None:
    """Update the bar; its figures only where episodes ended."""
    bar = statistics.bar
    if bar is not None and (episode or bar.what != "episodes"):
        bar.show(getattr(statistics, bar.what), figures(statistics) if episode else None)


def figures(statistics: RunStatistics) -> dict[str, str]:
    """Return what the bar shows beside the count."""
    texts = dict[str, str]()

    def mean(name: str) -> float:
        last = getattr(statistics, name)[-statistics.mean_horizon :]
        return sum(last) / len(last)

    if statistics.episode_returns:
        steps, seconds = mean("episode_timesteps"), mean("episode_seconds")
        agent, env = mean("episode_agent_seconds"), mean("episode_env_seconds")
        share = 100 / max(seconds, 1e-9)
        texts = {
            "return": figure(mean("episode_returns"), 2),
            "ts/ep": figure(steps, 0),
            "sec/ep": figure(seconds, 2),
            "ms/ts": figure(1000 * seconds / steps, 2),
            "agent": figure(share * agent, 1) + "%",
        }
        if statistics.driver != "interactive":
            texts["driver"] = statistics.driver
        if statistics.is_environment_remote:
            texts["comm"] = figure(share * max(0.0, seconds - agent - env), 1) + "%"
    if statistics.evaluation and statistics.evaluation_returns:
        texts["evaluation"] = figure(mean("evaluation_returns"), 2)
    return texts
