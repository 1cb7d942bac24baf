"""`check_env`: passes what is right, and names each planted fault with its remedy."""

import sys

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from operant.envs import Environment, check_env
from operant.errors import EnvError, SpecError, UsageError


class Good(gymnasium.Env):
    """Observes random numbers; episodes of five steps."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), 1.0, self.t == 5, False, {}

    def observe(self):
        return self.np_random.random(2).astype(np.float32)


class Walk(Environment):
    """The same as an `Environment`."""

    generator = np.random.default_rng(0)

    def states(self):
        return dict(type="float", shape=(2,), min_value=0.0, max_value=1.0)

    def actions(self):
        return dict(type="float", shape=(1,), min_value=-1.0, max_value=1.0)

    def reset(self, seed=None):
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self.t = 0
        return self.observe()

    def execute(self, actions):
        assert actions.shape == (1,) and abs(actions[0]) <= 1
        self.t += 1
        return self.observe(), self.t == 5, 1.0

    def observe(self):
        return self.generator.random(2).astype(np.float32)


class Masks(Walk):
    """With a mask of choices."""

    allowed = (True, False, True)

    def actions(self):
        return dict(type="int", num_values=3)

    def observe(self):
        return dict(state=self.generator.random(2).astype(np.float32), action_mask=np.array(self.allowed))

    def execute(self, actions):
        assert actions in (0, 2)
        self.t += 1
        return self.observe(), self.t == 5, 1.0


def changed(base, **members):
    """A subclass with other methods; `observe` and the like take `self`."""
    return type("Bad", (base,), members)


def respaced(name, space):
    """An environment that has another space from its second episode on."""

    def reset(self, *, seed=None, options=None):
        if hasattr(self, "t"):
            setattr(self, name, space)
        return Good.reset(self, seed=seed)

    return changed(Good, reset=reset)


def bad_step(index, value):
    def step(self, action):
        answer = list(Good.step(self, action))
        answer[index] = value
        return tuple(answer)

    return changed(Good, step=step)


def bad_execute(index, value):
    def execute(self, actions):
        answer = list(Walk.execute(self, actions))
        answer[index] = value
        return tuple(answer)

    return changed(Walk, execute=execute)


def reused(self):
    if not hasattr(self, "buffer"):
        self.buffer = np.zeros(2, np.float32)
    self.buffer[:] = self.np_random.random(2)
    return self.buffer


@pytest.mark.parametrize(
    "environment",
    [
        "CartPole-v1",
        "Pendulum-v1",
        next(id for id in ("Taxi-v4", "Taxi-v3") if id in gymnasium.registry),  # Gymnasium 1.2 has v3
        "FrozenLake-v1",
        "jax:CartPole-v1",
        Good,
        Good(),
        Walk,
        Masks,
        changed(Good, observe=lambda self: jnp.asarray(self.np_random.random(2), jnp.float32)),
    ],
)
def test_what_is_right_passes(environment):
    assert check_env(environment, steps=60) == []


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            changed(Good, observe=lambda self: np.zeros(3, np.float32)),
            r"observation of reset: The state 'state' must have "
            r"shape \(2,\). Received: shape \(3,\)",
        ),
        (
            changed(Good, observe=lambda self: np.full(2, np.nan, np.float32)),
            r"must be finite. Received: "
            r"nan at index \(0,\)",
        ),
        (
            changed(Good, observe=lambda self: np.full(2, 9, np.float32)),
            r"observation of reset: The state must be between 0 and 1. "
            r"Received: 9.0 at index \(0,\)",
        ),
        (
            changed(Good, observe=lambda self: "ab"),
            r"must have shape \(2,\). Received: shape \(\), dtype <U2",
        ),
        (changed(Good, observe=reused), "The observation of one step changed with the next.*Return a copy"),
        (
            changed(Good, observe=lambda self: np.random.default_rng().random(2).astype(np.float32)),
            "The same seed and actions must give the same stream",
        ),
        (
            changed(Good, reset=lambda self, seed=None, options=None: np.zeros(2, np.float32)),
            "reset must return .observation, info.. Received: ndarray",
        ),
        (changed(Good, step=lambda self, action: 1 / 0), "step.*raised ZeroDivisionError: division by zero"),
        (
            changed(Good, step=lambda self, action: (np.zeros(2, np.float32), 0.0, False, {})),
            "step must return.*Received: a tuple of 4",
        ),
        (changed(Good, observation_space=spaces.Text(3)), "must be a Box, Discrete"),
        (
            respaced("action_space", spaces.Discrete(2)),
            r"action_space must stay as it was made, "
            r"Discrete.3.. Received: Discrete.2., after reset. "
            r".*set it in __init__",
        ),
        (
            respaced("observation_space", spaces.Box(0.0, 2.0, (2,), np.float32)),
            r"observation_space must "
            r"stay as it was made, "
            r"Box.*\(2,\), float32\)\. "
            r"Received: Box",
        ),
        (bad_step(1, None), "The reward must be a number. Received: None"),
        (bad_step(1, float("nan")), "The reward must be finite. Received: nan. Look for a division by zero"),
        (bad_step(1, np.zeros(1)), "The reward must be a number. Received: array.*Mind the order"),
        (
            bad_step(1, np.zeros(2)),
            "The reward must be a number. Received: array.*Make one of several.*LinearR",
        ),
        (bad_step(2, 2), "terminated must be True or False. Received: 2 .int."),
        (bad_step(3, 1.5), "truncated must be True or False. Received: 1.5"),
        (
            changed(Walk, observe=lambda self: np.zeros(3)),
            r"reset returned states that do not fit "
            r"states.*shape \(2,\)",
        ),
        (changed(Walk, observe=lambda self: np.full(2, 7.0)), "must be between 0. and 1.. Received: 7.0"),
        (
            changed(Walk, states=lambda self: dict(type="flaot", shape=(2,))),
            r"flaot.*Did you mean 'float'\? "
            r"Correct states",
        ),
        (
            bad_execute(1, 1.0),
            "terminal must be False or 0, True or 1, or 2 for a cut episode. Received: 1.0.*in this order",
        ),
        (bad_execute(1, 3), "terminal must be False or 0, True or 1, or 2 for a cut episode. Received: 3"),
        (bad_execute(2, False), "The reward must be a number. Received: False .bool.. Mind the order"),
        (
            changed(Walk, execute=lambda self, actions: (np.zeros(2), False)),
            "must return .states, terminal, reward.. Received: a tuple of 2",
        ),
        (changed(Masks, allowed=(False, False, False)), "must allow at least one value"),
        (changed(Masks, allowed=(True, False)), "action_mask.*must have shape"),
    ],
)
def test_each_fault_is_named(environment, message):
    with pytest.raises(EnvError, match=f"(?s)'Bad' has .*fault.*{message}"):
        check_env(environment, steps=20)


def test_all_faults_come_at_once():
    def step(self, action):
        return np.full(2, 5.0, np.float32), float("inf"), 0.0, False, {}

    with pytest.raises(EnvError, match=r"'Bad' has 3 faults:") as error:
        check_env(changed(Good, step=step), steps=20)
    text = str(error.value)
    assert text.count("\n- ") == 3
    for part in (
        "must be between 0 and 1",
        "The reward must be finite",
        "terminated must be True or False",
    ):
        assert part in text


def kept(self, seed=None, options=None):
    Good.reset(self, seed=seed)
    self.resets = getattr(self, "resets", 0) + 1
    return np.full(2, min(self.resets, 9) / 10 * self.np_random.random(), np.float32), {}


@pytest.mark.parametrize(
    ("environment", "finding"),
    [
        (changed(Good, reset=kept), "reset keeps something of them"),
        (changed(Good, observe=lambda self: np.zeros(2, np.float32)), "Two seeds gave the same stream"),
        (changed(Walk, reset=lambda self: Walk.reset(self, 0)), "reset takes no seed"),
        # What training takes is no fault.
        (
            changed(Good, observe=lambda self: self.np_random.random(2)),
            "observation has another dtype than its space: float64, not float32",
        ),
        (bad_step(3, 0), "truncated is the number 0, not True or False"),
        (
            changed(
                Good, observe=lambda self: np.float32(1) + self.np_random.random(2).astype(np.float32) / 1000
            ),
            "between 0 and 1",
        ),
        (bad_step(2, False), "No episode ended in 30 steps, and there is no time limit"),
        (
            changed(Walk, max_episode_timesteps=lambda self: 5),
            "terminated exactly at the time limit of 5 steps",
        ),
    ],
)
def test_what_may_be_meant_so_is_only_told(environment, finding):
    findings = check_env(environment, steps=30)
    assert len(findings) == 1 and finding in findings[0]


def test_an_object_that_keeps_something_over_a_reset_is_at_fault():
    with pytest.raises(EnvError, match="let reset set everything anew"):
        check_env(changed(Good, reset=kept)(), steps=30)


def test_objects_stay_open_and_others_are_closed():
    closed = []
    kind = changed(Good, close=lambda self: closed.append(self))
    check_env(kind(), steps=5)
    assert closed == []
    check_env(kind, steps=5)
    assert len(closed) == 1


def test_an_end_of_the_program_is_a_fault():
    with pytest.raises(EnvError, match=r"step\(.*\) raised SystemExit: 3"):
        check_env(changed(Good, step=lambda self, action: sys.exit(3)))


def test_a_time_limit_is_taken():
    endless = changed(Good, step=lambda self, action: (self.observe(), 1.0, False, False, {}))
    assert any("Give max_episode_timesteps" in finding for finding in check_env(endless))
    assert not any("Give max_episode_timesteps" in f for f in check_env(endless, max_episode_timesteps=20))


def test_what_cannot_be_tried():
    with pytest.raises(SpecError, match=r"Did you mean 'CartPole-v1'\?"):
        check_env("CartPol-v1")
    with pytest.raises(SpecError, match=r"steps must be a whole number of at least 1. Received: steps=0"):
        check_env("CartPole-v1", steps=0)
    with pytest.raises(UsageError, match=r"is a vector. Pass one environment"):
        check_env(gymnasium.make_vec("CartPole-v1", 2))


@pytest.mark.parametrize("fault", ["limit", "space"])
def test_what_cannot_be_tried_is_closed(fault):
    closed = []

    class Closing(Good):
        def __init__(self):
            if fault == "space":
                self.observation_space = None

        def close(self):
            closed.append(True)

    gymnasium.register("Closing-v0", Closing, max_episode_steps=21)
    try:
        with pytest.raises((SpecError, EnvError), match="max_episode_timesteps|defines no observation_space"):
            check_env("Closing-v0", max_episode_timesteps=10**6 if fault == "limit" else None)
    finally:
        del gymnasium.registry["Closing-v0"]
    assert closed
    with pytest.raises(SpecError, match="max_episode_timesteps"):  # which have nothing to close
        check_env("jax:CartPole-v1", max_episode_timesteps=10**6)
