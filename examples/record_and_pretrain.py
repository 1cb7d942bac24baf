"""Record what a trained agent does, and let a fresh one imitate it before it has taken a single step."""

import os

import numpy as np

from operant import PPO, Agent, Environment

EPISODES = int(os.environ.get("EPISODES", "50"))

PPO("CartPole-v1", n_envs=8, n_steps=128, lr=1e-3, seed=1, quiet=True, run_dir="data/trained").fit(
    max_steps=1200 * EPISODES
)
environment = Environment.create(environment="CartPole-v1")


def mean_return(agent, episodes=10):
    returns = []
    for episode in range(episodes):
        states, terminal, total = environment.reset(seed=episode), False, 0.0
        while not terminal:
            actions = agent.act(states=states, independent=True)
            states, terminal, reward = environment.execute(actions=actions)
            total += reward
        returns.append(total)
    return float(np.mean(returns))


agent = Agent.load(
    directory="data/trained",
    parallel_interactions=1,
    recorder=dict(
        directory="data/traces",
        frequency=10,  # record a traces file every 10 episodes
    ),
)
for episode in range(EPISODES):
    states, terminal = environment.reset(seed=1000 + episode), False
    while not terminal:
        actions = agent.act(states=states)
        states, terminal, reward = environment.execute(actions=actions)
        agent.observe(reward=reward, terminal=terminal, next_states=states)
agent.close()

# Pretrain agent on recorded traces
agent = Agent.create(agent="ppo", environment=environment, seed=1)
before = mean_return(agent)
agent.pretrain(
    directory="data/traces",
    num_iterations=100,  # perform 100 update iterations on traces
)
print(f"mean return before pretraining {before:.1f}, after {mean_return(agent):.1f}")
