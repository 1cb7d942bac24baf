"""One trial of a study, in a process of its own.

Each is a fresh interpreter: it is no fork of the process that tunes and does not share its JAX; leaks and
crashes end with it. It knows no study: settings come in and returns go out as JSON over a pipe; the process
that tunes keeps the study.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple

from operant.envs.workers.process import killed
from operant.errors import OperantError
from operant.spec.run import RunConfig, located
from operant.tracking import History, LoggerGroup

if TYPE_CHECKING:
    from operant.agents.base.agent_spec import AgentSpec
    from operant.training.evaluate import Evaluation
    from operant.training.loop import TrainingLoop

REPORTS = 20
"""How often a trial reports its mean return: at the same steps in every trial, so that pruning compares
like with like."""
TAIL = 2000
"""Characters of a failure that are kept."""


class TrialLostError(Exception):
    """The process of a trial ended without an answer."""


class TrialProcess:
    """A process that runs one trial; if `silent`, what it prints is shown only if it dies."""

    code: ClassVar[str] = "import sys; from operant.tuning.trial import work; work(int(sys.argv[1]))"
    """What the process runs."""

    def __init__(self, silent: bool) -> None:
        self.connection, remote = Pipe()
        # It lives as long as this object.
        self._output: IO[bytes] | None = tempfile.TemporaryFile() if silent else None  # noqa: SIM115
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", self.code, str(remote.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=None if self._output is None else subprocess.STDOUT,
            pass_fds=(remote.fileno(),),
            # Other trials, of other processes too, may share a GPU's memory.
            env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ, "PYTHONPATH": path},
            process_group=0,  # Ctrl-C is for the process that tunes: it decides what becomes of trials
        )
        remote.close()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; if the process is gone, this shows when its answer is awaited."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> dict[str, Any]:
        """Wait for a message; TrialLostError: the process ended instead."""
        try:
            message: dict[str, Any] = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            code = killed(self.process)
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            tail = self._printed()
            self.close()
            raise TrialLostError(f"The process of the trial {how}.{tail}") from None
        return message

    def _printed(self) -> str:
        if self._output is None:
            return ""
        self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - TAIL))
        text = self._output.read().decode(errors="replace").strip()
        return f" It printed last:\n{text}" if text else ""

    def close(self) -> None:
        """End the process, and what its environments started."""
        killed(self.process)
        self.connection.close()
        if self._output is not None:
            self._output.close()


def work(descriptor: int) -> None:
    """Be the process of a trial: what `TrialProcess` starts."""
    from operant.envs.workers.worker import parent_pipe

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = parent_pipe(descriptor)
    # The one that tunes may be gone: then there is nobody to train for.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            order = json.loads(connection.recv_bytes())
            if order["do"] == "train":
                _send(connection, _attempt(order, connection))
                return
            _send(connection, _attempt(order, None))


def _send(connection: Connection, message: Mapping[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _attempt(order: Mapping[str, Any], connection: Connection | None) -> dict[str, Any]:
    try:
        return _train(order, connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        known = isinstance(error, OperantError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        trace = "" if known else traceback.format_exc()[-TAIL:]
        return {"kind": "failed", "text": text, "traceback": trace}


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


def _train(order: Mapping[str, Any], connection: Connection | None) -> dict[str, Any]:
    from operant.agents.base.agent_spec import parse_agent
    from operant.training.session import fitting

    run = located(RunConfig.from_dict(order["run"]))
    definition = fitting(parse_agent(order["agent"], **order["options"]), run.weights)
    with contextlib.ExitStack() as stack:
        if connection is None:
            _seed(definition, run, None, stack)
            return {"kind": "built"}
        first = run.seed or 0
        runs = [run.replace(seed=(first + i) % 2**32) for i in range(order["seeds"])]
        return _advance(
            [_seed(definition, each, order["episodes"], stack) for each in runs], run.max_steps, connection
        )


def _seed(
    definition: AgentSpec, run: RunConfig, episodes: int | None, stack: contextlib.ExitStack
) -> _SeedRun:
    from operant.training.environments import host_vector, make_environments
    from operant.training.evaluate import Evaluation, Evaluator
    from operant.training.session import ExperimentSetup

    environments = make_environments(run)
    stack.callback(environments.close)
    session = ExperimentSetup(definition, environments, run)
    if run.weights:
        session.weights.load(session.driver)
    training = session.training(run, LoggerGroup())
    training.loggers = _loggers(run, training)
    stack.callback(_close, training.loggers)
    if episodes is None:
        return _SeedRun(training, None)
    env = stack.enter_context(host_vector(run, min(episodes, run.n_envs)))
    return _SeedRun(training, Evaluation(Evaluator(session.learner, env), 1, episodes, run.seed or 0))


def _close(loggers: LoggerGroup) -> None:
    with contextlib.suppress(OSError):  # a warning told of it; the trial's score is known, and counts
        loggers.close()


def _loggers(run: RunConfig, training: TrainingLoop) -> LoggerGroup:
    from operant.training.loggers import console

    history: list[Any] = [History(run.history_checkpoint)] if run.history_checkpoint else []
    return LoggerGroup([*history, console(run, training)])


def _advance(seeds: Sequence[_SeedRun], steps: int | None, connection: Connection) -> dict[str, Any]:
    assert steps is not None
    active, value, values = list(seeds), None, []
    points = report_steps(0, steps)
    for step, following in zip(points, [*points[1:], math.inf], strict=True):
        for seed in tuple(active):
            seed.training.run = seed.training.run.replace(max_steps=step)
            reason = seed.training.loop().reason
            if reason == "interrupted":
                return {"kind": "failed", "text": "The trial was interrupted.", "traceback": ""}
            if reason != "max_steps":
                active.remove(seed)
        if active and min(seed.training.counted for seed in active) >= following:
            continue  # a block went beyond the next report: this score is to be compared there
        values = [seed.value() for seed in seeds]
        value = _mean(values)
        if not active:
            break
        if value is None:
            continue
        _send(connection, {"kind": "report", "step": step, "value": value})
        if json.loads(connection.recv_bytes())["prune"] and step < steps:
            return _ended(seeds, value, values, "pruned")
    if value is None:
        step = max(seed.training.step for seed in seeds)
        text = f"No episode ended within {step} steps, so there is no return. Raise --trial-steps."
        return {"kind": "failed", "text": text, "traceback": ""}
    return _ended(seeds, value, values, "ended")


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


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
