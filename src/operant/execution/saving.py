"""Files of an agent beside checkpoints: weights as plain arrays in common formats.

And the saver, which writes checkpoints now and then.

A weights file holds for every model the arrays `<model>/params/<name>` (what is trained) and
`<model>/state/<name>` (running moments and the like), and the scalars `timesteps`, `episodes` and `updates`.
A JSON file beside it, `<filename>.json`, holds the agent's specification.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from operant import checkpoint
from operant.checkpoint import durable
from operant.checkpoint.arrays import fitted
from operant.errors import CheckpointError, SpecError, as_folder, reading, suggest, value_error
from operant.execution import export
from operant.spec import Config, build, from_json, option, plain
from operant.types import Arrays

FORMATS = {"numpy": ".npz", "hdf5": ".hdf5", "safetensors": ".safetensors"}
"""Formats of weights, and how their files' names end."""
COUNTERS = ("timesteps", "episodes", "updates")
Format = Literal["checkpoint", "numpy", "hdf5", "safetensors"]
"""What `Agent.load` reads; `agent.save` writes policies (`operant.execution.export`), too."""
Unit = Literal["seconds", "timesteps", "episodes", "updates"]


def check_format(format: Any, *more: str) -> None:
    """Refuse a format that is neither an agent's nor one of `more`."""
    known = ("checkpoint", *FORMATS, *more)
    if format not in known:
        raise value_error("format", f"one of {', '.join(map(repr, known))}", format)


def flatten(weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of `Algorithm.weights` by `<model>/params/<name>` and `<model>/state/<name>`."""
    # All at once: each fetch by itself would wait for the device.
    fetched: dict[str, np.ndarray] = jax.device_get(_by_name(weights))
    return fetched


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


def write(
    directory: str | Path,
    filename: str,
    name: str,
    format: str,
    arrays: Mapping[str, np.ndarray],
    header: Any,
) -> Path:
    """Write a weights file, whole or not at all, and the specification beside it.

    Args:
        directory: where; made if missing.
        filename: the specification's name, without suffix.
        name: the weights' name, without suffix.
        format: of `FORMATS`.
        arrays: by name.
        header: the specification.

    Raises:
        SpecError: the directory is a file.
    """
    folder = as_folder("directory", directory)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(plain(header), indent=2) + "\n"
    with durable.replaced(folder / f"{filename}.json") as temporary:
        temporary.write_text(text, encoding="utf-8")
    final = folder / f"{name}{FORMATS[format]}"
    with durable.replaced(final) as temporary:
        _WRITERS[format](temporary, arrays)
    return final


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
    from safetensors.numpy import save_file

    save_file({name: np.array(x, order="C") for name, x in arrays.items()}, path)


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
        if path.suffix == ".hdf5":
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


def find_saved(directory: Path, filename: str | None, format: Any) -> checkpoint.Checkpoint | Path:
    """Return the checkpoint that `Agent.load` names, or its file of weights.

    Args:
        directory: a run's folder, a folder of checkpoints or weights, or one of these itself.
        filename: name in the folder, also without the number at its end; None: the newest.
        format: what it is; None: a checkpoint if there is one, else weights.

    Raises:
        SpecError: an unknown format.
        CheckpointError: there is none, or it is an exported policy, which is no agent.
    """
    suffixes = {Path(filename or "").suffix, directory.suffix if directory.is_file() else ""}
    if format in export.FORMATS or suffixes & set(export.FORMATS.values()):
        raise CheckpointError(
            f"A file of format {', '.join(map(repr, export.FORMATS))} holds a policy, which acts and cannot "
            f"learn on: it is no agent. Load it with operant.load_policy({str(directory)!r}), or save the "
            "agent with format='checkpoint', too."
        )
    if format is not None:
        check_format(format)
    folder = directory / "checkpoints" if (directory / "checkpoints").is_dir() else directory
    saved = None if format in FORMATS else find_checkpoint(folder, filename)
    weights = find_weights(folder, filename, format) if saved is None and format != "checkpoint" else None
    if weights is None and format in FORMATS:
        raise CheckpointError(f"There are no weights (*{FORMATS[format]}) in {str(directory)!r}.")
    return weights or saved or checkpoint_in(folder, filename, numbered=True)


def find_weights(directory: Path, filename: str | None, format: str | None) -> Path | None:
    """Return a weights file in a folder, or None: the one of that name, or without a name the newest.

    With a format a name stands for the newest ``<filename>-<number>``, too.
    """
    suffixes = [FORMATS[format]] if format in FORMATS else list(FORMATS.values())
    if directory.suffix in suffixes and directory.is_file():
        return directory
    if filename is not None:
        names = (
            [filename]
            if Path(filename).suffix in suffixes
            else [f"{filename}{suffix}" for suffix in suffixes]
        )
        paths = [directory / name for name in names if (directory / name).is_file()]
        # As of checkpoints, which come first without a format.
        if not paths and format is not None and directory.is_dir():
            endings = "|".join(map(re.escape, suffixes))
            numbered = re.compile(rf"{re.escape(filename)}-\d+({endings})")
            paths = [path for path in directory.iterdir() if numbered.fullmatch(path.name)]
    else:
        paths = [p for suffix in suffixes for p in directory.glob(f"*{suffix}") if not p.name.startswith(".")]
    return max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)


def find_checkpoint(directory: Path, filename: str | None) -> checkpoint.Checkpoint | None:
    """Return the checkpoint of that name in a folder.

    Without a name, the folder if it is one, else its newest; None if there is none.

    Raises:
        CheckpointError: the checkpoint of that name, or that is the folder, cannot be read.
    """
    named = directory if filename is None else directory / filename
    if checkpoint.is_checkpoint(named):
        return checkpoint.Checkpoint(named)
    return checkpoint.newest(directory) if filename is None and directory.is_dir() else None


def checkpoint_in(directory: Path, filename: str | None, *, numbered: bool = False) -> checkpoint.Checkpoint:
    """As `find_checkpoint`, or else the newest ``<filename>-<number>``; it is an error if there is none.

    Args:
        directory: where it is.
        filename: its name, or what stands before the number (None: any).
        numbered: take the newest numbered one even if there is one of exactly that name, as a saver does to
            continue.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    saved = None if numbered else find_checkpoint(directory, filename)
    if saved is None and filename is not None:
        saved = checkpoint.newest(directory, filename)
    if saved is None:
        named = "" if filename is None else f" {filename!r}"
        policies = [p.name for suffix in export.FORMATS.values() for p in directory.glob(f"*{suffix}")]
        remedy = f" {policies[0]!r} there is a policy: operant.load_policy reads it." if policies else ""
        if filename is not None and directory.is_dir():
            whole = [path.name for path in checkpoint.list_checkpoints(directory)]
            known = {name for each in whole for name in (each, re.sub(r"-\d+$", "", each))}
            remedy = suggest(filename, known, listed=False) + remedy
        why = "." if directory.is_dir() else ", which is no folder."
        raise CheckpointError(f"There is no checkpoint{named} in {str(directory)!r}{why}{remedy}")
    return saved


def header(path: Path) -> dict[str, Any]:
    """Return the specification beside a weights file.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    stem = path.with_suffix("").name
    for name in (stem, re.sub(r"-\d+$", "", stem)):
        beside = path.with_name(f"{name}.json")
        if beside.is_file():
            with reading(f"The specification {str(beside)!r}"):
                data: dict[str, Any] = from_json(beside.read_text(encoding="utf-8"))
            return data
    raise CheckpointError(f"There is no specification {stem!r}.json beside the weights {str(path)!r}.")


class SaverConfig(Config):
    """Options of `saver`."""

    directory: str = option("", "Folder of the checkpoints")
    filename: str = option("agent", "Name of the checkpoints, to which the count in the unit is added")
    frequency: int = option(10, "Interval between checkpoints, in the unit", low=1)
    unit: Unit = option(
        "updates",
        "What is counted: seconds, timesteps, episodes or updates",
        choices=("seconds", "timesteps", "episodes", "updates"),
    )
    max_checkpoints: int | None = option(10, "Number of newest checkpoints to keep (None: all)", low=1)
    load: bool = option(False, "Continue from the newest checkpoint of this name in the folder")

    def check(self) -> Iterator[str]:
        """Ask for a folder."""
        if not self.directory:
            yield "saver must say the directory: saver=dict(directory='data/checkpoints')."

    @classmethod
    def parse(cls, spec: Any) -> SaverConfig:
        """Read a folder's name, or a dict of options."""
        options = {"directory": str(spec)} if isinstance(spec, str | Path) else spec
        if not isinstance(options, Mapping):
            raise SpecError(f"saver must be a folder or a dict with 'directory'. Received: saver={spec!r}.")
        return build(cls, dict(options), "saver")


class Saver:
    """Writes checkpoints from time to time.

    If one other than the last cannot be written, this is only a warning.

    Args:
        config: its options.
        save: writes one: called with the counter to add to its name, and how many to keep.
        count: returns a counter by name.
    """

    def __init__(
        self, config: SaverConfig, save: Callable[[str, int | None], Any], count: Callable[[str], int]
    ) -> None:
        self.config = config
        self._save, self._count = save, count
        self._last = self._now()
        self._saved: tuple[int, int] | None = self._state()

    def _now(self) -> float:
        return time.monotonic() if self.config.unit == "seconds" else self._count(self.config.unit)

    def _state(self) -> tuple[int, int]:
        return self._count("timesteps"), self._count("updates")

    def changed(self) -> None:
        """Take note of a change that the counters do not show."""
        self._saved = None

    def save_if_due(self) -> None:
        """Write a checkpoint if it is time."""
        now = self._now()
        if now - self._last >= self.config.frequency:
            self._last = now
            with durable.outliving(f"No checkpoint in {self.config.directory!r}"):
                self._write()

    def _write(self) -> None:
        append = "timesteps" if self.config.unit == "seconds" else self.config.unit
        self._save(append, self.config.max_checkpoints)
        self._saved = self._state()

    def close(self) -> None:
        """Write what was learnt since the last checkpoint."""
        if self._state() != self._saved:
            self._write()
