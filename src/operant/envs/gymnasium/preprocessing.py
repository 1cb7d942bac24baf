"""Images as deep Q-learning sees them: grey, 84 x 84, every fourth frame, in stacks of the last four.

Papers: Mnih et al. 2015, "Human-level control through deep reinforcement learning" (methods, preprocessing
and training details); Machado et al. 2018, "Revisiting the Arcade Learning Environment" (sticky actions,
whole games).

`PreprocessingWrapper`, a Gymnasium wrapper, does this for images of any kind; several Atari games run in
ALE's own vector (`operant.envs.gymnasium.atari`), which makes the same pixels.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from operant.envs.gymnasium import adapter as adapter
from operant.errors import SpecError, suggest, whole

GREY = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in a grey level (ITU-R BT.601), which ALE's own grey palette has too."""


@dataclasses.dataclass(frozen=True)
class PreprocessingOptions:
    """What is done to images; the names are arguments beside `preprocess=True`."""

    max_frame: bool = False
    """Take the maximum of the last two frames, pixel by pixel: some games draw objects in every other
    frame only."""
    frame_skip: int = 4
    """Frames for which an action is repeated; the last one (or two) is seen. Rewards are summed."""
    stack: int = 4
    """Frames of an observation `[size, size, stack]`, oldest first; black before an episode's first."""
    size: int = 84
    """Height and width, by averaging over areas."""
    noop_max: int = 30
    """An Atari game begins with a random number of frames without action, fewer than this."""
    fire_reset: bool = True
    """Press FIRE at the start of an Atari game that has it: some wait for it."""

    def __post_init__(self) -> None:
        for name, low in (("frame_skip", 1), ("stack", 1), ("size", 1), ("noop_max", 0)):
            object.__setattr__(self, name, whole(name, getattr(self, name), low))


def is_asked(arguments: Mapping[str, Any]) -> bool:
    """Tell whether the arguments of an environment ask for preprocessing."""
    return bool(arguments.get("preprocess", False))


def read(arguments: Mapping[str, Any]) -> tuple[PreprocessingOptions, dict[str, Any]]:
    """Split the arguments of an environment into preprocessing and the environment's own."""
    names = {field.name for field in dataclasses.fields(PreprocessingOptions)}
    env_arguments = {
        name: value for name, value in arguments.items() if name not in names and name != "preprocess"
    }
    return PreprocessingOptions(
        **{name: value for name, value in arguments.items() if name in names}
    ), env_arguments


def steps_for(frames: int, arguments: Mapping[str, Any]) -> int:
    """Return how many steps a time limit in frames allows."""
    return math.ceil(frames / read(arguments)[0].frame_skip) if is_asked(arguments) else frames


def refusal(name: str, shape: Any) -> SpecError:
    """Return the error of an environment that shows no images."""
    return SpecError(
        f"Cannot use --preprocess for non-atari environment {name}, with input shape {shape}. It is for "
        "images (height, width, 3 or 1). Leave --preprocess out; in a program, give preprocess=False."
    )


class PreprocessingWrapper(gymnasium.Wrapper):
    """An environment that shows images, Atari's or other, preprocessed: uint8 `[size, size, stack]`.

    Rewards are summed over the frames of a step, and not clipped; a lost life does not end the episode. An
    environment that skips frames itself is not made to skip more.

    Args:
        env: its observations are uint8 `[height, width]`, `[height, width, 1]` or `[height, width, 3]`.
        settings: what to do.

    Raises:
        SpecError: it shows no images, or skips frames of which `max_frame` would need the last two.
    """

    def __init__(self, env: gymnasium.Env, settings: PreprocessingOptions) -> None:
        super().__init__(env)
        name = env.spec.id if env.spec else type(env.unwrapped).__name__
        space, inner = env.observation_space, env.unwrapped
        if not isinstance(space, gymnasium.spaces.Box) or not _is_image(space):
            raise refusal(name, space.shape)
        height, width = space.shape[:2]
        skips = getattr(inner, "_frameskip", 1) != 1
        if skips and settings.max_frame:
            raise SpecError(
                f"{name!r} skips frames itself, so max_frame cannot see the last two. Make it with "
                "frameskip=1, or give its id."
            )
        self.settings = dataclasses.replace(settings, frame_skip=1) if skips else settings
        self.stacked_frames = settings.stack
        size, stack = settings.size, settings.stack
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size, stack), np.uint8)
        self._down, self._across = _Averages(height, size, 0), _Averages(width, size, 1)
        self._stack = np.zeros(self.observation_space.shape, np.uint8)
        meanings: list[str] = getattr(inner, "get_action_meanings", list)()
        self._noops = settings.noop_max if meanings[:1] == ["NOOP"] else 0
        self._fires = settings.fire_reset and "FIRE" in meanings
        self.resume = resuming(inner, meanings) if self._fires else resuming(inner, [])

    @property
    def spec(self) -> GymnasiumSpec | None:
        """The environment's spec, with the time limit in steps of `frame_skip` frames."""
        spec = self.env.spec
        if spec is None or spec.max_episode_steps is None:
            return spec
        limit = math.ceil(spec.max_episode_steps / self.settings.frame_skip)
        return dataclasses.replace(spec, max_episode_steps=limit)

    @property
    def has_lives(self) -> bool:
        """Whether it is an Atari game."""
        return getattr(self.unwrapped, "ale", None) is not None

    @property
    def lives(self) -> int:
        """Lives left in an Atari game; 0 in others."""
        return int(self.unwrapped.ale.lives()) if self.has_lives else 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a game; an Atari game with FIRE, if it has that action, and no-ops."""
        frame, info = self.env.reset(seed=seed, options=options)
        waits = int(self.unwrapped.np_random.integers(self._noops)) if self._noops else 0
        for action in [self.resume] * self._fires + [resuming(self.unwrapped, [])] * (waits - self._fires):
            frame, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                frame, info = self.env.reset(options=options)
        self._stack = np.zeros_like(self._stack)
        return self._stacked(frame), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Repeat an action for `frame_skip` frames, or to the end of the episode."""
        total = 0.0
        frames: collections.deque[Any] = collections.deque(maxlen=2 if self.settings.max_frame else 1)
        for _ in range(self.settings.frame_skip):
            frame, reward, terminated, truncated, info = self.env.step(action)
            # A copy: an environment may draw into the same array again.
            frames.append(np.array(frame) if self.settings.max_frame else frame)
            total += float(reward)
            if terminated or truncated:
                break
        image = frames[0] if len(frames) == 1 else np.maximum(*frames)
        return self._stacked(image), total, terminated, truncated, info

    def _stacked(self, image: np.ndarray) -> np.ndarray:
        grey = image.astype(np.float32)
        if image.ndim == 3:
            grey = np.rint(grey @ GREY) if image.shape[-1] == 3 else grey[..., 0]
        frame = np.rint(self._across(self._down(grey))).astype(np.uint8)
        self._stack = np.concatenate([self._stack[..., 1:], frame[..., None]], axis=-1)
        return self._stack


def within(env: Any) -> PreprocessingWrapper | None:
    """Return the `PreprocessingWrapper` among an environment's wrappers, or None."""
    while not isinstance(env, PreprocessingWrapper):
        if not isinstance(env, gymnasium.Wrapper):
            return None
        env = env.env
    return env


def _is_image(space: gymnasium.spaces.Box) -> bool:
    grey = len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[-1] == 1)
    return space.dtype == np.uint8 and (grey or (len(space.shape) == 3 and space.shape[-1] == 3))


class _Averages:
    """Averages `count` pixels over `size` equal stretches along an axis, as a sum over shifted copies.

    A matrix product would wake BLAS's threads, which cost more than they gain here.
    """

    def __init__(self, count: int, size: int, axis: int) -> None:
        edges = np.arange(size + 1) * (count / size)
        first = np.floor(edges[:-1]).astype(int)
        self._terms: list[tuple[np.ndarray, np.ndarray]] = []
        self._axis = axis
        for offset in range(math.ceil(count / size) + 1):
            pixel = first + offset
            covered = np.minimum(edges[1:], pixel + 1) - np.maximum(edges[:-1], pixel)
            weight = (np.maximum(covered, 0.0) * (size / count)).astype(np.float32)
            self._terms.append((np.minimum(pixel, count - 1), weight[:, None] if axis == 0 else weight))

    def __call__(self, image: np.ndarray) -> np.ndarray:
        return np.sum([image.take(at, self._axis) * weight for at, weight in self._terms], axis=0)


def resuming(env: Any, meanings: list[str]) -> Any:
    """Return the action that continues a waiting game: FIRE if it is among the meanings, else the no-op."""
    fire = "FIRE" in meanings
    if getattr(env, "continuous", False):
        return np.array([0.0, 0.0, float(fire)], np.float32)
    return meanings.index("FIRE") if fire else 0


def make(spec: GymnasiumSpec, arguments: Mapping[str, Any]) -> gymnasium.Env:
    """Make one environment of Gymnasium, preprocessed; without the registry's limit, like `adapter.make`."""
    settings, env_arguments = read(arguments)
    if spec.entry_point == adapter.ATARI:
        for name in sorted(env_arguments.keys() & {"frameskip", "obs_type"}):
            remedy = " Give frame_skip." if name == "frameskip" else ""
            raise SpecError(
                f"A preprocessed Atari game takes no argument {name!r}: preprocessing sets it.{remedy}"
            )
        env_arguments |= {"frameskip": 1, "obs_type": "grayscale"}  # the id's skip would multiply with ours
    return PreprocessingWrapper(adapter.make(spec, env_arguments), settings)


def refuse_unknown(arguments: Mapping[str, Any], other_names: tuple[str, ...]) -> None:
    """Raise `SpecError` if an argument is neither a field of `PreprocessingOptions` nor one of `known`."""
    names = [*(field.name for field in dataclasses.fields(PreprocessingOptions)), *other_names]
    for name in arguments:
        if name not in names:
            raise SpecError(f"A preprocessed environment takes no argument {name!r}.{suggest(name, names)}")
