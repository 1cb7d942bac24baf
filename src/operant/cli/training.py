"""`operant train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from operant.agents.options.shared_options import AgentConfig
from operant.agents.table import AGENTS, config_class, entry, resolve
from operant.cli import parse, tables
from operant.errors import SpecError, UsageError, quoted
from operant.spec import Config, option, options, presets, read_json
from operant.spec.run import RunConfig
from operant.tuning.study import shown

HEADER = ("flags", "help", "default", "hp_type")


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
    own = [config_class(trained)] if trained is not None else []
    given = parse.parse([RunConfig, Extra, *own], flags, f"train {agent}" if agent else "train")
    n_seeds = given.pop("n_seeds", 1)
    if (storage := given.get("storage")) is not None:  # run.json is no place for its password
        arguments = [word.replace(storage, shown(storage)) for word in arguments]
    command = quoted("operant", "train", *arguments)
    if n_seeds > 1 and given.get("resume"):
        raise SpecError(
            "--n-seeds begins runs, --resume continues one. Resume the runs of the seeds one by one."
        )
    plan = _resume(agent, given) if given.get("resume") else _plan(agent, given)
    if n_seeds > 1:
        from operant.training.multi_seed import replicate

        replicate(plan, n_seeds, command)
    else:
        from operant.training.train import train

        train(plan, command)
    return 0


def _trained(flags: list[str]) -> str | None:
    """Return the agent of the run that `--resume` names, or of the study of `--from-study`, so that its
    options are known.

    Raises:
        OperantError: there is no such study, or none of its trials was finished.
    """
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


def _resume(agent: str | None, given: dict[str, Any]) -> Any:
    from operant.training.train import finished, resumed, resuming

    directory = given.pop("resume")
    plan = resumed(directory, given)
    saved = plan.agent["type"]
    if agent is not None and resolve(agent) != saved:
        raise SpecError(
            f"The run in {directory!r} trains {saved}, not {agent}. Use: "
            f"{resuming(directory, saved, plan.run.env)}"
        )
    if "max_steps" not in given and finished(plan):
        raise UsageError(
            f"The run in {directory!r} has reached its {plan.run.max_steps} steps: nothing is left to do. "
            "Give --max-steps, which counts them in (none: no limit, with --target-reward)."
        )
    return plan


def _plan(agent: str | None, given: dict[str, Any]) -> Any:
    from operant.training.train import ExperimentConfig

    agent, given = _studied(agent, given)
    if agent is None:
        raise SpecError(
            f"train needs an agent: operant train <agent> --env <environment>. Known: {', '.join(AGENTS)}."
        )
    preset = given.pop("preset", None)
    if preset is not None:
        given = {**presets.settings(resolve(agent), preset), **given}
    known = options(RunConfig)
    run = RunConfig.from_dict({k: v for k, v in given.items() if k in known})
    own = {k: v for k, v in given.items() if k not in known}
    config_class(agent).from_dict(
        {**entry(agent).options, **own}, agent
    )  # refuse bad options before JAX is loaded
    return ExperimentConfig(agent, own, run)


def _studied(agent: str | None, given: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return agent and options: the best settings of a study, overridden by those that were given."""
    name, storage = given.pop("from_study", None), given.pop("storage", None)
    if name is None:
        if storage is not None:
            raise SpecError("--storage is for --from-study NAME, which was not given.")
        return agent, given
    if given.get("preset") is not None:
        raise SpecError("--preset and --from-study both give settings. Give one of them.")
    from operant.tuning.tune import from_study

    best = from_study(name, storage)
    if agent is not None and resolve(agent) != best.agent:
        raise SpecError(
            f"The study {name!r} tunes {best.agent}, not {agent}. Use: operant train --from-study "
            f"{quoted(name)}"
        )
    if not given.get("quiet"):
        print(f"Best of the study {name}: trial {best.number}, mean reward {best.value:.2f}")
    settings = {**best.options, **best.run, **given}
    if "target_reward" in given and "max_steps" not in given:
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
    text = "Usage:\n    " + "\n    ".join(usage) + "\n\n"
    configs: list[type[Config]] = [RunConfig, Extra]
    if agent is None:
        agents = "\n".join(tables.name_lines(tables.agents()))
        table = tables.table("train", HEADER, tables.option_rows([*configs, AgentConfig]))
        return f"{text}Agents:\n{agents}\n\n{table}"
    rows = tables.option_rows([*configs, config_class(agent)], entry(agent).options)
    return f"{text}{entry(agent).help}\n\n{tables.table(f'train {agent}', HEADER, rows)}"
