"""`Environment`, the base class that users subclass; its `create` makes one from any specification."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, overload

import numpy as np

from operant.errors import naming_misspelt

if TYPE_CHECKING:
    from operant.envs.validated_env import ValidatedEnv
    from operant.spec.spaces import Spaces

Shaping: TypeAlias = Callable[[Any, Any, int, float, Any], Any]
"""``(states, actions, terminal, reward, next_states) -> reward`` or ``-> (reward, terminal)``."""

_create: Any = None
"""Set by `operant.envs.factory`, which knows every kind of environment."""


class Environment(abc.ABC):
    """One environment, or several actors in one: what an agent acts in.

    Subclasses define `states`, `actions`, `reset` and `execute`, and other methods where the defaults do not
    fit::

        class Corridor(Environment):
            def states(self):
                return dict(type="float", shape=(1,), min_value=0.0, max_value=9.0)

            def actions(self):
                return dict(type="int", num_values=2)

            def reset(self):
                self.place = 0.0
                return [self.place]

            def execute(self, actions):
                self.place = max(0.0, self.place + 2 * actions - 1)
                return [self.place], self.place == 9.0, -1.0

    `reset` may take an argument `seed` (a whole number or None); an environment that draws random numbers
    should, so that runs can be repeated.
    """

    @abc.abstractmethod
    def states(self) -> Any:
        """Return the specification of the states: ``dict(type='float', shape=(4,))`` or a dict of such.

        An entry ``<action>_mask`` (``action_mask`` for a single unnamed action) of type bool and shape
        ``(*shape of the action, num_values)`` declares an action mask. Dicts may be nested.
        """

    @abc.abstractmethod
    def actions(self) -> Any:
        """Return the specification of the actions: ``dict(type='int', num_values=3)`` or a dict of such."""

    @abc.abstractmethod
    def reset(self) -> Any:
        """Begin an episode and return its first states, in the structure of `states`.

        Several actors (`num_actors` above 1) return ``(parallel, states)``: the indices of the actors, and
        states with a leading axis. So do vectorizable environments, whose `reset` takes `num_parallel`.
        """

    @abc.abstractmethod
    def execute(self, actions: Any) -> tuple[Any, ...]:
        """Take actions, and return ``(states, terminal, reward)``.

        `terminal` is False or 0 while the episode goes on, True or 1 at its end, and 2 if it was cut (by a
        time limit). Several actors and vectorizable environments return
        ``(parallel, states, terminal, reward)``: `terminal` and `reward` belong to the actors that acted,
        `parallel` to those still running. `states` are those of the actors still running, followed, if the
        environment knows them, by those of the actors that ended, in the order in which they acted: where an
        episode was cut, bootstrapping needs the value of the last states.
        """

    def max_episode_timesteps(self) -> int | None:
        """Return the most steps that an episode takes, or None without a limit."""
        return None

    def close(self) -> None:
        """Free what the environment holds."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def num_actors(self) -> int:
        """Return how many actors act in it."""
        return 1

    def is_vectorizable(self) -> bool:
        """Tell whether `reset` takes `num_parallel`, to run that many episodes side by side."""
        return False

    def episode_return(self, parallel: int | None = None) -> float | None:
        """Return the return to report for the last episode, or None to report the sum of its rewards."""
        return None

    def episode_info(self) -> Mapping[str, Any]:
        """Return more numbers to tell of the last episode, by name, for `info_keywords` to record."""
        return {}

    @overload
    @staticmethod
    def create(
        environment: Any,
        max_episode_timesteps: int | None = None,
        reward_shaping: None = None,
        *,
        remote: Literal["socket-server"],
        blocking: bool = False,
        host: Any = None,
        port: Any = None,
        **kwargs: Any,
    ) -> None: ...

    @overload
    @staticmethod
    def create(
        environment: Any = None,
        max_episode_timesteps: int | None = None,
        reward_shaping: Shaping | None = None,
        remote: str | None = None,
        blocking: bool = False,
        host: Any = None,
        port: Any = None,
        **kwargs: Any,
    ) -> ValidatedEnv: ...

    @staticmethod
    @naming_misspelt
    def create(
        environment: Any = None,
        max_episode_timesteps: int | None = None,
        reward_shaping: Shaping | None = None,
        remote: str | None = None,
        blocking: bool = False,
        host: Any = None,
        port: Any = None,
        **kwargs: Any,
    ) -> ValidatedEnv | None:
        """Make an environment from a specification.

        Args:
            environment: an id of Gymnasium (``'CartPole-v1'``), a JAX-native id (``'jax:CartPole-v1'``), an
                importable ``module.Class``, the path of a JSON file, an `Environment` or a `gymnasium.Env`
                (object, class or function that returns one), ``'gymnasium'`` with `level`, or a dict with one
                of these as `environment` or `type` and arguments beside it.
            max_episode_timesteps: steps after which an episode is cut (terminal 2); at most the environment's
                own limit, which is the default.
            reward_shaping: called as ``(states, actions, terminal, reward, next_states)`` after every step;
                returns the reward, or reward and terminal.
            remote: None: in this process. `multiprocessing`: in a process of its own, replaced when it dies
                or hangs. `socket-client`: at a server on another machine, which defines environment and time
                limit. `ray`: in an actor of a Ray cluster. `socket-server`: be such a server, until
                interrupted, or in a thread that cannot be, until its client has left (`operant serve`);
                returns nothing.
            blocking: whether requests wait for their answers (they do here in any case; see `Runner`).
            host: of the server, or the address to serve at (default: this machine only); with `ray`, of the
                cluster's head (default: the variable `RAY_ADDRESS`, or else a cluster on this machine).
            port: of the server, or of the head.
            kwargs: arguments of the environment itself; for `socket-client`, of the connection
                (`operant.envs.remote.connect`).

        Raises:
            SpecError: the specification is not understood; names the closest match, or the package to
                install.
            UsageError: an environment that was created already is to be changed, or arguments exclude one
                another.
            EnvError: a process cannot be started, or a server cannot be reached.
        """
        return _create(
            environment, max_episode_timesteps, reward_shaping, remote, blocking, host, port, **kwargs
        )


class SpacesEnv(Environment):
    """An environment that has `spaces` already, from which states and actions are specified."""

    spaces: Spaces

    def states(self) -> Any:
        """Return the specification of the states, masks included."""
        return self.spaces.declaration()

    def actions(self) -> Any:
        """Return the specification of the actions."""
        return self.spaces.actions.to_spec()


def rows(states: Any) -> int:
    """Return how many rows states with a leading axis have; 0 for None, and for states without that axis."""
    while isinstance(states, Mapping):
        states = next(iter(states.values()), None)
    if isinstance(states, list | tuple):
        return len(states)
    shape = np.shape(states)
    return shape[0] if shape else 0


def take(values: Any, index: Any) -> Any:
    """Return one row of a nested structure with leading axes, or several rows for a list of indices."""
    if isinstance(values, Mapping):
        return {name: take(value, index) for name, value in values.items()}
    if isinstance(index, list | np.ndarray):
        return np.asarray(values)[index]
    value = values[index]
    return value.item() if isinstance(value, np.generic) else value
