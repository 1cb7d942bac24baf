"""Help texts and tables, made from the options of configs."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from operant import __version__
from operant.agents.options.shared_options import AgentConfig
from operant.agents.table import AGENTS, config_class, entry
from operant.spec import Config, aliases, default, options

OWN = "module:Name"
"""How something from a module is named; the module may be a file in the current folder."""
HEADER = ("flags", "help", "default", "hp_type")
NARROW = 100
"""Columns below which help stands under its flag: beside it, it would be very tall."""
LEAST = 40
"""Characters that the second column of a table takes at least, if its texts are that long."""
GROUPS = {
    "Environment": (
        "env", "n_envs", "env_kwargs", "max_episode_timesteps", "preprocess", "max_frame", "resize", "gray",
        "frame_stack", "frame_skip", "clip_rewards", "episodic_life", "vector", "info_keywords",
    ),
    "Checkpoints and evaluation": (
        "weights", "checkpoints", "history_checkpoint", "save_seconds", "save_frequency", "keep_checkpoints",
        "save_memory", "eval_frequency", "eval_episodes",
    ),
    "Several machines": (
        "threads", "n_devices", "coordinator", "n_processes", "process_id", "cluster", "cluster_cpus",
        "cluster_gpus",
    ),
}  # fmt: skip
"""Options by the part of help in which they stand, if it is not that of their config."""
USUAL = frozenset((
    "gamma", "lr", "model", "actor_model", "critic_model", "normalize_observations", "n_steps", "lam",
    "entropy_coef", "clip_norm", "mini_batches", "ppo_epochs", "epochs", "max_kl", "buffer_max_size",
    "buffer_initial_size", "buffer_batch_size", "train_every", "tau", "epsilon_decay_steps", "double",
    "replay_ratio", "objective", "batch_size", "unit", "memory", "max_steps", "target_reward", "seed",
    "run_dir", "resume", "config", "preset", "n_seeds", "quiet", "env", "n_envs", "env_kwargs",
    "max_episode_timesteps", "preprocess", "weights", "eval_frequency", "keep_checkpoints", "n_devices",
    "study", "n_trials", "n_jobs", "trial_steps", "best", "episodes", "render", "video_dir", "out", "video",
))  # fmt: skip
"""The most used options, which the short help shows."""


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
    width = max(40, columns())
    longest = max(map(len, names), default=0)
    lines = []
    for name, text in names.items():
        start = f"    {name:<{longest}} "
        lines += textwrap.wrap(
            text, width, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
        )
    return lines


def page(usage: Iterable[str], *parts: str) -> str:
    """Return the help of a command: how it is used, then other texts."""
    return "\n\n".join(["\n    ".join(["Usage:", *usage]), *parts])


def agent_page(
    command: str,
    agent: str | None,
    usage: Iterable[str],
    groups: Mapping[str, Sequence[type[Config]]],
    full: bool,
    **how: Any,
) -> str:
    """Return the help of a command that takes an agent, and of the agent if one is named.

    `groups`, `full` and `how` are arguments of `grouped`.
    """
    algorithm: type[Config] = AgentConfig
    name = command
    if agent is None:
        known = {**{name: known.help for name, known in AGENTS.items()}, OWN: "A class of your own"}
        about = "\n".join(["Agents:", *name_lines(known)])
    else:
        about, algorithm, name = entry(agent).help, config_class(agent), f"{command} {agent}"
        how = {"fixed": entry(agent).options, **how}
    return page(usage, about, *grouped(name, {"Algorithm": [algorithm], **groups}, full, **how))


def grouped(
    command: str,
    groups: Mapping[str, Sequence[type[Config]]],
    full: bool,
    header: Sequence[str] = HEADER[:3],
    **how: Any,
) -> list[str]:
    """Return a table of flags for each group: all of them, or the most used and how to see the others.

    `groups` are configs whose options are in none of `GROUPS`; `how` are arguments of `option_rows`.
    """
    place = {name: title for title, names in GROUPS.items() for name in names}
    every = [config for configs in groups.values() for config in configs]
    titles = {
        name: place.get(name, title) for title, of in groups.items() for each in of for name in options(each)
    }
    of_users = [each for each in every if not each.__module__.startswith("operant.")]
    usual = USUAL.union(*map(options, of_users))
    parts, hidden = [], False
    for title in dict.fromkeys([*groups, *GROUPS]):
        names = {name for name in titles if titles[name] == title and name not in how.get("without", ())}
        shown = names if full else names & usual
        hidden |= shown < names
        if shown:
            parts.append(flags(title, every, header, only=shown, also=full, **how))
    return [*parts, f"All flags: operant {command} --help-all"] if hidden else parts


def flags(title: str, configs: Iterable[type[Config]], header: Sequence[str] = HEADER[:3], **how: Any) -> str:
    """Return the table of the flags of configs; `how` are arguments of `option_rows`."""
    rows = [row[: len(header)] for row in option_rows(configs, **how)]
    return table(title, header, rows, width=columns(), stacked=columns() < NARROW)


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
    return textwrap.wrap(" ".join(words), width, break_on_hyphens=False) or [""]


def option_rows(
    configs: Iterable[type[Config]],
    fixed: Mapping[str, Any] | None = None,
    short: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    texts: Mapping[str, str] | None = None,
    only: Collection[str] | None = None,
    also: bool = False,
) -> list[list[str]]:
    """Return a row of flag, help, default and search kind for every option, sorted by flag.

    `fixed` are defaults that differ under the agent's name, `short` letters of options that have one, and
    `texts` help that differs in this command; options in `without`, or not in `only`, are left out. With
    `also`, help says the other names.
    """
    rows = []
    for config in configs:
        for name, meta in options(config).items():
            if name in without or (only is not None and name not in only):
                continue
            value = (fixed or {}).get(name, default(config, name))
            shown = "-" if value is None or value is False or value == () or value == "" else str(value)
            letter = f"-{short[name]}, " if short and name in short else ""
            word = flag(name).replace("--", "--[no-]", 1) if switched(config, name) else flag(name)
            text = (texts or {}).get(name, meta.help)
            if also and (words := [flag(word) for word, meant in aliases(config).items() if meant == name]):
                text += f" (also {', '.join(words)})"
            rows.append([letter + word, text, shown, meta.search or "-"])
    return sorted(rows, key=lambda row: row[0][row[0].index("--") :].replace("[no-]", ""))


def switched(config: type[Config], name: str) -> bool:
    """Tell whether an option has a flag that turns it on, and one that turns it off."""
    return typing.get_type_hints(config)[name] in (bool, bool | None) and default(config, name) is not False


def _stacked(header: Sequence[str], cells: Sequence[str], width: int) -> list[str]:
    named = [f"[{header[i]}: {cell}]" for i, cell in enumerate(cells) if i > 1 and cell != "-"]
    how: Any = {"break_on_hyphens": False, "break_long_words": False, "subsequent_indent": "      "}
    first = textwrap.wrap("  ".join([cells[0], *named]), width, initial_indent="  ", **how)
    return [*first, *(f"      {line}" for line in wrap(cells[1], max(10, width - 6)))]


def columns() -> int:
    """Return the width of the terminal."""
    return shutil.get_terminal_size((80, 24)).columns


def table(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    stacked: bool | None = None,
) -> str:
    """Return a pipe table under a title; long texts, the second column, are wrapped to fit the width.

    That is by default the terminal's; where none is, nothing is wrapped: a row is a line, for programs to
    read. If the other columns leave too little room, texts are put below them instead; `stacked` says
    whether, if it is not None.
    """
    width = shutil.get_terminal_size((sys.maxsize, 24)).columns if width is None else width
    others = [i for i in range(len(header)) if i != 1]
    widths = {i: max(len(header[i]), *(len(row[i]) for row in rows)) for i in others}
    frame = 3 * len(header) + 1
    room = max(10, width - frame - sum(widths.values()))
    if stacked is None:
        stacked = room < LEAST and any(len(row[1]) > room for row in rows)
    if stacked:
        return "\n".join([f"{title}:", *(x for row in rows for x in _stacked(header, row, width))])
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
