"""The rows of an update of the modular agent: which ones, their returns, their advantages."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from operant.agents.base import updates
from operant.agents.modular_parts import gradient_steps, objectives
from operant.agents.modular_parts.objectives import Objective, Rows, View
from operant.agents.modular_parts.reward_estimation import estimate, known, newest, newest_episodes
from operant.agents.options.modular_options import ModularConfig
from operant.memory.recent import Recent
from operant.memory.replay import Replay
from operant.ops import losses
from operant.spec.spaces import mask_name
from operant.types import Array, Arrays, Key, Metrics, Rollout, Tree


def as_view(block: Rollout, carry: Tree, recurrent: bool, count: int | None = None) -> View:
    """Return the first `count` rows of a block, or all and the one after them, as networks read them."""
    observation = {name: x[:count] for name, x in block.observation.items()}
    observation, taken = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (observation, block.action))
    return View(observation, carry, block.valid, taken) if recurrent else View(observation)


def as_rows(
    block: Rollout,
    target: Float[Array, "T N E"],
    advantage: Float[Array, "T N"],
    carry: Tree,
    recurrent: bool,
) -> Rows:
    """Return the rows of a block to learn from, `[T N]`."""
    rest = (block.action, jnp.zeros_like(block.reward), target, advantage)
    rest = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rest)
    return Rows(as_view(block, carry, recurrent, len(block.reward)), *rest)


def _harmless(rows: Rows, counts: Array, masks: Collection[str]) -> Rows:
    """Return rows in which those that do not count have a finite loss: a weight of 0 removes no NaN.

    They get the action of a row that counts; their `masks`, components of the observation, allow all actions.
    """
    index = jnp.where(counts, jnp.arange(len(counts)), jnp.argmax(counts))
    kept = jax.tree.map(lambda x: x[index], rows._replace(view=View({})))
    observation = {
        name: x | ~counts.reshape(-1, *[1] * (x.ndim - 1)) if name in masks else x
        for name, x in rows.view.observation.items()
    }
    result: Rows = kept._replace(view=rows.view._replace(observation=observation))
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class BatchPreparation:
    """Prepares the rows of one update with the networks as they are at its beginning."""

    config: ModularConfig
    objective: Objective
    memory: Replay | Recent
    n_step: int
    """Number of rewards in a return from a replay memory."""
    warmup: int
    """Rows before those of a batch that recurrent networks process first, to warm up."""
    recurrent: bool
    """Whether any network is recurrent."""
    params: dict[str, Tree]
    """By model, like the next two."""
    frozen: dict[str, Tree]
    """Variables other than the parameters."""
    target: Tree
    reward_scale: Tree
    late: Array | int = 0
    """Timesteps or episodes by which this update comes late, since a block is added at once. The rows of
    these timesteps are left to the next update; episodes are taken in addition."""

    def values(self, view: View) -> Float[Array, "R E"]:
        """Return the predicted values of rows."""
        return self._of_rows(
            lambda view: self.objective.values(self.params, self.target, self.frozen, view), view
        )

    def _of_rows(self, f: Callable[[Any], Array], rows: Any) -> Array:
        """Return `f(rows)`, in chunks if there are many rows and they do not follow one another."""
        return f(rows) if self.recurrent else gradient_steps.apply_in_chunks(f, rows)

    def batch(self, memory: Tree, key: Key) -> tuple[Rows, Bool[Array, " R"], Metrics]:
        """Return the rows to learn from, which of them count, and metrics."""
        read = self._replayed if isinstance(self.memory, Replay) else self._recent
        rows, counts = read(memory, key)
        weight = counts.astype(jnp.float32)
        advantage = rows.advantage
        metrics = {"value/target": losses.weighted_mean(jnp.mean(rows.target, axis=1), weight)}
        if self.config.objective == "policy_gradient":
            spread = advantage - losses.weighted_mean(advantage, weight)
            deviation = jnp.sqrt(losses.weighted_mean(jnp.square(spread), weight))
            metrics["value/advantage_std"] = deviation
            if self.config.advantage:
                value = rows.target[:, 0] - advantage
                metrics["value/mean"] = losses.weighted_mean(value, weight)
                explained = losses.explained_variance(value, rows.target[:, 0], weight)
                metrics["update/explained_variance"] = explained
            if self.config.normalize_advantage:
                advantage = losses.normalise(advantage, weight)
            rows = rows._replace(advantage=advantage)
            if self.config.weighs:
                rows = rows._replace(log_prob=self._log_prob(rows))
        return rows, counts, metrics

    def _log_prob(self, rows: Rows) -> Array:
        policy = self.objective
        assert isinstance(policy, objectives.PolicyGradient)

        def log_prob(rows: tuple[View, Arrays]) -> Array:
            view, action = rows
            outputs = policy.outputs(self.params, self.frozen, view)
            return policy.log_prob(outputs, view.observation, action)

        return self._of_rows(log_prob, (rows.view, rows.action))

    def _recent(self, memory: Tree, key: Key) -> tuple[Rows, Array]:
        c = self.config
        assert isinstance(self.memory, Recent)
        block, age = self.memory.rollout(memory), self.memory.age(memory)
        if c.unit == "episodes":
            if c.memory == "recent":
                return self._judged(block, newest_episodes(block, age, c.batch_size + self.late))
            order = jax.random.permutation(key, age.size).astype(jnp.uint32).reshape(age.shape)
            return self._judged(block, newest_episodes(block, order, c.batch_size))
        known_at = known(block, 1 if c.bootstraps else c.horizon)
        rows, counts = self._judged(block, newest(block, known_at, age, c.batch_size, self.late))
        if self.recurrent or not c.bootstraps:  # where an episode's end makes all of its rows known at once
            return rows, counts
        # The memory has room for short episodes, each with a row more: gradient steps need not pass over it.
        (index,) = jnp.nonzero(counts, size=min(len(counts), c.batch_size), fill_value=0)
        taken = jnp.arange(len(index)) < jnp.sum(counts, dtype=jnp.int32)
        return jax.tree.map(lambda x: x[index], rows), taken

    def _judged(self, block: Rollout, counts: Array) -> tuple[Rows, Array]:
        """Return a block's first L rows with returns and advantages, and which count: `counts` `[L, N]`.

        Later rows only enter their returns.
        """
        c = self.config
        block = block._replace(reward=updates.scale_replayed(c, self.reward_scale, block.reward))
        carry = jax.tree.map(lambda x: x[0], block.extras["carry"]) if self.recurrent else ()
        values = None
        if c.bootstraps or c.advantage:
            values = self.values(as_view(block, carry, self.recurrent))
            values = values.reshape(-1, block.reward.shape[1], *values.shape[1:])
        target = estimate(
            block,
            values if c.bootstraps else None,
            gamma=c.gamma,
            lambda_=c.lam,
            horizon=c.horizon,
            predict_terminal_values=c.predict_terminal_values,
        )
        advantage = target[..., 0]
        if c.advantage:
            assert values is not None
            advantage = advantage - values[:-1, :, 0]
        block, target, advantage = jax.tree.map(
            lambda x: x[: len(counts)], (block._replace(carry=()), target, advantage)
        )
        rows, counts = as_rows(block, target, advantage, carry, self.recurrent), counts.reshape(-1)
        masks = set(map(mask_name, self.objective.spaces.masks))
        return (_harmless(rows, counts, masks) if self.recurrent else rows), counts

    def _replayed(self, memory: Tree, key: Key) -> tuple[Rows, Array]:
        c = self.config
        assert isinstance(self.memory, Replay)
        if self.recurrent:
            return self._replayed_in_order(self.memory, memory, key)
        scale = functools.partial(updates.scale_replayed, c, self.reward_scale)
        batch = self.memory.sample(memory, key, c.batch_size, c.gamma, n_step=self.n_step, scale=scale)
        reward = batch.reward
        target, advantage = reward[:, None], reward
        if c.bootstraps:
            following = self.values(View(batch.next_observation))
            target = target + batch.discount[:, None] * following
            advantage = target[:, 0]
        if c.advantage:
            advantage = advantage - self.values(View(batch.observation))[:, 0]
        rows = Rows(View(batch.observation), batch.action, jnp.zeros_like(reward), target, advantage)
        counts = batch.weight > 0
        if not c.bootstraps:  # no prediction replaces rewards that are still to come
            counts &= self.memory.whole(memory, batch.index, self.n_step)
        return rows, counts

    def _replayed_in_order(self, replay: Replay, memory: Tree, key: Key) -> tuple[Rows, Array]:
        """Return drawn rows with those before them, in order, and which count: no last observation does."""
        block = replay.sample_sequences(memory, key, self.config.batch_size, self.warmup + self.n_step)
        drawn = block.valid[: self.warmup + 1].at[: self.warmup].set(False)
        return self._judged(block, drawn)
