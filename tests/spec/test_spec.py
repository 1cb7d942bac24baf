"""Specifications and errors: declared once, checked at once, written as plain data and read back equal."""

from __future__ import annotations

import dataclasses
import fractions
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operant import errors, spec
from operant.errors import OperantError, SpecError, suggest, value_error
from operant.spec import SCHEDULE_FORMS, Config, Registry, Schedule, build, option

INSTALL = " Install it, or put its folder on PYTHONPATH."


class Base(Config):
    lr: float | Schedule = option(
        0.1, "Learning rate", low=0.0, low_open=True, high=1.0, traced=True, aliases=("learning_rate",)
    )
    steps: int = option(4, "Steps", unit="environment steps", low=1)


class Full(Base):
    limit: int | None = option(None, "Limit", low=0, high=10)
    double: bool = option(False, "Double")
    mode: str = option("mean", "Mode", choices=("mean", "median"))
    kind: Literal["x", "y"] = option("x", "Kind")
    sizes: tuple[int, ...] = option((64, 64), "Sizes")
    pairs: tuple[tuple[int, int], ...] = option((), "Pairs")
    model: Any = option("auto", "Model", aliases=("network",))

    def check(self) -> Iterator[str]:
        if self.limit is not None and self.limit > self.steps:
            yield f"limit must be at most steps. Received: limit={self.limit}, steps={self.steps}."


def fails(message: str) -> Any:
    return pytest.raises(SpecError, match=f"^{re.escape(message)}$")


# Errors


def test_every_error_is_an_operant_error_and_a_builtin():
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OperantError)
    ]
    assert len(kinds) == 9
    for kind in kinds:
        assert kind is OperantError or issubclass(kind, ValueError | RuntimeError | ArithmeticError)


def test_suggest_names_the_close_match_or_all():
    assert suggest("ppoo", ["ppo", "dqn"]) == " Did you mean 'ppo'?"
    assert suggest("zzz", ["ppo", "dqn"]) == " Known: dqn, ppo."
    assert suggest("zzz", []) == ""


def test_value_error_follows_the_template():
    assert str(value_error("n", "at least 1", 0)) == "n must be at least 1. Received: n=0."
    assert str(value_error("n", "x", "y", "Try z.")) == "n must be x. Received: n='y'. Try z."


# Configs


def test_options_stand_in_order_of_declaration_inherited_first():
    assert [*spec.options(Full)][:3] == ["lr", "steps", "limit"]
    assert spec.options(Full)["steps"].unit == "environment steps"
    assert spec.default(Full, "sizes") == (64, 64)
    assert spec.traced(Full) == ("lr",)


def test_a_config_is_frozen_and_equal_by_value():
    config = Full(steps=8)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.steps = 9  # type: ignore[misc]
    assert config == Full(steps=8) != Full(steps=9)


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({"lr": 1}, 1.0),
        ({"lr": np.float32(0.5)}, 0.5),
        ({"lr": jnp.asarray(0.5)}, 0.5),
        ({"lr": "linear:1:0.5:1e3"}, Schedule("linear", 1.0, 0.5, 1000)),
        ({"lr": {"type": "constant", "start": 0.5}}, Schedule("constant", 0.5)),
        ({"steps": np.int64(3)}, 3),
        ({"steps": np.array(3)}, 3),
        ({"steps": 1e6}, 1_000_000),  # what users write who count steps
        ({"limit": np.float64(3.0)}, 3),
        ({"lr": "cosine:0.5:0.1:1e3"}, Schedule("cosine", 0.5, 0.1, 1000)),
        (
            {"lr": {"type": "piecewise", "start": 1.0, "boundaries": [1e2, 2e2], "values": [0.5, 0.1]}},
            Schedule("piecewise", 1.0, boundaries=(100, 200), values=(0.5, 0.1)),
        ),
        ({"double": np.bool_(True)}, True),
        ({"sizes": [1, np.int64(2)]}, (1, 2)),
        ({"pairs": [[1, 2], [3, 4]]}, ((1, 2), (3, 4))),
        ({"model": [{"type": "dense", "size": [3, 3]}]}, ({"type": "dense", "size": (3, 3)},)),
        ({"model": Path("nets/own.cfg")}, str(Path("nets/own.cfg"))),
        ({"model": [Path("a.cfg"), None]}, ("a.cfg", None)),
        ({"mode": Path("mean")}, "mean"),
    ],
)
def test_values_take_one_form(given, held):
    (name,) = given
    value = getattr(Full(**given), name)
    assert value == held
    assert type(value) is type(held)


class Unlimited(Config):
    rate: float = option(1.0, "Has no upper bound", low=0.0)
    seed: int = option(0, "Has a large one", low=0, high=2**32 - 1)


def test_infinity_is_no_value_and_large_bounds_are_whole():
    for value in (float("inf"), np.float32("inf")):
        with pytest.raises(SpecError, match=r"^rate must be a finite number. Received: rate=inf\.$"):
            Unlimited(rate=value)
    with pytest.raises(SpecError, match=r"seed must be at least 0 and at most 4294967295\. Received"):
        Unlimited(seed=2**32)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": True}, "lr must be a number or a schedule. Received: lr=True. The default is 0.1."),
        ({"lr": None}, "lr must be a number or a schedule. Received: lr=None. The default is 0.1."),
        ({"lr": float("nan")}, "lr must be a number. Received: lr=nan."),
        ({"lr": 0.0}, "lr must be above 0 and at most 1. Received: lr=0.0."),
        ({"lr": float("inf")}, "lr must be above 0 and at most 1. Received: lr=inf."),
        ({"lr": jnp.asarray(-1.0)}, "lr must be above 0 and at most 1. Received: lr=-1.0."),
        ({"lr": "linear:0.5:2:10"}, "lr must be above 0 and at most 1. Received: lr='linear:0.5:2:10'."),
        (
            {"lr": "fast"},
            f"lr: schedule must be of a form that exists. Received: schedule='fast'. {spec.SCHEDULE_FORMS}",
        ),
        (
            {"lr": {"type": "linear", "strt": 1}},
            "lr: schedule takes no argument 'strt'. Did you mean 'start'?",
        ),
        ({"lr": {"start": 1}}, "lr: schedule requires the argument 'type'."),
        ({"steps": True}, "steps must be a whole number. Received: steps=True. The default is 4."),
        ({"steps": 2.5}, "steps must be a whole number. Received: steps=2.5. The default is 4."),
        ({"steps": float("inf")}, "steps must be a whole number. Received: steps=inf. The default is 4."),
        ({"limit": 11.0}, "limit must be at least 0 and at most 10. Received: limit=11."),
        ({"steps": "3x"}, "steps must be a whole number. Received: steps='3x'. The default is 4."),
        ({"steps": "2.5"}, "steps must be a whole number. Received: steps=2.5. The default is 4."),
        ({"steps": 0}, "steps must be at least 1. Received: steps=0."),
        ({"limit": 1.5}, "limit must be a whole number. Received: limit=1.5. The default is None."),
        ({"limit": 11}, "limit must be at least 0 and at most 10. Received: limit=11."),
        ({"limit": 5}, "limit must be at most steps. Received: limit=5, steps=4."),
        ({"double": 1}, "double must be True or False. Received: double=1. The default is False."),
        ({"mode": 3}, "mode must be a string. Received: mode=3. The default is 'mean'."),
        (
            {"mode": "medain"},
            "mode must be one of 'mean', 'median'. Received: mode='medain'. Did you mean 'median'?",
        ),
        ({"kind": "z"}, "kind must be 'x' or 'y'. Received: kind='z'. The default is 'x'."),
        ({"sizes": 5}, "sizes must be a list. Received: sizes=5. The default is (64, 64)."),
        (
            {"sizes": [1, "a"]},
            "sizes must be a list whose every entry is a whole number. Received: sizes=(1, 'a'). "
            "The default is (64, 64).",
        ),
    ],
)
def test_illegal_values_are_named_with_the_remedy(given, message):
    with fails(message):
        Full(**given)


def test_all_faults_are_reported_at_once():
    with pytest.raises(SpecError) as error:
        Full(lr=2.0, steps=0, double="yes", limit=11)
    lines = str(error.value).splitlines()
    assert [line.split()[0] for line in lines] == ["lr", "steps", "limit", "double"]


def test_constraints_between_fields_wait_for_legal_fields():
    with pytest.raises(SpecError) as error:
        Full(steps=0, limit=5)
    assert str(error.value) == "steps must be at least 1. Received: steps=0."


def test_replace_takes_aliases_and_checks():
    config = Full(steps=8)
    assert config.replace(learning_rate=0.5) == Full(steps=8, lr=0.5)
    assert config == Full(steps=8)
    with fails("steps must be at least 1. Received: steps=0."):
        config.replace(steps=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stesp": 1}, "Full takes no argument 'stesp'. Did you mean 'steps'?"),
        (
            {"lr": 0.1, "learning_rate": 0.2},
            "Full got 'lr' twice, once as 'learning_rate'. Give one of them.",
        ),
    ],
)
def test_unknown_and_doubled_names_are_errors(given, message):
    with fails(message):
        Full.from_dict(given)
    with fails(message):
        spec.canonical(Full, given)


def test_a_label_stands_in_messages():
    class Labelled(Base):
        label = "foo"

    with fails("foo takes no argument 'x'. Known: lr, steps."):
        Labelled.from_dict({"x": 1})


def test_numbers_inside_a_transformation_pass_unchecked():
    rates = jax.vmap(lambda lr: Full(lr=lr).lr * 2.0)(jnp.asarray([0.5, -1.0]))
    np.testing.assert_array_equal(rates, [1.0, -2.0])


def test_with_values_puts_values_in_unchecked():
    config = Full(steps=8)
    changed = config.with_values({"lr": "anything"})
    assert (changed.lr, changed.steps, config.lr) == ("anything", 8, 0.1)


def test_what_is_not_data_cannot_be_written():
    with pytest.raises(SpecError, match=r"cannot be written as plain data\. Give it by name or as a dict"):
        Full(model=object()).to_dict()


def test_plain_writes_what_describes_itself(tmp_path):
    class Described:
        def to_dict(self) -> dict[str, Any]:
            return {"type": "described"}

    value = {1: (Base(), Described(), tmp_path, None)}
    plain = spec.plain(value)
    assert plain == {"1": [{"lr": 0.1, "steps": 4}, {"type": "described"}, str(tmp_path), None]}
    assert json.loads(json.dumps(plain)) == plain


# Schedules


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"type": "liner"}, "Unknown schedule type 'liner'. Did you mean 'linear'?"),
        ({"unit": "step"}, "unit must be 'timesteps', 'episodes' or 'updates'. Received: unit='step'."),
        ({"steps": 0}, f"steps must be a whole number of at least 1. Received: steps=0. {SCHEDULE_FORMS}"),
        ({"steps": 1.5}, "steps must be a whole number of at least 1. Received: steps=1.5."),
        ({"steps": True}, "steps must be a whole number of at least 1. Received: steps=True."),
        ({"start": "1"}, "start must be a finite number. Received: start='1'."),
        ({"end": float("inf")}, "end must be a finite number. Received: end=inf."),
        (
            {"type": "exponential"},
            "start and end must be above 0 in an exponential schedule. Received: start and end=(1.0, 0.0).",
        ),
        ({"type": "polynomial", "power": 0}, "power must be above 0. Received: power=0."),
        (
            {"warmup": 1},
            "warmup must be left out of a schedule of type 'linear'. Received: warmup=1. Only 'cosine' has "
            "one.",
        ),
        (
            {"type": "cosine", "steps": 9, "warmup": 9},
            "warmup must be a whole number of at least 0, below steps (9). Received: warmup=9.",
        ),
        (
            {"type": "cosine", "steps": 9, "warmup": 0.5},
            "warmup must be a whole number of at least 0, below steps (9). Received: warmup=0.5.",
        ),
        ({"type": "piecewise"}, "values must be a list of one or more finite numbers. Received: values=()."),
        (
            {"type": "piecewise", "boundaries": (1,), "values": ("a",)},
            "values must be a list of one or more finite numbers. Received: values=('a',).",
        ),
        *(
            (
                {"type": "piecewise", "boundaries": steps, "values": (0.1, 0.2)},
                "boundaries must be 2 increasing whole numbers of at least 0, as many as values. Received: "
                f"boundaries={steps!r}.",
            )
            for steps in [(5, 2), (2, 2), (2,), (2.5, 3), 7, (-5, 3)]
        ),
    ],
)
def test_schedules_check_their_parts(arguments, message):
    with fails(message):
        Schedule(**{"type": "linear", "start": 1.0, "steps": 5, **arguments})


@pytest.mark.parametrize("kind", ["linear", "exponential", "polynomial", "cosine"])
def test_schedules_that_take_steps_must_be_told_how_many(kind):
    with fails(f"steps must be a whole number of at least 1. Received: steps=0. {SCHEDULE_FORMS}"):
        Schedule.read({"type": kind, "start": 1.0, "end": 0.5})


def test_schedules_are_read_from_every_form():
    linear = Schedule("linear", 1.0, 0.1, 1000)
    assert Schedule.read(linear) is linear
    assert Schedule.read("linear:1:0.1:1e3") == linear
    assert Schedule.read({"type": "linear", "start": 1, "end": 0.1, "steps": 1000}) == linear
    cosine = Schedule("cosine", 0.5, 0.1, 1000, warmup=100)
    assert Schedule.read({"type": "cosine", "start": 0.5, "end": 0.1, "steps": 1e3, "warmup": 1e2}) == cosine
    optax = {"type": "cosine", "peak_value": 0.5, "end_value": 0.1, "decay_steps": 1000, "warmup_steps": 100}
    assert Schedule.read(optax) == cosine and Schedule.read(spec.plain(cosine)) == cosine
    for function in (lambda progress: 3e-4 * progress, float):
        for read in (Schedule.read, lambda x: Base(lr=x)):
            with pytest.raises(
                SpecError,
                match=r"schedule must be data, which a function is not.*TYPE:START:END:STEPS.*cosine",
            ):
                read(function)
    for text in ("linear:1:0.1", "linear:1:0.1:many", "linear:1:0.1:inf", "linear:one:0:1"):
        with pytest.raises(SpecError, match=r"^schedule must be of a form that exists\."):
            Schedule.read(text)
    with fails("Unknown schedule type 'lin'. Did you mean 'linear'?"):
        Schedule.read("lin:1:0:10")


@pytest.mark.parametrize(
    ("schedule", "bounds"),
    [
        (Schedule("linear", 1.0, 0.1, 10), (0.1, 1.0)),
        (Schedule("constant", 0.5), (0.5, 0.5)),
        (Schedule("piecewise", 0.5, boundaries=(1, 2), values=(0.1, 0.9)), (0.1, 0.9)),
    ],
)
def test_the_range_of_a_schedule_is_what_bounds_are_checked_against(schedule, bounds):
    assert schedule.range() == bounds


# Round trips

rates = st.floats(1e-8, 1.0)
schedules = st.one_of(
    st.builds(
        Schedule,
        type=st.sampled_from(["constant", "linear", "exponential", "polynomial"]),
        start=rates,
        end=rates,
        steps=st.integers(1, 10**9),
        unit=st.sampled_from(["timesteps", "episodes", "updates"]),
        power=st.floats(0.1, 5.0),
    ),
    st.dictionaries(st.integers(0, 10**6), rates, min_size=1, max_size=4).map(
        lambda pieces: Schedule(
            "piecewise",
            1.0,
            boundaries=tuple(sorted(pieces)),
            values=tuple(pieces[s] for s in sorted(pieces)),
        )
    ),
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
layers = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
configs = st.builds(
    Full,
    lr=rates | schedules,
    steps=st.integers(10, 10**12),
    limit=st.none() | st.integers(0, 10),
    double=st.booleans(),
    mode=st.sampled_from(["mean", "median"]),
    kind=st.sampled_from(["x", "y"]),
    sizes=st.lists(st.integers(), max_size=4),
    pairs=st.lists(st.tuples(st.integers(), st.integers()), max_size=3),
    model=layers,
)


@given(configs)
def test_a_config_survives_json(config):
    assert Full.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@given(configs, configs)
def test_different_configs_write_different_data(one, other):
    assert (one == other) == (one.to_dict() == other.to_dict())


# Registries


class Dense:
    """Something with a plain constructor."""

    def __init__(self, size: int, bias: bool = True) -> None:
        self.size, self.bias = size, bias


class Open:
    """Something that takes any argument."""

    def __init__(self, **options: Any) -> None:
        self.options = options


@pytest.fixture
def registry() -> Registry[Any]:
    entries = {"dense": Dense, "open": Open, "base": Base, "late": "fractions:Fraction"}
    return Registry("layer", {**entries, "missing": "no_such_package:Thing"})


def created(registry, spec, **extra):
    return build(*registry.parse({"type": spec, **extra} if extra else spec))


def test_a_registry_creates_from_every_form(registry, tmp_path):
    path = tmp_path / "layer.json"
    path.write_text('{"type": "dense", "size": 3}')
    for form in ({"type": "dense", "size": 3}, str(path), path, {"type": str(path)}):
        made = created(registry, form)
        assert (type(made), made.size) == (Dense, 3)
    for form in ("dense", Dense, {"type": Dense}):
        assert created(registry, form, size=4).size == 4
    assert created(registry, "late", numerator=3) == 3
    assert created(registry, "fractions.Fraction", numerator=3) == 3
    assert created(registry, {"type": "fractions:Fraction", "numerator": 3}) == 3
    assert created(registry, {"type": "base", "learning_rate": 0.5}) == Base(lr=0.5)
    assert created(registry, "open", anything=1).options == {"anything": 1}


def test_a_registry_lists_its_names(registry):
    assert [*registry] == ["dense", "open", "base", "late", "missing"]
    assert "dense" in registry and "conv" not in registry
    assert registry.get("dense") is Dense


def test_a_path_is_imported_when_it_is_asked_for_and_once(registry):
    with fails(
        f"The layer 'no_such_package:Thing' cannot be imported: No module named 'no_such_package'.{INSTALL}"
    ):
        registry.get("missing")
    assert registry.get("late") is registry.get("late")


def test_the_outer_argument_wins_over_the_file(registry, tmp_path):
    inner, outer = tmp_path / "inner.json", tmp_path / "outer.json"
    inner.write_text('{"type": "dense", "size": 3, "bias": false}')
    outer.write_text(json.dumps({"type": str(inner), "size": 5}))
    made = created(registry, str(outer))
    assert (made.size, made.bias) == (5, False)


def test_a_file_that_leads_back_to_itself_is_refused(registry, tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text(json.dumps({"type": str(two)}))
    two.write_text(json.dumps({"type": str(one)}))
    with fails(f"The layer file {str(one)!r} names itself as its type."):
        created(registry, str(one))


def test_a_specification_is_not_changed_by_reading_it(registry):
    given = {"type": "dense", "size": 3}
    created(registry, given, bias=False)
    assert given == {"type": "dense", "size": 3}


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("dens", "Unknown layer 'dens'. Did you mean 'dense'?"),
        ("zzz", "Unknown layer 'zzz'. Known: base, dense, late, missing, open."),
        ({"type": "dense", "sise": 3}, "dense takes no argument 'sise'. Did you mean 'size'?"),
        ("dense", "dense requires the argument 'size'."),
        ({"size": 3}, "The layer given as a dict needs the key 'type'. Received the keys: size."),
        (3, "A layer must be a name, a dict with 'type', a JSON file or a class. Received: 3."),
        ({"type": 3}, "A layer must be a name, a dict with 'type', a JSON file or a class. Received: 3."),
        ("a.b.C", f"The layer 'a.b.C' cannot be imported: No module named 'a'.{INSTALL}"),
        (
            "fractions.Fractoin",
            "The layer 'fractions.Fractoin' cannot be imported: module 'fractions' has no attribute "
            f"'Fractoin' ({fractions.__file__}). Did you mean 'Fraction'?",
        ),
        ("none.json", "The layer file 'none.json' does not exist."),
        ({"type": "base", "lrr": 1}, "base takes no argument 'lrr'. Did you mean 'lr'?"),
    ],
)
def test_faulty_specifications_are_named(registry, form, message):
    with fails(message):
        created(registry, form)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"type": ', r"is not JSON: .* \(line 1\)\.$"),
        (b"[1]", r"must hold one JSON object, not a list\.$"),
        (b"\xff", r"cannot be read: .*\.$"),
        (b'{"type": "\\ud800"}', r"cannot be read: .* surrogates not allowed\.$"),
        (b'{"type": ' + b"[" * 101 + b"]" * 101 + b"}", r"nested more than 100 deep\.$"),
        (b"[" * 100_000, r"nested more than 100 deep\.$"),
    ],
)
def test_faulty_files_are_named(registry, tmp_path, content, message):
    path = tmp_path / "layer.json"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        created(registry, path)
    with pytest.raises(SpecError, match="cannot be read"):
        spec.read_json(tmp_path, "layer")
