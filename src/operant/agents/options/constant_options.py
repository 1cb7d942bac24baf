"""Options of Constant. Imports no JAX: help reads them."""

from __future__ import annotations

from typing import Any

from operant.spec import Config, option


class ConstantConfig(Config):
    """Which actions."""

    action_values: Any = option(
        None,
        "Values by name of the action, nested names as nested dicts; the value of a single action may be "
        "given alone (default: the middle of the bounds, the first choice, False)",
    )
