"""The training commands that xagents' document prints, to their ends, and a page about what came of them.

    python benchmarks/documents.py --runs DIR ppo-walker --minutes 60
    python benchmarks/documents.py --runs DIR --so-far

Each command runs as printed, with `operant` for `xagents`, `--seed`, `--run-dir` and a limit of steps added,
until it stops by itself; after `--minutes` it is interrupted, and the same call goes on with it. One that
ended is played for ten episodes by `operant play`. `--so-far` trains nothing. Either writes
benchmarks/results/documents.json, the curves, and the table of docs/documents-commands.md.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from operant.tracking import learning_curve, read_history

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "documents.json"
PAGE = ROOT / "docs" / "documents-commands.md"
IMAGES = ROOT / "docs" / "images"
MARKS = "<!-- table: written by benchmarks/documents.py -->", "<!-- end of the table -->"
PONG = "--env PongNoFrameskip-v4 --target-reward 19"
WALKER = "--env BipedalWalker-v3 --n-envs 16"
COMMANDS = {
    "a2c-pong": f"a2c {PONG} --n-envs 16 --preprocess --checkpoints a2c-pong.tf",
    "a2c-walker": f"a2c {WALKER} --target-reward 100 --checkpoints a2c-bipedal-walker.tf",
    "acer-pong": f"acer {PONG} --n-envs 16 --preprocess --checkpoints acer-pong.tf --buffer-max-size 5000 "
    "--buffer-initial-size 500 --trust-region",
    "ddpg-walker": f"ddpg {WALKER} --target-reward 100 --checkpoints ddpg-actor-bipedal-walker.tf "
    "ddpg-critic-bipedal-walker.tf --buffer-max-size 1000000 --buffer-initial-size 25000 "
    "--buffer-batch-size 100",
    "dqn-pong": f"dqn {PONG} --n-envs 3 --lr 1e-4 --preprocess --checkpoints dqn-pong.tf "
    "--buffer-max-size 50000 --buffer-initial-size 10000 --max-frame",
    "ppo-pong": f"ppo {PONG} --n-envs 16 --preprocess --checkpoints ppo-pong.tf",
    "ppo-walker": f"ppo {WALKER} --target-reward 200 --checkpoints ppo-bipedal-walker.tf",
    "td3-walker": f"td3 {WALKER} --target-reward 300 --checkpoints td3-actor-bipedal-walker.tf "
    "td3-critic1-bipedal-walker.tf td3-critic2-bipedal-walker.tf --buffer-max-size 1000000 "
    "--buffer-initial-size 100 --buffer-batch-size 100",
    "trpo-pong": f"trpo {PONG} --n-envs 16 --checkpoints trpo-actor-pong.tf trpo-critic-pong.tf --preprocess "
    "--lr 1e-3",
    "trpo-walker": f"trpo {WALKER} --target-reward 200 --checkpoints trpo-actor-pong.tf trpo-critic-pong.tf "
    "--lr 1e-3",
}
"""As printed, in the document's spelling of flags."""
LIMITS = {"ddpg": 3_000_000, "dqn": 3_000_000, "td3": 3_000_000}
"""Steps after which a command that has not arrived is ended; for others 20 million."""
ENDS = {
    " reached after ": "its target",
    "Stopped early": "early stopping: nothing improved",
    "Done:": "the limit of steps",
}
"""What the last lines of a training say, and what that means."""
EPISODES = 10


def train(name: str, seed: int, runs: Path, minutes: float | None) -> None:
    """Begin a command, or go on with it, for some time or until it ends."""
    words = COMMANDS[name].split()
    folder = runs / f"{name}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "play.txt").is_file():
        return
    command = [sys.executable, "-m", "operant", "train"]
    if (folder / "run" / "checkpoints").exists():
        command += ["--resume", "run"]
    else:
        limit = LIMITS.get(words[0], 20_000_000)
        command += [*words, "--seed", str(seed), "--run-dir", "run", "--max-steps", str(limit)]
    with (folder / "output.txt").open("a") as output:
        run = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            run.wait(None if minutes is None else 60 * minutes)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT)
            run.wait()
            return
    if run.returncode:
        raise SystemExit(f"{name} failed: see {folder / 'output.txt'}")
    if ended((folder / "output.txt").read_text()) is None:  # interrupted: the next call goes on
        return
    play = [sys.executable, "-m", "operant", "play", "run", "--episodes", str(EPISODES), "--seed", "1"]
    played = subprocess.run(
        play, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    (folder / "play.txt").write_text(played.stdout + played.stderr)


def ended(output: str) -> str | None:
    """Return what ended a training, by what it printed; None: nothing yet."""
    return next((end for words, end in ENDS.items() if words in output), None)


def found(name: str, seed: int, runs: Path) -> dict[str, Any] | None:
    """Return how far a command has come; None if no episode of it has ended."""
    folder = runs / f"{name}-{seed}"
    if not (folder / "run" / "history.parquet").exists():
        return None
    history = read_history(folder / "run" / "history.parquet")
    if not len(history["step"]):
        return None
    facts = json.loads((folder / "run" / "run.json").read_text())
    output = (folder / "output.txt").read_text()
    played = folder / "play.txt"
    score = re.search(r"mean return (-?[\d.]+)", played.read_text()) if played.is_file() else None
    return {
        "command": f"operant train {COMMANDS[name]}",
        "seed": seed,
        "steps": int(history["step"][-1]),
        "hours": round(float(history["time"][-1]) / 3600, 2),
        "mean_return": round(float(history["mean_reward"][-1]), 1),
        "best_mean_return": round(float(history["best_reward"][-1]), 1),
        "end": ended(output),
        "play": score and float(score[1]),
        "machine": facts["machine"],
        "operant": facts["git"] or facts["versions"]["operant"],
    }


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Return the table of the page."""
    lines = [
        "| command | seed | steps | hours | mean return of 100 episodes | ended by | ten episodes played | "
        "processor |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in COMMANDS:
        for row in results.get(name, []):
            picture = f"[`{name}`](images/documents-{name}-{row['seed']}.png)"
            played = "-" if row["play"] is None else f"{row['play']:g}"
            lines.append(
                f"| {picture} | {row['seed']} | {row['steps']:,} | {row['hours']:g} | {row['mean_return']:g} "
                f"(best {row['best_mean_return']:g}) | {row['end'] or 'not yet ended'} | {played} | "
                f"{row['machine']['processor']} |"
            )
        if name not in results:
            lines.append(f"| `{name}` | - | - | - | not begun | - | - | - |")
    return "\n".join(lines)


def main() -> None:
    """Train, play and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(COMMANDS)}; none: all")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs, which stay")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--minutes", type=float, help="time for each command of this call (default: no limit)"
    )
    parser.add_argument("--so-far", action="store_true", help="train nothing; write what is there")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(COMMANDS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}. Known: {', '.join(COMMANDS)}")
    if not arguments.so_far:
        for name in arguments.names or COMMANDS:
            train(name, arguments.seed, arguments.runs, arguments.minutes)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in COMMANDS:
        rows = {row["seed"]: row for row in results.get(name, [])}
        for place in sorted(arguments.runs.glob(f"{name}-*")):
            seed = int(place.name.rpartition("-")[2])
            if row := found(name, seed, arguments.runs):
                rows[seed] = row
        if not rows:
            continue
        results[name] = [rows[seed] for seed in sorted(rows)]
        for seed in rows:
            history = arguments.runs / f"{name}-{seed}" / "run" / "history.parquet"
            if history.exists():
                learning_curve({name: [str(history)]}, IMAGES / f"documents-{name}-{seed}.png", title=name)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    begin, end = MARKS
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(begin)[0], text.split(end)[1]
    PAGE.write_text(f"{before}{begin}\n{table(results)}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
