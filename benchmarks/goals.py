"""What a user waits for: help, the first update, and eight seeds at once beside one.

    python benchmarks/goals.py

Whole commands, from the start of the process to its end, in turn. Seeds are compared by the difference of a
long and a short command, in which imports and compilation cancel.

Results: benchmarks/results/goals.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from operant.training.provenance import processor

RESULTS = Path(__file__).parent / "results"
PPO = ("train", "ppo", "--n-envs", "8", "--quiet")
NATIVE = (*PPO, "--env", "jax:CartPole-v1", "--seed", "1")
SHORT, LONG = 102_400, 1_024_000
COMMANDS = {
    "help": ("--help",),
    "first update": (*PPO, "--env", "CartPole-v1", "--max-steps", "1024"),
    **{
        f"{seeds}, {steps}": (*NATIVE, "--n-seeds", str(seeds), "--max-steps", str(steps))
        for seeds in (1, 8)
        for steps in (SHORT, LONG)
    },
}


def seconds(words: tuple[str, ...]) -> float:
    """Return how long a command takes, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "operant", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            cwd=folder,
        )
        return time.perf_counter() - began


def estimated(values: list[float]) -> str:
    """Write a median with the fastest and the slowest."""
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(arguments.rounds):
        for name, words in COMMANDS.items():
            found[name].append(seconds(words))
            print(name, f"{found[name][-1]:.2f}", flush=True)
    steps = {
        seeds: [
            long - short
            for long, short in zip(found[f"{seeds}, {LONG}"], found[f"{seeds}, {SHORT}"], strict=True)
        ]
        for seeds in (1, 8)
    }
    ratios = [eight / one for eight, one in zip(steps[8], steps[1], strict=True)]
    lines = [
        "# Time of whole commands",
        "",
        f"`python benchmarks/goals.py --rounds {arguments.rounds}`: "
        f"{' '.join(__doc__.split(chr(10) * 2)[-2].split())} Medians, in brackets the",
        f"fastest and the slowest. {os.cpu_count()} cores of {processor()}, load {load:.1f} at the start, "
        "Python",
        f"{platform.python_version()}, JAX {version('jax')}, Gymnasium {version('gymnasium')}.",
        "",
        "| command | seconds | goal |",
        "|---|---|---|",
        f"| `operant --help` | {estimated(found['help'])} | 0.5 |",
        f"| `operant {' '.join(COMMANDS['first update'])}`: one update, and everything saved | "
        f"{estimated(found['first update'])} | 10 |",
        f"| `operant {' '.join(NATIVE)} --n-seeds 1`: {LONG - SHORT:,} steps of it | {estimated(steps[1])} "
        "| |",
        f"| the same with `--n-seeds 8`, as many of each seed | {estimated(steps[8])} | |",
        f"| eight seeds, as multiples of one | {estimated(ratios)} | 8 |",
    ]
    (RESULTS / "goals.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
