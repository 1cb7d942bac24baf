"""Runs by what they trained: histories in run folders or Parquet files, sorted by agent and seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from operant.errors import SpecError, UsageError, reading
from operant.spec import read_json
from operant.spec.run import TOGETHER
from operant.tracking.history import read_history

BEST = "best"
"""Folder within a run's that holds the checkpoint of its best evaluation."""
EVALUATIONS = "evaluations.parquet"
"""History of the evaluations of a run, in its folder."""
_FREE = {
    "seed", "max_steps", "target_reward", "checkpoints", "weights", "history_checkpoint", "monitor_session",
    "logger", "run_dir", "resume", "save_seconds", "save_memory", "save_frequency", "keep_checkpoints",
    "log_frequency", "display_precision", "quiet", "env", "vector", "threads", "eval_frequency",
    "eval_episodes", "info_keywords", *TOGETHER,
}  # fmt: skip
"""Options in which runs of one experiment may differ."""


class Run(NamedTuple):
    """One run to draw."""

    path: Path
    """Folder of the run, or the history."""
    env: str
    """Environment; empty if only a history is known."""
    agent: str
    settings: dict[str, Any]
    """Options that define the experiment."""
    columns: Mapping[str, np.ndarray]
    """Its history."""


def read(paths: Sequence[str | Path], evaluations: bool = False) -> list[Run]:
    """Read runs, each once; of several that wrote to one history, the first that is given stands for all.

    Raises:
        SpecError: there is no run, or its history cannot be read, or it was not evaluated.
    """
    places = list({place.resolve(): place for path in paths for place in _places(Path(path))}.values())
    by_history: dict[Path, Run] = {}
    for place in places:
        history, run = _read(place, places, evaluations)
        by_history.setdefault(history.resolve(), run)
    return list(by_history.values())


def read_run(file: Path) -> dict[str, Any]:
    """Return what the `run.json` of a run says; SpecError: it cannot be read, or does not describe a run."""
    saved = read_json(file, "run")
    for part, needed in (("agent", "type"), ("run", "env")):
        if not isinstance(saved.get(part), dict) or not isinstance(saved[part].get(needed), str):
            raise SpecError(
                f"{str(file)!r} does not describe a run: {part!r} must be an object with a string "
                f"{needed!r}. Restore the file, or give another run."
            )
    return saved


def files_within(folder: Path) -> list[Path]:
    """Return the `run.json` of the runs in a folder and in its folders (`seed-N`)."""
    return sorted((*folder.glob("*/run.json"), *folder.glob("*/*/run.json")))


def _places(path: Path) -> list[Path]:
    if not path.exists():
        raise SpecError(f"There is no run or history {str(path)!r}.")
    if path.suffix == ".parquet" or (path / "run.json").is_file():
        return [path]
    inside = files_within(path)
    if not inside:
        raise SpecError(
            f"{str(path)!r} is neither a run (a folder with run.json), nor a folder of runs, nor a history "
            "(.parquet)."
        )
    return [file.parent for file in inside]


def _read(path: Path, among: Sequence[Path], evaluations: bool) -> tuple[Path, Run]:
    if path.suffix == ".parquet":
        return path, Run(path, "", _name(path, among), {}, read_history(path))
    saved = read_run(path / "run.json")
    with reading(repr(str(path / "run.json")), SpecError):
        agent, run = dict(saved["agent"]), dict(saved["run"])
        kind, env = agent.pop("type"), run["env"]
        for part in saved.get("resumed", []):
            for name, value in part.get("options", {}).items():
                agent[name] = f"{_short(agent[name])}, then {_short(value)}"
        history = Path(run.get("history_checkpoint") or path / "history.parquet")
    settings = {**agent, **{name: value for name, value in run.items() if name not in _FREE}}
    # Each seed may begin from its own weights; only whether it does is part of the experiment.
    settings["weights"] = "given" if run.get("weights") else "none"
    if evaluations:
        history = path / EVALUATIONS
        if not history.exists():
            raise SpecError(
                f"The run {str(path)!r} has no evaluations. Train with --eval-frequency, or plot its "
                "episodes."
            )
    return history, Run(path, env, kind, settings, read_history(history))


def _name(path: Path, among: Sequence[Path]) -> str:
    parts = path.absolute().with_suffix("").parts
    others = {other.absolute().with_suffix("").parts for other in among} - {parts}
    length = 1
    while any(other[-length:] == parts[-length:] for other in others):
        length += 1
    return "/".join(parts[-length:]).replace("//", "/")


def grouped(runs: Sequence[Run], labels: Sequence[str] = ()) -> dict[str, dict[str, list[Run]]]:
    """Sort runs, in the order given, by environment, then label; runs of a label are seeds of an experiment.

    Without labels they are the agent's name, with the options in which experiments of an environment differ.

    Raises:
        UsageError: there are not as many labels as runs.
    """
    if labels and len(labels) != len(runs):
        raise UsageError(
            f"agents must name each of the {len(runs)} histories. Received {len(labels)} names: "
            f"{', '.join(labels)}."
        )
    groups: dict[str, dict[str, list[Run]]] = {}
    for i, run in enumerate(runs):
        label = labels[i] if labels else _label(run, runs)
        groups.setdefault(run.env, {}).setdefault(label, []).append(run)
    return groups


def _label(run: Run, runs: Sequence[Run]) -> str:
    """Name a run by its agent, and by what distinguishes it from others of it in the same environment."""
    alike = [other.settings for other in runs if (other.env, other.agent) == (run.env, run.agent)]
    names = {name: None for settings in alike for name in settings}
    values = {name: [settings.get(name) for settings in alike] for name in names}
    differing = [name for name in names if len(set(map(_text, values[name]))) > 1]
    parts = [f"{name} {_rounded(run.settings.get(name), values[name])}" for name in differing]
    return f"{run.agent}, {', '.join(parts)}" if parts else run.agent


def _short(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return ":".join(str(value.get(part)) for part in ("type", "start", "end", "steps"))


def _rounded(value: Any, among: Sequence[Any]) -> str:
    """Return a value in three digits, or as many more as tell it from those that differ from it."""
    if not isinstance(value, float):
        return _text(value)
    others = [other for other in among if isinstance(other, float) and other != value]
    texts = (f"{value:.{digits}g}" for digits in range(3, 18))
    return next(
        text for text in texts if all(abs(float(text) - other) > abs(float(text) - value) for other in others)
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
