"""The layers that a network specification may name, with their arguments.

Each layer is a frozen dataclass: its fields are the arguments, and calling it adds it to a `Graph`. Shapes in
messages leave out the batch axis.
"""

from __future__ import annotations

import dataclasses
import math
from numbers import Real
from typing import Any, ClassVar, Literal

import numpy as np

from operant.errors import SpecError, suggest, value_error, whole
from operant.nn.backend import keras
from operant.nn.graph import Graph, activation, orthogonal, reshaped

Pair = int | tuple[int, ...]
RANKS = {1: "[features]", 2: "[length, channels]", 3: "[height, width, channels]"}
FLOAT = {"dtype": "float32"}
"""Passed to every layer, since the user's keras.json may say otherwise."""


def typed(name: str, value: Any, annotation: str) -> Any:
    """Check an argument that is a number, a flag or a string, and return it, counts as `int`.

    Others are left to their layers.
    """
    kind = annotation.removesuffix(" | None")
    if value is None and kind != annotation:
        return None
    if kind == "int":
        return whole(name, value)
    if kind == "Pair":
        return pair(name, value)
    if kind == "float" and (isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value)):
        raise value_error(name, "a number", value)
    if kind == "bool" and not isinstance(value, bool):
        raise value_error(name, "True or False", value)
    if kind == "str" and not isinstance(value, str):
        raise value_error(name, "a string", value)
    return value


def pair(name: str, value: Any) -> Any:
    """Return a whole number, or one for each axis, checked."""
    if isinstance(value, list | tuple):
        return tuple(whole(name, n) for n in value)
    return whole(name, value)


def choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Check that an argument is one of the known strings."""
    if value not in known:
        raise SpecError(
            f"{name} must be one of {', '.join(map(repr, known))}. Received: {name}={value!r}."
            f"{suggest(value, known, listed=False)}"
        )


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
        """Check the arguments."""
        for field in dataclasses.fields(self):
            value = typed(field.name, getattr(self, field.name), str(field.type))
            object.__setattr__(self, field.name, value)
        self.check()

    def check(self) -> None:
        """Raise `SpecError` for a wrong argument.

        The types of numbers, flags and strings have been checked already.
        """

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the layer to the graph and return its output."""
        raise TypeError(f"{type(self).__name__} is abstract.")

    def to_spec(self) -> dict[str, Any]:
        """Return type and arguments as plain data; arguments at their default are left out."""
        changed = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.default is dataclasses.MISSING or getattr(self, f.name) != f.default
        }
        return {
            "type": self.type,
            **{k: list(v) if isinstance(v, tuple) else v for k, v in changed.items()},
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelLayer(Layer):
    """A layer with a kernel: orthogonal, gain √2 unless linear; bias zero; then activation and dropout."""

    size: int
    """Number of outputs (channels, for convolutions)."""
    bias: bool = True
    activation: str | None = None
    dropout: float = 0.0
    """Share of outputs that gradient steps set to zero."""
    initialization_scale: float = 1.0
    """Factor on the initial kernel."""
    vars_trainable: bool = True

    def check(self) -> None:
        """Check the arguments."""
        activation(self.activation)
        if not 0.0 <= self.dropout < 1.0:
            raise value_error("dropout", "at least 0 and below 1", self.dropout)

    def make(self, name: str, **arguments: Any) -> Any:
        """Return the Keras layer."""
        raise TypeError(f"{type(self).__name__} is abstract.")

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add layer and dropout."""
        name = graph.name(self.type, self.name)
        x = self.make(
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
    activation: str | None = "tanh"

    def make(self, name: str, **arguments: Any) -> Any:
        """Return the Keras layer."""
        return keras().layers.Dense(self.size, name=name, **arguments)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear(Dense):
    """Dense layer without activation, at every position of a sequence or an image."""

    type = "linear"
    ranks = (1, 2, 3)
    activation: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convolution(KernelLayer):
    """What convolutions have in common."""

    activation: str | None = "relu"
    window: Pair = 3
    stride: Pair = 1
    padding: Literal["same", "valid"] = "same"
    dilation: Pair = 1
    layer: ClassVar[str]

    def check(self) -> None:
        """Check the arguments."""
        super().check()
        choice("padding", self.padding, ("same", "valid"))

    def make(self, name: str, **arguments: Any) -> Any:
        """Return the Keras layer."""
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
    activation: str | None = "tanh"

    def check(self) -> None:
        """Check the arguments."""
        activation(self.activation)

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the layer."""
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

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the layer."""
        return graph.vector(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reshape(Layer):
    """Another shape for as many entries."""

    type = "reshape"
    shape: Pair

    def check(self) -> None:
        """Turn a single number into a tuple."""
        object.__setattr__(self, "shape", self.shape if isinstance(self.shape, tuple) else (self.shape,))

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the layer."""
        assert isinstance(self.shape, tuple)
        return reshaped(x, self.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooling(Layer):
    """All positions into one, channel by channel; `concat` flattens."""

    type = "pooling"
    reduction: Literal["concat", "max", "mean", "product", "sum"]

    def check(self) -> None:
        """Check the arguments."""
        choice("reduction", self.reduction, ("concat", "max", "mean", "product", "sum"))

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the reduction."""
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

    def check(self) -> None:
        """Check the arguments."""
        choice("reduction", self.reduction, ("average", "max"))
        choice("padding", self.padding, ("same", "valid"))

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the layer."""
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
    nonlinearity: str

    def check(self) -> None:
        """Check the arguments."""
        activation(self.nonlinearity)

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the layer."""
        return keras().layers.Activation(activation(self.nonlinearity), **FLOAT)(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropout(Layer):
    """Sets a share of its input to zero in gradient steps, another with every step (Srivastava et al. 2014).

    Does nothing else.
    """

    type = "dropout"
    rate: float

    def check(self) -> None:
        """Check the arguments."""
        if not 0.0 <= self.rate < 1.0:
            raise value_error("rate", "at least 0 and below 1", self.rate)

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the layer."""
        return keras().layers.Dropout(self.rate, name=graph.name(self.type, self.name), **FLOAT)(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clipping(Layer):
    """Values cut to a range."""

    type = "clipping"
    lower: float | None = None
    upper: float | None = None

    def check(self) -> None:
        """Check the range."""
        if self.lower is None and self.upper is None:
            raise SpecError("clipping needs lower, upper or both. Received: neither.")
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise value_error("lower", f"below upper {self.upper}", self.lower)

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the operation."""
        lower = -math.inf if self.lower is None else self.lower
        return keras().ops.clip(x, lower, math.inf if self.upper is None else self.upper)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearNormalization(Layer):
    """Values between bounds moved to -2..2.

    Without arguments the bounds of the state that it reads; open ones leave values as they are.
    """

    type = "linear_normalization"
    min_value: float | None = None
    max_value: float | None = None

    def check(self) -> None:
        """Check the bounds."""
        if self.min_value is not None and self.max_value is not None and self.min_value >= self.max_value:
            raise value_error("min_value", f"below max_value {self.max_value}", self.min_value)

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the operation."""
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

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the layer."""
        return keras().layers.LayerNormalization(name=graph.name(self.type, self.name), **FLOAT)(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupNormalization(Layer):
    """Standardises groups of channels over the positions of each row (Wu and He 2018)."""

    type = "group_normalization"
    groups: int = 32
    """Number of groups; it must divide the number of channels."""

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the layer."""
        if x.shape[-1] % self.groups:
            raise SpecError(f"groups must divide the {x.shape[-1]} channels. Received: groups={self.groups}.")
        name = graph.name(self.type, self.name)
        return keras().layers.GroupNormalization(groups=self.groups, name=name, **FLOAT)(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceNormalization(Layer):
    """Standardises each channel over the positions of each row (Ulyanov et al. 2016)."""

    type = "instance_normalization"
    ranks: ClassVar[tuple[int, ...]] = (2, 3)

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the layer."""
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
    dropout: float = 0.0
    """Share of attention that gradient steps set to zero."""

    def check(self) -> None:
        """Check the arguments."""
        if self.size % self.heads:
            raise SpecError(f"heads must divide size. Received: heads={self.heads}, size={self.size}.")
        if not 0.0 <= self.dropout < 1.0:
            raise value_error("dropout", "at least 0 and below 1", self.dropout)

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the layer; it takes an image's positions as a sequence."""
        k, shape = keras(), x.shape[1:-1]
        x = reshaped(x, (math.prod(shape), x.shape[-1]))
        name = graph.name(self.type, self.name)
        attend = k.layers.MultiHeadAttention(
            self.heads,
            self.size // self.heads,
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
    momentum: float = 0.99
    """Share of the running averages that a gradient step keeps."""

    def check(self) -> None:
        """Check the arguments."""
        if not 0.0 <= self.momentum < 1.0:
            raise value_error("momentum", "at least 0 and below 1", self.momentum)

    def __call__(self, graph: Graph, x: Any) -> Any:
        """Add the layer."""
        name = graph.name(self.type, self.name)
        return keras().layers.BatchNormalization(momentum=self.momentum, name=name, **FLOAT)(x)
