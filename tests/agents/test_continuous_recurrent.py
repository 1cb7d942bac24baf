"""DDPG, TD3 and SAC with recurrent networks: targets and losses against plain loops, stored states,
burn-in, and a probe of memory."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.agents.test_conformance import random_observation
from tests.small_agents import (
    MODEL,
    RECURRENT,
    Countdown,
    compile_agent,
    compiled,
    differing,
    learner,
    networks,
    small,
)

import operant
from operant.agents import sac
from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import Learner
from operant.agents.base.protocol import fold
from operant.agents.parts import imitation, off_policy, sequences
from operant.agents.parts.action_scaling import to_units
from operant.errors import SpecError
from operant.spec.spaces import Spaces
from operant.types import Rollout

BURN, LENGTH, GAMMA, COLUMNS = 2, 5, 0.9, 4
TERMINATED = [(3, 0), (0, 1), (4, 2)]
TRUNCATED = [(6, 0), (2, 3)]
"""Ends at (row, column), in the burn-in, among the rows that learn and at the last.

A row without action follows.
"""
EACH = pytest.mark.parametrize("name", ["ddpg", "sac", "td3"])
pytestmark = pytest.mark.slow


def made(name, **options):
    """A recurrent agent, and a state whose targets are other networks than the online ones."""
    options = {"burn_in": BURN, "sequence_length": LENGTH, "gamma": GAMMA, **options}
    options = {**networks(name, RECURRENT), **options}
    built = learner(name, Countdown(kind="float"), 2, **options)
    state = jax.jit(built.init)(jax.random.key(0), built.hyper()).state
    moved = {
        field: jax.tree.map(lambda x: x + 0.2 * jnp.cos(x * 31.0), getattr(state, field))
        for field in state._fields
        if field.startswith("target_")
    }
    return built.algorithm, state._replace(**moved)


def block_of(algorithm, key):
    """Random sequences with ends of episodes, and recurrent states that were stored with them."""
    T, B = algorithm.sequence_rows, COLUMNS
    drawn = random_observation(algorithm.spaces, (T + 1) * B, fold(key, 0))
    ends = [np.zeros((T, B), bool) for _ in range(2)]
    for end, places in zip(ends, (TERMINATED, TRUNCATED), strict=True):
        for place in places:
            end[place] = True
    valid = np.concatenate([np.ones((1, B), bool), ~(ends[0] | ends[1])[:-1]])
    carry = jax.tree.map(lambda x: jax.random.normal(fold(key, 3), x.shape), algorithm.initial_carry(B))
    return Rollout(
        observation={name: x.reshape(T + 1, B, *x.shape[1:]) for name, x in drawn.items()},
        action={"action": jax.random.uniform(fold(key, 1), (T, B, 2), minval=-1.0, maxval=2.0)},
        reward=jax.random.normal(fold(key, 2), (T, B)),
        terminated=jnp.asarray(ends[0]),
        truncated=jnp.asarray(ends[1]),
        valid=jnp.asarray(valid),
        extras={"carry": jax.tree.map(lambda x: jnp.zeros((T, *x.shape)), carry)},
        carry=carry,
    )


class Walk:
    """A network asked row by row, with one call for each, in the order of time."""

    def __init__(self, algorithm, name, variables, block):
        model, carry = algorithm.models[name], block.carry[name]
        self.variables, self.block, self.judges = variables, block, "action" in model.inputs
        self.step, self.states = jax.jit(model.apply), []
        units = to_units(algorithm.spaces.actions.components, block.action)
        for t in range(len(block.reward) + 1):
            if t:
                carry = {k: jnp.where(block.valid[t - 1][:, None], x, 0.0) for k, x in carry.items()}
            self.states.append(carry)
            if t < len(block.reward):
                carry = self.step(variables, self.inputs(t, {k: x[t] for k, x in units.items()}), carry)[1]

    def inputs(self, t, units):
        observation = {k: x[t] for k, x in self.block.observation.items()}
        return {**observation, **units} if self.judges else observation

    def __call__(self, t, units=None):
        """Outputs of all columns at a row, also for other actions than those that were done."""
        return self.step(self.variables, self.inputs(t, units), self.states[t])[0]

    def value(self, t, units):
        return np.asarray(self(t, units)["value"])


def walk(algorithm, state, name, block, target=False):
    variables = getattr(state, name)
    if target:
        variables = {**variables, "params": getattr(state, f"target_{name}")}
    return Walk(algorithm, name, variables, block)


def learning_rows(block):
    """(row, column, place in the batch) of the steps that learn."""
    places = [(t, b) for t in range(BURN, BURN + LENGTH) for b in range(COLUMNS)]
    return [(t, b, i) for i, (t, b) in enumerate(places) if block.valid[t, b]]


@EACH
def test_targets_and_losses_equal_a_plain_loop_over_rows(name):
    algorithm, state = made(name, **({"policy_noise_coef": 0.3, "noise_clip": 0.2} if name == "td3" else {}))
    block = block_of(algorithm, jax.random.key(5))
    batch, size = jax.jit(algorithm.steps_of)(block), LENGTH * COLUMNS
    noise = algorithm.update_noise(jax.random.key(1), size)
    by_row = {k: np.asarray(x).reshape(LENGTH, COLUMNS, -1) for k, x in noise.items()}
    rows = learning_rows(block)
    assert sum(np.asarray(batch.weight)) == len(rows) < size

    # Targets
    follows = walk(algorithm, state, "actor", block, target=name != "sac")
    critics = [walk(algorithm, state, critic, block, target=True) for critic in algorithm.critics]
    expected = np.zeros((LENGTH, COLUMNS))
    for t in range(BURN, BURN + LENGTH):
        own = {k: jnp.asarray(x[t - BURN]) for k, x in by_row.items()}
        outputs, soft = follows(t + 1), 0.0
        if name == "sac":
            units, log_prob = algorithm.draw(outputs, own)
            soft = np.exp(float(state.log_temperature)) * np.asarray(log_prob)
        else:
            units = {k: jnp.clip(x, -1.0, 1.0) for k, x in outputs.items()}
        if name == "td3":
            units = {k: jnp.clip(x + jnp.clip(0.3 * own[k], -0.2, 0.2), -1.0, 1.0) for k, x in units.items()}
        ahead = np.min([critic.value(t + 1, units) for critic in critics], axis=0) - soft
        alive = ~np.asarray(block.terminated[t])
        expected[t - BURN] = np.asarray(block.reward[t]) + GAMMA * alive * ahead
    target = algorithm.target(state, batch, noise) if name != "ddpg" else algorithm.target(state, batch)
    chosen = np.asarray(batch.weight) > 0
    np.testing.assert_allclose(np.asarray(target)[chosen], expected.reshape(-1)[chosen], rtol=2e-5, atol=1e-6)

    # Critics: the squared error of what was done
    units, total = algorithm.units(block.action), 0.0
    online = [walk(algorithm, state, critic, block) for critic in algorithm.critics]
    for critic in online:
        values = {t: critic.value(t, {k: x[t] for k, x in units.items()}) for t in range(BURN, BURN + LENGTH)}
        total += np.mean([(expected[t - BURN, b] - values[t][b]) ** 2 for t, b, _ in rows])
    params = tuple(getattr(state, critic)["params"] for critic in algorithm.critics)
    module = importlib.import_module(f"operant.agents.{name}")
    loss = jax.jit(lambda p: module.critic_loss(p, state, algorithm, batch, target)[0])(params)
    assert float(loss) == pytest.approx(total, rel=2e-5)

    # The actor: what critics say of its own actions, after what was done before
    acts, each = walk(algorithm, state, "actor", block), []
    for t in range(BURN, BURN + LENGTH):
        own = {k: jnp.asarray(x[t - BURN]) for k, x in by_row.items()}
        outputs, price = acts(t), 0.0
        if name == "sac":
            units, log_prob = algorithm.draw(outputs, own)
            price = np.exp(float(state.log_temperature)) * np.asarray(log_prob)
            worth = np.min([critic.value(t, units) for critic in online], axis=0)
        else:
            worth = online[0].value(t, {k: jnp.clip(x, -1.0, 1.0) for k, x in outputs.items()})
        each.append(price - worth)
    mean = np.mean([each[t - BURN][b] for t, b, _ in rows])
    arguments = (params, batch, noise) if name == "sac" else (params[0], batch)
    loss = jax.jit(lambda p: module.actor_loss(p, state, algorithm, *arguments))(state.actor["params"])
    loss = loss[0] if name == "sac" else loss
    assert float(loss) == pytest.approx(mean, rel=2e-5)


@pytest.mark.exhaustive
def test_rows_of_the_burn_in_count_but_get_no_gradient():
    algorithm, state = made("sac")
    block = block_of(algorithm, jax.random.key(1))

    def losses(seen, algorithm, block):
        changed = block._replace(observation={**block.observation, "noise": seen})
        batch = algorithm.steps_of(changed)
        size = batch.reward.shape[0]
        params = tuple(getattr(state, critic)["params"] for critic in algorithm.critics)
        critic = sac.critic_loss(params, state, algorithm, batch, jnp.ones(size))[0]
        noise = algorithm.update_noise(jax.random.key(1), size)
        actor = sac.actor_loss(state.actor["params"], state, algorithm, params, batch, noise)[0]
        return jnp.stack([critic, actor])

    noise = block.observation["noise"]
    by_row = np.abs(np.asarray(jax.jit(jax.jacrev(lambda x: losses(x, algorithm, block)))(noise)))
    by_row = by_row.reshape(2, *noise.shape[:2], -1).max(axis=-1)
    assert not by_row[:, :BURN].any() and (by_row[:, BURN, [0, 2, 3]] > 0).all()
    here, moved = (losses(x, algorithm, block) for x in (noise, noise.at[BURN - 1].add(1.0)))
    assert not np.isclose(here, moved, rtol=1e-4).any()  # they do bring the states about
    # Without burn-in the first rows have a gradient (the control).
    cold = made("sac", burn_in=0, sequence_length=BURN + LENGTH)[0]
    by_row = np.abs(np.asarray(jax.jit(jax.jacrev(lambda x: losses(x, cold, block)))(noise)))
    assert (by_row.reshape(2, *noise.shape[:2], -1).max(axis=-1)[:, :BURN, 2] > 0).all()


@pytest.mark.exhaustive
def test_replayed_states_are_those_that_networks_had_when_the_agent_acted():
    """Without learning the same networks made all of them: unrolled from the first, they come to the
    others."""
    agent = compiled("td3", Countdown(kind="float"), **networks("td3", RECURRENT), lr=0.0)
    algorithm = agent.learner.algorithm
    train, blocks, metrics = agent.run(0, 14)
    assert np.isfinite(metrics[-1]["loss/critic"])
    assert sorted(blocks[0].carry) == sorted(algorithm.models)
    drawn = algorithm.memory.sample_sequences(train.memory, jax.random.key(2), 40, algorithm.sequence_rows)
    valid = np.asarray(drawn.valid)  # on the row of a last observation nothing was done
    assert (~valid).any() and valid.any()
    for network in algorithm.models:
        states = Walk(algorithm, network, getattr(train.state, network), drawn).states[:-1]
        stored = np.asarray(drawn.extras["carry"][network]["body.gru0.h"])
        found = np.stack([x["body.gru0.h"] for x in states])
        np.testing.assert_allclose(found[valid], stored[valid], atol=1e-5)
        assert np.abs(stored[valid]).max() > 0.1


def test_what_was_done_elsewhere_is_remembered_as_if_done_here():
    """`recall` of the actions that `act` chose gives what `act` gave, also of an element that has one
    value only."""
    spaces = Spaces.read(
        states={"type": "float", "shape": (3,)},
        actions={"type": "float", "shape": (2,), "min_value": [-1.0, 2.0], "max_value": [1.0, 2.0]},
    )
    definition = parse_agent("sac", **small("sac", **networks("sac", RECURRENT)))
    built = Learner(definition.cls.create(definition.config, spaces, 2))
    acting = built.acting(built.init(jax.random.key(0), built.hyper()))
    observation = random_observation(spaces, 2, jax.random.key(1))
    carry = jax.tree.map(lambda x: x + 0.3, built.algorithm.initial_carry(2))
    first, noise = jnp.array([False, True]), built.algorithm.noise(jax.random.key(2), 2)
    acted = built.act(acting, observation, carry, first, noise, explore=True)
    recalled = built.recall(acting, observation, carry, first, acted.action)
    for one, other in zip(jax.tree.leaves(acted), jax.tree.leaves(recalled), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    other = built.recall(acting, observation, carry, first, {k: -x for k, x in acted.action.items()})
    for network in built.algorithm.models:
        same = np.allclose(acted.carry[network]["body.gru0.h"], other.carry[network]["body.gru0.h"])
        assert same == (network == "actor")


@pytest.mark.exhaustive
def test_exported_policies_know_nothing_of_critics(tmp_path):
    shapes = {"states": {"type": "float", "shape": (3,)}, "parallel_interactions": 1}
    shapes["actions"] = {"type": "float", "shape": (2,), "min_value": -1.0, "max_value": 1.0}
    options = small("td3", **networks("td3", RECURRENT))
    agent = operant.Agent.create(agent="td3", **shapes, **options)
    assert sorted(agent.initial_internals()) == ["actor", "critic1", "critic2"]
    path = agent.save(tmp_path / "whole", format="stablehlo")
    policy, ours = operant.load_policy(path), agent.initial_internals()
    theirs = policy.initial_internals()
    assert sorted(theirs) == ["actor"]
    for row in np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32):
        wanted, ours = agent.act(row, internals=ours, independent=True, deterministic=True)
        got, theirs = policy.act(row, internals=theirs)
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    # Where only critics remember, actions need no internals.
    agent = operant.Agent.create(agent="td3", **shapes, **small("td3", critic_model=RECURRENT))
    assert agent.act(np.ones(3), independent=True).shape == (2,)
    policy = operant.load_policy(agent.save(tmp_path / "critic", format="stablehlo"))
    np.testing.assert_allclose(
        policy.act(np.ones(3)), agent.act(np.ones(3), independent=True, deterministic=True), atol=1e-5
    )


def test_running_averages_beside_a_recurrent_network_are_refused():
    averaged = [{"type": "dense", "size": 8}, {"type": "batch_normalization"}]
    message = "critic1 must not have running averages.*beside the recurrent actor.*Use layer normalisation"
    with pytest.raises(SpecError, match=message):
        made("td3", critic_model=averaged)
    with pytest.raises(SpecError, match="baseline must not have running averages.*the recurrent model"):
        learner("modular", Countdown(), 2, model=RECURRENT, baseline_model=averaged)


def test_imitation_unrolls_the_actor_from_the_state_of_a_block():
    algorithm, state = made("td3")
    block = block_of(algorithm, jax.random.key(3))
    acts = walk(algorithm, state, "actor", block)
    rows = [algorithm.greedy(acts(t)) for t in range(algorithm.sequence_rows)]
    greedy = {k: jnp.stack([row[k] for row in rows]) for k in rows[0]}
    expected = imitation.distance(greedy, algorithm.units(block.action), block.valid)
    imitate = jax.jit(algorithm.imitation)
    weights = algorithm.weights(state)
    np.testing.assert_allclose(imitate(weights, block), expected, rtol=1e-5)
    forgetful = block._replace(carry=algorithm.initial_carry(COLUMNS))
    assert not np.isclose(imitate(weights, forgetful), expected, rtol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("option", ["actor_model", "critic_model"])
def test_one_network_may_be_recurrent_alone(option):
    agent = compiled("td3", Countdown(kind="float"), **{option: RECURRENT})
    train, blocks, metrics = agent.run(3, 14)
    remembering = ["actor"] if option == "actor_model" else ["critic1", "critic2"]
    assert sorted(blocks[0].carry) == remembering
    assert np.isfinite(metrics[-1]["loss/critic"]) and metrics[-1]["update/skipped"] == 0
    assert differing(train, agent.run(3, 14)[0]) == []


def test_a_memory_too_small_for_sequences_is_refused():
    with pytest.raises(
        SpecError,
        match=r"buffer_max_size must be above 96 for a recurrent network: 2 environments x \(burn_in 30 \+ "
        r"sequence_length 18\) rows\. Received: buffer_max_size=96\. Use a larger buffer_max_size",
    ):
        made("sac", burn_in=30, sequence_length=18, buffer_max_size=96, buffer_batch_size=8)


def test_a_sign_is_remembered_with_recurrent_networks_and_not_without():
    from tests.agents import test_probes as probes

    probe = "probe/memory-continuous"
    probes.check("ddpg", probe, probes.on_device("ddpg", probe))
    found = probes.on_device("ddpg", probe, **networks("ddpg", MODEL))
    with pytest.raises(AssertionError, match="is right"):
        probes.check("ddpg", probe, found)


@pytest.mark.exhaustive
def test_states_forgotten_between_sequences_fail_the_probe(monkeypatch):
    """Control: rows of the answer are replayed without what came before them."""
    from tests.agents import test_probes as probes

    states = sequences.states
    monkeypatch.setattr(
        off_policy.sequences,
        "states",
        lambda m, v, b, rows: jax.tree.map(jnp.zeros_like, states(m, v, b, rows)),
    )
    probe = "probe/memory-continuous"
    with pytest.raises(AssertionError, match="is right"):
        probes.check("ddpg", probe, probes.on_device("ddpg", probe))


@pytest.mark.exhaustive
@pytest.mark.parametrize("own", [True, False], ids=["own optimizer", "together"])
def test_a_deterministic_objective_equals_a_plain_loop_over_rows(own):
    """The modular agent: -Q(h, s, μ(h, s)) and (r + γ Q'(h', s', μ'(h', s')) - Q(h, s, a))², h of what was
    seen and done before."""
    options = {
        "objective": "deterministic_policy_gradient",
        "memory": "recent",
        "batch_size": 18,
        "horizon": 1,
    }
    options |= {
        "model": RECURRENT,
        "baseline_model": RECURRENT,
        "exploration": 0.5,
        "gamma": GAMMA,
        "lr": 0.05,
    }
    options |= {"optimizer": "sgd", "target_update_weight": 0.25}
    options |= {"baseline_optimizer": "sgd", "baseline_lr": 0.1} if own else {"baseline_weight": 2.0}
    agent = compile_agent("modular", Countdown(kind="float"), **options)
    algorithm = agent.learner.algorithm
    train, world = agent.begin(0)
    updates = 0
    while updates < 3:  # so that targets are other networks, and the batch begins within an episode
        block, world = agent.collect(train, world)
        before, train, metrics = train, *agent.absorb(train, block)
        updates += bool(np.isfinite(metrics["loss/policy"]))
    held = algorithm.memory.rollout(algorithm.memory.add(before.memory, block))
    held = held._replace(carry=jax.tree.map(lambda x: x[0], held.extras["carry"]))
    box = algorithm.spaces.actions.components["action"]
    held = held._replace(action={"action": jnp.clip(held.action["action"], box.min_value, box.max_value)})
    start, valid = before.state, np.asarray(held.valid)

    def walked(name, params=None):
        variables = algorithm.weights(start)[name]
        return Walk(algorithm, name, variables if params is None else {**variables, "params": params}, held)

    units = to_units(algorithm.spaces.actions.components, held.action)
    acts, ahead = walked("model"), walked("model", start.target["model"])
    critic, judge = walked("baseline"), walked("baseline", start.target["baseline"])
    policy, value = [], []
    for t in range(len(valid)):
        following = judge.value(t + 1, {k: jnp.clip(x, -1, 1) for k, x in ahead(t + 1).items()})
        target = np.asarray(held.reward[t]) + GAMMA * ~np.asarray(held.terminated[t]) * following
        done = {k: jnp.clip(x[t], -1.0, 1.0) for k, x in units.items()}
        value.append((critic.value(t, done) - target) ** 2)
        policy.append(-critic.value(t, {k: jnp.clip(x, -1, 1) for k, x in acts(t).items()}))
    late = int(train.counters.timesteps) - int(train.state.last)  # steps that came after it was due
    places = [(t, n) for t, n in np.argwhere(valid)]
    batch = places[len(places) - 18 - late : len(places) - late]
    assert any(
        t > 0 and valid[t - 1, n] and (t - 1, n) not in batch for t, n in batch
    )  # older rows bring up the states
    losses = {"loss/policy": policy, "loss/value": value}
    for name, rows in losses.items():
        expected = np.mean([rows[t][n] for t, n in batch])
        assert float(metrics[name]) == pytest.approx(expected, rel=1e-4, abs=1e-6), name
    assert metrics["update/skipped"] == 0


def test_a_recurrent_baseline_remembers_what_was_done_elsewhere():
    options = {"objective": "deterministic_policy_gradient", "memory": "recent", "exploration": 0.5}
    built = learner("modular", Countdown(kind="float"), 2, **options, **networks("modular", RECURRENT))
    acting = built.acting(built.init(jax.random.key(0), built.hyper()))
    observation = random_observation(built.algorithm.spaces, 2, jax.random.key(1))
    carry, noise = built.algorithm.initial_carry(2), built.algorithm.noise(jax.random.key(2), 2)
    acted = built.act(acting, observation, carry, jnp.zeros(2, bool), noise, explore=True)
    assert not np.allclose(*(jax.device_get(acted.action["action"]), built.act(
        acting, observation, carry, jnp.zeros(2, bool), noise, explore=False).action["action"]))  # fmt: skip
    recalled = built.recall(acting, observation, carry, jnp.zeros(2, bool), acted.action)
    for one, other in zip(jax.tree.leaves(acted), jax.tree.leaves(recalled), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.exhaustive
def test_a_deterministic_policy_learns_from_replayed_rows_through_time():
    """Layers without a horizon get one, so that gradients reach what was seen before; all parameters move."""
    options = {
        "objective": "deterministic_policy_gradient",
        "memory": "replay",
        "horizon": 2,
        "exploration": 0.5,
    }
    agent = compiled("modular", Countdown(kind="float"), **options, **networks("modular", RECURRENT))
    algorithm = agent.learner.algorithm
    assert (algorithm.warmup, algorithm.n_step) == (20, 2)
    train, _, metrics = agent.run(0, 14)
    assert np.isfinite(metrics[-1]["loss/policy"]) and metrics[-1]["update/skipped"] == 0
    start = agent.begin(0)[0].state
    for name, params in algorithm.params(train.state).items():
        same = [k for k, x in algorithm.params(start)[name].items() if np.array_equal(x, params[k])]
        assert same == [], f"{name}: {same} did not move"
    rows, counts, _ = jax.jit(lambda s, m: algorithm.prepared(s).batch(m, jax.random.key(0)))(
        train.state, train.memory
    )
    assert counts.sum() <= 18 and len(counts) == 21 * 18  # what came behind the drawn rows is gone

    @jax.jit
    def by_row(noise):
        observation = {**rows.view.observation, "noise": noise}
        params = algorithm.params(train.state)
        frozen = algorithm.frozen(train.state)
        each, _ = algorithm.objective.loss(
            params, frozen, rows._replace(view=rows.view._replace(observation=observation))
        )
        return jnp.sum(jnp.where(counts, each, 0.0))

    gradient = jax.grad(by_row)(rows.view.observation["noise"]).reshape(21, 18, -1)
    assert (np.abs(gradient[19:]).max(axis=(1, 2)) > 0).all()
