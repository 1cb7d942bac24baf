"""Whole updates with many options at once, against plain NumPy in float64: what is right by itself may not
fit together.

Streams have terminations, time limits and interrupted episodes, which no row flags. A step of plain descent
is compared by what it does along some random directions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from tests.small_agents import (
    ONCE,
    RECURRENT,
    assert_close,
    compiled,
    countdown,
    differing,
    networks,
    parameters,
)

from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import Learner
from operant.agents.base.protocol import Counters, fold
from operant.agents.parts import noisy
from operant.agents.parts.value_heads import CategoricalValue
from operant.ops import normalization
from operant.spec.spaces import Spaces
from operant.types import Rollout

GAMMA, LR = 0.9, 0.1
MASKED = Spaces.read(
    states={"x": {"type": "float", "shape": (2,)}, "action_mask": {"type": "bool", "shape": (3,)}},
    actions={"type": "int", "num_values": 3},
)
NETWORK = [{"type": "dense", "size": 4, "activation": "tanh"}]


def masked(rng: np.random.Generator) -> dict[str, Any]:
    """Return an observation, now and then one that allows nothing, and an allowed action."""
    mask = rng.random(3) < 0.6
    mask[rng.integers(3)] = True
    action = rng.choice(np.flatnonzero(mask))
    return {"x": rng.normal(size=2), "action_mask": mask & (rng.random() > 0.1), "action": action}


def streams(seed: int, actors: int, rows: int, draw: Callable[..., dict[str, Any]]) -> list[list[Any]]:
    """Return the rows of each actor, one more for what followed the last."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(actors):
        valid, own = True, []
        for _ in range(rows + 1):
            end = (
                rng.choice(["", "terminated", "truncated", "cut"], p=[0.64, 0.12, 0.12, 0.12])
                if valid
                else ""
            )
            flags = {name: end == name for name in ("terminated", "truncated")}
            own.append({**draw(rng), **flags, "reward": np.float32(2 * rng.normal()), "valid": valid})
            valid = not valid or not end
        found.append(own)
    return found


def ends(own: list[list[Any]], start: int, stop: int) -> set[str]:
    """Return the ways in which episodes end among rows, but for the last."""
    found = set()
    for rows in own:
        for row, following in zip(rows[start : stop - 1], rows[start + 1 : stop], strict=True):
            if row["valid"] and not following["valid"]:
                found.add("terminated" if row["terminated"] else "truncated" if row["truncated"] else "cut")
    return found


ALL = {"terminated", "truncated", "cut"}


def block(own: list[list[Any]], spaces: Spaces, start: int, stop: int) -> Rollout:
    """Return rows of all actors."""

    def part(name: str, behind: int = 0, dtype: Any = None) -> Any:
        return np.asarray([[x[t][name] for x in own] for t in range(start, stop + behind)], dtype)

    seen, done = spaces.observation_components, spaces.actions.components
    return Rollout(
        observation={name: part(name, 1, leaf.dtype) for name, leaf in seen.items()},
        action={name: part(name, 0, leaf.dtype) for name, leaf in done.items()},
        reward=part("reward"),
        terminated=part("terminated"),
        truncated=part("truncated"),
        valid=part("valid"),
        extras=(),
        carry=(),
    )


def scaled(own: list[list[Any]], rows: int) -> None:
    """Write the scaled rewards of all rows into them: divided by the deviation of the running returns up
    to each (`now`), or up to the last (`at_end`)."""
    total, returns = np.zeros(len(own)), []
    for t in range(rows):
        for n, x in enumerate(own):
            if x[t]["valid"]:
                total[n] = GAMMA * total[n] + x[t]["reward"]
                returns.append(total[n])
            if x[t]["terminated"] or x[t]["truncated"] or not x[t]["valid"]:
                total[n] = 0.0
        for x in own:
            x[t]["now"] = np.clip(x[t]["reward"] / np.sqrt(np.var(returns) + 1e-8), -10, 10)
    for x in own:
        for row in x[:rows]:
            row["at_end"] = np.clip(row["reward"] / np.sqrt(np.var(returns) + 1e-8), -10, 10)


def begun(scale: Any, block: Rollout) -> Any:
    """Return the scale of rewards after a block."""
    ended = block.terminated | block.truncated
    return normalization.scale_rewards(scale, block.reward, ended, block.valid, gamma=GAMMA)[0]


def drawn(shapes: Any, seed: int) -> Any:
    """Return numbers for all floats of a tree, and zeros for the others: of its functions none is compiled
    just to begin."""
    rng = np.random.default_rng(seed)

    def numbers(x: Any) -> Any:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.key(seed)
        floats = np.issubdtype(x.dtype, np.floating)
        return np.asarray(0.6 * rng.normal(size=x.shape) if floats else np.zeros(x.shape), x.dtype)

    return jax.tree.map(numbers, shapes)


def plain(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def assert_descended(loss: Callable[[Any], float], before: Any, after: Any, step: float = LR) -> None:
    """Compare a step of plain descent with the slope of a loss along random directions."""
    rng = np.random.default_rng(0)
    for _ in range(6):
        way = jax.tree.map(lambda x: rng.normal(size=np.shape(x)), before)
        up, down = (loss(jax.tree.map(lambda x, d, e=e: x + e * d, before, way)) for e in (1e-6, -1e-6))
        moved = jax.tree.map(lambda x, y, d: np.sum((np.asarray(x, np.float64) - y) * d), after, before, way)
        assert_allclose(sum(jax.tree.leaves(moved)), -step * (up - down) / 2e-6, rtol=1e-3, atol=2e-6)


def slopes(loss: Callable[[Any], float], params: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the gradient by central differences."""
    found = []
    for name, x in params.items():
        way = 1e-6 * np.eye(x.size).reshape(x.size, *x.shape)
        ends = [[loss({**params, name: x + sign * d}) for d in way] for sign in (1, -1)]
        found.append(np.subtract(*ends).reshape(x.shape) / 2e-6)
    return found


def dense(params: Any, x: np.ndarray, *heads: str, body: str = "body") -> list[np.ndarray]:
    """Return the outputs of heads on one layer."""
    x = np.tanh(x @ params[f"{body}.dense0/kernel"] + params[f"{body}.dense0/bias"])
    return [x @ params[f"head.{name}/kernel"] + params[f"head.{name}/bias"] for name in heads]


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.slow
def test_a_step_of_rainbow_equals_a_plain_one():
    """Noise, priorities, n steps, atoms, both streams, double, masks, scaled rewards.

    A memory that has come round.
    """
    n, T, atoms, low, high, alpha, beta, B = 3, 3, 5, -2.0, 3.0, 0.7, 0.5, 16
    definition = parse_agent(
        "dqn",
        model=NETWORK,
        noisy=True,
        prioritized=True,
        priority_alpha=alpha,
        priority_beta=beta,
        distributional="c51",
        atoms=atoms,
        value_min=low,
        value_max=high,
        dueling=True,
        double=True,
        n_steps=n,
        gamma=GAMMA,
        train_every=T,
        buffer_max_size=24,
        buffer_initial_size=0,
        buffer_batch_size=B,
        optimizer="sgd",
        lr=LR,
        target_sync_steps=1,
        tau=0.3,
        normalize_rewards=True,
    )
    algorithm = definition.cls.create(definition.config, MASKED, 2)
    made, replay = Learner(algorithm), algorithm.memory
    rows = 9 * T
    own = streams(5, 2, rows, masked)
    assert ends(own, rows - 12, rows) == ALL
    blocks = [block(own, MASKED, t, t + T) for t in range(0, rows, T)]
    scaled(own, rows)
    shapes = jax.eval_shape(made.init, jax.random.key(0), made.hyper()).state
    slots = {(t % 12, c): own[c][t] for c in range(2) for t in range(rows - 12, rows)}
    after = {(t % 12, c): own[c][t : t + n + 1] for c in range(2) for t in range(rows - 12, rows)}
    sampled = [i for i, row in slots.items() if row["valid"] and i[0] != (rows - 1) % 12]
    priority = dict(zip(sampled, 0.001 + np.random.default_rng(1).gamma(0.5, size=len(sampled)), strict=True))
    weights = {i: p**alpha for i, p in priority.items()}

    state = drawn(shapes, 2)._replace(reward_scale=normalization.init_reward_scale(2))
    learned = algorithm.learned(state)
    counters, key = Counters.zero()._replace(timesteps=jnp.uint32(40)), jax.random.key(5)

    @jax.jit
    def update(state, blocks, before, priority, key):
        memory = replay.init(made.example())
        memory = jax.lax.scan(lambda memory, one: (replay.add(memory, one), None), memory, blocks)[0]
        memory = replay.update_priorities(memory, jnp.asarray(sampled, jnp.int32), priority, alpha)
        state = state._replace(reward_scale=begun(state.reward_scale, before))
        last = jax.tree.map(lambda x: x[-1], blocks)
        index = replay.sample(memory, key, B, GAMMA).index
        noise = jax.tree.map(jnp.ones_like, state.noise.sigma)
        zeros = jax.tree.map(jnp.zeros_like, noise)
        epsilon = [noisy.perturbed(zeros, noise, fold(key, i)) for i in range(3)]
        return index, epsilon, algorithm.update(state, memory, last, counters, key)

    index, epsilon, (new, filled, metrics) = update(
        state,
        jax.tree.map(lambda *x: np.stack(x), *blocks),
        block(own, MASKED, 0, rows - T),
        np.asarray([*priority.values()], np.float32),
        key,
    )
    index, epsilon = [tuple(i) for i in np.asarray(index).tolist()], plain(epsilon)
    assert len(set(index)) < B  # some are drawn twice
    steps = []
    for i in index:
        reward, discount, length = 0.0, 1.0, 0
        # The newest row is not followed yet.
        known = min(n, ((rows - 1) % 12 - i[0]) % 12)
        while length < known and after[i][length]["valid"]:
            row = after[i][length]
            reward += GAMMA**length * row["at_end"]
            length += 1
            if row["terminated"]:
                discount = 0.0
        last = after[i][length]
        steps.append((reward, discount * GAMMA**length * last["action_mask"].any(), last))
    assert {0.0, GAMMA, GAMMA**2, GAMMA**3} == {d for _, d, _ in steps}
    x, taken = (np.array([slots[i][name] for i in index]) for name in ("x", "action"))
    following = np.array([last["x"] for _, _, last in steps])
    x, following = (z.astype(np.float32).astype(np.float64) for z in (x, following))
    weight = np.array([(len(weights) * weights[i] / sum(weights.values())) ** -beta for i in index])
    support = np.linspace(low, high, atoms)

    def logits(parameters, noise, x):
        params = {k: v + parameters["sigma"][k] * noise[k] for k, v in parameters["params"].items()}
        advantage, value = dense(params, x, "action", "action.value")
        advantage, value = advantage.reshape(-1, 3, atoms), value.reshape(-1, 1, atoms)
        return log_softmax(value + advantage - advantage.mean(1, keepdims=True))

    params, target = plain(learned), plain(state.target)
    mean = np.exp(logits(params, epsilon[2], following)) @ support
    best = np.where([last["action_mask"] for _, _, last in steps], mean, -np.inf).argmax(1)
    shares = np.exp(logits(target, epsilon[1], following))[np.arange(B), best]
    projected = np.zeros((B, atoms))
    for b, (reward, discount, _) in enumerate(steps):
        for j in range(atoms):
            place = (np.clip(reward + discount * support[j], low, high) - low) / (support[1] - low)
            near = np.maximum(0.0, 1.0 - np.abs(place - np.arange(atoms)))
            projected[b] += shares[b, j] * near

    def each(parameters):
        return -(projected * logits(parameters, epsilon[0], x)[np.arange(B), taken]).sum(1)

    def loss(parameters):
        return (weight * each(parameters)).sum() / weight.sum()

    assert_allclose(metrics["loss/td"], loss(params), rtol=1e-5)
    found = algorithm.learned(new)
    assert_descended(loss, params, found)
    moved = jax.tree.map(lambda x, y: x + 0.3 * (np.asarray(y) - x), target, found)
    jax.tree.map(lambda x, y: assert_allclose(x, y, atol=1e-6), new.target, moved)
    error = each(params) + (projected * np.log(np.where(projected > 0, projected, 1))).sum(1)
    errors = {i: max(error[k] for k in range(B) if index[k] == i) ** alpha for i in index}
    expected = [(weights | errors).get((i % 12, i // 12), 0.0) for i in range(24)]
    assert_allclose(filled.priorities[0][:24], expected, rtol=1e-3, atol=1e-5)
    assert isinstance(algorithm.values, CategoricalValue)


HYBRID = Spaces.read(
    states={"x": {"type": "float", "shape": (2,)}, "gear_mask": {"type": "bool", "shape": (2, 3)}},
    actions={
        "gear": {"type": "int", "shape": (2,), "num_values": 3},
        "brake": {"type": "bool", "shape": ()},
        "foot": {"type": "float", "shape": (2,), "min_value": [-1.0, 2.0], "max_value": [3.0, 2.5]},
        "free": {"type": "float", "shape": ()},
    },
)


def hybrid(rng: np.random.Generator) -> dict[str, Any]:
    mask = rng.random((2, 3)) < 0.6
    mask[:, 1] = True
    gear = [rng.choice(np.flatnonzero(own)) for own in mask]
    foot = np.array([-1.0, 2.0]) + np.array([4.0, 0.5]) * rng.uniform(0.05, 0.95, 2)
    x = 1 + 3 * rng.normal(size=2)
    return {
        "x": x,
        "gear_mask": mask,
        "gear": gear,
        "brake": rng.random() < 0.5,
        "foot": foot,
        "free": rng.normal(),
    }


@pytest.mark.slow
def test_a_step_of_ppo_equals_a_plain_one():
    """Mixed actions, moments of observations, scaled rewards, clipped values, several episodes of every
    actor in a block."""
    T, N, lam, clip, value_coef, coef, small = 12, 3, 0.8, 0.15, 0.7, 0.05, 1e-3
    definition = parse_agent(
        "ppo",
        model=NETWORK,
        distribution="squash",
        std="predicted",
        n_steps=T,
        gamma=GAMMA,
        lam=lam,
        clip_norm=clip,
        value_loss_coef=value_coef,
        entropy_coef=coef,
        advantage_epsilon=small,
        ppo_epochs=1,
        mini_batches=1,
        optimizer="sgd",
        lr=LR,
        grad_norm=None,
        normalize_rewards=True,
        normalize_observations=True,
    )
    algorithm = definition.cls.create(definition.config, HYBRID, N)
    own = streams(7, N, 2 * T, hybrid)
    assert ends(own, T, 2 * T) == ALL
    scaled(own, 2 * T)
    first, second = (block(own, HYBRID, t, t + T) for t in (0, T))
    state = drawn(jax.eval_shape(algorithm.init, jax.random.key(0)), 1)
    unseen = jax.tree.map(np.zeros_like, state.variables["state"])
    params, scale = state.variables["params"], normalization.init_reward_scale(N)
    state = state._replace(variables={"params": params, "state": unseen}, reward_scale=scale)

    def column(name: str) -> np.ndarray:
        return np.array([[x[t][name] for x in own] for t in range(T, 2 * T)])

    seen = np.array([x[t]["x"] for x in own for t in range(2 * T) if x[t]["valid"]])
    x = np.array([[x[t]["x"] for x in own] for t in range(T, 2 * T + 1)])
    x = np.clip((x - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-8), -10, 10)
    nodes, shares = np.polynomial.hermite_e.hermegauss(60)
    half = np.array([2.0, 0.25])

    def policy(params: Any) -> tuple[np.ndarray, np.ndarray]:
        names = ("gear.logits", "brake.logits", "foot.mean", "foot.log_std", "free.mean", "free.log_std")
        gear, brake, mean, log_std, free, log_free = dense(params, x[:-1], *names, body="tower0")
        gear = log_softmax(np.where(column("gear_mask"), gear.reshape(T, N, 2, 3), -1e300))
        log_prob = np.take_along_axis(gear, column("gear")[..., None], -1).sum((-1, -2))
        entropy = -(np.exp(gear) * np.maximum(gear, -1e9)).sum((-1, -2))
        yes = 1 / (1 + np.exp(-brake[..., 0]))
        log_prob += np.log(np.where(column("brake"), yes, 1 - yes))
        entropy -= yes * np.log(yes) + (1 - yes) * np.log(1 - yes)
        normal = 0.5 * np.log(2 * np.pi)
        y = (column("foot") - np.array([1.0, 2.25])) / half
        z = (np.arctanh(y) - mean) / np.exp(log_std)
        log_prob += (-0.5 * z**2 - log_std - normal - np.log((1 - y**2) * half)).sum(-1)
        u = mean[..., None] + np.exp(log_std)[..., None] * nodes
        slope = -2 * np.log(np.cosh(u)) @ shares / shares.sum()
        entropy += (0.5 + normal + log_std + slope + np.log(half)).sum(-1)
        z = (column("free") - free[..., 0]) / np.exp(log_free[..., 0])
        log_prob += -0.5 * z**2 - log_free[..., 0] - normal
        return log_prob, entropy + 0.5 + normal + log_free[..., 0]

    def values(params: Any) -> np.ndarray:
        return dense(params, x, "value", body="tower1")[0][..., 0]

    before = plain(params)
    old = policy(before)[0] + 0.3 * np.random.default_rng(2).normal(size=(T, N))
    second = second._replace(extras={"log_prob": jnp.asarray(old, jnp.float32)})
    v, reward, valid = values(before), column("now"), column("valid")
    advantage = np.zeros((T, N))
    for t in reversed(range(T)):
        for n in range(N):
            row = own[n][T + t]
            going = (
                t + 1 < T and own[n][T + t + 1]["valid"] and not row["terminated"] and not row["truncated"]
            )
            following = 0.0 if row["terminated"] else GAMMA * v[t + 1, n]
            rest = GAMMA * lam * advantage[t + 1, n] if going else 0.0
            advantage[t, n] = reward[t, n] + following - v[t, n] + rest
    target = advantage + v[:-1]
    standard = (advantage - advantage[valid].mean()) / (advantage[valid].std() + small)

    def parts(params: Any) -> list[float]:
        log_prob, entropy = policy(params)
        ratio, value = np.exp(log_prob - old), values(params)[:-1]
        gain = np.minimum(ratio * standard, np.clip(ratio, 1 - clip, 1 + clip) * standard)
        near = v[:-1] + np.clip(value - v[:-1], -clip, clip)
        error = 0.5 * np.maximum((value - target) ** 2, (near - target) ** 2)
        watched = (ratio - 1 - (log_prob - old), np.abs(ratio - 1) > clip)
        return [float(z[valid].mean()) for z in (-gain, error, entropy, *watched)]

    def loss(params: Any) -> float:
        of_policy, of_value, entropy, *_ = parts(params)
        return of_policy + value_coef * of_value - coef * entropy

    @jax.jit
    def update(state, first, second, key):
        variables = algorithm.model.observe(state.variables, first.observation, first.valid)
        state = state._replace(variables=variables, reward_scale=begun(state.reward_scale, first))
        return algorithm.update(state, (), second, Counters.zero(), key)

    after, _, metrics = update(state, first, second, jax.random.key(1))
    names = ("loss/policy", "loss/value", "policy/entropy", "update/kl", "update/clip_fraction")
    assert_allclose([metrics[name] for name in names], parts(before), rtol=1e-3, atol=1e-6)
    explained = 1 - np.var((target - v[:-1])[valid]) / np.var(target[valid])
    assert_allclose(metrics["update/explained_variance"], explained, rtol=1e-3)
    assert_descended(loss, before, after.variables["params"])


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [2, None])
def test_an_update_of_the_modular_agent_equals_a_plain_one(horizon):
    """λ-returns of few rewards with values of terminal states, clipped ratios, penalties, a baseline with
    steps of its own."""
    T, lam, clip, coef, l2, huber, slow = 8, 0.7, 0.1, 0.05, 0.01, 0.5, 0.05
    definition = parse_agent(
        "modular",
        model=NETWORK,
        baseline_model=NETWORK,
        batch_size=2 * T,
        horizon=horizon,
        lam=lam,
        gamma=GAMMA,
        optimizer="sgd",
        lr=LR,
        baseline_optimizer="sgd",
        baseline_lr=slow,
        clipping_value=clip,
        entropy_regularization=coef,
        l2_regularization=l2,
        normalize_advantage=True,
        huber_loss=huber,
        predict_terminal_values=True,
        normalize_rewards=True,
        multi_step=2,
    )
    algorithm = definition.cls.create(definition.config, MASKED, 2)
    made = Learner(algorithm)
    assert algorithm.rows == T
    own = streams(14, 2, 2 * T, masked)
    assert ends(own, T, 2 * T) == ALL
    scaled(own, 2 * T)
    first, second = (block(own, MASKED, t, t + T) for t in (0, T))
    state = drawn(jax.eval_shape(made.init, jax.random.key(0), made.hyper()).state, 1)
    steps = sorted((t, i) for i, rows in enumerate(own) for t in range(2 * T) if rows[t]["valid"])
    last = np.uint32(len(steps) - 2 * T)
    state = state._replace(reward_scale=normalization.init_reward_scale(2), last=last)
    before = plain({"model": state.variables["params"], "baseline": state.baseline["params"]})

    @jax.jit
    def update(state, first, second, key):
        memory = algorithm.memory.init(made.example())
        memory = algorithm.memory.add(algorithm.memory.add(memory, first), second)
        state = state._replace(reward_scale=begun(state.reward_scale, first))
        counters = Counters.zero()._replace(timesteps=jnp.uint32(len(steps)))
        return algorithm.update(state, memory, second, counters, key)

    after, _, metrics = update(state, first, second, jax.random.key(1))

    def values(params: Any, rows: list[Any]) -> np.ndarray:
        return dense(params, np.array([row["x"] for row in rows]), "value")[0][:, 0]

    batch, target, value = [], [], []
    for i, rows in enumerate(own):
        v = values(before["baseline"], rows)

        def return_of(t: int, left: float, rows: list[Any] = rows, v: np.ndarray = v) -> float:
            row = rows[t]
            going = rows[t + 1]["valid"] and not row["terminated"] and not row["truncated"]
            share = lam if going and left > 1 and t + 1 < 2 * T else 0.0
            rest = return_of(t + 1, left - 1) if share else 0.0
            return row["at_end"] + GAMMA * ((1 - share) * v[t + 1] + share * rest)

        for t in range(2 * T):
            if (t, i) in steps[-2 * T :]:
                batch.append(rows[t])
                target.append(return_of(t, horizon or np.inf))
                value.append(v[t])
    goal, taken = np.array(target), np.array([row["action"] for row in batch])
    advantage = goal - value
    advantage = (advantage - advantage.mean()) / advantage.std()
    x, mask = (np.array([row[name] for row in batch]) for name in ("x", "action_mask"))

    def policy(params: Any) -> np.ndarray:
        logits = np.where(mask, dense(params, x, "action.logits")[0], -1e300)
        return log_softmax(np.where(mask.any(-1, keepdims=True), logits, 0.0))

    def squares(params: Any) -> float:
        return l2 * sum(float(np.sum(z**2)) for z in params.values())

    old = policy(before["model"])[np.arange(len(x)), taken]

    def loss(params: Any) -> float:
        log_probs = policy(params)
        ratio = np.exp(log_probs[np.arange(len(x)), taken] - old)
        gain = np.minimum(ratio * advantage, np.clip(ratio, 1 - clip, 1 + clip) * advantage)
        entropy = -(np.exp(log_probs) * np.maximum(log_probs, -1e9)).sum(1)
        return float(np.mean(-gain - coef * entropy)) + squares(params)

    def value_loss(params: Any) -> float:
        error = np.abs(values(params, batch) - goal)
        each = np.where(error <= huber, 0.5 * error**2, huber * (error - 0.5 * huber))
        return float(each.mean()) + squares(params)

    assert_allclose(metrics["value/target"], goal.mean(), rtol=1e-5)
    assert_allclose(metrics["update/explained_variance"], 1 - np.var(goal - value) / np.var(goal), rtol=1e-3)
    assert_descended(value_loss, before["baseline"], after.baseline["params"], slow)
    params = before["model"]
    for _ in range(2):
        params = {
            name: z - LR * slope
            for (name, z), slope in zip(params.items(), slopes(loss, params), strict=True)
        }
    for name, z in params.items():
        assert_allclose(after.variables["params"][name], z, rtol=1e-4, atol=1e-5, err_msg=name)
    assert (
        np.abs(params["head.action.logits/kernel"] - before["model"]["head.action.logits/kernel"]).max()
        > 0.01
    )


def every_way() -> list[Any]:
    """The agents, and what else they can learn from: replayed sequences, replayed rows."""
    found = [
        pytest.param(x, {}, id=x) if isinstance(x, str) else pytest.param(*x.values, {}, marks=x.marks)
        for x in ONCE
    ]
    found.append(pytest.param("dqn", networks("dqn", RECURRENT), id="dqn-sequences"))
    return [*found, pytest.param("modular", {"memory": "replay", "horizon": 2}, id="modular-replay")]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "options"), every_way())
def test_units_of_rewards_and_observations_make_no_difference_where_both_are_normalised(name, options):
    """To whatever an agent learns from, fresh or replayed. A factor of 64 rounds nothing."""
    agent = compiled(name, countdown(name), normalize_rewards=True, normalize_observations=True, **options)
    start, world = agent.begin(2)
    one = other = start
    for _ in range(12):
        block, world = agent.collect(one, world)
        one, metrics = agent.absorb(one, block)
        observation = {
            k: 64.0 * x if jnp.issubdtype(x.dtype, jnp.floating) else x for k, x in block.observation.items()
        }
        other, _ = agent.absorb(other, block._replace(observation=observation, reward=64.0 * block.reward))
    assert metrics["update/skipped"] == 0
    assert differing(parameters(start.state), parameters(one.state)) != []
    assert_close(parameters(one.state), parameters(other.state), rtol=1e-3, atol=1e-4)
