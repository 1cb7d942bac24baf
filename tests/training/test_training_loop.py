"""The training loop with a driver that only pretends: limits, what is reported when, and where a later
part takes it up."""

from __future__ import annotations

import itertools
import json
import math
import types

import numpy as np
import pytest

from operant.spec.run import RunConfig
from operant.tracking.record import Origin
from operant.training.episodes import EpisodeResult, RollingScore
from operant.training.evaluate import Evaluation
from operant.training.loop import TrainingLoop
from operant.training.progress import EvaluationScores, Progress

BLOCK_STEPS, BLOCK_SECONDS = 2, 0.5
MONITORED = {"divergence_monitoring_steps": 9, "plateau_reduce_patience": 2, "early_stop_patience": 2}


class Pretended:
    """Every block takes two steps and half a second, and ends an episode with the next of the given
    returns."""

    unreported = ()
    processes = 1
    goes_ahead = False
    deadline = math.inf
    block_steps = BLOCK_STEPS
    learner = types.SimpleNamespace(learns_from_every_block=True, warmup=0)

    def __init__(self, clock, returns=(), step=0, blocks=1):
        self.clock, self.returns, self.step, self.blocks = clock, iter(returns), step, blocks
        self.calls, self.reduced = [], []

    @property
    def learnt(self):
        return types.SimpleNamespace(counters=types.SimpleNamespace(rows=self.step))

    def advance(self, blocks, ahead=0):
        self.calls.append(blocks)
        finished = []
        for _ in range(blocks):
            self.step += BLOCK_STEPS
            self.clock[0] += BLOCK_SECONDS
            finished.append(EpisodeResult(self.step, next(self.returns, 0.0), BLOCK_STEPS, 0))
        return finished

    def end_by(self, deadline):
        self.deadline = deadline

    def agree(self, seconds, flag):
        return seconds, flag

    def metrics(self):
        return {}

    def settle(self):
        pass

    def skipped(self):
        return 0

    def scale_lr(self, factor):
        self.reduced.append(self.step)
        return 1.0, factor


class Sink:
    """Keeps what it is given."""

    def __init__(self):
        self.records, self.messages = [], []

    def episodes(self, episodes):
        pass

    def record(self, record):
        self.records.append(record)

    def message(self, text):
        self.messages.append(text)

    def flush(self):
        pass


@pytest.fixture
def clock(monkeypatch):
    now = [7.0]
    timer = types.SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("operant.training.loop.time", timer)
    return now


def training(clock, returns=(), origin=None, step=0, elapsed=0.0, blocks=1, **options):
    run = RunConfig.from_dict({"env": "CartPole-v1", "max_steps": 40, "reward_buffer_size": 3, **options})
    progress = Progress(run)
    progress.elapsed = elapsed
    if origin is not None:
        progress.begin_at(origin)
    driver = Pretended(clock, returns, step, blocks)
    loop = TrainingLoop(None, driver, run, {}, progress=progress)
    loop.loggers = Sink()
    return loop


def test_a_target_is_reached_by_the_mean_of_a_full_window(clock):
    made = training(clock, [6.0, 5.0, 4.0, 4.0], target_reward=5.0)
    outcome = made.loop()
    # After one and two episodes the mean is above the target, of fewer than count; after three it is the
    # target.
    assert (outcome.reason, outcome.step, outcome.episodes, outcome.mean_reward) == ("target", 6, 3, 5.0)
    later = training(clock, [6.0, 5.0, 3.0, 6.0, 6.0], target_reward=5.0).loop()
    assert (later.reason, later.step) == ("target", 10)


@pytest.mark.parametrize(("most", "step"), [(16, 16), (17, 18), (1, 2), (6, 6)])
def test_no_more_blocks_are_run_than_reach_the_last_step(clock, most, step):
    made = training(clock, max_steps=most, blocks=4)
    outcome = made.loop()
    assert (outcome.reason, outcome.step, made.driver.step) == ("max_steps", step, step)
    assert max(made.driver.calls) <= 4


@pytest.mark.parametrize(("step", "elapsed"), [(0, 0.0), (100, 50.0)])
def test_speed_is_that_since_the_last_report(clock, step, elapsed):
    """In a part that goes on, too: the steps before it were not taken in its seconds."""
    made = training(clock, step=step, elapsed=elapsed, max_steps=step + 20, log_frequency=2)
    made.progress.score.episodes = step // BLOCK_STEPS
    made.loop()
    records = made.loggers.records
    assert [record.step - step for record in records] == [4, 8, 12, 16, 20]
    assert [record.time - elapsed for record in records] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [record.values["time/steps_per_second"] for record in records] == [4.0] * 5


def test_every_nth_episode_is_reported_though_a_call_of_the_driver_ends_many(clock, monkeypatch):
    """As it stood then, at its own step and time; what was learnt since is told with the last of a call."""
    monkeypatch.setattr("operant.training.loop.CALL_SECONDS", 4.0)
    made = training(clock, [float(i) for i in range(1, 21)], max_steps=40, blocks=10, log_frequency=3)
    made.driver.metrics = lambda: {"loss/policy": 1.0}
    made.loop()
    records, last = made.loggers.records[:-1], made.loggers.records[-1]
    assert max(made.driver.calls) > 3
    assert [(r.step, r.time, r.values["episode/count"]) for r in records] == [
        (BLOCK_STEPS * n, BLOCK_SECONDS * n, n) for n in (3, 6, 9, 12, 15, 18)
    ]
    assert [r.values["episode/reward_mean"] for r in records] == [n - 1.0 for n in (3, 6, 9, 12, 15, 18)]
    assert {r.values["time/steps_per_second"] for r in records} == {BLOCK_STEPS / BLOCK_SECONDS}
    assert (last.step, last.values["episode/count"], "loss/policy" in last.values) == (40, 20, True)
    steps = [r.step for r in made.loggers.records if "loss/policy" in r.values]
    assert 0 < len(steps) < len(records)


def test_a_callback_that_ends_the_run_sees_no_later_report_of_its_call(clock, monkeypatch):
    monkeypatch.setattr("operant.training.loop.CALL_SECONDS", 40.0)
    made = training(clock, max_steps=400, blocks=50, log_frequency=1)
    seen = []
    made.on_record = lambda record: bool(seen.append(record.step)) or len(seen) < 9
    assert made.loop().reason == "callback"
    assert len(seen) == 9 and [r.step for r in made.loggers.records] == seen


def test_a_part_that_goes_on_waits_for_its_first_checkpoint(clock, monkeypatch):
    """As long as between any two, by the clock and by steps."""
    for options, saved in (
        ({"save_seconds": 2.0}, [108, 116, 120]),
        ({"save_frequency": 9, "save_seconds": 1e9}, [108, 118, 120]),
    ):
        made = training(clock, step=100, elapsed=50.0, max_steps=120, **options)
        steps = []
        monkeypatch.setattr(made, "save", lambda made=made, steps=steps: steps.append(made.step))
        made.loop()
        assert steps == saved


def evaluation(made, frequency, found):
    """Pretended evaluations, which note their steps."""
    steps = []

    def run(train, step, stop):
        steps.append(step)
        return found

    made.evaluation = types.SimpleNamespace(
        frequency=frequency,
        run=run,
        logger=None,
        directory=None,
        evaluator=types.SimpleNamespace(seconds=0.0, env=types.SimpleNamespace()),
    )
    return steps


def test_an_evaluation_reports_its_episodes(clock):
    made = training(clock, max_steps=20, eval_frequency=10)
    episodes = [EpisodeResult(3, 1.0, 30, 0, {"won": 1.0}), EpisodeResult(4, 4.0, 10, 1, {"won": 0.0})]
    assert evaluation(made, 10, episodes) == []
    made.loop()
    found = [
        (record.step, {name: x for name, x in record.values.items() if name.startswith("evaluation/")})
        for record in made.loggers.records
        if "evaluation/reward_mean" in record.values
    ]
    told = {
        "evaluation/reward_mean": 2.5,
        "evaluation/reward_best": 2.5,
        "evaluation/reward_std": 1.5,
        "evaluation/length_mean": 20.0,
        "evaluation/info/won": 0.5,
    }
    assert found == [(10, told), (20, told)]


def test_what_begins_behind_a_history_counts_from_its_end(clock):
    """Evaluations, reports and checks of progress come when they would have come without it."""
    origin = Origin(1000, 5.0, 7, 60.0)
    made = training(clock, [9.0] * 3, origin=origin, max_steps=1042, log_frequency=4, eval_frequency=400)
    made.run = made.run.replace(max_steps=1440)
    evaluated = evaluation(made, 400, [EpisodeResult(1, 1.0, 1, 0)])
    made.loop()
    assert evaluated == [1200]
    assert [record.step for record in made.loggers.records][:3] == [1008, 1016, 1024]
    watched = training(
        clock, [9.0] * 3, origin=origin, max_steps=1024,
        divergence_monitoring_steps=0, plateau_reduce_patience=1, early_stop_patience=9,
    )  # fmt: skip
    watched.loop()
    # The first check, after three episodes, sees the best mean; the next three times it is no better.
    assert watched.driver.reduced == [12, 18, 24]


def test_all_of_the_progress_is_stored():
    run = RunConfig.from_dict({"env": "CartPole-v1", "max_steps": 1, "reward_buffer_size": 3})
    progress, again = Progress(run), Progress(run)
    for reward in (1.0, 2.0, 3.0, 4.0):
        progress.score.add([reward], [5])
    told = {
        "elapsed": 4.5,
        "skipped": 3,
        "origin": Origin(10, 1.0, 2, 7.0),
        "evaluated": EvaluationScores(9, 1.0, 2.0, 8),
        "draws": 6,
    }
    vars(progress).update(told)
    progress.monitor.plateau = 4
    again.restore(json.loads(json.dumps(progress.to_dict())))
    assert {name: getattr(again, name) for name in told} == told
    assert again.to_dict() == progress.to_dict()
    # Whatever is new in it is stored as well, or named here.
    assert vars(again).keys() == told.keys() | {"score", "monitor", "monitored"}


def test_each_evaluation_has_episodes_of_its_own():
    """Others at another step and under another seed; the same ones in every repetition."""

    def seed(run, step):
        seeds = []

        def note(train, episodes, *, seed, stop):
            seeds.append(seed)
            return []

        Evaluation(types.SimpleNamespace(run=note), 100, 0, run).run(None, step, lambda: False)
        return seeds[0]

    assert len({seed(run, step) for run in (0, 1, 2) for step in (100, 200, 300)}) == 9
    assert seed(1, 204) == seed(1, 200)  # whatever the block that it waited for


@pytest.mark.parametrize("window", [1, 3, 100])
def test_a_score_is_the_same_however_many_episodes_come_at_once(window):
    rng = np.random.default_rng(window)
    rewards, lengths = rng.normal(size=250) * 1e3, rng.integers(1, 9, 250)
    told = {"won": np.where(rng.random(250) < 0.5, 1.0, np.nan)}
    one, parts = RollingScore(window), RollingScore(window)
    expected, best = [], -math.inf
    for i in range(250):
        mean, _ = one.add(rewards[i : i + 1], lengths[i : i + 1], {"won": told["won"][i : i + 1]})
        exact = math.fsum(rewards[max(0, i + 1 - window) : i + 1]) / min(i + 1, window)
        assert mean[0] == one.mean == pytest.approx(exact, rel=1e-12, abs=1e-9)
        best = max(best, one.mean)
        expected.append((one.mean, best))
    found = []
    for cut in (slice(0, 2), slice(2, 90), slice(90, 91), slice(91, 250)):
        found += zip(*parts.add(rewards[cut], lengths[cut], {"won": told["won"][cut]}), strict=True)
    assert found == expected  # to the last bit: where calls are cut depends on the clock
    assert parts.to_dict() == one.to_dict() and one.episodes == 250


@pytest.mark.parametrize("options", [{}, {"log_frequency": 3}, MONITORED])
def test_episodes_are_booked_alike_one_by_one_and_all_at_once(clock, options):
    options = {"max_steps": 10**6, **options}
    rewards = np.random.default_rng(1).normal(size=60)
    episodes = [
        EpisodeResult(step, float(reward), 1 + step % 4, step % 2, {"won": float(step % 2)})
        for step, reward in enumerate(rewards, start=1)
    ]

    def booked(cuts):
        made = training(clock, origin=Origin(100, 1.0, 20, 1.5), **options)
        made._warmup = 5
        kept = []
        made.loggers.episodes = lambda episodes: kept.extend(episodes)
        made.begin()
        records = []
        for begin, end in itertools.pairwise((0, *cuts, 60)):
            made.driver.step = end
            records += made._account(episodes[begin:end])
        untimed = [row._replace(time=0.0) for row in kept]
        return untimed, [each._replace(time=0.0) for each in records], made.progress.to_dict()

    rows, records, progress = booked(range(1, 60))
    assert len(rows) == 60 and math.isnan(rows[4].mean_reward) and rows[5].mean_reward == rewards[5]
    if "log_frequency" in options:
        assert [record.values["episode/count"] for record in records] == [20.0 + n for n in range(3, 61, 3)]
    if "divergence_monitoring_steps" in options:
        assert "stop" in progress["monitor"]["due"] and "reduce" in progress["monitor"]["due"]
    for cuts in ((), (4, 5, 6), (30,)):
        again = booked(cuts)
        np.testing.assert_equal(again, (rows, records, progress))
