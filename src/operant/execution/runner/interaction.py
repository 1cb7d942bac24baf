"""The loop between an agent and environments that may answer late: who acts when, and when to stop.

An environment's answer is served in four steps: the agent observes it, the timestep is counted (callbacks
run, limits are checked), the agent acts, the actions are sent. Limits are exact because both kinds of budget
are reserved in advance: an episode when it begins, a timestep when the agent is about to act. An actor that
gets none rests; if its episode is open, it is cut at its true last state.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from operant.checkpoint import durable
from operant.envs.environment import take
from operant.envs.vector.base import seed_of
from operant.execution.agent import Agent
from operant.execution.runner.run_options import RunOptions
from operant.execution.runner.run_statistics import RunStatistics, add_episode, show
from operant.execution.runner.slots import EnvSlot, StepResult, join
from operant.training import evaluate
from operant.training.callbacks import none_refuses

BEST = "best-model"
"""Name under which the best agent is saved."""


class Interaction:
    """One run of an agent in the slots, within limits; `seed` is the root of the environments' seeds.

    The statistics may hold those of a first part of the run that another driver took. A `Runner` is one:
    callbacks get it.
    """

    def __init__(
        self,
        agent: Agent,
        slots: Sequence[EnvSlot],
        options: RunOptions,
        statistics: RunStatistics,
        seed: int,
    ) -> None:
        self.agent = agent
        self.slots = slots
        self.options = options
        self.statistics = statistics
        self.stopping = False
        self._called_off = False
        """Whether a callback, or a request to terminate, stopped the run."""
        self._begun = 0
        self._agent_seconds = 0.0
        """How long the agent has computed."""
        self._starts = [(0.0, 0.0)] * len(statistics.episode_return)
        """When each actor's episode began, and how long the agent had computed by then."""
        self._granted = statistics.timesteps
        self._seeds: list[int | None] = [seed_of(seed, i) for i in range(len(slots))]
        start = agent.initial_internals()
        self._start_internals = start if jax.tree.leaves(start) else None
        self._updates_before = agent.updates - statistics.updates

    def run(self) -> None:
        """Run until a limit is reached or a callback returns False."""
        limit = self.options.num_updates
        held = contextlib.nullcontext() if limit is None else self.agent.hold(limit - self.statistics.updates)
        batched = self.options.batch_agent_calls
        in_step = batched or self.options.sync_timesteps
        with held:
            while True:
                if self.statistics.ending:
                    self.stopping = self._called_off = True
                waiting = [slot for slot in self.slots if slot.request]
                if not waiting:
                    if not self._begin_round():
                        return
                    continue
                ready = waiting if in_step else [slot for slot in waiting if slot.connection.ready()]
                if not ready:
                    waiting[0].connection.ready(self.options.num_sleep_secs)
                elif batched:
                    self._serve(ready)
                else:
                    for slot in ready:
                        self._serve([slot])

    # Episodes

    def _begin_round(self) -> bool:
        """Begin episodes where they are due; environments that only evaluate join the others."""
        began = [self._begin(slot) for slot in self.slots if slot.counts]
        if any(began):
            for slot in self.slots:
                if not slot.counts:
                    self._begin(slot)
        return any(began)

    def _begin(self, slot: EnvSlot) -> bool:
        options, count = self.options, slot.size
        if self.stopping:
            return False
        if slot.counts:
            if options.num_episodes is not None:
                count = min(count, options.num_episodes - self._begun)
            if count == 0 or self._granted == options.num_timesteps:
                return False
            self._begun += count
        index = self.slots.index(slot)
        for actor in range(slot.first, slot.first + slot.size):
            # Before the reset, whose time is the environment's, too.
            self._starts[actor] = time.perf_counter(), self._agent_seconds
        slot.reset(count, self._seeds[index])
        self._seeds[index] = None
        slot.internals = [self._start_internals] * slot.size
        return True

    # Steps

    def _serve(self, slots: Sequence[EnvSlot]) -> None:
        results = [(slot, self._bounded(slot, result)) for slot in slots for result in slot.receive()]
        self._observe([each for each in results if each[0].trains])
        for slot, result in results:
            self._count(slot, result)
        self._count_updates()
        acting = self._grant_steps(slots)
        self._count_updates()
        for slot in slots:
            if not (slot.running or slot.request or self.options.sync_episodes):
                self._begin(slot)
        for slot, _ in acting:
            if not slot.trains:
                slot.execute(self._evaluate(slot))
        if learning := [each for each in acting if each[0].trains]:
            self._act(learning)
            self._count_updates()

    def _bounded(self, slot: EnvSlot, result: StepResult) -> StepResult:
        """Cut an episode of evaluation that has no end, as `evaluate.run_episodes` does."""
        actor, limit = slot.first + result.actor, slot.connection.max_episode_timesteps
        timesteps = self.statistics.episode_timestep[actor] + 1
        if slot.trains or result.terminal or limit is not None or timesteps < evaluate.LONGEST:
            return result
        warnings.warn(
            f"An episode of evaluation in {slot.connection.name!r} has not ended after "
            f"{evaluate.LONGEST:,} timesteps, and has no time limit. It is cut: its return so far counts. "
            "Set a limit: max_episode_timesteps.",
            RuntimeWarning,
            stacklevel=2,
        )
        slot.acting.remove(result.actor)
        slot.running = slot.running if slot.acting else []
        return result._replace(terminal=2)

    def _clock(self, began: float) -> None:
        self._agent_seconds += time.perf_counter() - began

    def _observe(self, results: list[tuple[EnvSlot, StepResult]]) -> None:
        began = time.perf_counter()
        # As a step without cost, it would teach the agent to take the action that loses an environment.
        if unanswered := [slot.first + result.actor for slot, result in results if result.lost]:
            self.agent.reset(unanswered)
            results = [each for each in results if not each[1].lost]
        if len(results) == 1 and results[0][0].single:
            slot, (_, reward, terminal, states, _) = results[0]
            self.agent.observe(reward, terminal, slot.first, states if terminal else None)
        elif results:
            self.agent.observe(
                reward=[result.reward for _, result in results],
                terminal=[result.terminal for _, result in results],
                parallel=[slot.first + result.actor for slot, result in results],
                next_states=[result.states for _, result in results],
            )
        self._clock(began)

    def _count(self, slot: EnvSlot, result: StepResult) -> None:
        actor, options, statistics = slot.first + result.actor, self.options, self.statistics
        statistics.episode_return[actor] += result.reward
        statistics.episode_timestep[actor] += 1
        statistics.updates = self.agent.updates - self._updates_before
        goes_on = True
        if slot.counts:
            statistics.timesteps += 1
            show(statistics)
            if not self._called_off:
                timestep = statistics.episode_timestep[actor]
                goes_on = self._call(actor, options.callback_timestep_frequency, timestep)
        wanted = result.actor in slot.counted and not self._called_off
        if wanted and result.lost and not slot.trains:
            # Not an episode of the evaluation: another is run in its place.
            wanted, self._begun = False, self._begun - slot.counts
        if result.terminal and wanted:
            goes_on = self._end_episode(slot, actor) and goes_on
        if result.terminal:  # callbacks have read them
            statistics.episode_return[actor], statistics.episode_timestep[actor] = 0.0, 0
        if not goes_on:
            self.stopping = self._called_off = True
        if statistics.episodes == options.num_episodes or statistics.timesteps == options.num_timesteps:
            self.stopping = True

    def _end_episode(self, slot: EnvSlot, actor: int) -> bool:
        """Record an episode, and score one of evaluation; False if a callback ends the run."""
        options, statistics = self.options, self.statistics
        reported = slot.connection.episode_return() if slot.single else None
        if reported is not None:
            statistics.episode_return[actor] = float(reported)
        statistics.episodes += slot.counts
        began, agent_began = self._starts[actor]
        add_episode(
            statistics,
            statistics.episode_return[actor],
            statistics.episode_timestep[actor],
            time.perf_counter() - began,
            self._agent_seconds - agent_began,
            slot.seconds,
            evaluation=not slot.counts,
        )
        show(statistics, episode=True)
        goes_on = not slot.counts or self._call(
            actor, options.callback_episode_frequency, statistics.episodes
        )
        if not slot.counts or statistics.evaluation_returns is statistics.episode_returns:
            self._score()
        return goes_on

    def _call(self, actor: int, every: int | None, count: int) -> bool:
        if every is None or count % every:
            return True
        return none_refuses([callback(self.statistics, actor) for callback in self.options.callback])

    def _score(self) -> None:
        statistics, directory = self.statistics, self.options.save_best_agent
        if self.options.improves(statistics, statistics.evaluation_returns) and directory is not None:
            with durable.outliving(f"The best agent is not saved in {directory!r}"):
                self.agent.save(directory, filename=BEST)

    def _count_updates(self) -> None:
        self.statistics.updates = self.agent.updates - self._updates_before
        limit = self.options.num_updates
        if limit is not None and self.statistics.updates >= limit:
            self.stopping = True

    def _grant_steps(self, slots: Sequence[EnvSlot]) -> list[tuple[EnvSlot, list[int]]]:
        """Find the actors that may take another timestep, and cut the episodes of the others."""
        acting, parallel, states = [], list[int](), list[Any]()
        for slot in slots:
            if slot.request or not slot.running:
                continue
            # After a step, only the actors that acted are still the agent's; after a reset, all are.
            still = [a for a in slot.running if a in slot.acting] if slot.acting else list(slot.running)
            wanted = any(actor in slot.counted for actor in still)
            granted = [actor for actor in still if wanted and self._grant(slot)]
            if slot.trains and slot.acting and len(granted) < len(still):
                cut = [actor for actor in still if actor not in granted]
                parallel += [slot.first + actor for actor in cut]
                states += [slot.state(actor) for actor in cut]
            slot.acting = granted
            if granted:
                acting.append((slot, granted))
            else:
                slot.running = []
        if parallel:
            began = time.perf_counter()
            self.agent.reset(parallel, states)
            self._clock(began)
        return acting

    def _grant(self, slot: EnvSlot) -> bool:
        if not slot.counts:  # beside others: with synchronised episodes, its last one is run to the end
            return not self.stopping or (self.options.sync_episodes and not self._called_off)
        if self.stopping or self._granted == self.options.num_timesteps:
            return False
        self._granted += 1
        return True

    # Acting

    def _act(self, acting: list[tuple[EnvSlot, list[int]]]) -> None:
        began, (slot, actors) = time.perf_counter(), acting[0]
        if len(acting) == 1 and (slot.single or actors == slot.running):
            parallel = slot.first if slot.single else [slot.first + actor for actor in actors]
            actions = self.agent.act(slot.states, parallel=parallel)
            self._clock(began)
            slot.execute(actions)
            return
        actions = self.agent.act(
            [slot.state(actor) for slot, actors in acting for actor in actors],
            parallel=[slot.first + actor for slot, actors in acting for actor in actors],
        )
        self._clock(began)
        place = 0
        for slot, actors in acting:
            each = {actor: take(actions, place + i) for i, actor in enumerate(actors)}
            place += len(actors)
            if slot.single:
                slot.execute(each[0])
            else:  # actors that were cut only go through the motions
                each |= {actor: self._idle_action(slot, actor) for actor in slot.running if actor not in each}
                slot.execute(join([each[actor] for actor in slot.running]))

    def _idle_action(self, slot: EnvSlot, actor: int) -> Any:
        action = self.agent.act(
            slot.state(actor), self._start_internals, independent=True, deterministic=False
        )
        return action if self._start_internals is None else action[0]

    def _evaluate(self, slot: EnvSlot) -> Any:
        began, internals = time.perf_counter(), None
        if self._start_internals is not None:
            each = [slot.internals[actor] for actor in slot.running]
            internals = each[0] if slot.single else jax.tree.map(lambda *x: np.stack(x), *each)
        actions = self.agent.act(slot.states, internals, independent=True, deterministic=True)
        if internals is not None:
            actions, after = actions
            for i, actor in enumerate(slot.running):
                slot.internals[actor] = after if slot.single else jax.tree.map(lambda x, i=i: x[i], after)
        self._clock(began)
        return actions
