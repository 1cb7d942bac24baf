"""Options of DDPG. Imports no JAX: help reads them."""

from __future__ import annotations

from operant.agents.options.shared_options import DeterministicConfig


class DDPGConfig(DeterministicConfig):
    """Options of DDPG."""
