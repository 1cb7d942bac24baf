"""What actor-critics that learn from fresh blocks share: one model of the policy's heads and a value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import jax

from operant.agents.parts import imitation
from operant.agents.parts.one_network import OneNetwork
from operant.agents.parts.sequences import begins
from operant.memory.replay import Replay
from operant.nn import Head, Model, Policy, build, is_image
from operant.ops import losses, returns
from operant.ops.distributions import Product
from operant.spec.spaces import Spaces, masks_of
from operant.types import Action, Array, Arrays, Key, Metrics, Rollout, Tree


class Estimate(NamedTuple):
    """The critic's estimates for a block; leaves `[T, N]`."""

    value: Array
    advantage: Array
    target: Array
    """What the value is fitted to: advantage + value."""


def evaluate(model: Model, variables: Tree, observation: Arrays, carry: Tree, valid: Array) -> Arrays:
    """Run a model over successive rows; a recurrent one from `carry`, starting anew after each invalid row.

    The observation has leaves `[R, N, ...]`, the carry (before row 0) `[N, ...]`, and `valid` is `[R, N]`, or
    `[R - 1, N]` as in a block, whose observation has one more row. Returns outputs by head, `[R, N,
    *head.shape]`.
    """
    if not model.recurrent:
        return model.apply(variables, observation)[0]
    rows = next(iter(observation.values())).shape[0]
    return model.unroll(variables, observation, carry, begins(valid, rows))[0]


def watch(policy: Product, weight: Array) -> Metrics:
    """Return metrics of a policy: entropy, and the standard deviation of continuous actions, if any."""
    metrics = {"policy/entropy": losses.weighted_mean(policy.entropy(), weight)}
    std = policy.std()
    return metrics if std is None else metrics | {"policy/std": losses.weighted_mean(std, weight)}


@dataclasses.dataclass(frozen=True, eq=False)
class ActorCritic(OneNetwork):
    """Base of on-policy algorithms: they add `init`, `update` and a state."""

    policy: Policy
    keeps_log_prob: ClassVar[bool] = True
    """Whether the update needs the log-probability that an action had when it was drawn, among the extras
    of its row."""

    @classmethod
    def build(cls, config: Any, spaces: Spaces, actors: int) -> Self:
        """Build the policy's heads and a value on one network, or on one each (see the option `separate`)."""
        separate = config.separate
        if separate is None:
            # In a small trunk the value's gradients, of the size of returns, outweigh the policy's.
            # Convolutions cost more
            # than that.
            states = spaces.states.components.values()
            separate = not any(is_image(leaf.shape, leaf.num_values) for leaf in states)
        policy = Policy(spaces.actions.components, std=config.std, bounded=config.distribution)
        model = build(
            config.model,
            spaces.states.components,
            {**policy.heads(), "value": Head((), scale=1.0)},
            towers=(tuple(policy.heads()), ("value",)) if separate else (),
            normalize=config.normalize_observations,
        )
        return cls(config, spaces, actors, model, policy)

    @property
    def rows(self) -> int:
        """Rows per actor and update."""
        return int(self.config.n_steps)

    @property
    def memory(self) -> Replay | None:
        """None: on-policy."""
        return None

    def noise(self, key: Key, n: int) -> Tree:
        """Return the policy's noise."""
        return self.policy.noise(key, n)

    def act(self, acting: Tree, observation: Arrays, carry: Tree, noise: Tree, explore: bool) -> Action:
        """Draw from the policy (or take its mode)."""

        def choose(policy: Product) -> Arrays:
            return policy.sample(noise) if explore else policy.mode()

        return self.take(acting, observation, carry, choose)

    def recall(self, acting: Tree, observation: Arrays, carry: Tree, action: Arrays) -> Action:
        """Return what `act` would have returned, had it chosen this action."""
        return self.take(acting, observation, carry, lambda policy: action)

    def take(
        self, acting: Tree, observation: Arrays, carry: Tree, choose: Callable[[Product], Arrays]
    ) -> Action:
        """Take the action that `choose` picks from the policy, with the extras that the update needs."""
        outputs, carry = self.model.apply(acting, observation, carry)
        policy = self.policy.distribution(outputs, masks_of(observation))
        action = choose(policy)
        extras = {"log_prob": policy.log_prob(action)} if self.keeps_log_prob else {}
        return Action(action, extras, carry)

    def imitation(self, weights: dict[str, Tree], block: Rollout) -> Array:
        """Return the imitation loss on a block: -mean log π(a|s), and the error of values to λ-returns."""
        variables = weights["model"]
        outputs = self.evaluate(variables, block.observation, block.carry, block.valid)
        return self.clone(outputs, self.steady(variables, outputs, block), block)

    def steady(self, variables: Tree, outputs: Arrays, block: Rollout) -> Array:
        """Return the values for returns: of `outputs`, or of the network as in use if training differs."""
        if self.model.learns_otherwise:
            variables = self.model.in_use(variables)
            outputs = self.evaluate(variables, block.observation, block.carry, block.valid)
        return jax.lax.stop_gradient(outputs["value"])

    def clone(self, outputs: Arrays, steady: Array, block: Rollout) -> Array:
        """Return the loss of `imitation` for outputs and steady values of all rows `[T + 1, N]`."""
        value, target = outputs["value"], self.advantages(steady, block).target
        outputs, observation = jax.tree.map(lambda x: x[:-1], (outputs, block.observation))
        policy = self.policy.distribution(outputs, masks_of(observation))
        cloned = imitation.policy(policy.log_prob(block.action), block.valid)
        return cloned + imitation.value(value[:-1], target, block.valid)

    def evaluate(self, variables: Tree, observation: Arrays, carry: Tree, valid: Array) -> Arrays:
        """Run the model over rows; see the function of this name."""
        return evaluate(self.model, variables, observation, carry, valid)

    def estimate(self, variables: Tree, block: Rollout) -> Estimate:
        """Run generalised advantage estimation with the model's values over all rows of a block."""
        value = self.evaluate(variables, block.observation, block.carry, block.valid)["value"]
        return self.advantages(value, block)

    def advantages(self, value: Array, block: Rollout) -> Estimate:
        """Run generalised advantage estimation with given values `[T + 1, N]`."""
        discount = returns.discounts(block.terminated, gamma=self.config.gamma)
        trace = returns.traces(block.truncated, block.valid, lambda_=self.config.lam)
        advantage = returns.gae(block.reward, discount, value, trace)
        return Estimate(value[:-1], advantage, advantage + value[:-1])
