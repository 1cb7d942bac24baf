"""Options of TRPO. Imports no JAX: help reads them."""

from __future__ import annotations

from operant.agents.options.shared_options import ActorCriticConfig, RolloutConfig
from operant.spec import Scalar, option


class TRPOConfig(RolloutConfig, ActorCriticConfig):
    """Options of TRPO."""

    lr: Scalar = option(
        0.0007,
        "Learning rate of the critic's optimizer (the actor's step follows from max-kl)",
        low=0.0,
        search="log_uniform",
        traced=True,
        aliases=("learning_rate",),
    )
    entropy_coef: Scalar = option(
        0.0,
        "Entropy coefficient of the actor's objective. Larger: more exploration",
        low=0.0,
        search="log_uniform",
        traced=True,
    )
    grad_norm: float | None = option(
        0.5,
        "Global norm to which the critic's gradients are clipped (None: no clipping)",
        low=0.0,
        low_open=True,
        search="log_uniform",
    )
    lam: Scalar = option(
        1.0, "GAE-Lambda for advantage estimation", low=0.0, high=1.0, search="log_uniform", traced=True
    )
    n_steps: int = option(
        512,
        "Transition steps",
        unit="environment steps per environment and update",
        low=1,
        search="categorical",
    )
    max_kl: Scalar = option(
        0.001,
        "KL divergence δ between the old policy and the new that a step aims at. Larger: bigger policy steps",
        unit="nats",
        low=0.0,
        low_open=True,
        search="log_uniform",
        traced=True,
    )
    cg_iterations: int = option(10, "Conjugate gradient iterations per train step", low=1)
    cg_residual_tolerance: Scalar = option(
        1e-10,
        "Squared norm of the residual at which conjugate gradient stops early",
        low=0.0,
        search="log_uniform",
        traced=True,
    )
    cg_damping: Scalar = option(
        0.001,
        "Number added to the diagonal of the Fisher matrix. Larger: more stable, closer to the plain "
        "gradient",
        low=0.0,
        search="log_uniform",
        traced=True,
    )
    fvp_n_steps: int = option(
        5,
        "The Fisher matrix is estimated on every n-th row of a block",
        unit="rows",
        low=1,
        search="int",
    )
    actor_iterations: int = option(
        10,
        "Actor optimization iterations per train step: step lengths tried by the line search, each half "
        "the one before",
        low=1,
        search="int",
    )
    critic_iterations: int = option(
        3,
        "Critic optimization iterations per train step, each with several passes over the block",
        low=1,
        search="int",
    )
    ppo_epochs: int = option(4, "Passes over the block per critic iteration", low=1, search="categorical")
    mini_batches: int = option(
        4, "Number of mini-batches in each pass of the critic", low=1, search="categorical"
    )
    advantage_epsilon: Scalar = option(
        1e-08,
        "Value added to the standard deviation by which advantages are divided",
        low=0.0,
        search="log_uniform",
        traced=True,
    )
    clip_value: bool = option(False, "Clip the change in value per update by clip-norm")
    clip_norm: Scalar = option(
        0.1,
        "With clip-value: clip range of the change in value per update",
        unit="reward",
        low=0.0,
        low_open=True,
        search="log_uniform",
        traced=True,
        needs=("clip_value", True),
    )
