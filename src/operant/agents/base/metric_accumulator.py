"""Metrics summed over gradient steps or updates, as one array that compiled loops carry."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from operant.types import Array, Metrics

METRIC_SLOTS = 32
"""Maximal number of metrics that an update may report."""
STEP_COUNTS = ("update/skipped", "update/steps")
"""Metrics that count gradient steps: summed over those of an update, while others are averaged."""
SUMMED = ("update/skipped",)
"""Metrics that are summed over updates too: so one skipped step in a thousand shows."""


class MetricAccumulator:
    """Sums of metrics, and how often each applied: NaN means that a metric does not apply.

    The sums are an array of one shape for any metrics, whose names are noted when `add` is traced.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()

    def zeros(self) -> Float[Array, "2 M"]:
        """Return sums and counts before the first metrics."""
        return jnp.zeros((2, METRIC_SLOTS), jnp.float32)

    def add(self, sums: Float[Array, "2 M"], metrics: Metrics) -> Float[Array, "2 M"]:
        """Add scalars, at most `METRIC_SLOTS`, always of the same names."""
        if not metrics:
            return sums
        self.names = self.names or tuple(metrics)
        values = jnp.stack([jnp.asarray(metrics[name], jnp.float32) for name in self.names])
        applies = ~jnp.isnan(values)
        counted = jnp.stack([jnp.where(applies, values, 0.0), applies.astype(jnp.float32)])
        return sums.at[:, : len(self.names)].add(counted)

    def means(self, sums: Float[Array, "2 M"]) -> Metrics:
        """Return each metric's mean over the steps it applies to (NaN: none), of `STEP_COUNTS` the sum."""
        columns = {name: sums[:, i] for i, name in enumerate(self.names)}
        return {name: x[0] if name in STEP_COUNTS else x[0] / x[1] for name, x in columns.items()}

    def read(self, sums: np.ndarray) -> dict[str, float]:
        """Return averages over updates, sums for `SUMMED`, without metrics that never applied."""
        columns = zip(self.names, *sums, strict=False)
        return {k: float(t if k in SUMMED else t / c) for k, t, c in columns if c > 0}

    def skipped(self, sums: np.ndarray) -> int:
        """Return how many gradient steps were left out for not being finite."""
        return int(self.read(sums).get("update/skipped", 0.0))
