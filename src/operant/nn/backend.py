"""The door to Keras: nothing else in operant imports it, and this module only when asked.

Its backend is fixed for the life of the process by whoever loads it first.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from operant.errors import BackendError, SpecError

PACKAGES = ("keras", "operant", "builtins")
"""Where the classes and functions of a configuration may be, unless the program has registered them."""


class _LateFinder(importlib.abc.MetaPathFinder):
    """Finds parts of Keras and JAX that no agent uses, such that they load when they are first used: with
    matplotlib, pandas and SciPy, which they import, they take half of Keras's time.
    """

    names = (
        "jax.experimental.sparse.linalg",
        "keras._tf_keras",
        "keras.src.trainers.data_adapters.array_slicing",
        "keras.src.visualization",
        "keras.visualization",
    )

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in self.names else None
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def keras() -> Any:
    """Return Keras, loaded on JAX by the first call; BackendError: it is loaded on another backend."""
    if "keras" in sys.modules:
        module = sys.modules["keras"]
    else:
        os.environ["KERAS_BACKEND"] = "jax"
        late = _LateFinder()
        sys.meta_path.insert(0, late)
        try:
            module = importlib.import_module("keras")
        finally:
            sys.meta_path.remove(late)
    backend = module.backend.backend()
    if backend != "jax":
        raise BackendError(
            f"Keras must run on JAX, but this program has already loaded it on its {backend!r} backend. Put "
            "`import operant` above the first `import keras`, or set KERAS_BACKEND=jax before Python starts."
        )
    return module


def refuse_modules(data: Any) -> None:
    """Refuse a configuration that names a module, at any depth: Keras imports those of some packages
    (``keras_hub``) by name, in safe mode too, and so would run a file of that name.

    Raises:
        SpecError: it names what is neither Keras's nor operant's, nor registered by the program.
    """
    registered = keras().saving.get_registered_object
    rest = [data]
    while rest:
        part = rest.pop()
        if isinstance(part, list | tuple):
            rest += part
        if not isinstance(part, Mapping):
            continue
        rest += part.values()
        kind, module = part.get("class_name"), part.get("module")
        own = module is None and part.get("registered_name") is None
        if kind is None or own or str(module).partition(".")[0] in PACKAGES:
            continue
        # The name by which Keras looks for it before it imports the module.
        name = part.get("config") if kind == "function" else part.get("registered_name", kind)
        if not isinstance(name, str) or registered(name) is None:
            raise unregistered(name if kind == "function" and isinstance(name, str) else kind)


def unregistered(name: object) -> SpecError:
    """Return the error of a class or function in a configuration that Keras does not know."""
    return SpecError(
        f"Keras does not know {name!r}. Put @keras.saving.register_keras_serializable() above its "
        "definition, and import the module that holds it."
    )


@contextlib.contextmanager
def numpy_promotion() -> Iterator[None]:
    """Let arrays promote as in NumPy, which Keras relies on, even if the program has made JAX strict."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
