"""TRPO: a whole update against slow NumPy, the trust region in runs, both networks recurrent or not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from tests.small_agents import MODEL, RECURRENT, Countdown, compile_agent, compiled, differing, learner

from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import Learner
from operant.agents.parts.actor_critic import evaluate
from operant.agents.trpo import SLACK, CriticBatch, value_loss
from operant.errors import SpecError
from operant.ops import trust_region
from operant.spec.spaces import Spaces, masks_of
from operant.types import Rollout

LINEAR = [{"type": "dense", "size": 2, "activation": "linear"}]
SPACES = Spaces.read(
    states={"type": "float", "shape": (2,)}, actions={"type": "int", "shape": (), "num_values": 3}
)
T, N = 6, 2


def make(spaces=SPACES, actors=N, **options):
    definition = parse_agent("trpo", actor_model=LINEAR, critic_model=LINEAR, **options)
    return Learner(definition.cls.create(definition.config, spaces, actors))


def block_of(made, train):
    """Random rows, with an end of either kind and the rows after them invalid.

    Log-probabilities are the policy's.
    """
    rng = np.random.default_rng(0)
    observation = {"state": jnp.asarray(rng.normal(size=(T + 1, N, 2)), jnp.float32)}
    action = {"action": jnp.asarray(rng.integers(0, 3, (T, N)), jnp.int32)}
    terminated, truncated, valid = (np.full((T, N), x) for x in (False, False, True))
    terminated[2, 0], valid[3, 0] = True, False
    truncated[1, 1], valid[2, 1] = True, False
    made = made.algorithm
    outputs = made.model.apply(train.state.actor, {"state": observation["state"][:-1]})[0]
    return Rollout(
        observation=observation,
        action=action,
        reward=jnp.asarray(rng.normal(size=(T, N)), jnp.float32),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated),
        valid=jnp.asarray(valid),
        extras={"log_prob": made.policy.distribution(outputs).log_prob(action)},
        carry=(),
    )


# The update, slowly


class Net:
    """A linear layer and a linear head in float64, with the derivative of every output by every parameter."""

    def __init__(self, params):
        self.names = list(params)
        self.leaves = [np.asarray(x, np.float64) for x in params.values()]

    def like(self, params):
        """Return other parameters as a vector in the order of these."""
        return np.concatenate([np.asarray(params[name]).reshape(-1) for name in self.names])

    @property
    def flat(self):
        return np.concatenate([x.reshape(-1) for x in self.leaves])

    def at(self, flat):
        parts = np.split(flat, np.cumsum([x.size for x in self.leaves])[:-1])
        leaves = [p.reshape(x.shape) for p, x in zip(parts, self.leaves, strict=True)]
        return Net(dict(zip(self.names, leaves, strict=True)))

    def __call__(self, x):
        by_shape = {"kernel": [], "bias": []}
        for leaf in self.leaves:
            by_shape["kernel" if leaf.ndim == 2 else "bias"].append(leaf)
        for kernel, bias in zip(*by_shape.values(), strict=True):
            x = x @ kernel + bias
        return x

    def jacobian(self, x, epsilon=1e-6):
        """By central differences, `[D, outputs]`."""
        steps = epsilon * np.eye(self.flat.size)
        return np.stack(
            [(self.at(self.flat + s)(x) - self.at(self.flat - s)(x)) / (2 * epsilon) for s in steps]
        )


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def gae(block, value, gamma, lam):
    """Generalised advantages by a loop over each actor's rows."""
    reward, terminated, truncated, valid = (np.asarray(x) for x in block[2:6])
    advantage = np.zeros((T, N))
    for n in range(N):
        following = 0.0
        for t in reversed(range(T)):
            if not valid[t, n]:
                following = 0.0
                continue
            bootstrap = 0.0 if terminated[t, n] else gamma * value[t + 1, n]
            delta = reward[t, n] + bootstrap - value[t, n]
            ends = terminated[t, n] or truncated[t, n]
            advantage[t, n] = delta + (0.0 if ends else gamma * lam * following)
            following = advantage[t, n]
    return advantage


def test_update_equals_a_slow_one():
    """Natural gradient by an explicit Fisher matrix and its inverse.

    One step of the critic by plain descent.
    """
    gamma, lam, max_kl, damping, coef, lr, every = 0.9, 0.7, 0.01, 0.02, 0.3, 0.05, 2
    made = make(
        n_steps=T,
        gamma=gamma,
        lam=lam,
        max_kl=max_kl,
        cg_damping=damping,
        cg_iterations=40,
        fvp_n_steps=every,
        entropy_coef=coef,
        critic_iterations=1,
        ppo_epochs=1,
        mini_batches=1,
        optimizer="sgd",
        lr=lr,
        value_loss_coef=2.0,
        grad_norm=0.4,
    )
    train = made.init(jax.random.key(1), made.hyper())
    kernels = jax.tree.map(lambda x: x + 0.3, train.state.actor)  # far from uniform
    train = train._replace(state=train.state._replace(actor=kernels))
    block = block_of(made, train)
    after, metrics = jax.jit(made.update)(train, block, jax.random.key(2))

    states, valid = np.asarray(block.observation["state"], np.float64), np.asarray(block.valid)
    critic = Net(train.state.critic["params"])
    value = np.array([[critic(states[t, n])[0] for n in range(N)] for t in range(T + 1)])
    advantage = gae(block, value, gamma, lam)
    target = advantage + value[:-1]
    used = [(t, n) for t in range(T) for n in range(N) if valid[t, n]]
    mean, std = advantage[valid].mean(), advantage[valid].std()

    actor = Net(train.state.actor["params"])
    gradient, fisher, counted = 0.0, 0.0, 0
    for t, n in used:
        p = softmax(actor(states[t, n]))
        jacobian = actor.jacobian(states[t, n])  # [D, 3]
        scores = jacobian @ (np.eye(3) - p[:, None])  # ∇log p of each choice
        a = int(block.action["action"][t, n])
        gradient += scores[:, a] * (advantage[t, n] - mean) / (std + 1e-8) / len(used)
        gradient -= coef * scores @ (p * np.log(p)) / len(used)
        if t % every == 0:
            fisher, counted = fisher + scores @ np.diag(p) @ scores.T, counted + 1
    fisher = fisher / counted + damping * np.eye(len(gradient))
    natural = np.linalg.solve(fisher, gradient)
    step = natural * np.sqrt(2 * max_kl / (natural @ fisher @ natural))

    def kl(flat):
        pairs = [(softmax(actor(states[i])), softmax(actor.at(flat)(states[i]))) for i in used]
        return np.mean([np.sum(p * np.log(p / q)) for p, q in pairs])

    refused = int(metrics["update/line_search_steps"])
    expected = actor.flat + step / 2**refused
    assert metrics["update/accepted"] == 1
    assert [kl(actor.flat + step / 2**k) <= SLACK * max_kl for k in range(refused + 1)][-1]
    np.testing.assert_allclose(actor.like(after.state.actor["params"]), expected, rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(metrics["update/kl"], kl(expected), rtol=1e-2)
    assert np.abs(step).max() > 0.01

    slope = sum(critic.jacobian(states[i])[:, 0] * (value[i] - target[i]) for i in used) * 2.0 / len(used)
    assert np.linalg.norm(slope) > 0.4
    slope *= 0.4 / np.linalg.norm(slope)
    np.testing.assert_allclose(
        critic.like(after.state.critic["params"]), critic.flat - lr * slope, rtol=1e-4, atol=1e-5
    )
    error = np.mean([(value[i] - target[i]) ** 2 for i in used])
    np.testing.assert_allclose(metrics["loss/value"], error / 2, rtol=1e-4)
    explained = 1 - np.var(advantage[valid]) / np.var(
        target[valid]
    )  # what is left of the targets are the advantages
    np.testing.assert_allclose(metrics["update/explained_variance"], explained, rtol=1e-3)
    assert metrics["update/skipped"] == 0


def test_clipped_value_loss_by_hand():
    """From 0 to the target 3: at 2 the error is 1, clipped to 0.5 it is 2.5; ½ (2.5²) and no gradient."""
    made = make(n_steps=T, mini_batches=1).algorithm
    params = make(n_steps=T).init(jax.random.key(0), make(n_steps=T).hyper()).state.critic["params"]
    params = {k: jnp.full_like(x, 2.0) if x.shape == (1,) else jnp.zeros_like(x) for k, x in params.items()}
    fit = CriticBatch(
        {"state": jnp.zeros((1, 2))}, value=jnp.zeros(1), target=jnp.full(1, 3.0), valid=jnp.ones(1, bool)
    )
    for clip, error, slope in ((False, 1.0, -1.0), (True, 2.5, 0.0)):
        chosen = made.config.with_values({"clip_value": clip, "clip_norm": 0.5, "value_loss_coef": 4.0})
        algorithm = make(n_steps=T).algorithm.__class__(
            chosen, made.spaces, N, made.model, made.policy, made.critic
        )
        (loss, metrics), grads = jax.value_and_grad(value_loss, has_aux=True)(params, {}, algorithm, fit, ())
        assert loss == 4.0 * 0.5 * error**2
        assert metrics["loss/value"] == 0.5 * error**2
        (bias,) = [g for g in grads.values() if g.shape == (1,)]
        np.testing.assert_allclose(bias, [4.0 * slope])


def test_equal_advantages_move_nothing():
    """Without rewards and values all advantages are 0, so is their deviation."""
    made = make(n_steps=T)
    train = made.init(jax.random.key(0), made.hyper())
    critic = jax.tree.map(jnp.zeros_like, train.state.critic)
    train = train._replace(state=train.state._replace(critic=critic))
    block = block_of(made, train)
    block = block._replace(reward=jnp.zeros_like(block.reward))
    after, metrics = jax.jit(made.update)(train, block, jax.random.key(1))
    assert differing(train.state.actor, after.state.actor) == []
    assert (metrics["update/accepted"], metrics["update/skipped"]) == (0, 0)
    assert all(np.isfinite(x) for x in metrics.values())


def test_a_policy_that_may_do_one_thing_only_has_nothing_to_improve():
    """Its entropy is 0, its ratio 1, and of its Fisher matrix only the damping is left."""
    states = {"state": {"type": "float", "shape": (2,)}, "action_mask": {"type": "bool", "shape": (3,)}}
    made = make(
        Spaces.read(states=states, actions={"type": "int", "num_values": 3}), n_steps=T, entropy_coef=1.0
    )
    train = made.init(jax.random.key(1), made.hyper())
    block = block_of(made, train)
    only = jnp.broadcast_to(jnp.array([False, True, False]), (T + 1, N, 3))
    block = block._replace(
        observation={**block.observation, "action_mask": only},
        action={"action": jnp.ones((T, N), jnp.int32)},
        extras={"log_prob": jnp.zeros((T, N))},
    )
    after, metrics = jax.jit(made.update)(train, block, jax.random.key(2))
    assert (metrics["policy/entropy"], metrics["update/kl"], metrics["update/accepted"]) == (0, 0, 0)
    assert differing(train.state.actor, after.state.actor) == []
    found = fisher(made, train, block)
    damping = made.algorithm.config.cg_damping
    np.testing.assert_allclose(found, damping * jnp.sin(jnp.arange(found.size, dtype=jnp.float32)), rtol=1e-5)


def test_a_step_that_lowers_the_objective_is_refused_whatever_its_divergence(monkeypatch):
    monkeypatch.setattr(trust_region, "natural_step", lambda product, gradient, **_: -1e-3 * gradient)
    made = make(n_steps=T)
    train = made.init(jax.random.key(1), made.hyper())
    after, metrics = jax.jit(made.update)(train, block_of(made, train), jax.random.key(2))
    assert metrics["update/accepted"] == 0 and metrics["update/grad_norm"] > 1e-3
    assert differing(train.state.actor["params"], after.state.actor["params"]) == []


# The trust region in runs


@functools.partial(jax.jit, static_argnums=0)
def divergence(made, before, after, block):
    """Mean divergence of the policy after an update from the one before, on the block's rows."""
    observation = {k: x[:-1] for k, x in block.observation.items()}
    masks = masks_of(observation)
    carry = block.carry["actor"] if made.model.recurrent else ()
    outputs = [
        evaluate(made.model, train.state.actor, observation, carry, block.valid) for train in (before, after)
    ]
    old, new = (made.policy.distribution(x, masks) for x in outputs)
    return jnp.sum(old.kl(new) * block.valid.astype(jnp.float32)) / jnp.sum(block.valid, dtype=jnp.float32)


def updates(agent, count, max_kl):
    """Run some updates: the divergence of each, and its metrics."""
    made = agent.learner
    train, world = agent.begin(3, made.hyper(made.algorithm.config.replace(max_kl=max_kl)))
    found = []
    for _ in range(count):
        block, world = agent.collect(train, world)
        after, metrics = agent.absorb(train, block)
        found.append((float(divergence(made.algorithm, train, after, block)), metrics))
        train = after
    return found


BOUND = 0.02
BARE = {"n_steps": 16, "cg_damping": 0.001}
SPACE_OPTIONS = [
    ("int", {}),
    pytest.param("hybrid", {}, marks=pytest.mark.exhaustive),
    pytest.param("float", {"distribution": "clip", "std": "predicted"}, marks=pytest.mark.exhaustive),
    pytest.param("float", {"distribution": "squash"}, marks=pytest.mark.exhaustive),
    pytest.param("float", {"distribution": "beta"}, marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize(("kind", "options"), SPACE_OPTIONS)
def test_divergence_stays_within_the_bound_and_comes_near_it(kind, options):
    agent = compiled("trpo", Countdown(kind), 4, **BARE, **options)
    found = updates(agent, 20, BOUND)
    kl = np.array([x for x, _ in found])
    np.testing.assert_allclose([m["update/kl"] for _, m in found], kl, rtol=1e-2, atol=1e-5)
    assert kl.max() <= SLACK * BOUND * 1.01
    assert np.median(kl) > 0.2 * BOUND
    assert np.mean([m["update/accepted"] for _, m in found]) > 0.7
    assert all(m["loss/policy"] < 0 for _, m in found if m["update/accepted"])


@pytest.mark.exhaustive
def test_without_the_line_search_the_bound_is_broken(monkeypatch):
    """A wide region and few rows, on which the quadratic model fails: the search keeps the bound, the bare
    step does not."""
    searched = [kl for kl, _ in updates(compiled("trpo", Countdown(), 4, **BARE), 12, 0.5)]
    assert max(searched) <= SLACK * 0.5 * 1.01

    def bare(accept, start, step, *, candidates):
        return trust_region.LineSearchResult(start + step, jnp.ones((), bool), jnp.zeros((), jnp.int32))

    monkeypatch.setattr(trust_region, "line_search", bare)
    free = [kl for kl, _ in updates(compile_agent("trpo", Countdown(), 4, **BARE), 12, 0.5)]
    assert max(free) > 2 * SLACK * 0.5


@pytest.mark.exhaustive
def test_refused_candidates_leave_the_actor_bit_for_bit():
    """One candidate in a region far too wide for it: some updates refuse, and change the critic alone."""
    agent = compiled("trpo", Countdown(), 4, **BARE, max_kl=0.5, actor_iterations=1)
    train, world = agent.begin(3)
    refused = 0
    for _ in range(20):
        block, world = agent.collect(train, world)
        after, metrics = agent.absorb(train, block)
        same = differing(train.state.actor["params"], after.state.actor["params"]) == []
        assert same == (metrics["update/accepted"] == 0)
        assert metrics["update/line_search_steps"] == (1 if same else 0)
        assert differing(train.state.critic["params"], after.state.critic["params"]) != []
        if same:
            assert metrics["update/kl"] == pytest.approx(0, abs=1e-6)
        refused += same
        train = after
    assert 0 < refused < 20


# The rows of the Fisher matrix


def fisher(made, train, block):
    """Return the estimated Fisher matrix times a fixed vector."""
    return product(made.algorithm, train, block)


@functools.partial(jax.jit, static_argnums=0)
def product(algorithm, train, block):
    flat, tree = ravel_pytree(train.state.actor["params"])
    carry = block.carry["actor"] if algorithm.recurrent else ()

    def outputs(params, observation):
        variables = {**train.state.actor, "params": tree(params)}
        return evaluate(algorithm.model, variables, observation, carry, block.valid)

    block = block._replace(observation={k: x[:-1] for k, x in block.observation.items()})
    return algorithm._fisher(outputs, flat, block)(jnp.sin(jnp.arange(flat.size, dtype=jnp.float32)))


def test_fisher_matrix_takes_every_so_manieth_row():
    skipping, whole = make(n_steps=T, fvp_n_steps=2), make(n_steps=T, fvp_n_steps=1)
    train = skipping.init(jax.random.key(1), skipping.hyper())
    block = block_of(skipping, train)
    rows = jnp.arange(T)[:, None] % 2 == 0
    expected = fisher(whole, train, block._replace(valid=block.valid & rows))
    np.testing.assert_allclose(fisher(skipping, train, block), expected, rtol=1e-4, atol=1e-7)
    assert not np.allclose(fisher(whole, train, block), expected, rtol=1e-2)


@pytest.mark.exhaustive
def test_fisher_matrix_of_a_recurrent_actor_skips_rows_but_not_memory():
    """Rows 0 and 4 of six; with the rows from 1 to 3 changed row 4 remembers others."""
    options = {"actor_model": RECURRENT, "critic_model": MODEL, "n_steps": 6}
    agent = compile_agent("trpo", Countdown(max_episode_timesteps=None), 3, **options)
    train, world = agent.begin(0)
    block, _ = agent.collect(train, world)
    block = block._replace(valid=jnp.ones_like(block.valid))
    every = {k: learner("trpo", Countdown(), 3, **options, fvp_n_steps=k) for k in (1, 4, 6)}
    first, both = (fisher(every[k], train, block) for k in (6, 4))

    def changed(rows):
        noise = block.observation["noise"].at[rows].add(1.0)
        return block._replace(observation={**block.observation, "noise": noise})

    np.testing.assert_allclose(fisher(every[6], train, changed(slice(1, 6))), first, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(fisher(every[4], train, changed(slice(5, 6))), both, rtol=1e-4, atol=1e-6)
    assert not np.allclose(fisher(every[4], train, changed(slice(1, 4))), both, rtol=1e-2)


# Two networks


@pytest.mark.parametrize(
    ("actor", "critic"),
    [
        pytest.param("recurrent", "plain", marks=pytest.mark.exhaustive),
        pytest.param("plain", "recurrent", marks=pytest.mark.exhaustive),
        ("recurrent", "recurrent"),
    ],
)
def test_recurrent_networks_remember_over_blocks_as_they_did_when_acting(actor, critic):
    chosen = {"recurrent": RECURRENT, "plain": MODEL}
    agent = compile_agent("trpo", Countdown(), 3, actor_model=chosen[actor], critic_model=chosen[critic])
    made = agent.learner.algorithm
    train, world = agent.begin(0)
    for _ in range(3):
        block, world = agent.collect(train, world)
        observation = {k: x[:-1] for k, x in block.observation.items()}
        outputs = evaluate(made.model, train.state.actor, observation, block.carry["actor"], block.valid)
        policy = made.policy.distribution(outputs)
        np.testing.assert_allclose(
            policy.log_prob(block.action), block.extras["log_prob"], rtol=1e-4, atol=1e-5
        )
        if made.critic.recurrent:
            first = jnp.concatenate([jnp.zeros_like(block.valid[:1]), ~block.valid[:-1]])
            carry = made.critic.unroll(train.state.critic, observation, block.carry["critic"], first)[1]
            following, _ = agent.collect(train, world)
            kept = np.asarray(block.valid[-1])  # others begin an episode
            for name, x in following.carry["critic"].items():
                np.testing.assert_allclose(x[kept], carry[name][kept], rtol=1e-4, atol=1e-5)
    before = train
    for _ in range(4):
        block, world = agent.collect(train, world)
        train, metrics = agent.absorb(train, block)
        assert metrics["update/skipped"] == 0
    for name in ("actor", "critic"):
        assert differing(getattr(before.state, name), getattr(train.state, name)) != []


def test_weights_are_named_by_network_and_go_back_in():
    made = make(n_steps=T)
    one, other = (made.init(jax.random.key(seed), made.hyper()).state for seed in (0, 1))
    weights = made.algorithm.weights(one)
    assert list(weights) == ["actor", "critic"]
    put = made.algorithm.with_weights(other, weights)
    assert differing((put.actor, put.critic), (one.actor, one.critic)) == []


def test_minibatches_must_fit_the_block_or_the_sequences():
    with pytest.raises(
        SpecError, match=r"mini_batches must be at most 12 \(2 environments x n_steps 6 rows\)"
    ):
        make(n_steps=T, mini_batches=13)
    definition = parse_agent("trpo", actor_model=MODEL, critic_model=RECURRENT, mini_batches=3)
    with pytest.raises(
        SpecError,
        match=(
            r"mini_batches must be at most 2 \(2 environments: a recurrent critic.* fewer mini_batches, "
            r"or more environments"
        ),
    ):
        definition.cls.create(definition.config, SPACES, N)
