"""One environment in a run: its state, and how the values of several actors are split and joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from operant.envs.environment import rows, take
from operant.envs.remote.connection import Answer, Connection, VectorizedConnection


class StepResult(NamedTuple):
    """What the last step brought one actor."""

    actor: int
    reward: float
    terminal: int
    states: Any
    """What it saw afterwards; None if its environment does not report it."""
    lost: bool = False
    """Whether the action got no answer, because the environment was lost."""


class EnvSlot:
    """One environment and its actors.

    Args:
        first: index, among all actors of the run, of its first one.
        trains: whether the agent learns from it.
        counts: whether its timesteps and episodes are those that the run counts.
    """

    def __init__(self, connection: Connection, first: int, trains: bool, counts: bool) -> None:
        self.connection = connection
        self.first = first
        self.trains = trains
        self.counts = counts
        self.single = connection.num_actors == 1
        self.request = ""
        """The open one: reset or execute; empty: none is open."""
        self.running: list[int] = []
        """Actors whose episode is still running, in the order of `states`."""
        self.states: Any = None
        self.acting: list[int] = []
        """Those of `running` for which the agent acted; the others were cut and only accompany them."""
        self.counted: frozenset[int] = frozenset()
        """Actors whose episodes were still wanted when they began."""
        self.internals: list[Any] = []
        """Recurrent state of each actor, while a recurrent agent acts independently."""
        self.seconds = 0.0
        """How long the environment computed in this episode."""

    @property
    def size(self) -> int:
        """How many actors it has."""
        return self.connection.num_actors

    def reset(self, count: int, seed: int | None) -> None:
        """Ask for an episode of which `count` actors are wanted."""
        # Set before it is sent, and until its answer arrives: `drain` takes care of a run interrupted in
        # between.
        self.request, self.counted = "reset", frozenset(range(count))
        self.running, self.acting, self.seconds = [], [], 0.0
        if isinstance(self.connection, VectorizedConnection):
            self.connection.send_reset(seed, count)
        else:
            self.connection.send_reset(seed)

    def execute(self, actions: Any) -> None:
        """Ask for a step."""
        self.request = "execute"
        self.connection.send_execute(actions)

    def receive(self) -> list[StepResult]:
        """Take the answer; return what the step brought the actors that the agent acted for."""
        answer = self.connection.receive()
        request, self.request = self.request, ""
        self.seconds += answer.seconds
        if request == "reset":
            if answer.lost:  # it has been replaced: ask the new one
                self.request = "reset"
                self.connection.send_reset(None)
            else:
                self.running = [0] if self.single else [int(i) for i in answer.parallel]
                self.states = answer.states
            return []
        if self.single:
            terminal = int(answer.terminal)
            self.running, self.states = [] if terminal else [0], answer.states
            return [StepResult(0, float(answer.reward), terminal, answer.states, bool(answer.lost))]
        return self._results(answer)

    def _results(self, answer: Answer) -> list[StepResult]:
        before = self.running
        terminals = np.broadcast_to(answer.terminal, len(before)).tolist()
        rewards = np.broadcast_to(answer.reward, len(before)).tolist()
        after = [] if answer.parallel is None else [int(i) for i in answer.parallel]
        owners, known = list(after), rows(answer.states)  # whose the states are
        owners += [a for a, over in zip(before, terminals, strict=True) if over and a not in after]
        if known != len(owners):  # the last states of episodes that ended are missing
            owners = after
        place = {actor: i for i, actor in enumerate(owners)}
        self.running, self.states = after, answer.states
        if after and known > len(after):
            self.states = take(answer.states, list(range(len(after))))
        acting = set(self.acting)
        return [
            StepResult(
                actor,
                reward,
                terminal,
                take(answer.states, place[actor]) if actor in place else None,
                bool(answer.lost),
            )
            for actor, reward, terminal in zip(before, rewards, terminals, strict=True)
            if actor in acting
        ]

    def state(self, actor: int) -> Any:
        """Return the state of one of the actors that are running."""
        return self.states if self.single else take(self.states, self.running.index(actor))

    def drain(self) -> None:
        """Discard the answers that an interrupted run was still waiting for."""
        self.connection.forget()
        self.request, self.running, self.acting = "", [], []


def join(values: Sequence[Any]) -> Any:
    """Stack the values of several actors, nested alike, along a new leading axis."""
    if isinstance(values[0], Mapping):
        return {name: join([value[name] for value in values]) for name in values[0]}
    return np.stack([np.asarray(value) for value in values])
