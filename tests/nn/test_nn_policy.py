"""Policies: heads, noise and distributions of every kind of action."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from operant.errors import SpecError
from operant.nn import Head, Policy, build
from operant.ops.distributions import Bernoulli, Beta, Categorical, Normal, SquashedNormal
from operant.spec.spaces import Leaf

ACTIONS = {
    "move": Leaf("int", (2,), num_values=3),
    "fire": Leaf("bool"),
    "arm/turn": Leaf("float", (2,), min_value=(-2.0, 0.0), max_value=(4.0, 1.0)),
    "push": Leaf("float"),
}


def outputs_of(policy, lead, value=0.0):
    return {name: jnp.full((*lead, *head.shape), value) for name, head in policy.heads().items()}


def test_heads():
    assert Policy(ACTIONS).heads() == {
        "move/logits": Head((2, 3), scale=0.01, logits=True),
        "fire/logits": Head((), scale=0.01),
        "arm/turn/mean": Head((2,), scale=0.01),
        "arm/turn/log_std": Head((2,), scale=0.01, constant=0.0),
        "push/mean": Head((), scale=0.01),
        "push/log_std": Head((), scale=0.01, constant=0.0),
    }
    predicted = Policy(ACTIONS, std="predicted", bounded="beta").heads()
    assert predicted["push/log_std"].constant is None
    assert {n for n in predicted if n.startswith("arm")} == {"arm/turn/alpha", "arm/turn/beta"}


def test_single_actions_have_distributions_of_their_own():
    own = {"arm/turn": {"distribution": "beta"}, "push": {"std": "predicted"}, "int": {"linear": False}}
    policy = Policy(ACTIONS, own=own)
    assert [policy.kind(name) for name in ACTIONS] == ["categorical", "bernoulli", "beta", "normal"]
    heads = policy.heads()
    assert heads["push/log_std"].constant is None and not heads["move/logits"].linear
    parts = policy.distribution(outputs_of(policy, (4,))).parts
    assert [type(part) for part in parts.values()] == [Categorical, Bernoulli, Beta, Normal]
    # What is chosen by name comes before what is chosen by type.
    both = Policy(ACTIONS, own={"float": {"distribution": "beta"}, "arm/turn": {"distribution": "squash"}})
    assert both.kind("arm/turn") == "squash"


@pytest.mark.parametrize(("bounded", "kind"), [("clip", Normal), ("squash", SquashedNormal), ("beta", Beta)])
def test_kinds_of_distribution(bounded, kind):
    policy = Policy(ACTIONS, bounded=bounded)
    parts = policy.distribution(outputs_of(policy, (4,))).parts
    assert [type(part) for part in parts.values()] == [Categorical, Bernoulli, kind, Normal]


@pytest.mark.parametrize(("bounded", "lead"), [("clip", ()), ("squash", (5,)), ("beta", (5,))])
def test_sample_and_log_prob(bounded, lead):
    policy = Policy(ACTIONS, bounded=bounded)

    @jax.jit
    def draw(outputs, noise):
        distribution = policy.distribution(outputs)
        action = distribution.sample(noise)
        return action, distribution.log_prob(action), distribution.entropy()

    noise = policy.noise(jax.random.key(0), 5)
    noise = noise if lead else jax.tree.map(lambda x: x[0], noise)
    action, log_prob, entropy = draw(outputs_of(policy, lead, 0.3), noise)
    assert {n: x.shape for n, x in action.items()} == {n: (*lead, *leaf.shape) for n, leaf in ACTIONS.items()}
    assert log_prob.shape == entropy.shape == lead
    if bounded != "clip":
        turn = np.asarray(action["arm/turn"])
        assert np.all((turn >= [-2.0, 0.0]) & (turn <= [4.0, 1.0]))


def test_scale_of_bounded_actions():
    policy = Policy({"a": ACTIONS["arm/turn"], "b": ACTIONS["push"]})
    outputs = outputs_of(policy, ())
    # bounds (-2, 4) and (0, 1): centres 1 and 0.5, halves 3 and 0.5
    for mean, expected in ((0.0, [1.0, 0.5]), (1.0, [4.0, 1.0]), (-1.0, [-2.0, 0.0])):
        distribution = policy.distribution(
            {**outputs, "a/mean": jnp.full(2, mean), "b/mean": jnp.asarray(mean)}
        )
        np.testing.assert_allclose(distribution.mode()["a"], expected, atol=1e-6)
        assert distribution.mode()["b"] == mean  # no bounds: as it is
    np.testing.assert_allclose(jnp.exp(distribution.parts["a"].log_std), [3.0, 0.5], rtol=1e-6)
    # the density is in the action's unit: at the mean of the first, 1 / (3 √(2π))
    first = Policy({"a": Leaf("float", min_value=-2.0, max_value=4.0)})
    log_prob = first.distribution(outputs_of(first, ())).log_prob({"a": jnp.asarray(1.0)})
    np.testing.assert_allclose(log_prob, -np.log(3.0 * np.sqrt(2 * np.pi)), rtol=1e-6)


def test_half_open_bounds_count_as_open():
    policy = Policy({"a": Leaf("float", min_value=0.0)}, bounded="squash")
    distribution = policy.distribution({"a/mean": jnp.asarray(2.0), "a/log_std": jnp.asarray(0.0)})
    assert isinstance(distribution.parts["a"], Normal)
    assert distribution.mode()["a"] == 2.0


def test_masked_choices_are_never_drawn():
    policy = Policy({"move": ACTIONS["move"]})
    mask = jnp.broadcast_to(jnp.asarray([[True, False, True], [False, True, False]]), (500, 2, 3))
    distribution = policy.distribution(outputs_of(policy, (500,)), {"move": mask})
    action = np.asarray(distribution.sample(policy.noise(jax.random.key(1), 500))["move"])
    assert set(action[:, 0]) == {0, 2}
    assert set(action[:, 1]) == {1}


def test_predicted_deviation_is_limited():
    policy = Policy({"a": ACTIONS["push"]}, std="predicted")
    part = policy.distribution({"a/mean": jnp.zeros(2), "a/log_std": jnp.asarray([50.0, -50.0])}).parts["a"]
    np.testing.assert_array_equal(part.log_std, [2.0, -20.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"std": "fixed"}, "std must be 'global' or 'predicted'"),
        ({"own": {"push": {"std": "fixed"}}}, "std must be 'global' or 'predicted'"),
        ({"own": {"pusch": {"std": "global"}}}, "must name actions or types of them. Did you mean 'push'"),
        ({"own": {"move": {"std": "global"}}}, "a dict of linear, as the actions are of type int"),
        ({"bounded": "tanh"}, "distribution must be 'clip', 'squash' or 'beta'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(SpecError, match=message):
        Policy(ACTIONS, **options)


def test_policy_gradient_reaches_the_global_deviation():
    policy = Policy({"a": ACTIONS["arm/turn"]})
    model = build([{"type": "dense", "size": 4}], {"state": Leaf("float", (3,))}, policy.heads())
    v = model.init(jax.random.key(0))

    def log_prob(params):
        outputs, _ = model.apply({**v, "params": params}, {"state": jnp.ones((2, 3))})
        return jnp.sum(policy.distribution(outputs).log_prob({"a": jnp.ones((2, 2))}))

    gradient = jax.grad(log_prob)(v["params"])
    # both rows: d log p / d log σ = ((x - μ) / σ)² - 1, and log σ is shared by the rows
    outputs, _ = model.apply(v, {"state": jnp.ones((2, 3))})
    mean = np.asarray([1.0, 0.5]) + np.asarray([3.0, 0.5]) * np.asarray(outputs["a/mean"])
    expected = np.sum(((1.0 - mean) / np.asarray([3.0, 0.5])) ** 2 - 1.0, axis=0)
    np.testing.assert_allclose(gradient["head.a.log_std/constant"], expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("bounded", "std"),
    [("clip", "global"), ("clip", "predicted"), ("squash", "global"), ("beta", "global")],
)
def test_an_element_with_one_value_only_does_no_harm(bounded, std):
    """A density of no width would be infinite, and its gradient no number."""
    leaf = Leaf("float", (2,), min_value=(-1.0, 2.0), max_value=(1.0, 2.0))
    policy = Policy({"a": leaf}, bounded=bounded, std=std)
    noise = policy.noise(jax.random.key(0), 5)

    def likely(outputs):
        distribution = policy.distribution(outputs)
        action = jax.lax.stop_gradient(distribution.sample(noise)["a"])
        low, high = (
            jnp.broadcast_to(jnp.asarray(x, jnp.float32), action.shape) for x in (leaf.low, leaf.high)
        )
        taken = {"a": jnp.clip(action, low, high)}
        value = distribution.log_prob({"a": action}) + distribution.log_prob(taken) + distribution.entropy()
        return value.sum(), (taken["a"], distribution.mode()["a"])

    found = jax.jit(jax.value_and_grad(likely, has_aux=True))(outputs_of(policy, (5,), 0.3))
    (value, (taken, mode)), slope = found
    assert jnp.isfinite(value) and all(jnp.isfinite(x).all() for x in slope.values())
    assert any(x[:, 0].any() for x in slope.values()) and not any(x[:, 1].any() for x in slope.values())
    np.testing.assert_array_equal(taken[:, 1], np.full(5, 2.0, np.float32))
    np.testing.assert_array_equal(mode[:, 1], np.full(5, 2.0, np.float32))
