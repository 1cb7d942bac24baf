"""Write benchmarks/results/speed.md, one table of all that benchmarks/results/speed*.json hold.

python benchmarks/speed/table.py
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
HEAD = """# Speed

Environment steps per second: the median of each library's rounds, which alternate; in brackets, how many
times as fast operant is (median of the rounds). The settings of a workload are in
`benchmarks/speed/workloads.py`. The last column names the measurement: the `.json` file of this name has its
command and each round, with the time to compile. `benchmarks/speed/run.py` measures and calls
`benchmarks/speed/table.py`, which writes this page.

| workload | operant | others | measurement |
|---|---:|---|---|
"""
MIDDLE = """
| measurement | machine | date | versions |
|---|---|---|---|
"""
NOTES = """
- Compare numbers of one measurement only: machines differ, and so does the speed of one from day to day.
- TD3, DDPG and SAC: `speed-amd` is from before their calls became asynchronous, the others from after.
- `speed` against operant as of dac036ae, in seven rounds in turn on the same machine: TD3 0.96, DDPG 1.05,
  SAC 0.96, PPO with 8 and 64 environments 1.06 and 1.10, DQN 1.08, JAX-native with 4, 64 and 2,048
  environments 1.08, 1.04 and 0.95. Rounds of the same program differ by 10 to 20 % there.
- `env-...` is the environments alone, with random actions: nothing that trains in them can be faster.
- `purejax` is plain JAX in the style of PureJaxRL (`benchmarks/speed/purejax_speed.py`).
- xagents' ACER draws its number of replays once, when its graph is traced; operant each time, 4 on average.
- What limits operant: [breakdown](breakdown.md), [products](products.md), [convolutions](convolutions.md).
"""
NOT_SHOWN = {"python", "numpy", "optax", "flax", "gym"}
"""Packages whose versions are only in the files."""

Rounds = dict[str, list[dict[str, Any]]]
"""By library, a dict for each round."""


def speed(rounds: list[dict[str, Any]]) -> float:
    return statistics.median(turn["steps_per_second"] for turn in rounds)


def others(runs: Rounds) -> Iterator[str]:
    """Yield the name and the speed of each other library; the ratio is paired by round."""
    for name in filter("operant".__ne__, runs):
        text = f"{name} {speed(runs[name]):,.0f}"
        if "operant" in runs:
            pairs = zip(runs["operant"], runs[name], strict=True)
            ratio = statistics.median(ours["steps_per_second"] / it["steps_per_second"] for ours, it in pairs)
            text += f" ({ratio:.2f}×)"
        yield text


def versions(results: dict[str, Rounds]) -> str:
    packages = {}
    for runs in results.values():
        for rounds in runs.values():
            packages |= rounds[-1]["versions"]
    return ", ".join(f"{name} {packages[name]}" for name in packages if name not in NOT_SHOWN)


def page() -> str:
    """Return the page that the files make."""
    rows, measurements = [], []
    for path in sorted(RESULTS.glob("speed*.json"), key=lambda path: path.stem):
        data = json.loads(path.read_text(encoding="utf-8"))
        turns = [turn for runs in data["results"].values() for rounds in runs.values() for turn in rounds]
        loads = sorted(turn["load"] for turn in turns)
        machine = f"{data['processor'].replace('(R)', '')}, {data['cores']} cores"
        machine += f", load {loads[0]:.1f} to {loads[-1]:.1f}"
        cells = path.stem, machine, data["date"], versions(data["results"])
        measurements.append(f"| {' | '.join(cells)} |\n")
        for workload, runs in data["results"].items():
            ours = f"{speed(runs['operant']):,.0f}" if "operant" in runs else "-"
            rows.append(f"| {workload} | {ours} | {', '.join(others(runs)) or '-'} | {path.stem} |\n")
    return HEAD + "".join(rows) + MIDDLE + "".join(measurements) + NOTES


def write() -> Path:
    path = RESULTS / "speed.md"
    path.write_text(page(), encoding="utf-8")
    return path


if __name__ == "__main__":
    print(write())
