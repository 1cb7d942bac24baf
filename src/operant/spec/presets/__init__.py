"""Tuned settings per algorithm and environment, each with the score that was measured with it.

One JSON file per algorithm: preset name to `settings` (options of the run and of the algorithm) and `score`
(what was measured, on how many seeds, with which version). `"control": true` marks settings that must fail,
which benchmarks compare with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from operant.errors import SpecError, suggest


class Preset(NamedTuple):
    """One set of tuned settings."""

    agent: str
    name: str
    settings: dict[str, Any]
    """Options of the run and of the algorithm, by name."""
    score: str
    """What was measured with them."""
    control: bool = False
    """Whether they must fail, as a control of the benchmarks: nobody should train with them."""

    @property
    def measured(self) -> float | None:
        """The score that recommends them; None: nothing does yet, or they must fail."""
        return None if self.control or self.score.startswith("not") else float(self.score.split()[0])


def every() -> Iterator[Preset]:
    """Yield all presets."""
    for file in sorted(Path(__file__).parent.glob("*.json")):
        for name, entry in json.loads(file.read_text(encoding="utf-8")).items():
            yield Preset(file.stem, name, entry["settings"], entry["score"], entry.get("control", False))


def settings(agent: str, name: str) -> dict[str, Any]:
    """Return the settings of a preset; SpecError: there is no such preset for the agent."""
    presets = {p.name: p for p in every() if p.agent == agent}
    if name not in presets:
        raise SpecError(f"There is no preset {name!r} for {agent}.{suggest(name, presets)}")
    return dict(presets[name].settings)
