"""Losses: golden values, masked and empty cases, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.ops import losses


def f32(*x):
    return jnp.asarray(x, jnp.float32)


def test_weighted_mean():
    # (1*2 + 3*0.5) / (1 + 3) = 0.875
    np.testing.assert_allclose(losses.weighted_mean(f32(2, 0.5), f32(1, 3)), 0.875)
    assert losses.weighted_mean(f32(2, 4, 99), jnp.asarray([True, True, False])) == 3
    np.testing.assert_allclose(losses.weighted_mean(f32(8, 8), f32(0.1, 0.1)), 8.0)


def test_weighted_mean_of_nothing_is_zero_with_zero_gradient():
    value, grad = jax.value_and_grad(losses.weighted_mean)(f32(1, jnp.nan), f32(0, 0))
    assert value == 0
    np.testing.assert_array_equal(grad, [0, 0])


def test_weight_zero_hides_nan():
    value, grad = jax.value_and_grad(losses.weighted_mean)(f32(5, jnp.nan), f32(2, 0))
    assert value == 5
    np.testing.assert_array_equal(grad, [1, 0])


def test_squared_is_not_halved():
    np.testing.assert_array_equal(losses.squared(f32(-3, 2)), [9, 4])


def test_huber_golden_and_its_gradient():
    # delta 2: 1 -> 0.5;  2 -> 2;  -5 -> 2 * (5 - 1) = 8
    np.testing.assert_allclose(losses.huber(f32(1, 2, -5), delta=2.0), [0.5, 2.0, 8.0])
    grad = jax.grad(lambda x: losses.huber(x, delta=2.0).sum())(f32(1, 2, -5, 0))
    np.testing.assert_allclose(grad, [1.0, 2.0, -2.0, 0.0])


def test_clipped_surrogate_golden():
    # clip 0.2; ratios 1.5, 1.5, 0.5, 0.5 with advantages 2, -2, 2, -2:
    # min(3, 2.4) = 2.4;  min(-3, -2.4) = -3;  min(1, 1.6) = 1;  min(-1, -1.6) = -1.6
    log_ratio = jnp.log(f32(1.5, 1.5, 0.5, 0.5))
    loss = losses.clipped_surrogate(log_ratio, f32(2, -2, 2, -2), clip=0.2)
    np.testing.assert_allclose(loss, [-2.4, 3.0, -1.0, 1.6], rtol=1e-6)


def test_clipped_surrogate_stops_pushing_outside_of_the_clip():
    def total(x):
        return losses.clipped_surrogate(x, f32(2, -2, 2, -2), clip=0.2).sum()

    grad = jax.grad(total)(jnp.log(f32(1.5, 1.5, 0.5, 0.5)))
    # -ratio * advantage where unclipped, else 0
    np.testing.assert_allclose(grad, [0.0, 3.0, -1.0, 0.0], rtol=1e-6)


def test_clipped_value_loss_golden():
    # v 2, old 0, clip 0.5 -> 0.5; target 3: max(1, 2.5²) = 6.25;  target 0: max(4, 0.25) = 4
    loss = losses.clipped_value_loss(f32(2, 2), f32(0, 0), f32(3, 0), clip=0.5)
    np.testing.assert_allclose(loss, [6.25, 4.0])


def test_targets_never_use_a_forbidden_action():
    q_target = jnp.asarray([[1.0, 9.0, 3.0], [-5.0, -4.0, 8.0]])
    q_online = jnp.asarray([[2.0, 7.0, 1.0], [-1.0, -2.0, 0.0]])
    mask = jnp.asarray([[True, False, True], [True, True, False]])
    np.testing.assert_array_equal(losses.max_target(q_target, None), [9, 8])
    np.testing.assert_array_equal(losses.max_target(q_target, mask), [3, -4])
    np.testing.assert_array_equal(losses.double_target(q_target, q_online, None), [9, 8])
    np.testing.assert_array_equal(losses.double_target(q_target, q_online, mask), [1, -5])


def test_targets_without_any_allowed_action_are_zero():
    q, mask = f32(1, 2)[None], jnp.zeros((1, 2), bool)
    assert losses.max_target(q, mask) == 0
    assert losses.double_target(q, -q, mask) == 0


def test_normalise_golden():
    # weighted rows 1, 2, 3: mean 2, population variance 2/3
    out = losses.normalise(f32(1, 2, 3, 77), jnp.asarray([True, True, True, False]))
    np.testing.assert_allclose(out, [-np.sqrt(1.5), 0, np.sqrt(1.5), 0], rtol=1e-6, atol=1e-6)


def test_normalise_of_equal_or_no_elements_is_finite():
    np.testing.assert_array_equal(losses.normalise(f32(4, 4), f32(1, 1)), [0, 0])
    np.testing.assert_array_equal(losses.normalise(f32(4, 5), f32(0, 0)), [0, 0])
    grad = jax.grad(lambda x: losses.normalise(x, f32(1, 1)).sum())(f32(4, 4))
    np.testing.assert_array_equal(grad, [0, 0])


def test_explained_variance():
    target, w = f32(1, 2, 3, 1000), f32(1, 1, 1, 0)
    assert losses.explained_variance(target, target, w) == 1
    np.testing.assert_allclose(losses.explained_variance(f32(7, 7, 7, 0), target, w), 0.0, atol=1e-6)
    # v = 3, 2, 1: residuals -2, 0, 2 have variance 8/3 against 2/3: 1 - 4
    np.testing.assert_allclose(losses.explained_variance(f32(3, 2, 1, 0), target, w), -3.0, rtol=1e-6)
    assert losses.explained_variance(f32(1, 2), f32(5, 5), f32(1, 1)) == 0


def test_approx_kl_is_exact_in_expectation():
    old, new = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    log_ratio = jnp.asarray(np.log(new / old), jnp.float32)
    # the weights stand for how often the old policy draws each action
    estimate = losses.approx_kl(log_ratio, jnp.asarray(old, jnp.float32))
    np.testing.assert_allclose(estimate, np.sum(old * np.log(old / new)), rtol=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-3, 3, width=32), min_size=4, max_size=4))
def test_approx_kl_is_never_negative(log_ratio):
    assert losses.approx_kl(f32(*log_ratio), jnp.ones(4)) >= 0


def test_a_column_is_not_broadcast_against_a_row():
    with pytest.raises(Exception, match="weight"):
        losses.weighted_mean(jnp.ones((3, 1)), jnp.ones(3))


def test_a_row_far_from_the_old_policy_spoils_no_gradient():
    """Neither one whose ratio is clipped nor one that does not count, though their ratios are infinite in
    float32."""

    def loss(log_ratio):
        each = losses.clipped_surrogate(log_ratio, f32(1, 1, -1), clip=0.2)
        return losses.weighted_mean(each, f32(1, 1, 0))

    value, slope = jax.value_and_grad(loss)(f32(0.1, 200, 200))
    np.testing.assert_allclose(value, -(np.exp(0.1) + 1.2) / 2, rtol=1e-6)
    np.testing.assert_allclose(slope, [-np.exp(0.1) / 2, 0, 0], rtol=1e-6)
    assert losses.importance_ratio(f32(3.0))[0] == jnp.exp(f32(3.0))[0]


def test_equal_advantages_stay_zero_though_their_mean_is_rounded():
    weight = jnp.full(2, 0.3)
    values = np.random.default_rng(0).normal(size=200).astype(np.float32)
    means = [float(losses.weighted_mean(jnp.full(2, v), weight)) for v in values]
    rounded = [v for v, mean in zip(values, means, strict=True) if mean != v]
    assert len(rounded) > 20  # of these the difference, over itself, would be 1
    for v in rounded:
        assert float(jnp.abs(losses.normalise(jnp.full(2, v), weight)).max()) == 0


def test_a_single_advantage_stays_as_it_is():
    x, weight = jnp.asarray([5.0, -3.0, 7.0]), jnp.asarray([0.0, 1.0, 0.0])
    np.testing.assert_array_equal(losses.normalise(x, weight), [0, -3, 0])


@pytest.mark.parametrize("choices", [3, 64, 65, 200])
def test_pick_takes_the_choice_of_each_row_however_many_there_are(choices):
    x = np.random.default_rng(0).normal(size=(2, 4, choices)).astype(np.float32)
    index = np.array([[0, 1, choices - 1, 2], [choices - 1, 0, 1, 1]])
    expected = [[x[i, j, index[i, j]] for j in range(4)] for i in range(2)]
    slope = np.zeros_like(x)
    for i, j in np.ndindex(2, 4):
        slope[i, j, index[i, j]] = i + 1
    index = jnp.asarray(index, jnp.int32)
    np.testing.assert_array_equal(losses.pick(jnp.asarray(x), index), expected)
    weight = jnp.asarray([[1.0] * 4, [2.0] * 4])
    grad = jax.grad(lambda x: jnp.sum(losses.pick(x, index) * weight))(jnp.asarray(x))
    np.testing.assert_array_equal(grad, slope)


def test_epsilon_is_added_to_the_deviation():
    # 1, 5: mean 3, deviation 2; with an epsilon of 2 half as far apart (added to the variance: 2 / √6)
    np.testing.assert_allclose(losses.normalise(f32(1, 5), f32(1, 1), epsilon=2.0), [-0.5, 0.5])
