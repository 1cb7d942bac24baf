"""Steps of which a program learns only while it runs how many are due: as its processor does them best.

A loop of zero or more iterations does on a CPU no more than is due, and works in place, where XLA copies what
a conditional returns. On a GPU the host must look at the device before every iteration of such a loop, which
takes as long as dozens of kernels, and nothing within it can be launched together with what comes before and
after. So there all steps that there can be are computed, and those that are not due are discarded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from operant.types import Array, Tree

T = TypeVar("T", bound=Tree)
_PLATFORM: ContextVar[str | None] = ContextVar("_PLATFORM", default=None)


@contextlib.contextmanager
def compiled_for(platform: str) -> Iterator[None]:
    """Say while functions are traced on what they will run (`cpu`, `gpu`).

    Otherwise it is JAX's default device.
    """
    token = _PLATFORM.set(platform)
    try:
        yield
    finally:
        _PLATFORM.reset(token)


def _platform() -> str:
    if (said := _PLATFORM.get()) is not None:
        return said
    device = getattr(jax.config, "jax_default_device", None)
    return str(jax.default_backend() if device is None else getattr(device, "platform", device))


def repeat(count: Int[Array, ""], most: int, step: Callable[[Array, Any], Any], carry: T) -> T:
    """Return what `count` steps make of `carry`.

    Args:
        count: how many are due.
        most: more than that are never due. If steps are seldom due, a plain loop may be better anywhere.
        step: (number of the step, carry) to the carry after it. Leaves that it returns as they are cost
            nothing.
        carry: before the first step.
    """
    if _platform() == "cpu":
        after: T = jax.lax.fori_loop(0, count, step, carry)
        return after

    def taken(i: Array, before: T) -> T:
        return _where(i < count, step(i, before), before)

    if most == 1:
        return taken(jnp.int32(0), carry)
    result: T = jax.lax.fori_loop(0, most, taken, carry)
    return result


def _where(condition: Bool[Array, ""], new: T, old: T) -> T:
    """Return `new` or `old`; what is one and the same array in both is not selected from."""
    either: T = jax.tree.map(lambda x, y: x if x is y else jnp.where(condition, x, y), new, old)
    return either


def once_if(condition: Bool[Array, ""], f: Callable[[Any], Any], carry: T) -> T:
    """Return `f(carry)`, or `carry` if the condition does not hold."""
    return repeat(condition.astype(jnp.int32), 1, lambda _, carry: f(carry), carry)
