"""What a worker process runs, on memory shared with its parent: its share of a vector, or one environment."""

from __future__ import annotations

import ast
import contextlib
import functools
import math
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
from typing import Any, TypeAlias

import numpy as np

from operant.envs.env_spec import EnvSpec
from operant.envs.environment import rows
from operant.envs.validation_errors import ObservationValidator, raise_of_handler
from operant.envs.vector.sync_vector import SyncVectorEnv, make_sub_env
from operant.envs.workers.shared_arrays import CLOSE, FAULT, OK, RESET, STEP, SharedArrays
from operant.errors import OperantError, shortened, text_of

ORPHAN_SECONDS = 2.0
"""How long a worker whose parent died may go on computing before it is killed."""


class VectorTask:
    """A share of a vector's environments, stepped one after the other."""

    def __init__(self, begin: Mapping[str, Any]) -> None:
        sources = [EnvSpec.from_literal(literal) for literal in begin["sources"]]
        envs = [make_sub_env(source) for source in sources]
        self.info_keywords: Sequence[str] = begin["info_keywords"]
        self._vector = SyncVectorEnv(envs, begin["name"], begin["offset"], self.info_keywords)
        self.spaces = self._vector.spaces
        self._rows = slice(begin["offset"], begin["offset"] + self._vector.num_envs)
        self.close = self._vector.close

    def describe(self) -> Any:
        """Return spaces, time limit, and whether they are preprocessed and have lives."""
        vector = self._vector
        return vector.spaces.to_spec(), vector.max_episode_timesteps, vector.preprocessed, vector.has_lives

    def answer(self, message: bytes, memory: SharedArrays) -> None:
        """Step, reset or restart."""
        vector, rows = self._vector, self._rows
        if message == STEP:
            step = vector.step({name: array[rows] for name, array in memory.action.items()})
            observation = step.observation
            memory.fields["reward"][rows] = step.reward
            memory.fields["terminal"][rows] = step.terminated + step.truncated * np.uint8(2)
            for key, values in vector.infos.items():
                memory.infos[key][rows] = values
        else:
            argument = ast.literal_eval(message[1:].decode())
            observation = vector.reset(argument) if message[:1] == RESET else vector.restart(*argument)
        for name, array in memory.observation.items():
            array[rows] = observation[name]


class EnvironmentTask:
    """One environment, of one actor or several."""

    info_keywords: Sequence[str] = ()

    def __init__(self, begin: Mapping[str, Any]) -> None:
        (literal,) = begin["sources"]
        self._env = EnvSpec.from_literal(literal).create()
        self.spaces, self._actors = self._env.spaces, self._env.num_actors()
        self._validator = ObservationValidator(self.spaces)
        self._running = 0
        self.close = self._env.close
        self._is_flat = self._env.is_flat

    def describe(self) -> Any:
        """Return spaces, time limit and number of actors."""
        return self.spaces.to_spec(), self._env.max_episode_timesteps(), self._actors

    def answer(self, message: bytes, memory: SharedArrays) -> None:
        """Begin an episode or take a step."""
        fields = memory.fields
        acted: int = self._running if message == STEP else 0
        if message == STEP and self._is_flat:
            running = self._step_flat(memory)
            over = np.full(1, not running)
            if (error := self._validator.error(memory.observation, (over, over))) is not None:
                raise self._env.misfit(error[1])
        else:
            running, states = self._step(memory) if message == STEP else self._reset(message, memory)
            self._write(states, memory)
        episode_return = self._env.episode_return()
        fields["return"][0] = math.nan if episode_return is None else episode_return
        fields["acted"][0], fields["running"][0] = acted, len(running)
        fields["parallel"][: len(running)] = running
        self._running = len(running)

    def _reset(self, message: bytes, memory: SharedArrays) -> tuple[Any, Any]:
        seed = ast.literal_eval(message[1:].decode())
        began = time.perf_counter()
        states = self._env.reset(seed=seed)
        memory.fields["seconds"][0] = time.perf_counter() - began
        return states if self._actors > 1 else ((0,), states)

    def _step(self, memory: SharedArrays) -> tuple[Any, Any]:
        n = self._running
        single = self._actors == 1
        actions = {name: array[0 if single else slice(n)].copy() for name, array in memory.action.items()}
        structured = self.spaces.actions.unflatten(actions)
        began = time.perf_counter()
        *parallel, states, terminal, reward = self._env.execute(structured)
        memory.fields["seconds"][0] = time.perf_counter() - began
        memory.fields["terminal"][:n], memory.fields["reward"][:n] = terminal, reward
        return parallel[0] if parallel else (0,) if terminal == 0 else (), states

    def _step_flat(self, memory: SharedArrays) -> Sequence[int]:
        """Take a step with components as stored: the usual case, and faster."""
        fields = memory.fields
        actions = {name: array[0] for name, array in memory.action.items()}
        began = time.perf_counter()
        states, terminal, reward = self._env.execute_flat(actions)
        fields["seconds"][0] = time.perf_counter() - began
        fields["terminal"][0], fields["reward"][0] = terminal, reward
        for name, array in memory.observation.items():
            array[0] = states[name]
        return (0,) if terminal == 0 else ()

    def _write(self, states: Any, memory: SharedArrays) -> None:
        """Write states to the memory, and of how many actors they are."""
        memory.fields["observed"][0] = n = 1 if self._actors == 1 else rows(states)
        for name, array in memory.observation.items() if n else ():
            array[:n] = self._env.flat[name]


WorkerTask: TypeAlias = VectorTask | EnvironmentTask
_TASKS: dict[str, type[WorkerTask]] = {"vector": VectorTask, "environment": EnvironmentTask}


def work(connection_descriptor: int, memory_descriptor: int) -> None:
    """Run as a worker: the entry point of the process that `process.Worker` starts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    # Clusters send SIGTERM to every process of a job, and a run that ends in order needs its environments
    # until then.
    signal.signal(signal.SIGTERM, _no_effect)
    signal.siginterrupt(signal.SIGTERM, False)  # nor does it interrupt system calls of an environment
    os.register_at_fork(after_in_child=_forked)
    os.set_inheritable(memory_descriptor, False)
    connection = parent_pipe(connection_descriptor)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        _serve(connection, memory_descriptor)


def _no_effect(number: int, frame: Any) -> None:
    """Do nothing: an ignored signal would stay ignored in programs that an environment starts."""


def _forked() -> None:
    if signal.getsignal(signal.SIGTERM) is _no_effect:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def parent_pipe(descriptor: int) -> Connection:
    """Return the connection to the parent; soon after the parent has ended, this process ends, too.

    Nothing that environments start holds it open, or this process would not see the parent's end.
    """
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_end_with_parent, args=(descriptor,), daemon=True).start()
    connection = Connection(descriptor)
    os.register_at_fork(after_in_child=connection.close)
    return connection


def _end_with_parent(descriptor: int) -> None:
    """Kill the process, and what its environments started, soon after its parent ended, even in a hang."""
    poll = select.poll()
    poll.register(descriptor, 0)  # only for the other side's end
    poll.poll()
    time.sleep(ORPHAN_SECONDS)
    os.killpg(0, signal.SIGKILL)


def _serve(connection: Connection, descriptor: int) -> None:
    begin = ast.literal_eval(connection.recv_bytes().decode())
    task: WorkerTask | None = None
    try:
        _run_main(begin)
        task = _TASKS[begin["task"]](begin)
        connection.send_bytes(OK + repr(task.describe()).encode())
        n = ast.literal_eval(connection.recv_bytes().decode())
        memory = SharedArrays(task.spaces, n, descriptor, task.info_keywords)
        while (message := connection.recv_bytes()) != CLOSE:
            try:
                task.answer(message, memory)
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


def _run_main(begin: Mapping[str, Any]) -> None:
    """Take over the command line, and the user's program where an environment is defined there.

    As multiprocessing does: under another name, so that the program's guarded part does not run.
    """
    sys.argv = begin["argv"]
    if begin["main"] is not None:
        module = types.ModuleType("__mp_main__")
        how, what = begin["main"]
        run = functools.partial(runpy.run_module, alter_sys=True) if how == "module" else runpy.run_path
        module.__dict__.update(run(what, run_name="__mp_main__"))
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def _described(error: Exception | SystemExit) -> bytes:
    text = shortened("".join(traceback.format_exception(error.__cause__ or error)).strip())
    kind = type(error).__name__
    message = str(error) if isinstance(error, OperantError) else f"{kind}: {text_of(error)}"
    return repr({"type": kind, "text": message, "traceback": text[:1].lower() + text[1:]}).encode()
