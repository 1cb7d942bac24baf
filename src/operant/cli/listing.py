"""`operant list`."""

from __future__ import annotations

from pathlib import Path

from operant import presets
from operant.agents import AGENTS
from operant.cli import tables
from operant.errors import UsageError, suggest

WHAT = {
    "agents": "algorithms",
    "envs": "environments",
    "presets": "tuned settings with their measured scores",
    "runs": "what was trained, in runs/ or another folder",
}


def run(arguments: list[str]) -> int:
    """Print what there is."""
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = ["Usage:", "    operant list <what> [text]", "    operant list runs [folder]", "", "What:"]
        lines += [f"    {name:<10} {text}" for name, text in WHAT.items()]
        print(
            "\n".join(
                [
                    *lines,
                    "",
                    "With a text, only lines that contain it. A folder's name after runs is the folder.",
                ]
            )
        )
        return 0
    what, *rest = arguments
    if what in ("environments", "env"):
        what = "envs"
    if what not in WHAT:
        raise UsageError(f"operant cannot list {what!r}.{suggest(what, WHAT)}")
    if len(rest) > 1:
        raise UsageError(f"operant list {what} takes one text at most. Received: {' '.join(rest)}.")
    folder = Path("runs")
    if what == "runs" and rest and Path(rest[0]).is_dir():
        folder, rest = Path(rest[0]), []
    header, rows = _runs(folder) if what == "runs" else _rows(what)
    if rest:
        rows = [row for row in rows if any(rest[0].lower() in cell.lower() for cell in row)]
    if not rows and not rest:
        print(f"There are no runs in {str(folder)!r}.")
        return 0
    if not rows:
        print(f"No {what} match {rest[0]!r}.")
        return 0
    print(tables.table(what, header, rows))
    return 0


def _rows(what: str) -> tuple[tuple[str, ...], list[list[str]]]:
    if what == "agents":
        return ("agent", "what it is"), [[name, entry.help] for name, entry in AGENTS.items()]
    if what == "presets":
        rows = [[f"{p.agent} --preset {p.name}", p.score, p.settings["env"]] for p in presets.every()]
        return ("preset", "measured", "environment"), rows
    from operant.envs import table

    return ("id", "kind", "needs"), [[e.id, e.kind, e.extra or "-"] for e in table.known()]


def _runs(folder: Path) -> tuple[tuple[str, ...], list[list[str]]]:
    from operant.folder import runs_in

    header = ("run", "agent", "environment", "seed", "steps", "games", "mean", "best evaluation", "ended")
    return header, [
        [
            str(run.directory),
            run.agent,
            run.env,
            str(run.seed),
            f"{run.step:,}",
            f"{run.episodes:,}",
            f"{sum(run.rewards) / len(run.rewards):.2f}" if run.rewards else "-",
            "-" if run.best_evaluation is None else f"{run.best_evaluation:.2f}",
            run.ended or "-",
        ]
        for run in runs_in(folder)
    ]
