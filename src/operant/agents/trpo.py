"""Trust region policy optimization (TRPO), the single-path version.

Paper: Schulman et al. 2015, "Trust Region Policy Optimization" (https://arxiv.org/abs/1502.05477), section 6
and appendix C.

    maximise L(θ) = mean(π_θ(a|s) / π_old(a|s) A)   subject to   mean KL(π_old || π_θ) <= δ      (eq. 14)
    step s = √(2 δ / xᵀ F x) x with F x = ∇L(θ_old), by conjugate gradient                       (appendix C)
    θ_new = θ_old + s / 2^k with the least k that raises L and keeps the divergence

with F the Fisher matrix of the policy, and A from generalised advantage estimation (Schulman et al. 2016, eq.
16) over blocks of `n_steps` rows. The critic is a network of its own, fitted by gradient steps on

    L_value = c_v mean(½ (V - R)²),   R = A + V_old

Deviations: F is damped; the line search allows 1.5 times the divergence, because the quadratic model is
exceeded about as often as not; advantages are standardised over the block (all three as in OpenAI Baselines,
the authors' later code). The objective may have an entropy bonus. The critic takes steps of first order,
where Schulman et al. 2016 fit it within a trust region; the value's change can be clipped (`clip_value`). A
time limit bootstraps from the value of the last observation. F is estimated on every `fvp_n_steps`-th row; a
recurrent actor computes the rows between as well. With `normalize_observations` a block enters the running
moments before it is learnt from, so π_θ / π_old is not exactly 1 at θ_old. On large images an 'auto' network
is the small one of OpenAI Baselines' TRPO, and of xagents', with a tenth of the Nature CNN's weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from operant.agents.base import updates
from operant.agents.base.protocol import Counters
from operant.agents.options.trpo_options import TRPOConfig as Config
from operant.agents.parts.actor_critic import ActorCritic, evaluate, watch
from operant.agents.parts.minibatches import Minibatch, divisible, passes
from operant.nn import Head, Model, Policy, build
from operant.nn.network import completed
from operant.ops import losses, optimise, trust_region
from operant.ops.distributions import Product
from operant.spec import Scalar
from operant.spec.spaces import Spaces, masks_of
from operant.types import Action, Array, Arrays, Key, Metrics, Rollout, Tree


class State(NamedTuple):
    """What training TRPO changes."""

    actor: Tree
    critic: Tree
    optimizer: Tree
    """Of the critic."""
    reward_scale: Tree
    """`RewardScale`, or `()` without reward normalisation."""


class CriticBatch(NamedTuple):
    """What a gradient step of the critic reads; leaves `[B, ...]`, for a recurrent critic `[T, B, ...]`."""

    observation: Arrays
    value: Array
    target: Array
    valid: Array


Outputs: TypeAlias = Callable[[Array, Arrays], Arrays]
"""Parameters as a vector, and observations, to a network's outputs."""

SLACK = 1.5
"""How much more than `max_kl` the line search allows."""


def surrogate(policy: Product, block: Rollout, advantage: Array, entropy_coef: Scalar) -> Array:
    """Return eq. 14's objective on a block, plus the entropy bonus.

    The policy and the advantage A are those at the block's rows, `[T, N]`.
    """
    ratio = losses.importance_ratio(policy.log_prob(block.action) - block.extras["log_prob"])
    gain = losses.weighted_mean(ratio * advantage, block.valid)
    return gain + entropy_coef * losses.weighted_mean(policy.entropy(), block.valid)


def value_loss(
    params: Tree, frozen: Tree, algorithm: TRPO, fit: CriticBatch, carry: Tree
) -> tuple[Array, Metrics]:
    """Return the critic's loss on one minibatch, and metrics."""
    c = algorithm.config
    variables = {"params": params, "state": frozen}
    value = evaluate(algorithm.critic, variables, fit.observation, carry, fit.valid)["value"]
    if c.clip_value:
        error = losses.clipped_value_loss(value, fit.value, fit.target, clip=c.clip_norm)
    else:
        error = losses.squared(value - fit.target)
    loss = 0.5 * losses.weighted_mean(error, fit.valid)
    return c.value_loss_coef * loss, {"loss/value": loss}


@dataclasses.dataclass(frozen=True, eq=False)
class TRPO(ActorCritic):
    """TRPO for any mix of float, int and bool actions, masked ones included. `model` is the actor's."""

    config: Config
    critic: Model

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> TRPO:
        """Build both networks; refuse blocks that cannot be divided into the minibatches asked for."""
        rows = actors * config.n_steps
        divisible(config, rows, f"{actors} environments x n_steps {config.n_steps} rows")
        policy = Policy(spaces.actions.components, std=config.std, bounded=config.distribution)
        states, normalize = spaces.states.components, config.normalize_observations
        of_actor, of_critic = (completed(m, small=True) for m in (config.actor_model, config.critic_model))
        actor = build(of_actor, states, policy.heads(), normalize=normalize, name="actor")
        critic = build(of_critic, states, {"value": Head(())}, normalize=normalize, name="critic")
        if critic.recurrent:
            whole = f"{actors} environments: a recurrent critic learns from whole sequences"
            divisible(config, actors, whole, "or more environments")
        return cls(config, spaces, actors, actor, policy, critic)

    @property
    def recurrent(self) -> bool:
        """Whether either network has a recurrent state."""
        return self.model.recurrent or self.critic.recurrent

    def init(self, key: Key) -> State:
        """Initialise both networks and the critic's optimizer."""
        key_actor, key_critic = jax.random.split(key)
        critic = self.critic.init(key_critic)
        optimizer = updates.optimizer(self.config).init(critic["params"])
        scale = updates.reward_scale(self.config, self.actors)
        return State(self.model.init(key_actor), critic, optimizer, scale)

    @property
    def models(self) -> dict[str, Model]:
        """Actor and critic."""
        return {"actor": self.model, "critic": self.critic}

    def weights(self, state: State) -> dict[str, Tree]:
        """Return the variables of actor and critic."""
        return {"actor": state.actor, "critic": state.critic}

    def with_weights(self, state: State, weights: dict[str, Tree]) -> State:
        """Replace the variables."""
        return state._replace(actor=weights["actor"], critic=weights["critic"])

    def acting(self, state: State, counters: Counters) -> Tree:
        """Acting needs the actor, and a recurrent critic, which is carried along."""
        return self.weights(state)

    def initial_carry(self, n: int) -> Tree:
        """Return the recurrent states of both networks at the start of an episode."""
        if not self.recurrent:
            return ()
        return {"actor": self.model.initial_carry(n), "critic": self.critic.initial_carry(n)}

    def take(
        self, acting: Tree, observation: Arrays, carry: Tree, choose: Callable[[Product], Arrays]
    ) -> Action:
        """Take the action that `choose` picks from the actor's policy, and carry a recurrent critic along."""
        carries = carry if self.recurrent else {"actor": (), "critic": ()}
        action = super().take(acting["actor"], observation, carries["actor"], choose)
        if not self.recurrent:
            return action
        following = self.critic.apply(acting["critic"], observation, carries["critic"])[1]
        return action._replace(carry={"actor": action.carry, "critic": following})

    def imitation(self, weights: dict[str, Tree], block: Rollout) -> Array:
        """Return the imitation loss on a block; see `ActorCritic.imitation`."""
        carry = block.carry if self.recurrent else {"actor": (), "critic": ()}

        def value(variables: Tree) -> Array:
            return evaluate(self.critic, variables, block.observation, carry["critic"], block.valid)["value"]

        critic = weights["critic"]
        outputs = evaluate(self.model, weights["actor"], block.observation, carry["actor"], block.valid)
        outputs = {**outputs, "value": value(critic)}
        steady = value(self.critic.in_use(critic)) if self.critic.learns_otherwise else outputs["value"]
        return self.clone(outputs, jax.lax.stop_gradient(steady), block)

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Estimate advantages, take one step of the policy within the trust region, then fit the critic."""
        c = self.config
        scale, block = updates.scale_block(c, state.reward_scale, block)
        actor = self.model.observe(state.actor, block.observation, block.valid)
        critic = self.critic.observe(state.critic, block.observation, block.valid)
        carry = block.carry if self.recurrent else {"actor": (), "critic": ()}
        value = evaluate(self.critic, critic, block.observation, carry["critic"], block.valid)["value"]
        value, advantage, target = self.advantages(value, block)
        # The row after the block was there for its value only.
        block = block._replace(observation=jax.tree.map(lambda x: x[:-1], block.observation))
        before = self.model.learning(actor, key)
        actor, metrics = self._improve(actor, carry["actor"], block, advantage)
        params = self.model.averaged(
            actor["params"], before, block.observation, has_rows=jnp.any(block.valid)
        )
        actor = {**actor, "params": params}
        fit = CriticBatch(block.observation, value, target, block.valid)
        critic, optimizer, fitted = self._fit(critic, state.optimizer, carry["critic"], fit, key)
        metrics |= {
            "loss/value": fitted["loss/value"],
            "update/grad_norm": jnp.hypot(metrics["update/grad_norm"], fitted["update/grad_norm"]),
            "update/skipped": metrics["update/skipped"] + fitted["update/skipped"],
            "update/explained_variance": losses.explained_variance(value, target, block.valid),
            "update/lr": updates.lr(c),
            "value/mean": losses.weighted_mean(value, block.valid),
        }
        return State(actor, critic, optimizer, scale), memory, metrics

    def _improve(self, actor: Tree, carry: Tree, block: Rollout, advantage: Array) -> tuple[Tree, Metrics]:
        """Take one natural-gradient step of the policy, as far as the line search allows.

        Gradient, Fisher matrix and line search must speak of one function: the network as in use, without
        dropout.
        """
        c, weight = self.config, block.valid.astype(jnp.float32)
        start, tree = ravel_pytree(actor["params"])
        advantage = losses.normalise(advantage, weight, epsilon=c.advantage_epsilon)

        def outputs(params: Array, observation: Arrays) -> Arrays:
            variables = {**actor, "params": tree(params)}
            return evaluate(self.model, variables, observation, carry, block.valid)

        def objective(params: Array) -> tuple[Array, Product]:
            masks = masks_of(block.observation)
            policy = self.policy.distribution(outputs(params, block.observation), masks)
            return surrogate(policy, block, advantage, c.entropy_coef), policy

        (reached, old), gradient = jax.value_and_grad(objective, has_aux=True)(start)
        step = trust_region.natural_step(
            self._fisher(outputs, start, block),
            gradient,
            max_kl=c.max_kl,
            iterations=c.cg_iterations,
            tolerance=c.cg_residual_tolerance,
        )

        def measure(params: Array) -> tuple[Array, Array]:
            value, policy = objective(params)
            return value, losses.weighted_mean(old.kl(policy), weight)

        def accept(params: Array) -> Array:
            value, kl = measure(params)
            return jnp.isfinite(value) & (value > reached) & (kl <= SLACK * c.max_kl)

        line = trust_region.line_search(accept, start, step, candidates=c.actor_iterations)
        value, kl = measure(line.point)
        norm = jnp.linalg.norm(gradient)
        finite = jnp.isfinite(norm) & jnp.isfinite(jnp.linalg.norm(step))
        return {**actor, "params": tree(line.point)}, {
            "loss/policy": -value,
            **watch(old, weight),
            "update/kl": kl,
            "update/accepted": line.accepted.astype(jnp.float32),
            "update/line_search_steps": line.refused.astype(jnp.float32),
            "update/grad_norm": norm,
            "update/skipped": 1.0 - finite.astype(jnp.float32),
        }

    def _fisher(self, outputs: Outputs, params: Array, block: Rollout) -> Callable[[Array], Array]:
        """Return a vector's product with the damped Fisher matrix, of every `fvp_n_steps`-th row."""
        every = self.config.fvp_n_steps
        observation, weight = block.observation, block.valid.astype(jnp.float32)
        if self.model.recurrent:  # it needs the rows in between as well
            rows = jnp.arange(weight.shape[0])[:, None]
            weight = jnp.where(rows % every == 0, weight, 0.0)
        else:
            observation, weight = jax.tree.map(lambda x: x[::every], (observation, weight))
        masks = masks_of(observation)

        def divergence(old: Arrays, new: Arrays) -> Array:
            kl = self.policy.distribution(old, masks).kl(self.policy.distribution(new, masks))
            return losses.weighted_mean(kl, weight)

        return trust_region.fisher_product(
            lambda x: outputs(x, observation), divergence, params, self.config.cg_damping
        )

    def _fit(
        self, critic: Tree, opt_state: Tree, carry: Tree, fit: CriticBatch, key: Key
    ) -> tuple[Tree, Tree, Metrics]:
        c, optimizer = self.config, updates.optimizer(self.config)

        def step(carry: tuple[Tree, Tree], part: Minibatch) -> tuple[tuple[Tree, Tree], Metrics]:
            (old, opt_state), rows = carry, part.rows
            frozen = self.critic.learning(critic, part.key)["state"]
            grads, metrics = jax.grad(value_loss, has_aux=True)(old, frozen, self, rows, part.carry)
            has_rows = jnp.any(rows.valid)
            params, opt_state, info = optimise.apply(optimizer, old, opt_state, grads, has_rows=has_rows)
            before: Tree = {"params": old, "state": frozen}
            params = self.critic.averaged(params, before, rows.observation, has_rows=has_rows)
            metrics |= {f"update/{k}": v for k, v in info.items()}
            return (params, opt_state), updates.applying(metrics, has_rows)

        (params, opt_state), metrics = passes(
            step,
            (critic["params"], opt_state),
            fit,
            key,
            epochs=c.critic_iterations * c.ppo_epochs,
            parts=c.mini_batches,
            carry=carry,
            sequences=self.critic.recurrent,
            noisy=self.critic.learns_otherwise,
        )
        return {**critic, "params": params}, opt_state, metrics
