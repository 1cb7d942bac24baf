"""The memory of the newest rows: order of time, blocks of any length, actors out of step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from operant.errors import SpecError
from operant.memory.recent import Recent
from operant.memory.ring import RowSpec
from operant.types import Rollout

EXAMPLE = RowSpec(
    {"state": jax.ShapeDtypeStruct((2,), jnp.float32)},
    {"action": jax.ShapeDtypeStruct((), jnp.int32)},
    {"log_prob": jax.ShapeDtypeStruct((), jnp.float32)},
)


def rows(first: int, count: int, n: int) -> Rollout:
    """Rows numbered from `first`; row `t` of actor `i` is `10 t + i` in all fields."""
    number = 10 * (first + np.arange(count + 1))[:, None] + np.arange(n)
    at = jnp.asarray(number[:-1])
    return Rollout(
        observation={"state": jnp.stack([jnp.asarray(number, jnp.float32)] * 2, axis=-1)},
        action={"action": at.astype(jnp.int32)},
        reward=at.astype(jnp.float32),
        terminated=at % 40 == 30,
        truncated=at % 40 == 20,
        valid=at % 50 != 40,
        extras={"log_prob": at.astype(jnp.float32)},
        carry=(),
    )


def assert_holds(block: Rollout, expected: Rollout) -> None:
    for one, other in zip(jax.tree.leaves(block), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 2, 3, 5])
def test_it_holds_the_newest_rows_in_order_and_what_follows_them(count):
    memory = Recent(5, 3)
    state, add, rollout = memory.init(EXAMPLE), jax.jit(memory.add), jax.jit(memory.rollout)
    for first in range(0, 6 * count, count):
        state = add(state, rows(first, count, 3))
        known = min(first + count, 5)
        held = jax.device_get(rollout(state))
        assert not held.valid[: 5 - known].any()
        last = jax.tree.map(lambda x, k=known: x[5 - k :], held)
        assert_holds(last, rows(first + count - known, known, 3))


@pytest.mark.slow
def test_actors_out_of_step_keep_their_own_rows():
    memory = Recent(4, 2)
    state, add = memory.init(EXAMPLE), jax.jit(memory.add)

    def column(first: int, actor: int) -> Rollout:
        return jax.tree.map(lambda x: x[:, actor : actor + 1], rows(first, 2, 2)._replace(carry=()))

    for first, actor in ((0, 0), (2, 0), (0, 1), (4, 0)):
        state = add(state, column(first, actor), jnp.array([actor]))
    held = jax.jit(memory.rollout)(state)
    assert np.asarray(held.reward)[:, 0].tolist() == [20, 30, 40, 50]
    assert np.asarray(held.reward)[2:, 1].tolist() == [1, 11]
    assert np.asarray(held.observation["state"])[:, 1, 0].tolist()[2:] == [1, 11, 21]
    assert np.asarray(held.valid)[:, 1].tolist() == [False, False, True, True]


@pytest.mark.slow
def test_age_is_how_many_steps_came_since():
    memory = Recent(6, 2)
    state, add, ages = memory.init(EXAMPLE), jax.jit(memory.add), jax.jit(memory.age)

    def made(valid, actors):
        block = jax.tree.map(lambda x: x[:, :actors], rows(0, len(valid), 2)._replace(carry=()))
        return block._replace(valid=jnp.asarray(valid)[:, None] | jnp.zeros((1, actors), bool))

    def age(actor, count):
        return np.asarray(ages(state))[-count:, actor].tolist()

    assert age(0, 1) == [0]
    state = add(state, made([True, True], 2))  # four rows, the last of them of actor 1
    assert (age(0, 2), age(1, 2)) == ([3, 1], [2, 0])
    state = add(state, made([True, True, True], 1), jnp.array([0]))
    assert (age(0, 5), age(1, 2)) == ([6, 4, 2, 1, 0], [5, 3])
    # One step, a last observation and rows that fill the block up: these belong to the next step.
    state = add(state, made([True, False, False, False], 1), jnp.array([1]))
    never = 2**32 - 1
    assert (age(1, 5), age(0, 1)) == ([4, 0, never, never, never], [1])
    state = add(state, made([False, True], 1), jnp.array([1]))
    assert (age(1, 2), age(0, 1)) == ([0, 0], [2])


def test_a_block_that_is_too_long_is_refused():
    memory = Recent(2, 1)
    with pytest.raises(SpecError, match=r"rollout must be of at most 2 rows\. Received: rollout=3\. Raise"):
        memory.add(memory.init(EXAMPLE), rows(0, 3, 1))
    with pytest.raises(SpecError, match=r"length must be at least 1"):
        Recent(0)
