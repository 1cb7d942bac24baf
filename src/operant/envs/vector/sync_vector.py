"""Environments stepped one after the other in this process; worker processes run the same loop."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from numpy import vdot

from operant.envs.env_spec import EnvSpec
from operant.envs.gymnasium import adapter as adapter
from operant.envs.gymnasium.preprocessing import within
from operant.envs.validated_env import ValidatedEnv, smaller_limit
from operant.envs.validation_errors import (
    ObservationValidator,
    finite_error,
    raise_of_handler,
)
from operant.envs.vector.base import Flat, InfoCollector, VectorEnv, VectorStep, refuse_different, seed_of
from operant.errors import EnvError, SpaceError, UsageError, told
from operant.spec.spaces import Codec

_STATISTICS = {"obs_rms": "normalize_observations", "return_rms": "normalize_rewards"}
"""Attributes by which wrappers that normalise are known, and the options of agents that do the same."""


class EnvironmentSubEnv:
    """An `Environment`, checked."""

    codec: Codec | None = None

    def __init__(self, env: ValidatedEnv) -> None:
        if env.num_actors() > 1:
            raise UsageError(
                f"{env.name!r} has {env.num_actors()} actors. Classes of algorithms, `operant train` and "
                "vectors take environments "
                "of one actor. Use Runner(agent=..., environment=...): its agent acts for all of them."
            )
        self.env = env
        self.spaces = env.spaces
        self.limit = env.max_episode_timesteps()
        self.lost = False
        self._connection = getattr(env.environment, "connection", None)

    @property
    def info(self) -> Mapping[str, Any]:
        """What it says of the episode that ended."""
        return self.env.episode_info()

    @property
    def _restarts(self) -> int:
        return getattr(self._connection, "restarts", 0)

    def native_actions(self, actions: Mapping[str, np.ndarray], n: int) -> Sequence[Any]:
        """Return what `N` environments take: the user's structure, floats within their bounds."""
        space = self.spaces.actions
        clipped = space.clip(actions)
        # Copies: environments may write to them.
        return [space.unflatten({name: value[i].copy() for name, value in clipped.items()}) for i in range(n)]

    def reset(self, seed: int | None) -> Flat:
        """Begin an episode."""
        self.env.reset(seed=seed)
        return self.env.flat

    def step(self, action: Any) -> tuple[Flat, float, bool, bool]:
        """Take an action."""
        before = self._restarts
        _, terminal, reward = self.env.execute(action)
        self.lost = self._restarts != before
        return self.env.flat, reward, terminal == 1, terminal == 2

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


SubEnv: TypeAlias = EnvironmentSubEnv | adapter.GymnasiumSubEnv
"""One environment of a loop, answering in flat components."""


def make_sub_env(source: EnvSpec) -> SubEnv:
    """Make one environment of a loop."""
    if source.reward_shaping is None:
        environment = source.make()
        if adapter.is_single(environment):
            if not source.is_object:
                _warn_of_statistics(environment, source.name)
            own = adapter.own_limit(environment)
            limit = smaller_limit(source.max_episode_timesteps, own, source.name)
            return adapter.GymnasiumSubEnv(environment, limit)
        return EnvironmentSubEnv(source.create(environment))
    return EnvironmentSubEnv(source.create())


def _inside(env: SubEnv) -> Any:
    """Return the object that the user made, without wrappers."""
    inner = env.env.environment if isinstance(env, EnvironmentSubEnv) else env.env
    inner = inner.gymnasium if isinstance(inner, adapter.GymnasiumEnv) else inner
    return inner.unwrapped if isinstance(inner, gymnasium.Env) else inner


def refuse_repeated(name: str, *vectors: Any) -> None:
    """Refuse (UsageError) an object that is twice among the environments of vectors that step by themselves,
    as in one that trains and one that evaluates.
    """
    inside = [id(_inside(env)) for vector in vectors for env in getattr(vector, "envs", ())]
    if len(set(inside)) < len(inside):
        raise UsageError(f"{name!r} makes the same object each time. Let it make a new environment.")


def _warn_of_statistics(env: gymnasium.Env, name: str) -> None:
    """Warn of wrappers that normalise by statistics of their own."""
    while isinstance(env, gymnasium.Wrapper):
        for moments, option in _STATISTICS.items():
            if moments in vars(env):
                warnings.warn(
                    f"{type(env).__name__} around {name!r} keeps running statistics, which are lost where it "
                    f"is made anew: for evaluations, play and --resume. Leave it out and give {option}=True "
                    f"(--{option.replace('_', '-')}): those are saved with the agent.",
                    RuntimeWarning,
                    stacklevel=3,
                )
        env = env.env


class SyncVectorEnv(VectorEnv):
    """Environments stepped one after the other; for the arguments see `vector.create`.

    `offset` is the number of the first environment: seeds and messages count from it.
    """

    mode = "in-process"

    def __init__(
        self,
        envs: Sequence[SubEnv],
        name: str,
        offset: int = 0,
        info_keywords: Sequence[str] = (),
    ) -> None:
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        self.spaces = self.envs[0].spaces
        self.name = name
        names = [f"Environment {i}" for i in range(self.num_envs)]
        refuse_repeated(name, self)
        refuse_different([env.spaces for env in self.envs], names)
        limits = [env.limit for env in self.envs]
        finite_limits = [limit for limit in limits if limit is not None]
        self.max_episode_timesteps = max(finite_limits) if len(finite_limits) == len(limits) else None
        self._limits = [inf if limit is None else limit for limit in limits]
        self._offset = offset
        self._validator = ObservationValidator(self.spaces)
        self._empty = {
            key: ((self.num_envs, *leaf.shape), leaf.storage)
            for key, leaf in self.spaces.observation_components.items()
        }
        self._steps = [0] * self.num_envs
        self._ended = [False] * self.num_envs
        games = [within(getattr(env, "env", None)) for env in self.envs]
        self.preprocessed = all(game is not None and game.settings.preprocess for game in games)
        self.has_lives = any(game.has_lives for game in games if game is not None)
        self._infos = InfoCollector(info_keywords, self.num_envs)

    @property
    def codec(self) -> Codec | None:
        """That of the first environment."""
        return self.envs[0].codec

    def reset(self, seed: int | None = None) -> Flat:
        """Begin an episode everywhere."""
        self._check_reset(seed)
        observation = {key: np.empty(*of) for key, of in self._empty.items()}
        for i, env in enumerate(self.envs):
            try:
                flat = env.reset(None if seed is None else seed_of(seed, self._offset + i))
                for key, into in observation.items():
                    into[i] = flat[key]
            except (Exception, SystemExit) as error:
                raise self._error(i, error, "reset") from error
        self._steps, self._ended = [0] * self.num_envs, [False] * self.num_envs
        self._is_reset, self.lost = True, None
        self._raise_first(self._validator.error(observation))
        return observation

    def restart(self, seed: int | None, due: Sequence[int]) -> Flat:
        """Begin new episodes: in the environments in `due` now, in the others with the next step."""
        observation = self.reset(seed)
        self._ended = [i not in due for i in range(self.num_envs)]
        return observation

    def step(self, actions: Mapping[str, np.ndarray]) -> VectorStep:
        """Take one action everywhere."""
        if not (self._is_open and self._is_reset):
            raise self._unusable()
        n, ended, steps, limits = self.num_envs, self._ended, self._steps, self._limits
        observation = {key: np.empty(*of) for key, of in self._empty.items()}
        reward, terminated, truncated = np.zeros(n, np.float32), np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        components = tuple(observation.items())
        chosen = self.envs[0].native_actions(actions, n)
        infos, self.lost = self._infos.blank(), None
        for i, env in enumerate(self.envs):
            begins = ended[i]
            try:
                if begins:
                    flat = env.reset(None)
                    steps[i], ended[i] = 0, False
                else:
                    steps[i] += 1  # before the call: messages of its errors name this step
                    flat, reward[i], over, cut = env.step(chosen[i])
                    if env.lost:
                        self.lost = np.zeros(n, np.bool_) if self.lost is None else self.lost
                        self.lost[i] = True
                    if over or cut or steps[i] >= limits[i]:
                        ended[i], terminated[i], truncated[i] = True, over, not over
                        if infos:
                            self._infos.note(infos, i, env.info)
                for key, into in components:
                    into[i] = flat[key]
            except (Exception, SystemExit) as error:  # some simulators raise SystemExit when they fail
                raise self._error(i, error, "reset" if begins else "step") from error
        self.infos = infos
        if not isfinite(vdot(reward, reward)):
            self._raise_first(finite_error("reward", reward))
        self._raise_first(self._validator.error(observation, (terminated, truncated)))
        return VectorStep(observation, reward, terminated, truncated)

    def close(self) -> None:
        """Close the environments."""
        if self._is_open:
            self._is_open = False
            for env in self.envs:
                env.close()

    def _raise_first(self, fault: tuple[int, str] | None) -> None:
        if fault is not None:
            raise self._error(fault[0], EnvError(fault[1]), "step")

    def _error(self, i: int, error: Exception | SystemExit, call: str) -> EnvError:
        raise_of_handler(error)
        who = f"Environment {self._offset + i} of {self.name!r}"
        if isinstance(error, SpaceError | EnvError):
            step = self._steps[i] if call == "step" else 0
            when = f" (step {step} of its episode)" if step else ""
            return EnvError(f"{who}{when}: {error}")
        return EnvError(f"{who} {told(error, f'in {call}')}")
