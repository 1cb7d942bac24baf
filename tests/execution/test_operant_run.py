"""`operant run` and `run.py` as a user calls them: flags, messages, files, and the documents' examples."""

import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from operant import Agent, Environment
from operant.cli import main
from operant.execution.runner import repeats
from operant.execution.runner.runner_logger import RunnerLogger
from operant.spec import options
from operant.spec.run import SHORT, RunnerConfig
from operant.tracking.tensorboard import TensorBoard

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "benchmarks" / "configs").glob("*.json"))
TINY = {
    "agent": "ppo", "n_steps": 8, "mini_batches": 2, "ppo_epochs": 1, "model": [{"type": "dense", "size": 8}],
}  # fmt: skip


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tiny.json").write_text(json.dumps(TINY))
    return ["run", "--agent", "tiny.json", "--environment", "gym", "--level", "CartPole-v1", "--quiet"]


def fails(capsys, *arguments):
    assert main(["run", *arguments]) == 2
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert all(line.endswith(" ...") for line in out.splitlines())  # what went on
    return err


def test_help_lists_every_flag_in_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["run"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    for name in options(RunnerConfig):
        assert re.search(rf"^  (-{SHORT.get(name, '.')}, )?--{name.replace('_', '-')}\b", out, re.M), name
    assert main(["run", "--help"]) == 0
    assert capsys.readouterr().out == out
    assert main([]) == 0 and "    run        Train or run an agent" in capsys.readouterr().out


def test_letters_are_used_once():
    assert len(set(SHORT.values())) == len(SHORT) and set(SHORT) <= set(options(RunnerConfig))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--episodes 3", "run needs an environment"),
        ("-a ppo -e CartPole-v1", "run needs a limit"),
        ("-e CartPole-v1 -n 3", "run needs an agent"),
        ("-a ppo -e CartPole-v1 -n 3 --remote x", "remote must be one of 'multiprocessing'"),
        ("-a ppo -e CartPole-v1 --remote socket-server", "serves an environment; the agent is elsewhere"),
        ("-a ppo -n 3 -e CartPole-v1 --remote socket-client", "the servers have the environments"),
        (
            "-a ppo -n 3 --env-kwargs a=1 --remote socket-client",
            "Leave --environment, --level and --env-kwargs out",
        ),
        ("-a ppo -e CartPole-v1 -n 3 --env-kwargs host=x", "without 'host', which operant sets itself"),
        (
            "-a ppo -e CartPole-v1 -n 3 --env-kwargs gravity=1",
            "takes no argument 'gravity'. Known: .*sutton_barto_reward",
        ),
        ("-a ppo -e CartPole-v1 -t 3 --path x", "--path writes a row for each episode"),
        ("-a ppo -e CartPole-v1 --episode", "Unknown flag|expected one argument"),
        ("-a ppo -e CartPole-v1 -n 3 --evaluatoin", "Did you mean '--evaluation'"),
        ("-a ppoo -e CartPole-v1 -n 3", "Did you mean 'ppo'"),
        ("-a ppo -e CartPole-v11 -n 3", "Unknown environment|Did you mean"),
        ("-a ppo -e CartPole-v1 -n 3 --num-parallel 1", "--num-parallel must be at least 2"),
        ("-a ppo -e CartPole-v1 -n 3 --num-parallel 2 --visualize-directory x", "films a single environment"),
        (f"-a ppo -e CartPole-v1 -n 3 -c {__file__}/x", "checkpoints must be in a folder: '.*' is a file"),
        (f"-a ppo -e CartPole-v1 -n 3 --path {__file__}/x", "path must be in a folder: '.*' is a file"),
        (
            "-a ppo -e CartPole-v1 -n 3 -c /,tmp",
            "the name of a new agent or of a saved one. .* would be lost",
        ),
        (
            "-a ppo -e CartPole-v1 -n 3 -c out,my.agent#",
            "a name that is made of letters, digits.*--checkpoints 'out,my.agent#'",
        ),
        ("-a ppo -e CartPole-v1 -n 3 --host here", "host is for servers and clusters"),
    ],
)
def test_bad_input(capsys, arguments, message):
    assert re.search(message, fails(capsys, *arguments.split()))


def test_an_agent_whose_name_is_a_folder_of_a_saved_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = ["--agent", "random", "-e", "CartPole-v1", "-t", "10", "--quiet"]
    Path("random").mkdir()
    assert main(["run", *line, "-c", "random"]) == 0  # any folder
    assert "give its path, ./random" in fails(capsys, *line)
    assert main(["run", "--agent", "./random", *line[2:], "-c", "later"]) == 0
    assert Agent.load("later").timesteps == 20


@pytest.mark.slow
def test_runs_saves_and_goes_on(tiny, capsys):
    assert (
        main(
            [
                *tiny,
                "-n",
                "6",
                "--num-parallel",
                "2",
                "--batch-agent-calls",
                "-c",
                "saved,mine",
                "-s",
                "events,mine",
                "--save-best-agent",
                "best",
                "--seed",
                "4",
            ]
        )
        == 0
    )
    agent = Agent.load("saved", filename="mine")
    assert agent.episodes == 6 and agent.seed == 4 and agent.parallel_interactions == 2
    assert Agent.load("best").parallel_interactions == 2
    assert list(Path("events/mine").glob("events*")) and not Path("events,mine").exists()
    line = ["run", "--agent", "saved", "-e", "CartPole-v1", "-t", "30", "--quiet"]
    assert main([*line, "-c", "later"]) == 0
    assert Agent.load("later").timesteps == agent.timesteps + 30
    assert "brings its own seed" in fails(capsys, *line[1:], "--seed", "1")


def test_a_full_disk_ends_a_run_at_its_end_alone(tmp_path, monkeypatch):
    class Full:
        @staticmethod
        def save(directory, filename):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("operant.execution.runner.runner_logger.SAVE_SECONDS", 0.0)
    runner = SimpleNamespace(
        agent=Full,
        episodes=1,
        updates=0,
        timesteps=9,
        evaluation=False,
        episode_returns=[4.0],
        episode_timesteps=[9],
    )
    Full.engine = None
    following = RunnerLogger(str(tmp_path), str(tmp_path / "events"), 1)
    with pytest.warns(RuntimeWarning, match=f"The agent is not saved in '{tmp_path}': .*No space left"):
        assert following(runner, 0)
    with pytest.raises(OSError, match="No space left"):
        following.close(runner)
    [file] = (tmp_path / "events").iterdir()
    assert b"episode/reward_mean" in file.read_bytes()  # all the same


def test_what_follows_a_run_averages_over_its_horizon(tmp_path, monkeypatch):
    records = []
    monkeypatch.setattr("operant.execution.runner.runner_logger.RECORD_SECONDS", 0.0)
    monkeypatch.setattr(TensorBoard, "record", lambda _, record: records.append(record.values))
    runner = SimpleNamespace(
        agent=SimpleNamespace(engine=None),
        episodes=5,
        updates=0,
        timesteps=9,
        evaluation=True,
        episode_returns=[100.0, 100.0, 1.0, 2.0, 6.0],
        episode_timesteps=[50, 50, 2, 3, 4],
        evaluation_returns=[100.0, 4.0, 4.0, 7.0],
        evaluation_timesteps=[50, 1, 1, 4],
    )
    assert RunnerLogger(None, str(tmp_path / "events"), 3)(runner, 0)
    assert records == [
        {
            "episode/count": 5.0,
            "update/count": 0.0,
            "episode/reward_mean": 3.0,
            "episode/reward_min": 1.0,
            "episode/reward_max": 6.0,
            "episode/length_mean": 3.0,
            "evaluation/reward_mean": 5.0,
            "evaluation/reward_std": pytest.approx(2**0.5),
            "evaluation/length_mean": 2.0,
        }
    ]


def test_evaluation_of_one_environment(tiny, capsys):
    assert main([*[a for a in tiny if a != "--quiet"], "-n", "2", "--evaluation"]) == 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("episodes 2/2")


@pytest.mark.slow
def test_repeats_are_written(tiny, capsys):
    assert main([*tiny, "-n", "4", "-m", "20", "--repeat", "3", "--path", "out/result", "--seaborn"]) == 0
    data = json.loads(Path("out/result.json").read_text())
    assert sorted(data) == ["agent_seconds", "rewards", "seconds", "timesteps"]
    for rows in data.values():
        assert len(rows) == 4 and all(len(row) == 3 for row in rows)
    first, second, third = zip(*data["timesteps"], strict=True)
    assert max(first) <= 20 and len({first, second, third}) > 1  # each repeat has its own seed
    assert Path("out/result.png").read_bytes()[:4] == b"\x89PNG"
    assert "Wrote out/result.json" in capsys.readouterr().out


def test_repeats_of_unequal_length_are_as_long_as_the_shortest(tmp_path):
    class Run:
        def __init__(self, n):
            for name in ("returns", "timesteps", "seconds", "agent_seconds"):
                setattr(self, f"episode_{name}", list(range(n)))

    runs = [repeats.recorded(Run(n)) for n in (3, 2)]
    assert repeats.by_episode(runs)["rewards"] == [[0, 0], [1, 1]]
    assert len(repeats.write([*runs, repeats.recorded(Run(0))], tmp_path / "none")) == 2


@pytest.mark.slow
def test_videos(tiny):
    pytest.importorskip("imageio_ffmpeg", reason="needs the extra 'video'")
    assert main([*tiny, "-n", "2", "--visualize-directory", "films"]) == 0
    assert sorted(path.name for path in Path("films").iterdir()) == ["episode-000.mp4", "episode-001.mp4"]
    assert all(path.stat().st_size > 1000 for path in Path("films").iterdir())


def test_a_request_to_terminate_saves_as_ctrl_c_does(tiny, monkeypatch):
    monkeypatch.setattr(RunnerLogger, "__call__", lambda *_: signal.raise_signal(signal.SIGTERM))
    places = ["--checkpoints", "kept", "--path", "plot"]
    with pytest.raises(SystemExit) as ended:
        main([*tiny, "--episodes", "1000000", "--repeat", "2", *places])
    assert ended.value.code == 143
    assert Agent.load("kept").episodes > 0 and len(json.loads(Path("plot.json").read_text())["rewards"]) == 1


def test_run_py_is_the_command():
    result = subprocess.run(
        [sys.executable, "run.py"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.startswith("Usage:\n    operant run --agent")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
@pytest.mark.slow
def test_configs_are_agents(path):
    given = json.loads(path.read_text())
    environments = {"td3": "Pendulum-v1"}
    environment = Environment.create(environments.get(given["agent"], "CartPole-v1"))
    agent = Agent.create(agent=str(path), environment=environment)
    agent.act(environment.reset())
    assert path.name in (path.parent / "README.md").read_text()


# The documents' examples


@pytest.fixture
def small(monkeypatch):
    """Shrink the budget of an example to ten episodes."""
    from operant.execution.runner.runner import Runner

    whole, runs = Runner.run, []

    def run(self, num_episodes=None, **settings):
        assert num_episodes == 100
        runs.append(self)
        whole(self, num_episodes=10, **settings)
        assert self.episodes == 10

    monkeypatch.setattr(Runner, "run", run)
    monkeypatch.chdir(ROOT)
    return runs


@pytest.mark.slow
def test_parallel_batched(small):
    runpy.run_path("examples/parallel_batched.py")
    assert small[0].num_environments == 5


@pytest.mark.slow
def test_parallel_processes(small):
    pytest.importorskip("operant.envs.remote", reason="environments in processes are not there yet")
    runpy.run_path("examples/parallel_processes.py")
    assert small[0].num_environments == 5 and small[0].is_environment_remote


def free_ports(count):
    """Return ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.mark.slow
def test_parallel_machines():
    """The script as it stands, with other ports and ten episodes."""
    pytest.importorskip("operant.envs.remote", reason="environments on other machines are not there yet")
    first, second = free_ports(2)
    script = (ROOT / "examples" / "parallel_machines.sh").read_text()
    for old, new in (("65432", str(first)), ("65433", str(second)), ("--episodes 100", "--episodes 10")):
        assert old in script
        script = script.replace(old, new)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    result = subprocess.run(
        ["sh", "-c", script],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "episodes 10/10" in result.stderr


@pytest.mark.slow
def test_recordings_are_traces_to_learn_from(tiny, tmp_path):
    assert main([*tiny, "--episodes", "3", "--recordings", "traces"]) == 0
    traces = sorted((tmp_path / "traces").glob("*.npz"))
    assert len(traces) == 3
    agent = Agent.create(**TINY, environment=Environment.create("CartPole-v1"))
    before = jax.device_get(jax.tree.leaves(agent.engine.train.state))
    agent.pretrain("traces", num_iterations=1)
    after = jax.device_get(jax.tree.leaves(agent.engine.train.state))
    assert any(np.any(a != b) for a, b in zip(before, after, strict=True))


@pytest.mark.slow
def test_a_run_on_a_native_environment_is_compiled(tiny, capsys):
    arguments = ["run", "--agent", "tiny.json", "--environment", "jax:CartPole-v1", "--num-parallel", "4"]
    assert main([*arguments, "--timesteps", "3001"]) == 0
    text = capsys.readouterr().err
    assert "timesteps 3001/3001" in text and "driver=device" in text


@pytest.mark.slow
def test_an_environment_may_change_the_working_directory(tiny, tmp_path, monkeypatch):
    (tmp_path / "moving.py").write_text(
        "import os, gymnasium\n\n\ndef make(**options):\n    os.chdir('/')\n"
        "    return gymnasium.make('CartPole-v1')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("env.json").write_text(json.dumps({"environment": "moving:make"}))
    arguments = ["run", "--agent", "tiny.json", "--environment", "env.json", "--repeat", "2", "--quiet"]
    assert main([*arguments, "--episodes", "1"]) == 0
