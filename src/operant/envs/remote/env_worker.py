"""The worker's side of one environment in a process of its own."""

from __future__ import annotations

import ast
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from operant.envs.env_spec import EnvSpec
from operant.envs.environment import rows
from operant.envs.validation_errors import look
from operant.envs.vector.worker import STEP, SharedArrays
from operant.errors import EnvironmentError, SpaceError

FIELDS = {
    "terminal": np.uint8,
    "reward": np.float64,
    "parallel": np.int32,
    "acted": np.int32,
    "running": np.int32,
    "told": np.int32,
    "seconds": np.float64,
    "return": np.float64,
}
"""What it answers besides states, in rows of actors.

The last five are single numbers, in the first row: how many
actors acted, how many are still running, and for how many there are states; how long the environment
computed; the return that it reports itself, or NaN."""


class HostTask:
    """One environment, asked for episodes and steps. See `operant.envs.vector.worker.Task`."""

    def __init__(self, begin: Mapping[str, Any]) -> None:
        (literal,) = begin["sources"]
        self._env = EnvSpec.from_literal(literal).create()
        self._spaces, self._actors = self._env.spaces, self._env.num_actors()
        self._running = 0
        self.close = self._env.close
        self._is_flat = self._env.is_flat

    def describe(self) -> Any:
        """Return spaces, time limit and number of actors."""
        return self._spaces.to_spec(), self._env.max_episode_timesteps(), self._actors

    def share(self, n: int, descriptor: int) -> None:
        """Map the memory."""
        self._memory = SharedArrays(self._spaces, n, descriptor, FIELDS, create=False)

    def obey(self, message: bytes) -> None:
        """Begin an episode or take a step, and write the result to the memory."""
        if message == STEP and self._is_flat:
            self._step_flat()
            return
        fields = self._memory.fields
        acted: int = self._running if message == STEP else 0
        parallel: Any = ()
        if message == STEP:
            actions = self._actions()
            began = time.perf_counter()
            *rest, states, terminal, reward = self._env.execute(actions)
            fields["seconds"][0] = time.perf_counter() - began
            parallel = rest[0] if rest else (0,) if terminal == 0 else ()
            fields["terminal"][:acted], fields["reward"][:acted] = terminal, reward
        else:
            seed = ast.literal_eval(message[1:].decode())
            began = time.perf_counter()
            states = self._env.reset(seed=seed)
            fields["seconds"][0] = time.perf_counter() - began
            parallel, states = states if self._actors > 1 else ((0,), states)
        self._write(states, len(parallel))
        own = self._env.episode_return()
        fields["return"][0] = math.nan if own is None else own
        fields["acted"][0], fields["running"][0] = acted, len(parallel)
        fields["parallel"][: len(parallel)] = parallel
        self._running = len(parallel)

    def _step_flat(self) -> None:
        """Take a step of an environment that takes and returns components as stored: the usual case, and
        faster.
        """
        memory, fields = self._memory, self._memory.fields
        actions = {name: array[0] for name, array in memory.action.items()}
        began = time.perf_counter()
        states, terminal, reward = self._env.execute_flat(actions)
        fields["seconds"][0] = time.perf_counter() - began
        fields["terminal"][0], fields["reward"][0] = terminal, reward
        for name, array in memory.observation.items():
            array[0] = states[name]
        over = np.array([terminal != 0])
        if (fault := look(self._spaces, memory.observation, over)) is not None:
            raise self._misfit(fault[1])
        own = self._env.episode_return()
        fields["return"][0] = math.nan if own is None else own
        fields["acted"][0], self._running = 1, int(terminal == 0)
        fields["running"][0], fields["parallel"][0] = self._running, 0

    def _misfit(self, error: object) -> EnvironmentError:
        return EnvironmentError(f"{self._env.name!r} returned states that do not fit: {error}")

    def _actions(self) -> Any:
        if self._actors == 1:
            flat = {name: array[0].copy() for name, array in self._memory.action.items()}
        else:
            flat = {name: array[: self._running].copy() for name, array in self._memory.action.items()}
        return self._spaces.actions.unflatten(flat)

    def _write(self, states: Any, running: int) -> None:
        memory, single = self._memory, self._actors == 1
        told = 1 if single else rows(states)
        memory.fields["told"][0] = told
        if not told:
            return
        try:
            flat = self._spaces.observe(states, () if single else (told,), over=np.arange(told) >= running)
        except SpaceError as error:
            raise self._misfit(error) from None
        for name, array in memory.observation.items():
            array[:told] = flat[name]
