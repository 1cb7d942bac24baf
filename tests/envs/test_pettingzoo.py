"""PettingZoo's parallel environments as environments of several actors."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from operant import Agent, Environment, Runner
from operant.envs import check_env
from operant.envs.gymnasium.pettingzoo import is_parallel
from operant.errors import EnvError, SpaceError, SpecError, UsageError
from operant.execution import traces

pettingzoo = pytest.importorskip("pettingzoo", reason="needs the extra 'pettingzoo'")


class Meadow(pettingzoo.ParallelEnv):
    """Animal `i` leaves after `stays[i]` steps; the last one is carried away. It is paid what it does."""

    metadata = {"name": "meadow"}  # noqa: RUF012 - PettingZoo's way

    def __init__(self, stays=(2, 4, 5), masked=False, other=None):
        self.possible_agents = [f"animal{i}" for i in range(len(stays))]
        self.stays, self.masked, self.other, self.told = (
            dict(zip(self.possible_agents, stays, strict=True)),
            masked,
            other,
            [],
        )

    def observation_space(self, agent):
        space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        if not self.masked:
            return space
        return gymnasium.spaces.Dict(observation=space, action_mask=gymnasium.spaces.MultiBinary(3))

    def action_space(self, agent):
        return (
            self.other
            if self.other is not None and agent == "animal1"
            else gymnasium.spaces.Discrete(3, start=1)
        )

    def _seen(self):
        number = self.possible_agents.index
        seen = {agent: np.asarray([number(agent), self.step_count], np.float32) for agent in self.agents}
        if self.masked:
            return {
                a: {"observation": x, "action_mask": np.asarray([1, 0, 1], np.int8)} for a, x in seen.items()
            }
        return seen

    def reset(self, seed=None, options=None):
        self.agents, self.step_count = list(self.possible_agents), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.told.append(actions)
        self.step_count += 1
        seen = self._seen()
        over = {agent: self.step_count >= self.stays[agent] for agent in self.agents}
        carried = {agent: over[agent] and agent == self.possible_agents[-1] for agent in self.agents}
        gone = {agent: over[agent] and not carried[agent] for agent in self.agents}
        rewards = {agent: float(actions[agent]) for agent in self.agents}
        infos = {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        return seen, rewards, gone, carried, infos

    def close(self):
        self.agents = []


class Late(Meadow):
    """The last animal comes after the first step."""

    def reset(self, seed=None, options=None):
        seen, infos = super().reset(seed)
        self.agents.pop()
        return seen, infos

    def step(self, actions):
        self.agents = list(actions)
        answer = super().step(actions)
        self.agents.append(self.possible_agents[-1])
        return answer


def test_an_agent_that_joins_within_an_episode_is_told():
    environment = Environment.create(environment=Late())
    assert list(environment.reset()[0]) == [0, 1]
    with pytest.raises(EnvError, match="The agent 'animal2' of .* joined within an episode"):
        environment.execute(np.asarray([1, 1]))


def test_agents_are_actors_until_they_leave():
    env = Meadow()
    assert is_parallel(env) and not is_parallel(gymnasium.make("CartPole-v1"))
    environment = Environment.create(environment=env)
    assert environment.num_actors() == 3
    assert environment.states()["shape"] == [2] and environment.actions()["num_values"] == 3
    parallel, states = environment.reset()
    assert list(parallel) == [0, 1, 2] and states.tolist() == [[0, 0], [1, 0], [2, 0]]
    left, ends, paid = [], [], []
    while len(parallel):
        parallel, states, terminal, reward = environment.execute(1 + np.arange(len(parallel)))
        left.append(list(parallel))
        ends.append(list(terminal))
        paid.append(list(reward))
    assert left == [[0, 1, 2], [1, 2], [1, 2], [2], []]
    assert ends == [[0, 0, 0], [1, 0, 0], [0, 0], [1, 0], [2]]
    assert paid == [[1, 2, 3], [1, 2, 3], [1, 2], [1, 2], [1]]
    assert env.told[2] == {"animal1": 1, "animal2": 2}


@pytest.mark.parametrize(
    ("limit", "ends"), [(None, {0: (2, 1), 1: (4, 1), 2: (5, 2)}), (3, {0: (2, 1), 1: (3, 2), 2: (3, 2)})]
)
def test_what_an_actor_saw_last_is_learnt_from(limit, ends, tmp_path):
    """Otherwise a value at a time limit would be that of the state before: told by the environment or by
    the limit."""
    agent = {"agent": "random", "recorder": str(tmp_path)}
    with Runner(agent, Meadow(masked=limit is None), max_episode_timesteps=limit) as runner:
        runner.run(num_episodes=6, use_tqdm=False)
        found = [traces.read(path, runner.agent.spaces) for path in sorted(tmp_path.glob("*.npz"))]
    assert len(found) == 6
    for trace in found:
        (last,) = [x for name, x in trace.last.items() if not name.endswith("mask")]
        number = int(last[0, 0])
        assert (last[0, 1], trace.terminal[-1]) == ends[number]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda p, s, t, r: (p, s[:2], t, r),
            "states of 2 actors. Return those of the 1 that go on, and behind",
        ),
        (
            lambda p, s, t, r: (p, s, t[:2], r),
            "terminal of .* must be one for each of the 3 actors that acted",
        ),
        (lambda p, s, t, r: (p, s, t, [1.0]), "reward of .* must be one for each of the 3 actors that acted"),
    ],
)
def test_answers_of_another_number_are_refused(change, message):
    environment = Environment.create(environment=Meadow((1, 1, 4)))
    inner, execute = environment.environment, environment.environment.execute
    inner.execute = lambda actions: change(*execute(actions))
    environment.reset()
    with pytest.raises(EnvError, match=message):
        environment.execute([1, 1, 1])


@pytest.mark.parametrize("states", [None, {}, 0.0, np.zeros((2, 2))])
def test_who_ended_need_not_be_told_of(states):
    """Nor is one terminal for all too few; at a time limit, too."""
    environment = Environment.create(environment=Meadow((4, 4, 4)), max_episode_timesteps=2)
    inner, execute = environment.environment, environment.environment.execute

    def brief(actions):
        parallel, seen, _, _ = execute(actions)
        return parallel, seen, False, 1.0

    inner.execute = brief
    environment.reset()
    _, _, terminal, reward = environment.execute([1, 1, 1])
    assert terminal.tolist() == [0] * 3 and reward.tolist() == [1.0] * 3
    parallel, seen, terminal, _ = environment.execute([1, 1, 1])
    assert terminal.tolist() == [2] * 3 and not parallel.size and seen.shape == (3, 2)
    inner.execute = lambda actions: ([], states, True, 1.0)
    environment.reset()
    parallel, seen, terminal, _ = environment.execute([1, 1, 1])
    assert terminal.tolist() == [1] * 3 and not len(parallel) and seen is None


def test_an_agent_that_is_gone_may_have_seen_nothing():
    meadow = Meadow((1, 3))
    step = meadow.step

    def blind(actions):
        seen, *rest = step(actions)
        return {a: x if a in meadow.agents else None for a, x in seen.items()}, *rest

    meadow.step = blind
    environment = Environment.create(environment=meadow)
    environment.reset()
    parallel, states, terminal, _ = environment.execute([1, 1])
    assert list(parallel) == [1] and states.tolist() == [[1, 1]] and list(terminal) == [1, 0]


def test_masks_and_a_single_agent():
    environment = Environment.create(environment=Meadow((3,), masked=True))
    assert environment.num_actors() == 1
    states = environment.reset()
    assert states["action_mask"].tolist() == [True, False, True] and states["observation"].shape == (2,)
    states, terminal, reward = environment.execute(3)
    assert (terminal, reward) == (0, 3.0) and states["observation"].tolist() == [0, 1]
    crowd = Environment.create(environment=Meadow(masked=True))
    _, states = crowd.reset()
    assert states["action_mask"].shape == (3, 3) and states["observation"].shape == (3, 2)


def test_what_cannot_be_is_told():
    with pytest.raises(SpaceError, match="must have the same action space.*animal1: Discrete\\(2\\)"):
        Environment.create(environment=Meadow(other=gymnasium.spaces.Discrete(2)))
    silent = Meadow()
    silent.step = lambda actions: ({}, {}, {}, {}, {})
    environment = Environment.create(environment=silent)
    environment.reset()
    with pytest.raises(EnvError, match="told nothing of the agent 'animal0'"):
        environment.execute([1, 1, 1])
    from operant.envs.vector import create

    with pytest.raises(UsageError, match=r"has 3 actors.*Use Runner\(agent=..., environment=...\)"):
        create.create(Meadow(), 1)


def test_ids():
    assert Environment.create(environment="pettingzoo:classic/rps-v2").num_actors() == 2
    with pytest.raises(UsageError, match="check_env tries environments of one actor"):
        check_env("pettingzoo:classic/rps-v2")
    with pytest.raises(
        SpecError, match="Unknown environment 'pettingzoo:classic/rps-v3'. Did you mean 'classic/rps-v2'"
    ):
        Environment.create(environment="pettingzoo:classic/rps-v3")
    with pytest.raises(SpecError, match="cannot be made: .*cycles"):
        Environment.create(environment="pettingzoo:classic/rps-v2", cycles=3)


@pytest.mark.slow
def test_a_runner_learns_from_all_of_them():
    agent = {"agent": "ppo", "n_steps": 8, "mini_batches": 2, "model": [{"type": "dense", "size": 8}]}
    with Runner(agent, Meadow()) as runner:
        runner.run(num_episodes=12, use_tqdm=False)
        assert sorted(runner.episode_timesteps) == [2] * 4 + [4] * 4 + [5] * 4
        assert runner.agent.parallel_interactions == 3 and runner.updates > 0


@pytest.mark.slow
def test_a_game_of_pettingzoos_own():
    environment = Environment.create(environment="pettingzoo:classic/rps-v2", max_cycles=20)
    agent = Agent.create(agent="dqn", environment=environment, parallel_interactions=2, seed=0)
    for _ in range(3):
        parallel, states = environment.reset(seed=1)
        steps = 0
        while len(parallel):
            acted = list(parallel)
            actions = agent.act(states=states, parallel=acted)
            parallel, states, terminal, reward = environment.execute(actions)
            agent.observe(reward=reward, terminal=terminal, parallel=acted)
            steps += 1
        assert steps == 20
    assert agent.timesteps == 120 and agent.episodes == 6
    environment.close()
