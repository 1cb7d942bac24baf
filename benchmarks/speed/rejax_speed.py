"""rejax's PPO on gymnax's CartPole: the whole of training is one compiled call. Evaluation is switched off."""

from __future__ import annotations

import time

import jax
from measure import Measured, main
from rejax import PPO
from workloads import Workload


def measure(workload: Workload, steps: int) -> Measured:
    began = time.perf_counter()
    iteration = workload.n_steps * workload.num_envs
    steps = -(-steps // iteration) * iteration
    algorithm = PPO.create(
        env=workload.env,
        agent_kwargs={"hidden_layer_sizes": workload.hidden, "activation": "tanh"},
        num_envs=workload.num_envs,
        num_steps=workload.n_steps,
        num_epochs=workload.epochs,
        num_minibatches=iteration // workload.batch_size,
        max_grad_norm=0.5,
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
    ).replace(eval_callback=lambda algorithm, state, key: ())
    train = jax.jit(algorithm.train).lower(jax.random.PRNGKey(0)).compile()
    start = time.perf_counter()
    jax.block_until_ready(train(jax.random.PRNGKey(0)))
    return Measured(steps, time.perf_counter() - start, start - began)


if __name__ == "__main__":
    main("rejax", ("rejax", "gymnax", "jax", "flax"), measure)
