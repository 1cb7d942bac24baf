"""Measure operant and its peers side by side, in alternating rounds, and write benchmarks/results/NAME.json,
with the table of all (`table.py`) beside it.

    python benchmarks/speed/run.py --workloads ppo-cartpole-8 --peers-python .venv-peers/bin/python

Every runner warms up in a process of its own and then waits for its turn, so that rounds follow each other
closely: the speed of a shared machine changes within minutes. The number of steps is chosen from a first,
uncounted run so that a turn takes about `--seconds`. Measure on a machine that does nothing else: the load
before each turn is recorded.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import table
from peers import PEERS, Runner
from workloads import WORKLOADS, Workload

from operant.training.provenance import processor

TRIAL_STEPS = {"env": 100_000, "ppo": 20_000}  # for others, and for learning from images: 500

Rounds = dict[str, dict[str, list[dict[str, Any]]]]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=[*WORKLOADS], metavar="WORKLOAD")
    parser.add_argument("--names", nargs="+", choices=PEERS, default=[*PEERS], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds; medians are reported")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each measurement should last")
    parser.add_argument("--limit-seconds", type=float, default=600.0, help="when to give a measurement up")
    parser.add_argument("--peers-python", help="interpreter that has stable-baselines3 and sbx-rl")
    parser.add_argument("--rejax-python", help="interpreter that has rejax")
    parser.add_argument("--predecessors-python", help="interpreter that has xagents and tensorforce")
    parser.add_argument("--output", default="speed", help="name of the file in benchmarks/results: speed...")
    return parser.parse_args()


def interpreters(arguments: argparse.Namespace) -> dict[str, str]:
    paths = {
        "peers": arguments.peers_python,
        "rejax": arguments.rejax_python,
        "predecessors": arguments.predecessors_python,
    }
    return {name: path for name, path in paths.items() if path}


def trial_steps(workload: Workload) -> int:
    if workload.kind == "ppo" and workload.atari:
        return 500
    return TRIAL_STEPS.get(workload.kind, 500)


def measure(
    workload: str, arguments: argparse.Namespace, failures: list[str]
) -> dict[str, list[dict[str, Any]]]:
    """Run all peers that know the workload, in turn; the first of one round is the last of the next.

    One that fails in the first, uncounted run is added to `failures` and left out.
    """
    names = [name for name in arguments.names if PEERS[name].knows(workload)]
    pythons, limit = interpreters(arguments), arguments.limit_seconds
    with contextlib.ExitStack() as stack:

        def ready(name: str, steps: int) -> Runner:
            return stack.enter_context(contextlib.closing(Runner(name, workload, steps, pythons, limit)))

        runners = {}
        for name in names:
            try:
                trial = ready(name, trial_steps(WORKLOADS[workload]))
                steps = max(1, round(trial.measure()["steps_per_second"] * arguments.seconds))
                trial.close()
                runners[name] = ready(name, steps)
            except RuntimeError as error:
                failures.append(str(error))
                print(error, file=sys.stderr)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in runners}
        order = collections.deque(runners)
        for index in range(arguments.rounds):
            for name in order:
                turn = runners[name].measure()
                found[name].append(turn)
                speed, load = turn["steps_per_second"], turn["load"]
                print(
                    f"{workload} round {index + 1}: {name} {speed:,.0f} steps/s (load {load:.1f})", flush=True
                )
            order.rotate(-1)
    return found


def write(results: Rounds, arguments: argparse.Namespace) -> Path:
    """Write what was measured so far."""
    data = {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.system(),
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "command": " ".join(["python benchmarks/speed/run.py", *shown(sys.argv[1:])]),
        "results": results,
    }
    table.RESULTS.mkdir(exist_ok=True)
    path = table.RESULTS / f"{arguments.output}.json"
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return path


def shown(words: list[str]) -> list[str]:
    """Leave out the paths of interpreters on this machine."""
    return [f".../{Path(word).name}" if os.sep in word else word for word in words]


def main() -> int:
    arguments = read_arguments()
    if arguments.rounds < 5:
        print("Fewer than 5 rounds: a look, not a result.", file=sys.stderr)
    results: Rounds = {}
    failures: list[str] = []
    for workload in arguments.workloads:
        found = measure(workload, arguments, failures)
        if found:
            results[workload] = found
            print(write(results, arguments))
            table.write()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
