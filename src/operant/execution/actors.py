"""The interactive driver's bookkeeping: rows from calls, collected until they make blocks to learn from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from operant.errors import whole
from operant.types import Action, Rollout, Tree


class ActorRow(NamedTuple):
    """One row of one actor, NumPy leaves without leading axes."""

    observation: dict[str, np.ndarray]
    action: Tree
    reward: Any
    terminated: Any
    truncated: Any
    valid: Any
    extras: Tree
    carry: Tree
    """Recurrent state before the row."""


class Actor:
    """One actor's side of the interaction: its unfinished rows and its state."""

    def __init__(self, index: int, carry: Tree) -> None:
        self.index = index
        self.start_carry = carry
        self.carry = carry
        self.rows: list[ActorRow] = []
        self.row = 0
        """Address of the next row's randomness."""
        self.first = True
        """Whether the next row begins an episode."""
        self.acted = False
        """Whether an action waits for its reward."""
        self.length = 0
        self._last: ActorRow | None = None  # with whose observation the newest segment ends

    @property
    def interrupted(self) -> bool:
        """Whether an interrupted call left the newest row: an observation amid an episode, with no action."""
        return not self.first and bool(self.rows) and not self.rows[-1].valid

    def begin_row(self, observation: dict[str, np.ndarray]) -> None:
        """Open a row: nothing but the observation is known yet."""
        if self.interrupted:
            self._last = self.rows.pop()
        carry = self.start_carry if self.first else self.carry
        self.rows.append(ActorRow(observation, None, 0.0, False, False, True, None, carry))

    def fill_row(self, **fields: Any) -> None:
        """Complete the newest row."""
        self.rows[-1] = self.rows[-1]._replace(**fields)

    def drop_open(self) -> None:
        """Take back a row that was opened and has no action yet.

        If a block has taken all rows before it, its observation stays, in a row that does not count: an
        episode that is cut now ends there.
        """
        if not self.rows or self.rows[-1].action is not None:
            return
        row = self.rows.pop()
        if not (self.rows or self.first) and self._last is not None:
            self.rows.append(_idle(self._last)._replace(observation=row.observation, carry=row.carry))

    def end_episode(self, observation: dict[str, np.ndarray]) -> None:
        """Add the row of an episode's last observation."""
        self.rows.append(_idle(self.rows[-1])._replace(observation=observation))
        self.end_here()

    def end_here(self) -> None:
        """End the episode with the newest row, its last observation, even if an interrupted call left it."""
        self.row += 1
        self.first, self.length = True, 0

    def drop_unanswered(self) -> None:
        """Cut the episode before the newest row's action, whose reward never came; the row is its last one.

        The row before it is not flagged if a block has taken it: the row that does not count cuts the
        episode, too.
        """
        self.rows[-1] = _idle(self.rows[-1])
        if len(self.rows) > 1 and self.rows[-2].valid:
            self.rows[-2] = self.rows[-2]._replace(truncated=True)
        self.first, self.acted, self.length = True, False, 0

    def add_episode(
        self,
        observation: dict[str, np.ndarray],
        taken: Action,
        reward: np.ndarray,
        terminal: np.ndarray,
        last: dict[str, np.ndarray] | None,
    ) -> None:
        """Add the rows of a whole episode that was played elsewhere, leaves `[R, ...]`.

        `taken` are actions with extras and the recurrent state *before* each; `terminal` is 0, at the end 1
        or 2; without `last`, the observation after the last action, the one before it is repeated.
        """
        for i in range(len(reward)):
            action, extras, carry = jax.tree.map(lambda x, i=i: x[i], tuple(taken))
            before, end = {name: x[i] for name, x in observation.items()}, int(terminal[i])
            self.rows.append(
                ActorRow(before, action, float(reward[i]), end == 1, end == 2, True, extras, carry)
            )
        self.row += len(reward)
        self.end_episode(self.rows[-1].observation if last is None else last)

    def fill(self, rows: int) -> None:
        """Add rows that do not count, until a segment of `rows` that has begun is complete."""
        while any(row.valid for row in self.rows) and len(self.rows) <= rows:
            self.rows.append(_idle(self.rows[-1]))

    def segment(self, rows: int) -> tuple[int, list[ActorRow]] | None:
        """Take the oldest `rows` rows if the observation after them is known; it comes as one more row."""
        if len(self.rows) <= rows:
            return None
        taken, self.rows = self.rows[: rows + 1], self.rows[rows:]
        # The last row is there for its observation; what else it will hold is not known yet and does not
        # count.
        self._last = taken[-1] = taken[-1]._replace(action=taken[0].action, extras=taken[0].extras)
        return self.index, taken


class Actors:
    """All actors, and the segments (`rows` rows of one actor) that wait for those of the others.

    `carry` is the recurrent state at the start of an episode, `first_row` the address of the first row's
    randomness.
    """

    def __init__(self, n: int, rows: int, carry: Tree, first_row: int) -> None:
        self._rows = rows
        self._actors = [Actor(i, carry) for i in range(n)]
        self._segments: list[tuple[int, list[ActorRow]]] = []
        for actor in self._actors:
            actor.row = first_row

    def __len__(self) -> int:
        return len(self._actors)

    def __iter__(self) -> Iterator[Actor]:
        return iter(self._actors)

    def __getitem__(self, index: int) -> Actor:
        return self._actors[index]

    @property
    def last(self) -> dict[str, np.ndarray] | None:
        """Last observations `[N, ...]` of all actors' episodes, while `idle`; None before the first step."""
        assert self.idle, "there are steps that wait for their update"
        return stack([actor.rows[0].observation for actor in self]) if self[0].rows else None

    @property
    def idle(self) -> bool:
        """Whether nothing waits for an update, and the last observations of all actors are held, or none."""
        if self._segments or any(actor.acted for actor in self) or any(row.valid for row in self.waiting):
            return False
        return {len(actor.rows) for actor in self} in ({0}, {1})

    def end_at(self, last: dict[str, np.ndarray], example: Rollout) -> None:
        """Let the rows begin with the last observations `[N, ...]` of episodes played elsewhere.

        `example` is a block of one actor, or its shapes.
        """
        action, extras = jax.tree.map(
            lambda x: np.zeros(x.shape[2:], x.dtype), (example.action, example.extras)
        )
        for i, actor in enumerate(self):
            actor.begin_row({name: np.array(x[i]) for name, x in last.items()})
            actor.fill_row(action=action, extras=extras, valid=False)
            actor.row += 1

    @property
    def waiting(self) -> list[ActorRow]:
        """Rows that no block has taken yet."""
        rows = [row for actor in self for row in actor.rows]
        return rows + [row for _, segment in self._segments for row in segment[:-1]]

    def collect(self, actor: Actor) -> None:
        """Take the segments of an actor that are complete."""
        while (segment := actor.segment(self._rows)) is not None:
            self._segments.append(segment)

    def flush(self) -> None:
        """Complete blocks with rows that do not count, from the actors whose episodes are over."""
        for actor in self:
            if actor.first and not actor.acted:
                actor.fill(self._rows)
                self.collect(actor)
        while len(self._segments) % len(self):
            # Of no actor: in an actor's memory they would take the place of its rows.
            self._segments.append((len(self), [_idle(row) for row in self._segments[-1][1]]))

    def take(self) -> list[tuple[int, list[ActorRow]]]:
        """Take all segments that are complete, each with its actor."""
        taken, self._segments = self._segments, []
        return taken

    def blocks(self) -> Iterator[tuple[Rollout, list[int] | None]]:
        """Yield complete rollouts `[T, N]`, and each segment's actor (N: padding), or None if in order."""
        n = len(self)
        while len(self._segments) >= n:
            taken, self._segments = self._segments[:n], self._segments[n:]
            taken.sort(key=lambda segment: segment[0])  # stable: an actor's older one stays first
            indices = [index for index, _ in taken]
            yield block_of(taken), None if indices == list(range(n)) else indices

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return all rows as a tree of arrays, and as JSON data how many there are in each of its parts."""
        parts: dict[str, list[ActorRow]] = {f"actor-{a.index}": a.rows for a in self}
        parts |= {f"segment-{i}": rows for i, (_, rows) in enumerate(self._segments)}
        parts = {name: rows for name, rows in parts.items() if rows}
        tree = {
            "rows": {name: _stacked(rows) for name, rows in parts.items()},
            "carry": stack([a.carry for a in self]),
        }
        shapes = {
            "rows": {name: len(rows) for name, rows in parts.items()},
            "segments": [index for index, _ in self._segments],
            "actors": [[a.row, a.first, a.length, a.acted] for a in self],
        }
        return tree, shapes

    def snapshot_like(self, block: Rollout, shapes: dict[str, Any]) -> dict[str, Any]:
        """Return a tree with the shapes of a snapshot, from those of a block `[T, N]` and its other part."""
        one = jax.tree.map(lambda x: np.zeros(x.shape[2:], x.dtype), block._replace(carry=()))
        reward, flag = np.float32(0), np.bool_(False)
        carry = self[0].start_carry
        row = ActorRow(one.observation, one.action, reward, flag, flag, flag, one.extras, carry)
        return {
            "rows": {
                name: jax.tree.map(lambda x, count=count: np.broadcast_to(x, (count, *np.shape(x))), row)
                for name, count in shapes["rows"].items()
            },
            "carry": stack([a.carry for a in self]),
        }

    def restore(self, tree: dict[str, Any], shapes: dict[str, Any]) -> None:
        """Put back what `snapshot` returned."""
        rows = {
            name: [jax.tree.map(lambda x, i=i: np.asarray(x[i]), part) for i in range(shapes["rows"][name])]
            for name, part in tree["rows"].items()
        }
        for i, actor in enumerate(self):
            row, first, length, acted = shapes["actors"][i]
            actor.row, actor.length = whole("row", row, 0), whole("length", length, 0)
            actor.first, actor.acted = bool(first), bool(acted)
            actor.rows = rows.get(f"actor-{i}", [])
            actor.carry = jax.tree.map(lambda x, i=i: x[i], tree["carry"])
        self._segments = [
            (self[index].index, rows[f"segment-{i}"]) for i, index in enumerate(shapes["segments"])
        ]


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack the leaves of several trees along a new first axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _stacked(rows: Sequence[ActorRow]) -> ActorRow:
    whole: ActorRow = stack(rows)
    return whole._replace(reward=np.float32(whole.reward))


def _idle(row: ActorRow) -> ActorRow:
    action, extras = jax.tree.map(np.zeros_like, (row.action, row.extras))
    return row._replace(
        action=action, extras=extras, reward=0.0, terminated=False, truncated=False, valid=False
    )


def block_of(segments: list[tuple[int, list[ActorRow]]]) -> Rollout:
    """Stack segments of `T + 1` rows (the last one for its observation only) into a block `[T, N]`."""
    observation: dict[str, Any] = {}
    for name in segments[0][1][0].observation:
        observation[name] = np.stack(
            [[row.observation[name] for row in rows] for _, rows in segments], axis=1
        )

    def leaves(get: Any) -> Tree:
        each = [stack([get(row) for row in rows[:-1]]) for _, rows in segments]
        return jax.tree.map(lambda *x: np.stack(x, axis=1), *each)

    def scalars(field: str, dtype: Any) -> Any:
        return np.array([[getattr(row, field) for row in rows[:-1]] for _, rows in segments], dtype).T

    return Rollout(
        observation=observation,
        action=leaves(lambda row: row.action),
        reward=scalars("reward", np.float32),
        terminated=scalars("terminated", bool),
        truncated=scalars("truncated", bool),
        valid=scalars("valid", bool),
        extras=leaves(lambda row: row.extras),
        carry=stack([rows[0].carry for _, rows in segments]),
    )
