"""Options of Random. Imports no JAX: help reads them."""

from __future__ import annotations

from operant.agents.options.shared_options import UntrainedConfig


class RandomConfig(UntrainedConfig):
    """There is nothing to choose."""
