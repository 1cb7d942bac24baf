"""Import paths of the library that operant succeeds: its programs run with the package's name changed.

Light objects stand in the places of its modules, and load what they name when it is asked for.
"""

from __future__ import annotations

import importlib
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PATHS: dict[str, dict[str, str]] = {
    "utils": {},
    "utils.buffers": {
        "ReplayBuffer1": "operant.execution.trainers.arguments:ReplayBuffer1",
        "ReplayBuffer2": "operant.execution.trainers.arguments:ReplayBuffer2",
    },
    "utils.common": {
        "ModelReader": "operant.nn.cfg:ModelReader",
        "create_envs": "operant.execution.trainers.inputs:create_envs",
        "plot_history": "operant.tracking:plot_history",
    },
}
"""Modules by their path below the package: names in them, and where they are now."""


class Alias(types.ModuleType):
    """A module of `PATHS`."""

    def __init__(self, path: str) -> None:
        super().__init__(f"operant.{path}", f"Old names of parts of operant; see {__name__}.")
        self.__path__: list[str] = []  # so that it may have modules below it
        self.__all__ = list(PATHS[path])
        self._places = PATHS[path]

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("_places", {}):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, _, attribute = self._places[name].partition(":")
        value = getattr(importlib.import_module(module), attribute)
        setattr(self, name, value)
        return value

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *self.__all__})


def register() -> None:
    """Put the modules where imports find them."""
    for path in PATHS:
        alias = Alias(path)
        sys.modules[alias.__name__] = alias
        parent, _, name = alias.__name__.rpartition(".")
        setattr(sys.modules[parent], name, alias)
