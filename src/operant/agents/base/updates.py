"""What every algorithm has: an optimizer with clipping, rewards scaled by their running deviation."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from operant.agents.base.metric_accumulator import STEP_COUNTS
from operant.agents.options.shared_options import AgentConfig
from operant.ops import normalization, optimise
from operant.spec.spaces import Spaces
from operant.types import Array, Metrics, Rollout, Tree


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
