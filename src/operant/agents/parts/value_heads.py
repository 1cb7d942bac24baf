"""What the outputs of a Q-network say of an action: its expected return, or the return's distribution.

A head outputs `[*B, *action shape, values]`, with one more axis of atoms for distributions. The elements of
all actions side by side form the axis `E`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from operant.ops import distributional, losses
from operant.types import Array


class ValueFit(NamedTuple):
    """How far outputs are from their targets; leaves `[B, E]`."""

    loss: Array
    """To be minimised."""
    error: Array
    """Not negative: the priority in replay."""


@dataclasses.dataclass(frozen=True)
class ExpectedValue:
    """The output is the expected return: Mnih et al. 2015."""

    huber: float | None = None
    """Error beyond which the loss is linear; None: squared everywhere."""
    atoms: tuple[int, ...] = ()
    """Axes of an output after that of the values."""

    def mean(self, output: Array) -> Array:
        """Return expected returns: the output without its atoms."""
        return output

    def taken(self, output: Array, action: Array) -> Array:
        """Return the outputs `[B, E, *atoms]` of the actions `[B, *action shape]`."""
        return _elements(losses.pick(output, action.astype(jnp.int32)), 0)

    def best(self, output: Array, online: Array, mask: Array | None) -> Array:
        """Return outputs `[B, E, *atoms]` of the allowed values with the best `online` return, or 0."""
        return _elements(losses.double_target(output, online, mask), 0)

    def fit(self, taken: Array, reward: Array, discount: Array, following: Array) -> ValueFit:
        """Compare outputs with the target r + γ · following, a constant: squared (or Huber) TD error.

        Its size is the priority. What was taken and what follows is `[B, E, *atoms]`, the reward `[B, 1]`,
        the discount `[B, E]` or `[B, 1]`, 0 where nothing follows.
        """
        error = jax.lax.stop_gradient(reward + discount * following) - taken
        loss = losses.squared(error) if self.huber is None else losses.huber(error, delta=self.huber)
        return ValueFit(loss, jnp.abs(error))


@dataclasses.dataclass(frozen=True)
class ValueDistribution:
    """Base of the distributions: one more axis of atoms."""

    size: int
    """Number of atoms."""

    @property
    def atoms(self) -> tuple[int, ...]:
        """One axis."""
        return (self.size,)

    def taken(self, output: Array, action: Array) -> Array:
        """Return the atoms of actions."""
        values = jnp.moveaxis(output, -2, -1)
        index = jnp.broadcast_to(action.astype(jnp.int32)[..., None], values.shape[:-1])
        return _elements(losses.pick(values, index), 1)

    def best(self, output: Array, online: Array, mask: Array | None) -> Array:
        """Return the atoms of the best actions; of some action where none is allowed."""
        allowed = online if mask is None else jnp.where(mask, online, -jnp.inf)
        return self.taken(output, jnp.argmax(allowed, axis=-1))


@dataclasses.dataclass(frozen=True)
class CategoricalValue(ValueDistribution):
    """The outputs are logits of fixed atoms (C51): Bellemare et al. 2017."""

    low: float | Array
    high: float | Array

    @property
    def support(self) -> Array:
        """The atoms z."""
        return distributional.support(self.low, self.high, self.size)

    def mean(self, output: Array) -> Array:
        """Return Σ_i z_i p_i."""
        atoms = self.support.reshape((1,) * (output.ndim - 1) + (-1,))
        return jnp.sum(jax.nn.softmax(output, axis=-1) * atoms, axis=-1)

    def fit(self, taken: Array, reward: Array, discount: Array, following: Array) -> ValueFit:
        """Return the cross-entropy to the projected target (algorithm 1); the divergence is the priority."""
        position = reward[..., None] + discount[..., None] * self.support.reshape(1, 1, -1)
        weight = jax.nn.softmax(following, axis=-1)
        target = distributional.project(position, weight, self.low, self.high, self.size)
        target = jax.lax.stop_gradient(target)
        loss = distributional.cross_entropy(target, taken)
        # A divergence is not negative; the difference of two rounded sums may be.
        return ValueFit(loss, jnp.maximum(loss - distributional.entropy(target), 0.0))


@dataclasses.dataclass(frozen=True)
class QuantileValue(ValueDistribution):
    """The outputs are quantiles of the return, at evenly spaced fractions (QR-DQN): Dabney et al. 2018."""

    huber: float | None
    """κ; None: 1."""

    def mean(self, output: Array) -> Array:
        """Return the mean of the quantiles."""
        return jnp.mean(output, axis=-1)

    def fit(self, taken: Array, reward: Array, discount: Array, following: Array) -> ValueFit:
        """Return the quantile Huber loss (equation 10); the mean absolute difference is the priority."""
        target = jax.lax.stop_gradient(reward[..., None] + discount[..., None] * following)
        kappa = 1.0 if self.huber is None else self.huber
        loss = distributional.quantile_huber(taken, target, delta=kappa)
        return ValueFit(loss, distributional.distance(taken, target))


ValueHead: TypeAlias = ExpectedValue | CategoricalValue | QuantileValue
"""One way to read outputs."""


def _elements(x: Array, atoms: int) -> Array:
    return x.reshape(x.shape[0], math.prod(x.shape[1 : x.ndim - atoms]), *x.shape[x.ndim - atoms :])
