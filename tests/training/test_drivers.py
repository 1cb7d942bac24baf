"""Three drivers, one agent: device, host and interactive learn the same from the same seed, and resume
exactly."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.small_agents import (
    NAMES,
    ONCE,
    RECURRENT,
    Compiled,
    Countdown,
    Stream,
    assert_close,
    compiled,
    countdown,
    differing,
    equal,
    interact,
    learner,
    networks,
    parameters,
    serves,
    small,
    states_of,
)

from operant import checkpoint
from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import TrainState
from operant.agents.base.metric_accumulator import METRIC_SLOTS
from operant.agents.table import config_class
from operant.envs.native.classic import CartPole
from operant.envs.native.native_env import NativeEnv, TimeLimit
from operant.errors import SpaceError, SpecError
from operant.execution.agent import Agent
from operant.execution.agent_callbacks import AgentCallbacks
from operant.memory.recent import Recent, RecentState
from operant.memory.ring import VALID
from operant.spec import options
from operant.spec.random_streams import Purpose, derived_seed
from operant.training.drivers.device_driver import DeviceDriver
from operant.training.drivers.host_driver import HostDriver
from operant.training.drivers.seeds import MultiSeedRunner

BLOCKS, SEED = 12, 5


@functools.cache
def device(agent: Compiled) -> DeviceDriver:
    """A device driver of an agent; compiled once."""
    return DeviceDriver(agent.learner, agent.env, agent.n, jax.random.key(0))


def on_device(agent: Compiled, seed: int, calls: tuple[int, ...]) -> DeviceDriver:
    """Run blocks on the device driver from the start of a seed's run, so many in each call."""
    driver = device(agent)
    train, world = agent.begin(seed)
    driver.restore(train, {"world": world})
    driver.metrics()
    for blocks in calls:
        driver.advance(blocks)
    return driver


def on_host(agent: Compiled, seed: int, blocks: int) -> HostDriver:
    """Run blocks on the host driver."""
    env = Stream(agent.env, agent.n, jax.random.key(seed))
    driver = HostDriver(agent.engine(seed), env, seed)
    driver.advance(blocks)
    return driver


def interactive(agent: Compiled, seed: int, batched: bool = True) -> Agent:
    """Make the agent of a program, with the compiled functions of the others."""
    made = Agent.__new__(Agent)
    made.definition = parse_agent(agent.name, **agent.learner.algorithm.config.to_dict())
    made.spaces, made.seed = agent.env.spaces, seed
    made.parallel_interactions, made.max_episode_timesteps = agent.n, None
    made.learner, made.engine = agent.learner, agent.engine(seed)
    made._reported, made._draws, made._last_block, made._callbacks = 0, 0, None, AgentCallbacks()
    made._limit, made._debug = None, False
    made._start()
    return made


def comparable(train: TrainState) -> TrainState:
    """Blank what means nothing: actions and extras that a memory holds of an episode's last observation."""
    if train.memory == ():
        return train
    recent = isinstance(train.memory, RecentState)
    rows = train.memory._asdict() if recent else dict(train.memory.rows)
    acted = np.asarray(rows["valid"]) if recent else np.asarray(rows["mark"]) & VALID > 0
    for part in ("action", "extras"):
        rows[part] = jax.tree.map(
            lambda x: np.where(
                acted.reshape(*acted.shape, *[1] * (x.ndim - acted.ndim)), x, np.zeros((), x.dtype)
            ),
            rows[part],
        )
    return train._replace(memory=RecentState(**rows) if recent else train.memory._replace(rows=rows))


def assert_agree(agent: Compiled, blocks: int = BLOCKS, batched: bool = True) -> None:
    """Run all three drivers, and compare everything that they end with."""
    first = on_device(agent, SEED, (blocks,))
    train = jax.device_get(first.train._replace(key=jax.random.key_data(first.train.key)))
    second = on_host(agent, SEED, blocks)
    assert_close(train, second.train._replace(key=jax.random.key_data(second.train.key)))
    assert second.step == first.step == int(train.counters.timesteps)
    start = parameters(agent.begin(SEED)[0].state)
    assert not equal(start, parameters(first.train.state))
    made = interactive(agent, SEED)
    returned = interact(made, agent.env, SEED, blocks * agent.learner.rows, batched)
    third = made.engine.train
    assert_close(comparable(train), comparable(third._replace(key=jax.random.key_data(third.key))))
    # An algorithm may count for itself: blocks in which no episode ended are no updates of some.
    assert (made.updates, made.episodes) == (int(train.counters.updates), int(train.counters.episodes))
    # the last act, which only brought an observation, may have made an update or none, and took a step
    assert made.timesteps - int(train.counters.timesteps) in range(agent.n + 1)
    assert made.updates - 2 <= sum(returned) <= made.updates


class Case(NamedTuple):
    env: NativeEnv
    options: dict[str, Any]
    n: int = 3


CASES = {
    "countdown": Case(Countdown(), {}),
    "masked": Case(Countdown(masked=True), {}),
    "discrete": Case(Countdown(kind="discrete"), {}),
    "float": Case(Countdown(kind="float"), {}),
    "hybrid": Case(Countdown(kind="hybrid"), {}),
    "cartpole": Case(TimeLimit(CartPole(), 9), {}),
    "single": Case(Countdown(), {}, 1),
}


def cases(*everyday: str):
    """Every agent in every case that it serves: every day a few cases of PPO, slow those of others,
    exhaustive the rest."""
    found = []
    for agent in ONCE:
        name = agent if isinstance(agent, str) else agent.values[0]
        for label, case in CASES.items():
            if serves(name, case.env.spaces):
                plain = "countdown" if serves(name, Countdown().spaces) else "float"
                often = isinstance(agent, str) and label in (
                    plain if e == "countdown" else e for e in everyday
                )
                marks = (
                    () if often and name == "ppo" else pytest.mark.slow if often else pytest.mark.exhaustive
                )
                found.append(pytest.param(name, case, id=f"{name}-{label}", marks=marks))
    return found


@pytest.mark.parametrize(("name", "case"), cases("countdown"))
def test_drivers_agree(name, case):
    agent = compiled(name, case.env, case.n, **case.options)
    assert_agree(agent, batched=case.n > 1)


def single_row(name, n):
    """Return what makes an agent of `n` actors learn after every row."""
    known = options(config_class(name))
    for option in ("train_every", "n_steps"):
        if option in known:
            return {option: 1} | ({"mini_batches": 1} if "mini_batches" in known else {})
    return {"unit": "timesteps", "frequency": n}


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "vpg"])  # which waits for whole returns
def test_drivers_agree_when_every_row_is_a_block(name, n):
    assert_agree(compiled(name, countdown(name), n, **single_row(name, n)), blocks=40, batched=n > 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["int", "hybrid"])
@pytest.mark.parametrize("name", NAMES)
def test_drivers_agree_with_a_recurrent_network(name, kind):
    envs = (Countdown(kind=each) for each in (kind, "discrete", "float"))
    env = next(env for env in envs if serves(name, env.spaces))
    agent = compiled(name, env, 3, **networks(name, RECURRENT))
    assert_agree(agent)
    assert all(model.recurrent for model in agent.learner.algorithm.models.values())


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ONCE)
def test_drivers_agree_with_normalisation_and_schedules(name):
    config = parse_agent(name).config
    options = {"normalize_observations": True, "lr": "linear:0.02:0.001:60"}
    if hasattr(config, "normalize_rewards"):
        options["normalize_rewards"] = True
    if hasattr(config, "prioritized"):
        options |= {
            "prioritized": True,
            "priority_beta": "linear:0.4:1:60",
            "gradient_steps": 2,
            "n_steps": 3,
        }
    agent = compiled(name, countdown(name), 3, **options)
    assert_agree(agent)


# The number of blocks of one call, and seeds


@pytest.mark.slow
@pytest.mark.parametrize("name", ONCE)
def test_how_many_blocks_one_call_runs_does_not_matter(name):
    agent = compiled(name, countdown(name))
    once = on_device(agent, 1, (BLOCKS,))
    train, world, metrics = (
        jax.tree.map(jnp.copy, once.train),
        jax.tree.map(jnp.copy, once.world),
        once.metrics(),
    )
    assert metrics and once.metrics() == {}  # those are told already
    again = on_device(agent, 1, (1, 4, 2, BLOCKS - 7))
    assert differing((train, world), (again.train, again.world)) == []
    assert again.metrics() == pytest.approx(metrics, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ONCE)
def test_finished_episodes_are_what_happened(name):
    """Return, length, actor and step of every episode, against the blocks themselves."""
    agent = compiled(name, countdown(name))
    driver = on_device(agent, 2, ())
    finished = [*driver.advance(3), *driver.advance(BLOCKS - 3)]
    _, blocks, _ = agent.run(2, BLOCKS)
    expected, step = [], 0
    reward, length = np.zeros(agent.n), np.zeros(agent.n, int)
    for block in blocks:
        for t in range(agent.learner.rows):
            valid = np.asarray(block.valid[t])
            step += valid.sum()
            reward, length = reward + np.asarray(block.reward[t]), length + valid
            for i in np.flatnonzero(np.asarray(block.terminated[t] | block.truncated[t])):
                expected.append((step, reward[i], length[i], i))
                reward[i], length[i] = 0, 0
    assert len(expected) > 10
    told = [episode[:4] for episode in finished]
    np.testing.assert_allclose(np.array(told, float), np.array(expected, float), rtol=1e-5)
    host = HostDriver(agent.engine(2), Stream(agent.env, agent.n, jax.random.key(2)), 2)
    on_host_finished = host.advance(BLOCKS)
    told = [episode[:4] for episode in on_host_finished]
    np.testing.assert_allclose(np.array(told, float), np.array(expected, float), rtol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("name", ONCE)
def test_population_of_three_seeds_equals_three_runs(name, mapped):
    agent = compiled(name, countdown(name))
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    population = MultiSeedRunner(agent.learner, agent.env, agent.n, keys, mapped=mapped)
    population.advance(4)
    population.advance(BLOCKS - 4)
    told = [population.drivers[seed].metrics() for seed in range(3)]
    assert all(told) and told[0] != told[1] and population.drivers[1].metrics() == {}
    for seed in range(3):
        single, _, _ = agent.run(seed, BLOCKS)
        assert_close(population.drivers[seed].train, single, 1e-3, 1e-4)
        assert population.drivers[seed].step == int(single.counters.timesteps)
    states = [population.drivers[i].train.state for i in range(3)]
    assert not equal(states[0], states[1])
    assert not equal(states[1], states[2])


# Resuming


def saved(directory: Any, driver: Any) -> Any:
    """Save a driver's run."""
    tree = {"train": driver.train, "driver": driver.snapshot()}
    return checkpoint.save(directory, tree, {}, name="here")


def restored(path: Any, driver: Any) -> None:
    """Load a saved run into another driver."""
    like = {"train": driver.train, "driver": driver.snapshot_like()}
    tree, _ = checkpoint.load(path, like)
    driver.restore(tree["train"], tree["driver"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("name", ONCE)
def test_device_driver_resumes_bit_for_bit_in_fresh_objects(name, recurrent, tmp_path):
    options = small(name, normalize_observations=True, **(networks(name, RECURRENT) if recurrent else {}))

    def fresh(seed: int) -> DeviceDriver:
        definition, env = parse_agent(name, **options), countdown(name)
        from operant.agents.base.learner import Learner

        made = Learner(definition.cls.create(definition.config, env.spaces, 3))
        return DeviceDriver(made, env, 3, jax.random.key(seed))

    whole = fresh(SEED)
    whole.advance(7)
    path = saved(tmp_path, whole)
    first_part = whole.advance(5)
    part = fresh(SEED + 1)
    restored(path, part)
    second_part = part.advance(5)
    assert differing((whole.train, whole.world), (part.train, part.world)) == []
    assert first_part == second_part
    assert whole.step == part.step


@pytest.mark.parametrize("name", ONCE)
def test_device_driver_resumes_bit_for_bit(name, tmp_path):
    agent = compiled(name, countdown(name))
    driver = on_device(agent, SEED, (7,))
    path = saved(tmp_path, driver)
    finished = driver.advance(5)
    expected = jax.tree.map(jnp.copy, (driver.train, driver.world))
    on_device(agent, SEED + 1, (3,))
    restored(path, driver)
    assert driver.step == int(driver.train.counters.timesteps)
    assert driver.advance(5) == finished
    assert differing(expected, (driver.train, driver.world)) == []


@pytest.mark.parametrize("name", ONCE)
def test_device_driver_begins_new_episodes_where_it_stands(name):
    """With the draws of the next row, not those of rows that it has taken, and behind the observations
    that it left."""
    agent = compiled(name, countdown(name))
    driver = on_device(agent, SEED, (3,))
    left, counters = driver.world.actors, driver.train.counters
    begun = driver.loop.restart(driver.train.key, counters.rows, left.observation).actors
    assert begun.row == left.row == counters.rows + 1
    assert begun.ended.all() and equal(begun.observation, left.observation)


@pytest.mark.parametrize("name", ONCE)
def test_host_driver_resumes_with_the_train_it_saved_and_cuts_open_episodes(name, tmp_path):
    """The first row after restoring is the last one of each episode: its true last observation, no action."""
    agent = compiled(name, countdown(name))
    driver = on_host(agent, SEED, 7)
    path = saved(tmp_path, driver)
    before = jax.tree.map(jnp.copy, driver.train)
    last = {k: np.array(x) for k, x in driver._observation.items()}
    assert not driver._ended.all()

    env = Stream(agent.env, agent.n, jax.random.key(77))
    other = HostDriver(agent.engine(SEED + 1), env, SEED)
    seeds, reset = [], env.reset
    env.reset = lambda seed: (seeds.append(seed), reset(seed))[1]
    restored(path, other)
    assert (
        seeds == [derived_seed(SEED, Purpose.ENV, int(before.counters.rows))] != [SEED]
    )  # not the episodes of its beginning again
    assert differing(before, other.train) == []
    assert (other.step, other._row) == (int(before.counters.timesteps), int(before.counters.rows))

    blocks = []
    advance = other.engine.advance

    def noting(block, *rest):
        blocks.append(jax.tree.map(np.array, block))
        return advance(block, *rest)

    other.engine.advance = noting
    try:
        finished = other.advance(2)
    finally:
        del other.engine.advance
    block = blocks[0]
    assert not block.valid[0].any()
    assert block.valid[1].all()
    assert equal({k: x[0] for k, x in block.observation.items()}, last)
    start = Stream(agent.env, agent.n, jax.random.key(77)).reset()
    assert equal({k: x[1] for k, x in block.observation.items()}, start)
    assert not (block.terminated | block.truncated | (block.reward != 0))[0].any()
    steps = sum(int(b.valid.sum()) for b in blocks)
    assert int(other.train.counters.timesteps) == int(before.counters.timesteps) + steps == other.step
    # an episode of after the restart has the length that its own rows say
    valid = np.concatenate([b.valid for b in blocks])
    ended = np.concatenate([b.terminated | b.truncated for b in blocks])
    for i in range(agent.n):
        lengths = [f.length for f in finished if f.actor == i]
        assert lengths[:1] == [int(valid[: np.flatnonzero(ended[:, i])[0] + 1, i].sum())]


@pytest.mark.parametrize("name", ONCE)
def test_host_driver_may_be_saved_before_its_first_block(name, tmp_path):
    agent = compiled(name, countdown(name))
    path = saved(tmp_path, on_host(agent, SEED, 0))
    other = HostDriver(agent.engine(SEED + 1), Stream(agent.env, agent.n, jax.random.key(7)), SEED)
    restored(path, other)
    assert differing(agent.begin(SEED)[0], other.train) == []
    other.advance(2)
    assert other.step == int(other.train.counters.timesteps) > 0


@pytest.mark.slow
def test_the_host_driver_may_be_restored_twice(tmp_path):
    """The first row is the last one of the saved episodes again, not what the restore before was about to
    show."""
    name = ONCE[0]
    agent = compiled(name, countdown(name))
    driver = on_host(agent, SEED, 3)
    path = saved(tmp_path, driver)
    last = {k: np.array(x) for k, x in driver._observation.items()}
    stream, other = (Stream(agent.env, agent.n, jax.random.key(5)) for _ in range(2))
    restored(path, again := HostDriver(agent.engine(SEED + 1), other, SEED))
    restored(path, again)
    block = again._collect([])
    stream.reset()
    assert equal({k: x[0] for k, x in block.observation.items()}, last)
    assert equal({k: x[1] for k, x in block.observation.items()}, stream.reset())


@pytest.mark.parametrize("name", ONCE)
def test_nothing_bootstraps_across_a_restart(name):
    """What the block before the restart taught does not depend on what comes after, and the reverse.

    Changing everything that was observed before the restart changes nothing that the rows after it teach, but
    for the row that the restart itself brought.
    """
    agent = compiled(name, countdown(name))
    train, blocks, _ = agent.run(SEED, BLOCKS)
    block = blocks[-1]._replace(valid=blocks[-1].valid.at[0].set(False))
    other = block._replace(
        observation={
            k: x.at[0].set(jnp.ones_like(x[0]) if x.dtype == bool else x[0] + 1)
            for k, x in block.observation.items()
        },
        action=jax.tree.map(lambda x: x.at[0].set(0), block.action),
        extras=jax.tree.map(lambda x: x.at[0].set(0), block.extras),
    )
    if train.memory != ():
        train = train._replace(memory=agent.begin(0)[0].memory)
    one, _ = agent.absorb(train, block)
    two, _ = agent.absorb(train, other)
    assert_close(parameters(one.state), parameters(two.state), 1e-5, 1e-6)


# Actors out of step


@pytest.mark.parametrize("more", [0, 1])
def test_an_update_with_too_many_metrics_is_refused(more, monkeypatch):
    made = learner("a2c", Countdown(), 2)

    def update(self, state, memory, block, counters, key):
        return state, memory, {f"loss/{i}": jnp.zeros(()) for i in range(METRIC_SLOTS + more)}

    monkeypatch.setattr(type(made.algorithm), "update", update)
    key = jax.random.key(0)
    train = jax.eval_shape(made.init, key, made.hyper())
    call = functools.partial(jax.eval_shape, made.update, train, made.block_shape(2), key)
    if not more:
        call()
        return
    with pytest.raises(
        SpecError, match=r"A2C.update must return at most 32 metrics. Received: 33. Leave some out"
    ):
        call()


def test_what_observe_refuses_changes_nothing():
    """Also where only one of several actors is told something wrong."""
    agent = compiled(next(entry for entry in ONCE if isinstance(entry, str)), Countdown())
    made = interactive(agent, SEED)
    observation = Stream(agent.env, agent.n, jax.random.key(0)).reset()
    everyone = list(range(agent.n))
    with pytest.raises(SpecError, match=r"parallel must be an index, or a list of different ones.*\[0, 0\]"):
        made.act(states=states_of(agent.env.spaces, observation, slice(0, 2)), parallel=[0, 0])
    with pytest.raises(SpecError, match="parallel must be an index, or a list of different ones"):
        made.act(states=states_of(agent.env.spaces, observation, slice(0, 0)), parallel=[])
    states = states_of(agent.env.spaces, observation, slice(None))
    made.act(states=states, parallel=everyone)
    wrong = {"reward": [0.0, 0.0, float("nan")]}, {"terminal": [1, 0, 7]}
    for arguments in wrong:
        with pytest.raises(SpaceError):
            made.observe(parallel=everyone, **arguments)
    with pytest.raises(SpaceError, match="noise"):
        made.observe(
            terminal=2, parallel=1, next_states={**states_of(agent.env.spaces, observation, 1), "noise": 1.0}
        )
    with pytest.raises(SpecError, match="different ones"):
        made.observe(parallel=[1, 1])
    assert made.episodes == 0
    made.observe(terminal=[0, 2, 1], parallel=everyone)
    assert (made.timesteps, made.episodes) == (agent.n, 2)


def columns_of(blocks: list[tuple[Any, list[int] | None]], n: int) -> list[dict[str, np.ndarray]]:
    """Put the blocks that an agent learnt from together again, actor by actor."""
    streams: list[list[dict[str, Any]]] = [[] for _ in range(n)]
    for block, columns in blocks:
        for j, index in enumerate(range(n) if columns is None else columns):
            for t in range(block.reward.shape[0]):
                streams[index].append(
                    {
                        "observation": {k: x[t, j] for k, x in block.observation.items()},
                        "after": {k: x[t + 1, j] for k, x in block.observation.items()},
                        "action": {k: x[t, j] for k, x in block.action.items()},
                        "reward": float(block.reward[t, j]),
                        "end": int(block.terminated[t, j]) + 2 * int(block.truncated[t, j]),
                        "valid": bool(block.valid[t, j]),
                    }
                )
    return streams


@pytest.mark.parametrize("name", ONCE)
def test_actors_out_of_step_learn_exactly_what_each_of_them_lived(name):
    """Random actors act in random order and number.

    Every row reaches the agent once, in its actor's order.
    """
    agent = compiled(name, countdown(name))
    made = interactive(agent, SEED)
    blocks: list[tuple[Any, list[int] | None]] = []
    engine = made.engine
    absorb, absorb_columns = engine.update, engine.update_segments
    engine.update = lambda block: (blocks.append((block, None)), absorb(block))[1]
    engine.update_segments = lambda block, columns: (
        blocks.append((block, list(columns))), absorb_columns(block, columns)
    )[1]  # fmt: skip
    spaces, generator = agent.env.spaces, np.random.default_rng(0)
    lived: list[list[dict[str, Any]]] = [[] for _ in range(agent.n)]
    waiting: dict[int, Any] = {}

    def observation() -> dict[str, np.ndarray]:
        return {
            "count/left": generator.normal(size=1).astype(np.float32),
            "count/odd": np.asarray(generator.random() < 0.5),
            "noise": generator.normal(size=2).astype(np.float32),
            "level": np.asarray(generator.integers(4), np.int32),
        }

    acted = 0
    try:
        for _ in range(150):
            free = [i for i in range(agent.n) if i not in waiting]
            if free and (generator.random() < 0.6 or not waiting):
                weights = np.array([5.0, 1.0, 1.0])[free]  # the first actor runs ahead
                chosen = generator.choice(
                    free, generator.integers(1, len(free) + 1), False, weights / weights.sum()
                )
                seen = [observation() for _ in chosen]
                states = {k: np.stack([o[k] for o in seen]) for k in seen[0]}
                actions = made.act(states=spaces.states.unflatten(states), parallel=chosen.tolist())
                flat = spaces.actions.flatten(actions)
                for j, (i, o) in enumerate(zip(chosen, seen, strict=True)):
                    waiting[int(i)] = (o, {k: x[j] for k, x in flat.items()})
                acted += len(chosen)
            else:
                i = int(generator.choice(list(waiting)))
                o, action = waiting.pop(i)
                reward, end = float(np.float32(generator.normal())), int(generator.choice([0, 0, 0, 1, 2]))
                after = observation()
                made.observe(
                    reward=reward, terminal=end, parallel=i, next_states=spaces.states.unflatten(after)
                )
                row = {"observation": o, "action": action, "reward": reward, "end": end, "valid": True}
                lived[i].append(row)
                if end:
                    lived[i].append(
                        {"observation": after, "action": None, "reward": 0.0, "end": 0, "valid": False}
                    )
            assert made.timesteps == acted
    finally:
        del engine.update, engine.update_segments
    assert made.episodes == sum(row["end"] > 0 for rows in lived for row in rows)
    assert any(columns is not None and len(set(columns)) < agent.n for _, columns in blocks)
    streams = columns_of(blocks, agent.n)
    learnt = sum(map(len, streams))
    assert learnt == made.engine.counter("rows") * agent.n > 60
    for rows, expected in zip(streams, lived, strict=True):
        for t, row in enumerate(rows):
            assert (row["reward"], row["end"], row["valid"]) == tuple(
                expected[t][k] for k in ("reward", "end", "valid")
            )
            assert equal(row["observation"], expected[t]["observation"])
            if row["valid"]:
                assert equal(row["action"], expected[t]["action"])
            if t + 1 < len(expected):
                assert equal(row["after"], expected[t + 1]["observation"])
    state = engine.train.memory
    if state != ():  # and the memory holds each actor's rows in its own column
        memory = agent.learner.algorithm.memory
        for i, rows in enumerate(streams):
            held = np.array([row["reward"] for row in rows], np.float32)
            size = min(len(held), memory.length)
            if isinstance(memory, Recent):
                newest = np.asarray(memory.rollout(state).reward)[-size:, i]
            else:
                place = (np.arange(len(held)) % memory.length)[-size:]
                newest = np.asarray(state.rows["reward"]).reshape(agent.n, memory.length)[i][place]
            np.testing.assert_array_equal(newest, held[-size:])
