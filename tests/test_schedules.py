"""Schedules: golden values at the start, on the way, at the end and beyond it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from operant.ops import schedules
from operant.spec import Schedule

STEPS = [-5, 0, 25, 50, 100, 1000]
GOLDEN = {
    "constant": (Schedule("constant", 3.0), [3, 3, 3, 3, 3, 3]),
    # 1 + f * (0.2 - 1)
    "linear": (Schedule("linear", 1.0, 0.2, 100), [1, 1, 0.8, 0.6, 0.2, 0.2]),
    # 0.01^f: 0.01^0.25 = 0.316228, 0.01^0.5 = 0.1
    "exponential": (Schedule("exponential", 1.0, 0.01, 100), [1, 1, 0.316228, 0.1, 0.01, 0.01]),
    # 0.1 + 0.8 (1 - f)²: 0.1 + 0.8 * 0.5625 = 0.55, 0.1 + 0.8 * 0.25 = 0.3
    "polynomial": (Schedule("polynomial", 0.9, 0.1, 100, power=2.0), [0.9, 0.9, 0.55, 0.3, 0.1, 0.1]),
    "piecewise": (
        Schedule("piecewise", 1.0, boundaries=(25, 100), values=(0.5, 0.1)),
        [1, 1, 0.5, 0.5, 0.1, 0.1],
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name):
    schedule, wanted = GOLDEN[name]
    steps = jnp.asarray(STEPS, jnp.int32)
    out = jax.jit(lambda s: schedules.value(schedule, s))(steps)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, wanted, rtol=1e-5)
    for step, value in zip(STEPS, wanted, strict=True):
        one = schedules.value(schedule, step)
        assert one.shape == () and one.dtype == jnp.float32
        np.testing.assert_allclose(one, value, rtol=1e-5)


def test_piecewise_changes_at_the_boundary_and_not_before():
    schedule = GOLDEN["piecewise"][0]
    np.testing.assert_array_equal(
        schedules.value(schedule, jnp.asarray([24, 25, 99, 100])), f32(1, 0.5, 0.5, 0.1)
    )


def f32(*x):
    return np.asarray(x, np.float32)


def test_ends_are_exact():
    schedule = Schedule("linear", 2.5e-4, 1e-5, 1_000_000)
    assert schedules.value(schedule, 0) == np.float32(2.5e-4)
    assert schedules.value(schedule, 10**9) == np.float32(1e-5)


def test_boundaries_beyond_the_integers_of_the_step():
    schedule = Schedule("piecewise", 1.0, boundaries=(10, 10**12), values=(2.0, 3.0))
    assert schedules.value(schedule, jnp.int32(2**31 - 2)) == 2


def test_two_steps_compile_once():
    schedule = GOLDEN["linear"][0]
    traces = []

    @jax.jit
    def f(step):
        traces.append(step)
        return schedules.value(schedule, step)

    assert f(jnp.int32(0)) != f(jnp.int32(50))
    assert len(traces) == 1
