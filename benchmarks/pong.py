"""Presets on Pong: environment steps per second while they learn, and where the time goes.

    python benchmarks/pong.py --output benchmarks/results/pong-gpu.md

For a machine with a GPU; on a CPU `speed/breakdown.py` and `convolutions.py` say more. Agents with a memory
begin to learn after fewer random steps than the presets ask for. Calls are timed from outside, an update
until it is computed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "speed"))

import jax
from breakdown import measure
from operant_speed import hosted

from operant.agents.base.agent_spec import parse_agent
from operant.spec import presets, runtime
from operant.training.drivers.host_driver import HostDriver
from operant.training.provenance import processor

PRESETS = ("ppo:pong", "acer:pong", "dqn:pong", "dqn:pong-1m")
FILLED = 4_000
"""Steps at random before learning, of agents with a memory."""
PARTS = {"step": "environments", "act": "acting", "advance": "updates"}


def made(name: str) -> HostDriver:
    """Return the driver of a preset, after the first updates."""
    agent, preset = name.split(":")
    settings = presets.settings(agent, preset)
    known = parse_agent(agent).config.to_dict()
    own: dict[str, Any] = {key: value for key, value in settings.items() if key in known}
    if "buffer_initial_size" in known:
        own["buffer_initial_size"] = FILLED
    definition, games = parse_agent(agent, **own), settings["n_envs"]
    runtime.start([(84, 84, 4)], product=definition.product(games))
    driver = hosted(definition, settings["env"], games, atari=True)
    while driver.step < FILLED + 8 * driver.block_steps:
        driver.advance(driver.blocks)
    return driver


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", default=PRESETS, metavar="AGENT:PRESET")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.presets:
        driver = made(name)
        found = measure(driver, arguments.seconds)
        driver.env.close()
        shares = [found[part] for part in PARTS]
        told = " | ".join(f"{100 * share:.0f} %" for share in (*shares, 1.0 - sum(shares)))
        rows.append(f"| {name} | {found['steps_per_second']:,.0f} | {found['microseconds']:,.0f} | {told} |")
        print(rows[-1], flush=True)
    names = ("jax", "jaxlib", "numpy", "keras", "optax", "gymnasium", "ale-py")
    lines = [
        "# Speed of the presets on Pong",
        "",
        f"`python benchmarks/pong.py --seconds {arguments.seconds:g}`, {time.strftime('%Y-%m-%d')}: "
        "environment steps per second of each preset while it learns.",
        f"{jax.devices()[0].device_kind}; {processor()}, {os.cpu_count()} cores; "
        f"{', '.join(f'{n} {version(n)}' for n in names)}.",
        "",
        f"| preset | steps/s | µs per step | {' | '.join(PARTS.values())} | fetching what was chosen, and "
        "the rest |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *rows,
    ]
    arguments.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
