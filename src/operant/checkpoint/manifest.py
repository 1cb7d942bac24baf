"""The manifest of a checkpoint: what it must say, and the refusal of anything else."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from operant.checkpoint import arrays, durable
from operant.errors import CheckpointError
from operant.spec import from_json

FORMAT = "operant-checkpoint"
VERSION = 1
NAME = "manifest.json"
KEYS = {"threefry2x32": "key<fry>", "rbg": "key<rbg>", "unsafe_rbg": "key<urbg>"}
"""Kinds of typed keys, and the dtype of each."""
PYTHON = {"NoneType": type(None), "bool": bool, "int": int, "float": float, "str": str}
"""Types of the leaves that are not arrays."""

FILE = re.compile(r"arrays(-[0-9]+)?\.safetensors")
"""Names of the files that hold arrays."""

_LIMIT = 256 << 20  # bytes


def digest(manifest: dict[str, Any]) -> str:
    """Return the SHA-256 of everything else that a manifest says."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint, checked; CheckpointError: it names the file and the reason."""
    file = path / NAME
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a checkpoint: there is no such folder.")
    text = durable.read(file, _LIMIT).tobytes()
    try:
        manifest = from_json(text)
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON (truncated?): {error}.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{file} is not the manifest of an operant checkpoint.")
    version = manifest.get("version")
    if isinstance(version, int) and version > VERSION:
        versions = manifest.get("versions")
        writer = versions.get("operant") if isinstance(versions, dict) else "a later release"
        raise CheckpointError(
            f"{file} is of format version {version}; this release reads up to {VERSION}. "
            f"It was written by operant {writer}: install that or a later one."
        )
    if version != VERSION:
        raise CheckpointError(
            f"{file} is of format {version!r}, and only {VERSION} is read: it comes from an earlier, "
            "unreleased state of operant. Train again."
        )
    if manifest.get("sha256") != digest(manifest):
        raise CheckpointError(f"{file} is corrupted: its SHA-256 is not the one that was recorded.")
    try:
        _check(manifest)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{file} is malformed: {error}.") from None
    return manifest


def _check(manifest: dict[str, Any]) -> None:
    """Refuse what `save` does not write: the hash proves that a manifest is whole, not that it is honest."""
    if not isinstance(manifest["header"], dict) or not isinstance(manifest["order"], int):
        raise ValueError("its header or order is of the wrong type")
    for file, entry in manifest["files"].items():
        if not FILE.fullmatch(file):
            raise ValueError(f"it names the file {file!r}, which is not one of a checkpoint's own")
        if not isinstance(entry["bytes"], int) or not isinstance(entry["sha256"], str):
            raise ValueError(f"the size or hash of {file} is of the wrong type")
    for name, leaf in manifest["leaves"].items():
        kind, dtype = leaf["kind"], leaf["dtype"]
        for shape in (leaf["shape"], leaf["data_shape"] if kind == "key" else []):
            # NumPy allows at most 64 axes, and the product of made-up numbers may take hours.
            if not isinstance(shape, list) or len(shape) > 64 or not all(map(_is_length, shape)):
                raise ValueError(f"leaf {name} has the shape {shape!r}")
        if kind == "python":
            if dtype not in PYTHON or type(leaf["value"]) is not PYTHON[dtype]:
                raise ValueError(f"leaf {name} is not the {dtype} that it should be")
            continue
        known = KEYS.get(leaf["impl"]) == dtype if kind == "key" else dtype in arrays.DTYPES
        if kind not in ("jax", "numpy", "key") or not known:
            raise ValueError(f"leaf {name} is of the unknown kind {kind!r} or dtype {dtype!r}")
        if leaf["file"] not in manifest["files"]:
            raise ValueError(f"leaf {name} is in the file {leaf['file']!r}, which is not listed")
    named = {leaf.get("file") for leaf in manifest["leaves"].values()}
    for file in manifest["files"].keys() - named:
        raise ValueError(f"no leaf is in the file {file!r}")


def _is_length(n: Any) -> bool:
    return type(n) is int and 0 <= n < 2**63
