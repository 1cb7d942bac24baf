"""The forms in which a network may be given: 'auto', lists of layers, Keras models, files."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from operant.errors import (
    NETWORK_KEYS,
    NETWORK_LIBRARIES,
    SpecError,
    as_whole,
    reading,
    shown,
    suggest,
    value_error,
    whole,
)
from operant.nn import layers
from operant.nn.backend import keras, refuse_modules
from operant.nn.cfg import Cfg
from operant.nn.graph import Graph, activation, reshaped
from operant.nn.layer_lists import LAYERS, Register, add, add_all, config, from_config, read
from operant.nn.recurrent import Lstm
from operant.spec import Registry, build, data_only, from_json, refuse_code

FORMS = (
    "Give 'auto', a list of widths ([64, 64]) or of layers, a dict with 'type' ('auto', 'layered', "
    "'preprocessed', 'keras' or 'cfg'), a Keras model, a function "
    "that returns one, or the path of a .json, .keras or .cfg file."
)
FILES = (".json", ".keras", ".cfg")
ONE_HOT_LIMIT = 64
"""Choices with more values than this enter an 'auto' network as learned vectors."""
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Filters, window and stride of the three convolutions of Mnih et al. 2015."""
NATURE_SIDE = 36
"""Side of the smallest image of which they leave something."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoNetwork:
    """A network chosen by the inputs.

    Vectors, numbers and choices (one-hot; more than 64 values as learned vectors) are joined and go through
    `depth` dense layers. Each image goes through convolutions, followed by a dense layer: those of Mnih et
    al. 2015 from 36 x 36 on (32 of 8 x 8 with stride 4, 64 of 4 x 4 with stride 2, 64 of 3 x 3), else 16 of 3
    x 3 (Young and Tian 2019). If there are images, vectors join after the convolutions. All weights are
    orthogonal with gain √2.
    """

    size: int | tuple[int, ...] | None = None
    """Width of dense layers; None: 64, or after convolutions 512 (128 for small images, or with `small`).
    Several: the widths of as many dense layers; with images, they follow the dense layers of the
    convolutions, which then have their usual width."""
    depth: int | None = None
    """Number of dense layers (None: 2), if there is no image and `size` does not list them."""
    activation: str | None = None
    """None: tanh; relu with images or `norm`."""
    rnn: bool | int = False
    """Whether an LSTM follows; a number is its horizon."""
    norm: str | None = None
    """'layer': layer normalisation (Ba et al. 2016) before every activation."""
    final_size: int | None = None
    """Width of one more dense layer, or `final_depth` of them, behind the others; None: theirs."""
    final_depth: int = 1
    """Number of such layers, if there are any: if `final_size` is given, or this is not 1."""
    small: bool = False
    """Whether images from 36 x 36 on go through fewer convolutions: 8 of 8 x 8 with stride 4, 16 of 4 x 4
    with stride 2, then a dense layer of 128 (`cnn_small` in OpenAI Baselines)."""

    def __post_init__(self) -> None:
        several = isinstance(self.size, list | tuple)
        if several and not self.size:
            raise value_error("size", "a width, or a list of at least one", self.size)
        if self.size is not None:
            object.__setattr__(self, "size", layers.pair("size", self.size))
        object.__setattr__(self, "depth", whole("depth", self.depth, low=0, optional=True))
        object.__setattr__(self, "rnn", as_whole(self.rnn))
        object.__setattr__(self, "final_size", whole("final_size", self.final_size, optional=True))
        object.__setattr__(self, "final_depth", whole("final_depth", self.final_depth, low=0))
        if several and self.depth is not None:
            raise value_error("depth", f"left out beside size={self.size}", self.depth)
        if self.activation is not None:
            activation(self.activation)
        if not isinstance(self.rnn, int) or self.rnn < 0:
            raise value_error("rnn", "True, False, or the horizon, a whole number of at least 1", self.rnn)
        if not isinstance(self.small, bool):
            raise value_error("small", "True or False", self.small)
        if self.norm not in (None, "layer"):
            raise value_error("norm", "None or 'layer'", self.norm)

    def __call__(self, graph: Graph) -> Any:
        """Add the network to a graph; return its features, `[B, features]`."""
        images: list[Any] = []
        vectors: list[Any] = []
        for name in graph.inputs:
            x = graph.retrieve(name)
            (images if is_image(x.shape[1:], graph.num_values(x)) else vectors).append(x)
        features = [self._vector(graph, x) for x in vectors]
        if images:
            x = graph.concatenate([*(self._image(graph, x) for x in images), *features])
            depth, size = int(len(images) + len(vectors) > 1), self._size or 512
        else:
            depth = 2 if self.depth is None else self.depth
            x, size = graph.concatenate(features), self._size or 64
        sizes = self.size if isinstance(self.size, tuple) else (size,) * depth
        if self.final_size is not None or self.final_depth != 1:
            sizes += (self.final_size or (sizes[-1] if sizes else size),) * self.final_depth
        for width in sizes:
            x = self._dense(graph, x, width, "relu" if images else "tanh")
        if self.rnn:
            horizon = None if self.rnn is True else int(self.rnn)
            x = Lstm(size=sizes[-1] if sizes else size, horizon=horizon)(graph, x)
        return x

    @property
    def _size(self) -> int | None:
        return self.size if isinstance(self.size, int) else None

    def _dense(self, graph: Graph, x: Any, size: int, usual: str) -> Any:
        usual = "relu" if self.norm else usual
        return self._activated(graph, x, layers.Dense(size=size, activation=self.activation or usual))

    def _activated(self, graph: Graph, x: Any, layer: layers.KernelLayer) -> Any:
        if self.norm is None:
            return layer(graph, x)
        x = dataclasses.replace(layer, activation="none")(graph, x)
        x = layers.LayerNormalization()(graph, x)
        return layers.Activation(nonlinearity=layer.activation or "none")(graph, x)

    def _vector(self, graph: Graph, x: Any) -> Any:
        count = graph.num_values(x)
        if count is not None and count > ONE_HOT_LIMIT:
            x = layers.Embedding(size=self._size or 64, activation="none")(graph, x)
        return graph.vector(x)

    def _image(self, graph: Graph, x: Any) -> Any:
        x = x if "float" in x.dtype else keras().ops.cast(x, "float32")
        if len(x.shape) == 3:
            x = reshaped(x, (*x.shape[1:], 1))
        large = min(x.shape[1:3]) >= NATURE_SIDE
        nature = large and not self.small
        stack = NATURE if nature else ((8, 8, 4), (16, 4, 2)) if large else ((16, 3, 1),)
        for size, window, stride in stack:
            relu = self.activation or "relu"
            convolution = layers.Conv2d(
                size=size, window=window, stride=stride, padding="valid", activation=relu
            )
            x = self._activated(graph, x, convolution)
        return self._dense(graph, graph.vector(x), self._size or (512 if nature else 128), "relu")

    def to_spec(self) -> Any:
        """Return type and arguments."""
        changed = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"type": "auto", **{k: v for k, v in changed.items() if v != getattr(AUTO, k)}}


AUTO = AutoNetwork()


def is_image(shape: Sequence[int], num_values: int | None) -> bool:
    """Return whether convolutions suit an input: one of height, width and channels, or a large grey image."""
    if num_values is not None and num_values > 2:
        return False
    if len(shape) == 2:
        return min(shape) >= NATURE_SIDE
    return len(shape) == 3 and min(shape[:2]) >= 3


@dataclasses.dataclass(frozen=True)
class LayerStack:
    """Layers one after another, or lists of such lists, joined by `register` and `retrieve`."""

    stacks: tuple[tuple[layers.Layer, ...], ...]
    nested: bool

    @classmethod
    def parse(cls, layers: Sequence[Any]) -> LayerStack:
        """Read a list of layers or of lists; SpecError: an entry is not understood; begins with its place."""
        if isinstance(layers, str | Mapping) or not isinstance(layers, Sequence) or not layers:
            raise value_error("network", "a list of layers with at least one entry", layers)
        nested = [isinstance(entry, list | tuple) for entry in layers]
        if any(nested) and not all(nested):
            place = nested.index(not nested[0])
            raise SpecError(
                f"network[{place}]: a network is a list of layers or a list of lists. Received: both. Wrap "
                "single layers in a list, too."
            )
        if not nested[0]:
            return cls((tuple(read(spec, f"network[{i}]") for i, spec in enumerate(layers)),), False)
        for i, stack in enumerate(layers):
            if not stack:
                raise SpecError(f"network[{i}]: a list of layers needs at least one entry. Received: [].")
        stacks = [
            tuple(read(spec, f"network[{i}][{j}]") for j, spec in enumerate(s)) for i, s in enumerate(layers)
        ]
        for i, stack in enumerate(stacks[:-1]):
            if not any(isinstance(layer, Register) for layer in stack):
                raise SpecError(
                    f"network[{i}]: nothing reads its result, since each list begins with the inputs. End it "
                    "with a register, and begin a later list with a retrieve; or make one list of both."
                )
        return cls(tuple(stacks), True)

    def __call__(self, graph: Graph) -> Any:
        """Add the layers; the last one's output is the features: a vector, or one for each place."""
        x: Any = None
        for i, stack in enumerate(self.stacks):
            x = add_all(graph, stack, f"network[{i}]" if self.nested else "network")
        return graph.vector(x) if len(x.shape) == 1 else graph.encode(x)

    def to_spec(self) -> Any:
        """Return the list."""
        stacks = [[layer.to_spec() for layer in stack] for stack in self.stacks]
        return stacks if self.nested else stacks[0]


@dataclasses.dataclass(frozen=True)
class InputPreprocessing:
    """A network preceded by layers that single components of the input go through."""

    network: AutoNetwork | LayerStack
    states: tuple[tuple[str, tuple[layers.Layer, ...]], ...]
    """Layers by component."""

    @classmethod
    def parse(cls, network: Any, states: Mapping[str, Any]) -> InputPreprocessing:
        """Read a network, and by component its layers; SpecError: one is not understood, or is no list."""
        inner = parse(network)
        if not isinstance(inner, AutoNetwork | LayerStack):
            raise SpecError(
                "Only 'auto' and lists of layers can be preprocessed. Received: a whole model. Put the "
                "layers into it."
            )
        result = [(name, _stack(spec, f"state_preprocessing[{name!r}]")) for name, spec in states.items()]
        return cls(inner, tuple(result))

    def __call__(self, graph: Graph) -> Any:
        """Add the layers and the network."""
        for name, stack in self.states:
            if name not in graph.inputs:
                raise SpecError(
                    f"state_preprocessing names {name!r}, which is no state.{suggest(name, graph.inputs)}"
                )
            x = graph.retrieve(name)
            for i, layer in enumerate(stack):
                x = add(graph, layer, x, f"state_preprocessing[{name!r}][{i}]")
            graph.replace(name, x)
        return self.network(graph)

    def to_spec(self) -> Any:
        """Return type and arguments."""
        states = {name: [layer.to_spec() for layer in stack] for name, stack in self.states}
        return {"type": "preprocessed", "network": self.network.to_spec(), "states": states}


def _stack(spec: Any, label: str) -> tuple[layers.Layer, ...]:
    if spec is None:
        return ()
    listed = spec if isinstance(spec, list | tuple) else [spec]
    return tuple(read(one, f"{label}[{i}]") for i, one in enumerate(listed))


@dataclasses.dataclass(frozen=True, eq=False)
class KerasModel:
    """A whole Keras model: its outputs are the heads' values, in order."""

    model: Any

    @classmethod
    def parse(cls, model: Any, **arguments: Any) -> KerasModel:
        """Read a model, its configuration, a function or class that returns one (given the arguments), or a
        .keras file.
        """
        k = keras()
        if arguments and (not callable(model) or isinstance(model, k.Model)):
            raise SpecError(
                "Arguments of a Keras model go to the function or class that makes it. Received: "
                f"{', '.join(arguments)}, and {model!r}."
            )
        if isinstance(model, Mapping):  # as in a checkpoint, whose weights come later
            return cls(from_config(model))
        if isinstance(model, str | Path) and str(model).endswith(".keras"):
            model = load(model)
        elif callable(model) and not isinstance(model, k.Model):
            _refuse_foreign(model)
            model = build(
                model, arguments, f"The network, a function or class that returns a model, {_name(model)!r}"
            )
            _refuse_foreign(model)
        if not isinstance(model, k.Model):
            raise SpecError(f"The network must be a Keras model, or return one. Received: {model!r}.")
        return cls(model)

    def to_spec(self) -> Any:
        """Return the model's configuration."""
        return {"type": "keras", "model": config(self.model)}


def _name(model: Any) -> str:
    return getattr(model, "__name__", type(model).__name__)


def _refuse_foreign(model: Any) -> None:
    """Refuse a network of another library, by its class's package: it looks like a maker of one."""
    classes = model.__mro__ if isinstance(model, type) else type(model).__mro__
    for cls in classes:
        if (library := NETWORK_LIBRARIES.get(cls.__module__.partition(".")[0])) is not None:
            raise SpecError(
                f"The network {_name(model)!r} is made with {library}, and cannot be used. {FORMS}"
            )


def load(path: str | Path) -> Any:
    """Load a .keras file, in safe mode.

    Raises:
        SpecError: it cannot be read, is damaged, holds code, or names a module.
    """
    refuse_code(path, "network file")
    from operant.nn import keras_layers  # noqa: F401 - registers the classes that it may name

    try:
        with zipfile.ZipFile(path) as archive:
            # What the model was compiled with is not read.
            refuse_modules(from_json(archive.read("config.json")) | {"compile_config": None})
        return keras().saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras, HDF5 and zlib have errors of their own
        raise SpecError(f"The network file {shown(path)!r} cannot be loaded: {error}") from None


Parsed: TypeAlias = AutoNetwork | LayerStack | InputPreprocessing | KerasModel | Cfg

NETWORKS: Registry[Any] = Registry(
    "network",
    {
        "auto": AutoNetwork,
        "layered": LayerStack.parse,
        "preprocessed": InputPreprocessing.parse,
        "custom": LayerStack.parse,
        "default": LayerStack.parse,
        "keras": KerasModel.parse,
        "cfg": Cfg.parse,
    },
)


@dataclasses.dataclass(frozen=True)
class SavedNetwork:
    """A network in a file, which may be somebody else's: whenever it is read, it is data only."""

    network: str | list[Any] | Mapping[str, Any]
    """What `to_spec` returned, or a name."""
    source: str
    """The file, for messages."""

    def parse(self) -> Parsed:
        """Read it; SpecError: it is no network, or names something to import or to open."""
        with data_only(self.source, "Give the network yourself, if you trust it."):
            return parse(self.network)


def boundary(network: Any) -> contextlib.AbstractContextManager[None]:
    """Return the context in which a network is built: if a file describes it, errors name the file."""
    if isinstance(network, SavedNetwork):
        return reading(network.source, SpecError)
    if isinstance(network, str | Path) and Path(network).suffix in FILES:
        return reading(f"The network file {str(network)!r}", SpecError)
    return contextlib.nullcontext()


def written(network: Any) -> Any:
    """Return the dict that `'auto'` or a list of widths stands for; other networks as they are."""
    if isinstance(network, SavedNetwork):
        form = written(network.network)
        return form if isinstance(form, Mapping) and form.get("type") == "auto" else network
    if isinstance(network, str) and network == "auto":
        return {"type": "auto"}
    if (
        isinstance(network, list | tuple)
        and network
        and all(isinstance(width, numbers.Real) and not isinstance(width, bool) for width in network)
    ):
        return {"type": "auto", "size": tuple(whole("size", width) for width in network)}
    return network


def completed(network: Any, **defaults: Any) -> Any:
    """Return the dict of an `'auto'` network, with what it leaves open; other networks as they are."""
    spec = written(network)
    return {**defaults, **spec} if isinstance(spec, Mapping) and spec.get("type") == "auto" else spec


def parse(network: Any) -> Parsed:
    """Read a network in any of its forms; SpecError: it has none of them, which the message lists."""
    if isinstance(network, Parsed):
        return network
    network = written(network)
    if isinstance(network, SavedNetwork):
        return network.parse()
    if isinstance(network, str | Path) and Path(network).suffix in FILES:
        return _from_file(Path(network))
    if isinstance(network, Sequence) and not isinstance(network, str):
        return LayerStack.parse(network)
    if isinstance(network, str) and network in LAYERS and network not in NETWORKS:
        raise SpecError(
            f"{network!r} is a layer, not a network. Give a list of layers: [{{'type': {network!r}, ...}}]."
        )
    if isinstance(network, Mapping) and "type" not in network and network.keys() & NETWORK_KEYS:
        raise SpecError(
            f"A network given as a dict needs a 'type'. Received the keys: {', '.join(map(str, network))}. "
            "Give a list of widths, model=[64, 64], of which policy and value get a network each with "
            "separate=True, or one each as actor_model and critic_model."
        )
    if isinstance(network, str | Mapping):
        target, arguments, label = NETWORKS.parse(network)
        result = build(target, arguments, f"The network {label!r}")
        return result if isinstance(result, Parsed) else KerasModel.parse(result)
    if callable(network):
        return KerasModel.parse(network)
    raise SpecError(f"The network {network!r} is not understood. {FORMS}")


def _from_file(path: Path) -> Parsed:
    refuse_code(path, "network file")
    if path.suffix == ".keras":
        return KerasModel.parse(path)
    if path.suffix == ".cfg":
        return Cfg.read(path)
    with boundary(path):
        return parse(from_json(path.read_text(encoding="utf-8")))
