"""Networks from `.cfg` files: the grammar, and the Keras model that a file describes.

A file is a list of sections, one layer each, in order. `[dense-0]` is a layer of the kind `dense`; what
follows the hyphen only tells sections apart. Each layer reads the one before it, with two exceptions:

- after a layer with `output=1`, the next section starts again at the latest layer with `common=1`, or at the
  input if there is none. So heads may have any depth.
- a dense output without `units` takes its size from whoever builds the model.

An image may come with a vector, such as a critic's action: it joins once the image has become a vector, so
after `[flatten]`.

`docs/models.md` lists kinds and keys.
"""

from __future__ import annotations

import configparser
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from operant.errors import SpecError, shown, suggest, value_error, whole
from operant.nn.backend import keras, numpy_promotion
from operant.nn.cfg_kinds import CONSTANTS, INITIALIZERS, KINDS, ROLES, Values
from operant.nn.keras_optimizers import keras_optimizer
from operant.nn.layers import RANKS
from operant.spec import MODEL_FILES

TEXT = "The network's .cfg text"
RECURRENT = ("lstm", "gru", "rnn")


@dataclasses.dataclass(frozen=True)
class Section:
    """One layer of a file, its values read."""

    name: str
    kind: str
    values: Values
    common: bool
    output: bool

    @property
    def open(self) -> bool:
        """Whether its size comes from whoever builds the model."""
        return self.kind == "dense" and "units" not in self.values


@dataclasses.dataclass(frozen=True)
class Cfg:
    """The content of a `.cfg` file. It becomes a Keras model when inputs and sizes of outputs are known."""

    text: str
    sections: tuple[Section, ...] = dataclasses.field(compare=False)
    source: str = dataclasses.field(compare=False)
    """What messages call it."""

    @classmethod
    def read(cls, path: str | Path) -> Cfg:
        """Read a file; for one that comes with operant its name is enough, unless such a file exists here.

        Raises:
            SpecError: it cannot be read, or a section is not understood; names file, section and key.
        """
        if not isinstance(path, str | Path):
            example = "such as operant.agents[NAME]['model']['ann'][0] for vectors, ['cnn'][0] for images"
            raise value_error("cfg_file", f"the path of a file, {example}", path)
        place, close = Path(path), ""
        if place.parent == Path() and not place.exists():
            along = {file.name: file for file in MODEL_FILES.glob("*.cfg")}
            place, close = along.get(place.name, place), suggest(place.name, along)
        try:
            text = place.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise SpecError(f"The network file {shown(path)!r} cannot be read: {error}.{close}") from None
        return cls.parse(text, f"The network file {shown(path)!r}")

    @classmethod
    def parse(cls, text: str, source: str = TEXT) -> Cfg:
        """Read a file's content; see `read`."""
        parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#", ";"))
        try:
            parser.read_string(text)
        except configparser.DuplicateSectionError as error:
            raise SpecError(
                f"{source} has two sections [{error.section}] (line {error.lineno}). Give each a number of "
                "its own."
            ) from None
        except configparser.DuplicateOptionError as error:
            raise SpecError(
                f"{source}, section [{error.section}]: {error.option!r} is given twice (line "
                f"{error.lineno}). Keep one."
            ) from None
        except configparser.MissingSectionHeaderError as error:
            raise SpecError(
                f"{source} must begin with a section such as [dense-0]. Received: {error.line.strip()!r} "
                f"(line {error.lineno})."
            ) from None
        except configparser.ParsingError as error:
            line = error.errors[0][0]
            content = text.splitlines()[line - 1]
            raise SpecError(f"{source}, line {line}: a line is key=value. Received: {content!r}.") from None
        if not parser.sections():
            raise SpecError(f"{source} is empty. It must have at least one section, such as [dense-0].")
        shared = set(parser.defaults())
        known = {key for kind in KINDS.values() for key in kind.keys} | ROLES.keys()
        for key in sorted(shared - known):
            raise SpecError(
                f"{source}, section [DEFAULT]: no section takes the key {key!r}.{suggest(key, known)}"
            )
        sections = tuple(_section(name, parser[name], shared, source) for name in parser.sections())
        _check_outputs(sections, source)
        return cls(text, sections, source)

    @property
    def outputs(self) -> tuple[Section, ...]:
        """The sections marked as outputs."""
        return tuple(section for section in self.sections if section.output)

    @property
    def first(self) -> str:
        """Kind of the first section, which reads the input."""
        return self.sections[0].kind

    def units(self, sizes: Mapping[str, int]) -> list[int]:
        """Return the sizes of the outputs without `units`, for a model with outputs of these `sizes`.

        Raises:
            SpecError: the number of outputs differs, or the file's own `units` do.
        """
        wanted = ", ".join(f"{name} ({size})" for name, size in sizes.items())
        listed = ", ".join(f"[{section.name}]" for section in self.outputs)
        if len(sizes) != len(self.outputs):
            raise SpecError(
                f"{self.source} must have {len(sizes)} section(s) with output=1, in this order: {wanted}. "
                f"Received: {len(self.outputs)} ({listed})."
            )
        for section, (name, size) in zip(self.outputs, sizes.items(), strict=True):
            if section.values.get("units", size) != size:
                raise SpecError(
                    f"{self.source}, section [{section.name}]: units must be {size}, for {name}. "
                    f"Received: units={section.values['units']}. Leave units out, then it is filled in."
                )
        return [size for section, size in zip(self.outputs, sizes.values(), strict=True) if section.open]

    def model(
        self,
        input_shape: tuple[int, ...],
        output_units: Sequence[int],
        seed: int | None = None,
        vector_size: int | None = None,
    ) -> Any:
        """Return the Keras model.

        Raises:
            SpecError: the number of sizes differs, or a layer does not fit its input.
        """
        from operant.nn.keras_layers import WeightsModel

        sections = [section for section in self.outputs if section.open]
        if len(output_units) != len(sections):
            listed = ", ".join(f"[{section.name}]" for section in sections) or "none"
            fault = "few" if len(output_units) < len(sections) else "many"
            raise SpecError(
                f"{self.source}: too {fault} output units. It has {len(sections)} output(s) without units: "
                f"{listed}. Received: output_units={list(output_units)}."
            )
        sizes = dict(zip([section.name for section in sections], output_units, strict=True))
        names: dict[str, int] = {}
        with numpy_promotion():
            dtype = "int32" if self.first == "embedding" else "float32"
            k = keras()
            x = base = source = k.Input(input_shape, dtype=dtype, name="input_1")
            vector = None if vector_size is None else k.Input((vector_size,), name="input_2")
            joined = base_joined = vector is None
            outputs = []
            for i, section in enumerate(self.sections):
                before, x = x, self._added(section, x, sizes.get(section.name), _derived(seed, i), names)
                if vector is not None and len(before.shape) > len(x.shape) == 2:
                    x, joined = k.layers.Concatenate(name=f"joined_{i}", dtype="float32")([x, vector]), True
                base, base_joined = (x, joined) if section.common else (base, base_joined)
                if section.output and not joined:
                    raise SpecError(
                        f"{self.source}, section [{section.name}]: an output that does not read the vector "
                        f"of {vector_size} that "
                        "comes with the image. Put a [flatten] section before it: the vector joins there."
                    )
                if section.output:
                    outputs.append(x)
                    x, joined = base, base_joined
            sources = source if vector is None else [source, vector]
            return WeightsModel(sources, outputs if len(outputs) > 1 else outputs[0], name="model")

    def _added(
        self, section: Section, x: Any, units: int | None, seed: int | None, names: dict[str, int]
    ) -> Any:
        place = f"{self.source}, section [{section.name}]"
        kind, shape = KINDS[section.kind], tuple(x.shape[1:])
        if kind.ranks and len(shape) not in kind.ranks:
            needed = " or ".join(RANKS.get(rank, "one number") for rank in kind.ranks)
            remedy = " Put a [flatten] section before it." if kind.ranks == (1,) and len(shape) > 1 else ""
            if 3 in kind.ranks and len(shape) == 1:
                remedy = " A vector takes a file of dense layers, such as agents[NAME]['model']['ann'][0]."
            raise SpecError(f"{place}: needs an input of shape {needed}. Received: shape {shape}.{remedy}")
        layer = kind.make(section.values if units is None else {**section.values, "units": units}, seed)
        base = re.sub(r"_\d+$", "", layer.name)
        count = names[base] = names.get(base, -1) + 1
        layer.name = f"{base}_{count}" if count else base
        try:
            x = layer(x)
        except (ValueError, TypeError) as error:
            reason = str(error).strip().split("\n")[0]
            raise SpecError(f"{place}: does not take an input of shape {shape}: {reason}") from None
        if any(n is not None and n < 1 for n in x.shape[1:]):
            raise SpecError(
                f"{place}: nothing is left of an input of shape {shape}. Use a smaller size or stride."
            )
        return x

    def to_spec(self) -> dict[str, Any]:
        """Return the content, not the path: a saved agent must not depend on a file."""
        return {"type": "cfg", "text": self.text}


def _section(name: str, lines: Mapping[str, str], shared: set[str], source: str) -> Section:
    place = f"{source}, section [{name}]"
    kind = name.partition("-")[0].strip().lower().rstrip("0123456789_")
    if kind in RECURRENT:
        raise SpecError(
            f"{place}: a .cfg file describes feed-forward networks. Give a network with memory as a list of "
            f"layers: [..., {{'type': '{kind}', 'size': 64}}]."
        )
    if kind not in KINDS:
        raise SpecError(f"{place}: unknown kind of section {kind!r}.{suggest(kind, KINDS)}")
    readers = {**KINDS[kind].keys, **ROLES}
    values: dict[str, Any] = {}
    try:
        for key, text in lines.items():
            if key in readers:
                values[key] = readers[key](key, text)
            elif key not in shared:
                raise SpecError(f"unknown key {key!r}. Received: {key}={text}.{suggest(key, readers)}")
        for key in KINDS[kind].required:
            if key not in values:
                raise SpecError(f"{key} is missing. Add a line {key}=...")
        if "gain" in values and values.get("initializer", CONSTANTS[0]) in CONSTANTS:
            remedy = "Add initializer=orthogonal, say" if "initializer" not in values else "Leave it out"
            raise SpecError(f"gain={values['gain']:g} has nothing to scale. {remedy}.")
    except SpecError as error:
        raise SpecError(f"{place}: {error}") from None
    common, output = values.pop("common", False), values.pop("output", False)
    section = Section(name, kind, values, common, output)
    if section.open and not output:
        raise SpecError(
            f"{place}: units is missing. Only outputs may leave it out: add units=... or output=1."
        )
    return section


def _check_outputs(sections: Sequence[Section], source: str) -> None:
    last = sections[-1]
    if not any(section.output for section in sections):
        raise SpecError(f"{source} has no output. Mark its last section, [{last.name}], with output=1.")
    if not last.output:
        raise SpecError(
            f"{source}, section [{last.name}]: leads to no output. Mark it with output=1, or remove it."
        )


def _derived(seed: int | None, index: int) -> int | None:
    """Return a seed for the layer at an index, unrelated to those of others."""
    return None if seed is None else int(np.random.SeedSequence((seed, index)).generate_state(1)[0])


class ModelReader:
    """Makes a Keras model from a `.cfg` file.

    Args:
        cfg_file: path of the file; `operant.agents['a2c']['model']['cnn'][0]` is one.
        output_units: sizes of the outputs that have none in the file, in order.
        input_shape: shape of the input without the batch axis, or the length of a vector.
        optimizer: compiles the model with it: an optimizer of Keras, its name, or a dict with `type`.
        seed: makes the initial weights a pure function of it.
        vector_size: length of a vector that comes with an image, such as a critic's action: it joins after
            `[flatten]`.

    Raises:
        SpecError: file, sizes or shape are not understood; the message names section, key and remedy.
    """

    initializers = INITIALIZERS
    """Initialisers by name, to which a program adds its own: a class of Keras, a function that takes `seed`,
    `gain`, both or neither and returns one, or a function of a shape (and `dtype`)."""

    def __init__(
        self,
        cfg_file: str | Path,
        output_units: Sequence[int] | int,
        input_shape: Sequence[int] | int,
        optimizer: Any = None,
        seed: int | None = None,
        vector_size: int | None = None,
    ) -> None:
        self.cfg = Cfg.read(cfg_file)
        self.output_units = _sizes("output_units", output_units)
        self.input_shape = _sizes("input_shape", input_shape)
        self.optimizer = optimizer
        if seed is not None:
            seed = _sizes("seed", seed, low=0)[0]
        self.seed = seed
        self.vector_size = None if vector_size is None else _sizes("vector_size", vector_size)[0]

    def build_model(self) -> Any:
        """Return a new Keras model, compiled if an optimizer was given."""
        model = self.cfg.model(self.input_shape, self.output_units, self.seed, self.vector_size)
        if self.optimizer is not None:
            with numpy_promotion():
                model.compile(optimizer=keras_optimizer(self.optimizer))
        return model


def _sizes(name: str, value: Any, low: int = 1) -> tuple[int, ...]:
    several = isinstance(value, Sequence) and not isinstance(value, str)
    try:
        entries = list(value) if several else [value]
        return tuple(whole(name, n, low) for n in entries)
    except SpecError:
        numbers = "whole numbers" if several else "a whole number"
        raise value_error(name, f"{numbers} of at least {low}", value) from None
