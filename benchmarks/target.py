"""Seconds until a mean return is reached, by the same command line of operant and of xagents.

    python benchmarks/target.py --xagents .venv-predecessors/bin/xagents

Whole commands with default settings, one after the other, from the start of the process to its end: imports
and compilation count. A command that does not reach the reward within the steps has no time. Results:
benchmarks/results/target.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results"
TASKS = {
    "ppo": ("--env", "CartPole-v1", "--n-envs", "8", "--target-reward", "195", "--max-steps", "150000"),
    "a2c": ("--env", "CartPole-v1", "--n-envs", "8", "--target-reward", "195", "--max-steps", "150000"),
}
REACHED = re.compile(r" reached after ([\d,]+) steps")


class Found(NamedTuple):
    """One command's outcome."""

    seconds: float
    steps: int | None
    """When the reward was reached; None: it was not."""


def run(command: list[str], agent: str, seed: int) -> Found:
    """Train once; return how long the command took and where it stopped."""
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "train", agent, *TASKS[agent], "--seed", str(seed)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - began
    reached = REACHED.search(done.stdout + done.stderr)
    return Found(seconds, int(reached[1].replace(",", "")) if reached else None)


def row(name: str, found: list[Found]) -> str:
    """Return a line of the table: medians of those that got there."""
    there = [each for each in found if each.steps is not None]
    if not there:
        longest = max(each.seconds for each in found)
        return f"| {name} | 0 of {len(found)} | - | - (all steps: {longest:.0f} s) |"
    steps = statistics.median(each.steps for each in there if each.steps is not None)
    seconds = ", ".join(f"{each.seconds:.1f}" for each in there)
    return (
        f"| {name} | {len(there)} of {len(found)} | {steps:,.0f} | "
        f"{statistics.median(each.seconds for each in there):.1f} ({seconds}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--xagents", required=True, help="the command of an environment that has it")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    systems = {
        "operant": [sys.executable, "-m", "operant"],
        "xagents 1.0.1": [str(Path(arguments.xagents).absolute())],
    }
    lines = ["# Seconds to a mean return", ""]
    lines += [
        f"`python benchmarks/target.py --xagents .../xagents --seeds {arguments.seeds}`. Whole commands, "
        f"seeds 1 to {arguments.seeds} in turn, medians. {os.cpu_count()} processors ({platform.machine()}), "
        f"Python {platform.python_version()} and 3.8, operant {version('operant')}, JAX {version('jax')}, "
        f"load {os.getloadavg()[0]:.1f} at the start.",
    ]
    for agent, words in TASKS.items():
        found: dict[str, list[Found]] = {name: [] for name in systems}
        for seed in range(1, arguments.seeds + 1):
            for name, command in systems.items():
                found[name].append(run(command, agent, seed))
                print(agent, name, seed, found[name][-1], flush=True)
        lines += ["", f"## {agent}", "", f"`train {agent} {' '.join(words)}`", ""]
        lines += ["| | reached | steps | seconds |", "|---|---|---|---|"]
        lines += [row(name, outcomes) for name, outcomes in found.items()]
    (RESULTS / "target.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
