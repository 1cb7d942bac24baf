"""An action mask: which values of an `int` action are allowed comes with the states, as '<action>_mask'."""

import numpy as np

from operant import Agent

agent = Agent.create(
    agent="ppo",
    states=dict(type="float", shape=(10,)),
    actions=dict(type="int", shape=(), num_actions=3),
)
for _ in range(20):
    states = dict(
        state=np.random.random_sample(size=(10,)),  # regular state
        action_mask=[True, False, True],  # mask as '[ACTION-NAME]_mask'
    )
    action = agent.act(states=states)
    assert action != 1
    agent.observe(reward=1.0)
