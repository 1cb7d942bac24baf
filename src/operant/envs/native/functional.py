"""Functional environments of other libraries as native environments: Gymnasium's own, gymnax's and brax's.

Their automatic resets and time limits are not used: the driver of `operant.envs.native.native_env` does both,
so termination and truncation stay apart and the last observation of an episode is kept. Their code runs under
JAX's default promotion rules, whatever the program has set, and gets the old kind of keys
(`jax.random.PRNGKey`), which all of it accepts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from operant.envs.native.native_env import TimeStep
from operant.errors import SpecError, expect_like, suggest, value_error, whole
from operant.spec.spaces import Codec, Spaces, from_gymnasium
from operant.spec.spaces.convert import Node, SpacePart
from operant.types import Array, Arrays, Key, Tree


@dataclasses.dataclass(frozen=True, eq=False)
class Adapter:
    """What the adapters share. Compared and hashed by identity: keep one to share compiled programs."""

    env: Any
    params: Any
    spaces: Spaces
    codec: Codec
    max_episode_timesteps: int | None

    def __post_init__(self) -> None:
        limit = whole("max_episode_timesteps", self.max_episode_timesteps, optional=True)
        object.__setattr__(self, "max_episode_timesteps", limit)


class FunctionalEnv(Adapter):
    """A `gymnasium.experimental.functional.FuncEnv`."""

    def reset(self, key: Key) -> tuple[Tree, Arrays]:
        """Begin an episode."""
        action = {k: jnp.zeros(x.shape, x.storage) for k, x in self.spaces.actions.components.items()}
        decoded = _decode(self.codec.action.node, action)
        with _default_rules():
            key_state, key_observation = _split(key, 2)
            state = _lasting(
                self.env.initial(key_state, **self._params),
                lambda state: self.env.transition(state, decoded, key_state, **self._params),
            )
            observation = self.env.observation(state, key_observation, **self._params)
        return state, _encode(self.codec.observation.node, observation)

    def step(self, state: Tree, action: Arrays, key: Key) -> tuple[Tree, TimeStep]:
        """Take one action."""
        decoded = _decode(self.codec.action.node, action)
        with _default_rules():
            key_state, key_observation, key_reward, key_terminal = _split(key, 4)
            following = _like(self.env.transition(state, decoded, key_state, **self._params), state)
            observation = self.env.observation(following, key_observation, **self._params)
            reward = self.env.reward(state, decoded, following, key_reward, **self._params)
            terminated = self.env.terminal(following, key_terminal, **self._params)
        return following, _step(self.codec, observation, reward, terminated)

    @property
    def _params(self) -> dict[str, Any]:
        return {} if self.params is None else {"params": self.params}


class GymnaxEnv(Adapter):
    """A `gymnax.environments.environment.Environment`, or any other of that form (Craftax)."""

    def reset(self, key: Key) -> tuple[Tree, Arrays]:
        """Begin an episode."""
        with _default_rules():
            observation, state = self.env.reset_env(_raw(key), self.params)
        return _strong(state), _encode(self.codec.observation.node, observation)

    def step(self, state: Tree, action: Arrays, key: Key) -> tuple[Tree, TimeStep]:
        """Take one action."""
        decoded = _decode(self.codec.action.node, action)
        with _default_rules():
            observation, following, reward, terminated, _ = self.env.step_env(
                _raw(key), state, decoded, self.params
            )
            if not hasattr(self.env, "is_truncated"):
                # Before gymnax 1.0 the flag also stood for the time limit, so ask again without one.
                endless = {name: np.iinfo(np.int32).max for name in _limits(self.params)}
                params = dataclasses.replace(self.params, **endless) if endless else self.params
                terminated = jnp.asarray(terminated, bool) & self.env.is_terminal(following, params)
        return _like(following, state), _step(self.codec, observation, reward, terminated)


class BraxEnv(Adapter):
    """A `brax.envs.Env`, or any other with its `reset(key)` and `step(state, action)` (MuJoCo Playground)."""

    def reset(self, key: Key) -> tuple[Tree, Arrays]:
        """Begin an episode."""
        with _default_rules():
            state = _strong(self.env.reset(_raw(key)))
        return state, _encode(self.codec.observation.node, state.obs)

    def step(self, state: Tree, action: Arrays, key: Key) -> tuple[Tree, TimeStep]:
        """Take one action. Any randomness comes from the state; `key` is not used."""
        decoded = _decode(self.codec.action.node, action)
        copy = jax.tree.map(lambda x: x, state)  # brax writes into the dicts of the state that it is given
        with _default_rules():
            following = _like(self.env.step(copy, decoded), state)
        return following, _step(self.codec, following.obs, following.reward, following.done)


def from_functional(
    env: Any, *, params: Any = None, max_episode_timesteps: int | None = None
) -> FunctionalEnv:
    """Adapt a `FuncEnv` of Gymnasium, such as ``gymnasium.envs.phys2d.cartpole.CartPoleFunctional()``.

    Args:
        env: the environment.
        params: its parameters; None: its default ones.
        max_episode_timesteps: time limit; a `FuncEnv` has none of its own.

    Raises:
        SpecError: `env` is not a `FuncEnv`.
        SpaceError: a space is of a kind that cannot be served.
    """
    from gymnasium.experimental.functional import FuncEnv

    if not isinstance(env, FuncEnv):
        raise value_error("env", "a gymnasium.experimental.functional.FuncEnv", env)
    spaces, codec = from_gymnasium(env.observation_space, env.action_space)
    params = env.default_params if params is None else params
    return FunctionalEnv(env, params, spaces, codec, max_episode_timesteps)


def from_gymnax(env: Any, *, params: Any = None, max_episode_timesteps: int | None = None) -> GymnaxEnv:
    """Adapt an environment of gymnax, or one of its form: Craftax'.

    Args:
        env: a registered name (``'Breakout-MinAtar'``), or an environment.
        params: its parameters, or a dict of those that differ from its default ones; None: the default ones.
        max_episode_timesteps: time limit; None: `max_steps_in_episode` or `max_timesteps` of the parameters.

    Raises:
        SpecError: gymnax is not installed, or does not know the name or a parameter.
        SpaceError: a space is of a kind that cannot be served.
    """
    if isinstance(env, str):
        gymnax = _import("gymnax")
        if env not in gymnax.registered_envs:
            raise SpecError(f"Unknown gymnax environment {env!r}.{suggest(env, gymnax.registered_envs)}")
        with _default_rules():
            env, _ = gymnax.make(env)
    _expect_form(
        env, "gymnax", "reset_env", "step_env", "default_params", "observation_space", "action_space"
    )
    with _default_rules():
        if params is None or isinstance(params, Mapping):
            params = _changed(env.default_params, params) if params else env.default_params
        spaces, codec = from_gymnasium(
            _gymnasium_space(env.observation_space(params)), _gymnasium_space(env.action_space(params))
        )
    limit = max_episode_timesteps
    if limit is None:
        limit = min((int(getattr(params, name)) for name in _limits(params)), default=None)
    return GymnaxEnv(env, params, spaces, codec, limit)


def _limits(params: Any) -> list[str]:
    """Return the names of the parameters that hold a time limit."""
    return [name for name in ("max_steps_in_episode", "max_timesteps") if hasattr(params, name)]


def _expect_form(env: Any, library: str, *names: str) -> None:
    """Refuse (SpecError) what is no environment of a library: it lacks one of these attributes."""
    lacks = [name for name in names if not hasattr(env, name)]
    if lacks:
        kind = f"{type(env).__module__}.{type(env).__qualname__}"
        raise SpecError(
            f"env must be an environment of {library}, or of its form. Received: {kind}, without "
            f"{', '.join(lacks)}. Write its reset and step as a JAX-native environment: docs/train.md."
        )


def _changed(params: Any, changes: Mapping[str, Any]) -> Any:
    known = [field.name for field in dataclasses.fields(params)]
    for name, value in changes.items():
        if name not in known:
            raise SpecError(f"params of a gymnax environment has no {name!r}.{suggest(name, known)}")
        expect_like(name, value, getattr(params, name))
    return dataclasses.replace(params, **changes)


def from_brax(env: Any, *, backend: str | None = None, max_episode_timesteps: int | None = 1000) -> BraxEnv:
    """Adapt an environment of brax.

    Args:
        env: a registered name (``'ant'``), or an environment. Wrappers are removed: those of brax replace the
            last observation of an episode and mix time limits with terminations.
        backend: physics engine (``'mjx'``, ``'spring'``, ``'positional'``, ``'generalized'``); None: that of
            the environment. Only with a name.
        max_episode_timesteps: time limit, by default brax's own.

    Raises:
        SpecError: brax is not installed, or does not know the name.
    """
    if isinstance(env, str):
        brax = _import("brax.envs")
        try:
            env = brax.get_environment(env, **({} if backend is None else {"backend": backend}))
        except KeyError as error:
            if error.args != (env,):
                raise
            raise SpecError(f"Unknown brax environment {env!r}. See brax.envs for those there are.") from None
        except ValueError as error:
            raise SpecError(
                f"brax environment {env!r} cannot be made with backend={backend!r}: {error}"
            ) from None
    elif backend is not None:
        raise value_error("backend", "given beside a name only", backend, "Build the environment with it.")
    env = getattr(env, "unwrapped", env)
    _expect_form(env, "brax", "reset", "step", "action_size")
    with _default_rules():
        observation = jax.eval_shape(lambda: env.reset(jax.random.PRNGKey(0)).obs)
    from gymnasium.spaces import Box

    spaces, codec = from_gymnasium(_boxes(observation), Box(-1.0, 1.0, (env.action_size,), np.float32))
    return BraxEnv(env, None, spaces, codec, max_episode_timesteps)


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise SpecError(
            f"The package {name!r} is needed and cannot be imported ({error}). Install it: pip install "
            f"'operant[{name}]'."
        ) from error


@contextlib.contextmanager
def _default_rules() -> Iterator[None]:
    """Trace foreign code under JAX's default rules: strict ones would refuse much of it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _raw(key: Key) -> Array:
    """Return the key as one of the old kind, unless it is of another implementation than the default."""
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    default = jax.random.key_impl(jax.random.key(0))
    return jax.random.key_data(key) if jax.random.key_impl(key) == default else key


def _split(key: Key, n: int) -> list[Array]:
    return [_raw(part) for part in jax.random.split(key, n)]


def _strong(tree: Tree) -> Tree:
    """Give every leaf a strong type: weak ones of Python numbers would adopt that of what they meet."""
    return jax.tree.map(lambda x: x if _is_key(x) else jnp.asarray(x, jnp.result_type(x)), tree)


def _lasting(state: Tree, follow: Callable[[Tree], Tree]) -> Tree:
    """Give every leaf a type that it can keep: what becomes a float is a float from the start."""
    state, before = _strong(state), None
    while before != (types := [x.dtype for x in jax.tree.leaves(state)]):
        before, after = types, jax.eval_shape(follow, state)
        state = jax.tree.map(
            lambda x, y: jnp.asarray(x, y.dtype) if jnp.issubdtype(y.dtype, jnp.floating) else x, state, after
        )
    return state


def _like(tree: Tree, old: Tree) -> Tree:
    return jax.tree.map(lambda x, y: x if _is_key(y) else jnp.asarray(x, y.dtype), tree, old)


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _step(codec: Codec, observation: Any, reward: Any, terminated: Any) -> TimeStep:
    return TimeStep(
        _encode(codec.observation.node, observation),
        jnp.asarray(reward, jnp.float32).reshape(()),
        jnp.asarray(terminated).astype(bool).reshape(()),
    )


def _gymnasium_space(space: Any) -> Any:
    """Return the Gymnasium space of a gymnax space (known by its attributes)."""
    from gymnasium import spaces

    if isinstance(getattr(space, "spaces", None), Mapping):
        return spaces.Dict([(key, _gymnasium_space(branch)) for key, branch in space.spaces.items()])
    if hasattr(space, "spaces"):
        return spaces.Tuple([_gymnasium_space(branch) for branch in space.spaces])
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    if hasattr(space, "low"):
        shape, dtype = tuple(space.shape), np.dtype(space.dtype)
        low, high = (np.broadcast_to(np.asarray(bound), shape) for bound in (space.low, space.high))
        return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)
    return space


def _boxes(observation: Any) -> Any:
    from gymnasium import spaces

    if isinstance(observation, Mapping):
        return spaces.Dict([(key, _boxes(branch)) for key, branch in observation.items()])
    return spaces.Box(-np.inf, np.inf, observation.shape, np.float32)


def _encode(node: Node, value: Any) -> Arrays:
    """Return a foreign observation by flat component name: `SpaceCodec.encode` for traced arrays."""
    if isinstance(node, SpacePart):
        array = jnp.asarray(value)
        if node.start is not None:
            array = array - jnp.asarray(node.start, array.dtype)
        array = array.astype(node.storage)
        if node.pieces:
            return node.cut(array)
        if not node.split:
            array = array.reshape(node.shape)
            return {node.names[0]: jnp.moveaxis(array, 0, -1) if node.moved else array}
        return dict(zip(node.names, array.reshape(-1), strict=True))
    flat: Arrays = {}
    for key, branch in node.items() if isinstance(node, dict) else enumerate(node):
        flat.update(_encode(branch, value[key]))
    return flat


def _decode(node: Node, flat: Arrays) -> Any:
    """Return flat actions as the foreign environment takes them: `SpaceCodec.decode` for traced arrays."""
    if isinstance(node, SpacePart):
        array = flat[node.names[0]]
        if node.split:
            array = jnp.stack([flat[name] for name in node.names]).reshape(node.shape)
        if node.start is not None:
            array = array + jnp.asarray(node.start, array.dtype)
        if node.low is not None and node.high is not None:
            array = jnp.minimum(
                jnp.maximum(array, jnp.asarray(node.low, array.dtype)), jnp.asarray(node.high, array.dtype)
            )
        return array
    if isinstance(node, dict):
        return {key: _decode(branch, flat) for key, branch in node.items()}
    return tuple(_decode(branch, flat) for branch in node)
