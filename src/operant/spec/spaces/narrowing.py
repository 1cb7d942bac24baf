"""From the types of environments to those that are stored and that networks read: float32 and smaller."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from operant.spec.spaces.fields import NDArray

ROWS = 64
"""How many values of a component are looked at, and how many float32 must tell apart in their range."""


class StorageConverter:
    """Puts a component's numbers into the type in which they are stored; warns once if that loses them.

    A clock of 1.7e9 s in float64 is one number for two minutes in float32.
    """

    def __init__(self, shape: tuple[int, ...], storage: np.dtype[Any]) -> None:
        self.shape = shape
        self.storage = storage
        self.rows = 0
        self.low: NDArray = np.full(shape, np.inf)
        self.high: NDArray = np.full(shape, -np.inf)

    def __call__(self, array: NDArray, label: str) -> NDArray:
        """Return `[*batch, *shape]` in the stored type.

        What is too large for it becomes infinite, for the check of values to find.
        """
        if self.rows < ROWS and array.dtype.kind in "iuf" and array.dtype.itemsize > self.storage.itemsize:
            self._look(array, label)
        with np.errstate(over="ignore", invalid="ignore"):
            return array.astype(self.storage)

    def _look(self, array: NDArray, label: str) -> None:
        each = array.reshape(-1, *self.shape).astype(np.float64)
        self.low, self.high = np.minimum(self.low, each.min(0)), np.maximum(self.high, each.max(0))
        self.rows += len(each)
        if self.rows < ROWS:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            largest = np.maximum(np.abs(self.low), np.abs(self.high)).astype(self.storage)
            span = self.high - self.low
            if np.any((span > 0) & (span < ROWS * np.spacing(largest).astype(np.float64))):
                self._warn(label, f"changes too little for its size: {self.storage} does not tell it apart")

    def _warn(self, label: str, what: str) -> None:
        self.rows = ROWS
        text = f"The {label} {what}. Subtract an offset in the environment, or scale it there."
        warnings.warn(text, RuntimeWarning, stacklevel=4)
