"""What callbacks of `fit` see, and what they add to reports."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest
from tests.tracking.test_metrics import NET, SMALL, rows

import operant
from operant.errors import SpecError
from operant.tracking.record import numbers


@pytest.fixture
def fitted(tmp_path):
    """Return what fits PPO with a callback, and the rows that its run has then."""

    def fit(callback, error=None, **settings):
        agent = operant.PPO("CartPole-v1", NET, run_dir=str(tmp_path / "run"), **{**SMALL, **settings})
        try:
            if error is None:
                agent.fit(max_steps=600, callback=callback)
            else:
                with pytest.raises(error[0], match=error[1]):
                    agent.fit(max_steps=600, callback=callback)
        finally:
            agent.close()
        return rows(tmp_path / "run" / "metrics.jsonl")

    return fit


def test_what_callbacks_add_and_change_is_recorded(fitted, tmp_path):
    seen = []

    def add(agent, record):
        record.values["mine/score"] = 0.5
        record.values["episode/count"] = -1
        del record.values["loss/value"]

    def more(agent, record):
        seen.append((record.step, dict(record.values)))
        record.values.update(
            {"mine/flag": np.bool_(True), "mine/half": jnp.bfloat16(0.5), "mine/nan": math.nan}
        )

    told = fitted([add, more])
    assert seen and [row["step"] for row in told] == [step for step, _ in seen]
    for row, (_, values) in zip(told, seen, strict=True):
        assert (row["mine/score"], row["mine/flag"], row["mine/half"], row["mine/nan"]) == (
            0.5,
            1.0,
            0.5,
            None,
        )
        assert row["episode/count"] == -1.0 == values["episode/count"] and "loss/value" not in row
        assert values["mine/score"] == 0.5 and "loss/policy" in row
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="the viewer is an extra"
    )
    events = accumulator.EventAccumulator(str(tmp_path / "run")).Reload()
    assert [e.value for e in events.Scalars("mine/score")] == [0.5] * len(told)


def test_any_of_several_callbacks_may_end_it(fitted):
    steps = []

    def end(agent, record):
        return np.bool_(False)

    def note(agent, record):
        steps.append(record.step)

    told = fitted([end, note], log_frequency=1)
    assert [row["step"] for row in told] == steps and len(steps) == 1 and steps[0] < 600


@pytest.mark.parametrize("value", ["1.0", None, [1.0], np.ones(1), 1j, object()])
def test_values_that_are_no_numbers_are_refused(value):
    with pytest.raises(SpecError, match=r"record.values\['mine/x'\] must be a number. Received: .*\("):
        numbers({"mine/x": value})


@pytest.mark.parametrize("name", ["step", "time", "", 3])
def test_names_that_cannot_be_are_refused(name):
    with pytest.raises(SpecError, match=r"names in record.values must be strings .*Received: "):
        numbers({name: 1.0})


def test_a_report_is_recorded_where_a_callback_fails(fitted):
    def wrong(agent, record):
        record.values["mine/best"] = "yes"

    (row,) = fitted(wrong, (SpecError, r"record.values\['mine/best'\] must be a number. Received: 'yes'"))
    assert "loss/policy" in row and "mine/best" not in row


def test_a_list_of_callbacks_must_be_of_functions():
    agent = operant.PPO("CartPole-v1", NET, **SMALL)
    with pytest.raises(SpecError, match="callback must be a function of this object and a record, or a list"):
        agent.fit(max_steps=10, callback=[print, 3])
    agent.close()
