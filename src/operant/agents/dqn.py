"""Deep Q-network (DQN) and double DQN, with the parts of Rainbow as options.

Papers: Mnih et al. 2015, "Human-level control through deep reinforcement learning"; van Hasselt et al. 2016,
"Deep Reinforcement Learning with Double Q-learning" (https://arxiv.org/abs/1509.06461); Schaul et al. 2016,
"Prioritized Experience Replay" (https://arxiv.org/abs/1511.05952); Wang et al. 2016, "Dueling Network
Architectures" (https://arxiv.org/abs/1511.06581); Bellemare et al. 2017, "A Distributional Perspective on
Reinforcement Learning" (https://arxiv.org/abs/1707.06887); Dabney et al. 2018, "Distributional Reinforcement
Learning with Quantile Regression" (https://arxiv.org/abs/1710.10044); Fortunato et al. 2018, "Noisy Networks
for Exploration" (https://arxiv.org/abs/1706.10295); Hausknecht and Stone 2015, "Deep Recurrent Q-Learning for
Partially Observable MDPs" (https://arxiv.org/abs/1507.06527); Kapturowski et al. 2019, "Recurrent Experience
Replay in Distributed Reinforcement Learning" (R2D2, https://openreview.net/forum?id=r1lyTjAqYX).

    y = r + γ max_a Q_target(s', a)                          (Mnih et al., algorithm 1)
    y = r + γ Q_target(s', argmax_a Q(s', a))                (van Hasselt et al., eq. 4; `double`)
    L = mean((y - Q(s, a))²)

With `distributional` the network gives a distribution Z with mean Q, the target is that of r + γ Z_target(s',
a*), and the loss the cross-entropy after projection (`c51`; Bellemare et al., algorithm 1) or the quantile
Huber loss (`quantile`; Dabney et al., eq. 10). With `noisy` every call while learning draws its own noise on
the weights (Fortunato et al., eqs. 13 to 18), and acting draws anew after each update.

A recurrent network (Q of all that an episode has shown so far) learns from sequences of successive rows.
Online and target network are unrolled from the state h that was stored when the first row was acted on, h = 0
where an episode begins:

    (Q(o_t, ·), h_{t+1}) = network(o_t, h_t)                 (Hausknecht and Stone, 3 and 4)
    L = mean over t of (y_t - Q(o_t, a_t))², burn_in <= t < burn_in + sequence_length     (Kapturowski, 3)

The first `burn_in` rows only bring h up to date, without gradient. y_t is the target above, of up to
`n_steps` rows.

One gradient step follows every `train_every` steps of all environments. Actions of several components, or of
components with a shape, have one Q-value each; they share the target as independent learners do, and the loss
is their mean.

Deviations: errors are squared, where Mnih et al. clip their gradient at ±1 (`huber` 1 does), and the
optimizer is any, Adam by default, where theirs is RMSProp. Steps before `buffer_initial_size` act at random
and count as environment steps. Terminal targets keep the value of the last observation when the episode was
cut by a time limit. ε falls linearly from `epsilon_start` to `epsilon_end` over `epsilon_decay_steps` after
that; with `noisy` it is 0 then. The target network is a copy every `target_sync_steps` environment steps
(also when several environments step past the multiple at once), or a moving average with `tau` < 1. Noisy
layers keep the network's own initial weights, and all environments act under the same noise. A return ends
where the mask of the next observation allows nothing, also at a time limit. A row keeps the weight that
`priority_alpha` gave when it was last replayed, also where that follows a schedule. Importance weights are
divided by their sum over the batch, not by the largest (Schaul et al. 2016, section 3.4). Priorities are the
divergence from the target (`c51`) or the mean absolute difference of quantiles (`quantile`). Sequences begin
at any row and are drawn uniformly, not by priority; they run over ends of episodes, where h starts anew.
Values are not rescaled.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from operant.agents.base import updates
from operant.agents.base.protocol import Counters, fold
from operant.agents.base.update_counter import ReplayCounter, UpdateCount, passed
from operant.agents.options.dqn_options import DQNConfig as Config
from operant.agents.parts import sequences
from operant.agents.parts.actor_critic import evaluate
from operant.agents.parts.minibatches import gradient_steps, key_of_step
from operant.agents.parts.noisy import Noise, deviations, perturbed
from operant.agents.parts.q_learning import QLearner, QPolicyState
from operant.agents.parts.value_heads import CategoricalValue, ExpectedValue, QuantileValue, ValueHead
from operant.errors import SpecError
from operant.memory.replay import Replay
from operant.ops import losses, optimise
from operant.spec.random_streams import Purpose
from operant.spec.spaces import Spaces, masks_of
from operant.types import Array, Arrays, Key, Metrics, Rollout, Transition, Tree


class State(NamedTuple):
    """What training DQN changes."""

    variables: Tree
    target: Tree
    """What is learned, as the target network has it: parameters, or with `noisy` parameters and
    deviations."""
    optimizer: Tree
    reward_scale: Tree
    """`RewardScale`, or `()` without reward normalisation."""
    noise: Tree
    """`Noise`, or `()` without `noisy`."""
    update_count: UpdateCount


class Outputs(NamedTuple):
    """Outputs of networks for a batch of `B` transitions: `[B, *action shape, values, *atoms]` by action."""

    online: Arrays
    """Online network, of `observation`."""
    target: Arrays
    """Target network, of `next_observation`."""
    choosing: Arrays
    """The network that chooses the next action, of `next_observation`."""


def loss(
    learned: Tree, state: State, algorithm: DQN, batch: Transition, key: Key
) -> tuple[Array, tuple[Array, Metrics]]:
    """Return the mean loss of a batch, with priorities `[B]` and metrics; the key is for noise."""

    def outputs(learned: Tree, observation: Arrays, draw: int, variables: Tree = state.variables) -> Arrays:
        params = algorithm.perturbed(learned, key, draw)
        return algorithm.outputs({**variables, "params": params}, observation)

    online = outputs(learned, batch.observation, 0, algorithm.model.learning(state.variables, key))
    target = outputs(state.target, batch.next_observation, 1)
    choosing = outputs(learned, batch.next_observation, 2) if algorithm.config.double else target
    return td_loss(algorithm.values, Outputs(online, target, choosing), batch)


def sequence_loss(
    learned: Tree, state: State, algorithm: DQN, block: Rollout, key: Key
) -> tuple[Array, tuple[Array, Metrics]]:
    """Return `loss` of sequences `[sequence_rows, B]`, with priorities `[sequence_length B]`."""
    c = algorithm.config
    rest = sequences.cut(block, c.burn_in)

    def outputs(learned: Tree, draw: int, variables: Tree = state.variables) -> Arrays:
        variables = {**variables, "params": algorithm.perturbed(learned, key, draw)}
        carry = sequences.warmed(algorithm.model, variables, block, c.burn_in)
        return algorithm.joined(evaluate(algorithm.model, variables, rest.observation, carry, rest.valid))

    online = outputs(learned, 0, algorithm.model.learning(state.variables, key))
    target = choosing = outputs(state.target, 1)
    if c.double:  # without noise the network that chooses is the online one, which is unrolled already
        fresh = c.noisy or algorithm.model.learns_otherwise
        choosing = outputs(jax.lax.stop_gradient(learned), 2) if fresh else online
    batch, after = sequences.transitions(rest, c.sequence_length, c.n_steps, c.gamma)
    first = sequences.flat({name: x[: c.sequence_length] for name, x in online.items()})
    following = sequences.at((target, jax.lax.stop_gradient(choosing)), after)
    return td_loss(algorithm.values, Outputs(first, *following), batch)


def td_loss(values: ValueHead, outputs: Outputs, batch: Transition) -> tuple[Array, tuple[Array, Metrics]]:
    """Return the mean loss of outputs, with the priorities `[B]` and metrics."""
    masks = masks_of(batch.next_observation)
    taken, discount, following = [], [], []
    for name, output in outputs.online.items():
        mask = masks.get(name)
        taken.append(values.taken(output, batch.action[name]))
        following.append(values.best(outputs.target[name], values.mean(outputs.choosing[name]), mask))
        alive = jnp.ones(taken[-1].shape[:2], bool) if mask is None else jnp.any(mask, axis=-1)
        discount.append(jnp.where(alive.reshape(taken[-1].shape[:2]), batch.discount[:, None], 0.0))
    chosen = jnp.concatenate(taken, axis=1)
    fit = values.fit(
        chosen, batch.reward[:, None], jnp.concatenate(discount, axis=1), jnp.concatenate(following, axis=1)
    )
    total = losses.weighted_mean(jnp.mean(fit.loss, axis=1), batch.weight)
    value = losses.weighted_mean(jnp.mean(values.mean(chosen), axis=1), batch.weight)
    return total, (jnp.mean(fit.error, axis=1), {"loss/td": total, "value/mean": value})


@dataclasses.dataclass(frozen=True, eq=False)
class DQN(ReplayCounter, QLearner):
    """DQN for int and bool actions, masked ones included."""

    config: Config

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> DQN:
        """Build the network; refuse float actions, and replay from which a recurrent network cannot learn."""
        atoms = () if config.distributional == "none" else (config.atoms,)
        algorithm = cls.build(
            config,
            spaces,
            actors,
            ("dueling_dqn" if config.dueling else "ddqn") if config.double else "dqn",
            network=config.model,
            atoms=atoms,
            dueling=config.dueling,
        )
        if algorithm.model.recurrent and config.prioritized:
            raise SpecError(
                "prioritized draws single steps, and a recurrent network learns from sequences. Received: "
                f"prioritized=True, model={config.model!r}. Leave prioritized out, or take a feed-forward "
                "network."
            )
        if algorithm.model.recurrent:
            sequences.require_room(config, actors, algorithm.sequence_rows)
        return algorithm

    @property
    def sequence_rows(self) -> int:
        """Rows of a replayed sequence: burn-in, those learnt from, the rest of the last n-step return."""
        return self.config.burn_in + self.config.sequence_length + self.config.n_steps - 1

    @property
    def values(self) -> ValueHead:
        """Expected returns, or their distribution."""
        c = self.config
        match c.distributional:
            case "c51":
                return CategoricalValue(c.atoms, c.value_min, c.value_max)
            case "quantile":
                return QuantileValue(c.atoms, c.huber)
            case _:
                return ExpectedValue(c.huber)

    @property
    def rows(self) -> int:
        """Rows per actor and update."""
        return self.config.train_every

    @property
    def memory(self) -> Replay:
        """Transitions, for a recurrent network with the state before each."""
        c = self.config
        frames = self.spaces.states.frames
        return Replay(c.buffer_max_size, self.actors, prioritised=c.prioritized, frames=frames)

    @property
    def random_steps(self) -> int:
        """Environment steps until the memory is filled."""
        return self.config.initial_size

    def init(self, key: Key) -> State:
        """Initialise the network; the target starts as its copy."""
        c = self.config
        variables = self.model.init(key)
        noise: Tree = ()
        if c.noisy:
            noise = Noise(deviations(variables["params"], c.noisy_std), fold(key, Purpose.PERTURBATION))
        state = State(variables, (), (), updates.reward_scale(c, self.actors), noise, UpdateCount.zero())
        learned = self.learned(state)
        target = jax.tree.map(jnp.copy, learned)
        return state._replace(target=target, optimizer=updates.optimizer(c).init(learned))

    def with_weights(self, state: State, weights: dict[str, Tree]) -> State:
        """Replace the variables; the target becomes a copy of them."""
        state = state._replace(variables=weights["model"])
        return state._replace(target=jax.tree.map(jnp.copy, self.learned(state)))

    def learned(self, state: State) -> Tree:
        """Return what gradients change: the parameters, with `noisy` the deviations too."""
        params = state.variables["params"]
        return {"params": params, "sigma": state.noise.sigma} if self.config.noisy else params

    def _put(self, state: State, learned: Tree) -> State:
        params = learned["params"] if self.config.noisy else learned
        noise = state.noise._replace(sigma=learned["sigma"]) if self.config.noisy else state.noise
        return state._replace(variables={**state.variables, "params": params}, noise=noise)

    def perturbed(self, learned: Tree, key: Key, *path: Any) -> Tree:
        """Return the parameters to call the network with; with `noisy`, under the noise of the key."""
        if not self.config.noisy:
            return learned
        return perturbed(learned["params"], learned["sigma"], fold(key, *path))

    def epsilon(self, counters: Counters) -> Array:
        """Return the exploration rate; with `noisy` 0 once the memory is filled."""
        if not self.config.noisy:
            return super().epsilon(counters)
        return jnp.where(counters.timesteps < jnp.uint32(self.random_steps), 1.0, 0.0)

    def acting(self, state: State, counters: Counters) -> QPolicyState:
        """Acting needs the network and ε; with `noisy` also parameters under new noise after each update."""
        acting = super().acting(state, counters)
        if not self.config.noisy:
            return acting
        exploring = self.perturbed(self.learned(state), state.noise.key, counters.updates)
        return acting._replace(exploring=exploring)

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Take `gradient_steps` steps if an update is due, then sync the target when that is due."""
        scale, _ = updates.scale_block(self.config, state.reward_scale, block)
        variables = self.model.observe(state.variables, block.observation, block.valid)
        state = state._replace(variables=variables, reward_scale=scale)
        due = self.due(state, memory, block, counters)
        state, memory, metrics = self._replay(state, memory, due, key)
        state = state._replace(update_count=state.update_count.after(due))
        metrics |= {"explore/epsilon": self.epsilon(counters), "update/lr": updates.lr(self.config)}
        return self._sync(state, block, counters), memory, metrics

    def _replay(self, state: State, memory: Tree, due: Array, key: Key) -> tuple[State, Tree, Metrics]:
        c, optimizer = self.config, updates.optimizer(self.config)
        keys = key_of_step(key[None] if c.gradient_steps == 1 else jax.random.split(key, c.gradient_steps))
        gradient = jax.value_and_grad(sequence_loss if self.model.recurrent else loss, has_aux=True)

        def drawn(i: Array, carry: tuple[State, Tree]) -> tuple[Tree, Key]:
            step_key = keys(i)
            return self._sampled(*carry, step_key), step_key

        def step(carry: tuple[State, Tree], drawn: tuple[Tree, Key]) -> tuple[tuple[State, Tree], Metrics]:
            (state, memory), (batch, step_key) = carry, drawn
            learned = self.learned(state)
            (_, (error, metrics)), grads = gradient(learned, state, self, batch, step_key)
            learning = slice(c.burn_in, c.burn_in + c.sequence_length)
            has_rows = jnp.any(batch.valid[learning] if self.model.recurrent else batch.weight > 0)
            learned, opt_state, info = optimise.apply(
                optimizer, learned, state.optimizer, grads, has_rows=has_rows
            )
            if c.prioritized:
                memory = self.memory.update_priorities(memory, batch.index, error, c.priority_alpha)
            metrics |= {f"update/{k}": v for k, v in info.items()}
            before = self.model.learning(state.variables, step_key)
            state = self._put(state, learned)._replace(optimizer=opt_state)
            params = self.model.averaged(
                state.variables["params"], before, batch.observation, has_rows=has_rows
            )
            return (state._replace(variables={**state.variables, "params": params}), memory), metrics

        number = jnp.where(due, c.gradient_steps, 0)
        (state, memory), metrics = gradient_steps(step, (state, memory), drawn, number, c.gradient_steps)
        return state, memory, metrics

    def _sampled(self, state: State, memory: Tree, key: Key) -> Tree:
        """Draw what a gradient step learns from: a `Transition`, or a `Rollout` of sequences."""
        c, replay = self.config, self.memory
        scale = functools.partial(updates.scale_replayed, c, state.reward_scale)
        if self.model.recurrent:
            block = replay.sample_sequences(memory, key, c.buffer_batch_size, self.sequence_rows)
            return block._replace(reward=scale(block.reward))
        return replay.sample(
            memory, key, c.buffer_batch_size, c.gamma, n_step=c.n_steps, beta=c.priority_beta, scale=scale
        )

    def _sync(self, state: State, block: Rollout, counters: Counters) -> State:
        """Move the target when this block passed a multiple of `target_sync_steps`."""
        due = passed(counters, block, self.config.target_sync_steps)
        tau = jnp.where(due, jnp.asarray(self.config.tau, jnp.float32), 0.0)
        return state._replace(target=optimise.interpolate(state.target, self.learned(state), tau))
