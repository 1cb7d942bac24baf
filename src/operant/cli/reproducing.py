"""`operant reproduce`."""

from __future__ import annotations

from operant.cli import parse, tables
from operant.errors import UsageError
from operant.spec.run import ProcessConfig
from operant.tracking.console import wait
from operant.training.reproduce import ReproduceConfig

NOTE = (
    "Trains again from the recorded options and seed, then compares checkpoint and\n"
    "history bit by bit. Exit status: 0 identical, 1 different, 2 not repeatable."
)


def run(arguments: list[str]) -> int:
    """Repeat a run, or print help when none is named; return 1 if the outcome differs."""
    if parse.asks_for_help(arguments):
        usage = [
            "operant reproduce <run> [options]",
            "operant reproduce <module:Name> <run> [--env <module:Name>] [options]",
        ]
        print(tables.page(usage, NOTE, tables.flags("Flags", [ReproduceConfig, ProcessConfig])))
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
