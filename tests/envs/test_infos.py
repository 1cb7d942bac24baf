"""Values of `info` at the end of episodes: from every kind of vector, in reports, evaluations, histories
and checkpoints."""

from __future__ import annotations

import math
from pathlib import Path

import gymnasium
import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.info_envs import Goal, Own
from tests.tracking.test_metrics import NET, SMALL, rows

import operant
from operant.cli import main
from operant.envs import Environment
from operant.envs.native.classic import CartPole
from operant.envs.vector.create import create
from operant.errors import EnvError, SpecError, UsageError
from operant.tracking import EpisodeRecord, History, read_history
from operant.training.episodes import RollingScore, info_means
from operant.training.reproduce import reproduce

GOAL = "tests.info_envs:Goal"
KEYS = ("is_success", "distance")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Workers find the environments as this process does."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])


def synchronous(n=3):
    mode = gymnasium.vector.AutoresetMode.NEXT_STEP
    return gymnasium.vector.SyncVectorEnv([Goal] * n, autoreset_mode=mode)


VECTORS = {
    "in-process": lambda **told: create(GOAL, 3, "in-process", **told),
    "processes": lambda **told: create(GOAL, 3, "processes", num_workers=2, **told),
    "vector of Gymnasium's": lambda **told: create(synchronous(), **told),
    "own": lambda **told: create(Own, 3, "in-process", **told),
    "shaped": lambda **told: create(GOAL, 3, reward_shaping=lambda s, a, t, r, n: r, **told),
    "games": lambda **told: create(GOAL, 3, "processes", clip_rewards=True, **told),
}


def stepped(vector, count, n=3):
    actions = {name: np.zeros(n, leaf.storage) for name, leaf in vector.spaces.actions.components.items()}
    vector.reset(0)
    for _ in range(count):
        yield vector.step(actions), vector.infos


@pytest.mark.parametrize("kind", VECTORS)
def test_every_vector_tells_of_episodes_that_ended(kind):
    keys = KEYS[:1] if kind == "own" else KEYS
    with VECTORS[kind](info_keywords=keys) as vector:
        seen = list(stepped(vector, 10))
    for i, (step, infos) in enumerate(seen):
        assert tuple(infos) == keys and all(x.dtype == np.float64 and x.shape == (3,) for x in infos.values())
        ended = step.terminated | step.truncated
        assert ended.all() == (i in (3, 8))
        for values in infos.values():
            np.testing.assert_array_equal(np.isnan(values), ~ended)
    assert seen[3][1]["is_success"].tolist() == [1.0] * 3
    if kind != "own":
        assert seen[8][1]["is_success"].tolist() == [0.0] * 3 and seen[8][1]["distance"].tolist() == [0.0] * 3


@pytest.mark.parametrize("kind", VECTORS)
def test_nothing_is_told_unasked(kind):
    with VECTORS[kind]() as vector:
        assert all(not infos for _, infos in stepped(vector, 5))


def test_a_time_limit_of_operants_ends_an_episode_too():
    with create(GOAL, 3, max_episode_timesteps=2, info_keywords=["distance"]) as vector:
        told = [infos["distance"].tolist() for _, infos in stepped(vector, 2)]
    assert told[1] == [2.0] * 3


@pytest.mark.parametrize("kind", ["in-process", "processes", "vector of Gymnasium's"])
def test_a_name_that_is_not_there_is_told_with_those_that_are(kind):
    message = (
        r"Environment 0 of .*An episode ended without info\['is_succes'\]: its keys are 'distance', "
        r"'is_success'. Did you mean 'is_success'\?"
    )
    with (
        VECTORS[kind](info_keywords=["is_succes"]) as vector,
        pytest.raises(EnvError, match=message),
    ):
        list(stepped(vector, 4))


def test_an_environment_that_tells_nothing_is_named():
    message = r"of 'CartPole-v1' .*info\['is_success'\]: it is empty. Correct"
    vector = create("CartPole-v1", 3, "in-process", info_keywords=["is_success"])
    with vector, pytest.raises(EnvError, match=message):
        list(stepped(vector, 100))


def test_later_episodes_may_keep_silent():
    with create(GOAL, 3, "in-process", silent_after=1, info_keywords=["is_success"]) as vector:
        told = [infos["is_success"] for _, infos in stepped(vector, 9)]
    assert told[3].tolist() == [1.0] * 3 and np.isnan(told[8]).all()


@pytest.mark.parametrize("kind", ["in-process", "vector of Gymnasium's"])
def test_a_dict_is_told_to_be_no_number(kind):
    envs = [lambda: Goal(value={"nested": 1.0})] * 2
    mode = gymnasium.vector.AutoresetMode.NEXT_STEP
    given = envs if kind == "in-process" else gymnasium.vector.SyncVectorEnv(envs, autoreset_mode=mode)
    message = r"info\['is_success'\] must be a number to be recorded. Received: {'nested': .*1.0.*} \(dict\)"
    with (
        create(given, info_keywords=["is_success"]) as vector,
        pytest.raises(EnvError, match=message),
    ):
        list(stepped(vector, 4, 2))


@pytest.mark.parametrize("value", ["yes", [1.0]])
def test_values_that_are_no_numbers_are_refused(value):
    message = r"info\['is_success'\] must be a number to be recorded. Received: "
    vector = create(GOAL, 3, "in-process", value=value, info_keywords=["is_success"])
    with vector, pytest.raises(EnvError, match=message):
        list(stepped(vector, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: create(GOAL, 2, info_keywords="is_success"),
            "info_keywords must be a list of different names in info. Received: info_keywords='is_success'",
        ),
        (
            lambda: create(GOAL, 2, info_keywords=["a", "a"]),
            "info_keywords must be a list of different names",
        ),
        (
            lambda: create("jax:CartPole-v1", 2, info_keywords=["a"]),
            r"'jax:CartPole-v1' is JAX-native and has none. Received: info_keywords=\('a',\)",
        ),
        (
            lambda: operant.PPO(CartPole(), NET, info_keywords=["a"], **SMALL),
            "'CartPole' is JAX-native and has none",
        ),
        (
            lambda: operant.PPO(GOAL, NET, info_keywords=["a", "a"], **SMALL),
            "info_keywords must be different names",
        ),
        (lambda: operant.PPO(GOAL, NET, info_keywords="a", **SMALL), "info_keywords must be a list"),
        (
            lambda: operant.PPO(create(GOAL, 2), NET, info_keywords=["a"], **SMALL),
            "Give info_keywords where the vector is created",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises((SpecError, UsageError), match=message):
        make()


def test_remote_environments_are_refused():
    message = f"not for remote environments, .*: '{GOAL}' is one.*vector='processes'"
    with (
        Environment.create(GOAL, remote="multiprocessing") as env,
        pytest.raises(SpecError, match=message),
    ):
        create([env], info_keywords=["is_success"])


def test_games_in_ales_own_vector_tell_theirs():
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    told = {"preprocess": True, "max_episode_timesteps": 5, "info_keywords": ["lives", "frame_number"]}
    with create("BreakoutNoFrameskip-v4", 3, clip_rewards=True, episodic_life=True, **told) as vector:
        assert vector.mode == "native-vector"
        infos = [infos for _, infos in stepped(vector, 5)]
    assert np.isnan(infos[3]["lives"]).all() and infos[4]["lives"].tolist() == [5.0] * 3
    assert (infos[4]["frame_number"] > 0).all()


def test_means_are_of_the_episodes_that_told():
    nothing = math.nan
    assert info_means([{"a": 1.0}, {"a": nothing, "b": nothing}, {}, {"a": 0.0}]) == {"info/a": 0.5}
    score = RollingScore(2)
    for value in (5.0, 1.0, nothing):
        score.add([0.0], [1], {"a": np.array([value])})
    assert info_means(score.infos) == {"info/a": 1.0}  # over the window of the mean reward
    again = RollingScore(2)
    again.restore(score.to_dict())
    assert again.infos == score.infos


def episode(step, **info):
    return EpisodeRecord(step, 0.1, 1.0, 4, 0, 1.0, 1.0, info)


def test_the_history_has_columns_for_them(tmp_path):
    path = tmp_path / "h.parquet"
    history = History(path)
    history.episodes([episode(4, is_success=1.0)])
    history.flush()
    history.episodes([episode(8), episode(12, is_success=math.nan, distance=2.0)])
    history.close()
    history = History(path, part_rows=3, resume_at_step=12)  # whose next rows are another part
    history.episodes([episode(16, distance=3.0)])
    history.close()
    found = read_history(path)
    assert list(found)[-2:] == ["info/is_success", "info/distance"]
    np.testing.assert_array_equal(found["info/is_success"], [1.0, math.nan, math.nan, math.nan])
    np.testing.assert_array_equal(found["info/distance"], [math.nan, math.nan, 2.0, 3.0])


@pytest.mark.slow
def test_a_run_reports_evaluates_and_goes_on_with_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [
        "train",
        "a2c",
        "--n-steps",
        "4",
        "--env",
        GOAL,
        "--n-envs",
        "2",
        "--info-keywords",
        *KEYS,
        "--seed",
        "1",
        "--quiet",
    ]
    command += ["--reward-buffer-size", "3", "--eval-frequency", "40", "--eval-episodes", "4"]
    assert main([*command, "--max-steps", "80", "--run-dir", "run"]) == 0
    last = rows(tmp_path / "run" / "metrics.jsonl")[-1]
    history = read_history("run/history.parquet")
    assert set(history["info/is_success"]) == {0.0, 1.0} and set(history["info/distance"]) == {0.0}
    assert last["episode/info/is_success"] == pytest.approx(history["info/is_success"][-3:].mean())
    assert last["episode/info/distance"] == 0.0
    evaluated = read_history("run/evaluations.parquet")
    assert len(evaluated["step"]) == 8
    assert last["evaluation/info/is_success"] == evaluated["info/is_success"][-4:].mean() == 0.5
    assert pq.read_table("run/history.parquet").column_names[-2:] == [f"info/{key}" for key in KEYS]
    assert reproduce("run").identical
    # The window is that of the checkpoint, until it is full of new episodes.
    assert main(["train", "--resume", "run", "--max-steps", "96", "--quiet"]) == 0
    last = rows(tmp_path / "run" / "metrics.jsonl")[-1]
    after = read_history("run/history.parquet")["info/is_success"]
    assert len(after) == len(history["step"]) + 2
    assert last["episode/info/is_success"] == pytest.approx(after[-3:].mean())


def test_a_class_records_them(tmp_path):
    envs = [Goal() for _ in range(2)]
    settings = {**SMALL, "n_envs": None, "run_dir": str(tmp_path / "run"), "info_keywords": ["is_success"]}
    agent = operant.PPO(envs, NET, eval_frequency=64, eval_envs=[Goal()], **settings)
    seen = []
    agent.fit(max_steps=64, callback=lambda _, record: seen.append(record.values))
    assert 0.0 < seen[-1]["episode/info/is_success"] < 1.0
    assert seen[-1]["evaluation/info/is_success"] == 0.5
    agent.close()


def test_gymnasiums_infos_in_a_list_are_read():
    told = []
    for wrap in (lambda env: env, gymnasium.wrappers.vector.DictInfoToList):
        with create(wrap(synchronous()), info_keywords=KEYS) as vector:
            told.append([infos for _, infos in stepped(vector, 5)])
    assert np.isfinite([infos["is_success"] for infos in told[0]]).any()
    np.testing.assert_equal(told[1], told[0])


def test_of_a_vector_that_was_given_what_it_tells_is_recorded():
    agent = operant.PPO(create(GOAL, 2, info_keywords=["distance"]), NET, **{**SMALL, "n_envs": None})
    seen = []
    agent.fit(max_steps=64, callback=lambda _, record: seen.append(record.values))
    assert seen[-1]["episode/info/distance"] == 0.0
    agent.close()
