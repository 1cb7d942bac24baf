"""The Runner as a program calls it: every argument, messages, what is recorded and saved, the progress
bar."""

import io
import json
import signal
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from operant import Agent, Environment, Runner, checkpoint
from operant.envs.check import check_env
from operant.envs.remote.connection import LocalConnection
from operant.envs.vector import create
from operant.errors import SpaceError, SpecError, UsageError
from operant.execution import traces
from operant.execution.runner import fast_path, interaction
from operant.execution.runner.bar import Bar

NET = [{"type": "dense", "size": 8}]
PPO = {"agent": "ppo", "n_steps": 8, "mini_batches": 2, "ppo_epochs": 1, "model": NET, "lr": 0.01}
DQN = {
    "agent": "dqn", "model": NET, "buffer_max_size": 600, "buffer_initial_size": 8, "buffer_batch_size": 4,
}  # fmt: skip


class Walk(Environment):
    """Ends by itself after `length` steps; made by this class in several copies."""

    made: ClassVar[list] = []

    def __init__(self, length=5, size=2):
        self.length, self.size, self.closed = length, size, False
        Walk.made.append(self)

    def states(self):
        return {"type": "float", "shape": (self.size,)}

    def actions(self):
        return {"type": "int", "num_values": 2}

    def reset(self):
        self.step = 0
        return np.zeros(self.size)

    def execute(self, actions):
        self.step += 1
        return np.full(self.size, self.step / 10), self.step == self.length, float(actions)

    def close(self):
        self.closed = True


class Masked(Walk):
    """Allows only action 1."""

    def reset(self):
        return {"state": super().reset(), "action_mask": [False, True]}

    def execute(self, actions):
        assert actions == 1
        states, terminal, reward = super().execute(actions)
        return {"state": states, "action_mask": [False, True]}, terminal, reward


class Game(Masked):
    """At its end nothing is allowed any more, as on a full board."""

    def execute(self, actions):
        states, terminal, reward = super().execute(actions)
        return {**states, "action_mask": [False, not terminal]}, terminal, reward


class Team(Walk):
    """Three actors, of which one leaves after each third of the episode."""

    def num_actors(self):
        return 3

    def reset(self):
        self.step = 0
        return [0, 1, 2], np.zeros((3, self.size))

    def execute(self, actions):
        before = [i for i in range(3) if self.step < 2 * (i + 1)]
        assert len(actions) == len(before)
        self.step += 1
        alive = [i for i in range(3) if self.step < 2 * (i + 1)]
        terminal = [i not in alive for i in before]
        return alive, np.full((len(alive), self.size), self.step / 10), terminal, np.ones(len(before))


class Many(Walk):
    """Vectorizable; counts how it is reset."""

    def is_vectorizable(self):
        return True

    def reset(self, num_parallel=None):
        if num_parallel is None:
            return super().reset()
        self.counts = [*getattr(self, "counts", []), num_parallel]
        self.step, self.n = 0, num_parallel
        return list(range(num_parallel)), np.zeros((num_parallel, self.size))

    def execute(self, actions):
        self.step += 1
        end = self.step == self.length
        alive = [] if end else list(range(self.n))
        states = np.full((len(alive), self.size), self.step / 10)
        return alive, states, np.full(self.n, end), np.ones(self.n)


@pytest.fixture(scope="module")
def agent():
    """One agent for most tests: compiling takes longer than they do."""
    return Agent.create(**PPO, environment=Environment.create(Walk), parallel_interactions=6)


@pytest.fixture
def runner(agent):
    Walk.made.clear()
    with Runner(agent, Walk, num_parallel=3) as made:
        yield made


QUIET = {"use_tqdm": False}


def test_what_has_no_effect_is_said_once(caplog):
    agent = {"agent": "dqn", "network": [8], "priority_beta": 1.0}
    with Runner(agent, Walk) as runner:
        for _ in range(2):
            runner.run(num_timesteps=10, **QUIET)
    said = caplog.text
    assert said.count("priority_beta=1.0 has no effect without prioritized=True") == 1
    assert said.count("Nothing is learnt: learning begins after") == 1


def test_one_environment_and_a_specification():
    with Runner(agent=PPO, environment=Walk) as runner:
        runner.run(num_episodes=7, **QUIET)
        assert (runner.episodes, runner.timesteps, len(runner.episode_returns)) == (7, 35, 7)
        assert runner.episode_timesteps == [5] * 7
        assert runner.updates == runner.agent.updates > 2
        assert runner.agent.timesteps == 35 and runner.agent.episodes == 7
        assert runner.evaluation_returns is runner.episode_returns
        made = runner.agent
    with pytest.raises(UsageError, match="The agent is closed"):
        made.act(np.zeros(2))
    with pytest.raises(UsageError, match="The Runner is closed"):
        runner.run(num_episodes=1)
    runner.close()


@pytest.mark.parametrize(
    "manner", [{}, {"batch_agent_calls": True}, {"sync_timesteps": True, "sync_episodes": True}]
)
def test_several_environments(runner, agent, manner):
    before = agent.timesteps, agent.episodes
    runner.run(num_episodes=10, **manner, **QUIET)
    assert runner.episodes == 10 and runner.timesteps == 50
    assert (agent.timesteps - before[0], agent.episodes - before[1]) == (50, 10)
    runner.run(num_timesteps=17.0, **manner, **QUIET)  # a later run has a fresh record
    assert runner.timesteps == 17 and runner.episodes == len(runner.episode_returns) <= 3
    assert agent.timesteps - before[0] == 67


@pytest.mark.parametrize("manner", [{}, {"batch_agent_calls": True}])
def test_updates_are_exact(agent, manner):
    with Runner(agent, Walk, num_parallel=2) as runner:
        for number in (5, 3):
            before = agent.updates
            runner.run(num_updates=number, **manner, **QUIET)
            assert runner.updates == agent.updates - before == number


@pytest.mark.slow
@pytest.mark.parametrize("manner", [{}, {"batch_agent_calls": True}])
def test_updates_are_exact_with_an_update_a_row(manner):
    with Runner({**DQN, "train_every": 1}, Walk, num_parallel=2) as runner:
        for number in (5, 3, 1):
            before = runner.agent.updates
            runner.run(num_updates=number, **manner, **QUIET)
            assert runner.updates == runner.agent.updates - before == number


def test_closing_leaves_given_objects_open(agent):
    Walk.made.clear()
    mine = [Walk(), Environment.create(Walk), Walk]
    with Runner(agent, environments=mine) as runner:
        runner.run(num_episodes=3, **QUIET)
    assert [each.closed for each in Walk.made] == [False, False, True]
    agent.act(np.zeros(2), independent=True)


def test_environments_are_closed_where_the_agent_cannot_be_saved(tmp_path):
    Walk.made.clear()
    place = tmp_path / "saved"
    runner = Runner({"agent": "random", "saver": {"directory": str(place), "frequency": 1000}}, Walk)
    runner.run(num_episodes=1, **QUIET)
    place.write_text("a file in its place")
    with pytest.raises(SpecError, match="is a file"):
        runner.close()
    assert all(each.closed for each in Walk.made)
    assert runner.agent.save(tmp_path / "elsewhere")
    runner.close()


@pytest.mark.slow
def test_masks_reach_the_agent():
    with Runner(PPO, Masked, num_parallel=2) as runner:
        runner.run(num_episodes=4, **QUIET)
        assert runner.episode_returns == [5.0] * 4
        runner.run(num_episodes=4, batch_agent_calls=True, **QUIET)
        assert runner.episode_returns == [5.0] * 4


@pytest.mark.slow
@pytest.mark.parametrize("spec", [PPO, pytest.param(DQN, marks=pytest.mark.slow)])
def test_a_game_may_end_where_no_move_is_left(spec, tmp_path):
    with Runner({**spec, "recorder": str(tmp_path)}, Game, num_parallel=2) as runner:
        for batch in (False, True):
            runner.run(num_episodes=4, batch_agent_calls=batch, **QUIET)
            assert runner.episode_returns == [5.0] * 4
        trace = traces.read(min(tmp_path.glob("*.npz")), runner.agent.spaces)
    assert trace.last is not None and trace.observation["action_mask"].tolist() == [[False, True]] * 5
    assert not [finding for finding in check_env(Game, steps=12) if "mask" in finding]
    with create.create(Game, 2, mode="in-process") as env:
        env.reset(seed=1)
        ended = [env.step({"action": np.ones(2, np.int32)}) for _ in range(5)][-1]
    assert ended.terminated.all() and not ended.observation["action_mask"].any()


def test_several_actors_in_one_environment(agent):
    with Runner(agent, Team) as runner:
        runner.run(num_episodes=6, **QUIET)
        assert runner.episode_timesteps == [2, 4, 6] * 2 and runner.timesteps == 24
        runner.run(num_episodes=4, **QUIET)  # in the second round only the first actor's is wanted
        assert runner.episode_timesteps == [2, 4, 6, 2]
        runner.run(num_timesteps=5, **QUIET)
        assert runner.timesteps == 5
    with Runner(agent, Team, num_parallel=2) as runner:
        runner.run(num_episodes=12, batch_agent_calls=True, **QUIET)
        assert sorted(runner.episode_timesteps) == sorted([2, 4, 6] * 4)


def test_a_vectorizable_environment(agent):
    made = Many()
    with Runner(agent, made, num_parallel=4) as runner:
        assert runner.num_environments == 1
        runner.run(num_episodes=10, batch_agent_calls=True, **QUIET)
        assert made.counts == [4, 4, 2]
        assert runner.episode_returns == [5.0] * 10
        runner.run(num_timesteps=11, **QUIET)
        assert runner.timesteps == 11


def test_as_many_actors_as_learn():
    counts = []
    for environment, settings in (
        (Team, {}),
        (Team, {"num_parallel": 3, "evaluation": True}),
        (Many, {"num_parallel": 4}),
    ):
        with Runner(PPO, environment, **settings) as runner:
            counts.append(runner.agent.parallel_interactions)
    assert counts == [3, 6, 4]


@pytest.mark.exhaustive
def test_recurrent_agents_evaluate_with_their_own_internals():
    spec = {**PPO, "model": [{"type": "gru", "size": 4}], "mini_batches": 1}
    with Runner(spec, Walk, num_parallel=2, evaluation=True) as runner:
        runner.run(num_episodes=3, **QUIET)
        assert runner.agent.parallel_interactions == 1
        assert runner.evaluation_timesteps and set(runner.evaluation_timesteps) == {5}
    with Runner(spec, Team) as runner:
        runner.run(num_episodes=3, evaluation=True, **QUIET)
        assert runner.episode_timesteps == [2, 4, 6] and runner.agent.timesteps == 0


def test_evaluation_environment(agent):
    with Runner(agent, Walk, num_parallel=3, evaluation=True) as runner:
        before = agent.timesteps
        runner.run(num_episodes=8, sync_episodes=True, **QUIET)
        assert runner.evaluation_returns is not runner.episode_returns
        assert (len(runner.episode_returns), len(runner.evaluation_returns)) == (8, 4)
        assert runner.timesteps == agent.timesteps - before == 40
        for name in ("returns", "timesteps", "seconds", "agent_seconds", "env_seconds"):
            assert (
                len(getattr(runner, f"evaluation_{name}")) == 4
                and len(getattr(runner, f"episode_{name}")) == 8
            )


def test_a_run_of_evaluation_changes_nothing(agent):
    with Runner(agent, Walk) as runner:
        before = agent.timesteps, agent.updates, agent.episodes
        runner.run(num_episodes=4, evaluation=True, **QUIET)
        assert (agent.timesteps, agent.updates, agent.episodes) == before
        assert runner.episodes == 4 and len(set(runner.episode_returns)) == 1  # best actions
        with pytest.raises(UsageError, match="num_updates, but nothing is learnt"):
            runner.run(num_updates=1, evaluation=True)


def test_every_run_has_episodes_of_its_own(agent):
    """Also of one that changed nothing: an evaluation that is repeated would say the same again."""
    seeds = []

    class Seeded(Walk):
        def reset(self, seed=None):
            seeds.append(seed)
            return super().reset()

    with Runner(agent, Seeded()) as runner:
        seeds.clear()  # the first reset was to see whether masks come with it
        for _ in range(3):
            runner.run(num_episodes=2, evaluation=True, **QUIET)
    assert [seed is None for seed in seeds] == [False, True] * 3
    assert len(set(seeds)) == 4


def test_the_best_agent_is_saved(agent, tmp_path):
    scores = iter([1.0, 3.0, None, 2.0, 3.0])
    saved = []
    with Runner(agent, Walk) as runner:

        def score(given):
            assert given is runner
            saved.append(sorted(path.name for path in tmp_path.iterdir()))
            return next(scores)

        runner.run(num_episodes=5, save_best_agent=tmp_path, evaluation_callback=score, **QUIET)
        assert runner.best_evaluation_score == 3.0
        assert saved[0] == [] and saved[1] == ["best-model"]  # the first score is the best so far
    loaded = Agent.load(tmp_path, filename="best-model")
    assert agent.episodes - loaded.episodes == 3  # saved at the second of five
    with Runner({"directory": tmp_path}, Walk) as runner:
        runner.run(num_episodes=1, evaluation=True, **QUIET)


def test_a_run_outlives_a_full_disk(agent, tmp_path, monkeypatch):
    scores = iter([1.0, 2.0])
    save, full = agent.save, [True]

    def fail(*args, **kwargs):
        if full:
            raise OSError(28, f"No space left on device {full.pop()}")
        return save(*args, **kwargs)

    monkeypatch.setattr(agent, "save", fail)
    with Runner(agent, Walk) as runner:
        options = {"save_best_agent": tmp_path, "evaluation_callback": lambda _: next(scores)}
        with pytest.warns(RuntimeWarning, match=f"The best agent is not saved in '{tmp_path}': .*No space"):
            runner.run(num_episodes=2, **options, **QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["best-model"]


def test_the_score_is_the_mean_over_the_horizon(agent):
    with Runner(agent, Walk) as runner:
        seen = []
        runner.run(
            num_episodes=6,
            mean_horizon=3,
            callback=lambda r, p: seen.append(r.best_evaluation_score),
            **QUIET,
        )
        means = [np.mean(runner.episode_returns[i - 3 : i]) for i in range(3, 7)]
        assert seen[:3] == [-np.inf] * 3 and runner.best_evaluation_score == max(means)
        runner.run(num_episodes=4, mean_horizon=3, evaluation_callback=2, **QUIET)
        assert runner.best_evaluation_score == max(
            np.mean(runner.episode_returns[i - 2 : i]) for i in range(2, 5)
        )


def test_what_waits_for_other_episodes_counts_anew(agent):
    seen = []
    with Runner(agent, environments=[Walk(length) for length in (2, 3, 3)]) as runner:
        runner.run(
            num_episodes=6,
            sync_episodes=True,
            sync_timesteps=True,
            callback=lambda given, parallel: seen.append(list(given.episode_timestep)),
            callback_timestep_frequency=1,
            **QUIET,
        )
    round_ = [[1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1], [0, 2, 1], [0, 2, 2], [0, 3, 2], [0, 0, 3]]
    assert seen == 2 * round_


def test_callbacks(runner):
    heard = []

    def callback(given, parallel):
        assert given is runner and 0 <= parallel < 3
        assert given.episode_return[parallel] == given.episode_returns[-1]
        assert given.episode_timestep[parallel] == given.episode_timesteps[-1] == 5
        heard.append(parallel)

    runner.run(num_episodes=6, callback=callback, **QUIET)  # None is no veto
    assert sorted(heard) == [0, 0, 1, 1, 2, 2]
    heard.clear()
    runner.run(num_episodes=6, callback=[callback, callback], callback_episode_frequency=3, **QUIET)
    assert len(heard) == 4
    times = []
    runner.run(
        num_episodes=6,
        callback=lambda r, p: times.append((p, r.episode_timestep[p])),
        callback_timestep_frequency=2,
        **QUIET,
    )
    # each environment's own timesteps: two of its episodes of 5, twice
    assert sorted(times) == [(p, t) for p in range(3) for t in (2, 2, 4, 4)]
    times.clear()
    runner.run(
        num_episodes=6, callback_timestep_frequency=4, callback_episode_frequency=2,
        callback=lambda r, p: times.append(r.episode_timestep[p]), **QUIET,
    )  # fmt: skip
    assert sorted(times) == [4] * 6 + [5] * 3
    for veto in (False, np.False_):
        runner.run(
            callback=[lambda r, p: None, lambda r, p, veto=veto: veto if r.episodes == 4 else True], **QUIET
        )
        assert runner.episodes == 4


def test_a_callback_evaluates_by_a_runner_of_its_own(runner, agent):
    with pytest.raises(UsageError, match="Runner of its own"):
        runner.run(
            num_episodes=6, callback=lambda r, p: r.run(num_episodes=1, evaluation=True, **QUIET), **QUIET
        )
    scores = []

    def evaluate(given, parallel):
        with Runner(given.agent, Walk) as other:
            other.run(num_episodes=1, evaluation=True, **QUIET)
            scores.extend(other.episode_returns)

    runner.run(num_episodes=6, callback=evaluate, **QUIET)
    assert runner.episodes == len(runner.episode_returns) == len(scores) == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "agent",
    ["random", {"type": "modular", "update": {"unit": "timesteps", "batch_size": 4, "frequency": "never"}}],
)
def test_updates_are_no_limit_of_an_agent_that_never_updates(agent):
    with Runner(agent, Walk) as runner:
        with pytest.raises(UsageError, match="never updates"):
            runner.run(num_updates=1, **QUIET)
        runner.run(num_updates=1, num_episodes=1, **QUIET)
        assert runner.episodes == 1


def test_a_failed_or_interrupted_run_can_be_followed_by_another(runner, agent):
    def interrupt(runner, parallel):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(num_episodes=5, callback=interrupt, **QUIET)
    runner.run(num_episodes=5, **QUIET)
    assert runner.episode_timesteps == [5] * 5


@pytest.mark.parametrize("environment", [Walk, "jax:CartPole-v1", "CartPole-v1"])
def test_a_request_to_terminate_ends_the_run_and_then_the_program(environment, monkeypatch, tmp_path):
    saver = {"directory": str(tmp_path), "frequency": 10**6}
    runner = Runner({**PPO, "saver": saver}, environment, num_parallel=2)
    asked = []

    def ask(*_, **named):
        if not asked:
            asked.append(True)
            signal.raise_signal(signal.SIGTERM)

    if environment is Walk:
        manner = {"callback": ask, "num_timesteps": 10**9}
    else:  # of blocks of a driver
        manner = {"num_updates": 10**9, "batch_agent_calls": True}
        monkeypatch.setattr(fast_path, "show", ask)
        monkeypatch.setattr(interaction, "show", ask)
    with pytest.raises(SystemExit) as ended, runner:
        runner.run(**manner, **QUIET)
    assert ended.value.code == 143 and 0 < runner.timesteps < 10**5
    assert len(checkpoint.list_checkpoints(tmp_path)) == 1  # the agent's saver had its end
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_request_to_terminate_is_left_to_whom_it_belongs(runner):
    told = []
    before = signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    try:
        runner.run(num_episodes=2, callback=lambda *_: signal.raise_signal(signal.SIGTERM), **QUIET)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == [True] * 2 and runner.episodes == 2


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run():
    def returns():
        with Runner({**PPO, "seed": 3}, "CartPole-v1", num_parallel=2) as runner:
            runner.run(num_episodes=6, batch_agent_calls=True, **QUIET)
            first = list(runner.episode_returns)
            runner.run(num_episodes=6, batch_agent_calls=True, **QUIET)
            return first, runner.episode_returns

    first = returns()
    assert first == returns() and first[0] != first[1]


def test_time_limits_are_no_ends(agent, monkeypatch):
    told = []
    observe = agent.observe
    monkeypatch.setattr(agent, "observe", lambda *a: told.append(a[1:]) or observe(*a))
    with Runner(agent, Walk, max_episode_timesteps=3) as runner:
        runner.run(num_episodes=2, **QUIET)
        assert runner.episode_timesteps == [3, 3]
    assert [terminal for terminal, *_ in told] == [0, 0, 2] * 2
    np.testing.assert_allclose(told[2][2], [0.3, 0.3])  # the true last state comes along


def test_agent_files_and_arguments(tmp_path):
    path = tmp_path / "agent.json"
    path.write_text(json.dumps({**PPO, "seed": 5, "parallel_interactions": 4}))
    with Runner(str(path), Walk, num_parallel=3) as runner:
        assert runner.agent.seed == 5 and runner.agent.parallel_interactions == 4


def test_a_saved_agent_gets_as_many_actors_as_are_needed(tmp_path):
    agent = Agent.create(**PPO, environment=Environment.create(Walk))
    agent.save(tmp_path)
    with Runner({"directory": tmp_path}, Walk, num_parallel=3) as runner:
        assert runner.agent.parallel_interactions == 3
    with pytest.raises(UsageError, match="parallel_interactions=2, and 3 are needed"):
        Runner({"directory": tmp_path, "parallel_interactions": 2}, Walk, num_parallel=3)


def test_num_parallel_in_two_ways_with_one_agent(agent):
    with pytest.raises(
        UsageError, match=r"parallel_interactions=6, and 7 are needed.*Make it with parallel_interactions=7"
    ):
        Runner(agent, Walk, num_parallel=7)
    with Runner(agent, Walk, num_parallel=2) as runner:
        runner.run(num_episodes=4, batch_agent_calls=True, **QUIET)


@pytest.mark.parametrize(
    ("error", "arguments", "message"),
    [
        (UsageError, {}, "Give either environment or environments. Received: none of them"),
        (UsageError, {"environment": Walk, "environments": [Walk]}, "Received: both"),
        (SpecError, {"environments": "CartPole-v1"}, "environments must be a list of environments"),
        (SpecError, {"environments": []}, "a list of at least one"),
        (
            SpecError,
            {"environment": Walk, "num_parallel": 1},
            "num_parallel must be a whole number of at least 2.*Leave it out",
        ),
        (SpecError, {"environment": Walk, "num_parallel": 2.5}, "num_parallel must be a whole number"),
        (
            SpecError,
            {"environments": [Walk, Walk], "num_parallel": 3},
            "num_parallel must be 2, as many as environments. Received: num_parallel=3. Leave it out",
        ),
        (
            UsageError,
            {"environment": Walk(), "num_parallel": 2},
            "there is only one of it. Received: num_parallel=2",
        ),
        (UsageError, {"environments": [Walk()] * 2}, "environments 0 and 1 are the same 'Walk'"),
        (UsageError, {"environment": Walk, "evaluation": True}, r"use run\(evaluation=True\)"),
        (SpecError, {"environment": Walk, "evaluation": 1}, "evaluation must be True or False"),
        (SpecError, {"environment": Walk, "remote": "multiprocesing"}, "Did you mean 'multiprocessing'"),
        (UsageError, {"environment": Walk, "remote": "socket-server"}, "A Runner does not serve"),
        (
            SpecError,
            {"environment": Walk(), "remote": "multiprocessing"},
            "object cannot be sent. Give its id",
        ),
        (UsageError, {"environment": Walk, "blocking": True}, "blocking is for remote"),
        (SpecError, {"environment": Walk, "blocking": 1}, "blocking must be True or False"),
        (UsageError, {"environment": Walk, "host": "here"}, "host is for servers and clusters"),
        (
            UsageError,
            {"environment": Walk, "remote": "multiprocessing", "port": 1},
            "port is for servers and clusters",
        ),
        (UsageError, {"remote": "socket-client", "port": 1}, "needs host"),
        (UsageError, {"remote": "socket-client", "host": "here"}, "needs port"),
        (
            UsageError,
            {"remote": "socket-client", "host": "h", "port": 1, "environment": Walk},
            "server defines the environment. Leave environment out",
        ),
        (
            UsageError,
            {"remote": "socket-client", "host": "h", "port": 1, "environments": [Walk]},
            "Leave environments out",
        ),
        (
            UsageError,
            {"remote": "socket-client", "host": "h", "port": 1, "max_episode_timesteps": 3},
            "max_episode_timesteps",
        ),
        (SpecError, {"environment": "CartPole-v11"}, "Did you mean"),
        (
            SpaceError,
            {"environment": {"environment": Walk, "size": 3}},
            "The agent does not fit the environment",
        ),
        (
            UsageError,
            {"environments": [Walk, {"environment": Walk, "size": 3}]},
            "must have the same states and actions",
        ),
    ],
)
def test_refused_arguments(agent, error, arguments, message):
    Walk.made.clear()
    with pytest.raises(error, match=message):
        Runner(agent, **arguments)
    assert all(each.closed for each in Walk.made)


@pytest.mark.parametrize(
    ("error", "arguments", "message"),
    [
        (UsageError, {}, "Give num_episodes, num_timesteps or num_updates, or a callback"),
        (SpecError, {"num_episodes": 0}, "num_episodes must be at least 1"),
        (SpecError, {"num_timesteps": 1.5}, "num_timesteps must be"),
        (SpecError, {"num_updates": True}, "num_updates must be"),
        (SpecError, {"num_episodes": 1, "batch_agent_calls": 1}, "batch_agent_calls must be True or False"),
        (
            SpecError,
            {"num_episodes": 1, "num_sleep_secs": -1},
            "num_sleep_secs must be at least 0",
        ),
        (SpecError, {"num_episodes": 1, "callback": 3}, "callback must be a callable"),
        (
            SpecError,
            {"num_episodes": 1, "callback_episode_frequency": 0},
            "callback_episode_frequency must be",
        ),
        (
            SpecError,
            {"num_episodes": 1, "callback_timestep_frequency": 0},
            "callback_timestep_frequency must be",
        ),
        (SpecError, {"num_episodes": 1, "mean_horizon": None}, "mean_horizon must be a whole number"),
        (SpecError, {"num_episodes": 1, "evaluation_callback": "x"}, "evaluation_callback must be"),
        (SpecError, {"num_episodes": 1, "save_best_agent": True}, "save_best_agent must be"),
        (SpecError, {"num_episodes": 1, "save_best_agent": __file__}, "save_best_agent must be"),
        (
            SpecError,
            {"num_episodes": 1, "evaluation_callback": lambda r: "x"},
            "must return a number or None",
        ),
        (UsageError, {"num_episodes": 1, "evaluation": True}, "is for a single environment"),
    ],
)
def test_refused_runs(runner, error, arguments, message):
    with pytest.raises(error, match=message):
        runner.run(**{**QUIET, **arguments})
    if arguments.get("evaluation_callback") is None:
        assert runner.timesteps == 0


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("ppoo", "Did you mean 'ppo'"),
        ({"n_steps": 4}, "the agent of a dict without 'type', takes no argument 'n_steps'"),
        ({**PPO, "states": {"type": "float"}}, "takes states from the Runner's environment"),
        ({**PPO, "n_step": 4}, "Did you mean 'n_steps'"),
    ],
)
def test_refused_agents(agent, message):
    Walk.made.clear()
    with pytest.raises(SpecError, match=message):
        Runner(agent, Walk)
    assert all(each.closed for each in Walk.made)


def test_environments_that_answer_late(agent, monkeypatch):
    """What other processes and machines do, without them: each answer is ready at the third look."""

    class Late(LocalConnection):
        looks = 0

        def ready(self, seconds=0.0):
            self.looks += 1
            return self.looks % 3 == 0

    import operant.envs.remote as remote

    monkeypatch.setattr(remote, "LocalConnection", Late)
    with Runner(agent, Walk, num_parallel=3) as runner:
        runner.run(num_episodes=9, num_sleep_secs=0, **QUIET)
        assert runner.episode_timesteps == [5] * 9
        assert all(connection.looks > 15 for connection in runner.environments)


# The progress bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    bar = Bar("episodes", 4, stream)
    bar.show(2, {"return": "12.50", "agent": "97.1%"})
    bar.close()
    text = stream.getvalue()
    assert "episodes" in text and "2/4" in text and "return=12.50  agent=97.1%" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_outlives_its_bar(terminal):
    class Gone(Terminal):
        def isatty(self):
            return terminal

        def write(self, text):
            raise OSError(5, "Input/output error")

    bar = Bar("episodes", 4, Gone())
    bar.show(2)
    bar.close()


def test_a_terminal_that_cannot_go_back_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    bar = Bar("episodes", 4, stream := Terminal())
    bar.show(2)
    bar.close()
    assert stream.getvalue() == "episodes 2/4  0 s\n"


def test_the_bar_elsewhere_is_a_line_now_and_then(monkeypatch):
    from operant.execution.runner import bar as module

    stream = io.StringIO()
    bar = Bar("timesteps", None, stream)
    bar.show(1)
    assert stream.getvalue() == ""
    monkeypatch.setattr(module, "EVERY", 0.0)
    bar.show(2, {"return": "-"})
    bar.close()
    assert stream.getvalue() == "timesteps 2  0 s  return=-\n" * 2


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ({"num_episodes": 3}, "episodes 3/3"),
        ({"num_timesteps": 9}, "timesteps 9/9"),
        ({"num_updates": 2}, "updates 2/2"),
    ],
)
def test_every_limit_has_its_bar(runner, capsys, limit, text):
    runner.run(**limit, mean_horizon=2)
    line = capsys.readouterr().err
    assert line.startswith(text)
    names = ["return=", "ts/ep=5", "sec/ep=", "ms/ts=", "agent="]
    assert [name for name in names if name in line] == (names if runner.episodes else [])
    assert "comm=" not in line  # nothing is remote


# JAX-native environments: the compiled shortcut


def quick(**options):
    small = {"n_steps": 8, "mini_batches": 2, "ppo_epochs": 1, "model": [{"type": "dense", "size": 8}]}
    return Runner({"agent": "ppo", **small, **options}, "jax:CartPole-v1", num_parallel=2)


@pytest.mark.slow
def test_a_run_of_updates_on_a_native_environment_is_one_program_and_exact():
    with quick(seed=3) as runner:
        runner.run(num_updates=20, use_tqdm=False)
        assert runner.driver == "device" and runner.updates == runner.agent.updates == 20
        assert runner.timesteps == runner.agent.timesteps <= 20 * 8 * 2
        assert runner.episodes == len(runner.episode_returns) == runner.agent.episodes > 3
        assert runner.episode_returns == [float(n) for n in runner.episode_timesteps]
        first, seconds = list(runner.episode_returns), runner.episode_seconds
        assert all(x > 0 for x in seconds) and runner.episode_agent_seconds == seconds
        runner.run(num_updates=5, use_tqdm=False)  # goes on from there, with other episodes
        assert runner.driver == "device" and (runner.updates, runner.agent.updates) == (5, 25)
        assert runner.episode_returns != first[: runner.episodes]
    with quick(seed=3) as again:
        again.run(num_updates=20, use_tqdm=False)
        assert again.episode_returns == first


@pytest.mark.slow
def test_it_is_the_run_of_the_device_driver():
    from operant.envs.native import ids
    from operant.training.drivers.device_driver import DeviceDriver

    with quick(seed=5) as runner:
        driver = DeviceDriver(runner.agent.learner, ids.make("jax:CartPole-v1"), 2, jax.random.key(5))
        driver.restore(jax.tree.map(jnp.copy, runner.agent.detach_state(2).train), driver.snapshot())
        finished = driver.advance(10)
        runner.run(num_updates=10, use_tqdm=False)
        assert [episode.reward for episode in finished] == runner.episode_returns
        for a, b in zip(
            jax.tree.leaves(driver.train.state), jax.tree.leaves(runner.agent.engine.train.state), strict=True
        ):
            np.testing.assert_array_equal(a, b)
        runner.agent.act(np.zeros((2, 4)), parallel=[0, 1])
        assert runner.agent.observe([0.0, 0.0], [0, 0], [0, 1]) == 0  # updates of the run are not told again


@pytest.mark.slow
def test_timesteps_that_make_no_whole_block_are_taken_one_by_one():
    with quick() as runner:
        for total in (7, 101, 64):
            before = runner.agent.timesteps
            runner.run(num_timesteps=total, use_tqdm=False)
            assert runner.driver == "interactive"  # 7 makes no block, and leaves rows that wait for others
            assert runner.timesteps == total == runner.agent.timesteps - before
    with quick() as runner:
        for total in (101, 64):
            before = runner.agent.timesteps
            runner.run(num_timesteps=total, use_tqdm=False)
            assert (runner.driver == "device") == (total == 101)
            assert runner.timesteps == total == runner.agent.timesteps - before
            assert sum(runner.episode_timesteps) <= total


@pytest.mark.slow
def test_replayed_rows_are_those_of_the_run():
    """Nothing is learnt across the cut between the compiled part and the steps after it."""
    agent = {
        "agent": "dqn",
        "buffer_max_size": 512,
        "buffer_initial_size": 32,
        "model": [{"type": "dense", "size": 8}],
    }
    with Runner(agent, "jax:CartPole-v1", num_parallel=2) as runner:
        runner.run(num_timesteps=100, use_tqdm=False)
        runner.run(num_timesteps=100, use_tqdm=False)
        assert runner.driver == "device" and runner.agent.timesteps == 200
        replay, memory = runner.agent.learner.algorithm.memory, runner.agent.engine.train.memory
        transitions = replay.sample(memory, jax.random.key(0), 2000, 1.0)
        moved = np.abs(transitions.next_observation["state"] - transitions.observation["state"])
        assert (
            moved.max() < 1.0
        )  # a step moves the cart and its speeds by less; a new episode would begin near 0
        assert np.unique(np.asarray(transitions.index), axis=0).shape[0] > 150


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_episodes": 3}, {"num_updates": 2, "callback": lambda runner, parallel: True},
        {"num_updates": 2, "evaluation_callback": 2}, {"num_timesteps": 40, "num_episodes": 9},
    ],
)  # fmt: skip
@pytest.mark.slow
def test_what_needs_single_steps_gets_them(arguments, tmp_path):
    if "evaluation_callback" in arguments:
        arguments = {**arguments, "save_best_agent": tmp_path}
    with quick() as runner:
        runner.run(**arguments, use_tqdm=False)
        assert runner.driver == "interactive"


def test_an_agent_that_writes_takes_single_steps(tmp_path):
    agent = {"agent": "ppo", "n_steps": 8, "mini_batches": 2, "model": [{"type": "dense", "size": 8}]}
    with Runner({**agent, "recorder": str(tmp_path)}, "jax:CartPole-v1", num_parallel=2) as runner:
        runner.run(num_updates=2, use_tqdm=False)
        assert runner.driver == "interactive" and runner.updates == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param(
            {"model": [{"type": "dense", "size": 8}, {"type": "lstm", "size": 8}]},
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_environments_of_gymnasium_in_step_are_driven_in_blocks(options):
    """Those of the Runner themselves: a simulator may be there only once."""
    small = {
        "agent": "ppo",
        "n_steps": 8,
        "mini_batches": 2,
        "ppo_epochs": 1,
        "model": [{"type": "dense", "size": 8}],
    }
    with Runner({**small, **options}, "CartPole-v1", num_parallel=2) as runner:
        made = [environment.environment.unwrapped for environment in runner.environments]
        for updates in (20, 5):
            before = runner.agent.updates
            runner.run(num_updates=updates, batch_agent_calls=True, use_tqdm=False)
            assert runner.driver == "host" and runner.updates == updates == runner.agent.updates - before
            assert runner.episode_returns == [float(n) for n in runner.episode_timesteps]
            assert runner.best_evaluation_score == max(runner.episode_returns)
        assert runner._fast_path._vector.envs[0].env.unwrapped is made[0]
        before = runner.agent.timesteps
        runner.run(num_timesteps=101, batch_agent_calls=True, use_tqdm=False)
        assert runner.driver == "host" and runner.timesteps == 101 == runner.agent.timesteps - before
        runner.run(num_timesteps=101, use_tqdm=False)
        assert runner.driver == "interactive"  # each at its own pace
    limited = {"environment": "CartPole-v1", "max_episode_timesteps": 5}
    with Runner({**small, **options}, limited, num_parallel=2) as runner:
        runner.run(num_updates=5, batch_agent_calls=True, use_tqdm=False)
        assert runner.driver == "host" and set(runner.episode_timesteps) == {5}
