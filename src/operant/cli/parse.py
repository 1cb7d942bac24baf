"""From flags to options. Flags derive from configs; unknown ones are errors with the close match."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from operant.agents.table import AGENTS, ALIASES, EXAMPLE, entry
from operant.cli.tables import flag
from operant.errors import UsageError, minibatch_hint, quoted, suggest, working_directory
from operant.spec import Config, aliases, default, options
from operant.spec.program_cache import VARIABLE
from operant.spec.run import RunConfig

NAMES_OF_AGENTS = {*AGENTS, *ALIASES}
NAMES = ("agent", "env", "environment", "level", "logger")
"""Options that may name something from a module."""


_NEGATIVE = re.compile(r"-((\d[\d_]*\.?|[\d_]*\.\d)[\d_]*(e[+-]?\d+)?|inf(inity)?)$", re.IGNORECASE)


class _Parser(argparse.ArgumentParser):
    """Argparse with operant's errors, which takes for a number whatever Python does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._negative_number_matcher = _NEGATIVE  # its own knows no exponents: it took -1e3 for a flag

    def error(self, message: str) -> NoReturn:
        raise UsageError(message[:1].upper() + message[1:] + ".")


def leading_agent(arguments: Sequence[str], command: str) -> tuple[str | None, list[str]]:
    """Return the agent, if any, that the arguments of a command begin with, and the flags.

    Raises:
        OperantError: there is no such agent.
    """
    if not arguments or arguments[0].startswith("-"):
        return None, list(arguments)
    agent, *flags = arguments
    search_here(agent)
    if agent not in NAMES_OF_AGENTS and looks_like_env(agent):
        right = quoted("operant", command, EXAMPLE, "--env", agent, *flags)
        raise UsageError(f"{agent!r} is an environment, and the agent comes first: {right}")
    entry(agent)
    return agent, flags


def looks_like_env(word: str) -> bool:
    """Tell whether a word is the id of an environment, installed or not."""
    from operant.envs import catalog

    return bool(re.search(r"-v\d+$", word)) or word in {row.id for row in catalog.known()}


def is_own(name: object) -> bool:
    """Tell whether an argument names something from a module, `module:Name`; others load nothing."""
    if not isinstance(name, str) or ":" not in name:
        return False
    from operant.envs import catalog

    return catalog.is_own(name)


def search_here(name: object) -> None:
    """Let modules in the current folder be found, after all others, if the command line names one."""
    here = str(working_directory())
    if is_own(name) and here not in sys.path:
        sys.path.append(here)


def asks_for_help(flags: Sequence[str]) -> bool:
    """Tell whether help is wanted: it is asked for, or nothing else is."""
    return not flags or not {"--help", "-h", "--help-all"}.isdisjoint(flags)


BESIDE_TRAINING = ("play", "tune")
"""Commands that take flags of `operant train`, but not all of them."""


def peek(arguments: Sequence[str], name: str) -> str | None:
    """Return the value of one flag, whatever the others are; None if it is not given."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument(name, dest="value", nargs="?")
    value: str | None = parser.parse_known_args(list(arguments))[0].value
    return value


def parse(
    configs: Iterable[type[Config]],
    arguments: Sequence[str],
    command: str,
    *,
    short: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    several: bool = False,
    positional: str | None = None,
) -> dict[str, Any]:
    """Return the options that were given, by name; that of `ProcessConfig` is put into effect here.

    A flag is written in full: an abbreviation of one today may be one of two tomorrow. Values are read by the
    option's type; a number with a schedule is written `linear:START:END:STEPS`, structured values as JSON,
    dicts of arguments also as `NAME=VALUE ...`.

    Args:
        configs: the configs that declare the options.
        arguments: of the command line.
        command: for messages.
        short: letters of options that have one.
        without: options that are no flags of this command.
        several: take one or more values of every option that has a search kind, as a list.
        positional: name for the list of arguments that belong to no flag; None: there may be none.

    Where an agent or environment is named as `module:Name`, the current folder is searched too.

    Raises:
        UsageError: an unknown or abbreviated flag, or a value that is missing or of the wrong type.
    """
    parser = _Parser(
        prog=f"operant {command}", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS,
        exit_on_error=False,
    )  # fmt: skip
    known = add_flags(parser, configs, short=short, without=without, several=several)
    try:
        if positional is not None:
            parser.add_argument(positional, nargs="*", default=[])
            namespace, unknown = parser.parse_known_intermixed_args(list(arguments))
        else:
            namespace, unknown = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise _refused(error, arguments, configs) from None
    if unknown:
        bad = next((word for word in unknown if word in NAMES_OF_AGENTS and " " not in command), unknown[0])
        if not bad.startswith("-") or _NEGATIVE.match(bad):
            raise _stray(bad, list(arguments), known, command, tuned=several)
        hint = _minibatches(unknown, vars(namespace), configs) or _meant(bad, known, command)
        raise UsageError(f"Unknown flag {bad!r} for {command}.{hint}")
    for name in NAMES:
        named = getattr(namespace, name, None)
        for each in named if isinstance(named, list) else (named,):
            search_here(each)
    values = vars(namespace)
    if not values.pop("compilation_cache", True):
        os.environ[VARIABLE] = "0"  # of processes that this one starts, too
    return values


def _refused(
    error: argparse.ArgumentError, arguments: Sequence[str], configs: Iterable[type[Config]]
) -> UsageError:
    names = [name for name in (error.argument_name or "").split("/") if name.startswith("--")]
    metas = [meta for config in configs for name, meta in options(config).items() if flag(name) in names]
    choices = [str(choice) for meta in metas for choice in meta.choices or ()]
    listed = f" Give one of: {', '.join(choices)}." if choices else ""
    given = re.fullmatch("ignored explicit argument '(.*)'", error.message)
    if given is not None:
        typed = next((name for name in names if f"{name}={given[1]}" in arguments), names[0])
        switch = _switched(typed, names, given[1])
        return UsageError(f"{typed} takes no value. Received: {given[1]}.{switch}")
    return UsageError(f"{names[0]}: {error.message}.{listed}")


def _switched(typed: str, flags: Sequence[str], word: str) -> str:
    """Return how a switch is given instead of with a word such as `False`; nothing for other words."""
    if word.lower() in ("true", "1", "yes", "on"):
        return f" Say {typed} alone."
    if word.lower() not in ("false", "0", "no", "off"):
        return ""
    others = (each for each in flags if each.startswith("--no-") != typed.startswith("--no-"))
    other = next(others, None)
    return f" Leave {typed} out." if other is None else f" Say {other}."


def _minibatches(unknown: Sequence[str], given: Mapping[str, Any], configs: Iterable[type[Config]]) -> str:
    defaults = {name: default(config, name) for config in configs for name in options(config)}
    values = {**defaults, **given}
    name, _, value = " ".join(unknown[:2]).replace("=", " ", 1).partition(" ")
    n_steps, n_envs = values.get("n_steps"), values.get("n_envs")
    if "mini_batches" not in values or not value.isdecimal() or not isinstance(n_steps, int):
        return ""
    hint = minibatch_hint(name, int(value), n_steps, n_envs if isinstance(n_envs, int) else None)
    return hint.replace("mini_batches", "--mini-batches")


def _meant(bad: str, known: Mapping[str, argparse.Action], command: str) -> str:
    """Return which flags an unknown one may stand for: those that it begins, or a similar one."""
    name = bad.partition("=")[0]
    off = (each for action in known.values() for each in action.option_strings if each.startswith("--no-"))
    flags = {*known, *off}  # without other libraries' names for them
    begun = sorted(each for each in flags if each.startswith(name))
    if len(begun) > 1:
        return f" Did you mean one of {', '.join(begun)}?"
    if command.split()[0] in BESIDE_TRAINING and name in map(flag, options(RunConfig)):  # others look like it
        if name == "--max-steps":
            return " The steps of a trial are --trial-steps."
        if name == "--checkpoints":
            return " What it writes is read by --weights."
        return " It is a flag of `operant train`: leave it out."
    return suggest(name, begun or flags, listed=False) or f" `operant {command} --help-all` lists them."


def _stray(
    bad: str, arguments: list[str], known: Mapping[str, argparse.Action], command: str, tuned: bool
) -> UsageError:
    """Say what is wrong with an argument that belongs to no flag: often a second value of the one before.

    `known` are flags by name; if `tuned`, those of options with a search kind take several values.
    """
    places = [i for i, argument in enumerate(arguments) if argument == bad]
    values = {i + 1 for i, word in enumerate(arguments) if word.startswith("-") and "=" not in word}
    at = next((i for i in reversed(places) if i not in values), places[0])
    flags = (i for i in range(at) if arguments[i].startswith("-") and not _NEGATIVE.match(arguments[i]))
    begun = max(flags, default=-1)
    name = arguments[begun].partition("=")[0]
    matches = (action for action in known.values() if begun >= 0 and name in action.option_strings)
    action = next(matches, None)
    text = f"Unknown argument {bad!r} for {command}."
    words: dict[Any, str] = {0: "no value", None: "one value"}
    if action is not None and action.nargs in words:
        why = " is not tuned (it has no hp_type), so it" if tuned else ""
        received = " ".join(arguments[begun : at + 1])
        switch = "" if action.nargs is None else _switched(name, action.option_strings, bad)
        text += f" {name}{why} takes {words[action.nargs]}. Received: {received}.{switch}"
    rest = [argument for i, argument in enumerate(arguments) if i != at]
    if bad in NAMES_OF_AGENTS and " " not in command:
        return UsageError(f"{text} The agent comes first: {quoted('operant', command, bad, *rest)}")
    if looks_like_env(bad) and "--env" in known and "--env" not in rest:
        right = quoted("operant", *command.split(), "--env", bad, *rest)
        return UsageError(f"{text} An environment follows --env: {right}")
    return UsageError(text if action is not None else text + suggest(bad, known, listed=False))


def readable(text: str) -> str:
    """Return a message as a person at a terminal reads it: options by their flags, lines in its width."""
    if not re.match(r"operant: .+, line \d+: ", text):  # in a file options have no dashes
        text = _by_flags(text)
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size((80, 24)).columns
    how: Any = {"break_long_words": False, "break_on_hyphens": False, "replace_whitespace": False}
    return "\n".join(textwrap.fill(line, width, **how) for line in text.split("\n"))


def _by_flags(text: str) -> str:
    kinds, names = [Config], dict[str, bool]()
    for kind in kinds:  # those that were loaded, as far as this command needs any
        kinds += kind.__subclasses__()
        # By defaults: hints of configs that no command reads may name what only type checkers import.
        if kind is not Config:
            names |= {name: default(kind, name) is not False for name in options(kind)}

    def given(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        if value in ("True", "False"):
            on = flag(name) if value == "True" else f"no {flag(name)}"
            return f"--no-{flag(name)[2:]}" if value == "False" and names[name] else on
        return f"no {flag(name)}" if value == "None" else f"{flag(name)} {value}"

    def named(match: re.Match[str]) -> str:
        return flag(match[1])

    codes: list[str] = []

    def aside(match: re.Match[str]) -> str:
        codes.append(match[0])
        return f"\0{len(codes) - 1}\0"

    text = re.sub(r"(?<=\w)\((?:[^()]|\([^()]*\))*\)", aside, text)  # arguments of a call stay code
    each, several = "|".join(names), "|".join(name for name in names if "_" in name)
    begins, value = r"(?:(?<=^)|(?<=operant: ))", r"(\([^()]*\)|'[^']*'|[^\s,;()]*[^\s,;().])"
    within = r"(?:(?<=Received: )|(?<=, )|(?<=without )|(?<=at most ))"
    text = re.sub(rf" \((?:{each})=[^()]*\)", "", text)  # beside a flag, for programs
    text = re.sub(rf"(?m)(?:{begins}|{within})({each})={value}", given, text)
    text = re.sub(rf"(?m){begins}({each})(?= (?:must|is|needs|has) )", named, text)
    text = re.sub(rf"(?<![\w.'\"/-])(?<!\w\()({several})(?![\w('=\0]|\.\w)", named, text)
    return re.sub("\0(\\d+)\0", lambda match: codes[int(match[1])], text)


def add_flags(
    parser: argparse.ArgumentParser,
    configs: Iterable[type[Config]],
    *,
    short: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    several: bool = False,
) -> dict[str, argparse.Action]:
    """Add a flag for every option of configs; return them by flag. The arguments are those of `parse`."""
    known: dict[str, argparse.Action] = {}
    for config in configs:
        hints, names = typing.get_type_hints(config), aliases(config)
        for name, meta in options(config).items():
            if name in without:
                continue
            words = [flag(name), *(flag(word) for word, meant in names.items() if meant == name)]
            if name in (short or {}):
                words.insert(0, f"-{(short or {})[name]}")
            tuned = several and meta.search is not None
            known[flag(name)] = _add(parser, name, hints[name], default(config, name), words, tuned)
    return known


def _add(
    parser: argparse.ArgumentParser, name: str, hint: Any, value: Any, words: Sequence[str], tuned: bool
) -> argparse.Action:
    if hint in (bool, bool | None):
        if tuned:
            return parser.add_argument(*words, dest=name, nargs="*", action=_Switch, type=_truth(name))
        action = "store_true" if value is False else argparse.BooleanOptionalAction
        return parser.add_argument(*words, dest=name, action=action)
    if tuned:
        return parser.add_argument(*words, dest=name, nargs="+", type=_reader(name, hint))
    if lists := [kind for kind in (hint, *typing.get_args(hint)) if typing.get_origin(kind) is tuple]:
        read = _reader(name, int) if int in typing.get_args(lists[0]) else str
        return parser.add_argument(*words, dest=name, nargs="+", type=read)
    if any(typing.get_origin(kind) is dict for kind in typing.get_args(hint)):
        return parser.add_argument(*words, dest=name, nargs="+", action=_Arguments)
    return parser.add_argument(*words, dest=name, type=_reader(name, hint))


class _Switch(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, values or [True])


class _Arguments(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if values[0].startswith("{"):
            parsed = _json(self.dest, " ".join(values))
        elif values == ["none"]:
            parsed = None
        else:
            parsed = {}
            for name, value in (_argument(self.dest, word) for word in values):
                if name in parsed:
                    raise UsageError(f"{flag(self.dest)} was given {name} twice: {' '.join(values)}.")
                parsed[name] = value
        setattr(namespace, self.dest, parsed)


def _argument(name: str, word: str) -> tuple[str, Any]:
    """Read `NAME=VALUE`: JSON if it is, or True, False, None, a number, else a string."""
    key, equals, text = word.partition("=")
    if not (equals and key.isidentifier()):
        raise UsageError(
            f"{flag(name)} must be NAME=VALUE ..., or a JSON object. Received: {word!r}. "
            f'Write {flag(name)} name=1 other=true, or {flag(name)} \'{{"name": 1, "other": true}}\'.'
        )
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return key, words[text.lower()]
    for read in (json.loads, float):
        with contextlib.suppress(ValueError):
            return key, read(text)
    return key, text


def _truth(name: str) -> Any:
    def read(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise UsageError(f"{flag(name)} must be true or false. Received: {text!r}.")
        return text.lower() == "true"

    return read


def _reader(name: str, hint: Any) -> Any:
    kinds = set(typing.get_args(hint)) or {hint}

    def read(text: str) -> Any:
        if hint is Any:
            return _json(name, text) if text[:1] in "[{" else text
        if text.lower() == "none" and type(None) in kinds:
            return None
        for kind, word in ((int, "a whole number"), (float, "a number")):
            if kind in kinds:
                return _number(name, text, kind, word, schedules=len(kinds - {int, float, type(None)}) > 0)
        return _json(name, text) if text.startswith("{") else text

    return read


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"{flag(name)} must be JSON where it begins with [ or {{. Received: {text!r}: {error}. "
            "Quote the whole for the shell; inside, use double quotes, true, false and null."
        ) from None


def _number(name: str, text: str, kind: type, word: str, schedules: bool) -> Any:
    try:
        value = float(text)
        if kind is int:
            if value != int(value):
                raise ValueError
            return int(value)
        return value
    except (ValueError, OverflowError):
        if schedules and (text.startswith("{") or ":" in text):
            return _json(name, text) if text.startswith("{") else text
        other = ", or a schedule such as linear:START:END:STEPS" if schedules else ""
        raise UsageError(f"{flag(name)} must be {word}{other}. Received: {text!r}.") from None
