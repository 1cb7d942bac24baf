"""DQN with recurrent networks: the loss of sequences against plain loops, the stored state, burn-in, and a
probe of memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.agents.test_conformance import random_observation
from tests.ops.test_distributional import projected_slowly
from tests.small_agents import MODEL, RECURRENT, Countdown, compiled, countdown, differing, learner, networks

from operant.agents import dqn
from operant.agents.base.protocol import fold
from operant.agents.parts import imitation, noisy, sequences
from operant.agents.parts.actor_critic import evaluate
from operant.errors import SpecError
from operant.spec.spaces import masks_of
from operant.types import Rollout

BURN, LENGTH, GAMMA = 2, 6, 0.9
TERMINATED = [(4, 0), (0, 1), (5, 2)]
TRUNCATED = [(7, 0), (3, 2)]
"""Ends at (row, column), in the burn-in, among the rows that learn and behind; column 3 has none.

A row without action follows.
"""


def made(masked=True, **options):
    """A recurrent agent and a state whose target is another network than the online one."""
    options = {"model": RECURRENT, "burn_in": BURN, "sequence_length": LENGTH, "gamma": GAMMA, **options}
    built = learner("dqn", Countdown(masked=masked), 2, **options)
    state = jax.jit(built.init)(jax.random.key(0), built.hyper()).state
    moved = jax.tree.map(lambda x: x + 0.1 * jnp.cos(x * 31.0), state.target)
    return built.algorithm, state._replace(target=moved)


def block_of(algorithm, key):
    """Random sequences with ends of episodes, and recurrent states that were stored with them."""
    T, B = algorithm.sequence_rows, 4
    drawn = random_observation(algorithm.spaces, (T + 1) * B, fold(key, 0))
    ends = [np.zeros((T, B), bool) for _ in range(2)]
    for end, places in zip(ends, (TERMINATED, TRUNCATED), strict=True):
        for place in places:
            if place[0] < T:
                end[place] = True
    valid = np.concatenate([np.ones((1, B), bool), ~(ends[0] | ends[1])[:-1]])
    start = algorithm.initial_carry(B)
    carry = {name: jax.random.normal(fold(key, 3), x.shape) for name, x in start.items()}
    return Rollout(
        observation={name: x.reshape(T + 1, B, *x.shape[1:]) for name, x in drawn.items()},
        action={"action": jax.random.randint(fold(key, 1), (T, B), 0, 3)},
        reward=jax.random.normal(fold(key, 2), (T, B)),
        terminated=jnp.asarray(ends[0]),
        truncated=jnp.asarray(ends[1]),
        valid=jnp.asarray(valid),
        extras={},
        carry=carry,
    )


def step_by_step(algorithm, variables, block):
    """Outputs of every row `[T + 1, B, ...]` and the state before it, one call per row, from zero where an
    episode begins."""
    step, carry, found, states = jax.jit(algorithm.model.apply), block.carry, [], []
    for t in range(len(block.reward) + 1):
        if t:
            carry = {name: jnp.where(block.valid[t - 1][:, None], x, 0.0) for name, x in carry.items()}
        states.append(carry["body.gru0.h"])
        outputs, carry = step(variables, {name: x[t] for name, x in block.observation.items()}, carry)
        found.append(algorithm.joined(outputs)["action"])
    return np.stack(found), np.stack(states)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("n", "options"),
    [
        (1, {}),
        pytest.param(3, {"double": True, "dueling": True}, marks=pytest.mark.exhaustive),
        (3, {"distributional": "c51", "double": True}),
        (2, {"huber": 0.5, "burn_in": 0}),
    ],
)
@pytest.mark.slow
def test_loss_equals_a_plain_loop_over_rows(n, options):
    algorithm, state = made(n_steps=n, atoms=5, value_min=-2.0, value_max=2.0, **options)
    c, block = algorithm.config, block_of(algorithm, jax.random.key(5))
    online, _ = step_by_step(algorithm, state.variables, block)
    target, _ = step_by_step(algorithm, {**state.variables, "params": state.target}, block)
    z = np.linspace(-2, 2, 5)
    c51 = c.distributional == "c51"
    mask, each, chosen = np.asarray(block.observation["action_mask"]), [], []
    reward, action, valid, terminated = (
        np.asarray(x) for x in (block.reward, block.action["action"], block.valid, block.terminated)
    )
    cut = 0
    for b in range(4):
        for t in range(c.burn_in, c.burn_in + LENGTH):
            if not valid[t, b]:
                continue
            total, discount, row = 0.0, 1.0, t
            while row < t + n and valid[row, b] and discount > 0:
                total += discount * reward[row, b]
                discount *= 0.0 if terminated[row, b] else GAMMA
                row += 1
            cut += row < t + n and discount > 0
            judge = (online if c.double else target)[row, b]
            q = softmax(judge) @ z if c51 else judge
            following = target[row, b, np.argmax(np.where(mask[row, b], q, -np.inf))]
            out = online[t, b, action[t, b]]
            if c51:
                m = projected_slowly(total + discount * z, softmax(following), -2.0, 2.0, 5)
                each.append(-(m * np.log(softmax(out))).sum())
                chosen.append(softmax(out) @ z)
                continue
            error = total + discount * following - out
            short = abs(error) <= 0.5
            huber = 0.5 * error**2 if short else 0.5 * (abs(error) - 0.25)
            each.append(error**2 if c.huber is None else huber)
            chosen.append(out)
    assert len(each) == 4 * LENGTH - sum(
        not valid[t, b] for t in range(c.burn_in, c.burn_in + LENGTH) for b in range(4)
    )
    assert cut > 0 or n == 1  # some sums end at a time limit before n rows, with a bootstrap
    value, (_, metrics) = jax.jit(lambda p: dqn.sequence_loss(p, state, algorithm, block, jax.random.key(0)))(
        state.variables["params"]
    )
    np.testing.assert_allclose(value, np.mean(each), rtol=2e-5)
    np.testing.assert_allclose(metrics["value/mean"], np.mean(chosen), rtol=2e-4, atol=1e-6)


@pytest.mark.slow
def test_rows_of_the_burn_in_count_but_get_no_gradient():
    algorithm, state = made(masked=False)
    state = state._replace(target=state.variables["params"])
    block = block_of(algorithm, jax.random.key(1))
    params, key = state.variables["params"], jax.random.key(0)

    def loss(params, seen, block, algorithm):
        changed = block._replace(observation={**block.observation, "noise": seen})
        return dqn.sequence_loss(params, state, algorithm, changed, key)[0]

    compute = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)), static_argnums=3)
    noise = block.observation["noise"]
    value, (grads, by_row) = compute(params, noise, block, algorithm)
    by_row = np.abs(np.asarray(by_row)).max(axis=2)
    assert not by_row[:BURN].any() and (by_row[BURN, [0, 2, 3]] > 0).all()
    other = compute(params, noise.at[BURN - 1].add(1.0), block, algorithm)[0]
    assert not np.isclose(value, other, rtol=1e-4)  # they do bring the state about

    # The gradient is that of a shorter sequence from the state behind them, whatever brought that about ...
    carry = sequences.warmed(algorithm.model, state.variables, block, BURN)
    short = sequences.cut(block, BURN)._replace(carry=carry)
    cold = made(masked=False, burn_in=0)[0]
    same, (expected, rows) = compute(params, noise[BURN:], short, cold)
    np.testing.assert_allclose(value, same, rtol=1e-6)
    for name, x in expected.items():
        np.testing.assert_allclose(grads[name], x, rtol=1e-4, atol=1e-6, err_msg=name)
    # ... and without burn-in the first rows have one (the control).
    assert (np.abs(np.asarray(rows))[:2, 3].max(axis=-1) > 0).all()


@pytest.mark.slow
def test_rows_that_only_end_returns_are_no_reason_for_a_step(monkeypatch):
    """Weights are 0 where no action was taken in the rows that learn.

    Momentum would move the parameters all the same.
    """
    algorithm, state = made(masked=False, n_steps=3)
    key = jax.random.key(1)
    block = block_of(algorithm, key)

    def stepped(state, block):
        monkeypatch.setattr(dqn.DQN, "_sampled", lambda *_: block)
        after, _, metrics = algorithm._replay(state, (), jnp.asarray(True), key)
        assert not metrics["update/skipped"]
        return after

    moved = stepped(state, block)
    assert differing(moved, state)
    none = block.valid.at[BURN : BURN + LENGTH].set(False)
    assert none[:BURN].any() and none[BURN + LENGTH :].any()
    assert not differing(stepped(moved, block._replace(valid=none)), moved)


@pytest.mark.slow
def test_an_episode_that_begins_behind_the_burn_in_begins_at_zero():
    algorithm, state = made()
    block = block_of(algorithm, jax.random.key(1))
    ended = block._replace(valid=block.valid.at[BURN - 1, 3].set(False))
    before, after = (
        sequences.warmed(algorithm.model, state.variables, x, BURN)["body.gru0.h"] for x in (block, ended)
    )
    np.testing.assert_array_equal(np.asarray(before)[:3], np.asarray(after)[:3])
    assert np.asarray(before)[3].any() and not np.asarray(after)[3].any()
    assert sequences.warmed(algorithm.model, state.variables, block, 0) is block.carry


@pytest.mark.exhaustive
def test_replayed_states_are_those_that_acting_had_also_at_random():
    """Without learning one network made all of them: unrolled from the first, it comes to the others."""
    agent = compiled("dqn", Countdown(), model=RECURRENT)
    made, algorithm = agent.learner, agent.learner.algorithm
    train, blocks, metrics = agent.run(0, 14, made.hyper(algorithm.config.replace(lr=0.0)))
    assert np.isfinite(metrics[-1]["loss/td"])
    first = blocks[0]  # ε is 1: everything in it is done at random
    assert metrics[0]["explore/epsilon"] == 1.0 and np.asarray(first.extras["carry"]["body.gru0.h"][1]).any()
    drawn = algorithm.memory.sample_sequences(train.memory, jax.random.key(2), 40, algorithm.sequence_rows)
    states = step_by_step(algorithm, train.state.variables, drawn)[1][:-1]
    valid = np.asarray(drawn.valid)  # on the row of a last observation nothing was done
    assert (~valid).any() and valid.any()
    stored = np.asarray(drawn.extras["carry"]["body.gru0.h"])
    np.testing.assert_allclose(states[valid], stored[valid], atol=1e-5)
    assert np.abs(stored[valid]).max() > 0.1


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "loss", "optimizer"),
    [("dqn", "loss/td", "optimizer"), ("ddpg", "loss/critic", "critic_optimizer")],
)
def test_learning_waits_for_a_sequence_and_the_row_that_follows_it(name, loss, optimizer):
    agent = compiled(name, countdown(name), **networks(name, RECURRENT))
    train, world = agent.begin(0)
    train = train._replace(counters=train.counters._replace(timesteps=jnp.uint32(1000)))
    finite, steps = [], []
    for _ in range(5):
        block, world = agent.collect(train, world)
        after, metrics = agent.absorb(train, block)
        finite.append(bool(np.isfinite(metrics[loss])))
        steps.append(differing(getattr(train.state, optimizer), getattr(after.state, optimizer)) != [])
        train = after
    # burn_in 2 + sequence_length 4 + n_steps 1 - 1 are six rows, blocks are of two: three hold six, four the
    # seventh
    assert finite == steps == [False, False, False, True, True]


@pytest.mark.slow
def test_imitation_unrolls_from_the_state_of_a_block():
    algorithm, state = made()
    block = block_of(algorithm, jax.random.key(3))
    q = step_by_step(algorithm, state.variables, block)[0][:-1]
    masks = masks_of({name: x[:-1] for name, x in block.observation.items()})
    expected = imitation.margin({"action": jnp.asarray(q)}, block.action, masks, block.valid)
    imitate = jax.jit(algorithm.imitation)
    np.testing.assert_allclose(imitate({"model": state.variables}, block), expected, rtol=1e-5)
    forgetful = block._replace(carry=algorithm.initial_carry(4))
    assert not np.isclose(imitate({"model": state.variables}, forgetful), expected, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noisy", "dropout"])
def test_each_network_is_unrolled_under_noise_of_its_own(kind, monkeypatch):
    """Of noisy layers online, target and choosing network draw apart; dropout is only for the online one."""
    options = (
        {"noisy": True} if kind == "noisy" else {"model": [*RECURRENT, {"type": "dropout", "rate": 0.5}]}
    )
    algorithm, state = made(masked=False, double=True, **options)
    block, key = block_of(algorithm, jax.random.key(1)), jax.random.key(7)
    learned, seen, judge = algorithm.learned(state), [], dqn.td_loss
    monkeypatch.setattr(dqn, "td_loss", lambda *x: seen.append(x[1]) or judge(*x))

    @jax.jit
    def found(learned):
        dqn.sequence_loss(learned, state, algorithm, block, key)
        return seen.pop()

    valid = np.asarray(block.valid[BURN : BURN + LENGTH]).reshape(-1)
    rows = {"online": 0, "target": 1, "choosing": 1}  # of the row itself, of the row that follows
    for draw, (name, after) in enumerate(rows.items()):
        params = algorithm.perturbed(state.target if name == "target" else learned, key, draw)
        expected, _ = step_by_step(algorithm, {**state.variables, "params": params}, block)
        expected = expected[BURN + after : BURN + after + LENGTH].reshape(-1, 3)
        own = np.asarray(getattr(found(learned), name)["action"])
        same = np.allclose(own[valid], expected[valid], rtol=1e-4, atol=1e-5)
        assert same is (kind == "noisy" or name != "online"), name


def test_noise_leaves_recurrent_cells_alone():
    _, state = made(noisy=True)
    names = set(noisy.deviations(state.variables["params"], 0.5))
    assert names == {x for x in state.variables["params"] if "gru" not in x} and len(names) == 4
    assert any("gru" in x for x in state.variables["params"])


@pytest.mark.exhaustive
def test_all_options_together_run_and_repeat():
    options = {"distributional": "c51", "atoms": 11, "double": True, "dueling": True, "noisy": True}
    options |= {"n_steps": 3, "normalize_observations": True, "normalize_rewards": True, "gradient_steps": 2}
    agent = compiled("dqn", Countdown(kind="discrete"), model=RECURRENT, **options)
    one, _, metrics = agent.run(3, 12)
    assert differing(one, agent.run(3, 12)[0]) == []
    assert all(np.isfinite(x) for x in metrics[-1].values()), metrics[-1]
    assert metrics[-1]["update/skipped"] == 0


@pytest.mark.slow
def test_a_sign_is_remembered_with_a_recurrent_network_and_not_without():
    from tests.agents import test_probes as probes

    probes.check("dqn", "probe/memory", probes.on_device("dqn", "probe/memory"))
    found = probes.on_device("dqn", "probe/memory", **networks("dqn", MODEL))
    with pytest.raises(AssertionError, match="is right"):
        probes.check("dqn", "probe/memory", found)


@pytest.mark.slow
def test_a_state_forgotten_between_sequences_fails_the_probe(monkeypatch):
    """Control: rows of the answer are replayed without what came before them."""
    from tests.agents import test_probes as probes

    evaluated = evaluate
    monkeypatch.setattr(
        dqn, "evaluate", lambda m, v, o, c, valid: evaluated(m, v, o, c, jnp.zeros_like(valid))
    )
    with pytest.raises(AssertionError, match="is right"):
        probes.check("dqn", "probe/memory", probes.on_device("dqn", "probe/memory"))


def test_what_cannot_be_replayed_in_sequences_is_refused():
    with pytest.raises(
        SpecError,
        match=r"prioritized draws single steps, .* Received: prioritized=True, .* Leave prioritized out",
    ):
        made(prioritized=True)
    with pytest.raises(
        SpecError,
        match=r"buffer_max_size must be above 96 for a recurrent network: 2 environments x \(burn_in 30 \+ "
        r"sequence_length 16 \+ n_steps 3 - 1\) rows\. Received: buffer_max_size=96\. Use a larger "
        r"buffer_max_size",
    ):
        made(burn_in=30, sequence_length=16, n_steps=3)
    assert (
        made(burn_in=30, sequence_length=15, n_steps=3)[0].memory.length == 48
    )  # a row more than a sequence
    with pytest.raises(SpecError, match=r"sequence_length must be at least 1"):
        made(sequence_length=0)
    with pytest.raises(SpecError, match=r"burn_in must be at least 0"):
        made(burn_in=-1)
