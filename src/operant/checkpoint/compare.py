"""Telling whether two checkpoints hold the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from operant.checkpoint.manifest import read as read_manifest
from operant.checkpoint.store import Checkpoint


def differences(first: str | Path, second: str | Path) -> list[str]:
    """Return what differs between the leaves of two checkpoints, a line for each; empty if they are the same.

    The leaves are compared bit by bit: a NaN equals the same NaN, 0.0 is not -0.0. Headers are not compared.
    """
    manifests = [read_manifest(Path(path)) for path in (first, second)]
    if all(manifests[0][part] == manifests[1][part] for part in ("leaves", "files")):
        return []  # the manifest holds the hash of every file
    names = [manifest["leaves"].keys() for manifest in manifests]
    lines = [f"{name} is in one of them only" for name in sorted(names[0] ^ names[1])]
    both = [Checkpoint(path) for path in (first, second)]
    for name in manifests[0]["leaves"]:
        if name in names[1]:  # one after the other, on the host: two replay memories may fit nowhere
            one, other = (np.asarray(checkpoint.stored(name)) for checkpoint in both)
            lines += [f"{name} {text}" for text in _difference(one, other)]
    return lines


def _difference(one: np.ndarray, other: np.ndarray) -> list[str]:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return [f"is {one.dtype}{list(one.shape)} and {other.dtype}{list(other.shape)}"]
    if one.tobytes() == other.tobytes():
        return []
    apart = (_bytes(one) != _bytes(other)).any(axis=1)
    count = f"differs in {np.count_nonzero(apart)} of {one.size} numbers"
    if one.dtype.kind != "f":
        return [count]
    with np.errstate(invalid="ignore", over="ignore"):
        return [f"{count}, by {np.nanmax(np.abs(one - other)):.3g} at most"]


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), np.uint8).reshape(array.size, -1)
