"""Actor-critic with experience replay (ACER), for discrete actions.

Papers: Wang et al. 2017, "Sample Efficient Actor-Critic with Experience Replay"
(https://arxiv.org/abs/1611.01224); Munos et al. 2016, "Safe and Efficient Off-Policy Reinforcement Learning"
(https://arxiv.org/abs/1606.02647).

With V(s) = Σ_a π(a|s) Q(s, a), ratios ρ(a) = π(a|s) / μ(a|s) to the policy μ that acted, and φ = π(·|s):

    Qret_t = r_t + γ [V_{t+1} + min(1, ρ_{t+1}) (Qret_{t+1} - Q(s_{t+1}, a_{t+1}))]                    (eq. 5)
    g = min(c, ρ(a)) ∇_φ log π(a|s) (Qret - V) + Σ_b [1 - c / ρ(b)]₊ π(b|s) ∇_φ log π(b|s) (Q(s, b) - V)
                                                                                                      (eq. 9)
    k = ∇_φ KL(π_average || π) = -π_average / φ,   z = g - max(0, (k·g - δ) / |k|²) k           (eqs. 11, 12)
    L = mean(-z·φ(θ)) + c_q mean(½ (Qret - Q(s, a))²)

z is a constant of the loss: its gradient in θ is the projected gradient sent back through the network. Each
update takes one step on the fresh block, then a Poisson-distributed number of steps on sequences from the
memory, drawn anew every time. After each step the average policy's network moves: θ_average <- α θ_average +
(1 - α) θ.

Deviations: the entropy's gradient, times `entropy_coef`, is part of g, so the trust region bounds it as well
(as in the authors' code). ε keeps the quotients 1 / φ and 1 / |k|² finite. A time limit bootstraps from V of
the last observation. Actions of several components, or of components with a shape, have a policy and action
values for each element; these learn from the same rewards independently, and the loss is their mean. A
recurrent network replays from the state stored when it acted. With `normalize_observations` a block enters
the running moments before it is learnt from, so its ρ are not exactly 1.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from operant.agents.base import updates
from operant.agents.base.protocol import Counters, fold
from operant.agents.options.acer_options import ACERConfig as Config
from operant.agents.parts import imitation
from operant.agents.parts.actor_critic import evaluate
from operant.agents.parts.minibatches import gradient_steps, key_of_step
from operant.agents.parts.one_network import OneNetwork
from operant.agents.table import serving
from operant.errors import value_error
from operant.memory.replay import Replay
from operant.nn import Head, build
from operant.ops import losses, optimise, prng, returns
from operant.ops.distributions import Categorical, NoiseKind, Product
from operant.spec.spaces import Spaces, masks_of, require
from operant.types import Action, Array, Arrays, Key, Metrics, Rollout, Tree


class State(NamedTuple):
    """What training ACER changes."""

    variables: Tree
    average: Tree
    """Parameters of the average policy's network."""
    optimizer: Tree
    reward_scale: Tree
    """`RewardScale`, or `()` without reward normalisation."""


class ActionElement(NamedTuple):
    """What the policy gradient of one action element reads; `taken` is one-hot."""

    log_prob: Float[Array, "*B K"]
    """log π of the present policy."""
    log_behaviour: Float[Array, "*B K"]
    """log μ of the policy that acted."""
    taken: Bool[Array, "*B K"]
    q: Float[Array, "*B K"]
    v: Float[Array, "*B"]
    q_ret: Float[Array, "*B"]


class GradientOutputs(NamedTuple):
    """Outputs through which the loss's gradient flows: of the network in training, if not as in use."""

    policy: Categorical
    q: Array


def policy_gradient(row: ActionElement, *, c: float | Array, epsilon: float | Array) -> Float[Array, "*B K"]:
    """Return g of eq. 9: the objective's gradient in the probabilities φ, truncated and with bias correction.

    `c` bounds the importance weights; `epsilon` is added to the probability that divides.
    """
    ratio = jnp.exp(row.log_prob - row.log_behaviour)
    advantage = jnp.broadcast_to((row.q_ret - row.v)[..., None], row.q.shape)
    truncated = jnp.minimum(ratio, c) * advantage / (jnp.exp(row.log_prob) + epsilon)
    # A ratio of 0 divides to infinity, so to a weight of 0.
    corrected = jnp.maximum(1.0 - c / ratio, 0.0) * (row.q - row.v[..., None])
    return jnp.where(row.taken, truncated, 0.0) + corrected


def project(
    g: Float[Array, "*B K"],
    log_prob: Float[Array, "*B K"],
    log_average: Float[Array, "*B K"],
    *,
    delta: float | Array,
    epsilon: float | Array,
) -> Float[Array, "*B K"]:
    """Return the z nearest to g with k·z <= δ, k the gradient of KL(π_average || π) in φ: eqs. 11 and 12.

    `log_prob` is log π, `log_average` log π_average; `epsilon` is added to the divisors.
    """
    k = -jnp.exp(log_average) / (jnp.exp(log_prob) + epsilon)
    excess = jnp.sum(k * g, axis=-1, keepdims=True) - delta
    return g - jnp.maximum(excess / (jnp.sum(k * k, axis=-1, keepdims=True) + epsilon), 0.0) * k


def loss(params: Tree, state: State, algorithm: ACER, block: Rollout) -> tuple[Array, Metrics]:
    """Return the loss on a block, fresh or replayed, and metrics.

    The variables in the state may be those of `Model.learning`.
    """
    variables = algorithm.model.in_use(state.variables)
    outputs = algorithm.evaluate({**variables, "params": params}, block)
    policy = algorithm.policy(outputs, block.observation)
    average, learned, learned_policy = policy, outputs, policy
    if algorithm.config.trust_region:
        averaged = algorithm.evaluate({**variables, "params": state.average}, block)
        average = algorithm.policy(averaged, block.observation)
    if variables is not state.variables:
        learned = algorithm.evaluate({**state.variables, "params": params}, block)
        learned_policy = algorithm.policy(learned, block.observation)
    parts = []
    for name in policy:
        moved = GradientOutputs(learned_policy[name], learned[f"{name}/q"])
        parts.append(algorithm.terms(name, outputs, policy[name], average[name], moved, block))
    terms = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=-1), *parts)
    weight = block.valid.astype(jnp.float32)
    mean = {name: losses.weighted_mean(jnp.mean(x, axis=-1), weight) for name, x in terms.items()}
    total = mean["policy"] + algorithm.config.value_loss_coef * mean["critic"]
    return total, {
        "loss/policy": mean["policy"],
        "loss/critic": mean["critic"],
        "policy/entropy": losses.weighted_mean(jnp.sum(terms["entropy"], axis=-1), weight),
        "value/mean": mean["value"],
        "memory/importance_weight": mean["importance"],
    }


@dataclasses.dataclass(frozen=True, eq=False)
class ACER(OneNetwork):
    """ACER for int and bool actions, masked ones included."""

    config: Config

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> ACER:
        """Build the network; refuse float actions, and a memory too small for a sequence of every actor."""
        require(spaces, "acer", {"int", "bool"}, serving(spaces))
        if config.buffer_max_size <= actors * config.n_steps:
            raise value_error(
                "buffer_max_size",
                f"above {actors * config.n_steps} ({actors} environments x n_steps {config.n_steps} rows)",
                config.buffer_max_size,
                "Use a larger buffer_max_size, a smaller n_steps or fewer environments.",
            )
        heads: dict[str, Head] = {}
        for name, leaf in spaces.actions.components.items():
            shape = (*leaf.shape, leaf.num_values or 2)
            heads[f"{name}/logits"] = Head(shape, scale=0.01, logits=True)
            heads[f"{name}/q"] = Head(shape, scale=1.0)
        model = build(config.model, spaces.states.components, heads, normalize=config.normalize_observations)
        return cls(config, spaces, actors, model)

    @property
    def rows(self) -> int:
        """Rows per actor and update."""
        return self.config.n_steps

    @property
    def memory(self) -> Replay:
        """Sequences of rows, with the probabilities under which their actions were drawn."""
        return Replay(self.config.buffer_max_size, self.actors, frames=self.spaces.states.frames)

    def init(self, key: Key) -> State:
        """Initialise the network; the average policy's starts as its copy."""
        variables = self.model.init(key)
        average = jax.tree.map(jnp.copy, variables["params"])
        opt_state = updates.optimizer(self.config).init(variables["params"])
        return State(variables, average, opt_state, updates.reward_scale(self.config, self.actors))

    def with_weights(self, state: State, weights: dict[str, Tree]) -> State:
        """Replace the variables; the average becomes a copy of them."""
        variables = weights["model"]
        return state._replace(variables=variables, average=jax.tree.map(jnp.copy, variables["params"]))

    def noise(self, key: Key, n: int) -> Tree:
        """Return the numbers by which actions are drawn, for every choice of every element."""
        components = self.spaces.actions.components.items()
        kinds = {
            name: NoiseKind(Categorical, (*leaf.shape, leaf.num_values or 2)) for name, leaf in components
        }
        return Product.noise(key, kinds, (n,))

    def policy(self, outputs: Arrays, observation: Arrays) -> dict[str, Categorical]:
        """Return the policy of each action; a bool is a choice of two."""
        masks = masks_of(observation)
        names = self.spaces.actions.components
        return {name: Categorical(outputs[f"{name}/logits"], masks.get(name)) for name in names}

    def act(self, acting: Tree, observation: Arrays, carry: Tree, noise: Tree, explore: bool) -> Action:
        """Draw from the policy (or take its mode); extras are what replay needs."""
        outputs, after = self.model.apply(acting, observation, carry)
        action: Arrays = {}
        extras: dict[str, Tree] = {"log_probs": {}}
        for name, policy in self.policy(outputs, observation).items():
            drawn = policy.sample(noise[name]) if explore else policy.mode()
            action[name] = drawn.astype(jnp.dtype(self.spaces.actions.components[name].dtype))
            extras["log_probs"][name] = policy.log_probs
        if self.model.recurrent:
            extras["carry"] = carry
        return Action(action, extras, after)

    def imitation(self, weights: dict[str, Tree], block: Rollout) -> Array:
        """Return the imitation loss on a block: -mean log π(a|s) over valid rows."""
        outputs, observation = jax.tree.map(
            lambda x: x[:-1], (self.evaluate(weights["model"], block), block.observation)
        )
        total = jnp.zeros_like(block.reward)
        for name, policy in self.policy(outputs, observation).items():
            log_prob = losses.pick(policy.log_probs, block.action[name].astype(jnp.int32))
            total = total + jnp.sum(log_prob.reshape(*total.shape, -1), axis=-1)
        return imitation.policy(total, block.valid)

    def evaluate(self, variables: Tree, block: Rollout) -> Arrays:
        """Run the network over all rows of a block."""
        return evaluate(self.model, variables, block.observation, block.carry, block.valid)

    def terms(
        self,
        name: str,
        outputs: Arrays,
        policy: Categorical,
        average: Categorical,
        moved: GradientOutputs,
        block: Rollout,
    ) -> Arrays:
        """Return the parts of one action's loss before averaging, `[T, B, E]` for its `E` elements.

        What is constant in the loss is computed from `outputs`, those of the network as in use.
        """
        c = self.config

        def elements(x: Array) -> Array:
            """Flatten the axes of one action: `[T, B, E, K]`."""
            return x.reshape(*x.shape[:2], -1, x.shape[-1])

        log_probs, probs, q = (elements(x) for x in (policy.log_probs, policy.probs, outputs[f"{name}/q"]))
        action = block.action[name].astype(jnp.int32).reshape(*block.reward.shape, -1)
        behaviour = elements(block.extras["log_probs"][name])
        q_taken = losses.pick(q[:-1], action)
        ratio = jnp.exp(losses.pick(log_probs[:-1] - behaviour, action))
        v = jnp.sum(probs * q, axis=-1)
        mask = masks_of(block.observation).get(name)
        if mask is not None:  # nothing can follow where nothing is allowed
            v = jnp.where(jnp.any(elements(mask), axis=-1), v, 0.0)

        discount = returns.discounts(block.terminated, gamma=c.gamma)
        trace = returns.traces(block.truncated, block.valid)
        rows = (jnp.broadcast_to(x[..., None], ratio.shape) for x in (block.reward, discount, trace))
        reward, discount, trace = rows
        q_ret = returns.retrace(q_taken, v, reward, discount, ratio, trace)
        taken = jax.nn.one_hot(action, q.shape[-1], dtype=jnp.bool_)
        # The row after the block was there for V only. What follows is constant; gradients flow through φ and
        # Q(s, a).
        log_prob, prob = log_probs[:-1], probs[:-1]
        z = policy_gradient(
            ActionElement(log_prob, behaviour, taken, q[:-1], v[:-1], q_ret),
            c=c.importance_c,
            epsilon=c.epsilon,
        )
        z = z - c.entropy_coef * jnp.where(prob > 0, log_prob + 1.0, 0.0)
        if c.trust_region:
            log_average = elements(average.log_probs)[:-1]
            z = project(z, log_prob, log_average, delta=c.delta, epsilon=c.epsilon)
        z, q_ret = jax.lax.stop_gradient((z, q_ret))
        if moved.policy is not policy:
            q_taken = losses.pick(elements(moved.q)[:-1], action)
            prob, log_prob = elements(moved.policy.probs)[:-1], elements(moved.policy.log_probs)[:-1]
        return {
            "policy": -jnp.sum(z * prob, axis=-1),
            "critic": 0.5 * losses.squared(q_ret - q_taken),
            "entropy": -jnp.sum(prob * log_prob, axis=-1),
            "value": v[:-1],
            "importance": jnp.minimum(ratio, c.importance_c),
        }

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Take a step on the block, then a random number of steps on sequences of the memory."""
        c = self.config
        scale, scaled = updates.scale_block(c, state.reward_scale, block)
        variables = self.model.observe(state.variables, block.observation, block.valid)
        state = state._replace(variables=variables, reward_scale=scale)
        state, metrics = self._step(state, scaled, key)
        key_count, key_sample = jax.random.split(key)
        # By then some actor has the rows of a sequence, and one more.
        ready = counters.timesteps >= jnp.uint32(c.initial_size)
        ready &= self.memory.begun(memory, c.initial_size)
        ready &= self.memory.rows(memory) > self.actors * c.n_steps
        count = jnp.where(ready, prng.poisson(key_count, c.replay_ratio), 0)
        keys = key_of_step(key_sample[None])

        def sampled(i: Array, state: State) -> tuple[Rollout, Key]:
            step_key = fold(keys(0), i)
            sample = self.memory.sample_sequences(
                memory, step_key, c.buffer_batch_size * self.actors, c.n_steps
            )
            if self.model.averages:  # the newest block comes without padding, stored ones do not
                sample = updates.mask_padding(sample, self.spaces)
            reward = updates.scale_replayed(c, state.reward_scale, sample.reward)
            return sample._replace(reward=reward), step_key

        fresh = {**metrics, "memory/importance_weight": jnp.float32(jnp.nan)}
        state, metrics = gradient_steps(
            lambda state, sample: self._step(state, *sample), state, sampled, count, first=fresh
        )
        watched = {"memory/replays": count.astype(jnp.float32), "update/lr": updates.lr(c)}
        return state, memory, {**metrics, **watched}

    def _step(self, state: State, block: Rollout, key: Key) -> tuple[State, Metrics]:
        params, variables = state.variables["params"], self.model.learning(state.variables, key)
        grads, metrics = jax.grad(loss, has_aux=True)(
            params, state._replace(variables=variables), self, block
        )
        optimizer, has_rows = updates.optimizer(self.config), jnp.any(block.valid)
        params, opt_state, info = optimise.apply(optimizer, params, state.optimizer, grads, has_rows=has_rows)
        params = self.model.averaged(params, variables, block.observation, has_rows=has_rows)
        average = optimise.interpolate(params, state.average, self.config.ema_alpha)
        average = jax.tree.map(functools.partial(jnp.where, has_rows), average, state.average)
        state = state._replace(
            variables={**state.variables, "params": params}, average=average, optimizer=opt_state
        )
        metrics |= {f"update/{name}": x for name, x in info.items()}
        return state, updates.applying(metrics, has_rows)
