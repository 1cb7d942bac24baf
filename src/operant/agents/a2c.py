"""Advantage actor-critic (A2C): the synchronous form of A3C.

Paper: Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning"
(https://arxiv.org/abs/1602.01783), algorithm S3 with one learner and all actors in step (Wu et al. 2017,
section 5, name it so).

    R_t = r_t + γ R_{t+1}, from R_T = V(s_T)                 (n-step returns: A_t = R_t - V(s_t))
    L   = -mean(A log π_θ(a|s)) + c_v mean((V_θ - R)²) - c_e H(π_θ)

One gradient step on every block of `n_steps` rows of all actors.

Deviations: the advantage is that of generalised advantage estimation, which with `lam` 1 (the default) is the
paper's. A time limit bootstraps from the value of the last observation. Actor and critic share one optimizer
(any, not just the paper's RMSprop), and a trunk only where a state is an image, or as `separate` says.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from operant.agents.base import updates
from operant.agents.base.protocol import Counters
from operant.agents.options.a2c_options import A2CConfig as Config
from operant.agents.parts.actor_critic import ActorCritic, watch
from operant.ops import losses, optimise
from operant.spec.spaces import Spaces, masks_of
from operant.types import Array, Key, Metrics, Rollout, Tree


class State(NamedTuple):
    """What training A2C changes."""

    variables: Tree
    optimizer: Tree
    reward_scale: Tree
    """`RewardScale`, or `()` without reward normalisation."""


def loss(params: Tree, frozen: Tree, algorithm: A2C, block: Rollout) -> tuple[Array, Metrics]:
    """Return the loss on a block, and metrics; one pass gives values, returns and policy (see `steady`)."""
    c = algorithm.config
    variables = {"params": params, "state": frozen}
    outputs = algorithm.evaluate(variables, block.observation, block.carry, block.valid)
    estimate = algorithm.advantages(algorithm.steady(variables, outputs, block), block)
    # The row after the block is there for its value only.
    outputs, observation = jax.tree.map(lambda x: x[:-1], (outputs, block.observation))
    policy = algorithm.policy.distribution(outputs, masks_of(observation))
    weight = block.valid.astype(jnp.float32)
    advantage = losses.normalise(estimate.advantage, weight) if c.normalize_advantage else estimate.advantage
    policy_loss = -losses.weighted_mean(advantage * policy.log_prob(block.action), weight)
    value_loss = losses.weighted_mean(losses.squared(outputs["value"] - estimate.target), weight)
    watched = watch(policy, weight)
    total = policy_loss + c.value_loss_coef * value_loss - c.entropy_coef * watched["policy/entropy"]
    return total, {
        "loss/policy": policy_loss,
        "loss/value": value_loss,
        **watched,
        "value/mean": losses.weighted_mean(estimate.value, weight),
        "update/explained_variance": losses.explained_variance(estimate.value, estimate.target, weight),
    }


@dataclasses.dataclass(frozen=True, eq=False)
class A2C(ActorCritic):
    """A2C for any mix of float, int and bool actions, masked ones included."""

    config: Config
    keeps_log_prob: ClassVar[bool] = False

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> A2C:
        """Build the networks."""
        return cls.build(config, spaces, actors)

    def init(self, key: Key) -> State:
        """Initialise networks and optimizer."""
        variables = self.model.init(key)
        opt_state = updates.optimizer(self.config).init(variables["params"])
        return State(variables, opt_state, updates.reward_scale(self.config, self.actors))

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Take one gradient step on the block."""
        c = self.config
        scale, block = updates.scale_block(c, state.reward_scale, block)
        variables = self.model.observe(state.variables, block.observation, block.valid)
        params, before = variables["params"], self.model.learning(variables, key)
        grads, metrics = jax.grad(loss, has_aux=True)(params, before["state"], self, block)
        optimizer, has_rows = updates.optimizer(c), jnp.any(block.valid)
        params, opt_state, info = optimise.apply(optimizer, params, state.optimizer, grads, has_rows=has_rows)
        params = self.model.averaged(params, before, block.observation, has_rows=has_rows)
        metrics |= {f"update/{name}": value for name, value in info.items()}
        metrics = updates.applying(metrics, has_rows)
        metrics["update/lr"] = updates.lr(c)
        return State({**variables, "params": params}, opt_state, scale), memory, metrics
