"""Games as training sees them: rewards clipped, an episode for each life; the game's own score is kept for reports.

Paper: Mnih et al. 2015, "Human-level control through deep reinforcement learning" (methods, training details).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from operant.envs.atari import AtariVector
from operant.envs.preprocessing import Preprocessed
from operant.envs.vector_env import Flat, Game, Step, VectorEnv
from operant.spaces import Codec


class Games(VectorEnv):
    """Games as training sees them, while `game` tells what reports count: whole games and their true scores.

    A life lost ends an episode (`terminated`), and the game goes on with the next one. The row in between, of the episode's
    last observation, is played with FIRE where the game has it (it may wait for that), else without action; what it earns
    counts for the score only.

    Args:
        vector: the games. Lives are known of Atari games in this process; others have one.
        clip_rewards: replace rewards by their sign (Mnih et al. 2015).
        episodic_life: let episodes end with lives.
    """

    def __init__(self, vector: VectorEnv, *, clip_rewards: bool, episodic_life: bool) -> None:
        self._vector = vector
        self.num_envs, self.spaces, self.name = vector.num_envs, vector.spaces, vector.name
        self.mode, self.why = vector.mode, vector.why
        self.max_episode_timesteps = vector.max_episode_timesteps
        self._clip = clip_rewards
        none = np.zeros(self.num_envs, np.int32)
        self._count: Callable[[], np.ndarray] = lambda: none
        self._resume: Any = 0
        if episodic_life:
            self._count, self._resume = _lives(vector)
        self._lives = none
        self._lost = np.zeros(self.num_envs, np.bool_)
        self._over = self._lost

    @property
    def codec(self) -> Codec | None:
        """That of the games."""
        return self._vector.codec

    def reset(self, seed: int | None = None) -> Flat:
        """Begin a game everywhere."""
        observation = self._vector.reset(seed)
        self._lives, self.game = self._count(), None
        self._lost = self._over = np.zeros(self.num_envs, np.bool_)
        return observation

    def step(self, actions: Mapping[str, np.ndarray]) -> Step:
        """Take one action everywhere, except where the last row ended a game or a life."""
        if self._lost.any():
            actions = {name: self._resumed(value) for name, value in actions.items()}
        step = self._vector.step(actions)
        self.restarts, self.infos = self._vector.restarts, self._vector.infos
        lives, over = self._count(), step.terminated | step.truncated
        lost = (lives < self._lives) & (lives > 0) & ~over & ~self._over
        reward = np.where(self._lost, np.float32(0), np.sign(step.reward) if self._clip else step.reward)
        self._lives, self._lost, self._over = lives, lost, over
        self.game = Game(step.reward, over)
        return Step(step.observation, reward, step.terminated | lost, step.truncated)

    def _resumed(self, actions: np.ndarray) -> np.ndarray:
        lost = self._lost.reshape(-1, *[1] * (actions.ndim - 1))
        return np.where(lost, np.asarray(self._resume, actions.dtype), actions)

    def close(self) -> None:
        """Close the games."""
        self._vector.close()


class Whole(Games):
    """Whole games with the rewards as they come, by which a policy is judged: FIRE goes on after a lost life, as it did in training.

    A policy that learnt with an episode for each life has not learnt to press it, and would stand still to the end of the game.

    Args:
        vector: the games.
    """

    def __init__(self, vector: VectorEnv) -> None:
        super().__init__(vector, clip_rewards=False, episodic_life=True)
        self.cells = getattr(vector, "cells", [])
        """The games one by one, to look at them."""

    def step(self, actions: Mapping[str, np.ndarray]) -> Step:
        """Take one action everywhere, except where the last row ended a game or a life."""
        step, game = super().step(actions), self.game
        assert game is not None
        self.game = None
        return Step(step.observation, game.score, step.terminated & ~self._lost, step.truncated)


def judged(vector: VectorEnv) -> VectorEnv:
    """Return games by which a policy is judged: `Whole` where they have lives and wait for FIRE, else as they are."""
    return Whole(vector) if np.any(_lives(vector)[1]) else vector


def _lives(vector: VectorEnv) -> tuple[Callable[[], np.ndarray], Any]:
    """Return what counts the lives of a vector's games, and the action that goes on after a lost one."""
    if isinstance(vector, AtariVector):
        return lambda: vector.lives, vector.resume
    games = [_within(getattr(cell, "env", None)) for cell in getattr(vector, "cells", ())]
    first = next((game for game in games if game is not None), None)
    count = max(len(games), vector.num_envs)

    def lives() -> np.ndarray:
        return np.array([0 if game is None else game.lives for game in games] or [0] * count, np.int32)

    return lives, 0 if first is None else first.resume


def _within(env: Any) -> Preprocessed | None:
    """Return the preprocessing within wrappers, if there is one."""
    while not isinstance(env, Preprocessed):
        if not isinstance(env, gymnasium.Wrapper):
            return None
        env = env.env
    return env
