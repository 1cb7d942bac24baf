"""`operant plot`."""

from __future__ import annotations

from operant.cli import parse, tables
from operant.tracking import figures
from operant.tracking.console import tell, wait
from operant.tracking.figures import PlotConfig


def run(arguments: list[str]) -> int:
    """Plot, or print help when there is nothing to plot."""
    if parse.asks_for_help(arguments):
        print(help_text())
        return 0
    values = parse.parse([PlotConfig], arguments, "plot", positional="runs")
    paths = values.pop("runs")
    config = PlotConfig.from_dict(values)
    wait("Plotting", line=False)
    tell(f"Wrote {figures.plot(paths, config)}")
    return 0


def help_text() -> str:
    """Return usage and the table of flags."""
    usage = [
        "operant plot <run> ... [options]     learning curves over seeds",
        "operant plot <run> ... --aggregate   statistics over environments",
    ]
    note = "A run is a folder that training made, a folder of such runs, or a history\n(.parquet)."
    return tables.page(usage, note, tables.flags("Flags", [PlotConfig]))
