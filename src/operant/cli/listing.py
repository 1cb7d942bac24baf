"""`operant list`."""

from __future__ import annotations

from pathlib import Path

from operant.agents.table import AGENTS
from operant.cli import parse, tables
from operant.errors import UsageError, quoted, suggest
from operant.spec import presets
from operant.tracking.console import tell, wait

WHAT = {
    "agents": "algorithms",
    "envs": "environments",
    "presets": "tuned settings with their measured scores",
    "runs": "what was trained, in runs/ or another folder",
}


def run(arguments: list[str]) -> int:
    """Print what there is."""
    if parse.asks_for_help(arguments):
        lines = ["Usage:", "    operant list <what> [text]", "    operant list runs [folder]", "", "What:"]
        lines += [f"    {name:<10} {text}" for name, text in WHAT.items()]
        note = (
            "With text: only lines that contain it. After runs, the name of a folder stands for the folder."
        )
        print("\n".join([*lines, "", note]))
        return 0
    what, *rest = arguments
    if what in ("environments", "env"):
        what = "envs"
    if what not in WHAT:
        raise UsageError(f"operant cannot list {what!r}.{suggest(what, WHAT)}")
    if len(rest) > 1:
        raise UsageError(f"operant list {what} takes one text at most. Received: {' '.join(rest)}.")
    wait(f"Looking for {what}", line=False)
    if what == "runs":
        place = rest[0] if rest and Path(rest[0]).is_dir() else None
        tell(_runs(Path(place or "runs"), "" if place or not rest else rest[0]))
        return 0
    header, rows = _rows(what)
    if rest:
        rows = [row for row in rows if any(rest[0].lower() in cell.lower() for cell in row)]
    if not rows:
        tell(f"No {what} match {rest[0]!r}.")
        return 0
    tell(tables.table(what, header, rows))
    return 0


def _rows(what: str) -> tuple[tuple[str, ...], list[list[str]]]:
    if what == "agents":
        return ("agent", "what it is"), [[name, entry.help] for name, entry in AGENTS.items()]
    if what == "presets":
        rows = [[f"{p.agent} --preset {p.name}", p.score, p.settings["env"]] for p in presets.every()]
        return ("preset", "measured", "environment"), rows
    from operant.envs import catalog

    return ("id", "kind", "needs"), [[e.id, e.kind, e.extra or "-"] for e in catalog.known()]


def _runs(folder: Path, text: str) -> str:
    from operant.training.run_dir import read_and_unread

    shown = []
    runs, unread = read_and_unread(folder)
    for run in runs:
        mean = f"{sum(run.rewards) / len(run.rewards):.2f}" if run.rewards else "-"
        best = "" if run.best_evaluation is None else f", best evaluation {run.best_evaluation:.2f}"
        lines = (
            str(run.directory),
            f"    {run.agent} on {run.env}, seed {run.seed}; {(run.ended or 'not ended').replace('_', ' ')}",
            f"    {run.step:,} steps, {run.episodes:,} episodes, mean return {mean}{best}",
        )
        shown.append("\n".join(lines))
    shown += [f"{directory}\n    cannot be read: {reason}" for directory, reason in unread.items()]
    matching = [each for each in shown if text.lower() in each.lower()]
    if not matching and (folder / "run.json").is_file():
        beside = folder.parent if folder.name not in ("", "..") else folder.resolve().parent
        return (
            f"{str(folder)!r} is itself a run. For it and those beside it: operant list runs "
            f"{quoted(str(beside))}"
        )
    if not matching:
        return f"No runs match {text!r}." if shown else f"There are no runs in {str(folder)!r}."
    return "\n".join(matching)
