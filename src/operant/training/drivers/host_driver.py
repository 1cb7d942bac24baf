"""The host driver, for any environments: one compiled `act` per row and one `update` per block."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import jax
import numpy as np

from operant.agents.base.compiled import CompiledAgent
from operant.agents.base.learner import TrainState, reset_carry
from operant.envs.vector.base import AbandonedError, VectorEnv, VectorStep
from operant.spec.random_streams import Purpose, derived_seed
from operant.training.drivers.driver import Driver
from operant.training.episodes import EpisodeResult, EpisodeStatistics
from operant.types import Action, Rollout, Tree

CHECK_STEPS = 512
"""Environment steps of one call (see `Driver`)."""


class HostDriver(Driver):
    """Runs an engine on a vector of environments.

    The environments' own states are not part of a snapshot: after `restore` every actor begins a new episode.
    The row that was open then is closed by its true last observation, like an episode cut by a time limit.
    """

    def __init__(self, engine: CompiledAgent, env: VectorEnv, seed: int) -> None:
        super().__init__(engine.learner, engine.n, CHECK_STEPS)
        self.engine = engine
        self.env = env
        self.accounts = EpisodeStatistics(engine.n)
        self.step = engine.counter("timesteps")
        self._seed = seed
        self._row = engine.counter("rows")
        n = engine.n
        self._carry: Tree = jax.device_get(engine.learner.algorithm.initial_carry(n))
        self._first = np.ones(n, bool)
        self._ended = np.zeros(n, bool)
        self._observation: dict[str, np.ndarray] | None = None
        self._fresh: dict[str, np.ndarray] | None = None
        """First observations of episodes that begin with the next row, in place of a step (`restore`)."""
        shape = engine.learner.block_shape(n)
        self._next: Action | None = None
        """Action for the next row, which came with the last update."""
        self._recurrent = bool(jax.tree.leaves(self._carry))
        self._broken = False
        """Whether the environments stopped within a block, so that their episodes cannot continue."""
        self._settled = 0
        self._buffer: Rollout = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shape)
        self._extras = jax.tree.leaves(self._buffer.extras)
        self._reset_carry = jax.jit(lambda carry, first: reset_carry(engine.learner.algorithm, carry, first))

    def advance(self, blocks: int = 1, ahead: int = 0) -> list[EpisodeResult]:
        """Collect and learn from that many blocks; return the episodes that ended.

        If an environment fails, or the deadline passes, the incomplete block is discarded, and the next call
        begins new episodes (see `restore`).
        """
        finished: list[EpisodeResult] = []
        self.unreported = finished
        with contextlib.suppress(AbandonedError):
            for _ in range(blocks):
                block = self._block(finished)
                noise = self.engine.noise(self._row)
                self._next = self.engine.advance(block, self._carry, self._first, noise)
                # The buffer is written to again: if dispatch is asynchronous, JAX may still be reading it.
                jax.block_until_ready(self._next.action)
        self.unreported = ()
        return finished

    @property
    def settled_step(self) -> int:
        """Environment steps up to the end of the last block, where `train` stands."""
        return self._settled if self._broken else self.step

    def end_by(self, deadline: float) -> None:
        """Discard a block that is not complete by then."""
        self.env.deadline = deadline

    def _block(self, finished: list[EpisodeResult]) -> Rollout:
        """Collect one block; if the last one broke off, begin new episodes first."""
        if self._broken:
            self._begin_anew(self._begin())
        before, row = len(finished), self._row
        self._broken, self._settled = True, self.step
        try:
            block = self._collect(finished)
        except BaseException:
            del finished[before:]
            self.step, self._row = self._settled, row
            raise
        self._broken = False
        return block

    def _begin(self) -> dict[str, np.ndarray]:
        """Reset the environments if this has not been done yet; return the current observation."""
        if self._observation is None:
            self._observation = self.env.reset(self._seed)
        return self._observation

    def _follow(self, actions: dict[str, np.ndarray]) -> VectorStep:
        """Return what follows the actions: a step, or the start of the episodes that `restore` has begun."""
        if self._fresh is None:
            return self.env.step(actions)
        observation, self._fresh = self._fresh, None
        no = np.zeros(self.engine.n, bool)
        return VectorStep(observation, np.zeros(self.engine.n, np.float32), no, no)

    def _collect(self, finished: list[EpisodeResult]) -> Rollout:
        engine, env, buffer = self.engine, self.env, self._buffer
        observation, action = self._begin(), self._next
        carry, first, ended = self._carry, self._first, self._ended
        if self._recurrent:
            carry = self._reset_carry(carry, first)
            buffer = buffer._replace(carry=jax.tree.map(np.asarray, carry))
        for t in range(engine.learner.rows):
            if env.deadline < math.inf and time.perf_counter() >= env.deadline:
                raise AbandonedError
            for name, value in observation.items():
                buffer.observation[name][t] = value
            if action is None:
                action = engine.act(observation, carry, first, engine.noise(self._row))
            chosen = {name: np.asarray(value) for name, value in action.action.items()}
            for name, value in chosen.items():
                buffer.action[name][t] = value
            for into, value in zip(self._extras, jax.tree.leaves(action.extras), strict=True):
                into[t] = value
            after = self._follow(chosen)
            valid, cut = ~ended, after.truncated
            if env.lost is not None:
                # The row only holds the last observation, as after an interruption. As a step without cost,
                # it would teach the agent to take the action that loses an environment.
                valid, cut = valid & ~env.lost, cut & ~env.lost
            buffer.reward[t], buffer.valid[t] = after.reward, valid
            buffer.terminated[t], buffer.truncated[t] = after.terminated, cut
            first, ended = ended, after.terminated | after.truncated
            self.step += int(np.count_nonzero(valid))
            score, over = (after.reward, ended) if env.game is None else env.game
            self.accounts.row(finished, self.step, score, valid, over, env.infos)
            if self.on_step is not None:
                self.on_step(after)
            observation, carry, action = after.observation, action.carry, None
            self._row += 1
        for name, value in observation.items():
            buffer.observation[name][-1] = value
        self._observation, self._carry, self._first, self._ended = observation, carry, first, ended
        return buffer

    @property
    def train(self) -> TrainState:
        """Everything that is needed to continue, except the environments."""
        return self.engine.train

    @train.setter
    def train(self, train: TrainState) -> None:
        self.engine.put(train)
        self._next = None

    def metrics(self) -> dict[str, float]:
        """Return the averages of the metrics since the last call."""
        return self.engine.metrics()

    def skipped(self) -> int:
        """Return how many gradient steps were left out since the last call of `metrics`."""
        return self.engine.skipped()

    @property
    def last(self) -> dict[str, np.ndarray]:
        """Observations after the last row, `[N, ...]`."""
        return dict(self._begin())

    def scale_lr(self, factor: float) -> tuple[float, float]:
        """Multiply the learning rate; compiles nothing."""
        return self.engine.scale_lr(factor)

    def snapshot(self) -> dict[str, Any]:
        """Return, between blocks, the arrays that continuing needs beside the engine's `TrainState`."""
        return {"observation": dict(self._begin()), "ended": self._ended.copy()}

    def snapshot_like(self) -> dict[str, Any]:
        """Return the shapes of a snapshot."""
        leaves = self._buffer.observation
        return {
            "observation": {k: np.zeros(x.shape[1:], x.dtype) for k, x in leaves.items()},
            "ended": self._ended,
        }

    def restore(self, train: TrainState, snapshot: dict[str, Any], step: int | None = None) -> None:
        """Continue from a snapshot: the environments restart, the open episodes are cut.

        Row 0 becomes the last row of every open episode, with the last observation of the earlier process, so
        that nothing bootstraps from the first observation of another episode.
        """
        self.train = train
        self._row = self.engine.counter("rows")
        self.step = self.engine.counter("timesteps") if step is None else step
        self._begin_anew(snapshot["observation"])

    def _begin_anew(self, last: dict[str, np.ndarray]) -> None:
        """Begin new episodes, after a row that only closes the open ones with `last`."""
        begun = self.env.reset(derived_seed(self._seed, Purpose.ENV, self.engine.counter("rows")))
        self._fresh = {name: np.array(value) for name, value in begun.items()}
        self._observation = last
        self._ended = np.ones(self.engine.n, bool)
        self._first = np.zeros(self.engine.n, bool)
        self.accounts = EpisodeStatistics(self.engine.n)
        self._broken = False
