"""The algorithms: one file each, and this table.

An entry here is all that other files need to know about an algorithm: its name, its module (which defines `Config`,
`State` and the class named here), and options that a second name fixes.
"""

from __future__ import annotations

import ast
import functools
import importlib
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from operant.errors import SpecError, suggest
from operant.spec import Config

if TYPE_CHECKING:
    from operant.agents.making import Definition
    from operant.agents.protocol import Algorithm
    from operant.spaces import Spaces


class Entry(NamedTuple):
    """One name in the table."""

    module: str
    """Module of this package; for a class of the user's own, its import path."""
    cls: str
    """Class of the algorithm in it."""
    help: str
    """One line."""
    actions: tuple[str, ...]
    """Types of actions that it serves."""
    options: dict[str, Any] = {}  # noqa: RUF012 - read only
    """Options that this name fixes to other defaults."""
    learns: bool = True
    """Whether it has anything to learn, as constant and random actions do not."""
    bounded: bool = False
    """Whether it needs finite bounds of float actions."""
    form: dict[str, Any] | None = None
    """Options of the agent `DEFAULT` that make it a form of this one: used if options are given that only `DEFAULT` has."""


_EPISODES: dict[str, Any] = {"unit": "episodes", "batch_size": 10, "horizon": None}
_VALUES: dict[str, Any] = {
    "objective": "action_value",
    "memory": "replay",
    "horizon": 1,
    "batch_size": 32,
    "frequency": 0.25,
}

AGENTS: dict[str, Entry] = {
    "a2c": Entry(
        "a2c",
        "A2C",
        "Advantage actor-critic: one step per short block; any actions",
        ("float", "int", "bool"),
        form={"baseline_model": "auto", "horizon": 1, "batch_size": 10},
    ),
    "acer": Entry(
        "acer",
        "ACER",
        "Actor-critic with experience replay: sample-efficient; discrete actions",
        ("int", "bool"),
    ),
    "constant": Entry(
        "constant",
        "Constant",
        "Constant actions: learns nothing; any actions",
        ("float", "int", "bool"),
        learns=False,
    ),
    "ddpg": Entry(
        "ddpg",
        "DDPG",
        "Deep deterministic policy gradient: replay; float actions with bounds",
        ("float",),
        bounded=True,
        form={
            "objective": "deterministic_policy_gradient",
            "memory": "replay",
            "horizon": 1,
            "baseline_model": "auto",
            "exploration": 0.1,
        },
    ),
    "dqn": Entry(
        "dqn",
        "DQN",
        "Deep Q-network: replay, target network; discrete actions",
        ("int", "bool"),
        form=_VALUES,
    ),
    "ddqn": Entry(
        "dqn",
        "DQN",
        "Double DQN: dqn with --double",
        ("int", "bool"),
        {"double": True},
        form={**_VALUES, "double": True},
    ),
    "dueling_dqn": Entry(
        "dqn",
        "DQN",
        "Dueling double DQN: dqn with --double --dueling",
        ("int", "bool"),
        {"double": True, "dueling": True},
        form={**_VALUES, "double": True, "dueling": True},
    ),
    "modular": Entry(
        "modular",
        "Modular",
        "Assembled from modules: objective, memory, returns, optimizer; any actions",
        ("float", "int", "bool"),
    ),
    "ac": Entry(
        "modular",
        "Modular",
        "Actor-critic: modular with returns that end in the critic's value; any actions",
        ("float", "int", "bool"),
        {"baseline_model": "auto", "horizon": 1, "estimate_advantage": False, "batch_size": 10},
    ),
    "vpg": Entry(
        "modular",
        "Modular",
        "Vanilla policy gradient (REINFORCE): modular on whole episodes; any actions",
        ("float", "int", "bool"),
        _EPISODES,
    ),
    "pqn": Entry(
        "pqn", "PQN", "Parallel Q-learning: no replay, no target; discrete actions", ("int", "bool")
    ),
    "ppo": Entry(
        "ppo",
        "PPO",
        "Proximal policy optimization: clipped surrogate; any actions",
        ("float", "int", "bool"),
        form={**_EPISODES, "clipping_value": 0.25, "multi_step": 10, "subsampling_fraction": 0.33},
    ),
    "random": Entry(
        "random",
        "Random",
        "Random actions: learns nothing; any actions",
        ("float", "int", "bool"),
        learns=False,
    ),
    "sac": Entry(
        "sac",
        "SAC",
        "Soft actor-critic: replay, entropy; float actions with bounds",
        ("float",),
        bounded=True,
    ),
    "td3": Entry(
        "td3",
        "TD3",
        "Twin delayed DDPG: replay, two critics; float actions with bounds",
        ("float",),
        bounded=True,
    ),
    "trpo": Entry(
        "trpo",
        "TRPO",
        "Trust region policy optimization: natural gradient; any actions",
        ("float", "int", "bool"),
        form={
            **_EPISODES,
            "importance_sampling": True,
            "gradient": "natural",
            "lr": 0.01,
            "linesearch_iterations": 10,
            "baseline_optimizer": "adam",
            "baseline_lr": 0.001,
        },
    ),
}

ALIASES = {
    "default": "modular",
    "double_dqn": "ddqn",
    "dpg": "ddpg",
    "reinforce": "vpg",
    "tensorforce": "modular",
}
"""Other names, and the agents of the table that they stand for."""
DEFAULT = "modular"
"""The agent if none is named."""


def resolve(name: str) -> str:
    """Return the name in the table that a name stands for; an unknown one is an error with the close match.

    A class of the user's own, `module:Name`, is imported; what is returned then names it by the module that defines it.
    """
    if ":" in name:
        return _own(name).name
    found = name if name in AGENTS else ALIASES.get(name, name)
    if found not in AGENTS:
        own = " A class of your own is given as module:Name." if "." in name else ""
        raise SpecError(f"Unknown agent {name!r}.{suggest(name, [*AGENTS, *ALIASES])}{own}")
    return found


def _own(name: str) -> Definition:
    from operant.agents.making import define

    return define(name)


def entry(name: str) -> Entry:
    """Look a name up, or describe the user's own class that it imports; an unknown one is an error with the close match."""
    found = resolve(name)
    if found in AGENTS:
        return AGENTS[found]
    cls = _own(name).cls
    about = (cls.__doc__ or "").strip().partition("\n")[0]
    return Entry(cls.__module__, cls.__name__, about or f"{cls.__name__} of {cls.__module__}", ())


def serving(spaces: Spaces) -> str:
    """Say which learning agents serve all actions of these spaces, for messages."""
    leaves = spaces.actions.components.values()
    types = {leaf.type for leaf in leaves}
    unbounded = any(leaf.type == "float" and not leaf.bounded for leaf in leaves)
    names = [
        name
        for name, known in AGENTS.items()
        if known.learns and types <= {*known.actions} and not (unbounded and known.bounded)
    ]
    return f"one of these agents: {', '.join(names)}"


def algorithm_class(name: str) -> type[Algorithm]:
    """Import an algorithm by name."""
    found = entry(name)
    cls: type[Algorithm] = getattr(importlib.import_module(f"{__name__}.{found.module}"), found.cls)
    return cls


@functools.cache
def config_class(name: str) -> type[Config]:
    """Return an algorithm's `Config` without importing JAX.

    Help must appear within half a second, and importing JAX takes longer. So only the class `Config` is taken from the
    algorithm's source; its bases and field functions come from `operant.agents.config`, `operant.agents.modules` and
    `operant.spec`, and it may use nothing else. For a class of the user's own the whole module is imported.
    """
    if resolve(name) not in AGENTS:
        return type(_own(name).config)
    import collections.abc
    import typing

    from operant import spec
    from operant.agents import config, modules

    found = entry(name)
    origin = Path(__file__).parent / f"{found.module}.py"
    tree = ast.parse(origin.read_text(encoding="utf-8"))
    nodes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Config"]
    future = ast.ImportFrom(module="__future__", names=[ast.alias("annotations")], level=0)
    module = ast.fix_missing_locations(ast.Module(body=[future, *nodes], type_ignores=[]))
    # A module of its own, so that the annotations resolve. The bases are those of the algorithm's own class.
    light = types.ModuleType(f"{__name__}.config_of_{found.module}")
    light.__dict__.update(
        {**vars(typing), **vars(collections.abc), **vars(spec), **vars(config), **vars(modules)}
    )
    light.__dict__["__name__"] = light.__name__ = f"{__name__}.config_of_{found.module}"
    sys.modules[light.__name__] = light
    exec(compile(module, str(origin), "exec"), light.__dict__)  # our own source file
    cls: type[Config] = light.__dict__["Config"]
    cls.label = name  # type: ignore[attr-defined]
    return cls


class _Agents(types.ModuleType):
    """This module as a mapping: `operant.agents['ppo']['model']['cnn'][0]` is the path of a model file."""

    def __getitem__(self, name: str) -> Any:
        from operant.agents.card import Card

        return Card(name)

    def __iter__(self) -> Iterator[str]:
        return iter(AGENTS)

    def __len__(self) -> int:
        return len(AGENTS)

    def __contains__(self, name: object) -> bool:
        return name in AGENTS or name in ALIASES

    def keys(self) -> Iterable[str]:
        """Return the names of the agents."""
        return AGENTS.keys()

    def values(self) -> Iterator[Any]:
        """Yield what is known of each agent."""
        return (self[name] for name in AGENTS)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield the names of the agents, each with what is known of it."""
        return ((name, self[name]) for name in AGENTS)

    def get(self, name: str, default: Any = None) -> Any:
        """Return what is known of an agent, or the default if there is none of that name."""
        return self[name] if name in (*AGENTS, *ALIASES) else default


sys.modules[__name__].__class__ = _Agents
