"""What a worker and its parent exchange: messages of a few bytes, and arrays in memory that both map."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from operant.spec.spaces import Spaces

RESET, STEP, RESTART, CLOSE = b"r", b"s", b"n", b"c"
"""First byte of a request."""
OK, FAULT = b"k", b"e"
"""First byte of its answer."""
_ROWS = {"terminal": np.uint8, "reward": np.float64, "parallel": np.int32}
"""What a worker answers besides observations, `[N]` each: 0, 1 (terminated) or 2 (truncated); the reward;
and, of an environment of several actors, which are still running."""
_NUMBERS = ("acted", "running", "observed", "seconds", "return")
"""What an environment of its own answers, one number each: how many actors acted, how many are still running,
and of how many there are states; how long the environment computed; the return that it reports itself, or
NaN."""


class SharedArrays:
    """Arrays of `n` environments or actors of these spaces in memory that processes share.

    They are in the file of the descriptor, which gets its size with `create`, and include values of `info`
    with the names `info_keywords`.
    """

    def __init__(
        self,
        spaces: Spaces,
        n: int,
        descriptor: int,
        info_keywords: Sequence[str] = (),
        *,
        create: bool = False,
    ) -> None:
        shapes: dict[tuple[str, str], tuple[tuple[int, ...], Any]] = {}
        shapes |= {("field", name): ((n,), dtype) for name, dtype in _ROWS.items()}
        shapes |= {("field", name): ((1,), np.float64) for name in _NUMBERS}
        shapes |= {("info", name): ((n,), np.float64) for name in info_keywords}
        for group, leaves in (
            ("observation", spaces.observation_components),
            ("action", spaces.actions.components),
        ):
            shapes |= {(group, name): ((n, *leaf.shape), leaf.storage) for name, leaf in leaves.items()}
        offsets: dict[tuple[str, str], int] = {}
        size = 0
        for key, (shape, dtype) in shapes.items():
            offsets[key] = size
            size += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 64) * 64
        if create:
            os.ftruncate(descriptor, size)
        memory = mmap.mmap(descriptor, size)
        groups: dict[str, dict[str, np.ndarray]] = {
            group: {} for group in ("field", "info", "observation", "action")
        }
        for (group, name), (shape, dtype) in shapes.items():
            groups[group][name] = np.ndarray(shape, dtype, memory, offsets[group, name])
        self.fields, self.infos = groups["field"], groups["info"]
        self.observation, self.action = groups["observation"], groups["action"]
