"""Help texts and tables, made from the options of configs."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from operant import __version__
from operant.agents.options.shared_options import AgentConfig
from operant.agents.table import AGENTS, config_class, entry
from operant.spec import Config, default, options

OWN = "module:Name"
"""How something from a module is named; the module may be a file in the current folder."""
HEADER = ("flags", "help", "default", "hp_type")


def flag(name: str) -> str:
    """Return the flag of an option."""
    return "--" + name.replace("_", "-")


def base_help(commands: Mapping[str, str]) -> str:
    """Return what a bare `operant` prints."""
    lines = [
        f"operant {__version__}",
        "",
        "Usage:",
        "    operant <command> <agent> [options] [args]",
        "",
        "Available commands:",
        *(f"    {name:<10} {text}" for name, text in commands.items()),
        "",
        "Use operant <command> to see more info about a command",
        "Use operant <command> <agent> to see more info about command + agent",
    ]
    return "\n".join(lines)


def name_lines(names: Mapping[str, str]) -> list[str]:
    """Return a line for each name with its text, wrapped so that it fits the terminal."""
    width = max(40, shutil.get_terminal_size((80, 24)).columns)
    longest = max(map(len, names), default=0)
    lines = []
    for name, text in names.items():
        start = f"    {name:<{longest}} "
        lines += textwrap.wrap(text, width, initial_indent=start, subsequent_indent=" " * len(start))
    return lines


def page(usage: Iterable[str], *parts: str) -> str:
    """Return the help of a command: how it is used, then other texts."""
    return "\n\n".join(["\n    ".join(["Usage:", *usage]), *parts])


def agent_page(
    command: str, agent: str | None, usage: Iterable[str], configs: Iterable[type[Config]], **how: Any
) -> str:
    """Return the help of a command that takes an agent, and of the agent if one is named.

    `how` are arguments of `option_rows`.
    """
    if agent is None:
        known = {**{name: known.help for name, known in AGENTS.items()}, OWN: "A class of your own"}
        listed = "\n".join(["Agents:", *name_lines(known)])
        return page(usage, listed, table(command, HEADER, option_rows([*configs, AgentConfig], **how)))
    rows = option_rows([*configs, config_class(agent)], entry(agent).options, **how)
    return page(usage, entry(agent).help, table(f"{command} {agent}", HEADER, rows))


def wrap(text: str, width: int) -> list[str]:
    """Return a text in lines of so many characters; too long a word is broken after a slash, if any."""
    words: list[str] = []
    for word in text.split():
        parts = [""]
        for piece in re.findall("[^/]*/|[^/]+", word) if len(word) > width else [word]:
            if parts[-1] and len(parts[-1] + piece) > width:
                parts.append("")
            parts[-1] += piece
        words += parts
    return textwrap.wrap(" ".join(words), width) or [""]


def option_rows(
    configs: Iterable[type[Config]],
    fixed: Mapping[str, Any] | None = None,
    short: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    texts: Mapping[str, str] | None = None,
) -> list[list[str]]:
    """Return a row of flag, help, default and search kind for every option, sorted by flag.

    `fixed` are defaults that differ under the agent's name, `short` letters of options that have one, and
    `texts` help that differs in this command; options in `without` are left out.
    """
    rows = []
    for config in configs:
        for name, meta in options(config).items():
            if name in without:
                continue
            value = (fixed or {}).get(name, default(config, name))
            shown = "-" if value is None or value is False or value == () or value == "" else str(value)
            letter = f"-{short[name]}, " if short and name in short else ""
            rows.append([letter + flag(name), (texts or {}).get(name, meta.help), shown, meta.search or "-"])
    return sorted(rows, key=lambda row: row[0][row[0].index("--") :])


def _stacked(cells: Sequence[str], width: int) -> list[str]:
    whole = "  ".join(cell for i, cell in enumerate(cells) if i != 1)
    return [
        *textwrap.wrap(
            whole, width, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
        ),
        *(f"    {line}" for line in wrap(cells[1], max(10, width - 4))),
    ]


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return a pipe table under a title; long help, the second column, is wrapped so that it fits the width.

    That is by default the terminal's. In fewer than 80 columns help would become very tall: if it is long, it
    is put below the other cells instead.
    """
    width = shutil.get_terminal_size((80, 24)).columns if width is None else width
    others = [i for i in range(len(header)) if i != 1]
    widths = {i: max(len(header[i]), *(len(row[i]) for row in rows)) for i in others}
    frame = 3 * len(header) + 1
    room = max(10, width - frame - sum(widths.values()))
    if width < 80 and any(len(row[1]) > room for row in rows):
        return "\n".join(
            [title, "", *_stacked(header, width), "", *(x for row in rows for x in _stacked(row, width))]
        )
    wrapped = [[wrap(row[1], room), row] for row in rows]
    widths[1] = max(len(header[1]), *(len(line) for lines, _ in wrapped for line in lines))

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(f"{cell:<{widths[i]}}" for i, cell in enumerate(cells)) + " |"

    out = [
        title,
        "",
        line(header),
        "|" + "|".join(":" + "-" * (widths[i] + 1) for i in range(len(header))) + "|",
    ]
    for lines, row in wrapped:
        for k, text in enumerate(lines):
            out.append(line([text if i == 1 else (cell if k == 0 else "") for i, cell in enumerate(row)]))
    return "\n".join(out)
