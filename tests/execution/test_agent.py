"""The agent in a user's program: structures in and out, order of calls, actors out of step, masks, files."""

import contextlib
import copy
import json
import os
import re
import subprocess
import sys
import types
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.small_agents import NAMES, RECURRENT, networks, small

from operant import Agent, Environment, checkpoint
from operant.agents.base.agent_spec import parse_agent, parse_saved_agent
from operant.agents.base.protocol import fold
from operant.agents.table import AGENTS
from operant.checkpoint.manifest import digest
from operant.errors import CheckpointError, NumericalError, SpaceError, SpecError, UsageError
from operant.nn import backend
from operant.spec.random_streams import Purpose

STATE = {"type": "float", "shape": (3,)}
CHOICE = {"type": "int", "num_values": 3}
FEW = ("ppo", "dqn")
"""Agents that every day is tested with, of tests of all."""
NET = [{"type": "dense", "size": 8}]
ROLLOUT = {"agent": "ppo", "n_steps": 4, "mini_batches": 2, "ppo_epochs": 1, "model": NET}
REPLAY = {
    "agent": "dqn", "buffer_max_size": 600, "buffer_initial_size": 8, "buffer_batch_size": 4, "model": NET,
}  # fmt: skip


def create(spec=ROLLOUT, states=STATE, actions=CHOICE, **kwargs):
    return Agent.create(**spec, states=states, actions=actions, **kwargs)


def state(i=0):
    return np.asarray([i, 0.5, -1], np.float32)


def run(agent, steps, parallel=0, start=0):
    """Act and observe on a stream with episodes of five steps; return the actions."""
    actions = []
    for i in range(start, start + steps):
        actions.append(agent.act(states=state(i % 5), parallel=parallel))
        end = i % 5 == 4
        agent.observe(
            reward=float(i % 3), terminal=end, parallel=parallel, next_states=state(9) if end else None
        )
    return actions


def leaves(agent):
    flat = jax.tree_util.tree_leaves_with_path(agent.engine.train)
    data = {}
    for path, leaf in flat:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        data[jax.tree_util.keystr(path)] = np.asarray(leaf)
    return data


def assert_equal(a, b):
    a, b = leaves(a), leaves(b)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_single_and_nested_structures():
    agent = create()
    assert isinstance(agent.act(states=state()), int)
    agent.observe()
    nested = create(
        {**ROLLOUT, "model": "auto"},
        states={"eye": {"type": "float", "shape": (2, 2)}, "body": {"speed": {"type": "float", "shape": ()}}},
        actions={
            "move": CHOICE,
            "arm": {"force": {"type": "float", "shape": (2,), "min_value": -1, "max_value": 1}},
            "grip": {"type": "bool", "shape": ()},
        },
    )
    actions = nested.act(states={"eye": np.zeros((2, 2)), "body": {"speed": 0.5}})
    assert isinstance(actions["move"], int) and isinstance(actions["grip"], bool)
    assert actions["arm"]["force"].shape == (2,) and (np.abs(actions["arm"]["force"]) <= 1).all()


def test_order_of_calls_is_checked():
    agent = create()
    with pytest.raises(UsageError, match="observe was called without act for parallel=0"):
        agent.observe(reward=1.0)
    agent.act(states=state())
    with pytest.raises(UsageError, match="act was called twice for parallel=0"):
        agent.act(states=state())
    with pytest.raises(SpecError, match="parallel must be an index below parallel_interactions=1"):
        agent.act(states=state(), parallel=1)
    agent.close()
    with pytest.raises(UsageError, match="The agent is closed"):
        agent.act(states=state(), independent=True)


def test_bad_states_rewards_and_terminals_name_what_is_wrong():
    agent = create()
    for bad, message in [
        (np.zeros(4), r"\(3,\)"),
        (np.asarray([np.nan, 0, 0]), "(?i)nan|finite"),
        ({"stat": np.zeros(3)}, "state"),
        ("abc", "state"),
    ]:
        with pytest.raises(SpaceError, match=message):
            agent.act(states=bad)
    agent.act(states=state())
    with pytest.raises(SpaceError, match="reward must be finite. Received: reward=nan"):
        agent.observe(reward=float("nan"))
    with pytest.raises(SpaceError, match=r"reward must be at most 3.4e\+38 in size. Received: reward=1e\+39"):
        agent.observe(reward=1e39)  # infinite where it is stored
    with pytest.raises(SpaceError, match="terminal must be 0, 1 or 2"):
        agent.observe(terminal=3)
    agent.observe(reward=1.0, terminal=2)  # nothing was lost by the refused calls
    assert agent.timesteps == 1 and agent.episodes == 1


def test_batched_calls_of_unequal_lengths_name_what_is_wrong():
    agent = create(parallel_interactions=2)
    agent.act(states=[state(), state()], parallel=[0, 1])
    for told, message in [
        ({"reward": [1, 2, 3]}, "reward must be one number, or one for each of 2"),
        ({"terminal": [0, 0, 0]}, "terminal must be one number"),
        ({"parallel": 0, "terminal": np.zeros(2)}, "terminal must be 0, 1 or 2"),
        (
            {"terminal": [1, 1], "next_states": [state()]},
            "next_states must hold a state for each of 2 actors",
        ),
    ]:
        with pytest.raises(SpaceError, match=message):
            agent.observe(**{"parallel": [0, 1], **told})
    with pytest.raises(SpecError, match="parallel must be an index"):
        agent.act(states=state(), parallel=None)


def test_creation_is_checked():
    for kwargs, message in [
        ({"agent": "ppoo"}, "Did you mean 'ppo'"),
        ({"agent": "ppo", "learning_rat": 1}, "ppo takes no argument 'learning_rat'. Did you mean"),
        ({"agent": {"n_steps": 3}}, "modular, the agent of a dict without 'type', takes no argument"),
        ({"agent": None, "learning_rat": 1}, "modular takes no argument 'learning_rat'. Did you mean"),
        ({"agent": "ppo", "seed": -1}, "seed must be"),
        ({"agent": "ppo", "parallel_interactions": 0}, "parallel_interactions must be"),
        ({"agent": "ppo", "config": {"sed": 1}}, "config takes no argument 'sed'. Did you mean 'seed'"),
        ({"agent": "ppo", "gamma": 1.5}, "gamma must be at least 0 and at most 1. Received: gamma=1.5"),
        ({"agent": "ppo", "model": [{"type": "dens"}]}, "dense"),
    ]:
        with pytest.raises(SpecError, match=message):
            Agent.create(**kwargs, states=STATE, actions=CHOICE)
    with pytest.raises(SpecError, match="Give environment, or both states and actions"):
        Agent.create(agent="ppo", states=STATE)
    with pytest.raises(SpaceError, match="dqn.*float.*ppo"):
        Agent.create(agent="dqn", states=STATE, actions={"type": "float", "shape": ()})
    for given in ("CartPole-v1", Environment):
        with pytest.raises(
            SpecError, match=r"environment must be an Environment. Received: .* Environment.create"
        ):
            Agent.create(agent="ppo", environment=given)


def test_specification_as_dict_file_class_and_alias(tmp_path):
    import json

    (tmp_path / "a.json").write_text(json.dumps({"type": "ppo", "n_steps": 4, "learning_rate": 0.01}))
    import operant
    from operant.agents.ppo import PPO

    same = {"n_steps": 4, "lr": 0.01}
    made = [
        Agent.create(agent=agent, states=STATE, actions=CHOICE, **options).definition.config
        for agent, options in [
            (str(tmp_path / "a.json"), {}),
            ({"type": "ppo", **same}, {}),
            ({"agent": "ppo"}, same),
            ("ppo", same),
            (PPO, same),
            (operant.PPO, same),
            ({"type": operant.PPO, **same}, {}),
            ("operant.agents.ppo.PPO", same),
        ]
    ]
    assert all(config == made[0] for config in made)


def test_specification_with_arguments(tmp_path):
    spec = {
        "type": "ppo",
        "n_steps": 4,
        "max_episode_timesteps": 9,
        "parallel_interactions": 2,
        "seed": 5,
        "saver": str(tmp_path / "s"),
        "recorder": None,
        "config": {"debug": True},
        "states": STATE,
        "actions": CHOICE,
    }
    (tmp_path / "a.json").write_text(json.dumps(spec))
    for agent in (spec, tmp_path / "a.json", {"agent": str(tmp_path / "a.json")}):
        made = Agent.create(agent=agent, seed=6)
        told = (made.parallel_interactions, made.max_episode_timesteps, made.seed, made._debug)
        assert told == (2, 9, 6, True) and made.definition.config.n_steps == 4
        assert made._callbacks.saving.directory == spec["saver"] and made._callbacks.recording is None
    other = Agent.create(agent=spec, parallel_interactions=1, config={"seed": 7})
    assert (other.parallel_interactions, other.seed) == (1, 7)
    for wrong, message in [({"seed": "x"}, "seed must be"), ({"config": 3}, "config must be a dict")]:
        with pytest.raises(SpecError, match=message):
            Agent.create(agent={**spec, **wrong})


@pytest.mark.parametrize("spec", [ROLLOUT, REPLAY])
@pytest.mark.slow
def test_save_and_load_in_mid_episode_goes_on_bit_for_bit(spec, tmp_path):
    whole, first = create(spec, seed=3), create(spec, seed=3)
    actions = run(whole, 60)
    assert run(first, 33) == actions[:33]
    path = first.save(directory=tmp_path, append="timesteps")
    assert path.endswith("agent-33")
    second = Agent.load(directory=tmp_path)
    assert second.get_specification() == first.get_specification()
    assert run(second, 27, start=33) == actions[33:]
    assert_equal(whole, second)
    assert (second.timesteps, second.episodes, second.updates) == (
        whole.timesteps,
        whole.episodes,
        whole.updates,
    )
    assert whole.timesteps == 60 and whole.episodes == 12 and whole.updates > 5


def test_seeds():
    a, b, c = (run(create(seed=s), 40) for s in (1, 1, 2))
    assert a == b != c


@pytest.mark.slow
def test_batched_calls_equal_each_other_in_both_forms():
    one, other = (create(parallel_interactions=3, seed=1) for _ in range(2))
    for i in range(30):
        each = [state(i + k) for k in range(3)]
        a = one.act(states=np.stack(each), parallel=[0, 1, 2])
        b = other.act(states=[{"state": s} for s in each], parallel=[0, 1, 2])
        np.testing.assert_array_equal(a, b)
        assert a.shape == (3,)
        terminal = [i % 7 == 6, 0, 2 if i % 4 == 3 else 0]
        one.observe(reward=[1.0, 2.0, 3.0], terminal=terminal, parallel=[0, 1, 2], next_states=np.stack(each))
        other.observe(
            reward=[1.0, 2.0, 3.0], terminal=terminal, parallel=[0, 1, 2], next_states=np.stack(each)
        )
    assert one.updates > 5
    assert_equal(one, other)


@pytest.mark.parametrize("spec", [ROLLOUT, REPLAY])
@pytest.mark.slow
def test_actors_out_of_step_all_count(spec):
    """Only some actors act, at different speeds; every step is learnt from, in the actor's own column."""
    agent = create(spec, parallel_interactions=3)
    for k in range(60):
        run(agent, 1, parallel=0, start=k)
        if k % 3 == 0:
            run(agent, 1, parallel=2, start=k // 3)
    assert agent.timesteps == 80
    assert agent.updates >= 80 // (3 * agent.learner.rows) - 3 > 0
    if agent.learner.algorithm.memory is not None:
        rows = np.asarray(agent.engine.train.memory.cursor)[1]  # rows held by each column
        assert rows[0] > 2 * rows[2] > 0 == rows[1]


def test_masks_declared_by_the_first_states():
    agent = Agent.create(
        agent="ppo",
        model=NET,
        states={"type": "float", "shape": (10,)},
        actions={"type": "int", "shape": (), "num_actions": 3},
    )
    for _ in range(20):
        action = agent.act(
            states={"state": np.random.default_rng(0).random(10), "action_mask": [True, False, True]}
        )
        assert action != 1
        agent.observe(reward=1.0)
    with pytest.raises(SpaceError, match="(?i)mask"):
        agent.act(states={"state": np.zeros(10), "action_mask": [False, False, False]})
    late = create()
    run(late, 2)
    with pytest.raises(UsageError, match="A mask for 'action' came after the agent had begun"):
        late.act(states={"state": state(), "action_mask": [True, False, True]})


def test_independent_calls_change_nothing():
    agent = create(seed=5)
    run(agent, 13)
    before = leaves(agent)
    single = agent.act(states=state(), independent=True)
    batch = agent.act(states=np.stack([state(), state(1)]), independent=True)
    assert batch.shape == (2,) and batch[0] == single
    drawn = {agent.act(states=state(), independent=True, deterministic=False) for _ in range(60)}
    assert len(drawn) > 1
    assert agent.timesteps == 13
    for name, leaf in leaves(agent).items():
        np.testing.assert_array_equal(leaf, before[name])
    with pytest.raises(UsageError, match="internals are kept by the agent"):
        agent.act(states=state(), internals={})


def drawn(agent, count=20, states=None):
    states = state() if states is None else states
    return [agent.act(states=states, independent=True, deterministic=False) for _ in range(count)]


def test_independent_draws_go_on_after_loading(tmp_path):
    agent = create(seed=5, parallel_interactions=2)
    first = drawn(agent)
    path = Path(agent.save(tmp_path / "a"))
    agent.act(states=state(), independent=True)  # draws nothing
    following = drawn(agent)
    assert following != first
    assert drawn(Agent.load(path)) == following
    assert drawn(Agent.load(path, parallel_interactions=1)) == following
    tree, header = checkpoint.load(path, {"train": agent.engine.train, **agent.actors.snapshot()[0]})
    del header["interaction"]["draws"]
    checkpoint.save(tmp_path / "b", tree, header, name="agent")
    with pytest.raises(CheckpointError, match="an earlier, unreleased state of operant .'draws' is missing"):
        Agent.load(tmp_path / "b")
    assert drawn(create(seed=5)) == first


def test_independent_draws_go_on_behind_masks():
    agent = create(seed=5)
    first, masked = drawn(agent), {"state": state(), "action_mask": [True] * 3}
    assert drawn(agent, states=masked) != first
    assert drawn(create(seed=5), states=masked) == first


def test_independent_draws_are_of_a_root_of_their_own():
    key = jax.random.key(5)
    roots = [fold(key, purpose) for purpose in Purpose]
    assert len({jax.random.key_data(root).tobytes() for root in roots}) == len(Purpose)
    agent = create(seed=5)
    own = agent.learner.independent_noise(key, 0, 1)
    for other in (
        agent.learner.noise(key, 0, 1),
        agent.learner.algorithm.noise(jax.random.fold_in(jax.random.key(5 ^ 0x5EED), 1), 1),
    ):
        assert not all(
            np.array_equal(a, b) for a, b in zip(jax.tree.leaves(own), jax.tree.leaves(other), strict=True)
        )


def test_episode_longer_than_announced_is_an_error():
    agent = create(max_episode_timesteps=3)
    for _ in range(3):
        agent.act(states=state())
        agent.observe()
    with pytest.raises(UsageError, match="longer than max_episode_timesteps=3"):
        agent.act(states=state())
    agent.reset()  # as the message says, where the environment began anew
    agent.act(states=state())


def test_reset_closes_open_episodes():
    agent = create()
    run(agent, 3)
    agent.reset()
    assert agent.episodes == 1 and agent.timesteps == 3
    agent.act(states=state())


def test_an_action_without_an_answer_is_no_step():
    agent = create(parallel_interactions=2)
    for i in range(2):
        agent.act(states=[state(i), state(i)], parallel=[0, 1])
        if i == 0:
            agent.observe(reward=[1.0, 1.0], terminal=[0, 1], parallel=[0, 1])
    assert (agent.timesteps, agent.episodes) == (4, 1)
    agent.reset(parallel=[0, 1], next_states=[state(7), state(7)])
    assert (agent.timesteps, agent.episodes) == (2, 2)
    (step, end), (_, last, nothing) = rows_of(agent, 0), rows_of(agent, 1)
    assert (step.reward, step.valid, step.truncated) == (1.0, True, True)
    for row in (end, last, nothing):
        assert (row.reward, row.valid, row.terminated, row.truncated) == (0.0, False, False, False)
    np.testing.assert_array_equal(end.observation["state"], state(1))
    agent.act(states=state())  # a new episode


@pytest.mark.parametrize(
    ("name", "recurrent"),
    [pytest.param(name, False, marks=[pytest.mark.exhaustive] * (name not in FEW)) for name in NAMES]
    + [
        pytest.param(name, True, marks=pytest.mark.slow if name == "dqn" else pytest.mark.exhaustive)
        for name in ("a2c", "dqn", "acer", "modular", "sac")
    ],
)
def test_what_is_learnt_is_the_same_without_an_action_that_had_no_answer(name, recurrent):
    """As if the episode had been cut at the state of that action, wherever in a block it stood."""
    kind = (
        CHOICE
        if "int" in AGENTS[name].actions
        else {"type": "float", "shape": (2,), "min_value": -1, "max_value": 1}
    )
    options = small(name, normalize_rewards=True, **(networks(name, RECURRENT) if recurrent else {}))
    with_it, without = (create({"agent": name, **options}, actions=kind, seed=4) for _ in range(2))
    draw = np.random.default_rng(0)
    for length in (5, 1, 8, 6, 7, 2, 5, 6, 9, 3):
        for i in range(length + 1):
            states, reward = draw.normal(size=3), float(draw.normal())
            if i == length:
                without.reset(parallel=0, next_states=states)
            for agent in (with_it, without):
                if i < length or agent is with_it:
                    agent.act(states=states)
                if i < length:
                    agent.observe(reward=reward)
        with_it.reset()
    assert with_it.updates == without.updates > 1
    assert with_it.timesteps == without.timesteps == 52
    for path, leaf in leaves(with_it).items():
        if "counters.episodes" not in path and "memory" not in path:
            np.testing.assert_array_equal(leaf, leaves(without)[path], err_msg=path)


def test_a_checkpoint_does_not_say_what_to_import(tmp_path, monkeypatch):
    import types

    from operant.agents import ppo

    mine = types.ModuleType("mine")
    mine.Config, mine.Mine = ppo.Config, type("Mine", (ppo.PPO,), {"__module__": "mine"})
    monkeypatch.setitem(__import__("sys").modules, "mine", mine)
    agent = create({**ROLLOUT, "agent": "mine:Mine"}, seed=1)
    run(agent, 10)
    agent.save(directory=tmp_path)
    with pytest.raises(CheckpointError, match="an algorithm 'mine:Mine' that is not operant's own"):
        Agent.load(directory=tmp_path)
    assert_equal(agent, Agent.load(directory=tmp_path, agent=mine.Mine))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("dqn", "is of the agent 'ppo'. Received: agent='dqn'. Give agent='ppo'"),
        (
            {"type": "ppo", "model": NET, "n_steps": 8},
            "saved with n_steps=4, .*Received: n_steps=8. Give the same",
        ),
        ({"type": "ppo", "gamma": 0.5}, "saved with gamma=0.99, .*Received: gamma=0.5"),
        ({"type": "ppo", "optimizer": "sgd"}, "saved with optimizer='adam', .*Received: optimizer='sgd'"),
        (
            {"type": "ppo", "optimizer": optax.sgd(0.1)},
            "Received: optimizer=an optax transformation. Give the same",
        ),
    ],
)
def test_loading_changes_neither_the_algorithm_nor_its_options(given, message, tmp_path):
    agent = create(seed=1)
    agent.save(directory=tmp_path)
    with pytest.raises(CheckpointError, match=message):
        Agent.load(directory=tmp_path, agent=given)
    assert_equal(agent, Agent.load(directory=tmp_path, agent=ROLLOUT))


def test_a_loaded_agent_keeps_its_networks_unless_others_are_given(tmp_path):
    agent = create({"agent": "ac", "baseline": NET}, seed=1)  # `ac` has one of its own
    agent.save(directory=tmp_path)
    assert_equal(agent, Agent.load(directory=tmp_path, agent={"type": "ac", "model": "auto"}))


@pytest.mark.parametrize(
    ("agent", "networks"),
    [
        ("modular", {"baseline_model": "shared"}),
        ("sac", {"actor_model": [32], "critic_model": {"type": "auto", "size": 16}}),
        ("pqn", {"model": [32]}),
    ],
)
def test_networks_that_an_algorithm_adds_to_are_read_back_as_they_were_given(agent, networks):
    """A file's, also where they are given anew: sac has relu where 'auto' ones of others have tanh."""
    definition = parse_agent(agent, **networks)
    saved = json.loads(json.dumps(definition.to_dict()))
    assert parse_saved_agent(saved, "The file") == definition
    assert parse_saved_agent(saved, "The file", definition) == definition


FUNCTION = {"module": "keras_hub", "class_name": "function", "config": "planted"}
CODE = {"class_name": "__lambda__", "config": {"value": ["4wAAAAA=", None, None]}}
PLANTED = [
    "planted.x",
    "planted:x",
    {"type": "planted.x"},
    {"type": "subprocess.getoutput", "cmd": "true"},
    [{"type": "planted.x"}],
    [{"type": "keras", "layer": "planted.x"}],
    [{"type": "keras", "layer": "TFSMLayer", "filepath": "planted"}],
    [{"type": "keras", "layer": "StringLookup", "vocabulary": "planted"}],
    [{"type": "keras", "layer": {"module": "keras_hub", "class_name": "Planted", "config": {}}}],
    {"type": "keras", "model": {"module": "keras_hub", "class_name": "Planted", "config": {}}},
    [{"type": "keras", "layer": "Dense", "units": 2, "activation": FUNCTION}],
    [
        {
            "type": "keras",
            "layer": {"module": "keras.layers", "class_name": "Lambda", "config": {"function": CODE}},
        }
    ],
    [{"type": "planted.json"}],
    {"type": "planted.json"},
    "planted.json",
    "planted.keras",
    "planted.cfg",
]


@pytest.mark.parametrize("format", ["checkpoint", "numpy"])
def test_what_a_file_names_is_neither_imported_nor_opened(format, tmp_path, monkeypatch):
    """In every form that a network may have, and in a file whose hashes are right."""
    for name in ("planted.py", "keras_hub.py"):
        (tmp_path / name).write_text("raise AssertionError('imported')")
    for name in ("planted.json", "planted.keras", "planted.cfg"):
        (tmp_path / name).write_text("{}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("subprocess.getoutput", lambda cmd: pytest.fail("called"))
    create(ROLLOUT).save(directory="saved", format=format)
    checkpoint = format == "checkpoint"
    file = tmp_path / ("saved/agent/manifest.json" if checkpoint else "saved/agent.json")
    data = json.loads(file.read_text())
    for field in ("model", "critic_model", "network", "type"):
        for planted in PLANTED:
            forged = copy.deepcopy(data)
            (forged["header"]["specification"] if checkpoint else forged)["agent"][field] = planted
            if checkpoint:
                forged["sha256"] = digest(forged)
            file.write_text(json.dumps(forged))
            with pytest.raises((CheckpointError, SpecError)) as raised:
                Agent.load(directory="saved")
            assert "No such file" not in str(raised.value)
    assert not {"planted", "keras_hub"} & sys.modules.keys()


@pytest.mark.slow
def test_networks_that_are_code(tmp_path, monkeypatch):
    """Models that a function makes are saved as data; a layer's class is found if it is registered.

    Else the caller gives them.
    """
    keras = backend.keras()
    own = types.ModuleType("own_networks")

    class Twice(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    def small():
        inputs = keras.Input((3,))
        return keras.Model(inputs, [keras.layers.Dense(n)(inputs) for n in (3, 1)])

    own.Twice = keras.saving.register_keras_serializable("own_networks")(Twice)
    own.small = small
    monkeypatch.setitem(sys.modules, "own_networks", own)
    layers = [{"type": "own_networks.Twice"}, {"type": "dense", "size": 4}]
    as_class = {"type": "keras", "layer": keras.layers.Dense, "units": 4}
    objects = [Twice(), as_class, keras.layers.Dense(4)]
    for network in (layers, ["own_networks.Twice"], objects, [objects], "own_networks.small"):
        agent = create({**ROLLOUT, "model": network})
        agent.save(directory=tmp_path / "agent")
        assert_equal(agent, Agent.load(directory=tmp_path / "agent"))
        if isinstance(network, list):  # a function's layers have other names every time
            assert agent.get_specification() == agent.get_specification()
    agent = create({**ROLLOUT, "model": layers})
    agent.save(directory=tmp_path / "agent")
    monkeypatch.setattr(keras.saving, "get_custom_objects", dict)
    with pytest.raises(SpecError, match="names the layer 'own_networks.Twice', which is not operant's own"):
        Agent.load(directory=tmp_path / "agent")
    again = Agent.load(directory=tmp_path / "agent", agent={"type": "ppo", "model": layers})
    assert_equal(agent, again)


def test_layers_must_be_registered():
    keras = backend.keras()

    class Unregistered(keras.layers.Layer):
        pass

    with pytest.raises(
        SpecError, match=r"Keras does not know 'Unregistered'. Put @keras.*import the module that holds it.$"
    ):
        create({**ROLLOUT, "model": [Unregistered()]})


def test_loading_says_what_is_missing(tmp_path):
    with pytest.raises(CheckpointError, match="There is no checkpoint in"):
        Agent.load(directory=tmp_path)
    with pytest.raises(CheckpointError, match="There is no checkpoint in 'nowhere', which is no folder.$"):
        Agent.load(directory="nowhere")
    agent = create()
    agent.save(directory=tmp_path)
    other = Environment.create(environment="jax:Pendulum-v1")
    with pytest.raises(SpaceError, match="The environment does not fit the saved agent"):
        Agent.load(directory=tmp_path, environment=other)


@pytest.mark.exhaustive
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_recurrent_policy_keeps_its_state_per_actor(cell, tmp_path):
    spec = {**ROLLOUT, "mini_batches": 1, "model": [{"type": "dense", "size": 8}, {"type": cell, "size": 4}]}
    agent = create(spec, parallel_interactions=2, seed=1)
    for i in range(25):
        agent.act(states=np.stack([state(i), state(-i)]), parallel=[0, 1])
        agent.observe(reward=[1.0, 0.0], terminal=[i % 6 == 5, 0], parallel=[0, 1])
    assert agent.updates >= 5
    carries = [jax.tree.leaves(actor.carry) for actor in agent.actors]
    assert not np.allclose(carries[0][0], carries[1][0])
    internals = agent.initial_internals()
    _, after = agent.act(states=state(), internals=internals, independent=True)
    assert not np.allclose(jax.tree.leaves(after)[0], 0)
    with pytest.raises(UsageError, match="needs internals"):
        agent.act(states=state(), independent=True)
    agent.save(directory=tmp_path)
    again = Agent.load(directory=tmp_path)
    for a, b in zip(agent.actors, again.actors, strict=True):
        for x, y in zip(jax.tree.leaves(a.carry), jax.tree.leaves(b.carry), strict=True):
            np.testing.assert_array_equal(x, y)


def test_time_limit_bootstraps_from_the_state_that_follows():
    """The stream gets one row more, with the state that was given; without it, the last one again."""
    agent = create({**ROLLOUT, "n_steps": 8})
    run(agent, 5)
    last = agent.actors[0].rows[-1]
    assert not last.valid
    np.testing.assert_array_equal(last.observation["state"], state(9))
    agent.act(states=state(1))
    agent.observe(terminal=2)
    np.testing.assert_array_equal(agent.actors[0].rows[-1].observation["state"], state(1))


def rows_of(agent, actor=0):
    return agent.actors[actor].rows


def test_reset_cuts_the_actors_named_at_their_true_last_states():
    agent = create(parallel_interactions=3, seed=2)
    agent.act(states=[state(i) for i in range(3)], parallel=[0, 1, 2])
    agent.observe(reward=[1.0, 2.0, 3.0], terminal=[0, 0, 0], parallel=[0, 1, 2])
    agent.reset(parallel=[2, 1], next_states=[state(12), state(11)])
    agent.reset(parallel=2, next_states=state(7))  # nothing is open there any more
    assert [len(rows_of(agent, i)) for i in range(3)] == [1, 2, 2]
    assert not rows_of(agent, 0)[0].truncated and agent.episodes == 2
    for actor, last in ((1, state(11)), (2, state(12))):
        row, end = rows_of(agent, actor)
        assert row.truncated and not row.terminated and row.valid and not end.valid
        np.testing.assert_array_equal(end.observation["state"], last)
    with pytest.raises(UsageError, match="Give their indices as parallel"):
        agent.reset(next_states=state())
    with pytest.raises(SpecError, match="parallel must be an index below"):
        agent.reset(parallel=[3])
    with pytest.raises(SpaceError):
        agent.reset(parallel=0, next_states=[1.0])
    assert len(rows_of(agent, 0)) == 1  # what is refused changes nothing


def test_what_is_held_is_learnt_from_at_the_next_call():
    free, held = create(seed=1), create(seed=1)
    run(free, 9)
    with held.hold():
        run(held, 9)
        assert held.updates == 0
    assert free.updates == 2
    assert run(free, 1, start=9) and run(held, 1, start=9)
    assert held.updates == free.updates and held.timesteps == free.timesteps == 10


def test_updates_that_observe_has_not_told_are_told_after_loading(tmp_path):
    agent = create(seed=1)
    run(agent, 4)
    agent.act(states=state(4))  # learns
    assert agent.updates == 1
    loaded = Agent.load(agent.save(tmp_path))
    assert [one.observe(terminal=True) for one in (agent, loaded)] == [1, 1]


def test_nothing_is_lent_that_another_driver_cannot_keep_to(tmp_path):
    kind = {"agent": "random"}
    for bound in (
        {"config": {"debug": True}},
        {"config": {"precision": "float32"}},
        {"config": {"device": "cpu"}},
        {"recorder": str(tmp_path)},
    ):
        assert create(kind, **bound).detach_state(1) is None
    agent = create(kind)
    with agent.hold():
        assert agent.detach_state(1) is None
    assert agent.detach_state(1) is not None and agent.detach_state(2) is None
    agent.act(states=state())
    assert agent.detach_state(1) is None


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 4)])
def test_an_update_is_due_in_time_after_loading_for_another_number_of_actors(tmp_path, before, after):
    """As its memory begins anew, so does the count of timesteps to the next update."""
    often = {"type": "linear", "start": 8, "end": 8, "steps": 100}  # looked at with every row
    spec = {"agent": "modular", "model": NET, "horizon": 1, "batch_size": 4, "frequency": often}
    agent = create(spec, parallel_interactions=before)
    for i in range(48):
        run(agent, 1, i % before)
    agent.save(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the memory starts empty
        loaded = Agent.load(tmp_path, parallel_interactions=after)
    made, steps = loaded.updates, 0
    assert made == agent.updates > 0
    while loaded.updates == made and steps < 40:
        run(loaded, 1, steps % after)
        steps += 1
    assert 8 <= steps <= 8 + 2 * after


@pytest.mark.slow
@pytest.mark.parametrize("spec", [ROLLOUT, REPLAY], ids=["ppo", "dqn"])
def test_loading_for_another_number_of_actors(tmp_path, spec):
    agent = create(spec, parallel_interactions=2, seed=3)
    for parallel in (0, 1):
        run(agent, 12, parallel)
    agent.save(tmp_path)
    if spec is REPLAY:
        with pytest.warns(RuntimeWarning, match="replay memory starts empty") as told:
            loaded = Agent.load(tmp_path, parallel_interactions=3)
        assert told[0].filename == __file__
    else:
        loaded = Agent.load(tmp_path, parallel_interactions=3)
    assert loaded.parallel_interactions == 3 and loaded.updates == agent.updates > 0
    before, after = leaves(agent), leaves(loaded)
    for name in before:
        if name.startswith((".state", ".counters")):
            np.testing.assert_array_equal(before[name], after[name], err_msg=name)
    assert loaded.act(state(), independent=True) == agent.act(state(), independent=True)
    loaded.act(state(), parallel=2)
    assert loaded.observe(parallel=2) == 0  # updates before it was saved are told already
    run(loaded, 20, parallel=2)
    with pytest.raises(SpecError, match="parallel_interactions must be a whole number"):
        Agent.load(tmp_path, parallel_interactions=0)


@pytest.mark.parametrize("summaries", [pytest.param(False, marks=pytest.mark.slow), True])
def test_debug_makes_an_update_that_is_not_finite_an_error(summaries, tmp_path):
    for debug in (False, True):
        writer = {"summarizer": {"directory": str(tmp_path), "frequency": 1}} if summaries else {}
        agent = create(config={"debug": debug}, seed=0, **writer)
        with contextlib.ExitStack() as stack:
            if debug:
                stack.enter_context(pytest.raises(NumericalError, match="Update 1 was left out.*rewards"))
            for _ in range(40):
                agent.act(np.full(3, 1e38))
                agent.observe(reward=1e38)
    assert agent.updates == 1


def test_every_reader_of_metrics_has_the_averages_since_its_own_last_call(tmp_path):
    agent = create(REPLAY, summarizer={"directory": str(tmp_path), "frequency": 1})
    alone = create(REPLAY)
    for steps in (30, 20):
        for each in (agent, alone):
            run(each, steps)
        read = alone.engine.metrics()
        assert read and agent.engine.metrics("another") == pytest.approx(read, rel=1e-5)
        assert agent.engine.metrics() == pytest.approx(read, rel=1e-5)
        assert agent.engine.metrics() == {}


def test_a_device_that_is_not_there_is_told_with_those_that_are():
    for name in ("cpux", "cpu:7", "cpu:x"):
        with pytest.raises(SpecError, match=f"There is no device '{name}'. JAX has: .*cpu:0"):
            create(config={"device": name})


@pytest.mark.parametrize(
    ("precision", "said"),
    [(None, "DEFAULT"), ("bfloat16", "DEFAULT"), ("tensorfloat32", "HIGH"), ("float32", "HIGHEST")],
)
def test_precision_is_that_of_every_matrix_product(precision, said):
    agent = create(config={"precision": precision})
    engine, block = agent.engine, agent.learner.block_shape(1)
    programs = {
        "act": engine._acts[True].lower(
            engine._leaves, {"state": np.zeros((1, 3), np.float32)}, (), np.zeros(1, bool), engine.noise(0)
        ),
        "update": engine._update.lower(
            engine.train, engine.metric_sums, block, engine._keys.at(engine.train.key, 0)
        ),
    }
    for name, program in programs.items():
        text = program.as_text()
        found = re.findall(r"precision = \[(\w+), (\w+)\]", text)
        assert len(found) == text.count("stablehlo.dot_general"), name
        assert set(found) == {(said, said)}, name
    agent.act([0.0, 1.0, 2.0])
    agent.observe(reward=1.0)
    with pytest.raises(SpecError, match="precision must be.*float32"):
        create(config={"precision": "float23"})


@pytest.mark.slow
def test_an_agent_lives_on_the_device_that_it_was_given(tmp_path):
    code = """
import sys, jax, numpy as np
from operant import Agent
spaces = dict(states=dict(type="float", shape=(3,)), actions=dict(type="int", num_values=2))
make = dict(agent="ppo", n_steps=8, mini_batches=2, **spaces)
agent = Agent.create(**make, config=dict(device="cpu:1", seed=1))
assert agent.engine.metric_sums.devices() == {jax.devices()[1]}
for _ in range(20):
    agent.observe(reward=float(agent.act(np.zeros(3))))
where = {d for x in jax.tree.leaves(agent.engine.train) for d in x.devices()}
assert where == {jax.devices()[1]}, where
assert agent.updates == 2
agent.update()
for _ in range(8):
    agent.observe(reward=float(agent.act(np.zeros(3))))
assert agent.updates == 4 and agent.engine._update._cache_size() == 1
agent.save(sys.argv[1])

from operant.checkpoint import store
made, leaf = [], store._leaf
store._leaf = lambda *given: made.append(leaf(*given)) or made[-1]
for actors in (1, 2):
    config = dict(device="cpu:1", precision="float32")
    loaded = Agent.load(sys.argv[1], parallel_interactions=actors, config=config)
    where = {d for x in made if isinstance(x, jax.Array) for d in x.devices()}
    assert where == {jax.devices()[1]} and loaded.engine.precision == "float32", where
    loaded.act([np.zeros(3)] * actors, parallel=list(range(actors)))
"""
    variables = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2",
    }
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=variables, check=True, timeout=250)
    assert Agent.load(tmp_path).updates == 4
    with pytest.raises(SpecError, match="config must be without a seed, which is saved"):
        Agent.load(tmp_path, config={"seed": 3})
    with pytest.raises(SpecError, match="config must be a dict"):
        Agent.load(tmp_path, config=3)
    with pytest.raises(SpecError, match="config takes no argument 'devise'"):
        Agent.load(tmp_path, config={"devise": "cpu"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("ppo", {"n_steps": 8, "mini_batches": 1}), ("dqn", {"buffer_max_size": 400})]
)
def test_reward_normalisation_follows_actors_not_columns(name, options):
    """Of three actors one acts: blocks have its rows in all columns, and its returns are as if it were
    alone."""
    found = []
    for actors in (1, 3):
        agent = Agent.create(
            agent=name,
            states={"type": "float", "shape": (1,)},
            actions={"type": "int", "num_values": 2},
            parallel_interactions=actors,
            normalize_rewards=True,
            gamma=0.9,
            model=[{"type": "dense", "size": 4}],
            **options,
        )
        for _ in range(20):
            for step in range(11):
                agent.act(states=np.zeros(1, np.float32), parallel=0)
                agent.observe(reward=1.0, terminal=step == 10, parallel=0)
        scale = agent.engine.train.state.reward_scale
        found.append(float(np.sqrt(scale.moments.var)))
        assert float(scale.total[1:].sum()) == 0.0
    # The discounted returns of 11 rewards of 1 deviate by 1.85; mixed up, they grew on through one another's
    # ends.
    assert found == pytest.approx([1.85, 1.85], abs=0.03)


NETWORK = [{"type": "dense", "size": 4}]
MOMENTS = ("/mean']", "/var']", "/count']")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "dqn", "acer", "trpo", "modular"])
def test_an_update_with_nothing_new_counts_nothing_again(name):
    """Moments of observations, with which it acts, and the scale of rewards stay as they were.

    The weights do not.
    """
    options = {
        "ppo": {"n_steps": 8, "mini_batches": 1},
        "acer": {"n_steps": 8},
        "trpo": {"n_steps": 8, "actor_model": NETWORK, "critic_model": NETWORK},
        "dqn": {"buffer_max_size": 400, "buffer_initial_size": 4, "train_every": 8},
        "modular": {
            "update": {"unit": "timesteps", "batch_size": 8},
            "baseline": NETWORK,
            "network": NETWORK,
        },
    }[name]
    agent = Agent.create(
        agent=name,
        states={"type": "float", "shape": (2,)},
        actions={"type": "int", "num_values": 2},
        normalize_observations=True,
        normalize_rewards=True,
        **{"model": NETWORK} if name in ("ppo", "acer", "dqn") else {},
        **options,
    )
    draw = np.random.default_rng(0)
    for _ in range(16):
        agent.act(states=draw.normal(5.0, 2.0, 2).astype(np.float32))
        agent.observe(reward=float(draw.normal()))

    def leaves(tree):
        return {jax.tree_util.keystr(path): np.array(x) for path, x in jax.tree.leaves_with_path(tree)}

    def counted(tree):
        return {k: x for k, x in leaves(tree).items() if k.endswith(MOMENTS) or "reward_scale" in k}

    before, acting = leaves(agent.engine.train.state), counted(agent.engine.acting)
    kept = counted(agent.engine.train.state)
    assert any(k.endswith(MOMENTS) for k in acting) and any("reward_scale" in k for k in kept)
    assert agent.update() == 1
    after = leaves(agent.engine.train.state)
    for k in kept:
        np.testing.assert_array_equal(after[k], before[k], err_msg=k)
    for k, x in counted(agent.engine.acting).items():
        np.testing.assert_array_equal(x, acting[k], err_msg=k)
    assert any(not np.array_equal(after[k], before[k]) for k in after if "kernel" in k)


def test_fetching_begins_early_where_arrays_are_not_in_the_host_s_memory(monkeypatch):
    cls, begun = type(jnp.zeros(1)), []
    begin = cls.copy_to_host_async
    monkeypatch.setattr(cls, "copy_to_host_async", lambda array: begun.append(array.shape) or begin(array))

    def acted(apart):
        agent = create(seed=1)
        agent.engine._apart = apart
        begun.clear()
        actions = run(agent, 1)
        return actions + run(agent, 19), begun[:1]

    actions, first = acted(True)
    assert acted(False) == (actions, []) and first == [(1,)]  # the action of one actor


def test_the_length_of_an_open_episode_is_kept(tmp_path):
    agent = create(max_episode_timesteps=5)
    for _ in range(3):
        agent.act(states=state())
        agent.observe(reward=1.0)
    agent.save(tmp_path)
    for each in (agent, Agent.load(tmp_path)):
        for _ in range(2):
            each.act(states=state())
            each.observe(reward=1.0)
        with pytest.raises(UsageError, match="longer than max_episode_timesteps=5"):
            each.act(states=state())


def test_another_state_brings_its_own_randomness():
    """Randomness is drawn ahead: what was drawn for the state before must not be used."""
    one, other = (create(seed=seed) for seed in (1, 2))
    for agent in (one, other):
        run(agent, 10)
    drawn = [[each.engine.noise(3), each.engine._keys.at(each.engine.train.key, 1)] for each in (one, other)]
    assert not any(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, drawn), strict=True))
    one.engine.put(other.engine.train)
    again = [one.engine.noise(3), one.engine._keys.at(one.engine.train.key, 1)]
    jax.tree.map(np.testing.assert_array_equal, again, drawn[1])


def test_an_agent_learns_from_episodes_side_by_side():
    """The loop of programs for Tensorforce, word for word."""
    environment = Environment.create("jax:CartPole-v1", max_episode_timesteps=30)
    agent = Agent.create(
        agent="a2c",
        environment=environment,
        parallel_interactions=4,
        n_steps=8,
        model=[{"type": "dense", "size": 4}],
        seed=0,
    )
    steps = updates = 0
    for _ in range(2):
        parallel, states = environment.reset(num_parallel=4)
        while len(parallel) > 0:
            actions = agent.act(states=states, parallel=parallel)
            next_parallel, states, terminal, reward = environment.execute(actions=actions)
            updates += agent.observe(terminal=terminal, reward=reward, parallel=parallel)
            steps += len(parallel)
            parallel = next_parallel
    assert (agent.timesteps, agent.episodes, agent.updates) == (steps, 8, updates) and updates > 1
    agent.close()
