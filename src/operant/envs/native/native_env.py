"""JAX-native environments: the protocol, and the batched stream driver.

A native environment is one environment without a batch axis, written as two pure functions. `start` and
`step` run `N` of them side by side with Gymnasium's next-step autoreset: an actor whose last row ended an
episode ignores its action, is reset, and answers with the first observation of the next episode, reward 0 and
neither flag. That is the stream of `operant.types`. Time limits belong to the driver, so an environment only
says when it terminates.

Randomness is addressed: what actor `i` draws at row `t` is a pure function of (key, `t`, `i`). Hence the
stream depends neither on how many rows one call runs nor on how many actors run beside it, and one key serves
the whole run. Row numbers are 32 bits wide: after 2^32 rows the draws repeat.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, UInt

from operant.errors import whole
from operant.spec.spaces import Spaces
from operant.types import Array, Arrays, Key, Tree

# What a draw is for. Each purpose has its own keys, so that no two draws of a run share one.
_RESET, _STEP = 0, 1


class TimeStep(NamedTuple):
    """What one environment answers to one action."""

    observation: Arrays
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]


@runtime_checkable
class NativeEnv(Protocol):
    """One environment as pure functions, such as a frozen dataclass.

    Equal environments share their compiled programs. Observations and actions are flat dicts of arrays by
    component name (``{"state": x}``, ``{"action": a}``), without leading axes. The structure, shapes and
    dtypes of the state never change.
    """

    @property
    def spaces(self) -> Spaces:
        """Observations and actions."""

    @property
    def max_episode_timesteps(self) -> int | None:
        """Steps after which the driver truncates an episode; None: never."""

    def reset(self, key: Key) -> tuple[Tree, Arrays]:
        """Begin an episode: state and first observation."""

    def step(self, state: Tree, action: Arrays, key: Key) -> tuple[Tree, TimeStep]:
        """Take one action."""


@dataclasses.dataclass(frozen=True)
class TimeLimit:
    """An environment with another time limit than its own (None: never)."""

    env: NativeEnv
    max_episode_timesteps: int | None

    def __post_init__(self) -> None:
        limit = whole("max_episode_timesteps", self.max_episode_timesteps, optional=True)
        object.__setattr__(self, "max_episode_timesteps", limit)

    @property
    def spaces(self) -> Spaces:
        """Those of the environment."""
        return self.env.spaces

    def reset(self, key: Key) -> tuple[Tree, Arrays]:
        """Begin an episode."""
        return self.env.reset(key)

    def step(self, state: Tree, action: Arrays, key: Key) -> tuple[Tree, TimeStep]:
        """Take one action."""
        return self.env.step(state, action, key)


class NativeActors(NamedTuple):
    """`N` environments between two rows of their streams."""

    state: Tree
    """Leaves `[N, ...]`."""
    observation: Arrays
    """What the next action responds to. Leaves `[N, ...]`."""
    ended: Bool[Array, " N"]
    """Whether the last row ended an episode: the next action is ignored."""
    steps: Int[Array, " N"]
    """Actions taken in the running episode."""
    row: UInt[Array, ""]
    """Rows that all actors have taken so far; the address of the next row's draws."""


class NativeStep(NamedTuple):
    """What followed one action of each of `N` actors."""

    observation: Arrays
    reward: Float[Array, " N"]
    terminated: Bool[Array, " N"]
    truncated: Bool[Array, " N"]


def start(env: NativeEnv, key: Key, n: int) -> NativeActors:
    """Begin the streams of `n` actors under the key of the whole run, which every `step` gets too."""
    row = jnp.zeros((), jnp.uint32)
    state, observation = jax.vmap(env.reset)(_keys(key, _RESET, row, n))
    return NativeActors(state, observation, jnp.zeros(n, bool), jnp.zeros(n, jnp.int32), row + jnp.uint32(1))


def step(env: NativeEnv, actors: NativeActors, actions: Arrays, key: Key) -> tuple[NativeActors, NativeStep]:
    """Take one action (leaves `[N, ...]`) of every actor, or reset it if its last row ended an episode.

    The key is the one that `start` had. Returns the actors after the row, and the row: `truncated` is True
    where the time limit was reached without a termination.
    """
    ended, row = actors.ended, actors.row
    n = ended.shape[0]
    state, stepped = jax.vmap(env.step)(actors.state, actions, _keys(key, _STEP, row, n))
    # Draws for a reset are needed on few rows. Under `vmap` over runs the branch becomes a select of both
    # results, and of the operands, which JAX's check of key reuse takes for a second use of a key: so it is
    # given plain numbers.
    impl, words = jax.random.key_impl(key), jax.random.key_data(key)

    def restart(words: Array, old: Tree) -> Tree:
        keys = _keys(jax.random.wrap_key_data(words, impl=impl), _RESET, row, n)
        return _select(ended, jax.vmap(env.reset)(keys), old)

    old = (state, stepped.observation)
    state, observation = jax.lax.cond(jnp.any(ended), restart, lambda _, old: old, words, old)
    steps = jnp.where(ended, jnp.int32(0), actors.steps + jnp.int32(1))
    terminated = stepped.terminated & ~ended
    truncated = jnp.zeros(n, bool)
    if env.max_episode_timesteps is not None:
        truncated = (steps >= jnp.int32(env.max_episode_timesteps)) & ~terminated
    reward = jnp.where(ended, jnp.float32(0), stepped.reward.astype(jnp.float32))
    actors = NativeActors(state, observation, terminated | truncated, steps, row + jnp.uint32(1))
    return actors, NativeStep(observation, reward, terminated, truncated)


def _keys(key: Key, purpose: int, row: Array, n: int) -> Key:
    """Return the keys `[n]` of one row, each a function of (key, purpose, row, actor) alone."""
    key = jax.random.fold_in(jax.random.fold_in(key, purpose), row)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(n, dtype=jnp.uint32))


def _select(mask: Array, new: Tree, old: Tree) -> Tree:
    """Take `new` where `mask[N]` holds, else `old`: leaves `[N, ...]`, arrays or typed keys."""

    def select(a: Array, b: Array) -> Array:
        if b.shape[:1] != mask.shape:  # shared by all, as MuJoCo Warp's contacts are: the step's is the newer
            return b
        return jnp.where(jnp.reshape(mask, mask.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(select, new, old)
