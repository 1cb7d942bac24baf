"""Checkpoints are exact, atomic and data only."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from operant import checkpoint
from operant.checkpoint import arrays, durable, manifest
from operant.errors import CheckpointError, SpecError
from operant.spec import Config, option


class Point(NamedTuple):
    x: object
    y: object


def sample():
    """One leaf of every kind."""
    return {
        "params": {
            "policy/dense": jnp.arange(6.0).reshape(2, 3),
            "bf16": jnp.array([1.0, -2.5], jnp.bfloat16),
        },
        "pair": Point(jnp.array(3, jnp.int32), [np.float64(0.1), None, 7, -0.0, True, "text"]),
        "key": jax.random.key(5),
        "keys": jax.random.split(jax.random.key(1, impl="rbg"), 3),
        "int4": jnp.array([1, -3], jnp.int4),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "strided": np.arange(10)[::3],
        "big-endian": np.arange(3, dtype=">f4"),
        "complex": np.array([1 + 2j]),
        "empty": np.zeros((0, 3), np.uint8),
        "bool": np.array([True, False]),
    }


def bits(leaf):
    """Type, dtype, shape and bytes of a leaf."""
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__, repr(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return "key", str(jax.random.key_impl(leaf)), *bits(jax.random.key_data(leaf))[1:]
    array = np.asarray(leaf)
    return (
        isinstance(leaf, jax.Array),
        array.dtype.name,
        array.shape,
        array.astype(array.dtype.newbyteorder("<")).tobytes(),
    )


def assert_equal(a, b):
    none = {"is_leaf": lambda x: x is None}
    assert jax.tree.structure(a, **none) == jax.tree.structure(b, **none)
    assert [bits(x) for x in jax.tree.leaves(a, **none)] == [bits(x) for x in jax.tree.leaves(b, **none)]


@pytest.mark.parametrize(("number", "told"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_is_replaced_where_folders_cannot_be_forced_to_the_disk(tmp_path, monkeypatch, number, told):
    def force(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", force)
    expected = pytest.raises(OSError) if told else contextlib.nullcontext()
    with expected, durable.replaced(tmp_path / "run.json") as temporary:
        temporary.write_text("{}")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def forced(monkeypatch):
    """Take note of what is forced to the disk, by inode."""
    known, fsync = [], os.fsync

    def force(descriptor):
        known.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", force)
    return known


def test_a_checkpoint_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    known, rename, found = forced(monkeypatch), os.rename, []

    def put(old, new):
        found.append((Path(new).name, {p.name: p.stat().st_ino in known for p in (*old.iterdir(), old)}))
        known.clear()
        rename(old, new)

    monkeypatch.setattr(os, "rename", put)
    save(tmp_path, "a")
    ((name, before),) = found
    assert name == "a" and len(before) == 3 and all(before.values()), before
    assert known == [tmp_path.stat().st_ino]  # then the name itself


def test_the_name_of_a_file_that_is_replaced_is_forced_to_the_disk_too(tmp_path, monkeypatch):
    known = forced(monkeypatch)
    with durable.replaced(tmp_path / "run.json") as temporary:
        temporary.write_text("{}")
    assert known == [(tmp_path / "run.json").stat().st_ino, tmp_path.stat().st_ino]


def test_round_trip_is_exact(tmp_path):
    tree = sample()
    header = {"spec": {"type": "ppo"}, "best": float("-inf"), "step": 2**60, "mean": 0.1}
    path = checkpoint.save(tmp_path / "new", tree, header, name="step-1")
    loaded, loaded_header = checkpoint.load(path, sample())
    assert_equal(loaded, tree)
    assert loaded_header == header == checkpoint.Checkpoint(path).header
    flat, _ = checkpoint.load(path)
    assert flat["['pair'].y[2]"] == 7
    assert flat["['params']['policy/dense']"].shape == (2, 3)


def test_loaded_arrays_can_be_written_and_kept(tmp_path):
    path = checkpoint.save(tmp_path, {"memory": np.zeros(3), "x": jnp.ones(2)}, {}, name="a")
    loaded, _ = checkpoint.load(path)
    loaded["['memory']"][0] = 5.0  # a replay memory on the host is written in place
    assert loaded["['memory']"].base is None
    donated = jax.jit(lambda x: x + 1, donate_argnums=0)(loaded["['x']"])
    assert donated.tolist() == [2.0, 2.0]


def test_shapes_stand_for_arrays(tmp_path):
    tree = {"w": jnp.ones((2, 3), jnp.bfloat16), "k": jax.random.key(3)}
    path = checkpoint.save(tmp_path, tree, {}, name="a")
    loaded, _ = checkpoint.load(
        path, jax.eval_shape(lambda: {"w": jnp.zeros((2, 3), jnp.bfloat16), "k": jax.random.key(0)})
    )
    assert_equal(loaded, tree)


def test_part_of_a_tree(tmp_path):
    path = checkpoint.save(tmp_path, {"train": [jnp.ones(2), 3], "trainer": jnp.zeros(1)}, {}, name="a")
    assert_equal(checkpoint.Checkpoint(path).part("train", [jnp.zeros(2), 0]), [jnp.ones(2), 3])
    with pytest.raises(CheckpointError, match=r"missing: \['train'\]\[2\]"):
        checkpoint.Checkpoint(path).part("train", [jnp.zeros(2), 0, 1])


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(sorted(arrays.DTYPES)),
    shape=st.lists(st.integers(0, 4), max_size=3),
    seed=st.integers(0, 99),
    order=st.sampled_from("CF"),
)
def test_every_dtype_and_shape_survives(tmp_path_factory, dtype, shape, seed, order):
    kind = arrays.DTYPES[dtype][0]
    values = np.random.default_rng(seed).integers(0, 2, shape).astype(kind)
    path = tmp_path_factory.mktemp("arrays") / "arrays.safetensors"
    arrays.write(path, {"x": np.asarray(values, order=order), "pad": np.zeros(3, np.uint8)})
    data = durable.read(path, limit=1 << 20)
    back = arrays.split(path, data, {"x": (dtype, tuple(shape)), "pad": ("uint8", (3,))})["x"]
    assert (back.dtype, back.shape, back.tobytes()) == (values.dtype, values.shape, values.tobytes())


def test_other_programs_read_the_arrays(tmp_path):
    tree = {"w": np.arange(6, dtype=np.float32).reshape(2, 3).T, "n": np.array(7)}
    path = checkpoint.save(tmp_path, tree, {}, name="a")
    read = safetensors.numpy.load_file(path / "arrays.safetensors")
    assert read["['w']"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert read["['n']"] == 7


def test_large_leaves_get_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint.store, "_SHARD", 100)
    tree = {
        "a": np.arange(100, dtype=np.uint8),
        "b": np.arange(3),
        "c": jnp.arange(25, dtype=jnp.int32),
        "d": 1,
    }
    path = checkpoint.save(tmp_path, tree, {}, name="a")
    assert len(list(path.glob("arrays*.safetensors"))) == 3
    assert_equal(checkpoint.load(path, tree)[0], tree)
    assert_equal(checkpoint.Checkpoint(path).part("b", tree["b"]), tree["b"])


def test_arrays_of_another_device_are_fetched_by_and_by(tmp_path, monkeypatch):
    values = {
        "rows": jnp.arange(70, dtype=jnp.int16).reshape(7, 5, 2),
        "small": jnp.arange(3.0),
        "one": jnp.float32(7),
        "long": jnp.arange(40) % 3 == 0,
    }
    whole = arrays.write(tmp_path / "whole", values)
    monkeypatch.setattr(arrays, "_elsewhere", lambda array: array.ndim > 0)
    monkeypatch.setattr(arrays, "PIECE", 30)
    pieces = {name: [x.shape for x in arrays._pieces(array)] for name, array in values.items()}
    assert pieces["rows"] == [(1, 5, 2)] * 7 and pieces["long"] == [(30,), (10,)]
    assert pieces["small"] == [(3,)] and pieces["one"] == [()]
    assert arrays.write(tmp_path / "pieces", values) == whole
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()


def test_mismatches_are_named(tmp_path):
    saved = {"w": jnp.ones((2, 3)), "b": jnp.ones(3), "n": 1, "key": jax.random.key(0)}
    path = checkpoint.save(tmp_path, saved, {}, name="a")
    like = {
        "w": jnp.ones((2, 4)),
        "b": jnp.ones(3, jnp.bfloat16),
        "m": 1,
        "key": jax.random.key(0, impl="rbg"),
    }
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path, like)
    text = str(caught.value)
    assert "['w'] is float32[2, 3] where float32[2, 4] is expected" in text
    assert "['b'] is float32[3] where bfloat16[3] is expected" in text
    assert "missing: ['m']" in text
    assert "not expected: ['n']" in text
    assert "['key'] is key<fry>[] where key<rbg>[] is expected" in text
    with pytest.raises(CheckpointError, match="does not fit"):
        checkpoint.newest(tmp_path).load(like)


def test_sixty_four_bits_are_not_cut_silently(tmp_path):
    with jax.enable_x64(True):
        path = checkpoint.save(tmp_path, {"x": jnp.ones(2, jnp.float64)}, {}, name="a")
    with pytest.raises(CheckpointError, match=r"\['x'\] is float64, .* Set jax_enable_x64"):
        checkpoint.load(path)


class Settings(Config):
    lr: float = option(0.5, "Step size.")


def test_header_takes_what_is_plain_data(tmp_path):
    path = checkpoint.save(tmp_path, {}, {"config": Settings(), "shape": (1, 2)}, name="a")
    assert checkpoint.load(path, {}) == ({}, {"config": {"lr": 0.5}, "shape": [1, 2]})
    with pytest.raises(SpecError, match="cannot be written as plain data"):
        checkpoint.save(tmp_path, {}, {"x": object()}, name="b")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".tmp-x", "/etc", "a\0"])
def test_names_cannot_leave_the_folder(tmp_path, name):
    with pytest.raises(SpecError, match="name must be made of letters"):
        checkpoint.save(tmp_path, {}, {}, name=name)


@pytest.mark.parametrize("leaf", [np.array([None]), np.array(["a"]), np.array([1], "M8[s]"), object(), 1j])
def test_leaves_that_are_not_data_are_refused(tmp_path, leaf):
    with pytest.raises(SpecError, match=r"leaf \['bad'\] must be"):
        checkpoint.save(tmp_path, {"bad": leaf}, {}, name="a")
    assert list(tmp_path.iterdir()) == []


# The folder


def save(folder, name, value=1.0, **options):
    return checkpoint.save(folder, {"x": np.full(3, value)}, {"name": name}, name=name, **options)


def names(folder):
    return [path.name for path in checkpoint.list_checkpoints(folder)]


def test_newest_is_last_written_not_last_by_name(tmp_path):
    for name in ("b", "c", "a"):
        save(tmp_path, name)
    assert names(tmp_path) == ["b", "c", "a"]
    assert checkpoint.latest(tmp_path) == tmp_path / "a"
    shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("copy"))
    assert names(tmp_path / "copy") == ["b", "c", "a"]
    save(tmp_path, "b")
    assert names(tmp_path) == ["c", "a", "b"]
    assert checkpoint.newest(tmp_path).header == {"name": "b"}


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_the_newest_is_found_beside_a_writer_that_keeps_one(tmp_path, monkeypatch, moment):
    """It writes another and removes the first, just before that is listed, opened, or its arrays read."""
    save(tmp_path, "a-1", 1.0)
    read, calls = durable.read, []

    def late(path, *rest):
        calls.append(path.parent.name)
        if len(calls) == moment:
            with monkeypatch.context() as undone:
                undone.setattr(durable, "read", read)
                save(tmp_path, "a-2", 2.0, keep=1)
        return read(path, *rest)

    monkeypatch.setattr(durable, "read", late)
    assert checkpoint.newest(tmp_path).header == {"name": "a-2"}
    assert calls[:moment] == ["a-1"] * moment and names(tmp_path) == ["a-2"]


def test_an_empty_folder_has_none(tmp_path):
    assert checkpoint.latest(tmp_path / "nowhere") is None
    assert checkpoint.list_checkpoints(tmp_path) == []
    assert not checkpoint.is_checkpoint(tmp_path)
    assert checkpoint.newest(tmp_path) is None
    assert checkpoint.newest(tmp_path, without="") is None


@pytest.fixture
def reads(monkeypatch):
    """The names of the files of arrays that are read."""
    found, read = [], durable.read

    def noted(path, *rest):
        found.extend([path.name] if path.suffix == ".safetensors" else [])
        return read(path, *rest)

    monkeypatch.setattr(durable, "read", noted)
    return found


def test_the_newest_is_verified_and_loaded_in_one_pass(tmp_path, monkeypatch, reads):
    monkeypatch.setattr(checkpoint.store, "_SHARD", 100)
    tree = {"a": np.arange(30.0), "b": [np.arange(40.0), 7], "c": jnp.ones(3)}
    checkpoint.save(tmp_path, tree, {"step": 1}, name="x")
    found = checkpoint.newest(tmp_path)
    assert found.path == tmp_path / "x" and found.header == {"step": 1}
    assert_equal(found.part("b", tree["b"]), tree["b"])
    assert_equal(found.leaves(["['c']", "['nothing']"]), {"['c']": tree["c"]})
    assert_equal(found.part("a", tree["a"]), tree["a"])
    assert sorted(reads) == ["arrays-1.safetensors", "arrays-2.safetensors", "arrays.safetensors"]
    found.part("a", tree["a"])[:] = 0  # what was given out belongs to whom it was given to, and is read again
    assert_equal(found.part("a", tree["a"]), tree["a"])
    assert_equal(found.load(tree), tree)


def test_a_header_is_found_without_reading_arrays(tmp_path, reads):
    save(tmp_path, "a")
    save(tmp_path, "b")
    cut = save(tmp_path, "c") / "arrays.safetensors"
    os.truncate(cut, 40)
    with pytest.warns(RuntimeWarning, match="Checkpoint skipped: .* has 40 bytes where"):
        assert checkpoint.newest(tmp_path, without="").header == {"name": "b"}
    cut.unlink()
    with pytest.warns(RuntimeWarning, match="Checkpoint skipped: .* cannot be read"):
        assert checkpoint.newest(tmp_path, without="").header == {"name": "b"}
    assert not reads


def test_a_part_may_stay_unread(tmp_path, monkeypatch, reads):
    monkeypatch.setattr(checkpoint.store, "_SHARD", 100)
    tree = {"memory": np.arange(30.0), "params": np.arange(40.0)}
    checkpoint.save(tmp_path, tree, {}, name="x")
    found = checkpoint.newest(tmp_path, without="['memory']")
    assert len(reads) == 1
    assert_equal(found.part("params", tree["params"]), tree["params"])
    assert len(reads) == 1
    assert_equal(found.load(tree), tree)


def test_keep_spares_the_best(tmp_path):
    save(tmp_path, "best", keep=2)
    for i in range(6):
        save(tmp_path, f"step-{i}", keep=2)
    assert names(tmp_path) == ["best", "step-4", "step-5"]
    save(tmp_path, "best", keep=1)
    save(tmp_path, "step-6", keep=1)
    assert names(tmp_path) == ["best", "step-6"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    with pytest.raises(SpecError, match="keep must be"):
        save(tmp_path, "x", keep=0)


def test_a_failed_save_leaves_nothing(tmp_path, monkeypatch):
    save(tmp_path, "a", 1.0)

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint.store.arrays, "write", full)
    with pytest.raises(OSError, match="disk full"):
        save(tmp_path, "a", 2.0)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert checkpoint.load(tmp_path / "a")[0]["['x']"].tolist() == [1, 1, 1]


def test_what_killed_writers_left_is_used_or_removed(tmp_path):
    save(tmp_path, "a", 1.0)
    (tmp_path / ".tmp-b-123").mkdir()
    (tmp_path / ".tmp-b-123" / "manifest.json").write_text("{")
    (tmp_path / "a").rename(tmp_path / ".old-a")  # killed between the two renames that replace `a`
    assert checkpoint.latest(tmp_path) == tmp_path / ".old-a"
    assert checkpoint.load(tmp_path / "a")[1] == {"name": "a"}
    save(tmp_path, "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]
    assert names(tmp_path) == ["a", "c"]


def user_folder(folder):
    """A folder with what someone would miss."""
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("years of work")
    return folder


def test_only_checkpoints_and_empty_folders_are_replaced(tmp_path):
    user_folder(tmp_path / "mine")
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    save(tmp_path / "more", "a")
    (tmp_path / "more" / "a" / "notes.txt").write_text("text")  # a checkpoint, but not only that
    before = sorted(tmp_path.rglob("*"))
    for place, name in ((tmp_path, "mine"), (tmp_path, "file"), (tmp_path, "link"), (tmp_path / "more", "a")):
        assert not checkpoint.replaceable(place / name)
        with pytest.raises(CheckpointError, match=rf"{name} is not a checkpoint, or holds .* another name"):
            save(place, name)
    assert sorted(tmp_path.rglob("*")) == before  # neither moved nor left half-way
    with pytest.raises(SpecError, match="directory must be a folder: '.*file' is a file.*Give another path"):
        save(tmp_path / "file" / "inside", "a")
    (tmp_path / "empty").mkdir()
    for _ in range(2):
        assert checkpoint.replaceable(tmp_path / "empty")
        save(tmp_path, "empty")
    assert checkpoint.load(tmp_path / "empty")[1] == {"name": "empty"}


def test_cleaning_up_leaves_what_others_named_alike(tmp_path):
    user_folder(tmp_path / ".tmp-mine")
    user_folder(tmp_path / ".old-a")
    (tmp_path / ".tmp-file").write_text("text")
    with pytest.raises(CheckpointError, match=".old-a is not a checkpoint"):
        save(tmp_path, "a")  # it would be the place of the one that is replaced
    save(tmp_path, "b")
    save(tmp_path, "b")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".old-a", ".tmp-file", ".tmp-mine", "b"]
    assert (tmp_path / ".old-a" / "thesis.txt").exists() and (tmp_path / ".tmp-mine" / "thesis.txt").exists()


def test_old_checkpoints_with_files_of_others_are_kept(tmp_path):
    for name in ("a-1", "a-2"):
        save(tmp_path, name)
        (tmp_path / name / "notes.txt").write_text("text")
        if name == "a-2":
            (tmp_path / name / "notes.txt").unlink()
    save(tmp_path, "a-3", keep=1)
    assert names(tmp_path) == ["a-1", "a-3"]


def test_checkpoints_of_other_names_are_kept(tmp_path):
    for name in ("a-1", "best-model", "b-1", "a", "a-b-2", "a-2"):
        save(tmp_path, name)
    save(tmp_path, "a-10", keep=1)
    assert sorted(names(tmp_path)) == ["a", "a-10", "a-b-2", "b-1", "best-model"]


# Files that are not what they should be


def resign(path, **changes):
    """Rewrite parts of a manifest, with a hash that fits: a hostile file."""
    data = {**json.loads((path / "manifest.json").read_text()), **changes}
    data["sha256"] = manifest.digest(data)
    (path / "manifest.json").write_text(json.dumps(data))


def replace_arrays(path, content):
    """Put bytes in place of the arrays, with a size and hash that fit."""
    (path / "arrays.safetensors").write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    resign(path, files={"arrays.safetensors": entry})


def table(**entry):
    text = json.dumps({"['x']": {"dtype": "F64", "shape": [3], "data_offsets": [0, 24], **entry}}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(24)


def leaf(**changes):
    entry = {"kind": "numpy", "dtype": "float64", "shape": [3], "file": "arrays.safetensors"}
    return {"leaves": {"['x']": {**entry, **changes}}}


FAULTS = {
    "truncated arrays": (
        lambda p: os.truncate(p / "arrays.safetensors", 100),
        r"arrays\.safetensors has 100 bytes where \d+ were written: truncated",
    ),
    "corrupted arrays": (lambda p: flip(p / "arrays.safetensors", -1), r"arrays\.safetensors is corrupted"),
    "corrupted table": (lambda p: flip(p / "arrays.safetensors", 10), r"arrays\.safetensors is corrupted"),
    "no arrays": (lambda p: (p / "arrays.safetensors").unlink(), r"arrays\.safetensors cannot be read"),
    "truncated manifest": (lambda p: os.truncate(p / "manifest.json", 90), r"manifest\.json is not JSON"),
    "empty manifest": (lambda p: os.truncate(p / "manifest.json", 0), r"manifest\.json is not JSON"),
    "corrupted manifest": (
        lambda p: (p / "manifest.json").write_text((p / "manifest.json").read_text().replace('"a"', '"b"')),
        r"manifest\.json is corrupted",
    ),
    "nested manifest": (
        lambda p: (p / "manifest.json").write_text("[" * 10**5),
        r"manifest\.json is not JSON",
    ),
    "foreign": (
        lambda p: (p / "manifest.json").write_text('{"format": "x"}'),
        "not the manifest of an operant",
    ),
    "list": (lambda p: (p / "manifest.json").write_text("[]"), "not the manifest of an operant"),
    "a later version": (
        lambda p: resign(p, version=2),
        r"of format version 2; .* install that or a later one",
    ),
    "an earlier version": (
        lambda p: resign(p, version=0),
        "is of format 0, and only 1 is read: it comes from an earlier, unreleased state of operant",
    ),
    "no version": (lambda p: resign(p, version="1"), "is of format '1', and only 1 is read"),
    "traversal": (lambda p: resign(p, files={"../arrays.safetensors": {}}), r"names the file '\.\./arrays"),
    "absolute": (lambda p: resign(p, files={"/etc/passwd": {}}), r"names the file '/etc/passwd'"),
    "link": (
        lambda p: ((p / "arrays.safetensors").rename(p / "x"), (p / "arrays.safetensors").symlink_to("x")),
        r"arrays\.safetensors cannot be read",
    ),
    "pipe": (
        lambda p: ((p / "arrays.safetensors").unlink(), os.mkfifo(p / "arrays.safetensors")),
        r"arrays\.safetensors is not a plain file",
    ),
    "unknown dtype": (lambda p: resign(p, **leaf(dtype="object")), "unknown kind 'numpy' or dtype 'object'"),
    "unknown kind": (lambda p: resign(p, **leaf(kind="pickle")), "unknown kind 'pickle'"),
    "unknown file": (lambda p: resign(p, **leaf(file="x")), "in the file 'x', which is not listed"),
    "negative shape": (lambda p: resign(p, **leaf(shape=[-3])), r"has the shape \[-3\]"),
    "no shape": (lambda p: resign(p, **leaf(shape=None)), r"has the shape None"),
    "key without data": (
        lambda p: resign(p, **leaf(kind="key", dtype="key<fry>", impl="threefry2x32", shape=[])),
        "malformed: 'data_shape'",
    ),
    "python leaf without shape": (
        lambda p: resign(p, leaves={"x": {"kind": "python", "dtype": "int", "value": 1}}),
        "malformed: 'shape'",
    ),
    "oversize shape": (lambda p: resign(p, **leaf(shape=[2**62, 2**62])), "array .* is F64"),
    "missing field": (lambda p: resign(p, leaves={"['x']": {}}), r"manifest\.json is malformed: 'kind'"),
    "other leaf": (lambda p: resign(p, leaves={}), r"no leaf is in the file 'arrays\.safetensors'"),
    "further array": (
        lambda p: replace_arrays(p, table().replace(b"\"['x']\"", b"\"['y']\"")),
        "holds the arrays",
    ),
    "python leaf": (
        lambda p: resign(p, leaves={"x": {"kind": "python", "dtype": "int", "shape": [], "value": "1"}}),
        "leaf x is not the int",
    ),
    "oversize table": (
        lambda p: replace_arrays(p, (2**63).to_bytes(8, "little")),
        "table is longer than the file",
    ),
    "tiny file": (lambda p: replace_arrays(p, b"abc"), "table is longer than the file"),
    "table no dict": (lambda p: replace_arrays(p, (2).to_bytes(8, "little") + b"[]"), "is malformed"),
    "offsets outside": (
        lambda p: replace_arrays(p, table(data_offsets=[8, 32])),
        "has the place 8 to 32 of 24",
    ),
    "offsets backwards": (lambda p: replace_arrays(p, table(data_offsets=[24, 0])), "has the place 24 to 0"),
    "other table dtype": (lambda p: replace_arrays(p, table(dtype="I64")), r"is I64 \[3\] where F64 \[3\]"),
    "other table shape": (lambda p: replace_arrays(p, table(shape=[4])), r"is F64 \[4\] where F64 \[3\]"),
}


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_files_are_refused_and_passed_over(tmp_path, fault):
    spoil, reason = FAULTS[fault]
    save(tmp_path, "good", 1.0)
    bad = save(tmp_path, "a", 2.0)
    spoil(bad)
    with pytest.raises(CheckpointError, match=reason) as caught:
        checkpoint.load(bad)
    assert str(bad) in str(caught.value)
    with pytest.warns(RuntimeWarning, match=reason):
        assert checkpoint.latest(tmp_path) == tmp_path / "good"
    with pytest.warns(RuntimeWarning, match="Checkpoint skipped"):
        assert checkpoint.newest(tmp_path).header == {"name": "good"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(tmp_path, "next", keep=2)  # a bad one hinders no later ones
        assert checkpoint.latest(tmp_path) == tmp_path / "next"


def test_controls_of_the_faults(tmp_path):
    """The tools that plant the faults do no harm by themselves."""
    path = save(tmp_path, "a", 0.0)
    resign(path)
    replace_arrays(path, table())
    assert checkpoint.load(path)[0]["['x']"].tolist() == [0, 0, 0]


def test_a_bool_is_a_bool(tmp_path):
    path = checkpoint.save(tmp_path, {"x": np.array([True, False])}, {}, name="a")
    data = bytearray((path / "arrays.safetensors").read_bytes())
    data[-2] = 77
    replace_arrays(path, bytes(data))
    assert checkpoint.load(path)[0]["['x']"].tobytes() == b"\1\0"


def test_not_a_folder(tmp_path):
    with pytest.raises(CheckpointError, match="there is no such folder"):
        checkpoint.load(tmp_path / "nothing")


# Crashes

KILLER = """
import os, random, signal, sys, time, warnings
import numpy as np
from operant import checkpoint

warnings.filterwarnings("error", "Checkpoint skipped")
os.fsync = lambda descriptor: None  # for power cuts; without it a kill hits more places
folder, kills = sys.argv[1], int(sys.argv[2])
chance = random.Random(0)


def save(step, saved):
    while True:
        step += 1
        tree = {"a": np.full(50_000, step), "b": np.full(3, step, np.float32)}
        checkpoint.save(folder, tree, {"step": step}, keep=2, name=f"step-{step}")
        checkpoint.save(folder, tree, {"step": step}, name="best")  # replaces one of that name
        os.write(saved, b".")


def check(path):
    tree, header = checkpoint.load(path)
    assert (tree["['a']"] == header["step"]).all() and (tree["['b']"] == header["step"]).all()
    return header["step"]


step = 0
for _ in range(kills):
    reader, saved = os.pipe()
    child = os.fork()
    if child == 0:
        save(step, saved)
    os.read(reader, 1)
    time.sleep(chance.uniform(0.0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader), os.close(saved)
    newest = check(checkpoint.latest(folder))
    assert newest > step and check(folder + "/best") in (newest - 1, newest)
    step = newest
print(step)
"""


@pytest.mark.slow
def test_killed_at_any_moment_the_newest_whole_one_loads(tmp_path):
    """Children save in a loop, under new names and over an old one, and are killed at random moments."""
    command = [sys.executable, "-c", KILLER, str(tmp_path), "30"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 30  # each child saved at least once


def test_a_field_of_a_part_is_read_alone(tmp_path):
    class Two(NamedTuple):
        state: dict
        statement: jax.Array

    tree = {"train": Two({"a": jnp.arange(3), "b": [jnp.ones(2)]}, jnp.zeros(4)), "trainer": jnp.ones(1)}
    path = checkpoint.save(tmp_path, tree, {}, name="one")
    assert_equal(checkpoint.Checkpoint(path).part("train", tree["train"].state, "state"), tree["train"].state)
    assert_equal(checkpoint.Checkpoint(path).part("train", jnp.ones(4), "statement"), jnp.zeros(4))
    assert_equal(checkpoint.Checkpoint(path).part("train", tree["train"]), tree["train"])
    with pytest.raises(CheckpointError, match="does not fit"):
        checkpoint.Checkpoint(path).part("train", tree["train"].state, "missing")


def test_a_run_outlives_a_file_that_somebody_put_among_its_weights(tmp_path):
    """As a file manager does that looks into the folder; the file stays."""
    checkpoint.save(tmp_path, {"x": np.zeros(2)}, {}, name="best")
    (tmp_path / "best" / ".DS_Store").touch()
    with (
        pytest.warns(
            RuntimeWarning, match="No weights are written: .*best is not a checkpoint, or holds other"
        ),
        durable.outliving("No weights are written"),
    ):
        checkpoint.save(tmp_path, {"x": np.ones(2)}, {}, name="best")
    assert (tmp_path / "best" / ".DS_Store").exists()


@pytest.mark.parametrize("shape", [[10**19] * 100_000, [1] * 65, [2**63], [True]])
def test_shapes_that_somebody_made_up_take_no_time(tmp_path, shape):
    path = checkpoint.save(tmp_path, {"x": np.zeros(2)}, {}, name="step-1")
    file = path / "manifest.json"
    data = json.loads(file.read_text())
    data["leaves"]["['x']"]["shape"] = shape
    data["sha256"] = manifest.digest(data)
    file.write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match="has the shape"):
        checkpoint.load(path)
