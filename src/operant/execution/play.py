"""Play episodes with a trained policy: statistics, a window, videos, pictures."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from operant.errors import SpaceError, SpecError, as_folder, quoted, shown, suggest
from operant.spec import Config, checked, data_only, option, plain, refuse_places
from operant.spec.random_streams import Purpose, derived_seed
from operant.spec.run import ENVIRONMENTS, IMAGES, argument_faults, images
from operant.spec.spaces import Spaces
from operant.tracking.runs import read_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from operant.agents.base.learner import Learner, TrainState
    from operant.checkpoint import Checkpoint
    from operant.envs.vector.base import VectorEnv
    from operant.execution.render import Output
    from operant.training.episodes import EpisodeResult


class PlayConfig(Config):
    """Options of `operant play`."""

    env: str = option("", "Environment id (default: the run's)")
    env_kwargs: dict[str, Any] | None = option(
        None, f"{ENVIRONMENTS}\n(default: the run's, of which these replace those of the same name)"
    )
    run_dir: str | None = option(None, "Folder of a run or of a saved agent, whose policy plays")
    best: bool = option(
        False, "With a run: the policy of its best evaluation (--eval-frequency) instead of the newest"
    )
    policy: str | None = option(None, "Exported policy (.onnx or .stablehlo file) that plays")
    weights: tuple[str, ...] = option((), "Weights that play: files, one for each model")
    episodes: int = option(1, "Episodes to play", low=1)
    max_steps: int | None = option(None, "Environment steps after which to stop", low=1)
    max_episode_timesteps: int | None = option(
        None, "Time limit of an episode, if shorter than the environment's own", low=1
    )
    seed: int = option(
        0, "Random seed (the episodes are not those of training with this seed)", low=0, high=2**32 - 1
    )
    preprocess: bool = option(False, "Preprocess frames as usual for Atari, as in training")
    max_frame: bool = option(False, "With preprocess: take the maximum of the last two frames of every four")
    resize: int | tuple[int, ...] | None = option(None, "Height and width of images, or one number for both")
    gray: bool = option(False, "Make images gray")
    frame_stack: int | None = option(None, "Number of successive images in an observation", low=1)
    frame_skip: int | None = option(None, "Number of frames for which each action is repeated", low=1)
    action_idx: int = option(0, "Actions: 0 the best, 1 drawn from the policy", low=0, high=1)
    render: bool = option(False, "Show the environment in a window")
    video_dir: str | None = option(None, "Folder for videos, one mp4 file for each episode")
    frame_dir: str | None = option(None, "Folder for frames (jpg)")
    frame_delay: float = option(0.0, "Pause between rendered frames", unit="seconds", low=0.0)
    frame_frequency: int = option(1, "With --frame-dir: write every n-th frame", low=1)
    quiet: bool = option(False, "Print nothing")

    def check(self) -> Iterator[str]:
        """Refuse options that contradict one another, and folders that cannot be made."""
        yield from argument_faults(self.env_kwargs)
        for name in ("video_dir", "frame_dir"):
            try:
                as_folder(name, getattr(self, name) or ".")
            except SpecError as fault:
                yield str(fault)
        if self.best and self.run_dir is None:
            yield (
                "best is for a run's folder. Received: best=True without run_dir. Give the folder: "
                "operant play RUN --best."
            )
        if self.policy is None:
            return
        if self.run_dir is not None or self.weights:
            yield "policy, run_dir and weights all say what plays. Give one of them."
        if self.action_idx == 1:
            yield "An exported policy takes its best actions only. Received: action_idx=1. Leave it out."

    @property
    def outputs(self) -> list[str]:
        """Which options ask for pictures."""
        return [name for name in ("video_dir", "frame_dir", "render") if getattr(self, name)]

    @property
    def watched(self) -> bool:
        """Whether pictures are needed."""
        return bool(self.outputs)

    def located(self) -> PlayConfig:
        """Return the options with absolute paths: an environment may change the working directory."""
        folders = {name: getattr(self, name) for name in ("video_dir", "frame_dir")}
        folders = {name: str(Path(path).absolute()) for name, path in folders.items() if path is not None}
        weights = tuple(path and str(Path(path).absolute()) for path in self.weights)
        return self.replace(**folders, weights=weights)


class PlayResult(NamedTuple):
    """The results of playing."""

    rewards: list[float]
    """Return of each whole episode."""
    lengths: list[int]
    """Environment steps of each."""
    files: list[Path]
    """Videos and pictures that were written, in order; absolute paths."""

    @property
    def mean(self) -> float:
        """Mean of the returns; NaN if no episode ended."""
        return float(np.mean(self.rewards)) if self.rewards else math.nan

    @property
    def std(self) -> float:
        """Standard deviation of the returns; NaN if no episode ended."""
        return float(np.std(self.rewards)) if self.rewards else math.nan

    def __str__(self) -> str:
        if not self.rewards:
            return "No episode ended."
        if len(self.rewards) == 1:
            return f"Total reward: {self.rewards[0]:g}"
        length = np.mean(self.lengths)
        return (
            f"{len(self.rewards)} episodes: mean return {self.mean:.2f} (standard deviation {self.std:.2f}), "
            f"mean length {length:.1f}"
        )


def run(
    learner: Learner,
    train: TrainState,
    env: VectorEnv,
    config: PlayConfig,
    call: int = 0,
    *,
    leave_open: bool = False,
) -> PlayResult:
    """Play episodes on a vector of one, closed afterwards unless `leave_open`; each `call` plays others."""
    from operant.training.evaluate import Evaluator

    return _rendered(
        lambda env: Evaluator(learner, env).run(
            train,
            config.episodes,
            seed=derived_seed(config.seed, Purpose.PLAY, call),
            explore=config.action_idx == 1,
            max_steps=config.max_steps,
        ),
        env,
        config,
        leave_open,
    )


def _rendered(
    play: Callable[[VectorEnv], list[EpisodeResult]],
    env: VectorEnv,
    config: PlayConfig,
    leave_open: bool = False,
) -> PlayResult:
    from operant.execution.render import RenderVectorEnv, unseen

    outputs: list[Output] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(unseen(config.render))
        if not leave_open:
            stack.callback(env.close)
        if config.watched:
            outputs = _outputs(env, config)
            for output in outputs:
                stack.callback(output.end)
        episodes = play(RenderVectorEnv(env, outputs) if outputs else env)
    files = [path for output in outputs for path in output.files]
    return PlayResult([e.reward for e in episodes], [e.length for e in episodes], files)


def _outputs(env: VectorEnv, config: PlayConfig) -> list[Output]:
    from operant.execution.render import Pictures, Video, Window, frame_rate, inner, require

    require(config.outputs, inner(env))
    outputs: list[Output] = []
    if config.video_dir is not None:
        outputs.append(Video(config.video_dir, frame_rate(inner(env))))
    if config.frame_dir is not None:
        outputs.append(Pictures(config.frame_dir, config.frame_frequency))
    if config.render:
        outputs.append(Window(env.name, config.frame_delay))
    return outputs


def play(config: PlayConfig, agent: Any = None, **options: Any) -> PlayResult:
    """Play with the policy of a run, of a saved agent, or of files of weights.

    Args:
        config: what to play, and how to show it.
        agent: specification of the agent, if it is not that of the run.
        options: hyperparameters beside it (the networks must be those that were trained).

    Raises:
        OperantError: what is asked for is not there, or does not fit.
    """
    config = config.located()
    if config.policy is None:
        return run(*prepared(config, agent, options)[:3], config)
    if agent is not None or options:
        raise SpecError("An exported policy plays without an agent. Leave the agent and its options out.")
    return _play_exported(config, config.policy)


def prepared(
    config: PlayConfig, agent: Any = None, options: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Learner, TrainState, VectorEnv, Any]:
    """Return the learner that plays, its state, the environment and what the file says of the agent."""
    from operant.agents.base.agent_spec import from_file, parse_agent, parse_saved_agent
    from operant.agents.base.learner import Learner
    from operant.checkpoint import weight_files
    from operant.spec import runtime
    from operant.training.session import fitting

    runtime.prepare()
    runtime.devices()  # says what is wrong with them, if anything is
    newest = None if config.run_dir is None else _newest(config.run_dir, config.best)
    saved: Mapping[str, Any] | None = None
    if isinstance(newest, Path):  # weights alone
        saved = _specification(weight_files.header(newest), newest)
        what = f"The weights {shown(newest)!r}"
        config, newest = config.replace(weights=config.weights or (str(newest),)), None
    elif newest is not None:
        saved = _specification(newest.header.get("specification"), newest.path)
        what = f"The checkpoint {shown(newest.path)!r}"
    if saved is None and agent is None:
        raise SpecError(
            "play needs an agent or run_dir: `operant play <agent> --env ...` or `operant play RUN`."
        )
    guard: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if saved is not None and (agent is None or not options):
        agent = parse_saved_agent(saved["agent"], what, None if agent is None else parse_agent(agent))
        guard = from_file(what)
    definition = parse_agent(agent, **options)
    if newest is None:  # else the networks are those of the checkpoint
        definition = fitting(definition, config.weights)
    env = environment(config)
    try:
        definition = definition.limited(env.max_episode_timesteps)
        if saved is not None:
            _expect_spaces(str(config.run_dir), saved["spaces"], env)
        # As many actors as a block needs that can be divided into minibatches: playing does not depend on
        # them.
        actors = saved["parallel_interactions"] if saved else getattr(definition.config, "mini_batches", 1)
        with guard:
            learner = Learner(definition.cls.create(definition.config, env.spaces, actors))
        train = _train(learner, config, newest)
    except BaseException:
        env.close()
        raise
    return learner, train, env, saved


def _specification(saved: Any, path: Path) -> Mapping[str, Any]:
    """Return what a file says of its agent; SpecError: it has the weights of a model alone."""
    parts = ("agent", "spaces", "parallel_interactions")
    if not isinstance(saved, Mapping) or not all(part in saved for part in parts):
        raise SpecError(
            f"{shown(path)!r} does not hold an agent. Weights are played by: operant play AGENT --env "
            f"... --weights {shown(path)}"
        )
    return saved


def _expect_spaces(run: str, saved: Any, env: VectorEnv) -> None:
    """Refuse an environment whose spaces do not fit a policy. Bounds may differ: the environment's hold."""
    trained = Spaces.from_spec(saved)
    for kind in ("states", "actions"):
        of_run, of_env = _shapes(getattr(trained, kind)), _shapes(getattr(env.spaces, kind))
        if of_run != of_env:
            raise SpaceError(
                f"{run!r} was trained on other {kind} than those of {env.name}. Its own: {of_run}. The "
                f"environment's: {of_env}. Play it in an environment like its own."
            )


def _shapes(space: Any) -> str:
    return ", ".join(
        f"{name} {leaf.type} {leaf.shape}{f' below {leaf.num_values}' if leaf.num_values is not None else ''}"
        for name, leaf in space.components.items()
    )


def _play_exported(config: PlayConfig, path: str) -> PlayResult:
    from operant.execution.export.exported_policy import load_policy
    from operant.training.evaluate import run_episodes

    policy, env, seed = load_policy(path), environment(config), derived_seed(config.seed, Purpose.PLAY, 0)
    misfit = f"The policy {path!r} does not fit {env.name}:"
    with contextlib.ExitStack() as stack:
        stack.callback(env.close)
        for kind in ("states", "actions"):
            of_policy, of_env = getattr(policy.spaces, kind), getattr(env.spaces, kind)
            if of_policy != of_env:
                raise SpaceError(
                    f"{misfit} its {kind} are {of_policy.to_spec()}, the environment's {of_env.to_spec()}."
                )
        if set(policy.spaces.masks) != set(env.spaces.masks):
            raise SpaceError(
                f"{misfit} it has masks for {list(policy.spaces.masks)}, the environment for "
                f"{list(env.spaces.masks)}."
            )
        stack.pop_all()
    return _rendered(
        lambda env: run_episodes(
            policy.choose, policy.start(env.num_envs), env, config.episodes, seed, config.max_steps
        ),
        env,
        config,
    )


def _newest(directory: str, best: bool) -> Checkpoint | Path:
    """Return the newest whole checkpoint of a run or saved agent, or of a run's best evaluation."""
    from operant import checkpoint
    from operant.checkpoint.weight_files import FORMATS
    from operant.execution.saving import find_file
    from operant.tracking.runs import BEST
    from operant.training.run_dir import runs_within

    folder = Path(directory).absolute()  # its arrays are read after the environment is made
    for place in (folder / BEST,) if best else (folder / "checkpoints", folder):
        if (saved := checkpoint.found(place, without=checkpoint.MEMORY)) is not None:
            return saved
    if not best and (weights := find_file(folder, None, list(FORMATS.values()))) is not None:
        return weights
    runs = runs_within(directory)
    if best and not runs:
        raise SpecError(
            f"The run {directory!r} has no best evaluation. Train with --eval-frequency, or leave best "
            "out for the newest policy."
        )
    remedy = runs or " Give the folder of a run or of a saved agent."
    raise SpecError(f"There is no checkpoint in run_dir={directory!r}.{remedy}")


def _train(learner: Learner, config: PlayConfig, newest: Checkpoint | None) -> TrainState:
    """Make the state for acting, without a memory: a checkpoint's, or an untrained agent's."""
    import jax

    from operant.agents.base.learner import TrainState
    from operant.training.session import load_weights

    key, hyper = jax.random.key(config.seed), learner.hyper()
    shapes = jax.eval_shape(learner.init, key, hyper)
    if newest is None:
        # Waited for: a process started while OpenBLAS factorises a matrix can stop it for ever.
        init = jax.jit(lambda key: learner.init(key, hyper)._replace(memory=()))
        train = jax.block_until_ready(init(key))
    else:
        parts = ("state", "hyper", "counters")
        arrays = {name: newest.part("train", getattr(shapes, name), name) for name in parts}
        train = TrainState(memory=(), key=key, **arrays)
    if config.weights:
        train = train._replace(state=load_weights(learner.algorithm, train.state, config.weights))
    return train


def environment(config: PlayConfig, source: Any = None, lives: bool = True) -> VectorEnv:
    """Make the one environment, such that it gives pictures if they are asked for.

    `source` is what makes it, or a JAX-native object, instead of the id. `lives` tells if the policy learnt
    with an episode for each life, where no run's folder does: FIRE continues a game then.

    Raises:
        SpecError: it cannot be made, or cannot be shown.
    """
    from operant.envs.catalog import full_id, resolve
    from operant.envs.gymnasium.games import whole_games
    from operant.envs.vector import create

    name = config.env if source is None else source
    shown_as = images(config)
    limit = config.max_episode_timesteps
    file = Path(config.run_dir or "") / "run.json"
    if config.run_dir is not None and file.is_file():
        record = read_run(file)
        saved = record["run"]
        if name == "" or (isinstance(name, str) and full_id(name) == full_id(saved["env"])):
            shown_as = {**{key: saved[key] for key in IMAGES if saved.get(key)}, **shown_as}
            lives = bool(saved.get("episodic_life", lives))
            limit = saved.get("max_episode_timesteps") if limit is None else limit
            config = _with_arguments(config, saved.get("env_kwargs") or {}, str(file.parent))
        if not name:
            name = saved["env"]
            run = f"The run {str(file.parent)!r}"
            with data_only(
                run, f"Give the environment yourself, if you trust it: --env {quoted(name)} (env=)."
            ):
                try:
                    resolve(name, arguments=config.env_kwargs)
                except SpecError as error:
                    if not record.get("given"):
                        raise
                    raise SpecError(
                        f"{run} was trained in environments that its program made, which cannot be made "
                        f"again from {name!r}: {error} Give one: --env module:Name (env=)."
                    ) from None
    if not name:
        why = " A saved agent does not say its environment." if config.run_dir is not None else ""
        raise SpecError(f"env must be given: an environment id such as CartPole-v1 (--env, env=).{why}")
    if config.watched and resolve(name).is_native:
        name = _counterpart(name)
    arguments: dict[str, Any] = {}
    if config.watched:
        from operant.execution.render import require

        require(config.outputs, full_id(name) if isinstance(name, str) else None)
        arguments["render_mode"] = "rgb_array"
    mode: Any = "in-process" if config.watched else "auto"
    kwargs = plain(config.env_kwargs or {})
    make = functools.partial(
        create.create, name, 1, mode=mode, max_episode_timesteps=limit, env_kwargs=kwargs, images=shown_as
    )
    try:
        env = make(**arguments)
        return whole_games(env) if lives else env
    except SpecError as error:
        if not (config.watched and "takes no argument 'render_mode'" in str(error)):
            raise
        if not isinstance(name, str | type):  # a function: it may make one that gives pictures anyway
            return make()
        raise SpecError(
            f"{name!r} gives no pictures: it takes no argument 'render_mode'. Let it take one, with "
            "'rgb_array' as in Gymnasium, or play without render, video_dir and frame_dir."
        ) from None


def _with_arguments(config: PlayConfig, saved: Any, run: str) -> PlayConfig:
    """Add a run's arguments of its environment, which must be data, to the options, which win."""
    kwargs = {**checked(PlayConfig, "env_kwargs", saved), **(config.env_kwargs or {})}
    with data_only(f"The run {run!r}", "Give it yourself, if you trust it: --env-kwargs (env_kwargs=)."):
        for name in kwargs.keys() - (config.env_kwargs or {}).keys():
            refuse_places(kwargs[name], f"argument {name!r} of the environment,")
    return config.replace(env_kwargs=kwargs)


def _counterpart(name: Any) -> str:
    """Return the id of the Gymnasium environment that a JAX-native one equals, for pictures."""
    import gymnasium

    if not isinstance(name, str):
        raise SpecError(
            f"{name!r} cannot be rendered: it is JAX-native. Give env= one of Gymnasium's that is like it."
        )
    bare = name.rpartition(":")[2]
    if bare not in gymnasium.registry:
        known = [env for env in gymnasium.registry if "/" not in env]
        raise SpecError(
            f"{name!r} cannot be rendered, and Gymnasium has no "
            f"{bare!r}.{suggest(bare, known, listed=False)} Give env= one that can."
        )
    return bare
