"""On a GPU: seeds at once on JAX-native environments, beside plain JAX, and whether they learn.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --grid 4x8 --seconds 0.3 --rounds 1 --only-grid --output here.md   (on a CPU)

All seeds are one program (`vmap`), as `operant train --n-seeds` makes of them on a GPU. PPO on CartPole runs
beside the same in plain JAX (benchmarks/speed/purejax_speed.py), and in rejax if that is installed
(benchmarks/requirements.txt), in turn: `whole` is with the training loop and the histories of all seeds,
`calls` the compiled calls alone. Programs of the grid are compiled one at a time, the others several at once,
which is not counted. Results: benchmarks/results/gpu.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "speed"))

import jax
import jax.numpy as jnp
import numpy as np
import purejax_speed
from operant_speed import options
from seeds import CALL_STEPS, ENVS, OPTIONS, SEEDS, WORKLOADS, estimated, steps_per_second
from workloads import WORKLOADS as SPEED_WORKLOADS
from workloads import Workload

from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import Learner
from operant.envs.native import ids
from operant.spec import presets
from operant.spec.run import RunConfig
from operant.tracking import History, LoggerGroup
from operant.training.drivers.seeds import MultiSeedRunner
from operant.training.loop import TrainingLoop
from operant.training.multi_seed import run_together
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


def workload(envs: int) -> Workload:
    like = SPEED_WORKLOADS["ppo-cartpole-jax-64"]
    return dataclasses.replace(like, num_envs=envs, batch_size=envs * like.n_steps // 4)


def grid(seeds: int, envs: int) -> Job:
    return Job("ppo", "jax:CartPole-v1", seeds, envs, options(workload(envs)))


def plain(seeds: int, envs: int, iterations: int) -> tuple[Callable[[float], float], float]:
    """Compile the same in plain JAX.

    Return a function that runs for so many seconds and returns its steps per second, and the seconds that
    compiling took.
    """
    own, began = workload(envs), time.perf_counter()
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
    state = [jax.jit(jax.vmap(functools.partial(purejax_speed.start, own)))(keys)]
    step = functools.partial(purejax_speed.iterate, own)
    calls = jax.vmap(lambda train: jax.lax.scan(step, train, None, iterations))
    program = jax.jit(calls, donate_argnums=0).lower(*state).compile()

    def run(seconds: float) -> float:
        steps, began = 0, time.perf_counter()
        while (taken := time.perf_counter() - began) < seconds:
            train, ended = program(state.pop())
            state.append(train)
            np.asarray(ended)  # it tells, too, how many episodes ended
            steps += seeds * envs * own.n_steps * iterations
        return steps / taken

    run(0.0)
    return run, time.perf_counter() - began


def rejax(seeds: int, envs: int, iterations: int) -> Callable[[float], float] | None:
    """Compile the same in rejax, if it is installed; its runs begin anew with each call.

    Return a function that runs for at least so many seconds and returns its steps per second.
    """
    if importlib.util.find_spec("rejax") is None:
        return None
    import rejax_speed

    own = workload(envs)
    steps = own.n_steps * envs * max(iterations, 16)
    train = jax.vmap(rejax_speed.algorithm(own, steps).train)
    program = jax.jit(train).lower(keys := jax.random.split(jax.random.PRNGKey(0), seeds)).compile()

    def run(seconds: float) -> float:
        taken, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            jax.block_until_ready(program(keys))
            taken += seeds * steps
        return taken / passed

    run(0.0)
    return run


class Whole:
    """A population as `operant train --n-seeds` trains it: loops, reports and histories of all seeds."""

    def __init__(self, population: MultiSeedRunner, job: Job, folder: Path) -> None:
        self.population, self.job, self.folder = population, job, folder
        self.definition = parse_agent(job.agent, **job.options)
        self.calls = 2
        """Of the next round: as many as take about the time asked for."""

    def run(self, seconds: float) -> float:
        """Train for about so many seconds; return the steps per second."""
        steps = self.population.blocks * self.population.drivers[0].block_steps * self.calls
        loops, histories = {}, []
        for i, driver in enumerate(self.population.drivers):
            options = RunConfig(
                env=self.job.env, n_envs=self.job.envs, max_steps=driver.step + steps, seed=1, quiet=True
            )
            histories.append(History(self.folder / f"{time.monotonic_ns()}-{i}.parquet"))
            specification = {"parallel_interactions": self.job.envs}
            loops[i] = TrainingLoop(self.definition, driver, options, specification)
            loops[i].loggers = LoggerGroup(histories[-1:])
        before, began = int(self.population.steps.sum()), time.perf_counter()
        run_together(self.population, loops, lambda i, end: None, failed)
        for history in histories:
            history.close()
        taken = time.perf_counter() - began
        self.calls = max(2, round(self.calls * seconds / taken))
        return (int(self.population.steps.sum()) - before) / taken


def failed(seed: int, fault: str) -> None:
    raise SystemExit(f"Seed {seed}: {fault}")


def fetched(population: MultiSeedRunner) -> float:
    """Return the bytes that a call brings to the host, for each environment step."""
    get, sizes = jax.device_get, []

    def note(tree: Any) -> Any:
        sizes.append(sum(x.nbytes for x in jax.tree.leaves(tree)))
        return get(tree)

    before = int(population.steps.sum())
    jax.device_get = note
    try:
        population.advance(population.blocks)
    finally:
        jax.device_get = get
    return sum(sizes) / (int(population.steps.sum()) - before)


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


def compared(seeds: int, envs: int, seconds: float, rounds: int) -> str:
    """Return a row of the table of PPO on CartPole."""
    population, compiling = made(grid(seeds, envs))
    bare, compiling_plain = plain(seeds, envs, population.blocks)
    with tempfile.TemporaryDirectory() as folder:
        whole = Whole(population, grid(seeds, envs), Path(folder))
        ways = {
            "whole": whole.run,
            "calls": lambda seconds: steps_per_second(population, population.blocks, seconds),
            "plain": bare,
            "rejax": rejax(seeds, envs, population.blocks),
        }
        whole.run(seconds)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, run in ways.items():
                if run is not None:
                    found[name].append(run(seconds))
    ratio = statistics.median(a / b for a, b in zip(found["whole"], found["plain"], strict=True))
    speeds = " | ".join(estimated(values, ",.0f") if values else "-" for values in found.values())
    return (
        f"| {seeds} x {envs} | {speeds} | {ratio:.2f} | {fetched(population):.1f} | {compiling:.1f} | "
        f"{compiling_plain:.1f} |"
    )


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
    parser.add_argument("--grid", nargs="+", default=GRID, metavar="SEEDSxENVS", type=sizes)
    parser.add_argument("--only-grid", action="store_true", help="leave the other tables out")
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows: list[str] = []

    def say(text: str) -> None:
        print(f"{time.perf_counter() - began:5.0f} s  {text}", flush=True)

    def row(text: str) -> None:
        rows.append(text)
        say(text)

    rows += [
        "PPO on CartPole, 64-64, 128 steps, 4 epochs of 4 minibatches, seeds x environments of each "
        "(goal: 0.95 of plain JAX); bytes fetched for a step; seconds of compiling both:",
        "",
        "| seeds | whole | calls | plain JAX | rejax | whole / plain | bytes a step | compiling, s | plain |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in arguments.grid:
        row(compared(*each, arguments.seconds, arguments.rounds))
    if not arguments.only_grid:
        others(rows, row, say, arguments)
    write(rows, arguments)
    say("written")


def sizes(text: str) -> tuple[int, int]:
    seeds, envs = text.split("x")
    return int(seeds), int(envs)


def others(
    rows: list[str], row: Callable[[str], None], say: Callable[[str], None], arguments: argparse.Namespace
) -> None:
    """Measure seeds at once of several agents, and what they learn."""
    pairs = {agent: (at_once(agent, 1), at_once(agent, SEEDS)) for agent in AT_ONCE}
    learning = [preset(*each) for each in LEARN]
    jobs = [job for pair in pairs.values() for job in pair] + [job for job, _ in learning]
    with ThreadPoolExecutor(len(jobs)) as pool:
        ready = [future.result() for future in [pool.submit(made, job) for job in jobs]]
    say(f"{len(jobs)} programs compiled")
    populations = iter(ready)
    rows += [
        "",
        "Eight seeds at once, and one:",
        "",
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
        "Eight seeds with a preset's settings, last 100 training episodes of each:",
        "",
        "| preset | environment | steps of each | mean return of each seed | seconds |",
        "|---|---|---:|---|---:|",
    ]
    for (agent, name, env), (_, steps) in zip(LEARN, learning, strict=True):
        scores, seconds = learnt(next(populations)[0], steps)
        shown = ", ".join(f"{score:.1f}" for score in scores)
        row(f"| {agent}:{name} | {env} | {steps:,} | {shown} | {seconds:.1f} |")


def write(rows: list[str], arguments: argparse.Namespace) -> None:
    device = jax.devices()[0]
    versions = ", ".join(
        f"{name} {version(name)}"
        for name in ("jax", "jaxlib", "numpy", "keras", "optax", "gymnasium", "ale-py")
    )
    precision = "float32" if device.platform == "cpu" else "JAX's own precision (TF32)"
    lines = [
        "# Speed on a GPU",
        "",
        f"`python benchmarks/gpu.py --rounds {arguments.rounds} --seconds {arguments.seconds:g}`, "
        f"{time.strftime('%Y-%m-%d')}: environment steps per second, medians, in brackets the lowest and "
        "the highest.",
        f"{device.device_kind}; {processor()}; {versions}; {precision}.",
        "",
        *rows,
    ]
    arguments.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
