"""Policies as files that run without operant: StableHLO, which JAX runs, ONNX, and TensorFlow's SavedModel.

An export comprises all of deterministic acting: normalisation of observations, networks, action masks,
recurrent state in and out, actions clipped to their bounds and in the environment's units. Next to the file
`agent.onnx` there is `agent.onnx.json`, which describes its inputs and outputs
(`operant.execution.export.interface`). An exported policy cannot go on learning: it is no agent. A SavedModel
is read by TensorFlow alone: its graph may do more than compute, such as write files.
"""

from __future__ import annotations

import importlib.util
from typing import Literal

from operant.errors import UsageError

Exported = Literal["stablehlo", "onnx", "saved-model"]
READ: dict[str, str] = {"stablehlo": ".stablehlo", "onnx": ".onnx"}
"""Formats that `load_policy` reads, and the suffixes of their files."""
FORMATS: dict[str, str] = {**READ, "saved-model": ".saved-model"}
"""All formats; a SavedModel is a folder."""
EXTRAS = {"saved-model": "tensorflow"}
"""Extras of the package that are not called like the format that needs them."""


def require(format: str, *modules: str) -> None:
    """Raise a UsageError that says how to install a module that a format needs, if it is missing."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"format={format!r} needs {' and '.join(missing)}. Install what belongs to it: pip install "
            f"'operant[{EXTRAS.get(format, format)}]'."
        )
