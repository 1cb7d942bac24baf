"""Environments whose `close` raises or hangs: what they were needed for is done."""

import sys
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tests.envs.test_environment import Corridor

import operant
from operant.envs import Environment, check_env, validation_errors
from operant.envs.vector.create import create
from operant.errors import EnvError

pytestmark = pytest.mark.timeout(120, method="thread")  # the other method takes the alarm


class Unclosing(gymnasium.Env):
    """Episodes of five steps with reward 1."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    calls = 0

    def __init__(self, how="raise"):
        self.how = how

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t == 5, False, {}

    def close(self):
        Unclosing.calls += 1
        if self.how == "raise":
            raise RuntimeError("window is gone")
        if self.how == "exit":
            sys.exit(3)
        if self.how == "text":
            raise UntoldError
        time.sleep(1000)


class UntoldError(Exception):
    def __str__(self):
        raise ValueError("no text")


class Vector(gymnasium.vector.SyncVectorEnv):
    def close(self, **kwargs):
        raise RuntimeError("window is gone")


def own(how):
    environment = Corridor()
    environment.close = Unclosing(how).close
    return environment


TEXTS = {
    "raise": r"close of '\w+' raised RuntimeError: window is gone \(.*line 42: .*\); it counts as closed",
    "exit": r"close of '\w+' raised SystemExit: 3 \(.*\); it counts",
    "text": r"close of '\w+' raised UntoldError: \(its text raises ValueError\) \(.*\); it counts",
    "hang": r"close of '\w+' hangs; it counts as closed",
}


@pytest.mark.parametrize("how", TEXTS)
@pytest.mark.parametrize(
    "make",
    [
        lambda how: Environment.create(environment=Unclosing(how)),
        lambda how: Environment.create(environment=own(how)),
        lambda how: create([Unclosing(how)], mode="in-process"),
    ],
    ids=["gymnasium", "environment", "vector"],
)
def test_a_close_that_fails_is_a_warning(make, how, monkeypatch):
    monkeypatch.setattr(validation_errors, "CLOSE_SECONDS", 0.2)
    environment = make(how)
    with pytest.warns(RuntimeWarning, match=TEXTS[how]):
        environment.close()
    environment.close()  # nothing is left to do


def test_the_others_are_closed_too():
    Unclosing.calls = 0
    with (
        pytest.warns(RuntimeWarning, match="window is gone"),
        operant.PPO([Unclosing(), Unclosing(), Unclosing()], quiet=True, n_steps=8) as agent,
    ):
        result = agent.fit(max_steps=60)
    assert result.mean_reward == 5.0 and Unclosing.calls == 3


def test_a_vector_of_gymnasium_s():
    vector = create(Vector([Unclosing] * 2))
    with pytest.warns(RuntimeWarning, match="close of 'Vector' raised RuntimeError"):
        vector.close()


def test_check_env_tells():
    with pytest.raises(EnvError, match=r"close raised RuntimeError: window is gone \(.*\)\. Correct it"):
        check_env(Unclosing)


class Raising(Unclosing):
    def __init__(self, how="huge"):
        self.how = how

    def step(self, action):
        raise UntoldError if self.how == "text" else RuntimeError("x" * 10_000_000)

    def close(self):
        pass


class Untold(Raising):
    def __init__(self):
        super().__init__("text")


@pytest.mark.parametrize("mode", ["in-process", pytest.param("processes", marks=pytest.mark.slow)])
def test_texts_of_exceptions_may_be_huge_or_missing(mode):
    for make, text in (
        (Raising, r"RuntimeError.*x{2000}\.\.\. \(10000000 "),
        (Untold, r"text raises ValueError"),
    ):
        with create([make] * 2, mode=mode) as vector:
            vector.reset(0)
            with pytest.raises(EnvError, match=text) as caught:
                vector.step({"action": np.zeros(2, np.int32)})
            assert len(str(caught.value)) < 10_000
