"""Runs that are resumed, and what they go on with."""

import json
import shutil
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from tests.execution.test_agent import NET
from tests.training.small_runs import opened

from operant import checkpoint
from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import Learner
from operant.envs.native.classic import CartPole
from operant.errors import CheckpointError, SpecError, UsageError
from operant.execution.trainers.trainer import trainer
from operant.spec.run import RunConfig
from operant.tracking import read_history
from operant.training.drivers.device_driver import DeviceDriver
from operant.training.reproduce import reproduce
from operant.training.train import ExperimentConfig, resumed, resuming, train


def test_commands_that_are_shown_are_quoted():
    assert resuming("my rün", "ppo", "CartPole-v1") == "operant train --resume 'my rün'"
    assert resuming("runs/1", "mine:A", "its:E") == "operant train mine:A --resume runs/1 --env its:E"


@pytest.mark.slow
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
    with pytest.raises(UsageError, match="ended at step 4.*another run has continued it.*--weights"):
        train(resumed("one", {"max_steps": 800}))
    np.testing.assert_array_equal(read_history("h.parquet")["step"], rows["step"])
    train(resumed("other", {"max_steps": 1500}))
    assert len(read_history("h.parquet")["step"]) > len(rows["step"])


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


@pytest.mark.slow
def test_an_interrupted_resumption_goes_on_to_the_limits_that_it_was_given(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run = RunConfig.from_dict(
        {"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True, "run_dir": "run", "seed": 1}
    )
    train(ExperimentConfig("a2c", {"model": NET}, run))
    train(resumed("run", {"max_steps": 128}))
    assert resumed("run", {}).run.max_steps == 128
    assert resumed("run", {"target_reward": 9.0}).run.target_reward == 9.0


def test_options_without_effect_are_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    options = {"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True, "run_dir": "run", "seed": 1}
    idle = {"early_stop_patience": 1, "plateau_reduce_factor": 0.1, "plateau_reduce_patience": 1}
    for name, value in idle.items():
        with pytest.raises(SpecError, match=f"{name} is for divergence monitoring.*Add --divergence-mon"):
            RunConfig.from_dict({**options, name: value})
    assert RunConfig.from_dict({**options, **idle, "divergence_monitoring_steps": 0}).early_stop_patience == 1
    for name in ("clip_rewards", "episodic_life"):
        with pytest.raises(SpecError, match=f"{name} is for preprocessed games"):
            train(ExperimentConfig("a2c", {"model": NET}, RunConfig.from_dict({**options, name: False})))
    with pytest.raises(SpecError, match="vector is for environments that are not JAX-native.*'processes'"):
        train(
            ExperimentConfig("a2c", {"model": NET}, RunConfig.from_dict({**options, "vector": "processes"}))
        )


def test_files_of_an_earlier_state_are_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run = RunConfig.from_dict({"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True, "run_dir": "run"})
    train(ExperimentConfig("a2c", {"model": NET}, run))
    written = Path("run/run.json").read_text()
    data = json.loads(written)
    del data["given"]
    Path("run/run.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match="'run/run.json' comes from an earlier, unreleased state"):
        resumed("run", {"max_steps": 128})
    Path("run/run.json").write_text(written)
    newest = checkpoint.newest("run/checkpoints")
    del newest.header["training"]["draws"]
    monkeypatch.setattr(checkpoint, "newest", lambda place, **_: newest)
    with pytest.raises(CheckpointError, match="earlier, unreleased state of operant .'draws' is missing"):
        train(resumed("run", {"max_steps": 128}))


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


@pytest.mark.slow
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
    assert train(resumed("run", {"max_steps": 128})).outcome.step > 64
    opened("run")[0].environments.close()


@pytest.mark.slow
def test_a_run_in_environments_of_a_program_is_not_resumed_in_others(tmp_path):
    def scaled():
        return gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda reward: reward / 100)

    for name, envs in (("own", [scaled()]), ("plain", [gymnasium.make("CartPole-v1")])):
        path = str(tmp_path / name)
        trainer("A2C")(envs, run_dir=path, seed=0, quiet=True, model=NET).fit(max_steps=64)
        if name == "plain":
            assert train(resumed(path, {"max_steps": 128})).outcome.step > 64
        else:
            with pytest.raises(SpecError, match="was trained in environments that its program made"):
                resumed(path, {"max_steps": 128})
            with pytest.raises(SpecError, match="was trained in environments that its program made"):
                reproduce(path)


def test_a_limit_above_the_native_environments_own_is_refused():
    run = RunConfig.from_dict({"env": "jax:CartPole-v1", "max_steps": 64, "max_episode_timesteps": 10_000})
    with pytest.raises(SpecError, match="max_episode_timesteps must be at most 500"):
        train(ExperimentConfig("a2c", {"model": NET}, run))


def test_a_relative_path_that_is_given_again_is_no_change(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    options = {"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True, "run_dir": "run"}
    run = RunConfig.from_dict({**options, "history_checkpoint": "h.parquet"})
    train(ExperimentConfig("a2c", {"model": NET}, run))
    assert resumed("run", {"max_steps": 128, "history_checkpoint": "h.parquet"}).run.max_steps == 128
    with pytest.raises(SpecError, match="history_checkpoint cannot change"):
        resumed("run", {"max_steps": 128, "history_checkpoint": "other.parquet"})
