"""Vectors of environments: the stream with next-step autoreset, all modes alike, faults, and workers that
die."""

import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types

import gymnasium
import jax
import numpy as np
import psutil
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import TransformReward
from hypothesis import given, settings
from hypothesis import strategies as st

import operant
from operant.envs import Environment
from operant.envs.check import random_actions
from operant.envs.remote import connect
from operant.envs.vector import create as vector
from operant.envs.vector import sync_vector
from operant.envs.vector.async_vector import processors
from operant.envs.vector.base import VectorStep, seed_of
from operant.envs.vector.create import create
from operant.envs.workers import process
from operant.errors import EnvError, SpecError, UsageError, raised_at
from operant.training.drivers.host_driver import HostDriver
from operant.training.evaluate import run_episodes

# Environments of a module that workers can import.
MODULE = '''
import ctypes, os, signal, sys, threading, time
import gymnasium
import numpy as np
from gymnasium import spaces
from operant.envs import Environment


class Count(gymnasium.Env):
    """Observes (its number, the step); ends after `length` steps; does what the action says."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(9)

    def __init__(self, length=4, sleep=0.0):
        self.length, self.sleep = length, sleep

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.mark = self.np_random.random()
        return self._observe(), {}

    def _observe(self):
        return np.array([self.mark, self.t, os.getpid()], np.float32)

    def step(self, action):
        time.sleep(self.sleep)
        self.t += 1
        if action == 1:
            raise RuntimeError("the motor is stuck")
        if action == 2:
            time.sleep(60)
        if action == 3:
            os._exit(5)
        if action == 4:
            return self._observe() * np.nan, 0.0, False, False, {}
        if action == 5:
            return self._observe(), float("inf"), False, False, {}
        if action == 6:
            return np.zeros(2, np.float32), 0.0, False, False, {}
        if action == 7:
            time.sleep(1.0)
        if action == 8:
            return self._observe(), None, False, False, {}
        return self._observe(), float(self.t), self.t == self.length, False, {}


class Idle(Count):
    """Takes no notice of actions."""

    def step(self, action):
        return super().step(0)


class Unclosing(Count):
    def close(self):
        time.sleep(20)


class Quitting(Idle):
    """Ends its process once, in its third step, for which it takes no reward: all others cost one."""

    def __init__(self, file):
        super().__init__(length=5)
        self.file = file

    def step(self, action):
        if self.t == 2 and not os.path.exists(self.file):
            open(self.file, "x").close()
            os._exit(5)
        observation, _, terminated, truncated, info = super().step(action)
        return observation, -1.0, terminated, truncated, info


class Pressing(Count):
    """Presses Ctrl-C where its answer is awaited."""

    def step(self, action):
        if action == 7:
            time.sleep(0.2)
            os.kill(os.getppid(), signal.SIGINT)
        return super().step(action)


class Waiting(Count):
    """Waits in C for what another process sends, and says how many bytes came: -1 if broken off."""

    def step(self, action):
        ours, theirs = os.pipe()
        threading.Timer(1.0, os.write, (theirs, b"x")).start()
        came = ctypes.CDLL(None).read(ours, ctypes.create_string_buffer(1), 1)
        return self._observe(), float(came), False, False, {}


class Starting(Count):
    """Starts a program as a shell does, or C: with all that is open."""

    def reset(self, *, seed=None, options=None):
        os.system("sleep 90 &")
        return super().reset(seed=seed)


class Once(Count):
    """Can begin an episode once only."""

    def reset(self, *, seed=None, options=None):
        if hasattr(self, "t"):
            raise ValueError("worn out")
        return super().reset(seed=seed)


class Fragile(Count):
    """Its process ends the second time that one is made."""

    def __init__(self, folder):
        super().__init__()
        made = len(os.listdir(folder))
        open(os.path.join(folder, str(made)), "x").close()
        if made == 1:
            os._exit(7)


class Loaded(Environment):
    """Observes whether JAX, Keras or the test are loaded."""

    def states(self):
        return dict(type="int", num_values=2)

    def actions(self):
        return dict(type="float", shape=(2,), min_value=-1.0, max_value=1.0)

    def reset(self):
        return int(any(name in sys.modules for name in ("jax", "keras", "pytest")))

    def execute(self, actions):
        return self.reset(), 2, float(actions.max())
'''


class Scales(Environment):
    """Writes to its actions."""

    def states(self):
        return dict(type="float")

    def actions(self):
        return dict(type="float", shape=(2,))

    def reset(self):
        return 0.0

    def execute(self, actions):
        actions *= 2
        return 0.0, False, float(actions.sum())


class Steps(Environment):
    """Counts its steps, which are states and rewards."""

    def __init__(self, length):
        self.length = length

    def states(self):
        return dict(type="float")

    def actions(self):
        return dict(type="int", num_values=2)

    def reset(self):
        self.t = 0
        return 0.0

    def execute(self, actions):
        self.t += 1
        return float(self.t), self.t == self.length, float(self.t)


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    (folder / "count_envs.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    import count_envs

    yield count_envs
    sys.path.remove(str(folder))
    del sys.modules["count_envs"]


def act(*actions):
    return {"action": np.array(actions, np.int32)}


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_equal(x, y)


def reference(make, n, seed, limit, actions):
    """The stream in plain Python: `N` environments of Gymnasium, each with its time limit."""
    envs = [gymnasium.wrappers.TimeLimit(make(), limit) for _ in range(n)]
    rows = [[np.asarray(e.reset(seed=seed_of(seed, i))[0])] for i, e in enumerate(envs)]
    ended = [False] * n
    steps = []
    for row in actions:
        step = []
        for i, env in enumerate(envs):
            if ended[i]:
                step.append((np.asarray(env.reset()[0]), 0.0, False, False))
                ended[i] = False
            else:
                observation, reward, terminated, truncated, _ = env.step(row[i])
                step.append((np.asarray(observation), reward, terminated, truncated and not terminated))
                ended[i] = terminated or truncated
        steps.append(step)
    return rows, steps


# The stream


@pytest.mark.parametrize(
    ("name", "mode"), [("CartPole-v1", "in-process"), ("Taxi-v4", "in-process"), ("CartPole-v1", "processes")]
)
def test_the_stream_is_that_of_plain_python(name, mode):
    n, limit, seed = 3, 7, 11
    actions = np.random.default_rng(0).integers(0, 2, (40, n))
    first, steps = reference(gymnasium.spec(name).make, n, seed, limit, actions)
    with create(name, n, mode, limit, num_workers=2) as env:
        assert (env.mode, env.num_envs, env.max_episode_timesteps, env.why) == (
            mode,
            n,
            limit,
            "it was asked for",
        )
        observation = env.reset(seed)["state"]
        np.testing.assert_array_equal(observation, np.stack([f[0] for f in first]))
        ends = 0
        for row, expected in zip(actions, steps, strict=True):
            step = env.step(act(*row))
            observation, reward, terminated, truncated = (np.array(x) for x in zip(*expected, strict=True))
            np.testing.assert_array_equal(step.observation["state"], observation)
            np.testing.assert_array_equal(step.reward, reward.astype(np.float32))
            np.testing.assert_array_equal(step.terminated, terminated)
            np.testing.assert_array_equal(step.truncated, truncated)
            assert (step.reward.dtype, step.terminated.dtype, step.truncated.dtype) == (
                np.float32,
                bool,
                bool,
            )
            ends += int(step.truncated.sum())
    assert ends >= 3  # the comparison saw resets


def test_few_environments_are_looped_over():
    few = create("CartPole-v1", 2)
    assert few.mode == "in-process"
    assert "below 6 environments a loop is as fast as a vectorised form" in few.why


class Moded(CartPoleEnv):
    def __init__(self, mode=0, **kwargs):
        super().__init__(**kwargs)
        self.chosen = mode


def test_arguments_that_only_single_environments_take(monkeypatch):
    """One may be called as an argument of `create` is, and a vectorised form may lack it: a loop serves it
    then."""
    monkeypatch.setitem(gymnasium.registry, "Moded-v0", gymnasium.envs.registration.EnvSpec(
        "Moded-v0", Moded, vector_entry_point=gymnasium.spec("CartPole-v1").vector_entry_point
    ))  # fmt: skip
    vector = create("Moded-v0", 8, "auto", env_kwargs={"mode": 3})
    assert {cell.env.unwrapped.chosen for cell in vector.envs} == {3}
    assert "the vectorised form of Moded-v0 takes no argument 'mode'" in vector.why
    with pytest.raises(
        SpecError, match="not available: the vectorised form of Moded-v0 takes no argument 'mode'"
    ):
        create("Moded-v0", 8, "native-vector", env_kwargs={"mode": 3})
    with pytest.raises(
        SpecError, match=r"'Moded-v0' takes no argument 'x'\. Known: mode, .*sutton_barto_reward"
    ):
        create("Moded-v0", 8, env_kwargs={"x": 3})


def test_gymnasiums_own_vector_keeps_the_stream():
    env = create("CartPole-v1", 8)
    assert (env.mode, env.max_episode_timesteps) == ("native-vector", 500)
    assert "vectorised form" in env.why
    low = create("CartPole-v1", 8, max_episode_timesteps=5)
    low.reset(0)
    previous = np.zeros(8, bool)
    for _ in range(60):
        step = low.step(act(*[0, 1] * 4))
        assert not (
            step.reward[previous].any() or step.terminated[previous].any() or step.truncated[previous].any()
        )
        assert (np.abs(step.observation["state"][previous]) <= 0.05).all()  # first observations
        previous = step.terminated | step.truncated
    a, b = env.reset(3)["state"], env.reset(3)["state"]
    np.testing.assert_array_equal(a, b)
    assert len(np.unique(a[:, 0])) == 8
    assert not np.array_equal(a, env.reset(4)["state"])


def test_cartpole_truncates_at_500_steps_in_its_vectorised_form():
    env = create("CartPole-v1", 2, mode="native-vector")
    env.reset(0)
    for t in range(1, 502):
        state = env._vector.unwrapped.state
        state[:] = 0.0  # held upright
        step = env.step(act(0, 1))
        assert not step.terminated.any()
        assert step.truncated.tolist() == [t == 500] * 2
        assert step.reward.tolist() == [float(t <= 500)] * 2


def test_jax_native_vectors():
    env = create("jax:CartPole-v1", 3, max_episode_timesteps=4)
    assert (env.mode, env.max_episode_timesteps) == ("jax", 4)
    first = env.reset(0)["state"]
    assert first.shape == (3, 4) and first.dtype == np.float32
    truncated = [env.step(act(0, 1, 0)).truncated.all() for _ in range(5)]
    assert truncated == [False, False, False, True, False]
    with pytest.raises(SpecError, match=r"has no mode 'processes'"):
        create("jax:CartPole-v1", 3, "processes")


@pytest.mark.parametrize("mode", ["in-process", "processes"])
def test_environments_of_users(module, mode):
    with create(module.Loaded, 2, mode, num_workers=1) as env:
        # Workers load neither JAX nor Keras; in this process, the control, they are there.
        assert env.reset(0)["state"].tolist() == [int(mode == "in-process")] * 2
        step = env.step({"action": np.array([[0.5, 3.0], [-9.0, -8.0]], np.float32)})
        assert step.truncated.all() and not step.terminated.any()  # terminal 2
        np.testing.assert_array_equal(step.reward, [1.0, -1.0])  # actions clipped to their bounds
        step = env.step({"action": np.zeros((2, 2), np.float32)})
        assert not step.reward.any() and not step.truncated.any()


def test_actions_stay_as_they_are():
    actions = np.ones((2, 2), np.float32)
    actions.setflags(write=False)
    env = create([Scales(), Scales()])
    env.reset()
    assert env.step({"action": actions}).reward.tolist() == [4.0, 4.0]


def test_seeds_differ_between_environments_and_repeat(module):
    with create(module.Count, 4, "in-process") as a, create(module.Count, 4, "processes", num_workers=2) as b:
        marks = a.reset(5)["state"][:, 0]
        assert len(set(marks.tolist())) == 4
        np.testing.assert_array_equal(b.reset(5)["state"][:, 0], marks)
        np.testing.assert_array_equal(a.reset(5)["state"][:, 0], marks)
        assert not set(a.reset(6)["state"][:, 0].tolist()) & set(marks.tolist())
        assert len(set(b.reset()["state"][:, 2].tolist())) == 2  # as many processes
    with pytest.raises(SpecError, match=r"seed must be a whole number of at least 0"):
        create(module.Count, 1).reset(-1)


@pytest.mark.parametrize("mode", ["in-process", "native-vector"])
def test_a_time_limit_counts_from_the_last_reset(mode):
    with create("CartPole-v1", 2, mode, max_episode_timesteps=5) as env:
        for steps in (3, 5):
            env.reset(1)
            cut = [env.step(act(i % 2, i % 2)).truncated.all() for i in range(steps)]
            assert cut == [i == 4 for i in range(steps)]


@pytest.mark.parametrize("mode", ["in-process", "processes", "native-vector"])
def test_arrays_are_never_written_to_again(mode):
    with create("CartPole-v1", 2, mode, num_workers=1) as env:
        returned = [env.reset(0)]
        steps = []
        for _ in range(3):
            steps.append(env.step(act(0, 1)))
            returned.append(steps[-1].observation)
        copies = [o["state"].copy() for o in returned]
        copies_of_steps = [[np.copy(x) for x in s[1:]] for s in steps]
        for _ in range(30):
            env.step(act(0, 0))
        for o, copy in zip(returned, copies, strict=True):
            np.testing.assert_array_equal(o["state"], copy)
        for step, copy in zip(steps, copies_of_steps, strict=True):
            assert_same(step[1:], copy)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.none() | st.integers(1, 6)), min_size=1, max_size=4),
)
@settings(max_examples=30, deadline=None)
def test_every_episode_takes_one_row_more_than_it_has_steps(episodes):
    # Row k of an environment whose episodes last m steps is step k % (m + 1) + 1 of an episode, or the reset
    # behind it.
    environments = [
        Environment.create(Steps, length=length, max_episode_timesteps=limit) for length, limit in episodes
    ]
    env = create(environments, mode="in-process")
    env.reset(0)
    for k in range(25):
        step = env.step(act(*[0] * len(episodes)))
        for i, (length, limit) in enumerate(episodes):
            m = min(length, limit or length)
            now = k % (m + 1) + 1
            reset = now == m + 1
            assert step.observation["state"][i] == (0 if reset else now)
            assert step.reward[i] == (0 if reset else now)
            assert step.terminated[i] == (now == m == length)
            assert step.truncated[i] == (now == m < length)


def test_jax_native_objects_and_shaping():
    from operant.envs.native.classic import CartPole

    assert create(CartPole(), 2).mode == "jax"
    assert Environment.create(CartPole()).reset().shape == (4,)
    env = create(
        "jax:CartPole-v1", 2, reward_shaping=lambda states, actions, terminal, reward, next_states: 5.0
    )
    env.reset(0)
    assert (env.mode, env.step(act(0, 0)).reward.tolist()) == ("in-process", [5.0, 5.0])


# Choosing


def test_the_choice_follows_the_measured_step(module, monkeypatch):
    monkeypatch.setattr(vector, "processors", lambda: 2)
    with create(module.Idle, 2) as quick:
        assert quick.mode == "in-process"
        assert "and processes pay above 300 µs" in quick.why


def test_slow_environments_get_processes(module, monkeypatch):
    monkeypatch.setattr(vector, "processors", lambda: 2)
    with create(module.Idle, 2, sleep=0.002) as slow:
        assert slow.mode == "processes"
        assert "above the 300 µs from which processes pay" in slow.why
    with create([module.Idle(sleep=0.002), module.Idle(sleep=0.002)]) as objects:
        assert objects.mode == "in-process"
        assert "an environment object cannot be sent" in objects.why
    monkeypatch.setattr(vector, "processors", lambda: 1)
    with create(module.Idle, 2, sleep=0.002) as alone:
        assert (alone.mode, alone.why) == (
            "in-process",
            "only ids of Gymnasium have vectorised forms; there is one processor",
        )


def test_objects_are_not_stepped_before_the_user_does(module, monkeypatch):
    monkeypatch.setattr(vector, "processors", lambda: 2)
    recorded = [
        gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1", max_episode_steps=2))
        for _ in range(2)
    ]
    with create(recorded) as objects:
        assert objects.mode == "in-process" and "an environment object cannot be sent" in objects.why
        assert [env.episode_count for env in recorded] == [0, 0]
        assert not any(env.unwrapped.steps_beyond_terminated for env in recorded)
        assert all(getattr(env.unwrapped, "state", None) is None for env in recorded)  # nor reset


def test_one_slow_step_is_no_slow_environment(module, monkeypatch):
    """The machine may do something else in the midst of a step."""
    monkeypatch.setattr(vector, "processors", lambda: 2)
    slow, now = iter([0.0, 0.05]), [0.0]  # the first step does not count
    monkeypatch.setattr(vector, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))

    class Stalls(module.Idle):
        def step(self, action):
            now[0] += next(slow, 1e-5)
            return super().step(action)

    with create(Stalls, 2) as quick:
        assert "one step takes 10 µs, and processes pay above 300 µs" in quick.why
    assert next(slow, None) is None


def test_measuring_seeds_nothing(module, monkeypatch):
    monkeypatch.setattr(vector, "processors", lambda: 2)
    marks = [create(module.Idle, 2).reset()["state"][0, 0] for _ in range(2)]
    assert marks[0] != marks[1]


def test_lists_of_environments(module):
    with create([module.Count(length=1), module.Count(length=2)], mode="in-process") as env:
        assert env.num_envs == 2
        env.reset()
        assert [env.step(act(0, 0)).terminated.tolist() for _ in range(4)] == [
            [True, False], [False, True], [True, False], [False, False],
        ]  # fmt: skip
    with create(["CartPole-v1", "CartPole-v1"], mode="processes", num_workers=1) as env:
        assert env.reset(0)["state"].shape == (2, 4)
    with pytest.raises(UsageError, match=r"must have the same states and actions. Environment 1 has"):
        create(["CartPole-v1", "Pendulum-v1"], mode="in-process")
    with pytest.raises(UsageError, match=r"must have the same states and actions. Worker 1 has"):
        create(["CartPole-v1", "Pendulum-v1"], mode="processes", num_workers=2)


def test_one_object_is_not_several_environments(module):
    env, text = (
        gymnasium.make("CartPole-v1"),
        "Received: environments {} and {} are the same '{}'. Make each by itself",
    )
    for several, message in (
        ([env] * 4, text.format(0, 1, "CartPole-v1")),
        (["CartPole-v1", env, gymnasium.wrappers.TimeLimit(env, 5)], text.format(1, 2, "CartPole-v1")),
        ([Environment.create(env), Environment.create(env)], text.format(0, 1, "CartPole-v1")),
        ([module.Count(length=1), count := module.Count(length=2), count], text.format(1, 2, "Count")),
    ):
        with pytest.raises(UsageError, match=message):
            create(several)
        with pytest.raises(UsageError, match=message):
            connect(environments=several)
    for same in (env, module.Loaded()):
        with pytest.raises(UsageError, match=r"makes the same object each time\. Let it make a new"):
            create(lambda same=same: same, 2, mode="in-process")
    make = lambda: gymnasium.make("CartPole-v1")  # noqa: E731
    for several in (["CartPole-v1"] * 2, [make] * 2, [{"environment": "CartPole-v1"}] * 2, [make(), make()]):
        create(several, mode="in-process").close()


def test_vectors_of_gymnasium_given_by_the_user():
    makers = [lambda: gymnasium.make("CartPole-v1")] * 3
    env = create(SyncVectorEnv(makers, copy=False))  # it writes to its arrays again
    assert (env.num_envs, env.mode, env.why) == (3, "native-vector", "it was given as a vector")
    first = env.reset(0)["state"]
    before = first.copy()
    env.step(act(0, 1, 0))
    np.testing.assert_array_equal(first, before)
    with pytest.raises(
        SpecError, match=r"resets with AutoresetMode.SAME_STEP, and AutoresetMode.NEXT_STEP is needed"
    ):
        create(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP))
    same = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    sound = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)  # writes into what both share
    with pytest.raises(SpecError, match="AutoresetMode.SAME_STEP"):
        create(same)
    SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    create(sound).close()
    with pytest.raises(
        SpecError, match=r"num_envs must be 3, as many as the vector has. Received: num_envs=4"
    ):
        create(SyncVectorEnv(makers), 4)
    with pytest.raises(UsageError, match=r"cannot be added to a vector"):
        create(SyncVectorEnv(makers), max_episode_timesteps=3)


def test_wrappers_reward_no_row_that_resets(module):
    inner = SyncVectorEnv([lambda: module.Idle(length=2)] * 2)
    env = create(TransformReward(inner, lambda reward: reward - 0.5))
    env.reset(0)
    steps = [env.step(act(0, 0)) for _ in range(4)]
    assert [step.reward.tolist() for step in steps] == [[0.5] * 2, [1.5] * 2, [0.0] * 2, [0.5] * 2]
    assert [step.terminated.any() for step in steps] == [False, True, False, False]


def test_reward_shaping_runs_here(module):
    shaped = dict(reward_shaping=lambda states, actions, terminal, reward, next_states: -reward)
    with create("CartPole-v1", 2, **shaped) as env:
        assert (env.mode, env.why) == ("in-process", "reward_shaping runs in this process")
        env.reset(0)
        assert env.step(act(0, 1)).reward.tolist() == [-1.0, -1.0]
    with pytest.raises(SpecError, match=r"reward_shaping cannot be sent"):
        create("CartPole-v1", 2, "processes", **shaped)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(num_envs=0), "num_envs must be a whole number of at least 1, or None. Received: num_envs=0"),
        (dict(mode="process"), r"mode must be one of.*Received: mode='process'. Did you mean 'processes'\?"),
        (dict(num_workers=0), "num_workers must be a whole number of at least 1"),
        (dict(timeout_seconds=0), "timeout_seconds must be above 0"),
        (dict(max_episode_timesteps=501), "at most 500, the limit of 'CartPole-v1' itself"),
        (
            dict(environment="Pendulum-v1", mode="native-vector"),
            "Gymnasium has no vectorised form of Pendulum-v1",
        ),
        (
            dict(environment=["CartPole-v1"], num_envs=1, mode="native-vector"),
            "were given one by one. Leave mode at",
        ),
        (
            dict(environment=["CartPole-v1"]),
            "num_envs must be 1, as many as the list has. Received: num_envs=2",
        ),
        (dict(environment=[]), "a list of at least one environment"),
    ],
)
def test_arguments_that_make_no_vector(arguments, message):
    with pytest.raises(SpecError, match=message):
        create(**{"environment": "CartPole-v1", "num_envs": 2, **arguments})


def test_what_cannot_be_sent(module):
    class Local(module.Count):
        pass

    for environment, kwargs, message in (
        (
            module.Count(),
            {},
            "an environment object cannot be sent. Give its id or its class, or run it in this process: "
            "vector='in-process'",
        ),
        (
            Local,
            {},
            "a class or function that cannot be imported by name cannot be sent. Define it at the top",
        ),
        (
            module.Count,
            dict(length=np.int64(3)),
            "the argument 'length' .int64. cannot be sent. Use numbers, strings",
        ),
    ):
        with pytest.raises(SpecError, match=message):
            create(environment, 1, "processes", **kwargs)


class Both(SyncVectorEnv, gymnasium.Env):
    """Is a vector and an environment, and its spec is another's, as EnvPool's are."""

    class spec:  # noqa: N801
        config = types.SimpleNamespace(max_episode_steps=7)


def test_functions_that_make_vectors_are_told_how_many(module):
    def make(num_envs, length=3):
        return Both([lambda: module.Idle(length=length)] * num_envs)

    with create(make, 2, length=5) as env:
        assert (env.num_envs, env.max_episode_timesteps) == (2, 7)
        env.reset(0)
        assert [env.step(act(0, 0)).terminated.all() for _ in range(5)] == [False] * 4 + [True]
    assert create(make(3)).num_envs == 3
    with pytest.raises(UsageError, match="is a vector of environments.*let a function .* take num_envs"):
        create(lambda: make(2))
    with pytest.raises(SpecError, match=r"n_envs must be 1, as many as the vector has. Received: n_envs=2"):
        create(lambda num_envs: make(1), 2)


def test_envpool_is_asked_by_its_prefix(monkeypatch):
    def make(id, env_type, num_envs, **arguments):
        assert (id, env_type) == ("Here-v5", "gymnasium")
        return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * num_envs, **arguments)

    with pytest.raises(SpecError, match="needs EnvPool .*pip install envpool"):
        monkeypatch.setitem(sys.modules, "envpool", None)
        create("envpool:Here-v5")
    package = types.SimpleNamespace(list_all_envs=lambda: ["Here-v5"], make=make)
    monkeypatch.setitem(sys.modules, "envpool", package)
    with create("envpool:Here-v5", 2, copy=False) as env:
        assert (env.num_envs, env.name) == (2, "envpool:Here-v5")
    with pytest.raises(SpecError, match="Unknown environment 'envpool:Her-v5'. Did you mean 'Here-v5'"):
        create("envpool:Her-v5")
    with pytest.raises(SpecError, match="'envpool:Here-v5' cannot be made: it raised TypeError: .*speed"):
        create("envpool:Here-v5", speed=3)


def test_registered_here_made_there(module):
    gymnasium.register("CountHere-v0", entry_point=module.Count, max_episode_steps=2, kwargs=dict(length=9))
    try:
        with create("CountHere-v0", 2, "processes", num_workers=1) as env:
            env.reset(0)
            assert [env.step(act(0, 0)).truncated.all() for _ in range(3)] == [False, True, False]
    finally:
        del gymnasium.registry["CountHere-v0"]


@pytest.mark.parametrize(("registered", "limit"), [(None, 500), (20, 20), (600, 500)])
def test_of_a_registered_limit_and_one_within_the_smaller_holds(registered, limit):
    """As where a function that wraps `gymnasium.make` is registered."""
    gymnasium.register("Within-v0", lambda: gymnasium.make("CartPole-v1"), max_episode_steps=registered)
    try:
        with Environment.create("Within-v0") as one, create("Within-v0", 2, "in-process") as several:
            assert one.max_episode_timesteps() == several.max_episode_timesteps == limit
    finally:
        del gymnasium.registry["Within-v0"]


# Faults


@pytest.mark.parametrize("mode", ["in-process", "processes"])
def test_faults_name_the_environment(module, mode):
    faults = {
        1: r"Environment 2 of 'Count' raised RuntimeError in step: the motor is stuck \(.*count_envs.py, "
        r"line \d+: raise Runtime",
        4: r"Environment 2 of 'Count' .step 2 of its episode.: The state must be finite. Received: nan at "
        r"index .0,.",
        5: "Environment 2 of 'Count' .step 2 of its episode.: The reward must be finite. Received: inf",
        6: r"Environment 2 of 'Count' .step 2 of its episode.*must have shape \(3,\). Received: shape \(2,\)",
        8: r"Environment 2 of 'Count' .step 2 of its episode.: The reward must be a number. Received: None "
        r"\(NoneType\)",
    }
    with create(module.Count, 3, mode, num_workers=2) as env:
        for action, message in faults.items():
            env.reset(0)
            env.step(act(0, 0, 0))
            with pytest.raises(EnvError, match=message) as error:
                env.step(act(0, 0, action))
            assert "traceback" not in str(error.value)  # the line says it all
            if mode == "processes":
                (note,) = error.value.__notes__
                assert note.startswith("Worker 1, traceback (most recent call last)")
                assert action != 1 or 'count_envs.py", line' in note  # where it was raised
        assert env.restarts == 0


@pytest.mark.parametrize("mode", ["in-process", "processes"])
def test_a_reset_that_follows_an_episode_is_not_called_a_step(module, mode):
    with create(module.Once, 2, mode, num_workers=1, length=2) as env:
        env.reset(0)
        env.step(act(0, 0))
        assert env.step(act(0, 0)).terminated.all()
        with pytest.raises(
            EnvError, match=r"0 of 'Once' raised ValueError in reset: worn out \(.*count_envs.py"
        ):
            env.step(act(0, 0))


def test_a_vector_that_fails_in_reset_is_named(module):
    with create(
        gymnasium.vector.SyncVectorEnv(
            [module.Once] * 2, autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP
        ),
        2,
    ) as env:
        env.reset(0)
        with pytest.raises(
            EnvError, match=r"The vector of .* raised ValueError in reset: worn out \(.*count_envs.py"
        ):
            env.reset(0)


def test_where_an_error_was_raised():
    def divide():
        return 1 / 0

    def parse():
        return json.loads("{")  # raised inside of the library, which is not the place to look at

    for call, line in ((divide, "return 1 / 0"), (parse, 'return json.loads\\("{"\\)')):
        with pytest.raises(ValueError if call is parse else ZeroDivisionError) as raised:
            call()
        assert re.match(rf"^ \({__file__}, line \d+: {line}", raised_at(raised.value))
    assert raised_at(ValueError("never raised")) == ""


def test_observations_and_rewards_are_looked_at_in_every_step(module):
    for action, fault in ((4, "must be finite"), (5, "The reward must be finite")):
        with create(module.Count, 1, "in-process") as env:
            env.reset(0)
            env.step(act(0))
            with pytest.raises(EnvError, match=fault):
                env.step(act(action))


def test_large_numbers_are_finite(module):
    # 1e30 squared overflows float32: the quick test of a product must not be the last word
    class Large(module.Count):
        def _observe(self):
            return np.full(3, 1e30, np.float32)

    with create(Large, 2, "in-process") as env:
        assert env.reset(0)["state"].max() == np.float32(1e30)
        assert not math.isfinite(np.vdot(env.reset(0)["state"], env.reset(0)["state"]))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            (np.zeros(3, np.float32), 0.0, False, {}),
            "step must return .observation, reward, terminated, truncated, info.*tuple of 4",
        ),
        ((np.zeros(3, np.float32), None, False, False, {}), "The reward must be a number. Received: None"),
        ((np.zeros(3, np.float32), 0.0, 1.5, False, {}), "terminated must be True or False. Received: 1.5"),
        (
            (np.array(["a"] * 3), 0.0, False, False, {}),
            r"The state 'state' must be numbers .float32.. Received: dtype <U1",
        ),
    ],
)
def test_first_steps_are_looked_at_in_full(module, answer, message):
    class Bad(module.Count):
        def step(self, action):
            return answer

    with create(Bad, 1, "in-process") as env:
        env.reset(0)
        with pytest.raises(EnvError, match=f"Environment 0 of 'Bad'.*{message}"):
            env.step(act(0))


class Grasp(gymnasium.Env):
    """An observation of several entries, of which the second step leaves one out."""

    observation_space = gymnasium.spaces.Dict(
        arm=gymnasium.spaces.Box(-1, 1, (2,)), grip=gymnasium.spaces.Box(-1, 1, (1,))
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        return self._observe(), 0.0, False, False, {}

    def _observe(self):
        entries = {"arm": np.zeros(2, np.float32), "grip": np.zeros(1, np.float32)}
        return entries if self.t < 2 else {"arm": entries["arm"]}


class Forgets(gymnasium.vector.VectorWrapper):
    """A vector that leaves out an entry itself."""

    def step(self, actions):
        observation, *rest = self.env.step(actions)
        return {"arm": observation["arm"]}, *rest


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: create(Grasp, 1, "in-process"), r"Environment 0 of 'Grasp' \(step 2 of its episode\)"),
        (lambda: create(Forgets(SyncVectorEnv([Grasp]))), "The vector of 'Forgets' in step"),
    ],
    ids=["in-process", "vector"],
)
def test_an_entry_that_is_missing_later_is_named(make, where):
    actions = {"action": np.zeros(1, np.int32)}
    message = rf"^{where}: The observation must be a dict with 'arm', 'grip'\. Received: 'arm'\."
    with make() as env, pytest.raises(EnvError, match=message):
        env.reset(0)
        for _ in range(2):
            env.step(actions)


def test_calls_out_of_order(module):
    for mode in ("in-process", "processes", "native-vector"):
        env = create("CartPole-v1", 2, mode, num_workers=1)
        with pytest.raises(UsageError, match=r"was not reset. Call reset first"):
            env.step(act(0, 0))
        env.close()
        env.close()
        with pytest.raises(UsageError, match=r"'CartPole-v1' is closed"):
            env.reset(0)


# Workers that die


def pids(env):
    return [worker.process.pid for worker in env._workers]


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_killed_worker_is_replaced_and_its_episodes_are_cut(module, caplog):
    with create(module.Count, 4, "processes", num_workers=2, length=3) as env:
        first = env.reset(0)["state"]
        last = env.step(act(0, 0, 0, 0)).observation["state"]
        os.kill(pids(env)[1], signal.SIGKILL)
        with caplog.at_level(logging.WARNING, "operant"):
            step = env.step(act(0, 0, 0, 0))
        assert (
            "Worker 1 of 'Count' (environments 2 to 3) was killed by signal 9; it is replaced." in caplog.text
        )
        assert env.restarts == 1 and env.lost.tolist() == [False, False, True, True]
        assert step.truncated.tolist() == [False, False, True, True]
        assert step.reward.tolist() == [2.0, 2.0, 0.0, 0.0]
        np.testing.assert_array_equal(step.observation["state"][2:], last[2:])  # the last observation known
        step = env.step(act(0, 0, 0, 0))
        assert env.lost is None
        assert step.terminated.tolist() == [True, True, False, False]
        assert step.observation["state"][:, 1].tolist() == [3.0, 3.0, 0.0, 0.0]  # new episodes
        marks = step.observation["state"][2:, 0]
        assert not set(marks.tolist()) & set(first[:, 0].tolist())  # and not the old ones again
        step = env.step(act(0, 0, 0, 0))
        assert step.reward.tolist() == [0.0, 0.0, 1.0, 1.0]


PPO = {"n_steps": 8, "mini_batches": 1, "ppo_epochs": 1, "model": [{"type": "dense", "size": 4}]}


@pytest.mark.slow
def test_nothing_is_learnt_from_a_step_that_no_environment_took(module, tmp_path, monkeypatch):
    """It would have cost nothing, where all others cost one: the action that ends a simulator would be the
    best."""
    blocks, collect = [], HostDriver._collect

    def noted(self, finished):
        block = collect(self, finished)
        blocks.append(jax.tree.map(np.array, block))
        return block

    monkeypatch.setattr(HostDriver, "_collect", noted)
    given = {"environment": module.Quitting, "file": str(tmp_path / "quit")}
    vector = create(given, 1, "processes")
    with operant.PPO(vector, seed=1, quiet=True, **PPO) as agent:
        agent.fit(max_steps=12)
        assert vector.restarts == 1 and agent.steps == 12
    valid = np.concatenate([block.valid[:, 0] for block in blocks])[:15]
    # Two steps, the one that was lost, a reset; then episodes of five steps and a reset.
    assert valid.tolist() == [True, True, False, False, *[True] * 5, False, *[True] * 5]
    first = blocks[0]
    assert not first.truncated[:4].any() and (first.reward[first.valid] == -1.0).all()
    np.testing.assert_array_equal(first.observation["state"][2], first.observation["state"][3])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["processes", "elsewhere"])
def test_what_was_lost_is_no_episode_of_an_evaluation(module, tmp_path, how):
    given = {"environment": module.Quitting, "file": str(tmp_path / "quit")}
    if how == "elsewhere":  # one environment by itself, in this loop
        given = Environment.create(given, remote="multiprocessing")
    with create(given, 1, "processes" if how == "processes" else "in-process") as env:
        found = run_episodes(lambda observation, carry, first, row: (act(0), carry), (), env, 2, seed=1)
        assert env.lost is None and [episode.length for episode in found] == [5, 5]


@pytest.mark.slow
def test_an_evaluation_ends_where_one_environment_is_lost_again_and_again(module):
    """Others in its worker come to their ends, so that the worker may be replaced for ever."""
    with create(
        [{"environment": module.Count, "length": n} for n in (9, 2)], 2, "processes", num_workers=1
    ) as env:
        rows = iter(range(1000))

        def choose(observation, carry, first, row):
            return act(3 if observation["state"][0, 1] == 6 and next(rows) < 900 else 0, 0), carry

        with pytest.raises(
            EnvError,
            match=r"Worker 0 of .* ended with exit code 5, and it was replaced 3 times already",
        ):
            run_episodes(choose, (), env, 2, seed=1)


def test_an_evaluation_may_lose_environments_between_episodes_that_came_to_their_ends():
    """Also those that have run their share, while others still run theirs."""

    class Losing:
        """The first has one episode of 20 steps, the second many of one, every other of which is lost."""

        num_envs, name, game, infos = 2, "losing", None, types.MappingProxyType({})
        max_episode_timesteps = None

        def reset(self, seed):
            self.row = 0
            return {}

        def step(self, action):
            self.row += 1
            self.lost = np.asarray([False, self.row % 4 == 3])
            ended = np.asarray([self.row == 20, self.row % 4 == 1])
            return VectorStep({}, np.ones(2, np.float32), ended, self.lost)

    found = run_episodes(lambda observation, carry, first, row: ({}, carry), (), Losing(), 2, seed=1)
    assert [(episode.actor, episode.length) for episode in found] == [(1, 1), (0, 20)]


@pytest.mark.slow
def test_an_evaluation_of_a_runner_plays_another_episode_for_one_that_was_lost(module, tmp_path):
    given = {"environment": module.Quitting, "file": str(tmp_path / "quit")}
    with operant.Runner(agent={"agent": "ppo", **PPO}, environment=given, remote="multiprocessing") as runner:
        runner.run(num_episodes=2, evaluation=True)
        assert runner.restarts == 1 and runner.evaluation_timesteps == [5, 5]


@pytest.mark.slow
def test_a_runner_learns_nothing_from_a_step_that_no_environment_took(module, tmp_path):
    given = {"environment": module.Quitting, "file": str(tmp_path / "quit")}
    with operant.Runner(agent={"agent": "ppo", **PPO}, environment=given, remote="multiprocessing") as runner:
        told, observe = [], runner.agent.observe
        runner.agent.observe = lambda reward, *rest: (told.append(reward), observe(reward, *rest))[1]
        runner.run(num_episodes=3)
        assert runner.restarts == 1 and runner.episode_timesteps == [3, 5, 5]
        assert told == [-1.0] * 12 and runner.agent.timesteps == 12


def test_a_worker_killed_at_a_reset_row_still_resets(module):
    with create(module.Count, 2, "processes", num_workers=1, length=1) as env:
        env.reset(0)
        assert env.step(act(0, 0)).terminated.all()
        os.kill(pids(env)[0], signal.SIGKILL)
        step = env.step(act(0, 0))
        assert env.restarts == 1
        assert not (step.truncated.any() or step.terminated.any() or step.reward.any())
        assert step.observation["state"][:, 1].tolist() == [0.0, 0.0]


def test_a_worker_that_exits_or_hangs_is_replaced_a_bounded_number_of_times(module):
    with create(module.Count, 2, "processes", num_workers=2, timeout_seconds=0.5, max_restarts=1) as env:
        env.reset(0)
        env.step(act(0, 0))
        assert env.step(act(3, 0)).truncated.tolist() == [True, False]
        env.step(act(0, 0))
        begun = time.monotonic()
        assert env.step(act(0, 2)).truncated.tolist()[1]
        assert time.monotonic() - begun < 30
        assert env.restarts == 2
        with pytest.raises(EnvError, match=r"ended with exit code 5, and it was replaced once already"):
            env.step(act(3, 0))


def test_the_end_of_a_worker_shows_at_once_whatever_its_environment_started(module):
    with create(module.Starting, 1, "processes", timeout_seconds=60.0) as env:
        env.reset(0)
        begun = time.monotonic()
        assert env.step(act(3)).truncated.tolist() == [True]
        assert time.monotonic() - begun < 45


def test_workers_leave_a_request_to_terminate_to_their_parent(module):
    """Clusters send it to every process of a job."""
    with create(module.Count, 2, "processes", num_workers=2) as env:
        env.reset(0)
        for pid in pids(env):
            os.kill(pid, signal.SIGTERM)
        for _ in range(3):
            assert not env.step(act(0, 0)).truncated.any()
        assert env.restarts == 0


def test_a_request_to_terminate_breaks_off_nothing_that_a_worker_waits_for(module):
    with create(module.Waiting, 1, "processes") as env:
        env.reset(0)
        (pid,) = pids(env)
        threading.Timer(0.3, os.kill, (pid, signal.SIGTERM)).start()
        assert env.step(act(0)).reward.tolist() == [1.0]


@pytest.mark.parametrize("seconds", [math.inf, 1e8])
def test_workers_are_waited_for_without_limit(module, seconds):
    """The system itself waits for no more than 24 days."""
    with create(module.Count, 1, "processes", timeout_seconds=seconds) as env:
        env.reset(0)
        assert env.step(act(0)).reward.tolist() == [1.0]


def test_a_worker_that_is_lost_while_it_starts_is_replaced_too(module, tmp_path):
    with create(
        {"environment": module.Fragile, "folder": str(tmp_path)}, 1, "processes", max_restarts=2
    ) as env:
        env.reset(0)
        assert env.step(act(3)).truncated.tolist() == [True] and env.restarts == 2
        env.step(act(0))
        assert env.step(act(0)).observation["state"][0, 1] == 1.0


def test_a_worker_that_never_starts_is_an_error(module, tmp_path):
    with create(
        {"environment": module.Fragile, "folder": str(tmp_path)}, 1, "processes", max_restarts=1
    ) as env:
        env.reset(0)
        message = r"ended with exit code 7 while it started, and it was replaced once already"
        with pytest.raises(EnvError, match=message):
            env.step(act(3))


@pytest.mark.slow
def test_a_worker_whose_episodes_come_to_their_end_may_be_lost_again(module):
    with create(
        {"environment": module.Count, "length": 2}, 2, "processes", num_workers=2, max_restarts=1
    ) as env:
        env.reset(0)
        for lost in range(1, 4):
            assert env.step(act(3, 0)).truncated[0] and env.restarts == lost
            while not env.step(act(0, 0)).terminated[0]:
                pass
            env.step(act(0, 0))  # the next episode begins


def test_after_ctrl_c_reset_begins_anew(module):
    """With the seeds that it always gives; the workers that had answered are the same."""
    with create(module.Pressing, 3, "processes", num_workers=3, max_restarts=0) as env:
        first = env.reset(0)["state"]
        for _ in range(2):
            before = pids(env)
            with pytest.raises(KeyboardInterrupt):
                env.step(act(0, 7, 0))
            with pytest.raises(UsageError, match="Call reset first"):
                env.step(act(0, 0, 0))
            np.testing.assert_array_equal(env.reset(0)["state"][:, :2], first[:, :2])
            assert [a == b for a, b in zip(before, pids(env), strict=True)] == [True, False, False]
            assert all(map(is_gone, before[1:]))
            env.step(act(0, 0, 0))
        assert env.restarts == 4


@pytest.mark.slow
def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(module):
    with create(module.Count, 2, "processes", num_workers=2, timeout_seconds=0.5, max_restarts=1) as env:
        env.reset(0)
        with pytest.raises(EnvError, match=r"the motor is stuck"):
            env.step(act(7, 1))
        time.sleep(1.0)
        assert env.reset(1)["state"][:, 1].tolist() == [0.0, 0.0] and env.restarts == 1
        assert env.step(act(0, 0)).observation["state"][:, 1].tolist() == [1.0, 1.0]
        with pytest.raises(EnvError, match=r"did not answer within 0.5 s, and it was replaced once"):
            env.step(act(7, 0))
        time.sleep(1.0)
        with pytest.raises(EnvError, match=r"did not answer within 0.5 s, and it was replaced once"):
            env.reset(2)


def test_close_leaves_no_process(module):
    env = create(module.Count, 2, "processes", num_workers=2, timeout_seconds=0.2)
    env.reset(0)
    found = pids(env)
    assert not any(map(is_gone, found))
    env.close()
    assert all(map(is_gone, found))
    forgotten = create(module.Count, 1, "processes")
    found = pids(forgotten)
    del forgotten
    assert all(map(is_gone, found))


def test_a_worker_that_does_not_close_is_ended_and_told(module, monkeypatch):
    monkeypatch.setattr(process, "CLOSE_SECONDS", 0.3)
    env = create(module.Unclosing, 1, "processes")
    found = pids(env)
    with pytest.warns(RuntimeWarning, match=r"Worker 0 did not end within 0.3 s of close, and was killed\."):
        env.close()
    assert all(map(is_gone, found))


def test_environments_that_cannot_be_made_leave_no_process(module):
    before = psutil.Process().children()
    with pytest.raises(SpecError, match=r"takes no argument 'lenght'"):
        create(module.Count, 1, "processes", lenght=3)
    assert not [child for child in psutil.Process().children() if child not in before]


def run_script(tmp_path, text, *arguments):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(MODULE) + textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.mark.slow
def test_workers_end_with_their_parent_and_know_its_classes(tmp_path):
    text = """
        if __name__ == "__main__":
            from operant.envs.vector.create import create
            env = create(Count, 2, "processes", num_workers=2)
            env.reset(0)
            print(*(worker.process.pid for worker in env._workers), flush=True)
            os.kill(os.getpid(), 9)
        """
    run = run_script(tmp_path, text)
    found = [int(pid) for pid in run.stdout.split()]
    assert len(found) == 2, run.stderr
    deadline = time.monotonic() + 10
    while not all(map(is_gone, found)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(map(is_gone, found))


def test_workers_run_a_module_of_a_package_as_the_program_did(tmp_path):
    """`python -m package.train`: its relative imports hold in workers, too."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "made.py").write_text(textwrap.dedent(MODULE))
    text = """
        from .made import Count

        class Own(Count):
            pass

        if __name__ == "__main__":
            from operant.envs.vector.create import create
            with create(Own, 2, "processes", num_workers=2) as env:
                env.reset(0)
                print("begun")
        """
    (package / "train.py").write_text(textwrap.dedent(text))
    run = subprocess.run(
        [sys.executable, "-m", "package.train"], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert run.stdout == "begun\n", run.stderr


def test_workers_have_the_command_line_of_the_program(tmp_path):
    text = """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--length", type=int)
        given = parser.parse_args().length

        class Given(Count):
            def step(self, action):
                return self._observe(), float(given), True, False, {}

        if __name__ == "__main__":
            from operant.envs.vector.create import create
            with create(Given, 1, "processes") as env:
                env.reset(0)
                print(env.step({"action": np.zeros(1, np.int64)}).reward)
        """
    run = run_script(tmp_path, text, "--length", "7")
    assert run.stdout == "[7.]\n", run.stderr


@pytest.mark.parametrize(
    "start",
    [
        "from operant.envs.vector import create; create.create(Count, 1, 'processes')",
        "from operant.envs.remote import connect; connect(Count, remote='multiprocessing')",
    ],
)
def test_a_program_without_a_guard_is_told_of_it(tmp_path, start):
    run = run_script(tmp_path, f"\n{start}\n")
    assert 'behind `if __name__ == "__main__":`, or define the environment in a module.' in run.stderr


def test_a_program_is_run_by_workers_only_where_that_was_asked_for(tmp_path):
    """What a script without a guard does would be done once more in each of them."""
    text = """
        import time
        from operant.envs.vector.create import create

        class Slow(Count):
            def step(self, action):
                time.sleep(0.002)
                return super().step(0)

        print("begun", flush=True)
        env = create(Slow, 2)
        print(env.mode, env.why, sep=": ")
        env.close()
        """
    run = run_script(tmp_path, text)
    assert run.stdout.count("begun") == 1, run.stderr
    if processors() > 1:
        assert "in-process: " in run.stdout and "defined in the program itself" in run.stdout


class Narrowing(gymnasium.Env):
    """Allows one action less with every step."""

    observation_space = gymnasium.spaces.Dict(
        {"x": gymnasium.spaces.Box(-1, 1, (1,)), "action_mask": gymnasium.spaces.MultiBinary(3)}
    )
    action_space = gymnasium.spaces.Discrete(3)
    t, length = 0, 9

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observe(), {}

    def observe(self):
        return {"x": np.zeros(1, np.float32), "action_mask": np.arange(3) >= self.t}

    def step(self, action):
        self.t += 1
        return self.observe(), 0.0, self.t == self.length, False, {}


def test_a_class_of_an_interactive_session_is_refused_with_the_remedy_of_each_caller(monkeypatch):
    kind = type("Typed", (Narrowing,), {"__module__": "__main__"})
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    message = (
        r"interactive session.*: vector='in-process' \(Runner.*: remote=None; .*create\.create: "
        r"mode='in-process'\)"
    )
    for start in (lambda: create(kind, 1, "processes"), lambda: connect(kind, remote="multiprocessing")):
        with pytest.raises(SpecError, match=message):
            start()


@pytest.mark.parametrize("form", [list, gymnasium.vector.SyncVectorEnv])
def test_masks_are_looked_at_in_every_step(form):
    def made(length):
        def one():
            env = Narrowing()
            env.length = length
            return env

        return [one(), one()] if form is list else form([one, one])

    mode = "in-process" if form is list else "auto"  # "auto" tries one, in which a fault would show at once
    with create(made(9), mode=mode) as vector:
        vector.reset(0)
        for allowed in (0, 1, 2):
            action = {"action": np.full(2, 2)}
            if allowed < 2:
                vector.step(action)
            else:
                with pytest.raises(EnvError, match=r"'action_mask' must allow at least one value"):
                    vector.step(action)
    with create(made(3), mode=mode) as vector:  # nothing is chosen in the state that ends an episode
        vector.reset(0)
        for _ in range(8):
            vector.step({"action": np.full(2, 2)})


def test_random_actions_heed_masks_and_bounds():
    from operant.spec.spaces import Spaces

    spaces = Spaces.read(
        dict(type="float", shape=(1,)),
        {
            "gear": dict(type="int", num_values=4),
            "lamp": dict(type="bool", shape=(2,)),
            "throttle": dict(type="float", shape=(3,), min_value=0.0, max_value=[1.0, 2.0, 3.0]),
            "free": dict(type="float"),
        },
        masks=["gear"],
    )
    mask = np.random.default_rng(1).random((500, 4)) < 0.4
    mask[:, 3] |= ~mask.any(1)
    observation = {"state": np.zeros((500, 1), np.float32), "gear_mask": mask}
    actions = random_actions(spaces, observation, np.random.default_rng(0))
    assert mask[np.arange(500), actions["gear"]].all()
    assert set(actions["gear"].tolist()) == {0, 1, 2, 3}
    assert (actions["throttle"] <= [1.0, 2.0, 3.0]).all() and actions["throttle"].max() > 2.5
    assert actions["lamp"].dtype == bool and actions["lamp"].any() and not actions["lamp"].all()
    assert actions["free"].std() > 0.5


def test_environment_objects_may_stand_in_lists(module):
    with create([Environment.create("CartPole-v1", max_episode_timesteps=2)] * 1, mode="in-process") as env:
        assert isinstance(env, sync_vector.SyncVectorEnv) and env.max_episode_timesteps == 2
        env.reset(0)
        assert [env.step(act(0)).truncated[0] for _ in range(3)] == [False, True, False]


@pytest.mark.parametrize(
    ("wrapper", "option"),
    [("NormalizeObservation", "normalize_observations"), ("NormalizeReward", "normalize_rewards")],
)
def test_statistics_of_wrappers_that_are_made_anew_are_warned_of(wrapper, option):
    def make():
        return getattr(gymnasium.wrappers, wrapper)(gymnasium.make("CartPole-v1"))

    with pytest.warns(RuntimeWarning, match=rf"{wrapper} around 'make' keeps .* play .*give {option}=True"):
        create(make, 2).close()
    create([make()]).close()  # an object, whose statistics are shared
