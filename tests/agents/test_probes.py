"""Every agent learns the probe environments that it can serve: the right value and the best action.

Each mechanism is switched off once too: then the same check must fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.probe_envs import (
    PROBES,
    ConstantProbe,
    DiscountProbe,
    MemoryProbe,
    ObservationProbe,
    TruncationProbe,
)
from tests.small_agents import (
    MODEL,
    NAMES,
    ONCE,
    SMALL,
    Stream,
    interact,
    networks,
    probes_of,
    serves,
)

from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.compiled import CompiledAgent
from operant.agents.base.learner import Learner, TrainState
from operant.agents.base.protocol import fold
from operant.agents.modular_parts.objectives import View
from operant.agents.parts.action_scaling import with_actions
from operant.agents.table import config_class
from operant.envs.native import native_env
from operant.envs.native.native_env import NativeEnv
from operant.execution.agent import Agent
from operant.execution.interactive import Settings
from operant.ops import losses
from operant.spec import options
from operant.spec.random_streams import Purpose
from operant.spec.spaces import masks_of
from operant.training.drivers.device_driver import DeviceDriver, DeviceRun
from operant.training.drivers.host_driver import HostDriver
from operant.types import Array, Arrays, Tree

GAMMA, ACTORS = 0.9, 8
VALUE_TOLERANCE, ACTION_TOLERANCE = 0.15, 0.1
INDIFFERENT = (ConstantProbe, ObservationProbe, DiscountProbe, TruncationProbe)
"""Probes that pay the same whatever is done."""


class Learning(NamedTuple):
    """How an agent learns the probes."""

    options: dict[str, Any]
    steps: int
    """Environment steps."""
    value: Callable[[Learner, Tree, Arrays, Tree], Array]
    """Its estimate of what observations are worth, of what acting needs or, if `whole`, of the agent's
    state."""
    recurrent: dict[str, Any] | None = None
    """Options for the probe of memory."""
    whole: bool = False


def state_value(made: Learner, policy: Tree, observation: Arrays, carry: Tree) -> Array:
    """Return the output of the value head."""
    return made.algorithm.model.apply(policy, observation, carry)[0]["value"]


def critic_value(made: Learner, policy: Tree, observation: Arrays, carry: Tree) -> Array:
    """Return the output of a critic with a network of its own."""
    own = carry["critic"] if made.algorithm.critic.recurrent else ()
    return made.algorithm.critic.apply(policy["critic"], observation, own)[0]["value"]


def greedy_value(made: Learner, policy: Tree, observation: Arrays, carry: Tree) -> Array:
    """Return the largest value of an allowed action."""
    q = made.algorithm.q_values(policy[0], observation, carry)["action"]
    return losses.max_target(q, masks_of(observation).get("action"))


def policy_value(made: Learner, policy: Tree, observation: Arrays, carry: Tree) -> Array:
    """Return the mean of the action values under the policy."""
    outputs = made.algorithm.model.apply(policy, observation, carry)[0]
    probs = made.algorithm.policy(outputs, observation)["action"].probs
    return jnp.sum(probs * outputs["action/q"].reshape(probs.shape), axis=-1)


def baseline_value(made: Learner, state: Tree, observation: Arrays, carry: Tree) -> Array:
    """Return what the baseline predicts."""
    valid = jnp.ones((1, len(next(iter(observation.values())))), bool) if carry else ()
    return made.algorithm.prepared(state).values(View(observation, carry, valid))[:, 0]


def acted_value(made: Learner, state: Tree, observation: Arrays, carry: Tree) -> Array:
    """Return what the first critic says of the greedy action."""
    algorithm = made.algorithm
    own, critic = carry or {"actor": ()}, next(iter(algorithm.critics))
    units = algorithm.greedy(algorithm.actor.apply(state.actor, observation, own["actor"])[0])
    inputs = with_actions(observation, units, algorithm.spaces)
    model = algorithm.critics[critic]
    return model.apply(getattr(state, critic), inputs, own.get(critic, ()))[0]["value"]


RELU = [{"type": "dense", "size": 32, "activation": "relu"}]
_DQN = Learning(
    {
        "model": MODEL,
        "lr": 0.01,
        "gamma": GAMMA,
        "buffer_max_size": 1000,
        "buffer_initial_size": 200,
        "buffer_batch_size": 32,
        "epsilon_decay_steps": 4000,
        "epsilon_end": 0.1,
        "target_sync_steps": 160,
    },
    16_000,
    greedy_value,
    {
        "model": [{"type": "dense", "size": 16}, {"type": "gru", "size": 16}],
        "sequence_length": 8,
        "burn_in": 4,
        "buffer_batch_size": 16,
    },
)
_CONTINUOUS = Learning(
    {
        "actor_model": RELU,
        "critic_model": RELU,
        "lr": 0.003,
        "gamma": GAMMA,
        "buffer_max_size": 2000,
        "buffer_initial_size": 400,
        "buffer_batch_size": 64,
        "gradient_steps": 2,
        "tau": 0.05,
    },
    16_000,
    acted_value,
    {
        **networks("td3", [{"type": "dense", "size": 16}, {"type": "gru", "size": 16}]),
        "sequence_length": 8,
        "burn_in": 4,
        "buffer_batch_size": 16,
    },
    whole=True,
)
_MODULAR = {
    "model": MODEL,
    "baseline_model": MODEL,
    "lr": "linear:0.005:0.0005:30000",
    "gamma": GAMMA,
    "grad_norm": 0.5,
}
_REMEMBERING = {
    **networks("modular", [{"type": "dense", "size": 16}, {"type": "gru", "size": 16, "horizon": 4}]),
    "lr": "linear:0.01:0.0005:30000",
    "entropy_regularization": 0.001,
}
LEARNING: dict[str, Learning] = {
    "modular": Learning(
        {**_MODULAR, "batch_size": 64, "horizon": None, "entropy_regularization": 0.01},
        32_000,
        baseline_value,
        _REMEMBERING,
        whole=True,
    ),
    "ac": Learning({**_MODULAR, "batch_size": 64}, 32_000, baseline_value, _REMEMBERING, whole=True),
    "vpg": Learning(
        {**_MODULAR, "batch_size": 16, "episode_limit": 20},
        32_000,
        baseline_value,
        {**_REMEMBERING, "batch_size": 8},
        whole=True,
    ),
    "a2c": Learning(
        {"model": MODEL, "lr": "linear:0.005:0.0005:30000", "gamma": GAMMA, "n_steps": 8},
        32_000,
        state_value,
        {
            "model": [{"type": "dense", "size": 16}, {"type": "gru", "size": 16}],
            "lr": "linear:0.01:0.0005:30000",
            "entropy_coef": 0.001,
        },
    ),
    "acer": Learning(
        {
            "model": MODEL,
            "lr": "linear:0.005:0.0005:30000",
            "gamma": GAMMA,
            "n_steps": 8,
            "buffer_max_size": 2000,
            "buffer_initial_size": 200,
        },
        32_000,
        policy_value,
        {"model": [{"type": "dense", "size": 16}, {"type": "gru", "size": 16}], "entropy_coef": 0.001},
    ),
    "ddpg": _CONTINUOUS,
    "dqn": _DQN,
    "ddqn": _DQN,
    "dueling_dqn": _DQN,
    "pqn": Learning(
        {
            "model": MODEL,
            "lr": "linear:0.005:0.0005:30000",
            "gamma": GAMMA,
            "n_steps": 16,
            "epochs": 4,
            "epsilon_decay_steps": 8000,
            "epsilon_end": 0.1,
        },
        32_000,
        greedy_value,
        {"model": [{"type": "dense", "size": 16}, {"type": "gru", "size": 16}], "mini_batches": 1},
    ),
    "ppo": Learning(
        {
            "model": MODEL,
            "lr": "linear:0.005:0.0005:30000",
            "gamma": GAMMA,
            "n_steps": 16,
            "entropy_coef": 0.01,
            "clip_norm": 0.3,
            "clip_value": False,
        },
        32_000,
        state_value,
        {
            "model": [{"type": "dense", "size": 16}, {"type": "gru", "size": 16}],
            "mini_batches": 1,
            "entropy_coef": 0.001,
        },
    ),
    "trpo": Learning(
        {
            "actor_model": MODEL,
            "critic_model": MODEL,
            "lr": "linear:0.005:0.0005:30000",
            "gamma": GAMMA,
            "n_steps": 16,
            "max_kl": 0.01,
            "fvp_n_steps": 1,
            "critic_iterations": 1,
        },
        32_000,
        critic_value,
        networks("trpo", [{"type": "dense", "size": 16}, {"type": "gru", "size": 16}]) | {"mini_batches": 1},
    ),
    "sac": _CONTINUOUS._replace(
        options={**_CONTINUOUS.options, "temperature": 0.01, "learn_temperature": False}
    ),
    "td3": _CONTINUOUS,
}


def make(name: str, probe: str, **options: Any) -> tuple[Learner, NativeEnv]:
    """Make an agent for a probe."""
    env, learning = PROBES[probe](), LEARNING[name]
    chosen = dict(learning.options)
    if "memory" in probe:
        chosen |= learning.recurrent or {}
    definition = parse_agent(name, **{**chosen, **options})
    return Learner(definition.cls.create(definition.config, env.spaces, ACTORS)), env


class Found(NamedTuple):
    """What an agent says and does on the rows of greedy episodes; leaves `[rows]`."""

    value: np.ndarray
    expected: np.ndarray
    action: dict[str, np.ndarray]
    best: dict[str, np.ndarray]
    pays: np.ndarray
    """Whether the action of the row matters."""


def look(name: str, made: Learner, env: NativeEnv, train: TrainState, rows: int = 12) -> Found:
    """Let the agent act greedily, and ask it at every row for the value."""

    @jax.jit
    def play(train: TrainState) -> Any:
        acting, key = made.acting(train), fold(jax.random.key(99), Purpose.ENV)
        noise = made.noise(key, jnp.uint32(0), ACTORS)

        def row(carry: Any, _: Any) -> Any:
            actors, memory, started, first = carry
            seen = actors.observation
            started = jax.tree.map(
                lambda new, old: jnp.where(first.reshape(-1, *[1] * (new.ndim - 1)), new, old), seen, started
            )
            memory = jax.tree.map(lambda x: jnp.where(first[:, None], 0.0, x), memory)
            action = made.act(acting, seen, memory, first, noise, explore=False)
            asked = train.state if LEARNING[name].whole else acting.policy
            value = LEARNING[name].value(made, asked, seen, memory)
            after, _ = native_env.step(env, actors, made.emit(action.action), key)
            expected = env.expected_value(seen, GAMMA)
            best, pays = env.best_action(seen, started), jnp.full(ACTORS, not isinstance(env, INDIFFERENT))
            if isinstance(env, MemoryProbe):
                pays = seen["state"][..., 1] > 0.99  # the answer, after the delay
            answers = (value, expected, action.action, best, pays, ~actors.ended)
            return (after, action.carry, started, actors.ended), answers

        actors = native_env.start(env, key, ACTORS)
        start = (actors, made.algorithm.initial_carry(ACTORS), actors.observation, jnp.ones(ACTORS, bool))
        with jax.numpy_rank_promotion("allow"):
            return jax.lax.scan(row, start, None, rows)[1]

    *answers, valid = jax.device_get(play(train))
    assert valid.any()
    return Found(*jax.tree.map(lambda x: x[valid], answers))


def check(name: str, probe: str, found: Found) -> None:
    """Compare values and actions with the known ones."""
    scale = np.maximum(1.0, np.abs(found.expected))
    error = np.abs(found.value - found.expected) / scale
    assert error.max() <= VALUE_TOLERANCE, f"{name} on {probe}: {found.value} where {found.expected} is right"
    for component, best in found.best.items():
        action = found.action[component]
        wrong = np.abs(action.astype(float) - best) > (ACTION_TOLERANCE if action.dtype.kind == "f" else 0)
        assert not wrong[found.pays].any(), f"{name} on {probe}: {component} {action} where {best} is right"


def on_device(name: str, probe: str, **options: Any) -> Found:
    """Learn a probe on the device driver."""
    made, env = make(name, probe, **options)
    driver = DeviceDriver(made, env, ACTORS, jax.random.key(1))
    while driver.step < LEARNING[name].steps:
        driver.advance(driver.blocks)
    assert driver.metrics()["update/skipped"] == 0
    return look(name, made, env, driver.train)


EVERYDAY = ("probe/observation-action",)


def pairs():
    """Every agent with every probe that it can learn; all but some are slow."""
    found = []
    for entry in ONCE:
        name = entry if isinstance(entry, str) else entry.values[0]
        for probe in probes_of(name):
            usual = probe if serves(name, PROBES[EVERYDAY[0]]().spaces) else probe.removesuffix("-continuous")
            slow = not isinstance(entry, str) or usual not in EVERYDAY
            found.append(pytest.param(name, probe, marks=pytest.mark.exhaustive if slow else ()))
    return found


def served(*probes):
    """Return one agent of a kind with each of these probes, or its continuous twin.

    Those that serve neither are left out.
    """
    names = [entry if isinstance(entry, str) else entry.values[0] for entry in ONCE]
    twins = [
        (name, probe if probe in probes_of(name) else f"{probe}-continuous")
        for name in names
        for probe in probes
    ]
    return [(name, probe) for name, probe in twins if probe in probes_of(name)]


@pytest.mark.parametrize(("name", "probe"), pairs())
def test_agents_learn_the_probes_on_the_device(name, probe):
    check(name, probe, on_device(name, probe))


def test_every_agent_has_settings_for_the_probes():
    assert sorted(LEARNING) == sorted(SMALL)
    assert all(LEARNING[name].recurrent for name in NAMES)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "probe"), served("probe/discount", "probe/observation-action", "probe/time-limit")
)
def test_agents_learn_probes_on_the_host(name, probe):
    made, env = make(name, probe)
    key = jax.random.key(1)
    driver = HostDriver(CompiledAgent(made, key, ACTORS), Stream(env, ACTORS, key), 0)
    while driver.step < LEARNING[name].steps:
        driver.advance(driver.blocks)
    check(name, probe, look(name, made, env, driver.train))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "probe"), served("probe/observation-action", "probe/time-limit"))
def test_agents_learn_probes_in_a_program(name, probe):
    env, learning = PROBES[probe](), LEARNING[name]
    agent = Agent(
        parse_agent(name, **learning.options),
        env.spaces,
        parallel_interactions=ACTORS,
        settings=Settings.from_dict({"seed": 1}),
    )
    interact(agent, env, 1, learning.steps // ACTORS)
    assert agent.timesteps > learning.steps // 3
    check(name, probe, look(name, agent.learner, env, agent.engine.train))


# Negative controls: with a mechanism switched off the check fails


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "probe"), served("probe/discount"))
def test_another_gamma_is_seen_on_the_discount_probe(name, probe):
    with pytest.raises(AssertionError, match="is right"):
        check(name, probe, on_device(name, probe, gamma=0.5))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "probe"), served("probe/time-limit"))
def test_truncation_taken_for_termination_is_seen_on_the_time_limit_probe(name, probe, monkeypatch):
    collect = DeviceRun.collect

    def wrong(self, *arguments):
        block, *rest = collect(self, *arguments)
        return block._replace(terminated=block.terminated | block.truncated), *rest

    monkeypatch.setattr(DeviceRun, "collect", wrong)
    found = on_device(name, probe)
    with pytest.raises(AssertionError, match="is right"):
        check(name, probe, found)
    # Where 10 is right: whole returns give (1 + 1.9 + 2.71 + 3.439) / 4 = 2.26, the mean over the rows left;
    # one-step targets, a quarter of which end, 1 / (1 - 0.9 * 3/4) = 3.08; λ-returns lie between.
    assert ((found.value > 2.26 - 0.4) & (found.value < 3.08 + 0.4)).all(), found.value


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "probe"), served("probe/observation-action"))
def test_actions_of_another_row_are_seen_on_the_observation_action_probe(name, probe, monkeypatch):
    """Where an option says so, agents act at random throughout: else their own good actions bring rewards
    that those of others seem to earn."""
    collect = DeviceRun.collect

    def wrong(self, *arguments):
        block, *rest = collect(self, *arguments)
        rolled = jax.tree.map(lambda x: jnp.roll(x, 1, axis=1), (block.action, block.extras))
        return block._replace(action=rolled[0], extras=rolled[1]), *rest

    monkeypatch.setattr(DeviceRun, "collect", wrong)
    with pytest.raises(AssertionError, match="is right"):
        known = options(config_class(name))
        random = {k: x for k, x in {"epsilon_end": 1.0, "step_noise_coef": 2.0}.items() if k in known}
        check(name, probe, on_device(name, probe, **random))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in NAMES if LEARNING[name].value is greedy_value])
def test_values_of_forbidden_actions_are_seen_on_the_mask_probe(name, monkeypatch):
    """An agent that bootstraps from action values must leave forbidden ones out.

    Others have no such maximum.
    """
    right = losses.double_target
    monkeypatch.setattr(losses, "double_target", lambda target, online, mask: right(target, online, None))
    found = on_device(name, "probe/mask")
    monkeypatch.setattr(losses, "double_target", right)
    with pytest.raises(AssertionError, match="is right"):
        check(name, "probe/mask", found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_a_network_without_memory_fails_the_memory_probe(name):
    probe = next(probe for probe in probes_of(name) if "memory" in probe)
    found = on_device(name, probe, **networks(name, MODEL))
    with pytest.raises(AssertionError, match="is right"):
        check(name, probe, found)
