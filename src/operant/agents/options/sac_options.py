"""Options of SAC. Imports no JAX: help reads them."""

from __future__ import annotations

from operant.agents.options.shared_options import ContinuousConfig
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
    temperature: Scalar = option(
        1.0,
        "Entropy temperature α: its initial value if it is learned, else its value",
        low=0.0,
        low_open=True,
        search="log_uniform",
        traced=True,
        settled=True,
    )
    temperature_lr: Scalar | None = option(
        None,
        "Learning rate of the temperature (default: lr)",
        low=0.0,
        search="log_uniform",
        traced=True,
        needs=("learn_temperature", True),
    )
