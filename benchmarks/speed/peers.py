"""What is measured: the runners, the environment variables they need, and the kinds of workload they know."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workloads import WORKLOADS

FOLDER = Path(__file__).parent
OFF_POLICY = ("dqn", "ddpg", "td3", "sac")


@dataclasses.dataclass(frozen=True)
class Peer:
    """One runner script of this folder, run in its own process, if need be by its own interpreter."""

    script: str
    kinds: tuple[str, ...]
    native: bool | None = False
    """Whether it knows workloads on JAX-native environments: True only those, False only others, None
    both."""
    atari: bool = False
    """Whether it knows Atari games."""
    interpreter: str = "operant"
    """Which environment holds it: `operant`, `peers`, `rejax` or `predecessors` (see
    benchmarks/requirements*.txt)."""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def knows(self, workload: str) -> bool:
        task = WORKLOADS[workload]
        return (
            task.kind in self.kinds and self.native in (None, task.native) and (self.atari or not task.atari)
        )


PEERS = {
    "operant": Peer(
        "operant_speed.py", ("ppo", "a2c", "acer", "trpo", *OFF_POLICY, "agent"), native=None, atari=True
    ),
    "gymnasium": Peer("gymnasium_speed.py", ("env",), atari=True),
    # torch as it comes, and with one thread: on small networks threads cost more than they gain
    "sb3": Peer("sb3_speed.py", ("ppo", *OFF_POLICY), atari=True, interpreter="peers"),
    "sb3-one-thread": Peer(
        "sb3_speed.py", ("ppo", *OFF_POLICY), interpreter="peers", variables={"OMP_NUM_THREADS": "1"}
    ),
    "sbx": Peer("sbx_speed.py", ("ppo", *OFF_POLICY), interpreter="peers"),
    "rejax": Peer("rejax_speed.py", ("ppo",), native=True, interpreter="rejax"),
    "purejax": Peer("purejax_speed.py", ("ppo",), native=True),
    "xagents": Peer(
        "xagents_speed.py",
        ("ppo", "a2c", "acer", "trpo", "dqn", "ddpg", "td3"),
        interpreter="predecessors",
    ),
    "tensorforce": Peer("tensorforce_speed.py", ("agent",), interpreter="predecessors"),
}


class Runner:
    """One runner in a process of its own: warmed up when made, it measures when asked to and sleeps in
    between.

    Args:
        name: of the peer.
        workload: its name.
        steps: environment steps of one measurement, at least.
        interpreters: by name of the environment.
        limit_seconds: when to give up.

    Raises:
        RuntimeError: it failed, or took too long; with the end of what it printed.
    """

    def __init__(
        self, name: str, workload: str, steps: int, interpreters: Mapping[str, str], limit_seconds: float
    ) -> None:
        self.name, self.workload, self._limit = name, workload, limit_seconds
        peer = PEERS[name]
        interpreter = interpreters.get(peer.interpreter, sys.executable)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            [interpreter, str(FOLDER / peer.script), "--workload", workload, "--steps", str(steps)],
            env={**os.environ, **peer.variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self._ready = self._line()
        except RuntimeError:
            self.close()
            raise

    def measure(self) -> dict[str, Any]:
        """Measure once; return the runner's name, what was found, and the load of the machine before."""
        load = os.getloadavg()[0]
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # a process that died meanwhile says why below
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return {**self._ready, **self._line(), "name": self.name, "load": load}

    def _line(self) -> dict[str, Any]:
        """Wait for the next line of JSON; others, such as those that libraries print, are skipped."""
        assert self._process.stdout is not None
        watch = threading.Timer(self._limit, self._process.kill)
        watch.start()
        began = time.monotonic()
        try:
            for text in self._process.stdout:
                if text.startswith("{"):
                    found: dict[str, Any] = json.loads(text)
                    return found
        finally:
            watch.cancel()
        if time.monotonic() - began >= self._limit:
            raise RuntimeError(f"{self.name} on {self.workload} took more than {self._limit:g} s")
        self._process.wait()
        self._errors.seek(0)
        raise RuntimeError(f"{self.name} on {self.workload} failed:\n{self._errors.read()[-2000:]}")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()
