"""What Stable-Baselines3 and SBX share: their constructors take the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack
from workloads import Workload


def learn(cls: Any, workload: Workload, steps: int, **arguments: Any) -> Callable[[], int]:
    """Learn for the warm-up; return what continues learning, for as many steps each time."""
    arguments |= {"batch_size": workload.batch_size, "seed": 0}
    if not workload.atari:  # the policy for images is the Nature CNN
        arguments["policy_kwargs"] = {"net_arch": list(workload.hidden)}
    if workload.kind == "ppo":
        arguments |= {"n_steps": workload.n_steps, "n_epochs": workload.epochs}
    else:
        arguments |= {
            "buffer_size": workload.buffer_size,
            "learning_starts": workload.learning_starts,
            "train_freq": 1,
            "gradient_steps": 1,
        }
    if workload.atari:
        import ale_py

        gymnasium.register_envs(ale_py)
        envs = VecFrameStack(make_atari_env(workload.env, n_envs=workload.num_envs, seed=0), n_stack=4)
    else:
        envs = make_vec_env(workload.env, n_envs=workload.num_envs, seed=0)
    model = cls("CnnPolicy" if workload.atari else "MlpPolicy", envs, **arguments)
    model.learn(workload.warm_up)

    def go_on() -> int:
        before = model.num_timesteps
        model.learn(steps, reset_num_timesteps=False)
        return int(model.num_timesteps - before)

    return go_on
