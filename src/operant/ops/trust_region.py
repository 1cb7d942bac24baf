"""Natural-gradient steps within a trust region: Fisher-vector products, conjugate gradient, backtracking line
search.

Schulman et al. 2015, "Trust Region Policy Optimization" (https://arxiv.org/abs/1502.05477), appendix C.
Everything works on one flat vector of parameters `[D]`. The functions that callers pass in are called in
compiled loops: they must be pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from operant.types import Array, Scalar, Tree

Vector = Float[Array, " D"]


def fisher_product(
    network: Callable[[Vector], Tree],
    divergence: Callable[[Tree, Tree], Array],
    params: Vector,
    damping: Scalar,
) -> Callable[[Vector], Vector]:
    """Return v -> (F + damping I) v, with F the Fisher matrix `[D, D]`, which is never built.

    F = Jᵀ M J (appendix C.1): J is the Jacobian of the network's outputs, M the Hessian of the divergence
    with respect to the outputs, where both distributions are equal. That costs one forward and one backward
    pass for each v, and unlike the Hessian of the divergence with respect to the parameters it is positive
    semidefinite even in rounded arithmetic.

    Args:
        network: parameters to outputs, on the rows over which F is a mean.
        divergence: outputs of the present and of other parameters to their mean KL divergence.
        params: the present parameters.
        damping: added to F's diagonal.
    """
    outputs, push = jax.linearize(network, params)
    pull = jax.vjp(network, params)[1]
    gradient = jax.grad(lambda other: divergence(outputs, other))

    def product(v: Vector) -> Vector:
        curved = jax.jvp(gradient, (outputs,), (push(v),))[1]
        result: Vector = pull(curved)[0] + damping * v
        return result

    return product


class Solution(NamedTuple):
    """What conjugate gradient found."""

    x: Vector
    iterations: Int[Array, ""]
    """How many it took."""


def conjugate_gradient(
    product: Callable[[Vector], Vector], b: Vector, *, iterations: int, tolerance: Scalar = 0.0
) -> Solution:
    """Solve A x = b from x = 0 (Hestenes and Stiefel 1952).

    It ends early if A has no positive curvature along the search direction, and returns what it has by then.

    Args:
        product: v -> A v, A symmetric and positive definite.
        b: right-hand side. If it is not finite, the solution is not finite either, or 0.
        iterations: maximal number; in exact arithmetic D suffice.
        tolerance: ends once the squared norm of the residual b - A x is at most this.
    """

    def more(state: tuple[Array, Vector, Vector, Vector, Array]) -> Array:
        i, _, _, _, squared = state
        return (i < iterations) & (squared > tolerance)

    def iterate(
        state: tuple[Array, Vector, Vector, Vector, Array],
    ) -> tuple[Array, Vector, Vector, Vector, Array]:
        i, x, residual, direction, squared = state
        image = product(direction)
        curvature = jnp.vdot(direction, image)
        positive = curvature > 0
        size = jnp.where(positive, squared / jnp.where(positive, curvature, 1.0), 0.0)
        x, residual = x + size * direction, residual - size * image
        shrunk = jnp.where(positive, jnp.vdot(residual, residual), 0.0)  # 0 ends the loop
        return i + 1, x, residual, residual + shrunk / squared * direction, shrunk

    start = (jnp.zeros((), jnp.int32), jnp.zeros_like(b), b, b, jnp.vdot(b, b))
    i, x, *_ = jax.lax.while_loop(more, iterate, start)
    return Solution(x, i)


def natural_step(
    product: Callable[[Vector], Vector],
    gradient: Vector,
    *,
    max_kl: Scalar,
    iterations: int,
    tolerance: Scalar = 0.0,
) -> Vector:
    """Return the step that ascends most among those whose divergence, to second order, is `max_kl`.

    s = √(2 δ / xᵀ F x) x with F x = g (appendix C); 0 for a gradient of 0.

    Args:
        product: v -> F v, as from `fisher_product`.
        gradient: g, of what is to be maximised.
        max_kl: δ, in nats.
        iterations: of `conjugate_gradient`.
        tolerance: of `conjugate_gradient`.
    """
    x = conjugate_gradient(product, gradient, iterations=iterations, tolerance=tolerance).x
    curvature = jnp.vdot(x, product(x))
    scale = jnp.sqrt(2.0 * max_kl / curvature)
    return jnp.where(curvature == 0, 0.0, scale * x)


class LineSearchResult(NamedTuple):
    """Where a line search ended."""

    point: Vector
    """The accepted candidate; the start, bit for bit, if there was none."""
    accepted: Bool[Array, ""]
    refused: Int[Array, ""]
    """Candidates refused, which is how often the step was shortened."""


def line_search(
    accept: Callable[[Vector], Bool[Array, ""]],
    start: Vector,
    step: Vector,
    *,
    candidates: int,
    factor: Scalar = 0.5,
) -> LineSearchResult:
    """Try start + step, start + factor step, start + factor² step, ... until one is accepted.

    Args:
        accept: tells whether a candidate is good enough. It must refuse one that is not finite, as
            comparisons with NaN do.
        start: where to stay if every candidate is refused.
        step: the longest step.
        candidates: how many to try.
        factor: what remains of a step that was refused.
    """

    def more(state: tuple[Array, Array, Array]) -> Array:
        refused, accepted, _ = state
        return ~accepted & (refused < candidates)

    def attempt(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        refused, _, share = state
        accepted = accept(start + share * step)
        return jnp.where(accepted, refused, refused + 1), accepted, jnp.where(accepted, share, share * factor)

    first = (jnp.zeros((), jnp.int32), jnp.zeros((), bool), jnp.ones((), step.dtype))
    refused, accepted, share = jax.lax.while_loop(more, attempt, first)
    return LineSearchResult(jnp.where(accepted, start + share * step, start), accepted, refused)
