"""Games as training sees them: rewards clipped, an episode for each life; reports get the game's own score.

Paper: Mnih et al. 2015, "Human-level control through deep reinforcement learning" (methods, training
details).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from operant.envs.gymnasium.atari import AtariVector
from operant.envs.gymnasium.preprocessing import within
from operant.envs.vector.base import EpisodeScore, Flat, VectorEnv, VectorStep
from operant.spec.spaces import Codec


class _LivesVector(VectorEnv):
    """A vector whose lives are counted, if they are to be; after a lost one FIRE is pressed, if there is."""

    def __init__(self, vector: VectorEnv, counted: bool) -> None:
        self._vector = vector
        self.num_envs, self.spaces, self.name = vector.num_envs, vector.spaces, vector.name
        self.mode, self.why = vector.mode, vector.why
        self.preprocessed, self.has_lives = vector.preprocessed, vector.has_lives
        self.max_episode_timesteps = vector.max_episode_timesteps
        self._count, self._resume = _counting(vector) if counted else _uncounted(vector.num_envs)
        self._life_lost = self._over = np.zeros(vector.num_envs, np.bool_)
        """Where the last row cost a life and the game goes on; where it ended the game."""
        self._left = np.zeros(vector.num_envs, np.int32)

    @property
    def deadline(self) -> float:
        """That of the games."""
        return self._vector.deadline

    @deadline.setter
    def deadline(self, deadline: float) -> None:
        self._vector.deadline = deadline

    @property
    def codec(self) -> Codec | None:
        return self._vector.codec

    def reset(self, seed: int | None = None) -> Flat:
        observation = self._vector.reset(seed)
        self._left = self._count()
        self._life_lost = self._over = np.zeros(self.num_envs, np.bool_)
        self.game = None
        return observation

    def step(self, actions: Mapping[str, np.ndarray]) -> VectorStep:
        """Take one action everywhere, except where the last row ended a game or a life."""
        if self._life_lost.any():
            actions = {name: self._resumed(x) for name, x in actions.items()}
        step = self._vector.step(actions)
        self.restarts, self.infos, self.lost = self._vector.restarts, self._vector.infos, self._vector.lost
        left, over = self._count(), step.terminated | step.truncated
        self._life_lost = (left < self._left) & (left > 0) & ~over & ~self._over
        self._left, self._over = left, over
        return step

    def _resumed(self, actions: np.ndarray) -> np.ndarray:
        lost = self._life_lost.reshape(-1, *[1] * (actions.ndim - 1))
        return np.where(lost, np.asarray(self._resume, actions.dtype), actions)

    def close(self) -> None:
        self._vector.close()


class Games(_LivesVector):
    """Games as training sees them, while `game` tells what reports count: whole games and their true scores.

    A lost life ends an episode (`terminated`), and the game goes on with the next episode. In the row in
    between, which follows the episode's last observation, FIRE is pressed if the game has it (it may wait for
    that), else no action is taken; what this row earns counts for the score only.

    Args:
        vector: the games. Lives are known only of Atari games in this process; others count as having one.
        clip_rewards: replace rewards by their sign (Mnih et al. 2015).
        episodic_life: let episodes end with lives.
    """

    def __init__(self, vector: VectorEnv, *, clip_rewards: bool, episodic_life: bool) -> None:
        super().__init__(vector, episodic_life)
        self._clip, self._lives_end = clip_rewards, episodic_life

    def judged(self) -> VectorEnv:
        """Return the same games as policies are evaluated in: whole, with unclipped rewards."""
        return whole_games(self._vector) if self._lives_end else self._vector

    def step(self, actions: Mapping[str, np.ndarray]) -> VectorStep:
        """Take one action everywhere, except where the last row ended a game or a life."""
        between = self._life_lost
        step = super().step(actions)
        reward = np.where(between, np.float32(0), np.sign(step.reward) if self._clip else step.reward)
        self.game = EpisodeScore(step.reward, step.terminated | step.truncated)
        return VectorStep(step.observation, reward, step.terminated | self._life_lost, step.truncated)


class WholeGames(_LivesVector):
    """Whole games with unclipped rewards, but with FIRE after a lost life if the game has it, as in `Games`.

    A policy that learnt with an episode for each life has not learnt to press FIRE, and would stand still
    until the end of the game.
    """

    def __init__(self, vector: VectorEnv) -> None:
        super().__init__(vector, counted=True)
        self.envs = getattr(vector, "envs", [])
        """The single games, for showing them."""


def whole_games(vector: VectorEnv) -> VectorEnv:
    """Return `WholeGames` of a vector whose games have lives and wait for FIRE; any other vector as it is."""
    return WholeGames(vector) if np.any(_counting(vector)[1]) else vector


def _uncounted(n: int) -> tuple[Callable[[], np.ndarray], Any]:
    none = np.zeros(n, np.int32)
    return lambda: none, 0


def _counting(vector: VectorEnv) -> tuple[Callable[[], np.ndarray], Any]:
    """Return what counts the lives of a vector's games, and the action that continues after a lost one."""
    if isinstance(vector, AtariVector):
        return lambda: vector.lives, vector.resume
    games = [within(getattr(env, "env", None)) for env in getattr(vector, "envs", ())]
    first = next((game for game in games if game is not None), None)
    if first is None:
        return _uncounted(vector.num_envs)

    def lives() -> np.ndarray:
        return np.array([0 if game is None else game.lives for game in games], np.int32)

    return lives, first.resume
