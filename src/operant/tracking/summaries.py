"""Summaries of an agent in the user's program, as event files for TensorBoard.

| label | tags | step |
|---|---|---|
| `reward` (`rewards`) | `reward` every `frequency` timesteps, `episode-return`, `episode-length` | steps |
| `loss` (`losses`) | the metrics `loss/...` | updates |
| `entropy` | `policy/entropy` | updates |
| `kl-divergence` | `update/kl`, where an algorithm measures it | updates |
| `update-norm` | `update/grad_norm` | updates |
| `parameters` | learning rate, exploration, ...: `update/lr`, `explore/...`, `policy/temperature` | updates |
| `action-value` | `value/...` | updates |
| `distribution` | `policy/std` | updates |
| `memory` | `memory/...` | updates |
| `variables` | `variables/<model>/<name>`: mean; and a histogram | updates |
| `updates` | `updates/<model>/<name>-mean`, `-variance`: of the changes that the update made | updates |
| `graph` | the networks' layers, as text | 0 |

`docs/metrics.md` says what the metrics mean.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
import wave
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from operant.checkpoint import durable
from operant.errors import SpecError, suggest, value_error
from operant.spec import FolderConfig, option
from operant.tracking.tensorboard import PREFIX, EventFile

METRIC_LABELS: dict[str, tuple[str, ...]] = {
    "loss": ("loss/",),
    "entropy": ("policy/entropy",),
    "kl-divergence": ("update/kl",),
    "update-norm": ("update/grad_norm",),
    "parameters": ("update/lr", "explore/", "policy/temperature"),
    "action-value": ("value/",),
    "distribution": ("policy/std",),
    "memory": ("memory/",),
}
"""Labels, and how the names of the metrics that belong to them begin."""
LABELS = (*METRIC_LABELS, "reward", "variables", "updates", "graph")
ALIASES = {"losses": "loss", "rewards": "reward"}
TYPES = ("scalar", "histogram", "image", "audio", "text")
MARKER = ".operant"
"""File in each agent's folder: holds the name that the folder was given, and is locked as long as the
agent writes there."""
_SIZES = np.geomspace(1e-12, 1e20, 774)
EDGES = np.concatenate([-_SIZES[::-1], [0.0], _SIZES])
"""Edges of histograms' bins, as TensorFlow has them: numbers of all sizes."""


class SummarizerConfig(FolderConfig):
    """Options of `summarizer`."""

    label = "summarizer"
    labels: Any = option("all", "'all', or a list of labels", aliases=("summaries",))
    frequency: int = option(100, "Timesteps between recorded values of single steps", unit="timesteps", low=1)
    custom: dict[str, Any] | None = option(
        None, "Summaries of the program's own: name -> dict(type='image', max_outputs=3)"
    )
    filename: str = option(
        "summary-%Y%m%d-%H%M%S",
        "Name of each agent's folder (time.strftime); a number is added if it is taken",
    )
    max_summaries: int = option(7, "Number of the newest folders summary-* of agents to keep", low=1)
    flush: int = option(10, "Seconds after which values are written to disk", unit="seconds", low=1)

    def check(self) -> Iterator[str]:
        """Check labels and custom summaries."""
        yield from super().check()
        labels = () if self.labels == "all" else self.labels
        if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
            yield (
                f"labels must be 'all' or a list of labels ({', '.join(LABELS)}). Received: "
                f"labels={self.labels!r}."
            )
            return
        for label in labels:
            if label not in LABELS and label not in ALIASES:
                yield f"There is no summary label {label!r}.{suggest(label, (*LABELS, *ALIASES))}"
        for name, spec in (self.custom or {}).items():
            if not isinstance(spec, Mapping) or spec.get("type", "scalar") not in TYPES:
                yield (
                    f"The custom summary {name!r} must be a dict with type {', '.join(TYPES)}. Received: "
                    f"{spec!r}."
                )

    @property
    def chosen(self) -> frozenset[str]:
        """The labels asked for."""
        if self.labels == "all":
            return frozenset(LABELS)
        return frozenset(ALIASES.get(label, label) for label in self.labels)


class Summarizer:
    """Writes event files for an agent with so many actors."""

    def __init__(self, config: SummarizerConfig, actors: int) -> None:
        self.config = config
        self._labels = config.chosen
        root = Path(config.directory).absolute()
        self.folder = _new_folder(root / time.strftime(config.filename))
        self._release = weakref.finalize(self, _claim(self.folder))
        self._file = EventFile(self.folder, seconds=config.flush)
        folders = sorted((p for p in root.glob("summary-*") if _is_of_agent(p)), key=_order)
        for folder in folders[: -config.max_summaries]:
            if folder != self.folder:
                _remove(folder)
        self._steps = self._episodes = 0
        self._returns, self._lengths = np.zeros(actors), np.zeros(actors, np.int64)
        self._weights: dict[str, np.ndarray] = {}

    @property
    def wants_weights(self) -> bool:
        """Whether updates must bring the networks' variables."""
        return bool(self._labels & {"variables", "updates"})

    def graph(self, text: str) -> None:
        """Write the networks' layers."""
        if "graph" in self._labels:
            self._add("text", "graph", f"```\n{text}\n```", 0)

    def go_on(self, timesteps: int, episodes: int) -> None:
        """Continue counting from so many timesteps and episodes, if more happened than was observed."""
        self._steps, self._episodes = timesteps, episodes

    def observe(self, actor: int, reward: float, terminal: int) -> None:
        """Note the outcome of an action."""
        self._steps += 1
        self._returns[actor] += reward
        self._lengths[actor] += 1
        if "reward" in self._labels:
            if self._steps % self.config.frequency == 0:
                self._add("scalar", "reward", reward, self._steps)
            if terminal:
                self._add("scalar", "episode-return", float(self._returns[actor]), self._episodes + 1)
                self._add("scalar", "episode-length", int(self._lengths[actor]), self._episodes + 1)
        if terminal:
            self._episodes += 1
            self._returns[actor], self._lengths[actor] = 0.0, 0

    def forget(self, actors: Sequence[int]) -> None:
        """Drop the unfinished episodes of some actors."""
        for actor in actors:
            self._returns[actor], self._lengths[actor] = 0.0, 0

    def update(self, number: int, metrics: Mapping[str, float], weights: Mapping[str, np.ndarray]) -> None:
        """Write what update `number` measured; weights (`<model>/<name>`) are there if `wants_weights`."""
        from tensorboardX.summary import scalar

        begins = tuple(begin for label in self._labels for begin in METRIC_LABELS.get(label, ()))
        summaries = [scalar(name, value) for name, value in metrics.items() if name.startswith(begins)]
        for name, x in weights.items():
            if "variables" in self._labels:
                summaries.append(scalar(f"variables/{name}", float(np.mean(x))))
                summaries += _histogram(f"variables/{name}-histogram", x)
            if "updates" in self._labels and name in self._weights:
                change = x - self._weights[name]
                summaries.append(scalar(f"updates/{name}-mean", float(np.mean(change))))
                summaries.append(scalar(f"updates/{name}-variance", float(np.var(change))))
        if summaries:
            self._write(number, *summaries)
        self._weights = dict(weights)

    def custom(self, name: str, value: Any, step: int | None) -> None:
        """Write a summary of the program's own.

        Args:
            name: one of `custom`.
            value: a number; an array of numbers (histogram); an image `[height, width, channels]` or several
                with a leading axis, uint8 or 0 to 1; a sound `[samples]`, or several
                `[k, samples, channels]`, from -1 to 1; a text.
            step: the step to write it at; None: the timesteps so far.

        Raises:
            SpecError: the name was not declared, or the value does not suit its type.
        """
        known = self.config.custom or {}
        spec = known.get(name)
        if spec is None:
            raise SpecError(
                f"There is no custom summary {name!r}.{suggest(name, known)} Declare it: "
                f"summarizer=dict(..., custom=dict({name}=dict(type='scalar')))."
            )
        at = self._steps if step is None else step
        kind = spec.get("type", "scalar")
        if kind == "text":
            self._add("text", name, str(value), at)
            return
        x = np.asarray(value)
        ranks = {"scalar": (0,), "histogram": range(1, 99), "image": (2, 3, 4), "audio": (1, 3)}[kind]
        if x.dtype.kind not in "biuf" or x.ndim not in ranks:
            raise value_error("value", f"numbers as a summary of type {kind!r} takes them", value)
        if kind == "scalar":
            self._add("scalar", name, float(x), at)
        elif kind == "histogram":
            self._write(at, *_histogram(name, x))
        elif kind == "audio":
            sounds = x.astype(np.float64) if x.ndim == 3 else x.astype(np.float64)[None, :, None]
            for tag, sound in _outputs(name, sounds, spec):
                self._sound(tag, sound, at, int(spec.get("sample_rate", 44100)))
        else:
            images = x[None, :, :, None] if x.ndim == 2 else x if x.ndim == 4 else x[None]
            for tag, image in _outputs(name, images, spec):
                self._add("image", tag, image, at, dataformats="HWC")

    def _add(self, kind: str, name: str, value: Any, step: int, **how: Any) -> None:
        from tensorboardX import summary

        self._write(step, getattr(summary, kind)(name, value, **how))

    def _write(self, step: int, *summaries: Any) -> None:
        with durable.outliving(f"A summary waits for {str(self.folder)!r}"):
            self._file.summaries(step, *summaries)

    def _sound(self, name: str, x: np.ndarray, step: int, rate: int) -> None:
        """Write a sound `[samples, channels]` as 16-bit WAV; tensorboardX would need another package."""
        from tensorboardX.proto.summary_pb2 import Summary

        memory = io.BytesIO()
        with wave.open(memory, "wb") as file:
            file.setnchannels(x.shape[1])
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes((np.clip(x, -1.0, 1.0) * 32767).astype("<i2").tobytes())
        audio = Summary.Audio(
            sample_rate=rate,
            num_channels=x.shape[1],
            length_frames=len(x),
            encoded_audio_string=memory.getvalue(),
            content_type="audio/wav",
        )
        self._write(step, Summary(value=[Summary.Value(tag=name, audio=audio)]))

    def close(self) -> None:
        """Force everything to the disk."""
        try:
            self._file.flush()
        finally:
            self._release()


def _histogram(name: str, x: np.ndarray) -> list[Any]:
    """Return a summary of an array's finite numbers, the only ones that it may hold; nothing without any."""
    from tensorboardX.summary import histogram

    x = x[np.isfinite(x)]
    return [histogram(name, np.clip(x, EDGES[0], EDGES[-1]), EDGES)] if x.size else []


def _outputs(name: str, several: np.ndarray, spec: Mapping[str, Any]) -> list[tuple[str, np.ndarray]]:
    """Return the first `max_outputs` images or sounds of a leading axis, with a tag for each."""
    chosen = several[: spec.get("max_outputs", 3)]
    return [(f"{name}/{i}" if len(several) > 1 else name, x) for i, x in enumerate(chosen)]


# Folders


def _new_folder(path: Path) -> Path:
    """Make a folder that nobody else has; if the name is taken, a number is added to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name, number = path.name, 1
    while True:
        try:
            path.mkdir()
            return path
        except FileExistsError:
            number += 1
            path = path.with_name(f"{name}-{number}")


def _claim(folder: Path) -> Callable[[], None]:
    """Mark a folder as an agent's that writes there; return the function that ends this."""
    marker = folder / MARKER
    marker.touch(exist_ok=False)
    lock = contextlib.ExitStack()
    with contextlib.suppress(OSError):  # a file system without locks, where nobody removes folders
        lock.callback(os.close, durable.hold(marker))
    marker.write_text(folder.name, encoding="utf-8")  # after the lock: until then, it is nobody's
    return lock.close


def _is_of_agent(folder: Path) -> bool:
    """Tell whether an agent made a folder under this name, and nobody else put anything into it."""
    try:
        if folder.is_symlink() or (folder / MARKER).read_text(encoding="utf-8") != folder.name:
            return False
        return all(
            path.is_file() and (path.name == MARKER or path.name.startswith(PREFIX))
            for path in folder.iterdir()
        )
    except (OSError, UnicodeError):  # no folder of an agent, or being removed
        return False


def _order(folder: Path) -> list[Any]:
    parts: list[Any] = re.split("([0-9]+)", folder.name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)]


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it does, or another process removes the folder, too
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, durable.hold(folder / MARKER))
            for path in folder.iterdir():
                if path.name != MARKER:
                    path.unlink()
        (folder / MARKER).unlink()
        folder.rmdir()
