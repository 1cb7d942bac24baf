"""Several seeds at once on JAX-native environments, and one: environment steps per second.

    python benchmarks/seeds.py

Each figure is of a process of its own, in turn; compilation is not counted. `apart`: one program, called for
each seed by as many threads as there are cores, as `operant train --n-seeds` does on a CPU. `mapped`: one
program for all by `vmap`, as it does on a GPU.

Results: benchmarks/results/seeds.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from operant.training.provenance import processor

if TYPE_CHECKING:
    from operant.training.drivers.seeds import MultiSeedRunner

RESULTS = Path(__file__).parent / "results"
ENVS = {"td3": "jax:Pendulum-v1", "sac": "jax:Pendulum-v1"}
WORKLOADS = {"ppo": 8, "a2c": 8, "dqn": 1, "td3": 1, "sac": 1}
"""Environments of one run."""
WAYS = ("one", "mapped", "apart")
SEEDS = 8
OPTIONS = {"buffer_initial_size": 500}
"""Of those that learn from a replay memory: so that all that is measured is learning."""
CALL_STEPS, WARM_STEPS = 256, 1024
"""Steps of one call, at least one block, where learning takes long.

Steps of each seed before those that are measured.
"""


def measure(name: str, way: str, seconds: float) -> float:
    """Return the steps per second of all seeds together."""
    import jax
    import jax.numpy as jnp

    from operant.agents.base.agent_spec import parse_agent
    from operant.spec.run import RunConfig
    from operant.training.drivers.seeds import MultiSeedRunner
    from operant.training.environments import make_environments
    from operant.training.session import build

    run = RunConfig(env=ENVS.get(name, "jax:CartPole-v1"), n_envs=WORKLOADS[name], seed=1, max_steps=10**6)
    environments = make_environments(run)
    seeds = 1 if way == "one" else SEEDS
    options = OPTIONS if WORKLOADS[name] == 1 else {}
    learner = build(parse_agent(name, **options), environments, run, seeds if way == "apart" else 1)
    keys = jnp.stack([jax.random.key(seed) for seed in range(seeds)])
    population = MultiSeedRunner(learner, environments.native, run.n_envs, keys, mapped=way == "mapped")
    return steps_per_second(
        population, min(population.blocks, CALL_STEPS) if name in ENVS else population.blocks, seconds
    )


def steps_per_second(population: MultiSeedRunner, blocks: int, seconds: float) -> float:
    """Let a population, once warm, run in calls of that many blocks.

    Return the steps per second of all seeds together.
    """
    while population.steps[0] < WARM_STEPS:
        population.advance(blocks)
    steps, began = int(population.steps.sum()), time.perf_counter()
    while (taken := time.perf_counter() - began) < seconds:
        population.advance(blocks)
    return (int(population.steps.sum()) - steps) / taken


def estimated(values: list[float], digits: str) -> str:
    """Write a median with the lowest and the highest."""
    return f"{statistics.median(values):{digits}} [{min(values):{digits}}, {max(values):{digits}}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--one", nargs=2, metavar=("AGENT", "WAY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(measure(*arguments.one, arguments.seconds))
        return
    load = os.getloadavg()[0]
    found: dict[tuple[str, str], list[float]] = {(name, way): [] for name in WORKLOADS for way in WAYS}
    for _ in range(arguments.rounds):
        for name, way in found:
            words = (sys.executable, __file__, "--seconds", str(arguments.seconds), "--one", name, way)
            output = subprocess.run(words, capture_output=True, check=True, text=True).stdout
            found[name, way].append(float(output.split()[-1]))
            print(name, way, f"{found[name, way][-1]:,.0f}", flush=True)
    rows = []
    for name, n in WORKLOADS.items():
        one = found[name, "one"]
        speeds = " | ".join(estimated(found[name, way], ",.0f") for way in WAYS)
        times = " | ".join(
            estimated([SEEDS * x / y for x, y in zip(one, found[name, way], strict=True)], ".1f")
            for way in WAYS[1:]
        )
        rows.append(
            f"| {name} | {ENVS.get(name, 'jax:CartPole-v1').partition(':')[2]} | {n} | {speeds} | {times} |"
        )
    lines = [
        "# Speed of eight seeds at once",
        "",
        f"`python benchmarks/seeds.py --rounds {arguments.rounds}`: {__doc__.splitlines()[0]} "
        f"{' '.join(__doc__.split(chr(10) * 2)[-2].split())}",
        "Medians, in brackets the lowest and the highest. The last two columns: the time that eight seeds "
        "take, as multiples of the time of one.",
        f"{os.cpu_count()} cores of {processor()}, load {load:.1f} at the start, Python "
        f"{platform.python_version()}, JAX {version('jax')}; options",
        f"as they come, but for replay {', '.join(f'`{k}={v}`' for k, v in OPTIONS.items())}.",
        "",
        "| agent | environment | environments | one seed | eight mapped | eight apart | mapped, times one | "
        "apart, times one |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
        *rows,
    ]
    (RESULTS / "seeds.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
