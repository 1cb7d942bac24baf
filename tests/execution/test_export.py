"""Exported policies: they act as the agent does, in processes without operant, and are no agents."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from tests.exported_agents import CASES, act, asked, assert_same, create, run_outside, shake

import operant
from operant import Agent
from operant.agents.table import AGENTS
from operant.errors import CheckpointError, SpaceError, SpecError, UsageError
from operant.execution.export import require
from operant.execution.export.interface import Interface
from operant.spec.spaces import Spaces

EVERYDAY = "ppo"


@pytest.mark.parametrize(
    "case",
    [name if name == EVERYDAY else pytest.param(name, marks=pytest.mark.exhaustive) for name in CASES],
)
def test_stablehlo_acts_as_the_agent_does(tmp_path, case):
    agent = create(case)
    shake(agent)
    path = agent.save(tmp_path, format="stablehlo", append="updates")
    file = tmp_path / f"agent-{agent.updates}.stablehlo"
    assert path == str(file) and (tmp_path / f"{file.name}.json").is_file()
    states, inputs = asked(agent, np.random.default_rng(2), 1000)
    wanted = act(agent, states, inputs)
    assert_same(wanted, run_outside(file, inputs, "stablehlo"))
    varied = [name for name, x in wanted.items() if len(np.unique(x, axis=0)) > 1]
    assert len(varied) > len(wanted) / 2, f"one answer to everything would prove nothing; varied: {varied}"


@pytest.mark.slow
def test_a_loaded_policy_acts_in_the_structure_of_the_specification(tmp_path):
    agent = create("hybrid")
    agent.save(tmp_path, format="stablehlo")
    policy = operant.load_policy(tmp_path)
    states, _ = asked(agent, np.random.default_rng(3), 5)
    wanted, got = agent.act(states, independent=True), policy.act(states)
    for name, x in wanted.items():
        np.testing.assert_allclose(got[name], x, atol=1e-6)
        assert got[name].dtype == x.dtype
    one = {k: {n: y[0] for n, y in x.items()} if isinstance(x, dict) else x[0] for k, x in states.items()}
    got = policy.act(one)
    assert got["gear"] == wanted["gear"][0] and isinstance(got["gear"], int) and isinstance(got["horn"], bool)
    with pytest.raises(SpaceError, match="'image' is missing"):
        policy.act({k: x for k, x in one.items() if k != "image"})
    everything_forbidden = {**one, "move_mask": np.zeros((2, 4), bool)}
    with pytest.raises(SpaceError, match="must allow at least one value"):
        policy.act(everything_forbidden)


def test_a_recurrent_policy_takes_and_gives_internals(tmp_path):
    agent = create("recurrent")
    policy = operant.load_policy(agent.save(tmp_path, "net", format="stablehlo"))
    ours, theirs = agent.initial_internals(), policy.initial_internals()
    for row in np.random.default_rng(4).normal(size=(6, 3)):
        wanted, ours = agent.act(row, internals=ours, independent=True)
        got, theirs = policy.act(row, internals=theirs)
        # The agent's are those of two networks; of the value's no action depends.
        assert wanted == got and theirs.keys() < ours.keys() and len(theirs) * 2 == len(ours)
        for name in theirs:
            np.testing.assert_allclose(theirs[name], ours[name], atol=1e-6)
    with pytest.raises(UsageError, match=r"recurrent policy needs internals. Start with initial_internals"):
        policy.act(row)
    with pytest.raises(SpaceError, match="internals must have the shapes"):
        policy.act(row, internals={"h": np.zeros(3)})
    data = json.loads((tmp_path / "net.stablehlo.json").read_text())
    assert all(np.shape(x) == (4,) for x in data["initial_internals"].values()) and data["agent"] == "ppo"


def test_the_description_tells_names_shapes_and_ranges():
    hybrid = CASES["hybrid"]
    described = Interface(Spaces.read(hybrid["states"], hybrid["actions"]), {}).to_json()
    inputs = {port["name"]: port for port in described["inputs"]}
    assert list(inputs) == [
        "states/image",
        "states/body/speed",
        "states/body/gear",
        "states/lamps",
        "auxiliaries/move/mask",
    ]
    assert (
        inputs["states/image"]["shape"] == ["batch", 8, 8, 3] and inputs["states/image"]["dtype"] == "uint8"
    )
    assert inputs["states/body/gear"]["path"] == ["body", "gear"]
    assert inputs["states/body/gear"]["specification"] == {"type": "int", "num_values": 5, "min_value": -1}
    assert inputs["auxiliaries/move/mask"]["path"] == ["move_mask"]
    assert [port["name"] for port in described["outputs"]][:2] == ["actions/move", "actions/steer"]
    again = Interface.from_json(json.loads(json.dumps(described)))
    assert again.to_json() == described


def test_a_policy_is_no_agent(tmp_path):
    agent = create("ppo")
    path = agent.save(tmp_path, format="stablehlo")
    for arguments in ({"format": "stablehlo"}, {"format": "onnx"}, {"filename": "agent.stablehlo"}):
        with pytest.raises(CheckpointError, match=r"it is no agent. Load it with operant.load_policy"):
            Agent.load(tmp_path, **arguments)
    with pytest.raises(CheckpointError, match="it is no agent"):
        Agent.load(path)
    with pytest.raises(CheckpointError, match=r"'agent.stablehlo' there is a policy: operant.load_policy"):
        Agent.load(tmp_path)
    agent.save(tmp_path)
    Agent.load(tmp_path)


def test_what_cannot_be_exported_is_said(tmp_path):
    if importlib.util.find_spec("tensorflow") is None:
        with pytest.raises(UsageError, match=r"needs tensorflow. .* pip install 'operant\[tensorflow\]'"):
            create("ppo").save(tmp_path, format="saved-model")
    with pytest.raises(SpecError, match="format must be one of .*'saved-model'"):
        create("ppo").save(tmp_path, format="saved_model")
    drawing = Agent.create(agent="random", states=CASES["ppo"]["states"], actions=CASES["ppo"]["actions"])
    with pytest.raises(UsageError, match="draws all of its actions"):
        drawing.save(tmp_path, format="stablehlo")
    wide = Agent.create(
        **{**CASES["ppo"], "actions": {"type": "int", "num_values": 2, "min_value": 2**40}},
    )
    with pytest.raises(SpaceError, match="'action' cannot be exported: its values exceed 32 bits"):
        wide.save(tmp_path, format="stablehlo")
    with pytest.raises(UsageError, match=r"needs no_such_module. .* pip install 'operant\[onnx\]'"):
        require("onnx", "sys" if "sys" in sys.modules else "os", "no_such_module")
    assert not list(tmp_path.iterdir())


def test_files_that_are_damaged_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="There is no exported policy"):
        operant.load_policy(tmp_path)
    path = create("ppo").save(tmp_path, format="stablehlo")
    beside = tmp_path / "agent.stablehlo.json"
    text = beside.read_text()
    beside.write_text(text.replace('"version": 1', '"version": 9'))
    with pytest.raises(CheckpointError, match="is of version 9"):
        operant.load_policy(path)
    forged = [json.dumps({**json.loads(text), name: 3}) for name in ("spaces", "initial_internals", "inputs")]
    for bad in (text[:100], "[" * 10**5, *forged):
        beside.write_text(bad)
        with pytest.raises(CheckpointError, match="The description .* cannot be read"):
            operant.load_policy(path)
    beside.write_text(text)
    program = Path(path).read_bytes()
    for place in range(0, len(program), len(program) // 7):
        Path(path).write_bytes(program[:place] + b"x" + program[place + 1 :])
        with pytest.raises(
            CheckpointError, match=r"agent.stablehlo' cannot be read: .* not the one of the desc"
        ):
            operant.load_policy(path)
    Path(path).write_bytes(program)
    description = json.loads(text)
    description["spaces"]["actions"]["shape"] = [2]
    beside.write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match=r"its output 'actions' is .* where .* is expected"):
        operant.load_policy(path)
    beside.write_text(text)
    digest = hashlib.sha256(b"nothing").hexdigest()  # what forgers can do, too
    beside.write_text(json.dumps({**json.loads(text), "sha256": digest}))
    (tmp_path / "agent.stablehlo").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"agent.stablehlo' cannot be read"):
        operant.load_policy(path)


def test_policies_act_in_finite_numbers(tmp_path):
    agent = create("td3")
    path = agent.save(tmp_path, format="stablehlo")
    operant.load_policy(path)
    engine = agent._engine
    engine.put(jax.tree.map(lambda x: x * np.nan if x.dtype == np.float32 else x, engine.train))
    agent.save(tmp_path, format="stablehlo")
    with pytest.raises(CheckpointError, match=r"its output 'actions.*' holds nan, which is no finite number"):
        operant.load_policy(path)
    path = create("recurrent").save(tmp_path, format="stablehlo")
    beside = Path(f"{path}.json")
    description = json.loads(beside.read_text())
    first = next(iter(description["initial_internals"]))
    description["initial_internals"][first][0] = float("inf")
    beside.write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match=r"holds inf, which is no finite number of float32"):
        operant.load_policy(path)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.slow if name in ("ppo", "dqn", "sac") else pytest.mark.exhaustive
        )
        for name in AGENTS
        if name != "random"
    ],
)
def test_every_agent_can_be_exported(tmp_path, name):
    common = {"agent": name, "states": CASES["ppo"]["states"], "max_episode_timesteps": 10}
    try:
        agent = Agent.create(**common, actions={"type": "int", "num_values": 3})
    except SpaceError:
        agent = Agent.create(**common, actions=CASES["td3"]["actions"])
    policy = operant.load_policy(agent.save(tmp_path, format="stablehlo"))
    states = np.random.default_rng(5).normal(size=(100, 3))
    np.testing.assert_allclose(policy.act(states), agent.act(states, independent=True), atol=1e-5)
