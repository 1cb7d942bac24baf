"""Learning over seeds: train presets, report mean, IQM and bootstrap intervals, draw the curves, compare with
the gates.

    python benchmarks/learning/run.py ppo:cartpole-500k dqn:cartpole-500k --seeds 5

A seed's score is the mean return of its last 100 training episodes or, if the gate says so, of 100 episodes
of the final policy without exploration; then its last training episodes stand beside it. A gate is passed if
the lower end of the 95% bootstrap interval of the mean over seeds is above it (and, if the gate has an upper
bound, the upper end is below that); a single seed, which has no interval, passes none. Results go to
benchmarks/results/learning.json and .md, histories to benchmarks/results/curves/, pictures of them to
docs/images/.

With `--runs DIR` the runs are kept there: seeds that are there already are not trained again, and one that
was interrupted resumes from its newest checkpoint, so long work can be done in pieces. `--so-far` trains
nothing and reports those that were interrupted, beside those of the same preset that were trained to the end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import operant
from operant.spec import options, presets
from operant.spec.run import RunConfig
from operant.tracking import History, interval, learning_curve, read_history
from operant.training.environments import host_vector
from operant.training.evaluate import Evaluator
from operant.training.train import ExperimentConfig, resumed, train

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
LAST_EPISODES = 100
CURVE_POINTS = 1000
PACKAGES = ("jax", "keras", "optax", "numpy", "gymnasium")
ENOUGH_SEEDS = 5
"""With fewer, an interval is too narrow to say anything, and no gate is judged."""


class Gate(NamedTuple):
    """What a preset must reach."""

    bound: float | None
    """What the lower end of the interval must exceed.

    None if nobody has published a figure for as many steps.
    """
    published: str
    greedy: bool = False
    """Whether the final policy is scored, without exploration."""
    below: float | None = None
    """What the upper end must stay below; None: anything may be reached."""


GATES = {
    "ppo:cartpole-500k": Gate(480.0, "CleanRL's settings: 490.04 ± 6.12"),
    "ppo:cartpole": Gate(475.0, "solved"),
    "dqn:cartpole-500k": Gate(470.0, "CleanRL's settings: 488.69 ± 16.11"),
    "ddqn:cartpole-500k": Gate(470.0, "as DQN"),
    "dqn:cartpole-500k-c51": Gate(460.0, "CleanRL's settings: 481.20 ± 20.53"),
    **{
        f"dqn:cartpole-500k-{option}": Gate(None, "none")
        for option in ("quantile", "dueling", "n-step", "prioritized")
    },
    "pqn:cartpole-500k": Gate(470.0, "CleanRL's settings: 495.13 ± 6.89"),
    "a2c:cartpole-500k": Gate(480.0, "rl-zoo3: 500.0 ± 0.0 (500k steps, one run)"),
    "acer:cartpole-500k": Gate(470.0, "SB2 zoo: 498.62 ± 23.86 (500k steps, one run)"),
    "ppo:pendulum": Gate(-250.0, "rl-zoo3: -172.2 ± 104.2 (100k steps, one run)"),
    "ddpg:pendulum-20k": Gate(-190.0, "rl-zoo3: -152.1 ± 94.3 (one run)", greedy=True),
    "td3:pendulum-20k": Gate(-190.0, "rl-zoo3: -151.9 ± 90.2 (one run)", greedy=True),
    "sac:pendulum-20k": Gate(-190.0, "rl-zoo3: -157.0 ± 88.7 (one run)", greedy=True),
    "td3:halfcheetah-100k": Gate(4400.0, "the authors' curve: 5513 ± 554 at 100k (10 seeds)", greedy=True),
    "sac:halfcheetah-100k": Gate(None, "none at 100k steps", greedy=True),
    "ddpg:halfcheetah-100k": Gate(None, "none at 100k steps", greedy=True),
    "td3:halfcheetah-1m": Gate(8700.0, "the authors' curve: 9567 ± 833 at 1M (10 seeds)", greedy=True),
    "ddpg:halfcheetah-1m": Gate(
        8000.0,
        "CleanRL: 10374 ± 157 (3 seeds, training; actor and targets move every second step)",
        greedy=True,
    ),
    "sac:halfcheetah-1m": Gate(8200.0, "CleanRL's settings: 9635 ± 1424 (3 seeds, training)", greedy=True),
    "ppo:halfcheetah-1m": Gate(
        1300.0, "CleanRL's settings: 1443 ± 46 (3 seeds); above 3000 means that settings differ", below=3000.0
    ),
    "ppo:lunarlander": Gate(200.0, "rl-zoo3: 242.1 ± 31.8 (LunarLander-v2, one run, greedy)", greedy=True),
    "trpo:cartpole-100k": Gate(480.0, "rl-zoo3: 500 ± 0 (one run, greedy)", greedy=True),
    "trpo:cartpole": Gate(480.0, "rl-zoo3: 500 ± 0 (100k steps, other settings, one run, greedy)"),
    "ppo:mountaincar-default": Gate(
        -200.5, "CleanRL: -200 ± 0 (must fail: a negative control)", below=-199.5
    ),
    "ppo:minatar-breakout": Gate(None, "gymnax: 28 (10 million steps, dense network, one run)"),
    **{f"{agent}:minatar-breakout": Gate(None, "none") for agent in ("pqn", "a2c", "acer", "dqn")},
    "ppo:pong": Gate(19.5, "CleanRL's settings: 20.36 ± 0.20 (3 seeds)"),
    "dqn:pong": Gate(19.5, "CleanRL's settings: 20.25 ± 0.41 (3 seeds)"),
    "dqn:pong-1m": Gate(19.5, "CleanRL: 20.25 ± 0.41 (10 million steps, plain DQN, 3 seeds)"),
    "acer:pong": Gate(19.0, "SB2 zoo: 20.67 ± 0.51 (one run)"),
}


def train_seed(
    agent: str, settings: dict[str, Any], seed: int, directory: Path, greedy: bool
) -> dict[str, Any]:
    done, begun = directory / "score.json", directory.with_suffix(".json")
    if done.is_file():
        known: dict[str, Any] = json.loads(done.read_text())
        expect(known.pop("settings"), settings, directory)
        return known
    if (directory / "run.json").is_file() and begun.is_file():
        expect(json.loads(begun.read_text()), settings, directory)
        plan = resumed(directory, {})
    else:
        shutil.rmtree(directory, ignore_errors=True)
        directory.parent.mkdir(parents=True, exist_ok=True)
        begun.write_text(json.dumps(settings))
        names = options(RunConfig)
        run = {k: v for k, v in settings.items() if k in names}
        own = {k: v for k, v in settings.items() if k not in names}
        plan = ExperimentConfig(
            agent,
            own,
            RunConfig.from_dict({**run, "seed": seed, "quiet": True, "run_dir": str(directory)}),
        )
    began = time.perf_counter()
    outcome = train(plan, command="").outcome
    seconds = time.perf_counter() - began
    if outcome.reason == "interrupted":
        raise SystemExit(f"{outcome.message} The same command goes on with {directory}.")
    history = read_history(directory / "history.parquet")
    training = float(np.mean(history["episode_reward"][-LAST_EPISODES:]))
    result = {
        "seed": seed,
        "score": float(np.mean(play(directory))) if greedy else training,
        **({"training": training} if greedy else {}),
        "steps": outcome.step,
        "episodes": outcome.episodes,
        "training_seconds": round(outcome.seconds, 1),
        "whole_seconds": round(seconds, 1),
        "measured": measured(),
    }
    done.write_text(json.dumps({**result, "settings": settings}))
    return result


def measured() -> str:
    """Return the day, the commit of operant and the versions of what it builds on, in words."""
    place = Path(operant.__file__).parent
    found = subprocess.run(
        ["git", "-C", str(place), "describe", "--always", "--dirty", "--exclude=*"],
        capture_output=True,
        text=True,
    )
    commit = found.stdout.strip() or f"operant {version('operant')}"
    return ", ".join([time.strftime("%Y-%m-%d"), commit, *(f"{p} {version(p)}" for p in PACKAGES)])


def expect(found: dict[str, Any], settings: dict[str, Any], directory: Path) -> None:
    """Refuse a seed that was trained with other settings."""
    if found != settings:
        raise SystemExit(f"{directory} was trained with other settings. Give another --runs.")


def play(directory: Path) -> list[float]:
    """Score the final policy of a run without exploration, on environments with seeds that training has
    not seen."""
    run = resumed(directory, {}).run
    with operant.Agent.load(directory) as agent, host_vector(run, 10) as env:
        assert agent.engine is not None
        seed = 10_000 + (run.seed or 0)
        finished = Evaluator(agent.learner, env).run(agent.engine.train, LAST_EPISODES, seed=seed)
    return [episode.reward for episode in finished]


def run_preset(name: str, seeds: int, max_steps: int | None, runs: Path) -> dict[str, Any]:
    agent, preset = name.split(":")
    settings = presets.settings(agent, preset)
    settings.pop("target_reward", None)
    if max_steps is not None:
        settings["max_steps"] = max_steps
    gate = GATES.get(name)
    results = []
    for seed in range(1, seeds + 1):
        results.append(
            train_seed(
                agent,
                settings,
                seed,
                runs / name.replace(":", "-") / str(seed),
                gate is not None and gate.greedy,
            )
        )
        print(name, results[-1], flush=True)
    return judged({"preset": name, "settings": settings, "seeds": results} | statistics(results))


def statistics(seeds: Sequence[dict[str, Any]]) -> dict[str, list[float | None]]:
    """Return mean and IQM of the scores, and the mean of the training episodes if scores are of others,
    with intervals if there are enough seeds."""
    wanted = [("mean", "score", "mean"), ("iqm", "score", "iqm"), ("training", "training", "mean")]
    found = {}
    for name, column, statistic in wanted:
        if all(column in r for r in seeds):
            ends = interval([r[column] for r in seeds], statistic)
            if len(seeds) < ENOUGH_SEEDS:
                ends = (ends[0], math.nan, math.nan)
            found[name] = [round(x, 2) if math.isfinite(x) else None for x in ends]
    return found


def so_far(name: str, runs: Path) -> dict[str, Any]:
    """Return what the interrupted seeds of a preset have reached.

    Raises:
        SystemExit: there are none.
    """
    folder = runs / name.replace(":", "-")
    seeds = []
    for directory in sorted(path for path in folder.glob("*") if (path / "history.parquet").exists()):
        if (directory / "score.json").is_file():
            continue
        history = read_history(directory / "history.parquet")
        rewards = history["episode_reward"]
        if not len(rewards):
            continue
        seeds.append(
            {
                "seed": int(directory.name),
                "first": round(float(np.mean(rewards[:LAST_EPISODES])), 2),
                "score": round(float(np.mean(rewards[-LAST_EPISODES:])), 2),
                "steps": int(history["step"][-1]),
                "episodes": len(rewards),
                "training_seconds": round(float(history["time"][-1]), 1),
            }
        )
    if not seeds:
        raise SystemExit(
            f"{folder} has no seed of {name} that was interrupted. Give the --runs of its training."
        )
    settings = json.loads((folder / f"{seeds[0]['seed']}.json").read_text())
    return {"preset": name, "settings": settings, "seeds": seeds}


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the verdict of its gate."""
    gate = GATES.get(row["preset"])
    if gate is None:
        return row
    said: dict[str, Any] = {"published": gate.published, "greedy": gate.greedy}
    if gate.bound is not None:
        low, high = row["mean"][1:]
        said |= {"gate": gate.bound, "below": gate.below}
        if low is not None:
            said["passed"] = low > gate.bound and (gate.below is None or high < gate.below)
    return row | said


def keep_curves(rows: Sequence[dict[str, Any]], runs: Path) -> None:
    """Keep the histories of seeds with the results, so that pictures can be drawn when the runs are gone."""
    for row in rows:
        folder = row["preset"].replace(":", "-")
        for r in row["seeds"]:
            file = runs / folder / str(r["seed"]) / "history.parquet"
            if file.exists():
                kept = RESULTS / "curves" / folder / f"{r['seed']}.parquet"
                kept.parent.mkdir(parents=True, exist_ok=True)
                parquet.write_table(pa.table(thinned(read_history(file))), kept)


def thinned(history: History) -> History:
    """Return a history of at most `CURVE_POINTS` rows: if rows are left out, returns are means that
    include them."""
    count = len(history["step"])
    starts = np.unique(np.linspace(0, count, CURVE_POINTS, endpoint=False).astype(int))
    ends = np.append(starts[1:], count)
    rows = {name: column[ends - 1] for name, column in history.items()}
    rows["episode_reward"] = np.add.reduceat(history["episode_reward"], starts) / (ends - starts)
    return rows


def curves(row: dict[str, Any]) -> dict[int, History]:
    """Return the kept histories of a row by seed."""
    folder = RESULTS / "curves" / row["preset"].replace(":", "-")
    files = {r["seed"]: folder / f"{r['seed']}.parquet" for r in row["seeds"]}
    return {seed: read_history(file) for seed, file in files.items() if file.is_file()}


def drawn(name: str, results: dict[str, Any]) -> dict[str, list[History]]:
    """Return what a preset's picture shows by label: finished seeds together, each interrupted one as far
    as it has come."""
    shown: dict[str, list[History]] = {}
    for row in results["rows"]:
        if row["preset"] == name and (seeds := curves(row)):
            shown[name] = list(seeds.values())
    for row in results["unfinished"]:
        if row["preset"] == name:
            shown |= {f"{name}, seed {seed} so far": [curve] for seed, curve in curves(row).items()}
    return shown


def draw(name: str, results: dict[str, Any]) -> dict[str, list[History]]:
    """Draw a preset's picture, and return what it shows."""
    seeds, picture = drawn(name, results), IMAGES / f"{name.replace(':', '-')}.png"
    learning_curve(seeds, picture, title=name, plot=column(chain(*seeds.values())))
    return seeds


def column(seeds: Iterable[History]) -> str:
    """Return the column to draw: in short trainings the mean of the last 100 episodes lags too far behind."""
    episodes = min(len(history["episode_reward"]) for history in seeds)
    return "episode_reward" if episodes < 10 * LAST_EPISODES else "mean_reward"


def without(row: dict[str, Any], finished: dict[str, Any] | None) -> dict[str, Any]:
    """Return a row without the seeds that another one has."""
    known = {r["seed"] for r in finished["seeds"]} if finished else set()
    return row | {"seeds": [r for r in row["seeds"] if r["seed"] not in known]}


def estimated(ends: Sequence[float | None]) -> str:
    """Write a statistic with its interval, if there are enough seeds for one."""
    center, low, high = ends
    return f"{center}" if low is None else f"{center} [{low}, {high}]"


def linked(name: str) -> str:
    """Return the name of a preset, as a link to its picture if there is one, or will be."""
    folder = name.replace(":", "-")
    picture = IMAGES / f"{folder}.png"
    shown = picture.exists() or (RESULTS / "curves" / folder).is_dir()
    return f"[{name}](../../docs/images/{picture.name})" if shown else name


def write(rows: list[dict[str, Any]], unfinished: list[dict[str, Any]], command: str) -> dict[str, Any]:
    """Add rows to those that are there and return all.

    A seed trained to its end is removed from those trained in part.
    """
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / "learning.json"
    old = json.loads(file.read_text()) if file.exists() else {"rows": []}
    kept = {row["preset"]: row for row in [*old["rows"], *rows]}
    parts = {row["preset"]: row for row in [*old.get("unfinished", []), *unfinished]}
    parts = {name: without(row, kept.get(name)) for name, row in parts.items()}
    parts = {name: row for name, row in parts.items() if row["seeds"]}
    kept = {name: judged(row) for name, row in kept.items()}  # gates may have changed since
    machine = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        **{p: version(p) for p in PACKAGES},
    }
    results = {
        "command": command,
        "versions": machine,
        "rows": list(kept.values()),
        "unfinished": list(parts.values()),
    }
    file.write_text(json.dumps(results, indent=1) + "\n")
    lines = [
        "# Learning over seeds",
        "",
        "A seed's score is the mean return of its last 100 training episodes (exploration on) or, where it "
        "says greedy, of 100 episodes",
        "of the final policy without exploration; the column after it has the last 100 training episodes of "
        "those. Intervals are 95%",
        f"bootstrap intervals over seeds. The last to be measured: `{command}`, with "
        f"{', '.join(f'{k} {v}' for k, v in machine.items())};",
        "learning.json has the versions of each.",
        "",
        "| preset | steps | seeds | mean [95%] | training [95%] | IQM [95%] | gate (interval within) | "
        "passed | training, s per seed | published | measured |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in kept.values():
        mean, iqm = (estimated(row[s]) for s in ("mean", "iqm"))
        training = (
            estimated(row["training"])
            if "training" in row
            else "not kept"
            if row.get("greedy")
            else "as scored"
        )
        seconds = float(np.median([r["training_seconds"] for r in row["seeds"]]))
        bound, below = row.get("gate"), row.get("below")
        within = "-" if bound is None else f"above {bound}" if below is None else f"{bound} to {below}"
        when = ", ".join(row["seeds"][-1].get("measured", "not kept").split(", ")[:2])
        lines.append(
            f"| {linked(row['preset'])} | {row['seeds'][0]['steps']:,} | {len(row['seeds'])} | "
            f"{mean}{' greedy' if row.get('greedy') else ''} | {training} | {iqm} | {within} | "
            f"{'yes' if row.get('passed') else 'no' if 'passed' in row else '-'} | {seconds:g} | "
            f"{row.get('published', '-')} | {when} |"
        )
    if parts:
        lines += [
            "",
            "## Trained in part",
            "",
            f"Seeds that were interrupted, as far as they have come: means over {LAST_EPISODES} training "
            "episodes.",
            "",
            "| preset | seed | steps | of | first episodes | last episodes | training, s |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {linked(name)} | {r['seed']} | {r['steps']:,} | {row['settings']['max_steps']:,} | "
            f"{r['first']} | {r['score']} | {r['training_seconds']:g} |"
            for name, row in parts.items()
            for r in row["seeds"]
        ]
    (RESULTS / "learning.md").write_text("\n".join(lines) + "\n")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presets", nargs="*", default=list(GATES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument(
        "--so-far",
        action="store_true",
        help="train nothing: report the seeds in --runs that were interrupted",
    )
    parser.add_argument("--plot", help="name of a picture in docs/images/ with all curves of this call")
    parser.add_argument("--runs", type=Path, help="folder of the runs, which stay (default: a temporary one)")
    arguments = parser.parse_args()
    if arguments.so_far and arguments.runs is None:
        parser.error("--so-far needs the --runs of the training")
    runs = arguments.runs or Path(tempfile.mkdtemp(prefix="learning-"))
    command = "python benchmarks/learning/run.py " + " ".join(
        [*arguments.presets, *(["--so-far"] if arguments.so_far else ["--seeds", str(arguments.seeds)])]
    )
    if arguments.so_far:
        rows = [so_far(name, runs) for name in arguments.presets]
    else:
        rows = [run_preset(name, arguments.seeds, arguments.max_steps, runs) for name in arguments.presets]
    keep_curves(rows, runs)
    results = write([], rows, command) if arguments.so_far else write(rows, [], command)
    IMAGES.mkdir(parents=True, exist_ok=True)
    pictured = {name: draw(name, results) for name in arguments.presets}
    if arguments.plot:
        together = {label: seeds for shown in pictured.values() for label, seeds in shown.items()}
        learning_curve(together, IMAGES / arguments.plot, title="")
    if arguments.runs is None:
        shutil.rmtree(runs)
    failed = [row["preset"] for row in rows if row.get("passed") is False]
    raise SystemExit(f"below the gate: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
