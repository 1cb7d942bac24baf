"""Values of schedules inside compiled code."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from operant.ops import prng
from operant.spec import Schedule
from operant.spec.random_streams import Purpose
from operant.types import Array, Key


def value(schedule: Schedule, step: int | Integer[Array, "*S"]) -> Float[Array, "*S"]:
    """Return the value of a schedule at a step, as float32.

    With f = step / steps, clipped to [0, 1], and an ε of its own for each step:

    ==================  ===============================================================
    constant            start
    linear              start + (end - start) f
    exponential         start (end / start)^f, or with `decay_rate` start decay_rate^(step / steps)
    inverse_time        start / (1 + decay_rate step / steps)
    polynomial          end + (start - end) (1 - f)^power
    cosine end + (start - end) (1 + cos(π f)) / 2; before it, for `warmup` of the steps, start step / warmup
    piecewise           start, then `values[i]` from step `boundaries[i]` on
    random              uniform between start and end
    ornstein_uhlenbeck  x of the step before + theta (start - x) + sigma ε, ε standard normal, from x = start
    ==================  ===============================================================

    Args:
        schedule: plain data, fixed when the code is compiled.
        step: steps so far, in the schedule's own unit; may be traced. Negative steps count as 0.
    """
    step = jnp.asarray(step)
    if schedule.type == "constant":
        return jnp.full(step.shape, schedule.start, jnp.float32)
    if schedule.type in ("random", "ornstein_uhlenbeck"):
        drawn = _uniform if schedule.type == "random" else _ornstein_uhlenbeck
        all_drawn = jax.vmap(lambda one: drawn(schedule, one))(
            jnp.maximum(step, 0).reshape(-1).astype(jnp.uint32)
        )
        return all_drawn.reshape(step.shape)
    if schedule.type == "piecewise":
        limit = int(np.iinfo(step.dtype).max)  # a boundary beyond it is never reached anyway
        boundaries = np.asarray([min(b, limit) for b in schedule.boundaries], step.dtype)
        values = jnp.asarray((schedule.start, *schedule.values), jnp.float32)
        return values[jnp.searchsorted(jnp.asarray(boundaries), step, side="right")]
    if schedule.type == "cosine":
        return _cosine(schedule, step)
    passed = jnp.maximum(step.astype(jnp.float32) / np.float32(max(schedule.steps, 1)), 0.0)
    f, start, end = jnp.minimum(passed, 1.0), schedule.start, schedule.end
    if schedule.decay_rate is not None:
        passed = jnp.floor(passed) if schedule.staircase else passed
        if schedule.type == "inverse_time":
            return start / (1.0 + schedule.decay_rate * passed)
        return start * schedule.decay_rate**passed
    if schedule.type == "linear":
        return start * (1.0 - f) + end * f
    if schedule.type == "exponential":
        return start * (end / start) ** f
    return end + (start - end) * (1.0 - f) ** schedule.power


def _cosine(schedule: Schedule, step: Array) -> Array:
    """Return half a cosine from start to end, after a linear warmup from 0 to start (Loshchilov and Hutter
    2017, without restarts).
    """
    at, warmup = step.astype(jnp.float32), np.float32(schedule.warmup)
    f = jnp.clip((at - warmup) / np.float32(schedule.steps - schedule.warmup), 0.0, 1.0)
    share = 0.5 * (1.0 + jnp.cos(jnp.float32(math.pi) * f))
    fallen = schedule.start * share + schedule.end * (1.0 - share)
    if not schedule.warmup:
        return fallen
    return jnp.where(at < warmup, schedule.start * jnp.clip(at / warmup, 0.0, 1.0), fallen)


def _root(schedule: Schedule) -> Key:
    return jax.random.fold_in(jax.random.key(schedule.seed), Purpose.SCHEDULE)


def _uniform(schedule: Schedule, step: Array) -> Array:
    """Return a uniform number that is a function of step and seed."""
    key = jax.random.fold_in(_root(schedule), step)
    return schedule.start + (schedule.end - schedule.start) * prng.uniform(key, ())


def _ornstein_uhlenbeck(schedule: Schedule, step: Array) -> Array:
    """Return the process at a step as the sum of the noise of those steps up to it that still matter: Σ (1
    - θ)^k σ ε.
    """
    keep = 1.0 - schedule.theta
    terms = 1 if keep == 0 else math.ceil(math.log(1e-3) / math.log(keep))
    ago = np.arange(terms)
    key = _root(schedule)
    keys = jax.vmap(lambda k: jax.random.fold_in(key, step - k))(jnp.asarray(ago, jnp.uint32))
    noise = jax.vmap(lambda k: jax.random.normal(k, (), jnp.float32))(keys)
    felt = jnp.where(jnp.asarray(ago, jnp.uint32) < step, noise, 0.0)
    x = schedule.start + schedule.sigma * jnp.sum(felt * jnp.asarray(keep**ago, jnp.float32))
    x = jnp.clip(x, schedule.start - schedule.spread, schedule.start + schedule.spread)
    return jnp.abs(x) if schedule.absolute else x
