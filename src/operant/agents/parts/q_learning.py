"""What Q-learning algorithms share: a network with a value for every choice of every action, and acting by
it.

Actions of several components, or of components with a shape, have one set of values per element. Each element
learns as if it were alone, from the shared reward (independent learners: Tan 1993).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp

from operant.agents.base.protocol import Counters
from operant.agents.parts import imitation
from operant.agents.parts.actor_critic import evaluate
from operant.agents.parts.one_network import OneNetwork
from operant.agents.parts.value_heads import ExpectedValue, ValueHead
from operant.agents.table import serving
from operant.nn import Head, build
from operant.spec.spaces import Spaces, masks_of, require
from operant.types import Action, Array, Arrays, Key, Rollout, Tree


class QPolicyState(NamedTuple):
    """What acting reads."""

    variables: Tree
    """Of the network, to act greedily."""
    epsilon: Array
    """Probability of a random action."""
    exploring: Tree = ()
    """Parameters to explore with instead; `()` if they are the same."""


def q_heads(spaces: Spaces, *, atoms: tuple[int, ...] = (), dueling: bool = False) -> dict[str, Head]:
    """Return a head for each action, and with `dueling` one more for the state, under `<action>/value`."""
    heads: dict[str, Head] = {}
    for component, leaf in spaces.actions.components.items():
        heads[component] = Head((*leaf.shape, leaf.num_values or 2, *atoms), scale=1.0)
        if dueling:
            heads[f"{component}/value"] = Head((*leaf.shape, 1, *atoms), scale=1.0)
    return heads


def joined(outputs: Arrays, spaces: Spaces, atoms: int = 0) -> Arrays:
    """Return values per action, of advantages and the state's value if any (Wang et al. 2016, eq. 9).

    `outputs` are by head; `atoms` is the number of axes after that of the values.
    """
    values: Arrays = {}
    for name in spaces.actions.components:
        advantage, value = outputs[name], outputs.get(f"{name}/value")
        if value is not None:
            advantage = value + advantage - jnp.mean(advantage, -1 - atoms, keepdims=True)
        values[name] = advantage
    return values


@dataclasses.dataclass(frozen=True, eq=False)
class QLearner(OneNetwork):
    """Base of Q-learning algorithms: they add `init`, `update` and the rest, and options of ε."""

    keeps_carry: ClassVar[bool] = True
    """Whether a replay memory needs the recurrent state before each row, among its extras."""

    @classmethod
    def build(
        cls,
        config: Any,
        spaces: Spaces,
        actors: int,
        name: str,
        *,
        network: Any,
        atoms: tuple[int, ...] = (),
        dueling: bool = False,
    ) -> Self:
        """Build a head for each action, and with `dueling` for the state; SpaceError: one is a float."""
        require(spaces, name, {"int", "bool"}, serving(spaces))
        heads = q_heads(spaces, atoms=atoms, dueling=dueling)
        model = build(network, spaces.states.components, heads, normalize=config.normalize_observations)
        return cls(config, spaces, actors, model)

    @property
    def values(self) -> ValueHead:
        """What the network's outputs mean."""
        return ExpectedValue()

    @property
    def random_steps(self) -> int:
        """Environment steps with random actions, after which ε begins to fall."""
        return 0

    def epsilon(self, counters: Counters) -> Array:
        """Return the exploration rate: 1 for the first `random_steps`, then linear from start to end."""
        c = self.config
        steps = counters.timesteps.astype(jnp.float32)
        fraction = jnp.clip((steps - self.random_steps) / c.epsilon_decay_steps, 0.0, 1.0)
        falling = c.epsilon_start + fraction * (c.epsilon_end - c.epsilon_start)
        return jnp.where(steps < self.random_steps, 1.0, falling)

    def acting(self, state: Any, counters: Counters) -> QPolicyState:
        """Acting needs the network and ε."""
        return QPolicyState(state.variables, self.epsilon(counters))

    def noise(self, key: Key, n: int) -> Tree:
        """Return a coin for each actor, and the numbers by which action elements draw random actions."""
        keys = jax.random.split(key, len(self.spaces.actions.components) + 1)
        draws = {
            name: jax.random.uniform(k, (n, *leaf.shape, leaf.num_values or 2), jnp.float32)
            for k, (name, leaf) in zip(keys[1:], self.spaces.actions.components.items(), strict=True)
        }
        return jax.random.uniform(keys[0], (n,), jnp.float32), draws

    def joined(self, outputs: Arrays) -> Arrays:
        """Return the outputs per action, `[..., *action shape, values, *atoms]`, from those by head."""
        return joined(outputs, self.spaces, len(self.values.atoms))

    def outputs(self, variables: Tree, observation: Arrays, carry: Tree = ()) -> Arrays:
        """Return the outputs per action for observations, `[..., *action shape, values, *atoms]`."""
        return self.joined(self.model.apply(variables, observation, carry)[0])

    def expected(self, outputs: Arrays) -> Arrays:
        """Return expected returns per action, `[..., *action shape, values]`, from outputs by head."""
        values = self.values
        return {name: values.mean(x) for name, x in self.joined(outputs).items()}

    def q_values(self, variables: Tree, observation: Arrays, carry: Tree = ()) -> Arrays:
        """Return expected returns per action for observations, `[..., *action shape, values]`."""
        return self.expected(self.model.apply(variables, observation, carry)[0])

    def evaluate(self, variables: Tree, observation: Arrays, carry: Tree, valid: Array) -> Arrays:
        """Return rows' expected returns per action, as `actor_critic.evaluate` does."""
        return self.expected(evaluate(self.model, variables, observation, carry, valid))

    def imitation(self, weights: dict[str, Tree], block: Rollout) -> Array:
        """Return the imitation loss on a block: `operant.agents.parts.imitation.margin`."""
        observation = {name: x[:-1] for name, x in block.observation.items()}
        q_values = self.evaluate(weights["model"], observation, block.carry, block.valid)
        return imitation.margin(q_values, block.action, masks_of(observation), block.valid)

    def act(
        self, acting: QPolicyState, observation: Arrays, carry: Tree, noise: Tree, explore: bool
    ) -> Action:
        """Act greedily, or with probability ε at random; each actor tosses its own coin.

        A recurrent network sees every row, even if the action is random. Extras hold the state before it, if
        replay needs it.
        """
        coin, draws = noise
        masks = masks_of(observation)
        variables = acting.variables
        if explore and acting.exploring != ():
            variables = {**variables, "params": acting.exploring}
        outputs, after = self.model.apply(variables, observation, carry)
        action: Arrays = {}
        for name, q in self.expected(outputs).items():
            leaf = self.spaces.actions.components[name]
            allowed = masks.get(name)
            if explore:
                random = coin.reshape(-1, *[1] * (q.ndim - 1)) < acting.epsilon
                q = jnp.where(random, draws[name], q)
            if allowed is not None:
                q = jnp.where(allowed, q, -jnp.inf)
            action[name] = jnp.argmax(q, axis=-1).astype(jnp.dtype(leaf.dtype))
        return Action(action, {"carry": carry} if self.keeps_carry and self.model.recurrent else (), after)
