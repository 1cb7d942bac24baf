"""Returns of remembered rows, and which rows make a batch: golden values worked by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from operant.agents.estimation import complete, estimate, newest, newest_episodes
from operant.ops import returns
from operant.types import Block

# Three steps of an episode, the row of its last observation, and the first step of another that goes on.
REWARD = [1.0, 2.0, 3.0, 0.0, 4.0]
VALID = [True, True, True, False, True]
VALUES = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
STEPS = [0, 1, 2, 4]
"""The rows that count."""


def block(end: str, reward=REWARD, valid=VALID) -> Block:
    ended = np.array([False, False, True, False, False])
    column = [
        np.asarray(x)[:, None]
        for x in (reward, ended & (end == "terminated"), ended & (end == "truncated"), valid)
    ]
    reward, terminated, truncated, valid = map(jnp.asarray, column)
    return Block({}, {}, reward.astype(jnp.float32), terminated, truncated, valid, (), ())


def estimated(end: str, values=VALUES, **settings) -> list[float]:
    chosen = {"gamma": 0.5, "lambda_": 1.0, "horizon": None, **settings}
    given = None if values is None else jnp.asarray(values, jnp.float32)[:, None, None]
    return np.asarray(estimate(block(end), given, **chosen))[STEPS, 0, 0].tolist()


@pytest.mark.parametrize(
    ("end", "settings", "wanted"),
    [
        # to the end: 3; 2 + 3/2; 1 + 3.5/2; the open episode ends in the prediction 60: 4 + 60/2
        ("terminated", {}, [2.75, 3.5, 3.0, 34.0]),
        # at a time limit the prediction for the last observation, 40, counts: 3 + 40/2; 2 + 23/2; 1 + 13.5/2
        ("truncated", {}, [7.75, 13.5, 23.0, 34.0]),
        # the same where an interrupted run did not say so: the row behind has only the last observation
        ("neither", {}, [7.75, 13.5, 23.0, 34.0]),
        ("neither", {"horizon": 2}, [9.5, 13.5, 23.0, 34.0]),
        # the same where terminations are predicted, too
        ("terminated", {"predict_terminal_values": True}, [7.75, 13.5, 23.0, 34.0]),
        # without predictions both are ends, and the open episode is what is known of it
        ("terminated", {"values": None}, [2.75, 3.5, 3.0, 4.0]),
        ("truncated", {"values": None}, [2.75, 3.5, 3.0, 4.0]),
        # one reward: 1 + 20/2; 2 + 30/2; 3; 4 + 60/2
        ("terminated", {"horizon": 1}, [11.0, 17.0, 3.0, 34.0]),
        # two: 1 + 2/2 + 30/4; 2 + 3/2
        ("terminated", {"horizon": 2}, [9.5, 3.5, 3.0, 34.0]),
        ("terminated", {"horizon": 2, "values": None}, [2.0, 3.5, 3.0, 4.0]),
        # two, λ = 1/2: 1 + (20/2 + 17/2)/2; 2 + (30/2 + 3/2)/2
        ("terminated", {"horizon": 2, "lambda_": 0.5}, [10.25, 10.25, 3.0, 34.0]),
        # no horizon, λ = 1/2: 2 + (30/2 + 3/2)/2 = 10.25; 1 + (20/2 + 10.25/2)/2
        ("terminated", {"lambda_": 0.5}, [8.5625, 10.25, 3.0, 34.0]),
        # more rewards than rows
        ("terminated", {"horizon": 99}, [2.75, 3.5, 3.0, 34.0]),
        # nothing but the reward, also at a time limit
        ("truncated", {"gamma": 0.0}, [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_returns(end, settings, wanted):
    assert estimated(end, **settings) == wanted


def test_horizon_may_be_traced():
    @jax.jit
    def two(horizon):
        given = jnp.asarray(VALUES, jnp.float32)[:, None, None]
        return estimate(block("terminated"), given, gamma=0.5, lambda_=1.0, horizon=horizon)

    for horizon, wanted in ((1.0, 11.0), (2.0, 9.5), (7.0, 2.75)):
        assert float(two(jnp.float32(horizon))[0, 0, 0]) == wanted


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_truncated_lambda_returns_equal_their_siblings(n):
    key = jax.random.key(n)
    r, v = jax.random.normal(key, (2, 7, 3))
    go = jax.random.bernoulli(jax.random.key(9), 0.7, (7, 3))
    discount = jnp.where(jax.random.bernoulli(jax.random.key(8), 0.8, (7, 3)), 0.9, 0.0)
    one = returns.truncated_lambda_returns(r, discount, v, go.astype(jnp.float32), n=n)
    np.testing.assert_allclose(one, returns.n_step_returns(r, discount, v, go, n=n), rtol=1e-5, atol=1e-6)
    trace = 0.6 * go.astype(jnp.float32)
    whole = returns.truncated_lambda_returns(r, discount, v, trace, n=7)
    np.testing.assert_allclose(whole, returns.lambda_returns(r, discount, v, trace), rtol=1e-5, atol=1e-6)


def test_complete_rows_are_those_whose_rewards_are_known():
    ended, going, cut = block("terminated"), block("neither", valid=[True] * 5), block("neither")
    rows = [True, True, True, False, False]
    assert complete(ended, None)[:, 0].tolist() == rows
    assert complete(going, None)[:, 0].tolist() == [False] * 5
    assert (
        complete(cut, None)[:, 0].tolist() == rows
    )  # nobody flagged the end, but a last observation stands behind it
    assert complete(ended, 1)[:, 0].tolist() == VALID
    assert complete(ended, 2)[:, 0].tolist() == rows
    assert complete(going, 2)[:, 0].tolist() == [True, True, True, True, False]
    assert complete(going, 4)[:, 0].tolist() == [True, True, False, False, False]


def test_an_episode_that_an_interrupted_run_left_is_one_of_its_own():
    rows = newest_episodes(block("neither"), 1)[:, 0].tolist()
    assert rows == newest_episodes(block("truncated"), 1)[:, 0].tolist() == [True, True, True, False, False]


def test_newest_rows_count_back_through_time_and_actors():
    usable = jnp.array([[True, False], [True, True], [False, True]])
    assert newest(usable, 2).tolist() == [[False, False], [False, True], [False, True]]
    assert newest(usable, 3).tolist() == [[False, False], [True, True], [False, True]]
    assert newest(usable, 9).tolist() == usable.tolist()


def test_newest_episodes_are_the_last_to_end():
    """Actor 0 ends at rows 1 and 4, actor 1 at row 3; rows after an end hold a last observation, row 6 an open episode."""
    ended = np.zeros((7, 2), bool)
    ended[[1, 4, 3], [0, 0, 1]] = True
    valid = np.ones((7, 2), bool)
    valid[[2, 5, 4], [0, 0, 1]] = False
    made = Block(
        {}, {}, jnp.zeros((7, 2)), jnp.asarray(ended), jnp.zeros((7, 2), bool), jnp.asarray(valid), (), ()
    )
    rows = [np.flatnonzero(column).tolist() for column in np.asarray(newest_episodes(made, 1)).T]
    assert rows == [[3, 4], []]
    rows = [np.flatnonzero(column).tolist() for column in np.asarray(newest_episodes(made, 2)).T]
    assert rows == [[3, 4], [0, 1, 2, 3]]
    rows = [np.flatnonzero(column).tolist() for column in np.asarray(newest_episodes(made, 5)).T]
    assert rows == [[0, 1, 3, 4], [0, 1, 2, 3]]
