"""The examples of the predecessor's documentation, with smaller budgets.

Its ten Python programs stand in `tests/data/examples` as printed after one substitution, which the README
names: `sed 's/xagents\\|tensorflow/operant/g'`. The command lines stand here.
"""

from __future__ import annotations

import ast
import importlib
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import operant
from operant import checkpoint
from operant.cli import main
from operant.errors import SpecError
from operant.execution.trainers.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore:The state must be between -3.14159")
"""The hull of BipedalWalker-v3 turns beyond the angle that its space declares."""

USAGE = Path(__file__).parents[1] / "data" / "examples" / "usage"
EXAMPLES = sorted(USAGE.parent.glob("*.py"))
COMMANDS = [
    "train a2c --env PongNoFrameskip-v4 --n-env 16 --target-reward 19 --preprocess",
    "train a2c --env PongNoFrameskip-v4 --target-reward 19 --n-envs 16 --preprocess --checkpoints "
    "a2c-pong.tf",
    "train a2c --env BipedalWalker-v3 --target-reward 100 --n-envs 16 --checkpoints a2c-bipedal-walker.tf",
    "train acer --env PongNoFrameskip-v4 --target-reward 19 --n-envs 16 --preprocess --checkpoints "
    "acer-pong.tf --buffer-max-size 5000 --buffer-initial-size 500 --trust-region",
    "train ddpg --env BipedalWalker-v3 --target-reward 100 --n-envs 16 --checkpoints "
    "ddpg-actor-bipedal-walker.tf ddpg-critic-bipedal-walker.tf --buffer-max-size 1000000 "
    "--buffer-initial-size 25000 --buffer-batch-size 100",
    "train dqn --env PongNoFrameskip-v4 --target-reward 19 --n-envs 3 --lr 1e-4 --preprocess --checkpoints "
    "dqn-pong.tf --buffer-max-size 50000 --buffer-initial-size 10000 --max-frame",
    "train ppo --env PongNoFrameskip-v4 --target-reward 19 --n-envs 16 --preprocess --checkpoints "
    "ppo-pong.tf",
    "train ppo --env BipedalWalker-v3 --target-reward 200 --n-envs 16 --checkpoints ppo-bipedal-walker.tf",
    "train td3 --env BipedalWalker-v3 --target-reward 300 --n-envs 16 --checkpoints "
    "td3-actor-bipedal-walker.tf td3-critic1-bipedal-walker.tf td3-critic2-bipedal-walker.tf "
    "--buffer-max-size 1000000 --buffer-initial-size 100 --buffer-batch-size 100",
    "train trpo --env PongNoFrameskip-v4 --target-reward 19 --n-envs 16 --checkpoints trpo-actor-pong.tf "
    "trpo-critic-pong.tf --preprocess --lr 1e-3",
    "train trpo --env BipedalWalker-v3 --target-reward 200 --n-envs 16 --checkpoints trpo-actor-pong.tf "
    "trpo-critic-pong.tf --lr 1e-3",
]
BUDGETS = {
    "ddpg": "--buffer-initial-size 200",
    "dqn": "--buffer-initial-size 200",
    "ppo": "--n-steps 16",
    "trpo": "--n-steps 16",
}
"""What is added so that little time is enough for updates."""


def once(command):
    """Leave to the exhaustive run what another command line or a program shows as well."""
    double = "--n-env " in command or ("Pong" in command and "dqn" not in command and "acer" not in command)
    return pytest.param(command, marks=pytest.mark.exhaustive if double else pytest.mark.slow)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "command", [once(command) for command in COMMANDS], ids=["-".join(c.split()[1:4:2]) for c in COMMANDS]
)
def test_command_lines(command, tmp_path, monkeypatch):
    pytest.importorskip("ale_py", reason="needs the extra 'atari'")
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(command)
    budget = [
        *shlex.split(BUDGETS.get(arguments[1], "")),
        "--max-steps",
        "400",
        "--run-dir",
        "run",
        "--seed",
        "1",
    ]
    assert main([*arguments, *budget, "--quiet"]) == 0
    tree, header = checkpoint.load(checkpoint.latest(Path("run") / "checkpoints"))
    assert header["training"]["step"] > 350
    updates = [int(x) for name, x in tree.items() if name.endswith("counters.updates")]
    assert updates[0] > 0
    assert all(np.isfinite(np.asarray(x)).all() for name, x in tree.items() if "params" in name)
    if "--checkpoints" in arguments:
        files = [argument for argument in arguments if argument.endswith(".tf")]
        assert all(checkpoint.is_checkpoint(file) for file in files)


@pytest.mark.slow
def test_imports_of_programs_need_nothing_set():
    """Eight of the ten ask for Keras before anything has asked it to run on JAX."""
    programs = [*EXAMPLES, *sorted(USAGE.glob("*.py"))]
    assert len(programs) == 10
    heads = []
    for program in programs:
        tree = ast.parse(program.read_text())
        assert not any((alias.name.partition(".")[0]) == "keras" for alias in _imported(tree))
        heads += [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert heads[0] == "from operant.keras.optimizers import Adam"
    variables = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    ends = "import keras; assert Adam is keras.optimizers.Adam and operant.keras is keras"
    command = [sys.executable, "-c", "\n".join([*heads, ends])]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def _imported(tree):
    return [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]


def test_faults_of_the_documents_are_answered():
    """Section 6.1 names one difference for BipedalWalker, `preprocess=False`; there are two more."""
    pytest.importorskip("Box2D", reason="needs the extra 'box2d'")
    envs = operant.create_envs("BipedalWalker-v3", 1, preprocess=False)
    with pytest.raises(AttributeError, match=r"no n. Use action_space.shape\[0\].*\['ann'\]\[0\]"):
        print(envs[0].action_space.n)
    assert not hasattr(envs[0].action_space, "n")
    sizes, shape = [envs[0].action_space.shape[0], 1], envs[0].observation_space.shape
    files = operant.agents["a2c"]["model"]
    with pytest.raises(SpecError, match=r"Received: shape \(24,\). A vector takes .*\['ann'\]\[0\]"):
        operant.ModelReader(files["cnn"][0], sizes, shape).build_model()
    with pytest.raises(
        SpecError, match=r"path of a file, such as operant.agents.*\['ann'\]\[0\] for vectors"
    ):
        operant.ModelReader(files["ann"], sizes, shape)
    with pytest.raises(SpecError, match=r"\['ann'\]\[0\] or \['cnn'\]\[0\]. Received: \[0\]"):
        operant.ModelReader(files[0], sizes, shape)
    with pytest.raises(SpecError, match="has no 'model'. It has .*'actor_model', 'critic_model'"):
        print(operant.agents["ddpg"]["model"])
    operant.ModelReader(files["ann"][0], sizes, shape)


def test_a_critic_made_from_the_actors_file_is_warned_of():
    """Sections 6.3 and 6.6 print such programs."""
    files, envs = operant.agents["ddpg"], operant.create_envs("Pendulum-v1", 1, preprocess=False)
    actor = operant.ModelReader(files["actor_model"]["ann"][0], 1, 3).build_model()
    bounded = operant.ModelReader(files["actor_model"]["ann"][0], 1, 4).build_model()
    with pytest.warns(RuntimeWarning, match=r"ends in tanh.*agents\['ddpg'\]\['critic_model'\]\['ann'\]"):
        operant.DDPG(envs, actor, bounded, quiet=True)
    operant.DDPG(envs, actor, operant.ModelReader(files["critic_model"]["ann"][0], 1, 4).build_model())


def test_keras_is_found_below_operant():
    import keras
    from operant.keras import layers
    from operant.keras.layers import Dense

    assert operant.keras is keras and layers is keras.layers and Dense is keras.layers.Dense
    assert keras.layers.__spec__.name == "keras.layers", "Keras itself must not be renamed"
    with pytest.raises(ModuleNotFoundError, match="No module named 'keras.nonsense'"):
        importlib.import_module("operant.keras.nonsense")
    assert operant.get_logger().name == "operant"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:critic_model ends in tanh")  # ddpg and td3
@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_programs(example, tmp_path, monkeypatch):
    pytest.importorskip("ale_py", reason="needs the extra 'atari'")
    monkeypatch.chdir(tmp_path)
    fit, seen = Trainer.fit, []

    def short(self, target_reward=None, max_steps=None):
        seen.append(self)
        before = int(self.session.driver.train.counters.updates)
        outcome = fit(self, target_reward=target_reward, max_steps=400)
        assert int(self.session.driver.train.counters.updates) > before
        return outcome

    monkeypatch.setattr(Trainer, "fit", short)
    shrink(monkeypatch)
    runpy.run_path(str(example))
    assert len(seen) == 1 and seen[0].steps > 350
    seen[0].close()


def shrink(monkeypatch):
    """Make rollouts and first fillings of memories short."""
    build = Trainer.__init__

    def built(self, envs, *parts, **settings):
        if self.agent in ("ppo", "trpo"):
            settings["n_steps"] = 16
        for share in parts[-1] if isinstance(parts[-1], list) else []:
            share.initial_size = min(share.initial_size, 20)
        build(self, envs, *parts, seed=1, quiet=True, **settings)

    monkeypatch.setattr(Trainer, "__init__", built)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_was_trained_plays(tmp_path, monkeypatch):
    """Section 4.2: the program and its command line, with weights that a command line trained."""
    pytest.importorskip("ale_py", reason="needs the extra 'atari'")
    monkeypatch.chdir(tmp_path)
    played, play = [], Trainer.play

    def short(self, **options):
        played.append(play(self, max_steps=30, **options))
        return played[-1]

    monkeypatch.setattr(Trainer, "play", short)
    model = str(operant.agents["a2c"]["model"]["cnn"][0])
    game = ["a2c", "--env", "PongNoFrameskip-v4", "--preprocess", "--model", model]
    budget = shlex.split("--n-envs 1 --max-steps 120 --max-episode-timesteps 50 --run-dir run --quiet")
    assert main(["train", *game, "--checkpoints", "trained-weights.tf", *budget]) == 0
    program = (USAGE / "playing.py").read_text()
    assert program.count("/path/to/") == 3
    Path("playing.py").write_text(program.replace("/path/to/", ""))
    runpy.run_path("playing.py")
    assert len(played) == 3
    assert list(Path("video-dir").glob("*.mp4")) and list(Path("frame-dir").rglob("*.jpg"))
    command = ["play", *game, "--weights", "trained-weights.tf", "--render", "--max-steps", "30"]
    assert main([*command, "--video-dir", "more", "--frame-dir", "still"]) == 0
    assert list(Path("more").glob("*.mp4")) and list(Path("still").rglob("*.jpg"))


SMALLER = {
    "range(2, 11)": "range(2, 4)",
    "range(4, 7)": "range(1, 3)",
    "steps = 500000": "steps = 1000",
    "range(100)": "range(2)",
}
"""What is replaced in the program that tunes."""
TUNE = (
    "tune ppo --env PongNoFrameskip-v4 --study ppo-carnival --storage sqlite:///ppo-carnival.db "
    "--trial-steps 500000 --n-trials 100 --warmup-trials 3 --preprocess --n-envs 16 32 --lr 1e-5 1e-2 "
    "--opt-epsilon 1e-7 1e-4 --gamma 0.9 0.999 --entropy-coef 0.01 0.2 --n-steps 16 32 64 128 --lam 0.7 0.99"
)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["command line", "program"])
def test_two_trials_are_tuned(way, tmp_path, monkeypatch):
    """Section 4.3, with a smaller grid."""
    pytest.importorskip("ale_py", reason="needs the extra 'atari'")
    optuna = pytest.importorskip("optuna", reason="needs the extra 'tune'")
    monkeypatch.chdir(tmp_path)
    if way == "command line":
        name = "ppo-carnival"
        budget = "--trial-steps 400 --max-episode-timesteps 40 --n-trials 2 --n-envs 2 4 --n-steps 8 16"
        assert main([*shlex.split(TUNE), *shlex.split(budget)]) == 0
    else:
        name = "ppo-example"
        program = (USAGE / "tuning.py").read_text()
        for large, small in SMALLER.items():
            assert program.count(large) == 1
            program = program.replace(large, small)
        Path("tuning.py").write_text(program)
        variables = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
        subprocess.run([sys.executable, "tuning.py"], check=True, timeout=800, env=variables)
    trials = optuna.load_study(study_name=name, storage=f"sqlite:///{name}.db").trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "COMPLETE"]
    assert all(np.isfinite(trial.value) for trial in trials)
