"""The arguments of `Runner.run`, checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from operant.errors import SpecError, as_folder, value_error, whole
from operant.training.callbacks import callbacks_of

SWITCHES = ("batch_agent_calls", "sync_timesteps", "sync_episodes", "use_tqdm", "evaluation")
COUNTS = (
    "num_episodes",
    "num_timesteps",
    "num_updates",
    "callback_episode_frequency",
    "callback_timestep_frequency",
)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How far a run goes, how, and what it reports; see `Runner.run`."""

    num_episodes: int | None = None
    num_timesteps: int | None = None
    num_updates: int | None = None
    batch_agent_calls: bool = False
    sync_timesteps: bool = False
    sync_episodes: bool = False
    num_sleep_secs: float = 0.001
    callback: tuple[Callable[..., Any], ...] = ()
    callback_episode_frequency: int | None = None
    callback_timestep_frequency: int | None = None
    use_tqdm: bool = True
    mean_horizon: int = 1
    evaluation: bool = False
    save_best_agent: Path | None = None
    evaluation_callback: Callable[..., Any] | int | None = None

    @classmethod
    def read(cls, **arguments: Any) -> RunOptions:
        """Check the arguments of `Runner.run`; SpecError: a value is not understood."""
        values = vars(cls()) | arguments
        for name in SWITCHES:
            if not isinstance(values[name], bool):
                raise value_error(name, "True or False", values[name])
        seconds, function = values["num_sleep_secs"], values["evaluation_callback"]
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise value_error("num_sleep_secs", "a number of at least 0", seconds)
        directory = values["save_best_agent"]
        if directory is not None and not isinstance(directory, str | Path):
            raise value_error("save_best_agent", "a directory", directory)
        values["mean_horizon"] = whole("mean_horizon", values["mean_horizon"])
        values["callback"] = callbacks_of(
            values["callback"], "a callable (runner, parallel) -> bool, or a list of such"
        )
        counts = COUNTS if callable(function) else (*COUNTS, "evaluation_callback")
        values |= {name: whole(name, values[name], optional=True) for name in counts}
        if values["callback_timestep_frequency"] is None and values["callback_episode_frequency"] is None:
            values["callback_episode_frequency"] = 1
        if directory is not None:
            values["save_best_agent"] = as_folder("save_best_agent", directory).absolute()
        return cls(**values)

    @property
    def counted(self) -> tuple[str, int | None]:
        """What the bar counts, and how many there will be if that is known."""
        limits = {"episodes": self.num_episodes, "timesteps": self.num_timesteps, "updates": self.num_updates}
        return next((pair for pair in limits.items() if pair[1] is not None), ("episodes", None))

    @property
    def scores(self) -> bool:
        """Whether episodes are scored for somebody to hear of it."""
        return callable(self.evaluation_callback) or self.save_best_agent is not None

    def score(self, runner: Any, returns: list[float]) -> float | None:
        """Return the score of episodes with these returns, or None; SpecError: the function gives none."""
        if callable(self.evaluation_callback):
            value = self.evaluation_callback(runner)
            try:
                return None if value is None else float(value)
            except (TypeError, ValueError):
                raise SpecError(
                    f"evaluation_callback must return a number or None. Received: {value!r}."
                ) from None
        horizon = self.evaluation_callback or self.mean_horizon
        return sum(returns[-horizon:]) / horizon if len(returns) >= horizon else None
