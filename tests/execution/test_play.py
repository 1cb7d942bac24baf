"""Watching a policy: statistics, videos, pictures, a window."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

import operant
from operant.checkpoint import weight_files
from operant.cli import main
from operant.envs.vector.create import create
from operant.errors import EnvError, SpecError
from operant.execution.play import PlayConfig, play
from operant.execution.render import (
    Pictures,
    RenderVectorEnv,
    RenderWrapper,
    Video,
    Window,
    frame_rate,
    inner,
    unseen,
)
from operant.execution.trainers.inputs import create_envs
from operant.tracking import read_history
from operant.training.evaluate import Evaluator

NET = ["--model", '[{"type": "dense", "size": 8}]']


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder of a short run, and its file of weights."""
    folder = tmp_path_factory.mktemp("play")
    command = [
        "train",
        "ppo",
        "--env",
        "CartPole-v1",
        "--n-envs",
        "2",
        "--max-steps",
        "1200",
        "--seed",
        "1",
        "--quiet",
    ]
    files = ["--run-dir", str(folder / "run"), "--checkpoints", str(folder / "ppo.tf")]
    assert main([*command, *NET, *files]) == 0
    return folder


@pytest.mark.parametrize("flags", [[], ["--env", "CartPole-v1"], ["--env", "CartPole-v1", "--quiet"]])
def test_an_agent_whose_name_is_a_folder_of_a_run(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ppo").mkdir()
    assert main(["play", "ppo"]) == 0  # any folder: help
    assert "Usage:" in capsys.readouterr().out
    (tmp_path / "ppo" / "run.json").write_text("{}")
    assert main(["play", "ppo", *flags]) == 2
    out, error = capsys.readouterr()
    assert out == "" and "For that give its path, ./ppo; for the other rename the folder.\n" in error
    assert main(["play", "ppo", "--help"]) == 0
    assert main(["play", "ppo", "--env", "CartPole-v1", "--weights", "w.tf"]) == 2
    assert "The weights 'w.tf' do not exist." in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_plays(trained, capsys):
    assert main(["play", str(trained / "run"), "--episodes", "3"]) == 0
    assert "3 episodes: mean return" in capsys.readouterr().out
    one = play(PlayConfig.from_dict({"run_dir": str(trained / "run"), "episodes": 3}))
    assert len(one.rewards) == 3 and one.rewards == [float(n) for n in one.lengths] and one.files == []
    assert one == play(PlayConfig.from_dict({"run_dir": str(trained / "run"), "episodes": 3}))
    other = play(PlayConfig.from_dict({"run_dir": str(trained / "run"), "episodes": 3, "action_idx": 1}))
    assert other.rewards != one.rewards
    assert (
        main(["play", f"--run-dir={trained / 'run'}", "--episodes", "3"]) == 0
    )  # a flag, though it has slashes
    assert "3 episodes: mean return" in capsys.readouterr().out


@pytest.mark.slow
def test_weights_play_as_the_run_does(trained):
    """The best weights are those of the last log point here or of an earlier one.

    Loaded twice they play alike.
    """
    given = {"env": "CartPole-v1", "weights": [str(trained / "ppo.tf")], "episodes": 2}
    model = [{"type": "dense", "size": 8}]
    first = play(PlayConfig.from_dict(given), "ppo", model=model)
    assert first == play(PlayConfig.from_dict(given), "ppo", model=model)
    untrained = play(PlayConfig.from_dict({**given, "weights": (), "seed": 5}), "ppo", model=model)
    assert first.rewards != untrained.rewards


UNTRAINED = """
import sys
import jax
from operant.execution.play import PlayConfig, play

jax.config.update("jax_cpu_enable_async_dispatch", True)
jax.random.key(0)  # starts JAX
model = [{"type": "flatten"}, {"type": "dense", "size": 1024}, {"type": "dense", "size": 1024}]
settings = {"env": "CartPole-v1", "video_dir": sys.argv[1], "episodes": 1, "quiet": True}
for _ in range(2):
    play(PlayConfig.from_dict(settings), "a2c", model=model)
"""


@pytest.mark.slow
def test_a_video_of_an_untrained_agent_where_calls_are_asynchronous(tmp_path):
    """The video's process was started while weights were made orthogonal, which stopped for ever."""
    pytest.importorskip("imageio_ffmpeg", reason="needs the extra 'video'")
    program = [sys.executable, "-c", UNTRAINED, str(tmp_path)]
    subprocess.run(program, timeout=120, check=True)
    assert len(list(tmp_path.glob("*.mp4"))) == 2


@pytest.mark.slow
def test_videos_and_pictures_show_the_episode(trained, tmp_path):
    pytest.importorskip("imageio_ffmpeg", reason="needs the extra 'video'")
    import imageio_ffmpeg
    from PIL import Image

    config = PlayConfig.from_dict(
        {
            "run_dir": str(trained / "run"),
            "episodes": 2,
            "video_dir": str(tmp_path / "v"),
            "frame_dir": str(tmp_path / "f"),
            "frame_frequency": 4,
        }
    )
    played = play(config)
    videos = [path for path in played.files if path.suffix == ".mp4"]
    assert [path.name for path in videos] == ["episode-000.mp4", "episode-001.mp4"]
    for path, length in zip(videos, played.lengths, strict=True):
        frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
        assert frames == length + 1 and seconds == pytest.approx((length + 1) / 50, abs=0.05)
    first = sorted((tmp_path / "f").glob("*.jpg"))
    assert [int(path.stem) for path in first] == list(range(0, played.lengths[0] + 1, 4))
    picture = np.asarray(Image.open(first[0]))
    assert picture.shape == (400, 600, 3) and 0 < (picture < 50).mean() < 0.2  # a black cart on white
    assert (tmp_path / "f" / "episode-001" / "00000.jpg").exists()
    again = play(config.replace(frame_dir=None, episodes=1))
    assert [path.name for path in again.files] == ["episode-002.mp4"]  # earlier ones are kept


def test_what_shows_episodes_looks_for_no_sound_and_without_a_window_for_no_display(monkeypatch):
    monkeypatch.setenv("SDL_AUDIODRIVER", "alsa")
    for name in ("SDL_VIDEODRIVER", "PYGAME_HIDE_SUPPORT_PROMPT"):
        monkeypatch.delenv(name, raising=False)
    with unseen():
        assert os.environ["SDL_AUDIODRIVER"] == "alsa"  # the user's own choice
        assert os.environ["SDL_VIDEODRIVER"] == "dummy" and os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] == "1"
    with unseen(window=True):
        assert "SDL_VIDEODRIVER" not in os.environ
    assert "PYGAME_HIDE_SUPPORT_PROMPT" not in os.environ
    monkeypatch.delenv("SDL_AUDIODRIVER")
    with pytest.raises(KeyError), unseen():
        assert os.environ["SDL_AUDIODRIVER"] == "dummy"
        raise KeyError
    assert "SDL_AUDIODRIVER" not in os.environ


def test_odd_sizes_become_videos_too(tmp_path):
    pytest.importorskip("imageio_ffmpeg", reason="needs the extra 'video'")
    import imageio_ffmpeg

    video = Video(tmp_path, 10.0)
    for i in range(5):
        video.frame(np.full((33, 35, 3), 50 * i, np.uint8), i)
    video.end()
    assert imageio_ffmpeg.count_frames_and_secs(str(video.files[0]))[0] == 5


@pytest.mark.slow
def test_weights_of_a_recurrent_network_play_however_blocks_were_divided(tmp_path, capsys):
    path, model = str(tmp_path / "net.tf"), '["flatten", {"type": "gru", "size": 4, "horizon": 8}]'
    command = ["ppo", "--env", "CartPole-v1", "--model", model, "--seed", "1"]
    assert main(["train", *command, "--n-envs", "4", "--max-steps", "1024", "--quiet", "--checkpoints", path,
                 "--run-dir", str(tmp_path / "run")]) == 0  # fmt: skip
    assert main(["play", *command, "--weights", path]) == 0
    out = capsys.readouterr().out
    assert "Total reward: " in out and "untrained" not in out
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    for given in (tmp_path / "run", checkpoint):
        assert main(["play", *command, "--weights", str(given)]) == 0
        assert "untrained" not in capsys.readouterr().out
    run = ["--run-dir", str(tmp_path / "run"), "--max-steps", "3"]
    for told, untrained in ((run, False), (["ppo", *run], False), ([*command, "--max-steps", "3"], True)):
        assert main(["play", *told]) == 0
        assert ("The policy is untrained." in capsys.readouterr().out) is untrained


@pytest.mark.slow
def test_a_run_plays_with_its_own_time_limit(tmp_path):
    path = str(tmp_path / "run")
    told = [
        "--max-episode-timesteps",
        "50",
        "--max-steps",
        "120",
        "--n-steps",
        "60",
        "--quiet",
        "--run-dir",
        path,
    ]
    assert main(["train", "ppo", "--env", "Pendulum-v1", *told]) == 0
    assert play(PlayConfig(run_dir=path, episodes=2)).lengths == [50, 50]
    assert play(PlayConfig(run_dir=path, max_episode_timesteps=30)).lengths == [30]


NOTHING_LIMITS = "tests.execution.test_play:Endless"


class Endless(gymnasium.Wrapper):
    """CartPole that no registry limits."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1").unwrapped)


@pytest.mark.slow
def test_an_agent_that_counts_episodes_plays_by_weights(tmp_path, capsys):
    """Its memory has room for the longest episode, which the environment tells, or the option."""
    path = str(tmp_path / "v.tf")
    own = ["vpg", "--env", "CartPole-v1", *NET]
    files = ["--checkpoints", path, "--run-dir", str(tmp_path / "run")]
    assert main(["train", *own, "--max-steps", "600", "--quiet", *files]) == 0
    assert main(["play", *own, "--weights", path]) == 0
    assert "Total reward" in capsys.readouterr().out
    own[2] = NOTHING_LIMITS
    assert main(["play", *own, "--weights", path]) == 2
    assert "needs to know how long episodes can be" in capsys.readouterr().err
    assert main(["play", *own, "--weights", path, "--max-episode-timesteps", "5"]) == 0
    assert "Total reward: 5" in capsys.readouterr().out


def test_what_an_agent_refuses_of_an_environment_leaves_none_open(monkeypatch):
    """Here its time limit, which is none."""
    closed = []
    monkeypatch.setattr(Endless, "spec", type("Spec", (), {"max_episode_steps": 0})(), raising=False)
    monkeypatch.setattr(Endless, "close", lambda env: closed.append(env))
    with pytest.raises(SpecError, match=r"episode_limit must be .*Received: episode_limit=0"):
        play(PlayConfig.from_dict({"env": NOTHING_LIMITS}), "vpg")
    assert len(closed) == 1


def test_a_window_without_a_display(monkeypatch):
    pytest.importorskip("pygame", reason="needs the extra 'classic'")
    import pygame

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    window = Window("test", 0.0)
    window.frame(np.full((10, 20, 3), 200, np.uint8), 0)
    assert pygame.surfarray.array3d(pygame.display.get_surface()).shape == (20, 10, 3)
    assert (pygame.surfarray.array3d(pygame.display.get_surface()) == 200).all()
    pygame.display.quit()


@pytest.mark.slow
@pytest.mark.parametrize(("display", "rc"), [("egl", 0), ("glfw", 2)])
def test_mujoco_without_a_display(display, rc, tmp_path):
    """In a process of its own: MuJoCo asks once where to draw."""
    command = [
        "play",
        "random",
        "--env",
        "InvertedPendulum-v5",
        "--max-steps",
        "2",
        "--frame-dir",
        str(tmp_path),
    ]
    found = subprocess.run(
        [sys.executable, "-m", "operant", *command],
        env={**os.environ, "MUJOCO_GL": display, "DISPLAY": "", "WAYLAND_DISPLAY": ""},
        capture_output=True,
        text=True,
    )
    if display == "egl" and "MUJOCO_GL" in found.stderr:
        pytest.skip("this machine has no EGL to draw with")
    assert found.returncode == rc, found.stderr
    assert rc == 0 or "set the environment variable MUJOCO_GL=egl" in found.stderr.replace("\n", " ")
    assert len(list(tmp_path.glob("*.jpg"))) == (3 if rc == 0 else 0)


@pytest.mark.parametrize(
    ("env", "chosen", "follows"),
    [
        ("HalfCheetah-v5", {}, True),
        ("HalfCheetah-v5", {"camera_id": -1}, False),
        ("HalfCheetah-v5", {"default_camera_config": {"distance": 9.0}}, False),
        ("InvertedPendulum-v5", {}, False),
    ],
)
def test_mujocos_camera_follows_unless_another_view_was_chosen(env, chosen, follows, tmp_path):
    """The models of runners have one camera, 0, which follows; that of the pendulum has none.

    What Gymnasium looks through by itself depends on its version.
    """
    made = gymnasium.make(env, render_mode="rgb_array", **chosen)
    gymnasiums = made.unwrapped.mujoco_renderer.camera_id
    filmed = RenderWrapper(made, Pictures(tmp_path, 1))
    assert filmed.unwrapped.mujoco_renderer.camera_id == (0 if follows else gymnasiums)


@pytest.mark.parametrize(
    ("env", "arguments", "rate"),
    [
        ("ALE/Pong-v5", {}, 15),  # ALE shows every fourth of 60 frames
        ("PongNoFrameskip-v4", {}, 60),
        ("PongNoFrameskip-v4", {"preprocess": True}, 15),
        ("PongNoFrameskip-v4", {"preprocess": True, "frame_skip": 2}, 30),
        ("CartPole-v1", {}, 50),
    ],
)
def test_videos_run_at_the_speed_of_the_environment(env, arguments, rate):
    if "Pong" in env:
        pytest.importorskip("ale_py", reason="Atari is an extra")
    vector = create(env, 1, render_mode="rgb_array", mode="in-process", **arguments)
    assert frame_rate(inner(vector)) == rate
    vector.close()
    if env == "CartPole-v1":
        slow = gymnasium.wrappers.MaxAndSkipObservation(gymnasium.make(env), skip=5)
        assert frame_rate(slow) == 10


class Draws(gymnasium.Env):
    """Renders what `draw` gives for the number of a frame."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    draw = None

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 3, False, {}

    def render(self):
        return type(self).draw(self.t)


@pytest.mark.parametrize("output", ["video_dir", "frame_dir"])
@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (
            lambda t: np.zeros((4, 6), np.uint8),
            SpecError,
            r"'Draws' gives no pictures to render\. Received: an array of shape \(4, 6\) and dtype uint8\. "
            r"render must return colours, uint8 \(height, width, 3\)",
        ),
        (
            lambda t: np.zeros((4, 6, 1), np.uint8),
            SpecError,
            r"an array of shape \(4, 6, 1\) and dtype uint8",
        ),
        (lambda t: np.ones((4, 6, 3)), SpecError, r"an array of shape \(4, 6, 3\) and dtype float64"),
        (lambda t: [], SpecError, r"Received: list\. Make it with render_mode='rgb_array'"),
        (
            lambda t: [][t],
            EnvError,
            r"'Draws' raised IndexError in render: list index out of range \(.*test_play.py, line ",
        ),
        (
            lambda t: gymnasium.Env.render(None),
            EnvError,
            r"'Draws' raised NotImplementedErr\w+ in render \(.*test_play.py, line ",
        ),
    ],
)
def test_what_cannot_be_drawn_is_told(draw, error, message, output, tmp_path, monkeypatch):
    monkeypatch.setattr(Draws, "draw", staticmethod(draw))
    env = Draws("rgb_array")
    with pytest.raises(error, match=message):
        operant.Random(Draws).play(env=env, **{output: str(tmp_path)})
    with pytest.raises(error, match=message):  # as a Runner films
        RenderWrapper(env, Pictures(tmp_path, 1)).reset()


def test_a_time_limit_holds_for_pictures_too():
    env = RenderVectorEnv(create([Draws("rgb_array")], max_episode_timesteps=20_000), [])
    assert env.max_episode_timesteps == 20_000  # else an episode would be cut


def test_pictures_of_a_video_have_one_size(tmp_path, monkeypatch):
    monkeypatch.setattr(Draws, "draw", staticmethod(lambda t: np.zeros((8 + t, 6, 3), np.uint8)))
    agent = operant.Random(Draws)
    assert len(agent.play(env=Draws("rgb_array"), frame_dir=str(tmp_path)).files) == 4
    message = r"The pictures of a video must be of one size\. Received: 6x8 and 6x9 \(frame 1\)\. .*frame_dir"
    with pytest.raises(SpecError, match=message):
        agent.play(env=Draws("rgb_array"), video_dir=str(tmp_path))


def test_native_environments_borrow_pictures(tmp_path):
    config = PlayConfig.from_dict({"env": "jax:CartPole-v1", "frame_dir": str(tmp_path), "max_steps": 3})
    pytest.importorskip("PIL", reason="needs the extra 'video'")
    played = play(config, "ppo", model=[{"type": "dense", "size": 4}])
    assert played.rewards == [] and str(played) == "No episode ended."
    assert len(played.files) == 4


@pytest.mark.slow
def test_an_agent_without_environment_plays_its_newest_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, agent in (("first", "a2c"), ("second", "a2c"), ("other", "random")):
        command = f"train {agent} --env jax:CartPole-v1 --max-steps 20 --quiet --run-dir runs/{name}"
        assert main(command.split()) == 0
    shutil.rmtree("runs/second/checkpoints")  # nothing to play in the newest
    capsys.readouterr()
    assert main(["play", "a2c", "--max-steps", "5"]) == 0
    assert "Without --env, the newest run of a2c plays: runs/first" in capsys.readouterr().out.splitlines()[0]
    assert main(["play", "ppo", "--max-steps", "5"]) == 2
    assert "env must be given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "play needs an agent or run_dir"),
        (["ppo", "--episodes", "1"], "env must be given"),
        (["ppo", "--env", "CartPole-v1", "--weights", "a", "b"], r"weights must be 1 path\(s\)"),
        (["--run-dir", "nowhere"], "There is no checkpoint in run_dir='nowhere'"),
        ([".", "--run-dir", "nowhere"], r"'\.' and --run-dir both say what plays. Give one of them\."),
        (["ppo", "--env", "jax:GridWorld", "--render"], "GridWorld"),
        (["ppo", "--env", "CartPole-v1", "--episods", "2"], "--episodes"),
        (["ppoo", "--env", "CartPole-v1"], "ppo"),
        (
            ["ppo", "--env", "x", "--video-dir", __file__],
            "--video-dir must be a folder: '.*' is a file. Received: --video-dir ",
        ),
        (
            ["ppo", "--env", "x", "--frame-dir", __file__ + "/in"],
            "--frame-dir must be a folder: .*--frame-dir '.*/in'",
        ),
        (
            ["ppo", "--env", "CartPole-v1", "--weights", "."],
            r"--weights must be what --checkpoints wrote, the folder of a run.*Received: --weights '.'.",
        ),
        (
            ["ppo", "--env", "CartPole-v1", "--weights="],
            r"--weights must be what --checkpoints wrote, the folder of a run.*Received: --weights ''.",
        ),
        (["ppo", "--env", "CartPole-v1", "--weights", __file__], "weights must be what --checkpoints wrote"),
    ],
)
def test_mistakes_exit_with_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where no run lies

    if not arguments:
        with pytest.raises(SpecError, match=message):
            play(PlayConfig())
        return
    assert main(["play", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_help_names_every_flag(capsys):
    assert main(["play", "--help-all"]) == 0
    text = capsys.readouterr().out
    for flag in (
        "--render",
        "--video-dir",
        "--frame-dir",
        "--frame-delay",
        "--action-idx",
        "--frame-frequency",
    ):
        assert flag in text
    assert main(["play", "ppo", "--help"]) == 0
    assert "--clip-norm" in capsys.readouterr().out


@pytest.mark.slow
def test_a_class_plays_and_trains_on(tmp_path, capsys):
    envs = create_envs("CartPole-v1", 2, preprocess=False)
    history = tmp_path / "h.parquet"
    agent = operant.PPO(
        envs,
        [{"type": "dense", "size": 8}],
        n_steps=16,
        mini_batches=1,
        seed=1,
        history_checkpoint=str(history),
        quiet=True,
    )
    agent.fit(max_steps=200)
    pytest.importorskip("PIL", reason="needs the extra 'video'")
    played = agent.play(frame_dir=str(tmp_path / "f"), episodes=2)
    assert len(played.rewards) == 2 and capsys.readouterr().out == ""
    assert len(list((tmp_path / "f").rglob("*.jpg"))) == sum(played.lengths) + 2
    again = agent.play(frame_dir=str(tmp_path / "f"), frame_frequency=2, episodes=2)
    assert {file.parent.name for file in again.files} == {"episode-002", "episode-003"}
    assert all(file.exists() for file in [*played.files, *again.files])
    agent.run_config = agent.run_config.replace(max_episode_timesteps=4)
    assert agent.play(episodes=2).lengths == [4, 4]
    agent.fit(max_steps=400)
    assert (np.diff(read_history(history)["step"]) >= 0).all()
    agent.close()


def test_playing_draws_other_episodes_than_training(monkeypatch):
    """Those of training with the same seed would tell how well it is remembered."""
    roots, run = [], Evaluator.run

    def watched(self, *args, seed, **options):
        roots.append(seed)
        return run(self, *args, seed=seed, **options)

    monkeypatch.setattr(Evaluator, "run", watched)
    for _ in range(2):  # the same program once more
        agent = operant.PPO("CartPole-v1", [{"type": "dense", "size": 4}], seed=3, quiet=True)
        assert len(agent.play().rewards) == 1 and len(agent.play(episodes=2).rewards) == 2
        agent.close()
    config = PlayConfig.from_dict({"env": "CartPole-v1", "quiet": True})
    one, other = play(config, "random"), play(config.replace(seed=3), "random")
    assert one == play(config, "random") != other
    first, second = roots[:2]
    assert roots[2:4] == [first, second] and roots[4] == roots[6] and roots[5] == first
    evaluations = [int(np.random.SeedSequence([3, i]).generate_state(1)[0] >> 1) for i in (0, 1)]
    assert len({0, 3, *evaluations, first, second, roots[4]}) == 7


class Plain(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}


def test_environments_that_cannot_be_made_again_or_shown(tmp_path):
    agent = operant.PPO([Plain()], [{"type": "dense", "size": 4}], n_steps=8, mini_batches=1, quiet=True)
    with pytest.raises(SpecError, match="not made by gymnasium.make"):
        agent.play()
    assert Pictures(tmp_path, 1).files == []
    agent.close()


@pytest.mark.slow
@pytest.mark.parametrize("format", ["stablehlo", "onnx"])
def test_an_exported_policy_plays_as_the_run_does(trained, tmp_path, capsys, format):
    path = operant.Agent.load(trained / "run").save(tmp_path, format=format)
    ours = play(PlayConfig.from_dict({"run_dir": str(trained / "run"), "episodes": 5, "seed": 3}))
    theirs = play(PlayConfig.from_dict({"policy": path, "env": "CartPole-v1", "episodes": 5, "seed": 3}))
    assert np.allclose(
        ours.rewards, theirs.rewards, atol=2
    )  # rounding may decide between actions that are as good
    assert (
        main(["play", path, "--env", "CartPole-v1", "--episodes", "2", "--frame-dir", str(tmp_path / "f")])
        == 0
    )
    assert "2 episodes: mean return" in capsys.readouterr().out
    assert len([*(tmp_path / "f").glob("*.jpg")]) > 10
    assert (
        main(["play", str(tmp_path), "--env", "CartPole-v1", "--episodes", "1"]) == 0
    )  # the folder around it
    assert "Total reward: " in capsys.readouterr().out
    assert main(["play", path, "--env", "Pendulum-v1"]) == 2
    assert "does not fit Pendulum-v1" in capsys.readouterr().err


def test_weights_are_not_taken_for_an_agent(trained, tmp_path, capsys):
    """A run writes them as a checkpoint, which says nothing of spaces."""
    shutil.copytree(trained / "ppo.tf", tmp_path / "a" / "ppo.tf")
    weight_files.write(tmp_path / "b.npz", {"model/x": np.zeros(1)}, {"weights": "model", "agent": "a"}, "b")
    for folder, file in (("a", "ppo.tf"), (".", "b.npz")):
        assert main(["play", str(tmp_path / folder), "--env", "CartPole-v1"]) == 2
        told = f"{file}' does not hold an agent. Weights are played by: operant play AGENT"
        assert told in capsys.readouterr().err


def test_what_a_program_saved_plays(tmp_path, capsys):
    with operant.Environment.create("CartPole-v1") as env:
        agent = operant.Agent.create(
            agent="ppo", environment=env, model=[{"type": "dense", "size": 4}], seed=2
        )
    places = [str(tmp_path / "a"), agent.save(tmp_path / "a")]  # a folder, a checkpoint
    agent.save(tmp_path / "b", format="safetensors")
    agent.close()
    returns = [
        play(PlayConfig.from_dict({"run_dir": place, "env": "CartPole-v1", "episodes": 2, "seed": 1})).rewards
        for place in (*places, str(tmp_path / "b"))  # weights alone
    ]
    assert returns[0] == returns[1] == returns[2]
    other = returns_of(tmp_path / "c", 3)
    given = {"run_dir": str(tmp_path / "b"), "weights": [other[0]], "env": "CartPole-v1", "episodes": 2}
    assert play(PlayConfig.from_dict({**given, "seed": 1})).rewards == other[1] != returns[0]


def returns_of(folder, seed):
    """Return a file of another agent's weights, and what it plays."""
    with operant.Environment.create("CartPole-v1") as env:
        model = [{"type": "dense", "size": 4}]
        agent = operant.Agent.create(agent="ppo", environment=env, model=model, seed=seed)
    path = agent.save(folder, format="safetensors")
    agent.close()
    config = {"run_dir": str(folder), "env": "CartPole-v1", "episodes": 2, "seed": 1}
    return path, play(PlayConfig.from_dict(config)).rewards


@pytest.mark.parametrize("way", ["run", "play"])
def test_an_agents_name_that_is_also_a_trained_one_is_refused(way, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    returns_of(tmp_path / "ppo", 2)
    with operant.Environment.create("CartPole-v1") as env:
        agent = operant.Agent.create(agent="a2c", environment=env, model=[{"type": "dense", "size": 4}])
    agent.save(directory=".", filename="a2c")
    agent.close()
    for name in ("ppo", "a2c"):
        words = {
            "run": ["--agent", name, "--environment", "CartPole-v1", "--episodes", "1"],
            "play": [name, "--env", "CartPole-v1"],
        }
        assert main([way, *words[way]]) == 2
        assert f"'{name}' is an agent, which is untrained, and here also" in capsys.readouterr().err


def test_an_exported_policy_with_masks_is_not_played_without(tmp_path, capsys):
    with operant.Environment.create("CartPole-v1") as env:
        agent = operant.Agent.create(agent="ppo", environment=env, model=[{"type": "dense", "size": 4}])
    agent.act(states={"state": np.zeros(4), "action_mask": [True, False]})
    path = agent.save(tmp_path, format="stablehlo")
    agent.close()
    assert main(["play", path, "--env", "CartPole-v1"]) == 2
    assert "it has masks for ['action'], the environment for []." in capsys.readouterr().err


def test_a_saved_agent_in_an_environment_that_is_not_like_its_own(tmp_path, capsys):
    with operant.Environment.create("CartPole-v1") as env:
        agent = operant.Agent.create(agent="ppo", environment=env, model=[{"type": "dense", "size": 4}])
    agent.save(tmp_path)
    agent.close()
    assert main(["play", str(tmp_path), "--env", "Pendulum-v1"]) == 2
    err = capsys.readouterr().err
    assert (
        "trained on other states than those of Pendulum-v1. Its own: state float (4,). The environment's: "
        "state float (3,)." in err
    )
    assert "does not fit what" not in err
    three = lambda: gymnasium.wrappers.TransformAction(  # noqa: E731
        gymnasium.make("CartPole-v1"), lambda action: action % 2, gymnasium.spaces.Discrete(3)
    )
    gymnasium.register("Three-v0", entry_point=three)
    try:
        assert main(["play", str(tmp_path), "--env", "Three-v0"]) == 2
    finally:
        del gymnasium.registry["Three-v0"]
    assert (
        "Its own: action int () below 2. The environment's: action int () below 3." in capsys.readouterr().err
    )
    assert main(["play", str(tmp_path), "--env", "CartPole-v1"]) == 0


@pytest.mark.parametrize(
    "options, message",
    [
        ({"policy": "a.onnx", "run_dir": "r"}, "Give one of them"),
        ({"policy": "a.onnx", "action_idx": 1}, "best actions only"),
    ],
)
def test_what_an_exported_policy_cannot_do(options, message):
    with pytest.raises(SpecError, match=message):
        PlayConfig.from_dict({"env": "CartPole-v1", **options})
    assert main(["play", "missing.onnx", "--env", "CartPole-v1"]) == 2


def test_a_run_does_not_say_what_to_import(tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text("raise AssertionError('imported')")
    (tmp_path / "planted.json").write_text('{"environment": "planted.x"}')
    monkeypatch.syspath_prepend(tmp_path)
    path = str(tmp_path / "run")
    told = ["--max-steps", "64", "--n-steps", "32", "--seed", "1", "--quiet", "--run-dir", path]
    assert main(["train", "ppo", "--env", "CartPole-v1", *told]) == 0
    file = tmp_path / "run" / "run.json"
    saved = json.loads(file.read_text())
    for planted in ("planted.x", "planted:CartPole-v1", str(tmp_path / "planted.json")):
        saved["run"]["env"] = planted
        file.write_text(json.dumps(saved))
        with pytest.raises(SpecError, match="Give the environment yourself, if you trust it: --env"):
            play(PlayConfig(run_dir=path))
    assert play(PlayConfig(run_dir=path, env="CartPole-v1")).lengths
    saved["run"]["env"] = "Games"
    file.write_text(json.dumps(saved | {"given": True}))
    with pytest.raises(SpecError, match="that its program made.*Give one: --env module:Name"):
        play(PlayConfig(run_dir=path))
    saved["run"]["env"] = "CartPole-v1"
    for name, value, message in (
        ("sutton_barto_reward", [str(tmp_path / "planted.json")], "if you trust it: --env-kwargs"),
        ("sutton_barto_reward", {"entry": "planted:x"}, "argument 'sutton_barto_reward' of the environment"),
        ("import_modules", "planted", "env_kwargs must be without 'import_modules'"),
    ):
        saved["run"]["env_kwargs"] = {name: value}
        file.write_text(json.dumps(saved))
        for env in ("", "CartPole-v1"):
            with pytest.raises(SpecError, match=message):
                play(PlayConfig(run_dir=path, env=env))
    saved["run"]["env_kwargs"] = {"sutton_barto_reward": "planted.x"}
    file.write_text(json.dumps(saved))
    assert play(PlayConfig(run_dir=path, env_kwargs={"sutton_barto_reward": True})).rewards == [-1.0]


@pytest.mark.slow
def test_a_run_plays_in_its_own_environment(tmp_path, capsys):
    path = str(tmp_path / "run")
    told = ["--max-steps", "32", "--n-steps", "16", "--quiet", "--run-dir", path]
    own = ["--env-kwargs", "sutton_barto_reward=true"]
    assert main(["train", "ppo", "--env", "CartPole-v1", *own, *told, *NET]) == 0
    assert main(["play", path]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["Total reward: -1"]
    config = PlayConfig(run_dir=path, env_kwargs={"sutton_barto_reward": False})
    played = play(config)
    assert played.rewards == played.lengths
    assert play(PlayConfig(run_dir=path, env="CartPole")).rewards == [-1.0]  # the same by another name
    assert play(PlayConfig(run_dir=path, env="CartPole-v0", episodes=1)).rewards != [
        -1.0
    ]  # another environment
