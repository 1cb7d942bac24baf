"""A JAX-native environment whose numbers are not always finite, for command lines to name."""

import dataclasses

import jax.numpy as jnp

from operant.envs.native import Step
from operant.spaces import Spaces


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
        return state + 1, Step(self.observe(state + 1, count), reward, jnp.bool_(False))

    def observe(self, state, count):
        return {"count": jnp.stack([count, state.astype(jnp.float32)]), "place": jnp.minimum(state, 8)}
