"""Environments in worker processes, with shared memory for all that is passed.

A worker runs the loop of `inprocess` over its share of the environments. Messages are single bytes with at most some
plain numbers behind them; observations, actions, rewards and flags lie in memory that both sides map. Workers are
fresh interpreters: they neither fork this process nor import the user's main module (unless an environment is defined
there), so they load neither JAX nor Keras.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import logging
import os
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from operant.envs.source import Source
from operant.envs.vector import Check, Flat, Step, VectorEnv, processors, seed_of
from operant.envs.worker import CLOSE, OK, RESET, RESTART, STEP, Memory
from operant.errors import EnvironmentError, OperantError, SpaceError, SpecError, UsageError
from operant.spaces import Spaces

_START_SECONDS = 120.0
"""How long a worker may take to start and to make its environments, at least."""
_CLOSE_SECONDS = 5.0
"""How long workers may take to close their environments before they are killed."""
_ERRORS = {error.__name__: error for error in (SpecError, SpaceError, UsageError)}
_log = logging.getLogger("operant")


class _LostError(Exception):
    """A worker died or does not answer."""


class _Worker:
    """One worker process, seen from its parent."""

    def __init__(self, index: int, rows: slice, begin: str, descriptor: int) -> None:
        self.index = index
        self.rows = rows
        self._begin = begin.encode()
        self._descriptor = descriptor
        self.process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def start(self) -> None:
        """Start the process and tell it what to make."""
        self._connection, theirs = Pipe()
        descriptors = (theirs.fileno(), self._descriptor)
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        # One thread per worker: libraries that each take all processors would only hinder one another.
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        code = "import sys; from operant.envs.worker import work; work(int(sys.argv[1]), int(sys.argv[2]))"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, *map(str, descriptors)],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            env={**threads, **os.environ, "PYTHONPATH": path},
        )
        theirs.close()
        self.send(self._begin)

    def send(self, message: bytes) -> None:
        """Send a message; that the worker is gone shows when its answer is awaited."""
        assert self._connection is not None
        with contextlib.suppress(OSError):
            self._connection.send_bytes(message)

    def receive(self, deadline: float, seconds: float) -> Any:
        """Wait for an answer until `deadline` (`time.monotonic`) and return what it brings.

        Raises:
            _LostError: the worker died, or did not answer in time.
            OperantError: the worker answered with an error.
        """
        assert self._connection is not None and self.process is not None
        try:
            if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                raise _LostError(f"did not answer within {seconds:g} s")
            message = self._connection.recv_bytes()
        except (EOFError, OSError):
            self.process.kill()
            code = self.process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise _LostError(how) from None
        if message[:1] == OK:
            return ast.literal_eval(message[1:].decode()) if len(message) > 1 else None
        fault = ast.literal_eval(message[1:].decode())
        kind = _ERRORS.get(fault["type"], EnvironmentError)
        raise kind(f"{fault['text']}\nWorker {self.index}, {fault['traceback']}")

    def kill(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self._connection is not None:
            self._connection.close()


class Processes(VectorEnv):
    """Environments in worker processes.

    A worker that dies or does not answer in time is replaced: the episodes of its environments end as truncated, with
    the last observation known; `restarts` counts it.

    Args:
        sources: the environments.
        check: see `vector.create`.
        num_workers: processes; None: one per processor.
        timeout_seconds: how long a step of a worker's environments may take.
        max_restarts: how many workers may be replaced.

    Raises:
        SpecError: an environment cannot be sent, or not be made.
        EnvironmentError: workers cannot be started.
    """

    mode = "processes"

    def __init__(
        self,
        sources: Sequence[Source],
        check: Check,
        num_workers: int | None,
        timeout_seconds: float,
        max_restarts: int,
    ) -> None:
        literals = [source.literal() for source in sources]
        self.num_envs = n = len(sources)
        self.name = sources[0].name
        self._timeout, self._max_restarts = timeout_seconds, max_restarts
        self._seed: int | None = None
        self._ended = np.zeros(n, np.bool_)
        self._last: Flat = {}
        count = min(n, num_workers or processors())
        edges = [n * i // count for i in range(count + 1)]
        descriptor = _descriptor()
        main = _main_file() if any("__main__:" in literal for literal in literals) else None
        self._workers = []
        for i, (low, high) in enumerate(itertools.pairwise(edges)):
            begin = {
                "sources": literals[low:high],
                "name": self.name,
                "check": check,
                "offset": low,
                "main": main,
            }
            self._workers.append(_Worker(i, slice(low, high), repr(begin), descriptor))
        self._finalizer = weakref.finalize(self, _end, self._workers, descriptor)
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
        for i, (spec, _) in enumerate(answers):
            if spec != answers[0][0]:
                raise UsageError(
                    f"All environments of a vector must have the same spaces. Worker {i} has {spec}, worker 0 has "
                    f"{answers[0][0]}."
                )
        self.spaces = Spaces.from_spec(answers[0][0])
        limits = [limit for _, limit in answers]
        self.max_episode_timesteps = None if None in limits else max(limits)
        self._memory = Memory(self.spaces, self.num_envs, descriptor, create=True)
        for worker in self._workers:
            worker.send(repr(self.num_envs).encode())

    def _introduced(self, worker: _Worker) -> Any:
        seconds = max(self._timeout, _START_SECONDS)
        try:
            return worker.receive(time.monotonic() + seconds, seconds)
        except _LostError as lost:
            raise EnvironmentError(
                f"Worker {worker.index} of {self.name!r} {lost} while it started."
            ) from None

    def reset(self, seed: int | None = None) -> Flat:
        """Begin an episode everywhere."""
        self._check_reset(seed)
        self._seed = seed
        message = RESET + repr(None if seed is None else int(seed)).encode()
        for worker, reason in self._call(message, self._workers):
            self._replace(worker, reason)
            self._ended[worker.rows] = False
            self._restart(worker, list(range(worker.rows.stop - worker.rows.start)))
        self._is_reset = True
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._last = {name: array.copy() for name, array in self._memory.observation.items()}
        return dict(self._last)

    def step(self, actions: Mapping[str, np.ndarray]) -> Step:
        """Take one action everywhere."""
        if not (self._is_open and self._is_reset):
            raise self._unusable()
        memory = self._memory
        for name, array in memory.action.items():
            array[...] = actions[name]
        for worker, reason in self._call(STEP, self._workers):
            self._replace(worker, reason)
            self._restart(worker, np.flatnonzero(self._ended[worker.rows]).tolist())
            cut = ~self._ended[worker.rows]
            memory.reward[worker.rows], memory.terminated[worker.rows] = 0.0, False
            memory.truncated[worker.rows] = cut
            for name, array in memory.observation.items():
                array[worker.rows][cut] = self._last[name][worker.rows][cut]
        observation = {name: array.copy() for name, array in memory.observation.items()}
        step = Step(observation, memory.reward.copy(), memory.terminated.copy(), memory.truncated.copy())
        self._ended, self._last = step.terminated | step.truncated, observation
        return step._replace(observation=dict(observation))

    def _call(self, message: bytes, workers: Iterable[_Worker]) -> list[tuple[_Worker, str]]:
        """Send a message to workers and wait for all; return those that are lost, and how."""
        for worker in workers:
            worker.send(message)
        deadline = time.monotonic() + self._timeout
        lost: list[tuple[_Worker, str]] = []
        error: OperantError | None = None
        for worker in workers:
            try:
                worker.receive(deadline, self._timeout)
            except _LostError as reason:
                lost.append((worker, str(reason)))
            except OperantError as fault:
                error = error or fault
            except (
                BaseException
            ):  # Ctrl-C: answers that nobody awaits would be taken for those to the next call
                self.close()
                raise
        if error is not None:
            raise error
        return lost

    def _replace(self, worker: _Worker, reason: str) -> None:
        """Start a worker anew; too many times is an error."""
        rows = worker.rows
        which = (
            f"environment {rows.start}"
            if rows.stop - rows.start == 1
            else f"environments {rows.start} to {rows.stop - 1}"
        )
        if self.restarts >= self._max_restarts:
            raise EnvironmentError(
                f"Worker {worker.index} of {self.name!r} ({which}) {reason}, and {self.restarts} workers were replaced "
                f"already. Mend the environment, or raise timeout_seconds or max_restarts."
            )
        self.restarts += 1
        _log.warning("Worker %d of %r (%s) %s; it is replaced.", worker.index, self.name, which, reason)
        worker.kill()
        worker.start()
        self._introduced(worker)
        worker.send(repr(self.num_envs).encode())

    def _restart(self, worker: _Worker, due: list[int]) -> None:
        """Begin episodes in a new worker: in `due` with this row, elsewhere with the next."""
        seed = None if self._seed is None else seed_of(self._seed, self.num_envs + self.restarts)
        while lost := self._call(RESTART + repr((seed, due)).encode(), [worker]):
            self._replace(worker, lost[0][1])

    def close(self) -> None:
        """Close the environments and end the workers."""
        self._is_open = False
        self._finalizer()


def _end(workers: list[_Worker], descriptor: int) -> None:
    for worker in workers:
        if worker.process is not None:
            worker.send(CLOSE)
    deadline = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        if worker.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
        worker.kill()
    os.close(descriptor)


def _descriptor() -> int:
    """Return a file without a name, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("operant")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _main_file() -> str:
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        raise SpecError(
            "An environment class of an interactive session cannot be sent to worker processes. Define it in a module, "
            "or use mode='in-process'."
        )
    return os.path.abspath(file)
