"""Studies: ranges, storage, crashing, pruned and interrupted trials, several processes.

With pretended trials, then real ones.
"""

import contextlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="needs the extra tune")
import optuna
from optuna.trial import TrialState
from tests.pretended_trial import reward

from operant.agents.table import AGENTS, config_class
from operant.cli import main, tables
from operant.errors import OperantError, SpecError, UsageError
from operant.spec import options
from operant.spec.run import RunConfig
from operant.tracking import EpisodeRecord, History, read_history, study_plots
from operant.training.child_process import ProcessLostError
from operant.tuning import search, study
from operant.tuning.plan import NOT_TUNED
from operant.tuning.ranges import Range, corners, split
from operant.tuning.trial import TrialProcess, _alone, numbered
from operant.tuning.tune import TuneConfig, draw, from_study, plan, tune

TESTS = str(Path(__file__).parents[1])
PRETENDED = (
    f"import sys; sys.path.insert(0, {TESTS!r}); from pretended_trial import work; work(int(sys.argv[1]))"
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in, and trials that only pretend."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TrialProcess, "code", PRETENDED)
    return tmp_path


STORAGE = "all.journal"
"""Faster than SQLite, which is left to the tests that are about it."""


def planned(env="pretended", agent="ppo", config=None, **settings):
    settings = {"lr": [1e-5, 1e-1], "seed": 0, "quiet": True, **settings}
    config = {"n_trials": 1, "trial_steps": 1000, "storage": STORAGE, **(config or {})}
    return plan(agent, TuneConfig.from_dict(config), env=env, **settings)


# Ranges


def test_ranges_by_other_names_of_options_are_those_of_the_options():
    own = config_class("ppo")
    fixed, ranges = split(
        [RunConfig, own], {"discount": [0.9, 0.99], "learning_rate": [1e-4], "n_env": [8, 16]}
    )
    assert fixed == {"lr": 1e-4}
    assert ranges == {"gamma": Range("log_uniform", (0.9, 0.99)), "n_envs": Range("categorical", (8, 16))}
    with pytest.raises(SpecError, match="gamma is given twice, once as discount. Give one of them."):
        split([RunConfig, own], {"discount": [0.9, 0.99], "gamma": 0.9})


def test_one_value_is_fixed_and_several_are_a_range():
    own = config_class("ppo")
    given = {
        "lr": [1e-5, 1e-2],
        "n_steps": [16, 32, 64],
        "gamma": [0.9],
        "lam": 0.8,
        "n_envs": [16, 32],
        "weights": ["a", "b"],
        "model": [{"type": "dense", "size": 8}],
    }
    fixed, ranges = split([RunConfig, own], given)
    assert fixed == {"gamma": 0.9, "lam": 0.8, "weights": ["a", "b"], "model": given["model"]}
    assert ranges == {
        "lr": Range("log_uniform", (1e-5, 1e-2)),
        "n_steps": Range("categorical", (16, 32, 64)),
        "n_envs": Range("categorical", (16, 32)),
    }
    assert corners(ranges) == [
        {"lr": 1e-5, "n_steps": 16, "n_envs": 16},
        {"lr": 1e-2, "n_steps": 64, "n_envs": 32},
    ]


def test_int_ranges_hold_whole_numbers():
    _, ranges = split(
        [config_class("dqn")], {"epsilon_decay_steps": [1e4, 1e5], "target_sync_steps": [100, 200]}
    )
    assert ranges["epsilon_decay_steps"] == Range("int", (10000, 100000))
    assert all(type(v) is int for r in ranges.values() for v in r.values)


@pytest.mark.parametrize(
    ("agent", "settings", "message"),
    [
        (
            "ppo",
            {"lr": [1e-5, 1e-4, 1e-3]},
            "lr is tuned between a smallest and a largest value (log_uniform). Received 3 values",
        ),
        ("ppo", {"lr": []}, "Received 0 values: none"),
        ("ppo", {"lr": [0.0, 1.0]}, "so both above 0. Received: 0.0 1.0."),
        ("ppo", {"lr": [1e-2, 1e-5]}, "the smaller first. Received: 0.01 1e-05."),
        ("ppo", {"lr": [1e-2, 1e-2]}, "the smaller first"),
        ("ppo", {"gamma": [0.9, 2.0]}, "gamma must be at least 0 and at most 1. Received: gamma=2.0."),
        ("ppo", {"lr": ["linear:1:0:10", 1e-3]}, "both numbers"),
        (
            "ppo",
            {"n_steps": [16, 16]},
            "n_steps must be several different values to be tuned. Received: 16 16.",
        ),
        ("ppo", {"n_steps": [16, 0]}, "n_steps must be at least 1. Received: n_steps=0."),
        ("dqn", {"target_sync_steps": [1, 2, 3]}, "Received 3 values: 1 2 3. Give two, or one to fix it."),
        ("dqn", {"epsilon_decay_steps": [1.5, 3.0]}, "both whole numbers"),
        ("ppo", {"n_steps": ["a", "b"]}, "n_steps must be a whole number"),
        ("ppo", {"nsteps": [16, 32]}, "ppo takes no argument 'nsteps'. Did you mean 'n_steps'?"),
        (
            "ppo",
            {"max_steps": 10},
            "tune takes no argument 'max_steps': trials decide for themselves, in processes of their own; "
            "how long one trains is trial_steps.",
        ),
        ("ppoo", {}, "Unknown agent 'ppoo'. Did you mean 'ppo'?"),
        (
            "dqn",
            {"buffer_batch_size": [64, 128], "buffer_max_size": 32},
            "buffer_batch_size must be at most buffer_max_size",
        ),
    ],
)
def test_ranges_that_are_refused(agent, settings, message):
    with pytest.raises(OperantError) as caught:
        plan(agent, env="CartPole-v1", **settings)
    assert message in str(caught.value)


def test_settings_that_fit_in_one_corner_are_allowed():
    plan("dqn", env="CartPole-v1", buffer_batch_size=[64, 32], buffer_max_size=48)


@pytest.mark.parametrize("agent", AGENTS)
def test_every_tunable_option_can_be_tuned(agent):
    """Whatever the tables call tunable takes a range of its kind."""
    config = config_class(agent)
    tried = 0
    for cls in (config, RunConfig):
        for name, meta in options(cls).items():
            if meta.search is None or name == "max_frame":
                continue
            high = 1 if meta.high is None else meta.high
            values = {"log_uniform": [high / 4, high / 2], "int": [10, 20], "categorical": [2, 4]}[
                meta.search
            ]
            assert split([cls], {name: values})[1][name].kind == meta.search
            tried += 1
    assert tried >= (8 if AGENTS[agent].learns else 1)


# Where a study is


def test_storage_forms():
    assert study.place("s", None) == "sqlite:///studies/s/study.db"
    assert study.place("s", "x/y.db") == "sqlite:///x/y.db"
    assert study.place("s", "all.journal") == "all.journal"
    assert study.place("s", "postgresql://me@host/db") == "postgresql://me@host/db"
    assert study.file_of("sqlite:////tmp/a.db?timeout=3") == Path("/tmp/a.db")
    assert study.file_of("postgresql://me@host/db") is None
    assert study.file_of("a.journal") == Path("a.journal")
    for bad in ("", "..", "a/b", "a\\b", "better?", "a%20b"):
        with pytest.raises(SpecError, match="study must be a name"):
            study.place(bad, None)
    with pytest.raises(SpecError, match="^storage must be a database's URL"):
        study.place("s", "somewhere")


def test_passwords_are_not_shown():
    assert study.shown("postgresql://me:secret@host:5432/db") == "postgresql://me:***@host:5432/db"
    assert study.shown("postgresql://me@host/db") == "postgresql://me@host/db"
    assert study.shown("sqlite:///a.db") == "sqlite:///a.db"
    assert (
        study.shown("postgresql://h/db?user=me&password=secret&x=1")
        == "postgresql://h/db?user=me&password=***&x=1"
    )
    for address in ("127.0.0.1:1", "host:PORT"):
        with pytest.raises(SpecError) as caught:
            study.connect(f"postgresql://me:secret@{address}/none")
        assert "cannot be used" in str(caught.value) and "secret" not in str(caught.value)


def test_run_json_holds_no_password(monkeypatch):
    from operant.cli import training

    told = []
    monkeypatch.setattr(training, "_trained", lambda flags: None)
    monkeypatch.setattr(training, "_plan", lambda agent, given: None)
    monkeypatch.setattr("operant.training.train.train", lambda plan, command: told.append(command))
    main(["train", "ppo", "--from-study", "s", "--storage", "postgresql://me:secret@host/db"])
    assert told == ["operant train ppo --from-study s --storage 'postgresql://me:***@host/db'"]


def test_files_of_trials_have_their_number():
    assert numbered("weights/ppo.tf", 3) == "weights/ppo-trial3.tf"
    assert numbered("history.parquet", 12) == "history-trial12.parquet"


# The search, with pretended trials


@pytest.mark.parametrize("settings", [{}, {"lr": 0.1}])
def test_a_study_with_nothing_to_search_says_so(settings, here, capsys):
    tune(planned(config={"n_trials": 1}, quiet=False, **settings))
    assert ("Nothing is searched: trials differ by their seeds alone." in capsys.readouterr().out) == bool(
        settings
    )


@pytest.mark.slow
def test_a_study_records_what_its_trials_were(here, capsys):
    tuned = tune(
        planned(
            config={"n_trials": 11, "study": "s", "prune": False, "storage": None}, gamma=0.9, quiet=False
        )
    )
    out = capsys.readouterr().out
    assert (tuned.complete, tuned.pruned, tuned.failed) == (11, 0, 0)
    values = [t.value for t in tuned.study.trials]
    assert values == [pytest.approx(reward(t.params, {})) for t in tuned.study.trials]
    assert tuned.best.value == max(values)
    assert tuned.study.user_attrs == {
        "agent": "ppo", "env": "pretended", "env_kwargs": None, "trial_steps": 1000, "trial_episodes": None,
        "trial_seeds": 1, "reward_buffer_size": 100,
    }  # fmt: skip
    first = tuned.study.trials[0]
    assert first.user_attrs["options"] == {"gamma": 0.9, "lr": first.params["lr"]}
    assert first.user_attrs["run"] == {"env": "pretended", "max_steps": 1000}
    assert [t.user_attrs["seed"] for t in tuned.study.trials] == list(range(11))
    assert sorted(first.intermediate_values) == list(range(50, 1001, 50))
    assert sorted(p.name for p in (here / "studies" / "s").iterdir()) == [
        "history.png", "importances.png", "parallel.png", "study.db",
    ]  # fmt: skip
    assert "Tuning ppo on pretended: study s in sqlite:///studies/s/study.db; 11 trials of 1000 steps" in out
    assert "Train with its settings: operant train --from-study s\n" in out
    found = from_study("s")
    assert (found.agent, found.number, found.value) == ("ppo", tuned.best.number, tuned.best.value)
    assert found.options == {"gamma": 0.9, "lr": found.params["lr"]}


@pytest.mark.parametrize("alike", [True, False])
def test_trials_that_are_alike_show_no_importances(tmp_path, alike):
    many = optuna.create_study(study_name="s")
    lr = optuna.distributions.FloatDistribution(1e-5, 1e-2, log=True)
    for i in range(11):
        value = 1.0 if alike else float(i)
        many.add_trial(
            optuna.create_trial(params={"lr": 1e-4 * (i + 1)}, distributions={"lr": lr}, value=value)
        )
    names = {path.name for path in draw(many, tmp_path)}
    assert names == {"history.png", "parallel.png"} | (set() if alike else {"importances.png"})


def test_a_study_in_which_no_trial_has_all_parameters_is_drawn(tmp_path):
    many = optuna.create_study(study_name="s", direction="maximize")
    between = optuna.distributions.FloatDistribution(1e-5, 1.0, log=True)
    for i, name in enumerate(["lr", "lr", "gamma", "gamma"]):
        many.add_trial(
            optuna.create_trial(params={name: 0.1 / (i + 1)}, distributions={name: between}, value=float(i))
        )
    names = {path.name for path in draw(many, tmp_path)}
    assert "history.png" in names and "parallel.png" not in names


def test_trials_are_drawn_over_whole_numbers():
    trials = [optuna.create_trial(value=1.0 * number) for number in range(3)]
    for number, trial in enumerate(trials):
        trial.number = number
    ticks = study_plots.history(trials).axes[0].get_xticks()
    assert {0, 1, 2} <= set(ticks) and all(tick == round(tick) for tick in ticks)


@pytest.mark.slow
def test_the_same_seed_chooses_the_same(here):
    chosen = [
        [
            t.params
            for t in tune(planned(config={"n_trials": 12, "study": name}, n_steps=[16, 32])).study.trials
        ]
        for name in ("a", "b")
    ]
    assert chosen[0] == chosen[1]
    assert len({str(params) for params in chosen[0]}) == 12


def test_a_study_goes_on_and_draws_nothing_twice(here):
    tune(planned(config={"n_trials": 3, "study": "s"}))
    tuned = tune(planned(config={"n_trials": 3, "study": "s"}))
    assert [t.number for t in tuned.study.trials] == list(range(6))
    assert len({t.params["lr"] for t in tuned.study.trials}) == 6
    assert [t.user_attrs["seed"] for t in tuned.study.trials] == list(range(6))
    tune(planned(config={"study": "s"}, lr=[1e-4, 1e-2]))  # another range of the same kind is fine


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agent": "a2c"}, "The study 's' has agent 'ppo', not 'a2c': trials would not compare."),
        ({"env": "other"}, "has env 'pretended', not 'other'"),
        ({"env_kwargs": {"g": [9.81]}}, "has env_kwargs None, not {'g': [9.81]}"),
        ({"config": {"study": "s", "trial_steps": 999}}, "has trial_steps 1000, not 999"),
        ({"config": {"study": "s", "trial_episodes": 5}}, "has trial_episodes None, not 5"),
        ({"config": {"study": "s", "trial_seeds": 2}}, "has trial_seeds 1, not 2"),
        ({"reward_buffer_size": 7}, "has reward_buffer_size 100, not 7"),
        (
            {"n_steps": [16, 64]},
            "n_steps was tuned over 16 or 32 in the study 's', which cannot change to 16 or 64. Give the "
            "same values",
        ),
    ],
)
def test_a_study_that_goes_on_must_compare(here, change, message):
    tune(planned(config={"study": "s"}, n_steps=[16, 32]))
    with pytest.raises(SpecError) as caught:
        tune(planned(**{"config": {"study": "s"}, **change}))
    assert message in str(caught.value)
    assert len(study.load("s", STORAGE).trials) == 1


def test_what_a_process_that_was_killed_left_of_a_new_study_is_completed(here):
    old = optuna.create_study(study_name="s", storage=study.connect(STORAGE), direction="maximize")
    for name, value in {"agent": "ppo", "env": "pretended", "trial_steps": 1000}.items():
        old.set_user_attr(name, value)
    tune(planned(config={"study": "s"}))
    assert study.load("s", STORAGE).user_attrs["trial_seeds"] == 1


def test_of_equal_trials_the_first_is_the_best():
    known = optuna.create_study(study_name="s", direction="maximize")
    known.set_user_attr("agent", "ppo")
    for value in (1.0, 3.0, 3.0, 2.0):
        known.add_trial(optuna.trial.create_trial(value=value, user_attrs={"options": {}, "run": {}}))
    found = study.best(known)
    assert (found.number, found.value) == (1, 3.0)


def test_seeds_of_trials_are_apart_from_one_another(here):
    tuned = tune(planned(config={"n_trials": 3, "study": "s", "trial_seeds": 4}))
    assert [t.user_attrs["seed"] for t in tuned.study.trials] == [0, 4, 8]
    for name, value in {"checkpoints": ["a"], "history_checkpoint": "h.parquet"}.items():
        with pytest.raises(SpecError, match=f"{name} names what belongs to one seed.*trial_seeds=2"):
            planned(config={"study": "s", "trial_seeds": 2}, **{name: value})


class Listening:
    """The end of a pipe at which trials are told to go on."""

    def __init__(self):
        self.told = []

    def send_bytes(self, text):
        self.told.append(json.loads(text))

    def recv_bytes(self):
        return b'{"prune": false}'


@pytest.mark.slow
def test_a_trial_is_scored_by_evaluations_of_all_its_seeds():
    from operant.agents.base.agent_spec import parse_agent
    from operant.tuning import trial

    run = {"env": "jax:CartPole-v1", "n_envs": 2, "seed": 3, "max_steps": 400, "quiet": True}
    hyper = {"model": [{"type": "dense", "size": 8}]}
    order = {"agent": "a2c", "trials": [{"hyper": hyper, "run": run}], "episodes": 3, "seeds": 2}
    connection = Listening()
    trial._train(order, connection)
    *reports, ended = connection.told
    assert [message["step"] for message in reports] == list(range(20, 401, 20))
    assert ended["value"] == reports[-1]["value"] and ended["kind"] == "ended"
    assert 350 < ended["step"] < 450
    with contextlib.ExitStack() as stack:
        definition = parse_agent(order["agent"], **hyper)
        alone = []
        for seed in (3, 4):
            own = trial._seed(definition, RunConfig.from_dict({**run, "seed": seed}), 3, stack)
            own.training.loop()
            alone.append(own.value())
    assert ended["value"] == pytest.approx(sum(alone) / 2) and alone[0] != alone[1]
    assert ended["seed_values"] == pytest.approx(alone)
    assert all(3 * value == round(3 * value) for value in alone)  # whole episodes
    by_training = Listening()
    trial._train({**order, "episodes": None, "seeds": 1}, by_training)
    assert by_training.told[-1]["value"] != ended["value"]


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_trials_of_a_population_equal_those_by_themselves(agent):
    """One of them is pruned in the middle, which changes nothing for the others."""
    from operant.tuning import trial

    class Pruning(Listening):
        def recv_bytes(self):
            last = self.told[-1]
            prune = prunes and last["trial"] == 0 and last["step"] > 300
            return b'{"prune": true}' if prune else b'{"prune": false}'

    small = {"model": [{"type": "dense", "size": 8}]}
    small |= {"n_steps": 32} if agent == "ppo" else {"buffer_max_size": 500, "buffer_initial_size": 100}
    run = {"env": "jax:CartPole-v1", "n_envs": 4, "max_steps": 1000, "quiet": True}
    settings = [({"lr": 1e-3}, 1), ({"lr": 1e-2}, 1), ({"lr": 1e-3, "gamma": 0.9}, 5)]
    several = [
        {"hyper": {"gamma": 0.99, **small, **hyper}, "run": {**run, "seed": seed}} for hyper, seed in settings
    ]

    def told(trials):
        connection = Pruning()
        trial._train({"agent": agent, "trials": trials, "episodes": None, "seeds": 1}, connection)
        by_trial = [[] for _ in trials]
        for message in connection.told:
            message.pop("seconds", None)
            by_trial[message.pop("trial")].append(message)
        return by_trial

    prunes = False
    alone = [told([each])[0] for each in several]
    prunes = True
    first, *others = told(several)
    assert others == alone[1:]
    assert first[-1]["kind"] == "pruned" and first[:-1] == alone[0][: len(first) - 1]
    assert len({own[-1]["value"] for own in alone}) > 1


def test_populations_are_asked_for_in_native_environments(here):
    plan = planned(env="jax:pretended", config={"n_trials": 40}, n_steps=[8, 16])
    assert plan.at_once() == 10
    assert planned(env="jax:pretended", agent="dqn", config={"n_trials": 40}).at_once() == 1
    modular = {"env": "jax:pretended", "agent": "modular", "horizon": 1, "gamma": [0.9, 0.99]}
    assert planned(**modular, config={"n_trials": 40}).at_once() == 10
    assert planned(**modular, memory="replay", config={"n_trials": 40}).at_once() == 1
    assert planned(config={"n_trials": 40}).at_once() == 1
    config = {"n_trials": 7, "population": 5, "prune": False}
    tuned = tune(planned(env="jax:pretended", config=config, gamma=[0.9, 0.99]))
    assert tuned.complete == 7 and [t.state.name for t in tuned.study.trials] == ["COMPLETE"] * 7
    values = [reward({"lr": t.params["lr"]}, {}) for t in tuned.study.trials]
    assert [t.value for t in tuned.study.trials] == pytest.approx(values)
    with pytest.raises(SpecError, match="population must be 1 where environments are not JAX-native.*n_jobs"):
        planned(env="CartPole-v1", config={"population": 2})


def test_only_numbers_differ_among_trials_of_one_program(here):
    plan = planned(env="jax:pretended")
    one, other = ({"lr": 1e-3, "n_steps": 8}, {"seed": 1}), ({"lr": 1, "n_steps": 8}, {"seed": 2})
    assert plan.program(*one) == plan.program(*other)
    for hyper, run in ({"n_steps": 9}, {}), ({"lr": "linear(1e-3, 0, 1000)"}, {}), ({}, {"n_envs": 3}):
        assert plan.program(*one) != plan.program({**one[0], **hyper}, {**one[1], **run})
    plan = planned(env="jax:pretended", agent="modular")
    for name in ("frequency", "horizon"):  # rows of a block, of a return
        assert plan.program({name: 4}, {}) != plan.program({name: 8}, {})


def test_a_crash_takes_nothing_with_it_from_a_population(here):
    tuned = tune(planned(env="jax:crash", config={"n_trials": 6, "population": 6, "prune": False}))
    crashed = [t.number for t in tuned.study.trials if t.params["lr"] > 1e-3]
    states = [t.state.name for t in tuned.study.trials]
    assert 0 < len(crashed) < 6
    assert states == ["FAIL" if number in crashed else "COMPLETE" for number in range(6)]


class Told:
    """What trains under one seed, with a score at each report that is given beforehand."""

    progress = types.SimpleNamespace(score=types.SimpleNamespace(episodes=1), elapsed=1.0)

    def __init__(self, *values):
        self.training, self.counted, self.step = self, 0, 0
        self.run = RunConfig(env="CartPole-v1", max_steps=20)
        self._values, self.loggers, self.on_disk = iter(values), self, False

    def flush(self):
        self.on_disk = True

    def loop(self):
        self.step = self.counted = self.run.max_steps
        return types.SimpleNamespace(reason="max_steps")

    def value(self):
        return next(self._values)


def test_a_trial_reports_only_what_all_its_seeds_have_reached():
    from operant.tuning import trial

    connection = Listening()
    seeds = Told(None, *[1.0] * 19), Told(None, None, *[3.0] * 18)
    trial._advance([seeds], 20, connection, trial._one_after_another)
    *reports, ended = connection.told
    assert [(message["step"], message["value"]) for message in reports] == [
        (step, 2.0) for step in range(3, 21)
    ]
    assert (ended["kind"], ended["value"], ended["seed_values"]) == ("ended", 2.0, [1.0, 3.0])
    assert all(seed.on_disk for seed in seeds)
    connection, seeds = Listening(), (Told(*[1.0] * 20), Told(*[None] * 20))
    trial._advance([seeds], 20, connection, trial._one_after_another)
    [failed] = connection.told
    assert failed["kind"] == "failed" and "No episode ended within 20 steps" in failed["text"]


@pytest.mark.parametrize(
    ("settings", "processes"),
    [
        ({"n_jobs": 1}, 1),
        ({"n_jobs": 2}, 2),
        ({"n_steps": [16, 32]}, None),  # in each another program than before
        ({"env": "raise"}, 6),
        ({"env": "nan"}, 6),
    ],
)
def test_trials_of_one_program_share_a_process_until_one_fails(settings, processes, here, monkeypatch):
    made, make = [], search.StudySearch._process

    def counted(self):
        made.append(make(self))
        return made[-1]

    monkeypatch.setattr(search.StudySearch, "_process", counted)
    config = {"n_trials": 6, "n_jobs": settings.pop("n_jobs", 1)}
    found = tune(planned(config=config, **settings))
    if "n_steps" in settings:
        drawn = [trial.params["n_steps"] for trial in found.study.trials]
        processes = 1 + sum(a != b for a, b in itertools.pairwise(drawn))
        assert processes > 1
    assert len(made) == processes
    assert all(process.process.poll() is not None for process in made)


def test_what_an_environment_leaves_running_ends_with_its_trial():
    assert _alone()
    with subprocess.Popen(["sleep", "60"]) as child:
        assert not _alone()
        child.kill()
    assert _alone()


def test_a_process_takes_a_number_of_trials(here, monkeypatch):
    code = (
        "import sys; from operant.tuning import trial; trial.MOST_ORDERS = 3;"
        "trial._train = lambda *_: None; trial.work(int(sys.argv[1]))"
    )
    monkeypatch.setattr(TrialProcess, "code", code)
    monkeypatch.setattr("operant.tuning.trial.IDLE_SECONDS", 60.0)
    process = TrialProcess(silent=True)
    waits = []
    for _ in range(3):
        process.send({"do": "train"})
        waits.append(process.idle())
    assert waits == [True, True, False]
    process.close()


@pytest.mark.slow
def test_a_trial_does_not_notice_those_before_it_in_its_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = []
    for name in ("shared", "fresh"):
        config = {"n_trials": 3, "trial_steps": 600, "study": name}
        values.append([t.value for t in tune(planned("CartPole-v1", config=config, n_steps=32)).study.trials])
        monkeypatch.setattr(TrialProcess, "idle", lambda self: False)
    assert values[0] == values[1] and len(set(values[0])) == 3


def test_a_crashing_trial_is_recorded_and_the_study_goes_on(here, capsys):
    tuned = tune(planned("crash", config={"n_trials": 8, "n_jobs": 2, "study": "s"}, quiet=False))
    out = capsys.readouterr().out
    failed = [t for t in tuned.study.trials if t.state is TrialState.FAIL]
    assert tuned.failed == len(failed) > 0 and tuned.complete > 0
    assert tuned.failed + tuned.complete + tuned.pruned == 8 == len(tuned.study.trials)
    assert all(t.params["lr"] > 1e-3 for t in failed)
    error = failed[0].user_attrs["error"]
    assert "ended with exit code 3" in error and "Out of memory, says the system." in error
    assert f"Trial {failed[0].number} failed: The process of the trial ended with exit code 3" in out


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ("raise", "ValueError: no\nTraceback ..."),
        ("silent", "No episode ended within 10 steps, so there is no return. Raise --trial-steps."),
        ("nan", "The mean return is nan."),
    ],
)
def test_failures_say_why_and_never_count_as_zero(here, env, reason):
    tuned = tune(planned(env, config={"n_trials": 2, "study": "s"}))
    assert [t.user_attrs["error"] for t in tuned.study.trials] == [reason] * 2
    assert tuned.best is None and tuned.failed == 2
    with pytest.raises(UsageError, match="No trial of the study 's' was finished yet"):
        from_study("s", STORAGE)


def test_what_cannot_be_built_is_refused_before_anything_is_written(here):
    with pytest.raises(SpecError, match="The environment 'refuse' does not exist."):
        tune(planned("refuse", config={"n_trials": 2}))
    assert list(here.iterdir()) == []
    tuned = tune(planned(config={"n_trials": 1}, n_steps=[13, 32]))  # the last values can be built
    assert tuned.complete == 1


def test_bad_trials_are_pruned_after_the_warm_up(here):
    tuned = tune(planned(config={"n_trials": 9, "warmup_trials": 4, "study": "s"}))
    pruned = [t for t in tuned.study.trials if t.state is TrialState.PRUNED]
    assert tuned.pruned == len(pruned) > 3
    assert all(t.number >= 4 for t in pruned)
    assert all(200 <= t.last_step < 1000 for t in pruned)  # not in the first fifth
    assert tune(planned(config={"n_trials": 9, "prune": False, "study": "t"})).pruned == 0


def test_a_report_that_is_no_number_does_not_prune(here):
    tuned = tune(planned("gap", config={"n_trials": 8, "warmup_trials": 1, "study": "s"}))
    ends = [t.last_step for t in tuned.study.trials if t.state is TrialState.PRUNED]
    assert tuned.complete and not {400, 450, 500} & set(ends)
    assert all(400 not in t.intermediate_values for t in tuned.study.trials)


def running(storage):
    """Return how many trials of the study have begun."""
    return [t.state for t in study.load("s", storage).trials].count(TrialState.RUNNING)


def interrupted(storage):
    """Start a study whose trials never end, interrupt it, and return what it printed and its status."""
    flags = [] if storage is None else ["--storage", storage]
    code = (
        f"from operant.tuning.trial import TrialProcess; TrialProcess.code = {PRETENDED!r}; from operant.cli "
        "import main;import sys; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "tune", "ppo", "--env", "hang", "--lr", "1e-5", "1e-1", "--study", "s",
         "--n-trials", "5", "--n-jobs", "2", *flags],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert any(line.startswith("Tuning ppo on hang") for line in iter(process.stdout.readline, ""))
    deadline = time.monotonic() + 60
    while running(storage) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    return out, process.returncode


def test_a_damaged_journal_is_named(here):
    study.create("s", "s.journal", {"agent": "ppo"})
    whole = Path("s.journal").read_text()
    for line in ("{", "[]", '{"op_code": 4}', '{"op_code": 99, "worker_id": "x"}'):
        Path("s.journal").write_text(f"{line}\n{whole}")
        with pytest.raises(SpecError, match="The storage 's.journal' (cannot be read|comes from)"):
            study.from_study("s", "s.journal")


@pytest.mark.slow
@pytest.mark.parametrize("storage", [None, "s.journal"])
def test_interrupted_trials_come_first_when_the_study_goes_on(here, storage):
    out, status = interrupted(storage)
    assert status == 0, out
    counted = (
        "Interrupted: 0 trials complete, 0 pruned, 0 failed, 2 interrupted; 4 in the study s, 2 of "
        "them waiting to be tried first\n"
    )
    assert counted in out
    assert "Continue: the same command with --study s" in out
    before = study.load("s", storage).trials
    assert [t.state.name for t in before] == ["FAIL", "FAIL", "WAITING", "WAITING"]
    settings = {"trial_steps": 50000, "study": "s", "storage": storage, "n_trials": 3}
    known = study.load("s", storage)
    known.set_user_attr("env", "pretended")  # the environment that never ends does now
    tuned = tune(planned(config=settings, seed=None))
    assert [t.state.name for t in tuned.study.trials[2:]] == ["COMPLETE"] * 3
    assert [t.params for t in tuned.study.trials[2:4]] == [t.params for t in before[:2]]


def test_programs_that_an_environment_started_end_with_the_trial(here, monkeypatch):
    os.mkfifo("alive")
    code = (
        "import subprocess, time; subprocess.Popen(['sh', '-c', 'echo; exec sleep 90'], "
        "stdout=open('alive', 'w')); time.sleep(90)"
    )
    monkeypatch.setattr(TrialProcess, "code", code)
    process = TrialProcess(silent=True)
    with open("alive", "rb") as alive:
        assert alive.readline() == b"\n"
        begun = time.monotonic()
        process.close()
        assert alive.read() == b""  # nobody can write any more
        assert time.monotonic() - begun < 60


def test_a_trial_ends_soon_after_the_process_that_tunes(here, monkeypatch):
    """Also while it trains: it was noticed when it had something to tell, maybe hours later."""
    code = (
        "import sys, time; from operant.envs.workers import worker; worker.ORPHAN_SECONDS = 0.0; from "
        "operant.tuning import trial;trial._attempt = lambda *_: time.sleep(60); trial.work(int(sys.argv[1]))"
    )
    monkeypatch.setattr(TrialProcess, "code", code)
    process = TrialProcess(silent=True)
    process.send({"do": "train"})
    process.connection.close()
    assert process.process.wait(timeout=30) == -signal.SIGKILL
    process.close()


@pytest.mark.parametrize("start", ["os.system('sleep 90 &')", "os.fork() or time.sleep(90)"])
def test_the_end_of_a_trial_shows_at_once_whatever_its_environment_started(start, here, monkeypatch):
    code = (
        "import os, sys, time; from operant.tuning import trial;"
        f"trial._train = lambda *_: ({start}, os._exit(3)); trial.work(int(sys.argv[1]))"
    )
    monkeypatch.setattr(TrialProcess, "code", code)
    process, begun = TrialProcess(silent=True), time.monotonic()
    process.send({"do": "train"})
    with pytest.raises(ProcessLostError, match="ended with exit code 3"):
        process.receive()
    assert time.monotonic() - begun < 60


def test_a_trial_that_is_ended_with_the_study_is_tried_again(here, monkeypatch):
    """Clusters ask every process of a job to terminate."""
    hear = search.StudySearch._hear

    def asked(self, running):
        self.stop()
        hear(self, running)

    monkeypatch.setattr(search.StudySearch, "_hear", asked)
    tuned = tune(planned("raise", config={"n_trials": 2, "study": "s"}))
    assert (tuned.failed, tuned.given_up, tuned.interrupted) == (0, 1, True)
    assert [t.state.name for t in tuned.study.trials] == ["FAIL", "WAITING"]


def test_a_study_that_is_ended_before_its_first_trial_is_interrupted(here, monkeypatch):
    """What tries the plan is ended with it: that was told as a fault of the plan."""

    def lost(self):
        signal.raise_signal(signal.SIGTERM)
        raise ProcessLostError("The process of the trial was killed by signal 15.")

    monkeypatch.setattr(TrialProcess, "receive", lost)
    with pytest.raises(KeyboardInterrupt):
        tune(planned(config={"n_trials": 2}))
    assert list(here.iterdir()) == []


def test_trials_of_a_machine_that_died_are_tried_again(here):
    tune(planned(config={"study": "s"}))
    known = study.load("s", STORAGE)
    for age in (search.STALE_SECONDS + 1, 1):
        trial = known.ask({"lr": optuna.distributions.FloatDistribution(1e-5, 1e-1, log=True)})
        trial.set_user_attr("seen", time.time() - age)
    known.ask()  # one that has just begun
    assert search.reclaim(known) == [1]
    assert [t.state.name for t in known.trials] == ["COMPLETE", "FAIL", "RUNNING", "RUNNING", "WAITING"]
    assert search.reclaim(known) == []
    tuned = tune(planned(config={"study": "s"}))
    assert tuned.study.trials[4].params == tuned.study.trials[1].params


def test_a_search_marks_its_trials_and_looks_for_dead_ones_while_it_waits(here, monkeypatch):
    done = []
    for name in ("_mark_alive", "reclaim"):
        own = getattr(search, name)
        monkeypatch.setattr(search, name, lambda x, name=name, own=own: done.append(name) or own(x))
    tune(planned(config={"study": "s"}))
    # As it begins: a trial takes less time than there is between two beats.
    assert done == ["reclaim", "_mark_alive"]
    monkeypatch.setattr(search, "BEAT_SECONDS", 0.0)
    tune(planned(config={"study": "s"}))
    assert done[4:6] == ["_mark_alive", "reclaim"]


def test_trials_whose_process_was_killed_at_once_are_tried_again(here, monkeypatch):
    """Between asking for a trial and marking it as alive, or between the two steps of giving one up."""
    tune(planned(config={"study": "s"}))
    known = study.load("s", STORAGE)
    other = optuna.create_study(storage=known._storage, study_name="of another program")
    fixed = {"lr": 0.02}
    known.enqueue_trial(fixed)
    for each in (known, known, other):
        each.ask()
    assert search.reclaim(known) == []
    now = time.time

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "time", lambda: now() + search.STALE_SECONDS + 1)
    with monkeypatch.context() as patched:
        patched.setattr(optuna.Study, "tell", killed)
        with pytest.raises(KeyboardInterrupt):
            search.reclaim(known)
    assert search.reclaim(known) == [1, 2] and search.reclaim(other) == []
    # Once only, with the settings that it was to have; there are none of the other one.
    assert [t.state.name for t in known.trials] == ["COMPLETE", "FAIL", "FAIL", "WAITING"]
    assert tune(planned(config={"study": "s"})).study.trials[3].params == fixed


def test_a_trial_is_marked_as_alive_before_anything_else(here, monkeypatch):
    suggest = search.suggest

    def look(trial, ranges):
        assert set(trial.user_attrs) == {"seen"}
        return suggest(trial, ranges)

    monkeypatch.setattr(search, "suggest", look)
    assert tune(planned(config={"study": "s"})).complete == 1


def test_settings_wait_before_an_interrupted_trial_is_marked(here, monkeypatch):
    """Whatever happens in between, they are tried again."""
    tell = optuna.Study.tell

    def look(known, *args, **kwargs):
        if kwargs.get("state") == TrialState.FAIL:
            states.append([t.state.name for t in known.trials])
        return tell(known, *args, **kwargs)

    states = []
    monkeypatch.setattr(optuna.Study, "tell", look)
    begin = search.StudySearch._begin
    monkeypatch.setattr(search.StudySearch, "_begin", lambda self: (begin(self), self.stop()))
    tune(planned(config={"study": "s"}, env="hang"))
    assert states == [["RUNNING", "WAITING"]]


def test_a_trial_that_another_process_took_for_dead_is_dropped(here, monkeypatch):
    begin = search.StudySearch._begin

    def begin_and_lose(self):
        begin(self)
        self.study.tell(len(self.study.trials) - 1, state=TrialState.FAIL)

    monkeypatch.setattr(search.StudySearch, "_begin", begin_and_lose)
    tuned = tune(planned(config={"n_trials": 2, "study": "s"}))
    assert [t.state.name for t in tuned.study.trials] == ["FAIL", "FAIL"]
    assert (tuned.complete, tuned.failed) == (0, 0)


TRIALS = 6


def together(storage, processes=2):
    """Let several processes work on one new storage at once; return the study."""
    code = (
        f"from operant.tuning.trial import TrialProcess; TrialProcess.code = {PRETENDED!r};from "
        "operant.tuning.tune import TuneConfig, plan, tune; import sys;config = "
        f"TuneConfig.from_dict(dict(study='s', storage=sys.argv[1], n_trials={TRIALS}, n_jobs=2, "
        "trial_steps=1000));tuned = tune(plan('ppo', config, env='pretended', lr=[1e-5, 1e-1], "
        "seed=3));sys.exit(tuned.failed)"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, storage], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(processes)
    ]
    for process in started:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out.decode()
    return study.load("s", storage)


def assert_nothing_lost(known, processes=2):
    trials = known.trials
    assert sorted(t.number for t in trials) == list(range(TRIALS * processes))
    assert all(t.state in (TrialState.COMPLETE, TrialState.PRUNED) for t in trials)
    assert len({t.params["lr"] for t in trials}) == len(trials)  # one seed, and yet nothing was tried twice
    assert len({t.user_attrs["seed"] for t in trials}) == len(trials)


@pytest.mark.slow
@pytest.mark.parametrize(
    "storage", ["sqlite:///s.db", pytest.param("s.journal", marks=pytest.mark.exhaustive)]
)
def test_two_processes_lose_no_trial(here, storage):
    assert_nothing_lost(together(storage))


def postgres_binaries():
    """Return the folder of PostgreSQL's server programs, or None."""
    import shutil

    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((place for place in reversed(places) if (place / "pg_ctl").exists()), None)


@pytest.fixture
def postgres():
    """A PostgreSQL server of its own, on a socket in a folder of its own."""
    import pwd
    import shutil
    import tempfile

    pytest.importorskip("psycopg", reason="needs the extra postgresql")
    programs = postgres_binaries()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed (Debian: apt-get install postgresql)")
    as_user = {}
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    if os.geteuid() == 0:  # the server refuses to run as root
        known = {entry.pw_name for entry in pwd.getpwall()}
        user = next((name for name in ("postgres", "nobody") if name in known), None)
        if user is None:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")
        as_user = {"user": user, "extra_groups": []}
        shutil.chown(folder, user)
    data = folder / "data"
    quiet = {"stdout": subprocess.DEVNULL, "check": True, "cwd": folder, **as_user}
    try:
        subprocess.run([programs / "initdb", "-D", data, "-U", "tuner", "-A", "trust", "-N"], **quiet)
        flags = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        subprocess.run(
            [programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", flags, "start"], **quiet
        )
        try:
            yield f"postgresql://tuner@/postgres?host={folder}"
        finally:
            subprocess.run([programs / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop"], **quiet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_two_processes_lose_no_trial_on_postgresql(here, postgres):
    assert_nothing_lost(together(postgres))
    found = from_study("s", postgres)
    assert found.agent == "ppo" and found.value > 80
    with pytest.raises(SpecError, match="There is no study 'ss' in postgresql://.*Did you mean 's'"):
        from_study("ss", postgres)


def test_a_study_that_operant_did_not_make(here):
    # Connected as operant does it: Optuna alone leaves its connections open, of which Python 3.13 warns.
    storage = study.connect("sqlite:///s.db")
    known = optuna.create_study(study_name="s", storage=storage, direction="maximize")
    known.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    with pytest.raises(UsageError, match="was not made by `operant tune`"):
        from_study("s", "s.db")
    with pytest.raises(
        SpecError, match="There is no study 'x': sqlite:///studies/x/study.db does not exist."
    ):
        from_study("x")
    assert sorted(p.name for p in here.iterdir()) == ["s.db"]


# The command line


@pytest.mark.parametrize("agent", AGENTS)
def test_help_lists_every_flag_and_fits_the_terminal(agent, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["tune", agent, "--help-all"]) == 0
    out = capsys.readouterr().out
    for cls in (TuneConfig, RunConfig, config_class(agent)):
        for name in options(cls):
            begins = tuple(f"  --{no}{tables.flag(name)[2:]}" for no in ("", "[no-]"))
            shown = any(
                line == each or line.startswith(f"{each} ") for line in out.splitlines() for each in begins
            )
            assert shown == (name not in NOT_TUNED), name
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "in the run's" not in out and "run's folder" not in " ".join(out.split())  # trials have none
    assert main(["tune", agent, "--help"]) == 0
    short = capsys.readouterr().out
    assert "  --trial-steps  [default: 50000]" in short and len(short) < len(out)


@pytest.mark.parametrize("command", [["tune"], ["plot"], ["train"], ["reproduce"], ["completion"]])
def test_help_of_commands_fits_the_terminal(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(command) == 0
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())


DOCUMENTED = {  # the seed document's table, but for its one trial of 500,000 steps, which compares nothing
    "--n-jobs": "1", "--n-trials": "20", "--non-silent": "-", "--storage": "-", "--study": "-",
    "--trial-steps": "50000", "--warmup-trials": "5",
}  # fmt: skip


def test_defaults_are_the_documented_ones():
    rows = {row[0]: row[2] for row in tables.option_rows([TuneConfig])}
    assert {name: rows[name] for name in DOCUMENTED} == DOCUMENTED


def test_help_loads_nothing_heavy():
    code = (
        "import sys, operant.cli as c; c.main(['tune', 'ppo']); c.main(['plot']);print([m for m in ('jax', "
        "'keras', 'gymnasium', 'optax', 'matplotlib', 'pyarrow', 'optuna', 'sqlalchemy') if m in "
        "sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune", "ppoo", "--env", "x"], "Unknown agent 'ppoo'. Did you mean 'ppo'?"),
        (["tune", "--env", "x"], "tune needs an agent: operant tune <agent>"),
        (["tune", "ppo", "--lr", "1e-5"], "--env must be given"),
        (["tune", "ppo", "--env", "x", "--max-steps", "3"], "Unknown flag '--max-steps' for tune ppo."),
        (
            ["tune", "ppo", "--env", "x", "--n-trials", "0"],
            "--n-trials must be at least 1. Received: --n-trials 0.",
        ),
        (
            ["tune", "ppo", "--env", "x", "--lr", "1", "2", "3"],
            "--lr is tuned between a smallest and a largest value",
        ),
        (
            ["tune", "ppo", "--env", "x", "--lr", "a", "b"],
            "--lr must be a number, or a schedule such as linear:START:END:STEPS. Received: 'a'.",
        ),
        (
            ["tune", "ppo", "--env", "x", "--n-steps", "16", "16"],
            "--n-steps must be several different values",
        ),
        (["tune", "ppo", "--env", "x", "--storage", "there"], "--storage must be a database's URL"),
        (["tune", "ppo", "--env", "x", "--study", "a/b"], "--study must be a name without /"),
        (["tune", "ppo", "--env", "x", "--max-frame", "perhaps"], "--max-frame must be true or false"),
        (["tune", "ppo", "--env", "x", "--max-frame"], "--max-frame is a part of preprocessing"),
        (
            ["train", "--from-study", "lost"],
            "There is no study 'lost': sqlite:///studies/lost/study.db does not exist.",
        ),
        (["train", "ppo", "--env", "x", "--storage", "a.db"], "--storage is for --from-study NAME"),
        (
            ["train", "ppo", "--from-study", "s", "--preset", "cartpole"],
            "--preset and --from-study both give settings",
        ),
    ],
)
def test_refusals_say_what_is_wrong_and_leave_nothing_behind(arguments, message, capsys, here):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert message in err and out == "" and "Traceback" not in err
    assert list(here.iterdir()) == []


@pytest.mark.slow
def test_a_switch_can_be_tuned(here):
    assert (
        main(
            [
                "tune",
                "ppo",
                "--env",
                "x",
                "--preprocess",
                "--max-frame",
                "true",
                "false",
                "--study",
                "s",
                "--quiet",
            ]
        )
        == 0
    )
    assert study.load("s", None).trials[0].distributions["max_frame"].choices == (True, False)


NOTHING_TUNED = types.SimpleNamespace(failed=0, complete=0, pruned=0, interrupted=False)


def test_a_study_whose_trials_all_fail_says_so(here):
    arguments = ["--lr", "0.1", "--n-trials", "1", "--study", "s", "--quiet"]
    assert main(["tune", "ppo", "--env", "raise", *arguments]) == 1


@pytest.mark.parametrize(
    ("given", "searched"),
    [
        ([], {"lr", "gamma", "entropy_coef"}),
        (["--n-envs", "4", "8"], {"lr", "gamma", "entropy_coef", "n_envs"}),
        (["--lr", "0.1"], set()),
        (["--n-steps", "16", "32"], {"n_steps"}),
    ],
)
def test_told_nothing_of_the_agent_a_study_searches_the_usual(given, searched, here, monkeypatch):
    plans = []
    monkeypatch.setattr("operant.tuning.tune.tune", lambda plan: plans.append(plan) or NOTHING_TUNED)
    assert main(["tune", "ppo", "--env", "CartPole-v1", *given]) == 0
    assert set(plans[0].ranges) == searched
    assert (plans[0].config.n_trials, plans[0].config.trial_steps) == (20, 50_000)
    assert main(["tune", "dqn", "--env", "CartPole-v1"]) == 0
    assert set(plans[1].ranges) == {"lr", "gamma"}


def test_without_optuna(here, monkeypatch):
    monkeypatch.setattr(study.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"pip install 'operant\[tune\]'"):
        tune(planned())


# Real trials

SMALL = [
    "--env",
    "jax:CartPole-v1",
    "--n-envs",
    "2",
    "--model",
    '[{"type": "dense", "size": 8}]',
    "--ppo-epochs",
    "1",
    "--mini-batches",
    "2",
]


@pytest.mark.slow
def test_a_real_study_and_training_from_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = [
        "tune",
        "ppo",
        *SMALL,
        "--lr",
        "1e-4",
        "1e-2",
        "--n-steps",
        "8",
        "16",
        "--n-trials",
        "1",
        "--n-jobs",
        "2",
        "--trial-steps",
        "400",
        "--study",
        "s",
        "--seed",
        "5",
        "--history-checkpoint",
        "h.parquet",
    ]
    earlier = History("h-trial0.parquet")  # of another study
    earlier.episodes([EpisodeRecord(20 * i, 1.0 * i, 1e6, 20, 0, 1e6, 1e6) for i in range(1, 9)])
    earlier.close()
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "Finished: 1 trial complete" in out
    for trial in study.load("s", None).trials:
        rewards = read_history(f"h-trial{trial.number}.parquet")["episode_reward"]
        assert trial.value == pytest.approx(rewards[-100:].mean())  # the mean return of the run's buffer
        assert trial.user_attrs["episodes"] == len(rewards)
        assert trial.last_step == 400 and trial.user_attrs["step"] > 350
    best = from_study("s")
    train = ["train", "--from-study", "s", "--max-steps", "64", "--run-dir", "run", "--seed", "1"]
    assert main(train) == 0
    out = capsys.readouterr().out
    assert f"Best of the study s: trial {best.number}, mean return {best.value:.2f}" in out
    saved = json.loads((tmp_path / "run" / "run.json").read_text())
    assert saved["agent"]["lr"] == best.params["lr"] and saved["agent"]["n_steps"] == best.params["n_steps"]
    assert saved["agent"]["type"] == "ppo" and saved["agent"]["mini_batches"] == 2
    assert saved["run"]["env"] == "jax:CartPole-v1" and saved["run"]["n_envs"] == 2
    assert saved["run"]["max_steps"] == 64 and saved["run"]["history_checkpoint"] is None
    own = ["train", "--from-study", "s", "--lr", "0.5", "--max-steps", "64", "--run-dir", "own"]
    assert main(own) == 0  # the study says whose option it is
    assert json.loads((tmp_path / "own" / "run.json").read_text())["agent"]["lr"] == 0.5
    assert main(["train", "--from-study", "s", "--lrr", "0.5"]) == 2
    assert "Unknown flag '--lrr' for train. Did you mean '--lr'?" in capsys.readouterr().err
    assert main(["train", "dqn", "--from-study", "s"]) == 2
    assert "The study 's' tunes ppo, not dqn." in capsys.readouterr().err


@pytest.mark.slow
def test_real_settings_that_cannot_be_built_leave_nothing_behind(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "dqn", "--env", "jax:Pendulum-v1", "--lr", "1e-4", "1e-2"]) == 2
    out, err = capsys.readouterr()
    assert "dqn" in err and "Traceback" not in err and all(line.endswith(" ...") for line in out.splitlines())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_the_same_real_study_twice_is_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = []
    for name in ("a", "b"):
        config = TuneConfig.from_dict({"n_trials": 2, "trial_steps": 2000, "study": name})
        found = plan("ppo", config, env="jax:CartPole-v1", n_envs=4, lr=[1e-4, 1e-2], seed=1, quiet=True)
        values.append([t.value for t in tune(found).study.trials])
    assert values[0] == values[1] and len(set(values[0])) == 2


@pytest.mark.exhaustive
def test_trials_start_from_weights_and_write_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train = [
        "train",
        "ppo",
        *SMALL,
        "--max-steps",
        "256",
        "--quiet",
        "--run-dir",
        "run",
        "--checkpoints",
        "w/ppo.tf",
    ]
    assert main(train) == 0
    tuning = [
        "tune",
        "ppo",
        *SMALL,
        "--lr",
        "0",
        "--gamma",
        "0.9",
        "0.99",
        "--trial-steps",
        "256",
        "--n-trials",
        "2",
        "--study",
        "s",
        "--quiet",
    ]
    assert main([*tuning, "--weights", "w/ppo.tf", "--checkpoints", "w/new.tf"]) == 0
    from operant import checkpoint

    first = checkpoint.load("w/ppo.tf")[0]
    for number in range(2):
        own = checkpoint.load(f"w/new-trial{number}.tf")[0]
        assert all((own[name] == first[name]).all() for name in first)  # the learning rate is 0
    assert from_study("s").run["weights"] == ["w/ppo.tf"]
    assert main([*tuning[:-3], "--weights", "nowhere.tf"]) == 2
    assert "The weights 'nowhere.tf' do not exist." in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_how_far_the_study_is(here, monkeypatch):
    """A bar of the steps of all trials, and below it trials done of trials, the best, those that run."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    began = search.StudyConsole._show
    steps = []
    monkeypatch.setattr(
        search.StudyConsole, "_show", lambda self, step, time: (steps.append(step), began(self, step, time))
    )
    tuned = tune(planned(config={"n_trials": 3}, quiet=False))
    texts = terminal.getvalue()
    assert "0 of 3 trials  best -  running: trial 0" in texts
    assert f"best {tuned.best.value:.2f} (trial {tuned.best.number})" in texts
    assert texts.index("Trial 0 begins") < texts.index("Trial 0: mean return") < texts.index("Trial 2 begins")
    assert steps == sorted(steps) and {*steps} - {0, 1000, 2000, 3000}  # within trials, too
    assert "of 3 trials" not in texts.rpartition("Finished: ")[2]  # the bar is over
