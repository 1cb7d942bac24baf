"""Calls of a compiled loop, the next of which is under way while the host looks at what the last one told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from operant.agents.base.allocation import memory_errors
from operant.errors import BackendError, SpecError
from operant.types import Tree

Loop: TypeAlias = Callable[..., tuple[Any, ...]]
"""(*state, blocks) to (*state, told, rest)."""


class Call(NamedTuple):
    """A call that was begun: what it began from, and what it will return."""

    start: tuple[Tree, ...]
    blocks: int
    state: tuple[Tree, ...]
    told: Tree
    rest: Tree


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
        """Run that many blocks, and return the call with what it told on the host.

        Args:
            run: the loop. Of what it returns, `told` is copied to the host, and `rest` stays.
            state: what it begins from.
            blocks: of this call.
            ahead: of the next one, if the run simply goes on; 0: that is not known.
        """
        call, self._next = self._next, None
        if call is None or call.blocks != blocks or any(map(_differ, call.start, state)):
            call = self._begin(run, state, blocks)
        if self.ahead and ahead:
            try:
                self._next = self._begin(run, call.state, ahead)
            except (BackendError, SpecError):  # no room for the states of two calls
                self.ahead = False
        return call._replace(told=jax.device_get(call.told))

    def forget(self) -> None:
        """Release the call that was begun, if any."""
        self._next = None

    def _begin(self, run: Loop, state: tuple[Tree, ...], blocks: int) -> Call:
        with memory_errors:
            *after, told, rest = run(*state, np.int32(blocks))
        if self.ahead:
            for array in jax.tree.leaves(told):
                array.copy_to_host_async()
        return Call(state, blocks, tuple(after), told, rest)


def _differ(a: object, b: object) -> bool:
    return a is not b
