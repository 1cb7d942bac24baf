"""What a study is to do, before anything is built or written, and before JAX and Optuna are loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from operant.agents.table import config_class, entry, resolve
from operant.errors import SpecError, as_folder, value_error
from operant.spec import Config, Search, checked, option, options, plain, traced
from operant.spec.run import NATIVE, PROCESSES, ClusterConfig, RunConfig
from operant.tuning import study as studies

Choices = (bool, int, float, str)
"""Types of categorical values that a study can store."""


class Range(NamedTuple):
    """Values among which trials choose one."""

    kind: Search
    values: tuple[Any, ...]
    """Smallest and largest (`log_uniform`, `int`), or all there are (`categorical`)."""


def split(
    configs: Iterable[type[Config]], values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Range]]:
    """Split options into fixed ones and ranges (several values, a search kind); SpecError: a bad value."""
    known = {name: (config, meta) for config in configs for name, meta in options(config).items()}
    fixed: dict[str, Any] = {}
    ranges: dict[str, Range] = {}
    for name, value in values.items():
        config, meta = known.get(name, (None, None))
        if config is None or meta is None or meta.search is None or not isinstance(value, list | tuple):
            fixed[name] = value
            continue
        several = tuple(checked(config, name, one) for one in value)
        if len(several) == 1:
            fixed[name] = several[0]
        else:
            ranges[name] = _range(name, meta.search, several)
    return fixed, ranges


def _range(name: str, kind: Search, values: tuple[Any, ...]) -> Range:
    shown = " ".join(map(str, values)) or "none"
    if kind == "categorical":
        if len(set(values)) < max(1, len(values)) or not values:
            raise SpecError(f"{name} must be several different values to be tuned. Received: {shown}.")
        if not all(value is None or isinstance(value, Choices) for value in values):
            raise SpecError(f"{name} can be tuned over numbers and words only. Received: {shown}.")
        return Range(kind, values)
    must = f"{name} is tuned between a smallest and a largest value ({kind})"
    if len(values) != 2:
        raise SpecError(f"{must}. Received {len(values)} values: {shown}. Give two, or one to fix it.")
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise SpecError(f"{must}, both numbers. Received: {shown}.")
    if kind == "int":
        if any(value != int(value) for value in values):
            raise SpecError(f"{must}, both whole numbers. Received: {shown}.")
        values = tuple(int(value) for value in values)
    elif values[0] <= 0:
        raise SpecError(f"{must} on a logarithmic scale, so both above 0. Received: {shown}.")
    if values[0] >= values[1]:
        raise SpecError(f"{must}, the smaller first. Received: {shown}.")
    return Range(kind, values)


def corners(ranges: Mapping[str, Range]) -> list[dict[str, Any]]:
    """Return the settings with every range's first value and with every last one, to try beforehand."""
    first = {name: each.values[0] for name, each in ranges.items()}
    last = {name: each.values[-1] for name, each in ranges.items()}
    return [first] if first == last else [first, last]


def distributions(ranges: Mapping[str, Range]) -> dict[str, Any]:
    """Return the ranges as Optuna's distributions, by name."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    by_name: dict[str, Any] = {}
    for name, (kind, values) in ranges.items():
        if kind == "categorical":
            by_name[name] = CategoricalDistribution(values)
        elif kind == "int":
            by_name[name] = IntDistribution(*values)
        else:
            by_name[name] = FloatDistribution(*values, log=True)
    return by_name


def suggest(trial: Any, ranges: Mapping[str, Range]) -> dict[str, Any]:
    """Let an Optuna trial choose a value of every range."""
    chosen: dict[str, Any] = {}
    for name, (kind, values) in ranges.items():
        if kind == "categorical":
            chosen[name] = trial.suggest_categorical(name, values)
        elif kind == "int":
            chosen[name] = trial.suggest_int(name, *values)
        else:
            chosen[name] = trial.suggest_float(name, *values, log=True)
    return chosen


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
        if not self.run["env"].startswith(NATIVE) or "buffer_max_size" in options(config_class(self.agent)):
            return 1
        return min(MOST_AT_ONCE, max(1, self.config.n_trials // 4))

    def program(self, hyper: Mapping[str, Any], run: Mapping[str, Any]) -> str:
        """Return what trials have in common that one program can train: all but numbers it takes as
        arguments.
        """
        numbers = traced(config_class(self.agent))
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
            f"tune takes no argument {name!r}: trials decide for themselves, each in a process of its own; "
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
