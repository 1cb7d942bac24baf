"""Options of TRPO. Imports no JAX: help reads them."""

from __future__ import annotations

from operant.agents.options.shared_options import (
    ActorCriticConfig,
    AgentConfig,
    RolloutConfig,
    changed,
    number,
)
from operant.spec import Scalar, option


class TRPOConfig(RolloutConfig, ActorCriticConfig):
    """Options of TRPO."""

    lr: Scalar = changed(
        AgentConfig,
        "lr",
        0.0007,
        "Learning rate of the critic's optimizer (the actor's step follows from max-kl)",
    )
    entropy_coef: Scalar = changed(
        RolloutConfig,
        "entropy_coef",
        0.0,
        "Entropy coefficient of the actor's objective. Larger: more exploration",
    )
    grad_norm: float | None = changed(
        RolloutConfig,
        "grad_norm",
        0.5,
        "Global norm to which the critic's gradients are clipped (None: no clipping)",
    )
    lam: Scalar = changed(RolloutConfig, "lam", 1.0)
    n_steps: int = changed(RolloutConfig, "n_steps", 512)
    max_kl: Scalar = number(
        0.001,
        "KL divergence δ between the old policy and the new that a step aims at. Larger: bigger policy steps",
        unit="nats",
        low_open=True,
    )
    cg_iterations: int = option(10, "Iterations of conjugate gradient per update", low=1)
    cg_residual_tolerance: Scalar = number(
        1e-10, "Squared norm of the residual at which conjugate gradient stops early"
    )
    cg_damping: Scalar = number(
        0.001,
        "Number added to the diagonal of the Fisher matrix. Larger: more stable, closer to the plain "
        "gradient",
    )
    fvp_n_steps: int = option(
        5, "The Fisher matrix is estimated on every n-th row of a block", unit="rows", low=1, search="int"
    )
    actor_iterations: int = option(
        10,
        "Step lengths that the line search tries, each half the one before",
        low=1,
        search="int",
    )
    critic_iterations: int = option(
        3,
        "Iterations of the critic per update, each with several passes over the rollout",
        low=1,
        search="int",
    )
    ppo_epochs: int = option(
        4, "Passes over the block per critic iteration", low=1, search="categorical", aliases=None
    )
    mini_batches: int = option(
        4, "Number of mini-batches in each pass of the critic", low=1, search="categorical"
    )
    advantage_epsilon: Scalar = number(
        1e-08, "Value added to the standard deviation by which advantages are divided"
    )
    clip_value: bool = option(False, "Clip the change in value per update by clip-norm")
    clip_norm: Scalar = number(
        0.1,
        "With clip-value: clip range of the change in value per update",
        unit="reward",
        low_open=True,
        aliases=None,
        needs=("clip_value", True),
    )
