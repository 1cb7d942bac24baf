"""Traces: recorded episodes, in memory and as files; and the recorder that writes them while an agent acts.

A file ``trace-000000099.npz`` (the number is that of its last episode) holds one or several whole episodes
one after the other, `R` steps together, as plain arrays:

| array | shape | |
|---|---|---|
| `states`, or `states/<name>` for each of several | `[R, ...]` | what the agent acted on |
| `actions`, or `actions/<name>` | `[R, ...]` | what it did |
| `auxiliaries/<action>/mask` | `[R, ..., num_values]` | which actions were allowed, where they are masked |
| `reward` | `[R]` float32 | what it got |
| `terminal` | `[R]` int64 | 0; 1 where an episode terminated, 2 where it was truncated |
| `last_states`, or `last_states/<name>` | `[E, ...]` | after the last action of each episode, if known |
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from operant.checkpoint import durable
from operant.errors import SpaceError, SpecError, value_error
from operant.spec import FolderConfig, option
from operant.spec.spaces import Space, Spaces, beside, mask_name, nested

Flat = dict[str, np.ndarray]
Step = tuple[Flat, Flat, float, int]
"""Observation, action, reward and terminal."""


class Trace(NamedTuple):
    """Steps of one or several episodes, one after the other."""

    observation: Flat
    """`[R, ...]`, masks among them."""
    action: Flat
    """`[R, ...]`."""
    reward: np.ndarray
    """`[R]`, float32."""
    terminal: np.ndarray
    """`[R]`: 0, 1 or 2; never 0 at the last step."""
    last: Flat | None = None
    """`[E, ...]`: observations after the last action of each episode, if they are known."""

    @classmethod
    def read(
        cls, spaces: Spaces, states: Any, actions: Any, terminal: Any, reward: Any, last: Any = None
    ) -> Trace:
        """Check what a program or a file gives, and return it as a trace.

        Args:
            spaces: what it must fit.
            states: in the structure of the specification with a leading axis `[R]`, or a list of `R` states.
            actions: likewise.
            terminal: `[R]`: False or 0, True or 1, 2.
            reward: `[R]`.
            last: states `[E, ...]` after the last action of each episode, or a list of them.

        Raises:
            SpaceError: something does not fit the specification, or the lengths differ.
        """
        terminals = np.asarray(terminal)
        if terminals.ndim != 1 or not len(terminals) or not np.isin(terminals, (0, 1, 2)).all():
            raise value_error("terminal", "a list of 0, 1 and 2 with at least one entry", terminal)
        n = len(terminals)
        rewards = np.asarray(reward, np.float32)
        if rewards.shape != (n,) or not np.isfinite(rewards).all():
            raise value_error("reward", f"a list of {n} finite numbers, as many as terminal", reward)
        terminals = terminals.astype(np.int64)
        if terminals[-1] == 0:  # what follows is not known: as if truncated here
            terminals[-1] = 2
        observation = _batch(spaces.observe, states, n)
        action = _batch(spaces.actions.check, actions, n)
        for name in spaces.masks:
            allowed = np.take_along_axis(
                observation[mask_name(name)], np.asarray(action[name], np.int64)[..., None], -1
            )
            if not allowed.all():
                step = int(np.argwhere(~allowed)[0][0])
                raise SpaceError(f"The action {name!r} at step {step} is forbidden by its mask.")
        ends = int((terminals > 0).sum())
        final = None if last is None else _batch(functools.partial(spaces.observe, over=True), last, ends)
        return cls(observation, action, rewards, terminals, final)

    def episodes(self) -> Iterator[tuple[slice, Flat | None]]:
        """Yield the steps of each episode, and the observation after its last action if it is known."""
        start = 0
        for i, end in enumerate(np.flatnonzero(self.terminal)):
            last = None if self.last is None else {name: x[i] for name, x in self.last.items()}
            yield slice(start, int(end) + 1), last
            start = int(end) + 1


def join(traces: Sequence[Trace]) -> Trace:
    """Concatenate traces; last observations are kept only if all of them have them."""

    def joined(flats: list[Flat]) -> Flat:
        return {name: np.concatenate([flat[name] for flat in flats]) for name in flats[0]}

    lasts = [t.last for t in traces if t.last is not None]
    return Trace(
        joined([t.observation for t in traces]),
        joined([t.action for t in traces]),
        np.concatenate([t.reward for t in traces]),
        np.concatenate([t.terminal for t in traces]),
        joined(lasts) if len(lasts) == len(traces) else None,
    )


def _batch(check: Any, value: Any, n: int) -> Flat:
    if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        if len(value) != n:
            raise value_error("states and actions", f"as many as terminal ({n})", len(value))
        each = [check(one, ()) for one in value]
        return {name: np.stack([flat[name] for flat in each]) for name in each[0]}
    checked: Flat = check(value, (n,))
    return checked


# Files


def add(folder: Path, number: int, spaces: Spaces, trace: Trace) -> int:
    """Write a file, whole or not at all, under the first free number from `number` on; return that number."""
    arrays: Flat = {"reward": trace.reward, "terminal": trace.terminal}
    arrays |= _named(spaces.states, "states", trace.observation)
    arrays |= _named(spaces.actions, "actions", trace.action)
    arrays |= {f"auxiliaries/{name}/mask": trace.observation[mask_name(name)] for name in spaces.masks}
    if trace.last is not None:
        arrays |= _named(spaces.states, "last_states", trace.last)
    folder.mkdir(parents=True, exist_ok=True)
    with durable.locked(folder):
        while (folder / file_name(number)).exists():
            number += 1
        with durable.replaced(folder / file_name(number)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return number


def read(path: Path, spaces: Spaces) -> Trace:
    """Read a file; SpecError: it is no trace, or its arrays do not fit the agent; names the file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        raise SpecError(f"The trace {str(path)!r} cannot be read: {error}") from None
    try:
        states = _nested(spaces.states, "states", arrays)
        masks = {name: arrays.get(f"auxiliaries/{name}/mask") for name in spaces.masks}
        states = beside(states, {name: mask for name, mask in masks.items() if mask is not None})
        has_last = any(name.split("/")[0] == "last_states" for name in arrays)
        last = _nested(spaces.states, "last_states", arrays) if has_last else None
        actions = _nested(spaces.actions, "actions", arrays)
        return Trace.read(spaces, states, actions, arrays["terminal"], arrays["reward"], last)
    except KeyError as error:
        known = ", ".join(sorted(arrays))
        raise SpecError(f"The trace {str(path)!r} has no array {error}. It has: {known}.") from None
    except Exception as error:  # errors of spaces are among them
        raise SpecError(f"The trace {str(path)!r} does not fit the agent. {error}") from None


def files(directory: str | Path, extension: str = ".npz") -> list[Path]:
    """Return the traces in a folder, in order; SpecError: there are none."""
    paths = sorted(p for p in Path(directory).glob(f"*{extension}") if not p.name.startswith("."))
    if not paths:
        raise SpecError(
            f"There are no traces (*{extension}) in {str(directory)!r}. Record some with recorder=..."
        )
    return paths


def _named(space: Space, group: str, flat: Flat) -> Flat:
    """Return components under a file's names, with numbers as the user counts them (offsets added)."""
    return {
        (group if space.single else f"{group}/{name}"): flat[name] + leaf.offset
        if leaf.has_offset
        else flat[name]
        for name, leaf in space.components.items()
    }


def _nested(space: Space, group: str, arrays: Mapping[str, np.ndarray]) -> Any:
    if space.single:
        return arrays[group]
    return nested({name: arrays[f"{group}/{name}"] for name in space.components})


# Recording


class RecorderConfig(FolderConfig):
    """Options of `recorder`."""

    label = "recorder"
    frequency: int = option(1, "Episodes per file", unit="episodes", low=1)
    start: int = option(0, "Episodes to skip at the start", unit="episodes", low=0)
    max_traces: int | None = option(
        None, "Number of newest files to keep (None: all)", low=1, aliases=("max-traces",)
    )


class Recorder:
    """Writes what actors do to trace files; if one other than the last fails, its episodes are dropped.

    Numbers continue from `episodes` that ended already, and from the folder's files. No file is replaced,
    whoever else writes there: if a name is taken, the next one is used.
    """

    def __init__(self, config: RecorderConfig, spaces: Spaces, actors: int, episodes: int = 0) -> None:
        self.config = config
        self._folder = Path(config.directory).absolute()
        self._spaces = spaces
        self._running: list[list[Step]] = [[] for _ in range(actors)]
        self._finished: list[Trace] = []
        self._skip = config.start
        self._episodes = max([episodes, *(number + 1 for number in _numbers(self._folder))])

    def observe(self, actor: int, step: Step, last: Flat | None) -> None:
        """Note an actor's step, and at an episode's end the observation after its last action, if known."""
        self._running[actor].append(step)
        *_, terminal = step
        if not terminal:
            return
        steps, self._running[actor] = self._running[actor], []
        self._episodes += 1
        if self._skip:
            self._skip -= 1
            return
        self._finished.append(_trace(steps, last))
        if len(self._finished) == self.config.frequency:
            with durable.outliving(
                f"No trace of {len(self._finished)} episode(s) in {self.config.directory!r}"
            ):
                self._write()
            self._finished = []  # in any case: memory must not fill up as well

    def forget(self, actors: Sequence[int]) -> None:
        """Drop the unfinished episodes of some actors."""
        for actor in actors:
            self._running[actor] = []

    def _write(self) -> None:
        self._episodes = add(self._folder, self._episodes - 1, self._spaces, join(self._finished)) + 1
        if self.config.max_traces is not None:
            for number in sorted(_numbers(self._folder))[: -self.config.max_traces]:
                (self._folder / file_name(number)).unlink(missing_ok=True)  # another recorder may be faster

    def close(self) -> None:
        """Write finished episodes that do not fill a file."""
        if self._finished:
            self._write()


def file_name(number: int) -> str:
    """Return the name of a trace file."""
    return f"trace-{number:09d}.npz"


def _numbers(folder: Path) -> list[int]:
    names = (path.name for path in folder.glob("trace-*.npz"))
    return [int(match[1]) for name in names if (match := re.fullmatch(r"trace-(\d+)\.npz", name))]


def _trace(steps: list[Step], last: Flat | None) -> Trace:
    observations, actions, rewards, terminals = zip(*steps, strict=True)
    return Trace(
        {name: np.stack([o[name] for o in observations]) for name in observations[0]},
        {name: np.stack([a[name] for a in actions]) for name in actions[0]},
        np.asarray(rewards, np.float32),
        np.asarray(terminals, np.int64),
        # Copies: environments may write to what they returned.
        None if last is None else {name: np.array(x)[None] for name, x in last.items()},
    )
