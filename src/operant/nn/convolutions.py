"""Convolutions whose gradients are fast in loops, on CPU.

On CPU, XLA only brings convolutions outside of loops into the form that its fast kernels take. The gradients
of one inside a `scan`, where updates run, have another form and take a hundred times as long. Here they are
written in the fast form (benchmarks/results/convolutions.md). A GPU has its own library for both.
`operant.nn.keras_layers.Conv2D` is the layer that computes with them.

A convolution, its gradient for the images and that for the kernel are the derivatives of one number that is
linear in each of images x, kernel k and results y: the sum over y · convolve(x, k). So the derivatives of
each are the other two, and derivatives of any order, forward or backward, are composed of these three.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Float

from operant.types import Array

PART = 2**20
"""Bytes of images that the gradient for a kernel takes at a time: they stay in a core's own cache."""
AXES = ("NHWC", "HWIO", "NHWC")
"""Orders of axes that XLA's fast kernels take."""


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def convolve(
    x: Float[Array, "B H W C"], kernel: Float[Array, "h w C D"], strides: tuple[int, int]
) -> Float[Array, "B Y X D"]:
    """Convolve without padding.

    Few channels, or an odd number, become parts of the width: a convolution of one channel, with the same
    sums. XLA's library takes less than half the time for it where images are of three colours.
    """
    high, wide, channels, filters = kernel.shape
    if channels <= 4 or channels % 2:
        x = x.reshape(*x.shape[:2], x.shape[2] * channels, 1)
        kernel = kernel.reshape(high, wide * channels, 1, filters)
        strides = strides[0], strides[1] * channels
    return _convolution(x, kernel, strides=strides)


@convolve.defjvp
def _tangent(
    strides: tuple[int, int], primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    (x, kernel), (dx, dkernel) = primals, tangents
    change = LINEAR.bind(dx, kernel, strides=strides) + LINEAR.bind(x, dkernel, strides=strides)
    return convolve(x, kernel, strides), change


def _convolution(x: Array, kernel: Array, *, strides: Sequence[int], padding: Any = "VALID") -> Array:
    return jax.lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=AXES)


def _for_images(
    y: Float[Array, "B Y X D"],
    kernel: Float[Array, "h w C D"],
    *,
    strides: tuple[int, int],
    size: tuple[int, int],
) -> Float[Array, "B H W C"]:
    """Return the gradient for images of this size: the convolution of `y` with the flipped kernel."""
    tiles = _tiled(kernel, strides, _whole(kernel.shape[:2], strides), along=3)
    high, wide = tiles.shape[:2]
    turned = jax.lax.optimization_barrier(tiles[::-1, ::-1].swapaxes(2, 3))
    edges = ((high - 1, high - 1), (wide - 1, wide - 1))
    return _untiled(_convolution(y, turned, strides=(1, 1), padding=edges), strides, size, along=0)


def _for_kernel(
    x: Float[Array, "B H W C"], y: Float[Array, "B Y X D"], *, strides: tuple[int, int], size: tuple[int, int]
) -> Float[Array, "h w C D"]:
    """Return the gradient for a kernel of this size: `x` convolved with `y`, over images, not channels."""
    high, wide = _whole(size, strides)
    extent = [(n - 1) * s + k for n, s, k in zip(y.shape[1:3], strides, (high, wide), strict=True)]

    def part(x: Array, y: Array) -> Array:
        tiles = _tiled(x, strides, extent, along=0)
        images, kernel = jax.lax.optimization_barrier((tiles.transpose(3, 1, 2, 0), y.transpose(1, 2, 0, 3)))
        return _convolution(images, kernel, strides=(1, 1)).transpose(1, 2, 0, 3)

    image = math.prod(x.shape[1:]) * x.dtype.itemsize
    rows = max(1, min(len(x), 2 ** (max(1, PART // image).bit_length() - 1)))
    # Images of zeros fill up the last part: they add nothing.
    parts = jax.tree.map(
        lambda a: _resized(a, (-(-len(x) // rows) * rows,)).reshape(-1, rows, *a.shape[1:]), (x, y)
    )
    start = jnp.zeros(jax.eval_shape(part, *jax.tree.map(lambda a: a[0], parts)).shape, x.dtype)
    total, _ = jax.lax.scan(lambda total, xy: (total + part(*xy), None), start, parts)
    return _untiled(total, strides, size, along=3)


# A convolution with strides is one with stride 1 over tiles of the stride's size: an 8 x 8 kernel with stride
# 4 is a 2 x 2 kernel of 4 x 4 tiles, whose pixels are channels.


def _whole(size: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    high, wide = (-(-k // s) * s for k, s in zip(size, strides, strict=True))
    return high, wide


def _tiled(x: Array, strides: tuple[int, int], size: Sequence[int], along: int) -> Array:
    """Pad or crop `[H, W, C]`, mapped over `along`, to whole tiles; make channels of each tile's pixels."""

    def tiled(x: Array) -> Array:
        x = _resized(x, size)
        (s, t), (height, width, channels) = strides, x.shape
        x = x.reshape(height // s, s, width // t, t, channels).swapaxes(1, 2)
        return x.reshape(height // s, width // t, s * t * channels)

    return jax.vmap(tiled, in_axes=along, out_axes=along)(x)


def _untiled(x: Array, strides: tuple[int, int], size: Sequence[int], along: int) -> Array:
    def untiled(x: Array) -> Array:
        (s, t), (height, width, channels) = strides, x.shape
        x = x.reshape(height, width, s, t, channels // (s * t)).swapaxes(1, 2)
        return _resized(x.reshape(height * s, width * t, channels // (s * t)), size)

    return jax.vmap(untiled, in_axes=along, out_axes=along)(x)


def _resized(x: Array, size: Sequence[int]) -> Array:
    edges = [(0, wanted - here, 0) for wanted, here in zip(size, x.shape, strict=False)]
    return jax.lax.pad(x, jnp.zeros((), x.dtype), [*edges, *[(0, 0, 0)] * (x.ndim - len(edges))])


def _primitive(name: str, compute: Callable[..., Array]) -> Primitive:
    """Return a JAX primitive that is computed by this function; its derivatives are defined below."""
    primitive = Primitive(name)

    def shaped(*arguments: Any, **settings: Any) -> ShapedArray:
        shapes = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arguments)
        out = jax.eval_shape(functools.partial(compute, **settings), *shapes)
        return ShapedArray(out.shape, out.dtype)

    primitive.def_impl(compute)
    primitive.def_abstract_eval(shaped)
    mlir.register_lowering(primitive, mlir.lower_fun(compute, multiple_results=False))
    batching.primitive_batchers[primitive] = functools.partial(_mapped, primitive)
    return primitive


def _mapped(
    primitive: Primitive, arguments: Sequence[Array], axes: Sequence[Any], **settings: Any
) -> tuple[Array, int]:
    """Compute one after the other: XLA's fast kernels take no further axis."""
    many = [jnp.moveaxis(a, axis, 0) for a, axis in zip(arguments, axes, strict=True) if axis is not None]

    def one(rows: list[Array]) -> Array:
        left = iter(rows)
        both = (a if axis is None else next(left) for a, axis in zip(arguments, axes, strict=True))
        return primitive.bind(*both, **settings)

    return jax.lax.map(one, many), 0


LINEAR = _primitive("convolve", _convolution)
FOR_IMAGES = _primitive("convolve_for_images", _for_images)
FOR_KERNEL = _primitive("convolve_for_kernel", _for_kernel)


def _size(of: Any, axis: int) -> tuple[int, int]:
    high, wide = of.aval.shape[axis : axis + 2]
    return high, wide


ad.defbilinear(
    LINEAR,
    lambda y, x, kernel, strides: FOR_IMAGES.bind(y, kernel, strides=strides, size=_size(x, 1)),
    lambda y, x, kernel, strides: FOR_KERNEL.bind(x, y, strides=strides, size=_size(kernel, 0)),
)
ad.defbilinear(
    FOR_IMAGES,
    lambda x, y, kernel, strides, size: LINEAR.bind(x, kernel, strides=strides),
    lambda x, y, kernel, strides, size: FOR_KERNEL.bind(x, y, strides=strides, size=_size(kernel, 0)),
)
ad.defbilinear(
    FOR_KERNEL,
    lambda kernel, x, y, strides, size: FOR_IMAGES.bind(y, kernel, strides=strides, size=_size(x, 1)),
    lambda kernel, x, y, strides, size: LINEAR.bind(x, kernel, strides=strides),
)
