"""How the named optimisers scale a gradient, before the learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from operant.types import Array, Scalar, Tree

Make: TypeAlias = Callable[[Scalar, Scalar, Scalar], optax.GradientTransformation]


class Nadam(NamedTuple):
    """State of Nesterov's Adam."""

    steps: Array
    mu: Tree
    nu: Tree
    product: Array
    """Product of all momenta so far."""


def nadam(b1: Scalar, b2: Scalar, eps: Scalar) -> optax.GradientTransformation:
    """Adam with Nesterov momentum (Dozat 2016, algorithm 2), warming up as in Keras: μ_t = β1 (1 - ½
    0.96^t).
    """

    def init(params: Tree) -> Nadam:
        zeros = optax.tree.zeros_like(params)
        return Nadam(jnp.zeros((), jnp.int32), zeros, zeros, jnp.ones((), jnp.float32))

    def update(grads: Tree, state: Nadam, params: Tree = None) -> tuple[Tree, Nadam]:
        steps = state.steps + jnp.int32(1)
        t = steps.astype(jnp.float32)
        now, following = (b1 * (1.0 - 0.5 * jnp.float32(0.96) ** step) for step in (t, t + 1.0))
        product = state.product * now
        mu = optax.tree.update_moment(grads, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(grads, state.nu, b2, 2)
        ahead = following / (1.0 - product * following)
        here = (1.0 - now) / (1.0 - product)
        mean = jax.tree.map(lambda m, g: ahead * m + here * g, mu, grads)
        corrected = 1.0 / (1.0 - b2**t)
        scaled = jax.tree.map(lambda m, v: m / (jnp.sqrt(v * corrected) + eps), mean, nu)
        return scaled, Nadam(steps, mu, nu, product)

    return optax.GradientTransformation(init, update)


def amsgrad(b1: Scalar, b2: Scalar, eps: Scalar) -> optax.GradientTransformation:
    """AMSGrad (Reddi et al. 2018).

    The bias of the largest second moment is corrected after the maximum, as Keras does.
    """
    largest = optax.scale_by_amsgrad(b1=b1, b2=b2, eps=eps, bias_correction_nu=False)
    return optax.chain(largest, optax.scale_by_schedule(lambda count: jnp.sqrt(1.0 - b2 ** (count + 1.0))))


def clip_each(bound: float) -> optax.GradientTransformation:
    """Bound the norm of each array by itself."""

    def clipped(x: Array) -> Array:
        return x * (bound / jnp.maximum(jnp.sqrt(jnp.sum(jnp.square(x))), bound))

    return optax.stateless(lambda grads, params: jax.tree.map(clipped, grads))


SCALINGS: dict[str, Make] = {
    "adabelief": lambda b1, b2, eps: optax.scale_by_belief(b1=b1, b2=b2, eps=eps),
    "adadelta": lambda b1, b2, eps: optax.scale_by_adadelta(rho=b2, eps=eps),
    "adagrad": lambda b1, b2, eps: optax.scale_by_rss(initial_accumulator_value=0.1, eps=eps),
    "adam": lambda b1, b2, eps: optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
    "adamax": lambda b1, b2, eps: optax.scale_by_adamax(b1=b1, b2=b2, eps=eps),
    "adamw": lambda b1, b2, eps: optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
    "amsgrad": amsgrad,
    "lamb": lambda b1, b2, eps: optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
    "lion": lambda b1, b2, eps: optax.scale_by_lion(b1=b1, b2=b2),
    "momentum": lambda b1, b2, eps: optax.trace(decay=b1),
    "nadam": nadam,
    "nadamw": nadam,
    "nesterov": lambda b1, b2, eps: optax.trace(decay=b1, nesterov=True),
    "radam": lambda b1, b2, eps: optax.scale_by_radam(b1=b1, b2=b2, eps=eps),
    "rmsprop": lambda b1, b2, eps: optax.scale_by_rms(decay=b2, eps=eps, eps_in_sqrt=False),
    "sgd": lambda b1, b2, eps: optax.identity(),
    "sgdw": lambda b1, b2, eps: optax.identity(),
    "yogi": lambda b1, b2, eps: optax.scale_by_yogi(b1=b1, b2=b2, eps=eps),
}
