"""`operant plot`: runs on the disk, grouped and drawn; statistics over environments; pictures of a study."""

import json
import math
import shutil
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest
from optuna.trial import TrialState

from operant.cli import main
from operant.errors import SpecError, UsageError
from operant.tracking import EpisodeRecord, History, learning_curve, study_plots
from operant.tracking.bootstrap import stratified
from operant.tracking.figures import PlotConfig, _beginning, aggregates, plot
from operant.tracking.learning_curves import settled
from operant.tracking.plot_style import as_svg, check_format
from operant.tracking.runs import grouped, read


def made(folder, final, env="CartPole-v1", agent="ppo", seed=1, **settings):
    """Write a run whose mean reward goes from 0 to `final` in 50 episodes."""
    own = {
        name: settings.pop(name)
        for name in list(settings)
        if name in ("n_envs", "env_kwargs", "history_checkpoint", "info_keywords", "weights")
    }
    folder.mkdir(parents=True)
    run = {"env": env, "n_envs": 1, "seed": seed, "max_steps": 1000 + seed, "history_checkpoint": None, **own}
    (folder / "run.json").write_text(
        json.dumps({"agent": {"type": agent, "lr": 0.1, **settings}, "run": run})
    )
    history(run["history_checkpoint"] or folder / "history.parquet", final)
    return folder


def history(path, final):
    logger = History(path)
    means = np.linspace(0, final, 50)
    logger.episodes(
        [
            EpisodeRecord(20 * (i + 1), 36.0 * (i + 1), float(mean), 20, 0, float(mean), float(mean))
            for i, mean in enumerate(means)
        ]
    )
    logger.close()
    return path


def test_runs_of_the_same_settings_are_seeds_of_one_curve(tmp_path):
    paths = [made(tmp_path / f"a{seed}", 10, seed=seed) for seed in (1, 2)]
    paths.append(made(tmp_path / "b", 20, lr=0.2))
    paths.append(made(tmp_path / "c", 20, agent="dqn"))
    found = grouped(read(paths))
    assert {label: len(runs) for label, runs in found["CartPole-v1"].items()} == {
        "ppo, lr 0.1": 2, "ppo, lr 0.2": 1, "dqn": 1,
    }  # fmt: skip
    assert list(grouped(read(paths[:2]))["CartPole-v1"]) == ["ppo"]
    assert [run.path for run in read([tmp_path])] == sorted(paths)  # a folder of runs
    begun = [made(tmp_path / "begun" / f"w{seed}", 30, seed=seed, weights=[f"{seed}.tf"]) for seed in (1, 2)]
    told = {label: len(runs) for label, runs in grouped(read([*paths[:2], *begun]))["CartPole-v1"].items()}
    assert told == {"ppo, weights none": 2, "ppo, weights given": 2}
    noted = made(tmp_path / "noted" / "a3", 10, seed=3, info_keywords=["x"])
    assert list(grouped(read([*paths[:2], noted]))["CartPole-v1"]) == ["ppo"]
    orders = ({"g": 1, "h": 2}, {"h": 2, "g": 1})
    other = [made(tmp_path / f"in{i}" / "run", 10, env_kwargs=order) for i, order in enumerate(orders)]
    told = {label: len(runs) for label, runs in grouped(read([*paths[:2], *other]))["CartPole-v1"].items()}
    assert told == {"ppo, env_kwargs null": 2, 'ppo, env_kwargs {"g": 1, "h": 2}': 2}
    rates = (0.0023280577458452065, 0.0023, 0.002331)
    tuned = [made(tmp_path / "tuned" / f"t{i}", 10, lr=rate) for i, rate in enumerate(rates)]
    assert list(grouped(read(tuned[:2]))["CartPole-v1"]) == ["ppo, lr 0.00233", "ppo, lr 0.0023"]
    told = list(grouped(read(tuned))["CartPole-v1"])
    assert told == ["ppo, lr 0.002328", "ppo, lr 0.0023", "ppo, lr 0.00233"]
    named = grouped(read(paths), ["old", "old", "new", "new"])["CartPole-v1"]
    assert {label: len(runs) for label, runs in named.items()} == {"old": 2, "new": 2}


def test_evaluations_are_drawn_where_they_were(tmp_path):
    run = made(tmp_path / "run", 10)
    steps = [(i + 1) * 17 for i in range(5)]
    logger = History(run / "evaluations.parquet")
    logger.episodes([EpisodeRecord(step, 1.0, 2.0, 20, 0, float(step), 2.0) for step in steps])
    logger.close()
    (found,) = read([run], evaluations=True)
    (line,) = learning_curve({"$a": [found.columns]}, title="$x$").get_lines()
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == (steps, steps)
    assert line.get_marker() == "o"
    assert "$a (1 seed)" in texts(line.figure) and "$x$" in texts(line.figure)


def test_a_history_elsewhere_is_found_and_files_stand_for_themselves(tmp_path):
    elsewhere = tmp_path / "h.parquet"
    run = made(tmp_path / "run", 7, history_checkpoint=str(elsewhere))
    assert read([run])[0].columns["mean_reward"][-1] == 7
    (alone,) = read([elsewhere])
    assert (alone.agent, alone.env) == ("h", "")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_plot_writes_what_the_suffix_says(tmp_path, capsys, suffix):
    made(tmp_path / "a", 10), made(tmp_path / "b", 12, seed=2)
    out = tmp_path / "pictures" / f"curve{suffix}"
    arguments = [
        str(tmp_path / "a"),
        "--out",
        str(out),
        str(tmp_path / "b"),
        "--benchmark",
        "time",
        "--time-unit",
        "minute",
    ]
    assert main(["plot", *arguments, "--target", "9"]) == 0
    assert capsys.readouterr().out == f"Wrote {out}\n"
    data = out.read_bytes()
    assert data.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])
    if suffix == ".svg":
        text = " ".join(ElementTree.fromstring(data).itertext())
        for expected in (
            "CartPole-v1",
            "ppo (2 seeds)",
            "time (minutes)",
            "target 9",
            "mean over seeds with 95%",
        ):
            assert expected in text
    again = out.with_name(f"again{suffix}")
    assert main(["plot", *arguments[:2], str(again), *arguments[3:], "--target", "9"]) == 0
    assert again.read_bytes() == data


def test_several_environments_get_a_panel_each_with_the_same_colours(tmp_path):
    from operant.tracking.figures import _curves

    made(tmp_path / "a", 10), made(tmp_path / "b", 12, env="Pendulum-v1", agent="dqn")
    made(tmp_path / "c", 12, env="Pendulum-v1")
    figure = _curves(grouped(read([tmp_path])), PlotConfig.from_dict({}))
    first, second = figure.axes
    assert (first.get_title(loc="left"), second.get_title(loc="left")) == ("CartPole-v1", "Pendulum-v1")
    colors = {line.get_label(): line.get_color() for line in second.get_lines()}
    assert first.get_lines()[0].get_color() == colors["ppo (1 seed)"] != colors["dqn (1 seed)"]


def test_a_run_without_episodes_is_left_out_by_name(tmp_path):
    made(tmp_path / "runs" / "a", 10)
    empty = made(tmp_path / "runs" / "b", 10, seed=2, history_checkpoint=str(tmp_path / "b.parquet"))
    shutil.rmtree(tmp_path / "b.parquet")
    History(tmp_path / "b.parquet").close()
    config = PlotConfig.from_dict({"out": str(tmp_path / "x.svg")})
    with pytest.warns(RuntimeWarning, match=f"Left out, without episodes.*{empty}"):
        assert "ppo (1 seed)" in plot([tmp_path / "runs"], config).read_text()
    with pytest.raises(SpecError, match=f"no episodes to plot.*{empty}"):
        plot([empty], config)


def test_long_labels_fit_and_an_eighth_curve_has_a_look_of_its_own(tmp_path):
    from operant.tracking.figures import _curves

    for i in range(8):
        made(tmp_path / "runs" / str(i), 10 + i, **{f"option_{name}_of_the_agent": i for name in "abcdef"})
    figure = _curves(grouped(read([tmp_path / "runs"])), PlotConfig.from_dict({}))
    (ax,) = figure.axes
    looks = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in ax.get_lines()}
    assert len(looks) == 8
    figure.canvas.draw()
    legend = ax.get_legend().get_window_extent()
    assert legend.x0 >= ax.bbox.x0 and legend.width < 0.75 * ax.bbox.width


def test_a_folder_of_runs_over_seeds_stands_for_all_of_them(tmp_path):
    for name in ("a", "b"):
        for seed in (1, 2):
            made(tmp_path / "study" / name / f"seed-{seed}", 10, seed=seed, gamma=name)
    found = grouped(read([tmp_path / "study"]))["CartPole-v1"]
    assert {label: len(runs) for label, runs in found.items()} == {"ppo, gamma a": 2, "ppo, gamma b": 2}
    made(tmp_path / "study" / "single", 10)
    assert len(read([tmp_path / "study"])) == 5


def test_a_run_given_twice_is_one_seed(tmp_path):
    run = made(tmp_path / "runs" / "a", 10)
    assert len(read([run, tmp_path / "runs", f"{run}/../a"])) == 1


def test_a_history_that_several_runs_wrote_counts_once(tmp_path, monkeypatch):
    """Under any of its paths, and beside another seed, also where scores are aggregated."""
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "other", 20, seed=3)
    made(tmp_path / "first", 10, history_checkpoint="h.parquet")
    made(tmp_path / "then", 10, history_checkpoint=str(tmp_path / "other" / ".." / "h.parquet"))
    given = ["first", "then", "h.parquet", "other"]
    assert [run.path.name for run in read(given)] == ["first", "other"]
    text = plot(given, PlotConfig.from_dict({"out": "curve.svg"})).read_text()
    assert "ppo (2 seeds)" in text
    scores = tmp_path / "scores.json"
    scores.write_text(json.dumps({"CartPole-v1": [0, 20]}))
    told = PlotConfig.from_dict({"aggregate": True, "scores": str(scores)})
    (estimate,) = [a.estimate for a in aggregates(grouped(read(given)), told) if a.statistic == "mean"]
    assert estimate == 0.75  # of 10 / 20 and 20 / 20


def test_history_interval_thins_the_histories(tmp_path):
    config = PlotConfig.from_dict({"history_interval": 25, "out": str(tmp_path / "x.svg")})
    assert plot([made(tmp_path / "a", 10)], config).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "There is no run or history 'nowhere'."),
        (["empty"], "'empty' is neither a run (a folder with run.json)"),
        (
            ["run", "--out", "x.gif"],
            "out must be a file that ends with .png, .svg or .pdf. Received: --out 'x.gif'.",
        ),
        (
            ["run", "--out", "scores.json/x.png"],
            "out must be in a folder: 'scores.json' is a file. Received: --out 'scores.json/x.png'.",
        ),
        (["run", "--agents", "a", "b"], "agents must name each of the 1 histories. Received 2 names: a, b."),
        (["run", "--plot", "mean_rewards"], "Did you mean 'mean_reward'?"),
        (["run", "--benchmark", "hours"], "benchmark must be"),
        (["run", "--level", "95"], "level must be at least 0.01 and at most 0.999"),
        (["run", "--scores", "x.json"], "scores is for --aggregate"),
        (
            ["run", "--aggregate", "--history-interval", "5"],
            "--history-interval is for curves, and has no effect with aggregate",
        ),
        (
            ["run", "--aggregate", "--statistic", "iqm"],
            "statistic is for curves, and has no effect with aggregate. Received: --statistic 'iqm'",
        ),
        (["run", "--aggregate", "--benchmark", "time"], "benchmark is for curves"),
        (["run", "--aggregate", "--time-unit", "minute"], "--time-unit is for curves"),
        (["run", "--aggregate", "--target", "475"], "target is for curves"),
        (["run", "--aggregate", "--env", "Mine"], "env is for curves"),
        (
            ["run", "--aggregate", "--scores", "scores.json"],
            "scores does not know the environment 'CartPole-v1'",
        ),
        (["--out", "x.png"], "plot needs runs: operant plot RUN ..."),
        (["run", "--ouut", "x.png"], "Unknown flag '--ouut' for plot. Did you mean '--out'?"),
        (["broken"], "does not describe a run"),
    ],
)
def test_refusals_say_what_is_wrong_and_write_nothing(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "run", 3)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text('{"agent": 3}')
    (tmp_path / "scores.json").write_text('{"Pong": [0, 1]}')
    before = sorted(tmp_path.rglob("*"))
    assert main(["plot", *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err and out == "" and "Traceback" not in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_format_that_is_none():
    with pytest.raises(SpecError, match="out must be a file that ends with"):
        check_format("curve")


# Statistics over environments


def test_stratified_by_hand():
    # All eight scores together: 2 go at each end, (2 + 3 + 4 + 5) / 4; the environments' means are 1.5 and
    # 5.5.
    scores = [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert stratified(scores, "iqm")[0] == 3.5
    assert stratified(scores, "mean")[0] == 3.5
    assert stratified([*scores, [100, 100]], "median")[0] == 5.5
    center, low, high = stratified([[1.0], [2.0]])
    assert center == 1.5 and math.isnan(low) and math.isnan(high)


def test_stratified_keeps_every_environment():
    """Two environments far apart, no spread inside: drawing within each leaves nothing to chance, drawing
    over all would."""
    assert stratified([[0.0] * 5, [100.0] * 5], "mean") == (50.0, 50.0, 50.0)


def test_stratified_covers_as_often_as_it_says():
    """Of 200 samples of 2 x 20 normal numbers, an 80 % interval should hold the true mean 160 times.

    Deviation 6.
    """
    draws = np.random.default_rng(0).normal(size=(200, 2, 20)) + np.array([[[0.0], [10.0]]])
    held = sum(
        low < 5 < high
        for _, low, high in (stratified(list(d), "mean", 0.8, seed=i) for i, d in enumerate(draws))
    )
    assert 136 < held < 178


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        ([], {}, "scores must be finite scores"),
        ([[]], {}, "scores must be finite scores"),
        ([[math.nan]], {}, "scores must be finite scores"),
        ([[1.0]], {"statistic": "max"}, "statistic must be 'mean', 'iqm' or 'median'"),
        ([[1.0]], {"level": 1.0}, "level must be between 0 and 1"),
    ],
)
def test_stratified_errors(scores, options, message):
    with pytest.raises(SpecError, match=message):
        stratified(scores, **options)


def episodes(folder, rows, env="A", agent="ppo", seed=1):
    """Write a run whose episodes are `(step, return, length, actor)`."""
    made(folder, 1, env=env, agent=agent, seed=seed)
    shutil.rmtree(folder / "history.parquet")
    logger = History(folder / "history.parquet")
    logger.episodes(
        [
            EpisodeRecord(step, 1.0 * step, float(x), length, actor, float(x), float(x))
            for step, x, length, actor in rows
        ]
    )
    logger.close()
    return folder


def test_of_episodes_that_ended_together_the_mean_is_drawn(tmp_path):
    """In the order in which they ended the longest is the last one, and in many environments the best."""
    run = episodes(tmp_path / "r", [(10, 1, 1, 0), (10, 2, 2, 1), (10, 6, 6, 2), (20, 5, 5, 0)])
    (own,) = read([run])
    for column, wanted in [
        ("episode_reward", [3.0, 5.0]),
        ("episode_length", [3.0, 5.0]),
        ("mean_reward", [6.0, 5.0]),
    ]:
        x, y = settled(own.columns, column, own.columns["step"])
        assert x.tolist() == [10, 20] and y.tolist() == wanted


def test_the_first_episodes_are_as_many_of_every_actor(tmp_path):
    """Those that end first are the shortest."""
    short = [(10 * i, 1, 1, 0) for i in range(1, 31)]
    run = episodes(tmp_path / "r", sorted([*short, *[(100 * i, 9, 9, 1) for i in range(1, 31)]]))
    own = read([run])[0]
    assert _beginning(own, "mean_reward") == 5.0
    assert (
        _beginning(
            own._replace(columns={k: x for k, x in own.columns.items() if k != "actor"}), "mean_reward"
        )
        < 4.0
    )


def test_scores_that_cannot_be_compared_are_told(tmp_path):
    falling = [episodes(tmp_path / f"f{i}", [(10, 0, 1, 0), (20, -5 - i, 1, 0)], seed=i) for i in (1, 2)]
    config = PlotConfig.from_dict({"aggregate": True})
    with pytest.raises(SpecError, match=r"No run in 'A' ended above its first episodes \(-3.25\)"):
        aggregates(grouped(read(falling)), config)
    longer = episodes(tmp_path / "longer", [(10, 0, 1, 0), (40, 5, 1, 0)], seed=3)
    shorter = episodes(tmp_path / "shorter", [(10, 0, 1, 0), (20, 3, 1, 0)], seed=4)
    with pytest.warns(RuntimeWarning, match="The runs of 'ppo' in 'A' end at steps 20 to 40"):
        aggregates(grouped(read([longer, shorter])), config)


@pytest.fixture
def suite(tmp_path):
    """Two agents, two environments, two seeds.

    In the second environment everything counts ten times as much.
    """
    for agent, finals in {"ppo": (8, 10), "dqn": (4, 6)}.items():
        for seed, final in enumerate(finals):
            made(tmp_path / f"{agent}-a-{seed}", final, env="A", agent=agent, seed=seed)
            made(tmp_path / f"{agent}-b-{seed}", 10 * final, env="B", agent=agent, seed=seed, lr=0.5)
    return tmp_path


def test_aggregates_are_normalised_in_each_environment(suite, tmp_path, capsys):
    scores = tmp_path / "scores.json"
    scores.write_text('{"A": [0, 10], "B": [0, 100]}')
    config = PlotConfig.from_dict({"aggregate": True, "scores": str(scores), "out": str(tmp_path / "x.svg")})
    found = {(a.label, a.statistic): a.estimate for a in aggregates(grouped(read([suite])), config)}
    assert found["ppo", "mean"] == pytest.approx(0.9) and found["dqn", "mean"] == pytest.approx(0.5)
    assert found["ppo", "iqm"] == pytest.approx(0.9) and found["ppo", "median"] == pytest.approx(0.9)
    # Without scores: 0 is the mean of the first 20 episodes of all runs, 1 the best final score.
    low = np.mean([np.linspace(0, final, 50)[:20].mean() for final in (8, 10, 4, 6)])
    own = {
        (a.label, a.statistic): a.estimate
        for a in aggregates(grouped(read([suite])), PlotConfig.from_dict({}))
    }
    assert own["ppo", "mean"] == pytest.approx((9 - low) / (10 - low))
    assert (
        main(["plot", str(suite), "--aggregate", "--scores", str(scores), "--out", str(tmp_path / "x.svg")])
        == 0
    )
    text = " ".join(ElementTree.parse(tmp_path / "x.svg").getroot().itertext())
    assert all(
        word in text for word in ("IQM", "Median", "Mean", "ppo", "dqn", "2 environments, 2 seeds each")
    )


def test_aggregates_need_every_agent_in_every_environment(suite):
    made(suite / "more", 3, env="C", agent="ppo")
    with pytest.raises(SpecError, match="'dqn' has no run in 'C'"):
        aggregates(grouped(read([suite])), PlotConfig.from_dict({}))


def test_plot_without_runs():
    with pytest.raises(UsageError, match="plot needs runs"):
        plot([])


# A study


def trial(number, value=None, state="complete", **params):
    return SimpleNamespace(number=number, state=TrialState[state.upper()], value=value, params=params)


def texts(figure):
    return " ".join(ElementTree.fromstring(as_svg(figure)).itertext())


def test_pictures_of_a_study():
    trials = [
        trial(0, 10.0, lr=1e-4, n_steps=16, double=True),
        trial(1, 30.0, lr=1e-3, n_steps=32, double=False),
        trial(2, 5.0, "pruned", lr=1e-2, n_steps=16, double=True),
        trial(3, None, "fail", lr=1e-1, n_steps=16, double=True),
        trial(4, 20.0, lr=1e-2, n_steps=16, double=True),
    ]
    words = texts(study_plots.history(trials, "title"))
    assert all(
        word in words for word in ("title", "complete", "pruned", "failed", "best so far", "mean return")
    )
    words = texts(study_plots.importances({"lr": 0.9, "n_steps": 0.099, "x": 0.001}, 60, "title"))
    assert all(word in words for word in ("0.90", "0.10", "<0.01", "n steps"))
    complete = [t for t in trials if t.state is TrialState.COMPLETE]
    words = texts(study_plots.parallel(complete, {"lr"}, "a $x$ title"))
    assert all(
        word in words
        for word in ("lr", "a $x$ title", "n steps", "double", "True", "False", "0.0001", "0.001", "0.01")
    )


def test_parallel_scales():
    heights, _ = study_plots._scale([1e-4, 1e-3, 1e-2], logarithmic=True)
    assert list(heights) == [0.0, pytest.approx(0.5), 1.0]
    heights, ticks = study_plots._scale([16, 64, 32], logarithmic=False)
    assert list(heights) == [0.0, 1.0, 0.5] and [text for _, text in ticks] == ["16", "32", "64"]
    assert list(study_plots._scale([5, 5], logarithmic=False)[0]) == [0.5, 0.5]
    heights, ticks = study_plots._scale(list(range(100)), logarithmic=False)
    assert heights[99] == 1.0 and len(ticks) == 5


def test_the_best_of_a_single_trial_is_drawn():
    (line,) = study_plots.history([trial(2, 1.0)]).axes[0].get_lines()
    assert line.get_label() == "best so far"
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([2, 2.4], [1, 1])
    assert study_plots.parallel([trial(0, 1.0, lr=0.1)], {"lr"}).axes
    assert study_plots.history([trial(0, None, "fail")]).axes
