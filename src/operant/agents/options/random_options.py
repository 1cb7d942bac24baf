"""Options of Random. Imports no JAX: help reads them."""

from __future__ import annotations

from operant.agents.options.shared_options import NoLearningConfig


class RandomConfig(NoLearningConfig):
    """There is nothing to choose."""
