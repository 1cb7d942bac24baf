"""What a run counts and records of its timesteps and episodes, and what this drives: callbacks, the bar,
saving the best agent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from operant.checkpoint import durable
from operant.errors import SpecError, as_folder, value_error, whole
from operant.execution.runner.bar import Bar, figure
from operant.execution.runner.slots import EnvSlot, SlotStatistics
from operant.training.callbacks import callbacks_of, none_refuses

if TYPE_CHECKING:
    from operant.execution.runner.runner import Runner

BEST = "best-model"
"""Name under which the best agent is saved."""


class EpisodeLists:
    """The finished episodes, as lists in the order in which they ended."""

    def __init__(self) -> None:
        self.returns: list[float] = []
        self.timesteps: list[int] = []
        self.seconds: list[float] = []
        self.agent_seconds: list[float] = []
        self.env_seconds: list[float] = []

    def add(
        self, reward: float, length: int, seconds: float, agent_seconds: float, env_seconds: float
    ) -> None:
        """Add an episode that ended."""
        self.returns.append(reward)
        self.timesteps.append(length)
        self.seconds.append(seconds)
        self.agent_seconds.append(agent_seconds)
        self.env_seconds.append(env_seconds)

    def mean(self, name: str, horizon: int) -> float:
        """Return the mean over the last `horizon` episodes; NaN before the first."""
        last = getattr(self, name)[-horizon:]
        return sum(last) / len(last) if last else math.nan


@dataclasses.dataclass(frozen=True)
class Callbacks:
    """The user's callbacks and how often they are called."""

    callbacks: tuple[Callable[..., Any], ...]
    episodes: int | None
    timesteps: int | None

    @classmethod
    def read(cls, callback: Any, episodes: Any, timesteps: Any) -> Callbacks:
        """Check the arguments of `Runner.run`."""
        callbacks = callbacks_of(callback, "a callable (runner, parallel) -> bool, or a list of such")
        episodes = whole("callback_episode_frequency", episodes, optional=True)
        timesteps = whole("callback_timestep_frequency", timesteps, optional=True)
        return cls(callbacks, 1 if episodes is None and timesteps is None else episodes, timesteps)

    def go_on(self, runner: Runner, parallel: int) -> bool:
        """Call all of them; False if one returned False."""
        return none_refuses([callback(runner, parallel) for callback in self.callbacks])


@dataclasses.dataclass(frozen=True)
class EvaluationOptions:
    """How the agent is scored, and where the best one is saved."""

    horizon: int
    function: Callable[[Runner], Any] | None
    directory: str | Path | None

    @classmethod
    def read(cls, evaluation_callback: Any, horizon: int, directory: Any) -> EvaluationOptions:
        """Check the arguments of `Runner.run`."""
        if directory is not None and not isinstance(directory, str | Path):
            raise value_error("save_best_agent", "a directory", directory)
        if directory is not None:
            directory = as_folder("save_best_agent", directory).absolute()
        if callable(evaluation_callback):
            return cls(horizon, evaluation_callback, directory)
        episodes = whole("evaluation_callback", evaluation_callback, optional=True)
        return cls(horizon if episodes is None else episodes, None, directory)

    def score(self, runner: Runner, returns: list[float]) -> float | None:
        """Return the score after an evaluation episode, given the returns of all so far.

        None if there is none.
        """
        if self.function is not None:
            value = self.function(runner)
            if value is None:
                return None
            try:
                return float(value)
            except (TypeError, ValueError):
                raise SpecError(
                    f"evaluation_callback must return a number or None. Received: {value!r}."
                ) from None
        return sum(returns[-self.horizon :]) / self.horizon if len(returns) >= self.horizon else None


class RunOptions(NamedTuple):
    """What a run is asked to report."""

    calls: Callbacks
    scoring: EvaluationOptions
    mean_horizon: int
    comm: bool
    """Whether there is communication to report."""

    @classmethod
    def read(
        cls,
        *,
        callback: Any = None,
        every_episodes: Any = None,
        every_timesteps: Any = None,
        horizon: Any = 1,
        evaluation_callback: Any = None,
        directory: Any = None,
        comm: bool = False,
    ) -> RunOptions:
        """Check the arguments of `Runner.run`."""
        horizon = whole("mean_horizon", horizon)
        calls = Callbacks.read(callback, every_episodes, every_timesteps)
        return cls(calls, EvaluationOptions.read(evaluation_callback, horizon, directory), horizon, comm)

    @property
    def tells(self) -> bool:
        """Whether single episodes or timesteps are reported to callbacks, or scored."""
        scoring = self.scoring
        return bool(self.calls.callbacks) or (scoring.function, scoring.directory) != (None, None)


class RunStatistics:
    """The record of one run.

    Args:
        runner: handed to callbacks; its agent is saved.
        order: what to report.
        actors: how many there are, over all environments.
        evaluation: whether a separate environment evaluates beside the others.
    """

    def __init__(self, runner: Runner, order: RunOptions, actors: int, evaluation: bool) -> None:
        self.timesteps = self.episodes = self.updates = 0
        self.best = -math.inf
        self.tally = SlotStatistics(actors)
        self.training = EpisodeLists()
        self.evaluations = EpisodeLists() if evaluation else self.training
        self.bar: Bar | None = None
        self.driver = "interactive"
        """What drives the run, or the greater part of it."""
        self.ending = False
        """Whether the process was asked to terminate: the run then ends as if a callback had ended it."""
        self._runner = runner
        self._order = order

    def end(self) -> None:
        """End the run soon."""
        self.ending = True

    def timestep(self, parallel: int) -> bool:
        """Take note of a timestep; return whether the callbacks let the run go on."""
        self.show()
        every = self._order.calls.timesteps
        return every is None or self.timesteps % every != 0 or self._order.calls.go_on(self._runner, parallel)

    def episode(self, parallel: int, seat: EnvSlot) -> bool:
        """Record an episode; return whether the callbacks let the run go on."""
        reported = seat.connection.episode_return() if seat.single else None
        if reported is not None:
            self.tally.returns[parallel] = float(reported)
        into = self.training if seat.counts else self.evaluations
        seconds, agent_seconds = self.tally.elapsed(parallel)
        reward, length = self.tally.returns[parallel], self.tally.timesteps[parallel]
        into.add(reward, length, seconds, agent_seconds, seat.seconds)
        self.show(episode=True)
        go_on, every = True, self._order.calls.episodes
        if seat.counts and every is not None and self.episodes % every == 0:
            go_on = self._order.calls.go_on(self._runner, parallel)
        if into is self.evaluations:
            self._score()
        return go_on

    def _score(self) -> None:
        scoring = self._order.scoring
        score = scoring.score(self._runner, self.evaluations.returns)
        if score is not None and score > self.best:
            self.best = score
            if scoring.directory is not None:
                with durable.outliving(f"The best agent is not saved in {str(scoring.directory)!r}"):
                    self._runner.agent.save(scoring.directory, filename=BEST)

    def show(self, episode: bool = False) -> None:
        """Update the bar."""
        if self.bar is not None and (episode or self.bar.what != "episodes"):
            self.bar.show(getattr(self, self.bar.what), self.figures() if episode else None)

    def figures(self) -> dict[str, str]:
        """Return what the bar shows beside the count."""
        horizon, figures = self._order.mean_horizon, dict[str, str]()
        if self.training.returns:
            steps, seconds, agent, env = (
                self.training.mean(name, horizon)
                for name in ("timesteps", "seconds", "agent_seconds", "env_seconds")
            )
            share = 100 / max(seconds, 1e-9)
            figures = {
                "return": figure(self.training.mean("returns", horizon), 2),
                "ts/ep": figure(steps, 0),
                "sec/ep": figure(seconds, 2),
                "ms/ts": figure(1000 * seconds / steps, 2),
                "agent": figure(share * agent, 1) + "%",
            }
            if self.driver != "interactive":
                figures["driver"] = self.driver
            if self._order.comm:
                figures["comm"] = figure(share * max(0.0, seconds - agent - env), 1) + "%"
        if self.evaluations is not self.training and self.evaluations.returns:
            figures["evaluation"] = figure(self.evaluations.mean("returns", horizon), 2)
        return figures


def flags(**values: Any) -> None:
    """Check switches."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise value_error(name, "True or False", value)
