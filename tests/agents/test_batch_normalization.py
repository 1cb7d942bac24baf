"""Batch normalisation: by the batch in losses, by running averages elsewhere, which every gradient step
moves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.keras_copies import flat, held, keras_model
from tests.plain_networks import PLAIN, Plain, plan
from tests.small_agents import SOME, compile_agent, countdown, equal, networks

from operant.agents.modular_parts import gradient_steps
from operant.errors import SpecError
from operant.execution.pretraining import BehavioralCloning
from operant.execution.traces import Trace
from operant.nn import Head, build
from operant.nn.backend import keras
from operant.ops import optimise
from operant.spec.spaces import Spaces

VECTOR = Spaces.read(
    states={"type": "float", "shape": (2,)}, actions={"type": "int", "num_values": 2}
).states.components
NORMALISED = [{"type": "dense", "size": 16}, {"type": "batch_normalization", "momentum": 0.9}]
MEAN, VARIANCE = "body.batch_normalization0/moving_mean", "body.batch_normalization0/moving_variance"
X = {"state": jnp.asarray([[1.0, 0.0], [3.0, 4.0], [5.0, 2.0]])}  # means (3, 2), variances 8/3


@pytest.fixture(scope="module")
def bare():
    """Batch normalisation of the input itself, and the sum of that and twice that."""
    model = build([{"type": "batch_normalization", "momentum": 0.75}], VECTOR, {"q": Head(())})
    v = model.init(jax.random.key(0))
    v["params"]["head.q/kernel"] = jnp.asarray([[1.0], [2.0]])
    return model, v


def test_in_a_loss_the_batch_is_standardised(bare):
    model, v = bare
    learned = model.apply(model.learning(v, jax.random.key(0)), X)[0]["q"]
    # (x - mean) / √(8/3 + 0.001): rows (-2, -2), (0, 2), (2, 0), times (1, 2)
    np.testing.assert_allclose(learned, np.asarray([-6.0, 4.0, 2.0]) / np.sqrt(8 / 3 + 0.001), rtol=1e-5)
    # in use by averages of nothing yet, 0 and 1
    used = model.apply(v, X)[0]["q"]
    np.testing.assert_allclose(used, np.asarray([1.0, 11.0, 9.0]) / np.sqrt(1.001), rtol=1e-5)
    alone = model.apply(v, {"state": X["state"][0]})[0]["q"]
    np.testing.assert_allclose(alone, used[0], rtol=1e-6)


def test_averages_move_with_a_batch(bare):
    model, v = bare
    assert set(model.averages) == {MEAN, VARIANCE} <= set(v["params"])
    assert model.count == 2 + 2 + 2 + 1  # γ, β, kernel, bias; averages are not trained
    stepped = {**v["params"], "head.q/bias": jnp.ones(1)}
    moved = jax.jit(model.averaged)(stepped, model.learning(v, jax.random.key(0)), X)
    # 0.75 (0, 1) + 0.25 (batch)
    np.testing.assert_allclose(moved[MEAN], [0.75, 0.5], rtol=1e-6)
    np.testing.assert_allclose(moved[VARIANCE], [0.75 + 2 / 3, 0.75 + 2 / 3], rtol=1e-6)
    assert equal({**moved, MEAN: 0, VARIANCE: 0}, {**stepped, MEAN: 0, VARIANCE: 0})
    # ... and are what use goes by
    used = model.apply({**v, "params": moved}, {"state": jnp.asarray([0.75, 1.5])})[0]["q"]
    np.testing.assert_allclose(used, 2.0 / np.sqrt(0.75 + 2 / 3 + 0.001) + 1.0, rtol=1e-5)
    spoilt = {"state": X["state"].at[0, 0].set(jnp.nan)}
    kept = model.averaged(stepped, model.learning(v, jax.random.key(0)), spoilt)
    assert equal(kept, stepped)


def test_averages_have_no_gradient(bare):
    model, v = bare
    for variables in (v, model.learning(v, jax.random.key(0))):
        grads = jax.grad(lambda p, v=variables: jnp.sum(model.apply({**v, "params": p}, X)[0]["q"] ** 2))(
            v["params"]
        )
        assert not np.any(grads[MEAN]) and not np.any(grads[VARIANCE])
        assert np.any(grads["head.q/kernel"])


def test_frozen_batch_normalisation_learns_as_it_is_used():
    k = keras()
    frozen = k.layers.BatchNormalization(trainable=False)
    model = build([*NORMALISED[:1], frozen], VECTOR, {"q": Head(())})
    assert not model.learns_otherwise and model.averages == ()


def test_averages_that_a_keras_layer_has_are_where_it_begins():
    k = keras()
    trained = k.layers.BatchNormalization(dtype="float32")
    trained.build((None, 16))
    trained.moving_mean.assign(np.full(16, 0.25))
    model = build([*NORMALISED[:1], trained], VECTOR, {"q": Head(())})
    v = model.init(jax.random.key(3))
    name = "body.batchnormalization0/moving_mean"
    np.testing.assert_array_equal(v["params"][name], np.full(16, 0.25))
    with jax.numpy_rank_promotion("allow"):
        assert equal(held(keras_model(model, v)), flat(v))


def test_recurrent_networks_take_none():
    with pytest.raises(
        SpecError, match=r"Recurrent networks take no layers with running averages.*layer_norm"
    ):
        build([*NORMALISED, {"type": "gru", "size": 4}], VECTOR, {"q": Head(())})


def test_momentum_is_checked():
    with pytest.raises(SpecError, match=r"momentum must be at least 0 and below 1. Received: momentum=1.0"):
        build([{"type": "batch_normalization", "momentum": 1.0}], VECTOR, {"q": Head(())})


@pytest.mark.parametrize("length", [10, gradient_steps.CHUNK + 10])
def test_rows_that_do_not_count_are_no_part_of_a_batch(length):
    # What a loss reads beside the rows that count are they themselves again, so that means are theirs.
    index = jnp.arange(length, dtype=jnp.float32)
    counts = (index == 1) | (index == 4) | (index == 5) | (index == 9)
    rows = jnp.where(counts, index, 1e6)
    inside, seen = rows[counts], []

    def loss(params, frozen, own):
        jax.debug.callback(seen.append, own)
        return params * own, {}

    class Watched(Plain):
        def averaged(self, state, before, after, rows):
            jax.debug.callback(seen.append, rows)
            return after

    optimizer = optimise.optimizer("sgd", 0.1)
    jax.jit(
        lambda p: gradient_steps.fit(
            loss,
            p,
            optimizer.init(p),
            optimizer,
            rows,
            counts,
            plan(multi_step=2),
            jax.random.key(0),
            Watched(*PLAIN),
        )[0]
    )(jnp.ones(()))
    jax.effects_barrier()
    assert len(seen) == 4
    for own in seen:
        found, numbers = np.unique(own, return_counts=True)
        np.testing.assert_array_equal(found, np.sort(inside))
        assert np.ptp(numbers) <= 1


@pytest.mark.parametrize("name", SOME)
def test_every_algorithm_moves_the_averages(name):
    made = compile_agent(name, countdown(name), **networks(name, NORMALISED))
    start, _ = made.begin(0)
    train, _, metrics = made.run(0, 4)
    assert all(m.get("update/skipped", 0.0) == 0.0 for m in metrics)
    weights = made.learner.algorithm.weights
    # A network each for policy and value is the default of those that have the option.
    networks_of_one_model = 2 if hasattr(made.learner.algorithm.config, "separate") else 1
    for model, variables in weights(train.state).items():
        before, after = weights(start.state)[model]["params"], variables["params"]
        averages = [k for k in after if k.rpartition("/")[2].startswith("moving_")]
        assert len(averages) == 2 * networks_of_one_model
        for key in averages:
            assert not np.allclose(before[key], after[key], atol=1e-4), (model, key)
            assert np.all(np.isfinite(after[key]))
            assert np.all(after[key] > 0) or "variance" not in key
    assert equal(made.run(0, 4)[0], train)


@pytest.mark.slow
def test_a_target_network_keeps_averages_of_its_own():
    made = compile_agent("dqn", countdown("dqn"), **networks("dqn", NORMALISED), target_sync_steps=1000)
    train, _, _ = made.run(0, 6)
    own, target = train.state.variables["params"], train.state.target
    assert own.keys() == target.keys()
    np.testing.assert_array_equal(target[MEAN], np.zeros(16))  # never synced
    assert np.all(np.abs(own[MEAN]) > 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "a2c", "acer", "pqn", "trpo"])
def test_padding_is_no_part_of_a_batch(name):
    """An actor that left fills its column with padding, whatever that shows.

    Without batch normalisation it never mattered.
    """
    made = compile_agent(name, countdown(name), **networks(name, NORMALISED))
    train, world = made.begin(0)
    for _ in range(2):
        block, world = made.collect(train, world)
        train, _ = made.absorb(train, block)
    left = block._replace(valid=block.valid.at[:, 1].set(False))
    other = {
        k: x.at[:, 1].add(jnp.asarray(7.0, x.dtype)) if jnp.issubdtype(x.dtype, jnp.floating) else x
        for k, x in left.observation.items()
    }
    one = two = train
    for _ in range(4):  # of what is replayed, too
        one, _ = made.absorb(one, left)
        two, _ = made.absorb(two, left._replace(observation=other))
    assert equal(one.state, two.state)
    seen, _ = made.absorb(train, block._replace(observation=other))
    assert not equal(seen.state, made.absorb(train, block)[0].state)  # rows that count do matter


@pytest.mark.parametrize(
    "name", ["a2c", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dqn", "modular", "td3"))]
)
def test_padding_is_no_part_of_a_batch_of_imitation(name):
    made = compile_agent(name, countdown(name), **networks(name, NORMALISED))
    engine, (_, blocks, _) = made.engine(0), made.run(0, 1)
    done = np.asarray(blocks[0].valid)
    trace = Trace(
        *(
            {k: np.asarray(x)[: len(done)][done] for k, x in tree.items()}
            for tree in (blocks[0].observation, blocks[0].action)
        ),
        np.ones(done.sum(), np.float32),
        np.where(np.arange(done.sum()) == done.sum() - 1, 1, 0),
    )
    cloning = BehavioralCloning(engine, batch_size=64, seed=0)
    (block,) = cloning._batches(cloning._cut(trace))
    padding = np.concatenate([[True], ~block.valid[:, 0]]) & np.concatenate([~block.valid[:, 0], [True]])
    assert padding.sum() == len(padding) - done.sum() - 1  # the column's rest, behind the last observation

    def learned(shift, rows):
        observation = {
            k: np.where(rows.reshape(-1, *[1] * (x.ndim - 1)), x + shift, x).astype(x.dtype)
            if x.dtype.kind == "f"
            else x
            for k, x in block.observation.items()
        }
        given = block._replace(observation=observation)
        hyper, lr = engine.train.hyper, np.float32(0.01)
        return cloning._step(cloning._weights, cloning._state, hyper, given, jax.random.key(0), lr)

    assert equal(learned(7.0, padding), learned(0.0, padding))
    assert not equal(learned(7.0, ~padding), learned(0.0, padding))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a2c", {}),
        pytest.param("ppo", {"mini_batches": 1}, marks=pytest.mark.slow),
        pytest.param("pqn", {"mini_batches": 1}, marks=pytest.mark.slow),
        ("trpo", {"mini_batches": 1, "fvp_n_steps": 1}),
        ("acer", {"buffer_initial_size": 90}),
    ],
)
def test_a_block_without_actions_changes_nothing(name, options):
    """With one row of one environment that is every block with an episode's last observation, in which all
    rows are alike."""
    made = compile_agent(name, countdown(name), 1, **networks(name, NORMALISED), n_steps=1, **options)
    train, world = made.begin(0)
    empty = 0
    for _ in range(12):
        block, world = made.collect(train, world)
        before, (train, _) = train.state, made.absorb(train, block)
        if not block.valid.any():
            empty += 1
            assert equal(train.state, before)
    assert empty > 1 and not equal(train.state, made.begin(0)[0].state)
