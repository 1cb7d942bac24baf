"""What comes of runs: `operant plot`, `operant report`, `operant card` and `operant reproduce`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from operant.cli import parse, tables
from operant.errors import UsageError
from operant.spec import Config
from operant.spec.run import ProcessConfig
from operant.tracking.console import tell, wait


def plot(arguments: list[str]) -> int:
    """Plot, or print help when there is nothing to plot."""
    from operant.tracking import figures

    def write(runs: Sequence[str], config: figures.PlotConfig) -> Path:
        wait("Plotting", line=False)
        return figures.plot(runs, config)

    usage = [
        "operant plot <run> ... [options]     learning curves over seeds",
        "operant plot <run> ... --aggregate   statistics over environments",
    ]
    note = "A run is a folder that training made, a folder of such runs, or a history\n(.parquet)."
    return _made("plot", arguments, figures.PlotConfig, write, usage, note)


def report(arguments: list[str]) -> int:
    """Write a report, or print help when there is nothing to report."""
    from operant.execution import report as reports

    def write(runs: Sequence[str], config: reports.ReportConfig) -> Path:
        wait("Making the report")
        return reports.report(runs, config)

    usage = [
        "operant report <run> ... [options]      runs: curves, evaluations, settings, a video",
        "operant report --study <name> [options] a study: history, importances, best settings",
    ]
    note = "A run is a folder that training made, or a folder of such runs."
    return _made("report", arguments, reports.ReportConfig, write, usage, note)


def card(arguments: list[str]) -> int:
    """Write a model card, or print help when there is no run."""
    from operant.execution.model_card import CardConfig, write_card

    def write(runs: Sequence[str], config: CardConfig) -> Path:
        if len(runs) != 1:
            raise UsageError(f"card takes one run: operant card RUN. Received {len(runs)}.")
        wait(f"Loading JAX and Keras, then playing {config.episodes} episodes")
        return write_card(runs[0], config)

    note = "It writes a model card (README.md) in the Hugging Face Hub's form, and a copy of the agent."
    return _made("card", arguments, CardConfig, write, ["operant card <run> [options]"], note)


def reproduce(arguments: list[str]) -> int:
    """Repeat a run, or print help when none is named; return 1 if the outcome differs."""
    from operant.training.reproduce import ReproduceConfig, reproduce

    configs: list[type[Config]] = [ReproduceConfig, ProcessConfig]
    if parse.asks_for_help(arguments):
        usage = [
            "operant reproduce <run> [options]",
            "operant reproduce <module:Name> <run> [--env <module:Name>] [options]",
        ]
        note = (
            "Trains again from the recorded options and seed, then compares checkpoint and\n"
            "history bit by bit. Exit status: 0 identical, 1 different, 2 not repeatable."
        )
        print(tables.page(usage, note, tables.flags("Flags", configs)))
        return 0
    values = parse.parse(configs, arguments, "reproduce", positional="runs")
    runs, agent = values.pop("runs"), None
    if len(runs) > 1 and parse.is_own(runs[0]):
        agent, runs = parse.leading_agent(runs, "reproduce")
    if len(runs) != 1:
        raise UsageError(f"reproduce takes the folder of one run. Received: {' '.join(runs) or 'none'}.")
    config = ReproduceConfig.from_dict(values)
    if not config.quiet:
        wait("Loading JAX and Keras")
    result = reproduce(runs[0], config, agent)
    print(result)
    return 0 if result.identical else 1


def _made(
    command: str,
    arguments: list[str],
    kind: type[Config],
    write: Callable[[Sequence[str], Any], Path],
    usage: Sequence[str],
    note: str,
) -> int:
    if parse.asks_for_help(arguments):
        print(tables.page(usage, note, tables.flags("Flags", [kind])))
        return 0
    values = parse.parse([kind], arguments, command, positional="runs")
    runs = values.pop("runs")
    tell(f"Wrote {write(runs, kind.from_dict(values))}")
    return 0
