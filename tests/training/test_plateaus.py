"""Divergence monitoring: what is checked when, in every driver and however a run is divided."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import operant
from operant.cli import main
from operant.envs.native.native_env import TimeStep
from operant.envs.vector import create
from operant.spec.run import RunConfig
from operant.spec.spaces import Spaces
from operant.training.episodes import RollingScore
from operant.training.plateau import Monitor

NET = [{"type": "dense", "size": 8}]


def watching(**changes):
    settings = {"divergence_monitoring_steps": 0, "reward_buffer_size": 2, **changes}
    return RunConfig.from_dict({"env": "CartPole-v1", "max_steps": 1, **settings})


def test_checks_by_hand():
    """Every second episode.

    Two checks without a better mean are a plateau, two plateaus without one between them the end.
    """
    score = RollingScore(2)
    monitor = Monitor(
        watching(divergence_monitoring_steps=3, plateau_reduce_patience=2, early_stop_patience=2)
    )
    told = []
    rewards = [9, 9, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    for step, reward in enumerate(rewards, start=1):
        score.add([reward], [1])
        monitor.check(step, score)
        told.append(monitor.verdicts())
    # Steps 1 and 2 are too early. Step 3 sees the mean 5, which is the best; 5 and 7 are no better, nor are 9
    # and 11.
    assert told == [[]] * 6 + [["reduce"]] + [[]] * 3 + [["stop"]] + [[]] * 3 + [["stop"]] + [[]] * 3


def test_what_is_due_is_kept_in_a_checkpoint():
    run = watching(plateau_reduce_patience=1, early_stop_patience=9)
    monitor, score, again = Monitor(run), RollingScore(2), Monitor(run)
    for step in range(8):
        score.add([1.0], [1])
        monitor.check(step, score)
    again.restore(monitor.to_dict())
    assert again.verdicts() == monitor.verdicts() == ["reduce"] * 3


@dataclasses.dataclass(frozen=True)
class Constant:
    """Every episode is one step, and pays 1."""

    max_episode_timesteps: int | None = None

    @property
    def spaces(self) -> Any:
        return Spaces.read({"type": "float"}, {"type": "int", "num_values": 2})

    def reset(self, key: Any) -> Any:
        return jnp.float32(0), {"state": jnp.float32(0)}

    def step(self, state: Any, action: Any, key: Any) -> Any:
        reward = jnp.where(action["action"] >= 0, 1.0, 0.0)
        return state, TimeStep({"state": state}, reward, jnp.bool_(True))


@pytest.mark.exhaustive
def test_every_driver_checks_as_often():
    """The device looks at what came every 8192 steps, the host every 512."""
    found = []
    for envs in (Constant(), create.create(Constant(), 2)):
        agent = operant.A2C(
            envs, NET, n_envs=2, seed=1, quiet=True, divergence_monitoring_steps=0, reward_buffer_size=10,
            plateau_reduce_patience=2, early_stop_patience=10_000, plateau_reduce_factor=0.999,
        )  # fmt: skip
        before = np.asarray(agent.session.driver.train.hyper)
        agent.fit(max_steps=16_384)
        found.append((agent.games, agent._progress.monitor.reductions, agent._progress.monitor.due))
        (changed,) = np.flatnonzero(before != np.asarray(agent.session.driver.train.hyper))
        rate = np.asarray(agent.session.driver.train.hyper)[changed] / before[changed]
        acted = found[-1][1] - len(found[-1][2])
        assert acted > 300 and np.isclose(rate, 0.999**acted, rtol=1e-4)
    games = found[0][0]
    assert [each[:2] for each in found] == [(games, (games // 10 - 1) // 2)] * 2


@pytest.mark.slow
def test_parts_of_a_run_learn_what_one_part_would(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert (
        main(
            [
                "train",
                "ppo",
                "--env",
                "jax:CartPole-v1",
                "--n-envs",
                "2",
                "--n-steps",
                "64",
                "--seed",
                "1",
                "--model",
                str(NET).replace("'", '"'),
                "--divergence-monitoring-steps",
                "0",
                "--reward-buffer-size",
                "5",
                "--plateau-reduce-patience",
                "1",
                "--early-stop-patience",
                "500",
                "--max-steps",
                "11000",
                "--run-dir",
                "run",
                "--quiet",
            ]
        )
        == 0
    )
    assert main(["train", "--resume", "run", "--max-steps", "15000", "--quiet"]) == 0
    assert main(["train", "--resume", "run", "--max-steps", "30000", "--quiet"]) == 0
    agent = operant.Agent.load("run")
    assert (np.asarray(agent.engine.train.hyper) < np.asarray(agent.learner.hyper())).any()
    capsys.readouterr()
    assert main(["reproduce", "run"]) == 0, capsys.readouterr()
