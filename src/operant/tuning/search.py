"""The search: asks Optuna for settings, starts a process for each trial, and keeps the study.

Optuna chooses and stores in this process alone. The processes of trials know neither the study nor its
storage: a trial that crashes takes nothing with it. Several processes that search, on one machine or many,
may share one storage.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from operant.envs.remote.cluster import TaskPlacement
from operant.errors import SpecError, UsageError
from operant.spec.run import RunConfig
from operant.tracking import Console, LoggerGroup, Record, console
from operant.training.child_process import TAIL, ProcessLostError
from operant.tuning import study as studies
from operant.tuning.cluster_trial import ClusterTrialProcess
from operant.tuning.plan import PER_TRIAL, StudyPlan
from operant.tuning.ranges import corners, distributions, suggest
from operant.tuning.trial import TrialProcess, numbered

if TYPE_CHECKING:
    import optuna

T = TypeVar("T")

WARMUP_SHARE = 0.2
"""Share of a trial before which it is not pruned: at the very beginning all settings look alike."""
BEAT_SECONDS = 60.0
"""How often running trials are marked as alive in the storage."""
MOST_LOST = 20
"""How many machines a study may lose in one call."""
STALE_SECONDS = 600.0
"""After how long without a mark a running trial counts as dead, its process or machine being gone."""


class _TrialSlot(NamedTuple):
    trial: optuna.Trial
    order: dict[str, Any]
    """What it trains with: hyperparameters (`hyper`) and `run`."""
    begun: float


class _TrialGroup(NamedTuple):
    """Trials of one process."""

    process: TrialProcess
    program: str
    """What they have in common: see `StudyPlan.program`."""
    trials: dict[int, _TrialSlot]
    """Those that are not over, by their place in the process's order."""


class StudyConsole(Console):
    """Shows how far a study is: on a terminal a bar of the steps of its trials, with `text` below it."""

    text = ""

    def record(self, record: Record) -> None:
        """Update the display; lines tell of each trial's begin and end."""
        if not (self.quiet or self._lines):
            self._show(record.step, record.time)

    def _figures(self) -> str:
        return self.text


class StudySearch:
    """One call of `tune`."""

    def __init__(self, plan: StudyPlan, name: str, storage: str) -> None:
        self.plan = plan
        self.name = name
        self.storage = storage
        self.stopped = False
        self._distributions = distributions(plan.ranges)
        self._running: dict[Any, _TrialGroup] = {}
        self._waiting: list[list[_TrialSlot]] = []
        """Trials that were asked for, of which each list waits for a process."""
        self._idle: dict[TrialProcess, str | None] = {}
        """Processes that wait for trials of a program; None: of any."""
        self._steps: dict[int, int] = {}
        """How far each trial of this call is."""
        self._best = "-"
        self._left = plan.config.n_trials
        self._lost = 0
        self._placement = TaskPlacement.read(plan.config)
        self.counts = {"complete": 0, "pruned": 0, "failed": 0, "given_up": 0}
        self._beaten = time.monotonic()
        self._begun = time.monotonic()
        self._console = StudyConsole(
            max_steps=plan.config.n_trials * plan.config.trial_steps,
            quiet=bool(plan.run.get("quiet")),
            live=False if plan.config.non_silent else None,  # trials print to the same terminal
        )
        self._loggers = LoggerGroup([self._console])
        self.say = self._loggers.message
        """Prints a line for the user; a study outlives its terminal."""
        self.study: optuna.Study

    def stop(self) -> None:
        """End the study in order."""
        self.stopped = True

    def run(self) -> optuna.Study:
        """Try the plan, open the study, run the trials; return the study."""
        config = self.plan.config
        if self._placement is not None:
            self._placement.join()
        self._try()
        self._open()
        reclaim(self.study)
        self.say(
            f"Tuning {self.plan.agent} on {self.plan.run['env']}: study {self.name} in "
            f"{studies.shown(self.storage)}; "
            f"{config.n_trials} trial{'s' if config.n_trials > 1 else ''} of {config.trial_steps} steps"
            + (f" with {config.trial_seeds} seeds" if config.trial_seeds > 1 else "")
            + (f", scored by {config.trial_episodes} episodes" if config.trial_episodes else "")
            + f", {config.n_jobs} at a time"
            + (f", {at_once} in each process" if (at_once := self.plan.at_once()) > 1 else "")
        )
        if self.plan.ranges:
            spans = (f"{name} {' '.join(map(str, each.values))}" for name, each in self.plan.ranges.items())
            self.say(f"Searched: {', '.join(spans)}")
        else:
            self.say(
                "Nothing is searched: trials differ by their seeds alone. Give an option several values: "
                "--<option> <value> <value>"
            )
        while not self.stopped and (self._left or self._waiting or self._running):
            while (self._left or self._waiting) and len(self._running) < config.n_jobs and not self.stopped:
                self._begin()
            self._tick()
            for connection in wait(list(self._running), timeout=0.2):
                self._hear(self._running[connection])
            self._beat()
        for slot in self._slots():
            self._owned(slot, self._give_up)
        self._loggers.close()  # no bar while the study is drawn
        return self.study

    def _slots(self) -> list[_TrialSlot]:
        """Return the trials that are not over."""
        groups = [*(group.trials.values() for group in self._running.values()), *self._waiting]
        return [slot for group in groups for slot in group]

    def _tick(self) -> None:
        """Show on a terminal how far the study is."""
        running = [str(slot.trial.number) for slot in self._slots()]
        over = len(self._steps) - len(running)
        self._console.text = f"{over} of {self.plan.config.n_trials} trials  best {self._best}"
        if running:
            self._console.text += f"  running: trial {', '.join(running)}"
        self._loggers.record(Record(sum(self._steps.values()), time.monotonic() - self._begun, {}))

    def _process(self) -> TrialProcess:
        silent = not self.plan.config.non_silent
        if self._placement is None:
            return TrialProcess(silent)
        return ClusterTrialProcess(silent, self._placement)

    def _try(self) -> None:
        """Build what trials will train, with every range's first or last value, before writing anything."""
        if not self.plan.run.get("quiet"):
            console.wait("Building the first trial")
        process = self._process()
        self._idle[process] = None
        faults: list[str] = []
        for edge in corners(self.plan.ranges):
            hyper, run = self.plan.settings(edge)
            run.pop("history_checkpoint", None)  # files of trials have other names
            process.send(self._order("build", [{"hyper": hyper, "run": {"seed": 0, **run}}]))
            while not process.connection.poll(0.2):
                if self.stopped:  # nothing has been written yet
                    raise KeyboardInterrupt
            try:
                answer = process.receive()
            except ProcessLostError as lost:
                if self.stopped:  # it may have been ended with the study
                    raise KeyboardInterrupt from None
                raise UsageError(f"The first trial could not be built. {lost}") from None
            if answer["kind"] == "built":
                return
            faults.append(answer["text"])
        raise SpecError(faults[0])

    def _order(self, do: str, trials: list[dict[str, Any]]) -> dict[str, Any]:
        scored = {"episodes": self.plan.config.trial_episodes, "seeds": self.plan.config.trial_seeds}
        return {"do": do, "agent": self.plan.agent, "trials": trials, **scored}

    def _open(self) -> None:
        from optuna.pruners import MedianPruner, NopPruner

        config = self.plan.config
        pruner = NopPruner()
        if config.prune:
            warm = int(WARMUP_SHARE * config.trial_steps)
            pruner = MedianPruner(n_startup_trials=config.warmup_trials, n_warmup_steps=warm)
        attributes = {
            "agent": self.plan.agent,
            "env": self.plan.run["env"],
            "env_kwargs": self.plan.run.get("env_kwargs"),
            "trial_steps": config.trial_steps,
            "trial_episodes": config.trial_episodes,
            "trial_seeds": config.trial_seeds,
            "reward_buffer_size": self.plan.run.get("reward_buffer_size", RunConfig.reward_buffer_size),
        }
        self.study = studies.create(self.name, self.storage, attributes, pruner=pruner)
        studies.check_ranges(self.study, self._distributions)
        self.study.sampler = self._sampler(len(self.study.get_trials(deepcopy=False)))

    def _sampler(self, number: int) -> Any:
        """Return a trial's sampler: no seed draws twice in a study that goes on or is shared."""
        from optuna.samplers import TPESampler

        seed = self.plan.run.get("seed")
        return TPESampler(seed=None if seed is None else (seed * 1_000_003 + number) % 2**32)

    def _begin(self) -> None:
        """Give a process the trials that wait, or new ones: as many as one program takes."""
        if not self._waiting:
            groups: dict[str, list[_TrialSlot]] = {}
            for _ in range(min(self._left, self.plan.at_once())):
                slot = self._ask()
                groups.setdefault(self.plan.program(**slot.order), []).append(slot)
            self._waiting = list(groups.values())
        now = time.monotonic()
        trials = {i: slot._replace(begun=now) for i, slot in enumerate(self._waiting.pop(0))}
        program = self.plan.program(**trials[0].order)
        process = self._ready(program)
        process.send(self._order("train", [slot.order for slot in trials.values()]))
        self._running[process.connection] = _TrialGroup(process, program, trials)
        several = [slot.trial for slot in trials.values()]
        if len(several) > 1:
            self.say(f"Trials {', '.join(str(trial.number) for trial in several)} begin, in one process")
        else:
            self.say(f"Trial {several[0].number} begins{shown(several[0].params)}")

    def _ready(self, program: str) -> TrialProcess:
        """Return a process for trials of a program.

        Others of another program do not fit: how many threads JAX has there suits that one, and sums of
        large products depend on it.
        """
        for process, suits in self._idle.items():
            if suits in (None, program):
                del self._idle[process]
                return process
        self._end_idle()
        return self._process()

    def _end_idle(self) -> None:
        for process in self._idle:
            process.close()
        self._idle.clear()

    def _ask(self) -> _TrialSlot:
        """Let Optuna choose the settings of another trial."""
        self._left -= 1
        trial = self.study.ask()
        _mark_alive(trial)  # first: whatever kills this process from here on, others take the trial for dead
        self._steps[trial.number] = 0
        self.study.sampler = self._sampler(trial.number)
        hyper, run = self.plan.settings(suggest(trial, self.plan.ranges))
        seed = run.get("seed")
        first = trial.number * self.plan.config.trial_seeds
        run["seed"] = secrets.randbelow(2**31) if seed is None else (seed + first) % 2**32
        for name, value in {
            "options": hyper,
            "run": {name: value for name, value in run.items() if name not in PER_TRIAL},
            "seed": run["seed"],
        }.items():
            trial.set_user_attr(name, value)
        run["quiet"] = not self.plan.config.non_silent
        if "checkpoints" in run:
            run["checkpoints"] = [numbered(path, trial.number) for path in run["checkpoints"]]
        if run.get("history_checkpoint") is not None:
            run["history_checkpoint"] = numbered(run["history_checkpoint"], trial.number)
        return _TrialSlot(trial, {"hyper": hyper, "run": run}, time.monotonic())

    def _owned(self, slot: _TrialSlot, act: Callable[[_TrialSlot], T]) -> T | None:
        """Act for a trial; drop it if another process took it for dead (this machine may have slept)."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            return act(slot)
        except UpdateFinishedTrialError:
            self.say(f"Trial {slot.trial.number} was given up: another process took it for dead.")
            self._drop(slot)
            return None

    def _hear(self, group: _TrialGroup) -> None:
        process, _, trials = group
        try:
            message = process.receive()
        except ProcessLostError as lost:
            message = {"kind": "failed", "text": str(lost), "traceback": ""}
            self._lost += lost.blameless
            if (len(trials) > 1 or lost.blameless) and not self.stopped and self._lost <= MOST_LOST:
                # One of them is to blame, or none: each by itself.
                again = list(trials.values())
                trials.clear()
                self._end_over()
                self._waiting += [[slot] for slot in again]
                self.say(f"{lost} Trying again: {', '.join(f'trial {slot.trial.number}' for slot in again)}.")
                return
        slot = trials.get(message.get("trial", -1))
        if message["kind"] == "report":
            go_on = slot is not None and self._owned(slot, lambda slot: not self._report(slot, message))
            process.send({"prune": not go_on})
        elif slot is not None:
            end = self._fail if message["kind"] == "failed" else self._finish
            self._owned(slot, lambda slot: end(slot, message))
        elif "trial" not in message:  # of all
            for each in tuple(trials.values()):
                self._owned(each, lambda slot: self._fail(slot, message))

    def _report(self, slot: _TrialSlot, message: Mapping[str, Any]) -> bool:
        """Report a score; return whether the trial is to be pruned."""
        self._steps[slot.trial.number] = min(message["step"], self.plan.config.trial_steps)
        if not math.isfinite(message["value"]):
            return False
        slot.trial.report(message["value"], message["step"])
        return bool(slot.trial.should_prune())  # NumPy's, at times

    def _finish(self, slot: _TrialSlot, message: Mapping[str, Any]) -> None:
        from optuna.trial import TrialState

        if not math.isfinite(message["value"]):
            self._fail(slot, {"text": f"The mean return is {message['value']}.", "traceback": ""})
            return
        trial, pruned = slot.trial, message["kind"] == "pruned"
        for name in ("seed_values", "step", "episodes", "seconds"):
            trial.set_user_attr(name, message[name])
        if pruned:
            self.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
        else:
            self.study.tell(trial, message["value"], skip_if_finished=True)
        self.counts["pruned" if pruned else "complete"] += 1
        if best := studies.best(self.study):
            self._best = f"{best.value:.2f} (trial {best.number})"
        self._drop(slot, well=True)
        how = f"pruned at step {message['step']} with" if pruned else "mean return"
        self.say(
            f"Trial {trial.number}: {how} {message['value']:.2f} in {time.monotonic() - slot.begun:.0f} s"
            f"{shown(trial.params)}"
        )

    def _fail(self, slot: _TrialSlot, message: Mapping[str, Any]) -> None:
        """Record a trial that failed, and why: also if the end of the study ended it."""
        if self.stopped:
            self._give_up(slot)
            return
        self._mark_failed(slot, f"{message['text']}\n{message['traceback']}".strip())
        self.counts["failed"] += 1
        self.say(f"Trial {slot.trial.number} failed: {message['text']}{shown(slot.trial.params)}")

    def _give_up(self, slot: _TrialSlot) -> None:
        """End a trial that is interrupted; its settings come first when the study goes on."""
        self._mark_failed(slot, "Interrupted.", again=True)
        self.counts["given_up"] += 1

    def _mark_failed(self, slot: _TrialSlot, reason: str, again: bool = False) -> None:
        from optuna.trial import TrialState

        # Raises if another process took it for dead: then its settings wait already.
        slot.trial.set_user_attr("error", reason[-TAIL:])
        if again:
            _enqueue(self.study, slot.trial.number, slot.trial.params)
        self.study.tell(slot.trial, state=TrialState.FAIL, skip_if_finished=True)
        self._drop(slot)

    def _drop(self, slot: _TrialSlot, well: bool = False) -> None:
        self._steps[slot.trial.number] = self.plan.config.trial_steps
        self._waiting = [rest for group in self._waiting if (rest := [x for x in group if x is not slot])]
        for group in self._running.values():
            for index in [index for index, each in group.trials.items() if each is slot]:
                del group.trials[index]
        self._end_over(well)

    def _end_over(self, well: bool = False) -> None:
        """End processes whose trials are over, unless the last one ended well and others are left."""
        for connection, (process, program, trials) in tuple(self._running.items()):
            if not trials:
                del self._running[connection]
                if well and (self._left or self._waiting) and not self.stopped and process.idle():
                    self._idle[process] = program
                else:
                    process.close()

    def _beat(self) -> None:
        """Mark running trials as alive from time to time, and look for dead ones."""
        if time.monotonic() - self._beaten < BEAT_SECONDS:
            return
        self._beaten = time.monotonic()
        for slot in self._slots():
            self._owned(slot, lambda slot: _mark_alive(slot.trial))
        reclaim(self.study)

    def close(self) -> None:
        """End what still runs."""
        self._loggers.close()
        for group in self._running.values():
            group.process.close()
        self._end_idle()


def _mark_alive(trial: optuna.Trial) -> None:
    trial.set_user_attr("seen", time.time())


def reclaim(study: optuna.Study) -> list[int]:
    """Mark running trials whose process is long gone as failed, to be tried again; return their numbers.

    In studies that operant did not make, trials of others are left alone.
    """
    from optuna.trial import TrialState

    lost = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        begun = trial.datetime_start if "agent" in study.user_attrs else None
        seen = trial.user_attrs.get("seen", math.inf if begun is None else begun.timestamp())
        if time.time() - seen < STALE_SECONDS:
            continue
        _enqueue(study, trial.number, {**trial.system_attrs.get("fixed_params", {}), **trial.params})
        try:
            study.tell(trial.number, state=TrialState.FAIL)
        except (ValueError, RuntimeError):  # another process was faster
            continue
        lost.append(trial.number)
    return lost


def _enqueue(study: optuna.Study, number: int, params: dict[str, Any]) -> None:
    """Queue a trial's settings first; before it is marked as failed, so that a crash loses none."""
    waiting = any(trial.user_attrs.get("again") == number for trial in study.get_trials(deepcopy=False))
    if params and not waiting:
        study.enqueue_trial(params, {"again": number})


def shown(params: Mapping[str, Any]) -> str:
    """Return settings for a line."""
    shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in params.items())
    return f"  [{', '.join(shown)}]" if params else ""
