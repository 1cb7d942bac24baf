"""One environment driven by requests and answers: here, or elsewhere, where it is replaced if it is lost."""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from operant.envs.environment import take
from operant.envs.validated_env import ValidatedEnv
from operant.envs.validation_errors import raise_of_handler
from operant.envs.vector.base import Flat, seed_of
from operant.envs.workers.restarts import LostError, RestartPolicy
from operant.errors import EnvError, UsageError, told, value_error
from operant.spec.spaces import Spaces


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


_FOREVER = 3600.0
_REMEDY = "Mend the environment, or raise timeout_seconds or max_restarts."


class ConnectionLimits(NamedTuple):
    """How long to wait, and how often to replace."""

    timeout_seconds: float = 60.0
    """How long an answer may take."""
    start_seconds: float = 120.0
    """How long the other side may take to be ready, with its environment made."""
    max_restarts: int = 3
    """How often it may be replaced without an episode ending in between."""


class EnvDescription(NamedTuple):
    """What the other side tells of its environment."""

    name: str
    spaces: Spaces
    max_episode_timesteps: int | None
    num_actors: int


class RestartingConnection(abc.ABC):
    """A connection that survives the loss of its other side.

    Subclasses define how to open one, send requests, and read answers; this class handles failures. A lost
    step is answered with terminal 2, the last known states and the reason; a lost reset is sent again to the
    replacement.

    Args:
        index: number of the environment, for messages.
        limits: how long to wait, and how often to replace.
        blocking: whether requests wait for their answers.
    """

    name: str = ""
    spaces: Spaces
    max_episode_timesteps: int | None
    num_actors: int

    def __init__(self, index: int, limits: ConnectionLimits, blocking: bool = False) -> None:
        if not limits.timeout_seconds > 0:
            raise value_error("timeout_seconds", "above 0", limits.timeout_seconds)
        if not limits.start_seconds > 0:
            raise value_error("start_seconds", "above 0", limits.start_seconds)
        if isinstance(limits.max_restarts, bool) or limits.max_restarts < 0:
            raise value_error("max_restarts", "a whole number of at least 0", limits.max_restarts)
        self.index = index
        self.restarts = 0
        self._policy = RestartPolicy(limits.max_restarts, _REMEDY)
        self._limits, self._blocking = limits, blocking
        self._is_open = True
        self._is_lost = False
        self._is_new = False  # a replacement that has not answered yet
        self._is_torn = False  # a request or an answer may have stopped half-way, by Ctrl-C
        self._seed: int | None = None
        self._request: int | Flat | None = None
        self._is_pending = False
        self._answer: Answer | None = None
        self._error: EnvError | None = None
        self._deadline = 0.0
        self._actors: Any = None
        self._last: Any = None
        self._return: float | None = None

    def meet(self) -> None:
        """Wait for the other side, and learn the spaces of its environment.

        Raises:
            EnvError: it cannot be reached, or is not ready in time.
            SpecError: the environment cannot be made.
        """
        try:
            description = self._introduction()
        except LostError as lost:
            self.close()
            end = "" if str(lost).endswith((".", "?")) else "."
            raise EnvError(f"{self.where} {lost}{end}") from None
        except BaseException:
            self.close()
            raise
        self.name, self.spaces, self.max_episode_timesteps, self.num_actors = description

    @abc.abstractmethod
    def _introduction(self) -> EnvDescription:
        """Wait for what the other side tells of its environment; LostError: it is not there in time."""

    def forgive(self) -> None:
        """Reset the count of restarts, for the next user."""
        self.restarts = 0
        self._policy.forgive()

    @property
    def where(self) -> str:
        """Say which one it is, for messages."""
        name = f" of {self.name!r}" if self.name else ""
        return f"Environment {self.index}{name} ({self._place()})"

    @abc.abstractmethod
    def _place(self) -> str:
        """Say where the other side is."""

    @abc.abstractmethod
    def _open(self) -> None:
        """Start to make or to reach a new other side, which may be ready later."""

    @abc.abstractmethod
    def _drop(self) -> None:
        """Let go of the other side."""

    @abc.abstractmethod
    def _ask(self, request: int | Flat | None) -> None:
        """Send a request: a seed (or None), to begin an episode, or actions."""

    @abc.abstractmethod
    def _arrived(self, seconds: float) -> bool:
        """Tell, within `seconds`, whether there is something to read; LostError: the other side is gone."""

    @abc.abstractmethod
    def _read(self) -> tuple[Answer, float | None] | None:
        """Return the answer that has arrived and the environment's own return; None: something else came."""

    def send_reset(self, seed: int | None = None) -> None:
        """Ask for an episode."""
        whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
        if seed is not None and not (whole and 0 <= seed < 2**63):
            raise value_error("seed", "a whole number of at least 0 and below 2^63, or None", seed)
        self._check_free()
        if seed is not None:
            self._seed = seed = int(seed)
        elif (self._is_new or self._is_lost) and self._seed is not None:
            # A replacement has no random generator to continue with: it gets a seed, so that runs can be
            # repeated.
            seed = seed_of(self._seed, 2**20 + self.restarts)
        self._begin(seed)

    def send_execute(self, actions: Any) -> None:
        """Ask for a step; floats are clipped to their bounds, as for environments in this process.

        Raises:
            UsageError: before an episode has begun, or while another answer is awaited.
            SpaceError: the actions do not fit.
        """
        self._check_free()
        if self._actors is None:
            raise UsageError(
                f"execute was called on {self.name!r} before an episode was begun. Call reset first, and "
                "after every terminal."
            )
        batch = () if self.num_actors == 1 else (len(self._actors),)
        self._begin(self.spaces.actions.check(actions, batch, clip=True))

    def _check_free(self) -> None:
        if not self._is_open:
            raise UsageError(f"The environment {self.name!r} is closed. Create another one.")
        if self._is_pending:
            raise UsageError(
                f"{self.where} was asked already. Call receive first, or where a call was interrupted begin "
                "an episode: reset."
            )

    def _begin(self, request: int | Flat | None) -> None:
        self._request, self._answer, self._error = request, None, None
        self._is_torn, self._is_pending = True, True
        try:
            self._attempt()
        except LostError as lost:
            self._replace(lost)
        if self._blocking:
            self.ready(_FOREVER)

    def _attempt(self) -> None:
        if self._is_lost:
            self._open()
            self._is_lost, self._is_new = False, True
        self._deadline = time.monotonic() + self._seconds()
        self._ask(self._request)
        self._is_torn = False

    def _seconds(self) -> float:
        seconds = self._limits.timeout_seconds
        return max(seconds, self._limits.start_seconds) if self._is_new else seconds

    def _replace(self, lost: LostError) -> None:
        if not self._is_open:  # closed from another thread: no replacement is needed
            self._error = EnvError(f"{self.where} was closed.")
            return
        name = self.where
        while True:
            self._is_lost = True
            self._drop()
            try:
                self._policy.spend(name, lost)
            except EnvError as error:
                self._error = error
                return
            self.restarts += 1
            if isinstance(self._request, dict):
                self._answer = self._cut(f"{name} {lost}")
                return
            try:
                self._attempt()
                return
            except LostError as again:
                lost = again

    def _cut(self, lost: str) -> Answer:
        if self.num_actors == 1:
            return Answer(self._last, 2, 0.0, lost=lost)
        n = len(self._actors)
        last = take(self._last, list(range(n)))
        return Answer(last, np.full(n, 2), np.zeros(n), np.zeros(0, np.int64), lost=lost)

    def ready(self, seconds: float = 0.0) -> bool:
        """Tell whether, within `seconds`, the answer is there or the environment lost for good."""
        until = time.monotonic() + seconds
        while self._is_pending and self._answer is None and self._error is None:
            now = time.monotonic()
            try:
                if self._arrived(max(0.0, min(until, self._deadline) - now)):
                    self._is_torn = True
                    if (content := self._read()) is not None:
                        self._answer, self._return = content
                        self._is_new = False
                    self._is_torn = False
                elif time.monotonic() >= self._deadline:
                    raise LostError(f"did not answer within {self._seconds():g} s")
                elif time.monotonic() >= until:
                    return False
            except LostError as lost:
                self._replace(lost)
        return self._is_pending

    def receive(self) -> Answer:
        """Return the answer to the open request, after waiting for it if necessary.

        Raises:
            UsageError: no request is open.
            EnvError: the environment was lost too often; it is closed.
        """
        if not self._is_pending:
            raise UsageError(f"Nothing was asked of {self.name!r}. Call send_reset or send_execute first.")
        while not self.ready(_FOREVER):
            if not self._is_open:  # closed from another thread
                raise self._error or EnvError(f"{self.where} was closed.")
        self._is_pending = False
        if self._error is not None:
            self.close()
            raise self._error
        answer, self._answer = self._answer, None
        assert answer is not None
        if self.num_actors > 1:
            self._actors = answer.parallel if len(answer.parallel) else None
        else:
            self._actors = (0,) if answer.terminal == 0 else None
        self._last = answer.states
        if self._actors is None and not answer.lost:
            self._policy.forgive()
        return answer

    def forget(self) -> None:
        """Discard the answer that an interrupted call left open, if any; the next request begins an episode.

        Raises:
            EnvError: the environment was lost too often; it is closed.
        """
        if self._is_pending and not (self._is_lost or self._is_torn):
            self.receive()
        elif self._is_pending:  # it was being replaced, or what it answers next cannot be understood
            self._drop()
            self._is_lost = True
        self._is_pending, self._is_torn, self._actors = False, False, None

    def episode_return(self) -> float | None:
        """Return what the environment itself reports as the last episode's return, or None."""
        return self._return

    def close(self) -> None:
        """Close the environment; a second call does nothing."""
        if self._is_open:
            self._is_open = self._is_pending = False
            self._finish()

    @abc.abstractmethod
    def _finish(self) -> None:
        """Close the other side."""


Connection: TypeAlias = LocalConnection | RestartingConnection
"""An environment that may answer later. At most one request is open at a time."""
