"""Minari datasets as traces, and traces as Minari datasets: local ones (`MINARI_DATASETS_PATH`) only.

What Minari cannot hold is lost: stacks of frames are plain images there, and an episode whose last
observation is not known repeats the one before it. Images are stored as they are: Minari's own default is
JPEG, which changes them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from operant.errors import SpaceError, SpecError, UsageError
from operant.execution import traces
from operant.execution.traces import Flat, Trace
from operant.spec.spaces import Space, Spaces, beside, from_gymnasium, mask_name, to_gymnasium

PREFIX = "minari:"
"""Precedes a dataset's name where a folder of traces could be given instead."""


def _minari() -> Any:
    try:
        import minari
    except ImportError as error:
        raise UsageError(f"Minari datasets need Minari: pip install 'operant[minari]'. ({error})") from None
    return minari


def _expect_spaces(name: str) -> None:
    """Refuse a dataset without spaces: Minari would make the environment its file names, and so run code."""
    from minari.dataset.minari_storage import MinariStorage
    from minari.storage import get_dataset_path

    about = MinariStorage.read_raw_metadata(get_dataset_path(name) / "data")
    if not about.keys() >= {"observation_space", "action_space"}:
        raise ValueError("Its metadata.json lacks observation_space or action_space.")


class MinariEpisodes:
    """The episodes of a Minari dataset, each as a trace that must fit the spaces; read on demand.

    Raises:
        SpecError: there is no such dataset.
        UsageError: Minari is not installed.
    """

    def __init__(self, name: str, spaces: Spaces) -> None:
        minari = _minari()
        try:
            _expect_spaces(name)
            self._dataset = minari.load_dataset(name)
        except (FileNotFoundError, ValueError, TypeError) as error:
            known = ", ".join(sorted(minari.list_local_datasets())) or "none"
            raise SpecError(
                f"There is no Minari dataset {name!r} here ({error}) Local datasets: {known}. Get it with "
                "`minari download`, or write it with operant.execution.datasets.from_traces."
            ) from None
        self._name, self._spaces = name, spaces
        as_declared = any(leaf.channels_first for leaf in spaces.states.components.values())
        self._recorded, self._codec = from_gymnasium(
            self._dataset.observation_space,
            self._dataset.action_space,
            channels_first=False if as_declared else None,
        )
        self._indices = [int(i) for i in self._dataset.episode_indices]

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Trace:
        """Read an episode.

        Raises:
            SpecError: it does not fit the spaces; the message names it.
        """
        number = self._indices[index]
        (episode,) = self._dataset.iterate_episodes([number])
        try:
            return self._read(episode)
        except SpaceError as error:
            raise SpecError(
                f"Episode {number} of the Minari dataset {self._name!r} does not fit the agent. {error}"
            ) from None

    def _read(self, episode: Any) -> Trace:
        steps = len(episode.rewards)
        if not steps:
            raise SpaceError("It has no steps.")
        observation = self._codec.observation.encode(episode.observations, True)
        action = self._recorded.actions.unflatten(self._codec.action.encode(episode.actions, True))
        count = len(next(iter(observation.values())))
        if count not in (steps, steps + 1):
            raise SpaceError(f"It has {steps} rewards and {count} observations, which must be one more.")
        terminal = np.zeros(steps, np.int64)
        terminal[-1] = 1 if episode.terminations[-1] else 2
        states = self._states({name: x[:steps] for name, x in observation.items()})
        last = self._states({name: x[steps:] for name, x in observation.items()}) if count > steps else None
        return Trace.read(self._spaces, states, action, terminal, episode.rewards, last)

    def _states(self, observation: Flat) -> Any:
        """Return an observation as a program gives it, with the masks that are declared."""
        masks = set(map(mask_name, self._recorded.masks))
        states = self._recorded.states.unflatten({k: x for k, x in observation.items() if k not in masks})
        flags = {action: observation.get(mask_name(action)) for action in self._spaces.masks}
        return beside(states, {action: mask for action, mask in flags.items() if mask is not None})


def write(name: str, spaces: Spaces, recorded: Iterable[Trace], **about: Any) -> Path:
    """Write the traces of an agent with these spaces to a new Minari dataset; return its folder.

    Args:
        name: of the dataset: `group/name-v0` or `name-v0`.
        spaces: of the agent that made the traces.
        recorded: the traces.
        about: what Minari notes beside them: `algorithm_name`, `author`, `description`, `code_permalink` ...

    Raises:
        SpecError: the name is not legal or taken, or there are no episodes.
        UsageError: Minari is not installed.
    """
    minari = _minari()
    try:
        minari.dataset.minari_dataset.parse_dataset_id(name)
    except (ValueError, TypeError) as error:  # of names without a version Minari wants to make a number
        raise SpecError(f"name must be such as 'group/name-v0'. Received: name={name!r} ({error}).") from None
    if name in minari.list_local_datasets():
        raise SpecError(f"There is a Minari dataset {name!r} already. Give another name or version.")
    masks = {action: spaces.mask_leaf(action) for action in spaces.masks}
    observation_space = to_gymnasium(Space(beside(spaces.states.tree, masks), "state"))
    action_space = to_gymnasium(spaces.actions)
    _, codec = from_gymnasium(observation_space, action_space, channels_first=False)
    buffers = [
        minari.data_collector.EpisodeBuffer(
            id=i,
            observations=codec.observation.decode(observation, True),
            actions=codec.action.decode(action, True),
            rewards=reward.tolist(),
            terminations=(terminal == 1).tolist(),
            truncations=(terminal == 2).tolist(),
        )
        for i, (observation, action, reward, terminal) in enumerate(_episodes(recorded))
    ]
    if not buffers:
        raise SpecError("A Minari dataset must have at least one episode. Received: no traces.")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # about all that may stay unsaid: author, environment ...
        dataset = minari.create_dataset_from_buffers(
            name,
            buffers,
            observation_space=observation_space,
            action_space=action_space,
            data_format="hdf5",
            jpeg_encoding=False,
            **about,
        )
    return Path(dataset.storage.data_path).parent


def _episodes(recorded: Iterable[Trace]) -> Iterator[tuple[Flat, Flat, np.ndarray, np.ndarray]]:
    """Yield each episode's observations `[T + 1, ...]`, actions, rewards and terminals `[T, ...]`."""
    for trace in recorded:
        for steps, last in trace.episodes():
            observation = {
                name: np.concatenate([x[steps], (x[steps][-1] if last is None else last[name])[None]])
                for name, x in trace.observation.items()
            }
            action = {name: x[steps] for name, x in trace.action.items()}
            yield observation, action, trace.reward[steps], trace.terminal[steps]


def from_traces(
    directory: str | Path, name: str, spaces: Spaces, extension: str = ".npz", **about: Any
) -> Path:
    """Write the trace files of a folder, as `recorder` made them, to a new Minari dataset.

    Args:
        directory: the folder.
        name: of the dataset, such as `cartpole/ppo-v0`.
        spaces: `agent.spaces` of the agent that made them.
        extension: how the files' names end.
        about: as in `write`.

    Returns:
        The dataset's folder.

    Raises:
        SpecError: there are no traces, they do not fit, or the name is not legal or taken.
        UsageError: Minari is not installed.
    """
    files = traces.files(directory, extension)
    return write(name, spaces, (traces.read(path, spaces) for path in files), **about)


def to_traces(name: str, directory: str | Path, spaces: Spaces) -> list[Path]:
    """Write a Minari dataset's episodes to trace files, one each, beside existing ones; return these.

    `spaces` are those of the agent that is to learn from them.

    Raises:
        SpecError: there is no such dataset, or it does not fit.
        UsageError: Minari is not installed.
    """
    folder, written, number = Path(directory), [], 0
    episodes = MinariEpisodes(name, spaces)
    for i in range(len(episodes)):
        number = traces.add(folder, number, spaces, episodes[i])
        written.append(folder / traces.file_name(number))
        number += 1
    return written
