"""Policies as ONNX, run by its own runtime alone.

All slow: the converter takes ten seconds to load, and its extra is large.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.exported_agents import CASES, act, asked, assert_same, create, run_outside, shake

import operant
from operant.errors import SpecError
from operant.execution.export import exported_policy, formats

pytestmark = pytest.mark.slow
for module in ("jax2onnx", "onnxruntime"):
    pytest.importorskip(module, reason=f"ONNX files need {module}: the extra `onnx`")


@pytest.mark.parametrize("case", CASES)
def test_onnx_acts_as_the_agent_does(tmp_path, case):
    agent = create(case)
    shake(agent)
    path = agent.save(tmp_path, format="onnx")
    assert path == str(tmp_path / "agent.onnx")
    states, inputs = asked(agent, np.random.default_rng(2), 1000)
    wanted = act(agent, states, inputs)
    assert_same(wanted, run_outside(tmp_path / "agent.onnx", inputs, "onnx"))
    loaded = operant.load_policy(tmp_path, "agent")
    if case != "recurrent":
        got = loaded.act(states)
        assert_same(
            {k: x for k, x in got.items()} if isinstance(got, dict) else {"actions": got},
            {k.removeprefix("actions/"): x for k, x in wanted.items()},
        )


def test_a_conversion_that_is_not_faithful_is_found(monkeypatch):
    function = formats.PolicyFunction(*_parts(create("td3")))
    other = formats.PolicyFunction(*_parts(create("td3", seed=2)))
    data = formats.onnx(function)
    with pytest.raises(SpecError, match="differs from the agent's in 'actions'"):
        formats._compare(other, data)
    assert exported_policy.ExportedPolicy  # the loader is there without the converter


def _parts(agent):
    return agent.learner, agent.engine.acting
