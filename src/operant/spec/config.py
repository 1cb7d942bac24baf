"""Hyperparameters, each declared once: a `Config` is a frozen dataclass whose fields are made by `option`."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, dataclass_transform

from operant.errors import FIELD, SpecError, as_whole, suggest, value_error
from operant.spec.schedule import Schedule
from operant.spec.values import called, plain, settled
from operant.spec.written_out import asked

T = TypeVar("T")
Search = Literal["log_uniform", "int", "categorical"]


@dataclasses.dataclass(frozen=True)
class Option:
    """What is known about one hyperparameter besides its name, type and default."""

    help: str
    """One or two sentences: what it is; what raising it does."""
    unit: str | None = None
    low: float | None = None
    """Smallest legal value."""
    high: float | None = None
    """Largest legal value."""
    low_open: bool = False
    """Whether `low` itself is illegal."""
    search: Search | None = None
    """How tuning reads several values of it; None: it is not tuned."""
    choices: tuple[Any, ...] | None = None
    traced: bool = False
    """A number that compiled code takes as an argument: it may change, be a schedule, or be mapped over by
    `vmap`, without compiling again. Other options shape the program."""
    aliases: tuple[str, ...] | None = ()
    """Names accepted for it besides its own and the field's; None: not even those, which mean another."""
    needs: tuple[str, Any] | None = None
    """Another option, and the value of it (or several, as a tuple) without which this one has no effect."""
    settled: bool = False
    """Whether it must stay the same in a resumed run: only the start of a run reads it, it is the unit of
    what was learnt, or it shapes the program, too."""


def option(default: Any, help: str, **meta: Any) -> Any:
    """Declare one field of a `Config`; `meta` are the other fields of its `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(help, **meta)})


if typing.TYPE_CHECKING:
    from jax import Array

    Scalar: typing.TypeAlias = float | Array
else:
    Scalar = float | Schedule
"""Type of a `traced` option: its user gives a number or a schedule, the algorithm reads a number or a
traced array."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option,))
class ConfigMeta(type):
    """Makes every subclass of `Config` a dataclass, for its fields alone.

    Generating methods for each class would take a third of the time of a help page.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        """Make the class, then the dataclass."""
        cls = super().__new__(mcs, name, bases, namespace)
        return dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=True)(cls)


class Config(metaclass=ConfigMeta):
    """A named set of options with checked values. Never written to; `replace` returns a changed copy."""

    def __init__(self, **values: Any) -> None:
        """Check names, then types and bounds, then `check`; report all faults of a kind at once."""
        cls, faults = type(self), list[str]()
        values = canonical(cls, values)
        for name in options(cls):
            value = values.get(name, getattr(cls, name))
            try:
                self.__dict__[name] = value if _traced_value(value) else checked(cls, name, value)
            except SpecError as fault:
                faults.append(str(fault))
        if not faults:
            faults.extend(self.check())
        if faults:
            raise SpecError("\n".join(faults))

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to {name!r}: see replace")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__qualname__}({values})"

    def check(self) -> Iterator[str]:
        """Yield a message for every constraint between fields that does not hold."""
        return iter(())

    @classmethod
    def words(cls) -> Iterable[str]:
        """Return the arguments that `translated` reads besides options and their aliases."""
        return ()

    @classmethod
    def translated(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments in terms of options; a subclass may understand others as well."""
        return dict(arguments)

    def replace(self, **changes: Any) -> typing.Self:
        """Return a copy with some options changed; unknown names are errors."""
        return type(self)(**{**vars(self), **canonical(type(self), changes)})

    def with_values(self, values: Mapping[str, Any]) -> typing.Self:
        """Return a copy with values put in unchecked: numbers of compiled code for floats and schedules."""
        copy = object.__new__(type(self))
        copy.__dict__.update({**vars(self), **values})
        return copy

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data that `from_dict` turns back into an equal object."""
        return {name: plain(getattr(self, name)) for name in options(type(self))}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], label: str | None = None) -> typing.Self:
        """Build one from the data of `to_dict`, with defaults for what it lacks; messages name `label`."""
        return build(cls, dict(data), label or _label(cls))


class FolderConfig(Config):
    """Options of something that writes files to a folder."""

    directory: str = option("", "Folder of the files")

    def check(self) -> Iterator[str]:
        """Ask for a folder."""
        if not self.directory:
            yield f"{_label(type(self))} must say the directory: {_label(type(self))}=dict(directory='data')."

    @classmethod
    def parse(cls, spec: Any) -> typing.Self:
        """Read a folder's name, or a dict of options."""
        arguments = {"directory": str(spec)} if isinstance(spec, str | Path) else spec
        if not isinstance(arguments, Mapping):
            raise value_error(_label(cls), "a folder or a dict with 'directory'", spec)
        return build(cls, dict(arguments), _label(cls))


@functools.cache
def options(cls: type[Config]) -> dict[str, Option]:
    """Return the options of a config by name, in order of declaration."""
    fields = dataclasses.fields(cls)
    return {field.name: field.metadata["option"] for field in fields if "option" in field.metadata}


@functools.cache
def aliases(cls: type[Config]) -> dict[str, str]:
    """Return the other names of options: those that they declare, and the field's."""
    known = options(cls)
    own = {alias: name for name, meta in known.items() for alias in meta.aliases or ()}
    names = dict(own)
    for word, several in FIELD.items():
        meant = next((name for each in several if (name := own.get(each, each)) in known), None)
        if meant is not None and word not in known and known[meant].aliases is not None:
            names.setdefault(word, meant)
    return names


def default(cls: type[Config], name: str) -> Any:
    """Return the default of one option."""
    return next(f.default for f in dataclasses.fields(cls) if f.name == name)


def optional(cls: type[Config], name: str) -> bool:
    """Return whether None is a value of an option."""
    return type(None) in typing.get_args(_hints(cls)[name])


def effective(needs: tuple[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether the values of options meet what one of them needs (`Option.needs`) to have an effect."""
    switch, wanted = needs
    return values.get(switch) in (wanted if isinstance(wanted, tuple) else (wanted,))


def traced(cls: type[Config]) -> tuple[str, ...]:
    """Return the names of the options that compiled code takes as arguments."""
    return tuple(name for name, meta in options(cls).items() if meta.traced)


def canonical(cls: type[Config], arguments: Mapping[str, Any], label: str | None = None) -> dict[str, Any]:
    """Replace aliases by names; refuse unknown names (with the close match) and duplicates."""
    known = options(cls)
    label = _label(cls) if label is None else label
    names = aliases(cls)
    result: dict[str, Any] = {}
    place: Literal["config", "agent"] = "config" if label == "config" else "agent"
    for key, value in asked(arguments, {*known, *names}, place).items():
        name = names.get(key, key)
        if name not in known:
            close = difflib.get_close_matches(key, [*known, *names], n=1)
            raise SpecError(f"{label} takes no argument {key!r}.{suggest(key, {*known, *close})}")
        if name in result:
            raise SpecError(f"{label} got {name!r} twice, once as {key!r}. Give one of them.")
        result[name] = value
    return result


def build(cls: Callable[..., T], arguments: dict[str, Any], label: str) -> T:
    """Call `cls` with the arguments, for a config also by aliases; refuse unknown and missing ones."""
    if isinstance(cls, type) and issubclass(cls, Config):
        return typing.cast(T, cls(**canonical(cls, arguments, label)))
    return typing.cast(T, called(cls, arguments, label))


def _label(cls: type) -> str:
    return getattr(cls, "label", cls.__name__)


def _traced_value(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def checked(cls: type[Config], name: str, value: Any) -> Any:
    """Return an option's value as configs hold it; SpecError: it has another type, or is out of bounds."""
    meta = options(cls)[name]
    value = settled(value.tolist() if getattr(value, "ndim", 0) == 1 else value)
    hint = _hints(cls)[name]
    kinds = {hint, *typing.get_args(hint)}
    if isinstance(value, str) and kinds & {int, float} and str not in kinds:  # as YAML reads 3e-4
        with contextlib.suppress(ValueError):
            value = float(value)
    if meta.traced and (isinstance(value, Schedule | Mapping | str) or callable(value)):
        try:
            schedule = Schedule.read(value)
        except SpecError as fault:
            raise SpecError(f"{name}: {fault}") from None
        for bound in schedule.range():
            _bounded(name, meta, bound, value)
        return schedule
    if isinstance(value, float) and math.isnan(value):
        raise value_error(name, "a number", value)
    whole = as_whole(value) if int in kinds and float not in kinds else value  # max_steps=1e6
    try:
        value = _typed(whole, hint)
    except ValueError as fault:
        raise value_error(name, str(fault), value, f"The default is {default(cls, name)!r}.") from None
    _bounded(name, meta, value, value)
    # Otherwise it would only show later, as numbers that are not finite.
    if isinstance(value, float) and math.isinf(value):
        raise value_error(name, "a finite number", value)
    if meta.choices is not None and value is not None and value not in meta.choices:
        raise SpecError(
            f"{name} must be one of {', '.join(map(repr, meta.choices))}. Received: {name}={value!r}."
            f"{suggest(str(value), map(str, meta.choices), listed=False) if isinstance(value, str) else ''}"
        )
    return value


@functools.cache
def _hints(cls: type[Config]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


WANTED = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    dict: "a dict",
    Schedule: "a schedule",
}
"""What a value of each type must be, in words."""


def _typed(value: Any, hint: Any) -> Any:
    """Return a value of a type; ValueError: it is of another type, and the text says which it must be."""
    kind, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is Any:
        return value
    if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if kind is Literal:
        if any(value == part and type(value) is type(part) for part in parts):
            return value
        *some, last = map(repr, parts)
        raise ValueError(f"{', '.join(some)} or {last}" if some else last)
    if kind in (typing.Union, types.UnionType):
        return value if type(value) in parts else _typed_as_one(value, parts)
    if kind is tuple and isinstance(value, tuple):
        try:
            return tuple(_typed(entry, parts[0]) for entry in value)
        except ValueError as fault:
            raise ValueError(f"a list whose every entry is {fault}") from None
    if isinstance(value, kind) and (type(value) is not bool or kind is bool):
        return value
    raise ValueError("a list" if kind is tuple else WANTED.get(kind, f"an instance of {kind.__name__}"))


def _typed_as_one(value: Any, kinds: Sequence[Any]) -> Any:
    wanted: dict[str, None] = {}
    for kind in kinds:
        try:
            return _typed(value, kind)
        except ValueError as fault:
            wanted |= {} if kind is type(None) else {str(fault): None}
    raise ValueError(" or ".join(wanted))


def _bounded(name: str, meta: Option, value: Any, given: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low_ok = meta.low is None or (value > meta.low if meta.low_open else value >= meta.low)
    if low_ok and (meta.high is None or value <= meta.high):
        return
    parts = []
    if meta.low is not None:
        parts.append(f"{'above' if meta.low_open else 'at least'} {_shown(meta.low)}")
    if meta.high is not None:
        parts.append(f"at most {_shown(meta.high)}")
    raise value_error(name, " and ".join(parts), given)


def _shown(bound: float) -> str:
    """Return a bound in full: `:g` rounds whole numbers of seven digits."""
    return str(bound) if isinstance(bound, int) else f"{bound:g}"
