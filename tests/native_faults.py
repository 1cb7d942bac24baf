"""A JAX-native environment whose numbers are not always finite, for command lines to name."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from operant.envs.native.native_env import TimeStep
from operant.spec.spaces import Spaces


@dataclasses.dataclass(frozen=True)
class Breaks:
    """Counts its steps; from the `after`-th step of an episode on it gives a value that is not finite."""

    what: str = "reward"
    value: float = float("nan")
    after: int = 5
    max_episode_timesteps: int | None = 9

    @property
    def spaces(self):
        return Spaces.read(
            states={"count": {"shape": (2,)}, "place": {"type": "int", "num_values": 9}},
            actions={"type": "int", "num_values": 2},
        )

    def reset(self, key):
        begun = jnp.float32(self.value if self.what == "reset" else 0.0)
        return jnp.int32(0), self.observe(jnp.int32(0), begun)

    def step(self, state, action, key):
        bad = jnp.where(state + 1 >= self.after, jnp.float32(self.value), jnp.float32(0.0))
        count = bad if self.what == "state" else jnp.float32(0.0)
        reward = jnp.where(action["action"] < 2, jnp.float32(1.0), jnp.float32(0.0)) + (
            bad if self.what == "reward" else jnp.float32(0.0)
        )
        return state + 1, TimeStep(self.observe(state + 1, count), reward, jnp.bool_(False))

    def observe(self, state, count):
        return {"count": jnp.stack([count, state.astype(jnp.float32)]), "place": jnp.minimum(state, 8)}


@dataclasses.dataclass(frozen=True)
class Rare:
    """A random walk that rarely gives NaN: after a step, or at a reset."""

    what: str = "reward"
    max_episode_timesteps: int | None = 9

    broken: ClassVar[bool] = True
    """Whether it does; False repairs it."""

    @property
    def spaces(self):
        return Spaces.read(states={"shape": (2,)}, actions={"type": "int", "num_values": 2})

    def reset(self, key):
        walk, luck = jax.random.split(key)
        state = jax.random.normal(walk, (2,))
        return state, {"state": state + self.fault("reset", luck, 0.02)}

    def step(self, state, action, key):
        walk, luck = jax.random.split(key)
        state = state + jax.random.normal(walk, (2,)) + self.fault("state", luck, 0.01)
        reward = jnp.where(action["action"] == 1, state[0], -state[0]) + self.fault("reward", luck, 0.01)
        return state, TimeStep({"state": state}, reward, state[1] > jnp.float32(3.0))

    def fault(self, what, key, chance):
        if not self.broken or what != self.what:
            return jnp.float32(0.0)
        return jnp.where(jax.random.uniform(key) < jnp.float32(chance), jnp.float32("nan"), jnp.float32(0.0))
