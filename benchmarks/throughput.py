"""Steps per second of 1 to 16 environments, wherever they are: here, in processes, on servers, on a Ray
cluster. One machine.

    python benchmarks/throughput.py

Three environments: CartPole, which takes microseconds; one that waits 5 ms in a step, as a simulator on other
hardware or a network does; and one that computes for 5 ms, as a simulator on this machine does. Each
environment goes at its own pace, as in a `Runner` without batching; actions are constant, so that what is
measured is the connection to the environments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import gymnasium
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from gymnasium import spaces

from operant.envs.remote import connect
from operant.envs.remote.connection import Connection

RESULTS = Path(__file__).parent / "results"
IMAGE = Path(__file__).parents[1] / "docs" / "images" / "throughput.png"
SIZES = (1, 2, 4, 8, 16)
STEP = 0.005


class Waiting(gymnasium.Env):
    """A step takes 5 ms without using a processor. An episode never ends."""

    observation_space = spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(8, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(STEP)
        return np.zeros(8, np.float32), 1.0, False, False, {}


class Computing(Waiting):
    """A step takes 5 ms of a processor."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        until = time.thread_time() + STEP
        while time.thread_time() < until:
            pass
        return np.zeros(8, np.float32), 1.0, False, False, {}


ENVIRONMENTS = {
    "CartPole-v1": "CartPole-v1",
    "waits 5 ms": "throughput.Waiting",
    "computes 5 ms": "throughput.Computing",
}
WAYS = ("in this process", "processes", "sockets", "Ray")


@contextlib.contextmanager
def made(way: str, name: str, count: int) -> Iterator[list[Connection]]:
    """Yield this many environments."""
    with contextlib.ExitStack() as stack:
        if way == "sockets":
            command = [sys.executable, "-m", "operant", "serve", "--environment", name, "--port", "0"]
            server = subprocess.Popen(
                [*command, "--num-envs", str(count)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(server.wait)
            stack.callback(server.kill)
            port = next(int(found[1]) for line in server.stdout if (found := re.search(r"port (\d+)", line)))
            connections = connect(remote="socket-client", host=["127.0.0.1"] * count, port=port)
        else:
            remote = {"in this process": None, "processes": "multiprocessing", "Ray": "ray"}[way]
            connections = connect(name, num_parallel=count, remote=remote)
        for connection in connections:
            stack.callback(connection.close)
        yield connections


def speed(connections: list[Connection], seconds: float) -> float:
    """Return steps per second of environments that each go at their own pace."""
    for connection in connections:
        connection.send_reset(0)
    count, begun = 0, None
    while True:
        ready = [connection for connection in connections if connection.ready()]
        if not ready:
            connections[0].ready(0.001)
        for connection in ready:
            answer = connection.receive()
            count += 1
            if answer.terminal:
                connection.send_reset()
            else:
                connection.send_execute(count % 2)
        now = time.perf_counter()
        if begun is None and count >= 20 * len(connections):  # warmed up
            begun, count = now, 0
        if begun is not None and now - begun >= seconds:
            for connection in connections:
                connection.receive()
            return count / (now - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    asked = parser.parse_args()
    speeds: dict[str, dict[str, dict[int, list[float]]]] = {}
    load = os.getloadavg()[0]
    for _ in range(asked.rounds):
        for name, environment in ENVIRONMENTS.items():
            for way in asked.ways:
                with made(way, environment, max(SIZES)) as connections:
                    for size in SIZES:
                        found = speed(connections[:size], asked.seconds)
                        speeds.setdefault(name, {}).setdefault(way, {}).setdefault(size, []).append(found)
                        print(f"{name}, {size} {way}: {found:,.0f} steps/s", flush=True)
    write(speeds, asked, load)


def write(
    speeds: dict[str, dict[str, dict[int, list[float]]]], asked: argparse.Namespace, load: float
) -> None:
    lines = [
        "# Throughput by the number of environments",
        "",
        f"`python benchmarks/throughput.py`. Steps per second, medians of {asked.rounds} rounds of "
        f"{asked.seconds:g} s. {os.cpu_count()} processors ({platform.machine()}), Python "
        f"{platform.python_version()}, Gymnasium {version('gymnasium')}, Ray {version('ray')}, load "
        f"{load:.1f} at the start.",
    ]
    for name, ways in speeds.items():
        lines += [
            "",
            f"## {name}",
            "",
            "| | " + " | ".join(map(str, SIZES)) + " | 16 over 1 |",
            "|---" * (len(SIZES) + 2) + "|",
        ]
        for way, sizes in ways.items():
            middle = [statistics.median(sizes[size]) for size in SIZES]
            cells = " | ".join(f"{x:,.0f}" for x in middle)
            lines.append(f"| {way} | {cells} | {middle[-1] / middle[0]:.1f}x |")
    lines += ["", NOTE, "", cycle(speeds["waits 5 ms"]["processes"])]
    RESULTS.joinpath("throughput.md").write_text("\n".join(lines) + "\n")
    RESULTS.joinpath("throughput.json").write_text(json.dumps(speeds, indent=1) + "\n")
    draw(speeds)


NOTE = f"""Read it so: an environment that takes {STEP * 1000:g} ms makes at most 200 steps a second. One
that waits leaves the processor to others, so n of them make n x 200 until the agent's process,
which packs, sends and reads each step, has no time left: at a cost of c per step that is at 1 / c
steps a second. One that computes needs a processor of its own: processors x 200 is the most there
can be, less what the way itself computes. In this process all take turns, and the number does not
matter."""


def cycle(sizes: dict[int, list[float]]) -> str:
    """Say what a step of all environments in processes takes: the line through the middle values, ms."""
    took = [size / statistics.median(sizes[size]) * 1000 for size in SIZES]
    slope, start = np.polyfit(SIZES, took, 1)
    last = SIZES[-1]
    return (
        f"A step of n waiting environments in processes took {start:.1f} + n x {slope:.2f} ms, the line "
        f"through the rows above: {last / (start + last * slope) * 1000:,.0f} steps a second with {last}, "
        f"where {took[-1]:.1f} ms were measured."
    )


def draw(speeds: dict[str, dict[str, dict[int, list[float]]]]) -> None:
    figure, axes = plt.subplots(1, len(speeds), figsize=(11, 3.6), layout="constrained")
    for axis, (name, ways) in zip(axes, speeds.items(), strict=True):
        for way, sizes in ways.items():
            axis.plot(SIZES, [statistics.median(sizes[size]) for size in SIZES], marker="o", label=way)
        if name != "CartPole-v1":
            axis.plot(SIZES, [size / STEP for size in SIZES], color="grey", linestyle=":", label="n x 200")
        axis.set(
            xscale="log", yscale="log", title=name, xlabel="environments", xticks=SIZES, xticklabels=SIZES
        )
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("steps per second")
    axes[1].legend()
    figure.savefig(IMAGE, dpi=120)


if __name__ == "__main__":
    matplotlib.use("Agg")
    # Workers import the environments by name, so this folder must be on their path, and this file must be
    # importable.
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    main()
