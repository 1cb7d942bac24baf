"""The Runner's loop with an agent that only checks how it is called: counts are exact in every manner of
running.

Environments answer late, several actors sit in one, episodes have all lengths; limits and callbacks stop
anywhere.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operant import Environment
from operant.envs.remote.connection import Answer, LocalConnection, VectorizedConnection
from operant.execution.runner.interaction import Interaction
from operant.execution.runner.run_options import RunOptions
from operant.execution.runner.run_statistics import RunStatistics
from operant.execution.runner.slots import EnvSlot, join, take
from operant.training import evaluate

EXAMPLES = 60


class Script(Environment):
    """Episodes of given lengths, in turn; the state is (episode, step), each step's reward 1."""

    def __init__(self, lengths, cut=False):
        self.lengths, self.cut, self.episode = list(lengths), cut, -1

    def states(self):
        return {"type": "float", "shape": (2,)}

    def actions(self):
        return {"type": "int", "num_values": 3}

    def reset(self):
        self.episode += 1
        self.step = 0
        return self.state()

    def state(self):
        return np.asarray([self.episode, self.step], np.float32)

    def execute(self, actions):
        assert isinstance(actions, int) and actions == self.step % 3, "an action for another state"
        self.step += 1
        end = self.step >= self.lengths[self.episode % len(self.lengths)]
        return self.state(), (2 if self.cut else 1) if end else 0, 1.0


class Crowd(Script):
    """Several actors; actor `i` ends after `lengths[i]` steps."""

    def num_actors(self):
        return len(self.lengths)

    def state(self):
        return np.asarray([[self.episode, self.step] for _ in self.alive], np.float32)

    def reset(self):
        self.alive = list(range(len(self.lengths)))
        states = super().reset()
        return self.alive, states

    def execute(self, actions):
        assert np.shape(actions) == (len(self.alive),) and (np.asarray(actions) == self.step % 3).all()
        self.step += 1
        terminal = np.asarray([self.step >= self.lengths[i] for i in self.alive])
        reward = np.ones(len(self.alive), np.float32)
        self.alive = [i for i in self.alive if self.step < self.lengths[i]]
        return self.alive, self.state(), terminal, reward


class Wide(Crowd):
    """Vectorizable: as many actors as a reset asks for."""

    def num_actors(self):
        return 1

    def is_vectorizable(self):
        return True

    def reset(self, num_parallel=None):
        if num_parallel is None:
            return Script.reset(self)
        self.alive = list(range(num_parallel))
        return self.alive, Script.reset(self)


class Late(LocalConnection):
    """Answers after being asked so many times; loses the environment in the middle of some episodes."""

    def __init__(self, environment, delays=(0,), lose_at=None):
        super().__init__(Environment.create(environment))
        self.delays, self.asked, self.left, self.lose_at, self.steps = list(delays), 0, 0, lose_at, 0

    def _open(self):
        self.left = self.delays[self.asked % len(self.delays)]
        self.asked += 1

    def send_reset(self, seed=None):
        self._open()
        super().send_reset(seed)

    def send_execute(self, actions):
        assert self._answer is None, "two open requests"
        self._open()
        self.steps += 1
        if self.steps == self.lose_at:
            self.restarts += 1
            self.environment._running = False
            self._answer = Answer(None, 2, 0.0, lost="it died")
        else:
            super().send_execute(actions)

    def ready(self, seconds=0.0):
        self.left -= 1
        return self.left < 0 and super().ready()


class Checker:
    """Stands in for an agent: refuses calls that the real one would refuse, and learns every `rows` rows."""

    def __init__(self, actors, rows=3):
        self.state = ["closed"] * actors
        self.last = [None] * actors
        self.rows, self.waiting, self.updates, self.acts, self.limit = rows, 0, 0, 0, None
        self.cuts = self.ends = 0
        self.batches = []

    def initial_internals(self):
        return ()

    def _add(self, rows):
        self.waiting += rows
        while self.waiting >= self.rows and not self.held:
            self.waiting -= self.rows
            self.updates += 1

    @property
    def held(self):
        return self.limit is not None and self.updates >= self.limit

    @contextlib.contextmanager
    def hold(self, updates=0):
        self.limit = self.updates + updates
        yield
        self.limit = None

    def act(self, states, internals=None, parallel=0, independent=False, deterministic=True):
        states = np.asarray(states)
        actions = (states[..., 1] % 3).astype(np.int64)
        if independent:
            return actions.item() if actions.ndim == 0 else actions
        batch = [parallel] if isinstance(parallel, int) else parallel
        assert len(set(batch)) == len(batch)
        assert states.shape == ((2,) if isinstance(parallel, int) else (len(batch), 2))
        self.batches.append(len(batch))
        for actor, state in zip(batch, states.reshape(-1, 2), strict=True):
            assert self.state[actor] in ("closed", "open")
            assert (state[1] == 0) == (self.state[actor] == "closed"), "an episode begins where one is open"
            self.state[actor], self.last[actor] = "acted", state
        self.acts += len(batch)
        self._add(len(batch))
        return actions.item() if actions.ndim == 0 else actions

    def observe(self, reward, terminal, parallel, next_states):
        if isinstance(parallel, int):
            reward, terminal, parallel, next_states = [reward], [terminal], [parallel], [next_states]
        for r, end, actor, state in zip(reward, terminal, parallel, next_states, strict=True):
            assert self.state[actor] == "acted" and r in (0.0, 1.0)
            self.state[actor] = "closed" if end else "open"
            if end:
                self.ends += 1
                self._add(1)
                assert state is None or state[1] == self.last[actor][1] + 1

    def reset(self, parallel, next_states=None):
        if next_states is None:  # nobody answers their actions any more
            for actor in parallel:
                assert self.state[actor] == "acted"
                self.state[actor] = "closed"
                self.ends += 1
            return
        for actor, state in zip(parallel, next_states, strict=True):
            assert self.state[actor] == "open"
            np.testing.assert_array_equal(state, self.last[actor] + [0, 1])
            self.state[actor] = "closed"
            self.cuts += 1
            self._add(1)


def run(connections, evaluates=False, rows=3, **options):
    slots, first = [], 0
    for i, connection in enumerate(connections):
        trains = not (evaluates and i == len(connections) - 1)
        slots.append(EnvSlot(connection, first, trains, trains))
        first += connection.num_actors
    agent = Checker(first, rows)
    statistics = RunStatistics(first, evaluates)
    Interaction(agent, slots, RunOptions.read(**options), statistics, seed=0).run()
    assert not any(slot.request for slot in slots)
    assert "acted" not in agent.state and "open" not in agent.state
    assert agent.acts == statistics.timesteps
    assert agent.updates == statistics.updates
    assert statistics.episode_returns == statistics.episode_timesteps  # each step's reward is 1
    assert statistics.evaluation_returns == statistics.evaluation_timesteps
    return agent, statistics


LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=3)
SEVERAL = st.lists(st.integers(1, 7), min_size=2, max_size=4)
DELAYS = st.lists(st.integers(0, 3), min_size=1, max_size=4)
SINGLES = st.lists(
    st.builds(lambda a, d, c: Late(Script(a, c), d), LENGTHS, DELAYS, st.booleans()), min_size=1, max_size=4
)
CROWDS = st.lists(
    st.builds(lambda a: LocalConnection(Environment.create(Crowd(a))), SEVERAL), min_size=1, max_size=2
)
WIDE = st.builds(lambda a: [VectorizedConnection(Environment.create(Wide(a)), len(a))], SEVERAL)
ANY = st.one_of(SINGLES, CROWDS, WIDE)
MANNER = st.fixed_dictionaries(
    {
        "batch_agent_calls": st.booleans(),
        "sync_timesteps": st.booleans(),
        "sync_episodes": st.booleans(),
        "num_sleep_secs": st.just(0.0),
    }
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(ANY, MANNER, st.integers(1, 12))
def test_episodes_are_exact(connections, manner, number):
    agent, statistics = run(connections, num_episodes=number, **manner)
    assert statistics.episodes == len(statistics.episode_returns) == number
    if all(c.num_actors == 1 or isinstance(c, VectorizedConnection) for c in connections):
        assert agent.cuts == 0 and agent.ends == number  # no more are begun than are wanted
        assert statistics.timesteps == sum(statistics.episode_timesteps)


@settings(max_examples=EXAMPLES, deadline=None)
@given(ANY, MANNER, st.integers(1, 30))
def test_timesteps_are_exact(connections, manner, number):
    agent, statistics = run(connections, num_timesteps=number, **manner)
    assert statistics.timesteps == agent.acts == number
    assert agent.ends == statistics.episodes == len(statistics.episode_returns)
    assert agent.cuts <= sum(c.num_actors for c in connections)


@settings(max_examples=EXAMPLES, deadline=None)
@given(SINGLES, MANNER, st.integers(1, 10), st.integers(1, 5))
def test_updates_are_exact(connections, manner, number, rows):
    agent, statistics = run(connections, num_updates=number, **manner, rows=rows)
    assert agent.updates == statistics.updates == number


@settings(max_examples=EXAMPLES, deadline=None)
@given(ANY, MANNER, st.integers(1, 10), st.integers(1, 10), st.integers(1, 5))
def test_the_first_limit_counts(connections, manner, episodes, timesteps, updates):
    _, statistics = run(
        connections, num_episodes=episodes, num_timesteps=timesteps, num_updates=updates, **manner
    )
    assert statistics.episodes <= episodes and statistics.timesteps <= timesteps
    assert (
        statistics.episodes == episodes or statistics.timesteps == timesteps or statistics.updates >= updates
    )


@settings(max_examples=EXAMPLES, deadline=None)
@given(ANY, MANNER, st.integers(1, 9), st.integers(1, 3))
def test_a_callback_ends_the_run_at_its_episode(connections, manner, number, every):
    heard = []

    def callback(runner, parallel):
        heard.append(parallel)
        return len(heard) < number

    _, statistics = run(connections, **manner, callback=callback, callback_episode_frequency=every)
    assert len(heard) == number
    assert statistics.episodes == len(statistics.episode_returns) == number * every


@settings(max_examples=EXAMPLES, deadline=None)
@given(SINGLES, MANNER, st.integers(1, 9))
def test_a_callback_ends_the_run_at_its_timestep(connections, manner, number):
    heard = []

    def callback(runner, parallel):
        heard.append(parallel)
        return len(heard) < number

    _, statistics = run(connections, **manner, callback=callback, callback_timestep_frequency=1)
    assert len(heard) == number
    assert number <= statistics.timesteps < number + len(connections)  # those already under way


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(st.builds(lambda a, d: Late(Script(a), d), LENGTHS, DELAYS), min_size=2, max_size=4),
    MANNER,
    st.integers(1, 8),
)
def test_evaluation_does_not_count(connections, manner, number):
    agent, statistics = run(connections, num_episodes=number, **manner, evaluates=True)
    assert statistics.episodes == number and agent.state[-1] == "closed"
    assert statistics.timesteps == sum(statistics.episode_timesteps)  # none of the evaluation's
    if manner["sync_episodes"]:
        assert len(statistics.evaluation_returns) == -(-number // (len(connections) - 1))


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(
        st.builds(lambda a, d, k: Late(Script(a), d, k), LENGTHS, DELAYS, st.integers(1, 6)),
        min_size=1,
        max_size=3,
    ),
    MANNER,
)
def test_a_lost_environment_ends_its_episode(connections, manner):
    _, statistics = run_lost(connections, num_episodes=8, **manner)
    assert statistics.episodes == 8


def run_lost(connections, **options):
    slots = [EnvSlot(connection, i, True, True) for i, connection in enumerate(connections)]
    agent = Checker(len(slots))
    statistics = RunStatistics(len(slots))
    Interaction(agent, slots, RunOptions.read(**options), statistics, seed=0).run()
    assert agent.ends == 8
    return agent, statistics


def test_a_lost_evaluation_runs_no_more_episodes_than_asked():
    """Only actors whose episodes were wanted get others in their place."""
    connection = Late(Crowd([2, 2]), lose_at=3)
    statistics = RunStatistics(2)
    slot = EnvSlot(connection, 0, trains=False, counts=True)
    Interaction(Checker(2), [slot], RunOptions.read(num_episodes=3), statistics, seed=0).run()
    assert connection.restarts == 1 and statistics.episodes == 3


@pytest.mark.filterwarnings("ignore:An episode of evaluation .* has not ended after 7 timesteps")
@pytest.mark.parametrize("environment", [Script([10**9]), Crowd([2, 10**9])])
@pytest.mark.parametrize("beside", [False, True])
def test_an_episode_of_evaluation_without_end_is_cut(environment, beside, monkeypatch):
    monkeypatch.setattr(evaluate, "LONGEST", 7)
    connection = LocalConnection(Environment.create(environment))
    if beside:
        others = [LocalConnection(Environment.create(Script([30])))]
        _, statistics = run([*others, connection], True, num_episodes=2, sync_episodes=True)
        assert statistics.episode_timesteps == [30, 30]
    else:
        statistics = RunStatistics(connection.num_actors)
        slot = EnvSlot(connection, 0, trains=False, counts=True)
        options = RunOptions.read(num_episodes=2 * connection.num_actors)
        Interaction(Checker(slot.size), [slot], options, statistics, seed=0).run()
    assert sorted(statistics.evaluation_timesteps) == sorted([7, 7, 2, 2][: 2 * connection.num_actors])


def scripts(*lengths):
    return [Late(Script(each)) for each in lengths]


def test_batched_calls_hold_all_environments():
    agent, _ = run(scripts([2], [2], [2]), num_timesteps=12, batch_agent_calls=True)
    assert agent.batches == [3, 3, 3, 3]
    agent, _ = run(scripts([2], [2], [2]), num_timesteps=12, sync_timesteps=True)
    assert agent.batches == [1] * 12


def test_environments_in_step_take_turns_and_others_do_not():
    slow = [Late(Script([100]), [0]), Late(Script([100]), [9])]
    order = []
    run(
        slow,
        num_timesteps=20,
        num_sleep_secs=0,
        callback=lambda _, p: order.append(p),
        callback_timestep_frequency=1,
    )
    assert order.count(0) > 2 * order.count(1)  # the fast one does not wait
    order.clear()
    slow = [Late(Script([100]), [0]), Late(Script([100]), [9])]
    run(
        slow,
        num_timesteps=20,
        sync_timesteps=True,
        callback=lambda _, p: order.append(p),
        callback_timestep_frequency=1,
    )
    assert order == [0, 1] * 10


def test_episodes_in_step_begin_together():
    begun = []

    class Told(Script):
        def reset(self):
            begun.append(self)
            return super().reset()

    short, long = Told([1]), Told([5])
    run([Late(short), Late(long)], num_episodes=6, sync_episodes=True)
    assert begun == [short, long] * 3
    begun.clear()
    short, long = Told([1]), Told([5])
    run([Late(short), Late(long)], num_episodes=6)
    assert begun.count(short) > begun.count(long)


class Seeded(Script):
    """Notes the seeds that it is given."""

    def __init__(self, lengths):
        super().__init__(lengths)
        self.seeds = []

    def reset(self, seed=None):
        self.seeds.append(seed)
        return super().reset()


@pytest.mark.parametrize("manner", [{}, {"batch_agent_calls": True}, {"sync_episodes": True}])
def test_environments_are_seeded_once_and_each_otherwise(manner):
    """With the same seed again an environment would repeat its episode for ever."""
    made = [Seeded([2]) for _ in range(3)]
    connections = [Late(each) for each in made]
    for each in made:
        each.seeds.clear()  # the first reset was to see whether masks come with it
    run(connections, num_episodes=12, **manner)
    first = [each.seeds[0] for each in made]
    assert None not in first and len(set(first)) == 3
    assert all(len(each.seeds) > 2 and set(each.seeds[1:]) == {None} for each in made)


class Remembering(Checker):
    """Recurrent: its state counts the steps of the episode."""

    def initial_internals(self):
        return {"steps": np.zeros(1)}

    def act(self, states, internals=None, parallel=0, independent=False, deterministic=True):
        assert independent and deterministic
        steps = np.asarray(states)[..., 1:]
        np.testing.assert_array_equal(internals["steps"], steps)
        return super().act(states, independent=True), {"steps": steps + 1}


@pytest.mark.parametrize(
    ("connection", "number"), [(lambda: Late(Script([3, 1, 4])), 5), (lambda: Late(Crowd([1, 3, 2])), 9)]
)
def test_recurrent_states_begin_anew_with_each_episode_of_an_evaluation(connection, number):
    made = connection()
    statistics = RunStatistics(made.num_actors)
    slot = EnvSlot(made, 0, trains=False, counts=True)
    Interaction(
        Remembering(made.num_actors), [slot], RunOptions.read(num_episodes=number), statistics, seed=0
    ).run()
    assert statistics.episodes == number


def test_the_state_at_a_cut_is_the_true_last_one():
    agent, statistics = run(scripts([100]), num_timesteps=7)  # Checker compares the state
    assert (agent.cuts, statistics.episodes) == (1, 0)


def test_reported_returns_win():
    class Reports(Script):
        def episode_return(self, parallel=None):
            return 42.0

    statistics = RunStatistics(1)
    slot = EnvSlot(Late(Reports([3])), 0, True, True)
    Interaction(Checker(1), [slot], RunOptions.read(num_episodes=2), statistics, seed=0).run()
    assert statistics.episode_returns == [42.0, 42.0] and statistics.episode_timesteps == [3, 3]


def test_clocks():
    _, statistics = run(scripts([5]), num_episodes=2)
    for total, agent, env in zip(
        statistics.episode_seconds,
        statistics.episode_agent_seconds,
        statistics.episode_env_seconds,
        strict=True,
    ):
        assert agent > 0 and env > 0 and agent + env <= total


def test_take_and_join_are_inverse():
    values = {"a": np.arange(3), "b": {"c": np.arange(6.0).reshape(3, 2)}}
    parts = [take(values, i) for i in range(3)]
    assert parts[1]["a"] == 1 and isinstance(parts[1]["a"], int)
    np.testing.assert_equal(join(parts), values)


@pytest.mark.parametrize("broken", ["twice", "stale"])
def test_control_the_checker_refuses(broken):
    agent = Checker(1)
    agent.act(np.zeros(2))
    with pytest.raises(AssertionError):
        agent.act(np.zeros(2)) if broken == "twice" else agent.reset([0], [np.zeros(2)])
