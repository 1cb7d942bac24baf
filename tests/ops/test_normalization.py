"""Running moments and the scale of rewards, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.ops import normalization

update = jax.jit(normalization.update)


def f32(x):
    return jnp.asarray(x, jnp.float32)


def test_golden():
    # rows 1, 3 then 5, (9 does not count): mean 3, variance (4 + 0 + 4)/3
    m = update(normalization.init(()), f32([1, 3]), jnp.asarray([True, True]))
    assert (m.rows, m.mean, m.var) == (2, 2, 1)
    m = update(m, f32([5, 9]), jnp.asarray([True, False]))
    assert m.rows == 3
    np.testing.assert_allclose([m.mean, m.var], [3, 8 / 3], rtol=1e-6)


def test_nothing_changes_nothing():
    m = update(normalization.init((2,)), f32([[1, 2], [3, 5]]), jnp.ones(2, bool))
    same = update(m, f32([[7, 7], [np.nan, np.inf]]), jnp.zeros(2, bool))
    jax.tree.map(np.testing.assert_array_equal, m, same)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 1e3, -1e4]))
def test_blocks_merge_to_the_moments_of_all_valid_rows(seed, offset):
    random = np.random.default_rng(seed)
    x = (random.normal(size=(6, 4, 3, 2)) * 3 + offset).astype(np.float32)
    valid = random.random((6, 4, 3)) < 0.7
    m = normalization.init((2,))
    for block, ok in zip(x, valid, strict=True):
        m = update(m, f32(block), jnp.asarray(ok))
    rows = x[valid].astype(np.float64)
    assert m.rows == len(rows)
    np.testing.assert_allclose(m.mean, rows.mean(0), rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(m.var, rows.var(0), rtol=1e-4)


def test_integers_are_taken_as_numbers():
    m = update(normalization.init(()), jnp.asarray([0, 255], jnp.uint8), jnp.ones(2, bool))
    assert (m.mean, m.var) == (127.5, 127.5**2)


def test_far_beyond_the_float32_integers():
    # 10^8 rows of mean 1 and variance 1, then 100,000 rows of value 2, eight at a time. A block moves the
    # mean by 8e-8, less than a float32's step of 1.2e-7 at 1: only what is kept beside it makes the sum
    # right.
    start = normalization.init(())._replace(rows=jnp.int32(10**8), mean=f32(1.0), var=f32(1.0))
    x, valid = jnp.full((8,), 2.0), jnp.ones(8, bool)

    def run(m):
        return jax.lax.fori_loop(0, 12_500, lambda _, m: normalization.update(m, x, valid), m)

    m = jax.jit(run)(start)
    f = 1e5 / (1e8 + 1e5)
    assert m.rows == 100_100_000
    np.testing.assert_allclose(float(m.mean) - 1.0, f, rtol=1e-3)
    # the variance of the mixture: (1 - f) * 1 + f * 0 + f (1 - f) * 1² = 1 - f²; f² = 1e-6
    np.testing.assert_allclose(float(m.var), 1 - f**2, atol=2e-7)
    # Negative control: without the rests the mean stays where it was.
    zero = jnp.zeros(())

    def forgetful(m):
        return normalization.update(m, x, valid)._replace(mean_rest=zero, var_rest=zero)

    lost = jax.jit(lambda m: jax.lax.fori_loop(0, 12_500, lambda _, m: forgetful(m), m))(start)
    assert abs((float(lost.mean) - 1.0) / f - 1) > 0.2


def test_the_count_does_not_wrap_round():
    m = normalization.init(())._replace(rows=jnp.int32(2**31 - 3), var=f32(1.0))
    m = update(m, jnp.zeros(8), jnp.ones(8, bool))
    assert m.rows == 2**31 - 1
    assert np.isfinite(m.mean) and m.var <= 1


def test_numbers_whose_squares_overflow_do_not_count():
    rows = f32([1, 2, 1e20, 3, -3e38, 4])
    m = update(normalization.init(()), rows, jnp.ones(6, bool))
    assert m.rows == 4 and m.mean == 2.5 and m.var == 1.25
    for row in rows:
        m = update(m, row[None], jnp.ones(1, bool))
    assert m.rows == 8 and m.mean == 2.5 and m.var == 1.25
    m = update(
        normalization.init(()), jnp.full((1000,), 1.8e19), jnp.ones(1000, bool)
    )  # each has a square, the sum has not
    assert np.isfinite(m.var)


@pytest.mark.parametrize("mean, std", [(1e20, 1e19), (-1e30, 1e29), (1e37, 1e36), (-1e15, 1e12)])
def test_numbers_whose_squares_overflow_have_a_unit_of_their_own(mean, std):
    m = normalization.init((2,))
    for rng in map(np.random.default_rng, range(3)):
        x = f32(np.stack([mean + std * rng.normal(size=400), rng.normal(size=400)], axis=1))
        m = update(m, x, jnp.ones(400, bool))
    assert m.rows == 1200 and m.unit[1] == 1
    out = normalization.normalise(m, x, clip=10.0)
    np.testing.assert_allclose(np.mean(out, 0), 0, atol=0.15)
    np.testing.assert_allclose(np.std(out, 0), 1, atol=0.1)


def test_huge_rewards_are_scaled_like_small_ones():
    reward, no = np.random.default_rng(0).normal(size=(300, 2)), jnp.zeros((300, 2), bool)
    small, huge = (
        normalization.scale_rewards(
            normalization.init_reward_scale(2), f32(reward * factor), no, ~no, gamma=0.5
        )
        for factor in (2.0**7, 2.0**83)
    )
    np.testing.assert_allclose(huge[1][100:], small[1][100:], rtol=0.1)
    again = normalization.scaled(huge[0], f32(reward * 2.0**83))
    np.testing.assert_allclose(again, normalization.scaled(small[0], f32(reward * 2.0**7)), rtol=0.1)


def test_a_constant_has_no_variance():
    m = update(normalization.init(()), jnp.full((1000,), 1234.5678), jnp.ones(1000, bool))
    assert m.var < 1e-9
    out = normalization.normalise(m, jnp.full((3,), 1234.5678), clip=10.0)
    assert np.abs(out).max() < 2


def test_normalise_golden():
    m = normalization.init((2,))._replace(rows=jnp.int32(5), mean=f32([1, 2]), var=f32([4, 9]))
    # (5-1)/2, (-1-2)/3; the second row beyond the clip
    out = normalization.normalise(m, f32([[5, -1], [100, 2]]), clip=3.0)
    np.testing.assert_allclose(out, [[2, -1], [3, 0]], rtol=1e-6)


def test_normalise_before_the_first_row_is_the_identity():
    np.testing.assert_array_equal(
        normalization.normalise(normalization.init(()), f32([3, -20]), clip=10.0), [3, -10]
    )


def slow_scale(reward, ended, valid, gamma):
    """Engstrom et al. 2020, algorithm 1, in plain Python."""
    seen, total, out = [], np.zeros(reward.shape[1]), np.zeros(reward.shape)
    for t in range(len(reward)):
        for n in range(reward.shape[1]):
            if valid[t, n]:
                total[n] = gamma * total[n] + reward[t, n]
                seen.append(total[n])
        for n in range(reward.shape[1]):
            if valid[t, n]:
                out[t, n] = reward[t, n] / np.sqrt(np.var(seen) + 1e-8)
            if ended[t, n]:
                total[n] = 0
    return np.clip(out, -10, 10)


def stream(seed=0, T=12, N=3):
    random = np.random.default_rng(seed)
    reward = random.normal(size=(T, N)).astype(np.float32) + 1
    ended = random.random((T, N)) < 0.25
    valid = np.ones((T, N), bool)
    for t in range(1, T):
        valid[t] = ~(ended[t - 1] & valid[t - 1])
    return f32(reward), jnp.asarray(ended & valid), jnp.asarray(valid)


def test_scaled_rewards_match_the_slow_reference():
    rows = stream()
    _, out = normalization.scale_rewards(normalization.init_reward_scale(3), *rows, gamma=0.9)
    np.testing.assert_allclose(out, slow_scale(*map(np.asarray, rows), 0.9), rtol=1e-4, atol=1e-5)
    assert (np.asarray(out)[~np.asarray(rows[2])] == 0).all()


def test_scaled_rewards_do_not_depend_on_the_cut_into_blocks():
    rows = stream(1)
    scale, whole = normalization.scale_rewards(normalization.init_reward_scale(3), *rows, gamma=0.9)
    part, first = normalization.scale_rewards(
        normalization.init_reward_scale(3), *(x[:5] for x in rows), gamma=0.9
    )
    part, second = normalization.scale_rewards(part, *(x[5:] for x in rows), gamma=0.9)
    np.testing.assert_array_equal(whole, jnp.concatenate([first, second]))
    jax.tree.map(np.testing.assert_array_equal, scale, part)


def test_scaled_rewards_have_a_bound_fresh_and_replayed():
    """Among a thousand zeros one reward has a deviation of 1 / √1001: it is worth 31.6 of them, and cut to
    the bound."""
    reward, valid = jnp.zeros((1001, 1)).at[1000].set(1.0), jnp.ones((1001, 1), bool)
    for clip, expected in ((10.0, 10.0), (3.0, 3.0), (40.0, np.sqrt(1001.0))):
        for sign in (1.0, -1.0):
            scale, out = normalization.scale_rewards(
                normalization.init_reward_scale(1), sign * reward, ~valid, valid, gamma=0.0, clip=clip
            )
            np.testing.assert_allclose(out[-1, 0], sign * expected, rtol=2e-3)
            np.testing.assert_allclose(
                normalization.scaled(scale, sign * reward[-1], clip=clip), [sign * expected], rtol=2e-3
            )


def test_a_return_starts_anew_behind_a_row_without_action_flagged_or_not():
    valid = jnp.asarray([1, 1, 1, 0, 1, 1], bool)[:, None]
    rows = (jnp.ones((6, 1)), jnp.zeros((6, 1), bool), valid)
    scale, _ = normalization.scale_rewards(normalization.init_reward_scale(1), *rows, gamma=1.0)
    np.testing.assert_array_equal(scale.total, [2.0])


def test_columns_belong_to_their_actors_whatever_the_block_makes_of_them():
    """Two columns of actor 1 follow one another, one is nobody's.

    The same rows one after the other give the same.
    """
    reward, ended, valid = stream(3, T=6, N=4)
    columns = jnp.asarray([1, 0, 1, 3], jnp.int32)
    valid = valid.at[:, 3].set(False)  # nobody's
    start = normalization.init_reward_scale(3)._replace(total=f32([5.0, 6.0, 7.0]))
    scale, out = normalization.scale_rewards(start._replace(columns=columns), reward, ended, valid, gamma=0.9)
    total, moments = [5.0, 6.0, 7.0], start.moments
    for i, actor in enumerate((1, 0, 1, 3)):
        own = normalization.RewardScale(f32([total[actor] if actor < 3 else 0.0]), moments)
        own, one = normalization.scale_rewards(
            own, reward[:, i : i + 1], ended[:, i : i + 1], valid[:, i : i + 1], gamma=0.9
        )
        np.testing.assert_allclose(out[:, i], one[:, 0], rtol=1e-6)
        moments = own.moments
        if actor < 3:
            total[actor] = float(own.total[0])
    np.testing.assert_allclose(scale.total, total, rtol=1e-6)
    assert scale.columns == () and int(scale.moments.rows) == int(valid.sum())


@pytest.mark.parametrize(("mean", "std"), [(1e-6, 1e-7), (0.0, 1e-10), (3e-9, 1e-9), (1e5, 1.0)])
def test_small_changes_are_normalised_like_large_ones(mean, std):
    rows = f32(np.random.default_rng(3).normal(size=1000) * std + mean)
    m = update(normalization.init(()), rows, jnp.ones(1000, bool))
    out = normalization.normalise(m, rows, clip=10.0)
    np.testing.assert_allclose([out.mean(), out.std()], [0.0, 1.0], atol=0.01)


def test_rounding_is_not_taken_for_change():
    # 1000 and the next float32, 6e-5 more: a standard deviation of 3e-5, a share of 3e-8 of the mean
    rows = f32([1000.0, 1000.00006] * 50)
    m = update(normalization.init(()), rows, jnp.ones(100, bool))
    assert np.abs(normalization.normalise(m, rows, clip=10.0)).max() < 0.3


def test_large_integers_are_normalised_exactly():
    """Seconds since 1970 as int32: float32 has one number for 128 of them."""
    rows = jnp.int32(1_700_000_000) + jnp.arange(64, dtype=jnp.int32)
    m = normalization.init(())
    for block in rows.reshape(8, 8):
        m = update(m, block, jnp.ones(8, bool))
    out = normalization.normalise(m, rows, clip=10.0)
    np.testing.assert_allclose(out, (np.arange(64) - 31.5) / np.arange(64).std(), atol=1e-4)
    wide = jnp.asarray([-(2**31), 2**31 - 1], jnp.int32)  # differences that no int32 holds
    m = update(normalization.init(()), wide, jnp.ones(2, bool))
    np.testing.assert_allclose(normalization.normalise(m, wide, clip=10.0), [-1.0, 1.0], rtol=1e-6)


def test_tiny_rewards_are_scaled_like_large_ones():
    rows = np.random.default_rng(1).normal(size=(40, 2)).astype(np.float32)
    no = jnp.zeros((40, 2), bool)

    def scaled(factor):
        scale = normalization.init_reward_scale(2)
        return normalization.scale_rewards(scale, f32(rows * factor), no, ~no, gamma=0.9)[1]

    np.testing.assert_allclose(scaled(1e-6)[1:], scaled(1.0)[1:], rtol=1e-3)
