"""The algorithms, one file each. This package is also a mapping: `operant.agents['ppo']` describes an agent.

`table` lists them, `options` holds what users choose, `base` what every algorithm stands on, `parts` what
several share, `modular_parts` what the modular agent is assembled from.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from operant.agents.table import AGENTS, ALIASES, config_class, entry, resolve
from operant.spec import MODEL_FILES
from operant.spec import options as options_of

SLOTS = ("model", "actor_model", "critic_model")
"""Options that take a network."""


@functools.cache
def _trainer(agent: str) -> type:
    cls: Any = getattr(importlib.import_module("operant"), entry(agent).cls)
    trainer: type = cls if cls.agent == agent else type(cls.__name__, (cls,), {"agent": agent})
    return trainer


def _files(owner: str, slot: str) -> dict[str, list[str]]:
    """Return paths by kind of observation, `ann` for vectors and `cnn` for images; there may be none."""
    named = _table().get(owner, {}).get(slot, {})
    return {kind: [str(MODEL_FILES / file) for file in named.get(kind, ())] for kind in ("ann", "cnn")}


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((MODEL_FILES / "models.json").read_text(encoding="utf-8"))
    return table


class _Agents(types.ModuleType):
    """This module as a mapping: `operant.agents['ppo']['model']['cnn'][0]` is the path of a model file."""

    def __getitem__(self, name: str) -> dict[str, Any]:
        """Return an agent's `module`, `agent` (the class that trains it), and the files of each network.

        Raises:
            SpecError: an unknown agent, with the close match.
        """
        agent, module, known = resolve(name), entry(name).module, options_of(config_class(name))
        owner = agent if agent in _table() else module
        return {
            "module": importlib.import_module(f"{__name__}.{module}"),
            "agent": _trainer(agent),
            **{slot: _files(owner, slot) for slot in SLOTS if slot in known},
        }

    def __iter__(self) -> Iterator[str]:
        return iter(AGENTS)

    def __len__(self) -> int:
        return len(AGENTS)

    def __contains__(self, name: object) -> bool:
        return name in AGENTS or name in ALIASES

    keys, values, items = Mapping.keys, Mapping.values, Mapping.items

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in (*AGENTS, *ALIASES) else default


sys.modules[__name__].__class__ = _Agents
