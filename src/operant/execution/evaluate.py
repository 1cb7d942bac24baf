"""Evaluation: whole episodes with a policy as it is, nothing learnt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np

from operant.agents.learner import Learner, Train
from operant.engine import Ahead
from operant.envs.vector_env import VectorEnv
from operant.errors import whole
from operant.execution.episodes import Accounts, Finished

Choose: TypeAlias = Callable[[Any, Any, np.ndarray, int], tuple[Any, Any]]


def evaluate(
    learner: Learner,
    train: Train,
    env: VectorEnv,
    episodes: int,
    *,
    seed: int = 0,
    explore: bool = False,
    max_steps: int | None = None,
) -> list[Finished]:
    """Run episodes with an algorithm's policy and return them in the order in which they ended; see `run_episodes`.

    Args:
        learner: the algorithm.
        train: its state.
        env: environments with the algorithm's spaces; reset here.
        episodes: how many.
        seed: root of the environments' seeds and of exploration.
        explore: draw actions as in training; otherwise take the best.
        max_steps: environment steps after which no more are taken; episodes that are open then do not count.

    Raises:
        SpecError: `episodes` is below 1.
        EnvironmentError: an environment failed.
    """
    n, key = env.num_envs, jax.random.key(seed)
    act = jax.jit(learner.act, static_argnames="explore")
    noise = Ahead(lambda key, row: learner.noise(key, row, n))
    acting = jax.jit(learner.acting)(train)

    def choose(observation: Any, carry: Any, first: np.ndarray, row: int) -> tuple[Any, Any]:
        chosen = act(acting, observation, carry, first, noise.at(key, row), explore=explore)
        return {name: np.asarray(value) for name, value in chosen.action.items()}, chosen.carry

    return run_episodes(choose, learner.algorithm.initial_carry(n), env, episodes, seed, max_steps)


def run_episodes(
    choose: Choose, carry: Any, env: VectorEnv, episodes: int, seed: int = 0, max_steps: int | None = None
) -> list[Finished]:
    """Run episodes and return them in the order in which they ended.

    Every environment runs its share of the episodes, the first ones one more where they do not divide: taking whichever ends
    first would prefer short ones.

    Args:
        choose: (flat observation, recurrent state, which environments begin an episode, row) to flat actions and the next
            recurrent state.
        carry: recurrent state to begin with.
        env: environments; reset here.
        episodes: how many.
        seed: root of the environments' seeds.
        max_steps: environment steps after which no more are taken; episodes that are open then do not count.

    Raises:
        SpecError: `episodes` is below 1.
        EnvironmentError: an environment failed.
    """
    episodes = whole("episodes", episodes)
    n = env.num_envs
    left = np.full(n, episodes // n) + (np.arange(n) < episodes % n)
    accounts, finished = Accounts(n), list[Finished]()
    first, ended = np.ones(n, bool), np.zeros(n, bool)
    observation, row, steps = env.reset(seed), 0, 0
    while left.any():
        action, carry = choose(observation, carry, first, row)
        after = env.step(action)
        valid = ~ended
        first, ended = ended, after.terminated | after.truncated
        steps += int(np.count_nonzero(valid & (left > 0)))
        over: list[Finished] = []
        accounts.row(over, steps, after.reward, valid, ended)
        for episode in over:
            if left[episode.actor] > 0:
                left[episode.actor] -= 1
                finished.append(episode)
        if max_steps is not None and steps >= max_steps:
            break
        observation, row = after.observation, row + 1
    return finished
