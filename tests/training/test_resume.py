"""A run that is killed and resumed ends where the uninterrupted one ends, bit for bit."""

import gc
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from tests.training.small_runs import opened

from operant import Agent, checkpoint
from operant.agents.base.agent_spec import parse_agent
from operant.cli import main
from operant.errors import SpecError
from operant.spec.run import RunConfig
from operant.tracking import read_history
from operant.tracking.runs import read
from operant.training.reproduce import reproduce
from operant.training.train import finished, resumed

NET = ["--model", '[{"type": "dense", "size": 16}]']
RUNS = {
    "ppo": ["--n-envs", "4", "--n-steps", "32", "--mini-batches", "2", "--max-steps", "65536"],
    "dqn": [
        "--n-envs",
        "2",
        "--buffer-max-size",
        "2000",
        "--buffer-initial-size",
        "500",
        "--prioritized",
        "--max-steps",
        "32768",
    ],
}


def leaves(directory):
    tree, header = checkpoint.load(checkpoint.latest(directory / "checkpoints"))
    data = {}
    for name, leaf in tree.items():
        is_key = hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        data[name] = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
    return data, header


@pytest.mark.slow
@pytest.mark.parametrize("agent", [pytest.param("ppo", marks=pytest.mark.exhaustive), "dqn"])
def test_kill_and_resume_equals_going_on(agent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [
        "train",
        agent,
        "--env",
        "jax:CartPole-v1",
        "--seed",
        "3",
        "--quiet",
        "--save-seconds",
        "0",
        *RUNS[agent],
        *NET,
    ]
    assert main([*command, "--run-dir", "whole"]) == 0
    process = subprocess.Popen([sys.executable, "-m", "operant", *command, "--run-dir", "killed"])
    deadline = time.monotonic() + 120
    while not checkpoint.list_checkpoints("killed/checkpoints"):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = checkpoint.Checkpoint(checkpoint.latest("killed/checkpoints")).header["training"]["step"]
    assert main(["train", "--resume", "killed", "--quiet"]) == 0
    (whole, _), (killed, _) = leaves(tmp_path / "whole"), leaves(tmp_path / "killed")
    assert whole.keys() == killed.keys()
    for name in whole:
        np.testing.assert_array_equal(whole[name], killed[name], err_msg=name)
    a, b = (read_history(tmp_path / run / "history.parquet") for run in ("whole", "killed"))
    for column in ("episode_reward", "mean_reward", "step"):
        np.testing.assert_array_equal(a[column], b[column])
    assert before < Agent.load(directory="killed").timesteps


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["ppo", pytest.param("dqn", marks=pytest.mark.exhaustive)])
def test_resume_on_gymnasium_goes_on_from_the_same_state(agent, tmp_path, monkeypatch):
    """The environments restart; the agent's state is the saved one, and the run reaches its end."""
    monkeypatch.chdir(tmp_path)
    command = ["train", agent, "--env", "CartPole-v1", "--seed", "3", "--quiet", *RUNS[agent], *NET]
    command[command.index("--max-steps") + 1] = "2000"
    assert main([*command, "--run-dir", "run"]) == 0
    saved, header = leaves(tmp_path / "run")
    assert Agent.load(directory="run").timesteps == header["training"]["step"] > 1800
    assert main(["train", "--resume", "run", "--max-steps", "4000", "--quiet"]) == 0
    after, header = leaves(tmp_path / "run")
    assert saved.keys() == after.keys()
    assert header["training"]["step"] > 3700
    history = read_history("run/history.parquet")
    assert (np.diff(history["step"]) >= 0).all()


@pytest.mark.slow
def test_the_history_is_on_the_disk_before_the_checkpoint_that_counts_on_it(tmp_path, monkeypatch):
    """A process killed right after a checkpoint was written must not have lost the episodes before it."""
    monkeypatch.chdir(tmp_path)
    write, seen = checkpoint.save, []

    def save(directory, tree, header, **options):
        if "training" in header:
            episodes = len(read_history("run/history.parquet")["step"])
            seen.append((episodes, header["training"]["score"]["episodes"]))
        return write(directory, tree, header, **options)

    monkeypatch.setattr(checkpoint, "save", save)
    command = ["train", "ppo", "--env", "jax:CartPole-v1", "--seed", "3", "--quiet", "--save-seconds", "0"]
    command += [*RUNS["ppo"], *NET, "--run-dir", "run"]
    command[command.index("--max-steps") + 1] = "2048"
    assert main(command) == 0
    assert len(seen) > 1 and seen[-1][0] > 0
    assert all(written == counted for written, counted in seen)


REPLAYED = {
    "dqn": ["--buffer-max-size", "4000", "--buffer-initial-size", "400", "--prioritized"],
    "acer": ["--buffer-max-size", "4000", "--buffer-initial-size", "400", "--n-steps", "8"],
    "sac": ["--buffer-max-size", "4000", "--buffer-initial-size", "400"],
    "modular": ["--memory", "replay", "--objective", "action_value", "--capacity", "4000", "--start", "400"],
}
WAITING = ("dqn", "sac", "modular")
"""Those that learn nothing but from a memory that is filled; ACER learns from fresh blocks too."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "agent",
    [name if name == "dqn" else pytest.param(name, marks=pytest.mark.exhaustive) for name in REPLAYED],
)
def test_checkpoints_without_the_memory(agent, tmp_path, monkeypatch, capsys):
    """A run that is resumed keeps what it has learnt, fills its memory anew, and then learns on."""
    monkeypatch.chdir(tmp_path)
    env = "jax:Pendulum-v1" if agent == "sac" else "jax:CartPole-v1"
    models = ("actor-model", "critic-model") if agent == "sac" else ("model",)
    command = f"train {agent} --env {env} --seed 3 --n-envs 4 --no-save-memory --max-steps 800".split()
    command += [x for model in models for x in (f"--{model}", NET[1])]
    command += [*REPLAYED[agent], "--run-dir", "run"]
    assert main(command) == 0
    before, header = leaves(tmp_path / "run")
    assert not [name for name in before if ".memory" in name]
    assert header["training"]["memory"] is False

    def learned(saved):
        return {name: x for name, x in saved.items() if ".state" in name and "params" in name}

    with pytest.warns(RuntimeWarning, match="The replay memory starts empty"):
        assert Agent.load(directory="run").timesteps == header["training"]["step"]
    assert main(["reproduce", "run", "--quiet"]) == 0
    assert main(["train", "--resume", "run", "--max-steps", "1000"]) == 0
    assert "The replay memory begins anew" in capsys.readouterr().out
    filling, _ = leaves(tmp_path / "run")
    changed = [k for k, x in learned(before).items() if not np.array_equal(x, filling[k])]
    assert learned(before) and (not changed or agent not in WAITING)
    assert main(["train", "--resume", "run", "--max-steps", "2000", "--save-memory", "--quiet"]) == 0
    after, header = leaves(tmp_path / "run")
    assert [k for k, x in learned(before).items() if not np.array_equal(x, after[k])]
    assert header["training"]["memory"] is True and [name for name in after if ".memory" in name]
    assert Agent.load(directory="run").timesteps == header["training"]["step"]
    assert main(["reproduce", "run", "--quiet"]) == 2
    assert "with an empty replay memory" in capsys.readouterr().err


@pytest.mark.slow
def test_no_two_replay_memories_are_there_at_once(tmp_path, monkeypatch):
    """A device that has room for one could not go on with a run otherwise."""
    monkeypatch.chdir(tmp_path)
    memory = ["--n-envs", "1", "--buffer-max-size", "4003", "--buffer-initial-size", "400"]
    command = ["train", "dqn", "--env", "jax:CartPole-v1", "--seed", "3", *memory, *NET, "--quiet"]
    assert main([*command, "--max-steps", "500", "--run-dir", "run"]) == 0
    read, seen = checkpoint.Checkpoint._take, []

    def take(self, entries):
        gc.collect()
        found = read(self, entries)
        large = [name for name, x in found.items() if hasattr(x, "shape") and 4003 in x.shape]
        seen.append((len(large), len([x for x in jax.live_arrays() if 4003 in x.shape])))
        return found

    monkeypatch.setattr(checkpoint.Checkpoint, "_take", take)
    assert main(["train", "--resume", "run", "--max-steps", "1000", "--quiet"]) == 0
    Agent.load(directory="run")
    Agent.load(directory="run", agent={"type": "dqn"}).save("agent")
    Agent.load(directory="agent")
    assert [here for read, here in seen if read] == [0, 0, 0, 0], seen


@pytest.mark.slow
def test_a_memory_of_the_newest_rows_is_always_saved(tmp_path, monkeypatch):
    """It is no replay memory, and small."""
    monkeypatch.chdir(tmp_path)
    command = [
        "train",
        "vpg",
        "--env",
        "jax:CartPole-v1",
        "--seed",
        "3",
        "--n-envs",
        "4",
        "--max-steps",
        "200",
        *NET,
    ]
    assert main([*command, "--no-save-memory", "--quiet", "--run-dir", "run"]) == 0
    saved, header = leaves(tmp_path / "run")
    assert [name for name in saved if ".memory" in name] and header["training"]["memory"] is True


@pytest.mark.slow
def test_steps_left_out_are_counted_over_the_whole_run(tmp_path, monkeypatch, capsys):
    """With this learning rate every step overflows."""
    monkeypatch.chdir(tmp_path)
    command = [
        "train",
        "ppo",
        "--env",
        "jax:CartPole-v1",
        "--seed",
        "3",
        *RUNS["ppo"],
        *NET,
        "--run-dir",
        "run",
    ]
    command += ["--ppo-epochs", "4", "--lr", "1e38", "--max-steps", "512"]
    with pytest.warns(RuntimeWarning, match=r"gradient step\(s\) were left out"):
        assert main(command) == 0
    totals = [told_as_left_out(capsys)]
    assert main(["train", "--resume", "run", "--max-steps", "1024"]) == 0
    totals.append(told_as_left_out(capsys))
    assert totals[0] < totals[1] == 4 * 2 * Agent.load(directory="run").updates


def told_as_left_out(capsys) -> int:
    told = int(re.search(r", (\d+) gradient step\(s\) left out", capsys.readouterr().out)[1])
    assert leaves(pathlib.Path("run"))[1]["training"]["skipped"] == told
    return told


SHORT = [
    "--env",
    "jax:CartPole-v1",
    "--seed",
    "3",
    "--n-envs",
    "4",
    "--n-steps",
    "16",
    "--mini-batches",
    "2",
    "--quiet",
]


@pytest.mark.slow
def test_numbers_that_updates_use_may_change_from_part_to_part(tmp_path, monkeypatch):
    """The same is learnt as with a schedule that says so."""
    monkeypatch.chdir(tmp_path)
    command = ["train", "ppo", *SHORT, *NET]
    assert main([*command, "--lr", "0.01", "--max-steps", "640", "--run-dir", "parts"]) == 0
    for steps, lr in (("1280", "0.0001"), ("1900", "0.1")):
        resumed = ["train", "--resume", "parts", "--quiet", "--max-steps", steps]
        assert main([*resumed, "--lr", lr, "--gamma", "0.99"]) == 0  # γ is what it was
    assert main(["train", "--resume", "parts", "--quiet", "--max-steps", "2000"]) == 0
    saved = json.loads(Path("parts/run.json").read_text())
    assert saved["agent"]["lr"] == 0.01
    assert [part.get("options") for part in saved["resumed"]] == [{"lr": 0.0001}, {"lr": 0.1}, None]
    begun = [part["step"] + 1 for part in saved["resumed"][:2]]
    pieces = {"type": "piecewise", "start": 0.01, "boundaries": begun, "values": [0.0001, 0.1]}
    assert main([*command, "--lr", json.dumps(pieces), "--max-steps", "2000", "--run-dir", "whole"]) == 0
    (one, _), (other, header) = leaves(Path("whole")), leaves(Path("parts"))
    networks = [name for name in one if "params" in name or "variables" in name]
    assert networks
    for name in networks:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6)
    assert header["specification"]["agent"]["lr"] == 0.1
    assert read([Path("parts")])[0].settings["lr"] == "0.01, then 0.0001, then 0.1"
    with pytest.raises(
        SpecError, match=r"cannot be reproduced: it was resumed at step \d+ with other options: lr\."
    ):
        reproduce("parts")


@pytest.mark.slow
def test_an_end_that_was_damaged_is_reached_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saves = ["--max-steps", "300", "--save-frequency", "100", "--run-dir", "run"]
    assert main(["train", "ppo", *SHORT, *NET, *saves]) == 0
    whole, _ = leaves(tmp_path / "run")
    last = checkpoint.latest("run/checkpoints")
    # Of the right size, so that only reading it tells.
    (last / "arrays.safetensors").write_bytes(bytes((last / "arrays.safetensors").stat().st_size))
    plan = resumed("run", {"max_steps": 300})
    assert plan.run.max_steps == 300 and not finished(plan)
    os.truncate(last / "arrays.safetensors", 100)
    assert resumed("run", {"max_steps": 300}).run.max_steps == 300
    with pytest.warns(RuntimeWarning, match="Checkpoint skipped: .*has 100 bytes"):
        assert main(["train", "--resume", "run"]) == 0
    again, _ = leaves(tmp_path / "run")
    assert checkpoint.latest("run/checkpoints") == last
    for name in whole:
        np.testing.assert_array_equal(whole[name], again[name], err_msg=name)


@pytest.mark.slow
def test_a_number_that_changed_stays_so_where_the_part_came_to_no_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "ppo", *SHORT, *NET, "--max-steps", "300", "--run-dir", "run"]) == 0

    def fail(*_):
        raise RuntimeError("the power fails")

    with monkeypatch.context() as patched:
        patched.setattr("operant.training.loop.TrainingLoop.loop", fail)
        with pytest.raises(RuntimeError, match="power"):
            main(["train", "--resume", "run", "--max-steps", "600", "--lr", "0.25"])
    assert main(["train", "--resume", "run", "--max-steps", "900"]) == 0
    tree, header = checkpoint.load(checkpoint.latest(Path("run/checkpoints")))
    assert header["specification"]["agent"]["lr"] == 0.25
    (hyper,) = (value for name, value in tree.items() if name.endswith("hyper"))
    assert 0.25 in np.asarray(hyper).tolist()


@pytest.mark.parametrize(
    ("agent", "given", "refused"),
    [
        ("ppo", {"lr": 0.25}, None),
        ("ppo", {"separate": True}, "separate"),
        ("ppo", {"advantage_epsilon": 1e-3, "separate": False}, None),
        ("sac", {"temperature": 0.1}, "temperature"),
        ("dqn", {"priority_alpha": 0.1}, "priority_alpha"),
        ("dqn", {"value_min": -5.0}, "value_min"),
    ],
)
def test_what_may_change_when_a_run_is_resumed(agent, given, refused, tmp_path):
    options = {"separate": False} if agent == "ppo" else {}
    env = "jax:Pendulum-v1" if agent == "sac" else "jax:CartPole-v1"
    saved = {
        "agent": parse_agent(agent, **options).to_dict(),
        "run": RunConfig.from_dict({"env": env, "max_steps": 9}).to_dict(),
        "given": False,
    }
    (tmp_path / "run.json").write_text(json.dumps(saved))
    if refused is None:
        assert resumed(tmp_path, given).options == {name: given[name] for name in given if name != "separate"}
    else:
        with pytest.raises(SpecError, match=f"{refused} cannot change when a run is resumed"):
            resumed(tmp_path, given)


@pytest.mark.slow
def test_a_rate_that_plateaus_reduced_is_that_which_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "ppo", *SHORT, *NET, "--lr", "0.25", "--max-steps", "300", "--run-dir", "run"]) == 0

    def reduced(path):
        (hyper,) = (
            np.asarray(x)
            for name, x in checkpoint.load(checkpoint.latest(path))[0].items()
            if name.endswith("hyper")
        )
        return hyper

    session, _ = opened("run")
    session.driver.scale_lr(0.01)
    training = session.training(RunConfig.from_dict({"env": "jax:CartPole-v1", "max_steps": 1, "seed": 3}))
    training.restore(checkpoint.newest("run/checkpoints"))
    session.driver.scale_lr(0.01)
    training.write(Path("run/checkpoints"), keep=None, memory=True)
    assert np.isclose(reduced("run/checkpoints"), 0.0025).any() and 0.25 not in reduced("run/checkpoints")
    assert main(["train", "--resume", "run", "--max-steps", "600"]) == 0
    assert np.isclose(reduced("run/checkpoints"), 0.0025).any()
    assert main(["train", "--resume", "run", "--max-steps", "900", "--lr", "0.25"]) == 0
    assert 0.25 in reduced("run/checkpoints").tolist()


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A run with some episodes, of an agent that learns nothing."""
    folder = tmp_path_factory.mktemp("short") / "run"
    words = ["train", "random", "--env", "jax:CartPole-v1", "--max-steps", "400", "--seed", "1", "--run-dir"]
    assert main([*words, str(folder)]) == 0
    return folder


@pytest.mark.parametrize(
    ("saved", "part"),
    [({"agent": 3}, "agent"), ({"agent": {"type": "random"}, "run": 3}, "run"), ({}, "agent")],
)
@pytest.mark.parametrize("command", [["train", "--resume"], ["play"], ["reproduce"], ["plot"]])
def test_a_file_that_describes_no_run_is_refused(command, saved, part, short, tmp_path, capsys):
    run = shutil.copytree(short, tmp_path / "run")
    (run / "run.json").write_text(json.dumps(saved))
    assert main([*command, str(run)]) == 2
    assert (
        f"run.json' does not describe a run: {part!r} must be an object with a string"
        in capsys.readouterr().err
    )


def test_a_part_of_the_history_that_is_cut_off_is_named_with_what_to_do(short, tmp_path, capsys):
    run = shutil.copytree(short, tmp_path / "run")
    part = run / "history.parquet" / "part-000000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    words = ["train", "--resume", str(run), "--max-steps", "800"]
    assert main(words) == 2
    message = capsys.readouterr().err
    assert f"The history file {part} cannot be read: " in message
    assert message.endswith(". Move it elsewhere to go on without its episodes.\n")
    part.rename(tmp_path / "moved.parquet")
    assert main(words) == 0
    games = checkpoint.Checkpoint(checkpoint.latest(short / "checkpoints")).header["training"]["score"][
        "episodes"
    ]
    told = f"The run's history is not there, and begins anew: its {games} episodes so far are in no row"
    assert told in capsys.readouterr().out
    assert read_history(run / "history.parquet")["step"].min() > 400
    assert main([*words[:-1], "1200"]) == 0
    assert "begins anew" not in capsys.readouterr().out
