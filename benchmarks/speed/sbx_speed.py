"""SBX, Stable-Baselines3's algorithms on JAX: the same calls."""

from __future__ import annotations

from collections.abc import Callable

from baselines import learn
from measure import main
from sbx import DDPG, DQN, PPO, SAC, TD3
from workloads import Workload


def prepare(workload: Workload, steps: int) -> Callable[[], int]:
    cls = {"ppo": PPO, "dqn": DQN, "ddpg": DDPG, "td3": TD3, "sac": SAC}[workload.kind]
    return learn(cls, workload, steps)


if __name__ == "__main__":
    main("sbx", ("sbx-rl", "stable-baselines3", "jax", "flax", "gymnasium", "numpy"), prepare)
