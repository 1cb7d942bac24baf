"""`operant reproduce`."""

from __future__ import annotations

from operant.cli import parse, tables
from operant.errors import UsageError
from operant.spec.run import ProcessConfig
from operant.tracking.console import wait
from operant.training.reproduce import ReproduceConfig


def run(arguments: list[str]) -> int:
    """Repeat a run, or print help when none is named; return 1 if the outcome differs."""
    if parse.asks_for_help(arguments):
        print(help_text())
        return 0
    options = parse.parse([ReproduceConfig, ProcessConfig], arguments, "reproduce", positional="runs")
    runs = options.pop("runs")
    agent = None
    if len(runs) > 1 and parse.is_own(runs[0]):
        agent, runs = parse.leading_agent(runs, "reproduce")
    if len(runs) != 1:
        raise UsageError(f"reproduce takes the folder of one run. Received: {' '.join(runs) or 'none'}.")
    config = ReproduceConfig.from_dict(options)
    if not config.quiet:
        wait("Loading JAX and Keras")
    from operant.training.reproduce import reproduce

    result = reproduce(runs[0], config, agent)
    print(result)
    return 0 if result.identical else 1


def help_text() -> str:
    """Return usage and the table of flags."""
    note = (
        "Trains again from the recorded options and seed, then compares checkpoint and\n"
        "history bit by bit. Exit status: 0 identical, 1 different, 2 not repeatable."
    )
    table = tables.flags("Flags", [ReproduceConfig, ProcessConfig])
    named = "operant reproduce <module:Name> <run> [--env <module:Name>] [options]"
    return f"Usage:\n    operant reproduce <run> [options]\n    {named}\n\n{note}\n\n{table}"
