"""ACER: gradient, trust region and targets against numbers worked by hand and against loops.

Replay and its averages.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from tests.small_agents import RECURRENT, Countdown, compile_agent, compiled, differing, learned, learner

from operant.agents import acer
from operant.agents.acer import ACER, ActionElement, Config, State, policy_gradient, project
from operant.errors import SpecError
from operant.ops import prng
from operant.spec.spaces import Spaces
from operant.types import Rollout


def row(prob, behaviour, taken, q, q_ret):
    prob, q = np.asarray(prob, np.float32), np.asarray(q, np.float32)
    one_hot = np.arange(len(prob)) == taken
    return ActionElement(
        jnp.log(prob), jnp.log(np.float32(behaviour)), one_hot, q, (prob * q).sum(), np.float32(q_ret)
    )


def test_gradient_of_two_actions_is_truncated_and_corrected():
    """Ratios 8 and 2/9, c = 2. V = 0.8 * 3 + 0.2 * 1 = 2.6.

    Taken: min(8, 2) * (4 - 2.6) / 0.8 = 3.5. Corrected: (1 - 2/8) * (3 - 2.6) = 0.3, and nothing where the
    ratio is below c.
    """
    taken = row([0.8, 0.2], [0.1, 0.9], 0, [3.0, 1.0], 4.0)
    np.testing.assert_allclose(policy_gradient(taken, c=2.0, epsilon=0.0), [3.8, 0.0], atol=1e-5)
    np.testing.assert_allclose(policy_gradient(taken, c=8.0, epsilon=0.0), [14.0, 0.0], atol=1e-4)
    np.testing.assert_allclose(policy_gradient(taken, c=2.0, epsilon=0.2), [3.1, 0.0], atol=1e-5)
    other = row([0.8, 0.2], [0.1, 0.9], 1, [3.0, 1.0], 4.0)  # 2/9 * 1.4 / 0.2
    np.testing.assert_allclose(policy_gradient(other, c=2.0, epsilon=0.0), [0.3, 1.4 / 0.9], atol=1e-5)


def expected_gradient(c, correct=True):
    """The mean of g over actions drawn from μ, when Qret is the true action value."""
    prob, behaviour, q = [0.7, 0.25, 0.05], [0.1, 0.2, 0.7], [1.0, -2.0, 0.5]
    total = np.zeros(3)
    for taken in range(3):
        g = policy_gradient(row(prob, behaviour, taken, q, q[taken]), c=c, epsilon=0.0)
        if not correct:
            g = np.where(np.arange(3) == taken, g, 0.0)
            ratio = prob[taken] / behaviour[taken]
            v = np.dot(prob, q)
            g[taken] = min(c, ratio) * (q[taken] - v) / prob[taken]
        total += behaviour[taken] * np.asarray(g)
    return total, np.asarray(q) - np.dot(prob, q)


@pytest.mark.parametrize("c", [0.5, 1.0, 3.0, 100.0])
def test_bias_correction_makes_the_gradient_unbiased_for_every_bound(c):
    """E_μ[g] = Q - V, the gradient of Σ π Q in φ up to a constant: what truncation takes, the correction
    gives back."""
    found, true = expected_gradient(c)
    np.testing.assert_allclose(found, true, atol=1e-5)
    truncated, _ = expected_gradient(c, correct=False)
    assert np.allclose(truncated, true, atol=1e-5) == (
        c == 100.0
    )  # the negative control; no ratio reaches 100


def test_projection_of_two_probabilities():
    """k = -(0.5/0.8, 0.5/0.2) = -(0.625, 2.5), k·g = 5, |k|² = 6.640625: z = g - 4/6.640625 k, so k·z = 1."""
    log_prob, log_average = jnp.log(jnp.array([0.8, 0.2])), jnp.log(jnp.array([0.5, 0.5]))
    z = project(jnp.array([0.0, -2.0]), log_prob, log_average, delta=1.0, epsilon=0.0)
    np.testing.assert_allclose(z, [4 * 0.625 / 6.640625, -2 + 4 * 2.5 / 6.640625], atol=1e-5)
    assert float(-0.625 * z[0] - 2.5 * z[1]) == pytest.approx(1.0, abs=1e-5)


def test_epsilon_is_added_to_what_divides_in_the_projection():
    """ε = 0.1: k = -(0.5/0.9, 0.5/0.3), k·g = 10/3, |k|² + ε = 25/81 + 25/9 + 0.1."""
    log_prob, log_average = jnp.log(jnp.array([0.8, 0.2])), jnp.log(jnp.array([0.5, 0.5]))
    z = project(jnp.array([0.0, -2.0]), log_prob, log_average, delta=1.0, epsilon=0.1)
    share = (10 / 3 - 1) / (25 / 81 + 25 / 9 + 0.1)
    np.testing.assert_allclose(z, [share * 5 / 9, -2 + share * 5 / 3], rtol=1e-5)


def test_projection_is_the_nearest_point_that_keeps_the_bound():
    rng = np.random.default_rng(0)
    inside = outside = 0
    for _ in range(40):
        p, a = rng.dirichlet(np.ones(4), 2).astype(np.float32)
        g, delta = rng.normal(size=4).astype(np.float32), 0.3
        z = np.asarray(project(g, np.log(p), np.log(a), delta=delta, epsilon=0.0))
        k = -a / p
        if k @ g <= delta:
            np.testing.assert_array_equal(z, g)
            inside += 1
            continue
        outside += 1
        assert k @ z == pytest.approx(delta, abs=1e-3)
        other = g + rng.normal(size=(2000, 4)) * np.linalg.norm(z - g)
        allowed = other[other @ k <= delta]
        assert len(allowed)
        assert (np.linalg.norm(allowed - g, axis=1) >= np.linalg.norm(z - g) - 1e-5).all()
    assert inside > 5
    assert outside > 5


# The loss as a whole, with a table in the place of the network


class Table(ACER):
    """ACER whose parameters are the outputs themselves, so that gradients are those in logits and action
    values."""

    def evaluate(self, variables, block):
        return variables["params"]


def table(actions=None, masked=False, cls=Table, **options):
    states = {"x": {"type": "float", "shape": (1,)}}
    if masked:
        states["action_mask"] = {"type": "bool", "shape": (3,)}
    spaces = Spaces.read(states=states, actions=actions or {"type": "int", "num_values": 3})
    chosen = {"model": [{"type": "dense", "size": 2}], "gamma": 0.9, "epsilon": 1e-12, **options}
    return cls.create(Config(**chosen), spaces, 1)


def stream(seed, T=12, N=2, K=3, mask=None):
    """A block with ends of both kinds, a policy far from the one that acted, and the average's outputs."""
    rng = np.random.default_rng(seed)
    ends = rng.choice(["", "terminated", "truncated"], (T, N), p=[0.6, 0.2, 0.2])
    for t in range(1, T):
        ends[t] = np.where((ends[t - 1] != "") & (ends[t - 1] != "invalid"), "invalid", ends[t])
    behaviour = rng.normal(size=(T, N, K)) * 1.5
    allowed = np.ones((T + 1, N, K), bool) if mask is None else np.broadcast_to(mask, (T + 1, N, K))
    action = rng.choice(np.flatnonzero(allowed[0, 0]), (T, N))
    observation = {"x": jnp.zeros((T + 1, N, 1))}
    if mask is not None:
        observation["action_mask"] = jnp.asarray(allowed)
    log_probs = log_softmax(np.where(allowed[:-1], behaviour, -np.inf))
    block = Rollout(
        observation=observation,
        action={"action": jnp.asarray(action, jnp.int32)},
        reward=jnp.asarray(rng.normal(size=(T, N)), jnp.float32),
        terminated=jnp.asarray(ends == "terminated"),
        truncated=jnp.asarray(ends == "truncated"),
        valid=jnp.asarray(ends != "invalid"),
        extras={"log_probs": {"action": jnp.asarray(np.maximum(log_probs, -1e38), jnp.float32)}},
        carry=(),
    )

    def outputs():
        logits, q = rng.normal(size=(2, T + 1, N, K))
        return {"action/logits": jnp.asarray(logits, jnp.float32), "action/q": jnp.asarray(q, jnp.float32)}

    return block, outputs(), outputs()


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


_gradient = jax.jit(jax.value_and_grad(acer.loss, has_aux=True), static_argnums=2)


def gradient(algorithm, params, average, block):
    state = State({"params": params, "state": {}}, average, (), ())
    (_, metrics), grads = _gradient(params, state, algorithm, block)
    return grads, {name: float(x) for name, x in metrics.items()}


def reference(config, params, average, block, *, correct=True, mask=True):
    """The gradient of the loss in logits and action values, by loops over rows, straight from the paper."""
    T, N, K = block.extras["log_probs"]["action"].shape
    allowed = np.broadcast_to(mask, (T + 1, N, K))
    pi, pi_average = (
        np.exp(log_softmax(np.where(allowed, np.asarray(x["action/logits"], np.float64), -np.inf)))
        for x in (params, average)
    )
    q, mu = np.asarray(params["action/q"], np.float64), np.exp(block.extras["log_probs"]["action"])
    action, reward = np.asarray(block.action["action"]), np.asarray(block.reward)
    valid = np.asarray(block.valid)
    by_logits, by_q = np.zeros((2, T + 1, N, K))
    for n in range(N):
        q_ret = 0.0
        for t in reversed(range(T)):
            v, v_next = pi[t, n] @ q[t, n], pi[t + 1, n] @ q[t + 1, n]
            if block.terminated[t, n]:
                q_ret = reward[t, n]
            elif block.truncated[t, n] or t + 1 == T:
                q_ret = reward[t, n] + config.gamma * v_next
            elif valid[t, n]:
                b = action[t + 1, n]
                trace = min(1.0, pi[t + 1, n, b] / mu[t + 1, n, b])
                q_ret = reward[t, n] + config.gamma * (v_next + trace * (q_ret - q[t + 1, n, b]))
            if not valid[t, n]:
                continue
            a, g = action[t, n], np.zeros(K)
            for b in np.flatnonzero(allowed[t, n]):
                ratio = pi[t, n, b] / mu[t, n, b]
                if b == a:
                    g[b] += min(config.importance_c, ratio) * (q_ret - v) / pi[t, n, b]
                if correct:
                    g[b] += max(0.0, 1 - config.importance_c / ratio) * (q[t, n, b] - v)
                g[b] -= config.entropy_coef * (np.log(pi[t, n, b]) + 1)
            if config.trust_region:
                k = np.where(allowed[t, n], -pi_average[t, n] / np.where(allowed[t, n], pi[t, n], 1), 0)
                g -= max(0.0, (k @ g - config.delta) / (k @ k)) * k
            by_logits[t, n] = -pi[t, n] * (g - pi[t, n] @ g)  # through the softmax
            by_q[t, n, a] = config.value_loss_coef * (q[t, n, a] - q_ret)
    return by_logits / valid.sum(), by_q / valid.sum()


SETTINGS = [
    {"trust_region": False},
    {"trust_region": False, "importance_c": 1.5, "entropy_coef": 0.2},
    {"delta": 0.1, "importance_c": 1.5, "entropy_coef": 0.0},
    {"delta": 1, "value_loss_coef": 2.0},
]


@pytest.mark.parametrize("options", SETTINGS)
@pytest.mark.parametrize("mask", [None, (True, False, True)])
def test_gradient_of_the_loss_agrees_with_loops(options, mask):
    algorithm = table(masked=mask is not None, **options)
    block, params, average = stream(3, mask=mask)
    assert {bool(x.any()) for x in (block.terminated, block.truncated, ~block.valid)} == {True}
    grads, _ = gradient(algorithm, params, average, block)
    allowed = True if mask is None else np.array(mask)
    by_logits, by_q = reference(algorithm.config, params, average, block, mask=allowed)
    np.testing.assert_allclose(grads["action/logits"], by_logits, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(grads["action/q"], by_q, rtol=1e-3, atol=1e-5)
    assert np.abs(by_logits).max() > 1e-3
    if mask is not None:
        assert not np.any(grads["action/logits"][..., 1])


class Dropping(Table):
    """Where dropout is on, it adds 100 to every action value."""

    def evaluate(self, variables, block):
        found = super().evaluate(variables, block)
        learning = self.model.in_use(variables) is not variables
        return {**found, "action/q": found["action/q"] + 100.0} if learning else found


def test_what_is_constant_in_the_loss_is_of_the_network_as_in_use():
    """Dropout moves the action values that learn, not their targets, nor the policy's gradient."""
    network = [{"type": "dense", "size": 2}, {"type": "dropout", "rate": 0.5}]
    algorithm = table(cls=Dropping, model=network, delta=0.1, importance_c=1.5)
    block, params, average = stream(3)
    variables = algorithm.model.learning({"params": params, "state": {}}, jax.random.key(0))
    (_, metrics), grads = _gradient(params, State(variables, average, (), ()), algorithm, block)
    by_logits, by_q = reference(algorithm.config, params, average, block)
    np.testing.assert_allclose(grads["action/logits"], by_logits, rtol=1e-3, atol=1e-5)
    taken = np.arange(3) == np.asarray(block.action["action"])[..., None]
    more = 100.0 * algorithm.config.value_loss_coef * (taken & np.asarray(block.valid)[..., None])
    by_q[:-1] += more / np.asarray(block.valid).sum()
    np.testing.assert_allclose(grads["action/q"], by_q, rtol=1e-4, atol=1e-4)
    assert abs(float(metrics["value/mean"])) < 10.0


def test_nothing_follows_a_last_observation_that_allows_nothing():
    """What the network says of its actions does not matter; where they are allowed, it does."""
    block, params, average = stream(3, mask=(True, True, True))
    last = jnp.concatenate([~block.valid, jnp.zeros_like(block.valid[:1])])[..., None]
    assert block.truncated.any() and last.any()
    other = {**params, "action/q": params["action/q"] + jnp.where(last, 100.0, 0.0)}
    for allowed in (True, False):
        observation = {
            **block.observation,
            "action_mask": block.observation["action_mask"] & (allowed | ~last),
        }
        given = block._replace(observation=observation)
        one, two = (gradient(table(masked=True), each, average, given)[0] for each in (params, other))
        assert np.isfinite(two["action/logits"]).all()
        same = [np.array_equal(one[name], two[name]) for name in one]
        assert all(same) is not allowed


def test_without_bias_correction_the_gradient_is_another_where_a_ratio_exceeds_the_bound():
    block, params, average = stream(3)
    for c, same in ((1.5, False), (1000.0, True)):
        algorithm = table(trust_region=False, importance_c=c)
        grads, _ = gradient(algorithm, params, average, block)
        by_logits, _ = reference(algorithm.config, params, average, block, correct=False)
        assert np.allclose(grads["action/logits"], by_logits, rtol=1e-3, atol=1e-5) is same


def test_trust_region_changes_nothing_where_it_is_not_reached():
    block, params, average = stream(5)
    free, _ = gradient(table(trust_region=False), params, average, block)
    wide, _ = gradient(table(delta=1e6), params, average, block)
    assert differing(free, wide) == []
    narrow, _ = gradient(table(delta=0.01), params, average, block)
    assert differing(free["action/logits"], narrow["action/logits"]) != []
    assert differing(free["action/q"], narrow["action/q"]) == []


def test_action_value_targets_of_a_stream_with_an_end_and_a_time_limit():
    """γ = 1/2, π uniform over two actions, q of the other action 0, so V = q(taken) / 2.

    Μ = 1/4: ratios 2, cut to 1.

    Backwards: row 4 bootstraps from V = 4: 1 + 4/2 = 3. Row 3: 1 + (1 + 1 * (3 - 2)) / 2 = 2. Row 2 is no
    action. Row 1 is cut: 1 + 8/2/2 = 3. Row 0: 2 + (3 + (3 - 6)) / 2 = 2.
    """
    algorithm = table(actions={"type": "int", "num_values": 2}, gamma=0.5, trust_region=False)
    q = [1.0, 6.0, 8.0, 0.5, 2.0, 8.0]
    block = Rollout(
        observation={"x": jnp.zeros((6, 1, 1))},
        action={"action": jnp.zeros((5, 1), jnp.int32)},
        reward=jnp.array([2.0, 1.0, 50.0, 1.0, 1.0])[:, None],
        terminated=jnp.zeros((5, 1), bool),
        truncated=jnp.arange(5)[:, None] == 1,
        valid=jnp.arange(5)[:, None] != 2,
        extras={"log_probs": {"action": jnp.log(jnp.broadcast_to(jnp.array([0.25, 0.75]), (5, 1, 2)))}},
        carry=(),
    )
    params = {
        "action/logits": jnp.zeros((6, 1, 2)),
        "action/q": jnp.stack([jnp.array(q), jnp.zeros(6)], axis=1)[:, None],
    }

    def targets(rows):
        grads, _ = gradient(algorithm, params, params, rows)
        return np.array(q[:5]) - np.asarray(grads["action/q"][:5, 0, 0]) * 4 / 0.5  # 4 rows, coefficient 1/2

    np.testing.assert_allclose(targets(block)[[0, 1, 3, 4]], [2.0, 3.0, 2.0, 3.0], atol=1e-5)
    ended = block._replace(terminated=block.truncated, truncated=block.terminated)
    np.testing.assert_allclose(targets(ended)[[0, 1]], [2 + (3 + (1 - 6)) / 2, 1.0], atol=1e-5)


def test_forbidden_actions_count_for_nothing():
    algorithm = table(masked=True, delta=0.1, importance_c=1.5)
    block, params, average = stream(7, mask=(True, False, True))

    def changed(outputs):
        return {name: x.at[..., 1].set(1e6) for name, x in outputs.items()}

    one = gradient(algorithm, params, average, block)
    two = gradient(algorithm, changed(params), changed(average), block)
    assert differing(one, two) == []
    assert not any(np.any(x[..., 1]) for x in one[0].values())
    # Negative control: of an allowed action it does.
    other = {name: x.at[..., 0].add(1.0) for name, x in params.items()}
    assert differing(one[0], gradient(algorithm, other, average, block)[0]) != []


def test_elements_of_an_action_learn_as_if_each_were_alone():
    """Two elements of one component, and a bool beside it: the gradient is a third of each one's own."""
    actions = {
        "gear": {"type": "int", "shape": (2,), "num_values": 3},
        "brake": {"type": "bool", "shape": ()},
    }
    parts = [stream(11), stream(11), stream(11, K=2)]  # one seed: the same rewards and ends
    rng = np.random.default_rng(0)
    for i, (block, *_) in enumerate(parts):
        drawn = jnp.asarray(rng.integers(0, 2, block.reward.shape), jnp.int32)
        parts[i] = (
            block._replace(action={"action": drawn}, reward=parts[0][0].reward),
            *(
                jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype(np.float32), p)
                for p in parts[i][1:]
            ),
        )
    shared = parts[0][0]
    parts = [
        (b._replace(terminated=shared.terminated, truncated=shared.truncated, valid=shared.valid), p, a)
        for b, p, a in parts
    ]

    def joined(get):
        gear = jnp.stack([get(part) for part in parts[:2]], axis=2)
        return {"gear": gear, "brake": get(parts[2])}

    action = joined(lambda part: part[0].action["action"])
    together = shared._replace(
        action={**action, "brake": action["brake"].astype(bool)},
        extras={"log_probs": joined(lambda part: part[0].extras["log_probs"]["action"])},
    )
    params, average = (
        {
            f"{name}/{head}": x
            for head in ("logits", "q")
            for name, x in joined(lambda part, i=i, head=head: part[i][f"action/{head}"]).items()
        }
        for i in (1, 2)
    )
    grads, _ = gradient(table(actions=actions, delta=0.1), params, average, together)
    for head in ("logits", "q"):
        for i, (block, own, own_average) in enumerate(parts):
            kind = {"type": "int", "num_values": own[f"action/{head}"].shape[-1]}
            alone = gradient(table(actions=kind, delta=0.1), own, own_average, block)[0][f"action/{head}"]
            found = grads[f"brake/{head}"] if i == 2 else grads[f"gear/{head}"][:, :, i]
            np.testing.assert_allclose(found, alone / 3, rtol=1e-4, atol=1e-6)


# Replay


@pytest.mark.parametrize("mean", [0.0, 0.3, 4.0, 64.0])
def test_poisson_numbers_have_the_distribution(mean):
    keys = jax.random.split(jax.random.key(3), 20_000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: prng.poisson(key, mean)))(keys))
    assert drawn.dtype == np.int32
    if mean == 0:
        assert not drawn.any()
        return
    edges = np.unique(scipy.stats.poisson.ppf(np.linspace(0.01, 0.99, 30), mean))
    cells = np.searchsorted(edges, drawn, side="left")  # (-inf, e0], (e0, e1], ...
    cumulative = np.concatenate([[0.0], scipy.stats.poisson.cdf(edges, mean), [1.0]])
    expected = np.diff(cumulative) * len(drawn)
    counts = np.bincount(cells, minlength=len(expected))
    kept = expected > 0
    assert scipy.stats.chisquare(counts[kept], expected[kept]).pvalue > 1e-4
    assert scipy.stats.chisquare(counts[kept], np.roll(expected[kept], 1)).pvalue < 1e-4  # a negative control


def test_poisson_takes_keys_of_every_implementation():
    for impl in ("threefry2x32", "rbg"):
        assert int(prng.poisson(jax.random.key(0, impl=impl), 4.0)) >= 0


def test_metrics_leave_out_steps_on_blocks_without_any_action():
    agent = compiled("acer", Countdown(), replay_ratio=8)
    train, world = agent.begin(0)
    for _ in range(12):
        block, world = agent.collect(train, world)
        train, whole = agent.absorb(train, block)
    assert whole["memory/replays"] > 0
    nothing = block._replace(valid=jnp.zeros_like(block.valid))
    # The memory holds rows with actions.
    learn = jax.jit(functools.partial(agent.learner.update, stored=True))
    _, metrics = learn(train, nothing, jax.random.key(1))
    assert metrics["memory/replays"] > 0 and metrics["update/skipped"] == 0
    assert metrics["policy/entropy"] > 0.9 * whole["policy/entropy"]
    never = agent.learner.hyper(agent.learner.algorithm.config.replace(replay_ratio=0))
    after, metrics = learn(train._replace(hyper=never), nothing, jax.random.key(2))
    assert all(np.isnan(metrics[name]) for name in ("policy/entropy", "loss/critic", "value/mean"))
    assert differing(learned(train.state), learned(after.state)) == []


def later():
    """An agent whose replay begins after 60 environment steps, compiled once."""
    return compiled("acer", Countdown(), buffer_initial_size=60)


@pytest.mark.exhaustive
def test_the_number_of_replay_steps_is_drawn_anew_for_every_update():
    agent = later()
    _, blocks, metrics = agent.run(0, 150)
    replays = np.array([m["memory/replays"] for m in metrics])
    steps = np.cumsum([int(b.valid.sum()) for b in blocks])
    assert not replays[steps < 60].any()
    drawn = replays[steps >= 60]
    assert len(drawn) > 140
    assert len(set(drawn)) >= 5
    assert drawn.mean() == pytest.approx(2.0, abs=4 * np.sqrt(2.0 / len(drawn)))
    assert drawn.var() == pytest.approx(2.0, abs=1.0)
    weights = np.array([m["memory/importance_weight"] for m in metrics])
    assert (np.isnan(weights) == (replays == 0)).all()
    made = agent.learner
    never = made.hyper(made.algorithm.config.replace(replay_ratio=0))
    assert not any(m["memory/replays"] for m in agent.run(0, 12, never)[2])


def test_a_replay_step_has_so_many_sequences_of_every_actor(monkeypatch):
    shapes, step = [], ACER._step

    def watched(self, state, block, key):
        shapes.append(block.reward.shape)
        return step(self, state, block, key)

    monkeypatch.setattr(ACER, "_step", watched)
    made = learner("acer", Countdown(), 3, buffer_batch_size=4)
    train = jax.eval_shape(made.init, jax.random.key(0), made.hyper())
    jax.eval_shape(made.update, train, made.block_shape(3), jax.random.key(0))
    assert shapes[0] == (6, 3) and {*shapes[1:]} == {(6, 12)}


def test_replay_waits_for_a_sequence_and_the_row_that_follows_it():
    agent = later()
    replays = [metrics["memory/replays"] for metrics in agent.run(0, 6, timesteps=1000)[2]]
    # Blocks are of six rows of each actor: a sequence takes seven, and the memory of a run that goes on fills
    # to 60 of all.
    assert not any(replays[:3])
    assert sum(replays) > 0


@pytest.mark.parametrize("model", ["plain", "recurrent"])
def test_replayed_actions_come_with_the_policy_that_drew_them(model):
    """While nothing is learnt every importance weight is 1, also with a memory of its own; afterwards not."""
    agent = later() if model == "plain" else compile_agent("acer", Countdown(), model=RECURRENT)
    made = agent.learner
    for lr, same in ((0.0, True), (0.01, False)):
        metrics = agent.run(1, 18, made.hyper(made.algorithm.config.replace(lr=lr)))[2]
        weights = np.array([m["memory/importance_weight"] for m in metrics if m["memory/replays"]])
        assert len(weights) > 5
        assert np.allclose(weights, 1.0, atol=1e-5) is same


def test_the_average_starts_as_a_copy_and_follows_every_step():
    agent = later()
    train, world = agent.begin(2)
    start = train.state.variables["params"]
    assert differing(train.state.average, start) == []
    block, _ = agent.collect(train, world)
    after = agent.absorb(train, block)[0].state
    moved = after.variables["params"]
    assert differing(start, moved) != []
    for name, x in after.average.items():
        np.testing.assert_allclose(x, 0.99 * start[name] + 0.01 * moved[name], atol=1e-7, err_msg=name)


def test_other_weights_become_the_average_too():
    agent = later()
    state, other = (agent.begin(seed)[0].state for seed in (2, 3))
    algorithm = agent.learner.algorithm
    changed = algorithm.with_weights(state, algorithm.weights(other))
    assert differing(changed.average, other.variables["params"]) == []
    assert differing(changed.variables, other.variables) == []


def test_bools_are_drawn_with_the_probability_that_is_stored():
    made = learner("acer", Countdown(kind="bool"), 2)
    algorithm = made.algorithm
    key = jax.random.key(0)
    state = jax.jit(algorithm.init)(key)
    bias = next(name for name, x in state.variables["params"].items() if x.shape == (2,))
    params = {**state.variables["params"], bias: jnp.array([0.0, 1.0])}
    observation = {
        name: jnp.zeros((4000, *leaf.shape), leaf.dtype)
        for name, leaf in algorithm.spaces.observation_components.items()
    }
    noise = algorithm.noise(jax.random.key(1), 4000)
    act = jax.jit(algorithm.act, static_argnums=4)
    action = act({**state.variables, "params": params}, observation, (), noise, True)
    drawn = np.asarray(action.action["action"])
    assert drawn.dtype == np.bool_
    share = float(jnp.exp(action.extras["log_probs"]["action"][0, 1]))
    assert share != pytest.approx(0.5, abs=0.05)
    assert drawn.mean() == pytest.approx(share, abs=0.03)


# Mistakes


def test_a_memory_that_holds_no_sequence_of_every_actor_is_refused():
    with pytest.raises(
        SpecError, match=r"buffer_max_size must be above 60 \(3 environments x n_steps 20 rows\)"
    ):
        learner("acer", Countdown(), 3, n_steps=20, buffer_max_size=60, buffer_initial_size=0)
    learner("acer", Countdown(), 3, n_steps=20, buffer_max_size=61, buffer_initial_size=0)


def test_replay_ratio_is_bounded():
    with pytest.raises(SpecError, match="replay_ratio must be at least 0 and at most 64"):
        Config(replay_ratio=65)
    assert dataclasses.asdict(Config(replay_ratio=64))["replay_ratio"] == 64
