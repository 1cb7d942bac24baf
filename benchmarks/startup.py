"""Where the CPU seconds of a first command go, with no compiled programs kept and with those of a run before.

Run `python benchmarks/startup.py`; it writes `benchmarks/results/start.md`. CPU seconds are user and system
time of all threads and processes. With `--sb3` (benchmarks/requirements.txt) the first 2,000 steps
of PPO on CartPole are compared with those of Stable-Baselines3.
"""

import argparse
import builtins
import functools
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from operant.training.provenance import processor

README = "train ppo --preset cartpole --target-reward 475 --seed 1"
FIRST = "train ppo --env CartPole-v1 --max-steps 2000 --n-envs 1 --seed 1"
TRIAL = "tune ppo --env CartPole-v1 --lr 1e-4 1e-2 --n-trials 2 --trial-steps 2000 --seed 1"
SB3 = "from stable_baselines3 import PPO; PPO('MlpPolicy', 'CartPole-v1', device='cpu').learn(2000)"
TRIED = """
XLA can compile more cheaply. Tried on PPO in 8 CartPoles, 20 epochs over 256 rows: CPU seconds until 1,500
steps are learnt, with nothing kept, and steps per CPU second from then on (medians of 7 alternating rounds,
other work beside):

| `XLA_FLAGS` | start | speed |
|:-|-:|-:|
| none | 14.1 | 1 |
| `--xla_backend_optimization_level=2` | 12.3 | 1.02 |
| `--xla_cpu_parallel_codegen_split_count=4` | 11.7 | 1.08 |
| `--xla_cpu_enable_concurrency_optimized_scheduler=false` | 11.3 | 1.05 |
| `--xla_cpu_use_fusion_emitters=false` | 8.6 | 0.70 |

The only one that is much cheaper costs what a longer run needs; the others differ by less than such rounds
tell. So programs are compiled as XLA does by itself, but for the one of the initial weights, which runs once:
0.4 s in place of 2.7.
"""
BEFORE = """`before` is operant as of dac036ae, which keeps no compiled programs. Compare within a row:
machines differ."""
PARTS = ("jax", "keras", "matplotlib", "pandas", "gymnasium", "optax", "pyarrow", "tensorboard", "operant")
"""Packages whose import is counted by itself, with what only they import."""


class Stopwatch:
    """CPU seconds by part; what a part calls of another one counts there."""

    def __init__(self):
        self.seconds, self.calls, self.open = {}, {}, []
        self.begun = time.process_time()

    def within(self, name, function):
        @functools.wraps(function)
        def timed(*args, **kwargs):
            self.switch()
            self.open.append(name)
            self.calls[name] = self.calls.get(name, 0) + 1
            try:
                return function(*args, **kwargs)
            finally:
                self.switch()
                self.open.pop()

        return timed

    def switch(self):
        now = time.process_time()
        name = (
            self.open[-1] if self.open else "the rest: building, environment steps, calls of programs, files"
        )
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.begun
        self.begun = now


def profiled(arguments, out):
    """Run a command in this process, and write what its parts took."""
    watch = Stopwatch()
    watch.seconds["Python itself"], watch.begun = watch.begun, time.process_time()
    importing = builtins.__import__

    def imported(name, globals=None, locals=None, fromlist=(), level=0):
        package = name.partition(".")[0]
        if level or package not in PARTS or name in sys.modules:
            return importing(name, globals, locals, fromlist, level)
        return watch.within(f"import {package}", importing)(name, globals, locals, fromlist, level)

    builtins.__import__ = imported
    from jax._src import compiler, pjit
    from jax._src.interpreters import mlir

    compiler.compile_or_get_cached = watch.within("XLA: compiling or loading", compiler.compile_or_get_cached)
    compiler._get_cache_key = watch.within("keys of programs", compiler._get_cache_key)
    mlir.lower_jaxpr_to_module = watch.within("JAX: lowering", mlir.lower_jaxpr_to_module)
    pjit._infer_params = watch.within("JAX: tracing", pjit._infer_params)
    from operant.cli import main

    status = main(arguments)
    watch.switch()
    Path(out).write_text(json.dumps({"seconds": watch.seconds, "calls": watch.calls}))
    return status


def cpu(command, cwd, variables):
    """Run a command; return its CPU seconds, those of its processes included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=cwd, env={**os.environ, **variables}, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(command, repeats, folder, before):
    """Return the least CPU seconds of an earlier state, of first runs and of later runs, made in turn."""
    words = [sys.executable, "-m", "operant", *command.split()]
    earlier, cold, warm = [], [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(dir=folder) as place:  # nothing is kept from command to command
            variables = {"XDG_CACHE_HOME": str(Path(place) / "cache")}
            if before:
                earlier.append(cpu(words, place, {"PYTHONPATH": str(Path(before, "src").resolve())}))
            cold.append(cpu(words, place, variables))
            warm.append(cpu(words, place, variables))
    return min(earlier, default=None), min(cold), min(warm)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sb3", help="a Python that has Stable-Baselines3")
    parser.add_argument("--before", help="a checkout of an earlier state, measured in turn")
    if sys.argv[1:2] == ["--profiled"]:
        return profiled(sys.argv[3:], sys.argv[2])
    options = parser.parse_args()
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = {
            f"`operant {command}`": measured(command, options.repeats, folder, options.before)
            for command in (README, FIRST, TRIAL)
        }
        if options.sb3:
            least = min(cpu([options.sb3, "-c", SB3], folder, {}) for _ in range(options.repeats))
            rows["Stable-Baselines3's PPO, 2,000 steps"] = (None, least, least)
        profiles = []
        for kind in ("cold", "warm"):
            out = folder / f"{kind}.json"
            words = [sys.executable, __file__, "--profiled", str(out), *README.split()]
            cpu(words, folder, {"XDG_CACHE_HOME": str(folder / "profiled")})
            profiles.append(json.loads(out.read_text()))
    lines = ["# Time to the first result", "", "Written by `python benchmarks/startup.py`. " + machine(), ""]
    lines += [
        f"| CPU seconds (least of {options.repeats}) | before | first run | later runs |",
        "|:-|-:|-:|-:|",
    ]
    lines += [f"| {name} | {' | '.join(map(shown, seconds))} |" for name, seconds in rows.items()]
    lines += ["", BEFORE] if options.before else []
    lines += ["", f"Where those of `operant {README}` go (with the overhead of measuring):", ""]
    lines += ["| | calls | first run | later runs |", "|:-|-:|-:|-:|"]
    cold, warm = (profile["seconds"] for profile in profiles)
    for part in sorted({*cold, *warm}, key=lambda part: -cold.get(part, 0.0)):
        calls = profiles[0]["calls"].get(part, "")
        lines.append(f"| {part} | {calls} | {cold.get(part, 0):.2f} | {warm.get(part, 0):.2f} |")
    lines.append(f"| together | | {sum(cold.values()):.2f} | {sum(warm.values()):.2f} |")
    text = "\n".join(lines) + "\n" + TRIED
    Path(__file__).with_name("results").joinpath("start.md").write_text(text)
    print(text)
    return 0


def shown(seconds):
    """Return seconds as a cell of the table."""
    return "-" if seconds is None else f"{seconds:.1f}"


def machine():
    """Describe the machine and the versions."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib", "keras", "gymnasium")
    )
    return f"{processor()}, {os.cpu_count()} processors; Python {platform.python_version()}, {versions}."


if __name__ == "__main__":
    sys.exit(main())
