"""`operant train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from operant.agents.table import AGENTS, config_class, resolve
from operant.cli import parse, tables
from operant.errors import SpecError, UsageError, quoted
from operant.spec import Config, option, options, presets, read_json
from operant.spec.run import ProcessConfig, RunConfig
from operant.tracking.console import wait
from operant.tuning.study import shown


class Extra(Config):
    """Flags of the command that belong to no config of the library."""

    n_seeds: int = option(
        1,
        "Number of runs, with successive seeds, each in its own folder; on a JAX-native environment all at "
        "the same time",
        low=1,
    )
    preset: str | None = option(
        None, "Name of tuned settings (see `operant list presets`); flags given as well take precedence"
    )
    from_study: str | None = option(
        None, "Name of an optuna study, whose best settings are used; flags given as well take precedence"
    )
    storage: str | None = option(
        None, "With --from-study: database URL of the study (default: studies/STUDY/study.db)"
    )


def run(arguments: list[str]) -> int:
    """Train, or print help when there is nothing to train on."""
    agent, flags = parse.leading_agent(arguments)
    if parse.asks_for_help(flags):
        print(help_text(agent))
        return 0
    trained = agent or _trained(flags)
    hyper = [config_class(trained)] if trained is not None else []
    values = parse.parse(
        [RunConfig, Extra, ProcessConfig, *hyper], flags, f"train {agent}" if agent else "train"
    )
    n_seeds = values.pop("n_seeds", 1)
    if (storage := values.get("storage")) is not None:  # run.json is no place for its password
        arguments = [word.replace(storage, shown(storage)) for word in arguments]
    command = quoted("operant", "train", *arguments)
    if n_seeds > 1 and values.get("resume"):
        raise SpecError(
            "--n-seeds begins runs, --resume continues one. Resume the runs of the seeds one by one."
        )
    plan = _resume(agent, values) if values.get("resume") else _plan(agent, values)
    if n_seeds > 1:
        from operant.training.multi_seed import replicate

        replicate(plan, n_seeds, command)
    else:
        from operant.training.train import train

        train(plan, command)
    return 0


def _trained(flags: list[str]) -> str | None:
    """Return the agent of the run of `--resume`, or of the study of `--from-study`, for its options."""
    directory, study = parse.peek(flags, "--resume"), parse.peek(flags, "--from-study")
    if directory is not None:
        try:
            saved = str(read_json(Path(directory) / "run.json", "run")["agent"]["type"])
        except (SpecError, KeyError, TypeError):
            return None  # the run is missing
    elif study is not None:
        from operant.tuning.tune import from_study

        saved = from_study(study, parse.peek(flags, "--storage")).agent
    else:
        return None
    return saved if saved in AGENTS else None  # others are imported where the command line names them


def _resume(agent: str | None, values: dict[str, Any]) -> Any:
    if not values.get("quiet"):
        wait("Loading JAX")
    from operant.training.train import finished, resumed, resuming

    directory = values.pop("resume")
    plan = resumed(directory, values)
    saved = plan.agent["type"]
    if agent is not None and resolve(agent) != saved:
        raise SpecError(
            f"The run in {directory!r} trains {saved}, not {agent}. Use: "
            f"{resuming(directory, saved, plan.run.env)}"
        )
    if "max_steps" not in values and finished(plan):
        raise UsageError(
            f"The run in {directory!r} has reached its {plan.run.max_steps} steps: nothing is left to do. "
            "Give --max-steps, which counts them in (none: no limit, with --target-reward)."
        )
    return plan


def _plan(agent: str | None, values: dict[str, Any]) -> Any:
    agent, values = _studied(agent, values)
    if agent is None:
        raise SpecError(
            f"train needs an agent: operant train <agent> --env <environment>. Known: {', '.join(AGENTS)}."
        )
    preset = values.pop("preset", None)
    if preset is not None:
        values = {**presets.settings(resolve(agent), preset), **values}
    known = options(RunConfig)
    run = RunConfig.from_dict({k: v for k, v in values.items() if k in known})  # refused before JAX is loaded
    if not run.quiet:
        wait("Loading JAX")
    from operant.training.train import ExperimentConfig

    return ExperimentConfig(agent, {k: v for k, v in values.items() if k not in known}, run)


def _studied(agent: str | None, values: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    name, storage = values.pop("from_study", None), values.pop("storage", None)
    if name is None:
        if storage is not None:
            raise SpecError("--storage is for --from-study NAME, which was not given.")
        return agent, values
    if values.get("preset") is not None:
        raise SpecError("--preset and --from-study both give settings. Give one of them.")
    from operant.tuning.tune import from_study

    best = from_study(name, storage)
    if agent is not None and resolve(agent) != best.agent:
        raise SpecError(
            f"The study {name!r} tunes {best.agent}, not {agent}. Use: operant train --from-study "
            f"{quoted(name)}"
        )
    if not values.get("quiet"):
        print(f"Best of the study {name}: trial {best.number}, mean return {best.value:.2f}")
    settings = {**best.options, **best.run, **values}
    if "target_reward" in values and "max_steps" not in values:
        del settings["max_steps"]
    return best.agent, settings


def help_text(agent: str | None) -> str:
    """Return usage and the table of flags: of the command, and of the agent if one is named."""
    who = agent or "<agent>"
    usage = [
        f"operant train {who} --env <environment> --max-steps N [options]",
        f"operant train {who} --env <environment> --target-reward R [options]",
        f"operant train {who} --env <environment> --max-steps N --n-seeds S",
        f"operant train {who} --from-study <study> [options]",
        f"operant train {f'{who} ' if ':' in who else ''}--resume <run> [options]",
    ]
    return tables.agent_page("train", agent, usage, [RunConfig, Extra, ProcessConfig])
