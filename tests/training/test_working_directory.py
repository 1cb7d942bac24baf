"""Relative paths keep the meaning that they had where a run, or an algorithm class, began."""

import json
import os
from pathlib import Path

import pytest
from tests.execution.test_agent import NET

from operant import checkpoint
from operant.agents.base.agent_spec import parse_agent
from operant.cli import main
from operant.errors import UsageError, quoted
from operant.execution.trainers.trainer import trainer
from operant.spec.run import RunConfig
from operant.tracking import read_history
from operant.training.multi_seed import replicate
from operant.training.run_dir import history_held
from operant.training.train import ExperimentConfig, resumed, train

MODULE = """
import os
import gymnasium
import numpy as np


class Wanders(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        os.chdir(os.environ["ELSEWHERE"])
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), 1.0, self.t == 5, False, {}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working directory; `wandering:Wanders` goes to `elsewhere` beside it."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (here / "wandering.py").write_text(MODULE)
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setenv("ELSEWHERE", str(elsewhere))
    yield here
    assert not list(elsewhere.iterdir())


@pytest.mark.slow
def test_paths_of_a_run_are_those_of_its_beginning(here, monkeypatch):
    options = {
        "env": "wandering:Wanders",
        "max_steps": 200,
        "seed": 1,
        "run_dir": "r",
        "checkpoints": ("w/a2c",),
        "history_checkpoint": "h.parquet",
        "eval_frequency": 100,
        "eval_episodes": 2,
    }
    run = RunConfig.from_dict(options)
    result = train(ExperimentConfig("a2c", {"model": NET}, run))
    monkeypatch.chdir(here)
    assert {path.name.partition(".tfevents.")[0] for path in (here / "r").iterdir()} == {
        "best", "checkpoints", "evaluations.parquet", "events.out", "metrics.jsonl", "run.json",
    }  # fmt: skip
    assert result.directory == here / "r" and checkpoint.is_checkpoint("w/a2c")
    assert len(read_history("h.parquet")["step"]) > 0
    kept = json.loads(Path("r/run.json").read_text())["run"]
    assert (kept["run_dir"], kept["checkpoints"], kept["history_checkpoint"]) == (
        str(here / "r"), [str(here / "w/a2c")], str(here / "h.parquet"),
    )  # fmt: skip
    monkeypatch.chdir(here.parent)  # and a run goes on with them from anywhere
    again = train(resumed("here/r", {"max_steps": 300}))
    monkeypatch.chdir(here)
    assert again.outcome.step >= 250 and max(read_history("h.parquet")["step"]) > 200
    begun = run.replace(weights=("w/a2c",), run_dir=None, checkpoints=(), history_checkpoint=None)
    other = train(ExperimentConfig("a2c", {"model": NET}, begun)).directory
    assert other.parent == here / "runs"
    assert list(json.loads((other / "run.json").read_text())["weights"]) == [str(here / "w/a2c")]


@pytest.mark.slow
def test_paths_of_seeds_are_those_of_the_beginning(here, monkeypatch):
    Path("net.json").write_text(json.dumps(NET))
    Path("agent.json").write_text(json.dumps({"type": "a2c", "model": "net.json"}))
    run = RunConfig.from_dict({"env": "wandering:Wanders", "max_steps": 100, "seed": 3, "run_dir": "r"})
    replicated = replicate(ExperimentConfig("agent.json", {}, run), 2)
    assert [result.directory for result in replicated.results] == [here / "r/seed-3", here / "r/seed-4"]
    assert json.loads((here / "r/seed-4/run.json").read_text())["run"]["run_dir"] == str(here / "r/seed-4")


@pytest.mark.slow
def test_paths_of_an_algorithm_class_are_those_of_its_beginning(here, monkeypatch):
    agent = trainer("A2C")(
        "CartPole-v1", model=NET, run_dir="r", checkpoints=["w"], history_checkpoint="h.parquet", quiet=True
    )
    agent.fit(max_steps=100)
    monkeypatch.chdir(os.environ["ELSEWHERE"])
    agent.fit(max_steps=600)
    agent.close()
    monkeypatch.chdir(here)
    assert max(read_history("h.parquet")["step"]) > 100
    assert agent.session.weights.paths == (str(here / "w"),)  # written where a policy is the best so far
    assert int(checkpoint.latest("r/checkpoints").name.removeprefix("step-")) > 500
    data = json.loads(Path("r/run.json").read_text())
    assert data["run"]["run_dir"] == str(here / "r")


@pytest.mark.slow
@pytest.mark.parametrize("env", ["jax:CartPole-v1", "CartPole-v1"])
def test_messages_show_paths_within_the_working_directory_as_relative(here, env, capsys):
    flags = ["--env", env, "--max-steps", "100", "--seed", "3", "--model", json.dumps(NET)]
    assert main(["train", "a2c", *flags, "--run-dir", "r"]) == 0
    assert main(["train", "a2c", *flags, "--run-dir", "s", "--n-seeds", "2"]) == 0
    out = capsys.readouterr().out
    assert "run r\n" in out and "Everything was written to r\n" in out
    assert "Everything was written to s\n" in out and str(here) not in out


def test_messages_show_paths_as_given(here):
    agent = trainer("A2C")(
        "CartPole-v1", model=NET, checkpoints=["w"], history_checkpoint="h.parquet", quiet=True
    )
    told = agent.session.weights.save_unjudged(agent.session.driver.train)
    assert told.endswith("the last weights were written to w")
    with history_held("h.parquet"), pytest.raises(UsageError, match="writes to the history 'h.parquet'"):
        agent.fit(max_steps=50)
    agent.close()


def test_commands_are_quoted_as_a_shell_takes_them():
    assert quoted("operant", "play", "my run") == "operant play 'my run'"


def test_a_file_that_comes_along_is_named_as_it_was(here):
    assert parse_agent("a2c", model="ann-actor-critic.cfg").config.model == "ann-actor-critic.cfg"
    assert parse_agent("a2c", model="[64].cfg").config.model == "[64].cfg"  # missing: told where it is read
