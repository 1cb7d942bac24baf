"""Policies as files that run without operant: StableHLO, which JAX runs, and ONNX.

An export comprises all of deterministic acting: normalisation of observations, networks, action masks,
recurrent state in and out, actions clipped to their bounds and in the environment's units. Next to the file
`agent.onnx` there is `agent.onnx.json`, which describes its inputs and outputs
(`operant.execution.export.interface`). An exported policy cannot go on learning: it is no agent.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

from operant.errors import SAVED_MODEL, SpecError, UsageError

Exported = Literal["stablehlo", "onnx"]
FORMATS: dict[str, str] = {"stablehlo": ".stablehlo", "onnx": ".onnx"}
"""Formats, and the suffixes of their files."""


def refuse_saved_model(format: Any) -> None:
    """Say why there is no SavedModel, if that is asked for, by a SpecError."""
    if format in SAVED_MODEL:
        raise SpecError(
            "format='saved-model' is not supported: only TensorFlow can write a SavedModel, and operant does "
            "not depend on it. Use format='onnx', which runs without operant and without JAX, or "
            "format='stablehlo', which JAX runs."
        )


def require(format: str, *modules: str) -> None:
    """Raise a UsageError that says how to install a module that a format needs, if it is missing."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"format={format!r} needs {' and '.join(missing)}. Install what belongs to it: pip install "
            f"'operant[{format}]'."
        )
