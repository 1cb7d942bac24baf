"""The randomness of an agent and that of its environment are independent, in every way of running."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from operant import PPO, Agent, Environment, Runner
from operant.envs.native import native_vector
from operant.envs.native.native_env import TimeStep
from operant.envs.native.native_vector import NativeVector
from operant.envs.vector.base import seed_of
from operant.spec.random_streams import Purpose, derived_seed, sequence
from operant.spec.spaces import Spaces
from operant.training.evaluate import Evaluator

STEPS = 400
OPTIONS = {"n_steps": 2 * STEPS, "network": [{"type": "dense", "size": 8}]}


@dataclasses.dataclass(frozen=True)
class Noise:
    """Observe z ~ N(0, 1), drawn anew at each step. The reward is a (z + z'), z' of the next step."""

    max_episode_timesteps: int = STEPS

    @functools.cached_property
    def spaces(self):
        return Spaces.read({"type": "float", "shape": (1,)}, {"type": "float", "shape": ()})

    def reset(self, key):
        z = jax.random.normal(key, (1,))
        return z, {"state": z}

    def step(self, state, action, key):
        z = jax.random.normal(key, (1,))
        return z, TimeStep({"state": z}, action["action"] * (state + z)[0], jnp.bool_(False))


def by_hand(seed):
    environment = Environment.create(environment=Noise())
    agent = Agent.create(agent="ppo", environment=environment, seed=seed, **OPTIONS)
    states, total = environment.reset(seed=seed), 0.0
    for _ in range(STEPS):
        states, terminal, reward = environment.execute(actions=agent.act(states=states))
        agent.observe(reward=reward, terminal=terminal)
        total += reward
    return total


def by_runner(seed):
    runner = Runner(agent={"agent": "ppo", "seed": seed, **OPTIONS}, environment=Noise())
    runner.run(num_episodes=1)
    runner.close()
    return runner.episode_returns[0]


def trained(seed):
    agent = PPO(Noise(), quiet=True, n_envs=1, seed=seed, n_steps=2 * STEPS, model=OPTIONS["network"])
    agent.fit(max_steps=STEPS)
    return agent


def by_compiled_calls(seed):
    return trained(seed).mean_reward


def by_evaluation(seed):
    agent = trained(seed)
    evaluator = Evaluator(agent.session.learner, NativeVector(Noise(), 1))
    return evaluator.run(agent.session.driver.train, 1, seed=seed, explore=True)[0].reward


@pytest.mark.parametrize(
    "way",
    [
        by_hand,
        pytest.param(by_runner, marks=pytest.mark.slow),
        pytest.param(by_compiled_calls, marks=pytest.mark.slow),
        by_evaluation,
    ],
)
def test_actions_do_not_depend_on_the_draws_of_the_environment(way):
    """The mean reward is the sum of two correlations, of numbers with variance 1.

    By chance its standard deviation is sqrt(2 / 400) = 0.07.
    """
    assert abs(way(3)) / STEPS < 0.25


@pytest.mark.parametrize("way", [by_hand, pytest.param(by_evaluation, marks=pytest.mark.slow)])
def test_equal_keys_would_be_seen(way, monkeypatch):
    monkeypatch.setattr(native_vector, "_key_of", jax.random.key)
    assert abs(way(3)) / STEPS > 0.5


def test_a_purpose_makes_another_stream_and_so_does_each_number_after_it():
    paths = [(p, *rest) for p in Purpose for rest in ((), (0,), (1,), (1, 0))]
    seeds = {derived_seed(seed, *path) for seed in (0, 1, 2**31) for path in paths}
    assert len(seeds) == 3 * len(paths)
    environments = {seed_of(seed, index) for seed in (0, 1, 2**31) for index in range(1000)}
    assert len(environments) == 3000 and not seeds & environments
    ours, theirs = (np.random.default_rng(root).normal(size=1000) for root in (sequence(3, Purpose.CHECK), 3))
    assert abs(np.corrcoef(ours, theirs)[0, 1]) < 0.1  # Gymnasium's environments draw from default_rng(seed)
