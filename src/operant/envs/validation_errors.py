"""What is wrong with the observations, rewards, flags and masks that environments answer, in sentences.

Every driver validates alike, from the first step to the last. What is not of its space is an error, except
for floats a little outside their bounds, as they come from many environments: they are taken, with a warning.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import traceback
import warnings
from collections.abc import Iterator
from math import isfinite
from typing import Any

import numpy as np
from numpy import fmax, fmin, vdot

from operant.errors import told
from operant.spec.spaces import Spaces, mask_name
from operant.spec.spaces.leaf import first
from operant.spec.spaces.space import Flat

NUMBERS = frozenset((float, int, np.float64, np.float32, np.int64))
"""The types of nearly all rewards, for a fast test before `reward_error`."""
FLAGS = frozenset((bool, np.bool_))
"""The types of nearly all flags, for a fast test before `flag_error`."""
WEIGH = (
    "Make one of several, in a function that makes the environment (--env my_module:make), by "
    "mo_gymnasium.wrappers.LinearReward(env, weight=numpy.array([...])) or a gymnasium.RewardWrapper."
)
"""The remedy for a reward of several numbers."""
CLOSE_SECONDS = 10.0
"""How long an environment in this process may take to close."""

_LARGEST = float(np.finfo(np.float32).max)


class _HangError(Exception):
    """Wakes the main thread."""


def mask_error(label: str, mask: np.ndarray) -> tuple[int, str] | None:
    """Find the first environment whose mask `[N, *shape, num_values]` allows nothing: index, and fault."""
    empty = ~mask.any(-1)
    if not empty.any():
        return None
    i = int(np.argwhere(empty)[0][0])
    return i, f"The mask {label!r} must allow at least one value. Received: all False."


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
    """Validates the stored observations of `N` environments with these spaces at every step."""

    def __init__(self, spaces: Spaces) -> None:
        self._spaces = spaces
        self._limits = {
            key: leaf.stored_limits
            for key, leaf in spaces.states.components.items()
            if leaf.storage.kind == "f" or (leaf.storage.kind in "iu" and not leaf.full_range)
        }

    def error(self, observation: Flat, ended: tuple[np.ndarray, ...] = ()) -> tuple[int, str] | None:
        """Find the first fault in an observation `[N, ...]`: index and fault.

        Where a flag in `ended` `[N]` is set, no action follows, and a mask may allow nothing.
        """
        for key, (low, high) in self._limits.items():
            value = observation[key]
            # Neither NaN nor infinities stay as they are. On small arrays comparing takes twice as long.
            if fmin(fmax(value, low), high).tobytes() != value.tobytes():
                error = self._outside(key, value)
                if error is not None:
                    return error
            elif low.shape and low.shape != value.shape:  # without broadcasting it takes half as long again
                self._limits[key] = (
                    np.broadcast_to(low, value.shape).copy(),
                    np.broadcast_to(high, value.shape).copy(),
                )
        over = np.logical_or(*ended) if ended else None
        return _masks_error(self._spaces, observation, over) if self._spaces.masks else None

    def _outside(self, key: str, array: np.ndarray) -> tuple[int, str] | None:
        """Find the first environment with a number in a component `[N, *shape]` that it may not have."""
        leaf, label = self._spaces.states.components[key], state_label(self._spaces, key)
        low, high = leaf.stored_limits
        outside = (array < low) | (array > high)
        error = finite_error(label, array)
        if error is not None or not outside.any():
            return error
        place = tuple(int(i) for i in np.argwhere(outside)[0])
        ends = (0, leaf.num_values - 1) if leaf.num_values is not None else (leaf.low, leaf.high)
        span = [f"{np.broadcast_to(end, leaf.shape)[place[1:]]:g}" for end in ends]
        received = "{}{}".format(*first(array[place[0]], outside[place[0]]))
        if array.dtype.kind == "f" and leaf.tolerates(array):
            leaf.warn_outside(label, span[0], span[1], received)
            widest = np.finfo(array.dtype)
            self._limits[key] = np.asarray(widest.min), np.asarray(widest.max)
            return None
        return place[0], (
            f"The {label} must be between {span[0]} and {span[1]}. Received: {received}. Widen the space, or "
            "correct the value."
        )


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


def flag_error(name: str, flag: Any) -> str | None:
    """Say that a flag of Gymnasium's `step` is none; None if it is sound. 0 and 1 are."""
    if type(flag) in FLAGS or (isinstance(flag, int | np.integer) and flag in (0, 1)):
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
    value, place = first(array[i], bad[i])
    return i, f"The {label} must be finite. Received: {value}{place}."


def brief(value: Any) -> str:
    """Show a value and its type, in one line at most."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


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
        how = "hangs" if hangs else told(error)
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
