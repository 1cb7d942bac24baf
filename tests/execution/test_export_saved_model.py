"""Policies as SavedModels, run by TensorFlow alone.

All slow: TensorFlow takes ten seconds to load, and its extra is large.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.exported_agents import CASES, act, asked, assert_same, create, run_outside, shake

import operant
from operant import Agent
from operant.errors import CheckpointError

pytestmark = pytest.mark.slow
pytest.importorskip("tensorflow", reason="SavedModels need TensorFlow: the extra `tensorflow`")


@pytest.mark.parametrize("case", CASES)
def test_a_saved_model_acts_as_the_agent_does(tmp_path, case):
    agent = create(case)
    shake(agent)
    path = agent.save(tmp_path, format="saved-model")
    assert path == str(tmp_path / "agent.saved-model")
    states, inputs = asked(agent, np.random.default_rng(2), 1000)
    assert_same(
        act(agent, states, inputs), run_outside(tmp_path / "agent.saved-model", inputs, "saved-model")
    )
    described = json.loads((tmp_path / "agent.saved-model.json").read_text())
    assert {port["name"] for port in described["inputs"]} == set(inputs)
    program = (tmp_path / "agent.saved-model" / "saved_model.pb").read_bytes()
    assert b"operant" not in program, "it says where operant is installed"


def test_a_saved_model_is_replaced_and_is_for_tensorflow_alone(tmp_path):
    agent = create("td3")
    before = agent.save(tmp_path, "policy.saved-model", format="saved-model", append="updates")
    assert before == str(tmp_path / "policy-0.saved-model")
    shake(agent)
    states, inputs = asked(agent, np.random.default_rng(2), 10)
    assert agent.save(tmp_path, "policy-0", format="saved-model") == before
    assert_same(
        act(agent, states, inputs), run_outside(tmp_path / "policy-0.saved-model", inputs, "saved-model")
    )
    with pytest.raises(CheckpointError, match="a SavedModel with tensorflow.saved_model.load"):
        Agent.load(before)
    with pytest.raises(CheckpointError, match="There is no exported policy"):
        operant.load_policy(tmp_path)
