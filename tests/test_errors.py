"""The checks that many functions share."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

from operant import PPO, Agent, Environment, Runner
from operant.errors import SpecError, UsageError, naming_misspelt, told, whole


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), 3.0, np.float32(3)])
def test_whole_numbers_become_ints(value):
    found = whole("count", value)
    assert found == 3 and type(found) is int


@pytest.mark.parametrize(
    "value", [0, -1, 2.5, 0.0, True, np.True_, "3", None, np.float32(1.5), float("inf"), float("nan")]
)
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(SpecError, match=r"^count must be a whole number of at least 1\. Received: count="):
        whole("count", value)


def raised(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError


def test_what_somebodys_code_raised_is_told_with_its_place(monkeypatch):
    def fails(error):
        raise error

    def asserts():  # pytest would give an assertion of its own a text
        raise AssertionError

    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    line = fails.__code__.co_firstlineno + 1
    text = told(raised(lambda: fails(ValueError("no."))), "in step")
    assert text == f"raised ValueError in step: no ({__file__}, line {line}: raise error)"
    place = r"raised AssertionError \(.*test_errors.py, line \d+: raise AssertionError\)$"
    assert re.match(place, told(raised(asserts)))
    dark = raised(lambda: fails(RuntimeError("Cannot connect to display")))
    assert told(dark).endswith("PYGLET_HEADLESS=1; pygame: SDL_VIDEODRIVER=dummy)")
    monkeypatch.setenv("DISPLAY", ":0")
    assert "xvfb" not in told(dark)


def test_none_and_remedies():
    assert whole("count", None, optional=True) is None
    with pytest.raises(SpecError, match=r"at least 2, or None\. Received: count=1\. Leave it out\."):
        whole("count", 1, 2, optional=True, remedy="Leave it out.")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Runner("random", "CartPole-v1", num_paralel=2),
            "^Runner takes no argument 'num_paralel'. Did you mean 'num_parallel'\\?$",
        ),
        (
            lambda: Runner.run(None, num_epsodes=3),
            "^run takes no argument 'num_epsodes'. Did you mean 'num_episodes'\\?$",
        ),
        (
            lambda: Runner.run(None, xyz=3),
            "^run takes no argument 'xyz'. Known: batch_agent_calls, callback,",
        ),
        (
            lambda: Agent.load(directry="x"),
            "^Agent.load takes no argument 'directry'. Did you mean 'directory'\\?$",
        ),
        (
            lambda: PPO.fit(None, total_timesteps=3),
            "^fit takes no argument 'total_timesteps'. Did you mean 'max_steps'\\?$",
        ),
        (lambda: PPO(env="CartPole-v1"), "^PPO needs the argument 'envs'. Received: env.$"),
        (lambda: PPO(), "^PPO needs the argument 'envs'.$"),
        (
            lambda: PPO.fit(None, xyz=3),
            "Known: callback, callback_episode_.* logger, max_steps, monitor_session, target_reward.$",
        ),
        (lambda: PPO.play(None, episods=3), "^play takes no argument 'episods'. Did you mean 'episodes'\\?$"),
        (
            lambda: Environment.create(enviroment="CartPole-v1"),
            "None. Environment.create has no argument 'enviroment'. Did you mean 'environment'\\?$",
        ),
        (
            lambda: Environment.create("CartPole-v1", max_episode_timestep=3),
            "Did you mean 'max_episode_timesteps'\\?$",
        ),
        (
            lambda: Environment.create("CartPole-v1", render_mod="human"),
            "no argument 'render_mod'. Did you mean 'render_mode'\\?$",
        ),
        (
            lambda: Environment.create("CartPole-v1", xyz=1),
            "no argument 'xyz'. Known: render_mode, sutton_barto_reward.$",
        ),
        (
            lambda: Agent.create("ppo", enviroment=None),
            "Agent.create has no argument 'enviroment'. Did you mean 'environment'\\?$",
        ),
    ],
)
def test_misspelt_arguments_are_named(call, message):
    with pytest.raises((SpecError, UsageError), match=message):
        call()


def test_signatures_are_those_that_were_written():
    assert list(inspect.signature(Runner).parameters)[:3] == ["agent", "environment", "max_episode_timesteps"]
    assert list(inspect.signature(Runner.run).parameters)[:3] == ["self", "num_episodes", "num_timesteps"]
    assert "environment" in inspect.signature(Environment.create).parameters


def test_an_error_keeps_its_kind_and_other_errors_pass():
    @naming_misspelt
    def make(error, capacity=1, **others):
        raise error

    with pytest.raises(
        UsageError, match=r"^No\. .*make has no argument 'capacty'\. Did you mean 'capacity'\?$"
    ):
        make(UsageError("No."), capacty=2)
    with pytest.raises(UsageError, match=r"^No\.$"):  # it may well be an argument of what it is passed to
        make(UsageError("No."), capital=2)
    with pytest.raises(TypeError, match=r"^No\.$"):
        make(TypeError("No."), capacty=2)
