"""Parallelised Q-network (PQN): Q-learning from fresh blocks of many environments, without replay and target
network.

Paper: Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning"
(https://arxiv.org/abs/2407.04811).

    G_t = r_t + γ [(1 - λ) max_a Q(s_{t+1}, a) + λ G_{t+1}]           (section 4 and algorithm 1)
    L   = mean((G - Q(s, a))²)

with G computed once per block, from the network as it was when it acted, and `epochs` passes over the block
in `mini_batches` shuffled parts. G is Peng's Q(λ) (Peng and Williams 1994): later random actions are not
corrected for (Daley and Amato 2019 compare). Layer normalisation takes the place of the target network; an
'auto' network has it here.

Actions of several components, or of components with a shape, have values and returns G of their own, and the
loss is their mean.

A recurrent network processes the rows of a block in order, from the state that it had before the first;
minibatches are then whole columns, the rows of some environments.

Deviations: the square is not halved. A time limit bootstraps from the value of the last observation, 0 where
its mask allows nothing. The return of a terminal step is its reward alone. If a block does not divide into
minibatches, each pass leaves out a different random remainder.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from operant.agents.base import updates
from operant.agents.base.protocol import Counters
from operant.agents.options.pqn_options import PQNConfig as Config
from operant.agents.parts.minibatches import Minibatch, divisible, passes
from operant.agents.parts.q_learning import QLearner
from operant.agents.parts.sequences import flat
from operant.memory.replay import Replay
from operant.nn.network import completed
from operant.ops import losses, optimise, returns
from operant.spec.spaces import Spaces, masks_of
from operant.types import Array, Arrays, Key, Metrics, Rollout, Tree


class State(NamedTuple):
    """What training PQN changes."""

    variables: Tree
    optimizer: Tree
    reward_scale: Tree
    """`RewardScale`, or `()` without reward normalisation."""


class PQNBatch(NamedTuple):
    """What a gradient step reads; leaves `[B, ...]`, for a recurrent network `[T, B, ...]`."""

    observation: Arrays
    action: Arrays
    target: Array
    """`[B, E]` or `[T, B, E]`, one for each element of the actions."""
    valid: Array


def loss(
    params: Tree, frozen: Tree, algorithm: PQN, batch: PQNBatch, carry: Tree = ()
) -> tuple[Array, Metrics]:
    """Return the mean squared error of a minibatch, and metrics."""
    q = algorithm.evaluate({"params": params, "state": frozen}, batch.observation, carry, batch.valid)
    if algorithm.model.recurrent:
        q, batch = flat((q, batch))
    values = [
        algorithm.values.taken(q[name], batch.action[name]) for name in algorithm.spaces.actions.components
    ]
    value = jnp.concatenate(values, axis=1)
    weight = batch.valid.astype(jnp.float32)
    total = losses.weighted_mean(jnp.mean(losses.squared(batch.target - value), axis=1), weight)
    return total, {"loss/td": total, "value/mean": losses.weighted_mean(jnp.mean(value, axis=1), weight)}


@dataclasses.dataclass(frozen=True, eq=False)
class PQN(QLearner):
    """PQN for int and bool actions, masked ones included."""

    config: Config
    keeps_carry: ClassVar[bool] = False

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> PQN:
        """Build the network; refuse float actions, and blocks that the minibatches do not divide."""
        divisible(config, actors * config.n_steps, f"{actors} environments x n_steps {config.n_steps} rows")
        algorithm = cls.build(config, spaces, actors, "pqn", network=completed(config.model, norm="layer"))
        if algorithm.model.recurrent:
            whole = f"environments: {actors}, whose sequences stay whole for a recurrent model"
            divisible(config, actors, whole, "or more environments")
        return algorithm

    @property
    def rows(self) -> int:
        """Rows per actor and update."""
        return self.config.n_steps

    @property
    def memory(self) -> Replay | None:
        """None: on-policy."""
        return None

    def init(self, key: Key) -> State:
        """Initialise network and optimizer."""
        variables = self.model.init(key)
        opt_state = updates.optimizer(self.config).init(variables["params"])
        return State(variables, opt_state, updates.reward_scale(self.config, self.actors))

    def targets(self, variables: Tree, block: Rollout) -> Array:
        """Return the λ-returns G `[T, N, E]` of a block."""
        masks, rows = masks_of(block.observation), block.valid.shape
        q_values = self.evaluate(variables, block.observation, block.carry, block.valid)
        best = [
            losses.max_target(q_values[name], masks.get(name)).reshape(rows[0] + 1, rows[1], -1)
            for name in self.spaces.actions.components
        ]
        value = jnp.concatenate(best, axis=-1)[1:]

        def each(x: Array) -> Array:
            return jnp.broadcast_to(x[..., None], value.shape)

        discount = returns.discounts(block.terminated, gamma=self.config.gamma)
        trace = returns.traces(block.truncated, block.valid, lambda_=self.config.lam)
        return returns.lambda_returns(each(block.reward), each(discount), value, each(trace))

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Compute the returns, then `epochs` passes of `mini_batches` gradient steps."""
        c = self.config
        scale, block = updates.scale_block(c, state.reward_scale, block)
        variables = self.model.observe(state.variables, block.observation, block.valid)
        batch = PQNBatch(
            observation={name: x[:-1] for name, x in block.observation.items()},
            action=block.action,
            target=self.targets(variables, block),
            valid=block.valid,
        )
        optimizer = updates.optimizer(c)
        gradient = jax.value_and_grad(loss, has_aux=True)

        def step(carry: tuple[Tree, Tree], part: Minibatch) -> tuple[tuple[Tree, Tree], Metrics]:
            (params, opt_state), rows = carry, part.rows
            frozen = self.model.learning(variables, part.key)["state"]
            before: Tree = {"params": params, "state": frozen}
            (_, metrics), grads = gradient(params, frozen, self, rows, part.carry)
            has_rows = jnp.any(rows.valid)
            params, opt_state, info = optimise.apply(optimizer, params, opt_state, grads, has_rows=has_rows)
            params = self.model.averaged(params, before, rows.observation, has_rows=has_rows)
            metrics |= {f"update/{k}": v for k, v in info.items()}
            return (params, opt_state), updates.applying(metrics, has_rows)

        start = (variables["params"], state.optimizer)
        (params, opt_state), metrics = passes(
            step,
            start,
            batch,
            key,
            epochs=c.epochs,
            parts=c.mini_batches,
            carry=block.carry,
            sequences=self.model.recurrent,
            noisy=self.model.learns_otherwise,
        )
        metrics |= {
            "value/target": losses.weighted_mean(
                jnp.mean(batch.target, axis=-1), block.valid.astype(jnp.float32)
            ),
            "explore/epsilon": self.epsilon(counters),
            "update/lr": updates.lr(c),
        }
        return State({**variables, "params": params}, opt_state, scale), memory, metrics
