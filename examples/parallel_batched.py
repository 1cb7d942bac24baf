"""Several environments in this process, one call of the agent for all of them.

Run this in the repository's root.
"""

from operant import Runner

runner = Runner(agent="benchmarks/configs/ppo1.json", environment="CartPole-v1", num_parallel=5)
runner.run(num_episodes=100, batch_agent_calls=True)
runner.close()
