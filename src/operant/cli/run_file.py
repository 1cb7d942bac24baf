"""Options of `operant train` in a file: `--config run.toml`, and `--save-config`."""

from __future__ import annotations

import json
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from operant.agents.table import entry
from operant.errors import OperantError, SpecError, as_folder, suggest, value_error
from operant.spec import Config, aliases, checked, options, plain, read_json
from operant.spec.run import PROCESSES, RunnerConfig

SUFFIXES = (".toml", ".yaml", ".yml", ".json")
ENDINGS = "a file that ends with .toml, .yaml or .json"
NOT_FILED = ("resume", "config", "save_config")
OF_ONE_RUN = {"run_dir", "resume", "history_checkpoint", "checkpoints", *PROCESSES}
"""Options that another run takes from no `run.json`: they say where that one wrote."""


class RunFile:
    """What a file says of a run to train: options by the names of their flags, with `agent` for the agent.

    The `run.json` of a run is one, too: it says how that run was begun.

    Raises:
        SpecError: the file cannot be read, or holds no options.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if Path(path).suffix.lower() not in SUFFIXES:
            raise value_error("config", f"{ENDINGS}, or a run's run.json", path)
        data = read_json(path, "run") if path.lower().endswith(".json") else _read(path)
        agent = data.pop("agent", None)
        if isinstance(agent, dict) and isinstance(run := data.get("run"), dict):
            data = {**agent, **{name: value for name, value in run.items() if name not in OF_ONE_RUN}}
            agent = data.pop("type", None)
        try:
            if agent is not None:
                entry(checked(RunnerConfig, "agent", agent))
        except OperantError as fault:
            raise self._fault("agent", str(fault)) from None
        self.agent: str | None = agent
        self._data = {name.replace("-", "_"): value for name, value in data.items()}

    def get(self, name: str) -> Any:
        """Return what the file says of an option, whatever it is; None: nothing."""
        return self._data.get(name)

    def values(self, configs: Iterable[type[Config]]) -> dict[str, Any]:
        """Return the options by name; SpecError: the first that is unknown or wrong, with file and line."""
        known = {
            word: (config, name)
            for config in configs
            for word, name in ({n: n for n in options(config)} | aliases(config)).items()
        }
        values = {}
        for word, value in self._data.items():
            if word in NOT_FILED:
                raise self._fault(word, f"{word!r} is for the command line alone. Leave it out.")
            if word not in known:
                raise self._fault(word, f"{word!r} is no option here.{suggest(word, known, listed=False)}")
            config, name = known[word]
            if value == "none" and type(None) in typing.get_args(typing.get_type_hints(config)[name]):
                value = None
            try:
                checked(config, name, value)
            except OperantError as fault:
                raise self._fault(word, str(fault)) from None
            values[name] = value
        return values

    def _fault(self, word: str, text: str) -> SpecError:
        """Return an error that says in which line the file has a word, as its formats write keys."""
        lines = Path(self.path).read_text(encoding="utf-8").splitlines()
        key = re.compile(rf"""(^|[{{,])\s*["']?{"[-_]".join(map(re.escape, word.split("_")))}["']?\s*[=:]""")
        line = next((f", line {i}" for i, line in enumerate(lines, 1) if key.search(line)), "")
        return SpecError(f"{text} See {self.path}{line}.")


def _read(path: str) -> dict[str, Any]:
    """Return what a file of TOML or YAML holds."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        return tomllib.loads(text) if path.lower().endswith(".toml") else _from_yaml(path, text)
    except SpecError:
        raise
    except FileNotFoundError:
        raise SpecError(f"The run file {path!r} does not exist.") from None
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"The run file {path!r} is not TOML: {error}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"The run file {path!r} cannot be read: {error}.") from None


def _from_yaml(path: str, text: str) -> dict[str, Any]:
    yaml = _yaml(path)
    try:
        # Lines of aliases to aliases may stand for more values than any memory holds.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise SpecError(f"The run file {path!r} must hold no aliases (*name). Write the value itself.")
        data = yaml.safe_load(text)  # makes plain data only
    except yaml.YAMLError as error:
        raise SpecError(f"The run file {path!r} is not YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise SpecError(f"The run file {path!r} must hold options by name, as in 'n_envs: 8'.")
    return data


def _yaml(path: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise SpecError(f"{path!r} needs PyYAML. Install it: pip install 'operant[yaml]'.") from None
    return yaml


def write(path: str, agent: str, values: Mapping[str, Any]) -> None:
    """Write a file that `RunFile` reads; SpecError: its format is unknown, or has no word for a value."""
    file = Path(path)
    if file.suffix.lower() not in SUFFIXES:
        raise value_error("save_config", ENDINGS, path)
    as_folder("save_config", file.parent, path).mkdir(parents=True, exist_ok=True)
    data = {"agent": agent, **{name: plain(value) for name, value in values.items() if name != "run_dir"}}
    if file.suffix.lower() == ".json":
        text = json.dumps(data, indent=2) + "\n"
    elif file.suffix.lower() != ".toml":
        text = _yaml(path).safe_dump(data, sort_keys=False, allow_unicode=True)
    else:
        text = "".join(f"{name} = {_written(name, value)}\n" for name, value in data.items())
    file.write_text(text, encoding="utf-8")


def _written(name: str, value: Any, whole: bool = True) -> str:
    """Return a value as TOML; a missing one, for which TOML has no word, is what flags call none."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(k)} = {_written(name, v, False)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(_written(name, part, False) for part in value) + "]"
    if value is None and not whole:
        raise SpecError(
            f"{name} must not hold null, for which TOML has no word. Give --save-config a .json file."
        )
    return json.dumps("none" if value is None else value, ensure_ascii=False)
