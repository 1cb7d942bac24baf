"""operant: deep reinforcement learning on JAX, one definition of an agent run five ways.

Public names load when they are first used, so that importing the package stays light.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Keras fixes its backend when it is first imported; whoever imports operant before Keras need not know.
os.environ.setdefault("KERAS_BACKEND", "jax")

if TYPE_CHECKING:
    from operant.agent import Agent as Agent
    from operant.envs import Environment as Environment
    from operant.errors import OperantError as OperantError

_PUBLIC = {
    "Agent": "operant.agent",
    "Environment": "operant.envs",
    "OperantError": "operant.errors",
}

__all__ = ["Agent", "Environment", "OperantError", "__version__"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    if name[:1].isupper():  # the classes of the algorithms: PPO, DQN, ...
        fit = importlib.import_module("operant.fit")
        if name in fit.CLASSES:
            return fit.trainer(name)
    raise AttributeError(f"module 'operant' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    from operant.agents import AGENTS

    return sorted({*__all__, *(entry.cls for entry in AGENTS.values())})
