"""Categorical projection and quantile regression: numbers worked by hand, and slow loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from operant.ops import distributional


def f32(*values):
    return jnp.asarray(values, jnp.float32)


def test_support_is_even_with_both_ends():
    np.testing.assert_allclose(distributional.support(-1.0, 3.0, 5), [-1, 0, 1, 2, 3])
    np.testing.assert_allclose(distributional.support(f32(0)[0], f32(1)[0], 2), [0, 1])


# Projection. Atoms 0, 1, 2.

PROJECTIONS = {
    "on the atoms": ([0, 1, 2], [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
    # 0.25 lies at three quarters of 0 and one of 1; 1.5 between 1 and 2; 2 stays
    "between atoms": ([0.25, 1.5, 2], [0.4, 0.4, 0.2], [0.3, 0.1 + 0.2, 0.2 + 0.2]),
    "beyond both ends": ([-7, 1, 9], [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
    "all beyond one end": ([3, 4, 5], [0.2, 0.3, 0.5], [0, 0, 1]),
    "terminal: all at the reward": ([1.25, 1.25, 1.25], [0.2, 0.3, 0.5], [0, 0.75, 0.25]),
    "terminal: reward on an atom": ([1, 1, 1], [0.2, 0.3, 0.5], [0, 1, 0]),
}


@pytest.mark.parametrize("case", PROJECTIONS)
def test_projection_by_hand(case):
    position, weight, expected = PROJECTIONS[case]
    found = distributional.project(f32(*position), f32(*weight), 0.0, 2.0, 3)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def projected_slowly(position, weight, low, high, atoms):
    """Algorithm 1 of Bellemare et al. 2017, with the case of a position that falls on an atom, which it
    leaves out."""
    found, gap = np.zeros(atoms), (high - low) / (atoms - 1)
    for z, p in zip(position, weight, strict=True):
        b = (min(max(z, low), high) - low) / gap
        lower, upper = int(np.floor(b)), int(np.ceil(b))
        if lower == upper:
            found[lower] += p
        else:
            found[lower] += p * (upper - b)
            found[upper] += p * (b - lower)
    return found


def test_projection_equals_the_loop_of_the_paper_and_keeps_mass_and_mean():
    rng = np.random.default_rng(0)
    low, high, atoms = -10.0, 10.0, 51
    z = np.linspace(low, high, atoms)
    weight = rng.dirichlet(np.full(atoms, 0.3), (4, 3)).astype(np.float32)
    reward = rng.normal(0, 3, (4, 3, 1))
    gamma = rng.choice([0.0, 0.9, 0.99**3], (4, 3, 1))
    position = (reward + gamma * z).astype(np.float32)
    found = np.asarray(
        jax.jit(distributional.project, static_argnums=4)(position, weight, f32(low)[0], f32(high)[0], atoms)
    )
    slow = [
        projected_slowly(*rows, low, high, atoms)
        for rows in zip(position.reshape(-1, atoms), weight.reshape(-1, atoms), strict=True)
    ]
    np.testing.assert_allclose(found.reshape(-1, atoms), slow, atol=2e-6)
    np.testing.assert_allclose(found.sum(-1), 1.0, atol=2e-6)
    inside = (np.abs(position) < high).all(-1)
    assert 0 < inside.sum() < inside.size
    np.testing.assert_allclose((found @ z)[inside], (position * weight).sum(-1)[inside], atol=2e-5)
    assert (
        np.abs((found @ z) - (position * weight).sum(-1))[~inside].max() > 1e-2
    )  # the ends cut something off


def test_projection_of_a_broken_number_is_broken():
    found = distributional.project(f32(jnp.nan, 1, 2), f32(0.2, 0.3, 0.5), 0.0, 2.0, 3)
    assert np.isnan(np.asarray(found)).any()


def test_cross_entropy_and_entropy_by_hand():
    logits, target = jnp.log(f32(0.25, 0.25, 0.5)), f32(0.5, 0.5, 0.0)
    np.testing.assert_allclose(distributional.cross_entropy(target, logits), np.log(4), rtol=1e-6)
    np.testing.assert_allclose(distributional.entropy(target), np.log(2), rtol=1e-6)
    # The gradient of the cross-entropy is softmax - target.
    grad = jax.grad(lambda x: distributional.cross_entropy(target, x))(logits)
    np.testing.assert_allclose(grad, [-0.25, -0.25, 0.5], atol=1e-6)
    assert np.isfinite(np.asarray(jax.grad(lambda x: distributional.entropy(x))(target))).all()


# Quantiles


def test_midpoints():
    np.testing.assert_allclose(distributional.midpoints(4), [0.125, 0.375, 0.625, 0.875])


def test_quantile_huber_by_hand():
    """θ = (0, 2) for the fractions 1/4 and 3/4, target samples (1, 5), κ = 1.

    u = (1, 5) for θ_1: weight 1/4, Huber 0.5 and 4.5, mean 2.5: 0.625.
    u = (-1, 3) for θ_2: weights 1/4 and 3/4, Huber 0.5 and 2.5: (0.125 + 1.875) / 2 = 1.
    """
    found = distributional.quantile_huber(f32(0, 2), f32(1, 5))
    np.testing.assert_allclose(found, 1.625, rtol=1e-6)
    # κ = 2: u = (1, 5): 0.5, 2 (5 - 1) = 8; u = (-1, 3): 0.5, 2 (3 - 1) = 4
    found = distributional.quantile_huber(f32(0, 2), f32(1, 5), delta=2.0)
    np.testing.assert_allclose(found, 0.25 * 4.25 + (0.125 + 3.0) / 2, rtol=1e-6)


def test_quantile_huber_equals_a_slow_loop():
    rng = np.random.default_rng(1)
    theta, target = rng.normal(0, 2, (3, 2, 7)), rng.normal(0, 2, (3, 2, 5))
    kappa, expected = 0.7, np.zeros((3, 2))
    for index in np.ndindex(3, 2):
        for i in range(7):
            for j in range(5):
                u = target[(*index, j)] - theta[(*index, i)]
                huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
                expected[index] += abs((2 * i + 1) / 14 - (u < 0)) * huber / 5
    found = distributional.quantile_huber(
        jnp.asarray(theta, jnp.float32), jnp.asarray(target, jnp.float32), delta=kappa
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_gradient_of_the_quantile_loss_is_the_clipped_error_by_side():
    """As by hand above: -(1/4 + 1/4) / 2 for θ_1, both errors clipped at 1; -(1/4 (-1) + 3/4) / 2 for θ_2."""
    grad = jax.grad(lambda x: distributional.quantile_huber(x, f32(1, 5)))(f32(0, 2))
    np.testing.assert_allclose(grad, [-0.25, -0.25], rtol=1e-6)
    grad = jax.grad(lambda x: distributional.quantile_huber(f32(0, 2), x))(f32(1, 5))
    np.testing.assert_allclose(grad, [0.125 - 0.125, 0.125 + 0.375], rtol=1e-6)


def test_distance_by_hand():
    np.testing.assert_allclose(distributional.distance(f32(0, 2), f32(1, 5, 6)), (1 + 5 + 6 + 1 + 3 + 4) / 6)


def test_descent_on_the_quantile_loss_finds_the_quantiles():
    """Of the numbers 0 to 99, five quantiles at 0.1, 0.3, ..., 0.9."""
    target = jnp.arange(100, dtype=jnp.float32)
    grad = jax.grad(lambda x: distributional.quantile_huber(x, target, delta=0.1))
    theta = jax.lax.fori_loop(0, 2000, lambda _, x: x - 20.0 * grad(x), jnp.zeros(5))
    np.testing.assert_allclose(theta, [10, 30, 50, 70, 90], atol=1.5)
