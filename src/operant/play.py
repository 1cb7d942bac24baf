"""Watch a trained policy play: statistics over episodes, a window, videos, pictures."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from operant.errors import SpecError, UsageError, suggest
from operant.spec import Config, option

if TYPE_CHECKING:
    from operant.agents.learner import Learner, Train
    from operant.envs.vector import VectorEnv


class PlayConfig(Config):
    """Options of `operant play`."""

    env: str = option("", "Environment id (default: the run's)")
    run_dir: str | None = option(None, "Folder of a run, or of a saved agent, whose policy plays")
    weights: tuple[str, ...] = option((), "Path(s) to model(s) weight(s) to be loaded by agent output_models")
    episodes: int = option(1, "Episodes to play", low=1)
    max_steps: int | None = option(None, "Environment steps after which playing ends", low=1)
    max_episode_timesteps: int | None = option(
        None, "Time limit of an episode, if shorter than the environment's own", low=1
    )
    seed: int = option(0, "Random seed", low=0, high=2**32 - 1)
    preprocess: bool = option(
        False, "If specified, states will be treated as atari frames\nand preprocessed accordingly"
    )
    max_frame: bool = option(False, "If specified, max & skip will be applied during preprocessing")
    action_idx: int = option(
        0, "Index of action output by agent.model: 0 the best, 1 one drawn from the policy", low=0, high=1
    )
    render: bool = option(False, "If specified, the gameplay will be rendered")
    video_dir: str | None = option(
        None, "Path to directory to save the resulting gameplay video (one mp4 an episode)"
    )
    frame_dir: str | None = option(None, "Path to directory to save game frames (jpg)")
    frame_delay: float = option(0.0, "Delay between rendered frames", unit="seconds", low=0.0)
    frame_frequency: int = option(1, "If --frame-dir is specified, save frames every n frames.", low=1)
    quiet: bool = option(False, "If specified, nothing is printed")

    @property
    def watched(self) -> bool:
        """Whether pictures are needed."""
        return self.render or self.video_dir is not None or self.frame_dir is not None


class Played(NamedTuple):
    """What playing showed."""

    rewards: list[float]
    """Return of each whole episode."""
    lengths: list[int]
    """Environment steps of each."""
    files: list[Path]
    """Videos and pictures that were written, in order."""

    def __str__(self) -> str:
        if not self.rewards:
            return "No episode ended."
        mean, std = np.mean(self.rewards), np.std(self.rewards)
        if len(self.rewards) == 1:
            return f"Total reward: {self.rewards[0]:g}"
        length = np.mean(self.lengths)
        return f"{len(self.rewards)} episodes: mean reward {mean:.2f} (standard deviation {std:.2f}), mean length {length:.1f}"


class Output(Protocol):
    """What takes the frames of episodes."""

    def frame(self, picture: np.ndarray, number: int) -> None:
        """Take frame `number` of the episode, uint8 `[height, width, 3]`."""

    def end(self) -> None:
        """Finish an episode."""


class Video:
    """Writes one mp4 file (H.264) for each episode."""

    def __init__(self, directory: str | Path, fps: float) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.fps = fps
        self.files: list[Path] = []
        self._writer: Any = None
        _needs("imageio_ffmpeg", "video_dir", "video")

    def frame(self, picture: np.ndarray, number: int) -> None:
        """Write a frame; a new episode opens a new file."""
        import imageio_ffmpeg

        # The codec takes even sizes only, and says nothing when it fails.
        picture = np.pad(picture, ((0, picture.shape[0] % 2), (0, picture.shape[1] % 2), (0, 0)), mode="edge")
        if self._writer is None:
            path = _free(self.directory, len(self.files), "mp4")
            self.files.append(path)
            size = (picture.shape[1], picture.shape[0])
            self._writer = imageio_ffmpeg.write_frames(
                str(path), size, fps=self.fps, macro_block_size=1, quality=7, ffmpeg_log_level="error"
            )
            with warnings.catch_warnings():
                # It starts ffmpeg by a fork, of which JAX warns. The child runs no Python code between fork and exec.
                warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
                self._writer.send(None)
        self._writer.send(np.ascontiguousarray(picture))

    def end(self) -> None:
        """Close the episode's file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Pictures:
    """Writes every n-th frame as ``00042.jpg``, episodes after the first into folders of their own."""

    def __init__(self, directory: str | Path, frequency: int) -> None:
        self.directory = Path(directory)
        self.frequency = frequency
        self.files: list[Path] = []
        self._episode = 0
        _needs("PIL", "frame_dir", "video")

    def frame(self, picture: np.ndarray, number: int) -> None:
        """Write a frame, if it is its turn."""
        from PIL import Image

        if number % self.frequency:
            return
        folder = self.directory if self._episode == 0 else self.directory / f"episode-{self._episode:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        self.files.append(folder / f"{number:05d}.jpg")
        Image.fromarray(picture).save(self.files[-1], quality=95)

    def end(self) -> None:
        """Count the episode."""
        self._episode += 1


class Window:
    """Shows frames in a window."""

    def __init__(self, title: str, delay: float) -> None:
        self.title = title
        self.delay = delay
        self._screen: Any = None
        _needs("pygame", "render", "classic")

    def frame(self, picture: np.ndarray, number: int) -> None:
        """Show a frame, for `delay` seconds at least."""
        import pygame

        size = (picture.shape[1], picture.shape[0])
        try:
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


def _needs(module: str, name: str, extra: str) -> None:
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise SpecError(f"{name} needs the package {module}. Install it: pip install 'operant[{extra}]'.")


def _free(directory: Path, number: int, suffix: str) -> Path:
    """Return a name that no earlier call has used."""
    numbers = iter(range(number, 10**6))
    return next(path for i in numbers if not (path := directory / f"episode-{i:03d}.{suffix}").exists())


def _watch(env: VectorEnv, outputs: list[Output], picture: Callable[[], Any], name: str) -> VectorEnv:
    """Return the vector (of one environment) with every frame handed to the outputs."""
    from operant.envs.vector import Flat, Step, VectorEnv

    class Watched(VectorEnv):
        """Counts frames; the row after an episode's last one begins another."""

        number, ended = 0, False

        def __init__(self) -> None:
            self.num_envs, self.spaces, self.name, self.mode = 1, env.spaces, env.name, env.mode

        def reset(self, seed: int | None = None) -> Flat:
            observation = env.reset(seed)
            self._show()
            return observation

        def step(self, actions: Mapping[str, np.ndarray]) -> Step:
            after = env.step(actions)
            self.number = 0 if self.ended else self.number + 1
            self._show()
            self.ended = bool(after.terminated[0] | after.truncated[0])
            if self.ended:
                for output in outputs:
                    output.end()
            return after

        def close(self) -> None:
            for output in outputs:
                output.end()
            env.close()

        def _show(self) -> None:
            frame = picture()
            if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.dtype != np.uint8:
                raise SpecError(f"{name!r} gives no pictures to render. Received: {type(frame).__name__}.")
            for output in outputs:
                output.frame(frame[..., :3], self.number)

    return Watched()


def watched(env: VectorEnv, config: PlayConfig, files: list[Path]) -> VectorEnv:
    """Return a vector of one Gymnasium environment that shows itself as the options ask.

    Args:
        env: made with ``render_mode='rgb_array'``.
        config: what to do with the frames.
        files: takes the paths of what was written, when the vector is closed.

    Raises:
        SpecError: the environment cannot be rendered, or a package is missing.
    """
    inner = getattr(getattr(env, "cells", [None])[0], "env", None)
    if inner is None or not hasattr(inner, "render"):
        raise SpecError(f"{env.name!r} cannot be rendered: it is no Gymnasium environment.")
    fps = float(getattr(inner, "metadata", {}).get("render_fps") or 30)
    outputs: list[Output] = []
    if config.video_dir is not None:
        outputs.append(Video(config.video_dir, fps))
    if config.frame_dir is not None:
        outputs.append(Pictures(config.frame_dir, config.frame_frequency))
    if config.render:
        outputs.append(Window(env.name, config.frame_delay))
    shown = _watch(env, outputs, inner.render, env.name)
    close = shown.close

    def finish() -> None:
        close()
        for output in outputs:
            files.extend(getattr(output, "files", []))

    shown.close = finish  # type: ignore[method-assign]
    return shown


def run(learner: Learner, train: Train, env: VectorEnv, config: PlayConfig) -> Played:
    """Play episodes on a vector of one environment, which is closed in the end."""
    from operant.execution.evaluate import evaluate

    files: list[Path] = []
    try:
        shown = watched(env, config, files) if config.watched else env
    except BaseException:
        env.close()
        raise
    with shown:
        finished = evaluate(
            learner,
            train,
            shown,
            config.episodes,
            seed=config.seed,
            explore=config.action_idx == 1,
            max_steps=config.max_steps,
        )
    return Played([e.reward for e in finished], [e.length for e in finished], files)


def play(config: PlayConfig, agent: Any = None, **options: Any) -> Played:
    """Play with the policy of a run, of a saved agent, or of files of weights.

    Args:
        config: what to play, and how to show it.
        agent: specification of the agent, where it is not that of the run.
        options: hyperparameters beside it (the networks must be those that were trained).

    Raises:
        OperantError: what is asked for is not there, or does not fit.
    """
    from operant.agents.learner import Learner
    from operant.agents.making import define

    saved = _saved(config)
    if saved is None and agent is None:
        raise SpecError(
            "play needs an agent or run_dir: `operant play <agent> --env ...` or `operant play RUN`."
        )
    if agent is None:
        agent = saved["agent"] if saved else None
    definition = define(agent, **options)
    env = environment(config)
    try:
        actors = saved["parallel_interactions"] if saved else 1
        learner = Learner(definition.cls.create(definition.config, env.spaces, actors))
        train = _train(learner, config)
    except BaseException:
        env.close()
        raise
    return run(learner, train, env, config)


def _saved(config: PlayConfig) -> dict[str, Any] | None:
    """Return the specification of the agent that was saved in `run_dir`."""
    if config.run_dir is None:
        return None
    from operant import checkpoint

    specification: dict[str, Any] = checkpoint.read_header(_newest(config.run_dir))["specification"]
    return specification


def _newest(directory: str) -> Path:
    from operant import checkpoint

    for place in (Path(directory) / "checkpoints", Path(directory)):
        found = checkpoint.latest(place) if place.is_dir() else None
        if found is not None:
            return found
    raise SpecError(f"There is no checkpoint in run_dir={directory!r}.")


def _train(learner: Learner, config: PlayConfig) -> Train:
    """Make the state that acting needs: no replay memory is read or made."""
    import jax

    from operant import checkpoint
    from operant.agents.learner import Train
    from operant.session import load_weights

    key, hyper = jax.random.key(config.seed), learner.hyper()
    shapes = jax.eval_shape(learner.init, key, hyper)
    if config.run_dir is not None:
        path = _newest(config.run_dir)
        parts = {
            name: checkpoint.load_part(path, "train", getattr(shapes, name), name)
            for name in ("state", "hyper", "counters")
        }
        train = Train(memory=(), key=key, **parts)
    else:
        train = jax.jit(lambda key: learner.init(key, hyper)._replace(memory=()))(key)
    if config.weights:
        state = load_weights(learner.algorithm, train.state, config.weights)
        train = train._replace(state=state)
    return train


def environment(config: PlayConfig) -> VectorEnv:
    """Make the one environment, one that gives pictures where they are asked for."""
    from operant.envs import table, vector

    name, told = config.env, {"preprocess": config.preprocess, "max_frame": config.max_frame}
    file = Path(config.run_dir or "") / "run.json"
    if config.run_dir is not None and file.is_file():
        from operant.spec import read_json

        saved = read_json(file, "run")["run"]
        name = name or saved["env"]
        if name == saved["env"]:
            told = {key: value or bool(saved.get(key, False)) for key, value in told.items()}
    if not name:
        raise SpecError("env must be given: an environment id such as CartPole-v1.")
    if config.watched and table.is_native(name):
        name = _counterpart(name)
    arguments: dict[str, Any] = {key: True for key, value in told.items() if value}
    if config.watched:
        arguments["render_mode"] = "rgb_array"
    mode: Any = "in-process" if config.watched else "auto"
    limit = config.max_episode_timesteps
    return vector.create(name, 1, mode=mode, max_episode_timesteps=limit, **arguments)


def _counterpart(name: str) -> str:
    """Return Gymnasium's environment that a JAX-native one equals: it has pictures."""
    import gymnasium

    bare = name.rpartition(":")[2]
    if bare not in gymnasium.registry:
        known = [env for env in gymnasium.registry if "/" not in env]
        raise SpecError(
            f"{name!r} cannot be rendered, and Gymnasium has no {bare!r}.{suggest(bare, known)} Give env= one that can."
        )
    return bare
