"""Hyperparameters that change with time, as plain data; `operant.ops.schedules` evaluates them."""

from __future__ import annotations

import dataclasses
import math
import sys
import typing
from collections.abc import Mapping
from typing import Any, Literal

from operant.errors import SpecError, as_whole, suggest, value_error
from operant.spec.values import called, finite, settled, understood

SCHEDULE_FORMS = (
    "Give 'TYPE:START:END:STEPS' of type linear, exponential, polynomial, cosine or random, such as "
    "'linear:3e-4:0:1e6'; or a dict whose 'type' is one of these, constant, piecewise, inverse_time or "
    "ornstein_uhlenbeck: {'type': 'cosine', 'start': 3e-4, 'steps': 1e6, 'warmup': 1e4}. See docs/train.md."
)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A hyperparameter that changes with time, in one of several shapes.

    Plain data; `operant.ops.schedules` evaluates it. Accepted wherever a `traced` option takes a number, as
    this object, as a dict with `type`, or in short on the command line as ``linear:START:END:STEPS``.
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
        "inverse_time",
    ]
    start: float
    """Value at step 0, or after a warm-up; one bound of `random`, the mean of `ornstein_uhlenbeck`."""
    end: float = 0.0
    """Value from `steps` on; the other bound of `random` (the others ignore it)."""
    steps: int = 0
    """How long it takes from `start` to `end`, in `unit`; at least 1 for the types that use it."""
    unit: Literal["timesteps", "episodes", "updates"] = "timesteps"
    power: float = 1.0
    """Exponent of `polynomial`."""
    warmup: int = 0
    """`cosine`: how many of the `steps` come first, in which it rises linearly from 0 to `start`."""
    boundaries: tuple[int, ...] = ()
    """`piecewise`: the steps at which the value changes."""
    values: tuple[float, ...] = ()
    """`piecewise`: the value from each boundary on."""
    theta: float = 0.15
    """`ornstein_uhlenbeck`: share of the distance from the mean that each step removes."""
    sigma: float = 0.3
    """`ornstein_uhlenbeck`: standard deviation of the noise that each step adds."""
    absolute: bool = False
    """`ornstein_uhlenbeck`: whether to take the absolute value."""
    seed: int = 0
    """`random` and `ornstein_uhlenbeck`: each seed gives another sequence."""
    decay_rate: float | None = None
    """`exponential`, in place of `end`: what remains of the value after each `steps`, without end, at most 1.
    `inverse_time`: how much the divisor of the value, 1 at first, grows in `steps`."""
    staircase: bool = False
    """Whether a schedule with a `decay_rate` changes at multiples of `steps` alone."""

    def __post_init__(self) -> None:
        _check_type(self.type)
        if self.unit not in ("timesteps", "episodes", "updates"):
            raise value_error("unit", "'timesteps', 'episodes' or 'updates'", self.unit)
        numbers, counts = ("start", "end", "power", "theta", "sigma"), ("steps", "warmup", "seed")
        for name in (*numbers, *counts, "boundaries", "values"):
            object.__setattr__(self, name, settled(getattr(self, name)))
        for name in counts:
            object.__setattr__(self, name, as_whole(getattr(self, name)))
        if isinstance(self.boundaries, tuple):
            object.__setattr__(self, "boundaries", tuple(map(as_whole, self.boundaries)))
        self._check_rate()
        for name in numbers:
            if not finite(getattr(self, name)):
                raise value_error(name, "a finite number", getattr(self, name))
        least = int(self.type in ("linear", "exponential", "polynomial", "cosine", "inverse_time"))
        if type(self.steps) is not int or self.steps < least:
            must = f"a whole number of at least {least}"
            raise value_error("steps", must, self.steps, SCHEDULE_FORMS if self.steps == 0 else "")
        self._check_warmup()
        endless = self.decay_rate is not None
        if self.type == "exponential" and not endless and (self.start <= 0 or self.end <= 0):
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

    def _check_rate(self) -> None:
        rate, high = self.decay_rate, {"exponential": 1.0, "inverse_time": math.inf}.get(self.type, 0.0)
        if rate is None and self.type == "inverse_time":
            raise value_error("decay_rate", "above 0", rate)
        if rate is not None and not (finite(rate) and 0.0 < rate <= high):
            ranges = {0.0: f"left out of a schedule of type {self.type!r}", 1.0: "above 0 and at most 1"}
            raise value_error("decay_rate", ranges.get(high, "above 0"), rate)

    def _check_warmup(self) -> None:
        warmup = self.warmup
        if self.type != "cosine" and warmup != 0:
            remedy = "Only 'cosine' has one."
            raise value_error("warmup", f"left out of a schedule of type {self.type!r}", warmup, remedy)
        if type(warmup) is not int or not 0 <= warmup <= max(self.steps - 1, 0):
            raise value_error("warmup", f"a whole number of at least 0, below steps ({self.steps})", warmup)

    def _check_pieces(self) -> None:
        steps, values = self.boundaries, self.values
        if not isinstance(values, tuple) or not values or not all(map(finite, values)):
            raise value_error("values", "a list of one or more finite numbers", values)
        whole = isinstance(steps, tuple) and all(type(step) is int for step in steps)
        rising = whole and sorted(set(steps)) == list(steps) and min(steps, default=0) >= 0
        if not rising or len(steps) != len(values):
            wanted = f"{len(values)} increasing whole numbers of at least 0, as many as values"
            raise value_error("boundaries", wanted, steps)

    @classmethod
    def read(cls, value: Any) -> Schedule:
        """Make one from a schedule, a dict, or ``kind:START:END:STEPS``."""
        if isinstance(value, Schedule):
            return value
        if isinstance(value, Mapping):
            return called(cls, understood(cls, cls._translated(value)), "schedule")
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
    def _translated(arguments: Mapping[str, Any]) -> dict[str, Any]:
        other = {"initial_value": "start", "final_value": "end", "num_steps": "steps", "minval": "start"}
        other |= {"maxval": "end", "mu": "start", "value": "start"}
        other |= {"peak_value": "start", "end_value": "end", "decay_steps": "steps", "warmup_steps": "warmup"}
        fields: dict[str, Any] = {}
        for key, value in arguments.items():
            name = other.get(key, key)
            if name in fields:
                raise SpecError(f"schedule got {name!r} twice, once as {key!r}. Give one of them.")
            fields[name] = value
        if fields.get("type") == "decaying":
            fields["type"] = fields.pop("decay", None)
        if fields.get("type") == "piecewise_constant":
            values = list(fields.get("values", ()))
            fields |= {"type": "piecewise", "start": values[0] if values else None, "values": values[1:]}
        if "type" in fields:
            _check_type(fields["type"])  # first, as the legal arguments depend on it
        if fields.get("type") == "random":
            kind = fields.pop("distribution", "uniform")
            if kind == "normal":  # what a process that forgets all of its past is
                fields |= {"type": "ornstein_uhlenbeck", "theta": 1.0, "start": fields.pop("mean", 0.0)}
                fields["sigma"] = fields.pop("stddev", 1.0)
            elif kind == "uniform":
                fields = {"start": 0.0, "end": 1.0, **fields}
            else:
                raise value_error("distribution", "'uniform' or 'normal'", kind)
        if fields.get("type") == "ornstein_uhlenbeck":
            fields.setdefault("start", 0.0)
        if finite(fields.get("scale")) and fields.get("type") not in ("piecewise", "ornstein_uhlenbeck"):
            scale = fields.pop("scale")
            fields |= {name: scale * fields[name] for name in ("start", "end") if finite(fields.get(name))}
        return fields

    @property
    def spread(self) -> float:
        """Three long-run standard deviations of an Ornstein-Uhlenbeck process, within which it is clipped."""
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
        if self.decay_rate is not None:  # it comes near 0, and does not reach it
            values = (self.start, math.copysign(sys.float_info.min, self.start))
        return min(values), max(values)


def _check_type(kind: Any) -> None:
    kinds = typing.get_args(typing.get_type_hints(Schedule)["type"])
    if kind not in kinds:
        raise SpecError(f"Unknown schedule type {kind!r}.{suggest(str(kind), kinds)}")
