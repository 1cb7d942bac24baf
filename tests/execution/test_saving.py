"""Files of an agent: weights in common formats, the saver, and how `Agent.load` finds them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from operant import Agent
from operant.checkpoint import durable, weight_files
from operant.errors import CheckpointError, SpecError
from operant.execution import saving
from operant.execution.saving import FORMATS
from operant.training import run_dir

STATE = {"type": "float", "shape": (3,)}
CHOICE = {"type": "int", "num_values": 3}
NET = [{"type": "dense", "size": 8}]
PPO = {"agent": "ppo", "n_steps": 4, "mini_batches": 2, "ppo_epochs": 1, "model": NET}
SAC = {
    "agent": "sac",
    "actor_model": NET,
    "critic_model": NET,
    "buffer_max_size": 50,
    "buffer_initial_size": 4,
    "buffer_batch_size": 4,
}


def create(spec=PPO, seed=1, **kwargs):
    actions = (
        CHOICE
        if spec["agent"] == "ppo"
        else {"type": "float", "shape": (1,), "min_value": -2.0, "max_value": 1.0}
    )
    return Agent.create(**spec, states=STATE, actions=actions, seed=seed, **kwargs)


def run(agent, steps):
    draw = np.random.default_rng(0)
    for i in range(steps):
        agent.act(states=draw.normal(size=3))
        agent.observe(reward=float(i % 3), terminal=i % 5 == 4)


def actions(agent, count=1000):
    return np.asarray(agent.act(states=np.random.default_rng(5).normal(size=(count, 3)), independent=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "format"),
    [
        pytest.param(PPO, "numpy", id="ppo-numpy"),
        pytest.param(PPO, "hdf5", id="ppo-hdf5"),
        pytest.param(PPO, "safetensors", id="ppo-safetensors"),
        pytest.param(SAC, "numpy", id="sac-numpy", marks=pytest.mark.exhaustive),
    ],
)
def test_weights_go_round(tmp_path, spec, format):
    agent = create(spec, normalize_observations=True)
    run(agent, 12)
    path = agent.save(directory=tmp_path, format=format, append="episodes")
    suffix = FORMATS[format]
    assert path == str(tmp_path / f"agent-2{suffix}")
    assert agent.save(tmp_path, filename=f"agent{suffix}", format=format, append="episodes") == path
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f"agent-2{suffix}", "agent.json"])
    for name in ("agent-2", f"agent-2{suffix}", "agent"):
        assert Agent.load(tmp_path, filename=name).updates == agent.updates
    again = Agent.load(tmp_path, format=format if format == "hdf5" else None)
    np.testing.assert_array_equal(actions(agent), actions(again))
    assert again.updates == agent.updates and again.get_specification() == agent.get_specification()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".tmp")]


def test_a_checkpoint_comes_before_weights_unless_these_are_asked_for(tmp_path):
    agent = create()
    run(agent, 6)
    agent.save(tmp_path, format="numpy")
    run(agent, 6)
    agent.save(tmp_path)
    assert Agent.load(tmp_path).timesteps == 12
    weights = Agent.load(tmp_path, format="numpy")
    assert weights.timesteps == 6
    run(weights, 8)  # goes on learning
    assert weights.updates > agent.updates - 2 and weights.timesteps == 14


def test_files_are_plain(tmp_path):
    agent = create(normalize_observations=True)
    run(agent, 6)
    names = {}
    for format in ("numpy", "hdf5", "safetensors"):
        path = agent.save(tmp_path, "net", format)
        if format == "numpy":
            with np.load(path, allow_pickle=False) as file:
                names[format] = {k: file[k] for k in file.files}
        elif format == "hdf5":
            with h5py.File(path) as file:
                names[format] = {}
                file.visititems(
                    lambda k, x: names["hdf5"].update({k: x[()]}) if isinstance(x, h5py.Dataset) else None
                )
        else:
            names[format] = load_file(path)
    for format in ("hdf5", "safetensors"):
        assert names[format].keys() == names["numpy"].keys()
        for name, x in names["numpy"].items():
            np.testing.assert_array_equal(names[format][name], x, err_msg=name)
    assert {"timesteps", "episodes", "updates"} < set(names["numpy"])
    shapes = {k: x.shape for k, x in names["numpy"].items() if k.startswith("model/params/")}
    assert (3, 8) in shapes.values() and any(k.startswith("model/state/") for k in names["numpy"])
    assert json.loads((tmp_path / "net.json").read_text())["agent"]["type"] == "ppo"


def test_what_does_not_fit_is_named(tmp_path):
    agent = create()
    agent.save(tmp_path, format="numpy")
    with pytest.raises(SpecError, match="format must be one of 'checkpoint', 'numpy'"):
        agent.save(tmp_path, format="pickle")
    with pytest.raises(SpecError, match="append must be one of"):
        agent.save(tmp_path, append="steps")
    with pytest.raises(CheckpointError, match=r"no weights \(\*.hdf5\)"):
        Agent.load(tmp_path, format="hdf5")
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        Agent.load(tmp_path, format="checkpoint")
    spec = json.loads((tmp_path / "agent.json").read_text())
    spec["agent"]["model"] = [{"type": "dense", "size": 9}]
    (tmp_path / "agent.json").write_text(json.dumps(spec))
    with pytest.raises(
        CheckpointError,
        match=r"agent.npz' do not fit the agent: 'model/params/.* is float32\[.* where .*same networks",
    ):
        Agent.load(tmp_path)
    (tmp_path / "agent.json").unlink()
    with pytest.raises(CheckpointError, match="There is no specification"):
        Agent.load(tmp_path)
    (tmp_path / "bad.npz").write_bytes(b"PK")
    (tmp_path / "bad.json").write_text(json.dumps(spec))
    with pytest.raises(CheckpointError, match="cannot be read"):
        Agent.load(tmp_path, "bad")


KERNEL, COUNTER = "model/params/head.value/kernel", "updates"
BAD = {
    "nan": (
        KERNEL,
        lambda x: np.where(x == x[0], np.nan, x),
        "holds nan, which is no finite number of float32",
    ),
    "infinite": (KERNEL, lambda x: x - np.float32(np.inf), "holds -inf"),
    "too large": (
        KERNEL,
        lambda x: x + np.full(x.shape, 1e300),
        r"holds 1e\+300, which is no finite number of float32",
    ),
    "bool": (KERNEL, lambda x: x > 0, "is bool"),
    "whole": (KERNEL, lambda x: x.astype("i4"), "is int32"),
    "complex": (KERNEL, lambda x: x + 1j, "is complex"),
    "text": (KERNEL, lambda x: np.full(x.shape, "abc", "S3"), r"is \|S3"),
    "date": (KERNEL, lambda x: np.full(x.shape, np.datetime64("2020-01-01")), "is datetime64"),
    "struct": (KERNEL, lambda x: np.zeros(x.shape, [("a", "f4")]), r"is \[\('a'"),
    "another shape": (KERNEL, lambda x: x[:, 0], r"is float32\[8\] where float32\[8, 1\] is expected"),
    "negative": (COUNTER, lambda x: np.int64(-1), "holds -1, which is no finite number of uint32"),
    "beyond": (COUNTER, lambda x: np.int64(2**40), "holds 1099511627776"),
    "no number": (COUNTER, lambda x: np.float32(np.nan), r"is float32\[\] where uint32\[\] is expected"),
    "several": (COUNTER, lambda x: np.zeros(2, "u4"), r"is uint32\[2\]"),
}


@pytest.mark.parametrize("format", FORMATS)
def test_weights_are_finite_numbers_of_their_kind(tmp_path, format, monkeypatch):
    """In every format that can hold another."""
    agent = create()
    path = Path(agent.save(tmp_path, format=format))
    arrays = weight_files.read(path)
    with monkeypatch.context() as patch:
        patch.setattr(Agent, "_specified_by", lambda *_: agent)  # not made anew for each
        for name, spoil, message in BAD.values():
            bad = np.asarray(spoil(arrays[name]))
            if bad.dtype.kind in {"numpy": "", "hdf5": "M", "safetensors": "MSV"}[format]:
                continue
            weight_files._WRITERS[format](path, {**arrays, name: bad})
            with pytest.raises(CheckpointError, match=rf"agent.*' do not fit the agent: '{name}' {message}"):
                Agent.load(tmp_path)
    for good in ("f8", "f2"):
        weight_files._WRITERS[format](
            path, {**arrays, KERNEL: arrays[KERNEL].astype(good), COUNTER: np.int64(7)}
        )
        assert Agent.load(tmp_path).updates == 7


@pytest.mark.parametrize(
    ("unit", "names"),
    [
        ("updates", ["agent-4", "agent-6"]),
        ("episodes", ["agent-2", "agent-4"]),
        ("timesteps", ["agent-14", "agent-16"]),
    ],
)
def test_saver_writes_as_often_as_told_and_keeps_the_newest(tmp_path, unit, names):
    frequency = 7 if unit == "timesteps" else 2
    agent = create(
        saver={"directory": str(tmp_path), "frequency": frequency, "unit": unit, "max_checkpoints": 2}
    )
    run(agent, 16 if unit == "timesteps" else 21)
    if unit == "timesteps":
        agent.close()
        agent.close()
    found = sorted(p.name for p in tmp_path.iterdir() if p.is_dir() and not p.name.startswith("."))
    assert found == sorted(names)


def test_a_saver_continues_an_agent_whose_masks_came_with_its_states(tmp_path):
    agent = create(saver=str(tmp_path))
    for i in range(9):
        agent.act(states={"state": np.full(3, i / 9.0), "action_mask": [True, False, True]})
        agent.observe(reward=0.0)
    agent.close()
    more = create(seed=7, saver={"directory": str(tmp_path), "load": True})
    assert more.spaces == agent.spaces and more.spaces.masks == ("action",)
    assert more.timesteps == 9
    more.act(states={"state": np.zeros(3), "action_mask": [False, False, True]})
    more.close()


def test_saver_writes_the_rest_at_the_end_and_can_continue(tmp_path):
    agent = create(saver=str(tmp_path))
    run(agent, 9)
    assert not list(tmp_path.iterdir())  # ten updates have not passed
    agent.close()
    assert Agent.load(tmp_path).timesteps == 9
    more = create(seed=7, saver={"directory": str(tmp_path), "load": True})
    assert (more.timesteps, more.episodes) == (9, 1)
    reference = Agent.load(tmp_path)
    for a, b in zip(
        jax.tree.leaves(more.engine.train.state), jax.tree.leaves(reference.engine.train.state), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    before = sorted(p.name for p in tmp_path.iterdir())
    more.close()  # nothing was learnt
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    with pytest.raises(CheckpointError, match="its parallel_interactions differ"):
        create(parallel_interactions=2, saver={"directory": str(tmp_path), "load": True})
    with pytest.raises(CheckpointError, match=r"was saved with lr=.*The agent has lr=0.5. Give the same"):
        create(learning_rate=0.5, saver={"directory": str(tmp_path), "load": True})
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        create(saver={"directory": str(tmp_path / "none"), "load": True})
    for spec, message in [
        ({}, "saver must say the directory"),
        ({"directory": "x", "freq": 1}, "saver takes no argument 'freq'. Did you mean 'frequency'"),
        (7, "saver must be a folder"),
        ({"directory": "x", "unt": 1}, "unt.*unit"),
    ]:
        with pytest.raises(SpecError, match=message):
            create(saver=spec)


def test_agents_in_one_folder_continue_from_their_own_checkpoints(tmp_path):
    for seed, name in enumerate(("alice", "bob")):
        agent = create(seed=seed, saver={"directory": str(tmp_path), "filename": name})
        run(agent, 5)
        agent.close()
    assert create(saver={"directory": str(tmp_path), "filename": "alice", "load": True}).timesteps == 5
    assert Agent.load(tmp_path, "alice").seed == 0 and Agent.load(tmp_path).seed == 1
    agent = Agent.load(tmp_path, "alice")
    agent.save(tmp_path, "alice")
    run(agent, 1)
    agent.save(tmp_path, "alice", append="timesteps")
    assert Agent.load(tmp_path, "alice").timesteps == 5  # that very name, and a saver's newest
    assert create(saver={"directory": str(tmp_path), "filename": "alice", "load": True}).timesteps == 6
    with pytest.raises(CheckpointError, match=r"no checkpoint 'alise' in .*\. Did you mean 'alice'\?$"):
        Agent.load(tmp_path, filename="alise")
    with pytest.raises(CheckpointError, match=r"no checkpoint 'alice-7' in .*\. Did you mean 'alice-6'\?$"):
        Agent.load(tmp_path, filename="alice-7")
    with pytest.raises(CheckpointError, match="There is no checkpoint 'ali'"):
        create(saver={"directory": str(tmp_path), "filename": "ali", "load": True})


def test_weights_that_are_stored_in_another_file_are_refused(tmp_path):
    """HDF5 would open what the file names."""
    agent = create()
    path = Path(agent.save(tmp_path, format="hdf5"))
    (tmp_path / "secret").write_bytes(bytes(32))
    with h5py.File(path, "a") as file:
        file.create_dataset("planted", (8,), "f4", external=[(str(tmp_path / "secret"), 0, 32)])
    with pytest.raises(CheckpointError, match="'planted' is stored in another file"):
        Agent.load(tmp_path)


def test_the_newest_weights_of_a_name_are_found_with_their_format(tmp_path):
    agent = create()
    for steps in (3, 4):
        run(agent, steps)
        agent.save(tmp_path, "alice", format="numpy", append="timesteps")
    create(seed=2).save(tmp_path, "alice-b-9", format="numpy")
    assert Agent.load(tmp_path, "alice", format="numpy").timesteps == 7
    with pytest.raises(CheckpointError, match=r"There are no weights \(\*.npz\)"):
        Agent.load(tmp_path, "ali", format="numpy")


@pytest.mark.parametrize("format", saving.FORMATS)
def test_weights_are_on_the_disk_before_they_take_their_name(tmp_path, monkeypatch, format):
    forced = forced_before_named(monkeypatch)
    weight_files.write(tmp_path / f"agent-1{FORMATS[format]}", {"a": np.ones(3)}, {}, "agent")
    assert forced == {".json": True, saving.FORMATS[format]: True}


def test_what_a_run_is_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    forced = forced_before_named(monkeypatch)
    run_dir._write(tmp_path, {"run": 1})
    assert forced == {".json": True} and [path.name for path in tmp_path.iterdir()] == ["run.json"]


def forced_before_named(monkeypatch):
    """Take note, by the suffix of each file that takes the place of another, of whether it was forced to
    the disk before."""
    known, found = set(), {}
    fsync, rename = os.fsync, os.replace

    def force(descriptor):
        known.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def put(old, new):
        found[Path(new).suffix] = os.stat(old).st_ino in known
        rename(old, new)

    monkeypatch.setattr(os, "fsync", force)
    monkeypatch.setattr(os, "replace", put)
    return found


def test_two_that_save_to_one_file_do_not_disturb_each_other(tmp_path, monkeypatch):
    write = weight_files._WRITERS["numpy"]

    def meanwhile(path, arrays):
        write(path, arrays)
        if arrays["a"] == 1:
            weight_files.write(tmp_path / "agent.npz", {"a": np.array(2)}, {})

    monkeypatch.setitem(weight_files._WRITERS, "numpy", meanwhile)
    path = weight_files.write(tmp_path / "agent.npz", {"a": np.array(1)}, {})
    assert weight_files.read(path)["a"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.json", "agent.npz"]


@pytest.mark.slow
def test_saver_writes_what_was_learnt_without_acting(tmp_path):
    agent = create(recorder=str(tmp_path / "traces"))
    run(agent, 12)
    agent.close()
    agent = create(saver=str(tmp_path / "saved"))
    before = actions(agent)
    agent.pretrain(tmp_path / "traces", num_iterations=20, lr=0.1)
    learnt = actions(agent)
    agent.close()
    assert (learnt != before).any()
    np.testing.assert_array_equal(actions(Agent.load(tmp_path / "saved")), learnt)


@pytest.mark.parametrize("format", ["checkpoint", "numpy"])
def test_names_that_no_file_may_have(tmp_path, format):
    for filename in (None, "sub/agent"):
        with pytest.raises(SpecError, match="filename must be made of letters"):
            create().save(tmp_path, filename, format=format)
    assert not list(tmp_path.iterdir())


def test_a_saver_outlives_a_full_disk(tmp_path, monkeypatch):
    place = str(tmp_path / "saved")
    agent = create(saver={"directory": place, "frequency": 2, "unit": "episodes"})
    with monkeypatch.context() as full:
        full.setattr("operant.checkpoint.durable.os.fsync", no_space)
        with pytest.warns(RuntimeWarning, match=f"No checkpoint in '{place}': .*No space left"):
            run(agent, 11)
        for save in (agent.close, lambda: agent.save(tmp_path)):
            with pytest.raises(OSError, match="No space left"):
                save()
    run(agent, 10)
    agent.close()
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["agent-4"]


def no_space(*_):
    raise OSError(28, "No space left on device")


def test_a_saver_of_a_loaded_agent_counts_from_there():
    loaded, saved = SimpleNamespace(updates=105, timesteps=500), []
    config = saving.SaverConfig.parse({"directory": "x", "frequency": 10})
    saver = saving.Saver(config, loaded, lambda folder, name, keep: saved.append(name))
    for loaded.updates in range(105, 130):
        saver.save_if_due()
    assert saved == ["agent-115", "agent-125"]


def test_saver_by_the_clock(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("operant.execution.saving.time.monotonic", lambda: now[0])
    agent = create(saver={"directory": str(tmp_path), "frequency": 600, "unit": "seconds"})
    run(agent, 5)
    assert not list(tmp_path.iterdir())
    now[0] = 700.0
    run(agent, 1)
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == ["agent-6"]


WRITER = """
import contextlib, sys, time
from pathlib import Path
from types import SimpleNamespace
from operant.checkpoint import durable
with contextlib.ExitStack() as stack:
    for argument in sys.argv[1:]:
        stack.enter_context(durable.temporary(Path(argument))).write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_what_killed_writers_left_goes_with_the_next_save(tmp_path):
    suffixes = {"numpy": ".npz", "hdf5": ".hdf5", "safetensors": ".safetensors", "trace": ".tmp"}
    for format in suffixes:
        (tmp_path / format).mkdir()
    files = [str(tmp_path / format / f"other{suffix}") for format, suffix in suffixes.items()]
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, *files], stdout=subprocess.PIPE) for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout.readline() == b"writing\n"
    writers[0].kill()
    writers[0].communicate()
    agent = create()
    for format in suffixes:
        folder = tmp_path / format
        assert len(list(folder.glob(".tmp-*"))) == 2
        if format == "trace":
            with durable.temporary(folder / "trace.tmp"):
                pass
        else:
            agent.save(folder, format=format)
        left = list(folder.glob(".tmp-*"))
        assert [path.read_text() for path in left] == ["half"]  # that of the one who still writes
    writers[1].kill()
    writers[1].communicate()
