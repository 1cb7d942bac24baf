"""Programs and environments that change the working directory: what is written stays where it was to be."""

import json
import os
from pathlib import Path

import pytest
from tests.test_agent import NET, ROLLOUT
from tests.test_going_on import create, play

from operant import checkpoint
from operant.cli import main
from operant.execution.config import RunConfig
from operant.fit import trainer
from operant.tracking import read_history
from operant.train import Plan, opened, resumed, train

MODULE = """
import os
import gymnasium
import numpy as np


class Wanders(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, when="reset"):
        self.when = when
        self.move("init")

    def move(self, when):
        if self.when == when:
            os.chdir(os.environ["ELSEWHERE"])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.move("reset")
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


@pytest.mark.parametrize("when", ["init", "reset"])
def test_an_environment_may_change_it_while_a_run_trains(here, when, monkeypatch, capsys):
    run = RunConfig.from_dict(
        {
            "env": "wandering:Wanders", "env_kwargs": {"when": when}, "max_steps": 200, "seed": 1, "run_dir": "r",
            "checkpoints": ("w/a2c",), "history_checkpoint": "h.parquet", "eval_frequency": 100, "eval_episodes": 2,
        }
    )  # fmt: skip
    result = train(Plan("a2c", {"model": NET}, run))
    monkeypatch.chdir(here)
    assert "run r\n" in (out := capsys.readouterr().out) and "Everything was written to r\n" in out
    assert {path.name for path in (here / "r").iterdir()} == {
        "best", "checkpoints", "evaluations.parquet", "events", "metrics.jsonl", "run.json",
    }  # fmt: skip
    assert result.directory == here / "r" and checkpoint.is_checkpoint("w/a2c")
    assert len(read_history("h.parquet")["step"]) > 0
    kept = json.loads(Path("r/run.json").read_text())["run"]  # so that folders can be moved together
    assert (kept["run_dir"], kept["checkpoints"], kept["history_checkpoint"]) == ("r", ["w/a2c"], "h.parquet")
    session, _ = opened("r")
    session.environments.close()
    monkeypatch.chdir(here)
    again = train(resumed("r", {"max_steps": 300}))
    monkeypatch.chdir(here)
    assert again.outcome.step >= 300 and max(read_history("h.parquet")["step"]) > 200
    begun = run.replace(weights=("w/a2c",), run_dir=None, checkpoints=(), history_checkpoint=None)
    other = train(Plan("a2c", {"model": NET}, begun)).directory
    assert other.parent == here / "runs"
    assert list(json.loads((other / "run.json").read_text())["weights"]) == ["w/a2c"]


def test_an_environment_may_change_it_between_the_runs_of_seeds(here, monkeypatch, capsys):
    flags = [
        "--env",
        "wandering:Wanders",
        "--max-steps",
        "100",
        "--run-dir",
        "r",
        "--n-seeds",
        "2",
        "--seed",
        "3",
    ]
    assert main(["train", "random", *flags]) == 0
    monkeypatch.chdir(here)
    assert sorted(path.name for path in Path("r").iterdir()) == ["seed-3", "seed-4"]
    assert "Everything was written to r\n" in capsys.readouterr().out


def test_a_program_may_change_it_between_calls_of_fit(here, monkeypatch):
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
    assert int(checkpoint.latest("r/checkpoints").name.removeprefix("step-")) >= 600
    data = json.loads(Path("r/run.json").read_text())
    assert data["fits"] == 2 and data["run"]["run_dir"] == "r"


def test_a_program_may_change_it_while_its_agent_writes(here, monkeypatch):
    agent = create(
        ROLLOUT,
        saver=dict(directory="saved", frequency=1),
        recorder="traces",
        summarizer=dict(directory="sums"),
    )
    play(agent, 30)
    monkeypatch.chdir(os.environ["ELSEWHERE"])
    play(agent, 30)
    updates = agent.updates
    agent.close()
    monkeypatch.chdir(here)
    assert len(list(Path("traces").glob("*.npz"))) > 4 and len(list(Path("sums").iterdir())) == 1
    assert Path(f"saved/agent-{updates}").is_dir()


@pytest.mark.parametrize("when", ["init", "reset"])
def test_an_environment_may_change_it_while_a_runner_runs(here, when, monkeypatch, capsys):
    flags = [
        "--environment",
        "wandering:Wanders",
        "--env-kwargs",
        f"when={when}",
        "--episodes",
        "3",
        "--quiet",
    ]
    places = [
        "--checkpoints",
        "kept,it",
        "--summaries",
        "sums",
        "--save-best-agent",
        "best",
        "--path",
        "out/plot",
    ]
    assert main(["run", "--agent", "random", *flags, *places, "--recordings", "traces"]) == 0
    monkeypatch.chdir(here)
    assert checkpoint.is_checkpoint("kept/it") and checkpoint.is_checkpoint("best/best-model")
    assert list(Path("sums").iterdir()) and list(Path("traces").iterdir()) and Path("out/plot.json").is_file()
    assert "Wrote out/plot.json\n" in capsys.readouterr().out
