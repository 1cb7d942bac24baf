"""Time the ways to compute convolutions on CPU, and their effect on small networks; compare their results.

`plain` is XLA's own convolution, `own` what operant does (`operant.nn.convolutions`); `+library` is with
`operant.spec.runtime.LIBRARY_FLAG`. Times are processor times in ms: the shortest call of each round, the
median over rounds.

    python benchmarks/convolutions.py --rounds 5 --seconds 5

Every measurement is a process of its own, since XLA reads its flags once. Rounds alternate between the ways.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

WAYS = ("plain", "plain+library", "own", "own+library")
TASKS = (
    *("forward-8", "forward-256", "rgb-16", "rgb-256", "gradient-32", "gradient-256", "scan-16", "scan-64"),
    "ppo-mlp",
)
"""Numbers are of frames. `rgb` is forward, of one frame of three colours; `scan` is two gradient steps in a
loop, as in an update."""


def nature(frames: int, kind: str) -> Callable[[], Any]:
    """The Nature CNN on stacks of four 84 x 84 frames, or on one in colour: its outputs, the gradient of a
    loss, or two steps along it."""
    import jax
    import jax.numpy as jnp

    from operant.nn import Head, build
    from operant.spec.spaces import Leaf

    channels = 3 if kind == "rgb" else 4
    screen = Leaf("float", (84, 84, channels), None, 0, 255, "uint8", 1 if kind == "rgb" else 4)
    model = build("auto", {"state": screen}, {"action": Head((6,)), "value": Head(())})
    variables = model.init(jax.random.key(0))
    stacks = np.random.default_rng(0).integers(0, 256, (frames, 84, 84, channels), np.uint8)

    def outputs(params: Any, x: Any) -> Any:
        return model.apply({**variables, "params": params}, {"state": x})[0]

    def loss(params: Any, x: Any) -> Any:
        return sum(jnp.mean(jnp.square(y - 1.0)) for y in outputs(params, x).values())

    def steps(params: Any, x: Any) -> Any:
        def step(params: Any, _: None) -> tuple[Any, None]:
            return jax.tree.map(lambda p, g: p - 1e-3 * g, params, jax.grad(loss)(params, x)), None

        return jax.lax.scan(step, params, None, length=2)[0]

    call = jax.jit({"forward": outputs, "rgb": outputs, "gradient": jax.grad(loss), "scan": steps}[kind])
    return lambda: jax.block_until_ready(call(variables["params"], stacks))


def update(agent: str, **options: Any) -> Callable[[], Any]:
    """One update of an agent with a 64-64 network on CartPole's spaces."""
    import jax

    from operant.agents.base.agent_spec import parse_agent
    from operant.agents.base.learner import Learner
    from operant.spec.spaces import Spaces

    spaces = Spaces.read({"type": "float", "shape": 4}, {"type": "int", "num_values": 2})
    definition = parse_agent(agent, model={"type": "auto", "size": 64, "depth": 2}, **options)
    learner = Learner(definition.cls.create(definition.config, spaces, 8))
    train = learner.init(jax.random.key(0), learner.hyper())
    generator = np.random.default_rng(0)
    block = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), learner.block_shape(8))
    observation = {k: generator.normal(size=x.shape).astype(x.dtype) for k, x in block.observation.items()}
    block = block._replace(observation=observation, valid=np.ones_like(block.valid))
    call = jax.jit(learner.update)
    key = jax.random.key(1)
    return lambda: jax.block_until_ready(call(train, block, key)[0].state)


def task(name: str) -> Callable[[], Any]:
    """Return what is timed."""
    kind, _, count = name.partition("-")
    return update(kind, n_steps=128) if count == "mlp" else nature(int(count), kind)


def child(name: str, way: str, seconds: float, output: str) -> None:
    """Time one task in this process; print its least time in ms, and write its numbers to a file."""
    from operant.spec import runtime

    if name.endswith("mlp"):
        runtime.start([(4,)])  # as a training run does for vector observations
    import jax

    from operant.nn.keras_layers import Conv2D

    if way.startswith("plain"):
        del Conv2D.convolution_op  # then Keras's is inherited

    run = task(name)
    leaves = [np.asarray(x) for x in jax.tree.leaves(run())]
    np.savez(output, *leaves)
    times: list[float] = []
    while sum(times) < seconds:
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    print(json.dumps({"ms": min(times) * 1e3}))


def measure(name: str, way: str, seconds: float, output: str) -> float:
    """Time one task one way in a process of its own."""
    from operant.spec import runtime

    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    if way.endswith("library"):
        environment["XLA_FLAGS"] = runtime.LIBRARY_FLAG
    command = [
        sys.executable,
        __file__,
        "--child",
        name,
        "--way",
        way,
        "--seconds",
        str(seconds),
        "--output",
        output,
    ]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(json.loads(result.stdout.splitlines()[-1])["ms"])


def difference(a: str, b: str) -> float:
    """Return the largest difference between two files of arrays, relative to the largest number of its
    array."""
    with np.load(a) as first, np.load(b) as second:
        pairs = [(first[name], second[name]) for name in first.files if first[name].dtype.kind == "f"]
    return max(float(np.abs(x - y).max() / max(np.abs(x).max(), 1e-12)) for x, y in pairs if x.size)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=TASKS, help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.way, arguments.seconds, arguments.output)
        return
    import tempfile

    ways = arguments.ways
    print(f"| task | {' | '.join(ways)} | largest relative difference |")
    print("|---|" + "---:|" * (len(ways) + 1))
    with tempfile.TemporaryDirectory() as folder:
        files = {way: os.path.join(folder, f"{way}.npz") for way in ways}
        for name in arguments.tasks:
            times: dict[str, list[float]] = {way: [] for way in ways}
            for index in range(arguments.rounds):
                for way in ways if index % 2 == 0 else ways[::-1]:
                    times[way].append(measure(name, way, arguments.seconds, files[way]))
            medians = " | ".join(f"{statistics.median(times[way]):.1f}" for way in ways)
            apart = max(difference(files[ways[0]], files[way]) for way in ways)
            print(f"| {name} | {medians} | {apart:.0e} |", flush=True)


if __name__ == "__main__":
    main()
