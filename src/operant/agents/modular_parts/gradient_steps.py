"""Several gradient steps on the rows of a batch, each on all of them or on a sample.

The number of rows that count may be far below the number that arrays have room for, and is known only when
the code runs. So a step goes through the rows that count in chunks, and takes time in proportion to their
number. Successive rows (`whole`: those of recurrent networks) are all computed, in their order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Int

from operant.agents.modular_parts.objectives import PolicyGradient
from operant.agents.options.modular_options import ModularConfig
from operant.agents.parts.minibatches import gradient_steps
from operant.nn import Model
from operant.ops import optimise, prng, trust_region
from operant.types import Array, Arrays, Key, Metrics, Scalar, Tree

CHUNK = 1024
"""Maximal number of rows that a loss is called with at once."""

Loss: TypeAlias = Callable[[Tree, Any], tuple[Array, Metrics]]
"""(parameters, rows `[C, ...]`) to the loss of every row and metrics, `[C]`."""
Value: TypeAlias = Callable[[Tree], tuple[Array, Metrics]]
"""Parameters to their loss and metrics."""


class TrainingPass(NamedTuple):
    """How learning applies networks that differ in training and in use (`operant.nn.Model.learning`)."""

    models: Mapping[str, Model]
    frozen: Mapping[str, Tree]
    """Variables of each model other than its parameters, as in use."""
    inputs_of: Callable[[str, Any], Arrays]
    """(model, rows) to what the model reads of them."""

    def state(self, key: Key) -> dict[str, Tree]:
        """Return `frozen` as in training, under noise that is the same throughout a gradient step."""
        return {
            name: model.learning({"params": {}, "state": self.frozen[name]}, key, i)["state"]
            for i, (name, model) in enumerate(self.models.items())
        }

    def averaged(self, state: Tree, before: Tree, after: Tree, rows: Any) -> Tree:
        """Return parameters after a step with running averages moved by its rows."""
        return {
            name: self.models[name].averaged(
                params, {"params": before[name], "state": state[name]}, self.inputs_of(name, rows)
            )
            for name, params in after.items()
        }

    def trained(self, params: Tree) -> Tree:
        """Return parameters with 0 in place of running averages: no part of penalties and estimates."""
        return {
            name: {k: jnp.zeros_like(x) if k in self.models[name].averages else x for k, x in own.items()}
            for name, own in params.items()
        }


class Sample(NamedTuple):
    """Some rows of a batch: the first `size` of an order."""

    rows: Any
    """Leaves `[R, ...]`."""
    order: Int[Array, " R"]
    size: Int[Array, ""]
    whole: bool
    """Whether a loss must see all rows in their own order."""


def fit(
    loss: Callable[[Tree, Tree, Any], tuple[Array, Metrics]],
    params: Tree,
    opt_state: Tree,
    optimizer: optimise.Optimizer,
    rows: Any,
    counts: Bool[Array, " R"],
    config: ModularConfig,
    key: Key,
    networks: TrainingPass,
    *,
    whole: bool = False,
    natural: PolicyGradient | None = None,
) -> tuple[Tree, Tree, Metrics]:
    """Take the planned gradient steps on the mean loss of rows; if none counts, nothing changes.

    Args:
        loss: (parameters, other variables, rows) to the loss of every row and metrics.
        params: what is learned.
        opt_state: of the optimizer.
        optimizer: takes the steps.
        rows: leaves `[R, ...]`.
        counts: which rows make the batch.
        config: how many steps on how many rows, and of what kind.
        key: consumed, for the samples and the noise of networks.
        networks: what is learned. With the natural gradient the loss applies them as in use: Fisher matrix
            and gradient must belong to one function.
        whole: whether the loss must see all rows in their own order, including those that do not count.
        natural: the policy, if steps are along its natural gradient, in the optimizer's place.

    Returns:
        Parameters, the optimizer's state, and metrics, among them `update/grad_norm` and `update/skipped`.
    """
    # As plain numbers: JAX's key-reuse check assumes that a key which a loop reads is used in every
    # iteration.
    words, impl = jax.random.key_data(key), jax.random.key_impl(key)
    number = jnp.sum(counts, dtype=jnp.int32)
    c, fraction = config, config.subsampling_fraction
    size = number if fraction is None else _size(fraction, number)

    def numbered(i: Array, _: Any) -> Array:
        return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(words, impl=impl), i))

    def step(carry: tuple[Tree, Tree], words_i: Array) -> tuple[tuple[Tree, Tree], Metrics]:
        params, opt_state = carry
        step_key = jax.random.wrap_key_data(words_i, impl=impl)
        sample = Sample(rows, _ordered(counts, None if fraction is None else step_key), size, whole)
        state, trained = networks.state(step_key), networks.trained

        step_loss = functools.partial(_loss_of, loss, state if natural is None else networks.frozen)
        value = functools.partial(_penalised, step_loss, c.l2_regularization, sample, trained)
        if c.gradient != "evolutionary":
            grads, watched = _gradient(step_loss, params, sample)
            penalty = jax.tree.map(
                lambda p: 2.0 * jnp.asarray(c.l2_regularization, p.dtype) * p, trained(params)
            )
            grads = jax.tree.map(jnp.add, grads, penalty)
        else:
            watched = value(params)[1]
            grads = _estimated(value, params, c, trained, words_i, impl)
        if natural is None:
            moved, opt_state, info = optimise.apply(optimizer, params, opt_state, grads)
        else:
            moved, info = _natural(natural, c, networks.frozen, params, grads, sample)
        if c.linesearch_iterations:
            moved, accepted = _searched(value, params, moved, c)
            info["accepted"] = accepted
        moved = networks.averaged(state, params, moved, _subset(sample)[0])
        return (moved, opt_state), {**watched, **{f"update/{name}": x for name, x in info.items()}}

    steps = jnp.where(number > 0, jnp.asarray(c.multi_step).astype(jnp.int32), 0)
    (params, opt_state), metrics = gradient_steps(step, (params, opt_state), numbered, steps)
    return params, opt_state, metrics


def _size(fraction: Scalar, number: Array) -> Int[Array, ""]:
    fraction = jnp.asarray(fraction, jnp.float32)
    share = fraction * (1.0 + 1e-6) * number.astype(jnp.float32)  # 0.59 x 100 is 59, whatever the rounding
    wanted = jnp.where(fraction <= 1.0, share, fraction)
    return jnp.clip(wanted.astype(jnp.int32), 1, jnp.maximum(number, 1))


def _ordered(counts: Bool[Array, " R"], key: Any) -> Int[Array, " R"]:
    """Return indices: of the rows that count, in random order (no key: their own), before the others'."""
    rank = jnp.zeros(counts.shape, jnp.float32) if key is None else prng.uniform(key, counts.shape)
    return jnp.argsort(jnp.where(counts, rank, 2.0))


def _gradient(loss: Loss, params: Tree, sample: Sample) -> tuple[Tree, Metrics]:
    gradient = jax.grad(_weighted, has_aux=True)
    mean: tuple[Tree, Metrics] = _summed(lambda chunk, weight: gradient(params, loss, chunk, weight), sample)
    return mean


def _value(loss: Loss, params: Tree, sample: Sample) -> tuple[Array, Metrics]:
    mean: tuple[Array, Metrics] = _summed(
        lambda chunk, weight: _weighted(params, loss, chunk, weight), sample
    )
    return mean


def _penalised(
    loss: Loss, l2: Scalar, sample: Sample, trained: Callable[[Tree], Tree], params: Tree
) -> tuple[Array, Metrics]:
    mean, watched = _value(loss, params, sample)
    squares = sum(jnp.sum(jnp.square(p)) for p in jax.tree.leaves(trained(params)))
    return mean + jnp.asarray(l2, mean.dtype) * squares, watched


def _summed(f: Callable[[Any, Array], Tree], sample: Sample) -> Tree:
    rows, order, size, whole = sample
    length = len(order)
    if whole:
        return f(rows, _in_place(sample))
    # Rows that do not count are replaced by some that do, with a weight of 0: the gradient of 0 times a NaN
    # is not 0, and batch normalisation reads all rows.
    order = _again(order, size, length if length <= CHUNK else length + -length % CHUNK)
    if length <= CHUNK:
        return f(jax.tree.map(lambda x: x[order], rows), _weights(0, length, size))

    def part(i: Array, total: Tree) -> Tree:
        chunk = jax.lax.dynamic_slice(order, (i * CHUNK,), (CHUNK,))
        summed = f(jax.tree.map(lambda x: x[chunk], rows), _weights(i * CHUNK, CHUNK, size))
        return jax.tree.map(jnp.add, total, summed)

    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((CHUNK, *x.shape[1:]), x.dtype), rows)
    shapes = jax.eval_shape(lambda rows: f(rows, jnp.zeros(CHUNK, jnp.float32)), one)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.fori_loop(0, -(-size // CHUNK), part, zeros)


def _again(order: Array, size: Array, length: int) -> Array:
    return order[jnp.arange(length, dtype=jnp.int32) % jnp.maximum(size, 1)]


def _loss_of(
    loss: Callable[[Tree, Tree, Any], tuple[Array, Metrics]], frozen: Tree, params: Tree, rows: Any
) -> tuple[Array, Metrics]:
    return loss(params, frozen, rows)


def _natural(
    policy: PolicyGradient, c: ModularConfig, frozen: Tree, params: Tree, grads: Tree, sample: Sample
) -> tuple[Tree, Metrics]:
    """Take the natural-gradient step; the Fisher matrix is a mean over at most `CHUNK` rows (or all)."""
    start, tree = ravel_pytree(params)
    descent = ravel_pytree(grads)[0]
    subset, weight = _subset(sample)
    product = trust_region.fisher_product(
        lambda x: policy.outputs(tree(x), frozen, subset.view),
        lambda old, new: jnp.sum(policy.divergence(subset.view.observation, old, new) * weight),
        start,
        c.cg_damping,
    )
    step = trust_region.natural_step(product, -descent, max_kl=c.lr, iterations=c.cg_iterations)
    norm = jnp.linalg.norm(descent)
    finite = jnp.isfinite(norm) & jnp.all(jnp.isfinite(step))
    moved = tree(jnp.where(finite, start + step, start))
    return moved, {"grad_norm": norm, "skipped": 1.0 - finite.astype(jnp.float32)}


def _subset(sample: Sample) -> tuple[Any, Array]:
    """Return at most `CHUNK` rows from all over a sample (all, if successive), and their weights."""
    rows, order, size, whole = sample
    if whole:
        return rows, _in_place(sample)
    length = min(len(order), CHUNK)
    apart = jnp.maximum(size.astype(jnp.float32) / length, 1.0)
    index = (jnp.arange(length, dtype=jnp.float32) * apart).astype(jnp.int32)
    chosen = order[index % jnp.maximum(size, 1)]
    return jax.tree.map(lambda x: x[chosen], rows), _weights(0, length, jnp.minimum(size, length))


def _estimated(
    value: Value,
    params: Tree,
    c: ModularConfig,
    trained: Callable[[Tree], Tree],
    words: Array,
    impl: Any,
) -> Tree:
    """Estimate the gradient of the loss: the mean of ε (L(θ + σε) - L(θ - σε)) / 2σ over normal ε."""
    start, tree = ravel_pytree(params)
    deviation = jnp.asarray(c.evolutionary_deviation, start.dtype)

    def pair(i: Array, total: Array) -> Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(words, impl=impl), i)
        away = ravel_pytree(trained(tree(jax.random.normal(key, start.shape, start.dtype))))[0]
        rise = value(tree(start + deviation * away))[0] - value(tree(start - deviation * away))[0]
        return total + away * rise / (2.0 * deviation)

    total = jax.lax.fori_loop(0, c.evolutionary_samples, pair, jnp.zeros_like(start))
    return tree(total / c.evolutionary_samples)


def _searched(value: Value, params: Tree, moved: Tree, c: ModularConfig) -> tuple[Tree, Array]:
    """Go towards the moved parameters as far as the loss is lower there; tell if it is anywhere."""
    start, tree = ravel_pytree(params)
    reached = value(params)[0]
    line = trust_region.line_search(
        lambda x: value(tree(x))[0] < reached,
        start,
        ravel_pytree(moved)[0] - start,
        candidates=c.linesearch_iterations,
        factor=c.linesearch_factor,
    )
    return tree(line.point), line.accepted.astype(jnp.float32)


def _weights(first: Any, length: int, size: Array) -> Array:
    inside = first + jnp.arange(length, dtype=jnp.int32) < size
    return jnp.where(inside, 1.0 / jnp.maximum(size, 1).astype(jnp.float32), 0.0)


def _in_place(sample: Sample) -> Array:
    length = len(sample.order)
    return jnp.zeros(length, jnp.float32).at[sample.order].set(_weights(0, length, sample.size))


def _weighted(params: Tree, loss: Loss, rows: Any, weight: Array) -> tuple[Array, Metrics]:
    each, watched = loss(params, rows)
    return jnp.sum(each * weight), {
        name: jax.lax.stop_gradient(jnp.sum(x * weight)) for name, x in watched.items()
    }


def apply_in_chunks(f: Callable[[Any], Array], rows: Any) -> Array:
    """Return `f(rows)` for rows `[R, ...]`, computed in chunks if there are many."""
    if len(jax.tree.leaves(rows)[0]) <= CHUNK:
        return f(rows)
    outputs: Array = jax.lax.map(
        lambda row: f(jax.tree.map(lambda x: x[None], row))[0], rows, batch_size=CHUNK
    )
    return outputs
