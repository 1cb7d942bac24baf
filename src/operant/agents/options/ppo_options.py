"""Options of PPO. Imports no JAX: help reads them."""

from __future__ import annotations

from operant.agents.options.shared_options import RolloutConfig, SharedModelConfig, number
from operant.spec import Scalar, option


class PPOConfig(RolloutConfig, SharedModelConfig):
    """Options of PPO."""

    advantage_epsilon: Scalar = number(
        1e-08,
        "Value added to the standard deviation by which advantages are divided",
        needs=("normalize_advantage", True),
    )
    clip_norm: Scalar = number(
        0.1,
        "Clip range ε of the probability ratio (and of the change in value). Larger: bigger policy steps",
    )
    mini_batches: int = option(4, "Minibatches into which a rollout is divided", low=1, search="categorical")
    ppo_epochs: int = option(4, "Passes over each rollout", low=1, search="categorical")
    clip_value: bool = option(
        True,
        "Clip the change in value by clip-norm as well, in units of reward: with large returns, turn it off "
        "or give normalize-rewards",
    )
    normalize_advantage: bool = option(True, "Standardise advantages in each mini-batch")
    target_kl: Scalar | None = number(
        None,
        "KL divergence that the policy may reach in an update, whose gradient steps end at 1.5 times as "
        "much (None: no limit)",
        unit="nats",
        low_open=True,
    )

    def batch(self, actors: int) -> int:
        """Return the rows of a minibatch."""
        return self.n_steps * actors // self.mini_batches
