"""Lists of layers: the table of layer types, the layers that join branches, and adding lists to a graph."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from operant.errors import SpecError, as_whole, suggest, value_error
from operant.nn import layers
from operant.nn.backend import keras, refuse_modules, unregistered
from operant.nn.graph import Graph, reshaped
from operant.nn.layers import RANKS, Layer
from operant.nn.recurrent import Gru, Lstm, Rnn
from operant.spec import Registry, build, refuse_code
from operant.spec.written_out import refuse_elsewhere

Aggregation = Literal["concat", "max", "mean", "product", "stack", "sum"]
TAKES_INTEGERS = {"Embedding", "CategoryEncoding", "IntegerLookup", "HashedCrossing", "Hashing"}


def _index(name: str, value: Any) -> Any:
    number = as_whole(value)
    if isinstance(number, bool) or not isinstance(number, int):
        raise value_error(name, "a whole number", value)
    return number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Register(Layer):
    """Names its input, for `retrieve` further on."""

    type = "register"
    raw = True
    tensor: str

    def _add(self, graph: Graph, x: Any) -> Any:
        graph.register(self.tensor, x)
        return x


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retrieve(Layer):
    """Takes components of the input or registered tensors, and makes one of several.

    Tensors of lower rank get axes of size 1 at the end; axes of size 1 are repeated as needed.
    """

    type = "retrieve"
    raw = True
    tensors: str | tuple[str, ...]
    aggregation: Aggregation = "concat"
    axis: Annotated[int, _index] = 0
    """Axis to join along (`concat`) or to add (`stack`), not counting the batch axis."""

    def _check(self) -> None:
        names = (self.tensors,) if isinstance(self.tensors, str) else tuple(self.tensors)
        if not names:
            raise SpecError("tensors must name at least one tensor. Received: tensors=().")
        object.__setattr__(self, "tensors", names)

    def _add(self, graph: Graph, x: Any) -> Any:
        tensors = [graph.retrieve(name) for name in self.tensors]
        if len(tensors) == 1:
            return tensors[0]
        ops = keras().ops
        tensors = self._alike([graph.encode(x) for x in tensors])
        if self.aggregation == "concat":
            return ops.concatenate(tensors, axis=self._axis(len(tensors[0].shape) - 1) + 1)
        if self.aggregation == "stack":
            return ops.stack(tensors, axis=self._axis(len(tensors[0].shape)) + 1)
        reductions = {"max": "max", "mean": "mean", "product": "prod", "sum": "sum"}
        return getattr(ops, reductions[self.aggregation])(ops.stack(tensors, axis=1), axis=1)

    def _axis(self, rank: int) -> int:
        if not -rank <= self.axis < rank:
            raise SpecError(f"axis must be below the rank {rank}. Received: axis={self.axis}.")
        return self.axis % rank

    def _alike(self, tensors: list[Any]) -> list[Any]:
        ops = keras().ops
        shapes = [tuple(x.shape[1:]) for x in tensors]
        rank = max(map(len, shapes))
        padded = [shape + (1,) * (rank - len(shape)) for shape in shapes]
        free = self._axis(rank) if self.aggregation == "concat" and rank else None
        sizes = [max(column) for column in zip(*padded, strict=True)]
        result = []
        for x, shape in zip(tensors, padded, strict=True):
            wanted = tuple(
                n if i == free else size for i, (n, size) in enumerate(zip(shape, sizes, strict=True))
            )
            if any(n not in (1, size) for n, size in zip(shape, wanted, strict=True)):
                listed = ", ".join(f"{name} {s}" for name, s in zip(self.tensors, shapes, strict=True))
                raise SpecError(f"Tensors to {self.aggregation} must have equal shapes. Received: {listed}.")
            x = reshaped(x, shape)
            copies = (1, *(size // n for n, size in zip(shape, wanted, strict=True)))
            result.append(x if set(copies) == {1} else ops.tile(x, copies))
        return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block(Layer):
    """Several layers as one."""

    type = "block"
    raw = True
    layers: tuple[Any, ...]

    def _check(self) -> None:
        if not isinstance(self.layers, list | tuple):
            raise value_error("layers", "a list of layers", self.layers)
        object.__setattr__(
            self, "layers", tuple(read(spec, f"layers[{i}]") for i, spec in enumerate(self.layers))
        )
        if any(isinstance(layer, Register | Retrieve) for layer in self.layers):
            raise SpecError("A block holds no register and no retrieve. Put them before or behind it.")

    def _add(self, graph: Graph, x: Any) -> Any:
        for i, layer in enumerate(self.layers):
            x = add(graph, layer, x, f"layers[{i}]")
        return x

    def to_spec(self) -> dict[str, Any]:
        """Return the layers' specifications."""
        return {"type": self.type, "layers": [layer.to_spec() for layer in self.layers]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class KerasLayer(Layer):
    """Any Keras layer. Each network gets its own copy; the weights of a layer that was built come along."""

    type = "keras"
    layer: Any

    def _add(self, graph: Graph, x: Any) -> Any:
        kind = type(self.layer).__name__
        x = x if takes_integers(self.layer) else graph.encode(x)
        data = config(self.layer)
        data["config"]["name"] = graph.name(kind.lower(), self.name)
        copy = from_config(data)
        x = copy(x)
        if self.layer.built and self.layer.weights:
            graph.copied.append((self.layer, copy))
        return x

    raw = True

    def to_spec(self) -> dict[str, Any]:
        """Return the layer's configuration, without the number that Keras gives it in this program."""
        data = config(self.layer)
        data["config"]["name"] = type(self.layer).__name__.lower()
        return {"type": self.type, "layer": data, **({"name": self.name} if self.name else {})}


def takes_integers(layer: Any) -> bool:
    """Tell whether a Keras layer, or the first one of a `Sequential`, reads choices as numbers."""
    if isinstance(layer, keras().Sequential) and layer.layers:
        return takes_integers(layer.layers[0])
    return bool(TAKES_INTEGERS & {cls.__name__ for cls in type(layer).__mro__})


def keras_layer(layer: Any, name: str | None = None, **arguments: Any) -> KerasLayer:
    """Read a Keras layer: an object, a class, a class's name in `keras.layers`, or a configuration."""
    k = keras()
    if isinstance(layer, Mapping):  # as in a file, whose weights come later
        return KerasLayer(layer=from_config(layer), name=name)
    if isinstance(layer, k.layers.Layer):
        if arguments:
            raise SpecError(f"A Keras layer that is made already takes no arguments. Received: {arguments}.")
        return KerasLayer(layer=layer, name=name)
    cls = getattr(k.layers, layer, None) if isinstance(layer, str) else layer
    if not (isinstance(cls, type) and issubclass(cls, k.layers.Layer)):
        known = [n for n in dir(k.layers) if n[0].isupper()]
        raise SpecError(
            f"Keras has no layer {layer!r}.{suggest(layer, known) if isinstance(layer, str) else ''}"
        )
    if cls in (k.layers.Lambda, k.layers.TFSMLayer):
        raise SpecError(
            f"{cls.__name__} layers cannot be saved as data. Write a registered Keras layer instead."
        )
    refuse_modules(arguments)
    if isinstance(arguments.get("vocabulary"), str):
        refuse_code(arguments["vocabulary"], "vocabulary file")
    try:
        return KerasLayer(layer=cls(**arguments), name=name)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"The Keras layer {cls.__name__} refuses its arguments: {_first_line(error)}"
        ) from None


def config(layer: Any) -> dict[str, Any]:
    """Return a Keras layer's or model's configuration as JSON data; SpecError: it cannot be said."""
    try:
        text = json.dumps(keras().saving.serialize_keras_object(layer))
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(
            f"{type(layer).__name__} cannot be written as plain data: {_first_line(error)} Give the class a "
            "`get_config`, or use a functional or Sequential model."
        ) from None
    data = _uncompiled(text)
    refuse_modules(data)
    return data


def _uncompiled(text: str) -> dict[str, Any]:
    """Read a configuration from JSON, without the optimizer that models were compiled with."""
    data: dict[str, Any] = json.loads(
        text, object_hook=lambda d: {key: value for key, value in d.items() if key != "compile_config"}
    )
    return data


def from_config(data: Mapping[str, Any]) -> Any:
    """Make a Keras layer or model from its configuration, in safe mode: the data may hold no code.

    Raises:
        SpecError: the configuration is not understood, holds code, or names a module.
    """
    from operant.nn import keras_layers  # noqa: F401 - registers the classes that it may name

    plain = _uncompiled(json.dumps(data))
    refuse_modules(plain)
    try:
        return keras().saving.deserialize_keras_object(plain, safe_mode=True)
    except (TypeError, ValueError, KeyError) as error:
        if (unknown := re.match(r"Could not locate (?:class|function) '(\w+)'", str(error))) is not None:
            raise unregistered(unknown[1]) from None
        raise SpecError(f"Keras cannot read the configuration: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """Return the first sentence of a message, which Keras may spread over lines."""
    return re.split(r"(?<=\.)\s", " ".join(str(error).split()))[0]


LAYERS: Registry[Layer] = Registry(
    "layer",
    {
        **{
            cls.type: cls
            for cls in (
                layers.Activation,
                layers.Attention,
                layers.BatchNormalization,
                layers.Clipping,
                layers.LinearNormalization,
                layers.Conv1d,
                layers.Conv1dTranspose,
                layers.Conv2d,
                layers.Conv2dTranspose,
                layers.Dense,
                layers.Dropout,
                layers.Embedding,
                layers.Flatten,
                layers.GroupNormalization,
                Gru,
                layers.InstanceNormalization,
                layers.LayerNormalization,
                layers.Linear,
                Lstm,
                layers.Pool1d,
                layers.Pool2d,
                layers.Pooling,
                layers.Reshape,
                Rnn,
                Block,
                Register,
                Retrieve,
            )
        },
        "keras": keras_layer,
        "self_attention": layers.Attention,
    },
)


def read(spec: Any, label: str) -> Layer:
    """Read one layer's specification; SpecError: it is unknown or not legal; begins with `label`."""
    k = keras()
    try:
        if isinstance(spec, Layer):
            return spec
        if isinstance(spec, k.layers.Layer):
            return keras_layer(spec)
        if isinstance(spec, int | float) and not isinstance(spec, bool):
            raise SpecError(
                f"A layer must be a name, a dict with 'type', a JSON file or a class. Received: {spec!r}. A "
                "width stands for a layer in a "
                f"list of widths alone; beside other layers write {{'type': 'dense', 'size': {spec!r}}}."
            )
        refuse_elsewhere(spec)
        registered = _registered(spec.get("type") if isinstance(spec, Mapping) else spec)
        if registered is not None:
            spec = {**spec, "type": registered} if isinstance(spec, Mapping) else registered
        cls, arguments, name = LAYERS.parse(spec)
        if isinstance(cls, type) and issubclass(cls, k.layers.Layer):
            return keras_layer(cls, **arguments)
        if name not in LAYERS:
            raise SpecError(
                f"{name} is no layer. Give a type's name or a registered Keras layer, not a function."
            )
        return build(cls, arguments, name)
    except SpecError as error:
        raise SpecError(f"{label}: {error}") from None


def _registered(path: Any) -> type | None:
    """Return the class at this import path if the program has registered it with Keras."""
    module, _, name = path.replace(":", ".").rpartition(".") if isinstance(path, str) else ("", "", "")
    cls = getattr(sys.modules.get(module), name, None) if module else None
    registered = isinstance(cls, type) and any(
        cls is each for each in keras().saving.get_custom_objects().values()
    )
    return cls if registered else None


def add(graph: Graph, layer: Layer, x: Any, label: str) -> Any:
    """Add a layer to a graph; a `retrieve` needs no input.

    Raises:
        SpecError: its input does not fit; names place and both shapes.
    """
    if not layer.raw:
        x = graph.encode(x)
    shape = () if x is None else tuple(x.shape[1:])
    if layer.ranks and len(shape) not in layer.ranks:
        needed = " or ".join(RANKS[rank] for rank in layer.ranks)
        remedy = " Put a flatten or pooling layer before it." if layer.ranks == (1,) else ""
        raise SpecError(
            f"{label} ({layer.type}) needs an input of shape {needed}. Received: shape {shape}.{remedy}"
        )
    try:
        return layer(graph, x)
    except SpecError as error:
        raise SpecError(f"{label} ({layer.type}): {error}") from None
    except Exception as error:  # a layer of the user's may raise anything
        raise SpecError(
            f"{label} ({layer.type}) does not take an input of shape {shape}: {_first_line(error)}"
        ) from error


def add_all(graph: Graph, stack: Sequence[Layer], label: str) -> Any:
    """Add a list of layers, the first on the input or a `retrieve`; SpecError: inputs cannot be joined."""
    x = None if isinstance(stack[0], Retrieve) else _whole_input(graph, label)
    for i, layer in enumerate(stack):
        x = add(graph, layer, x, f"{label}[{i}]")
    return x


def _whole_input(graph: Graph, label: str) -> Any:
    tensors = [graph.retrieve(name) for name in graph.inputs]
    if len(tensors) == 1:
        x = tensors[0]
        return graph.vector(x) if len(x.shape) == 1 and graph.num_values(x) is None else x
    if any(len(x.shape) > 2 for x in tensors):
        names = ", ".join(f"{name} {tuple(graph.retrieve(name).shape[1:])}" for name in graph.inputs)
        raise SpecError(
            f"{label}: the first layer must be a retrieve, as there are several inputs that are no vectors: "
            f"{names}."
        )
    return graph.concatenate([graph.vector(x) for x in tensors])
