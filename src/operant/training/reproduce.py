"""Repeat the training of a run, and tell whether the outcome is the same, bit by bit."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from operant.agents.table import resolve
from operant.errors import OperantError, SpecError, UsageError, shown
from operant.spec import Config, option
from operant.spec.run import PROCESSES, RunConfig
from operant.tracking import History, LoggerGroup, read_history
from operant.tracking.record import Origin
from operant.tracking.runs import read_run
from operant.training import provenance

if TYPE_CHECKING:
    from operant.training.session import ExperimentSetup

SHOWN = 5
"""How many differences are shown."""
FOREVER = 2**62
"""More steps than any run takes, for one that something else ends."""
SELDOM = 1e9
"""Seconds between checkpoints of a repetition: only the last counts."""
CLOCKED = ("time",)
"""Columns of a history that depend on the clock."""


class ReproduceConfig(Config):
    """Options of `operant reproduce`."""

    run_dir: str | None = option(
        None, "Folder in which to keep what the repetition writes (default: a temporary one)"
    )
    max_steps: int | None = option(
        None,
        "Repeat only the first n steps; nothing is known of the rest (compares the history, as there is no "
        "checkpoint)",
        unit="environment steps",
        low=1,
    )
    env: str = option("", "The run's environment, given again if it is of a module in the current folder")
    quiet: bool = option(False, "Print only the result, no progress")


class Reproduction(NamedTuple):
    """The result of `reproduce`."""

    differences: list[str]
    """What differs, most telling first; empty: the run is reproducible."""
    changes: list[str]
    """Versions, machine and code that differ between then and now."""
    step: int
    """Environment steps that were repeated."""
    compared: str
    """What was compared."""
    remedy: str = ""
    """What to set before a run that is to be repeated here; empty: nothing."""

    @property
    def identical(self) -> bool:
        """Whether everything that was compared is the same."""
        return not self.differences

    def __str__(self) -> str:
        lines = [f"Not as it was then: {change}" for change in self.changes]
        if self.identical:
            return "\n".join([*lines, f"Identical: {self.compared}."])
        lines.append(f"Different: {len(self.differences)} differences in {self.compared}:")
        lines += [f"  {text}" for text in self.differences[:SHOWN]]
        if len(self.differences) > SHOWN:
            lines.append(f"  and {len(self.differences) - SHOWN} more")
        if self.remedy:
            lines.append(self.remedy)
        return "\n".join(lines)


class RunRecord(NamedTuple):
    """What a run left behind."""

    directory: Path
    data: dict[str, Any]
    """Its `run.json`."""
    run: RunConfig
    """Its options, adjusted so as to repeat it."""
    history: Path
    checkpoint: Path
    """Its newest one."""
    training: dict[str, Any]
    """What the checkpoint says of the course of training."""
    origin: Origin


def reproduce(
    directory: str | Path, config: ReproduceConfig | None = None, agent: str | None = None
) -> Reproduction:
    """Repeat a run from its recorded options and seed, and compare.

    This compares everything that its newest checkpoint holds (parameters, optimizer, memory, JAX-native
    environments, counters), and its history up to there, except for times.

    Args:
        directory: folder of the run.
        config: where to write, how far to go.
        agent: name of the run's agent, which may be left out.

    Raises:
        SpecError: there is no run, it has another agent or environment, or it cannot be repeated; says why.
        KeyboardInterrupt: it was interrupted.
    """
    config = ReproduceConfig.from_dict({}) if config is None else config
    record = _record(Path(directory), config.max_steps)
    named = (
        ("agent", agent and resolve(agent), record.data["agent"]["type"]),
        ("env", config.env, record.run.env),
    )
    for name, value, then in named:
        if value and value != then:
            raise SpecError(
                f"The {name} of the run in {str(directory)!r} is {then!r}. Received: {name}={value!r}. "
                "Leave it out."
            )
    with contextlib.ExitStack() as stack:
        place = Path(
            config.run_dir or stack.enter_context(tempfile.TemporaryDirectory(prefix="operant-reproduce-"))
        ).absolute()
        if config.run_dir and place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise UsageError(f"run_dir must be a new or empty folder. Received: run_dir={config.run_dir!r}.")
        step = _repeat(record, place, config)
        # Only now: looking at the machine starts JAX's backend, which the run starts as suits it.
        return _compared(record, place, step, config.max_steps is None, _changes(record.data))


def _record(directory: Path, max_steps: int | None) -> RunRecord:
    """Read what a run left, without what it was to do, when it was resumed, after `max_steps`."""
    from operant import checkpoint
    from operant.training.run_dir import history_of, runs_within
    from operant.training.train import resumed

    if not (directory / "run.json").is_file():
        raise SpecError(
            f"There is no run in {str(directory)!r}: run.json is missing.{runs_within(directory)}"
        )
    directory = directory.absolute()
    run = resumed(directory, {}).run
    data = read_run(directory / "run.json")
    newest = checkpoint.latest(directory / "checkpoints")
    if newest is None:
        raise SpecError(f"{shown(directory)!r} cannot be reproduced: it has no checkpoint to compare with.")
    training = checkpoint.Checkpoint(newest).header["training"]
    origin, parts = Origin(**training["origin"]), data.get("resumed", [])
    within = [part for part in parts if max_steps is None or part["step"] + origin.step < max_steps]
    data = {**data, "resumed": within}
    if len(within) < len(parts):
        last = within[-1] if within else data["run"]
        run = run.replace(n_devices=last.get("n_devices", data["run"].get("n_devices")))
    failed = training["ended"] == "failed" and (
        max_steps is None or max_steps >= origin.step + training["step"]
    )
    for reason in _obstacles(data, failed, run):
        raise SpecError(f"{shown(directory)!r} cannot be reproduced: {reason}")
    # No checkpoint holds how far each part of a run was to go: repeat all of it in one part.
    run = run.replace(target_reward=None, max_steps=FOREVER)
    if data["vector"] is not None:
        run = run.replace(vector=data["vector"])
    history = history_of(run, directory)
    assert history is not None
    return RunRecord(directory, data, run, history, newest, training, origin)


def _obstacles(data: dict[str, Any], failed: bool, run: RunConfig) -> Iterator[str]:
    from operant.training.session import weights_digest

    if failed:
        yield "it was ended by an environment that failed, in the middle of a step."
    if data["together"] is not None:
        yield (
            f"it was trained at once with other seeds ({data['together']} in all), and one program for many "
            "adds up in another order than one for a single run."
        )
    if data["loaded"] is not None:
        yield f"it went on from a checkpoint of elsewhere, {data['loaded']!r}."
    parts = data["resumed"]
    if parts and data["vector"] is not None:
        yield (
            f"it was resumed at step {parts[0]['step']}, where its environments began new episodes. "
            "Only runs in JAX-native environments continue exactly."
        )
    if anew := [part["step"] for part in parts if part.get("memory") == "anew"]:
        yield (
            f"it was resumed at step {anew[0]} with an empty replay memory, which its checkpoints leave "
            "out (--no-save-memory)."
        )
    if changed := [part for part in parts if part.get("options")]:
        yield (
            f"it was resumed at step {changed[0]['step']} with other options: "
            f"{', '.join(changed[0]['options'])}."
        )
    began = data["run"].get("n_devices")
    if moved := [part["step"] for part in parts if part.get("n_devices", began) != began]:
        yield (
            f"it was resumed at step {moved[0]} on another number of devices, whose sums are added up in "
            "another order."
        )
    kinds = list(dict.fromkeys(part["machine"]["device"] for part in (data, *parts)))
    if len(kinds) > 1:
        yield f"it was resumed on another kind of device ({', then '.join(kinds)}), which rounds otherwise."
    for path, digest in data["weights"].items():
        try:
            same = weights_digest(path) == digest
        except OperantError as error:
            yield f"the weights {path!r}, from which it began, cannot be read: {error}"
        else:
            if not same:
                yield f"the weights {path!r}, from which it began, have been written to since."


def _repeat(record: RunRecord, place: Path, config: ReproduceConfig) -> int:
    from operant.agents.base.agent_spec import parse_agent
    from operant.training.environments import make_environments
    from operant.training.loggers import console
    from operant.training.session import ExperimentSetup

    run = record.run.replace(
        **dict.fromkeys(PROCESSES),
        checkpoints=(),
        history_checkpoint=None,
        monitor_session=None,
        quiet=config.quiet,
        save_seconds=SELDOM,
        save_frequency=None,
        save_memory=record.training["memory"],
    )
    environments = make_environments(run)
    try:
        session = ExperimentSetup(parse_agent(record.data["agent"]), environments, run)
        training = session.training(run, place / "checkpoints")
        training.progress.begin_at(record.origin)
        training.most_blocks = _blocks(record, session, config.max_steps)
        aim = min(config.max_steps or FOREVER, record.origin.step + record.training["step"])
        display = console(run.replace(max_steps=aim), training)
        loggers = training.loggers = LoggerGroup([History(place / "history.parquet"), display])
        with loggers:
            loggers.message(
                f"Reproducing {shown(record.directory)}: {record.data['agent']['type']} on {run.env}, seed "
                f"{run.seed}, up to step {aim}"
            )
            if training.loop().reason == "interrupted":
                raise KeyboardInterrupt  # nothing can be said then
    finally:
        environments.close()
    return training.step


def _blocks(record: RunRecord, session: ExperimentSetup, max_steps: int | None) -> int:
    from operant import checkpoint

    like = session.driver.train.counters
    rows = int(checkpoint.Checkpoint(record.checkpoint).part("train", like, "counters").rows)
    blocks = rows // session.learner.rows
    if max_steps is not None:
        steps = max_steps - record.origin.step
        blocks = min(blocks, math.ceil(steps / session.driver.block_steps))
    if blocks < 1:
        raise SpecError(f"{shown(record.directory)!r} cannot be reproduced: there is no step to repeat.")
    return blocks


def _compared(record: RunRecord, place: Path, step: int, whole: bool, changes: list[str]) -> Reproduction:
    """Compare what run and repetition left, be it `whole` or of the beginning only."""
    from operant.checkpoint import compare, latest, manifest

    parts, differences = [], []
    last = record.origin.step + record.training["step"]
    if whole or step == last:
        if step != last:
            differences.append(f"as many updates end at step {step}, not {last}")
        repeated = latest(place / "checkpoints")
        assert repeated is not None
        differences += compare.differences(record.checkpoint, repeated)
        count = len(manifest.read(record.checkpoint)["leaves"])
        parts.append(f"the {count} arrays of the checkpoint at step {last}")
    episodes = record.training["score"]["episodes"] - record.origin.episodes
    rows = _rows(record, record.history, step, episodes)
    again = _rows(record, place / "history.parquet", step)
    if rows is None:
        parts.append(f"no history: {shown(record.history)!r} does not exist here")
    else:
        assert again is not None
        differences += _history_differences(rows, again)
        parts.append(f"the {len(rows['step'])} episodes of the history up to step {step}")
    if not differences and rows is not None and len(parts) == 1 and not len(rows["step"]):
        raise SpecError(f"Nothing can be compared: no episode ended up to step {step}. Raise --max-steps.")
    return Reproduction(differences, changes, step, " and ".join(parts), _remedy())


def _remedy() -> str:
    """Return what this process would need to repeat a run bit for bit; empty: nothing."""
    if provenance.machine().get("deterministic", True):
        return ""
    return (
        f"A GPU repeats bit for bit only with XLA_FLAGS={provenance.DETERMINISTIC}, in the run and in "
        "its repetition."
    )


def _rows(record: RunRecord, path: Path, step: int, most: int | None = None) -> dict[str, np.ndarray] | None:
    """Return at most `most` rows of a history that the run wrote up to a step; None without a history.

    Further rows are of a run that continued the history from an episode that ended before the checkpoint.
    """
    if not path.exists():
        return None
    columns = read_history(path)
    steps = columns["step"]
    within = np.flatnonzero(steps > record.origin.step)[:most]
    within = within[steps[within] <= step]
    return {name: column[within] for name, column in columns.items() if name not in CLOCKED}


def _history_differences(then: dict[str, np.ndarray], now: dict[str, np.ndarray]) -> list[str]:
    """Return a line for the first episode in which each column differs."""
    differences = []
    counts = len(then["step"]), len(now["step"])
    if counts[0] != counts[1]:
        differences.append(f"the history has {counts[0]} episodes, its repetition {counts[1]}")
    # Where no episode was repeated, columns of `info` are missing.
    for name in filter(now.__contains__, then):
        one, other = (rows[name][: min(counts)] for rows in (then, now))
        rows = np.flatnonzero(~((one == other) | ((one != one) & (other != other))))
        if len(rows):
            i = rows[0]
            differences.append(
                f"{name} of {len(rows)} episodes, first of number {i + 1} (step {then['step'][i]}): "
                f"{one[i]} then, {other[i]} now"
            )
    return differences


def _changes(data: dict[str, Any]) -> list[str]:
    last = (data["resumed"] or [data])[-1]
    now = {
        "versions": provenance.versions(),
        "machine": provenance.machine(),
        "git": provenance.git_state() or {},
    }
    changes = []
    for part, values in now.items():
        then = last[part] or {}
        for name in then or values:
            if then.get(name) != values.get(name):
                changes.append(f"{name} {_text(then.get(name))}, now {_text(values.get(name))}")
    return changes


def _text(value: Any) -> str:
    return "unknown" if value is None else str(value)
