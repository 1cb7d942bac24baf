"""Distributions: densities that integrate to 1, closed forms against sums and samples, masks, shapes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from operant.ops import distributions

LOGITS = jnp.asarray([0.5, -1.0, 2.0, 0.0])
MASK = jnp.asarray([True, False, True, True])
MANY = 20_000


def f32(x):
    return jnp.asarray(x, jnp.float32)


def squashed(mean=0.3, log_std=-0.4, low=-2.0, high=3.0):
    return distributions.SquashedNormal(f32(mean), f32(log_std), f32(low), f32(high))


def beta(a=2.0, b=3.5, low=-2.0, high=3.0):
    return distributions.Beta(f32(a), f32(b), f32(low), f32(high))


CONTINUOUS = {
    "normal": (
        distributions.Normal(f32(0.3), f32(-0.4)),
        distributions.Normal(f32(-0.5), f32(0.2)),
        (-12.0, 12.0),
    ),
    "squashed": (squashed(), squashed(-0.5, 0.2), (-2.0, 3.0)),
    "beta": (beta(), beta(4.0, 1.5), (-2.0, 3.0)),
}


def spread(dist, n):
    """Repeat a scalar distribution `n` times; bounds stay scalar."""
    bounds = {"low", "high"}
    return type(dist)(
        **{k: v if k in bounds or k == "event_ndim" else jnp.full((n,), v) for k, v in vars(dist).items()}
    )


def draws(dist, key, n=MANY):
    return spread(dist, n).sample(type(dist).noise(key, (n,)))


def log_density(dist, x):
    return np.asarray(spread(dist, len(x)).log_prob(f32(x)), np.float64)


def middles(low, high, n=20_001):
    edges = np.linspace(low, high, n + 1)
    return (edges[1:] + edges[:-1]) / 2, (high - low) / n


@pytest.mark.parametrize("name", CONTINUOUS)
def test_density_integrates_to_one(name):
    dist, _, bounds = CONTINUOUS[name]
    x, width = middles(*bounds)
    np.testing.assert_allclose(np.exp(log_density(dist, x)).sum() * width, 1.0, atol=1e-3)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_entropy_and_kl_are_their_integrals(name):
    dist, other, bounds = CONTINUOUS[name]
    x, width = middles(*bounds)
    log_p, log_q = log_density(dist, x), log_density(other, x)
    np.testing.assert_allclose(dist.entropy(), -(np.exp(log_p) * log_p).sum() * width, atol=2e-3)
    np.testing.assert_allclose(dist.kl(other), (np.exp(log_p) * (log_p - log_q)).sum() * width, atol=2e-3)
    np.testing.assert_allclose(dist.kl(dist), 0.0, atol=1e-6)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_the_deviation_is_its_integral(name):
    dist, _, bounds = CONTINUOUS[name]
    x, width = middles(*bounds)
    p = np.exp(log_density(dist, x)) * width
    mean = (p * x).sum()
    np.testing.assert_allclose(dist.std(), np.sqrt((p * (x - mean) ** 2).sum()), rtol=2e-3)


def test_the_deviation_of_a_product_is_the_mean_over_continuous_elements():
    parts = {
        "arm": distributions.Normal(jnp.zeros((3, 2)), jnp.log(f32([[1.0, 3.0]] * 3)), 1),
        "grip": distributions.Beta(jnp.ones(3), jnp.ones(3), f32(0.0), f32(6.0)),
        "gear": distributions.Categorical(jnp.zeros((3, 4))),
    }
    uniform = 6.0 / np.sqrt(12.0)
    np.testing.assert_allclose(distributions.Product(parts).std(), [(4.0 + uniform) / 3.0] * 3, rtol=1e-6)
    assert distributions.Product({"gear": parts["gear"]}).std() is None


@pytest.mark.parametrize("name", CONTINUOUS)
def test_samples_follow_the_density(name, key):
    dist, _, bounds = CONTINUOUS[name]
    x, width = middles(*bounds)
    p = np.exp(log_density(dist, x)) * width
    mean = (p * x).sum()
    std = np.sqrt((p * (x - mean) ** 2).sum())
    sample = np.asarray(draws(dist, key))
    np.testing.assert_allclose(sample.mean(), mean, atol=5 * std / np.sqrt(MANY))
    np.testing.assert_allclose(sample.std(), std, rtol=0.03)
    # the whole distribution, not two moments: Kolmogorov's distance, 1.95 / sqrt(n) at one in a thousand
    at = np.searchsorted(np.sort(sample), x) / MANY
    assert np.abs(at - np.cumsum(p)).max() < 2.5 / np.sqrt(MANY)


def test_normal_golden():
    # N(1, 2²) at 3: -(2/2)²/2 - log 2 - log(2π)/2 = -0.5 - 0.693147 - 0.918939 = -2.112086
    dist = distributions.Normal(f32(1.0), jnp.log(f32(2.0)))
    np.testing.assert_allclose(dist.log_prob(f32(3.0)), -2.112086, rtol=1e-6)
    # log 2 + (1 + log 2π)/2 = 0.693147 + 1.418939
    np.testing.assert_allclose(dist.entropy(), 2.112086, rtol=1e-6)
    # against N(0, 1): log(1/2) + (4 + 1)/2 - 1/2 = 1.306853
    np.testing.assert_allclose(dist.kl(distributions.Normal(f32(0.0), f32(0.0))), 1.306853, rtol=1e-6)
    np.testing.assert_allclose(dist.sample(f32(-0.5)), 0.0, atol=1e-6)


def test_squashed_log_prob_agrees_with_the_sampled_one(key):
    noise = distributions.SquashedNormal.noise(key, (1000,))
    dist = spread(squashed(), 1000)
    x, log_prob = dist.sample_and_log_prob(noise)
    np.testing.assert_array_equal(x, dist.sample(noise))
    np.testing.assert_allclose(dist.log_prob(x), log_prob, atol=2e-3)


def test_squashed_stays_finite_at_the_bounds():
    def total(mean):
        dist = distributions.SquashedNormal(mean, jnp.zeros(3), f32(-1.0), f32(1.0))
        x, log_prob = dist.sample_and_log_prob(jnp.zeros(3))
        return jnp.sum(dist.log_prob(f32([-1.0, 1.0, 0.0])) + log_prob + dist.entropy() + x)

    value, grad = jax.value_and_grad(total)(f32([-30.0, 30.0, 1.0]))
    assert np.isfinite(value) and np.isfinite(grad).all()


def test_squashed_entropy_holds_for_wide_gaussians():
    # u ~ N(0, 2²), x = tanh u: the entropy of u plus the mean of log dx/du over a fine grid
    u = np.linspace(-40, 40, 400_001)
    p = np.exp(-(u**2) / 8) / np.sqrt(8 * np.pi) * (u[1] - u[0])
    slope = 2 * (np.log(2) - u - np.logaddexp(0, -2 * u))
    exact = (p * slope).sum() + np.log(2) + 0.5 * np.log(2 * np.pi * np.e)
    dist = squashed(0.0, np.log(2.0), -1.0, 1.0)
    np.testing.assert_allclose(dist.entropy(), exact, atol=1e-3)


def test_modes():
    assert distributions.Normal(f32(0.3), f32(1.0)).mode() == f32(0.3)
    # middle 0.5, half 2.5: 0.5 + 2.5 tanh 0.3
    np.testing.assert_allclose(squashed().mode(), 0.5 + 2.5 * np.tanh(0.3), rtol=1e-6)
    # (a-1)/(a+b-2) = 1/3.5 of the way from -2 to 3
    np.testing.assert_allclose(beta().mode(), -2 + 5 / 3.5, rtol=1e-6)
    assert beta(0.5, 2.0).mode() == -2 and beta(2.0, 0.5).mode() == 3
    np.testing.assert_allclose(beta(1.0, 1.0).mode(), 0.5)
    assert (
        distributions.Categorical(LOGITS).mode() == 2
        and distributions.Categorical(LOGITS, LOGITS < 1).mode() == 0
    )
    assert not distributions.Bernoulli(f32(-0.1)).mode() and distributions.Bernoulli(f32(0.1)).mode()


def test_beta_golden():
    # Beta(2, 1) on [0, 2]: density of y is 2y, of x it is y = x/2; at x = 1: log 0.5
    np.testing.assert_allclose(beta(2.0, 1.0, 0.0, 2.0).log_prob(f32(1.0)), np.log(0.5), rtol=1e-6)
    # uniform on [0, 2]: entropy log 2
    np.testing.assert_allclose(beta(1.0, 1.0, 0.0, 2.0).entropy(), np.log(2), rtol=1e-5)


def test_beta_stays_finite_at_the_bounds():
    for x in (-2.0, 3.0):
        grad = jax.grad(lambda a, x=x: beta(a, a).log_prob(f32(x)))(2.0)
        assert np.isfinite(beta().log_prob(f32(x))) and np.isfinite(grad)


def test_beta_draws_each_element_on_its_own_and_the_same_again(key):
    noise = distributions.Beta.noise(key, (64,))
    dist = spread(beta(), 64)
    draw = jax.jit(lambda dist, noise: dist.sample(noise))
    sample = draw(dist, noise)
    assert len(np.unique(sample)) > 60
    np.testing.assert_array_equal(sample, draw(dist, noise))
    # an element's draw is its own noise's and no other's
    np.testing.assert_array_equal(sample[::-1], draw(dist, noise[::-1]))


def test_categorical_matches_exact_sums():
    p, q = distributions.Categorical(LOGITS), distributions.Categorical(-LOGITS)
    e = np.exp(np.asarray(LOGITS, np.float64))
    probs = e / e.sum()
    other = (1 / e) / (1 / e).sum()
    np.testing.assert_allclose(p.probs, probs, rtol=1e-6)
    np.testing.assert_allclose([p.log_prob(jnp.int32(k)) for k in range(4)], np.log(probs), rtol=1e-6)
    np.testing.assert_allclose(p.entropy(), -(probs * np.log(probs)).sum(), rtol=1e-6)
    np.testing.assert_allclose(p.kl(q), (probs * np.log(probs / other)).sum(), rtol=1e-5)


@pytest.mark.parametrize("mask", [None, MASK])
def test_categorical_frequencies(mask, key):
    dist = distributions.Categorical(LOGITS, mask)
    many = distributions.Categorical(
        jnp.tile(LOGITS, (MANY, 1)), None if mask is None else jnp.tile(mask, (MANY, 1))
    )
    counts = np.bincount(many.sample(distributions.Categorical.noise(key, (MANY, 4))), minlength=4)
    probs = np.asarray(dist.probs)
    # five standard deviations of a frequency
    assert (np.abs(counts / MANY - probs) <= 5 * np.sqrt(probs * (1 - probs) / MANY)).all()


def test_mask_removes_a_choice_altogether():
    # removing choice 1 by the mask is the same as never having had it
    masked, fewer = distributions.Categorical(LOGITS, MASK), distributions.Categorical(LOGITS[MASK])
    other, other_fewer = distributions.Categorical(-LOGITS, MASK), distributions.Categorical(-LOGITS[MASK])
    assert masked.probs[1] == 0
    np.testing.assert_allclose(masked.probs[MASK], fewer.probs, rtol=1e-6)
    np.testing.assert_allclose(masked.entropy(), fewer.entropy(), rtol=1e-6)
    np.testing.assert_allclose(
        masked.kl(other), other_fewer.kl(other_fewer) + fewer.kl(other_fewer), rtol=1e-5
    )


def test_mask_keeps_gradients_finite_and_zero_where_forbidden():
    def total(logits):
        dist = distributions.Categorical(logits, MASK)
        return (
            dist.entropy() + dist.kl(distributions.Categorical(-logits, MASK)) + dist.log_prob(jnp.int32(2))
        )

    grad = jax.grad(total)(LOGITS)
    assert np.isfinite(grad).all() and grad[1] == 0 and (np.asarray(grad)[MASK] != 0).all()


def test_mask_that_allows_nothing_is_finite():
    def total(logits):
        dist = distributions.Categorical(logits, jnp.zeros(4, bool))
        return dist.entropy() + dist.kl(dist) + dist.log_prob(jnp.int32(1))

    value, grad = jax.value_and_grad(total)(LOGITS)
    # uniform over four: log 4 - log 4
    np.testing.assert_allclose(value, 0.0, atol=1e-6)
    np.testing.assert_array_equal(grad, np.zeros(4))


def test_ratio_of_forbidden_choices_is_not_nan():
    x = jnp.int32(1)
    ratio = distributions.Categorical(LOGITS, MASK).log_prob(x) - distributions.Categorical(
        2 * LOGITS, MASK
    ).log_prob(x)
    assert np.isfinite(ratio)


def test_bernoulli_matches_the_categorical_of_two(key):
    logit, other = f32(0.7), f32(-1.2)
    mine, two = distributions.Bernoulli(logit), distributions.Categorical(jnp.stack([f32(0.0), logit]))
    theirs, their_two = (
        distributions.Bernoulli(other),
        distributions.Categorical(jnp.stack([f32(0.0), other])),
    )
    for x in (0, 1):
        np.testing.assert_allclose(mine.log_prob(jnp.bool_(x)), two.log_prob(jnp.int32(x)), rtol=1e-6)
    np.testing.assert_allclose(mine.entropy(), two.entropy(), rtol=1e-6)
    np.testing.assert_allclose(mine.kl(theirs), two.kl(their_two), rtol=1e-5)
    p = 1 / (1 + np.exp(-0.7))
    assert abs(float(draws(mine, key).mean()) - p) < 5 * np.sqrt(p * (1 - p) / MANY)


def test_bernoulli_is_finite_when_certain():
    sure = distributions.Bernoulli(f32([200.0, -200.0]))
    assert (
        np.isfinite(sure.entropy()).all()
        and np.isfinite(sure.kl(distributions.Bernoulli(f32([0.0, 0.0])))).all()
    )


def build(kind, batch, event, seed):
    """Make one distribution of each kind with `event` axes per action."""
    shape = (*batch, *event)
    x = np.random.default_rng(seed).normal(size=(4, *shape)).astype(np.float32)
    bounds = np.full(event, -1.0, np.float32), np.full(event, 2.0, np.float32)
    logits = np.moveaxis(x, 0, -1)
    parameters = {
        "categorical": (logits, logits < 2),
        "bernoulli": (x[0],),
        "normal": (x[0], x[1]),
        "squashed": (x[0], x[1], *bounds),
        "beta": (1 + np.exp(x[0]), 1 + np.exp(x[1]), *bounds),
    }[kind]
    return CLASSES[kind](*map(jnp.asarray, parameters), event_ndim=len(event))


CLASSES = {
    "categorical": distributions.Categorical,
    "bernoulli": distributions.Bernoulli,
    "normal": distributions.Normal,
    "squashed": distributions.SquashedNormal,
    "beta": distributions.Beta,
}
KINDS = list(CLASSES)


def drawn(dist, noise):
    """Draw, and return everything that a distribution can say about the draw."""
    x = dist.sample(noise)
    return x, dist.mode(), dist.log_prob(x), dist.entropy(), dist.kl(dist)


@pytest.mark.parametrize("event", [(), (2, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_shapes_and_sums_over_the_event(kind, event, key):
    dist = build(kind, (5,), event, 0)
    noise = type(dist).noise(key, (5, *event, 4) if kind == "categorical" else (5, *event))
    scalars = dataclasses.replace(dist, event_ndim=0)
    x, mode, *sums = jax.jit(drawn)(dist, noise)
    _, _, *terms = jax.jit(drawn)(scalars, noise)
    assert x.shape == mode.shape == (5, *event)
    for total, term in zip(sums, terms, strict=True):
        assert total.shape == (5,) and term.shape == (5, *event)
        np.testing.assert_allclose(total, np.asarray(term).reshape(5, -1).sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_pytree_through_transformations(kind):
    dist = build(kind, (5,), (3,), 0)
    assert jax.jit(lambda d: d)(dist).event_ndim == 1
    assert jax.eval_shape(lambda d: d, dist).event_ndim == 1
    assert jax.tree.structure(jax.tree.map(lambda _: None, dist)).num_leaves == 0
    stopped = jax.tree.map(jax.lax.stop_gradient, dist)
    np.testing.assert_array_equal(stopped.entropy(), dist.entropy())
    with pytest.raises(AttributeError):
        dist.event_ndim = 2


KINDS_OF_PRODUCT = {
    "steer": distributions.NoiseKind(distributions.SquashedNormal, (2,)),
    "gear": distributions.NoiseKind(distributions.Categorical, (4,)),
    "lights": distributions.NoiseKind(distributions.Bernoulli, ()),
}


def product(batch, seed):
    return distributions.Product(
        {
            "steer": build("squashed", batch, (2,), seed),
            "gear": build("categorical", batch, (), seed),
            "lights": build("bernoulli", batch, (), seed),
        }
    )


def test_product_sums_its_parts(key):
    dist, other = product((5,), 0), product((5,), 1)

    @jax.jit
    def everything(dist, other, noise):
        x = dist.sample(noise)
        parts = dist.parts
        return (
            (x, dist.mode()),
            (dist.log_prob(x), dist.entropy(), dist.kl(other)),
            [(p.log_prob(x[k]), p.entropy(), p.kl(other.parts[k])) for k, p in parts.items()],
        )

    noise = distributions.Product.noise(key, KINDS_OF_PRODUCT, (5,))
    actions, sums, terms = everything(dist, other, noise)
    for action in actions:
        assert {k: v.shape for k, v in action.items()} == {"steer": (5, 2), "gear": (5,), "lights": (5,)}
    for total, parts in zip(sums, zip(*terms, strict=True), strict=True):
        assert total.shape == (5,)
        np.testing.assert_allclose(total, np.sum(parts, axis=0), rtol=1e-5, atol=1e-6)


def test_product_noise_depends_on_names_and_not_on_their_order(key):
    reverse = dict(reversed(KINDS_OF_PRODUCT.items()))
    data = jax.random.key_data(key)
    a, b = (
        distributions.Product.noise(jax.random.wrap_key_data(data), kinds, (5,))
        for kinds in (KINDS_OF_PRODUCT, reverse)
    )
    for name in KINDS_OF_PRODUCT:
        np.testing.assert_array_equal(a[name], b[name])


def test_components_of_a_product_have_noise_of_their_own(key):
    kinds = {name: distributions.NoiseKind(distributions.Normal, ()) for name in "ab"}
    noise = distributions.Product.noise(key, kinds, (8,))
    assert not np.allclose(noise["a"], noise["b"])


def test_noise_of_many_rows_is_the_noise_of_each(key):
    keys = jax.random.split(key, 3)
    data = jax.random.key_data(keys)
    together = jax.vmap(lambda k: distributions.Product.noise(k, KINDS_OF_PRODUCT, (5,)))(keys)
    alone = distributions.Product.noise(jax.random.wrap_key_data(data[1]), KINDS_OF_PRODUCT, (5,))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1], b), together, alone)


def test_parameters_are_checked():
    with pytest.raises(Exception, match="log_std"):
        distributions.Normal(jnp.zeros(3), jnp.zeros(4))


@pytest.mark.parametrize("cls", [distributions.SquashedNormal, distributions.Beta])
def test_bounds_whose_distance_is_no_float_are_bounds(cls):
    low, high = f32(-3e38), f32(3e38)
    parts = (f32([0.3]), f32([-0.5])) if cls is distributions.SquashedNormal else (f32([2.0]), f32([3.0]))
    made = cls(*parts, low, high)
    x = made.sample(cls.noise(jax.random.key(0), (1,)))
    assert np.isfinite(x).all() and float(jnp.abs(x[0])) < 3e38
    for number in (made.log_prob(x), made.entropy(), made.mode()):
        assert np.isfinite(number).all()
