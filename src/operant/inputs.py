"""What a program gives to the classes of `operant.fit` beside options: environments, replay buffers, compiled models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium

from operant.envs import table, vector
from operant.envs.source import is_environment, is_native, lacking
from operant.envs.vector_env import VectorEnv
from operant.errors import SpaceError, SpecError, UsageError, value_error, whole
from operant.execution.config import GAMES, RunConfig
from operant.spaces import Codec, Spaces
from operant.spec import Config, options
from operant.train import evaluation_count, host_vector

POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")
"""What other libraries take before the environment."""


def create_envs(
    env_name: str,
    n: int = 1,
    preprocess: bool = True,
    max_frame: bool = False,
    **kwargs: Any,
) -> list[Any]:
    """Make several Gymnasium environments.

    Args:
        env_name: id, such as `CartPole-v1` or `PongNoFrameskip-v4`.
        n: how many.
        preprocess: whether to treat observations as Atari frames (grey, 84 x 84, every fourth frame, stacks of four).
        max_frame: with `preprocess`: take the maximum over the last two frames, against flicker.
        kwargs: arguments of the environment itself.

    Raises:
        SpecError: the id is unknown, or the observations are no frames to preprocess.
    """
    n = whole("n", n)
    if max_frame and not preprocess:
        raise value_error("max_frame", "False without preprocess", max_frame, "Set preprocess=True.")
    if preprocess:
        from operant.envs.atari import preprocessed

        return [preprocessed(env_name, max_frame=max_frame, **kwargs) for _ in range(n)]
    source = table.resolve(env_name, arguments=kwargs)
    return [source.make() for _ in range(n)]


class ReplayBuffer1:
    """Size of one environment's share of the replay memory, for the class of an algorithm that has one.

    The memory itself lives on the device that trains, one for all environments; shares are summed up.

    Args:
        size: most rows.
        initial_size: environment steps before learning starts (default: `size`).
        batch_size: transitions of this share in a batch.

    Raises:
        SpecError: sizes that do not fit one another.
    """

    def __init__(self, size: int, *, initial_size: int | None = None, batch_size: int = 32) -> None:
        self.size = whole("size", size)
        self.initial_size = whole("initial_size", size if initial_size is None else initial_size)
        self.batch_size = whole("batch_size", batch_size)
        for name in ("initial_size", "batch_size"):
            if getattr(self, name) > size:
                raise value_error(name, f"at most size ({size})", getattr(self, name))


class ReplayBuffer2(ReplayBuffer1):
    """As `ReplayBuffer1`; `slots` (arrays of a transition) is accepted and means nothing here.

    Args:
        size: most rows.
        slots: ignored.
        initial_size: environment steps before learning starts (default: `size`).
        batch_size: transitions of this share in a batch.
    """

    def __init__(
        self, size: int, slots: int = 5, *, initial_size: int | None = None, batch_size: int = 32
    ) -> None:
        super().__init__(size, initial_size=initial_size, batch_size=batch_size)
        self.slots = slots


def buffer_options(
    config: type[Config], buffers: Any, environments: int | None, own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of an algorithm that a list of replay buffers, one for each environment, stands for.

    Shares are summed up, except for an option that counts something per environment anyway.

    Args:
        config: the algorithm's.
        buffers: the list; or one buffer that is for all; None: none are given.
        environments: how many there are; None: not known.
        own: options that are given beside them, which may not say the same.
    """
    if buffers is None:
        return {}
    parts = list(buffers) if isinstance(buffers, list | tuple) else [buffers]
    if isinstance(buffers, list | tuple) and environments not in (None, len(parts)):
        raise SpecError(
            f"buffers must be one for each environment. Received: {len(parts)} for {environments} environments. "
            "Give as many, or a single one (no list) for all together."
        )
    for part in parts:
        if not isinstance(part, ReplayBuffer1):
            raise value_error("buffers", "a list of ReplayBuffer1 or ReplayBuffer2", part)
    found = {}
    for name in ("size", "initial_size", "batch_size"):
        option = "buffer_max_size" if name == "size" else f"buffer_{name}"
        each = (options(config)[option].unit or "").endswith("per environment")
        if own.get(option) is not None:
            raise SpecError(f"{option} is given twice, by itself and by buffers. Give one of them.")
        values = [getattr(part, name) for part in parts]
        found[option] = max(values) if each else sum(values)
    return found


def optimizer_options(
    config: type[Config], models: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options that the optimizers of compiled Keras models stand for, but for those that are given (`own`)."""
    given = [m.optimizer for m in models.values() if getattr(m, "optimizer", None) is not None]
    if "optimizer" in own or not given:
        return {}
    from operant.nn.keras_optimizers import options_of

    found, apart = [options_of(optimizer) for optimizer in given], {}
    if len(found) == 2 and "critic_lr" in options(config) and found[0].get("lr") != found[1].get("lr"):
        apart = {"critic_lr": found[1]["lr"]}  # actor before critic
        found[1] = {**found[1], "lr": found[0]["lr"]}
    if any(other != found[0] for other in found):
        raise SpecError(
            "The models are compiled with different optimizers. Compile them with the same (the learning rates of actor and "
            "critic may differ for agents with a critic_lr), or give optimizer= and lr=."
        )
    return {name: value for name, value in (found[0] | apart).items() if name not in own}


def is_id(envs: Any) -> bool:
    """Tell whether environments are an id, or objects just like those that Gymnasium makes of their id."""
    if isinstance(envs, list | tuple):
        return all(is_id(env) for env in envs)
    if isinstance(envs, str):
        return True
    spec = getattr(envs, "spec", None) if isinstance(envs, gymnasium.Env) else None
    if spec is None or spec.id not in gymnasium.registry:
        return False
    own = gymnasium.spec(spec.id)
    told = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    limits = (spec.max_episode_steps, spec.additional_wrappers)
    return told == own.kwargs and limits == (own.max_episode_steps, own.additional_wrappers)


def refuse_no_environments(envs: Any) -> None:
    """Refuse what can be no environment, whatever it holds.

    Raises:
        SpecError: so it is; says what can be given.
    """
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
    """Refuse a number of environments that is not that of those which were given.

    Raises:
        SpecError: so it is.
    """
    if isinstance(envs, list | tuple):
        vector.expect_count("n_envs", n_envs, len(envs), "the list")
    elif isinstance(envs, VectorEnv | gymnasium.vector.VectorEnv):
        vector.expect_count("n_envs", n_envs, envs.num_envs, "the vector")
    elif is_environment(envs) and not is_native(envs):
        vector.expect_count("n_envs", n_envs, 1, "the object")


def makes(env: Any) -> bool:
    """Tell whether an environment was given as what makes it: such a one is closed here, an object by whoever made it."""
    return isinstance(env, str) or callable(env)


def encoded(codec: Codec, observation: Any, unflatten: Callable[[Any], Any], name: str) -> tuple[Any, bool]:
    """Return an observation of Gymnasium's in the structure of the specification, and whether it is several.

    Raises:
        SpaceError: it is none of the environment of this name.
    """
    try:
        batched = codec.observation.is_batch(observation)
        codec.observation.refuse_changed(observation)
        return unflatten(codec.encode(observation, batched)), batched
    except SpaceError:
        raise
    except KeyError as error:
        what = f"no entry {error}"
    except (IndexError, TypeError, ValueError):
        what = f"{type(observation).__name__} of another structure"
    raise SpaceError(f"observation must be what {name} returns, or several such in one. Received: {what}.")


def made_again(env: Any, render_mode: str | None = None) -> Any:
    """Make an environment once more.

    Raises:
        SpecError: it is not known how.
    """
    from operant.envs.preprocessing import Preprocessed

    if isinstance(env, Preprocessed):
        return Preprocessed(made_again(env.env, render_mode), env.settings)
    if makes(env):
        return env  # what makes environments, and will once more
    if getattr(env, "spec", None) is None:
        raise SpecError(
            f"{env!r} was not made by gymnasium.make, so no other can be made like it. Give one: play(env=...), an object, class or function; "
            "eval_envs=... to evaluate while it trains."
        )
    return gymnasium.make(env.spec, render_mode=render_mode)


def evaluation_envs(run: RunConfig, envs: Any, given: Any, spaces: Spaces) -> VectorEnv | None:
    """Make environments in which the policy of a run is evaluated; None if it is not to be.

    Args:
        run: its options.
        envs: what it trains in.
        given: what it is to be evaluated in, as `envs` may be; None: others like those that train.
        spaces: of what it trains in.

    Raises:
        UsageError: `given` without `eval_frequency`.
        SpecError: others cannot be made, or `given` are objects that train, too.
        SpaceError: `given` have other states or actions.
    """
    if run.eval_frequency is None:
        if given is not None:
            raise UsageError(
                "eval_envs are for evaluations. Received: eval_envs without eval_frequency. Give both."
            )
        return None
    count = evaluation_count(run)
    if given is None:
        given = _others(envs, count)
    else:
        refuse_shared("eval_envs", envs, given)
    if isinstance(given, str):
        env = host_vector(run.replace(env=given), count)
    elif callable(given):
        env = host_vector(run, count, given)
    else:  # as they are: options say how those of an id or a class are made
        made = run.replace(env_kwargs=None, preprocess=False, max_frame=False, **dict.fromkeys(GAMES, True))
        number = len(given) if isinstance(given, list | tuple) else getattr(given, "num_envs", 1)
        env = host_vector(made, count if is_native(given) else number, given)
    if env.spaces != spaces:
        if all(map(makes, given if isinstance(given, list | tuple) else [given])):
            env.close()
        raise SpaceError(
            f"eval_envs must have the states and actions of envs, {spaces.to_spec()}. Received: {env.spaces.to_spec()}."
        )
    return env


def _others(envs: Any, count: int) -> Any:
    """Return what makes so many environments like those that train, or such environments."""
    several = isinstance(envs, list | tuple)
    if isinstance(envs, gymnasium.Env) or several:
        return [made_again(envs[i % len(envs)] if several else envs) for i in range(count)]
    if makes(envs) or is_native(envs):
        return envs
    raise SpecError(
        f"To evaluate, environments like those that train are made, and no others can be made like {envs!r}. Give eval_envs."
    )


def refuse_shared(argument: str, envs: Any, others: Any) -> None:
    """Refuse objects that train and are to evaluate or play, too: that would end the episodes of training, which would not know.

    Raises:
        SpecError: so it is; names the argument.
    """
    one, other = (each if isinstance(each, list | tuple) else [each] for each in (envs, others))
    stateful = gymnasium.Env | gymnasium.vector.VectorEnv | VectorEnv
    inner = {id(getattr(env, "unwrapped", env)) for env in one if isinstance(env, stateful)}
    for env in other:
        if isinstance(env, stateful) and id(getattr(env, "unwrapped", env)) in inner:
            raise value_error(argument, "other objects than those that train", env, "Make others.")
