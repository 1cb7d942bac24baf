"""On a GPU: seeds at once on JAX-native environments, and whether they learn.

    python benchmarks/gpu.py

All seeds are one program (`vmap`), as `operant train --n-seeds` makes of them on a GPU. Compilation, of
several programs at a time, is not counted. Results: benchmarks/results/gpu.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "speed"))

import jax
import jax.numpy as jnp
import numpy as np
from operant_speed import options
from seeds import CALL_STEPS, ENVS, OPTIONS, SEEDS, WORKLOADS, estimated, steps_per_second
from workloads import WORKLOADS as SPEED_WORKLOADS

from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import Learner
from operant.envs.native import ids
from operant.spec import presets
from operant.training.drivers.seeds import MultiSeedRunner
from operant.training.provenance import processor

RESULTS = Path(__file__).parent / "results"
GRID = ((64, 64), (256, 64), (2048, 4), (16, 2048))
"""Seeds, and environments of each, of PPO with the settings of the speed comparisons."""
AT_ONCE = ("ppo", "dqn", "sac")
LEARN = (("ppo", "cartpole-500k", "jax:CartPole-v1"), ("sac", "pendulum-20k", "jax:Pendulum-v1"))
"""Presets, and the JAX-native forms of their environments."""


class Job(NamedTuple):
    """A population to measure: `seeds` runs of `envs` environments."""

    agent: str
    env: str
    seeds: int
    envs: int
    options: dict[str, Any]


def at_once(agent: str, seeds: int) -> Job:
    replay = {**OPTIONS, "buffer_max_size": 100_000}
    own = replay if WORKLOADS[agent] == 1 else {}
    return Job(agent, ENVS.get(agent, "jax:CartPole-v1"), seeds, WORKLOADS[agent], own)


def grid(seeds: int, envs: int) -> Job:
    like = SPEED_WORKLOADS["ppo-cartpole-jax-64"]
    own = dataclasses.replace(like, num_envs=envs, batch_size=envs * like.n_steps // 4)
    return Job("ppo", "jax:CartPole-v1", seeds, envs, options(own))


def preset(agent: str, name: str, env: str) -> tuple[Job, int]:
    """Return eight seeds with a preset's settings on the JAX-native form of its environment, and its
    steps."""
    settings = presets.settings(agent, name)
    steps, envs = settings.pop("max_steps"), settings.pop("n_envs", 1)
    own = {key: value for key, value in settings.items() if key in parse_agent(agent).config.to_dict()}
    return Job(agent, env, SEEDS, envs, own), steps


def made(job: Job) -> tuple[MultiSeedRunner, float]:
    """Return a compiled population, and the seconds that this took beside others."""
    began = time.perf_counter()
    definition, env = parse_agent(job.agent, **job.options), ids.make(job.env)
    learner = Learner(definition.cls.create(definition.config, env.spaces, job.envs))
    keys = jnp.stack([jax.random.key(seed) for seed in range(1, job.seeds + 1)])
    population = MultiSeedRunner(learner, env, job.envs, keys, mapped=True)
    population.advance(1)
    return population, time.perf_counter() - began


def speeds(population: MultiSeedRunner, seconds: float, rounds: int) -> list[float]:
    """Return the steps per second of all seeds together, of each round."""
    blocks = min(population.blocks, CALL_STEPS)
    return [steps_per_second(population, blocks, seconds) for _ in range(rounds)]


def learnt(population: MultiSeedRunner, steps: int) -> tuple[list[float], float]:
    """Return the mean return of each seed's last 100 episodes after that many steps, and the seconds."""
    returns: list[list[float]] = [[] for _ in range(population.size)]
    began = time.perf_counter()
    while population.steps[0] < steps:
        for own, episodes in zip(returns, population.advance(population.blocks), strict=True):
            own += [episode.reward for episode in episodes]
    return [float(np.mean(own[-100:])) for own in returns], time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS / "gpu.md")
    arguments = parser.parse_args()
    began = time.perf_counter()
    pairs = {agent: (at_once(agent, 1), at_once(agent, SEEDS)) for agent in AT_ONCE}
    grids = [grid(*each) for each in GRID]
    learning = [preset(*each) for each in LEARN]
    jobs = [job for pair in pairs.values() for job in pair] + grids + [job for job, _ in learning]
    with ThreadPoolExecutor(len(jobs)) as pool:
        ready = [future.result() for future in [pool.submit(made, job) for job in jobs]]

    def say(text: str) -> None:
        print(f"{time.perf_counter() - began:5.0f} s  {text}", flush=True)

    say(f"{len(jobs)} programs compiled")
    populations = iter(ready)
    rows: list[str] = []

    def row(text: str) -> None:
        rows.append(text)
        say(text)

    rows += [
        "| agent | environment | environments | one seed | eight seeds | time of eight, times one |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, (one, _) in pairs.items():
        single, eight = (speeds(next(populations)[0], arguments.seconds, arguments.rounds) for _ in range(2))
        times = [SEEDS * a / b for a, b in zip(single, eight, strict=True)]
        row(
            f"| {name} | {one.env} | {one.envs} | {estimated(single, ',.0f')} | {estimated(eight, ',.0f')} "
            f"| {estimated(times, '.2f')} |"
        )
    rows += [
        "",
        "PPO on CartPole, 64-64, 128 steps, 4 epochs of 4 minibatches (goal: 15 million):",
        "",
        "| seeds | environments of each | steps/s of all | compiled beside others, s |",
        "|---:|---:|---:|---:|",
    ]
    for job in grids:
        population, seconds = next(populations)
        row(
            f"| {job.seeds} | {job.envs} | "
            f"{estimated(speeds(population, arguments.seconds, arguments.rounds), ',.0f')} | {seconds:.0f} |"
        )
    rows += [
        "",
        "Eight seeds with a preset's settings, last 100 training episodes of each:",
        "",
        "| preset | environment | steps of each | mean return of each seed | seconds |",
        "|---|---|---:|---|---:|",
    ]
    for (agent, name, env), (_, steps) in zip(LEARN, learning, strict=True):
        scores, seconds = learnt(next(populations)[0], steps)
        shown = ", ".join(f"{score:.1f}" for score in scores)
        row(f"| {agent}:{name} | {env} | {steps:,} | {shown} | {seconds:.1f} |")
    device = jax.devices()[0]
    versions = ", ".join(
        f"{name} {version(name)}"
        for name in ("jax", "jaxlib", "numpy", "keras", "optax", "gymnasium", "ale-py")
    )
    lines = [
        "# Speed on a GPU",
        "",
        f"`python benchmarks/gpu.py --rounds {arguments.rounds} --seconds {arguments.seconds:g}`, "
        f"{time.strftime('%Y-%m-%d')}: environment steps per second, medians, in brackets the lowest and "
        "the highest.",
        f"{device.device_kind}; {processor()}; {versions}; JAX's own precision (TF32).",
        "",
        *rows,
    ]
    arguments.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    say("written")


if __name__ == "__main__":
    main()
