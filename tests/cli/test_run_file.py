"""`operant train --config FILE` and `--save-config`: options in a file, and what is wrong with one."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from operant.agents.table import config_class
from operant.cli import main, training

TOML = """\
agent = "ppo"   # a remark
env = "jax:CartPole-v1"
n-envs = 8
max_steps = 1e3
lr = "linear:1e-3:1e-4:1000"
keep_checkpoints = "none"
env_kwargs = { gravity = 9.0 }
model = [{ type = "dense", size = 4 }]
quiet = true
"""


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Return what a command line would train: the agent with its options, and the run."""
    monkeypatch.chdir(tmp_path)
    plans = []
    monkeypatch.setattr("operant.training.train.train", lambda plan, command: plans.append(plan))

    def plan(*arguments):
        assert main(["train", *arguments]) == 0
        found = plans.pop()
        return found.agent, found.options, found.run

    return plan


def test_a_file_of_options_trains_as_its_flags_do(planned):
    Path("run.toml").write_text(TOML)
    flags = [
        "ppo",
        "--env",
        "jax:CartPole-v1",
        "--n-envs",
        "8",
        "--max-steps",
        "1000",
        "--lr",
        "linear:1e-3:1e-4:1000",
        "--keep-checkpoints",
        "none",
        "--env-kwargs",
        "gravity=9.0",
        "--quiet",
    ]
    by_flags = planned(*flags, "--model", '[{"type": "dense", "size": 4}]')
    assert planned("--config", "run.toml") == by_flags
    agent, _, run = planned(
        "--config", "run.toml", "--seed", "3", "--n-envs", "2", "--save-config", "a/b.toml"
    )
    assert (agent, run.seed, run.n_envs, run.max_steps) == ("ppo", 3, 2, 1000)
    for name in ("a/b.toml", "b.json", "b.yaml"):  # what was written says the same, and is written the same
        assert planned("--config", "a/b.toml", "--save-config", name)[2] == run
    assert json.loads(Path("b.json").read_text())["keep_checkpoints"] is None
    assert (
        planned("--config", "b.json")
        == planned("--config", "b.yaml")
        == planned("--config", "a/b.toml")
        == (agent, by_flags[1], run)
    )
    assert planned("a2c", "--config", "run.toml")[0] == "a2c"


@pytest.mark.parametrize(("storage", "written"), [("postgresql://me:secret@h/x", False), ("s.db", True)])
def test_a_password_is_not_written(storage, written, planned, monkeypatch):
    best = SimpleNamespace(agent="ppo", number=0, value=1.0, options={"lr": 0.5}, run={"env": "CartPole-v1"})
    monkeypatch.setattr("operant.tuning.tune.from_study", lambda name, storage: best)
    flags = ("--from-study", "x", "--storage", storage, "--max-steps", "9")
    assert planned(*flags, "--save-config", "run.json")[1]["lr"] == 0.5
    saved = json.loads(Path("run.json").read_text())
    assert saved["from_study"] == "x" and ("storage" in saved) is written and "secret" not in str(saved)


YAML = """\
agent: ppo   # a remark
env: CartPole-v1
max-steps: 1e3
lr: 3e-4
keep_checkpoints: none
separate: false
"""


def test_yaml_says_the_same(planned, monkeypatch, capsys):
    Path("run.yaml").write_text(YAML)
    flags = ["--env", "CartPole-v1", "--max-steps", "1000", "--lr", "3e-4", "--keep-checkpoints", "none"]
    of_file, of_flags = planned("--config", "run.yaml"), planned("ppo", *flags, "--no-separate")
    assert of_file[2] == of_flags[2]
    config = config_class("ppo")
    assert config.from_dict(of_file[1]) == config.from_dict(of_flags[1]) != config()
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["train", "--config", "run.yaml"]) == 2
    assert (
        "operant: 'run.yaml' needs PyYAML. Install it: pip install 'operant[yaml]'."
        in capsys.readouterr().err
    )


def test_the_file_is_between_flags_and_presets(planned):
    Path("run.toml").write_text('agent = "ppo"\npreset = "cartpole"\nlr = 0.5\ntarget_reward = 1\n')
    _, options, run = planned("--config", "run.toml", "--clip-norm", "0.3")
    assert (options["lr"], options["clip_norm"], run.env) == (0.5, 0.3, "CartPole-v1")
    assert options["n_steps"] == planned("ppo", "--preset", "cartpole")[1]["n_steps"]


def test_the_record_of_a_run_is_a_file_of_options(planned):
    record = {
        "agent": {
            "type": "ppo",
            "lr": {"type": "linear", "start": 1, "end": 0, "steps": 9},
            "target_kl": None,
        },
        "run": {"env": "CartPole-v1", "max_steps": 5, "seed": 7, "run_dir": "/x", "history_checkpoint": "/h"},
        "versions": {"jax": "0.1"},
    }
    Path("run.json").write_text(json.dumps(record, indent=2))
    agent, options, run = planned("--config", "run.json", "--max-steps", "6")
    assert (agent, options["lr"]["start"], run.seed, run.max_steps) == ("ppo", 1, 7, 6)
    assert (run.run_dir, run.history_checkpoint) == (None, None)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", 'agent = "ppo"\n\nlr = -3\n', "--lr must be at least 0. Received: --lr -3.0. See a"),
        ("a.toml", 'n-stepz = 3\nagent = "ppo"', "'n_stepz' is no option here. Did you mean 'n_steps'? See "),
        ("a.toml", 'agent = "pppo"\n', "Unknown agent 'pppo'. Did you mean 'ppo'? See a.toml, line 1."),
        ("a.toml", "\nagent = 3\n", "--agent must be a string. Received: --agent 3. The default is None. Se"),
        ("a.toml", 'agent = "ppo"\nresume = "x"\n', "'resume' is for the command line alone. Leave it out. "),
        ("a.toml", "env = CartPole\n", "'a.toml' is not TOML: Invalid value (at line 1, column 7)."),
        ("a.json", '{"agent": "ppo",\n"max-steps": "x"}', "The default is None. See a.json, line 2."),
        ("a.json", '{"agent": "ppo", "max_steps": [1]}', "The default is None. See a.json, line 1."),
        ("a.json", '{"env":\n}', "The run file 'a.json' is not JSON: Expecting value (line 2)."),
        ("a.yaml", "agent: ppo\n\nlr: -3e-1\n", "--lr must be at least 0. Received: --lr -0.3. See a.y"),
        ("a.yaml", "agent: [ppo\n", "operant: The run file 'a.yaml' is not YAML: while parsing a flow "),
        ("a.yml", "- agent: ppo\n", "operant: The run file 'a.yml' must hold options by name, as in"),
        ("a.yml", "!!python/object/apply:os.getcwd []", "could not determine a constructor for the tag"),
        ("a.yml", "model: &a [4]\nb: *a\n", "operant: The run file 'a.yml' must hold no aliases (*name)."),
        ("a.ini", "", "--config must be a file that ends with .toml, .yaml or .json, or a run's run.json."),
        ("none.toml", None, "The run file 'none.toml' does not exist."),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_told_with_its_line(name, text, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(name).write_text(text)
    assert main(["train", "--config", name]) == 2
    assert message in capsys.readouterr().err


def test_options_that_exclude_one_another_or_cannot_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text('agent = "ppo"\nenv = "CartPole-v1"\nmax_steps = 9\n')
    for arguments, message in (
        (["--resume", "x"], "--config begins a run, --resume continues one."),
        (["--save-config", "x.ini"], "--save-config must be a file that ends with .toml, .yaml or .json."),
        (
            ["--save-config", "x.toml", "--model", '[{"a": null}]'],
            "--model must not hold null, for which TOML has no word.",
        ),
    ):
        assert main(["train", "--config", "a.toml", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main(["train", "--resume", "x", "--save-config", "x.toml"]) == 2
    assert "--save-config keeps how a run begins, --resume continues one." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]


def test_reading_a_file_of_options_loads_no_jax():
    code = f"import sys, {training.__name__}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
