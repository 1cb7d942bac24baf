"""Gymnasium's environments as `Environment`: the same numbers as Gymnasium itself, every kind of space,
what to install."""

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from operant import PPO
from operant.envs import Environment, catalog, check_env
from operant.envs.gymnasium import adapter as adapter
from operant.envs.vector import create
from operant.errors import EnvError, SpaceError, SpecError
from operant.spec.spaces import from_gymnasium


class Cockpit(gymnasium.Env):
    """Dict observations with a mask, and choices of unequal size."""

    observation_space = spaces.Dict(
        {
            "speed": spaces.Box(-1.0, 1.0, (), np.float32),
            "camera": spaces.Dict({"left": spaces.Box(0, 255, (2, 2, 3), np.uint8)}),
            "gear": spaces.Discrete(4, start=-1),
            "lamps": spaces.MultiBinary(3),
        }
    )
    action_space = spaces.MultiDiscrete([2, 5])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = []
        return self._observe(), {}

    def step(self, action):
        self.taken.append(action)
        return self._observe(), float(action.sum()), False, len(self.taken) == 3, {}

    def _observe(self):
        n = len(self.taken)
        return {
            "speed": np.float32(n / 4),
            "camera": {"left": np.full((2, 2, 3), n, np.uint8)},
            "gear": np.int64(n - 1),
            "lamps": np.array([n > 0, n > 1, n > 2], np.int8),
        }


class Menu(gymnasium.Env):
    """A masked choice."""

    observation_space = spaces.Dict(
        {"state": spaces.Box(0.0, 9.0, (1,), np.float32), "action_mask": spaces.MultiBinary(3)}
    )
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return self._observe(), {}

    def step(self, action):
        assert action == self.turn % 3, "a masked action was taken"
        self.turn += 1
        return self._observe(), 1.0, self.turn == 7, False, {}

    def _observe(self):
        mask = (np.arange(3) == self.turn % 3).astype(np.int8)
        return {"state": np.array([self.turn], np.float32), "action_mask": mask}


def flat(observation):
    """Gymnasium's observation as operant shows it: a tuple is a dict by position."""
    if isinstance(observation, tuple):
        return {str(i): int(entry) for i, entry in enumerate(observation)}
    return observation


TAXI = "Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"  # Gymnasium 1.2


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Pendulum-v1", TAXI, "FrozenLake-v1", "Blackjack-v1", "MountainCar-v0"]
)
def test_the_same_numbers_as_gymnasium(name):
    theirs, ours = gymnasium.make(name), Environment.create(name)
    if name == "CartPole-v1":  # created through the same single environment, not its vectorised form
        assert isinstance(ours.environment, adapter.GymnasiumEnv)
    theirs.action_space.seed(0)
    observation, _ = theirs.reset(seed=5)
    np.testing.assert_equal(ours.reset(seed=5), flat(observation))
    for _ in range(260):
        action = theirs.action_space.sample()
        observation, reward, terminated, truncated, _ = theirs.step(action)
        states, terminal, our_reward = ours.execute(action)
        assert terminal == (1 if terminated else 2 if truncated else 0)
        assert our_reward == pytest.approx(float(reward))
        np.testing.assert_equal(states, flat(observation))
        if terminal:
            theirs.reset()
            ours.reset()


def test_dict_observations_and_unequal_choices():
    env = Environment.create(Cockpit)
    assert env.states() == {
        "speed": dict(type="float", min_value=-1.0, max_value=1.0),
        "camera": {
            "left": dict(type="float", shape=[2, 2, 3], min_value=0.0, max_value=255.0, dtype="uint8")
        },
        "gear": dict(type="int", num_values=4, min_value=-1),
        "lamps": dict(type="bool", shape=[3]),
    }
    assert env.actions() == {"0": dict(type="int", num_values=2), "1": dict(type="int", num_values=5)}
    states = env.reset()
    assert states["gear"] == -1 and states["speed"] == 0.0
    states, terminal, reward = env.execute({"0": 1, "1": 4})
    assert env.taken[0].tolist() == [1, 4]
    assert (terminal, reward) == (0, 5.0)
    assert states["camera"]["left"].dtype == np.uint8 and states["camera"]["left"].max() == 1
    assert states["lamps"].tolist() == [True, False, False]
    env.execute({"0": 0, "1": 0})
    assert env.execute({"0": 0, "1": 0})[1] == 2
    with pytest.raises(SpaceError, match=r"action '2'"):
        env.reset()
        env.execute({"2": 0})


def test_masks_come_with_the_states():
    env = Environment.create(Menu)
    assert env.states() == {
        "state": dict(type="float", shape=[1], min_value=0.0, max_value=9.0),
        "action_mask": dict(type="bool", shape=[3]),
    }
    assert env.reset()["action_mask"].tolist() == [True, False, False]
    assert env.execute(0)[0]["action_mask"].tolist() == [False, True, False]
    assert check_env(Menu, steps=20)  # random actions heed the mask; resets take a seed, to no effect


def test_the_limit_of_the_registry_holds_and_may_be_lowered():
    pendulum = Environment.create("Pendulum-v1", max_episode_timesteps=3)
    pendulum.reset()
    assert [pendulum.execute([0.0])[1] for _ in range(3)] == [0, 0, 2]
    wrapped = Environment.create(gymnasium.make("Pendulum-v1", max_episode_steps=2))
    assert wrapped.max_episode_timesteps() == 2
    wrapped.reset()
    assert [wrapped.execute([0.0])[1] for _ in range(2)] == [0, 2]


def test_visualize_asks_for_a_window():
    env = Environment.create("FrozenLake-v1", render_mode="ansi")
    env.reset()
    assert "S" in env.render()
    made = adapter._arguments(adapter.find("CartPole-v1"), dict(visualize=True))
    assert made == dict(render_mode="human")


def test_old_answers_are_named():
    class Old(Cockpit):
        def step(self, action):
            return super().step(action)[:4]

    env = Environment.create(Old)
    env.reset()
    with pytest.raises(EnvError, match=r"must return .observation, reward, terminated, truncated, info."):
        env.execute({"0": 0, "1": 0})


def test_spaces_that_cannot_be_served():
    class Words(Cockpit):
        observation_space = spaces.Text(5)

    with pytest.raises(
        SpaceError, match=r"must be a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    ):
        Environment.create(Words)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("PongNoFrameskip-v4", "ale_py", "atari"),
        ("LunarLander-v3", "Box2D", "box2d"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
    ],
)
def test_missing_packages_are_named_with_their_extra(monkeypatch, name, package, extra):
    present = adapter.find_package
    monkeypatch.setattr(adapter, "find_package", lambda p: None if p == package else present(p))
    monkeypatch.setattr(
        gymnasium,
        "registry",
        {k: v for k, v in gymnasium.registry.items() if "ale_py" not in str(v.entry_point)},
    )
    with pytest.raises(SpecError, match=rf"pip install 'operant\[{extra}\]'"):
        Environment.create(name)
    with pytest.raises(SpecError, match=rf"pip install 'operant\[{extra}\]'"):
        create.create(name, 2)


@pytest.mark.skipif(adapter.find_package("ale_py") is None, reason="ALE is not installed (extra 'atari')")
def test_atari_is_the_same_one_or_many():
    options = {"preprocess": True, "noop_max": 0, "max_episode_timesteps": 3}
    one = Environment.create("PongNoFrameskip-v4", **options)
    many = create.create("PongNoFrameskip-v4", 2, **options)
    assert many.mode == "native-vector"
    assert one.spaces == many.spaces
    leaf = many.spaces.states.components["state"]
    assert (leaf.shape, leaf.dtype, leaf.frames) == ((84, 84, 4), "uint8", 4)
    first, frames = one.reset(seed=1), many.reset(1)["state"]
    np.testing.assert_array_equal(frames[0], first)
    stop = {"action": np.zeros(2, np.int32)}
    assert [one.execute(0)[1] for _ in range(3)] == [0, 0, 2]
    cut = [many.step(stop).truncated.tolist() for _ in range(4)]
    assert cut == [[False] * 2, [False] * 2, [True] * 2, [False] * 2]
    assert one.reset().shape == (84, 84, 4)
    raw = Environment.create("ALE/Pong-v5")
    assert raw.states()["shape"] == [210, 160, 3]
    many.close()


class Quest(gymnasium.Env):
    """Says in words what is to be done, as MiniGrid does."""

    observation_space = spaces.Dict(
        {"direction": spaces.Discrete(4), "mission": spaces.Text(20), "speed": spaces.Box(0.0, 1.0, (2,))}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"direction": 1, "mission": "go", "speed": np.zeros(2, np.float32)}, {}


def test_an_entry_of_text_is_left_out_as_its_refusal_says():
    with pytest.raises(SpaceError, match="space 'mission' must be a Box") as refused:
        Environment.create(environment=Quest())
    told = re.search(r"or leave it out: (gymnasium\S+\(env, .*\))\.$", str(refused.value))
    environment = Environment.create(environment=eval(told[1], {"gymnasium": gymnasium, "env": Quest()}))
    assert environment.reset().keys() == {"direction", "speed"}


class Grey(gymnasium.Env):
    """Declares bytes and shows fractions, as where an image was divided by 255 already."""

    observation_space = gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)
    max_episode_steps = 3  # of what, it does not say

    def __init__(self, first=None):
        self.first = np.uint8(9) if first is None else first

    def reset(self, *, seed=None, options=None):
        return np.full((2, 2), self.first), {}

    def step(self, action):
        return np.full((2, 2), 0.5), 0.0, False, False, {}


def test_observations_are_looked_at_before_they_are_stored():
    """As bytes they would be black."""
    refused = pytest.raises(EnvError, match=r"reset of 'Grey': The state 'state' must be .*uint8")
    with Environment.create(Grey(first=0.5)) as env, refused:
        env.reset()
    with Environment.create(Grey()) as env:
        env.reset()
        with pytest.raises(EnvError, match=r"step of 'Grey': The state 'state' must be .*uint8"):
            env.execute(0)


def test_only_a_registry_tells_a_time_limit():
    assert create.create(Grey(), mode="in-process").max_episode_timesteps is None


def test_gymnasiums_vector_that_holds_others_still_is_not_used():
    pytest.importorskip("flax", reason="flax is not installed; Gymnasium's phys2d environments need it")
    with pytest.raises(SpecError, match="holds all others still where one begins anew"):
        create.create("phys2d/CartPole-v1", 6, "native-vector")
    given = gymnasium.make_vec("phys2d/CartPole-v1", 2, vectorization_mode="vector_entry_point")
    with pytest.raises(SpecError, match="holds all others still.*give the id"):
        create.create(given)
    given.close()


@pytest.mark.parametrize(
    "space", [spaces.Text(20), spaces.Dict(a=spaces.Dict(b=spaces.Text(2)), c=spaces.Discrete(2))]
)
def test_what_no_filter_leaves_out_is_not_told_to_be(space):
    with pytest.raises(SpaceError, match=r"Convert it with a wrapper\.$"):
        from_gymnasium(space, spaces.Discrete(2))


class Spaceless(gymnasium.Env):
    """Forgets to set its spaces."""


class Actionless(gymnasium.Env):
    observation_space = spaces.Discrete(3)


@pytest.mark.parametrize(
    "make",
    [
        lambda cls: PPO(cls()),
        lambda cls: PPO(cls, n_envs=2),
        lambda cls: Environment.create(environment=cls),
        lambda cls: Environment.create(environment=gymnasium.wrappers.TimeLimit(cls(), 3)),
        lambda cls: check_env(cls()),
    ],
)
@pytest.mark.parametrize(("cls", "name"), [(Spaceless, "observation_space"), (Actionless, "action_space")])
def test_an_environment_without_spaces_is_told_to_define_them(make, cls, name):
    message = f"'{cls.__name__}' defines no {name}: set it in __init__ "
    with pytest.raises((SpaceError, EnvError), match=message):
        make(cls)


class Faulty(gymnasium.Env):
    """Returns what it is told to."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    first: Any = (np.zeros(2, np.float32), {})
    later: Any = (np.zeros(2, np.float32), 0.0, False, False, {})

    def reset(self, *, seed=None, options=None):
        return self.first

    def step(self, action):
        return self.later


class Old(Faulty):
    def reset(self):
        return self.first


def taken(**given):
    environment = Faulty()
    for name, value in given.items():
        setattr(environment, name, value)
    return environment


NONE = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("environment", "fault"),
    [
        (taken(first=NONE), r"reset must return \(observation, info\)\. Received: ndarray"),
        (Old(), r"reset must take a seed, as reset\(self, \*, seed=None, options=None\)"),
        (
            taken(first=(np.zeros(3, np.float32), {})),
            r"The state 'state' must have shape \(2,\)\. Received: shape \(3,\)",
        ),
        (
            taken(later=(np.zeros(3, np.float32), 0.0, False, False, {})),
            r"The state 'state' must have shape \(2,\)\. Received: shape \(3,\)",
        ),
        (
            taken(later=(NONE, 0.0, False, {})),
            r"step must return \(observation, reward, terminated, truncated, info\)\. Received: a tuple of 4",
        ),
        (taken(later=(NONE, 0.0, 2, False, {})), r"terminated must be True or False\. Received: 2 \(int\)"),
        (taken(later=(NONE, None, False, False, {})), r"The reward must be a number\. Received: None"),
    ],
)
def test_faults_are_told_alike_in_one_environment_and_in_a_vector(environment, fault):
    with pytest.raises(EnvError, match=f"'(Faulty|Old)'.*{fault}"):
        one = Environment.create(environment)
        one.reset(seed=0)
        one.execute(actions=0)
    with pytest.raises(EnvError, match=f"'(Faulty|Old)'.*{fault}"):
        several = create.create([environment])
        several.reset(0)
        several.step({"action": np.zeros(1, np.int32)})


@pytest.mark.parametrize("number", [int, np.int64])
def test_environments_may_tell_their_end_by_0_and_1(number):
    for flags, terminal in (((0, 0), 0), ((1, 0), 1), ((0, 1), 2)):
        environment = taken(later=(NONE, 0.0, *map(number, flags), {}))
        one = Environment.create(environment)
        one.reset()
        assert one.execute(actions=0)[1] == terminal
        several = create.create([environment])
        several.reset()
        step = several.step({"action": np.zeros(1, np.int32)})
        assert (step.terminated[0], step.truncated[0]) == (terminal == 1, terminal == 2)


def test_wrappers_of_the_registry_are_within_its_limit():
    wrappers = gymnasium.wrappers
    both = (wrappers.TimeAwareObservation.wrapper_spec(), wrappers.RecordEpisodeStatistics.wrapper_spec())
    pendulum = "gymnasium.envs.classic_control:PendulumEnv"
    gymnasium.register("Timed-v0", pendulum, max_episode_steps=5, additional_wrappers=both)
    try:
        env = adapter.make(gymnasium.spec("Timed-v0"), {})
        with create.create("Timed-v0", 1) as envs:
            assert envs.spaces.states.components["state"].shape == (4,)
            assert envs.max_episode_timesteps == 5
    finally:
        del gymnasium.registry["Timed-v0"]
    env.reset(seed=0)
    steps = [env.step(np.zeros(1, np.float32)) for _ in range(5)]
    assert steps[-1][3] and steps[-1][4]["episode"]["l"] == 5
    env.close()


class Simulator(Faulty):
    """Connects when it is reset."""

    def reset(self, *, seed=None, options=None):
        self.client = 1
        return super().reset(seed=seed)

    def close(self):
        del self.client


def simulator():
    return Simulator()


def test_what_cannot_be_closed_before_it_is_reset_is_told_of(tests_folder):
    with pytest.warns(RuntimeWarning, match="client"):
        assert catalog.native("envs.test_gymnasium_env:simulator") is None


def test_frames_of_an_environment_s_own_are_no_number():
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.stacked_frames = [1, 2, 3, 4]
    assert adapter.stacked_frames(env) is None
    env.unwrapped.stacked_frames = np.int64(4)
    assert adapter.stacked_frames(env) == 4
