"""An answer that is not of its space is an error in every driver, at the first step and later.

Floats a little outside their bounds are taken, with one warning.
"""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import operant
from operant.envs.environment import Environment
from operant.envs.vector.create import create
from operant.errors import OperantError, SpaceError
from operant.spec.spaces import Leaf

DICT = spaces.Dict(speed=spaces.Box(0, 1, (2,), np.float64), gear=spaces.Discrete(5))
SOUND = {"speed": np.zeros(2), "gear": 3}
UINT8 = spaces.Box(0, 255, (2,), np.uint8)
FAULTS = {
    "category": (DICT, SOUND, {**SOUND, "gear": 5}, "gear.*Received: 5"),
    "negative": (DICT, SOUND, {**SOUND, "gear": -1}, "gear.*Received: -1"),
    "fraction": (DICT, SOUND, {**SOUND, "gear": 1.5}, "gear.*Received: 1.5"),
    "key": (DICT, SOUND, {**SOUND, "more": 1}, "must be a dict with 'gear', 'speed'|must be a dict with"),
    "nan": (DICT, SOUND, {**SOUND, "speed": np.array([0, np.nan])}, "speed.*finite.*Received: nan"),
    "far": (DICT, SOUND, {**SOUND, "speed": np.array([0, 9.0])}, r"speed.*between 0\.? and 1.*Received: 9.0"),
    "bytes": (UINT8, np.zeros(2, np.uint8), np.array([300, 0]), "between 0 and 255.*Received: 300"),
    "dtype": (UINT8, np.zeros(2, np.uint8), np.array([0.5, 0]), r"whole number|integer"),
    "shape": (UINT8, np.zeros(2, np.uint8), np.zeros(3, np.uint8), r"shape \(2,\)"),
}


class Faulty(gymnasium.Env):
    """Gives `answer` at step `at`."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, sound, answer, at):
        self.observation_space, self.sound, self.wrong, self.at = space, sound, answer, at

    def reset(self, seed=None, options=None):
        self.t = 0
        return self.sound, {}

    def step(self, action):
        self.t += 1
        return self.wrong if self.t >= self.at else self.sound, 1.0, self.t == 40, False, {}


class Declared(Environment):
    """The same by operant's protocol."""

    def __init__(self, space, sound, answer, at):
        super().__init__()
        self.inner, self.single = Faulty(space, sound, answer, at), space is UINT8

    def states(self):
        if self.single:
            return dict(type="float", shape=2, min_value=0, max_value=255, dtype="uint8")
        return dict(speed=dict(shape=2, min_value=0, max_value=1), gear=dict(type="int", num_values=5))

    def actions(self):
        return dict(type="int", num_values=2)

    def reset(self):
        return self.inner.reset()[0]

    def execute(self, actions):
        states, reward, terminal, *_ = self.inner.step(actions)
        return states, terminal, reward


def vector(env):
    with create(env, 1) as stepped:
        stepped.reset(0)
        for _ in range(30):
            stepped.step({"action": np.zeros(1, np.int32)})


def environment(env):
    made = Environment.create(environment=env)
    made.reset()
    for _ in range(30):
        made.execute(0)


@pytest.mark.parametrize("at", [1, 20])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("drive", "make"), [(vector, Faulty), (environment, Faulty), (vector, Declared), (environment, Declared)]
)
def test_what_is_not_of_its_space_is_named(drive, make, fault, at):
    space, sound, answer, message = FAULTS[fault]
    if make is Declared:
        message = {"key": "no state 'more'", "fraction": "gear.*whole number|gear.*integer"}.get(
            fault, message
        )
    with pytest.raises(OperantError, match=message) as caught:
        drive(make(space, sound, answer, at))
    assert make.__name__ in str(caught.value)
    assert drive is environment or f"step {at} of its episode" in str(caught.value)


@pytest.mark.parametrize(("drive", "make"), [(vector, Faulty), (environment, Faulty), (vector, Declared)])
@pytest.mark.parametrize("value", [1.0000000000000002, 1.001, 1.5, -0.2])
@pytest.mark.parametrize("at", [0, 20])
def test_floats_a_little_outside_are_taken_with_one_warning(drive, make, value, at):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        drive(make(DICT, SOUND, {**SOUND, "speed": np.full(2, value)}, at))
    assert len(told) == (abs(value - 0.5) > 0.5001)
    assert all("speed' must be between 0" in str(each.message) for each in told)


class Drifting(Faulty):
    def step(self, action):
        self.wrong = np.float32([0.5 * 1.7 ** (self.t + 1)])
        return super().step(action)


def test_what_drifts_out_of_its_bounds_is_taken():
    env = Drifting(spaces.Box(0, 1, (1,)), np.float32([0]), None, at=1)
    with pytest.warns(RuntimeWarning, match="between 0.* and 1") as told, create([env]) as vector:
        vector.reset(0)
        for _ in range(30):
            last = vector.step({"action": np.zeros(1, np.int32)}).observation["state"]
        leaf = Leaf("float", (1,), min_value=0.0, max_value=1.0)
        for value in (1.5, 9.0, 1e5):
            assert leaf.accept(np.float32([value]), "state", tolerant=True) == value
        with pytest.raises(SpaceError, match="finite|between"):
            leaf.accept(np.float32([np.nan]), "state", tolerant=True)
    assert len(told) == 2 and last > 1e5


def test_floats_farther_outside_than_their_bounds_are_apart_are_refused():
    for value, fits in ((2.0, True), (-1.0, True), (2.1, False), (-1.1, False)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = Faulty(DICT, SOUND, {**SOUND, "speed": np.full(2, value)}, 3)
            if fits:
                vector(env)
            else:
                with pytest.raises(OperantError, match=r"between 0 and 1\. Received: (2.0999|-1.1)"):
                    vector(env)


class Flags(gymnasium.vector.VectorEnv):
    """A vector whose third step answers `terminated` as given."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = 2
    single_observation_space, single_action_space = UINT8, spaces.Discrete(2)

    def __init__(self, flags):
        self.flags, self.t = flags, 0

    def reset(self, seed=None, options=None):
        return np.zeros((2, 2), np.uint8), {}

    def step(self, actions):
        self.t += 1
        flags = self.flags if self.t == 3 else np.zeros(2, bool)
        return np.zeros((2, 2), np.uint8), np.zeros(2), flags, np.zeros(2, bool), {}


@pytest.mark.parametrize("flags", [np.array([False, None]), np.array([0.0, 0.5]), ["no", "no"]])
def test_flags_of_vectors_are_flags(flags):
    env = create(Flags(flags))
    env.reset()
    with pytest.raises(OperantError, match=r"Environment \d of .*: terminated must be True or False"):
        for _ in range(3):
            env.step({"action": np.zeros(2, np.int32)})


@pytest.mark.slow
def test_the_device_refuses_categories_that_are_none():
    from operant.envs.native.native_env import TimeStep
    from operant.spec.spaces import Spaces

    class Native:
        max_episode_timesteps = 99
        spaces = Spaces.read(dict(type="int", num_values=5), dict(type="int", num_values=2))

        def reset(self, key):
            return np.int32(0), {"state": np.int32(0)}

        def step(self, state, action, key):
            return state + 1, TimeStep({"state": state + 1}, action["action"], False)

    with pytest.raises(OperantError, match=r"\(step 5 of its episode\): The state must be one of 5 values"):
        operant.PPO(Native(), n_steps=8, mini_batches=1, quiet=True).fit(max_steps=16)
