"""`operant report`."""

from __future__ import annotations

from operant.cli import parse, tables
from operant.tracking.console import tell, wait


def run(arguments: list[str]) -> int:
    """Write a report, or print help when there is nothing to report."""
    from operant.execution.report import ReportConfig, report

    if parse.asks_for_help(arguments):
        usage = [
            "operant report <run> ... [options]      runs: curves, evaluations, settings, a video",
            "operant report --study <name> [options] a study: history, importances, best settings",
        ]
        note = "A run is a folder that training made, or a folder of such runs."
        print(tables.page(usage, note, tables.flags("Flags", [ReportConfig])))
        return 0
    values = parse.parse([ReportConfig], arguments, "report", positional="runs")
    paths = values.pop("runs")
    config = ReportConfig.from_dict(values)
    wait("Making the report")
    tell(f"Wrote {report(paths, config)}")
    return 0
