"""Functions of the user's that a run calls: how they are given, and how they end it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from operant.errors import value_error


def callbacks_of(given: Any, must: str) -> tuple[Callable[..., Any], ...]:
    """Return what was given as `callback`: None, a function, or several in a list.

    Args:
        given: what it is.
        must: what it must be, for the message.

    Raises:
        SpecError: it is something else.
    """
    callbacks = tuple(given) if isinstance(given, list | tuple) else () if given is None else (given,)
    if not all(callable(each) for each in callbacks):
        raise value_error("callback", must, given)
    return callbacks


def none_refuses(answers: Iterable[Any]) -> bool:
    """Tell whether the run goes on: none of the answers is False. Whatever else they are, None above all, is no veto."""
    return not any(isinstance(answer, bool | np.bool_) and not answer for answer in answers)
