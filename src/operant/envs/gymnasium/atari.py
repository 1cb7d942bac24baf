"""Atari games, preprocessed: several in ALE's own vector (threads in C++), single ones by `preprocessing`.

Both make the same pixels, and give unclipped rewards and whole games; `games` makes of these what training
sees, and keeps the true score for reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from operant.envs.catalog import resolve
from operant.envs.env_spec import EnvSpec
from operant.envs.gymnasium import adapter as adapter
from operant.envs.gymnasium.preprocessing import (
    PreprocessingOptions,
    PreprocessingWrapper,
    read,
    refuse_unknown,
    resuming,
)
from operant.envs.validated_env import smaller_limit
from operant.envs.vector.batched import GymnasiumVector
from operant.errors import value_error
from operant.spec.run import IMAGES

VECTOR = "ale_py.vector_env:AtariVectorEnv"
VECTOR_ARGUMENTS = (
    "repeat_action_probability",
    "full_action_space",
    "continuous",
    "continuous_action_threshold",
    "max_num_frames_per_episode",
    "num_threads",
    "thread_affinity_offset",
)
"""Arguments of ALE's vector that are left to the user. Others have another name here, or would break the
stream of rows."""


def has_lives(source: EnvSpec) -> bool:
    """Tell whether an environment that is not yet made is an Atari game."""
    return isinstance(source.target, GymnasiumSpec) and source.target.entry_point == adapter.ATARI


def preprocessed(
    env: Any, max_frame: bool = False, preprocess: bool = True, **arguments: Any
) -> gymnasium.Env:
    """Return an environment preprocessed: observations uint8 `[84, 84, 4]`, oldest frame first.

    Rewards are the game's own and episodes are whole games; `operant.envs.vector.create.create` turns several
    such environments into what training needs (`clip_rewards`, `episodic_life`).

    Args:
        env: an environment, or an id such as `PongNoFrameskip-v4`, `ALE/Pong-v5` or `CarRacing-v3`.
        max_frame: take the maximum of the last two frames.
        preprocess: if False, only what `arguments` ask for is done to its images.
        arguments: the other fields of `PreprocessingOptions`; with an id, also the environment's own.

    Raises:
        SpecError: the id is unknown, the package is missing, it shows no images, or an argument is unknown.
    """
    asked: dict[str, Any] = {"preprocess": preprocess, "max_frame": max_frame}
    if isinstance(env, gymnasium.Env):
        refuse_unknown(arguments, ())
        settings = read({**asked, **arguments}, str(env))
        return env if settings is None else PreprocessingWrapper(env, settings)
    images = {} if preprocess else {name: arguments.pop(name) for name in IMAGES if name in arguments}
    source = resolve(env, arguments=arguments, images={**asked, **images})
    if preprocess and not isinstance(source.target, GymnasiumSpec):
        raise value_error("env", "an id of Gymnasium, or an environment of it", env)
    game, limit = source.make(), getattr(source.target, "max_episode_steps", None)
    if source.images is None:
        return game if limit is None else gymnasium.wrappers.TimeLimit(game, limit)
    if limit is not None and not (has_lives(source) and preprocess):  # ALE cuts its games itself
        game.env = gymnasium.wrappers.TimeLimit(game.env, limit)
    return game


def own_vector(
    source: EnvSpec,
    settings: PreprocessingOptions,
    num_envs: int,
    info_keywords: Sequence[str] = (),
) -> GymnasiumVector | str:
    """Run Atari games in ALE's vector, or say why that is not possible; SpecError: a wrong argument."""
    spec = source.target
    if not (has_lives(source) and settings.preprocess and settings.gray and settings.resize):
        return "images are preprocessed one environment at a time"
    options = dict(source.arguments)
    if options.pop("visualize", False) or options.pop("render_mode", None) is not None:
        return "ALE's vector cannot render"
    if options.keys() & {"mode", "difficulty"}:
        return "ALE's vector plays the default mode and difficulty only"
    refuse_unknown(options, VECTOR_ARGUMENTS)
    arguments = {**spec.kwargs, **options}
    skip, longest = settings.frame_skip, arguments.pop("max_num_frames_per_episode")
    limit = smaller_limit(source.max_episode_timesteps, longest // skip, source.name) or longest // skip
    vector = adapter.call(
        spec,
        VECTOR,
        num_envs=num_envs,
        **{**arguments, "frameskip": skip},
        maxpool=settings.max_frame,
        stack_num=settings.frame_stack,
        img_height=settings.resize[0],
        img_width=settings.resize[1],
        noop_max=settings.noop_max,
        use_fire_reset=settings.fire_reset,
        max_num_frames_per_episode=limit * skip,
        reward_clipping=False,
        episodic_life=False,
    )
    frames = _FramesLast(vector, settings)
    return AtariVector(frames, source.name, limit, settings, arguments, info_keywords)


class _FramesLast(gymnasium.vector.VectorWrapper):
    """ALE's vector with the frames in the last axis, as networks and replay expect; keeps the lives left."""

    def __init__(self, env: gymnasium.vector.VectorEnv, settings: PreprocessingOptions) -> None:
        super().__init__(env)
        shape = (*settings.resize, settings.frame_stack)
        self.single_observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.lives = np.zeros(env.num_envs, np.int32)
        meanings = [action.name for action in env.ale.get_action_set()]
        self.resume = resuming(env, meanings if settings.fire_reset else [])

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._moved(observation, info), info

    def step(self, actions: Any) -> tuple[np.ndarray, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(actions)
        return self._moved(observation, info), reward, terminated, truncated, info

    def _moved(self, observation: np.ndarray, info: dict[str, Any]) -> np.ndarray:
        self.lives = info["lives"]
        moved = np.empty((len(observation), *self.single_observation_space.shape), np.uint8)
        for i in range(moved.shape[-1]):  # three times as fast as copying with the axis moved
            moved[..., i] = observation[:, i]
        return moved


class AtariVector(GymnasiumVector):
    """Atari games in ALE's vector, preprocessed."""

    preprocessed = has_lives = True

    def __init__(
        self,
        vector: _FramesLast,
        name: str,
        limit: int | None,
        settings: PreprocessingOptions,
        arguments: Mapping[str, Any],
        info_keywords: Sequence[str] = (),
    ) -> None:
        super().__init__(vector, name, limit, frames=settings.frame_stack, info_keywords=info_keywords)
        self.resume = vector.resume
        sticky = arguments["repeat_action_probability"]
        self.why = f"ALE's own: every {settings.frame_skip}th frame, " + (
            f"an action sticks with probability {sticky:g}" if sticky else "no sticky actions"
        )

    @property
    def lives(self) -> np.ndarray:
        """Lives left, `[N]`."""
        return np.asarray(self._vector.lives)
