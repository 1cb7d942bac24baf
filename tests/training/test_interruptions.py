"""Ctrl-C and requests to terminate, in the midst of acting, learning and training: nothing is lost."""

import contextlib
import signal
import subprocess
import sys
import time

import gymnasium
import jax
import numpy as np
import pytest
from tests.execution.test_agent import NET, REPLAY, ROLLOUT
from tests.training.small_runs import A2C, create, play, same, weights

import operant
from operant import Agent, Runner, checkpoint
from operant.envs.workers.process import Worker
from operant.errors import NumericalError
from operant.execution.trainers.trainer import trainer
from operant.memory.ring import VALID, flag
from operant.spec.run import RunConfig
from operant.tracking import read_history
from operant.training import loop as training
from operant.training import signals
from operant.training.drivers import device_driver
from operant.training.drivers.device_driver import DeviceDriver
from operant.training.train import ExperimentConfig, train


@pytest.mark.slow
def test_a_call_of_act_that_is_interrupted_leaves_no_row(tmp_path, monkeypatch):
    agent, twin = create(), create()
    for one in (agent, twin):
        play(one, 6)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(agent.engine, "act", interrupted)
        with pytest.raises(KeyboardInterrupt):
            agent.act(np.ones(3, np.float32))
    agent.save(tmp_path)
    loaded = Agent.load(tmp_path)
    for one in (twin, agent, loaded):
        play(one, 9, seed=3)
    assert agent.updates == twin.updates == loaded.updates > 1
    assert same(weights(agent), weights(twin))
    assert same(weights(loaded), weights(twin))


@pytest.mark.slow
@pytest.mark.parametrize("spec", [pytest.param(ROLLOUT, id="ppo"), pytest.param(REPLAY, id="dqn")])
def test_an_episode_ends_where_a_call_of_act_was_interrupted_that_learnt(spec, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    def go_on(agent, steps):
        for _ in range(steps):
            agent.act(np.ones(3, np.float32))
            agent.observe(reward=1.0)

    agent = create(spec)
    go_on(agent, 8)  # the next call brings what ends a block
    with monkeypatch.context() as patch:
        patch.setattr(agent.engine, "act", interrupted)
        with pytest.raises(KeyboardInterrupt):
            agent.act(np.full(3, 2, np.float32))
    agent.save(tmp_path)
    for one in (agent, Agent.load(tmp_path)):
        one.reset()
        go_on(one, 50)  # as many as an episode may have
        assert one.timesteps == 58
        if spec is REPLAY:
            rows = one.engine.train.memory.rows
            assert np.flatnonzero(~flag(rows["mark"][:58], VALID)).tolist() == [8]
            assert rows["observation"]["state"][8].tolist() == [2.0] * 3


def test_ctrl_c_in_the_middle_of_an_update_waits_for_its_end(monkeypatch):
    agent, twin = create(), create()
    absorb = agent.engine._update

    def pressed(*arguments):
        result = absorb(*arguments)  # which has consumed the state
        signal.raise_signal(signal.SIGINT)
        return result

    for one in (agent, twin):
        play(one, 4)
    with monkeypatch.context() as patch:
        patch.setattr(agent.engine, "_update", pressed)
        with pytest.raises(KeyboardInterrupt):
            agent.act(np.ones(3, np.float32))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for one in (agent, twin):
        one.act(np.ones(3, np.float32))
        one.observe(reward=1.0)
        play(one, 8, seed=1)
    assert agent.updates == twin.updates == 3
    assert same(weights(agent), weights(twin))


def test_after_an_update_that_was_left_out_one_can_go_on():
    agent = create({**ROLLOUT, "lr": 1e30, "grad_norm": None}, config={"debug": True})
    states, failures = np.ones(3, np.float32), 0
    for _ in range(16):
        try:
            agent.act(states)
        except NumericalError:
            failures += 1
            agent.act(states)
        agent.observe(reward=3e38)
    assert failures
    assert agent.timesteps == 16


class Slow(gymnasium.Env):
    """Its steps take a while, and the `stop`-th sends a request to terminate."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(3)
    seconds, stop, steps = 0.02, 20, 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        Slow.steps += 1
        if Slow.steps == self.stop:
            signal.raise_signal(signal.SIGINT)
        time.sleep(self.seconds)
        return np.zeros(3, np.float32), 1.0, Slow.steps % 5 == 0, False, {}


@pytest.mark.slow
@pytest.mark.parametrize(("n_steps", "steps"), [(4, 20), pytest.param(1000, 0, marks=pytest.mark.slow)])
def test_a_run_in_a_slow_environment_ends_soon(n_steps, steps, monkeypatch, tmp_path):
    """Between two calls of few blocks, or where one block takes long, within it, which is forgotten then."""
    monkeypatch.setattr(Slow, "steps", 0)
    monkeypatch.setattr(training, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(training, "CALL_SECONDS", 0.2)
    agent = trainer("A2C")([Slow()], model=NET, n_steps=n_steps, run_dir=str(tmp_path / "run"), quiet=True)
    outcome = agent.fit(max_steps=100_000)
    assert outcome.reason == "interrupted" and Slow.steps < 60
    assert (outcome.step >= steps) if steps else (outcome.step == 0)
    header = checkpoint.Checkpoint(checkpoint.latest(tmp_path / "run" / "checkpoints")).header
    assert header["training"]["step"] == outcome.step
    monkeypatch.setattr(Slow, "seconds", 0.0)
    assert agent.fit(max_steps=2000).step > 1500  # goes on, with episodes that begin anew
    history = read_history(tmp_path / "run" / "history.parquet")
    assert (history["episode_reward"] <= 5).all()
    agent.close()


@pytest.mark.slow
def test_long_and_short_calls_of_the_driver_learn_the_same(monkeypatch):
    def run(seconds):
        monkeypatch.setattr(training, "CALL_SECONDS", seconds)
        agent = trainer("A2C")("jax:CartPole-v1", n_envs=8, model=NET, seed=3, quiet=True)
        blocks, advance = [], DeviceDriver.advance
        monkeypatch.setattr(DeviceDriver, "advance", lambda self, n, *_: blocks.append(n) or advance(self, n))
        outcome = agent.fit(max_steps=10_000)
        monkeypatch.setattr(DeviceDriver, "advance", advance)
        return blocks, outcome, jax.device_get(agent.session.driver.train.state)

    (short, one, state), (long, other, same_state) = run(0.0), run(1e6)
    assert set(short) == {1} and max(long) > 50
    assert one[2:6] == other[2:6] and same(state, same_state)


@pytest.mark.slow
def test_ctrl_c_while_the_last_checkpoint_is_written_waits_for_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    save, saved = checkpoint.save, []

    def interrupted(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        saved.append(save(*args, **kwargs))
        return saved[-1]

    monkeypatch.setattr(checkpoint, "save", interrupted)
    run = RunConfig.from_dict({"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True, "run_dir": "run"})
    assert train(ExperimentConfig("a2c", {"model": NET}, run)).outcome.reason == "max_steps"
    assert saved and checkpoint.latest("run/checkpoints").absolute() == saved[-1]


def test_ctrl_c_while_a_call_is_read_leaves_the_agent_whole(monkeypatch):
    """The call has consumed the state that it began from: what it returned must have replaced it by then."""
    agent = operant.A2C("jax:CartPole-v1", n_envs=2, quiet=True, seed=1, model=NET)
    agent.fit(max_steps=20)

    def pressed(tree):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(device_driver.jax, "device_get", pressed)
        with pytest.raises(KeyboardInterrupt):
            agent.fit(max_steps=10_000)
    agent.act(np.zeros(4, np.float32))
    assert agent.fit(max_steps=12_000).reason == "max_steps"


@pytest.mark.slow
def test_ctrl_c_in_a_run_of_the_runner_leaves_the_agent_whole(monkeypatch):
    """The device driver's call consumes the agent's state: what it returns must come back before the
    interrupt goes on."""
    with Runner(dict(**A2C, n_steps=8), environment="jax:CartPole-v1", num_parallel=4) as runner:
        runner.run(num_updates=2, use_tqdm=False)
        advance = DeviceDriver.advance

        def interrupted(self, blocks, ahead=0):
            loop = self.compile()

            def stopped(*args):
                found = loop(*args)
                signal.raise_signal(signal.SIGINT)
                return found

            self._compiled[False] = stopped
            try:
                return advance(self, blocks)
            finally:
                self._compiled[False] = loop

        monkeypatch.setattr(DeviceDriver, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runner.run(num_updates=10_000_000, use_tqdm=False)
        monkeypatch.setattr(DeviceDriver, "advance", advance)
        assert runner.updates > 2 and runner.agent.updates == 2 + runner.updates
        runner.run(num_updates=3, use_tqdm=False)


def test_a_block_of_actors_out_of_step_is_learnt_whole_or_not_at_all(monkeypatch):
    agent = create({**REPLAY, "train_every": 2}, parallel_interactions=2)
    rows = [0, 0]

    def step(actor):
        agent.act(np.full(3, rows[actor], np.float32), parallel=actor)
        agent.observe(reward=1.0, terminal=False, parallel=actor)
        rows[actor] += 1

    remember = agent.engine._add

    def interrupted(*args):
        found = remember(*args)
        monkeypatch.setattr(agent.engine, "_add", remember)
        signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(agent.engine, "_add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(50):
            step(0)
            step(0)
            step(1)
    monkeypatch.setattr(agent.engine, "_add", remember)
    assert agent.timesteps == sum(rows)


def test_a_request_to_end_is_heard_at_once_and_a_second_ctrl_c_ends_the_program(capfd):
    stopped = []
    with signals.orderly(lambda: stopped.append(True)):
        signal.raise_signal(signal.SIGINT)
        assert stopped == [True] and "ending in order; Ctrl-C ends at once" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert stopped == [True]


DEAF = """
import contextlib, hashlib, sys
from operant.training import signals
orderly = signals.orderly(lambda: None) if sys.argv[1:] else contextlib.nullcontext()
with signals.answered(), orderly:
    print("begun", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # minutes in which Python handles no signal
"""


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [((), b"as soon as what is being compiled or computed is done"), (("run",), b"ending in order")],
)
def test_ctrl_c_is_answered_within_a_compiled_call_and_a_second_one_ends_it(arguments, answer):
    process = subprocess.Popen(
        [sys.executable, "-c", DEAF, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert process.stdout.readline() == b"begun\n"
        time.sleep(1)  # until the call has begun
        process.send_signal(signal.SIGINT)
        assert answer in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == b"operant: interrupted\n"


def test_ctrl_c_that_python_handles_is_answered_once(capfd):
    with pytest.raises(KeyboardInterrupt), signals.answered():
        signal.raise_signal(signal.SIGINT)
        time.sleep(9)
    with signals.answered(), signals.orderly(lambda: None):
        signal.raise_signal(signal.SIGINT)
        time.sleep(2 * signals.DEAF_SECONDS)
    assert capfd.readouterr().err == signals.ORDERLY.decode()
    assert signal.set_wakeup_fd(-1) == -1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


FORKS = """
import os, time
from operant.training import signals

with signals.answered():
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
os.kill(child, 9)
"""


def test_a_process_that_an_environment_forked_is_not_waited_for():
    subprocess.run([sys.executable, "-c", FORKS], timeout=30, check=True)


def test_a_second_request_to_terminate_breaks_nothing_off():
    """`timeout` and schedulers send theirs more than once; a person's Ctrl-C behind it ends at once."""
    stopped = []
    with pytest.raises(SystemExit) as ended, signals.terminating():
        with signals.orderly(lambda: stopped.append(True)):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        assert stopped == [True]
        with pytest.raises(KeyboardInterrupt), signals.orderly(lambda: None):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
    assert ended.value.code == 143


@pytest.mark.parametrize("ignored", [True, False])
def test_a_terminal_that_is_closed_ends_a_run_in_order_unless_that_is_ignored(ignored):
    before, stopped = signal.getsignal(signal.SIGHUP), []
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    ended = contextlib.nullcontext() if ignored else pytest.raises(SystemExit, match="129")
    try:
        with ended, signals.terminating(), signals.orderly(lambda: stopped.append(True)):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stopped == ([] if ignored else [True])


def test_a_handler_of_the_program_s_own_for_a_closed_terminal_stays():
    """Programs that run on read their settings again by it, say."""
    told = []
    before = signal.signal(signal.SIGHUP, lambda *_: told.append("own"))
    try:
        with signals.terminable(lambda: told.append("stop")):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert told == ["own"]


@pytest.mark.parametrize("first", [True, False])
def test_a_request_to_terminate_ends_the_program_whatever_else_it_runs(first):
    """As where a callback of `fit` trains another object: that came to its own end, and the program went
    on."""
    with (
        pytest.raises(SystemExit) as ended,
        signals.terminating(),
        signals.orderly(lambda: None),
    ):
        if first:
            signal.raise_signal(signal.SIGTERM)
        with signals.terminating():
            pass
        if not first:
            signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143


class Stuck(gymnasium.Env):
    """Hangs at a step of its process."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, after=40):
        self.left = after

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t, self.left = self.t + 1, self.left - 1
        if self.left < 0:
            time.sleep(600)
        return np.zeros(1, np.float32), 1.0, self.t == 5, False, {}


class Steady(Stuck):
    def __init__(self):
        super().__init__(10**9)


@pytest.mark.slow
@pytest.mark.parametrize("evaluating", [False, True])
def test_a_worker_that_hangs_does_not_keep_a_run_from_ending(evaluating, tmp_path, monkeypatch):
    """It would be waited for for a minute; schedulers kill after half of that."""
    monkeypatch.setattr(training, "PATIENCE_SECONDS", 0.5)
    count = {"calls": 0}
    poll = Worker.poll

    def polled(self, seconds):
        answered = poll(self, seconds)
        count["calls"] += not answered and seconds >= 1.0
        if count["calls"] == 2:
            signal.raise_signal(signal.SIGINT)
        return answered

    monkeypatch.setattr(Worker, "poll", polled)
    options = {"eval_envs": Stuck, "eval_frequency": 16, "eval_episodes": 20} if evaluating else {}
    envs = Steady if evaluating else Stuck
    with trainer("PPO")(envs, n_envs=2, vector="processes", quiet=True, n_steps=8, **options) as agent:
        began = time.perf_counter()
        result = agent.fit(max_steps=10**6)
        assert time.perf_counter() - began < 45
        assert result.reason == "interrupted" and result.step > 0
