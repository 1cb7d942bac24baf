"""Agents that learn nothing: random and constant actions, through every way of use."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from tests.small_agents import Countdown, Stream, equal, interact

import operant
from operant import Agent
from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.compiled import CompiledAgent
from operant.agents.base.learner import Learner
from operant.agents.table import AGENTS
from operant.errors import SpaceError, SpecError
from operant.training.drivers.device_driver import DeviceDriver
from operant.training.drivers.host_driver import HostDriver

UNTRAINED = [name for name, entry in AGENTS.items() if not entry.learns]
STATES = {"type": "float", "shape": (2,)}
X = np.zeros((20_000, 2), np.float32)
KINDS = {
    "choice": {"type": "int", "num_values": 4},
    "pair": {"type": "int", "shape": (2,), "num_values": 3},
    "flag": {"type": "bool", "shape": ()},
    "bounded": {"type": "float", "shape": (2,), "min_value": [-1.0, 2.0], "max_value": [3.0, 10.0]},
    "above": {"type": "float", "shape": (), "min_value": 5.0},
    "below": {"type": "float", "shape": (), "max_value": -5.0},
    "free": {"type": "float", "shape": (3,)},
}


def made(name: str, env: Countdown, n: int = 3) -> Learner:
    definition = parse_agent(name)
    return Learner(definition.cls.create(definition.config, env.spaces, n))


def test_these_learn_nothing():
    assert UNTRAINED == ["constant", "random"]


# Random


@pytest.fixture(scope="module")
def drawn():
    agent = Agent.create(agent="random", states=STATES, actions=KINDS)
    return agent.act(states=X, independent=True)


@pytest.mark.slow
def test_random_choices_are_uniform(drawn):
    """Of 20,000 draws a share of p has a deviation of at most 0.0035: 0.015 is four of them."""
    for name, values in (("choice", 4), ("pair", 3), ("flag", 2)):
        flat = drawn[name].reshape(len(X), -1)
        for column in flat.T:
            shares = [np.mean(column == value) for value in range(values)]
            np.testing.assert_allclose(shares, 1 / values, atol=0.015, err_msg=name)
    assert drawn["flag"].dtype == bool
    assert (drawn["pair"][:, 0] != drawn["pair"][:, 1]).any()


def test_random_floats_fill_their_bounds(drawn):
    low, high = np.array([-1.0, 2.0]), np.array([3.0, 10.0])
    x = drawn["bounded"]
    assert ((x >= low) & (x <= high)).all()
    # uniform: mean in the middle, deviation width / √12 = 1.1547 and 2.3094
    np.testing.assert_allclose(x.mean(0), (low + high) / 2, atol=0.08)
    np.testing.assert_allclose(x.std(0), (high - low) / np.sqrt(12), rtol=0.03)


def test_random_floats_with_one_bound_or_none(drawn):
    assert (drawn["above"] >= 5).all() and (drawn["below"] <= -5).all()
    np.testing.assert_allclose([drawn["above"].mean(), drawn["below"].mean()], [6.0, -6.0], atol=0.05)
    np.testing.assert_allclose(drawn["free"].mean(0), 0.0, atol=0.05)
    np.testing.assert_allclose(drawn["free"].std(0), 1.0, rtol=0.05)


def test_random_respects_masks_and_draws_evenly_from_what_is_left():
    agent = Agent.create(agent="random", states=STATES, actions=KINDS["pair"])
    mask = np.broadcast_to(np.array([[True, False, True], [False, False, True]]), (len(X), 2, 3))
    x = agent.act(states={"state": X, "action_mask": mask}, independent=True)
    assert set(np.unique(x[:, 0])) == {0, 2}
    assert (x[:, 1] == 2).all()
    assert np.mean(x[:, 0] == 0) == pytest.approx(0.5, abs=0.015)


def test_random_actions_are_a_function_of_the_seed():
    env = Countdown(kind="hybrid")
    observation = {k: np.zeros((4, *v.shape), v.dtype) for k, v in env.spaces.observation_components.items()}
    algorithm = made("random", env).algorithm

    def act(seed: int):
        noise = algorithm.noise(jax.random.key(seed), 4)
        return algorithm.act((), observation, (), noise, True).action

    one, again, other = act(1), act(1), act(2)
    assert equal(one, again)
    assert not equal(one["hand/gear"], other["hand/gear"]) and not equal(one["free"], other["free"])


# Constant


def test_constant_defaults_are_the_middle_the_first_and_false():
    agent = Agent.create(agent="constant", states=STATES, actions=KINDS)
    action = agent.act(states=np.zeros(2), independent=True)
    assert (action["choice"], action["flag"], action["above"], action["below"]) == (0, False, 5.0, -5.0)
    np.testing.assert_array_equal(action["bounded"], [1.0, 6.0])
    np.testing.assert_array_equal(action["free"], [0.0, 0.0, 0.0])
    np.testing.assert_array_equal(action["pair"], [0, 0])


def test_constant_takes_values_for_some_of_the_actions():
    values = {"choice": 3, "bounded": [0.0, 9.0]}
    agent = Agent.create(agent="constant", states=STATES, actions=KINDS, action_values=values)
    action = agent.act(states=X[:3], parallel=0, independent=True)
    assert action["choice"].tolist() == [3, 3, 3]
    np.testing.assert_array_equal(action["bounded"], [[0.0, 9.0]] * 3)


@pytest.mark.parametrize("values", [2, {"action": 2}])
def test_constant_takes_the_value_of_a_single_action(values):
    agent = Agent.create(agent="constant", states=STATES, actions=KINDS["choice"], action_values=values)
    assert agent.act(states=np.zeros(2), independent=True) == 2


def test_constant_takes_nested_values():
    env = Countdown(kind="hybrid")
    values = {"hand": {"gear": [1, 2]}, "foot": [0.0, 2.0]}
    agent = Agent.create(
        agent="constant", states=env.spaces.states, actions=env.spaces.actions, action_values=values
    )
    observation = {"count": {"left": [1.0], "odd": True}, "noise": [0.0, 0.0], "level": 0}
    action = agent.act(states=observation, independent=True)
    assert action["hand"]["gear"].tolist() == [1, 2]
    assert action["foot"].tolist() == [0.0, 2.0]


def test_constant_gives_way_to_a_mask():
    agent = Agent.create(agent="constant", states=STATES, actions=KINDS["choice"], action_values=2)
    masks = np.array([[True, True, True, True], [False, True, False, True], [False, False, False, True]])
    x = agent.act(states={"state": X[:3], "action_mask": masks}, independent=True)
    assert x.tolist() == [2, 1, 3]


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (
            {"choise": 1},
            SpecError,
            r"action_values names 'choise', which is no action\. Did you mean 'choice'\?",
        ),
        (
            {"choice": 4},
            SpaceError,
            r"The action 'choice' must be one of its 4 values, between 0 and 3\. Received: 4",
        ),
        ({"bounded": [0.0]}, SpaceError, r"must have shape \(2,\)"),
        (3, SpecError, r"action_values must be a dict with some of 'choice', .*Received: 3"),
    ],
)
def test_constant_refuses_values_that_do_not_fit(values, error, message):
    with pytest.raises(error, match=message):
        Agent.create(agent="constant", states=STATES, actions=KINDS, action_values=values)


# Both, in every way of use


@pytest.mark.parametrize("name", UNTRAINED)
def test_it_runs_on_the_device_and_on_the_host_and_updates_nothing(name):
    env = Countdown(kind="hybrid", masked=False)
    learner = made(name, env)
    driver = DeviceDriver(learner, env, 3, jax.random.key(0))
    driver.advance(2)
    assert driver.step > 0 and driver.metrics() == {}
    assert driver.scale_lr(0.5) == (0.0, 0.0)
    key = jax.random.key(0)
    host = HostDriver(CompiledAgent(learner, key, 3), Stream(env, 3, key), 0)
    episodes = host.advance(2)
    assert episodes and host.metrics() == {}
    counters = host.train.counters
    assert int(counters.updates) == 0 and int(counters.rows) == 2 * learner.rows
    assert int(counters.timesteps) == host.step


@pytest.mark.parametrize("name", UNTRAINED)
def test_it_acts_and_observes_is_saved_and_loaded(name, tmp_path):
    env = Countdown(kind="hybrid")
    agent = Agent.create(
        agent=name, states=env.spaces.states, actions=env.spaces.actions, parallel_interactions=2
    )
    assert set(interact(agent, env, 0, 80)) == {0}
    assert agent.updates == 0 and agent.timesteps > 80 and agent.episodes > 20
    path = agent.save(tmp_path)
    assert json.loads(json.dumps(agent.get_specification()))["agent"]["type"] == name
    again = Agent.load(path)
    assert (again.timesteps, again.episodes) == (agent.timesteps, agent.episodes)


@pytest.mark.parametrize("name", ["Random", "Constant"])
def test_it_has_a_class(name):
    trainer = getattr(operant, name)("jax:CartPole-v1", n_envs=2, quiet=True)
    outcome = trainer.fit(max_steps=400)
    assert outcome.step >= 400 and trainer.games > 0
    trainer.close()


@pytest.mark.parametrize("name", UNTRAINED)
def test_unknown_options_are_named(name):
    with pytest.raises(SpecError, match=f"{name} takes no argument 'lr'"):
        parse_agent(name, lr=0.1)
