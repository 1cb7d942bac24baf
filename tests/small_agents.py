"""Small settings of every agent, and environments on which they run in a blink.

The tests of all agents run over those of `operant.agents.AGENTS` that learn: one that has no line in `SMALL`
fails them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.probe_envs import PROBES

from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.compiled import CompiledAgent
from operant.agents.base.learner import Learner, TrainState
from operant.agents.base.protocol import fold
from operant.agents.table import AGENTS
from operant.envs.native.native_env import NativeEnv, TimeStep
from operant.envs.native.native_vector import NativeVector
from operant.execution.agent import Agent
from operant.spec import options
from operant.spec.random_streams import Purpose
from operant.spec.spaces import Spaces
from operant.training.drivers.device_driver import DeviceRun, RunnerState
from operant.types import Array, Key, Metrics, Rollout


class Hashable(list):
    """A network as an option that `compiled` can cache."""

    def __hash__(self) -> int:
        return hash(repr(self))


MODEL = Hashable([{"type": "dense", "size": 16}])
RECURRENT = Hashable([{"type": "dense", "size": 8}, {"type": "gru", "size": 8}])


class Small(NamedTuple):
    """What tests must know of an agent."""

    options: dict[str, Any]
    """Small blocks, a small memory, a small network."""
    steps: int = 1
    """Gradient steps of one update."""
    rateless: tuple[str, ...] = ()
    """Networks whose steps have no learning rate."""


_DQN = Small(
    {
        "model": MODEL,
        "train_every": 2,
        "buffer_max_size": 96,
        "buffer_initial_size": 12,
        "buffer_batch_size": 8,
        "sequence_length": 4,
        "burn_in": 2,
        "epsilon_decay_steps": 60,
        "target_sync_steps": 20,
        "lr": 0.01,
    }
)
_CONTINUOUS = Small(
    {
        "actor_model": MODEL,
        "critic_model": MODEL,
        "train_every": 2,
        "gradient_steps": 2,
        "buffer_max_size": 96,
        "buffer_initial_size": 12,
        "buffer_batch_size": 8,
        "sequence_length": 4,
        "burn_in": 2,
        "lr": 0.01,
    },
    steps=2,
)
_MODULAR = {"model": MODEL, "batch_size": 18, "lr": 0.01}
SMALL: dict[str, Small] = {
    "modular": Small({**_MODULAR, "baseline_model": MODEL, "horizon": None}),
    "ac": Small({**_MODULAR, "baseline_model": MODEL}),
    "vpg": Small({**_MODULAR, "unit": "timesteps", "episode_limit": 3}),
    "a2c": Small({"model": MODEL, "n_steps": 6, "lr": 0.01}),
    "acer": Small(
        {
            "model": MODEL,
            "n_steps": 6,
            "buffer_max_size": 96,
            "buffer_initial_size": 12,
            "replay_ratio": 2,
            "lr": 0.01,
        }
    ),
    "ddpg": _CONTINUOUS,
    "dqn": _DQN,
    "ddqn": _DQN,
    "dueling_dqn": _DQN,
    "pqn": Small(
        {
            "model": MODEL,
            "n_steps": 6,
            "mini_batches": 2,
            "epochs": 2,
            "epsilon_decay_steps": 60,
            "lr": 0.01,
        },
        steps=4,
    ),
    "ppo": Small(
        {"model": MODEL, "n_steps": 6, "mini_batches": 2, "ppo_epochs": 2, "lr": 0.01},
        steps=4,
    ),
    "sac": _CONTINUOUS,
    "td3": _CONTINUOUS,
    "trpo": Small(
        {
            "actor_model": MODEL,
            "critic_model": MODEL,
            "n_steps": 6,
            "fvp_n_steps": 2,
            "cg_damping": 1.0,  # few rows make a singular matrix, whose inverse would magnify rounding
            "mini_batches": 2,
            "ppo_epochs": 2,
            "critic_iterations": 2,
            "lr": 0.01,
        },
        steps=9,
        rateless=("actor",),
    ),
}

NAMES = tuple(name for name, entry in AGENTS.items() if entry.learns)
_FIRST = {entry[:2]: name for name, entry in reversed(AGENTS.items())}
ONCE = [
    name if _FIRST[AGENTS[name][:2]] == name else pytest.param(name, marks=pytest.mark.exhaustive)
    for name in NAMES
]
"""The agents, to parametrise with: those that are another one with other options are slow tests."""
SOME = [
    pytest.param(
        name, marks=pytest.mark.slow if name in ("dqn", "modular", "ppo", "sac") else pytest.mark.exhaustive
    )
    for name in NAMES
]
"""The agents, where one of a kind is enough for every run of the slow tests."""


def small(name: str, **options: Any) -> dict[str, Any]:
    """Return the small settings of an agent with some of them changed."""
    if name not in SMALL:
        raise LookupError(f"tests/small_agents.py has no line for the agent {name!r}. Add one to SMALL.")
    return {**SMALL[name].options, **options}


def networks(name: str, network: Any) -> dict[str, Any]:
    """Return the options that give all networks of an agent."""
    return {option: network for option in options(type(parse_agent(name).config)) if option.endswith("model")}


def learner(name: str, env: NativeEnv, n: int, **options: Any) -> Learner:
    """Make a small agent for `n` actors of an environment."""
    definition = parse_agent(name, **small(name, **options))
    return Learner(definition.cls.create(definition.config, env.spaces, n))


def serves(name: str, spaces: Spaces) -> bool:
    """Tell whether an agent serves the actions."""
    return {leaf.type for leaf in spaces.actions.components.values()} <= set(AGENTS[name].actions)


def probes_of(name: str) -> list[str]:
    """Return the probe environments that an agent can learn."""
    return [probe for probe in PROBES if serves(name, PROBES[probe]().spaces)]


_ACTIONS: dict[str, Any] = {
    "int": {"type": "int", "num_values": 3},
    "bool": {"type": "bool", "shape": ()},
    "float": {"type": "float", "shape": (2,), "min_value": -1.0, "max_value": 2.0},
    "discrete": {
        "hand": {"gear": {"type": "int", "shape": (2,), "num_values": 3}},
        "brake": {"type": "bool", "shape": ()},
    },
    "hybrid": {
        "hand": {"gear": {"type": "int", "shape": (2,), "num_values": 3}},
        "brake": {"type": "bool", "shape": ()},
        "foot": {"type": "float", "shape": (2,), "min_value": -1.0, "max_value": 2.0},
        "free": {"type": "float", "shape": ()},
    },
}


@dataclasses.dataclass(frozen=True)
class Countdown:
    """Counts down from 1..5 and terminates at 0, or is cut by the time limit; nested states, noise in them.

    Episodes of one to three actions end at every place of a block, in both ways. The reward depends on
    observation and action.
    """

    kind: str = "int"
    masked: bool = False
    max_episode_timesteps: int | None = 3

    @cached_property
    def spaces(self) -> Spaces:
        states: dict[str, Any] = {
            "count": {"left": {"type": "float", "shape": (1,)}, "odd": {"type": "bool", "shape": ()}},
            "noise": {"type": "float", "shape": (2,)},
            "level": {"type": "int", "shape": (), "num_values": 4},
        }
        if self.masked:
            states["action_mask"] = {"type": "bool", "shape": (3,)}
        return Spaces.read(states=states, actions=_ACTIONS[self.kind])

    def reset(self, key):
        left = jax.random.randint(jax.random.fold_in(key, 0), (), 1, 6)
        return left, self._observe(left, jax.random.fold_in(key, 1))

    def step(self, state, action, key):
        left = state - 1
        paid = sum(jnp.sum(x.astype(jnp.float32)) for x in action.values())
        reward = jax.random.uniform(key) + 0.3 * paid * state.astype(jnp.float32)
        return left, TimeStep(self._observe(left, jax.random.fold_in(key, 1)), reward, left <= 0)

    def _observe(self, left, key):
        key_noise, key_level, key_mask = jax.random.split(key, 3)
        observation = {
            "count/left": left.astype(jnp.float32)[None],
            "count/odd": left % 2 == 1,
            "noise": jax.random.normal(key_noise, (2,)),
            "level": jax.random.randint(key_level, (), 0, 4),
        }
        if self.masked:
            forbidden = jax.random.randint(key_mask, (), 0, 3)
            observation["action_mask"] = jnp.arange(3) != forbidden
        return observation


def countdown(name: str, kind: str = "int") -> Countdown:
    """Return the environment with actions of a kind.

    With float ones if the agent does not serve that kind.
    """
    env = Countdown(kind=kind)
    return env if serves(name, env.spaces) else Countdown(kind="float")


class Compiled(NamedTuple):
    """A small agent on an environment, its functions compiled once for all tests."""

    name: str
    learner: Learner
    env: NativeEnv
    n: int
    start: Callable[..., tuple[TrainState, RunnerState]]
    """(key, hyper) -> train, world."""
    collect: Callable[..., tuple[Rollout, RunnerState]]
    """(train, world) -> block, world."""
    absorb: Callable[..., tuple[TrainState, Metrics]]
    """(train, block) -> train, metrics."""

    def begin(self, seed: int, hyper: Any = None) -> tuple[TrainState, RunnerState]:
        """Return the start of the run of a seed."""
        return self.start(jax.random.key(seed), self.learner.hyper() if hyper is None else hyper)

    def engine(self, seed: int) -> CompiledAgent:
        """Return an engine at the start of the run of a seed.

        All of an agent share their compiled functions.
        """
        engine = _engine(self)
        engine.put(self.begin(seed)[0])
        engine.metrics()
        return engine

    def run(
        self, seed: int, blocks: int, hyper: Any = None, **counters: int
    ) -> tuple[TrainState, list[Rollout], list[dict[str, float]]]:
        """Run some blocks, of a run whose counters stand so: the train, the blocks, and the metrics of
        each."""
        train, world = self.begin(seed, hyper)
        begun = {name: jnp.uint32(x) for name, x in counters.items()}
        train = train._replace(counters=train.counters._replace(**begun))
        collected, metrics = [], []
        for _ in range(blocks):
            block, world = self.collect(train, world)
            train, after = self.absorb(train, block)
            collected.append(block)
            metrics.append({name: float(x) for name, x in after.items()})
        return train, collected, metrics


def absorb(made: Learner, train: TrainState, block: Rollout) -> tuple[TrainState, Metrics]:
    """Learn from a block under the key of the run's next call."""
    return made.update(train, block, made.update_key(train.key, train.counters.rows // jnp.uint32(made.rows)))


@functools.cache
def compiled(name: str, env: NativeEnv, n: int = 3, **options: Any) -> Compiled:
    """Return a small agent and its compiled functions. Options must be hashable."""
    return compile_agent(name, env, n, **options)


def compile_agent(name: str, env: NativeEnv, n: int = 3, **options: Any) -> Compiled:
    """As `compiled`, for options of any kind, and for tests that change code under the agent's feet."""
    made = learner(name, env, n, **options)
    run = DeviceRun(made, env, n)

    def start(key: Key, hyper: Array) -> tuple[TrainState, RunnerState]:
        return made.init(key, hyper), run.begin(key)

    def collect(train: TrainState, world: RunnerState) -> tuple[Rollout, RunnerState]:
        rows = train.counters.rows + jnp.arange(made.rows, dtype=jnp.uint32)
        noise = jax.vmap(lambda row: made.noise(train.key, row, n))(rows)
        block, world, _ = run.collect(train, world, noise, fold(train.key, Purpose.ENV))
        return block, world

    return Compiled(
        name, made, env, n, jax.jit(start), jax.jit(collect), jax.jit(functools.partial(absorb, made))
    )


@functools.cache
def _engine(agent: Compiled) -> CompiledAgent:
    return CompiledAgent(agent.learner, jax.random.key(0), agent.n)


class Stream(NativeVector):
    """A host vector with the numbers of a device run of the same key, whatever the seed of a reset."""

    def __init__(self, env: NativeEnv, n: int, key: Key) -> None:
        super().__init__(env, n, "stream", fold(key, Purpose.ENV))

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        return super().reset(None)


def states_of(spaces: Spaces, observation: dict[str, np.ndarray], index: Any) -> Any:
    """Return some actors' observations as a program would give them: nested, with masks."""
    return spaces.unflatten({name: x[index] for name, x in observation.items()})


def interact(made: Agent, env: NativeEnv, seed: int, rows: int, batched: bool = True) -> list[int]:
    """Let an agent and an environment interact in a program's way; return what `observe` returned.

    Actors whose episode ended rest for a row, as those of a vector do, so all stay in step.
    """
    stream = Stream(env, made.parallel_interactions, jax.random.key(seed))
    observation, ended = stream.reset(), np.zeros(made.parallel_interactions, bool)
    leaves = env.spaces.actions.components
    returned = []
    for row in range(rows + 1):
        active = np.flatnonzero(~ended)
        flat = {name: np.zeros((len(ended), *leaf.shape), leaf.storage) for name, leaf in leaves.items()}
        if active.size:
            index = active if batched else 0
            parallel = active.tolist() if batched else 0
            actions = made.act(states=states_of(env.spaces, observation, index), parallel=parallel)
            for name, x in env.spaces.actions.flatten(actions).items():
                flat[name][active] = x
        if row == rows:  # the last act only brought the observation that follows the last row
            break
        after = stream.step(flat)
        if active.size:
            code = after.terminated * 1 + after.truncated * 2
            returned.append(
                made.observe(
                    reward=after.reward[index],
                    terminal=code[index],
                    parallel=parallel,
                    next_states=states_of(env.spaces, after.observation, index),
                )
            )
        observation, ended = after.observation, after.terminated | after.truncated
    return returned


def equal(a: Any, b: Any) -> bool:
    """Tell whether two trees are equal bit for bit (NaN equals itself), keys included."""
    return not differing(a, b)


def differing(a: Any, b: Any) -> list[str]:
    """Return the paths of the leaves that differ."""
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(a)]
    pairs = zip(names, jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return [
        name
        for name, x, y in pairs
        if _bits(x).dtype != _bits(y).dtype or _bits(x).tobytes() != _bits(y).tobytes()
    ]


def _bits(x: Any) -> np.ndarray:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


def assert_close(a: TrainState, b: TrainState, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Compare two trees within float tolerance; whole numbers, flags and keys must be equal."""
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(a)]
    for name, x, y in zip(names, jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = _bits(x), _bits(y)
        assert (x.shape, x.dtype) == (y.shape, y.dtype), name
        if x.dtype.kind == "f":
            np.testing.assert_allclose(x, y, rtol, atol, err_msg=name)
        else:
            np.testing.assert_array_equal(x, y, err_msg=name)


def parameters(state: Any) -> dict[str, Any]:
    """Return what an agent's networks learn, by field of its state."""
    return {name: x["params"] for name, x in state._asdict().items() if isinstance(x, dict) and "params" in x}


def learned(state: Any) -> dict[str, Any]:
    """Return what gradient steps change: parameters and optimizers, by field of an agent's state."""
    optimizers = {name: x for name, x in state._asdict().items() if "optimizer" in name}
    return {**parameters(state), **optimizers}
