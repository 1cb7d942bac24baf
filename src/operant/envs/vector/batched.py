"""Environments that are vectors by nature: Gymnasium's vectorised forms, JAX-native ones, a vector of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import vdot

from operant.envs.environment import SpacesEnv
from operant.envs.gymnasium.adapter import MISFIT
from operant.envs.validation_errors import (
    ObservationValidator,
    brief,
    close,
    finite_error,
    flag_error,
)
from operant.envs.vector.base import Flat, InfoCollector, VectorEnv, VectorStep, seed_of
from operant.errors import EnvError, SpaceError, told, whole
from operant.spec.spaces import Codec, from_gymnasium

if TYPE_CHECKING:
    from operant.envs.native.native_vector import NativeVector

_BOOL, _FLOAT = np.dtype(np.bool_), np.dtype(np.float64)


class GymnasiumVector(VectorEnv):
    """A Gymnasium vector with next-step autoreset, which enforces the time limit `limit`.

    Args:
        limit: the time limit that it enforces.
        copy: whether the vector may write again to arrays that it has returned, which are then copied.
        frames: how many frames image observations hold in their last axis; None: they are not stacks.
        info_keywords: names in `info` whose values at the end of episodes are recorded.
    """

    mode = "native-vector"

    def __init__(
        self,
        vector: Any,
        name: str,
        limit: int | None = None,
        *,
        copy: bool = False,
        frames: int | None = None,
        info_keywords: Sequence[str] = (),
    ) -> None:
        self._vector = vector
        self.num_envs = vector.num_envs
        self.name = name
        self.max_episode_timesteps = limit
        self.spaces, self._codec = from_gymnasium(
            vector.single_observation_space, vector.single_action_space, frames=frames
        )
        self._encode, self._decode = self._codec.observation.encode, self._codec.action.decode
        self._validator = ObservationValidator(self.spaces)
        self._copy = copy
        self._infos = InfoCollector(info_keywords, self.num_envs)

    @property
    def codec(self) -> Codec:
        """That of one environment."""
        return self._codec

    def reset(self, seed: int | None = None) -> Flat:
        """Begin an episode everywhere."""
        self._check_reset(seed)
        observation, _ = self._called("reset", seed=None if seed is None else seed_of(seed, 0))
        self._is_reset, self._ended = True, np.zeros(self.num_envs, np.bool_)
        return self._read(observation, "reset")

    def step(self, actions: Mapping[str, np.ndarray]) -> VectorStep:
        """Take one action everywhere."""
        if not (self._is_open and self._is_reset):
            raise self._unusable()
        observation, reward, terminated, truncated, info = self._called("step", self._decode(actions, True))
        if not getattr(terminated, "dtype", None) is getattr(truncated, "dtype", None) is _BOOL:
            terminated, truncated = self._flags("terminated", terminated), self._flags("truncated", truncated)
        if getattr(reward, "dtype", None) is not _FLOAT and np.asarray(reward).dtype.kind not in "fiu":
            raise EnvError(f"The reward of {self.name!r} must be numbers. Received: {brief(reward)}.")
        reward = np.array(reward, np.float32) if self._copy else np.asarray(reward, np.float32)
        if self._copy:
            terminated, truncated = terminated.copy(), truncated.copy()
        if self._ended.any():  # a wrapper may have written to these rows
            goes_on = ~self._ended
            reward = np.where(goes_on, reward, np.float32(0))
            terminated, truncated = terminated & goes_on, truncated & goes_on
        self._ended = terminated | truncated
        flat = self._read(observation, "step", (terminated, truncated))
        if not isfinite(vdot(reward, reward)):
            self._raise_first(finite_error("reward", reward))
        self.infos = self._read_infos(info)
        return VectorStep(flat, reward, terminated, truncated)

    def _flags(self, name: str, flags: Any) -> np.ndarray:
        """Return flags as bools, also those that are 0 and 1."""
        for i, flag in enumerate(np.asarray(flags).tolist()):
            if error := flag_error(name, flag):
                self._raise_first((i, error))
        return np.asarray(flags, np.bool_)

    def _called(self, name: str, *arguments: Any, **named: Any) -> Any:
        try:
            return getattr(self._vector, name)(*arguments, **named)
        except Exception as error:
            raise EnvError(f"The vector of {self.name!r} {told(error, f'in {name}')}") from error

    def _read_infos(self, info: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Flat:
        """Return the values to record of the environments whose episodes ended.

        A vector's info has arrays, and masks under `_name`; that of `DictInfoToList` is a list of dicts.
        """
        values = self._infos.blank()
        for i in np.flatnonzero(self._ended).tolist() if values else ():
            try:
                self._infos.note(values, i, self._info_of(info, i) if isinstance(info, Mapping) else info[i])
            except EnvError as error:
                self._raise_first((i, str(error)))
        return values

    def _info_of(self, info: Mapping[str, Any], i: int) -> dict[str, Any]:
        return {
            name: self._info_of(values, i) if isinstance(values, Mapping) else values[i]
            for name, values in info.items()
            if not name.startswith("_")
            and (isinstance(values, Mapping) or np.ndim(values))
            and info.get(f"_{name}", self._ended)[i]
        }

    def close(self) -> None:
        """Close the environments."""
        if self._is_open:
            self._is_open = False
            close(self._vector)

    def _read(self, observation: Any, call: str, ended: tuple[Any, ...] = ()) -> Flat:
        try:
            flat = self._encode(observation, True)
        except SpaceError as error:
            raise EnvError(f"The vector of {self.name!r} in {call}: {error} {MISFIT}") from None
        if self._copy:
            flat = {key: np.array(value) for key, value in flat.items()}
        self._raise_first(self._validator.error(flat, ended))
        return flat


def from_native(env: Any, num_envs: int, name: str, limit: int | None = None) -> NativeVector:
    """Run a JAX-native environment as a vector on the host, under its own time limit or a smaller one."""
    from operant.envs.native.native_vector import NativeVector
    from operant.envs.native.validate import accepted

    return NativeVector(accepted(env, name, limit), num_envs, name)


class NativeEnvironment(SpacesEnv):
    """A JAX-native environment as `Environment`: one episode, or `num_parallel` side by side.

    Args:
        vector: the environment, any number of times: every `reset` sets how many run.
    """

    def __init__(self, vector: NativeVector) -> None:
        self.vector = vector
        self.spaces = vector.spaces
        self._acting: np.ndarray | None = None
        """Indices of the episodes that go on, side by side; None: there is one."""
        self._ended = False

    def max_episode_timesteps(self) -> int | None:
        """Return the vector's time limit."""
        return self.vector.max_episode_timesteps

    def is_vectorizable(self) -> bool:
        """Tell that `reset` takes `num_parallel`."""
        return True

    def reset(self, num_parallel: int | None = None, seed: int | None = None) -> Any:
        """Begin an episode, or `num_parallel` of them."""
        count = 1 if num_parallel is None else whole("num_parallel", num_parallel)
        goes_on = self._acting is None and num_parallel is None and self._ended and seed is None
        if goes_on:  # the next step resets, whatever the action
            observation = self._step(None).observation
        else:
            if count != self.vector.num_envs:
                self.vector = self.vector.of_size(count)
            observation = self.vector.reset(seed)
        self._ended = False
        self._acting = None if num_parallel is None else np.arange(count)
        if self._acting is None:
            return self._row(observation, 0)
        return self._acting, self._row(observation, self._acting)

    def execute(self, actions: Any) -> tuple[Any, ...]:
        """Take actions; a truncation is terminal 2.

        Of episodes side by side only those that go on act. As all began together, a time limit cuts all that
        are left: then the states are the last ones of those that acted, and otherwise of those that go on.
        """
        acting = self._acting
        shape = () if acting is None else acting.shape
        step = self._step(self.spaces.actions.clip(self.spaces.actions.check(actions, shape, values=False)))
        terminals = np.where(step.terminated, 1, np.where(step.truncated, 2, 0))
        if acting is None:
            self._ended = bool(terminals[0])
            return self._row(step.observation, 0), int(terminals[0]), float(step.reward[0])
        terminals, left = terminals[acting], acting[terminals[acting] == 0]
        self._acting = left
        states = self._row(step.observation, left if len(left) else acting)
        return left, states, terminals, step.reward[acting]

    def close(self) -> None:
        """Close the vector."""
        self.vector.close()

    def _step(self, actions: Flat | None) -> VectorStep:
        """Step all: with actions for those that act, and any for those whose episode is over."""
        every = {
            name: np.zeros((self.vector.num_envs, *leaf.shape), leaf.storage)
            for name, leaf in self.spaces.actions.components.items()
        }
        for name, value in (actions or {}).items():
            every[name][... if self._acting is None else self._acting] = value
        return self.vector.step(every)

    def _row(self, observation: Flat, index: Any) -> Any:
        return self.spaces.unflatten({name: value[index] for name, value in observation.items()})
