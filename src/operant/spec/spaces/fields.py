"""Readers of a component's fields: each returns the canonical form of a field, or raises `SpecError`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from operant.errors import SpecError, suggest, value_error

MOST_NUMBERS = 1 << 27
"""Numbers of the largest component that is used: a stack of four pictures of 4K has 100 million."""

NDArray: TypeAlias = npt.NDArray[Any]
Type: TypeAlias = Literal["float", "int", "bool"]
Bound: TypeAlias = float | int | tuple[Any, ...] | None
"""A limit for all entries, nested tuples of limits (None where open), or None: open everywhere."""

STORAGE: dict[str, tuple[str, ...]] = {
    "float": ("float32", "float16", "uint8", "int8", "uint16", "int16", "int32"),
    "int": ("int32", "uint8", "int8", "uint16", "int16"),
    "bool": ("bool",),
}
KINDS = {"float": "a number", "int": "an integer", "bool": "True or False"}
MOST_ENTRIES = 2**31
"""The most entries that a component may have."""


def is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number, and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def read_type(value: Any) -> Type:
    """Read 'float', a Python type or a NumPy type."""
    try:
        kind = np.dtype(value).kind if value is not None else ""
    except TypeError:
        kind = ""
    name = {"f": "float", "i": "int", "u": "int", "b": "bool"}.get(kind)
    if name is None:
        known = suggest(value, KINDS) if isinstance(value, str) else ""
        raise value_error("type", "'float', 'int' or 'bool'", value, known.strip())
    return cast(Type, name)


def read_dtype(value: Any, kind: str) -> str:
    """Read the storage type of a component, by default the first that its type allows."""
    allowed = STORAGE[kind]
    if isinstance(value, str) and not value:
        return allowed[0]
    try:
        name = np.dtype(value).name if value is not None else ""
    except TypeError:
        name = ""
    if name not in allowed:
        raise value_error("dtype", f"one of {', '.join(allowed)} for type {kind!r}", value)
    return name


def read_shape(value: Any) -> tuple[int, ...]:
    """Read a whole number or a sequence of them."""
    shape = (value,) if is_whole(value) else value
    if not isinstance(shape, Iterable) or isinstance(shape, str | Mapping):
        raise value_error("shape", "a whole number or a list of whole numbers", value)
    shape = tuple(shape)
    if not all(is_whole(n) and n >= 1 for n in shape):
        raise value_error("shape", "made of whole numbers of at least 1", value)
    if math.prod(map(int, shape)) > MOST_ENTRIES:
        raise value_error("shape", f"of at most {MOST_ENTRIES} entries", value)
    return tuple(int(n) for n in shape)


def read_bound(name: str, value: Any, shape: tuple[int, ...], kind: str) -> Bound:
    """Bring a bound into its canonical form: None, a number, or nested tuples of the leaf's shape."""
    if value is None:
        return None
    if kind == "bool":
        raise SpecError(f"{name} is not for type 'bool'. Received: {name}={value!r}.")
    array = np.asarray(value)
    if array.dtype == object:  # nested tuples with None where open
        open_side = -np.inf if name == "min_value" else np.inf
        array = np.array([open_side if entry is None else entry for entry in array.ravel()]).reshape(
            array.shape
        )
    if array.dtype.kind not in "iuf" or np.isnan(array).any():
        raise value_error(name, "a number or an array of numbers", value)
    array = array.astype(np.float64)
    if kind == "float":  # beyond the range of float32 counts as open, too
        array = np.where(np.abs(array) >= np.finfo(np.float32).max, np.copysign(np.inf, array), array)
    if np.any(array == (np.inf if name == "min_value" else -np.inf)):
        raise value_error(name, "finite, or infinite on the open side", value)
    try:
        full = np.broadcast_to(array, shape)
    except ValueError:
        raise value_error(name, f"a number or an array of shape {shape}", value) from None
    finite = np.isfinite(array)
    if kind == "int" and np.any(array[finite] != np.floor(array[finite])):
        raise value_error(name, "whole for type 'int'", value)
    if not finite.any():
        return None
    number: Any = int if kind == "int" else float
    if np.all(array == array.flat[0]):
        return cast(Bound, number(array.flat[0]))
    return cast(Bound, _tuples(full.tolist(), number))


def _tuples(value: Any, number: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(entry, number) for entry in value)
    return number(value) if math.isfinite(value) else None


def lists(value: Any) -> Any:
    """Turn nested tuples into nested lists, for JSON."""
    return [lists(entry) for entry in value] if isinstance(value, tuple) else value


def bound_array(bound: Bound, shape: tuple[int, ...], open_side: float) -> NDArray:
    """Return a bound as float64 array of the given shape, with `open_side` where it is open."""
    if math.prod(shape) > MOST_NUMBERS:
        raise value_error("shape", f"of at most {MOST_NUMBERS:,} numbers", shape)
    if not isinstance(bound, tuple):
        return np.full(shape, open_side if bound is None else bound, np.float64)
    array = np.array(bound, np.float64)  # NumPy reads None as NaN
    return np.where(np.isnan(array), open_side, array)
