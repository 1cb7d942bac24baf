"""The stream driver of native environments: autoreset, time limits, addressed randomness, and its host
twin."""

import dataclasses
from functools import cached_property, partial

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.envs.environment import Environment
from operant.envs.native import native_env, native_vector
from operant.envs.native.classic import CartPole, Pendulum
from operant.envs.native.native_env import NativeEnv, TimeLimit, TimeStep
from operant.envs.native.native_vector import NativeVector
from operant.envs.vector.batched import NativeEnvironment, from_native
from operant.errors import SpaceError, SpecError, UsageError
from operant.spec.random_streams import Purpose
from operant.spec.spaces import Spaces

START, STEP = native_vector._start, native_vector._step  # jitted


@dataclasses.dataclass(frozen=True)
class Countdown:
    """Counts down from 1..longest (drawn at reset) and terminates at 0.

    The reward is what was drawn at the step.
    """

    longest: int = 5
    max_episode_timesteps: int | None = None

    @cached_property
    def spaces(self):
        return Spaces.read(states={"type": "float", "shape": (1,)}, actions={"type": "int", "num_values": 2})

    def reset(self, key):
        left = jax.random.randint(key, (), 1, self.longest + 1)
        return left, {"state": left.astype(jnp.float32)[None]}

    def step(self, state, action, key):
        left = state - 1
        return left, TimeStep({"state": left.astype(jnp.float32)[None]}, jax.random.uniform(key), left <= 0)


def run(env, key, n, rows, actions=None):
    """Run a Python loop over rows; every field of every row is stacked to [rows, n, ...]."""
    actions = jnp.zeros((rows, n), jnp.int32) if actions is None else actions
    first = actors = START(env, key, n)
    collected = []
    for t in range(rows):
        actors, row = STEP(env, actors, {"action": actions[t]}, key)
        collected.append(row)
    return first, jax.tree.map(lambda *x: np.stack(x), *collected)


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_next_step_autoreset_by_hand(key):
    """One actor: every number of the stream follows from the previous observation."""
    first, rows = run(Countdown(), key, 4, 40)
    left, ended, episodes = float(first.observation["state"][0, 0]), False, 0
    for t in range(40):
        now = float(rows.observation["state"][t, 0, 0])
        if ended:  # reset: a fresh count, reward 0, no flag, whatever the action
            assert 1 <= now <= 5
            assert rows.reward[t, 0] == 0
            assert not rows.terminated[t, 0]
            ended, episodes = False, episodes + 1
        else:
            assert now == left - 1
            assert rows.reward[t, 0] > 0
            ended = now == 0
            assert bool(rows.terminated[t, 0]) == ended
        assert not rows.truncated[t, 0]
        left = now
    assert episodes > 3


def test_time_limit_truncates_after_exactly_that_many_actions():
    env = TimeLimit(Pendulum(), 3)
    actors = START(env, jax.random.key(1), 4)
    flags = []
    for _ in range(8):
        actors, row = STEP(env, actors, {"action": jnp.zeros((4, 1))}, jax.random.key(1))
        flags.append(row.truncated[0].item())
        assert not row.terminated.any()
        assert (np.asarray(row.reward) != 0).all() or flags[-2]
    # three actions, the row of the reset, three actions, the row of the reset
    assert flags == [False, False, True, False, False, False, True, False]


def test_termination_at_the_limit_is_no_truncation():
    """Counts of 1..3 under a limit of 2: 1 and 2 terminate (2 exactly at the limit), 3 is truncated."""
    env = Countdown(longest=3, max_episode_timesteps=2)
    first, rows = run(env, jax.random.key(3), 4, 2)
    left = np.asarray(first.observation["state"][:, 0])
    assert set(left) == {1, 2, 3}
    np.testing.assert_array_equal(rows.terminated[0], left == 1)
    np.testing.assert_array_equal(rows.terminated[1], left == 2)
    np.testing.assert_array_equal(rows.truncated[1], left == 3)
    assert not rows.truncated[0].any()


def test_same_flags_as_gymnasium(key):
    """Gymnasium's vector environment and ours, from the same states with the same actions, row by row."""
    n, rows = 3, 120
    peer = gymnasium.make_vec("CartPole-v1", n, vectorization_mode="vector_entry_point", max_episode_steps=30)
    peer.reset(seed=0)
    env = TimeLimit(CartPole(), 30)
    actors = START(env, key, n)
    peer.unwrapped.state = np.asarray(actors.observation["state"], np.float64).T
    random = np.random.default_rng(0)
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(rows):
        lean = np.asarray(actors.observation["state"])[:, 2:].sum(-1) > 0  # balances, so some episodes last
        action = np.where(np.arange(n) == 0, random.integers(2, size=n), lean).astype(np.int64)
        began = np.asarray(actors.ended)
        actors, row = STEP(env, actors, {"action": jnp.asarray(action, jnp.int32)}, key)
        _, reward, terminated, truncated, _ = peer.step(action)
        np.testing.assert_array_equal(row.reward, reward)
        np.testing.assert_array_equal(row.terminated, terminated)
        np.testing.assert_array_equal(row.truncated, truncated & ~terminated)
        ends["terminated"] += int(terminated.sum())
        ends["truncated"] += int(truncated.sum())
        np.testing.assert_allclose(
            row.observation["state"][~began], peer.unwrapped.state.T[~began], atol=1e-5
        )
        peer.unwrapped.state = np.asarray(row.observation["state"], np.float64).T
    assert min(ends.values()) > 1, ends


def test_same_key_same_stream_and_another_key_another():
    one = run(Countdown(), jax.random.key(3), 4, 30)
    assert equal(one, run(Countdown(), jax.random.key(3), 4, 30))
    other = run(Countdown(), jax.random.key(4), 4, 30)
    assert not np.array_equal(one[1].reward, other[1].reward)
    assert not np.array_equal(one[1].observation["state"], other[1].observation["state"])


def test_every_draw_of_a_run_is_its_own(key):
    """Actors, rows and purposes have different draws (a shared key would repeat numbers)."""
    _, rows = run(Countdown(), key, 4, 200)
    drawn = rows.reward[rows.reward > 0]
    assert len(np.unique(drawn)) > 0.99 * len(drawn)  # 24-bit floats collide rarely
    first = START(TimeLimit(Pendulum(), 3), key, 4).observation["state"]
    assert len(np.unique(np.asarray(first)[:, 0])) == 4


def test_rows_per_call_do_not_matter_and_scan_equals_loop(key):
    env, n = Countdown(), 4
    _, expected = run(env, key, n, 24)

    @partial(jax.jit, static_argnums=1)
    def chunk(actors, rows):
        def body(actors, _):
            return native_env.step(env, actors, {"action": jnp.zeros(n, jnp.int32)}, key)

        return jax.lax.scan(body, actors, length=rows)

    for sizes in ((24,), (8, 8, 8)):
        actors, parts = START(env, key, n), []
        for rows in sizes:
            actors, part = chunk(actors, rows)
            parts.append(part)
        assert equal(jax.tree.map(lambda *x: np.concatenate(x), *parts), expected)


def test_an_actor_does_not_depend_on_how_many_run_beside_it(key):
    _, few = run(Countdown(), key, 2, 30)
    _, many = run(Countdown(), key, 4, 30)
    assert equal(few, jax.tree.map(lambda x: x[:, :2], many))


def test_many_runs_at_once_equal_single_runs():
    keys = jax.random.split(jax.random.key(0), 3)
    env = Countdown()

    def stream(key):
        def body(actors, _):
            return native_env.step(env, actors, {"action": jnp.zeros(2, jnp.int32)}, key)

        return jax.lax.scan(body, native_env.start(env, key, 2), length=20)[1]

    together = jax.jit(jax.vmap(stream))(keys)
    for i in range(3):
        assert equal([x[i] for x in jax.tree.leaves(together)], run(env, keys[i], 2, 20)[1])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), limit=st.sampled_from([None, 2]))
def test_stream_laws(seed, limit):
    """Flags exclude each other, no row after an end has a reward or a flag, no episode exceeds the limit."""
    _, rows = run(Countdown(3, limit), jax.random.key(seed), 4, 12)
    ended = rows.terminated | rows.truncated
    assert not (rows.terminated & rows.truncated).any()
    assert not ended[1:][ended[:-1]].any()
    assert (rows.reward[1:][ended[:-1]] == 0).all()
    assert (rows.reward[0] != 0).all()
    assert (rows.reward[1:][~ended[:-1]] != 0).all()
    for column in ended.T:  # an episode of n actions takes n + 1 rows
        assert np.diff(np.flatnonzero(column)).max(initial=0) <= (limit or 3) + 1


@pytest.mark.parametrize("env", [Countdown(longest=3, max_episode_timesteps=2), CartPole()])
def test_host_vector_equals_device_driver_bit_for_bit(env):
    """The device driver runs its rows in one scan, the host one by one."""
    n, rows, key = 4, 60, jax.random.key(11)
    actions = jax.random.randint(jax.random.key(5), (rows, n), 0, 2)

    @jax.jit
    def device():
        def body(actors, action):
            return native_env.step(env, actors, {"action": action}, key)

        actors = native_env.start(env, key, n)
        return actors.observation, jax.lax.scan(body, actors, actions)[1]

    first, expected = device()
    host = NativeVector(env, n, key=key)
    assert equal(host.reset(None), first)
    for t in range(rows):
        observation, reward, terminated, truncated = host.step({"action": np.asarray(actions[t])})
        got = native_env.NativeStep(observation, reward, terminated, truncated)
        assert equal(got, [x[t] for x in jax.tree.leaves(expected)])
    assert expected.terminated.any()
    assert isinstance(reward, np.ndarray)
    assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float32, np.bool_, np.bool_)
    host.close()


def test_host_vector_seeds():
    host = NativeVector(CartPole(), 4)
    assert host.num_envs == 4
    assert host.spaces == CartPole().spaces
    seeded = host.reset(7)
    assert equal(seeded, START(CartPole(), jax.random.fold_in(jax.random.key(7), Purpose.ENV), 4).observation)
    fresh = host.reset(None)
    again = host.reset(None)
    assert not equal(seeded, fresh)
    assert not equal(fresh, again)
    assert equal(host.reset(7), seeded)
    large = [host.reset(7 + 2**n) for n in (32, 40, 64)]
    assert not any(equal(a, b) for a, b in [(seeded, large[0]), (large[0], large[1]), (large[1], large[2])])
    host.reset(7)
    assert equal(host.reset(None), fresh)


def test_host_vector_takes_any_integer_type_but_no_other_shape():
    host = NativeVector(CartPole(), 4)
    with pytest.raises(UsageError, match="Call reset first"):
        host.step({"action": np.zeros(4, np.int32)})
    host.reset(0)
    host.step({"action": np.zeros(4, np.int64)})
    with pytest.raises(SpaceError, match="action"):
        host.step({"action": np.zeros(3, np.int32)})
    with pytest.raises(SpaceError, match="throttle"):
        host.step({"throttle": np.zeros(4, np.int32)})
    host.close()
    with pytest.raises(UsageError, match="is closed"):
        host.step({"action": np.zeros(4, np.int32)})


def test_equal_environments_share_their_program():
    NativeVector(CartPole(), 4).reset(0)
    compiled = native_vector._start._cache_size()
    NativeVector(CartPole(), 4).reset(1)
    assert native_vector._start._cache_size() == compiled
    NativeVector(CartPole(max_episode_timesteps=3), 4).reset(0)
    assert native_vector._start._cache_size() == compiled + 1


@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_bad_counts_are_refused(value):
    with pytest.raises(SpecError, match="max_episode_timesteps must be a whole number of at least 1"):
        TimeLimit(CartPole(), value)
    with pytest.raises(SpecError, match="num_envs must be a whole number of at least 1"):
        NativeVector(CartPole(), value)


def test_protocol():
    assert isinstance(CartPole(), NativeEnv)
    assert isinstance(TimeLimit(CartPole(), None), NativeEnv)
    assert not isinstance(object(), NativeEnv)
    assert TimeLimit(CartPole(), 5) == TimeLimit(CartPole(), 5)
    assert hash(TimeLimit(CartPole(), 5)) == hash(TimeLimit(CartPole(), 5))


def test_episodes_side_by_side_are_those_of_a_vector_until_each_ends():
    env = Environment.create("jax:CartPole-v1", max_episode_timesteps=20)
    vector = from_native(CartPole(), 5, "CartPole")
    env.reset(seed=7)  # alone first: how many there are is set by each reset
    parallel, states = env.reset(num_parallel=5, seed=3)
    np.testing.assert_array_equal(states, vector.reset(3)["state"])
    ended = []
    for t in range(20):
        pushes = np.array([t % 2, 1, t % 2, 0, t % 2])  # alternating ones balance, others fall
        step = vector.step({"action": pushes})
        left, states, terminal, reward = env.execute(pushes[parallel])
        assert terminal.tolist() == [2 if t == 19 else int(step.terminated[i]) for i in parallel]
        assert reward.tolist() == [1.0] * len(parallel)
        # Those that go on, as they stand; at the limit the last ones, whose value counts.
        known = parallel if t == 19 else left
        np.testing.assert_array_equal(states, step.observation["state"][known])
        ended += [(t, i) for i, end in zip(parallel.tolist(), terminal, strict=True) if end]
        parallel = left
    assert [i for _, i in ended] == [1, 3, 0, 2, 4] or [i for _, i in ended] == [3, 1, 0, 2, 4]
    assert ended[1][0] < 15 and not len(parallel)
    _, first = env.reset(num_parallel=2)
    alone = env.reset()
    assert len({x.tobytes() for x in (first[0], first[1], alone, env.reset())}) == 4
    env.reset(num_parallel=3)
    with pytest.raises(SpaceError, match=r"[Rr]eceived.*\(2,\)"):
        env.execute([0, 1])
    with pytest.raises(SpecError, match="num_parallel must be a whole number of at least 1. Received: "):
        env.reset(num_parallel=0)


def test_one_by_itself_has_the_episodes_of_a_vector_of_one():
    single, vector = (
        NativeEnvironment(from_native(CartPole(), 1, "CartPole")),
        from_native(CartPole(), 1, "CartPole"),
    )
    push = {"action": np.ones(1, np.int64)}
    first = [single.reset(seed=3)]
    np.testing.assert_array_equal(first[0], vector.reset(3)["state"][0])
    for _ in range(2):
        terminal = 0
        while not terminal:
            observation, terminal, _ = single.execute(1)
            step = vector.step(push)
            np.testing.assert_array_equal(observation, step.observation["state"][0])
            assert bool(step.terminated[0]) == bool(terminal)
        first.append(single.reset())
        np.testing.assert_array_equal(first[-1], vector.step(push).observation["state"][0])
    assert len({x.tobytes() for x in (*first, single.reset())}) == 4  # of an episode just begun, too
