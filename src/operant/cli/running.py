"""`operant run`: the `Runner` from a shell."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from operant.agents.table import AGENTS, ALIASES
from operant.cli import parse, tables
from operant.cli.playing import refuse_folder
from operant.errors import SpecError, UsageError, working_directory
from operant.spec import plain
from operant.spec.run import SHORT, ProcessConfig, RunnerConfig
from operant.tracking.console import tell, wait

if TYPE_CHECKING:
    from operant.execution.runner.repeats import Run

FOLDERS = ("visualize_directory", "save_best_agent", "checkpoints", "summaries", "recordings", "path")
"""Options that say where something is written."""
USAGE = (
    "operant run --agent <agent> --environment <environment> --episodes <n> ...",
    "operant run --environment <environment> --remote socket-server --port <port>",
)


def run(arguments: list[str]) -> int:
    """Run, or print help when nothing was asked for."""
    if parse.asks_for_help(arguments):
        print(tables.page(USAGE, tables.flags("Flags", [RunnerConfig, ProcessConfig], short=SHORT)))
        return 0
    config = RunnerConfig.from_dict(parse.parse([RunnerConfig, ProcessConfig], arguments, "run", short=SHORT))
    if config.remote == "socket-server":
        _serve(config)
        return 0
    if not config.quiet:
        wait("Loading JAX and Keras")
    from operant.execution.runner import repeats

    runs: list[Run] = []
    here = _located(config)
    try:
        for i in range(here.repeat):
            _once(here, _agent(here, i), runs)
    finally:
        if config.path is not None and here.path is not None and runs:
            for path in repeats.write(runs, here.path, "seaborn-v0_8" if config.seaborn else None):
                tell(f"Wrote {Path(config.path).with_name(path.name)}")
    return 0


def _located(config: RunnerConfig) -> RunnerConfig:
    """Make paths absolute, as an environment may change the working directory."""
    values = {name: getattr(config, name) for name in FOLDERS}
    # FOLDER,NAME, too, if it names a folder.
    places = {name for name in FOLDERS if values[name] and values[name][0] != ","}
    if config.environment and config.environment.endswith(".json"):
        places.add("environment")
    if config.agent and config.agent not in (*AGENTS, *ALIASES) and Path(config.agent).exists():
        places.add("agent")
    return config.replace(**{name: str(working_directory() / getattr(config, name)) for name in places})


def _once(config: RunnerConfig, agent: Any, runs: list[Run]) -> None:
    from operant.execution.runner.repeats import recorded
    from operant.execution.runner.runner import Runner
    from operant.execution.runner.runner_logger import RunnerLogger

    single = config.num_parallel is None
    with (
        _filmed(config) as environment,
        Runner(
            agent,
            environment,
            max_episode_timesteps=config.max_episode_timesteps,
            num_parallel=config.num_parallel,
            evaluation=config.evaluation and not single,
            remote=config.remote,
            blocking=config.blocking,
            host=config.host,
            port=config.port,
            token_file=config.token_file,
            certificate=config.certificate,
        ) as runner,
    ):
        following = RunnerLogger(config.checkpoints, config.summaries, config.mean_horizon)
        try:
            runner.run(
                num_episodes=config.episodes,
                num_timesteps=config.timesteps,
                num_updates=config.updates,
                batch_agent_calls=config.batch_agent_calls,
                sync_timesteps=config.sync_timesteps,
                sync_episodes=config.sync_episodes,
                callback=following if config.checkpoints or config.summaries else None,
                use_tqdm=not config.quiet,
                mean_horizon=config.mean_horizon,
                evaluation=config.evaluation and single,
                save_best_agent=config.save_best_agent,
            )
        finally:
            following.close(runner)
            runs.append(recorded(runner))


@contextlib.contextmanager
def _filmed(config: RunnerConfig) -> Iterator[Any]:
    """Yield the environment's specification, or, for videos, one that makes them."""
    source = _environment(config)
    if config.visualize_directory is None:
        yield source
        return
    from operant.execution.render import filmed, unseen

    if config.num_parallel is not None or config.remote is not None:
        raise UsageError("--visualize-directory films a single environment in this process.")
    with unseen():
        environment = filmed(source, config.visualize_directory, config.max_episode_timesteps)
        try:
            yield environment
        finally:
            environment.close()


def _serve(config: RunnerConfig) -> None:
    from operant.envs import Environment

    port: Any = config.port
    Environment.create(
        _environment(config),
        max_episode_timesteps=config.max_episode_timesteps,
        remote="socket-server",
        host=config.host,
        port=port,
    )


def _agent(config: RunnerConfig, number: int) -> Any:
    agent: Any = config.agent
    recorder = {} if config.recordings is None else {"recorder": {"directory": config.recordings}}
    if agent in (*AGENTS, *ALIASES):
        refuse_folder(agent)
    elif agent is not None and Path(agent).is_dir():
        if config.seed is not None:
            raise SpecError("A saved agent brings its own seed. Leave --seed out.")
        return {"directory": agent, **recorder}
    if config.seed is None and number == 0 and not recorder:
        return agent
    from operant.execution.agent import specified

    first = config.seed if config.seed is not None else specified(agent).get("config", {}).get("seed", 0)
    return {"agent": agent, **recorder, "seed": first + number}


def _environment(config: RunnerConfig) -> Any:
    if config.remote == "socket-client":
        return None
    spec = {**plain(config.env_kwargs or {}), "environment": config.environment or "gym"}
    if config.level is not None:
        spec["level"] = config.level
    if config.import_modules is not None:
        spec["import_modules"] = config.import_modules.split(",")
    if config.visualize:
        spec["visualize"] = True
    return spec
