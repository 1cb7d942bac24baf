"""The devices of a run: one, or several that share the actors of JAX-native environments and their work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from operant.errors import value_error
from operant.ops.sharding import AXIS
from operant.types import Array, Tree

T = TypeVar("T", bound=Tree)


class Devices:
    """The first `n` of JAX's devices, those of all processes that run together (`spec.runtime.join`).

    The learning state is replicated on each of them, actors are divided among them, and XLA sums gradients
    over devices. A run computes the same numbers on any number of devices, up to the order of summation.

    Raises:
        SpecError: JAX has fewer, or several processes share a run and `n` is not all of their devices.
    """

    def __init__(self, n: int = 1) -> None:
        self.size = n
        self.processes = jax.process_count()
        self._mesh: Mesh | None = None
        if n == 1 and self.processes == 1:
            return
        devices = jax.devices()
        if len(devices) < n:
            raise value_error(
                "n_devices",
                f"at most {len(devices)}, the number of JAX's devices ({devices[0].platform})",
                n,
                "On CPU the variable XLA_FLAGS=--xla_force_host_platform_device_count=N makes N of them "
                "(with a GPU in the machine, beside JAX_PLATFORMS=cpu).",
            )
        if self.processes > 1 and len(devices) != n:
            raise value_error(
                "n_devices", f"{len(devices)}, all devices of the {self.processes} processes", n
            )
        self._mesh = Mesh(np.asarray(devices[:n]), (AXIS,))

    def divide(self, units: int, name: str) -> None:
        """Refuse units that cannot be divided evenly among the devices: a SpecError names the option."""
        if units % self.size:
            raise value_error(name, f"a multiple of n_devices={self.size}", units)

    def everywhere(self, tree: T) -> T:
        """Replicate arrays on each of the devices."""
        return self._put(tree, lambda x: PartitionSpec())

    def shared(self, tree: T, units: int) -> T:
        """Divide arrays whose first axis is that of the units among the devices; replicate the others."""
        return self._put(tree, lambda x: PartitionSpec(AXIS) if x.shape[:1] == (units,) else PartitionSpec())

    def gathered(self, tree: T) -> T:
        """Return the arrays so that this process can read them whole."""
        if self.processes == 1:
            return tree
        whole: T = jax.jit(lambda tree: tree, out_shardings=self._sharding(PartitionSpec()))(tree)
        return whole

    def agree(self, seconds: float, flag: bool) -> tuple[float, bool]:
        """Return what the first process says: all must decide alike, and no two clocks agree."""
        if self.processes == 1:
            return seconds, flag
        from jax.experimental import multihost_utils

        words = np.asarray([int(seconds), int(seconds % 1.0 * 1e6), flag], np.int32)
        whole, millionths, agreed = multihost_utils.broadcast_one_to_all(words)
        return float(whole) + float(millionths) / 1e6, bool(agreed)

    def mesh(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which programs for these devices are compiled."""
        return contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh)

    def jit(self, function: Callable[..., Any], arguments: tuple[Any, ...], state: int, donate: bool) -> Any:
        """Return a jitted function of two results more than `state`, to be compiled in `mesh`.

        Its first `state` results are those arguments' next values, placed on the same devices, and with
        `donate` in their memory.
        """
        given = range(state if donate else 0)
        if self._mesh is None:
            return jax.jit(function, donate_argnums=given)
        same = [jax.tree.map(lambda x: x.sharding, arguments[i]) for i in range(state)]
        everywhere = self._sharding(PartitionSpec())
        return jax.jit(function, donate_argnums=given, out_shardings=(*same, everywhere, everywhere))

    def _sharding(self, spec: PartitionSpec) -> NamedSharding:
        assert self._mesh is not None
        return NamedSharding(self._mesh, spec)

    def _put(self, tree: T, place: Callable[[Array], PartitionSpec]) -> T:
        if self._mesh is None:
            return tree

        def put(x: Array) -> Array:
            sharding = self._sharding(place(x))
            if self.processes == 1:
                return jax.device_put(x, sharding)
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                return jax.random.wrap_key_data(put(jax.random.key_data(x)), impl=jax.random.key_impl(x))
            # By way of the host: each process has the whole array, and gives its devices their parts.
            host = np.asarray(x)
            return jax.make_array_from_callback(host.shape, sharding, host.__getitem__)

        placed: T = jax.tree.map(put, tree)
        return placed
