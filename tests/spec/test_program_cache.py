"""Compiled programs that are kept: where, how much of them, by whom, and that nothing there does harm."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import tempfile
import time

import jax
import pytest
from jax._src import compilation_cache

from operant.spec import program_cache, runtime
from operant.spec.program_cache import ProgramCache, opened

VALUE = bytes(range(256)) * 4


@pytest.fixture
def own(monkeypatch, tmp_path):
    """A folder of the user's alone; /tmp, above it, is everybody's, but sticky."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("OPERANT_COMPILATION_CACHE")
    return tmp_path


def kept(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_put_is_found_by_its_key_and_salt_alone(tmp_path):
    cache = ProgramCache(tmp_path, "two threads")
    assert cache.get("act") is None
    cache.put("act", VALUE)
    cache.put("update", b"other")
    assert (cache.get("act"), cache.get("update")) == (VALUE, b"other")
    assert ProgramCache(tmp_path, "two threads").get("act") == VALUE
    assert ProgramCache(tmp_path, "one thread").get("act") is None
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in kept(tmp_path))


@pytest.mark.filterwarnings("error")
def test_damaged_and_foreign_entries_are_not_found_and_are_replaced(tmp_path):
    cache = ProgramCache(tmp_path, "")
    cache.put("a", VALUE)
    cache.put("b", b"the program of another key")
    path, other = cache._file("a"), cache._file("b")
    whole = path.read_bytes()
    damages = [bytes([*whole[:i], whole[i] ^ 1, *whole[i + 1 :]]) for i in (0, 31, 32, len(whole) - 1)]
    for damaged in (*damages, whole[:-1], whole[:32], whole[:5], b"", whole + b"\0", other.read_bytes()):
        path.write_bytes(damaged)
        assert cache.get("a") is None
        cache.put("a", VALUE)
        assert cache.get("a") == VALUE
    path.unlink()
    path.mkdir()  # nothing can be kept there, and nothing fails
    cache.put("a", VALUE)
    assert cache.get("a") is None


def test_of_too_much_the_entries_go_that_were_not_used_for_the_longest_time(tmp_path):
    cache = ProgramCache(tmp_path, "", limit=5000)
    for i, name in enumerate("abc"):
        cache.put(name, bytes(1500))
        os.utime(cache._file(name), (i + 1000, i + 1000))
    (tmp_path / "tmpleft").write_bytes(b"of a writer that died")
    os.utime(tmp_path / "tmpleft", (0, 0))
    (tmp_path / "tmpnow").write_bytes(b"of one that writes")
    assert cache.get("a") is not None  # used now
    cache.put("d", bytes(1500))
    assert [name for name in "abcd" if cache.get(name)] == ["a", "c", "d"]
    assert not (tmp_path / "tmpleft").exists() and (tmp_path / "tmpnow").exists()
    cache.put("e", bytes(6000))
    assert cache.get("e") is None
    assert sum(path.stat().st_size for path in kept(tmp_path)) <= 5000


@pytest.mark.filterwarnings("error")
def test_disk_that_takes_nothing_costs_nothing_but_the_entry(tmp_path, monkeypatch):
    cache = ProgramCache(tmp_path, "")
    cache.put("before", VALUE)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(program_cache.os, "replace", full)
        cache.put("a", VALUE)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "NamedTemporaryFile", full)
        cache.put("a", VALUE)
    with monkeypatch.context() as patch:
        patch.setattr(program_cache.os, "utime", full)  # read-only
        assert cache.get("before") == VALUE
    assert cache.get("a") is None
    assert kept(tmp_path) == [cache._file("before")]
    cache = ProgramCache(tmp_path / "gone", "")
    cache.put("a", VALUE)
    assert cache.get("a") is None


@pytest.mark.filterwarnings("error")
def test_folder_is_the_users_cache_or_the_one_that_is_named(own, monkeypatch, tmp_path):
    folder = opened(1)._path
    assert folder == own / "operant" / "programs"
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("OPERANT_COMPILATION_CACHE", str(tmp_path / "named"))
    assert opened(1)._path == tmp_path / "named"
    monkeypatch.setenv("OPERANT_COMPILATION_CACHE", "0")
    assert opened(1) is None
    monkeypatch.setenv("OPERANT_COMPILATION_CACHE", str(tmp_path / "file" / "under"))
    (tmp_path / "file").touch()
    assert opened(1) is None  # it cannot be made
    monkeypatch.setenv("OPERANT_COMPILATION_CACHE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert opened(1)._path == tmp_path / "home" / ".cache" / "operant" / "programs"
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # no home at all
    assert opened(1) is None


def test_folder_that_others_can_write_to_is_refused(own, monkeypatch):
    folder = opened(1)._path
    opened(1).put("a", VALUE)
    for mode in (0o777, 0o1777, 0o702):
        folder.chmod(mode)
        with pytest.warns(RuntimeWarning, match=f"others can write to '{folder}'.*chmod 700.*OPERANT_COMP"):
            assert opened(1) is None
    folder.chmod(0o755)  # others may read
    assert opened(1) is not None
    own.chmod(0o777)  # the folder could be moved away, and another put there
    with pytest.warns(RuntimeWarning, match=f"others can write to '{own}'"):
        assert opened(1) is None
    own.chmod(0o1777)  # as /tmp is
    assert opened(1) is not None
    link = own / "link"
    link.symlink_to(folder)
    monkeypatch.setenv("OPERANT_COMPILATION_CACHE", str(link))
    assert opened(1) is not None
    folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="others can write"):
        assert opened(1) is None
    folder.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.warns(RuntimeWarning, match="belongs to another user"):
        assert opened(1) is None


def test_other_numbers_of_threads_have_programs_of_their_own(own):
    opened(1).put("a", VALUE)
    assert (opened(1).get("a"), opened(2).get("a")) == (VALUE, None)


IMPORTS = """
import jax
before = dict(jax.config.values)
from operant import *
import operant.training.train, operant.tuning.trial, operant.execution.play
assert jax.config.values == before, {n: v for n, v in jax.config.values.items() if before.get(n, ...) != v}
"""


@pytest.mark.slow
def test_imports_change_no_option_of_jax():
    command = [sys.executable, "-W", "error", "-c", IMPORTS]
    assert subprocess.run(command, capture_output=True, text=True, timeout=120).stderr == ""


def test_cache_is_operants_unless_the_user_told_jax_of_another_or_of_none(own, monkeypatch):
    monkeypatch.setattr(compilation_cache, "_cache", None)
    monkeypatch.setattr(runtime, "_set", lambda *_: None)
    with options(jax_compilation_cache_dir=None):
        for change in (
            {"jax_compilation_cache_dir": str(own)},
            {"jax_enable_compilation_cache": False},
            {"jax_compilation_cache_max_size": 0},
        ):
            with options(**change):
                runtime.prepare()
        assert compilation_cache._cache is None
        with options(jax_compilation_cache_max_size=1000):
            runtime.prepare()
        cache = compilation_cache._cache
        runtime.prepare()
        assert compilation_cache._cache is cache
        assert cache._path == own / "operant" / "programs"
        cache.put("a", bytes(2000))
        assert cache.get("a") is None


@contextlib.contextmanager
def options(**values):
    """Set options of JAX."""
    before = {name: getattr(jax.config, name) for name in values}
    for name, value in values.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


COUNT = int(os.environ.get("OPERANT_TEST_PROCESSES", "12"))
"""Processes that start at once. Each takes some 0.2 GB."""
TRAIN = "train a2c --env CartPole-v1 --n-envs 2 --seed 3 --max-steps 128 --n-steps 32 --quiet --run-dir"


def begun(folder, cache):
    """Start a training that keeps its programs in a folder; 0: nowhere."""
    variables = {"OPERANT_COMPILATION_CACHE": str(cache), "JAX_COMPILATION_CACHE_DIR": ""}
    return subprocess.Popen(
        [sys.executable, "-m", "operant", *TRAIN.split(), str(folder)],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def outcome(process, folder):
    """Return the arrays of a run that has ended without a word."""
    assert process.communicate(timeout=60 + 30 * COUNT)[0] == b""
    assert process.returncode == 0
    [checkpoint] = (folder / "checkpoints").glob("step-*")
    return [path.read_bytes() for path in sorted(checkpoint.rglob("*.safetensors"))]


@pytest.mark.slow
@pytest.mark.timeout(120 + 40 * COUNT)
def test_processes_that_start_at_once_on_one_cache_compute_the_same(tmp_path):
    """Also if every fourth is killed as it writes; after that with bits flipped, and with programs found."""
    cache = tmp_path / "cache"
    together = [begun(tmp_path / str(i), cache) for i in range(COUNT)]
    for i, each in enumerate(together[::4], 1):
        while len(list(cache.glob("*"))) < i and each.poll() is None:  # it does not exist at first
            time.sleep(0.01)
        each.send_signal(signal.SIGKILL)
        each.communicate()
    others = {i: each for i, each in enumerate(together) if i % 4}
    found = [outcome(each, tmp_path / str(i)) for i, each in others.items()]
    wanted = outcome(begun(tmp_path / "alone", 0), tmp_path / "alone")
    assert wanted and found == [wanted] * len(others)
    entries = [path for path in kept(cache) if len(path.name) == 64]
    assert len(entries) > 5
    for path in entries:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    assert outcome(begun(tmp_path / "flipped", cache), tmp_path / "flipped") == wanted
    begin = [path.stat() for path in entries]
    assert outcome(begun(tmp_path / "found", cache), tmp_path / "found") == wanted
    now = [path.stat() for path in entries]
    assert all(
        a.st_ino == b.st_ino and a.st_mtime_ns < b.st_mtime_ns for a, b in zip(begin, now, strict=True)
    )
