"""Train presets once more with fresh seeds, and compare with what they claim.

    python benchmarks/learning/again.py --runs DIR

Without names: all presets of which one seed trained in under ten minutes, the shortest first. The mean of the
fresh seeds is expected within the 95 % prediction interval that the claimed seeds give (Student's t, equal
variances); a standard deviation below one percent of the claimed mean is taken for one percent, since five
equal scores do not say that there is no other. Results go to benchmarks/results/claims.json and .md after
each preset. With `--runs DIR` the runs are kept there, and seeds that are there are not trained again.
`--correct` adds the fresh seeds to those of the claim (learning.json and .md, curve); the preset's `score` in
`src/operant/spec/presets` is then written by hand, and `scripts/agent_pages` brings it to the pages.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from run import GATES, RESULTS, draw, judged, keep_curves, statistics, train_seed, write
from scipy import stats

from operant.training.provenance import processor

FIRST_SEED = 101
"""Of the fresh ones: no claim was measured with as many."""
SHORT = 600
"""Seconds that a seed may take to be trained again without being named."""


def claims() -> dict[str, dict[str, Any]]:
    """Return the measured rows by preset, the shortest first."""
    rows = json.loads((RESULTS / "learning.json").read_text())["rows"]
    rows = [row for row in rows if len(row["seeds"]) > 1]
    return {row["preset"]: row for row in sorted(rows, key=seconds)}


def seconds(row: dict[str, Any]) -> float:
    """Return the median time of a seed's training."""
    return float(np.median([r["training_seconds"] for r in row["seeds"]]))


def expected(scores: list[float], fresh: int) -> tuple[float, float]:
    """Return where the mean of `fresh` more seeds lies with a probability of 95 %."""
    mean, count = float(np.mean(scores)), len(scores)
    deviation = max(float(np.std(scores, ddof=1)), abs(mean) / 100)
    half = stats.t.ppf(0.975, count - 1) * deviation * math.sqrt(1 / count + 1 / fresh)
    return mean - half, mean + half


def page(results: dict[str, Any]) -> str:
    """Return the table of what was trained again."""
    lines = [
        "# Claims of presets, tried again",
        "",
        "What a preset claimed, and what fresh seeds gave on the processor named. The mean of the fresh",
        "seeds is inside if it lies in the 95 % prediction interval of the claimed seeds: one in twenty that",
        "does not is no surprise. All in float32 on CPUs. Made by `benchmarks/learning/again.py`.",
        "",
        "| preset | claimed mean | seeds | fresh mean | fresh scores | expected | inside | processor |",
        "|---|---|---|---|---|---|---|---|",
    ]
    now = claims()
    for name, result in sorted(results.items()):
        claimed, fresh = result["claimed"], [r["score"] for r in result["seeds"]]
        low, high = expected(claimed, len(fresh))
        inside = "yes" if low <= np.mean(fresh) <= high else "**no**"
        if (today := float(np.mean([r["score"] for r in now[name]["seeds"]]))) != np.mean(claimed):
            inside += f"; claim corrected to {today:.2f}"
        lines.append(
            f"| {name} | {np.mean(claimed):.2f} | {len(claimed)} | {np.mean(fresh):.2f} | "
            f"{', '.join(f'{score:.2f}' for score in fresh)} | {low:.2f} to {high:.2f} | {inside} | "
            f"{result['processor']} |"
        )
    return "\n".join(lines) + "\n"


def correct(name: str, row: dict[str, Any], seeds: list[dict[str, Any]], runs: Path) -> None:
    """Let a claim be that of all seeds."""
    known = {seed["seed"] for seed in row["seeds"]}
    every = [*row["seeds"], *(seed for seed in seeds if seed["seed"] not in known)]
    row = judged({**row, "seeds": every} | statistics(every))
    keep_curves([row], runs)
    draw(name, write([row], [], f"python benchmarks/learning/again.py {name} --correct"))
    print(name, row["mean"], f"{len(every)} seeds")


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presets", nargs="*", help="for example ppo:cartpole; none: all short ones")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, help="folder of the runs, which stay (default: a temporary one)")
    parser.add_argument("--correct", action="store_true", help="add the seeds to those of the claim")
    arguments = parser.parse_args()
    runs = arguments.runs or Path(tempfile.mkdtemp(prefix="again-"))
    rows = claims()
    file = RESULTS / "claims.json"
    for name in arguments.presets or [name for name, row in rows.items() if seconds(row) < SHORT]:
        gate = GATES.get(name)
        seeds = []
        for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds):
            place = runs / name.replace(":", "-") / str(seed)
            seeds.append(
                train_seed(
                    name.partition(":")[0], rows[name]["settings"], seed, place, bool(gate and gate.greedy)
                )
            )
            print(name, seeds[-1], flush=True)
        results = json.loads(file.read_text()) if file.exists() else {}
        results[name] = {
            "claimed": [r["score"] for r in rows[name]["seeds"] if r["seed"] < FIRST_SEED],
            "processor": processor(),
            "jax": jax.__version__,
            "seeds": seeds,
        }
        file.write_text(json.dumps(results, indent=1) + "\n")
        if arguments.correct:
            correct(name, rows[name], seeds, runs)
        (RESULTS / "claims.md").write_text(page(results))


if __name__ == "__main__":
    main()
