"""Summaries of an agent in the user's program, read back by TensorBoard's own reader."""

from __future__ import annotations

import io
import resource
import subprocess
import sys
import wave

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from operant import Agent
from operant.errors import SpecError, UsageError
from operant.tracking.summaries import Summarizer, SummarizerConfig

STATE = {"type": "float", "shape": (3,)}
CHOICE = {"type": "int", "num_values": 3}
NET = [{"type": "dense", "size": 8}]
PPO = {"agent": "ppo", "n_steps": 4, "mini_batches": 2, "ppo_epochs": 1, "model": NET}


def run(tmp_path, steps=20, **options):
    agent = Agent.create(
        **PPO, states=STATE, actions=CHOICE, summarizer={"directory": str(tmp_path), **options}
    )
    draw = np.random.default_rng(0)
    for i in range(steps):
        agent.act(states=draw.normal(size=3))
        agent.observe(reward=float(i), terminal=i % 5 == 4)
    return agent


def read(folder):
    events = EventAccumulator(
        str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0, "histograms": 0}
    )
    events.Reload()
    return events


def test_every_label_is_recorded(tmp_path):
    agent = run(tmp_path, frequency=8)
    updates = agent.updates
    agent.close()
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("summary-20")
    events = read(folder)
    scalars = set(events.Tags()["scalars"])
    assert {
        "reward",
        "episode-return",
        "episode-length",
        "loss/policy",
        "loss/value",
        "policy/entropy",
    } < scalars
    assert {"update/kl", "update/grad_norm", "update/lr", "value/mean"} < scalars
    assert [(e.step, e.value) for e in events.Scalars("reward")] == [(8, 7.0), (16, 15.0)]
    assert [(e.step, e.value) for e in events.Scalars("episode-return")] == [
        (1, 10.0),
        (2, 35.0),
        (3, 60.0),
        (4, 85.0),
    ]
    assert {e.value for e in events.Scalars("episode-length")} == {5.0}
    assert [e.step for e in events.Scalars("loss/policy")] == list(range(1, updates + 1))
    variables = [name for name in scalars if name.startswith("variables/model/")]
    changes = [name for name in scalars if name.startswith("updates/model/") and name.endswith("-variance")]
    assert len(variables) == len(changes) > 3
    # of most: a bias of a single number has no variance
    moved = [any(e.value > 0 for e in events.Scalars(name)) for name in changes]
    assert sum(moved) > len(changes) / 2
    assert f"{variables[0]}-histogram" in events.Tags()["histograms"]
    graph = events.Tensors("graph/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "dense" in graph and "model" in graph


def test_a_full_disk_is_outlived(tmp_path):
    """Files may not grow for a while, as on a full disk: nobody waits, and what they did not take follows."""
    config = {"directory": str(tmp_path), "labels": ["reward"], "frequency": 1}
    summarizer = Summarizer(SummarizerConfig.parse(config), 1)
    summarizer.observe(0, 1.0, 0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = max(file.stat().st_size for file in summarizer.folder.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.warns(RuntimeWarning, match="A summary waits for .*: .*File too large"):
            for _ in range(30):
                summarizer.observe(0, 2.0, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    summarizer.observe(0, 3.0, 1)
    summarizer.close()
    assert [e.value for e in read(summarizer.folder).Scalars("reward")] == [1.0] + [2.0] * 30 + [3.0]


def test_only_the_labels_asked_for(tmp_path):
    run(tmp_path, labels=["entropy", "losses"]).close()
    (folder,) = tmp_path.iterdir()
    tags = read(folder).Tags()
    assert set(tags["scalars"]) == {"policy/entropy", "loss/policy", "loss/value"}
    assert not tags["tensors"] and not tags["histograms"]


@pytest.mark.parametrize(
    "options",
    [
        {"agent": "ppo", "n_steps": 4, "mini_batches": 1, "model": NET},
        {"agent": "a2c", "n_steps": 4, "model": NET},
        {"agent": "trpo", "n_steps": 4, "actor_model": NET, "critic_model": NET},
        {"agent": "modular", "update": 4, "network": NET, "horizon": 1},
    ],
    ids=lambda options: options["agent"],
)
@pytest.mark.slow
def test_the_distribution_of_continuous_actions_has_a_deviation(tmp_path, options):
    """At first half of the distance between the bounds, 4: the Gaussian's own is 1 in that unit."""
    actions = {"type": "float", "shape": 2, "min_value": -4.0, "max_value": 4.0}
    summarizer = {"directory": str(tmp_path), "labels": ["distribution"]}
    agent = Agent.create(**options, states=STATE, actions=actions, lr=1e-6, summarizer=summarizer)
    for i in range(9):
        agent.act(states=np.full(3, 0.1 * i))
        agent.observe(reward=float(i), terminal=i % 5 == 4)
    agent.close()
    (folder,) = tmp_path.iterdir()
    events = read(folder)
    assert events.Tags()["scalars"] == ["policy/std"]
    assert events.Scalars("policy/std")[0].value == pytest.approx(4.0, rel=0.1)


def test_custom_summaries(tmp_path):
    custom = {
        "picture": {"type": "image", "max_outputs": 2}, "number": {}, "spread": {"type": "histogram"},
        "words": {"type": "text"}, "sound": {"type": "audio"},
    }  # fmt: skip
    agent = run(tmp_path, labels=[], custom=custom)
    image = np.zeros((5, 6, 3), np.uint8)
    image[..., 0] = 200
    agent.summarize(summary="picture", value=np.stack([image] * 3))
    agent.summarize("number", 2.5, step=7)
    agent.summarize("spread", np.append(np.arange(9.0), [np.nan, 1e25]))
    agent.summarize("spread", [np.nan], step=9)  # nothing to show
    agent.summarize("words", "hello")
    agent.summarize("sound", np.sin(np.arange(4000) / 10))
    agent.summarize("sound", np.sin(np.arange(8000) / 10).reshape(2, 2000, 2), step=30)  # TensorFlow's shape
    for name, value, message in [
        ("pictur", image, "no custom summary 'pictur'.*picture"),
        ("number", "x", "value must be numbers as a summary of type 'scalar'"),
        ("sound", np.zeros((4000, 2)), "type 'audio'"),
    ]:
        with pytest.raises(SpecError, match=message):
            agent.summarize(name, value)
    agent.close()
    (folder,) = tmp_path.iterdir()
    events = read(folder)
    assert [(e.step, e.value) for e in events.Scalars("number")] == [(7, 2.5)]
    assert events.Tags()["images"] == ["picture/0", "picture/1"]
    assert (events.Images("picture/0")[0].height, events.Images("picture/0")[0].width) == (5, 6)
    assert events.Images("picture/0")[0].step == 20
    assert events.Histograms("spread")[0].histogram_value.num == 10
    assert events.Tensors("words/text_summary")[0].tensor_proto.string_val[0] == b"hello"
    assert events.Tags()["audio"] == ["sound", "sound/0", "sound/1"]
    (stereo,) = events.Audio("sound/1")
    with wave.open(io.BytesIO(stereo.encoded_audio_string)) as file:
        assert (file.getnchannels(), file.getnframes(), stereo.length_frames) == (2, 2000, 2000)
        heard = np.frombuffer(file.readframes(2000), "<i2").reshape(2000, 2) / 32767
    np.testing.assert_allclose(heard[:, 1], np.sin(np.arange(4001, 8000, 2) / 10), atol=1e-4)
    with pytest.raises(UsageError, match="summarize needs a summarizer"):
        Agent.create(**PPO, states=STATE, actions=CHOICE).summarize("number", 1.0)


def test_steps_are_the_agents_after_experience_and_resets(tmp_path):
    agent = run(tmp_path, steps=3, frequency=1, labels=["reward"], custom={"number": {}}, filename="one")
    agent.reset()  # the first episode
    agent.experience(
        states=np.zeros((4, 3)), actions=np.zeros(4, int), terminal=[0, 1, 0, 1], reward=np.zeros(4)
    )
    agent.act(states=np.zeros(3))
    agent.reset()  # an action that nobody answered: no step, no episode
    agent.act(states=np.zeros(3))
    agent.observe(reward=7.0, terminal=True)
    agent.summarize("number", 1.0)
    assert (agent.timesteps, agent.episodes) == (8, 4)
    agent.close()
    events = read(tmp_path / "one")
    assert [e.step for e in events.Scalars("reward")] == [1, 2, 3, 8]
    assert [(e.step, e.value) for e in events.Scalars("episode-return")] == [(4, 7.0)]
    assert events.Scalars("number")[0].step == 8


def test_an_update_once_more_is_recorded_and_a_reset_is_not_an_episode(tmp_path):
    agent = run(tmp_path, steps=4)
    before = agent.updates
    agent.reset()
    agent.update()
    agent.close()
    (folder,) = tmp_path.iterdir()
    events = read(folder)
    assert max(e.step for e in events.Scalars("loss/policy")) > before
    assert "episode-return" not in events.Tags()["scalars"]


@pytest.mark.slow
def test_blocks_without_an_update_are_not_recorded(tmp_path):
    """An agent that learns by episodes looks after every timestep whether one is due."""
    agent = Agent.create(
        agent="vpg",
        network=NET,
        batch_size=2,
        states=STATE,
        actions=CHOICE,
        max_episode_timesteps=5,
        summarizer={"directory": str(tmp_path), "labels": ["losses", "updates"]},
    )
    for i in range(40):
        agent.act(states=np.full(3, i / 40.0))
        agent.observe(reward=float(i), terminal=i % 5 == 4)
    updates = agent.updates
    agent.close()
    (folder,) = tmp_path.iterdir()
    events = read(folder)
    assert [e.step for e in events.Scalars("loss/policy")] == list(range(1, updates + 1))
    for name in events.Tags()["scalars"]:
        if name.startswith("updates/") and name.endswith("-variance"):
            assert all(e.value > 0.0 for e in events.Scalars(name)), name


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_agents_of_the_same_second_have_folders_of_their_own(tmp_path):
    agents = [run(tmp_path, steps=i, frequency=1, labels=["reward"], filename="one") for i in (1, 2, 3)]
    for agent in agents:
        agent.close()
    assert names(tmp_path) == ["one", "one-2", "one-3"]
    assert [len(read(tmp_path / name).Scalars("reward")) for name in names(tmp_path)] == [1, 2, 3]


@pytest.mark.slow
def test_old_folders_of_agents_go(tmp_path, monkeypatch):
    clock = iter(["summary-20200101-000000"] * 11 + ["summary-20200102-000000"] * 2)
    monkeypatch.setattr("time.strftime", lambda _: next(clock))
    for _ in range(12):
        run(tmp_path, steps=0, max_summaries=99).close()
    assert len(names(tmp_path)) == 12
    run(tmp_path, steps=1, max_summaries=3).close()
    assert names(tmp_path) == [
        "summary-20200101-000000-11",
        "summary-20200102-000000",
        "summary-20200102-000000-2",
    ]


@pytest.mark.slow
def test_folders_of_others_and_of_agents_that_write_stay(tmp_path):
    running = run(tmp_path, steps=1, filename="summary-20200101-000000")
    for i in range(2, 6):
        run(tmp_path, steps=1, filename=f"summary-2020010{i}-000000").close()
    old = tmp_path / "summary-20200102-000000"
    (tmp_path / "summary-20200103-000000" / "notes.txt").touch()
    (tmp_path / "summary-20200104-000000").rename(tmp_path / "summary-good")
    (tmp_path / "summary-20200107-000000").mkdir()
    (tmp_path / "summary-20200108-000000").symlink_to(old)
    assert old.is_dir()
    script = (
        "from pathlib import Path; from operant.tracking import summaries; "
        f"summaries._remove(Path({str(tmp_path)!r}) / 'summary-20200101-000000')"
    )
    subprocess.run([sys.executable, "-c", script], check=True)  # another process
    new = run(tmp_path, steps=1, max_summaries=1, filename="summary-20200109-000000")
    assert names(tmp_path) == [
        "summary-20200101-000000",  # still written to
        "summary-20200103-000000",
        "summary-20200107-000000",
        "summary-20200108-000000",
        "summary-20200109-000000",
        "summary-good",
    ]
    running.close()
    assert read(tmp_path / "summary-20200101-000000").Tags()["tensors"]  # the graph
    run(tmp_path, steps=1, max_summaries=1, filename="summary-20200110-000000").close()
    assert "summary-20200101-000000" not in names(tmp_path)
    assert "summary-20200109-000000" in names(tmp_path)
    new.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": ["loss", "entropi"]}, "no summary label 'entropi'.*entropy"),
        ({"labels": "loss"}, "labels must be 'all' or a list"),
        ({"custom": {"a": {"type": "film"}}}, "custom summary 'a' must be a dict with type"),
        ({"directory": ""}, "summarizer must say the directory"),
        ({"frequncy": 3}, "frequncy.*frequency"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(tmp_path, options, message):
    with pytest.raises(SpecError, match=message):
        run(tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()
