"""Replay memories are freed as soon as nothing uses them, not when Python happens to look for circles: a
device may have room for one."""

from __future__ import annotations

import gc

import jax
import numpy as np
import pytest

from operant import DQN, Agent
from operant.agents.base.compiled import CompiledAgent
from operant.spec.run import RunConfig
from operant.training.multi_seed import replicate
from operant.training.train import ExperimentConfig

CAPACITY = 4099
STATE = np.zeros(7, np.float32)


@pytest.fixture
def memories():
    """Count the replay memories on the device, with Python's collector off."""
    gc.collect()
    gc.disable()
    yield lambda: sum(x.shape == (CAPACITY, 7) for x in jax.live_arrays())
    gc.enable()


def created(**config):
    return Agent.create(
        agent="dqn",
        states={"type": "float", "shape": (7,)},
        actions={"type": "int", "num_values": 3},
        memory=CAPACITY,
        config=config,
    )


def used(**config):
    made = created(**config)
    for _ in range(3):
        made.act(states=STATE)
        made.observe(reward=1.0)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("config", [{}, {"precision": "float32"}])
def test_of_an_agent_that_is_closed_or_dropped(memories, config):
    closed = used(**config)
    assert memories() == 1
    closed.close()
    assert memories() == 0
    dropped = used(**config)
    assert memories() == 1
    del dropped
    assert memories() == 0


def test_of_an_agent_whose_first_state_brings_masks(memories, monkeypatch):
    made = created()
    before, init = [], CompiledAgent.__init__

    def counting(*given, **named):
        before.append(memories())
        init(*given, **named)

    monkeypatch.setattr(CompiledAgent, "__init__", counting)
    made.act(states={"state": STATE, "action_mask": np.array([True, False, True])})
    assert before == [0] and memories() == 1


def cartpole(capacity):
    return sum(x.shape == (capacity, 4) for x in jax.live_arrays())


@pytest.mark.slow
def test_of_seeds_that_are_trained_one_after_another(memories, monkeypatch, tmp_path):
    before, init = [], CompiledAgent.__init__

    def counting(*given, **named):
        before.append(cartpole(CAPACITY))
        init(*given, **named)

    monkeypatch.setattr(CompiledAgent, "__init__", counting)
    given = {"env": "CartPole-v1", "max_steps": 50, "quiet": True, "run_dir": str(tmp_path / "runs")}
    plan = ExperimentConfig("dqn", {"buffer_max_size": CAPACITY}, RunConfig.from_dict({**given, "seed": 0}))
    replicate(plan, 3)
    assert before == [0, 0, 0] and cartpole(CAPACITY) == 0


@pytest.mark.slow
def test_of_a_trainer_that_has_acted_before_it_loads(memories, tmp_path):
    with DQN("CartPole-v1", buffer_max_size=CAPACITY, quiet=True, seed=3) as trainer:
        trainer.fit(max_steps=20)
        trainer.save(tmp_path)
        action = trainer.act(np.zeros(4, np.float32))
        trainer.load(tmp_path)
        assert cartpole(CAPACITY) == 1
        assert trainer.act(np.zeros(4, np.float32)) == action
        trainer.fit(max_steps=60)  # what has acted is not what acts now
        made = trainer._acting
        trainer.act(np.zeros(4, np.float32))
        assert trainer._acting is not made
