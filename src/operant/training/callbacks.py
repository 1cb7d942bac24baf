"""The user's callbacks, which a run calls: how they are given, and how they end it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from operant.errors import value_error


def callbacks_of(value: Any, must: str, arguments: int | None = None) -> tuple[Callable[..., Any], ...]:
    """Return what was given as `callback`: None, a function, or several in a list.

    `must` says what it must be, for the message; `arguments`, how many it is called with, if that is fixed.
    """
    callbacks = tuple(value) if isinstance(value, list | tuple) else () if value is None else (value,)
    if not all(callable(each) and _takes(each, arguments) for each in callbacks):
        raise value_error("callback", must, value)
    return callbacks


def _takes(callback: Callable[..., Any], arguments: int | None) -> bool:
    if arguments is None:
        return True
    try:
        inspect.signature(callback).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:  # it has no signature
        pass
    return True


def none_refuses(answers: Iterable[Any]) -> bool:
    """Tell whether the run goes on: no answer is False. Any other, such as None, is no veto."""
    return not any(isinstance(answer, bool | np.bool_) and not answer for answer in answers)
