"""`operant play`."""

from __future__ import annotations

from pathlib import Path

from operant.agents.table import AGENTS, ALIASES, config_class
from operant.cli import parse, tables
from operant.errors import SpecError, UsageError, quoted, shown, suggest
from operant.execution.export import READ
from operant.execution.play import PlayConfig
from operant.spec import Config, options
from operant.spec.run import ProcessConfig
from operant.tracking.console import tell, wait

POLICIES = tuple(READ.values())


def run(arguments: list[str]) -> int:
    """Play, or print help when there is nothing to play."""
    place = _leading_place(arguments[0]) if arguments else None
    agent, flags = parse.leading_agent(arguments, "play") if place is None else (None, arguments[1:])
    where = arguments[0] if place is not None else None
    if agent is not None and flags and not flags[0].startswith("-"):
        place = _leading_place(flags[0])
        if place is not None and not parse.is_own(agent):
            raise UsageError(
                f"{flags[0]!r} brings its agent. Leave {agent} out: operant play {quoted(flags[0])}"
            )
        if place is not None:
            where, *flags = flags
    if parse.asks_for_help(flags) and (flags or place is None):
        if agent is not None and not flags:
            refuse_folder(agent)
        print(help_text(agent, "--help-all" in flags))
        return 0
    configs = [config_class(agent)] if agent is not None else []
    values = parse.parse([PlayConfig, ProcessConfig, *configs], flags, f"play {agent}" if agent else "play")
    if place is not None:
        if place in values:
            raise UsageError(f"{where!r} and {tables.flag(place)} both say what plays. Give one of them.")
        values[place] = where
    if agent is not None and not values.keys() & {"run_dir", "policy", "weights"}:
        refuse_folder(agent)
        if "env" not in values and (newest := _newest_run(agent)) is not None:
            print(f"Without --env, the newest run of {agent} plays: {shown(newest)}")
            values["run_dir"], agent = str(newest), None
    known = options(PlayConfig)
    config = PlayConfig.from_dict({name: value for name, value in values.items() if name in known})
    hyper = {name: value for name, value in values.items() if name not in known}
    if not config.quiet:
        wait("Loading JAX and Keras, then playing")
    from operant.execution.play import play

    played = play(config, agent, **hyper)
    if not config.quiet:
        loaded = config.run_dir or config.policy or config.weights
        if not loaded and any("lr" in options(each) for each in configs):
            tell("The policy is untrained. Give --weights, a run's folder or an exported policy.")
        tell(played)
        for path in played.files[:3]:
            tell(f"Wrote {shown(path)}")
        if len(played.files) > 3:
            tell(f"and {len(played.files) - 3} more files")
    return 0


def refuse_folder(agent: str) -> None:
    """Refuse an agent's name that is also a folder with a trained one."""
    folder = Path(agent)
    if not folder.is_dir():
        return
    from operant import checkpoint
    from operant.checkpoint.weight_files import FORMATS, is_described
    from operant.execution.saving import find_file

    weights = find_file(folder, None, list(FORMATS.values()))
    saved = checkpoint.found(folder, without="") is not None or (weights and is_described(weights))
    if saved or (folder / "run.json").exists() or _is_exported(folder):
        raise UsageError(
            f"{agent!r} is an agent, which is untrained, and here also the folder of a trained one. For that "
            f"give its path, {quoted(f'./{agent}')}; for the other rename the folder."
        )


def _newest_run(agent: str) -> Path | None:
    """Return the newest run of an agent in the usual place that has a checkpoint; None: there is none."""
    from operant import checkpoint
    from operant.training.run_dir import runs_in

    wanted = ALIASES.get(agent, agent)
    for run in reversed(runs_in("runs")):
        if run.agent == wanted and checkpoint.newest(run.directory / "checkpoints", without="") is not None:
            return run.directory
    return None


def _leading_place(first: str) -> str | None:
    """Say what a first argument is, `run_dir` or `policy`; None: an agent or a flag; SpecError: nothing."""
    path = Path(first)
    if first.startswith("-") or first in AGENTS or first in ALIASES:
        return None
    if path.suffix in POLICIES:
        return "policy"
    if path.is_dir():
        return "policy" if _is_exported(path) else "run_dir"
    if parse.is_own(first):
        return None
    if "/" in first:
        raise SpecError(
            f"There is no folder {first!r}. Give a run's folder, an exported policy, or an agent."
        )
    close = suggest(first, [*AGENTS, *ALIASES], listed=False)
    raise SpecError(
        f"There is neither an agent nor a folder {first!r}.{close} `operant list agents` shows what there is."
    )


def _is_exported(folder: Path) -> bool:
    """Tell whether a folder holds exported policies, and is neither a run's nor a saved agent's."""
    if not any(path.suffix in POLICIES for path in folder.iterdir()) or (folder / "run.json").exists():
        return False
    from operant import checkpoint

    return checkpoint.newest(folder, without="") is None


def help_text(agent: str | None, full: bool) -> str:
    """Return usage and flags: of the command, and of the agent if one is named."""
    usage = [
        f"operant play {agent or '<agent>'} --env <environment> --weights <file> ... [options]",
        "operant play <run directory> [options]",
        "operant play <module:Name> <run directory> [options]",
        "operant play <exported policy> --env <environment> [options]",
    ]
    groups: dict[str, list[type[Config]]] = {"Play": [PlayConfig, ProcessConfig]}
    if agent is None:
        return tables.page(usage, *tables.grouped("play", groups, full))
    return tables.agent_page("play", agent, usage, groups, full)
