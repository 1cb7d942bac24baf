"""What an agent goes on with after interruptions, loading and experience from elsewhere: nothing lost,
nothing joined that does not belong together."""

import contextlib
import datetime
import enum
import errno
import functools
import json
import os
import shutil
import signal
import threading
import time
import types
import warnings
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from tests.execution.test_agent import CHOICE, NET, REPLAY, ROLLOUT, STATE

from operant import Agent, Environment, Runner, checkpoint
from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import Learner
from operant.agents.modules.sizes import block_rows, interval
from operant.checkpoint import durable
from operant.cli import main
from operant.envs.native.classic import CartPole
from operant.envs.validation_errors import raise_of_handler
from operant.errors import EnvironmentError, NumericalError, SpaceError, SpecError, UsageError
from operant.execution import traces
from operant.execution.algorithm.fit import trainer
from operant.memory.recent import Recent
from operant.memory.ring import VALID, flag
from operant.nn.backend import keras
from operant.spec.run import RunConfig
from operant.spec.spaces import Spaces
from operant.tracking import read_history
from operant.training import loop as training
from operant.training import signals
from operant.training.drivers.device import DeviceDriver
from operant.training.reproduce import replay
from operant.training.run_dir import claimed, held, new_directory
from operant.training.session import WeightFiles
from operant.training.train import ExperimentConfig, opened, resumed, resuming, train

A2C = {"agent": "a2c", "model": NET}
CRITIC = {"agent": "ac", "batch_size": 64, "network": NET}
GRADIENT = {"agent": "vpg", "update": {"unit": "timesteps", "batch_size": 8}, "network": NET}


def create(spec=ROLLOUT, states=STATE, **kwargs):
    return Agent.create(**spec, states=states, actions=CHOICE, max_episode_timesteps=50, **kwargs)


def play(agent, steps, seed=0):
    """Act and observe; return the updates that each call of observe told."""
    told, draw = [], np.random.default_rng(seed)
    for step in range(steps):
        agent.act(draw.normal(size=3).astype(np.float32))
        told.append(agent.observe(reward=1.0, terminal=step % 7 == 6))
    return told


def weights(agent):
    return jax.tree.map(np.asarray, agent.learner.algorithm.weights(agent.engine.train.state))


def same(one, other):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, one, other)))


@pytest.mark.slow
@pytest.mark.parametrize("spec", [pytest.param(ROLLOUT, id="ppo"), pytest.param(REPLAY, id="dqn")])
def test_masks_that_come_with_the_first_states_leave_loaded_weights(spec, tmp_path):
    agent = create(spec)
    play(agent, 24)
    assert agent.updates > 0
    agent.save(tmp_path, format="numpy")
    loaded = Agent.load(tmp_path, format="numpy")
    states = {"state": np.zeros(3, np.float32), "action_mask": np.array([False, True, False])}
    assert loaded.act(states, independent=True) == 1
    assert loaded.spaces.masks == ("action",)
    assert same(weights(loaded), weights(agent))
    assert loaded.updates == agent.updates
    for _ in range(30):
        assert loaded.act(states) == 1
        loaded.observe(reward=1.0)
    assert loaded.updates > agent.updates


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


def test_a_recorder_that_begins_between_act_and_observe_records_what_follows(tmp_path):
    agent = create()
    agent.act(np.ones(3, np.float32))
    agent.save(tmp_path)
    for lengths in ([], [3, 1]):
        with Agent.load(tmp_path, recorder=str(tmp_path / "traces")) as loaded:
            loaded.observe(reward=1.0, terminal=not lengths)
            for length in lengths:
                for left in reversed(range(length)):
                    loaded.act(np.ones(3, np.float32))
                    loaded.observe(reward=1.0, terminal=left == 0)
        found = [] if not lengths else traces.files(tmp_path / "traces")
        assert [len(traces.read(file, agent.spaces).reward) for file in found] == lengths
    assert len(list((tmp_path / "traces").iterdir())) == 2


def test_a_recorder_keeps_last_states_of_an_environment_that_writes_to_them(tmp_path):
    seen = np.zeros(3, np.float32)
    with create(recorder={"directory": str(tmp_path), "frequency": 2}) as agent:
        for episode in (1, 2):
            seen[:] = episode
            agent.act(seen)
            seen[:] = 10 * episode
            agent.observe(reward=1.0, terminal=True, next_states=seen)
    (file,) = traces.files(tmp_path)
    trace = traces.read(file, agent.spaces)
    assert trace.observation["state"][:, 0].tolist() == [1.0, 2.0]
    assert trace.last["state"][:, 0].tolist() == [10.0, 20.0]


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


@pytest.mark.parametrize("env", ["jax:CartPole-v1", pytest.param("CartPole-v1", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_open_episodes_of_a_loaded_run_end_where_they_were_left(env, tmp_path):
    options = {k: v for k, v in REPLAY.items() if k != "agent"}
    run = RunConfig.from_dict(
        {"env": env, "n_envs": 2, "max_steps": 64, "quiet": True, "run_dir": str(tmp_path / "run")}
    )
    train(ExperimentConfig("dqn", options, run))
    agent = Agent.load(tmp_path / "run")
    rows = [actor.rows for actor in agent.actors]
    assert [len(own) for own in rows] == [1, 1]
    assert not any(own[0].valid for own in rows)
    new = np.full((2, 4), 0.25, np.float32)
    for _ in range(3):
        agent.act(new, parallel=[0, 1])
        agent.observe(reward=[1.0, 1.0], terminal=[0, 0], parallel=[0, 1])
    replay, memory = agent.learner.algorithm.memory, agent.engine.train.memory
    batch = replay.sample(memory, jax.random.key(0), 4096, 0.99)
    seam = (np.asarray(batch.next_observation["state"]) == 0.25).all(-1) & (batch.discount > 0)
    assert seam.any()
    assert (
        np.asarray(batch.observation["state"])[seam] == 0.25
    ).all()  # nobody came there from the run's last step


@pytest.mark.slow
def test_reward_normalisation_goes_on_with_another_number_of_actors(tmp_path):
    agent = create({**ROLLOUT, "normalize_rewards": True})
    play(agent, 20)
    agent.save(tmp_path)
    loaded = Agent.load(tmp_path, parallel_interactions=3)
    scale, before = loaded.engine.train.state.reward_scale, agent.engine.train.state.reward_scale
    assert scale.total.shape == (3,)
    assert same(jax.tree.map(np.asarray, scale.moments), jax.tree.map(np.asarray, before.moments))
    for _ in range(8):
        loaded.act(np.zeros((3, 3), np.float32), parallel=[0, 1, 2])
        loaded.observe(reward=[1.0] * 3, terminal=[0] * 3, parallel=[0, 1, 2])
    assert loaded.updates > agent.updates


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["timesteps", "episodes"])
def test_the_updates_of_loaded_weights_are_counted_on(unit, tmp_path):
    spec = {**GRADIENT, "update": {"unit": unit, "batch_size": 8 if unit == "timesteps" else 2}}
    agent = create(spec)
    play(agent, 60)
    before = agent.updates
    assert before > 2
    agent.save(tmp_path, format="numpy")
    loaded = Agent.load(tmp_path, format="numpy")
    assert loaded.updates == before
    told = play(loaded, 40, seed=1)
    assert told[0] == 0  # none is due at once
    assert set(told) == {0, 1}
    assert loaded.updates == before + sum(told)


def test_a_memory_that_is_younger_than_the_run_fills_before_one_learns_from_it(tmp_path):
    agent = create({**REPLAY, "buffer_initial_size": 40})
    play(agent, 100)
    agent.save(tmp_path, format="numpy")
    loaded = Agent.load(tmp_path, format="numpy")
    kept = weights(loaded)
    play(loaded, 30, seed=1)
    assert same(weights(loaded), kept)
    play(loaded, 30, seed=2)
    assert not same(weights(loaded), kept)


def test_a_share_of_the_batch_is_the_same_number_for_blocks_and_for_what_is_due():
    for batch in (50, 100, 200, 1000):
        for percent in range(1, 100):
            settings = parse_agent(
                "modular", unit="timesteps", batch_size=batch, frequency=percent / 100
            ).config
            rows = block_rows(settings, 1)
            assert rows == max(1, percent * batch // 100)
            assert interval(settings, jax.numpy.float32(percent / 100)) == rows


@pytest.mark.slow
def test_episodes_from_elsewhere_are_shared_out_among_actors():
    agent = create(CRITIC, parallel_interactions=4)
    memory = agent.learner.algorithm.memory
    assert isinstance(memory, Recent)
    rows = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    terminal = np.arange(64) % 8 == 7
    kept = weights(agent)
    agent.experience(states=rows, actions=np.arange(64) % 3, terminal=terminal, reward=np.ones(64))
    assert agent.update() >= 1
    assert not same(weights(agent), kept)
    held = memory.block(agent.engine.train.memory).valid
    assert held.sum(axis=0).min() >= 8  # one of the episodes that each actor got


@pytest.mark.slow
def test_one_long_episode_in_small_memories_is_told_with_the_remedy():
    agent = create(CRITIC, parallel_interactions=4)
    rows = np.zeros((40, 3), np.float32)
    terminal = np.arange(40) == 39
    with pytest.warns(
        RuntimeWarning,
        match=r"episode of 40 steps is longer than the memory of one actor, \d+ rows.*Give capacity",
    ):
        agent.experience(states=rows, actions=np.zeros(40, int), terminal=terminal, reward=np.ones(40))
    assert agent.update() >= 1
    memory = agent.learner.algorithm.memory
    assert memory.block(agent.engine.train.memory).valid.sum() == 24  # of the last two columns
    large = create({**CRITIC, "capacity": 256}, parallel_interactions=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        large.experience(states=rows, actions=np.zeros(40, int), terminal=terminal, reward=np.ones(40))
    assert large.update() >= 1
    assert large.learner.algorithm.memory.block(large.engine.train.memory).valid.sum() == 40


@pytest.mark.parametrize(
    "name", ["Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]
)
def test_a_policy_of_a_native_environment_fits_the_one_that_it_equals(name):
    one, other = (Environment.create(environment=prefix + name) for prefix in ("", "jax:"))
    native, usual = (Spaces.read(env.states(), env.actions()) for env in (other, one))
    assert native == usual
    assert hash(native.states) == hash(usual.states)
    assert native != Spaces.read({"type": "float", "shape": (4,)}, usual.actions.to_spec())


def test_spectral_normalisation_is_refused():
    k = keras()
    inputs = k.Input((3,))
    features = k.layers.SpectralNormalization(k.layers.Dense(3), name="spectral")(inputs)
    network = k.Model(inputs, [k.layers.Dense(3)(features), k.layers.Dense(1)(features)])
    with pytest.raises(
        SpecError, match="Spectral normalisation .* the layer 'spectral'.*layer normalisation"
    ):
        create({**ROLLOUT, "model": network})


def test_what_is_no_number_and_no_internals_is_told():
    agent = create({**ROLLOUT, "model": [{"type": "gru", "size": 4}], "mini_batches": 1})
    agent.act(np.zeros(3, np.float32))
    for reward in ("a", None):
        with pytest.raises(SpaceError, match=f"reward must be a number. Received: reward={reward!r}"):
            agent.observe(reward=reward)
    with pytest.raises(
        SpaceError, match=r"Received: reward=\[1.0, 1.0\]. Those of several actors need parallel="
    ):
        agent.observe(reward=[1.0, 1.0])
    internals = agent.initial_internals()
    for wrong in (5, {"x": 1}, jax.tree.map(lambda x: x[:2], internals)):
        with pytest.raises(SpaceError, match="internals must have the shapes .* as initial_internals"):
            agent.act(np.zeros(3, np.float32), internals=wrong, independent=True)
    with pytest.raises(SpaceError, match="internals must have the shapes"):
        agent.act(np.zeros((3, 3), np.float32), internals=internals, independent=True)
    _, after = agent.act(np.zeros(3, np.float32), internals=internals, independent=True)
    assert jax.tree.map(np.shape, after) == jax.tree.map(np.shape, internals)
    with pytest.raises(SpecError, match="directory must be the path of a folder. Received: directory=5"):
        Agent.load(directory=5)


class Counts(gymnasium.Env):
    """The observation is the step's number in the episode, so is the reward; one call of step fails."""

    observation_space = gymnasium.spaces.Box(0, 1000, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fail_at, length):
        self.calls, self.t, self.fail_at, self.length = 0, 0, fail_at, length

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("no more")
        self.t += 1
        return np.full(1, self.t, np.float32), float(self.t), self.t >= self.length, False, {}


def test_a_block_in_which_an_environment_fails_is_forgotten(monkeypatch, tmp_path):
    """What is learnt from afterwards joins no rows that do not follow each other.

    The episodes before are all told.
    """
    agent = trainer("A2C")([Counts(53, 10)], seed=0, quiet=True, n_steps=8, model=NET, run_dir=str(tmp_path))
    engine, blocks = agent.session.driver.engine, []
    advance = engine.advance

    def watched(block, *rest):
        blocks.append(jax.tree.map(np.array, block))
        return advance(block, *rest)

    monkeypatch.setattr(engine, "advance", watched)
    with pytest.raises(EnvironmentError, match="no more"):
        agent.fit(max_steps=400)
    assert agent.steps == engine.counter("timesteps") == 51  # of 56 rows, of which 5 begin episodes
    assert agent.games == engine.counter("episodes") == 5
    learnt = len(blocks)
    agent.fit(max_steps=150)
    first, last = blocks[learnt], blocks[learnt - 1]
    assert not first.valid[0, 0] and first.valid[1:].all()
    assert first.observation["state"][0, 0] == last.observation["state"][-1, 0]
    assert first.observation["state"][1:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert agent.steps == engine.counter("timesteps") >= 150
    history = read_history(tmp_path / "history.parquet")
    assert len(history["step"]) == agent.games == engine.counter("episodes")
    assert history["episode_reward"].tolist() == [55.0] * agent.games


def test_training_outlives_a_checkpoint_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write, full = durable.write, [True]

    def once_full(*args):
        if full.pop() if full else False:
            raise OSError(28, "No space left on device")
        return write(*args)

    monkeypatch.setattr(durable, "write", once_full)
    run = RunConfig.from_dict(
        {"env": "jax:CartPole-v1", "max_steps": 40_000, "save_seconds": 0, "quiet": True, "run_dir": "run"}
    )
    with pytest.warns(RuntimeWarning, match="No checkpoint at step .*No space left"):
        outcome = train(ExperimentConfig("a2c", {"model": NET}, run)).outcome
    assert outcome.step >= 40_000 and checkpoint.latest("run/checkpoints").name == f"step-{outcome.step:012d}"


@pytest.mark.parametrize("earlier", [False, True])
def test_a_last_checkpoint_that_cannot_be_written_names_the_one_to_go_on_from(
    monkeypatch, tmp_path, capsys, earlier
):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    command = [
        "train",
        "a2c",
        "--env",
        "jax:CartPole-v1",
        "--quiet",
        "--run-dir",
        "run",
        "--max-steps",
        "500",
    ]
    after = "begins anew: there is no other"
    if earlier:
        assert main(command) == 0
        after = f"goes on from {str(checkpoint.latest('run/checkpoints'))!r}"
        command = ["train", "--resume", "run", "--max-steps", "1000"]
    with monkeypatch.context() as patch:
        patch.setattr(durable, "write", full)
        assert main(command) == 1
    error = capsys.readouterr().err
    assert error.startswith("operant: No space left on device: the last checkpoint, at step ")
    assert (
        f"could not be written to 'run/checkpoints'. Make room there, then resume the run, which {after}."
        in error
    )
    assert main(["train", "--resume", "run", "--max-steps", "1000", "--quiet"]) == 0


def test_training_outlives_weights_that_cannot_be_written(monkeypatch, tmp_path):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(WeightFiles, "save", full)
    told = {
        "env": "jax:CartPole-v1",
        "max_steps": 4000,
        "quiet": True,
        "run_dir": "run",
        "checkpoints": ("a.tf",),
    }
    with pytest.warns(RuntimeWarning, match="No checkpoint at step .*No space left"):
        outcome = train(ExperimentConfig("a2c", {"model": NET}, RunConfig.from_dict(told))).outcome
    assert outcome.step >= 4000 and checkpoint.latest("run/checkpoints") is not None


def test_what_was_learnt_before_a_callback_failed_is_saved(tmp_path):
    def failing(agent, record):
        if agent.games:
            raise ConnectionError("the service is gone")

    agent = trainer("A2C")("jax:CartPole-v1", model=NET, run_dir=str(tmp_path / "run"), quiet=True)
    with pytest.raises(ConnectionError, match="the service is gone"):
        agent.fit(max_steps=100_000_000, callback=failing)
    saved = checkpoint.latest(tmp_path / "run" / "checkpoints")
    header = checkpoint.read_header(saved)["training"]
    assert header["step"] == agent.steps > 0 and header["ended"] == "failed"
    assert len(read_history(tmp_path / "run" / "history.parquet")["step"]) == agent.games > 0


class Leaves(gymnasium.Env):
    """Ends the program, as some simulators do where they fail."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.t == 7 and self.np_random.random() < 0.1:
            raise SystemExit(0)
        return np.zeros(3, np.float32), 1.0, self.t == 7, False, {}


class Told(Leaves):
    """While it steps, comes a signal on which its program ends."""

    def step(self, action):
        self.t += 1
        if self.t == 7:
            signal.raise_signal(signal.SIGUSR1)
        return np.zeros(3, np.float32), 1.0, self.t == 7, False, {}


class Program:
    def ends(self, number, frame, status=4):
        raise SystemExit(status)

    def __call__(self, number, frame):
        self.ends(number, frame)


def ends(agent, record):
    raise SystemExit(3)


@pytest.fixture
def restored_signals():
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("envs", "callback", "error", "told"),
    [
        (
            Leaves,
            None,
            EnvironmentError,
            r"^Environment 0 of 'Leaves' raised SystemExit in step: 0 \(.*, line \d+",
        ),
        ("CartPole-v1", ends, SystemExit, "^3$"),
        (Told, None, SystemExit, "^4$"),
    ],
)
def test_what_was_learnt_before_somebody_ended_the_program_is_saved(
    envs, callback, error, told, tmp_path, restored_signals
):
    signal.signal(signal.SIGUSR1, Program().ends)
    envs = envs if isinstance(envs, str) else [envs()]
    agent = trainer("A2C")(envs, model=NET, n_steps=4, run_dir=str(tmp_path / "run"), quiet=True)
    with pytest.raises(error, match=told):
        agent.fit(max_steps=100_000_000, callback=callback)
    header = checkpoint.read_header(checkpoint.latest(tmp_path / "run" / "checkpoints"))["training"]
    assert header["step"] == agent.steps > 0 and header["ended"] == "failed"


@pytest.mark.parametrize(
    ("env", "error", "told"),
    [
        (Leaves, EnvironmentError, r"^'Leaves' raised SystemExit in execute: 0 \(.*, line \d+"),
        (Told, SystemExit, "^4$"),
    ],
)
def test_a_runner_tells_which_environment_ended_the_program(env, error, told, restored_signals):
    signal.signal(signal.SIGUSR1, Program().ends)
    with (
        pytest.raises(error, match=told),
        Runner("random", environment=env(), max_episode_timesteps=9) as runner,
    ):
        runner.run(num_episodes=1000)


class Unmade(Leaves):
    def __init__(self):
        raise SystemExit(0)


def test_an_environment_that_ends_the_program_as_it_is_made_is_told():
    told = r"^'Unmade' raised SystemExit as it was made: 0 \(.*, line \d+"
    for make in (lambda: Runner("random", Unmade), lambda: trainer("A2C")(Unmade, model=NET)):
        with pytest.raises(EnvironmentError, match=told):
            make()


@pytest.mark.parametrize("handler", [Program(), functools.partial(Program().ends, status=4)])
def test_handlers_of_every_kind_end_the_program(handler, restored_signals):
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(SystemExit) as caught:
        signal.raise_signal(signal.SIGUSR1)
    with pytest.raises(SystemExit, match="^4$"):
        raise_of_handler(caught.value)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise_of_handler(caught.value)


class Gear(enum.Enum):
    FIRST = 1

    @classmethod
    def _missing_(cls, value):
        raise SystemExit(0)


def test_what_the_system_handles_is_no_handler():
    """`signal.SIG_DFL` is an entry of an enum, which is called, too."""
    with pytest.raises(SystemExit) as caught:
        Gear(2)
    raise_of_handler(caught.value)


def test_commands_that_are_shown_are_quoted():
    assert resuming("my rün", "ppo", "CartPole-v1") == "operant train --resume 'my rün'"
    assert resuming("runs/1", "mine:A", "its:E") == "operant train mine:A --resume runs/1 --env its:E"


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
    header = checkpoint.read_header(checkpoint.latest(tmp_path / "run" / "checkpoints"))
    assert header["training"]["step"] == outcome.step
    monkeypatch.setattr(Slow, "seconds", 0.0)
    assert agent.fit(max_steps=2000).step >= 2000  # goes on, with episodes that begin anew
    history = read_history(tmp_path / "run" / "history.parquet")
    assert (history["episode_reward"] <= 5).all()
    agent.close()


@pytest.mark.slow
def test_long_and_short_calls_of_the_driver_learn_the_same(monkeypatch):
    def run(seconds):
        monkeypatch.setattr(training, "CALL_SECONDS", seconds)
        agent = trainer("A2C")("jax:CartPole-v1", n_envs=8, model=NET, seed=3, quiet=True)
        blocks, advance = [], DeviceDriver.advance
        monkeypatch.setattr(DeviceDriver, "advance", lambda self, n: blocks.append(n) or advance(self, n))
        outcome = agent.fit(max_steps=10_000)
        monkeypatch.setattr(DeviceDriver, "advance", advance)
        return blocks, outcome, jax.device_get(agent.session.driver.train.state)

    (short, one, state), (long, other, same_state) = run(0.0), run(1e6)
    assert set(short) == {1} and max(long) > 50
    assert one[2:6] == other[2:6] and same(state, same_state)


def test_a_history_that_others_continued_keeps_their_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(name, steps):
        told = {"env": "jax:CartPole-v1", "quiet": True, "history_checkpoint": "h.parquet", "run_dir": name}
        return train(
            ExperimentConfig("a2c", {"model": NET}, RunConfig.from_dict({**told, "max_steps": steps}))
        )

    run("one", 500)
    run("other", 1000)
    rows = read_history("h.parquet")
    with pytest.raises(UsageError, match="ended at step 5.*another run has continued it.*--weights"):
        train(resumed("one", {"max_steps": 800}))
    np.testing.assert_array_equal(read_history("h.parquet")["step"], rows["step"])
    train(resumed("other", {"max_steps": 1500}))
    assert len(read_history("h.parquet")["step"]) > len(rows["step"])


@pytest.mark.slow
def test_checkpoints_every_so_many_steps_and_how_many_are_kept(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    told = {"env": "jax:CartPole-v1", "n_envs": 2, "seed": 1, "quiet": True, "save_frequency": 1000}

    def steps(name, **own):
        train(
            ExperimentConfig(
                "a2c",
                {"model": NET},
                RunConfig.from_dict({**told, "run_dir": name, "max_steps": 3500, **own}),
            )
        )
        return [
            int(path.name.removeprefix("step-"))
            for path in checkpoint.list_checkpoints(f"{name}/checkpoints")
        ]

    found = steps("all", keep_checkpoints=None)
    assert [step // 1000 for step in found] == [1, 2, 3, 3] and all(step % 1000 < 20 for step in found[:3])
    assert steps("two", keep_checkpoints=2) == found[2:]
    assert steps("three") == found[1:]
    train(resumed("two", {"max_steps": 4500, "keep_checkpoints": None}))
    assert [path.name for path in checkpoint.list_checkpoints("two/checkpoints")][:2] == [
        f"step-{s:012d}" for s in found[2:]
    ]
    assert len(checkpoint.list_checkpoints("two/checkpoints")) == 4


def test_a_run_is_not_resumed_while_a_process_trains_in_it(tmp_path):
    told = {"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True, "run_dir": str(tmp_path / "run")}
    train(ExperimentConfig("a2c", {"model": NET}, RunConfig.from_dict(told)))
    with held(tmp_path / "run"), pytest.raises(UsageError, match="Another process trains in"):
        train(resumed(tmp_path / "run", {"max_steps": 128}))
    assert train(resumed(tmp_path / "run", {"max_steps": 128})).outcome.step >= 128


def test_a_process_writes_to_a_folder_that_it_holds(tmp_path):
    """As weights beside a run, or what a callback saves: it waited for its own lock, for ever."""
    with held(tmp_path):
        writer = threading.Thread(
            target=lambda: checkpoint.save(tmp_path, {"x": np.ones(3)}, {}, name="step-1"), daemon=True
        )
        writer.start()
        writer.join(10.0)
        assert not writer.is_alive()
        with pytest.raises(UsageError, match="Another process trains in"), held(tmp_path):
            pass
    checkpoint.save(tmp_path, {"x": np.ones(3)}, {}, name="step-2")
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == ["step-1", "step-2"]
    with held(tmp_path):
        pass


def test_a_folder_is_held_until_no_thread_writes_there(tmp_path):
    inside, go_on, order = threading.Event(), threading.Event(), []

    def write():
        with durable.locked(tmp_path):
            inside.set()
            go_on.wait(30)
            order.append("written")

    writer = threading.Thread(target=write)
    with durable.locked(tmp_path, wait=False):
        writer.start()
        assert inside.wait(30)
        threading.Timer(0.3, go_on.set).start()
    order.append("let go")
    writer.join(30)
    assert order == ["written", "let go"]


def test_who_waits_for_a_folder_of_another_process_is_told(tmp_path, monkeypatch):
    other, hold = durable.hold(tmp_path), durable.hold

    def waited(path, wait=False):
        if wait:  # by now it was told
            os.close(other)
        return hold(path, wait)

    monkeypatch.setattr(durable, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(durable, "hold", waited)
    with pytest.warns(RuntimeWarning, match="is held by another process, such as a run that trains there"):
        checkpoint.save(tmp_path, {"x": np.ones(3)}, {}, name="step-1")
    assert (tmp_path / "step-1").is_dir()


def without_locks(*args):
    raise OSError(errno.ENOSYS, "Function not implemented")


def test_a_file_system_without_locks_is_no_obstacle(monkeypatch, tmp_path):
    monkeypatch.setattr("fcntl.flock", without_locks)
    with pytest.warns(RuntimeWarning, match="is not held against other processes"):
        checkpoint.save(tmp_path, {"x": np.ones(3)}, {}, name="step-1")
    assert (tmp_path / "step-1").is_dir()


@pytest.mark.slow
def test_counters_beyond_their_range_stay_large():
    """32 bits are minutes of the fastest environments: schedules must not begin again then, nor
    exploration."""
    definition, env = parse_agent("pqn", model=NET, n_steps=8, epsilon_decay_steps=1000), CartPole()
    driver = DeviceDriver(
        Learner(definition.cls.create(definition.config, env.spaces, 4)), env, 4, jax.random.key(0)
    )
    late = np.uint32(2**32 - 40)
    counters = driver.train.counters._replace(
        timesteps=jax.numpy.asarray(late), updates=jax.numpy.asarray(late)
    )
    driver.restore(driver.train._replace(counters=counters), driver.snapshot(), step=2**32 - 40)
    for _ in range(2):
        driver.advance(2)
        assert driver.metrics()["explore/epsilon"] == pytest.approx(definition.config.epsilon_end)
    assert int(driver.train.counters.timesteps) == 2**31 + driver.step - 2**32 > 2**31
    assert 2**32 + 60 < driver.step <= 2**32 + 88


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


def test_ctrl_c_in_a_run_of_the_runner_leaves_the_agent_whole(monkeypatch):
    """The device driver's call consumes the agent's state: what it returns must come back before the
    interrupt goes on."""
    with Runner(dict(**A2C, n_steps=8), environment="jax:CartPole-v1", num_parallel=4) as runner:
        runner.run(num_updates=2, use_tqdm=False)
        advance = DeviceDriver.advance

        def interrupted(self, blocks):
            loop = self.compile()

            def stopped(*args):
                found = loop(*args)
                signal.raise_signal(signal.SIGINT)
                return found

            self._compiled = stopped
            try:
                return advance(self, blocks)
            finally:
                self._compiled = loop

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


def test_an_interrupted_resumption_goes_on_to_the_limits_that_it_was_given(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run = RunConfig.from_dict(
        {"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True, "run_dir": "run", "seed": 1}
    )
    train(ExperimentConfig("a2c", {"model": NET}, run))
    train(resumed("run", {"max_steps": 128}))
    assert resumed("run", {}).run.max_steps == 128
    assert resumed("run", {"target_reward": 9.0}).run.target_reward == 9.0


def test_options_without_effect_are_refused_but_those_of_stored_runs_forgotten(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    told = {"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True, "run_dir": "run", "seed": 1}
    idle = {"early_stop_patience": 1, "plateau_reduce_factor": 0.1, "plateau_reduce_patience": 1}
    for name, value in idle.items():
        with pytest.raises(SpecError, match=f"{name} is for divergence monitoring.*Add --divergence-mon"):
            RunConfig.from_dict({**told, name: value})
    assert RunConfig.from_dict({**told, **idle, "divergence_monitoring_steps": 0}).early_stop_patience == 1
    for name in ("clip_rewards", "episodic_life"):
        with pytest.raises(SpecError, match=f"{name} is for preprocessed games"):
            train(ExperimentConfig("a2c", {"model": NET}, RunConfig.from_dict({**told, name: False})))
    with pytest.raises(SpecError, match="vector is for environments that are not JAX-native.*'processes'"):
        train(ExperimentConfig("a2c", {"model": NET}, RunConfig.from_dict({**told, "vector": "processes"})))
    (tmp_path / "run").mkdir()
    stored = {**RunConfig.from_dict(told).to_dict(), **idle, "clip_rewards": False, "vector": "in-process"}
    (tmp_path / "run" / "run.json").write_text(json.dumps({"agent": {"type": "a2c"}, "run": stored}))
    run = resumed("run", {"max_steps": 128}).run
    assert (run.early_stop_patience, run.clip_rewards) == (3, False)  # as it always was, whatever is made now
    assert train(resumed("run", {"max_steps": 128})).outcome.step >= 128
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    games = {"agent": {"type": "a2c"}, "run": stored, "preprocessed": True}  # as a function may make them
    (tmp_path / "run" / "run.json").write_text(json.dumps(games))
    assert not resumed("run", {"max_steps": 128}).run.clip_rewards


@pytest.mark.slow
def test_a_target_is_reached_at_the_same_step_in_two_parts_as_in_one(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    steps = []
    for name, first in (("whole", None), ("parts", 3000)):
        told = {"env": "jax:CartPole-v1", "n_envs": 2, "quiet": True, "run_dir": name, "seed": 1}
        told |= {"target_reward": 40.0, "max_steps": 400_000, "reward_buffer_size": 20}
        if first is not None:
            train(
                ExperimentConfig(
                    "a2c",
                    {"model": NET},
                    RunConfig.from_dict(told | {"target_reward": None, "max_steps": first}),
                )
            )
            plan = resumed(name, {"target_reward": 40.0, "max_steps": 400_000})
        else:
            plan = ExperimentConfig("a2c", {"model": NET}, RunConfig.from_dict(told))
        outcome = train(plan).outcome
        assert outcome.reason == "target" and outcome.step > 8192
        steps.append(outcome.step)
    assert steps[0] == steps[1]


def test_a_run_goes_on_without_the_weights_from_which_it_began(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    told = {"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True}
    train(
        ExperimentConfig(
            "a2c",
            {"model": NET},
            RunConfig.from_dict({**told, "run_dir": "first", "checkpoints": ("wt/a.tf",)}),
        )
    )
    train(
        ExperimentConfig(
            "a2c", {"model": NET}, RunConfig.from_dict({**told, "run_dir": "run", "weights": ("wt/a.tf",)})
        )
    )
    shutil.rmtree("wt")
    assert train(resumed("run", {"max_steps": 128})).outcome.step >= 128
    opened("run")[0].environments.close()


def test_a_run_in_environments_of_a_program_is_not_resumed_in_others(tmp_path):
    def scaled():
        return gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda reward: reward / 100)

    for name, envs in (("own", [scaled()]), ("plain", [gymnasium.make("CartPole-v1")])):
        path = str(tmp_path / name)
        trainer("A2C")(envs, run_dir=path, seed=0, quiet=True, model=NET).fit(max_steps=64)
        if name == "plain":
            assert train(resumed(path, {"max_steps": 128})).outcome.step >= 128
        else:
            with pytest.raises(SpecError, match="was trained in environments that its program made"):
                resumed(path, {"max_steps": 128})
            with pytest.raises(SpecError, match="was trained in environments that its program made"):
                replay(path)


def test_a_limit_above_the_native_environments_own_is_refused():
    run = RunConfig.from_dict({"env": "jax:CartPole-v1", "max_steps": 64, "max_episode_timesteps": 10_000})
    with pytest.raises(SpecError, match="max_episode_timesteps must be at most 500"):
        train(ExperimentConfig("a2c", {"model": NET}, run))


def test_two_runs_at_once_do_not_share_a_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run = RunConfig.from_dict({"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True})
    with claimed(run, "a2c") as one, claimed(run, "a2c") as other:
        assert one != other and one.is_dir() and other.is_dir()
    assert not (tmp_path / "runs").exists()  # nothing was written
    named = run.replace(run_dir="here")
    with claimed(named, "a2c"), pytest.raises(UsageError, match="run_dir must be a new or empty folder"):
        train(ExperimentConfig("a2c", {"model": NET}, named))
    assert train(ExperimentConfig("a2c", {"model": NET}, named)).outcome.step >= 64
    assert sorted(path.name for path in (tmp_path / "here").iterdir())[0] != ".claim"


def test_runs_that_begin_in_one_second_are_numbered(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    clock = types.SimpleNamespace(now=lambda: datetime.datetime(2026, 1, 2))
    monkeypatch.setattr("operant.training.run_dir.datetime", types.SimpleNamespace(datetime=clock))
    run = RunConfig.from_dict({"env": "my_games:Pong-v0", "max_steps": 64})
    for number in ("", "_2", "_3"):
        directory = new_directory(run, "a2c")
        assert directory == Path(f"runs/a2c-my_games-Pong-v0-20260102-000000{number}")
        directory.mkdir(parents=True)


def test_the_claim_of_a_process_that_died_keeps_nobody_out(monkeypatch, tmp_path):
    claim = tmp_path / "run" / ".claim"
    told = {"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True, "run_dir": str(tmp_path / "run")}
    run = RunConfig.from_dict(told)
    (claim.parent / "seed-1").mkdir(parents=True)
    for path in (claim, claim.parent / "seed-1" / ".claim", claim.parent / ".tmp-01ab-run.json"):
        path.touch()  # and it died before it wrote what its run is, or in the midst of it
    with monkeypatch.context() as patch, pytest.raises(UsageError, match="run_dir must be a new or empty"):
        patch.setattr("fcntl.flock", without_locks)  # nobody can tell whether it died
        train(ExperimentConfig("a2c", {"model": NET}, run))
    assert train(ExperimentConfig("a2c", {"model": NET}, run)).outcome.step >= 64
    assert not claim.exists() and not list(claim.parent.glob(".tmp-*"))
    claim.touch()  # it died later
    train(resumed(claim.parent, {"max_steps": 128}))
    assert not claim.exists()


def test_a_ctrl_c_that_a_callback_swallowed_ends_the_run_in_order(monkeypatch):
    monkeypatch.setattr(signals._SignalFlags, "now", False)
    before, stopped = signal.getsignal(signal.SIGINT), []
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signals.notice()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)  # as in a callback that discards what is raised
        with signals.orderly(lambda: stopped.append(True)):
            pass
        with signals.orderly(lambda: stopped.append(True)):
            pass
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped == [True]


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
