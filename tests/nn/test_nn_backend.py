"""Keras loads late, and only on JAX."""

import os
import subprocess
import sys

import pytest


def run(code, backend=None):
    env = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    if backend:
        env["KERAS_BACKEND"] = backend
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)


def test_importing_loads_no_keras_and_asking_loads_it_on_jax():
    code = (
        "import sys, operant.nn; print('keras' in sys.modules)\n"
        "from operant.nn.backend import keras; print(keras().backend.backend())"
    )
    # a backend in the environment that no one has loaded yet does not matter
    result = run(code, backend="numpy")
    assert result.stdout.split() == ["False", "jax"], result.stderr


@pytest.mark.slow
def test_keras_on_another_backend_is_refused():
    code = "import keras\nfrom operant.nn.backend import keras as door\ndoor()"
    result = run(code, backend="numpy")
    assert "BackendError: Keras must run on JAX" in result.stderr
    assert "'numpy' backend" in result.stderr
    assert "KERAS_BACKEND=jax" in result.stderr


LATE = """
import sys
from operant.nn.backend import _LateFinder, keras
keras().Sequential([keras().layers.Dense(2)]).build((None, 3))
assert not {"pandas", "matplotlib", "scipy.sparse.linalg"} & set(sys.modules)
assert not any(isinstance(finder, _LateFinder) for finder in sys.meta_path)
import numpy as np
import pandas as pd
model = keras().Sequential([keras().layers.Dense(1)])
model.compile(loss="mse")
model.fit(pd.DataFrame({"x": [1.0, 2.0]}), pd.Series([1.0, 2.0]), verbose=0)
assert callable(keras().visualization.plot_image_gallery)
import jax.experimental.sparse.linalg
assert callable(jax.experimental.sparse.linalg.spsolve)
"""


@pytest.mark.slow
def test_parts_of_keras_that_no_agent_uses_load_when_they_are_used():
    pytest.importorskip("pandas", reason="Keras takes tables where pandas is installed")
    assert run(LATE).stderr == ""
