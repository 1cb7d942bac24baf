"""Inputs and outputs of an exported policy, as the JSON file beside it holds them.

All of them are arrays whose first axis is the batch, in the environment's units and in the types that agents
store:

| input | output | |
|---|---|---|
| `states`, or `states/<name>` for each of several | | |
| `auxiliaries/<action>/mask` | | True where a value of the action is allowed |
| `internals/<path>` | `next_internals/<path>` | recurrent state before and after |
| | `actions`, or `actions/<name>` | |

Names of states and actions are those of trace files (`operant.execution.traces`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from operant.checkpoint.arrays import fitted
from operant.errors import SpaceError
from operant.spec.spaces import Leaf, Space, Spaces, mask_name

Flat = dict[str, np.ndarray]

VERSION = 1
"""Version of the JSON file; unknown ones are refused."""


@dataclasses.dataclass(frozen=True)
class PolicyPort:
    """One input or output."""

    name: str
    kind: str
    """`state`, `mask`, `internals` or `action`."""
    component: str
    """Flat name of the component, of the masked action, or path of the internal state."""
    leaf: Leaf
    path: tuple[str, ...]
    """Its place in the nested structure; empty for a single unnamed component."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "name": self.name,
            "kind": self.kind,
            "path": list(self.path),
            "shape": ["batch", *self.leaf.shape],
            "dtype": self.leaf.dtype,
            "specification": self.leaf.to_spec(),
        }


@dataclasses.dataclass(frozen=True)
class Interface:
    """Inputs and outputs of one policy; SpaceError: values exceed the 32 bits in which they are passed."""

    spaces: Spaces
    initial: Mapping[str, np.ndarray]
    """Recurrent state of one actor at the start of an episode, by path; empty if there is none."""

    def __post_init__(self) -> None:
        for space in (self.spaces.states, self.spaces.actions):
            for name, leaf in space.components.items():
                if leaf.has_offset and not np.all(np.abs([leaf.low, leaf.high]) < 2**31):
                    raise SpaceError(
                        f"The {space.kind} {name!r} cannot be exported: its values exceed 32 bits. Give it "
                        "a smaller min_value."
                    )

    @property
    def inputs(self) -> list[PolicyPort]:
        """States, masks, internals, in this order."""
        masks = [
            PolicyPort(
                f"auxiliaries/{action}/mask",
                "mask",
                action,
                self.spaces.mask_leaf(action),
                tuple(mask_name(action).split("/")),
            )
            for action in self.spaces.masks
        ]
        return [*_ports(self.spaces.states), *masks, *self._internals("internals")]

    @property
    def outputs(self) -> list[PolicyPort]:
        """Actions and the internals after them."""
        return [*_ports(self.spaces.actions), *self._internals("next_internals")]

    def _internals(self, group: str) -> Iterator[PolicyPort]:
        for path, x in self.initial.items():
            leaf = Leaf("float", x.shape, dtype=str(x.dtype))
            yield PolicyPort(f"{group}/{path}", "internals", path, leaf, tuple(path.split("/")))

    def to_json(self) -> dict[str, Any]:
        """Return the description that is saved with an exported policy."""
        return {
            "version": VERSION,
            "inputs": [port.to_json() for port in self.inputs],
            "outputs": [port.to_json() for port in self.outputs],
            "initial_internals": {path: x.tolist() for path, x in self.initial.items()},
            "spaces": self.spaces.to_spec(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Interface:
        """Read what `to_json` returned."""
        types = {
            "/".join(port["path"]): port["dtype"] for port in data["inputs"] if port["kind"] == "internals"
        }
        initial = {path: np.asarray(x, types[path]) for path, x in data["initial_internals"].items()}
        for x in initial.values():
            fitted(x, x.shape, x.dtype)
        return cls(Spaces.from_spec(data["spaces"]), initial)

    def read(self, observation: Mapping[str, np.ndarray], internals: Mapping[str, np.ndarray]) -> Flat:
        """Return the inputs of a stored observation `[n, ...]` and internals `[n, ...]` by path."""
        flat: Flat = {}
        for port in self.inputs:
            if port.kind == "internals":
                flat[port.name] = np.asarray(internals[port.component], port.leaf.storage)
                continue
            x = observation[mask_name(port.component) if port.kind == "mask" else port.component]
            flat[port.name] = (x + port.leaf.offset).astype(np.int32) if port.leaf.has_offset else x
        return flat

    def write(self, outputs: Mapping[str, Any]) -> tuple[Flat, Flat]:
        """Return stored actions `[n, ...]` and internals by path, from the outputs."""
        actions: Flat = {}
        after: Flat = {}
        for port in self.outputs:
            x = np.asarray(outputs[port.name])
            if port.kind == "internals":
                after[port.component] = x
            else:
                actions[port.component] = x - port.leaf.offset if port.leaf.has_offset else x
        return actions, after

    def sample(self, generator: np.random.Generator, n: int) -> Flat:
        """Return random inputs `[n, ...]`, legal as far as the specification tells."""
        return {port.name: _drawn(port, generator, n) for port in self.inputs}


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return a nested dict as a flat one, by path; anything else but a dict is what a path leads to."""
    if isinstance(tree, Mapping):
        return {
            name: x for key, branch in tree.items() for name, x in flat(branch, f"{prefix}{key}/").items()
        }
    return {prefix[:-1]: tree} if prefix else {}


def _ports(space: Space) -> Iterator[PolicyPort]:
    group = f"{space.kind}s"
    for name, leaf in space.components.items():
        stored = dataclasses.replace(leaf, dtype="int32") if leaf.has_offset else leaf
        path = () if space.single else tuple(name.split("/"))
        yield PolicyPort("/".join((group, *path)), space.kind, name, stored, path)


def _drawn(port: PolicyPort, generator: np.random.Generator, n: int) -> np.ndarray:
    leaf = port.leaf
    shape = (n, *leaf.shape)
    if leaf.type == "bool":
        drawn = generator.random(shape) < 0.5
        if port.kind == "mask":
            drawn[..., 0] |= ~drawn.any(-1)
        return drawn
    if leaf.storage.kind in "iu":
        info = np.iinfo(leaf.storage)
        low = np.where(np.isfinite(leaf.low), leaf.low, max(info.min, -100))
        high = np.where(np.isfinite(leaf.high), leaf.high, min(info.max, 100))
        return generator.integers(low, high, shape, leaf.storage.type, endpoint=True)
    return np.clip(generator.normal(size=shape), leaf.low, leaf.high).astype(leaf.storage)
