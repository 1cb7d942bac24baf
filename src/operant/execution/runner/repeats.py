"""The same run several times: returns, lengths and times of all of them in one file and one plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from operant.execution.runner.runner import Runner

LISTS = {
    "rewards": "episode_returns",
    "timesteps": "episode_timesteps",
    "seconds": "episode_seconds",
    "agent_seconds": "episode_agent_seconds",
}
"""What is written, and the attribute of a `Runner` that holds it."""


Run = dict[str, list[Any]]
"""What one run recorded."""


def recorded(runner: Runner) -> Run:
    """Return copies of the lists of a run."""
    return {name: list(getattr(runner, attribute)) for name, attribute in LISTS.items()}


def by_episode(runs: Sequence[Run]) -> dict[str, list[list[Any]]]:
    """Return lists ``[episode][repeat]``, as long as the shortest run."""
    return {name: [list(row) for row in zip(*(run[name] for run in runs), strict=False)] for name in LISTS}


def write(runs: Sequence[Run], path: str | Path, style: str | None = None) -> list[Path]:
    """Write ``PATH.json`` and ``PATH.png``, in a style of matplotlib's, and make their folder if missing.

    They show the median over the repeats, and a band from minimum to maximum.
    """
    from matplotlib import style as styles
    from matplotlib.figure import Figure

    path, data = Path(path), by_episode(runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{extension}") for extension in ("json", "png")]
    files[0].write_text(json.dumps(data), encoding="utf-8")
    with styles.context(style or "default"):
        figure = Figure(figsize=(8, 5), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        for axes, name, label in ((upper, "rewards", "return"), (lower, "timesteps", "timesteps")):
            values = np.asarray(data[name], float).reshape(len(data[name]), len(runs))
            episodes = np.arange(1, len(values) + 1)
            if values.size:
                axes.fill_between(episodes, values.min(1), values.max(1), alpha=0.3, linewidth=0)
                axes.plot(episodes, np.median(values, 1))
            axes.set_ylabel(label)
            axes.grid(alpha=0.3)
        lower.set_xlabel("episode")
        figure.savefig(files[1], dpi=120)
    return files
