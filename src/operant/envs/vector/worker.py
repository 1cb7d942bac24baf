"""What a worker process runs, on memory shared with its parent.

Either its share of a vector's environments, or one environment that answers requests (`remote.host`).
"""

from __future__ import annotations

import ast
import contextlib
import functools
import mmap
import os
import runpy
import select
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from operant.envs.env_spec import EnvSpec
from operant.envs.validation_errors import raise_of_handler
from operant.envs.vector.sync_vector import SyncVectorEnv, make_cell
from operant.errors import OperantError
from operant.spec import import_object
from operant.spec.spaces import Spaces

RESET, STEP, RESTART, CLOSE = b"r", b"s", b"n", b"c"
"""First byte of what a worker is told."""
OK, FAULT = b"k", b"e"
"""First byte of what it answers."""
VECTOR_FIELDS = {"reward": np.float32, "terminated": np.bool_, "truncated": np.bool_}
"""What a vector answers besides observations, `[N]` each."""


def vector_fields(info_keywords: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a vector; those of values of `info` are named `info:NAME`."""
    return {**VECTOR_FIELDS, **{f"info:{key}": np.float64 for key in info_keywords}}


_ORPHAN_SECONDS = 2.0
"""How long a worker whose parent died may go on computing before it is killed."""


class SharedArrays:
    """Arrays of `N` environments or actors in memory that processes share.

    Args:
        spaces: whose observations and actions are passed.
        n: rows.
        descriptor: of the file that both sides map.
        fields: what else is passed, as dtypes by name.
        create: whether to give the file its size.
    """

    def __init__(
        self, spaces: Spaces, n: int, descriptor: int, fields: Mapping[str, Any], *, create: bool
    ) -> None:
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            f"f:{name}": ((n,), dtype) for name, dtype in fields.items()
        }
        for group, leaves in (("o:", spaces.observation_components), ("a:", spaces.actions.components)):
            shapes |= {group + name: ((n, *leaf.shape), leaf.storage) for name, leaf in leaves.items()}
        offsets: dict[str, int] = {}
        size = 0
        for name, (shape, dtype) in shapes.items():
            offsets[name] = size
            size += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 64) * 64
        if create:
            os.ftruncate(descriptor, size)
        memory = mmap.mmap(descriptor, size)
        arrays = {name: np.ndarray(of[0], of[1], memory, offsets[name]) for name, of in shapes.items()}
        self.fields = {name[2:]: array for name, array in arrays.items() if name.startswith("f:")}
        self.observation = {name[2:]: array for name, array in arrays.items() if name.startswith("o:")}
        self.action = {name[2:]: array for name, array in arrays.items() if name.startswith("a:")}


class Task(Protocol):
    """What a worker does. It is made from the first message of the parent."""

    def describe(self) -> Any:
        """Return what the parent must know of the environments, as plain data."""

    def share(self, n: int, descriptor: int) -> None:
        """Map the memory, of `n` rows."""

    def obey(self, message: bytes) -> None:
        """Do what a message says; answers are written to the memory."""

    def close(self) -> None:
        """Close the environments."""


class VectorTask:
    """A share of a vector's environments, stepped one after the other."""

    def __init__(self, begin: Mapping[str, Any]) -> None:
        cells = [make_cell(EnvSpec.from_literal(literal)) for literal in begin["sources"]]
        self._keywords = begin["info_keywords"]
        self._vector = SyncVectorEnv(cells, begin["name"], begin["check"], begin["offset"], self._keywords)
        self._rows = slice(begin["offset"], begin["offset"] + self._vector.num_envs)
        self.close = self._vector.close

    def describe(self) -> Any:
        """Return spaces, time limit, and whether they are preprocessed and have lives."""
        vector = self._vector
        return vector.spaces.to_spec(), vector.max_episode_timesteps, vector.preprocessed, vector.has_lives

    def share(self, n: int, descriptor: int) -> None:
        """Map the memory."""
        fields = vector_fields(self._keywords)
        self._memory = SharedArrays(self._vector.spaces, n, descriptor, fields, create=False)

    def obey(self, message: bytes) -> None:
        """Step, reset or restart."""
        vector, memory, rows = self._vector, self._memory, self._rows
        if message == STEP:
            step = vector.step({name: array[rows] for name, array in memory.action.items()})
            observation = step.observation
            for name in VECTOR_FIELDS:
                memory.fields[name][rows] = getattr(step, name)
            for key, values in vector.infos.items():
                memory.fields[f"info:{key}"][rows] = values
        else:
            argument = ast.literal_eval(message[1:].decode())
            observation = vector.reset(argument) if message[:1] == RESET else vector.restart(*argument)
        for name, array in memory.observation.items():
            array[rows] = observation[name]


def work(connection_descriptor: int, memory_descriptor: int) -> None:
    """Run as a worker: the entry point of the process that `spawn.Worker` starts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    # Clusters send SIGTERM to every process of a job, and a run that ends in order needs its environments
    # until then.
    signal.signal(signal.SIGTERM, _no_effect)
    signal.siginterrupt(signal.SIGTERM, False)  # nor does it interrupt system calls of an environment
    os.register_at_fork(after_in_child=_forked)
    os.set_inheritable(memory_descriptor, False)
    connection = line(connection_descriptor)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        _serve(connection, memory_descriptor)


def _no_effect(number: int, frame: Any) -> None:
    """Do nothing.

    An ignored signal would stay ignored in programs that an environment starts, too; a handled one does not.
    """


def _forked() -> None:
    """Let SIGTERM have its usual effect in a process that an environment forked."""
    if signal.getsignal(signal.SIGTERM) is _no_effect:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def line(descriptor: int) -> Connection:
    """Return the connection to the parent; soon after the parent has ended, this process ends, too.

    Nothing that environments start holds it open, or the parent would not see that this process has ended.
    """
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_follow, args=(descriptor,), daemon=True).start()
    connection = Connection(descriptor)
    os.register_at_fork(after_in_child=connection.close)
    return connection


def _follow(descriptor: int) -> None:
    """Kill the process, and what its environments started, soon after its parent ended, even while an
    environment hangs.
    """
    watch = select.poll()
    watch.register(descriptor, 0)  # only for the other side's end
    watch.poll()
    time.sleep(_ORPHAN_SECONDS)
    os.killpg(0, signal.SIGKILL)


def _serve(connection: Connection, descriptor: int) -> None:
    begin = ast.literal_eval(connection.recv_bytes().decode())
    task: Task | None = None
    try:
        task = _make(begin)
        connection.send_bytes(OK + repr(task.describe()).encode())
        task.share(ast.literal_eval(connection.recv_bytes().decode()), descriptor)
        while (message := connection.recv_bytes()) != CLOSE:
            try:
                task.obey(message)
            except (Exception, SystemExit) as error:
                raise_of_handler(error)
                connection.send_bytes(FAULT + _described(error))
            else:
                connection.send_bytes(OK)
    except OSError:
        raise
    except Exception as error:
        connection.send_bytes(FAULT + _described(error))
    finally:
        if task is not None:
            task.close()


def _make(begin: Mapping[str, Any]) -> Task:
    sys.argv = begin["argv"]
    if begin["main"] is not None:
        # As multiprocessing does: the user's program under another name, so that its guarded part does not
        # run.
        module = types.ModuleType("__mp_main__")
        how, what = begin["main"]
        run = functools.partial(runpy.run_module, alter_sys=True) if how == "module" else runpy.run_path
        module.__dict__.update(run(what, run_name="__mp_main__"))
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    task: Task = import_object(begin["task"], "task")(begin)
    return task


def _described(error: Exception | SystemExit) -> bytes:
    cause = error.__cause__ or error
    text = "".join(traceback.format_exception(cause)).strip()
    kind = type(error).__name__
    message = str(error) if isinstance(error, OperantError) else f"{kind}: {error}"
    return repr({"type": kind, "text": message, "traceback": text[:1].lower() + text[1:]}).encode()
