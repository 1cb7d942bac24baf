"""The table of agents: all that other files need to know about an algorithm.

An entry gives an algorithm's name, its module (which defines `Config`, `State` and the class named here), and
options that a second name fixes. Imports no JAX: help is read from it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from operant.errors import SpecError, suggest
from operant.spec import Config, import_object

if TYPE_CHECKING:
    from operant.agents.base.protocol import Algorithm
    from operant.spec.spaces import Spaces

PACKAGE = __name__.rpartition(".")[0]


class AgentEntry(NamedTuple):
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
    """Options of the agent `DEFAULT` that make it a form of this one: used if options are given that only
    `DEFAULT` has."""

    @property
    def options_module(self) -> str:
        """Module of its options, if they have one: as the class's name with ``Config``."""
        return f"{PACKAGE}.options.{self.module}_options"


_EPISODES: dict[str, Any] = {"unit": "episodes", "batch_size": 10, "horizon": None}
_VALUES: dict[str, Any] = {
    "objective": "action_value",
    "memory": "replay",
    "horizon": 1,
    "batch_size": 32,
    "frequency": 0.25,
}

ANY, CHOICES, FLOATS = ("float", "int", "bool"), ("int", "bool"), ("float",)
"""Types of actions that agents serve."""

AGENTS: dict[str, AgentEntry] = {
    "a2c": AgentEntry(
        "a2c",
        "A2C",
        "Advantage actor-critic: one step per short block; any actions",
        ANY,
        form={"baseline_model": "auto", "horizon": 1, "batch_size": 10},
    ),
    "acer": AgentEntry(
        "acer", "ACER", "Actor-critic with experience replay: sample-efficient; discrete actions", CHOICES
    ),
    "constant": AgentEntry(
        "constant", "Constant", "Constant actions: learns nothing; any actions", ANY, learns=False
    ),
    "ddpg": AgentEntry(
        "ddpg",
        "DDPG",
        "Deep deterministic policy gradient: replay; continuous actions with bounds",
        FLOATS,
        bounded=True,
        form={
            "objective": "deterministic_policy_gradient",
            "memory": "replay",
            "horizon": 1,
            "baseline_model": "auto",
            "exploration": 0.1,
        },
    ),
    "dqn": AgentEntry(
        "dqn",
        "DQN",
        "Deep Q-network: replay, target network; discrete actions",
        CHOICES,
        form=_VALUES,
    ),
    "ddqn": AgentEntry(
        "dqn",
        "DQN",
        "Double DQN: dqn with --double",
        CHOICES,
        {"double": True},
        form={**_VALUES, "double": True},
    ),
    "dueling_dqn": AgentEntry(
        "dqn",
        "DQN",
        "Dueling double DQN: dqn with --double --dueling",
        CHOICES,
        {"double": True, "dueling": True},
        form={**_VALUES, "double": True, "dueling": True},
    ),
    "modular": AgentEntry(
        "modular",
        "Modular",
        "Assembled from modules: objective, memory, returns, optimizer; any actions",
        ANY,
    ),
    "ac": AgentEntry(
        "modular",
        "Modular",
        "Actor-critic: modular with returns that end in the critic's value; any actions",
        ANY,
        {"baseline_model": "auto", "horizon": 1, "estimate_advantage": False, "batch_size": 10},
    ),
    "vpg": AgentEntry(
        "modular",
        "Modular",
        "Vanilla policy gradient (REINFORCE): modular on whole episodes; any actions",
        ANY,
        _EPISODES,
    ),
    "pqn": AgentEntry("pqn", "PQN", "Parallel Q-learning: no replay, no target; discrete actions", CHOICES),
    "ppo": AgentEntry(
        "ppo",
        "PPO",
        "Proximal policy optimization: clipped surrogate; any actions",
        ANY,
        form={**_EPISODES, "clipping_value": 0.25, "multi_step": 10, "subsampling_fraction": 0.33},
    ),
    "random": AgentEntry(
        "random", "Random", "Random actions: learns nothing; any actions", ANY, learns=False
    ),
    "sac": AgentEntry(
        "sac",
        "SAC",
        "Soft actor-critic: replay, entropy; continuous actions with bounds",
        FLOATS,
        bounded=True,
    ),
    "td3": AgentEntry(
        "td3",
        "TD3",
        "Twin delayed DDPG: replay, two critics; continuous actions with bounds",
        FLOATS,
        bounded=True,
    ),
    "trpo": AgentEntry(
        "trpo",
        "TRPO",
        "Trust region policy optimization: natural gradient; any actions",
        ANY,
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
OTHERS = {
    "rainbow": "dqn --double --dueling --prioritized --noisy --n-steps 3 --distributional c51",
    "c51": "dqn --distributional c51",
    "qrdqn": "dqn --distributional quantile",
    "per": "dqn --prioritized",
    "a3c": "a2c",
    "impala": "acer",
    "maskableppo": "ppo",
}
"""Algorithms by other names, and the agents and flags that are them or come closest."""
DEFAULT = "modular"
"""The agent if none is named."""
EXAMPLE = "ppo"
"""The agent that messages name as an example."""


def identify(cls: Any) -> tuple[str, type[Config]]:
    """Return the name (or `module:Name`) and `Config` of an algorithm's class; SpecError: it is none."""
    if not isinstance(cls, type):
        raise not_an_agent(cls)
    config = getattr(sys.modules[cls.__module__], "Config", None)
    if not (isinstance(config, type) and issubclass(config, Config) and hasattr(cls, "update")):
        raise SpecError(
            f"{cls.__name__} is not an algorithm: it must have the methods of one, and its module, "
            f"{cls.__module__}, define `Config` beside the class. See docs/add-an-algorithm.md."
        )
    for name, known in AGENTS.items():
        if (known.cls, f"{PACKAGE}.{known.module}") == (cls.__name__, cls.__module__):
            return name, config
    return f"{cls.__module__}:{cls.__qualname__}", config


def not_an_agent(value: Any) -> SpecError:
    """Return the error for what names no agent."""
    return SpecError(
        "An agent must be a name, a dict with 'type', a JSON file or an algorithm class. "
        f"Received: {value!r}.{suggest(str(value), [*AGENTS, *ALIASES])}"
    )


def represented(cls: Any) -> str | None:
    """Return the agent that a class with `fit` stands for; None for an algorithm itself."""
    name = getattr(cls, "agent", None)
    return name if isinstance(name, str) and name in AGENTS else None


def resolve(name: str) -> str:
    """Return the table's name for a name; an unknown one is an error with the close match.

    A class of the user's own, `module:Name`, is imported; what is returned then names it by the module that
    defines it.
    """
    if ":" in name:
        cls = import_object(name, "agent")
        return represented(cls) or identify(cls)[0]
    known = name if name in AGENTS else ALIASES.get(name, name)
    if known not in AGENTS:
        remark = " A class of your own is given as module:Name." if "." in name else ""
        if meant := OTHERS.get(name.lower().replace("_", "").replace("-", "")):
            raise SpecError(f"Unknown agent {name!r}. Use: operant train {meant}")
        raise SpecError(f"Unknown agent {name!r}.{suggest(name, [*AGENTS, *ALIASES])}{remark}")
    return known


def entry(name: str) -> AgentEntry:
    """Look a name up, or describe the user's class that it imports; an unknown one is an error."""
    known = resolve(name)
    if known in AGENTS:
        return AGENTS[known]
    cls = import_object(known, "agent")
    about = (cls.__doc__ or "").strip().partition("\n")[0]
    return AgentEntry(cls.__module__, cls.__name__, about or f"{cls.__name__} of {cls.__module__}", ())


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
    known = entry(name)
    cls: type[Algorithm] = getattr(importlib.import_module(f"{PACKAGE}.{known.module}"), known.cls)
    return cls


def config_class(name: str) -> type[Config]:
    """Return an algorithm's options: from a module of their own, without JAX, or the algorithm's."""
    known = resolve(name)
    if known not in AGENTS:
        return identify(import_object(known, "agent"))[1]
    described = AGENTS[known]
    options = importlib.util.find_spec(described.options_module) is not None
    module = described.options_module if options else f"{PACKAGE}.{described.module}"
    cls: type[Config] = getattr(
        importlib.import_module(module), f"{described.cls}Config" if options else "Config"
    )
    return cls
