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

from operant.agents.base.protocol import Counters
from operant.agents.options.sac_options import SACConfig as Config
from operant.agents.parts.action_scaling import in_units
from operant.agents.parts.off_policy import NO_STEP, Continuous, CriticStep, ReplayBatch, merged, targets
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


def temperature_loss(log_temperature: Array, entropy: Array, target: float) -> Array:
    """Return eq. 18: α (H - H̄). A policy with less entropy than the target raises α."""
    return jnp.exp(log_temperature) * (jax.lax.stop_gradient(entropy) - target)


@dataclasses.dataclass(frozen=True, eq=False)
class SAC(Continuous):
    """SAC for float actions with bounds."""

    config: Config

    reported = (*Continuous.reported, "loss/temperature", "policy/entropy")

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
        given = self.config.target_entropy
        return -float(sum(free.sum() for free in self.free.values())) if given is None else given

    @functools.cached_property
    def free(self) -> dict[str, np.ndarray]:
        """Which elements of every action have more than one value, `[*shape]`. The others have no entropy."""
        return {name: leaf.low != leaf.high for name, leaf in self.spaces.actions.components.items()}

    def init(self, key: Key) -> State:
        """Initialise the networks, each from a key of its own; targets start as their copies."""
        start = self.start(key)
        log_temperature = jnp.log(jnp.asarray(self.config.temperature, jnp.float32))
        return State(
            **start,
            **targets(start, State._fields),
            log_temperature=log_temperature,
            temperature_optimizer=self.temperature_optimizer.init(log_temperature),
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
        """Return actions in units, and their log-probability `[*B]`, summed over all elements that are
        `free`.
        """
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
        following = batch.following
        action, log_prob = self.draw(self.outputs(state.actor, following), noise)
        values = [self.value(k, self.target_variables(state, k), following, action) for k in self.critics]
        soft = jnp.minimum(*values) - self.temperature(state) * log_prob
        return batch.reward + batch.discount * soft

    def actor_loss(
        self, params: Tree, state: State, critics: Tree, batch: ReplayBatch, noise: Arrays
    ) -> tuple[Array, Array]:
        """Return eq. 7, and with it the entropy, -mean log π; the state is from `learning`."""
        variables = {**state.actor, "params": params}
        action, log_prob = self.draw(self.outputs(variables, batch.now), noise)
        values = [
            self.value(k, {**getattr(state, k), "params": own}, batch.now, action)
            for k, own in zip(self.critics, critics, strict=True)
        ]
        each = self.temperature(state) * log_prob - jnp.minimum(*values)
        return losses.weighted_mean(each, batch.weight), -losses.weighted_mean(log_prob, batch.weight)

    def step(self, state: State, batch: ReplayBatch, key: Key) -> tuple[State, Metrics]:
        """Step both critics, the actor and the temperature, then move the targets."""
        size = batch.reward.shape[0]
        drawn = self.update_noise(key, 2 * size)
        now, following = (jax.tree.map(lambda z, i=i: z[i * size : (i + 1) * size], drawn) for i in range(2))
        target = self.target(state, batch, following)
        improved = self.improve_critics(self.learning(state, key, 0), batch, target)
        return self._follow_up(state, improved, batch, now, key)

    def _follow_up(
        self, state: State, improved: CriticStep, batch: ReplayBatch, noise: Arrays, key: Key
    ) -> tuple[State, Metrics]:
        """Store the improved critics.

        If they took a step, step actor and temperature and move the targets.
        """

        def once(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            params, optimizer, log_temperature, of_temperature, slow, _ = carry
            params, optimizer, metrics, entropy = self.improve_actor(
                params, optimizer, lambda p: self.actor_loss(p, learning, improved.params, batch, noise)
            )
            params = self.actor.averaged(params, learning.actor, batch.now.observation)
            metrics |= {"policy/entropy": entropy, "loss/temperature": nan}
            if self.config.learn_temperature:
                gradient = jax.value_and_grad(temperature_loss)
                loss, slope = gradient(log_temperature, entropy, self.target_entropy)
                log_temperature, of_temperature, _ = optimise.apply(
                    self.temperature_optimizer, log_temperature, of_temperature, slope
                )
                metrics["loss/temperature"] = loss
            slow = self.follow(slow, improved.params)
            return params, optimizer, log_temperature, of_temperature, slow, metrics

        nan, learning = jnp.float32(jnp.nan), self.learning(state, key, 1)
        slow = (state.target_critic1, state.target_critic2)
        none = {**NO_STEP, "policy/entropy": nan, "loss/temperature": nan}
        learnt = (state.actor["params"], state.actor_optimizer, state.log_temperature)
        start = (*learnt, state.temperature_optimizer, slow, none)
        params, optimizer, log_temperature, of_temperature, slow, metrics = once_if(improved.ok, once, start)
        one, two = improved.params
        state = State(
            actor={**state.actor, "params": params},
            critic1={**state.critic1, "params": one},
            critic2={**state.critic2, "params": two},
            target_critic1=slow[0],
            target_critic2=slow[1],
            log_temperature=log_temperature,
            actor_optimizer=optimizer,
            critic_optimizer=improved.optimizer,
            temperature_optimizer=of_temperature,
            reward_scale=state.reward_scale,
        )
        return state, merged(improved, metrics)

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Take the gradient steps that are due."""
        state, metrics = self.learn(state, memory, block, counters, key, self.step)
        return state, memory, {**metrics, "policy/temperature": self.temperature(state)}


def _policy(spaces: Spaces) -> Policy:
    leaves = {name: in_units(leaf) for name, leaf in spaces.actions.components.items()}
    return Policy(leaves, std="predicted", bounded="squash")
