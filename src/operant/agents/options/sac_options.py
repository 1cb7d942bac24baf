"""Options of SAC. Imports no JAX: help reads them."""

from __future__ import annotations

from operant.agents.options.shared_options import ContinuousConfig, number
from operant.spec import Scalar, option


class SACConfig(ContinuousConfig):
    """Options of SAC."""

    learn_temperature: bool = option(
        True, "Learn the temperature so that the policy's entropy meets the target entropy"
    )
    target_entropy: float | None = option(
        None,
        "Target entropy (default: minus the number of action elements)",
        unit="nats",
        needs=("learn_temperature", True),
    )
    temperature: Scalar = number(
        1.0,
        "Entropy temperature α: its initial value if it is learned, else its value",
        low_open=True,
        settled=True,
    )
    temperature_lr: Scalar | None = number(
        None, "Learning rate of the temperature (default: lr)", needs=("learn_temperature", True)
    )
