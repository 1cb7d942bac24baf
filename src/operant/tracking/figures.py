"""Pictures of runs on the disk: what `operant plot` draws."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from operant.errors import SpecError, UsageError
from operant.spec import Config, default, option, read_json
from operant.tracking.bootstrap import stratified
from operant.tracking.history import COLUMNS, OPTIONAL
from operant.tracking.learning_curves import learning_curve, settled
from operant.tracking.plot_style import FORMATS, INK, check_format, figure, label_axes, line_style, save
from operant.tracking.runs import Run, grouped, read

Groups = dict[str, dict[str, list[Run]]]
"""Runs by environment and label."""
FIRST_EPISODES = 20
"""Episodes at the beginning of a run that show what an untrained policy scores, if it is not given."""
OF_CURVES = ("env", "benchmark", "time_unit", "history_interval", "statistic", "target")
"""Options that have no effect on statistics over environments."""


class PlotConfig(Config):
    """Options of `operant plot`."""

    out: str = option("plot.png", "File to write: .png, .svg or .pdf")
    agents: tuple[str, ...] = option(
        (),
        "Name of each history in the legend; histories of one name are seeds of one curve (default: by the "
        "runs' settings)",
    )
    env: str | None = option(None, "Name of the environment, for the title (default: the runs')")
    plot: str = option("mean_reward", "Column to draw", choices=(*COLUMNS, *OPTIONAL))
    benchmark: Literal["step", "time"] = option(
        "step", "Horizontal axis: step or time", choices=("step", "time")
    )
    time_unit: Literal["hour", "minute", "second"] = option(
        "hour", "Unit of time: hour, minute or second", choices=("hour", "minute", "second")
    )
    evaluations: bool = option(
        False, "Draw evaluations (of runs with --eval-frequency) instead of the episodes of training"
    )
    history_interval: int = option(1, "Use every n-th episode", low=1)
    statistic: Literal["mean", "iqm"] = option(
        "mean", "Statistic over seeds: mean, or iqm, the interquartile mean", choices=("mean", "iqm")
    )
    level: float = option(0.95, "Confidence level of the bootstrap intervals", low=0.01, high=0.999)
    target: float | None = option(None, "Reward to mark with a line")
    aggregate: bool = option(
        False, "Draw scores over all environments instead of curves: IQM, median and mean, with intervals"
    )
    scores: str | None = option(
        None,
        "With --aggregate: JSON file that gives for each environment [score that counts as 0, score that "
        "counts as 1]",
    )

    def check(self) -> Iterator[str]:
        """Refuse a file that is no picture."""
        if Path(self.out).suffix.lower() not in FORMATS:
            yield f"out must be a file that ends with .png, .svg or .pdf. Received: out={self.out!r}."
        if self.scores is not None and not self.aggregate:
            yield "scores is for --aggregate, which was not given."
        for name in OF_CURVES if self.aggregate else ():
            if (value := getattr(self, name)) != default(type(self), name):
                yield (
                    f"{name} is for curves, and has no effect with aggregate. Received: {name}={value!r}. "
                    "Leave it out."
                )


class Aggregate(NamedTuple):
    """A statistic of one agent over environments."""

    label: str
    statistic: str
    estimate: float
    low: float
    high: float


def plot(paths: Sequence[str | Path], config: PlotConfig | None = None) -> Path:
    """Draw runs: folders of runs, folders of such folders, or histories; return the file.

    Runs of one agent with the same settings are seeds of one curve, drawn with a bootstrap interval. Several
    environments get a panel each, or, with `aggregate`, statistics over all of them.

    Raises:
        OperantError: a run cannot be read, or an option does not fit; nothing is written then.
    """
    config = PlotConfig.from_dict({}) if config is None else config
    out = check_format(config.out)
    if not paths:
        raise UsageError("plot needs runs: operant plot RUN ... (folders of runs, or histories).")
    every = slice(None, None, config.history_interval)
    runs = [
        run._replace(columns={name: column[every] for name, column in run.columns.items()})
        for run in read(paths, evaluations=config.evaluations)
    ]
    groups = _with_episodes(grouped(runs, config.agents), config.plot)
    return save((_aggregates if config.aggregate else _curves)(groups, config), out)


def _with_episodes(groups: Groups, column: str) -> Groups:
    """Leave out runs in which no episode has a value yet; SpecError: none remain."""
    kept: Groups = {}
    empty: list[str] = []
    for env, group in groups.items():
        for label, runs in group.items():
            for run in runs:
                if np.isfinite(np.asarray(run.columns[column], np.float64)).any():
                    kept.setdefault(env, {}).setdefault(label, []).append(run)
                else:
                    empty.append(repr(str(run.path)))
    names = ", ".join(empty)
    if not kept:
        raise SpecError(f"There are no episodes to plot ({column}) in {names}.")
    if empty:
        warnings.warn(
            f"Left out, without episodes to plot ({column}): {names}.", RuntimeWarning, stacklevel=3
        )
    return kept


def line_styles(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, Any]]:
    """Return colour and dashes of each label, the same in all environments."""
    labels = list(dict.fromkeys(label for group in groups.values() for label in group))
    return {label: line_style(i) for i, label in enumerate(labels)}


def _curves(groups: Groups, config: PlotConfig) -> object:
    styles = line_styles(groups)
    columns = min(len(groups), 3)
    rows = math.ceil(len(groups) / columns)
    drawing = figure(7.2 if columns == 1 else 5.6 * columns, 4.4 * rows)
    for i, (env, labels) in enumerate(groups.items()):
        learning_curve(
            {label: [run.columns for run in runs] for label, runs in labels.items()},
            title=(config.env if config.env and len(groups) == 1 else env)
            + (": evaluations" if config.evaluations else ""),
            plot=config.plot,
            benchmark=config.benchmark,
            statistic=config.statistic,
            level=config.level,
            target=config.target,
            time_unit=config.time_unit,
            styles=styles,
            ax=drawing.add_subplot(rows, columns, i + 1),
        )
    return drawing


def aggregates(groups: Groups, config: PlotConfig) -> list[Aggregate]:
    """Return statistics of every agent's final scores over all environments.

    A score is the last value of the column, normalised: 0 and 1 are what `scores` says for the environment,
    or else the mean return of the first episodes of all its runs, and the best of their final scores.

    Raises:
        SpecError: an agent has no runs in one of the environments, or the scores of one do not differ.
    """
    references = read_json(config.scores, "scores") if config.scores else {}
    scores: dict[str, list[list[float]]] = {label: [] for label in line_styles(groups)}
    for env, group in groups.items():
        low, high = _range(env, references, group, config.plot)
        for label in scores:
            if label not in group:
                raise SpecError(
                    f"{label!r} has no run in {env!r}, and statistics over environments need runs in all of "
                    "them. Name runs with --agents where their settings differ."
                )
            _warn_of_lengths(env, label, group[label])
            finals = [_final(run, config.plot) for run in group[label]]
            scores[label].append([(final - low) / (high - low) for final in finals])
    return [
        Aggregate(label, statistic, *stratified(parts, statistic, config.level))
        for label, parts in scores.items()
        for statistic in ("iqm", "median", "mean")
    ]


def _warn_of_lengths(env: str, label: str, runs: Sequence[Run]) -> None:
    ends = [int(run.columns["step"][-1]) for run in runs]
    if max(ends) > 1.05 * min(ends):
        warnings.warn(
            f"The runs of {label!r} in {env!r} end at steps {min(ends)} to {max(ends)}, and their final "
            "scores count alike.",
            RuntimeWarning,
            stacklevel=4,
        )


def _range(
    env: str, references: Mapping[str, Any], group: Mapping[str, list[Run]], column: str
) -> tuple[float, float]:
    if references:
        if env not in references:
            raise SpecError(
                f"scores does not know the environment {env!r}. It knows: {', '.join(references)}."
            )
        ends = references[env]
        if not isinstance(ends, list) or [isinstance(end, int | float) for end in ends] != [True, True]:
            raise SpecError(f"scores must give two numbers for {env!r}. Received: {ends!r}.")
        low, high = map(float, ends)
    else:
        runs = [run for runs in group.values() for run in runs]
        low = float(np.mean([_beginning(run, column) for run in runs]))
        high = max(_final(run, column) for run in runs)
        if high < low:
            raise SpecError(
                f"No run in {env!r} ended above its first episodes ({low:g}), so that none can count 1. "
                "Give --scores."
            )
    if low == high:
        raise SpecError(f"The scores that count 0 and 1 in {env!r} are both {low:g}. Give --scores.")
    return low, high


def _beginning(run: Run, column: str) -> float:
    """Return the mean over the first episodes, equally many of every actor: the shortest end first."""
    values = run.columns["episode_length" if column == "episode_length" else "episode_reward"]
    actors = run.columns.get("actor", np.zeros(len(values), np.int64))
    each = -(-FIRST_EPISODES // max(len(np.unique(actors)), 1))
    return float(np.mean(np.concatenate([values[actors == actor][:each] for actor in np.unique(actors)])))


def _final(run: Run, column: str) -> float:
    _, values = settled(run.columns, column, run.columns["step"])
    return float(values[-1])


def _aggregates(groups: Groups, config: PlotConfig) -> object:
    statistics = aggregates(groups, config)
    styles = line_styles(groups)
    labels = list(styles)[::-1]
    drawing = figure(11.0, 1.9 + 0.5 * len(labels))
    titles = {"iqm": "IQM", "median": "Median", "mean": "Mean"}
    seeds = {len(runs) for group in groups.values() for runs in group.values()}
    count = str(min(seeds)) if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    note = (
        f"{len(groups)} environments, {count} seeds each; {100 * config.level:g}% stratified bootstrap "
        "intervals"
    )
    ends = [value for one in statistics for value in one[2:] if math.isfinite(value)]
    margin = 0.06 * (max(ends) - min(ends)) or 0.1
    limits = (min(ends) - margin, max(ends) + margin)
    for i, (statistic, title) in enumerate(titles.items()):
        ax = drawing.add_subplot(1, 3, i + 1)
        for one in statistics:
            if one.statistic == statistic:
                row, color = labels.index(one.label), styles[one.label][0]
                if math.isfinite(one.low):
                    ax.barh(row, one.high - one.low, left=one.low, height=0.5, color=color, alpha=0.55)
                ax.plot([one.estimate] * 2, [row - 0.25, row + 0.25], color=INK, linewidth=2)
        label_axes(
            ax, title, "normalised score", "", legend="best", note=note if i == 0 else " ", numbers="x"
        )
        ax.set_yticks(range(len(labels)), labels if i == 0 else [""] * len(labels))
        ax.set_ylim(-0.6, len(labels) - 0.4)
        ax.grid(False, axis="y")
        ax.set_xlim(*limits)
    return drawing
