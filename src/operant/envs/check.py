"""`check_env` tests an environment for what its users take for granted: every fault with its remedy."""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from operant.envs.catalog import resolve
from operant.envs.env_spec import EnvSpec
from operant.envs.environment import Environment
from operant.envs.gymnasium import adapter as adapter
from operant.envs.validated_env import ValidatedEnv, smaller_limit
from operant.envs.validation_errors import (
    FLAGS,
    WEIGH,
    ObservationValidator,
    brief,
    flag_error,
    mask_error,
    raise_of_handler,
    reward_error,
    terminal_error,
)
from operant.envs.vector.base import Flat
from operant.envs.vector.batched import NativeEnvironment
from operant.errors import EnvError, OperantError, SpaceError, UsageError, told, whole
from operant.spec.random_streams import Purpose, sequence
from operant.spec.spaces import Spaces, mask_name

_SPACES = ("observation_space", "action_space")


def random_actions(
    spaces: Spaces, observation: Mapping[str, np.ndarray], generator: np.random.Generator
) -> Flat:
    """Draw actions uniformly from those that the masks in `observation` allow; unbounded floats are normal.

    Returns:
        Flat actions of one environment's spaces as stored, leaves `[N, ...]` like the observation's.
    """
    n = len(next(iter(observation.values())))
    actions: Flat = {}
    for name, leaf in spaces.actions.components.items():
        shape = (n, *leaf.shape)
        drawn: np.ndarray
        if leaf.type == "bool":
            drawn = generator.random(shape) < 0.5
        elif leaf.num_values is not None:
            scores = generator.random((*shape, leaf.num_values))
            if name in spaces.masks:
                scores = np.where(observation[mask_name(name)], scores, -1.0)
            drawn = scores.argmax(-1)
        elif leaf.bounded:
            drawn = generator.uniform(leaf.low, leaf.high, shape)
        else:
            drawn = np.clip(generator.normal(size=shape), leaf.low, leaf.high)
        actions[name] = drawn.astype(leaf.storage)
    return actions


def check_env(
    environment: Any,
    steps: int = 200,
    seed: int = 0,
    max_episode_timesteps: int | None = None,
    **kwargs: Any,
) -> list[str]:
    """Test an environment with random actions, and report everything that is wrong with it.

    It checks: spaces; structure, shapes, dtypes, ranges and finiteness of what `reset` and `step` or
    `execute` return, and its order; that a seed determines the stream; that returned arrays are not written
    to again; that masks allow something; that time limits are kept apart from terminations; that spaces do
    not change.

    Args:
        environment: what `Environment.create` takes. An object is not closed.
        steps: how many to take; several episodes are better than one.
        seed: of the environment and of the actions.
        max_episode_timesteps: the time limit that it is to be given; None: its own.
        kwargs: arguments of the environment.

    Returns:
        Findings that may be intended, as sentences.

    Raises:
        EnvError: it breaks its contract; the message lists all faults with their remedies.
        SpecError: the specification is not understood.
    """
    steps = whole("steps", steps)
    source = resolve(environment, max_episode_timesteps=max_episode_timesteps, arguments=kwargs)
    if source.is_vector:
        raise UsageError(f"{source.name!r} is a vector. Pass one environment.")
    report = _Report()
    try:
        trial = _trial(source, report)
        try:
            _examine(source, trial, steps, seed, report)
        finally:
            if not source.is_object:
                try:
                    trial.close()
                except Exception as error:
                    report.fault(f"close {told(error)}.", "Correct it.")
    except _StopTrialError:
        pass
    if report.faults:
        count = f"{len(report.faults)} fault{'s' if len(report.faults) > 1 else ''}"
        lines = "".join(f"\n- {fault}" for fault in report.faults)
        raise EnvError(f"{source.name!r} has {count}:{lines}")
    return report.findings


class _StopTrialError(Exception):
    """What was found makes further tests pointless."""


class _Report:
    def __init__(self) -> None:
        self.faults: list[str] = []
        self.findings: list[str] = []
        self._kinds: set[str] = set()

    def fault(self, text: str, remedy: str = "") -> None:
        """Note a fault, unless one with the same text up to `Received:` was noted before."""
        kind = text.split(" Received:")[0]
        if kind not in self._kinds:
            self._kinds.add(kind)
            self.faults.append(f"{text} {remedy}".rstrip())

    def find(self, text: str) -> None:
        """Note a finding, unless it was noted before."""
        if text not in self.findings:
            self.findings.append(text)

    def stop(self, text: str, remedy: str = "") -> NoReturn:
        self.fault(text, remedy)
        raise _StopTrialError


class _CheckedRow(NamedTuple):
    observation: Flat
    reward: float
    terminated: bool
    truncated: bool


class _GymnasiumTrial:
    seedable = True

    def __init__(self, env: Any, report: _Report) -> None:
        self._env, self._report = env, report
        self.limit = adapter.own_limit(env)
        self._declared = {name: copy.deepcopy(getattr(env, name, None)) for name in _SPACES}
        try:
            self.spaces, self._codec = adapter.spaces_of(env)
        except SpaceError as error:
            report.stop(str(error))
        self._validator = ObservationValidator(self.spaces)

    def reset(self, seed: int | None) -> tuple[Any, Flat]:
        answer = _try(self._report, "reset", lambda: self._env.reset(seed=seed))
        if error := adapter.reset_error(answer):
            self._report.stop(error)
        for name, space in self._declared.items():
            if getattr(self._env, name) != space:
                self._report.fault(
                    f"{name} must stay as it was made, {space}. Received: {getattr(self._env, name)}, after "
                    "reset.",
                    "It is read once: set it in __init__, wide enough for all episodes.",
                )
        return answer[0], self._flat(answer[0], "reset")

    def step(self, actions: Flat) -> tuple[Any, _CheckedRow]:
        action = self._codec.decode_one(actions, 0)
        answer = _try(self._report, f"step({action!r})", lambda: self._env.step(action))
        if error := adapter.step_form_error(answer):
            self._report.stop(error)
        raw, reward, terminated, truncated, _ = answer
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if error := flag_error(name, flag):
                self._report.fault(
                    error,
                    "step returns (observation, reward, terminated, truncated, info), in this order.",
                )
            elif type(flag) not in FLAGS:
                self._report.find(f"{name} is the number {flag}, not True or False: it is taken as that.")
        reward = _reward(self._report, reward)
        return raw, _CheckedRow(self._flat(raw, "step"), reward, bool(terminated), bool(truncated))

    def _flat(self, raw: Any, call: str) -> Flat:
        """Read an observation as training does: what that takes is no fault, but may be worth a finding."""
        try:
            flat = {name: np.array(value)[None] for name, value in self._codec.encode(raw, False).items()}
        except SpaceError as error:
            self._report.stop(f"The observation of {call}: {error}", adapter.MISFIT)
        with warnings.catch_warnings(record=True) as taken:
            warnings.simplefilter("always")
            fault = self._validator.error(flat, (np.ones(1, bool),) * 2)  # masks: see _check_masks
        if fault is not None:
            self._report.fault(f"The observation of {call}: {fault[1]}")
        for warning in taken:
            self._report.find(str(warning.message))
        if (declared := _other_dtypes(self._env.observation_space, raw)) is not None:
            self._report.find(
                f"The observation has another dtype than its space: {declared}. It is converted."
            )
        return flat

    def close(self) -> None:
        self._env.close()


class _EnvironmentTrial:
    def __init__(self, env: Environment, report: _Report) -> None:
        self._env, self._report = env, report
        inner = env.environment if isinstance(env, ValidatedEnv) else env
        self.seedable = "seed" in inspect.signature(inner.reset).parameters
        if env.num_actors() > 1 or (env.is_vectorizable() and not isinstance(inner, NativeEnvironment)):
            raise UsageError("check_env tries environments of one actor, run one at a time.")
        try:
            self.spaces = (
                env.spaces if isinstance(env, ValidatedEnv | NativeEnvironment) else ValidatedEnv(env).spaces
            )
            self.limit = env.max_episode_timesteps()
        except OperantError as error:
            report.stop(str(error), "Correct states() or actions().")

    def reset(self, seed: int | None) -> tuple[Any, Flat]:
        arguments = {"seed": seed} if self.seedable and seed is not None else {}
        raw = _try(self._report, "reset()", lambda: self._env.reset(**arguments))
        return raw, self._flat(raw, "reset")

    def step(self, actions: Flat) -> tuple[Any, _CheckedRow]:
        action = self.spaces.actions.unflatten({name: value[0] for name, value in actions.items()})
        answer = _try(self._report, f"execute({action!r})", lambda: self._env.execute(action))
        if not isinstance(answer, tuple) or len(answer) != 3:
            self._report.stop(f"execute must return (states, terminal, reward). Received: {brief(answer)}.")
        raw, terminal, reward = answer
        if error := terminal_error(terminal):
            self._report.fault(
                f"terminal {error}", "execute returns (states, terminal, reward), in this order."
            )
            terminal = 0
        reward = _reward(self._report, reward)
        return raw, _CheckedRow(
            self._flat(raw, "execute", terminal != 0), reward, terminal == 1, terminal == 2
        )

    def _flat(self, raw: Any, call: str, over: bool = False) -> Flat:
        try:
            flat = self.spaces.observe(raw, (), over=over)
        except SpaceError as error:
            self._report.fault(
                f"{call} returned states that do not fit states(): {error}", "Correct one or the other."
            )
            try:
                flat = self.spaces.observe(raw, (), values=False)
            except SpaceError:
                raise _StopTrialError from None
        return {name: np.array(value)[None] for name, value in flat.items()}

    def close(self) -> None:
        self._env.close()


_Trial: TypeAlias = _GymnasiumTrial | _EnvironmentTrial


def _trial(source: EnvSpec, report: _Report) -> _Trial:
    environment = source.make()
    trial: _Trial
    try:
        if adapter.is_single(environment):
            trial = _GymnasiumTrial(environment, report)
        else:
            trial = _EnvironmentTrial(source.as_environment(environment), report)
        trial.limit = smaller_limit(source.max_episode_timesteps, trial.limit, source.name)
    except BaseException:
        if not source.is_object:
            with contextlib.suppress(Exception):  # it may have no `close`, or one that fails, too
                environment.close()
        raise
    return trial


def _examine(source: EnvSpec, trial: _Trial, steps: int, seed: int, report: _Report) -> None:
    stream = _stream(trial, steps, seed, report)
    ends = [row for row in stream if row.terminated or row.truncated]
    if not ends and trial.limit is None:
        report.findings.append(
            f"No episode ended in {steps} steps, and there is no time limit. Give max_episode_timesteps if "
            "episodes may go on for ever."
        )
    if not trial.seedable:
        report.findings.append(
            "reset takes no seed, so runs cannot be repeated if anything is random. Let it take seed=None."
        )
        return
    short = min(steps, 50)
    again = _stream(trial, short, seed, report)
    if not _alike(stream, again):
        _explain_difference(source, stream, short, seed, report)
    other = _stream(trial, short, seed, report, environment_seed=seed + 1)
    if _alike(again, other):
        report.findings.append(
            "Two seeds gave the same stream. That is right if nothing is random, else reset ignores seed."
        )


def _explain_difference(
    source: EnvSpec, stream: list[_CheckedRow], steps: int, seed: int, report: _Report
) -> None:
    """Tell an environment that a seed does not determine from one that keeps something across a reset."""
    if not source.is_object:
        trial = _trial(source, report)
        try:
            fresh = _stream(trial, steps, seed, report)
        finally:
            trial.close()
        if _alike(stream, fresh):
            report.findings.append(
                "The same seed and actions gave another stream after earlier episodes: reset keeps something "
                "of them. Runs can be repeated from the start only."
            )
            return
    report.fault(
        "The same seed and actions must give the same stream, and gave two.",
        "Draw all randomness from one generator that reset(seed=...) seeds, and let reset set everything "
        "anew.",
    )


def _stream(
    trial: _Trial, steps: int, seed: int, report: _Report, environment_seed: int | None = None
) -> list[_CheckedRow]:
    generator = np.random.default_rng(sequence(seed, Purpose.CHECK))
    raw, flat = trial.reset(seed if environment_seed is None else environment_seed)
    rows = [_CheckedRow(flat, 0.0, False, False)]
    before = copy.deepcopy(raw)
    length = 0
    for _ in range(steps):
        _check_masks(trial.spaces, flat, report)
        then = raw
        raw, row = trial.step(random_actions(trial.spaces, flat, generator))
        flat, length = row.observation, length + 1
        if not _same(then, before):
            report.fault(
                "The observation of one step changed with the next: returned arrays must not be written to "
                "again.",
                "Return a copy.",
            )
        rows.append(row)
        if row.terminated and length == trial.limit:
            note = (
                f"An episode terminated exactly at the time limit of {trial.limit} steps. If the limit is "
                "the reason, say truncated (terminal 2): a termination tells that nothing would follow."
            )
            report.find(note)
        if row.terminated or row.truncated or length == trial.limit:
            raw, flat = trial.reset(None)
            rows.append(_CheckedRow(flat, 0.0, False, False))
            length = 0
        before = copy.deepcopy(raw)
    return rows


def _check_masks(spaces: Spaces, flat: Flat, report: _Report) -> None:
    for action in spaces.masks:
        fault = mask_error(mask_name(action), flat[mask_name(action)])
        if fault is not None:
            report.stop(fault[1], "End the episode when no action is left.")


def _reward(report: _Report, reward: Any) -> float:
    must = reward_error(reward)
    if must is None:
        return float(reward)
    remedy = "Mind the order of what is returned." if must == "a number" else "Look for a division by zero."
    if np.size(reward) > 1:
        remedy = WEIGH
    received = brief(reward) if must == "a number" else reward
    report.fault(f"The reward must be {must}. Received: {received}.", remedy)
    return 0.0


def _other_dtypes(space: Any, value: Any) -> str | None:
    """Return the first dtype in an observation that is another than its space's: ``float64, not float32``."""
    if hasattr(space, "spaces"):
        keys = space.spaces if isinstance(space.spaces, Mapping) else range(len(space.spaces))
        each = (_other_dtypes(space.spaces[key], value[key]) for key in keys)
        return next((found for found in each if found is not None), None)
    dtype = getattr(value, "dtype", None)  # Python's own numbers have none
    same = dtype is None or dtype == space.dtype or not space.shape
    return None if same else f"{dtype}, not {space.dtype}"


def _try(report: _Report, call: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (Exception, SystemExit) as error:
        raise_of_handler(error)
        report.stop(f"{call} {told(error)}.")


def _alike(a: list[_CheckedRow], b: list[_CheckedRow]) -> bool:
    return all(
        x[1:] == y[1:] and all(np.array_equal(x.observation[k], y.observation[k]) for k in x.observation)
        for x, y in zip(a, b, strict=False)
    )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping):
        return all(_same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return all(_same(x, y) for x, y in zip(a, b, strict=True))
    x, y = np.asarray(a), np.asarray(b)
    return bool(np.array_equal(x, y, equal_nan=x.dtype.kind == "f"))
