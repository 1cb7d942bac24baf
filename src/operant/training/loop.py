"""The training loop for both drivers: when to log, save and stop. It knows no logger and no terminal."""

from __future__ import annotations

import contextlib
import errno
import math
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from operant import checkpoint
from operant.agents.base.agent_spec import AgentSpec
from operant.agents.base.learner import TrainState, learnt_by, with_empty_buffer, without_buffer
from operant.checkpoint import durable
from operant.errors import CheckpointError, reading, shown
from operant.spec import runtime, traced
from operant.spec.run import RunConfig
from operant.tracking.console import wait
from operant.tracking.logger_group import LoggerGroup
from operant.tracking.record import EpisodeRecord, EpisodeTable, Logger, Record, numbers
from operant.training import signals
from operant.training.drivers.driver import Driver
from operant.training.episodes import EpisodeResult, info_means
from operant.training.evaluate import LONGEST, Evaluation
from operant.training.progress import EvaluationScores, Progress

LOG_SECONDS = 1.0
"""Seconds between two reports, if `log_frequency` does not count episodes instead."""
CALL_SECONDS = 1.0
"""How long a driver may go on before the loop looks at the clock, and whether the user has ended the run."""
PATIENCE_SECONDS = 5.0
"""How long a run that the user has ended may take to complete the block that was begun."""


class Outcome(NamedTuple):
    """How a training run ended."""

    reason: str
    """'target', 'max_steps', 'early_stop', 'callback' or 'interrupted'."""
    message: str
    step: int
    episodes: int
    mean_reward: float
    best_reward: float
    seconds: float
    skipped: int = 0
    """Gradient steps that were left out because they were not finite."""
    evaluated: EvaluationScores = EvaluationScores()
    """What the evaluations came to."""

    @property
    def summary(self) -> str:
        """One line for the user."""
        steps = f"{self.step:,} steps"
        came = f"mean return {self.mean_reward:.2f} after {steps}"
        if self.reason == "target":
            came = came.replace(" after", " reached after")
        elif not math.isfinite(self.mean_reward):
            came = f"{steps}, no mean return yet" if self.episodes else f"no episode has ended in {steps}"
        minutes, seconds = divmod(round(self.seconds), 60)
        time = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {seconds} s"
        details = [time if minutes else f"{self.seconds:.3g} s", f"{self.episodes:,} episodes"]
        if self.evaluated.best_reward is not None:
            best = self.evaluated
            details.append(f"best evaluation {best.best_reward:.2f} at {best.best_step:,} steps")
        if self.skipped:
            details.append(f"{self.skipped} gradient step(s) left out")
        return f"{self.message}: {came} ({', '.join(details)})"


def counted(limit: int | None, step: int, rows: int, rollout: int, begun: int) -> int:
    """Return the steps of a run as `max_steps` counts them: those that environments took.

    Where it is a whole number of rollouts, their rows are counted, which may be more: so many are run,
    however short episodes are.

    Args:
        limit: `max_steps`.
        step: environment steps of this run.
        rows: its rows, of which one per episode holds a last observation.
        rollout: rows of a rollout; 0: the algorithm does not learn from each once.
        begun: steps at which the run began.
    """
    whole = rollout > 0 and limit is not None and (limit - begun) % rollout == 0
    return begun + (rows if whole else step)


class TrainingLoop:
    """One training run: an algorithm, and the driver that collects and learns.

    Args:
        directory: folder of the run's checkpoints; None: none are written.
        on_best: called with the `TrainState` when the rolling mean is better than ever, at a log point; in a
            run with evaluations, when one of these is.
        unjudged: called by `keep_unjudged`; returns what became of the files, if any were asked for.
        progress: how far an earlier part of the run came, which this one continues and updates, if any.
    """

    def __init__(
        self,
        definition: AgentSpec,
        driver: Driver,
        run: RunConfig,
        specification: dict[str, Any],
        directory: Path | None = None,
        on_best: Callable[[TrainState], None] | None = None,
        unjudged: Callable[[TrainState], str | None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.definition = definition
        self.driver = driver
        self.run = run
        self.specification = specification
        self.loggers: Logger = LoggerGroup()
        """Where records go."""
        self.directory = directory
        self.on_best = on_best
        self.unjudged = unjudged
        self.progress = Progress(run) if progress is None else progress
        self.most_blocks: int | None = None
        """Blocks after which the run ends, whatever its options say: used to repeat a run up to where it
        ended."""
        self.evaluation: Evaluation | None = None
        """How the policy is evaluated at every `eval_frequency` steps; None: it is not."""
        self.between_blocks: Callable[[], object] = lambda: None
        """Called between two calls of the driver, when nothing is under way."""
        self.on_record: Callable[[Record], bool | None] | None = None
        """Called with every report, which it may add to and change before the loggers take it. The run ends
        if it returns False."""
        self.on_episode: Callable[[EpisodeRecord], None] | None = None
        """Called with every episode that ended, when its block has been learnt from."""
        self.ended: str | None = None
        """How the run, or the part of it that is continued, ended. None while it goes on, and if its process
        died."""
        self.part = 0
        """Which part of the run this is: its `run.json` has the same number, unless it has gone on since."""
        self._endless = False
        """Whether it was said that no episode has ended."""
        self._called_off = False  # by `on_record`
        self._interrupted = False  # here
        self._ending = False  # everywhere
        self.memory_anew = False
        """Whether the replay memory began anew when the run was resumed, since its checkpoint left it out."""
        self._warmup = driver.learner.warmup
        self._begun = self._saved = 0.0
        self._saved_step = 0
        self._logged = 0.0, 0  # seconds and steps at the last report
        self._taken = 0.0, 0  # the same after the driver's last call
        self._collected = 0  # blocks of all parts of the run, with those that `blocks` has asked for
        self._left = 0  # of them until the target and the plateau are looked at: shorter calls do not look
        self._asked = 0  # blocks of the last call
        self._announced = 0  # blocks of the next call, where the driver may have begun it
        self._pace = 1  # most blocks of the next call, so that it does not take long
        self._called = 0.0  # when the last call ended

    @property
    def step(self) -> int:
        """Environment steps so far, those of a history that is continued included."""
        return self.driver.step + self.progress.origin.step

    @property
    def own_steps(self) -> int | None:
        """Most environment steps of the agent itself, without those of a history before; None: no limit."""
        return None if self.run.max_steps is None else self.run.max_steps - self.progress.origin.step

    @property
    def counted(self) -> int:
        """Steps as `max_steps` counts them, see `counted`."""
        return self._counted(self.driver.step)

    def _counted(self, step: int) -> int:
        rows, begun = self._collected * self._rollout, self.progress.origin.step
        return counted(self.run.max_steps, step, rows, self._rollout, begun)

    @property
    def _rollout(self) -> int:
        """Rows of a rollout in all environments, of an algorithm that learns from each once; else 0."""
        return self.driver.block_steps if self.driver.learner.learns_from_every_block else 0

    def restore(self, saved: checkpoint.Checkpoint, changed: Collection[str] = ()) -> None:
        """Continue from a checkpoint (if it fits: CheckpointError), but keep the options in `changed`."""
        if "training" not in saved.header:
            raise CheckpointError(f"The checkpoint {str(saved.path)!r} is not one of a training run.")
        header, fresh = saved.header["training"], self.driver.train
        with reading(repr(shown(saved.path))):
            self.memory_anew, ended, step = not header["memory"], header["ended"], int(header["step"])
            Progress(self.run).restore(header)
            actors = saved.header["specification"]["parallel_interactions"]
        here = self.specification["parallel_interactions"]
        if actors != here:  # the class's `load` allows it
            train = learnt_by(actors, saved, fresh, self.driver.learner.algorithm)
            rows = jnp.uint32(int(train.counters.rows) * actors // here)  # of as many steps
            train = train._replace(counters=train.counters._replace(rows=rows))
            self.driver.restore(train, self.driver.snapshot(), step)
            self.progress.restore(header)
            return
        shapes = jax.eval_shape(lambda train: train, without_buffer(fresh) if self.memory_anew else fresh)
        like = {"train": shapes, "driver": self.driver.snapshot_like()}
        saved.read(like)  # a checkpoint that cannot be loaded must not cost the current memory
        if not self.memory_anew:  # a device need not have room for two replay memories
            fresh = without_buffer(fresh)
            self.driver.put(fresh)
        tree = saved.load(like)
        train = tree["train"]
        if self.memory_anew:
            train = train._replace(memory=with_empty_buffer(fresh).memory)
        if changed:
            config = np.isin(traced(type(self.definition.config)), list(changed))
            train = train._replace(hyper=np.where(config, fresh.hyper, train.hyper))
        self.driver.restore(train, tree["driver"], step)
        self.progress.restore(header)
        self.ended = ended

    def save(self) -> Path | None:
        """Write a checkpoint of the whole run, after what the loggers hold.

        A process that dies in between leaves records beyond the last checkpoint, which the resumed run drops
        and writes again; the other way round their episodes would be lost.
        """
        if self.directory is None and self.driver.processes == 1:
            return None
        return self.write(self.directory, keep=self.run.keep_checkpoints, memory=self.run.save_memory)

    def write(self, directory: Path | None, *, keep: int | None, memory: bool) -> Path | None:
        """Write a checkpoint of the run to a folder, with the replay memory or without.

        With None, only take part in it: a snapshot needs all processes.
        """
        memory = memory or not self.driver.learner.replays
        train = self.driver.train if memory else self.driver.learnt
        tree = {"train": train, "driver": self.driver.snapshot()}
        if directory is None:
            return None
        header = {
            "specification": self.specification,
            "training": {
                **self.progress.to_dict(),
                "skipped": self.progress.skipped + self.driver.skipped(),
                "step": self.driver.settled_step,
                "rows": int(train.counters.rows) * self.run.n_envs,
                "rollout": self._rollout,
                "memory": memory,
                "ended": self.ended,
                "part": self.part,
            },
        }
        self.loggers.flush()
        if self.evaluation is not None and self.evaluation.logger is not None:
            self.evaluation.logger.flush()
        name = f"step-{self.driver.settled_step:012d}"
        return checkpoint.save(directory, tree, header, keep=keep, name=name)

    def loop(self) -> Outcome:
        """Train until the target or the last step is reached, or the user interrupts; save at the end.

        If anything fails, what was learnt before is saved, too, and then the error is raised.
        """
        try:
            tell = None if self.run.quiet else wait
            if tell is not None:
                tell("The first steps", line=False)
            with signals.orderly(self.interrupt), runtime.on_compilation(tell):
                reason = self.begin()
                while reason is None:
                    reason = self.take(self.driver.advance(self.blocks(), self.ahead()))
                    self.between_blocks()
                return self.end(reason)
        except (Exception, SystemExit):
            self.fail(self.driver.unreported)
            raise
        finally:
            self.driver.settle()

    def fail(self, unreported: Sequence[EpisodeResult]) -> None:
        """Save what there is, and episodes learnt from but not reported, when something has failed."""
        self.ended = "failed"
        self.progress.elapsed = self._time() - self._begun  # the call that failed may have taken long
        # The first error is the one to raise; and a report that fails must not cost the checkpoint.
        with contextlib.suppress(Exception):
            self._account(unreported)
        if self.driver.processes == 1:  # with several processes, the others do something else by now
            with contextlib.suppress(Exception):
                if self.step > self._logged[1]:
                    self.loggers.record(self._record(self._metrics()))
            with contextlib.suppress(Exception):
                self.save()

    def begin(self) -> str | None:
        """Start the clock; return the reason if there is nothing to do."""
        self._begun = self._time() - self.progress.elapsed
        self._saved, self._saved_step = self.progress.elapsed, self.step
        self._logged = self._taken = self.progress.elapsed, self.step
        self.ended = None
        rows = int(self.driver.learnt.counters.rows)
        self._collected = rows * self.run.n_envs // self.driver.block_steps
        self._left = 0
        self._called_off = False
        self._end_by(math.inf)
        self._pace, self._announced, self._called = 1, 0, time.perf_counter()
        if scores := self._evaluate():  # one that was interrupted
            self._log([self._record(scores)])
        return self._stop() or ("callback" if self._called_off else None)

    def blocks(self) -> int:
        """Return how many blocks the driver is to run before the loop looks again, or evaluates."""
        if not self._left:
            # Up to where a run in one part would look, too, so that a target is reached at the same step.
            left = self.driver.blocks - self._collected % self.driver.blocks
            if self.most_blocks is not None:
                left = min(left, self.most_blocks - self._collected)
            if self.run.max_steps is not None:
                left = min(left, math.ceil((self.run.max_steps - self.counted) / self.driver.block_steps))
            self._left = max(1, left)
        blocks = self._left
        if self.driver.processes == 1:  # processes that train together make the same calls
            blocks = min(blocks, self._announced or self._pace)
        for every in (self.run.eval_frequency, self.run.save_frequency):
            if every is not None:
                blocks = min(blocks, math.ceil((every - self.step % every) / self.driver.block_steps))
        self._left -= blocks
        self._collected += blocks
        self._asked, self._announced = blocks, 0
        return blocks

    def ahead(self) -> int:
        """Return the blocks of the call after the one that `blocks` asked for, if the run simply goes on.

        0: something else may be due between them. Where the run ends at the target, a call that was begun in
        vain is not used.
        """
        if not self.driver.goes_ahead:
            return 0
        run, asked = self.run, self._asked * self.driver.block_steps
        step = self.step + asked  # at most: rows of last observations are no steps
        for every in (run.eval_frequency, run.save_frequency):
            if every is not None and self.step // every < step // every:
                return 0
        if self._due_to_save(self._time() - self._begun):
            return 0
        blocks = min(self._left or self.driver.blocks, self._pace)
        if self.most_blocks is not None:
            blocks = min(blocks, self.most_blocks - self._collected)
        if run.max_steps is not None:
            taken = self._counted(self.driver.step + asked)
            blocks = min(blocks, math.ceil((run.max_steps - taken) / self.driver.block_steps))
        for every in (run.eval_frequency, run.save_frequency):
            if every is not None:
                blocks = min(blocks, math.ceil((every - step % every) / self.driver.block_steps))
        self._announced = max(0, blocks)
        return self._announced

    def take(self, finished: Sequence[EpisodeResult], seconds: float | None = None) -> str | None:
        """Account for the episodes of those blocks, log and save when due; return why the run ends, if so.

        `seconds` were spent waiting for the blocks (default: all since the last call of this).
        """
        self.progress.elapsed, self._ending = self.driver.agree(self._time() - self._begun, self._interrupted)
        now = self.progress.elapsed
        self._set_pace(time.perf_counter() - self._called if seconds is None else seconds)
        records = self._account(finished)  # before an evaluation, which may fail
        scores = self._evaluate()
        if self._left:
            reason = "interrupted" if self._ending else None
        else:
            verdict = self._watch()
            reason = self._stop() or verdict
        if reason is None and self._collected == self.most_blocks:
            reason = "max_steps"
        if reason is None and self._called_off:
            reason = "callback"
        due = self.run.log_frequency is None and now - self._logged[0] >= LOG_SECONDS
        if due or scores or reason is not None:
            if records and records[-1].step == self.step:  # this one tells it, too
                records.pop()
            records.append(self._record(scores))
        if records:
            self._log(records)
            if reason is None and self._called_off:
                reason = "callback"
        if self._due_to_save(now) and reason is None:
            with self._meanwhile("No checkpoint"):
                self.save()
            self._saved, _ = self.driver.agree(self._time() - self._begun, False)
            self._saved_step = self.step
        self._called = time.perf_counter()
        return reason

    def _due_to_save(self, now: float) -> bool:
        every = self.run.save_frequency
        if every is None:
            return now - self._saved >= self.run.save_seconds
        return self.step // every > self._saved_step // every

    def _set_pace(self, seconds: float) -> None:
        """Bound the next call by how long the last one took; what is learnt does not depend on it."""
        self._pace = max(1, min(4 * self._asked, int(self._asked * CALL_SECONDS / max(seconds, 1e-6))))

    def _meanwhile(self, what: str) -> contextlib.AbstractContextManager[None]:
        return durable.outliving(f"{what} at step {self.step}", f"{what} {self.directory}")

    def _evaluate(self) -> dict[str, float]:
        """Evaluate if it is time, with the clock of training stopped; return what is to be reported."""
        evaluation, last, step = self.evaluation, self.progress.evaluated, self.step
        if self.run.max_steps is not None and self.counted >= self.run.max_steps:
            step = max(step, self.run.max_steps)  # what is due by the end of the run is not left out
        if evaluation is None or step // evaluation.frequency == last.step // evaluation.frequency:
            return {}
        began = time.perf_counter()
        try:
            scores = self._scored(evaluation, last, step)
        finally:  # even if it fails, this time does not count as training
            evaluation.evaluator.seconds += time.perf_counter() - began
        self._ending = self._interrupted  # meanwhile; there is one process
        return scores

    def _scored(self, evaluation: Evaluation, last: EvaluationScores, due: int) -> dict[str, float]:
        """Keep the policy if this evaluation is better than ever; return what is to be reported."""
        step, values = self.step, dict[str, float]()
        finished = evaluation.run(self.driver.learnt, due, lambda: self._interrupted)
        if finished is not None:
            rewards = [ended.reward for ended in finished]
            mean = sum(rewards) / len(rewards)
            self.progress.evaluated = now = last.next(step, mean)
            assert now.best_reward is not None
            best = values["evaluation/reward_best"] = now.best_reward
            values["evaluation/reward_mean"] = mean
            values["evaluation/reward_std"] = float(np.std(rewards))
            values["evaluation/length_mean"] = sum(ended.length for ended in finished) / len(finished)
            for name, value in info_means(ended.info for ended in finished).items():
                values[f"evaluation/{name}"] = value
            if evaluation.logger is not None:
                seconds = self.progress.elapsed
                evaluation.logger.episodes(
                    [
                        EpisodeRecord(step, seconds, e.reward, e.length, e.actor, mean, best, e.info)
                        for e in finished
                    ]
                )
            if now.best_step == step:
                with self._meanwhile("No weights of the best evaluation"):
                    self._keep_best()
        return values

    def _keep_best(self) -> None:
        if self.on_best is not None:
            self.on_best(self.driver.learnt)
        if self.evaluation is not None and self.evaluation.directory is not None:
            self.write(self.evaluation.directory, keep=1, memory=False)

    def end(self, reason: str) -> Outcome:
        """Save, and tell how the run ended; OSError: the last checkpoint could not be written."""
        self.ended = reason
        try:
            self.save()
        except OSError as error:
            assert self.directory is not None  # otherwise nothing is written
            newest = checkpoint.latest(self.directory)
            after = "begins anew: there is no other" if newest is None else f"goes on from {shown(newest)!r}"
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "Make room there" if full else "See that it can be written"
            raise OSError(
                error.errno or errno.EIO,
                f"{error.strerror or error}: the last checkpoint, at step {self.step}, could not be written "
                f"to {shown(self.directory)!r}. {remedy}, then resume the run, which {after}.",
            ) from error
        return self._outcome(reason)

    def keep_unjudged(self) -> None:
        """Write a run's weights if `on_best` could never be called; say what became of the files."""
        evaluated = self.progress.evaluated.best_reward is not None
        if self.unjudged is None or (self.progress.score.judged if self.evaluation is None else evaluated):
            return
        with self._meanwhile("No last weights"):
            if outcome := self.unjudged(self.driver.learnt):
                missing = "a mean return" if self.evaluation is None else "an evaluation"
                self.loggers.message(f"The run ended before there was {missing} to judge by: {outcome}")

    def _time(self) -> float:
        """Return the time of a clock that stops during evaluations, also those of runs beside this one."""
        return time.perf_counter() - (0.0 if self.evaluation is None else self.evaluation.evaluator.seconds)

    def call_off(self) -> None:
        """End the run after the driver's current call, as a callback asked."""
        self._called_off = True

    def interrupt(self) -> None:
        """End the run after the driver's current call, or within it if a block takes long."""
        self._interrupted = True
        self._end_by(time.perf_counter() + PATIENCE_SECONDS)

    def _end_by(self, deadline: float) -> None:
        """Have environments, of evaluations too, waited for no longer than that."""
        self.driver.end_by(deadline)
        if self.evaluation is not None:
            self.evaluation.evaluator.env.deadline = deadline

    def _account(self, finished: Sequence[EpisodeResult]) -> list[Record]:
        """Count episodes and hand them on; return the reports that are due at every n-th of them."""
        ended, records = EpisodeTable.of(EpisodeResult, finished), list[Record]()
        score, monitor, origin = self.progress.score, self.progress.monitor, self.progress.origin
        every, columns, info = self.run.log_frequency, ended.columns, ended.info
        (begun, first), elapsed = self._taken, self.progress.elapsed
        self._taken = elapsed, self.step
        pace = (elapsed - begun) / max(1, self.step - first)
        steps = columns["step"] + origin.step
        seconds = np.minimum(begun + pace * (steps - first), elapsed)  # as if all steps took as long
        means, bests = np.full((2, len(ended)), np.nan)
        warmup = int(np.searchsorted(columns["step"], self._warmup, side="right"))
        start = 0
        while start < len(ended):  # up to where something is to be done, at once
            stop = warmup if start < warmup else start + monitor.until_check(steps[start:], score.episodes)
            if every is not None:
                stop = min(stop, start + every - (score.episodes - origin.episodes) % every)
            stop = min(stop, len(ended))
            if start < warmup:
                score.count(stop - start)
            else:
                part = slice(start, stop)
                reported = {key: values[part] for key, values in info.items()}
                means[part], bests[part] = score.add(
                    columns["reward"][part], columns["length"][part], reported
                )
                monitor.check(int(steps[stop - 1]), score)
            if every is not None and (score.episodes - origin.episodes) % every == 0:
                records.append(Record(int(steps[stop - 1]), float(seconds[stop - 1]), self._episode_scores()))
            start = stop
        if len(ended):
            rows = steps, seconds, columns["reward"], columns["length"], columns["actor"], means, bests
            named = dict(zip(EpisodeRecord._fields, rows, strict=False))
            episodes = EpisodeTable(EpisodeRecord, named, info)
            self.loggers.episodes(episodes)
            if self.on_episode is not None:
                for record in episodes:
                    self.on_episode(record)
        if not (score.episodes or self._endless) and self.driver.step >= LONGEST * self.run.n_envs:
            self._endless = True
            self.loggers.message(
                f"No episode has ended yet, after {self.driver.step:,} steps: there is no mean return. If "
                "episodes should be shorter, set a time limit (max_episode_timesteps)"
            )
        return records

    def _log(self, records: Sequence[Record]) -> None:
        """Report to the callback, then to the loggers; the last record tells what was learnt since.

        Where the callback ends the run, the records after that one are left out.
        """
        records[-1].values.update(self._metrics())
        if self.progress.score.improved() and self.evaluation is None:
            with self._meanwhile("No weights of the best mean return"):
                self._keep_best()
        for record in records:
            seconds, step = self._logged
            self._logged = record.time, record.step
            if record.step > step:
                speed = (record.step - step) / max(record.time - seconds, 1e-9)
                record.values["time/steps_per_second"] = speed
            try:
                if self.on_record is not None:
                    changed = record._replace(values=dict(record.values))
                    self._called_off = self.on_record(changed) is False
                    record = changed._replace(values=numbers(changed.values))
                    if self._called_off:
                        break
            finally:  # without what the callback added, if it fails
                self.loggers.record(record)

    def _record(self, values: dict[str, float]) -> Record:
        return Record(self.step, self.progress.elapsed, {**values, **self._episode_scores()})

    def _metrics(self) -> dict[str, float]:
        values = self.driver.metrics()
        skipped = int(values.get("update/skipped", 0.0))
        self.progress.skipped += skipped
        if skipped and self.progress.skipped == skipped:  # the first ones; at the end all are told
            warnings.warn(
                f"{skipped} gradient step(s) were left out: they or their gradients were not finite. "
                "Look for rewards or observations that are very large, or a learning rate that is.",
                RuntimeWarning,
                stacklevel=3,
            )
        return values

    def _episode_scores(self) -> dict[str, float]:
        values, score = dict[str, float](), self.progress.score
        if score.episodes:
            values["episode/count"] = float(score.episodes)
        if score.rewards:
            values["episode/reward_mean"] = score.mean
            values["episode/reward_min"] = min(score.rewards)
            values["episode/reward_max"] = max(score.rewards)
            values["episode/length_mean"] = sum(score.lengths) / len(score.lengths)
            values["episode/reward_best"] = score.best
            for name, value in info_means(score.infos).items():
                values[f"episode/{name}"] = value
        return values

    def _watch(self) -> str | None:
        """Lower the learning rate on plateaus, or stop, only where a run in one part would."""
        looks = self._collected % self.driver.blocks == 0
        for verdict in self.progress.monitor.verdicts() if looks else ():
            if verdict == "stop":
                return "early_stop"
            old, new = self.driver.scale_lr(self.run.plateau_reduce_factor)
            self.loggers.message(f"Learning rate reduced {old:g} -> {new:g}")
        return None

    def _stop(self) -> str | None:
        run, score = self.run, self.progress.score
        if self._ending:
            return "interrupted"
        if run.target_reward is not None and score.full and score.mean >= run.target_reward:
            return "target"
        if run.max_steps is not None and self.counted >= run.max_steps:
            return "max_steps"
        return None

    def _outcome(self, reason: str) -> Outcome:
        messages = {
            "target": "Done",
            "max_steps": "Done",
            "early_stop": "Stopped early, as nothing improved",
            "callback": "Ended by the callback",
            "interrupted": "Interrupted",
        }
        return Outcome(
            reason,
            messages[reason],
            step=self.step,
            episodes=self.progress.score.episodes,
            mean_reward=self.progress.score.mean,
            best_reward=self.progress.score.best,
            seconds=self.progress.elapsed,
            skipped=self.progress.skipped,
            evaluated=self.progress.evaluated,
        )
