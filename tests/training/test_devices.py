"""One run shared out among several devices, and among several processes: the same numbers as on one
device."""

import json
import os
import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from operant.tracking import read_history

TWO = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"}
ARGUMENTS = ["--env", "jax:CartPole-v1", "--n-envs", "8", "--seed", "3", "--quiet"]


def start(arguments, **variables):
    return subprocess.Popen(
        [sys.executable, "-m", "operant", *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def done(process):
    text, _ = process.communicate(timeout=280)
    assert process.returncode == 0, text
    return text


def compared(kind, env, options, blocks):
    """Run both ways in one process that has two devices; return what differs."""
    script = textwrap.dedent("""
        import json, sys
        import jax, numpy as np
        from operant.agents.base.agent_spec import parse_agent
        from operant.spec.run import RunConfig
        from operant.training.drivers.device_driver import DeviceDriver
        from operant.training.drivers.device_mesh import Devices
        from operant.training.session import build
        from operant.training.environments import make_environments

        kind, env, options, blocks = json.loads(sys.argv[1])
        run = RunConfig(env=env, n_envs=4, seed=1, max_steps=1)
        environments = make_environments(run)
        learner = build(parse_agent(kind, **options), environments, run)
        native, key = environments.native, jax.random.key(1)
        drivers = [DeviceDriver(learner, native, 4, key, Devices(n)) for n in (1, 2)]
        episodes = [[], []]
        for driver, finished in zip(drivers, episodes):
            for _ in range(blocks):
                finished += driver.advance(1)
        one, two = ([np.asarray(x, np.float64) for x in jax.tree.leaves(d.train.state)] for d in drivers)
        print(json.dumps(dict(
            episodes=episodes[0] == episodes[1],
            count=len(episodes[0]),
            worst=max(float(np.abs(a - b).max()) for a, b in zip(one, two) if a.size),
            size=max(float(np.abs(a).max()) for a in one if a.size),
            spread=drivers[1].world.reward.sharding.shard_shape((4,)),
            gradients=drivers[1].compile().as_text().count(" all-reduce("),
            moved=float(max(np.abs(a - np.asarray(b, np.float64)).max() for a, b in zip(
                one, jax.tree.leaves(jax.jit(learner.init)(jax.random.key(1), learner.hyper()).state)))),
        )))
        """)
    process = subprocess.run(
        [sys.executable, "-c", script, json.dumps([kind, env, options, blocks])],
        env={**os.environ, **TWO},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


SMALL = {"buffer_max_size": 400, "buffer_initial_size": 64}


@pytest.mark.parametrize(
    ("kind", "env", "options", "blocks"),
    [
        pytest.param("ppo", "jax:CartPole-v1", {"n_steps": 16, "mini_batches": 2}, 5, marks=pytest.mark.slow),
        pytest.param(
            "ppo",
            "jax:CartPole-v1",
            {"n_steps": 16, "lr": 0.01, "target_kl": 0.001},
            5,
            marks=pytest.mark.exhaustive,
        ),
        pytest.param("dqn", "jax:CartPole-v1", SMALL, 60, marks=pytest.mark.exhaustive),
        pytest.param(
            "dqn", "jax:CartPole-v1", {**SMALL, "prioritized": True}, 60, marks=pytest.mark.exhaustive
        ),
        pytest.param(
            "dqn",
            "jax:CartPole-v1",
            {**SMALL, "model": [{"type": "dense", "size": 8}, {"type": "gru", "size": 8}]},
            60,
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "ppo",
            "jax:CartPole-v1",
            {"model": [{"type": "dense", "size": 8}, {"type": "lstm", "size": 8}]},
            2,
            marks=pytest.mark.exhaustive,
        ),
        pytest.param("a2c", "jax:CartPole-v1", {}, 20, marks=pytest.mark.exhaustive),
        pytest.param("acer", "jax:CartPole-v1", SMALL, 20, marks=pytest.mark.exhaustive),
        pytest.param("trpo", "jax:CartPole-v1", {}, 2, marks=pytest.mark.exhaustive),
        pytest.param("pqn", "jax:CartPole-v1", {}, 5, marks=pytest.mark.exhaustive),
        pytest.param("td3", "jax:Pendulum-v1", SMALL, 60, marks=pytest.mark.exhaustive),
        pytest.param("sac", "jax:Pendulum-v1", SMALL, 60, marks=pytest.mark.exhaustive),
        pytest.param("modular", "jax:CartPole-v1", {}, 5, marks=pytest.mark.exhaustive),
    ],
)
def test_two_devices_compute_what_one_does(kind, env, options, blocks):
    found = compared(kind, env, options, blocks)
    assert found["episodes"] and (found["count"] or env != "jax:CartPole-v1")
    assert found["worst"] < 1e-3 * max(1.0, found["size"]) and found["moved"] > 1e-3
    assert found["spread"] == [2] and found["gradients"] > 0


@pytest.mark.slow
def test_what_cannot_be_shared_out_is_refused(tmp_path):
    for arguments, message in [
        (["--n-devices", "3"], r"--n-devices must be at most 2, the number of JAX's devices (cpu)"),
        (["--n-devices", "2", "--n-envs", "3"], "--n-envs must be a multiple of n_devices=2"),
        (["--n-devices", "2", "--env", "CartPole-v1"], "left out where environments are not JAX-native"),
        (["--n-devices", "2", "--n-seeds", "2"], "--n-devices is for a single run"),
        (["--coordinator", "localhost:1"], "needs --n-processes and --process-id"),
        (["--coordinator", "auto", "--process-id", "0"], "or is auto, without them"),
        (["--process-id", "1"], "is for processes that train together"),
    ]:
        run = ["train", "ppo", *ARGUMENTS, "--max-steps", "9", *arguments, "--run-dir", str(tmp_path / "no")]
        process = start(run, **TWO)
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 2 and message in text and "Traceback" not in text, text
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_a_run_on_two_devices_resumes_exactly_and_may_change_their_number(tmp_path):
    def train(name, *arguments, **variables):
        done(start(["train", "ppo", *ARGUMENTS, "--run-dir", str(tmp_path / name), *arguments], **variables))

    train("whole", "--max-steps", "8000", "--n-devices", "2", **TWO)
    train("parts", "--max-steps", "4000", "--n-devices", "2", **TWO)
    done(start(["train", "--resume", str(tmp_path / "parts"), "--max-steps", "8000"], **TWO))
    whole, parts = (read_history(tmp_path / name / "history.parquet") for name in ("whole", "parts"))
    np.testing.assert_array_equal(whole["episode_reward"], parts["episode_reward"])
    np.testing.assert_array_equal(whole["step"], parts["step"])
    done(start(["train", "--resume", str(tmp_path / "parts"), "--max-steps", "9000", "--n-devices", "1"]))


@pytest.mark.slow
def test_two_processes_train_together(tmp_path):
    """Each has one device; the first writes the run, which then goes on by itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    train = ["train", "ppo", *ARGUMENTS, "--max-steps", "9000"]
    done(start([*train, "--run-dir", str(tmp_path / "alone")]))
    together = [*train, "--run-dir", str(tmp_path / "together"), "--coordinator", f"127.0.0.1:{port}"]
    processes = [start([*together, "--n-processes", "2", "--process-id", str(i)]) for i in (0, 1)]
    for process in processes:
        done(process)
    alone, both = (read_history(tmp_path / name / "history.parquet") for name in ("alone", "together"))
    np.testing.assert_array_equal(alone["episode_reward"], both["episode_reward"])
    np.testing.assert_array_equal(alone["step"], both["step"])
    described = json.loads((tmp_path / "together" / "run.json").read_text())
    assert described["run"]["n_processes"] == 2 and described["run"]["process_id"] == 0
    done(start(["train", "--resume", str(tmp_path / "together"), "--max-steps", "18000"]))  # waits for nobody
    assert read_history(tmp_path / "together" / "history.parquet")["step"][-1] > 17_000
