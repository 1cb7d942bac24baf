"""Options of A2C. Imports no JAX: help reads them."""

from __future__ import annotations

from operant.agents.options.shared_options import RolloutConfig, SharedModelConfig
from operant.spec import Scalar, option


class A2CConfig(RolloutConfig, SharedModelConfig):
    """Options of A2C."""

    n_steps: int = option(
        5,
        "Transition steps",
        unit="environment steps per environment and update",
        low=1,
        search="categorical",
    )
    lam: Scalar = option(
        1.0,
        "GAE-Lambda for advantage estimation (1: n-step returns)",
        low=0.0,
        high=1.0,
        search="log_uniform",
        traced=True,
    )
    normalize_advantage: bool = option(False, "Standardise advantages in each block")
