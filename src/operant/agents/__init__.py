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

from operant.agents.table import AGENTS, ALIASES, AgentEntry, config_class, entry, resolve
from operant.errors import SpecError, suggest
from operant.spec import MODEL_FILES
from operant.spec import options as options_of

SLOTS = ("model", "actor_model", "critic_model")
"""Options that take a network."""


class AgentCard(Mapping[str, Any]):
    """A read-only mapping: `module`, `agent` (the class that trains it), and the files of each network.

    Files are lists of paths by kind of observation, `ann` for vectors and `cnn` for images; empty if there
    are none.

    Raises:
        SpecError: an unknown agent, or a key that it does not have, with the close match.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._entry: AgentEntry = entry(name)
        known = options_of(config_class(name))
        named = resolve(name) if resolve(name) in _table() else self._entry.module
        self._files = {slot: _files(named, slot) for slot in SLOTS if slot in known}

    def __getitem__(self, key: str) -> Any:
        if key == "module":
            return importlib.import_module(f"{__name__}.{self._entry.module}")
        if key == "agent":
            return _trainer(resolve(self._name))
        if key not in self._files:
            close = "" if key in SLOTS else suggest(key, self, listed=False)  # 'model' is close to 'module'
            have = ", ".join(map(repr, self))
            raise SpecError(f"The agent {self._name!r} has no {key!r}.{close} It has {have}.")
        return self._files[key]

    def __iter__(self) -> Iterator[str]:
        yield from ("module", "agent", *self._files)

    def __len__(self) -> int:
        return 2 + len(self._files)

    def __contains__(self, key: object) -> bool:
        return key in tuple(self)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        return self[key] if key in tuple(self) else default

    def __repr__(self) -> str:
        return f"AgentCard({self._name!r})"


class _Files(dict[str, list[str]]):
    """Model files by kind of observation."""

    def __missing__(self, kind: object) -> list[str]:
        raise SpecError(
            f"Model files are for vectors or for images: ['ann'][0] or ['cnn'][0]. Received: [{kind!r}]."
        )


@functools.cache
def _trainer(agent: str) -> type:
    cls: Any = getattr(importlib.import_module("operant"), entry(agent).cls)
    trainer: type = cls if cls.agent == agent else type(cls.__name__, (cls,), {"agent": agent})
    return trainer


def _files(owner: str, slot: str) -> _Files:
    named = _table().get(owner, {}).get(slot, {})
    return _Files(
        {kind: [str(MODEL_FILES / file) for file in named.get(kind, ())] for kind in ("ann", "cnn")}
    )


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((MODEL_FILES / "models.json").read_text(encoding="utf-8"))
    return table


class _Agents(types.ModuleType):
    """This module as a mapping: `operant.agents['ppo']['model']['cnn'][0]` is the path of a model file."""

    def __getitem__(self, name: str) -> Any:
        return AgentCard(name)

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
