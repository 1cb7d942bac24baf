"""What gradient steps of the modular agent are given, for losses of plain arrays without networks."""

from __future__ import annotations

from operant.agents.modular_parts.gradient_steps import TrainingPass
from operant.agents.options.modular_options import ModularConfig


class Plain(TrainingPass):
    """Parameters that are the same in training and in use."""

    def state(self, key):
        return {}

    def averaged(self, state, before, after, rows):
        return after

    def trained(self, params):
        return params


PLAIN = Plain({}, {}, lambda name, rows: {})


def plan(**options):
    return ModularConfig.from_dict(options)
