"""Convolutions as products: against Keras's own, with derivatives, and that no slow form is left in a gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from operant.nn import Head, build
from operant.nn.backend import keras, numpy_promotion
from operant.nn.convolutions import as_products, convolve, product
from operant.spaces import Leaf

SHAPES = [
    ((8, 8), (4, 4), (12, 20)),
    ((4, 4), (2, 2), (9, 9)),
    ((3, 2), (1, 2), (7, 8)),
    ((1, 1), (1, 1), (2, 3)),
]


def drawn(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


@pytest.mark.parametrize(("kernel", "strides", "image"), SHAPES)
def test_product_is_the_convolution(kernel, strides, image):
    x, k = drawn(2, *image, 3), drawn(*kernel, 3, 5)
    np.testing.assert_allclose(product(x, k, strides), convolve(x, k, strides), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(("kernel", "strides", "image"), SHAPES)
@pytest.mark.slow
def test_values_and_gradients_are_those_of_keras(kernel, strides, image, padding):
    x, k = drawn(2, *image, 3), drawn(*kernel, 3, 5)

    def loss(x, k):
        return jnp.sum(jnp.sin(keras().ops.conv(x, k, strides, padding, "channels_last")))

    with numpy_promotion():
        expected = jax.value_and_grad(loss, argnums=(0, 1))(x, k)
        with as_products():
            found = jax.value_and_grad(loss, argnums=(0, 1))(x, k)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), found, expected)


def plain(x, k, strides):
    return jax.lax.conv_general_dilated(x, k, strides, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def test_forward_mode_over_reverse_mode():
    x, k = drawn(2, 8, 8, 3), drawn(4, 4, 3, 5)

    def twice(f):
        gradient = jax.grad(lambda k: jnp.sum(f(x, k, (2, 2)) ** 3))
        return jax.jvp(gradient, (k,), (jnp.ones_like(k),))[1]

    np.testing.assert_allclose(twice(convolve), twice(plain), rtol=1e-3)


def count(f, *arguments):
    return str(jax.make_jaxpr(f)(*arguments)).count("conv_general_dilated[")


def test_gradients_of_a_model_hold_no_convolutions_but_the_forward_ones():
    model = build(
        "auto", {"state": Leaf("float", (84, 84, 4), None, 0, 255, "uint8", 4)}, {"value": Head(())}
    )
    variables = jax.eval_shape(model.init, jax.random.key(0))
    screen = jax.ShapeDtypeStruct((2, 84, 84, 4), jnp.uint8)

    def loss(params, state, x):
        return model.apply({"params": params, "state": state}, {"state": x})[0]["value"].sum()

    assert count(jax.grad(loss), variables["params"], variables["state"], screen) == 3


def test_control_the_gradient_of_a_plain_convolution_is_one():
    def loss(x, k):
        return plain(x, k, (1, 1)).sum()

    assert count(jax.grad(loss, argnums=(0, 1)), drawn(1, 4, 4, 1), drawn(2, 2, 1, 1)) >= 2


def test_other_forms_are_left_to_keras():
    with numpy_promotion(), as_products():
        dilated = keras().ops.conv(drawn(1, 9, 9, 2), drawn(3, 3, 2, 4), 1, "valid", "channels_last", 2)
        grouped = keras().ops.conv(drawn(1, 9, 9, 4), drawn(3, 3, 2, 4), 1, "valid", "channels_last")
        series = keras().ops.conv(drawn(1, 9, 2), drawn(3, 2, 4), 1, "valid", "channels_last")
    assert (dilated.shape, grouped.shape, series.shape) == ((1, 5, 5, 4), (1, 7, 7, 4), (1, 7, 4))
