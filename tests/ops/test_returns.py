"""Estimators of returns: golden values, slow references, and the properties that define them."""

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.ops import returns

few = settings(max_examples=25, deadline=None)


def f32(*x):
    return jnp.asarray(x, jnp.float32)


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-4)


# A fixed shape, so that Hypothesis compiles once.
T, N = 7, 3


@st.composite
def streams(draw):
    """Draw rows with terminations, truncations and the invalid row that follows each of them."""
    numbers = st.floats(-2, 2, width=32)
    block = {
        "r": draw(hnp.arrays(np.float32, (T, N), elements=numbers)),
        "v": draw(hnp.arrays(np.float32, (T + 1, N), elements=numbers)),
        "q": draw(hnp.arrays(np.float32, (T, N), elements=numbers)),
        "rho": draw(hnp.arrays(np.float32, (T, N), elements=st.floats(0, 3, width=32))),
    }
    event = draw(hnp.arrays(np.int8, (T, N), elements=st.sampled_from([0, 0, 0, 1, 2])))
    valid = np.ones((T, N), bool)
    for t in range(1, T):
        valid[t] = ~((event[t - 1] > 0) & valid[t - 1])
    terminated, truncated = (event == 1) & valid, (event == 2) & valid
    # What stands on an invalid row means nothing: large numbers would show if they leaked.
    block["r"][~valid] = 1000.0
    return {**block, "terminated": terminated, "truncated": truncated, "valid": valid}


@jax.jit
def arrays(s, gamma, lambda_):
    """Return discounts and traces."""
    d = returns.discounts(s["terminated"], gamma=gamma)
    return d, returns.traces(s["truncated"], s["valid"], lambda_=lambda_)


gae, lambda_returns, retrace = map(jax.jit, (returns.gae, returns.lambda_returns, returns.retrace))
truncated_lambda_returns = jax.jit(returns.truncated_lambda_returns, static_argnames="n")


def episodes(s, n):
    """Yield the rows of each episode of one column, and whether it bootstraps from the row after its last."""
    rows = []
    for t in range(T):
        if not s["valid"][t, n]:
            continue
        rows.append(t)
        if s["terminated"][t, n] or s["truncated"][t, n] or t == T - 1:
            yield rows, not s["terminated"][t, n]
            rows = []
    if rows:
        yield rows, True


def slow_n_step(s, gamma, n_steps):
    """Sum rewards forward, row by row, straight from the definition."""
    g = np.zeros((T, N))
    for n in range(N):
        for rows, bootstrap in episodes(s, n):
            for i, t in enumerate(rows):
                used = rows[i : i + n_steps]
                g[t, n] = sum(gamma**k * s["r"][u, n] for k, u in enumerate(used))
                if bootstrap or used[-1] != rows[-1]:
                    g[t, n] += gamma ** len(used) * s["v"][used[-1] + 1, n]
    return g


def slow_lambda(s, gamma, lambda_):
    """Mix the n-step returns: (1 - λ) Σ λ^(n-1) G⁽ⁿ⁾ + λ^(last-1) G⁽last⁾ (Sutton and Barto 2018, equation
    12.3)."""
    n_step = [slow_n_step(s, gamma, k) for k in range(1, T + 1)]
    g = np.zeros((T, N))
    for n in range(N):
        for rows, _ in episodes(s, n):
            for i, t in enumerate(rows):
                last = len(rows) - i
                g[t, n] = lambda_ ** (last - 1) * n_step[last - 1][t, n]
                g[t, n] += sum(
                    (1 - lambda_) * lambda_ ** (k - 1) * n_step[k - 1][t, n] for k in range(1, last)
                )
    return g


def slow_correction(s, gamma, weigh, trace):
    """Σ over later rows of gamma^k (product of traces) weigh * error: the sums of Retrace and V-trace as
    printed."""
    total = np.zeros((T, N))
    for n in range(N):
        for rows, bootstrap in episodes(s, n):
            for i, t in enumerate(rows):
                coefficient = 1.0
                for k, u in enumerate(rows[i:]):
                    if k:
                        coefficient *= gamma * trace(rows[i + k - 1], u, n)
                    follows = gamma if bootstrap or u != rows[-1] else 0.0
                    total[t, n] += coefficient * weigh(u, n, follows)
    return total


gammas, lambdas = st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([0.0, 0.7, 1.0])


def test_n_step_sums_golden():
    # gamma 0.5: 1 + 0.5*2 + 0.25*4 = 3, discount 0.125 after three rows; 1 + 0.5*2 = 2 before an unknown row,
    # 0.25; the same with a termination on the last row known, 0; on a later row, no matter; nothing known, 0
    # rows
    T, F = True, False
    total, discount, length = returns.n_step_sums(
        jnp.broadcast_to(f32(1, 2, 4), (5, 3)),
        jnp.array([[T, T, T], [T, T, F], [T, T, F], [T, T, F], [F, T, T]]),
        jnp.array([[F, F, F], [F, F, F], [F, T, F], [F, F, T], [F, F, F]]),
        gamma=0.5,
    )
    np.testing.assert_array_equal(total, [3, 2, 2, 2, 0])
    np.testing.assert_array_equal(discount, [0.125, 0.25, 0, 0.25, 1])
    np.testing.assert_array_equal(length, [3, 2, 2, 2, 0])


def test_gae_golden():
    # gamma 0.5, lambda 0.5, v = 1, 2, 3, 4
    # delta_2 = 3 + 0.5*4 - 3 = 2           A_2 = 2
    # delta_1 = 2 + 0.5*3 - 2 = 1.5         A_1 = 1.5 + 0.25*2 = 2
    # delta_0 = 1 + 0.5*2 - 1 = 1           A_0 = 1 + 0.25*2 = 1.5
    a = returns.gae(f32(1, 2, 3), f32(0.5, 0.5, 0.5), f32(1, 2, 3, 4), f32(0.5, 0.5, 0.5))
    np.testing.assert_array_equal(a, [1.5, 2.0, 2.0])


def test_lambda_returns_golden():
    # gamma 0.5, lambda 0.5: G_1 = 2 + 0.5*4 = 4;  G_0 = 1 + 0.5*(0.5*2 + 0.5*4) = 2.5
    g = returns.lambda_returns(f32(1, 2), f32(0.5, 0.5), f32(2, 4), f32(0.5, 0.5))
    np.testing.assert_array_equal(g, [2.5, 4.0])


def test_n_step_golden():
    # gamma 0.5, n 2, row 1 ends an episode by a time limit, row 3 terminates
    # G_3 = 8;  G_2 = 4 + 0.5*8 = 8;  G_1 = 2 + 0.5*v_2 = 2 + 0.5*6 = 5;  G_0 = 1 + 0.5*5 = 3.5
    continues = f32(1, 0, 1, 1)
    args = f32(1, 2, 4, 8), f32(0.5, 0.5, 0.5, 0), f32(10, 6, 20, 40), continues
    np.testing.assert_array_equal(returns.truncated_lambda_returns(*args, n=2), [3.5, 5.0, 8.0, 8.0])
    # n 1: r + 0.5 v: 1 + 5, 2 + 3, 4 + 10, 8
    np.testing.assert_array_equal(returns.truncated_lambda_returns(*args, n=1), [6.0, 5.0, 14.0, 8.0])
    np.testing.assert_array_equal(returns.truncated_lambda_returns(*args, n=4), [3.5, 5.0, 8.0, 8.0])


def test_retrace_golden():
    # gamma 0.5, lambda 1, rho = 9, 2, 0.5 (clipped to 1, 1, 0.5), q = 1, 2, 3, v = 0, 4, 6, 8
    # Q_2 = 1 + 0.5*8 = 5;  Q_1 = 1 + 0.5*(6 + 0.5*(5 - 3)) = 4.5;  Q_0 = 1 + 0.5*(4 + 1*(4.5 - 2)) = 4.25
    args = f32(1, 2, 3), f32(0, 4, 6, 8), f32(1, 1, 1), f32(0.5, 0.5, 0.5)
    np.testing.assert_array_equal(returns.retrace(*args, f32(9, 2, 0.5), f32(1, 1, 1)), [4.25, 4.5, 5.0])
    # cut after row 0: Q_0 = 1 + 0.5*4 = 3
    np.testing.assert_array_equal(returns.retrace(*args, f32(9, 2, 0.5), f32(0, 1, 1)), [3.0, 4.5, 5.0])


@few
@given(streams(), gammas, lambdas)
def test_lambda_returns_and_gae_match_the_slow_reference(s, gamma, lambda_):
    d, trace = arrays(s, gamma, lambda_)
    r, v = np.asarray(s["r"]), np.asarray(s["v"])
    slow = slow_lambda(s, gamma, lambda_)
    valid = s["valid"]
    close(lambda_returns(r, d, v[1:], trace)[valid], slow[valid])
    close((gae(r, d, v, trace) + v[:-1])[valid], slow[valid])


@few
@given(streams(), gammas, st.integers(1, T + 2))
def test_n_step_matches_the_slow_reference(s, gamma, n):
    d, trace = arrays(s, gamma, 1.0)
    g = truncated_lambda_returns(np.asarray(s["r"]), d, np.asarray(s["v"][1:]), trace, n=n)
    close(g[s["valid"]], slow_n_step(s, gamma, n)[s["valid"]])


@few
@given(streams(), gammas, lambdas)
def test_retrace_matches_the_slow_reference(s, gamma, lambda_):
    d, cut = arrays(s, gamma, lambda_)
    q = retrace(*(np.asarray(s[k]) for k in "qvr"), d, np.asarray(s["rho"]), cut)
    slow = s["q"] + slow_correction(
        s,
        gamma,
        lambda u, n, follows: s["r"][u, n] + follows * s["v"][u + 1, n] - s["q"][u, n],
        lambda before, u, n: lambda_ * min(1.0, s["rho"][u, n]),  # the ratio of the later row
    )
    close(q[s["valid"]], slow[s["valid"]])


@few
@given(streams(), gammas, lambdas)
def test_columns_do_not_mix(s, gamma, lambda_):
    d, cut = arrays(s, gamma, lambda_)
    r, v = np.asarray(s["r"]), np.asarray(s["v"])
    together = gae(r, d, v, cut)
    alone = [gae(r[:, n], d[:, n], v[:, n], cut[:, n]) for n in range(N)]
    np.testing.assert_array_equal(together, jnp.stack(alone, axis=1))


def constant_reward(cut_at, terminated):
    """Rewards of 1 forever, values 1 / (1 - gamma), one episode's end at row `cut_at` and its invalid row."""
    gamma, t = 0.9, jnp.arange(6)
    v = jnp.full((7,), 1 / (1 - gamma), jnp.float32)
    r = jnp.where(t == cut_at + 1, 0.0, 1.0)  # the row of the reset brings no reward
    d = returns.discounts((t == cut_at) & terminated, gamma=gamma)
    trace = returns.traces((t == cut_at) & ~terminated, t != cut_at + 1, lambda_=0.95)
    return returns.gae(r, d, v, trace)[t != cut_at + 1]


def test_a_time_limit_is_no_surprise():
    # delta = 1 + 0.9*10 - 10 = 0 on every row
    np.testing.assert_allclose(constant_reward(2, jnp.asarray(False)), 0.0, atol=1e-5)


def test_a_time_limit_taken_for_a_termination_is():
    # the last row loses its bootstrap: 1 - 10 = -9; the row before it -9 * 0.9 * 0.95 = -7.695
    advantage = constant_reward(2, jnp.asarray(True))
    np.testing.assert_allclose(advantage[1:3], [-7.695, -9.0], rtol=1e-5)


def test_the_invalid_row_reaches_nothing():
    t = jnp.arange(4)
    trace = returns.traces(t == 1, t != 2)
    v = f32(1, 2, 3, 4, 5)
    args = f32(1, 0.9, 0.9, 0.9) * 0.9, v, trace
    quiet, loud = (returns.gae(f32(1, 2, x, 4), *args) for x in (0.0, 1e6))
    np.testing.assert_array_equal(quiet[t != 2], loud[t != 2])
    uncut = returns.gae(f32(1, 2, 1e6, 4), args[0], v, jnp.ones_like(trace))
    assert float(uncut[1]) > 1e5


def test_shapes_are_checked():
    with pytest.raises(Exception, match="v"):
        returns.gae(f32(1, 2), f32(1, 1), f32(1, 2), f32(1, 1))


def test_gradients_flow():
    grad = jax.grad(lambda v: returns.gae(f32(1, 2), f32(0.5, 0.5), v, f32(1, 1))[0])(f32(1, 2, 3))
    # A_0 = r_0 + 0.5 r_1 + 0.25 v_2 - v_0
    np.testing.assert_allclose(grad, [-1.0, 0.0, 0.25])
