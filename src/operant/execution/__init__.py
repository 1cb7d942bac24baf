"""Drivers, which move data between an agent and environments, the training loop over them, and the `Runner`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from operant.execution.runner.runner import Runner as Runner

__all__ = ["Runner"]


def __getattr__(name: str) -> Any:
    """Load the `Runner` when it is first used: this package's options are read for help, without JAX."""
    if name == "Runner":
        from operant.execution.runner.runner import Runner

        return Runner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
