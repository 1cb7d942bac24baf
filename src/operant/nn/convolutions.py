"""Convolutions whose gradients are matrix products, on CPU.

XLA on CPU brings only the convolutions outside of loops into the form that its fast kernels take. The gradients of one inside a
`scan`, where updates run, have another form and take a hundred times as long. As products of patches they take about as
long as the fast kernels do (benchmarks/results/convolutions.md). A GPU has its own library for both.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from operant.types import Array

AXES = ("NHWC", "HWIO", "NHWC")


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def convolve(
    x: Float[Array, "B H W C"], kernel: Float[Array, "h w C D"], strides: tuple[int, int]
) -> Float[Array, "B Y X D"]:
    """Convolve without padding; derivatives of any order are those of `product`."""
    return jax.lax.conv_general_dilated(x, kernel, strides, "VALID", dimension_numbers=AXES)


@convolve.defjvp
def _tangent(
    strides: tuple[int, int], primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    (x, kernel), (dx, dkernel) = primals, tangents
    return convolve(x, kernel, strides), product(dx, kernel, strides) + product(x, dkernel, strides)


def product(
    x: Float[Array, "B H W C"], kernel: Float[Array, "h w C D"], strides: tuple[int, int]
) -> Float[Array, "B Y X D"]:
    """Convolve without padding, as one product of all patches with the kernel.

    Where strides divide kernel and image, tiles of a stride become channels first: an 8 x 8 kernel with stride 4 is a 2 x 2
    kernel on tiles, and patches are put together from 4 copies instead of 64.
    """
    (batch, height, width, channels), (high, wide, _, out) = x.shape, kernel.shape
    s, t = strides
    if (s, t) != (1, 1) and not (high % s or height % s or wide % t or width % t):
        x = x.reshape(batch, height // s, s, width // t, t, channels).swapaxes(2, 3)
        kernel = kernel.reshape(high // s, s, wide // t, t, channels, out).swapaxes(1, 2)
        x = x.reshape(batch, height // s, width // t, s * t * channels)
        kernel = kernel.reshape(high // s, wide // t, s * t * channels, out)
        return product(x, kernel, (1, 1))
    rows, columns = (height - high) // s + 1, (width - wide) // t + 1
    x = jax.lax.optimization_barrier(x)  # else every copy computes again what x is made of
    copies = [
        x[:, i : i + (rows - 1) * s + 1 : s, j : j + (columns - 1) * t + 1 : t]
        for i in range(high)
        for j in range(wide)
    ]
    patches = jnp.stack(copies, axis=3)  # concatenated along the last axis they take XLA twice as long
    patches = patches.reshape(batch * rows * columns, -1)
    return (patches @ kernel.reshape(-1, out)).reshape(batch, rows, columns, out)


@contextlib.contextmanager
def as_products() -> Iterator[None]:
    """Have Keras's convolutions of images traced within use `convolve` on CPU."""
    nn, original = _keras()
    if jax.default_backend() != "cpu":
        yield
        return
    nn.conv = functools.partial(_conv, original)
    try:
        yield
    finally:
        nn.conv = original


@functools.cache
def _keras() -> tuple[Any, Callable[..., Any]]:
    """Return the module where Keras's layers look for `conv`, and what they find."""
    nn = importlib.import_module("keras.src.backend").nn
    return nn, nn.conv


def _conv(
    original: Callable[..., Any],
    inputs: Any,
    kernel: Any,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Any:
    """Do what Keras's `conv` does."""
    steps = (strides, strides) if isinstance(strides, int) else tuple(strides)
    plain = (
        inputs.ndim == 4
        and padding in ("valid", "same")
        and data_format in (None, "channels_last")
        and dilation_rate in (1, (1, 1))
        and inputs.shape[-1] == kernel.shape[-2]
        and (padding == "same" or all(a >= b for a, b in zip(inputs.shape[1:3], kernel.shape, strict=False)))
    )
    if not plain:
        return original(inputs, kernel, strides, padding, data_format, dilation_rate)
    x, weights = jnp.asarray(inputs), jnp.asarray(kernel)
    x = x.astype(weights.dtype)
    if padding == "same":
        pads = jax.lax.padtype_to_pads(x.shape[1:3], weights.shape[:2], steps, "SAME")
        x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    return convolve(x, weights, steps)
