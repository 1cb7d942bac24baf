"""Several runs at once on a CPU: each is called by itself, at the same time as others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.small_agents import Countdown, compiled, equal

from operant.spec.runtime import processors
from operant.training.drivers.device_driver import DeviceDriver
from operant.training.drivers.seeds import MultiSeedRunner, _SeparateRuns


@pytest.fixture
def three():
    """Three runs, each by itself."""
    agent = compiled("a2c", Countdown(), 2)
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    return MultiSeedRunner(agent.learner, agent.env, agent.n, keys, mapped=False)


@pytest.mark.slow
def test_runs_on_a_cpu_advance_at_the_same_time_each_as_by_itself(three):
    assert isinstance(
        MultiSeedRunner(three.learner, three.loop.env, 2, jax.random.key(0)[None]).states, _SeparateRuns
    )
    assert three.states._threads._max_workers == min(3, processors())
    loop, together = three.states.compiled, threading.Barrier(2)

    def meeting(*arguments):
        together.wait(60)
        return loop(*arguments)

    three.states.compiled = meeting
    three.states._threads = ThreadPoolExecutor(2)  # whatever this machine has
    three.advance(3, {2, 0})
    assert [driver.step > 0 for driver in three.drivers] == [True, False, True]
    three.states.compiled = loop
    three.advance(3, [1])
    for i in range(3):
        driver = DeviceDriver(three.learner, three.loop.env, 2, jax.random.key(i))
        driver.advance(3)
        assert equal(three.drivers[i].train, driver.train) and equal(three.drivers[i].world, driver.world)


@pytest.mark.slow
def test_programs_that_factorise_batches_of_matrices_are_called_one_at_a_time(three):
    three.states.compiled = jax.jit(jnp.linalg.cholesky).lower(jnp.eye(2)[None]).compile()
    assert three.states._threads._max_workers == 1


@pytest.mark.slow
def test_runs_go_on_where_one_failed(three):
    loop = three.states.compiled

    def failing(train, *others):
        if int(train.counters.rows) == three.learner.rows:
            loop(train, *others)  # its state is gone
            raise MemoryError("no room")
        return loop(train, *others)

    three.advance(1, [1])
    three.states.compiled = failing
    with pytest.raises(MemoryError, match="no room"):
        three.advance(2)
    for i in (0, 2):
        counters = three.drivers[i].train.counters
        assert (
            int(counters.rows) == 2 * three.learner.rows and int(counters.timesteps) == three.drivers[i].step
        )
        assert len(three.unreported[i]) == int(counters.episodes) > 0
    assert three.unreported[1] == []


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize(
    "name",  # with a replay memory, and with one of recent rows
    [pytest.param("dqn", marks=pytest.mark.slow), pytest.param("modular", marks=pytest.mark.exhaustive)],
)
def test_changing_one_run_leaves_the_others_and_the_replay_memories_where_they_are(name, mapped):
    agent = compiled(name, Countdown(), 2)
    runs = MultiSeedRunner(
        agent.learner, agent.env, 2, jax.vmap(jax.random.key)(jnp.arange(3)), mapped=mapped
    )
    runs.advance(2)
    before = jax.device_get([runs.drivers[i].train for i in range(3)])
    member = runs.drivers[1]
    assert jax.tree.leaves(member.train.memory)
    assert (member.learnt.memory == ()) == (name == "dqn")
    assert equal(member.learnt._replace(memory=()), member.train._replace(memory=()))

    def places():
        kept = [runs.states] if mapped else runs.drivers
        return [x.unsafe_buffer_pointer() for x in jax.tree.leaves([each.train.memory for each in kept])]

    there = places()
    old, new = member.scale_lr(0.5)
    assert new == 0.5 * old
    if name == "dqn":
        assert places() == there
    lr = agent.learner.names.index("lr")
    halved = np.array(before[1].hyper)
    halved[lr] *= 0.5
    assert equal(member.train, before[1]._replace(hyper=halved))
    state = jax.tree.map(lambda x: x + jnp.ones((), x.dtype), before[1].state)
    member.put(before[1]._replace(state=state))
    assert equal(member.train, before[1]._replace(state=state))
    assert all(equal(runs.drivers[i].train, before[i]) for i in (0, 2))
