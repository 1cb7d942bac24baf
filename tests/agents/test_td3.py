"""TD3: each of its properties by itself, targets by hand, whole updates against plain NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import plain_actor_critic as plain
from tests.small_agents import Countdown, compiled, equal

from operant.agents import td3
from operant.agents.base.agent_spec import parse_agent
from operant.agents.parts.action_scaling import from_units
from operant.agents.parts.off_policy import NetworkInputs
from operant.spec.spaces import Spaces

HEADS = ("arm", "leg")
CRITICS = ("critic1", "critic2")


@pytest.fixture(scope="module")
def made():
    return plain.algorithm("td3", tau=0.1)


@pytest.fixture(scope="module")
def step(made):
    return jax.jit(made.step)


def constant(params, value):
    """Return a network's parameters that make its output a constant."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {**zeros, "head.value/bias": jnp.full((1,), value)}


# Smoothing


def test_smoothing_noise_is_normal_and_differs_between_samples_elements_and_keys(made):
    one = made.update_noise(jax.random.key(0), 40_000)
    flat = plain.side_by_side(one)
    assert flat.shape == (40_000, 3)
    assert np.abs(flat.mean(0)).max() < 4 / np.sqrt(40_000)
    np.testing.assert_allclose(flat.std(0), 1.0, rtol=0.02)
    np.testing.assert_allclose((np.abs(flat) < 1).mean(), 0.6827, atol=0.005)
    np.testing.assert_allclose((np.abs(flat) > 3).mean(), 0.0027, atol=0.0007)
    assert np.isfinite(flat).all()
    assert np.abs(np.corrcoef(flat.T) - np.eye(3)).max() < 0.03
    assert np.abs(np.corrcoef(flat[:-1, 0], flat[1:, 0])[0, 1]) < 0.03
    assert len(np.unique(flat)) > 0.98 * flat.size
    other = plain.side_by_side(made.update_noise(jax.random.key(1), 40_000))
    assert np.abs(np.corrcoef(flat[:, 0], other[:, 0])[0, 1]) < 0.03


def test_smoothed_actions_by_hand(made):
    """σ = 0.2, c = 0.5: noise of 1, 4, -4 becomes 0.2, 0.5, -0.5.

    Then 0.9 + 0.2 is cut to 1, and -0.8 - 0.5 to -1.
    """
    units = {"arm": jnp.array([[0.9, 0.0], [0.1, -0.8]]), "leg": jnp.array([0.0, 0.3])}
    noise = {"arm": jnp.array([[1.0, 4.0], [1.0, -4.0]]), "leg": jnp.array([-4.0, 0.0])}
    smoothed = made.smoothed(units, noise)
    np.testing.assert_allclose(smoothed["arm"], [[1.0, 0.5], [0.3, -1.0]], rtol=1e-6)
    np.testing.assert_allclose(smoothed["leg"], [-0.5, 0.3], rtol=1e-6)


def test_every_sample_of_a_step_has_its_own_noise(made, monkeypatch):
    """On a batch of equal samples the targets differ, and only because of the noise."""
    state = plain.start(made)
    batch = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), plain.transitions())
    seen = []
    monkeypatch.setattr(td3, "critic_loss", lambda *arguments: seen.append(arguments[-1]) or 1 / 0)
    for key in (0, 0, 1):
        with pytest.raises(ZeroDivisionError):
            made.step(state, batch, jax.random.key(key))
    one, again, other = (np.asarray(x) for x in seen)
    assert len(np.unique(one)) > plain.B // 2  # some are cut to the same bound
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    quiet = plain.algorithm("td3", policy_noise_coef=0.0)
    still = quiet.target(state, batch, quiet.update_noise(jax.random.key(0), plain.B))
    assert len(np.unique(np.asarray(still).round(5))) == 1


# The target


@pytest.mark.parametrize(("one", "two"), [(2.0, 3.0), (3.0, 2.0)])
def test_the_target_is_the_smaller_of_both_critics(made, one, two):
    """y = r + 0.9 * 2, and r where the episode ended."""
    state = plain.start(made)
    state = state._replace(
        target_critic1=constant(state.target_critic1, one), target_critic2=constant(state.target_critic2, two)
    )
    batch = plain.transitions()
    noise = made.update_noise(jax.random.key(0), plain.B)
    expected = np.asarray(batch.reward) + 1.8 * (np.asarray(batch.discount) > 0)
    np.testing.assert_allclose(made.target(state, batch, noise), expected, rtol=1e-6)


def test_the_target_asks_target_networks_only(made):
    state, batch = plain.start(made), plain.transitions()
    noise = made.update_noise(jax.random.key(0), plain.B)
    y = made.target(state, batch, noise)
    other = plain.start(made, 1)
    online = state._replace(actor=other.actor, critic1=other.critic1, critic2=other.critic2)
    np.testing.assert_array_equal(made.target(online, batch, noise), y)
    for field in ("target_actor", "target_critic1", "target_critic2"):
        changed = state._replace(**{field: getattr(other, field)})
        assert not np.array_equal(made.target(changed, batch, noise), y), field


def test_both_critics_learn_from_one_target(made, monkeypatch):
    """With equal parameters they take equal steps: neither has a target, or noise, of its own."""
    state = plain.start(made)
    state = state._replace(critic2=state.critic1)
    after, _ = jax.jit(made.step)(state, plain.transitions(), jax.random.key(0))
    assert equal(after.critic1, after.critic2)
    assert not equal(after.critic1, state.critic1)


def test_critics_start_different_from_one_another(made):
    state = made.init(jax.random.key(0))
    kernels = [np.asarray(getattr(state, name)["params"]["body.dense0/kernel"]) for name in CRITICS]
    assert np.abs(kernels[0] - kernels[1]).max() > 0.1
    for name in ("actor", *CRITICS):
        assert equal(getattr(state, f"target_{name}"), getattr(state, name)["params"])


def test_critics_of_a_keras_model_with_weights_of_its_own_differ():
    """The first takes the weights over, the second draws its own."""
    import keras

    inputs = [keras.Input((3,), name="state"), keras.Input((2,), name="arm"), keras.Input((1,), name="leg")]
    hidden = keras.layers.Dense(4, "relu", kernel_initializer=keras.initializers.HeNormal(seed=1))(
        keras.layers.Concatenate()(inputs)
    )
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    made = plain.algorithm("td3", critic_model=model)
    state = made.init(jax.random.key(0))
    one, two = (state.critic1["params"], state.critic2["params"])
    assert [x.shape for x in one.values()] == [x.shape for x in two.values()]
    given = np.asarray(model.layers[-2].kernel)
    kernels = [
        next(np.asarray(x) for x in params.values() if x.shape == given.shape) for params in (one, two)
    ]
    np.testing.assert_array_equal(kernels[0], given)
    assert np.abs(kernels[1] - given).max() > 0.05


# The delay


def moved(before, after):
    """Which parts of the state changed."""
    fields = ("actor", *CRITICS, "target_actor", "target_critic1", "target_critic2", "actor_optimizer")
    return {field for field in fields if not equal(getattr(before, field), getattr(after, field))}


def test_actor_and_targets_move_on_every_second_step_only(made, step):
    state = plain.start(made)
    late = {"actor", "target_actor", "target_critic1", "target_critic2", "actor_optimizer"}
    for i in range(4):
        after, metrics = step(state, plain.transitions(i), jax.random.key(i))
        assert moved(state, after) == ({*CRITICS} if i % 2 == 0 else {*CRITICS} | late)
        assert bool(jnp.isnan(metrics["loss/actor"])) is (i % 2 == 0)
        state = after


def test_the_delay_counts_over_the_whole_run_not_per_update():
    """One gradient step per update: were the count to start anew with each, the actor would never move."""
    agent = compiled("td3", Countdown(kind="float"), gradient_steps=1, policy_delay=3)
    train, world = agent.begin(0)
    updates, moves = 0, []
    for _ in range(20):
        block, world = agent.collect(train, world)
        before, made = train.state, int(train.counters.updates)
        train, _ = agent.absorb(train, block)
        if int(train.counters.updates) > made:
            updates += 1
            moves.append(not equal(before.actor, train.state.actor))
    assert moves == [(i + 1) % 3 == 0 for i in range(updates)]
    assert updates > 9


# Whole steps


def test_whole_steps_equal_plain_numpy(made, step):
    state = plain.start(made)
    actor, slow_actor = (plain.Net(x, HEADS) for x in (state.actor["params"], state.target_actor))
    critics = [plain.Net(getattr(state, name)["params"], ("value",)) for name in CRITICS]
    slow = [plain.Net(getattr(state, f"target_{name}"), ("value",)) for name in CRITICS]
    of_actor, of_critics = plain.Adam(0.01), [plain.Adam(0.01), plain.Adam(0.01)]
    for i in range(4):
        batch, key = plain.transitions(i), jax.random.key(i)
        state, metrics = step(state, batch, key)
        noise = plain.side_by_side(made.update_noise(key, plain.B))
        s, following = (np.asarray(x.observation["state"], float) for x in (batch.now, batch.following))
        weight = np.asarray(batch.weight, float)
        ahead = np.clip(np.tanh(slow_actor(following)) + np.clip(0.2 * noise, -0.5, 0.5), -1, 1)
        inputs = np.concatenate([following, ahead], 1)
        y = np.asarray(batch.reward) + np.asarray(batch.discount) * np.minimum(
            slow[0](inputs)[:, 0], slow[1](inputs)[:, 0]
        )
        x = np.concatenate([s, plain.side_by_side(batch.action)], 1)
        loss = sum(
            plain.critic_step(c, adam, x, y, weight) for c, adam in zip(critics, of_critics, strict=True)
        )
        if i % 2 == 1:
            plain.actor_step(actor, critics[0], of_actor, s, weight)
            plain.polyak(slow_actor, actor, 0.1)
            for target, online in zip(slow, critics, strict=True):
                plain.polyak(target, online, 0.1)
        assert float(metrics["loss/critic"]) == pytest.approx(loss, rel=1e-4)
    plain.assert_same(state.actor["params"], actor)
    plain.assert_same(state.target_actor, slow_actor)
    for name, critic, target in zip(CRITICS, critics, slow, strict=True):
        plain.assert_same(getattr(state, name)["params"], critic)
        plain.assert_same(getattr(state, f"target_{name}"), target)


def test_the_comparison_with_plain_numpy_sees_another_actor_objective(made, step):
    """A control: an actor that climbs the second critic ends elsewhere."""
    state = plain.start(made)._replace(steps=jnp.int32(1))
    batch = plain.transitions()
    after, _ = step(state, batch, jax.random.key(0))
    actor, weight = plain.Net(state.actor["params"], HEADS), np.asarray(batch.weight, float)
    critic = plain.Net(after.critic2["params"], ("value",))
    plain.actor_step(
        actor, critic, plain.Adam(0.01), np.asarray(batch.now.observation["state"], float), weight
    )
    with pytest.raises(AssertionError):
        plain.assert_same(after.actor["params"], actor)


def test_a_step_whose_gradient_is_not_finite_moves_nothing_but_the_count(made, step):
    state = plain.start(made)._replace(steps=jnp.int32(1))
    batch = plain.transitions()
    broken = batch._replace(reward=batch.reward.at[0].set(jnp.nan))
    after, metrics = step(state, broken, jax.random.key(0))
    assert moved(state, after) == set()
    assert (int(after.steps), float(metrics["update/skipped"])) == (0, 1.0)


def test_weights_are_three_models_and_targets_start_from_them(made):
    state, other = plain.start(made), made.init(jax.random.key(7))
    weights = made.weights(other)
    assert list(weights) == ["actor", "critic1", "critic2"]
    put = made.with_weights(state, weights)
    for name in weights:
        assert equal(getattr(put, name), getattr(other, name))
        assert equal(getattr(put, f"target_{name}"), getattr(other, name)["params"])


def test_critics_take_no_notice_of_an_element_with_one_value_only():
    """In experience it is always 0 in units: of anything else that the actor says of it they have learnt
    nothing."""
    spaces = Spaces.read(
        states={"type": "float", "shape": (3,)},
        actions={"type": "float", "shape": (2,), "min_value": [-1.0, 2.0], "max_value": [1.0, 2.0]},
    )
    definition = parse_agent(
        "td3", actor_model=[{"type": "dense", "size": 8}], critic_model=[{"type": "dense", "size": 8}]
    )
    algorithm = definition.cls.create(definition.config, spaces, 1)
    state = algorithm.init(jax.random.key(0))
    observation = {"state": jnp.ones((1, 3))}

    def value(units):
        return algorithm.value("critic1", state.critic1, NetworkInputs(observation), {"action": units})[0]

    slope = jax.grad(value)(jnp.array([[0.3, 0.4]]))
    assert slope[0, 0] != 0 and slope[0, 1] == 0
    assert value(jnp.array([[0.3, 0.4]])) == value(jnp.array([[0.3, 0.0]]))
    action = from_units(spaces.actions.components, {"action": jnp.array([[0.5, 0.9]])})["action"]
    np.testing.assert_allclose(action, [[0.5, 2.0]])
