"""DDPG: targets by hand, a whole update against plain NumPy, acting, and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import plain_actor_critic as plain
from tests.small_agents import Countdown, compiled, equal, learner, small

from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import Learner
from operant.agents.parts.action_scaling import from_units
from operant.agents.parts.off_policy import ContinuousPolicyState, NetworkInputs
from operant.errors import SpaceError
from operant.spec.spaces import Spaces
from operant.types import Rollout

HEADS = ("arm", "leg")


def fixed(params, value, slopes):
    """Make a network linear and known: hidden unit i passes input i on (all inputs here are positive)."""
    kernel = np.zeros(params["body.dense0/kernel"].shape, np.float32)
    np.fill_diagonal(kernel, 1.0)
    head = next(name for name in params if name.startswith("head") and name.endswith("kernel"))
    known = {
        "body.dense0/kernel": kernel,
        "body.dense0/bias": np.zeros_like(params["body.dense0/bias"]),
        head: np.asarray(slopes, np.float32).reshape(params[head].shape),
        head.replace("kernel", "bias"): np.full(params[head.replace("kernel", "bias")].shape, value),
    }
    return {k: jnp.asarray(v, jnp.float32) for k, v in known.items()}


def one_action(name, **options):
    """An algorithm on one state and one action from 0 to 4, with networks that pass their inputs on."""
    spaces = Spaces.read(
        states={"type": "float", "shape": (1,)},
        actions={"type": "float", "shape": (1,), "min_value": 0.0, "max_value": 4.0},
    )
    network = [{"type": "dense", "size": 2, "activation": "relu"}]
    definition = parse_agent(name, actor_model=network, critic_model=network, **options)
    return definition.cls.create(definition.config, spaces, 1)


def test_target_by_hand():
    """μ'(s') = tanh(0.5 * 2) = 0.7616; Q'(s', a) = 1 + 2 s' + 3 a = 7.2848; y = 0.5 + 0.9 Q' = 7.0563.

    Terminal: 0.5.
    """
    made = one_action("ddpg")
    state = made.init(jax.random.key(0))
    state = state._replace(
        target_actor=fixed(state.target_actor, 0.0, [[0.5], [0.0]]),
        target_critic=fixed(state.target_critic, 1.0, [[2.0], [3.0]]),
    )
    batch = plain.transitions()._replace(
        reward=jnp.array([0.5, 0.5]),
        discount=jnp.array([0.9, 0.0]),
        following=NetworkInputs({"state": jnp.full((2, 1), 2.0)}),
    )
    np.testing.assert_allclose(made.target(state, batch), [7.05632, 0.5], rtol=1e-5)


def test_whole_steps_equal_plain_numpy():
    made, tau = plain.algorithm("ddpg", tau=0.1, critic_lr=0.003), 0.1
    state = plain.start(made)
    actor, critic = plain.Net(state.actor["params"], HEADS), plain.Net(state.critic["params"], ("value",))
    slow_actor, slow_critic = plain.Net(state.target_actor, HEADS), plain.Net(state.target_critic, ("value",))
    of_actor, of_critic = plain.Adam(0.01), plain.Adam(0.003)
    for i in range(3):
        batch = plain.transitions(i)
        state, metrics = jax.jit(made.step)(state, batch, jax.random.key(i))
        s, following = (np.asarray(x.observation["state"], float) for x in (batch.now, batch.following))
        weight = np.asarray(batch.weight, float)
        ahead = slow_critic(np.concatenate([following, np.tanh(slow_actor(following))], 1))[:, 0]
        y = np.asarray(batch.reward) + np.asarray(batch.discount) * ahead
        x = np.concatenate([s, plain.side_by_side(batch.action)], 1)
        loss = plain.critic_step(critic, of_critic, x, y, weight)
        plain.actor_step(actor, critic, of_actor, s, weight)
        plain.polyak(slow_actor, actor, tau)
        plain.polyak(slow_critic, critic, tau)
        assert float(metrics["loss/critic"]) == pytest.approx(loss, rel=1e-4)
    plain.assert_same(state.actor["params"], actor)
    plain.assert_same(state.critic["params"], critic)
    plain.assert_same(state.target_actor, slow_actor)
    plain.assert_same(state.target_critic, slow_critic)


def test_actor_and_critic_step_with_their_own_optimizers():
    made = plain.algorithm("ddpg", critic_lr=0.0)
    state = plain.start(made)
    after, _ = made.step(state, plain.transitions(), jax.random.key(0))
    assert equal(after.critic, state.critic)
    assert not equal(after.actor, state.actor)


def test_a_tau_of_one_copies_the_networks():
    made = plain.algorithm("ddpg", tau=1.0)
    after, _ = made.step(plain.start(made), plain.transitions(), jax.random.key(0))
    assert equal(after.target_actor, after.actor["params"])
    assert equal(after.target_critic, after.critic["params"])


# Acting


def acts(made, state, filling, n=20_000, explore=True):
    noise = made.noise(jax.random.key(3), n)
    observation = {"state": jnp.broadcast_to(jnp.array([0.3, -1.0, 0.2]), (n, 3))}
    action = made.act(
        ContinuousPolicyState(state.actor, jnp.bool_(filling), {}), observation, (), noise, explore
    ).action
    return {name: np.asarray(x) for name, x in action.items()}


def test_noise_is_in_units_of_half_the_range_and_each_element_has_its_own():
    """Half ranges are 2 and 5: with a coefficient of 0.1 deviations of 0.2 and 0.5 around the greedy
    action."""
    made = plain.algorithm("ddpg", step_noise_coef=0.1)
    state = made.init(jax.random.key(0))  # near the middle of the range, so that nothing is clipped
    drawn, greedy = acts(made, state, False), acts(made, state, False, n=1, explore=False)
    np.testing.assert_allclose(drawn["arm"].std(0), 0.2, rtol=0.03)
    np.testing.assert_allclose(drawn["leg"].std(0), 0.5, rtol=0.03)
    for name, x in drawn.items():
        np.testing.assert_allclose(x.mean(0), greedy[name][0], atol=0.02)
    assert abs(np.corrcoef(drawn["arm"].T)[0, 1]) < 0.03
    assert float(made.spread()) == pytest.approx((0.2 + 0.2 + 0.5) / 3)


def test_actions_stay_within_the_bounds_however_large_the_noise():
    made = plain.algorithm("ddpg", step_noise_coef=5.0)
    drawn = acts(made, made.init(jax.random.key(0)), False)
    assert (drawn["arm"].min(), drawn["arm"].max()) == (-1.0, 3.0)
    assert (drawn["leg"].min(), drawn["leg"].max()) == (0.0, 10.0)


def test_actions_are_uniform_while_the_memory_fills():
    made = plain.algorithm("ddpg")
    drawn = acts(made, made.init(jax.random.key(0)), True)
    for x, low, high in ((drawn["arm"][:, 1], -1, 3), (drawn["leg"], 0, 10)):
        counts, _ = np.histogram(x, 10, (low, high))
        assert counts.sum() == len(x)
        assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000 * 0.9)


def test_greedy_actions_know_no_noise_and_no_filling():
    made = plain.algorithm("ddpg")
    state = plain.start(made)
    one, two = (acts(made, state, filling, n=3, explore=False) for filling in (False, True))
    assert equal(one, two)
    assert np.ptp(one["leg"]) == 0


def test_the_memory_fills_until_the_initial_size():
    made = learner("ddpg", Countdown(kind="float"), 3)
    train = made.init(jax.random.key(0), made.hyper())
    for steps, filling in ((0, True), (11, True), (12, False)):
        counters = train.counters._replace(timesteps=jnp.uint32(steps))
        assert bool(made.algorithm.acting(train.state, counters)[1]) is filling


def test_a_memory_that_is_younger_than_the_run_fills_before_one_learns_from_it():
    """A run may go on without its memory. Blocks are of six rows, the memory begins with 24."""
    agent = compiled("ddpg", Countdown(kind="float"), buffer_initial_size=24)
    _, blocks, metrics = agent.run(0, 8, timesteps=1000)
    steps = 1000 + np.cumsum([int(block.valid.sum()) for block in blocks])
    passed = np.diff(steps // 6, prepend=1000 // 6) > 0
    assert passed[:3].all() and passed[3:].sum() > 2
    finite = [np.isfinite(each["loss/critic"]) for each in metrics]
    assert finite == [False] * 3 + passed[3:].tolist()


@pytest.mark.parametrize("name", ["ddpg", "sac", "td3"])
def test_critics_read_replayed_actions_in_units(name):
    """Of bounds from -1 to 3, 3 is 1 and 0 is -1/2; of those from 0 to 10, 7.5 is 1/2.

    Rewards and states are as they were.
    """
    made = plain.algorithm(name, buffer_batch_size=8, gamma=0.5)
    empty, no = made.memory.init(Learner(made).example()), np.zeros((3, 2), bool)
    states = np.arange(8, dtype=np.float32).reshape(4, 2, 1) * np.ones(3, np.float32)
    action = {
        "arm": np.full((3, 2, 2), (3.0, 0.0), np.float32),
        "leg": np.full((3, 2), 7.5, np.float32),
    }
    block = Rollout({"state": states}, action, states[:3, :, 0], no, no, ~no, (), ())
    batch = jax.jit(lambda key: made._sampled(made.memory.add(empty, block), key))(jax.random.key(0))
    np.testing.assert_allclose(batch.action["arm"], [[1.0, -0.5]] * 8)
    np.testing.assert_allclose(batch.action["leg"], [0.5] * 8)
    now, following = batch.now.observation["state"], batch.following.observation["state"]
    np.testing.assert_array_equal(now[:, 0], batch.reward)
    np.testing.assert_array_equal(following, now + 2.0)
    np.testing.assert_array_equal((batch.discount, batch.weight), (np.full(8, 0.5), np.ones(8)))


# How many gradient steps


@pytest.mark.parametrize("gradient_steps", [None, 3])
def test_gradient_steps_are_the_number_asked_for_or_the_environment_steps(gradient_steps):
    """Adam counts its steps: 3 for every update, or as many as environment steps between two: 2 x 3."""
    agent = compiled("ddpg", Countdown(kind="float"), gradient_steps=gradient_steps)
    train, world = agent.begin(2)
    expected = 0
    for _ in range(12):
        block, world = agent.collect(train, world)
        before = int(train.counters.timesteps)
        train, _ = agent.absorb(train, block)
        after = int(train.counters.timesteps)
        due = after >= 12 and after // 6 > before // 6
        expected += due * (6 if gradient_steps is None else gradient_steps)
        assert int(train.state.critic_optimizer[1].count) == expected
        assert int(train.state.actor_optimizer[1].count) == expected
    assert expected > 12


# Weights


def test_targets_start_from_given_weights():
    made = plain.algorithm("ddpg")
    state = plain.start(made)
    other = made.init(jax.random.key(7))
    weights = made.weights(other)
    assert list(weights) == ["actor", "critic"]
    put = made.with_weights(state, weights)
    assert equal((put.actor, put.critic), (other.actor, other.critic))
    assert equal((put.target_actor, put.target_critic), (other.actor["params"], other.critic["params"]))


# What is refused


def make(name="ddpg", states=None, actions=None, **options):
    spaces = Spaces.read(
        states=states or {"type": "float", "shape": (3,)},
        actions=actions or {"type": "float", "shape": (1,), "min_value": -1.0, "max_value": 1.0},
    )
    definition = parse_agent(name, **small(name, **options))
    return definition.cls.create(definition.config, spaces, 1)


@pytest.mark.parametrize("name", ["ddpg", "sac", "td3"])
def test_floats_without_bounds_are_refused(name):
    actions = {"foot": {"type": "float", "shape": (2,), "min_value": 0.0}}
    message = (
        rf"{name} needs finite bounds .* action 'foot' has none \(min_value=0.0, max_value=None\)\. "
        r"Give both, or use .*ppo"
    )
    with pytest.raises(SpaceError, match=message) as error:
        make(name, actions=actions)
    assert "td3" not in str(error.value).partition("agents instead")[2]


def test_a_state_with_the_name_of_an_action_keeps_it():
    """The critic reads both: its value depends on each."""
    states = {"x": {"type": "float", "shape": (1,)}, "y": {"type": "float", "shape": (2,)}}
    actions = {
        "x": {"type": "float", "shape": (1,), "min_value": -1.0, "max_value": 1.0},
        "z_mask": {"type": "float", "shape": (), "min_value": -1.0, "max_value": 1.0},
    }
    made = make(states=states, actions=actions)
    assert set(made.critics["critic"].inputs) == {"x", "y", "x/action", "z_mask"}
    critic = made.init(jax.random.key(0)).critic
    observation = {"x": jnp.ones((4, 1)), "y": jnp.ones((4, 2))}
    action = {"x": jnp.ones((4, 1)), "z_mask": jnp.ones(4)}
    values = [
        made.value("critic", critic, NetworkInputs(observation), action),
        made.value("critic", critic, NetworkInputs({**observation, "x": jnp.zeros((4, 1))}), action),
        made.value("critic", critic, NetworkInputs(observation), {**action, "x": jnp.zeros((4, 1))}),
        made.value("critic", critic, NetworkInputs(observation), {**action, "z_mask": jnp.zeros(4)}),
    ]
    assert len({float(v[0]) for v in values}) == 4


def test_observations_are_normalised_for_both_networks_and_actions_are_not():
    agent = compiled("ddpg", Countdown(kind="float"), normalize_observations=True)
    train, _, _ = agent.run(0, 6)
    for variables in (train.state.actor, train.state.critic):
        rows = {k: int(v) for k, v in variables["state"].items() if k.endswith("rows")}
        assert set(rows.values()) == {int(train.counters.timesteps)}
        assert not any("action" in name for name in variables["state"])


def test_an_action_with_one_value_only_is_harmless():
    action = {"type": "float", "shape": (2,), "min_value": (1.0, -1.0), "max_value": (1.0, 1.0)}
    made = make(actions=action)
    units = made.units({"action": jnp.array([[1.0, 0.5]])})
    np.testing.assert_allclose(units["action"], [[0.0, 0.5]])
    action = from_units(made.spaces.actions.components, {"action": jnp.array([[0.7, 0.5]])})["action"]
    np.testing.assert_allclose(action, [[1.0, 0.5]])


@pytest.mark.parametrize("network", ["auto", {"type": "auto", "depth": 2}])
def test_auto_is_two_layers_of_256_rectifiers(network):
    definition = parse_agent("ddpg", actor_model=network)
    made = definition.cls.create(definition.config, Countdown(kind="float").spaces, 1)
    actor = Learner(made).algorithm.actor
    shapes = {k: v.shape for k, v in actor.init(jax.random.key(0))["params"].items() if "kernel" in k}
    assert shapes["body.dense1/kernel"] == (256, 256)
    assert '"activation": "relu"' in actor.network.to_json()
