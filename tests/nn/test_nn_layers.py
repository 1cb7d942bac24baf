"""The layers of a specification: what they compute, where they stand, and the errors that name the place."""

import jax
import numpy as np
import pytest

from operant.errors import SpecError
from operant.nn import Head, build
from operant.nn.backend import keras, numpy_promotion
from operant.nn.layer_lists import LAYERS
from operant.spec.spaces import Leaf


def features(layers, inputs, observation):
    """Return what a list of layers without weights makes of an observation, a batch of one."""
    network = build(layers, inputs, {"out": Head((1,))}).network
    with numpy_promotion():
        body = keras().Model(network.input, network.get_layer("head.out").input)
        batch = {name: np.reshape(x, (1, *inputs[name].shape)) for name, x in observation.items()}
        return np.asarray(body(batch))[0]


def one(shape, **fields):
    return {"state": Leaf(fields.pop("type", "float"), shape, **fields)}


X = np.arange(12, dtype=np.float32).reshape(1, 4, 3) - 5.0


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (["flatten"], X[0].ravel()),
        (
            [{"type": "reshape", "shape": [2, 6]}, {"type": "pooling", "reduction": "sum"}],
            X.reshape(2, 6).sum(0),
        ),
        ([{"type": "pooling", "reduction": "max"}], X[0].max(0)),
        ([{"type": "pooling", "reduction": "mean"}], X[0].mean(0)),
        ([{"type": "pooling", "reduction": "product"}], X[0].prod(0)),
        ([{"type": "pooling", "reduction": "concat"}], X[0].ravel()),
        ([{"type": "pool1d", "reduction": "max"}, "flatten"], X[0, 1::2].ravel()),
        ([{"type": "activation", "nonlinearity": "relu"}, "flatten"], np.maximum(X, 0).ravel()),
        ([{"type": "clipping", "lower": -1.0, "upper": 2.0}, "flatten"], np.clip(X, -1, 2).ravel()),
        ([{"type": "clipping", "upper": 2.0}, "flatten"], np.minimum(X, 2).ravel()),
        (
            [{"type": "linear_normalization", "min_value": -4.0, "max_value": 12.0}, "flatten"],
            X.ravel() / 4 - 1,
        ),
    ],
)
def test_layers_without_weights(layers, expected):
    found = features(layers, one((4, 3)), {"state": X})
    np.testing.assert_allclose(found, expected, atol=1e-5)


A, B = np.asarray([1.0, 2.0, 3.0], np.float32), np.asarray([4.0, 0.5, 6.0], np.float32)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("concat", np.concatenate([A, B])),
        ("sum", A + B),
        ("product", A * B),
        ("mean", (A + B) / 2),
        ("max", np.maximum(A, B)),
        ("stack", np.concatenate([A, B])),
    ],
)
def test_retrieve_joins(aggregation, expected):
    inputs = {"a": Leaf("float", (3,)), "b": Leaf("float", (3,))}
    layers = [{"type": "retrieve", "tensors": ["a", "b"], "aggregation": aggregation}, "flatten"]
    found = features(layers, inputs, {"a": A, "b": B})
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_retrieve_brings_ranks_together():
    inputs = {"a": Leaf("float", (4, 3)), "b": Leaf("float", (4,))}
    rows = X[0]
    b = np.arange(4.0, dtype=np.float32)
    layers = [{"type": "retrieve", "tensors": ["a", "b"], "aggregation": "product"}, "flatten"]
    found = features(layers, inputs, {"a": rows, "b": b})
    np.testing.assert_allclose(found, (rows * b[:, None]).ravel(), atol=1e-6)
    layers[0] |= {"aggregation": "concat", "axis": 1}
    found = features(layers, inputs, {"a": rows, "b": b})
    np.testing.assert_allclose(found, np.concatenate([rows, b[:, None]], axis=1).ravel(), atol=1e-6)


def test_the_documented_example_of_branches():
    inputs = {"observation": Leaf("float", (16, 16, 3)), "attributes": Leaf("int", (4, 2), num_values=5)}
    network = [
        [
            {"type": "retrieve", "tensors": "observation"},
            {"type": "conv2d", "size": 16},
            {"type": "flatten"},
            {"type": "register", "tensor": "obs-embedding"},
        ],
        [
            {"type": "retrieve", "tensors": "attributes"},
            {"type": "embedding", "size": 16},
            {"type": "flatten"},
            {"type": "register", "tensor": "attr-embedding"},
        ],
        [
            {"type": "retrieve", "tensors": ["obs-embedding", "attr-embedding"], "aggregation": "concat"},
            {"type": "dense", "size": 32},
        ],
    ]
    model = build(network, inputs, {"q": Head((2,))})
    found = {n: x.shape for n, x in jax.eval_shape(model.init, jax.random.key(0))["params"].items()}
    assert found["body.conv2d0/kernel"] == (3, 3, 3, 16)
    assert found["body.embedding0/embeddings"] == (5, 16)
    assert found["body.dense0/kernel"] == (16 * 16 * 16 + 4 * 2 * 16, 32)


WEIGHTED = [
    ({"type": "dense", "size": 2}, (3,), {"kernel": (3, 2), "bias": (2,)}),
    ({"type": "dense", "size": 2, "bias": False}, (3,), {"kernel": (3, 2)}),
    ({"type": "linear", "size": 2}, (4, 4, 3), {"kernel": (3, 2), "bias": (2,)}),
    ({"type": "conv1d", "size": 2, "window": 5}, (9, 3), {"kernel": (5, 3, 2), "bias": (2,)}),
    ({"type": "conv2d", "size": 2, "window": (2, 3)}, (9, 9, 1), {"kernel": (2, 3, 1, 2), "bias": (2,)}),
    ({"type": "conv1d_transpose", "size": 2}, (9, 3), {"kernel": (3, 2, 3), "bias": (2,)}),
    ({"type": "conv2d_transpose", "size": 2}, (9, 9, 1), {"kernel": (3, 3, 2, 1), "bias": (2,)}),
    ({"type": "layer_normalization"}, (3,), {"gamma": (3,), "beta": (3,)}),
    ({"type": "group_normalization", "groups": 2}, (9, 4), {"gamma": (4,), "beta": (4,)}),
    ({"type": "instance_normalization"}, (9, 9, 4), {"gamma": (4,), "beta": (4,)}),
    (
        {"type": "keras", "layer": "EinsumDense", "equation": "ab,bc->ac", "output_shape": 4},
        (3,),
        {"kernel": (3, 4)},
    ),
]


@pytest.mark.parametrize(
    ("layer", "shape", "weights"), WEIGHTED, ids=lambda x: x.get("type") if isinstance(x, dict) else None
)
def test_weights_of_layers(layer, shape, weights):
    model = build([layer, "flatten"], one(shape), {"q": Head((1,))})
    found = jax.eval_shape(model.init, jax.random.key(0))["params"]
    body = {n.split("/")[1]: x.shape for n, x in found.items() if n.startswith("body.")}
    assert body == weights


def run(layers, shape, x, outputs):
    """Return a network's parameters, and what a row becomes in it."""
    model = build([*layers, "flatten"], one(shape), {"q": Head((outputs,))})
    variables = model.init(jax.random.key(0))
    found = model.apply(variables, {"state": x[None]})[0]["q"][0]
    return {name: np.asarray(value) for name, value in variables["params"].items()}, np.asarray(found)


@pytest.mark.slow
def test_instances_and_groups_are_standardised_over_positions():
    x = np.random.default_rng(0).normal(2.0, 3.0, (5, 4)).astype(np.float32)
    params, found = run(["instance_normalization"], (5, 4), x, 20)
    each = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)
    np.testing.assert_allclose(found, each.ravel() @ params["head.q/kernel"], rtol=1e-3, atol=1e-4)
    params, found = run([{"type": "group_normalization", "groups": 2}], (5, 4), x, 20)
    pairs = x.reshape(5, 2, 2)
    pairs = (pairs - pairs.mean((0, 2), keepdims=True)) / np.sqrt(pairs.var((0, 2), keepdims=True) + 1e-3)
    np.testing.assert_allclose(found, pairs.ravel() @ params["head.q/kernel"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 3)])
@pytest.mark.slow
def test_attention_mixes_positions_by_likeness(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    params, found = run([{"type": "attention", "size": 4, "heads": 2}], shape, x, 24)
    parts = ["", "_1", "_2", "_3"]  # queries, keys, values, outputs
    kernels, biases = ([params[f"body.attention0/{n}{part}"] for part in parts] for n in ("kernel", "bias"))
    rows = x.reshape(6, 3)
    q, k, v = (np.einsum("pc,chd->hpd", rows, kernels[i]) + biases[i][:, None] for i in range(3))
    score = np.einsum("hpd,hsd->hps", q, k) / np.sqrt(2.0)
    weight = np.exp(score) / np.exp(score).sum(-1, keepdims=True)
    mixed = np.einsum("hps,hsd,hdo->po", weight, v, kernels[3]) + biases[3]
    np.testing.assert_allclose(found, mixed.ravel() @ params["head.q/kernel"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "side"),
    [({}, 9), ({"stride": 2}, 5), ({"padding": "valid"}, 7), ({"padding": "valid", "dilation": 2}, 5)],
)
def test_convolution_arguments(arguments, side):
    # same: ceil(9 / stride); valid: 9 - dilation * (3 - 1)
    layers = [{"type": "conv2d", "size": 2, **arguments}, "flatten"]
    model = build(layers, one((9, 9, 1)), {"q": Head((1,))})
    assert jax.eval_shape(model.init, jax.random.key(0))["params"]["head.q/kernel"].shape == (2 * side**2, 1)


def test_arguments_change_the_layer():
    inputs, q = one((3,)), {"q": Head((1,))}
    frozen = build([{"type": "dense", "size": 2, "vars_trainable": False}], inputs, q).init(jax.random.key(0))
    assert set(frozen["state"]) == {"body.dense0/kernel", "body.dense0/bias"}
    plain, scaled = (
        build([{"type": "dense", "size": 2, "initialization_scale": s}], inputs, q).init(jax.random.key(0))
        for s in (1.0, 3.0)
    )
    name = "body.dense0/kernel"
    np.testing.assert_allclose(scaled["params"][name], 3.0 * plain["params"][name], atol=1e-5)
    noisy = build([{"type": "dense", "size": 2, "dropout": 0.5, "name": "first"}], inputs, q)
    assert [*jax.eval_shape(noisy.init, jax.random.key(0))["state"]] == [
        "body.first.dropout/seed_generator_state"
    ]


def test_keras_layers_as_objects_and_classes():
    k = keras()
    inputs, q = one((3,)), {"q": Head((1,))}
    layer = k.layers.Dense(4, kernel_initializer="ones")
    apart = build([layer, k.layers.ReLU], inputs, {**q, "v": Head(())}, towers=(("q",), ("v",)))
    found = jax.eval_shape(apart.init, jax.random.key(0))["params"]
    assert {"tower0.dense0/kernel", "tower1.dense0/kernel"} <= set(found)
    assert not layer.built  # each network gets its own copy
    layer.build((None, 3))
    layer.kernel.assign(np.full((3, 4), 7.0, np.float32))
    v = build([layer], inputs, q).init(jax.random.key(0))
    np.testing.assert_array_equal(v["params"]["body.dense0/kernel"], np.full((3, 4), 7.0))


@pytest.mark.parametrize(
    ("network", "shape", "message"),
    [
        (["dens"], (3,), r"network\[0\]: Unknown layer 'dens'. Did you mean 'dense'"),
        (
            ["exponential_normalization"],
            (3,),
            r"no layer 'exponential_normalization' here. Give normalize_observations=True",
        ),
        (
            ["flatten", {"type": "dense", "sise": 3}],
            (3,),
            r"network\[1\]: dense takes no argument 'sise'. Did you mean 'size'",
        ),
        ([{"type": "dense"}], (3,), r"network\[0\]: dense requires the argument 'size'"),
        (
            [{"type": "dense", "size": 2.5}],
            (3,),
            r"network\[0\]: size must be a whole number of at least 1. Received: size=2.5",
        ),
        (
            [{"type": "dense", "size": 2, "activation": "rellu"}],
            (3,),
            r"network\[0\]: Unknown activation 'rellu'. Did you mean 'relu'",
        ),
        (
            [{"type": "dense", "size": 2, "dropout": 1.0}],
            (3,),
            r"dropout must be at least 0 and below 1. Received: dropout=1.0",
        ),
        (
            [{"type": "conv2d", "size": 2, "padding": "sane"}],
            (9, 9, 1),
            r"padding must be one of 'same', 'valid'.*Did you mean 'same'",
        ),
        (
            ["flatten", {"type": "conv2d", "size": 2}],
            (9, 9, 1),
            r"network\[1\] \(conv2d\) needs an input of shape \[height, width, channels\]. Received: shape "
            r"\(81,\)",
        ),
        (
            [{"type": "dense", "size": 2}],
            (9, 9, 1),
            r"network\[0\] \(dense\) needs an input of shape \[features\]. Received: shape \(9, 9, 1\). Put "
            r"a flatten",
        ),
        (
            [{"type": "conv2d", "size": 2, "window": 5, "padding": "valid"}],
            (3, 3, 1),
            r"network\[0\] \(conv2d\) does not take an input of shape \(3, 3, 1\)",
        ),
        (
            [{"type": "conv2d", "size": 2}],
            (9, 9, 1),
            r"must end in one vector, .*Received: shape \(9, 9, 2\)",
        ),
        (
            [[{"type": "register", "tensor": "a"}], [{"type": "retrieve", "tensors": "b"}]],
            (3,),
            r"network\[1\]\[0\] \(retrieve\): There is no tensor named 'b'",
        ),
        ([{"type": "register", "tensor": "state"}], (3,), "There already is a tensor named 'state'"),
        (
            [{"type": "embedding", "size": 2}],
            (3,),
            "embedding needs a component of type 'int' with num_values",
        ),
        (
            [{"type": "block", "layers": [{"type": "retrieve", "tensors": "state"}]}],
            (3,),
            r"network\[0\]: A block holds no register",
        ),
        (
            [{"type": "group_normalization", "groups": 3}],
            (9, 4),
            r"groups must divide the 4 channels. Received: groups=3",
        ),
        (
            [{"type": "attention", "size": 5, "heads": 2}],
            (9, 4),
            r"heads must divide size. Received: heads=2, size=5",
        ),
        (
            [{"type": "attention", "size": 4}],
            (9,),
            r"\(attention\) needs an input of shape \[length, channels\] or \[height",
        ),
        (
            [{"type": "keras", "layer": "Dens", "units": 2}],
            (3,),
            r"network\[0\]: Keras has no layer 'Dens'. Did you mean 'Dense'",
        ),
        (
            [{"type": "keras", "layer": "Dense", "unit": 2}],
            (3,),
            r"network\[0\]: The Keras layer Dense refuses its arguments",
        ),
        ([{"type": "keras", "layer": "Lambda", "function": abs}], (3,), "Lambda layers cannot be saved"),
        ([lambda x: x], (3,), r"network\[0\]: <lambda> is no layer"),
        (
            [{"type": "dropout", "rate": "a"}],
            (3,),
            r"network\[0\]: rate must be a number. Received: rate='a'",
        ),
        (
            [{"type": "dropout", "rate": None}],
            (3,),
            r"network\[0\]: rate must be a number. Received: rate=None",
        ),
        (
            [{"type": "dense", "size": 2, "dropout": "x"}],
            (3,),
            r"dropout must be a number. Received: dropout='x'",
        ),
        (
            [{"type": "lstm", "size": 2, "bias": "yes"}],
            (3,),
            r"bias must be True or False. Received: bias='yes'",
        ),
        ([{"type": "register", "tensor": 5}], (3,), r"tensor must be a string. Received: tensor=5"),
        (
            [{"type": "retrieve", "tensors": "state", "axis": "a"}],
            (3,),
            r"axis must be a whole number. Received: axis='a'",
        ),
        ([{"type": "block", "layers": 5}], (3,), r"layers must be a list of layers. Received: layers=5"),
        ([{"type": "clipping", "lower": "a"}], (3,), r"lower must be a number. Received: lower='a'"),
        (
            [{"type": "clipping", "lower": 5, "upper": -5}],
            (3,),
            r"lower must be below upper -5. Received: lower=5",
        ),
        ([{"type": "clipping"}], (3,), r"clipping needs lower, upper or both"),
        (
            "lstm",
            (3,),
            r"'lstm' is a layer, not a network. Give a list of layers: \[\{'type': 'lstm', ...\}\]",
        ),
        ({"type": "auto", "rnn": "yes"}, (3,), r"rnn must be True, False, or the horizon"),
        (
            [{"type": "dense", "size": 2, "name": "a"}, {"type": "dense", "size": 2, "name": "a"}],
            (3,),
            "'a' is given to two layers",
        ),
    ],
)
def test_errors_name_the_place(network, shape, message):
    with pytest.raises(SpecError, match=message):
        build(network, one(shape), {"q": Head((1,))})


def test_several_inputs_need_a_retrieve():
    inputs = {"a": Leaf("float", (3,)), "b": Leaf("float", (4, 4, 1))}
    with pytest.raises(
        SpecError, match=r"network: the first layer must be a retrieve.*a \(3,\), b \(4, 4, 1\)"
    ):
        build([{"type": "dense", "size": 2}], inputs, {"q": Head((1,))})
    with pytest.raises(
        SpecError, match=r"Tensors to sum must have equal shapes. Received: a \(3,\), b \(4, 4, 1\)"
    ):
        build([{"type": "retrieve", "tensors": ["a", "b"], "aggregation": "sum"}], inputs, {"q": Head((1,))})


def test_every_layer_is_tested():
    tried = {layer["type"] for layer, _, _ in WEIGHTED}
    tried |= {
        "attention",
        "flatten",
        "reshape",
        "pooling",
        "pool1d",
        "activation",
        "clipping",
        "linear_normalization",
        "retrieve",
        "register",
        "embedding",
        "block",
    }
    elsewhere = {"dropout", "batch_normalization", "lstm", "gru", "self_attention"}  # tests of their own
    assert set(LAYERS) - tried - elsewhere == {"pool2d", "rnn"}


def test_pool2d_and_rnn():
    x = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
    found = features([{"type": "pool2d", "reduction": "average"}, "flatten"], one((4, 4, 1)), {"state": x})
    np.testing.assert_allclose(found, [2.5, 4.5, 10.5, 12.5])  # (0 + 1 + 4 + 5) / 4, ...
    carries = {
        cell: build([{"type": "rnn", "cell": cell, "size": 2}], one((3,)), {"q": Head((1,))}).initial_carry(5)
        for cell in ("gru", "lstm")
    }
    assert {cell: len(carry) for cell, carry in carries.items()} == {"gru": 1, "lstm": 2}
    assert all(x.shape == (5, 2) for carry in carries.values() for x in carry.values())
