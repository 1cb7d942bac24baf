"""Environments: the interface for writing one, and vectors of any kind of them.

Importing this package, and every module of it that workers use, loads neither JAX nor Keras.
"""

from operant.envs import factory as factory  # gives `Environment.create` its kinds
from operant.envs.check import check_env
from operant.envs.environment import Environment
from operant.envs.gymnasium.action_masks import ActionMasks
from operant.envs.vector.base import VectorEnv, VectorStep

__all__ = ["ActionMasks", "Environment", "VectorEnv", "VectorStep", "check_env"]
