"""Loggers of users: what they are told, how they are given, and what is refused."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import operant
from operant.cli import main
from operant.errors import SpecError
from operant.spec.run import RunConfig
from operant.tracking import Console, History, Logger, LoggerGroup, MetricsFile, TensorBoard, WandB
from operant.training.loggers import loggers_of
from operant.training.train import RESUMABLE, resumed

PAGE = Path(__file__).parents[2] / "docs" / "loggers.md"
NAMES = [name for name in vars(Logger) if not name.startswith("_") and name != "must_write"]


class Told(Logger):
    """Keeps what it is told."""

    def __init__(self):
        self.calls, self.options, self.rows, self.last = [], None, [], None

    def begin(self, options):
        self.calls.append("begin")
        self.options = options

    def episodes(self, episodes):
        self.calls.append("episodes")
        self.rows += episodes

    def record(self, record):
        self.calls.append("record")
        self.last = record

    def close(self):
        self.calls.append("close")


class Duck:
    """No subclass, but with all methods."""

    def __getattr__(self, name):
        if name not in NAMES:
            raise AttributeError(name)
        return lambda *_: None


def test_all_loggers_are_of_one_protocol():
    assert NAMES == ["begin", "episodes", "record", "message", "flush", "close"]
    for kind in (Console, History, LoggerGroup, MetricsFile, TensorBoard, WandB):
        assert issubclass(kind, Logger)
    documented = re.findall(r"^\| `(\w+)\(", PAGE.read_text(), re.M)
    assert documented == NAMES


def test_a_class_takes_loggers():
    agent, told = operant.Random("CartPole-v1", seed=1, quiet=True), Told()
    agent.fit(max_steps=60, logger=[told, Duck()])
    agent.fit(max_steps=90, logger=told)
    assert told.calls[0] == "begin" and told.calls.count("begin") == told.calls.count("close") == 2
    assert told.options["agent"]["type"] == "random"
    assert (told.options["run"]["env"], told.options["run"]["max_steps"]) == ("CartPole-v1", 90)
    assert sum(row.length for row in told.rows) <= told.last.step == agent.steps
    assert told.last.values["episode/count"] == len(told.rows)


def test_the_command_line_takes_loggers_of_the_current_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("paged_loggers.py").write_text(re.search(r"```python\n(.*?)```", PAGE.read_text(), re.S)[1])
    train = ["train", "random", "--env", "CartPole-v1", "--max-steps", "60", "--seed", "7", "--quiet"]
    assert main([*train, "--logger", "paged_loggers:Episodes", "--run-dir", "run"]) == 0
    rows = np.loadtxt("episodes-7.csv", delimiter=",", ndmin=2)
    assert len(rows) and rows[:, 2].sum() == rows[-1, 0]  # lengths up to the last step
    assert resumed("run", {}).run.logger == ("paged_loggers:Episodes",)
    assert "logger" in RESUMABLE
    for wrong, message in (
        ("paged_loggers:Nobody", "The logger 'paged_loggers:Nobody' cannot be imported: "),
        (
            "builtins:dict",
            "logger must be an object with the methods of operant.tracking.Logger (it has no begin, ",
        ),
    ):
        assert main([*train, "--logger", wrong, "--run-dir", "other"]) == 2
        assert message in capsys.readouterr().err
    assert not Path("other").exists()


def test_what_is_no_logger_is_refused():
    with pytest.raises(SpecError, match="it has no episodes, message, flush, close"):
        loggers_of(type("Half", (), {"begin": print, "record": print})())
    with pytest.raises(SpecError, match=r"logger must be .* Received: logger=3"):
        loggers_of(3)
    assert loggers_of(None) == [] and RunConfig(env="x", max_steps=1).logger == ()


def test_a_logger_that_fails_does_not_end_a_run():
    class Broken(Told):
        def begin(self, options):
            raise ConnectionError("no server")

    told = Broken()
    with pytest.warns(RuntimeWarning, match="Broken failed, training goes on: ConnectionError: no server"):
        operant.Random("CartPole-v1", seed=1, quiet=True).fit(max_steps=30, logger=told)
    assert told.calls[-1] == "close" and "record" in told.calls
