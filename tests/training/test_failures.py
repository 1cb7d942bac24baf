"""Environments, callbacks and disks that fail: what was learnt before is saved."""

import enum
import functools
import signal
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from tests.execution.test_agent import NET

from operant import Runner, checkpoint
from operant.checkpoint import durable
from operant.cli import main
from operant.envs.validation_errors import raise_of_handler
from operant.errors import EnvError
from operant.execution.trainers.trainer import trainer
from operant.spec.run import RunConfig
from operant.tracking import read_history
from operant.training.session import WeightFiles
from operant.training.train import ExperimentConfig, train


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


@pytest.mark.slow
def test_what_fails_before_it_has_learnt_leaves_nothing(monkeypatch, tmp_path):
    """The same folder is taken again, also one that was there before."""
    monkeypatch.chdir(tmp_path)
    agent = trainer("A2C")([Counts(3, 10)], seed=0, quiet=True, n_steps=8, model=NET, run_dir="of-a-class")
    with pytest.raises(EnvError, match="no more"):
        agent.fit(max_steps=100)
    assert not any(Path("of-a-class").iterdir())
    gymnasium.register("Counts-v0", Counts, kwargs={"fail_at": 3, "length": 10})
    try:
        for fail_at in (3, 30):
            run = RunConfig(
                env="Counts-v0", env_kwargs={"fail_at": fail_at}, max_steps=100, run_dir="run", quiet=True
            )
            with pytest.raises(EnvError, match="no more"):
                train(ExperimentConfig("a2c", {"n_steps": 8, "model": NET}, run))
            assert Path("run/run.json").exists() == (fail_at == 30)  # after three updates
            Path("run").mkdir(exist_ok=True)
    finally:
        del gymnasium.registry["Counts-v0"]


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
    with pytest.raises(EnvError, match="no more"):
        agent.fit(max_steps=400)
    assert agent.steps == engine.counter("timesteps") == 51  # of 56 rows, of which 5 begin episodes
    assert agent.games == engine.counter("episodes") == 5
    learnt = len(blocks)
    agent.fit(max_steps=150)
    first, last = blocks[learnt], blocks[learnt - 1]
    assert not first.valid[0, 0] and first.valid[1:].all()
    assert first.observation["state"][0, 0] == last.observation["state"][-1, 0]
    assert first.observation["state"][1:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert agent.steps == engine.counter("timesteps") >= 150 - agent.games - 8
    history = read_history(tmp_path / "history.parquet")
    assert len(history["step"]) == agent.games == engine.counter("episodes")
    assert history["episode_reward"].tolist() == [55.0] * agent.games


@pytest.mark.slow
def test_training_outlives_a_checkpoint_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write, full = durable.write, [True]

    def once_full(*args):
        if full.pop() if full else False:
            raise OSError(28, "No space left on device")
        return write(*args)

    monkeypatch.setattr(durable, "write", once_full)
    run = RunConfig.from_dict(
        {"env": "jax:CartPole-v1", "max_steps": 40_001, "save_seconds": 0, "quiet": True, "run_dir": "run"}
    )
    with pytest.warns(RuntimeWarning, match="No checkpoint at step .*No space left"):
        outcome = train(ExperimentConfig("a2c", {"model": NET}, run)).outcome
    assert outcome.step > 39_000 and checkpoint.latest("run/checkpoints").name == f"step-{outcome.step:012d}"


@pytest.mark.slow
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
    with pytest.warns(RuntimeWarning, match="No weights of the best mean return at step .*No space"):
        outcome = train(ExperimentConfig("a2c", {"model": NET}, RunConfig.from_dict(told))).outcome
    assert outcome.step > 3500 and checkpoint.latest("run/checkpoints") is not None


def test_what_was_learnt_before_a_callback_failed_is_saved(tmp_path):
    def failing(agent, record):
        if agent.games:
            raise ConnectionError("the service is gone")

    agent = trainer("A2C")("jax:CartPole-v1", model=NET, run_dir=str(tmp_path / "run"), quiet=True)
    with pytest.raises(ConnectionError, match="the service is gone"):
        agent.fit(max_steps=100_000_000, callback=failing)
    saved = checkpoint.latest(tmp_path / "run" / "checkpoints")
    header = checkpoint.Checkpoint(saved).header["training"]
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("envs", "callback", "error", "told"),
    [
        (
            Leaves,
            None,
            EnvError,
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
    header = checkpoint.Checkpoint(checkpoint.latest(tmp_path / "run" / "checkpoints")).header["training"]
    assert header["step"] == agent.steps > 0 and header["ended"] == "failed"


@pytest.mark.parametrize(
    ("env", "error", "told"),
    [
        (Leaves, EnvError, r"^'Leaves' raised SystemExit in execute: 0 \(.*, line \d+"),
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
        with pytest.raises(EnvError, match=told):
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
