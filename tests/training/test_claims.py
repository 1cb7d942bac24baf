"""What the cheapest presets claim, tried with a fresh seed."""

import json
import sys
from pathlib import Path

import pytest

from operant.spec import presets

LEARNING = Path(__file__).parents[2] / "benchmarks" / "learning"
CHEAPEST = ("dqn:cartpole-500k-dueling", "trpo:cartpole-100k", "ppo:pendulum")


@pytest.fixture
def again(monkeypatch):
    """The program that trains presets again."""
    monkeypatch.syspath_prepend(str(LEARNING))
    import again

    yield again
    for name in ("again", "run"):
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEAPEST)
def test_a_fresh_seed_is_where_the_claimed_ones_expect_it(name, again, tmp_path):
    agent, _, preset = name.partition(":")
    gate, row = again.GATES[name], again.claims()[name]
    settings = {k: v for k, v in presets.settings(agent, preset).items() if k != "target_reward"}
    score = again.train_seed(agent, settings, 77, tmp_path / "run", gate.greedy)["score"]
    low, high = again.expected([seed["score"] for seed in row["seeds"]], 1)
    assert low <= score <= high


def test_three_scores_far_from_the_claimed_ones_are_outside(again):
    assert again.expected([500.0] * 5, 3) == pytest.approx((490.0, 510.0), abs=2.0)
    low, high = again.expected([17.9, 18.6, 17.3, 18.2, 18.3], 3)
    assert low < 18.0 < high and not low < 14.5 < high


def test_the_page_of_claims_is_that_of_the_measurements(again):
    file = again.RESULTS / "claims.json"
    assert again.page(json.loads(file.read_text())) == file.with_suffix(".md").read_text()
