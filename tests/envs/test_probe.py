"""Probe environments: their answers against exhaustive search and hand-worked numbers."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.probe_envs import PROBES

from operant.envs.native import native_env
from operant.envs.native.native_env import NativeEnv
from operant.errors import SpecError
from operant.spec.spaces import Spaces

GAMMA = 0.9
ENDLESS = {"probe/time-limit", "probe/time-limit-continuous"}
STEP = jax.jit(native_env.step, static_argnums=0)
RESET = jax.jit(lambda env, key: env.reset(key), static_argnums=0)
ONE = jax.jit(lambda env, state, action: env.step(state, action, jax.random.key(0)), static_argnums=0)


def first_of(env, seed):
    """State and observation at the start of an episode."""
    return RESET(env, jax.random.key(seed))


def candidates(env, observation):
    """Every legal discrete action; of numbers, those that matter and some beside them."""
    choices = {}
    for name, leaf in env.spaces.actions.components.items():
        if leaf.type == "float":
            choices[name] = [np.float32(x) for x in (-1, -0.5, 0, 0.5)]
        elif leaf.type == "bool":
            choices[name] = [np.False_, np.True_]
        else:
            mask = observation.get(f"{name}_mask", np.ones(leaf.num_values, bool))
            choices[name] = [np.int32(i) for i in range(leaf.num_values) if mask[i]]
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def search(env, state, observation, depth=0):
    """Return the value of the best policy by trying every sequence of candidate actions."""
    assert depth < 10
    best = -np.inf
    for action in candidates(env, observation):
        following, result = ONE(env, state, action)
        value = float(result.reward)
        if not result.terminated:
            value += GAMMA * search(env, following, result.observation, depth + 1)
        best = max(best, value)
    return best


@pytest.mark.parametrize("name", sorted(PROBES.keys() - ENDLESS))
def test_values_and_best_actions_equal_exhaustive_search(name):
    env = PROBES[name]()
    for seed in range(2 if "memory" in name else 4):
        state, observation = first_of(env, seed)
        first, expected, terminated = observation, search(env, state, observation), False
        while not terminated:
            value = env.expected_value(observation, GAMMA)
            np.testing.assert_allclose(value, expected, rtol=1e-6)
            action = env.best_action(observation, first)
            state, result = ONE(env, state, action)
            expected = (expected - float(result.reward)) / GAMMA  # v = r + gamma v'
            observation, terminated = result.observation, bool(result.terminated)
        assert abs(expected) < 1e-5  # nothing is left after the end


@pytest.mark.parametrize("name", PROBES)
def test_best_policy_earns_the_expected_value_in_the_stream(name):
    """Play the best policy with the driver.

    Discounted sums of rewards are the expected values of their rows.
    """
    env, key, n, rows = PROBES[name](), jax.random.key(1), 8, 12
    actors = native_env.start(env, key, n)
    first, stream = actors.observation, []
    for _ in range(rows):
        observation, invalid = actors.observation, actors.ended
        actors, row = STEP(env, actors, env.best_action(observation, first), key)
        stream.append((observation, invalid, row))
        first = native_env._select(invalid, row.observation, first)
    episodes = 0
    for i in range(n):
        total = None
        for observation, invalid, row in reversed(stream):
            if row.terminated[i]:
                total, episodes = 0.0, episodes + 1
            elif row.truncated[i]:
                total, episodes = float(env.expected_value(row.observation, GAMMA)[i]), episodes + 1
            if total is not None and not invalid[i]:
                total = float(row.reward[i]) + GAMMA * total
                np.testing.assert_allclose(env.expected_value(observation, GAMMA)[i], total, rtol=1e-5)
    assert episodes >= n


@pytest.mark.parametrize("name", PROBES)
def test_contract(name):
    """Spaces describe what comes; nothing changes shape or type; equal probes are equal and hashable."""
    env = PROBES[name]()
    assert isinstance(env, NativeEnv)
    assert isinstance(env.spaces, Spaces)
    assert env == PROBES[name]()
    assert hash(env) == hash(PROBES[name]())
    assert env != PROBES["probe/hybrid" if name == "probe/constant" else "probe/constant"]()
    state, observation = first_of(env, 0)
    described = {k: (v.shape, v.storage) for k, v in env.spaces.observation_components.items()}
    assert {k: (v.shape, v.dtype) for k, v in observation.items()} == described
    action = env.best_action(observation, observation)
    assert set(action) == set(env.spaces.actions.components)
    for key, leaf in env.spaces.actions.components.items():
        assert (action[key].shape, action[key].dtype) == (leaf.shape, leaf.storage)
        value = np.asarray(action[key], np.float32)
        assert (value >= leaf.low).all()
        assert (value <= leaf.high).all()
    after, step = jax.eval_shape(env.step, state, action, jax.random.key(0))
    assert after == jax.eval_shape(lambda: state)
    assert step.observation == jax.eval_shape(lambda: observation)
    assert (step.reward.shape, step.reward.dtype) == ((), jnp.float32)
    batch = jax.tree.map(lambda x: jnp.stack([x, x]), observation)
    assert env.expected_value(batch, GAMMA).shape == (2,)
    assert env.expected_value(batch, GAMMA).dtype == jnp.float32


def outcome(env, action, seed=0):
    state, observation = first_of(env, seed)
    return observation, ONE(env, state, action)[1]


def test_actions_that_are_not_best_pay_less():
    """Hand-worked: 1 - 4 (0 - 0.5)^2 = 0, 1 - 4 (-1 - 0.5)^2 = -8; the wrong discrete action pays -1."""
    assert outcome(PROBES["probe/action"](), {"action": jnp.int32(0)})[1].reward == -1
    env = PROBES["probe/action-continuous"]()
    assert outcome(env, {"action": jnp.float32(0)})[1].reward == 0
    assert outcome(env, {"action": jnp.float32(-1)})[1].reward == -8
    for name in ("probe/observation-action", "probe/observation-action-continuous"):
        seen = set()
        for seed in range(6):
            env = PROBES[name]()
            observation, _ = outcome(env, env.best_action(first_of(env, seed)[1]), seed)
            seen.add(float(observation["state"][0]))
            mirrored = env.best_action({"state": -observation["state"]})
            # the other sign's action: -1, or 1 - 4 (0.5 + 0.5)^2 = -3
            assert outcome(env, mirrored, seed)[1].reward == (-3 if env.continuous else -1)
        assert seen == {-1.0, 1.0}


def test_discount_by_hand():
    env = PROBES["probe/discount"]()
    np.testing.assert_allclose(env.expected_value({"state": jnp.array([[0.0], [1.0]])}, 0.9), [0.9, 1.0])


def test_truncation_taken_for_termination_gives_another_value():
    """Gamma 0.9, limit 4: 1 / 0.1 = 10; without bootstrap (1, 1.9, 2.71, 3.439) average 2.26."""
    env = PROBES["probe/time-limit"]()
    assert env.max_episode_timesteps == 4
    np.testing.assert_allclose(env.expected_value({"state": jnp.zeros(1)}, GAMMA), 10, rtol=1e-6)
    actors = native_env.start(env, jax.random.key(0), 1)
    total, sums = 0.0, []
    for _ in range(4):
        actors, row = STEP(env, actors, {"action": jnp.zeros(1, jnp.int32)}, jax.random.key(0))
        assert not row.terminated[0]
        total = 1 + GAMMA * total
        sums.append(total)
    assert row.truncated[0]
    np.testing.assert_allclose(np.mean(sums), (1 + 1.9 + 2.71 + 3.439) / 4)


def test_mask_forbids_what_pays_minus_ten():
    env = PROBES["probe/mask"]()
    assert env.spaces.masks == ("action",)
    state, observation = first_of(env, 0)
    for _ in range(2):
        rewards = [float(ONE(env, state, {"action": jnp.int32(a)})[1].reward) for a in range(3)]
        mask = np.asarray(observation["action_mask"])
        assert [r == -10 for r in rewards] == list(~mask)
        assert max(rewards) == -1
        state, result = ONE(env, state, env.best_action(observation))
        assert result.reward == -1
        observation = result.observation
    assert result.terminated
    # a maximum over untrained (zero) estimates of forbidden actions would miss the second -1
    np.testing.assert_allclose(env.expected_value(first_of(env, 0)[1], GAMMA), -1.9, rtol=1e-6)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("delay", [1, 4])
def test_memory_cannot_be_solved_from_the_last_observation(continuous, delay):
    env = PROBES["probe/memory-continuous" if continuous else "probe/memory"](delay=delay)
    noop = {"action": jnp.float32(0) if continuous else jnp.int32(0)}
    asked = {}
    for seed in range(8):
        state, observation = first_of(env, seed)
        sign = float(observation["state"][0])
        for t in range(delay):
            state, result = ONE(env, state, noop)
            assert result.reward == 0
            assert not result.terminated
            np.testing.assert_allclose(result.observation["state"], [0, (t + 1) / delay], rtol=1e-6)
        asked[sign] = state
    assert set(asked) == {-1.0, 1.0}
    grid = [jnp.float32(x) for x in np.linspace(-1, 1, 9)] if continuous else [jnp.int32(0), jnp.int32(1)]
    means = [np.mean([float(ONE(env, s, {"action": a})[1].reward) for s in asked.values()]) for a in grid]
    assert max(means) == 0
    with pytest.raises(SpecError, match="first must be the first observation of the episode"):
        env.best_action(observation)


def test_hybrid_pays_each_action_for_itself():
    env = PROBES["probe/hybrid"]()
    state, observation = first_of(env, 0)
    best = env.best_action(observation)
    changes = {
        "move/gear": ((best["move/gear"] + 1) % 3, 2.0),
        "move/throttle": (jnp.float32(0), 2.0),  # 1 - 4 * 0.25 = 0
        "brake": (~best["brake"], 2.0),
    }
    assert ONE(env, state, best)[1].reward == 3
    for name, (value, reward) in changes.items():
        assert ONE(env, state, best | {name: value})[1].reward == reward
    seen = native_env.start(env, jax.random.key(0), 20).observation
    assert set(np.asarray(seen["level"])) == {0, 1, 2}
    assert set(np.asarray(seen["road/side"])[:, 0]) == {-1.0, 1.0}


@pytest.mark.parametrize("delay", [0, -1, 1.5, True])
def test_bad_delay_is_refused(delay):
    with pytest.raises(SpecError, match="delay must be a whole number of at least 1"):
        PROBES["probe/memory"](delay=delay)


def test_ids():
    assert all(name.startswith("probe/") for name in PROBES)
    for name, make in PROBES.items():
        floats = {leaf.type for leaf in make().spaces.actions.components.values()} == {"float"}
        assert floats == name.endswith("-continuous")
    assert isinstance(PROBES["probe/action-continuous"], partial)
