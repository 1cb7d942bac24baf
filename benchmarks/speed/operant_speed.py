"""operant on the same workloads: its own drivers, with the settings that every runner gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from measure import main
from specified import runner
from workloads import Workload

import operant
from operant.agents.base.agent_spec import AgentSpec, parse_agent
from operant.agents.base.compiled import CompiledAgent
from operant.agents.base.learner import Learner
from operant.envs.native import ids
from operant.envs.vector import create
from operant.spec import runtime
from operant.training.drivers.device_driver import DeviceDriver
from operant.training.drivers.host_driver import HostDriver


def options(workload: Workload) -> dict[str, Any]:
    model: dict[str, Any] = {"type": "auto"}
    if workload.hidden:
        model |= {"size": workload.hidden[0], "depth": len(workload.hidden)}
    if workload.kind == "ppo":
        batch = workload.num_envs * workload.n_steps
        return {
            "model": model,
            "n_steps": workload.n_steps,
            "ppo_epochs": workload.epochs,
            "mini_batches": max(1, batch // workload.batch_size),
            "separate": not workload.atari,
            "clip_norm": 0.2,
            "lr": 3e-4,
        }
    tanh = model | {"activation": "tanh"}
    if workload.kind == "a2c":
        return {"model": tanh, "separate": False, "n_steps": workload.n_steps}
    if workload.kind == "trpo":
        return {"actor_model": tanh, "critic_model": tanh, "n_steps": workload.n_steps}
    if workload.kind in ("ddpg", "td3", "sac"):
        models = {
            "actor_model": model | {"activation": "relu"},
            "critic_model": model | {"activation": "relu"},
        }
    elif workload.kind == "acer":
        models = {"model": tanh}
    else:
        models = {"model": model}
    steps = {"n_steps": workload.n_steps} if workload.n_steps else {}
    return {
        **models,
        **steps,
        "buffer_max_size": workload.buffer_size,
        "buffer_initial_size": workload.learning_starts,
        "buffer_batch_size": workload.batch_size,
        "lr": 1e-4,
    }


def hosted(definition: AgentSpec, env: str, num_envs: int, atari: bool) -> HostDriver:
    """Return a driver at its start, on environments that are not JAX programs."""
    games = dict.fromkeys(("preprocess", "max_frame", "clip_rewards", "episodic_life"), atari)
    envs = create.create(env, num_envs, **games)
    algorithm = definition.cls.create(definition.config, envs.spaces, num_envs)
    return HostDriver(CompiledAgent(Learner(algorithm), jax.random.key(0), num_envs), envs, 0)


def made(workload: Workload) -> DeviceDriver | HostDriver:
    """Return a warmed-up driver: everything is compiled, and learning has begun."""
    definition = parse_agent(workload.kind, **options(workload))
    shape = (84, 84, 4) if workload.atari else (4,)
    runtime.start([shape], product=definition.product(workload.num_envs))  # as `operant train` does
    driver: DeviceDriver | HostDriver
    if workload.native:
        env = ids.make(f"jax:{workload.env}")
        algorithm = definition.cls.create(definition.config, env.spaces, workload.num_envs)
        driver = DeviceDriver(Learner(algorithm), env, workload.num_envs, jax.random.key(0))
    else:
        driver = hosted(definition, workload.env, workload.num_envs, workload.atari)
    while driver.step < max(workload.warm_up, 2 * driver.blocks * driver.block_steps):
        driver.advance(driver.blocks)
    return driver


def prepare(workload: Workload, steps: int) -> Callable[[], int]:
    if workload.kind == "agent":
        return runner(operant, workload, steps, "gymnasium")
    driver = made(workload)

    def go_on() -> int:
        before = driver.step
        while driver.step - before < steps:
            driver.advance(driver.blocks)
        return driver.step - before

    return go_on


if __name__ == "__main__":
    main("operant", ("operant", "jax", "keras", "optax", "gymnasium", "numpy"), prepare)
