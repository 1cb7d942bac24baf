"""The folder of a run: its choice, which process holds it, and `run.json`, which says what the run is."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from operant import checkpoint
from operant.checkpoint import durable
from operant.errors import OperantError, SpecError, UsageError, as_folder, quoted, reading, shown
from operant.spec import plain, read_json
from operant.spec.run import RunConfig
from operant.tracking.history import check_place
from operant.tracking.record import Origin
from operant.tracking.runs import files_within, read_run
from operant.training import provenance
from operant.training.environments import Environments
from operant.training.loop import TrainingLoop
from operant.training.session import weights_digest

LIMITS = ("max_steps", "target_reward", "n_devices", "eval_frequency", "eval_episodes")
"""Options of a run that, changed at one resumption, carry over to the next unless they are changed again."""
LOCK = ".lock"
"""File that the system locks for the process that trains in a folder, until that ends or dies."""


def new_directory(run: RunConfig, agent: str) -> Path:
    """Choose the folder of a run, without making it.

    Raises:
        SpecError: it would be inside a file.
        UsageError: the folder in the options is not empty.
    """
    if run.run_dir is not None:
        directory = Path(run.run_dir)
        as_folder("run_dir", directory.parent, shown(run.run_dir))
        there = os.path.lexists(directory)  # a link that leads nowhere is there, too
        if there and not (directory.is_dir() and _is_free(directory)):
            raise UsageError(
                f"run_dir must be a new or empty folder. Received: run_dir={shown(run.run_dir)!r}. "
                f"Give another one, or go on with that run: operant train --resume "
                f"{quoted(shown(run.run_dir))} (in Python, give resume=True, too)."
            )
        return directory
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    place = "".join(c if c.isalnum() or c in "-._" else "-" for c in run.env)
    directory = as_folder("run_dir", "runs", "runs") / f"{agent.rpartition(':')[2]}-{place}-{stamp}"
    name = directory.name
    for i in range(2, 1000):
        if not directory.exists():
            break
        directory = directory.with_name(f"{name}_{i}")
    return directory


@contextlib.contextmanager
def claimed(run: RunConfig, agent: str) -> Iterator[Path]:
    """Choose the folder of a run, and hold it. It is removed afterwards if nothing was written."""
    while True:
        directory = new_directory(run, agent).absolute()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_existing(directory, new=run.run_dir is None))
            except FileExistsError:
                continue  # somebody was faster
            stack.enter_context(held(directory))
            for left in filter(Path.is_file, directory.glob(f"{durable.TEMPORARY}*")):
                left.unlink(missing_ok=True)
            yield directory
            return


@contextlib.contextmanager
def removed_in_vain(training: TrainingLoop, directory: Path) -> Iterator[None]:
    """Remove what a run wrote to its folder if it fails before it has learnt anything."""
    before = set(directory.iterdir())
    try:
        yield
    except Exception:
        for path in set(directory.iterdir()) - before if training.driver.step == 0 else ():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        raise


def _is_free(directory: Path) -> bool:
    """Tell whether a folder is empty, except for what a process left that died before it wrote `run.json`."""
    paths = list(directory.iterdir())
    return not paths or (
        (directory / LOCK).exists()
        and all(
            _is_free(path) if path.is_dir() else path.name == LOCK or path.name.startswith(durable.TEMPORARY)
            for path in paths
        )
    )


def held(directory: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the folder of a run; UsageError: another process trains in it."""
    return _locked(
        directory,
        f"Another process trains in {shown(directory)!r}. Wait for its end, or end it, then resume the run.",
    )


def history_of(run: RunConfig, directory: Path | None) -> Path | None:
    """Return where the history of a run in a folder is; None: it writes none."""
    own = None if directory is None else directory / "history.parquet"
    return own if run.history_checkpoint is None else Path(run.history_checkpoint)


def has_written_all(directory: Path) -> bool:
    """Tell whether a run ended, and has not gone on since: its history has rows up to its last step."""
    newest = checkpoint.newest(directory / "checkpoints", without="")
    if newest is None or newest.header["training"]["ended"] is None:
        return False
    with reading(repr(shown(newest.path))):
        return bool(newest.header["training"]["part"] == read_run(directory / "run.json")["part"])


@contextlib.contextmanager
def history_held(path: str | Path | None, directory: Path | None = None) -> Iterator[None]:
    """Hold the history that a run in a folder names against other runs, which would overwrite its rows.

    One that is missing is made, and removed afterwards if nothing was written. If it is another run's own,
    that run is held, too.

    Raises:
        SpecError: there can be no history at this path.
        UsageError: another run writes to it.
    """
    if path is None:
        yield
        return
    folder = check_place(shown(path), "history_checkpoint").resolve()
    refusal = f"Another run writes to the history {shown(path)!r}. Wait for its end, or give another history."
    with contextlib.ExitStack() as stack:
        own = directory is not None and folder.parent == directory.resolve()
        if not own and (folder.parent / "run.json").is_file():
            stack.enter_context(_locked(folder.parent, refusal))
        stack.enter_context(_existing(folder))
        stack.enter_context(_locked(folder, refusal))
        yield


@contextlib.contextmanager
def _existing(folder: Path, new: bool = False) -> Iterator[None]:
    """Make a folder if it is missing (if `new`, or FileExistsError), and remove it if nothing was written."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=not new)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # up to the first folder that holds something
            for path in missing:
                path.rmdir()


@contextlib.contextmanager
def _locked(folder: Path, refusal: str) -> Iterator[None]:
    file = folder.absolute() / LOCK
    with contextlib.ExitStack() as stack:
        while True:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
            stack.callback(os.close, descriptor)
            try:
                if not durable.lock(descriptor):
                    warnings.warn(
                        f"{shown(folder)!r} is on a file system without locks: see to it that no other "
                        "process writes there.",
                        RuntimeWarning,
                        stacklevel=2,
                    )
            except BlockingIOError:
                raise UsageError(refusal) from None
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), file.stat()):
                    break  # else whoever held it has just removed it
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # it is gone, or the system removes no open files
                file.unlink()


class RunEntry(NamedTuple):
    """A run on the disk, as its newest checkpoint has it."""

    directory: Path
    begun: str
    """When it began, in ISO 8601 format, UTC."""
    agent: str
    env: str
    seed: int
    step: int = 0
    episodes: int = 0
    rewards: Sequence[float] = ()
    """Returns of the last episodes."""
    best_evaluation: float | None = None
    ended: str | None = None
    """Why it ended; None: it is still running, or its process died."""


def runs_in(place: str | Path) -> list[RunEntry]:
    """Return the readable runs in a folder and in its folders (`seed-N`), the oldest first."""
    return read_and_unread(place)[0]


def read_and_unread(place: str | Path) -> tuple[list[RunEntry], dict[Path, str]]:
    """Return the runs as `runs_in` does, and by folder why others cannot be read."""
    runs, unread = [], {}
    for file in files_within(Path(place)):
        try:
            with reading(repr(str(file)), SpecError):
                runs.append(run_entry(file.parent, read_run(file)))
        except OperantError as error:
            unread[file.parent] = str(error)
    return sorted(runs, key=lambda entry: (entry.begun, entry.directory)), unread


def runs_within(directory: str | Path) -> str:
    """Say what to do about a folder that is no run but holds some (of several seeds); else nothing."""
    runs = runs_in(directory)
    return f" It holds runs: give one of them, such as {shown(runs[0].directory)!r}." if runs else ""


def run_entry(directory: Path, data: dict[str, Any]) -> RunEntry:
    """Return how far a run has come, of which its `run.json` says `data`."""
    run = data["run"]
    if not isinstance(data["begun"], str):
        raise TypeError("begun")
    entry = RunEntry(directory, data["begun"], data["agent"]["type"], run["env"], run["seed"])
    newest = checkpoint.newest(directory / "checkpoints", without="")
    if newest is None:
        return entry
    training = newest.header["training"]
    return entry._replace(
        step=training["step"] + training["origin"]["step"],
        episodes=training["score"]["episodes"],
        rewards=training["score"]["rewards"],
        best_evaluation=training["evaluated"]["best_reward"],
        ended=training["ended"],
    )


def describe(
    directory: Path,
    agent: dict[str, Any],
    run: RunConfig,
    environments: Environments,
    command: str | None,
    *,
    together: int | None = None,
    given: bool = False,
    loaded: str | None = None,
    origin: Origin | None = None,
    part: int = 0,
) -> None:
    """Write what the run is, as `run.json`, to its folder.

    That is what it trains, with which options, in what, and how it was begun (`command`; None: as this
    process was). Of several runs, `together` are one program mapped over their seeds; `given` environments
    are objects that cannot be made again from an id. `loaded` is a checkpoint from elsewhere that it
    continues from, and `origin` where the history that it continues ended (None: not with a new agent).
    `part` counts how often an object that trains on has described it already.
    """
    data = {
        "agent": agent,
        "run": run.to_dict(),
        **_circumstances(command),
        "together": together,
        "given": given,
        "loaded": loaded,
        "part": part,
        "origin": None if origin is None else origin._asdict(),
        "vector": None if environments.vector is None else environments.vector.mode,
        "preprocessed": environments.preprocessed,
        "weights": {path: weights_digest(path) for path in run.weights},
    }
    _write(directory, data)


def describe_resume(
    directory: Path,
    training: TrainingLoop,
    run: RunConfig,
    command: str | None,
    options: Mapping[str, Any],
) -> None:
    """Add to `run.json` from which step, by which versions and with which changed options it is resumed."""
    data = read_json(directory / "run.json", "run")
    entry = {
        "step": training.driver.step,
        **{name: getattr(run, name) for name in LIMITS},
        **_circumstances(command),
    }
    if options:
        entry["options"] = dict(options)
    if training.memory_anew:
        entry["memory"] = "anew"
    data["resumed"] = [*data.get("resumed", []), entry]
    data["part"] = training.part = data.get("part", 0) + 1
    _write(directory, data)


def _circumstances(command: str | None) -> dict[str, Any]:
    return {
        "command": command if command is not None else " ".join(sys.argv),
        "begun": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": provenance.versions(),
        "machine": provenance.machine(),
        "git": provenance.git_state(),
    }


def _write(directory: Path, data: dict[str, Any]) -> None:
    text = json.dumps(plain(data), indent=2) + "\n"
    with durable.replaced(directory / "run.json") as temporary:
        temporary.write_text(text, encoding="utf-8")
