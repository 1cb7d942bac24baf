"""Seeds of a run as tasks of a Ray cluster: see docs/cluster.md."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from operant.agents.base.agent_spec import AgentSpec
from operant.envs.catalog import is_own
from operant.envs.remote.cluster import TaskPlacement
from operant.envs.workers.worker import ORPHAN_SECONDS, parent_pipe
from operant.errors import OperantError, UsageError
from operant.spec.run import RunConfig
from operant.tracking.console import say
from operant.training import signals
from operant.training.child_process import ChildProcess, ProcessLostError
from operant.training.loop import Outcome
from operant.training.progress import EvaluationScores
from operant.training.train import ExperimentConfig, TrainingResult, resumed, train

_RETRIES = 8
"""How often a seed is begun or resumed again because its machine was lost."""
_LOOK_SECONDS = 0.5


def train_on_cluster(
    placement: TaskPlacement, definition: AgentSpec, runs: Sequence[RunConfig], command: str | None
) -> list[TrainingResult]:
    """Train each run in a task of its own, wherever Ray places it; their folders come to be here.

    Where a task sees the folder of its run, it writes there, and goes on from the last checkpoint if its
    machine is lost. Elsewhere it begins again, and what it wrote is sent here at its end.

    Raises:
        UsageError: the cluster cannot be joined, or a run failed; others have been trained to their end.
        KeyboardInterrupt: the user ended the runs.
    """
    placement.join()
    import ray

    folders = [Path(run.run_dir or "") for run in runs]
    sign = folders[0].parent / f".{secrets.token_hex(8)}"
    sign.touch()
    task = ray.remote(_train_seed).options(max_retries=_RETRIES, **placement.options())
    agent, quiet = definition.to_dict(), all(run.quiet for run in runs)
    waiting = {
        task.remote(json.dumps([agent, run.replace(quiet=True).to_dict(), command]), str(sign)): i
        for i, run in enumerate(runs)
    }
    if not quiet:
        say(f"Training {definition.name} on {runs[0].env}: {len(runs)} seeds as tasks of a Ray cluster")
    outcomes: dict[int, Outcome] = {}
    faults: list[str] = []
    stopped: list[bool] = []
    try:
        with signals.orderly(lambda: stopped.append(True)):
            while waiting and not stopped:
                for ready in ray.wait(list(waiting), timeout=_LOOK_SECONDS)[0]:
                    i = waiting.pop(ready)
                    try:
                        outcomes[i] = _received(ray.get(ready), folders[i])
                    except (ray.exceptions.RayError, OperantError) as error:
                        faults.append(f"Seed {runs[i].seed}: {' '.join(str(error).split())}")
                        say(faults[-1])
                    else:
                        if not quiet:
                            say(f"Seed {runs[i].seed}: {outcomes[i].summary}")
    finally:
        for reference in waiting:
            with contextlib.suppress(Exception):
                ray.cancel(reference)
        sign.unlink(missing_ok=True)
    if stopped:
        raise KeyboardInterrupt
    if faults:
        raise UsageError("\n".join(faults))
    return [TrainingResult(outcomes[i], folder) for i, folder in enumerate(folders)]


def _received(answer: tuple[str, bytes], folder: Path) -> Outcome:
    """Take what a task returned: how its run ended, and the run's folder if it is not here yet."""
    text, archive = answer
    told = json.loads(text)
    if "error" in told:
        raise UsageError(told["error"])
    if archive:
        with tarfile.open(fileobj=io.BytesIO(archive)) as content:
            content.extractall(folder, filter="data")
    return Outcome(**{**told, "evaluated": EvaluationScores(*told["evaluated"])})


class SeedProcess(ChildProcess):
    """A process that trains a seed: Ray's own process and JAX do not share one well."""

    code = "import sys; from operant.training.cluster_seeds import work; work(int(sys.argv[1]))"
    name = "The process of the seed"


def _train_seed(order: str, sign: str) -> tuple[str, bytes]:
    """Train a seed on a machine of the cluster; return how it ended, and its folder unless `sign` is seen."""
    agent, options, command = json.loads(order)
    folder = Path(options["run_dir"])
    shared = os.path.exists(sign)  # its name is drawn at random
    with contextlib.ExitStack() as stack:
        if not shared:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="operant-"))) / folder.name
        process = SeedProcess(silent=True)
        stack.callback(process.close)
        process.send({"agent": agent, "run": {**options, "run_dir": str(folder)}, "command": command})
        try:
            told = process.receive()
        except ProcessLostError as error:
            told = {"error": str(error)}
        archive = io.BytesIO()
        if not shared and "error" not in told:
            with tarfile.open(fileobj=archive, mode="w") as content:
                content.add(folder, ".")
        return json.dumps(told), archive.getvalue()


def work(descriptor: int) -> None:
    """Be the process of a seed: what `SeedProcess` starts."""
    connection = parent_pipe(descriptor)
    order = json.loads(connection.recv_bytes())
    run = RunConfig.from_dict(order["run"])
    folder = Path(run.run_dir or "")
    try:
        if (folder / "run.json").is_file():  # of an earlier attempt, which may not have ended yet
            time.sleep(ORPHAN_SECONDS + 1.0)
            plan = resumed(folder, {"env": run.env} if is_own(run.env) else {})
        else:
            plan = ExperimentConfig(order["agent"], {}, run)
        outcome = train(plan, order["command"]).outcome
        told: dict[str, Any] = {**outcome._asdict(), "evaluated": list(outcome.evaluated)}
    except OperantError as error:
        told = {"error": str(error)}
    connection.send_bytes(json.dumps(told).encode())
