"""The algorithms, one file each. This package is also a mapping: `operant.agents['ppo']` describes an agent.

`table` lists them, `options` holds what users choose, `base` what every algorithm stands on, `parts` what
several share, `modular_parts` what the modular agent is assembled from.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from operant.agents.table import AGENTS, ALIASES


class _Agents(types.ModuleType):
    """This module as a mapping: `operant.agents['ppo']['model']['cnn'][0]` is the path of a model file."""

    def __getitem__(self, name: str) -> Any:
        from operant.agents.base.card import Card

        return Card(name)

    def __iter__(self) -> Iterator[str]:
        return iter(AGENTS)

    def __len__(self) -> int:
        return len(AGENTS)

    def __contains__(self, name: object) -> bool:
        return name in AGENTS or name in ALIASES

    def keys(self) -> Iterable[str]:
        return AGENTS.keys()

    def values(self) -> Iterator[Any]:
        return (self[name] for name in AGENTS)

    def items(self) -> Iterator[tuple[str, Any]]:
        return ((name, self[name]) for name in AGENTS)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in (*AGENTS, *ALIASES) else default


sys.modules[__name__].__class__ = _Agents
