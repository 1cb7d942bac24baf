"""What off-policy algorithms with a deterministic actor share: acting by Gaussian noise, climbing a
critic, delayed moves.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from operant.agents.parts.action_scaling import unit_heads
from operant.agents.parts.off_policy import NO_STEP, Continuous, CriticStep, ReplayBatch, merged
from operant.nn import Head
from operant.ops import losses
from operant.ops.repeat import once_if
from operant.spec.spaces import Spaces
from operant.types import Array, Arrays, Key, Metrics, Tree


@dataclasses.dataclass(frozen=True, eq=False)
class Deterministic(Continuous):
    """Base of the algorithms whose actor gives one action, and that explore by Gaussian noise."""

    @staticmethod
    def heads(spaces: Spaces) -> dict[str, Head]:
        """Return one head per action.

        Its output is the action in units; a Keras model as actor must end in tanh itself.
        """
        return unit_heads(spaces.actions.components)

    def greedy(self, outputs: Arrays) -> Arrays:
        """Return the actor's output, in units."""
        return {name: jnp.clip(outputs[name], -1.0, 1.0) for name in self.spaces.actions.components}

    def exploring(self, outputs: Arrays, noise: Arrays) -> Arrays:
        """Add noise of standard deviation `step_noise_coef`, and clip to the bounds."""
        coef, units = self.config.step_noise_coef, self.greedy(outputs)
        return {name: jnp.clip(x + coef * noise[name], -1.0, 1.0) for name, x in units.items()}

    def actor_loss(self, params: Tree, state: Any, critic: Tree, batch: ReplayBatch) -> tuple[Array, Tree]:
        """Return -mean Q₁(s, μ(s)) (Silver et al. 2014, eq. 9, written as a loss), and nothing else.

        The state is from `learning`.
        """
        name = next(iter(self.critics))
        units = self.greedy(self.outputs({**state.actor, "params": params}, batch.now))
        value = self.value(name, {**getattr(state, name), "params": critic}, batch.now, units)
        return -losses.weighted_mean(value, batch.weight), ()

    def move(
        self, state: Any, improved: CriticStep, batch: ReplayBatch, due: Array, key: Key
    ) -> tuple[Any, Metrics]:
        """Store the improved critics; if `due`, step the actor as well, and let all targets follow."""
        names, learning = ("actor", *self.critics), self.learning(state, key, 1)

        def once(carry: tuple[Tree, Tree, Tree, Metrics]) -> tuple[Tree, Tree, Tree, Metrics]:
            params, optimizer, slow, _ = carry
            params, optimizer, metrics, _ = self.improve_actor(
                params, optimizer, lambda p: self.actor_loss(p, learning, improved.params[0], batch)
            )
            params = self.actor.averaged(params, learning.actor, batch.now.observation)
            return params, optimizer, self.follow(slow, (params, *improved.params)), metrics

        slow = tuple(getattr(state, f"target_{name}") for name in names)
        start = (state.actor["params"], state.actor_optimizer, slow, NO_STEP)
        params, optimizer, slow, metrics = once_if(due, once, start)
        online = zip(names, (params, *improved.params), strict=True)
        state = state._replace(
            **{name: {**getattr(state, name), "params": own} for name, own in online},
            **{f"target_{name}": own for name, own in zip(names, slow, strict=True)},
            actor_optimizer=optimizer,
            critic_optimizer=improved.optimizer,
        )
        return state, merged(improved, metrics)

    def spread(self) -> Array:
        """Return the standard deviation of the acting noise in the environment's scale, the mean over
        action elements.
        """
        leaves = self.spaces.actions.components.values()
        half = np.concatenate([(leaf.high / 2 - leaf.low / 2).reshape(-1) for leaf in leaves])
        return jnp.asarray(self.config.step_noise_coef, jnp.float32) * np.float32(half.mean())
