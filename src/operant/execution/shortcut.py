"""The Runner's shortcut: where whole blocks of steps keep the limits, the drivers of training runs take them.

With a JAX-native environment acting, stepping and learning are one compiled loop (`device`). With Gymnasium environments
in this process that are called together, a block is one compiled call for learning and one for acting in each row (`host`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium.envs.registration import EnvSpec

from operant.agent import Agent
from operant.agents.learner import Learner
from operant.envs import vector
from operant.envs.native import NativeEnv, TimeLimit
from operant.envs.table import native, resolve
from operant.execution.device import DeviceDriver, World
from operant.execution.episodes import Finished
from operant.execution.host import HostDriver
from operant.execution.interaction import Plan
from operant.execution.ledger import Ledger
from operant.types import Array, Key

_SHOWN = {"visualize", "render_mode"}
"""Arguments of an environment that is watched: there must be no second one."""


class Piece(NamedTuple):
    """A part of a run."""

    finished: list[Finished]
    steps: int
    seconds: float


class Shortcut:
    """Runs an agent by a driver of training runs, as far as limits can be kept exactly by whole blocks.

    A block is what an update of the agent consumes: so many rows of all actors. Limits of updates are met by it; of timesteps it
    leaves what makes no whole block. Afterwards the open episodes are cut at their true last observations, as at the end
    of any run.

    Args:
        environment: its specification.
        max_episode_timesteps: steps after which an episode is cut, if it is not the environment's own limit.
        n: episodes side by side, one for each actor of the agent.
    """

    def __init__(self, environment: Any, max_episode_timesteps: int | None, n: int) -> None:
        self._given, self._limit, self._n = environment, max_episode_timesteps, n
        self._env: NativeEnv | None = None
        self._device: DeviceDriver | None = None
        self._vector: vector.VectorEnv | None = None
        self.driver: Literal["device", "host"] | None = None
        """Which driver serves the environment; None: none does."""
        source = resolve(environment, max_episode_timesteps=max_episode_timesteps)
        if source.reward_shaping is not None:
            return
        if source.is_native:
            env: Any = source.target if source.is_object else native(source.target, **source.arguments)
            limit = source.max_episode_timesteps
            self._env = env if limit is None else TimeLimit(env, limit)
            self.driver = "device"
        elif isinstance(source.target, EnvSpec) and not _SHOWN & source.arguments.keys():
            self.driver = "host"

    def fits(self, agent: Agent, plan: Plan) -> bool:
        """Tell whether the run can be taken, or a part of it."""
        limits = plan.num_updates is not None or plan.num_timesteps is not None
        in_step = self.driver == "device" or plan.batch_agent_calls or self._n == 1
        served = self.driver is not None and in_step and not plan.sync_episodes
        return served and limits and plan.num_episodes is None and agent.is_lendable(self._n)

    def run(self, agent: Agent, plan: Plan, ledger: Ledger, seed: int) -> None:
        """Go as far as whole blocks do not pass a limit."""
        if not self._blocks(agent.learner, plan, ledger):
            return
        assert self.driver is not None
        ledger.driver, before = self.driver, agent.updates
        pieces = (
            self._on_device(agent, plan, ledger) if self._env else self._on_host(agent, plan, ledger, seed)
        )
        for piece in pieces:
            into, each = ledger.training, piece.seconds / max(piece.steps, 1)
            for episode in piece.finished:
                into.returns.append(episode.reward)
                into.timesteps.append(episode.length)
                into.seconds.append(each * episode.length)
                into.agent_seconds.append(
                    each * episode.length
                )  # of one program; on the host environments included
                into.env_seconds.append(0.0)
            ledger.timesteps += piece.steps
            ledger.episodes += len(piece.finished)
            ledger.updates = agent.updates - before if self._env is None else self._updates() - before
            ledger.show(episode=True)

    def close(self) -> None:
        """Close the environments that it made."""
        if self._vector is not None:
            self._vector.close()
        self._vector = self._device = None

    def _on_device(self, agent: Agent, plan: Plan, ledger: Ledger) -> Iterator[Piece]:
        learner, (train, observation) = agent.learner, agent.lend()
        assert self._env is not None
        if self._device is None or self._device.learner is not learner:
            self._device = DeviceDriver(learner, self._env, self._n, train.key, train=train)
        driver = self._device
        world = jax.jit(self._begin)(train.key, train.counters.rows, observation)
        driver.restore(train, {"world": world})
        try:
            while blocks := min(driver.blocks, self._blocks(learner, plan, ledger)):
                yield _piece(driver, blocks)
        finally:
            agent.take_back(driver.train, driver.world.actors.observation)
            driver.forget()

    def _updates(self) -> int:
        assert self._device is not None
        return int(self._device.train.counters.updates)

    def _begin(self, key: Key, rows: Array, observation: Any) -> World:
        """Begin episodes; where there are last observations of others, after the row that ends those."""
        assert self._device is not None
        world = self._device.loop.begin(key)
        if observation is None:
            return world
        ended = jnp.ones(self._n, bool)
        actors = world.actors._replace(observation=observation, ended=ended, row=rows + jnp.uint32(1))
        return world._replace(actors=actors)

    def _on_host(self, agent: Agent, plan: Plan, ledger: Ledger, seed: int) -> Iterator[Piece]:
        train, observation = agent.lend()
        assert agent.engine is not None
        if self._vector is None:
            self._vector = vector.create(
                self._given, self._n, "in-process", max_episode_timesteps=self._limit
            )
        driver = HostDriver(agent.engine, self._vector, seed)
        if observation is not None:
            driver.restore(train, {"observation": observation})
        try:
            while blocks := min(driver.blocks, self._blocks(agent.learner, plan, ledger)):
                yield _piece(driver, blocks)
        finally:
            agent.take_back(driver.train, driver.snapshot()["observation"])

    def _blocks(self, learner: Learner, plan: Plan, ledger: Ledger) -> int:
        """Return how many blocks may be run before a limit is passed."""
        left = []
        if plan.num_updates is not None:
            left.append(plan.num_updates - ledger.updates)
        if plan.num_timesteps is not None:
            left.append((plan.num_timesteps - ledger.timesteps) // (learner.rows * self._n))
        return min(left)


def _piece(driver: DeviceDriver | HostDriver, blocks: int) -> Piece:
    began, step = time.perf_counter(), driver.step
    finished = driver.advance(blocks)
    return Piece(finished, driver.step - step, time.perf_counter() - began)
