"""Values of schedules inside compiled code."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from operant.spec import Schedule
from operant.types import Array


def value(schedule: Schedule, step: int | Integer[Array, "*S"]) -> Float[Array, "*S"]:
    """Return what a schedule is worth at a step, as float32.

    With f = step / steps, held within [0, 1]:

    ============  =====================================================================
    constant      start
    linear        start + (end - start) f
    exponential   start (end / start)^f
    polynomial    end + (start - end) (1 - f)^power
    piecewise     start, then `values[i]` from step `boundaries[i]` on
    ============  =====================================================================

    Args:
        schedule: plain data, fixed when the code is compiled.
        step: steps so far, in the schedule's own unit; may be traced. Negative steps count as 0.
    """
    step = jnp.asarray(step)
    if schedule.type == "constant":
        return jnp.full(step.shape, schedule.start, jnp.float32)
    if schedule.type == "piecewise":
        limit = int(np.iinfo(step.dtype).max)  # a boundary beyond it is never reached anyway
        boundaries = np.asarray([min(b, limit) for b in schedule.boundaries], step.dtype)
        values = jnp.asarray((schedule.start, *schedule.values), jnp.float32)
        return values[jnp.searchsorted(jnp.asarray(boundaries), step, side="right")]
    f = jnp.clip(step.astype(jnp.float32) / schedule.steps, 0.0, 1.0)
    start, end = schedule.start, schedule.end
    if schedule.type == "linear":
        return start * (1.0 - f) + end * f
    if schedule.type == "exponential":
        return start * (end / start) ** f
    return end + (start - end) * (1.0 - f) ** schedule.power
