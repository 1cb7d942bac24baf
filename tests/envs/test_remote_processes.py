"""Environments in processes of their own: the same answers as here, and what happens when they crash, hang
or die."""

import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from tests.asking import ask

from operant import Runner
from operant.envs import Environment
from operant.envs.remote import connect
from operant.errors import EnvError, SpaceError, SpecError, UsageError

FOLDER = Path(__file__).parents[1]


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def module():
    sys.path.insert(0, str(FOLDER))
    import remote_envs

    yield remote_envs
    sys.path.remove(str(FOLDER))


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def all_gone(pids):
    """Whether the processes are gone, or are soon."""
    deadline = time.monotonic() + 15
    while not all(map(is_gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return all(map(is_gone, pids))


@pytest.fixture
def counts(module):
    """One connection to a `Count` in a process; more restarts and less patience than usual."""
    (connection,) = connect(module.Count, remote="multiprocessing", timeout_seconds=0.7)
    yield connection
    connection.close()


def plain(answer):
    return answer._replace(seconds=0.0)


@pytest.mark.parametrize("name", ["Masked", "Team", "Told", "Started", "CartPole-v1", slow("Pendulum-v1")])
def test_answers_are_those_of_an_environment_here(module, name):
    given = getattr(module, name, name)
    (here,) = connect(given, max_episode_timesteps=20)
    (there,) = connect(given, max_episode_timesteps=20, remote="multiprocessing")
    try:
        assert (here.name, here.spaces, here.num_actors) == (there.name, there.spaces, there.num_actors)
        assert here.max_episode_timesteps == there.max_episode_timesteps == 20
        generator = np.random.default_rng(0)
        for seed in (3, None):
            a, b = ask(here, seed=seed), ask(there, seed=seed)
            rows = 3
            while True:
                np.testing.assert_allclose(a.reward, b.reward, rtol=1e-12)
                np.testing.assert_equal(plain(a)[:2], plain(b)[:2])
                np.testing.assert_equal(a.parallel, b.parallel)
                assert here.episode_return() == there.episode_return()
                if np.all(a.terminal):
                    break
                rows = 3 if a.parallel is None else len(a.parallel)
                if not rows:
                    break
                if name in ("Team", "Told"):
                    actions = generator.uniform(-0.9, 0.9, (rows, 1)).astype(np.float32)
                elif name == "Pendulum-v1":
                    actions = generator.uniform(-4, 4, 1).astype(np.float32)  # bounds: -2, 2
                else:
                    actions = (
                        int(generator.integers(2)) * 2 if name == "Masked" else int(generator.integers(2))
                    )
                a, b = ask(here, actions), ask(there, actions)
    finally:
        here.close()
        there.close()


def test_processes_are_unbatched_and_ready_in_their_own_time(module):
    fast, slow = connect(module.Count, num_parallel=2, remote="multiprocessing", hang=1.0)
    try:
        for connection in (fast, slow):
            ask(connection)
        slow.send_execute(2)
        for step in range(1, 20):
            fast.send_execute(0)
            assert fast.ready(10.0)
            assert fast.receive().states["count"][0] == step
        assert not slow.ready()
    finally:
        begun = time.monotonic()
        fast.close()
        slow.close()
        assert time.monotonic() - begun < 20


def test_workers_load_neither_jax_nor_keras_nor_secrets(module, monkeypatch):
    monkeypatch.setenv("OPERANT_TOKEN", "0123456789abcdef0123456789abcdef")
    (connection,) = connect(module.Loaded, remote="multiprocessing")
    assert ask(connection).states == 0
    connection.close()


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (1, r"failed: RuntimeError: the motor is stuck\nWorker 0, traceback .*in execute"),
        (2, r"did not answer within 0.7 s"),
        slow(3, r"ended with exit code 5"),
        (4, r"was killed by signal 9"),
        (9, r"failed: SystemExit: 6\nWorker 0, traceback .*in execute"),
        (
            5,
            r"failed: execute of 'Count' \(step 3 of its episode\) returned states.*must be finite",
        ),
        slow(6, r"failed: .*must have shape \(2,\)"),
        slow(7, r"sent an invalid message|did not answer"),
        slow(8, r"failed: The reward of 'Count' must be a number. Received: 'much'"),
    ],
)
def test_a_lost_environment_is_replaced_and_its_episode_cut(counts, caplog, action, reason):
    first = ask(counts, seed=5)
    ask(counts, 0)
    last = ask(counts, 0)
    with caplog.at_level(logging.WARNING, "operant"):
        answer = ask(counts, action)
    assert (answer.terminal, answer.reward) == (2, 0.0)
    assert answer.states["count"].tolist() == last.states["count"].tolist() == [2.0, -2.0]

    assert re.search(
        f"Environment 0 of 'Count' \\(process {first.states['pid']}\\) {reason}", answer.lost, re.S
    )
    assert "; it is replaced." in caplog.text
    assert counts.restarts == 1
    with pytest.raises(UsageError, match=r"execute was called on 'Count' before an episode was begun"):
        counts.send_execute(0)
    again = ask(counts)
    assert again.lost == "" and again.states["pid"] != first.states["pid"]
    assert again.states["seed"] not in (-1, 5)  # a replacement is seeded too, otherwise than the first
    assert ask(counts, 0).states["count"][0] == 1.0
    assert is_gone(first.states["pid"])


def test_each_replacement_has_a_seed_of_its_own(counts):
    seeds = [ask(counts, seed=5).states["seed"]]
    for _ in range(2):
        assert ask(counts, 1).lost
        seeds.append(ask(counts).states["seed"])
    assert len(set(seeds)) == 3 and -1 not in seeds


def test_restarts_are_bounded_and_the_last_error_has_the_traceback(module):
    (connection,) = connect(module.Count, remote="multiprocessing", max_restarts=1)
    ask(connection)
    assert ask(connection, 1).terminal == 2
    pid = ask(connection).states["pid"]
    with pytest.raises(
        EnvError,
        match=r"(?s)Environment 0 of 'Count' \(process \d+\) failed: RuntimeError: the motor is stuck, and "
        r"it was "
        r"replaced once already\. Mend .*traceback.*in execute",
    ):
        ask(connection, 1)
    assert is_gone(pid)
    with pytest.raises(UsageError, match=r"'Count' is closed"):
        connection.send_reset()


def test_a_reset_that_always_fails_ends(module):
    # The first reset is for the spaces.
    (connection,) = connect(module.Count, remote="multiprocessing", max_restarts=1, fail_reset=2)
    match = r"(?s)nothing to begin with, and it was replaced once.*in reset"
    with pytest.raises(EnvError, match=match):
        ask(connection, seed=1)
    assert connection.restarts == 1


def test_a_killed_process_at_rest_costs_no_episode(counts):
    first = ask(counts, seed=1)
    os.kill(first.states["pid"], signal.SIGKILL)
    again = ask(counts)
    assert again.states["count"][0] == 0.0 and again.terminal == 0
    assert counts.restarts == 1


@pytest.mark.slow
def test_a_stopped_process_is_replaced(counts):
    pid = ask(counts).states["pid"]
    os.kill(pid, signal.SIGSTOP)
    answer = ask(counts, 0)
    assert "did not answer within 0.7 s" in answer.lost
    assert is_gone(pid)


def test_several_actors_that_are_lost_all_end(module):
    (team,) = connect(module.Team, remote="multiprocessing")
    ask(team)
    answer = ask(team, np.array([[0.0], [0.0], [5.0]]))  # of which the bounds leave 1
    assert answer.parallel.tolist() == [0, 1] and answer.terminal.tolist() == [0, 0, 1]
    assert answer.reward.tolist() == [0.0, 0.0, 1.0]
    answer = ask(team, np.ones((2, 1)))
    assert answer.terminal.tolist() == [2, 2] and answer.parallel.size == 0
    assert answer.states.tolist() == [[0.0, 0.0]] * 2  # the last that is known of those that acted
    assert "exit code 3" in answer.lost
    assert ask(team).parallel.tolist() == [0, 1, 2]
    team.close()


def test_calls_out_of_order(counts):
    with pytest.raises(UsageError, match=r"Nothing was asked of 'Count'"):
        counts.receive()
    with pytest.raises(UsageError, match=r"execute was called on 'Count' before an episode was begun"):
        counts.send_execute(0)
    counts.send_reset()
    with pytest.raises(UsageError, match=r"was asked already. Call receive first"):
        counts.send_execute(0)
    assert counts.ready(60.0)
    counts.receive()
    assert not counts.ready()
    with pytest.raises(
        SpaceError, match=r"action must be one of its 10 values, between 0 and 9. Received: 10"
    ):
        counts.send_execute(10)
    with pytest.raises(SpecError, match=r"seed must be a whole number"):
        counts.send_reset(-1)
    assert ask(counts, 0).terminal == 0
    assert counts.restarts == 0


def test_blocking_requests_wait(module):
    (connection,) = connect(module.Count, remote="multiprocessing", blocking=True)
    connection.send_reset()
    assert connection._answer is not None
    assert connection.receive().states["count"][0] == 0.0
    connection.close()


@pytest.mark.parametrize("size", [1, 4096, 65537, *map(slow, (4095, 4097, 65535, 65536, 1 << 24))])
def test_states_of_all_sizes(module, size):
    (connection,) = connect(module.Pixels, remote="multiprocessing", size=size)
    want = np.resize(np.arange(251, dtype=np.uint8), size)
    np.testing.assert_array_equal(ask(connection).states, want)
    np.testing.assert_array_equal(ask(connection, 0).states, want[::-1])
    connection.close()


def test_no_process_is_left_behind(module):
    connections = connect(module.Count, num_parallel=2, remote="multiprocessing")
    pids = [ask(connection).states["pid"] for connection in connections]
    connections[0].close()
    connections[0].close()
    assert is_gone(pids[0])
    del connections
    assert is_gone(pids[1])


@pytest.mark.parametrize(
    ("action", "reason"), [slow(2, "did not answer within 3 s"), (3, "ended with exit code 5")]
)
def test_what_an_environment_started_ends_with_it(module, action, reason):
    (connection,) = connect(module.Family, remote="multiprocessing", timeout_seconds=3.0)
    pids = ask(connection).states.tolist()
    assert reason in ask(connection, action).lost
    assert all_gone(pids)
    connection.close()


@pytest.mark.slow
def test_processes_end_with_a_killed_parent_even_while_they_hang(tmp_path):
    script = tmp_path / "script.py"
    text = (FOLDER / "remote_envs.py").read_text() + textwrap.dedent(
        """
        if __name__ == "__main__":
            from operant.envs.remote import connect
            (c,) = connect(Family, remote="multiprocessing")
            c.send_reset()
            pids = c.receive().states
            c.send_execute(2)
            print(*pids, flush=True)
            os.kill(os.getpid(), 9)
        """
    )
    script.write_text(text)
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert all_gone(list(map(int, run.stdout.split())))


@pytest.mark.slow
def test_a_run_goes_on_while_processes_are_killed(module):
    """Whenever one is ready it is asked again, and now and then one is killed, whatever it is at."""
    generator = np.random.default_rng(0)
    connections = connect(module.Count, num_parallel=3, remote="multiprocessing", length=30, max_restarts=20)
    for connection in connections:
        connection.send_reset()
    pids, killed, cut, ended, steps = {}, 0, 0, 0, 0
    while steps < 4000 or len(pids) < 3:
        for i, connection in enumerate(connections):
            if not connection.ready(0.001):
                continue
            answer = connection.receive()
            steps += 1
            pids[i] = connection._worker.process.pid
            if answer.terminal:
                assert (answer.terminal == 2) == bool(answer.lost)
                cut, ended = cut + (answer.terminal == 2), ended + (answer.terminal == 1)
                connection.send_reset()
            else:
                connection.send_execute(0)
            if steps % 100 == 0 and killed < 30:
                os.kill(pids[i], signal.SIGKILL)
                time.sleep(float(generator.uniform(0, 0.01)))
                killed += 1
    restarts = sum(connection.restarts for connection in connections)
    assert killed == 30 and killed - 3 <= restarts <= killed  # the last ones may not have been noticed yet
    assert 0 < cut <= restarts and ended > 50
    for connection in connections:
        connection.close()
    assert all(is_gone(pid) for pid in pids.values())


# Environment.create and the arguments of connect


def test_environment_create_in_a_process(module, caplog):
    with_bonus = lambda states, actions, terminal, reward, after: reward + 1.0  # noqa: E731
    env = Environment.create(
        dict(environment=module.Count, remote="multiprocessing"),
        max_episode_timesteps=3,
        reward_shaping=with_bonus,
    )
    assert env.max_episode_timesteps() == 3 and env.num_actors() == 1
    assert env.states()["count"] == dict(type="float", shape=[2]) and env.name == "Count"
    states = env.reset(seed=4)
    assert states["seed"] == 4 and states["pid"] != os.getpid()
    assert [env.execute(0)[1] for _ in range(3)] == [0, 0, 2]
    env.reset()
    assert env.execute(0)[2] == pytest.approx(1.1)
    with caplog.at_level(logging.WARNING, "operant"):
        assert env.execute(1)[1] == 2
    assert "the motor is stuck" in caplog.text
    env.reset()
    assert env.execute(0)[1] == 0
    env.close()
    assert is_gone(states["pid"])


def test_after_ctrl_c_in_a_call_reset_begins_another_episode(module):
    env = Environment.create(module.Interrupting, remote="multiprocessing")
    pid = env.reset()["pid"]
    with pytest.raises(KeyboardInterrupt):
        while True:
            env.execute(0)
    with pytest.raises(UsageError, match="where a call was interrupted begin an episode: reset"):
        env.execute(0)
    assert env.reset()["pid"] == pid  # it was no reason to replace it
    assert env.execute(0)[0]["count"][0] == 1
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["step", "reset"])
@pytest.mark.parametrize(
    "blocking, manner", [(False, {}), slow(False, {"batch_agent_calls": True}), (True, {})]
)
def test_a_run_that_was_interrupted_is_followed_by_another(module, when, blocking, manner):
    environments = [dict(environment=module.Interrupting, when=each) for each in ("", when)]
    with Runner("random", environments=environments, remote="multiprocessing", blocking=blocking) as runner:
        with pytest.raises(KeyboardInterrupt):
            runner.run(num_timesteps=10**6, use_tqdm=False, **manner)
        for _ in range(2):
            runner.run(num_timesteps=16, sync_timesteps=True, use_tqdm=False)
            assert runner.episode_timesteps == [4] * 4
        assert runner.restarts == 0


@pytest.mark.parametrize("call", ["send", "receive"])
def test_what_stopped_halfway_is_not_waited_for(counts, monkeypatch, call):
    """Ctrl-C in a call leaves a request that was not sent, or an answer that was read and is gone."""
    ask(counts)
    pid, done = counts._worker.process.pid, getattr(counts._worker, call)

    def interrupted(*arguments):
        if call == "receive":
            done(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(counts._worker, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(counts, 0)
    monkeypatch.setattr(counts._worker, call, done)
    counts.forget()
    assert is_gone(pid) and ask(counts).states["count"][0] == 0
    assert counts.restarts == 0  # nothing was waited for in vain


def test_what_was_interrupted_while_it_was_replaced_is_replaced_again(counts, monkeypatch):
    ask(counts)
    begin = counts._worker.start

    def interrupted():
        begin()
        monkeypatch.setattr(counts._worker, "start", begin)
        raise KeyboardInterrupt

    monkeypatch.setattr(counts._worker, "start", interrupted)
    ask(counts, 3)
    with pytest.raises(KeyboardInterrupt):
        ask(counts)
    half = counts._worker.process.pid
    counts.forget()
    assert is_gone(half) and ask(counts).states["count"][0] == 0
    counts.forget()  # there is nothing to forget
    with pytest.raises(UsageError, match="Call reset first"):
        counts.send_execute(0)


@pytest.mark.slow
def test_environment_create_of_several_actors(module):
    env = Environment.create(module.Team, remote="multiprocessing")
    parallel, states = env.reset()
    assert parallel.tolist() == [0, 1, 2] and states.shape == (3, 2)
    parallel, states, terminal, reward = env.execute(np.full((3, 1), 0.5))
    assert parallel.tolist() == [0, 1] and terminal.tolist() == [0, 0, 1] and reward.tolist() == [0.5] * 3
    env.close()


def test_environments_here_and_objects_stay_open():
    a, b = connect(environments=["CartPole-v1", dict(environment="CartPole-v1", max_episode_timesteps=7)])
    assert (a.max_episode_timesteps, b.max_episode_timesteps) == (500, 7)
    a.close()
    b.close()
    env = Environment.create("CartPole-v1")
    (connection,) = connect(env)
    connection.close()
    env.reset()
    env.close()


def refuse(error, match, **kwargs):
    return pytest.param(kwargs, error, match, id=match[:30])


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        refuse(
            SpecError,
            r"remote must be None.*'multiprocesing'.*Did you mean 'multiprocessing'",
            remote="multiprocesing",
        ),
        refuse(UsageError, r"blocking is for remote environments", blocking=True),
        refuse(UsageError, r"host is for servers and clusters", host="localhost"),
        refuse(UsageError, r"Give either environment or environments", environments=["CartPole-v1"]),
        refuse(SpecError, r"num_parallel must be a whole number of at least 1", num_parallel=0),
        refuse(SpecError, r"timeout_seconds must be above 0", remote="multiprocessing", timeout_seconds=0.0),
        refuse(SpecError, r"max_restarts must be a whole number", remote="multiprocessing", max_restarts=-1),
        refuse(SpecError, r"'CartPole-v1' takes no argument 'lenght'", remote="multiprocessing", lenght=3),
        refuse(SpecError, r"lenght", lenght=3),
    ],
)
def test_arguments_that_exclude_one_another(arguments, error, match):
    with pytest.raises(error, match=match):
        connect("CartPole-v1", **arguments)


def test_what_cannot_be_connected_to(module):
    env = Environment.create("CartPole-v1")
    with pytest.raises(
        UsageError, match=r"exists already, and there is only one of it. Received: num_parallel=2"
    ):
        connect(env, num_parallel=2)
    with pytest.raises(SpecError, match=r"an environment object cannot be sent.*remote=None"):
        connect(env, remote="multiprocessing")
    env.close()
    with pytest.raises(
        UsageError, match=r"must have the same states and actions. Environment 1 \('Pendulum-v1'\)"
    ):
        connect(environments=["CartPole-v1", "Pendulum-v1"])
    with pytest.raises(SpecError, match=r"num_parallel must be 1, as many as environments"):
        connect(environments=["CartPole-v1"], num_parallel=2)
    with pytest.raises(UsageError, match=r"blocking is for remote environments"):
        Environment.create("CartPole-v1", blocking=True)
    with pytest.raises(UsageError, match=r"port is for servers and clusters"):
        Environment.create("CartPole-v1", remote="multiprocessing", port=1)
    with pytest.raises(
        SpecError, match=r"remote must be None, 'multiprocessing'.*Did you mean 'socket-client'"
    ):
        Environment.create("CartPole-v1", remote="socket-clint")


def test_a_handler_that_python_did_not_set_is_no_obstacle(monkeypatch):
    from operant.envs.remote import cluster

    before = signal.getsignal(signal.SIGTERM)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(
                signal, "getsignal", lambda number: None
            )  # as of a program in which Python is embedded
            with cluster._undisturbed():
                signal.signal(signal.SIGTERM, lambda *_: None)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
