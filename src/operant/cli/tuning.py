"""`operant tune`."""

from __future__ import annotations

from typing import Any

from operant.agents.table import AGENTS, config_class
from operant.cli import parse, tables
from operant.errors import SpecError
from operant.spec import Config, options
from operant.spec.run import ProcessConfig, RunConfig
from operant.tuning.plan import NOT_TUNED, USUAL_RANGES, TuneConfig, plan

TEXTS = {
    "history_checkpoint": "Path to .parquet files to save training histories, with the trial's number added "
    "(default: none)"
}
"""Help of options that mean something else to trials, which have no folder."""


def run(arguments: list[str]) -> int:
    """Tune, or print help when there is nothing to tune."""
    agent, flags = parse.leading_agent(arguments, "tune")
    if parse.asks_for_help(flags):
        print(help_text(agent, "--help-all" in flags))
        return 0
    if agent is None:
        raise SpecError(
            f"tune needs an agent: operant tune <agent> --env <environment>. Known: {', '.join(AGENTS)}."
        )
    configs: list[type[Config]] = [TuneConfig, RunConfig, ProcessConfig, config_class(agent)]
    values = parse.parse(configs, flags, f"tune {agent}", without=NOT_TUNED, several=True)
    known = options(TuneConfig)
    config = TuneConfig.from_dict({name: value for name, value in values.items() if name in known})
    settings = {name: value for name, value in values.items() if name not in known}
    own = options(config_class(agent))
    if not own.keys() & settings.keys():
        settings |= {name: values for name, values in USUAL_RANGES.items() if name in own}
    planned = plan(agent, config, **settings)
    from operant.tuning.tune import tune

    tuned = tune(planned)
    fruitless = tuned.failed and not (tuned.complete or tuned.pruned or tuned.interrupted)
    return 1 if fruitless else 0


def help_text(agent: str | None, full: bool) -> str:
    """Return usage and flags: of the command, and of the agent if one is named."""
    usage = [
        f"operant tune {agent or '<agent>'} --env <environment> [options]",
        "    no option of the agent        lr, gamma and entropy-coef are searched",
        "    --<option> <value>            fixed",
        "    --<option> <low> <high>       searched (hp_type int, log_uniform)",
        "    --<option> <value> <value>... searched (hp_type categorical)",
    ]
    groups: dict[str, list[type[Config]]] = {"Study": [TuneConfig], "Run": [RunConfig, ProcessConfig]}
    how: dict[str, Any] = {"header": tables.HEADER, "without": NOT_TUNED, "texts": TEXTS}
    return tables.agent_page("tune", agent, usage, groups, full, **how)
