"""The types that every layer shares, and the glossary of axes.

Axes, in their order:

====  ==========================================================
T     rows of time in a rollout (one row per vector step)
N     actors (parallel environments), the columns of a rollout
B     samples in a batch
L     rows of a replayed sequence
====  ==========================================================

Experience is a *stream* of rows per actor. An episode of `n` actions takes `n + 1` rows: one per action, and
one for its last observation, on which no action is taken (`valid` is False there). So the observation that
followed row `t` is always the observation of row `t + 1`, even at a time limit, and every frame is stored
once. Vector environments with Gymnasium's next-step autoreset produce exactly this stream.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import jax
from jaxtyping import Bool, Float, Int

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
"""A typed key of `jax.random.key`."""
Tree: TypeAlias = Any
"""A pytree of arrays."""
Arrays: TypeAlias = dict[str, jax.Array]
"""Arrays by flat component name (``"state"``, ``"camera/left"``): one observation or action, with any
leading axes."""
Scalar: TypeAlias = float | Float[Array, ""]
"""A number, which may be traced. The type of options that hold one, or a schedule, is
`operant.spec.Scalar`."""
Metrics: TypeAlias = dict[str, jax.Array]
"""Scalars by documented name, ``group/name``."""


class Rollout(NamedTuple):
    """`T` rows of experience of `N` actors."""

    observation: Arrays
    """Leaves `[T + 1, N, ...]`: row `t + 1` holds what followed row `t`. Action masks are among them."""
    action: Arrays
    """Leaves `[T, N, ...]`, as the policy drew them (before clipping to the bounds)."""
    reward: Float[Array, "T N"]
    terminated: Bool[Array, "T N"]
    """The environment ended: nothing follows, the value of the next observation is zero."""
    truncated: Bool[Array, "T N"]
    """The episode was cut (time limit): the value of the next observation counts."""
    valid: Bool[Array, "T N"]
    """False on the row of an episode's last observation: no action was taken, its other fields mean
    nothing."""
    extras: Tree
    """What `act` returned besides the action (log-probabilities, say). Leaves `[T, N, ...]`."""
    carry: Tree
    """Recurrent state before row 0. Leaves `[N, ...]`; `()` for a feed-forward model."""


class Transition(NamedTuple):
    """`B` sampled steps of replayed experience (over `n` rows for n-step returns)."""

    observation: Arrays
    action: Arrays
    reward: Float[Array, " B"]
    """Discounted sum of the rewards over the step."""
    discount: Float[Array, " B"]
    """What multiplies the value of `next_observation`: gamma^n, or 0 after a termination."""
    next_observation: Arrays
    extras: Tree
    index: Int[Array, " B 2"]  # type: ignore[assignment]  # a tuple has a method of that name
    """Row and column in the memory, to write priorities back."""
    weight: Float[Array, " B"]
    """Importance weight of the sample (1 for uniform replay, 0 for a slot that could not be filled)."""


class Action(NamedTuple):
    """What a policy returns for `N` observations."""

    action: Arrays
    """As drawn: what is stored."""
    extras: Tree
    """Stored beside it, for the update."""
    carry: Tree
    """Recurrent state after this step."""
