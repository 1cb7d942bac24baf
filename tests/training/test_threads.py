"""What XLA is started with on CPU: few threads for small products, all for large ones and images.

A library for images.
"""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import pytest

from operant.agents.base.agent_spec import parse_agent
from operant.spec import runtime
from operant.spec.runtime import LARGE_PRODUCT, LIBRARY_FLAG, prepare, start, threads_for


@pytest.mark.parametrize(
    ("agent", "options", "actors", "product"),
    [
        ("dqn", {}, 1, 32 * 64**2),
        ("td3", {"buffer_batch_size": 256}, 1, 256 * 256**2),
        ("ppo", {}, 8, 8 * 128 // 4 * 64**2),
        ("ppo", {"model": {"type": "auto", "depth": 3}}, 8, 8 * 128 // 4 * 64**2),
        ("ppo", {"model": [{"type": "dense", "size": 8}, {"type": "dense", "size": 512}]}, 8, 256 * 512**2),
        ("ppo", {"model": [[{"type": "dense", "size": 96}, "flatten"]]}, 8, 256 * 96**2),
        ("acer", {}, 4, 4 * 20 * 64**2),
        ("trpo", {"actor_model": [{"type": "dense", "size": 32}]}, 2, 2 * 512 * 64**2),
    ],
)
def test_largest_product_of_a_gradient_step(agent, options, actors, product):
    assert parse_agent(agent, **options).product(actors) == product


def test_threads_for_products_and_images():
    assert threads_for([(4,)]) == 1
    assert threads_for([(4,)], LARGE_PRODUCT - 1) == 1
    assert threads_for([(4,)], LARGE_PRODUCT) is None
    assert threads_for([(4,), (84, 84, 4)]) is None


def test_threads_for_several_calls_at_a_time(monkeypatch):
    monkeypatch.setattr(runtime, "processors", lambda: 4)
    assert [threads_for([(4,)], calls=n) for n in (1, 3, 8)] == [1, 3, 4]
    assert threads_for([(4,)], LARGE_PRODUCT, calls=2) is None


@pytest.mark.parametrize(
    ("given", "started_with"),
    [
        ({}, {"NPROC": None, "XLA_FLAGS": LIBRARY_FLAG}),
        ({"XLA_FLAGS": "--a=1 --b=2"}, {"NPROC": None, "XLA_FLAGS": f"{LIBRARY_FLAG} --a=1 --b=2"}),
        ({"XLA_FLAGS": "--xla_cpu_experimental_ynn_fusion_type=", "NPROC": "3"}, {}),
        ({"XLA_FLAGS": "/etc/flags.txt"}, {"NPROC": None}),
    ],
)
def test_images_get_the_library_beside_the_users_own_flags(monkeypatch, given, started_with):
    for name in ("NPROC", "XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    seen = []
    monkeypatch.setattr(
        jax, "devices", lambda: seen.append({n: os.environ.get(n) for n in ("NPROC", "XLA_FLAGS")})
    )
    start([(84, 84, 4)])
    assert seen == [{"NPROC": None, **given, **started_with}]
    assert {n: os.environ[n] for n in ("NPROC", "XLA_FLAGS") if n in os.environ} == given


def test_threads_are_the_users_if_he_says_how_many(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--a=1")
    monkeypatch.delenv("NPROC", raising=False)
    seen = []
    monkeypatch.setattr(jax, "devices", lambda: seen.append((os.environ["NPROC"], os.environ["XLA_FLAGS"])))
    start([(4,)])
    assert seen == [("1", "--a=1")] and "NPROC" not in os.environ
    monkeypatch.setenv("NPROC", "2")
    start([(4,)])
    assert seen[1:] == [("2", "--a=1")]


@pytest.mark.parametrize(
    ("shape", "threads", "product", "calls", "asynchronous"),
    [
        ((4,), None, 0, 1, False),
        ((4,), None, LARGE_PRODUCT, 1, True),
        ((84, 84, 4), None, 0, 1, True),
        ((4,), 1, LARGE_PRODUCT, 1, False),
        ((4,), 2, 0, 1, True),
        ((4,), None, 0, 2, False),
        ((4,), None, LARGE_PRODUCT, 2, True),
        ((4,), 3, 0, 2, True),
    ],
)
def test_calls_are_left_to_xlas_threads_where_it_has_several(
    monkeypatch, shape, threads, product, calls, asynchronous
):
    monkeypatch.delenv("JAX_CPU_ENABLE_ASYNC_DISPATCH", raising=False)
    chosen = []
    monkeypatch.setattr(jax.config, "update", lambda name, value: chosen.append((name, value)))
    monkeypatch.setattr(jax, "devices", lambda: None)
    start([shape], threads, product, calls)
    assert chosen == [("jax_cpu_enable_async_dispatch", asynchronous)]
    monkeypatch.setenv("JAX_CPU_ENABLE_ASYNC_DISPATCH", "0")
    prepare(asynchronous=True)
    assert len(chosen) == 1


@pytest.mark.parametrize(
    "command",
    [
        "train ppo --env CartPole-v1 --max-steps 9",
        pytest.param("play ppo --env CartPole-v1", marks=pytest.mark.slow),
    ],
)
def test_devices_that_are_not_there_are_told_in_a_line(command, tmp_path):
    environment = {**os.environ, "JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, "-m", "operant", *command.split()],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 2
    *_, line = ended.stderr.splitlines()
    assert (
        line.startswith("operant: JAX cannot start on JAX_PLATFORMS='cuda': ")
        and "Traceback" not in ended.stderr
    )
