"""Where layers are put together: a Keras graph under construction, with tensors and recurrent states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from operant.errors import SpecError, suggest
from operant.nn.backend import keras

ACTIVATIONS = (
    "elu", "gelu", "leaky-relu", "none", "relu", "selu", "sigmoid", "silu", "softmax", "softplus", "softsign",
    "swish", "tanh",
)  # fmt: skip
"""Names of activations; those of Keras have underscores."""


def activation(name: str | None) -> str:
    """Return Keras's name of an activation; SpecError: there is no such one."""
    known = "none" if name is None else str(name).replace("_", "-")
    if known == "linear":
        known = "none"
    if known not in ACTIVATIONS:
        raise SpecError(f"Unknown activation {name!r}.{suggest(known, ACTIVATIONS)}")
    return {"none": "linear", "swish": "silu"}.get(known, known.replace("-", "_"))


def orthogonal(nonlinearity: str | None, scale: float = 1.0) -> Any:
    """Return an orthogonal initialiser (Saxe et al. 2014): gain √2, or 1 before linear or sigmoid ones."""
    from operant.nn.keras_layers import Orthogonal

    plain = activation(nonlinearity) in ("linear", "sigmoid", "softmax", "softplus")
    return Orthogonal(gain=scale * (1.0 if plain else math.sqrt(2.0)))


def safe_name(name: str) -> str:
    """Return a component's name as Keras accepts it: without slashes."""
    return name.replace("/", ".")


def reshaped(tensor: Any, shape: tuple[int, ...]) -> Any:
    """Return a tensor in a shape (but for the batch axis), reshaped in float32 despite any keras.json."""
    if tuple(tensor.shape[1:]) == shape:
        return tensor
    return keras().layers.Reshape(shape, dtype="float32")(tensor)


Bounds: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Least and greatest values; infinite where open."""


class Carries:
    """A model's recurrent states by name: Keras inputs for those before the step, tensors for those after."""

    def __init__(self) -> None:
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}
        self.horizon: int | None = None
        """Longest `horizon` that a layer asked for."""

    def add(self, name: str, size: int) -> Any:
        """Return the tensor `[B, size]` of a state before the step."""
        self.sizes[name] = size
        self.inputs[name] = keras().Input((size,), dtype="float32", name=name)
        return self.inputs[name]

    def want(self, horizon: int | None) -> None:
        """Note how many rows gradients should flow back through."""
        if horizon is not None:
            self.horizon = max(horizon, self.horizon or 0)


class Graph:
    """One network under construction: its inputs and registered tensors by name, and names for its layers.

    Args:
        prefix: first part of the names of all layers.
        tensors: Keras tensors by component name. Choices are still integers: see `encode`.
        choices: number of values of the components that are choices.
        carries: where recurrent layers register their states; shared by the networks of one model.
        bounds: least and greatest values, `[*shape]`, of the components that are numbers.
    """

    def __init__(
        self,
        prefix: str,
        tensors: Mapping[str, Any],
        choices: Mapping[str, int],
        carries: Carries,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        self.inputs = tuple(tensors)
        self.carries = carries
        self.registered: dict[str, Any] = {}
        """Tensors by the name that `register` gave them."""
        self.copied: list[tuple[Any, Any]] = []
        """Layers that the user built, each with the copy that takes over its weights."""
        self._prefix = prefix
        self._tensors = dict(tensors)
        self._choices = {id(tensors[name]): n for name, n in choices.items()}
        self._bounds = {id(tensors[name]): pair for name, pair in (bounds or {}).items()}
        self._names: dict[str, int] = {}

    def name(self, kind: str, wanted: str | None = None) -> str:
        """Return a name for the next layer of a kind: the given one, or the kind and a running number."""
        if wanted is not None:
            name = f"{self._prefix}.{safe_name(wanted)}"
            if name in self._names:
                raise SpecError(f"The name {wanted!r} is given to two layers.")
            self._names[name] = 1
            return name
        count = self._names.get(kind, 0)
        while (name := f"{self._prefix}.{kind}{count}") in self._names:
            count += 1
        self._names |= {kind: count + 1, name: 1}
        return name

    def register(self, name: str, tensor: Any) -> None:
        """Give a tensor a name, by which `retrieve` finds it."""
        if name in self._tensors:
            raise SpecError(f"There already is a tensor named {name!r}. Register it under another name.")
        self._tensors[name] = self.registered[name] = tensor

    def retrieve(self, name: str) -> Any:
        """Return a component of the input or a registered tensor."""
        if name not in self._tensors:
            raise SpecError(f"There is no tensor named {name!r}.{suggest(name, self._tensors)}")
        return self._tensors[name]

    def replace(self, name: str, tensor: Any) -> None:
        """Replace a component of the input by another tensor."""
        self._tensors[name] = tensor

    def bounds(self, tensor: Any) -> Bounds | None:
        """Return the least and greatest values of a component of numbers; None for any other tensor."""
        return self._bounds.get(id(tensor))

    def num_values(self, tensor: Any) -> int | None:
        """Return how many values a component of choices takes; None for any other tensor."""
        return self._choices.get(id(tensor))

    def encode(self, tensor: Any) -> Any:
        """Return a float tensor: choices one-hot (with one more axis), integers and bools as numbers."""
        if "float" in tensor.dtype:
            return tensor
        count = self.num_values(tensor)
        if count is None or tensor.dtype == "bool":
            return keras().ops.cast(tensor, "float32")
        return keras().ops.one_hot(tensor, count, dtype="float32")

    def vector(self, tensor: Any) -> Any:
        """Return a float tensor `[B, features]`."""
        tensor = self.encode(tensor)
        if len(tensor.shape) == 2:
            return tensor
        return reshaped(tensor, (math.prod(tensor.shape[1:]),))

    def concatenate(self, tensors: list[Any]) -> Any:
        """Join tensors `[B, features]`."""
        return tensors[0] if len(tensors) == 1 else keras().ops.concatenate(tensors, axis=-1)
