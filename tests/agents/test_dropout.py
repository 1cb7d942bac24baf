"""Dropout: networks are applied as in training in losses, and as in use everywhere else."""

from __future__ import annotations

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.small_agents import SMALL, SOME, Compiled, compile_agent, countdown, equal, networks, small

from operant import Agent
from operant.agents.parts.minibatches import passes
from operant.agents.table import AGENTS
from operant.nn import Head, Model, build
from operant.nn.backend import keras
from operant.spec.spaces import Spaces

VECTOR = Spaces.read(
    states={"type": "float", "shape": (4,)}, actions={"type": "int", "num_values": 2}
).states.components
X = {"state": jnp.asarray(np.random.default_rng(0).normal(size=(8, 4)), jnp.float32)}


def made(layers, *heads):
    model = build(layers, VECTOR, {name: Head((2,)) for name in heads or ("q",)})
    return model, model.init(jax.random.key(0))


def layers(rate):
    return [{"type": "dense", "size": 16, **({"dropout": rate} if rate else {})}]


def sequential():
    k = keras()
    return k.Sequential([k.Input((4,)), k.layers.Dense(8), k.layers.Dropout(0.5), k.layers.Dense(2)])


NOISY = {
    "dense": layers(0.5),
    "dropout": [*layers(0), {"type": "dropout", "rate": 0.5}],
    "keras model": sequential,
    "gaussian noise": [{"type": "keras", "layer": "GaussianNoise", "stddev": 0.1}],
    "attention": [
        {"type": "reshape", "shape": (2, 2)},
        {"type": "attention", "size": 2, "dropout": 0.5},
        "flatten",
    ],
    "keras gru": [
        {"type": "reshape", "shape": (2, 2)},
        {"type": "keras", "layer": "GRU", "units": 4, "dropout": 0.5},
    ],
}


@pytest.mark.parametrize("network", NOISY.values(), ids=NOISY)
def test_a_key_gives_one_noise(network):
    model, v = made(network)
    assert model.learns_otherwise

    @jax.jit
    def learned(key):
        return model.apply(model.learning(v, key, 1), X)[0]["q"]

    first, again, other = (learned(jax.random.key(seed)) for seed in (0, 0, 1))
    used = model.apply(v, X)[0]["q"]
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert not np.allclose(first, used)
    marked = model.learning(v, jax.random.key(0), 1)
    elsewhere = model.apply(model.learning(v, jax.random.key(0), 2), X)[0]["q"]
    assert not np.allclose(first, elsewhere)  # another address
    np.testing.assert_array_equal(model.apply(model.in_use(marked), X)[0]["q"], model.apply(v, X)[0]["q"])


QUIET = {
    "dense": layers(0),
    "normalised": [*layers(0), {"type": "layer_normalization"}],
    "gru": [{"type": "gru", "size": 4}],
    "lstm": [{"type": "lstm", "size": 4}],
    "attention": [{"type": "reshape", "shape": (2, 2)}, {"type": "attention", "size": 2}, "flatten"],
    "keras gru": [
        {"type": "reshape", "shape": (2, 2)},
        {"type": "keras", "layer": "GRU", "units": 4},
    ],
    "rate 0": [*layers(0), {"type": "dropout", "rate": 0.0}],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("network", QUIET.values(), ids=QUIET)
def test_other_networks_learn_as_they_are_used(network):
    # the same object: programs, and so golden values of all algorithms, are what they are without dropout
    model, v = made(network)
    assert not model.learns_otherwise
    assert model.learning(v, jax.random.key(0)) is v
    assert model.in_use(v) is v


def test_in_use_a_network_is_the_one_without_dropout():
    dropping, v = made([*layers(0.5), *layers(0.25)])
    plain, _ = made([*layers(0), *layers(0)])
    alike = {"params": v["params"], "state": {}}
    np.testing.assert_array_equal(dropping.apply(v, X)[0]["q"], plain.apply(alike, X)[0]["q"])


def test_the_mean_over_keys_is_the_network_in_use():
    # behind dropout everything is linear: the mean is exact, its error that of 4000 draws
    model, v = made([*layers(0), {"type": "dropout", "rate": 0.5}])
    draws = jax.jit(jax.vmap(lambda key: model.apply(model.learning(v, key), X)[0]["q"]))(
        jax.random.split(jax.random.key(1), 4000)
    )
    used = model.apply(v, X)[0]["q"]
    error = np.std(draws, axis=0) / np.sqrt(4000)
    assert np.all(np.abs(np.mean(draws, axis=0) - used) < 5 * error)
    assert np.all(error > 0)


def test_a_class_of_the_users_is_asked_whether_it_trains():
    k = keras()

    class Doubled(k.layers.Layer):
        def call(self, inputs, training=False):
            return 2.0 * inputs if training else inputs

    entry = k.Input((4,))
    model, v = made(k.Model(entry, k.layers.Dense(2, use_bias=False)(Doubled()(entry))))
    assert model.learns_otherwise
    learned = model.apply(model.learning(v, jax.random.key(0)), X)[0]["q"]
    np.testing.assert_allclose(learned, 2.0 * model.apply(v, X)[0]["q"], rtol=1e-5)


def test_every_row_of_a_sequence_draws_anew():
    # the kernel of the cell is 0, so that its state, and the output, stay what they are but for dropout
    model, v = made([{"type": "gru", "size": 32, "dropout": 0.5}])
    v["params"] = {
        name: x if name.startswith("head") else jnp.zeros_like(x) for name, x in v["params"].items()
    }
    start = {name: jnp.ones_like(x) for name, x in model.initial_carry(2).items()}
    rows = {"state": jnp.zeros((5, 2, 4))}
    reset = jnp.zeros((5, 2), bool)
    marked = model.learning(v, jax.random.key(3))
    learned, after = jax.jit(model.unroll)(marked, rows, start, reset)
    used, last = jax.jit(model.unroll)(v, rows, start, reset)
    assert equal(after, last)  # dropout is behind the cell
    ratio = np.asarray(learned["q"] / used["q"]).reshape(10, 2)
    assert len({tuple(row) for row in ratio.tolist()}) == 10
    assert equal(jax.jit(model.unroll)(marked, rows, start, reset)[0], learned)


@pytest.mark.parametrize("noisy", [False, True])
def test_every_minibatch_has_a_key_of_its_own(noisy):
    def step(learned, part):
        key = part.key
        assert (key is None) is not noisy
        data = jax.random.key_data(key) if noisy else jnp.zeros(2, jnp.uint32)
        return learned, {"update/skipped": jnp.zeros(()), "a": data[0], "b": data[1]}

    seen = []

    def watched(learned, part):
        learned, metrics = step(learned, part)
        jax.debug.callback(lambda a, b: seen.append((int(a), int(b))), metrics.pop("a"), metrics.pop("b"))
        return learned, metrics

    jax.jit(lambda key: passes(watched, (), jnp.zeros((4, 3)), key, epochs=3, parts=2, noisy=noisy))(
        jax.random.key(0)
    )
    jax.effects_barrier()
    assert len(seen) == 6
    assert len(set(seen)) == (6 if noisy else 1)


@functools.cache
def agent(name: str, rate: float) -> Compiled:
    """Return a small agent all of whose networks drop at this rate."""
    return compile_agent(name, countdown(name), **networks(name, layers(rate)))


def alike(name: str):
    """Return an agent with dropout and one without, with trains of the same weights, and blocks that both
    acted out alike."""
    dropping, plain = agent(name, 0.5), agent(name, 0.0)
    train, world = plain.begin(0)
    other, its_world = dropping.begin(0)
    algorithm = dropping.learner.algorithm
    given = plain.learner.algorithm.weights(train.state)
    own = algorithm.weights(other.state)
    state = algorithm.with_weights(
        other.state, {key: {"params": given[key]["params"], "state": own[key]["state"]} for key in own}
    )
    return dropping, plain, other._replace(state=state), train, its_world, world


def params(agent: Compiled, train):
    weights = agent.learner.algorithm.weights(train.state)
    return {name: variables["params"] for name, variables in weights.items()}


@pytest.mark.parametrize("name", SOME)
def test_every_algorithm_learns_with_dropout_and_acts_without(name):
    dropping, plain, train, other, world, plain_world = alike(name)
    block, _ = dropping.collect(train, world)
    expected, _ = plain.collect(other, plain_world)
    assert equal(block, expected)  # acting, old log-probabilities
    trains = {"first": train, "again": train, "plain": other}
    for _ in range(4):  # until memories are filled; on the plain one's experience
        block, plain_world = plain.collect(trains["plain"], plain_world)
        for which, made in (("first", dropping), ("again", dropping), ("plain", plain)):
            trains[which], metrics = made.absorb(trains[which], block)
            assert metrics.get("update/skipped", 0.0) == 0.0
    learned, again, without = (
        params(made, trains[which])
        for which, made in (("first", dropping), ("again", dropping), ("plain", plain))
    )
    assert equal(learned, again)
    for model in learned:
        if (name, model) != ("trpo", "actor"):  # whose step needs one function throughout
            assert not equal(learned[model], without[model]), model
    assert not equal(params(plain, other), without)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(learned))


@pytest.mark.slow
def test_targets_are_those_of_the_network_in_use():
    dropping, plain, train, other, _, world = alike("pqn")
    block, _ = plain.collect(other, world)
    found, expected = (made.absorb(given, block)[1] for made, given in ((dropping, train), (plain, other)))
    assert found["value/target"] == expected["value/target"] != 0
    assert found["loss/td"] != expected["loss/td"]


@pytest.mark.parametrize("name", SOME)
def test_every_gradient_step_draws_anew(name, monkeypatch):
    seen, learning = [], Model.learning

    def watched(self, variables, key, *path):
        found = learning(self, variables, key, *path)
        words = [x for name, x in found["state"].items() if name.endswith("seed_generator_state")]
        jax.debug.callback(lambda *words: seen.append(np.stack(words).tobytes()), *words)
        return found

    monkeypatch.setattr(Model, "learning", watched)
    # not the cached one, whose functions were compiled before
    made = compile_agent(name, countdown(name), **networks(name, layers(0.5)))
    train, world = made.begin(0)
    for _ in range(4):
        block, world = made.collect(train, world)
        train, _ = made.absorb(train, block)
    jax.effects_barrier()
    # It asks for the noise of a step once for its loss and once for what follows.
    times = 2 if AGENTS[name].module == "dqn" else 1
    counts = collections.Counter(seen)
    assert len(counts) >= max(2, SMALL[name].steps)
    assert set(counts.values()) == {times}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "options",
    [{"multi_step": 3}, {"gradient": "evolutionary", "multi_step": 2}, {"linesearch_iterations": 3}],
)
def test_the_modular_agent_drops_whatever_its_steps_are(options):
    found = []
    for rate in (0.5, 0.0):
        made = compile_agent("modular", countdown("modular"), **networks("modular", layers(rate)), **options)
        found.append(made.run(0, 3)[0])
        assert equal(made.run(0, 3)[0], found[-1])
    assert found[0].counters.updates == found[1].counters.updates > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_an_agent_does_not_drop_when_it_acts(name):
    spaces = {"states": {"type": "float", "shape": (4,)}, "actions": {"type": "int", "num_values": 3}}
    made = Agent.create(agent=name, **small(name, **networks(name, layers(0.9))), **spaces)
    states = np.asarray(X["state"])
    actions = [made.act(states, independent=True, deterministic=True) for _ in range(3)]
    for other in actions[1:]:
        np.testing.assert_array_equal(actions[0], other)
    made.close()
