"""Building: 'auto', inputs of every kind, towers, whole Keras models, files, specifications and their
errors."""

import json
import sys
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.keras_copies import flat, held, keras_model

from operant.errors import SpecError
from operant.nn import Head, build
from operant.nn.backend import keras, numpy_promotion
from operant.nn.keras_optimizers import keras_optimizer
from operant.nn.model import leaves
from operant.spec.spaces import Leaf

VECTOR = {"state": Leaf("float", (3,))}
Q = {"q": Head((2,))}


def shapes(model):
    return {name: x.shape for name, x in jax.eval_shape(model.init, jax.random.key(0))["params"].items()}


def kernels(model):
    return {name.removesuffix("/kernel"): s for name, s in shapes(model).items() if name.endswith("/kernel")}


def test_auto_on_vectors():
    found = kernels(build("auto", VECTOR, Q))
    assert found == {"body.dense0": (3, 64), "body.dense1": (64, 64), "head.q": (64, 2)}
    found = kernels(build({"type": "auto", "size": 8, "depth": 1}, VECTOR, Q))
    assert found == {"body.dense0": (3, 8), "head.q": (8, 2)}


def test_a_list_of_widths_is_an_auto_network():
    for given in ([8, 5], (np.int64(8), 5), {"type": "auto", "size": [8, 5]}):
        model = build(given, VECTOR, Q)
        assert kernels(model) == {"body.dense0": (3, 8), "body.dense1": (8, 5), "head.q": (5, 2)}
        assert json.loads(json.dumps(model.spec)) == {"type": "auto", "size": [8, 5]}
    assert kernels(build({"type": "auto", "size": [8, 5], "rnn": True}, VECTOR, Q))["head.q"] == (5, 2)
    board = {"board": Leaf("bool", (5, 5, 2)), "speed": Leaf("float")}
    # the image's 144 features to the usual 128, which the speed joins
    found = kernels(build([8], board, Q))
    assert (found["body.dense0"], found["body.dense1"], found["head.q"]) == ((144, 128), (129, 8), (8, 2))


def test_a_network_may_end_in_a_vector_for_each_place_of_an_output():
    """Places of the first axis of outputs [2, 3] share a kernel; a head without places reads all."""
    layers = [{"type": "reshape", "shape": (2, 4)}]
    fed, heads = {"state": Leaf("float", (8,))}, {"q": Head((2, 3)), "value": Head(())}
    model = build(layers, fed, heads)
    assert kernels(model) == {"head.q": (4, 3), "head.value": (8, 1)}
    variables = model.init(jax.random.key(0))
    x = np.arange(8, dtype=np.float32)[None]
    found = model.apply(variables, {"state": x})[0]["q"]
    kernel = np.asarray(variables["params"]["head.q/kernel"])
    np.testing.assert_allclose(found[0], x.reshape(2, 4) @ kernel, rtol=1e-4, atol=1e-4)
    bare = build(layers, fed, {"q": Head((2, 4), linear=False)})
    assert kernels(bare) == {}
    np.testing.assert_array_equal(
        bare.apply(bare.init(jax.random.key(0)), {"state": x})[0]["q"][0], x.reshape(2, 4)
    )
    with pytest.raises(SpecError, match=r"one for each place of an action. Received: shape \(2, 4\)"):
        build(layers, fed, {"q": Head((3,)), "value": Head(())})


def test_small_convolutions():
    image = {"screen": Leaf("float", (36, 40, 4), None, 0, 255, "uint8")}
    model = build({"type": "auto", "small": True}, image, Q)
    # (36 - 8) / 4 + 1 = 8 and (40 - 8) / 4 + 1 = 9, then (8 - 4) / 2 + 1 = 3 and (9 - 4) // 2 + 1 = 3
    assert kernels(model) == {
        "body.conv2d0": (8, 8, 4, 8),
        "body.conv2d1": (4, 4, 8, 16),
        "body.dense0": (3 * 3 * 16, 128),
        "head.q": (128, 2),
    }
    assert model.spec == {"type": "auto", "small": True}
    tiny = {"screen": Leaf("float", (10, 10, 4))}
    assert kernels(build({"type": "auto", "small": True}, tiny, Q)) == kernels(build("auto", tiny, Q))
    with pytest.raises(SpecError, match="small must be True or False. Received: small=1"):
        build({"type": "auto", "small": 1}, VECTOR, Q)


def test_final_layers_follow_what_is_joined():
    given = {"type": "auto", "size": 8, "depth": 1, "final_size": 5, "final_depth": 2}
    model = build(given, VECTOR, Q)
    assert kernels(model) == {
        "body.dense0": (3, 8),
        "body.dense1": (8, 5),
        "body.dense2": (5, 5),
        "head.q": (5, 2),
    }
    assert model.spec == given
    image = {"board": Leaf("bool", (5, 5, 2))}
    assert kernels(build({"type": "auto", "final_size": 5}, image, Q))["head.q"] == (5, 2)


def test_the_size_of_attention_is_that_of_what_it_compares():
    layers = [
        {"type": "reshape", "shape": (3, 1)},
        {"type": "self_attention", "size": 4, "attention_size": 2},
        "flatten",
    ]
    found = kernels(build(layers, VECTOR, Q))
    wanted = {"body.attention0": (1, 1, 2), "body.attention0/kernel_1": 0}
    assert found["body.attention0"] == wanted["body.attention0"] and found["head.q"] == (12, 2)


def test_counts_may_be_written_as_floats():
    for given, same in [
        ([8.0, 5.0], [8, 5]),
        ({"type": "auto", "size": [8.0, 5.0]}, [8, 5]),
        (
            {"type": "auto", "size": 8.0, "depth": 1.0, "rnn": 4.0},
            {"type": "auto", "size": 8, "depth": 1, "rnn": 4},
        ),
        (
            [{"type": "dense", "size": 8.0}, {"type": "gru", "size": 5.0, "horizon": 4.0}],
            [{"type": "dense", "size": 8}, {"type": "gru", "size": 5, "horizon": 4}],
        ),
        (
            [
                {"type": "retrieve", "tensors": ["state"], "axis": 0.0},
                {"type": "reshape", "shape": [3.0, 1.0]},
                {"type": "conv1d", "size": 4.0, "window": 2.0, "stride": [1.0]},
                {"type": "pool1d", "reduction": "max", "window": 2.0},
                {"type": "group_normalization", "groups": 2.0},
                {"type": "attention", "size": 4.0, "heads": 2.0},
                "flatten",
            ],
            [
                {"type": "retrieve", "tensors": ["state"], "axis": 0},
                {"type": "reshape", "shape": [3, 1]},
                {"type": "conv1d", "size": 4, "window": 2, "stride": [1]},
                {"type": "pool1d", "reduction": "max", "window": 2},
                {"type": "group_normalization", "groups": 2},
                {"type": "attention", "size": 4, "heads": 2},
                "flatten",
            ],
        ),
    ]:
        model, like = build(given, VECTOR, Q), build(same, VECTOR, Q)
        assert kernels(model) == kernels(like)
        assert json.dumps(model.spec) == json.dumps(like.spec)  # 8 is not 8.0


def test_auto_on_atari_frames():
    frames = {"state": Leaf("float", (84, 84, 4), dtype="uint8", min_value=0, max_value=255, frames=4)}
    model = build("auto", frames, Q)
    # (84 - 8) / 4 + 1 = 20, (20 - 4) / 2 + 1 = 9, 9 - 3 + 1 = 7: 7 * 7 * 64 = 3136
    assert kernels(model) == {
        "body.conv2d0": (8, 8, 4, 32),
        "body.conv2d1": (4, 4, 32, 64),
        "body.conv2d2": (3, 3, 64, 64),
        "body.dense0": (3136, 512),
        "head.q": (512, 2),
    }


def test_auto_on_several_inputs():
    inputs = {
        "speed": Leaf("float"),
        "gear": Leaf("int", (2,), num_values=3),
        "word": Leaf("int", num_values=100),
        "lamp": Leaf("bool", (4,)),
        "count": Leaf("int"),
        "board": Leaf("bool", (5, 5, 2)),
    }
    # image: 3 * 3 * 16 = 144 features to 128; vectors: 1 + 2 * 3 + 64 (learned) + 4 + 1 = 76
    model = build("auto", inputs, Q)
    assert kernels(model) == {
        "body.conv2d0": (3, 3, 2, 16),
        "body.dense0": (144, 128),
        "body.dense1": (128 + 76, 512),
        "head.q": (512, 2),
    }
    assert shapes(model)["body.embedding0/embeddings"] == (100, 64)
    observation = {n: jnp.ones((2, *leaf.shape), leaf.dtype) for n, leaf in inputs.items()}
    outputs, _ = jax.eval_shape(lambda key: model.apply(model.init(key), observation), jax.random.key(0))
    assert outputs["q"].shape == (2, 2)


def test_nested_names_and_order_of_concatenation():
    inputs = {"a/x": Leaf("float", (2,)), "b": Leaf("int", num_values=3)}
    model = build([{"type": "dense", "size": 5, "activation": "none"}], inputs, {"out/y": Head((1,))})
    v = model.init(jax.random.key(0))
    kernel = np.asarray(v["params"]["body.dense0/kernel"])
    outputs, _ = model.apply(v, {"a/x": jnp.asarray([0.5, 2.0]), "b": jnp.asarray(2)})
    # x0 = 0.5, x1 = 2, then the choice 2 as (0, 0, 1): rows 0, 1 and 4 of the kernel
    features = 0.5 * kernel[0] + 2.0 * kernel[1] + kernel[4]
    expected = features @ np.asarray(v["params"]["head.out.y/kernel"])
    np.testing.assert_allclose(outputs["out/y"], expected, atol=1e-6)


@pytest.mark.parametrize(("top", "scale"), [(255, 1 / 255), (None, 1 / 255), (10, 0.1)])
def test_frames_are_scaled(top, scale):
    low = None if top is None else 0
    leaf = Leaf("float", (2, 2, 1), dtype="uint8", min_value=low, max_value=top)
    floats = Leaf("float", (2, 2, 1))
    spec = ["flatten", {"type": "dense", "size": 3, "activation": "none"}]
    scaled, plain = (build(spec, {"state": x}, Q) for x in (leaf, floats))
    v = plain.init(jax.random.key(0))
    frame = np.asarray([0, 5, 7, 10], np.uint8).reshape(2, 2, 1)
    outputs, _ = scaled.apply(v, {"state": frame})
    expected, _ = plain.apply(v, {"state": frame.astype(np.float32) * np.float32(scale)})
    np.testing.assert_allclose(outputs["q"], expected["q"], atol=1e-6)


def test_a_keras_model_that_scales_frames_within_another_is_not_scaled_again():
    k = keras()
    inner_entry = k.Input((2, 2, 1))
    inner = k.Model(inner_entry, k.layers.Flatten()(k.layers.Rescaling(1 / 255)(inner_entry)))
    entry = k.Input((2, 2, 1))
    model = k.Model(entry, k.layers.Dense(2, kernel_initializer="ones")(inner(entry)))
    built = build(model, {"state": Leaf("float", (2, 2, 1), dtype="uint8", min_value=0, max_value=255)}, Q)
    v = built.init(jax.random.key(0))
    outputs, _ = built.apply(v, {"state": np.full((2, 2, 1), 255, np.uint8)})
    np.testing.assert_allclose(outputs["q"], 4.0, rtol=1e-5)


def test_a_keras_model_that_reads_bytes_gets_them_as_they_are():
    """Scaled to 0 ... 1, Keras would cut them to bytes again: a black picture."""
    k = keras()
    entry = k.Input((2, 2, 1), dtype="uint8")
    x = k.layers.Flatten()(k.ops.cast(entry, "float32") / 255.0)
    model = k.Model(entry, k.layers.Dense(2, kernel_initializer="ones")(x))
    built = build(model, {"state": Leaf("float", (2, 2, 1), dtype="uint8", min_value=0, max_value=255)}, Q)
    outputs, _ = built.apply(built.init(jax.random.key(0)), {"state": np.full((2, 2, 1), 51, np.uint8)})
    np.testing.assert_allclose(outputs["q"], 0.8, rtol=1e-5)
    whole = k.Input((3,), dtype="int32")
    cut = k.Model(whole, k.layers.Dense(2)(k.ops.cast(whole, "float32")))
    with pytest.raises(
        SpecError, match=r"must take the inputs, in this order: state \(3,\). It takes: .* int32"
    ):
        build(cut, VECTOR, Q)


def test_outputs_by_name_that_keras_sorts_are_refused():
    k = keras()
    entry = k.Input((3,))
    model = k.Model(entry, {"policy": k.layers.Dense(1)(entry), "critic": k.layers.Dense(1)(entry)})
    with pytest.raises(SpecError, match="Give them as a list, in this order: mean, value"):
        build(model, VECTOR, {"mean": Head((1,)), "value": Head(())})


def test_an_embedding_of_ones_own_gets_numbers():
    class Own(keras().layers.Embedding):
        pass

    keras().saving.register_keras_serializable("tests")(Own)
    built = build([Own(5, 4), "flatten"], {"state": Leaf("int", (), num_values=5)}, Q)
    assert built.init(jax.random.key(0))["params"]["head.q/kernel"].shape == (4, 2)


@pytest.mark.parametrize("within", [False, True])
def test_an_embedding_first_in_a_sequential_gets_numbers(within):
    """Without an `Input` the model does not say what it reads."""
    k = keras()
    model = k.Sequential([k.layers.Embedding(5, 4), k.layers.Flatten(), k.layers.Dense(2)])
    built = build([model] if within else model, {"state": Leaf("int", (), num_values=5)}, Q)
    shapes = [x.shape for x in built.init(jax.random.key(0))["params"].values()]
    assert (5, 4) in shapes and (4, 2) in shapes and (20, 2) not in shapes


def test_a_list_of_layers_that_nothing_reads_is_refused():
    dense = {"type": "dense", "size": 4}
    with pytest.raises(SpecError, match=r"network\[0\]: nothing reads its result"):
        build([[dense], [dense]], VECTOR, Q)
    read = [[dense, {"type": "register", "tensor": "x"}], [{"type": "retrieve", "tensors": "x"}, dense]]
    build(read, VECTOR, Q)


@pytest.mark.parametrize("form", ["object", "file", "layers"])
def test_what_is_drawn_anew_is_what_is_trained(form, tmp_path):
    """As of second critics: what was adapted or is frozen stays as it was given."""
    k = keras()
    adapted, frozen, free = k.layers.Normalization(), k.layers.Dense(4, trainable=False), k.layers.Dense(2)
    adapted.adapt(np.asarray([[4.0, 0.0, 9.0], [6.0, 8.0, 9.5]], np.float32))
    entry = k.Input((3,))
    model = k.Model(entry, free(frozen(adapted(entry))))
    given = [adapted, frozen, free] if form == "layers" else model
    if form == "file":
        given = str(tmp_path / "critic.keras")
        model.save(given)
    first, second = (
        build(given, VECTOR, Q, reinitialize=again).init(jax.random.key(int(again)))
        for again in (False, True)
    )
    jax.tree.map(np.testing.assert_array_equal, first["state"], second["state"])
    kernels = [name for name in first["params"] if name.endswith("kernel")]
    assert kernels and not any(np.array_equal(first["params"][n], second["params"][n]) for n in kernels)


@pytest.mark.parametrize(
    "kind", ["dense", "softmax layer", "softmax activation", "within another", "ops", "activations"]
)
def test_probabilities_of_a_keras_model_are_the_policys(kind):
    k = keras()
    entry = k.Input((3,))
    softmax = k.layers.Dense(2, activation="softmax")
    if kind == "dense":
        out = softmax(entry)
    elif kind == "within another":
        out = k.Sequential([entry, softmax])(entry)
    else:
        last = {
            "softmax layer": k.layers.Softmax(), "softmax activation": k.layers.Activation("softmax"),
            "ops": k.ops.softmax, "activations": k.activations.softmax,
        }[kind]  # fmt: skip
        softmax = k.layers.Dense(2)
        out = last(softmax(entry))
    softmax.set_weights([0.01 * np.array([[1.0, -1.0]] * 3, np.float32), np.zeros(2, np.float32)])
    model = k.Model(entry, out)
    plain, built = (build(model, VECTOR, {"q": Head((2,), logits=logits)}) for logits in (False, True))
    for scale in (30.0, 3000.0):  # logits of 0.9, and of 90: the second probability is zero in float32
        x = scale * jnp.ones((1, 3))
        logits = built.apply(built.init(jax.random.key(0)), {"state": x})[0]["q"]
        assert np.all(np.isfinite(logits))
        with numpy_promotion():
            probabilities = np.asarray(model(np.asarray(x)))
        np.testing.assert_allclose(jax.nn.softmax(logits), probabilities, atol=1e-6)
        assert not np.allclose(jax.nn.softmax(probabilities), probabilities, atol=0.05)  # were they logits
        # What is no choice, like a mean of shares, stays as it is.
        shares = plain.apply(plain.init(jax.random.key(0)), {"state": x})[0]["q"]
        np.testing.assert_array_equal(shares, probabilities)


def test_towers():
    heads = {"pi": Head((2,)), "v": Head(()), "std": Head((2,), constant=0.5)}
    shared = build([{"type": "dense", "size": 4}], VECTOR, heads)
    apart = build([{"type": "dense", "size": 4}], VECTOR, heads, towers=(("pi", "std"), ("v",)))
    assert set(kernels(shared)) == {"body.dense0", "head.pi", "head.v"}
    assert set(kernels(apart)) == {"tower0.dense0", "tower1.dense0", "head.pi", "head.v"}
    params = apart.init(jax.random.key(0))["params"]
    assert not np.allclose(params["tower0.dense0/kernel"], params["tower1.dense0/kernel"])
    np.testing.assert_array_equal(params["head.std/constant"], [0.5, 0.5])

    def value(params):
        return jnp.sum(apart.apply({"params": params, "state": {}}, {"state": jnp.ones(3)})[0]["v"])

    gradient = jax.grad(value)(params)
    assert np.any(np.asarray(gradient["tower1.dense0/kernel"]))
    assert not np.any(np.asarray(gradient["tower0.dense0/kernel"]))


@pytest.mark.parametrize(
    ("towers", "message"),
    [
        ((("p",),), "'p', which is no head. Did you mean|'p', which is no head. Known"),
        ((("q",), ("q",)), "'q' twice"),
    ],
)
def test_wrong_towers(towers, message):
    with pytest.raises(SpecError, match=message):
        build("auto", VECTOR, Q, towers=towers)


def actor_critic():
    k = keras()
    x = k.Input((3,))
    features = k.layers.Dense(4, activation="tanh")(x)
    return k.Model(x, [k.layers.Dense(2)(features), k.layers.Dense(1)(features)])


AC = {"logits": Head((2,)), "value": Head(())}


@pytest.fixture(scope="module")
def whole():
    with numpy_promotion():
        return actor_critic()


def test_keras_model_keeps_its_weights(whole):
    model = build(whole, VECTOR, AC)
    v = model.init(jax.random.key(0))
    assert sorted(v["params"]) == sorted(
        f"functional/dense{s}/{w}" for s in ("", "_1", "_2") for w in ("bias", "kernel")
    )
    for name, weight in zip(
        ("functional/dense/kernel", "functional/dense/bias"), whole.layers[1].weights, strict=True
    ):
        np.testing.assert_array_equal(v["params"][name], weight)
    x = jax.random.normal(jax.random.key(1), (5, 3))
    with numpy_promotion():
        logits, value = whole(x)
    outputs, _ = jax.jit(model.apply)(v, {"state": x})
    np.testing.assert_allclose(outputs["logits"], logits, atol=1e-6)
    np.testing.assert_allclose(outputs["value"], value[:, 0], atol=1e-6)


def test_keras_model_reinitialised(whole):
    model = build(whole, VECTOR, AC, reinitialize=True)
    first, second = (model.init(jax.random.key(i))["params"]["functional/dense/kernel"] for i in (0, 1))
    assert not np.allclose(first, second)
    assert not np.allclose(first, whole.layers[1].kernel)
    np.testing.assert_array_equal(first, model.init(jax.random.key(0))["params"]["functional/dense/kernel"])


def normalizing(**arguments):
    """Return a Keras model whose input is standardised by numbers that its layer learned from data, and
    that layer."""
    k = keras()
    first, x = k.layers.Normalization(), k.Input((3,))
    first.adapt(np.asarray([[4.0, 0.0, 9.0], [6.0, 8.0, 9.5]], np.float32))
    with numpy_promotion():
        return k.Model(x, k.layers.Dense(2, name="d", **arguments)(first(x))), first


@pytest.mark.parametrize("form", ["layer", "model", "critic", "data"])
def test_adapted_normalisation_is_kept(form):
    whole, layer = normalizing()
    network = [layer] if form == "layer" else whole
    model = build(network, VECTOR, Q, reinitialize=form == "critic")
    v = model.init(jax.random.key(0))
    if form == "data":  # as a checkpoint holds it
        model = build(json.loads(json.dumps(model.spec)), VECTOR, Q)
    x = np.asarray([[5.0, 5.0, 5.0], [-1.0, 20.0, 9.0]], np.float32)
    kernel, bias = (np.asarray(v["params"][name]) for name in sorted(v["params"], reverse=True))
    expected = (x - [5.0, 4.0, 9.25]) / [1.0, 4.0, 0.25] @ kernel + bias
    np.testing.assert_allclose(jax.jit(model.apply)(v, {"state": x})[0]["q"], expected, atol=1e-4)
    assert isinstance(layer.mean, jax.Array)  # no tracer stays behind
    with numpy_promotion():
        copy = keras_model(model, v)
        np.testing.assert_allclose(copy({"state": x})["q"], expected, atol=1e-4)
    assert jax.tree.all(jax.tree.map(np.array_equal, held(copy), flat(v)))


def test_numbers_of_a_normalisation_are_written_back():
    whole, layer = normalizing()
    model = build(whole, VECTOR, Q)
    v = model.init(jax.random.key(0))
    model.assign({**v, "state": jax.tree.map(lambda x: x + 1, v["state"])})
    np.testing.assert_allclose(layer.mean, [[6.0, 5.0, 10.25]])


def test_what_is_not_trained_is_not_drawn_anew():
    whole, _ = normalizing(trainable=False)
    model = build(whole, VECTOR, Q, reinitialize=True)
    for name, x in zip(("kernel", "bias"), whole.get_layer("d").weights, strict=True):
        np.testing.assert_array_equal(model.init(jax.random.key(0))["state"][f"functional/d/{name}"], x)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"kernel_regularizer": "l2"}, "a regularizer"),
        ({"bias_constraint": "non_neg"}, "a constraint"),
        ({"activity_regularizer": "l1"}, "an activity regularizer"),
    ],
)
def test_what_only_training_in_keras_would_apply_is_refused(arguments, what):
    layer = keras().layers.Dense(2, name="d", **arguments)
    for network in ([layer], keras().Sequential([keras().Input((3,)), layer])):
        with pytest.raises(SpecError, match=rf"the layer '.*' with {what}\. Leave it out.*weight_decay"):
            build(network, VECTOR, Q)
    if what != "an activity regularizer":
        layer.trainable = False
        build(keras().Sequential([keras().Input((3,)), layer]), VECTOR, Q)


@pytest.mark.parametrize("shape", [(10, 10, 3), (40, 40)])
def test_grids_of_two_values_are_images(shape):
    model = build("auto", {"state": Leaf("int", shape, num_values=2)}, Q)
    assert any("conv2d" in name for name in model.init(jax.random.key(0))["params"])


def test_weights_of_another_type_are_refused():
    layer = keras().layers.Dense(2, name="d", dtype="bfloat16")
    with pytest.raises(SpecError, match="learnt as float32.*'d' with bfloat16.*dtype='mixed_bfloat16'"):
        build(keras().Sequential([keras().Input((3,)), layer]), VECTOR, Q)


@pytest.fixture
def low_precision():
    """Keras as a user's keras.json may have set it."""
    k = keras()
    before = k.config.dtype_policy()
    k.config.set_dtype_policy("mixed_bfloat16")
    yield
    k.config.set_dtype_policy(before)


def test_networks_are_in_float32_whatever_keras_is_set_to(low_precision):
    frame, grid, rows = Leaf("float", (4, 4, 2)), Leaf("float", (36, 36)), Leaf("float", (4, 2))
    attention = [{"type": "reshape", "shape": (4, 8)}, {"type": "attention", "size": 8}, "flatten"]
    joined = {"type": "retrieve", "tensors": ("state", "rows"), "axis": 1}
    heads = {"value": Head(()), "q": Head((2, 3)), "pair": Head((2,))}
    for network, inputs in [
        ("auto", {"state": grid, "rows": rows}),
        (attention, {"state": frame}),
        ([joined, "flatten"], {"state": Leaf("float", (4,)), "rows": rows}),
    ]:
        model = build(network, inputs, heads)
        layers = [x for x in leaves(model.network) if not isinstance(x, keras().layers.InputLayer)]
        assert [x.name for x in layers if x.compute_dtype != "float32"] == []


def test_outputs_of_a_keras_model_become_float32(low_precision):
    k = keras()
    x = k.Input((3,))
    model = build(k.Model(x, [k.layers.Dense(2)(x), k.layers.Dense(1)(x)]), VECTOR, AC)
    outputs, _ = model.apply(model.init(jax.random.key(0)), {"state": jnp.ones((2, 3))})
    assert {y.dtype for y in outputs.values()} == {jnp.dtype("float32")}


def test_keras_model_survives_as_data(whole):
    model = build(whole, VECTOR, AC)
    again = build(json.loads(json.dumps(model.spec)), VECTOR, AC)
    v = model.init(jax.random.key(0))
    assert jax.tree.map(jnp.shape, again.init(jax.random.key(0))) == jax.tree.map(jnp.shape, v)
    x = {"state": jnp.ones((2, 3))}
    np.testing.assert_allclose(again.apply(v, x)[0]["logits"], model.apply(v, x)[0]["logits"], atol=1e-6)


def test_function_that_returns_a_model():
    model = build(actor_critic, VECTOR, AC)
    first, second = (model.init(jax.random.key(i))["params"]["functional/dense/kernel"] for i in (0, 1))
    assert not np.allclose(first, second)


def test_keras_file(whole, tmp_path):

    def own_loss(y, x):
        return y - x

    whole.compile(loss=own_loss)  # which is not read
    whole.save(tmp_path / "net.keras")
    v = build(tmp_path / "net.keras", VECTOR, AC).init(jax.random.key(0))
    np.testing.assert_array_equal(v["params"]["functional/dense/kernel"], whole.layers[1].kernel)


def test_subclassed_model():
    k = keras()

    class Net(k.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = k.layers.Dense(4), k.layers.Dense(2)

        def call(self, x):
            return self.out(self.hidden(x["a"]) + self.hidden(x["b"]))

    inputs = {"a": Leaf("float", (3,)), "b": Leaf("float", (3,))}
    model = build(Net, inputs, Q)
    v = model.init(jax.random.key(0))
    assert sorted(v["params"]) == [
        "net/dense/bias",
        "net/dense/kernel",
        "net/dense_1/bias",
        "net/dense_1/kernel",
    ]
    outputs, _ = model.apply(v, {"a": jnp.ones((2, 3)), "b": jnp.zeros((2, 3))})
    assert outputs["q"].shape == (2, 2)
    with pytest.raises(SpecError, match=r"Net cannot be written as plain data|Keras does not know 'Net'"):
        build(model.spec, inputs, Q)


@pytest.mark.parametrize("model", ["Sequential", "Model"])
def test_a_keras_model_as_a_layer_is_read_again(model):
    k = keras()
    x = k.Input((3,))
    made = k.Sequential([k.layers.Dense(4)]) if model == "Sequential" else k.Model(x, k.layers.Dense(4)(x))
    first = build([made, {"type": "dense", "size": 2}], VECTOR, Q)
    again = build(json.loads(json.dumps(first.spec)), VECTOR, Q)
    assert again.spec == first.spec
    assert sorted(again.init(jax.random.key(0))["params"]) == sorted(first.init(jax.random.key(0))["params"])


def test_what_could_not_be_read_again_is_not_written():
    k = keras()

    class Unknown(k.layers.Layer):
        def call(self, x):
            return x

    x = k.Input((3,))
    with pytest.raises(SpecError, match="Keras does not know 'Unknown'"):
        build(k.Model(x, k.layers.Dense(2)(Unknown()(x))), VECTOR, Q).spec.to_spec()


def test_a_name_of_the_users_is_no_other_layers():
    dense = {"type": "dense", "size": 2}
    assert len(kernels(build([{**dense, "name": "dense0"}, dense], VECTOR, Q))) == 3
    with pytest.raises(SpecError, match="The name 'dense0' is given to two layers"):
        build([dense, {**dense, "name": "dense0"}], VECTOR, Q)


def test_keras_models_that_do_not_fit(whole):
    with pytest.raises(
        SpecError,
        match=(
            r"one output per head, in this order: logits \(2,\). Received: 2 output\(s\) of shape \(2,\), "
            r"\(1,\)"
        ),
    ):
        build(whole, VECTOR, {"logits": Head((2,))})
    with pytest.raises(
        SpecError, match=r"must take the inputs, in this order: state \(4,\). It takes: \w+ \(3,\)"
    ):
        build(whole, {"state": Leaf("float", (4,))}, AC)


def test_keras_allocates_nothing_itself(whole):
    """Neither a network, whose arrays are those of `init`, nor later what was made for one that failed.

    The large one's weights are 2^40 numbers of 4 bytes, 6 times (3 inputs, a bias, 2 outputs), and 2 more.
    """
    pending = keras().src.backend.common.global_state.get_global_attribute
    made = build([{"type": "dense", "size": 8}], VECTOR, Q).network
    assert [v._value for v in made.variables] == [None] * 4
    for rest, message in (
        (
            ["flatten"],
            r"takes 26,388,279,066,632 bytes, and [\d,]+ are free. .* 'body.dense0/kernel' of shape",
        ),
        ([{"type": "conv2d", "size": 2}], "needs an input of shape"),
    ):
        with pytest.raises(SpecError, match=message):
            build([{"type": "dense", "size": 2**40}, *rest], VECTOR, Q)
    assert not pending("uninitialized_variables")
    model = build(whole, VECTOR, AC)
    assert all(v._value is not None for v in whole.variables)
    again = keras_model(model, model.init(jax.random.key(0)))
    assert all(v._value is not None for v in again.variables)


def test_lambda_layers_do_not_load():
    k = keras()
    with numpy_promotion():
        x = k.Input((3,))
        spec = build(k.Model(x, k.layers.Lambda(lambda y: 2.0 * y)(k.layers.Dense(2)(x))), VECTOR, Q).spec
    with pytest.raises(SpecError, match="Keras cannot read the configuration"):
        build(spec, VECTOR, Q)


def of(module, kind="Evil", **config):
    """Return the configuration of a Keras object, or of a function named by `kind`, if there is none."""
    if not config:
        return {"module": module, "class_name": "function", "config": kind, "registered_name": kind}
    return {"module": module, "class_name": kind, "config": config}


def in_dense(argument):
    return lambda planted: of("keras.layers", "Dense", units=2, **{argument: planted})


PLACES = {
    "layer": lambda planted: planted,
    "another of its kind": lambda planted: {
        "type": "keras",
        "layer": "Dense",
        "units": 2,
        "activation": planted,
    },
    **{
        argument: in_dense(argument)
        for argument in (
            "activation",
            "kernel_initializer",
            "bias_regularizer",
            "kernel_constraint",
            "activity_regularizer",
            "dtype",
        )
    },
    "wrapped layer": lambda planted: of("keras.layers", "TimeDistributed", layer=planted),
    "quoted by its own name": lambda planted: {
        **planted,
        "registered_name": "operant>Orthogonal",
        "class_name": "function",
    },
    "model": lambda planted: of(
        "keras", "Sequential", layers=[of("keras.layers", "InputLayer", shape=[3]), planted]
    ),
    "model in a model": lambda planted: of("keras", "Sequential", layers=[PLACES["model"](planted)]),
    "learning rate": lambda planted: of("keras.optimizers", "Adam", learning_rate=planted),
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Packages of the names that Keras imports, where Python finds them."""
    names = ("keras_hub", "keras_cv", "keras_nlp")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    assert not sys.modules.keys() & set(names)


@pytest.mark.parametrize("module", ["keras_hub", "keras_cv.layers", "keras_nlp", "elsewhere"])
@pytest.mark.parametrize("place", PLACES)
def test_a_configuration_imports_nothing(place, module, hub):
    """Wherever it stands, and in every form of a network, and of an optimizer."""
    for planted in (of(module), of(module, units=2)):
        data = PLACES[place](planted)
        with zipfile.ZipFile(hub / "net.keras", "w") as archive:
            archive.writestr("config.json", json.dumps(data))
        layer = data if "type" in data else {"type": "keras", "layer": data}
        (hub / "net.json").write_text(json.dumps([layer]))
        forms = ([layer], {"type": "keras", "model": data}, hub / "net.json", hub / "net.keras")
        for form in forms:
            with pytest.raises(SpecError, match="Keras does not know '(Evil|function)'"):
                build(form, VECTOR, Q)
        with pytest.raises(SpecError, match="Keras does not know '(Evil|function)'"):
            keras_optimizer({"class_name": "Adam", "module": "keras.optimizers", "config": data})


SPECS = [
    "auto",
    {"type": "auto", "size": 8, "activation": "relu", "rnn": 4},
    [{"type": "dense", "size": 4, "bias": False}, "layer_normalization", {"type": "gru", "size": 3}],
    [
        [
            {"type": "retrieve", "tensors": "state"},
            {"type": "dense", "size": 4},
            {"type": "register", "tensor": "a"},
        ],
        [
            {"type": "retrieve", "tensors": ["a", "state"], "aggregation": "concat"},
            {"type": "block", "layers": ["flatten"]},
        ],
    ],
    [{"type": "keras", "layer": "Dense", "units": 5, "activation": "relu"}],
    {"type": "layered", "layers": [{"type": "dense", "size": 4}]},
]


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_specification_round_trip(spec):
    model = build(spec, VECTOR, Q)
    data = json.loads(json.dumps(model.spec))
    again = build(data, VECTOR, Q)
    assert again.spec == data
    assert shapes(again) == shapes(model)


def test_json_files(tmp_path):
    for content in (SPECS[2], SPECS[1]):
        path = tmp_path / "net.json"
        path.write_text(json.dumps(content))
        assert shapes(build(str(path), VECTOR, Q)) == shapes(build(content, VECTOR, Q))
    path.write_text("{")
    with pytest.raises(SpecError, match=r"net.json' cannot be read"):
        build(path, VECTOR, Q)


def foreign(package):
    """Return what a network of another library looks like: an object, its class, and a function that
    returns it."""
    base = type("Module", (), {"__module__": package, "__call__": lambda self, inputs: inputs})
    own = type("Net", (base,), {"__module__": "my_program"})
    return own(), own, lambda: own()


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("auot", "Unknown network 'auot'. Did you mean 'auto'?"),
        ("model.cfg", "The network file 'model.cfg' cannot be read"),
        (3, "The network 3 is not understood. Give 'auto'"),
        ([], "at least one entry"),
        ([[{"type": "dense", "size": 4}], []], r"network\[1\]: a list of layers needs at least one entry"),
        ({"type": "auto", "sise": 3}, "takes no argument 'sise'. Did you mean 'size'"),
        ({"type": "auto", "size": 0}, "size must be a whole number of at least 1. Received: size=0"),
        *(
            ({"type": "auto", "size": [8, 5], "depth": n}, r"depth must be left out beside size=\(8, 5\)")
            for n in (2, 3)
        ),
        ({"type": "auto", "size": []}, r"^size must be a width, or a list of at least one. Received: size="),
        ({"type": "auto", "depth": 1.5}, "depth must be a whole number of at least 0, or None"),
        ([64.5], "size must be a whole number of at least 1. Received: size=64.5"),
        *(
            (
                {key: [64] for key in names},
                rf"needs a 'type'. Received the keys: {', '.join(names)}. Give a list of widths, .* "
                r"separate=True",
            )
            for names in (("pi", "vf"), ("pi", "qf"))
        ),
        ([64, 0], "size must be a whole number of at least 1. Received: size=0"),
        (
            [64, "flatten"],
            r"network\[0\]: A layer must be .* Received: 64\. .* write \{'type': 'dense', 'size': 64\}\.",
        ),
        ([64, True], r"network\[0\]: A layer must be a name"),
        (lambda: 3, "must be a Keras model, or return one. Received: 3"),
        (
            lambda inputs: 3,
            "a function or class that returns a model, '<lambda>' requires the argument 'inputs'",
        ),
        *(
            (
                other,
                f"The network '.*' is made with {library}, and cannot be used. Give 'auto', a list of widths",
            )
            for package, library in [
                ("flax.linen.module", "Flax"),
                ("equinox._module", "Equinox"),
                ("torch.nn", "PyTorch"),
            ]
            for other in foreign(package)
        ),
        ([["flatten"], "flatten"], r"network\[1\]: a network is a list of layers or a list of lists"),
    ],
)
def test_networks_that_are_none(network, message):
    with pytest.raises(SpecError, match=message):
        build(network, VECTOR, Q)


def test_inputs_that_are_none():
    with pytest.raises(SpecError, match=r"at least one input. Received: none"):
        build("auto", {}, Q)
    with pytest.raises(SpecError, match="normalize names 'state', which is no float vector"):
        build("auto", {"state": Leaf("int", num_values=3)}, Q, normalize=("state",))
