"""One environment driven by requests and answers, here, in another process or on another machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from operant.envs.validated_env import ValidatedEnv
from operant.envs.validation_errors import raise_of_handler
from operant.errors import EnvError, UsageError, told


class Answer(NamedTuple):
    """What an environment answered to `send_reset` or `send_execute`."""

    states: Any
    """As `Environment.reset` and `execute` return them. None if every actor has ended and the last states are
    not known."""
    terminal: Any
    """0, 1 or 2, an array of them for several actors; 0 after a reset."""
    reward: Any
    """A float, or an array `[actors]`; 0.0 after a reset."""
    parallel: Any = None
    """With several actors: the indices of those still running, to which the first rows of `states` belong."""
    seconds: float = 0.0
    """How long the environment itself computed."""
    lost: str = ""
    """Why the environment was replaced, if it was: the episode is over (terminal 2), and `reset` begins
    another."""


class LocalConnection:
    """An environment in this process, whose answer is always ready; `close` closes it if it is `owned`."""

    restarts = 0

    def __init__(self, environment: ValidatedEnv, owned: bool = True) -> None:
        self.environment = environment
        self.name = environment.name
        self.spaces = environment.spaces
        self.max_episode_timesteps = environment.max_episode_timesteps()
        self.num_actors = environment.num_actors()
        self._owned = owned
        self._answer: Answer | None = None

    def send_reset(self, seed: int | None = None) -> None:
        """Begin an episode."""
        began = time.perf_counter()
        try:
            states, parallel = self.environment.reset(seed=seed), None
        except SystemExit as error:
            raise self._exit_error(error, "reset") from error
        if self.num_actors > 1:
            parallel, states = states
        self._answer = Answer(states, 0, 0.0, parallel, time.perf_counter() - began)

    def send_execute(self, actions: Any) -> None:
        """Take a step."""
        began = time.perf_counter()
        try:
            *parallel, states, terminal, reward = self.environment.execute(actions)
        except SystemExit as error:
            raise self._exit_error(error, "execute") from error
        seconds = time.perf_counter() - began
        self._answer = Answer(states, terminal, reward, parallel[0] if parallel else None, seconds)

    def _exit_error(self, error: SystemExit, call: str) -> EnvError:
        raise_of_handler(error)
        return EnvError(f"{self.name!r} {told(error, f'in {call}')}")

    def ready(self, seconds: float = 0.0) -> bool:
        """Return whether anything was asked."""
        return self._answer is not None

    def receive(self) -> Answer:
        """Return the answer."""
        if self._answer is None:
            raise UsageError(f"Nothing was asked of {self.name!r}. Call send_reset or send_execute first.")
        answer, self._answer = self._answer, None
        return answer

    def forget(self) -> None:
        """Drop an answer that was not taken."""
        self._answer = None

    def episode_return(self) -> float | None:
        """Return what the environment reports."""
        return self.environment.episode_return()

    def close(self) -> None:
        """Close the environment if it is the connection's own."""
        if self._owned:
            self.environment.close()


class VectorizedConnection(LocalConnection):
    """A vectorizable environment in this process, with several episodes side by side."""

    def __init__(self, environment: ValidatedEnv, num_parallel: int, owned: bool = True) -> None:
        super().__init__(environment, owned)
        self.num_actors = num_parallel

    def send_reset(self, seed: int | None = None, count: int | None = None) -> None:
        """Begin `count` episodes (default: as many as there are actors)."""
        began = time.perf_counter()
        parallel, states = self.environment.reset(num_parallel=count or self.num_actors, seed=seed)
        self._answer = Answer(states, 0, 0.0, parallel, time.perf_counter() - began)


def close_all(connections: Sequence[Any]) -> None:
    """Close all of them, even after one has failed to."""
    failure: Exception | None = None
    for connection in connections:
        try:
            connection.close()
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
