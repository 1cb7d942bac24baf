"""Random actions: a reference for comparisons, and a way to try an environment.

Choices are uniform over the values that masks allow, bools are True half of the time, floats uniform between
their bounds. A float without bounds is standard normal; one with a single bound lies beyond it by an
exponentially distributed distance of mean 1. Independent and deterministic calls are random too.

Deviations: none. Nothing is learned.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from operant.agents.base.protocol import Counters, fold
from operant.agents.options.random_options import RandomConfig as Config
from operant.agents.parts.untrained import RandomPolicy, State
from operant.spec.spaces import Leaf, Spaces, masks_of
from operant.types import Action, Array, Arrays, Key, Metrics, Rollout, Tree


def draw(key: Key, leaf: Leaf, n: int) -> Array:
    """Return the randomness of `n` actions: for choices a number per value, for floats one in bounds."""
    if leaf.type != "float":
        return jax.random.uniform(key, (n, *leaf.shape, leaf.num_values or 2), jnp.float32)
    shape = (n, *leaf.shape)
    low, high = (np.broadcast_to(np.isfinite(bound), shape) for bound in (leaf.low, leaf.high))
    inside = jax.random.uniform(fold(key, 0), shape, jnp.float32)
    beyond = jax.random.exponential(fold(key, 1), shape, jnp.float32)
    anywhere = jax.random.normal(fold(key, 2), shape, jnp.float32)
    return jnp.where(low & high, inside, jnp.where(low | high, beyond, anywhere))


def scaled(leaf: Leaf, drawn: Array) -> Array:
    """Return floats of a component from what `draw` returned."""
    low, high = (np.broadcast_to(bound, drawn.shape).astype(np.float64) for bound in (leaf.low, leaf.high))
    bounded = np.isfinite(low) & np.isfinite(high)
    start = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high, 0.0))
    width = np.where(bounded, np.where(bounded, high, 0.0) - np.where(bounded, low, 0.0), 1.0)
    sign = np.where(np.isfinite(high) & ~np.isfinite(low), -1.0, 1.0)
    return jnp.asarray(start, jnp.float32) + jnp.asarray(sign * width, jnp.float32) * drawn


@dataclasses.dataclass(frozen=True, eq=False)
class Random(RandomPolicy):
    """Random actions of any kind, masked ones included."""

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> Random:
        """Nothing is built."""
        return cls(config, spaces, actors)

    def noise(self, key: Key, n: int) -> Tree:
        """Return the numbers that actions are made from."""
        leaves = self.spaces.actions.components
        keys = jax.random.split(key, len(leaves))
        return {name: draw(k, leaf, n) for k, (name, leaf) in zip(keys, leaves.items(), strict=True)}

    def act(self, acting: Tree, observation: Arrays, carry: Tree, noise: Tree, explore: bool) -> Action:
        """Turn the noise into actions, whether exploring or not."""
        masks = masks_of(observation)
        action: Arrays = {}
        for name, leaf in self.spaces.actions.components.items():
            drawn, mask = noise[name], masks.get(name)
            if leaf.type == "float":
                chosen = scaled(leaf, drawn)
            else:
                chosen = jnp.argmax(drawn if mask is None else jnp.where(mask, drawn, -1.0), axis=-1)
            action[name] = chosen.astype(leaf.storage)
        return Action(action, (), carry)

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Nothing is learned."""
        return state, memory, {}
