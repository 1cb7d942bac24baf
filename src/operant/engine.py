"""The compiled calls of an agent and the state that they change, shared by the host driver and the interactive agent.

The engine knows no environment and no structure of the user's: it takes flat observations and blocks of rows, and holds
the `Train`. Two compiled calls do all the work: `act` (one per vector step) and `absorb` (one per block).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from operant.agents.learner import Acting, Learner, Train
from operant.types import Action, Array, Block, Key, Tree

NOISE_ROWS = 128
"""Rows of randomness drawn in one call: drawing them one at a time costs more than acting."""


class Engine:
    """A `Train` with its compiled functions, for `n` actors."""

    def __init__(self, learner: Learner, key: Key, n: int) -> None:
        self.learner = learner
        self.n = n
        self._act = jax.jit(learner.act, static_argnames="explore")
        self._absorb = jax.jit(self._absorb_step, donate_argnums=(0, 1))
        self._learn = jax.jit(self._learn_step, donate_argnums=(0, 1))
        self._remember = jax.jit(learner.remember, donate_argnums=0)
        self._noise = jax.jit(self._noise_rows, static_argnums=2)
        self._acting = jax.jit(learner.acting)
        self._drawn: dict[int, Tree] = {}
        self.meter: Array = learner.meter()
        self.put(jax.jit(learner.init)(key, learner.hyper()))

    def put(self, train: Train) -> None:
        """Make `train` the current state."""
        self.train = train
        self.acting: Acting = self._acting(train)
        self._drawn.clear()

    def _absorb_step(self, train: Train, meter: Array, block: Block) -> tuple[Train, Array, Acting]:
        train, meter = self.learner.metered(train, meter, block)
        return train, meter, self.learner.acting(train)

    def _learn_step(self, train: Train, meter: Array, block: Block) -> tuple[Train, Array, Acting]:
        train, metrics = self.learner.learn(train, block)
        return train, self.learner.add(meter, metrics), self.learner.acting(train)

    def _noise_rows(self, key: Key, start: Array, rows: int) -> Tree:
        index = start + jnp.arange(rows, dtype=jnp.uint32)
        return jax.vmap(lambda row: self.learner.noise(key, row, self.n))(index)

    def noise(self, row: int) -> Tree:
        """Return the randomness of all actors at a row (NumPy leaves `[n, ...]`)."""
        chunk, offset = divmod(row, NOISE_ROWS)
        if chunk not in self._drawn:
            start = np.uint32(chunk * NOISE_ROWS)
            while len(self._drawn) >= 4:  # actors out of step may need an older chunk than the newest
                self._drawn.pop(min(self._drawn))
            drawn = self._noise(self.train.key, start, NOISE_ROWS)
            self._drawn[chunk] = jax.tree.map(np.asarray, drawn)
        return jax.tree.map(lambda x: x[offset], self._drawn[chunk])

    def act(self, observation: Any, carry: Tree, first: Any, noise: Tree, explore: bool = True) -> Action:
        """Act on flat observations `[k, ...]` of any `k` actors."""
        return self._act(self.acting, observation, carry, first, noise, explore=explore)

    def absorb(self, block: Block) -> None:
        """Learn from a block of `learner.rows` rows of all actors."""
        self.train, self.meter, self.acting = self._absorb(self.train, self.meter, block)

    def absorb_columns(self, block: Block, columns: list[int]) -> None:
        """Learn from a block whose columns belong to these actors, in this order; one may be there twice."""
        for i, index in enumerate(columns):
            own = jax.tree.map(lambda x, i=i: x[:, i : i + 1], block._replace(carry=()))
            self.train = self._remember(self.train, own, np.asarray([index], np.int32))
        self.train, self.meter, self.acting = self._learn(self.train, self.meter, block)

    def metrics(self) -> dict[str, float]:
        """Return the averages of the metrics since the last call; those that never applied are left out."""
        meter = np.asarray(self.meter)
        self.meter = jnp.zeros_like(self.meter)
        return self.learner.read(meter)

    def counter(self, name: str) -> int:
        """Return one of the counters: timesteps, episodes, updates, rows."""
        return int(getattr(self.train.counters, name))

    def scale_lr(self, factor: float) -> tuple[float, float]:
        """Multiply the learning rate; return the old and the new one. Compiles nothing."""
        train, old, new = self.learner.scaled_lr(self.train, factor)
        self.put(train)
        return old, new
