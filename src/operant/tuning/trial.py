"""Trials of a study, in a process of their own: one, or several whose settings one program can take.

Each process is a fresh interpreter: it is no fork of the process that tunes and does not share its JAX;
crashes end with it. It knows no study: settings come in and returns go out as JSON over a pipe; the process
that tunes keeps the study. After trials that went well it takes others of the same program: importing and
starting JAX take longer than a short trial.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import json
import math
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from operant.envs import catalog
from operant.errors import OperantError
from operant.spec import plain
from operant.spec.run import RunConfig, located
from operant.tracking import LoggerGroup
from operant.training.child_process import TAIL, ChildProcess, ProcessLostError

if TYPE_CHECKING:
    from operant.agents.base.agent_spec import AgentSpec
    from operant.training.drivers.driver import Driver
    from operant.training.evaluate import Evaluation
    from operant.training.loop import Outcome, TrainingLoop

REPORTS = 20
"""How often a trial reports its mean return: at the same steps in every trial, so that pruning compares
like with like."""


MOST_ORDERS = 20
"""How often a process trains, which bounds what leaks."""
IDLE_SECONDS = 1.0
"""How long closing the environments of trials that are over may take, for their process to be kept."""


class TrialProcess(ChildProcess):
    """A process that runs trials."""

    code: ClassVar[str] = "import sys; from operant.tuning.trial import work; work(int(sys.argv[1]))"
    name: ClassVar[str] = "The process of the trial"

    def idle(self) -> bool:
        """Return whether it waits for other trials, now that its own are over."""
        try:
            return self.connection.poll(IDLE_SECONDS) and self.receive()["kind"] == "idle"
        except ProcessLostError:
            return False


def work(descriptor: int) -> None:
    """Be the process of trials: what `TrialProcess` starts."""
    from operant.envs.workers.worker import parent_pipe

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = parent_pipe(descriptor)
    trained = 0
    # The one that tunes may be gone: then there is nobody to train for.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        # What environments left running ends with this process.
        while not trained or (trained < MOST_ORDERS and _alone()):
            if trained:
                _send(connection, {"kind": "idle"})
            order = json.loads(connection.recv_bytes())
            try:
                (_build if order["do"] == "build" else _train)(order, connection)
            except (EOFError, BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:
                _send(connection, _failed(error))
            trained += order["do"] == "train"
            gc.collect()  # networks and memories of the trials that are over


def _alone() -> bool:
    """Return whether this process has no children, as far as the system tells."""
    return not any(path.read_text() for path in Path("/proc/self/task").glob("*/children"))


def _send(connection: Connection, message: Mapping[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _failed(error: Exception) -> dict[str, Any]:
    """Tell of what ended all trials of the process."""
    known = isinstance(error, OperantError)
    text = str(error) if known else f"{type(error).__name__}: {error}"
    trace = "" if known else traceback.format_exc()[-TAIL:]
    return {"kind": "failed", "text": text, "traceback": trace}


def _parsed(order: Mapping[str, Any]) -> list[tuple[AgentSpec, RunConfig]]:
    from operant.agents.base.agent_spec import parse_agent
    from operant.training.session import fitting

    runs = [located(RunConfig.from_dict(each["run"])) for each in order["trials"]]
    return [
        (fitting(parse_agent(order["agent"], **each["hyper"]), run.weights), run)
        for each, run in zip(order["trials"], runs, strict=True)
    ]


def _build(order: Mapping[str, Any], connection: Connection) -> None:
    from operant.training.environments import make_environments
    from operant.training.session import ExperimentSetup

    for definition, run in _parsed(order):
        with contextlib.closing(make_environments(run)) as environments:
            ExperimentSetup(definition, environments, run)
    _send(connection, {"kind": "built"})


class _SeedRun(NamedTuple):
    training: TrainingLoop
    evaluation: Evaluation | None
    """How it is scored; None: by the mean return of training."""

    def value(self) -> float | None:
        training = self.training
        if self.evaluation is None:
            return training.progress.score.mean if training.progress.score.episodes else None
        finished = self.evaluation.run(training.driver.train, training.step, lambda: False)
        assert finished is not None
        return sum(episode.reward for episode in finished) / len(finished)


End: TypeAlias = "Outcome | str"
"""How a seed's part of a trial ended, or what was wrong with its environments."""
Reach: TypeAlias = Callable[[Sequence[_SeedRun]], "list[End]"]
"""Trains each up to its `max_steps`."""


def _train(order: Mapping[str, Any], connection: Connection) -> None:
    several: list[tuple[AgentSpec, RunConfig]] = []
    for definition, run in _parsed(order):
        first = run.seed or 0
        several += [(definition, run.replace(seed=(first + i) % 2**32)) for i in range(order["seeds"])]
    first_run = several[0][1]
    steps, size = first_run.max_steps, order["seeds"]
    assert steps is not None
    with contextlib.ExitStack() as stack:
        reach: Reach = _one_after_another
        shared: Sequence[Any] = [None] * len(several)
        if (
            len(several) > 1
            and catalog.native(first_run.env, **plain(first_run.env_kwargs or {})) is not None
        ):
            reach, shared = _population(several)
        runs = [
            _seed(definition, run, order["episodes"], stack, parts)
            for (definition, run), parts in zip(several, shared, strict=True)
        ]
        _advance([runs[i : i + size] for i in range(0, len(runs), size)], steps, connection, reach)


def _one_after_another(seeds: Sequence[_SeedRun]) -> list[End]:
    return [seed.training.loop() for seed in seeds]


def _population(several: Sequence[tuple[AgentSpec, RunConfig]]) -> tuple[Reach, Sequence[Any]]:
    """Return what trains all of them at once, by one program; and for each its environments, the learner, and
    its driver.
    """
    import jax
    import jax.numpy as jnp

    from operant.training.drivers.seeds import MultiSeedRunner
    from operant.training.environments import make_environments
    from operant.training.multi_seed import run_together
    from operant.training.session import build

    definition, run = several[0]
    environments = make_environments(run)
    learner = build(definition, environments, run, len(several))
    keys = jnp.stack([jax.random.key(each.seed or 0) for _, each in several])
    hyper = jnp.stack([learner.hyper(each.limited(environments.limit).config) for each, _ in several])
    # Under `vmap` those that wait for others' next report would go on; whose blocks are rollouts never wait.
    mapped = None if learner.learns_from_every_block else False
    runner = MultiSeedRunner(
        learner, environments.native, run.n_envs, keys, hyper, name=run.env, mapped=mapped
    )

    def reach(seeds: Sequence[_SeedRun]) -> list[End]:
        ends: dict[int, End] = {}
        places: dict[Driver, int] = {driver: i for i, driver in enumerate(runner.drivers)}
        trainings = {places[seed.training.driver]: seed.training for seed in seeds}
        run_together(runner, trainings, ends.__setitem__, ends.__setitem__)
        return [ends[i] for i in trainings]

    return reach, [(environments, learner, driver) for driver in runner.drivers]


def _seed(
    definition: AgentSpec,
    run: RunConfig,
    episodes: int | None,
    stack: contextlib.ExitStack,
    shared: Any = None,
) -> _SeedRun:
    from operant.training.environments import host_vector, make_environments
    from operant.training.evaluate import Evaluation, Evaluator
    from operant.training.loggers import create_loggers
    from operant.training.session import ExperimentSetup

    if shared is None:
        shared = (make_environments(run),)
        stack.callback(shared[0].close)
    environments, *parts = shared
    session = ExperimentSetup(definition, environments, run, *parts)
    training = session.training(run)
    training.loggers = create_loggers(None, run, training, again=True)  # over files of another study
    stack.callback(_close, training.loggers)
    if episodes is None:
        return _SeedRun(training, None)
    env = stack.enter_context(host_vector(run, min(episodes, run.n_envs)))
    return _SeedRun(training, Evaluation(Evaluator(session.learner, env), 1, episodes, run.seed or 0))


def _close(loggers: LoggerGroup) -> None:
    with contextlib.suppress(OSError):  # a warning told of it; the trial's score is known, and counts
        loggers.close()


class _TrialRun:
    """A trial of the process: its seeds, and what it tells of them."""

    def __init__(self, seeds: Sequence[_SeedRun], steps: int, tell: Callable[..., Any]) -> None:
        self.seeds, self.steps, self.tell = seeds, steps, tell
        self.active = list(seeds)

    def follow(self, step: int, following: float, ends: Sequence[End]) -> bool:
        """Report the score after all that were active have come to a step; return whether the trial goes on.

        The score, and what ended it, are told to the process that tunes.
        """
        for seed, end in zip(tuple(self.active), ends, strict=True):
            if isinstance(end, str) or end.reason == "interrupted":
                text = end if isinstance(end, str) else "The trial was interrupted."
                self._end(kind="failed", text=text, traceback="")
                return False
            if end.reason != "max_steps":
                self.active.remove(seed)
        active, last = self.active, step == self.steps
        if active and min(seed.training.counted for seed in active) >= following:
            return True  # a block went beyond the next report: this score is to be compared there
        values = [seed.value() for seed in self.seeds]
        known = [value for value in values if value is not None]
        value = sum(known) / len(known) if len(known) == len(values) else None
        kind = "ended"
        if active and value is not None:
            pruned = self.tell(kind="report", step=step, value=value)["prune"]
            kind = "pruned" if pruned and not last else kind
        if active and not last and kind == "ended":
            return True
        if value is None:
            reached = max(seed.training.step for seed in self.seeds)
            text = f"No episode ended within {reached} steps, so there is no return. Raise --trial-steps."
            self._end(kind="failed", text=text, traceback="")
        else:
            self._end(**_ended(self.seeds, value, values, kind))
        return False

    def _end(self, **message: Any) -> None:
        """Tell of the end, with the histories on the disk: who hears of it may read them."""
        for seed in self.seeds:
            seed.training.loggers.flush()
        self.tell(**message)


def _advance(trials: Sequence[Sequence[_SeedRun]], steps: int, connection: Connection, reach: Reach) -> None:
    """Train all trials up to the steps, and tell of each."""

    def tell(trial: int, **message: Any) -> Any:
        _send(connection, {"trial": trial, **message})
        return json.loads(connection.recv_bytes()) if message["kind"] == "report" else None

    going = [_TrialRun(seeds, steps, functools.partial(tell, trial)) for trial, seeds in enumerate(trials)]
    points = report_steps(0, steps)
    for step, following in zip(points, [*points[1:], math.inf], strict=True):
        active = [seed for trial in going for seed in trial.active]
        for seed in active:
            seed.training.run = seed.training.run.replace(max_steps=step)
        ends = iter(reach(active))
        counted = [(trial, list(itertools.islice(ends, len(trial.active)))) for trial in going]
        going = [trial for trial, own in counted if trial.follow(step, following, own)]
        if not going:
            return


def report_steps(begin: int, end: int) -> list[int]:
    """Return the steps at which a trial reports its mean return: equal parts, up to the end, each once.

    >>> report_steps(0, 50000)[:3]
    [2500, 5000, 7500]
    """
    return sorted({begin + -(-(end - begin) * k // REPORTS) for k in range(1, REPORTS + 1)})


def _ended(
    seeds: Sequence[_SeedRun], value: float, values: Sequence[float | None], kind: str
) -> dict[str, Any]:
    progress = [seed.training.progress for seed in seeds]
    return {
        "kind": kind,
        "value": value,
        "seed_values": values,
        "step": max(seed.training.step for seed in seeds),
        "episodes": sum(each.score.episodes for each in progress),
        "seconds": sum(each.elapsed for each in progress),
    }


def numbered(path: str, number: int) -> str:
    """Return the path of a file of one trial: `weights/ppo.tf` becomes `weights/ppo-trial3.tf`."""
    file = Path(path)
    return str(file.with_name(f"{file.stem}-trial{number}{file.suffix}"))
