"""SAC: log-probabilities against numbers, the temperature's direction, targets by hand, whole updates
against plain NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import plain_actor_critic as plain
from tests.small_agents import equal

from operant.agents.base.agent_spec import parse_agent
from operant.agents.parts.off_policy import ContinuousPolicyState, NetworkInputs
from operant.agents.sac import temperature_loss
from operant.ops import optimise
from operant.ops.distributions import SquashedNormal
from operant.spec.spaces import Spaces

CRITICS = ("critic1", "critic2")
HEADS = ("arm.mean", "leg.mean", "arm.log_std", "leg.log_std")


@pytest.fixture(scope="module")
def made():
    return plain.algorithm("sac", tau=0.1, temperature=0.3)


@pytest.fixture(scope="module")
def step(made):
    return jax.jit(made.step)


def constant(params, value):
    """Return a network's parameters that make its output a constant."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {**zeros, "head.value/bias": jnp.full((1,), value)}


# The policy


def gaussian(made, mean, log_std):
    """Actor variables whose outputs are the same for every observation."""
    variables = made.init(jax.random.key(0)).actor
    params = jax.tree.map(jnp.zeros_like, variables["params"])
    for leaf in ("arm", "leg"):
        for part, value in (("mean", mean), ("log_std", log_std)):
            bias = params[f"head.{leaf}.{part}/bias"]
            params[f"head.{leaf}.{part}/bias"] = jnp.full_like(bias, value)
    return {**variables, "params": params}


def test_log_probability_is_the_slope_of_the_probability(made):
    """The density of tanh(u): the probability of a small interval around the action over its width, by the
    normal CDF."""
    from math import erf, sqrt

    mean, std, z = 0.4, 0.6, 0.8
    variables = gaussian(made, mean, np.log(std))
    noise = {"arm": jnp.full((1, 2), z), "leg": jnp.full((1,), z)}
    action, log_prob = made.draw(made.outputs(variables, NetworkInputs({"state": jnp.ones((1, 3))})), noise)
    a = float(action["leg"][0])
    assert a == pytest.approx(np.tanh(mean + std * z), rel=1e-6)
    below = [0.5 * (1 + erf((np.arctanh(x) - mean) / (std * sqrt(2)))) for x in (a - 1e-4, a + 1e-4)]
    density = (below[1] - below[0]) / 2e-4
    assert float(log_prob[0]) == pytest.approx(3 * np.log(density), abs=1e-3)  # three elements, all alike


def test_probabilities_of_units_sum_to_one(made):
    """Over -1..1 whatever the action's own range: it is a density over units."""
    variables = gaussian(made, -0.3, np.log(0.7))
    z = np.linspace(-8, 8, 4001)
    noise = {"arm": jnp.zeros((4001, 2)), "leg": jnp.asarray(z, jnp.float32)}
    action, log_prob = made.draw(
        made.outputs(variables, NetworkInputs({"state": jnp.ones((4001, 3))})), noise
    )
    still = {"arm": jnp.zeros((1, 2)), "leg": jnp.zeros(1)}
    u = -0.3
    own = -np.log(0.7) - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(u) ** 2)
    others = (
        float(made.draw(made.outputs(variables, NetworkInputs({"state": jnp.ones((1, 3))})), still)[1][0])
        - own
    )
    density = np.exp(np.asarray(log_prob, float) - others)
    assert np.trapezoid(density, np.asarray(action["leg"], float)) == pytest.approx(1.0, abs=2e-3)


def test_log_probability_stays_finite_where_tanh_rounds_to_one(made):
    variables = gaussian(made, 25.0, 0.0)
    noise = {"arm": jnp.zeros((1, 2)), "leg": jnp.zeros(1)}
    action, log_prob = made.draw(made.outputs(variables, NetworkInputs({"state": jnp.ones((1, 3))})), noise)
    assert float(action["leg"][0]) == 1.0
    assert float(log_prob[0]) == pytest.approx(
        3 * (2 * 25 - 2 * np.log(2) - 0.5 * np.log(2 * np.pi)), rel=1e-4
    )


def test_exploring_draws_and_greedy_takes_the_mean(made):
    variables = gaussian(made, 0.2, np.log(0.5))
    n = 20_000
    noise, observation = made.noise(jax.random.key(1), n), {"state": jnp.ones((n, 3))}
    act = jax.jit(made.act, static_argnums=4)
    drawn, greedy = (
        act(ContinuousPolicyState(variables, jnp.bool_(False), {}), observation, (), noise, e).action
        for e in (True, False)
    )
    np.testing.assert_allclose(greedy["leg"], 5 + 5 * np.tanh(0.2), rtol=1e-5)
    u = np.arctanh((np.asarray(drawn["leg"], float) - 5) / 5)
    assert (u.mean(), u.std()) == (pytest.approx(0.2, abs=0.02), pytest.approx(0.5, abs=0.02))


# The temperature


def test_temperature_rises_below_the_target_entropy_and_falls_above():
    """The slope by log α is α (H - H̄): 0.5 (-4 + 3) = -0.5, so that a step downhill raises α."""
    slope = jax.grad(temperature_loss)
    log = jnp.log(jnp.float32(0.5))
    assert float(slope(log, jnp.float32(-4.0), -3.0)) == pytest.approx(-0.5)
    assert float(slope(log, jnp.float32(-1.0), -3.0)) == pytest.approx(1.0)
    assert float(slope(log, jnp.float32(-3.0), -3.0)) == 0.0


@pytest.mark.parametrize(
    ("target", "sign"), [(50.0, 1.0), pytest.param(-50.0, -1.0, marks=pytest.mark.exhaustive)]
)
def test_a_step_moves_the_temperature_towards_the_target_entropy(target, sign):
    made = plain.algorithm("sac", target_entropy=target, temperature_lr=0.02)
    state = plain.start(made)
    after, metrics = jax.jit(made.step)(state, plain.transitions(), jax.random.key(0))
    # the first step of Adam is as long as the learning rate
    assert float(after.log_temperature - state.log_temperature) == pytest.approx(sign * 0.02, rel=1e-3)
    assert float(metrics["loss/temperature"]) == pytest.approx(
        float(metrics["policy/entropy"]) - target, rel=1e-4
    )


def test_weight_decay_leaves_the_temperature_alone():
    """A step of Adam is as long as the learning rate, however large the logarithm of the temperature is."""
    made = plain.algorithm("sac", optimizer={"type": "adamw", "weight_decay": 0.5}, temperature_lr=0.02)
    start = jnp.float32(-3.0)
    of_temperature = made.temperature_optimizer
    after, _, _ = optimise.apply(of_temperature, start, of_temperature.init(start), jnp.float32(0.7))
    np.testing.assert_allclose(after, -3.02, rtol=1e-6)


def test_target_entropy_is_minus_the_number_of_action_elements(made):
    assert made.target_entropy == -3.0
    assert plain.algorithm("sac", target_entropy=-1.5).target_entropy == -1.5


def test_a_fixed_temperature_stays_and_follows_its_option():
    made = plain.algorithm("sac", learn_temperature=False, temperature=0.2)
    state = plain.start(made)
    after, metrics = jax.jit(made.step)(state, plain.transitions(), jax.random.key(0))
    assert equal(after.log_temperature, state.log_temperature)
    assert equal(after.temperature_optimizer, state.temperature_optimizer)
    assert float(made.temperature(after)) == pytest.approx(0.2)
    assert np.isnan(float(metrics["loss/temperature"]))


def test_the_temperature_starts_at_its_option(made):
    state = made.init(jax.random.key(0))
    assert float(made.temperature(state)) == pytest.approx(0.3)


# The target


@pytest.mark.parametrize(("one", "two"), [(2.0, 3.0), (3.0, 2.0)])
def test_the_target_is_the_smaller_critic_and_the_entropy(made, one, two):
    """y = r + 0.9 (2 - 0.3 log π), and r where the episode ended."""
    state = plain.start(made)
    state = state._replace(
        target_critic1=constant(state.target_critic1, one), target_critic2=constant(state.target_critic2, two)
    )
    batch = plain.transitions()
    noise = made.update_noise(jax.random.key(0), plain.B)
    log_prob = np.asarray(made.draw(made.outputs(state.actor, batch.following), noise)[1])
    assert np.std(log_prob) > 0.5
    expected = np.asarray(batch.reward) + np.asarray(batch.discount) * (2.0 - 0.3 * log_prob)
    np.testing.assert_allclose(made.target(state, batch, noise), expected, rtol=1e-5)


def test_critics_start_different_from_one_another_and_targets_as_their_copies(made):
    state = made.init(jax.random.key(0))
    kernels = [np.asarray(getattr(state, name)["params"]["body.dense0/kernel"]) for name in CRITICS]
    assert np.abs(kernels[0] - kernels[1]).max() > 0.1
    for name in CRITICS:
        assert equal(getattr(state, f"target_{name}"), getattr(state, name)["params"])


# Whole steps


def drawn(actor, states, z):
    """Plain sample: log deviation (at most 2), whether it is below that, action, log-probability."""
    outputs = actor(states)
    mean, log_std = outputs[:, :3], np.minimum(outputs[:, 3:], 2.0)
    action = np.tanh(mean + np.exp(log_std) * z)
    u = mean + np.exp(log_std) * z  # 1 - tanh² u is 1 / cosh² u, which does not round to 0
    each = -0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi) + 2 * np.log(np.cosh(u))
    return log_std, outputs[:, 3:] < 2.0, action, each.sum(1)


def test_whole_steps_equal_plain_numpy(made, step):
    state = plain.start(made)
    actor = plain.Net(state.actor["params"], HEADS)
    critics = [plain.Net(getattr(state, name)["params"], ("value",)) for name in CRITICS]
    slow = [plain.Net(getattr(state, f"target_{name}"), ("value",)) for name in CRITICS]
    of_actor, of_critics, of_alpha = plain.Adam(0.01), [plain.Adam(0.01), plain.Adam(0.01)], plain.Adam(0.01)
    alpha = {"log": np.log(0.3)}
    for i in range(3):
        batch, key = plain.transitions(i), jax.random.key(i)
        state, metrics = step(state, batch, key)
        noise = plain.side_by_side(made.update_noise(key, 2 * plain.B))
        now, ahead = noise[: plain.B], noise[plain.B :]
        s, following = (np.asarray(x.observation["state"], float) for x in (batch.now, batch.following))
        weight, a = np.asarray(batch.weight, float), np.exp(alpha["log"])
        _, _, action, log_prob = drawn(actor, following, ahead)
        inputs = np.concatenate([following, action], 1)
        soft = np.minimum(slow[0](inputs)[:, 0], slow[1](inputs)[:, 0]) - a * log_prob
        y = np.asarray(batch.reward) + np.asarray(batch.discount) * soft
        x = np.concatenate([s, plain.side_by_side(batch.action)], 1)
        loss = sum(
            plain.critic_step(c, adam, x, y, weight) for c, adam in zip(critics, of_critics, strict=True)
        )
        log_std, free, action, log_prob = drawn(actor, s, now)
        assert free.any() and not free.all()
        inputs = np.concatenate([s, action], 1)
        values = np.stack([c(inputs)[:, 0] for c in critics])
        share = plain.weighted(np.ones(plain.B), weight)
        slope = np.zeros((plain.B, 3))
        for k, critic in enumerate(critics):
            smaller = (values.argmin(0) == k) * -share
            slope += critic.gradient(inputs, smaller[:, None])[1][:, 3:]
        # u = mean + σ z: log π falls by log σ and by log(1 - tanh² u), whose slope is -2 tanh u.
        by_u = slope * (1 - action**2) + (a * share)[:, None] * 2 * action
        by_log_std = free * (by_u * np.exp(log_std) * now - (a * share)[:, None])
        grads, _ = actor.gradient(s, np.concatenate([by_u, by_log_std], 1))
        of_actor.step(actor.params, grads)
        entropy = -(share * log_prob).sum()
        of_alpha.step(alpha, {"log": a * (entropy + 3.0)})
        for target, online in zip(slow, critics, strict=True):
            plain.polyak(target, online, 0.1)
        assert float(metrics["loss/critic"]) == pytest.approx(loss, rel=1e-4)
        assert float(metrics["policy/entropy"]) == pytest.approx(entropy, rel=1e-4)
    assert float(state.log_temperature) == pytest.approx(alpha["log"], rel=1e-4)
    plain.assert_same(state.actor["params"], actor)
    for name, critic, target in zip(CRITICS, critics, slow, strict=True):
        plain.assert_same(getattr(state, name)["params"], critic)
        plain.assert_same(getattr(state, f"target_{name}"), target)


def test_a_step_whose_gradient_is_not_finite_changes_nothing(made, step):
    state, batch = plain.start(made), plain.transitions()
    broken = batch._replace(reward=batch.reward.at[0].set(jnp.nan))
    after, metrics = step(state, broken, jax.random.key(0))
    assert equal(after, state)
    assert float(metrics["update/skipped"]) == 1.0


@pytest.mark.parametrize("target", [-1.0, -4.0])
def test_the_entropy_becomes_the_target_where_rewards_call_for_certainty(target):
    """Every element should be 0.3, at a price of the squared distance: the temperature finds the balance."""
    network = [{"type": "dense", "size": 32, "activation": "relu"}]
    options = {"target_entropy": target, "temperature": 0.1, "actor_model": network, "critic_model": network}
    made = plain.algorithm("sac", **options)

    @jax.jit
    def many(state):
        def one(state, i):
            own = jax.random.wrap_key_data(jnp.stack([i, jnp.uint32(0)]))
            action = jax.random.uniform(own, (64, 3), minval=-1.0, maxval=1.0)
            batch = plain.transitions()._replace(
                now=NetworkInputs({"state": jnp.ones((64, 3))}),
                following=NetworkInputs({"state": jnp.ones((64, 3))}),
                action={"arm": action[:, :2], "leg": action[:, 2]},
                reward=-jnp.sum(jnp.square(action - 0.3), axis=1),
                discount=jnp.zeros(64),
                weight=jnp.ones(64),
            )
            return made.step(state, batch, jax.random.wrap_key_data(jnp.stack([i, jnp.uint32(1)])))

        return jax.lax.scan(one, state, jnp.arange(2000, dtype=jnp.uint32))

    state, metrics = many(made.init(jax.random.key(0)))
    assert np.asarray(metrics["policy/entropy"])[-300:].mean() == pytest.approx(target, abs=0.25)
    best = made.greedy(made.outputs(state.actor, NetworkInputs({"state": jnp.ones((1, 3))})))
    np.testing.assert_allclose(plain.side_by_side(best), 0.3, atol=0.15)


def test_weights_are_three_models_and_targets_start_from_them(made):
    state, other = plain.start(made), made.init(jax.random.key(7))
    weights = made.weights(other)
    assert list(weights) == ["actor", "critic1", "critic2"]
    put = made.with_weights(state, weights)
    for name in CRITICS:
        assert equal(getattr(put, f"target_{name}"), getattr(other, name)["params"])


def test_an_element_with_one_value_has_no_part_in_entropy():
    spaces = Spaces.read(
        states={"type": "float", "shape": (3,)},
        actions={"type": "float", "shape": (2,), "min_value": [-1.0, 2.0], "max_value": [1.0, 2.0]},
    )
    definition = parse_agent("sac", actor_model=plain.NETWORK, critic_model=plain.NETWORK)
    algorithm = definition.cls.create(definition.config, spaces, 1)
    assert algorithm.target_entropy == -1.0
    outputs = {"action/mean": jnp.asarray([[0.3, 0.7]]), "action/log_std": jnp.asarray([[-1.0, 0.5]])}
    noise = {"action": jnp.asarray([[0.2, -0.4]])}
    _, log_prob = algorithm.draw(outputs, noise)
    free = SquashedNormal(jnp.asarray([0.3]), jnp.asarray([-1.0]), jnp.float32(-1), jnp.float32(1))
    np.testing.assert_allclose(log_prob, free.sample_and_log_prob(jnp.asarray([0.2]))[1], rtol=1e-6)


def test_a_batch_of_nothing_changes_nothing(made, step):
    batch = plain.transitions()
    state, _ = step(plain.start(made), batch, jax.random.key(0))  # so there is momentum
    after, metrics = step(state, batch._replace(weight=jnp.zeros(plain.B)), jax.random.key(1))
    assert equal(after, state)
    assert metrics["update/skipped"] == 0
