"""The layers that a network specification may name: frozen dataclasses, whose fields are the arguments.

Calling one adds it to a `Graph`. Shapes in messages leave out the batch axis.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable
from numbers import Real
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from operant.errors import SpecError, suggest, value_error, whole
from operant.nn.backend import keras
from operant.nn.graph import Graph, activation, orthogonal, reshaped

RANKS = {1: "[features]", 2: "[length, channels]", 3: "[height, width, channels]"}
FLOAT = {"dtype": "float32"}
"""Passed to every layer, since the user's keras.json may say otherwise."""


def pair(name: str, value: Any) -> Any:
    """Return a whole number, or one for each axis, checked."""
    if isinstance(value, list | tuple):
        return tuple(whole(name, n) for n in value)
    return whole(name, value)


def choice(name: str, value: Any, known: tuple[str, ...]) -> str:
    """Return an argument that is one of the known strings."""
    if value not in known:
        raise SpecError(
            f"{name} must be one of {', '.join(map(repr, known))}. Received: {name}={value!r}."
            f"{suggest(value, known, listed=False)}"
        )
    return str(value)


def _number(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        raise value_error(name, "a number", value)
    return value


def _rate(name: str, value: Any) -> Any:
    if not 0.0 <= _number(name, value) < 1.0:
        raise value_error(name, "at least 0 and below 1", value)
    return value


def _nonlinearity(name: str, value: Any) -> Any:
    if value is not None:
        activation(_text(name, value))
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise value_error(name, "a string", value)
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise value_error(name, "True or False", value)
    return value


Pair = Annotated[int | tuple[int, ...], pair]
Rate = Annotated[float, _rate]
Nonlinearity = Annotated[str | None, _nonlinearity]
READERS: dict[Any, Callable[[str, Any], Any]] = {int: whole, float: _number, bool: _flag, str: _text}
"""What checks an argument of a plain type and returns it, counts as `int`; other types name their reader as
`Annotated`."""


def typed(name: str, value: Any, hint: Any) -> Any:
    """Check an argument by its type, and return it; types without a reader are left to their layers."""
    if typing.get_origin(hint) is Annotated:
        return hint.__metadata__[0](name, value)
    if typing.get_origin(hint) is Literal:
        return choice(name, value, typing.get_args(hint))
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not type(None)]
    optional = type(None) in typing.get_args(hint)
    if len(kinds) > 1 or kinds[0] not in READERS or (optional and value is None):
        return value
    return READERS[kinds[0]](name, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """What all layers have in common."""

    name: str | None = None
    """Names the layer's weights; without it, its type and a running number."""
    type: ClassVar[str]
    ranks: ClassVar[tuple[int, ...]] = ()
    """Ranks of inputs that it takes, without the batch axis; empty: any."""
    raw: ClassVar[bool] = False
    """Whether it takes choices as integers; other layers get them one-hot."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self), include_extras=True)
        for field in dataclasses.fields(self):
            value = typed(field.name, getattr(self, field.name), hints[field.name])
            object.__setattr__(self, field.name, value)
        self._check()

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the layer to the graph and return its output."""
        return self._add(graph, x)

    def _check(self) -> None:
        """Raise `SpecError` for arguments that do not fit; each by itself has been checked by its type."""

    def _add(self, graph: Graph, x: Any) -> Any:
        raise TypeError(f"{type(self).__name__} is abstract.")

    def to_spec(self) -> dict[str, Any]:
        """Return type and arguments as plain data; arguments at their default are left out."""
        changed = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.default is dataclasses.MISSING or getattr(self, f.name) != f.default
        }
        return {"type": self.type, **{k: list(v) if isinstance(v, tuple) else v for k, v in changed.items()}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelLayer(Layer):
    """A layer with a kernel: orthogonal, gain √2 unless linear; bias zero; then activation and dropout."""

    size: int
    """Number of outputs (channels, for convolutions)."""
    bias: bool = True
    activation: Nonlinearity = None
    dropout: Rate = 0.0
    """Share of outputs that gradient steps set to zero."""
    initialization_scale: float = 1.0
    """Factor on the initial kernel."""
    vars_trainable: bool = True

    def _make(self, name: str, **arguments: Any) -> Any:
        raise TypeError(f"{type(self).__name__} is abstract.")

    def _add(self, graph: Graph, x: Any) -> Any:
        name = graph.name(self.type, self.name)
        x = self._make(
            name,
            use_bias=self.bias,
            activation=activation(self.activation),
            kernel_initializer=orthogonal(self.activation, self.initialization_scale),
            trainable=self.vars_trainable,
            **FLOAT,
        )(x)
        return dropped(x, self.dropout, name)


def dropped(x: Any, rate: float, name: str) -> Any:
    """Add dropout after a layer."""
    return keras().layers.Dropout(rate, name=f"{name}.dropout", **FLOAT)(x) if rate else x


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense(KernelLayer):
    """Fully connected layer."""

    type = "dense"
    ranks: ClassVar[tuple[int, ...]] = (1,)
    activation: Nonlinearity = "tanh"

    def _make(self, name: str, **arguments: Any) -> Any:
        return keras().layers.Dense(self.size, name=name, **arguments)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear(Dense):
    """Dense layer without activation, at every position of a sequence or an image."""

    type = "linear"
    ranks = (1, 2, 3)
    activation: Nonlinearity = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convolution(KernelLayer):
    """What convolutions have in common."""

    activation: Nonlinearity = "relu"
    window: Pair = 3
    stride: Pair = 1
    padding: Literal["same", "valid"] = "same"
    dilation: Pair = 1
    layer: ClassVar[str]

    def _make(self, name: str, **arguments: Any) -> Any:
        from operant.nn.keras_layers import Conv2D

        make = Conv2D if self.layer == "Conv2D" else getattr(keras().layers, self.layer)
        return make(
            self.size,
            self.window,
            strides=self.stride,
            padding=self.padding,
            dilation_rate=self.dilation,
            data_format="channels_last",
            name=name,
            **arguments,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv1d(Convolution):
    """Convolution over a sequence."""

    type, ranks, layer = "conv1d", (2,), "Conv1D"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv2d(Convolution):
    """Convolution over an image."""

    type, ranks, layer = "conv2d", (3,), "Conv2D"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv1dTranspose(Convolution):
    """Transposed convolution over a sequence."""

    type, ranks, layer = "conv1d_transpose", (2,), "Conv1DTranspose"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv2dTranspose(Convolution):
    """Transposed convolution over an image."""

    type, ranks, layer = "conv2d_transpose", (3,), "Conv2DTranspose"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedding(Layer):
    """A learned vector for each value of a choice; adds an axis."""

    type = "embedding"
    raw = True
    size: int
    num_embeddings: int | None = None
    """Number of vectors; None: the choice's number of values (2 for bools)."""
    activation: Nonlinearity = "tanh"

    def _add(self, graph: Graph, x: Any) -> Any:
        k = keras()
        count = graph.num_values(x)
        if count is None and ("float" in x.dtype or self.num_embeddings is None):
            raise SpecError("embedding needs a component of type 'int' with num_values, or of type 'bool'.")
        if count is not None and self.num_embeddings is not None and self.num_embeddings < count:
            raise value_error(
                "num_embeddings", f"at least the {count} values of its input", self.num_embeddings
            )
        vectors = k.layers.Embedding(
            self.num_embeddings or count, self.size, name=graph.name(self.type, self.name), **FLOAT
        )
        return k.layers.Activation(activation(self.activation), **FLOAT)(vectors(k.ops.cast(x, "int32")))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flatten(Layer):
    """All axes into one."""

    type = "flatten"

    def _add(self, graph: Graph, x: Any) -> Any:
        return graph.vector(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reshape(Layer):
    """Another shape for as many entries."""

    type = "reshape"
    shape: Pair

    def _check(self) -> None:
        object.__setattr__(self, "shape", self.shape if isinstance(self.shape, tuple) else (self.shape,))

    def _add(self, graph: Graph, x: Any) -> Any:
        assert isinstance(self.shape, tuple)
        return reshaped(x, self.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooling(Layer):
    """All positions into one, channel by channel; `concat` flattens."""

    type = "pooling"
    reduction: Literal["concat", "max", "mean", "product", "sum"]

    def _add(self, graph: Graph, x: Any) -> Any:
        axes = tuple(range(1, len(x.shape) - 1))
        if self.reduction == "concat" or not axes:
            return graph.vector(x)
        reductions = {"max": "max", "mean": "mean", "product": "prod", "sum": "sum"}
        return getattr(keras().ops, reductions[self.reduction])(x, axis=axes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool(Layer):
    """What poolings over windows have in common."""

    reduction: Literal["average", "max"]
    window: Pair = 2
    stride: Pair = 2
    padding: Literal["same", "valid"] = "same"

    def _add(self, graph: Graph, x: Any) -> Any:
        name = f"{self.reduction.capitalize()}Pooling{self.ranks[0] - 1}D"
        arguments = {"padding": self.padding, "data_format": "channels_last", **FLOAT}
        return getattr(keras().layers, name)(self.window, strides=self.stride, **arguments)(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool1d(Pool):
    """Pooling over windows of a sequence."""

    type, ranks = "pool1d", (2,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool2d(Pool):
    """Pooling over windows of an image."""

    type, ranks = "pool2d", (3,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Activation(Layer):
    """A nonlinearity by itself."""

    type = "activation"
    nonlinearity: Nonlinearity

    def _add(self, graph: Graph, x: Any) -> Any:
        return keras().layers.Activation(activation(self.nonlinearity), **FLOAT)(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropout(Layer):
    """Sets a share of its input to zero in gradient steps, another in each (Srivastava et al. 2014)."""

    type = "dropout"
    rate: Rate

    def _add(self, graph: Graph, x: Any) -> Any:
        return keras().layers.Dropout(self.rate, name=graph.name(self.type, self.name), **FLOAT)(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clipping(Layer):
    """Values cut to a range."""

    type = "clipping"
    lower: float | None = None
    upper: float | None = None

    def _check(self) -> None:
        if self.lower is None and self.upper is None:
            raise SpecError("clipping needs lower, upper or both. Received: neither.")
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise value_error("lower", f"below upper {self.upper}", self.lower)

    def _add(self, graph: Graph, x: Any) -> Any:
        lower = -math.inf if self.lower is None else self.lower
        return keras().ops.clip(x, lower, math.inf if self.upper is None else self.upper)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearNormalization(Layer):
    """Values between bounds (default: the state's own) moved to -2..2; open bounds leave them alone."""

    type = "linear_normalization"
    min_value: float | None = None
    max_value: float | None = None

    def _check(self) -> None:
        if self.min_value is not None and self.max_value is not None and self.min_value >= self.max_value:
            raise value_error("min_value", f"below max_value {self.max_value}", self.min_value)

    def _add(self, graph: Graph, x: Any) -> Any:
        known = graph.bounds(x)
        if known is None and None in (self.min_value, self.max_value):
            raise SpecError("the bounds of its input are not known: give min_value and max_value.")
        shape = tuple(x.shape[1:])
        low, high = known if known is not None else (np.zeros(shape), np.zeros(shape))
        low = low if self.min_value is None else np.full(shape, self.min_value)
        high = high if self.max_value is None else np.full(shape, self.max_value)
        closed = np.isfinite(low) & np.isfinite(high) & (high > low)
        low, high = np.where(closed, low, 0.0), np.where(closed, high, 1.0)
        slope = np.where(closed, 4.0 / (high - low), 1.0)
        offset = np.where(closed, -2.0 - slope * low, 0.0)
        return keras().ops.add(keras().ops.multiply(x, slope.astype(np.float32)), offset.astype(np.float32))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerNormalization(Layer):
    """Standardises the last axis of each row (Ba et al. 2016)."""

    type = "layer_normalization"

    def _add(self, graph: Graph, x: Any) -> Any:
        return keras().layers.LayerNormalization(name=graph.name(self.type, self.name), **FLOAT)(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupNormalization(Layer):
    """Standardises groups of channels over the positions of each row (Wu and He 2018)."""

    type = "group_normalization"
    groups: int = 32
    """Number of groups; it must divide the number of channels."""

    def _add(self, graph: Graph, x: Any) -> Any:
        if x.shape[-1] % self.groups:
            raise SpecError(f"groups must divide the {x.shape[-1]} channels. Received: groups={self.groups}.")
        name = graph.name(self.type, self.name)
        return keras().layers.GroupNormalization(groups=self.groups, name=name, **FLOAT)(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceNormalization(Layer):
    """Standardises each channel over the positions of each row (Ulyanov et al. 2016)."""

    type = "instance_normalization"
    ranks: ClassVar[tuple[int, ...]] = (2, 3)

    def _add(self, graph: Graph, x: Any) -> Any:
        name = graph.name(self.type, self.name)
        return keras().layers.GroupNormalization(groups=-1, name=name, **FLOAT)(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention(Layer):
    """Self-attention of several heads among the positions of a sequence or an image (Vaswani et al. 2017)."""

    type = "attention"
    ranks: ClassVar[tuple[int, ...]] = (2, 3)
    size: int
    """Number of outputs at each position."""
    heads: int = 1
    """Number of heads; it must divide the size."""
    attention_size: int | None = None
    """Size in which positions are compared and mixed, of all heads together; None: `size`."""
    dropout: Rate = 0.0
    """Share of attention that gradient steps set to zero."""

    def _check(self) -> None:
        name, size = (
            "size" if self.attention_size is None else "attention_size",
            self.attention_size or self.size,
        )
        if size % self.heads:
            raise SpecError(f"heads must divide {name}. Received: heads={self.heads}, {name}={size}.")

    def _add(self, graph: Graph, x: Any) -> Any:
        k, shape = keras(), x.shape[1:-1]
        x = reshaped(x, (math.prod(shape), x.shape[-1]))
        name = graph.name(self.type, self.name)
        attend = k.layers.MultiHeadAttention(
            self.heads,
            (self.attention_size or self.size) // self.heads,
            dropout=self.dropout,
            output_shape=self.size,
            name=name,
            **FLOAT,
        )
        return reshaped(attend(x, x), (*shape, self.size))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchNormalization(Layer):
    """Standardises each channel over the batch in gradient steps, by running averages elsewhere (Ioffe and
    Szegedy 2015).
    """

    type = "batch_normalization"
    momentum: Rate = 0.99
    """Share of the running averages that a gradient step keeps."""

    def _add(self, graph: Graph, x: Any) -> Any:
        name = graph.name(self.type, self.name)
        return keras().layers.BatchNormalization(momentum=self.momentum, name=name, **FLOAT)(x)
