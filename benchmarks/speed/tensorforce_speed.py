"""Tensorforce's Runner, with Python 3.8 (benchmarks/requirements-predecessors.txt)."""

from __future__ import annotations

from collections.abc import Callable

import tensorforce
from measure import main
from specified import runner
from workloads import Workload


def prepare(workload: Workload, steps: int) -> Callable[[], int]:
    return runner(tensorforce, workload, steps, "gym")


if __name__ == "__main__":
    main("tensorforce", ("tensorforce", "tensorflow", "gym", "numpy"), prepare)
