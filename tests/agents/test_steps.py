"""Gradient steps of the modular agent: natural and estimated gradients, the search along a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.plain_networks import PLAIN, Plain, plan
from tests.small_agents import MODEL

from operant import Agent
from operant.agents.base.agent_spec import parse_agent
from operant.agents.modular_parts import gradient_steps
from operant.errors import SpecError
from operant.ops import optimise

K = 4
KEY = jax.random.key(3)


class View(NamedTuple):
    """What a policy observes of rows: here all of them."""

    observation: Any


class Seen(NamedTuple):
    """Rows as the policy of the natural gradient reads them."""

    view: View


def fit(loss, params, rows, *, lr=0.1, natural=None, **options):
    optimizer = optimise.optimizer("sgd", lr)
    found, _, watched = jax.jit(
        lambda p: gradient_steps.fit(
            lambda params, frozen, rows: loss(params, rows.view.observation),
            p,
            optimizer.init(p),
            optimizer,
            Seen(View(rows)),
            jnp.ones(len(rows), bool),
            plan(lr=lr, **options) if natural else plan(**options),
            KEY,
            PLAIN,
            natural=natural,
        )
    )(params)
    return found, watched


def policy_loss(params, rows):
    """Less the advantage-weighted log-probability of a softmax over the parameters."""
    action, advantage = rows[:, 0].astype(jnp.int32), rows[:, 1]
    each = -advantage * jax.nn.log_softmax(params)[action]
    return each, {"loss/policy": each}


def rows(n=32):
    draw = np.random.default_rng(0)
    return jnp.asarray(np.stack([draw.integers(0, K, n), draw.normal(size=n)], 1), jnp.float32)


def kl(old, new):
    return jnp.sum(jnp.exp(jax.nn.log_softmax(old)) * (jax.nn.log_softmax(old) - jax.nn.log_softmax(new)), -1)


def softmax(logits=lambda params, rows: jnp.broadcast_to(params, (len(rows), K))):
    """Return a policy with these logits."""
    return SimpleNamespace(
        outputs=lambda params, frozen, view: logits(params, view.observation),
        divergence=lambda observation, old, new: kl(old, new),
    )


def natural_step(loss, params, rows, policy, max_kl, damping):
    options = {"gradient": "natural", "cg_iterations": 20, "cg_damping": damping}
    return fit(loss, params, rows, lr=max_kl, natural=policy, **options)


def estimated(samples):
    return {"gradient": "evolutionary", "evolutionary_samples": samples, "evolutionary_deviation": 0.1}


@pytest.mark.parametrize("n", [32, gradient_steps.CHUNK + 300])
def test_the_natural_step_is_that_of_the_fisher_matrix(n):
    start, max_kl, damping = jnp.asarray([0.3, -0.2, 0.1, 0.0]), 1e-4, 1e-3
    moved, watched = natural_step(policy_loss, start, rows(n), softmax(), max_kl, damping)
    gradient = jax.grad(lambda p: -jnp.mean(policy_loss(p, rows(n))[0]))(start)
    p = jax.nn.softmax(start)
    fisher = jnp.diag(p) - jnp.outer(p, p) + damping * jnp.eye(K)
    x = jnp.linalg.solve(fisher, gradient)
    np.testing.assert_allclose(
        moved - start, jnp.sqrt(2 * max_kl / (x @ fisher @ x)) * x, rtol=2e-2, atol=1e-6
    )
    assert float(kl(start, moved)) == pytest.approx(max_kl, rel=0.05)
    assert float(watched["update/grad_norm"]) == pytest.approx(float(jnp.linalg.norm(gradient)), rel=1e-4)


def test_the_fisher_matrix_speaks_of_all_of_a_long_batch():
    """The first half of the rows was in one state, the second in another.

    Each state has two parameters of its own.
    """
    half, max_kl, damping = 2 * gradient_steps.CHUNK, 1e-4, 1e-3
    draw = np.random.default_rng(0)
    state = np.repeat([0, 1], [half, half])
    action, advantage = draw.integers(0, 2, 2 * half), draw.normal(size=2 * half) + 1.0
    own = jnp.asarray(np.stack([state, action, advantage], 1), jnp.float32)
    start = jnp.asarray([0.3, -0.2, 0.6, 0.0])

    def logits(params, rows):
        return params.reshape(2, 2)[rows[:, 0].astype(jnp.int32)]

    def loss(params, rows):
        log_probs = jax.nn.log_softmax(logits(params, rows))
        each = -rows[:, 2] * jnp.take_along_axis(log_probs, rows[:, 1:2].astype(jnp.int32), 1)[:, 0]
        return each, {"loss/policy": each}

    moved, _ = natural_step(loss, start, own, softmax(logits), max_kl, damping)
    gradient = jax.grad(lambda p: -jnp.mean(loss(p, own)[0]))(start)
    fisher = damping * jnp.eye(4)
    for i in range(2):
        p = jax.nn.softmax(start.reshape(2, 2)[i])
        fisher = fisher.at[2 * i : 2 * i + 2, 2 * i : 2 * i + 2].add((jnp.diag(p) - jnp.outer(p, p)) / 2)
    x = jnp.linalg.solve(fisher, gradient)
    np.testing.assert_allclose(
        moved - start, jnp.sqrt(2 * max_kl / (x @ fisher @ x)) * x, rtol=2e-2, atol=1e-6
    )


def test_a_natural_step_that_is_not_finite_is_not_taken():
    start = jnp.asarray([0.3, -0.2, 0.1, 0.0])
    moved, watched = natural_step(policy_loss, start, rows().at[0, 1].set(jnp.nan), softmax(), 1e-2, 1e-4)
    assert (moved == start).all() and watched["update/skipped"] == 1.0


def test_estimated_gradients_are_right_in_the_mean():
    start, target = jnp.asarray([1.0, -2.0, 0.5]), jnp.asarray([0.0, 1.0, 1.0])

    def loss(params, rows):
        each = jnp.sum(jnp.square(params - target)) + 0.0 * rows[:, 0]
        return each, {"loss/policy": each}

    moved, _ = fit(loss, start, jnp.zeros((8, 1)), lr=1.0, **estimated(20_000))
    np.testing.assert_allclose(start - moved, 2.0 * (start - target), atol=0.15)
    few, _ = fit(loss, start, jnp.zeros((8, 1)), lr=1.0, **estimated(2))
    assert np.abs(start - few - 2.0 * (start - target)).max() > 0.5  # it is estimated, not computed


def test_a_search_shortens_a_step_until_the_loss_is_lower():
    start, seen = jnp.asarray([3.0]), rows()

    def loss(params, rows):
        each = jnp.sum(jnp.square(params)) + 0.0 * rows[:, 0]
        return each, {"loss/policy": each}

    search = {"linesearch_iterations": 10, "linesearch_factor": 0.5}
    over, _ = fit(loss, start, seen, lr=4.0)
    assert float(over[0]) == pytest.approx(3.0 - 4.0 * 6.0)
    moved, watched = fit(loss, start, seen, lr=4.0, **search)
    assert float(moved[0]) == pytest.approx(
        3.0 - 4.0 * 6.0 / 8
    )  # 24 and 12 go too far, 6 just as far, 3 to the middle
    assert watched["update/accepted"] == 1.0
    stuck, watched = fit(loss, start, seen, lr=4.0, **{**search, "linesearch_iterations": 2})
    assert (stuck == start).all() and watched["update/accepted"] == 0.0


def test_the_search_looks_at_the_weight_of_squared_parameters_too():
    start, seen = jnp.asarray([3.0]), rows()

    def flat(params, rows):
        each = 0.0 * rows[:, 0] * params[0]
        return each, {"loss/policy": each}

    search = {"linesearch_iterations": 3, "linesearch_factor": 0.5}
    moved, watched = fit(flat, start, seen, lr=0.1, l2_regularization=1.0, **search)
    assert float(moved[0]) == pytest.approx(3.0 - 0.1 * 6.0) and watched["update/accepted"] == 1.0


def test_running_averages_are_no_part_of_penalties_and_estimates():
    params, optimizer = {"w": jnp.asarray(3.0), "average": jnp.asarray(100.0)}, optimise.optimizer("sgd", 0.1)

    class Averaging(Plain):
        def trained(self, params):
            return {**params, "average": jnp.zeros(())}

    def loss(p, frozen, rows):
        return rows * p["w"] + 0.0 * p["average"], {}

    for options in ({}, estimated(4)):
        moved, _, watched = gradient_steps.fit(
            loss,
            params,
            optimizer.init(params),
            optimizer,
            jnp.ones(2),
            jnp.ones(2, bool),
            plan(l2_regularization=0.5, **options),
            KEY,
            Averaging(*PLAIN),
        )
        assert moved["average"] == 100 and moved["w"] < 3
        if not options:
            assert watched["update/grad_norm"] == pytest.approx(1 + 2 * 0.5 * 3)


def test_shares_of_rows_are_not_rounded_below_the_number_meant():
    for share, number, rows in [(0.59, 100, 59), (0.84, 75, 63), (1.0, 7, 7), (0.5, 3, 1), (0.999, 10, 9)]:
        assert gradient_steps._size(share, jnp.int32(number)) == rows


def test_what_contradicts_itself_is_refused():
    for options, message in [
        ({"gradient": "natural", "objective": "action_value"}, "that of a policy"),
        ({"gradient": "natural", "baseline_model": "shared"}, "of its own"),
        ({"gradient": "natural", "baseline_model": "auto"}, "of its own"),
    ]:
        with pytest.raises(SpecError, match=message):
            parse_agent("modular", **options)
    parse_agent("modular", gradient="natural", baseline_model="auto", baseline_optimizer="adam")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"gradient": "natural", "lr": 0.02, "linesearch_iterations": 5},
        {"gradient": "evolutionary", "lr": 0.05, "evolutionary_samples": 32},
        {"lr": 0.05, "linesearch_iterations": 5, "optimizer": "sgd"},
    ],
    ids=["natural", "evolutionary", "search"],
)
def test_every_way_learns_which_action_pays(options):
    agent = Agent.create(
        agent="modular", states={"type": "float", "shape": (2,)}, actions={"type": "int", "num_values": 3},
        model=MODEL, batch_size=32, horizon=1, normalize_advantage=True, seed=1, **options,
    )  # fmt: skip
    draw = np.random.default_rng(0)
    for _ in range(32 * 60):
        state = draw.normal(size=2)
        action = agent.act(state)
        agent.observe(reward=float(action == (2 if state[0] > 0 else 0)), terminal=True)
    states = draw.normal(size=(200, 2))
    right = np.asarray(agent.act(states, independent=True)) == np.where(states[:, 0] > 0, 2, 0)
    assert right.mean() > 0.85
