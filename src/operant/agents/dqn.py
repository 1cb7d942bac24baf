"""Deep Q-network (DQN) and double DQN.

Papers: Mnih et al. 2015, "Human-level control through deep reinforcement learning"; van Hasselt et al. 2016, "Deep
Reinforcement Learning with Double Q-learning" (https://arxiv.org/abs/1509.06461); Schaul et al. 2016, "Prioritized
Experience Replay" (https://arxiv.org/abs/1511.05952); Wang et al. 2016, "Dueling Network Architectures"
(https://arxiv.org/abs/1511.06581).

    y = r + γ max_a Q_target(s', a)                          (Mnih et al., algorithm 1)
    y = r + γ Q_target(s', argmax_a Q(s', a))                (van Hasselt et al., eq. 4; `double`)
    L = mean((y - Q(s, a))²)

One gradient step follows every `train_every` steps of all environments. Actions of several components, or of components
with a shape, have one Q-value each; they share the target as independent learners do, and the loss is their mean.

Deviations: steps before `buffer_initial_size` act at random and count as environment steps. Terminal targets keep the
value of the last observation when the episode was cut by a time limit. ε falls linearly from `epsilon_start` to
`epsilon_end` over `epsilon_decay_steps` after that. The target network is a copy every `target_sync_steps` environment
steps (also when several environments step past the multiple at once), or a moving average with `tau` < 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from operant.agents import serving, stability
from operant.agents.config import ModelConfig, ReplayConfig
from operant.agents.protocol import Counters, split_masks
from operant.memory.replay import Replay
from operant.nn import Head, Model, build
from operant.ops import losses, optimise
from operant.spaces import Spaces, require
from operant.spec import Scalar, option
from operant.types import Action, Array, Arrays, Block, Key, Metrics, Transition, Tree


class Config(ReplayConfig, ModelConfig):
    """Options of DQN."""

    double: bool = option(False, "If specified, DDQN will be used")
    epsilon_start: Scalar = option(
        1.0,
        "Starting epsilon value which is used to control random exploration.\n"
        "It should be decremented and adjusted according to implementation needs",
        low=0.0,
        high=1.0,
        search="log_uniform",
        traced=True,
    )
    epsilon_end: Scalar = option(
        0.02,
        "Epsilon end value (minimum exploration rate)",
        low=0.0,
        high=1.0,
        search="log_uniform",
        traced=True,
    )
    epsilon_decay_steps: Scalar = option(
        150000,
        "Number of steps for `epsilon-start` to reach `epsilon-end`",
        unit="environment steps",
        low=1,
        search="int",
        traced=True,
    )
    target_sync_steps: int = option(
        1000, "Sync target models every n steps", unit="environment steps", low=1, search="int"
    )
    tau: Scalar = option(
        1.0,
        "Weight of the online network when the target is synced (1: copy)",
        low=0.0,
        low_open=True,
        high=1.0,
        search="log_uniform",
        traced=True,
    )
    train_every: int = option(
        1,
        "Steps of every environment between updates",
        unit="environment steps per environment",
        low=1,
        search="categorical",
    )
    gradient_steps: int = option(1, "Gradient steps per update", low=1, search="int")
    n_steps: int = option(1, "Steps of the n-step return", low=1, search="categorical")
    huber: float | None = option(
        None,
        "Error beyond which the loss is linear (default: squared everywhere)",
        low=0.0,
        low_open=True,
        search="log_uniform",
    )
    dueling: bool = option(False, "Separate streams for the state's value and the actions' advantages")
    prioritized: bool = option(False, "Replay in proportion to the last TD error")
    priority_alpha: Scalar = option(
        0.6, "Exponent of priorities (0: uniform)", low=0.0, high=1.0, search="log_uniform", traced=True
    )
    priority_beta: Scalar = option(
        0.4,
        "Exponent of the importance weights (1: full correction)",
        low=0.0,
        high=1.0,
        search="log_uniform",
        traced=True,
    )

    def check(self) -> Iterator[str]:
        """Refuse a rising ε, beside what every replay asks."""
        yield from super().check()
        start, end = self.epsilon_start, self.epsilon_end
        if isinstance(start, float) and isinstance(end, float) and end > start:
            yield (
                "epsilon_end must be at most epsilon_start. "
                f"Received: epsilon_end={self.epsilon_end}, epsilon_start={self.epsilon_start}."
            )


class State(NamedTuple):
    """What training DQN changes."""

    variables: Tree
    target: Tree
    """Parameters of the target network."""
    optimizer: Tree
    reward_scale: Tree
    """`RewardScale`, or `()` without reward normalisation."""


def loss(
    params: Tree, state: State, algorithm: DQN, batch: Transition
) -> tuple[Array, tuple[Array, Metrics]]:
    """Return the mean squared (or Huber) TD error; beside it the priorities `[B]` and what to watch."""
    c = algorithm.config
    variables = {**state.variables, "params": params}
    q = algorithm.q_values(variables, batch.observation)
    q_next = algorithm.q_values({**state.variables, "params": state.target}, batch.next_observation)
    masks = split_masks(batch.next_observation)[1]
    online = algorithm.q_values(variables, batch.next_observation) if c.double else q_next
    error, value = [], []
    for name, q_all in q.items():
        chosen = losses.pick(q_all, batch.action[name].astype(jnp.int32))
        following = losses.double_target(q_next[name], online[name], masks.get(name))
        flat = (chosen.shape[0], -1)
        target = batch.reward[:, None] + batch.discount[:, None] * following.reshape(flat)
        error.append(jax.lax.stop_gradient(target) - chosen.reshape(flat))
        value.append(chosen.reshape(flat))
    td = jnp.concatenate(error, axis=1)
    each = losses.squared(td) if c.huber is None else losses.huber(td, delta=c.huber)
    total = losses.weighted_mean(jnp.mean(each, axis=1), batch.weight)
    metrics = {
        "loss/td": total,
        "value/mean": losses.weighted_mean(jnp.mean(jnp.concatenate(value, axis=1), axis=1), batch.weight),
    }
    return total, (jnp.mean(jnp.abs(td), axis=1), metrics)


@dataclasses.dataclass(frozen=True, eq=False)
class DQN:
    """DQN for int and bool actions, masked ones included."""

    config: Config
    spaces: Spaces
    actors: int
    model: Model

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> DQN:
        """Build the network; refuse float actions."""
        require(spaces, "dqn", {"int", "bool"}, serving("float"))
        heads: dict[str, Head] = {}
        for name, leaf in spaces.actions.components.items():
            shape = (*leaf.shape, leaf.num_values or 2)
            heads[name] = Head(shape, scale=1.0)
            if config.dueling:
                heads[f"{name}/value"] = Head((*leaf.shape, 1), scale=1.0)
        model = build(config.model, spaces.states.components, heads, normalize=config.normalize_observations)
        return cls(config, spaces, actors, model)

    @property
    def rows(self) -> int:
        """Rows per actor and update."""
        return self.config.train_every

    @property
    def memory(self) -> Replay | None:
        """Transitions."""
        c = self.config
        frames = {k: v.frames for k, v in self.spaces.states.components.items() if v.frames > 1}
        return Replay(c.buffer_max_size, self.actors, prioritised=c.prioritized, frames=frames)

    def init(self, key: Key) -> State:
        """Initialise the network; the target starts as its copy."""
        variables = self.model.init(key)
        target = jax.tree.map(jnp.copy, variables["params"])
        opt_state = stability.optimizer(self.config).init(variables["params"])
        return State(variables, target, opt_state, stability.reward_scale(self.config, self.actors))

    def weights(self, state: State) -> dict[str, Tree]:
        """Return the variables of the one model."""
        return {"model": state.variables}

    def with_weights(self, state: State, weights: dict[str, Tree]) -> State:
        """Put other variables in; the target becomes their copy."""
        variables = weights["model"]
        return state._replace(variables=variables, target=jax.tree.map(jnp.copy, variables["params"]))

    def epsilon(self, counters: Counters) -> Array:
        """Return the exploration rate: 1 while the memory fills, then linear."""
        c = self.config
        steps = counters.timesteps.astype(jnp.float32)
        fraction = jnp.clip((steps - c.initial_size) / c.epsilon_decay_steps, 0.0, 1.0)
        falling = c.epsilon_start + fraction * (c.epsilon_end - c.epsilon_start)
        return jnp.where(steps < c.initial_size, 1.0, falling)

    def acting(self, state: State, counters: Counters) -> Tree:
        """Acting needs the network and ε."""
        return state.variables, self.epsilon(counters)

    def noise(self, key: Key, n: int) -> Tree:
        """Return per action element a coin and what a random action is drawn by."""
        keys = jax.random.split(key, len(self.spaces.actions.components) + 1)
        draws = {
            name: jax.random.uniform(k, (n, *leaf.shape, leaf.num_values or 2))
            for k, (name, leaf) in zip(keys[1:], self.spaces.actions.components.items(), strict=True)
        }
        return jax.random.uniform(keys[0], (n,)), draws

    def initial_carry(self, n: int) -> Tree:
        """Feed-forward only."""
        return ()

    def q_values(self, variables: Tree, observation: Arrays) -> Arrays:
        """Return Q-values per action, `[..., *action shape, num_values]` (dueling: Wang et al. 2016, eq. 9)."""
        outputs = self.model.apply(variables, observation)[0]
        if not self.config.dueling:
            return {name: outputs[name] for name in self.spaces.actions.components}
        return {
            name: outputs[f"{name}/value"] + outputs[name] - jnp.mean(outputs[name], axis=-1, keepdims=True)
            for name in self.spaces.actions.components
        }

    def act(self, acting: Tree, observation: Arrays, carry: Tree, noise: Tree, explore: bool) -> Action:
        """Act greedily, or with probability ε at random; each actor tosses its own coin."""
        variables, epsilon = acting
        coin, draws = noise
        masks = split_masks(observation)[1]
        action: Arrays = {}
        for name, q in self.q_values(variables, observation).items():
            leaf = self.spaces.actions.components[name]
            allowed = masks.get(name)
            if explore:
                random = coin.reshape(-1, *[1] * (q.ndim - 1)) < epsilon
                q = jnp.where(random, draws[name], q)
            if allowed is not None:
                q = jnp.where(allowed, q, -jnp.inf)
            action[name] = jnp.argmax(q, axis=-1).astype(jnp.dtype(leaf.dtype))
        return Action(action, (), carry)

    def update(
        self, state: State, memory: Tree, block: Block, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Take `gradient_steps` steps once the memory is filled, then sync the target when it is due."""
        scale, _ = stability.scale_block(self.config, state.reward_scale, block)
        variables = self.model.observe(state.variables, block.observation, block.valid)
        state = state._replace(variables=variables, reward_scale=scale)
        ready = counters.timesteps >= jnp.uint32(self.config.initial_size)
        state, memory, metrics = self._learn(state, memory, ready, key)
        metrics |= {
            "explore/epsilon": self.epsilon(counters),
            "update/lr": jnp.asarray(self.config.lr, jnp.float32),
        }
        return self._sync(state, block, counters), memory, metrics

    def _learn(self, state: State, memory: Tree, ready: Array, key: Key) -> tuple[State, Tree, Metrics]:
        """Take the gradient steps, none before the memory is ready.

        A loop of no or some rounds, not a condition: XLA copies what a condition returns, a loop works in place.
        """
        c = self.config
        replay, optimizer = self.memory, stability.optimizer(self.config)
        assert replay is not None
        keys = key[None] if c.gradient_steps == 1 else jax.random.split(key, c.gradient_steps)
        # As plain numbers: JAX's check of key reuse takes any key that a loop reads for one used by every round.
        impl, words = jax.random.key_impl(key), jax.random.key_data(keys)

        def step(i: Array, carry: tuple[State, Tree, Metrics]) -> tuple[State, Tree, Metrics]:
            state, memory, total = carry
            own = jax.random.wrap_key_data(words[i], impl=impl)
            batch = replay.sample(
                memory, own, c.buffer_batch_size, c.gamma, n_step=c.n_steps, beta=c.priority_beta
            )
            batch = batch._replace(reward=stability.scale_replayed(c, state.reward_scale, batch.reward))
            params = state.variables["params"]
            (_, (error, metrics)), grads = jax.value_and_grad(loss, has_aux=True)(params, state, self, batch)
            params, opt_state, info = optimise.apply(optimizer, params, state.optimizer, grads)
            if c.prioritized:
                memory = replay.update_priorities(memory, batch.index, error, c.priority_alpha)
            metrics |= {f"update/{k}": v for k, v in info.items()}
            total = {k: total[k] + v for k, v in metrics.items()}
            state = state._replace(variables={**state.variables, "params": params}, optimizer=opt_state)
            return state, memory, total

        names = ("loss/td", "value/mean", "update/grad_norm", "update/skipped")
        start = (state, memory, dict.fromkeys(names, jnp.zeros(())))
        steps = jnp.where(ready, c.gradient_steps, 0)
        state, memory, total = jax.lax.fori_loop(0, steps, step, start)
        skipped = total.pop("update/skipped")
        metrics = {
            k: v / steps.astype(jnp.float32) for k, v in total.items()
        }  # NaN, so left out, without a step
        return state, memory, {**metrics, "update/skipped": skipped}

    def _sync(self, state: State, block: Block, counters: Counters) -> State:
        """Move the target when this block passed a multiple of `target_sync_steps`."""
        every = jnp.uint32(self.config.target_sync_steps)
        before = counters.timesteps - jnp.sum(block.valid, dtype=jnp.uint32)
        due = counters.timesteps // every > before // every
        tau = jnp.where(due, jnp.asarray(self.config.tau, jnp.float32), 0.0)

        def move(target: Array, online: Array) -> Array:
            # lerp that copies exactly at tau = 1
            return jnp.where(tau == 1.0, online, target + tau.astype(target.dtype) * (online - target))

        return state._replace(target=jax.tree.map(move, state.target, state.variables["params"]))
