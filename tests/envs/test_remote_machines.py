"""Servers and agents on different hosts: network namespaces of this machine, each with its own interfaces
and addresses."""

import os
import secrets
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOKEN = secrets.token_hex(16)
PATHS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def why_not():
    if shutil.which("ip") is None:
        return "there is no program `ip` (iproute2)"
    name = f"op{os.getpid()}x"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
    except (subprocess.CalledProcessError, OSError) as error:
        return f"network namespaces cannot be made: {getattr(error, 'stderr', error)}"
    return ""


@pytest.fixture
def hosts():
    """An agent's host that has a wire to each of two environment hosts, 10.77.1.2 and 10.77.2.2."""
    if reason := why_not():
        pytest.skip(reason)
    agent, *servers = names = [f"op{os.getpid()}{kind}" for kind in ("a", "e1", "e2")]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for i, server in enumerate(servers, 1):
            ip("-n", agent, "link", "add", f"to{i}", "type", "veth", "peer", "name", "eth0", "netns", server)
            for name, link, place in ((agent, f"to{i}", 1), (server, "eth0", 2)):
                ip("-n", name, "addr", "add", f"10.77.{i}.{place}/24", "dev", link)
                ip("-n", name, "link", "set", link, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def on(host, *command, **variables):
    return subprocess.Popen(
        ["ip", "netns", "exec", host, *command],
        cwd=ROOT,
        env={**os.environ, "PATH": PATHS, "OPERANT_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1", **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(*processes):
    for process in processes:
        process.kill()
        process.communicate()


def line(process, beginning):
    seen = []
    while text := process.stdout.readline():
        seen.append(text)
        if text.startswith(beginning):
            return text
    raise AssertionError("".join(seen))


@pytest.mark.slow
def test_the_example_of_three_machines(hosts):
    """As documented, each command on its host."""
    agent, *environments = hosts
    serving = [
        on(
            host,
            "python",
            "run.py",
            "--environment",
            "gym",
            "--level",
            "CartPole-v1",
            "--remote",
            "socket-server",
            "--host",
            "0.0.0.0",
            "--port",
            "65432",
        )
        for host in environments
    ]
    running = on(
        agent,
        "python",
        "run.py",
        "--agent",
        "benchmarks/configs/ppo1.json",
        "--episodes",
        "10",
        "--num-parallel",
        "2",
        "--remote",
        "socket-client",
        "--host",
        "10.77.1.2,10.77.2.2",
        "--port",
        "65432,65432",
        "--batch-agent-calls",
    )
    try:
        text, _ = running.communicate(timeout=200)
        assert running.returncode == 0 and "episodes 10/10" in text, text
        assert all(server.poll() is None for server in serving)  # ready for the next agent
    finally:
        end(running, *serving)


@pytest.mark.slow
def test_beyond_its_machine_nobody_serves_or_asks_without_a_token(hosts):
    agent, server, _ = hosts
    for host, command, message in (
        (server, ["serve", "--environment", "CartPole-v1", "--host", "0.0.0.0"], "token"),
        (
            agent,
            [
                "run",
                "-a",
                "random",
                "-n",
                "1",
                "--remote",
                "socket-client",
                "--host",
                "10.77.1.2",
                "--port",
                "1",
            ],
            "token",
        ),
    ):
        process = on(host, sys.executable, "-m", "operant", *command, OPERANT_TOKEN="")
        text, _ = process.communicate(timeout=60)
        assert process.returncode == 2 and message in text, text


@pytest.mark.slow
def test_a_wire_that_is_cut_is_noticed_in_time_and_mended(hosts):
    """Nothing arrives any more, not even a word that the other side is gone."""
    agent, server, _ = hosts
    serving = on(
        server, "operant", "serve", "--environment", "CartPole-v1", "--host", "0.0.0.0", "--port", "65432"
    )
    script = textwrap.dedent("""
        import time
        from operant.envs.remote import connect

        (connection,) = connect(remote="socket-client", host="10.77.1.2", port=65432, timeout_seconds=1.0)
        connection.send_reset(0)
        connection.receive()
        print("begun")
        input()
        began = time.monotonic()
        connection.send_execute(1)
        answer = connection.receive()
        print("cut", answer.terminal, f"{time.monotonic() - began:.1f}", answer.lost)
        input()
        connection.send_reset()
        print("again", connection.receive().terminal, connection.restarts)
        connection.close()
        """)
    running = on(agent, sys.executable, "-c", script)
    try:
        line(running, "begun")
        ip("-n", server, "link", "set", "eth0", "down")
        running.stdin.write("\n")
        running.stdin.flush()
        _, terminal, seconds, *lost = line(running, "cut").split(maxsplit=3)
        assert terminal == "2" and 0.9 < float(seconds) < 3.0
        assert "10.77.1.2:65432) did not answer within 1 s" in lost[0]
        time.sleep(2.0)
        ip("-n", server, "link", "set", "eth0", "up")
        running.stdin.write("\n")
        running.stdin.flush()
        assert line(running, "again").split() == ["again", "0", "1"]
    finally:
        end(running, serving)
