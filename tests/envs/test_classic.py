"""The native classic control environments beside Gymnasium's."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from operant.envs.native import native_env
from operant.envs.native.classic import NATIVE

pytestmark = pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")  # CartPole-v0

STEP = jax.jit(native_env.step, static_argnums=0)
DISTINCT = [name for name in NATIVE if name != "CartPole-v0"]  # which differs from v1 in its time limit only
CONTINUOUS = {"Pendulum-v1", "MountainCarContinuous-v0"}
# Rounding of float32 over one step. The acrobot's four evaluations at 28 rad/s multiply it.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}
TOLERANCE_ACROBOT = {"rtol": 2e-5, "atol": 1e-3}


def states(name, random, count):
    """States worth a step: around the start, around the limits, and on walls and goals."""
    if name.startswith("CartPole"):
        return random.uniform(-1, 1, (count, 4)) * [2.6, 2, 0.25, 2]
    if name == "Acrobot-v1":
        return random.uniform(-1, 1, (count, 4)) * [np.pi, np.pi, 4 * np.pi, 9 * np.pi]
    if name == "Pendulum-v1":
        return random.uniform(-1, 1, (count, 2)) * [20, 8]
    return np.stack([random.uniform(-1.2, 0.6, count), random.uniform(-0.07, 0.07, count)], -1)


def draw(name, env, random):
    if name in CONTINUOUS:  # beyond the bounds too: both clip
        return random.uniform(-3, 3, 1).astype(np.float32)
    return int(random.integers(env.action_space.n))


def peer_step(env, state, action):
    env.unwrapped.state = tuple(np.asarray(state, np.float64))
    env.unwrapped.steps_beyond_terminated = None
    observation, reward, terminated, _, _ = env.unwrapped.step(action)
    return observation, reward, terminated, np.asarray(env.unwrapped.state, np.float64)


@pytest.mark.parametrize("name", DISTINCT)
def test_steps_equal_gymnasium_from_any_state(name):
    env, peer = NATIVE[name](), gymnasium.make(name)
    peer.reset(seed=0)
    random = np.random.default_rng(0)
    start = states(name, random, 400).astype(np.float32)
    actions = [draw(name, peer, random) for _ in start]
    batch = {"action": jnp.asarray(np.array(actions), jnp.float32 if name in CONTINUOUS else jnp.int32)}
    keys = jax.random.split(jax.random.key(0), len(start))
    after, got = jax.device_get(jax.jit(jax.vmap(env.step))(jnp.asarray(start), batch, keys))
    tolerance = TOLERANCE_ACROBOT if name == "Acrobot-v1" else TOLERANCE
    ends = 0
    for i, action in enumerate(actions):
        observation, reward, terminated, state = peer_step(peer, start[i], action)
        assert bool(got.terminated[i]) == terminated
        np.testing.assert_allclose(got.observation["state"][i], observation, **tolerance)
        np.testing.assert_allclose(got.reward[i], reward, **tolerance)
        if name != "Acrobot-v1":  # an angle of pi is one of -pi; the observation has its sine and cosine
            np.testing.assert_allclose(after[i], state, **tolerance)
        ends += terminated
    assert name == "Pendulum-v1" or 10 < ends < 390


@pytest.mark.parametrize("name", [name for name in NATIVE if name != "CartPole-v1"])
@pytest.mark.slow
def test_whole_episodes_equal_gymnasium(name):
    """From equal first states with equal actions: same length, same end, same observations until then."""
    env, peer = NATIVE[name](), gymnasium.make(name)
    key, random, episodes = jax.random.key(2), np.random.default_rng(1), 3
    start = jax.jit(native_env.start, static_argnums=(0, 2))
    actors = start(env, key, 1)
    for _ in range(episodes):
        peer.reset(seed=0)
        peer.unwrapped.state = np.asarray(actors.state[0], np.float64)
        ended, length = False, 0
        while not ended and length < 250:
            action = draw(name, peer, random)
            dtype = jnp.float32 if name in CONTINUOUS else jnp.int32
            actors, row = STEP(env, actors, {"action": jnp.asarray(action, dtype)[None]}, key)
            observation, reward, terminated, truncated, _ = peer.step(action)
            ended, length = terminated or truncated, length + 1
            assert (bool(row.terminated[0]), bool(row.truncated[0])) == (
                terminated,
                truncated and not terminated,
            )
            if name != "Acrobot-v1" or length < 20:  # the acrobot is chaotic: rounding errors grow
                np.testing.assert_allclose(row.observation["state"][0], observation, rtol=1e-3, atol=1e-3)
                np.testing.assert_allclose(row.reward[0], reward, rtol=1e-3, atol=1e-3)
            else:
                actors = actors._replace(state=jnp.asarray(peer.unwrapped.state, jnp.float32)[None])
        if ended:
            actors, _ = STEP(env, actors, {"action": jnp.asarray(action, dtype)[None]}, key)
        else:
            actors = start(env, jax.random.key(length), 1)


@pytest.mark.parametrize("name", DISTINCT)
def test_reset_distribution_equals_gymnasium(name):
    """Every entry of 4000 first states: same range, and means and deviations within 5 standard errors."""
    env, peer = NATIVE[name](), gymnasium.make(name)
    ours = np.asarray(jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 4000))[0])
    peer.reset(seed=0)
    theirs = []
    for _ in range(4000):
        peer.unwrapped.reset()
        theirs.append(np.array(peer.unwrapped.state))
    theirs = np.array(theirs)
    assert ours.dtype == np.float32
    deviation = theirs.std(0)
    assert (np.abs(ours.mean(0) - theirs.mean(0)) <= 5 * deviation * np.sqrt(2 / 4000)).all()
    np.testing.assert_allclose(ours.std(0), deviation, rtol=0.06)
    np.testing.assert_allclose(ours.min(0), theirs.min(0), atol=0.01 * np.ptp(theirs, 0).max())
    np.testing.assert_allclose(ours.max(0), theirs.max(0), atol=0.01 * np.ptp(theirs, 0).max())


@pytest.mark.parametrize("name", NATIVE)
def test_spaces_and_limits_equal_gymnasium(name):
    env, peer = NATIVE[name](), gymnasium.make(name)
    (state,) = env.spaces.states.components.values()
    np.testing.assert_array_equal(state.low, peer.observation_space.low)
    np.testing.assert_array_equal(state.high, peer.observation_space.high)
    assert state.shape == peer.observation_space.shape
    assert (state.type, state.dtype) == ("float", "float32")
    (action,) = env.spaces.actions.components.values()
    if name in CONTINUOUS:
        np.testing.assert_array_equal(action.low, peer.action_space.low)
        np.testing.assert_array_equal(action.high, peer.action_space.high)
        assert (action.type, action.shape) == ("float", peer.action_space.shape)
    else:
        assert (action.type, action.num_values, action.shape) == ("int", peer.action_space.n, ())
    assert env.max_episode_timesteps == peer.spec.max_episode_steps


@pytest.mark.parametrize("name", DISTINCT)
def test_shapes_and_types_do_not_change(name):
    """What `scan` needs: a step returns what it took."""
    env = NATIVE[name]()
    state, observation = jax.eval_shape(env.reset, jax.random.key(0))
    (leaf,) = env.spaces.actions.components.values()
    action = {"action": jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)}
    after, step = jax.eval_shape(env.step, state, action, jax.random.key(0))
    assert (after, step.observation) == (state, observation)
    assert (step.reward.shape, step.reward.dtype) == ((), jnp.float32)
    assert (step.terminated.shape, step.terminated.dtype) == ((), jnp.bool_)
    assert hash(env) == hash(NATIVE[name]())
    assert env == NATIVE[name]()


def test_options_equal_gymnasium():
    """The keywords that Gymnasium's environments take."""
    key = jax.random.key(0)
    fallen = jnp.array([2.39, 3.0, 0.0, 0.0])
    for state, reward in ((fallen, -1.0), (jnp.zeros(4), 0.0)):  # 2.39 + 0.02 * 3 > 2.4
        _, step = NATIVE["CartPole-v1"](sutton_barto_reward=True).step(state, {"action": jnp.int32(0)}, key)
        assert step.reward == reward
    # 0.449 + 0.01: beyond 0.45, too slow for a goal velocity of 0.05
    state = jnp.array([0.449, 0.01])
    for goal_velocity, arrived in ((0.0, True), (0.05, False)):
        env = NATIVE["MountainCarContinuous-v0"](goal_velocity=goal_velocity)
        assert env.step(state, {"action": jnp.zeros(1)}, key)[1].terminated == arrived
    # g = 2 at the horizontal: 1.5 * 2 * sin(pi / 2) * 0.05 = 0.15
    _, step = NATIVE["Pendulum-v1"](g=2.0).step(jnp.array([np.pi / 2, 0.0]), {"action": jnp.zeros(1)}, key)
    np.testing.assert_allclose(step.observation["state"][2], 0.15, rtol=1e-6)


@pytest.mark.parametrize("name", DISTINCT)
def test_arithmetic_is_float32_where_the_program_computes_in_64_bits(name):
    env = NATIVE[name]()
    action = {
        n: jax.ShapeDtypeStruct((2, *x.shape), x.storage) for n, x in env.spaces.actions.components.items()
    }
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        key = jax.random.key(0)
        actors = jax.eval_shape(lambda key: native_env.start(env, key, 2), key)
        after, row = jax.eval_shape(lambda *given: native_env.step(env, *given), actors, action, key)
    assert {x.dtype for x in jax.tree.leaves((actors.state, row.observation, row.reward))} == {
        np.dtype(np.float32)
    }
    assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, actors)
