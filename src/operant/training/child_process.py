"""A process of its own for a run, which gets its orders and answers by JSON over a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import Pipe
from typing import IO, Any, ClassVar

from operant.envs.workers.process import killed

TAIL = 2000
"""Characters of a failure that are kept."""


class ProcessLostError(Exception):
    """A child process ended without an answer."""

    blameless = False
    """Whether its machine was lost, and not by what it did."""


class ChildProcess:
    """A fresh interpreter; if `silent`, what it prints is shown only if it dies."""

    code: ClassVar[str]
    """What the process runs. Its argument is the descriptor of a pipe: see `worker.parent_pipe`."""
    name: ClassVar[str]
    """What it is called in messages."""

    def __init__(self, silent: bool) -> None:
        self.connection, remote = Pipe()
        # It lives as long as this object.
        self._output: IO[bytes] | None = tempfile.TemporaryFile() if silent else None  # noqa: SIM115
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", self.code, str(remote.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=None if self._output is None else subprocess.STDOUT,
            pass_fds=(remote.fileno(),),
            # Other trials, of other processes too, may share a GPU's memory.
            env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ, "PYTHONPATH": path},
            process_group=0,  # Ctrl-C is for the process that tunes: it decides what becomes of trials
        )
        remote.close()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; if the process is gone, this shows when its answer is awaited."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> dict[str, Any]:
        """Wait for a message; ProcessLostError: the process ended instead."""
        try:
            message: dict[str, Any] = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            code = killed(self.process)
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            tail = self._printed()
            self.close()
            raise ProcessLostError(f"{self.name} {how}.{tail}") from None
        return message

    def _printed(self) -> str:
        if self._output is None:
            return ""
        self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - TAIL))
        text = self._output.read().decode(errors="replace").strip()
        return f" It printed last:\n{text}" if text else ""

    def close(self) -> None:
        """End the process, and what its environments started."""
        killed(self.process)
        self.connection.close()
        if self._output is not None:
            self._output.close()
