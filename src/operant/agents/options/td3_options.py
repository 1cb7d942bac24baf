"""Options of TD3. Imports no JAX: help reads them."""

from __future__ import annotations

from operant.agents.options.shared_options import DeterministicConfig, number
from operant.spec import Scalar, option


class TD3Config(DeterministicConfig):
    """Options of TD3."""

    noise_clip: Scalar = number(0.5, "Target noise clipping value", unit="half ranges of the action")
    policy_delay: int = option(
        2,
        "Delay after which, actor weights and target models will be updated",
        unit="gradient steps",
        low=1,
        search="categorical",
    )
    policy_noise_coef: Scalar = number(
        0.2, "Coefficient multiplied by noise added to target actions", unit="half ranges of the action"
    )
