"""Gymnasium's classic control as JAX-native environments (``jax:CartPole-v1``), equal to it step for step.

Constants, starting distributions, rewards, terminations and spaces are those of Gymnasium 1.4; arithmetic is
float32 where Gymnasium's is partly float64.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cached_property, partial

import jax
import jax.numpy as jnp
from jaxtyping import Float

from operant.envs.native.native_env import NativeEnv, TimeStep
from operant.spec.spaces import Spaces
from operant.types import Array, Arrays, Key


def _spaces(low: list[float], high: list[float], **action: object) -> Spaces:
    states = {"type": "float", "shape": (len(low),), "min_value": low, "max_value": high}
    return Spaces.read(states=states, actions=action)


def _uniform(key: Key, low: float, high: float, n: int) -> Array:
    return jax.random.uniform(key, (n,), jnp.float32, low, high)


def _clip(x: Array, low: float, high: float) -> Array:
    return jnp.minimum(jnp.maximum(x, low), high)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CartPole:
    """Keep a pole upright on a cart that is pushed left (0) or right (1).

    Barto, Sutton and Anderson 1983, "Neuronlike adaptive elements that can solve difficult learning control
    problems". The state is the observation: position (m), velocity (m/s), angle (rad), angular velocity
    (rad/s).

    Args:
        sutton_barto_reward: reward -1 at the fall and 0 before, in place of 1 for every step.
        max_episode_timesteps: time limit, 500 in v1 and 200 in v0.
    """

    sutton_barto_reward: bool = False
    max_episode_timesteps: int | None = 500

    _x_limit = 2.4
    _theta_limit = 12 * 2 * math.pi / 360

    @cached_property
    def spaces(self) -> Spaces:
        """Position and angle are bounded at twice the limits at which an episode ends."""
        high = [2 * self._x_limit, math.inf, 2 * self._theta_limit, math.inf]
        return _spaces([-h for h in high], high, type="int", shape=(), num_values=2)

    def reset(self, key: Key) -> tuple[Float[Array, " 4"], Arrays]:
        """Begin near rest: everything uniform in [-0.05, 0.05]."""
        state = _uniform(key, -0.05, 0.05, 4)
        return state, {"state": state}

    def step(
        self, state: Float[Array, " 4"], action: Arrays, key: Key
    ) -> tuple[Float[Array, " 4"], TimeStep]:
        """Push with 10 N for 0.02 s (Euler's method)."""
        gravity, mass, mass_pole, half_length, tau = 9.8, 1.1, 0.1, 0.5, 0.02
        x, x_dot, theta, theta_dot = state
        force = jnp.where(action["action"] == 1, jnp.float32(10), jnp.float32(-10))
        cos, sin = jnp.cos(theta), jnp.sin(theta)
        push = (force + mass_pole * half_length * theta_dot * theta_dot * sin) / mass
        theta_acc = (gravity * sin - cos * push) / (half_length * (4 / 3 - mass_pole * cos * cos / mass))
        x_acc = push - mass_pole * half_length * theta_acc * cos / mass
        x, theta = x + tau * x_dot, theta + tau * theta_dot
        state = jnp.stack([x, x_dot + tau * x_acc, theta, theta_dot + tau * theta_acc])
        fallen = (jnp.abs(x) > self._x_limit) | (jnp.abs(theta) > self._theta_limit)
        reward = -fallen.astype(jnp.float32) if self.sutton_barto_reward else jnp.float32(1)
        return state, TimeStep({"state": state}, reward, fallen)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Acrobot:
    """Swing the tip of a two-link arm above a line; torque -1, 0 or 1 on the joint between the links.

    Sutton 1996, "Generalization in reinforcement learning", with the equations of motion of Sutton and
    Barto's book. State: the two angles (rad) and their velocities (rad/s).
    """

    max_episode_timesteps: int | None = 500

    _velocity_limits = (4 * math.pi, 9 * math.pi)

    @cached_property
    def spaces(self) -> Spaces:
        """Cosine and sine of both angles, and both velocities."""
        high = [1.0, 1.0, 1.0, 1.0, *self._velocity_limits]
        return _spaces([-h for h in high], high, type="int", shape=(), num_values=3)

    def reset(self, key: Key) -> tuple[Float[Array, " 4"], Arrays]:
        """Begin hanging down: everything uniform in [-0.1, 0.1]."""
        state = _uniform(key, -0.1, 0.1, 4)
        return state, self._observe(state)

    def step(
        self, state: Float[Array, " 4"], action: Arrays, key: Key
    ) -> tuple[Float[Array, " 4"], TimeStep]:
        """Apply the torque for 0.2 s (one step of the fourth-order Runge-Kutta method)."""
        dt = 0.2
        torque = action["action"].astype(jnp.float32) - 1.0
        k1 = self._derivative(state, torque)
        k2 = self._derivative(state + dt / 2 * k1, torque)
        k3 = self._derivative(state + dt / 2 * k2, torque)
        k4 = self._derivative(state + dt * k3, torque)
        theta1, theta2, dtheta1, dtheta2 = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        max1, max2 = self._velocity_limits
        state = jnp.stack(
            [_wrap(theta1), _wrap(theta2), _clip(dtheta1, -max1, max1), _clip(dtheta2, -max2, max2)]
        )
        raised = -jnp.cos(state[0]) - jnp.cos(state[1] + state[0]) > 1.0
        reward = jnp.where(raised, jnp.float32(0), jnp.float32(-1))
        return state, TimeStep(self._observe(state), reward, raised)

    def _observe(self, state: Array) -> Arrays:
        theta1, theta2, dtheta1, dtheta2 = state
        parts = [jnp.cos(theta1), jnp.sin(theta1), jnp.cos(theta2), jnp.sin(theta2), dtheta1, dtheta2]
        return {"state": jnp.stack(parts)}

    def _derivative(self, state: Array, torque: Array) -> Array:
        """Return the time derivative; both links have length 1, mass 1, centre 0.5 and inertia 1."""
        g, centre, inertia = 9.8, 0.5, 1.0
        theta1, theta2, dtheta1, dtheta2 = state
        cos2, sin2 = jnp.cos(theta2), jnp.sin(theta2)
        d1 = centre**2 + (1 + centre**2 + 2 * centre * cos2) + 2 * inertia
        d2 = (centre**2 + centre * cos2) + inertia
        # cos(a - pi / 2) = sin(a)
        phi2 = centre * g * jnp.sin(theta1 + theta2)
        phi1 = (
            -centre * dtheta2 * dtheta2 * sin2
            - 2 * centre * dtheta2 * dtheta1 * sin2
            + (centre + 1) * g * jnp.sin(theta1)
            + phi2
        )
        ddtheta2 = (torque + d2 / d1 * phi1 - centre * dtheta1 * dtheta1 * sin2 - phi2) / (
            centre**2 + inertia - d2 * d2 / d1
        )
        ddtheta1 = -(d2 * ddtheta2 + phi1) / d1
        return jnp.stack([dtheta1, dtheta2, ddtheta1, ddtheta2])


def _wrap(angle: Array) -> Array:
    """Bring an angle into [-pi, pi]; angles already there stay exactly as they are."""
    wrapped = jnp.mod(angle + math.pi, 2 * math.pi) - math.pi
    return jnp.where(jnp.abs(angle) > math.pi, wrapped, angle)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pendulum:
    """Swing a pendulum up and hold it there with a torque of at most 2 Nm. It never terminates.

    State: angle (rad, 0 is up, not wrapped) and angular velocity (rad/s). `g` is gravity (m/s^2).
    """

    g: float = 10.0
    max_episode_timesteps: int | None = 200

    @cached_property
    def spaces(self) -> Spaces:
        """Cosine, sine and angular velocity; one torque."""
        high = [1.0, 1.0, 8.0]
        return _spaces([-h for h in high], high, type="float", shape=(1,), min_value=-2.0, max_value=2.0)

    def reset(self, key: Key) -> tuple[Float[Array, " 2"], Arrays]:
        """Begin with any angle and a velocity uniform in [-1, 1]."""
        state = _uniform(key, -1.0, 1.0, 2) * jnp.array([math.pi, 1.0], jnp.float32)
        return state, self._observe(state)

    def step(
        self, state: Float[Array, " 2"], action: Arrays, key: Key
    ) -> tuple[Float[Array, " 2"], TimeStep]:
        """Apply the torque for 0.05 s; the reward is minus angle^2 + 0.1 velocity^2 + 0.001 torque^2."""
        dt = 0.05
        theta, theta_dot = state
        torque = _clip(action["action"][0], -2.0, 2.0)
        from_top = jnp.mod(theta + math.pi, 2 * math.pi) - math.pi
        cost = from_top * from_top + 0.1 * theta_dot * theta_dot + 0.001 * torque * torque
        theta_dot = theta_dot + (1.5 * self.g * jnp.sin(theta) + 3.0 * torque) * dt
        theta_dot = _clip(theta_dot, -8.0, 8.0)
        state = jnp.stack([theta + theta_dot * dt, theta_dot])
        return state, TimeStep(self._observe(state), -cost, jnp.zeros((), bool))

    def _observe(self, state: Array) -> Arrays:
        theta, theta_dot = state
        return {"state": jnp.stack([jnp.cos(theta), jnp.sin(theta), theta_dot])}


def _drive(state: Array, thrust: Array) -> Array:
    """Move the mountain car under a thrust; it stops dead at the left wall."""
    position, velocity = state
    velocity = _clip(velocity + thrust - 0.0025 * jnp.cos(3 * position), -0.07, 0.07)
    position = _clip(position + velocity, -1.2, 0.6)
    velocity = jnp.where((position == jnp.float32(-1.2)) & (velocity < 0), jnp.float32(0), velocity)
    return jnp.stack([position, velocity])


def _valley(key: Key) -> tuple[Array, Arrays]:
    state = jnp.concatenate([_uniform(key, -0.6, -0.4, 1), jnp.zeros(1, jnp.float32)])
    return state, {"state": state}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MountainCar:
    """Drive an underpowered car out of a valley: push left (0), not at all (1) or right (2).

    Moore 1990, "Efficient memory-based learning for robot control". The state is the observation: position
    and velocity. Every step costs 1.

    Args:
        goal_velocity: smallest velocity with which the goal counts.
        max_episode_timesteps: time limit.
    """

    goal_velocity: float = 0.0
    max_episode_timesteps: int | None = 200

    @cached_property
    def spaces(self) -> Spaces:
        """Position and velocity."""
        return _spaces([-1.2, -0.07], [0.6, 0.07], type="int", shape=(), num_values=3)

    def reset(self, key: Key) -> tuple[Float[Array, " 2"], Arrays]:
        """Begin at rest in the valley."""
        return _valley(key)

    def step(
        self, state: Float[Array, " 2"], action: Arrays, key: Key
    ) -> tuple[Float[Array, " 2"], TimeStep]:
        """Push for one step; the goal is the position 0.5."""
        state = _drive(state, (action["action"].astype(jnp.float32) - 1.0) * 0.001)
        arrived = (state[0] >= 0.5) & (state[1] >= self.goal_velocity)
        return state, TimeStep({"state": state}, jnp.float32(-1), arrived)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MountainCarContinuous:
    """Drive an underpowered car out of a valley with a force in [-1, 1].

    Moore 1990, as `MountainCar`, also in the arguments. Reward 100 at the goal, less 0.1 force^2 for every
    step (of the force before it is clipped, as in Gymnasium).
    """

    goal_velocity: float = 0.0
    max_episode_timesteps: int | None = 999

    @cached_property
    def spaces(self) -> Spaces:
        """Position and velocity; one force."""
        return _spaces([-1.2, -0.07], [0.6, 0.07], type="float", shape=(1,), min_value=-1.0, max_value=1.0)

    def reset(self, key: Key) -> tuple[Float[Array, " 2"], Arrays]:
        """Begin at rest in the valley."""
        return _valley(key)

    def step(
        self, state: Float[Array, " 2"], action: Arrays, key: Key
    ) -> tuple[Float[Array, " 2"], TimeStep]:
        """Push for one step; the goal is the position 0.45."""
        force = action["action"][0]
        state = _drive(state, _clip(force, -1.0, 1.0) * 0.0015)
        arrived = (state[0] >= 0.45) & (state[1] >= self.goal_velocity)
        reward = jnp.where(arrived, jnp.float32(100), jnp.float32(0)) - 0.1 * force * force
        return state, TimeStep({"state": state}, reward, arrived)


NATIVE: dict[str, Callable[..., NativeEnv]] = {
    "CartPole-v0": partial(CartPole, max_episode_timesteps=200),
    "CartPole-v1": CartPole,
    "Acrobot-v1": Acrobot,
    "Pendulum-v1": Pendulum,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
}
"""The environments by Gymnasium's ids."""
