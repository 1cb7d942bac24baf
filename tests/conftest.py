"""Strict settings for every test: what passes silently elsewhere is an error here."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)


@pytest.fixture
def key():
    return jax.random.key(0)
