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

import jax.numpy as jnp

from operant.agents.base.protocol import Counters
from operant.agents.options.td3_options import TD3Config as Config
from operant.agents.parts.deterministic import Deterministic
from operant.agents.parts.off_policy import ReplayBatch, targets
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


@dataclasses.dataclass(frozen=True, eq=False)
class TD3(Deterministic):
    """TD3 for float actions with bounds."""

    config: Config

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> TD3:
        """Build an actor and two critics; refuse actions other than bounded floats."""
        return cls.build(config, spaces, actors, name="td3", critics=("critic1", "critic2"))

    def init(self, key: Key) -> State:
        """Initialise the networks, each from a key of its own; targets start as their copies."""
        start = self.start(key)
        return State(**start, **targets(start, State._fields), steps=jnp.zeros((), jnp.int32))

    def smoothed(self, units: Arrays, noise: Arrays) -> Arrays:
        """Return target actions with clipped noise, within the bounds (eq. 14); in units."""
        c = self.config
        clipped = {
            k: jnp.clip(c.policy_noise_coef * z, -c.noise_clip, c.noise_clip) for k, z in noise.items()
        }
        return {k: jnp.clip(x + clipped[k], -1.0, 1.0) for k, x in units.items()}

    def target(self, state: State, batch: ReplayBatch, noise: Arrays) -> Array:
        """Return y `[B]` for both critics; `noise` is standard normal, `[B, *shape]` by action."""
        following = batch.following
        outputs = self.outputs(self.target_variables(state, "actor"), following)
        action = self.smoothed(self.greedy(outputs), noise)
        one, two = (
            self.value(name, self.target_variables(state, name), following, action) for name in self.critics
        )
        return batch.reward + batch.discount * jnp.minimum(one, two)

    def step(self, state: State, batch: ReplayBatch, key: Key) -> tuple[State, Metrics]:
        """Step both critics; when it is due, also step the actor on the first one and move the targets."""
        target = self.target(state, batch, self.update_noise(key, batch.reward.shape[0]))
        improved = self.improve_critics(self.learning(state, key, 0), batch, target)
        state = state._replace(steps=(state.steps + 1) % self.config.policy_delay)
        return self.move(state, improved, batch, improved.ok & (state.steps == 0), key)

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Take the gradient steps that are due."""
        state, metrics = self.learn(state, memory, block, counters, key, self.step)
        return state, memory, {**metrics, "explore/noise": self.spread()}
