"""Programs and environments that change the working directory: what is written stays where it was to be."""

import json
import os
from pathlib import Path

import pytest
from tests.execution.test_agent import NET, ROLLOUT
from tests.training.test_going_on import create, play

from operant import Agent, Runner, checkpoint
from operant.agents.base.agent_spec import parse_agent
from operant.cli import main, running
from operant.errors import UsageError, quoted
from operant.execution.algorithm.trainer import trainer
from operant.spec.run import RunConfig, RunnerConfig
from operant.tracking import LoggerGroup, read_history
from operant.training import loggers, provenance
from operant.training.multi_seed import replicate
from operant.training.run_dir import history_held
from operant.training.train import ExperimentConfig, opened, resumed, train
from operant.tuning import trial

MODULE = """
import os
import gymnasium
import numpy as np


class Wanders(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, when="reset", render_mode=None):
        self.when, self.render_mode = when, render_mode
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

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)
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
@pytest.mark.slow
def test_an_environment_may_change_it_while_a_run_trains(here, when, monkeypatch, capsys):
    run = RunConfig.from_dict(
        {
            "env": "wandering:Wanders",
            "env_kwargs": {"when": when},
            "max_steps": 200,
            "seed": 1,
            "run_dir": "r",
            "checkpoints": ("w/a2c",),
            "history_checkpoint": "h.parquet",
            "eval_frequency": 100,
            "eval_episodes": 2,
        }
    )
    result = train(ExperimentConfig("a2c", {"model": NET}, run))
    monkeypatch.chdir(here)
    assert "run r\n" in (out := capsys.readouterr().out) and "Everything was written to r\n" in out
    assert {path.name for path in (here / "r").iterdir()} == {
        "best", "checkpoints", "evaluations.parquet", "events", "metrics.jsonl", "run.json",
    }  # fmt: skip
    assert result.directory == Path("r") and checkpoint.is_checkpoint("w/a2c")
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
    other = train(ExperimentConfig("a2c", {"model": NET}, begun)).directory
    monkeypatch.chdir(here)
    assert other.parent == Path("runs")
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


@pytest.mark.parametrize("when", ["init", "reset"])
@pytest.mark.slow
def test_files_of_networks_are_found_under_every_seed(here, when, monkeypatch, capsys):
    Path("net.json").write_text(json.dumps(NET))
    flags = [
        "--env",
        "wandering:Wanders",
        "--env-kwargs",
        f"when={when}",
        "--max-steps",
        "100",
        "--seed",
        "3",
    ]
    run = ["--checkpoints", "w/a2c", "--run-dir", "first"]
    assert main(["train", "a2c", "--model", "net.json", *flags, *run]) == 0
    monkeypatch.chdir(here)
    begun = ["--weights", "w/a2c", "--run-dir", "r", "--n-seeds", "2"]
    capsys.readouterr()
    assert main(["train", "a2c", "--model", "net.json", *flags, *begun]) == 0
    monkeypatch.chdir(here)
    out = capsys.readouterr().out
    assert str(here) not in out and "run r/seed-4\n" in out and "written to r/seed-4\n" in out
    kept = json.loads(Path("r/seed-4/run.json").read_text())
    assert (kept["run"]["run_dir"], kept["run"]["weights"]) == ("r/seed-4", ["w/a2c"])
    assert list(kept["weights"]) == ["w/a2c"]


def test_the_file_of_an_agent_is_read_before_its_seeds(here, monkeypatch):
    Path("net.json").write_text(json.dumps(NET))
    Path("agent.json").write_text(json.dumps({"type": "a2c", "model": "net.json"}))
    run = RunConfig.from_dict({"env": "wandering:Wanders", "max_steps": 100, "seed": 3, "run_dir": "r"})
    replicated = replicate(ExperimentConfig("agent.json", {}, run), 2)
    monkeypatch.chdir(here)
    assert [result.directory for result in replicated.results] == [Path("r/seed-3"), Path("r/seed-4")]


@pytest.mark.slow
def test_seeds_at_once_show_and_keep_paths_as_given(here, capsys):
    run = RunConfig.from_dict({"env": "jax:CartPole-v1", "max_steps": 100, "seed": 3, "run_dir": "r"})
    replicated = replicate(ExperimentConfig("a2c", {"model": NET}, run), 2)
    assert str(here) not in capsys.readouterr().out
    assert [result.directory for result in replicated.results] == [Path("r/seed-3"), Path("r/seed-4")]
    assert json.loads(Path("r/seed-4/run.json").read_text())["run"]["run_dir"] == "r/seed-4"


@pytest.mark.parametrize("when", ["init", "reset"])
def test_files_are_found_under_every_seed_of_a_trial(here, when, monkeypatch):
    Path("net.json").write_text(json.dumps(NET))
    run = {
        "env": "wandering:Wanders",
        "env_kwargs": {"when": when},
        "max_steps": 100,
        "seed": 1,
        "run_dir": "r",
        "quiet": True,
        "checkpoints": ["w/a2c"],
    }
    train(ExperimentConfig("a2c", {"model": "net.json"}, RunConfig.from_dict(run)))
    monkeypatch.chdir(here)
    run |= {"weights": ["w/a2c"], "checkpoints": [], "run_dir": None}
    order = {"run": run, "agent": "a2c", "options": {"model": "net.json"}, "seeds": 2, "episodes": None}
    ended = trial._train(order, Unpruned())
    assert ended["kind"] == "ended" and len(ended["seed_values"]) == 2


class Unpruned:
    """The other end of a trial's pipe, which lets it go on."""

    def send_bytes(self, message):
        pass

    def recv_bytes(self):
        return b'{"prune": false}'


def test_files_of_the_servers_are_found_under_every_repeat(here):
    Path("token").touch()
    Path("system").touch()
    given = {"environment": "e", "agent": "random", "episodes": 1, "remote": "socket-client"}
    given = RunnerConfig.from_dict(
        {**given, "environment": None, "token_file": "token", "certificate": "system"}
    )
    located = running._located(given)
    assert (located.token_file, located.certificate, located.agent) == (
        str(here / "token"),
        "system",
        "random",
    )


@pytest.mark.parametrize("when", ["init", "reset"])
def test_an_environment_may_change_it_while_a_policy_plays(here, when, monkeypatch, capsys):
    own = ["--env", "wandering:Wanders", "--env-kwargs", f"when={when}"]
    train_flags = ["--max-steps", "100", "--run-dir", "r", "--checkpoints", "w/a2c", "--seed", "1", "--quiet"]
    Path("net.json").write_text(json.dumps(NET))
    assert main(["train", "a2c", "--model", "net.json", *own, *train_flags]) == 0
    for what in (["r"], ["a2c", "--model", "net.json", "--weights", "w/a2c"]):
        monkeypatch.chdir(here)
        folders = ["--frame-dir", f"frames-{len(what)}", "--video-dir", f"videos-{len(what)}"]
        assert main(["play", *what, *own, "--episodes", "2", *folders]) == 0
        monkeypatch.chdir(here)
        assert Path(folders[1], "episode-001", "00005.jpg").is_file()
        assert len(list(Path(folders[3]).glob("*.mp4"))) == 2
        out = capsys.readouterr().out
        assert f"{folders[3]}/episode-000.mp4" in out


def test_an_environment_may_change_it_while_an_algorithm_class_plays(here, monkeypatch):
    agent = trainer("A2C")("wandering:Wanders", model=NET, quiet=True)
    monkeypatch.chdir(here)
    played = agent.play(frame_dir="frames", max_steps=4)
    agent.close()
    monkeypatch.chdir(here)
    assert played.files[0] == here / "frames/00000.jpg" and all(file.is_file() for file in played.files)


def test_weights_and_biases_is_given_paths_as_they_were_given(here, monkeypatch):
    calls = []

    class Sink(LoggerGroup):
        id = "x"

        def __init__(self, session, directory, config, known):
            super().__init__()
            calls.append((directory, config["run"]))

    monkeypatch.setattr(loggers, "WandB", Sink)
    run = RunConfig.from_dict(
        {
            "env": "CartPole-v1",
            "max_steps": 50,
            "seed": 1,
            "run_dir": "r",
            "checkpoints": ["w"],
            "monitor_session": "s",
        }
    )
    train(ExperimentConfig("a2c", {"model": NET}, run))
    agent = trainer("A2C")("CartPole-v1", model=NET, checkpoints=["v"], quiet=True)
    monkeypatch.chdir(os.environ["ELSEWHERE"])
    agent.fit(max_steps=50, monitor_session="s")
    agent.close()
    monkeypatch.chdir(here)
    assert [directory for directory, _ in calls] == [here / "r", here]
    assert [run["checkpoints"] for _, run in calls] == [["w"], ["v"]] and calls[0][1]["run_dir"] == "r"


def test_messages_show_paths_as_given(here):
    agent = trainer("A2C")(
        "CartPole-v1", model=NET, checkpoints=["w"], history_checkpoint="h.parquet", quiet=True
    )
    told = agent.session.weights.save_unjudged(agent.session.driver.train)
    assert told.endswith("the last weights were written to w")
    with history_held("h.parquet"), pytest.raises(UsageError, match="writes to the history 'h.parquet'"):
        agent.fit(max_steps=50)
    agent.close()


def test_commands_are_quoted_as_the_system_takes_them(monkeypatch):
    assert quoted("operant", "play", "my run") == "operant play 'my run'"
    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        command = quoted("operant", "play", "C:\\runs\\a", "my run")
    assert command == 'operant play C:\\runs\\a "my run"'


def test_files_of_networks_are_found_by_programs_that_go_elsewhere(here, monkeypatch):
    Path("net.json").write_text(json.dumps(NET))
    spaces = dict(states=dict(type="float", shape=(3,)), actions=dict(type="int", num_values=2))
    alone = Agent.create("a2c", model="net.json", **spaces)
    of_class = trainer("A2C")(
        "wandering:Wanders", env_kwargs={"when": "init"}, model="net.json", run_dir="r", quiet=True
    )
    assert Path.cwd() != here
    assert alone.get_specification()["agent"]["model"] == NET  # as `save` does
    of_class.fit(max_steps=20)
    of_class.close()
    alone.close()
    assert json.loads((here / "r" / "run.json").read_text())["agent"]["model"] == NET


def test_a_file_that_comes_along_is_named_as_it_was(here):
    assert parse_agent("a2c", model="ann-actor-critic.cfg").config.model == "ann-actor-critic.cfg"
    assert parse_agent("a2c", model="[64].cfg").config.model == "[64].cfg"  # missing: told where it is read


def test_an_environment_may_remove_it(here, monkeypatch):
    gone = here / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    run = {"env": "CartPole-v1", "max_steps": 50, "seed": 1, "quiet": True, "run_dir": str(here / "r")}
    train(ExperimentConfig("a2c", {"model": NET}, RunConfig.from_dict(run)))
    trainer("A2C")("CartPole-v1", model=NET, run_dir=str(here / "s"), quiet=True).close()
    with Runner({"agent": "random", "recorder": str(here / "t")}, "CartPole-v1") as runner:
        runner.run(num_episodes=1, use_tqdm=False)
    assert (here / "r" / "run.json").is_file() and list((here / "t").iterdir())


def test_the_state_of_the_code_is_that_of_the_programs_folder(here, monkeypatch):
    asked = []
    monkeypatch.setattr(provenance, "git_state", lambda directory=".": asked.append(directory))
    run = {
        "env": "wandering:Wanders",
        "env_kwargs": {"when": "init"},
        "max_steps": 50,
        "seed": 1,
        "quiet": True,
    }
    result = train(ExperimentConfig("a2c", {"model": NET}, RunConfig.from_dict({**run, "run_dir": "r"})))
    monkeypatch.chdir(here)
    train(resumed(result.directory, {"max_steps": 100}))
    monkeypatch.chdir(here)
    agent = trainer("A2C")(
        "wandering:Wanders", env_kwargs={"when": "init"}, model=NET, run_dir="s", quiet=True
    )
    agent.fit(max_steps=50)
    agent.close()
    assert asked == [here, here, here]


@pytest.mark.parametrize("when", ["init", "reset"])
@pytest.mark.slow
def test_an_environment_may_change_it_while_a_run_is_reproduced(here, when, monkeypatch, capsys):
    given = {
        "env": "wandering:Wanders",
        "env_kwargs": {"when": when},
        "max_steps": 20,
        "seed": 1,
        "quiet": True,
        "checkpoints": ["w"],
    }
    train(ExperimentConfig("a2c", {"model": NET}, RunConfig.from_dict(given | {"run_dir": "first"})))
    monkeypatch.chdir(here)
    begun = given | {"checkpoints": [], "weights": ["w"], "run_dir": "r"}
    train(ExperimentConfig("a2c", {"model": NET}, RunConfig.from_dict(begun)))
    monkeypatch.chdir(here)
    asked = []
    monkeypatch.setattr(provenance, "git_state", asked.append)
    assert main(["reproduce", "r", "--env", "wandering:Wanders", "--run-dir", "again", "--quiet"]) == 0
    assert asked == [here] and (here / "again" / "checkpoints").is_dir()
