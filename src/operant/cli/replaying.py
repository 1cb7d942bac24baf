"""`operant replay`."""

from __future__ import annotations

from operant.cli import parse, tables
from operant.errors import UsageError
from operant.training.reproduce import ReproduceConfig


def run(arguments: list[str]) -> int:
    """Repeat a run, or print help when none is named; return 1 if the outcome differs."""
    if parse.asks_for_help(arguments):
        print(help_text())
        return 0
    given = parse.parse([ReproduceConfig], arguments, "replay", positional="runs")
    runs = given.pop("runs")
    agent = None
    if len(runs) > 1 and parse.is_own(runs[0]):
        agent, runs = parse.leading_agent(runs)
    if len(runs) != 1:
        raise UsageError(f"replay takes the folder of one run. Received: {' '.join(runs) or 'none'}.")
    config = ReproduceConfig.from_dict(given)
    from operant.training.reproduce import replay

    replayed = replay(runs[0], config, agent)
    print(replayed)
    return 0 if replayed.identical else 1


def help_text() -> str:
    """Return usage and the table of flags."""
    note = (
        "Trains again from the recorded options and seed, then compares checkpoint and\n"
        "history bit by bit. Exit status: 0 identical, 1 different, 2 not repeatable."
    )
    rows = [row[:3] for row in tables.option_rows([ReproduceConfig])]
    table = tables.table("replay", ("flags", "help", "default"), rows)
    own = "operant replay <module:Name> <run> [--env <module:Name>] [options]"
    return f"Usage:\n    operant replay <run> [options]\n    {own}\n\n{note}\n\n{table}"
