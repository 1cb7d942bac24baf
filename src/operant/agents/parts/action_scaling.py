"""Float actions in units: for every element, -1 is the lower bound, 1 the upper and 0 the middle.

So noise, entropies and what critics read do not depend on the range that an environment happens to have.
Environments, blocks and memories hold actions in the environment's own scale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from operant.errors import SpaceError
from operant.nn import Head
from operant.spec.spaces import Leaf, Spaces
from operant.types import Array, Arrays


def unit_heads(actions: Mapping[str, Leaf]) -> dict[str, Head]:
    """Return one head per action of a deterministic actor, whose output is the action in units."""
    # Small kernels start the policy in the middle of the range, where tanh has a slope (Lillicrap et al.
    # 2016, section 7).
    return {name: Head(leaf.shape, scale=0.01, activation="tanh") for name, leaf in actions.items()}


def from_units(actions: Mapping[str, Leaf], units: Arrays) -> Arrays:
    """Return actions `[*B, *shape]` in the environment's scale."""
    return {name: _half(actions[name], x) * x + _centre(actions[name], x) for name, x in units.items()}


def to_units(actions: Mapping[str, Leaf], action: Arrays) -> Arrays:
    """Return actions `[*B, *shape]` in units; an element with only one value is 0."""
    units = {}
    for name, x in action.items():
        half = _half(actions[name], x)
        units[name] = (x - _centre(actions[name], x)) / jnp.where(half > 0, half, 1.0)
    return units


def critic_input(action: str, states: Mapping[str, Leaf]) -> str:
    """Return the name under which critics read an action: its own, unless a state has it."""
    return f"{action}/action" if action in states else action


def critic_inputs(states: Mapping[str, Leaf], actions: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Return what critics read: states, and actions in units."""
    return {**states, **{critic_input(name, states): in_units(leaf) for name, leaf in actions.items()}}


def with_actions(observation: Arrays, units: Arrays, spaces: Spaces) -> Arrays:
    """Return what critics read for observations `[*B, ...]` and actions `[*B, *shape]` in units.

    They read 0 for an element with only one value, whatever the actor outputs: experience never shows them
    anything else, and otherwise the actor would ascend, and targets would use, values that were never learnt.
    """
    states, actions = spaces.states.components, spaces.actions.components
    read = {}
    for name, x in units.items():
        fixed = np.equal(actions[name].low, actions[name].high)
        read[critic_input(name, states)] = (
            jnp.where(jnp.broadcast_to(fixed, x.shape), 0.0, x) if fixed.any() else x
        )
    return {**observation, **read}


def in_units(leaf: Leaf) -> Leaf:
    """Return the leaf of an action as networks see it."""
    return dataclasses.replace(leaf, min_value=-1.0, max_value=1.0, dtype="float32")


def require_bounds(spaces: Spaces, name: str, instead: str) -> None:
    """Refuse (SpaceError) actions without finite bounds, for the agent `name`; `instead`: what to do."""
    for action, leaf in spaces.actions.components.items():
        if not leaf.bounded:
            which = "the action has" if spaces.actions.single else f"action {action!r} has"
            raise SpaceError(
                f"{name} needs finite bounds of every float action, and {which} none "
                f"(min_value={leaf.min_value}, max_value={leaf.max_value}). Give both, or {instead}."
            )


def _centre(leaf: Leaf, like: Array) -> Array:
    return jnp.broadcast_to(jnp.asarray(leaf.low / 2 + leaf.high / 2, jnp.float32), like.shape)


def _half(leaf: Leaf, like: Array) -> Array:
    return jnp.broadcast_to(jnp.asarray(leaf.high / 2 - leaf.low / 2, jnp.float32), like.shape)
