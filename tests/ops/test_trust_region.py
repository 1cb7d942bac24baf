"""Trust regions: conjugate gradient, Fisher-vector products, natural steps, line search."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from operant.ops import losses
from operant.ops.distributions import Bernoulli, Categorical, Normal
from operant.ops.trust_region import conjugate_gradient, fisher_product, line_search, natural_step


def f32(*x):
    return jnp.asarray(x, jnp.float32)


def times(matrix):
    return lambda v: jnp.asarray(matrix, jnp.float32) @ v


def spd(n, seed):
    """Return a symmetric positive definite matrix with eigenvalues from 1 to 20."""
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    return q @ np.diag(np.linspace(1, 20, n)) @ q.T


# Conjugate gradient


@pytest.mark.parametrize(("n", "seed"), [(1, 0), (2, 1), (5, 2), (12, 3)])
def test_conjugate_gradient_solves_the_system_in_as_many_iterations_as_dimensions(n, seed):
    matrix, b = spd(n, seed), np.random.default_rng(seed + 9).normal(size=n)
    found = conjugate_gradient(times(matrix), jnp.asarray(b, jnp.float32), iterations=n, tolerance=0.0)
    np.testing.assert_allclose(found.x, np.linalg.solve(matrix, b), rtol=2e-3, atol=1e-4)
    assert found.iterations == n


MATRIX, RIGHT = ((4.0, 1.0), (1.0, 3.0)), (1.0, 2.0)


def test_conjugate_gradient_by_hand():
    """b·b = 5, A b = (6, 7), b·A b = 20: x = b / 4 and the residual (-1/2, 1/4).

    Then the solution (1, 7) / 11.
    """
    one = conjugate_gradient(times(MATRIX), f32(*RIGHT), iterations=1)
    np.testing.assert_allclose(one.x, [0.25, 0.5], rtol=1e-6)
    two = conjugate_gradient(times(MATRIX), f32(*RIGHT), iterations=2)
    np.testing.assert_allclose(two.x, [1 / 11, 7 / 11], rtol=1e-5)


@pytest.mark.parametrize(
    ("tolerance", "iterations"), [(5.1, 0), (4.9, 1), (0.3126, 1), (0.3124, 2), (1e-6, 2)]
)
def test_conjugate_gradient_stops_at_the_squared_residual(tolerance, iterations):
    """Squared residuals: 5 at the start, 1/4 + 1/16 = 0.3125 after one iteration, 0 after two."""
    found = conjugate_gradient(times(MATRIX), f32(*RIGHT), iterations=50, tolerance=tolerance)
    assert found.iterations == iterations


def test_conjugate_gradient_ends_without_curvature_and_stays_finite():
    """On diag(1, 0) the second direction is (0, 2), along which nothing curves: x stays (2, 2)."""
    found = conjugate_gradient(times(((1.0, 0.0), (0.0, 0.0))), f32(1, 1), iterations=9)
    np.testing.assert_array_equal(found.x, [2, 2])
    assert found.iterations == 2


def test_conjugate_gradient_of_zero_is_zero():
    found = conjugate_gradient(times(MATRIX), f32(0, 0), iterations=9)
    np.testing.assert_array_equal(found.x, [0, 0])
    assert found.iterations == 0


# Fisher-vector products

ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(6, 2)), jnp.float32)
WEIGHT = f32(1, 1, 0, 1, 1, 1)


def softmax_policy(hidden):
    """Return a flat vector of parameters, and the function from it to logits `[6, 3]`."""
    rng = np.random.default_rng(1)
    shapes = [(2, 4), (4,), (4, 3), (3,)] if hidden else [(2, 3), (3,)]
    params, unravel = ravel_pytree([jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes])

    def network(flat):
        *layers, kernel, bias = unravel(flat)
        x = jnp.tanh(ROWS @ layers[0] + layers[1][None]) if hidden else ROWS
        return {"logits": x @ kernel + bias[None]}

    return params, network


def mean_kl(old, new):
    return losses.weighted_mean(Categorical(old["logits"]).kl(Categorical(new["logits"])), WEIGHT)


@pytest.mark.parametrize("hidden", [False, True])
def test_fisher_product_is_that_of_the_explicit_fisher_matrix(hidden):
    """F = mean over rows of Σ p(a) ∇log p(a) ∇log p(a)ᵀ."""
    params, network = softmax_policy(hidden)

    def log_probs(flat):
        return jax.nn.log_softmax(network(flat)["logits"])

    scores = np.asarray(jax.jacobian(log_probs)(params), np.float64)  # [6, 3, D]
    probs = np.exp(np.asarray(log_probs(params), np.float64))
    fisher = np.zeros((params.size, params.size))
    for row in (0, 1, 3, 4, 5):
        for choice in range(3):
            fisher += probs[row, choice] * np.outer(scores[row, choice], scores[row, choice]) / 5
    product = jax.jit(fisher_product(network, mean_kl, params, 0.25))
    found = np.stack([product(v) for v in jnp.eye(params.size)])
    np.testing.assert_allclose(found, fisher + 0.25 * np.eye(params.size), rtol=1e-4, atol=1e-6)


def test_fisher_product_of_a_gaussian_by_hand():
    """Mean θ₀ x and log deviation θ₁: F = diag(mean x² / σ², 2); σ = 2, x = 1, 3 gives diag(5/4, 2)."""

    def network(flat):
        return {"mean": flat[0] * f32(1, 3), "log_std": jnp.broadcast_to(flat[1], (2,))}

    def divergence(old, new):
        return jnp.mean(Normal(**old).kl(Normal(**new)))

    product = fisher_product(network, divergence, f32(0.7, np.log(2)), 0.0)
    np.testing.assert_allclose(product(f32(1, 0)), [1.25, 0], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(product(f32(0, 1)), [0, 2], rtol=1e-6, atol=1e-7)


# Natural steps


def test_natural_step_has_the_divergence_asked_for_and_the_direction_of_the_natural_gradient():
    matrix, gradient = spd(6, 4), np.random.default_rng(5).normal(size=6)
    step = natural_step(times(matrix), jnp.asarray(gradient, jnp.float32), max_kl=0.02, iterations=6)
    natural = np.linalg.solve(matrix, gradient)
    np.testing.assert_allclose(0.5 * step @ matrix @ step, 0.02, rtol=1e-4)
    np.testing.assert_allclose(step / np.linalg.norm(step), natural / np.linalg.norm(natural), atol=1e-3)
    assert step @ gradient > 0


def test_natural_step_of_no_gradient_is_zero_and_of_a_broken_one_not_a_step():
    assert (natural_step(times(MATRIX), f32(0, 0), max_kl=0.1, iterations=3) == 0).all()
    broken = natural_step(times(MATRIX), f32(np.inf, 1), max_kl=0.1, iterations=3)
    assert not np.isfinite(broken).any()


# Line search


def search(accept, candidates=10):
    return line_search(accept, f32(1, 0), f32(8, -4), candidates=candidates)


def test_line_search_takes_the_whole_step_if_it_may():
    found = search(lambda x: x[0] < 10)
    np.testing.assert_array_equal(found.point, [9, -4])
    assert (found.accepted, found.refused) == (True, 0)


def test_line_search_halves_until_a_candidate_is_accepted():
    """9, 5 and then 3, of which the last is the first below 4."""
    found = search(lambda x: x[0] < 4)
    np.testing.assert_array_equal(found.point, [3, -1])
    assert (found.accepted, found.refused) == (True, 2)


def test_line_search_tries_no_more_than_the_candidates():
    assert search(lambda x: x[0] < 4, candidates=3).accepted
    found = search(lambda x: x[0] < 4, candidates=2)
    assert (found.accepted, found.refused) == (False, 2)


@pytest.mark.parametrize("step", [(8.0, -4.0), (np.nan, 1.0), (np.inf, 1.0)])
def test_line_search_that_refuses_all_stays_bit_for_bit(step):
    start = f32(0.1, -0.0)
    found = jax.jit(lambda s: line_search(lambda x: jnp.sum(x) < -1e9, start, s, candidates=4))(f32(*step))
    assert np.asarray(found.point).tobytes() == np.asarray(start).tobytes()
    assert (found.accepted, found.refused) == (False, 4)


def test_line_search_keeps_the_divergence_where_the_quadratic_model_breaks_it():
    """A rare choice, logit -6: F = p (1 - p) = 0.0025, so δ = 0.1 asks for a step of 9, whose true
    divergence is 3."""
    start, max_kl = f32(-6), 0.1

    def kl(logit):
        return Bernoulli(start, 1).kl(Bernoulli(logit, 1))

    product = fisher_product(
        lambda x: x, lambda old, new: Bernoulli(old, 1).kl(Bernoulli(new, 1)), start, 0.0
    )
    step = natural_step(product, f32(1), max_kl=max_kl, iterations=3)
    np.testing.assert_allclose(step, [np.sqrt(0.2 / (np.exp(-6) / (1 + np.exp(-6)) ** 2))], rtol=1e-4)
    assert kl(start + step) > 20 * max_kl  # control: without the search
    found = line_search(lambda x: kl(x) <= max_kl, start, step, candidates=10)
    assert found.accepted
    assert 0 < kl(found.point) <= max_kl
