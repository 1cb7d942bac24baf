"""rejax's PPO on gymnax's CartPole: the whole of training is one compiled call.

Evaluation is switched off.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from measure import main
from rejax import PPO
from workloads import Workload


def algorithm(workload: Workload, steps: int) -> PPO:
    """Return PPO that trains for so many steps, a multiple of an iteration's."""
    made: PPO = PPO.create(
        env=workload.env,
        agent_kwargs={"hidden_layer_sizes": workload.hidden, "activation": "tanh"},
        num_envs=workload.num_envs,
        num_steps=workload.n_steps,
        num_epochs=workload.epochs,
        num_minibatches=workload.n_steps * workload.num_envs // workload.batch_size,
        max_grad_norm=0.5,
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
    ).replace(eval_callback=lambda algorithm, state, key: ())
    return made


def prepare(workload: Workload, steps: int) -> Callable[[], int]:
    iteration = workload.n_steps * workload.num_envs
    steps = -(-steps // iteration) * iteration
    train = jax.jit(algorithm(workload, steps).train).lower(jax.random.PRNGKey(0)).compile()

    def go_on() -> int:  # from the beginning: there is no other way
        jax.block_until_ready(train(jax.random.PRNGKey(0)))
        return steps

    return go_on


if __name__ == "__main__":
    main("rejax", ("rejax", "gymnax", "jax", "flax"), prepare)
