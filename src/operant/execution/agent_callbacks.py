"""What an agent writes by itself while a program drives it: traces, checkpoints, summaries."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from operant.checkpoint import weight_files
from operant.execution.actors import Actor
from operant.execution.saving import Saver, SaverConfig
from operant.execution.traces import Flat, Recorder, RecorderConfig
from operant.spec.spaces import Spaces
from operant.tracking.summaries import Summarizer, SummarizerConfig

if TYPE_CHECKING:
    from operant.execution.agent import Agent


class AgentCallbacks:
    """The writers of one agent (traces, checkpoints, summaries), as far as given; SpecError: bad options."""

    def __init__(self, recorder: Any = None, saver: Any = None, summarizer: Any = None) -> None:
        self.recording = None if recorder is None else RecorderConfig.parse(recorder)
        self.saving = None if saver is None else SaverConfig.parse(saver)
        self.summarizing = None if summarizer is None else SummarizerConfig.parse(summarizer)
        self._recorder: Recorder | None = None
        self._saver: Saver | None = None
        self._summarizer: Summarizer | None = None

    @property
    def are_on(self) -> bool:
        """Whether anything is written."""
        return (self.recording, self.saving, self.summarizing) != (None, None, None)

    def begin(self, agent: Agent, save: Callable[[str, str, int | None], Any]) -> None:
        """Begin to write, from the agent's current counts on.

        `save` writes a checkpoint: called with folder, name, and how many to keep.
        """
        if not self.are_on:
            return  # no reference to the agent, which refers to this: its memory is freed with its last user
        self._agent = agent
        self.spaces_changed(agent.spaces)
        if self.saving is not None:
            self._saver = Saver(self.saving, agent, save)
        if self.summarizing is not None:
            self._updates = agent.updates
            self._summarizer = Summarizer(self.summarizing, agent.parallel_interactions)
            self.recount()
            self._summarizer.graph(agent.get_architecture())

    def spaces_changed(self, spaces: Spaces) -> None:
        """Record with these spaces from now on: masks came with the first states."""
        if self.recording is not None:
            agent = self._agent
            self._recorder = Recorder(self.recording, spaces, agent.parallel_interactions, agent.episodes)

    def observed(self, actor: Actor, reward: float, terminal: int, last: Flat | None) -> None:
        """Note an actor's last action, that of its newest row, and the outcome."""
        if self._recorder is not None:
            row, clip = actor.rows[-1], self._agent.spaces.actions.clip
            step = row.observation, clip(row.action), reward, terminal
            self._recorder.observe(actor.index, step, last)
        if self._summarizer is not None:
            self._summarizer.observe(actor.index, reward, terminal)

    def recount(self) -> None:
        """Continue counting from the agent's counters: something other than `observed` has moved them."""
        if self._summarizer is not None:
            agent = self._agent
            acted = sum(actor.acted for actor in agent.actors)  # counted there, still to be observed
            self._summarizer.go_on(agent.timesteps - acted, agent.episodes)

    def updated(self) -> None:
        """Write what an update measured; nothing after a block in which none was due."""
        if self._summarizer is None or self._agent.updates == self._updates:
            return
        self._updates = self._agent.updates
        engine = self._agent.engine
        assert engine is not None
        weights: dict[str, np.ndarray] = {}
        if self._summarizer.wants_weights:
            flat = weight_files.flatten(engine.learner.algorithm.weights(engine.train.state))
            weights = {
                name.replace("/params/", "/"): np.array(x) for name, x in flat.items() if "/params/" in name
            }
        self._summarizer.update(self._updates, engine.metrics("summarizer"), weights)

    def changed(self) -> None:
        """Take note that the agent learnt, though this counts as no update."""
        if self._saver is not None:
            self._saver.changed()
        self.save_if_due()

    def save_if_due(self) -> None:
        """Write a checkpoint if it is time."""
        if self._saver is not None:
            self._saver.save_if_due()

    def forget(self, actors: Sequence[int]) -> None:
        """Drop the unfinished episodes of some actors."""
        if self._recorder is not None:
            self._recorder.forget(actors)
        if self._summarizer is not None:
            self._summarizer.forget(actors)

    def summarize(self, name: str, value: Any, step: int | None) -> bool:
        """Write a summary of the program's own; False if there is no summarizer."""
        if self._summarizer is None:
            return False
        self._summarizer.custom(name, value, step)
        return True

    def close(self) -> None:
        """Write what is still to be written."""
        with contextlib.ExitStack() as stack:  # each even after another one has failed to
            for writer in (self._summarizer, self._saver, self._recorder):
                if writer is not None:
                    stack.callback(writer.close)
