"""What random numbers are for: the table that keeps the streams of one seed apart.

Everything random comes from (seed, purpose, ...), so two parts of a program that were given the same seed
draw independent numbers. In JAX that is ``fold(jax.random.key(seed), purpose, ...)``; in NumPy, and for what
takes a seed of its own, `sequence` and `derived_seed`. The one exception are the environments of a vector,
whose seeds derive from (seed, index): see `operant.envs.vector.base.seed_of`.
"""

from __future__ import annotations

import enum

import numpy as np


class Purpose(enum.IntEnum):
    """First number after the seed. No two parts of the package share one."""

    INIT = 0
    """Initial weights and states of an algorithm."""
    ACT = 1
    """Actions in training, by row."""
    UPDATE = 2
    """Draws of an update: batches, their order, noise of networks."""
    ENV = 3
    """JAX-native environments, on the host and compiled."""
    INDEPENDENT = 4
    """Actions outside of training (`act(independent=True)`)."""
    SCHEDULE = 5
    """Schedules that are random."""
    PRETRAINING = 6
    """Order of recorded timesteps, and noise of the networks that learn from them."""
    TRACES = 7
    """Which recorded episodes are read."""
    EVALUATION = 8
    """Seeds of evaluations in a training run."""
    PLAY = 9
    """Seeds of the episodes that are played."""
    CHECK = 10
    """Random actions by which an environment is checked."""
    PERTURBATION = 0xD20
    """Noise of networks beside a parent's other keys, which count variables or minibatches from 0."""


def sequence(seed: int, purpose: Purpose, *path: int) -> np.random.SeedSequence:
    """Return NumPy's root of a stream, for `numpy.random.default_rng`."""
    return np.random.SeedSequence(seed, spawn_key=(purpose, *path))


def derived_seed(seed: int, purpose: Purpose, *path: int) -> int:
    """Return the seed below 2^31 of something that makes its own generator of it."""
    return int(sequence(seed, purpose, *path).generate_state(1)[0] >> 1)
