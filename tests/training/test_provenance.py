"""What a run's record says of the code that made it."""

import subprocess
import types

import jax
import pytest

from operant import __version__
from operant.training import provenance
from operant.training.reproduce import Reproduction, _remedy


def git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    git(tmp_path, "init", "-b", "trunk")
    return tmp_path


def test_git_state(repository):
    assert provenance.git_state(repository) is None  # no commit
    (repository / "a.py").write_text("1")
    git(repository, "add", "a.py")
    git(repository, "commit", "-m", "first")
    state = provenance.git_state(repository)
    assert len(state["commit"]) == 40
    assert (state["branch"], state["changes"]) == ("trunk", False)
    (repository / "runs").write_text("what a run writes is no change of the code")
    assert provenance.git_state(repository)["changes"] is False
    (repository / "a.py").write_text("2")
    assert provenance.git_state(repository)["changes"] is True
    git(repository, "checkout", "--detach")
    assert provenance.git_state(repository)["branch"] is None


def test_no_git_and_no_repository_are_none(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.git_state(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.git_state(tmp_path) is None


def test_a_slow_git_is_not_waited_for(repository, monkeypatch):
    fake = repository / "bin"
    fake.mkdir()
    (fake / "git").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (fake / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(fake))
    monkeypatch.setattr(provenance, "GIT_SECONDS", 0.05)
    assert provenance.git_state(repository) is None


def test_a_repository_cannot_name_a_program_to_run(repository):
    (repository / "a.py").write_text("1")
    git(repository, "add", "a.py")
    git(repository, "commit", "-m", "first")
    (repository / "hook").write_text("#!/bin/sh\ntouch ran\n")
    (repository / "hook").chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(repository / "hook"))
    assert provenance.git_state(repository) is not None
    assert not (repository / "ran").exists()


def test_versions_and_machine():
    found = provenance.versions()
    assert found["operant"] == __version__ and found["jax"][0].isdigit()
    assert provenance.machine()["processors"] >= 1


def test_what_decides_about_the_bits_of_a_gpu_is_recorded(monkeypatch):
    assert "deterministic" not in provenance.machine()  # a CPU always is
    with jax.default_matmul_precision("float32"):
        assert provenance.machine()["precision"] == "float32"
    gpu = types.SimpleNamespace(platform="gpu", device_kind="a GPU")
    monkeypatch.setattr(jax, "devices", lambda: [gpu])
    monkeypatch.setenv("XLA_FLAGS", "")
    assert provenance.machine()["deterministic"] is False
    assert provenance.DETERMINISTIC in str(Reproduction(["x"], [], 1, "all", _remedy()))
    assert provenance.DETERMINISTIC not in str(Reproduction([], [], 1, "all", _remedy()))
    monkeypatch.setenv("XLA_FLAGS", f"--other {provenance.DETERMINISTIC}")
    assert provenance.machine()["deterministic"] is True and _remedy() == ""


def test_a_digest_tells_content(tmp_path):
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).write_bytes(content)
    digests = [provenance.digest(tmp_path / name) for name in "abc"]
    assert digests[0] == digests[1] != digests[2]
