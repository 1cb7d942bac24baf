"""How files of an agent are found, and the saver, which writes checkpoints now and then."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from operant import checkpoint
from operant.checkpoint import durable
from operant.checkpoint.weight_files import FORMATS
from operant.errors import CheckpointError, suggest, value_error
from operant.execution import export
from operant.spec import FolderConfig, option

Format = Literal["checkpoint", "numpy", "hdf5", "safetensors"]
"""What `Agent.load` reads; `agent.save` writes policies (`operant.execution.export`), too."""
Unit = Literal["seconds", "timesteps", "episodes", "updates"]


def check_format(format: Any, *more: str) -> None:
    """Refuse a format that is neither an agent's nor one of `more`."""
    known = ("checkpoint", *FORMATS, *more)
    if format not in known:
        raise value_error("format", f"one of {', '.join(map(repr, known))}", format)


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
    saved_model = (directory / "saved_model.pb").is_file()
    if saved_model or format in export.FORMATS or suffixes & set(export.FORMATS.values()):
        raise CheckpointError(
            f"A file of format {', '.join(map(repr, export.FORMATS))} holds a policy, which acts and cannot "
            f"learn on: it is no agent. Load it with operant.load_policy({str(directory)!r}), a SavedModel "
            "with tensorflow.saved_model.load, or save the agent with format='checkpoint', too."
        )
    if format is not None:
        check_format(format)
    folder = directory / "checkpoints" if (directory / "checkpoints").is_dir() else directory
    saved = None if format in FORMATS else find_checkpoint(folder, filename)
    weights = whole = None
    if saved is None and format != "checkpoint":
        whole = None if filename is None or not folder.is_dir() else checkpoint.newest(folder, filename)
        kinds = [FORMATS[format]] if format in FORMATS else list(FORMATS.values())
        weights = find_file(folder, filename, kinds, numbered=format is not None or whole is None)
    if weights is None and format in FORMATS:
        raise CheckpointError(f"There are no weights (*{FORMATS[format]}) in {str(directory)!r}.")
    return weights or saved or whole or checkpoint_in(folder, filename, numbered=True)


def find_file(
    folder: Path, filename: str | None, suffixes: Sequence[str], *, numbered: bool = False
) -> Path | None:
    """Return a file in a folder (or the folder, if it is one), or None: that of the name, else the newest.

    The name may lack one of the suffixes; with `numbered` it stands for the newest ``<filename>-<number>``,
    too.
    """
    if folder.suffix in suffixes and folder.is_file():
        return folder
    if filename is None:
        paths = [p for suffix in suffixes for p in folder.glob(f"*{suffix}") if not p.name.startswith(".")]
    else:
        endings = ("",) if Path(filename).suffix in suffixes else suffixes
        paths = [path for ending in endings if (path := folder / f"{filename}{ending}").is_file()]
        if not paths and numbered and folder.is_dir():
            pattern = re.compile(rf"{re.escape(filename)}-\d+({'|'.join(map(re.escape, suffixes))})")
            paths = [path for path in folder.iterdir() if pattern.fullmatch(path.name)]
    return max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)


def find_checkpoint(directory: Path, filename: str | None) -> checkpoint.Checkpoint | None:
    """Return the checkpoint of that name in a folder.

    Without a name, the folder if it is one, else its newest; None if there is none.

    Raises:
        CheckpointError: the checkpoint of that name, or that is the folder, cannot be read.
    """
    if filename is None:
        return checkpoint.found(directory)
    named = directory / filename
    return checkpoint.Checkpoint(named) if checkpoint.is_checkpoint(named) else None


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
        policies = [p.name for suffix in export.READ.values() for p in directory.glob(f"*{suffix}")]
        remedy = f" {policies[0]!r} there is a policy: operant.load_policy reads it." if policies else ""
        if filename is not None and directory.is_dir():
            whole = [path.name for path in checkpoint.list_checkpoints(directory)]
            known = {name for each in whole for name in (each, re.sub(r"-\d+$", "", each))}
            remedy = suggest(filename, known, listed=False) + remedy
        why = "." if directory.is_dir() else ", which is no folder."
        raise CheckpointError(f"There is no checkpoint{named} in {str(directory)!r}{why}{remedy}")
    return saved


class SaverConfig(FolderConfig):
    """Options of `saver`."""

    label = "saver"
    filename: str = option("agent", "Name of the checkpoints, to which the count in the unit is added")
    frequency: int = option(10, "Interval between checkpoints, in the unit", low=1)
    unit: Unit = option(
        "updates",
        "What is counted: seconds, timesteps, episodes or updates",
        choices=("seconds", "timesteps", "episodes", "updates"),
    )
    max_checkpoints: int | None = option(10, "Number of newest checkpoints to keep (None: all)", low=1)
    load: bool = option(False, "Continue from the newest checkpoint of this name in the folder")


class Saver:
    """Writes checkpoints from time to time.

    If one other than the last cannot be written, this is only a warning.

    Args:
        config: its options.
        agent: what has the counters.
        save: writes one: called with folder, name, and how many to keep.
    """

    def __init__(self, config: SaverConfig, agent: Any, save: Callable[[str, str, int | None], Any]) -> None:
        self.config = config
        self._folder = str(Path(config.directory).absolute())
        self._agent, self._save = agent, save
        self._last = self._now()
        self._saved: tuple[int, int] | None = self._state()

    def _now(self) -> float:
        return time.monotonic() if self.config.unit == "seconds" else getattr(self._agent, self.config.unit)

    def _state(self) -> tuple[int, int]:
        return self._agent.timesteps, self._agent.updates

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
        counter = "timesteps" if self.config.unit == "seconds" else self.config.unit
        name = f"{self.config.filename}-{getattr(self._agent, counter)}"
        self._save(self._folder, name, self.config.max_checkpoints)
        self._saved = self._state()

    def close(self) -> None:
        """Write what was learnt since the last checkpoint."""
        if self._state() != self._saved:
            self._write()
