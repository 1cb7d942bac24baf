"""What tuning may choose: options with several values, read by the search kind of their `Config`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from operant.errors import SpecError
from operant.spec import Config, Option, Search, aliases, checked, options

Choices = (bool, int, float, str)
"""Types of categorical values that a study can store."""


class Range(NamedTuple):
    """Values among which trials choose one."""

    kind: Search
    values: tuple[Any, ...]
    """Smallest and largest (`log_uniform`, `int`), or all there are (`categorical`)."""


def split(
    configs: Iterable[type[Config]], values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Range]]:
    """Split options into fixed ones and ranges (several values, a search kind); SpecError: a bad value."""
    known: dict[str, tuple[type[Config], Option]] = {}
    names: dict[str, str] = {}
    for cls in configs:
        known |= {name: (cls, meta) for name, meta in options(cls).items()}
        names |= aliases(cls)
    fixed: dict[str, Any] = {}
    ranges: dict[str, Range] = {}
    for word, value in values.items():
        name = word if word in known else names.get(word, word)
        config, meta = known.get(name, (None, None))
        if config is None or meta is None or meta.search is None or not isinstance(value, list | tuple):
            fixed[word] = value
            continue
        if name != word and name in values:
            raise SpecError(f"{name} is given twice, once as {word}. Give one of them.")
        several = tuple(checked(config, name, one) for one in value)
        if len(several) == 1:
            fixed[name] = several[0]
        else:
            ranges[name] = _range(name, meta.search, several)
    return fixed, ranges


def _range(name: str, kind: Search, values: tuple[Any, ...]) -> Range:
    shown = " ".join(map(str, values)) or "none"
    if kind == "categorical":
        if len(set(values)) < max(1, len(values)) or not values:
            raise SpecError(f"{name} must be several different values to be tuned. Received: {shown}.")
        if not all(value is None or isinstance(value, Choices) for value in values):
            raise SpecError(f"{name} can be tuned over numbers and words only. Received: {shown}.")
        return Range(kind, values)
    must = f"{name} is tuned between a smallest and a largest value ({kind})"
    if len(values) != 2:
        raise SpecError(f"{must}. Received {len(values)} values: {shown}. Give two, or one to fix it.")
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise SpecError(f"{must}, both numbers. Received: {shown}.")
    if kind == "int":
        if any(value != int(value) for value in values):
            raise SpecError(f"{must}, both whole numbers. Received: {shown}.")
        values = tuple(int(value) for value in values)
    elif values[0] <= 0:
        raise SpecError(f"{must} on a logarithmic scale, so both above 0. Received: {shown}.")
    if values[0] >= values[1]:
        raise SpecError(f"{must}, the smaller first. Received: {shown}.")
    return Range(kind, values)


def corners(ranges: Mapping[str, Range]) -> list[dict[str, Any]]:
    """Return the settings with every range's first value and with every last one, to try beforehand."""
    first = {name: each.values[0] for name, each in ranges.items()}
    last = {name: each.values[-1] for name, each in ranges.items()}
    return [first] if first == last else [first, last]


def distributions(ranges: Mapping[str, Range]) -> dict[str, Any]:
    """Return the ranges as Optuna's distributions, by name."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    by_name: dict[str, Any] = {}
    for name, (kind, values) in ranges.items():
        if kind == "categorical":
            by_name[name] = CategoricalDistribution(values)
        elif kind == "int":
            by_name[name] = IntDistribution(*values)
        else:
            by_name[name] = FloatDistribution(*values, log=True)
    return by_name


def suggest(trial: Any, ranges: Mapping[str, Range]) -> dict[str, Any]:
    """Let an Optuna trial choose a value of every range."""
    chosen: dict[str, Any] = {}
    for name, (kind, values) in ranges.items():
        if kind == "categorical":
            chosen[name] = trial.suggest_categorical(name, values)
        elif kind == "int":
            chosen[name] = trial.suggest_int(name, *values)
        else:
            chosen[name] = trial.suggest_float(name, *values, log=True)
    return chosen
