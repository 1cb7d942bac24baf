"""The device driver, for JAX-native environments: acting, stepping and learning are one compiled loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, UInt

from operant.agents.base.allocation import compiled, initializer, memory_errors
from operant.agents.base.learner import Learner, TrainState, reset_carry
from operant.agents.base.protocol import fold
from operant.envs.native import native_env
from operant.envs.native.native_env import NativeEnv
from operant.envs.validation_errors import state_label
from operant.errors import EnvError
from operant.spec.random_streams import Purpose
from operant.tracking.record import EpisodeTable
from operant.training.drivers.calls_ahead import CallsAhead
from operant.training.drivers.device_mesh import Devices
from operant.training.drivers.driver import NativeDriver
from operant.training.episodes import EpisodeResult
from operant.types import Array, Arrays, Key, Rollout, Tree

CHECK_STEPS = 8192
"""Environment steps of one call (see `Driver`)."""


def accelerated() -> bool:
    """Whether the device computes while the host does something else."""
    return jax.default_backend() != "cpu"


class RunnerState(NamedTuple):
    """The environments' part of a device run: what continuing it needs beside `TrainState`."""

    actors: native_env.NativeActors
    carry: Tree
    first: Bool[Array, " N"]
    """Whether the actor begins an episode with the next row."""
    reward: Float[Array, " N"]
    """Return of the running episode."""
    length: Int[Array, " N"]


class EpisodeEnds(NamedTuple):
    """Episodes that ended, per row and actor, and values that were not finite (see `DeviceRun.collect`)."""

    ended: Bool[Array, "R N"]
    valid: Int[Array, " R"]
    """Environment steps of all actors in the row."""
    reward: Float[Array, "R N"]
    length: Int[Array, "R N"]
    fault: UInt[Array, "R N"]
    """What was not finite: 0 nothing, 1 the reward, 2 and above the components in `DeviceRun.watched`."""


class PackedEnds(NamedTuple):
    """The same next to each other, as far as there is room, for a device that is far from the host."""

    steps: Int[Array, ""]
    """Environment steps of the call."""
    number: Int[Array, ""]
    """How many episodes ended: more than `E` have no room."""
    faulty: Bool[Array, ""]
    step: Int[Array, " E"]
    """Steps of the call until the episode ended."""
    reward: Float[Array, " E"]
    length: Int[Array, " E"]
    actor: Int[Array, " E"]

    @classmethod
    def of(cls, ends: EpisodeEnds) -> PackedEnds:
        """Pack ends `[blocks, rows, N]`: room is for one in eight, which is more than most games need."""
        ended, n = ends.ended.reshape(-1), ends.ended.shape[-1]
        steps = jnp.cumsum(ends.valid.reshape(-1), dtype=jnp.int32)
        (place,) = jnp.nonzero(ended, size=min(max(64, ended.size // 8), ended.size), fill_value=0)
        place = place.astype(jnp.int32)
        reward, length = ends.reward.reshape(-1)[place], ends.length.reshape(-1)[place]
        faulty, number = jnp.any(ends.fault != 0), jnp.sum(ended, dtype=jnp.int32)
        return cls(steps[-1], number, faulty, steps[place // n], reward, length, place % n)

    @property
    def suffices(self) -> bool:
        """Whether this is all that the host needs to know."""
        return not self.faulty and int(self.number) <= len(self.step)


class DeviceRun:
    """Pure functions of one run on a native environment: `begin` and `iterate`."""

    def __init__(self, learner: Learner, env: NativeEnv, n: int) -> None:
        self.learner = learner
        self.env = env
        self.n = n
        self.packs = accelerated()
        """Whether the ends of episodes are packed for their way to the host."""
        leaves = learner.algorithm.spaces.states.components
        self.watched = [
            name for name, leaf in leaves.items() if leaf.storage.kind != "b" and not leaf.full_range
        ]
        """Components of the state that could be NaN, infinite or outside their space."""

    def begin(self, key: Key) -> RunnerState:
        """Start the environments of a run with this key."""
        actors = native_env.start(self.env, fold(key, Purpose.ENV), self.n)
        carry = self.learner.algorithm.initial_carry(self.n)
        n = self.n
        return RunnerState(
            actors, carry, jnp.ones(n, bool), jnp.zeros(n, jnp.float32), jnp.zeros(n, jnp.int32)
        )

    def restart(self, key: Key, rows: Array, last: Arrays) -> RunnerState:
        """Begin new episodes after one more row, number `rows`, that closes the open ones with `last`."""
        world = self.begin(key)
        actors = world.actors._replace(
            observation=last, ended=jnp.ones(self.n, bool), row=rows + jnp.uint32(1)
        )
        return world._replace(actors=actors)

    def iterate(
        self, train: TrainState, world: RunnerState, count: Array, limit: int
    ) -> tuple[TrainState, RunnerState, tuple[EpisodeEnds | PackedEnds, Array], EpisodeEnds | None]:
        """Run `count` blocks (at most `limit`): collect, learn; episodes' ends have an axis of blocks first.

        `count` is an argument, not a shape: running fewer blocks at the end compiles nothing.

        Returns:
            The state; ends and sums of metrics, for the host; the ends that the former were packed from.
        """
        shape = (limit, self.learner.rows, self.n)
        ends = EpisodeEnds(
            jnp.zeros(shape, bool),
            jnp.zeros(shape[:2], jnp.int32),
            jnp.zeros(shape, jnp.float32),
            jnp.zeros(shape, jnp.int32),
            jnp.zeros(shape, jnp.uint16),
        )

        # All randomness of the call at once: hashing keys one at a time would cost more than small updates.
        before = train.counters
        rows = before.rows + jnp.arange(limit * self.learner.rows, dtype=jnp.uint32)
        noise = jax.vmap(lambda row: self.learner.noise(train.key, row, self.n))(rows)
        noise = jax.tree.map(lambda x: x.reshape(limit, -1, *x.shape[1:]), noise)
        calls = before.rows // jnp.uint32(self.learner.rows) + jnp.arange(limit, dtype=jnp.uint32)
        keys = jax.vmap(lambda call: jax.random.key_data(self.learner.update_key(train.key, call)))(calls)
        impl = jax.random.key_impl(train.key)
        env_key = fold(train.key, Purpose.ENV)
        # Values from a row that are not finite are caught in that row; the first observations of a run come
        # from no row.
        actors, begun = world.actors, self._faults(world.actors.observation)
        world = world._replace(actors=self._cut(actors, actors.ended | (begun > 0)))

        def one(
            i: Array, carry: tuple[TrainState, RunnerState, Array, EpisodeEnds]
        ) -> tuple[TrainState, RunnerState, Array, EpisodeEnds]:
            train, world, meter, ends = carry
            block_noise = jax.tree.map(lambda x: x[i], noise)
            block, world, ended = self.collect(train, world, block_noise, env_key)
            key = jax.random.wrap_key_data(keys[i], impl=impl)
            train, metrics = self.learner.update(train, block, key)
            meter = self.learner.metrics.add(meter, metrics)
            ends = jax.tree.map(lambda all_, x: all_.at[i].set(x), ends, ended)
            return train, world, meter, ends

        meter = self.learner.metrics.zeros()
        train, world, meter, ends = jax.lax.fori_loop(0, count, one, (train, world, meter, ends))
        fault = ends.fault.at[0, 0].set(jnp.where(begun > 0, begun, ends.fault[0, 0]))
        ends = ends._replace(fault=fault)
        report = PackedEnds.of(ends) if self.packs else ends
        return train, world, (report, meter), ends if self.packs else None

    def collect(
        self, train: TrainState, world: RunnerState, noise: Tree, env_key: Key
    ) -> tuple[Rollout, RunnerState, EpisodeEnds]:
        """Collect one block with the current parameters.

        A row whose step gives a value that is not finite becomes that of its episode's last observation: its
        action does not count, so earlier rows bootstrap from what was seen before the fault. The next row
        begins another episode.
        """
        learner = self.learner
        acting = learner.acting(train)
        carry = reset_carry(learner.algorithm, world.carry, world.first)

        def row(world: RunnerState, noise: Tree) -> tuple[RunnerState, tuple[Any, ...]]:
            before = world.actors
            action = learner.act(acting, before.observation, world.carry, world.first, noise, explore=True)
            actors, after = native_env.step(self.env, before, learner.emit(action.action), env_key)
            fault = self._faults(after.observation, after.reward)
            sound = fault == 0
            valid = ~before.ended & sound
            actors = self._cut(actors, actors.ended | ~sound)
            reward = world.reward + after.reward
            length = world.length + (~before.ended).astype(jnp.int32)
            ends = EpisodeEnds(actors.ended & sound, jnp.sum(valid, dtype=jnp.int32), reward, length, fault)
            goes_on = ~actors.ended
            world = RunnerState(
                actors, action.carry, ~valid, jnp.where(goes_on, reward, 0.0), jnp.where(goes_on, length, 0)
            )
            parts = (
                before.observation, action.action, jnp.where(sound, after.reward, 0.0),
                after.terminated & sound, after.truncated & sound, valid, action.extras,
            )  # fmt: skip
            return world, (parts, ends)

        world, (parts, ends) = jax.lax.scan(row, world._replace(carry=carry), noise)
        observation, action, reward, terminated, truncated, valid, extras = parts
        observation = jax.tree.map(
            lambda x, last: jnp.concatenate([x, last[None]]), observation, world.actors.observation
        )
        block = Rollout(observation, action, reward, terminated, truncated, valid, extras, carry)
        return block, world, ends

    def _faults(self, observation: Arrays, reward: Float[Array, " N"] | None = None) -> UInt[Array, " N"]:
        fault = jnp.zeros(self.n, jnp.uint16)
        if reward is not None:
            fault = (~jnp.isfinite(reward)).astype(jnp.uint16)
        for code, name in enumerate(self.watched, start=2):
            x = observation[name]
            bad = ~jnp.all(self._sound(name, x), axis=tuple(range(1, x.ndim)))
            fault = jnp.where((fault == 0) & bad, jnp.uint16(code), fault)
        return fault

    def _sound(self, name: str, x: Array) -> Bool[Array, "..."]:
        """Return which numbers of a component the space admits (see `Leaf.tolerated`); NaN is none."""
        leaf = self.learner.algorithm.spaces.states.components[name]
        low, high = leaf.tolerated if leaf.storage.kind == "f" else leaf.stored_limits
        return (x >= jnp.broadcast_to(low, x.shape)) & (x <= jnp.broadcast_to(high, x.shape))

    def _cut(self, actors: native_env.NativeActors, ended: Bool[Array, " N"]) -> native_env.NativeActors:
        """Let these actors begin another episode with the next row, with 0 for what is not of their space."""
        observation = dict(actors.observation)
        for name in self.watched:
            x = observation[name]
            observation[name] = jnp.where(self._sound(name, x), x, jnp.zeros((), x.dtype))
        return actors._replace(observation=observation, ended=ended)

    def finished(
        self, ends: EpisodeEnds | PackedEnds, unpacked: Callable[[], EpisodeEnds], step: int, name: str
    ) -> tuple[EpisodeTable[EpisodeResult], int, str | None]:
        """Return the episodes that ended in a call, the step after it, and what was not of its space.

        Args:
            ends: those of the call's report, on the host.
            unpacked: fetches what they were packed from.
            step: environment steps before the call.
            name: of the environment, for messages.
        """
        if isinstance(ends, PackedEnds):
            if ends.suffices:
                number = int(ends.number)
                columns = ends.step + np.int64(step), ends.reward, ends.length, ends.actor
                return _table(*(x[:number].copy() for x in columns)), step + int(ends.steps), None
            ends = unpacked()
        return *finished_episodes(ends, step), self.fault(ends, name)

    def fault(self, ends: EpisodeEnds, name: str) -> str | None:
        """Describe the first value that is not of its space, if any; `ends`: leaves `[blocks, rows, ...]`."""
        if not ends.fault.any():
            return None
        faults, reward, length = (x.reshape(-1, self.n) for x in (ends.fault, ends.reward, ends.length))
        row, actor = (int(i) for i in np.argwhere(faults)[0])
        code, step = int(faults[row, actor]), int(length[row, actor])
        spaces = self.learner.algorithm.spaces
        what, must, received = "reward", "finite", f"{reward[row, actor]}"
        if code > 1:
            leaf, what = (
                spaces.states.components[self.watched[code - 2]],
                state_label(spaces, self.watched[code - 2]),
            )
            must, received = "finite, and not far outside its bounds", "nan, inf or such a number"
            if leaf.storage.kind != "f":
                must, received = f"one of {leaf.num_values or 'the'} values of its space", "another number"
        when = f" (step {step} of its episode)" if step else " (at a reset)"
        return (
            f"Environment {actor} of {name!r}{when}: The {what} must be {must}. Received: {received}. Look "
            "for a division by zero, a root or logarithm of what may be negative, and what grows without "
            "bound; operant.envs.check_env tries random actions."
        )


class DeviceDriver(NativeDriver):
    """One run of `n` actors on a native environment, for the training loop; the name is for messages.

    The actors and the work on their experience are spread over the devices. `train` is the learning state, if
    there is one already.

    Raises:
        SpecError: the actors cannot be divided evenly among the devices.
    """

    def __init__(
        self,
        learner: Learner,
        env: NativeEnv,
        n: int,
        key: Key,
        devices: Devices | None = None,
        train: TrainState | None = None,
        name: str = "",
    ) -> None:
        super().__init__(learner, n, CHECK_STEPS)
        self.name = name or type(env).__name__
        self.devices = Devices() if devices is None else devices
        self.devices.divide(n, "n_envs")
        self.loop = DeviceRun(learner, env, n)
        if train is None:
            arguments = key, learner.hyper()
            copies = self.devices.size if jax.default_backend() == "cpu" else 1  # which share its memory
            train = initializer(learner, n, learner.init, *arguments, copies=copies)(*arguments)
        self.put(train)
        self.world = jax.jit(self.loop.begin)(key)
        self.processes = self.devices.processes
        alone = self.devices.size == self.processes == 1
        self.loop.packs &= alone
        # Two states of a replay memory would have no room; on a CPU, the host's work is the device's.
        self.calls = CallsAhead(ahead=self.loop.packs and not learner.replays)
        self._compiled: dict[bool, Any] = {}

    @property
    def goes_ahead(self) -> bool:
        """Whether the next call may begin before the last one is booked."""
        return self.calls.ahead

    @property
    def world(self) -> RunnerState:
        """The environments' part of the run."""
        return self._world

    @world.setter
    def world(self, world: RunnerState) -> None:
        self._world: RunnerState = self.devices.shared(world, self.loop.n)

    def agree(self, seconds: float, flag: bool) -> tuple[float, bool]:
        """Return seconds and a flag as they hold for all processes of the run."""
        return self.devices.agree(seconds, flag)

    def compile(self) -> Any:
        """Return the compiled loop; the first call compiles it."""
        ahead = self.calls.ahead
        if ahead not in self._compiled:
            loop = functools.partial(self.loop.iterate, limit=self.blocks)
            arguments = (self.train, self.world, np.int32(0))
            with self.devices.mesh():
                jitted = self.devices.jit(loop, arguments, 2, donate=not ahead)
                self._compiled[ahead] = compiled(jitted, arguments)
        return self._compiled[ahead]

    def advance(self, blocks: int, ahead: int = 0) -> EpisodeTable[EpisodeResult]:
        """Run that many blocks (at most `self.blocks`); return the episodes that ended, in order of time.

        Values that are not finite are an EnvError; other rows are learnt from, and new episodes
        begin.
        """
        self.unreported = ()
        state, blocks, ahead = (self.train, self._world), min(blocks, self.blocks), min(ahead, self.blocks)
        call = self.calls.advance(self.compile(), state, blocks, ahead)
        self.train, self._world = call.state
        with memory_errors:
            ends, meter = jax.device_get(call.report)
        self.meter += meter
        unpacked = functools.partial(jax.device_get, call.kept)
        finished, self.step, fault = self.loop.finished(ends, unpacked, self.step, self.name)
        if fault is not None:
            self.unreported = finished
            if self.processes == 1:  # of several, none saves after a failure
                self.begin_anew(self.loop.restart)
            raise EnvError(fault)
        return finished

    def settle(self) -> None:
        """Release a call that was begun in vain."""
        self.calls.forget()

    def snapshot(self) -> dict[str, Any]:
        """Return the environments' part of what is needed to continue."""
        return {"world": self.devices.gathered(self.world)}

    def put(self, train: TrainState) -> None:
        """Replace the learning state, before the run begins."""
        self.train = self.devices.everywhere(train)

    @property
    def last(self) -> Any:
        """Observations after the last row, `[N, ...]`."""
        return jax.device_get(self.world.actors.observation)

    def forget(self) -> None:
        """Release all state; only `restore` puts another in its place."""
        self.settle()
        del self.train, self._world

    def scale_lr(self, factor: float) -> tuple[float, float]:
        """Multiply the learning rate; compiles nothing."""
        self.train, old, new = self.learner.scaled_lr(self.train, factor)
        return old, new


def finished_episodes(ends: EpisodeEnds, step: int) -> tuple[EpisodeTable[EpisodeResult], int]:
    """Return the episodes that ended and the step after them; leaves of `ends` are `[blocks, rows, ...]`."""
    ended, valid, reward, length = (x.reshape(-1, *x.shape[2:]) for x in ends[:4])
    steps = step + np.cumsum(valid, dtype=np.int64)
    rows, actors = np.divmod(np.flatnonzero(ended), ended.shape[-1])
    return _table(steps[rows], reward[rows, actors], length[rows, actors], actors), int(steps[-1])


def _table(*columns: Any) -> EpisodeTable[EpisodeResult]:
    return EpisodeTable(EpisodeResult, dict(zip(EpisodeResult._fields, columns, strict=False)))
