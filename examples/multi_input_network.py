"""A network of several inputs: layer lists that register tensors and retrieve them."""

import numpy as np

from operant import Agent

agent = Agent.create(
    agent="ppo",
    states=dict(
        observation=dict(type="float", shape=(16, 16, 3)),
        attributes=dict(type="int", shape=(4, 2), num_values=5),
    ),
    actions=dict(type="int", num_values=3),
    policy=[
        [
            dict(type="retrieve", tensors="observation"),
            dict(type="conv2d", size=16),
            dict(type="flatten"),
            dict(type="register", tensor="obs-embedding"),
        ],
        [
            dict(type="retrieve", tensors="attributes"),
            dict(type="embedding", size=16),
            dict(type="flatten"),
            dict(type="register", tensor="attr-embedding"),
        ],
        [
            dict(type="retrieve", tensors=["obs-embedding", "attr-embedding"], aggregation="concat"),
            dict(type="dense", size=32),
        ],
    ],
    n_steps=16,
)
random = np.random.default_rng(0)
for step in range(34):
    action = agent.act(
        states=dict(
            observation=random.random(size=(16, 16, 3)),
            attributes=random.integers(5, size=(4, 2)),
        )
    )
    agent.observe(reward=float(action == 1), terminal=step % 10 == 9)
print(agent.get_architecture())
print(f"{agent.updates} updates")
