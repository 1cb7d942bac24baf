"""What an environment's specification (id, class, file or object) names, and the list of known ids."""

from __future__ import annotations

import contextlib
import difflib
import importlib.metadata
import importlib.util
import itertools
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from operant.envs.env_spec import EnvSpec, is_environment, is_native, lacking
from operant.envs.environment import Environment
from operant.envs.gymnasium import adapter as adapter
from operant.envs.gymnasium import envpool, pettingzoo, preprocessing
from operant.envs.native import ids
from operant.envs.validated_env import ValidatedEnv
from operant.envs.validation_errors import close
from operant.errors import SpecError, UsageError
from operant.spec import followed, import_object, refuse_code

Kind = Literal["gymnasium", "atari", "jax", "adapter"]
_OPTIONS = ("max_episode_timesteps", "reward_shaping")
_REMOTE = ("remote", "blocking", "host", "port")


class EnvId(NamedTuple):
    """One id for `operant list`."""

    id: str
    kind: Kind
    extra: str | None
    """The extra to install for it: ``pip install 'operant[extra]'``; None: none is needed."""


def known() -> list[EnvId]:
    """Return every id that can be made here; ``gymnax:*`` and ``brax:*`` as such."""
    adapter.register_atari()
    rows: list[EnvId] = []
    for spec in gymnasium.registry.values():
        if isinstance(spec.entry_point, str):  # for ids of removed environments it is a function that raises
            kind: Kind = "atari" if spec.entry_point == adapter.ATARI else "gymnasium"
            needs = adapter.needed(spec)
            rows.append(EnvId(spec.id, kind, needs[1] if needs else None))
    rows += [EnvId(name, "jax", None) for name in ids.native_ids()]
    return [*rows, EnvId("gymnax:*", "adapter", None), EnvId("brax:*", "adapter", None)]


def resolve(
    environment: Any,
    *,
    max_episode_timesteps: int | None = None,
    reward_shaping: Any = None,
    arguments: Mapping[str, Any] | None = None,
    images: Mapping[str, Any] | None = None,
    remote: dict[str, Any] | None = None,
) -> EnvSpec:
    """Read a specification and its arguments (see `Environment.create`); nothing is made yet.

    `images` are fields of `PreprocessingOptions`; ids take them among their arguments, too.

    `remote` receives what a dict or file says of `remote`, `blocking`, `host` and `port`; without it these
    are refused.
    """
    parameters = dict(arguments or {})
    options = {"max_episode_timesteps": max_episode_timesteps, "reward_shaping": reward_shaping}
    environment = _unfold(environment, parameters, options, remote)
    if environment in ("gym", "gymnasium", "default"):
        environment = parameters.pop("level", None)
        if environment is None:
            raise SpecError(
                "The environment 'gymnasium' needs the argument 'level', an id such as 'CartPole-v1'."
            )
    if isinstance(environment, str):
        target, name, path = _named(environment, parameters)
        if isinstance(target, GymnasiumSpec):
            images = preprocessing.taken(parameters, images or {})
    else:
        target, name, path = environment, _name_of(environment), ""
        if not (_is_maker(environment) or is_environment(environment)):
            raise SpecError(
                "environment must be an id, an Environment, a gymnasium.Env, a class of these, a dict with "
                f"'environment', or a JSON file. Received: environment={environment!r}.{lacking(environment)}"
            )
        if parameters and not callable(environment):
            raise UsageError(
                f"The environment {name!r} exists already and takes no argument {next(iter(parameters))!r}. "
                "Give its class."
            )
    settings = preprocessing.read(images or {}, name)
    if settings is not None and not (isinstance(target, GymnasiumSpec) or callable(target)):
        raise UsageError(
            f"{', '.join(images or {})}: for an id, a class or a function, which {name!r} is not. Give them "
            "where objects are made: create_envs(name, n, resize=84)."
        )
    return EnvSpec(target, name, parameters, path=path, images=settings, **options)


def _unfold(
    environment: Any, parameters: dict[str, Any], options: dict[str, Any], remote: dict[str, Any] | None
) -> Any:
    """Return what a specification names, gathering arguments into `parameters` and `options`."""
    environment, given = followed(environment, "environment", ("environment", "type"))
    for key, value in itertools.chain.from_iterable(inner.items() for inner in given):
        into = options if key in _OPTIONS else parameters
        unset: tuple[Any, ...] = (None,)
        if key in _REMOTE:
            unset = (None, False)
            if value in unset:
                continue
            if remote is None:
                raise SpecError(
                    f"{key} is no part of one environment's specification here. Received: {key}={value!r}. "
                    "Give remote, host and port beside it, to Environment.create or a Runner."
                )
            into = remote
        if into.get(key) not in unset and into[key] != value:
            raise SpecError(f"environment argument {key!r} is given twice, as {value!r} and {into[key]!r}.")
        into[key] = value
    return environment


def _named(name: str, parameters: dict[str, Any]) -> tuple[Any, str, str]:
    """Return what a string names (an id, native or of Gymnasium, or a class), and two of its names."""
    if ids.is_native(name):
        return name, name, ""
    if name.startswith("pettingzoo:"):
        parameters["id"] = name.removeprefix("pettingzoo:")
        return pettingzoo.make_parallel, name, "operant.envs.gymnasium.pettingzoo:make_parallel"
    if name.startswith("envpool:"):
        parameters["id"] = name.removeprefix("envpool:")
        return envpool.make_vector, name, "operant.envs.gymnasium.envpool:make_vector"
    modules = parameters.pop("import_modules", ())
    for module in (modules,) if isinstance(modules, str) else modules:
        import_object(f"{module}:__name__", "module")
    spec = None if _looks_importable(name) else adapter.find(name)
    if spec is not None:
        return spec, spec.id, ""
    name = _class_in(name)
    if _looks_importable(name):
        target = import_object(name, "environment")
        if not (_is_maker(target) or is_environment(target)):
            kind = f"the class {target.__name__}" if isinstance(target, type) else type(target).__name__
            raise SpecError(
                f"{name!r} must be an Environment, a gymnasium.Env or a NativeEnv, or a class or function "
                f"that makes one. Received: {kind}.{lacking(target)}"
            )
        return target, name, name
    raise _unknown(name)


def _class_in(name: str) -> str:
    """Return ``module:Class`` of the one environment class of a module; what names no module as it is."""
    if any(not part.isidentifier() for part in name.split(".")):
        return name
    refuse_code(name, "environment")
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # what is before the last dot is no package
        found = None
    if found is None:
        return name
    import_object(f"{name}:__name__", "module")
    classes = {x: cls for x, cls in vars(sys.modules[name]).items() if isinstance(cls, type)}
    makers = [x for x, cls in classes.items() if cls.__module__ == name and _is_maker(cls)]
    if len(makers) != 1:
        raise SpecError(
            f"The module {name!r} must define one class of an environment. It defines: "
            f"{', '.join(makers) or 'none'}. Name what is meant, too: {name}:Name."
        )
    return f"{name}:{makers[0]}"


def full_id(name: str) -> str:
    """Return an id of Gymnasium with its version, and other names as they are; SpecError: not installed."""
    spec = None if ":" in name or _looks_importable(name) else adapter.find(name)
    return name if spec is None else spec.id


def is_own(name: object) -> bool:
    """Tell whether a specification begins with the name of a module: ``module:Name``, ``module:Id-v0``."""
    if not isinstance(name, str) or ids.is_native(name):
        return False
    module, colon, _ = name.partition(":")
    return (
        colon != ""
        and module not in ("pettingzoo", "envpool")
        and all(part.isidentifier() for part in module.split("."))
    )


def native(name: str, **arguments: Any) -> Any:
    """Make the JAX-native environment of an id, or of `module:Name` of an object, class or function.

    Returns:
        A `NativeEnv`; None if the name stands for another kind. A function is called to find that out.

    Raises:
        SpecError: it cannot be made.
    """
    if not (ids.is_native(name) or _looks_importable(name)):
        return None
    source = resolve(name, arguments=arguments)
    makes = source.path == name and callable(source.target) and not isinstance(source.target, type)
    if not (source.is_native or (makes and not source.makes_vector)):
        return None
    environment = source.make()
    if not is_native(environment):
        close(environment)
        return None
    return environment


def _looks_importable(name: str) -> bool:
    """Tell ``package.module.Class`` and ``module:Class`` from ids, which end in a version or have no dot."""
    if re.search(r"\.py($|:)", name):  # a file: the import says how it is named
        return True
    module, _, last = name.replace(":", ".").rpartition(".")
    return bool(module) and last.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _unknown(name: str) -> SpecError:
    names = [row.id for row in known() if row.kind != "adapter"]
    bases, lower = {_base(id): id for id in names}, {id.lower(): id for id in names}
    close = difflib.get_close_matches(_base(name), bases, n=1, cutoff=0.75)
    hint = "`operant list envs` shows what there is; for an id of another package, --env package:Id-v0."
    if close:
        hint = f"Did you mean {lower.get(close[0] + name.lower()[len(_base(name)) :], bases[close[0]])!r}?"
    if re.search(r"-v\d+$", name) and (module := _registering(name)) is not None:
        hint = f"An installed package registers it: --env {module}:{name}"
    elif name.isidentifier() and (Path(f"{name}.py").is_file() or importlib.util.find_spec(name) is not None):
        hint = f"For an environment of the module {name!r} name it, too: {name}:Name."
    return SpecError(f"Unknown environment {name!r}. {hint}")


def _base(name: str) -> str:
    """Return an id without its version, in small letters."""
    return re.sub(r"-v\d+$", "", name.lower())


def _registering(name: str) -> str | None:
    """Return the module of an installed package that registers an id of Gymnasium, or one that it makes of
    parts (``f"PandaReach{suffix}-v3"``): read from its files, as importing all packages may do anything.
    """
    quoted = re.compile(rf"""["'](?:{re.escape(name)}["']|([\w./-]{{4,}})\{{)""")
    modules = []
    for package in importlib.metadata.distributions():
        if not any(re.match("gymnasium|gym", need, re.IGNORECASE) for need in package.requires or ()):
            continue
        for file in package.files or ():
            if file.suffix == ".py" and "test" not in str(file):
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    text = file.read_text()
                    begun = [match[1] for match in quoted.finditer(text) if name.startswith(match[1] or "")]
                    if "register" in text and begun:
                        parts = [part.removesuffix(".py") for part in file.parts if part != "__init__.py"]
                        modules.append((None not in begun, len(parts), ".".join(parts)))
    return min(modules)[-1] if modules else None


def _is_maker(value: Any) -> bool:
    if not isinstance(value, type):
        return callable(value)
    return issubclass(value, Environment | gymnasium.Env) or all(hasattr(value, n) for n in ("reset", "step"))


def _name_of(environment: Any) -> str:
    if isinstance(environment, ValidatedEnv):
        return environment.name
    spec = getattr(environment, "spec", None)
    if not isinstance(environment, type) and spec is not None and hasattr(spec, "id"):
        return str(spec.id)
    return getattr(environment, "__name__", type(environment).__name__)
