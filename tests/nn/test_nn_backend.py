"""Keras loads late, and only on JAX."""

import os
import subprocess
import sys


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


def test_keras_on_another_backend_is_refused():
    code = "import keras\nfrom operant.nn.backend import keras as door\ndoor()"
    result = run(code, backend="numpy")
    assert "BackendError: Keras must run on JAX" in result.stderr
    assert "'numpy' backend" in result.stderr
    assert "KERAS_BACKEND=jax" in result.stderr
