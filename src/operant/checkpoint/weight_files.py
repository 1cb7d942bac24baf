"""Weights as plain arrays in common formats.

A file holds for every model the arrays `<model>/params/<name>` (what is trained) and `<model>/state/<name>`
(running moments and the like), and of an agent the scalars `timesteps`, `episodes` and `updates`. A JSON file
beside it, `<filename>.json`, says what they belong to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from operant.checkpoint import durable
from operant.checkpoint.arrays import fitted
from operant.errors import CheckpointError, as_folder, reading
from operant.spec import from_json, plain
from operant.types import Arrays

FORMATS = {"numpy": ".npz", "hdf5": ".hdf5", "safetensors": ".safetensors"}
"""Formats of weights, and how their files' names end."""
KINDS = {suffix: name for name, suffix in FORMATS.items()} | {".h5": "hdf5"}
"""Formats by the suffixes of their files."""
COUNTERS = ("timesteps", "episodes", "updates")


def flatten(weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of `Algorithm.weights` by `<model>/params/<name>` and `<model>/state/<name>`."""
    # All at once: each fetch by itself would wait for the device.
    fetched: dict[str, np.ndarray] = jax.device_get(_by_name(weights))
    return fetched


def of_agent(weights: Mapping[str, Any], counters: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a whole agent: its weights, and its counters."""
    return flatten(weights) | {name: np.asarray(getattr(counters, name), np.uint32) for name in COUNTERS}


def _by_name(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{model}/{part}/{name}": x
        for model, variables in weights.items()
        for part in ("params", "state")
        for name, x in variables[part].items()
    }


def unflatten(
    arrays: Mapping[str, np.ndarray], like: Mapping[str, Any], path: Path
) -> tuple[dict[str, Any], Arrays]:
    """Return weights and counters made from the arrays of a file.

    Raises:
        CheckpointError: an array is missing or has another shape than the agent's, or holds other than finite
            numbers of its kind; names it.
    """
    expected = {name: (x.shape, x.dtype) for name, x in _by_name(like).items()}
    expected |= {name: ((), np.uint32) for name in COUNTERS if name in arrays}
    fitting = {}
    for name in expected.keys() | arrays.keys():
        try:
            if name not in arrays or name not in expected:
                raise ValueError(f"is missing {'there' if name in expected else 'in the agent'}")
            fitting[name] = jnp.asarray(fitted(arrays[name], *expected[name]))
        except ValueError as error:
            raise CheckpointError(
                f"The weights in {str(path)!r} do not fit the agent: {name!r} {error}. Load finite numbers "
                "into an agent with the same networks."
            ) from None
    weights = {
        model: {
            part: {name: fitting[f"{model}/{part}/{name}"] for name in variables[part]}
            for part in ("params", "state")
        }
        for model, variables in like.items()
    }
    return weights, {name: fitting[name] for name in COUNTERS if name in arrays}


def write(path: Path, arrays: Mapping[str, np.ndarray], header: Any, described: str | None = None) -> Path:
    """Write a weights file, whole or not at all, and what it belongs to beside it.

    Raises:
        SpecError: the folder is a file.
    """
    folder = as_folder("directory", path.parent)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(plain(header), indent=2) + "\n"
    with durable.replaced(folder / f"{described or path.with_suffix('').name}.json") as temporary:
        temporary.write_text(text, encoding="utf-8")
    with durable.replaced(path) as temporary:
        _WRITERS[KINDS[path.suffix]](temporary, arrays)
    return path


def _write_numpy(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _write_hdf5(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    import h5py

    # Not every file system has locks; nobody else knows the temporary name.
    with h5py.File(path, "w", locking=False) as file:
        for name, x in arrays.items():
            file.create_dataset(name, data=x)


def _write_safetensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    from safetensors.numpy import save

    # Not `save_file`, which puts another file, for nobody but its owner, in place of the one that is locked.
    path.write_bytes(save({name: np.array(x, order="C") for name, x in arrays.items()}))


_WRITERS: dict[str, Callable[[Path, Mapping[str, np.ndarray]], None]] = {
    "numpy": _write_numpy,
    "hdf5": _write_hdf5,
    "safetensors": _write_safetensors,
}


def read(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a weights file; its suffix tells the format.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        if path.suffix in (".hdf5", ".h5"):
            return _read_hdf5(path)
        from safetensors.numpy import load_file

        loaded: dict[str, np.ndarray] = load_file(path)
        return loaded
    except Exception as error:  # each library has errors of its own
        raise CheckpointError(f"The weights {str(path)!r} cannot be read: {error}") from None


def _read_hdf5(path: Path) -> dict[str, np.ndarray]:
    import h5py

    arrays: dict[str, np.ndarray] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:  # it would open whatever a stranger's file names
                raise ValueError(f"{name!r} is stored in another file")
            arrays[name] = np.asarray(item[()])

    with h5py.File(path, "r", locking=False) as file:
        file.visititems(note)
    return arrays


def is_described(path: Path) -> bool:
    """Tell whether there is a file beside weights that says what they belong to."""
    return any(path.with_name(f"{name}.json").is_file() for name in _names(path))


def _names(path: Path) -> tuple[str, str, str]:
    stem = path.with_suffix("").name
    return path.name, stem, re.sub(r"-\d+$", "", stem)


def header(path: Path) -> dict[str, Any]:
    """Return the specification beside a weights file.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    for name in _names(path):
        beside = path.with_name(f"{name}.json")
        if beside.is_file():
            with reading(f"The specification {str(beside)!r}"):
                data: dict[str, Any] = from_json(beside.read_text(encoding="utf-8"))
            return data
    raise CheckpointError(
        f"There is no specification {_names(path)[1]!r}.json beside the weights {str(path)!r}."
    )
