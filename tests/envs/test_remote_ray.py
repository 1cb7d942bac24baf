"""Environments in actors of a Ray cluster: the same answers as here, and what happens when an actor or its
machine is lost."""

import functools
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from tests.asking import ask

from operant import Runner
from operant.envs import Environment
from operant.envs.remote import connect
from operant.errors import EnvError, SpecError, UsageError

FOLDER = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="Ray is not installed (pip install 'operant[cluster]')",
    ),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"
    ),
]


@functools.cache
def why_not():
    """Tell why Ray does not start here, if it does not; in a process that can be given up."""
    code = (
        "import ray; ray.init('local', include_dashboard=False, logging_level='ERROR'); "
        "ray.get(ray.remote(lambda: 1).remote())"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "Ray does not start here within 120 s"
    return "" if done.returncode == 0 else f"Ray does not start here: {done.stderr[-500:]}"


@pytest.fixture(autouse=True)
def ray_that_starts(request):
    """Skip where Ray does not start. No everyday test needs it."""
    needed = {"slow", "exhaustive"} & {mark.name for mark in request.node.iter_markers()}
    if needed and (reason := why_not()):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def module():
    """The environments' module, importable here and in Ray's processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        patch.setenv("PYTHONPATH", str(FOLDER), prepend=os.pathsep)
        patch.setenv("OPERANT_TOKEN", "not for environments")
        import remote_envs

        yield remote_envs
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()


@pytest.fixture
def count(module):
    (connection,) = connect(module.Count, remote="ray", max_restarts=1)
    yield connection
    connection.close()


@pytest.mark.parametrize(
    ("cpus", "count", "share"),
    [
        ([4.0], 2, 1.0),
        ([2.0], 16, 0.125),
        ([8.0, 8.0, 8.0], 40, 0.5714),
        ([4.0, 2.0], 7, 0.8),
        ([0.0], 3, 0.0),
    ],
)
def test_shares_fit_on_the_machines(cpus, count, share):
    from operant.envs.remote.cluster import equal_share

    found = equal_share(cpus, count)
    assert found == pytest.approx(share, abs=1e-4)
    assert not found or sum(int(each / found) for each in cpus) >= count


@pytest.mark.parametrize(
    "name", [pytest.param("Masked", marks=pytest.mark.exhaustive), "Team", "Started", "CartPole-v1"]
)
def test_answers_are_those_of_an_environment_here(module, name):
    given = getattr(module, name, name)
    (here,) = connect(given, max_episode_timesteps=20)
    (there,) = connect(given, max_episode_timesteps=20, remote="ray")
    try:
        assert (here.name, here.spaces, here.num_actors) == (there.name, there.spaces, there.num_actors)
        assert here.max_episode_timesteps == there.max_episode_timesteps == 20
        generator = np.random.default_rng(0)
        a, b = ask(here, seed=3), ask(there, seed=3)
        while True:
            np.testing.assert_equal(a._replace(seconds=0.0), b._replace(seconds=0.0))
            assert here.episode_return() == there.episode_return()
            rows = 1 if a.parallel is None else len(a.parallel)
            if np.all(a.terminal) or not rows:
                break
            if name == "Team":
                actions = generator.uniform(-0.9, 0.9, (rows, 1)).astype(np.float32)
            else:
                actions = int(generator.integers(2)) * (2 if name == "Masked" else 1)
            a, b = ask(here, actions), ask(there, actions)
    finally:
        here.close()
        there.close()


def test_a_failure_ends_the_episode_and_another_actor_goes_on(count):
    first = ask(count, seed=5).states
    assert first["seed"] == 5 and first["pid"] != os.getpid()
    answer = ask(count, 1)
    assert (answer.terminal, answer.reward, count.restarts) == (2, 0.0, 1)
    assert (
        "the motor is stuck" in answer.lost and "RuntimeError" in answer.lost and "Ray actor" in answer.lost
    )
    again = ask(count).states
    assert again["pid"] != first["pid"] and again["seed"] not in (-1, 5)
    count.send_execute(3)  # the process ends
    with pytest.raises(EnvError, match=r"was lost: .* and it was replaced once already"):
        count.receive()


def test_an_actor_that_is_killed_is_replaced(count):
    pid = int(ask(count).states["pid"])
    os.kill(pid, signal.SIGKILL)
    answer = ask(count, 0)
    assert answer.terminal == 2 and "was lost" in answer.lost and count.restarts == 1
    assert ask(count).states["pid"] != pid
    assert ask(count, 0).terminal == 0


def test_an_actor_that_hangs_is_replaced(module):
    (connection,) = connect(module.Count, remote="ray", timeout_seconds=1.0)
    try:
        ask(connection)
        answer = ask(connection, 2)
        assert answer.terminal == 2 and "did not answer within 1 s" in answer.lost
        assert ask(connection).terminal == 0
    finally:
        connection.close()


def test_the_actor_loads_neither_jax_nor_keras_and_knows_no_secret(module):
    (connection,) = connect(module.Loaded, remote="ray")
    assert ask(connection).states == 0
    connection.close()


def test_an_environment_that_cannot_be_made_says_why(module):
    with pytest.raises(SpecError, match="lenght"):
        connect(module.Count, remote="ray", lenght=3)


@pytest.mark.parametrize("size", [1, 65537, 1 << 24])
def test_states_of_all_sizes(module, size):
    (connection,) = connect(module.Pixels, remote="ray", size=size)
    want = np.resize(np.arange(251, dtype=np.uint8), size)
    np.testing.assert_array_equal(ask(connection).states, want)
    np.testing.assert_array_equal(ask(connection, 0).states, want[::-1])
    connection.close()


def test_environment_create(module):
    with Environment.create("CartPole-v1", remote="ray") as env, Environment.create("CartPole-v1") as here:
        np.testing.assert_array_equal(env.reset(seed=4), here.reset(seed=4))
        there, local = env.execute(1), here.execute(1)
        np.testing.assert_array_equal(there[0], local[0])
        assert there[1:] == local[1:]


def test_a_runner_trains_on_it(module):
    with Runner("ppo", "CartPole-v1", num_parallel=3, remote="ray") as runner:
        runner.run(num_episodes=7, use_tqdm=False)
        assert len(runner.episode_returns) == 7 and runner.restarts == 0
        assert runner.timesteps == sum(runner.episode_timesteps)


def test_what_others_cannot_import_is_refused(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import sys
        import gymnasium
        from operant.envs.remote import connect

        class Own(gymnasium.Wrapper):
            pass

        try:
            connect(Own, remote="ray")
        except Exception as error:
            print(type(error).__name__, error)
        assert "ray" not in sys.modules
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("SpecError Environment 'Own' is defined in the program itself"), done.stderr
    assert done.returncode == 0, done.stderr  # Ray was not even loaded for it


def test_a_head_that_is_not_there_is_named(module):
    import ray

    ray.shutdown()
    with pytest.raises(UsageError, match=r"The Ray cluster at 127\.0\.0\.1:1 cannot be joined"):
        connect("CartPole-v1", remote="ray", host="127.0.0.1", port=1)


def test_a_machine_that_leaves_the_cluster_is_survived(tmp_path):
    """Training goes on when one of three nodes is removed with the environments on it."""
    script = tmp_path / "nodes.py"
    script.write_text(
        textwrap.dedent("""
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=1))
        nodes = [cluster.add_node(num_cpus=3) for _ in range(2)]
        cluster.wait_for_nodes()
        host, port = cluster.address.split(":")

        from operant import Runner

        removed = []

        def leave(runner, parallel):
            if runner.episodes >= 10 and not removed:
                removed.append(nodes.pop())
                cluster.remove_node(removed[0])
            return True

        with Runner("ppo", "CartPole-v1", num_parallel=6, remote="ray", host=host, port=int(port)) as runner:
            runner.run(num_episodes=60, callback=leave, use_tqdm=False)
            print("episodes", runner.episodes, "restarts", runner.restarts, "removed", len(removed))
        import ray

        ray.shutdown()
        cluster.shutdown()
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=280)
    last = done.stdout.strip().splitlines()[-1:]
    assert last and last[0].startswith("episodes 60 restarts ") and last[0].endswith("removed 1"), done.stderr
    assert 1 <= int(last[0].split()[3]) <= 5, last
