"""What holds for every agent of the table: specification, shapes, determinism, compilation, masks, broken
numbers."""

from __future__ import annotations

import contextlib
import copy
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.probe_envs import PROBES
from tests.small_agents import (
    NAMES,
    ONCE,
    RECURRENT,
    SMALL,
    SOME,
    Countdown,
    absorb,
    assert_close,
    compiled,
    countdown,
    differing,
    equal,
    learned,
    learner,
    networks,
    parameters,
    probes_of,
    serves,
    small,
)

from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import Learner
from operant.agents.base.protocol import fold
from operant.agents.table import AGENTS
from operant.errors import SpaceError, SpecError
from operant.spec import Schedule, default, options
from operant.spec.spaces import Space, Spaces
from operant.tracking import METRICS
from operant.training.drivers.device_driver import DeviceRun
from operant.training.drivers.seeds import MultiSeedRunner

BLOCKS = 14


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture(params=ONCE)
def agent(request):
    return compiled(request.param, countdown(request.param))


# Specification


def test_specification_round_trips_through_json(name):
    definition = parse_agent(name, **small(name))
    again = parse_agent(json.loads(json.dumps(definition.to_dict())))
    assert again == definition
    assert (again.name, again.cls, again.config) == (name, definition.cls, definition.config)
    assert parse_agent(definition) == definition


def test_options_beside_a_definition_win(name):
    changed = parse_agent(parse_agent(name, gamma=0.5, lr=0.25), gamma=0.75)
    assert (changed.name, changed.config.gamma, changed.config.lr) == (name, 0.75, 0.25)


def test_schedules_round_trip_through_json(name):
    definition = parse_agent(name, lr="linear:0.1:0.01:100", gamma={"type": "constant", "start": 0.5})
    again = parse_agent(json.loads(json.dumps(definition.to_dict())))
    assert again == definition
    assert again.config.lr == Schedule("linear", 0.1, 0.01, 100)


def test_every_option_has_a_legal_default_and_a_help_text(name):
    config = type(parse_agent(name).config)
    for option, meta in options(config).items():
        assert meta.help, option
        assert getattr(config(**{option: default(config, option)}), option) == default(config, option)


def test_unknown_option_is_named_with_the_close_match(name):
    with pytest.raises(
        SpecError, match=rf"^{name} takes no argument 'learning_rat'\. Did you mean 'learning_rate'\?"
    ):
        parse_agent(name, learning_rat=1)
    with pytest.raises(SpecError, match=r"takes no argument 'gama'\. Did you mean 'gamma'\?"):
        parse_agent(name, gama=0.9)


def test_unknown_agent_is_named_with_the_close_match(name):
    typo = name + name[-1]
    with pytest.raises(SpecError, match=rf"Received: '{typo}'\. Did you mean '{name}'\?"):
        parse_agent(typo)


@pytest.mark.slow
def test_config_is_never_written_to(agent):
    config = agent.learner.algorithm.config
    before = copy.deepcopy(config.to_dict())
    agent.run(0, 2)
    assert config.to_dict() == before
    assert config == parse_agent(agent.name, **small(agent.name)).config


# Acting and updating


def test_weights_are_those_of_the_models_and_go_back_as_they_came(agent):
    algorithm, (train, _) = agent.learner.algorithm, agent.begin(0)
    weights = algorithm.weights(train.state)
    assert list(weights) == list(algorithm.models)
    for name, model in algorithm.models.items():
        expected = jax.eval_shape(model.init, jax.random.key(0))
        assert jax.tree.map(jnp.shape, weights[name]) == jax.tree.map(lambda x: x.shape, expected), name
    other, _ = agent.begin(1)
    moved = algorithm.with_weights(train.state, algorithm.weights(other.state))
    assert equal(algorithm.weights(moved), algorithm.weights(other.state))


def random_observation(spaces: Spaces, n: int, key):
    """Observations with numbers of all kinds; masks allow at least one value."""
    observation = {}
    for i, (component, leaf) in enumerate(spaces.observation_components.items()):
        own, shape = fold(key, i), (n, *leaf.shape)
        if leaf.type == "bool":
            drawn = jax.random.bernoulli(own, 0.4, shape)
            if component.endswith("_mask"):
                always = jax.random.randint(fold(own, 1), shape[:-1], 0, shape[-1])
                drawn = drawn | jax.nn.one_hot(always, shape[-1], dtype=bool)
            observation[component] = drawn
        elif leaf.type == "int":
            observation[component] = jax.random.randint(own, shape, 0, leaf.num_values)
        else:
            observation[component] = jax.random.normal(own, shape)
    return observation


DRAWS = 10_000


def acted(made: Learner):
    """Act on many random observations: the observation, and the greedy and the exploring actions."""
    spaces = made.algorithm.spaces
    observation = random_observation(spaces, DRAWS, jax.random.key(1))

    @jax.jit
    def both(key, observation):
        train = made.init(key, made.hyper())
        carry, noise = made.algorithm.initial_carry(DRAWS), made.algorithm.noise(fold(key, 9), DRAWS)
        first = jnp.ones(DRAWS, bool)
        acting = made.acting(train)
        greedy, exploring = (
            made.act(acting, observation, carry, first, noise, explore=explore) for explore in (False, True)
        )
        return greedy, exploring, [made.emit(action.action) for action in (greedy, exploring)]

    return observation, *jax.device_get(both(jax.random.key(0), observation))


class Masked:
    """All that making an agent needs of an environment: spaces, here with masks for all choices."""

    def __init__(self, kind: str) -> None:
        spaces = Countdown(kind=kind).spaces
        choices = [name for name, leaf in spaces.actions.components.items() if leaf.type == "int"]
        self.spaces = Spaces(spaces.states, spaces.actions, tuple(choices))


KINDS = ("int", "bool", "float", "discrete", "hybrid")


def served(everyday: tuple[str, ...]):
    """Every agent with every kind of space that it serves; all but some kinds are slow."""
    for name in NAMES:
        for kind in KINDS:
            if serves(name, Countdown(kind=kind).spaces):
                often = kind in everyday and name in [p for p in ONCE if isinstance(p, str)]
                yield pytest.param(name, kind, marks=() if often else pytest.mark.exhaustive)


@pytest.mark.parametrize(("name", "kind"), list(served(("discrete", "hybrid"))))
@pytest.mark.slow
def test_actions_have_the_shapes_and_types_of_the_space_and_obey_masks(name, kind):
    made = learner(name, Masked(kind), 2)
    leaves = made.algorithm.spaces.actions.components
    observation, greedy, exploring, (calm, wild) = acted(made)
    for action, emitted in ((greedy, calm), (exploring, wild)):
        assert set(action.action) == set(leaves)
        for component, x in action.action.items():
            leaf = leaves[component]
            assert (x.shape, x.dtype) == ((DRAWS, *leaf.shape), leaf.storage)
            if leaf.type == "int":
                mask = np.asarray(observation[f"{component}_mask"])
                assert np.take_along_axis(mask, x[..., None], -1).all()
            if leaf.type == "float":
                assert (emitted[component] >= leaf.low).all()
                assert (emitted[component] <= leaf.high).all()
        assert all(len(x) == DRAWS for x in jax.tree.leaves(action.extras))
    for component, leaf in leaves.items():  # exploring, everything that is allowed is done
        x = wild[component]
        if leaf.type == "float":
            assert x.std() > 2 * calm[component].std()
            continue
        free = x.reshape(-1)
        if leaf.type == "int":
            mask = np.asarray(observation[f"{component}_mask"])
            free = x[mask.all(-1)]
        shares = [np.mean(free == value) for value in range(leaf.num_values or 2)]
        assert min(shares) > 0.2, component
    example = made.block_shape(2)
    shapes = jax.tree.map(lambda x: (x.shape[2:], x.dtype), (example.action, example.extras))
    assert shapes == jax.tree.map(lambda x: (x.shape[1:], x.dtype), (exploring.action, exploring.extras))


@pytest.mark.parametrize("kind", KINDS)
def test_spaces_that_cannot_be_served_are_refused_with_what_to_use_instead(name, kind):
    spaces = Countdown(kind=kind).spaces
    if serves(name, spaces):
        return
    with pytest.raises(SpaceError) as error:
        learner(name, Countdown(kind=kind), 2)
    message = str(error.value)
    leaves = spaces.actions.components
    refused = next(k for k, leaf in leaves.items() if leaf.type not in AGENTS[name].actions)
    assert message.startswith(f"{name} ") or f" {name} " in message
    assert spaces.actions.single or repr(refused) in message
    assert repr(leaves[refused].type) in message
    others = [other for other in NAMES if serves(other, spaces)]
    assert any(other in message.partition("Use")[2] for other in others), message
    named = message.partition("agents: ")[2].removesuffix(" instead.")
    assert all(serves(other, spaces) for other in named.split(", ") if other), message


def test_states_named_like_masks_are_read_by_every_network(name):
    kind = next(kind for kind in KINDS if serves(name, Countdown(kind=kind).spaces))
    states = {"position": {"type": "float", "shape": (3,)}, "goal_mask": {"type": "bool", "shape": (2,)}}
    spaces = Spaces(Space(states, "state"), Countdown(kind=kind).spaces.actions)
    made = parse_agent(name, **small(name))
    for model in made.cls.create(made.config, spaces, 2).models.values():
        assert {"position", "goal_mask"} <= set(model.inputs)


@pytest.mark.parametrize("name", ["a2c", "acer", "ppo", "pqn", "trpo"])
def test_a_block_of_no_rows_changes_no_parameter(name):
    """Momentum would: it is there from the blocks before."""
    made = compiled(name, countdown(name), 2, **({"replay_ratio": 0} if name == "acer" else {}))
    train, world = made.begin(0)
    for _ in range(2):
        block, world = made.collect(train, world)
        train, _ = made.absorb(train, block)
    empty = block._replace(valid=jnp.zeros_like(block.valid))
    after, metrics = made.absorb(train, empty)
    assert differing(parameters(train.state), parameters(after.state)) == []
    assert metrics["update/skipped"] == 0


def test_metrics_are_finite_and_documented(agent):
    _, _, metrics = agent.run(0, BLOCKS)
    last = metrics[-1]
    assert set(last) <= set(METRICS)
    assert {"update/lr", "update/skipped", "update/grad_norm"} <= set(last)
    assert all(np.isfinite(x) for x in last.values()), last
    assert last["update/skipped"] == 0
    assert last["update/lr"] == pytest.approx(0.01)


def test_same_seed_gives_the_same_bits(agent):
    train, blocks, metrics = agent.run(3, BLOCKS)
    train_again, blocks_again, metrics_again = agent.run(3, BLOCKS)
    assert differing((train, blocks), (train_again, blocks_again)) == []
    assert repr(metrics) == repr(metrics_again)


def test_other_seeds_give_other_parameters_actions_and_data(agent):
    one, blocks_one, _ = agent.run(3, 2)
    two, blocks_two, _ = agent.run(4, 2)
    assert not equal(agent.begin(3)[0].state, agent.begin(4)[0].state)
    assert not equal(one.state, two.state)
    for field in ("observation", "action", "reward"):
        assert not equal([getattr(b, field) for b in blocks_one], [getattr(b, field) for b in blocks_two]), (
            field
        )


def test_actors_differ_from_one_another_in_actions_and_data(agent):
    _, blocks, _ = agent.run(5, BLOCKS)
    for get in (lambda b: b.action["action"], lambda b: b.observation["noise"][:-1], lambda b: b.reward):
        x = np.concatenate([np.asarray(get(b)) for b in blocks])
        assert all((x[:, i] != x[:, j]).any() for i in range(3) for j in range(i))


def test_absorbing_keeps_structure_shapes_and_types(agent):
    train, world = agent.begin(0)
    block, _ = agent.collect(train, world)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), block)
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), agent.learner.block_shape(agent.n))
    after, _ = agent.absorb(train, block)
    assert jax.tree.structure(after) == jax.tree.structure(train)
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(train), jax.tree.leaves(after), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype), path
        assert getattr(x, "weak_type", False) == getattr(y, "weak_type", False), path


@pytest.mark.parametrize("name", SOME)
def test_what_a_run_carries_is_of_32_bits_where_the_program_computes_in_64(name):
    probe = PROBES[probes_of(name)[-1]]()
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        made = learner(name, probe, 3)
        run = DeviceRun(made, probe, 3)
        key = jax.random.key(0)
        begun = jax.eval_shape(lambda key: (made.init(key, made.hyper()), run.begin(key)), key)
        run.packs = True  # as on accelerators
        after = jax.eval_shape(lambda train, world: run.iterate(train, world, jnp.int32(1), 2), *begun)
    for path, leaf in jax.tree_util.tree_leaves_with_path((begun, after)):
        assert leaf.dtype not in (jnp.float64, jnp.int64, jnp.uint64), path


def updating(agent, steps):
    """Tell which blocks make an update, by the environment steps after each: those that pass a multiple."""
    config = agent.learner.algorithm.config
    if not (hasattr(config, "train_every") or hasattr(config, "frequency")):
        return np.ones(len(steps), bool)
    every = config.train_every * agent.n if hasattr(config, "train_every") else config.batch_size
    passed = np.diff(steps // every, prepend=0) > 0
    return passed & (steps >= getattr(config, "initial_size", 0))


def test_counters_count_environment_steps_episodes_updates_and_rows(agent):
    train, blocks, _ = agent.run(6, BLOCKS)
    valid = np.concatenate([np.asarray(b.valid) for b in blocks])
    ended = np.concatenate([np.asarray(b.terminated | b.truncated) for b in blocks])
    rows = agent.learner.rows * BLOCKS
    assert valid.shape == (rows, 3)
    assert not valid.all()
    made = updating(agent, np.cumsum([int(b.valid.sum()) for b in blocks])).sum()
    assert 0 < made <= BLOCKS
    assert [int(x) for x in train.counters] == [valid.sum(), ended.sum(), made, rows]


@pytest.mark.exhaustive
def test_update_is_the_same_without_compilation(agent):
    train, blocks, _ = agent.run(7, BLOCKS)
    expected, metrics = agent.absorb(train, blocks[-1])
    with jax.disable_jit():
        found, metrics_found = absorb(agent.learner, train, blocks[-1])
    assert_close(expected, found)
    assert set(metrics) == set(metrics_found)
    for key, value in metrics.items():
        np.testing.assert_allclose(metrics_found[key], value, 1e-3, 1e-5, err_msg=key)


# Compilation


@contextlib.contextmanager
def compilations():
    """Collect the names of programs that are compiled meanwhile."""
    names: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text.startswith("Finished XLA compilation of"):
                names.append(text.split()[4])

    handler = Handler()
    logger = logging.getLogger("jax._src.dispatch")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        with jax.log_compiles():
            yield names
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def test_counter_of_compilations_counts():
    with compilations() as names:
        jax.jit(lambda x: x * 2 + 1)(jnp.ones(3))
    assert names


def test_second_call_compiles_nothing_nor_does_another_learning_rate(agent):
    engine = agent.engine(0)
    block = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), agent.learner.block_shape(agent.n))
    first = {k: x[0] for k, x in block.observation.items()}

    def once() -> None:
        for row in range(agent.learner.rows):
            engine.act(first, block.carry, np.zeros(agent.n, bool), engine.noise(row))
        engine.update(block)

    once()
    rates = [engine.scale_lr(0.5)]
    once()
    with compilations() as names:
        rates.append(engine.scale_lr(0.5))
        once()
        engine.metrics()
        once()
    assert names == []
    assert rates == [pytest.approx((0.01, 0.005)), pytest.approx((0.005, 0.0025))]
    assert engine.metrics()["update/lr"] == pytest.approx(0.0025)


def test_another_learning_rate_changes_the_update_without_compilation(agent):
    made = agent.learner
    other = made.hyper(made.algorithm.config.replace(lr=0.003))
    slow, _, _ = agent.run(1, BLOCKS)
    with compilations() as names:
        fast, _, metrics = agent.run(1, BLOCKS, other)
    assert names == []
    assert metrics[-1]["update/lr"] == pytest.approx(0.003)
    assert not equal(slow.state, fast.state)


def test_a_schedule_cannot_replace_a_number_in_a_running_agent_nor_the_reverse(agent):
    made = agent.learner
    config = made.algorithm.config
    with pytest.raises(SpecError, match="lr cannot become Schedule"):
        made.hyper(config.replace(lr="linear:0.1:0.01:100"))
    scheduled = learner(agent.name, countdown(agent.name), 3, lr="linear:0.1:0.01:100")
    assert scheduled.hyper(scheduled.algorithm.config).shape == made.hyper().shape
    with pytest.raises(SpecError, match=r"lr cannot become 0\.5"):
        scheduled.hyper(config.replace(lr=0.5))


@pytest.mark.exhaustive
def test_schedule_is_evaluated_at_the_true_step_and_scaled(name):
    agent = compiled(name, countdown(name), lr="linear:0.1:0.02:40")
    train, blocks, metrics = agent.run(0, BLOCKS)
    steps = np.cumsum([int(b.valid.sum()) for b in blocks])
    expected = 0.1 + (0.02 - 0.1) * np.minimum(steps / 40, 1)
    np.testing.assert_allclose([m["update/lr"] for m in metrics], expected, rtol=1e-5)
    assert steps[-1] > 40
    train, old, new = agent.learner.scaled_lr(train, 0.5)
    assert (old, new) == (pytest.approx(0.02), pytest.approx(0.01))
    _, after = agent.absorb(train, blocks[-1])
    assert float(after["update/lr"]) == pytest.approx(0.01)


def test_all_learning_rates_are_lowered_together():
    made = learner("sac", Countdown(kind="float"), 2, critic_lr=0.004, temperature_lr=0.002)
    train = jax.eval_shape(made.init, jax.random.key(0), made.hyper())._replace(hyper=made.hyper())
    after, old, new = made.scaled_lr(train, 0.5)
    assert (old, new) == (pytest.approx(0.01), pytest.approx(0.005))
    rates = {"lr": 0.005, "critic_lr": 0.002, "temperature_lr": 0.001}
    expected = {name: float(x) for name, x in zip(made.names, made.hyper(), strict=True)} | rates
    found = dict(zip(made.names, after.hyper, strict=True))
    assert {name: float(x) for name, x in found.items()} == pytest.approx(expected)


# Numbers that are not finite


def broken(block, where: str):
    """Put NaN into all of a block's rewards or float observations."""
    if where == "reward":
        return block._replace(reward=jnp.full_like(block.reward, jnp.nan))
    observation = {
        k: jnp.full_like(x, jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x
        for k, x in block.observation.items()
    }
    return block._replace(observation=observation)


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_broken_numbers_change_nothing_and_are_counted(agent, where):
    train, world = agent.begin(0)
    before, skipped, replays, steps = learned(train.state), 0.0, 0.0, []
    for _ in range(BLOCKS):
        block, world = agent.collect(train, world)
        train, metrics = agent.absorb(train, broken(block, where))
        skipped += float(metrics["update/skipped"])
        steps.append(int(train.counters.timesteps))
        replays += float(metrics.get("memory/replays", 0))  # steps whose number is drawn
    assert differing(learned(train.state), before) == []
    updates = updating(agent, np.array(steps)).sum()
    assert updates > 0
    assert skipped == updates * SMALL[agent.name].steps + replays


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_one_broken_number_spoils_no_parameter(agent, where):
    train, blocks, _ = agent.run(2, BLOCKS)
    block = blocks[-1]
    if where == "reward":
        block = block._replace(reward=block.reward.at[0, 1].set(jnp.nan))
    else:
        noise = block.observation["noise"].at[0, 1, 0].set(jnp.nan)
        block = block._replace(observation={**block.observation, "noise": noise})
    total = 0.0
    for _ in range(8):
        train, metrics = agent.absorb(train, block)
        total += float(metrics["update/skipped"])
    assert total > 0
    for path, x in jax.tree_util.tree_leaves_with_path(train.state):
        assert np.isfinite(np.asarray(x)).all(), path


@pytest.mark.exhaustive
@pytest.mark.parametrize("where", ["reward", "observation"])
def test_broken_numbers_do_not_spoil_running_statistics(name, where):
    """After the broken block has gone an agent that normalises learns on."""
    known = options(type(parse_agent(name).config))
    chosen = {k: True for k in ("normalize_observations", "normalize_rewards") if k in known}
    agent = compiled(name, countdown(name), **chosen)
    train, blocks, _ = agent.run(2, BLOCKS)
    train, _ = agent.absorb(train, broken(blocks[-1], where))
    if train.memory != ():
        train = train._replace(memory=agent.begin(0)[0].memory)
    before = train
    for block in blocks[:4]:
        train, metrics = agent.absorb(train, block)
        assert float(metrics["update/skipped"]) == 0
    assert not equal(parameters(before.state), parameters(train.state))
    for path, x in jax.tree_util.tree_leaves_with_path(train.state):
        assert np.isfinite(np.asarray(x)).all(), path


# Options mapped over


@pytest.mark.exhaustive
@pytest.mark.parametrize("mapped", [True, False])
def test_population_of_three_learning_rates_equals_three_runs(name, mapped):
    env, blocks, rates = countdown(name), 10, (0.01, 0.003, 0.0)
    agent = compiled(name, env)
    made = agent.learner
    hyper = jnp.stack([made.hyper(made.algorithm.config.replace(lr=lr)) for lr in rates])
    keys = jax.vmap(jax.random.key)(jnp.array([4, 4, 5]))
    population = MultiSeedRunner(made, env, 3, keys, hyper, mapped=mapped)
    finished = population.advance(blocks)
    found = [population.drivers[i].metrics()["update/lr"] for i in range(3)]
    np.testing.assert_allclose(found, rates, rtol=1e-5)
    for i, (seed, row) in enumerate(zip((4, 4, 5), hyper, strict=True)):
        single, collected, _ = agent.run(seed, blocks, row)
        assert_close(population.drivers[i].train, single, rtol=1e-3, atol=1e-4)
        assert len(finished[i]) == sum(int((b.terminated | b.truncated).sum()) for b in collected)
    states = [parameters(population.drivers[i].train.state) for i in range(3)]
    assert not equal(states[0], states[1])
    first = parameters(agent.begin(5)[0].state)
    rated = first.keys() - set(SMALL[name].rateless)
    assert all(equal(states[2][network], first[network]) for network in rated)


# Recurrent networks


@pytest.mark.parametrize("name", NAMES)
def test_recurrent_state_starts_anew_with_each_episode(name):
    env = countdown(name)
    made = learner(name, env, 3, **networks(name, RECURRENT))
    start = made.algorithm.initial_carry(3)
    old = jax.tree.map(lambda x: x + 1.0, start)
    first = jnp.array([True, False, True])

    @jax.jit
    def carries(key, observation):
        train, noise = made.init(key, made.hyper()), made.algorithm.noise(fold(key, 1), 3)
        acting = made.acting(train)
        return [made.act(acting, observation, c, first, noise, explore=True).carry for c in (old, start)]

    one, two = carries(jax.random.key(0), random_observation(env.spaces, 3, jax.random.key(1)))
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert np.isclose(x, y).all(axis=1).tolist() == [True, False, True]


# Agents that explore by a share of random actions, and that have a target network


def having(option: str):
    """The agents that have an option, to parametrise with."""
    found = []
    for entry in ONCE:
        name = entry if isinstance(entry, str) else entry.values[0]
        if option in options(type(parse_agent(name).config)):
            found.append(entry)
    return found


@pytest.mark.parametrize("name", having("epsilon_decay_steps"))
def test_exploration_rate_is_one_while_the_memory_fills_and_then_falls_linearly(name):
    """From 1 to 0.02 over 60 steps, with a memory after the first 12: at 42 steps 1 - 0.98 * 30 / 60 =
    0.51."""
    agent = compiled(name, Countdown())
    start = small(name).get("buffer_initial_size", 0)
    _, blocks, metrics = agent.run(0, 24)
    steps = np.cumsum([int(b.valid.sum()) for b in blocks])
    expected = np.where(steps < start, 1.0, 1.0 - 0.98 * np.clip((steps - start) / 60, 0, 1))
    np.testing.assert_allclose([m["explore/epsilon"] for m in metrics], expected, rtol=1e-5)
    assert steps[-1] > 72
    learning = [np.isfinite(m["loss/td"]) for m in metrics]
    assert learning == updating(agent, steps).tolist()


@pytest.mark.parametrize("name", having("epsilon_decay_steps"))
def test_share_of_random_actions_is_the_exploration_rate(name):
    """At 0.3 a random action of 3 differs from the best in 2 of 3 cases: a share of 0.2."""
    made = learner(name, Countdown(), 2, epsilon_start=0.3, epsilon_end=0.3)
    observation = random_observation(made.algorithm.spaces, DRAWS, jax.random.key(1))

    @jax.jit
    def both(key, observation, steps):
        train = made.init(key, made.hyper())
        acting = made.acting(train._replace(counters=train.counters._replace(timesteps=steps)))
        noise = made.algorithm.noise(fold(key, 9), DRAWS)
        first = jnp.ones(DRAWS, bool)
        return [
            made.act(acting, observation, (), first, noise, explore=explore).action["action"]
            for explore in (False, True)
        ]

    first_share = 2 / 3 if small(name).get("buffer_initial_size") else 0.2
    for steps, share in ((0, first_share), (12, 0.2), (1000, 0.2)):
        greedy, exploring = both(jax.random.key(0), observation, jnp.uint32(steps))
        # three standard deviations of a share of 10 000 are 0.014
        assert np.mean(np.asarray(greedy != exploring)) == pytest.approx(share, abs=0.014)


def test_which_random_action_is_taken_does_not_depend_on_the_coin():
    algorithm = learner("dqn", Countdown(kind="discrete"), 2).algorithm
    coin, draws = jax.device_get(jax.jit(algorithm.noise, static_argnums=1)(jax.random.key(3), 20_000))
    flat = {name: x.argmax(-1).reshape(20_000, -1) for name, x in draws.items()}
    gear, brake = flat["hand/gear"], flat["brake"][:, 0]
    for rows in (coin < 0.1, coin > 0.9, brake == 1):
        for column in gear.T:
            # four standard deviations of a share of 2,000 are 0.042
            np.testing.assert_allclose(np.bincount(column[rows], minlength=3) / rows.sum(), 1 / 3, atol=0.042)
    assert np.mean(brake[coin < 0.1]) == pytest.approx(0.5, abs=0.045)
    assert np.mean(gear[:, 0] == gear[:, 1]) == pytest.approx(1 / 3, abs=0.014)


@pytest.mark.parametrize("name", having("target_sync_steps"))
def test_target_is_copied_whenever_the_actors_together_pass_a_multiple(name):
    agent = compiled(name, Countdown())
    train, world = agent.begin(1)
    target, passed, copies = train.state.target, 0, 0
    for _ in range(24):
        block, world = agent.collect(train, world)
        train, _ = agent.absorb(train, block)
        now = int(train.counters.timesteps) // 20
        if now > passed:
            target, passed, copies = train.state.variables["params"], now, copies + 1
        assert equal(train.state.target, target)
    assert copies >= 3
    assert not equal(train.state.variables["params"], agent.begin(1)[0].state.variables["params"])
