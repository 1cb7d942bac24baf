"""PPO and CartPole as one compiled program, in the style that PureJaxRL made popular: plain JAX and optax, no
framework.

A yardstick: what a specialist writes by hand for one task. Proximal policy optimisation after Schulman et al.
2017 (arXiv 1707.06347) with generalised advantage estimation (arXiv 1506.02438, equation 16); cart and pole
after Barto, Sutton and Anderson 1983. Two networks of tanh layers, orthogonal initial weights, Adam,
gradients clipped by their global norm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from measure import main
from workloads import Workload

GAMMA, GAE_LAMBDA, CLIP, ENTROPY, VALUE = 0.99, 0.95, 0.2, 0.01, 0.5
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4, eps=1e-5))

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, TAU, LIMIT = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02, 500


class Env(NamedTuple):
    """State of the carts and poles of all environments."""

    state: jax.Array  # [N, 4]: position, velocity, angle, angular velocity
    age: jax.Array  # [N]


class Row(NamedTuple):
    """One step of all environments."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    ended: jax.Array


class Train(NamedTuple):
    """What an iteration changes."""

    params: Any
    optimizer: Any
    env: Env
    key: jax.Array


def reset(key: jax.Array, n: int) -> Env:
    return Env(jax.random.uniform(key, (n, 4), minval=-0.05, maxval=0.05), jnp.zeros(n, jnp.int32))


def step(env: Env, action: jax.Array, key: jax.Array) -> tuple[Env, jax.Array]:
    """Push every cart; episodes that ended begin anew."""
    x, v, angle, spin = env.state.T
    force = jnp.where(action == 1, FORCE, -FORCE)
    sin, cos, mass = jnp.sin(angle), jnp.cos(angle), CART + POLE
    push = (force + POLE * HALF_LENGTH * spin**2 * sin) / mass
    spin_rate = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE * cos**2 / mass))
    rate = push - POLE * HALF_LENGTH * spin_rate * cos / mass
    state = jnp.stack([x + TAU * v, v + TAU * rate, angle + TAU * spin, spin + TAU * spin_rate], axis=1)
    age = env.age + 1
    ended = (jnp.abs(state[:, 0]) > 2.4) | (jnp.abs(state[:, 2]) > 0.2094395) | (age >= LIMIT)
    fresh = reset(key, len(age))
    return Env(jnp.where(ended[:, None], fresh.state, state), jnp.where(ended, 0, age)), ended


def network(key: jax.Array, sizes: tuple[int, ...], last_scale: float) -> list[tuple[jax.Array, jax.Array]]:
    layers = []
    for index, key_layer in enumerate(jax.random.split(key, len(sizes) - 1)):
        scale = last_scale if index == len(sizes) - 2 else 2**0.5
        weights = jax.nn.initializers.orthogonal(scale)(key_layer, sizes[index : index + 2])
        layers.append((weights, jnp.zeros(sizes[index + 1])))
    return layers


def apply(layers: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    for weights, bias in layers[:-1]:
        x = jnp.tanh(x @ weights + bias)
    weights, bias = layers[-1]
    return x @ weights + bias


def policy_and_value(params: Any, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log-probabilities of both actions, and values."""
    return jax.nn.log_softmax(apply(params["actor"], observation)), apply(params["critic"], observation)[
        ..., 0
    ]


def chosen(log_probs: jax.Array, action: jax.Array) -> jax.Array:
    return jnp.take_along_axis(log_probs, action[:, None], axis=1)[:, 0]


def loss(params: Any, row: Row, advantage: jax.Array, target: jax.Array) -> jax.Array:
    """Clipped surrogate (equation 7), clipped value error, entropy bonus (equation 9)."""
    log_probs, value = policy_and_value(params, row.observation)
    ratio = jnp.exp(chosen(log_probs, row.action) - row.log_prob)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    near = row.value + jnp.clip(value - row.value, -CLIP, CLIP)
    value_loss = 0.5 * jnp.maximum((value - target) ** 2, (near - target) ** 2).mean()
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=1).mean()
    return -surrogate + VALUE * value_loss - ENTROPY * entropy


def collect(train: Train, _: None) -> tuple[Train, Row]:
    key, key_action, key_reset = jax.random.split(train.key, 3)
    observation = train.env.state
    log_probs, value = policy_and_value(train.params, observation)
    action = jax.random.categorical(key_action, log_probs)
    env, ended = step(train.env, action, key_reset)
    row = Row(observation, action, chosen(log_probs, action), value, jnp.ones_like(value), ended)
    return train._replace(env=env, key=key), row


def advantages(rows: Row, last_value: jax.Array) -> jax.Array:
    def back(carry: tuple[jax.Array, jax.Array], row: Row) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        advantage, next_value = carry
        goes_on = 1.0 - row.ended
        delta = row.reward + GAMMA * next_value * goes_on - row.value
        advantage = delta + GAMMA * GAE_LAMBDA * goes_on * advantage
        return (advantage, row.value), advantage

    return jax.lax.scan(back, (jnp.zeros_like(last_value), last_value), rows, reverse=True)[1]


def learn(train: Train, batch: Any) -> tuple[Train, None]:
    gradients = jax.grad(loss)(train.params, *batch)
    updates, optimizer = OPTIMIZER.update(gradients, train.optimizer, train.params)
    return train._replace(params=optax.apply_updates(train.params, updates), optimizer=optimizer), None


def iterate(workload: Workload, train: Train, _: None) -> tuple[Train, jax.Array]:
    """Collect, then learn for some epochs of shuffled minibatches. Returns how many episodes ended."""
    train, rows = jax.lax.scan(collect, train, None, workload.n_steps)
    last_value = policy_and_value(train.params, train.env.state)[1]
    advantage = advantages(rows, last_value)
    data = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (rows, advantage, advantage + rows.value))
    size = workload.n_steps * workload.num_envs

    def epoch(train: Train, _: None) -> tuple[Train, None]:
        key, key_order = jax.random.split(train.key)
        order = jax.random.permutation(key_order, size).reshape(-1, workload.batch_size)
        batches = jax.tree.map(lambda x: x[order], data)
        return jax.lax.scan(learn, train._replace(key=key), batches)

    train, _ = jax.lax.scan(epoch, train, None, workload.epochs)
    return train, rows.ended.sum()


def start(workload: Workload, key: jax.Array) -> Train:
    key, key_actor, key_critic, key_env = jax.random.split(key, 4)
    params = {
        "actor": network(key_actor, (4, *workload.hidden, 2), 0.01),
        "critic": network(key_critic, (4, *workload.hidden, 1), 1.0),
    }
    return Train(params, OPTIMIZER.init(params), reset(key_env, workload.num_envs), key)


def prepare(workload: Workload, steps: int) -> Callable[[], int]:
    size = workload.n_steps * workload.num_envs
    iterations = -(-steps // size)

    def run(key: jax.Array) -> tuple[Train, jax.Array]:
        return jax.lax.scan(functools.partial(iterate, workload), start(workload, key), None, iterations)

    compiled = jax.jit(run).lower(jax.random.key(0)).compile()

    def go_on() -> int:  # from the beginning
        jax.block_until_ready(compiled(jax.random.key(0)))
        return iterations * size

    return go_on


if __name__ == "__main__":
    main("purejax", ("jax", "optax"), prepare)
