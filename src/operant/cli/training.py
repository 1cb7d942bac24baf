"""`operant train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from operant.agents.table import AGENTS, config_class, resolve
from operant.cli import parse, run_file, tables
from operant.cli.run_file import RunFile
from operant.errors import SpecError, UsageError, quoted
from operant.spec import Config, option, options, presets, read_json
from operant.spec.run import ClusterConfig, ProcessConfig, RunConfig
from operant.tracking.console import wait
from operant.tuning.study import shown


class Extra(ClusterConfig):
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
    config: str | None = option(
        None,
        "File of options (.toml, .yaml or .json) by the names of flags, or the run.json of a run; flags "
        "given as well take precedence",
    )
    save_config: str | None = option(
        None, "File (.toml, .yaml or .json) to write the given options to, for --config"
    )


def run(arguments: list[str]) -> int:
    """Train, or print help when there is nothing to train on."""
    agent, flags = parse.leading_agent(arguments, "train")
    if parse.asks_for_help(flags):
        print(help_text(agent, "--help-all" in flags))
        return 0
    place = parse.peek(flags, "--config")
    file = None if place is None else RunFile(place)
    agent = agent or (None if file is None else file.agent)
    trained = agent or _trained(flags, file)
    configs: list[type[Config]] = [
        RunConfig,
        Extra,
        *([config_class(trained)] if trained is not None else []),
    ]
    values = parse.parse([*configs, ProcessConfig], flags, f"train {agent}" if agent else "train")
    if file is not None:
        if values.get("resume"):
            raise SpecError("--config begins a run, --resume continues one. Give one of them.")
        values = {**file.values(configs), **values}
    values.pop("config", None)
    saved = values.pop("save_config", None)
    if saved is not None and values.get("resume"):
        raise SpecError(
            "--save-config keeps how a run begins, --resume continues one. Leave --save-config out: --config "
            "reads the run.json of a run, too."
        )
    given = dict(values)
    n_seeds = values.pop("n_seeds", 1)
    cluster = ClusterConfig.from_dict({n: values.pop(n) for n in options(ClusterConfig) if n in values})
    if cluster.cluster is not None and n_seeds < 2:
        raise SpecError(
            "--cluster distributes seeds. Give --n-seeds, too. For environments on a cluster use operant run "
            "--remote ray."
        )
    if (storage := values.get("storage")) is not None:  # files are no place for its password
        arguments = [word.replace(storage, shown(storage)) for word in arguments]
        given = {k: v for k, v in given.items() if k != "storage" or shown(storage) == storage}
    command = quoted("operant", "train", *arguments)
    if n_seeds > 1 and values.get("resume"):
        raise SpecError(
            "--n-seeds begins runs, --resume continues one. Resume the runs of the seeds one by one."
        )
    plan = _resume(agent, values) if values.get("resume") else _plan(agent, values)
    if saved is not None:
        run_file.write(saved, plan.agent if isinstance(plan.agent, str) else plan.agent["type"], given)
    if n_seeds > 1:
        from operant.training.multi_seed import replicate

        replicate(plan, n_seeds, command, cluster)
    else:
        from operant.training.train import train

        train(plan, command)
    return 0


def _trained(flags: list[str], file: RunFile | None = None) -> str | None:
    """Return the agent of the run of `--resume`, or of the study of `--from-study`, for its options."""
    directory, study, storage = (
        parse.peek(flags, tables.flag(name)) or (None if file is None else file.get(name))
        for name in ("resume", "from_study", "storage")
    )
    if directory is not None:
        try:
            saved = str(read_json(Path(directory) / "run.json", "run")["agent"]["type"])
        except (SpecError, KeyError, TypeError):
            return None  # the run is missing
    elif study is not None:
        from operant.tuning.tune import from_study

        saved = from_study(study, storage).agent
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
    tuned = bool(values.get("preset") or values.get("from_study"))
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

    own = {k: v for k, v in values.items() if k not in known}
    return ExperimentConfig(agent, own, run, untried=not tuned)


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


def help_text(agent: str | None, full: bool) -> str:
    """Return usage and flags: of the command, and of the agent if one is named."""
    who = agent or "<agent>"
    usage = [
        f"operant train {who} --env <environment> --max-steps N [options]",
        f"operant train {who} --env <environment> --target-reward R [options]",
        f"operant train {who} --env <environment> --max-steps N --n-seeds S",
        f"operant train {who} --from-study <study> [options]",
        "operant train --config <file> [options]",
        f"operant train {f'{who} ' if ':' in who else ''}--resume <run> [options]",
    ]
    return tables.agent_page("train", agent, usage, {"Run": [RunConfig, Extra, ProcessConfig]}, full)
