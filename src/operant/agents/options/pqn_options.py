"""Options of PQN. Imports no JAX: help reads them."""

from __future__ import annotations

from typing import Any

from operant.agents.options.shared_options import (
    AgentConfig,
    EpsilonConfig,
    ModelConfig,
    changed,
    number,
    rollout_length,
)
from operant.spec import Scalar, option


class PQNConfig(EpsilonConfig, ModelConfig):
    """Options of PQN."""

    lr: Scalar = changed(AgentConfig, "lr", 0.00025)
    optimizer: Any = changed(
        AgentConfig,
        "optimizer",
        "radam",
        "Optimizer: a name (radam, adam, adamw, rmsprop, sgd, ...), a dict with 'type', a Keras optimizer or "
        "an optax transformation",
    )
    grad_norm: float | None = changed(AgentConfig, "grad_norm", 10.0)
    model: Any = changed(
        ModelConfig,
        "model",
        "auto",
        "Network: 'auto' (with layer normalisation), a list of widths (also with it) or of layers (which "
        "should normalise too), a Keras model, or the path to a model file",
    )
    n_steps: int = rollout_length(32)
    lam: Scalar = number(
        0.65,
        "λ of the returns (0: one-step targets; 1: the sum of all rewards of the block)",
        high=1.0,
        aliases=None,
    )
    mini_batches: int = option(4, "Minibatches into which a rollout is divided", low=1, search="categorical")
    epochs: int = option(2, "Passes over each rollout", low=1, search="categorical")

    def batch(self, actors: int) -> int:
        """Return the rows of a minibatch."""
        return self.n_steps * actors // self.mini_batches
