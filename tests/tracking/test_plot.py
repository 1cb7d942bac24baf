"""Plots and the statistics over seeds."""

import hashlib
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.errors import SpecError
from operant.tracking import EpisodeRecord, History, interval, learning_curve, plot_history
from operant.tracking.bootstrap import band, estimate


@pytest.fixture
def histories(tmp_path):
    """Two histories of four episodes: mean reward 0, 1, 2, 3 and twice that."""
    paths = []
    for name, factor in (("a", 1.0), ("b", 2.0)):
        path = tmp_path / f"{name}.parquet"
        history = History(path)
        history.episodes(
            [
                EpisodeRecord(1000 * (i + 1), 1800.0 * (i + 1), 5.0 * i, 10, 0, factor * i, factor * i)
                for i in range(4)
            ]
        )
        history.close()
        paths.append(path)
    return paths


def run(step, reward):
    return {"step": np.asarray(step), "mean_reward": np.asarray(reward, float), "time": np.asarray(step) / 10}


def test_plot_history_draws_the_columns(histories):
    ax = plot_history(histories, ["ppo", "a2c"], "CartPole-v1")
    first, second = ax.get_lines()
    assert first.get_xdata().tolist() == [1000, 2000, 3000, 4000]
    assert second.get_ydata().tolist() == [0, 2, 4, 6]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ppo", "a2c"]
    assert ax.get_title(loc="left") == "CartPole-v1"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("environment steps", "mean return")


def test_plot_history_options(histories):
    ax = plot_history(histories[:1], ["ppo"], "Pong", "episode_reward", "time", 2, "minute")
    (line,) = ax.get_lines()
    assert line.get_xdata().tolist() == [30, 90]  # 1800 s and 5400 s; every second episode
    assert line.get_ydata().tolist() == [0, 10]
    assert ax.get_title(loc="left") == "ppo - Pong"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time (minutes)", "return")
    assert plot_history(histories[1:], ["x"], "Pong", ax=ax) is ax
    assert len(ax.get_lines()) == 2


def test_values_before_the_first_mean_are_left_out(tmp_path):
    rows = {"mean_reward": [-np.inf, 2.0], "best_reward": [-np.inf, 2.0], "episode_reward": [1.0, 2.0]}
    pq.write_table(pa.table({**rows, "step": [1, 2], "time": [0.1, 0.2]}), tmp_path / "old.parquet")
    (line,) = plot_history([tmp_path / "old.parquet"], ["x"], "y").get_lines()
    assert np.isnan(line.get_ydata()[0])
    assert line.get_ydata()[1] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agents": ["one"]}, "Expected `paths` and `agents` to have the same sizes, got 2 and 1"),
        ({"plot": "mean_rewards"}, "no column 'mean_rewards' to plot. Did you mean 'mean_reward'"),
        ({"benchmark": "steps"}, "benchmark must be 'step' or 'time'"),
        ({"time_unit": "day"}, "time_unit must be 'hour', 'minute' or 'second'"),
        ({"history_interval": 0}, "history_interval must be at least 1"),
    ],
)
def test_plot_history_errors(histories, change, message):
    arguments = {"paths": histories, "agents": ["a", "b"], "env": "x", **change}
    with pytest.raises(SpecError, match=message):
        plot_history(**arguments)


def test_learning_curve_over_seeds():
    runs = [run([0, 100], [0, 100]), run([0, 50, 100], [0, 150, 300]), run([0, 200], [200, 400])]
    ax = learning_curve({"ppo": runs, "one": runs[:1]}, title="T", points=3, target=250)
    curve, single, target = ax.get_lines()
    assert curve.get_xdata().tolist() == [0, 50, 100]  # what all three cover
    # at 50: 50, 150 and 250; at 100: 100, 300 and 300
    np.testing.assert_allclose(curve.get_ydata(), [200 / 3, 150, 700 / 3])
    assert single.get_ydata().tolist() == [0, 100]  # as it was recorded
    assert [line.get_marker() for line in (curve, single)] == ["o", "o"]
    assert target.get_ydata() == [250, 250]
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["ppo (3 seeds)", "one (1 seed)", "target 250"]
    (shade,) = ax.collections  # the single run has no band
    ends = shade.get_paths()[0].vertices[:, 1]
    assert (
        ends.min() == 0 and ends.max() == 300
    )  # the extremes of three seeds lie inside 95 % of the resamples
    assert any("mean over seeds with 95% bootstrap interval" in text.get_text() for text in ax.texts)


def test_learning_curve_takes_the_last_of_episodes_that_end_together():
    (line,) = learning_curve({"x": [run([0, 10, 10, 20], [0, 5, 7, 9])]}, points=3).get_lines()
    assert line.get_ydata().tolist() == [0, 7, 9]


def test_learning_curve_files(tmp_path, histories):
    for name in ("curve.png", "sub/curve.svg"):
        learning_curve({"ppo": histories}, tmp_path / name, "CartPole-v1")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "sub" / "curve.svg").read_text()
    assert "CartPole-v1" in svg
    assert "4,000" in svg  # thousands are separated
    learning_curve({"ppo": histories}, tmp_path / "again.svg", "CartPole-v1")
    assert (tmp_path / "again.svg").read_text() == svg


def test_learning_curve_errors(histories):
    with pytest.raises(SpecError, match="A run of 'x' has no episodes"):
        learning_curve({"x": [run([], [])]})
    with pytest.raises(SpecError, match="A run of 'x' has no episodes"):
        learning_curve({"x": []})
    with pytest.raises(SpecError, match="do not overlap: one begins at 20, one ends at 10"):
        learning_curve({"x": [run([0, 10], [0, 1]), run([20, 30], [0, 1])]})
    with pytest.raises(SpecError, match="statistic must be 'mean' or 'iqm'"):
        learning_curve({"x": histories}, statistic="median")


def test_drawing_needs_no_pyplot():
    code = (
        "import operant.tracking, sys; assert 'matplotlib' not in sys.modules and 'tensorboardX' not in "
        "sys.modules"
    )
    draw = (
        "import numpy as np; x = np.arange(3); operant.tracking.learning_curve({'a': [dict(step=x, "
        "mean_reward=x, time=x)]})"
    )
    end = "assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", f"{code}; {draw}; {end}"], check=True)


# Statistics over seeds


def test_iqm_by_hand():
    # of 8 values, 8 // 4 = 2 go at each end: (3 + 4 + 5 + 6) / 4
    assert interval([1, 2, 3, 4, 5, 6, 7, 1000], "iqm")[0] == 4.5
    # of 5 values, 1 goes at each end: (2 + 3 + 4) / 3
    assert interval([4, 1, 2, 3, 99], "iqm")[0] == 3.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_iqm_is_the_trimmed_mean(values):
    np.testing.assert_allclose(
        estimate(np.array(values), "iqm"), scipy.stats.trim_mean(values, 0.25), atol=1e-6
    )


def test_interval_agrees_with_scipy():
    values = np.random.default_rng(1).normal(10, 3, 40)
    center, low, high = interval(values)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert center == values.mean()
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.1)  # the interval is about 1.9 wide


def test_interval_covers_as_often_as_it_says():
    """Of 300 samples of 40 normal numbers, an 80 % interval should hold the true mean 240 times.

    Deviation 7.
    """
    draws = np.random.default_rng(0).normal(size=(300, 40))
    _, low, high = band(draws, level=0.8)
    assert 215 < np.sum((low < 0) & (high > 0)) < 265


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=10), st.sampled_from(["mean", "iqm"]))
def test_interval_is_ordered_and_repeatable(values, statistic):
    center, low, high = interval(values, statistic)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9
    assert low - 1e-9 <= center <= high + 1e-9 or statistic == "iqm"
    assert interval(values, statistic) == (center, low, high)
    narrow = interval(values, statistic, level=0.5)
    assert low <= narrow[1] and narrow[2] <= high


def test_one_seed_says_nothing_of_the_others():
    center, low, high = interval([3.0])
    assert center == 3 and np.isnan(low) and np.isnan(high)


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([], {}, "values must be one finite score per seed"),
        ([1.0, np.nan], {}, "values must be one finite score per seed"),
        ([[1.0]], {}, "values must be one finite score per seed"),
        ([1.0, 2.0], {"statistic": "median"}, "statistic must be 'mean' or 'iqm'"),
        ([1.0, 2.0], {"level": 95}, "level must be between 0 and 1"),
    ],
)
def test_interval_errors(values, options, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        interval(values, **options)


def test_drawing_changes_no_settings():
    import matplotlib

    before = hashlib.sha256(str(matplotlib.rcParams).encode()).hexdigest()
    learning_curve({"a": [run([0, 1], [0, 1])]})
    assert hashlib.sha256(str(matplotlib.rcParams).encode()).hexdigest() == before
