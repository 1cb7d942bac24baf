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

import jax

from operant.agents.base import updates
from operant.agents.base.protocol import Counters
from operant.agents.base.update_counter import UpdateCount
from operant.agents.options.ddpg_options import DDPGConfig as Config
from operant.agents.parts.off_policy import NO_STEP, ContinuousActorCritic, ReplayBatch, step_metrics, targets
from operant.ops import losses, optimise
from operant.ops.repeat import once_if
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
    update_count: UpdateCount


def critic_loss(
    params: tuple[Tree], state: State, algorithm: DDPG, batch: ReplayBatch, target: Array
) -> tuple[Array, Array]:
    """Return L_critic, and the mean of Q; the state is from `learning`."""
    (q,) = algorithm.values(state, params, batch.now, batch.action)
    error = losses.weighted_mean(losses.squared(target - q), batch.weight)
    return error, losses.weighted_mean(q, batch.weight)


def actor_loss(params: Tree, state: State, algorithm: DDPG, critic: Tree, batch: ReplayBatch) -> Array:
    """Return L_actor (Silver et al. 2014, eq. 9), with the critic after its step; state of `learning`."""
    units = algorithm.greedy(algorithm.outputs({**state.actor, "params": params}, batch.now))
    (q,) = algorithm.values(state, (critic,), batch.now, units)
    return -losses.weighted_mean(q, batch.weight)


@dataclasses.dataclass(frozen=True, eq=False)
class DDPG(ContinuousActorCritic):
    """DDPG for float actions with bounds."""

    config: Config

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> DDPG:
        """Build actor and critic; refuse actions other than bounded floats."""
        return cls.build(config, spaces, actors, name="ddpg", critics=("critic",))

    def init(self, key: Key) -> State:
        """Initialise the networks; targets start as their copies."""
        networks = self.networks(key)
        return State(
            **networks,
            **targets(networks, State._fields),
            actor_optimizer=self.actor_optimizer.init(networks["actor"]["params"]),
            critic_optimizer=self.critic_optimizer.init((networks["critic"]["params"],)),
            reward_scale=updates.reward_scale(self.config, self.actors),
            update_count=UpdateCount.zero(),
        )

    def target(self, state: State, batch: ReplayBatch) -> Array:
        """Return y `[B]`."""
        actor = {**state.actor, "params": state.target_actor}
        action = self.greedy(self.outputs(actor, batch.following))
        (q,) = self.values(state, (state.target_critic,), batch.following, action)
        return batch.reward + batch.discount * q

    def step(self, state: State, batch: ReplayBatch, key: Key) -> tuple[State, Metrics]:
        """Step the critic, then the actor, then move both targets; all or nothing."""
        y = self.target(state, batch)
        training = self.learning(state, key, 0)
        (error, value), grads = jax.value_and_grad(critic_loss, has_aux=True)(
            (state.critic["params"],), training, self, batch, y
        )
        (critic,), critic_optimizer, stepped = self.step_critics(
            training, (state.critic["params"],), state.critic_optimizer, grads, batch
        )
        state = state._replace(critic={**state.critic, "params": critic}, critic_optimizer=critic_optimizer)
        training = self.learning(state, key, 1)

        def follow(carry: tuple[Tree, ...]) -> tuple[Tree, ...]:
            actor, actor_optimizer, target_actor, target_critic, _ = carry
            ascent, grads = jax.value_and_grad(actor_loss)(actor, training, self, critic, batch)
            actor, actor_optimizer, info = self.step_actor(training, actor, actor_optimizer, grads, batch)
            target_actor = optimise.interpolate(target_actor, actor, self.config.tau)
            target_critic = optimise.interpolate(target_critic, critic, self.config.tau)
            return actor, actor_optimizer, target_actor, target_critic, {"loss/actor": ascent, **info}

        start = (state.actor["params"], state.actor_optimizer, state.target_actor, state.target_critic)
        actor, actor_optimizer, target_actor, target_critic, metrics = once_if(
            stepped.taken, follow, (*start, NO_STEP)
        )
        state = state._replace(
            actor={**state.actor, "params": actor},
            actor_optimizer=actor_optimizer,
            target_actor=target_actor,
            target_critic=target_critic,
        )
        metrics = step_metrics(stepped, metrics)
        return state, {"loss/critic": error, "value/mean": value, **metrics}

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Take the gradient steps that are due."""
        state, metrics = self.replay(state, memory, block, counters, key)
        return state, memory, {**metrics, "explore/noise": self.spread()}
