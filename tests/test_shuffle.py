"""Permutations without sorting: each is one, keys differ, positions and pairs are uniform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from operant.ops import shuffle


@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 65, 100, 127, 128, 129, 512, 1000, 1024, 4097])
def test_every_number_comes_once(n, key):
    order = np.asarray(shuffle.permutation(key, n))
    assert order.dtype == np.int32
    assert sorted(order) == list(range(n))


def orders(n, count, make=shuffle.permutation):
    keys = jax.random.split(jax.random.key(7), count)
    return np.asarray(jax.jit(jax.vmap(lambda k: make(k, n)))(keys))


def p_values(drawn):
    """Chi-square tests of where each number lands, of the step between neighbours, and of inversions of neighbours."""
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
