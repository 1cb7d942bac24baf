"""Schedules: golden values at the start, on the way, at the end and beyond it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from operant.errors import SpecError
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
    # 0.2 + 0.8 (1 + cos π f) / 2: at a quarter 0.2 + 0.8 * 0.853553 = 0.882843
    "cosine": (Schedule("cosine", 1.0, 0.2, 100), [1, 1, 0.882843, 0.6, 0.2, 0.2]),
    # up to 50 a line from 0 to 1, and half a cosine of 50 from there
    "cosine behind a warm-up": (Schedule("cosine", 1.0, 0.2, 100, warmup=50), [0, 0, 0.5, 1, 0.2, 0.2]),
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


@pytest.mark.parametrize("warmup", [0, 30])
def test_a_cosine_is_that_of_optax(warmup):
    schedule, steps = Schedule("cosine", 3e-4, 1e-5, 200, warmup=warmup), np.arange(250)
    theirs = optax.warmup_cosine_decay_schedule(0.0, 3e-4, warmup, 200, 1e-5)
    out = schedules.value(schedule, jnp.asarray(steps, jnp.uint32))
    np.testing.assert_allclose(out, [theirs(step) for step in steps.tolist()], rtol=1e-5, atol=1e-10)
    assert schedules.value(schedule, warmup) == np.float32(3e-4) and out[-1] == np.float32(1e-5)
    assert schedule.range() == (0.0 if warmup else 1e-5, 3e-4)


def test_boundaries_beyond_the_integers_of_the_step():
    schedule = Schedule("piecewise", 1.0, boundaries=(10, 10**12), values=(2.0, 3.0))
    assert schedules.value(schedule, jnp.int32(2**31 - 2)) == 2


def test_more_steps_than_integers_hold():
    schedule = Schedule("linear", 1.0, 0.0, 3 * 10**9)
    assert jax.jit(lambda s: schedules.value(schedule, s))(jnp.uint32(15 * 10**8)) == 0.5


def test_two_steps_compile_once():
    schedule = GOLDEN["linear"][0]
    traces = []

    @jax.jit
    def f(step):
        traces.append(step)
        return schedules.value(schedule, step)

    assert f(jnp.int32(0)) != f(jnp.int32(50))
    assert len(traces) == 1


def test_random_schedule_is_uniform_between_its_bounds_and_a_function_of_the_step():
    schedule = Schedule("random", 2.0, 5.0)
    x = np.asarray(schedules.value(schedule, jnp.arange(4000)))
    assert ((x >= 2) & (x < 5)).all()
    # a mean of 4000 has the deviation 3 / √12 / √4000 = 0.014
    assert x.mean() == pytest.approx(3.5, abs=0.06) and x.std() == pytest.approx(3 / np.sqrt(12), rel=0.05)
    assert float(schedules.value(schedule, jnp.uint32(7))) == x[7]
    other = schedules.value(Schedule("random", 2.0, 5.0, seed=1), jnp.arange(4000))
    assert np.abs(np.corrcoef(x, other)[0, 1]) < 0.06
    assert schedule.range() == (2.0, 5.0)


def test_ornstein_uhlenbeck_returns_to_its_mean():
    schedule = Schedule("ornstein_uhlenbeck", 1.0, theta=0.2, sigma=0.3)
    x = np.asarray(schedules.value(schedule, jnp.arange(4000)))
    assert x[0] == 1.0
    # in the long run: deviation 0.3 / √(1 - 0.8²) = 0.5, correlation of neighbours 0.8
    assert x.std() == pytest.approx(0.5, rel=0.1) and x.mean() == pytest.approx(1.0, abs=0.15)
    assert np.corrcoef(x[1:], x[:-1])[0, 1] == pytest.approx(0.8, abs=0.03)
    # what a step adds, 0.3 ε: x' - 0.8 x - 0.2, but for the bounds at 1 ± 1.5 and terms that are felt no more
    added = x[1:] - 0.8 * x[:-1] - 0.2
    assert added.std() == pytest.approx(0.3, rel=0.05)
    low, high = schedule.range()
    assert (low, high) == (pytest.approx(-0.5), pytest.approx(2.5)) and ((x >= low) & (x <= high)).all()
    absolute = Schedule("ornstein_uhlenbeck", 1.0, theta=0.2, sigma=0.3, absolute=True)
    np.testing.assert_allclose(schedules.value(absolute, jnp.arange(100)), np.abs(x[:100]), rtol=1e-4)
    assert absolute.range() == (0.0, pytest.approx(2.5))


@pytest.mark.parametrize(
    ("kind", "staircase", "wanted"),
    [
        # 8 times 0.25 to the power of 0, 1/2, 1, 3/2 and 2; in stairs of 0, 0, 1, 1 and 2.
        ("exponential", False, [8.0, 4.0, 2.0, 1.0, 0.5]),
        ("exponential", True, [8.0, 8.0, 2.0, 2.0, 0.5]),
        # 8 divided by 1, 1.125, 1.25, 1.375, 1.5.
        ("inverse_time", False, [8.0, 8 / 1.125, 6.4, 8 / 1.375, 8 / 1.5]),
    ],
)
def test_schedules_that_decay_without_end(kind, staircase, wanted):
    spec = {"type": kind, "initial_value": 8.0, "num_steps": 10, "decay_rate": 0.25, "staircase": staircase}
    schedule = Schedule.read(spec)
    np.testing.assert_allclose(schedules.value(schedule, jnp.arange(0, 25, 5)), wanted, rtol=1e-6)
    assert (
        0.0 < schedule.range()[0] < 1e-300 and schedule.range()[1] == 8.0
    )  # above 0, as a temperature must be


def test_schedules_in_other_words():
    linear = {"type": "linear", "unit": "episodes", "num_steps": 9, "initial_value": 1.0, "final_value": 0.5}
    assert Schedule.read(linear) == Schedule("linear", 1.0, 0.5, 9, "episodes")
    pieces = {
        "type": "piecewise_constant",
        "unit": "updates",
        "boundaries": [3, 8],
        "values": [1.0, 2.0, 3.0],
    }
    read = Schedule.read(pieces)
    assert read == Schedule("piecewise", 1.0, unit="updates", boundaries=(3, 8), values=(2.0, 3.0))
    uniform = {"type": "random", "distribution": "uniform", "minval": 0.0, "maxval": 2.0}
    assert Schedule.read(uniform) == Schedule("random", 0.0, 2.0)
    assert Schedule.read({"type": "random"}) == Schedule("random", 0.0, 1.0)
    normal = {"type": "random", "distribution": "normal", "mean": 2.0, "stddev": 0.5}
    assert Schedule.read(normal) == Schedule("ornstein_uhlenbeck", 2.0, theta=1.0, sigma=0.5)
    assert Schedule.read({"type": "ornstein_uhlenbeck", "mu": 0.5}) == Schedule("ornstein_uhlenbeck", 0.5)
    decaying = {"type": "decaying", "decay": "linear", "num_steps": 9, "initial_value": 0.25, "scale": 2.0}
    assert Schedule.read(decaying) == Schedule("linear", 0.5, 0.0, 9)
    for wrong, message in [
        ({"type": "linear", "start": 1.0, "initial_value": 2.0}, "got 'start' twice"),
        ({"type": "inverse_time", "start": 1.0, "steps": 5}, "decay_rate must be above 0. Received: .*=None"),
        ({"type": "exponential", "start": 1.0, "decay_rate": 1.5, "steps": 5}, "above 0 and at most 1"),
        ({"type": "linear", "start": 1.0, "decay_rate": 0.5, "steps": 5}, "decay_rate must be left out of"),
        ({"type": "decaying", "start": 1.0, "steps": 5}, "Unknown schedule type None"),
        (
            {"type": "exponential", "start": 1.0, "decay_rate": 0.5, "steps": 5, "increasing": True},
            "'increasing'",
        ),
        ({"type": "random", "distribution": "gamma"}, "distribution must be 'uniform' or 'normal'"),
        ({"type": "ornstein_uhlenbeck", "theta": 0.0}, "theta must be from 0.01 to 1"),
        ({"type": "ornstein_uhlenbeck", "sigma": -1.0}, "sigma must be at least 0"),
        ({"type": "random", "start": 0.0, "seed": -1}, "seed must be a whole number"),
    ]:
        with pytest.raises(SpecError, match=message):
            Schedule.read(wrong)
