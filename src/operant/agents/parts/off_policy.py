"""What off-policy actor-critics for floats share: networks, acting with noise, batches from the memory.

For networks, actions are in units (see `operant.agents.parts.action_scaling`). Recurrent ones learn from
replayed sequences (Heess et al. 2015, "Memory-based control with recurrent neural networks",
https://arxiv.org/abs/1512.04455), from the states that they had when the agent acted
(`operant.agents.parts.sequences`): while acting, critics are carried along, and remember what they saw and
which actions were taken.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from operant.agents.base import updates
from operant.agents.base.protocol import Counters
from operant.agents.base.update_counter import ReplayCounter
from operant.agents.options.shared_options import ContinuousConfig
from operant.agents.parts import imitation, sequences
from operant.agents.parts.action_scaling import (
    critic_inputs,
    from_units,
    require_bounds,
    to_units,
    unit_heads,
    with_actions,
)
from operant.agents.parts.actor_critic import evaluate
from operant.agents.parts.minibatches import gradient_steps, key_of_step
from operant.agents.table import serving
from operant.memory.replay import Replay
from operant.nn import Head, Model, build
from operant.nn.network import completed
from operant.ops import optimise, prng
from operant.spec.spaces import Spaces, require
from operant.types import Action, Array, Arrays, Key, Metrics, Rollout, Tree

NETWORK: dict[str, Any] = {"size": ContinuousConfig.auto_width, "activation": "relu"}
"""What an 'auto' network or a list of widths leaves open here: Fujimoto et al. 2018 (the authors'
code), Haarnoja et al. 2018, table 1."""

NO_STEP: dict[str, Any] = {
    "loss/actor": np.float32(np.nan),
    "update/grad_norm": np.float32(0),
    "update/skipped": np.float32(0),
}
"""Metrics of an actor that takes no step."""


class ContinuousPolicyState(NamedTuple):
    """What acting reads."""

    actor: Tree
    filling: Array
    """Whether the memory is still filling."""
    critics: dict[str, Tree]
    """Variables of the recurrent ones, which are carried along."""


class NetworkInputs(NamedTuple):
    """The `B` rows that networks evaluate; for recurrent networks, with the sequences that contain them."""

    observation: Arrays
    """`[B, ...]`."""
    block: Rollout | tuple[()] = ()
    """Sequences `[T, C]`, including the rows of the burn-in."""
    row: Array | tuple[()] = ()
    """Which of the rows after the burn-in they are, `[R, C]` where `B` is R C."""


class ReplayBatch(NamedTuple):
    """What a gradient step learns from: `B` steps."""

    now: NetworkInputs
    action: Arrays
    """In units, `[B, *shape]`."""
    reward: Array
    discount: Array
    """What multiplies the value of `following`: gamma, or 0 after a termination."""
    following: NetworkInputs
    weight: Array
    """0 where there is no step."""


class CriticStep(NamedTuple):
    """What became of a gradient step of the critics."""

    taken: Array
    """False: the gradient was not finite, or of no data, and nothing changed but running averages."""
    skipped: Array
    """1 if it was left out for not being finite, else 0."""
    grad_norm: Array


@dataclasses.dataclass(frozen=True, eq=False)
class ContinuousActorCritic(ReplayCounter, abc.ABC):
    """Base of the algorithms: they add `init` and a step; a stochastic one also its policy.

    Without that the policy is deterministic, and explores by noise of deviation `step_noise_coef`.

    Its state has the fields `reward_scale` and `update_count` and, for each of the `models`, its variables
    under its name; the targets' parameters have the same names, prefixed with `target_`.
    """

    config: Any
    spaces: Spaces
    actors: int
    actor: Model
    critics: dict[str, Model]

    @classmethod
    def build(cls, config: Any, spaces: Spaces, actors: int, *, name: str, critics: tuple[str, ...]) -> Self:
        """Build the actor, and as many critics as there are names.

        Raises:
            SpaceError: an action is no float, or has no bounds; the message says what to use instead.
            SpecError: a network does not fit, or sequences for a recurrent one do not fit the memory.
        """
        require(spaces, name, {"float"}, serving(spaces))
        require_bounds(spaces, name, f"use {serving(spaces)}")
        states = spaces.states.components
        normalize = config.normalize_observations
        actor = build(
            completed(config.actor_model, **NETWORK),
            states,
            cls.heads(spaces),
            normalize=normalize,
            name="actor",
        )
        inputs = critic_inputs(states, spaces.actions.components)
        value, network = {"value": Head(())}, completed(config.critic_model, **NETWORK)
        # The critics normalise the states that the actor normalises, and no actions, which are in units
        # already. A Keras model brings weights: a second critic draws its own, or it would stay a copy of the
        # first.
        models = {
            critic: build(network, inputs, value, normalize=actor.normalized, reinitialize=i > 0, name=critic)
            for i, critic in enumerate(critics)
        }
        algorithm = cls(config, spaces, actors, actor, models)
        sequences.refuse_averages(algorithm.models)
        if algorithm.recurrent:
            sequences.require_room(config, actors, algorithm.sequence_rows)
        return algorithm

    @staticmethod
    def heads(spaces: Spaces) -> dict[str, Head]:
        """Return one head per action, its value in units; a Keras model as actor must end in tanh itself."""
        return unit_heads(spaces.actions.components)

    @property
    def rows(self) -> int:
        """Rows per actor and update."""
        return int(self.config.train_every)

    @property
    def recurrent(self) -> tuple[str, ...]:
        """Names of the recurrent networks."""
        return tuple(name for name, model in self.models.items() if model.recurrent)

    @property
    def sequence_rows(self) -> int:
        """Rows of a replayed sequence: the burn-in, and those that are learnt from."""
        return int(self.config.burn_in + self.config.sequence_length)

    @property
    def memory(self) -> Replay:
        """Transitions, for recurrent networks with the states before each."""
        return Replay(self.config.buffer_max_size, self.actors, frames=self.spaces.states.frames)

    @property
    def actor_optimizer(self) -> optimise.Optimizer:
        """The optimizer of the actor."""
        return updates.optimizer(self.config)

    @property
    def critic_optimizer(self) -> optimise.Optimizer:
        """The optimizer of all critics together."""
        return self.optimizer_at(self.config.critic_lr)

    def optimizer_at(self, lr: float | Array | None, name: Any = None) -> optimise.Optimizer:
        """Return the optimizer with a learning rate of its own, if any, or another by name."""
        values = {"lr": lr, "optimizer": name}
        changed = {key: value for key, value in values.items() if value is not None}
        return updates.optimizer(self.config.with_values(changed))

    def networks(self, key: Key) -> dict[str, Tree]:
        """Return the first variables of every model, each from a key of its own."""
        keys = jax.random.split(key, len(self.models))
        return {name: model.init(k) for (name, model), k in zip(self.models.items(), keys, strict=True)}

    @property
    def models(self) -> dict[str, Model]:
        """The actor and each critic."""
        return {"actor": self.actor, **self.critics}

    def weights(self, state: Any) -> dict[str, Tree]:
        """Return the variables of the actor and of each critic."""
        return {name: getattr(state, name) for name in self.models}

    def with_weights(self, state: Any, weights: dict[str, Tree]) -> Any:
        """Replace the variables; targets become copies of them."""
        return state._replace(**weights, **targets(weights, state._fields))

    # Acting

    def acting(self, state: Any, counters: Counters) -> ContinuousPolicyState:
        """Acting needs the actor, and the recurrent critics, which are carried along."""
        critics = {name: getattr(state, name) for name in self.recurrent if name in self.critics}
        return ContinuousPolicyState(
            state.actor, counters.timesteps < jnp.uint32(self.config.initial_size), critics
        )

    def noise(self, key: Key, n: int) -> Tree:
        """Return standard normal noise by action, `[n, *shape]`."""
        return self._by_action(jax.random.normal(key, (n, self.size), jnp.float32))

    @property
    def size(self) -> int:
        """Action elements, of all actions together."""
        return sum(leaf.size for leaf in self.spaces.actions.components.values())

    def update_noise(self, key: Key, n: int) -> Arrays:
        """Return normal noise like `noise`, for use inside updates: by a hash, which runs few kernels.

        erf⁻¹ of uniform numbers; the smallest are 2^-24 away from the ends, so that |z| is at most 5.3.
        """
        centred = 2.0 * prng.uniform(key, (n, self.size)) - np.float32(1.0 - 2.0**-24)
        return self._by_action(np.float32(np.sqrt(2.0)) * jax.lax.erf_inv(centred))

    def _by_action(self, flat: Array) -> Arrays:
        parts, start = {}, 0
        for name, leaf in self.spaces.actions.components.items():
            parts[name] = flat[:, start : start + leaf.size].reshape(-1, *leaf.shape)
            start += leaf.size
        return parts

    def initial_carry(self, n: int) -> Tree:
        """Return the states of the recurrent networks at the start of an episode, by name."""
        return {name: self.models[name].initial_carry(n) for name in self.recurrent} or ()

    def greedy(self, outputs: Arrays) -> Arrays:
        """Return the best actions, in units: the actor's outputs, within the bounds."""
        return {name: jnp.clip(outputs[name], -1.0, 1.0) for name in self.spaces.actions.components}

    def exploring(self, outputs: Arrays, noise: Arrays) -> Arrays:
        """Return actions that explore, in units: the best ones with noise, within the bounds."""
        deviation, best = self.config.step_noise_coef, self.greedy(outputs)
        return {name: jnp.clip(x + deviation * noise[name], -1.0, 1.0) for name, x in best.items()}

    def spread(self) -> Array:
        """Return that noise's standard deviation in the environment's scale, a mean over elements."""
        leaves = self.spaces.actions.components.values()
        half = np.concatenate([(leaf.high / 2 - leaf.low / 2).reshape(-1) for leaf in leaves])
        return jnp.asarray(self.config.step_noise_coef, jnp.float32) * np.float32(half.mean())

    def act(
        self, acting: ContinuousPolicyState, observation: Arrays, carry: Tree, noise: Tree, explore: bool
    ) -> Action:
        """Act greedily, or explore, uniformly while the memory fills; extras are the states before."""
        outputs, after = self._forward(acting, observation, carry)

        def pick(x: Array, z: Array) -> Array:
            # erf(z / √2) is uniform over -1..1 where z is standard normal.
            return jnp.where(acting.filling, jax.lax.erf(z * np.float32(np.sqrt(0.5))), x)

        if explore:
            units = {k: pick(x, noise[k]) for k, x in self.exploring(outputs, noise).items()}
        else:
            units = self.greedy(outputs)
        action = from_units(self.spaces.actions.components, units)
        return self._with_carries(acting, observation, carry, after, action)

    def recall(
        self, acting: ContinuousPolicyState, observation: Arrays, carry: Tree, action: Arrays
    ) -> Action:
        """Return what `act` would have, had it chosen these actions, which critics remember."""
        after = self._forward(acting, observation, carry)[1]
        return self._with_carries(acting, observation, carry, after, action)

    def _forward(
        self, acting: ContinuousPolicyState, observation: Arrays, carry: Tree
    ) -> tuple[Arrays, Tree]:
        return self.actor.apply(acting.actor, observation, carry["actor"] if self.actor.recurrent else ())

    def _with_carries(
        self, acting: ContinuousPolicyState, observation: Arrays, carry: Tree, actor: Tree, action: Arrays
    ) -> Action:
        """Return an action with all networks' recurrent states: before it as extras, after it as carry."""
        if not self.recurrent:
            return Action(action, (), carry)
        after = {"actor": actor} if self.actor.recurrent else {}
        inputs = with_actions(observation, self.units(action), self.spaces)  # as replay returns them
        for name, variables in acting.critics.items():
            after[name] = self.critics[name].apply(variables, inputs, carry[name])[1]
        return Action(action, {"carry": carry}, after)

    def imitation(self, weights: dict[str, Tree], block: Rollout) -> Array:
        """Return the imitation loss on a block: the mean squared distance of actions, in units."""
        observation = {name: x[:-1] for name, x in block.observation.items()}
        carry = block.carry["actor"] if self.actor.recurrent else ()
        outputs = evaluate(self.actor, weights["actor"], observation, carry, block.valid)
        return imitation.distance(self.greedy(outputs), self.units(block.action), block.valid)

    def units(self, action: Arrays) -> Arrays:
        """Return actions `[*B, *shape]` in units; an element with only one value is 0."""
        return to_units(self.spaces.actions.components, action)

    # Learning

    def outputs(self, variables: Tree, inputs: NetworkInputs) -> Arrays:
        """Return the actor's outputs `[B, ...]`."""
        if not self.actor.recurrent:
            return self.actor.apply(variables, inputs.observation)[0]
        block, row = self._remembered("actor", inputs)
        rest = sequences.cut(block, self.config.burn_in)
        carry = sequences.warmed(self.actor, variables, block, self.config.burn_in)
        return sequences.at(evaluate(self.actor, variables, rest.observation, carry, rest.valid), row)

    def value(self, name: str, variables: Tree, seen: NetworkInputs, action: Arrays) -> Array:
        """Return a critic's value `[B]` of actions in units, after what was seen and done before."""
        critic, inputs, carry = self.critics[name], with_actions(seen.observation, action, self.spaces), ()
        if critic.recurrent:  # it remembers the actions that were taken, of which `action` may not be one
            block, row = self._remembered(name, seen)
            block = block._replace(observation=with_actions(block.observation, block.action, self.spaces))
            states = sequences.states(critic, variables, block, self.config.burn_in)
            carry = sequences.at(states, row)
        return critic.apply(variables, inputs, carry)[0]["value"]

    @staticmethod
    def _remembered(name: str, inputs: NetworkInputs) -> tuple[Rollout, Array]:
        """Return sequences with one network's stored states that contain the rows, and which these are."""
        assert isinstance(inputs.block, Rollout) and not isinstance(inputs.row, tuple)
        return inputs.block._replace(carry=inputs.block.carry[name]), inputs.row

    def values(
        self, state: Any, params: Sequence[Tree], inputs: NetworkInputs, action: Arrays
    ) -> tuple[Array, ...]:
        """Return the value `[B]` of every critic under these parameters, and else the state's variables."""
        return tuple(
            self.value(name, {**getattr(state, name), "params": critic_params}, inputs, action)
            for name, critic_params in zip(self.critics, params, strict=True)
        )

    def learning(self, state: Any, key: Key, address: int) -> Any:
        """Return a state whose networks a loss applies as in training, each with its own noise."""
        models = enumerate(self.models.items())
        networks = {
            name: model.learning(getattr(state, name), key, address, i) for i, (name, model) in models
        }
        return state._replace(**networks)

    def step_critics(
        self, state: Any, params: tuple[Tree, ...], optimizer: Tree, grads: Tree, batch: ReplayBatch
    ) -> tuple[tuple[Tree, ...], Tree, CriticStep]:
        """Step all critics together, and move their running averages; the state is from `learning`."""
        has_rows = jnp.any(batch.weight > 0)
        params, optimizer, info = optimise.apply(
            self.critic_optimizer, params, optimizer, grads, has_rows=has_rows
        )
        inputs = with_actions(batch.now.observation, batch.action, self.spaces)
        params = tuple(
            model.averaged(critic_params, getattr(state, name), inputs, has_rows=has_rows)
            for (name, model), critic_params in zip(self.critics.items(), params, strict=True)
        )
        taken = (info["skipped"] == 0) & has_rows
        return params, optimizer, CriticStep(taken, info["skipped"], info["grad_norm"])

    def step_actor(
        self, state: Any, params: Tree, optimizer: Tree, grads: Tree, batch: ReplayBatch
    ) -> tuple[Tree, Tree, Metrics]:
        """Step the actor, and move its running averages; the state is from `learning`."""
        params, optimizer, info = optimise.apply(self.actor_optimizer, params, optimizer, grads)
        params = self.actor.averaged(params, state.actor, batch.now.observation)
        return params, optimizer, {f"update/{k}": x for k, x in info.items()}

    @abc.abstractmethod
    def step(self, state: Any, batch: ReplayBatch, key: Key) -> tuple[Any, Metrics]:
        """Take one gradient step; return the state after it, and metrics (NaN: does not apply)."""

    def replay(
        self, state: Any, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[Any, Metrics]:
        """Update statistics from a stored block, take the steps that are due; return state and metrics."""
        c = self.config
        scale, _ = updates.scale_block(c, state.reward_scale, block)
        observed = {
            name: model.observe(getattr(state, name), block.observation, block.valid)
            for name, model in self.models.items()
        }
        state = state._replace(**observed, reward_scale=scale)
        most = self.rows * self.actors if c.gradient_steps is None else c.gradient_steps
        due = self.due(state, memory, block, counters)
        # Two keys per step, hashed: a cipher's loop for them would take as long as a small network's step.
        words = prng.bits(key, (most, 2, *jax.random.key_data(key).shape))
        keys = key_of_step(jax.random.wrap_key_data(words, impl=jax.random.key_impl(key)))

        def drawn(i: Array, state: Any) -> tuple[ReplayBatch, Key]:
            draw, step_key = keys(i)
            batch = self._sampled(memory, draw)
            return batch._replace(
                reward=updates.scale_replayed(c, state.reward_scale, batch.reward)
            ), step_key

        state, metrics = gradient_steps(
            lambda state, batch: self.step(state, *batch), state, drawn, jnp.where(due, most, 0), most
        )
        state = state._replace(update_count=state.update_count.after(due))
        return state, {**metrics, "update/lr": updates.lr(c)}

    def _sampled(self, memory: Tree, key: Key) -> ReplayBatch:
        c = self.config
        if self.recurrent:
            rows = self.sequence_rows
            return self.steps_of(self.memory.sample_sequences(memory, key, c.buffer_batch_size, rows))
        drawn = self.memory.sample(memory, key, c.buffer_batch_size, c.gamma)
        now, following = NetworkInputs(drawn.observation), NetworkInputs(drawn.next_observation)
        return ReplayBatch(
            now, self.units(drawn.action), drawn.reward, drawn.discount, following, drawn.weight
        )

    def steps_of(self, block: Rollout) -> ReplayBatch:
        """Return the steps of sequences `[sequence_rows, C]`, without those of the burn-in."""
        c = self.config
        block = block._replace(action=self.units(block.action))
        drawn, after = sequences.transitions(sequences.cut(block, c.burn_in), c.sequence_length, 1, c.gamma)
        before = jnp.broadcast_to(jnp.arange(c.sequence_length, dtype=jnp.int32)[:, None], after.shape)
        return ReplayBatch(
            now=NetworkInputs(drawn.observation, block, before),
            action=drawn.action,
            reward=drawn.reward,
            discount=drawn.discount,
            following=NetworkInputs(drawn.next_observation, block, after),
            weight=drawn.weight,
        )


def targets(variables: Mapping[str, Tree], fields: tuple[str, ...]) -> dict[str, Tree]:
    """Return copies of networks as targets, for those networks whose target is a field of the state."""
    return {
        f"target_{name}": jax.tree.map(jnp.copy, model["params"])
        for name, model in variables.items()
        if f"target_{name}" in fields
    }


def step_metrics(critics: CriticStep, actor: Metrics) -> Metrics:
    """Return the metrics of a gradient step of critics and actor (`NO_STEP`, or those of its step)."""
    return {
        **actor,
        "update/grad_norm": jnp.hypot(critics.grad_norm, actor["update/grad_norm"]),
        "update/skipped": jnp.where(critics.taken, actor["update/skipped"], critics.skipped),
    }
