"""Import paths of the library that operant succeeds: its programs run with the packages' names changed.

Light objects stand in the places of its modules, and load what they name when it is asked for. In place of
`tensorflow.keras`, `operant.keras` is Keras on JAX.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
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


def get_logger() -> logging.Logger:
    """Return the logger of the package, as `tensorflow.get_logger` does."""
    import logging

    return logging.getLogger("operant")


class KerasFinder:
    """Finds `operant.keras` and the modules below it, which are Keras itself, by the door to it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return what loads a module of `operant.keras`; None: another finder's."""
        if f"{name}.".startswith("operant.keras."):
            loader: Any = self
            return importlib.machinery.ModuleSpec(name, loader, is_package=True)
        return None

    def create_module(self, spec: Any) -> None:
        """Leave it to the import system to make one, which `exec_module` replaces."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Put Keras's module of that name in its place; BackendError: Keras runs on another backend."""
        importlib.import_module("operant.nn.backend").keras()
        name = module.__name__
        there = importlib.import_module(name.removeprefix("operant."))
        sys.modules[name] = there


def register() -> None:
    """Put the modules where imports find them."""
    # First: once `operant.keras` is Keras, others would find its files and load them again by a second name.
    sys.meta_path.insert(0, KerasFinder())
    for path in PATHS:
        alias = Alias(path)
        sys.modules[alias.__name__] = alias
        parent, _, name = alias.__name__.rpartition(".")
        setattr(sys.modules[parent], name, alias)
