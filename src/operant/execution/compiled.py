"""The Runner's shortcut: with a JAX-native environment, acting, stepping and learning are one compiled loop."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp

from operant.agent import Agent
from operant.agents.learner import Learner
from operant.envs.native import NativeEnv, TimeLimit
from operant.envs.table import native, resolve
from operant.execution.device import DeviceDriver, World
from operant.execution.interaction import Plan
from operant.execution.ledger import Ledger
from operant.types import Array, Key


def native_of(environment: Any, max_episode_timesteps: int | None) -> NativeEnv | None:
    """Return the JAX-native environment that is specified, if it is one and nothing about it needs the host."""
    source = resolve(environment, max_episode_timesteps=max_episode_timesteps)
    if not source.is_native or source.reward_shaping is not None:
        return None
    env: Any = source.target if source.is_object else native(source.target, **source.arguments)
    if source.max_episode_timesteps is not None:
        env = TimeLimit(env, source.max_episode_timesteps)
    return env


class Shortcut:
    """Runs an agent on a native environment by the device driver, as far as a limit can be met exactly by whole blocks.

    A block is what an update of the agent consumes: so many rows of all actors. Limits of updates are met by it; of timesteps it
    leaves what makes no whole block. Afterwards the open episodes are cut at their true last observations, as at the end
    of any run.

    Args:
        env: the environment.
        n: episodes side by side, one for each actor of the agent.
    """

    def __init__(self, env: NativeEnv, n: int) -> None:
        self._env, self._n = env, n
        self._driver: DeviceDriver | None = None

    def fits(self, agent: Agent, plan: Plan) -> bool:
        """Tell whether the run can be taken, or a part of it."""
        limits = plan.num_updates is not None or plan.num_timesteps is not None
        return limits and plan.num_episodes is None and agent.is_lendable(self._n)

    def run(self, agent: Agent, plan: Plan, ledger: Ledger) -> None:
        """Go as far as whole blocks do not pass a limit."""
        learner = agent.learner
        if not self._blocks(learner, plan, ledger):
            return
        before, (train, observation) = agent.updates, agent.lend()
        if self._driver is None or self._driver.learner is not learner:
            self._driver = DeviceDriver(learner, self._env, self._n, train.key, train=train)
        driver = self._driver
        world = jax.jit(self._begin)(train.key, train.counters.rows, observation)
        driver.restore(train, {"world": world})
        ledger.compiled = True
        try:
            while blocks := min(driver.blocks, self._blocks(learner, plan, ledger)):
                began, step = time.perf_counter(), driver.step
                finished = driver.advance(blocks)
                seconds = (time.perf_counter() - began) / max(driver.step - step, 1)
                for episode in finished:
                    into = ledger.training
                    into.returns.append(episode.reward)
                    into.timesteps.append(episode.length)
                    into.seconds.append(seconds * episode.length)
                    into.agent_seconds.append(seconds * episode.length)  # it is all one program
                    into.env_seconds.append(0.0)
                ledger.timesteps += driver.step - step
                ledger.episodes += len(finished)
                ledger.updates = int(driver.train.counters.updates) - before
                ledger.show(episode=True)
        finally:
            agent.take_back(driver.train, driver.world.actors.observation)
            driver.forget()

    def _begin(self, key: Key, rows: Array, observation: Any) -> World:
        """Begin episodes; where there are last observations of others, after the row that ends those."""
        assert self._driver is not None
        world = self._driver.loop.begin(key)
        if observation is None:
            return world
        ended = jnp.ones(self._n, bool)
        actors = world.actors._replace(observation=observation, ended=ended, row=rows + jnp.uint32(1))
        return world._replace(actors=actors)

    def _blocks(self, learner: Learner, plan: Plan, ledger: Ledger) -> int:
        """Return how many blocks may be run before a limit is passed."""
        left = []
        if plan.num_updates is not None:
            left.append(plan.num_updates - ledger.updates)
        if plan.num_timesteps is not None:
            left.append((plan.num_timesteps - ledger.timesteps) // (learner.rows * self._n))
        return min(left)
