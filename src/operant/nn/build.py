"""From a network specification, inputs and heads to a `Model`."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from operant.errors import SpecError, suggest
from operant.nn.backend import keras, numpy_promotion
from operant.nn.cfg import Cfg
from operant.nn.graph import Bounds, Carries, Graph, activation, reshaped, safe_name
from operant.nn.layer_lists import config, from_config, takes_integers
from operant.nn.model import Model, normalizer_name
from operant.nn.network import AutoNetwork, InputPreprocessing, KerasModel, LayerStack, boundary, parse
from operant.nn.weights import Weight, collect, undrawn
from operant.spec.runtime import free_memory
from operant.spec.spaces import Leaf


@dataclasses.dataclass(frozen=True)
class Head:
    """One output of a model: a dense layer on the network's features, shaped to `[*B, *shape]`."""

    shape: tuple[int, ...]
    scale: float = 1.0
    """Gain of the orthogonal initial kernel; 0.01 makes a policy start near uniform."""
    activation: str | None = None
    constant: float | None = None
    """Instead of a dense layer, learned numbers that do not depend on the input and start at this."""
    logits: bool = False
    """Whether these are logits of choices along the last axis: if a model outputs a softmax instead, its
    logarithm is taken."""
    linear: bool = True
    """Whether there is a dense layer; without it the network's features are the output."""


def build(
    network: Any,
    inputs: Mapping[str, Leaf],
    heads: Mapping[str, Head],
    *,
    towers: Sequence[Sequence[str]] = (),
    normalize: bool | Sequence[str] = False,
    reinitialize: bool = False,
    name: str = "model",
) -> Model:
    """Build a model.

    Frames (type float, dtype uint8) are divided by 255 (their `max_value`), choices become one-hot and bools
    0 and 1, unless the network reads integers itself.

    Args:
        network: 'auto'; a list of widths of dense layers; a list of layers (see
            `operant.nn.layer_lists.LAYERS`) or of lists of layers; a dict with `type` 'auto', 'layered',
            'preprocessed', 'keras' or 'cfg'; a Keras model or a function (class) that makes one, whose
            outputs are then the heads' values themselves, in the order of `heads`, as are those of a .cfg
            file; the path of a .json, .keras or .cfg file.
        inputs: the components that the model reads, in order; a critic's may include actions.
        heads: the outputs by name.
        towers: groups of heads. Each group gets a network of its own, of the same form; heads that no group
            names share one more. Empty: all heads share one network. Ignored for a whole Keras model, which
            has its own structure.
        normalize: whether to standardise float vectors by running moments (see `Model.observe`), or which of
            them.
        reinitialize: draw the trained weights of a given Keras model anew; otherwise they start as they are.
        name: name of the model, for summaries and files.

    Raises:
        SpecError: the network is not understood, or does not fit inputs and heads.
    """
    fed = dict(inputs)
    if not fed:
        raise SpecError("A model needs at least one input. Received: none.")
    groups, normalized = _groups(towers, heads), _normalized(normalize, fed)
    k = keras()
    carries, graphs, copied = Carries(), list[Graph](), list[tuple[Any, Any]]()
    with boundary(network), numpy_promotion(), undrawn() as scope:
        parsed = parse(network)
        if not isinstance(parsed, KerasModel):
            _warn_of_channels(fed)
        entries = {n: k.Input(leaf.shape, dtype=leaf.dtype, name=safe_name(n)) for n, leaf in fed.items()}
        scaled = not (isinstance(parsed, KerasModel) and _rescales(parsed.model))
        tensors = {n: _prepared(entries[n], n, leaf, normalized, scaled) for n, leaf in fed.items()}
        if isinstance(parsed, Cfg):
            model, called = _from_cfg(parsed, tensors, fed, heads)
            outputs = _headed(model, called, heads, entries)
        elif isinstance(parsed, KerasModel):
            model = parsed.model
            if reinitialize:
                parsed = KerasModel(from_config(config(model)))
            outputs = _headed(parsed.model, _called(parsed.model, tensors, entries, fed), heads, entries)
            if reinitialize:
                copied = _untrained(model, parsed.model, scope)
        else:
            outputs = _assembled(parsed, tensors, fed, heads, groups, normalized, carries, graphs)
        sources = {safe_name(n): x for n, x in entries.items()} | carries.inputs
        built = k.Model(sources, {safe_name(n): outputs[n] for n in heads} | carries.outputs, name=name)
        for source, copy in (pair for graph in graphs for pair in graph.copied):
            copied += (
                _untrained(source, copy, scope)
                if reinitialize
                else zip(source.weights, copy.weights, strict=True)
            )
        weights = collect(built, scope, copied)
        _expect_room(weights)
    return Model(
        built,
        weights,
        inputs=fed,
        heads=heads,
        carries=carries,
        normalized=normalized,
        registered=_registered(graphs),
        to_spec=parsed.to_spec,
    )


def _expect_room(weights: Sequence[Weight]) -> None:
    """Refuse a network whose weights alone do not fit into the device's memory, before they are drawn."""
    sizes = {w: math.prod(w.shape) * jnp.dtype(w.dtype).itemsize for w in weights}
    size, free = sum(sizes.values()), free_memory(jax.local_devices()[0])
    if free is not None and size > free:
        largest = max(sizes, key=lambda w: sizes[w])
        raise SpecError(
            f"The network takes {size:,} bytes, and {free:,} are free. Most are for {largest.name!r} of "
            f"shape {list(largest.shape)}. Use smaller layers."
        )


def _warn_of_channels(fed: Mapping[str, Leaf]) -> None:
    """Warn of images whose axes networks would confuse: declared so, they cannot be transposed here."""
    for name, leaf in fed.items():
        if leaf.channels_first:
            height, width, channels = leaf.shape
            warnings.warn(
                f"The image {name!r} of shape {leaf.shape} is read as {height} x {width} pixels of "
                f"{channels} channels: channels come "
                "last. Declare and return it with that axis moved: numpy.moveaxis(x, 0, -1).",
                RuntimeWarning,
                stacklevel=2,
            )


def _untrained(model: Any, copy: Any, scope: Any) -> list[tuple[Any, Any]]:
    """Pair a model's untrained weights that have values with its copy's: they are not drawn anew.

    A weight holds its value itself, or the scope does if it was made there, as when a file is read.
    """
    trained = {id(v) for v in model.trainable_weights}
    pairs = zip(model.weights, copy.weights, strict=True) if model.weights else ()
    return [
        (old, new)
        for old, new in pairs
        if id(old) not in trained and (old._initializer is None or scope.get_current_value(old) is not None)
    ]


def _registered(graphs: Sequence[Graph]) -> dict[str, Any]:
    """Return registered tensors by name; of several towers, which share names, with the tower's number."""
    return {
        name if len(graphs) == 1 else f"{name} ({i})": x
        for i, graph in enumerate(graphs)
        for name, x in graph.registered.items()
    }


def _groups(towers: Sequence[Sequence[str]], heads: Mapping[str, Head]) -> list[tuple[str, ...]]:
    if not heads:
        raise SpecError("A model needs at least one head.")
    named = [name for group in towers for name in group]
    for name in named:
        if name not in heads:
            raise SpecError(f"towers names {name!r}, which is no head.{suggest(name, heads)}")
        if named.count(name) > 1:
            raise SpecError(f"towers names the head {name!r} twice.")
    rest = tuple(name for name in heads if name not in named)
    return [tuple(group) for group in towers] + ([rest] if rest else [])


def _normalized(normalize: bool | Sequence[str], fed: Mapping[str, Leaf]) -> tuple[str, ...]:
    able = tuple(
        n for n, leaf in fed.items() if leaf.type == "float" and leaf.dtype != "uint8" and len(leaf.shape) < 2
    )
    if isinstance(normalize, bool):
        return able if normalize else ()
    for name in normalize:
        if name not in able:
            raise SpecError(
                f"normalize names {name!r}, which is no float vector among the inputs.{suggest(name, able)}"
            )
    return tuple(normalize)


def _prepared(entry: Any, name: str, leaf: Leaf, normalized: Sequence[str], scaled: bool) -> Any:
    """Return an input as networks read it: floats as float32, frames `scaled`, choices as int32."""
    k = keras()
    if leaf.type == "bool":
        return entry
    if leaf.num_values is not None:
        return entry if leaf.dtype == "int32" else k.ops.cast(entry, "int32")
    if leaf.dtype == "uint8" and leaf.type == "float" and scaled:
        top = float(leaf.high.max()) if math.isfinite(leaf.high.max()) else 255.0
        return k.layers.Rescaling(1.0 / max(top, 1.0), dtype="float32")(entry)
    if name not in normalized:
        return entry if leaf.dtype == "float32" else k.ops.cast(entry, "float32")
    from operant.nn.keras_layers import Normalizer

    return Normalizer(name=normalizer_name(name), dtype="float32")(entry)


def _bounds(leaf: Leaf) -> Bounds:
    """Return the bounds of a component as networks read it after `_prepared`."""
    if leaf.dtype == "uint8":
        return np.zeros(leaf.shape), np.ones(leaf.shape)
    return np.broadcast_to(leaf.low, leaf.shape), np.broadcast_to(leaf.high, leaf.shape)


def _assembled(
    network: AutoNetwork | LayerStack | InputPreprocessing,
    tensors: Mapping[str, Any],
    fed: Mapping[str, Leaf],
    heads: Mapping[str, Head],
    groups: Sequence[Sequence[str]],
    normalized: Sequence[str],
    carries: Carries,
    graphs: list[Graph],
) -> dict[str, Any]:
    """Add one network for each group of heads, and the heads; note the graphs."""
    choices = {n: 2 if leaf.type == "bool" else leaf.num_values for n, leaf in fed.items()}
    counted = {n: count for n, count in choices.items() if count is not None}
    bounds = {n: _bounds(leaf) for n, leaf in fed.items() if leaf.type == "float" and n not in normalized}
    outputs = {}
    for i, group in enumerate(groups):
        graph = Graph("body" if len(groups) == 1 else f"tower{i}", tensors, counted, carries, bounds)
        graphs.append(graph)
        features = network(graph)
        shape = tuple(features.shape[1:])
        if len(shape) > 1 and not any(fits(shape, heads[name].shape) for name in group):
            listed = ", ".join(str(heads[name].shape) for name in group)
            raise SpecError(
                f"The network must end in one vector, or in one for each place of an action. Received: shape "
                f"{shape}, for outputs of shape {listed}. End it with a flatten, pooling or dense layer."
            )
        outputs.update({name: _head(name, heads[name], features) for name in group})
    return outputs


def _head(name: str, head: Head, features: Any) -> Any:
    from operant.nn.keras_layers import LearnedConstant, Orthogonal

    k = keras()
    label, shape = f"head.{safe_name(name)}", tuple(features.shape[1:])
    places = shape[:-1] if fits(shape, head.shape) else ()
    if len(shape) > 1 and not places:
        features = reshaped(features, (math.prod(shape),))
    if head.constant is not None:
        return LearnedConstant(head.shape, head.constant, name=label, dtype="float32")(features)
    size = math.prod(head.shape[len(places) :])
    if not head.linear and features.shape[-1] != size:
        raise SpecError(
            f"A categorical distribution without a linear layer (skip_linear) needs a network that ends in "
            f"{size} numbers for {name!r}. Received: shape {shape}. End it with a linear layer of that size, "
            "or leave skip_linear out."
        )
    dense = k.layers.Dense(
        size,
        activation=activation(head.activation),
        kernel_initializer=Orthogonal(gain=head.scale),
        name=label,
        dtype="float32",
    )
    return reshaped(dense(features) if head.linear else features, head.shape)


def fits(features: tuple[int, ...], head: tuple[int, ...]) -> bool:
    """Return whether features have a vector for each of the first places of a head's output."""
    return len(features) > 1 and features[:-1] == head[: len(features) - 1]


def _rescales(layer: Any) -> bool:
    """Return whether a layer, or one within it, rescales its input."""
    within = (_rescales(inner) for inner in getattr(layer, "layers", ()))
    return isinstance(layer, keras().layers.Rescaling) or any(within)


def _from_cfg(
    cfg: Cfg, tensors: Mapping[str, Any], fed: Mapping[str, Leaf], heads: Mapping[str, Head]
) -> tuple[Any, Any]:
    """Make and call a .cfg file's model for these inputs: an image, vectors joined into one, or both."""
    graph = _graph(tensors, fed)
    images = [n for n, leaf in fed.items() if len(leaf.shape) > 1]
    if len(images) > 1:
        listed = ", ".join(f"{n} {leaf.shape}" for n, leaf in fed.items())
        raise SpecError(
            f"{cfg.source} describes a network that reads at most one image, and any number of vectors. "
            f"Received: {listed}. Give a list of layers, whose retrieve reads inputs by name."
        )
    vectors = [x for n, x in tensors.items() if n not in images]
    vector = None
    if cfg.first == "embedding":
        (name, leaf), *more = fed.items()
        values, count = cfg.sections[0].values["values"], 2 if leaf.type == "bool" else leaf.num_values
        if more or count is None or count > values:
            choices = "" if count is None else f" of {count} choices"
            raise SpecError(
                f"{cfg.source} begins with an embedding of {values} values, so it reads one state of at most "
                f"as many choices. Received: {', '.join(fed)}{choices}."
            )
        x = tensors[name]
    elif images:
        x = graph.encode(tensors[images[0]])
        if cfg.first == "convolutional" and len(x.shape) == 3:  # a grey image
            x = reshaped(x, (*x.shape[1:], 1))
        vector = graph.concatenate([graph.vector(x) for x in vectors]) if vectors else None
    else:
        x = graph.concatenate([graph.vector(x) for x in vectors])
    dense = {n: math.prod(head.shape) for n, head in heads.items() if head.constant is None}
    size = None if vector is None else vector.shape[-1]
    model = cfg.model(tuple(x.shape[1:]), cfg.units(dense), vector_size=size)
    return model, model(x if vector is None else [x, vector])


def _graph(tensors: Mapping[str, Any], fed: Mapping[str, Leaf]) -> Graph:
    """Return a graph that encodes choices, for a network that is not built as a `Graph`."""
    return Graph(
        "body", tensors, {n: leaf.num_values for n, leaf in fed.items() if leaf.num_values}, Carries()
    )


def _is_softmax(model: Any, index: int) -> bool:
    """Return whether an output of a whole model is a softmax; False if the model does not show its layers."""
    k = keras()
    outputs = k.tree.flatten(getattr(model, "outputs", None) or [])
    if not outputs:
        return False
    layer, _, place = outputs[index]._keras_history
    if isinstance(layer, k.Model):
        return _is_softmax(layer, place)
    activation = getattr(getattr(layer, "activation", None), "__name__", "")
    # From `keras.ops` and `keras.activations` it is an operation of that name.
    return isinstance(layer, k.layers.Softmax) or "softmax" in (activation, type(layer).__name__.lower())


def _headed(model: Any, called: Any, heads: Mapping[str, Head], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Check a whole model's outputs against the heads, in order, and add those that are constants."""
    k = keras()
    if isinstance(called, Mapping) and list(called) != sorted(called):
        raise SpecError(
            f"The Keras model {model.name!r} gives its outputs by name ({', '.join(called)}), and Keras "
            f"sorts the names. Give them as a list, in this order: {', '.join(heads)}."
        )
    tensors = [x if x.dtype == "float32" else k.ops.cast(x, "float32") for x in k.tree.flatten(called)]
    dense = {n: head for n, head in heads.items() if head.constant is None}
    sizes = [math.prod(head.shape) for head in dense.values()]
    shapes = [tuple(x.shape[1:]) for x in tensors]
    fits = all(None not in shape for shape in shapes) and sizes == [math.prod(shape) for shape in shapes]
    if not fits:
        wanted = ", ".join(f"{n} {head.shape}" for n, head in dense.items())
        raise SpecError(
            f"The Keras model {model.name!r} must have one output per head, in this order: {wanted}. "
            f"Received: {len(shapes)} output(s) of shape {', '.join(map(str, shapes))}."
        )
    for i, head in enumerate(dense.values()):
        if head.logits and _is_softmax(model, i):
            tensors[i] = k.ops.log(k.ops.maximum(tensors[i], 1e-30))  # a probability may underflow to 0
    outputs = {n: reshaped(x, head.shape) for (n, head), x in zip(dense.items(), tensors, strict=True)}
    first = outputs[next(iter(outputs))] if outputs else next(iter(entries.values()))
    return outputs | {n: _head(n, head, first) for n, head in heads.items() if head.constant is not None}


def _called(
    model: Any, tensors: Mapping[str, Any], entries: Mapping[str, Any], fed: Mapping[str, Leaf]
) -> Any:
    """Call a Keras model on the inputs, by name if its names are theirs, else in order.

    Unprepared (`entries`) if it reads integers.
    """
    k = keras()
    graph = _graph(tensors, fed)
    declared = list(getattr(model, "inputs", None) or [])
    if not declared:
        arguments = [x if takes_integers(model) else graph.encode(x) for x in tensors.values()]
        return model(arguments[0] if len(arguments) == 1 else dict(zip(tensors, arguments, strict=True)))
    by_name = {x.name: x for x in declared}
    if set(by_name) == {safe_name(n) for n in tensors}:
        declared = [by_name[safe_name(n)] for n in tensors]
    wanted = ", ".join(f"{n} {leaf.shape}" for n, leaf in fed.items())
    received = ", ".join(f"{x.name} {tuple(x.shape[1:])} {x.dtype}" for x in declared)
    message = (
        f"The Keras model {model.name!r} must take the inputs, in this order: {wanted}. It takes: {received}."
    )
    if len(declared) == 1 < len(tensors) and all(len(leaf.shape) < 2 for leaf in fed.values()):
        # One vector in place of several: a critic may be written for states and actions joined.
        tensors = {"all": graph.concatenate([graph.vector(x) for x in tensors.values()])}
    if len(declared) != len(tensors):
        raise SpecError(message)
    arguments = []
    for (name, x), place in zip(tensors.items(), declared, strict=True):
        # Integer inputs get frames as bytes and choices as numbers: Keras would cut off fractions.
        x = graph.encode(x) if "float" in place.dtype else entries.get(name, x)
        if len(place.shape) == len(x.shape) + 1 and place.shape[-1] == 1:
            x = reshaped(x, (*x.shape[1:], 1))
        agree = len(x.shape) == len(place.shape) and all(
            b in (None, a) for a, b in zip(x.shape[1:], place.shape[1:], strict=True)
        )
        if not agree or ("float" in x.dtype and "float" not in place.dtype):
            raise SpecError(message)
        arguments.append(x)
    placed = {id(place): x for place, x in zip(declared, arguments, strict=True)}
    # A Sequential model has no `input` before it is called.
    structure = declared[0] if isinstance(model, k.Sequential) else model.input
    return model(k.tree.map_structure(lambda place: placed[id(place)], structure))
