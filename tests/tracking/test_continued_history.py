"""A history that a later run continues: its counts go on, and its best is what has to be beaten."""

import errno
import json
import re
import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from operant import PPO, checkpoint
from operant.cli import main
from operant.errors import SpecError, UsageError
from operant.tracking import History, read_history
from operant.tracking.history import end_of
from operant.tracking.record import EpisodeRecord, Origin
from operant.training.episodes import RollingScore
from operant.training.run_dir import held, history_held

COMMON = [
    "--env", "jax:CartPole-v1", "--n-envs", "2", "--n-steps", "8", "--mini-batches", "2", "--ppo-epochs", "1",
    "--model", '[{"type": "dense", "size": 8}]', "--history-checkpoint", "h.parquet",
]  # fmt: skip


def write(path, step=1000, best=60.0):
    history = History(path)
    history.episodes(
        [
            EpisodeRecord(step // 2, 3.0, 20.0, 20, 0, 20.0, best),
            EpisodeRecord(step, 5.0, 9.0, 9, 0, 14.5, best),
        ]
    )
    history.close()


@pytest.mark.slow
def test_a_second_run_counts_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write("h.parquet")
    command = [*COMMON, "--seed", "1", "--run-dir", "run", "--checkpoints", "best.tf", "--log-frequency", "1"]
    assert main(["train", "ppo", *command, "--max-steps", "1400"]) == 0
    out = capsys.readouterr().out
    assert "Continuing the history h.parquet: 1000 steps, 2 episodes" in out
    assert "best mean return: 60.0" in out
    rows = read_history("h.parquet")
    own = {name: column[2:] for name, column in rows.items()}
    assert rows["step"][1] == 1000 and len(own["step"]) > 5
    assert (np.diff(rows["step"]) >= 0).all() and own["step"][0] > 1000 and own["step"][-1] <= 1420
    assert own["time"][0] > 5.0 and (np.diff(rows["time"]) >= 0).all()
    assert (own["best_reward"] >= 60.0).all()
    first = np.cumsum(own["episode_reward"]) / np.arange(1, len(own["step"]) + 1)
    np.testing.assert_allclose(own["mean_reward"], first)  # of this run's policy only
    header = checkpoint.Checkpoint(checkpoint.latest("run/checkpoints")).header["training"]
    assert header["origin"] == {"step": 1000, "time": 5.0, "episodes": 2, "best_reward": 60.0}
    assert header["score"]["episodes"] == len(rows["step"])
    assert not (tmp_path / "best.tf").exists()  # worse weights than the history's do not replace its own
    assert main(["train", "--resume", "run", "--max-steps", "1600", "--quiet"]) == 0
    after = read_history("h.parquet")
    assert len(after["step"]) > len(rows["step"]) and (np.diff(after["step"]) >= 0).all()
    assert (after["step"][: len(rows["step"])] == rows["step"]).all()


@pytest.mark.slow
def test_a_run_that_died_before_its_first_checkpoint_begins_anew_where_the_history_ended(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write("h.parquet")
    command = [*COMMON, "--seed", "1", "--run-dir", "run", "--max-steps", "1400", "--quiet"]
    assert main(["train", "ppo", *command]) == 0
    rows = read_history("h.parquet")
    shutil.rmtree("run/checkpoints")  # as if it had not come to one; what it wrote elsewhere is there
    assert main(["train", "--resume", "run"]) == 0
    again = read_history("h.parquet")
    assert (again.pop("time")[:2] == rows.pop("time")[:2]).all()
    for name, column in rows.items():
        np.testing.assert_array_equal(again[name], column)
    lines = [json.loads(line)["step"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert lines == sorted(set(lines)) and lines[0] > 1000
    # Of a run that went on from a checkpoint of elsewhere nobody knows where it began.
    shutil.rmtree("run/checkpoints")
    told = json.loads(Path("run/run.json").read_text())
    assert told["origin"]["step"] == 1000
    told["origin"] = None
    Path("run/run.json").write_text(json.dumps(told))
    assert main(["train", "--resume", "run"]) == 2
    assert "There is no checkpoint to resume from in" in capsys.readouterr().err
    assert len(read_history("h.parquet")["step"]) == len(again["step"])


def test_steps_that_the_history_has_count(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write("h.parquet")
    assert main(["train", "ppo", *COMMON, "--run-dir", "run", "--max-steps", "1000"]) == 2
    assert (
        "'h.parquet' is continued, and it has 1000 steps already. Received: --max-steps 1000."
        in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "h.csv",
            "--history-checkpoint must be a path that ends with .parquet. Received: "
            "--history-checkpoint 'h.csv'.",
        ),
        (
            "file/h.parquet",
            "--history-checkpoint must be in a folder: 'file' is a file. Received: "
            "--history-checkpoint 'file/h.parquet'.",
        ),
        (
            "file.parquet",
            "Received: --history-checkpoint 'file.parquet'. Give another path: operant makes a folder",
        ),
    ],
)
def test_a_history_that_is_refused_leaves_no_run_behind(path, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write("h.parquet")
    next((tmp_path / "h.parquet").iterdir()).rename("file.parquet")  # rows that can be read, not continued
    (tmp_path / "file").write_text("text")
    command = [*COMMON[:-1], path, "--run-dir", "run", "--max-steps", "2000"]
    assert main(["train", "ppo", *command]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    of_python = message.replace("--history-checkpoint '", "history_checkpoint='")
    of_python = of_python.replace("--history-checkpoint", "history_checkpoint")
    with pytest.raises(SpecError, match=re.escape(of_python)):
        PPO("CartPole-v1", history_checkpoint=path)


def test_fit_counts_on_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("h.parquet")
    agent = PPO(
        [gymnasium.make("CartPole-v1")],
        n_steps=8,
        mini_batches=2,
        history_checkpoint="h.parquet",
        quiet=True,
        seed=0,
        model=[{"type": "dense", "size": 8}],
    )
    agent.fit(max_steps=1100)
    steps = agent.steps
    assert 1100 <= steps < 1120 and agent.games > 2 and agent.best_reward >= 60.0
    agent.fit(max_steps=1200)
    assert 1150 <= agent.steps < 1220
    rows = read_history("h.parquet")
    assert (np.diff(rows["step"]) >= 0).all() and len(rows["step"]) == agent.games
    agent.close()


@pytest.mark.slow
def test_a_history_that_another_run_writes_to_is_refused(tmp_path, monkeypatch, capsys):
    """Each would overwrite the rows of the other. Its own runs go on, one after the other."""
    monkeypatch.chdir(tmp_path)
    command = ["train", "ppo", *COMMON, "--quiet", "--run-dir", "run", "--max-steps"]
    agent = PPO("jax:CartPole-v1", n_steps=8, history_checkpoint="h.parquet", quiet=True, run_dir="fitted")
    with history_held("h.parquet"):
        assert main([*command, "64"]) == 2
        assert "Another run writes to the history 'h.parquet'" in capsys.readouterr().err
        with pytest.raises(UsageError, match="Another run writes to the history"):
            agent.fit(max_steps=64)
    assert not any(tmp_path.iterdir())  # nothing was written
    assert main([*command, "64"]) == 0
    with history_held("h.parquet"):
        assert main(["train", "--resume", "run", "--max-steps", "128"]) == 2
    assert "Another run writes to the history 'h.parquet'" in capsys.readouterr().err
    assert main(["train", "--resume", "run", "--max-steps", "128"]) == 0
    began = int(read_history("h.parquet")["step"][-1])
    while_it_trains = []
    agent.fit(
        max_steps=began + 64, callback=lambda agent, record: while_it_trains.append(_refused("h.parquet"))
    )
    agent.fit(max_steps=began + 128)
    assert json.loads(Path("fitted/run.json").read_text())["origin"]["step"] == began
    other = PPO("jax:CartPole-v1", n_steps=8, history_checkpoint="h.parquet", quiet=True)
    other.fit(max_steps=began + 256)
    rows = len(read_history("h.parquet")["step"])
    with pytest.raises(UsageError, match="another run has continued it"):
        agent.fit(max_steps=began + 512)
    assert len(read_history("h.parquet")["step"]) == rows
    other.fit(max_steps=began + 512)
    agent.close()
    other.close()
    assert agent._progress.origin.step == began and while_it_trains and all(while_it_trains)


@pytest.mark.slow
def test_a_run_whose_own_history_another_has_continued_is_not_resumed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["train", "ppo", *COMMON[:-2], "--quiet", "--max-steps"]
    assert main([*command, "300", "--run-dir", "first"]) == 0
    assert main([*command, "900", "--run-dir", "b", "--history-checkpoint", "first/history.parquet"]) == 0
    rows = len(read_history("first/history.parquet")["step"])
    assert main(["train", "--resume", "first", "--max-steps", "600"]) == 2
    assert "another run has continued it" in capsys.readouterr().err
    assert len(read_history("first/history.parquet")["step"]) == rows
    with held(Path("first").absolute()):  # as while it trains
        assert main(["train", "--resume", "b", "--max-steps", "1000"]) == 2
        assert "Another run writes to the history 'first/history.parquet'" in capsys.readouterr().err
    assert main(["train", "--resume", "b", "--max-steps", "1000"]) == 0
    rows = len(read_history("first/history.parquet")["step"])
    options = {"n_envs": 2, "n_steps": 8, "mini_batches": 2, "ppo_epochs": 1, "quiet": True}
    model = [{"type": "dense", "size": 8}]
    agent = PPO("jax:CartPole-v1", run_dir="first", resume=True, model=model, **options)
    with pytest.raises(UsageError, match="another run has continued it"):
        agent.fit(max_steps=600)
    agent.close()
    assert len(read_history("first/history.parquet")["step"]) == rows


@pytest.mark.slow
def test_rows_beyond_the_last_checkpoint_of_a_second_fit_are_the_run_s_own(tmp_path, monkeypatch):
    """As where its process is killed before it wrote another."""
    monkeypatch.chdir(tmp_path)
    options = {"n_envs": 2, "n_steps": 8, "mini_batches": 2, "ppo_epochs": 1, "quiet": True}
    options |= {"model": [{"type": "dense", "size": 8}], "run_dir": "run"}
    agent = PPO("jax:CartPole-v1", **options)
    agent.fit(max_steps=320)
    ended = checkpoint.latest("run/checkpoints")
    agent.fit(max_steps=640)
    agent.close()
    for later in {*Path("run/checkpoints").glob("step-*")} - {Path(ended)}:
        shutil.rmtree(later)
    agent = PPO("jax:CartPole-v1", **options, resume=True)
    agent.fit(max_steps=640)
    assert agent.steps >= 640 - 2 * 20
    agent.close()


@pytest.mark.slow
def test_a_run_s_own_history_may_be_named_through_a_link(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("real").mkdir()
    Path("link").symlink_to("real")
    command = ["train", "ppo", *COMMON[:-2], "--quiet", "--history-checkpoint", "link/a/history.parquet"]
    assert main([*command, "--run-dir", "real/a", "--max-steps", "64"]) == 0
    assert main(["train", "--resume", "link/a", "--max-steps", "128"]) == 0


def _refused(path):
    try:
        with history_held(path):
            return False
    except UsageError:
        return True


def test_a_history_where_nothing_can_be_written_or_held(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mkdir = Path.mkdir

    def refuse(self, *args, **options):
        if self.suffix:
            raise OSError(30, "Read-only file system", str(self))
        mkdir(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        assert main(["train", "ppo", *COMMON, "--quiet", "--run-dir", "run", "--max-steps", "64"]) == 1
    assert capsys.readouterr().err == "operant: Read-only file system: 'h.parquet'\n"
    assert not any(tmp_path.iterdir())

    def unknown(*args):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", unknown)
    with pytest.warns(RuntimeWarning, match="without locks"), history_held("h.parquet"):
        write("h.parquet")
    assert len(read_history("h.parquet")["step"]) == 2


def test_the_end_of_a_history(tmp_path):
    assert end_of(tmp_path / "none.parquet") == Origin()
    (tmp_path / "empty.parquet").mkdir()
    assert end_of(tmp_path / "empty.parquet") == Origin()
    write(tmp_path / "h.parquet", best=-np.inf)
    assert end_of(tmp_path / "h.parquet") == Origin(1000, 5.0, 2, None)


@pytest.mark.parametrize("through_json", [False, True])
def test_a_score_knows_its_best_and_what_is_worth_keeping(through_json):
    score = RollingScore(2)
    assert not score.improved()
    score.add([4.0], [1])
    assert score.improved() and not score.improved()
    for reward in (10.0, 0.0):
        score.add([reward], [1])
    assert (score.mean, score.best) == (5.0, 7.0)
    if through_json:
        saved, score = json.loads(json.dumps(score.to_dict())), RollingScore(2)
        score.restore(saved)
    assert score.best == 7.0 and score.improved()  # better than 4, when it was last kept
    score.go_on(10, 20.0)
    score.add([30.0], [1])
    assert (score.episodes, score.best) == (11, 20.0) and not score.improved()


def test_a_score_that_is_restored_forgets_the_episodes_that_it_had():
    score, other = RollingScore(4), RollingScore(4)
    for reward in (100.0, 200.0, 300.0):
        score.add([reward], [5], {"a": np.ones(1)})
    other.add([2.0], [1])
    score.restore(other.to_dict())
    assert (list(score.rewards), list(score.lengths), list(score.infos)) == ([2.0], [1], [])
    for _ in range(5):
        score.add([4.0], [1])
    assert list(score.rewards) == [4.0] * 4 and len(score.infos) == 4


@pytest.mark.parametrize("through_json", [False, True])
def test_a_lucky_first_episode_does_not_keep_its_policy_for_ever(through_json):
    score = RollingScore(3)
    score.add([100.0], [1])
    assert score.improved()
    for reward in (1.0, 2.0):
        score.add([reward], [1])
        improved = score.improved()
    assert improved and score.full  # 34.3 over three episodes, where one had 100
    if through_json:
        saved, score = json.loads(json.dumps(score.to_dict())), RollingScore(3)
        score.restore(saved)
    for reward, better in ((3.0, False), (40.0, False), (70.0, True)):
        score.add([reward], [1])
        assert score.improved() == better
    later = RollingScore(3)
    later.go_on(10, 5.0)  # a best of full windows
    for reward, better in ((100.0, False), (1.0, False), (2.0, True)):
        later.add([reward], [1])
        assert later.improved() == better
