"""The arguments of `Runner.run`, checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from operant.errors import SpecError, as_folder, whole
from operant.spec import Config, option
from operant.training.callbacks import callbacks_of


class RunOptions(Config):
    """How far a run goes, how, and what it reports; see `Runner.run`."""

    num_episodes: int | None = option(None, "Episodes to run", low=1)
    num_timesteps: int | None = option(None, "Timesteps to run", low=1)
    num_updates: int | None = option(None, "Updates to run", low=1)
    batch_agent_calls: bool = option(False, "Call the agent once for all environments")
    sync_timesteps: bool = option(False, "Step all environments together")
    sync_episodes: bool = option(False, "Begin all episodes together")
    num_sleep_secs: float = option(0.001, "Longest wait for environments", unit="seconds", low=0.0)
    callback: tuple[Any, ...] = option((), "Functions that are called on the way")
    callback_episode_frequency: int | None = option(None, "Episodes between callbacks", low=1)
    callback_timestep_frequency: int | None = option(None, "Timesteps between callbacks", low=1)
    use_tqdm: bool = option(True, "Show a progress bar")
    mean_horizon: int = option(1, "Episodes that the score is averaged over", low=1)
    evaluation: bool = option(False, "Only evaluate")
    save_best_agent: str | None = option(None, "Directory for the best agent")
    evaluation_callback: Callable[..., Any] | int | None = option(
        None, "Function that returns the score, or episodes that it is averaged over"
    )

    @classmethod
    def read(
        cls, callback: Any = None, save_best_agent: Any = None, evaluation_callback: Any = None, **others: Any
    ) -> RunOptions:
        """Check the arguments of `Runner.run`; SpecError: a value is not understood."""
        if not callable(evaluation_callback):
            whole("evaluation_callback", evaluation_callback, optional=True)
        if isinstance(save_best_agent, str | Path):
            save_best_agent = str(as_folder("save_best_agent", save_best_agent).absolute())
        if (
            others.get("callback_timestep_frequency") is None
            and others.get("callback_episode_frequency") is None
        ):
            others["callback_episode_frequency"] = 1
        must = "a callable (runner, parallel) -> bool, or a list of such"
        callbacks = callbacks_of(callback, must)
        return cls(
            callback=callbacks,
            save_best_agent=save_best_agent,
            evaluation_callback=evaluation_callback,
            **others,
        )

    @property
    def counted(self) -> tuple[str, int | None]:
        """What the bar counts, and how many there will be if that is known."""
        limits = {"episodes": self.num_episodes, "timesteps": self.num_timesteps, "updates": self.num_updates}
        return next((pair for pair in limits.items() if pair[1] is not None), ("episodes", None))

    @property
    def scores(self) -> bool:
        """Whether episodes are scored for somebody to hear of it."""
        return callable(self.evaluation_callback) or self.save_best_agent is not None

    def improves(self, runner: Any, returns: list[float]) -> bool:
        """Score episodes with these returns; keep the score and return True if it is the best of the run."""
        score = self.score(runner, returns)
        if score is None or not score > runner.best_evaluation_score:  # NaN is no improvement
            return False
        runner.best_evaluation_score = score
        return True

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
