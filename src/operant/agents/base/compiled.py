"""An agent's compiled calls and the state that they change, for the host driver and interactive agents.

The engine knows no environment and no structure of the user's: it takes flat observations and blocks of rows,
and holds the `TrainState`. Two compiled calls do all the work: `act` (one per vector step) and `update` (one
per block).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from operant.agents.base.allocation import initializer, memory_errors
from operant.agents.base.learner import Learner, PolicyState, TrainState
from operant.agents.base.update_counter import UpdateCounter
from operant.errors import SpaceError, UsageError
from operant.ops.repeat import compiled_for
from operant.types import Action, Array, Key, Rollout, Tree

AHEAD = 128
"""How many rows' randomness is drawn in one call: one at a time costs more than acting."""


class KeyStream:
    """Randomness by address, drawn for many addresses at once and handed out as NumPy arrays."""

    def __init__(self, draw: Callable[[Key, Array], Tree]) -> None:
        def drawn(key: Key, first: Array) -> Tree:
            return jax.vmap(lambda i: draw(key, i))(first + jnp.arange(AHEAD, dtype=jnp.uint32))

        self._draw = jax.jit(drawn)
        self._chunks: dict[int, list[Tree]] = {}

    def clear(self) -> None:
        """Forget what was drawn with another key."""
        self._chunks.clear()

    def at(self, key: Key, address: int) -> Tree:
        """Return the randomness of one address."""
        number, offset = divmod(address, AHEAD)
        if number not in self._chunks:
            while len(self._chunks) >= 4:  # actors out of step may need an older chunk than the newest
                self._chunks.pop(min(self._chunks))
            leaves, structure = jax.tree.flatten(self._draw(key, np.uint32(number * AHEAD)))
            rows = zip(*map(np.asarray, leaves), strict=True) if leaves else [()] * AHEAD
            self._chunks[number] = [
                jax.tree.unflatten(structure, row) for row in rows
            ]  # once, not at every step
        return self._chunks[number][offset]


def act_independently(
    learner: Learner,
    act: Callable[..., Action],
    key: Key,
    draw: int,
    observation: dict[str, np.ndarray],
    internals: Tree = None,
    *,
    explore: bool,
) -> tuple[dict[str, np.ndarray], Tree]:
    """Act outside of any run: nothing is recorded or counted.

    Args:
        learner: the algorithm.
        act: as `CompiledAgent.act`.
        key: root of all randomness.
        draw: number of the call among those that explore.
        observation: flat, `[*B, ...]` with one leading axis or none.
        internals: recurrent states `[*B, ...]`; None: those at the start of an episode, allowed if actions do
            not depend on them.
        explore: draw actions as in training; otherwise take the best.

    Returns:
        Flat actions and the next recurrent states, `[*B, ...]`.

    Raises:
        SpaceError: more leading axes, or internals of other shapes.
        UsageError: internals are missing.
    """
    batch = learner.algorithm.spaces.states.batch_shape(observation)
    if len(batch) > 1:
        raise SpaceError(f"states may have one leading axis. Received: {len(batch)} leading axes.")
    n = batch[0] if batch else 1
    flat = {name: np.reshape(x, (n, *x.shape[len(batch) :])) for name, x in observation.items()}
    if internals is None:
        if any(learner.relevant_carry):
            raise UsageError(
                "A recurrent agent needs internals: those that the call before returned, first "
                "initial_internals()."
            )
        carry = learner.start_carry(n)
    else:
        each = learner.carry_shape
        needed = jax.tree.map(lambda x: (*batch, *x.shape), each)
        if jax.tree.map(np.shape, internals) != needed:
            raise SpaceError(
                f"internals must have the shapes {needed}, as initial_internals() and the call before gave "
                f"them. Received: {jax.tree.map(np.shape, internals)}."
            )
        carry = jax.tree.map(lambda x, like: np.reshape(x, (n, *like.shape)), internals, each)
    noise = learner.independent_noise(key, np.uint32(draw), n)
    action = act(flat, carry, np.zeros(n, bool), noise, explore=explore)
    chosen, after = jax.device_get((action.action, action.carry))
    return (chosen, after) if batch else jax.tree.map(lambda x: x[0], (chosen, after))


class _Computations:
    """What an engine's compiled calls compute.

    It holds no arrays. Methods of the engine would: compiled, they refer to it as it does to them, and such a
    circle, with the replay memory in it, outlives its last use until Python looks for circles.
    """

    def __init__(self, learner: Learner, impl: Any, structure: Any) -> None:
        self.learner = learner
        self.impl = impl
        self.structure = structure

    def act(
        self, explore: bool, acting: tuple[Array, ...], observation: Any, carry: Tree, first: Any, noise: Tree
    ) -> Action:
        policy = jax.tree.unflatten(self.structure, acting)
        return self.learner.act(policy, observation, carry, first, noise, explore=explore)

    def update(
        self,
        stored: bool,
        train: TrainState,
        sums: Array,
        block: Rollout,
        key: Array,
        segments: Array | None = None,
    ) -> tuple[TrainState, Array, tuple[Array, ...]]:
        key = jax.random.wrap_key_data(key, impl=self.impl)
        train, metrics = self.learner.update(train, block, key, segments=segments, stored=stored)
        sums = self.learner.metrics.add(sums, metrics)
        return train, sums, tuple(jax.tree.leaves(self.learner.acting(train)))

    def advance(
        self,
        train: TrainState,
        sums: Array,
        block: Rollout,
        key: Array,
        carry: Tree,
        first: Array,
        noise: Tree,
    ) -> tuple[TrainState, Array, tuple[Array, ...] | None, Action]:
        key = jax.random.wrap_key_data(key, impl=self.impl)
        train, metrics = self.learner.update(train, block, key)
        sums = self.learner.metrics.add(sums, metrics)
        acting = tuple(jax.tree.leaves(self.learner.acting(train)))
        observation = {name: x[-1] for name, x in block.observation.items()}
        action = self.act(True, acting, observation, carry, first, noise)
        # With one row to a block nothing else acts on these parameters: handing them out would only copy
        # them.
        return train, sums, acting if self.learner.rows > 1 else None, action


def _compiled(
    function: Callable[..., Any], platform: str, precision: str | None, donated: tuple[int, ...] = ()
) -> Any:
    """Compile a function for a platform, with a precision of matrix products (None: JAX chooses)."""

    @functools.wraps(function)
    def traced(*arguments: Any) -> Any:
        precise = contextlib.nullcontext() if precision is None else jax.default_matmul_precision(precision)
        with compiled_for(platform), precise:
            return function(*arguments)

    return jax.jit(traced, donate_argnums=donated)


class CompiledAgent:
    """A `TrainState` of `n` actors with its compiled functions; `key` is the root of all randomness.

    Without a device arrays are where JAX chooses, and so is the precision of matrix products and convolutions
    (see `jax.default_matmul_precision`). `guard` makes the context around each call that consumes the state.
    If nothing else makes an interruption wait for the end of such a call, it is
    `operant.training.signals.held`, which takes 10 µs.
    """

    def __init__(
        self,
        learner: Learner,
        key: Key,
        n: int,
        device: Any = None,
        precision: str | None = None,
        guard: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.learner = learner
        self.n = n
        self.device = device
        self.precision = precision
        self._guard = guard
        # Asked once: the answer takes as long as acting.
        self._counts = isinstance(learner.algorithm, UpdateCounter)
        # Made at once where it stays: JAX's first device need not have room for a replay memory.
        with jax.default_device(device):
            arguments = key, learner.hyper()
            train = initializer(learner, n, learner.init, *arguments, device=device)(*arguments)
            # Where `put` places the state: if one is tied to its device and the other is not, the first
            # update compiles twice.
            self.metric_sums: Array = jax.device_put(learner.metrics.zeros(), device)
        platform = next(iter(self.metric_sums.devices())).platform
        self._apart = platform != "cpu"
        """Whether the arrays are not in the host's memory."""
        self._structure = jax.tree.structure(jax.eval_shape(learner.acting, train))
        """How the leaves make what `act` needs."""
        compute = _Computations(learner, jax.random.key_impl(key), self._structure)
        jit = functools.partial(_compiled, platform=platform, precision=precision)
        self._acts = {explore: jit(functools.partial(compute.act, explore)) for explore in (True, False)}
        self._recall = jit(learner.recall)
        self._update = jit(functools.partial(compute.update, False), donated=(0, 1))
        self._update_stored = jit(functools.partial(compute.update, True), donated=(0, 1))
        self._advance = jit(compute.advance, donated=(0, 1))
        self._add = jax.jit(learner.add, donate_argnums=0)
        self._make_acting = jax.jit(lambda train: tuple(jax.tree.leaves(learner.acting(train))))
        self._noise = KeyStream(lambda key, row: learner.noise(key, row, n))
        self._keys = KeyStream(lambda key, update: jax.random.key_data(learner.update_key(key, update)))
        self._known: tuple[Any, dict[str, int]] = (None, {})
        """Counters, and those known as numbers: programs ask at every step, and asking the device takes
        some microseconds."""
        # Sums that a reader has not read yet; None: for readers that have never read.
        self._unread: dict[str | None, np.ndarray] = {None: np.zeros(self.metric_sums.shape, np.float32)}
        self.put(train)

    def put(self, train: TrainState) -> None:
        """Make `train` the current state."""
        self.train = train if self.device is None else jax.device_put(train, self.device)
        self._acting_now: tuple[Array, ...] | None = None
        """Leaves of what `act` needs: JAX takes a flat argument in half the time of one that it has to
        flatten."""
        self._noise.clear()
        self._keys.clear()
        self._calls = int(train.counters.rows) // self.learner.rows
        self._before = int(train.counters.updates) - self._calls

    @property
    def _leaves(self) -> tuple[Array, ...]:
        if self._acting_now is None:
            self._acting_now = self._make_acting(self.train)
        return self._acting_now

    @property
    def acting(self) -> PolicyState:
        """What `act` needs, of the current state."""
        acting: PolicyState = jax.tree.unflatten(self._structure, self._leaves)
        return acting

    def noise(self, row: int) -> Tree:
        """Return the randomness of all actors at a row (NumPy leaves `[n, ...]`)."""
        return self._noise.at(self.train.key, row)

    def act(self, observation: Any, carry: Tree, first: Any, noise: Tree, explore: bool = True) -> Action:
        """Act on flat observations `[k, ...]` of any `k` actors."""
        with memory_errors:
            return self._fetched(self._acts[explore](self._leaves, observation, carry, first, noise))

    def _fetched(self, action: Action) -> Action:
        """Begin to fetch what the host reads of an action, all at once instead of one after the other."""
        if self._apart:
            for leaf in jax.tree.leaves((action.action, action.extras)):
                leaf.copy_to_host_async()
        return action

    def recall(self, observation: Any, carry: Tree, first: Any, action: Any) -> Action:
        """Return what `act` would have returned for observations `[k, ...]`, had it chosen these actions."""
        return self._recall(self.acting, observation, carry, first, action)

    def update(self, block: Rollout) -> None:
        """Learn from a block of `learner.rows` rows of all actors."""
        self._learn(self._update, block)

    def update_stored(self, block: Rollout, actors: list[int] | None = None) -> None:
        """Update from a block that the memory holds already; `actors` are segments of `Learner.update`."""
        self._learn(self._update_stored, block, None if actors is None else np.asarray(actors, np.int32))

    def _learn(self, update: Any, block: Rollout, *rest: Any) -> list[Any]:
        """Replace the state, which the call consumes; return what else the call returns."""
        key = self._keys.at(self.train.key, self._calls)
        with self._guard(), memory_errors:
            self.train, self.metric_sums, self._acting_now, *others = update(
                self.train, self.metric_sums, block, key, *rest
            )
            self._calls += 1
        return others

    def update_again(self, block: Rollout) -> None:
        """Like `update_stored`, due or not, with a block that was learnt from: nothing is counted twice.

        Steps, episodes, moments of observations and the scale of rewards are put back: only the update itself
        sees the block twice.
        """
        before, algorithm = jax.device_get(self.train.counters), self.learner.algorithm
        statistics = self._seen()
        if isinstance(algorithm, UpdateCounter):
            self.train = self.train._replace(state=algorithm.force_update(self.train.state))
        self.update_stored(block)
        counters = self.train.counters._replace(
            timesteps=jax.device_put(before.timesteps, self.device),
            episodes=jax.device_put(before.episodes, self.device),
        )

        def as_before(path: Any, now: Array) -> Array:
            return jax.device_put(statistics[path], self.device) if path in statistics else now

        state = jax.tree.map_with_path(as_before, self.train.state)
        # The conditions of the next update count from the counters that were put back.
        if isinstance(algorithm, UpdateCounter):
            state = algorithm.resumed(state, counters)
        self.train = self.train._replace(state=state, counters=counters)
        self._acting_now = None

    def _seen(self) -> dict[Any, np.ndarray]:
        """Return the moments of observations and the scale of rewards, by their place in the state."""
        names = {"reward_scale"}.union(*(model.moments for model in self.learner.algorithm.models.values()))

        def counting(key: Any) -> bool:
            return getattr(key, "name", getattr(key, "key", None)) in names

        leaves = jax.tree.leaves_with_path(self.train.state)
        return {path: np.array(leaf) for path, leaf in leaves if any(map(counting, path))}

    def advance(self, block: Rollout, carry: Tree, first: Any, noise: Tree) -> Action:
        """Learn from a block, and act on the observation after it: both in one call."""
        (action,) = self._learn(self._advance, block, carry, first, noise)
        return self._fetched(action)

    def update_segments(self, block: Rollout, actors: list[int]) -> None:
        """Learn from a block of these actors' segments; one may have two, and `n` stands for none."""
        # All or nothing: segments that were left out could not be added later.
        with self._guard(), memory_errors:
            for i, index in enumerate(actors):
                if index == self.n:
                    continue
                segment = jax.tree.map(lambda x, i=i: x[:, i : i + 1], block._replace(carry=()))
                self.train = self._add(self.train, segment, np.asarray([index], np.int32))
            self.update_stored(block, actors)

    def metrics(self, reader: str = "") -> dict[str, float]:
        """Return averages of the metrics since this reader's last call, without those that never applied."""
        sums = np.asarray(self.metric_sums)
        self.metric_sums = jnp.zeros_like(self.metric_sums)
        for each in self._unread:
            self._unread[each] = self._unread[each] + sums
        unread = self._unread.get(reader, self._unread[None])
        self._unread[reader] = np.zeros_like(unread)
        return self.learner.metrics.read(unread)

    def skipped(self) -> int:
        """Return how many gradient steps were left out, not being finite, since the last `metrics`."""
        unread = self._unread.get("", self._unread[None])
        return self.learner.metrics.skipped(unread + np.asarray(self.metric_sums))

    def counter(self, name: str) -> int:
        """Return one of the counters: timesteps, episodes, updates, rows."""
        counters = self.train.counters
        if self._known[0] is not counters:
            self._known = counters, {}
        known = self._known[1]
        if name not in known:
            known[name] = int(getattr(counters, name))
        return known[name]

    @property
    def updates(self) -> int:
        """Updates made; known without asking the device, unless the algorithm counts for itself."""
        if self._counts:
            return self.counter("updates")
        return self._before + self._calls

    def scale_lr(self, factor: float) -> tuple[float, float]:
        """Multiply the learning rate; return the old and the new one. Compiles nothing."""
        train, old, new = self.learner.scaled_lr(self.train, factor)
        self.put(train)
        return old, new
