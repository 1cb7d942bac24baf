"""Logger that writes to Weights & Biases."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operant.errors import SpecError
from operant.tracking.record import Logger, Record


class WandB(Logger):
    """Writes every record's scalars at their true environment step, under their names of `METRICS`.

    W&B ignores records of steps before the last that it has: steps that a run repeats, because it continues
    from an earlier checkpoint, stay there as they were first logged.

    Offline (files under `directory`, for ``wandb sync``) if ``WANDB_MODE`` says so, or if no key is known: a
    run must not wait for someone to log in.

    Raises:
        SpecError: the package is missing.
    """

    def __init__(
        self, session: str, directory: str | Path, config: Mapping[str, Any], resume_id: str | None = None
    ) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise SpecError(
                "monitor_session needs the package wandb. Install it: pip install 'operant[wandb]'."
            )
        import wandb

        Path(directory).mkdir(parents=True, exist_ok=True)
        asked = "WANDB_MODE" in os.environ or wandb.run is not None  # the program itself has one
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "operant"),
            name=session,
            dir=str(directory),
            config=dict(config),
            mode=None if asked or wandb.login(prompt=False, verify=False) else "offline",
            id=resume_id,
            resume="allow" if resume_id else None,
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.id: str = self._run.id
        self.offline: bool = bool(self._run.offline)

    def record(self, record: Record) -> None:
        """Write scalars."""
        self._run.log({**record.values, "time/elapsed": record.time}, step=record.step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
