"""Twin delayed deep deterministic policy gradient (TD3).

Paper: Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods"
(https://arxiv.org/abs/1802.09477), algorithm 1 and section 5.3, with actions in units of half their range:

    ã = clip(μ'(s') + clip(ε, -c, c), -1, 1),  ε ~ N(0, σ²), drawn for every sample and action element
    y = r + γ min(Q₁'(s', ã), Q₂'(s', ã))              one target for both critics
    L_critic = mean((y - Q₁(s, a))²) + mean((y - Q₂(s, a))²)
    L_actor  = -mean(Q₁(s, μ(s)))            every `policy_delay` steps; only then targets move, too:
    θ' <- τ θ + (1 - τ) θ'

σ is `policy_noise_coef`, c is `noise_clip`. The delay counts gradient steps of the whole run.

Deviations: one optimizer steps both critics, so `grad_norm` bounds their gradients together (elsewhere it
makes no difference). Steps before `buffer_initial_size` act uniformly at random, as the authors' code does,
and count as environment steps. Terminal targets keep the value of the last observation when the episode was
cut by a time limit. A step in which the critics' gradient is not finite changes nothing but the count and
running averages.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from operant.agents.base import updates
from operant.agents.base.protocol import Counters
from operant.agents.base.update_counter import UpdateCount
from operant.agents.options.td3_options import TD3Config as Config
from operant.agents.parts.off_policy import (
    NO_STEP,
    ContinuousActorCritic,
    ReplayBatch,
    step_metrics,
    targets,
)
from operant.ops import losses, optimise
from operant.ops.repeat import once_if
from operant.spec.spaces import Spaces
from operant.types import Array, Arrays, Key, Metrics, Rollout, Tree


class State(NamedTuple):
    """What training TD3 changes."""

    actor: Tree
    critic1: Tree
    critic2: Tree
    target_actor: Tree
    """Parameters of a target network."""
    target_critic1: Tree
    target_critic2: Tree
    actor_optimizer: Tree
    critic_optimizer: Tree
    """Of both critics."""
    steps: Array
    """Gradient steps so far, modulo `policy_delay`."""
    reward_scale: Tree
    """`RewardScale`, or `()` without reward normalisation."""
    update_count: UpdateCount


def critic_loss(
    params: tuple[Tree, Tree], state: State, algorithm: TD3, batch: ReplayBatch, target: Array
) -> tuple[Array, Array]:
    """Return L_critic, and the mean of Q₁; the state is from `learning`."""
    q1, q2 = algorithm.values(state, params, batch.now, batch.action)
    errors = [losses.weighted_mean(losses.squared(target - q), batch.weight) for q in (q1, q2)]
    return errors[0] + errors[1], losses.weighted_mean(q1, batch.weight)


def actor_loss(params: Tree, state: State, algorithm: TD3, critic1: Tree, batch: ReplayBatch) -> Array:
    """Return L_actor, with the first critic as it is after its step; the state is from `learning`."""
    action = algorithm.greedy(algorithm.outputs({**state.actor, "params": params}, batch.now))
    q1 = algorithm.value("critic1", {**state.critic1, "params": critic1}, batch.now, action)
    return -losses.weighted_mean(q1, batch.weight)


@dataclasses.dataclass(frozen=True, eq=False)
class TD3(ContinuousActorCritic):
    """TD3 for float actions with bounds."""

    config: Config

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> TD3:
        """Build an actor and two critics; refuse actions other than bounded floats."""
        return cls.build(config, spaces, actors, name="td3", critics=("critic1", "critic2"))

    def init(self, key: Key) -> State:
        """Initialise the networks, each from a key of its own; targets start as their copies."""
        networks = self.networks(key)
        critics = (networks["critic1"]["params"], networks["critic2"]["params"])
        return State(
            **networks,
            **targets(networks, State._fields),
            actor_optimizer=self.actor_optimizer.init(networks["actor"]["params"]),
            critic_optimizer=self.critic_optimizer.init(critics),
            steps=jnp.zeros((), jnp.int32),
            reward_scale=updates.reward_scale(self.config, self.actors),
            update_count=UpdateCount.zero(),
        )

    def smoothed(self, units: Arrays, noise: Arrays) -> Arrays:
        """Return target actions ã with clipped noise, within the bounds (eq. 14); in units."""
        c = self.config
        clipped = {
            k: jnp.clip(c.policy_noise_coef * z, -c.noise_clip, c.noise_clip) for k, z in noise.items()
        }
        return {k: jnp.clip(x + clipped[k], -1.0, 1.0) for k, x in units.items()}

    def target(self, state: State, batch: ReplayBatch, noise: Arrays) -> Array:
        """Return y `[B]` for both critics; `noise` is standard normal, `[B, *shape]` by action."""
        outputs = self.outputs({**state.actor, "params": state.target_actor}, batch.following)
        action = self.smoothed(self.greedy(outputs), noise)
        q1, q2 = self.values(state, (state.target_critic1, state.target_critic2), batch.following, action)
        return batch.reward + batch.discount * jnp.minimum(q1, q2)

    def step(self, state: State, batch: ReplayBatch, key: Key) -> tuple[State, Metrics]:
        """Step both critics; when it is due, also step the actor on the first one and move the targets."""
        target = self.target(state, batch, self.update_noise(key, batch.reward.shape[0]))
        learning, critics = self.learning(state, key, 0), (state.critic1["params"], state.critic2["params"])
        gradient = jax.value_and_grad(critic_loss, has_aux=True)
        (loss, value), grads = gradient(critics, learning, self, batch, target)
        critics, critic_optimizer, critic_step = self.step_critics(
            learning, critics, state.critic_optimizer, grads, batch
        )
        steps = (state.steps + 1) % self.config.policy_delay
        learning = self.learning(state, key, 1)

        def delayed(carry: tuple[Tree, Tree, Tree, Metrics]) -> tuple[Tree, Tree, Tree, Metrics]:
            actor, optimizer, slow, _ = carry
            loss, grads = jax.value_and_grad(actor_loss)(actor, learning, self, critics[0], batch)
            actor, optimizer, info = self.step_actor(learning, actor, optimizer, grads, batch)
            slow = optimise.interpolate(slow, (actor, *critics), self.config.tau)
            return actor, optimizer, slow, {"loss/actor": loss, **info}

        slow = (state.target_actor, state.target_critic1, state.target_critic2)
        actor, actor_optimizer, slow, metrics = once_if(
            critic_step.taken & (steps == 0),
            delayed,
            (state.actor["params"], state.actor_optimizer, slow, NO_STEP),
        )
        state = state._replace(
            actor={**state.actor, "params": actor},
            critic1={**state.critic1, "params": critics[0]},
            critic2={**state.critic2, "params": critics[1]},
            target_actor=slow[0],
            target_critic1=slow[1],
            target_critic2=slow[2],
            actor_optimizer=actor_optimizer,
            critic_optimizer=critic_optimizer,
            steps=steps,
        )
        return state, {"loss/critic": loss, "value/mean": value, **step_metrics(critic_step, metrics)}

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Take the gradient steps that are due."""
        state, metrics = self.replay(state, memory, block, counters, key)
        return state, memory, {**metrics, "explore/noise": self.spread()}
