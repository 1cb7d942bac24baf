"""Soft actor-critic (SAC), with automatic temperature.

Paper: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications"
(https://arxiv.org/abs/1812.05905), sections 4 to 6.

    ã = tanh(m(s) + σ(s) ε),  ε ~ N(0, 1)      π, with actions in units of half their range (appendix C)
    y = r + γ (min(Q₁'(s', ã'), Q₂'(s', ã')) - α log π(ã'|s'))
    L_critic      = Σᵢ mean((y - Qᵢ(s, a))²)           (eq. 5, not halved)
    L_actor       = mean(α log π(ã|s) - min(Q₁(s, ã), Q₂(s, ã)))         (eq. 7)
    L_temperature = -α mean(log π(ã|s) + H̄)            (eq. 18, by log α)
    θ' <- τ θ + (1 - τ) θ'                             for both critics' targets, after every step

The policy's log-probability is a density over units, so the target entropy H̄ means the same whatever the
range of an action.

Deviations: the temperature's step uses the sample of the actor's step, drawn before that changed the actor.
One optimizer steps both critics, so `grad_norm` bounds their gradients together. Steps before
`buffer_initial_size` act uniformly at random, as the authors' code does, and count as environment steps.
Terminal targets keep the value of the last observation when the episode was cut by a time limit. A step in
which the critics' gradient is not finite changes nothing but running averages.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from operant.agents.base import updates
from operant.agents.base.protocol import Counters
from operant.agents.base.update_counter import UpdateCount
from operant.agents.options.sac_options import SACConfig as Config
from operant.agents.parts.action_scaling import in_units
from operant.agents.parts.off_policy import NO_STEP, ContinuousActorCritic, ReplayBatch, step_metrics, targets
from operant.nn import Head, Policy
from operant.ops import losses, optimise
from operant.ops.repeat import once_if
from operant.spec.spaces import Spaces
from operant.types import Array, Arrays, Key, Metrics, Rollout, Tree


class State(NamedTuple):
    """What training SAC changes."""

    actor: Tree
    critic1: Tree
    critic2: Tree
    target_critic1: Tree
    """Parameters of a target network."""
    target_critic2: Tree
    log_temperature: Array
    """Log α, if it is learnt; otherwise it does not change."""
    actor_optimizer: Tree
    critic_optimizer: Tree
    """Of both critics."""
    temperature_optimizer: Tree
    reward_scale: Tree
    """`RewardScale`, or `()` without reward normalisation."""
    update_count: UpdateCount


def critic_loss(
    params: tuple[Tree, Tree], state: State, algorithm: SAC, batch: ReplayBatch, target: Array
) -> tuple[Array, Array]:
    """Return L_critic, and the mean value of the first critic; the state is from `learning`."""
    values = algorithm.values(state, params, batch.now, batch.action)
    one, two = (losses.weighted_mean(losses.squared(target - value), batch.weight) for value in values)
    return one + two, losses.weighted_mean(values[0], batch.weight)


def actor_loss(
    params: Tree, state: State, algorithm: SAC, critics: tuple[Tree, Tree], batch: ReplayBatch, noise: Arrays
) -> tuple[Array, Array]:
    """Return L_actor and entropy, -mean log π, with the critics after their step; state of `learning`."""
    outputs = algorithm.outputs({**state.actor, "params": params}, batch.now)
    action, log_prob = algorithm.draw(outputs, noise)
    value = jnp.minimum(*algorithm.values(state, critics, batch.now, action))
    each = algorithm.temperature(state) * log_prob - value
    return losses.weighted_mean(each, batch.weight), -losses.weighted_mean(log_prob, batch.weight)


def temperature_loss(log_temperature: Array, entropy: Array, target: float) -> Array:
    """Return eq. 18: α (H - H̄). A policy with less entropy than the target raises α."""
    return jnp.exp(log_temperature) * (jax.lax.stop_gradient(entropy) - target)


@dataclasses.dataclass(frozen=True, eq=False)
class SAC(ContinuousActorCritic):
    """SAC for float actions with bounds."""

    config: Config

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> SAC:
        """Build an actor and two critics; refuse actions other than bounded floats."""
        return cls.build(config, spaces, actors, name="sac", critics=("critic1", "critic2"))

    @staticmethod
    def heads(spaces: Spaces) -> dict[str, Head]:
        """Return mean and log standard deviation of every action."""
        return _policy(spaces).heads()

    @property
    def policy(self) -> Policy:
        """A Gaussian through tanh, over units."""
        return _policy(self.spaces)

    @property
    def temperature_optimizer(self) -> optimise.Optimizer:
        """The optimizer of log α, without weight decay: only the entropy's error moves it."""
        name = optimise.without_decay(self.config.optimizer)
        return self.optimizer_at(self.config.temperature_lr, name)

    @property
    def target_entropy(self) -> float:
        """H̄, in nats."""
        target = self.config.target_entropy
        return -float(sum(free.sum() for free in self.free.values())) if target is None else target

    @functools.cached_property
    def free(self) -> dict[str, np.ndarray]:
        """Which elements of every action have more than one value, `[*shape]`. The others have no entropy."""
        return {name: leaf.low != leaf.high for name, leaf in self.spaces.actions.components.items()}

    def init(self, key: Key) -> State:
        """Initialise the networks, each from a key of its own; targets start as their copies."""
        start = self.networks(key)
        log_temperature = jnp.log(jnp.asarray(self.config.temperature, jnp.float32))
        critics = tuple(start[name]["params"] for name in self.critics)
        return State(
            **start,
            **targets(start, State._fields),
            log_temperature=log_temperature,
            actor_optimizer=self.actor_optimizer.init(start["actor"]["params"]),
            critic_optimizer=self.critic_optimizer.init(critics),
            temperature_optimizer=self.temperature_optimizer.init(log_temperature),
            reward_scale=updates.reward_scale(self.config, self.actors),
            update_count=UpdateCount.zero(),
        )

    def temperature(self, state: State) -> Array:
        """Return α."""
        if self.config.learn_temperature:
            return jnp.exp(state.log_temperature)
        return jnp.asarray(self.config.temperature, jnp.float32)

    def greedy(self, outputs: Arrays) -> Arrays:
        """Return tanh of the Gaussian's mean, in units."""
        return self.policy.distribution(outputs).mode()

    def exploring(self, outputs: Arrays, noise: Arrays) -> Arrays:
        """Draw from the policy, in units."""
        return self.draw(outputs, noise)[0]

    def draw(self, outputs: Arrays, noise: Arrays) -> tuple[Arrays, Array]:
        """Return actions in units, and their log-probability `[*B]`, over all elements that are `free`."""
        parts: Any = self.policy.distribution(outputs).parts
        actions, log_probs = {}, []
        for name, part in parts.items():
            single = dataclasses.replace(part, event_ndim=0)
            actions[name], log_prob = single.sample_and_log_prob(noise[name])
            free = jnp.broadcast_to(self.free[name], log_prob.shape)
            axes = tuple(range(log_prob.ndim - self.free[name].ndim, log_prob.ndim))
            log_probs.append(jnp.sum(jnp.where(free, log_prob, 0.0), axes))
        return actions, sum(log_probs[1:], log_probs[0])

    def target(self, state: State, batch: ReplayBatch, noise: Arrays) -> Array:
        """Return y `[B]` for both critics; `noise` is standard normal, `[B, *shape]` by action."""
        action, log_prob = self.draw(self.outputs(state.actor, batch.following), noise)
        slow = (state.target_critic1, state.target_critic2)
        value = jnp.minimum(*self.values(state, slow, batch.following, action))
        return batch.reward + batch.discount * (value - self.temperature(state) * log_prob)

    def step(self, state: State, batch: ReplayBatch, key: Key) -> tuple[State, Metrics]:
        """Step both critics, then the actor and the temperature, and move the targets; all or nothing."""
        size = batch.reward.shape[0]
        drawn = self.update_noise(key, 2 * size)
        now, following = (jax.tree.map(lambda z, i=i: z[i * size : (i + 1) * size], drawn) for i in range(2))
        target, in_training = self.target(state, batch, following), self.learning(state, key, 0)
        critics = (state.critic1["params"], state.critic2["params"])
        (loss, value), slope = jax.value_and_grad(critic_loss, has_aux=True)(
            critics, in_training, self, batch, target
        )
        critics, of_critics, critic_step = self.step_critics(
            in_training, critics, state.critic_optimizer, slope, batch
        )
        in_training, nan = self.learning(state, key, 1), jnp.float32(jnp.nan)

        def rest(carry: tuple[Tree, ...]) -> tuple[Tree, ...]:
            actor, of_actor, log_temperature, of_temperature, slow, _ = carry
            (loss, entropy), slope = jax.value_and_grad(actor_loss, has_aux=True)(
                actor, in_training, self, critics, batch, now
            )
            actor, of_actor, info = self.step_actor(in_training, actor, of_actor, slope, batch)
            metrics = {"loss/actor": loss, **info, "policy/entropy": entropy, "loss/temperature": nan}
            if self.config.learn_temperature:
                metrics["loss/temperature"], slope = jax.value_and_grad(temperature_loss)(
                    log_temperature, entropy, self.target_entropy
                )
                log_temperature, of_temperature, _ = optimise.apply(
                    self.temperature_optimizer, log_temperature, of_temperature, slope
                )
            slow = optimise.interpolate(slow, critics, self.config.tau)
            return actor, of_actor, log_temperature, of_temperature, slow, metrics

        none = {**NO_STEP, "policy/entropy": nan, "loss/temperature": nan}
        start = (state.actor["params"], state.actor_optimizer, state.log_temperature)
        slow = (state.target_critic1, state.target_critic2)
        actor, of_actor, log_temperature, of_temperature, slow, metrics = once_if(
            critic_step.taken, rest, (*start, state.temperature_optimizer, slow, none)
        )
        state = state._replace(
            actor={**state.actor, "params": actor},
            critic1={**state.critic1, "params": critics[0]},
            critic2={**state.critic2, "params": critics[1]},
            target_critic1=slow[0],
            target_critic2=slow[1],
            log_temperature=log_temperature,
            actor_optimizer=of_actor,
            critic_optimizer=of_critics,
            temperature_optimizer=of_temperature,
        )
        return state, {"loss/critic": loss, "value/mean": value, **step_metrics(critic_step, metrics)}

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Take the gradient steps that are due."""
        state, metrics = self.replay(state, memory, block, counters, key)
        return state, memory, {**metrics, "policy/temperature": self.temperature(state)}


def _policy(spaces: Spaces) -> Policy:
    leaves = {name: in_units(leaf) for name, leaf in spaces.actions.components.items()}
    return Policy(leaves, std="predicted", bounded="squash")
