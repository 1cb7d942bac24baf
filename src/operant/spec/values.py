"""Plain values: the one form in which options hold them, their JSON data, calls by argument names."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from operant.errors import SpecError, suggest
from operant.spec.written_out import asked

T = TypeVar("T")
DEEPEST = 100
"""How deep lists and objects of a JSON text may be nested."""
_DEEP = f"its lists and objects are nested more than {DEEPEST} deep"


def from_json(text: str | bytes) -> Any:
    """Return what a JSON text says that somebody else may have written.

    Raises:
        ValueError: it is no JSON, is nested too deeply, or holds text that is no Unicode.
    """
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError(_DEEP) from None
    level, depth = [data], 0
    while level:
        if depth > DEEPEST:
            raise ValueError(_DEEP)
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                inner += [*part, *part.values()]
            elif isinstance(part, list):
                inner += part
            elif isinstance(part, str):
                part.encode()
        level, depth = inner, depth + 1
    return data


def settled(value: Any) -> Any:
    """Return the form in which options hold a value: tuples, Python's numbers, paths as strings."""
    if isinstance(value, list | tuple):
        return tuple(settled(v) for v in value)
    if isinstance(value, dict):
        return {str(k): settled(v) for k, v in value.items()}
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def finite(value: Any) -> bool:
    """Return whether this is a finite number (and no truth value)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def plain(value: Any) -> Any:
    """Return `value` as JSON data (dicts, lists, numbers, strings), or raise `SpecError`."""
    if hasattr(value, "to_dict") and not isinstance(value, type):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    raise SpecError(
        f"{value!r} cannot be written as plain data. Give it by name or as a dict where it must be saved."
    )


def _parameters(cls: Callable[..., Any]) -> tuple[Mapping[str, inspect.Parameter], bool]:
    parameters = inspect.signature(cls).parameters
    return parameters, any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def understood(cls: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without those that `cls` does not take and that ask for nothing."""
    parameters, free = _parameters(cls)
    return dict(arguments) if free else asked(arguments, parameters)


def called(cls: Callable[..., T], arguments: dict[str, Any], label: str) -> T:
    """Call `cls` with the arguments; unknown and missing ones are named, with the close match."""
    parameters, free = _parameters(cls)
    for key in arguments:
        if key not in parameters and not free:
            raise SpecError(f"{label} takes no argument {key!r}.{suggest(key, parameters)}")
    for name, p in parameters.items():
        required = p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        if required and name not in arguments:
            raise SpecError(f"{label} requires the argument {name!r}.")
    return cls(**arguments)
