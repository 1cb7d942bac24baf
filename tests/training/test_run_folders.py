"""The folder of a run: its name, who holds it, and which checkpoints it keeps."""

import datetime
import errno
import os
import threading
import types
from pathlib import Path

import numpy as np
import pytest
from tests.execution.test_agent import NET

from operant import checkpoint
from operant.checkpoint import durable
from operant.cli import main
from operant.errors import UsageError
from operant.spec.run import RunConfig
from operant.tracking.tensorboard import PREFIX
from operant.training.loop import TrainingLoop
from operant.training.run_dir import claimed, held, new_directory
from operant.training.train import ExperimentConfig, resumed, train


@pytest.mark.slow
def test_checkpoints_every_so_many_steps_and_how_many_are_kept(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    told = {"env": "jax:CartPole-v1", "n_envs": 2, "seed": 1, "quiet": True, "save_frequency": 1000}

    def steps(name, **own):
        train(
            ExperimentConfig(
                "a2c",
                {"model": NET},
                RunConfig.from_dict({**told, "run_dir": name, "max_steps": 3500, **own}),
            )
        )
        return [
            int(path.name.removeprefix("step-"))
            for path in checkpoint.list_checkpoints(f"{name}/checkpoints")
        ]

    found = steps("all", keep_checkpoints=None)
    assert [step // 1000 for step in found] == [1, 2, 3, 3] and all(step % 1000 < 20 for step in found[:3])
    assert steps("two", keep_checkpoints=2) == found[2:]
    assert steps("three") == found[1:]
    train(resumed("two", {"max_steps": 4500, "keep_checkpoints": None}))
    assert [path.name for path in checkpoint.list_checkpoints("two/checkpoints")][:2] == [
        f"step-{s:012d}" for s in found[2:]
    ]
    assert len(checkpoint.list_checkpoints("two/checkpoints")) == 4


def test_a_run_is_not_resumed_while_a_process_trains_in_it(tmp_path):
    told = {"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True, "run_dir": str(tmp_path / "run")}
    train(ExperimentConfig("a2c", {"model": NET}, RunConfig.from_dict(told)))
    with held(tmp_path / "run"), pytest.raises(UsageError, match="Another process trains in"):
        train(resumed(tmp_path / "run", {"max_steps": 128}))
    assert train(resumed(tmp_path / "run", {"max_steps": 128})).outcome.step > 64


def test_a_process_writes_to_a_folder_that_it_holds(tmp_path):
    """As weights beside a run, or what a callback saves: it waited for its own lock, for ever."""
    with held(tmp_path):
        writer = threading.Thread(
            target=lambda: checkpoint.save(tmp_path, {"x": np.ones(3)}, {}, name="step-1"), daemon=True
        )
        writer.start()
        writer.join(10.0)
        assert not writer.is_alive()
        with pytest.raises(UsageError, match="Another process trains in"), held(tmp_path):
            pass
    checkpoint.save(tmp_path, {"x": np.ones(3)}, {}, name="step-2")
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == ["step-1", "step-2"]
    with held(tmp_path):
        pass


def test_a_file_system_without_locks_is_no_obstacle(monkeypatch, tmp_path):
    def without_locks(*args):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", without_locks)
    with pytest.warns(RuntimeWarning, match="is on a file system without locks"), held(tmp_path):
        checkpoint.save(tmp_path, {"x": np.ones(3)}, {}, name="step-1")
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_two_runs_at_once_do_not_share_a_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run = RunConfig.from_dict({"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True})
    with claimed(run, "a2c") as one, claimed(run, "a2c") as other:
        assert one != other and one.is_dir() and other.is_dir()
    assert not (tmp_path / "runs").exists()  # nothing was written
    named = run.replace(run_dir="here")
    with claimed(named, "a2c"), pytest.raises(UsageError, match="Another process trains in 'here'"):
        train(ExperimentConfig("a2c", {"model": NET}, named))
    assert train(ExperimentConfig("a2c", {"model": NET}, named)).outcome.step >= 60
    assert not (tmp_path / "here" / ".lock").exists()


def test_two_runs_that_begin_at_once_share_no_folder_even_without_locks(monkeypatch, tmp_path):
    """The second looks for a free folder before the first has made its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    run = RunConfig.from_dict({"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True})
    with claimed(run, "a2c") as one:
        names = iter([one, one.with_name("other")])
        monkeypatch.setattr("operant.training.run_dir.new_directory", lambda *_: next(names))
        with claimed(run, "a2c") as other:
            assert other.name == "other"


def test_runs_that_begin_in_one_second_are_numbered(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    clock = types.SimpleNamespace(now=lambda: datetime.datetime(2026, 1, 2))
    monkeypatch.setattr("operant.training.run_dir.datetime", types.SimpleNamespace(datetime=clock))
    run = RunConfig.from_dict({"env": "my_games:Pong-v0", "max_steps": 64})
    for number in ("", "_2", "_3"):
        directory = new_directory(run, "a2c")
        assert directory == Path(f"runs/a2c-my_games-Pong-v0-20260102-000000{number}")
        directory.mkdir(parents=True)


@pytest.mark.slow
def test_the_lock_of_a_process_that_died_keeps_nobody_out(tmp_path):
    lock = tmp_path / "run" / ".lock"
    options = {"env": "jax:CartPole-v1", "max_steps": 64, "quiet": True, "run_dir": str(tmp_path / "run")}
    run = RunConfig.from_dict(options)
    (lock.parent / "seed-1").mkdir(parents=True)
    for path in (lock, lock.parent / "seed-1" / ".lock", lock.parent / ".tmp-01ab-run.json"):
        path.touch()  # and it died before it wrote what its run is, or in the midst of it
    assert train(ExperimentConfig("a2c", {"model": NET}, run)).outcome.step >= 60
    assert not lock.exists() and not list(lock.parent.glob(".tmp-*"))
    lock.touch()  # it died later
    train(resumed(lock.parent, {"max_steps": 128}))
    assert not lock.exists()


def test_a_lock_file_that_its_holder_removes_is_held_by_nobody(tmp_path, monkeypatch):
    """Whoever opened it before would hold a file that nobody else sees."""
    opened, removed = os.open, []

    def late(path, *args):
        descriptor = opened(path, *args)
        if not removed:
            removed.append(os.unlink(path))
        return descriptor

    monkeypatch.setattr(os, "open", late)
    with held(tmp_path), pytest.raises(UsageError, match="Another process trains in"), held(tmp_path):
        pass
    assert removed


@pytest.mark.parametrize("gone", [["run.json"], ["run.json", f"{PREFIX}*"]])
@pytest.mark.slow
def test_what_was_removed_meanwhile_is_told(gone, tmp_path, capsys, monkeypatch):
    loop = TrainingLoop.loop

    def looped(self):
        outcome = loop(self)
        for name in gone:
            for path in (tmp_path / "run").glob(name):
                path.unlink()
        return outcome

    monkeypatch.setattr(TrainingLoop, "loop", looped)
    options = ["--env", "jax:CartPole-v1", "--n-steps", "16", "--max-steps", "40"]
    assert main(["train", "ppo", *options, "--run-dir", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    assert (
        f"{' and '.join(gone)} are missing in {tmp_path / 'run'}: removed meanwhile. Without run.json" in told
    )
    assert "Everything was written" not in told


def test_a_full_disk_names_the_file(tmp_path):
    with pytest.raises(OSError, match="No space left") as caught, durable.replaced(tmp_path / "x.npz"):
        raise OSError(28, "No space left on device")
    assert caught.value.filename == str(tmp_path / "x.npz") and not list(tmp_path.iterdir())


def test_a_link_that_leads_nowhere_is_no_new_folder(tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    run = RunConfig(env="CartPole-v1", max_steps=8, run_dir=str(tmp_path / "link"))
    with pytest.raises(UsageError, match="run_dir must be a new or empty folder"), claimed(run, "ppo"):
        pass
