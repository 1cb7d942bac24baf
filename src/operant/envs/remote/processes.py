"""An environment in a process of its own, asked and answered through shared memory."""

from __future__ import annotations

import math
import time
import weakref
from typing import Any

import numpy as np

from operant.envs.env_spec import EnvSpec
from operant.envs.remote.connection import Answer, ConnectionLimits, EnvDescription, RestartingConnection
from operant.envs.vector.base import Flat
from operant.envs.workers.process import Worker, end, memory_file
from operant.envs.workers.restarts import LostError
from operant.envs.workers.shared_arrays import RESET, STEP, SharedArrays
from operant.errors import OperantError
from operant.spec.spaces import Spaces


class ProcessConnection(RestartingConnection):
    """An environment in a process of its own, without JAX and Keras. It starts at once; `meet` waits for it.

    For the arguments see `RestartingConnection`; SpecError: the environment cannot be sent.
    """

    def __init__(self, source: EnvSpec, index: int, limits: ConnectionLimits, blocking: bool = False) -> None:
        begin = {"task": "environment", "sources": [source.literal()]}
        super().__init__(index, limits, blocking)
        self.name = source.name
        self._descriptor = memory_file()
        self._worker = Worker(index, begin, self._descriptor)
        self._finalizer = weakref.finalize(self, end, [self._worker], self._descriptor)
        self._introduced = False
        try:
            self._worker.start()
        except BaseException:
            self.close()
            raise

    def _introduction(self) -> EnvDescription:
        seconds = max(self._limits.timeout_seconds, self._limits.start_seconds)
        self._described = self._worker.introduction(seconds)
        spec, limit, num_actors = self._described
        spaces = Spaces.from_spec(spec)
        self._memory = SharedArrays(spaces, num_actors, self._descriptor, create=True)
        self._worker.share(num_actors)
        self._introduced = True
        return EnvDescription(self.name, spaces, limit, num_actors)

    def _place(self) -> str:
        process = self._worker.process
        return "process" if process is None else f"process {process.pid}"

    def _open(self) -> None:
        try:
            self._worker.start()
        except OSError as error:
            raise LostError(f"could not be started: {error}") from None
        self._introduced = False
        self._worker.share(self.num_actors)

    def _drop(self) -> None:
        self._worker.kill()

    def _ask(self, request: int | Flat | None) -> None:
        if isinstance(request, dict):
            for name, array in self._memory.action.items():
                if self.num_actors > 1:
                    array[: len(request[name])] = request[name]
                else:
                    array[0] = request[name]
            self._worker.send(STEP)
        else:
            self._worker.send(RESET + repr(request).encode())

    def _arrived(self, seconds: float) -> bool:
        return self._worker.poll(seconds)

    def _read(self) -> tuple[Answer, float | None] | None:
        try:
            description = self._worker.receive(time.monotonic() + 1.0, 1.0)
        except OperantError as fault:
            raise LostError("\n".join((f"failed: {fault}", *getattr(fault, "__notes__", ())))) from None
        if self._introduced:
            return self._answered()
        if description != self._described:
            raise LostError("came back as another environment")
        self._introduced = True
        return None

    def _answered(self) -> tuple[Answer, float | None]:
        fields = self._memory.fields
        acted, running = int(fields["acted"][0]), int(fields["running"][0])
        episode_return, seconds = float(fields["return"][0]), float(fields["seconds"][0])
        if self.num_actors == 1:
            terminal: Any = int(fields["terminal"][0]) if acted else 0
            reward: Any = float(fields["reward"][0]) if acted else 0.0
            parallel, n = None, 1
        else:
            terminal = fields["terminal"][:acted].astype(np.int64) if acted else 0
            reward = fields["reward"][:acted].copy() if acted else 0.0
            parallel, n = fields["parallel"][:running].astype(np.int64), int(fields["observed"][0])
        flat: dict[str, Any] = {
            name: (array[0] if parallel is None else array[:n]).copy()
            for name, array in self._memory.observation.items()
        }
        states = self.spaces.unflatten(flat) if n else None
        answer = Answer(states, terminal, reward, parallel, seconds)
        return answer, None if math.isnan(episode_return) else episode_return

    def _finish(self) -> None:
        self._finalizer()
