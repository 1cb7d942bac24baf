"""The Runner's fast path: drivers of training runs take whole blocks of steps that keep the limits.

With a JAX-native environment acting, stepping and learning are one compiled loop (`device`). With Gymnasium
environments in this process that are called together, a block is one compiled call for learning and one for
acting in each row (`host`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from operant.agents.base.learner import Learner
from operant.envs.env_spec import EnvSpec
from operant.envs.native.validate import accepted
from operant.envs.vector import create
from operant.envs.vector.base import VectorEnv
from operant.execution.agent import Agent
from operant.execution.interactive import DetachedState
from operant.execution.runner.run_options import RunOptions
from operant.execution.runner.run_statistics import RunStatistics, add_episode, show
from operant.training import signals
from operant.training.drivers.device_driver import DeviceDriver
from operant.training.drivers.host_driver import HostDriver


class FastPath:
    """Runs an agent with a driver of training runs, as long as whole blocks keep exactly within the limits.

    A block is what one update of the agent consumes: a number of rows of all actors. Whole blocks meet a
    limit on updates exactly; of a limit on timesteps, they leave the remainder that makes no whole block.
    Afterwards the open episodes are cut at their true last observations, as at the end of any run. `n`
    episodes run side by side, one for each actor.
    """

    def __init__(self, spec: EnvSpec, connections: Sequence[Any], n: int) -> None:
        self._spec, self._connections, self._n = spec, connections, n
        self._device: DeviceDriver | None = None
        self._vector: VectorEnv | None = None
        self._driver = ""
        if spec.reward_shaping is None:
            plain = isinstance(spec.target, GymnasiumSpec)
            self._driver = "device" if spec.is_native else "host" if plain else ""

    def run(self, agent: Agent, options: RunOptions, statistics: RunStatistics, seed: int) -> None:
        """Go as far as whole blocks pass no limit, unless something needs single steps."""
        in_step = self._driver == "device" or options.batch_agent_calls or self._n == 1
        blocks = self._blocks(agent.learner, options, statistics)
        if not (self._driver and in_step and blocks) or (state := agent.detach_state(self._n)) is None:
            return
        statistics.driver, before = self._driver, agent.updates
        on_device = self._driver == "device"
        driver = self._on_device(agent, state) if on_device else self._on_host(agent, state, seed)
        try:
            while not statistics.ending and (left := self._blocks(agent.learner, options, statistics)):
                blocks = min(driver.blocks, left)
                with signals.held():  # what a block consumes exists nowhere until it is done and counted
                    self._advance(driver, blocks, min(driver.blocks, left - blocks), options, statistics)
                    statistics.updates = int(driver.train.counters.updates) - before
                show(statistics, episode=True)
        finally:
            agent.attach_state(driver.train, driver.last)
            if isinstance(driver, DeviceDriver):
                driver.forget()

    @staticmethod
    def _advance(
        driver: DeviceDriver | HostDriver,
        blocks: int,
        ahead: int,
        options: RunOptions,
        statistics: RunStatistics,
    ) -> None:
        began, step = time.perf_counter(), driver.step
        finished = driver.advance(blocks, ahead)
        each = (time.perf_counter() - began) / max(driver.step - step, 1)
        for episode in finished:
            seconds = each * episode.length
            # The agent's seconds include the environments': the two cannot be told apart.
            add_episode(statistics, episode.reward, episode.length, seconds, seconds, 0.0)
            options.improves(statistics, statistics.episode_returns)
        statistics.timesteps += driver.step - step
        statistics.episodes += len(finished)

    def _blocks(self, learner: Learner, options: RunOptions, statistics: RunStatistics) -> int:
        reports = options.callback or options.scores or options.evaluation
        if reports or options.num_episodes is not None or options.sync_episodes:
            return 0
        left = []
        if options.num_updates is not None:
            left.append(options.num_updates - statistics.updates)
        if options.num_timesteps is not None:
            left.append((options.num_timesteps - statistics.timesteps) // (learner.rows * self._n))
        return min(left, default=0)

    def _on_device(self, agent: Agent, state: DetachedState) -> DeviceDriver:
        if self._device is None or self._device.learner is not agent.learner:
            env = accepted(self._spec.make(), self._spec.name, self._spec.max_episode_timesteps)
            self._device = DeviceDriver(
                agent.learner, env, self._n, state.train.key, train=state.train, name=self._spec.name
            )
        loop, key, rows, last = self._device.loop, state.train.key, state.train.counters.rows, state.last
        world = jax.jit(loop.begin)(key) if last is None else jax.jit(loop.restart)(key, rows, last)
        self._device.restore(state.train, {"world": world})
        return self._device

    def _on_host(self, agent: Agent, state: DetachedState, seed: int) -> HostDriver:
        assert agent.engine is not None
        if self._vector is None:
            games = [each.environment.gymnasium for each in self._connections]
            limit = self._spec.max_episode_timesteps
            self._vector = create.create(games, mode="in-process", max_episode_timesteps=limit)
        driver = HostDriver(agent.engine, self._vector, seed)
        if state.last is not None:
            driver.restore(state.train, {"observation": state.last})
        return driver
