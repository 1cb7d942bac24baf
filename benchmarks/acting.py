"""What one `agent.act` and `agent.observe` of a 4-64-64-2 policy take, next to the bare forward pass of
PyTorch.

    python benchmarks/acting.py --peers-python PEERS/bin/python        # writes benchmarks/results/acting.md

PyTorch's figure is `network(tensor)` in eager mode without gradients: no sampling, no conversion from or to
NumPy, nothing kept. operant's is all that a program's loop asks for: the states are checked, an action is
drawn and returned as a number, the row is kept for learning.
"""

import argparse
import json
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from operant.training.provenance import processor

ROOT = Path(__file__).parents[1]
CALLS = 2000
SUBJECTS = ("torch", "operant", "operant-16")


def torch_forward():
    """Return the call of a bare forward pass of one state."""
    import torch

    torch.set_num_threads(1)
    layers = [torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(64, 2))
    state = torch.zeros(1, 4)

    def call():
        with torch.no_grad():
            network(state)

    return call


def act_and_observe(actors):
    """Return the call of act and observe for this many actors, each with a state of its own."""
    import numpy as np

    from operant import Agent

    agent = Agent.create(
        agent="ppo",
        states={"type": "float", "shape": (4,)},
        actions={"type": "int", "num_values": 2},
        model=[{"type": "dense", "size": 64}] * 2,
        n_steps=1_000_000,  # no update in between
        mini_batches=1,
        parallel_interactions=actors,
        seed=0,
    )
    if actors == 1:
        state = np.zeros(4, np.float32)

        def single():
            agent.act(state)
            agent.observe(reward=1.0)

        return single
    states, parallel = np.zeros((actors, 4), np.float32), list(range(actors))
    reward, terminal = np.ones(actors), np.zeros(actors, int)

    def batched():
        agent.act(states, parallel=parallel)
        agent.observe(reward=reward, terminal=terminal, parallel=parallel)

    return batched


def measure(subject):
    """Return microseconds per call, the median of a few hundred stretches, and the version."""
    if subject == "torch":
        call, package = torch_forward(), "torch"
    else:
        call, package = act_and_observe(16 if subject == "operant-16" else 1), "operant"
    for _ in range(CALLS):
        call()
    taken = []
    for _ in range(CALLS // 10):
        began = time.perf_counter()
        for _ in range(10):
            call()
        taken.append((time.perf_counter() - began) / 10 * 1e6)
    return {"micros": sorted(taken)[len(taken) // 2], "version": f"{package} {version(package)}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers-python", required=True, help="interpreter of an environment with PyTorch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--subject", choices=SUBJECTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.subject:
        print(json.dumps(measure(arguments.subject)))
        return
    found = {subject: [] for subject in SUBJECTS}
    versions = set()
    for _ in range(arguments.rounds):
        for subject in SUBJECTS:
            python = arguments.peers_python if subject == "torch" else sys.executable
            command = [python, __file__, "--peers-python", python, "--subject", subject]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            result = json.loads(printed.splitlines()[-1])
            found[subject].append(result["micros"])
            versions.add(result["version"])
    middle = {subject: sorted(values)[len(values) // 2] for subject, values in found.items()}
    titles = {
        "torch": "PyTorch, bare forward pass",
        "operant": "operant, act + observe",
        "operant-16": "operant, act + observe of 16 actors in one call, per actor",
    }
    lines = [
        "# Inference latency",
        "",
        "A 4-64-64-2 policy on CPU: " + " ".join(__doc__.split("\n\n")[-1].split()),
        "",
        f"Processor: {processor()}. Medians of {arguments.rounds} alternating processes (in brackets: "
        "fastest, slowest). Versions: "
        f"python {sys.version.split()[0]}, {', '.join(sorted(versions))}, jax {version('jax')}. "
        f"Command: `python benchmarks/acting.py --peers-python .../python --rounds {arguments.rounds}`.",
        "",
        "| | µs | of PyTorch's |",
        "|---|---:|---:|",
    ]
    for subject, title in titles.items():
        share = 16 if subject == "operant-16" else 1
        low, mid, high = (x / share for x in (min(found[subject]), middle[subject], max(found[subject])))
        ratio = mid / middle["torch"]
        lines.append(f"| {title} | {mid:.1f} [{low:.1f}, {high:.1f}] | {ratio:.2f} |")
    text = "\n".join(lines) + "\n"
    (ROOT / "benchmarks" / "results" / "acting.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
