"""Values of `info`, such as `is_success`, at the last step of episodes: which to record, what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from operant.errors import EnvError, SpecError, as_number, suggest, value_error


def keywords_of(keywords: Any) -> tuple[str, ...]:
    """Return the names in `info` to record; SpecError: they are not a list of different names."""
    names = tuple(keywords) if isinstance(keywords, list | tuple) else ()
    sound = all(isinstance(name, str) and name for name in names) and len(set(names)) == len(names)
    if not sound or not isinstance(keywords, list | tuple):
        raise value_error("info_keywords", "a list of different names in info", keywords)
    return names


def refusal(keywords: Sequence[str], name: str) -> SpecError:
    """Return the error for a JAX-native environment, whose steps return no `info`."""
    return SpecError(
        f"info_keywords is for environments whose step returns an info; {name!r} is JAX-native and has none. "
        f"Received: info_keywords={tuple(keywords)!r}. Leave it out."
    )


class InfoCollector:
    """Collects what `n` environments tell in `info`, under `keywords`, at the end of their episodes."""

    def __init__(self, keywords: Sequence[str], n: int) -> None:
        self.keywords = tuple(keywords)
        self._known = np.zeros(n, np.bool_)  # whose first episode has shown that the names are right

    def blank(self) -> dict[str, np.ndarray]:
        """Return the values of a step that ends no episode: NaN, float64 `[N]` by name."""
        return {key: np.full(len(self._known), math.nan) for key in self.keywords}

    def note(self, into: dict[str, np.ndarray], i: int, info: Mapping[str, Any]) -> None:
        """Record what one environment tells at an episode's end; values that it does not tell stay NaN."""
        for key in self.keywords:
            if key in info:
                into[key][i] = self._number(key, info[key])
            elif not self._known[i]:
                description = f"its keys are {', '.join(map(repr, info))}" if info else "it is empty"
                remedy = suggest(key, info, listed=False).strip() or "Correct info_keywords, or leave it out."
                raise EnvError(f"An episode ended without info[{key!r}]: {description}. {remedy}")
        self._known[i] = True

    @staticmethod
    def _number(key: str, value: Any) -> float:
        number = as_number(value)
        if number is None:
            raise EnvError(
                f"info[{key!r}] must be a number to be recorded. Received: {value!r} "
                f"({type(value).__name__}). Leave it out of info_keywords."
            )
        return number
