"""Export the policy of an agent as a SavedModel, and play with it in a process that knows TensorFlow alone.

Needs the extra `tensorflow`.
"""

import subprocess
import sys


def train():
    from operant import Agent, Environment, Runner

    environment = Environment.create(environment="CartPole-v1")
    agent = Agent.create(agent="ppo", environment=environment, n_steps=256, lr=1e-3, seed=1)
    runner = Runner(agent=agent, environment=environment)
    runner.run(num_episodes=200, use_tqdm=False)
    runner.close()
    return agent.save(directory="data", format="saved-model")


def play(folder):
    import gymnasium
    import numpy as np
    import tensorflow as tf

    policy, env = tf.saved_model.load(folder), gymnasium.make("CartPole-v1")
    returns = []
    for episode in range(10):
        state, _ = env.reset(seed=episode)
        ended, earned = False, 0.0
        while not ended:
            # One state is a batch of one. A recurrent policy takes and returns internals, too, and starts
            # from policy.initial_internals(), which has no batch axis.
            actions = policy.act(np.asarray([state], np.float32), deterministic=True)
            state, reward, terminated, truncated, _ = env.step(int(actions[0]))
            ended, earned = terminated or truncated, earned + float(reward)
        returns.append(earned)
    assert "operant" not in sys.modules
    print(f"mean return of 10 episodes in TensorFlow: {np.mean(returns):.1f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        play(sys.argv[1])
    else:
        subprocess.run([sys.executable, __file__, train()], check=True)
