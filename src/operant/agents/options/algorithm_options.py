"""The options of each algorithm, as `<Class>Config`; those of the modular agent stand beside this file.

Imports no JAX: help reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from operant.agents.options.shared_options import (
    ActorCriticConfig,
    AgentConfig,
    ContinuousConfig,
    DeterministicConfig,
    EpsilonConfig,
    ModelConfig,
    ReplayConfig,
    RolloutConfig,
    SequenceConfig,
    SharedModelConfig,
    changed,
    number,
    rollout_length,
    update_interval,
)
from operant.spec import Config, Scalar, Schedule, option


class A2CConfig(RolloutConfig, SharedModelConfig):
    """Options of A2C."""

    n_steps: int = changed(RolloutConfig, "n_steps", 5)
    lam: Scalar = changed(
        RolloutConfig, "lam", 1.0, "GAE-Lambda for advantage estimation (1: n-step returns)"
    )
    normalize_advantage: bool = option(False, "Standardise advantages in each block")


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
        low_open=True,
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


class DQNConfig(EpsilonConfig, SequenceConfig, ModelConfig):
    """Options of DQN."""

    double: bool = option(
        False, "Double DQN: the online network chooses the next action, the target network values it"
    )
    target_sync_steps: int = option(
        1000, "Steps between syncs of the target network", unit="environment steps", low=1, search="int"
    )
    tau: Scalar = number(
        1.0, "Weight of the online network when the target is synced (1: copy)", low_open=True, high=1.0
    )
    train_every: int = update_interval()
    gradient_steps: int = option(1, "Gradient steps per update", low=1, search="int")
    n_steps: int = option(
        1, "Number of steps in the n-step return", low=1, search="categorical", aliases=None
    )
    huber: float | None = option(
        None,
        "TD error beyond which the loss is linear (default: squared everywhere)",
        low=0.0,
        low_open=True,
        search="log_uniform",
    )
    dueling: bool = option(
        False, "Separate streams for the value of the state and the advantages of the actions"
    )
    prioritized: bool = option(False, "Replay transitions in proportion to their last TD error")
    priority_alpha: Scalar = number(
        0.6,
        "With prioritized: exponent of the priorities (0: uniform)",
        high=1.0,
        needs=("prioritized", True),
    )
    priority_beta: Scalar = number(
        0.4,
        "With prioritized: exponent of the importance weights (1: full correction)",
        high=1.0,
        needs=("prioritized", True),
    )

    distributional: Literal["none", "c51", "quantile"] = option(
        "none",
        "Learn the distribution of the return instead of its mean (none): c51 (fixed atoms) or quantile",
        choices=("none", "c51", "quantile"),
    )
    atoms: int = option(
        51,
        "With distributional: number of atoms (c51) or quantiles (quantile)",
        low=2,
        search="categorical",
        needs=("distributional", ("c51", "quantile")),
    )
    value_min: Scalar = option(
        -10.0,
        "With c51: return at the first atom",
        unit="reward",
        traced=True,
        needs=("distributional", "c51"),
        settled=True,
    )
    value_max: Scalar = option(
        10.0,
        "With c51: return at the last atom",
        unit="reward",
        traced=True,
        needs=("distributional", "c51"),
        settled=True,
    )
    noisy: bool = option(
        False, "Explore by learned noise on the weights of dense layers, instead of by epsilon"
    )
    noisy_std: Scalar = number(
        0.5,
        "With noisy: initial standard deviation of the noise",
        unit="1 / √inputs of a layer",
        needs=("noisy", True),
        settled=True,
    )

    @property
    def decay_begins(self) -> int | None:
        """After the random steps."""
        return None if self.noisy else self.initial_size

    def check(self) -> Iterator[str]:
        """Refuse atoms without distance between them, and an unused loss, besides the common checks."""
        yield from super().check()
        low, high = self.value_min, self.value_max
        highest = low.range()[1] if isinstance(low, Schedule) else low
        if highest >= (high.range()[0] if isinstance(high, Schedule) else high):
            yield f"value_min must be below value_max. Received: value_min={low}, value_max={high}."
        if self.distributional == "c51" and self.huber is not None:
            yield (
                "huber bounds an error, and distributional='c51' learns by cross-entropy. "
                f"Received: huber={self.huber}. Leave it out, or use distributional='quantile'."
            )


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


class DDPGConfig(DeterministicConfig):
    """Options of DDPG."""


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


class RandomConfig(Config):
    """There is nothing to choose."""


class ConstantConfig(Config):
    """Which actions."""

    action_values: Any = option(
        None,
        "Values by name of the action, nested names as nested dicts; the value of a single action may be "
        "given alone (default: the middle of the bounds, the first choice, False)",
    )
