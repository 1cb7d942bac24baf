"""Worker processes, seen from the process that starts them.

Workers are fresh interpreters: they are not forks of this process and do not import the user's main module
(unless an environment is defined there), so they load neither JAX nor Keras. Messages in both directions are
single bytes, followed by plain data at most; arrays are in memory that both sides map.
"""

from __future__ import annotations

import ast
import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from operant.envs.env_spec import HERE
from operant.envs.validation_errors import CLOSE_SECONDS
from operant.envs.workers.restarts import LostError
from operant.envs.workers.shared_arrays import CLOSE, FAULT, OK
from operant.errors import (
    EnvError,
    OperantError,
    SpaceError,
    SpecError,
    UsageError,
)

START_SECONDS = 120.0
"""The least time that a worker is given to start and to make its environments."""
_MESSAGE_SECONDS = 5
"""How long the rest of a message may take once its beginning has arrived."""
_MOST_MILLISECONDS = 2**31 - 1
"""The longest timeout that the system's `poll` takes, 24 days."""
_MOST_BYTES = 1 << 24
"""The longest message from a worker: descriptions of spaces and tracebacks. Anything longer is garbage."""
_ERRORS: dict[str, type[OperantError]] = {
    error.__name__: error for error in (SpecError, SpaceError, UsageError)
}
SECRET = ("OPERANT_TOKEN",)
"""Environment variables that are not passed on to workers."""


class Worker:
    """One worker process, seen from its parent; `index` is for messages, `descriptor` of the shared memory.

    `begin` says what it is to do, as plain data: its `task`, the `sources` of its environments (see
    `EnvSpec.literal`), and what the task needs besides; see `worker`.
    """

    def __init__(self, index: int, begin: Mapping[str, Any], descriptor: int) -> None:
        self.index = index
        # As multiprocessing does: modules that read the command line when imported must find the user's.
        argv = [str(word) for word in sys.argv]
        self._begin = repr({"argv": argv, "main": _main_program(begin["sources"]), **begin}).encode()
        self._descriptor = descriptor
        self.process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._poll: select.poll | None = None

    def start(self) -> None:
        """Start the process and tell it what to make; UsageError: a worker runs the user's script again."""
        if _in_rerun():
            raise UsageError(
                "The program starts worker processes whenever it is run, and they run it once more, to find "
                "the class of the environment "
                'that it defines. Put what it does behind `if __name__ == "__main__":`, or define the '
                "environment in a module."
            )
        self._connection, theirs = Pipe()
        _bound(self._connection)
        self._poll = select.poll()  # many times faster than the connection's own
        self._poll.register(self._connection, select.POLLIN)
        descriptors = (theirs.fileno(), self._descriptor)
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        # One thread per worker: workers whose libraries each use all processors would only slow one another
        # down.
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        # An environment that computes with JAX takes of a GPU's memory what it needs, not JAX's three
        # quarters of it.
        memory = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        inherited = {name: value for name, value in os.environ.items() if name not in SECRET}
        code = (
            "import sys; from operant.envs.workers.worker import work; work(int(sys.argv[1]), "
            "int(sys.argv[2]))"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, *map(str, descriptors)],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            env={**threads, **memory, **inherited, "PYTHONPATH": path},
            process_group=0,  # so that what an environment starts can be ended with it
        )
        theirs.close()
        self.send(self._begin)

    def introduction(self, seconds: float) -> Any:
        """Return what a worker that was just started tells of its environments."""
        try:
            return self.receive(time.monotonic() + seconds, seconds)
        except LostError as lost:
            raise LostError(f"{lost} while it started") from None

    def share(self, n: int) -> None:
        """Let the worker map the memory, of `n` rows; its parent has given it its size."""
        self.send(repr(n).encode())

    def send(self, message: bytes) -> None:
        """Send a message. If the worker is gone, this shows when its answer is awaited."""
        assert self._connection is not None
        with contextlib.suppress(OSError):
            self._connection.send_bytes(message)

    def poll(self, seconds: float) -> bool:
        """Tell whether `receive` would return at once, or find the worker dead, within at most `seconds`."""
        assert self._poll is not None
        return bool(self._poll.poll(milliseconds(seconds)))

    def receive(self, deadline: float, seconds: float) -> Any:
        """Wait for an answer until `deadline` (`time.monotonic`) and return it; `seconds` is for messages.

        Raises:
            LostError: the worker died, did not answer in time, or answered garbage.
            OperantError: the worker answered with an error.
        """
        assert self._connection is not None and self.process is not None
        if not self.poll(deadline - time.monotonic()):
            raise LostError(f"did not answer within {seconds:g} s")
        try:
            message = self._connection.recv_bytes(_MOST_BYTES)
        except (EOFError, ConnectionError):
            code = self._end()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise LostError(how) from None
        except OSError:  # an absurd length, or a message that stops half-way
            raise LostError("sent an invalid message") from None
        try:
            if message[:1] not in (OK, FAULT):
                raise ValueError
            content: Any = ast.literal_eval(message[1:].decode()) if len(message) > 1 else None
            if message[:1] == OK:
                return content
            error = error_named(content["type"])(str(content["text"]))
            error.add_note(f"Worker {self.index}, {content['traceback']}")  # shown where a traceback is
        except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
            raise LostError("sent an invalid message") from None
        raise error

    def kill(self) -> None:
        """End the process, and what its environments started."""
        self._end()
        if self._connection is not None:
            self._connection.close()

    def _end(self) -> int:
        return 0 if self.process is None else killed(self.process)


def killed(process: subprocess.Popen[bytes]) -> int:
    """Kill a process that leads a group, and what it started; return its exit code."""
    if process.returncode is None:  # not waited for, so that no other group has its number yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def milliseconds(seconds: float) -> float | None:
    """Return a time as `poll` takes it: None, no limit, if it is longer than the system allows."""
    left = max(0.0, seconds) * 1000
    return left if left <= _MOST_MILLISECONDS else None


def error_named(name: str) -> type[OperantError]:
    """Return the class of an error that the other side names: one of operant's, else `EnvError`."""
    return _ERRORS.get(name, EnvError)


def end(workers: Sequence[Worker], descriptor: int) -> None:
    """Close the environments of workers, end the processes, and free their memory."""
    for worker in workers:
        if worker.process is not None:
            worker.send(CLOSE)
    deadline, late = time.monotonic() + CLOSE_SECONDS, []
    for worker in workers:
        if worker.process is not None:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                late.append(worker.index)
        worker.kill()
    os.close(descriptor)
    for index in late:
        text = f"Worker {index} did not end within {CLOSE_SECONDS:g} s of close, and was killed."
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def memory_file() -> int:
    """Return the descriptor of a file without a name, in memory if the system can do that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("operant")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _main_program(literals: Sequence[str]) -> tuple[str, str] | None:
    """Return `module` (`python -m`) or `path` of the user's program if workers must run it."""
    if not any("__main__:" in literal for literal in literals):
        return None
    main = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if file is None:
        raise SpecError(
            "An environment class of an interactive session cannot be sent to worker processes. Define it in "
            f"a module, or run it in this process: {HERE}."
        )
    if spec is not None and spec.name != "__main__":
        return "module", spec.name
    return "path", os.path.abspath(file)


def _in_rerun() -> bool:
    """Tell whether a worker, operant's or multiprocessing's, is running the user's script."""
    module = sys.modules.get("__mp_main__")
    return module is not None and module.__name__ == "__mp_main__" and module is not sys.modules["__main__"]


def _bound(connection: Connection) -> None:
    """Give the reading of a message a time limit: a worker may write half of one and hang."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end_of_pipe:
        end_of_pipe.setblocking(True)  # whatever the program's default for sockets is
        end_of_pipe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _MESSAGE_SECONDS, 0))
