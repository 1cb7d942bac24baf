"""What a run counts and records of its timesteps and episodes."""

from __future__ import annotations

import math

from operant.execution.runner.bar import Bar, figure

EPISODE = ("returns", "timesteps", "seconds", "agent_seconds", "env_seconds")
"""What is recorded of an episode: lists `episode_<name>`, and `evaluation_<name>` of evaluations."""


class RunStatistics:
    """Counts and records of one run of so many actors. A `Runner` has them as its attributes.

    `evaluation` tells of a separate environment that evaluates, `remote` of communication to show.
    """

    def __init__(self, actors: int, evaluation: bool = False, remote: bool = False) -> None:
        self.evaluation, self.is_environment_remote = evaluation, remote
        self._actors = actors
        self._begin_run()

    def _begin_run(self, mean_horizon: int = 1) -> None:
        """Start anew; the bar's figures are means over `mean_horizon` episodes."""
        self.mean_horizon = mean_horizon
        self.timesteps = 0
        """Timesteps of this run, without those of an evaluation environment."""
        self.episodes = 0
        """Episodes that ended in this run, without those of an evaluation environment."""
        self.updates = 0
        """Updates that the agent made in this run."""
        self.driver = "interactive"
        """What drove this run, as far as its limits allowed: ``'device'``, ``'host'``, or ``'interactive'``
        (single steps)."""
        self.best_evaluation_score = -math.inf
        """Best score of this run; minus infinity before the first."""

        self.episode_returns: list[float] = []
        """Return of each episode of this run, in the order in which they ended."""
        self.episode_timesteps: list[int] = []
        """Length of each episode."""
        self.episode_seconds: list[float] = []
        """How long each episode took."""
        self.episode_agent_seconds: list[float] = []
        """How long the agent computed while each episode ran, for whichever environment."""
        self.episode_env_seconds: list[float] = []
        """How long the environment itself computed in each episode."""
        separate = self.evaluation
        self.evaluation_returns: list[float] = [] if separate else self.episode_returns
        """Return of each evaluation episode; without an evaluation environment, `episode_returns`. So the
        others."""
        self.evaluation_timesteps: list[int] = [] if separate else self.episode_timesteps
        self.evaluation_seconds: list[float] = [] if separate else self.episode_seconds
        self.evaluation_agent_seconds: list[float] = [] if separate else self.episode_agent_seconds
        self.evaluation_env_seconds: list[float] = [] if separate else self.episode_env_seconds

        self.episode_return = [0.0] * self._actors
        """Return so far of each actor's episode, by parallel index; in a callback, that of the one that just
        ended."""
        self.episode_timestep = [0] * self._actors
        """Timesteps so far of each actor's episode, by parallel index."""
        self.ending = False
        """Whether the run is to end soon, as if a callback had ended it."""
        self.bar: Bar | None = None


def add_episode(statistics: RunStatistics, *values: float, evaluation: bool = False) -> None:
    """Record an episode: its values in the order of `EPISODE`."""
    kind = "evaluation" if evaluation else "episode"
    for name, value in zip(EPISODE, values, strict=True):
        getattr(statistics, f"{kind}_{name}").append(value)


def show(statistics: RunStatistics, episode: bool = False) -> None:
    """Update the bar; its figures only where episodes ended."""
    bar = statistics.bar
    if bar is not None and (episode or bar.what != "episodes"):
        bar.show(getattr(statistics, bar.what), figures(statistics) if episode else None)


def figures(statistics: RunStatistics) -> dict[str, str]:
    """Return what the bar shows beside the count."""
    texts = dict[str, str]()

    def mean(name: str) -> float:
        last = getattr(statistics, name)[-statistics.mean_horizon :]
        return sum(last) / len(last)

    if statistics.episode_returns:
        steps, seconds = mean("episode_timesteps"), mean("episode_seconds")
        agent, env = mean("episode_agent_seconds"), mean("episode_env_seconds")
        share = 100 / max(seconds, 1e-9)
        texts = {
            "return": figure(mean("episode_returns"), 2),
            "ts/ep": figure(steps, 0),
            "sec/ep": figure(seconds, 2),
            "ms/ts": figure(1000 * seconds / steps, 2),
            "agent": figure(share * agent, 1) + "%",
        }
        if statistics.driver != "interactive":
            texts["driver"] = statistics.driver
        if statistics.is_environment_remote:
            texts["comm"] = figure(share * max(0.0, seconds - agent - env), 1) + "%"
    if statistics.evaluation and statistics.evaluation_returns:
        texts["evaluation"] = figure(mean("evaluation_returns"), 2)
    return texts
