"""Replay memory: a ring of rows on the device that trains, as a pytree with pure functions.

The memory holds the stream of `operant.types` as it comes: a row per actor and step, every observation once.
What followed row `t` is row `t + 1` of the same column, so there is no array of next observations, and a time
limit needs no special case.

`add` never reads from a ring what it is about to overwrite: so, compiled with a donated state, it writes in
place, whatever the capacity. A read before the write would make XLA copy the ring.

References: Lin 1992, "Self-improving reactive agents" (replay); Mnih et al. 2015 (frames stored once); Schaul
et al. 2016 (proportional priorities).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from operant.errors import SpecError, UsageError, value_error
from operant.memory import sum_tree
from operant.memory.frames import Stacks
from operant.memory.ring import (
    FLAG_BITS,
    TERMINATED,
    TRUNCATED,
    VALID,
    Cursor,
    ReplayState,
    RowSpec,
    eligible,
    flag,
    mark,
    pick,
    take,
)
from operant.ops import returns
from operant.ops.sharding import spread
from operant.types import Array, Arrays, Key, Rollout, Transition, Tree

__all__ = ["Replay", "RowSpec"]


@dataclasses.dataclass(frozen=True)
class Replay:
    """Description of a replay memory; hashable, so that compiled functions may take it as a static argument.

    A row takes the bytes of its observation, action and extras, and 12 to 20 more. Of a stacked observation
    one frame per row is stored, and all `k` of each episode's first row, for which there is a 64th more room:
    a million rows of 84x84 frames take 7.2 GB, not 56. If that room is too small (episodes shorter than about
    64 (k - 1) rows), the oldest rows leave a little earlier.
    """

    capacity: int
    """Rows over all columns, each episode's last observation being one. Rounded up to a multiple of
    `columns`."""
    columns: int = 1
    """Actors whose streams it holds."""
    prioritised: bool = False
    """Whether `sample` draws in proportion to priorities."""
    frames: Mapping[str, int] | tuple[tuple[str, int], ...] = ()
    """Components of the observation that are stacks of the last `k` frames `[..., H, W, k]`, oldest first:
    name and `k`. Stored frame by frame, returned exactly."""

    def __post_init__(self) -> None:
        pairs = self.frames.items() if isinstance(self.frames, Mapping) else self.frames
        object.__setattr__(self, "frames", tuple(sorted((str(name), int(k)) for name, k in pairs)))
        if self.columns < 1:
            raise value_error("columns", "at least 1", self.columns)
        if self.capacity < 2 * self.columns:
            least = f"at least {2 * self.columns}, 2 for each of {self.columns} actors"
            raise value_error("capacity", least, self.capacity, "Raise buffer_max_size, or capacity.")
        if self.length >= 2**27 or self.columns * max(self.length, self.stacks.length) >= 2**31:
            must = "below 2^27 per column and 2^31 in all"
            raise value_error("capacity", must, self.capacity, "Lower buffer_max_size, or capacity.")
        for name, k in self.stacks.sizes:
            if k < 2:
                raise value_error(
                    f"frames[{name!r}]", "at least 2", k, "One frame is no stack: leave it out."
                )

    @property
    def length(self) -> int:
        """Rows per column, L."""
        return -(-self.capacity // self.columns)

    @property
    def stacks(self) -> Stacks:
        """The stacked observations."""
        return Stacks(tuple(self.frames), self.length)  # type: ignore[arg-type]

    def init(self, example: RowSpec) -> ReplayState:
        """Return an empty memory for rows like `example`."""
        frames = self.stacks.example(example.observation)
        number = jax.eval_shape(lambda: jnp.int32(0))
        rows = {
            "observation": self.stacks.split(example.observation)[0],
            "action": example.action,
            "reward": jax.eval_shape(lambda: jnp.float32(0)),
            "extras": example.extras,
            "mark": number,
            **({"frame": number} if frames else {}),
        }
        size = self.columns * self.length

        def rings(tree: Tree, size: int) -> Any:
            return jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), tree)

        return ReplayState(
            cursor=jnp.zeros((len(Cursor._fields), self.columns), jnp.int32),
            rows=rings(rows, size),
            frames=rings(frames, self.columns * self.stacks.length),
            order=jnp.zeros(size, jnp.int32),
            priorities=sum_tree.init(size) if self.prioritised else (),
            highest=jnp.float32(1.0) if self.prioritised else (),
        )

    @staticmethod
    def emptied(state: ReplayState) -> ReplayState:
        """Return the memory without its rows, in the room that it has: only the cursors are new."""
        zero = functools.partial(jax.tree.map, jnp.zeros_like)
        return state._replace(
            cursor=zero(state.cursor),
            rows={**state.rows, "mark": zero(state.rows["mark"])},
            order=zero(state.order),
            priorities=zero(state.priorities),
            highest=jax.tree.map(jnp.ones_like, state.highest),
        )

    @staticmethod
    def size(state: ReplayState) -> Int[Array, ""]:
        """Return how many rows can be sampled: valid, and followed by a row."""
        return eligible(state).sum()

    @staticmethod
    def rows(state: ReplayState) -> Int[Array, ""]:
        """Return how many rows are held."""
        return Cursor(*state.cursor).held.sum()

    def begun(self, state: ReplayState, count: int | Array) -> Bool[Array, ""]:
        """Return whether `count` rows are held, or a column is full: a memory may be younger than the run.

        One full column is enough, as it may be the only one that is written. If episodes are short, the
        frames of their first rows leave room for fewer rows than `length`.
        """
        cursor = Cursor(*state.cursor)
        full = cursor.held >= self.length - 1
        if self.frames:  # as long as the frames of a first row still fit, no row has left for lack of room
            column = jnp.arange(self.columns, dtype=jnp.int32)
            oldest = take(
                state.rows["frame"], column * self.length + (cursor.next - cursor.held) % self.length
            )
            used = (cursor.frame - 1 - oldest) % self.stacks.length + self.stacks.depth
            full |= (cursor.held > 0) & (used + self.stacks.depth > self.stacks.length)
        return full.any() | (cursor.held.sum() >= jnp.asarray(count).astype(jnp.int32))

    @staticmethod
    def has_sequence(state: ReplayState, length: int) -> Bool[Array, ""]:
        """Return whether `length` rows can be sampled: one column holds them and the row that follows."""
        return Cursor(*state.cursor).held.max() > length

    def add(
        self, state: ReplayState, rollout: Rollout, columns: Int[Array, " n"] | None = None
    ) -> ReplayState:
        """Append the `T` rows of a rollout; row `T` of its observation comes with the next rollout.

        Args:
            state: the memory. Donate it to the compiled call, otherwise all of it is copied.
            rollout: leaves `[T, n, ...]`.
            columns: the `n` distinct columns that the rollout's actors write; None for all in order.

        Raises:
            SpecError: the rollout does not fit the memory.
        """
        T, n = rollout.reward.shape
        self._check(state, rollout, self.columns if columns is None else len(columns))
        where = jnp.arange(n, dtype=jnp.int32) if columns is None else jnp.asarray(columns, jnp.int32)
        column = where[None]
        old = Cursor(*(state.cursor if columns is None else state.cursor[:, where])[:, None])
        row = (old.next + jnp.arange(T, dtype=jnp.int32)[:, None]) % self.length
        index = column * self.length + row

        valid = rollout.valid.astype(jnp.int32)
        count = jnp.cumsum(valid, axis=0)
        rank = (old.rank + count - valid) % (2 * self.length)
        observation, stacked = self.stacks.split({name: x[:-1] for name, x in rollout.observation.items()})
        stored = {
            "observation": observation,
            "action": rollout.action,
            "reward": rollout.reward,
            "extras": rollout.extras,
            "mark": mark(rank, rollout.valid, rollout.terminated, rollout.truncated),
        }
        frames, written = state.frames, jnp.zeros_like(column)
        if self.frames:
            first = jnp.concatenate([old.open == 0, ~rollout.valid[:-1]])
            number = self.stacks.numbers(old.frame, first)
            stored["frame"] = number % self.stacks.length
            frames = self.stacks.write(frames, stacked, column, number, first)
            written = number[-1:] + 1 - old.frame
        rows = jax.tree.map(lambda ring, x: ring.at[index].set(x), state.rows, stored)

        slot = jnp.where(rollout.valid, column * self.length + rank % self.length, len(state.order))
        new = Cursor(
            next=(old.next + T) % self.length,
            held=jnp.minimum(old.held + T, self.length),
            rank=(old.rank + count[-1:]) % (2 * self.length),
            valid=old.valid,
            open=valid[-1:],
            frame=(old.frame + written) % max(self.stacks.length, 1),
        )
        new = self._trimmed(rows, new, written, column, T)
        cursor = jnp.concatenate(new)
        return ReplayState(
            cursor=cursor if columns is None else state.cursor.at[:, where].set(cursor),
            rows=rows,
            frames=frames,
            order=state.order.at[slot].set(row, mode="drop"),
            priorities=self._opened(state, old, new, column, index, valid),
            highest=state.highest,
        )

    def update_priorities(
        self,
        state: ReplayState,
        index: Int[Array, "B 2"],
        priority: Float[Array, " B"],
        alpha: float | Float[Array, ""] = 0.6,
    ) -> ReplayState:
        """Give sampled rows the weight `priority ** alpha` (Schaul et al. 2016, equation 1).

        Args:
            state: the memory.
            index: that of the `Transition`. A row that has left is skipped, unless another has taken its
                place.
            priority: above 0, usually |TD error|; taken as 1e-6 if it is lower or not finite. Of several for
                one row the highest counts.
            alpha: 0 is uniform, 1 proportional; may be traced.

        Raises:
            UsageError: the memory keeps no priorities.
        """
        if not self.prioritised:
            raise UsageError("This memory keeps no priorities. Make it with Replay(..., prioritised=True).")
        row, column = index[:, 0], index[:, 1]
        leaf = column * self.length + row
        cursor = Cursor(*state.cursor[:, column])
        ahead = (cursor.next - 1 - row) % self.length
        counts = (ahead > 0) & (ahead < cursor.held) & flag(take(state.rows["mark"], leaf), VALID)
        # A row whose error is not finite teaches nothing, so it gets the least weight.
        finite = jnp.where(jnp.isfinite(priority), priority, 0.0)
        weight = jnp.power(jnp.maximum(finite, 1e-6), jnp.asarray(alpha, jnp.float32))
        weight = jnp.where(counts, weight, 0.0)
        return state._replace(
            priorities=sum_tree.assign(state.priorities, leaf, weight),
            highest=jnp.maximum(state.highest, weight.max()),
        )

    def sample(
        self,
        state: ReplayState,
        key: Key,
        batch_size: int,
        gamma: float | Float[Array, ""],
        *,
        n_step: int = 1,
        beta: float | Float[Array, ""] = 0.4,
        scale: Callable[[Array], Array] | None = None,
    ) -> Transition:
        """Draw steps of experience, with replacement, from all rows that are valid and followed by another.

        A step runs over `n_step` rows, or fewer if the episode or what is known of it ends sooner: after `m`
        rows, reward = sum over i < m of gamma^i r_i, and discount = gamma^m, or 0 if the last of them
        terminated.

        Args:
            state: the memory. While there is nothing to sample, weight and discount are 0.
            key: consumed.
            batch_size: B.
            gamma: discount factor; may be traced.
            n_step: maximal number of rows in one step.
            beta: exponent of the importance weights (size P(i))^-beta / max (Schaul et al. 2016, section
                3.4). Used with priorities only; may be traced.
            scale: function applied to rewards before they are summed (default: none).
        """
        for name, value in (("batch_size", batch_size), ("n_step", n_step)):
            if value < 1:
                raise value_error(name, "at least 1", value)
        # Behind a barrier: otherwise each of the following gathers would draw the rows again for itself.
        column, row, weight = jax.lax.optimization_barrier(self._drawn(state, key, batch_size, beta))
        steps = jnp.arange(n_step, dtype=jnp.int32)[None]
        path = column[:, None] * self.length + (row[:, None] + steps) % self.length
        marks = take(state.rows["mark"], path)
        ahead = (state.cursor[0, column] - 1 - row) % self.length
        known = flag(marks, VALID) & (steps < ahead[:, None])
        # The step ends before the first row that is not known: an episode's last observation, or the newest
        # row.
        rewards = take(state.rows["reward"], path)
        rewards = rewards if scale is None else scale(rewards)
        reward, discount, length = returns.n_step_sums(rewards, known, flag(marks, TERMINATED), gamma=gamma)
        index = path[:, 0]
        drawn = Transition(
            observation=self._observation(state, column, row),
            action=jax.tree.map(lambda x: take(x, index), state.rows["action"]),
            reward=reward,
            discount=jnp.where(weight > 0, discount, 0.0),
            next_observation=self._observation(state, column, (row + length) % self.length),
            extras=jax.tree.map(lambda x: take(x, index), state.rows["extras"]),
            index=jnp.stack([row, column], axis=1),
            weight=weight,
        )
        return spread(drawn, 0)

    def whole(self, state: ReplayState, index: Int[Array, " B 2"], n_step: int) -> Bool[Array, " B"]:
        """Return which steps have all their rewards: `n_step` rows, or fewer up to the episode's end.

        `index` is row and column with which each step begins, as `sample` returns them.
        """
        row, column = index[:, 0], index[:, 1]
        steps = jnp.arange(n_step, dtype=jnp.int32)[None]
        marks = take(state.rows["mark"], column[:, None] * self.length + (row[:, None] + steps) % self.length)
        ahead = ((state.cursor[0, column] - 1 - row) % self.length)[:, None]
        flagged = (flag(marks, TERMINATED) | flag(marks, TRUNCATED)) & (steps < ahead)
        behind = ~flag(marks, VALID) & (steps > 0) & (steps <= ahead)
        return (ahead[:, 0] >= n_step) | jnp.any(flagged | behind, axis=1)

    def sample_sequences(self, state: ReplayState, key: Key, batch_size: int, length: int) -> Rollout:
        """Draw `B` sequences of `length` rows of one column that are held and followed by another, with
        uniform starts.

        A sequence may cross ends of episodes (see `valid`). `carry` is the extra of that name at the first
        row, if there is one. While no column holds `length + 1` rows, `valid` is False everywhere.
        """
        if not 1 <= length < self.length:
            raise value_error("length", f"from 1 to {self.length - 1} (rows per column - 1)", length)
        cursor = Cursor(*state.cursor)
        starts = jnp.maximum(cursor.held - length, 0)
        column, place = pick(key, batch_size, starts)
        first = cursor.next[column] - cursor.held[column] + place
        row = (first[None] + jnp.arange(length + 1, dtype=jnp.int32)[:, None]) % self.length
        index = column[None] * self.length + row[:-1]
        fields = {name: state.rows[name] for name in ("action", "reward", "extras", "mark")}
        part = jax.tree.map(lambda x: take(x, index), fields)
        observation = self._observation(state, jnp.broadcast_to(column[None], row.shape), row)
        observation, part = spread((observation, part), 1)
        extras = part["extras"]
        has_carry = isinstance(extras, Mapping) and "carry" in extras
        return Rollout(
            observation=observation,
            action=part["action"],
            reward=part["reward"],
            terminated=flag(part["mark"], TERMINATED),
            truncated=flag(part["mark"], TRUNCATED),
            valid=flag(part["mark"], VALID) & (starts.sum() > 0),
            extras=extras,
            carry=jax.tree.map(lambda x: x[0], extras["carry"]) if has_carry else (),
        )

    def _check(self, state: ReplayState, rollout: Rollout, n: int) -> None:
        T = rollout.reward.shape[0]
        if rollout.reward.shape[1] != n:
            raise value_error("rollout", f"of {n} actors, one per column", rollout.reward.shape[1])
        if self.stacks.longest_rollout < T:
            limit = f"of at most {self.stacks.longest_rollout} rows"
            raise value_error("rollout", limit, T, "Raise buffer_max_size, or capacity.")

        def shapes(tree: Tree, axes: int) -> dict[str, tuple[tuple[int, ...], str]]:
            named = jax.tree.leaves_with_path(tree)
            name = jax.tree_util.keystr
            return {
                name(path, simple=True, separator="."): (x.shape[axes:], x.dtype.name) for path, x in named
            }

        fields = ("observation", "action", "reward", "extras")
        held = {name: state.rows[name] for name in fields}
        wanted = shapes({**held, "observation": {**held["observation"], **state.frames}}, 1)
        for name, k in self.stacks.sizes:
            shape, dtype = wanted[f"observation.{name}"]
            wanted[f"observation.{name}"] = ((*shape, k), dtype)
        received = shapes({name: getattr(rollout, name) for name in fields}, 2)
        for name in sorted(wanted.keys() | received.keys()):
            if wanted.get(name) != received.get(name):
                raise SpecError(
                    f"A rollout must have what the memory was made for: {name} is {wanted.get(name)} (shape, "
                    f"type) there. Received: {received.get(name)}."
                )

    def _trimmed(self, rows: Tree, new: Cursor, written: Array, column: Int[Array, "1 n"], T: int) -> Cursor:
        """Drop the oldest rows if `written` frames have overwritten theirs, and count valid ones left."""
        held = new.held
        if self.frames:
            depth, length = self.stacks.depth, self.stacks.length
            window = jnp.arange(T * depth, dtype=jnp.int32)[:, None]
            oldest = column * self.length + (new.next - held + window) % self.length
            age = (new.frame - written - 1 - take(rows["frame"], oldest)) % length + written
            # The rows just written are younger than that difference can tell; their frames are all there.
            gone = (age + depth > length) & (window < held - T)
            held = held - gone.sum(axis=0, keepdims=True, dtype=jnp.int32)
        rank = take(rows["mark"], column * self.length + (new.next - held) % self.length) >> FLAG_BITS
        return new._replace(held=held, valid=(new.rank - rank) % (2 * self.length))

    def _opened(
        self,
        state: ReplayState,
        old: Cursor,
        new: Cursor,
        column: Int[Array, "1 n"],
        index: Int[Array, "T n"],
        valid: Int[Array, "T n"],
    ) -> tuple[Array, ...]:
        """Give the highest weight to rows that are now followed, and none to the newest and those gone."""
        if not self.prioritised:
            return ()
        T, nowhere = len(index), state.priorities[0].size
        previous = column * self.length + (old.next - 1) % self.length
        leaf = jnp.concatenate([jnp.where(new.held > T, previous, nowhere), index])
        ready = jnp.concatenate([old.open, valid[:-1], jnp.zeros_like(valid[:1])])
        weight = ready.astype(jnp.float32) * state.highest
        if self.frames:
            window = jnp.arange(T * self.stacks.depth, dtype=jnp.int32)[:, None]
            oldest = column * self.length + (old.next - old.held + window) % self.length
            leaf = jnp.concatenate([leaf, jnp.where(window < old.held + T - new.held, oldest, nowhere)])
            weight = jnp.concatenate([weight, jnp.zeros(oldest.shape, jnp.float32)])
        return sum_tree.assign(state.priorities, leaf.ravel(), weight.ravel())

    def _drawn(
        self, state: ReplayState, key: Key, count: int, beta: float | Float[Array, ""]
    ) -> tuple[Int[Array, " B"], Int[Array, " B"], Float[Array, " B"]]:
        """Draw rows to sample: column, row, importance weight."""
        if self.prioritised:
            leaf, weight = sum_tree.draw(state.priorities, key, count)
            share = weight / jnp.maximum(sum_tree.total(state.priorities), 1e-30)
            inverse = 1.0 / jnp.maximum(self.size(state).astype(jnp.float32) * share, 1e-30)
            scaled = jnp.where(weight > 0, jnp.power(inverse, jnp.asarray(beta, jnp.float32)), 0.0)
            return leaf // self.length, leaf % self.length, scaled / jnp.maximum(scaled.max(), 1e-30)
        sizes = eligible(state)
        cursor = Cursor(*state.cursor)
        column, place = pick(key, count, sizes)
        rank = cursor.rank[column] - cursor.valid[column] + place
        row = take(state.order, column * self.length + rank % self.length)
        return column, row, jnp.broadcast_to((sizes.sum() > 0).astype(jnp.float32), row.shape)

    def _observation(self, state: ReplayState, column: Int[Array, "*S"], row: Int[Array, "*S"]) -> Arrays:
        index = column * self.length + row
        observation = {name: take(x, index) for name, x in state.rows["observation"].items()}
        if not self.frames:
            return observation
        return {**observation, **self.stacks.read(state.frames, column, take(state.rows["frame"], index))}
