"""Time the matrix products of a gradient step of TD3, DDPG and SAC on CPU: batch 256, layers of 256, on one
core and on more.

`library` is what XLA does by itself, `eigen` the same without its library for matrix products, `numpy` the
BLAS that comes with NumPy. Twenty products in a loop, each with the result of the last, like the layers of a
network in an update; microseconds per product, the median of calls, then the median over rounds.

    python benchmarks/products.py --rounds 5 --seconds 2

Every measurement is a process of its own: XLA reads its flags and the number of cores only once. Rounds
alternate between the ways.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SIZE, LENGTH = 256, 20
EIGEN = "--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_REDUCE"
WAYS = {"library": "", "eigen": EIGEN, "numpy": ""}
TASKS: dict[str, Callable[[Any, Any], Any]] = {
    "forward": lambda a, b: a @ b,
    "gradient for inputs": lambda a, b: a @ b.T,
    "gradient for weights": lambda a, b: a.T @ b,
}


def chain(task: str, way: str) -> Callable[[], Any]:
    """Return what is timed.

    Nothing grows or vanishes: the numbers of a product keep the size of its first factor.
    """
    product = TASKS[task]
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=(2, SIZE, SIZE)).astype(np.float32)
    second *= np.float32((2.0 / SIZE) ** 0.5)

    def step(x: Any, maximum: Callable[[Any, Any], Any]) -> Any:
        return maximum(product(x, second), np.float32(0.0))

    if way == "numpy":

        def loop() -> Any:
            x = first
            for _ in range(LENGTH):
                x = step(x, np.maximum)
            return x

        return loop
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as operant does
    second = jax.numpy.asarray(second)
    call = jax.jit(lambda x: jax.lax.fori_loop(0, LENGTH, lambda _, y: step(y, jax.numpy.maximum), x))
    return lambda: jax.block_until_ready(call(first))


def child(task: str, way: str, cores: int, seconds: float) -> None:
    """Print the microseconds of one product."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    run = chain(task, way)
    run()
    times: list[float] = []
    while sum(times) < seconds:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    print(1e6 * statistics.median(times) / LENGTH)


def measure(task: str, way: str, cores: int, seconds: float) -> float:
    command = [sys.executable, __file__, "--child", task, way, str(cores), "--seconds", str(seconds)]
    # NumPy's BLAS counts the machine's cores, not those that a process may use.
    environment = {**os.environ, "XLA_FLAGS": WAYS[way], "OPENBLAS_NUM_THREADS": str(cores)}
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return float(output.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        task, way, cores = arguments.child
        child(task, way, int(cores), arguments.seconds)
        return
    columns = [(way, cores) for way in WAYS for cores in (1, len(os.sched_getaffinity(0)))]
    print(f"| µs | {' | '.join(f'{way}, {cores} core(s)' for way, cores in columns)} |")
    print("|---|" + "---:|" * len(columns))
    for task in TASKS:
        times: dict[tuple[str, int], list[float]] = {column: [] for column in columns}
        for index in range(arguments.rounds):
            for column in columns if index % 2 == 0 else columns[::-1]:
                times[column].append(measure(task, *column, arguments.seconds))
        medians = [statistics.median(times[column]) for column in columns]
        print(f"| {task} | {' | '.join(f'{us:.0f}' for us in medians)} |", flush=True)
    print(f"\nOne product is {2 * SIZE**3 / 1e6:.1f} million operations.")


if __name__ == "__main__":
    main()
