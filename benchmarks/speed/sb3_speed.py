"""Stable-Baselines3, as its documentation shows it: `make_vec_env`, `learn`, on the CPU."""

from __future__ import annotations

from collections.abc import Callable

from baselines import learn
from measure import main
from stable_baselines3 import DDPG, DQN, PPO, SAC, TD3
from workloads import Workload


def prepare(workload: Workload, steps: int) -> Callable[[], int]:
    cls = {"ppo": PPO, "dqn": DQN, "ddpg": DDPG, "td3": TD3, "sac": SAC}[workload.kind]
    return learn(cls, workload, steps, device="cpu")


if __name__ == "__main__":
    main("sb3", ("stable-baselines3", "torch", "gymnasium", "numpy"), prepare)
