"""Pictures of a study: its trials in order, which parameters mattered, trials as lines over parameters.

`optuna.visualization.matplotlib` draws the same three, but leaves out pruned and failed trials, slants the
best so far between trials, prints the scales of parallel coordinates over one another, needs pyplot and its
global state, and warns that it is experimental.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from operant.tracking.plot_style import COLORS, GRID, INK, PALE, figure, label_axes, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from optuna.trial import FrozenTrial

_STATES = {  # state: name in the legend, colour, marker
    "COMPLETE": ("complete", COLORS[0], "o"),
    "PRUNED": ("pruned", COLORS[4], "v"),
}
_LINES = 40
"""Characters of a categorical value on an axis, at most."""


def history(trials: Sequence[FrozenTrial], title: str = "") -> Figure:
    """Draw every trial's value in order, and the best so far; failed ones are ticks at the bottom.

    The value is the mean return, of a pruned trial the last one known.
    """
    from matplotlib.ticker import MaxNLocator

    drawing = figure()
    ax = drawing.add_subplot()
    for state, (label, color, marker) in _STATES.items():
        points = [(t.number, t.value) for t in trials if t.state.name == state and t.value is not None]
        if points:
            x, y = zip(*points, strict=True)
            ax.scatter(x, y, s=26, color=color, marker=marker, label=label, zorder=3, linewidths=0)
    complete = sorted((t.number, t.value) for t in trials if t.state.name == "COMPLETE")
    if complete:
        numbers, values = zip(*complete, strict=True)
        best = np.maximum.accumulate([*values, values[-1]])  # the last one goes on a little, so as to be seen
        ax.step(
            [*numbers, max(t.number for t in trials) + 0.4],
            best,
            where="post",
            color=COLORS[1],
            linewidth=1.8,
            label="best so far",
            zorder=2,
        )
    failed = [t.number for t in trials if t.state.name == "FAIL"]
    if failed:
        bottom = ax.get_xaxis_transform()
        ax.plot(failed, [0.015] * len(failed), "x", color=PALE, ms=6, transform=bottom, label="failed")
    label_axes(ax, title, "trial", "mean return", legend="best")
    ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    return drawing


ENOUGH = 5
"""Fewer best trials than this say little about what made them good (Optuna's own advice)."""


def importances(shares: Mapping[str, float], complete: int, title: str = "") -> Figure:
    """Draw how well each parameter distinguishes the best tenth of the complete trials from all of them.

    `shares` are by name of the parameter and sum up to 1; `complete` is the number of such trials.
    """
    names = sorted(shares, key=lambda name: shares[name])
    drawing = figure(height=1.6 + 0.42 * len(names))
    ax = drawing.add_subplot()
    values = [shares[name] for name in names]
    ax.barh(range(len(names)), values, height=0.62, color=COLORS[0])
    for i, value in enumerate(values):
        text = f"{value:.2f}" if value >= 0.01 else "<0.01"
        ax.annotate(
            text, (value, i), (5, 0), textcoords="offset points", va="center", fontsize=9.5, color=INK
        )
    best = -(-complete // 10)
    note = (
        f"PED-ANOVA: the best {best} of {complete} complete trials against "
        f"all{'' if best >= ENOUGH else ', too few to say much'}"
    )
    label_axes(ax, title, "importance", "", legend="best", note=note, numbers="x")
    ax.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    ax.set_xlim(0, max(values, default=1.0) * 1.12 or 1.0)
    ax.grid(False, axis="y")
    return drawing


def parallel(trials: Sequence[FrozenTrial], logarithmic: Collection[str], title: str = "") -> Figure:
    """Draw each complete trial as a line over one axis per parameter, coloured by its value, best on top.

    `logarithmic` are the parameters whose axis is.
    """
    from matplotlib.collections import LineCollection

    names = sorted({name for t in trials for name in t.params})
    drawn = sorted(
        (t for t in trials if t.value is not None and set(names) <= set(t.params)),
        key=lambda t: (t.value, t.number),
    )
    values = np.array([t.value for t in drawn], float)
    scales = [_scale([t.params[name] for t in drawn], name in logarithmic) for name in names]
    heights = np.column_stack([*(height for height, _ in scales), _unit(values)])
    drawing = figure(width=max(7.2, 1.5 * (len(names) + 1)))
    ax = drawing.add_subplot()
    lines = [np.column_stack([np.arange(len(names) + 1), row]) for row in heights]
    collection = LineCollection(lines, cmap="viridis_r", array=values, linewidths=1.3, alpha=0.75)
    ax.add_collection(collection)
    for x, (_, ticks) in enumerate(scales):
        _axis(ax, x, ticks)
    ends = np.unique(values[[0, -1]])
    _axis(ax, len(names), list(zip(_unit(ends), [f"{end:.4g}" for end in ends], strict=True)))
    ax.set_xticks(range(len(names) + 1), [*(name.replace("_", " ") for name in names), "mean return"])
    ax.set_xlim(-0.25, len(names) + 0.45)
    ax.set_ylim(-0.05, 1.05)
    ax.set_yticks([])
    for side in ax.spines.values():
        side.set_visible(False)
    ax.tick_params(colors=INK, labelsize=10, length=0, pad=8)
    ax.set_title(literal(title), loc="left", fontsize=13, fontweight="bold", color=INK, pad=12)
    bar = drawing.colorbar(collection, ax=ax, fraction=0.04, pad=0.02)
    bar.set_label("mean return", color=INK)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=9, length=0)
    return drawing


def _scale(values: Sequence[Any], logarithmic: bool) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Return the heights of a parameter's values, between 0 and 1, and the ticks of its axis."""
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    names = sorted(set(values), key=None if numbers else str)
    if not numbers or (len(names) <= 6 and not logarithmic):
        heights = dict(zip(names, _unit(np.arange(len(names))), strict=True))
        return np.array([heights[v] for v in values]), [
            (height, literal(str(v)[:_LINES])) for v, height in heights.items()
        ]
    raw = np.log10(values) if logarithmic else np.array(values, float)
    ticks = np.linspace(raw.min(), raw.max(), 5 if np.ptp(raw) else 1)
    labels = [f"{10**tick if logarithmic else tick:.3g}" for tick in ticks]
    return _unit(raw), list(zip(_unit(ticks), labels, strict=True))


def _axis(ax: Axes, x: float, ticks: Sequence[tuple[float, str]]) -> None:
    ax.plot([x, x], [0, 1], color=PALE, linewidth=1.0, zorder=4)
    for height, label in ticks:
        ax.plot([x - 0.02, x + 0.02], [height, height], color=PALE, linewidth=1.0, zorder=4)
        ax.annotate(
            label,
            (x, height),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=INK,
            zorder=5,
            bbox={"facecolor": "white", "edgecolor": GRID, "linewidth": 0, "pad": 0.8, "alpha": 0.75},
        )


def _unit(values: np.ndarray) -> np.ndarray:
    span = np.ptp(values)
    return (values - values.min()) / span if span else np.full(values.shape, 0.5)
