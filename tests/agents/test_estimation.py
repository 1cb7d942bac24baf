"""Returns of remembered rows, and which rows make a batch: golden values worked by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from operant.agents.modular_parts.reward_estimation import estimate, known, newest, newest_episodes
from operant.ops import returns
from operant.types import Rollout

# Three steps of an episode, the row of its last observation, and the first step of another that goes on.
REWARD = [1.0, 2.0, 3.0, 0.0, 4.0]
VALID = [True, True, True, False, True]
VALUES = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
STEPS = [0, 1, 2, 4]
"""The rows that count."""


def block(end: str, reward=REWARD, valid=VALID) -> Rollout:
    ended = np.array([False, False, True, False, False])
    column = [
        np.asarray(x)[:, None]
        for x in (reward, ended & (end == "terminated"), ended & (end == "truncated"), valid)
    ]
    reward, terminated, truncated, valid = map(jnp.asarray, column)
    return Rollout({}, {}, reward.astype(jnp.float32), terminated, truncated, valid, (), ())


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


def test_truncated_lambda_returns_of_all_rows_are_lambda_returns():
    key = jax.random.key(1)
    r, v = jax.random.normal(key, (2, 7, 3))
    go = jax.random.bernoulli(jax.random.key(9), 0.7, (7, 3))
    discount = jnp.where(jax.random.bernoulli(jax.random.key(8), 0.8, (7, 3)), 0.9, 0.0)
    trace = 0.6 * go.astype(jnp.float32)
    whole = returns.truncated_lambda_returns(r, discount, v, trace, n=7)
    np.testing.assert_allclose(whole, returns.lambda_returns(r, discount, v, trace), rtol=1e-5, atol=1e-6)


def test_a_return_is_known_with_the_last_of_its_rewards_or_the_end_of_the_episode():
    """Rows 0 to 2 are an episode, row 3 is its last observation, row 4 begins another."""
    ended, going, cut = block("terminated"), block("neither", valid=[True] * 5), block("neither")

    def rows(block, horizon):
        found = known(block, horizon)[:, 0].tolist()
        return [row if valid else None for row, valid in zip(found, block.valid[:, 0].tolist(), strict=True)]

    assert rows(ended, None) == [2, 2, 2, None, 5]
    assert rows(going, None) == [5] * 5
    # nobody flagged the end, but a last observation stands behind it, and tells when it comes
    assert rows(cut, None) == [3, 3, 3, None, 5]
    assert rows(ended, 1) == [0, 1, 2, None, 4]
    assert rows(ended, 2) == [1, 2, 2, None, 5]
    assert rows(cut, 3) == [2, 3, 3, None, 5]
    assert rows(going, 4) == [3, 4, 5, 5, 5]


def ages(*columns):
    return jnp.array(columns, jnp.uint32).T


def test_an_episode_that_an_interrupted_run_left_is_one_of_its_own():
    age = ages([4, 3, 2, 1, 0])
    rows = newest_episodes(block("neither"), age, 1)[:, 0].tolist()
    truncated = newest_episodes(block("truncated"), age, 1)[:, 0].tolist()
    assert rows == truncated == [True, True, True, False, False]


def test_the_newest_rows_are_those_that_became_known_last():
    valid = jnp.array([[True, False], [True, True], [False, True]])
    made = block("neither")._replace(valid=valid)
    itself = jnp.array([[0, 0], [1, 1], [2, 2]])
    step = ages([5, 3, 1], [4, 2, 0])  # actors in step
    assert newest(made, itself, step, 2).tolist() == [[False, False], [False, False], [False, True]]
    assert newest(made, itself, step, 4).tolist() == [[False, False], [True, True], [False, True]]
    assert newest(made, itself, step, 9).tolist() == valid.tolist()
    later = jnp.array([[2, 3], [2, 2], [2, 3]])  # row 3 is still to come
    assert newest(made, later, step, 2).tolist() == [[True, False], [True, True], [False, False]]
    assert newest(made, later, step, 1).tolist() == [[False, False], [False, True], [False, False]]
    alone = ages([2, 1, 0], [5, 4, 3])  # the first brought three rows after the second's
    assert newest(made, itself, alone, 3).tolist() == [[True, False], [True, False], [False, False]]


def test_newest_episodes_are_the_last_to_end():
    """Actor 0 ends at rows 1 and 4, actor 1 at row 3.

    Rows after an end hold a last observation, row 6 an open episode.
    """
    ended = np.zeros((7, 2), bool)
    ended[[1, 4, 3], [0, 0, 1]] = True
    valid = np.ones((7, 2), bool)
    valid[[2, 5, 4], [0, 0, 1]] = False
    made = Rollout(
        {}, {}, jnp.zeros((7, 2)), jnp.asarray(ended), jnp.zeros((7, 2), bool), jnp.asarray(valid), (), ()
    )

    def rows(age, count):
        return [np.flatnonzero(column).tolist() for column in np.asarray(newest_episodes(made, age, count)).T]

    step = ages([12, 10, 8, 6, 4, 2, 0], [13, 11, 9, 7, 5, 3, 1])
    assert rows(step, 1) == [[3, 4], []]
    assert rows(step, 2) == [[3, 4], [0, 1, 2, 3]]
    assert rows(step, 3) == rows(step, 5) == rows(step, 50) == [[0, 1, 3, 4], [0, 1, 2, 3]]
    first = ages([13, 12, 11, 10, 9, 8, 7], [6, 5, 4, 3, 2, 1, 0])  # actor 0 brought its rows before
    assert rows(first, 1) == [[], [0, 1, 2, 3]]
