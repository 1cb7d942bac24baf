"""Evaluation of a policy over whole episodes."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import operant
from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import Learner
from operant.envs.vector import create
from operant.errors import SpecError
from operant.spec.run import RunConfig
from operant.training import evaluate as training_evaluate
from operant.training import loop
from operant.training.environments import host_vector
from operant.training.evaluate import Evaluator
from operant.training.train import ExperimentConfig, resumed, train

NET = [{"type": "dense", "size": 8}]


def evaluate(learner, train, env, episodes, **how):
    return Evaluator(learner, env).run(train, episodes, **how)


class Length(gymnasium.Env):
    """An episode of a fixed length; the reward is 1 for action 1."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), float(action), self.t == self.length, False, {}


@pytest.fixture(scope="module")
def made():
    import jax

    with create.create([Length(2), Length(10)]) as env:
        definition = parse_agent("ppo", model=NET, mini_batches=1)
        learner = Learner(definition.cls.create(definition.config, env.spaces, 2))
        yield learner, learner.init(jax.random.key(0), learner.hyper()), env


def test_every_environment_runs_its_share(made):
    learner, train, env = made
    finished = evaluate(learner, train, env, 5)
    assert sorted((e.actor, e.length) for e in finished) == [(0, 2)] * 3 + [(1, 10)] * 2
    assert sum(e.length for e in finished) == 26 == max(e.step for e in finished)


def test_without_exploration_it_is_the_same_every_time(made):
    learner, train, env = made
    greedy = [e.reward / e.length for e in evaluate(learner, train, env, 4)]
    assert len(set(greedy)) == 1 and greedy[0] in (0.0, 1.0)
    drawn = [e.reward for e in evaluate(learner, train, env, 10, explore=True, seed=1)]
    assert len(set(drawn)) > 2
    assert drawn == [e.reward for e in evaluate(learner, train, env, 10, explore=True, seed=1)]
    assert drawn != [e.reward for e in evaluate(learner, train, env, 10, explore=True, seed=2)]


def test_it_ends_after_some_steps(made):
    learner, train, env = made
    assert [e.length for e in evaluate(learner, train, env, 6, max_steps=8)] == [2, 2]


def test_episodes_are_checked(made):
    learner, train, env = made
    with pytest.raises(
        SpecError, match="episodes must be a whole number of at least 1. Received: episodes=0"
    ):
        evaluate(learner, train, env, 0)


@pytest.mark.slow
@pytest.mark.parametrize("env", [pytest.param("CartPole-v1", marks=pytest.mark.slow), "jax:CartPole-v1"])
def test_the_policy_of_a_run_is_evaluated(env, tmp_path):
    run = RunConfig(env=env, n_envs=2, max_steps=500, seed=1, quiet=True, run_dir=str(tmp_path / "run"))
    outcome = train(ExperimentConfig("ppo", {"model": NET, "n_steps": 16}, run), command="").outcome
    agent = operant.Agent.load(tmp_path / "run")
    assert int(agent.engine.train.counters.timesteps) == outcome.step
    with host_vector(run, 3) as envs:
        finished = evaluate(agent.learner, agent.engine.train, envs, 3)
    assert sorted(e.actor for e in finished) == [0, 1, 2] and all(e.reward == e.length for e in finished)


def test_what_is_no_run_is_not_resumed(tmp_path):
    with pytest.raises(SpecError, match="There is no run to resume in"):
        resumed(tmp_path, {})


def test_an_episode_without_end_is_cut(monkeypatch):
    import jax

    monkeypatch.setattr(training_evaluate, "LONGEST", 30)
    definition = parse_agent("ppo", model=NET, mini_batches=1)
    with create.create([Length(2), Length(10**9)]) as env:
        learner = Learner(definition.cls.create(definition.config, env.spaces, 2))
        train = learner.init(jax.random.key(0), learner.hyper())
        with pytest.warns(
            RuntimeWarning, match=r"has not ended after 30 steps.*return so far counts"
        ) as told:
            finished = evaluate(learner, train, env, 5)
        assert len(told) == 1
        assert sorted((e.actor, e.length) for e in finished) == [(0, 2)] * 3 + [(1, 30)]
        assert {e.reward / e.length for e in finished} == {finished[0].reward / 2}
        assert [e.length for e in evaluate(learner, train, env, 2, max_steps=40)] == [2]
    with create.create([Length(10**9)], max_episode_timesteps=40) as env:
        assert [e.length for e in evaluate(learner, train, env, 1)] == [40]


@pytest.mark.slow
def test_a_training_in_which_no_episode_ends_says_so_once(monkeypatch, capsys):
    monkeypatch.setattr(loop, "LONGEST", 20)
    agent = operant.PPO([Length(10**9), Length(10**9)], model=NET, n_steps=8, mini_batches=1, seed=0)
    agent.fit(max_steps=32)
    assert "No episode" not in capsys.readouterr().out
    agent.fit(max_steps=512)
    assert capsys.readouterr().out.count("No episode has ended yet") == 1
    agent.close()
