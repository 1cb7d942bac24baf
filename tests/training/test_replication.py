"""`operant train --n-seeds`: runs of successive seeds, at once where the environment is JAX-native."""

from __future__ import annotations

import functools
import json
import math
import re
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.small_agents import MODEL

from operant import Agent
from operant.agents.base.agent_spec import parse_agent
from operant.cli import main
from operant.errors import SpecError, UsageError
from operant.spec import runtime
from operant.spec.run import RunConfig
from operant.tracking import read_history
from operant.training import multi_seed, signals
from operant.training.drivers.seeds import begun
from operant.training.environments import make_environments
from operant.training.loop import Outcome
from operant.training.multi_seed import replicate
from operant.training.run_dir import held
from operant.training.session import build
from operant.training.train import ExperimentConfig, TrainingResult, resumed, train

OPTIONS = {"model": MODEL, "n_steps": 16, "mini_batches": 2, "ppo_epochs": 2}


def plan(directory, env="jax:CartPole-v1", **changes):
    settings = {
        "env": env,
        "n_envs": 4,
        "max_steps": 400,
        "quiet": True,
        "seed": 5,
        "run_dir": str(directory),
        **changes,
    }
    return ExperimentConfig("ppo", OPTIONS, RunConfig.from_dict(settings))


def episodes(directory):
    history = read_history(directory / "history.parquet")
    return {name: history[name] for name in ("step", "episode_reward", "episode_length", "actor")}


@pytest.mark.slow
def test_no_batch_of_matrices_is_factorised():
    """On CPU two such kernels at once may wait for each other's threads for ever."""
    run = RunConfig.from_dict({"env": "jax:CartPole-v1", "n_envs": 2, "max_steps": 1, "seed": 1})
    learner = build(parse_agent("ppo", n_steps=4, mini_batches=1), make_environments(run), run)
    keys, hyper = jax.random.split(jax.random.key(0), 2), jnp.stack([learner.hyper()] * 2)
    for how, given, batched in (
        (learner.init, (keys[0], hyper[0]), False),
        (functools.partial(begun, learner), (keys, hyper), False),
        (jax.vmap(learner.init), (keys, hyper), True),
    ):
        compiled = jax.jit(how).lower(*given).compile().as_text()
        shapes = re.findall(r"= \(?f32\[([\d,]+)\].* custom_call_target=\"lapack_", compiled)
        assert shapes and any(shape.count(",") == 2 for shape in shapes) == batched


@pytest.mark.slow
def test_each_seed_at_once_is_its_single_run(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(runtime, "start", lambda *arguments, **_: started.append(arguments))
    done = replicate(plan(tmp_path / "three"), 3)
    assert started[0][-1] == 3  # calls at a time
    assert sorted(path.name for path in done.directory.iterdir()) == ["seed-5", "seed-6", "seed-7"]
    single = train(plan(tmp_path / "one", seed=6))
    assert done.results[1].outcome[:5] == single.outcome[:5]
    ours, theirs = episodes(done.results[1].directory), episodes(single.directory)
    assert all((ours[name] == theirs[name]).all() for name in ours)
    agents = [Agent.load(folder) for folder in (done.results[1].directory, single.directory)]
    a, b = (
        [
            np.asarray(w)
            for w in agent.learner.algorithm.weights(agent.engine.train.state)["model"]["params"].values()
        ]
        for agent in agents
    )
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    means = [result.outcome.mean_reward for result in done.results]
    assert len(set(means)) == 3 and done.mean_reward[0] == pytest.approx(np.mean(means))
    assert done.mean_reward[1] <= done.mean_reward[0] <= done.mean_reward[2]


@pytest.mark.slow
def test_a_seed_is_a_run_that_can_be_repeated_and_resumed(tmp_path):
    folder = replicate(plan(tmp_path / "two"), 2).results[0].directory
    assert main(["reproduce", str(folder), "--quiet"]) == 0
    outcome = train(resumed(folder, {"max_steps": 800})).outcome
    assert outcome.step > 750
    whole = train(plan(tmp_path / "whole", max_steps=800)).outcome
    assert outcome[:4] == whole[:4]


@pytest.mark.slow
def test_a_seed_goes_on_with_the_threads_that_its_sums_depend_on(tmp_path):
    """An update of 960 rows is large enough for two threads to add up in another order.

    In processes of their own, since XLA starts once.
    """

    def operant(*words):
        command = [sys.executable, "-m", "operant", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    words = "train ppo --env jax:CartPole-v1 --n-envs 8 --seed 5 --max-steps 8000 --quiet --n-seeds 2"
    for steps, threads in ((128, None), (120, min(2, runtime.processors()))):
        run = tmp_path / str(steps)
        # 8 * 120 * 64 * 64 is above 2**20; with four minibatches of 8 * 128 / 4 rows it is just that.
        parts = ["--mini-batches", "4" if threads is None else "1"]
        trained = operant(*words.split(), *parts, "--n-steps", str(steps), "--run-dir", str(run))
        assert trained.returncode == 0, trained.stderr
        assert json.loads((run / "seed-6" / "run.json").read_text())["run"]["threads"] == threads
        reproduced = operant("reproduce", str(run / "seed-6"), "--quiet")
        assert reproduced.returncode == 0, reproduced.stdout + reproduced.stderr


@pytest.mark.slow
def test_a_seed_is_not_resumed_while_it_trains(tmp_path, monkeypatch):
    def meanwhile(population, trainings, display):
        for i in (5, 6):
            with pytest.raises(UsageError, match=f"Another process trains in .*seed-{i}"):
                train(resumed(tmp_path / "two" / f"seed-{i}", {"max_steps": 800}))
        return loop(population, trainings, display)

    loop = multi_seed._loop
    monkeypatch.setattr(multi_seed, "_loop", meanwhile)
    folder = replicate(plan(tmp_path / "two"), 2).results[0].directory
    with held(folder):
        pass  # nobody does any more


@pytest.mark.exhaustive
def test_seeds_stop_when_they_would_by_themselves(tmp_path):
    settings = {"max_steps": 4000, "target_reward": 22.0, "reward_buffer_size": 10, "n_envs": 64}
    done = replicate(plan(tmp_path / "three", **settings), 3)
    single = [train(plan(tmp_path / str(seed), seed=seed, **settings)).outcome for seed in (5, 6, 7)]
    assert [result.outcome[:3] for result in done.results] == [outcome[:3] for outcome in single]
    assert len({outcome.step for outcome in single}) > 1


@pytest.mark.slow
def test_other_environments_run_one_after_the_other(tmp_path, capsys):
    done = replicate(plan(tmp_path / "two", env="CartPole-v1", quiet=False), 2)
    single = train(plan(tmp_path / "one", env="CartPole-v1", seed=6))
    assert done.results[1].outcome[:5] == single.outcome[:5]
    assert "over 2 seeds" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_no_episode_has_ended(tmp_path):
    assert math.isnan(replicate(plan(tmp_path / "two", env="jax:Pendulum-v1"), 2).mean_reward[0])


def test_a_request_to_terminate_ends_the_seeds_that_have_not_begun(tmp_path, monkeypatch):
    trained = []

    def asked(plan, *_):
        trained.append(plan.run.seed)
        with signals.orderly(lambda: None):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(multi_seed, "train", asked)
    with pytest.raises(SystemExit) as ended:
        replicate(plan(tmp_path / "run", "CartPole-v1"), 3)
    assert ended.value.code == 143 and trained == [5]


def test_an_interrupted_seed_is_named_and_there_is_no_interval(tmp_path, monkeypatch, capsys):
    def trained(plan, command):
        reason = "interrupted" if plan.run.seed == 6 else "max_steps"
        return TrainingResult(Outcome(reason, "", 400, 9, 20.0, 20.0, 1.0), Path(plan.run.run_dir))

    monkeypatch.setattr("operant.training.multi_seed.train", trained)
    replicate(plan(tmp_path / "two", env="CartPole-v1", quiet=False), 2)
    said = capsys.readouterr().out
    assert "Interrupted: 1 of 2 seeds (seed-6)" in said and "interval" not in said
    assert f"Continue: operant train --resume {tmp_path / 'two' / 'seed-6'}\n" in said


@pytest.mark.parametrize(
    "name, value", [("checkpoints", ("a",)), ("history_checkpoint", "h.parquet"), ("monitor_session", "s")]
)
def test_what_belongs_to_one_run_is_refused(tmp_path, name, value):
    with pytest.raises(UsageError, match=f"{name} is for a single run"):
        replicate(plan(tmp_path / "two", **{name: value}), 2)
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize("env", ["CartPole-v1", "jax:CartPole-v1"])
def test_evaluations_beyond_the_end_are_refused(tmp_path, env):
    with pytest.raises(SpecError, match="eval_frequency must be at most max_steps"):
        replicate(plan(tmp_path / "two", env=env, eval_frequency=10**6), 2)
    assert not (tmp_path / "two").exists()


@pytest.mark.slow
def test_the_command_line(tmp_path, capsys):
    flags = (
        "--env jax:CartPole-v1 --n-envs 4 --n-steps 16 --mini-batches 2 --max-steps 200 --seed 3 --n-seeds 2"
    )
    assert main(["train", "ppo", *flags.split(), "--run-dir", str(tmp_path / "r")]) == 0
    said = capsys.readouterr().out
    assert (
        "2 seeds at once" in said
        and "Mean return over 2 seeds" in said
        and "Seed 4: Done: mean return" in said
    )
    record = json.loads((tmp_path / "r" / "seed-4" / "run.json").read_text())
    assert record["run"]["seed"] == 4 and "--n-seeds 2" in record["command"]
    assert main(["train", "--resume", str(tmp_path / "r" / "seed-4"), "--n-seeds", "2"]) == 2
    assert "one by one" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [("play", "many"), ("play", "many", "--best"), ("reproduce", "many"), ("train", "--resume", "many")],
)
def test_what_wants_one_run_points_at_those_within(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "many" / "seed-1").mkdir(parents=True)
    run = {"begun": "2026", "agent": {"type": "ppo"}, "run": {"env": "jax:CartPole-v1", "seed": 1}}
    (tmp_path / "many" / "seed-1" / "run.json").write_text(json.dumps(run))
    assert main([*words]) == 2
    assert "It holds runs: give one of them, such as 'many/seed-1'." in capsys.readouterr().err
