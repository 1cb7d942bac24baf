"""Aids that every algorithm has: an optimizer with clipping by global norm, rewards scaled by their running deviation."""

from __future__ import annotations

import jax.numpy as jnp

from operant.agents.config import AgentConfig
from operant.ops import optimise, statistics
from operant.types import Array, Block, Tree


def optimizer(config: AgentConfig) -> optimise.Optimizer:
    """Return the optimizer of an algorithm's options; their numbers may be traced."""
    c = config
    return optimise.optimizer(c.optimizer, c.lr, c.beta1, c.beta2, c.opt_epsilon, c.grad_norm)


def reward_scale(config: AgentConfig, actors: int) -> Tree:
    """Return the first state of reward normalisation: `RewardScale`, or `()` where it is off."""
    return statistics.init_reward_scale(actors) if config.normalize_rewards else ()


def scale_block(config: AgentConfig, scale: Tree, block: Block) -> tuple[Tree, Block]:
    """Take a block's rewards into account; return the new scale and the block with scaled rewards.

    Replay keeps rewards as they came and scales what it samples (`scale_replayed`), so it uses only the scale.
    """
    if not config.normalize_rewards:
        return scale, block
    ended = block.terminated | block.truncated
    scale, reward = statistics.scale_rewards(scale, block.reward, ended, block.valid, gamma=config.gamma)
    return scale, block._replace(reward=reward)


def scale_replayed(config: AgentConfig, scale: Tree, reward: Array) -> Array:
    """Scale rewards (or their n-step sums) that come from a memory by what was seen so far."""
    return statistics.scaled(scale, reward) if config.normalize_rewards else jnp.asarray(reward)
