"""Distributional and noisy variants of DQN: losses against plain loops, the structure of the noise, and
learning."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.agents.test_conformance import random_observation
from tests.ops.test_distributional import projected_slowly
from tests.small_agents import MODEL, Countdown, assert_close, compiled, differing, learner
from tests.training.test_drivers import assert_agree

from operant.agents import dqn
from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import TrainState
from operant.agents.base.protocol import fold
from operant.agents.parts import noisy
from operant.agents.parts.value_heads import CategoricalValue, ExpectedValue, QuantileValue
from operant.errors import SpecError
from operant.types import Transition

B = 16


def batch_of(algorithm, key, terminal=None):
    """Random transitions; the first `terminal` end."""
    observation, following = (random_observation(algorithm.spaces, B, fold(key, i)) for i in range(2))
    action = {
        name: jax.random.randint(fold(key, 2), (B, *leaf.shape), 0, leaf.num_values or 2)
        for name, leaf in algorithm.spaces.actions.components.items()
    }
    discount = jnp.where(jnp.arange(B) < 3, 0.0, 0.9)
    return Transition(
        observation,
        action,
        jax.random.normal(fold(key, 3), (B,)),
        discount,
        following,
        (),
        jnp.zeros((B, 2), jnp.int32),
        jax.random.uniform(fold(key, 4), (B,)),
    )


def made(kind="int", masked=False, **options):
    """An algorithm, and a state whose target is another network than the online one."""
    built = learner("dqn", Countdown(kind=kind, masked=masked), 3, **options)
    state = jax.jit(built.init)(jax.random.key(0), built.hyper()).state
    moved = {name: x + 0.1 * jnp.cos(x * 31.0) for name, x in state.target.items()}
    return built.algorithm, state._replace(target=moved)


def outputs(algorithm, state, batch):
    """Q-network outputs of online(s), target(s'), online(s')."""
    target = {**state.variables, "params": state.target}
    calls = [
        (state.variables, batch.observation),
        (target, batch.next_observation),
        (state.variables, batch.next_observation),
    ]
    outputs = jax.jit(algorithm.outputs)
    return [{k: np.asarray(x) for k, x in outputs(*call).items()} for call in calls]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(("double", "dueling"), [(False, False), (True, True)])
@pytest.mark.parametrize("distributional", ["none", "c51", "quantile"])
def test_loss_equals_a_plain_loop(distributional, double, dueling):
    options = {"distributional": distributional, "atoms": 5, "value_min": -2.0, "value_max": 2.0}
    algorithm, state = made(masked=True, double=double, dueling=dueling, **options)
    batch = batch_of(algorithm, jax.random.key(5))
    mask = np.asarray(batch.next_observation["action_mask"]).copy()
    mask[4] = False  # nothing is allowed there: nothing can follow
    batch.next_observation["action_mask"] = jnp.asarray(mask)
    online, target, choosing = (x["action"] for x in outputs(algorithm, state, batch))
    z, K = np.linspace(-2, 2, 5), 5
    mean = {"none": lambda x: x, "c51": lambda x: softmax(x) @ z, "quantile": lambda x: x.mean(-1)}
    each, priority = np.zeros(B), np.zeros(B)
    for b in range(B):
        q = mean[distributional]((choosing if double else target)[b])
        best = int(np.argmax(np.where(mask[b], q, -np.inf)))
        discount = float(batch.discount[b]) if mask[b].any() else 0.0
        reward = float(batch.reward[b])
        out, after = online[b, int(batch.action["action"][b])], target[b, best]
        if distributional == "none":
            each[b] = (reward + discount * after - out) ** 2
            priority[b] = abs(reward + discount * after - out)
        elif distributional == "c51":
            m = projected_slowly(reward + discount * z, softmax(after), -2.0, 2.0, K)
            each[b] = -(m * np.log(softmax(out))).sum()
            priority[b] = each[b] + sum(p * np.log(p) for p in m if p > 0)
        else:
            u = (reward + discount * after)[None, :] - out[:, None]
            huber = np.where(np.abs(u) <= 1, 0.5 * u**2, np.abs(u) - 0.5)
            side = np.abs((np.arange(K)[:, None] + 0.5) / K - (u < 0))
            each[b], priority[b] = (side * huber).mean(1).sum(), np.abs(u).mean()
    weight = np.asarray(batch.weight)
    params = state.variables["params"]
    total, (error, metrics) = jax.jit(lambda p, s: dqn.loss(p, s, algorithm, batch, jax.random.key(0)))(
        params, state
    )
    np.testing.assert_allclose(total, (each * weight).sum() / weight.sum(), rtol=2e-5)
    np.testing.assert_allclose(error, priority, rtol=1e-4, atol=1e-5)
    chosen = mean[distributional](online)[np.arange(B), np.asarray(batch.action["action"])]
    np.testing.assert_allclose(
        metrics["value/mean"], (chosen * weight).sum() / weight.sum(), rtol=1e-4, atol=1e-6
    )


def test_terminal_target_of_c51_is_all_mass_at_the_reward():
    """Atoms -1, 0, 1 and reward 0.5: half on 0, half on 1; even logits give a cross-entropy of log 3."""
    values = CategoricalValue(3, -1.0, 1.0)
    following = jnp.array([[[3.0, 0.0, -2.0]]])
    fit = values.fit(jnp.zeros((1, 1, 3)), jnp.full((1, 1), 0.5), jnp.zeros((1, 1)), following)
    np.testing.assert_allclose(fit.loss, [[np.log(3)]], rtol=1e-6)
    np.testing.assert_allclose(fit.error, [[np.log(3) - np.log(2)]], rtol=1e-5)
    right = jnp.log(jnp.array([[[1e-9, 0.5, 0.5]]]))
    assert float(values.fit(right, jnp.full((1, 1), 0.5), jnp.zeros((1, 1)), following).error[0, 0]) < 1e-6


def test_one_quantile_of_a_sure_return_is_half_the_huber_loss():
    args = (jnp.array([[[1.0]]]), jnp.array([[2.0]]), jnp.array([[0.5]]), jnp.array([[[4.0]]]))
    np.testing.assert_allclose(QuantileValue(1, None).fit(*args).loss, [[0.5 * 2.5]])  # error 3, κ 1
    np.testing.assert_allclose(QuantileValue(1, 2.0).fit(*args).loss, [[0.5 * 4.0]])
    np.testing.assert_allclose(QuantileValue(1, None).fit(*args).error, [[3.0]])
    flat = [x[..., 0] if x.ndim == 3 else x for x in args]
    np.testing.assert_allclose(ExpectedValue(1.0).fit(*flat).loss, [[2.5]])
    np.testing.assert_allclose(ExpectedValue().fit(*flat).loss, [[9.0]])


@pytest.mark.parametrize("values", [CategoricalValue(4, -1.0, 2.0), QuantileValue(4, None), ExpectedValue()])
def test_targets_are_constants(values):
    taken, following = (jax.random.normal(jax.random.key(i), (2, 3, *values.atoms)) for i in range(2))
    grad = jax.grad(lambda x: values.fit(taken, jnp.ones((2, 1)), jnp.full((2, 3), 0.9), x).loss.sum())
    assert not np.asarray(grad(following)).any()


@pytest.mark.parametrize("distributional", ["c51", "quantile"])
@pytest.mark.slow
def test_elements_of_actions_have_distributions_of_their_own(distributional):
    algorithm, state = made(kind="discrete", distributional=distributional, atoms=5, dueling=True)
    batch = batch_of(algorithm, jax.random.key(2))
    q = algorithm.q_values(state.variables, batch.observation)
    assert {name: x.shape for name, x in q.items()} == {"hand/gear": (B, 2, 3), "brake": (B, 2)}
    raw = algorithm.outputs(state.variables, batch.observation)
    assert raw["hand/gear"].shape == (B, 2, 3, 5)
    if distributional == "quantile":
        np.testing.assert_allclose(q["brake"], np.asarray(raw["brake"]).mean(-1), rtol=1e-5, atol=1e-6)
    taken = algorithm.values.taken(raw["hand/gear"], batch.action["hand/gear"])
    gear = np.asarray(batch.action["hand/gear"])
    np.testing.assert_array_equal(taken[7, 1], raw["hand/gear"][7, 1, gear[7, 1]])


def test_every_gradient_step_draws_a_batch_of_its_own(monkeypatch):
    drawn, sampled = [], dqn.DQN._sampled

    def watched(self, state, memory, key):
        batch = sampled(self, state, memory, key)
        jax.debug.callback(lambda index: drawn.append(index.tolist()), batch.index)
        return batch

    monkeypatch.setattr(dqn.DQN, "_sampled", watched)
    built = learner("dqn", Countdown(), 3, gradient_steps=3)
    train = jax.eval_shape(built.init, jax.random.key(0), built.hyper())
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), train.state)
    block = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), built.block_shape(3))

    @jax.jit
    def learned(key):
        memory = built.algorithm.memory.init(built.example())
        for _ in range(8):
            memory = built.algorithm.memory.add(memory, block)
        return built.algorithm._replay(state, memory, jnp.asarray(True), key)[2]

    learned(jax.random.key(1))
    jax.effects_barrier()
    assert len(drawn) == 3
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]


@pytest.mark.parametrize("distributional", ["none", "c51", "quantile"])
def test_elements_of_an_action_learn_as_if_each_were_alone(distributional):
    """Of two elements of one action and a second action.

    Of the element that may do nothing next nothing follows.
    """
    options = {"distributional": distributional, "atoms": 5, "value_min": -2.0, "value_max": 2.0}
    values = learner("dqn", Countdown(), 3, **options).algorithm.values
    rng, atoms = np.random.default_rng(0), values.atoms
    gear, brake = (
        [jnp.asarray(rng.normal(size=(B, *own, *atoms)), jnp.float32) for _ in range(3)]
        for own in ((2, 3), (2,))
    )
    action = jnp.asarray(rng.integers(0, 2, (B, 3)))
    mask = jnp.asarray(rng.random((B, 2, 3)) < 0.5).at[:4, 0].set(False).at[:4, 1, 1].set(True)
    index = jnp.zeros((B, 2), jnp.int32)
    batch = Transition(
        {},
        {"gear": action[:, :2], "brake": action[:, 2]},
        jnp.asarray(rng.normal(size=B), jnp.float32),
        jnp.where(jnp.arange(B) < 3, 0.0, 0.9),
        {"gear_mask": mask},
        (),
        index,
        jnp.asarray(rng.random(B), jnp.float32),
    )
    together = dqn.Outputs(*({"gear": g, "brake": b} for g, b in zip(gear, brake, strict=True)))
    judge = jax.jit(dqn.td_loss, static_argnums=0)
    total, (error, metrics) = judge(values, together, batch)
    alone = []
    for i in range(3):
        own = dqn.Outputs(*({"it": b if i == 2 else g[:, i]} for g, b in zip(gear, brake, strict=True)))
        seen = {} if i == 2 else {"it_mask": mask[:, i]}
        one = batch._replace(action={"it": action[:, i]}, next_observation=seen)
        alone.append(judge(values, own, one))
    np.testing.assert_allclose(total, np.mean([x[0] for x in alone]), rtol=1e-5)
    np.testing.assert_allclose(error, np.mean([x[1][0] for x in alone], axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        metrics["value/mean"], np.mean([x[1][1]["value/mean"] for x in alone]), rtol=1e-4, atol=1e-6
    )


def test_targets_are_those_of_networks_as_in_use(monkeypatch):
    """Dropout is for the network that learns, on what it learns from."""
    algorithm, state = made(double=True, model=[*MODEL, {"type": "dropout", "rate": 0.5}])
    batch, seen = batch_of(algorithm, jax.random.key(5)), []
    judge = dqn.td_loss
    monkeypatch.setattr(dqn, "td_loss", lambda *x: seen.append(x[1]) or judge(*x))

    @jax.jit
    def found(params):
        dqn.loss(params, state, algorithm, batch, jax.random.key(0))
        return seen.pop()

    for name, x in zip(dqn.Outputs._fields, outputs(algorithm, state, batch), strict=True):
        own = getattr(found(state.variables["params"]), name)["action"]
        assert np.allclose(own, x["action"], rtol=1e-4, atol=1e-5) is (name != "online"), name


def test_huber_reaches_the_loss():
    for distributional in ("none", "quantile"):
        algorithm = learner("dqn", Countdown(), 3, distributional=distributional, huber=0.25).algorithm
        assert algorithm.values.huber == 0.25


# Noise


def test_noise_is_of_rank_one_with_the_biases_sharing_the_outputs_factor():
    params = {"a/kernel": jnp.zeros((3, 4)), "a/bias": jnp.zeros(4), "c/kernel": jnp.zeros((2, 2, 3, 4))}
    sigma = noisy.deviations(params, 0.5)
    assert {name: x.shape for name, x in sigma.items()} == {"a/kernel": (3, 4), "a/bias": (4,)}
    np.testing.assert_allclose(sigma["a/kernel"], np.full((3, 4), 0.5 / np.sqrt(3)), rtol=1e-6)
    np.testing.assert_allclose(sigma["a/bias"], np.full(4, 0.5 / np.sqrt(3)), rtol=1e-6)
    ones = {name: jnp.ones_like(x) for name, x in sigma.items()}
    drawn = noisy.perturbed(params, ones, jax.random.key(3))
    kernel, bias = np.asarray(drawn["a/kernel"]), np.asarray(drawn["a/bias"])
    assert np.linalg.matrix_rank(kernel, tol=1e-5) == 1
    ratio = kernel / bias
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:, :1], (3, 4)), rtol=1e-5)
    # f(x) = sgn(x) √|x| of seven Gaussians: the factors of the inputs and of the outputs
    gaussian = np.asarray(jax.random.normal(jax.random.key(3), (7,)))
    np.testing.assert_allclose(
        np.concatenate([ratio[:, 0], bias]), np.sign(gaussian) * np.sqrt(np.abs(gaussian)), rtol=1e-5
    )
    assert not np.asarray(drawn["c/kernel"]).any()


def test_noise_does_not_depend_on_the_order_of_layers():
    """Compiled functions sort the names of a dict: a layer must get the same noise inside and outside of
    them."""
    sigma = {"head.a/kernel": jnp.ones((2, 3)), "head.a.value/kernel": jnp.ones((2, 1))}
    params = jax.tree.map(jnp.zeros_like, sigma)
    compiled_noise = jax.jit(noisy.perturbed)(params, sigma, jax.random.key(0))
    for name, x in noisy.perturbed(params, sigma, jax.random.key(0)).items():
        np.testing.assert_allclose(x, compiled_noise[name], rtol=1e-5, err_msg=name)


def test_noise_has_mean_zero_and_follows_sigma():
    params = {"a/kernel": jnp.ones((2, 3))}
    sigma = {"a/kernel": jnp.array([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])}
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = np.asarray(jax.vmap(lambda k: noisy.perturbed(params, sigma, k)["a/kernel"])(keys)) - 1.0
    np.testing.assert_allclose(drawn.mean(0), np.zeros((2, 3)), atol=0.1)
    # E f(x)² = E |x| = √(2/π), so ε has the variance 2/π
    np.testing.assert_allclose(drawn.std(0), np.asarray(sigma["a/kernel"]) * np.sqrt(2 / np.pi), rtol=0.06)


@pytest.mark.slow
def test_noise_of_acting_is_new_after_every_update_and_greedy_acting_has_none():
    agent = compiled("dqn", Countdown(), noisy=True)
    train, _, metrics = agent.run(0, 10)
    later = train._replace(counters=train.counters._replace(updates=train.counters.updates + 1))
    acting = [agent.learner.acting(x).policy for x in (train, train, later)]
    assert differing(acting[0], acting[1]) == []
    assert any("exploring" in name for name in differing(acting[0], acting[2]))
    assert not any("exploring" not in name for name in differing(acting[0], acting[2]))
    assert metrics[0]["explore/epsilon"] == 1.0
    assert metrics[-1]["explore/epsilon"] == 0.0  # the 12 random steps are over
    algorithm = agent.learner.algorithm
    observation = random_observation(algorithm.spaces, 500, jax.random.key(1))
    noise = algorithm.noise(jax.random.key(2), 500)

    def act(policy, explore):
        return np.asarray(algorithm.act(policy, observation, (), noise, explore).action["action"])

    best = np.asarray(algorithm.q_values(train.state.variables, observation)["action"]).argmax(-1)
    np.testing.assert_array_equal(act(acting[0], False), best)
    assert (act(acting[0], True) != best).any()
    assert (act(acting[0], True) != act(acting[2], True)).any()


@pytest.mark.slow
def test_without_deviations_the_first_update_is_that_of_the_plain_agent():
    """With σ = 0 losses and gradients of μ are the plain ones, whatever the noise.

    Σ gets gradients all the same.
    """
    plain, state = made()
    quiet, quiet_state = made_noisy(0.0)
    batch = batch_of(plain, jax.random.key(5))
    key = jax.random.key(9)
    grad = jax.grad(lambda p: dqn.loss(p, state, plain, batch, key)[0])(state.variables["params"])
    quiet_grad = jax.grad(lambda p: dqn.loss(p, quiet_state, quiet, batch, key)[0])(
        quiet.learned(quiet_state)
    )
    assert_close(grad, quiet_grad["params"], rtol=1e-5, atol=1e-7)
    assert set(quiet_grad["sigma"]) == set(grad)  # this network has dense layers only
    assert all(np.abs(np.asarray(x)).max() > 0 for x in quiet_grad["sigma"].values())


def made_noisy(std):
    _, state = made()
    quiet = learner("dqn", Countdown(), 3, noisy=True, noisy_std=std).algorithm
    noise = noisy.Noise(noisy.deviations(state.variables["params"], std), jax.random.key(4))
    target = {"params": state.target, "sigma": noise.sigma}
    return quiet, state._replace(noise=noise, target=target)


def test_gradient_of_sigma_is_that_of_mu_times_the_noise():
    """dL/dσ = ε dL/dw, with ε = (w - μ) / σ as the online network drew it."""
    algorithm, state = made_noisy(0.5)
    batch, key = batch_of(algorithm, jax.random.key(5)), jax.random.key(9)
    learned = algorithm.learned(state)
    gradient = jax.jit(lambda key: jax.grad(lambda p: dqn.loss(p, state, algorithm, batch, key)[0])(learned))
    grads, drawn = gradient(key), algorithm.perturbed(learned, key, 0)
    for name, sigma in learned["sigma"].items():
        epsilon = (drawn[name] - learned["params"][name]) / sigma
        np.testing.assert_allclose(
            grads["sigma"][name], grads["params"][name] * epsilon, rtol=1e-3, atol=1e-5
        )
    assert differing(grads["params"], gradient(jax.random.key(8))["params"]) != []


@pytest.mark.slow
def test_training_moves_sigma_and_syncs_it_to_the_target():
    agent = compiled("dqn", Countdown(), noisy=True)
    start = agent.begin(0)[0]
    train, _, metrics = agent.run(0, 10)
    assert all(
        name in differing(start.state.noise.sigma, train.state.noise.sigma)
        for name in differing(train.state.noise.sigma, jax.tree.map(jnp.zeros_like, train.state.noise.sigma))
    )
    assert differing(start.state.target["sigma"], train.state.target["sigma"]) != []
    assert differing(start.state.noise.key, train.state.noise.key) == []
    assert np.isfinite(metrics[-1]["loss/td"])


@pytest.mark.slow
def test_a_target_that_is_synced_later_than_steps_are_counted_stays():
    agent = compiled("dqn", Countdown(), target_sync_steps=10**10, buffer_initial_size=4)
    train = agent.run(0, 10)[0]
    assert differing(train.state.target, agent.begin(0)[0].state.target) == []


# Mistakes


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(
        SpecError, match=r"value_min must be below value_max\. Received: value_min=3\.0, value_max=1\.0"
    ):
        parse_agent("dqn", value_min=3.0, value_max=1.0)
    with pytest.raises(SpecError, match=r"value_min must be below value_max\. Received: value_min=Schedule"):
        parse_agent("dqn", value_min={"type": "linear", "start": 0.0, "end": 2.0, "steps": 9}, value_max=1.0)
    for name in ("beta1", "beta2"):  # Adam would divide 0 by 0
        with pytest.raises(SpecError, match=rf"{name} must be below 1\. Received: {name}=1\.0"):
            parse_agent("dqn", **{name: 1.0})
    with pytest.raises(
        SpecError,
        match=r"cross-entropy\. Received: huber=1\.0\. Leave it out, or use distributional='quantile'",
    ):
        parse_agent("dqn", distributional="c51", huber=1.0)
    with pytest.raises(SpecError, match="atoms"):
        parse_agent("dqn", atoms=1)
    with pytest.raises(SpecError, match="distributional"):
        parse_agent("dqn", distributional="c52")
    with pytest.raises(
        SpecError, match=r"noisy needs a network with dense layers\. Received weights: conv/kernel"
    ):
        noisy.deviations({"conv/kernel": jnp.zeros((3, 3, 1, 2))}, 0.5)


# Whole runs

EVERYTHING = {
    "double": True,
    "dueling": True,
    "prioritized": True,
    "n_steps": 3,
    "normalize_observations": True,
}
VARIANTS = {
    "c51": {"distributional": "c51", "atoms": 11, **EVERYTHING, "noisy": True},
    "quantile": {"distributional": "quantile", "atoms": 5, "huber": 0.5, **EVERYTHING},
    "noisy": {"noisy": True},
}


@pytest.mark.parametrize(
    ("variant", "kind", "masked"),
    [("c51", "discrete", False), pytest.param("quantile", "int", True, marks=pytest.mark.exhaustive)],
)
@pytest.mark.slow
def test_all_options_together_run_and_repeat(variant, kind, masked):
    agent = compiled("dqn", Countdown(kind=kind, masked=masked), **VARIANTS[variant])
    one, _, metrics = agent.run(3, 12)
    two = agent.run(3, 12)[0]
    assert differing(one, two) == []
    assert all(np.isfinite(x) for x in metrics[-1].values()), metrics[-1]
    assert metrics[-1]["update/skipped"] == 0
    assert isinstance(one, TrainState)


@pytest.mark.exhaustive
@pytest.mark.parametrize("variant", VARIANTS)
def test_drivers_agree_on_the_variants(variant):
    assert_agree(compiled("dqn", Countdown(), **VARIANTS[variant]))


LEARNERS = {
    "c51": {"distributional": "c51", "value_min": -20.0, "value_max": 20.0, "model": MODEL},
    "quantile": {"distributional": "quantile", "atoms": 16},
    "noisy": {"noisy": True},
    "c51-noisy-double-dueling": {
        **VARIANTS["c51"],
        "value_min": -20.0,
        "value_max": 20.0,
        "n_steps": 1,
        "atoms": 51,
    },
}


@pytest.fixture
def probes():
    """The functions of the probe tests, which know the settings of every agent."""
    from tests.agents import test_probes

    return test_probes


@pytest.mark.exhaustive
@pytest.mark.parametrize("probe", ["constant", "discount", "observation-action", "time-limit", "mask"])
@pytest.mark.parametrize("variant", LEARNERS)
def test_variants_learn_the_probes(probes, variant, probe):
    found = probes.on_device("dqn", f"probe/{probe}", **LEARNERS[variant])
    probes.check("dqn", f"probe/{probe}", found)


@pytest.mark.exhaustive
def test_a_support_that_is_too_narrow_fails_the_time_limit_probe(probes):
    """Control: the value 10 cannot be said with atoms up to 5."""
    narrow = {"distributional": "c51", "value_min": -5.0, "value_max": 5.0}
    found = probes.on_device("dqn", "probe/time-limit", **narrow)
    with pytest.raises(AssertionError, match="is right"):
        probes.check("dqn", "probe/time-limit", found)
