"""Reports as a file of lines, and what callbacks add to them."""

from __future__ import annotations

import io
import json
import math
import re

import gymnasium
import numpy as np
import pytest

import operant
from operant import checkpoint
from operant.cli import main
from operant.errors import EnvError, SpecError
from operant.tracking import LoggerGroup, MetricsFile, Record

NET = [{"type": "dense", "size": 8}]
SMALL = {"n_steps": 16, "mini_batches": 2, "ppo_epochs": 1, "quiet": True, "seed": 1, "n_envs": 2}


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def rows(path):
    """Return the lines of a file, each of which must be JSON by the letter."""
    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path, steps, **options):
    logger = MetricsFile(path, **options)
    for step in steps:
        logger.record(Record(step, step / 10, {"loss/value": float(step)}))
    logger.close()


def test_a_line_for_each_record(tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    logger = MetricsFile(path)
    logger.record(Record(240, 1.5, {"episode/reward_mean": np.float32(22.5), "loss/policy": math.nan}))
    # On the disk at once, for whoever reads it or dies.
    expected = {"step": 240, "time": 1.5, "episode/reward_mean": 22.5, "loss/policy": None}
    assert rows(path) == [expected]
    logger.record(Record(480, 2.0, {"episode/reward_best": math.inf, "mine/ä": -math.inf}))
    logger.message("not for the file")
    logger.episodes([])
    logger.close()
    assert rows(path) == [
        expected,
        {"step": 480, "time": 2.0, "episode/reward_best": None, "mine/ä": None},
    ]


def test_pandas_reads_it(tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is no dependency")
    logger = MetricsFile(tmp_path / "metrics.jsonl")
    logger.record(Record(1, 0.5, {"loss/value": 1.0, "loss/policy": math.nan}))
    logger.record(Record(2, 1.0, {"loss/value": 2.0, "mine/score": 3.0}))
    logger.close()
    table = pandas.read_json(tmp_path / "metrics.jsonl", lines=True)
    assert list(table.columns) == ["step", "time", "loss/value", "loss/policy", "mine/score"]
    assert table["step"].tolist() == [1, 2] and table["time"].tolist() == [0.5, 1.0]
    assert table["loss/policy"].isna().all() and table["mine/score"].isna().tolist() == [True, False]


def test_a_file_is_continued_and_drops_what_is_written_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [10, 20, 20, 30])
    write(path, [40])
    assert [row["step"] for row in rows(path)] == [10, 20, 20, 30, 40]
    write(path, [30], resume_at_step=20)
    assert [row["step"] for row in rows(path)] == [10, 20, 20, 30]
    write(path, [5], resume_at_step=0)
    assert [row["step"] for row in rows(path)] == [5]


@pytest.mark.parametrize("rest", [b'{"step": 30, "ti', b'{"step": 30}', b"\0\0\0\0\n", b"7\n", b'{"a": 1}\n'])
def test_what_a_killed_process_or_machine_left_of_a_line_is_dropped(tmp_path, rest):
    path = tmp_path / "metrics.jsonl"
    write(path, [10, 20])
    with open(path, "ab") as file:
        file.write(rest)
    write(path, [40])
    assert [row["step"] for row in rows(path)] == [10, 20, 40]


@pytest.mark.parametrize("damage", [b"\0garbage\n", b"\n", b"7\n"])
def test_lines_behind_a_damaged_one_stay(tmp_path, damage):
    path = tmp_path / "metrics.jsonl"
    write(path, [10, 20, 30, 40])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], damage, damage, *lines[2:], b"\0\0\n"]))
    write(path, [], resume_at_step=30)
    assert path.read_bytes() == b"".join([lines[0], damage, damage, lines[2]])


def test_what_a_full_disk_did_not_take_follows(tmp_path, monkeypatch):
    room = [25]

    class Disk(io.FileIO):
        def write(self, data):
            size = min(len(data), room[0])
            if not size:
                raise OSError(28, "No space left on device")
            room[0] -= size
            return super().write(bytes(data[:size]))

    monkeypatch.setattr(io, "FileIO", Disk)
    path = tmp_path / "metrics.jsonl"
    group = LoggerGroup([MetricsFile(path)])
    with pytest.warns(RuntimeWarning, match="MetricsFile failed, training goes on: OSError"):
        group.record(Record(10, 1.0, {"a": 1.0}))
    group.record(Record(20, 2.0, {"a": 2.0}))
    room[0] = 10_000
    group.close()
    assert [row["a"] for row in rows(path)] == [1.0, 2.0]


def test_a_folder_in_its_place_is_named(tmp_path):
    with pytest.raises(SpecError, match="is no file, so reports cannot be added"):
        MetricsFile(tmp_path)


def test_a_run_writes_its_reports_and_goes_on_with_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["train", "random", "--env", "CartPole-v1", "--quiet", "--log-frequency", "5", "--seed", "1"]
    assert main([*command, "--max-steps", "2000", "--run-dir", "run"]) == 0
    path = tmp_path / "run" / "metrics.jsonl"
    before = rows(path)
    assert len(before) > 2 and before[-1]["step"] >= 2000
    assert {"episode/reward_mean", "episode/count", "time/steps_per_second"} <= before[-1].keys()
    # What was reported after the checkpoint is dropped, and written again.
    MetricsFile(path).record(Record(2_100, 9.0, {"episode/count": -1.0}))
    assert main(["train", "--resume", "run", "--max-steps", "4000", "--quiet"]) == 0
    after = rows(path)
    assert after[: len(before)] == before and after[-1]["step"] >= 4000
    assert all(row["episode/count"] > 0 for row in after)
    assert (np.diff([row["step"] for row in after]) >= 0).all()


@pytest.mark.parametrize("middle", [3_000, pytest.param(31_000, marks=pytest.mark.slow)])
def test_a_resumed_run_reports_at_the_same_episodes(tmp_path, monkeypatch, capsys, middle):
    monkeypatch.chdir(tmp_path)
    told = ["--env", "jax:CartPole-v1", "--log-frequency", "300", "--seed", "1"]
    command = ["train", "random", *told, "--run-dir"]
    assert main([*command, "whole", "--max-steps", "60000"]) == 0
    printed = [capsys.readouterr().out]
    assert main([*command, "parts", "--max-steps", str(middle)]) == 0
    assert main(["train", "--resume", "parts", "--max-steps", "60000"]) == 0
    printed.append(capsys.readouterr().out)
    whole, parts = (
        [row["episode/count"] for row in rows(tmp_path / name / "metrics.jsonl")]
        for name in ("whole", "parts")
    )
    own = [count for count in parts if count not in whole]
    assert len(whole) > 4 and len(own) <= 1  # at most where the first part ended
    assert [count for count in parts if count not in own] == whole
    lines = [
        {int(n) for n in re.findall(r"^time: .* episodes: (\d+)", text, re.MULTILINE)} for text in printed
    ]
    assert lines[0] <= lines[1]


def test_a_class_without_a_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    agent = operant.PPO("CartPole-v1", NET, **SMALL)
    agent.fit(max_steps=64)
    agent.close()
    assert list(tmp_path.iterdir()) == []


class Breaks(gymnasium.Wrapper):
    left = 300

    def step(self, action):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("out of order")
        return self.env.step(action)


def test_a_run_that_fails_reports_what_it_came_to(tmp_path):
    env = Breaks(gymnasium.make("CartPole-v1"))
    settings = {**SMALL, "n_envs": None, "log_frequency": 1_000}
    agent = operant.PPO([env], NET, run_dir=str(tmp_path / "run"), **settings)
    with pytest.raises(EnvError, match="out of order"):
        agent.fit(max_steps=5000)
    (row,) = rows(tmp_path / "run" / "metrics.jsonl")
    saved = checkpoint.Checkpoint(checkpoint.latest(tmp_path / "run" / "checkpoints")).header["training"]
    assert row["step"] == saved["step"] and row["episode/count"] == agent.games > 0
    assert "loss/policy" in row
