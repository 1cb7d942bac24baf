"""The class of the Keras models that `operant.nn.cfg` makes. Importing this module loads Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from operant import checkpoint
from operant.checkpoint.arrays import fitted
from operant.errors import CheckpointError, reading
from operant.nn.backend import keras, numpy_promotion
from operant.nn.weights import named_variables

_keras = keras()
FILES = (".weights.h5", ".weights.json", ".keras", ".h5", ".hdf5")
"""Endings of the names of weight files that Keras reads."""


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
    if not str(path).endswith(FILES):
        raise CheckpointError(
            "The weights must be what a run's checkpoints are (a folder with manifest.json), or a file that "
            f"ends with {', '.join(FILES)}. Received: {str(path)!r}."
        )


def _listed(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())
