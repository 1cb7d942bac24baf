"""What a replay memory holds, and the arithmetic of its columns."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Int

from operant.ops import prng
from operant.types import Array, Arrays, Key, Tree

VALID, TERMINATED, TRUNCATED = 1, 2, 4
FLAG_BITS = 3


class RowSpec(NamedTuple):
    """One row of one actor, an example of shapes and types, such as `jax.ShapeDtypeStruct`s."""

    observation: Tree
    action: Tree
    extras: Tree = ()


class Cursor(NamedTuple):
    """Where columns stand; leaves int32 `[1, n]`, all bounded, so that none ever overflows."""

    next: Int[Array, "1 n"]
    """Row to be written next."""
    held: Int[Array, "1 n"]
    """Rows held: those just before `next`, around the ring."""
    rank: Int[Array, "1 n"]
    """Rank of the next valid row: valid rows are counted, modulo 2 L."""
    valid: Int[Array, "1 n"]
    """Valid rows held."""
    open: Int[Array, "1 n"]
    """1 where the newest row is valid, so that it still waits for the row that follows it."""
    frame: Int[Array, "1 n"]
    """Frame to be written next."""


class ReplayState(NamedTuple):
    """Contents of a memory; column `c` of its flat rings has rows `c L` to `(c + 1) L - 1`."""

    cursor: Int[Array, "6 N"]
    """A `Cursor`, in one array."""
    rows: Tree
    """Dict of observation (without its stacks), action, reward, extras, `mark` (flags, and the rank of the
    first valid row from this one on) and `frame` (the row's newest frame). Leaves `[N L, ...]`."""
    frames: Arrays
    """Single frames of the stacked observations, `[N F, ...]`."""
    order: Int[Array, " NL"]
    """Row of each rank (modulo L) in its column: so a uniform draw is one look-up and never misses."""
    priorities: tuple[Array, ...]
    """Sum tree over rows; zero where a row cannot be sampled. `()` without priorities."""
    highest: Tree
    """Highest weight given so far: that of a new row. `()` without priorities."""


def eligible(state: ReplayState) -> Int[Array, " N"]:
    """Return how many rows of each column are valid and followed."""
    cursor = Cursor(*state.cursor)
    return cursor.valid - cursor.open


def take(x: Array, index: Int[Array, "*S"]) -> Array:
    """Gather along the first axis, by indices that are in bounds."""
    return x.at[index].get(mode="promise_in_bounds")


def mark(rank: Array, valid: Array, terminated: Array, truncated: Array) -> Array:
    """Return rank and flags in one int32."""
    flags = ((valid, VALID), (terminated, TERMINATED), (truncated, TRUNCATED))
    return (rank << FLAG_BITS) + sum(jnp.where(x, jnp.int32(bit), 0) for x, bit in flags)


def flag(mark: Int[Array, "*S"], bits: int) -> Array:
    """Return whether any of the flags is set."""
    return (mark & bits) > 0


def _high(a: Array, b: Array) -> Array:
    """Return the upper 32 bits of products of 32-bit numbers, by halves.

    `jax.lax.mulhi` is not compiled for several devices (XLA of JAX 0.10).
    """
    half = jnp.uint32(16)
    low = jnp.uint32(0xFFFF)
    first = (a >> half) * (b & low) + (((a & low) * (b & low)) >> half)
    second = (a & low) * (b >> half) + (first & low)
    return (a >> half) * (b >> half) + (first >> half) + (second >> half)


def pick(key: Key, count: int, sizes: Int[Array, " N"]) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Draw a column in proportion to its size, and a place below that size, uniformly (0 if all are empty).

    The product of 32 random bits and the total, over 2^32, is uniform up to total / 2^32 of a row's share.
    """
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    bits = prng.bits(key, (count,))
    point = _high(bits, ends[-1].astype(jnp.uint32)).astype(jnp.int32)
    column = jnp.searchsorted(ends, point, side="right", method="compare_all").astype(jnp.int32)
    column = jnp.minimum(column, len(sizes) - 1)
    return column, point - (ends - sizes)[column]
