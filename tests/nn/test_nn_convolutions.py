"""Convolutions with gradients of their own: against Keras's and XLA's, all derivatives, and that no slow
form is left in a gradient."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from operant.nn import Head, build, convolutions
from operant.nn.backend import keras, numpy_promotion
from operant.nn.convolutions import convolve
from operant.spec.spaces import Leaf

SHAPES = [
    ((8, 8), (4, 4), (12, 20)),
    ((4, 4), (2, 2), (9, 9)),
    ((3, 2), (1, 2), (7, 8)),
    ((3, 3), (2, 2), (11, 10)),
    ((2, 3), (3, 2), (9, 8)),
    ((1, 1), (1, 1), (2, 3)),
]


def drawn(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(("kernel", "strides", "image"), SHAPES)
@pytest.mark.slow
def test_values_and_gradients_are_those_of_keras(kernel, strides, image, padding):
    x, k = drawn(2, *image, 3), drawn(*kernel, 3, 5)
    from operant.nn.keras_layers import Conv2D

    def loss(layer):
        return lambda x, k: jnp.sum(jnp.sin(layer.convolution_op(x, k)))

    with numpy_promotion():
        found, expected = (
            jax.value_and_grad(loss(cls(5, kernel, strides, padding)), argnums=(0, 1))(x, k)
            for cls in (Conv2D, keras().layers.Conv2D)
        )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), found, expected)


def plain(x, k, strides):
    return jax.lax.conv_general_dilated(x, k, strides, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


ORDERS = {
    "forward": lambda f, x, v: jax.jvp(f, x, v)[1],
    "reverse": lambda f, x, v: jax.grad(f, argnums=(0, 1))(*x),
    "forward over reverse": lambda f, x, v: jax.jvp(jax.grad(f, argnums=(0, 1)), x, v)[1],
    "reverse over reverse": lambda f, x, v: jax.grad(
        lambda *x: jax.tree.reduce(jnp.add, jax.tree.map(jnp.vdot, jax.grad(f, argnums=(0, 1))(*x), v)),
        argnums=(0, 1),
    )(*x),
    "reverse over forward": lambda f, x, v: jax.grad(lambda *x: jax.jvp(f, x, v)[1], argnums=(0, 1))(*x),
    "forward over reverse over reverse": lambda f, x, v: jax.jvp(
        lambda *x: ORDERS["reverse over reverse"](f, x, v), x, v
    )[1],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_derivatives_of_any_order(order):
    x, v = ((drawn(2, 7, 8, 3), drawn(*k, 3, 2, 5)[:, :, :, 0] / 4) for k in ((3, 4), (3, 4)))

    def cubed(convolution):
        return order(lambda x, k: jnp.sum(convolution(x, k, (2, 2)) ** 3), x, v)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * float(jnp.abs(b).max())),
        cubed(convolve),
        cubed(plain),
    )


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, 4)])
def test_gradients_of_many_at_once(axes):
    x, k = ((2, 6, 6, 3), (3, 3, 3, 5))
    x, k = (
        drawn(*s) if axis is None else jnp.moveaxis(drawn(3, *s), 0, axis)
        for s, axis in zip((x, k), axes, strict=True)
    )

    def gradients(convolution):
        gradient = jax.grad(lambda x, k: jnp.sum(jnp.sin(convolution(x, k, (1, 1)))), argnums=(0, 1))
        return jax.vmap(gradient, in_axes=axes)(x, k)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), gradients(convolve), gradients(plain)
    )


@pytest.mark.parametrize("images", [1, 4, 7, 8])
def test_a_gradient_in_parts_is_that_of_the_whole(images, monkeypatch):
    monkeypatch.setattr(convolutions, "PART", 4 * 6 * 5 * 3 * 5)  # bytes of five images: parts of four
    x, k = drawn(images, 6, 5, 3), drawn(2, 2, 3, 4)

    def gradient(convolution):
        return jax.grad(lambda k: jnp.sum(convolution(x, k, (2, 1)) ** 2))(k)

    found, expected = gradient(convolve), gradient(plain)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def forms(f, *arguments):
    """Return the order of axes of each convolution, and whether it has holes, which no fast kernel takes."""
    text = jax.jit(f).lower(*arguments).as_text()
    found = [line for line in text.splitlines() if "stablehlo.convolution(" in line]
    return [
        (re.search(r"dim_numbers = (.*?), window", line).group(1), "dilate = [2" in line) for line in found
    ]


FAST = ("[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]", False)


def test_gradients_of_a_model_hold_convolutions_of_the_fast_form_alone():
    model = build(
        "auto", {"state": Leaf("float", (84, 84, 4), None, 0, 255, "uint8", 4)}, {"value": Head(())}
    )
    variables = jax.eval_shape(model.init, jax.random.key(0))
    screen = jax.ShapeDtypeStruct((2, 84, 84, 4), jnp.uint8)

    def loss(params, state, x):
        return model.apply({"params": params, "state": state}, {"state": x})[0]["value"].sum()

    # Three forward, three for kernels, two for images: those that come in need no gradient.
    assert forms(jax.grad(loss), variables["params"], variables["state"], screen) == [FAST] * 8


def test_control_gradients_of_a_plain_convolution_are_of_others():
    def loss(x, k):
        return (plain(x, k, (2, 2)) ** 2).sum()

    found = forms(jax.grad(loss, argnums=(0, 1)), drawn(1, 6, 6, 1), drawn(2, 2, 1, 1))
    assert len(found) == 3 and found.count(FAST) == 1


def test_other_forms_are_left_to_keras():
    from operant.nn.keras_layers import Conv2D

    with numpy_promotion():
        dilated = Conv2D(4, 3, dilation_rate=2)(drawn(1, 9, 9, 2))
        grouped = Conv2D(4, 3, groups=2)(drawn(1, 9, 9, 4))
        first = Conv2D(4, 3, data_format="channels_first").compute_output_shape((1, 2, 9, 9))
    assert (dilated.shape, grouped.shape, first) == ((1, 5, 5, 4), (1, 7, 7, 4), (1, 4, 7, 7))


def test_layers_of_a_given_model_convolve_in_the_fast_form():
    k = keras()

    class Residual(k.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.convolution = k.layers.Conv2D(3, 3, padding="same")

        def call(self, x):
            return x + self.convolution(x)

    class Doubled(k.layers.Conv2D):
        def convolution_op(self, inputs, kernel):
            return 2 * super().convolution_op(inputs, kernel)

    def given(last):
        return k.Sequential([Residual(), last, k.layers.Flatten(), k.layers.Dense(1)])

    def found(network):
        leaf = Leaf("float", (8, 8, 3), None, 0, 255, "uint8")
        model = build(network, {"state": leaf}, {"value": Head((1,))})
        variables = jax.eval_shape(model.init, jax.random.key(0))
        screen = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.uint8)

        def loss(params, state, x):
            return model.apply({"params": params, "state": state}, {"state": x})[0]["value"].sum()

        return forms(jax.grad(loss), variables["params"], variables["state"], screen)

    network = given(k.layers.Conv2D(4, 3, strides=2))
    saved = network.layers[1].get_config()
    assert found(network) == [FAST] * 5  # two forward, two for kernels, one for the images between
    assert network.layers[1].get_config() == saved and type(network.layers[1]) is k.layers.Conv2D
    assert found(given(Doubled(4, 3))).count(FAST) == 3  # its own method stays: only forward it is fast
