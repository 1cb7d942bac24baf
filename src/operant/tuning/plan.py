"""What a study is to do, before anything is built or written, and before JAX and Optuna are loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from operant.agents.table import config_class, entry, resolve
from operant.errors import SpecError, as_folder, value_error
from operant.spec import option, options, plain, traced
from operant.spec.run import NATIVE, PROCESSES, ClusterConfig, RunConfig
from operant.tuning import study as studies
from operant.tuning.ranges import Range, corners, split

NOT_TUNED = {
    "max_steps", "target_reward", "monitor_session", "logger", "run_dir", "resume", "save_seconds",
    "save_frequency", "keep_checkpoints", "save_memory", "eval_frequency", "eval_episodes", *PROCESSES,
}  # fmt: skip
"""Options of a run that trials decide for themselves: how long they train is `trial_steps`, and each is a
process."""
PER_TRIAL = {"checkpoints", "history_checkpoint", "seed", "quiet", "log_frequency", "display_precision"}
"""Options of a run that are not part of the settings that a study finds."""

MOST_AT_ONCE = 32
"""Largest population by default."""


USUAL_RANGES = {"lr": [1e-5, 1e-2], "gamma": [0.9, 0.999], "entropy_coef": [1e-4, 0.1]}
"""What `operant tune` searches, as far as the agent has it, if it is told nothing of the agent."""


class TuneConfig(ClusterConfig):
    """Options of `operant tune`."""

    study: str | None = option(None, "Name of the study; an existing one is continued (default: a new one)")
    storage: str | None = option(
        None,
        "Database URL: sqlite:///FILE.db, postgresql://..., or the path of a journal file, FILE.journal "
        "(default: studies/STUDY/study.db)",
    )
    n_trials: int = option(20, "Number of trials to run", low=1)
    n_jobs: int = option(1, "Parallel trials", low=1)
    population: int | None = option(
        None,
        "Trials that each process trains at once, by one program, in JAX-native environments: those whose "
        "settings differ in numbers alone that it takes as arguments, such as lr (default: a quarter of the "
        f"trials, at most {MOST_AT_ONCE}; 1 for agents with a replay memory)",
        low=1,
    )
    trial_steps: int = option(50000, "Steps of a trial", unit="environment steps", low=1)
    trial_episodes: int | None = option(
        None,
        "Score trials by this many whole episodes with the best actions (default: by the mean return of "
        "training)",
        low=1,
    )
    trial_seeds: int = option(1, "Seeds that each trial trains with; its score is their mean", low=1)
    warmup_trials: int = option(5, "Trials before pruning starts", low=0)
    prune: bool = option(
        True,
        "Stop trials that do worse than the median of the others at the same step (--no-prune: never)",
    )
    non_silent: bool = option(
        False,
        "Let JAX, Optuna and the agent print in trials",
    )
    plots: str | None = option(None, "Folder for the study's plots (default: studies/STUDY)")


class StudyPlan(NamedTuple):
    """A study before anything is built or written."""

    agent: str
    config: TuneConfig
    options: dict[str, Any]
    """Hyperparameters that are fixed."""
    run: dict[str, Any]
    """Options of the run that are fixed."""
    ranges: dict[str, Range]
    """Options of both kinds that are searched."""

    def settings(self, chosen: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return hyperparameters and options of the run of a trial, with what was chosen for it."""
        known = options(RunConfig)
        hyper = {name: value for name, value in chosen.items() if name not in known}
        run = {name: value for name, value in chosen.items() if name in known}
        return {**self.options, **hyper}, {**self.run, **run, "max_steps": self.config.trial_steps}

    def at_once(self) -> int:
        """Return how many trials Optuna is asked for at once."""
        if self.config.population is not None:
            return self.config.population
        known = options(config_class(self.agent))
        replays = "buffer_max_size" in known or self.options.get("memory") == "replay"
        if replays or not self.run["env"].startswith(NATIVE):
            return 1
        return min(MOST_AT_ONCE, max(1, self.config.n_trials // 4))

    def program(self, hyper: Mapping[str, Any], run: Mapping[str, Any]) -> str:
        """Return what trials have in common that one program can train: all but numbers it takes as
        arguments. Those that a run must keep may shape it, too: rows of a block, steps of a return.
        """
        known = options(config_class(self.agent))
        numbers = [name for name in traced(config_class(self.agent)) if not known[name].settled]
        same = {
            name: "number" if name in numbers and isinstance(value, int | float) else value
            for name, value in hyper.items()
        }
        return json.dumps([same, {n: v for n, v in run.items() if n not in PER_TRIAL}], sort_keys=True)


def plan(agent: str, config: TuneConfig | None = None, **settings: Any) -> StudyPlan:
    """Plan a study.

    Args:
        agent: name of the algorithm, or `module:Name` of a class of your own.
        config: how many trials, of how many steps, stored where.
        settings: hyperparameters and options of the run (`env`, `n_envs`, ...). A list of several values is
            searched in the way that the option's search kind says, one value is fixed.

    Raises:
        SpecError: an option is unknown, a value or a range not allowed; nothing has been written or started
            then.

    >>> plan("ppo", TuneConfig(n_trials=30), env="CartPole-v1", lr=[1e-5, 1e-2]).ranges["lr"].kind
    'log_uniform'
    """
    config = TuneConfig.from_dict({}) if config is None else config
    agent = resolve(agent)
    for name in settings.keys() & NOT_TUNED:
        raise SpecError(
            f"tune takes no argument {name!r}: trials decide for themselves, in processes of their own; "
            "how long one trains is trial_steps."
        )
    for name in ("checkpoints", "history_checkpoint"):
        if config.trial_seeds > 1 and settings.get(name):
            raise SpecError(
                f"{name} names what belongs to one seed. Received: {name}={settings[name]!r}, "
                f"trial_seeds={config.trial_seeds}. Leave one of them out."
            )
    env = str(settings.get("env"))
    if (config.population or 1) > 1 and ":" not in env:  # one of the user's may be native
        raise value_error(
            "population",
            "1 where environments are not JAX-native",
            config.population,
            f"Ids of JAX-native ones begin with {', '.join(NATIVE)}. For processes at once use n_jobs.",
        )
    fixed, ranges = split([RunConfig, config_class(agent)], settings)
    known = options(RunConfig)
    run = {name: value for name, value in fixed.items() if name in known}
    hyper = {name: value for name, value in fixed.items() if name not in known}
    study_plan = StudyPlan(agent, config, plain(hyper), plain(run), ranges)
    _check_corners(study_plan)
    if config.study is not None:
        studies.place(config.study, config.storage)
    if config.plots is not None:
        as_folder("plots", config.plots)
    return study_plan


def _check_corners(plan: StudyPlan) -> None:
    """Refuse settings that fit together neither with the first nor with the last value of every range."""
    faults: list[SpecError] = []
    edges = corners(plan.ranges)
    for edge in edges:
        hyper, run = plan.settings(edge)
        try:
            RunConfig.from_dict(run)
            config_class(plan.agent).from_dict({**entry(plan.agent).options, **hyper}, plan.agent)
        except SpecError as fault:
            faults.append(fault)
    if len(faults) == len(edges):
        raise faults[0]
