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
    scales = [_Scale(name, [t.params[name] for t in drawn], name in logarithmic) for name in names]
    heights = np.array([[scale.height(t.params[scale.name]) for scale in scales] for t in drawn])
    heights = np.column_stack([heights, _unit(values)])
    drawing = figure(width=max(7.2, 1.5 * (len(names) + 1)))
    ax = drawing.add_subplot()
    lines = [np.column_stack([np.arange(len(names) + 1), row]) for row in heights]
    collection = LineCollection(lines, cmap="viridis_r", array=values, linewidths=1.3, alpha=0.75)
    ax.add_collection(collection)
    for x, scale in enumerate(scales):
        _axis(ax, x, scale.ticks())
    low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    _axis(
        ax, len(names), [(0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")] if high > low else [(0.5, f"{low:.4g}")]
    )
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


class _Scale:
    """Maps the values of one parameter to heights between 0 and 1."""

    def __init__(self, name: str, values: Sequence[Any], logarithmic: bool) -> None:
        self.name = name
        self._logarithmic = logarithmic
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        few = len(set(map(repr, values))) <= 6
        self._names: list[Any] | None = None
        if not numbers or (few and not logarithmic):
            self._names = sorted(set(values)) if numbers else sorted(set(values), key=str)
            self._low, self._high = 0.0, float(max(1, len(self._names) - 1))
        else:
            self._low, self._high = self._raw(min(values)), self._raw(max(values))

    def _raw(self, value: Any) -> float:
        if self._names is not None:
            return float(self._names.index(value))
        return float(np.log10(value)) if self._logarithmic else float(value)

    def height(self, value: Any) -> float:
        if (self._names is not None and len(self._names) == 1) or self._high == self._low:
            return 0.5
        return (self._raw(value) - self._low) / (self._high - self._low)

    def ticks(self) -> list[tuple[float, str]]:
        if self._names is not None:
            return [(self.height(v), literal(str(v)[:_LINES])) for v in self._names]
        heights = np.linspace(0, 1, 5) if self._high > self._low else np.array([0.5])
        raw = self._low + heights * (self._high - self._low)
        return [
            (float(h), f"{10**r if self._logarithmic else r:.3g}") for h, r in zip(heights, raw, strict=True)
        ]


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
    span = np.ptp(values) if values.size else 0.0
    return (values - values.min()) / span if span else np.full(values.shape, 0.5)
