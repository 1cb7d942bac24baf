"""Deep deterministic policy gradient (DDPG).

Paper: Lillicrap et al. 2016, "Continuous control with deep reinforcement learning"
(https://arxiv.org/abs/1509.02971).

    y = r + γ Q'(s', μ'(s'))
    L_critic = mean((y - Q(s, a))²)
    L_actor  = -mean(Q(s, μ(s)))                       (its gradient is eq. 6)
    θ' <- τ θ + (1 - τ) θ'                             for both targets, after every step   (algorithm 1)

Deviations: acting noise is Gaussian and independent from step to step (Fujimoto et al. 2018, section 6.1),
not an Ornstein-Uhlenbeck process; the paper's weight decay is left out, its batch normalisation is left to
the given networks, and the critic reads the action in its first layer. Steps before `buffer_initial_size` act
uniformly at random and count as environment steps. Terminal targets keep the value of the last observation
when the episode was cut by a time limit. A step in which the critic's gradient is not finite changes nothing
but running averages.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from operant.agents.base.protocol import Counters
from operant.agents.options.ddpg_options import DDPGConfig as Config
from operant.agents.parts.deterministic import Deterministic
from operant.agents.parts.off_policy import ReplayBatch, targets
from operant.spec.spaces import Spaces
from operant.types import Array, Key, Metrics, Rollout, Tree


class State(NamedTuple):
    """What training DDPG changes."""

    actor: Tree
    critic: Tree
    target_actor: Tree
    """Parameters of a target network."""
    target_critic: Tree
    actor_optimizer: Tree
    critic_optimizer: Tree
    reward_scale: Tree
    """`RewardScale`, or `()` without reward normalisation."""


@dataclasses.dataclass(frozen=True, eq=False)
class DDPG(Deterministic):
    """DDPG for float actions with bounds."""

    config: Config

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> DDPG:
        """Build actor and critic; refuse actions other than bounded floats."""
        return cls.build(config, spaces, actors, name="ddpg", critics=("critic",))

    def init(self, key: Key) -> State:
        """Initialise the networks; targets start as their copies."""
        start = self.start(key)
        return State(**start, **targets(start, State._fields))

    def target(self, state: State, batch: ReplayBatch) -> Array:
        """Return y `[B]`."""
        action = self.greedy(self.outputs(self.target_variables(state, "actor"), batch.following))
        critic = self.target_variables(state, "critic")
        return batch.reward + batch.discount * self.value("critic", critic, batch.following, action)

    def step(self, state: State, batch: ReplayBatch, key: Key) -> tuple[State, Metrics]:
        """Step the critic, then the actor, then move both targets."""
        improved = self.improve_critics(self.learning(state, key, 0), batch, self.target(state, batch))
        return self.move(state, improved, batch, improved.ok, key)

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Take the gradient steps that are due."""
        state, metrics = self.learn(state, memory, block, counters, key, self.step)
        return state, memory, {**metrics, "explore/noise": self.spread()}
