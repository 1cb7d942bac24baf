"""`create`: several environments side by side, in the way that is fastest for them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from operant.envs.catalog import resolve
from operant.envs.check import random_actions
from operant.envs.env_spec import EnvSpec, refuse_same
from operant.envs.gymnasium import adapter as adapter
from operant.envs.gymnasium import atari
from operant.envs.gymnasium.games import Games
from operant.envs.remote.remote_env import RemoteEnv
from operant.envs.validated_env import ValidatedEnv, smaller_limit
from operant.envs.vector import batched
from operant.envs.vector.async_vector import AsyncVectorEnv
from operant.envs.vector.base import VectorEnv, info_refusal, keywords_of
from operant.envs.vector.batched import GymnasiumVector
from operant.envs.vector.sync_vector import SubEnv, SyncVectorEnv, make_sub_env
from operant.errors import SpecError, UsageError, suggest, value_error, whole
from operant.spec.runtime import processors

Mode: TypeAlias = Literal["auto", "native-vector", "in-process", "processes"]
_MODES = get_args(Mode)
PROCESSES_PAY_SECONDS = 3e-4
"""Step time of one environment above which worker processes are faster than a loop: a round trip to a worker
takes tens of microseconds, and every step waits for the slowest worker."""
OWN_VECTOR_PAYS_FROM = 6
"""Number of environments from which Gymnasium's own vectorised form is used. NumPy's calls cost the same for
one environment as for many: CartPole's vectorised form takes 45 µs a step, a loop 7 µs for each environment.
The number is fixed, not measured by each run: the two draw different random numbers, and a seed must give the
same run every time."""
LIVES_HERE = "lives are counted in this process"
_MEASURE_SECONDS, _MEASURE_STEPS = 0.02, 50


class _VectorPlan(NamedTuple):
    """Environments of which a vector is to be made, and how."""

    sources: Sequence[EnvSpec]
    info_keywords: tuple[str, ...]
    counts_lives: bool
    """Whether the lives of preprocessed games are counted."""
    workers: tuple[int | None, float, int]
    """Number of worker processes, seconds that a step may take, replacements."""

    def in_process(self, why: str, made: Sequence[SubEnv] = ()) -> SyncVectorEnv:
        """Make a loop, of which the first environments may be made already."""
        envs = [*made, *map(make_sub_env, self.sources[len(made) :])]
        vector = SyncVectorEnv(envs, self.sources[0].name, info_keywords=self.info_keywords)
        vector.why = why
        return vector

    def in_processes(self, why: str) -> AsyncVectorEnv:
        """Start worker processes."""
        vector = AsyncVectorEnv(self.sources, *self.workers, self.info_keywords)
        vector.why = why
        return vector

    def measured(self, why: str) -> VectorEnv:
        """Time one environment, and choose: a loop is best for fast ones, processes for slow ones."""
        sources = self.sources
        probe = SyncVectorEnv([make_sub_env(sources[0])], sources[0].name)
        if self.counts_lives and probe.has_lives:
            reason = LIVES_HERE
        elif len(sources) == 1 or processors() == 1:
            reason = "there is one environment" if len(sources) == 1 else "there is one processor"
        elif any(source.is_object for source in sources):
            reason = _obstacle(sources)  # not timed: a wrapper of the user's may record the steps
        else:
            seconds = step_seconds(probe)
            measured = f"one step takes {seconds * 1e6:.0f} µs"
            limit = f"{PROCESSES_PAY_SECONDS * 1e6:.0f} µs"
            if seconds < PROCESSES_PAY_SECONDS:
                reason = f"{measured}, and processes pay above {limit}"
            elif obstacle := _obstacle(sources):
                reason = f"{measured}, but {obstacle}"
            else:
                probe.close()
                return self.in_processes(f"{measured}, above the {limit} from which processes pay")
        return self.in_process("; ".join(part for part in (why, reason) if part), probe.envs)


def create(
    environment: Any,
    num_envs: int | None = None,
    mode: Mode = "auto",
    max_episode_timesteps: int | None = None,
    *,
    reward_shaping: Any = None,
    clip_rewards: bool = False,
    episodic_life: bool = False,
    games_only: bool = False,
    num_workers: int | None = None,
    timeout_seconds: float = 60.0,
    max_restarts: int = 3,
    env_kwargs: Mapping[str, Any] | None = None,
    images: Mapping[str, Any] | None = None,
    info_keywords: Sequence[str] = (),
    **kwargs: Any,
) -> VectorEnv:
    """Run several environments side by side.

    Args:
        environment: what `Environment.create` takes; or a list of these, one for each environment; or a
            Gymnasium vector with next-step autoreset; or a vector that this function made, which is returned
            as it is.
        num_envs: how many (default: one, or as many as the list or the vector has).
        mode: `native-vector`: Gymnasium's own vectorised form of an id. `in-process`: a loop in this process.
            `processes`: worker processes with shared memory, which import neither JAX nor Keras. `auto`: the
            first if there is one, else chosen by the measured time of a step; environment objects stay in
            this process, and are not timed. The vector's `mode` tells the choice, its `why` the reason.
        max_episode_timesteps: steps after which episodes are cut; at most the environment's own limit.
        reward_shaping: see `Environment.create`; runs in this process.
        clip_rewards: replace rewards by their sign; `VectorEnv.game` keeps the original ones.
        episodic_life: let an episode end with each lost life of an Atari game; see
            `operant.envs.gymnasium.games.Games`.
        games_only: apply `clip_rewards` and `episodic_life` only to environments that are preprocessed, by
            whomever.
        num_workers: worker processes (default: one per processor, at most one per environment).
        timeout_seconds: how long a worker may take for one step of its environments before it is replaced.
        max_restarts: how often a worker may be replaced without an episode of each of its environments ending
            in between.
        env_kwargs: arguments of the environment itself.
        images: what is done to images: `resize`, `gray`, `frame_stack`, `frame_skip`, or `preprocess` with
            the other fields of `PreprocessingOptions`; with an id, those of preprocessing also as `kwargs`.
        info_keywords: names of numbers in `info` (of an `Environment`: in `episode_info`), such as
            `is_success`, that `VectorEnv.infos` gives for every episode that ends. If an environment's first
            episode ends without one of them, that is an error.
        kwargs: the same as `env_kwargs`, for arguments whose names are not among those above.

    Raises:
        SpecError: the specification is not understood, or is not available in this mode; says why.
        UsageError: the same object is in the list several times, or the spaces differ.
        EnvError: an environment breaks its contract when it is first tried.
    """
    if mode not in _MODES:
        hint = suggest(mode, _MODES, listed=False) if isinstance(mode, str) else ""
        raise value_error("mode", f"one of {', '.join(map(repr, _MODES))}", mode, hint.strip())
    keywords = keywords_of(info_keywords)
    num_workers = whole("num_workers", num_workers, optional=True)
    max_restarts = whole("max_restarts", max_restarts, 0)
    if not timeout_seconds > 0:
        raise value_error("timeout_seconds", "above 0", timeout_seconds)
    options = {
        "max_episode_timesteps": max_episode_timesteps,
        "reward_shaping": reward_shaping,
        "arguments": {**kwargs, **(env_kwargs or {})},
        "images": images,
    }
    if isinstance(environment, VectorEnv):
        requested = {
            **options,
            "mode": mode,
            "clip_rewards": clip_rewards and not games_only,
            "episodic_life": episodic_life and not games_only,
            "info_keywords": keywords,
        }
        return _as_it_is(environment, num_envs, requested)
    if isinstance(environment, list | tuple):
        if not environment:
            raise value_error("environment", "a list of at least one environment", environment)
        sources = [resolve(one, **options) for one in environment]
        expect_count("num_envs", num_envs, len(sources), "the list")
        refuse_same(sources)
        own: VectorEnv | str = "environments were given one by one"
    else:
        source = resolve(environment, **options)
        num_envs = expect_count("num_envs", num_envs, *_fixed_count(source))
        sources, own = [source] * num_envs, _own_vector(source, num_envs, mode, keywords)
    refuse_elsewhere(keywords, (source.target for source in sources))
    plan = _VectorPlan(sources, keywords, episodic_life, (num_workers, timeout_seconds, max_restarts))
    obstacle = "" if reward_shaping is None else "reward_shaping runs in this process"
    lives = episodic_life and any(
        atari.has_lives(each) for each in sources if each.preprocessed or not games_only
    )
    if lives:
        obstacle = f"{own}; {LIVES_HERE}"
    if isinstance(own, VectorEnv):
        vector = own
    elif mode == "native-vector":
        raise SpecError(f"mode='native-vector' is not available: {own}. Leave mode at 'auto'.")
    elif mode == "processes":
        vector = plan.in_processes("it was asked for")
    elif mode == "auto" and not obstacle:
        vector = plan.measured(own)
    else:
        vector = plan.in_process("it was asked for" if mode == "in-process" else obstacle)
    if not (clip_rewards or episodic_life) or (games_only and not vector.preprocessed):
        return vector
    if vector.mode == "processes" and (lives or (episodic_life and vector.has_lives)):
        vector.close()
        raise SpecError(
            "The lives of games in worker processes are not known. Leave mode (of a run: vector, --vector) "
            "at 'auto', or give episodic_life=False (--no-episodic-life)."
        )
    return Games(vector, clip_rewards=clip_rewards, episodic_life=episodic_life)


def refuse_elsewhere(keywords: Sequence[str], environments: Iterable[Any]) -> None:
    """Refuse environments reached by a connection, naming the first: their `info` stays where they are."""
    for env in environments if keywords else ():
        if isinstance(env, ValidatedEnv) and isinstance(env.environment, RemoteEnv):
            raise SpecError(
                "info_keywords is not for remote environments, whose info stays where they are: "
                f"{env.name!r} is one. Received: info_keywords={tuple(keywords)!r}. Leave it out, or give an "
                "id or a class with vector='processes'."
            )


def _as_it_is(vector: VectorEnv, num_envs: int | None, requested: Mapping[str, Any]) -> VectorEnv:
    expect_count("num_envs", num_envs, vector.num_envs, "the vector")
    for name, value in requested.items():
        if value and value != "auto":
            raise UsageError(
                f"{vector.name!r} is a vector already. Received: {name}={value!r}. Give {name} where the "
                "vector is created."
            )
    return vector


def _own_vector(source: EnvSpec, num_envs: int, mode: Mode, keywords: tuple[str, ...]) -> VectorEnv | str:
    """Return the environment's own vectorised form, or why there is none."""
    if source.makes_vector:
        made = dataclasses.replace(source, arguments={**source.arguments, "num_envs": num_envs}).make()
        source = dataclasses.replace(source, target=made)
        expect_count("n_envs", num_envs, getattr(made, "num_envs", 1), "the vector")
    if source.is_vector:
        return _given_vector(source, keywords)
    if source.is_native:
        if mode != "auto":
            raise SpecError(
                f"{source.name!r} is compiled by JAX and has no mode {mode!r}. Leave mode at 'auto'."
            )
        if keywords:
            raise info_refusal(keywords, source.name)
        if source.reward_shaping is None:
            return batched.from_native(source.make(), num_envs, source.name, source.max_episode_timesteps)
    if mode == "auto" and num_envs < OWN_VECTOR_PAYS_FROM and _has_vectorised(source):
        return f"below {OWN_VECTOR_PAYS_FROM} environments a loop is as fast as a vectorised form"
    if mode in ("auto", "native-vector"):
        return _vectorised(source, num_envs, keywords)
    return ""


def _vectorised(source: EnvSpec, num_envs: int, keywords: tuple[str, ...]) -> GymnasiumVector | str:
    spec = source.target
    if not isinstance(spec, GymnasiumSpec):
        return "only ids of Gymnasium have vectorised forms"
    if source.reward_shaping is not None:
        return "rewards are shaped for one environment at a time"
    if source.images is not None:
        return atari.own_vector(source, source.images, num_envs, keywords)
    smaller_limit(source.max_episode_timesteps, spec.max_episode_steps, source.name)
    result = adapter.make_vector(spec, num_envs, source.arguments, source.max_episode_timesteps)
    if isinstance(result, str):
        return result
    vector, limit = result
    wrapped = GymnasiumVector(vector, source.name, limit, info_keywords=keywords)
    wrapped.why = "Gymnasium has a vectorised form of it"
    return wrapped


def _has_vectorised(source: EnvSpec) -> bool:
    """Tell whether Gymnasium has a vectorised form of a source, other than that of preprocessed games."""
    spec = source.target
    native_vector = isinstance(spec, GymnasiumSpec) and spec.vector_entry_point is not None
    return native_vector and source.images is None


def _given_vector(source: EnvSpec, keywords: tuple[str, ...]) -> GymnasiumVector:
    """Wrap a Gymnasium vector that the user made."""
    vector = source.target
    fault = adapter.autoreset_fault(vector)
    if fault is not None:
        raise SpecError(
            f"The vector {source.name!r} {fault}. Make it with "
            "autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP, or give the id, or a list, of its "
            "environments."
        )
    if source.max_episode_timesteps is not None or source.reward_shaping is not None:
        raise UsageError(
            "max_episode_timesteps and reward_shaping cannot be added to a vector. Wrap its environments."
        )
    limit = adapter.own_limit(vector)
    wrapped = GymnasiumVector(vector, source.name, limit, copy=True, info_keywords=keywords)
    wrapped.why = "it was given as a vector"
    return wrapped


def _fixed_count(source: EnvSpec) -> tuple[int | None, str]:
    """Return how many environments a specification stands for (None: any number), and what fixes that."""
    if source.is_vector:
        return int(source.target.num_envs), "the vector"
    return 1 if source.is_object and not source.is_native else None, "the object"


def _obstacle(sources: Sequence[EnvSpec]) -> str:
    """Say why environments should not run in worker processes unless asked for; empty if they may."""
    try:
        literals = [source.literal() for source in sources]
    except SpecError as error:
        return str(error)
    if any("__main__:" in literal for literal in literals):
        return "it is defined in the program itself, which each worker process would run"
    return ""


def step_seconds(vector: VectorEnv) -> float:
    """Return the median seconds of a `step` under random actions: at least three, for about 20 ms."""
    generator = np.random.default_rng(0)
    observation = vector.reset()  # without a seed, which would stay: this environment is used afterwards
    times: list[float] = []
    # The first step is a warm-up: it does not count.
    while len(times) < 4 or (len(times) < _MEASURE_STEPS and sum(times[1:]) < _MEASURE_SECONDS):
        actions = random_actions(vector.spaces, observation, generator)
        begun = time.perf_counter()
        observation = vector.step(actions).observation
        times.append(time.perf_counter() - begun)
    return float(np.median(times[1:]))


def expect_count(argument: str, requested: int | None, fixed: int | None, what: str) -> int:
    """Return how many environments there are to be: as `requested`, or else as many as there are, or one.

    Raises:
        SpecError: another number than the `fixed` one is asked for; names the `argument` and `what` fixes it.
    """
    requested = whole(argument, requested, optional=True)
    if requested is None:
        return 1 if fixed is None else fixed
    if fixed is not None and requested != fixed:
        remedy = "Leave it out, or give an id or a class." if what != "the list" else "Leave it out."
        raise value_error(argument, f"{fixed}, as many as {what} has", requested, remedy)
    return requested
