"""What an agent goes on with after loading, and with experience from elsewhere: nothing lost, nothing joined
that does not belong together."""

import warnings

import jax
import numpy as np
import pytest
from tests.execution.test_agent import NET, REPLAY, ROLLOUT
from tests.training.small_runs import create, play, same, weights

from operant import Agent, Environment
from operant.agents.base.agent_spec import parse_agent
from operant.agents.modular_parts.sizes import block_rows, interval
from operant.errors import SpaceError, SpecError
from operant.execution import traces
from operant.memory.recent import Recent
from operant.nn.backend import keras
from operant.spec.run import RunConfig
from operant.spec.spaces import Spaces
from operant.training.train import ExperimentConfig, train

CRITIC = {"agent": "ac", "batch_size": 64, "network": NET}


GRADIENT = {"agent": "vpg", "update": {"unit": "timesteps", "batch_size": 8}, "network": NET}


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


def test_a_recorder_that_begins_between_act_and_observe_records_from_that_step_on(tmp_path):
    agent = create()
    agent.act(np.ones(3, np.float32))
    agent.save(tmp_path)
    for lengths, recorded in (([], [1]), ([3, 1], [1, 4, 1])):
        with Agent.load(tmp_path, recorder=str(tmp_path / "traces")) as loaded:
            loaded.observe(reward=1.0, terminal=not lengths)
            for length in lengths:
                for left in reversed(range(length)):
                    loaded.act(np.ones(3, np.float32))
                    loaded.observe(reward=1.0, terminal=left == 0)
        found = traces.files(tmp_path / "traces")
        assert [len(traces.read(file, agent.spaces).reward) for file in found] == recorded
    assert len(list((tmp_path / "traces").iterdir())) == 3


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


@pytest.mark.slow
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
    held = memory.rollout(agent.engine.train.memory).valid
    assert held.sum(axis=0).min() >= 8  # one of the episodes that each actor got


@pytest.mark.slow
def test_one_long_episode_in_small_memories_is_told_with_the_remedy():
    agent = create({**CRITIC, "capacity": 128}, parallel_interactions=4)
    rows = np.zeros((40, 3), np.float32)
    terminal = np.arange(40) == 39
    with pytest.warns(
        RuntimeWarning,
        match=r"episode of 40 steps is longer than the memory of one actor, \d+ rows.*Give capacity",
    ):
        agent.experience(states=rows, actions=np.zeros(40, int), terminal=terminal, reward=np.ones(40))
    assert agent.update() >= 1
    memory = agent.learner.algorithm.memory
    assert memory.rollout(agent.engine.train.memory).valid.sum() == 24  # of the last two columns
    large = create({**CRITIC, "capacity": 256}, parallel_interactions=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        large.experience(states=rows, actions=np.zeros(40, int), terminal=terminal, reward=np.ones(40))
    assert large.update() >= 1
    assert large.learner.algorithm.memory.rollout(large.engine.train.memory).valid.sum() == 40


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
