"""Models: initialisation, pure calls, batch axes, normalisation, recurrence, Keras to and fro."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.keras_copies import flat, held, keras_model

from operant.errors import SpaceError
from operant.nn import Head, build
from operant.nn.backend import keras, numpy_promotion
from operant.spec.spaces import Leaf

VECTOR = {"state": Leaf("float", (3,))}
HEADS = {"q": Head((2, 2)), "value": Head(())}


def dense(size=4, **arguments):
    return {"type": "dense", "size": size, **arguments}


@pytest.fixture(scope="module")
def mlp():
    return build([dense(), dense()], VECTOR, HEADS)


@pytest.fixture(scope="module")
def variables(mlp):
    return mlp.init(jax.random.key(0))


@pytest.fixture(scope="module")
def recurrent():
    return build(
        [{"type": "lstm", "size": 3, "horizon": 5}, {"type": "gru", "size": 2}], VECTOR, {"q": Head((2,))}
    )


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_names_and_shapes(mlp, variables):
    shapes = jax.tree.map(jnp.shape, variables)
    assert shapes == {
        "params": {
            "body.dense0/kernel": (3, 4),
            "body.dense0/bias": (4,),
            "body.dense1/kernel": (4, 4),
            "body.dense1/bias": (4,),
            "head.q/kernel": (4, 4),
            "head.q/bias": (4,),
            "head.value/kernel": (4, 1),
            "head.value/bias": (1,),
        },
        "state": {},
    }
    assert mlp.count == 3 * 4 + 4 + 4 * 4 + 4 + 4 * 4 + 4 + 4 + 1
    assert "body.dense1 (Dense)" in mlp.summary()


def test_init_is_a_function_of_the_key(mlp, variables):
    assert_equal(mlp.init(jax.random.key(0)), variables)
    other = mlp.init(jax.random.key(1))["params"]
    assert not np.allclose(other["body.dense0/kernel"], variables["params"]["body.dense0/kernel"])


def test_weights_of_one_shape_differ(variables):
    params = variables["params"]
    assert not np.allclose(params["body.dense1/kernel"], params["head.q/kernel"])


def test_init_maps_over_keys(mlp):
    mapped = jax.vmap(mlp.init)(jax.random.split(jax.random.key(3), 3))
    keys = jax.random.split(jax.random.key(3), 3)
    for i in range(3):
        one = jax.tree.map(lambda x, i=i: x[i], mapped)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one, mlp.init(keys[i]))


def test_orthogonal_kernels():
    inputs = {"state": Leaf("float", (40,))}
    model = build(
        [dense(8, activation="relu"), dense(8, activation="none")], inputs, {"q": Head((2,), scale=0.01)}
    )
    params = model.init(jax.random.key(0))["params"]
    # columns are orthogonal with length gain: √2 before relu, 1 before nothing, the head's scale
    tall, square, head = (params[f"{n}/kernel"] for n in ("body.dense0", "body.dense1", "head.q"))
    np.testing.assert_allclose(tall.T @ tall, 2.0 * np.eye(8), atol=1e-5)
    np.testing.assert_allclose(square.T @ square, np.eye(8), atol=1e-5)
    np.testing.assert_allclose(head.T @ head, 1e-4 * np.eye(2), atol=1e-9)


def test_fast_orthogonal_is_that_of_keras():
    from operant.nn.keras_layers import Orthogonal

    with numpy_promotion():
        for shape in ((50, 8), (2, 2, 3, 5), (3, 20)):
            ours = Orthogonal(gain=1.5, seed=7)(shape)
            np.testing.assert_allclose(ours, keras().initializers.Orthogonal(1.5, seed=7)(shape), atol=1e-5)


def test_call_is_the_layers_written_out(mlp, variables):
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    p = variables["params"]

    def layer(x, name):
        return x @ np.asarray(p[f"{name}/kernel"]) + np.asarray(p[f"{name}/bias"])

    features = np.tanh(layer(np.tanh(layer(x, "body.dense0")), "body.dense1"))
    outputs, carry = jax.jit(mlp.apply)(variables, {"state": x})
    np.testing.assert_allclose(outputs["q"], layer(features, "head.q").reshape(5, 2, 2), atol=1e-6)
    np.testing.assert_allclose(outputs["value"], layer(features, "head.value")[:, 0], atol=1e-6)
    assert carry == ()


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (0,)])
def test_any_leading_axes(mlp, variables, lead):
    x = jax.random.normal(jax.random.key(1), (*lead, 3))
    outputs, _ = mlp.apply(variables, {"state": x})
    assert outputs["q"].shape == (*lead, 2, 2)
    assert outputs["value"].shape == lead
    flat, _ = mlp.apply(variables, {"state": x.reshape(-1, 3)})
    np.testing.assert_allclose(outputs["value"].reshape(-1), flat["value"], atol=1e-6)


def test_second_call_compiles_nothing(mlp, variables):
    call = jax.jit(mlp.apply)
    for i in range(3):
        call(mlp.init(jax.random.key(i)), {"state": jnp.full((4, 3), float(i))})
    assert call._cache_size() == 1
    assert mlp._draw._cache_size() == 1


def test_masks_that_come_along_are_not_read(mlp, variables):
    x = {"state": jnp.ones((1, 3))}
    with_mask = {**x, "action_mask": jnp.zeros((1, 2), bool)}
    assert_equal(mlp.apply(variables, x), mlp.apply(variables, with_mask))


def test_wrong_observations_are_named(mlp, variables):
    with pytest.raises(SpaceError, match=r"reads 'state'. Received: camera"):
        mlp.apply(variables, {"camera": jnp.ones(3)})
    with pytest.raises(
        SpaceError, match=r"state must have any leading axes and then shape \(3,\). Received: shape \(2, 4\)"
    ):
        mlp.apply(variables, {"state": jnp.ones((2, 4))})


@pytest.fixture(scope="module")
def normalized():
    return build([dense(activation="none")], VECTOR, {"q": Head((2,))}, normalize=True)


def test_normalisation(normalized):
    start = normalized.init(jax.random.key(0))
    rows = jnp.asarray([[1.0, 0.0, 5.0], [3.0, 0.0, 5.0], [100.0, 7.0, 7.0], [9.0, 9.0, 9.0]])
    # the third row is not valid, the fourth lies beyond `valid`: means (2, 0, 5), variances (1, 0, 0)
    seen = normalized.observe(start, {"state": rows}, jnp.asarray([True, True, False]))
    np.testing.assert_allclose(seen["state"]["normalizer.state/mean"], [2.0, 0.0, 5.0], atol=1e-6)
    np.testing.assert_allclose(seen["state"]["normalizer.state/var"], [1.0, 0.0, 0.0], atol=1e-6)
    # (5 - 2) / 1 = 3; 50 / 1 is cut to 10; an element that never changed becomes 0
    x = jnp.asarray([5.0, 0.0, 5.0]), jnp.asarray([52.0, 0.0, 5.0])
    expected = jnp.asarray([3.0, 0.0, 0.0]), jnp.asarray([10.0, 0.0, 0.0])
    for given, standardised in zip(x, expected, strict=True):
        outputs = normalized.apply(seen, {"state": given})
        plain = normalized.apply(start, {"state": standardised})
        np.testing.assert_allclose(outputs[0]["q"], plain[0]["q"], atol=1e-4)
    assert normalized.learning(seen, jax.random.key(1)) is seen


def test_observing_without_normaliser_changes_nothing(mlp, variables):
    assert_equal(mlp.observe(variables, {"state": jnp.ones((2, 3))}, jnp.ones(2, bool)), variables)


@pytest.fixture(scope="module")
def noisy():
    trained = keras().layers.BatchNormalization(dtype="float32")
    trained.build((None, 16))
    trained.moving_mean.assign(np.full(16, 0.25))
    layers = [dense(16), {"type": "dropout", "rate": 0.5}, trained]
    return build(layers, VECTOR, {"q": Head((2,))})


@pytest.mark.slow
def test_training_mode(noisy):
    v = noisy.init(jax.random.key(0))
    assert set(v["state"]) == {"body.dropout0/seed_generator_state"}
    assert set(noisy.averages) == {
        "body.batchnormalization0/moving_mean",
        "body.batchnormalization0/moving_variance",
    }
    x = {"state": jnp.asarray(np.random.default_rng(0).normal(size=(8, 3)), jnp.float32)}
    first, again, other = (noisy.apply(noisy.learning(v, jax.random.key(i)), x)[0] for i in (0, 0, 1))
    assert_equal(first, again)
    assert not np.allclose(first["q"], other["q"])
    assert not np.allclose(first["q"], noisy.apply(v, x)[0]["q"])
    assert_equal(noisy.apply(v, x), noisy.apply(v, x))


def test_dropout_seeds_come_from_the_key(noisy):
    name = "body.dropout0/seed_generator_state"
    states = [noisy.init(jax.random.key(i))["state"][name] for i in (0, 0, 1)]
    assert_equal(states[0], states[1])
    assert not np.array_equal(states[0], states[2])


def test_lstm_is_the_textbook_cell():
    model = build([{"type": "lstm", "size": 2}], VECTOR, {"q": Head((2,))})
    v = model.init(jax.random.key(0))
    p = {k: np.asarray(x) for k, x in v["params"].items()}
    np.testing.assert_array_equal(p["body.lstm0/bias"], [0, 0, 1, 1, 0, 0, 0, 0])  # forget gate open
    rng = np.random.default_rng(0)
    x, h, c = (rng.normal(size=n).astype(np.float32) for n in (3, 2, 2))
    z = x @ p["body.lstm0/kernel"] + h @ p["body.lstm0/recurrent_kernel"] + p["body.lstm0/bias"]
    sigmoid = lambda a: 1 / (1 + np.exp(-a))  # noqa: E731
    i, f, g, o = z[:2], z[2:4], z[4:6], z[6:]
    c_next = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h_next = sigmoid(o) * np.tanh(c_next)
    carry = {"body.lstm0.h": jnp.asarray(h), "body.lstm0.c": jnp.asarray(c)}
    outputs, carry = model.apply(v, {"state": jnp.asarray(x)}, carry)
    np.testing.assert_allclose(carry["body.lstm0.h"], h_next, atol=1e-6)
    np.testing.assert_allclose(carry["body.lstm0.c"], c_next, atol=1e-6)
    np.testing.assert_allclose(outputs["q"], h_next @ p["head.q/kernel"], atol=1e-6)


@pytest.mark.slow
def test_unroll_is_a_loop_of_steps_with_resets(recurrent):
    v = recurrent.init(jax.random.key(0))
    assert recurrent.recurrent and recurrent.horizon == 5
    x = jax.random.normal(jax.random.key(1), (6, 4, 3))
    reset = jax.random.bernoulli(jax.random.key(2), 0.3, (6, 4))
    start = jax.tree.map(jnp.ones_like, recurrent.initial_carry(4))
    step = jax.jit(recurrent.apply)
    carry, expected = start, []
    for t in range(6):
        fresh = recurrent.initial_carry(4)
        carry = {k: np.where(np.asarray(reset[t])[:, None], fresh[k], carry[k]) for k in carry}
        outputs, carry = step(v, {"state": x[t]}, carry)
        expected.append(outputs["q"])
    outputs, last = jax.jit(recurrent.unroll)(v, {"state": x}, start, reset)
    np.testing.assert_allclose(outputs["q"], np.stack(expected), atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), last, carry)
    never, _ = recurrent.unroll(v, {"state": x}, start, jnp.zeros_like(reset))
    assert not np.allclose(never["q"], outputs["q"])  # resets matter


def test_carry_is_checked(recurrent):
    v = recurrent.init(jax.random.key(0))
    with pytest.raises(
        SpaceError, match=r"carry must hold body.lstm0.h, body.lstm0.c, body.gru0.h. .*initial_carry"
    ):
        recurrent.apply(v, {"state": jnp.ones((2, 3))}, ())


def test_keras_model_holds_the_variables(mlp, variables, tmp_path):
    model = keras_model(mlp, variables)
    x = jax.random.normal(jax.random.key(1), (5, 3))
    with numpy_promotion():
        eager = model({"state": x})
    compiled, _ = jax.jit(mlp.apply)(variables, {"state": x})
    np.testing.assert_allclose(compiled["q"], eager["q"], atol=1e-6)
    model.save(tmp_path / "model.keras")
    with numpy_promotion():
        loaded = keras().saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert_equal(held(loaded), flat(variables))


def test_registered_layers_load_in_safe_mode(tmp_path):
    model = build([dense()], VECTOR, {"mean": Head((2,)), "std": Head((2,), constant=-0.5)}, normalize=True)
    v = model.init(jax.random.key(0))
    v = model.observe(v, {"state": jnp.asarray([[1.0, 2.0, 3.0], [3.0, 4.0, 8.0]])}, jnp.ones(2, bool))
    keras_model(model, v).save(tmp_path / "model.keras")
    with numpy_promotion():
        loaded = keras().saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert_equal(held(loaded), flat(v))
    outputs, _ = model.apply(v, {"state": jnp.ones((2, 3))})
    np.testing.assert_array_equal(outputs["std"], np.full((2, 2), -0.5))


def test_gradient_reaches_every_parameter(mlp, variables):
    def loss(params):
        outputs, _ = mlp.apply({**variables, "params": params}, {"state": jnp.ones((2, 3))})
        return jnp.sum(outputs["q"] ** 2) + jnp.sum(outputs["value"] ** 2)

    gradient = jax.grad(loss)(variables["params"])
    assert all(np.any(np.asarray(g) != 0.0) for g in gradient.values())
