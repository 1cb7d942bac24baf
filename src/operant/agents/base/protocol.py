"""What an algorithm is: a frozen description with pure functions over its state.

See `docs/architecture.md` for how DQN, PPO, ACER and TRPO fit it, and `docs/add-an-algorithm.md` for how to
write one.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import UInt32

from operant.memory.recent import Recent
from operant.memory.replay import Replay
from operant.nn import Model
from operant.spec import Config
from operant.spec.spaces import Spaces
from operant.types import Action, Array, Arrays, Key, Metrics, Rollout, Tree


class Counters(NamedTuple):
    """How far a run is, for schedules. Exact up to 2^32; beyond, `counted` keeps them large."""

    timesteps: UInt32[Array, ""]
    """Environment steps of all actors."""
    episodes: UInt32[Array, ""]
    updates: UInt32[Array, ""]
    """Updates made: calls of `update`, unless not each makes one (see `UpdateCounter`). `Learner.update`
    counts."""
    rows: UInt32[Array, ""]
    """Rows per actor: the randomness of acting is derived from them."""

    @classmethod
    def zero(cls) -> Counters:
        """Return the counters of a run that has not begun."""
        return cls(*(jnp.zeros((), jnp.uint32) for _ in cls._fields))


class Algorithm(Protocol):
    """One algorithm, made for given options, spaces and number of actors. Frozen, hashable."""

    config: Any
    spaces: Spaces
    actors: int

    @classmethod
    def create(cls, config: Any, spaces: Spaces, actors: int) -> Algorithm:
        """Check that the algorithm can serve the spaces, and build its networks.

        Raises:
            SpaceError: the algorithm cannot serve an action; the message names both and what to use instead.
            SpecError: a network does not fit.
        """
        ...

    @property
    def rows(self) -> int:
        """Rows per actor that one update consumes."""
        ...

    @property
    def memory(self) -> Replay | Recent | None:
        """The memory that it learns from, if any."""
        ...

    def init(self, key: Key) -> Tree:
        """Return the first state."""
        ...

    @property
    def models(self) -> dict[str, Model]:
        """The networks by name, in the order of `--checkpoints` and `--weights`."""
        ...

    def weights(self, state: Tree) -> dict[str, Tree]:
        """Return the variables of each of the `models`."""
        ...

    def with_weights(self, state: Tree, weights: dict[str, Tree]) -> Tree:
        """Return a state with other variables in its models; target networks start from them too."""
        ...

    def acting(self, state: Tree, counters: Counters) -> Tree:
        """Return what acting needs: parameters, an exploration rate."""
        ...

    def noise(self, key: Key, n: int) -> Tree:
        """Return the randomness of one step of `n` actors: leaves `[n, ...]`, plain arrays."""
        ...

    def act(self, acting: Tree, observation: Arrays, carry: Tree, noise: Tree, explore: bool) -> Action:
        """Choose actions for observations `[n, ...]`; without `explore` the greedy ones, noise unused."""
        ...

    def initial_carry(self, n: int) -> Tree:
        """Return the recurrent state at the start of an episode, leaves `[n, ...]`; `()` if there is none."""
        ...

    def update(
        self, state: Tree, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[Tree, Tree, Metrics]:
        """Learn from the next `rows` rows of all actors; `memory` already holds them.

        Returns:
            The new state, the memory (priorities may have changed), and scalars by documented name. A metric
            that does not apply this time is NaN and is left out of averages.
        """
        ...


def config_type(algorithm: type[Algorithm]) -> type[Config]:
    """Return the `Config` defined in the algorithm's own module."""
    cls: type[Config] = sys.modules[algorithm.__module__].Config
    return cls


def counted(count: Array, more: Array) -> Array:
    """Add to a counter, uint32 `[]`; beyond it continues from 2^31: schedules end, multiples still come."""
    total = count + more
    return jnp.where(total < count, total | jnp.uint32(1 << 31), total)


def count_valid(block: Rollout) -> tuple[Array, Array]:
    """Return environment steps and finished episodes of a block."""
    ended = block.valid & (block.terminated | block.truncated)
    return jnp.sum(block.valid, dtype=jnp.uint32), jnp.sum(ended, dtype=jnp.uint32)


def fold(key: Key, *path: Any) -> Key:
    """Derive a key: `fold(key, a, b)` is a pure function of the key and the numbers."""
    for step in path:
        key = jax.random.fold_in(key, step)
    return key
