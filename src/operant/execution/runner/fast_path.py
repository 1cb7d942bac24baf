"""The Runner's shortcut: as long as whole blocks of steps keep within the limits, drivers of training runs
take them.

With a JAX-native environment acting, stepping and learning are one compiled loop (`device`). With Gymnasium
environments in this process that are called together, a block is one compiled call for learning and one for
acting in each row (`host`).
"""

from __future__ import annotations

import time
from typing import Any

import jax
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from operant.agents.base.learner import Learner
from operant.envs.catalog import resolve
from operant.envs.native.native_env import TimeLimit
from operant.envs.native.validate import accepted
from operant.envs.vector import create
from operant.envs.vector.base import VectorEnv
from operant.execution.agent import Agent
from operant.execution.interactive import DetachedState
from operant.execution.runner.interaction import RunLimits
from operant.execution.runner.run_statistics import RunStatistics
from operant.training import signals
from operant.training.drivers.device import DeviceDriver
from operant.training.drivers.host import HostDriver

_SHOWN = {"visualize", "render_mode"}
"""Arguments of an environment that is shown on screen: a second copy of it must not be made."""


class FastPath:
    """Runs an agent with a driver of training runs, for as long as whole blocks keep exactly within the
    limits.

    A block is what one update of the agent consumes: a number of rows of all actors. Whole blocks meet a
    limit on updates exactly; of a limit on timesteps, they leave the remainder that makes no whole block.
    Afterwards the open episodes are cut at their true last observations, as at the end of any run.

    Args:
        environment: its specification.
        max_episode_timesteps: steps after which an episode is cut, if it is not the environment's own limit.
        n: episodes side by side, one for each actor of the agent.
    """

    def __init__(self, environment: Any, max_episode_timesteps: int | None, n: int) -> None:
        self._given, self._limit, self._n = environment, max_episode_timesteps, n
        self._device: DeviceDriver | None = None
        self._vector: VectorEnv | None = None
        self._source = source = resolve(environment, max_episode_timesteps=max_episode_timesteps)
        self._serves = ""
        if source.reward_shaping is None:
            plain = isinstance(source.target, GymnasiumSpec) and not _SHOWN & source.arguments.keys()
            self._serves = "device" if source.is_native else "host" if plain else ""

    def run(self, agent: Agent, plan: RunLimits, ledger: RunStatistics, seed: int) -> None:
        """Go as far as whole blocks pass no limit.

        Do nothing if the agent, the plan or the environment needs single steps.
        """
        in_step = self._serves == "device" or plan.batch_agent_calls or self._n == 1
        blocks = self._blocks(agent.learner, plan, ledger)
        if not (self._serves and in_step and blocks) or (lent := agent.lend(self._n)) is None:
            return
        ledger.driver, before = self._serves, agent.updates
        driver = (
            self._on_device(agent, lent) if self._serves == "device" else self._on_host(agent, lent, seed)
        )
        try:
            while not ledger.ending and (
                blocks := min(driver.blocks, self._blocks(agent.learner, plan, ledger))
            ):
                with signals.held():  # what a block consumes exists nowhere until it is done and counted
                    self._advance(driver, blocks, ledger)
                    ledger.updates = int(driver.train.counters.updates) - before
                ledger.show(episode=True)
        finally:
            agent.take_back(driver.train, driver.last)
            if isinstance(driver, DeviceDriver):
                driver.forget()

    @staticmethod
    def _advance(driver: DeviceDriver | HostDriver, blocks: int, ledger: RunStatistics) -> None:
        """Run that many blocks, and count them."""
        began, step = time.perf_counter(), driver.step
        finished, into = driver.advance(blocks), ledger.training
        each = (time.perf_counter() - began) / max(driver.step - step, 1)
        for episode in finished:
            took = each * episode.length
            # The agent's seconds include the environments': the two cannot be told apart.
            into.add(episode.reward, episode.length, took, took, 0.0)
        ledger.timesteps += driver.step - step
        ledger.episodes += len(finished)

    def close(self) -> None:
        """Close the environments that it made."""
        if self._vector is not None:
            self._vector.close()
        self._vector = self._device = None

    def _blocks(self, learner: Learner, plan: RunLimits, ledger: RunStatistics) -> int:
        """Return how many blocks may be run before a limit is passed."""
        if plan.num_episodes is not None or plan.sync_episodes:
            return 0
        left = []
        if plan.num_updates is not None:
            left.append(plan.num_updates - ledger.updates)
        if plan.num_timesteps is not None:
            left.append((plan.num_timesteps - ledger.timesteps) // (learner.rows * self._n))
        return min(left, default=0)

    def _on_device(self, agent: Agent, lent: DetachedState) -> DeviceDriver:
        if self._device is None or self._device.learner is not agent.learner:
            env = accepted(self._source.make(), self._source.name)
            limit = self._source.max_episode_timesteps
            env = env if limit is None else TimeLimit(env, limit)
            self._device = DeviceDriver(
                agent.learner, env, self._n, lent.train.key, train=lent.train, name=self._source.name
            )
        loop, key, rows = self._device.loop, lent.train.key, lent.train.counters.rows
        world = jax.jit(loop.begin)(key) if lent.last is None else jax.jit(loop.restart)(key, rows, lent.last)
        self._device.restore(lent.train, {"world": world})
        return self._device

    def _on_host(self, agent: Agent, lent: DetachedState, seed: int) -> HostDriver:
        assert agent.engine is not None
        if self._vector is None:
            self._vector = create.create(
                self._given, self._n, "in-process", max_episode_timesteps=self._limit
            )
        driver = HostDriver(agent.engine, self._vector, seed)
        if lent.last is not None:
            driver.restore(lent.train, {"observation": lent.last})
        return driver
