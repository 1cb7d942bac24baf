"""The act-experience-update interface: the program keeps whole episodes and says when to learn."""

import os

from operant import Agent, Environment

environment = Environment.create(environment="CartPole-v1", max_episode_timesteps=100)
agent = Agent.create(agent="ppo", environment=environment, n_steps=128, lr=1e-3)
for _ in range(int(os.environ.get("UPDATES", "20"))):
    all_states, all_actions, all_terminal, all_reward, ends = [], [], [], [], []
    while len(all_reward) < 512:
        states, terminal, internals = environment.reset(), 0, agent.initial_internals()
        while terminal == 0:
            all_states.append(states)
            actions, internals = agent.act(
                states=states, internals=internals, independent=True, deterministic=False
            )
            all_actions.append(actions)
            states, terminal, reward = environment.execute(actions=actions)
            all_terminal.append(terminal)
            all_reward.append(reward)
        ends.append(states)
    agent.experience(
        states=all_states, actions=all_actions, terminal=all_terminal, reward=all_reward, next_states=ends
    )
    agent.update()
    print(f"mean return {len(all_reward) / len(ends):.1f}")
