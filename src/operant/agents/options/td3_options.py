"""Options of TD3. Imports no JAX: help reads them."""

from __future__ import annotations

from operant.agents.options.shared_options import DeterministicConfig
from operant.spec import Scalar, option


class TD3Config(DeterministicConfig):
    """Options of TD3."""

    noise_clip: Scalar = option(
        0.5,
        "Target noise clipping value",
        unit="half ranges of the action",
        low=0.0,
        search="log_uniform",
        traced=True,
    )
    policy_delay: int = option(
        2,
        "Delay after which, actor weights and target models will be updated",
        unit="gradient steps",
        low=1,
        search="categorical",
    )
    policy_noise_coef: Scalar = option(
        0.2,
        "Coefficient multiplied by noise added to target actions",
        unit="half ranges of the action",
        low=0.0,
        search="log_uniform",
        traced=True,
    )
