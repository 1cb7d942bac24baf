"""A run repeated from its seed: the same bits, and a word where they are not."""

import json
import shutil
import signal

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from operant import checkpoint
from operant.checkpoint import compare
from operant.cli import main
from operant.tracking import EpisodeRecord, History, read_history
from operant.training import reproduce
from operant.training.drivers.device_driver import DeviceDriver
from operant.training.session import weights_digest

COMMAND = [
    "train",
    "ppo",
    "--env",
    "jax:CartPole-v1",
    "--n-envs",
    "2",
    "--n-steps",
    "8",
    "--mini-batches",
    "2",
    "--ppo-epochs",
    "1",
    "--max-steps",
    "512",
    "--quiet",
    "--model",
    '[{"type": "dense", "size": 8}]',
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run without a seed of the user's, which yet is always the same one."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("secrets.randbelow", lambda below: 7)
        assert main([*COMMAND, "--run-dir", "run"]) == 0
    return folder / "run"


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, "run")
    return tmp_path / "run"


def reproduced(capsys, *arguments):
    status = main(["reproduce", "run", "--quiet", *arguments])
    out, err = capsys.readouterr()
    return status, out + err


@pytest.fixture
def known(made, run, monkeypatch):
    """Spares the training of a repetition whose outcome is known: it is that of the run itself."""

    def repeat(record, place, config):
        for part in ("checkpoints", "history.parquet"):
            shutil.copytree(made / part, place / part)
        return record.training["step"]

    monkeypatch.setattr(reproduce, "_repeat", repeat)


def change_history(run, column, row, value):
    part = run / "history.parquet" / "part-000000.parquet"
    table = pq.read_table(part)
    values = table.column(column).to_numpy().copy()
    values[row] = value
    pq.write_table(table.set_column(table.column_names.index(column), column, pa.array(values)), part)


def test_a_run_without_a_seed_is_repeated_bit_by_bit(run, capsys):
    assert json.loads((run / "run.json").read_text())["run"]["seed"] is not None
    before = sorted(path for path in run.rglob("*"))
    status, text = reproduced(capsys, "--run-dir", "again")
    assert status == 0, text
    assert text.startswith("Identical: the ")
    assert "arrays of the checkpoint at step 497" in text and "episodes of the history" in text
    one, other = (read_history(f"{name}/history.parquet") for name in ("run", "again"))
    assert len(one["step"]) > 10
    np.testing.assert_array_equal(one["best_reward"], np.maximum.accumulate(one["mean_reward"]))
    np.testing.assert_array_equal(one["best_reward"], other["best_reward"])
    assert sorted(path for path in run.rglob("*")) == before


def test_a_repetition_that_is_interrupted_says_nothing_of_the_run(run, capsys, monkeypatch):
    advance = DeviceDriver.advance

    def pressed(self, blocks, ahead=0):
        signal.raise_signal(signal.SIGINT)
        return advance(self, blocks)

    monkeypatch.setattr(DeviceDriver, "advance", pressed)
    assert reproduced(capsys) == (130, "operant: interrupted\n")


def test_a_changed_history_is_told(run, known, capsys):
    change_history(run, "episode_reward", 3, 99.0)
    status, text = reproduced(capsys)
    assert status == 1
    assert "Different: 1 differences" in text
    assert "episode_reward of 1 episodes, first of number 4" in text and ": 99.0 then, " in text


def test_an_episode_that_is_missing_is_told(run, known, capsys):
    part = run / "history.parquet" / "part-000000.parquet"
    table = pq.read_table(part)
    pq.write_table(table.slice(0, table.num_rows - 1), part)
    status, text = reproduced(capsys)
    assert (
        status == 1
        and f"the history has {table.num_rows - 1} episodes, its repetition {table.num_rows}" in text
    )
    shutil.rmtree(run / "history.parquet")
    status, text = reproduced(capsys)
    assert status == 0 and "no history: " in text


def test_episodes_that_a_later_run_added_to_the_history_are_not_compared(run, known, capsys):
    """It counts on from the last episode, thus from below the step at which the run ended."""
    last = checkpoint.Checkpoint(checkpoint.latest(run / "checkpoints")).header["training"]["step"]
    before = read_history(run / "history.parquet")
    assert before["step"][-1] < last - 1
    later = History(run / "history.parquet")
    later.episodes([EpisodeRecord(step, 1e3, 9.0, 9, 0, 9.0, 99.0) for step in (last - 1, last + 9)])
    later.close()
    status, text = reproduced(capsys)
    assert status == 0 and f"the {len(before['step'])} episodes of the history" in text, text


def test_other_versions_are_told(run, known, capsys):
    data = json.loads((run / "run.json").read_text())
    data["versions"]["jax"] = "0.9.9"
    data["git"] = {"commit": "abc", "branch": "main", "changes": True}
    (run / "run.json").write_text(json.dumps(data))
    status, text = reproduced(capsys)
    assert status == 0
    assert "Not as it was then: jax 0.9.9, now " in text and "Not as it was then: commit abc, now " in text


@pytest.mark.slow
def test_another_seed_is_told(run, capsys):
    data = json.loads((run / "run.json").read_text())
    data["run"]["seed"] += 1
    (run / "run.json").write_text(json.dumps(data))
    status, text = reproduced(capsys)
    assert status == 1
    assert "differs in" in text and "  and " in text, text


@pytest.mark.slow
def test_a_beginning_is_compared_by_its_history(run, capsys):
    status, text = reproduced(capsys, "--max-steps", "200")
    assert status == 0 and text.startswith("Identical: the ") and "checkpoint" not in text
    status, text = reproduced(capsys, "--max-steps", "1")
    assert status == 2 and "no episode ended up to step" in text


@pytest.mark.slow
def test_a_native_run_that_was_resumed_is_repeated_in_one(run, capsys):
    assert main(["train", "--resume", "run", "--max-steps", "700", "--quiet"]) == 0
    entry = json.loads((run / "run.json").read_text())["resumed"]
    assert [(part["max_steps"], part["step"] > 480) for part in entry] == [(700, True)]
    status, text = reproduced(capsys)
    assert status == 0, text


@pytest.mark.parametrize(
    ("data", "training", "message"),
    [
        (
            {"vector": "in-process", "resumed": [{"step": 40}]},
            {},
            "resumed at step 40, where its environments began new",
        ),
        (
            {"resumed": [{"step": 40, "machine": {"device": "1 x NVIDIA H100"}}]},
            {},
            "resumed on another kind of device (",
        ),
        (
            {"resumed": [{"step": 40}, {"step": 60, "n_devices": 2}]},
            {},
            "resumed at step 60 on another number of devices",
        ),
        (
            {"weights": {"none.tf": "x"}},
            {},
            "the weights 'none.tf', from which it began, cannot be read: The weights 'none.tf' do not exist",
        ),
        ({"weights": {"empty": "x"}}, {}, "the weights 'empty', from which it began, cannot be read: "),
        ({"weights": {"run": "x"}}, {}, "the weights 'run', from which it began, have been written to since"),
        ({"together": 4}, {}, "trained at once with other seeds (4 in all)"),
        ({}, {"ended": "failed"}, "ended by an environment that failed"),
    ],
)
def test_what_cannot_be_repeated_is_said(run, capsys, data, training, message):
    saved = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**saved, **data}))
    run.with_name("empty").mkdir(exist_ok=True)
    if training:
        tree, header = checkpoint.load(checkpoint.latest("run/checkpoints"))
        header["training"].update(training)
        shutil.rmtree("run/checkpoints")
        checkpoint.save("run/checkpoints", tree, header, name="step-1")
    status, text = reproduced(capsys)
    assert status == 2 and "'run' cannot be reproduced: " in text and message in text


def test_what_happened_after_the_steps_that_are_asked_for_does_not_matter(run, made, capsys, monkeypatch):
    def repeat(record, place, config):
        shutil.copytree(made / "history.parquet", place / "history.parquet")
        return config.max_steps

    monkeypatch.setattr(reproduce, "_repeat", repeat)
    saved = json.loads((run / "run.json").read_text())
    resumed = [{**saved, "step": 300, "n_devices": 2, "options": {"lr": 1.0}, "memory": "anew"}]
    (run / "run.json").write_text(json.dumps({**saved, "vector": "in-process", "resumed": resumed}))
    status, text = reproduced(capsys, "--max-steps", "300")
    assert status == 0 and "up to step 300" in text, text
    status, text = reproduced(capsys, "--max-steps", "301")
    assert status == 2 and "it was resumed at step 300" in text


def test_weights_are_those_of_the_checkpoint_whatever_else_is_written_beside_it(run, capsys):
    saved = json.loads((run / "run.json").read_text())
    digest = weights_digest("run")
    (run / "report.html").touch()
    assert (
        weights_digest("run") == digest == checkpoint.Checkpoint(checkpoint.latest("run/checkpoints")).sha256
    )
    (run / "run.json").write_text(json.dumps({**saved, "weights": {"run": digest}}))
    assert "have been written to since" not in reproduced(capsys, "--max-steps", "1")[1]


def test_no_run_no_checkpoint_and_no_room_are_told(run, capsys):
    assert reproduced(capsys, "--run-dir", "run")[0] == 2
    assert main(["reproduce", "missing"]) == 2
    assert "There is no run in 'missing'" in capsys.readouterr().err
    assert main(["reproduce", "--quiet"]) == 2
    assert "reproduce takes the folder of one run. Received: none." in capsys.readouterr().err
    shutil.rmtree("run/checkpoints")
    assert "it has no checkpoint to compare with" in reproduced(capsys)[1]


def test_bits_are_compared(tmp_path):
    zero = {"a": np.zeros(3, np.float32), "k": jax.random.key(0), "n": 1, "x": np.array([np.nan, 1.0])}
    other = {"a": np.float32([0, -0.5, 0]), "k": jax.random.key(1), "n": 2, "b": None}
    for name, tree in (
        ("zero", zero),
        ("same", zero),
        ("other", other),
        ("minus", {**zero, "a": -zero["a"]}),
    ):
        checkpoint.save(tmp_path, tree, {"of": name}, name=name)
    assert compare.differences(tmp_path / "zero", tmp_path / "same") == []
    assert compare.differences(tmp_path / "zero", tmp_path / "minus") == [
        "['a'] differs in 3 of 3 numbers, by 0 at most"
    ]
    assert sorted(compare.differences(tmp_path / "zero", tmp_path / "other")) == [
        "['a'] differs in 1 of 3 numbers, by 0.5 at most",
        "['b'] is in one of them only",
        "['k'] differs in 1 of 2 numbers",
        "['n'] differs in 1 of 1 numbers",
        "['x'] is in one of them only",
    ]


def test_help(capsys):
    assert main(["reproduce"]) == 0
    assert "--max-steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    "envs", [pytest.param("1", marks=pytest.mark.exhaustive), pytest.param("2", marks=pytest.mark.slow)]
)
def test_a_gymnasium_run_is_repeated(tmp_path, monkeypatch, capsys, envs):
    monkeypatch.chdir(tmp_path)
    command = [
        "train",
        "dqn",
        "--env",
        "CartPole-v1",
        "--n-envs",
        envs,
        "--buffer-max-size",
        "1000",
        "--buffer-initial-size",
        "200",
        "--max-steps",
        "2000",
        "--quiet",
        "--divergence-monitoring-steps",
        "0",
        "--reward-buffer-size",
        "5",
        "--plateau-reduce-patience",
        "2",
        "--early-stop-patience",
        "50",
        "--save-seconds",
        "0",
        "--model",
        '[{"type": "dense", "size": 8}]',
        "--run-dir",
        "run",
    ]
    assert main(command) == 0
    status, text = reproduced(capsys)
    assert status == 0, text
    assert main(["train", "--resume", "run", "--max-steps", "2200", "--quiet"]) == 0
    assert reproduced(capsys)[0] == 2


def test_the_machine_is_looked_at_only_after_the_run(run, monkeypatch):
    """Looking starts JAX's backend, which the repeated run starts as suits it."""
    order = []
    repeat, changes = reproduce._repeat, reproduce._changes
    monkeypatch.setattr(reproduce, "_repeat", lambda *args: (order.append("run"), repeat(*args))[1])
    monkeypatch.setattr(reproduce, "_changes", lambda *args: (order.append("machine"), changes(*args))[1])
    reproduce.reproduce("run")
    assert order == ["run", "machine"]
