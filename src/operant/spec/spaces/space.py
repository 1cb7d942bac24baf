"""States and actions: nested dicts of components, the checks of their values, and action masks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from operant.errors import SpaceError, SpecError, suggest
from operant.spec.spaces.fields import NDArray
from operant.spec.spaces.leaf import Leaf
from operant.spec.spaces.masks import SUFFIX, beside, mask_name, pop

Kind: TypeAlias = Literal["state", "action"]
Tree: TypeAlias = "Leaf | dict[str, Tree]"
Flat: TypeAlias = dict[str, NDArray]
"""Arrays by flat component name."""

RESERVED = frozenset(field.name for field in dataclasses.fields(Leaf)) | {"bool", "int", "float"}
"""Names that no component may have: a dict with one of Leaf's fields as key is one component, not several."""


class Space:
    """All states or all actions: one unnamed component, or a nested dict of named ones.

    Immutable and hashable. Equal spaces have the same components in the same order.

    Args:
        spec: a leaf, a dict of its fields, or a dict of these by name, nested to any depth.
        kind: `state` or `action`; also the flat name of a single unnamed component.

    Raises:
        SpecError: the specification is not understood.
    """

    def __init__(self, spec: Any, kind: Kind = "state") -> None:
        if kind not in ("state", "action"):
            raise SpecError(f"kind must be 'state' or 'action'. Received: kind={kind!r}.")
        self.kind: Kind = kind
        self.tree: Tree = self._read(spec, "")
        self.components: dict[str, Leaf] = dict(
            _leaves(self.tree, kind if isinstance(self.tree, Leaf) else "")
        )
        """Leaves by flat name (`camera/left`), in the order in which they were given."""
        self.single = isinstance(self.tree, Leaf)
        """Whether it is one unnamed component."""
        self._labels = {name: self._label("" if self.single else name) for name in self.components}
        self._first = next(iter(self.components.items()))

    def _label(self, name: str) -> str:
        return f"{self.kind} {name!r}" if name else self.kind

    def _read(self, spec: Any, name: str) -> Tree:
        branches = isinstance(spec, Mapping) and any(isinstance(v, Mapping | Leaf) for v in spec.values())
        if isinstance(spec, Mapping) and not spec:
            raise SpecError(f"The {self._label(name)} must have at least one component. Received: {{}}.")
        if not branches:
            return self._read_leaf(spec, self._label(name))
        for key in spec:
            if not isinstance(key, str) or not key or "/" in key:
                raise SpecError(
                    f"A {self.kind} name must be a non-empty string without '/'. Received: {key!r}. "
                    f"Write nested names as nested dicts."
                )
            if key in RESERVED:
                raise SpecError(
                    f"The {self.kind} name {_join(name, key)!r} is reserved. Rename that component."
                )
        return {key: self._read(value, _join(name, key)) for key, value in spec.items()}

    def _read_leaf(self, spec: Any, label: str) -> Leaf:
        leaf = Leaf.read(spec, label, action=self.kind == "action")
        if self.kind == "action" and leaf.type == "float" and leaf.storage.kind != "f":
            raise SpecError(
                f"The {label} of type 'float' must have a float dtype. Received: dtype={leaf.dtype!r}."
            )
        if self.kind == "action" and leaf.frames > 1:
            raise SpecError(f"The {label} has no frames: only states do. Received: frames={leaf.frames}.")
        return leaf

    @classmethod
    def read(cls, spec: Any, kind: Kind = "state") -> Space:
        """Return the space itself, or make one of a specification."""
        if not isinstance(spec, Space):
            return cls(spec, kind)
        if spec.kind != kind:
            raise SpecError(f"A space of {kind}s is needed. Received a space of {spec.kind}s.")
        return spec

    def to_spec(self) -> dict[str, Any]:
        """Return the specification as JSON data, from which `read` makes an equal space."""
        return _specs(self.tree)

    @property
    def frames(self) -> dict[str, int]:
        """How many frames each stack of them holds: a replay memory may store each frame once."""
        return {name: leaf.frames for name, leaf in self.components.items() if leaf.frames > 1}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Space({self.to_spec()!r}, {self.kind!r})"

    @property
    def _key(self) -> Any:
        return self.kind, self.single, tuple((name, leaf.rounded) for name, leaf in self.components.items())

    def check(
        self, value: Any, batch_shape: tuple[int, ...] | None = (), *, values: bool = True, clip: bool = False
    ) -> Flat:
        """Check a value in the user's structure and return it flat, as stored (see `Leaf.accept`).

        A single unnamed component comes bare, or in a dict under its default name. The leading axes
        `batch_shape` (None: any) are those of every component.

        Raises:
            SpaceError: the value does not fit; names the component, what it must be and what was received.
        """
        if self.single:
            name, leaf = self._first
            if type(value) is not np.ndarray and isinstance(value, Mapping):
                value = self._gather({name: leaf}, value, "")[name]
            tolerant = self.kind == "state"
            return {
                name: leaf.accept(value, self.kind, batch_shape, values=values, clip=clip, tolerant=tolerant)
            }
        raw = self._gather(self.tree, value, "")
        flat: Flat = {}
        for name, leaf in self.components.items():
            flat[name] = array = leaf.accept(
                raw[name],
                self._labels[name],
                batch_shape,
                values=values,
                clip=clip,
                tolerant=self.kind == "state",
            )
            if batch_shape is None:  # all must have those of the first component
                batch_shape = array.shape[: array.ndim - len(leaf.shape)]
        return flat

    def flatten(self, value: Any) -> Flat:
        """Return a value flat and as stored, any leading axes; structure, shapes and kinds are checked."""
        return self.check(value, None, values=False)

    def unflatten(self, flat: Mapping[str, Any]) -> Any:
        """Return stored values in the user's structure and range: the inverse of `flatten`.

        A component of shape `()` without leading axes becomes a Python number, others become arrays.
        """
        if flat.keys() != self.components.keys():
            self._refuse(flat, self.components, "")
        return _nest(self.tree, self.kind if self.single else "", flat)

    def batch_shape(self, flat: Mapping[str, NDArray]) -> tuple[int, ...]:
        """Return the leading axes of a flat value."""
        name, leaf = self._first
        shape = flat[name].shape
        return shape[: len(shape) - len(leaf.shape)]

    def clip(self, flat: Mapping[str, Any]) -> Flat:
        """Return stored values with floats clipped to their bounds; other components are not copied."""
        return {
            name: np.clip(flat[name], leaf.low, leaf.high)
            if leaf.type == "float" and (leaf.min_value is not None or leaf.max_value is not None)
            else np.asarray(flat[name])
            for name, leaf in self.components.items()
        }

    def _gather(self, tree: Tree, value: Any, name: str) -> dict[str, Any]:
        if isinstance(tree, Leaf):
            return {name: value}
        if not isinstance(value, Mapping):
            keys = ", ".join(map(repr, tree))
            raise SpaceError(
                f"The {self._label(name)} must be a dict with {keys}. Received: {type(value).__name__}."
            )
        if value.keys() != tree.keys():
            self._refuse(value, tree, f"{name}/" if name else "")
        raw: dict[str, Any] = {}
        for key, branch in tree.items():
            raw.update(self._gather(branch, value[key], _join(name, key)))
        return raw

    def _refuse(self, value: Mapping[Any, Any], known: Collection[str], prefix: str) -> None:
        for key in value:
            if key not in known:
                mask = (
                    " Masks must be declared: Spaces.read(states, actions, masks=...)."
                    if str(key).endswith(SUFFIX)
                    else ""
                )
                raise SpaceError(
                    f"There is no {self.kind} {f'{prefix}{key}'!r}.{suggest(str(key), known)}{mask}"
                )
        for key in known:
            if key not in value:
                received = ", ".join(repr(k) for k in value) or "nothing"
                raise SpaceError(f"The {self.kind} {f'{prefix}{key}'!r} is missing. Received: {received}.")


@dataclasses.dataclass(frozen=True)
class Spaces:
    """What an agent sees and does.

    A mask tells for each value of an `int` action whether it is allowed now. It is a part of the observation,
    named `<action>_mask` after the action (`action_mask` for a single unnamed action).

    Raises:
        SpecError: a mask belongs to no action with `num_values`, or its name is taken.
    """

    states: Space
    """Without masks."""
    actions: Space
    masks: tuple[str, ...] = ()
    """Flat names of the actions that come with a mask."""

    def __post_init__(self) -> None:
        Space.read(self.states, "state")
        Space.read(self.actions, "action")
        for action in self.masks:
            leaf = self.actions.components.get(action)
            if leaf is None:
                raise SpecError(
                    f"There is no action {action!r} to mask.{suggest(action, self.actions.components)}"
                )
            if leaf.type != "int":
                raise SpecError(
                    f"Only 'int' actions can be masked. Received: action {action!r} of type {leaf.type!r}."
                )
            if mask_name(action) in self.states.components:
                raise SpecError(
                    f"The state {mask_name(action)!r} has the name of a mask. Rename that component."
                )
            *path, _ = action.split("/")
            for branch in ("/".join(path[: i + 1]) for i in range(len(path))):
                if branch in self.states.components:
                    raise SpecError(
                        f"The state {branch!r} stands where the mask {mask_name(action)!r} belongs. Rename "
                        "that component."
                    )

    @classmethod
    def read(cls, states: Any, actions: Any, masks: Collection[str] = ()) -> Spaces:
        """Make spaces from specifications; entries `<action>_mask` among the states become masks.

        A mask among the states is bool, of shape `(*shape of the action, num_values)`; `masks` are the names
        of further actions whose mask comes with the observation.

        Raises:
            SpecError: a specification is not understood, or a mask does not fit its action.
        """
        action_space = Space.read(actions, "action")
        spec = states.tree if isinstance(states, Space) else states
        names = dict.fromkeys((masks,) if isinstance(masks, str) else masks)
        for name, leaf in action_space.components.items():
            mask = None
            if isinstance(spec, Mapping):
                spec, mask = pop(spec, mask_name(name))
            if mask is None:
                continue
            received = Leaf.read(mask, f"state {mask_name(name)!r}")
            wanted = (*leaf.shape, leaf.num_values)
            if leaf.num_values is not None and (received.type != "bool" or received.shape != wanted):
                raise SpecError(
                    f"The mask {mask_name(name)!r} must be of type 'bool' and shape {wanted}. "
                    f"Received: type {received.type!r} and shape {received.shape}."
                )
            names[name] = None
        if names and isinstance(spec, Mapping) and spec.keys() == {"state"}:
            spec = spec["state"]  # the single state is named only to stand beside its mask
        return cls(Space(spec, "state"), action_space, tuple(names))

    def mask_leaf(self, action: str) -> Leaf:
        """Return the mask of an action as a component: bool, `[*shape, num_values]`."""
        leaf = self.actions.components[action]
        assert leaf.num_values is not None
        return Leaf("bool", (*leaf.shape, leaf.num_values))

    @functools.cached_property
    def observation_components(self) -> dict[str, Leaf]:
        """The components of an observation by flat name: states, then masks."""
        return self.states.components | {mask_name(action): self.mask_leaf(action) for action in self.masks}

    def observe(
        self,
        value: Any,
        batch_shape: tuple[int, ...] | None = None,
        *,
        values: bool = True,
        over: bool | NDArray = False,
    ) -> Flat:
        """Check an observation in the user's structure and return it flat, with its masks.

        Args:
            value: the states, with or without mask entries; a mask that is missing allows everything. A
                single unnamed state with a mask comes as ``{"state": ..., "action_mask": ...}``.
            batch_shape: the leading axes of every component; None: any, but the same for all.
            values: whether to check the numbers, too, not only structure, shape and kind.
            over: whether the episode ended with it, or `[B]` for each row: no action follows, and masks may
                allow nothing.

        Raises:
            SpaceError: a component does not fit, or a mask allows nothing.
        """
        masks: dict[str, Any] = {}
        if self.masks and type(value) is not np.ndarray and isinstance(value, Mapping):
            for action in self.masks:
                value, masks[action] = pop(value, mask_name(action))
        flat = self.states.check(value, batch_shape, values=values)
        if self.masks:
            batch_shape = self.states.batch_shape(flat)
            for action in self.masks:
                flat[mask_name(action)] = self._mask(action, masks.get(action), batch_shape, values, over)
        return flat

    def _mask(
        self, action: str, value: Any, batch_shape: tuple[int, ...], values: bool, over: bool | NDArray
    ) -> NDArray:
        leaf = self.observation_components[mask_name(action)]
        if value is None:
            return np.ones(batch_shape + leaf.shape, np.bool_)
        label = f"mask {mask_name(action)!r}"
        array = np.asarray(value)
        if array.dtype.kind in "iu" and np.all((array == 0) | (array == 1)):
            array = array.astype(np.bool_)
        mask = leaf.accept(array, label, batch_shape)
        if not values or (allowed := mask.any(-1)).all():
            return mask
        empty = ~(allowed | np.reshape(over, (-1, *[1] * (allowed.ndim - 1)))).reshape(allowed.shape)
        if empty.any():
            index = tuple(int(i) for i in np.argwhere(empty)[0])
            place = f" at index {index}" if index else ""
            raise SpaceError(f"The {label} must allow at least one value. Received: all False{place}.")
        return mask

    def unflatten(self, observation: Mapping[str, Any]) -> Any:
        """Return a flat observation in the user's structure and range; SpaceError: other names."""
        states, masks = dict(observation), {}
        for action in self.masks:
            if (name := mask_name(action)) not in states:
                raise SpaceError(f"The mask {name!r} is missing.")
            masks[action] = states.pop(name)
        return beside(self.states.unflatten(states), masks)

    def declaration(self) -> Any:
        """Return the specification of the states as an environment gives it: JSON data, masks beside them."""
        states = self.states.to_spec()
        if self.masks and self.states.single:
            states = {"state": states}
        return beside(states, {action: self.mask_leaf(action).to_spec() for action in self.masks})

    def to_spec(self) -> dict[str, Any]:
        """Return the spaces as JSON data, for `from_spec`."""
        return {"states": self.states.to_spec(), "actions": self.actions.to_spec(), "masks": list(self.masks)}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Spaces:
        """Make spaces from what `to_spec` returned."""
        try:
            states, actions, masks = spec["states"], spec["actions"], spec.get("masks", ())
        except KeyError as error:
            raise SpecError(f"Spaces must have 'states' and 'actions'. {error} is missing.") from None
        return cls(Space(states, "state"), Space(actions, "action"), tuple(masks))


def require(spaces: Spaces, algorithm: str, allowed: Collection[str], instead: str) -> None:
    """Refuse actions of a type that an algorithm does not support.

    `allowed` are types out of `float`, `int`, `bool`; `instead` says what to use for the others.

    Raises:
        SpaceError: an action is of another type; names the algorithm, the action, its type and what to use.
    """
    for name, leaf in spaces.actions.components.items():
        if leaf.type not in allowed:
            which = "the action is" if spaces.actions.single else f"action {name!r} is"
            kinds = {"float": "continuous (float)", "int": "discrete (int, bool)"}
            supported = " and ".join(words for kind, words in kinds.items() if kind in allowed)
            raise SpaceError(
                f"{algorithm} supports {supported} actions only, and {which} {leaf.type!r}. Use {instead} "
                "instead."
            )


def _join(name: str, key: str) -> str:
    return f"{name}/{key}" if name else key


def _leaves(tree: Tree, name: str) -> Iterator[tuple[str, Leaf]]:
    if isinstance(tree, Leaf):
        yield name, tree
        return
    for key, branch in tree.items():
        yield from _leaves(branch, _join(name, key))


def _specs(tree: Tree) -> dict[str, Any]:
    return tree.to_spec() if isinstance(tree, Leaf) else {key: _specs(branch) for key, branch in tree.items()}


def _nest(tree: Tree, name: str, flat: Mapping[str, Any]) -> Any:
    if not isinstance(tree, Leaf):
        return {key: _nest(branch, _join(name, key), flat) for key, branch in tree.items()}
    array = np.asarray(flat[name])
    if tree.has_offset:
        array = np.asarray(array.astype(np.int64) + tree.offset)
    return array.item() if array.ndim == 0 else array
