"""Each environment in a process of its own; the agent serves whichever is ready.

Run this in the repository's root.
"""

from operant import Runner

runner = Runner(
    agent="benchmarks/configs/ppo1.json", environment="CartPole-v1", num_parallel=5, remote="multiprocessing"
)
runner.run(num_episodes=100)
runner.close()
