"""What every algorithm has: an optimizer with clipping, rewards scaled by their running deviation, metrics.

Metrics are summed over gradient steps or updates, as one array that compiled loops carry.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from operant.agents.options.shared_options import AgentConfig
from operant.ops import normalization, optimise
from operant.spec.spaces import Spaces
from operant.types import Array, Metrics, Rollout, Tree

METRIC_SLOTS = 32
"""Maximal number of metrics that an update may report."""
STEP_COUNTS = ("update/skipped", "update/steps")
"""Metrics that count gradient steps: summed over those of an update, while others are averaged."""
SUMMED = ("update/skipped",)
"""Metrics that are summed over updates too: so one skipped step in a thousand shows."""


def optimizer(config: AgentConfig) -> optimise.Optimizer:
    """Return the optimizer of an algorithm's options; their numbers may be traced."""
    c = config
    return optimise.optimizer(c.optimizer, c.lr, c.beta1, c.beta2, c.opt_epsilon, c.grad_norm)


def lr(config: AgentConfig) -> Array:
    """Return the learning rate in force; NaN (does not apply) if the optimizer is an object."""
    custom = isinstance(config.optimizer, optimise.CustomOptimizer)
    return jnp.asarray(jnp.nan if custom else config.lr, jnp.float32)


def reward_scale(config: AgentConfig, actors: int) -> Tree:
    """Return the first state of reward normalisation: `RewardScale`, or `()` if it is off."""
    return normalization.init_reward_scale(actors) if config.normalize_rewards else ()


def with_segments(state: Any, actors: Array) -> Any:
    """Note the actors of the next block's segments (`RewardScale.columns`), if rewards are scaled."""
    scale: Any = getattr(state, "reward_scale", ())
    return state if scale == () else state._replace(reward_scale=scale._replace(columns=actors))


def scale_block(config: AgentConfig, scale: Tree, block: Rollout) -> tuple[Tree, Rollout]:
    """Take a block's rewards into account; return the new scale and the block with scaled rewards.

    Replay uses only the scale: it keeps rewards as they came, and scales samples (`scale_replayed`).
    """
    if not config.normalize_rewards:
        return scale, block
    ended = block.terminated | block.truncated
    scale, reward = normalization.scale_rewards(scale, block.reward, ended, block.valid, gamma=config.gamma)
    return scale, block._replace(reward=reward)


def mask_padding(block: Rollout, spaces: Spaces) -> Rollout:
    """Return a block with states of rows that count, in turn, as padding: batch normalisation reads all rows.

    A row is no padding if an action is taken in it, or was taken in the row before: what followed that has a
    value.
    """
    none = jnp.zeros((1, block.valid.shape[1]), bool)
    counts = jnp.concatenate([block.valid, none]).reshape(-1)
    read = counts | jnp.concatenate([none, block.valid]).reshape(-1)
    order = jnp.argsort(~counts, stable=True)  # those that count come first
    turn = jnp.cumsum(~read, dtype=jnp.int32) % jnp.maximum(jnp.sum(counts, dtype=jnp.int32), 1)
    source = jnp.where(read, jnp.arange(len(read)), order[turn])
    states = spaces.states.components
    observation = {
        name: x.reshape(-1, *x.shape[2:])[source].reshape(x.shape) if name in states else x
        for name, x in block.observation.items()
    }
    return block._replace(observation=observation)


def applying(metrics: Metrics, has_rows: Array) -> Metrics:
    """Return a gradient step's metrics, but for `STEP_COUNTS` NaN (does not apply) if there was none."""
    return {k: x if k in STEP_COUNTS else jnp.where(has_rows, x, jnp.nan) for k, x in metrics.items()}


def scale_replayed(config: AgentConfig, scale: Tree, reward: Array) -> Array:
    """Scale rewards that come from a memory by what was seen so far, before they are summed."""
    return normalization.scaled(scale, reward) if config.normalize_rewards else jnp.asarray(reward)


class MetricAccumulator:
    """Sums of metrics, and how often each applied: NaN means that a metric does not apply.

    The sums are an array of one shape for any metrics, whose names are noted when `add` is traced.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()

    def zeros(self) -> Float[Array, "2 M"]:
        """Return sums and counts before the first metrics."""
        return jnp.zeros((2, METRIC_SLOTS), jnp.float32)

    def add(self, sums: Float[Array, "2 M"], metrics: Metrics) -> Float[Array, "2 M"]:
        """Add scalars, at most `METRIC_SLOTS`, always of the same names."""
        if not metrics:
            return sums
        self.names = self.names or tuple(metrics)
        values = jnp.stack([jnp.asarray(metrics[name], jnp.float32) for name in self.names])
        applies = ~jnp.isnan(values)
        counted = jnp.stack([jnp.where(applies, values, 0.0), applies.astype(jnp.float32)])
        return sums.at[:, : len(self.names)].add(counted)

    def means(self, sums: Float[Array, "2 M"]) -> Metrics:
        """Return each metric's mean over the steps it applies to (NaN: none), of `STEP_COUNTS` the sum."""
        columns = {name: sums[:, i] for i, name in enumerate(self.names)}
        return {name: x[0] if name in STEP_COUNTS else x[0] / x[1] for name, x in columns.items()}

    def read(self, sums: np.ndarray) -> dict[str, float]:
        """Return averages over updates, sums for `SUMMED`, without metrics that never applied."""
        columns = zip(self.names, *sums, strict=False)
        return {k: float(t if k in SUMMED else t / c) for k, t, c in columns if c > 0}

    def skipped(self, sums: np.ndarray) -> int:
        """Return how many gradient steps were left out for not being finite."""
        return int(self.read(sums).get("update/skipped", 0.0))
