"""On accelerators the next call is under way while the host books the last one: nothing that is learnt, told
or saved depends on it. Here a CPU does as they do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.native_faults import Breaks
from tests.small_agents import Countdown, compiled, differing

from operant import checkpoint
from operant.cli import main
from operant.errors import BackendError, EnvError
from operant.spec.run import RunConfig
from operant.tracking import read_history
from operant.training.drivers import device_driver
from operant.training.drivers.calls_ahead import CallsAhead
from operant.training.drivers.device_driver import DeviceDriver
from operant.training.drivers.seeds import MultiSeedRunner
from operant.training.loop import TrainingLoop
from operant.training.multi_seed import run_together


@pytest.fixture
def like_an_accelerator(monkeypatch):
    """Return a function that has drivers made from now on do as on an accelerator, or not."""
    return lambda does=True: monkeypatch.setattr(device_driver, "accelerated", lambda: does)


@pytest.fixture
def driver(like_an_accelerator):
    """Makes drivers of one small agent, as on an accelerator or not."""
    agent = compiled("ppo", Countdown(), 3)

    def make(accelerated: bool) -> DeviceDriver:
        like_an_accelerator(accelerated)
        return DeviceDriver(agent.learner, agent.env, agent.n, jax.random.key(7))

    return make


@pytest.fixture
def events(monkeypatch):
    """What happens in which order: calls that begin, and bytes that arrive on the host."""
    happened, begin, get = [], CallsAhead._begin, jax.device_get

    def arrives(tree):
        got = get(tree)
        happened.append(sum(x.nbytes for x in jax.tree.leaves(got)))
        return got

    monkeypatch.setattr(CallsAhead, "_begin", lambda *a: (happened.append("begin"), begin(*a))[1])
    monkeypatch.setattr(jax, "device_get", arrives)
    return happened


# Blocks of a call, and those announced for the next; 400 blocks end more episodes than there is room for.
CALLS = [(1, 1), (1, 2), (2, 3), (1, 0), (2, 400), (400, 3), (3, 0)]


def test_a_driver_that_goes_ahead_does_the_same(driver):
    plain, ahead = driver(False), driver(True)
    assert ahead.calls.ahead and not plain.calls.ahead
    for blocks, then in CALLS:
        finished = plain.advance(blocks, then)
        assert len(finished) and ahead.advance(blocks, then) == finished
        assert ahead.step == plain.step == int(ahead.train.counters.timesteps)
        assert differing((plain.train, plain.world), (ahead.train, ahead.world)) == []
        assert ahead.metrics() == plain.metrics() != {}
        if blocks == 2:
            assert ahead.scale_lr(0.5) == plain.scale_lr(0.5)  # of the run as it is told, not as it went on


def test_the_next_call_begins_before_the_last_one_is_read(driver, events):
    ahead = driver(True)
    for blocks, then in ((3, 3), (3, 2), (1, 1), (1, 0)):
        ahead.advance(blocks, then)
    told = [event for event in events if event != "begin"]
    assert events == ["begin", "begin", told[0], "begin", told[1], "begin", "begin", told[2], told[3]]
    # One fetch a call, of what may have ended; whole it would be 11 bytes a step, and 4 for each row.
    steps = ahead.blocks * ahead.block_steps
    assert max(told) < 2.1 * steps < 11 * steps < sum(x.nbytes for x in jax.tree.leaves(ends_of(ahead)))


def ends_of(driver: DeviceDriver) -> device_driver.EpisodeEnds:
    return driver.calls.advance(driver.compile(), (driver.train, driver.world), 1).kept


@pytest.mark.slow
def test_without_room_for_two_states_calls_follow_one_another(driver, events, monkeypatch):
    ahead, plain = driver(True), driver(False)
    begin = CallsAhead._begin

    def full(calls, run, state, blocks):
        if calls is ahead.calls and state[0] is not ahead.train:
            raise BackendError("The device has too little memory")
        return begin(calls, run, state, blocks)

    monkeypatch.setattr(CallsAhead, "_begin", full)
    assert ahead.advance(2, 2) == plain.advance(2)
    assert not ahead.calls.ahead
    assert ahead.advance(2, 2) == plain.advance(2)


@pytest.mark.slow
def test_a_fault_drops_the_call_that_was_begun(like_an_accelerator):
    env = Breaks("reward", after=12, max_episode_timesteps=20)
    agent, messages, drivers = compiled("ppo", env, 2), [], []
    for accelerated in (False, True):
        like_an_accelerator(accelerated)
        driver = DeviceDriver(agent.learner, agent.env, 2, jax.random.key(7))
        driver.advance(1, 1)
        with pytest.raises(EnvError, match=r"\(step 12 of its episode\)") as error:
            driver.advance(1, 2)
        messages.append(str(error.value))
        driver.advance(1)
        drivers.append(driver)
    assert messages[0] == messages[1] and drivers[0].step == drivers[1].step
    assert differing(*((driver.train, driver.world) for driver in drivers)) == []


@pytest.mark.slow
def test_seeds_in_one_program_go_ahead_too(like_an_accelerator, events):
    agent = compiled("ppo", Countdown(), 3)
    keys = jax.vmap(jax.random.key)(jnp.arange(3))

    def trained(accelerated):
        like_an_accelerator(accelerated)
        runner = MultiSeedRunner(agent.learner, agent.env, agent.n, keys, blocks=4, mapped=True)
        assert runner.states.calls.ahead == accelerated
        ends, rows = {}, {i: [] for i in range(3)}
        trainings = {}
        for i, target in enumerate((None, 0.1, None)):  # the second ends at once, the others at their limit
            run = RunConfig(
                env="X", n_envs=3, max_steps=288, target_reward=target, reward_buffer_size=3, quiet=True
            )
            specification = {"parallel_interactions": 3}
            trainings[i] = TrainingLoop(None, runner.drivers[i], run, specification)
            trainings[i].loggers.episodes = rows[i].extend
            trainings[i]._set_pace = lambda seconds, made=trainings[i]: setattr(made, "_pace", 4)
        run_together(runner, trainings, ends.__setitem__, ends.__setitem__)
        states = [jax.device_get(driver.learnt) for driver in runner.drivers]
        untimed = {i: [row._replace(time=0.0) for row in rows[i]] for i in rows}
        return {i: end._replace(seconds=0.0) for i, end in ends.items()}, untimed, states[0], states[2]

    expected = trained(False)
    assert [expected[0][i].reason for i in range(3)] == ["max_steps", "target", "max_steps"]
    assert expected[0][1].step < expected[0][0].step
    events.clear()
    found = trained(True)
    np.testing.assert_equal(found[:2], expected[:2])
    assert differing(found[2:], expected[2:]) == []
    assert events[:3].count("begin") == 2  # two calls before anything is read


@pytest.mark.slow
def test_a_run_of_several_may_be_changed_while_their_next_call_is_under_way(like_an_accelerator):
    agent = compiled("ppo", Countdown(), 3)
    keys, found = jax.vmap(jax.random.key)(jnp.arange(4)), []
    for accelerated in (False, True):
        like_an_accelerator(accelerated)
        runner = MultiSeedRunner(agent.learner, agent.env, agent.n, keys, blocks=4, mapped=True)
        episodes = []
        for i in range(6):
            episodes += [list(own) for own in runner.advance(4, None, 4)]
            runner.drivers[i % 4].scale_lr(0.5)
            if i == 3:
                runner.drivers[1].begin_anew(runner.loop.restart)
        states = jax.device_get([driver.learnt for driver in runner.drivers])
        found.append((episodes, [driver.metrics() for driver in runner.drivers], list(runner.steps), states))
    assert found[0][:3] == found[1][:3] and differing(found[0][3], found[1][3]) == []


WORDS = [
    "--n-envs",
    "4",
    "--n-steps",
    "16",
    "--seed",
    "3",
    "--quiet",
    "--max-steps",
    "20000",
    "--log-frequency",
    "50",
]


def counting(calls, name, method):
    """Return a method that counts its calls."""

    def counted(*arguments):
        calls[name] += 1
        return method(*arguments)

    return counted


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--target-reward", "24"],
        ["--eval-frequency", "3000", "--save-frequency", "5000", "--keep-checkpoints", "9"],
        [
            "--divergence-monitoring-steps",
            "0",
            "--reward-buffer-size",
            "20",
            "--plateau-reduce-patience",
            "1",
        ],
    ],
)
def test_a_run_comes_to_the_same_end(tmp_path, monkeypatch, like_an_accelerator, words):
    monkeypatch.chdir(tmp_path)
    # Whatever the clock says, calls are as long as they may be.
    monkeypatch.setattr(TrainingLoop, "_set_pace", lambda self, seconds: setattr(self, "_pace", 10**6))
    found, changed, scale = [], [], DeviceDriver.scale_lr
    monkeypatch.setattr(DeviceDriver, "scale_lr", lambda *a: (changed.append(a), scale(*a))[1])
    calls = {"_begin": 0, "advance": 0}
    for method in calls:
        monkeypatch.setattr(CallsAhead, method, counting(calls, method, getattr(CallsAhead, method)))
    for name, does in (("plain", False), ("ahead", True)):
        like_an_accelerator(does)
        train = ["train", "ppo", "--env", "jax:CartPole-v1", *WORDS, *words, "--run-dir", name]
        assert main(train) == 0
        names = sorted(path.name for path in (tmp_path / name / "checkpoints").iterdir())
        leaves, header = checkpoint.load(checkpoint.latest(tmp_path / name / "checkpoints"))
        history = read_history(tmp_path / name / "history.parquet")
        del history["time"], header["training"]["elapsed"]
        found.append((names, leaves, header["training"], history))
    assert bool(changed) == ("--plateau-reduce-patience" in words)
    in_vain = calls["_begin"] - calls["advance"]  # in both runs
    if changed:
        assert 0 < in_vain <= len(changed) // 2
    else:
        assert in_vain == ("--target-reward" in words)
    np.testing.assert_equal(found[1][2:], found[0][2:])
    assert found[0][0] == found[1][0] and differing(found[0][1], found[1][1]) == []
