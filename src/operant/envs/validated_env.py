"""What `Environment.create` returns: an environment whose answers, and the order of calls, are checked."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from operant.envs.environment import Environment, Shaping, SpacesEnv, rows, take
from operant.envs.validation_errors import brief, close, reward_error, terminal_error
from operant.errors import EnvError, SpaceError, SpecError, UsageError, value_error, whole
from operant.spec.spaces import Spaces, mask_name
from operant.spec.spaces.masks import pop
from operant.spec.spaces.space import Flat

_ORDER = "execute returns (states, terminal, reward), in this order."


class ValidatedEnv(SpacesEnv):
    """What `Environment.create` returns: an environment whose answers, and the order of calls, are checked.

    It ends an episode with terminal 2 at the time limit, and shapes rewards. Attributes that it does not have
    itself are read from and written to the environment inside.
    """

    def __init__(
        self,
        environment: Environment,
        max_episode_timesteps: int | None = None,
        reward_shaping: Shaping | None = None,
        name: str = "",
    ) -> None:
        self._name = name or type(environment).__name__
        self._environment = environment
        self._limit = smaller_limit(max_episode_timesteps, environment.max_episode_timesteps(), self._name)
        self._shaping = _checked_shaping(reward_shaping)
        self._spaces = environment.spaces if isinstance(environment, SpacesEnv) else None
        self._seedable = "seed" in inspect.signature(environment.reset).parameters
        self._peeked: Any = None
        self._states: Any = None
        self._steps = 0
        self._running = self._closed = self._batched = False
        self._flat: Flat = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")
        return getattr(self._environment, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            self._peeked = None  # an episode that began with another value
            setattr(self._environment, name, value)

    def __repr__(self) -> str:
        return f"Environment({self._name!r})"

    @property
    def spaces(self) -> Spaces:  # type: ignore[override]
        """States, actions and masks; reading them may begin the first episode, to see its masks."""
        if self._spaces is None:
            try:
                self._spaces = self._read_spaces()
            except AttributeError as error:  # Python would take it for "there is no attribute spaces"
                raise EnvError(f"{self._name!r} raised AttributeError: {error}") from error
        return self._spaces

    @property
    def name(self) -> str:
        """What it was created from."""
        return self._name

    @property
    def flat(self) -> Flat:
        """The states that it returned last, as stored components."""
        return self._flat

    @property
    def environment(self) -> Environment:
        """The environment inside."""
        return self._environment

    def max_episode_timesteps(self) -> int | None:
        """Return the steps after which an episode is cut, or None without a limit."""
        return self._limit

    def num_actors(self) -> int:
        """Return how many actors act in it."""
        return self._environment.num_actors()

    def is_vectorizable(self) -> bool:
        """Tell whether `reset` takes `num_parallel`."""
        return self._environment.is_vectorizable()

    def episode_return(self, parallel: int | None = None) -> float | None:
        """Return what the environment reports as the last episode's return, or None."""
        return self._environment.episode_return(parallel=parallel)

    def episode_info(self) -> Mapping[str, Any]:
        """Return what the environment tells of the last episode, by name."""
        return self._environment.episode_info()

    def close(self) -> None:
        """Close the environment; a second call does nothing."""
        if not self._closed:
            self._closed, self._running = True, False
            close(self._environment)

    def reset(self, num_parallel: int | None = None, seed: int | None = None) -> Any:
        """Begin an episode.

        Args:
            num_parallel: for vectorizable environments, how many episodes to run side by side.
            seed: for environments whose `reset` takes one; others ignore it.

        Returns:
            The first states; with several actors or `num_parallel`, ``(parallel, states)``.

        Raises:
            UsageError: the environment is closed, or `num_parallel` is given to one that is not vectorizable.
            EnvError: the first states do not fit the specification.
        """
        if self._closed:
            raise UsageError(f"The environment {self._name!r} is closed. Create another one.")
        if num_parallel is not None and not self.is_vectorizable():
            raise UsageError(
                f"num_parallel is for vectorizable environments. Received: num_parallel={num_parallel!r} for "
                f"{self._name!r}. Leave it out, or use operant.envs.vector.create.create."
            )
        self._batched = num_parallel is not None or self.num_actors() > 1
        if self._batched and self._shaping is not None:
            raise UsageError("reward_shaping is for one episode at a time. Shape rewards in execute instead.")
        spaces = self.spaces
        arguments: dict[str, Any] = {} if num_parallel is None else {"num_parallel": num_parallel}
        if seed is not None and self._seedable:
            arguments["seed"] = seed
        if self._peeked is not None and not arguments:
            answer = self._peeked[0]
        else:
            answer = self._environment.reset(**arguments)
        self._peeked = None
        self._steps = 0
        self._check_states(answer[1] if self._batched else answer, "reset", spaces)
        self._running, self._states = True, answer
        self._acting = [int(i) for i in answer[0]] if self._batched else []
        return answer

    def execute(self, actions: Any) -> tuple[Any, ...]:
        """Take actions.

        Returns:
            ``(states, terminal, reward)`` with terminal 0, 1 or 2 and a float; with several actors or
            `num_parallel` ``(parallel, states, terminal, reward)``.

        Raises:
            UsageError: before `reset`, or after the episode ended.
            EnvError: the answer breaks the contract.
        """
        if not self._running:
            raise self._unready()
        answer = self._environment.execute(actions)
        size = 4 if self._batched else 3
        if not isinstance(answer, tuple) or len(answer) != size:
            form = "(parallel, states, terminal, reward)" if self._batched else "(states, terminal, reward)"
            raise EnvError(f"execute of {self._name!r} must return {form}. Received: {brief(answer)}.")
        self._steps += 1
        if self._batched:
            return self._finish_batch(*answer)
        states, terminal, reward = answer
        self._check_states(states, "execute", self.spaces, over=self._checked_terminal(terminal) != 0)
        return self._finish(actions, states, terminal, reward)

    def _unready(self) -> UsageError:
        return UsageError(
            f"execute was called on {self._name!r} before an episode was begun. Call reset first, and after "
            "every terminal."
        )

    @property
    def is_flat(self) -> bool:
        """Whether `execute_flat` can be used: it is there, and nothing here needs the user's structure."""
        return (
            self._shaping is None and not self._batched and hasattr(type(self._environment), "execute_flat")
        )

    def execute_flat(self, actions: Any) -> tuple[Any, int, float]:
        """As `execute`, but takes and returns stored components, which the caller checks."""
        if not self._running:
            raise self._unready()
        environment: Any = self._environment
        answer = environment.execute_flat(actions)
        self._steps += 1
        return self._finish(actions, *answer)

    def _finish(self, actions: Any, states: Any, terminal: Any, reward: Any) -> tuple[Any, int, float]:
        """Check one actor's step, and apply time limit and reward shaping."""
        terminal, reward = self._limited(self._checked_terminal(terminal)), self._checked_reward(reward)
        if self._shaping is not None:
            shaped = self._shaping(self._states, actions, terminal, reward, states)
            if isinstance(shaped, tuple):
                shaped, shaped_terminal = shaped
                terminal = self._limited(self._checked_terminal(shaped_terminal))
            reward = self._checked_reward(shaped)
        self._running, self._states = terminal == 0, states
        return states, terminal, reward

    def _limited(self, terminal: int) -> int:
        return 2 if terminal == 0 and self._steps == self._limit else terminal

    def _finish_batch(self, parallel: Any, states: Any, terminal: Any, reward: Any) -> tuple[Any, ...]:
        acting = self._acting
        terminal, reward = self._each(terminal, "terminal"), self._each(reward, "reward")
        if terminal.dtype.kind not in "biu" or not np.isin(terminal, (0, 1, 2)).all():
            raise EnvError(f"terminal of {self._name!r} must be 0, 1 or 2. Received: {terminal}.")
        if reward.dtype.kind not in "fiu" or not np.isfinite(reward).all():
            raise EnvError(f"The reward of {self._name!r} must be finite. Received: {reward}.")
        terminal, reward = terminal.astype(np.int64), reward.astype(np.float32)
        running, observed = [int(i) for i in parallel], rows(states)
        order = running + [i for i, over in zip(acting, terminal, strict=True) if over and i not in running]
        if not running and observed != len(order):
            states, observed = None, 0  # of no actor, or it is not known of which
        if observed not in (len(running), len(order)):
            raise EnvError(
                f"execute of {self._name!r} returned states of {observed} actors. Return those of the "
                f"{len(running)} that go on, and behind them those of all that ended or of none."
            )
        if observed:
            self._check_states(states, "execute", self.spaces, over=np.arange(observed) >= len(running))
        if self._steps == self._limit:
            is_known = observed == len(order) and set(acting) <= set(order)
            index = [order.index(actor) for actor in acting] if is_known else []
            states, self._flat = (take(states, index), take(self._flat, index)) if is_known else (None, {})
            terminal[terminal == 0] = 2
            parallel, running = np.asarray(parallel)[:0], []
        self._running, self._acting = bool(running), running
        return parallel, states, terminal, reward

    def _each(self, values: Any, what: str) -> np.ndarray:
        """Return one value for each actor that acted; a single value holds for all."""
        n = len(self._acting)
        if np.shape(values) not in ((), (n,)):
            raise EnvError(
                f"{what} of {self._name!r} must be one for each of the {n} actors that acted. Received: "
                f"{brief(values)}."
            )
        return np.broadcast_to(values, n).copy()

    def _read_spaces(self) -> Spaces:
        environment = self._environment
        states, actions = environment.states(), environment.actions()
        spaces = Spaces.read(states, actions)
        names = [name for name, leaf in spaces.actions.components.items() if leaf.type == "int"]
        if not names or spaces.masks or environment.is_vectorizable() or environment.num_actors() > 1:
            return spaces
        self._peeked = (environment.reset(),)
        first = self._peeked[0] if isinstance(self._peeked[0], Mapping) else {}
        masks = [name for name in names if pop(first, mask_name(name))[1] is not None]
        return Spaces.read(states, actions, masks)

    def _check_states(self, states: Any, call: str, spaces: Spaces, over: bool | np.ndarray = False) -> None:
        try:
            self._flat = spaces.observe(states, None if self._batched else (), over=over)
        except SpaceError as error:
            raise self.misfit(error, call) from None

    def misfit(self, error: object, call: str = "execute") -> EnvError:
        """Return the error that an answer does not fit the spaces."""
        when = f" (step {self._steps} of its episode)" if call == "execute" else ""
        return EnvError(
            f"{call} of {self._name!r}{when} returned states that do not fit states(): {error} Correct one "
            "or the other."
        )

    def _checked_terminal(self, terminal: Any) -> int:
        if error := terminal_error(terminal):
            raise EnvError(f"terminal of {self._name!r} {error} {_ORDER}")
        return int(terminal)

    def _checked_reward(self, reward: Any) -> float:
        if error := reward_error(reward):
            received = (
                f"{brief(reward)}. {_ORDER}"
                if error == "a number"
                else f"{float(reward)} at step {self._steps}."
            )
            raise EnvError(f"The reward of {self._name!r} must be {error}. Received: {received}")
        return float(reward)


def smaller_limit(requested: int | None, limit: int | None, name: str) -> int | None:
    """Return the smaller of the limit asked for and the environment's own; a larger one is refused."""
    requested = whole("max_episode_timesteps", requested, optional=True)
    limit = int(limit) if isinstance(limit, np.integer) else limit  # as workers can tell it
    if requested is None:
        return limit
    if limit is not None and requested > limit:
        raise value_error(
            "max_episode_timesteps",
            f"at most {limit}, the limit of {name!r} itself",
            requested,
            "Leave it out, or make the environment with a longer limit of its own.",
        )
    return requested


def _checked_shaping(shaping: Any) -> Shaping | None:
    if shaping is None or callable(shaping):
        return cast("Shaping | None", shaping)
    raise SpecError(
        "reward_shaping must be a callable (states, actions, terminal, reward, next_states) -> reward. "
        f"Received: reward_shaping={shaping!r}. Strings are not evaluated: pass a function or a lambda."
    )
