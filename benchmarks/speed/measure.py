"""The contract of every runner here: `--workload NAME --steps N`, and one line of JSON as the last line it prints.

    {"name", "workload", "steps", "seconds", "steps_per_second", "compile_seconds", "versions"}

`steps` are environment steps of all environments, as many as were taken in `seconds`. Imports, construction, compilation and
warm-up lie before the clock starts; `compile_seconds` is what construction, compilation and warm-up took.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
from collections.abc import Callable
from typing import NamedTuple

from workloads import WORKLOADS, Workload


class Measured(NamedTuple):
    """What a runner found."""

    steps: int
    seconds: float
    compile_seconds: float


def main(name: str, packages: tuple[str, ...], measure: Callable[[Workload, int], Measured]) -> None:
    """Read the command line, measure, print the line of JSON.

    Args:
        name: who is measured.
        packages: the distributions whose versions matter.
        measure: takes a workload and the environment steps to measure at least.
    """
    parser = argparse.ArgumentParser(description=f"Measure environment steps per second of {name}.")
    parser.add_argument("--workload", required=True, choices=WORKLOADS)
    parser.add_argument("--steps", type=int, required=True, help="environment steps to measure, at least")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1. Received: {arguments.steps}.")
    found = measure(WORKLOADS[arguments.workload], arguments.steps)
    versions = {package: importlib.metadata.version(package) for package in packages}
    line = {
        "name": name,
        "workload": arguments.workload,
        "steps": found.steps,
        "seconds": found.seconds,
        "steps_per_second": found.steps / found.seconds,
        "compile_seconds": found.compile_seconds,
        "versions": {"python": platform.python_version(), **versions},
    }
    print(json.dumps(line), flush=True)
