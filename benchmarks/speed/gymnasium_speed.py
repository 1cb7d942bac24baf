"""Raw speed of Gymnasium's own vectorised environments under random actions: the limit of any host driver."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
from measure import main
from workloads import Workload


def prepare(workload: Workload, steps: int) -> Callable[[], int]:
    if workload.atari:
        import ale_py.vector_env

        envs = ale_py.vector_env.AtariVectorEnv("pong", workload.num_envs, maxpool=True)
    else:
        envs = gymnasium.make_vec(
            workload.env, num_envs=workload.num_envs, vectorization_mode="vector_entry_point"
        )
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(1000)]
    for action in actions[:100]:
        envs.step(action)
    rounds = -(-steps // workload.num_envs)

    def go_on() -> int:
        for index in range(rounds):
            envs.step(actions[index % 1000])
        return rounds * workload.num_envs

    return go_on


if __name__ == "__main__":
    main("gymnasium", ("gymnasium", "numpy"), prepare)
