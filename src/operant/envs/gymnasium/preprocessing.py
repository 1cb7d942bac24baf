"""Images smaller, grey and stacked; by default as deep Q-learning sees them: 84 x 84, every fourth frame, the
last four.

Papers: Mnih et al. 2015, "Human-level control through deep reinforcement learning" (methods, preprocessing
and training details); Machado et al. 2018, "Revisiting the Arcade Learning Environment" (sticky actions,
whole games).

`PreprocessingWrapper`, a Gymnasium wrapper, does this for images of any kind; several Atari games run in
ALE's own vector (`operant.envs.gymnasium.atari`), which makes the same pixels.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from operant.envs.gymnasium import adapter as adapter
from operant.errors import SpecError, suggest, value_error, whole

GREY = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in a grey level (ITU-R BT.601), which ALE's own grey palette has too."""


@dataclasses.dataclass(frozen=True)
class PreprocessingOptions:
    """What is done to images; the defaults are those of `preprocess=True`."""

    max_frame: bool = False
    """Take the maximum of the last two frames, pixel by pixel: some games draw objects in every other
    frame only."""
    frame_skip: int = 4
    """Frames for which an action is repeated; the last one (or two) is seen. Rewards are summed."""
    frame_stack: int = 4
    """Frames of an observation `[height, width, channels * frame_stack]`, oldest first; black before an
    episode's first."""
    resize: Any = 84
    """Height and width, or one number for both, by averaging over areas; None: as they are."""
    gray: bool = True
    """Whether colours become grey levels."""
    noop_max: int = 30
    """An Atari game begins with a random number of frames without action, fewer than this."""
    fire_reset: bool = True
    """Press FIRE at the start of an Atari game that has it: some wait for it."""
    preprocess: bool = True
    """Whether it is a game, whose rewards are clipped and whose lives are episodes in training."""

    def __post_init__(self) -> None:
        for name, low in (("frame_skip", 1), ("frame_stack", 1), ("noop_max", 0)):
            object.__setattr__(self, name, whole(name, getattr(self, name), low))
        if self.resize is not None:
            size = self.resize if isinstance(self.resize, list | tuple) else (self.resize,)
            if len(size) not in (1, 2):
                raise value_error("resize", "a height and a width, or one number for both", self.resize)
            size = tuple(whole("resize", number) for number in size)
            object.__setattr__(self, "resize", size * 2 if len(size) == 1 else size)


_PLAIN = PreprocessingOptions(
    frame_skip=1, frame_stack=1, resize=None, gray=False, noop_max=0, fire_reset=False, preprocess=False
)
_NAMES = tuple(field.name for field in dataclasses.fields(PreprocessingOptions))


def taken(arguments: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Move what `asked` lacks of the options from the arguments of an id, if it is preprocessed, to it.

    Without `preprocess` only that and `max_frame` are no arguments of the environment's own.
    """
    names = _NAMES if {**arguments, **asked}.get("preprocess") else ("preprocess", "max_frame")
    return {**{name: arguments.pop(name) for name in names if name in arguments}, **asked}


def read(asked: Mapping[str, Any], name: str) -> PreprocessingOptions | None:
    """Return what options by name stand for, None if for nothing; SpecError: they do not fit together."""
    preprocess = asked.get("preprocess", False)
    if not isinstance(preprocess, bool):
        raise value_error("preprocess", "True or False", preprocess)
    if asked.get("max_frame") and not preprocess:
        raise SpecError(
            f"max_frame is a part of preprocessing. Received: max_frame={asked['max_frame']!r} without "
            f"preprocess, for {name!r}. Add preprocess=True."
        )
    if not preprocess and not asked.keys() - {"preprocess", "max_frame"}:
        return None
    return dataclasses.replace(PreprocessingOptions() if preprocess else _PLAIN, **asked)


def refusal(name: str, shape: Any) -> SpecError:
    """Return the error of an environment that shows no images."""
    return SpecError(
        f"Cannot use --preprocess for non-atari environment {name}, with input shape {shape}. It is for "
        "images (height, width, 3 or 1). Leave --preprocess out; in a program, give preprocess=False."
    )


def images_in(space: gymnasium.Space[Any]) -> dict[str, gymnasium.spaces.Box]:
    """Return the spaces of the images in a space, by key if it is a Dict; that of an image itself by ''."""
    parts = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {"": space}
    return {
        key: part for key, part in parts.items() if isinstance(part, gymnasium.spaces.Box) and _is_image(part)
    }


class _ImageStack:
    """The frames of one image in an observation."""

    def __init__(self, space: gymnasium.spaces.Box, settings: PreprocessingOptions) -> None:
        height, width = settings.resize or space.shape[:2]
        self.channels = 3 if space.shape[2:] == (3,) and not settings.gray else 1
        shape = (height, width, self.channels * settings.frame_stack)
        self.space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        axes = 2 if self.channels == 1 else 3
        self._averages = [
            _Averages(count, size, axis, axes)
            for axis, (count, size) in enumerate(zip(space.shape[:2], (height, width), strict=True))
            if settings.resize
        ]
        self._frames = np.zeros(shape, np.uint8)

    def clear(self) -> None:
        """Begin with black frames."""
        self._frames = np.zeros_like(self._frames)

    def seen(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Add the maximum of some images to the frames; return them."""
        image = (images[0] if len(images) == 1 else np.maximum(*images)).astype(np.float32)
        if image.ndim == 3 and self.channels == 1:
            image = np.rint(image @ GREY) if image.shape[-1] == 3 else image[..., 0]
        for average in self._averages:
            image = average(image)
        frame = np.rint(image).astype(np.uint8).reshape(*image.shape[:2], self.channels)
        self._frames = np.concatenate([self._frames[..., self.channels :], frame], axis=-1)
        return self._frames


class PreprocessingWrapper(gymnasium.Wrapper):
    """An environment that shows images, Atari's or other, preprocessed: uint8 `[height, width, channels *
    frame_stack]`.

    Rewards are summed over the frames of a step, and not clipped; a lost life does not end the episode. An
    environment that skips frames itself is not made to skip more.

    Args:
        env: its observations are uint8 `[height, width]`, `[height, width, 1]` or `[height, width, 3]`; or
            (without `preprocess`) a Dict with such entries.
        settings: what to do.

    Raises:
        SpecError: it shows no images, or skips frames of which `max_frame` would need the last two.
    """

    def __init__(self, env: gymnasium.Env, settings: PreprocessingOptions) -> None:
        super().__init__(env)
        name = env.spec.id if env.spec else type(env.unwrapped).__name__
        space, inner = env.observation_space, env.unwrapped
        images = images_in(space)
        if settings.preprocess and "" not in images:
            shape = space.shape or {key: part.shape for key, part in getattr(space, "spaces", {}).items()}
            error = refusal(name, shape)
            take = "--resize 84, --gray, --frame-stack 4 and --frame-skip 4 (resize=84, gray=True, ...)"
            raise SpecError(f"{error} Its images take {take}.") if images else error
        if not images and (settings.resize or settings.gray or settings.frame_stack > 1):
            raise SpecError(
                "resize, gray and frame_stack are for images: uint8 (height, width, 3 or 1), also in a Dict. "
                f"{name} shows {space}. Leave them out."
            )
        skips = getattr(inner, "_frameskip", 1) != 1
        if skips and settings.max_frame:
            raise SpecError(
                f"{name!r} skips frames itself, so max_frame cannot see the last two. Make it with "
                "frameskip=1, or give its id."
            )
        self.settings = dataclasses.replace(settings, frame_skip=1) if skips else settings
        self._images = {key: _ImageStack(part, settings) for key, part in images.items()}
        spaces = {key: image.space for key, image in self._images.items()}
        others = [part.shape for key, part in getattr(space, "spaces", {}).items() if key not in spaces]
        grey = all(image.channels == 1 for image in self._images.values())
        # A replay memory takes every Box whose last axis is that long for a stack.
        alone = not any(shape and len(shape) > 1 and shape[-1] == settings.frame_stack for shape in others)
        self.stacked_frames = settings.frame_stack if grey and alone and images else 1
        if "" in spaces:
            self.observation_space = spaces[""]
        elif images:
            self.observation_space = gymnasium.spaces.Dict({**space.spaces, **spaces})
        meanings: list[str] = getattr(inner, "get_action_meanings", list)()
        self._noops = settings.noop_max if meanings[:1] == ["NOOP"] else 0
        self._fires = settings.fire_reset and "FIRE" in meanings
        self.resume = resuming(inner, meanings) if self._fires else resuming(inner, [])

    @property
    def spec(self) -> GymnasiumSpec | None:
        """The environment's spec, with the time limit in steps of `frame_skip` frames."""
        spec = self.env.spec
        if spec is None:
            return None
        limit, skipped = spec.max_episode_steps, 1
        if limit is None:  # ALE counts frames, of which it may skip some itself
            limit, skipped = spec.kwargs.get("max_num_frames_per_episode"), spec.kwargs.get("frameskip", 1)
        if not limit:
            return spec
        limit = math.ceil(limit / (self.settings.frame_skip * int(np.min(skipped))))
        return dataclasses.replace(spec, max_episode_steps=limit)

    @property
    def has_lives(self) -> bool:
        """Whether it is an Atari game."""
        return self.settings.preprocess and getattr(self.unwrapped, "ale", None) is not None

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
        for image in self._images.values():
            image.clear()
        return self._seen([frame]), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Repeat an action for `frame_skip` frames, or to the end of the episode."""
        total = 0.0
        frames: collections.deque[Any] = collections.deque(maxlen=2 if self.settings.max_frame else 1)
        for _ in range(self.settings.frame_skip):
            frame, reward, terminated, truncated, info = self.env.step(action)
            # A copy: an environment may draw into the same array again.
            frames.append(copy.deepcopy(frame) if self.settings.max_frame else frame)
            total += float(reward)
            if terminated or truncated:
                break
        return self._seen(frames), total, terminated, truncated, info

    def _seen(self, observations: Sequence[Any]) -> Any:
        last = observations[-1]
        if "" in self._images:
            return self._images[""].seen(observations)
        seen = {key: image.seen([each[key] for each in observations]) for key, image in self._images.items()}
        return {**last, **seen} if seen else last


def within(env: Any) -> PreprocessingWrapper | None:
    """Return the `PreprocessingWrapper` among an environment's wrappers, or None."""
    env = getattr(env, "gymnasium", env)  # of an `Environment` that shows it
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

    def __init__(self, count: int, size: int, axis: int, axes: int) -> None:
        edges = np.arange(size + 1) * (count / size)
        first = np.floor(edges[:-1]).astype(int)
        self._terms: list[tuple[np.ndarray, np.ndarray]] = []
        self._axis = axis
        for offset in range(math.ceil(count / size) + 1):
            pixel = first + offset
            covered = np.minimum(edges[1:], pixel + 1) - np.maximum(edges[:-1], pixel)
            weight = (np.maximum(covered, 0.0) * (size / count)).astype(np.float32)
            self._terms.append((np.minimum(pixel, count - 1), weight.reshape(-1, *[1] * (axes - axis - 1))))

    def __call__(self, image: np.ndarray) -> np.ndarray:
        return np.sum([image.take(at, self._axis) * weight for at, weight in self._terms], axis=0)


def resuming(env: Any, meanings: list[str]) -> Any:
    """Return the action that continues a waiting game: FIRE if it is among the meanings, else the no-op."""
    fire = "FIRE" in meanings
    if getattr(env, "continuous", False):
        return np.array([0.0, 0.0, float(fire)], np.float32)
    return meanings.index("FIRE") if fire else 0


def make(spec: GymnasiumSpec, arguments: Mapping[str, Any], settings: PreprocessingOptions) -> gymnasium.Env:
    """Make one environment of Gymnasium, preprocessed; without the registry's limit, like `adapter.make`."""
    env_arguments = dict(arguments)
    if spec.entry_point == adapter.ATARI:
        for name in sorted(env_arguments.keys() & {"frameskip", "obs_type"}) if settings.preprocess else ():
            remedy = " Give frame_skip." if name == "frameskip" else ""
            raise SpecError(
                f"A preprocessed Atari game takes no argument {name!r}: preprocessing sets it.{remedy}"
            )
        if settings.preprocess or settings.frame_skip > 1:
            env_arguments["frameskip"] = 1  # the id's skip would multiply with ours
        if settings.preprocess and settings.gray:
            env_arguments["obs_type"] = "grayscale"
    return PreprocessingWrapper(adapter.make(spec, env_arguments), settings)


def refuse_unknown(arguments: Mapping[str, Any], other_names: tuple[str, ...]) -> None:
    """Raise `SpecError` if an argument is neither a field of `PreprocessingOptions` nor one of `known`."""
    names = [*_NAMES, *other_names]
    for name in arguments:
        if name not in names:
            raise SpecError(f"A preprocessed environment takes no argument {name!r}.{suggest(name, names)}")
