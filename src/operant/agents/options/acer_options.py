"""Options of ACER. Imports no JAX: help reads them."""

from __future__ import annotations

from typing import ClassVar

from operant.agents.options.shared_options import (
    AgentConfig,
    ModelConfig,
    ReplayConfig,
    changed,
    number,
    rollout_length,
)
from operant.spec import Scalar, option


class ACERConfig(ReplayConfig, ModelConfig):
    """Options of ACER."""

    waiting: ClassVar[str] = "Nothing is replayed: replay begins after {:,} steps"

    delta: Scalar = number(
        1,
        "Size δ of the trust region: how far a step may move the policy from its average. Larger: bigger "
        "steps",
        needs=("trust_region", True),
    )
    ema_alpha: Scalar = number(
        0.99,
        "Decay of the moving average of the network, around which the trust region lies",
        high=1.0,
        needs=("trust_region", True),
    )
    entropy_coef: Scalar = number(0.01, "Weight of the entropy in the loss. Larger: more exploration")
    epsilon: Scalar = number(
        1e-06,
        "Added to divisors in gradient updates: to probabilities, and to the squared norm in the trust "
        "region",
        low_open=True,
    )
    grad_norm: float | None = changed(AgentConfig, "grad_norm", 10)
    importance_c: Scalar = number(
        10.0,
        "Bound of importance weights: larger ones are truncated to it, and the action values "
        "correct the bias",
        low_open=True,
    )
    n_steps: int = rollout_length(20)
    replay_ratio: Scalar = option(
        4,
        "Mean number of replay steps after each step on fresh experience (Poisson-distributed)",
        unit="gradient steps",
        low=0.0,
        high=64.0,
        search="categorical",
        traced=True,
    )
    trust_region: bool = option(True, "Bound the policy's steps by a trust region around its average")
    value_loss_coef: Scalar = number(0.5, "Weight of the value loss", aliases=None)
    buffer_initial_size: int | None = changed(
        ReplayConfig,
        "buffer_initial_size",
        None,
        "Environment steps before replay begins; learning from fresh "
        "experience starts at once (default: buffer-max-size)",
        aliases=None,
    )
    buffer_batch_size: int = changed(
        ReplayConfig,
        "buffer_batch_size",
        1,
        "Batch size: sequences of n-steps rows per environment in each replay step",
        unit="sequences per environment",
    )

    def batch(self, actors: int) -> int:
        """Return the rows of a block, fresh or replayed."""
        return self.n_steps * actors
