"""One component of a state or an action: its type, shape, range and storage."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from operant.errors import SpaceError, SpecError, suggest, value_error
from operant.spec.spaces.fields import (
    KINDS,
    STORAGE,
    Bound,
    NDArray,
    Type,
    bound_array,
    is_whole,
    lists,
    read_bound,
    read_dtype,
    read_shape,
    read_type,
)
from operant.spec.spaces.narrowing import StorageConverter

MOST_CHANNELS = 16
"""The most channels (times stacked frames) with which an image's order of axes can be told from its shape."""
_ALIASES = {"num_actions": "num_values", "num_states": "num_values"}


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One component. Immutable and hashable; equal declarations are equal leaves.

    An `int` with `num_values` is a choice: stored as `0 .. num_values - 1`, and shown to the user with
    `min_value` added. An `int` without `num_values` is a plain integer number, which only a state can be.

    Raises:
        SpecError: a field is not understood, or fields contradict one another.
    """

    type: Type = "float"
    shape: tuple[int, ...] = ()
    num_values: int | None = None
    """How many values an `int` takes; None: it is a number, not a choice."""
    min_value: Bound = None
    max_value: Bound = None
    dtype: str = ""
    """NumPy type in which it is stored and replayed; empty: float32, int32 or bool. Image frames: type float,
    dtype uint8."""
    frames: int = 1
    """Above 1, the last axis holds this many successive frames, oldest first: a replay memory may store
    each frame once."""

    def __post_init__(self) -> None:
        write = functools.partial(object.__setattr__, self)
        write("type", read_type(self.type))
        write("shape", read_shape(self.shape))
        write("dtype", read_dtype(self.dtype, self.type))
        write("min_value", read_bound("min_value", self.min_value, self.shape, self.type))
        write("max_value", read_bound("max_value", self.max_value, self.shape, self.type))
        if self.num_values is not None:
            self._read_choice(self.num_values, write)
        low, high = self._ends
        if np.any(low > high):
            raise value_error("min_value", f"at most max_value={self.max_value}", self.min_value)
        if not is_whole(self.frames) or self.frames < 1:
            raise value_error("frames", "a whole number of at least 1", self.frames)
        write("frames", int(self.frames))
        if self.frames > 1 and (not self.shape or self.shape[-1] != self.frames):
            raise value_error(
                "frames",
                f"the size of the last axis of shape {self.shape}",
                self.frames,
                "Stack frames last.",
            )

    def _read_choice(self, count: Any, write: Any) -> None:
        if self.type != "int":
            raise SpecError(f"num_values is for type 'int' only. Received: type={self.type!r}.")
        if not is_whole(count) or count < 1:
            raise value_error("num_values", "a whole number of at least 1", count)
        if count - 1 > np.iinfo(self.dtype).max:
            raise value_error("num_values", f"small enough for dtype {self.dtype}", count)
        low = bound_array(self.min_value or 0, (), -np.inf)
        if not np.isfinite(low).all():
            raise value_error("min_value", "given for every entry beside num_values", self.min_value)
        if self.max_value is not None and np.any(bound_array(self.max_value, (), np.inf) - low + 1 != count):
            raise SpecError(
                f"num_values={count} contradicts min_value={self.min_value}, max_value={self.max_value}. "
                f"Give num_values, or both bounds."
            )
        write("num_values", int(count))
        write("max_value", None)
        write("min_value", self.min_value or None)

    @classmethod
    def read(cls, spec: Any, label: str = "component", *, action: bool = False) -> Leaf:
        """Make a leaf from a leaf or from a dict such as ``{"type": "float", "shape": 4}``.

        Args:
            spec: the fields by name. `type` may be a string, a Python type or a NumPy type, and is float by
                default (int if `num_values` is given); `shape` is an int or a sequence; `num_actions` and
                `num_states` are read as `num_values`.
            label: names the component in messages.
            action: it is an action: an int with both bounds becomes a choice of `max_value - min_value + 1`.

        Raises:
            SpecError: the specification is not understood.
        """
        if isinstance(spec, Leaf):
            leaf = spec
        elif isinstance(spec, Mapping):
            leaf = cls._from_dict(spec, label)
        else:
            raise SpecError(
                f"The {label} must be a dict such as {{'type': 'float', 'shape': (4,)}}. Received: {spec!r}."
            )
        return leaf._choice(label) if action and leaf.type == "int" else leaf

    @classmethod
    def _from_dict(cls, spec: Mapping[Any, Any], label: str) -> Leaf:
        names = [field.name for field in dataclasses.fields(cls)]
        fields: dict[str, Any] = {}
        for key, value in spec.items():
            name = _ALIASES.get(key, key)
            if name not in names:
                raise SpecError(f"The {label} takes no field {key!r}.{suggest(str(key), names)}")
            if name in fields:
                raise SpecError(f"The {label} gives {name!r} twice.")
            fields[name] = value
        if fields.get("num_values") is not None:
            fields.setdefault("type", "int")
        try:
            return cls(**fields)
        except SpecError as error:
            raise SpecError(f"The {label}: {error}") from None

    def _choice(self, label: str) -> Leaf:
        if self.num_values is not None:
            return self
        low, high = self._ends
        counts = np.unique(high - low + 1)
        if not np.isfinite(counts).all():
            raise SpecError(
                f"The {label} of type 'int' needs num_values, or both min_value and max_value. "
                f"Received: min_value={self.min_value}, max_value={self.max_value}."
            )
        if counts.size > 1:
            raise SpecError(
                f"The {label} of type 'int' must have as many values in every entry. Received: between "
                f"{counts[0]:g} and {counts[-1]:g} values. Make each entry a component of its own."
            )
        return dataclasses.replace(self, num_values=int(counts[0]), max_value=None)

    @property
    def _ends(self) -> tuple[NDArray, NDArray]:
        kind = np.float32 if self.type == "float" else np.float64
        low, high = bound_array(self.min_value, (), -np.inf), bound_array(self.max_value, (), np.inf)
        return low.astype(kind), high.astype(kind)

    @functools.cached_property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @functools.cached_property
    def storage(self) -> np.dtype[Any]:
        """`dtype` as a NumPy dtype."""
        return np.dtype(self.dtype)

    @functools.cached_property
    def low(self) -> NDArray:
        """Smallest value of each entry as the user sees it, -inf where open, `[*shape]` (read-only)."""
        if self.type == "bool":
            return _frozen(np.zeros(self.shape, np.float32))
        if self.min_value is None and self.num_values is not None:
            return _frozen(np.zeros(self.shape))
        low = bound_array(self.min_value, self.shape, -np.inf)
        return _frozen(low.astype(np.float32) if self.type == "float" else low)

    @functools.cached_property
    def high(self) -> NDArray:
        """Largest value of each entry as the user sees it, +inf where open, `[*shape]` (read-only)."""
        if self.type == "bool":
            return _frozen(np.ones(self.shape, np.float32))
        if self.num_values is not None:
            return _frozen(self.low + (self.num_values - 1))
        high = bound_array(self.max_value, self.shape, np.inf)
        return _frozen(high.astype(np.float32) if self.type == "float" else high)

    @functools.cached_property
    def bounded(self) -> bool:
        """Whether every entry has both bounds."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    @functools.cached_property
    def channels_first(self) -> bool:
        """Whether it is clearly an image with channels or frames first, which networks expect as last axis.

        That is clear with at most 16 of them before a height and width of more than 16, if the values are
        bytes from 0 to 255. Of floats there must be at most 4, or a height and width of at least 32: a board
        of few rows may have as many planes.
        """
        if self.type != "float" or len(self.shape) != 3:
            return False
        first, side = self.shape[0], min(self.shape[1:])
        if not first <= MOST_CHANNELS < side:
            return False
        if self.storage.kind == "f":
            return first <= 4 or side >= 32
        low, high = self._ends
        return bool(np.all(low == 0) and np.all(high == 255))

    @functools.cached_property
    def offset(self) -> int | NDArray:
        """By how much the user's values exceed the stored ones: `min_value` of a choice, else 0."""
        if self.num_values is None or self.min_value is None:
            return 0
        if isinstance(self.min_value, tuple):
            return _frozen(bound_array(self.min_value, self.shape, 0).astype(np.int64))
        return int(self.min_value)

    @functools.cached_property
    def has_offset(self) -> bool:
        """Whether stored values differ from the user's."""
        return self.num_values is not None and self.min_value is not None

    def to_spec(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults as JSON data, for `read`."""
        spec: dict[str, Any] = {"type": self.type}
        if self.shape:
            spec["shape"] = list(self.shape)
        for name in ("num_values", "min_value", "max_value"):
            value = getattr(self, name)
            if value is not None:
                spec[name] = lists(value)
        if self.dtype != STORAGE[self.type][0]:
            spec["dtype"] = self.dtype
        if self.frames > 1:
            spec["frames"] = self.frames
        return spec

    def accept(
        self,
        value: Any,
        label: str,
        batch_shape: tuple[int, ...] | None = None,
        *,
        values: bool = True,
        clip: bool = False,
        tolerant: bool = False,
    ) -> NDArray:
        """Check a value `[*batch, *shape]` and return it as stored: in `dtype`, without offset.

        Args:
            value: array-like; not copied if it fits already.
            label: names the component in messages.
            batch_shape: the leading axes; None: any.
            values: whether to check the numbers, too (NaN, infinities, range), not only shape and kind.
            clip: whether to clip floats to their bounds first.
            tolerant: whether to take floats that are a little outside their bounds (`tolerated`), with one
                warning.

        Raises:
            SpaceError: the value does not fit.
        """
        if type(value) is int and self._range is not None and batch_shape in (None, ()):
            low, high = self._range
            if low <= value <= high:  # the usual action: saves a dozen NumPy calls for one number
                return np.array(value - int(self.offset) if self.has_offset else value, self.storage)
        array = value if type(value) is np.ndarray else as_array(value, label)
        lead = array.ndim - len(self.shape)
        if array.dtype is not self.storage and array.dtype.kind not in self._kinds:
            stored = (
                f" of an integer dtype (stored as {self.dtype})"
                if self.type == "float" and self._kinds == "iu"
                else ""
            )
            raise SpaceError(
                f"The {label} must be {KINDS[self.type]}{stored}. Received: dtype {array.dtype}."
            )
        if lead < 0 or array.shape[lead:] != self.shape or batch_shape not in (None, array.shape[:lead]):
            batch = f" after the batch axes {batch_shape}" if batch_shape else ""
            moved = len(self.shape) == 3 and array.shape[max(lead, 0) :] == (self.shape[2], *self.shape[:2])
            remedy = " Channels come last here: numpy.moveaxis(x, -3, -1)." if moved else ""
            raise SpaceError(
                f"The {label} must have shape {self.shape}{batch}. Received: shape {array.shape}.{remedy}"
            )
        if self.storage.kind == "f" and array.dtype is not self.storage:
            array = self._to_storage(array, label)
        if clip and self.storage.kind == "f" and self._limits[0] is not None:
            array = np.asarray(np.clip(array, *self._limits))
        if values or (array.dtype is not self.storage and self.storage.kind in "iu"):  # which would wrap
            self._check_values(array, label, tolerant)
        if self.has_offset:
            array = array.astype(np.int64) - self.offset
        return array if array.dtype is self.storage else self._to_storage(array, label)

    def _check_values(self, array: NDArray, label: str, tolerant: bool) -> None:
        low, high = self._limits
        inside: NDArray | None
        if low is None or high is None:
            # A vector's dot product with itself is finite only if all entries are; on small ones it is twice
            # as fast.
            if self.storage.kind != "f" or (array.ndim == 1 and math.isfinite(np.vdot(array, array))):
                return
            inside = np.isfinite(array)
        elif self.full_range and array.dtype is self.storage:
            inside = None
        else:  # NaN is in no range; infinities are, where a side is open
            inside = (array >= low) & (array <= high)
            if self.storage.kind == "f" and not self.bounded:
                inside &= np.isfinite(array)
        if inside is None or inside.all():
            return
        value, place = first(array, ~inside)
        if tolerant and self.storage.kind == "f" and low is not None and self.tolerates(array):
            return self.warn_outside(label, _show(low), _show(high), f"{value}{place}")
        if low is None or not np.isfinite(value):
            must = "finite"
        else:
            must = f"between {_show(low)} and {_show(high)}"
            if self.num_values is not None:
                must = f"one of its {self.num_values} values, {must}"
        raise SpaceError(f"The {label} must be {must}. Received: {value}{place}.")

    @functools.cached_property
    def rounded(self) -> Leaf:
        """The same leaf with bounds as stored: 4.8 and the float32 nearest to it are equal then."""
        if self.storage.kind != "f":
            return self

        def bound(value: Bound, array: NDArray) -> Any:
            with np.errstate(over="ignore"):  # what the storage type cannot hold counts as open
                return None if value is None else array.astype(self.storage).astype(np.float64)

        low, high = self._ends
        return dataclasses.replace(
            self, min_value=bound(self.min_value, low), max_value=bound(self.max_value, high)
        )

    @functools.cached_property
    def stored_limits(self) -> tuple[NDArray, NDArray]:
        """Smallest and largest stored value, in the type of storage; a single number where all entries agree.

        For floats with a slack of a millionth of the larger bound, for rounding.
        """
        if self.num_values is not None:
            return self._stored(np.zeros(()), np.asarray(self.num_values - 1.0))
        slack: Any = 1e-6 * np.maximum(np.abs(self.low), np.abs(self.high))
        slack = np.where(np.isfinite(slack) & (self.storage.kind == "f"), slack, 0.0)
        return self._stored(self.low - slack, self.high + slack)

    @functools.cached_property
    def tolerated(self) -> tuple[NDArray, NDArray]:
        """Smallest and largest float that a state may have: many environments leave their bounds a little.

        As far outside as the bounds are apart; any finite number where one side is open.
        """
        width = self.high - self.low
        return self._stored(self.low - width, self.high + width)

    def tolerates(self, array: NDArray) -> bool:
        """Return whether floats outside their bounds are taken: a little outside, and any finite ones later.

        What drifts out of its bounds, as the angle of something that spins, has been a little outside before.
        """
        if vars(self).get("_drifts"):
            return bool(np.isfinite(array).all())
        least, greatest = self.tolerated
        return bool(((array >= least) & (array <= greatest)).all())

    def _stored(self, low: NDArray, high: NDArray) -> tuple[NDArray, NDArray]:
        info: Any = np.finfo(self.storage) if self.storage.kind == "f" else np.iinfo(self.storage)
        if self.storage.kind != "f":
            low, high = np.ceil(low), np.floor(high)
        ends = (np.clip(np.asarray(x, np.float64), info.min, info.max) for x in (low, high))
        least, greatest = (np.asarray(_single(x.astype(self.storage))) for x in ends)
        return least, greatest

    def warn_outside(self, label: str, low: Any, high: Any, received: str) -> None:
        """Warn of a state a little outside its bounds, once."""
        if not vars(self).get("_drifts"):
            vars(self)["_drifts"] = True
            warnings.warn(
                f"The {label} must be between {low} and {high}. Received: {received}. It is used as it is, "
                "and so are later ones, without a warning. Widen the space, or correct the value.",
                RuntimeWarning,
                stacklevel=3,
            )

    @functools.cached_property
    def _range(self) -> tuple[int, int] | None:
        low, high = self._limits
        if self.type != "int" or self.shape or low is None or high is None:
            return None
        return int(low), int(high)

    @functools.cached_property
    def _to_storage(self) -> StorageConverter:
        return StorageConverter(self.shape, self.storage)

    @functools.cached_property
    def _kinds(self) -> str:
        return {"float": "fiu" if self.storage.kind == "f" else "iu", "int": "iu", "bool": "b"}[self.type]

    @functools.cached_property
    def _limits(self) -> tuple[NDArray | None, NDArray | None]:
        """The bounds in the type in which values are compared; one number where all entries agree."""
        if self.storage.kind == "b":
            return None, None
        if self.storage.kind == "f":
            if self.min_value is None and self.max_value is None:
                return None, None
            low, high = self.low.astype(self.storage), self.high.astype(self.storage)
        else:
            low, high = (np.asarray(x, np.int64) + self.offset for x in self.stored_limits)
        return _single(low), _single(high)

    @functools.cached_property
    def full_range(self) -> bool:
        """Whether it may have every value of its integer type."""
        if self.storage.kind not in "iu" or self.has_offset:
            return False
        info = np.iinfo(self.storage)
        return bool(np.all(self.low <= info.min) and np.all(self.high >= info.max))


def _frozen(array: NDArray) -> NDArray:
    array = np.asarray(array)
    array.setflags(write=False)
    return array


def _single(array: NDArray) -> NDArray:
    return array.flat[0] if array.size and np.all(array == array.flat[0]) else array


def as_array(value: Any, label: str) -> NDArray:
    """Return what NumPy makes of a value; SpaceError: nothing."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise SpaceError(f"The {label} must be an array of numbers. Received: {value!r} ({error}).") from None


def first(array: NDArray, bad: NDArray) -> tuple[Any, str]:
    """Return the first bad entry, and where it is, for messages."""
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    return array[index], f" at index {index}" if index else ""


def _show(limit: Any) -> str:
    return np.array2string(np.asarray(limit), threshold=8, separator=", ").replace("\n", "")
