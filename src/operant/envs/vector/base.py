"""Vectors of environments: several side by side, stepped in one call, with next-step autoreset.

In the row after the last one of an episode, the environment's action is ignored, it is reset, and it answers
with the first observation, reward 0 and both flags False. That is the stream of `operant.types`.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from operant.errors import EnvError, SpecError, UsageError, as_number, suggest, value_error, whole
from operant.spec.spaces import Codec, Spaces

Flat: TypeAlias = dict[str, np.ndarray]


class VectorStep(NamedTuple):
    """What followed one action in each of `N` environments."""

    observation: Flat
    """Flat components, masks included, leaves `[N, ...]`."""
    reward: np.ndarray
    """float32 `[N]`."""
    terminated: np.ndarray
    """bool `[N]`: the environment ended the episode. Where both flags are True, this one counts."""
    truncated: np.ndarray
    """bool `[N]`: the episode was cut, for example by a time limit."""


class AbandonedError(Exception):
    """What takes longer than the end of a run may wait is given up."""


class EpisodeScore(NamedTuple):
    """What reports count where training sees something else: clipped rewards, lives as episodes."""

    score: np.ndarray
    """float32 `[N]`: rewards as the game gave them."""
    over: np.ndarray
    """bool `[N]`: the game ended, or was cut."""


class VectorEnv(abc.ABC):
    """`num_envs` environments side by side. Arrays that it has returned are never written to again."""

    num_envs: int
    spaces: Spaces
    """Of one environment."""
    name: str
    mode: str
    """How it runs: `native-vector` (Gymnasium's own vectorised form), `in-process`, `processes` or `jax`."""
    why: str = ""
    """Why it runs so."""
    max_episode_timesteps: int | None = None
    deadline: float = math.inf
    """Time (`time.perf_counter`) from which no answer is waited for, where that can be ended."""
    restarts: int = 0
    """Workers that died and were replaced."""
    lost: np.ndarray | None = None
    """bool `[N]`: environments that were lost before they answered the last action, which cut their episodes.
    None: none were."""
    game: EpisodeScore | None = None
    """Of the last step, for reports; None: they use its reward and flags."""
    preprocessed: bool = False
    """Whether all of its environments are images preprocessed here, such as games."""
    has_lives: bool = False
    """Whether any of them is a preprocessed game with lives."""
    infos: Mapping[str, np.ndarray] = MappingProxyType({})
    """Values of the `info_keywords`, float64 `[N]` by name: those of episodes that ended with the last
    step, else NaN."""
    _is_open: bool = True
    _is_reset: bool = False

    @property
    def codec(self) -> Codec | None:
        """Converts between values of Gymnasium and components; None: the environments are not Gymnasium's."""
        return None

    @abc.abstractmethod
    def reset(self, seed: int | None = None) -> Flat:
        """Begin an episode everywhere and return the first observations, leaves `[N, ...]`.

        `seed` is the root of the environments' seeds, which all differ; None: their random generators
        continue.
        """

    @abc.abstractmethod
    def step(self, actions: Mapping[str, np.ndarray]) -> VectorStep:
        """Take one action everywhere (leaves `[N, ...]`, as stored), or reset where the last row ended one.

        Raises:
            EnvError: an environment raised, or broke its contract; names which one.
            UsageError: before the first `reset`, or after `close`.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close the environments; a second call does nothing."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.num_envs} x {self.name}: {self.mode}>"

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_reset(self, seed: int | None) -> None:
        if not self._is_open:
            raise self._unusable()
        whole("seed", seed, 0, optional=True)

    def _raise_first(self, fault: tuple[int, str] | None) -> None:
        """Raise a fault, if there is one: an environment's index and what is wrong with its answer."""
        if fault is not None:
            raise EnvError(f"Environment {fault[0]} of {self.name!r}: {fault[1]}")

    def _unusable(self) -> UsageError:
        if not self._is_open:
            return UsageError(f"The vector of {self.name!r} is closed. Create another one.")
        return UsageError(
            f"step was called on a vector of {self.name!r} that was not reset. Call reset first."
        )


def refuse_different(spaces: Sequence[Spaces], names: Sequence[str]) -> None:
    """Refuse (UsageError) environments of other spaces than the first; the names are for the message."""
    for name, each in zip(names, spaces, strict=True):
        if each != spaces[0]:
            raise UsageError(
                f"All environments must have the same states and actions. {name} has {each.to_spec()}; "
                f"{names[0]} has {spaces[0].to_spec()}."
            )


def seed_of(seed: int, index: int) -> int:
    """Return the seed of one environment: a function of (seed, index) alone, below 2^31."""
    return int(np.random.SeedSequence((int(seed), index)).generate_state(1)[0] >> 1)


def keywords_of(keywords: Any) -> tuple[str, ...]:
    """Return the names in `info` to record; SpecError: they are not a list of different names."""
    names = tuple(keywords) if isinstance(keywords, list | tuple) else ()
    sound = all(isinstance(name, str) and name for name in names) and len(set(names)) == len(names)
    if not sound or not isinstance(keywords, list | tuple):
        raise value_error("info_keywords", "a list of different names in info", keywords)
    return names


def info_refusal(keywords: Sequence[str], name: str) -> SpecError:
    """Return the error for a JAX-native environment, whose steps return no `info`."""
    return SpecError(
        f"info_keywords is for environments whose step returns an info; {name!r} is JAX-native and has none. "
        f"Received: info_keywords={tuple(keywords)!r}. Leave it out."
    )


class InfoCollector:
    """Collects what `n` environments tell in `info`, under `keywords`, at the end of their episodes."""

    def __init__(self, keywords: Sequence[str], n: int) -> None:
        self.keywords = tuple(keywords)
        self._known = np.zeros(n, np.bool_)  # whose first episode has shown that the names are right

    def blank(self) -> dict[str, np.ndarray]:
        """Return the values of a step that ends no episode: NaN, float64 `[N]` by name."""
        return {key: np.full(len(self._known), math.nan) for key in self.keywords}

    def note(self, into: dict[str, np.ndarray], i: int, info: Mapping[str, Any]) -> None:
        """Record what one environment tells at an episode's end; values that it does not tell stay NaN."""
        for key in self.keywords:
            if key in info:
                into[key][i] = self._number(key, info[key])
            elif not self._known[i]:
                description = f"its keys are {', '.join(map(repr, info))}" if info else "it is empty"
                remedy = suggest(key, info, listed=False).strip() or "Correct info_keywords, or leave it out."
                raise EnvError(f"An episode ended without info[{key!r}]: {description}. {remedy}")
        self._known[i] = True

    @staticmethod
    def _number(key: str, value: Any) -> float:
        number = as_number(value)
        if number is None:
            raise EnvError(
                f"info[{key!r}] must be a number to be recorded. Received: {value!r} "
                f"({type(value).__name__}). Leave it out of info_keywords."
            )
        return number
