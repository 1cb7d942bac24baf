"""Passes over a block in shuffled minibatches, all gradient steps in one scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from operant.agents.base.updates import STEP_COUNTS
from operant.errors import value_error
from operant.ops import prng
from operant.ops.sharding import spread
from operant.types import Array, Key, Metrics, Tree

L = TypeVar("L")
Part: TypeAlias = tuple[Any, Tree, Any]
"""A minibatch, its part of `carry`, and a key of its own, None unless the pass is `noisy`."""

_NOISE = 0xD20
"""Folded into the key of an epoch to derive those of its minibatches."""


def divisible(
    config: Any, units: int, made_of: str, more: str = "a larger n_steps or more environments"
) -> None:
    """Refuse more `mini_batches` than there are units to share out, of which `more` makes more.

    Raises:
        SpecError: names `mini_batches`, the units and what they are made of.
    """
    if units < config.mini_batches:
        raise value_error(
            "mini_batches",
            f"at most {units} ({made_of})",
            config.mini_batches,
            f"Use fewer mini_batches, {more}.",
        )


def passes(
    step: Callable[[L, Part], tuple[L, Metrics]],
    learned: L,
    batch: Tree,
    key: Key,
    *,
    epochs: int,
    parts: int,
    carry: Tree = (),
    sequences: bool = False,
    noisy: bool = False,
) -> tuple[L, Metrics]:
    """Pass over a block several times, each time in newly shuffled minibatches.

    If the rows do not divide into the minibatches, each pass leaves out a different random remainder.

    Args:
        step: takes what is learned and a minibatch; returns the former after the step, and metrics (NaN: does
            not apply).
        learned: what the steps change.
        batch: leaves `[T, N, ...]`.
        key: consumed.
        epochs: number of passes.
        parts: minibatches of a pass.
        carry: leaves `[N, ...]`, only with `sequences`.
        sequences: whether minibatches are whole columns, `[T, B, ...]`, instead of rows, `[B, ...]`.
        noisy: whether each step wants a key.

    Returns:
        What is learned in the end, and the mean of every metric over the steps to which it applies, of those
        in `STEP_COUNTS` the sum.
    """
    axis = 1 if sequences else 0
    if not sequences:  # rows are independent of one another
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    units = jax.tree.leaves(batch)[0].shape[axis]
    size = units // parts

    def epoch(learned: L, words: Array) -> tuple[L, Metrics]:
        # One gather per epoch, then slices: cheaper than a gather per minibatch.
        own = jax.random.wrap_key_data(words, impl=jax.random.key_impl(key))
        order = prng.permutation(own, units)[: size * parts].reshape(-1, size)
        shares = jax.tree.map(lambda x: jnp.moveaxis(jnp.take(x, order, axis=axis), axis, 0), batch)
        starts = jax.tree.map(lambda x: jnp.take(x, order, axis=0), carry)
        shares, starts = spread(shares, 1 + axis), spread(starts, 1)
        data: Tree = ()
        if noisy:
            data = prng.bits(jax.random.fold_in(own, _NOISE), (parts, *words.shape))
        return jax.lax.scan(each, learned, (shares, starts, data))

    def each(learned: L, part: tuple[Tree, Tree, Tree]) -> tuple[L, Metrics]:
        share, start, words = part
        own = jax.random.wrap_key_data(words, impl=jax.random.key_impl(key)) if noisy else None
        return step(learned, (share, start, own))

    # As plain numbers: under `vmap`, JAX's key-reuse check considers the keys of a scan used.
    words = jax.random.key_data(jax.random.split(key, epochs))
    learned, metrics = jax.lax.scan(epoch, learned, words)
    return learned, {k: jnp.sum(x) if k in STEP_COUNTS else jnp.nanmean(x) for k, x in metrics.items()}
