"""The weights of a Keras model as named arrays, and how each is drawn from a key.

Keras draws weights when layers are made, from seeds of its own. Here a model is made inside a
`StatelessScope`, where Keras only notes each weight's initialiser; these are kept, and called with keys
whenever a set of weights is wanted.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from operant.nn.backend import keras
from operant.types import Array, Key


@dataclasses.dataclass(frozen=True, eq=False)
class Weight:
    """One variable of a Keras model."""

    name: str
    """``layer/weight``, unique within the model and the same in every process."""
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    initializer: Callable[..., Any] | None
    """None if it starts as `value`."""
    value: npt.NDArray[Any] | None = None

    def draw(self, key: Key) -> Array:
        """Return an initial value: a pure function of the key."""
        if is_seed(self.name):
            return jax.random.bits(key, self.shape, jnp.uint32)
        if self.initializer is None:
            return jnp.array(self.value, self.dtype)
        initializer = self.initializer
        if hasattr(initializer, "seed"):
            # Keras's random initialisers pass `seed` on to jax.random unchanged if it is an array.
            initializer = copy.copy(initializer)
            initializer.seed = key
        return jnp.asarray(initializer(self.shape, dtype=self.dtype), self.dtype)


def is_seed(name: str) -> bool:
    """Return whether a weight of this name is the state of a layer's random numbers."""
    return name.rpartition("/")[2].startswith("seed_generator_state")


@contextlib.contextmanager
def undrawn() -> Iterator[Any]:
    """Yield a `StatelessScope`, at whose end Keras forgets the variables that were made in it.

    It would allocate them then, though arrays of `Model.init` are used instead; and if it could not, try
    again at the end of every later scope of the process.
    """
    state = keras().src.backend.common.global_state
    outer = list(state.get_global_attribute("uninitialized_variables") or ())
    try:
        with keras().StatelessScope(initialize_variables=False) as scope:
            yield scope
    finally:
        state.set_global_attribute("uninitialized_variables", outer)


def collect(model: Any, scope: Any, copied: Iterable[tuple[Any, Any]] = ()) -> tuple[Weight, ...]:
    """Note how each weight of a built Keras model starts, and keep Keras from drawing them itself.

    The `StatelessScope` in which it was made is still open. Of each pair in `copied` the second variable
    takes over the value of the first.
    """
    k = keras()
    values = {id(new): np.asarray(old) for old, new in copied}
    weights = []
    for name, variable in named_variables(model):
        initializer = variable._initializer  # None once the variable has a value
        assigned = scope.get_current_value(variable)
        value = values.get(id(variable))
        if value is None and assigned is not None:
            value = np.asarray(assigned)
        if value is None and initializer is None:
            value = np.asarray(variable)
        if initializer is not None:
            variable._initializer = k.initializers.Zeros()
        kept = initializer if value is None else None
        shape = tuple(variable.shape)
        weights.append(Weight(name, shape, variable.dtype, variable.trainable, kept, value))
    return tuple(weights)


def write(model: Any, values: Mapping[str, Any]) -> None:
    """Write arrays by name into the variables of a Keras model."""
    for name, variable in named_variables(model):
        variable.assign(jnp.array(values[name], copy=True))
    for layer in adapted(model):
        layer.finalize_state()


def adapted(model: Any) -> list[Any]:
    """Return a model's layers, at any depth, that compute with copies of their weights: `Normalization`."""
    return [x for x in model._flatten_layers() if isinstance(x, keras().layers.Normalization)]


@contextlib.contextmanager
def reading(layers: Sequence[Any], values: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Have the layers from `adapted` compute with these (variable, array) values, not their copies."""
    kept = [(layer, layer.mean, layer.variance) for layer in layers]
    with keras().StatelessScope(state_mapping=values):
        for layer in layers:
            layer.finalize_state()
    try:
        yield
    finally:
        for layer, mean, variance in kept:
            layer.mean, layer.variance = mean, variance


def named_variables(model: Any) -> list[tuple[str, Any]]:
    """Return a Keras model's variables by names that do not depend on what was made before it.

    Keras numbers layers through the whole process (``dense_7``); here numbers start anew in each model.
    """
    names: dict[int, str] = {}
    taken: set[str] = set()
    for prefix, layer in _walk(model, ""):
        for variable in layer.variables:
            if id(variable) in names:
                continue
            name = _unique(f"{prefix}{re.sub(r'^variable(_[0-9]+)?$', 'variable', variable.name)}", taken)
            taken.add(name)
            names[id(variable)] = name
    return [(names[id(variable)], variable) for variable in model.variables]


def _walk(model: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    k = keras()
    taken: set[str] = set()
    for layer in model.layers:
        numbered = re.fullmatch(r"(.+?)_[0-9]+", layer.name)
        base = (
            numbered.group(1)
            if numbered and numbered.group(1) == _snake(type(layer).__name__)
            else layer.name
        )
        name = _unique(base, taken)
        taken.add(name)
        if isinstance(layer, k.Model):
            yield from _walk(layer, f"{prefix}{name}/")
        yield f"{prefix}{name}/", layer
    yield prefix, model


def _snake(name: str) -> str:
    """Return a class's name as Keras writes it in layer names: ``LSTMCell`` becomes ``lstm_cell``."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _unique(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    return next(new for i in range(1, len(taken) + 1) if (new := f"{name}_{i}") not in taken)
