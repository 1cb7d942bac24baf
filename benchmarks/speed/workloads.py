"""What is measured: the settings that every runner of a workload takes, so that all do the same
arithmetic."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Workload:
    """One task with its settings. Settings that a kind does not have stay at 0."""

    kind: str
    """`env` (random actions, no learning), the name of an algorithm, or `agent` (`specification`, by a
    Runner)."""
    env: str
    """Gymnasium's name of the environment."""
    num_envs: int
    atari: bool = False
    """Whether it is an Atari game: preprocessed, and learnt by the Nature CNN instead of `hidden`."""
    native: bool = False
    """Whether the environment is a JAX program too, so that the whole iteration is compiled."""
    hidden: tuple[int, ...] = ()
    batch_size: int = 0
    n_steps: int = 0
    """On-policy: rows of every environment per iteration. ACER: also the length of replayed sequences."""
    epochs: int = 0
    buffer_size: int = 0
    learning_starts: int = 0
    """Off-policy: environment steps before the first update; then one update per step."""

    @property
    def warm_up(self) -> int:
        """Environment steps before the clock starts: by then everything has compiled, and off-policy
        learning has begun."""
        return max(2 * self.n_steps * self.num_envs, 2 * self.learning_starts, 10 * self.num_envs)


def _ppo(num_envs: int, batch_size: int, native: bool = False) -> Workload:
    return Workload(
        "ppo",
        "CartPole-v1",
        num_envs,
        native=native,
        hidden=(64, 64),
        batch_size=batch_size,
        n_steps=128,
        epochs=4,
    )


def _pendulum(kind: str) -> Workload:
    return Workload(
        kind, "Pendulum-v1", 1, hidden=(256, 256), batch_size=256, buffer_size=100_000, learning_starts=500
    )


def specification(workload: Workload) -> dict[str, Any]:
    """Return the agent of kind `agent`, as its users write it: policy gradient with returns of 20 steps,
    updated every `batch_size` steps."""
    layer = {"type": "dense", "activation": "tanh"}
    return {
        "agent": "tensorforce",
        "update": workload.batch_size,
        "policy": {"network": [{**layer, "size": size} for size in workload.hidden]},
        "optimizer": {"optimizer": "adam", "learning_rate": 1e-3},
        "objective": "policy_gradient",
        "reward_estimation": {"horizon": 20},
    }


WORKLOADS = {
    "env-cartpole-8": Workload("env", "CartPole-v1", 8),
    "env-cartpole-64": Workload("env", "CartPole-v1", 64),
    "env-pong-8": Workload("env", "PongNoFrameskip-v4", 8, atari=True),
    "ppo-pong-8": Workload("ppo", "PongNoFrameskip-v4", 8, atari=True, batch_size=256, n_steps=128, epochs=4),
    "ppo-cartpole-8": _ppo(8, 256),
    "ppo-cartpole-64": _ppo(64, 256),
    "dqn-cartpole": Workload(
        "dqn", "CartPole-v1", 1, hidden=(64, 64), batch_size=32, buffer_size=100_000, learning_starts=500
    ),
    "ddpg-pendulum": _pendulum("ddpg"),
    "td3-pendulum": _pendulum("td3"),
    "sac-pendulum": _pendulum("sac"),
    # one network for policy and values; ACER replays a sequence of every environment 4 times per iteration on
    # average
    "a2c-cartpole-8": Workload("a2c", "CartPole-v1", 8, hidden=(64, 64), n_steps=5),
    "acer-cartpole-8": Workload(
        "acer",
        "CartPole-v1",
        8,
        hidden=(64, 64),
        batch_size=1,
        n_steps=20,
        buffer_size=80_000,
        learning_starts=3200,
    ),
    "trpo-cartpole-8": Workload("trpo", "CartPole-v1", 8, hidden=(64, 64), n_steps=128),
    "agent-cartpole": Workload("agent", "CartPole-v1", 1, hidden=(64, 64), batch_size=64),
    # four minibatches whatever the number of environments, as PureJaxRL and rejax do
    "ppo-cartpole-jax-4": _ppo(4, 128, native=True),
    "ppo-cartpole-jax-64": _ppo(64, 2048, native=True),
    "ppo-cartpole-jax-2048": _ppo(2048, 65536, native=True),
}
