"""Spaces: reading specifications, checking values, masks, and the way to Gymnasium and back."""

import json
import subprocess
import sys
import tracemalloc
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.errors import SpaceError, SpecError
from operant.spec.spaces import Leaf, Space, Spaces, from_gymnasium, require, to_gymnasium

INF = np.inf


def same(a, b):
    """Compare nested values with their structure, types and shapes."""
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    return type(a) is type(b) and a == b


# Leaves


def test_fields_have_one_form():
    leaf = Leaf.read(
        {"type": np.float64, "shape": [2, np.int64(3)], "min_value": np.zeros(3), "max_value": 1}
    )
    assert leaf == Leaf("float", (2, 3), None, 0.0, 1.0)
    assert leaf.dtype == "float32" and leaf.size == 6 and leaf.bounded
    assert leaf.low.shape == (2, 3) and leaf.low.dtype == np.float32
    assert hash(leaf) == hash(Leaf("float", (2, 3), None, 0.0, 1.0))


@pytest.mark.parametrize(
    ("spec", "leaf"),
    [
        ({"shape": 3}, Leaf("float", (3,))),
        ({"shape": ()}, Leaf()),
        ({"type": float}, Leaf()),
        ({"type": "float32"}, Leaf()),
        ({"type": int, "num_values": 4}, Leaf("int", (), 4)),
        ({"num_values": 4}, Leaf("int", (), 4)),
        ({"type": "int", "num_actions": 4}, Leaf("int", (), 4)),
        ({"type": "int", "num_states": 4, "shape": 2}, Leaf("int", (2,), 4)),
        ({"type": np.int64, "num_values": np.int64(4)}, Leaf("int", (), 4)),
        ({"type": bool, "shape": 2}, Leaf("bool", (2,))),
        ({"type": "float", "min_value": -INF, "max_value": 1e39}, Leaf()),
        ({"type": "float", "shape": 2, "min_value": (0, None)}, Leaf("float", (2,), None, (0.0, None))),
        ({"type": "int", "num_values": 3, "min_value": 2, "max_value": 4}, Leaf("int", (), 3, 2)),
        ({"type": "int", "num_values": 3, "min_value": 0}, Leaf("int", (), 3)),
    ],
)
def test_spellings(spec, leaf):
    assert Leaf.read(spec) == leaf


@pytest.mark.parametrize(
    ("leaf", "low", "high", "bounded"),
    [
        (Leaf("float", (2,)), [-INF, -INF], [INF, INF], False),
        (Leaf("float", (2,), None, 0.0), [0, 0], [INF, INF], False),
        (Leaf("float", (2,), None, (0.0, None), 1.0), [0, -INF], [1, 1], False),
        (Leaf("float", (2,), None, (0.0, -2.0), 1.0), [0, -2], [1, 1], True),
        (Leaf("int", (2,), 3), [0, 0], [2, 2], True),  # 3 values: 0, 1, 2
        (Leaf("int", (2,), 3, 5), [5, 5], [7, 7], True),  # 3 values from 5: 5, 6, 7
        (Leaf("int", (2,), 3, (5, -1)), [5, -1], [7, 1], True),
        (Leaf("int", (2,), None, 5), [5, 5], [INF, INF], False),
        (Leaf("bool", (2,)), [0, 0], [1, 1], True),
    ],
)
def test_bounds(leaf, low, high, bounded):
    np.testing.assert_array_equal(leaf.low, low)
    np.testing.assert_array_equal(leaf.high, high)
    assert leaf.bounded is bounded
    with pytest.raises(ValueError, match=r"read-only"):
        leaf.low[0] = 9


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"type": "flaot"},
            r"type must be 'float', 'int' or 'bool'. Received: type='flaot'. Did you mean 'float'",
        ),
        ({"type": None}, "Received: type=None"),
        ({"type": "str"}, "Received: type='str'"),
        ({"shape": "3"}, "shape must be a whole number or a list"),
        ({"shape": 2.0}, "shape must be a whole number or a list"),
        ({"shape": (2, 0)}, r"shape must be made of whole numbers of at least 1. Received: shape=\(2, 0\)"),
        ({"shape": (True,)}, "shape must be made of whole numbers"),
        ({"shape": (2**16, 2**16)}, "shape must be of at most 2147483648 entries"),
        ({"num_values": 0}, "num_values must be a whole number of at least 1. Received: num_values=0"),
        ({"num_values": True}, "num_values must be a whole number"),
        ({"type": "int", "num_values": "three"}, "num_values must be a whole number"),
        ({"type": "float", "num_values": 3}, "num_values is for type 'int' only. Received: type='float'"),
        (
            {"type": "int", "num_values": 300, "dtype": "uint8"},
            "num_values must be small enough for dtype uint8",
        ),
        ({"type": "int", "num_values": 3, "min_value": 0, "max_value": 5}, "num_values=3 contradicts"),
        (
            {"type": "int", "shape": 2, "num_values": 3, "min_value": (0, None)},
            "given for every entry beside",
        ),
        ({"type": "int", "num_actions": 3, "num_values": 3}, "gives 'num_values' twice"),
        ({"type": "int", "min_value": 0.5}, "min_value must be whole for type 'int'"),
        ({"type": "bool", "max_value": 1}, "max_value is not for type 'bool'"),
        ({"type": "float", "min_value": 2, "max_value": 1}, "min_value must be at most max_value=1.0"),
        ({"type": "float", "min_value": np.nan}, "min_value must be a number or an array"),
        ({"type": "float", "min_value": "low"}, "min_value must be a number or an array"),
        ({"type": "float", "min_value": INF}, "min_value must be finite, or infinite on the open side"),
        ({"shape": 3, "max_value": (1, 2)}, r"max_value must be a number or an array of shape \(3,\)"),
        ({"type": "float", "dtype": "float64"}, "dtype must be one of float32, .* for type 'float'"),
        ({"type": "bool", "dtype": "nonsense"}, "dtype must be one of bool"),
        ({"shape": (4, 3), "frames": 4}, r"frames must be the size of the last axis of shape \(4, 3\)"),
        ({"shape": 3, "frames": 0}, "frames must be a whole number of at least 1"),
        ({"type": "float", "min_vale": 0}, "takes no field 'min_vale'. Did you mean 'min_value'"),
        ("float", "must be a dict such as .* Received: 'float'"),
    ],
)
def test_faults_of_a_leaf_name_the_component(spec, message):
    with pytest.raises(SpecError, match=f"^The state 'arm/x'.*{message}"):
        Space({"arm": {"x": spec, "y": {"shape": 1}}})


# Spaces of states, spaces of actions

NESTED = {
    "camera": {"left": {"shape": (2, 2, 4), "dtype": "uint8", "min_value": 0, "max_value": 255, "frames": 4}},
    "speed": {"type": "float", "shape": 3, "min_value": (-1, None, 0), "max_value": 5},
    "gear": {"type": "int", "num_values": 6, "min_value": -1},
    "lights": {"type": "bool", "shape": (2,)},
}


def test_names_join_in_the_order_given():
    space = Space(NESTED)
    assert list(space.components) == ["camera/left", "speed", "gear", "lights"]
    assert not space.single
    assert list(Space({"shape": 4}).components) == ["state"]
    assert list(Space({"num_values": 4}, "action").components) == ["action"]
    assert Space({"num_values": 4}, "action").single


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "float", "min_value": 0, "max_value": 1},
        {"type": "bool"},
        {"type": "int", "num_values": 3, "min_value": 1, "max_value": 3},
        {"type": "int", "min_value": 0, "max_value": 9},
    ],
    ids=str,
)
def test_reading_a_large_component_makes_no_arrays(spec):
    tracemalloc.start()
    try:
        space = Space({**spec, "shape": 2**31}, "action")
        assert space == Space(space.to_spec(), "action")
        assert tracemalloc.get_traced_memory()[1] < 1e6
        if spec["type"] == "float":
            with pytest.raises(SpecError, match=r"shape must be of at most 134,217,728 numbers. Received"):
                _ = space.components["action"].low
    finally:
        tracemalloc.stop()


def test_spec_survives_json():
    for spec in (NESTED, {"shape": 4}, {"state": {"shape": 4}}, {"type": "bool"}):
        space = Space(spec)
        text = json.dumps(space.to_spec(), allow_nan=False)
        again = Space.read(json.loads(text))
        assert again == space and hash(again) == hash(space)
    assert Space({"shape": 4}) != Space({"state": {"shape": 4}})
    assert Space({"type": "float"}) != Space({"type": "float"}, "action")
    assert Space.read(space) is space


def test_integer_actions_by_bounds():
    space = Space({"type": "int", "min_value": -2, "max_value": 2}, "action")
    leaf = space.components["action"]
    assert leaf.num_values == 5 and leaf.offset == -2  # -2, -1, 0, 1, 2
    assert space.unflatten({"action": np.int32(4)}) == 2
    assert space.flatten(-2)["action"] == 0
    assert Space({"type": "int", "min_value": -2, "max_value": 2}).components["state"].num_values is None


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        ({}, "state", "The state must have at least one component"),
        ({"a": {}, "b": {"shape": 1}}, "state", "The state 'a' must have at least one component"),
        ({"a/b": {"shape": 1}}, "state", "non-empty string without '/'. Received: 'a/b'"),
        ({3: {"shape": 1}}, "state", "non-empty string without '/'. Received: 3"),
        ({"": {"shape": 1}}, "action", "An? action name must be"),
        ({"type": {"shape": 1}}, "state", "The state name 'type' is reserved"),
        ({"a": {"shape": {"shape": 1}, "b": {"shape": 1}}}, "state", "The state name 'a/shape' is reserved"),
        ({"bool": {"shape": 1}}, "action", "The action name 'bool' is reserved"),
        ({"a": 3}, "state", "The state takes no field 'a'"),
        (None, "action", "The action must be a dict such as .* Received: None"),
        (
            {"type": "int"},
            "action",
            "The action of type 'int' needs num_values, or both min_value and max_value",
        ),
        ({"type": "int", "min_value": 0}, "action", "Received: min_value=0, max_value=None"),
        (
            {"a": {"type": "int", "shape": 2, "min_value": 0, "max_value": (1, 4)}},
            "action",
            "The action 'a' of type 'int' must have as many values in every entry. Received: between 2 and 5",
        ),
        ({"type": "float", "dtype": "uint8"}, "action", "must have a float dtype. Received: dtype='uint8'"),
        ({"shape": 2, "frames": 2}, "action", "The action has no frames"),
        ({"shape": 2}, "reward", "kind must be 'state' or 'action'. Received: kind='reward'"),
        (Space({"shape": 2}), "action", "must be a dict such as"),
    ],
)
def test_faults_of_a_space(spec, kind, message):
    with pytest.raises(SpecError, match=message):
        Space(spec, kind)


def test_a_space_of_the_other_kind():
    with pytest.raises(SpecError, match=r"A space of actions is needed. Received a space of states"):
        Space.read(Space({"shape": 2}), "action")


GOOD = {
    "camera": {"left": np.full((2, 2, 4), 255, np.uint8)},
    "speed": [0, -9.5, 5],
    "gear": 4,
    "lights": [True, False],
}


def test_flatten_gives_what_is_stored():
    flat = Space(NESTED).check(GOOD)
    assert {name: array.dtype.name for name, array in flat.items()} == {
        "camera/left": "uint8",
        "speed": "float32",
        "gear": "int32",
        "lights": "bool",
    }
    assert flat["camera/left"] is GOOD["camera"]["left"]  # nothing is copied that already fits
    assert flat["gear"] == 5  # 4 is the sixth of -1 .. 4


def test_unflatten_gives_the_users_structure_and_numbers():
    space = Space(NESTED)
    value = space.unflatten(space.flatten(GOOD))
    assert list(value) == list(NESTED)
    assert type(value["gear"]) is int and value["gear"] == 4
    np.testing.assert_array_equal(value["speed"], np.array([0, -9.5, 5], np.float32))
    assert type(Space({"type": "float"}, "action").unflatten({"action": np.float32(0.5)})) is float
    assert Space({"type": "bool"}, "action").unflatten({"action": np.array(True)}) is True


def test_a_single_component_comes_bare_or_by_name():
    space = Space({"shape": 2})
    array = np.zeros(2, np.float32)
    assert space.check(array)["state"] is array
    assert space.check({"state": array})["state"] is array
    with pytest.raises(SpaceError, match=r"There is no state 'stat'. Did you mean 'state'"):
        space.check({"stat": array})


def changed(path, value):
    """Return GOOD with one entry replaced."""
    if len(path) == 2:
        return {**GOOD, path[0]: {path[1]: value}}
    return {**GOOD, path[0]: value}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({**GOOD, "sped": 1}, "There is no state 'sped'. Did you mean 'speed'"),
        ({**GOOD, "action_mask": 1}, "There is no state 'action_mask'.*Masks must be declared"),
        (changed(("camera",), {"lef": 1}), "There is no state 'camera/lef'. Did you mean 'left'"),
        (
            {k: v for k, v in GOOD.items() if k != "gear"},
            "The state 'gear' is missing. Received: 'camera', 'speed'",
        ),
        (
            changed(("camera",), np.zeros(3)),
            "The state 'camera' must be a dict with 'left'. Received: ndarray",
        ),
        (3, "The state must be a dict with 'camera', 'speed', 'gear', 'lights'. Received: int"),
        (changed(("speed",), [0, 0]), r"The state 'speed' must have shape \(3,\). Received: shape \(2,\)"),
        (
            changed(("speed",), [[0, 0, 0]]),
            r"The state 'speed' must have shape \(3,\). Received: shape \(1, 3\)",
        ),
        (
            changed(("speed",), [0, 0, np.nan]),
            r"The state 'speed' must be finite. Received: nan at index \(2,\)",
        ),
        (
            changed(("speed",), [0, -INF, 0]),
            r"The state 'speed' must be finite. Received: -inf at index \(1,\)",
        ),
        (changed(("speed",), [0, 1e300, 0]), "The state 'speed' must be finite. Received: inf"),
        (
            changed(("speed",), [12.5, 0, 0]),
            r"'speed' must be between \[ ?-1., -inf,   0.\] and 5.0?. Received: 12.5 at index \(0,\)",
        ),
        (changed(("speed",), ["a", "b", "c"]), "The state 'speed' must be a number. Received: dtype <U1"),
        (changed(("speed",), [True, True, True]), "The state 'speed' must be a number. Received: dtype bool"),
        (changed(("speed",), [0, [1, 2], 0]), "The state 'speed' must be an array of numbers"),
        (
            changed(("gear",), 5),
            "The state 'gear' must be one of its 6 values, between -1 and 4. Received: 5.",
        ),
        (changed(("gear",), 1.0), "The state 'gear' must be an integer. Received: dtype float64"),
        (changed(("lights",), [1, 0]), "The state 'lights' must be True or False. Received: dtype int64"),
        (
            changed(("camera", "left"), np.full((2, 2, 4), 256)),
            "'camera/left' must be between 0 and 255. Received: 256",
        ),
        (
            changed(("camera", "left"), np.zeros((2, 2, 4))),
            r"'camera/left' must be a number of an integer dtype \(stored as uint8\). Received: dtype "
            r"float64",
        ),
    ],
)
def test_faults_of_a_value(value, message):
    with pytest.raises(SpaceError, match=message):
        Space(NESTED).check(value)


def test_values_are_looked_at_only_when_asked():
    space = Space(NESTED)
    space.check(changed(("speed",), [0, 99, np.nan]), values=False)
    with pytest.raises(SpaceError, match=r"'speed' must have shape"):
        space.check(changed(("speed",), [0, 0]), values=False)


def test_batch_axes():
    space = Space({"x": {"shape": 2}, "y": {"num_values": 3}})
    value = {"x": np.zeros((5, 2)), "y": np.zeros(5, int)}
    assert space.batch_shape(space.check(value, (5,))) == (5,)
    assert space.batch_shape(space.flatten(value)) == (5,)
    with pytest.raises(
        SpaceError, match=r"'x' must have shape \(2,\) after the batch axes \(4,\). .* shape \(5, 2\)"
    ):
        space.check(value, (4,))
    with pytest.raises(
        SpaceError, match=r"'y' must have shape \(\) after the batch axes \(5,\). .* shape \(4,\)"
    ):
        space.flatten({**value, "y": np.zeros(4, int)})
    np.testing.assert_array_equal(space.unflatten(space.flatten(value))["x"], value["x"])


def test_bounds_hold_in_the_storage_type():
    """0.1 is rounded up in float32: the bound must be rounded alike."""
    space = Space({"type": "float", "min_value": 0.1, "max_value": 0.3})
    space.check(np.float32(0.1))
    space.check(0.3)
    Space({"type": "float", "max_value": 0.1, "dtype": "float16"}).check(0.1)  # 0.09998 in float16
    Space({"type": "float", "min_value": 0.1, "dtype": "float16"}).check(0.1)  # below 0.1 as float32
    with pytest.warns(RuntimeWarning, match=r"between 0.1 and 0.3"):
        space.check(np.nextafter(np.float32(0.3), np.float32(1)))
    with pytest.raises(SpaceError, match=r"between 0.1 and 0.3"):
        Space({"type": "float", "min_value": 0.1, "max_value": 0.3}, "action").check(0.31)


@pytest.mark.parametrize("value", [2.0001, 3.9, -1.9])
def test_states_a_little_outside_are_taken_with_one_warning(value):
    space = Space({"type": "float", "shape": 2, "min_value": 0, "max_value": [2, 5]})
    with pytest.warns(
        RuntimeWarning, match=r"between 0. and .2., 5... Received: .* It is used as it is"
    ) as told:
        for _ in range(3):
            assert space.check([value, 4.0])["state"][0] == np.float32(value)
    assert len(told) == 1
    space.check([4.5, 9.9])  # by more than the bounds are apart, as what drifts
    other = Space({"type": "float", "shape": 2, "min_value": 0, "max_value": [2, 5]})
    with pytest.raises(SpaceError, match=r"between .* Received: 4.5 at index \(0,\)"):
        other.check([4.5, 9.9])


def test_an_open_side_admits_no_infinity():
    space = Space({"type": "float", "min_value": 0})
    space.check(1e30)
    with pytest.raises(SpaceError, match=r"must be finite. Received: inf"):
        space.check(INF)


def test_integer_numbers_are_not_wrapped():
    space = Space({"type": "int"})
    with pytest.raises(SpaceError, match=r"between -2147483648 and 2147483647. Received: 2147483648"):
        space.check(2**31)
    with pytest.raises(SpaceError, match=r"between 0 and 2147483647. Received: -1"):
        Space({"type": "int", "min_value": 0}).check(-1)


def test_unflatten_refuses_other_names():
    space = Space({"x": {"shape": 2}}, "action")
    with pytest.raises(SpaceError, match=r"The action 'x' is missing. Received: nothing"):
        space.unflatten({})
    with pytest.raises(SpaceError, match=r"There is no action 'z'"):
        space.unflatten({"x": np.zeros(2), "z": 1})


def test_clip():
    space = Space(
        {"a": {"shape": 2, "min_value": (-1, None), "max_value": 1}, "b": {"num_values": 3}}, "action"
    )
    flat = {"a": np.array([[-3, -3], [3, 0]], np.float32), "b": np.array([2, 0])}
    clipped = space.clip(flat)
    np.testing.assert_array_equal(clipped["a"], [[-1, -3], [1, 0]])
    assert clipped["a"].dtype == np.float32 and clipped["b"] is flat["b"]
    checked = space.check(flat, None, clip=True)
    np.testing.assert_array_equal(checked["a"], clipped["a"])
    for wrong in ({"a": [np.nan, 0], "b": 0}, {"a": [0, -INF], "b": 0}, {"a": [9, 9], "b": 3}):
        with pytest.raises(SpaceError, match="must be"):
            space.check(wrong, clip=True)


# Masks


def test_masks_leave_the_states():
    spec = {"x": {"shape": 2}, "arm": {"grip_mask": {"type": "bool", "shape": (2, 3)}}}
    actions = {"arm": {"grip": {"num_values": 3, "shape": 2}, "turn": {"shape": ()}}}
    spaces = Spaces.read(spec, actions)
    assert list(spaces.states.components) == ["x"]
    assert spaces.masks == ("arm/grip",)
    assert list(spaces.observation_components) == ["x", "arm/grip_mask"]
    assert spaces.mask_leaf("arm/grip") == Leaf("bool", (2, 3))
    assert "arm" in spec  # the user's dict stays as it was
    again = Spaces.from_spec(json.loads(json.dumps(spaces.to_spec())))
    assert again == spaces and hash(again) == hash(spaces)

    mask = np.array([[1, 0, 0], [0, 1, 1]], bool)
    for value in (
        {"x": [0, 0], "arm": {"grip_mask": mask}},
        {"x": [0, 0], "arm/grip_mask": mask.astype(np.int8)},
    ):
        flat = spaces.observe(value)
        assert list(flat) == ["x", "arm/grip_mask"] and flat["arm/grip_mask"].dtype == bool
        np.testing.assert_array_equal(flat["arm/grip_mask"], mask)


def test_a_single_state_and_action_with_mask():
    spaces = Spaces.read(
        {"state": {"shape": 2}, "action_mask": {"type": "bool", "shape": 3}}, {"type": "int", "num_values": 3}
    )
    assert spaces == Spaces.read({"shape": 2}, {"num_values": 3}, masks=["action"])
    assert spaces == Spaces.read({"shape": 2}, {"num_values": 3}, masks="action")
    flat = spaces.observe({"state": np.zeros((4, 2)), "action_mask": np.eye(4, 3, dtype=bool) | True})
    assert flat["action_mask"].shape == (4, 3)
    for value in (np.zeros((4, 2)), {"state": np.zeros((4, 2))}):
        flat = spaces.observe(value, (4,))
        assert flat["action_mask"].all() and flat["action_mask"].shape == (4, 3)


def test_without_masks_an_observation_is_its_states():
    spaces = Spaces.read({"shape": 2}, {"num_values": 3})
    array = np.zeros(2, np.float32)
    assert spaces.observe(array)["state"] is array
    assert spaces.observation_components == spaces.states.components


@pytest.mark.parametrize(
    ("states", "actions", "masks", "message"),
    [
        (
            {"a_mask": {"type": "bool", "shape": 2}, "x": {"shape": 1}},
            {"a": {"num_values": 3}},
            (),
            r"shape \(3,\)",
        ),
        ({"a_mask": {"shape": 3}, "x": {"shape": 1}}, {"a": {"num_values": 3}}, (), "must be of type 'bool'"),
        (
            {"a_mask": {"type": "bool"}, "x": {"shape": 1}},
            {"a": {"shape": 3}},
            (),
            "Only 'int' actions can be masked",
        ),
        ({"a_mask": {"type": "bool", "shape": 3}}, {"a": {"num_values": 3}}, (), "at least one component"),
        ({"x": {"shape": 1}}, {"a": {"shape": 3}}, ("a",), "Only 'int' actions.*'a' of type 'float'"),
        (
            {"x": {"shape": 1}},
            {"grip": {"num_values": 3}},
            ("gri",),
            "no action 'gri' to mask. Did you mean 'grip'",
        ),
    ],
)
def test_faults_of_masks(states, actions, masks, message):
    with pytest.raises(SpecError, match=message):
        Spaces.read(states, actions, masks)


def test_more_faults_of_spaces():
    state, action = Space({"a_mask": {"shape": 1}}), Space({"a": {"num_values": 3}}, "action")
    with pytest.raises(SpecError, match=r"The state 'a_mask' has the name of a mask"):
        Spaces(state, action, ("a",))
    with pytest.raises(SpecError, match=r"A space of states is needed"):
        Spaces(action, action)
    with pytest.raises(SpecError, match=r"'actions' is missing"):
        Spaces.from_spec({"states": {"shape": 1}})


@pytest.mark.parametrize(
    ("mask", "action", "message"),
    [
        (
            gym.MultiBinary(3),
            gym.Discrete(4),
            r"'action_mask' must be a MultiBinary of shape \(4,\).*Received: MultiBinary\(3\)",
        ),
        (
            gym.MultiBinary(4),
            gym.MultiDiscrete([4, 4]),
            r"must be a MultiBinary of shape \(2, 4\) or \(8,\), or",
        ),
        (gym.Box(0, 1, (4,), np.float32), gym.Discrete(4), r"or a Box of integers from 0 to 1"),
        (
            gym.MultiBinary(8),
            gym.MultiDiscrete([4, 3]),
            r"'action_mask' must be a MultiBinary of shape \(7,\), or",
        ),
        (
            gym.MultiBinary(7),
            gym.Tuple([gym.Discrete(4), gym.Discrete(3)]),
            r"masks no action of Tuple.*Give a mask for each choice: '0_mask', '1_mask'",
        ),
        (gym.MultiBinary(4), gym.Dict({"move": gym.Discrete(4)}), "Give a mask for each choice: 'move_mask'"),
        (gym.MultiBinary(4), gym.Box(-1, 1, (4,)), "Only choices can be masked: rename it"),
    ],
)
def test_what_is_called_a_mask_fits_an_action(mask, action, message):
    """It was an ordinary state before, and forbidden actions were taken without a word, or JAX complained
    of shapes."""
    observation = gym.Dict({"x": gym.Box(-1, 1, (2,)), "action_mask": mask})
    with pytest.raises(SpaceError, match=message):
        from_gymnasium(observation, action)


def test_no_state_stands_where_a_mask_belongs():
    actions = {"arm": {"grip": {"type": "int", "num_values": 3}}}
    message = "The state 'arm' stands where the mask 'arm/grip_mask' belongs. Rename that component"
    with pytest.raises(SpecError, match=message):
        Spaces.read({"arm": {"shape": 2}}, actions, masks=["arm/grip"])


@pytest.mark.parametrize(
    ("states", "actions", "masks"),
    [
        ({"shape": 2}, {"num_values": 3, "type": "int"}, ()),
        ({"shape": 2}, {"num_values": 3, "type": "int"}, ["action"]),
        ({"x": {"shape": 2}}, {"a": {"type": "int", "num_values": 3}}, ["a"]),
        (
            {"x": {"shape": 2}, "arm": {"y": {"shape": 1}}},
            {"arm": {"grip": {"type": "int", "num_values": 2}}},
            ["arm/grip"],
        ),
        (
            {"x": {"shape": 2}},
            {"arm": {"a": {"type": "int", "num_values": 2}, "b": {"type": "bool"}}},
            ["arm/a"],
        ),
    ],
    ids=["none", "single", "flat", "nested", "branch of its own"],
)
def test_what_is_observed_goes_back_and_is_declared(states, actions, masks):
    """`unflatten` undoes `observe`, and `declaration` is what `read` takes."""
    spaces = Spaces.read(states, actions, masks)
    assert Spaces.read(spaces.declaration(), actions) == spaces
    json.dumps(spaces.declaration())
    flat = {name: np.ones(leaf.shape, leaf.dtype) for name, leaf in spaces.observation_components.items()}
    again = spaces.observe(spaces.unflatten(flat))
    assert list(again) == list(flat)
    for name in flat:
        np.testing.assert_array_equal(again[name], flat[name])
    for name in flat:
        with pytest.raises(SpaceError, match="is missing"):
            spaces.unflatten({k: x for k, x in flat.items() if k != name})
    with pytest.raises(SpaceError, match="There is no state 'other_mask'"):
        spaces.unflatten({**flat, "other_mask": 1})


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            [[1, 1, 1], [0, 0, 0]],
            r"mask 'action_mask' must allow at least one value. Received: all False at index \(1,\)",
        ),
        ([1, 1, 1], r"mask 'action_mask' must have shape \(3,\) after the batch axes \(2,\)"),
        ([[1, 1, 2], [1, 1, 1]], "mask 'action_mask' must be True or False. Received: dtype int64"),
        (np.ones((2, 3)), "mask 'action_mask' must be True or False. Received: dtype float64"),
    ],
)
def test_faults_of_a_mask_value(mask, message):
    spaces = Spaces.read({"shape": 2}, {"num_values": 3}, ["action"])
    with pytest.raises(SpaceError, match=message):
        spaces.observe({"state": np.zeros((2, 2)), "action_mask": mask})


def test_require():
    spaces = Spaces.read({"shape": 2}, {"arm": {"a": {"shape": 3}}, "b": {"num_values": 2}})
    require(spaces, "PPO", {"float", "int", "bool"}, "nothing")
    with pytest.raises(
        SpaceError,
        match=r"^DQN supports discrete \(int, bool\) actions only, and action 'arm/a' is 'float'. Use sac",
    ):
        require(spaces, "DQN", {"int", "bool"}, "sac")
    single = Spaces.read({"shape": 2}, {"num_values": 2})
    with pytest.raises(
        SpaceError,
        match=r"SAC supports continuous \(float\) actions only, and the action is 'int'. Use 'dqn' instead",
    ):
        require(single, "SAC", {"float"}, "'dqn'")


# Gymnasium

BOX = gym.Box(-1, 1, (3,))
TABLE = [
    BOX,
    gym.Box(-INF, INF, ()),
    gym.Box(0, INF, (2, 2)),
    gym.Box(np.array([-1, -INF], np.float32), np.array([2, 5e6], np.float32)),
    gym.Box(-1, 1, (2,), np.float64),
    gym.Box(-1, 1, (2,), np.float16),
    gym.Box(0, 255, (4, 4, 3), np.uint8),
    gym.Box(-3, 8, (2,), np.int8),
    gym.Box(0, 5, (2, 2), np.int64),
    gym.Box(np.array([0, -2]), np.array([3, 4]), dtype=np.int64),
    gym.Box(0, 1, (2,), bool),
    gym.Discrete(1),
    gym.Discrete(5),
    gym.Discrete(5, start=-2),
    gym.Discrete(3, start=7),
    gym.MultiDiscrete([4, 4, 4]),
    gym.MultiDiscrete([4, 4], start=[1, -3]),
    gym.MultiDiscrete([4, 4], dtype=np.int32, start=[1, -3]),
    gym.MultiDiscrete([2, 3, 4]),
    gym.MultiDiscrete([2, 3, 4], start=[5, 0, -1]),
    gym.MultiDiscrete([[2, 3], [4, 5]]),
    gym.MultiDiscrete([[3, 3], [3, 3]], start=[[1, 1], [1, 1]]),
    gym.MultiBinary(4),
    gym.MultiBinary((2, 3)),
    gym.Dict(a=BOX),
    gym.Dict({"b": gym.Dict(x=BOX, y=gym.Discrete(3, start=1)), "a": gym.MultiBinary(2)}),
    gym.Tuple([BOX, gym.Discrete(2), gym.Tuple([gym.MultiDiscrete([2, 3]), BOX])]),
    gym.Dict({"type": BOX, "x/y": gym.Discrete(2), "shape": gym.Tuple([gym.MultiBinary(1)])}),
]


def gym_values(space, n, seed=3):
    space.seed(seed)
    return [space.sample() for _ in range(n)]


def stack(values):
    """Stack values as a vector environment does."""
    first = values[0]
    if isinstance(first, dict):
        return {key: stack([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(stack(list(entries)) for entries in zip(*values, strict=True))
    return np.stack(values)


def back_and_forth(space):
    """Check the whole way of one space's values: as observation and as action, single and batched."""
    spaces, codec = from_gymnasium(space, space)
    values = gym_values(space, 4)
    for side, ours in ((codec.observation, spaces.states), (codec.action, spaces.actions)):
        rows = [side.encode(value, False) for value in values]
        batch = side.encode(stack(values), True)
        for i, (row, value) in enumerate(zip(rows, values, strict=True)):
            assert list(row) == list(ours.components) == list(batch)
            for name, leaf in ours.components.items():
                assert row[name].dtype == batch[name].dtype == leaf.dtype
                assert row[name].shape == leaf.shape
                np.testing.assert_array_equal(row[name], batch[name][i])
            emitted = ours.unflatten(row)
            for name, array in ours.check(emitted).items():
                np.testing.assert_array_equal(array, row[name])
            decoded = side.decode(row, False)
            assert space.contains(decoded)
            assert close(decoded, value)
        decoded = side.decode(batch, True)
        assert batch_space(space, 4).contains(decoded)
        assert close(decoded, stack(values))
    one = codec.decode_one(batch, 2)
    assert same(one, codec.decode(rows[2], False))


def close(a, b):
    if isinstance(a, dict):
        return list(a) == list(b) and all(close(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and all(map(close, a, b))
    return np.asarray(a).dtype == np.asarray(b).dtype and np.allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("space", TABLE, ids=str)
def test_values_go_back_and_forth(space):
    back_and_forth(space)


@pytest.mark.parametrize(
    ("space", "leaf"),
    [
        (gym.Box(-1, 1, (3,)), Leaf("float", (3,), None, -1, 1)),
        (gym.Box(0, 255, (4, 4, 3), np.uint8), Leaf("float", (4, 4, 3), None, 0, 255, "uint8")),
        (
            gym.Box(np.float32([-1, -1e20]), np.float32([2, 5e6])),
            Leaf("float", (2,), None, (-1, None), (2, 5e6)),
        ),
        (gym.Box(-3e38, 3e38, (2,)), Leaf("float", (2,))),
        (gym.Box(0, 9, (2,), np.int64), Leaf("float", (2,), None, 0, 9, "int32")),
        (gym.Box(0, 2**40, (2,), np.int64), Leaf("float", (2,), None, 0, 2**40, "float32")),
        (gym.Box(-(2**63), 2**63 - 1, (2,), np.int64), Leaf("float", (2,))),
        (gym.Discrete(5, start=-2), Leaf("int", (), 5, -2)),
        (gym.MultiDiscrete([3, 3]), Leaf("int", (2,), 3)),
        (gym.MultiDiscrete([3, 3], start=[0, 2]), Leaf("int", (2,), 3, (0, 2))),
        (gym.MultiBinary(2), Leaf("bool", (2,))),
    ],
    ids=str,
)
def test_what_a_gymnasium_space_becomes(space, leaf):
    spaces, _ = from_gymnasium(space, gym.Discrete(2))
    assert spaces.states == Space(leaf)


def test_names_from_gymnasium():
    spaces, _ = from_gymnasium(TABLE[-1], gym.MultiDiscrete([[2, 3], [4, 5]]))
    assert set(spaces.states.components) == {"type_", "x_y", "shape_/0"}
    assert [(n, leaf.num_values) for n, leaf in spaces.actions.components.items()] == [
        ("0", 2),
        ("1", 3),
        ("2", 4),
        ("3", 5),
    ]
    tuple_space = gym.Tuple([BOX, gym.Dict(a=gym.MultiDiscrete([2, 3]))])
    assert list(from_gymnasium(tuple_space, BOX)[0].states.components) == ["0", "1/a/0", "1/a/1"]


def test_golden_choices():
    """Entries of unequal counts stand apart; starts are subtracted: [6, 2, 0] - [5, 0, -1] = [1, 2, 1]."""
    space = gym.MultiDiscrete([2, 3, 4], start=[5, 0, -1])
    _, codec = from_gymnasium(space, space)
    flat = codec.encode(np.array([6, 2, 0]), False)
    assert {name: int(array) for name, array in flat.items()} == {"0": 1, "1": 2, "2": 1}
    np.testing.assert_array_equal(codec.decode(flat, False), [6, 2, 0])


def test_actions_are_clipped_and_typed():
    _, codec = from_gymnasium(BOX, gym.Box(np.float32([-1, 0]), np.float32([1, INF]), dtype=np.float32))
    decoded = codec.decode({"action": np.float32([[-3, -3], [3, 3]])}, True)
    np.testing.assert_array_equal(decoded, np.float32([[-1, 0], [1, 3]]))
    _, codec = from_gymnasium(BOX, gym.Box(-INF, INF, (2,)))
    given = np.zeros((1, 2), np.float32)
    decoded = codec.decode({"action": given}, True)
    decoded += 1  # environments may write to their actions
    assert decoded.dtype == np.float32 and not given.any()
    _, codec = from_gymnasium(BOX, gym.Discrete(3, start=1))
    one = codec.decode({"action": np.array(2, np.int32)}, False)
    assert type(one) is np.int64 and one == 3
    assert codec.decode_one({"action": np.array([0, 2], np.int32)}, 0) == 1


def test_a_box_of_the_right_type_is_not_copied():
    _, codec = from_gymnasium(BOX, BOX)
    batch = np.zeros((8, 3), np.float32)
    assert codec.encode(batch, True)["state"] is batch
    assert codec.encode(batch[0], False)["state"].base is batch
    assert np.shares_memory(from_gymnasium(gym.Dict(a=BOX), BOX)[1].encode({"a": batch}, True)["a"], batch)
    with pytest.raises(SpaceError, match=r"'state' must have shape \(3,\). Received: shape \(8, 3\)"):
        codec.encode(batch, False)
    with pytest.raises(SpaceError, match=r"'state' must have shape \(N, 3\). Received: shape \(8, 2\)"):
        codec.encode(batch[:, :2], True)


@pytest.mark.parametrize("first", [False, True])
def test_stacked_frames(first):
    shape = (4, 6, 5) if first else (6, 5, 4)
    image = gym.Box(0, 255, shape, np.uint8)
    spaces, codec = from_gymnasium(image, gym.Discrete(2), frames=4, channels_first=first)
    assert spaces.states.components["state"] == Leaf("float", (6, 5, 4), None, 0, 255, "uint8", 4)
    value = image.sample()
    batch = np.stack([value, value + np.uint8(1)])
    wanted = value.transpose(1, 2, 0) if first else value
    np.testing.assert_array_equal(codec.encode(value, False)["state"], wanted)
    flat = codec.encode(batch, True)["state"]
    np.testing.assert_array_equal(flat[0], wanted)
    assert np.shares_memory(flat, batch)
    np.testing.assert_array_equal(codec.observation.decode({"state": flat}, True), batch)


def test_channels_first_moves_images_only():
    space = gym.Dict(
        image=gym.Box(0, 255, (3, 6, 5), np.uint8),
        stack=gym.Box(-1, 1, (4, 2)),
        table=gym.Box(-1, 1, (5, 2)),
        x=BOX,
    )
    spaces, _ = from_gymnasium(space, BOX, frames=4, channels_first=True)
    shapes = {name: (leaf.shape, leaf.frames) for name, leaf in spaces.states.components.items()}
    assert shapes == {"image": ((6, 5, 3), 1), "stack": ((2, 4), 4), "table": ((5, 2), 1), "x": ((3,), 1)}
    plain, _ = from_gymnasium(space, BOX)
    assert plain.states.components["image"].shape == (3, 6, 5)


@pytest.mark.parametrize(
    "mask", [gym.MultiBinary(3), gym.Box(0, 1, (3,), np.int8), gym.Box(0, 1, (3,), bool)], ids=str
)
def test_action_mask_of_a_dict_observation(mask):
    space = gym.Dict(observation=BOX, action_mask=mask)
    spaces, codec = from_gymnasium(space, gym.Discrete(3, start=1))
    assert spaces.masks == ("action",) and list(spaces.states.components) == ["observation"]
    value = {
        "observation": np.zeros((2, 3), np.float32),
        "action_mask": np.array([[1, 0, 1], [1, 1, 1]], mask.dtype),
    }
    flat = codec.encode(value, True)
    assert set(flat) == {"observation", "action_mask"}
    assert flat["action_mask"].dtype == bool
    np.testing.assert_array_equal(flat["action_mask"], [[True, False, True], [True, True, True]])


FLAT = np.array([[1, 0, 1, 0, 0, 1, 1], [1, 1, 1, 1, 0, 0, 1]], np.int8)


@pytest.mark.parametrize("mask", [gym.MultiBinary(7), gym.Box(0, 1, (7,), np.int8)], ids=str)
@pytest.mark.parametrize("place", ["", "arm/"])
def test_one_vector_masks_choices_of_unequal_counts(mask, place):
    """The layout of MaskablePPO: the entries of the first choice, then those of the second."""
    action, entry = gym.MultiDiscrete([4, 3]), {"action_mask": mask}
    if place:
        action, entry = gym.Dict(arm=action), {"arm_mask": mask}
    spaces, codec = from_gymnasium(gym.Dict(x=BOX, **entry), action)
    assert spaces.masks == (f"{place}0", f"{place}1") and list(spaces.states.components) == ["x"]
    value = {"x": np.zeros((2, 3), np.float32), next(iter(entry)): FLAT}
    flat = codec.encode(value, True)
    np.testing.assert_array_equal(flat[f"{place}0_mask"], FLAT[:, :4].astype(bool))
    np.testing.assert_array_equal(flat[f"{place}1_mask"], FLAT[:, 4:].astype(bool))
    spaces.observe(spaces.unflatten(flat))  # fits the spaces
    np.testing.assert_array_equal(codec.observation.decode(flat, True)[next(iter(entry))], FLAT)
    one = codec.encode({name: x[0] for name, x in value.items()}, False)
    np.testing.assert_array_equal(one[f"{place}1_mask"], [False, True, True])
    np.testing.assert_array_equal(codec.observation.decode(one, False)[next(iter(entry))], FLAT[0])


def test_one_vector_masks_choices_of_equal_counts():
    action = gym.MultiDiscrete([[3, 3]])
    spaces, codec = from_gymnasium(gym.Dict(x=BOX, action_mask=gym.MultiBinary(6)), action)
    assert spaces.masks == ("action",) and spaces.mask_leaf("action").shape == (1, 2, 3)
    flat = codec.encode({"x": np.zeros((2, 3), np.float32), "action_mask": FLAT[:, :6]}, True)
    np.testing.assert_array_equal(flat["action_mask"], FLAT[:, :6].reshape(2, 1, 2, 3).astype(bool))
    np.testing.assert_array_equal(codec.observation.decode(flat, True)["action_mask"], FLAT[:, :6])
    both = gym.Dict({"x": BOX, "action_mask": gym.MultiBinary(7), "0_mask": gym.MultiBinary(4)})
    with pytest.raises(SpaceError, match="has '0_mask' twice, by itself and within a vector"):
        from_gymnasium(both, gym.MultiDiscrete([4, 3]))


@pytest.mark.parametrize(
    ("observation", "action", "options", "message"),
    [
        (gym.Text(5), BOX, {}, "The state space must be a Box, .* Received: Text"),
        (
            BOX,
            gym.Dict(a=gym.Tuple([gym.Text(5)])),
            {},
            "The action space 'a/0' must be a Box, .* Received: Text",
        ),
        (gym.Sequence(BOX), BOX, {}, "Received: Sequence.*wrapper"),
        (
            BOX,
            gym.Box(-(2**31), 2**31 - 1, (2,), np.int32),
            {},
            "An action Box of integers must have both bounds",
        ),
        (gym.Dict(action_mask=gym.MultiBinary(3)), gym.Discrete(3), {}, "must hold more than masks"),
        (gym.Dict({"a/b": BOX, "a_b": BOX}), BOX, {}, "Two entries of the state space would be named 'a_b'"),
        (BOX, BOX, {"frames": 4}, "No Box of the observation space holds 4 frames. Received: Box"),
    ],
    ids=str,
)
def test_faults_of_gymnasium_spaces(observation, action, options, message):
    with pytest.raises(SpaceError, match=message):
        from_gymnasium(observation, action, **options)


def test_faults_within_gymnasium_spaces_say_where():
    empty, large = gym.Box(-1.0, 1.0, (0,)), gym.Discrete(2**40)
    for observation, action, message in (
        (
            empty,
            gym.Discrete(2),
            r"^The state space Box\(.*\): shape must be made of whole numbers of at least 1. Received: "
            r"shape=\(0,\)",
        ),
        (BOX, gym.Dict(a=gym.Tuple([empty])), r"^The action space 'a/0' Box\(.*: shape must be"),
        (
            BOX,
            large,
            r"^The action space Discrete\(1099511627776\): num_values must be small enough for dtype int32",
        ),
        (large, BOX, "^The state space Discrete"),
        (gym.Dict(), BOX, r"^The observation space must have an entry\. Received: Dict\(\)"),
        (gym.Dict(a=gym.Tuple([])), BOX, "^The observation space must have an entry"),
        (BOX, gym.Tuple([]), r"^The action space must have an entry\. Received: Tuple\(\)"),
    ):
        with pytest.raises(SpecError, match=message):
            from_gymnasium(observation, action)


class Nested(gymnasium.Env):
    """Gives what its observation space samples, and refuses actions outside its action space."""

    observation_space = TABLE[-3]
    action_space = TABLE[-2]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), 0.0, False, False, {}


def test_vector_environments():
    vector = gymnasium.vector.SyncVectorEnv([Nested] * 3)
    spaces, codec = from_gymnasium(vector.single_observation_space, vector.single_action_space)
    observation, _ = vector.reset(seed=1)
    flat = codec.encode(observation, True)
    assert spaces.states.batch_shape(flat) == (3,)
    spaces.states.check(spaces.states.unflatten(flat), (3,))
    actions = codec.action.encode(stack(gym_values(vector.single_action_space, 3)), True)
    vector.step(codec.decode(actions, True))
    vector.close()


# Any nested space

number = st.integers(-5, 5)
shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)


@st.composite
def float_leaves(draw):
    low, high = draw(st.none() | number), draw(st.none() | st.integers(6, 9))
    return Leaf("float", draw(shapes), None, low, high)


@st.composite
def images(draw):
    return Leaf("float", draw(shapes), None, 0, draw(st.integers(1, 255)), "uint8")


leaves = st.one_of(
    float_leaves(),
    images(),
    st.builds(
        lambda shape, n, low: Leaf("int", shape, n, low), shapes, st.integers(1, 5), st.none() | number
    ),
    st.builds(lambda shape: Leaf("bool", shape), shapes),
)
names = st.sampled_from(["a", "b", "c", "state", "0"])
trees = st.recursive(
    leaves, lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3), max_leaves=5
)


def draw_flat(space, batch, seed):
    """Draw values as they are stored."""
    generator = np.random.default_rng(seed)
    flat = {}
    for name, leaf in space.components.items():
        shape = batch + leaf.shape
        if leaf.type == "bool":
            array = generator.random(shape) < 0.5
        elif leaf.type == "int":
            array = generator.integers(0, leaf.num_values, shape)
        else:
            low, high = np.maximum(leaf.low, -9), np.minimum(leaf.high, 9)
            array = low + generator.random(shape) * (high - low)
        flat[name] = np.asarray(array).astype(leaf.dtype)
    return flat


@settings(max_examples=60, deadline=None)
@given(trees, st.sampled_from([(), (3,), (2, 1)]), st.integers(0, 99))
def test_values_of_any_space_survive(tree, batch, seed):
    space = Space(tree)
    assert Space.read(json.loads(json.dumps(space.to_spec(), allow_nan=False))) == space
    flat = draw_flat(space, batch, seed)
    checked = space.check(space.unflatten(flat), batch)
    assert list(checked) == list(flat)
    for name, array in checked.items():
        assert array.dtype == flat[name].dtype
        np.testing.assert_array_equal(array, flat[name])


@settings(max_examples=60, deadline=None)
@given(trees, st.integers(0, 99))
def test_any_space_survives_gymnasium(tree, seed):
    space = Space(tree)
    converted = to_gymnasium(space)
    spaces, codec = from_gymnasium(converted, gym.Discrete(2))
    assert spaces.states.components == space.components
    assert spaces.states.single == space.single
    flat = draw_flat(space, (), seed)
    value = codec.observation.decode(flat, False)
    assert converted.contains(value)
    again = codec.encode(value, False)
    for name in flat:
        np.testing.assert_array_equal(again[name], flat[name])


@settings(max_examples=60, deadline=None)
@given(trees, st.integers(0, 99), st.sampled_from([-1, +1]))
def test_what_leaves_its_range_is_refused(tree, seed, side):
    space = Space(tree)
    flat = draw_flat(space, (2,), seed)
    for name, leaf in space.components.items():
        if leaf.type == "bool" or leaf.storage.kind != "f":
            continue
        if leaf.bounded:
            wrong = leaf.low - 1.1 * (leaf.high - leaf.low) if side < 0 else 2.1 * leaf.high - 1.1 * leaf.low
        else:  # any finite number is taken, with a warning
            wrong = np.full(leaf.shape, side * np.inf, np.float32)
        wrong = {**flat, name: np.broadcast_to(wrong.astype(np.float32), flat[name].shape)}
        with pytest.raises(SpaceError, match=r"finite|between|one of"):
            space.check(space.unflatten(wrong), (2,))


def test_order_of_components_survives_gymnasium():
    space = Space({"b": {"shape": 1}, "a": {"shape": 2}})
    assert from_gymnasium(to_gymnasium(space), BOX)[0].states == space


def test_what_gymnasium_cannot_say():
    converted = to_gymnasium(Space({"type": "int", "shape": 2, "min_value": 0}))
    assert converted == gym.Box(0, 2**31 - 1, (2,), np.int32)
    assert from_gymnasium(converted, BOX)[0].states == Space({"shape": 2, "min_value": 0, "dtype": "int32"})


# What is imported


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        (
            "import operant.spec.spaces as s; s.Spaces.read({'shape': 2}, {'num_values': 3}).observe([1, 2])",
            set(),
        ),
        ("import operant.spec.spaces as s; s.to_gymnasium(s.Space({'shape': 2}))", {"gymnasium"}),
        ("import gymnasium, jax", {"gymnasium", "jax"}),
    ],
)
def test_jax_is_never_imported(code, loaded):
    report = "import sys; print(*{'jax', 'keras', 'gymnasium'} & sys.modules.keys())"
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    assert set(result.stdout.split()) == loaded


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (
            gym.Box(0, 255, (2,), np.uint8),
            np.array([0.5, 1.0]),
            r"whole numbers \(uint8\)\. Received: 0\.5 at index \(0,\), dtype float64",
        ),
        (
            gym.Box(0, 255, (2,), np.uint8),
            np.array([1, 300]),
            r"whole numbers between 0 and 255 \(uint8\)\. Received: 300 at index \(1,\), dtype int64",
        ),
        (gym.Box(0, 255, (2,), np.uint8), np.array([1, -1]), "whole numbers between 0 and 255 .uint8"),
        (gym.Box(0, 255, (2,), np.uint8), np.array([1.0, np.nan]), "whole numbers .uint8"),
        (gym.Box(0, 255, (2,), np.uint8), np.array([1.0, 254.0]), None),
        (gym.Box(0, 255, (2,), np.uint8), [1, 254], None),
        (gym.Discrete(10), 1.5, "'state' must be whole numbers .int64.. Received: 1.5, dtype float64"),
        (gym.Discrete(10), "2", r"Received: dtype <U1\."),
        (gym.Discrete(10), np.int8(2), None),
        (gym.MultiBinary(2), np.array([0.4, 1.0]), "must be 0 or 1"),
        (
            gym.MultiBinary(2),
            np.array([2, 1]),
            r"must be 0 or 1 \(int8\)\. Received: 2 at index \(0,\), dtype int64",
        ),
        (gym.MultiBinary(2), np.array([True, False]), None),
        (gym.Box(-1, 1, (2,)), np.array(["0.5", "1"]), "numbers .float32"),
        (gym.Box(-1, 1, (2,)), np.array([0.5, 1.0]), None),
        (gym.Box(-1, 1, (2,)), [0, 1], None),
        (
            gym.Dict(a=gym.Tuple([gym.Discrete(3), gym.Discrete(3)])),
            {"a": (1, 0.5)},
            "'a/1' must be whole numbers",
        ),
    ],
)
def test_numbers_that_would_be_changed_are_refused(space, value, message):
    codec = from_gymnasium(space, gym.Discrete(2))[1].observation
    if message is None:
        codec.encode(value, False)
    else:
        with pytest.raises(SpaceError, match=message):
            codec.encode(value, False)


# Numbers that the stored type cannot hold


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (1.7e9 + np.arange(200.0), True),  # seconds since 1970
        (1.7e9 + 86400 * np.arange(200.0), False),  # days
        (61_000 + 0.01 * (np.arange(200) % 7), True),  # a price that moves by cents
        (61_000 + np.arange(200.0), False),
        (2**40 + np.arange(200), True),
        (np.full(200, 1.7e9), False),
        (np.linspace(-1, 1, 200), False),
        (np.full(200, np.nan), False),
    ],
    ids=str,
)
@pytest.mark.parametrize("boxed", [True, False])
def test_what_float32_does_not_tell_apart_is_told_once(values, told, boxed):
    if boxed:
        space = gym.Box(-INF, INF, (1,), values.dtype) if values.dtype.kind == "f" else None
        space = space or gym.Box(-(2**62), 2**62, (1,), np.int64)
        codec = from_gymnasium(gym.Dict(clock=space, x=BOX), BOX)[1]

        def take(value):
            codec.encode({"clock": np.asarray([value]), "x": np.zeros(3, np.float32)}, False)
    else:
        states = Space({"clock": {"shape": 1}, "x": {"shape": 3}})

        def take(value):
            states.check({"clock": np.asarray([value]), "x": np.zeros(3)}, values=False)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for value in values:
            take(value)
    texts = [str(each.message) for each in caught]
    assert len(texts) == told
    if told:
        assert "'clock' changes too little for its size: float32 does not tell it apart" in texts[0]


def test_whole_numbers_do_not_wrap_round():
    with pytest.raises(SpaceError, match="The state 'x' must be"):
        Leaf("int").accept(2**32 + 5, "state 'x'", values=False)
    codec = from_gymnasium(gym.Box(0, 10, (1,), np.int64), BOX)[1].observation
    with pytest.raises(
        SpaceError, match="The state 'state' must be whole numbers .*int64"
    ):  # 5 would be in range
        codec.encode(np.array([2**32 + 5]), False)


def test_large_bounds_of_actions_count():
    money = from_gymnasium(BOX, gym.Box(0, 5e6, (1,), np.float64))[0].actions.components["action"]
    assert money.bounded and money.high == 5e6
    _, codec = from_gymnasium(BOX, gym.Box(10**17 + 1, 10**17 + 3, (1,), np.int64))
    assert codec.decode({"action": np.array([1])}, False) == 10**17 + 2
