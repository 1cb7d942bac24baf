"""An environment that is known but not yet made; and its form as plain data, for worker processes."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.envs.registration import WrapperSpec

from operant.envs.environment import Environment, Shaping
from operant.envs.gymnasium import adapter as adapter
from operant.envs.gymnasium import pettingzoo, preprocessing
from operant.envs.native import ids
from operant.envs.validated_env import ValidatedEnv
from operant.envs.validation_errors import raise_of_handler
from operant.envs.vector.base import VectorEnv
from operant.envs.vector.batched import NativeEnvironment, from_native
from operant.errors import EnvError, SpecError, UsageError, told
from operant.spec import build, import_object

HERE = (
    "vector='in-process' (Runner and Environment.create: remote=None; operant.envs.vector.create.create: "
    "mode='in-process')"
)
"""How to run environments without worker processes, for messages."""
_NATIVE = ("spaces", "reset", "step", "max_episode_timesteps")
_OTHER_KINDS = gymnasium.Env | gymnasium.vector.VectorEnv | Environment | VectorEnv


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """An environment that is known but not yet made."""

    target: Any
    """An object (`Environment`, `gymnasium.Env`, `gymnasium.vector.VectorEnv` or `NativeEnv`). Or a class or
    function that returns one; or Gymnasium's own `EnvSpec`; or a JAX-native id."""
    name: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_episode_timesteps: int | None = None
    reward_shaping: Shaping | None = None
    path: str = ""
    """Where a class or function is imported from, if it is."""
    images: preprocessing.PreprocessingOptions | None = None
    """What is done to its images; only for Gymnasium's environments that are made."""

    @property
    def is_object(self) -> bool:
        """Whether the environment exists already, so that there is only one of it."""
        return not (isinstance(self.target, str | GymnasiumSpec) or callable(self.target))

    def make(self) -> Any:
        """Make one (`Environment`, `gymnasium.Env`, vector, `NativeEnv`), bare; OperantError: it fails."""
        try:
            return self._make()
        except SystemExit as error:
            raise_of_handler(error)
            raise EnvError(f"{self.name!r} {told(error, 'as it was made')}") from error

    def _make(self) -> Any:
        if self.is_object:
            return self.target
        if isinstance(self.target, GymnasiumSpec):
            if self.images is not None:
                return preprocessing.make(self.target, self.arguments, self.images)
            return adapter.make(self.target, self.arguments)
        if isinstance(self.target, str):
            return ids.make(self.target, **self.arguments)
        environment = build(self.target, dict(self.arguments), f"environment {self.name!r}")
        if not is_environment(environment):
            made = type(environment)
            kind = f"{made.__module__}.{made.__qualname__}".removeprefix("builtins.")
            raise SpecError(
                f"{self.name!r} must make an Environment or a gymnasium.Env. "
                f"Received: {kind}.{lacking(environment)}"
            )
        if self.images is None:
            return environment
        if not adapter.is_single(environment):
            raise SpecError(
                f"resize, gray, frame_stack and frame_skip are for one environment of Gymnasium. Received: "
                f"{type(environment).__name__}. Show smaller images there."
            )
        return preprocessing.PreprocessingWrapper(environment, self.images)

    @property
    def preprocessed(self) -> bool:
        """Whether it is preprocessed as games are."""
        return self.images is not None and self.images.preprocess

    @property
    def is_native(self) -> bool:
        """Whether it is JAX-native."""
        if isinstance(self.target, type):
            has_protocol = all(hasattr(self.target, name) for name in ("spaces", "reset", "step"))
            return has_protocol and not issubclass(self.target, _OTHER_KINDS)
        return isinstance(self.target, str) or is_native(self.target)

    @property
    def is_vector(self) -> bool:
        """Whether it is a vector of Gymnasium's."""
        return isinstance(self.target, gymnasium.vector.VectorEnv)

    @property
    def makes_vector(self) -> bool:
        """Whether it is a function that makes a vector of Gymnasium's of any size: it takes `num_envs`."""
        is_function = callable(self.target) and not isinstance(self.target, type)
        return is_function and "num_envs" in inspect.signature(self.target).parameters

    def create(self, environment: Any = None) -> ValidatedEnv:
        """Make one (or take what `make` returned) as `Environment`, with time limit, shaping and checks."""
        if environment is None:
            environment = self.make()
        if isinstance(environment, ValidatedEnv):
            self._unchanged(environment)
            return environment
        return ValidatedEnv(
            self.as_environment(environment), self.max_episode_timesteps, self.reward_shaping, self.name
        )

    def as_environment(self, environment: Any) -> Environment:
        """Return what `make` made as `Environment`, unchecked."""
        if isinstance(environment, Environment):
            return environment
        if adapter.is_single(environment):
            return adapter.GymnasiumEnv(environment)
        if pettingzoo.is_parallel(environment):
            return pettingzoo.PettingZooEnv(environment)
        if isinstance(environment, gymnasium.vector.VectorEnv):
            raise UsageError(
                f"{self.name!r} is a vector of environments. Give the object to a class or to "
                "operant.envs.vector.create.create; let a function that makes it take num_envs; or give one "
                "environment."
            )
        return NativeEnvironment(from_native(environment, 1, self.name, self.max_episode_timesteps))

    def _unchanged(self, environment: ValidatedEnv) -> None:
        limit = self.max_episode_timesteps
        if limit is not None and limit != environment.max_episode_timesteps():
            raise UsageError(
                f"The environment {environment.name!r} was created with "
                f"max_episode_timesteps={environment.max_episode_timesteps()}. "
                f"Received: max_episode_timesteps={limit}. Give the limit when it is created."
            )
        if self.reward_shaping is not None:
            raise UsageError(
                f"The environment {environment.name!r} was created already. Give reward_shaping when it is "
                "created."
            )

    def literal(self) -> str:
        """Return, as a Python literal, what a worker needs to make the same; SpecError: no plain data."""
        if self.is_object:
            raise _unsendable(self.name, "an environment object", "Give its id or its class")
        if self.reward_shaping is not None:
            raise _unsendable(self.name, "reward_shaping", "Shape rewards inside the environment")
        data: dict[str, Any] = {
            "name": self.name,
            "arguments": dict(self.arguments),
            "limit": self.max_episode_timesteps,
            "images": None if self.images is None else dataclasses.asdict(self.images),
        }
        if isinstance(self.target, GymnasiumSpec):
            data["spec"] = _spec_data(self.target)
        elif isinstance(self.target, str):
            data["id"] = self.target
        else:
            data["path"] = self.path or _path(self.target, self.name)
        if not _is_plain(data):
            bad = [name for name, value in self.arguments.items() if not _is_plain(value)]
            what = (
                f"the argument {bad[0]!r} ({type(self.arguments[bad[0]]).__name__})"
                if bad
                else "its registration"
            )
            raise _unsendable(self.name, what, "Use numbers, strings, lists, tuples and dicts only")
        return repr(data)

    @classmethod
    def from_literal(cls, text: str) -> EnvSpec:
        """Read what `literal` returned."""
        data = ast.literal_eval(text)
        if "spec" in data:
            wrappers = tuple(WrapperSpec(**wrapper) for wrapper in data["spec"].pop("wrappers"))
            target: Any = GymnasiumSpec(**data["spec"], additional_wrappers=wrappers)
        else:
            target = data["id"] if "id" in data else import_object(data["path"], "environment")
        images = data["images"] and preprocessing.PreprocessingOptions(**data["images"])
        return cls(target, data["name"], data["arguments"], data["limit"], images=images)


def _spec_data(spec: Any) -> dict[str, Any]:
    entry, vector = (
        _path(e, spec.id) if e is not None and not isinstance(e, str) else e
        for e in (spec.entry_point, spec.vector_entry_point)
    )
    wrappers = [
        {"name": w.name, "entry_point": w.entry_point, "kwargs": w.kwargs} for w in spec.additional_wrappers
    ]
    return {
        "id": spec.id,
        "entry_point": entry,
        "vector_entry_point": vector,
        "max_episode_steps": spec.max_episode_steps,
        "kwargs": dict(spec.kwargs),
        "wrappers": wrappers,
    }


def _path(target: Any, name: str) -> str:
    module, qualified = getattr(target, "__module__", None), getattr(target, "__qualname__", "")
    if not module or not qualified or "<" in qualified or "." in qualified:
        raise _unsendable(
            name, "a class or function that cannot be imported by name", "Define it at the top of a module"
        )
    return f"{module}:{qualified}"


def _unsendable(name: str, what: str, remedy: str) -> SpecError:
    return SpecError(
        f"Environment {name!r} cannot run in worker processes: {what} cannot be sent. {remedy}, or run it in "
        f"this process: {HERE}."
    )


def _is_plain(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError):
        return False


def refuse_same(sources: Sequence[EnvSpec]) -> None:
    """Refuse (UsageError) an object in two places, inside wrappers too: episodes would disturb each other."""
    places: dict[int, int] = {}
    inner = [
        getattr(source.target, "unwrapped", source.target) for source in sources
    ]  # kept, since the id of a dead object may be used again
    for i, source in enumerate(sources):
        if not source.is_object or source.is_native:  # a JAX-native one has no state of its own
            continue
        first = places.setdefault(id(inner[i]), i)
        if first != i:
            raise UsageError(
                f"Each environment must be an object of its own. Received: environments {first} and {i} are "
                f"the same {source.name!r}. Make each by itself: create_envs(name, n), [make() for _ in "
                "range(n)]; or give an id."
            )


def is_environment(value: Any) -> bool:
    """Tell whether a value is an environment, or a vector of Gymnasium's."""
    if isinstance(value, Environment | gymnasium.Env | gymnasium.vector.VectorEnv) or pettingzoo.is_parallel(
        value
    ):
        return True
    return is_native(value)


def is_native(value: Any) -> bool:
    """Tell a JAX-native environment by its attributes' names: the module of the protocol loads JAX."""
    return not isinstance(value, _OTHER_KINDS | type) and all(hasattr(value, name) for name in _NATIVE)


def lacking(value: Any) -> str:
    """Say what a value with `reset` and `step` lacks to be Gymnasium's or JAX-native; empty for others."""
    if isinstance(value, type) or not all(callable(getattr(value, name, None)) for name in ("reset", "step")):
        return ""
    if isinstance(getattr(value, "action_space", None), gymnasium.Space):
        return " It has a space of Gymnasium: derive its class from gymnasium.Env."
    if hasattr(value, "action_space") and not hasattr(value, "spaces"):
        other = "It is not of Gymnasium but of another, perhaps older, interface"
        return f" {other}: wrap it in a gymnasium.Env, as docs/environments.md shows."
    lacks = []
    for name in _NATIVE:
        try:
            getattr(value, name)
        except AttributeError as error:  # of the name itself, or raised by a property
            lacks.append(f"{name} ({error})" if hasattr(type(value), name) else name)
    return f" To be a JAX-native environment it lacks {' and '.join(lacks)}." if lacks else ""
