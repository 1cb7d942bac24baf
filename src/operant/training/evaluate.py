"""Evaluation: whole episodes with a fixed policy; nothing is learnt."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np

from operant.agents.base.compiled import KeyStream
from operant.agents.base.learner import Learner, TrainState
from operant.envs.vector.base import AbandonedError, VectorEnv
from operant.errors import whole
from operant.spec.random_streams import Purpose, derived_seed
from operant.tracking.record import Logger
from operant.training.episodes import EpisodeResult, EpisodeStatistics

LONGEST = 10_000
"""Steps after which an episode of an environment without a time limit is cut, as the best actions may never
end one: ten times the limit that most environments of Gymnasium have."""

Choose: TypeAlias = Callable[[Any, Any, np.ndarray, int], tuple[Any, Any]]


class Evaluator:
    """Runs whole episodes with an algorithm's current policy; compiles once, for all its states."""

    def __init__(self, learner: Learner, env: VectorEnv) -> None:
        self.env = env
        self.seconds = 0.0
        """Spent on evaluations, by all runs that share this."""
        self._carry = learner.algorithm.initial_carry(env.num_envs)
        self._acting = jax.jit(learner.acting)
        self._act = jax.jit(learner.act, static_argnames="explore")
        self._noise = KeyStream(lambda key, row: learner.noise(key, row, env.num_envs))

    def run(
        self,
        train: TrainState,
        episodes: int,
        *,
        seed: int = 0,
        explore: bool = False,
        max_steps: int | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[EpisodeResult]:
        """Run episodes, exploring as in training or by the best actions; see `run_episodes`."""
        key, acting = jax.random.key(seed), self._acting(train)
        self._noise.clear()

        def choose(observation: Any, carry: Any, first: np.ndarray, row: int) -> tuple[Any, Any]:
            noise = self._noise.at(key, row)
            chosen = self._act(acting, observation, carry, first, noise, explore=explore)
            return {name: np.asarray(value) for name, value in chosen.action.items()}, chosen.carry

        return run_episodes(choose, self._carry, self.env, episodes, seed, max_steps, stop)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a training run needs to evaluate its policy now and then, in separate environments."""

    evaluator: Evaluator
    """Runs the episodes."""
    frequency: int
    """Environment steps of training from one evaluation to the next."""
    episodes: int
    """Episodes of each evaluation."""
    seed: int
    """Of the run; each evaluation has different episodes, the same ones whenever the run is repeated."""
    logger: Logger | None = None
    """Takes the episodes."""
    directory: Path | None = None
    """Folder for a checkpoint of the best policy; None: it is not kept."""

    def run(self, train: TrainState, step: int, stop: Callable[[], bool]) -> list[EpisodeResult] | None:
        """Run the episodes due at a step, by the best actions; fewer if one had no end, None if `stop`
        was True before.
        """
        seed = derived_seed(self.seed, Purpose.EVALUATION, step // self.frequency)
        with contextlib.suppress(AbandonedError):
            finished = self.evaluator.run(train, self.episodes, seed=seed, stop=stop)
            return finished if len(finished) == self.episodes or not stop() else None
        return None


def run_episodes(
    choose: Choose,
    carry: Any,
    env: VectorEnv,
    episodes: int,
    seed: int = 0,
    max_steps: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[EpisodeResult]:
    """Run episodes and return them in the order in which they ended.

    Every environment runs its share of the episodes; if they do not divide evenly, the first environments run
    one more. Taking whichever episodes end first would favour short ones. If an environment is lost, its
    episode does not count; another is run.

    Where neither the environment nor `max_steps` limits it, an episode is cut after `LONGEST` steps, with a
    warning: its return so far counts, and its environment runs no other.

    Args:
        choose: (flat observation, recurrent state, which environments begin an episode, row) to flat actions
            and the next recurrent state.
        carry: recurrent state to begin with.
        env: environments; reset here.
        episodes: how many.
        seed: root of the environments' seeds.
        max_steps: environment steps after which no more are taken; episodes that are open then do not count.
        stop: looked at before each step; True: no more are taken.

    Raises:
        SpecError: `episodes` is below 1.
        EnvError: an environment failed.
    """
    episodes = whole("episodes", episodes)
    n = env.num_envs
    left = np.full(n, episodes // n) + (np.arange(n) < episodes % n)
    accounts, finished = EpisodeStatistics(n), list[EpisodeResult]()
    first, ended = np.ones(n, bool), np.zeros(n, bool)
    observation, row, steps = env.reset(seed), 0, 0
    unlimited = max_steps is None and env.max_episode_timesteps is None
    while left.any() and not stop():
        action, carry = choose(observation, carry, first, row)
        after = env.step(action)
        valid = ~ended
        first, ended = ended, after.terminated | after.truncated
        steps += int(np.count_nonzero(valid & (left > 0)))
        over: list[EpisodeResult] = []
        score, ends = (after.reward, ended) if env.game is None else env.game
        accounts.row(over, steps, score, valid, ends, env.infos)
        for episode in over:
            if left[episode.actor] > 0 and (env.lost is None or not env.lost[episode.actor]):
                left[episode.actor] -= 1
                finished.append(episode)
        if max_steps is not None and steps >= max_steps:
            break
        endless = (left > 0) & (accounts.length >= LONGEST) if unlimited and row + 1 >= LONGEST else None
        if endless is not None and endless.any():
            warnings.warn(
                f"An episode of {env.name!r} has not ended after {LONGEST:,} steps, and has no time limit. "
                "It is cut: its return so far counts, and this environment runs no other in this evaluation. "
                "Set a limit: max_episode_timesteps, --max-episode-timesteps.",
                RuntimeWarning,
                stacklevel=2,
            )
            accounts.row(finished, steps, np.zeros(n), np.zeros(n, bool), endless)
            left[endless] = 0
        observation, row = after.observation, row + 1
    return finished
