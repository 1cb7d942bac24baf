"""Where the time of operant's host driver goes: environments, acting, updates, the rest.

Written to benchmarks/results/breakdown.md.

    python benchmarks/speed/breakdown.py --workloads ppo-cartpole-8 dqn-cartpole td3-pendulum

Every workload runs in a process of its own. The three calls are timed from outside; an update includes acting
on the row after it. `--one` also tells what share Gymnasium's own vectorised form takes of the environments',
if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
from operant_speed import made
from workloads import WORKLOADS

from operant.envs.vector.batched import GymnasiumVector
from operant.training.drivers.host_driver import HostDriver
from operant.training.provenance import processor

RESULTS = Path(__file__).parents[1] / "results"
DEFAULT = (
    "ppo-cartpole-8",
    "ppo-cartpole-64",
    "dqn-cartpole",
    "ddpg-pendulum",
    "td3-pendulum",
    "sac-pendulum",
    "ppo-pong-8",
)


def timed(owner: Any, name: str, spent: dict[str, float], key: str, wait: bool = False) -> None:
    """Replace a method by one that adds its seconds to `spent`.

    With `wait`, including those until its results are computed.
    """
    inner = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            result = inner(*arguments)
            return jax.block_until_ready(result) if wait else result
        finally:
            spent[key] = spent.get(key, 0.0) + time.perf_counter() - began

    setattr(owner, name, call)


def measure(driver: HostDriver, seconds: float) -> dict[str, float]:
    """Return the speed of a warmed-up driver, and the share of each call in its time."""
    envs, engine = driver.env, driver.engine
    spent: dict[str, float] = {}
    for owner, method in ((envs, "step"), (engine, "act"), (engine, "advance"), (engine, "noise")):
        # Environments and noise answer in NumPy arrays, for which there is nothing to wait.
        timed(owner, method, spent, method, wait=method in ("act", "advance"))
    if isinstance(envs, GymnasiumVector):
        timed(envs._vector, "step", spent, "gymnasium")
    before, began = driver.step, time.perf_counter()
    while time.perf_counter() - began < seconds:
        driver.advance(driver.blocks)
    whole, steps = time.perf_counter() - began, driver.step - before
    parts = {key: spent.get(key, 0.0) / whole for key in ("step", "gymnasium", "act", "advance", "noise")}
    return {"steps_per_second": steps / whole, "microseconds": 1e6 * whole / steps, **parts}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=DEFAULT, metavar="WORKLOAD")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--one", action="store_true", help="measure the one workload here and print it as JSON"
    )
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(made(WORKLOADS[arguments.workloads[0]]), arguments.seconds)))
        return 0
    lines = [
        "# Profile of a training",
        "",
        f"Processor: {processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start. "
        "Command: `python benchmarks/speed/breakdown.py`.",
        "",
        "| workload | steps/s | µs per step | environments | acting | updates | randomness | bookkeeping |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name in arguments.workloads:
        command = [
            sys.executable,
            __file__,
            "--one",
            "--workloads",
            name,
            "--seconds",
            str(arguments.seconds),
        ]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = json.loads(output.splitlines()[-1])
        parts = [found[key] for key in ("step", "act", "advance", "noise")]
        shares = " | ".join(f"{100 * part:.0f} %" for part in (*parts, 1.0 - sum(parts)))
        lines.append(
            f"| {name} | {found['steps_per_second']:,.0f} | {found['microseconds']:,.1f} | {shares} |"
        )
        print(lines[-1], flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "breakdown.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
