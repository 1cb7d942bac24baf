"""`operant completion`: a script that completes commands, agents, flags and values, starting no process."""

from __future__ import annotations

import argparse
import functools
from typing import Any

from operant.agents.table import AGENTS, config_class
from operant.cli import parse
from operant.cli.listing import WHAT
from operant.cli.training import Extra
from operant.envs.remote.serve import ServeConfig
from operant.errors import SpecError, UsageError, suggest
from operant.execution.model_card import CardConfig
from operant.execution.play import PlayConfig
from operant.execution.report import ReportConfig
from operant.spec import Config, options
from operant.spec.run import SHORT, ProcessConfig, RunConfig, RunnerConfig
from operant.tracking.figures import PlotConfig
from operant.training.reproduce import ReproduceConfig
from operant.tuning.plan import NOT_TUNED, TuneConfig

SHELLS = ("bash", "zsh", "fish")
FOLDERS = frozenset((
    "run_dir", "resume", "video_dir", "frame_dir", "plots", "visualize_directory", "summaries", "recordings",
    "save_best_agent",
))  # fmt: skip
"""Options whose value is a folder."""
FILES = frozenset((
    "weights", "checkpoints", "history_checkpoint", "model", "actor_model", "critic_model", "out", "scores",
    "path", "token_file", "certificate", "key", "config", "save_config", "policy", "agent",
))  # fmt: skip
"""Options whose value is a file, or may be one."""
_FILES = {
    "bash": "_operant_files_or_flags",
    "zsh": "_files",
    "fish": "(__fish_complete_path (commandline -ct))",
    "preamble": {
        # After a flag that takes several files, shtab's script would offer nothing else; its variables say
        # what was typed.
        "bash": """_operant_files_or_flags() {
  if [[ "$completing_word" == -* ]]; then
    compgen -W "${current_option_strings[*]}" -- "$completing_word"
  else
    compgen -f -- "$1"
  fi
}"""
    },
}
USAGE = """Usage:
    operant completion <shell>

Write the script to where the shell looks for it, then open a new shell:
    bash    ~/.local/share/bash-completion/completions/operant
    zsh     _operant in a folder of $fpath
    fish    ~/.config/fish/completions/operant.fish"""


def run(arguments: list[str]) -> int:
    """Print the script of a shell, or help when none is named."""
    if parse.asks_for_help(arguments):
        print(USAGE)
        return 0
    shell, *rest = arguments
    if shell not in SHELLS:
        raise UsageError(
            f"There is no completion for {shell!r}.{suggest(shell, SHELLS, listed=False)} Known: "
            f"{', '.join(SHELLS)}."
        )
    if rest:
        raise UsageError(f"completion takes the name of a shell. Received: {' '.join(arguments)}.")
    print(script(shell))
    return 0


def script(shell: str) -> str:
    """Return the script of a shell; SpecError: the package that makes it is not installed."""
    try:
        import shtab
    except ImportError:
        raise SpecError(
            "Completion needs shtab. Install it with: pip install 'operant[completion]'"
        ) from None
    text: str = shtab.complete(_tree(), shell)
    return text


def _tree() -> argparse.ArgumentParser:
    from operant.cli import COMMANDS

    root = argparse.ArgumentParser(prog="operant", add_help=False)
    root.add_argument("-h", "--help", action="store_true", help="Show the commands")
    root.add_argument("-V", "--version", action="store_true", help="Show the version")
    commands = root.add_subparsers()
    parsers = {name: _command(commands, name, text) for name, (_, text) in COMMANDS.items()}

    def fill_with_agents(command: str, *configs: type[Config], **how: Any) -> None:
        agents = parsers[command].add_subparsers()
        filled = {parsers[command]: configs}
        for agent, entry in AGENTS.items():
            filled[_command(agents, agent, entry.help)] = (*configs, config_class(agent))
        for parser, theirs in filled.items():
            _fill(parser, *theirs, **how)
            parser.add_argument("--help-all", action="store_true", help="Show every flag")

    fill_with_agents("train", RunConfig, Extra, ProcessConfig)
    fill_with_agents("play", PlayConfig, ProcessConfig)
    fill_with_agents("tune", TuneConfig, RunConfig, ProcessConfig, without=NOT_TUNED, several=True)
    _fill(parsers["reproduce"], ReproduceConfig, ProcessConfig)
    _fill(parsers["plot"], PlotConfig)
    _fill(parsers["report"], ReportConfig)
    _fill(parsers["card"], CardConfig)
    _fill(parsers["run"], RunnerConfig, ProcessConfig, short=SHORT)
    _fill(parsers["serve"], ServeConfig)
    for command, count in (("reproduce", None), ("plot", "+"), ("report", "*"), ("card", None)):
        _completed(parsers[command].add_argument("run", nargs=count, help="Folder of a run"), "folder")
    parsers["list"].add_argument("what", choices=tuple(WHAT), help="What to list")
    parsers["completion"].add_argument("shell", choices=SHELLS, help="Shell")
    return root


def _command(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=_plain(text), add_help=False)
    parser.add_argument("--help", action="store_true", help="Show the flags")
    return parser


def _fill(parser: argparse.ArgumentParser, *configs: type[Config], **how: Any) -> None:
    known = parse.add_flags(parser, configs, **how)
    described = {name: meta for config in configs for name, meta in options(config).items()}
    for action in known.values():
        meta = described[action.dest]
        action.help = _plain(meta.help)
        if meta.choices is not None:
            action.choices = [str(choice) for choice in meta.choices if choice is not None]
        elif action.dest in FOLDERS:
            _completed(action, "folder")
        elif action.dest in FILES:
            _completed(action, "files" if action.nargs == "+" else "file")
        elif action.dest in ("env", "environment", "level"):
            action.complete = _environments()  # type: ignore[attr-defined]


def _completed(action: argparse.Action, kind: str) -> None:
    import shtab

    kinds = {"folder": shtab.DIRECTORY, "file": shtab.FILE, "files": _FILES}
    action.complete = kinds[kind]  # type: ignore[attr-defined]


@functools.cache
def _environments() -> dict[str, Any]:
    """Return what completes an environment's id: one function in the script, as many flags take one."""
    from operant.envs import catalog

    ids = " ".join(row.id for row in catalog.known() if "*" not in row.id)
    bare = " ".join(name for name in ids.split() if ":" not in name)  # a colon ends a word in bash
    return {
        "bash": "_operant_environments",
        "zsh": "_operant_environments",
        "fish": "(_operant_environments)",
        "preamble": {
            "bash": f'_operant_environments() {{\n  compgen -W "{bare}" -- "$1"\n}}',
            "zsh": f"_operant_environments() {{\n  compadd -- {ids}\n}}",
            "fish": f"function _operant_environments\n  printf '%s\\n' {ids}\nend",
        },
    }


def _plain(text: str) -> str:
    """Return a help text in one line, without the signs that argparse replaces."""
    return " ".join(text.split()).replace("%", "%%")
