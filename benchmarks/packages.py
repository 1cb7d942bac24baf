"""Try environment packages that nobody here wrote: train, play and resume each from the shell.

Install those that you want to try beside operant; others are skipped. Each command runs in a process of its
own, for at most `--timeout` seconds. The table goes to results/packages.md.

    python benchmarks/packages.py --only minigrid vizdoom --timeout 300
"""

import argparse
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = {
    "minigrid": "package_envs:minigrid",
    "highway-env": "highway_env:highway-fast-v0",
    "panda-gym": "panda_gym:PandaReach-v3",
    "vizdoom": (
        "vizdoom.gymnasium_wrapper:VizdoomBasic-v1 --resize 60 80 --gray --frame-stack 4 --frame-skip 4"
    ),
    "flappy-bird-gymnasium": "flappy_bird_gymnasium:FlappyBird-v0",
    "envpool": "envpool:CartPole-v1 --n-envs 4",
    "craftax": "package_envs:craftax",
    "playground": "package_envs:playground --n-envs 4",
    "shimmy": "shimmy:dm_control/cartpole-balance-v0",
    "crafter": "package_envs:Crafter",
    "mo-gymnasium": "package_envs:mo_gymnasium",
    "pyflyt": "PyFlyt.gym_envs:PyFlyt/QuadX-Hover-v1",
    "gym-anytrading": "gym_anytrading:stocks-v0",
    "gymnasium-robotics": "gymnasium_robotics:PointMaze_UMaze-v3",
    "miniworld": "miniworld:MiniWorld-Hallway-v0 --resize 42 --gray",
}
"""Packages, and what follows `--env`."""
STEPS = 256


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PACKAGES, default=list(PACKAGES))
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "packages.md")
    chosen = parser.parse_args()
    rows = dict(read(chosen.output))
    for package in chosen.only:
        version = installed(package)
        if version is None:
            print(f"{package}: not installed", flush=True)
            continue
        cells = [package, version, f"`{PACKAGES[package]}`", *tried(package, chosen.timeout)]
        rows[package] = "| " + " | ".join(cells) + " |"
        print(rows[package], flush=True)
        write(chosen.output, rows)


def installed(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def tried(package, timeout):
    """Return what became of training, playing and resuming, and the seconds that all took."""
    environment, *flags = PACKAGES[package].split()
    began, results = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as place:
        run, env = f"{place}/run", ("--env", environment)
        train = ("train", "ppo", *env, *flags, "--n-steps", "64", "--max-steps", STEPS, "--run-dir", run)
        for command in (
            train,
            ("play", run, *env, "--max-steps", 50),
            ("train", "--resume", run, *env, "--max-steps", 2 * STEPS),
        ):
            results.append(outcome([*map(str, command), "--quiet"], timeout))
            if results[0] != "yes":
                break
    return [*results, *["-"] * (3 - len(results)), f"{time.perf_counter() - began:.0f}"]


def outcome(command, timeout):
    """Run a command of operant; return "yes", or the last line that it wrote."""
    call = [sys.executable, "-m", "operant", *command]
    try:
        done = subprocess.run(
            call, cwd=HERE, capture_output=True, text=True, timeout=timeout, env={**os.environ}
        )
    except subprocess.TimeoutExpired:
        return f"longer than {timeout:.0f} s"
    lines = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
    return "yes" if done.returncode == 0 else lines[-1].replace("|", "/")[:200]


def read(path):
    """Yield the rows of an earlier table by package."""
    for line in path.read_text().splitlines() if path.exists() else ():
        package = line.strip("| ").partition(" ")[0]
        if package in PACKAGES:
            yield package, line


def write(path, rows):
    known = ", ".join(f"{name} {installed(name)}" for name in ("gymnasium", "jax", "numpy", "mujoco"))
    text = [
        "# Environment packages",
        "",
        "Written by `python benchmarks/packages.py`: `operant train ppo --env ... --max-steps 256`, `play`",
        "and `train --resume` of each, one process a command. Seconds are of all three, on two cores (shared",
        f"with others here); most is importing and compiling. Beside {known}, Python "
        f"{sys.version.split()[0]}.",
        "",
        "| package | version | `--env` | trains | plays | resumes | seconds |",
        "|---|---|---|---|---|---|---|",
        *(rows[package] for package in PACKAGES if package in rows),
        "",
    ]
    path.write_text("\n".join(text))


if __name__ == "__main__":
    main()
