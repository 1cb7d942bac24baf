"""The logger that writes to Weights & Biases."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import types

import pytest

from operant import Random
from operant.errors import SpecError
from operant.tracking import WandB
from operant.tracking.record import Record


@pytest.fixture
def logged(monkeypatch):
    """What a stand-in of wandb was told."""
    told = []

    def init(**options):
        told.append(options)
        return types.SimpleNamespace(
            id=options["id"] or f"new-{len(told)}", offline=options["mode"] == "offline",
            log=lambda values, step: told.append((step, values)), finish=lambda: told.append("finish"),
        )  # fmt: skip

    def login(prompt, verify):
        assert not prompt and not verify  # it must not wait for someone to log in
        return "WANDB_API_KEY" in os.environ

    fake = types.SimpleNamespace(init=init, run=None, login=login, Settings=lambda **options: options)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(__import__("sys").modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", "/nowhere")
    return told


def test_records_are_logged_at_their_step(logged, tmp_path):
    logger = WandB("name", tmp_path, {"lr": 1.0})
    logger.record(Record(120, 1.5, {"loss/td": 2.0}))
    logger.close()
    assert logged[1:] == [(120, {"loss/td": 2.0, "time/elapsed": 1.5}), "finish"]
    assert logged[0]["name"] == "name" and logged[0]["config"] == {"lr": 1.0} and logged[0]["resume"] is None
    assert logger.id == "new-1"


def test_without_a_key_it_is_offline_and_with_one_as_wandb_decides(logged, tmp_path, monkeypatch):
    assert WandB("a", tmp_path, {}).offline and logged[0]["mode"] == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert not WandB("a", tmp_path, {}).offline and logged[1]["mode"] is None


def test_a_resumed_run_is_the_same_run(logged, tmp_path):
    assert WandB("a", tmp_path, {}, "old").id == "old"
    assert logged[0]["resume"] == "allow"


def test_without_a_folder_each_object_is_a_run_and_its_fits_are_one(logged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        agent = Random("CartPole-v1", quiet=True, seed=1)
        agent.fit(max_steps=50, monitor_session="name")
        agent.fit(max_steps=100, monitor_session="name")
        agent.close()
    ids = [options["id"] for options in logged if isinstance(options, dict)]
    assert ids[0] is None and ids[2] is None  # runs of their own
    assert None not in (ids[1], ids[3]) and ids[1] != ids[3]
    assert not list(tmp_path.rglob("id"))


def test_with_a_folder_the_run_is_that_of_the_folder(logged, tmp_path):
    agent = Random("CartPole-v1", quiet=True, seed=1, run_dir=str(tmp_path / "run"))
    agent.fit(max_steps=50, monitor_session="name")
    first = (tmp_path / "run" / "wandb" / "id").read_text().strip()
    agent.fit(max_steps=100, monitor_session="name")
    agent.close()
    assert [options["id"] for options in logged if isinstance(options, dict)] == [None, first]


def test_the_package_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"pip install 'operant\[wandb\]'"):
        WandB("a", tmp_path, {})


@pytest.mark.slow
def test_wandb_itself_says_whether_someone_logged_in(tmp_path):
    pytest.importorskip("wandb", reason="needs the extra 'wandb'")
    program = "import wandb; print(wandb.login(prompt=False, verify=False))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment["NETRC"] = str(tmp_path / "netrc")
    environment["WANDB_BASE_URL"] = "http://127.0.0.1:9"  # its own may not answer, nor refuse
    ask = [sys.executable, "-c", program]
    assert "False" in subprocess.run(ask, env=environment, capture_output=True, text=True, check=True).stdout
    log_in = [sys.executable, "-m", "wandb", "login", "a" * 40, "--no-verify"]
    subprocess.run(log_in, env=environment, capture_output=True, check=True)
    assert "True" in subprocess.run(ask, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_real_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs the extra 'wandb'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    logger = WandB("name", tmp_path, {"lr": 1.0})
    logger.record(Record(120, 1.5, {"loss/td": 2.0}))
    logger.close()
    files = list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 1
    deadline = time.monotonic() + 20
    while b"loss/td" not in files[0].read_bytes():  # another process writes it
        assert time.monotonic() < deadline
        time.sleep(0.1)
