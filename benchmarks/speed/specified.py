"""An agent by its specification, trained by a Runner: the same program for Tensorforce and for operant."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from workloads import Workload, specification


def runner(library: ModuleType, workload: Workload, steps: int, gym: str) -> Callable[[], int]:
    """Learn for the warm-up; return what continues learning, for as many steps each time.

    Args:
        library: `operant` or `tensorforce`.
        workload: what to learn.
        steps: environment steps of one measurement.
        gym: what the library calls environments of Gym or Gymnasium.
    """
    environment = library.Environment.create(environment=gym, level=workload.env, max_episode_timesteps=500)
    agent = library.Agent.create(environment=environment, **specification(workload))
    program = library.Runner(agent=agent, environment=environment)
    program.run(num_timesteps=10 * workload.batch_size, use_tqdm=False)

    def go_on() -> int:
        before = agent.timesteps
        program.run(num_timesteps=steps, use_tqdm=False)
        return int(agent.timesteps - before)

    return go_on
