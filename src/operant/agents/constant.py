"""The same action at every step: a reference for comparisons, or a fixed controller in an agent's place.

An action without a given value takes the middle of its bounds, its only bound, 0, or False; a choice takes
its first value. If a mask forbids the value of a choice, the first allowed one replaces it.

Deviations: none. Nothing is learned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from operant.agents.base.protocol import Counters
from operant.agents.options.constant_options import ConstantConfig as Config
from operant.agents.parts.untrained import RandomPolicy, State
from operant.errors import SpecError, suggest
from operant.spec.spaces import Leaf, Spaces, masks_of
from operant.types import Action, Array, Arrays, Key, Metrics, Rollout, Tree


def fallback(leaf: Leaf) -> np.ndarray:
    """Return the value of an action for which none is given, as stored."""
    if leaf.type != "float":
        return np.zeros(leaf.shape, leaf.storage)
    low, high = np.asarray(leaf.low, np.float64), np.asarray(leaf.high, np.float64)
    from_low, from_high = (np.where(np.isfinite(x), x, 0.0) for x in (low, high))
    both = np.isfinite(low) & np.isfinite(high)
    return np.where(both, from_low / 2 + from_high / 2, from_low + from_high).astype(leaf.storage)


def flattened(
    values: Mapping[str, Any], known: Mapping[str, Leaf], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield values by flat name; a name that is no action is an error."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if name in known:
            yield name, value
        elif isinstance(value, Mapping) and any(other.startswith(f"{name}/") for other in known):
            yield from flattened(value, known, f"{name}/")
        else:
            raise SpecError(f"action_values names {name!r}, which is no action.{suggest(name, known)}")


@dataclasses.dataclass(frozen=True, eq=False)
class Constant(RandomPolicy):
    """Constant actions of any kind, masked ones included."""

    values: Mapping[str, np.ndarray]
    """By flat name, as stored."""

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> Constant:
        """Check the values.

        Raises:
            SpecError: a name is no action's.
            SpaceError: a value does not fit its action.
        """
        known = spaces.actions.components
        values: Any = config.action_values
        if values is None:
            values = {}
        elif spaces.actions.single and not isinstance(values, Mapping):
            values = {next(iter(known)): values}
        elif not isinstance(values, Mapping):
            listed = ", ".join(map(repr, known))
            raise SpecError(f"action_values must be a dict with some of {listed}. Received: {values!r}.")
        flat = {
            name: known[name].accept(value, f"action {name!r}", ())
            for name, value in flattened(values, known)
        }
        return cls(
            config, spaces, actors, {name: flat.get(name, fallback(leaf)) for name, leaf in known.items()}
        )

    def noise(self, key: Key, n: int) -> Tree:
        """No randomness: zeros, one for every row."""
        return jnp.zeros(n, jnp.float32)

    def act(self, acting: Tree, observation: Arrays, carry: Tree, noise: Tree, explore: bool) -> Action:
        """Return the values, whatever is observed."""
        n = next(iter(observation.values())).shape[0]
        action = {
            name: jnp.broadcast_to(jnp.asarray(value), (n, *value.shape))
            for name, value in self.values.items()
        }
        masks = masks_of(observation)
        for name in self.spaces.masks:
            action[name] = allowed(action[name], masks[name])
        return Action(action, (), carry)

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Nothing is learned."""
        return state, memory, {}


def allowed(value: Array, mask: Array) -> Array:
    """Return values where `mask[*B, K]` allows them, elsewhere the first that it allows."""
    good = jnp.take_along_axis(mask, value[..., None].astype(jnp.int32), axis=-1)[..., 0]
    return jnp.where(good, value, jnp.argmax(mask, axis=-1).astype(value.dtype))
