"""What the modular agent learns: a stochastic policy, a deterministic one, or the values of actions.

An objective defines which heads the network has, how outputs become actions, what states are worth, and the
loss of every row. It knows neither memory nor optimizer.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from operant.agents.options.modular_options import ModularConfig
from operant.agents.parts import imitation
from operant.agents.parts.action_scaling import critic_inputs, from_units, to_units, unit_heads, with_actions
from operant.agents.parts.actor_critic import evaluate
from operant.agents.parts.q_learning import joined, q_heads
from operant.agents.parts.sequences import begins
from operant.agents.parts.value_heads import ExpectedValue
from operant.nn import Head, Model, Policy
from operant.ops import losses
from operant.spec.spaces import Leaf, Spaces, masks_of
from operant.types import Array, Arrays, Key, Metrics, Tree

VALUE = "value"
"""Head of a state's value."""
SHARED = "shared"
"""Stands for a baseline on the policy's own network."""


class View(NamedTuple):
    """What networks read: rows, and for recurrent networks how these follow one another."""

    observation: Arrays
    """`[R, ...]`; for recurrent networks the rows of `N` actors in time order."""
    carry: Tree = ()
    """Recurrent state before the first row of each actor, by model and name: `[N, size]`."""
    valid: Bool[Array, "T N"] | tuple[()] = ()
    """Which rows are transitions, as in a block: after a row that is none, a new episode begins. `()` if no
    network is recurrent."""
    taken: Arrays | tuple[()] = ()
    """Actions of these rows, `[T N, ...]`, which a recurrent baseline may have read. `()` if no network is
    recurrent."""


class Rows(NamedTuple):
    """Rows to learn from, `[R, ...]`."""

    view: View
    action: Arrays
    log_prob: Float[Array, " R"]
    """Of the action under the policy at the beginning of the update; 0 if the objective does not need it."""
    target: Float[Array, "R E"]
    """Return; one per action element if elements have values of their own."""
    advantage: Float[Array, " R"]
    """Weight of the policy's gradient."""


@dataclasses.dataclass(frozen=True, eq=False)
class Networks:
    """What all objectives share. `params` and `frozen` are variables by model: `model`, `baseline`.

    Losses, values and metrics are those of every row, `[R]`; arrays of acting are `[n, ...]`.
    """

    config: ModularConfig
    spaces: Spaces
    models: dict[str, Model]

    def baseline_inputs(self) -> dict[str, Leaf]:
        """Return what a baseline with a network of its own reads."""
        return dict(self.spaces.states.components)

    def inputs_of(self, name: str, rows: Rows) -> Arrays:
        """Return what a model reads of rows in its loss."""
        return rows.view.observation

    def experienced(self, observation: Arrays, action: Arrays) -> Arrays:
        """Return what a baseline reads for observations and the actions taken, `[n, ...]`."""
        return observation

    def followed(self, params: Tree) -> Tree:
        """Return the parameters that target networks follow; `()` if there are none."""
        return ()

    def noise(self, key: Key, n: int) -> Tree:
        """No randomness besides exploration: zeros, one for every row."""
        return jnp.zeros(n, jnp.float32)

    def error(self, difference: Array) -> Array:
        """Return the loss of a difference of values: its square, or linear beyond `huber_loss`."""
        huber = self.config.huber_loss
        return losses.squared(difference) if huber is None else losses.huber(difference, delta=huber)

    def outputs_of(self, name: str, params: Tree, frozen: Tree, view: View) -> Arrays:
        """Return one model's outputs `[R, ...]`; a recurrent one processes the rows in order."""
        model, variables = self.models[name], {"params": params, "state": frozen[name]}
        if not model.recurrent:
            return model.apply(variables, view.observation)[0]
        assert not isinstance(view.valid, tuple)
        n = view.valid.shape[1]
        rows = {k: x.reshape(-1, n, *x.shape[1:]) for k, x in view.observation.items()}
        outputs = evaluate(model, variables, rows, view.carry[name], view.valid)
        return {k: x.reshape(-1, *x.shape[2:]) for k, x in outputs.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class PolicyGradient(Networks):
    """A stochastic policy ascends the returns of its actions, less a baseline if there is one.

    L = -A log π(a|s), or with importance sampling -ρ A where ρ = π(a|s) / π_old(a|s) and π_old is the policy
    at the beginning of the update (Williams 1992; clipped: Schulman et al. 2017, equation 7).
    """

    @property
    def policy(self) -> Policy:
        """The policy over the actions."""
        c, own = self.config, self.config.distributions or {}
        return Policy(self.spaces.actions.components, std=c.std, bounded=c.distribution, own=own)

    @property
    def shared(self) -> bool:
        """Whether the policy's network also predicts values."""
        return isinstance(self.config.baseline_model, str) and self.config.baseline_model == SHARED

    def heads(self) -> dict[str, Head]:
        """Return the policy's heads, and that of the value if it is on the same network."""
        return {**self.policy.heads(), **({VALUE: Head((), scale=1.0)} if self.shared else {})}

    def noise(self, key: Key, n: int) -> Tree:
        """Return the policy's noise."""
        return self.policy.noise(key, n)

    def act(self, outputs: Arrays, observation: Arrays, noise: Tree, explore: bool) -> Arrays:
        """Draw from the policy with its noise scaled by the temperature, or take its mode."""
        policy = self.policy.distribution(outputs, masks_of(observation))
        if not explore:
            return policy.mode()
        temperature = jnp.asarray(self.config.temperature, jnp.float32)

        def scaled(x: Array) -> Array:
            return x * temperature if jnp.issubdtype(x.dtype, jnp.floating) else x

        mode, drawn = policy.mode(), policy.sample(jax.tree.map(scaled, noise))
        return {
            # Noise made of key bits cannot be scaled; the sample drawn with it is moved towards the mode
            # instead.
            name: x
            if jnp.issubdtype(noise[name].dtype, jnp.floating)
            else mode[name] + temperature * (x - mode[name])
            for name, x in drawn.items()
        }

    def log_prob(self, outputs: Arrays, observation: Arrays, action: Arrays) -> Array:
        """Return the log-probability under the policy at temperature 1."""
        return self.policy.distribution(outputs, masks_of(observation)).log_prob(action)

    def outputs(self, params: Tree, frozen: Tree, view: View) -> Arrays:
        """Return the outputs that define the policy."""
        return self.outputs_of("model", params["model"], frozen, view)

    def divergence(self, observation: Arrays, old: Arrays, new: Arrays) -> Array:
        """Return the KL divergence `[R]` between the policies that two sets of outputs define."""
        masks = masks_of(observation)
        kl: Array = self.policy.distribution(old, masks).kl(self.policy.distribution(new, masks))
        return kl

    def state_value(self, params: Tree, frozen: Tree, view: View) -> Array:
        """Return the baseline's values `[R]`."""
        name = "model" if self.shared else "baseline"
        return self.outputs_of(name, params[name], frozen, view)[VALUE]

    def values(self, params: Tree, target: Tree, frozen: Tree, view: View) -> Array:
        """Return the baseline's values, `[R, 1]`."""
        return self.state_value(params, frozen, view)[:, None]

    def value_loss(self, params: Tree, frozen: Tree, rows: Rows) -> tuple[Array, Metrics]:
        """Return the baseline's loss."""
        value = self.state_value(params, frozen, rows.view)
        loss = self.error(value - rows.target[:, 0])
        return loss, {"loss/value": loss}

    def loss(self, params: Tree, frozen: Tree, rows: Rows) -> tuple[Array, Metrics]:
        """Return the policy's loss less its weighted entropy, plus the baseline's if they share steps."""
        c = self.config
        outputs = self.outputs(params, frozen, rows.view)
        policy = self.policy.distribution(outputs, masks_of(rows.view.observation))
        log_prob, entropy = policy.log_prob(rows.action), policy.entropy()
        metrics: Metrics = {"policy/entropy": entropy}
        if (std := policy.std()) is not None:
            metrics["policy/std"] = std
        if c.weighs:
            log_ratio = log_prob - rows.log_prob
            metrics["update/kl"] = jnp.expm1(log_ratio) - log_ratio
        if c.clipping_value is not None:
            policy_loss = losses.clipped_surrogate(log_ratio, rows.advantage, clip=c.clipping_value)
        elif c.importance_sampling:
            policy_loss = -rows.advantage * losses.importance_ratio(log_ratio)
        else:
            policy_loss = -rows.advantage * log_prob
        metrics["loss/policy"] = policy_loss
        total = policy_loss - c.entropy_regularization * entropy
        if c.baseline_model is None or c.baseline_optimizer is not None:
            return total, metrics
        value_loss, watched = self.value_loss(params, frozen, rows)
        return total + c.baseline_weight * value_loss, {**metrics, **watched}

    def imitation(self, params: Tree, frozen: Tree, rows: Rows, counts: Array) -> Array:
        """Return the loss of cloning the actions taken, plus the error of the baseline's values."""
        outputs = self.outputs(params, frozen, rows.view)
        cloned = imitation.policy(self.log_prob(outputs, rows.view.observation, rows.action), counts)
        if self.config.baseline_model is None:
            return cloned
        value = self.state_value(params, frozen, rows.view)
        return cloned + imitation.value(value, rows.target[:, 0], counts)


@dataclasses.dataclass(frozen=True, eq=False)
class DeterministicGradient(Networks):
    """A deterministic policy ascends the values of its actions, learned by the baseline.

    L = -Q(s, μ(s)) with Q held fixed (Silver et al. 2014, equation 9), and the error of Q(s, a) against its
    target, which bootstraps from Q_target(s', μ_target(s')) (Lillicrap et al. 2016). For networks, actions
    are in units (`operant.agents.parts.action_scaling`).
    """

    def heads(self) -> dict[str, Head]:
        """Return one head per action, in units."""
        return unit_heads(self.spaces.actions.components)

    def baseline_inputs(self) -> dict[str, Leaf]:
        """Return states and actions."""
        return critic_inputs(super().baseline_inputs(), self.spaces.actions.components)

    def followed(self, params: Tree) -> Tree:
        """Both networks have targets."""
        return dict(params)

    def act(self, outputs: Arrays, observation: Arrays, noise: Tree, explore: bool) -> Arrays:
        """Take the policy's action."""
        return from_units(self.spaces.actions.components, self._clipped(outputs))

    @staticmethod
    def _clipped(units: Arrays) -> Arrays:
        return {name: jnp.clip(x, -1.0, 1.0) for name, x in units.items()}

    def policy(self, params: Tree, frozen: Tree, view: View) -> Arrays:
        """Return the policy's actions `[R, *shape]`, in units."""
        return self._clipped(self.outputs_of("model", params, frozen, view))

    def inputs_of(self, name: str, rows: Rows) -> Arrays:
        """Return states, and for the baseline the actions taken as well."""
        observation = rows.view.observation
        return observation if name == "model" else self.experienced(observation, rows.action)

    def experienced(self, observation: Arrays, action: Arrays) -> Arrays:
        """Return observations together with the actions taken."""
        return with_actions(observation, self._units(action), self.spaces)

    def _units(self, action: Arrays) -> Arrays:
        return self._clipped(to_units(self.spaces.actions.components, action))

    def action_value(self, params: Tree, frozen: Tree, view: View, units: Arrays) -> Array:
        """Return the baseline's values `[R]` of actions in units; a recurrent one read those before."""
        model, variables = self.models["baseline"], {"params": params, "state": frozen["baseline"]}
        inputs = with_actions(view.observation, units, self.spaces)
        carry = self._states(model, variables, view) if model.recurrent else ()
        return model.apply(variables, inputs, carry)[0][VALUE]

    def _states(self, model: Model, variables: Tree, view: View) -> Tree:
        assert not isinstance(view.valid, tuple) and not isinstance(view.taken, tuple)
        T, n = view.valid.shape
        inputs = {name: x[: T * n] for name, x in view.observation.items()}
        inputs = self.experienced(inputs, view.taken)
        inputs = {name: x.reshape(T, n, *x.shape[1:]) for name, x in inputs.items()}
        states = model.states(variables, inputs, view.carry["baseline"], begins(view.valid))
        rows = len(next(iter(view.observation.values())))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:rows], states)

    def values(self, params: Tree, target: Tree, frozen: Tree, view: View) -> Array:
        """Return the target networks' values of the target policy's actions, `[R, 1]`."""
        units = self.policy(target["model"], frozen, view)
        return self.action_value(target["baseline"], frozen, view, units)[:, None]

    def value_loss(self, params: Tree, frozen: Tree, rows: Rows) -> tuple[Array, Metrics]:
        """Return the baseline's loss for the actions taken."""
        value = self.action_value(params["baseline"], frozen, rows.view, self._units(rows.action))
        loss = self.error(value - rows.target[:, 0])
        return loss, {"loss/value": loss, "value/mean": value}

    def loss(self, params: Tree, frozen: Tree, rows: Rows) -> tuple[Array, Metrics]:
        """Return the policy's loss, plus the baseline's if one optimizer serves both."""
        c, units = self.config, self.policy(params["model"], frozen, rows.view)
        critic = jax.lax.stop_gradient(params["baseline"])
        policy_loss = -self.action_value(critic, frozen, rows.view, units)
        metrics: Metrics = {"loss/policy": policy_loss}
        if c.baseline_optimizer is not None:
            return policy_loss, metrics
        value_loss, watched = self.value_loss(params, frozen, rows)
        return policy_loss + c.baseline_weight * value_loss, {**metrics, **watched}

    def imitation(self, params: Tree, frozen: Tree, rows: Rows, counts: Array) -> Array:
        """Return the mean squared distance of the policy's actions from those taken, in units."""
        chosen = self.policy(params["model"], frozen, rows.view)
        return imitation.distance(chosen, to_units(self.spaces.actions.components, rows.action), counts)


@dataclasses.dataclass(frozen=True, eq=False)
class ActionValue(Networks):
    """The values of actions approach their targets; acting takes the best (Mnih et al. 2015)."""

    def heads(self) -> dict[str, Head]:
        """Return a head for each action, and one more with `dueling`."""
        return q_heads(self.spaces, dueling=self.config.dueling)

    def followed(self, params: Tree) -> Tree:
        """The network has a target."""
        return params["model"]

    def act(self, outputs: Arrays, observation: Arrays, noise: Tree, explore: bool) -> Arrays:
        """Take the allowed actions of the highest values."""
        masks, action = masks_of(observation), {}
        for name, q in joined(outputs, self.spaces).items():
            allowed = jnp.where(masks[name], q, -jnp.inf) if name in masks else q
            leaf = self.spaces.actions.components[name]
            action[name] = jnp.argmax(allowed, axis=-1).astype(jnp.dtype(leaf.dtype))
        return action

    def q_values(self, params: Tree, frozen: Tree, view: View) -> Arrays:
        """Return the values of all actions, `[R, *shape, K]` by name."""
        return joined(self.outputs_of("model", params, frozen, view), self.spaces)

    def values(self, params: Tree, target: Tree, frozen: Tree, view: View) -> Array:
        """Return the target network's values of the best actions by itself or (`double`) the online one."""
        slow = self.q_values(target, frozen, view)
        choosing = self.q_values(params["model"], frozen, view) if self.config.double else slow
        masks, best_values = masks_of(view.observation), []
        for name, q in slow.items():
            best = losses.double_target(q, choosing[name], masks.get(name))
            best_values.append(best.reshape(len(best), -1))
        return jnp.concatenate(best_values, axis=1)

    def loss(self, params: Tree, frozen: Tree, rows: Rows) -> tuple[Array, Metrics]:
        """Return the mean error over the elements of the actions."""
        q = self.q_values(params["model"], frozen, rows.view)
        taken = [ExpectedValue().taken(q[name], rows.action[name]) for name in self.spaces.actions.components]
        value = jnp.concatenate(taken, axis=1)
        mean = jnp.mean(self.error(value - rows.target), axis=1)
        return mean, {"loss/td": mean, "value/mean": jnp.mean(value, axis=1)}

    def imitation(self, params: Tree, frozen: Tree, rows: Rows, counts: Array) -> Array:
        """Return by how much other actions' values come too near to those of the actions taken."""
        q_values = self.q_values(params["model"], frozen, rows.view)
        return imitation.margin(q_values, rows.action, masks_of(rows.view.observation), counts)


Objective: TypeAlias = PolicyGradient | DeterministicGradient | ActionValue
OBJECTIVES: dict[str, type[Objective]] = {
    "policy_gradient": PolicyGradient,
    "deterministic_policy_gradient": DeterministicGradient,
    "action_value": ActionValue,
}
