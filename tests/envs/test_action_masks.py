"""Masks that an environment tells by a method or in `info` come to agents as entries of the observation."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from operant import DQN, PPO
from operant.envs import ActionMasks, check_env
from operant.envs.gymnasium.action_masks import MASK
from operant.errors import EnvError, SpaceError


class Cards(gymnasium.Env):
    """Three cards, each of which can be played once; `told` says how the rules are told."""

    action_space = Discrete(3)
    observation_space = Box(0.0, 1.0, (3,), np.float32)

    def __init__(self, told="info", size=3):
        self.told, self.size = told, size
        if told == "method":
            self.action_masks = self.left

    def left(self):
        return (self.hand > 0)[: self.size]

    def result(self):
        return self.hand.copy(), {MASK: self.left()} if self.told == "info" else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.hand = np.ones(3, np.float32)
        return self.result()

    def step(self, action):
        assert self.hand[action], "a card that was played already"
        self.hand[action] = 0
        observation, info = self.result()
        return observation, float(action == 2), not self.hand.any(), False, info


class Pair(Cards):
    """The same with observations of two entries and a second choice, of which always the first alone is
    allowed."""

    action_space = MultiDiscrete([3, 2])
    observation_space = Dict(hand=Cards.observation_space, other=Discrete(2))

    def left(self):
        return [self.hand > 0, [True, False]]

    def result(self):
        mask = np.concatenate(self.left())
        return {"hand": self.hand.copy(), "other": 1}, {MASK: mask}

    def step(self, action):
        assert action[1] == 0
        return super().step(action[0])


@pytest.mark.parametrize("told", ["info", "method"])
def test_the_mask_is_an_entry_of_the_observation(told):
    env = ActionMasks(Cards(told))
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    np.testing.assert_array_equal(observation[MASK], [1, 1, 1])
    observation, *_ = env.step(1)
    np.testing.assert_array_equal(observation[MASK], [1, 0, 1])
    np.testing.assert_array_equal(observation["observation"], [1, 0, 1])


def test_entries_of_the_observation_stay():
    env = ActionMasks(Pair())
    observation, _ = env.reset()
    assert observation in env.observation_space and set(env.observation_space) == {"hand", "other", MASK}
    np.testing.assert_array_equal(observation[MASK], [1, 1, 1, 1, 0])
    check_env(lambda: ActionMasks(Pair()))


@pytest.mark.parametrize(
    ("agent", "env"),
    [
        (PPO, Cards),
        pytest.param(DQN, Cards, marks=pytest.mark.slow),
        (PPO, lambda: Cards("method")),
        pytest.param(PPO, Pair, marks=pytest.mark.slow),
    ],
)
def test_agents_heed_it(agent, env):
    """The environments refuse what is not allowed."""
    options = {"buffer_max_size": 100, "buffer_initial_size": 60} if agent is DQN else {"n_steps": 16}
    trained = agent(lambda: ActionMasks(env()), model=[8], **options, seed=1)
    trained.fit(max_steps=120)
    with pytest.raises(EnvError, match="raised AssertionError in step"):  # the same without
        agent(env, model=[8], **options, seed=1).fit(max_steps=120)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ActionMasks(gymnasium.make("Pendulum-v1")),
            r"needs Discrete or MultiDiscrete actions\. Received: Box",
        ),
        (
            lambda: ActionMasks(ActionMasks(Cards())),
            "have an entry 'action_mask' already. Leave ActionMasks out",
        ),
        (
            lambda: ActionMasks(Cards("never")).reset(),
            r"tells no mask\. .*action_masks\(\) or from info\['action_mask'\]",
        ),
        (
            lambda: ActionMasks(Cards(size=2)).reset(),
            r"must have 3 entries.*Discrete\(3\)\. Received: \(2,\)",
        ),
    ],
)
def test_what_has_no_mask_is_refused(make, message):
    with pytest.raises(SpaceError, match=message):
        make()
