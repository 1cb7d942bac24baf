"""Several gradient steps on the rows of a batch, each on all of them or on a sample.

The number of rows that count may be far below the number that arrays have room for, and is known only when the code runs. So a
step goes through the rows that count in chunks, and its time follows their number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int, UInt32

from operant.ops import optimise, random
from operant.ops.optimise import Scalar
from operant.types import Array, Metrics, Tree

CHUNK = 1024
"""Rows that a loss is called with at once, if there are more."""

Loss: TypeAlias = Callable[[Tree, Any], tuple[Array, Metrics]]
"""(parameters, rows `[C, ...]`) to the loss of every row and numbers to watch, `[C]`."""


class Plan(NamedTuple):
    """What an update does with its batch."""

    steps: Scalar
    """Gradient steps."""
    fraction: Scalar | None = None
    """Rows of a step: a share up to 1, else a number; None: all."""
    l2: Scalar = 0.0
    """Weight of the sum of squared parameters."""


def fit(
    loss: Loss,
    params: Tree,
    opt_state: Tree,
    optimizer: optimise.Optimizer,
    rows: Any,
    counts: Bool[Array, " R"],
    plan: Plan,
    words: UInt32[Array, " K"],
) -> tuple[Tree, Tree, Metrics]:
    """Take the planned gradient steps on the mean loss.

    Args:
        loss: of single rows.
        params: what is learned.
        opt_state: of the optimizer.
        optimizer: takes the steps.
        rows: leaves `[R, ...]`.
        counts: which rows make the batch. If there are none, nothing changes.
        plan: how many steps on how many rows.
        words: key data, for the samples.

    Returns:
        Parameters, the optimizer's state, means of what is watched over the steps, and the sum of those skipped.
    """
    number = jnp.sum(counts, dtype=jnp.int32)
    size = number if plan.fraction is None else _size(plan.fraction, number)
    shapes = jax.eval_shape(lambda: _gradient(loss, params, rows, _ordered(counts, None), size)[1])
    names = (*shapes, "grad_norm", "skipped")

    def step(i: Array, carry: tuple[Tree, Tree, Array]) -> tuple[Tree, Tree, Array]:
        params, opt_state, total = carry
        key = None if plan.fraction is None else jax.random.fold_in(jax.random.wrap_key_data(words), i)
        grads, watched = _gradient(loss, params, rows, _ordered(counts, key), size)
        grads = jax.tree.map(lambda g, p: g + 2.0 * jnp.asarray(plan.l2, p.dtype) * p, grads, params)
        params, opt_state, info = optimise.apply(optimizer, params, opt_state, grads)
        watched = {**watched, **info}
        return params, opt_state, total + jnp.stack([watched[name] for name in names])

    steps = jnp.where(number > 0, jnp.asarray(plan.steps).astype(jnp.int32), 0)
    start = (params, opt_state, jnp.zeros(len(names)))
    params, opt_state, total = jax.lax.fori_loop(0, steps, step, start)
    mean = dict(zip(names, total / steps.astype(jnp.float32), strict=True))  # NaN without a step
    return params, opt_state, {**mean, "skipped": total[names.index("skipped")]}


def _size(fraction: Scalar, number: Array) -> Int[Array, ""]:
    """Return how many of `number` rows a step sees, at least 1 of them."""
    fraction = jnp.asarray(fraction, jnp.float32)
    wanted = jnp.where(fraction <= 1.0, fraction * number.astype(jnp.float32), fraction)
    return jnp.clip(wanted.astype(jnp.int32), 1, jnp.maximum(number, 1))


def _ordered(counts: Bool[Array, " R"], key: Any) -> Int[Array, " R"]:
    """Return the indices of the rows that count, in random order or (no key) their own, before those of the others."""
    rank = jnp.zeros(counts.shape) if key is None else random.uniform(key, counts.shape)
    return jnp.argsort(jnp.where(counts, rank, 2.0))


def _gradient(loss: Loss, params: Tree, rows: Any, order: Array, size: Array) -> tuple[Tree, Metrics]:
    """Return the gradient of the mean loss of the first `size` rows of an order, and means of what is watched."""
    length = len(order)
    # In place of rows that do not count the first that does, with a weight of 0: a NaN has no gradient of 0.
    order = jnp.where(jnp.arange(length) < size, order, order[0])
    gradient = jax.grad(_weighted, has_aux=True)
    if length <= CHUNK:
        weight = _weights(0, length, size)
        grads, watched = gradient(params, loss, jax.tree.map(lambda x: x[order], rows), weight)
        return grads, watched
    order = jnp.concatenate([order, jnp.zeros(-length % CHUNK, order.dtype)])

    def part(i: Array, total: tuple[Tree, Metrics]) -> tuple[Tree, Metrics]:
        own = jax.lax.dynamic_slice(order, (i * CHUNK,), (CHUNK,))
        weight = _weights(i * CHUNK, CHUNK, size)
        found = gradient(params, loss, jax.tree.map(lambda x: x[own], rows), weight)
        return jax.tree.map(jnp.add, total, found)

    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((CHUNK, *x.shape[1:]), x.dtype), rows)
    shapes = jax.eval_shape(lambda rows: gradient(params, loss, rows, jnp.zeros(CHUNK)), one)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    found: tuple[Tree, Metrics] = jax.lax.fori_loop(0, -(-size // CHUNK), part, zeros)
    return found


def _weights(first: Any, length: int, size: Array) -> Array:
    """Return what each of some rows counts in a mean over the first `size`."""
    inside = first + jnp.arange(length, dtype=jnp.int32) < size
    return jnp.where(inside, 1.0 / jnp.maximum(size, 1).astype(jnp.float32), 0.0)


def _weighted(params: Tree, loss: Loss, rows: Any, weight: Array) -> tuple[Array, Metrics]:
    """Sum up weighted losses, and what is watched likewise."""
    each, watched = loss(params, rows)

    return jnp.sum(each * weight), {
        name: jax.lax.stop_gradient(jnp.sum(x * weight)) for name, x in watched.items()
    }


def apply_in_chunks(f: Callable[[Any], Array], rows: Any) -> Array:
    """Return `f(rows)` for rows `[R, ...]`, computed in chunks if there are many."""
    if len(jax.tree.leaves(rows)[0]) <= CHUNK:
        return f(rows)
    found: Array = jax.lax.map(lambda row: f(jax.tree.map(lambda x: x[None], row))[0], rows, batch_size=CHUNK)
    return found
