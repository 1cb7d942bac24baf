"""Which rows the modular agent learns from: with updates as far apart as batches are large, from every row
once."""

from __future__ import annotations

import collections

import jax
import numpy as np
import pytest
from tests.small_agents import MODEL

from operant import Agent, Runner
from operant.agents.modular_parts.batch import BatchPreparation

GRU = [{"type": "gru", "size": 4, "horizon": 16}]
SHARED = {"baseline_model": "shared"}


@pytest.fixture
def learned(monkeypatch):
    """What rows were learned from: the state of each, which is its number."""
    found, judged, prepared = [], BatchPreparation._judged, BatchPreparation.batch

    def note(counts, states):
        found.append(states[counts].astype(int).tolist())

    def watched(self, block, counts):
        if self.recurrent:  # whose rows are in sequences
            jax.debug.callback(note, counts, block.observation["state"][: len(counts)])
        return judged(self, block, counts)

    def watched_batch(self, memory, key):
        rows, counts, metrics = prepared(self, memory, key)
        if not self.recurrent:
            jax.debug.callback(note, counts, rows.view.observation["state"])
        return rows, counts, metrics

    monkeypatch.setattr(BatchPreparation, "_judged", watched)
    monkeypatch.setattr(BatchPreparation, "batch", watched_batch)
    return found


def play(lengths, steps, actors, **options):
    """Act in all actors at once, in episodes of lengths drawn in turn.

    Return the agent and the numbers of each actor's rows.

    Row `t` of actor `i` is `100,000 i + t`.
    """
    options = {"model": MODEL, **options}
    agent = Agent.create(
        "modular",
        states={"type": "float", "shape": ()},
        actions={"type": "int", "num_values": 2},
        max_episode_timesteps=60,
        parallel_interactions=actors,
        **options,
    )
    who, first = list(range(actors)), 100_000 * np.arange(actors)
    left = np.array([lengths(i) for i in who])
    for step in range(steps):
        agent.act(np.float32(first + step), parallel=who)
        left -= 1
        agent.observe(
            np.ones(actors), (left == 0).astype(int), who, next_states=np.full(actors, -1, np.float32)
        )
        left = np.array([lengths(i) if n == 0 else n for i, n in enumerate(left)])
    jax.effects_barrier()
    return agent


def drawn(low, high):
    generator = np.random.default_rng(0)
    return lambda _: int(generator.integers(low, high))


@pytest.mark.parametrize(
    ("lengths", "actors", "options"),
    [
        (drawn(10, 60), 1, {}),
        pytest.param(drawn(10, 60), 8, {}, marks=pytest.mark.slow),
        pytest.param(drawn(10, 60), 1, {"batch_size": 10}, marks=pytest.mark.exhaustive),
        pytest.param(drawn(10, 60), 8, {"batch_size": 10}, marks=pytest.mark.exhaustive),
        pytest.param(drawn(10, 60), 4, {"batch_size": 64, "horizon": 50}, marks=pytest.mark.exhaustive),
        (drawn(10, 60), 1, {"horizon": None}),
        pytest.param(drawn(10, 60), 3, {"horizon": None, "batch_size": 30}, marks=pytest.mark.slow),
        pytest.param(drawn(3, 8), 1, {**SHARED, "capacity": 1000}, marks=pytest.mark.slow),
        pytest.param(drawn(3, 8), 1, {**SHARED, "model": GRU}, marks=pytest.mark.slow),
        pytest.param(
            lambda i: (2, 50)[i], 2, {**SHARED, "batch_size": 8, "horizon": 1}, marks=pytest.mark.exhaustive
        ),
        pytest.param(lambda i: (5, 50)[i], 2, SHARED, marks=pytest.mark.exhaustive),
        pytest.param(
            lambda i: (2, 20)[i],
            2,
            {"unit": "episodes", "batch_size": 4, "horizon": None},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda _: 5,
            8,
            {"unit": "episodes", "batch_size": 10, "horizon": None},
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_every_row_is_learned_from_once(lengths, actors, options, learned):
    steps, known = 400, 250  # what comes late waits for its return, and for an update
    agent = play(lengths, steps, actors, **options)
    assert agent.updates > 3
    times = collections.Counter(row for batch in learned for row in batch)
    for actor in range(actors):
        rows = range(100_000 * actor, 100_000 * actor + known)
        assert {row: times[row] for row in rows if times[row] != 1} == {}
    assert max(times.values()) == 1 and -1 not in times


@pytest.mark.parametrize(("start", "first"), [(40, 1), (36, 5), (33, 8)])
@pytest.mark.slow
def test_the_first_update_is_late_by_what_came_after_start(start, first, learned):
    """Episodes of 8 actors end together: the 40th is the 4th behind a start of 36, and not the 39th behind
    the one of a batch."""
    options = {"unit": "episodes", "batch_size": 1, "start": start, "horizon": None}
    play(lambda _: 5, 100, 8, **options)
    assert [len(batch) for batch in learned[:4]] == [5 * first, *[40] * 3]
    times = collections.Counter(row for batch in learned for row in batch)
    assert max(times.values()) == 1


@pytest.mark.slow
def test_updates_twice_as_often_learn_from_every_row_twice(learned):
    play(drawn(10, 60), 400, 1, batch_size=40, frequency=20, horizon=5)
    times = collections.Counter(row for batch in learned for row in batch)
    assert {times[row] for row in range(20, 300)} == {2}


@pytest.mark.slow
def test_updates_half_as_often_leave_the_older_half_out(learned):
    play(lambda _: 60, 300, 1, **SHARED, batch_size=10, frequency=20)
    assert [len(batch) for batch in learned[:6]] == [10] * 6
    times = collections.Counter(row for batch in learned for row in batch)
    assert max(times.values()) == 1 and not times[5] and times[15]


@pytest.mark.slow
def test_replay_of_episodes_draws_whole_ones_of_any_age(learned):
    """Episodes of 5 steps, two in each update: at first the only one, then any two of those so far."""
    options = {"unit": "episodes", "batch_size": 2, "frequency": 1, "memory": "replay", "capacity": 198}
    agent = play(lambda _: 5, 300, 1, horizon=None, **options)
    assert agent.updates == len(learned) == 60
    drawn = [{row // 5 for row in batch} for batch in learned]
    for i, (batch, episodes) in enumerate(zip(learned, drawn, strict=True)):
        assert len(episodes) == min(i + 1, 2) and max(episodes) <= i
        whole = [5 * episode + step for episode in sorted(episodes) for step in range(5)]
        # The capacity is 33 episodes of 6 rows: of the oldest that is held the beginning may be gone.
        assert batch == whole or (min(episodes) <= i - 32 and set(batch) < set(whole))
    ages = [i - episode for i, episodes in enumerate(drawn) for episode in episodes]
    assert min(ages) == 0 and 25 <= max(ages) <= 33 and 11 < np.mean(ages[-54:]) < 22  # uniform: 16


@pytest.mark.slow
def test_returns_from_a_replay_memory_wait_for_their_rewards(monkeypatch):
    """Every reward is 1, nothing ends or is predicted: every return of five rewards is 5.

    One that ends sooner is whole.
    """
    found, batch = [], BatchPreparation.batch

    def watched(self, memory, key):
        rows, counts, metrics = batch(self, memory, key)
        jax.debug.callback(lambda x, c: found.append(set(x[c, 0].tolist())), rows.target, counts)
        return rows, counts, metrics

    monkeypatch.setattr(BatchPreparation, "batch", watched)

    def returns(ends):
        found.clear()
        agent = Agent.create(
            "modular",
            states={"type": "float", "shape": ()},
            actions={"type": "int", "num_values": 2},
            model=MODEL,
            **{"memory": "replay", "batch_size": 32, "frequency": 4, "start": 4, "horizon": 5, "gamma": 1.0},
        )
        for step in range(40):
            agent.act(np.float32(step))
            agent.observe(1.0, ends.get(step, 0))
        jax.effects_barrier()
        return found

    assert returns({}) and found[0] == set() and set().union(*found) == {5.0}
    assert set().union(*returns({2: 1})) == {1.0, 2.0, 3.0, 5.0}
    assert set().union(*returns({2: 2})) == {1.0, 2.0, 3.0, 5.0}


@pytest.mark.slow
def test_several_actors_learn_with_nothing_but_defaults():
    """Batches of rows near the ends of episodes led to episodes of 10 steps, with every seed."""
    runner = Runner({"agent": "modular", "seed": 1}, "CartPole-v1", num_parallel=8, max_episode_timesteps=500)
    agent = runner.agent
    runner.run(num_timesteps=10_000, batch_agent_calls=True, use_tqdm=False)
    steps, episodes = agent.timesteps, agent.episodes
    runner.run(num_timesteps=4_000, batch_agent_calls=True, use_tqdm=False)
    assert (agent.timesteps - steps) / (agent.episodes - episodes) > 100
    runner.close()
