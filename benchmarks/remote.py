"""Time of one step of one environment, wherever it runs, next to Gymnasium's `AsyncVectorEnv` and a plain Ray
actor. On one machine, over loopback.

    python benchmarks/remote.py --output benchmarks/results/remote.md

What is measured is the connection, not the environment: CartPole takes microseconds, Frames none.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

from operant.envs.remote import cluster, connect
from operant.envs.vector import create

TOKEN = "0123456789abcdef0123456789abcdef"
RUNS = 5
Step = Callable[[], None]


class Frames(gymnasium.Env):
    """Observes an 84x84x4 picture that never changes; an episode never ends."""

    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.picture = np.arange(84 * 84 * 4, dtype=np.uint64).astype(np.uint8).reshape(84, 84, 4)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return self.picture, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self.picture, 1.0, False, False, {}


def made(name: str) -> gymnasium.Env:
    return Frames() if name == "remote.Frames" else gymnasium.make(name)


class Maker:
    """Makes an environment in one of Gymnasium's processes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self) -> gymnasium.Env:
        return made(self.name)


@contextlib.contextmanager
def asynchronous(name: str) -> Iterator[Step]:
    env = gymnasium.vector.AsyncVectorEnv([Maker(name)], context="spawn")
    env.reset(seed=0)
    action = np.zeros(1, np.int64)
    try:
        yield lambda: env.step(action)
    finally:
        env.close()


class Plain:
    """What anybody would write first: a Ray actor that steps an environment, observations as Ray sends
    them."""

    def __init__(self, name: str) -> None:
        self.env = made(name)
        self.env.reset(seed=0)

    def step(self, action: int) -> tuple:
        answer = self.env.step(action)
        if answer[2] or answer[3]:
            self.env.reset()
        return answer


@contextlib.contextmanager
def plain_actor(name: str) -> Iterator[Step]:
    import ray

    cluster.join()
    actor = ray.remote(Plain).remote(name)
    try:
        yield lambda: ray.get(actor.step.remote(0))
    finally:
        ray.kill(actor)


@contextlib.contextmanager
def lockstep(name: str) -> Iterator[Step]:
    with create.create(name, 1, "processes") as env:
        env.reset(0)
        action = {"action": np.zeros(1, np.int32)}
        yield lambda: env.step(action)


@contextlib.contextmanager
def connected(name: str, **kwargs: object) -> Iterator[Step]:
    (connection,) = connect(*([] if kwargs.get("host") else [name]), **kwargs)
    connection.send_reset(0)
    connection.receive()

    def step() -> None:
        connection.send_execute(0)
        if connection.receive().terminal:
            connection.send_reset()
            connection.receive()

    try:
        yield step
    finally:
        connection.close()


@contextlib.contextmanager
def served(name: str, tls: bool = False, processes: bool = True) -> Iterator[Step]:
    """A server in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        files = (f"{folder}/cert.pem", f"{folder}/key.pem") if tls else (None, None)
        if tls:
            command = (
                "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
                "-subj /CN=x"
            )
            named = ["-out", files[0], "-keyout", files[1], "-addext", "subjectAltName=IP:127.0.0.1"]
            subprocess.run([*command.split(), *named], check=True, capture_output=True)
        code = (
            "from operant.envs.remote.server import Server, tls_context\n"
            "from operant.envs.catalog import resolve\n"
            f"server = Server(resolve({name!r}), token={TOKEN.encode()!r}, context=tls_context(*{files!r}), "
            f"processes={processes})\n"
            "print(server, flush=True)\n"
            "server.wait()"
        )
        server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        try:
            port = int(re.search(r"port (\d+)", server.stdout.readline()).group(1))
            address = dict(remote="socket-client", host="127.0.0.1", port=port, token=TOKEN)
            with connected(name, **address, certificate=files[0]) as step:
                yield step
        finally:
            server.kill()
            server.wait()
            server.stdout.close()


WAYS: dict[str, Callable[[str], contextlib.AbstractContextManager[Step]]] = {
    "in this process": lambda name: connected(name),
    "Gymnasium's AsyncVectorEnv, one environment": asynchronous,
    "operant's lock-step vector, one environment": lockstep,
    "remote='multiprocessing'": lambda name: connected(name, remote="multiprocessing"),
    "remote='socket-client', environment in the server's process": lambda name: served(name, processes=False),
    "remote='socket-client' (as `operant serve`: environments in processes)": served,
    "the same with TLS": lambda name: served(name, tls=True),
    "a plain Ray actor": plain_actor,
    "remote='ray'": lambda name: connected(name, remote="ray"),
}


def microseconds(way: str, name: str, seconds: float) -> float:
    with WAYS[way](name) as step:
        for _ in range(200):
            step()
        count, begun = 0, time.perf_counter()
        while (took := time.perf_counter() - begun) < seconds:
            for _ in range(20):
                step()
            count += 20
    return took / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    ways = [way for way in WAYS if "TLS" not in way or shutil.which("openssl")]
    names = ("CartPole-v1", "remote.Frames")
    times: dict[tuple[str, str], list[float]] = {}
    for run in range(RUNS):
        for name in names:
            for way in ways:
                times.setdefault((way, name), []).append(microseconds(way, name, asked.seconds))
                print(f"{run} {name} {way}: {times[way, name][-1]:.0f} µs", flush=True)
    lines = ["| one step, µs | CartPole-v1 (16 bytes) | 84x84x4 frames (28 kB) |", "|---|---|---|"]
    for way in ways:
        cells = []
        for name in names:
            found = times[way, name]
            cells.append(f"{statistics.median(found):.0f} ({min(found):.0f} to {max(found):.0f})")
        lines.append(f"| {way} | {cells[0]} | {cells[1]} |")
    where = (
        f"{os.cpu_count()} processors ({platform.machine()}), Python {platform.python_version()}, "
        f"Gymnasium {gymnasium.__version__}, load {os.getloadavg()[1]:.1f}"
    )
    text = (
        f"Medians of {RUNS} alternating runs of {asked.seconds:g} s (smallest to largest). {where}.\n\n"
        + "\n".join(lines)
    )
    print(text)
    if asked.output is not None:
        asked.output.write_text(
            f"# Latency of remote environments\n\n`python benchmarks/remote.py`. {text}\n"
        )


if __name__ == "__main__":
    # Workers import Frames by name, so this folder must be on their path, and this file must be importable.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    multiprocessing.freeze_support()
    main()
