"""Evaluations while a run trains: when, of what, and that training does not notice them."""

from __future__ import annotations

import io
import shutil
import time
import types
from contextlib import nullcontext
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest

import operant
from operant import checkpoint
from operant.agents.base.agent_spec import parse_agent
from operant.checkpoint import compare
from operant.cli import main
from operant.envs.native.classic import CartPole
from operant.errors import CheckpointError, EnvError, SpaceError, SpecError, UsageError
from operant.execution.play import PlayConfig, play
from operant.execution.trainers.inputs import create_envs
from operant.spec.run import RunConfig
from operant.tracking import Console, Record, read_history
from operant.tracking.figures import PlotConfig, plot
from operant.training.environments import host_vector, make_environments
from operant.training.evaluate import Evaluation, Evaluator
from operant.training.multi_seed import replicate
from operant.training.progress import EvaluationScores
from operant.training.reproduce import reproduce
from operant.training.run_dir import runs_in
from operant.training.session import ExperimentSetup
from operant.training.train import ExperimentConfig, resumed, train

NET = [{"type": "dense", "size": 8}]
OPTIONS = {"model": NET, "lr": 0.01}
SMALL = {"n_steps": 16, "mini_batches": 2, "ppo_epochs": 1, "quiet": True, "seed": 1}


def plan(env="jax:CartPole-v1", max_steps=600, **told):
    run = {
        "env": env,
        "n_envs": 2,
        "seed": 1,
        "quiet": True,
        "run_dir": "run",
        **told,
        "max_steps": max_steps,
    }
    return ExperimentConfig("a2c", OPTIONS, RunConfig.from_dict(run))


def rows(path="run"):
    columns = read_history(f"{path}/evaluations.parquet")
    return {name: column for name, column in columns.items() if name != "time"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("env", [pytest.param("jax:CartPole-v1", marks=pytest.mark.slow), "CartPole-v1"])
def test_training_does_not_notice_and_every_policy_is_scored(env):
    train(plan(env, eval_frequency=200, eval_episodes=5))
    train(plan(env, run_dir="without"))
    newest = [checkpoint.latest(f"{name}/checkpoints") for name in ("run", "without")]
    assert compare.differences(*newest) == []
    found = rows()
    steps, counts = np.unique(found["step"], return_counts=True)
    assert list(counts) == [5, 5, 5] and [step // 200 for step in steps[:2]] == [1, 2]
    assert all(step % 200 < 2 * 5 for step in steps[:2])  # as soon as the block is complete
    assert (
        steps[2] == checkpoint.Checkpoint(newest[0]).header["training"]["step"] < 600
    )  # of whole blocks, at the end
    for step in steps:
        at = found["step"] == step
        np.testing.assert_allclose(found["mean_reward"][at], found["episode_reward"][at].mean())
    np.testing.assert_array_equal(found["best_reward"], np.maximum.accumulate(found["mean_reward"]))
    # The last one is that of the policy which the run ended with.
    agent, run = operant.Agent.load("run"), resumed("run", {}).run
    with host_vector(run, 2) as envs:
        evaluation = Evaluation(Evaluator(agent.learner, envs), 200, 5, run.seed)
        again = evaluation.run(agent.engine.train, 600, lambda: False)  # when the last was due
    assert sorted(e.reward for e in again) == sorted(found["episode_reward"][-5:])


@pytest.mark.exhaustive
def test_a_target_is_reached_where_it_is_without_evaluations():
    told = {"max_steps": 20_000, "target_reward": 15.0, "reward_buffer_size": 5}
    one = train(plan(eval_frequency=70, eval_episodes=1, **told)).outcome
    other = train(plan(run_dir="without", **told)).outcome
    assert one.reason == other.reason == "target" and one[2:6] == other[2:6]


def test_an_evaluator_explores_by_the_seed_of_each_call():
    run = plan().run
    session = ExperimentSetup(parse_agent("a2c", **OPTIONS), make_environments(run), run)
    with host_vector(run, 2) as envs:
        fresh, used = (Evaluator(session.learner, envs) for _ in range(2))
        used.run(session.driver.train, 2, seed=1, explore=True)
        one, other = (each.run(session.driver.train, 8, seed=2, explore=True) for each in (fresh, used))
    assert one == other


def test_the_best_policy_is_kept_and_played():
    outcome = train(plan(eval_frequency=150, eval_episodes=3, checkpoints=("w/best.tf",))).outcome
    found = rows()
    best = found["step"][np.argmax(found["mean_reward"])]
    assert (outcome.evaluated.best_step, outcome.evaluated.best_reward) == (best, found["mean_reward"].max())
    assert f"best evaluation {outcome.evaluated.best_reward:.2f} at {best:,} steps" in outcome.summary
    path = checkpoint.latest("run/best")
    assert path.name == f"step-{best:012d}" and len(checkpoint.list_checkpoints("run/best")) == 1
    # The weights are those of the best evaluation, too, not of the best mean in training.
    last = operant.Agent.load("run")
    algorithm, state = last.learner.algorithm, last.engine.train.state
    kept = checkpoint.load("w/best.tf", algorithm.weights(state)["model"])[0]
    saved = algorithm.weights(checkpoint.Checkpoint(path).part("train", state, "state"))["model"]
    for name, x in kept["params"].items():
        np.testing.assert_array_equal(x, saved["params"][name])
    agent = operant.Agent.load("run/best")
    assert agent.timesteps == best
    played = play(PlayConfig(run_dir="run", best=True, episodes=2))
    assert len(played.rewards) == 2
    with pytest.raises(SpecError, match=r"best is for a run's folder.*best=True without run_dir"):
        PlayConfig.from_dict({"best": True})
    shutil.rmtree("run/best")
    with pytest.raises(SpecError, match=r"'run' has no best evaluation. Train with --eval-frequency"):
        play(PlayConfig(run_dir="run", best=True))


def test_runs_are_listed(capsys):
    assert main(["list", "runs"]) == 0
    assert "There are no runs in 'runs'" in capsys.readouterr().out
    train(plan(max_steps=300, eval_frequency=200, eval_episodes=2, run_dir="runs/one"))
    (Path("runs") / "broken").mkdir()
    Path("runs/broken/run.json").write_text("{")
    (Path("runs") / "other").mkdir()
    Path("runs/other/run.json").write_text('{"agent": 3}')
    assert main(["list", "runs"]) == 0
    shown = capsys.readouterr().out
    (entry,) = runs_in("runs")
    assert (entry.directory, entry.agent, entry.env, entry.seed) == (
        Path("runs/one"),
        "a2c",
        "jax:CartPole-v1",
        1,
    )
    assert entry.ended == "max_steps" and entry.step > 280 and entry.episodes >= len(entry.rewards) > 0
    mean = f"{np.mean(entry.rewards):.2f}"
    assert "a2c on jax:CartPole-v1, seed 1; max steps" in shown and shown.startswith("runs/one\n")
    assert f"mean return {mean}, best evaluation {entry.best_evaluation:.2f}" in shown
    assert "runs/broken\n    cannot be read: The run file 'runs/broken/run.json' is not JSON: " in shown
    assert (
        "runs/other\n    cannot be read: 'runs/other/run.json' does not describe a run: 'agent' must be"
        in shown
    )
    assert main(["list", "runs", "."]) == 0
    assert "There are no runs in" not in capsys.readouterr().out
    assert main(["list", "runs", "runs/one"]) == 0
    assert (
        "'runs/one' is itself a run. For it and those beside it: operant list runs runs\n"
        in capsys.readouterr().out
    )
    assert main(["list", "runs", "dqn"]) == 0
    assert "No runs match 'dqn'" in capsys.readouterr().out


@pytest.mark.slow
def test_a_resumed_run_evaluates_as_one_in_one_part():
    train(plan(eval_frequency=200, eval_episodes=3))
    train(plan(max_steps=300, run_dir="parts", eval_frequency=200, eval_episodes=3))
    result = train(resumed("parts", {"max_steps": 600}))
    one, parts = rows(), rows("parts")
    for name, column in one.items():
        np.testing.assert_array_equal(column, parts[name], err_msg=name)
    assert result.outcome.evaluated.best_reward == one["mean_reward"].max()
    assert reproduce("run").identical


@pytest.mark.slow
def test_checkpoints_come_after_the_evaluations_that_they_count():
    seen = []

    def look(agent, record):
        newest = checkpoint.latest("run/checkpoints")
        if newest is not None:
            counted = checkpoint.Checkpoint(newest).header["training"]["evaluated"]
            seen.append((counted["step"], rows()["step"].max()))

    told = {"eval_frequency": 40, "eval_episodes": 1, "run_dir": "run", "save_seconds": 0.0, **SMALL}
    agent = operant.PPO("jax:CartPole-v1", NET, n_envs=2, **told)
    agent.fit(max_steps=220, callback=look)
    agent.close()
    assert len(seen) > 3 and all(step <= written for step, written in seen)


@pytest.mark.slow
def test_a_run_without_evaluations_can_be_resumed_with_them():
    train(plan(max_steps=300))
    train(resumed("run", {"max_steps": 450, "eval_frequency": 100}))
    train(
        resumed("run", {"max_steps": 600})
    )  # it still evaluates, the last time at its end, after whole blocks
    assert [step // 100 for step in np.unique(rows()["step"])] == [2, 3, 4, 5, 5]
    train(resumed("run", {"max_steps": 700, "eval_episodes": 3}))
    assert resumed("run", {"max_steps": 800, "eval_frequency": None}).run.eval_frequency is None


def test_the_last_evaluation_plays_new_episodes(monkeypatch):
    """A run of whole rollouts ends a little before its last evaluation is due."""
    seeds, run = [], Evaluator.run

    def noted(self, train, episodes, *, seed, **rest):
        seeds.append(seed)
        return run(self, train, episodes, seed=seed, **rest)

    monkeypatch.setattr(Evaluator, "run", noted)
    train(plan(max_steps=300, eval_frequency=100, eval_episodes=1))
    assert len(seeds) == len(set(seeds)) == 3


@pytest.mark.slow
def test_an_interrupted_evaluation_is_made_up_for(monkeypatch):
    train(plan(eval_frequency=200, eval_episodes=3))
    whole, calls = Evaluation.run, []

    def interrupted(self, train, step, stop):
        calls.append(step)
        if len(calls) == 2:
            import signal

            signal.raise_signal(signal.SIGINT)
            assert stop()
        return whole(self, train, step, stop)

    monkeypatch.setattr(Evaluation, "run", interrupted)
    outcome = train(plan(eval_frequency=200, eval_episodes=3, run_dir="cut")).outcome
    assert outcome.reason == "interrupted" and outcome.step == calls[-1]
    assert len(np.unique(rows("cut")["step"])) == 1
    train(resumed("cut", {}))
    one, parts = rows(), rows("cut")
    for name, column in one.items():
        np.testing.assert_array_equal(column, parts[name], err_msg=name)


@pytest.mark.slow
def test_seeds_at_once_are_evaluated_each():
    result = replicate(plan(eval_frequency=300, eval_episodes=3), 2)
    train(plan(eval_frequency=300, eval_episodes=3, run_dir="single"))
    one, other = (rows(each.directory) for each in result.results)
    assert list(one["step"] // 300) == list(other["step"] // 300) == [1] * 6
    assert np.unique(one["step"]).size == 2  # the second at the end, after whole blocks of 600 rows
    assert list(one["episode_reward"]) != list(other["episode_reward"])
    np.testing.assert_array_equal(one["episode_reward"][:3], rows("single")["episode_reward"][:3])


@pytest.mark.slow
def test_the_clock_of_each_seed_stands_still_while_another_is_evaluated(monkeypatch):
    clock, whole = [0.0], Evaluation.run

    def run(self, train, step, stop):
        clock[0] += 100.0
        return whole(self, train, step, stop)

    monkeypatch.setattr(Evaluation, "run", run)
    monkeypatch.setattr("operant.training.loop.time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
    result = replicate(plan(max_steps=300, eval_frequency=200, eval_episodes=1), 2)
    assert clock[0] == 200.0 and [each.outcome.seconds for each in result.results] == [0.0, 0.0]


def test_evaluations_are_told_and_drawn(capsys):
    told = [
        "--env",
        "CartPole-v1",
        "--n-envs",
        "2",
        "--model",
        '[{"type": "dense", "size": 8}]',
        "--seed",
        "1",
    ]
    steps = ["--max-steps", "300", "--eval-frequency", "100", "--eval-episodes", "2", "--run-dir", "run"]
    assert main(["train", "a2c", *told, *steps]) == 0
    printed = capsys.readouterr().out
    assert printed.count(", evaluation: ") == 3 and "best evaluation" in printed
    assert plot(["run"], PlotConfig(out="curve.png", evaluations=True)).stat().st_size > 5000
    shutil.rmtree("run/evaluations.parquet")
    with pytest.raises(SpecError, match=r"'run' has no evaluations. Train with --eval-frequency"):
        plot(["run"], PlotConfig(out="curve.png", evaluations=True))


def test_the_console_shows_an_evaluation():
    stream = io.StringIO()
    values = {"episode/count": 3.0, "episode/reward_mean": 1.0, "evaluation/reward_mean": 7.25}
    Console(stream=stream).record(Record(20, 2.0, values))
    assert stream.getvalue().rstrip().endswith("best mean return: -, evaluation: 7.25")


def test_options_without_effect_are_refused(capsys):
    with pytest.raises(
        SpecError, match=r"eval_episodes is for evaluations.*eval_episodes=3 without eval_frequency"
    ):
        plan(eval_episodes=3)
    with pytest.raises(
        SpecError, match=r"eval_frequency is for a single process.*eval_frequency=5 with coordinator"
    ):
        plan(eval_frequency=5, coordinator="auto")
    assert main(["tune", "a2c", "--env", "CartPole-v1", "--eval-frequency", "5"]) == 2
    assert "eval-frequency" in capsys.readouterr().err


def test_of_equal_evaluations_the_first_is_the_best():
    found = EvaluationScores().next(10, -5.0).next(20, -5.0).next(30, -7.0)
    assert found == EvaluationScores(30, -7.0, -5.0, 10)


class Games(gymnasium.Env):
    """Brings its steps as reward; cannot be made again."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), 1.0, self.t == 7, False, {}


@pytest.mark.parametrize(
    "envs",
    [
        pytest.param(lambda: create_envs("CartPole-v1", 2, preprocess=False), id="objects"),
        pytest.param(lambda: "CartPole-v1", id="id", marks=pytest.mark.slow),
        pytest.param(CartPole, id="native", marks=pytest.mark.slow),
    ],
)
def test_classes_evaluate_and_call_back(envs):
    records = []
    agent = operant.PPO(envs(), NET, eval_frequency=100, eval_episodes=3, run_dir="run", **SMALL)
    agent.fit(max_steps=250, callback=lambda *told: records.append(told))
    evaluated = [record for _, record in records if "evaluation/reward_mean" in record.values]
    assert all(who is agent for who, _ in records) and len(evaluated) == 2
    assert agent.evaluated.mean_reward == evaluated[-1].values["evaluation/reward_mean"]
    assert len(rows()["step"]) == 6
    outcome = agent.fit(max_steps=2000, callback=lambda agent, record: record.step < 300)
    assert (outcome.reason, outcome.message) == ("callback", "Ended by the callback") and outcome.step < 700
    assert agent.fit(max_steps=outcome.step + 100).reason == "max_steps"
    agent._progress.evaluated = EvaluationScores()  # as where it was interrupted
    step = agent.steps
    assert agent.fit(max_steps=10_000, callback=lambda *told: False).reason == "callback"
    assert agent.steps == step
    agent.close()


@pytest.mark.slow
def test_what_makes_one_object_each_time_is_not_evaluated_in():
    one = gymnasium.make("CartPole-v1")
    with operant.PPO([lambda: one], NET, eval_frequency=32, **SMALL) as agent:
        for call in (lambda: agent.fit(max_steps=64), lambda: agent.evaluate(episodes=1)):
            with pytest.raises(UsageError, match="makes the same object each time"):
                call()
        one.reset()
        one.step(0)  # it is open


@pytest.mark.slow
def test_classes_evaluate_in_what_they_are_given():
    with pytest.raises(SpecError, match="no other can be made like it.*eval_envs"):
        operant.PPO([Games(), Games()], NET, eval_frequency=100, **SMALL)
    with pytest.raises(UsageError, match="eval_envs without eval_frequency"):
        operant.PPO([Games()], NET, eval_envs=[Games()], **SMALL)
    with pytest.raises(SpaceError, match=r"the states and actions of envs, .*\[3\].* Received: .*\[4\]"):
        operant.PPO([Games()], NET, eval_envs="CartPole-v1", eval_frequency=100, **SMALL)
    closed = []
    other = gymnasium.make("CartPole-v1")
    other.unwrapped.close = lambda: closed.append(True)
    with pytest.raises(SpaceError, match="the states and actions of envs"):
        operant.PPO([Games()], NET, eval_envs=[other], eval_frequency=100, **SMALL)
    assert not closed  # what was not made here
    games = [Games(), Games()]
    for shared in ([games[0]], games[1], [gymnasium.wrappers.TimeLimit(games[1], 3)]):
        with pytest.raises(SpecError, match="eval_envs must be other objects than those that train"):
            operant.PPO(games, NET, eval_envs=shared, eval_frequency=100, **SMALL)
    agent = operant.PPO(games, NET, eval_envs=[Games()], eval_frequency=100, eval_episodes=4, **SMALL)
    agent.fit(max_steps=120)
    assert agent.evaluated == EvaluationScores(*agent.evaluated[:1], 7.0, 7.0, agent.evaluated[0])
    agent.close()


class Sized(Games):
    """Games that an argument makes shorter."""

    def __init__(self, size=7):
        self.size = size

    def step(self, action):
        seen, reward, _, *rest = super().step(action)
        return seen, reward, self.t == self.size, *rest


@pytest.mark.parametrize(
    ("eval_envs", "length"),
    [
        (None, 3),
        (lambda: Sized, 3),
        (lambda: [Games()], 7),
        (Games, 7),
        (lambda: gymnasium.vector.SyncVectorEnv([Games] * 3), 7),
    ],
)
def test_arguments_are_of_environments_that_a_class_makes(eval_envs, length):
    given = {} if eval_envs is None else {"eval_envs": eval_envs()}
    told = {"eval_frequency": 100, "eval_episodes": 4, **given, **SMALL}
    agent = operant.PPO(Sized, NET, n_envs=2, env_kwargs={"size": 3}, **told)
    evaluator = Evaluator(agent.session.learner, agent._evaluating)
    assert [e.length for e in evaluator.run(agent.session.driver.train, 4)] == [length] * 4
    agent.close()


def test_another_id_to_evaluate_in_has_none_of_the_arguments_of_the_first():
    told = {"eval_frequency": 100, "eval_episodes": 2, "max_episode_timesteps": 9, **SMALL}
    frozen = {"env_kwargs": {"is_slippery": False}, "eval_envs": "FrozenLake8x8-v1"}
    with pytest.raises(SpaceError, match="eval_envs must have the states and actions of envs"):
        operant.PPO("FrozenLake-v1", NET, **frozen, **told)
    limits = []
    for other in ("CartPole-v1", "CartPole", "CartPole-v0"):
        agent = operant.PPO("CartPole-v1", NET, eval_envs=other, **told)
        limits.append(agent._evaluating.max_episode_timesteps)
        agent.close()
    assert limits == [9, 9, 200]


@pytest.mark.slow
def test_what_was_learnt_is_told_where_an_evaluation_fails():
    class Failing(Games):
        def step(self, action):
            time.sleep(0.5)
            raise RuntimeError("no")

    agent = operant.PPO(
        [Games(), Games()], NET, eval_envs=[Failing()], eval_frequency=100, run_dir="run", **SMALL
    )
    began = time.perf_counter()
    with pytest.raises(EnvError, match="no"):
        agent.fit(max_steps=300)
    assert (
        0 < agent.elapsed < time.perf_counter() - began - 0.5
    )  # the clock of training stands still meanwhile
    assert 100 <= agent.steps < 130 and agent.games >= agent.steps // 7 - 2
    assert len(read_history("run/history.parquet")["step"]) == agent.games
    agent.close()


def test_a_class_refuses_the_words_of_the_modular_form_and_of_others():
    with pytest.raises(SpecError, match=r"horizon.*belongs to the modular agent's form of ppo: Agent.create"):
        operant.PPO("CartPole-v1", NET, horizon=4, quiet=True)
    rows = r"64 rows a gradient step are mini_batches=16 here \(n_steps x n_envs = 128 x 8 = 1024 rows\)"
    with pytest.raises(SpecError, match=f"ppo takes no argument 'batch_size'. {rows}"):
        operant.PPO("CartPole-v1", NET, n_envs=8, batch_size=64, quiet=True)
    with pytest.raises(SpecError, match="About 50 rows a gradient step are mini_batches=2 here"):
        operant.PPO("CartPole-v1", NET, n_steps=90, batch_size=50, quiet=True)


@pytest.mark.slow
def test_classes_save_and_load():
    def made(**told):
        return operant.DQN("CartPole-v1", NET, n_envs=2, buffer_max_size=500, buffer_initial_size=50, **told)

    agent = made(seed=1, quiet=True)
    agent.fit(max_steps=200)
    path = agent.save("kept")
    assert path.startswith("kept/step-")
    other = made(seed=1, quiet=True, run_dir="run")
    other.load("kept")
    assert (other.steps, other.games, other.mean_reward) == (agent.steps, agent.games, agent.mean_reward)
    learnt = [each.session.driver.train.state.variables["params"] for each in (agent, other)]
    for name, x in learnt[0].items():
        np.testing.assert_array_equal(x, learnt[1][name])
    assert other.fit(max_steps=300).step > 300 - 1
    with pytest.raises(SpecError, match="went on from a checkpoint of elsewhere, 'kept'"):
        reproduce("run")
    acting = operant.Agent.load("kept")
    assert acting.timesteps == agent.steps and acting.act(np.zeros(4), independent=True) in (0, 1)
    with pytest.raises(CheckpointError, match="There is no checkpoint in 'nothing'"):
        other.load("nothing")
    for message, make in {
        r"does not fit PPO: its type is dqn, not ppo. Agent.load\('kept/step-\d+'\) makes": lambda: (
            operant.PPO("CartPole-v1", NET, n_envs=2, quiet=True)
        ),
        r"(?s)does not fit what it is loaded into.* was made with: model .*'size': 8.* here\. Give what it "
        r"was trained with": lambda: operant.DQN(
            "CartPole-v1", [16], n_envs=2, quiet=True, buffer_max_size=500
        ),
        r"(?s)was made with: states .*'shape': \[4\].* there, .*'shape': \[6\].* here, actions": lambda: (
            operant.DQN("Acrobot-v1", NET, n_envs=2, quiet=True)
        ),
    }.items():
        with pytest.raises(CheckpointError, match=message):
            make().load("kept")
    third = made(seed=1, quiet=True, lr=0.5)
    with pytest.warns(RuntimeWarning, match="was made with: lr 0.0007 there, 0.5 here"):
        third.load("kept")
    agent.close()
    other.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "env", "options"),
    [
        ("PPO", "CartPole-v1", {"model": [{"type": "gru", "size": 4}], "n_steps": 8, "mini_batches": 1}),
        pytest.param(
            "PPO",
            "jax:CartPole-v1",
            {"model": NET, "n_steps": 8, "normalize_rewards": True},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "DQN",
            "CartPole-v1",
            {"model": NET, "buffer_max_size": 500, "buffer_initial_size": 50},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_classes_load_what_more_or_fewer_environments_taught(name, env, options, tmp_path):
    with getattr(operant, name)(env, n_envs=2, seed=1, quiet=True, **options) as agent:
        agent.fit(max_steps=200)
        agent.save(tmp_path / "kept")
        learnt = agent.session.driver.train.state.variables["params"]
        for n in (1, 3):
            empty = (
                pytest.warns(RuntimeWarning, match="memory starts empty") if name == "DQN" else nullcontext()
            )
            with getattr(operant, name)(env, n_envs=n, seed=2, quiet=True, **options) as other:
                with empty:
                    other.load(tmp_path / "kept")
                jax.tree.map(
                    np.testing.assert_array_equal,
                    other.session.driver.train.state.variables["params"],
                    learnt,
                )
                assert (other.steps, other.games) == (agent.steps, agent.games)
                blocks = other.fit(max_steps=600).step - agent.steps  # rows of ends are not steps
                assert 300 < blocks <= 400 + 3 * 8


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_loaded_costs_nothing():
    """A class goes on with its own memory."""

    def made(model):
        return operant.DQN(
            "CartPole-v1", model, n_envs=2, buffer_max_size=500, buffer_initial_size=50, seed=1, quiet=True
        )

    agent, other = made(NET), made([16])
    agent.fit(max_steps=200)
    path = agent.save("kept")
    with pytest.raises(CheckpointError, match="does not fit what it is loaded into"):
        other.load("kept")
    assert other.fit(max_steps=100).step >= 100
    (Path(path) / "arrays.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError):
        agent.load(path)
    assert agent.fit(max_steps=300).step >= 300
    agent.close()
    other.close()
