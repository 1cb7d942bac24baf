"""Hyperparameters and specifications: declared once, read everywhere.

A `Config` is a frozen dataclass whose fields are made by `option`. Command-line flags and help tables,
constructor arguments, search ranges, docs tables and checkpoint headers all derive from it. A `Registry`
turns a specification (an object, a name, a dict with `type`, a JSON file, an importable class) into the
thing it names.

This module imports neither JAX nor Keras: help must come at once.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import difflib
import functools
import importlib
import json
import math
import os
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, dataclass_transform

from operant.errors import SpecError, as_whole, suggest, value_error

T = TypeVar("T")
Search = Literal["log_uniform", "int", "categorical"]


@dataclasses.dataclass(frozen=True)
class Option:
    """What is known of one hyperparameter beside its name, type and default."""

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
    """A number that compiled code takes as an argument: it may change, be a schedule, or be mapped over by `vmap`,
    without compiling again. Other options shape the program."""
    aliases: tuple[str, ...] = ()
    """Names accepted for it beside its own."""
    needs: tuple[str, Any] | None = None
    """Another option, and the value of it (or several, as a tuple) without which this one has no effect."""
    settled: bool = False
    """Whether it may not change in a run that goes on: only the beginning reads it, or it is the unit of what was learnt."""


def option(
    default: Any,
    help: str,
    *,
    unit: str | None = None,
    low: float | None = None,
    high: float | None = None,
    low_open: bool = False,
    search: Search | None = None,
    choices: tuple[Any, ...] | None = None,
    traced: bool = False,
    aliases: tuple[str, ...] = (),
    needs: tuple[str, Any] | None = None,
    settled: bool = False,
) -> Any:
    """Declare one field of a `Config`."""
    meta = Option(help, unit, low, high, low_open, search, choices, traced, aliases, needs, settled)
    return dataclasses.field(default=default, metadata={"option": meta})


SCHEDULE_FORMS = (
    "Give 'TYPE:START:END:STEPS' of type linear, exponential, polynomial, cosine or random, such as 'linear:3e-4:0:1e6'; or a dict "
    "with 'type', one of these or constant, piecewise or ornstein_uhlenbeck, such as "
    "{'type': 'cosine', 'start': 3e-4, 'steps': 1e6, 'warmup': 1e4}. docs/train.md describes them."
)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A hyperparameter that changes with time: linear, exponential, polynomial, cosine, piecewise, random or Ornstein-Uhlenbeck.

    Plain data; `operant.ops.schedules` evaluates it. Accepted wherever a `traced` option takes a number, as this
    object, as a dict with `type`, or in short on the command line as ``linear:START:END:STEPS``.
    """

    type: Literal[
        "constant",
        "linear",
        "exponential",
        "polynomial",
        "cosine",
        "piecewise",
        "random",
        "ornstein_uhlenbeck",
    ]
    start: float
    """Value at step 0, or after a warm-up; one bound of `random`, the mean of `ornstein_uhlenbeck`."""
    end: float = 0.0
    """Value from `steps` on; the other bound of `random` (the others ignore it)."""
    steps: int = 0
    """How long it takes from `start` to `end`, in `unit`; at least 1 of the types that take steps."""
    unit: Literal["timesteps", "episodes", "updates"] = "timesteps"
    power: float = 1.0
    """Exponent of `polynomial`."""
    warmup: int = 0
    """`cosine`: how many of the `steps` come first, in which it rises from 0 to `start` in a line."""
    boundaries: tuple[int, ...] = ()
    """`piecewise`: the steps at which the value changes."""
    values: tuple[float, ...] = ()
    """`piecewise`: the value from each boundary on."""
    theta: float = 0.15
    """`ornstein_uhlenbeck`: share of the distance from the mean that a step takes back."""
    sigma: float = 0.3
    """`ornstein_uhlenbeck`: deviation of what a step adds."""
    absolute: bool = False
    """`ornstein_uhlenbeck`: without its sign."""
    seed: int = 0
    """`random` and `ornstein_uhlenbeck`: another sequence."""

    def __post_init__(self) -> None:
        """Check the parts against one another."""
        kinds = typing.get_args(typing.get_type_hints(Schedule)["type"])
        if self.type not in kinds:
            raise SpecError(f"Unknown schedule type {self.type!r}.{suggest(self.type, kinds)}")
        if self.unit not in ("timesteps", "episodes", "updates"):
            raise value_error("unit", "'timesteps', 'episodes' or 'updates'", self.unit)
        numbers, counts = ("start", "end", "power", "theta", "sigma"), ("steps", "warmup", "seed")
        for name in (*numbers, *counts, "boundaries", "values"):
            object.__setattr__(self, name, _settled(getattr(self, name)))
        for name in counts:
            object.__setattr__(self, name, as_whole(getattr(self, name)))
        if isinstance(self.boundaries, tuple):
            object.__setattr__(self, "boundaries", tuple(map(as_whole, self.boundaries)))
        for name in numbers:
            if not _finite(getattr(self, name)):
                raise value_error(name, "a finite number", getattr(self, name))
        least = int(self.type in ("linear", "exponential", "polynomial", "cosine"))
        if type(self.steps) is not int or self.steps < least:
            must = f"a whole number of at least {least}"
            raise value_error("steps", must, self.steps, SCHEDULE_FORMS if self.steps == 0 else "")
        self._check_warmup()
        if self.type == "exponential" and (self.start <= 0 or self.end <= 0):
            raise value_error("start and end", "above 0 in an exponential schedule", (self.start, self.end))
        if self.type == "polynomial" and self.power <= 0:
            raise value_error("power", "above 0", self.power)
        if type(self.seed) is not int or not 0 <= self.seed < 2**32:
            raise value_error("seed", "a whole number from 0 to 2^32 - 1", self.seed)
        if self.type == "ornstein_uhlenbeck":
            if not 0.01 <= self.theta <= 1:
                raise value_error("theta", "from 0.01 to 1", self.theta)
            if self.sigma < 0:
                raise value_error("sigma", "at least 0", self.sigma)
        if self.type == "piecewise":
            self._check_pieces()

    def _check_warmup(self) -> None:
        """Check the part of the steps that comes before the cosine."""
        warmup = self.warmup
        if self.type != "cosine" and warmup != 0:
            remedy = "Only 'cosine' has one."
            raise value_error("warmup", f"left out of a schedule of type {self.type!r}", warmup, remedy)
        if type(warmup) is not int or not 0 <= warmup <= max(self.steps - 1, 0):
            raise value_error("warmup", f"a whole number of at least 0, below steps ({self.steps})", warmup)

    def _check_pieces(self) -> None:
        """Check the two lists of a piecewise schedule."""
        steps, values = self.boundaries, self.values
        if not isinstance(values, tuple) or not values or not all(map(_finite, values)):
            raise value_error("values", "a list of one or more finite numbers", values)
        whole = isinstance(steps, tuple) and all(type(step) is int for step in steps)
        rising = whole and sorted(set(steps)) == list(steps) and min(steps, default=0) >= 0
        if not rising or len(steps) != len(values):
            wanted = f"{len(values)} increasing whole numbers of at least 0, as many as values"
            raise value_error("boundaries", wanted, steps)

    @classmethod
    def read(cls, value: Any) -> Schedule:
        """Make one of a schedule, a dict, or ``kind:START:END:STEPS``."""
        if isinstance(value, Schedule):
            return value
        if isinstance(value, Mapping):
            return build(cls, cls._translated(value), "schedule")
        if isinstance(value, str) and value.count(":") == 3:
            kind, *parts = value.split(":")
            try:
                start, end, steps = map(float, parts)
                whole = int(steps)
            except (ValueError, OverflowError):
                pass
            else:
                return cls(typing.cast(Any, kind), start, end, whole)
        must = "of a form that exists"
        if callable(value):
            must = "data, which a function is not: it could not be saved with the agent"
        raise value_error("schedule", must, value, SCHEDULE_FORMS)

    @staticmethod
    def _translated(given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that a dict stands for, which may use other words for some."""
        other = {"initial_value": "start", "final_value": "end", "num_steps": "steps", "minval": "start"}
        other |= {"maxval": "end", "mu": "start", "value": "start"}
        other |= {"peak_value": "start", "end_value": "end", "decay_steps": "steps", "warmup_steps": "warmup"}
        found: dict[str, Any] = {}
        for key, value in given.items():
            name = other.get(key, key)
            if name in found:
                raise SpecError(f"schedule got {name!r} twice, once as {key!r}. Give one of them.")
            found[name] = value
        if found.get("type") == "piecewise_constant":
            values = list(found.get("values", ()))
            found |= {"type": "piecewise", "start": values[0] if values else None, "values": values[1:]}
        if "decay_rate" in found:
            raise SpecError(
                "schedule takes no argument 'decay_rate': an exponential one goes from 'start' to 'end' within 'steps'. "
                "Give end = start * decay_rate."
            )
        if found.get("type") == "random" and found.get("distribution", "uniform") == "uniform":
            found.pop("distribution", None)
        if found.get("type") == "ornstein_uhlenbeck":
            found.setdefault("start", 0.0)
        return found

    @property
    def spread(self) -> float:
        """Three standard deviations of an Ornstein-Uhlenbeck process in the long run; it is held within them."""
        return 3.0 * self.sigma / math.sqrt(1.0 - (1.0 - self.theta) ** 2)

    def range(self) -> tuple[float, float]:
        """Return the smallest and the largest value it takes."""
        if self.type == "ornstein_uhlenbeck":
            low, high = self.start - self.spread, self.start + self.spread
            return (0.0 if low < 0 else low, max(abs(low), abs(high))) if self.absolute else (low, high)
        if self.type == "constant":
            return self.start, self.start
        values = (self.start, *self.values) if self.type == "piecewise" else (self.start, self.end)
        values += (0.0,) if self.warmup else ()
        return min(values), max(values)


if typing.TYPE_CHECKING:
    from jax import Array

    Scalar: typing.TypeAlias = float | Array
else:
    Scalar = float | Schedule
"""Type of a `traced` option: its user gives a number or a schedule, the algorithm reads a number or a traced array."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option,))
class ConfigMeta(type):
    """Makes every subclass of `Config` a frozen, keyword-only dataclass."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        """Make the class, then the dataclass."""
        cls = super().__new__(mcs, name, bases, namespace)
        return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


class Config(metaclass=ConfigMeta):
    """A named set of options with checked values. Never written to; `replace` gives a changed copy."""

    def __post_init__(self) -> None:
        """Check types and bounds of every field, then `check`, and report all faults at once."""
        faults: list[str] = []
        for name, meta in options(type(self)).items():
            value = getattr(self, name)
            if _traced_value(value):
                continue
            try:
                object.__setattr__(self, name, _checked(type(self), name, meta, value))
            except SpecError as fault:
                faults.append(str(fault))
        if not faults:
            faults.extend(self.check())
        if faults:
            raise SpecError("\n".join(faults))

    def check(self) -> Iterator[str]:
        """Yield a message for every constraint between fields that does not hold."""
        return iter(())

    @classmethod
    def words(cls) -> Iterable[str]:
        """Return the arguments that `translated` reads beside options and their aliases."""
        return ()

    @classmethod
    def translated(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments in the words of the options; a subclass may understand others, too."""
        return dict(given)

    def replace(self, **changes: Any) -> typing.Self:
        """Return a copy with some options changed; unknown names are errors."""
        return type(self)(**{**vars(self), **canonical(type(self), changes)})

    def with_values(self, values: Mapping[str, Any]) -> typing.Self:
        """Return a copy with values put in unchecked: compiled code's numbers in place of floats and schedules."""
        copy = object.__new__(type(self))
        copy.__dict__.update({**vars(self), **values})
        return copy

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data that `from_dict` turns back into an equal object."""
        return {name: plain(getattr(self, name)) for name in options(type(self))}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> typing.Self:
        """Build one of `to_dict`'s data; missing options take their defaults."""
        return build(cls, dict(data), cls.__name__)


@functools.cache
def options(cls: type[Config]) -> dict[str, Option]:
    """Return the options of a config by name, in order of declaration."""
    fields = dataclasses.fields(cls)
    return {field.name: field.metadata["option"] for field in fields if "option" in field.metadata}


def default(cls: type[Config], name: str) -> Any:
    """Return the default of one option."""
    return next(f.default for f in dataclasses.fields(cls) if f.name == name)


def effective(needs: tuple[str, Any], values: Mapping[str, Any]) -> bool:
    """Tell whether options have what one of them needs (`Option.needs`) to have an effect."""
    switch, wanted = needs
    return values.get(switch) in (wanted if isinstance(wanted, tuple) else (wanted,))


def traced(cls: type[Config]) -> tuple[str, ...]:
    """Return the names of the options that compiled code takes as arguments."""
    return tuple(name for name, meta in options(cls).items() if meta.traced)


def canonical(cls: type[Config], given: Mapping[str, Any], label: str | None = None) -> dict[str, Any]:
    """Replace aliases by names; refuse unknown names (with the close match) and doubles, under a label."""
    known = options(cls)
    label = _label(cls) if label is None else label
    names = {alias: name for name, meta in known.items() for alias in meta.aliases}
    result: dict[str, Any] = {}
    for key, value in given.items():
        name = names.get(key, key)
        if name not in known:
            close = difflib.get_close_matches(key, [*known, *names], n=1)
            raise SpecError(f"{label} takes no argument {key!r}.{suggest(key, {*known, *close})}")
        if name in result:
            raise SpecError(f"{label} got {name!r} twice, once as {key!r}. Give one of them.")
        result[name] = value
    return result


def checked(cls: type[Config], name: str, value: Any) -> Any:
    """Return the form in which a config holds a value of one option.

    Raises:
        SpecError: the value has another type, or is out of bounds.
    """
    return _checked(cls, name, options(cls)[name], value)


def _label(cls: type) -> str:
    return getattr(cls, "label", cls.__name__)


def _traced_value(value: Any) -> bool:
    """Tell whether it is a number inside a JAX transformation, not known yet."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def _settled(value: Any) -> Any:
    """Return the one form in which options hold a value: tuples for lists, Python's numbers for scalar arrays."""
    if isinstance(value, list | tuple):
        return tuple(_settled(v) for v in value)
    if isinstance(value, dict):
        return {str(k): _settled(v) for k, v in value.items()}
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@functools.cache
def _adapter(cls: type[Config], name: str) -> Any:
    import pydantic

    hints = typing.get_type_hints(cls)
    settings = pydantic.ConfigDict(strict=True, arbitrary_types_allowed=True)
    return pydantic.TypeAdapter(hints[name], config=settings)


@functools.cache
def _counts(cls: type[Config], name: str) -> bool:
    """Tell whether an option is a whole number, which may be written as a float: `max_steps=1e6`."""
    hint = typing.get_type_hints(cls)[name]
    kinds = {hint, *typing.get_args(hint)}
    return int in kinds and float not in kinds


def _checked(cls: type[Config], name: str, meta: Option, value: Any) -> Any:
    import pydantic

    value = _settled(value.tolist() if getattr(value, "ndim", 0) == 1 else value)
    if meta.traced and (isinstance(value, Schedule | Mapping | str) or callable(value)):
        try:
            value = Schedule.read(value)
        except SpecError as fault:
            raise SpecError(f"{name}: {fault}") from None
        for bound in value.range():
            _bounded(name, meta, bound)
        return value
    if isinstance(value, float) and math.isnan(value):
        raise value_error(name, "a number", value)
    if _counts(cls, name):
        value = as_whole(value)
    try:
        value = _adapter(cls, name).validate_python(value)
    except pydantic.ValidationError as error:
        wanted = _wanted(error)
        raise value_error(name, wanted, value, _default_hint(cls, name)) from None
    _bounded(name, meta, value)
    if isinstance(value, float) and math.isinf(
        value
    ):  # it would only show as numbers that are not finite, later
        raise value_error(name, "a finite number", value)
    if meta.choices is not None and value is not None and value not in meta.choices:
        raise SpecError(
            f"{name} must be one of {', '.join(map(repr, meta.choices))}. Received: {name}={value!r}."
            f"{suggest(str(value), map(str, meta.choices), listed=False) if isinstance(value, str) else ''}"
        )
    return value


def _wanted(error: Any) -> str:
    kinds = {
        "int_type": "a whole number",
        "float_type": "a number",
        "bool_type": "True or False",
        "string_type": "a string",
        "none_required": "None",
        "tuple_type": "a list",
        "dataclass_exact_type": "a schedule",
        "dict_type": "a dict",
    }
    found: dict[str, None] = {}
    for e in error.errors(include_url=False):
        wanted = kinds.get(e["type"]) or e["msg"].removeprefix("Input should be ")
        inside = any(isinstance(part, int) for part in e["loc"])
        found[f"a list whose every entry is {wanted}" if inside else wanted] = None
    return " or ".join(found)


def _default_hint(cls: type[Config], name: str) -> str:
    return f"The default is {default(cls, name)!r}."


def _bounded(name: str, meta: Option, value: Any) -> None:
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
    raise value_error(name, " and ".join(parts), value)


def _shown(bound: float) -> str:
    """Return a bound in full: `:g` rounds whole numbers of seven digits and more."""
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def plain(value: Any) -> Any:
    """Return `value` as JSON data (dicts, lists, numbers, strings), or raise `SpecError`."""
    if isinstance(value, Config):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    raise SpecError(
        f"{value!r} cannot be written as plain data. Give it by name or as a dict where it must be saved."
    )


def build(cls: Callable[..., T], arguments: dict[str, Any], label: str) -> T:
    """Call `cls` with the arguments; unknown and missing ones are named, with the close match."""
    if isinstance(cls, type) and issubclass(cls, Config):
        return typing.cast(T, cls(**canonical(cls, arguments)))
    import inspect

    parameters = inspect.signature(cls).parameters
    free = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for key in arguments:
        if key not in parameters and not free:
            raise SpecError(f"{label} takes no argument {key!r}.{suggest(key, parameters)}")
    for name, p in parameters.items():
        required = p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        if required and name not in arguments:
            raise SpecError(f"{label} requires the argument {name!r}.")
    return typing.cast(T, cls(**arguments))


class _Source(NamedTuple):
    name: str
    remedy: str


_SOURCE: contextvars.ContextVar[_Source | None] = contextvars.ContextVar("_SOURCE", default=None)


@contextlib.contextmanager
def data_only(source: str, remedy: str) -> Iterator[None]:
    """Within it specifications come from somebody else, perhaps: what they name is neither imported nor opened.

    Registered names remain, and classes that this program has registered with Keras.

    Args:
        source: where they come from, for the message.
        remedy: what the user can do, for the message.
    """
    token = _SOURCE.set(_Source(source, remedy))
    try:
        yield
    finally:
        _SOURCE.reset(token)


def refuse_code(named: object, what: str) -> None:
    """Refuse something to import or to open, where specifications are data only.

    Raises:
        SpecError: they are.
    """
    if (source := _SOURCE.get()) is not None:
        raise SpecError(
            f"{source.name} names the {what} {str(named)!r}, which is not operant's own: a file never says what to import or to open. "
            f"{source.remedy}"
        )


def refuse_places(value: Any, what: str) -> None:
    """Refuse strings, also within lists and dicts, that could name a file or a module, where specifications are data only.

    Raises:
        SpecError: they are, and one could.
    """
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            refuse_places(part, what)
    elif isinstance(value, str) and any(mark in value for mark in "./\\:"):
        refuse_code(value, what)


MODEL_FILES = Path(__file__).parent / "agents" / "models"
"""Where the `.cfg` files are that come along; `models.json` says which are whose."""


def read_json(path: str | Path, what: str) -> dict[str, Any]:
    """Read a JSON file that holds one object."""
    refuse_code(path, f"{what} file")
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(f"The {what} file {str(path)!r} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"The {what} file {str(path)!r} cannot be read: {error}.") from None
    except json.JSONDecodeError as error:
        raise SpecError(
            f"The {what} file {str(path)!r} is not JSON: {error.msg} (line {error.lineno})."
        ) from None
    if not isinstance(data, dict):
        raise SpecError(
            f"The {what} file {str(path)!r} must hold one JSON object, not a {type(data).__name__}."
        )
    return data


def import_object(path: str, what: str) -> Any:
    """Import ``package.module.Name`` or ``package.module:Name``."""
    refuse_code(path, what)
    return _import(path, what)


NAMED_HERE = ("agent", "environment")
"""What the command line takes as `module:Name`, also from the current folder."""


def _import(path: str, what: str) -> Any:
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found = importlib.import_module(module)
    except (ImportError, AttributeError, ValueError) as error:
        remedy = ""
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            remedy = " Install it, or put its folder on PYTHONPATH."
            if what in NAMED_HERE and {"", os.getcwd()} & set(sys.path):
                files = [file.stem for file in Path.cwd().glob("*.py")]
                remedy = (
                    f" It is not in the current folder either.{suggest(module, files, listed=False)}{remedy}"
                )
            elif what in NAMED_HERE:
                remedy += (
                    f" If it is in the current folder, name the {what} on operant's command line, also beside a run's folder: "
                    "as module:Name it is looked for there."
                )
        raise SpecError(f"The {what} {path!r} cannot be imported: {error}.{remedy}") from None
    try:
        return getattr(found, name)
    except AttributeError as error:
        where = getattr(found, "__file__", None) or "built in"
        known = [public for public in vars(found) if not public.startswith("_")]
        raise SpecError(
            f"The {what} {path!r} cannot be imported: {error} ({where}).{suggest(name, known, listed=False)}"
        ) from None


class Registry(Generic[T]):
    """Names and what they stand for; values are objects or import paths (``module:Name``) loaded when asked for."""

    def __init__(self, what: str, entries: Mapping[str, Callable[..., T] | str]) -> None:
        self.what = what
        self._entries: dict[str, Callable[..., T] | str] = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def add(self, name: str, entry: Callable[..., T] | str) -> None:
        """Register one more name; an existing name is an error."""
        if name in self._entries:
            raise SpecError(f"There already is a {self.what} named {name!r}.")
        self._entries[name] = entry

    def get(self, name: str) -> Callable[..., T]:
        """Return what a name stands for; unknown names are errors with the close match."""
        if name not in self._entries:
            raise SpecError(f"Unknown {self.what} {name!r}.{suggest(name, self._entries)}")
        entry = self._entries[name]
        if isinstance(entry, str):
            entry = typing.cast("Callable[..., T]", _import(entry, self.what))
            self._entries[name] = entry
        return entry

    def parse(self, spec: Any, **extra: Any) -> tuple[Callable[..., T], dict[str, Any], str]:
        """Split a specification into what to call, with which arguments, and the name to use in messages.

        Args:
            spec: a registered name, ``module.Class``, the path of a JSON file, a class, or a dict with one of
                these as `type`.
            extra: arguments beside those in the specification; giving one twice is an error.
        """
        arguments: dict[str, Any] = {}
        seen: list[str] = []
        while True:
            if isinstance(spec, Mapping):
                inner = dict(spec)
                spec = inner.pop("type", None)
                if spec is None:
                    raise SpecError(
                        f"A {self.what} given as a dict needs a 'type'. Received the keys: {', '.join(map(str, inner))}."
                    )
                for key, value in inner.items():
                    arguments.setdefault(str(key), value)
            elif isinstance(spec, str | Path) and str(spec).endswith(".json"):
                if str(spec) in seen:
                    raise SpecError(f"The {self.what} file {str(spec)!r} names itself as its type.")
                seen.append(str(spec))
                spec = read_json(spec, self.what)
            else:
                break
        for key, value in extra.items():
            if key in arguments and arguments[key] != value:
                raise SpecError(
                    f"{self.what} argument {key!r} is given twice, as {arguments[key]!r} and {value!r}."
                )
            arguments[key] = value
        if isinstance(spec, str):
            if spec in self or ("." not in spec and ":" not in spec):
                return self.get(spec), arguments, spec
            return import_object(spec, self.what), arguments, spec
        if callable(spec):
            return spec, arguments, getattr(spec, "__name__", str(spec))
        raise SpecError(
            f"A {self.what} must be a name, a dict with 'type', a JSON file or a class. Received: {spec!r}."
        )

    def create(self, spec: Any, **extra: Any) -> T:
        """Build what a specification describes."""
        target, arguments, label = self.parse(spec, **extra)
        return build(target, arguments, label)
