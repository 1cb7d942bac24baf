"""Cheap randomness: bits and permutations are uniform in every way that sampling relies on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from operant.ops import prng


@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 65, 100, 127, 128, 129, 512, 1000, 1024, 4097])
def test_every_number_comes_once(n, key):
    order = np.asarray(prng.permutation(key, n))
    assert order.dtype == np.int32
    assert sorted(order) == list(range(n))


def orders(n, count, make=prng.permutation):
    keys = jax.random.split(jax.random.key(7), count)
    return np.asarray(jax.jit(jax.vmap(lambda k: make(k, n)))(keys))


def p_values(drawn):
    """Chi-square tests of where each number lands, of the step between neighbours, and of inversions of
    neighbours."""
    count, n = drawn.shape
    cells = np.zeros((n, n))
    np.add.at(cells, (np.arange(n), drawn), 1)
    steps = np.bincount(((drawn[:, 1:] - drawn[:, :-1]) % n).ravel(), minlength=n)[1:]
    rises = (drawn[:, 1:] > drawn[:, :-1]).sum()
    return (
        scipy.stats.chisquare(cells.ravel(), ddof=2 * n - 2).pvalue,
        scipy.stats.chisquare(steps).pvalue,
        scipy.stats.binomtest(int(rises), count * (n - 1)).pvalue,
    )


@pytest.mark.parametrize("n", [64, 96, 128])
def test_positions_and_neighbours_are_uniform(n):
    positions, steps, rises = p_values(orders(n, 20000))
    assert positions > 1e-4
    assert steps > 1e-4
    assert rises > 1e-9  # neighbours' rises are negatively correlated: their variance is below a binomial's


def test_uniformity_is_noticed_where_it_lacks():
    rotated = orders(64, 20000, lambda k, n: (jnp.arange(n) + jax.random.randint(k, (), 0, n)) % n)
    assert p_values(rotated)[1] < 1e-4
    few = orders(64, 20000, lambda k, n: jax.random.permutation(k, jnp.arange(n)).at[0].set(0))
    assert p_values(few)[0] < 1e-4


def test_keys_give_different_orders():
    drawn = orders(512, 200)
    assert len({tuple(row) for row in drawn}) == 200


def test_bits_are_uniform_over_index_and_over_keys(key):
    one = np.asarray(prng.bits(key, (1 << 18,)))
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(jnp.arange(1 << 14))
    many = np.asarray(jax.vmap(lambda k: prng.bits(k, (4,)))(keys))
    for drawn in (one, many[:, 0], many[:, 3], many[1:, 0] ^ many[:-1, 0], one[1:] ^ one[:-1]):
        for shift in (0, 12, 24):
            counts = np.bincount((drawn >> shift) & 255, minlength=256)
            assert scipy.stats.chisquare(counts).pvalue > 1e-5
        ones = np.unpackbits(np.ascontiguousarray(drawn).view(np.uint8)).mean()
        assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(32 * len(drawn))
    assert (
        len(np.unique(one)) > 0.9999 * (1 << 18) - 12
    )  # as many as in a random draw: 2^18 of 2^32 seldom meet
    assert prng.bits(key, (3, 5)).shape == (3, 5)


def test_neighbouring_keys_flip_half_of_the_bits():
    keys = [
        jax.random.wrap_key_data(jnp.asarray(k, jnp.uint32)) for k in ([1, 2], [1, 3], [0, 2], [2**31, 2])
    ]
    drawn = [np.asarray(prng.bits(k, (4096,))) for k in keys]
    for other in drawn[1:]:
        assert 0.48 < np.unpackbits((drawn[0] ^ other).view(np.uint8)).mean() < 0.52
