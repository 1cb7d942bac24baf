"""A model card in the form of the Hugging Face Hub, beside a copy of the agent that is data only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from operant.checkpoint import weight_files
from operant.errors import SpecError, UsageError, as_folder, reading
from operant.execution.play import PlayConfig, prepared
from operant.execution.play import run as play_episodes
from operant.execution.report import shown_value, unusual
from operant.spec import Config, option
from operant.tracking.runs import read_run


class CardConfig(Config):
    """Options of `operant card`."""

    out: str = option("card", "Folder to write, new or empty")
    best: bool = option(
        False, "The policy of the run's best evaluation (--eval-frequency) instead of the newest"
    )
    episodes: int = option(20, "Episodes that are played for the mean return", low=1)
    seed: int = option(0, "Random seed of these episodes", low=0, high=2**32 - 1)
    env: str = option("", "The run's environment, given again if it is of a module in the current folder")

    def check(self) -> Iterator[str]:
        """Refuse a folder that cannot be made."""
        try:
            as_folder("out", self.out)
        except SpecError as fault:
            yield str(fault)


def write_card(run: str | Path, config: CardConfig | None = None) -> Path:
    """Write `README.md`, the model card, and `agent.safetensors` with its JSON file; return the folder.

    The card says the mean and standard deviation of the return over episodes that are played for it.

    Raises:
        OperantError: there is no such run or policy, or it cannot be played; nothing is written then.
    """
    config = CardConfig.from_dict({}) if config is None else config
    run, out = Path(run), Path(config.out)
    if out.exists() and any(out.iterdir()):
        raise UsageError(
            f"out must be a new or empty folder. Received: out={config.out!r}. Give another one."
        )
    data = read_run(run / "run.json")
    how = {"run_dir": str(run), "best": config.best, "episodes": config.episodes, "seed": config.seed}
    played = PlayConfig.from_dict({**how, "env": config.env}).located()
    learner, train, env, specification = prepared(played)
    returns = play_episodes(learner, train, env, played).rewards
    with reading(repr(str(run / "run.json")), SpecError):
        text = card(data, returns, int(train.counters.timesteps))
    arrays = weight_files.of_agent(learner.algorithm.weights(train.state), train.counters)
    weight_files.write(out / "agent.safetensors", arrays, specification)
    (out / "README.md").write_text(text, encoding="utf-8")
    return out


def card(data: Mapping[str, Any], returns: list[float], steps: int) -> str:
    """Return the card of a run, of which its `run.json` says `data`, as Markdown with metadata."""
    agent, env = data["agent"]["type"], data["run"]["env"]
    score = f"{np.mean(returns):.2f} +/- {np.std(returns):.2f}"
    kind = "reinforcement-learning"
    metadata = {
        "library_name": "operant",
        "tags": [env, agent, "deep-reinforcement-learning", kind, "operant"],
        "model-index": [{"name": agent, "results": [{
            "task": {"type": kind, "name": kind},
            "dataset": {"name": env, "type": env},
            "metrics": [{"type": "mean_reward", "name": "mean_reward", "value": score, "verified": False}],
        }]}],
    }  # fmt: skip
    settings = [(name, shown_value(value), usual) for name, (usual, value) in unusual(data).items()]
    return f"""\
---
{json.dumps(metadata, indent=2, ensure_ascii=False)}
---

# {_code(agent)} on {_code(env)}

A policy trained with operant for {steps:,} environment steps (seed {_code(data["run"].get("seed"))}).

Mean return over {len(returns)} episodes with the best actions: **{score}** (standard deviation).

## Use

```python
from operant import Agent

agent = Agent.load(directory="FOLDER_OF_THIS_CARD")
action = agent.act(states=observation, independent=True)
```

`agent.safetensors` holds numbers, and the JSON file beside it says what they are: loading runs no code.

## Training

Options that differ from their defaults:

{_table(("option", "value", "default"), settings)}

Versions:

{_table(("package", "version"), data["versions"].items())}
"""


def _code(value: object) -> str:
    """Return a value as code in Markdown, in which nothing is markup, on one line."""
    text = " ".join(str(value).split()).replace("`", "'").replace("|", "\\|")
    return f"`{text}`"


def _table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [list(header), ["---"] * len(list(header)), *(list(map(_code, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
