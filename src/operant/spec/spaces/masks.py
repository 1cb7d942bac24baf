"""Action masks among an observation's components: their names and places in the user's structure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")
SUFFIX = "_mask"


def mask_name(action: str) -> str:
    """Return the flat name of the mask of an action."""
    return action + SUFFIX


def masks_of(observation: Mapping[str, T]) -> dict[str, T]:
    """Return the masks of a flat observation by the names of their actions.

    A state may be named like a mask, too (`goal_mask`, where no action is called `goal`): look masks up by
    the names of actions.
    """
    return {name.removesuffix(SUFFIX): x for name, x in observation.items() if name.endswith(SUFFIX)}


def beside(states: Any, masks: Mapping[str, Any]) -> Any:
    """Return states in the user's structure with masks, by the names of their actions, in their places.

    A single unnamed state gets the name `state`, to stand beside them.
    """
    if masks and not isinstance(states, Mapping):
        states = {"state": states}
    for action, mask in masks.items():
        states = _put(states, mask_name(action), mask)
    return states


def nested(flat: Mapping[str, T]) -> dict[str, Any]:
    """Return a flat dict as a nested one, by the paths that are its keys."""
    tree: dict[str, Any] = {}
    for name, x in flat.items():
        tree = _put(tree, name, x)
    return tree


def _put(tree: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    head, _, tail = name.partition("/")
    return {**tree, head: _put(tree.get(head, {}), tail, value) if tail else value}


def pop(tree: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], Any]:
    """Return a nested dict without one entry, and that entry or None; the argument is not changed."""
    if name in tree:
        return {key: value for key, value in tree.items() if key != name}, tree[name]
    head, _, tail = name.partition("/")
    branch = tree.get(head)
    if not tail or not isinstance(branch, Mapping):
        return tree, None
    rest, entry = pop(branch, tail)
    if rest is branch:
        return tree, None
    return {key: rest if key == head else value for key, value in tree.items() if key != head or rest}, entry
