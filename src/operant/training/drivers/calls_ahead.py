"""Calls of a compiled loop, the next of which is under way while the host looks at what the last returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from operant.agents.base.allocation import memory_errors
from operant.errors import BackendError
from operant.types import Tree

Loop: TypeAlias = Callable[..., tuple[Any, ...]]
"""(*state, blocks) to (*state, report, kept)."""


class Call(NamedTuple):
    """A call that was begun: what it began from, and what it will return."""

    start: tuple[Tree, ...]
    blocks: int
    state: tuple[Tree, ...]
    report: Tree
    kept: Tree


class CallsAhead:
    """Makes calls one after the other; with `ahead`, the next one before the results of the last are read.

    A device that has a call to go on with does not wait for the host. Nothing that is learnt depends on it:
    a call made too early, since the run ended or its state was replaced in between, is not used.

    Where `ahead` is true, the loop must leave its arguments as they are.
    """

    def __init__(self, ahead: bool) -> None:
        self.ahead = ahead
        self._next: Call | None = None

    def advance(self, run: Loop, state: tuple[Tree, ...], blocks: int, ahead: int = 0) -> Call:
        """Run that many blocks, and return the call, whose report is on its way to the host.

        Its state must replace the one before at once: that one may be gone.

        Args:
            run: the loop. Of what it returns, the host reads `report`, and `kept` stays.
            state: what it begins from.
            blocks: of this call.
            ahead: of the next one, if the run simply goes on; 0: that is not known.
        """
        call, self._next = self._next, None
        if (
            call is None
            or call.blocks != blocks
            or any(a is not b for a, b in zip(call.start, state, strict=True))
        ):
            call = None  # and released, before another one needs room
            call = self._begin(run, state, blocks)
        if self.ahead and ahead:
            try:
                self._next = self._begin(run, call.state, ahead)
            except BackendError:  # no room for the states of two calls
                self.ahead = False
        return call

    def forget(self) -> None:
        """Release the call that was begun in vain, if any."""
        self._next = None

    def _begin(self, run: Loop, state: tuple[Tree, ...], blocks: int) -> Call:
        with memory_errors:
            *after, report, kept = run(*state, np.int32(blocks))
        if self.ahead:
            for array in jax.tree.leaves(report):
                array.copy_to_host_async()
        return Call(state, blocks, tuple(after), report, kept)
