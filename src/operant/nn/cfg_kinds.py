"""The kinds of sections of a `.cfg` file: their keys, and the Keras layer that each makes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from operant.errors import value_error, whole
from operant.nn.backend import keras
from operant.nn.graph import activation
from operant.nn.layers import FLOAT, choice

Values = Mapping[str, Any]
_VARIANCES = {
    "glorot_normal": (1.0, "fan_avg", "truncated_normal"),
    "glorot_uniform": (1.0, "fan_avg", "uniform"),
    "he_normal": (2.0, "fan_in", "truncated_normal"),
    "he_uniform": (2.0, "fan_in", "uniform"),
    "lecun_normal": (1.0, "fan_in", "truncated_normal"),
    "lecun_uniform": (1.0, "fan_in", "uniform"),
}
"""Initialisers that draw around 0: variance times fan, which fan, distribution (arguments of Keras's
`VarianceScaling`)."""
CONSTANTS = ("ones", "zeros")


def _varying(scale: float, mode: str, distribution: str, gain: float = 1.0, seed: int | None = None) -> Any:
    return keras().initializers.VarianceScaling(scale * gain**2, mode, distribution, seed=seed)


def _orthogonal(gain: float = 1.0, seed: int | None = None) -> Any:
    from operant.nn.keras_layers import Orthogonal

    return Orthogonal(gain=gain, seed=seed)


def _constant(name: str) -> Any:
    return keras().initializers.get(name)


INITIALIZERS: dict[str, Callable[..., Any]] = {
    **{name: functools.partial(_varying, *variance) for name, variance in _VARIANCES.items()},
    "orthogonal": _orthogonal,
    **{name: functools.partial(_constant, name) for name in CONSTANTS},
}
"""What makes the initialiser of a name, called with those of `gain` and `seed` that it takes; or a function
of a shape, which is one. `ModelReader.initializers`, to which programs add theirs."""


def _flag(name: str, text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in known:
        raise value_error(name, "1, 0, true, false, yes or no", text)
    return known[text.lower()]


def _count(name: str, text: str) -> int:
    return whole(name, int(text) if re.fullmatch(r"\d{1,9}", text) else text)


def _number(name: str, text: str) -> float:
    value = _float(text)
    if not 0.0 < value < math.inf:
        raise value_error(name, "a number above 0", text)
    return value


def _rate(name: str, text: str) -> float:
    value = _float(text)
    if not 0.0 <= value < 1.0:
        raise value_error(name, "a number of at least 0 and below 1", text)
    return value


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _activation(name: str, text: str) -> str:
    return activation(text)


def _one_of(known: Collection[str]) -> Callable[[str, str], str]:
    return lambda name, text: choice(name, text, tuple(known))


def _kernel(values: Values, seed: int | None) -> Any:
    make = INITIALIZERS[values.get("initializer", "glorot_uniform")]
    takes = inspect.signature(make).parameters
    if "shape" in takes:
        return make
    given = {"seed": seed, **({"gain": values["gain"]} if "gain" in values else {})}
    if "gain" in given and "gain" not in takes:
        raise value_error("gain", f"left out, as {values['initializer']!r} takes none", values["gain"])
    return make(**{name: value for name, value in given.items() if name in takes})


def _convolutional(values: Values, seed: int | None) -> Any:
    from operant.nn.keras_layers import Conv2D

    return Conv2D(
        values["filters"],
        values["size"],
        strides=values.get("stride", 1),
        padding=values.get("padding", "valid"),
        data_format="channels_last",
        activation=values.get("activation"),
        kernel_initializer=_kernel(values, seed),
        **FLOAT,
    )


def _dense(values: Values, seed: int | None) -> Any:
    return keras().layers.Dense(
        values["units"],
        activation=values.get("activation"),
        kernel_initializer=_kernel(values, seed),
        **FLOAT,
    )


def _pooling(values: Values, seed: int | None) -> Any:
    k = keras()
    largest = values.get("reduction", "max") == "max"
    if "size" not in values:
        cls = k.layers.GlobalMaxPooling2D if largest else k.layers.GlobalAveragePooling2D
        return cls(data_format="channels_last", **FLOAT)
    cls = k.layers.MaxPooling2D if largest else k.layers.AveragePooling2D
    return cls(
        values["size"],
        strides=values.get("stride"),
        padding=values.get("padding", "valid"),
        data_format="channels_last",
        **FLOAT,
    )


def _normalization(values: Values, seed: int | None) -> Any:
    k = keras().layers
    return (k.BatchNormalization if values.get("type") == "batch" else k.LayerNormalization)(**FLOAT)


@dataclasses.dataclass(frozen=True)
class SectionKind:
    """A kind of section."""

    make: Callable[[Values, int | None], Any]
    """Makes the Keras layer from a section's values and a seed."""
    keys: Mapping[str, Callable[[str, str], Any]]
    """Its keys other than `common` and `output`, and what reads each."""
    required: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    """Ranks of inputs that it takes, without the batch axis; empty: any."""


_DRAWN = {"initializer": _one_of(INITIALIZERS), "gain": _number}
_KERNEL = {"activation": _activation, **_DRAWN}
_WINDOW = {"size": _count, "stride": _count, "padding": _one_of(("valid", "same"))}
ROLES = {"common": _flag, "output": _flag}
KINDS: dict[str, SectionKind] = {
    "activation": SectionKind(
        lambda v, seed: keras().layers.Activation(v["activation"], **FLOAT),
        {"activation": _activation},
        required=("activation",),
    ),
    "convolutional": SectionKind(
        _convolutional, {"filters": _count, **_WINDOW, **_KERNEL}, required=("filters", "size"), ranks=(3,)
    ),
    "dense": SectionKind(_dense, {"units": _count, **_KERNEL}, ranks=(1,)),
    "dropout": SectionKind(
        lambda v, seed: keras().layers.Dropout(v["rate"], seed=seed, **FLOAT),
        {"rate": _rate},
        required=("rate",),
    ),
    "embedding": SectionKind(
        lambda v, seed: keras().layers.Embedding(
            v["values"], v["units"], embeddings_initializer=_kernel(v, seed), **FLOAT
        ),
        {"values": _count, "units": _count, **_DRAWN},
        required=("values", "units"),
        ranks=(0, 1),
    ),
    "flatten": SectionKind(lambda v, seed: keras().layers.Flatten(data_format="channels_last", **FLOAT), {}),
    "normalization": SectionKind(_normalization, {"type": _one_of(("layer", "batch"))}),
    "pooling": SectionKind(_pooling, {"reduction": _one_of(("max", "average")), **_WINDOW}, ranks=(3,)),
}
