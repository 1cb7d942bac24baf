"""JAX-native environments as a vector stepped from the host; its numbers are those of `native_env.step`."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax
import numpy as np

from operant.envs.native import native_env
from operant.envs.native.native_env import NativeActors, NativeEnv, NativeStep
from operant.envs.validation_errors import ObservationValidator, finite_error
from operant.envs.vector.base import Flat, VectorEnv, VectorStep
from operant.errors import SpaceError, whole
from operant.spec.random_streams import Purpose
from operant.types import Key, Tree

_NEXT_RUN = 2
"""Address of the key of the next stream; `native_env` has the smaller ones."""


@functools.partial(jax.jit, static_argnums=(0, 2))
def _start(env: NativeEnv, key: Key, n: int) -> NativeActors:
    return native_env.start(env, key, n)


@functools.partial(jax.jit, static_argnums=0)
def _step(env: NativeEnv, actors: NativeActors, actions: Tree, key: Key) -> tuple[NativeActors, NativeStep]:
    return native_env.step(env, actors, actions, key)


class NativeVector(VectorEnv):
    """`num_envs` native environments as a vector on the host. Arrays that it returns are read-only views.

    The stream is that of the `key` (None: of seed 0) until `reset` is given a seed.
    """

    mode = "jax"
    why = "it is compiled by JAX"

    def __init__(self, env: NativeEnv, num_envs: int, name: str = "", key: Key | None = None) -> None:
        self.env = env
        self.num_envs = whole("num_envs", num_envs)
        self.spaces = env.spaces
        self.name = name
        self.max_episode_timesteps = env.max_episode_timesteps
        self._key = _key_of(0) if key is None else key
        self._actors: NativeActors | None = None
        self._validator = ObservationValidator(self.spaces)

    def reset(self, seed: int | None = None) -> Flat:
        """Begin new episodes everywhere and return the first observations, leaves `[N, ...]`.

        Args:
            seed: root of the stream, of any size. None begins the stream of the key given at construction,
                and at later calls a new one.
        """
        self._check_reset(seed)
        if seed is not None:
            self._key = _key_of(seed)
        elif self._actors is not None:
            self._key = jax.random.fold_in(self._key, _NEXT_RUN)
        self._actors = _start(self.env, self._key, self.num_envs)
        self._is_reset = True
        observation: Flat = jax.device_get(self._actors.observation)
        self._raise_first(self._validator.error(observation))
        return observation

    def step(self, actions: Mapping[str, np.ndarray]) -> VectorStep:
        """Take one action everywhere; environments whose last row ended an episode are reset instead."""
        if not (self._is_open and self._is_reset):
            raise self._unusable()
        chosen = self.spaces.actions.clip(self._checked(actions))
        self._actors, row = _step(self.env, self._actors, chosen, self._key)
        step = VectorStep(*jax.device_get(row))
        self._raise_first(
            finite_error("reward", step.reward)
            or self._validator.error(step.observation, (step.terminated, step.truncated))
        )
        return step

    def of_size(self, num_envs: int) -> NativeVector:
        """Return a vector of another size, whose streams begin with the key of the next one here."""
        key = self._key if self._actors is None else jax.random.fold_in(self._key, _NEXT_RUN)
        return NativeVector(self.env, num_envs, self.name, key)

    def close(self) -> None:
        """Forget the environments' states."""
        self._is_open = False
        self._actors = None

    def _checked(self, actions: Mapping[str, np.ndarray]) -> Flat:
        leaves = self.spaces.actions.components
        if set(actions) != set(leaves):
            raise SpaceError(
                f"actions must have the components {sorted(leaves)}. Received the components: "
                f"{sorted(actions)}."
            )
        arrays = {name: np.asarray(actions[name], leaf.storage) for name, leaf in leaves.items()}
        for name, array in arrays.items():
            shape = (self.num_envs, *leaves[name].shape)
            if array.shape != shape:
                raise SpaceError(
                    f"The action {name!r} of {self.num_envs} actors must have the shape {shape}. "
                    f"Received the shape: {array.shape}."
                )
        return arrays


def _key_of(seed: int) -> Key:
    """Return the key of the environments of a seed: as in a compiled run, apart from what an agent draws."""
    if seed < 2**31:
        return jax.random.fold_in(jax.random.key(seed), Purpose.ENV)
    high, low = (int(word) for word in np.random.SeedSequence(seed).generate_state(2))
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(low), high), Purpose.ENV)
