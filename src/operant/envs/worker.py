"""What a worker process runs: its share of a vector's environments, on memory that it shares with its parent."""

from __future__ import annotations

import ast
import contextlib
import mmap
import os
import runpy
import signal
import sys
import traceback
import types
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from operant.envs.inprocess import InProcess, make_cell
from operant.envs.source import Source
from operant.errors import OperantError
from operant.spaces import Spaces

RESET, STEP, RESTART, CLOSE = b"r", b"s", b"n", b"c"
"""First byte of what a worker is told."""
OK, FAULT = b"k", b"e"
"""First byte of what it answers."""


class Memory:
    """Arrays of a whole vector in memory that processes share."""

    def __init__(self, spaces: Spaces, n: int, descriptor: int, *, create: bool) -> None:
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "reward": ((n,), np.float32),
            "terminated": ((n,), np.bool_),
            "truncated": ((n,), np.bool_),
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
        self.reward, self.terminated, self.truncated = (
            arrays[k] for k in ("reward", "terminated", "truncated")
        )
        self.observation = {name[2:]: array for name, array in arrays.items() if name.startswith("o:")}
        self.action = {name[2:]: array for name, array in arrays.items() if name.startswith("a:")}


def work(connection_descriptor: int, memory_descriptor: int) -> None:
    """Be a worker: what the process that `Processes` starts does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    connection = Connection(connection_descriptor)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        _serve(connection, memory_descriptor)


def _serve(connection: Connection, descriptor: int) -> None:
    begin = ast.literal_eval(connection.recv_bytes().decode())
    vector: Any = None
    try:
        vector = _make(begin)
        connection.send_bytes(OK + repr((vector.spaces.to_spec(), vector.max_episode_timesteps)).encode())
        n = ast.literal_eval(connection.recv_bytes().decode())
        memory = Memory(vector.spaces, n, descriptor, create=False)
        rows = slice(begin["offset"], begin["offset"] + vector.num_envs)
        while (message := connection.recv_bytes()) != CLOSE:
            try:
                _obey(message, vector, memory, rows)
            except Exception as error:
                connection.send_bytes(FAULT + _described(error))
            else:
                connection.send_bytes(OK)
    except OSError:
        raise
    except Exception as error:
        connection.send_bytes(FAULT + _described(error))
    finally:
        if vector is not None:
            vector.close()


def _make(begin: Mapping[str, Any]) -> InProcess:
    if begin["main"] is not None:
        # As multiprocessing does: the user's script under another name, so that its guarded part does not run.
        module = types.ModuleType("__mp_main__")
        module.__dict__.update(runpy.run_path(begin["main"], run_name="__mp_main__"))
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    cells = [make_cell(Source.from_literal(literal)) for literal in begin["sources"]]
    return InProcess(cells, begin["name"], begin["check"], begin["offset"])


def _obey(message: bytes, vector: Any, memory: Memory, rows: slice) -> None:
    if message == STEP:
        step = vector.step({name: array[rows] for name, array in memory.action.items()})
        observation = step.observation
        memory.reward[rows], memory.terminated[rows] = step.reward, step.terminated
        memory.truncated[rows] = step.truncated
    else:
        argument = ast.literal_eval(message[1:].decode())
        observation = vector.reset(argument) if message[:1] == RESET else vector.restart(*argument)
    for name, array in memory.observation.items():
        array[rows] = observation[name]


def _described(error: Exception) -> bytes:
    cause = error.__cause__ or error
    text = "".join(traceback.format_exception(cause)).strip()
    kind = type(error).__name__
    message = str(error) if isinstance(error, OperantError) else f"{kind}: {error}"
    return repr({"type": kind, "text": message, "traceback": text[:1].lower() + text[1:]}).encode()
