"""Probe environments: the smallest tasks that each test one thing an agent must get right.

Every probe knows the value of its best policy and its best action, so a test can compare an agent's estimates
with numbers instead of waiting for a curve to rise. They are ordered: an agent that fails one will fail those
after it for the same reason. After Jones, "Debugging reinforcement learning systems", 2020.

===========================  =================================================================
`probe/constant`             the value network and its loss
`probe/observation`          the observation reaches the value network
`probe/discount`             bootstrapping and discounting
`probe/action`               the policy's update
`probe/observation-action`   action and advantage belong to the same row
`probe/time-limit`           truncation is no termination
`probe/mask`                 forbidden actions are neither taken nor bootstrapped from
`probe/memory`               the recurrent state, its resets and its replay
`probe/hybrid`               several actions of several kinds, nested
===========================  =================================================================

Those with a continuous twin have it under the same id with ``-continuous``: one action in [-1, 1] that pays
``1 - 4 (action - target)^2``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from operant.envs.native.native_env import NativeEnv, TimeStep
from operant.errors import value_error, whole
from operant.spec.spaces import Spaces
from operant.types import Array, Arrays, Key


class Probe(NativeEnv, Protocol):
    """A native environment with known answers. Observations may have any leading axes `...`."""

    def expected_value(self, observation: Arrays, gamma: float) -> Float[Array, "..."]:
        """Return the discounted return of the best policy from an observation on which an action is taken."""

    def best_action(self, observation: Arrays, first: Arrays | None = None) -> Arrays:
        """Return the best action (or one of several) on an observation.

        `first` is the first observation of the episode, which `probe/memory` needs and others ignore.
        """


_BOUNDED: dict[str, Any] = {"type": "float", "shape": (), "min_value": -1.0, "max_value": 1.0}


def _floats(n: int) -> dict[str, Any]:
    return {**_BOUNDED, "shape": (n,)}


def _ints(n: int) -> dict[str, Any]:
    return {"type": "int", "shape": (), "num_values": n}


def _sign(key: Key) -> Float[Array, " 1"]:
    return jax.random.rademacher(key, (1,), jnp.float32)


def _near(action: Array, target: Array) -> Array:
    miss = action - target
    return 1.0 - 4.0 * miss * miss


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OneAction:
    """What most probes share: one action, which should follow a number `wanted` in -1..1.

    A discrete action follows it by its sign (1 for above 0) and pays 1 or -1, a continuous one by being half
    of it. By default the observation is a constant 0, the action has no effect, and the value is 1.
    """

    continuous: bool = False
    max_episode_timesteps: int | None = None

    _num_values = 1
    _num_states = 1

    @cached_property
    def spaces(self) -> Spaces:
        action = _BOUNDED if self.continuous else _ints(self._num_values)
        return Spaces.read(states=_floats(self._num_states), actions=action)

    def reset(self, key: Key) -> tuple[Any, Arrays]:
        state = jnp.zeros(1, jnp.float32)
        return state, {"state": state}

    def expected_value(self, observation: Arrays, gamma: float) -> Float[Array, "..."]:
        return jnp.ones_like(observation["state"][..., 0])

    def best_action(self, observation: Arrays, first: Arrays | None = None) -> Arrays:
        """Return the action that pays most (0 where all are alike)."""
        wanted = self._wanted(observation, first)
        return {"action": 0.5 * wanted if self.continuous else (wanted > 0).astype(jnp.int32)}

    def _wanted(self, observation: Arrays, first: Arrays | None) -> Array:
        return jnp.zeros_like(observation["state"][..., 0])

    def _pay(self, action: Arrays, wanted: Array) -> Array:
        if self.continuous:
            return _near(action["action"], 0.5 * wanted)
        return jnp.where((action["action"] == 1) == (wanted > 0), jnp.float32(1), jnp.float32(-1))


class ConstantProbe(_OneAction):
    """One row, one observation, reward 1 whatever is done (there is one discrete action). Value 1."""

    def step(self, state: Array, action: Arrays, key: Key) -> tuple[Array, TimeStep]:
        """Pay 1 and end."""
        return state, TimeStep({"state": state}, jnp.float32(1), jnp.ones((), bool))


class ObservationProbe(_OneAction):
    """One row, an observation of -1 or 1, which is also the reward. Value: the observation."""

    def reset(self, key: Key) -> tuple[Array, Arrays]:
        """Show a random sign."""
        sign = _sign(key)
        return sign, {"state": sign}

    def step(self, state: Array, action: Arrays, key: Key) -> tuple[Array, TimeStep]:
        """Pay the sign and end."""
        return state, TimeStep({"state": state}, state[0], jnp.ones((), bool))

    def expected_value(self, observation: Arrays, gamma: float) -> Float[Array, "..."]:
        """Return the observation."""
        return observation["state"][..., 0]


class DiscountProbe(_OneAction):
    """Two rows, observations 0 and 1, reward 1 at the second. Values gamma and 1."""

    def step(self, state: Array, action: Arrays, key: Key) -> tuple[Array, TimeStep]:
        """Go on to 1, then pay 1 and end."""
        following = jnp.ones(1, jnp.float32)
        return following, TimeStep({"state": following}, state[0], state[0] > 0)

    def expected_value(self, observation: Arrays, gamma: float) -> Float[Array, "..."]:
        """Return gamma at 0 and 1 at 1."""
        return jnp.where(observation["state"][..., 0] > 0, jnp.float32(1), jnp.float32(gamma))


class ActionRewardProbe(_OneAction):
    """One row, one observation; action 1 pays 1 and action 0 pays -1, or 0.5 is the target. Value 1."""

    _num_values = 2

    def step(self, state: Array, action: Arrays, key: Key) -> tuple[Array, TimeStep]:
        """Pay for the action and end."""
        return state, TimeStep({"state": state}, self._pay(action, jnp.float32(1)), jnp.ones((), bool))

    def _wanted(self, observation: Arrays, first: Arrays | None) -> Array:
        return jnp.ones_like(observation["state"][..., 0])


class ObservationActionProbe(_OneAction):
    """One row. The action must have the observation's sign (1 for 1, 0 for -1), or be half of it. Value 1."""

    _num_values = 2

    def reset(self, key: Key) -> tuple[Array, Arrays]:
        """Show a random sign."""
        sign = _sign(key)
        return sign, {"state": sign}

    def step(self, state: Array, action: Arrays, key: Key) -> tuple[Array, TimeStep]:
        """Pay for the action and end."""
        return state, TimeStep({"state": state}, self._pay(action, state[0]), jnp.ones((), bool))

    def _wanted(self, observation: Arrays, first: Arrays | None) -> Array:
        return observation["state"][..., 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TruncationProbe(_OneAction):
    """Reward 1 for ever, one observation, episodes truncated. Value 1 / (1 - gamma).

    Were truncation taken for termination, the value would be a mean of (1 - gamma^k) / (1 - gamma) over the
    rows left, k from 1 to `max_episode_timesteps`.
    """

    max_episode_timesteps: int | None = 4

    def step(self, state: Array, action: Arrays, key: Key) -> tuple[Array, TimeStep]:
        """Pay 1 and go on."""
        return state, TimeStep({"state": state}, jnp.float32(1), jnp.zeros((), bool))

    def expected_value(self, observation: Arrays, gamma: float) -> Float[Array, "..."]:
        """Return 1 / (1 - gamma)."""
        return jnp.full_like(observation["state"][..., 0], 1 / (1 - gamma))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryProbe(_OneAction):
    """A sign is shown at the first row only and asked for `delay` rows later. Value gamma^(rows left).

    The observation is (sign or 0, elapsed / delay). Actions before the last row do nothing; the last is paid
    as in `ObservationActionProbe`. Without memory no policy gets more than 0 on average (the discrete one
    guesses, the continuous one answers 0).

    Args:
        delay: rows from the sign to the question.
    """

    delay: int = 3

    _num_values = 2
    _num_states = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay", whole("delay", self.delay))

    def reset(self, key: Key) -> tuple[tuple[Array, Array], Arrays]:
        """Show a random sign."""
        sign = _sign(key)[0]
        return (sign, jnp.zeros((), jnp.int32)), {"state": jnp.stack([sign, jnp.float32(0)])}

    def step(
        self, state: tuple[Array, Array], action: Arrays, key: Key
    ) -> tuple[tuple[Array, Array], TimeStep]:
        """Wait, or pay for the answer and end."""
        sign, elapsed = state
        asked = elapsed == self.delay
        reward = jnp.where(asked, self._pay(action, sign), jnp.float32(0))
        elapsed = jnp.minimum(elapsed + 1, self.delay)
        observation = jnp.stack([jnp.float32(0), elapsed.astype(jnp.float32) / self.delay])
        return (sign, elapsed), TimeStep({"state": observation}, reward, asked)

    def expected_value(self, observation: Arrays, gamma: float) -> Float[Array, "..."]:
        """Return gamma to the power of the rows before the question."""
        return jnp.float32(gamma) ** jnp.round(self.delay * (1 - observation["state"][..., 1]))

    def _wanted(self, observation: Arrays, first: Arrays | None) -> Array:
        if first is None:
            raise value_error(
                "first", "the first observation of the episode", first, "Only it shows the sign."
            )
        return jnp.broadcast_to(first["state"][..., 0], observation["state"].shape[:-1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskProbe:
    """Two rows; every legal action costs, the forbidden one costs most. Values -1 - gamma and -1.

    =====  =========  =========  =========
    state  action 0   action 1   action 2
    =====  =========  =========  =========
    0      -2         **-1**     forbidden
    1      forbidden  -2         **-1**
    =====  =========  =========  =========

    A forbidden action pays -10. An agent that obeys the mask never learns that, so its estimate for it stays
    near 0, the best-looking of all: one that takes a maximum over forbidden actions gives itself away by a
    value near -1 in state 0.
    """

    max_episode_timesteps: int | None = None

    @cached_property
    def spaces(self) -> Spaces:
        """The number of the row; three actions and their mask."""
        states = {"state": _floats(1), "action_mask": {"type": "bool", "shape": (3,)}}
        return Spaces.read(states=states, actions=_ints(3))

    def reset(self, key: Key) -> tuple[Int[Array, ""], Arrays]:
        """Begin in state 0."""
        return jnp.zeros((), jnp.int32), self._observe(jnp.zeros((), jnp.int32))

    def step(self, state: Int[Array, ""], action: Arrays, key: Key) -> tuple[Int[Array, ""], TimeStep]:
        """Go on to state 1, then end."""
        reward = jnp.array([[-2, -1, -10], [-10, -2, -1]], jnp.float32)[state, action["action"]]
        following = jnp.ones((), jnp.int32)
        return following, TimeStep(self._observe(following), reward, state == 1)

    def expected_value(self, observation: Arrays, gamma: float) -> Float[Array, "..."]:
        """Return -1 - gamma in state 0 and -1 in state 1."""
        return jnp.where(observation["state"][..., 0] > 0, jnp.float32(-1), jnp.float32(-1 - gamma))

    def best_action(self, observation: Arrays, first: Arrays | None = None) -> Arrays:
        """Return 1 in state 0 and 2 in state 1."""
        return {"action": 1 + (observation["state"][..., 0] > 0).astype(jnp.int32)}

    def _observe(self, state: Array) -> Arrays:
        legal = jnp.array([[True, True, False], [False, True, True]])
        return {"state": state.astype(jnp.float32)[None], "action_mask": legal[state]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HybridProbe:
    """One row, nested observations, three actions, each paid for separately. Value 3.

    The integer ``move/gear`` must equal the observation ``level``, the number ``move/throttle`` must be half
    of ``side`` and the switch ``brake`` must be on where ``side`` is 1.
    """

    max_episode_timesteps: int | None = None

    @cached_property
    def spaces(self) -> Spaces:
        """An integer and a sign; an integer, a bounded number and a switch."""
        states = {"level": _ints(3), "road": {"side": _floats(1)}}
        actions = {"move": {"gear": _ints(3), "throttle": _BOUNDED}, "brake": {"type": "bool", "shape": ()}}
        return Spaces.read(states=states, actions=actions)

    def reset(self, key: Key) -> tuple[Arrays, Arrays]:
        """Show a random level and a random sign."""
        key_level, key_side = jax.random.split(key)
        observation = {
            "level": jax.random.randint(key_level, (), 0, 3, jnp.int32),
            "road/side": _sign(key_side),
        }
        return observation, observation

    def step(self, state: Arrays, action: Arrays, key: Key) -> tuple[Arrays, TimeStep]:
        """Pay for the actions and end."""
        level, side = state["level"], state["road/side"][0]
        gear = (action["move/gear"] == level).astype(jnp.float32)
        brake = (action["brake"] == (side > 0)).astype(jnp.float32)
        return state, TimeStep(
            state, gear + _near(action["move/throttle"], 0.5 * side) + brake, jnp.ones((), bool)
        )

    def expected_value(self, observation: Arrays, gamma: float) -> Float[Array, "..."]:
        """Return 3."""
        return jnp.full_like(observation["road/side"][..., 0], 3)

    def best_action(self, observation: Arrays, first: Arrays | None = None) -> Arrays:
        """Return what the observation asks for."""
        side = observation["road/side"][..., 0]
        return {"move/gear": observation["level"], "move/throttle": 0.5 * side, "brake": side > 0}


def _both(name: str, probe: Callable[..., Probe]) -> dict[str, Callable[..., Probe]]:
    return {f"probe/{name}": probe, f"probe/{name}-continuous": partial(probe, continuous=True)}


PROBES: dict[str, Callable[..., Probe]] = {
    **_both("constant", ConstantProbe),
    **_both("observation", ObservationProbe),
    **_both("discount", DiscountProbe),
    **_both("action", ActionRewardProbe),
    **_both("observation-action", ObservationActionProbe),
    **_both("time-limit", TruncationProbe),
    "probe/mask": MaskProbe,
    **_both("memory", MemoryProbe),
    "probe/hybrid": HybridProbe,
}
"""The probes by id."""
