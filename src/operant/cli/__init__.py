"""The command line: a thin shell, each command is one call into the library.

`main` imports neither JAX nor Keras until a command needs them, so that help comes at once.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

COMMANDS = {
    "train": ("training.run", "Train given an agent and environment"),
    "play": ("playing.run", "Play a game given a trained agent and environment"),
    "tune": ("tuning.run", "Tune hyperparameters given an agent and environment"),
    "reproduce": ("results.reproduce", "Repeat a run from its seed; tell whether the outcome is the same"),
    "plot": ("results.plot", "Plot learning curves and scores of runs"),
    "report": ("results.report", "Write a page about runs or a study: curves, settings, a video"),
    "card": ("results.card", "Write a model card with a copy of the agent, for the Hugging Face Hub"),
    "run": ("running.run", "Train or run an agent by a Runner, here or elsewhere"),
    "serve": ("serving.run", "Serve environments to agents on other machines"),
    "list": ("listing.run", "List agents, environments, presets or runs"),
    "completion": ("completing.run", "Print a script that completes command lines in bash, zsh or fish"),
}
"""What each runs, by module, so that only the modules of one command are imported; and its help."""

HABITS = {
    **dict.fromkeys(("eval", "evaluate", "test"), "play {} --episodes 100"),
    **dict.fromkeys(("enjoy", "watch", "render", "record"), "play {} --video-dir videos"),
    **dict.fromkeys(("resume", "continue"), "train --resume {}"),
    **dict.fromkeys(("optimize", "optimise", "hpo", "sweep"), "tune"),
    **dict.fromkeys(("envs", "agents", "presets", "runs", "algos"), "list"),
    "replay": "reproduce {}",
    "learn": "train",
}
"""What commands of other libraries are here; {} stands for the run that was named."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit status (0, 1 for a failure, 2 for bad input).

    What the system refuses (a folder that cannot be written to, a full disk) is reported in one line, as a
    failure. Other exceptions are faults of operant or of the user's own classes, and are shown with their
    traceback.
    """
    try:
        # Whatever takes time to import is imported here: a Ctrl-C meanwhile then interrupts the command.
        from operant.errors import OperantError, shown
        from operant.training import signals

        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # what its encoding lacks must not end a command
                stream.reconfigure(errors="replace")
        arguments = list(sys.argv[1:] if argv is None else argv)
        run = _command(arguments)
        try:
            with signals.terminating(), signals.answered():  # else a scheduler would take a run for done
                return 0 if run is None else int(run(arguments[1:]))
        finally:
            if (console := sys.modules.get("operant.tracking.console")) is not None:
                console.Ticker.end()
    except KeyboardInterrupt:
        print("operant: interrupted", file=sys.stderr)
        if argv is None:  # during compilation, XLA's threads do not survive Python's own exit
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            os._exit(130)
        return 130
    except OperantError as error:
        from operant.cli import parse

        print(parse.readable(f"operant: {error}"), file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        name = error.filename
        where = "" if name is None else f": {(shown(name) if isinstance(name, str) else name)!r}"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is not None
        remedy = ". Make room there." if full else ""
        print(f"operant: {error.strerror or error}{where}{remedy}", file=sys.stderr)
        return 1


def _command(arguments: list[str]) -> Any:
    """Return the function of a command; None if help or the version was asked for, and printed."""
    from operant.errors import UsageError, suggest

    if arguments and arguments[0] == "help" and arguments[1:]:  # operant help train
        arguments[:] = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        from operant.cli import tables

        print(tables.base_help({name: text for name, (_, text) in COMMANDS.items()}))
        return None
    command = arguments[0]
    if command in ("-V", "--version"):
        from operant import __version__

        print(f"operant {__version__}")
        return None
    if command not in COMMANDS:
        from operant.agents.table import AGENTS, ALIASES

        named = next((word for word in arguments[1:] if not word.startswith("-")), "RUN")
        if command == "export":
            raise UsageError(
                "A policy is exported in Python: operant.Agent.load("
                f"{named!r}).save('exported', format='onnx'). It plays by: operant play exported --env ENV"
            )
        if command in HABITS:
            raise UsageError(f"Unknown command {command!r}. Use: operant {HABITS[command].format(named)}")
        if command.lower() in (*AGENTS, *ALIASES):
            raise UsageError(f"{command!r} is an agent. Use: operant train {command.lower()} --env ENV")
        raise UsageError(f"Unknown command {command!r}.{suggest(command, COMMANDS)}")
    module, function = COMMANDS[command][0].split(".")
    return getattr(importlib.import_module(f"operant.cli.{module}"), function)
