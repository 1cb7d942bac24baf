"""Algorithm classes act in a program's own loop, and play in environments that are given."""

from __future__ import annotations

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import operant
from operant import Agent, create_envs
from operant.envs.gymnasium.atari import preprocessed
from operant.envs.gymnasium.preprocessing import PreprocessingOptions, PreprocessingWrapper
from operant.envs.native.classic import CartPole
from operant.envs.vector import create
from operant.errors import SpaceError, SpecError, UsageError
from operant.execution.trainers.inputs import is_id, made_again

SMALL = {"n_steps": 16, "mini_batches": 1, "ppo_epochs": 1, "quiet": True, "seed": 1}


class Gears(gymnasium.Env):
    """What has no like in operant's structure: a tuple, choices that begin at 1, of unequal counts, masked
    by one vector."""

    observation_space = spaces.Dict(
        x=spaces.Box(-1, 1, (3,)),
        pair=spaces.Tuple([spaces.Discrete(2, start=1), spaces.MultiBinary(2)]),
        action_mask=spaces.MultiBinary(5),
    )
    action_space = spaces.MultiDiscrete([3, 2], start=[1, 0])

    def __init__(self, render_mode=None):
        self.render_mode, self.closed, self.t = render_mode, False, 0

    def observation(self):
        x = np.full(3, self.t / 10, np.float32)
        return {"x": x, "pair": (np.int64(2), np.int8([1, 0])), "action_mask": np.int8([0, 0, 1, 1, 0])}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation(), {}

    def step(self, action):
        assert list(action) == [3, 0]  # all that the mask allows
        self.t += 1
        return self.observation(), 1.0, self.t == 7, False, {}

    def render(self):
        return np.zeros((4, 4, 3), np.uint8) if self.render_mode == "rgb_array" else None

    def close(self):
        self.closed = True


class Endless(gymnasium.Env):
    """Has no end of its own, and requires an argument."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def __init__(self, start):
        self.start = start

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(2, self.start, np.float32), {}

    def step(self, action):
        return np.full(2, self.start, np.float32), self.start, False, False, {}


class Screen(gymnasium.Env):
    """Pictures, for three steps of four frames."""

    observation_space, action_space = spaces.Box(0, 255, (8, 8, 3), np.uint8), spaces.Discrete(2)

    def __init__(self):
        self.t = 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros((8, 8, 3), np.uint8), {}

    def step(self, action):
        self.t += 1
        return np.full((8, 8, 3), self.t, np.uint8), 1.0, self.t == 12, False, {}


class Ready(PreprocessingWrapper):
    """Is preprocessed by itself."""

    def __init__(self):
        super().__init__(Screen(), PreprocessingOptions())


@pytest.fixture(scope="module")
def geared():
    agent = operant.PPO([Gears(), Gears()], [8], **SMALL)
    agent.fit(max_steps=64)
    yield agent
    agent.close()


@pytest.fixture(scope="module")
def cart(tmp_path_factory):
    """A class that has trained, and the agent that its checkpoint makes."""
    agent = operant.PPO("CartPole-v1", [8], n_envs=2, **SMALL)
    agent.fit(max_steps=64)
    yield agent, Agent.load(agent.save(tmp_path_factory.mktemp("kept")))
    agent.close()


def test_actions_are_those_of_the_agent(cart):
    """The same calls give the same actions, the best ones and those that are drawn.

    Training does not notice.
    """
    ours, theirs = cart
    steps, before = ours.steps, jax.device_get(ours.session.driver.train.state)
    states = np.random.default_rng(0).uniform(-0.3, 0.3, (40, 4)).astype(np.float32)
    best = theirs.act(states, independent=True)
    np.testing.assert_array_equal(ours.act(states), best)
    assert [ours.act(state) for state in states[:5]] == best[:5].tolist()
    assert set(best) == {0, 1}
    drawn = [theirs.act(states, independent=True, deterministic=False) for _ in range(2)]
    for wanted in drawn:
        np.testing.assert_array_equal(ours.act(states, deterministic=False), wanted)
    assert (drawn[0] != drawn[1]).any()
    after = jax.device_get(ours.session.driver.train.state)
    assert ours.steps == steps and jax.tree.all(jax.tree.map(np.array_equal, before, after))


def test_acting_is_with_what_was_learnt_last():
    acted = []
    agent = operant.PPO("CartPole-v1", [8], n_envs=2, lr=0.1, **SMALL)
    states = np.random.default_rng(0).uniform(-0.3, 0.3, (200, 4))

    def look(agent, record):
        acted.append(agent.act(states))

    first = agent.act(states)
    agent.fit(max_steps=200, callback=look)
    last = agent.act(states)
    assert (first != last).any() and acted
    np.testing.assert_array_equal(acted[-1], last)
    agent.close()
    np.testing.assert_array_equal(agent.act(states), last)  # what is closed are the environments


def test_draws_go_on_behind_a_checkpoint(tmp_path):
    """What is loaded repeats no draw of before: another object, the same one, and an agent."""
    states = np.zeros((64, 4), np.float32)

    def drawn(actor, **told):
        return actor.act(states, deterministic=False, **told).tolist()

    agents = [operant.PPO("CartPole-v1", [8], n_envs=2, **SMALL) for _ in range(2)]
    first = drawn(agents[0])
    path = agents[0].save(tmp_path)
    second, third = drawn(agents[0]), drawn(agents[0])
    assert first != second != third
    for agent in agents:
        agent.load(path)
        assert [drawn(agent), drawn(agent)] == [second, third]
    for actors in (2, 3):
        agent = Agent.load(path, parallel_interactions=actors)
        assert drawn(agent, independent=True) == second
    for agent in agents:
        agent.close()


def test_observations_and_actions_are_gymnasiums(geared):
    env = Gears()
    observation, ended = env.reset()[0], False
    while not ended:
        action = geared.act(observation, deterministic=False)
        assert env.action_space.contains(action)
        observation, _, ended, _, _ = env.step(action)
    several = {
        "x": np.zeros((2, 3)),
        "pair": (np.array([1, 2]), np.ones((2, 2), np.int8)),
        "action_mask": [[0, 0, 1, 1, 0], [1, 0, 0, 0, 1]],
    }
    np.testing.assert_array_equal(geared.act(several), [[3, 0], [1, 1]])


@pytest.mark.parametrize("how", ["in-process", "processes", "vector"])
def test_observations_are_gymnasiums_wherever_the_environments_run(how):
    """Those of Blackjack are tuples."""
    envs, options = "Blackjack-v1", {"n_envs": 2, "vector": how}
    if how == "vector":
        envs, options = gymnasium.make_vec(envs, 2, vectorization_mode="sync"), {}
    agent = operant.PPO(envs, [8], **options, **SMALL)
    assert agent.act((13, 2, 0)) in (0, 1)
    assert agent.act((np.array([13, 20]), np.array([2, 1]), np.array([0, 1]))).shape == (2,)
    agent.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda o: {"x": o["x"]},
            r"The observation must be a dict with 'x', 'pair', 'action_mask'. Received: 'x'",
        ),
        (lambda o: o["x"], "Received: ndarray of another structure"),
        (lambda o: {**o, "x": np.zeros(4)}, r"The state 'x' must have shape \(3,\)"),
        (lambda o: {**o, "x": np.full(3, np.nan)}, "'x' must be finite"),
        (
            lambda o: {**o, "pair": (1.5, o["pair"][1])},
            r"'pair/0' must be whole numbers .int64.\. Received: 1.5, dtype float64",
        ),
        (
            lambda o: {**o, "action_mask": np.int8([0, 0, 0, 1, 0])},
            "mask '0_mask' must allow at least one value",
        ),
    ],
)
def test_observations_that_do_not_fit(geared, change, message):
    with pytest.raises(SpaceError, match=message):
        geared.act(change(Gears().reset()[0]))


def test_recurrent_internals_go_from_call_to_call():
    agent = operant.PPO("CartPole-v1", [{"type": "gru", "size": 8}], n_envs=2, **SMALL)
    with pytest.raises(UsageError, match=r"recurrent agent needs internals: .* first initial_internals\(\)"):
        agent.act(np.zeros(4))
    start = agent.initial_internals()
    action, one = agent.act(np.full(4, 0.1), start)
    assert action in (0, 1) and jax.tree.map(np.shape, one) == jax.tree.map(np.shape, start)
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(start), strict=True))
    actions, several = agent.act(np.full((3, 4), 0.1), agent.initial_internals(3))
    assert actions.shape == (3,)
    for a, b in zip(jax.tree.leaves(several), jax.tree.leaves(one), strict=True):
        np.testing.assert_allclose(a, np.stack([b] * 3), rtol=1e-5)
    with pytest.raises(SpaceError, match="internals must have the shapes"):
        agent.act(np.zeros((2, 4)), start)
    agent.close()


def test_jax_native_environments_act_in_their_own_structure():
    agent = operant.PPO(CartPole(), [8], n_envs=2, **SMALL)
    assert agent.act(np.zeros(4)) in (0, 1) and agent.act(np.zeros((3, 4))).shape == (3,)
    assert len(agent.play().rewards) == 1
    with pytest.raises(SpecError, match="cannot be rendered: it is JAX-native. Give env= one of Gymnasium's"):
        agent.play(render=True)
    agent.close()


def test_floats_are_clipped_to_their_bounds():
    agent = operant.PPO("Pendulum-v1", [8], **SMALL)
    drawn = agent.act(np.zeros((200, 3)), deterministic=False)
    assert drawn.dtype == np.float32 and drawn.shape == (200, 1) and np.abs(drawn).max() <= 2
    agent.close()


# Playing in what is given


def test_objects_cannot_be_made_again_and_others_can_be_given(geared, tmp_path):
    with pytest.raises(
        SpecError, match=r"no other can be made like it. Give one: play\(env=\.\.\.\), an object, class"
    ):
        geared.play()
    env = Gears()
    assert geared.play(env=env, episodes=2).rewards == [7.0, 7.0] and not env.closed
    for given in (Gears, lambda: Gears()):
        assert geared.play(env=given).rewards == [7.0]
    with pytest.raises(
        SpecError,
        match="gives no pictures to render. Received: NoneType. Make it with render_mode='rgb_array'",
    ):
        geared.play(env=env, frame_dir=str(tmp_path))
    for given in (Gears("rgb_array"), Gears, lambda: Gears("rgb_array")):
        played = geared.play(env=given, frame_dir=str(tmp_path))
        assert len(played.files) == 8 and played.lengths == [7]


@pytest.mark.parametrize(
    "envs",
    [
        Gears,
        pytest.param([Gears], marks=pytest.mark.slow),
        pytest.param(lambda: Gears(), marks=pytest.mark.slow),
        [lambda: Gears()],
    ],
    ids=range(4),
)
def test_classes_and_functions_make_others(envs):
    agent = operant.PPO(envs, [8], eval_frequency=16, eval_episodes=2, **SMALL)
    assert agent.play().rewards == [7.0]
    agent.fit(max_steps=32)
    assert agent.evaluated.mean_reward == 7.0
    agent.close()


def test_what_cannot_be_played_in(geared, cart):
    with pytest.raises(SpecError, match="env must be other objects than those that train"):
        geared.play(env=geared._envs[0])
    for given in (3, [Gears()], gymnasium.make_vec("CartPole-v1", 2)):
        with pytest.raises(
            SpecError, match="env must be one environment: an id, an object, a class or a function"
        ):
            geared.play(env=given)
    with pytest.raises(
        SpaceError,
        match=r"env must have the states and actions of those that train. Their own: .*'masks': \['0', '1'\]",
    ):
        geared.play(env="CartPole-v1")
    given = create.create("CartPole-v1", 2)
    agent = operant.PPO(given, [8], **SMALL)
    with pytest.raises(SpecError, match=r"no other .* can be made\. Give one: env=\.\.\."):
        agent.play()
    assert len(agent.play(env="CartPole-v1").rewards) == 1
    agent.close()


def half():
    return Endless(0.5)


@pytest.mark.parametrize(
    ("envs", "given", "options"),
    [(Endless, Endless, {"env_kwargs": {"start": 0.5}}), (half, half, {}), ([half, half], half, {})],
    ids=["class", "function", "list"],
)
def test_what_trains_is_played_with_the_arguments_and_the_limit_of_the_run(envs, given, options):
    agent = operant.PPO(envs, [8], max_episode_timesteps=7, **options, **SMALL)
    assert agent.play(env=given, max_steps=100)[:2] == ([3.5], [7])
    other = agent.play(env=lambda: half(), max_steps=100)
    assert other.lengths == []  # it has no end
    agent.close()


def test_an_object_that_is_refused_stays_open(cart):
    env = Gears()
    with pytest.raises(SpaceError, match="env must have the states and actions of those that train"):
        cart[0].play(env=env)
    assert not env.closed


def test_another_id_has_none_of_the_arguments_of_the_first():
    agent = operant.PPO(
        "FrozenLake-v1", [8], env_kwargs={"is_slippery": False}, max_episode_timesteps=3, **SMALL
    )
    for name in ("FrozenLake-v1", "FrozenLake"):  # of which it is the newest version
        assert max(agent.play(env=name, episodes=3).lengths) <= 3
    given = create_envs("FrozenLake-v1", preprocess=False)[0]
    assert max(agent.play(env=given, episodes=20, action_idx=1).lengths) > 3
    agent.close()


def test_objects_are_made_again_with_their_arguments():
    made = create_envs("FrozenLake-v1", 2, preprocess=False, is_slippery=False)
    for env in (made[0], made_again(made[0]), made_again(made[1], "rgb_array")):
        assert len(env.unwrapped.P[0][0]) == 1  # where an action leads is certain
    assert not is_id(made) and is_id(create_envs("FrozenLake-v1", 2, preprocess=False))


@pytest.mark.slow
def test_environments_that_are_made_end_by_their_time_limit():
    """Also in a loop of the program's own, and within a wrapper that repeats actions."""
    for env, actions in [
        (create_envs("Pendulum-v1", 1, preprocess=False)[0], 200),
        (preprocessed("CarRacing-v3"), 250),
    ]:
        env.reset(seed=0)
        flags = [env.step(0 * env.action_space.sample())[2:4] for _ in range(actions)]
        assert flags[-1] == (False, True) and not any(map(any, flags[:-1]))
        env.close()


def test_what_normalises_goes_on_with_its_moments_where_it_is_made_again():
    """A policy that has learnt with them would see other inputs.

    And what it is judged by is not learnt from.
    """
    made = gymnasium.wrappers.NormalizeObservation(gymnasium.make("Pendulum-v1"))
    made.reset(seed=1)
    for _ in range(20):
        made.step(made.action_space.sample())
    again, count = made_again(made), made.obs_rms.count
    first, _ = again.reset(seed=2)
    raw, _ = gymnasium.make("Pendulum-v1").reset(seed=2)
    np.testing.assert_allclose(first, (raw - made.obs_rms.mean) / np.sqrt(made.obs_rms.var + 1e-8), rtol=1e-4)
    assert made.obs_rms.count == count


def test_a_list_of_different_ids_is_no_id():
    assert is_id(["CartPole-v1", "CartPole-v1"]) and not is_id(["CartPole-v0", "CartPole-v1"])


def test_objects_are_made_again_with_their_wrappers_once():
    clipped = gymnasium.wrappers.ClipReward.wrapper_spec(min_reward=0.0, max_reward=0.5)
    gymnasium.register(
        "Clipped-v0", "gymnasium.envs.classic_control:CartPoleEnv", additional_wrappers=(clipped,)
    )
    try:
        (made,) = create_envs("Clipped-v0", preprocess=False)
        again = made_again(made)
        assert made.spec.additional_wrappers == again.spec.additional_wrappers == (clipped,) and is_id(made)
    finally:
        del gymnasium.registry["Clipped-v0"]


def test_objects_in_wrappers_of_their_entry_point_keep_their_time_limit():
    def wrapped():
        return gymnasium.wrappers.TransformReward(Endless(0.5), lambda reward: reward)

    gymnasium.register("Wrapped-v0", wrapped, max_episode_steps=7)
    try:
        envs = create_envs("Wrapped-v0", 2, preprocess=False)
        assert [env.spec.max_episode_steps for env in envs] == [7, 7]
        agent = operant.A2C(envs, [8], n_steps=8, quiet=True, seed=1)
        agent.fit(max_steps=32)
        assert agent.games > 2 and set(agent.total_rewards) == {3.5}
        agent.close()
    finally:
        del gymnasium.registry["Wrapped-v0"]


def test_objects_that_take_no_render_mode_are_made_again():
    gymnasium.register(
        "Endless-v0", Endless, max_episode_steps=7, disable_env_checker=True, kwargs={"start": 0.5}
    )
    try:
        agent = operant.PPO([gymnasium.make("Endless-v0")], [8], eval_frequency=16, eval_episodes=1, **SMALL)
        assert agent.play()[:2] == ([3.5], [7])
        with pytest.raises(SpecError, match=r"No other can be made like .* Give one: play\(env=\.\.\.\)"):
            agent.play(render=True)
        agent.close()
    finally:
        del gymnasium.registry["Endless-v0"]


class Unrecorded(gymnasium.RewardWrapper):
    """Does not say with what it was made."""

    def reward(self, reward):
        return reward


def test_objects_in_wrappers_that_cannot_be_made_again_are_told_of():
    with pytest.raises(
        SpecError, match=r"No other can be made like .*Unrecorded.*RecordConstructorArgs.* Give one"
    ):
        made_again(Unrecorded(gymnasium.make("CartPole-v1")))


def test_preprocessed_objects_are_no_id():
    gymnasium.register("Screen-v0", Screen)
    try:
        assert not is_id(create_envs("Screen-v0")) and is_id(create_envs("Screen-v0", preprocess=False))
        counted = gymnasium.wrappers.RecordEpisodeStatistics(create_envs("Screen-v0")[0])
        with pytest.raises(SpecError, match="no other can be made like it. Give one: play"):
            made_again(counted)
    finally:
        del gymnasium.registry["Screen-v0"]


def test_others_are_not_preprocessed_as_those_that_train():
    """What is no id is preprocessed where it is made."""
    gymnasium.register("Screen-v0", Screen)
    try:
        agent = operant.PPO(
            "Screen-v0", [{"type": "pooling", "reduction": "mean"}], preprocess=True, max_frame=True, **SMALL
        )
        for given in (lambda: preprocessed(Screen()), Ready, preprocessed(Screen()), "Screen-v0"):
            assert agent.play(env=given).lengths == [3]
        agent.close()
    finally:
        del gymnasium.registry["Screen-v0"]
