"""The loops of gradient steps: on as many batches of a memory as are due, and in passes over a block."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Int

from operant.agents.base.metric_accumulator import STEP_COUNTS, MetricAccumulator
from operant.errors import value_error
from operant.ops import prng
from operant.ops.repeat import repeat
from operant.ops.sharding import spread
from operant.spec.random_streams import Purpose
from operant.types import Array, Key, Metrics, Tree

S = TypeVar("S", bound=Tree)
B = TypeVar("B")


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("rows", "carry", "words"), meta_fields=("impl",)
)
@dataclasses.dataclass(frozen=True)
class Minibatch:
    """What a gradient step of `passes` learns from."""

    rows: Any
    """Leaves `[B, ...]`, of whole sequences `[T, B, ...]`."""
    carry: Tree
    """The recurrent states before sequences, `[B, ...]`."""
    words: Tree
    impl: Any

    @property
    def key(self) -> Any:
        """A key of its own; None unless passes are `noisy`."""
        noisy = not isinstance(self.words, tuple)
        return jax.random.wrap_key_data(self.words, impl=self.impl) if noisy else None


def key_of_step(keys: Key) -> Callable[[Array | int], Key]:
    """Return the function that gives a step its key by its number.

    It holds them as plain numbers: JAX's key-reuse check assumes that a loop uses each key it reads.
    """
    impl, words = jax.random.key_impl(keys), jax.random.key_data(keys)
    return lambda i: jax.random.wrap_key_data(words[i], impl=impl)


def gradient_steps(
    step: Callable[[S, B], tuple[S, Metrics]],
    state: S,
    batches: Callable[[Array, S], B],
    number: Int[Array, ""],
    most: int | None = None,
    first: Metrics | None = None,
) -> tuple[S, Metrics]:
    """Take gradient steps of which a program learns only while it runs how many are due.

    Args:
        step: takes the state and a batch; returns the state after the step, and metrics (NaN: does not
            apply).
        state: what the steps change.
        batches: (number of the step, state) to what it learns from.
        number: how many steps are due.
        most: more are never due; see `operant.ops.repeat`. None: steps are seldom due, or there is no bound.
        first: metrics of a step that was taken before, to be averaged with those of the others.

    Returns:
        The state, and every metric's mean over the steps it applies to (NaN: none), of `STEP_COUNTS` the sum.
    """
    metrics = MetricAccumulator()

    def one(i: Array, carry: tuple[S, Array]) -> tuple[S, Array]:
        state, sums = carry
        state, watched = step(state, batches(i, state))
        return state, metrics.add(sums, watched)

    start = (state, metrics.add(metrics.zeros(), first or {}))
    if most is None:
        state, sums = jax.lax.fori_loop(0, number, one, start)
    else:
        state, sums = repeat(number, most, one, start)
    return state, metrics.means(sums)


def divisible(
    config: Any, units: int, made_of: str, more: str = "a larger n_steps or more environments"
) -> None:
    """Refuse (SpecError) more `mini_batches` than units to share out, of which `more` makes more."""
    if units < config.mini_batches:
        raise value_error(
            "mini_batches",
            f"at most {units} ({made_of})",
            config.mini_batches,
            f"Use fewer mini_batches, {more}.",
        )


def passes(
    step: Callable[[S, Minibatch], tuple[S, Metrics]],
    state: S,
    batch: Tree,
    key: Key,
    *,
    epochs: int,
    parts: int,
    carry: Tree = (),
    sequences: bool = False,
    noisy: bool = False,
) -> tuple[S, Metrics]:
    """Pass over a block several times, each time in newly shuffled minibatches.

    If the rows do not divide into the minibatches, each pass leaves out a different random remainder.

    Args:
        step: takes the state and a minibatch; returns the state after the step, and metrics (NaN: does not
            apply).
        state: what the steps change.
        batch: leaves `[T, N, ...]`.
        key: consumed.
        epochs: number of passes.
        parts: minibatches of a pass.
        carry: leaves `[N, ...]`, only with `sequences`.
        sequences: whether minibatches are whole sequences, `[T, B, ...]`, instead of rows, `[B, ...]`.
        noisy: whether each step wants a key.

    Returns:
        The state, and every metric's mean over the steps it applies to, of those in `STEP_COUNTS` the sum.
    """
    axis = 1 if sequences else 0
    if not sequences:  # rows are independent of one another
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    units = jax.tree.leaves(batch)[0].shape[axis]
    size = units // parts
    impl = jax.random.key_impl(key)

    def epoch(state: S, words: Array) -> tuple[S, Metrics]:
        # One gather per epoch, then slices: cheaper than a gather per minibatch.
        epoch_key = jax.random.wrap_key_data(words, impl=impl)
        order = prng.permutation(epoch_key, units)[: size * parts].reshape(-1, size)
        rows = jax.tree.map(lambda x: jnp.moveaxis(jnp.take(x, order, axis=axis), axis, 0), batch)
        starts = jax.tree.map(lambda x: jnp.take(x, order, axis=0), carry)
        rows, starts = spread(rows, 1 + axis), spread(starts, 1)
        noise: Tree = ()
        if noisy:
            noise = prng.bits(jax.random.fold_in(epoch_key, Purpose.PERTURBATION), (parts, *words.shape))
        return jax.lax.scan(step, state, Minibatch(rows, starts, noise, impl))

    # As plain numbers: under `vmap`, JAX's key-reuse check considers the keys of a scan used.
    words = jax.random.key_data(jax.random.split(key, epochs))
    state, metrics = jax.lax.scan(epoch, state, words)
    return state, {k: jnp.sum(x) if k in STEP_COUNTS else jnp.nanmean(x) for k, x in metrics.items()}
