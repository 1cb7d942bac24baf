"""Save checkpoints from time to time and weights in a common format, and load them again."""

import numpy as np

from operant import Agent

states, actions = dict(type="float", shape=(4,)), dict(type="int", num_values=2)
agent = Agent.create(
    agent="ppo",
    states=states,
    actions=actions,
    n_steps=32,
    saver=dict(
        directory="data/checkpoints",
        frequency=5,  # save checkpoint every 5 updates
    ),
)
for step in range(400):
    agent.act(states=np.random.normal(size=4))
    agent.observe(reward=1.0, terminal=step % 20 == 19)
agent.close()

# Restore latest agent checkpoint
agent = Agent.load(directory="data/checkpoints")
assert agent.timesteps == 400

# Only weights
agent.save(directory="data/checkpoints", format="numpy", append="episodes")
agent = Agent.load(directory="data/checkpoints", format="numpy")
assert agent.episodes == 20
