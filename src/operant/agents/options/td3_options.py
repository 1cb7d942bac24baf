"""Options of TD3. Imports no JAX: help reads them."""

from __future__ import annotations

from operant.agents.options.shared_options import DeterministicConfig, number
from operant.spec import Scalar, option


class TD3Config(DeterministicConfig):
    """Options of TD3."""

    noise_clip: Scalar = number(
        0.5, "Largest noise added to target actions", unit="half ranges of the action"
    )
    policy_delay: int = option(
        2,
        "Gradient steps of the critics for each of the actor and the targets",
        unit="gradient steps",
        low=1,
        search="categorical",
    )
    policy_noise_coef: Scalar = number(
        0.2, "Standard deviation of the noise added to target actions", unit="half ranges of the action"
    )
