"""Settings of JAX that operant runs best with. They only take effect before JAX's backend starts, and never override the user's.

Measured on CPU: a policy call with NumPy in and out takes 90 microseconds with asynchronous dispatch and 20 without.
Nothing is lost, since a driver waits for each call anyway.
"""

from __future__ import annotations

import os


def prepare() -> None:
    """Choose synchronous dispatch on CPU, unless the user chose; called before anything runs on JAX."""
    import jax

    if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
