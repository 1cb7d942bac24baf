"""Operant's Keras layers and initialisers, registered so that a saved model loads in safe mode."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from operant.nn.backend import keras
from operant.nn.convolutions import convolve
from operant.ops import normalization
from operant.types import Array

_keras = keras()


@_keras.saving.register_keras_serializable("operant")
class Orthogonal(_keras.initializers.Orthogonal):  # type: ignore[name-defined]
    """Keras's orthogonal initialiser (Saxe et al. 2014), faster for tall kernels.

    The Q of a QR decomposition with positive diagonal of R is unique, so for a matrix at least twice as tall
    as wide (which is well conditioned) it is found by two Cholesky factorisations (CholeskyQR2, Yamamoto et
    al. 2015) instead of Householder reflections. The dense kernel after the convolutions of an Atari network,
    3136 x 512, takes a tenth of the time.
    """

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Any:
        """Return a kernel whose flattened columns (or rows) are orthogonal, of length `gain`."""
        rows, columns = math.prod(shape[:-1]), shape[-1]
        tall, wide = max(rows, columns), min(rows, columns)
        if tall < 2 * wide:
            return super().__call__(shape, dtype)
        q = _keras.random.normal((tall, wide), dtype="float32", seed=self.seed)
        for _ in range(2):
            r = jnp.linalg.cholesky(q.T @ q)
            q = jax.lax.linalg.triangular_solve(r, q, left_side=False, lower=True, transpose_a=True)
        return (self.gain * (q if rows >= columns else q.T)).reshape(shape).astype(dtype or q.dtype)


@_keras.saving.register_keras_serializable("operant")
class Conv2D(_keras.layers.Conv2D):  # type: ignore[name-defined]
    """Keras's convolution over images, which on CPU is computed by `operant.nn.convolutions.convolve`."""

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        """Convolve; forms that `convolve` does not know are left to Keras."""
        padded = self.padding == "same"
        known = (
            jax.default_backend() == "cpu"
            and self.data_format == "channels_last"
            and (self.groups, tuple(self.dilation_rate)) == (1, (1, 1))
            and (padded or all(n >= k for n, k in zip(inputs.shape[1:3], self.kernel_size, strict=True)))
        )
        if not known:
            return _keras.layers.Conv2D.convolution_op(self, inputs, kernel)
        weights, strides = jnp.asarray(kernel), tuple(self.strides)
        x = jnp.asarray(inputs).astype(weights.dtype)
        if padded:
            edges = jax.lax.padtype_to_pads(x.shape[1:3], weights.shape[:2], strides, "SAME")
            x = jnp.pad(x, ((0, 0), *edges, (0, 0)))
        return convolve(x, weights, strides)


def compute_fast(layer: Any) -> None:
    """Have a layer of the user's convolve as `Conv2D` does, if it is Keras's, or has its `convolution_op`."""
    plain = _keras.layers.Conv2D
    if isinstance(layer, plain) and type(layer).convolution_op is plain.convolution_op:
        layer.convolution_op = functools.partial(Conv2D.convolution_op, layer)


@_keras.saving.register_keras_serializable("operant")
class LearnedConstant(_keras.layers.Layer):  # type: ignore[name-defined]
    """A trainable array that does not depend on the input: `[B, ...]` to `[B, *shape]`."""

    def __init__(self, shape: Sequence[int], value: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shape = tuple(shape)
        self.value = value

    def build(self, input_shape: Any) -> None:
        """Make the array, filled with `value`."""
        initializer = _keras.initializers.Constant(self.value)
        self.constant = self.add_weight(shape=self.shape, initializer=initializer, name="constant")

    def call(self, inputs: Any) -> Any:
        """Repeat the array for each row of the batch."""
        batch = _keras.ops.shape(inputs)[0]
        return _keras.ops.broadcast_to(self.constant, (batch, *self.shape))

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the batch axis and the array's shape."""
        return (input_shape[0], *self.shape)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "shape": list(self.shape), "value": self.value}


@_keras.saving.register_keras_serializable("operant")
class Normalizer(_keras.layers.Layer):  # type: ignore[name-defined]
    """Standardises by running moments, which `operant.nn.Model.observe` updates, and clips to ±`clip`."""

    def __init__(self, clip: float = 10.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.clip = clip

    def build(self, input_shape: Any) -> None:
        """Make the moments, as of no rows."""
        empty = normalization.init(tuple(input_shape[1:]))
        self.moments = [
            self.add_weight(
                shape=x.shape, dtype=x.dtype.name, initializer="zeros", trainable=False, name=name
            )
            for name, x in empty._asdict().items()
        ]

    def call(self, inputs: Array) -> Array:
        """Return the standardised input."""
        moments = normalization.Moments(*(_keras.ops.convert_to_tensor(v) for v in self.moments))
        return normalization.normalise(moments, inputs, clip=self.clip)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the input's shape."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "clip": self.clip}
