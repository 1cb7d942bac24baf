"""Operant's classes for Keras, registered so that a saved model loads in safe mode.

Layers, an initialiser, and the class of the models that `operant.nn.cfg` makes. Importing this module loads
Keras.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from operant import checkpoint
from operant.checkpoint.arrays import fitted
from operant.errors import CheckpointError, reading
from operant.nn.backend import keras, numpy_promotion
from operant.nn.convolutions import convolve
from operant.nn.weights import named_variables
from operant.ops import normalization
from operant.types import Array

_keras = keras()
WEIGHT_FILES = (".weights.h5", ".weights.json", ".keras", ".h5", ".hdf5")
"""Endings of the names of weight files that Keras reads."""


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


class LoadStatus:
    """What `WeightsModel.load_weights` returns."""

    def expect_partial(self) -> LoadStatus:
        """Do nothing: a file is either read in full or refused. For programs written for TensorFlow."""
        return self


@_keras.saving.register_keras_serializable("operant")
class WeightsModel(_keras.Model):  # type: ignore[name-defined]
    """A functional Keras model that also loads the files of a run's `checkpoints`, which are folders."""

    def load_weights(self, filepath: str | Path, **kwargs: Any) -> LoadStatus:
        """Load weights from a run's `checkpoints`, or from a file of Keras's own (`.weights.h5`).

        Raises:
            CheckpointError: there is no such file, or it is of another kind or network, or damaged.
        """
        if not checkpoint.is_checkpoint(filepath):
            _expect_file(filepath)
            before = self.get_weights()
            try:
                with reading(f"The weights {str(filepath)!r}"):
                    super().load_weights(filepath, **kwargs)
                    for x in self.get_weights():
                        fitted(x, x.shape, x.dtype)
            except CheckpointError:
                self.set_weights(before)
                raise
            return LoadStatus()
        leaves, _ = checkpoint.load(filepath)
        variables = {f"model/{name}": variable for name, variable in named_variables(self)}
        values = {path.split("'")[-2]: np.asarray(x) for path, x in leaves.items()}
        # A learned standard deviation is kept beside the network: it belongs to the algorithm, which alone
        # knows its use.
        beside = {
            x for x in values.keys() - variables.keys() if x.startswith("head.") and x.endswith("/constant")
        }
        values = {name: x for name, x in values.items() if name not in beside}
        wanted = {name: tuple(variable.shape) for name, variable in variables.items()}
        shapes = {name: x.shape for name, x in values.items()}
        if shapes != wanted and any(
            name.startswith("normalizer.") for name in values.keys() - variables.keys()
        ):
            raise CheckpointError(
                f"The weights {str(filepath)!r} come with the observations' means and deviations "
                "(normalize_observations), for which this model has no place: it would see other numbers "
                "than in training. Give them to the algorithm's class: normalize_observations=True, "
                f"weights=[{str(filepath)!r}]."
            )
        if shapes != wanted:
            raise CheckpointError(
                f"The weights {str(filepath)!r} are of another network. Here: {_listed(wanted)}. There: "
                f"{_listed(shapes)}. "
                "Train with the same .cfg file: --model, or the class of the algorithm with this model."
            )
        with reading(f"The weights {str(filepath)!r}"):
            values = {name: fitted(x, x.shape, variables[name].dtype) for name, x in values.items()}
        with numpy_promotion():
            for name, variable in variables.items():
                variable.assign(values[name])
        return LoadStatus()


def _expect_file(path: str | Path) -> None:
    if not Path(path).exists():
        raise CheckpointError(f"The weights {str(path)!r} do not exist.")
    if not str(path).endswith(WEIGHT_FILES):
        raise CheckpointError(
            "The weights must be what a run's checkpoints are (a folder with manifest.json), or a file that "
            f"ends with {', '.join(WEIGHT_FILES)}. Received: {str(path)!r}."
        )


def _listed(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())
