"""Optimisers by name, and the step that refuses a non-finite gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from operant.errors import SpecError
from operant.ops import gradient_transforms, optimise

PARAMS = {"w": jnp.asarray([[1.0, -2.0], [0.5, 3.0]]), "b": jnp.asarray([4.0, -1.0])}


def loss(params):
    return sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(params))


@pytest.mark.parametrize("name", gradient_transforms.SCALINGS)
def test_every_optimiser_goes_downhill_with_traced_numbers(name):
    # Adadelta measures its own step, which starts tiny; the others get the usual rate.
    lr = 10.0 if name == "adadelta" else 0.02

    @jax.jit
    def train(lr, beta1, beta2, epsilon, max_norm):
        optimizer = optimise.optimizer(name, lr, beta1, beta2, epsilon, max_norm)

        def step(carry, _):
            params, state = carry
            params, state, info = optimise.apply(optimizer, params, state, jax.grad(loss)(params))
            return (params, state), info["skipped"]

        (params, _), skipped = jax.lax.scan(step, (PARAMS, optimizer.init(PARAMS)), None, length=100)
        return loss(params), skipped.sum()

    numbers = [jnp.float32(x) for x in (lr, 0.9, 0.99, 1e-5, 5.0)]
    final, skipped = train(*numbers)
    assert skipped == 0
    assert final < 0.9 * loss(PARAMS)


def test_learning_rates_map_under_vmap():
    def step(lr):
        optimizer = optimise.optimizer("adam", lr)
        return optimise.apply(optimizer, PARAMS, optimizer.init(PARAMS), jax.grad(loss)(PARAMS))[0]

    out = jax.vmap(step)(jnp.asarray([0.0, 0.1]))
    np.testing.assert_array_equal(out["b"][0], PARAMS["b"])
    # Adam's first step is the rate times the gradient's sign
    np.testing.assert_allclose(out["b"][1], [3.9, -0.9], rtol=1e-5)


def test_adam_golden():
    # g 2, b1 0.9, b2 0.99, eps 1: m = 0.2/0.1 = 2, v = 0.04/0.01 = 4, step 0.3 * 2 / (2 + 1) = 0.2
    optimizer = optimise.optimizer("adam", 0.3, 0.9, 0.99, 1.0)
    params = {"x": jnp.asarray([1.0])}
    new, _, _ = optimise.apply(optimizer, params, optimizer.init(params), {"x": jnp.asarray([2.0])})
    np.testing.assert_allclose(new["x"], [0.8], rtol=1e-6)


def test_rmsprop_golden():
    # g 2, decay 0.75, eps 1 outside of the root: v = 0.25 * 4 = 1, step 0.3 * 2 / (1 + 1) = 0.3
    optimizer = optimise.optimizer("rmsprop", 0.3, beta2=0.75, epsilon=1.0)
    params = {"x": jnp.asarray([1.0])}
    new, _, _ = optimise.apply(optimizer, params, optimizer.init(params), {"x": jnp.asarray([2.0])})
    np.testing.assert_allclose(new["x"], [0.7], rtol=1e-6)


def test_max_norm_bounds_the_norm_over_all_leaves():
    # leaves (3, 0) and (0, 4): norm 5; bound 0.5 scales everything by 0.1
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    grads = {"a": jnp.asarray([3.0, 0.0]), "b": jnp.asarray([0.0, 4.0])}
    optimizer = optimise.optimizer("sgd", 1.0, max_norm=0.5)
    new, _, info = optimise.apply(optimizer, params, optimizer.init(params), grads)
    np.testing.assert_allclose(new["a"], [-0.3, 0.0], rtol=1e-6)
    np.testing.assert_allclose(new["b"], [0.0, -0.4], rtol=1e-6)
    assert info["grad_norm"] == 5 and info["skipped"] == 0
    # a gradient within the bound passes unchanged
    loose = optimise.optimizer("sgd", 1.0, max_norm=6.0)
    np.testing.assert_array_equal(
        optimise.apply(loose, params, loose.init(params), grads)[0]["a"], [-3.0, 0.0]
    )


def test_the_whole_norm_is_bounded_before_any_other_bound():
    """(30, 40) is cut to the norm 5, (3, 4), and then number by number to 3.5.

    The other way round (3.5, 3.5) would stay.
    """
    params, grads = {"a": jnp.zeros(2)}, {"a": jnp.asarray([30.0, 40.0])}
    optimizer = optimise.optimizer({"type": "sgd", "clipvalue": 3.5}, 1.0, max_norm=5.0)
    new, _, _ = optimise.apply(optimizer, params, optimizer.init(params), grads)
    np.testing.assert_allclose(new["a"], [-3.0, -3.5], rtol=1e-6)


@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_a_gradient_that_is_not_finite_changes_nothing(name):
    optimizer = optimise.optimizer(name, 0.1, max_norm=1.0)
    apply = jax.jit(functools.partial(optimise.apply, optimizer))
    good = jax.tree.map(lambda x: 2 * np.asarray(x), PARAMS)
    params, state, _ = apply(PARAMS, optimizer.init(PARAMS), good)
    for bad in (np.nan, np.inf, -np.inf):
        grads = {**good, "b": np.asarray([1.0, bad], np.float32)}
        same, same_state, info = apply(params, state, grads)
        assert info["skipped"] == 1
        for old, new in zip(
            jax.tree.leaves((params, state)), jax.tree.leaves((same, same_state)), strict=True
        ):
            assert np.asarray(old).tobytes() == np.asarray(new).tobytes()
    # Negative control: the plain step would have spoilt the state.
    with jax.numpy_dtype_promotion("standard"):
        _, spoilt = optimizer.transformation.update(optimizer.form(grads), state, optimizer.form(params))
    assert not all(np.isfinite(x).all() for x in jax.tree.leaves(spoilt) if x.dtype == jnp.float32)
    # The next finite gradient counts again.
    after, _, info = apply(same, same_state, good)
    assert info["skipped"] == 0 and not np.array_equal(after["b"], same["b"])


def test_unknown_names_get_a_suggestion():
    with pytest.raises(SpecError, match=r"Unknown optimizer 'adm'\. Did you mean 'adam'\?"):
        optimise.optimizer("adm", 0.1)


@pytest.mark.parametrize(
    ("name", "numbers"), [("adam", {"epsilon": 0.0}), ("rmsprop", {"epsilon": 0.0}), ("sgd", {"lr": 3e38})]
)
def test_a_step_that_is_not_finite_changes_nothing_though_its_gradient_is(name, numbers):
    optimizer = optimise.optimizer(name, **{"lr": 0.1, **numbers})
    grads = jax.tree.map(lambda x: np.full_like(x, 10.0), PARAMS)
    grads["b"][0] = 0.0  # 0 / 0 where there is no epsilon
    state = optimizer.init(PARAMS)
    same, same_state, info = optimise.apply(optimizer, PARAMS, state, grads)
    assert info["skipped"] == 1 and np.isfinite(info["grad_norm"])
    for old, new in zip(jax.tree.leaves((PARAMS, state)), jax.tree.leaves((same, same_state)), strict=True):
        np.testing.assert_array_equal(old, new)
    # Negative control: the plain step would have spoilt the parameters.
    with jax.numpy_dtype_promotion("standard"):
        step, _ = optimizer.transformation.update(optimizer.form(grads), state, optimizer.form(PARAMS))
    assert not all(np.isfinite(x).all() for x in jax.tree.leaves(step))


def test_a_gradient_of_no_data_changes_nothing_not_even_by_momentum():
    adam = optimise.optimizer("adam", 0.1, 0.9, 0.999, 1e-8, None)
    params = {"w": jnp.ones(3)}
    params, state, _ = optimise.apply(adam, params, adam.init(params), {"w": jnp.ones(3)})
    nothing = {"w": jnp.zeros(3)}
    moved, _, _ = optimise.apply(adam, params, state, nothing)
    assert (np.asarray(moved["w"]) != np.asarray(params["w"])).all()  # what would happen
    kept, after, info = optimise.apply(adam, params, state, nothing, has_rows=jnp.asarray(False))
    for a, b in zip(jax.tree.leaves((kept, after)), jax.tree.leaves((params, state)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert float(info["skipped"]) == 0
    broken = {"w": jnp.full(3, jnp.nan)}
    assert float(optimise.apply(adam, params, state, broken, has_rows=jnp.asarray(False))[2]["skipped"]) == 0


def test_what_follows_moves_by_its_share_and_rests_where_it_has_arrived():
    start, end = {"w": jnp.asarray([1.0, -2.0])}, {"w": jnp.asarray([3.0, 2.0])}
    np.testing.assert_array_equal(optimise.interpolate(start, end, 0.25)["w"], [1.5, -1.0])
    drawn = np.random.default_rng(0).normal(size=(2, 1000)).astype(np.float32)
    slow, fast = ({"w": jnp.asarray(x)} for x in drawn)
    np.testing.assert_array_equal(optimise.interpolate(slow, fast, 0.0)["w"], drawn[0])
    np.testing.assert_array_equal(optimise.interpolate(slow, fast, 1.0)["w"], drawn[1])
    np.testing.assert_array_equal(optimise.interpolate(fast, fast, 0.005)["w"], drawn[1])
    # Negative controls: other forms do not copy exactly, or move what has arrived.
    share = np.float32(0.005)
    assert (drawn[0] + (drawn[1] - drawn[0]) != drawn[1]).any()
    assert ((1 - share) * drawn[1] + share * drawn[1] != drawn[1]).any()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adam", "adam"), ("adamw", "adam"), ("lamb", "adam"), ("sgdw", "sgd"), ("nadamw", "nadam"),
     ({"type": "rmsprop", "weight_decay": 0.1, "momentum": 0.5}, "rmsprop")],
)  # fmt: skip
def test_steps_without_decay_do_not_depend_on_the_size_of_parameters(name, kind):
    plain = optimise.without_decay(name)
    assert plain["type"] == kind and plain.get("momentum", 0.0) == (0.0 if isinstance(name, str) else 0.5)
    made = optimise.optimizer(plain, 0.1)
    grads = {"x": jnp.float32([1.0])}

    def step(x):
        params = {"x": jnp.float32([x])}
        return optimise.apply(made, params, made.init(params), grads)[0]["x"] - params["x"]

    np.testing.assert_allclose(step(0.0), step(8.0), rtol=1e-4)
    given = optimise.CustomOptimizer(optax.sgd(0.1))
    assert optimise.without_decay(given) is given
