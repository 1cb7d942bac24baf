"""PPO: gradient steps that end where the divergence exceeds `target_kl`, against a slow loop that takes
one step at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.small_agents import (
    MODEL,
    RECURRENT,
    Countdown,
    assert_close,
    compile_agent,
    compiled,
    differing,
    learned,
    parameters,
)

from operant.agents.base import updates
from operant.agents.base.agent_spec import parse_agent
from operant.agents.parts.minibatches import passes
from operant.agents.ppo import PPOBatch, loss
from operant.errors import SpecError
from operant.ops import optimise, prng
from operant.training.drivers.seeds import MultiSeedRunner

EPOCHS, PARTS, N = 3, 4, 4
SETTINGS = {"mini_batches": PARTS, "ppo_epochs": EPOCHS, "lr": 0.03}
NORMALISED = [{"type": "dense", "size": 16}, {"type": "batch_normalization"}]
SOME = {
    "plain": {},
    "other options": {
        "separate": True,
        "clip_value": False,
        "normalize_advantage": False,
        "grad_norm": None,
    },
    "recurrent": {"model": RECURRENT},
    "running averages": {"model": NORMALISED},
}


def started(agent):
    """Return a train whose optimizer has a history, and the next block."""
    train, world = agent.begin(2)
    block, world = agent.collect(train, world)
    train, _ = agent.absorb(train, block)
    return train, agent.collect(train, world)[0]


def slowly(agent, train, block):
    """Yield what is learned before each gradient step of an update, and the metrics of the step, one step
    at a time."""
    algorithm, state = agent.learner.algorithm, train.state
    model, optimizer = algorithm.model, updates.optimizer(algorithm.config)
    axis = 1 if model.recurrent else 0

    @jax.jit
    def read(block):
        block = updates.mask_padding(block, algorithm.spaces) if model.averages else block
        rows = {k: x[:-1] for k, x in block.observation.items()}
        estimate = algorithm.estimate(state.variables, block)
        batch = PPOBatch(rows, block.action, block.extras["log_prob"], *estimate, block.valid)
        return batch if axis else jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)

    @jax.jit
    def step(params, opt_state, rows):
        part = jax.tree.map(lambda x: jnp.take(x, rows, axis=axis), batch)
        carry = jax.tree.map(lambda x: x[rows], block.carry)
        frozen = model.learning(state.variables, jax.random.key(0))["state"]
        (_, metrics), grads = jax.value_and_grad(loss, has_aux=True)(params, frozen, algorithm, part, carry)
        after, opt_state, _ = optimise.apply(optimizer, params, opt_state, grads)
        before = {"params": params, "state": frozen}
        return model.averaged(after, before, part.observation), opt_state, metrics

    batch = read(block)
    units = batch.valid.shape[axis]
    params, opt_state = state.variables["params"], state.optimizer
    key = agent.learner.update_key(train.key, train.counters.updates)
    for own in jax.random.split(key, EPOCHS):
        for rows in prng.permutation(own, units)[: units // PARTS * PARTS].reshape(PARTS, -1):
            before = {"variables": params, "optimizer": opt_state}
            params, opt_state, metrics = step(params, opt_state, rows)
            yield before, metrics
    yield {"variables": params, "optimizer": opt_state}, {"update/kl": jnp.inf}


def limited(agent, train, target_kl):
    """Return a train with another limit; nothing is compiled anew."""
    config = agent.learner.algorithm.config.replace(target_kl=target_kl)
    return train._replace(hyper=agent.learner.hyper(config))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(x, id=name, marks=() if name in ("plain", "recurrent") else pytest.mark.slow)
        for name, x in SOME.items()
    ],
)
def test_the_first_minibatch_beyond_the_limit_is_the_first_without_a_step(options):
    agent = compile_agent("ppo", Countdown(), N, target_kl=1.0, **SETTINGS, **options)
    train, block = started(agent)
    found = list(slowly(agent, train, block))
    kl = [float(metrics["update/kl"]) for _, metrics in found]
    records = [k for k in range(1, len(kl)) if kl[k] > 1.2 * max(kl[:k])]
    assert len(records) >= 3 and records[-1] == EPOCHS * PARTS  # where it may end; the last: nowhere
    for k in (records[0], records[len(records) // 2], records[-1]):
        limit = max(*kl[:k], 1e-6)
        after, metrics = agent.absorb(limited(agent, train, 1.1 * limit / 1.5), block)
        assert metrics["update/steps"] == k
        assert_close(learned(after.state), found[k][0], rtol=1e-3, atol=1e-4)
        for name in ("update/kl", "loss/policy", "loss/value", "policy/entropy"):
            mean = np.mean([float(own[name]) for _, own in found[:k]])
            np.testing.assert_allclose(metrics[name], mean, rtol=1e-3, atol=1e-5, err_msg=name)
        # Negative control: a step more is another result.
        if k < EPOCHS * PARTS:
            with pytest.raises(AssertionError):
                assert_close(learned(after.state), found[k + 1][0], rtol=1e-3, atol=1e-4)
    assert after.counters.updates == train.counters.updates + 1


@pytest.mark.slow
def test_a_limit_that_nothing_reaches_changes_nothing():
    with_limit = compiled("ppo", Countdown(), N, model=MODEL, target_kl=1e6, **SETTINGS)
    without = compiled("ppo", Countdown(), N, model=MODEL, **SETTINGS)
    train, block = started(without)
    after, metrics = with_limit.absorb(limited(with_limit, train, 1e6), block)
    expected, others = without.absorb(train, block)
    assert_close(after._replace(hyper=()), expected._replace(hyper=()), rtol=1e-5, atol=1e-6)
    assert metrics.pop("update/steps") == EPOCHS * PARTS
    assert metrics.keys() == others.keys()
    for name, x in others.items():
        np.testing.assert_allclose(metrics[name], x, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_an_update_without_a_step_changes_nothing_and_has_no_metrics_of_steps():
    """Such as of a block that came from another policy.

    What would have been skipped behind the end was not.
    """
    agent = compiled("ppo", Countdown(), N, model=MODEL, target_kl=1.0, **SETTINGS)
    train, block = started(agent)
    block = block._replace(extras={"log_prob": block.extras["log_prob"] - 1.0})
    block = block._replace(reward=jnp.full_like(block.reward, jnp.nan))
    after, metrics = agent.absorb(limited(agent, train, 0.1), block)
    assert differing(learned(train.state), learned(after.state)) == []
    assert (metrics["update/steps"], metrics["update/skipped"]) == (0, 0)
    assert np.isnan(metrics["update/kl"]) and np.isnan(metrics["loss/policy"])
    taken, metrics = agent.absorb(limited(agent, train, 100.0), block)  # control
    assert (metrics["update/steps"], metrics["update/skipped"]) == (0, EPOCHS * PARTS)
    assert differing(parameters(train.state), parameters(taken.state)) == []


@pytest.mark.slow
def test_minibatches_without_rows_are_no_steps():
    agent = compiled("ppo", Countdown(), N, model=MODEL, target_kl=1.0, **SETTINGS)
    train, block = started(agent)
    only = jnp.zeros_like(block.valid).at[0, 0].set(True)
    _, metrics = agent.absorb(train, block._replace(valid=only))
    assert metrics["update/steps"] in (EPOCHS - 1, EPOCHS)  # a pass may leave the row out


@pytest.mark.slow
def test_seeds_that_train_at_once_end_their_updates_each_for_itself():
    agent = compiled("ppo", Countdown(), N, model=MODEL, target_kl=1.0, **SETTINGS)
    limits, blocks = (1e-5, 0.01, 1e6), 4
    hyper = jnp.stack([limited(agent, agent.begin(0)[0], limit).hyper for limit in limits])
    keys = jax.vmap(jax.random.key)(jnp.array([4, 4, 5]))
    population = MultiSeedRunner(agent.learner, agent.env, N, keys, hyper, mapped=True)
    population.advance(blocks)
    steps = []
    for i, (seed, row) in enumerate(zip((4, 4, 5), hyper, strict=True)):
        single, _, metrics = agent.run(seed, blocks, row)
        assert_close(population.train(i), single, rtol=1e-3, atol=1e-4)
        steps.append(population.metrics(i)["update/steps"])
        assert steps[-1] == np.mean([m["update/steps"] for m in metrics])
    assert 1 <= steps[0] < steps[1] < steps[2] == EPOCHS * PARTS


def test_means_of_metrics_leave_out_minibatches_to_which_they_do_not_apply():
    """Of the numbers 0 to 5 those below 2 are no data.

    Their counts of steps are 0, and add up all the same.
    """

    def step(learned, part):
        x = part.rows[0]
        return learned + x, {
            "loss": jnp.where(x < 2, jnp.nan, x),
            "update/steps": (x >= 2).astype(jnp.float32),
        }

    rows, key = jnp.arange(6.0).reshape(2, 3), jax.random.key(0)
    learned, metrics = passes(step, jnp.zeros(()), rows, key, epochs=2, parts=6)
    assert (learned, metrics["loss"], metrics["update/steps"]) == (30, 3.5, 8)


@pytest.mark.parametrize("value", [0.0, -0.1])
def test_a_limit_is_above_zero(value):
    with pytest.raises(SpecError, match=f"target_kl must be above 0.* Received: target_kl={value}"):
        parse_agent("ppo", target_kl=value)


@pytest.mark.slow
def test_a_limit_may_be_a_schedule():
    agent = functools.partial(compile_agent, "ppo", Countdown(), N, model=MODEL, **SETTINGS)
    falling = agent(
        target_kl={"type": "piecewise", "start": 1e6, "boundaries": [1], "values": [1e-5], "unit": "updates"}
    )
    _, _, metrics = falling.run(0, 2)
    assert metrics[0]["update/steps"] == EPOCHS * PARTS > metrics[1]["update/steps"] >= 1
