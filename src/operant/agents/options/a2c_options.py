"""Options of A2C. Imports no JAX: help reads them."""

from __future__ import annotations

from operant.agents.options.shared_options import RolloutConfig, SharedModelConfig, changed
from operant.spec import Scalar, option


class A2CConfig(RolloutConfig, SharedModelConfig):
    """Options of A2C."""

    n_steps: int = changed(RolloutConfig, "n_steps", 5)
    lam: Scalar = changed(
        RolloutConfig, "lam", 1.0, "GAE-Lambda for advantage estimation (1: n-step returns)"
    )
    normalize_advantage: bool = option(False, "Standardise advantages in each block")
