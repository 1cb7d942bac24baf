"""Ids of JAX-native environments; JAX is loaded when one is made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from operant.errors import SpecError, expect_like, suggest
from operant.spec.run import NATIVE

if TYPE_CHECKING:
    from operant.envs.native.native_env import NativeEnv


def is_native(name: object) -> bool:
    """Tell whether a specification is the id of a JAX-native environment."""
    return isinstance(name, str) and name.startswith(NATIVE)


def make(name: str, /, **arguments: Any) -> NativeEnv:
    """Make the JAX-native environment of an id (``jax:CartPole-v1``); SpecError: a wrong argument."""
    maker = _maker(name)
    parameters = inspect.signature(maker).parameters
    names = parameters.keys() - {"max_episode_timesteps"}
    for key, value in arguments.items():
        if key not in parameters:
            remedy = suggest(key, names) or " It takes none."
            raise SpecError(f"The environment {name!r} takes no argument {key!r}.{remedy}")
        if key in names:
            expect_like(key, value, parameters[key].default)
    environment: NativeEnv = maker(**arguments)
    return environment


def _maker(name: str) -> Callable[..., Any]:
    prefix, _, label = name.partition(":")
    if prefix != "jax":
        from operant.envs.native import functional

        return functools.partial(
            functional.from_gymnax if prefix == "gymnax" else functional.from_brax, label
        )
    from operant.envs.native.classic import NATIVE

    if label not in NATIVE:
        raise SpecError(f"Unknown environment {name!r}.{suggest(name, native_ids())}")
    return NATIVE[label]


def native_ids() -> list[str]:
    """Return the ids of operant's own environments."""
    from operant.envs.native.classic import NATIVE

    return [f"jax:{name}" for name in NATIVE]
