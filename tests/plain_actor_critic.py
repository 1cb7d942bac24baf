"""Actor-critics in plain NumPy, float64, gradients worked by hand: what the shipped gradient steps are
compared with.

Networks have one hidden layer of rectifiers. Observations are `[B, 3]`; actions are two named leaves,
`arm [B, 2]` and `leg [B]`, which stand side by side here: `[B, 3]`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from operant.agents.base.agent_spec import parse_agent
from operant.agents.parts.off_policy import NetworkInputs, ReplayBatch
from operant.spec.spaces import Spaces

SPACES = Spaces.read(
    states={"type": "float", "shape": (3,)},
    actions={
        "arm": {"type": "float", "shape": (2,), "min_value": -1.0, "max_value": 3.0},
        "leg": {"type": "float", "shape": (), "min_value": 0.0, "max_value": 10.0},
    },
)
NETWORK = [{"type": "dense", "size": 5, "activation": "relu"}]
B = 16


def algorithm(name: str, **options: Any) -> Any:
    """Make an agent's algorithm with small networks."""
    chosen = {"actor_model": NETWORK, "critic_model": NETWORK, "lr": 0.01, **options}
    definition = parse_agent(name, **chosen)
    return definition.cls.create(definition.config, SPACES, 2)


def start(made: Any, seed: int = 0) -> Any:
    """Return a state whose networks are all different and far from the middle, targets included."""
    state = made.init(jax.random.key(seed))
    rng = np.random.default_rng(seed)

    def drawn(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) * 0.7, jnp.float32), tree)

    changed = {}
    for name in state._fields:
        value = getattr(state, name)
        if isinstance(value, dict) and "params" in value:
            changed[name] = {**value, "params": drawn(value["params"])}
        elif name.startswith("target_"):
            changed[name] = drawn(value)
    return state._replace(**changed)


def transitions(seed: int = 0) -> ReplayBatch:
    """Return a batch, actions in units; two samples ended, one has no weight."""
    rng = np.random.default_rng(100 + seed)

    def draw(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    discount = np.full(B, 0.9, np.float32)
    discount[[2, 7]] = 0.0
    weight = np.ones(B, np.float32)
    weight[5] = 0.0
    action = {"arm": jnp.tanh(draw(B, 2)), "leg": jnp.tanh(draw(B))}
    return ReplayBatch(
        now=NetworkInputs({"state": draw(B, 3)}),
        action=action,
        reward=draw(B),
        discount=jnp.asarray(discount),
        following=NetworkInputs({"state": draw(B, 3)}),
        weight=jnp.asarray(weight),
    )


def side_by_side(action: Any) -> np.ndarray:
    """Return arm and leg as `[B, 3]`."""
    return np.concatenate([np.asarray(action["arm"]), np.asarray(action["leg"])[:, None]], 1).astype(float)


class Net:
    """A hidden layer and outputs `[B, K]`, the named heads side by side."""

    def __init__(self, params: Any, heads: tuple[str, ...]) -> None:
        self.params = {k: np.asarray(v, float) for k, v in params.items()}
        self.heads = heads

    def _layers(self) -> tuple[Any, ...]:
        p = self.params
        kernel = np.concatenate([p[f"head.{h}/kernel"] for h in self.heads], 1)
        bias = np.concatenate([p[f"head.{h}/bias"] for h in self.heads])
        return p["body.dense0/kernel"], p["body.dense0/bias"], kernel, bias

    def __call__(self, x: np.ndarray) -> np.ndarray:
        w1, b1, w2, b2 = self._layers()
        return np.maximum(x @ w1 + b1, 0) @ w2 + b2

    def gradient(self, x: np.ndarray, slope: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return what a slope `[B, K]` of the outputs means for the parameters, and for the input."""
        w1, b1, w2, _ = self._layers()
        before = x @ w1 + b1
        hidden = np.maximum(before, 0)
        inner = (slope @ w2.T) * (before > 0)
        found = {"body.dense0/kernel": x.T @ inner, "body.dense0/bias": inner.sum(0)}
        at = 0
        for h in self.heads:
            width = self.params[f"head.{h}/bias"].size
            found[f"head.{h}/kernel"] = hidden.T @ slope[:, at : at + width]
            found[f"head.{h}/bias"] = slope[:, at : at + width].sum(0)
            at += width
        return found, inner @ w1.T


class Adam:
    """Kingma and Ba 2015, algorithm 1, for named arrays."""

    def __init__(self, lr: float) -> None:
        self.lr, self.t, self.m, self.v = lr, 0, {}, {}

    def step(self, params: dict[str, np.ndarray], grads: dict[str, np.ndarray]) -> None:
        """Change the parameters."""
        self.t += 1
        for k, g in grads.items():
            self.m[k] = 0.9 * self.m.get(k, 0.0) + 0.1 * g
            self.v[k] = 0.999 * self.v.get(k, 0.0) + 0.001 * g * g
            mean, square = self.m[k] / (1 - 0.9**self.t), self.v[k] / (1 - 0.999**self.t)
            params[k] = params[k] - self.lr * mean / (np.sqrt(square) + 1e-7)


def weighted(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return each sample's share of a weighted mean of `x`."""
    return x * weight / weight.sum()


def critic_step(critic: Net, adam: Adam, x: np.ndarray, target: np.ndarray, weight: np.ndarray) -> float:
    """Step a critic on the mean squared error; return the loss."""
    error = critic(x)[:, 0] - target
    grads, _ = critic.gradient(x, weighted(2 * error, weight)[:, None])
    adam.step(critic.params, grads)
    return float(weighted(error**2, weight).sum())


def actor_step(actor: Net, critic: Net, adam: Adam, states: np.ndarray, weight: np.ndarray) -> None:
    """Step a tanh actor up a critic's value."""
    action = np.tanh(actor(states))
    slope = weighted(np.full(len(states), -1.0), weight)[:, None]
    _, inputs = critic.gradient(np.concatenate([states, action], 1), slope)
    grads, _ = actor.gradient(states, inputs[:, 3:] * (1 - action**2))
    adam.step(actor.params, grads)


def polyak(target: Net, online: Net, tau: float) -> None:
    """Move a target network."""
    target.params = {k: (1 - tau) * v + tau * online.params[k] for k, v in target.params.items()}


def assert_same(params: Any, net: Net) -> None:
    """Compare shipped parameters with the plain ones."""
    for name, value in net.params.items():
        np.testing.assert_allclose(np.asarray(params[name]), value, rtol=2e-4, atol=2e-5, err_msg=name)
