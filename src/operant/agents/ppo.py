"""Proximal policy optimization (PPO), clipped surrogate version.

Paper: Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (https://arxiv.org/abs/1707.06347).

    r(θ) = π_θ(a|s) / π_old(a|s)
    L_policy = -mean(min(r A, clip(r, 1-ε, 1+ε) A))                                  (eq. 7)
    L_value  = mean(½ max((V - R)², (V_old + clip(V - V_old, -ε, ε) - R)²))
    L        = L_policy + c_v L_value - c_e H(π_θ)                                    (eq. 9)

with A from generalised advantage estimation (Schulman et al. 2016, eq. 16) over blocks of `n_steps` rows, R =
A + V_old, and `ppo_epochs` passes over the block in `mini_batches` shuffled parts. With `target_kl` an update
ends early, by the rule of Stable-Baselines3 (https://github.com/DLR-RM/stable-baselines3, `ppo/ppo.py`):
before each step the divergence is estimated on its minibatch, and the first one beyond 1.5 `target_kl` is
also the first without a step.

Deviations: the value is clipped with the policy's ε and advantages are standardised per minibatch, as in the
authors' code, not in the paper (`clip_value`, `normalize_advantage` turn them off); a minibatch of a single
row keeps its advantage. ε bounds the value in units of reward, so large returns want `normalize_rewards`.
The squared error of the value is halved. A time limit bootstraps from the value of
the last observation. If the block does not divide into minibatches, each epoch leaves out a different random
remainder; those of a recurrent network are made of whole sequences. With `normalize_observations` a block
enters the running moments before it is learnt from, so the first r is not exactly 1.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from operant.agents.base import updates
from operant.agents.base.protocol import Counters
from operant.agents.options.ppo_options import PPOConfig as Config
from operant.agents.parts.actor_critic import ActorCritic, watch
from operant.agents.parts.minibatches import Minibatch, divisible, passes
from operant.ops import losses, optimise
from operant.spec.spaces import Spaces, masks_of
from operant.types import Array, Arrays, Key, Metrics, Rollout, Tree

SLACK = 1.5
"""How many times `target_kl` the divergence may be before steps end: a single minibatch's estimate is
noisy."""


class State(NamedTuple):
    """What training PPO changes."""

    variables: Tree
    optimizer: Tree
    reward_scale: Tree
    """`RewardScale`, or `()` without reward normalisation."""


class PPOBatch(NamedTuple):
    """What a gradient step reads; leaves `[B, ...]`, for a recurrent model `[T, B, ...]`."""

    observation: Arrays
    action: Arrays
    log_prob: Array
    value: Array
    advantage: Array
    target: Array
    valid: Array


def loss(params: Tree, frozen: Tree, algorithm: PPO, batch: PPOBatch, carry: Tree) -> tuple[Array, Metrics]:
    """Return eq. 9 of the paper on one minibatch, and metrics."""
    c = algorithm.config
    outputs = algorithm.evaluate({"params": params, "state": frozen}, batch.observation, carry, batch.valid)
    policy = algorithm.policy.distribution(outputs, masks_of(batch.observation))
    log_ratio = policy.log_prob(batch.action) - batch.log_prob
    weight = batch.valid.astype(jnp.float32)
    advantage = batch.advantage
    if c.normalize_advantage:
        advantage = losses.normalise(advantage, weight, epsilon=c.advantage_epsilon)
    policy_loss = losses.weighted_mean(
        losses.clipped_surrogate(log_ratio, advantage, clip=c.clip_norm), weight
    )
    value = outputs["value"]
    if c.clip_value:
        value_error = losses.clipped_value_loss(value, batch.value, batch.target, clip=c.clip_norm)
    else:
        value_error = losses.squared(value - batch.target)
    value_loss = 0.5 * losses.weighted_mean(value_error, weight)
    watched = watch(policy, weight)
    total = policy_loss + c.value_loss_coef * value_loss - c.entropy_coef * watched["policy/entropy"]
    clipped = (jnp.abs(jnp.exp(log_ratio) - 1.0) > c.clip_norm).astype(jnp.float32)
    return total, {
        "loss/policy": policy_loss,
        "loss/value": value_loss,
        **watched,
        "update/kl": losses.approx_kl(log_ratio, weight),
        "update/clip_fraction": losses.weighted_mean(clipped, weight),
    }


@dataclasses.dataclass(frozen=True, eq=False)
class PPO(ActorCritic):
    """PPO for any mix of float, int and bool actions, masked ones included."""

    config: Config

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> PPO:
        """Build the networks; refuse blocks that cannot be divided into the minibatches asked for."""
        divisible(config, actors * config.n_steps, f"{actors} environments x n_steps {config.n_steps} rows")
        algorithm = cls.build(config, spaces, actors)
        if algorithm.model.recurrent:
            whole = f"environments: {actors}, whose sequences stay whole for a recurrent model"
            divisible(config, actors, whole, "or more environments")
        return algorithm

    def init(self, key: Key) -> State:
        """Initialise networks and optimizer."""
        variables = self.model.init(key)
        opt_state = updates.optimizer(self.config).init(variables["params"])
        return State(variables, opt_state, updates.reward_scale(self.config, self.actors))

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Estimate advantages, then `ppo_epochs` passes of `mini_batches` gradient steps."""
        c = self.config
        scale, block = updates.scale_block(c, state.reward_scale, block)
        variables = self.model.observe(state.variables, block.observation, block.valid)
        estimate = self.estimate(variables, block)
        batch = PPOBatch(
            observation=jax.tree.map(lambda x: x[:-1], block.observation),
            action=block.action,
            log_prob=block.extras["log_prob"],
            value=estimate.value,
            advantage=estimate.advantage,
            target=estimate.target,
            valid=block.valid,
        )
        optimizer, limit = updates.optimizer(c), c.target_kl

        def step(
            carry: tuple[Tree, Tree, Array], part: Minibatch
        ) -> tuple[tuple[Tree, Tree, Array], Metrics]:
            (old, opt_state, within), rows = carry, part.rows
            before: Tree = {"params": old, "state": self.model.learning(variables, part.key)["state"]}
            gradient = jax.value_and_grad(loss, has_aux=True)
            (_, metrics), grads = gradient(old, before["state"], self, rows, part.carry)
            has_rows = jnp.any(rows.valid)
            if limit is not None:
                within &= ~(metrics["update/kl"] > SLACK * limit)
                has_rows &= within
            params, opt_state, info = optimise.apply(optimizer, old, opt_state, grads, has_rows=has_rows)
            params = self.model.averaged(params, before, rows.observation, has_rows=has_rows)
            metrics |= {f"update/{k}": v for k, v in info.items()}
            if limit is not None:  # steps after the limit was reached have no effect
                params = jax.tree.map(functools.partial(jnp.where, within), params, old)
                metrics["update/steps"] = has_rows.astype(jnp.float32) - info["skipped"]
            return (params, opt_state, within), updates.applying(metrics, has_rows)

        (params, opt_state, _), metrics = passes(
            step,
            (variables["params"], state.optimizer, jnp.asarray(True)),
            batch,
            key,
            epochs=c.ppo_epochs,
            parts=c.mini_batches,
            carry=block.carry,
            sequences=self.model.recurrent,
            noisy=self.model.learns_otherwise,
        )
        weight = block.valid.astype(jnp.float32)
        metrics["value/mean"] = losses.weighted_mean(batch.value, weight)
        metrics["update/explained_variance"] = losses.explained_variance(batch.value, batch.target, weight)
        metrics["update/lr"] = updates.lr(c)
        state = State({"params": params, "state": variables["state"]}, opt_state, scale)
        return state, memory, metrics
