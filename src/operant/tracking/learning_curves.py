"""Plots of histories: one line each, or curves over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from operant.errors import SpecError, suggest, value_error
from operant.tracking.bootstrap import Statistic, band
from operant.tracking.history import COLUMNS, OPTIONAL, read_history
from operant.tracking.plot_style import INK, figure, label_axes, line_style, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TimeUnit = Literal["hour", "minute", "second"]
HistorySource = str | Path | Mapping[str, np.ndarray]
"""Path of a history, or its columns."""

Line = tuple[np.ndarray, np.ndarray]
"""Places of one run, in order, and a value at each."""

SECONDS = {"hour": 3600, "minute": 60, "second": 1}
NAMES = {
    "step": "environment steps",
    "mean_reward": "mean return",
    "best_reward": "best mean return",
    "episode_reward": "return",
}
"""What columns are called on axes, if not by their name."""
MARKED = 60
"""Of a line of at most so many points each is marked."""


def plot_history(
    paths: Sequence[str | Path],
    agents: Sequence[str],
    env: str,
    plot: str = "mean_reward",
    benchmark: Literal["step", "time"] = "step",
    history_interval: int = 1,
    time_unit: TimeUnit = "hour",
    ax: Axes | None = None,
) -> Axes:
    """Draw one line per history.

    Args:
        paths: histories, one per agent.
        agents: names for the legend.
        env: name of the environment, for the title.
        plot: column to draw.
        benchmark: what it is drawn over.
        history_interval: draw every so many episodes.
        time_unit: unit of time where `benchmark` is ``time``.
        ax: where to draw; None: a new figure, ``ax.figure``.

    Returns:
        The axes. ``ax.figure.savefig("curve.png")`` saves them.

    Raises:
        SpecError: for an argument that is not understood, or a history that cannot be read.
    """
    if len(paths) != len(agents):
        raise SpecError(
            f"Expected `paths` and `agents` to have the same sizes, got {len(paths)} and {len(agents)}."
        )
    if history_interval < 1:
        raise value_error("history_interval", "at least 1", history_interval)
    _check_axes(plot, benchmark, time_unit)
    if ax is None:
        ax = figure().add_subplot()
    for i, (path, agent) in enumerate(zip(paths, agents, strict=True)):
        history = read_history(path)
        x = _abscissa(history, benchmark, time_unit)
        y = np.where(np.isfinite(history[plot]), history[plot], np.nan)
        every = slice(None, None, history_interval)
        color, dashes = line_style(i)
        x, y = x[every], y[every]
        marker = _marker(np.isfinite(y).sum())
        ax.plot(x, y, marker=marker, label=agent, color=color, linestyle=dashes, linewidth=1.8, markersize=4)
    title = f"{agents[0]} - {env}" if len(agents) == 1 else env
    label_axes(ax, title, _label(benchmark, time_unit), title_of(plot), legend="lower right")
    return ax


def learning_curve(
    runs: Mapping[str, Sequence[HistorySource]],
    out: str | Path | None = None,
    title: str = "",
    *,
    plot: str = "mean_reward",
    benchmark: Literal["step", "time"] = "step",
    statistic: Statistic = "mean",
    level: float = 0.95,
    target: float | None = None,
    points: int = 200,
    time_unit: TimeUnit = "hour",
    styles: Mapping[str, tuple[str, Any]] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the learning curves of several agents, each over its seeds, with a bootstrap band.

    A curve covers what all of its runs cover. A single run is drawn without a band. The points of a short
    history, as of evaluations, are marked.

    Args:
        runs: histories of each agent's seeds, by the label of the agent.
        out: file to write, ``.png``, ``.svg`` or ``.pdf``; None: none.
        title: title of the plot.
        plot: column to draw.
        benchmark: what it is drawn over.
        statistic: over seeds: ``mean`` or ``iqm``, the interquartile mean.
        level: confidence level of the band.
        target: reward to mark by a horizontal line.
        points: of each curve.
        time_unit: unit of time where `benchmark` is ``time``.
        styles: colour and matplotlib's line style by label, so that several pictures agree; None: in order.
        ax: where to draw; None: a new figure, ``ax.figure``.

    Returns:
        The axes.

    Raises:
        SpecError: for an argument that is not understood, or runs that cannot be read or do not overlap.
    """
    _check_axes(plot, benchmark, time_unit)
    if ax is None:
        ax = figure().add_subplot()
    lines: dict[str, list[Line]] = {label: [] for label in runs}
    for label, source in ((label, source) for label, sources in runs.items() for source in sources):
        history = source if isinstance(source, Mapping) else read_history(source)
        lines[label].append(settled(history, plot, _abscissa(history, benchmark, time_unit)))
    styles = styles or {label: line_style(i) for i, label in enumerate(runs)}
    draw_lines(ax, lines, styles, statistic, level, points)
    if target is not None:
        ax.axhline(
            target, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), label=f"target {target:,g}", zorder=1
        )
    many = any(len(histories) > 1 for histories in runs.values())
    name = {"mean": "mean", "iqm": "interquartile mean"}[statistic]
    note = f"{name} over seeds with {100 * level:g}% bootstrap interval" if many else ""
    label_axes(ax, title, _label(benchmark, time_unit), title_of(plot), legend="best", note=note)
    if out is not None:
        save(ax.figure, out)
    return ax


def draw_lines(
    ax: Axes,
    lines: Mapping[str, Sequence[Line]],
    styles: Mapping[str, tuple[str, Any]],
    statistic: Statistic = "mean",
    level: float = 0.95,
    points: int = 200,
) -> None:
    """Draw one line for each label, over its seeds with a bootstrap band.

    `styles` are colours and dashes by label. Where the seeds have few places they are what is drawn, and
    marked; else `points` are.

    Raises:
        SpecError: a run has no places, or those of a label do not overlap.
    """
    for i, (label, seeds) in enumerate(lines.items()):
        x, curves = _over_seeds(label, seeds, points)
        center, low, high = band(curves, statistic, level)
        color, dashes = styles[label]
        several = len(seeds) > 1
        name = f"{label} ({len(seeds)} seed{'s' if several else ''})"
        ax.plot(
            x, center, marker=_marker(len(x)), color=color, linestyle=dashes, linewidth=2.0, markersize=5,
            label=name, zorder=3 + i / 100,
        )  # fmt: skip
        if several:
            ax.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0, zorder=2)


def _marker(points: int) -> str:
    return "o" if points <= MARKED else ""


def title_of(column: str) -> str:
    """Return what a column is called on an axis."""
    return NAMES.get(column, column.replace("_", " "))


def _check_axes(plot: str, benchmark: str, time_unit: str) -> None:
    columns = (*COLUMNS, *OPTIONAL)
    if plot not in columns:
        raise SpecError(f"The history has no column {plot!r} to plot.{suggest(plot, columns)}")
    if benchmark not in ("step", "time"):
        raise value_error("benchmark", "'step' or 'time'", benchmark)
    if time_unit not in SECONDS:
        raise value_error("time_unit", "'hour', 'minute' or 'second'", time_unit)


def _abscissa(history: Mapping[str, np.ndarray], benchmark: str, time_unit: str) -> np.ndarray:
    return history["step"] if benchmark == "step" else history["time"] / SECONDS[time_unit]


def _label(benchmark: str, time_unit: str) -> str:
    return NAMES["step"] if benchmark == "step" else f"time ({time_unit}s)"


def settled(history: Mapping[str, np.ndarray], plot: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct places where episodes ended, in order, and the finite values of a column there.

    For episodes that ended together, a rolling mean is that of the last one; any other column is averaged:
    episodes of an evaluation are in the order in which they ended, the longest last.
    """
    y = np.asarray(history[plot], np.float64)
    order = np.argsort(x, kind="stable")
    x, y = x[order][np.isfinite(y[order])], y[order][np.isfinite(y[order])]
    starts = np.flatnonzero(np.append(True, x[1:] > x[:-1])[: len(x)])
    sizes = np.diff(np.append(starts, len(x)))
    if plot in ("mean_reward", "best_reward"):
        return x[starts], y[starts + sizes - 1]
    return x[starts], np.add.reduceat(y, starts) / sizes if len(x) else y


def _over_seeds(label: str, lines: Sequence[Line], points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return abscissa `[points]` and each run's curve `[points, seeds]` over the range that all cover."""
    if not lines or any(not len(x) for x, _ in lines):
        raise SpecError(f"A run of {label!r} has no episodes to plot.")
    start, end = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    if start > end:
        raise SpecError(
            f"The runs of {label!r} do not overlap: one begins at {start:g}, one ends at {end:g}. "
            "Draw them by step, or each under a label of its own."
        )
    places = np.unique(np.concatenate([x for x, _ in lines]))
    places = places[(start <= places) & (places <= end)]
    grid = places if len(places) <= MARKED else np.linspace(start, end, points)
    return grid, np.stack([np.interp(grid, x, y) for x, y in lines], axis=-1)
