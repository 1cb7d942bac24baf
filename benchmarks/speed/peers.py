"""Who is measured: their runners, the environment variables they want, and the kinds of workload they know."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
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
    """Whether it knows workloads on JAX-native environments: True only those, False only others, None both."""
    atari: bool = False
    """Whether it knows Atari games."""
    interpreter: str = "operant"
    """Which environment holds it: `operant`, `peers` or `rejax` (see benchmarks/requirements.txt)."""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def knows(self, workload: str) -> bool:
        task = WORKLOADS[workload]
        return (
            task.kind in self.kinds and self.native in (None, task.native) and (self.atari or not task.atari)
        )


PEERS = {
    "operant": Peer("operant_speed.py", ("ppo", *OFF_POLICY), native=None, atari=True),
    "gymnasium": Peer("gymnasium_speed.py", ("env",), atari=True),
    # torch as it comes, and with one thread: on small networks threads cost more than they give
    "sb3": Peer("sb3_speed.py", ("ppo", *OFF_POLICY), atari=True, interpreter="peers"),
    "sb3-one-thread": Peer(
        "sb3_speed.py", ("ppo", *OFF_POLICY), interpreter="peers", variables={"OMP_NUM_THREADS": "1"}
    ),
    "sbx": Peer("sbx_speed.py", ("ppo", *OFF_POLICY), interpreter="peers"),
    "rejax": Peer("rejax_speed.py", ("ppo",), native=True, interpreter="rejax"),
    "purejax": Peer("purejax_speed.py", ("ppo",), native=True),
}


def run(
    name: str, workload: str, steps: int, interpreters: Mapping[str, str], limit_seconds: float
) -> dict[str, Any]:
    """Run one measurement in a process of its own and return its line of JSON.

    Raises:
        RuntimeError: it failed, or took too long; with the end of what it printed.
    """
    peer = PEERS[name]
    interpreter = interpreters.get(peer.interpreter, sys.executable)
    command = [interpreter, str(FOLDER / peer.script), "--workload", workload, "--steps", str(steps)]
    try:
        result = subprocess.run(
            command,
            env={**os.environ, **peer.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_seconds,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{name} on {workload} took more than {limit_seconds:g} s") from None
    if result.returncode:
        raise RuntimeError(f"{name} on {workload} failed:\n{result.stderr[-2000:]}")
    return {**json.loads(result.stdout.splitlines()[-1]), "name": name}
