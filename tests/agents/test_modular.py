"""The modular agent: when it updates, on what, and that its settings are the algorithms that they are said
to be."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.plain_networks import PLAIN, plan
from tests.small_agents import MODEL, RECURRENT, Countdown, compile_agent, compiled, interact, learner

from operant import Agent
from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import Learner
from operant.agents.base.protocol import Counters
from operant.agents.base.update_counter import UpdateCount
from operant.agents.modular_parts import exploration, gradient_steps, objectives
from operant.agents.modular_parts.batch import BatchPreparation
from operant.agents.modular_parts.objectives import Rows, View
from operant.agents.modular_parts.sizes import block_rows, recent_rows
from operant.envs.native import ids as native_ids
from operant.errors import SpaceError, SpecError
from operant.ops import optimise
from operant.spec.spaces import Spaces
from operant.training.drivers.device_driver import DeviceDriver
from operant.training.episodes import RollingScore
from operant.types import Rollout

STATES = {"type": "float", "shape": (2,)}
ACTIONS = {"type": "int", "num_values": 2}


def live(agent: Agent, lengths: list[int], terminal: int = 1) -> list[int]:
    """Live through episodes of some lengths; return what `observe` returned."""
    made = []
    for length in lengths:
        for i in range(length):
            agent.act(states=np.array([i, 1.0]))
            made.append(agent.observe(reward=1.0, terminal=terminal if i == length - 1 else 0))
    return made


def small(**options) -> Agent:
    return Agent.create(states=STATES, actions=ACTIONS, model=MODEL, **options)


# When


@pytest.mark.slow
def test_update_by_episodes_comes_with_the_last_observe_of_the_last_of_them():
    agent = small(update={"unit": "episodes", "batch_size": 2}, horizon=None, max_episode_timesteps=5)
    made = live(agent, [3, 2, 5, 1, 4, 2])
    ends = np.cumsum([3, 2, 5, 1, 4, 2])
    assert np.flatnonzero(made).tolist() == [ends[1] - 1, ends[3] - 1, ends[5] - 1]
    assert (sum(made), agent.updates, agent.episodes, agent.timesteps) == (3, 3, 6, 17)


def test_frequency_and_start_by_episodes():
    update = {"unit": "episodes", "batch_size": 2, "frequency": 1, "start": 3}
    agent = small(update=update, horizon=None, max_episode_timesteps=5)
    made = live(agent, [2, 2, 2, 2, 2])
    assert np.flatnonzero(made).tolist() == [5, 7, 9]


@pytest.mark.slow
def test_an_update_that_is_not_due_leaves_the_next_one_as_far_away():
    agent = small(update={"unit": "episodes", "batch_size": 2}, horizon=None, max_episode_timesteps=5)
    live(agent, [3])
    assert agent.update() == 1 == agent.updates
    made = live(agent, [3, 2, 4])
    assert np.flatnonzero(made).tolist() == [4] and agent.updates == 2


@pytest.mark.slow
def test_update_by_timesteps_comes_with_every_multiple_of_steps():
    """It comes with a block of 4 rows, of which some only hold an episode's last observation.

    The 4th row is known once the observation after it is.
    """
    agent = small(update=4, horizon=1)
    made = live(agent, [20])
    assert agent.updates == 5 and sum(made) == 5  # 20 steps, and the end of the episode
    agent = small(update=4, horizon=1)
    live(agent, [3, 3, 3])  # 12 rows, of which nothing follows the last yet: 3, 6 and 9 steps
    assert agent.updates == 1
    agent.act(states=np.zeros(2))
    assert agent.updates == 2


@pytest.mark.slow
def test_targets_rest_where_there_is_no_row_to_learn_from():
    """An episode's last observation is a row, too: with one row per update it brings nothing."""
    made = compile_agent(
        "modular", Countdown(), 1, objective="action_value", baseline_model=None, batch_size=1, horizon=1,
        target_update_weight=0.5, target_sync_frequency=1,
    )  # fmt: skip
    train, world = made.begin(0)
    seen = []
    for _ in range(8):
        block, world = made.collect(train, world)
        before, (train, _) = train.state, made.absorb(train, block)
        counts = bool(block.valid.any())
        seen.append(counts)
        assert int(train.state.update_count.made - before.update_count.made) == counts
        assert any(np.any(x != before.target[k]) for k, x in train.state.target.items()) == counts
    assert {*seen} == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"gradient": "evolutionary", "evolutionary_samples": 2},
        {"baseline_model": MODEL, "baseline_optimizer": "sgd"},
    ],
)
def test_noise_and_samples_are_drawn_by_keys_of_every_implementation(options):
    """Of a key that is not of the default kind, such as one of a run that was begun where another kind
    was."""
    dropout = [*MODEL, {"type": "dropout", "rate": 0.5}]
    made = compile_agent(
        "modular", Countdown(), 2, **{"model": dropout, "subsampling_fraction": 0.5, **options}
    )
    for impl in ("threefry2x32", "rbg"):
        train, world = made.start(jax.random.key(0, impl=impl), made.learner.hyper())
        while not train.counters.updates:
            block, world = made.collect(train, world)
            train, metrics = made.absorb(train, block)
        assert metrics["update/skipped"] == 0 and metrics["update/grad_norm"] > 0


@pytest.mark.slow
def test_a_replay_memory_that_is_younger_than_the_run_fills_before_one_learns_from_it():
    """A run may go on without its memory. Blocks are of 18 rows; updates start at 72."""
    agent = compiled("modular", Countdown(), memory="replay", horizon=1, start=72)
    finite = [
        np.isfinite(metrics["loss/policy"]) for metrics in agent.run(0, 6, rows=1000, timesteps=3000)[2]
    ]
    assert finite == [False] * 3 + [True] * 3


@pytest.mark.slow
def test_frequency_zero_never_updates():
    agent = small(update={"unit": "timesteps", "batch_size": 4, "frequency": "never"}, horizon=1)
    assert sum(live(agent, [20])) == 0 and agent.updates == 0


@pytest.mark.parametrize(
    ("options", "actors", "rows"),
    [
        ({"batch_size": 64}, 1, 64),
        ({"batch_size": 64}, 8, 8),
        ({"batch_size": 20}, 8, 1),
        ({"batch_size": 64, "frequency": 0.25}, 4, 4),
        ({"batch_size": 64, "frequency": {"type": "linear", "start": 8, "end": 64, "steps": 100}}, 8, 1),
        ({"batch_size": 64, "unit": "episodes"}, 8, 1),
    ],
)
def test_blocks_are_as_long_as_updates_are_apart(options, actors, rows):
    assert block_rows(parse_agent("modular", **options).config, actors) == rows


@pytest.mark.parametrize(
    ("options", "actors", "rows"),
    [
        ({"batch_size": 64, "horizon": 20}, 1, 2 * (64 + 64) + 20),
        ({"batch_size": 64, "horizon": 20, "baseline": "auto"}, 8, 2 * 2 * (8 + 8)),
        ({"batch_size": 64, "horizon": None, "episode_limit": 10}, 8, 2 * 2 * (8 + 8) + 11),
        ({"batch_size": 10, "unit": "episodes", "episode_limit": 500}, 1, 11 * 501),
        ({"batch_size": 10, "unit": "episodes", "episode_limit": 500}, 8, 4 * 501),
        ({"batch_size": 4, "horizon": 3}, 8, 2 * 2 * (1 + 1) + 3),
        (
            {"batch_size": 64, "horizon": {"type": "linear", "start": 5, "end": 30, "steps": 9}},
            1,
            2 * (64 + 64) + 30,
        ),
        ({"batch_size": 64, "horizon": 20, "capacity": 200}, 2, 100),
    ],
)
def test_memory_has_room_for_a_batch(options, actors, rows):
    config = parse_agent("modular", **options).config
    assert recent_rows(config, actors, block_rows(config, actors)) == rows


def test_what_cannot_be_sized_is_refused():
    with pytest.raises(SpecError, match=r"unit='episodes' needs to know how long.*max_episode_timesteps"):
        small(update={"unit": "episodes", "batch_size": 2})
    with pytest.raises(SpecError, match=r"horizon=None without predicted values needs to know"):
        small(update=32, horizon=None)
    with pytest.raises(
        SpecError, match=r"capacity must be at least 52, for batch_size=32 timesteps of 1 actor"
    ):
        small(update=32, horizon=20, capacity=40)
    with pytest.raises(SpaceError, match=r"modular with objective='action_value' supports .* Use one of"):
        Agent.create(states=STATES, actions={"type": "float"}, objective="action_value")


# On what


def test_only_rows_that_count_take_part_whatever_their_number():
    """The gradient of chunks of a long batch equals that of its rows alone; other rows may even be NaN."""
    rows = np.arange(3000, dtype=np.float32)
    counts = np.zeros(3000, bool)
    counts[::7] = True
    rows[~counts] = np.nan
    optimizer = optimise.optimizer("sgd", 0.1)

    def loss(params, frozen, row):
        each = params["a"] * row
        return each, {"row": row}

    params = {"a": jnp.ones(())}
    key = jax.random.key(0)
    state = optimizer.init(params)
    moved, _, watched = jax.jit(
        lambda: gradient_steps.fit(
            loss,
            params,
            state,
            optimizer,
            jnp.asarray(rows),
            jnp.asarray(counts),
            plan(multi_step=2),
            key,
            PLAIN,
        )
    )()
    mean = rows[counts].mean()
    assert float(watched["row"]) == pytest.approx(mean, rel=1e-5)
    assert float(moved["a"]) == pytest.approx(1 - 2 * 0.1 * mean, rel=1e-5)
    assert float(watched["update/skipped"]) == 0


@pytest.mark.parametrize(("fraction", "size"), [(0.25, 100), (0.001, 1), (37, 37), (5000, 400)])
def test_a_sample_has_so_many_rows_and_another_each_step(fraction, size):
    counts = np.zeros(1500, bool)
    counts[np.random.default_rng(0).permutation(1500)[:400]] = True
    params, optimizer = {"a": jnp.zeros(1500)}, optimise.optimizer("sgd", 1.0)

    def loss(params, frozen, row):
        return params["a"][row] * 1.0, {}

    def fit(number):
        key = jax.random.key(3)
        moved = gradient_steps.fit(
            loss, params, optimizer.init(params), optimizer, jnp.arange(1500), jnp.asarray(counts),
            plan(subsampling_fraction=fraction).with_values({"multi_step": number}), key, PLAIN,
        )[0]  # fmt: skip
        return -moved["a"]

    one, two = (np.asarray(jax.jit(fit)(number)) for number in (1, 2))
    assert np.count_nonzero(one) == size
    np.testing.assert_allclose(one[one > 0], 1 / size, rtol=1e-4)
    assert not (one > 0)[~counts].any()
    if size < 400:
        assert ((two - one) > 0).sum() == size and not ((two - one) > 0)[one > 0].all()


def test_l2_is_a_share_of_the_parameters():
    params, optimizer = {"a": jnp.asarray(3.0)}, optimise.optimizer("sgd", 0.1)
    key = jax.random.key(0)

    def loss(params, frozen, row):
        return params["a"] * row, {}

    moved = gradient_steps.fit(
        loss,
        params,
        optimizer.init(params),
        optimizer,
        jnp.ones(2),
        jnp.ones(2, bool),
        plan(l2_regularization=0.5),
        key,
        PLAIN,
    )[0]
    assert float(moved["a"]) == pytest.approx(3 - 0.1 * (1 + 2 * 0.5 * 3))


# As what


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [MODEL, pytest.param(RECURRENT, marks=pytest.mark.exhaustive)], ids=["feed-forward", "recurrent"]
)
def test_one_step_per_block_with_a_shared_baseline_is_the_actor_critic_of_blocks(model):
    """The same gradient as a2c: 3 actors, 6 rows, bootstrapped returns, one shared network.

    A memory of one block: with rows
    before it, recurrent states would be brought up from those with the parameters as they are, where a2c
    takes those stored."""
    env = Countdown()
    other = compile_agent(
        "a2c", env, n_steps=6, entropy_coef=0.02, value_loss_coef=0.5, grad_norm=None, lr=0.01, gamma=0.9,
        model=model, separate=False,
    )  # fmt: skip
    made = compile_agent(
        "modular",
        env,
        batch_size=18,
        capacity=18,
        horizon=None,
        baseline_model="shared",
        baseline_weight=0.5,
        entropy_regularization=0.02,
        lr=0.01,
        gamma=0.9,
        model=model,
    )
    train, world = other.begin(0)
    mine, _ = made.begin(0)
    mine = mine._replace(state=mine.state._replace(variables=train.state.variables))
    for _ in range(3):
        block, world = other.collect(train, world)
        train, metrics = other.absorb(train, block)
        kept = {"carry": {"model": jax.tree.map(lambda x: jnp.stack([x] * 6), block.carry)}}
        mine = mine._replace(state=made.learner.algorithm.force_update(mine.state))  # of fewer than 18 steps
        mine, watched = made.absorb(mine, block._replace(extras=kept if model == RECURRENT else ()))
        for name in ("loss/policy", "loss/value", "policy/entropy", "update/grad_norm"):
            np.testing.assert_allclose(watched[name], metrics[name], rtol=2e-4, atol=1e-6, err_msg=name)
    for name, x in train.state.variables["params"].items():
        np.testing.assert_allclose(
            mine.state.variables["params"][name], x, rtol=2e-3, atol=2e-5, err_msg=name
        )


@pytest.mark.slow
def test_temperature_scales_what_every_policy_of_floats_draws():
    for distribution in ("clip", "squash", "beta"):
        drawn = []
        for temperature in (0.0, 0.5, 1.0):
            made = learner(
                "modular", Countdown(kind="float"), 4, temperature=temperature, distribution=distribution
            )
            components = made.algorithm.spaces.observation_components
            seen = {k: jnp.zeros((4, *v.shape), v.dtype) for k, v in components.items()}
            acting = made.algorithm.acting(made.algorithm.init(jax.random.key(0)), None)
            noise = made.algorithm.noise(jax.random.key(1), 4)
            act = functools.partial(made.algorithm.act, acting, seen, (), noise)
            calm, wild = (next(iter(act(explore).action.values())) for explore in (False, True))
            drawn.append(np.abs(wild - calm))
        assert not drawn[0].any() and (drawn[1] < drawn[2]).all(), distribution


@pytest.mark.slow
def test_exploration_replaces_elements_of_choices_and_adds_to_floats():
    n = 20_000
    made = learner("modular", Countdown(kind="hybrid"), n, exploration=0.3, temperature=0.0)
    observation = {
        k: jnp.zeros((n, *v.shape), v.dtype) for k, v in made.algorithm.spaces.observation_components.items()
    }

    @jax.jit
    def both(key):
        acting = made.algorithm.acting(made.algorithm.init(key), None)
        noise = made.algorithm.noise(key, n)
        return [
            made.algorithm.act(acting, observation, (), noise, explore).action for explore in (False, True)
        ]

    calm, wild = both(jax.random.key(0))
    other = wild["hand/gear"] != calm["hand/gear"]
    # a random one of 3 values differs in 2 of 3 cases: 0.2; both elements: 0.04
    assert np.mean(other) == pytest.approx(0.2, abs=0.01)
    assert np.mean(other.all(axis=1)) == pytest.approx(0.04, abs=0.006)
    assert np.mean(wild["brake"] != calm["brake"]) == pytest.approx(0.15, abs=0.01)
    assert np.std(wild["foot"] - calm["foot"]) == pytest.approx(0.3, rel=0.03)


@pytest.mark.exhaustive
def test_action_values_are_learned_without_exploration_too():
    """The drivers scan over the rows of the randomness: there must be one for every row."""
    agent = compiled("modular", Countdown(), objective="action_value", baseline_model=None)
    _, _, metrics = agent.run(0, 2)
    assert np.isfinite(metrics[-1]["loss/td"])


@pytest.mark.slow
def test_variable_noise_changes_actions_only_while_exploring():
    env, n = Countdown(kind="float"), 4
    made = learner("modular", env, n, variable_noise=0.5, temperature=0.0)
    observation = {k: jnp.ones((n, *v.shape), v.dtype) for k, v in env.spaces.observation_components.items()}
    state = made.algorithm.init(jax.random.key(0))
    zero = made.init(jax.random.key(0), made.hyper()).counters
    found = []
    for rows in (0, 1):
        acting = made.algorithm.acting(state, zero._replace(rows=jnp.uint32(rows)))
        noise = made.algorithm.noise(jax.random.key(1), n)
        found += [
            made.algorithm.act(acting, observation, (), noise, e).action["action"] for e in (False, True)
        ]
    calm, wild, calm_later, wild_later = map(np.asarray, found)
    np.testing.assert_array_equal(calm, calm_later)
    assert (calm != wild).any() and (wild != wild_later).any()


def test_variable_noise_does_not_depend_on_the_order_of_parameters():
    """Compiled functions sort the names of a dict."""
    params = {"b": jnp.zeros(3), "a": jnp.zeros(3)}
    compiled_noise = jax.jit(exploration.perturbed)(params, jax.random.key(0), 1.0)
    for name, x in exploration.perturbed(params, jax.random.key(0), 1.0).items():
        np.testing.assert_allclose(x, compiled_noise[name], rtol=1e-5, err_msg=name)


# By hand


class Told(objectives.ActionValue):
    """Networks whose values are the parameters themselves."""

    def q_values(self, params, frozen, view):
        return params


def told(actions, **options):
    spaces = Spaces.read(states=STATES, actions=actions)
    config = parse_agent("modular", objective="action_value", baseline_model=None, **options).config
    return Told(config, spaces, {})


def test_with_double_the_online_network_chooses_and_the_target_judges():
    online, target = {"action": jnp.array([[1.0, 3.0, 2.0]])}, {"action": jnp.array([[10.0, 20.0, 30.0]])}
    action = {"type": "int", "num_values": 3}
    mask = {"action_mask": jnp.array([[True, False, True]])}
    for double, seen, expected in ((True, {}, 20.0), (False, {}, 30.0), (True, mask, 30.0)):
        values = told(action, double=double).values({"model": online}, target, {}, View(seen))
        np.testing.assert_array_equal(values, [[expected]])
    online = {"action": jnp.array([[3.0, 9.0, 2.0]])}
    assert told(action, double=True).values({"model": online}, target, {}, View(mask)) == 10.0


def test_the_loss_of_action_values_is_the_mean_over_elements():
    """Values taken 1, 5 and 0 with targets 2, 2 and 2: (1 + 9 + 4) / 3."""
    objective = told(
        {"gear": {"type": "int", "shape": (2,), "num_values": 2}, "brake": {"type": "bool", "shape": ()}}
    )
    q = {"gear": jnp.array([[[1.0, 7.0], [7.0, 5.0]]]), "brake": jnp.array([[7.0, 0.0]])}
    action = {"gear": jnp.array([[0, 1]]), "brake": jnp.array([True])}
    rows = Rows(View({}), action, jnp.zeros(1), jnp.full((1, 3), 2.0), jnp.zeros(1))
    loss, metrics = objective.loss({"model": q}, {}, rows)
    np.testing.assert_allclose([loss, metrics["loss/td"]], [[14 / 3], [14 / 3]], rtol=1e-6)
    assert metrics["value/mean"] == 2.0


class Certain(objectives.PolicyGradient):
    """A network whose outputs are the parameters themselves."""

    def outputs(self, params, frozen, view):
        return params


@pytest.mark.parametrize(
    ("options", "losses", "slopes"),
    [
        # probabilities 1/4 and 3/4; the first is taken, at which it was 1/8, then the second, at which it was
        # 1
        ({"importance_sampling": True}, [-2 * 3.0, 0.75 * 5.0], [-2 * 3.0 * 0.75, -0.75 * 5.0 * 0.75]),
        ({"clipping_value": 0.5}, [-1.5 * 3.0, 0.75 * 5.0], [0.0, -0.75 * 5.0 * 0.75]),
        ({}, [3.0 * np.log(4.0), -5.0 * np.log(4 / 3)], [-3.0 * 0.75, -5.0 * 0.75]),
    ],
    ids=["ratio", "clipped", "plain"],
)
def test_the_loss_of_a_policy_by_hand(options, losses, slopes):
    """Advantages 3 and -5.

    The slope in the logit of the first action is -ρ A (1 - p) where it is taken, ρ A p where not.
    """
    config = parse_agent("modular", entropy_regularization=0.0, baseline_model=None, **options).config
    objective = Certain(config, Spaces.read(states=STATES, actions=ACTIONS), {})
    logits = {"action/logits": jnp.broadcast_to(jnp.log(jnp.array([0.25, 0.75])), (2, 2))}
    old = jnp.log(jnp.array([0.125, 1.0])) if options else jnp.zeros(2)
    action, advantage = {"action": jnp.array([0, 1])}, jnp.array([3.0, -5.0])
    rows = Rows(View({}), action, old, jnp.zeros((2, 1)), advantage)
    each, _ = objective.loss(logits, {}, rows)
    np.testing.assert_allclose(each, losses, rtol=1e-5)
    grad = jax.grad(lambda x: objective.loss(x, {}, rows)[0].sum())(logits)["action/logits"]
    np.testing.assert_allclose(grad[0], [slopes[0], -slopes[0]], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grad[1, 0], -5.0 * 0.25 * (0.75 if options else 1.0), rtol=1e-5)


def test_a_baseline_with_an_optimizer_of_its_own_shares_its_numbers_but_for_the_rate():
    """Decays 1/2 and 3/4, ε = 0.1, norm 1, rate 0.2. A gradient of 5 is cut to 1: 0.2 / 1.1.

    Then none: the mean 1/4 over 1 - 1/4, the mean square 3/16 over 1 - 9/16: 0.2 (1/3) / (√(3/7) + 0.1).
    """
    options = {"baseline_model": MODEL, "baseline_optimizer": "adam", "baseline_lr": 0.2, "optimizer": "sgd"}
    numbers = {"lr": 0.5, "beta1": 0.5, "beta2": 0.75, "opt_epsilon": 0.1, "grad_norm": 1.0}
    shared, own = learner("modular", Countdown(), 1, **options, **numbers).algorithm._optimizers()
    start, gradient = {"x": jnp.zeros(1)}, {"x": jnp.full(1, 5.0)}
    one, state, _ = optimise.apply(own, start, own.init(start), gradient)
    np.testing.assert_allclose(one["x"], [-0.2 / 1.1], rtol=1e-6)
    two, _, _ = optimise.apply(own, one, state, {"x": jnp.zeros(1)})
    np.testing.assert_allclose(two["x"] - one["x"], [-0.2 / 3 / (np.sqrt(3 / 7) + 0.1)], rtol=1e-5)
    np.testing.assert_allclose(optimise.apply(shared, start, shared.init(start), gradient)[0]["x"], [-0.5])
    # One with defaults of its own keeps them: √0.1 of the gradient, and ε = 1e-7.
    numbers |= {"baseline_optimizer": "rmsprop"}
    _, own = learner("modular", Countdown(), 1, **{**options, **numbers}).algorithm._optimizers()
    one, _, _ = optimise.apply(own, start, own.init(start), gradient)
    np.testing.assert_allclose(one["x"], [-0.2 / np.sqrt(0.1)], rtol=1e-5)


@pytest.mark.slow
def test_a_baseline_on_the_policys_network_may_have_steps_of_its_own():
    """With a tiny rate of the policy's, the value learns by its own optimizer, which leaves the policy's head
    alone and moves the layers below."""
    one = compile_agent(
        "modular", Countdown(), baseline_model="shared", baseline_optimizer="sgd", lr=1e-9,
        baseline_lr=0.05, baseline_multi_step=5,
    )  # fmt: skip
    train, world = one.begin(0)
    block, _ = one.collect(train, world)
    losses, start = [], train.state.variables["params"]
    for _ in range(6):  # the same rows again
        train = train._replace(state=one.learner.algorithm.force_update(train.state))
        train, metrics = one.absorb(train, block)
        losses.append(float(metrics["loss/value"]))
    assert losses[-1] < 0.5 * losses[0]
    moved = {
        name: float(np.abs(x - start[name]).max()) for name, x in train.state.variables["params"].items()
    }
    heads = {name: x for name, x in moved.items() if name.startswith("head.")}
    assert all((x > 1e-3) == ("value" in name) for name, x in heads.items()), heads
    assert moved["body.dense0/kernel"] > 1e-3


def test_targets_move_with_every_so_manieth_update():
    options = {"objective": "action_value", "baseline_model": None, "target_update_weight": 0.5}
    algorithm = learner("modular", Countdown(), 1, **options, target_sync_frequency=3).algorithm
    shapes = jax.eval_shape(algorithm.init, jax.random.key(0))
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    ahead = state._replace(target=jax.tree.map(lambda x: x + np.float32(2.0), state.target))
    follow = jax.jit(algorithm._follow)
    for number in range(1, 8):
        for there in (True, False):
            after = follow(ahead._replace(update_count=UpdateCount(np.uint32(number), np.False_)), there)
            expected = 1.0 if there and number in (3, 6) else 2.0
            assert all((x == expected).all() for x in after.target.values())


def test_a_baseline_is_subtracted_from_replayed_returns_too(monkeypatch):
    """State t is worth 10 t; rewards are 1 and γ is 1/2: A = 1 + 10 (t + 1) / 2 - 10 t.

    Row 2 terminates: 1 - 20.
    """
    monkeypatch.setattr(BatchPreparation, "values", lambda self, view: 10.0 * view.observation["state"])
    spaces = Spaces.read(states={"type": "float", "shape": (1,)}, actions=ACTIONS)
    options = {"memory": "replay", "horizon": 1, "gamma": 0.5, "batch_size": 32}
    definition = parse_agent("modular", **options, model=MODEL, baseline_model=MODEL)
    algorithm = definition.cls.create(definition.config, spaces, 1)
    empty = algorithm.memory.init(Learner(algorithm).example())
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), state)
    row = np.arange(6)[:, None]
    block = Rollout(
        {"state": np.arange(7, dtype=np.float32)[:, None, None]}, {"action": np.zeros((6, 1), np.int32)},
        np.ones((6, 1), np.float32), row == 2, row < 0, row != 3, (), (),
    )  # fmt: skip

    @jax.jit
    def replayed(key):
        return algorithm.prepared(state)._replayed(algorithm.memory.add(empty, block), key)

    rows, counts = replayed(jax.random.key(1))
    t = np.asarray(rows.view.observation["state"])[:, 0]
    assert counts.all() and set(t) == {0, 1, 2, 4}
    target = np.where(t == 2, 1.0, 1.0 + 5.0 * (t + 1))
    np.testing.assert_allclose(rows.target[:, 0], target)
    np.testing.assert_allclose(rows.advantage, target - 10.0 * t)


# Independent draws


def test_random_values_obey_masks_and_no_draw_depends_on_another():
    n = 20_000
    spaces = Spaces.read(
        states={"x": {"type": "float"}, "a_mask": {"type": "bool", "shape": (3,)}},
        actions={
            "a": {"type": "int", "num_values": 3},
            "b": {"type": "int", "num_values": 3},
            "f": {"type": "float"},
        },
    )

    @jax.jit
    def explored(key):
        masks = {"a": jnp.broadcast_to(jnp.array([False, True, True]), (n, 3))}
        greedy = {"a": jnp.ones(n, jnp.int32), "b": jnp.zeros(n, jnp.int32), "f": jnp.zeros(n)}
        noise = exploration.noise(key, spaces, n)
        return [exploration.deviate(greedy, noise, amount, masks) for amount in (1.0, 0.3)]

    always, often = jax.device_get(explored(jax.random.key(3)))
    assert not np.any(always["a"] == 0)
    for a in (1, 2):
        for b in range(3):
            both = (always["a"] == a) & (always["b"] == b)
            assert np.mean(both) == pytest.approx(1 / 6, abs=0.015)
            assert np.mean(always["f"][both]) == pytest.approx(0.0, abs=0.1)
    shares = [np.mean(often[name] == value) for name, value in (("a", 2), ("b", 1), ("b", 2))]
    np.testing.assert_allclose(shares, [0.15, 0.1, 0.1], atol=0.012)
    assert np.mean((often["a"] == 2) & (often["b"] > 0)) == pytest.approx(0.15 * 0.2, abs=0.006)


def test_exploration_does_not_depend_on_what_the_policy_draws():
    algorithm = learner("modular", Countdown(kind="float"), 2, exploration=0.3).algorithm
    policy, own = jax.jit(algorithm.noise, static_argnums=1)(jax.random.key(5), 20_000)
    drawn = (np.asarray(policy["action"]).ravel(), np.asarray(own["action"]["normal"]).ravel())
    assert abs(np.corrcoef(*drawn)[0, 1]) < 0.03


def test_noise_on_parameters_has_the_deviation_asked_for_and_leaves_running_averages_alone():
    network = [{"type": "dense", "size": 256}, {"type": "batch_normalization"}]
    algorithm = learner("modular", Countdown(), 2, model=network, variable_noise=0.5).algorithm

    @jax.jit
    def begun(key):
        state = algorithm.init(key)
        return state.variables["params"], algorithm.acting(state, Counters.zero()).exploring

    params, exploring = jax.device_get(begun(jax.random.key(0)))
    averages = algorithm.models["model"].averages
    assert len(averages) == 2
    for name, x in params.items():
        noise = exploring[name] - x
        if name in averages:
            assert not noise.any(), name
        elif noise.size >= 256:
            assert noise.std() == pytest.approx(0.5, rel=0.2), name


# In the words of others

TUNED = {
    "batch_size": 12,
    "update_frequency": 1,
    "learning_rate": 1.813e-3,
    "multi_step": 5,
    "subsampling_fraction": 0.913,
    "likelihood_ratio_clipping": 0.0996,
    "discount": 0.99854,
    "baseline": "auto",
    "baseline_optimizer": {"optimizer": "adam", "learning_rate": 3.67e-3, "multi_step": 10},
    "entropy_regularization": 1.14e-3,
}


@pytest.mark.exhaustive
def test_the_tuned_configuration_is_accepted_and_learns_in_a_program():
    definition = parse_agent("ppo", **TUNED)
    c = definition.config
    assert (definition.name, c.unit, c.batch_size, c.frequency, c.horizon) == (
        "modular",
        "episodes",
        12,
        1,
        None,
    )
    assert (c.clipping_value, c.multi_step, c.baseline_multi_step, c.baseline_lr) == (0.0996, 5, 10, 3.67e-3)
    assert c.advantage and c.bootstraps
    env = Countdown()
    agent = Agent.create(
        agent="ppo",
        states=env.spaces.states,
        actions=env.spaces.actions,
        max_episode_timesteps=3,
        network=MODEL,
        parallel_interactions=2,
        **TUNED,
    )
    made = interact(agent, env, 0, 40)
    assert sum(made) == agent.updates > 10
    assert agent.episodes >= agent.updates


@pytest.mark.parametrize(
    ("agent", "options", "wanted"),
    [
        (
            "a2c",
            {"batch_size": 20, "critic_optimizer": 0.5},
            {"horizon": 1, "baseline_weight": 0.5, "batch_size": 20},
        ),
        ("vpg", {"batch_size": 4}, {"unit": "episodes", "horizon": None, "baseline_model": None}),
        ("reinforce", {}, {"unit": "episodes", "batch_size": 10}),
        ("ac", {}, {"horizon": 1, "estimate_advantage": False, "baseline_model": "auto"}),
        (
            "dqn",
            {
                "memory": 5000,
                "batch_size": 16,
                "update_frequency": 0.5,
                "start_updating": 100,
                "exploration": 0.1,
            },
            {
                "objective": "action_value",
                "memory": "replay",
                "capacity": 5000,
                "frequency": 0.5,
                "start": 100,
            },
        ),
        ("double_dqn", {"huber_loss": 1.0}, {"double": True, "dueling": False}),
        ("dueling_dqn", {"target_sync_frequency": 7}, {"double": True, "dueling": True}),
        (
            "dpg",
            {
                "memory": 5000,
                "network": "auto",
                "critic": "auto",
                "critic_optimizer": 0.5,
                "exploration": 0.2,
            },
            {
                "objective": "deterministic_policy_gradient",
                "capacity": 5000,
                "baseline_weight": 0.5,
                "exploration": 0.2,
            },
        ),
        ("ppo", {"multi_step": 5}, {"clipping_value": 0.25, "subsampling_fraction": 0.33}),
    ],
)
def test_named_agents_understand_their_words(agent, options, wanted):
    definition = parse_agent(agent, **options)
    found = {name: getattr(definition.config, name) for name in wanted}
    assert found == wanted


def test_own_words_stay_own_and_both_together_are_refused():
    assert parse_agent("ppo", learning_rate=0.1, discount=0.9, ppo_epochs=3).name == "ppo"
    assert parse_agent("dqn", memory=500, batch_size=16).name == "dqn"
    with pytest.raises(SpecError, match="ppo with 'multi_step' takes no argument 'ppo_epochs'"):
        parse_agent("ppo", multi_step=3, ppo_epochs=3)
    with pytest.raises(SpecError, match="ppo takes no argument 'multi_stepp'"):
        parse_agent("ppo", multi_stepp=3)


DETERMINISTIC = {
    "memory": 64,
    "batch_size": 6,
    "horizon": 1,
    "objective": "deterministic_policy_gradient",
    "exploration": 0.3,
    "optimizer": "sgd",
    "lr": 0.1,
    "gamma": 0.9,
    "model": MODEL,
    "baseline_model": MODEL,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("own", [False, True], ids=["together", "own optimizer"])
def test_a_deterministic_policy_climbs_the_values_of_its_actions(own):
    """One update against the formulas: of the policy -mean Q(s, μ(s)), of the baseline mean (r + γ Q'(s',
    μ'(s')) - Q(s, a))²."""
    options = {"baseline_optimizer": "sgd", "baseline_lr": 0.2} if own else {"baseline_weight": 2.0}
    env = Countdown(kind="float")
    made = compile_agent("modular", env, **DETERMINISTIC, **options, target_update_weight=0.25)
    algorithm = made.learner.algorithm
    after, world = made.begin(0)
    while not after.counters.updates:  # a row with a last observation is no step
        train = after
        block, world = made.collect(train, world)
        after, metrics = made.absorb(train, block)
    actor, critic = algorithm.models["model"], algorithm.models["baseline"]
    start, frozen = algorithm.params(train.state), train.state.variables["state"]
    # As many uniform draws as rows: the update's own, drawn again.
    memory = algorithm.memory.add(train.memory, block)
    key = jax.random.split(made.learner.update_key(train.key, train.counters.rows // made.learner.rows), 3)[0]
    batch = algorithm.memory.sample(memory, key, 6, 0.9, n_step=1)
    centre, half = jnp.float32(0.5), jnp.float32(1.5)  # of actions from -1 to 2

    def act(params, observation):
        return actor.apply({"params": params, "state": frozen}, observation)[0]["action"]

    def q(params, observation, units):
        seen = {**observation, "action": units}
        return critic.apply({"params": params, "state": train.state.baseline["state"]}, seen)[0]["value"]

    following = q(start["baseline"], batch.next_observation, act(start["model"], batch.next_observation))
    target = batch.reward + batch.discount * following

    def policy_loss(params):
        return -jnp.mean(q(start["baseline"], batch.observation, act(params, batch.observation)))

    def value_loss(params):
        units = jnp.clip((batch.action["action"] - centre) / half, -1.0, 1.0)
        return jnp.mean(jnp.square(target - q(params, batch.observation, units)))

    assert float(metrics["loss/policy"]) == pytest.approx(float(policy_loss(start["model"])), abs=1e-6)
    assert float(metrics["loss/value"]) == pytest.approx(float(value_loss(start["baseline"])), rel=1e-5)
    rates = {"model": 0.1, "baseline": 0.2}  # without an optimizer of its own: weight 2 times 0.1
    grads = {
        "model": jax.grad(policy_loss)(start["model"]),
        "baseline": jax.grad(value_loss)(start["baseline"]),
    }
    moved = algorithm.params(after.state)
    for model, rate in rates.items():
        for name, x in start[model].items():
            np.testing.assert_allclose(
                moved[model][name], x - rate * grads[model][name], atol=1e-6, err_msg=name
            )
            lag = x + 0.25 * (moved[model][name] - x)
            np.testing.assert_allclose(after.state.target[model][name], lag, atol=1e-6, err_msg=name)


@pytest.mark.exhaustive
def test_recurrent_networks_replay_steps_with_those_before_them():
    """Every draw is a sequence of the layer's horizon, the step itself and those of its return.

    Only the step counts.
    """
    model = [{"type": "dense", "size": 8}, {"type": "gru", "size": 8, "horizon": 3}]
    made = compile_agent(
        "modular",
        Countdown(masked=True),
        model=model,
        memory="replay",
        capacity=60,
        batch_size=18,
        horizon=2,
        gamma=0.9,
        objective="action_value",
        baseline_model=None,
        target_update_weight=0.25,
        lr=0.05,
        optimizer="sgd",
    )
    algorithm = made.learner.algorithm
    assert algorithm.warmup == 3
    train, world = made.begin(0)
    while train.counters.updates < 3:  # a row with a last observation is no step
        block, world = made.collect(train, world)
        before, train, metrics = train, *made.absorb(train, block)
    memory = algorithm.memory.add(before.memory, block)
    key = jax.random.split(made.learner.update_key(before.key, before.counters.rows // made.learner.rows), 3)[
        0
    ]
    drawn = algorithm.memory.sample_sequences(memory, key, 18, 5)
    step, state = jax.jit(algorithm.models["model"].apply), before.state.variables["state"]

    def outputs(params):
        carry, found = drawn.carry["model"], []
        for t in range(6):
            if t:
                carry = {k: jnp.where(drawn.valid[t - 1][:, None], x, 0.0) for k, x in carry.items()}
            seen = {k: x[t] for k, x in drawn.observation.items()}
            out, carry = step({"params": params, "state": state}, seen, carry)
            found.append(np.asarray(out["action"]))
        return found

    assert np.abs(drawn.carry["model"]["body.gru0.h"]).max() > 0.01
    online, slow = outputs(before.state.variables["params"]), outputs(before.state.target)
    errors = []
    for b in np.flatnonzero(drawn.valid[3]):
        value, discount, t = 0.0, 1.0, 3
        while t < 5 and drawn.valid[t, b] and discount > 0:
            value += discount * float(drawn.reward[t, b])
            discount *= 0.0 if drawn.terminated[t, b] else 0.9
            t += 1
        mask = np.asarray(drawn.observation["action_mask"][t, b])
        value += discount * np.where(mask, slow[t][b], -np.inf).max() if discount > 0 else 0.0
        errors.append((value - online[3][b, int(drawn.action["action"][3, b])]) ** 2)
    assert 5 < len(errors) <= 18
    assert float(metrics["loss/td"]) == pytest.approx(np.mean(errors), rel=1e-4)
    assert metrics["update/skipped"] == 0


def test_what_a_deterministic_policy_needs_is_asked_for():
    bounded = {"type": "float", "min_value": -1.0, "max_value": 1.0}
    for options, actions, error, message in [
        ({"baseline_model": None}, bounded, SpecError, "needs a baseline with a network of its own"),
        ({"baseline_model": "shared"}, bounded, SpecError, "needs a baseline with a network of its own"),
        ({"exploration": None}, bounded, SpecError, r"explores by noise alone.*such as exploration=0.1"),
        (
            {"gradient": "evolutionary"},
            bounded,
            SpecError,
            r"to keep the baseline fixed.*Give baseline_optimizer='adam'",
        ),
        (
            {"linesearch_iterations": 1},
            bounded,
            SpecError,
            r"to keep the baseline fixed.*linesearch_iterations=1",
        ),
        (
            {"importance_sampling": True},
            bounded,
            SpecError,
            "importance_sampling belongs to objective='policy_gradient'",
        ),
        ({"gradient": "natural"}, bounded, SpecError, "gradient='natural' is that of a policy"),
        (
            {"model": [{"type": "gru", "size": 8, "horizon": 8}], "memory": 9},
            bounded,
            SpecError,
            r"capacity must be above 9 for a recurrent network: 1 actor",
        ),
        ({}, {"type": "float"}, SpaceError, r"finite bounds.*use objective='policy_gradient'"),
        ({}, ACTIONS, SpaceError, "supports continuous .float. actions only"),
    ]:
        with pytest.raises(error, match=message):
            Agent.create(states=STATES, actions=actions, **{**DETERMINISTIC, **options})


@pytest.mark.slow
def test_the_ratio_is_that_to_the_policy_at_the_beginning_of_the_update():
    """Were it that to the policy which drew the rows, one that is clipped to almost 1 would leave no
    gradient after a few updates."""
    env = Countdown()
    one = compiled("modular", env, clipping_value=1e-6, multi_step=1)
    train, world = one.begin(0)
    block, _ = one.collect(train, world)
    for _ in range(4):  # the same rows again
        train = train._replace(state=one.learner.algorithm.force_update(train.state))
        train, metrics = one.absorb(train, block)
        assert float(metrics["update/kl"]) == 0.0
        assert float(metrics["update/grad_norm"]) > 1e-2


# Of what states


@pytest.mark.slow
def test_states_are_preprocessed_before_every_network():
    """Bounds 0 to 10 become -2 to 2, open ones leave numbers alone, choices are no numbers."""
    states = {
        "a": {"type": "float", "shape": (2,), "min_value": 0.0, "max_value": 10.0},
        "b": {"type": "float", "shape": (1,)},
        "c": {"type": "int", "num_values": 3},
    }
    given = {
        "all": "linear_normalization",
        "named": {"a": ["linear_normalization"], "b": None},
        "clipped": [{"type": "clipping", "lower": -1.0, "upper": 1.0}],
        "none": None,
    }
    seen = {
        "all": [[-0.8, 1.2], [7.0]], "named": [[-0.8, 1.2], [7.0]], "clipped": [[1.0, 1.0], [1.0]],
        "none": [[3.0, 8.0], [7.0]],
    }  # fmt: skip
    observation = {"a": np.float32([3, 8]), "b": np.float32([7]), "c": np.int32(2)}
    agents = {}
    for name, spec in given.items():
        agents[name] = Agent.create(
            states=states,
            actions=ACTIONS,
            model=MODEL,
            baseline_model=MODEL,
            state_preprocessing=spec,
            seed=1,
        )
        (a, b), plain = seen[name], agents[name].learner.algorithm
        weights = plain.init(jax.random.key(0))
        raw = Agent.create(
            states=states, actions=ACTIONS, model=MODEL, baseline_model=MODEL, seed=1
        ).learner.algorithm
        shown = {"a": np.float32(a), "b": np.float32(b), "c": np.int32(2)}
        for model in ("model", "baseline"):
            found = plain.models[model].apply(plain.weights(weights)[model], observation)[0]
            wanted = raw.models[model].apply(raw.weights(raw.init(jax.random.key(0)))[model], shown)[0]
            for head, x in wanted.items():
                np.testing.assert_allclose(
                    found[head], x, rtol=1e-5, atol=1e-6, err_msg=f"{name} {model} {head}"
                )


@pytest.mark.slow
def test_a_deterministic_policys_baseline_reads_preprocessed_states_and_actions_as_they_are():
    bounded = {"type": "float", "min_value": -1.0, "max_value": 1.0, "shape": (2,)}
    with_layers = Agent.create(
        states={"type": "float", "shape": (2,), "min_value": -8.0, "max_value": 8.0}, actions=bounded,
        state_preprocessing="linear_normalization", **DETERMINISTIC,
    ).learner.algorithm  # fmt: skip
    variables = with_layers.init(jax.random.key(0)).baseline
    critic = with_layers.models["baseline"]

    def q(state, action):
        return float(
            critic.apply(variables, {"state": jnp.float32(state), "action": jnp.float32(action)})[0]["value"]
        )

    kernel = np.asarray(variables["params"]["body.dense0/kernel"], np.float64)
    bias = np.asarray(variables["params"]["body.dense0/bias"], np.float64)
    out = np.asarray(variables["params"]["head.value/kernel"], np.float64)
    hidden = np.concatenate([np.float64([4.0, -2.0]) / 4, [0.5, -0.25]]) @ kernel + bias
    assert q([4.0, -2.0], [0.5, -0.25]) == pytest.approx(float((np.tanh(hidden) @ out)[0]), abs=1e-5)


def test_preprocessing_that_is_elsewhere_is_answered():
    for spec, message in [
        ("exponential_normalization", "Give normalize_observations=True"),
        ({"state": [{"type": "sequence", "length": 4}]}, "gymnasium.wrappers.FrameStackObservation"),
        (
            {"stat": {"type": "clipping", "lower": 0}},
            r"names 'stat', which is no state. Did you mean 'state'",
        ),
        (
            [{"type": "linear_normalization", "min_value": 2.0, "max_value": 1.0}],
            r"min_value must be below max_value 1.0",
        ),
        (
            [{"type": "clipping", "lower": 0}, "linear_normalization"],
            r"state_preprocessing\['state'\]\[1\].*give min_value and max_value",
        ),
    ]:
        with pytest.raises(SpecError, match=message):
            small(state_preprocessing=spec)


# Learning


def score(name: str, steps_: int, env: str = "jax:CartPole-v1", last: int = 100, **options) -> float:
    env = native_ids.make(env)
    definition = parse_agent(name, **options).limited(env.max_episode_timesteps)
    made = DeviceDriver(definition_learner(definition, env), env, 8, jax.random.key(0))
    found = RollingScore(last)
    while made.step < steps_:
        for episode in made.advance(made.blocks):
            found.add([episode.reward], [episode.length])
    return found.mean


def definition_learner(definition, env):
    from operant.agents.base.learner import Learner

    return Learner(definition.cls.create(definition.config, env.spaces, 8))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("modular", {"baseline": "auto", "batch_size": 256, "horizon": None}),
        ("vpg", {"lr": 3e-3}),
        (
            "modular",
            {
                "objective": "action_value",
                "memory": "replay",
                "horizon": 1,
                "frequency": 8,
                "target_sync_frequency": 100,
                "exploration": {"type": "linear", "start": 1.0, "end": 0.05, "steps": 8000},
            },
        ),
    ],
)
def test_it_learns_cartpole(name, options):
    """A random policy scores 22; measured 218, 236 and 155 to 256 after 40,000 steps."""
    assert score(name, 40_000, **options) > 120


@pytest.mark.slow
def test_a_deterministic_policy_learns_to_swing_up():
    """A random policy scores -1,200; measured -141 after 40,000 steps of 8 actors."""
    network = [{"type": "dense", "size": 64, "activation": "relu"}] * 2
    found = score(
        "modular",
        40_000,
        "jax:Pendulum-v1",
        40,
        objective="deterministic_policy_gradient",
        memory=40_000,
        batch_size=128,
        frequency=8,
        start=1000,
        horizon=1,
        gamma=0.98,
        model=network,
        baseline_model=network,
        lr=1e-3,
        baseline_optimizer="adam",
        exploration=0.3,
        target_update_weight=0.01,
    )
    assert found > -300


@pytest.mark.parametrize(
    ("options", "bounds", "refused"),
    [
        ({"exploration": 0.2, "distribution": "squash"}, (-1.0, 1.0), True),
        ({"exploration": 0.2, "distribution": "beta"}, (-1.0, 1.0), True),
        ({"exploration": 0.2, "distribution": "beta"}, (None, None), False),
        ({"exploration": 0.0, "distribution": "beta"}, (-1.0, 1.0), False),
        ({"exploration": 0.2, "distribution": "clip"}, (-1.0, 1.0), False),
        ({"exploration": 0.2, "distribution": "beta"}, None, False),  # choices
    ],
)
def test_noise_beyond_the_bounds_of_a_density_is_refused(options, bounds, refused):
    actions = ACTIONS
    if bounds is not None:
        actions = {"type": "float", "shape": (), "min_value": bounds[0], "max_value": bounds[1]}
    define_it = functools.partial(Agent.create, "modular", states=STATES, actions=actions, model=MODEL)
    if refused:
        with pytest.raises(
            SpecError, match=r"exploration adds noise.*no density\. Received: exploration=0\.2\. Use"
        ):
            define_it(**options)
    else:
        define_it(**options)
