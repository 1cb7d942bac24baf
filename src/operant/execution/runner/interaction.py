"""The loop between an agent and environments that may answer late: who acts when, and when to stop.

An environment's answer is served in four steps: the agent observes it, the timestep is counted (callbacks
run, limits are checked), the agent acts, the actions are sent. Limits are exact because both kinds of budget
are reserved in advance: an episode when it begins, a timestep when the agent is about to act. An actor that
gets none rests; if its episode is open, it is cut at its true last state.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from operant.envs.environment import take
from operant.envs.vector.base import seed_of
from operant.execution.agent import Agent
from operant.execution.runner.run_statistics import RunStatistics
from operant.execution.runner.slots import EnvSlot, StepResult, join


class RunLimits(NamedTuple):
    """How far a run goes, and how; see `Runner.run`."""

    num_episodes: int | None = None
    num_timesteps: int | None = None
    num_updates: int | None = None
    batch_agent_calls: bool = False
    sync_timesteps: bool = False
    sync_episodes: bool = False
    num_sleep_secs: float = 0.001


class Interaction:
    """One run.

    Args:
        agent: acts and learns.
        seats: the environments.
        plan: limits, and how to reach them.
        ledger: keeps the counts; may hold those of a first part of the run that another driver took.
        seed: root of the environments' seeds.
    """

    def __init__(
        self, agent: Agent, seats: Sequence[EnvSlot], plan: RunLimits, ledger: RunStatistics, seed: int
    ) -> None:
        self.agent = agent
        self.seats = seats
        self.plan = plan
        self.ledger = ledger
        self.tally = ledger.tally
        self.stopping = False
        self._called_off = False
        """Whether a callback, or a request to terminate, stopped the run."""
        self._begun = 0
        self._granted = ledger.timesteps
        self._seeds: list[int | None] = [seed_of(seed, i) for i in range(len(seats))]
        start = agent.initial_internals()
        self._start_internals = start if jax.tree.leaves(start) else None
        self._updates_before = agent.updates - ledger.updates

    def run(self) -> None:
        """Run until a limit is reached or a callback returns False."""
        limit = self.plan.num_updates
        made = self.ledger.updates
        with contextlib.nullcontext() if limit is None else self.agent.hold(limit - made):
            self._run()

    def _run(self) -> None:
        plan = self.plan
        in_step = plan.batch_agent_calls or plan.sync_timesteps
        while True:
            if self.ledger.ending:
                self.stopping = self._called_off = True
            waiting = [seat for seat in self.seats if seat.request]
            if not waiting:
                if not self._begin_round():
                    return
                continue
            ready = waiting if in_step else [seat for seat in waiting if seat.connection.ready()]
            if not ready:
                waiting[0].connection.ready(plan.num_sleep_secs)
            elif plan.batch_agent_calls:
                self._serve(ready)
            else:
                for seat in ready:
                    self._serve([seat])

    # Episodes

    def _begin_round(self) -> bool:
        """Begin an episode wherever one is due.

        An environment that only evaluates begins one with the others.
        """
        began = [self._begin(seat) for seat in self.seats if seat.counts]
        if any(began):
            for seat in self.seats:
                if not seat.counts:
                    self._begin(seat)
        return any(began)

    def _begin(self, seat: EnvSlot) -> bool:
        plan, count = self.plan, seat.size
        if self.stopping:
            return False
        if seat.counts:
            if plan.num_episodes is not None:
                count = min(count, plan.num_episodes - self._begun)
            if count == 0 or self._granted == plan.num_timesteps:
                return False
            self._begun += count
        index = self.seats.index(seat)
        for actor in range(seat.size):  # before the reset, whose time is the environment's, too
            self.tally.begin(seat.first + actor)
        seat.reset(count, self._seeds[index])
        self._seeds[index] = None
        seat.internals = [self._start_internals] * seat.size
        return True

    # Steps

    def _serve(self, seats: Sequence[EnvSlot]) -> None:
        """Take the answers of these environments, and send the next requests."""
        brought = [(seat, feedback) for seat in seats for feedback in seat.receive()]
        self._tell([each for each in brought if each[0].trains])
        for seat, feedback in brought:
            self._count(seat, feedback)
        self._look_at_limits()
        acting = self._go_on(seats)
        self._look_at_limits()
        for seat in seats:
            if not (seat.running or seat.request or self.plan.sync_episodes):
                self._begin(seat)
        for seat, _ in acting:
            if not seat.trains:
                seat.execute(self._evaluate(seat))
        if learning := [each for each in acting if each[0].trains]:
            self._act(learning)
            self._look_at_limits()

    def _tell(self, brought: list[tuple[EnvSlot, StepResult]]) -> None:
        if not brought:
            return
        began = time.perf_counter()
        # As a step without cost, it would teach the agent to take the action that loses an environment.
        if unanswered := [seat.first + feedback.actor for seat, feedback in brought if feedback.lost]:
            self.agent.reset(unanswered)
            brought = [each for each in brought if not each[1].lost]
        if len(brought) == 1 and brought[0][0].single:
            seat, (_, reward, terminal, states, _) = brought[0]
            self.agent.observe(reward, terminal, seat.first, states if terminal else None)
        elif brought:
            self.agent.observe(
                reward=[feedback.reward for _, feedback in brought],
                terminal=[feedback.terminal for _, feedback in brought],
                parallel=[seat.first + feedback.actor for seat, feedback in brought],
                next_states=[feedback.states for _, feedback in brought],
            )
        self.tally.agent_clock += time.perf_counter() - began

    def _count(self, seat: EnvSlot, feedback: StepResult) -> None:
        actor, plan, ledger = seat.first + feedback.actor, self.plan, self.ledger
        self.tally.add(actor, feedback.reward)
        ledger.updates = self.agent.updates - self._updates_before
        go_on = True
        if seat.counts:
            ledger.timesteps += 1
            go_on = self._called_off or ledger.timestep(actor)
        wanted = feedback.actor in seat.counted and not self._called_off
        if wanted and feedback.lost and not seat.trains:
            # Not an episode of the evaluation: another is run in its place.
            wanted, self._begun = False, self._begun - seat.counts
        if feedback.terminal and wanted:
            if seat.counts:
                ledger.episodes += 1
            go_on = ledger.episode(actor, seat) and go_on
        if not go_on:
            self.stopping = self._called_off = True
        if ledger.episodes == plan.num_episodes or ledger.timesteps == plan.num_timesteps:
            self.stopping = True

    def _look_at_limits(self) -> None:
        """Stop once the updates have been made."""
        self.ledger.updates = self.agent.updates - self._updates_before
        limit = self.plan.num_updates
        if limit is not None and self.ledger.updates >= limit:
            self.stopping = True

    def _go_on(self, seats: Sequence[EnvSlot]) -> list[tuple[EnvSlot, list[int]]]:
        """Find the actors that may take another timestep, and cut the episodes of the others."""
        acting, parallel, states = [], list[int](), list[Any]()
        for seat in seats:
            if seat.request or not seat.running:
                continue
            # After a step, only the actors that acted are still the agent's; after a reset, all are.
            open_ones = [a for a in seat.running if a in seat.acting] if seat.acting else list(seat.running)
            wanted = any(actor in seat.counted for actor in open_ones)
            granted = [actor for actor in open_ones if wanted and self._grant(seat)]
            if seat.trains and seat.acting and len(granted) < len(open_ones):
                cut = [actor for actor in open_ones if actor not in granted]
                parallel += [seat.first + actor for actor in cut]
                states += [self._state(seat, actor) for actor in cut]
            seat.acting = granted
            if granted:
                acting.append((seat, granted))
            else:
                seat.running = []
        if parallel:
            began = time.perf_counter()
            self.agent.reset(parallel, states)
            self.tally.agent_clock += time.perf_counter() - began
        return acting

    def _grant(self, seat: EnvSlot) -> bool:
        if not seat.counts:  # beside others: with synchronised episodes, its last one is run to the end
            return not self.stopping or (self.plan.sync_episodes and not self._called_off)
        if self.stopping or self._granted == self.plan.num_timesteps:
            return False
        self._granted += 1
        return True

    # Acting

    def _act(self, acting: list[tuple[EnvSlot, list[int]]]) -> None:
        """Act for the actors of several environments, and send each its actions."""
        agent, began = self.agent, time.perf_counter()
        seat, actors = acting[0]
        if len(acting) == 1 and seat.single:
            chosen = agent.act(seat.states, parallel=seat.first)
            self.tally.agent_clock += time.perf_counter() - began
            seat.execute(chosen)
        elif len(acting) == 1 and actors == seat.running:
            chosen = agent.act(seat.states, parallel=[seat.first + actor for actor in actors])
            self.tally.agent_clock += time.perf_counter() - began
            seat.execute(chosen)
        else:
            states = [self._state(seat, actor) for seat, actors in acting for actor in actors]
            parallel = [seat.first + actor for seat, actors in acting for actor in actors]
            chosen = agent.act(states, parallel=parallel)
            self.tally.agent_clock += time.perf_counter() - began
            self._send(acting, chosen)

    def _send(self, acting: list[tuple[EnvSlot, list[int]]], chosen: Any) -> None:
        place = 0
        for seat, actors in acting:
            own = {actor: take(chosen, place + i) for i, actor in enumerate(actors)}
            place += len(actors)
            if seat.single:
                seat.execute(own[0])
                continue
            for actor in seat.running:  # actors that were cut only go through the motions
                if actor not in own:
                    own[actor] = self.agent.act(
                        self._state(seat, actor), self._start_internals, independent=True, deterministic=False
                    )
                    own[actor] = own[actor] if self._start_internals is None else own[actor][0]
            seat.execute(join([own[actor] for actor in seat.running]))

    def _evaluate(self, seat: EnvSlot) -> Any:
        """Act for all actors of an environment without recording or learning."""
        began, internals = time.perf_counter(), None
        if self._start_internals is not None:
            own = [seat.internals[actor] for actor in seat.running]
            internals = own[0] if seat.single else jax.tree.map(lambda *x: np.stack(x), *own)
        chosen = self.agent.act(seat.states, internals, independent=True, deterministic=True)
        if internals is not None:
            chosen, after = chosen
            for i, actor in enumerate(seat.running):
                seat.internals[actor] = after if seat.single else jax.tree.map(lambda x, i=i: x[i], after)
        self.tally.agent_clock += time.perf_counter() - began
        return chosen

    @staticmethod
    def _state(seat: EnvSlot, actor: int) -> Any:
        return seat.states if seat.single else take(seat.states, seat.running.index(actor))
