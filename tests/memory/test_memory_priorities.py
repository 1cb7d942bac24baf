"""Prioritised replay, and the sum tree under it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.memory import Replay, RowSpec, sum_tree
from operant.types import Rollout

SIZE = 100
assign = jax.jit(sum_tree.assign)
draw = jax.jit(sum_tree.draw, static_argnums=2)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, 50)), min_size=8, max_size=8), max_size=6
    )
)
def test_tree_is_its_sums(batches):
    tree = sum_tree.init(SIZE)
    plain = np.zeros(SIZE)
    for batch in batches:
        index, weight = np.array(batch).T
        tree = assign(tree, jnp.asarray(index, jnp.int32), jnp.asarray(weight, jnp.float32))
        for i in set(index.tolist()):
            plain[i] = max(weight[index == i])
    assert [level.size for level in tree] == [128, 32]  # 100 and 4, rounded up to 32
    np.testing.assert_array_equal(tree[0][:SIZE], plain)
    np.testing.assert_array_equal(tree[1][:4], np.pad(plain, (0, 28)).reshape(4, 32).sum(axis=1))
    assert float(sum_tree.total(tree)) == plain.sum()


def test_index_of_the_size_changes_nothing():
    tree = assign(sum_tree.init(SIZE), jnp.asarray([3]), jnp.asarray([2.0]))
    after = assign(tree, jnp.asarray([tree[0].size]), jnp.asarray([9.0]))
    jax.tree.map(np.testing.assert_array_equal, tree, after)


@pytest.mark.parametrize("size", [1, 32, 33, 5000])
def test_draws_are_proportional(size, key):
    """One draw from each equal share: no entry is drawn more than 2 times off its expectation."""
    weight = np.random.default_rng(size).integers(0, 5, size).astype(np.float32)
    weight[0] = 1
    tree = sum_tree.assign(sum_tree.init(size), jnp.arange(size), jnp.asarray(weight))
    count = 20000
    index, drawn = draw(tree, key, count)
    expected = weight / weight.sum() * count
    assert np.abs(np.bincount(index, minlength=size) - expected).max() <= 2
    np.testing.assert_array_equal(drawn, weight[index])
    assert (np.diff(index) >= 0).all()


def test_small_entries_beside_a_huge_one_are_told_apart(key):
    """Beside a weight of 2^26 a float steps by 8: without further bits 7 of 8 entries of weight 1 are
    never drawn."""
    small = jnp.arange(2**14) + 1024
    tree = assign(sum_tree.init(2**15), jnp.append(small, 0), jnp.append(jnp.ones(2**14), 2.0**26))
    index = np.concatenate([draw(tree, k, 2**16)[0] for k in jax.random.split(key, 8)])
    found = np.bincount(index[index > 0] % 8, minlength=8)
    # 2^16 shares of 2^10 each: about 16 fall on the small entries in each of 8 rounds.
    assert 96 <= found.sum() <= 160
    assert (found > 0).all()


def test_empty_tree_draws_weight_zero(key):
    index, weight = draw(sum_tree.init(SIZE), key, 5)
    assert not weight.any()
    assert not index.any()


ROW = RowSpec({"id": jnp.int32(0)}, {}, ())
REPLAY = Replay(20, 2, prioritised=True)
add = jax.jit(REPLAY.add)
update = jax.jit(REPLAY.update_priorities)
sample = jax.jit(
    lambda state, key, beta: REPLAY.sample(state, key, 1000, 0.9, beta=beta),
)


def block(start, T, ends=()):
    """`T` rows of two actors from time `start` on; id = 100 column + time.

    Actor 0 has invalid rows at `ends`.
    """
    time = jnp.arange(start, start + T + 1, dtype=jnp.int32)
    ids = jnp.stack([time, time + 100], axis=1)
    no = jnp.zeros((T, 2), bool)
    invalid = jnp.isin(ids[:-1], jnp.asarray(ends, jnp.int32))
    return Rollout({"id": ids}, {}, jnp.ones((T, 2)), no, no, ~invalid, (), ())


def counted(state, key, beta=1.0):
    batch = sample(state, key, jnp.float32(beta))
    ids, counts = np.unique(batch.observation["id"], return_counts=True)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True)), batch


def index(*ids):
    """Row and column of ids that were written within the first ten rows."""
    return jnp.asarray([(i % 100, i // 100) for i in ids], jnp.int32)


@pytest.fixture
def state():
    """Sampleable: 0, 2, 3 (row 1 invalid, 4 newest) and 100 to 103."""
    return add(REPLAY.init(ROW), block(0, 5, ends=[1]))


def test_new_rows_are_equal_and_only_followed_ones_drawn(state, key):
    counts, batch = counted(state, key)
    assert set(counts) == {0, 2, 3, 100, 101, 102, 103}
    assert all(abs(n - 1000 / 7) <= 2 for n in counts.values())
    assert (batch.weight == 1).all()


def test_probabilities_and_weights(state, key):
    # p^alpha with alpha = 1/2: 0 -> 4, 2 -> 3, 3 -> 2, 100 -> 1, and 101, 102, 103 keep 1: in all 13.
    state = update(state, index(0, 2, 3, 100), jnp.asarray([16.0, 9, 4, 1]), 0.5)
    weights = {0: 4, 2: 3, 3: 2, 100: 1, 101: 1, 102: 1, 103: 1}
    counts, batch = counted(state, key, beta=0.5)
    for i, weight in weights.items():
        assert abs(counts[i] - 1000 * weight / 13) <= 2
    # (size P)^-beta over the largest, that of weight 1: the size and the 13 drop out, (weight / 1)^-1/2
    # stays.
    expected = [weights[i] ** -0.5 for i in batch.observation["id"].tolist()]
    np.testing.assert_allclose(batch.weight, expected, rtol=1e-5)


def test_weights_are_the_ratio_to_uniform(state, key):
    """With beta = 1 weighted samples have the mean of uniform ones (times the common factor)."""
    state = update(state, index(0, 2, 3), jnp.asarray([5.0, 3, 0.5]), 1.0)
    counts, batch = counted(state, key)
    ids = np.asarray(batch.observation["id"])
    shares = [float(batch.weight[ids == i].sum()) for i in counts]
    np.testing.assert_allclose(shares, np.mean(shares), rtol=0.05)  # 1000 draws, each count off by at most 2
    with pytest.raises(AssertionError):  # negative control: without the weights the shares differ
        np.testing.assert_allclose(list(counts.values()), np.mean(list(counts.values())), rtol=0.05)


def test_new_rows_get_the_highest_so_far(state, key):
    state = update(state, index(0, 2), jnp.asarray([8.0, 2]), 1.0)
    state = update(state, index(0), jnp.asarray([3.0]), 1.0)  # the highest stays 8
    state = add(state, block(5, 1))
    # Weights: 0 -> 3, 2 -> 2, 3 -> 1, 100 to 103 -> 1, and row 4 of both columns is followed now -> 8: in all
    # 26.
    counts, _ = counted(state, key)
    expected = {0: 3, 2: 2, 3: 1, 100: 1, 101: 1, 102: 1, 103: 1, 4: 8, 104: 8}
    assert set(counts) == set(expected)
    assert all(abs(counts[i] - 1000 * weight / 26) <= 2 for i, weight in expected.items())


def test_update_of_rows_that_cannot_be_sampled_is_skipped(state):
    after = update(state, index(1, 4, 7), jnp.asarray([50.0, 50, 50]), 1.0)  # invalid, newest, never written
    jax.tree.map(np.testing.assert_array_equal, after, state)


def test_rows_that_left_are_not_drawn(state, key):
    state = add(state, block(5, 8))  # 13 rows into 10: rows 0 to 2 left
    counts, _ = counted(state, key)
    assert set(counts) == {*range(3, 12), *range(103, 112)}


@pytest.mark.parametrize("priority", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_row_whose_error_is_no_number_is_hardly_drawn_again(state, priority):
    """With the highest weight it would be in most batches, each of which is left out."""
    state = update(state, index(0), jnp.asarray([4.0]), 1.0)
    state = update(state, index(2), jnp.asarray([priority]), 1.0)
    assert state.priorities[0][2] == jnp.float32(1e-6) and state.highest == 4
    assert jnp.isfinite(sum_tree.total(state.priorities))


def test_priority_zero_stays_in_reach(state):
    state = update(state, index(0), jnp.asarray([0.0]), 1.0)
    assert state.priorities[0][0] == jnp.float32(1e-6)


def test_of_several_priorities_for_one_row_the_highest_counts(state):
    state = update(state, index(0, 0, 0), jnp.asarray([2.0, 7, 3]), 1.0)
    assert state.priorities[0][0] == 7


def test_nothing_to_draw(key):
    _, batch = counted(add(REPLAY.init(ROW), block(0, 1)), key)
    assert not batch.weight.any()
    assert not batch.discount.any()
    assert not batch.index.any()


def test_one_compilation_serves_every_alpha_and_beta(state):
    local = jax.jit(functools.partial(REPLAY.update_priorities))
    for alpha in (0.2, 0.7):
        local(state, index(0), jnp.asarray([2.0]), jnp.float32(alpha))
    assert local._cache_size() == 1
