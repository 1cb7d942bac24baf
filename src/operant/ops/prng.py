"""Cheap randomness inside updates: bits without a cipher's rounds, permutations without sorting.

On CPU one call of `jax.random.bits` runs some eighty small kernels, more than the gradient of a small
network, and sorting random numbers, as `jax.random.permutation` does, takes a quarter of a PPO update. A good
hash is enough to choose samples and their order. Keys are JAX's own; draws that shape actions or parameters
stay with `jax.random`.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int32, UInt32

from operant.types import Array, Key

ROUNDS = 12
SMALL = 64
"""Below this a permutation is drawn by sorting: a cipher of a few bits has too few keys, and sorting is
cheap."""

POISSON_TERMS = 192
"""Numbers that `poisson` can return; with a mean of 64 larger ones have a probability below 1e-35."""


def bits(key: Key, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Return uniform 32-bit numbers: PCG4D (Jarzynski and Olano 2020, "Hash Functions for GPU Rendering") of
    key and index.

    Args:
        key: consumed.
        shape: of the result, below 2^32 elements.
    """
    data = jax.random.key_data(key).reshape(-1)
    index = jax.lax.iota(jnp.uint32, math.prod(shape))
    v = [jnp.broadcast_to(data[0], index.shape), jnp.broadcast_to(data[-1], index.shape), index, ~index]
    v = [x * jnp.uint32(1664525) + jnp.uint32(1013904223) for x in v]
    v = _mixed(v)
    v = [x ^ (x >> jnp.uint32(16)) for x in v]
    return _mixed(v)[3].reshape(shape)


def uniform(key: Key, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Return uniform numbers in `[0, 1)`, multiples of 2^-24, made from `bits`."""
    return (bits(key, shape) >> jnp.uint32(8)).astype(jnp.float32) * jnp.float32(2.0**-24)


def poisson(key: Key, mean: float | Float[Array, ""]) -> Int32[Array, ""]:
    """Return a Poisson-distributed number: the inverse of its distribution function at a uniform number.

    Args:
        key: consumed; of any implementation, while `jax.random.poisson` takes only one.
        mean: from 0 to 64.
    """
    k = np.arange(POISSON_TERMS, dtype=np.float32)
    log_factorial = np.cumsum(np.log(np.maximum(k, 1.0)), dtype=np.float64).astype(np.float32)
    mean = jnp.broadcast_to(jnp.asarray(mean, jnp.float32), k.shape)
    reached = jnp.cumsum(jnp.exp(jax.scipy.special.xlogy(k, mean) - mean - log_factorial))
    # Rounded sums end near 1; beyond the end there is nothing to draw.
    return jnp.sum(reached <= uniform(key, ()) * reached[-1], dtype=jnp.int32)


def _mixed(v: list[Array]) -> list[Array]:
    x, y, z, w = v
    x = x + y * w
    y = y + z * x
    z = z + x * y
    w = w + y * z
    return [x, y, z, w]


def permutation(key: Key, n: int) -> Int32[Array, " {n}"]:
    """Return the numbers 0 to n - 1 in an order that the key chooses.

    A Feistel network on the least even-sized block that holds n, walked until it falls below n (Black and
    Rogaway 2002, "Ciphers with arbitrary finite domains", section 4; Mitchell et al. 2021, "Bandwidth-optimal
    random shuffling for GPUs"). Not every one of the n! orders can occur (nor can it with any 64-bit key);
    positions and pairs are uniform.

    Args:
        key: consumed.
        n: how many.
    """
    if n < SMALL:
        return jax.random.permutation(key, jnp.arange(n, dtype=jnp.int32))
    width = (n - 1).bit_length()
    keys = bits(key, (ROUNDS,))
    values = _encipher(jnp.arange(n, dtype=jnp.uint32), keys, width)
    if n & (n - 1):  # else every value is below n
        limit = jnp.uint32(n)
        values = jax.lax.while_loop(
            lambda x: jnp.any(x >= limit),
            lambda x: jnp.where(x >= limit, _encipher(x, keys, width), x),
            values,
        )
    return values.astype(jnp.int32)


def _encipher(x: UInt32[Array, " n"], keys: UInt32[Array, " R"], width: int) -> UInt32[Array, " n"]:
    """Apply a bijection of the numbers of `width` bits: rounds of (left, right) -> (right, left ^
    hash(right)).
    """
    high, low = width // 2, width - width // 2
    left, right = x >> low, x & jnp.uint32(2**low - 1)
    for i in range(ROUNDS):  # an even number, so that the halves end at their own sizes
        size = high if i % 2 == 0 else low
        left, right = right, left ^ (_hash(right ^ keys[i]) >> jnp.uint32(32 - size))
    return (left << low) | right


def _hash(x: UInt32[Array, " n"]) -> UInt32[Array, " n"]:
    """Mix the bits of each number (the 32-bit finaliser of MurmurHash3, preceded by Knuth's multiplier)."""
    x = x * jnp.uint32(0x9E3779B1)
    x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> jnp.uint32(13))) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> jnp.uint32(16))
