"""Seeds and trials on a Ray cluster: what they come to is what they come to without."""

import json
import subprocess
import sys
import textwrap

import pytest
from tests.envs.test_remote_ray import ray_that_starts  # noqa: F401 - skips where Ray does not start

from operant.checkpoint import newest
from operant.cli import main
from operant.envs.remote.cluster import TaskPlacement
from operant.errors import SpecError, UsageError
from operant.spec.run import ClusterConfig, RunConfig
from operant.training import cluster_seeds
from operant.training.train import ExperimentConfig, train

NET = [{"type": "dense", "size": 8}]
SMALL = {"env": "jax:CartPole-v1", "n_envs": 2, "max_steps": 400, "quiet": True}


@pytest.mark.parametrize(
    "cluster, host, port",
    [("ray", None, None), ("ray:10.0.0.5", "10.0.0.5", None), ("ray:10.0.0.5:7000", "10.0.0.5", 7000)],
)
def test_addresses_of_clusters(cluster, host, port):
    config = ClusterConfig.from_dict({"cluster": cluster, "cluster_gpus": 0.5})
    assert TaskPlacement.read(config) == (host, port, 1.0, 0.5)
    assert TaskPlacement.read(ClusterConfig()) is None


@pytest.mark.parametrize("cluster", ["slurm", "ray:", "ray:host:port", "rays", ""])
def test_what_is_no_cluster_is_refused(cluster):
    if cluster == "ray:":
        assert TaskPlacement.read(ClusterConfig(cluster=cluster)) == (None, None, 1.0, 0.0)
        return
    with pytest.raises(SpecError, match="cluster must be ray or ray:HOST:PORT"):
        TaskPlacement.read(ClusterConfig(cluster=cluster))


def test_one_seed_needs_no_cluster(capsys):
    assert main(["train", "ppo", "--env", "jax:CartPole-v1", "--max-steps", "1", "--cluster", "ray"]) == 2
    assert "--cluster distributes seeds. Give --n-seeds" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_a_task_sends_its_folder_only_where_nobody_else_sees_it(shared, tmp_path):
    sign, folder = tmp_path / ".sign", tmp_path / "seed-3"
    if shared:
        sign.write_text(".sign")
    run = RunConfig.from_dict({**SMALL, "seed": 3, "run_dir": str(folder)})
    order = json.dumps([{"type": "a2c", "model": NET}, run.to_dict(), "the command"])
    answer = cluster_seeds._train_seed(order, str(sign))
    assert bool(answer[1]) != shared == folder.exists()
    outcome = cluster_seeds._received(answer, folder)
    alone = train(ExperimentConfig("a2c", {"model": NET}, run.replace(run_dir=str(tmp_path / "alone"))))
    assert outcome._replace(seconds=0) == alone.outcome._replace(seconds=0)
    assert newest(folder / "checkpoints").header["training"]["step"] == outcome.step
    if shared:  # begun again after its end, it finds everything done
        assert (
            cluster_seeds._received(cluster_seeds._train_seed(order, str(sign)), folder).step == outcome.step
        )
    refused = json.dumps([{"type": "a2c"}, {**run.to_dict(), "env": "None-v0"}, None])
    with pytest.raises(UsageError, match="Unknown environment 'None-v0'"):
        cluster_seeds._received(cluster_seeds._train_seed(refused, "none"), tmp_path / "refused")


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_cluster_that_loses_a_machine_comes_to_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "nodes.py"
    script.write_text(
        textwrap.dedent("""
        import subprocess, sys, time
        from pathlib import Path
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=0))
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        cluster.wait_for_nodes()
        command = [sys.executable, "-m", "operant", *sys.argv[2:], "--cluster", "ray:" + cluster.address]
        process = subprocess.Popen(command)
        while process.poll() is None and not Path(sys.argv[1]).exists():
            time.sleep(0.2)
        time.sleep(1)
        cluster.remove_node(nodes.pop(), allow_graceful=False)
        code = process.wait()
        cluster.shutdown()
        sys.exit(code)
        """)
    )
    common = ["ppo", "--env", "jax:CartPole-v1", "--n-envs", "4", "--seed", "5"]
    seeds = [*common, "--max-steps", "20000", "--save-seconds", "1", "--n-seeds", "4"]
    trials = [
        *common,
        *["--lr", "1e-4", "1e-2", "--n-trials", "4", "--population", "1", "--trial-steps", "5000"],
    ]
    command = [sys.executable, str(script)]
    first = "there/seed-5/checkpoints"
    subprocess.run([*command, first, "train", *seeds, "--run-dir", "there"], check=True, timeout=280)
    assert main(["train", *seeds, "--run-dir", "here"]) == 0
    for seed in range(5, 9):
        there, here = (newest(tmp_path / f"{where}/seed-{seed}/checkpoints") for where in ("there", "here"))
        there, here = (saved.header["training"]["score"]["rewards"] for saved in (there, here))
        assert there == here
    storage = ["--storage", "s.journal"]
    subprocess.run(
        [*command, "s.journal", "tune", *trials, "--study", "there", *storage], check=True, timeout=280
    )
    assert main(["tune", *trials, "--study", "here", *storage]) == 0
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    opened = JournalStorage(JournalFileBackend("s.journal"))
    there, here = (
        {
            tuple(t.params.values()): t.value
            for t in optuna.load_study(study_name=n, storage=opened).trials
            if t.value
        }
        for n in ("there", "here")
    )
    assert there == here and len(here) == 4
