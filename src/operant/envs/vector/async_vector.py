"""Environments in worker processes, which pass observations and actions through shared memory.

A worker runs the loop of `sync_vector` over its share of the environments.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from operant.envs.env_spec import EnvSpec
from operant.envs.vector.base import AbandonedError, Flat, VectorEnv, VectorStep, refuse_different, seed_of
from operant.envs.vector.sync_vector import make_sub_env
from operant.envs.workers.process import START_SECONDS, Worker, end, memory_file
from operant.envs.workers.restarts import LostError, RestartPolicy
from operant.envs.workers.shared_arrays import RESET, RESTART, STEP, SharedArrays
from operant.errors import EnvError, OperantError
from operant.spec.runtime import processors
from operant.spec.spaces import Codec, Spaces

_REMEDY = (
    "Mend the environment, or raise timeout_seconds or max_restarts of operant.envs.vector.create.create, "
    "whose vectors algorithm classes take."
)


class _VectorWorker(Worker):
    def __init__(
        self, index: int, rows: slice, begin: Mapping[str, Any], descriptor: int, max_restarts: int
    ) -> None:
        super().__init__(index, begin, descriptor)
        self.rows = rows
        self.name = f"Worker {index} of {begin['name']!r} (environment" + (
            f" {rows.start})" if rows.stop - rows.start == 1 else f"s {rows.start} to {rows.stop - 1})"
        )
        self.policy = RestartPolicy(max_restarts, _REMEDY)
        self.unproven = np.zeros(rows.stop - rows.start, np.bool_)
        """Which of its environments have come to the end of no episode since it was last replaced."""
        self.lost: LostError | None = None
        """Why it was lost, until it is replaced."""
        self.interrupted = False
        """Whether it was lost through no fault of its environments."""

    def lose(self, lost: LostError) -> None:
        """Kill the process: a late answer would be taken for that to the next message."""
        self.lost = lost
        self.kill()


class AsyncVectorEnv(VectorEnv):
    """Environments in worker processes; for the arguments see `vector.create`.

    A worker that dies or does not answer in time is replaced: the episodes of its environments end as
    truncated, with the last observation known; `restarts` counts it.
    """

    mode = "processes"

    def __init__(
        self,
        sources: Sequence[EnvSpec],
        num_workers: int | None,
        timeout_seconds: float,
        max_restarts: int,
        info_keywords: Sequence[str] = (),
    ) -> None:
        literals = [source.literal() for source in sources]
        self.num_envs = n = len(sources)
        self.name = sources[0].name
        self._source = sources[0]
        self._timeout = timeout_seconds
        self._start_seconds = max(timeout_seconds, START_SECONDS)
        self._seed: int | None = None
        self._ended = np.zeros(n, np.bool_)
        self._last: Flat = {}
        count = min(n, num_workers or processors())
        edges = [n * i // count for i in range(count + 1)]
        descriptor = memory_file()
        self._workers: list[_VectorWorker] = []
        self._finalizer = weakref.finalize(self, end, self._workers, descriptor)
        try:
            for i, (low, high) in enumerate(itertools.pairwise(edges)):
                begin = {
                    "task": "vector",
                    "sources": literals[low:high],
                    "name": self.name,
                    "offset": low,
                    "info_keywords": tuple(info_keywords),
                }
                self._workers.append(_VectorWorker(i, slice(low, high), begin, descriptor, max_restarts))
            for worker in self._workers:
                worker.start()
            self._meet(descriptor, info_keywords)
        except BaseException:
            self.close()
            raise

    def _meet(self, descriptor: int, info_keywords: Sequence[str]) -> None:
        specs, limits, preprocessed, lives = zip(*map(self._introduction, self._workers), strict=True)
        each = [Spaces.from_spec(spec) for spec in specs]
        refuse_different(each, [f"Worker {i}" for i in range(len(each))])
        self.spaces = each[0]
        self.preprocessed, self.has_lives = all(preprocessed), any(lives)
        self.max_episode_timesteps = None if None in limits else max(limits)
        self._memory = SharedArrays(self.spaces, self.num_envs, descriptor, info_keywords, create=True)
        for worker in self._workers:
            worker.share(self.num_envs)

    def _introduction(self, worker: _VectorWorker) -> Any:
        try:
            return worker.introduction(self._start_seconds)
        except LostError as lost:
            raise EnvError(f"Worker {worker.index} of {self.name!r} {lost}.") from None

    @functools.cached_property
    def codec(self) -> Codec | None:
        """The codec of one more environment, made for this: those in the workers cannot be asked."""
        with contextlib.closing(make_sub_env(self._source)) as env:
            return env.codec

    def reset(self, seed: int | None = None) -> Flat:
        """Begin an episode everywhere."""
        self._check_reset(seed)
        self._seed = seed
        for worker in self._workers:
            if worker.lost is not None:  # in a call that failed or was interrupted
                self._replace(worker, worker.lost)
        message = RESET + repr(None if seed is None else int(seed)).encode()
        for worker, lost in self._call(message, self._workers):
            self._replace(worker, lost)
            self._restart(worker, list(range(worker.rows.stop - worker.rows.start)))
        self._is_reset, self.lost = True, None
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._last = {name: array.copy() for name, array in self._memory.observation.items()}
        return dict(self._last)

    def step(self, actions: Mapping[str, np.ndarray]) -> VectorStep:
        """Take one action everywhere."""
        if not (self._is_open and self._is_reset):
            raise self._unusable()
        memory = self._memory
        for name, array in memory.action.items():
            array[...] = actions[name]
        losses = self._call(STEP, self._workers)
        unanswered = np.zeros(self.num_envs, np.bool_) if losses else None
        for worker, lost in losses:
            self._replace(worker, lost)
            self._restart(worker, np.flatnonzero(self._ended[worker.rows]).tolist())
            self._cut(worker.rows, unanswered)
        observation = {name: array.copy() for name, array in memory.observation.items()}
        terminal = memory.fields["terminal"]
        step = VectorStep(
            observation, memory.fields["reward"].astype(np.float32), terminal == 1, terminal == 2
        )
        self.lost = unanswered
        self.infos = {key: values.copy() for key, values in memory.infos.items()}
        self._ended, self._last = terminal != 0, observation
        if self.restarts and not losses:
            for worker in self._workers:
                worker.unproven &= ~self._ended[worker.rows]
                if not worker.unproven.any():
                    worker.policy.forgive()
        return step._replace(observation=dict(observation))

    def _cut(self, rows: slice, unanswered: Any) -> None:
        """Write truncation at the last observation where a lost worker owes an answer.

        Where the action was to be ignored, the observation is that of the replacement's reset.
        """
        unanswered[rows] = cut = ~self._ended[rows]
        memory = self._memory
        memory.fields["reward"][rows], memory.fields["terminal"][rows] = 0.0, 2 * cut
        for values in memory.infos.values():
            values[rows] = math.nan
        for name, array in memory.observation.items():
            array[rows][cut] = self._last[name][rows][cut]

    def _call(
        self, message: bytes, workers: Sequence[_VectorWorker]
    ) -> list[tuple[_VectorWorker, LostError]]:
        error: OperantError | None = None
        waiting = list(workers)
        try:
            for worker in workers:
                worker.send(message)
            deadline = time.monotonic() + self._timeout
            for worker in workers:
                try:
                    if worker.lost is None:
                        self._await(worker, deadline)
                        worker.receive(deadline, self._timeout)
                except LostError as lost:
                    worker.lose(lost)
                except OperantError as fault:
                    error = error or fault
                waiting.remove(worker)
        except BaseException:  # Ctrl-C
            self._interrupt(waiting)
            raise
        if error is not None:
            raise error
        return [(worker, worker.lost) for worker in workers if worker.lost is not None]

    def _await(self, worker: _VectorWorker, deadline: float) -> None:
        """Wait for an answer, in pieces, as the end of the run may be asked for meanwhile."""
        while not worker.poll(min(1.0, left := deadline - time.monotonic())) and left > 1.0:
            if time.perf_counter() >= self.deadline:
                raise AbandonedError

    def _interrupt(self, workers: Sequence[_VectorWorker]) -> None:
        """End workers whose answers nobody awaits any more; `reset` replaces them."""
        self._is_reset = False
        for worker in workers:
            worker.lose(LostError("was interrupted"))
            worker.interrupted = True

    def _replace(self, worker: _VectorWorker, lost: LostError) -> None:
        """Replace a worker, again and again if its replacement is lost, too; too many times is an error."""
        worker.lose(lost)
        while worker.lost is not None:
            if not worker.interrupted:
                worker.policy.spend(worker.name, worker.lost)
            worker.unproven[:] = True
            self.restarts += 1
            try:
                worker.start()
                worker.introduction(self._start_seconds)
                worker.share(self.num_envs)
                worker.lost, worker.interrupted = None, False
            except LostError as again:
                worker.lose(again)
                worker.interrupted = False
            except BaseException:
                self._interrupt([worker])
                raise

    def _restart(self, worker: _VectorWorker, due: list[int]) -> None:
        """Begin episodes in a new worker: in the environments in `due` with this row, else with the next."""
        seed = None if self._seed is None else seed_of(self._seed, self.num_envs + self.restarts)
        while losses := self._call(RESTART + repr((seed, due)).encode(), [worker]):
            self._replace(worker, losses[0][1])

    def close(self) -> None:
        """Close the environments and end the workers."""
        self._is_open = False
        self._finalizer()
