"""Summaries for TensorBoard: `tensorboard --logdir data/summaries`."""

import numpy as np

from operant import Agent

agent = Agent.create(
    agent="ppo",
    states=dict(type="float", shape=(4,)),
    actions=dict(type="int", num_values=2),
    n_steps=32,
    summarizer=dict(
        directory="data/summaries",
        # list of labels, or 'all'
        labels=["graph", "entropy", "kl-divergence", "losses", "rewards"],
        frequency=100,  # store values every 100 timesteps
        # (infrequent update summaries every update)
        custom=dict(custom_summary1=dict(type="image", max_outputs=10)),
    ),
)
for step in range(200):
    agent.act(states=np.random.normal(size=4))
    agent.observe(reward=1.0, terminal=step % 20 == 19)

# custom summary recording
agent.summarize(summary="custom_summary1", value=np.random.random((8, 8, 3)))
agent.close()
