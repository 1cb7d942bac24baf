"""Ids of JAX-native environments; JAX is loaded when one is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from operant.errors import SpecError, suggest
from operant.spec import build

if TYPE_CHECKING:
    from operant.envs.native import NativeEnv

PREFIXES = ("jax:", "gymnax:", "brax:")


def is_native(name: object) -> bool:
    """Tell whether a specification is the id of a JAX-native environment."""
    return isinstance(name, str) and name.startswith(PREFIXES)


def make(name: str, **arguments: Any) -> NativeEnv:
    """Make the JAX-native environment of an id (``jax:CartPole-v1``); loads JAX.

    Raises:
        SpecError: the id or an argument is unknown.
    """
    prefix, _, label = name.partition(":")
    if prefix != "jax":
        from operant.envs import functional

        adapt: Callable[..., Any] = functional.from_gymnax if prefix == "gymnax" else functional.from_brax
        return build(adapt, {"env": label, **arguments}, f"environment {name!r}")
    entries = _entries()
    if label not in entries:
        raise SpecError(f"Unknown environment {name!r}.{suggest(name, known())}")
    return build(entries[label], arguments, f"environment {name!r}")


def _entries() -> dict[str, Callable[..., Any]]:
    from operant.envs.classic import NATIVE
    from operant.envs.probe import PROBES

    return {**NATIVE, **PROBES}


def known() -> list[str]:
    """Return the ids of operant's own environments."""
    return [f"jax:{name}" for name in _entries()]
