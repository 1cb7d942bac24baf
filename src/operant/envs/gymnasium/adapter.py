"""Gymnasium's environments, made without the wrappers that cost time, and shown as `Environment`."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec as find_package
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, find_highest_version, load_env_creator, parse_env_id
from gymnasium.spaces import Box
from gymnasium.wrappers import FrameStackObservation

from operant.envs.environment import SpacesEnv
from operant.envs.validation_errors import (
    FLAGS,
    NUMBERS,
    WEIGH,
    brief,
    close,
    flag_error,
    reward_error,
)
from operant.errors import EnvError, OperantError, SpaceError, SpecError, suggest, told
from operant.spec import refuse_code
from operant.spec.spaces import Codec, Leaf, Spaces, from_gymnasium
from operant.spec.spaces.space import Flat

MISFIT = "Correct the environment's observation_space or what it returns."
"""The remedy, in messages, if an observation is not a member of its space."""
ATARI = "ale_py.env:AtariEnv"
_ATARI_ID = re.compile(r"^ALE/|(NoFrameskip|Deterministic)-v[04]$")
_EXTRAS = {  # prefix of an id's entry point: the package that it needs, and the extra that installs it
    "ale_py": ("ale_py", "atari"),
    "gymnasium.envs.box2d": ("Box2D", "box2d"),
    "gymnasium.envs.mujoco": ("mujoco", "mujoco"),
}


def register_atari() -> bool:
    """Register the ids of ALE, if it is installed; return whether it is."""
    if find_package("ale_py") is None:
        return False
    if "ALE/Pong-v5" not in gymnasium.registry:
        gymnasium.register_envs(importlib.import_module("ale_py"))
    return True


def find(name: str) -> EnvSpec | None:
    """Return the registered environment of an id as ``gymnasium.make`` takes it, or None.

    Raises:
        SpecError: the id belongs to a package that is not installed, or its module cannot be imported.
    """
    module, _, label = name.rpartition(":")
    if module:
        refuse_code(name, "environment")
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise SpecError(
                f"The module of environment {name!r} cannot be imported: {error}. Check its name and that "
                "it is installed."
            ) from None
        except Exception as error:  # it may run anything
            raise SpecError(
                f"The module of environment {name!r} cannot be imported: it {told(error)}."
            ) from error
    if label not in gymnasium.registry and not register_atari() and _ATARI_ID.search(label):
        raise SpecError(f"Environment {name!r} needs ALE. Install it: pip install 'operant[atari]'.")
    spec = gymnasium.registry.get(label)
    if spec is not None:
        return spec
    try:
        namespace, base, version = parse_env_id(label)
    except gymnasium.error.Error:
        return None
    latest = find_highest_version(namespace, base) if version is None else None
    return (
        None
        if latest is None
        else gymnasium.registry.get(f"{namespace + '/' if namespace else ''}{base}-v{latest}")
    )


def needed(spec: EnvSpec) -> tuple[str, str] | None:
    """Return the package that an environment needs, and the extra of operant that installs it, or None."""
    entry = spec.entry_point
    module = entry if isinstance(entry, str) else getattr(entry, "__module__", "")
    return next((needs for prefix, needs in _EXTRAS.items() if module.startswith(prefix)), None)


def make(spec: EnvSpec, arguments: Mapping[str, Any]) -> gymnasium.Env:
    """Make an environment of Gymnasium without checks, order enforcement and limit: operant has its own.

    Among its arguments, ``visualize=True`` stands for ``render_mode='human'``.
    """
    arguments = _arguments(spec, arguments)
    modes = (getattr(_creator(spec, spec.entry_point), "metadata", None) or {}).get("render_modes")
    if modes and arguments.get("render_mode", modes[0]) not in {*modes, "human"}:
        raise SpecError(
            f"{spec.id!r} gives no pictures: its render modes are {', '.join(map(str, modes))}. Play without "
            "render, video_dir and frame_dir."
        )
    bare = dataclasses.replace(
        spec,
        order_enforce=False,
        disable_env_checker=True,
        vector_entry_point=None,
        max_episode_steps=spec.max_episode_steps if spec.additional_wrappers else None,
    )
    try:
        env = _call(spec, gymnasium.make, bare, **arguments)
    except SpecError as error:
        for name in arguments:
            if f"unexpected keyword argument {name!r}" in str(error):
                raise _untaken(spec, name, _parameters(_creator(spec, spec.entry_point))) from error
        raise
    # What it was made from, as Gymnasium records it: wrappers add themselves.
    env.unwrapped.spec = dataclasses.replace(
        spec, kwargs={**spec.kwargs, **arguments}, additional_wrappers=()
    )
    # Wrappers of the entry point have cached a spec without the time limit.
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        layer._cached_spec = None
        layer = layer.env
    limits = [n for n in (spec.max_episode_steps, own_limit(env)) if n is not None]
    if limits and env.spec is not None:  # a time limit within the entry point has put its own there
        env.spec.max_episode_steps = min(limits)
    return env


def make_vector(
    spec: EnvSpec, num_envs: int, arguments: Mapping[str, Any], limit: int | None
) -> tuple[gymnasium.vector.VectorEnv, int | None] | str:
    """Make Gymnasium's own vectorised form of an environment.

    Returns:
        The vector and its time limit, or a sentence that says why there is none.
    """
    entry = spec.vector_entry_point
    if entry is None or spec.entry_point == ATARI:  # that of Atari games preprocesses
        return f"Gymnasium has no vectorised form of {spec.id}"
    if spec.additional_wrappers:
        return f"the vectorised form of {spec.id} lacks its wrappers"
    creator = _creator(spec, entry)
    for name in arguments:
        if name != "visualize" and not _takes(creator, name):
            return f"the vectorised form of {spec.id} takes no argument {name!r}"
    arguments = {**spec.kwargs, **_arguments(spec, arguments)}
    if limit is not None or spec.max_episode_steps is not None:
        limit = spec.max_episode_steps if limit is None else limit
        arguments["max_episode_steps"] = limit
    if "max_episode_steps" in arguments and not _takes(creator, "max_episode_steps"):
        return f"the vectorised form of {spec.id} takes no time limit"
    vector = _call(spec, creator, num_envs=num_envs, **arguments)
    if (fault := autoreset_fault(vector)) is not None:
        vector.close()
        return f"the vectorised form of {spec.id} {fault}"
    return vector, limit


def call(spec: EnvSpec, entry: str, **arguments: Any) -> Any:
    """Call an environment's entry point; SpecError: it cannot be made, perhaps for a missing package."""
    return _call(spec, lambda: load_env_creator(entry)(**arguments))


def autoreset_fault(vector: gymnasium.vector.VectorEnv) -> str | None:
    """Say what is wrong with a vector's autoreset; None if nothing is."""
    if any(kind.__name__ == "FunctionalJaxVectorEnv" for kind in type(vector.unwrapped).__mro__):
        return "holds all others still where one begins anew"
    # Gymnasium's vectors have it as an attribute; they also write it into metadata, which all vectors of a
    # class share.
    mode = getattr(vector.unwrapped, "autoreset_mode", None)
    if not isinstance(mode, gymnasium.vector.AutoresetMode):
        mode = vector.metadata.get("autoreset_mode")
    if mode is None:
        return "does not say its autoreset mode in metadata['autoreset_mode']"
    if mode != gymnasium.vector.AutoresetMode.NEXT_STEP:
        return f"resets with {mode}, and AutoresetMode.NEXT_STEP is needed"
    return None


def _creator(spec: EnvSpec, entry: Any) -> Any:
    return _call(spec, lambda: load_env_creator(entry) if isinstance(entry, str) else entry)


def _takes(creator: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(creator).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _arguments(spec: EnvSpec, requested: Mapping[str, Any]) -> dict[str, Any]:
    arguments = dict(requested)
    if arguments.pop("visualize", False):
        arguments["render_mode"] = "human"
    if "max_episode_steps" in arguments:  # of `gymnasium.make`
        raise _untaken(spec, "max_episode_steps", ())
    return arguments


def _untaken(spec: EnvSpec, name: str, names: Iterable[str]) -> SpecError:
    remedy = suggest(name, names)
    if name == "max_episode_steps":
        remedy = " The time limit is given as max_episode_timesteps."
    return SpecError(f"The environment {spec.id!r} takes no argument {name!r}.{remedy}")


def _parameters(creator: Any) -> dict[str, None]:
    """Return the parameter names of a function, or of a class and its bases, to which it may pass them on."""
    makers = creator.__mro__[:-1] if isinstance(creator, type) else [creator]
    parameters = [p for maker in makers for p in inspect.signature(maker).parameters.values()]
    return {p.name: None for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _call(spec: EnvSpec, work: Callable[..., Any], *of: Any, **arguments: Any) -> Any:
    """Call what may fail for a missing package or for arguments, and say which."""
    needs = needed(spec)
    if needs is not None and find_package(needs[0]) is None:
        raise SpecError(
            f"Environment {spec.id!r} needs {needs[0]}. Install it: pip install 'operant[{needs[1]}]'."
        )
    try:
        return work(*of, **arguments)
    except OperantError:
        raise
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        remedy = f" Install it: pip install 'operant[{needs[1]}]'." if needs else ""
        raise SpecError(
            f"Environment {spec.id!r} misses a package: {str(error).rstrip('.')}.{remedy}"
        ) from error
    except Exception as error:
        received = (
            f" Received: {', '.join(f'{name}={arguments[name]!r}' for name in arguments)}."
            if arguments
            else ""
        )
        raise SpecError(f"Environment {spec.id!r} cannot be made: it {told(error)}.{received}") from error


class GymnasiumSubEnv:
    """An environment of Gymnasium whose answers are validated, and read as flat components.

    Its caller cuts episodes after `limit` steps.
    """

    lost = False

    def __init__(self, env: gymnasium.Env, limit: int | None = None) -> None:
        self.env = env
        self.limit = limit
        self.info: Mapping[str, Any] = {}
        self.spaces, self.codec = spaces_of(env)
        self._encode = self.codec.observation.encode
        self._step = env.step
        self._composite = isinstance(env.action_space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple)

    def native_actions(self, actions: Mapping[str, np.ndarray], n: int) -> Sequence[Any]:
        """Return what `N` environments take."""
        if self._composite:
            return [self.codec.decode_one(actions, i) for i in range(n)]
        return self.codec.decode(actions, True)

    def reset(self, seed: int | None) -> Flat:
        """Begin an episode; EnvError: no `seed` is taken, or `(observation, info)` does not fit."""
        try:
            answer = self.env.reset(seed=seed)
        except TypeError as error:
            if "unexpected keyword argument 'seed'" not in str(error):
                raise
            raise EnvError(
                "reset must take a seed, as reset(self, *, seed=None, options=None) of gymnasium.Env. It "
                f"raised TypeError: {error}."
            ) from error
        if fault := reset_error(answer):
            raise EnvError(fault)
        return self._read(answer[0])

    def step(self, action: Any) -> tuple[Flat, float, bool, bool]:
        """Take an action; return observation, reward, terminated, truncated, checked (EnvError)."""
        answer = self._step(action)
        if type(answer) is not tuple or len(answer) != 5:
            _check_step(answer)
        observation, reward, terminated, truncated, self.info = answer
        if type(reward) not in NUMBERS or type(terminated) not in FLAGS or type(truncated) not in FLAGS:
            _check_step(answer)
        return self._read(observation), reward, terminated, truncated

    def _read(self, observation: Any) -> Flat:
        try:
            return self._encode(observation, False)
        except SpaceError as error:
            raise EnvError(f"{error} {MISFIT}") from error

    def close(self) -> None:
        """Close the environment."""
        close(self.env)


class GymnasiumEnv(SpacesEnv):
    """An environment of Gymnasium as `Environment`; attributes that this class lacks are those inside."""

    def __init__(self, env: gymnasium.Env) -> None:
        self.gymnasium = env
        self._flat = GymnasiumSubEnv(env)
        self.spaces, self.codec = self._flat.spaces, self._flat.codec

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "gymnasium":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")
        return self.gymnasium.get_wrapper_attr(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in ("gymnasium", "spaces", "codec"):
            super().__setattr__(name, value)
        else:
            self.gymnasium.set_wrapper_attr(name, value)

    def max_episode_timesteps(self) -> int | None:
        """Return the time limit of Gymnasium's registry, or None."""
        return own_limit(self.gymnasium)

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode."""
        try:
            return self.spaces.unflatten(self._flat.reset(seed))
        except EnvError as error:
            raise self._named("reset", error) from error.__cause__

    def execute(self, actions: Any) -> tuple[Any, int, float]:
        """Take actions; a truncation is terminal 2."""
        flat, terminal, reward = self.execute_flat(self.spaces.actions.flatten(actions))
        return self.spaces.unflatten(flat), terminal, reward

    def execute_flat(self, actions: Flat) -> tuple[Flat, int, float]:
        """As `execute`, with stored components, masks included: for processes, which pass them on."""
        try:
            flat, reward, terminated, truncated = self._flat.step(self.codec.decode(actions, False))
        except EnvError as error:
            raise self._named("step", error) from error.__cause__
        return flat, 1 if terminated else 2 if truncated else 0, reward

    def _named(self, call: str, error: EnvError) -> EnvError:
        return EnvError(f"{call} of {type(self.gymnasium.unwrapped).__name__!r}: {error}")

    def episode_info(self) -> Mapping[str, Any]:
        """Return the info of the last step."""
        return self._flat.info

    def close(self) -> None:
        """Close the environment."""
        self.gymnasium.close()


def reset_error(answer: Any) -> str | None:
    """Say that what `reset` returned is not `(observation, info)`; None if it is."""
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict):
        return None
    return f"reset must return (observation, info). Received: {_form(answer)}."


def step_form_error(answer: Any) -> str | None:
    """Say that what `step` returned is no tuple of five; None if it is."""
    if isinstance(answer, tuple) and len(answer) == 5:
        return None
    form = "(observation, reward, terminated, truncated, info)"
    return f"step must return {form}. Received: {_form(answer)}."


def _check_step(answer: Any) -> None:
    if error := step_form_error(answer):
        raise EnvError(error)
    _, reward, terminated, truncated, _ = answer
    if (
        reward_error(reward) == "a number"
    ):  # finite numbers are a matter of the vector, which tests all at once
        weigh = f" {WEIGH}" if np.size(reward) > 1 else ""
        raise EnvError(f"The reward must be a number. Received: {brief(reward)}.{weigh}")
    if error := flag_error("terminated", terminated) or flag_error("truncated", truncated):
        raise EnvError(error)


def _form(answer: Any) -> str:
    return f"a tuple of {len(answer)}" if isinstance(answer, tuple) else type(answer).__name__


def spaces_of(env: gymnasium.Env) -> tuple[Spaces, Codec]:
    """Return an environment's spaces and their codec; SpaceError: it has none, or of another kind."""
    for name in ("observation_space", "action_space"):
        if getattr(env, name, None) is None:
            raise SpaceError(
                f"{type(env.unwrapped).__name__!r} defines no {name}: set it in __init__ "
                "(and call super().__init__() if a parent sets it)."
            )
    return from_gymnasium(env.observation_space, env.action_space, frames=stacked_frames(env))


def is_single(value: Any) -> bool:
    """Tell one environment of Gymnasium from a vector. EnvPool's vectors are of both classes."""
    return isinstance(value, gymnasium.Env) and not isinstance(value, gymnasium.vector.VectorEnv)


def own_limit(env: gymnasium.Env | gymnasium.vector.VectorEnv) -> int | None:
    """Return the time limit in the spec of an environment or vector, or None."""
    spec = getattr(env.spec, "config", env.spec)  # EnvPool's specs have it in a `config`
    return getattr(spec, "max_episode_steps", None)


def stacked_frames(env: gymnasium.Env) -> int | None:
    """Return how many frames an observation holds, of which each step adds one; None if not known.

    The number is the attribute `stacked_frames` of an environment, which stacks them in the last axis, or the
    size of Gymnasium's `FrameStackObservation` of grey images. Either may be inside wrappers that leave
    observations alone.
    """
    while not isinstance(getattr(env, "stacked_frames", None), int | np.integer):
        if isinstance(env, FrameStackObservation):
            return env.stack_size if env.stack_size > 1 and _is_stack(env.observation_space) else None
        if not isinstance(env, gymnasium.Wrapper) or not _leaves_observations(env):
            return None
        env = env.env
    return int(env.stacked_frames)


def _is_stack(space: gymnasium.Space[Any]) -> bool:
    if not isinstance(space, Box) or space.dtype != np.uint8:
        return False
    low, high = float(space.low.min()), float(space.high.max())
    return Leaf("float", space.shape, None, low, high, "uint8").channels_first


def _leaves_observations(env: gymnasium.Wrapper[Any, Any, Any, Any]) -> bool:
    """Tell if a wrapper leaves observations alone; an unknown one may change a frame in each stack."""
    if isinstance(env, gymnasium.RewardWrapper | gymnasium.ActionWrapper):
        return True
    # A step of these brings several frames.
    if type(env).__name__ in ("MaxAndSkipObservation", "RepeatAction"):
        return False
    is_gymnasiums = type(env).__module__.split(".")[0] == "gymnasium"
    same = env.observation_space == env.env.observation_space
    return is_gymnasiums and same and not isinstance(env, gymnasium.ObservationWrapper)
