"""PQN: λ-returns by hand and against a slow loop, the loss, masks and several components, and the network
by default."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.small_agents import RECURRENT, Countdown, compiled, learner, small

from operant.agents import pqn
from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import reset_carry
from operant.errors import SpaceError, SpecError
from operant.types import Rollout


def run(kind="int", masked=False, **options):
    """A compiled agent with a block that it collected, and the train from then."""
    agent = compiled("pqn", Countdown(kind=kind, masked=masked), **options)
    train, blocks, _ = agent.run(0, 3)
    return agent, train, blocks[-1]


def returns_slowly(reward, terminated, truncated, valid, best, gamma, lam):
    """Section 4 of Gallici et al. 2024, one row after the other.

    `best` is max_a Q of the row that follows.
    """
    found = np.zeros(len(reward))
    for t in reversed(range(len(reward))):
        if terminated[t]:
            found[t] = reward[t]
        elif truncated[t] or not valid[t] or t == len(reward) - 1:
            found[t] = reward[t] + gamma * best[t]
        else:
            found[t] = reward[t] + gamma * ((1 - lam) * best[t] + lam * found[t + 1])
    return found


def test_lambda_returns_by_hand(monkeypatch):
    """γ = 1/2, λ = 1/2, rewards 1, 2, 3, 4, max_a Q of the rows that follow 10, 20, 30, 40.

    G_3 = 4 + 40/2 = 24; row 2 terminates: G_2 = 3; G_1 = 2 + (20/2 + 3/2)/2 = 7.75; G_0 = 1 + (10/2 +
    7.75/2)/2 = 5.4375. Cut by a time limit instead, row 2 is worth 3 + 30/2 = 18: G_1 = 2 + (10 + 9)/2 =
    11.5, G_0 = 1 + (5 + 5.75)/2 = 6.375.
    """
    algorithm = learner("pqn", Countdown(), 1, gamma=0.5, lam=0.5).algorithm
    best = jnp.array([10.0, 20.0, 30.0, 40.0])
    q = jnp.stack([best, best - 1.0, best - 2.0], axis=-1)[:, None]
    q = jnp.concatenate([jnp.zeros_like(q[:1]), q])  # row 0 is worth nothing to any return
    monkeypatch.setattr(type(algorithm), "evaluate", lambda *_: {"action": q})
    row2 = jnp.array([[False], [False], [True], [False]])
    never = jnp.zeros((4, 1), bool)
    reward = jnp.array([[1.0], [2.0], [3.0], [4.0]])

    def targets(terminated, truncated):
        block = Rollout({}, {}, reward, terminated, truncated, ~never, (), ())
        found = algorithm.targets({}, block)
        assert found.shape == (4, 1, 1)
        return found[:, 0, 0]

    np.testing.assert_allclose(targets(row2, never), [5.4375, 7.75, 3, 24])
    np.testing.assert_allclose(targets(never, row2), [6.375, 11.5, 18, 24])


@pytest.mark.parametrize(
    ("kind", "masked"), [("int", True), pytest.param("discrete", False, marks=pytest.mark.exhaustive)]
)
def test_targets_equal_a_slow_loop(kind, masked):
    agent, train, block = run(kind, masked)
    algorithm = agent.learner.algorithm
    ends = np.asarray(block.terminated), np.asarray(block.truncated)
    assert ends[0].any()
    assert ends[1].any()
    found = np.asarray(jax.jit(algorithm.targets)(train.state.variables, block))
    q = algorithm.q_values(train.state.variables, block.observation)
    mask = np.asarray(block.observation["action_mask"]) if masked else True
    best = [np.where(mask, x, -np.inf).max(-1).reshape(7, 3, -1) for x in map(np.asarray, q.values())]
    best = np.concatenate(best, axis=-1)[1:]
    assert found.shape == best.shape == (6, 3, 3 if kind == "discrete" else 1)
    c = algorithm.config
    for n, e in np.ndindex(found.shape[1:]):
        rows = (np.asarray(x)[:, n] for x in (block.reward, *ends, block.valid))
        slow = returns_slowly(*rows, best[:, n, e], c.gamma, c.lam)
        valid = np.asarray(block.valid)[:, n]
        np.testing.assert_allclose(found[valid, n, e], slow[valid], rtol=1e-5)


def test_loss_is_the_mean_squared_error_of_valid_rows_and_all_elements():
    agent, train, block = run("discrete")
    algorithm = agent.learner.algorithm
    target = jax.random.normal(jax.random.key(1), (6, 3, 3))
    rows = pqn.PQNBatch({k: x[:-1] for k, x in block.observation.items()}, block.action, target, block.valid)
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
    params, state = train.state.variables["params"], train.state.variables["state"]
    total, metrics = pqn.loss(params, state, algorithm, batch)
    q = {k: np.asarray(x) for k, x in algorithm.q_values(train.state.variables, batch.observation).items()}
    error, values = [], []
    for b in range(18):
        if not bool(batch.valid[b]):
            continue
        gear, brake = np.asarray(batch.action["hand/gear"][b]), int(batch.action["brake"][b])
        value = [q["brake"][b, brake], q["hand/gear"][b, 0, gear[0]], q["hand/gear"][b, 1, gear[1]]]
        order = {"brake": value[:1], "hand/gear": value[1:]}
        value = np.concatenate([order[name] for name in q])
        error.append((np.asarray(batch.target[b]) - value) ** 2)
        values.append(value)
    assert len(error) < 18
    np.testing.assert_allclose(total, np.mean(error), rtol=1e-5)
    np.testing.assert_allclose(metrics["value/mean"], np.mean(values), rtol=1e-4, atol=1e-6)


def test_one_step_of_gradient_descent_goes_against_the_mean_gradient():
    """One minibatch and one pass of plain descent: params - lr ∇L, and no bound on the norm."""
    options = {"mini_batches": 1, "epochs": 1, "optimizer": "sgd", "grad_norm": None}
    agent, train, block = run(**options)
    algorithm = agent.learner.algorithm
    after, metrics = agent.absorb(train, block)
    variables = train.state.variables
    target = algorithm.targets(variables, block)
    rows = pqn.PQNBatch({k: x[:-1] for k, x in block.observation.items()}, block.action, target, block.valid)
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
    grads = jax.grad(lambda p: pqn.loss(p, variables["state"], algorithm, batch)[0])(variables["params"])
    for name, x in variables["params"].items():
        expected = x - 0.01 * grads[name]
        np.testing.assert_allclose(after.state.variables["params"][name], expected, rtol=1e-4, atol=1e-6)
    valid = np.asarray(block.valid)
    np.testing.assert_allclose(metrics["value/target"], np.asarray(target)[valid].mean(), rtol=1e-5)


def recurrent(**options):
    """A recurrent agent, its train after some blocks, a block whose rows begin in an episode, and their
    values row by row."""
    agent, train, block = run("discrete", model=RECURRENT, mini_batches=1, n_steps=5, **options)
    assert any(np.any(x) for x in jax.tree.leaves(block.carry))
    assert not block.valid.all()
    algorithm = agent.learner.algorithm

    def step(params, observation, carry):
        variables = {**train.state.variables, "params": params}
        q = algorithm.q_values(variables, observation, carry)
        return q, algorithm.model.apply(variables, observation, carry)[1]

    def row_by_row(params):
        carry, found = block.carry, []
        for t in range(6):
            q, after = step(params, {name: x[t] for name, x in block.observation.items()}, carry)
            found.append(q)
            carry = after if t == 5 else reset_carry(algorithm, after, ~block.valid[t])
        return jax.tree.map(lambda *rows: jnp.stack(rows), *found)

    return agent, train, block, row_by_row


@pytest.mark.exhaustive
def test_returns_of_a_recurrent_network_are_those_of_its_values_row_by_row():
    agent, train, block, row_by_row = recurrent()
    algorithm, c = agent.learner.algorithm, agent.learner.algorithm.config
    q = row_by_row(train.state.variables["params"])
    best = [np.asarray(q[name]).max(-1).reshape(6, 3, -1) for name in algorithm.spaces.actions.components]
    best = np.concatenate(best, axis=-1)[1:]
    found = np.asarray(jax.jit(algorithm.targets)(train.state.variables, block))
    for n, e in np.ndindex(found.shape[1:]):
        parts = (block.reward, block.terminated, block.truncated, block.valid)
        slow = returns_slowly(*(np.asarray(x)[:, n] for x in parts), best[:, n, e], c.gamma, c.lam)
        valid = np.asarray(block.valid)[:, n]
        np.testing.assert_allclose(found[valid, n, e], slow[valid], rtol=1e-4)


@pytest.mark.exhaustive
def test_a_recurrent_network_steps_against_the_gradient_through_its_rows():
    """One step of plain descent on the mean over valid rows, with a graph that goes through them one after
    the other."""
    agent, train, block, row_by_row = recurrent(epochs=1, optimizer="sgd", grad_norm=None)
    algorithm, params = agent.learner.algorithm, train.state.variables["params"]
    target = algorithm.targets(train.state.variables, block)

    def slow_loss(params):
        taken, values = [], row_by_row(params)
        for name in algorithm.spaces.actions.components:
            q = values[name]
            index = block.action[name].astype(jnp.int32)[..., None]
            taken.append(jnp.take_along_axis(q[:5], index, axis=-1)[..., 0].reshape(5, 3, -1))
        error = jnp.square(jnp.concatenate(taken, axis=-1) - target).mean(-1)
        return jnp.sum(jnp.where(block.valid, error, 0.0)) / int(block.valid.sum())

    after, _ = agent.absorb(train, block)
    for name, gradient in jax.grad(slow_loss)(params).items():
        assert np.any(gradient), name
        expected = params[name] - 0.01 * gradient
        np.testing.assert_allclose(after.state.variables["params"][name], expected, rtol=1e-4, atol=1e-6)


def test_an_auto_network_is_normalised_unless_told_otherwise():
    def weights(model):
        state = learner("pqn", Countdown(), 2, model=model).algorithm.init(jax.random.key(0))
        return {name.split("/")[0] for name in state.variables["params"]}

    normal = {"body.layer_normalization0", "body.layer_normalization1"}
    assert normal <= weights("auto")
    assert normal <= weights({"type": "auto", "size": 8})
    assert not normal & weights({"type": "auto", "norm": None})
    assert not normal & weights([{"type": "dense", "size": 8}])
    assert small("pqn")["model"] == [{"type": "dense", "size": 16}]


def test_normalisation_stands_before_the_activation():
    """The features of a normalised network do not change with the scale of the kernel before."""
    made = learner("pqn", Countdown(), 2, model={"type": "auto", "depth": 1, "size": 64})
    algorithm = made.algorithm
    variables = algorithm.init(jax.random.key(0)).variables
    observation = {
        "count/left": jnp.array([[3.0]]),
        "count/odd": jnp.array([True]),
        "noise": jnp.array([[0.3, -2.0]]),
        "level": jnp.array([2]),
    }

    def values(scale):
        params = dict(variables["params"])
        params["body.dense0/kernel"] = params["body.dense0/kernel"] * scale
        return np.asarray(algorithm.q_values({**variables, "params": params}, observation)["action"])

    np.testing.assert_allclose(values(100.0), values(1000.0), rtol=1e-4)
    with pytest.raises(SpecError, match=r"norm must be None or 'layer'\. Received: norm='batch'"):
        learner("pqn", Countdown(), 2, model={"type": "auto", "norm": "batch"})


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(
        SpecError, match=r"mini_batches must be at most 12 \(2 environments x n_steps 6 rows\)"
    ):
        learner("pqn", Countdown(), 2, mini_batches=13)
    with pytest.raises(
        SpecError,
        match=(
            r"mini_batches must be at most 2 \(environments: 2, whose sequences stay whole for a "
            r"recurrent model\).* fewer mini_batches, or more"
        ),
    ):
        learner("pqn", Countdown(), 2, model=RECURRENT, mini_batches=3)
    with pytest.raises(SpaceError, match=r"pqn supports discrete \(int, bool\) actions only"):
        learner("pqn", Countdown(kind="float"), 2)
    with pytest.raises(
        SpecError, match=r"epsilon_end must be at most epsilon_start\. Received: epsilon_end=0\.5"
    ):
        parse_agent("pqn", epsilon_start=0.1, epsilon_end=0.5)
