"""Outputs for the frames of episodes (videos, pictures, a window), and environments that hand frames to them.

Gymnasium's `RecordVideo` is no substitute: it keeps all frames of an episode until its end (2.7 GB for 27,000
frames of Atari) and loses them if the process dies, overwrites what is there, wraps no vector, and needs
MoviePy, which holds Pillow back at version 11.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from operant.envs.gymnasium import adapter
from operant.envs.gymnasium.preprocessing import PreprocessingWrapper
from operant.envs.validated_env import ValidatedEnv
from operant.envs.vector.base import Flat, VectorEnv, VectorStep
from operant.errors import EnvError, SpecError, UsageError, as_folder, told


class Video:
    """Writes one mp4 file (H.264) for each episode to a folder."""

    def __init__(self, directory: str | Path, fps: float) -> None:
        self.directory = as_folder("video_dir", Path(directory).absolute())
        self.directory.mkdir(parents=True, exist_ok=True)
        self.fps = fps
        self.files: list[Path] = []
        self._writer: Any = None
        self._shape: tuple[int, ...] = ()

    def frame(self, picture: np.ndarray, number: int) -> None:
        """Write a frame, for a new episode to a new file; SpecError: it is of another size."""
        import imageio_ffmpeg

        if self._writer is None:
            self._shape = picture.shape
        elif picture.shape != self._shape:
            sizes = " and ".join(f"{shape[1]}x{shape[0]}" for shape in (self._shape, picture.shape))
            raise SpecError(
                f"The pictures of a video must be of one size. Received: {sizes} (frame {number}). "
                "Let render keep its size, or give frame_dir instead of video_dir."
            )
        # The codec takes even sizes only, and says nothing when it fails.
        picture = np.pad(picture, ((0, picture.shape[0] % 2), (0, picture.shape[1] % 2), (0, 0)), mode="edge")
        if self._writer is None:
            path = _free(self.directory, len(self.files), ".mp4")
            self.files.append(path)
            size = (picture.shape[1], picture.shape[0])
            self._writer = imageio_ffmpeg.write_frames(
                str(path), size, fps=self.fps, macro_block_size=1, quality=7, ffmpeg_log_level="error"
            )
            with warnings.catch_warnings():
                # It starts ffmpeg by a fork, about which JAX warns. The child runs no Python code between
                # fork and exec.
                warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
                self._writer.send(None)
        self._writer.send(np.ascontiguousarray(picture))

    def end(self) -> None:
        """Close the episode's file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Pictures:
    """Writes every n-th frame as ``00042.jpg`` to a folder; later episodes get folders ``episode-001`` in it.

    So do all episodes if earlier calls left frames there.
    """

    def __init__(self, directory: str | Path, frequency: int) -> None:
        self.directory = as_folder("frame_dir", Path(directory).absolute())
        self.frequency = frequency
        self.files: list[Path] = []
        self._episode = 0
        self._folder: Path | None = None

    def frame(self, picture: np.ndarray, number: int) -> None:
        """Write a frame, if its number is due."""
        from PIL import Image

        if number % self.frequency:
            return
        if self._folder is None:
            used = self._episode > 0 or next(self.directory.glob("[0-9]*.jpg"), None) is not None
            self._folder = _free(self.directory, max(1, self._episode)) if used else self.directory
        self._folder.mkdir(parents=True, exist_ok=True)
        self.files.append(self._folder / f"{number:05d}.jpg")
        Image.fromarray(picture).save(self.files[-1], quality=95)

    def end(self) -> None:
        """Count the episode."""
        self._episode += 1
        self._folder = None


class Window:
    """Shows frames in a window."""

    def __init__(self, title: str, delay: float) -> None:
        self.title = title
        self.delay = delay
        self.files: list[Path] = []
        self._screen: Any = None

    def frame(self, picture: np.ndarray, number: int) -> None:
        """Show a frame, for `delay` seconds at least."""
        import pygame

        size = (picture.shape[1], picture.shape[0])
        try:
            if self._screen is None and pygame.display.get_init() and pygame.display.get_driver() == "dummy":
                pygame.display.quit()  # of `unseen`
            if self._screen is None or self._screen.get_size() != size:
                pygame.display.init()
                self._screen = pygame.display.set_mode(size)
                pygame.display.set_caption(self.title)
        except pygame.error as error:
            raise UsageError(
                f"render needs a display: {error}. Use video_dir or frame_dir, or set SDL_VIDEODRIVER=dummy."
            ) from None
        self._screen.blit(pygame.surfarray.make_surface(picture.swapaxes(0, 1)), (0, 0))
        pygame.display.flip()
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            raise KeyboardInterrupt
        time.sleep(self.delay)

    def end(self) -> None:
        """Leave the last frame standing."""


Output: TypeAlias = Video | Pictures | Window
"""What takes the frames of episodes, uint8 `[height, width, 3]`, and has the `files` that it wrote."""


@contextlib.contextmanager
def unseen(window: bool = False) -> Iterator[None]:
    """Keep SDL from looking for a sound device and, without a window, for a display: it complains at length.

    Pygame's greeting is none of operant's messages either.
    """
    quiet = {"SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    missing = [name for name in (*quiet, *([] if window else ["SDL_VIDEODRIVER"])) if name not in os.environ]
    os.environ.update({name: quiet.get(name, "dummy") for name in missing})
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


NEEDED = {
    **dict.fromkeys(("video_dir", "visualize_directory"), ("imageio_ffmpeg", "video")),
    "frame_dir": ("PIL", "video"),
    "render": ("pygame", "classic"),
}
"""Packages that outputs need, by option, and the extras that install them."""
PYGAME = ("gymnasium.envs.classic_control", "gymnasium.envs.toy_text")
"""Modules of environments that need Pygame to be drawn, but not to be trained in."""


def require(outputs: Sequence[str], env: Any = None) -> None:
    """Refuse (SpecError) outputs, by option, or drawing an environment, if packages are missing: name all.

    `env` is an environment, or an id.
    """
    spec = gymnasium.registry.get(env) if isinstance(env, str) else None
    module = type(getattr(env, "unwrapped", env)).__module__ if spec is None else str(spec.entry_point)
    needed = [NEEDED[name] for name in outputs]
    if module.startswith(PYGAME):
        needed.append(NEEDED["render"])
    if spec is not None and (own := adapter.needed(spec)) is not None:
        needed.append(own)
    missing = dict.fromkeys(need for need in needed if importlib.util.find_spec(need[0]) is None)
    if missing:
        packages, extras = " and ".join(package for package, _ in missing), ",".join(x for _, x in missing)
        them = "them" if len(missing) > 1 else "it"
        raise SpecError(
            f"{' and '.join(outputs)} needs {packages}. Install {them}: pip install 'operant[{extras}]'."
        )


def _free(directory: Path, number: int, suffix: str = "") -> Path:
    numbers = iter(range(number, 10**6))
    return next(path for i in numbers if not (path := directory / f"episode-{i:03d}{suffix}").exists())


class RenderVectorEnv(VectorEnv):
    """A vector, made here with ``render_mode='rgb_array'``, that hands frames to outputs (or SpecError)."""

    def __init__(self, env: VectorEnv, outputs: Sequence[Output]) -> None:
        self.num_envs, self.spaces, self.name, self.mode = 1, env.spaces, env.name, env.mode
        self.max_episode_timesteps = env.max_episode_timesteps
        self._env = env
        self._outputs = outputs
        self._picture = _renderer(env)
        self._number, self._ended = 0, False

    def reset(self, seed: int | None = None) -> Flat:
        """Begin an episode and show its first frame."""
        observation = self._env.reset(seed)
        self._show()
        return observation

    def step(self, actions: Mapping[str, np.ndarray]) -> VectorStep:
        """Take an action and show what followed; the row after an episode's last one begins another."""
        after = self._env.step(actions)
        self._number = 0 if self._ended else self._number + 1
        self._show()
        self._ended = bool(after.terminated[0] | after.truncated[0])
        if self._ended:
            self._end()
        return after

    def close(self) -> None:
        """Finish what is open."""
        self._end()
        self._env.close()

    def _end(self) -> None:
        for output in self._outputs:
            output.end()

    def _show(self) -> None:
        picture = _picture_of(self._picture(), self.name)
        for output in self._outputs:
            output.frame(picture, self._number)


class RenderWrapper(gymnasium.Wrapper):
    """A Gymnasium environment, made with ``render_mode='rgb_array'``, that hands frames to an output."""

    def __init__(self, env: Any, output: Output) -> None:
        super().__init__(env)
        _follow(env)
        self._output = output
        self._number = 0

    def reset(self, **arguments: Any) -> Any:
        """Begin an episode and show its first frame; one that was cut is finished first."""
        self._output.end()
        answer = self.env.reset(**arguments)
        self._number = 0
        self._show()
        return answer

    def step(self, action: Any) -> Any:
        """Take a step and show what followed."""
        answer = self.env.step(action)
        self._number += 1
        self._show()
        return answer

    def close(self) -> None:
        """Finish what is open."""
        self._output.end()
        super().close()

    def _show(self) -> None:
        picture = _picture_of(_drawn(self.env), type(self.env.unwrapped).__name__)
        self._output.frame(picture, self._number)


def filmed(environment: Any, directory: str | Path, max_episode_timesteps: int | None = None) -> ValidatedEnv:
    """Make an environment of Gymnasium that writes videos of episodes to a folder; SpecError: it cannot."""
    from operant.envs.catalog import resolve

    arguments = {"render_mode": "rgb_array"}
    source = resolve(environment, max_episode_timesteps=max_episode_timesteps, arguments=arguments)
    env = None if source.is_native else source.make()
    if not isinstance(env, gymnasium.Env):
        raise SpecError(f"{source.name!r} cannot be filmed: it is no Gymnasium environment.")
    require(["visualize_directory"], env)
    return source.create(RenderWrapper(env, Video(directory, frame_rate(env))))


def frame_rate(env: Any) -> float:
    """Return the steps per second at which an environment runs at its own speed; 30 if it does not say.

    That is the rate of its frames by as many as a step skips. Atari's machine shows 60 frames a second,
    though the environments of ALE say 30 whatever they skip.
    """
    rate = float(getattr(env, "metadata", {}).get("render_fps") or 30)
    game = getattr(env, "unwrapped", env)
    if hasattr(game, "ale"):
        own = game._frameskip
        rate = 60 / (own if isinstance(own, int) else float(np.mean(range(*own))))
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, PreprocessingWrapper):
            rate /= env.settings.frame_skip
        elif isinstance(env, gymnasium.wrappers.MaxAndSkipObservation):
            rate /= env._skip
        elif isinstance(env, gymnasium.wrappers.AtariPreprocessing):
            rate /= env.frame_skip
        env = env.env
    return rate


def _renderer(env: VectorEnv) -> Callable[[], Any]:
    drawn = inner(env)
    if not hasattr(drawn, "render"):
        raise SpecError(f"{env.name!r} cannot be rendered: it is no Gymnasium environment.")
    _follow(drawn)
    return lambda: _drawn(drawn)


def _mujoco(env: Any) -> Any:
    return getattr(getattr(env, "unwrapped", env), "mujoco_renderer", None)


def _follow(env: Any) -> None:
    """Use the camera of a MuJoCo model that follows the body, unless another view was chosen.

    From 1.4 on, Gymnasium's own camera stays where the episode begins.
    """
    renderer = _mujoco(env)
    arguments = getattr(getattr(env, "spec", None), "kwargs", {})
    if renderer is None or arguments.keys() & {"camera_id", "camera_name", "default_camera_config"}:
        return
    import mujoco

    # -1, Gymnasium's own, if the model has no such camera.
    renderer.camera_id = mujoco.mj_name2id(renderer.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")


def _drawn(env: Any) -> Any:
    """Return a frame. MuJoCo looks for a display unless it is told that there is none."""
    try:
        return env.render()
    except Exception as error:
        if _mujoco(env) is None:
            name = type(getattr(env, "unwrapped", env)).__name__
            raise EnvError(f"{name!r} {told(error, 'in render')}") from error
        raise UsageError(
            f"The environment cannot be drawn: {error}. Without a display, set the environment variable "
            "MUJOCO_GL=egl."
        ) from error


def _picture_of(frame: Any, name: str) -> np.ndarray:
    """Return what `render` gave as a picture, uint8 `[height, width, 3]`; SpecError: it is none."""
    if isinstance(frame, np.ndarray):
        if frame.ndim == 3 and frame.shape[-1] in (3, 4) and frame.dtype == np.uint8:
            return frame[..., :3]
        received = f"an array of shape {frame.shape} and dtype {frame.dtype}"
        remedy = "render must return colours, uint8 (height, width, 3)."
    else:
        received, remedy = type(frame).__name__, "Make it with render_mode='rgb_array'."
    raise SpecError(f"{name!r} gives no pictures to render. Received: {received}. {remedy}")


def inner(env: VectorEnv) -> Any:
    """Return the first environment of a vector; None if it has none in this process."""
    return getattr(getattr(env, "envs", [None])[0], "env", None)
