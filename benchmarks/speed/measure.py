"""The contract of every runner here: `--workload NAME --steps N`, and a line of JSON whenever it is asked for
one.

    {"name", "workload", "compile_seconds", "versions"}     first: it is warmed up and waits
    {"steps", "seconds", "steps_per_second"} for every line that it reads: it continues from where it was

`steps` are environment steps of all environments, as many as were taken in `seconds`, at least N. Imports,
construction, compilation and warm-up come before the first line; `compile_seconds` is what construction,
compilation and warm-up took.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Callable

from workloads import WORKLOADS, Workload


def main(name: str, packages: tuple[str, ...], prepare: Callable[[Workload, int], Callable[[], int]]) -> None:
    """Read the command line, warm up, then measure once for every line of standard input.

    Args:
        name: who is measured.
        packages: the distributions whose versions matter.
        prepare: takes a workload and the least number of environment steps to measure; warms up, and returns
            a function that takes the steps and returns how many it took.
    """
    parser = argparse.ArgumentParser(description=f"Measure environment steps per second of {name}.")
    parser.add_argument("--workload", required=True, choices=WORKLOADS)
    parser.add_argument("--steps", type=int, required=True, help="environment steps to measure, at least")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1. Received: {arguments.steps}.")
    began = time.perf_counter()
    go_on = prepare(WORKLOADS[arguments.workload], arguments.steps)
    versions = {package: importlib.metadata.version(package) for package in packages}
    ready = {
        "name": name,
        "workload": arguments.workload,
        "compile_seconds": time.perf_counter() - began,
        "versions": {"python": platform.python_version(), **versions},
    }
    print(json.dumps(ready), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        steps = go_on()
        seconds = time.perf_counter() - start
        line = {"steps": steps, "seconds": seconds, "steps_per_second": steps / seconds}
        print(json.dumps(line), flush=True)
