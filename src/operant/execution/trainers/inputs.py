"""Environments that a program gives to the algorithms' classes, to train, evaluate and play in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from operant.envs import catalog
from operant.envs.env_spec import is_environment, is_native, lacking
from operant.envs.gymnasium import adapter as adapter
from operant.envs.gymnasium.games import whole_games
from operant.envs.gymnasium.preprocessing import PreprocessingWrapper, within
from operant.envs.vector import create
from operant.envs.vector.base import VectorEnv
from operant.errors import POLICIES, SpaceError, SpecError, UsageError, value_error, whole
from operant.execution.play import PlayConfig, environment
from operant.spec.run import RunConfig, without_images
from operant.spec.spaces import Codec, Spaces
from operant.training.environments import evaluation_count, host_vector


def create_envs(
    env_name: str,
    n: int = 1,
    preprocess: bool = True,
    max_frame: bool = False,
    *,
    resize: int | Sequence[int] | None = None,
    gray: bool = False,
    frame_stack: int | None = None,
    frame_skip: int | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Make several Gymnasium environments.

    Args:
        env_name: id, such as `CartPole-v1` or `PongNoFrameskip-v4`.
        n: how many.
        preprocess: whether to treat observations as Atari frames (grey, 84 x 84, every fourth frame, stacks
            of four).
        max_frame: with `preprocess`: take the maximum over the last two frames, which removes flicker.
        resize: height and width of images, or one number for both (None: as they are, or 84).
        gray: whether images are made gray; with `preprocess` they are.
        frame_stack: how many successive images an observation holds in its last axis (None: 1, or 4).
        frame_skip: for how many frames each action is repeated (None: 1, or 4).
        kwargs: arguments of the environment itself.

    Raises:
        SpecError: the id is unknown, the observations are not frames that can be preprocessed, or `n` or
            `max_frame` is of another type.
    """
    n = whole("n", n)
    if not isinstance(max_frame, bool):  # other libraries take the number of skipped frames here
        raise value_error("max_frame", "True or False", max_frame)
    if max_frame and not preprocess:
        raise value_error("max_frame", "False without preprocess", max_frame, "Set preprocess=True.")
    from operant.envs.gymnasium.atari import preprocessed

    given = {"resize": resize, "gray": gray or None, "frame_stack": frame_stack, "frame_skip": frame_skip}
    kwargs |= {name: value for name, value in given.items() if value is not None}
    envs = [preprocessed(env_name, max_frame, bool(preprocess), **kwargs) for _ in range(n)]
    for env in envs:
        if type(env.action_space) is gymnasium.spaces.Box:
            env.action_space.__class__ = ContinuousActions
    return envs


class ContinuousActions(gymnasium.spaces.Box):
    """A `Box` that says what to use in place of a discrete space's `n`."""

    @property
    def n(self) -> int:
        """Raise an AttributeError, as a `Box` does."""
        raise AttributeError(
            "Continuous actions have no n. Use action_space.shape[0], and for observations that are vectors "
            "a model file such as operant.agents[NAME]['model']['ann'][0]."
        )


def is_id(envs: Any) -> bool:
    """Tell whether environments are given by id, or are exactly what Gymnasium makes of their id."""
    if isinstance(envs, list | tuple):
        return all(map(is_id, envs)) and len(set(map(_id, envs))) == 1
    if isinstance(envs, str):
        return True
    if isinstance(envs, PreprocessingWrapper):  # its spec does not tell of the preprocessing
        return False
    spec = getattr(envs, "spec", None) if adapter.is_single(envs) else None
    if spec is None or spec.id not in gymnasium.registry:
        return False
    registered = gymnasium.spec(spec.id)
    kwargs = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    limits = (registered.max_episode_steps, registered.additional_wrappers)
    return kwargs == registered.kwargs and (spec.max_episode_steps, spec.additional_wrappers) == limits


def _id(env: Any) -> str:
    return catalog.full_id(env) if isinstance(env, str) else str(env.spec.id)


def refuse_no_environments(envs: Any) -> None:
    """Refuse (SpecError) what cannot be an environment; contents of lists and dicts are not looked at."""
    if isinstance(envs, list | tuple) and not envs:
        raise value_error("envs", "at least one environment", envs)
    remedy = lacking(envs).strip()
    if isinstance(envs, str) and envs in POLICIES:
        remedy = "Leave it out: networks follow from the observations, or are given as model."
    elif (
        isinstance(envs, str | Path | Mapping | list | tuple | VectorEnv)
        or callable(envs)
        or is_environment(envs)
    ):
        return
    must = "an id, an environment, its class or a function that makes it, a list of these, or a vector"
    raise value_error("envs", must, envs, remedy)


def refuse_other_count(envs: Any, n_envs: int | None) -> None:
    """Refuse (SpecError) another number of environments than that of those given."""
    if isinstance(envs, list | tuple):
        create.expect_count("n_envs", n_envs, len(envs), "the list")
    elif isinstance(envs, VectorEnv | gymnasium.vector.VectorEnv):
        create.expect_count("n_envs", n_envs, envs.num_envs, "the vector")
    elif is_environment(envs) and not is_native(envs):
        create.expect_count("n_envs", n_envs, 1, "the object")


def makes(env: Any) -> bool:
    """Tell whether what was given makes environments: those are closed here, an object by whoever made it."""
    return isinstance(env, str) or callable(env)


def encoded(codec: Codec, observation: Any, unflatten: Callable[[Any], Any], name: str) -> tuple[Any, bool]:
    """Return a Gymnasium observation in the specification's structure, and if it is a batch of several.

    Raises:
        SpaceError: it is not an observation of the environment of this name.
    """
    try:
        batched = codec.observation.is_batch(observation)
        return unflatten(codec.encode(observation, batched)), batched
    except SpaceError:
        raise
    except KeyError as error:
        what = f"no entry {error}"
    except (IndexError, TypeError, ValueError):
        what = f"{type(observation).__name__} of another structure"
    raise SpaceError(f"observation must be what {name} returns, or several such in one. Received: {what}.")


def made_again(env: Any, render_mode: str | None = None) -> Any:
    """Make another environment like the one given; SpecError: none can be made."""
    if isinstance(env, PreprocessingWrapper):
        return PreprocessingWrapper(made_again(env.env, render_mode), env.settings)
    if makes(env):
        return env  # it makes environments, and will make another
    give = "Give one: play(env=...), an object, class or function; eval_envs=... to evaluate while it trains."
    spec = getattr(env, "spec", None)
    if spec is None:
        raise SpecError(f"{env!r} was not made by gymnasium.make, so no other can be made like it. {give}")
    if within(env) is not None:  # preprocessing, of which a spec tells nothing
        raise SpecError(f"{env!r} wraps preprocessing, so no other can be made like it. {give}")
    kwargs = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    shows = {} if render_mode is None else {"render_mode": render_mode}  # not all environments take it
    try:
        other = gymnasium.make(dataclasses.replace(spec, kwargs=kwargs), **shows)
    except Exception as error:  # an environment may raise anything
        raise SpecError(
            f"No other can be made like {env!r}: {type(error).__name__}: {str(error).rstrip('.')}. {give}"
        ) from error
    _share_statistics(env, other)
    return other


def _share_statistics(env: Any, other: Any) -> None:
    """Have `other` normalise by the running moments of `env`: the policy has learnt with them."""
    for kind, moments in (
        (gymnasium.wrappers.NormalizeObservation, "obs_rms"),
        (gymnasium.wrappers.NormalizeReward, "return_rms"),
    ):
        for one, like in zip(_layers(env, kind), _layers(other, kind), strict=True):
            setattr(like, moments, getattr(one, moments))
            like.update_running_mean = False


def _layers(env: Any, kind: type) -> list[Any]:
    layers = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, kind):
            layers.append(env)
        env = env.env
    return layers


def evaluation_envs(run: RunConfig, envs: Any, eval_envs: Any, spaces: Spaces) -> VectorEnv | None:
    """Make the environments in which the policy of a run is evaluated; None if it is not evaluated.

    Args:
        run: options of the run.
        envs: the training environments.
        eval_envs: the environments to evaluate in, in any form that `envs` may have; None: others like
            `envs`.
        spaces: of the training environments.

    Raises:
        UsageError: `eval_envs` without `eval_frequency`.
        SpecError: no others can be made, or `eval_envs` are objects that are also used for training.
        SpaceError: `eval_envs` have other states or actions.
    """
    if run.eval_frequency is None:
        if eval_envs is not None:
            raise UsageError(
                "eval_envs are for evaluations. Received: eval_envs without eval_frequency. Give both."
            )
        return None
    count = evaluation_count(run)
    if eval_envs is None:
        eval_envs = _others(envs, count)
    else:
        refuse_shared("eval_envs", envs, eval_envs)
    several = eval_envs if isinstance(eval_envs, list | tuple) else [eval_envs]
    if isinstance(eval_envs, str):
        if catalog.full_id(eval_envs) != catalog.full_id(run.env):  # options meant for training
            run = run.replace(env_kwargs=None, max_episode_timesteps=None)
        vector = host_vector(run.replace(env=eval_envs), count)
    elif callable(eval_envs):
        vector = host_vector(run, count, eval_envs)
    else:  # used as they are: options are for those made from an id or a class
        run = without_images(run.replace(env_kwargs=None))
        number = count if is_native(eval_envs) else getattr(eval_envs, "num_envs", len(several))
        vector = host_vector(run, number, eval_envs)
    if vector.spaces != spaces:
        if all(map(makes, several)):
            vector.close()
        raise SpaceError(
            f"eval_envs must have the states and actions of envs, {spaces.to_spec()}. Received: "
            f"{vector.spaces.to_spec()}."
        )
    return vector


def _others(envs: Any, count: int) -> Any:
    """Return `count` environments like those that train, or what makes such."""
    several = isinstance(envs, list | tuple)
    if adapter.is_single(envs) or several:
        return [made_again(envs[i % len(envs)] if several else envs) for i in range(count)]
    if makes(envs) or is_native(envs):
        return envs
    raise SpecError(
        "To evaluate, environments like those that train are made, and no others can be made like "
        f"{envs!r}. Give eval_envs."
    )


def refuse_shared(argument: str, envs: Any, others: Any) -> None:
    """Refuse objects that train for evaluation or play, which would end episodes unnoticed.

    Raises:
        SpecError: an object is in both; names the argument.
    """
    one, other = (each if isinstance(each, list | tuple) else [each] for each in (envs, others))
    stateful = gymnasium.Env | gymnasium.vector.VectorEnv | VectorEnv
    inner = {id(getattr(env, "unwrapped", env)) for env in one if isinstance(env, stateful)}
    for env in other:
        if isinstance(env, stateful) and id(getattr(env, "unwrapped", env)) in inner:
            raise value_error(argument, "other objects than those that train", env, "Make others.")


def play_env(config: PlayConfig, envs: Any, env: Any, spaces: Spaces, lives: bool) -> VectorEnv:
    """Make the environment to play in: `env`, or one more like the first of those that train (`envs`).

    `lives` tells whether the policy learnt with an episode for each life: FIRE is pressed after a lost one.

    Raises:
        SpecError: no other can be made, or `env` is not a single environment or is also used for training.
        SpaceError: `env` has other states or actions.
    """
    several = envs if isinstance(envs, list | tuple) else [envs]
    if env is None:
        first, limit = several[0], config.max_episode_timesteps
        if isinstance(first, str):
            return environment(config, lives=lives)
        if callable(first) or is_native(first):
            return environment(config, first, lives)
        if not adapter.is_single(first):
            raise SpecError(
                f"To play or evaluate, an environment like the first one is made, and no other {first!r} can "
                "be made. Give one: env=..."
            )
        other = made_again(first, "rgb_array" if config.watched else None)
        vector = create.create(other, mode="in-process", max_episode_timesteps=limit)
        return whole_games(vector) if lives else vector
    if not (makes(env) or is_environment(env)) or isinstance(env, gymnasium.vector.VectorEnv):
        raise value_error("env", "one environment: an id, an object, a class or a function", env)
    if isinstance(env, str):
        trains = catalog.full_id(env) == catalog.full_id(config.env)
    else:
        trains = any(env is each for each in several)
    if not trains:
        config = config.replace(env_kwargs=None, max_episode_timesteps=None)
    if isinstance(env, str):
        vector = environment(config.replace(env=env), lives=lives)
    elif callable(env) or is_native(env):  # which preprocess by themselves if at all
        vector = environment(config if trains else without_images(config), env, lives)
    else:
        refuse_shared("env", envs, env)
        vector = create.create(env, mode="in-process")
        vector = whole_games(vector) if lives else vector
    if vector.spaces != spaces:
        if makes(env):
            vector.close()
        raise SpaceError(
            f"env must have the states and actions of those that train. Their own: {spaces.to_spec()}. "
            f"Those of {vector.name}: {vector.spaces.to_spec()}."
        )
    return vector
