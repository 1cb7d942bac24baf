"""operant: deep reinforcement learning on JAX, one definition of an agent run five ways.

    operant.PPO("CartPole-v1", n_envs=8).fit(max_steps=500_000)                    an algorithm as a class
    operant.Runner(agent="ppo", environment="CartPole-v1").run(num_episodes=100)   an agent in environments
    operant.Agent.create(agent="ppo", environment=environment)                     in a loop of your own
    operant train ppo --env CartPole-v1 --n-envs 8 --max-steps 500000              on the command line
    operant train ppo --env jax:CartPole-v1 --n-envs 64 --max-steps 5000000        compiled whole

Public names load when they are first used, so that importing the package stays light.
"""

from __future__ import annotations

import importlib
import os

from operant.execution.trainers import import_paths

TYPE_CHECKING = False  # like the one of typing, which is slow to import

__version__ = "0.1.0"

# Keras fixes its backend when it is first imported: a program that imports operant before it need not choose
# one.
os.environ.setdefault("KERAS_BACKEND", "jax")

if TYPE_CHECKING:
    from typing import Any

_PUBLIC = {
    "Agent": "operant.execution.agent",
    "Environment": "operant.envs",
    "ModelReader": "operant.nn.cfg",
    "OperantError": "operant.errors",
    "Runner": "operant.execution.runner.runner",
    "create_envs": "operant.execution.trainers.inputs",
    "get_logger": "operant.execution.trainers.import_paths",
    "load_policy": "operant.execution.export.exported_policy",
}
_MODULES = {
    "agents": "operant.agents",  # operant.agents['ppo'] describes an agent
    "datasets": "operant.execution.datasets",
    "keras": "operant.keras",  # Keras on JAX
}
_PACKAGES = ("checkpoint", "envs", "errors", "tracking", "training", "tuning")
"""Whose names are written in full: `operant.envs.check_env`."""


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    if name == "__all__":  # `from operant import *` asks for it, and gets the classes of the algorithms, too
        return __dir__()
    if name in _MODULES or name in _PACKAGES:
        return importlib.import_module(_MODULES.get(name, f"operant.{name}"))
    if name[:1].isupper():  # the classes of the algorithms: PPO, DQN, ...
        module = importlib.import_module("operant.execution.trainers.trainer")
        if name in module.CLASSES:
            return module.trainer(name)
    raise AttributeError(f"module 'operant' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    from operant.agents.table import AGENTS

    return sorted({*_PUBLIC, *_MODULES, "__version__", *(entry.cls for entry in AGENTS.values())})


import_paths.register()
