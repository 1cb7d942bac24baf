"""xagents, as its documentation shows it: `create_envs`, a Keras model, replay buffers, and what `fit`
repeats.

Runs with Python 3.8 (benchmarks/requirements-predecessors.txt).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import xagents
from measure import main
from workloads import Workload
from xagents.utils.buffers import ReplayBuffer1, ReplayBuffer2
from xagents.utils.common import create_envs

NAMES = {"Pendulum-v1": "Pendulum-v0"}  # what gym 0.19 calls it


def network(
    size: int,
    hidden: tuple[int, ...],
    activation: str,
    outputs: list[tuple[int, str | None]],
    separate: bool = False,
) -> Any:
    """Return a compiled model of dense layers, which its outputs (units, activation) share unless they are
    to be separate."""
    inputs = tf.keras.layers.Input(size)

    def body() -> Any:
        x = inputs
        for width in hidden:
            x = tf.keras.layers.Dense(width, activation)(x)
        return x

    common = None if separate else body()
    heads = [tf.keras.layers.Dense(units, last)(body() if separate else common) for units, last in outputs]
    model = tf.keras.Model(inputs, heads)
    model.compile(tf.keras.optimizers.Adam(3e-4))
    return model


def agent_of(workload: Workload) -> Any:
    envs = create_envs(NAMES.get(workload.env, workload.env), workload.num_envs, False)
    size, hidden, kind = envs[0].observation_space.shape[0], workload.hidden, workload.kind
    choices = getattr(envs[0].action_space, "n", None)
    options: dict[str, Any] = {"quiet": True}
    if workload.n_steps:
        options["n_steps"] = workload.n_steps
    if kind == "a2c":
        models = [network(size, hidden, "tanh", [(choices, None), (1, None)])]
    elif kind == "acer":
        models = [network(size, hidden, "tanh", [(choices, "softmax"), (choices, None)])]
    elif kind == "ppo":
        models = [network(size, hidden, "tanh", [(choices, None), (1, None)], separate=True)]
        options["ppo_epochs"] = workload.epochs
        options["mini_batches"] = workload.num_envs * workload.n_steps // workload.batch_size
    elif kind == "trpo":
        models = [network(size, hidden, "tanh", [(units, None)]) for units in (choices, 1)]
    elif kind == "dqn":
        models = [network(size, hidden, "relu", [(choices, None)])]
    else:
        actions = envs[0].action_space.shape[0]
        models = [
            network(size, hidden, "relu", [(actions, "tanh")]),
            network(size + actions, hidden, "relu", [(1, None)]),
        ]
    if workload.buffer_size:
        models.append(buffers(workload))
    return getattr(xagents, kind.upper())(envs, *models, **options)


def buffers(workload: Workload) -> list[Any]:
    """Return a replay buffer for each environment, of transitions or, for ACER, of sequences of `n_steps`."""
    rows = workload.num_envs * (workload.n_steps or 1)
    settings = {
        "initial_size": workload.learning_starts // rows,
        "batch_size": workload.batch_size if workload.n_steps else workload.batch_size // workload.num_envs,
    }
    size = workload.buffer_size // rows
    continuous = workload.kind in ("ddpg", "td3")
    return [
        ReplayBuffer2(size, 5, **settings) if continuous else ReplayBuffer1(size, **settings)
        for _ in range(workload.num_envs)
    ]


def prepare(workload: Workload, steps: int) -> Callable[[], int]:
    agent = agent_of(workload)
    agent.fit(max_steps=workload.warm_up)

    def go_on() -> int:
        """Do what `fit` repeats (it would fill the replay buffers anew)."""
        before = agent.steps
        while agent.steps - before < steps:
            agent.check_episodes()
            agent.at_step_start()
            agent.train_step()
            agent.at_step_end()
        return int(agent.steps - before)

    return go_on


if __name__ == "__main__":
    main("xagents", ("xagents", "tensorflow", "gym", "numpy"), prepare)
