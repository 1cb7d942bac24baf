"""Exported policies as bytes of each format."""

from __future__ import annotations

import hashlib
import json
import logging
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
    data = _WRITERS[format](function)
    folder = as_folder("directory", directory)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}{FORMATS[format]}"
    digest = hashlib.sha256(data).hexdigest()  # a damaged program can end the process that reads it
    description = {"format": format, "agent": agent, "sha256": digest, **function.interface.to_json()}
    _replace(file.with_name(f"{file.name}.json"), json.dumps(description, indent=2).encode() + b"\n")
    _replace(file, data)
    return file


def _replace(final: Path, data: bytes) -> None:
    with durable.replaced(final) as temporary:
        temporary.write_bytes(data)


def stablehlo(function: PolicyFunction) -> bytes:
    """Return a function, from dict to dict, as `jax.export.deserialize` reads it."""
    require("stablehlo", "flatbuffers")
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


_WRITERS = {"stablehlo": stablehlo, "onnx": onnx}
