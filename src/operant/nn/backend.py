"""The door to Keras: nothing else in operant imports it, and this module only when asked.

Its backend is fixed for the life of the process by whoever loads it first.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import jax

from operant.errors import BackendError


def keras() -> Any:
    """Return Keras, loaded on JAX by the first call; BackendError: it is loaded on another backend."""
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "jax"
    module = importlib.import_module("keras")
    backend = module.backend.backend()
    if backend != "jax":
        raise BackendError(
            f"Keras must run on JAX, but this program has already loaded it on its {backend!r} backend, "
            "which cannot be "
            "changed afterwards. Set the environment variable KERAS_BACKEND=jax before Python starts, or put "
            "`import os; os.environ['KERAS_BACKEND'] = 'jax'` above the first `import keras`."
        )
    return module


@contextlib.contextmanager
def numpy_promotion() -> Iterator[None]:
    """Let arrays promote as in NumPy, which Keras relies on, even if the program has made JAX strict."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
