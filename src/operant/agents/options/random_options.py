"""Options of Random. Imports no JAX: help reads them."""

from __future__ import annotations

from operant.spec import Config


class RandomConfig(Config):
    """There is nothing to choose."""
