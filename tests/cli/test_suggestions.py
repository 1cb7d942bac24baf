"""What a message suggests works: each command is taken from the message, and followed."""

import os
import re
import shlex
import sys

import pytest

from operant.agents.table import AGENTS, config_class
from operant.cli import main, parse
from operant.envs import Environment, catalog
from operant.errors import FIELD, SpecError
from operant.execution import play
from operant.spec import aliases, canonical, default, options
from operant.spec.run import RunConfig
from operant.training import train
from operant.tuning.plan import TuneConfig

ARM = """
import gymnasium


class Arm(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, True, False, {}
"""


@pytest.fixture
def followed(monkeypatch, tmp_path):
    """The plans that commands come to, which nothing trains or plays."""
    plans = []

    def planned(plan, *_):
        if isinstance(plan, train.ExperimentConfig):
            from operant.agents.base.agent_spec import parse_agent

            parse_agent(plan.agent, **plan.options)  # it is legal
            catalog.resolve(plan.run.env)
        plans.append(plan)
        return play.PlayResult([1.0], [1], [])

    monkeypatch.setattr(train, "train", planned)
    monkeypatch.setattr(play, "play", planned)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "run").mkdir()
    return plans


def refused(capsys, line):
    assert main(shlex.split(line)) == 2
    return capsys.readouterr().err.strip()


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("train ppo CartPole-v1 --max-steps 9", "train ppo --env CartPole-v1 --max-steps 9"),
        ("train ppo --max-steps 9 CartPole-v1", "train ppo --env CartPole-v1 --max-steps 9"),
        ("train CartPole-v1 --max-steps 9", "train ppo --env CartPole-v1 --max-steps 9"),
        ("train jax:CartPole-v1 --max-steps 9", "train ppo --env jax:CartPole-v1 --max-steps 9"),
        ("train --env CartPole-v1 dqn --max-steps 9", "train dqn --env CartPole-v1 --max-steps 9"),
        (
            "train --lr 1 --env CartPole-v1 --max-steps 9 dqn",
            "train dqn --lr 1 --env CartPole-v1 --max-steps 9",
        ),
        ("eval run", "play run --episodes 100"),
        ("evaluate run", "play run --episodes 100"),
        ("test run", "play run --episodes 100"),
        ("enjoy run", "play run --video-dir videos"),
        ("PPO --env CartPole-v1", "train ppo --env ENV"),
        ("learn", "train"),
        ("presets", "list"),
        ("train --list", "list"),
    ],
)
def test_a_suggested_command_works(typed, suggested, followed, capsys):
    message = refused(capsys, typed)
    assert re.search(rf"operant {re.escape(suggested)}\.?$", message), message
    right = f"{suggested.replace('ENV', 'CartPole-v1')}{' --max-steps 9' if 'ENV' in suggested else ''}"
    assert main(shlex.split(right)) == 0
    assert len(followed) == (suggested not in ("train", "list"))


@pytest.mark.parametrize(
    ("typed", "wrong", "right"),
    [
        ("train PPO --env CartPole-v1 --max-steps 9", "PPO", "ppo"),
        ("train Double_DQN --env CartPole-v1 --max-steps 9", "Double_DQN", "double_dqn"),
        (
            "train ppo --env CartPole-v1 --max-steps 9 --clip-value False",
            "--clip-value False",
            "--no-clip-value",
        ),
        ("train ppo --env CartPole-v1 --max-steps 9 --clip-value=no", "--clip-value=no", "--no-clip-value"),
        ("train ppo --env CartPole-v1 --max-steps 9 --batch-size 32", "--batch-size 32", "--mini-batches=4"),
    ],
)
def test_a_suggested_word_works(typed, wrong, right, followed, capsys):
    message = refused(capsys, typed)
    assert re.search(rf"(Did you mean '|Say |are ){re.escape(right)}\b", message), message
    assert main(shlex.split(typed.replace(wrong, right))) == 0
    assert len(followed) == 1


def test_other_algorithms_are_agents_with_flags(followed, capsys):
    for name in ("rainbow", "QR-DQN", "c51", "a3c", "impala", "MaskablePPO"):
        message = refused(capsys, f"train {name} --env CartPole-v1")
        suggested = re.fullmatch(rf"operant: Unknown agent '{name}'. Use: operant (train .*)", message)[1]
        assert main([*suggested.split(), "--env", "CartPole-v1", "--max-steps", "9"]) == 0
    assert followed[0].options["distributional"] == "c51" and followed[0].options["n_steps"] == 3


def test_a_file_is_named_by_its_module(followed, capsys, tmp_path):
    (tmp_path / "factory_of_arms.py").write_text(ARM)
    for typed in ("factory_of_arms.py", "./factory_of_arms.py", "factory_of_arms.py:Arm"):
        message = refused(capsys, f"train ppo --env {typed} --max-steps 9")
        assert message.endswith("is a file, and is named by its module. Write: factory_of_arms:Arm")
    assert main(["train", "ppo", "--env", "factory_of_arms:Arm", "--max-steps", "9"]) == 0
    Environment.create(followed[0].run.env).close()
    assert "Write: factory:Name" in refused(capsys, "train ppo --env factory.py --max-steps 9")


def test_devices_steps_of_trials_and_exports_are_told(followed, capsys, monkeypatch):
    message = refused(capsys, "train ppo --env CartPole-v1 --device cuda")
    assert message.endswith(
        "JAX chooses the device: set JAX_PLATFORMS=cpu or JAX_PLATFORMS=cuda in the environment."
    )
    message = refused(capsys, "tune ppo --env CartPole-v1 --max-steps 9")
    assert message.endswith("The steps of a trial are --trial-steps.")
    assert parse.parse([TuneConfig], ["--trial-steps", "9"], "tune") == {"trial_steps": 9}
    message = refused(capsys, "play a2c --env CartPole-v1 --checkpoints a2c.tf")
    assert message.endswith("What it writes is read by --weights.")
    message = refused(capsys, "export run")
    assert "operant.Agent.load('run').save('exported', format='onnx')" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-steps", "0"], "--max-steps must be at least 1. Received: --max-steps 0."),
        (
            ["--max-steps", "9", "--max-frame"],
            "is a part of preprocessing. Received: --max-frame, no --preprocess. Add --preprocess.",
        ),
        (
            ["--max-steps", "9", "--plateau-reduce-factor", "0.5"],
            "Received: --plateau-reduce-factor 0.5 without --divergence-monitoring-steps. Add "
            "--divergence-monitoring-steps (0: from the beginning).",
        ),
        (
            ["--max-steps", "9", "--info-keywords", "a", "a"],
            "--info-keywords must be different names in info. Received: --info-keywords ('a', 'a').",
        ),
        (
            ["--max-steps", "9", "--env-kwargs", "max_steps=3", "lr=nan"],
            "Received: --env-kwargs {'max_steps': 3, 'lr': nan}.",
        ),
    ],
)
def test_messages_name_options_by_their_flags(arguments, message, capsys):
    assert message in refused(capsys, shlex.join(["train", "ppo", "--env", "CartPole-v1", *arguments]))


def test_at_a_terminal_lines_break_between_words(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = refused(capsys, "train ppo --env CartPole-v1 --max-steps 9 --plateau-reduce-factor 0.5")
    assert len(text) > 160 and "\n" not in text  # a log takes whole lines
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    folded = refused(capsys, "train ppo --env CartPole-v1 --max-steps 9 --plateau-reduce-factor 0.5")
    assert folded.split() == text.split() and max(map(len, folded.split("\n"))) <= 80


def test_all_that_is_missing_for_a_video_is_said_at_once(followed, capsys, monkeypatch):
    from operant.execution import render

    monkeypatch.undo()
    present = render.importlib.util.find_spec
    monkeypatch.setattr(
        render.importlib.util,
        "find_spec",
        lambda name: None if name in ("pygame", "imageio_ffmpeg", "Box2D") else present(name),
    )
    for env, extras in (("CartPole-v1", "video,classic"), ("LunarLander-v3", "video,box2d")):
        message = refused(capsys, f"play ppo --env {env} --video-dir videos")
        assert message.endswith(f". Install them: pip install 'operant[{extras}]'.")
        assert message.startswith("operant: --video-dir needs imageio_ffmpeg and ")
    assert not os.path.exists("videos")


@pytest.mark.parametrize("agent", AGENTS)
def test_the_fields_names_are_flags_and_options(agent, followed):
    """Each alias sets the option that it stands for, on the command line and in a specification."""
    config = config_class(agent)
    for word, name in aliases(config).items():
        value = default(config, name)
        if type(value) is not float or word not in FIELD:
            continue
        given = parse.parse([config], [f"--{word.replace('_', '-')}", "0.25"], "train")
        assert given == {name: 0.25}
        assert canonical(config, {word: 0.25}) == {name: 0.25}
        with pytest.raises(SpecError, match=f"got '{name}' twice, once as '{word}'"):
            canonical(config, {name: 0.5, word: 0.25})


def test_names_that_mean_something_else_are_no_aliases():
    known = {agent: aliases(config_class(agent)) for agent in AGENTS}
    assert known["ppo"]["clip_range"] == "clip_norm" and "clip_range" not in known["trpo"]
    assert known["ppo"]["num_steps"] == "n_steps" and "num_steps" not in known["dqn"]
    assert known["ppo"]["gae_lambda"] == "lam" and "gae_lambda" not in known["pqn"]
    assert known["pqn"]["n_epochs"] == "epochs" and "n_epochs" not in known["trpo"]
    assert known["sac"]["learning_starts"] == "buffer_initial_size" and "learning_starts" not in known["acer"]
    assert known["dqn"]["batch_size"] == "buffer_batch_size" and "batch_size" not in known["ppo"]
    everywhere = {word for words in known.values() for word in words} | aliases(RunConfig).keys()
    assert everywhere >= FIELD.keys()
    assert all(name in options(config_class(a)) for a, words in known.items() for name in words.values())


@pytest.mark.slow
def test_what_the_end_of_a_run_suggests_works(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = (
        "--n-envs 2 --n-steps 8 --mini-batches 2 --ppo-epochs 1 --seed 1 --run-dir run --reward-buffer-size 2"
    )
    assert main(["train", "ppo", "--env", "CartPole-v1", "--target-reward", "1", *tiny.split()]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"^Done: mean return \d+\.\d\d reached after \d+ steps \(.* s, \d+ episodes\)$", out, re.M
    )
    said = dict(re.findall(r"^(Watch|Plot|Continue): +operant (.*)$", out, re.M))
    assert said["Continue"].startswith("train --resume run --target-reward none --max-steps ")
    for name in ("Watch", "Plot", "Continue"):
        assert main(shlex.split(said[name])) == 0, capsys.readouterr()
    assert list(tmp_path.glob("videos/*.mp4")) and list(tmp_path.rglob("*.png"))
    assert "Done: mean return" in capsys.readouterr().out


def test_code_in_messages_stays_code():
    text = "reset must take a seed, as reset(self, *, seed=None) of Env. Received: seed=1, lr=2."
    assert parse.readable(text) == (
        "reset must take a seed, as reset(self, *, seed=None) of Env. Received: --seed 1, --lr 2."
    )
    text = "Give the networks: Agent.load(..., agent={'type': ..., 'model': ...}), or seed=1."
    assert parse.readable(text) == text
