"""A program of an algorithm class that is started again: `resume=True`, `load`, and what a failure leaves."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from operant import A2C, checkpoint
from operant.cli import main
from operant.errors import CheckpointError, SpecError, UsageError
from operant.tracking import read_history

pytestmark = pytest.mark.slow
NET = [{"type": "dense", "size": 8}]
SMALL = {"n_envs": 2, "n_steps": 8, "model": NET, "quiet": True, "seed": 1}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def fitted(steps, env="jax:CartPole-v1", **options):
    with A2C(env, **{**SMALL, **options}) as agent:
        agent.fit(max_steps=steps)
        return agent.steps


def test_what_is_not_the_run_s_outlives_a_failure():
    agent = A2C("CartPole-v1", run_dir="run", **SMALL)
    Path("run/src").mkdir(parents=True)
    Path("run/src/mine.py").write_text("1")

    def fail(agent, record):
        raise KeyError("mine")

    with pytest.raises(KeyError):
        agent.fit(max_steps=100, callback=fail, callback_timestep_frequency=1)
    agent.close()
    assert [str(path) for path in Path("run").rglob("*")] == ["run/src", "run/src/mine.py"]


def test_seeds_that_fail_before_they_learn_leave_nothing(monkeypatch):
    def fail(*_):
        raise RuntimeError("no")

    monkeypatch.setattr("operant.training.multi_seed.MultiSeedRunner.advance", fail)
    words = ["train", "a2c", "--env", "jax:CartPole-v1", "--n-seeds", "2", "--max-steps", "100", "--quiet"]
    with pytest.raises(RuntimeError):
        main([*words, "--run-dir", "run"])
    assert not Path("run").exists()


def test_a_run_of_whose_checkpoints_none_can_be_read_is_left_alone(capsys):
    fitted(300, run_dir="run")
    rows = len(read_history("run/history.parquet")["step"])
    for path in Path("run/checkpoints").rglob("*"):
        if path.is_file() and path.name != checkpoint.store.MANIFEST:
            path.write_bytes(path.read_bytes()[:-10])
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert main(["train", "--resume", "run", "--max-steps", "600"]) == 2
    assert "can be read. Put a whole one there, or move these elsewhere" in capsys.readouterr().err
    assert len(read_history("run/history.parquet")["step"]) == rows


def test_a_program_with_nothing_to_do_does_not_give_up_its_history():
    for _ in range(2):
        fitted(300, run_dir="run", resume=True)
    fitted(600, history_checkpoint="run/history.parquet")
    rows = len(read_history("run/history.parquet")["step"])
    with pytest.raises(UsageError, match="another run has continued it"):
        fitted(400, run_dir="run", resume=True)
    assert len(read_history("run/history.parquet")["step"]) == rows


def test_an_earlier_state_is_loaded_whole():
    with A2C("jax:CartPole-v1", **SMALL) as agent:
        agent.save("begin")
        agent.fit(max_steps=400)
        assert agent.games and agent.steps
        agent.load("begin")
        assert (agent.games, agent.steps) == (0, 0)


def test_a_run_that_died_early_begins_where_its_history_did():
    fitted(300, history_checkpoint="h.parquet", run_dir="run")
    assert read_history("h.parquet")["step"][-1] > 0
    shutil.rmtree("run/checkpoints")
    fitted(400, history_checkpoint="h.parquet", run_dir="run", resume=True)
    saved = checkpoint.Checkpoint(checkpoint.latest("run/checkpoints"))
    assert saved.header["training"]["origin"]["step"] == 0
    assert saved.header["training"]["rows"] >= 400  # all of them trained


def test_another_number_is_told_each_time():
    fitted(100, run_dir="run", lr=1e-3)
    for steps in (200, 300):
        with pytest.warns(
            RuntimeWarning, match=r"lr.*Numbers used in updates, such as lr, are the checkpoint"
        ):
            fitted(steps, run_dir="run", lr=1e-4, resume=True)
    saved = checkpoint.Checkpoint(checkpoint.latest("run/checkpoints"))
    assert saved.header["specification"]["agent"]["lr"] == 1e-3


def test_a_number_does_not_take_a_schedule_s_place():
    """What is saved of a schedule is a factor, 1: taken as the learning rate, it broke what was learnt."""
    schedule = {"type": "linear", "start": 3e-4, "end": 0.0, "steps": 1000}
    for folder, lr in {"number": 7e-4, "schedule": schedule}.items():
        fitted(100, run_dir=folder, lr=lr)
    for folder, lr in {"number": schedule, "schedule": 7e-4}.items():
        with A2C("jax:CartPole-v1", lr=lr, **SMALL) as agent:
            with pytest.raises(CheckpointError, match=r"was saved with lr=.*, and goes on with it"):
                agent.load(folder)
            assert agent.steps == 0
            agent.fit(max_steps=100)


def test_options_are_not_set_and_say_what_is_in_force():
    with A2C("jax:CartPole-v1", lr=1e-3, **SMALL) as agent:
        agent.fit(max_steps=100)
        agent.save("saved")
        with pytest.raises(AttributeError, match=r"lr is given when the object is made: A2C\(..., lr=1\)"):
            agent.lr = 1
        agent.mine = agent.env = 1  # a subclass may have its own
    with A2C("jax:CartPole-v1", lr=1e-4, **SMALL) as agent:
        with pytest.warns(RuntimeWarning, match="Numbers used in updates"):
            agent.load("saved")
        assert agent.lr == 1e-3


def test_a_run_that_was_quiet_speaks_when_it_is_resumed(capsys):
    fitted(100, run_dir="run")
    capsys.readouterr()
    assert main(["train", "--resume", "run", "--max-steps", "200"]) == 0
    assert "Continue:" in capsys.readouterr().out


def test_the_command_to_continue_goes_on_from_a_rollout_longer_than_the_run(capsys):
    begin = "train a2c --env jax:CartPole-v1 --n-steps 64 --max-steps 10 --run-dir run --model [4]"
    assert main(shlex.split(begin)) == 0
    command = capsys.readouterr().out.partition("Continue:")[2].split()
    assert command[:2] == ["operant", "train"]
    assert main(command[1:]) == 0


def test_the_weights_that_it_began_from_may_be_gone():
    fitted(100, run_dir="a", model=[{"type": "dense", "size": 5}])
    usual = {"model": None, "weights": ["a"], "run_dir": "b"}
    fitted(100, **usual)
    shutil.rmtree("a")
    assert fitted(200, resume=True, **usual) >= 180


def test_a_state_that_is_saved_within_a_block_counts_its_own_steps():
    with A2C("CartPole-v1", **{**SMALL, "n_steps": 64}) as agent:
        places = []

        def save(agent, record):
            if agent.steps > 200 and not places:
                places.append(agent.save("saved"))

        agent.fit(max_steps=400, callback=save, callback_timestep_frequency=8)
    with A2C("CartPole-v1", **{**SMALL, "n_steps": 64}) as agent:
        agent.load(places[0])
        assert agent.steps == int(agent.session.driver.train.counters.timesteps) < 200


def test_weights_stay_out_of_the_folder_of_the_best_evaluation(capsys):
    words = ["train", "a2c", "--env", "jax:CartPole-v1", "--max-steps", "300", "--run-dir", "run", "--quiet"]
    assert main([*words, "--checkpoints", "run/best", "--eval-frequency", "100"]) == 2
    assert "paths other than 'run/best', which is written too" in capsys.readouterr().err


def test_a_network_s_own_file_beside_weights_is_not_what_they_are_of(capsys):
    Path("net.json").write_text(json.dumps(NET))
    words = ["train", "a2c", "--env", "jax:CartPole-v1", "--max-steps", "300", "--quiet"]
    assert main([*words, "--model", "net.json", "--checkpoints", "net.npz"]) == 0
    assert main([*words, "--weights", "net.npz"]) == 0


def test_a_run_without_a_checkpoint_that_was_loaded_elsewhere_is_not_begun_anew():
    fitted(100, run_dir="a")
    with A2C("jax:CartPole-v1", **SMALL, run_dir="b", history_checkpoint="h.parquet") as agent:
        agent.load("a")
        agent.fit(max_steps=200)
    shutil.rmtree("b/checkpoints")
    with pytest.raises((SpecError, CheckpointError), match="There is no checkpoint to resume from"):
        fitted(300, run_dir="b", history_checkpoint="h.parquet", resume=True)
