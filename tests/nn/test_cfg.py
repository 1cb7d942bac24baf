"""Networks from .cfg files: the grammar and its errors, the models that files describe, the files that
come along."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.small_agents import small

import operant
from operant import checkpoint
from operant.agents import SLOTS
from operant.agents.base.agent_spec import parse_agent
from operant.agents.table import AGENTS, config_class
from operant.errors import CheckpointError, SpecError
from operant.nn import Head, build
from operant.nn.backend import keras, numpy_promotion
from operant.nn.cfg import Cfg, ModelReader
from operant.nn.cfg_kinds import INITIALIZERS, KINDS
from operant.spec import MODEL_FILES, options
from operant.spec.spaces import Leaf, Spaces

DOCUMENT = """
[convolutional-0]
filters=32
size=8
stride=4
activation=relu
initializer=orthogonal
gain=1.4142135

[convolutional-1]
filters=64
size=4
stride=2
activation=relu
initializer=orthogonal
gain=1.4142135

[convolutional-2]
filters=64
size=3
stride=1
activation=relu
initializer=orthogonal
gain=1.4142135

[flatten-0]

[dense-0]
units=512
activation=relu
initializer=orthogonal
gain=1.4142135
common=1

[dense-1]
initializer=orthogonal
gain=0.01
output=1

[dense-2]
initializer=orthogonal
gain=1.0
output=1
"""
TINY = "[dense-0]\nunits=2\nactivation=relu\n[dense-1]\noutput=1\n"


def model(text, units, shape, seed=0):
    return Cfg.parse(text).model(shape, units, seed)


def write(tmp_path, text):
    path = tmp_path / "net.cfg"
    path.write_text(text)
    return str(path)


# The model that a file describes


def test_the_documents_model(tmp_path):
    found = ModelReader(write(tmp_path, DOCUMENT), [6, 1], (84, 84, 1), optimizer="adam").build_model()
    shapes = [tuple(layer.output.shape) for layer in found.layers]
    assert [layer.name for layer in found.layers] == [
        "input_1",
        "conv2d",
        "conv2d_1",
        "conv2d_2",
        "flatten",
        "dense",
        "dense_1",
        "dense_2",
    ]
    assert shapes[1:] == [
        (None, 20, 20, 32),
        (None, 9, 9, 64),
        (None, 7, 7, 64),
        (None, 3136),
        (None, 512),
        (None, 6),
        (None, 1),
    ]
    assert [layer.count_params() for layer in found.layers] == [0, 2080, 32832, 36928, 0, 1606144, 3078, 513]
    assert found.count_params() == 1_681_575
    # Both outputs read the common layer.
    assert found.layers[-1].input is found.layers[-2].input is found.layers[-3].output
    assert isinstance(found.optimizer, keras().optimizers.Adam)
    lines = []
    found.summary(print_fn=lambda line, **_: lines.append(line))
    for part in ('Model: "model"', "dense_2 (Dense)", "(None, 20, 20", "dense[0][0]", "1,681,575"):
        assert part in "\n".join(lines)


def test_a_small_file_by_hand():
    found = model(TINY, [1], (2,))
    with numpy_promotion():
        values = [[[1.0, -1.0], [2.0, 3.0]], [0.5, 0.0], [[10.0], [100.0]], [0.25]]
        found.set_weights([np.asarray(value) for value in values])
        # hidden: relu(1 + 2 * 2 + 0.5) = 5.5 and relu(-1 + 3 * 2) = 5; out: 55 + 500 + 0.25
        np.testing.assert_allclose(found(np.asarray([[1.0, 2.0]])), [[555.25]])


def test_heads_may_be_deep():
    text = """
[dense-0]
units=5
common=yes
[dense-1]
units=4
[dense-2]
output=true
[dense-3]
units=3
[dense-4]
units=6
common=1
[dense-5]
output=1
[dense-6]
output=1
"""
    found = model(text, [2, 7, 1], (8,))
    by_name = {layer.name: layer for layer in found.layers}
    d = [by_name["dense" if i == 0 else f"dense_{i}"] for i in range(7)]
    assert [x.kernel.shape for x in d] == [(8, 5), (5, 4), (4, 2), (5, 3), (3, 6), (6, 7), (6, 1)]
    assert d[3].input is d[0].output  # behind an output the latest common layer
    assert d[5].input is d[6].input is d[4].output  # a second common layer takes the place of the first
    assert [x.shape[1] for x in found.outputs] == [2, 7, 1]


def test_without_a_common_layer_each_output_has_a_tower_of_its_own():
    found = model(
        "[dense-0]\nunits=3\n[dense-1]\noutput=1\n[dense-2]\nunits=4\n[dense-3]\noutput=1", [2, 1], (8,)
    )
    d = {layer.name: layer for layer in found.layers}
    assert d["dense"].input is d["dense_2"].input is found.inputs[0]
    assert d["dense_1"].input is d["dense"].output and d["dense_3"].input is d["dense_2"].output


def test_zero_and_false_are_no():
    for no in ("0", "false", "No"):
        text = f"[dense-0]\nunits=3\ncommon={no}\noutput={no}\n[dense-1]\nunits=4\ncommon={no}\n"
        text += "[dense-2]\noutput=1"
        found = model(text, [2], (5,))
        assert len(found.outputs) == 1
        assert found.layers[-1].kernel.shape == (4, 2)


def test_every_kind_of_section():
    text = """
[DEFAULT]
initializer=he_normal
[convolutional]  # a hyphen and a number are needed only where there are two
filters=4
size=3
padding=same
[pooling-max]
size=2
[pooling-1]
reduction=average
size=3
stride=1
[normalization-0]
type=layer
[activation-0]
activation=tanh
[pooling-2]
reduction=average
[dropout-0]
rate=0.5
[normalization-1]
[dense-0]
units=3
output=1
"""
    found = model(text, [], (12, 12, 1))
    kinds = [type(layer).__name__ for layer in found.layers[1:]]
    assert kinds == [
        "Conv2D",
        "MaxPooling2D",
        "AveragePooling2D",
        "LayerNormalization",
        "Activation",
        "GlobalAveragePooling2D",
        "Dropout",
        "LayerNormalization",
        "Dense",
    ]
    shapes = [tuple(layer.output.shape[1:]) for layer in found.layers[1:4]]
    assert shapes == [(12, 12, 4), (6, 6, 4), (4, 4, 4)]  # 12 / 2 = 6, 6 - 3 + 1 = 4
    assert found.layers[1].kernel_initializer.scale == 2.0
    maximum = model("[pooling]\n[dense]\noutput=1", [1], (4, 4, 2))
    assert type(maximum.layers[1]).__name__ == "GlobalMaxPooling2D"
    embedded = model("[embedding]\nvalues=7\nunits=3\n[flatten]\n[dense]\noutput=1", [2], (4,))
    assert [tuple(w.shape) for w in embedded.weights] == [(7, 3), (12, 2), (2,)]
    used = {
        "activation",
        "convolutional",
        "dense",
        "dropout",
        "embedding",
        "flatten",
        "normalization",
        "pooling",
    }
    assert used == set(KINDS)


def test_percent_is_a_character():
    with pytest.raises(SpecError, match=r"Received: activation=%\(x\)s|Unknown activation '%\(x\)s'"):
        Cfg.parse("[dense-0]\nactivation=%(x)s\noutput=1")


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers(name):
    gain = "" if name in ("zeros", "ones") else "gain=2"
    kernel = np.asarray(
        model(f"[dense]\nunits=300\ninitializer={name}\n{gain}\noutput=1", [], (200,)).layers[1].kernel
    )
    variance = {"glorot": 2 / 500, "he": 2 / 200, "lecun": 1 / 200}.get(name.split("_")[0])
    if variance is not None:  # gain 2: four times the variance
        np.testing.assert_allclose(kernel.var(), 4 * variance, rtol=0.03)
        assert (np.abs(kernel).max() <= np.sqrt(12 * variance) + 1e-6) == name.endswith("uniform")
    elif name == "orthogonal":
        np.testing.assert_allclose(kernel @ kernel.T, 4 * np.eye(200), atol=1e-4)
    else:
        assert np.all(kernel == (name == "ones"))


def test_weights_are_a_function_of_the_seed():
    text = "[dense-0]\nunits=4\n[dense-1]\nunits=4\n[dense-2]\nunits=4\ninitializer=orthogonal\n"
    text += "[dense-3]\noutput=1"
    one, same, other = (model(text, [4], (4,), seed).get_weights()[::2] for seed in (1, 1, 2))
    for a, b, c in zip(one, same, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.allclose(a, c)
    for i in range(4):
        for j in range(i):
            assert not np.allclose(one[i], one[j])
    free = [model(text, [4], (4,), None).get_weights()[0] for _ in range(2)]
    assert not np.allclose(*free)


def test_normalisation_of_both_types():
    text = "[normalization-0]\ntype=batch\n[normalization-1]\ntype=layer\n[dense-0]\noutput=1"
    found = [type(layer).__name__ for layer in model(text, [4], (4,), 0).layers]
    assert found[1:3] == ["BatchNormalization", "LayerNormalization"]


# Errors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty. It must have at least one section, such as"),
        ("units=3", r"must begin with a section such as \[dense-0\]. Received: 'units=3' \(line 1\)"),
        ("[dense-0]\nunits", r"line 2: a line is key=value. Received: 'units'\."),
        (
            "[dense-0]\nunits=1\n[dense-0]",
            r"two sections \[dense-0\] \(line 3\). Give each a number of its own",
        ),
        ("[dense-0]\nunits=1\nunits=2", r"section \[dense-0\]: 'units' is given twice \(line 3\). Keep one"),
        ("[dens-0]\nunits=1", r"section \[dens-0\]: unknown kind of section 'dens'. Did you mean 'dense'\?"),
        (
            "[lstm-0]\nunits=1",
            r"section \[lstm-0\]: a .cfg file describes feed-forward networks.*list of layers",
        ),
        ("[dense-0]\nunit=1", r"\[dense-0\]: unknown key 'unit'. Received: unit=1. Did you mean 'units'\?"),
        (
            "[dense-0]\nunits=x",
            r"\[dense-0\]: units must be a whole number of at least 1. Received: units='x'",
        ),
        ("[dense-0]\nunits=0", r"units must be a whole number of at least 1. Received: units=0"),
        ("[dense-0]\nunits=3", r"has no output. Mark its last section, \[dense-0\], with output=1"),
        (
            "[dense-0]\noutput=1\n[flatten-0]",
            r"\[flatten-0\]: leads to no output. Mark it with output=1, or remove it",
        ),
        (
            "[dense-0]",
            r"\[dense-0\]: units is missing. Only outputs may leave it out: add units=... or output=1",
        ),
        ("[dense-0]\noutput=maybe", r"output must be 1, 0, true, false, yes or no. Received: output='maybe'"),
        (
            "[dense-0]\ninitializer=orthogonl",
            r"Received: initializer='orthogonl'. Did you mean 'orthogonal'\?",
        ),
        ("[dense-0]\ninitializer=foo", r"initializer must be one of [^.]*\. Received: initializer='foo'\.$"),
        ("[dense-0]\nactivation=rellu", r"\[dense-0\]: Unknown activation 'rellu'. Did you mean 'relu'\?"),
        ("[dense-0]\ngain=2\noutput=1", r"gain=2 has nothing to scale. Add initializer=orthogonal, say"),
        ("[dense-0]\ninitializer=zeros\ngain=2", "gain=2 has nothing to scale. Leave it out"),
        ("[dense-0]\ninitializer=orthogonal\ngain=-1", "gain must be a number above 0. Received: gain='-1'"),
        ("[convolutional-0]\nsize=3", r"\[convolutional-0\]: filters is missing. Add a line filters=..."),
        ("[convolutional-0]\nfilters=3\nsize=3\npadding=full", "padding must be one of 'valid', 'same'"),
        ("[dropout-0]\nrate=1", "rate must be a number of at least 0 and below 1. Received: rate='1'"),
    ],
)
def test_files_that_are_refused(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(SpecError, match=message) as caught:
        Cfg.read(path)
    assert "net.cfg" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "units", "shape", "message"),
    [
        (
            TINY,
            [],
            (3,),
            r"too few output units. It has 1 output\(s\) without units: \[dense-1\]. Received: .*=\[\]",
        ),
        (TINY, [1, 2], (3,), r"too many output units. It has 1 output\(s\) without units"),
        (
            TINY,
            [1],
            (4, 3),
            r"\[dense-0\]: needs an input of shape \[features\]. Received: shape \(4, 3\). Put a \[flatten\]",
        ),
        (
            "[convolutional]\nfilters=1\nsize=3\n[flatten]\noutput=1",
            [],
            (5,),
            r"needs an input of shape \[height, width",
        ),
        (
            "[convolutional]\nfilters=1\nsize=9\n[flatten]\noutput=1",
            [],
            (5, 5, 1),
            r"\[convolutional\]: .*\(5, 5, 1\)",
        ),
        ("[pooling]\nsize=9\n[flatten]\noutput=1", [], (5, 5, 1), r"\[pooling\]: .*\(5, 5, 1\)"),
    ],
)
def test_models_that_do_not_fit(text, units, shape, message):
    with pytest.raises(SpecError, match=message):
        model(text, units, shape)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cfg_file": "nowhere.cfg"}, "The network file 'nowhere.cfg' cannot be read: .*No such file"),
        (
            {"output_units": [2.5]},
            r"output_units must be whole numbers of at least 1. Received: output_units=\[2.5\]",
        ),
        ({"output_units": "x"}, "output_units must be a whole number"),
        (
            {"input_shape": (3, 0)},
            r"input_shape must be whole numbers of at least 1. Received: input_shape=\(3, 0\)",
        ),
        ({"seed": -1}, "seed must be a whole number of at least 0. Received: seed=-1"),
        ({"optimizer": "adm"}, "Keras has no optimizer 'adm'. Did you mean 'adam'"),
    ],
)
def test_arguments_of_the_reader(tmp_path, changes, message):
    arguments = {"cfg_file": write(tmp_path, TINY), "output_units": [1], "input_shape": 3, **changes}
    with pytest.raises(SpecError, match=message):
        ModelReader(**arguments).build_model()


def test_the_reader_takes_numpy_numbers_and_single_ones(tmp_path):
    reader = ModelReader(
        write(tmp_path, TINY), np.int64(2), 3.0, optimizer={"type": "sgd", "lr": 0.5}, seed=1
    )
    first, second = reader.build_model(), reader.build_model()
    assert first.input_shape == (None, 3) and first.output_shape == (None, 2)
    np.testing.assert_array_equal(first.get_weights()[0], second.get_weights()[0])
    assert float(first.optimizer.learning_rate) == 0.5
    assert (
        getattr(ModelReader(reader.cfg.source.split("'")[1], 2, 3).build_model(), "optimizer", None) is None
    )


# In place of other networks

VECTOR = {"state": Leaf("float", (3,))}


def kernels(built):
    shapes = jax.eval_shape(built.init, jax.random.key(0))["params"]
    return [x.shape for name, x in shapes.items() if name.endswith("kernel")]


def test_outputs_are_the_heads_in_order(tmp_path):
    text = "[dense-0]\nunits=5\ncommon=1\n[dense-1]\noutput=1\n[dense-2]\noutput=1"
    heads = {"mean": Head((2, 3)), "log_std": Head((2, 3), constant=-0.5), "value": Head(())}
    built = build(write(tmp_path, text), VECTOR, heads)
    assert kernels(built) == [(3, 5), (5, 6), (5, 1)]
    v = built.init(jax.random.key(0))
    assert not np.allclose(
        v["params"]["model/dense/kernel"], built.init(jax.random.key(1))["params"]["model/dense/kernel"]
    )
    outputs, _ = built.apply(v, {"state": jnp.ones((4, 3))})
    assert {n: x.shape for n, x in outputs.items()} == {
        "mean": (4, 2, 3),
        "log_std": (4, 2, 3),
        "value": (4,),
    }
    np.testing.assert_array_equal(outputs["log_std"], -0.5)


def test_frames_are_scaled_and_grey_ones_get_a_channel():
    text = "[convolutional]\nfilters=1\nsize=2\n[flatten]\n[dense]\noutput=1"
    frame = Leaf("float", (2, 2), dtype="uint8", min_value=0, max_value=255)
    built = build({"type": "cfg", "text": text}, {"state": frame}, {"q": Head((1,))})
    v = built.init(jax.random.key(0))
    ones = {**v, "params": jax.tree.map(jnp.ones_like, v["params"])}
    outputs, _ = built.apply(ones, {"state": jnp.full((2, 2), 51, jnp.uint8)})
    # all weights and biases 1: 4 * 51 / 255 + 1 = 1.8, and 1.8 + 1
    np.testing.assert_allclose(outputs["q"], [2.8], rtol=1e-6)


def test_vectors_are_joined_and_choices_are_one_hot(tmp_path):
    inputs = {"a": Leaf("float", (2,)), "b": Leaf("int", num_values=4), "c": Leaf("bool"), "d": Leaf("float")}
    assert kernels(build(write(tmp_path, TINY), inputs, {"q": Head((3,))})) == [(2 + 4 + 1 + 1, 2), (2, 3)]
    words = {"word": Leaf("int", (2,), num_values=9)}
    text = "[embedding]\nvalues=9\nunits=5\n[flatten]\n[dense]\noutput=1"
    built = build({"type": "cfg", "text": text}, words, {"q": Head((3,))})
    assert kernels(built) == [(10, 3)]
    outputs, _ = built.apply(built.init(jax.random.key(0)), {"word": jnp.asarray([3, 8])})
    assert outputs["q"].shape == (3,)


def test_vectors_join_an_image_where_it_has_become_one(tmp_path):
    """Weights and biases 1 but for the first dense layer's, which weighs the pixel 1, a 10 and b, one-hot,
    100 and 1000."""
    text = "[convolutional]\nfilters=1\nsize=2\n[flatten]\n[dense-0]\nunits=1\n[dense-1]\noutput=1"
    path = write(tmp_path, text)
    inputs = {"a": Leaf("float"), "eye": Leaf("float", (2, 2, 1)), "b": Leaf("int", num_values=2)}
    built = build(path, inputs, {"q": Head(())})
    assert kernels(built) == [(2, 2, 1, 1), (4, 1), (1, 1)]
    v = built.init(jax.random.key(0))
    params = jax.tree.map(jnp.ones_like, v["params"])
    kernel = next(name for name, x in params.items() if x.shape == (4, 1))
    params[kernel] = jnp.asarray([[1.0], [10.0], [100.0], [1000.0]])
    observation = {"a": jnp.asarray([2.0]), "eye": jnp.full((1, 2, 2, 1), 0.5), "b": jnp.asarray([1])}
    outputs, _ = built.apply({**v, "params": params}, observation)
    np.testing.assert_allclose(outputs["q"], [(4 * 0.5 + 1) + 20 + 1000 + 1 + 1], rtol=1e-6)
    model = ModelReader(path, 1, (2, 2, 1), vector_size=3).build_model()
    assert [x.shape for x in model.inputs] == [(None, 2, 2, 1), (None, 3)]
    with pytest.raises(
        SpecError, match=r"\[convolutional\]: an output that does not read the vector of 3.*flatten"
    ):
        ModelReader(
            write(tmp_path, "[convolutional]\nfilters=1\nsize=2\noutput=1"), [], (2, 2, 1), vector_size=3
        ).build_model()
    pooled = path.replace("net.cfg", "pooled.cfg")
    (tmp_path / "pooled.cfg").write_text("[pooling]\n[dense]\noutput=1")
    assert kernels(build(pooled, inputs, {"q": Head(())})) == [(4, 1)]


def test_what_does_not_fit_heads_or_inputs(tmp_path):
    path = write(tmp_path, "[dense-0]\nunits=5\ncommon=1\n[dense-1]\noutput=1\n[dense-2]\nunits=4\noutput=1")
    with pytest.raises(
        SpecError, match=r"must have 1 section\(s\) with output=1, in this order: q \(2\). Received: 2"
    ):
        build(path, VECTOR, {"q": Head((2,))})
    with pytest.raises(
        SpecError, match=r"\[dense-2\]: units must be 1, for value. Received: units=4. Leave units out"
    ):
        build(path, VECTOR, {"q": Head((2,)), "value": Head(())})
    eyes = {"left": Leaf("float", (8, 8, 1)), "right": Leaf("float", (8, 8, 1)), **VECTOR}
    with pytest.raises(
        SpecError, match=r"at most one image.*Received: left \(8, 8, 1\), right \(8, 8, 1\), st"
    ):
        build(write(tmp_path, TINY), eyes, {"q": Head((2,))})
    with pytest.raises(
        SpecError, match=r"\[dense-0\]: needs an input of shape.*Put a \[flatten\] section before"
    ):
        build(write(tmp_path, TINY), {"eye": Leaf("float", (8, 8, 1)), **VECTOR}, {"q": Head((2,))})


def test_the_content_goes_into_the_specification_not_the_path(tmp_path):
    path = write(tmp_path, TINY)
    definition = parse_agent("ppo", model=path)
    data = json.loads(json.dumps(definition.to_dict()))
    assert data["model"] == {"type": "cfg", "text": TINY}
    (tmp_path / "net.cfg").unlink()
    again = build(parse_agent(data).config.model, VECTOR, {"q": Head((2,))})
    assert again.spec == data["model"]
    assert kernels(again) == [(3, 2), (2, 2)]


def test_one_vector_in_place_of_several():
    """A critic that reads state and action as one vector, in this order."""
    critic = model("[dense]\noutput=1", [1], (5,))
    with numpy_promotion():
        critic.set_weights([np.asarray([[1.0], [10.0], [100.0], [1000.0], [10000.0]]), np.zeros(1)])
    inputs = {"state": Leaf("float", (3,)), "action": Leaf("float", (2,))}
    built = build(critic, inputs, {"value": Head(())})
    observation = {"action": jnp.asarray([4.0, 5.0]), "state": jnp.asarray([1.0, 2.0, 3.0])}
    outputs, _ = built.apply(built.init(jax.random.key(0)), observation)
    np.testing.assert_allclose(outputs["value"], 54321.0)
    with pytest.raises(
        SpecError, match=r"must take the inputs, in this order: state \(4,\), action \(2,\). It takes"
    ):
        build(critic, {**inputs, "state": Leaf("float", (4,))}, {"value": Head(())})


@pytest.mark.slow
def test_a_reader_model_survives_as_data_in_another_process(tmp_path):
    """Its class and initialisers are operant's own: whoever reads the data must have them registered."""
    found = model("[dense-0]\nunits=4\ninitializer=orthogonal\n[dense-1]\noutput=1", [2], (3,))
    found.save(tmp_path / "net.keras")
    (tmp_path / "net.json").write_text(json.dumps(build(found, VECTOR, {"q": Head((2,))}).spec))
    code = (
        "import sys; from operant.nn import Head, build; from operant.spec.spaces import Leaf\n"
        "for path in sys.argv[1:]:\n"
        "    print(build(path, {'state': Leaf('float', (3,))}, {'q': Head((2,))}).count)"
    )
    paths = [str(tmp_path / name) for name in ("net.keras", "net.json")]
    result = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, timeout=120)
    assert result.stdout.split() == ["26", "26"], result.stderr  # 3 * 4 + 4 + 4 * 2 + 2


def test_a_compiled_model_is_drawn_anew_and_survives_as_data(tmp_path):
    found = model(TINY, [2], (3,))
    found.compile(optimizer="adam")
    found.save(tmp_path / "net.keras")
    built = build(found, VECTOR, {"q": Head((2,))}, reinitialize=True)
    name = "model/dense/kernel"
    assert not np.allclose(built.init(jax.random.key(0))["params"][name], found.get_weights()[0])
    assert "compile_config" not in json.dumps(built.spec)
    assert kernels(build(json.loads(json.dumps(built.spec)), VECTOR, {"q": Head((2,))})) == [(3, 2), (2, 2)]
    loaded = build(tmp_path / "net.keras", VECTOR, {"q": Head((2,))}).init(jax.random.key(0))["params"]
    np.testing.assert_array_equal(loaded[name], found.get_weights()[0])


# Files of weights


def test_weights_of_a_run_load_into_a_reader_model(tmp_path):
    built = build({"type": "cfg", "text": TINY}, VECTOR, {"q": Head((2,))})
    variables = built.init(jax.random.key(5))
    checkpoint.save(tmp_path, variables, {"weights": "model"}, name="trained.tf")
    found = model(TINY, [2], (3,))
    assert found.load_weights(tmp_path / "trained.tf").expect_partial() is not None
    with numpy_promotion():
        outputs = found(np.ones((1, 3)))
    np.testing.assert_allclose(outputs[0], built.apply(variables, {"state": jnp.ones(3)})[0]["q"], rtol=1e-6)
    with pytest.raises(CheckpointError, match=r"of another network. Here: .*\(4, 2\).*There: .*\(3, 2\)"):
        model(TINY, [2], (4,)).load_weights(tmp_path / "trained.tf")


def test_kerass_own_files_of_weights_load_too(tmp_path):
    one, two = model(TINY, [2], (3,), 1), model(TINY, [2], (3,), 2)
    one.save_weights(tmp_path / "w.weights.h5")
    two.load_weights(tmp_path / "w.weights.h5").expect_partial()
    np.testing.assert_array_equal(one.get_weights()[0], two.get_weights()[0])
    good = two.get_weights()
    one.set_weights([np.full_like(x, np.nan) for x in good])
    one.save_weights(tmp_path / "nan.weights.h5")
    whole = (tmp_path / "w.weights.h5").read_bytes()
    (tmp_path / "cut.weights.h5").write_bytes(whole[: len(whole) // 2])
    for name, message in (("nan", "holds nan, which is no finite number"), ("cut", "cannot be read")):
        with pytest.raises(CheckpointError, match=rf"The weights '.*{name}.weights.h5' .*{message}"):
            two.load_weights(tmp_path / f"{name}.weights.h5")
        np.testing.assert_array_equal(two.get_weights()[0], good[0])


def test_what_is_no_file_of_weights(tmp_path):
    found = model(TINY, [2], (3,))
    with pytest.raises(CheckpointError, match=r"The weights '.*nope.tf' do not exist\."):
        found.load_weights(tmp_path / "nope.tf")
    for other in (tmp_path, Path(__file__)):
        with pytest.raises(
            CheckpointError,
            match=r"a folder with manifest.json\), or a file that ends with .weights.h5, .*Received",
        ):
            found.load_weights(other)


# The files that come along


def test_a_name_is_enough_unless_a_file_here_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    along = Cfg.read(operant.agents["acer"]["model"]["ann"][0])
    assert Cfg.read("ann-actor-critic.cfg") == along
    (tmp_path / "ann-actor-critic.cfg").write_text(TINY)
    assert Cfg.read("ann-actor-critic.cfg") == Cfg.parse(TINY)
    with pytest.raises(SpecError, match=r"cannot be read: .* Did you mean 'ann-actor-critic.cfg'\?"):
        Cfg.read("ann-actor-critics.cfg")
    with pytest.raises(SpecError, match=r"cannot be read: [^?]*$"):
        Cfg.read("nowhere/ann-actor-critic.cfg")


FILES = [
    (name, slot, kind, path)
    for name in AGENTS
    for slot in SLOTS
    if slot in options(config_class(name))
    for kind, paths in operant.agents[name][slot].items()
    for path in paths
]


def spaces(name, kind):
    shape = {"ann": (5,), "cnn": (84, 84, 4)}[kind]
    state = {
        "type": "float",
        "shape": shape,
        **({"dtype": "uint8", "min_value": 0, "max_value": 255} if kind == "cnn" else {}),
    }
    integer = "int" in AGENTS[name].actions
    action = (
        {"type": "int", "num_values": 3}
        if integer
        else {"type": "float", "shape": (2,), "min_value": -1, "max_value": 1}
    )
    return Spaces.read(state, action)


@pytest.mark.parametrize(
    ("name", "slot", "kind", "path"), FILES, ids=[f"{n}-{s}-{k}" for n, s, k, _ in FILES]
)
def test_default_files_fit_their_agents(name, slot, kind, path):
    limit = {"episode_limit": 100} if "episode_limit" in options(config_class(name)) else {}
    definition = parse_agent(name, **{slot: path}, **limit)
    algorithm = definition.cls.create(definition.config, spaces(name, kind), 16)
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    named = {name: sorted(v["params"]) for name, v in algorithm.weights(state).items()}
    assert any(all(variable.startswith("model/") for variable in variables) for variables in named.values())


def test_default_files_of_the_document():
    counts = {}
    for name, slot, kind, path in FILES:
        outputs = Cfg.read(path).outputs
        sizes = [1] if "critic" in slot else [4, 1]
        heads = {str(i): Head((size,)) for i, (_, size) in enumerate(zip(outputs, sizes, strict=False))}
        leaf = Leaf("float", (84, 84, 1) if kind == "cnn" else (5,))
        counts[name, slot, kind] = build(path, {"state": leaf}, heads).count
    nature = 2080 + 32832 + 36928 + 1606144  # of the document's summary
    vector = 5 * 64 + 64 + 64 * 64 + 64
    for name in {"a2c", "acer", "ppo"} & set(AGENTS):
        assert counts[name, "model", "cnn"] == nature + 513 * 5
        assert counts[name, "model", "ann"] == (vector if name == "acer" else 2 * vector) + 65 * 5
    assert counts["dqn", "model", "cnn"] == nature + 513 * 4
    assert counts["dqn", "model", "ann"] == vector + 65 * 4
    for name in {"ddpg", "td3"} & set(AGENTS):
        deterministic = 6 * 400 + 401 * 300
        assert counts[name, "actor_model", "ann"] == deterministic + 301 * 4
        assert counts[name, "critic_model", "ann"] == deterministic + 301
    for name in {"trpo"} & set(AGENTS):
        # (84 - 8) / 4 + 1 = 20, (20 - 4) / 2 + 1 = 9: 9 * 9 * 16 = 1296
        convolutions = (64 + 1) * 8 + (16 * 8 + 1) * 16 + 1297 * 128
        assert counts[name, "actor_model", "cnn"] == convolutions + 129 * 4
        assert counts[name, "critic_model", "cnn"] == convolutions + 129
        assert counts[name, "actor_model", "ann"] == vector + 65 * 4
        assert counts[name, "critic_model", "ann"] == vector + 65


@pytest.mark.parametrize("name", ["a2c", "acer", "dqn", "ppo", "trpo"])
def test_on_images_agents_begin_with_networks_of_the_size_of_the_documents_files(name):
    def counts(**models):
        definition = parse_agent(name, **models)
        algorithm = definition.cls.create(definition.config, spaces(name, "cnn"), 16)
        return {key: model.count for key, model in algorithm.models.items()}

    files = {slot: path for agent, slot, kind, path in FILES if (agent, kind) == (name, "cnn")}
    assert counts() == counts(**files)


def test_every_file_belongs_to_an_agent():
    table = json.loads((MODEL_FILES / "models.json").read_text())
    used = {
        file
        for slots in table.values()
        for kinds in slots.values()
        for files in kinds.values()
        for file in files
    }
    assert used == {path.name for path in MODEL_FILES.glob("*.cfg")}


def test_agents_as_a_mapping():
    assert list(operant.agents) == list(AGENTS) == list(dict(operant.agents))
    assert len(operant.agents) == len(AGENTS)
    assert "ppo" in operant.agents and "ppoo" not in operant.agents
    assert dict(operant.agents.items()) == dict(operant.agents)
    assert [dict(card) for card in operant.agents.values()] == [dict(operant.agents[name]) for name in AGENTS]
    assert operant.agents.get("double_dqn") == operant.agents["double_dqn"]
    assert operant.agents.get("ppoo", 3) == 3
    card = operant.agents["ppo"]
    assert list(card) == ["module", "agent", "model"]
    assert card["module"].__name__ == "operant.agents.ppo"
    assert card["agent"].__name__ == "PPO"
    assert isinstance(card["model"]["cnn"][0], str)
    assert operant.agents["double_dqn"]["model"] == operant.agents["dqn"]["model"]
    assert operant.agents["dueling_dqn"]["model"] != operant.agents["dqn"]["model"]  # one head more
    assert operant.agents["vpg"]["model"] == operant.agents["modular"]["model"]
    assert operant.agents["td3"]["critic_model"]["cnn"] == operant.agents["ddpg"]["critic_model"]["cnn"]
    assert card.get("models", 3) == 3
    with pytest.raises(SpecError, match="Unknown agent 'ppoo'. Did you mean 'ppo'"):
        operant.agents["ppoo"]
    with pytest.raises(SpecError, match="The agent 'ppo' has no 'models'. Did you mean 'model'"):
        card["models"]


def test_an_agent_without_files_has_empty_lists(monkeypatch):
    monkeypatch.setattr("operant.agents._table", dict)
    assert operant.agents["ppo"]["model"] == {"ann": [], "cnn": []}


@pytest.mark.slow
def test_old_import_paths_stand_and_load_nothing():
    code = (
        "import operant, sys; before = set(sys.modules)\n"
        "import operant.utils.common as common\n"
        "from operant.utils import buffers\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'jax', 'keras', 'gymnasium', 'numpy'}))\n"
        "from operant.utils.common import ModelReader, create_envs, plot_history\n"
        "from operant.utils.buffers import ReplayBuffer1, ReplayBuffer2\n"
        "print(ModelReader is operant.ModelReader, create_envs.__module__, ReplayBuffer2.__module__, "
        "plot_history.__name__)\n"
        "print('create_envs' in dir(common), hasattr(common, 'other'), common.__all__)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout.splitlines() == [
        "[]",
        "True operant.execution.trainers.inputs operant.execution.trainers.arguments plot_history",
        "True False ['ModelReader', 'create_envs', 'plot_history']",
    ], result.stderr


# Training


@pytest.mark.slow
def test_a_file_and_its_keras_model_train_alike(tmp_path):
    """The file of an agent and the Keras model made of it: the same parameters, and the same step from
    equal ones."""
    from operant.agents.base.learner import Learner

    text = "[dense-0]\nunits=4\nactivation=tanh\ncommon=1\n[dense-1]\noutput=1\n[dense-2]\noutput=1"
    path = write(tmp_path, text)
    made = ModelReader(path, [3, 1], 5, optimizer="adam", seed=3).build_model()
    settings = {**small("ppo"), "n_steps": 4, "mini_batches": 1, "ppo_epochs": 1}
    trained, start = [], None
    for network in (path, made):
        definition = parse_agent("ppo", **{**settings, "model": network})
        learner = Learner(definition.cls.create(definition.config, spaces("ppo", "ann"), 2))
        train = learner.init(jax.random.key(0), learner.hyper())
        weights = learner.algorithm.weights(train.state)
        if trained:  # a Keras model brings weights; start both from the file's
            assert jax.tree.map(jnp.shape, weights) == jax.tree.map(jnp.shape, start)
            train = train._replace(state=learner.algorithm.with_weights(train.state, start))
        start = learner.algorithm.weights(train.state)
        block = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), learner.block_shape(2))
        block = block._replace(terminated=~block.terminated, truncated=~block.truncated)
        after, _ = jax.jit(learner.update)(train, block, jax.random.key(1))
        trained.append(learner.algorithm.weights(after.state))
    for a, b in zip(*map(jax.tree.leaves, trained), strict=True):
        np.testing.assert_array_equal(a, b)
    leaves = map(jax.tree.leaves, (trained[0], start))
    assert any(not np.array_equal(a, b) for a, b in zip(*leaves, strict=True))


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(block, "docs/models.md", "exec"), names)
    ini = Cfg.parse(re.search(r"```ini\n(.*?)```", page, re.S).group(1))
    assert len(ini.outputs) == 2
    for kind, described in KINDS.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `[{kind}-N]`"))
        assert all(f"`{key}`" in row for key in described.keys), row
    assert all(f"`{name}`" in page for name in INITIALIZERS)


def test_a_key_that_no_section_takes_is_refused_in_default_too():
    text = "[DEFAULT]\nactivaton=relu\n[dense-0]\nunits=3\n[dense-1]\noutput=1"
    with pytest.raises(
        SpecError, match=r"section \[DEFAULT\]: no section takes the key 'activaton'.*'activation'"
    ):
        Cfg.parse(text)


def test_an_embedding_reads_one_state_of_so_many_choices():
    cfg = Cfg.parse("[embedding]\nvalues=9\nunits=3\n[flatten]\n[dense]\noutput=1")
    heads = {"q": Head((2,))}
    for leaf in (Leaf("int", (), num_values=9), Leaf("bool", (3,))):
        build(cfg, {"state": leaf}, heads)
    for fed in (
        {"state": Leaf("float", (4,))},
        {"state": Leaf("int", (), num_values=10)},
        {"a": Leaf("int", (), num_values=3), "b": Leaf("int", (), num_values=3)},
    ):
        with pytest.raises(
            SpecError, match="an embedding of 9 values, so it reads one state of at most as many"
        ):
            build(cfg, fed, heads)


def test_a_program_adds_initializers(tmp_path):
    from operant.keras.initializers import Constant, RandomNormal

    file = tmp_path / "own.cfg"
    lines = "[dense-0]\nunits=3\ninitializer=mine\n{}[dense-1]\noutput=1\ninitializer=halves\n"
    file.write_text(lines.format(""))
    with pytest.raises(SpecError, match="initializer must be one of 'glorot_normal'.*Received: .*'mine'"):
        ModelReader(file, 1, 2)
    try:
        ModelReader.initializers["mine"] = RandomNormal
        ModelReader.initializers["halves"] = lambda shape, dtype=None: np.full(shape, 0.5, dtype)
        first, again, other = (ModelReader(file, 1, 2, seed=seed).build_model() for seed in (1, 1, 2))
        assert np.std(first.get_weights()[0]) < 0.2, "RandomNormal's deviation is 0.05"
        np.testing.assert_array_equal(first.get_weights()[0], again.get_weights()[0])
        assert np.any(first.get_weights()[0] != other.get_weights()[0])
        np.testing.assert_array_equal(first.get_weights()[2], np.full((3, 1), 0.5))
        file.write_text(lines.format("gain=2\n"))
        with pytest.raises(SpecError, match="gain must be left out, as 'mine' takes none"):
            ModelReader(file, 1, 2).build_model()
        ModelReader.initializers["mine"] = lambda gain: Constant(gain)
        weights = ModelReader(file, 1, 2).build_model().get_weights()
        np.testing.assert_array_equal(weights[0], np.full((2, 3), 2.0))
    finally:
        for name in ("mine", "halves"):
            ModelReader.initializers.pop(name, None)
