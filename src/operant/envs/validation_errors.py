"""What is wrong with the observations, rewards, flags and masks that environments answer, in sentences.

Every driver validates alike: in full the first time that `reset` and `step` answer; afterwards, at every
step, rewards, flags, and what an observation may become while its form stays the same: NaN, or a mask that
allows nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy import vdot

from operant.spec.spaces import Leaf, Spaces, mask_name
from operant.spec.spaces.space import Flat

Check: TypeAlias = Literal["first", "always", "never"]
"""How often observations are validated."""
NUMBERS = frozenset((float, int, np.float64, np.float32, np.int64))
"""The types of nearly all rewards, for a fast test before `reward_error`."""
FLAGS = frozenset((bool, np.bool_))
"""The types of nearly all flags, for a fast test before `flag_error`."""
MOST_TEXT = 2000
"""Characters of an exception that are shown."""
CLOSE_SECONDS = 10.0
"""How long an environment in this process may take to close."""

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_LIBRARIES = tuple(
    os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib")
)

_LARGEST = float(np.finfo(np.float32).max)
_KINDS = {"f": "a number", "i": "a whole number", "u": "a whole number", "b": "True or False"}
_ACCEPTED = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}


class _HangError(Exception):
    """Wakes the main thread."""


def space_errors(space: Any, value: Any, name: str = "observation", *, strict: bool = False) -> Iterator[str]:
    """Say why a value is not a member of a Gymnasium space.

    Args:
        space: the Gymnasium space.
        value: one member, without a batch axis.
        name: of the value, for messages.
        strict: whether dtypes must be equal, not only of the same kind.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or value.keys() != space.spaces.keys():
            keys = ", ".join(map(repr, space.spaces))
            received = ", ".join(map(repr, value)) if isinstance(value, Mapping) else type(value).__name__
            yield f"The {name} must be a dict with {keys}. Received: {received}."
            return
        for key, branch in space.spaces.items():
            yield from space_errors(branch, value[key], f"{name}[{key!r}]", strict=strict)
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            yield f"The {name} must be a tuple of {len(space.spaces)}. Received: {brief(value)}."
            return
        for i, branch in enumerate(space.spaces):
            yield from space_errors(branch, value[i], f"{name}[{i}]", strict=strict)
    else:
        yield from _array_errors(space, value, name, strict)


def _array_errors(space: Any, value: Any, name: str, strict: bool) -> Iterator[str]:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = np.asarray(None)
    kind = space.dtype.kind
    binary = type(space).__name__ == "MultiBinary"
    if array.dtype.kind not in _ACCEPTED[kind] + ("b" if binary else ""):
        yield f"The {name} must be {_KINDS[kind]} ({space.dtype}). Received: {brief(value)}."
        return
    if array.shape != (space.shape or ()):
        yield f"The {name} must have shape {space.shape}. Received: shape {array.shape}."
        return
    if strict and (
        (not isinstance(value, np.ndarray) and space.shape) or (array.dtype != space.dtype and space.shape)
    ):
        received = f"dtype {array.dtype}" if isinstance(value, np.ndarray) else brief(value)
        yield f"The {name} must be an array of dtype {space.dtype}. Received: {received}."
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        yield f"The {name} must be finite. Received: {first(array, ~np.isfinite(array))}."
        return
    low, high = _bounds(space)
    outside = (array < low) | (array > high)
    if outside.any():
        where = np.broadcast_to(low, array.shape)[outside][0], np.broadcast_to(high, array.shape)[outside][0]
        yield f"The {name} must be between {where[0]} and {where[1]}. Received: {first(array, outside)}."


def _bounds(space: Any) -> tuple[Any, Any]:
    name = type(space).__name__
    if hasattr(space, "low"):
        return space.low, space.high
    if hasattr(space, "nvec"):
        return space.start, space.start + space.nvec - 1
    return (0, 1) if name == "MultiBinary" else (space.start, space.start + space.n - 1)


def _component_error(leaf: Leaf, label: str, array: np.ndarray) -> tuple[int, str] | None:
    """Find the first fault in a component `[N, *shape]`: index, and what is not finite or out of range."""
    error = finite_error(label, array)
    if error is not None or leaf.type == "bool":
        return error
    least, greatest = leaf.stored_range
    outside = (array < least) | (array > greatest)
    if not outside.any():
        return None
    low: Any = 0 if leaf.num_values is not None else leaf.low
    high: Any = leaf.num_values - 1 if leaf.num_values is not None else leaf.high
    i = int(np.argwhere(outside)[0][0])
    entry = tuple(np.argwhere(outside)[0][1:])
    span = np.broadcast_to(low, leaf.shape)[entry], np.broadcast_to(high, leaf.shape)[entry]
    return i, (
        f"The {label} must be between {span[0]:g} and {span[1]:g}. Received: {first(array[i], outside[i])}. "
        f"Widen the space, or correct the value."
    )


def mask_error(label: str, mask: np.ndarray) -> tuple[int, str] | None:
    """Find the first environment whose mask `[N, *shape, num_values]` allows nothing: index, and fault."""
    empty = ~mask.any(-1)
    if not empty.any():
        return None
    i = int(np.argwhere(empty)[0][0])
    return i, f"The mask {label!r} must allow at least one value. Received: all False."


def observation_error(
    spaces: Spaces, observation: Flat, over: np.ndarray | None = None
) -> tuple[int, str] | None:
    """Find the first fault in stored observations `[N, ...]`: the environment's index and the fault.

    Where an episode is `over` `[N]`, no action follows: a mask may allow nothing there.
    """
    for key, leaf in spaces.states.components.items():
        error = _component_error(leaf, state_label(spaces, key), observation[key])
        if error is not None:
            return error
    return _masks_error(spaces, observation, over)


def _masks_error(spaces: Spaces, observation: Flat, over: np.ndarray | None) -> tuple[int, str] | None:
    for action in spaces.masks:
        value = observation[mask_name(action)]
        if over is not None:
            value = value | over.reshape(-1, *(1,) * (value.ndim - 1))
        error = mask_error(mask_name(action), value)
        if error is not None:
            return error
    return None


class ObservationValidator:
    """Validates the stored observations of `N` environments at every step.

    Args:
        spaces: of one environment.
        check: whether `always`, only the `first` time that each call answers, or `never`.
    """

    def __init__(self, spaces: Spaces, check: Check = "always") -> None:
        self._spaces = spaces
        self._new_calls = set() if check == "never" else {"reset", "step"}
        always = check == "always"
        floats = [key for key, leaf in spaces.states.components.items() if leaf.storage.kind == "f"]
        self._floats = floats if always else []
        self._has_masks = always and bool(spaces.masks)

    def error(
        self, observation: Flat, call: str, ended: tuple[np.ndarray, ...] = ()
    ) -> tuple[int, str] | None:
        """Find the first fault in the observation `[N, ...]` of a `call`, `reset` or `step`: index and fault.

        Where a flag in `ended` `[N]` is set, no action follows, and a mask may allow nothing.
        """
        if self._new_calls and call in self._new_calls:
            error = observation_error(self._spaces, observation, _either(ended))
            if error is None:
                self._new_calls.discard(call)
            return error
        for key in self._floats:
            value = observation[key]
            # The product is finite only if all entries are. On small arrays this is five times faster than
            # the exact test, which then excludes mere overflow.
            if not isfinite(vdot(value, value)):
                error = finite_error(state_label(self._spaces, key), value)
                if error is not None:
                    return error
        if self._has_masks:
            return _masks_error(self._spaces, observation, _either(ended))
        return None


def _either(flags: tuple[np.ndarray, ...]) -> np.ndarray | None:
    return np.logical_or(*flags) if flags else None


def state_label(spaces: Spaces, key: str) -> str:
    """Name a component in messages."""
    return "state" if spaces.states.single else f"state {key!r}"


def reward_error(reward: Any) -> str | None:
    """Say what a reward, stored as float32 (large ones overflow), must be and is not; None: it is sound."""
    if isinstance(reward, bool) or not isinstance(reward, int | float | np.integer | np.floating):
        array = np.asarray(reward)
        if isinstance(reward, bool) or array.ndim != 0 or array.dtype.kind not in "fiu":
            return "a number"
    if abs(reward) <= _LARGEST:  # NaN is not
        return None
    return f"at most {_LARGEST:.3g} in size" if isfinite(reward) else "finite"


def flag_error(name: str, flag: Any, *, strict: bool = False) -> str | None:
    """Say that a flag of Gymnasium's `step` is none; None if it is sound. 0 and 1 are, unless `strict`."""
    if type(flag) in FLAGS or (not strict and isinstance(flag, int | np.integer) and flag in (0, 1)):
        return None
    return f"{name} must be True or False. Received: {brief(flag)}."


def terminal_error(terminal: Any) -> str | None:
    """Say what `terminal` of `Environment.execute` must be that it is not; None if it is sound."""
    if isinstance(terminal, bool | np.bool_ | int | np.integer) and int(terminal) in (0, 1, 2):
        return None
    return f"must be False or 0, True or 1, or 2 for a cut episode. Received: {brief(terminal)}."


def finite_error(label: str, array: np.ndarray) -> tuple[int, str] | None:
    """Find the first environment with NaN or infinity in a component `[N, ...]`: index and fault."""
    if array.dtype.kind != "f" or isfinite(vdot(array, array)):
        return None
    bad = ~np.isfinite(array)
    if not bad.any():
        return None
    i = int(np.argwhere(bad)[0][0])
    return i, f"The {label} must be finite. Received: {first(array[i], bad[i])}."


def first(array: np.ndarray, bad: np.ndarray) -> str:
    """Show the first bad entry, and where it is."""
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{array[index]} at index {index}" if index else f"{array[index]}"


def brief(value: Any) -> str:
    """Show a value and its type, in one line at most."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def text_of(error: BaseException) -> str:
    """Return the text of somebody's exception, which may be huge, or itself raise."""
    try:
        return shortened(str(error))
    except Exception as fault:
        return f"(its text raises {type(fault).__name__})"


def shortened(text: str) -> str:
    """Return a text, or its beginning and how long it is."""
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}... ({len(text)} characters)"


def raised_at(error: BaseException) -> str:
    """Return where in the user's code an exception was raised, as `` (FILE, line N: SOURCE)``.

    It is the innermost place outside operant and installed packages, if there is one; else the innermost one
    outside operant.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_PACKAGE)]
    own = [f for f in frames if not f.filename.startswith(_LIBRARIES)]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    return f" ({frame.filename}, line {frame.lineno}{f': {frame.line}' if frame.line else ''})"


def raise_of_handler(error: BaseException) -> None:
    """Raise a `SystemExit` of a signal handler again: it is to end the program, and no fault inside."""
    if not isinstance(error, SystemExit):
        return
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__)):
        raise error


def close(environment: Any) -> None:
    """Close what somebody else wrote. That it raises or hangs is a warning: it has done its work."""
    name = type(getattr(environment, "unwrapped", environment)).__name__
    try:
        with _alarm(CLOSE_SECONDS):
            environment.close()
    except (Exception, SystemExit) as error:
        raise_of_handler(error)
        hangs = isinstance(error, _HangError)
        how = "hangs" if hangs else f"raised {type(error).__name__}: {text_of(error)}"
        warnings.warn(f"close of {name!r} {how}; it counts as closed.", RuntimeWarning, stacklevel=3)


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise `_HangError` after so many seconds, where the main thread can be woken and its alarm is free."""

    def ring(number: int, frame: Any) -> None:
        raise _HangError

    free = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not free or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _code(handler: Any) -> Any:
    """Return the code that a signal handler runs, be it a function, method, partial or callable object."""
    if not callable(handler):  # the system's
        return None
    while isinstance(handler, functools.partial):
        handler = handler.func
    return getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
