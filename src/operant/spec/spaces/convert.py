"""Conversion of Gymnasium's spaces, observations and actions to operant's and back; loads it when asked."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from operant.errors import SpaceError, SpecError
from operant.spec.spaces.fields import STORAGE, NDArray
from operant.spec.spaces.leaf import Leaf, as_array, first
from operant.spec.spaces.masks import SUFFIX, mask_name
from operant.spec.spaces.narrowing import StorageConverter
from operant.spec.spaces.space import RESERVED, Flat, Kind, Space, Spaces

INFINITE = 1e18
"""A bound of a Box of floats that is this large counts as none, and so do the limits of 32- and 64-bit
integers."""

Node: TypeAlias = "SpacePart | dict[Any, Node] | tuple[Node, ...]"


@dataclasses.dataclass(frozen=True, eq=False)
class SpacePart:
    """How one elementary Gymnasium space maps to components: to one, or entry by entry to several."""

    names: tuple[str, ...]
    """Flat names of the components."""
    shape: tuple[int, ...]
    """Gymnasium's shape."""
    dtype: np.dtype[Any]
    """Gymnasium's type."""
    storage: np.dtype[Any]
    """The components' type."""
    split: bool = False
    """Whether each entry is a component."""
    moved: bool = False
    """Whether Gymnasium's first axis is the component's last."""
    scalar: bool = False
    """Whether unbatched values are NumPy scalars, not arrays."""
    start: NDArray | None = None
    """Smallest value of a choice, which is 0 in the component, `[*shape]`."""
    low: NDArray | None = None
    """Bounds to clip to, `[*shape]`."""
    high: NDArray | None = None
    pieces: tuple[tuple[int, ...], ...] = ()
    """Shapes of the components that are flattened and concatenated in this vector. Empty: it is not a
    concatenation."""

    @functools.cached_property
    def _to_storage(self) -> StorageConverter:
        return StorageConverter(self.shape, self.storage)

    @property
    def direct(self) -> bool:
        """Whether a value of the right type is the component without conversion."""
        return not self.split and not self.moved and self.start is None and self.storage.kind != "b"

    def encode(self, value: Any, batched: bool, flat: Flat) -> None:
        """Write Gymnasium's value `[N?, *shape]` into a flat dict."""
        array = value if type(value) is np.ndarray else as_array(value, f"state {self.names[0]!r}")
        lead = array.ndim - len(self.shape)
        if lead != batched or array.shape[lead:] != self.shape:
            must = str((*["N"] * batched, *self.shape)).replace("'", "")
            raise SpaceError(
                f"The state {self.names[0]!r} must have shape {must}. Received: shape {array.shape}, dtype "
                f"{array.dtype}."
            )
        if array.dtype != self.storage or self.start is not None:
            array = self._stored(array)
        if self.moved:
            array = np.moveaxis(array, lead, -1)
        if self.pieces:
            flat.update(self.cut(array))
        elif self.split:
            array = array.reshape((*array.shape[:lead], len(self.names)))
            flat.update((name, array[..., i]) for i, name in enumerate(self.names))
        else:
            flat[self.names[0]] = array

    def _stored(self, array: NDArray) -> NDArray:
        """Return Gymnasium's value in the components' type, and counted from 0.

        Raises:
            SpaceError: that would change a number, such as those of an image divided by 255.
        """
        if array.dtype.kind not in "biuf":
            raise self._misfit(array)
        given = array
        if self.start is not None:
            given = (given if given.dtype.kind == "f" else given.astype(np.int64)) - self.start
        if self.storage.kind == "f":
            return self._to_storage(given, f"state {self.names[0]!r}")
        with np.errstate(invalid="ignore"):  # NaN and infinities, which are equal to no whole number
            stored = given.astype(self.storage)
        if not (stored == given).all():
            raise self._misfit(array, stored != given)
        return stored

    def _misfit(self, array: NDArray, bad: NDArray | None = None) -> SpaceError:
        """Return the error for a value of another type, or with bad numbers."""
        must = {"b": "0 or 1", "f": "numbers"}.get(self.storage.kind, "whole numbers")
        received = f"dtype {array.dtype}"
        if bad is not None:
            value, place = first(array, bad)
            received = f"{value}{place}, {received}"
            if self.storage.kind != "b" and np.isfinite(value) and value == np.floor(value):
                limits = np.iinfo(self.storage)
                must += f" between {limits.min} and {limits.max}"
        return SpaceError(f"The state {self.names[0]!r} must be {must} ({self.dtype}). Received: {received}.")

    def cut(self, array: Any) -> dict[str, Any]:
        """Split a vector `[*B, P]`, of NumPy or JAX, into its components by name."""
        edges = np.cumsum([0, *map(math.prod, self.pieces)])
        places = zip(self.names, self.pieces, edges[:-1], edges[1:], strict=True)
        return {n: array[..., low:high].reshape(*array.shape[:-1], *shape) for n, shape, low, high in places}

    def decode(self, flat: Mapping[str, Any], batched: bool) -> Any:
        """Return Gymnasium's value `[N?, *shape]`, clipped to the bounds."""
        array = np.asarray(flat[self.names[0]])
        if self.pieces:
            lead = array.shape[: int(batched)]
            array = np.concatenate([np.reshape(flat[name], (*lead, -1)) for name in self.names], -1)
        if self.split:
            entries = np.stack([np.asarray(flat[name]) for name in self.names], -1)
            array = entries.reshape(array.shape + self.shape)
        if self.moved:
            array = np.moveaxis(array, -1, int(batched))
        if self.start is not None:
            array = array.astype(np.int64) + self.start
        array = np.asarray(array).astype(self.dtype)  # a copy: environments may write to it
        if self.low is not None and self.high is not None:
            array = np.asarray(np.minimum(np.maximum(array, self.low), self.high))
        return self.dtype.type(array) if self.scalar and not batched else array


class MaskForm(NamedTuple):
    """One of the forms that a mask may take in an observation."""

    shape: tuple[int, ...]
    """Gymnasium's."""
    names: tuple[str, ...]
    """Names of the masks in it: of one, or of several that are concatenated."""
    pieces: tuple[tuple[int, ...], ...] = ()
    """As in `SpacePart`."""


class SpaceCodec:
    """Converts values of one Gymnasium space to flat components and back."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._parts = list(_parts(node, ()))
        self._name = ""
        self._storage: np.dtype[Any] | None = None
        self._shape: tuple[int, ...] = ()
        if isinstance(node, SpacePart) and node.direct:
            self._name, self._storage, self._shape = node.names[0], node.storage, node.shape
        self._ndim = len(self._shape)
        self._choice: SpacePart | None = None
        """The node, if its values are usually Python's numbers."""
        if isinstance(node, SpacePart) and node.storage == np.int32 and node.shape == ():
            self._choice = node if node.start is None or abs(int(node.start)) < 2**30 else None

    def is_batch(self, value: Any) -> bool:
        """Tell whether a value has a leading axis of environments, judged by its first component."""
        path, part = self._parts[0]
        for key in path:
            value = value[key]
        return np.ndim(value) > len(part.shape)

    def encode(self, value: Any, batched: bool) -> Flat:
        """Return Gymnasium's value by flat component name, not copied where the type agrees.

        With `batched` it is what a vector environment gives: dicts and tuples of arrays `[N, ...]`.

        Raises:
            SpaceError: an array has another shape than its space.
        """
        if (
            type(value) is np.ndarray
            and value.dtype is self._storage
            and value.ndim == self._ndim + batched
            and value.shape[batched:] == self._shape
        ):
            return {self._name: value}
        if self._choice is not None and type(value) is int and abs(value) < 2**30 and not batched:
            number = value if self._choice.start is None else value - int(self._choice.start)
            return {self._choice.names[0]: np.array(number, self._choice.storage)}
        flat: Flat = {}
        _expect_entries(self.node, value, "")
        for path, part in self._parts:
            entry = value
            for key in path:
                entry = entry[key]
            part.encode(entry, batched, flat)
        return flat

    def decode(self, flat: Mapping[str, Any], batched: bool) -> Any:
        """Return flat components `[N?, ...]` as Gymnasium's value, clipped: the inverse of `encode`."""
        return _build(self.node, flat, batched)


@dataclasses.dataclass(frozen=True, eq=False)
class Codec:
    """Converts observations and actions from and to those of Gymnasium, single or vector."""

    observation: SpaceCodec
    action: SpaceCodec

    def encode(self, observation: Any, batched: bool) -> Flat:
        """Return an observation by flat component name, masks included (see `SpaceCodec.encode`)."""
        return self.observation.encode(observation, batched)

    def decode(self, action: Mapping[str, Any], batched: bool) -> Any:
        """Return flat actions `[N?, ...]` as Gymnasium's environments take them, floats clipped."""
        return self.action.decode(action, batched)

    def decode_one(self, action: Mapping[str, Any], index: int) -> Any:
        """Return row `index` of flat actions `[N, ...]` as one environment takes it."""
        return self.action.decode({name: value[index] for name, value in action.items()}, False)


def _parts(node: Node, path: tuple[Any, ...]) -> Iterable[tuple[tuple[Any, ...], SpacePart]]:
    if isinstance(node, SpacePart):
        yield path, node
        return
    for key, branch in node.items() if isinstance(node, dict) else enumerate(node):
        yield from _parts(branch, (*path, key))


def _expect_entries(node: Node, value: Any, name: str) -> None:
    """Refuse a value with other entries than its space."""
    if isinstance(node, SpacePart):
        return
    if isinstance(node, dict):
        fits = isinstance(value, Mapping) and value.keys() == node.keys()
        form = f"a dict with {', '.join(map(repr, node))}"
    else:
        fits, form = isinstance(value, tuple) and len(value) == len(node), f"a tuple of {len(node)}"
    if not fits:
        received = ", ".join(map(repr, value)) if isinstance(value, Mapping) else type(value).__name__
        raise SpaceError(f"The observation{name} must be {form}. Received: {received}.")
    for key, branch in node.items() if isinstance(node, dict) else enumerate(node):
        _expect_entries(branch, value[key], f"{name}[{key!r}]")


def _build(node: Node, flat: Mapping[str, Any], batched: bool) -> Any:
    if isinstance(node, SpacePart):
        return node.decode(flat, batched)
    if isinstance(node, dict):
        return {key: _build(branch, flat, batched) for key, branch in node.items()}
    return tuple(_build(branch, flat, batched) for branch in node)


def from_gymnasium(
    observation_space: Any,
    action_space: Any,
    *,
    frames: int | None = None,
    channels_first: bool | None = None,
) -> tuple[Spaces, Codec]:
    """Read the spaces of an environment of Gymnasium.

    For vector environments, give `single_observation_space` and `single_action_space`. Components are named
    by the keys of a Dict, by the positions in a Tuple, and by the entries, counted in C order, of a
    MultiDiscrete with unequal counts. `/` in a key becomes `_`, and `_` is appended to a reserved name. An
    entry `<action>_mask` of a Dict observation (`action_mask` for a single action) masks a Discrete or
    MultiDiscrete action: it is MultiBinary, or a Box of integers 0 and 1. The mask of a MultiDiscrete may
    also be a single vector, in which the entries of its choices follow one another. Box observations of
    integers are read as numbers (type float) stored in an integer type; 64-bit types are stored in 32 bits.

    Args:
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these, at any
            depth.
        action_space: the same.
        frames: how many successive frames a stacked observation holds. Every Box of two or more axes whose
            axis of frames (the last; the first with `channels_first`) is that long counts as a stack.
        channels_first: whether the channels or stacked frames of images are Gymnasium's first axis; it is
            moved to the end, for every Box of three axes and for stacks. None: only for Boxes where that is
            clear (`Leaf.channels_first`).

    Raises:
        SpaceError: a space is of an unsupported kind (Text, Graph, Sequence), no Box holds `frames`, or an
            entry is named like a mask but does not fit its action, or masks none.
        SpecError: a space has no entries, or too many values.
    """
    for kind, space in (("observation", observation_space), ("action", action_space)):
        if _is_empty(space):
            raise SpecError(f"The {kind} space must have an entry. Received: {space!r}.")
    action_reader = _Reader("action")
    action_tree, action_node = action_reader.read(action_space, "")
    actions = Space(action_tree, "action")
    reader = _Reader("state", frames, channels_first)
    reader.masks = _mask_forms(actions, action_node)
    tree, node = reader.read(observation_space, "")
    if tree is None:
        raise SpaceError("The observation space must hold more than masks.")
    if frames is not None and frames > 1 and not reader.stacks:
        raise SpaceError(
            f"No Box of the observation space holds {frames} frames. Received: {observation_space}."
        )
    if isinstance(tree, Mapping) and (name := mask_name("action")) in tree and name not in reader.masks:
        masked = ", ".join(repr(mask) for mask in reader.masks)
        remedy = (
            f"Give a mask for each choice: {masked}" if masked else "Only choices can be masked: rename it"
        )
        raise SpaceError(
            f"The entry {name!r} of the observation space masks no action of "
            f"{' '.join(repr(action_space).split())}. {remedy}."
        )
    if twice := {name for name in reader.found if reader.found.count(name) > 1}:
        raise SpaceError(
            f"The observation space has {min(twice)!r} twice, by itself and within a vector. Give one of "
            "them."
        )
    masks = tuple(name.removesuffix(SUFFIX) for name in reader.found)
    return Spaces(Space(tree, "state"), actions, masks), Codec(SpaceCodec(node), SpaceCodec(action_node))


def _is_empty(space: Any) -> bool:
    branches = getattr(space, "spaces", None)
    if branches is None:
        return False
    return all(
        _is_empty(branch) for branch in (branches.values() if isinstance(branches, Mapping) else branches)
    )


def _mask_forms(actions: Space, node: Node) -> dict[str, list[MaskForm]]:
    """Return the forms that masks of actions may take, by the observation's entry."""
    forms: dict[str, list[MaskForm]] = {}
    shapes = {
        name: (*leaf.shape, leaf.num_values)
        for name, leaf in actions.components.items()
        if leaf.num_values is not None
    }
    for name, shape in shapes.items():
        mask = (mask_name(name),)
        forms[mask[0]] = [MaskForm(shape, mask)]
        if len(shape) > 1:
            forms[mask[0]].append(MaskForm((math.prod(shape),), mask, (shape,)))
    for _, part in _parts(node, ()):
        if part.split:
            pieces = tuple(shapes[name] for name in part.names)
            whole = mask_name(part.names[0].rpartition("/")[0] or "action")
            size = sum(map(math.prod, pieces))
            forms[whole] = [MaskForm((size,), tuple(map(mask_name, part.names)), pieces)]
    return forms


class _Reader:
    def __init__(self, kind: Kind, frames: int | None = None, channels_first: bool | None = False) -> None:
        self.kind = kind
        self.frames = frames or 1
        self.channels_first = channels_first
        self.masks: dict[str, list[MaskForm]] = {}
        self.found: list[str] = []
        self.stacks = 0
        self.beside: list[Any] = []
        """Keys of the top-level entries that are supported, if the space is a Dict or Tuple."""
        from gymnasium import spaces

        self.readers: dict[type, Callable[[Any, str], tuple[Any, Node]]] = {
            spaces.Dict: lambda s, n: self._branches(s.spaces, n),
            spaces.Tuple: self._tuple,
            spaces.Discrete: self._discrete,
            spaces.MultiDiscrete: lambda s, n: self._choices(s, n, s.nvec, s.start),
            spaces.MultiBinary: self._bool,
            spaces.Box: self._box,
        }

    def read(self, space: Any, name: str) -> tuple[Any, Node]:
        """Return the leaves (None for a mask) and the parts of a space.

        Raises:
            SpaceError: it is not supported, or does not fit as a mask.
            SpecError: it has no entries, or too many values.
        """
        from gymnasium import spaces

        where = f" {name!r}" if name else ""
        for cls, reader in self.readers.items():
            if not isinstance(space, cls):
                continue
            if cls in (spaces.Dict, spaces.Tuple):
                return reader(space, name)
            try:
                leaf, part = reader(space, name)
                if leaf is not None and name in self.masks:
                    shapes = " or ".join(str(form.shape) for form in self.masks[name])
                    raise SpaceError(
                        f"The mask {name!r} must be a MultiBinary of shape {shapes}, or a Box of integers "
                        "from 0 to 1: an "
                        f"entry for each value of the action. Received: {' '.join(repr(space).split())}."
                    )
                return leaf, part
            except SpecError as error:
                raise SpecError(
                    f"The {self.kind} space{where} {' '.join(repr(space).split())}: {error}"
                ) from None
        raise SpaceError(
            f"The {self.kind} space{where} must be a Box, Discrete, MultiDiscrete, MultiBinary, Dict or "
            "Tuple. "
            f"Received: {space!r}, which no algorithm takes. Convert it with a wrapper{self._left_out(name)}."
        )

    def _left_out(self, name: str) -> str:
        """Return how to leave out an unsupported entry of the observation, if it is one and not nested."""
        if self.kind != "state" or not self.beside or "/" in name:
            return ""
        return f", or leave it out: gymnasium.wrappers.FilterObservation(env, filter_keys={self.beside})"

    def _branches(self, branches: Mapping[Any, Any], name: str) -> tuple[Any, Node]:
        tree: dict[str, Any] = {}
        node: dict[Any, Node] = {}
        if not name:
            self.beside = [key for key, branch in branches.items() if isinstance(branch, tuple(self.readers))]
        for original, branch in branches.items():
            key = str(original).replace("/", "_") or "_"
            key = f"{key}_" if key in RESERVED else key
            if key in tree:
                raise SpaceError(f"Two entries of the {self.kind} space would be named {key!r}. Rename one.")
            leaf, node[original] = self.read(branch, f"{name}/{key}" if name else key)
            if leaf is not None:
                tree[key] = leaf
        return tree or None, node

    def _tuple(self, space: Any, name: str) -> tuple[Any, Node]:
        tree, node = self._branches(dict(enumerate(space.spaces)), name)
        assert isinstance(node, dict)
        return tree, tuple(node.values())

    def _discrete(self, space: Any, name: str) -> tuple[Any, Node]:
        leaf = Leaf("int", (), int(space.n), int(space.start))
        start = np.asarray(space.start) if leaf.has_offset else None
        return leaf, SpacePart((name or self.kind,), (), space.dtype, leaf.storage, scalar=True, start=start)

    def _choices(self, space: Any, name: str, counts: NDArray, start: Any) -> tuple[Any, Node]:
        """Read an array of choices: one component if all have as many values, else one each."""
        start = np.asarray(start, np.int64)
        offset = start if start.any() else None
        storage = np.dtype(STORAGE["int"][0])
        if np.all(counts == counts.flat[0]):
            leaf = Leaf("int", space.shape, int(counts.flat[0]), start)
            return leaf, SpacePart((name or self.kind,), space.shape, space.dtype, storage, start=offset)
        leaves = {
            str(i): Leaf("int", (), int(count), int(first))
            for i, (count, first) in enumerate(zip(counts.flat, start.flat, strict=True))
        }
        names = tuple(f"{name}/{key}" if name else key for key in leaves)
        return leaves, SpacePart(names, space.shape, space.dtype, storage, split=True, start=offset)

    def _bool(self, space: Any, name: str) -> tuple[Any, Node]:
        stored = np.dtype(np.bool_)
        if (mask := self._mask(space, name)) is not None:
            self.found.extend(mask.names)
            return None, SpacePart(mask.names, space.shape, space.dtype, stored, pieces=mask.pieces)
        return Leaf("bool", space.shape), SpacePart((name or self.kind,), space.shape, space.dtype, stored)

    def _mask(self, space: Any, name: str) -> MaskForm | None:
        return next((form for form in self.masks.get(name, ()) if form.shape == space.shape), None)

    def _box(self, space: Any, name: str) -> tuple[Any, Node]:
        integer = space.dtype.kind in "iu"
        binary = integer and np.all(space.low == 0) and np.all(space.high == 1)
        if space.dtype.kind == "b" or (binary and self._mask(space, name) is not None):
            return self._bool(space, name)
        low, high = (_open(bound) for bound in (space.low, space.high))
        if integer and self.kind == "action":
            return self._box_choices(space, name, low, high)
        storage = _storage(space)
        first = self.channels_first
        if first is None:
            first = Leaf("float", space.shape, None, low, high, storage).channels_first
        stack = self.frames if self._is_stack(space.shape, first) else 1
        self.stacks += stack > 1
        moved = first and (stack > 1 or len(space.shape) == 3)
        if moved:
            low, high = np.moveaxis(low, 0, -1), np.moveaxis(high, 0, -1)
        leaf = Leaf("float", low.shape, None, low, high, storage, stack)
        clip = np.isfinite(space.low).any() or np.isfinite(space.high).any()
        bounds = {"low": space.low, "high": space.high} if clip else {}
        names = (name or self.kind,)
        return leaf, SpacePart(names, space.shape, space.dtype, leaf.storage, moved=moved, **bounds)

    def _is_stack(self, shape: tuple[int, ...], first: bool) -> bool:
        return self.frames > 1 and len(shape) > 1 and shape[0 if first else -1] == self.frames

    def _box_choices(self, space: Any, name: str, low: NDArray, high: NDArray) -> tuple[Any, Node]:
        if not np.all(high - low < 2**31):  # nor infinite
            raise SpaceError(
                f"An action Box of integers must have both bounds, with at most 2147483648 values. "
                f"Received: {space!r}."
            )
        low, high = space.low.astype(np.int64), space.high.astype(np.int64)
        return self._choices(space, name, high - low + 1, low)


def _open(bound: NDArray) -> Any:
    wide = bound.astype(np.float64)
    if bound.dtype.kind in "iu" and bound.dtype.itemsize < 4:
        return wide
    limit = np.iinfo(bound.dtype).max if bound.dtype.kind in "iu" else INFINITE
    return np.where(np.abs(wide) >= float(limit), np.copysign(np.inf, wide), wide)


def _storage(space: Any) -> str:
    """Return the type in which to store a Box: its own, or int32 where it suffices, else float32."""
    if space.dtype.name in STORAGE["float"]:
        return str(space.dtype.name)
    info = np.iinfo(np.int32)
    if space.dtype.kind in "iu" and space.low.min() >= info.min and space.high.max() <= info.max:
        return "int32"
    return "float32"


def to_gymnasium(space: Space) -> Any:
    """Return the Gymnasium space of the same values, without what Gymnasium cannot express.

    That is `frames`, bounds of 1e18 and more, and that a state is an `int` without `num_values` (it returns
    as a number stored as int32). `from_gymnasium(..., channels_first=False)` reads back an equal space.
    """
    return _to_gymnasium(space.tree)


def _to_gymnasium(tree: Any) -> Any:
    from gymnasium import spaces

    if not isinstance(tree, Leaf):
        return spaces.Dict([(key, _to_gymnasium(branch)) for key, branch in tree.items()])
    if tree.type == "bool":
        return spaces.MultiBinary(tree.shape)
    if tree.num_values is not None and not tree.shape:
        return spaces.Discrete(tree.num_values, start=int(tree.low))
    if tree.num_values is not None:
        return spaces.MultiDiscrete(np.full(tree.shape, tree.num_values), start=tree.low.astype(np.int64))
    if tree.storage.kind == "f":
        return spaces.Box(
            tree.low.astype(tree.storage), tree.high.astype(tree.storage), tree.shape, tree.storage.type
        )
    info = np.iinfo(tree.storage)
    low, high = (np.clip(bound.astype(float), info.min, info.max) for bound in (tree.low, tree.high))
    return spaces.Box(low.astype(tree.storage), high.astype(tree.storage), tree.shape, tree.storage.type)
