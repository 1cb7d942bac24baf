"""Exported policies as bytes of each format."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from operant.agents.base.learner import Learner, PolicyState
from operant.checkpoint import durable
from operant.errors import SpecError, as_folder
from operant.execution.export import FORMATS, require
from operant.execution.export.function import PolicyFunction
from operant.execution.export.interface import flat
from operant.spec.spaces import nested
from operant.types import Array

PLATFORMS = ("cpu", "cuda", "tpu")
ROWS = 64
"""Random observations on which a converted policy is compared with the agent's."""


def write(
    directory: str | Path, name: str, format: str, learner: Learner, acting: PolicyState, agent: str
) -> Path:
    """Write the policy of an agent (`name` without suffix), and the description of its inputs beside it.

    Raises:
        SpecError: a layer cannot be converted, or the directory is a file.
        UsageError: the agent always draws its actions, or what the format needs is not installed.
    """
    function = PolicyFunction(learner, acting)
    folder = as_folder("directory", directory)
    file = folder / f"{name}{FORMATS[format]}"
    parts = {file: _WRITERS[format](function)} if format in _WRITERS else saved_model(function, file)
    *_, data = parts.values()
    digest = hashlib.sha256(data).hexdigest()  # a damaged program can end the process that reads it
    description = {"format": format, "agent": agent, "sha256": digest, **function.interface.to_json()}
    described = file.with_name(f"{file.name}.json"), json.dumps(description, indent=2).encode() + b"\n"
    for path, part in (described, *parts.items()):
        path.parent.mkdir(parents=True, exist_ok=True)
        with durable.replaced(path) as temporary:
            temporary.write_bytes(part)
    return file


def stablehlo(function: PolicyFunction) -> bytes:
    """Return a function, from dict to dict, as `jax.export.deserialize` reads it."""
    with _without_locations():
        exported = export.export(jax.jit(function), platforms=PLATFORMS)(function.shapes)
        return bytes(exported.serialize())


@contextmanager
def _without_locations() -> Iterator[None]:
    """Keep the names of source files out of what is written: they say where operant is installed."""
    before = jax.config.jax_traceback_in_locations_limit  # type: ignore[attr-defined]
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)


def onnx(function: PolicyFunction) -> bytes:
    """Return a function as an ONNX model, tried out; SpecError: a layer cannot be, or acts differently."""
    require("onnx", "jax2onnx", "onnxruntime")
    import jax2onnx

    interface = function.interface
    inputs = [port.name for port in interface.inputs]
    outputs = [port.name for port in interface.outputs]

    def positional(*arrays: Array) -> list[Array]:
        result = function(dict(zip(inputs, arrays, strict=True)))
        return [result[name] for name in outputs]

    with _quiet():
        try:
            model: Any = jax2onnx.to_onnx(
                positional,
                list(function.shapes.values()),
                model_name="policy",
                input_names=inputs,
                output_names=outputs,
            )
        except Exception as error:  # the converter has no error of its own
            raise SpecError(
                f"The policy cannot be converted to ONNX: {str(error).strip().splitlines()[0]}. Use "
                "format='stablehlo', or layers that the converter (jax2onnx) knows."
            ) from error
    data: bytes = model.SerializeToString()
    _compare(function, data)
    return data


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("onnx_ir")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _compare(function: PolicyFunction, data: bytes) -> None:
    from onnxruntime import InferenceSession

    inputs = function.interface.sample(np.random.default_rng(0), ROWS)
    with jax.default_matmul_precision("float32"):  # as in ONNX; JAX's default on a GPU is less precise
        wanted = jax.jit(function)(inputs)
    session = InferenceSession(data, providers=["CPUExecutionProvider"])
    names = list(wanted)
    for name, received in zip(names, session.run(names, inputs), strict=True):
        x = np.asarray(wanted[name])
        if x.dtype.kind == "f":
            same = np.isclose(received, x, rtol=1e-3, atol=1e-4)
        else:
            same = received == x
        # Between two equally good choices, rounding may decide differently.
        if np.mean(same) < 0.95:
            raise SpecError(
                f"The policy as ONNX differs from the agent's in {name!r}: a layer is not converted "
                "faithfully. Use format='stablehlo'."
            )


def saved_model(function: PolicyFunction, folder: Path) -> dict[Path, bytes]:
    """Return a function as the files of a SavedModel in a folder, the program last.

    Its `act(states, internals, auxiliaries, deterministic=True)` takes and returns nested structures, and
    `initial_internals()` has no batch axis. The signature `serving_default` has the names of
    `operant.execution.export.interface`, those of inputs with `_` in place of other characters.
    """
    require("saved-model", "tensorflow")
    import tensorflow as tf
    from jax.experimental import jax2tf

    batches = [dict.fromkeys(function.shapes, "(batch, ...)")]
    run = jax2tf.convert(
        function, polymorphic_shapes=batches, with_gradient=False, native_serialization_platforms=PLATFORMS
    )
    inputs = {
        name: tf.TensorSpec((None, *x.shape[1:]), x.dtype.name, name=re.sub(r"\W", "_", name))
        for name, x in function.shapes.items()
    }
    initial = nested(function.interface.initial)

    def act(states: Any, internals: Any = None, auxiliaries: Any = None, deterministic: bool = True) -> Any:
        given = {"states": states, "internals": internals or {}, "auxiliaries": auxiliaries or {}}
        outputs = nested(run(flat(given)))
        return (outputs["actions"], outputs["next_internals"]) if initial else outputs["actions"]

    module = tf.Module()
    module.act = tf.function(act, autograph=False)
    module.initial_internals = tf.function(lambda: initial, input_signature=[], autograph=False)
    with _without_locations(), tempfile.TemporaryDirectory() as temporary:
        module.act.get_concrete_function(deterministic=True, **nested(inputs))
        serve = tf.function(run, autograph=False).get_concrete_function(inputs)
        tf.saved_model.save(module, temporary, signatures=serve)
        files = sorted(Path(temporary).rglob("*"), key=lambda path: path.name == "saved_model.pb")
        return {folder / path.relative_to(temporary): path.read_bytes() for path in files if path.is_file()}


_WRITERS = {"stablehlo": stablehlo, "onnx": onnx}
