"""`operant card`."""

from __future__ import annotations

from operant.cli import parse, tables
from operant.errors import UsageError
from operant.tracking.console import tell, wait


def run(arguments: list[str]) -> int:
    """Write a model card, or print help when there is no run."""
    from operant.execution.model_card import CardConfig, write_card

    if parse.asks_for_help(arguments):
        note = "It writes a model card (README.md) in the Hugging Face Hub's form, and a copy of the agent."
        print(tables.page(["operant card <run> [options]"], note, tables.flags("Flags", [CardConfig])))
        return 0
    values = parse.parse([CardConfig], arguments, "card", positional="runs")
    paths = values.pop("runs")
    if len(paths) != 1:
        raise UsageError(f"card takes one run: operant card RUN. Received {len(paths)}.")
    config = CardConfig.from_dict(values)
    wait(f"Loading JAX and Keras, then playing {config.episodes} episodes")
    tell(f"Wrote {write_card(paths[0], config)}")
    return 0
