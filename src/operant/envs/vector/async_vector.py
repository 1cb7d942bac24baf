"""Environments in worker processes, which pass observations and actions through shared memory.

A worker runs the loop of `inprocess` over its share of the environments; `spawn` starts it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from operant.envs.env_spec import EnvSpec
from operant.envs.vector.base import Check, Flat, VectorEnv, VectorStep, seed_of
from operant.envs.vector.spawn import START_SECONDS, LostError, Worker, end, main_program, memory_file, times
from operant.envs.vector.sync_vector import make_cell
from operant.envs.vector.worker import RESET, RESTART, STEP, SharedArrays, vector_fields
from operant.errors import EnvironmentError, OperantError, UsageError
from operant.spec.runtime import processors
from operant.spec.spaces import Codec, Spaces

_log = logging.getLogger("operant")


class _Share(Worker):
    """A worker with its share of the environments."""

    def __init__(self, index: int, rows: slice, begin: Mapping[str, Any], descriptor: int) -> None:
        super().__init__(index, begin, descriptor)
        self.rows = rows
        self.replaced = 0
        """How often it was replaced until each of its environments has come to the end of an episode."""
        self.unproven = np.zeros(rows.stop - rows.start, np.bool_)
        """Which of its environments have not, since it was last replaced."""
        self.lost = ""
        """Why it was lost, until it is replaced; empty: it was not."""

    def start(self) -> None:
        """Start the process, for the first time or again."""
        super().start()
        self.lost = ""

    def lose(self, reason: str) -> None:
        """Kill the process: an answer that comes too late would be taken for the answer to the next
        message.
        """
        self.lost = reason
        self.kill()


class AsyncVectorEnv(VectorEnv):
    """Environments in worker processes.

    A worker that dies or does not answer in time is replaced: the episodes of its environments end as
    truncated, with the last observation known; `restarts` counts it.

    Args:
        sources: the environments.
        check: see `vector.create`.
        num_workers: processes; None: one per processor.
        timeout_seconds: how long a step of a worker's environments may take.
        max_restarts: how often a worker may be replaced without an episode of each of its environments ending
            in between.
        info_keywords: names in `info` whose values at the end of episodes are recorded.

    Raises:
        SpecError: an environment cannot be sent, or cannot be made.
        EnvironmentError: workers cannot be started.
    """

    mode = "processes"

    def __init__(
        self,
        sources: Sequence[EnvSpec],
        check: Check,
        num_workers: int | None,
        timeout_seconds: float,
        max_restarts: int,
        info_keywords: Sequence[str] = (),
    ) -> None:
        literals = [source.literal() for source in sources]
        self.num_envs = n = len(sources)
        self.name = sources[0].name
        self._source = sources[0]
        self._timeout, self._max_restarts = timeout_seconds, max_restarts
        self._keywords = tuple(info_keywords)
        self._seed: int | None = None
        self._ended = np.zeros(n, np.bool_)
        self._last: Flat = {}
        count = min(n, num_workers or processors())
        edges = [n * i // count for i in range(count + 1)]
        descriptor = memory_file()
        main = main_program(literals)
        self._workers: list[_Share] = []
        for i, (low, high) in enumerate(itertools.pairwise(edges)):
            begin = {
                "task": "operant.envs.vector.worker:VectorTask",
                "sources": literals[low:high],
                "name": self.name,
                "check": check,
                "offset": low,
                "info_keywords": self._keywords,
                "main": main,
            }
            self._workers.append(_Share(i, slice(low, high), begin, descriptor))
        self._finalizer = weakref.finalize(self, end, self._workers, descriptor)
        try:
            for worker in self._workers:
                worker.start()
            self._meet(descriptor)
        except BaseException:
            self.close()
            raise

    def _meet(self, descriptor: int) -> None:
        """Learn the spaces from the workers, and share memory for them."""
        answers = [self._introduced(worker) for worker in self._workers]
        for i, (spec, *_) in enumerate(answers):
            if spec != answers[0][0]:
                raise UsageError(
                    f"All environments of a vector must have the same spaces. Worker {i} has {spec}, worker "
                    "0 has "
                    f"{answers[0][0]}."
                )
        self.spaces = Spaces.from_spec(answers[0][0])
        limits = [limit for _, limit, _, _ in answers]
        self.preprocessed = all(preprocessed for *_, preprocessed, _ in answers)
        self.has_lives = any(has_lives for *_, has_lives in answers)
        self.max_episode_timesteps = None if None in limits else max(limits)
        fields = vector_fields(self._keywords)
        self._memory = SharedArrays(self.spaces, self.num_envs, descriptor, fields, create=True)
        for worker in self._workers:
            worker.send(repr(self.num_envs).encode())

    def _introduced(self, worker: _Share) -> Any:
        try:
            return self._begun(worker)
        except LostError as lost:
            raise EnvironmentError(f"Worker {worker.index} of {self.name!r} {lost}.") from None

    def _begun(self, worker: _Share) -> Any:
        """Return what a worker that was just started tells of its environments.

        Raises:
            LostError: it does not get that far.
        """
        seconds = max(self._timeout, START_SECONDS)
        try:
            return worker.receive(time.monotonic() + seconds, seconds)
        except LostError as lost:
            raise LostError(f"{lost} while it started") from None

    @functools.cached_property
    def codec(self) -> Codec | None:
        """The codec of one more environment, made for this: those in the workers cannot be asked."""
        with contextlib.closing(make_cell(self._source)) as cell:
            return cell.codec

    def reset(self, seed: int | None = None) -> Flat:
        """Begin an episode everywhere."""
        self._check_reset(seed)
        self._seed = seed
        for worker in self._workers:
            if worker.lost:  # in a call that failed or was interrupted
                self._replace(worker, worker.lost)
        message = RESET + repr(None if seed is None else int(seed)).encode()
        for worker, reason in self._call(message, self._workers):
            self._replace(worker, reason)
            self._ended[worker.rows] = False
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
        unanswered = np.zeros(self.num_envs, np.bool_)
        lost = self._call(STEP, self._workers)
        for worker, reason in lost:
            self._replace(worker, reason)
            self._restart(worker, np.flatnonzero(self._ended[worker.rows]).tolist())
            unanswered[worker.rows] = cut = ~self._ended[worker.rows]
            memory.fields["reward"][worker.rows], memory.fields["terminated"][worker.rows] = 0.0, False
            memory.fields["truncated"][worker.rows] = cut
            for key in self._keywords:
                memory.fields[f"info:{key}"][worker.rows] = math.nan
            for name, array in memory.observation.items():
                array[worker.rows][cut] = self._last[name][worker.rows][cut]
        observation = {name: array.copy() for name, array in memory.observation.items()}
        fields = memory.fields
        flags = (fields["terminated"].copy(), fields["truncated"].copy())
        step = VectorStep(observation, fields["reward"].copy(), *flags)
        self.lost = unanswered if lost else None
        self.infos = {key: fields[f"info:{key}"].copy() for key in self._keywords}
        self._ended, self._last = step.terminated | step.truncated, observation
        if self.restarts and not lost:
            for worker in self._workers:
                worker.unproven &= ~self._ended[worker.rows]
                if not worker.unproven.any():
                    worker.replaced = 0
        return step._replace(observation=dict(observation))

    def _call(self, message: bytes, workers: Sequence[_Share]) -> list[tuple[_Share, str]]:
        """Send a message to workers and wait for all; return those that are lost, and why."""
        error: OperantError | None = None
        waiting = list(workers)
        with self._ending(waiting):
            for worker in workers:
                worker.send(message)
            deadline = time.monotonic() + self._timeout
            for worker in workers:
                try:
                    if not worker.lost:
                        worker.receive(deadline, self._timeout)
                except LostError as reason:
                    worker.lose(str(reason))
                except OperantError as fault:
                    error = error or fault
                waiting.remove(worker)
        if error is not None:
            raise error
        return [(worker, worker.lost) for worker in workers if worker.lost]

    @contextlib.contextmanager
    def _ending(self, workers: Sequence[_Share]) -> Iterator[None]:
        """End workers if the block is interrupted; `reset` replaces them.

        Answers that nobody awaits would be taken for answers to the next call.
        """
        try:
            yield
        except (LostError, OperantError):
            raise
        except BaseException:  # Ctrl-C
            self._is_reset = False
            for worker in workers:
                worker.lose("was interrupted")
                worker.replaced -= 1  # not a fault of its environments
            raise

    def _replace(self, worker: _Share, reason: str) -> None:
        """Replace a worker, again and again if its replacement is lost, too; too many times is an error."""
        worker.lose(reason)
        rows = worker.rows
        which = (
            f"environment {rows.start}"
            if rows.stop - rows.start == 1
            else f"environments {rows.start} to {rows.stop - 1}"
        )
        if worker.replaced >= self._max_restarts:
            already = f", and it was replaced {times(worker.replaced)} already" if worker.replaced else ""
            raise EnvironmentError(
                f"Worker {worker.index} of {self.name!r} ({which}) {reason}{already}. "
                "Mend the environment, or raise timeout_seconds or max_restarts of "
                "operant.envs.vector.create.create, whose vectors algorithm classes take."
            )
        worker.replaced += 1
        worker.unproven[:] = True
        self.restarts += 1
        _log.warning("Worker %d of %r (%s) %s; it is replaced.", worker.index, self.name, which, reason)
        try:
            with self._ending([worker]):
                worker.start()
                self._begun(worker)
                worker.send(repr(self.num_envs).encode())
        except LostError as lost:
            self._replace(worker, str(lost))

    def _restart(self, worker: _Share, due: list[int]) -> None:
        """Begin episodes in a new worker: in the environments in `due` with this row, in others with the
        next.
        """
        seed = None if self._seed is None else seed_of(self._seed, self.num_envs + self.restarts)
        while lost := self._call(RESTART + repr((seed, due)).encode(), [worker]):
            self._replace(worker, lost[0][1])

    def close(self) -> None:
        """Close the environments and end the workers."""
        self._is_open = False
        self._finalizer()
