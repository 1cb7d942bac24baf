"""The wire: frames in any pieces, and nothing that does not belong there."""

import itertools
import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.envs.remote import wire
from operant.envs.remote.connection import Answer, EnvDescription
from operant.envs.remote.wire import MAC, Frames, Schema, WireError, frame
from operant.errors import SpaceError, SpecError
from operant.spec.spaces import Spaces

KEY = bytes(range(32))
LIMIT = 1 << 12
SPACES = Spaces.read(
    dict(
        picture=dict(type="float", shape=(2, 3), dtype="uint8", min_value=0, max_value=255),
        speed=dict(type="float", min_value=-1.0, max_value=1.0),
        flags=dict(type="bool", shape=(2,)),
        move_mask=dict(type="bool", shape=(3,)),
    ),
    dict(
        move=dict(type="int", num_values=3),
        push=dict(type="float", shape=(2,), min_value=-1.0, max_value=1.0),
    ),
)
SINGLE, TEAM = Schema(SPACES, 1), Schema(SPACES, 3)
contents = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), max_size=6)


def feed(frames, data, cuts=()):
    """Put bytes in, cut into pieces, and return the frames that come out, copied."""
    found = []
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    for low, high in itertools.pairwise(edges):
        frames.add(data[low:high])
        while (one := frames.next()) is not None:
            found.append((one[0], bytes(one[1])))
    return found


def frames(sealed=False, limit=LIMIT):
    new = Frames(limit)
    new.mac = MAC(KEY) if sealed else None
    return new


def sealed(messages):
    seal = MAC(KEY)
    return [frame(kind, content, seal) for kind, content in messages]


@given(contents, st.lists(st.integers(0, 5000), max_size=20), st.booleans())
def test_frames_arrive_whole_in_whatever_pieces(messages, cuts, tagged):
    data = sealed(messages) if tagged else [frame(*message) for message in messages]
    assert feed(frames(tagged), b"".join(data), cuts) == messages


@given(contents.filter(bool), st.integers(0, 10_000))
def test_a_truncated_stream_gives_the_whole_frames_and_waits(messages, cut):
    data = sealed(messages)
    stream = b"".join(data)[: cut % len(b"".join(data))]
    whole = feed(frames(True), stream)
    assert whole == messages[: len(whole)] and len(whole) < len(messages)


@given(st.binary(max_size=2000), st.booleans())
def test_random_bytes_are_no_frames(data, tagged):
    reader = frames(tagged)
    try:
        found = feed(reader, data)
    except WireError:
        return
    assert not (tagged and found)


@given(contents.filter(bool), st.integers(0, 10**6), st.integers(0, 7))
def test_a_changed_bit_is_noticed(messages, place, bit):
    stream = bytearray(b"".join(sealed(messages)))
    stream[place % len(stream)] ^= 1 << bit
    try:
        found = feed(frames(True), bytes(stream))
    except WireError:
        return
    assert found == messages[: len(found)] and len(found) < len(
        messages
    )  # a longer length: the rest never comes


@given(contents.filter(bool), st.data())
def test_frames_cannot_be_replayed_left_out_or_swapped(messages, data):
    stream = sealed(messages)
    i = data.draw(st.integers(0, len(stream) - 1))
    with pytest.raises(WireError, match=r"a frame with a wrong tag"):
        feed(frames(True), b"".join([*stream[: i + 1], stream[i]]))
    if i + 1 < len(stream):
        with pytest.raises(WireError, match=r"a frame with a wrong tag"):
            feed(frames(True), b"".join([*stream[:i], *stream[i + 1 :]]))
        with pytest.raises(WireError, match=r"a frame with a wrong tag"):
            feed(frames(True), b"".join([*stream[:i], stream[i + 1], stream[i]]))


def test_another_key_is_noticed():
    with pytest.raises(WireError, match=r"a frame with a wrong tag"):
        feed(frames(True), frame(17, b"x", MAC(bytes(32))))


@pytest.mark.parametrize("length", [0, LIMIT + 1, 2**31, 2**32 - 1])
def test_lengths_out_of_bounds_are_refused_before_anything_is_stored(length):
    reader = frames()
    with pytest.raises(WireError, match=rf"a frame of {length} bytes, where 1 to 4096 may come"):
        feed(reader, struct.pack("<I", length) + b"x" * 10)
    assert len(reader._buffer) < 1 << 17


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 24])
def test_frames_of_all_sizes(size):
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    seal = MAC(KEY)
    data = frame(33, content, seal) + frame(34, b"", seal)
    assert feed(frames(True, (1 << 24) + 17), data, range(0, len(data), 65_000)) == [(33, content), (34, b"")]


# Content


def answers(rows):
    """Answers of `rows` actors that go on (and as many that acted)."""
    number = st.floats(-1, 1, width=32)
    flat = st.fixed_dictionaries(
        dict(
            picture=st.binary(min_size=6 * rows, max_size=6 * rows),
            speed=st.lists(number, min_size=rows, max_size=rows),
            flags=st.binary(min_size=2 * rows, max_size=2 * rows),
        )
    )
    return st.tuples(
        flat,
        st.lists(st.integers(0, 2), min_size=rows, max_size=rows),
        st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=rows, max_size=rows),
        st.floats(0, 1e6),
        st.none() | st.floats(-1e9, 1e9),
        st.text(max_size=50).map(lambda text: wire.printable(text, "\n")),
    )


def states_of(flat, rows):
    return dict(
        picture=np.frombuffer(flat["picture"], np.uint8).reshape(rows, 2, 3),
        speed=np.array(flat["speed"], np.float32),
        flags=np.frombuffer(flat["flags"], np.uint8).reshape(rows, 2) > 127,
        move_mask=np.tile([True, False, True], (rows, 1)),
    )


@given(answers(2), st.booleans())
def test_answers_of_several_actors_arrive_as_they_were(given_answer, acted):
    flat, terminal, reward, seconds, own, lost = given_answer
    terminal, reward = (np.array(terminal), np.array(reward)) if acted else (0, 0.0)
    answer = Answer(states_of(flat, 2), terminal, reward, np.array([0, 2]), seconds, lost)
    content = TEAM.pack_answer(answer, own, acted=acted)
    back, back_own = TEAM.unpack_answer(memoryview(content), 2 if acted else 0)
    np.testing.assert_equal(back._asdict(), answer._asdict())
    assert back_own == own


@given(answers(1), st.booleans())
def test_answers_of_one_actor_arrive_as_they_were(given_answer, acted):
    flat, terminal, reward, seconds, own, lost = given_answer
    states = {name: value[0] for name, value in states_of(flat, 1).items()}
    states["speed"] = float(states["speed"])
    answer = Answer(states, terminal[0] if acted else 0, reward[0] if acted else 0.0, None, seconds, lost)
    back, back_own = SINGLE.unpack_answer(
        memoryview(SINGLE.pack_answer(answer, own, acted=acted)), int(acted)
    )
    np.testing.assert_equal(back._asdict(), answer._asdict())
    assert back_own == own


def test_answers_of_actors_that_all_ended_have_no_states():
    answer = Answer(None, np.array([1, 2]), np.array([0.5, -0.5]), np.zeros(0, np.int64), 0.0, "")
    back, _ = TEAM.unpack_answer(memoryview(TEAM.pack_answer(answer, None, acted=True)), 2)
    np.testing.assert_equal(back._asdict(), answer._asdict())


def ended(terminal, parallel, rows, allowed=(True, True, False)):
    """Content of an answer of three actors with so many rows of states; the last is allowed what is said."""
    states = states_of(dict(picture=bytes(6 * rows), speed=[0.5] * rows, flags=bytes(2 * rows)), rows)
    states["move_mask"][-1] = allowed
    answer = Answer(states, np.array(terminal), np.zeros(3), np.array(parallel, np.int64), 0.0, "")
    return answer, memoryview(TEAM.pack_answer(answer, None, acted=True))


@pytest.mark.parametrize(("terminal", "parallel"), [((0, 1, 0), (0, 2)), ((1, 1, 2), ())])
def test_what_those_saw_that_ended_arrives_behind_the_others(terminal, parallel):
    answer, content = ended(terminal, parallel, 3, allowed=(False, False, False))
    np.testing.assert_equal(TEAM.unpack_answer(content, 3)[0]._asdict(), answer._asdict())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (((0, 1, 0), (0, 2), 1), "1 states of 2 actors that go on and 1 that ended"),
        (((1, 1, 0), (2,), 2), "2 states of 1 actors that go on and 2 that ended"),
        (((0, 0, 0), (0, 1), 3), "3 states of 2 actors that go on and 0 that ended"),
        (((0, 1, 0), (0, 2), 2, (False, False, False)), "The mask 'move_mask' must allow"),
    ],
)
def test_states_of_another_number_are_refused(answer, message):
    with pytest.raises(WireError, match=message):
        TEAM.unpack_answer(ended(*answer)[1], 3)


@settings(max_examples=100)
@given(st.binary(max_size=200), st.integers(0, 3))
def test_random_content_is_no_answer(data, acted):
    for schema in (SINGLE, TEAM):
        with pytest.raises(WireError):
            schema.unpack_answer(memoryview(data), acted)


def good(**changes):
    states = {
        name: value[0]
        for name, value in states_of(dict(picture=bytes(6), speed=[0.5], flags=bytes(2)), 1).items()
    }
    answer = Answer({**states, **changes.pop("states", {})}, **{"terminal": 0, "reward": 1.0, **changes})
    return bytearray(SINGLE.pack_answer(answer, None, acted=True))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (good(states=dict(speed=np.nan)), r"states that do not fit: The state 'speed' must be finite"),
        (good(states=dict(speed=7.0)), r"states that do not fit: The state 'speed' must be between"),
        (
            good(states=dict(move_mask=[False] * 3)),
            r"states that do not fit: The mask 'move_mask' must allow",
        ),
        (good(terminal=3), r"numbers are out of range"),
        (good(reward=math.inf), r"numbers are out of range"),
        (good(seconds=math.nan), r"numbers are out of range"),
        (good()[:8] + struct.pack("<d", math.inf) + good()[16:], r"numbers are out of range"),
        (good()[:24] + struct.pack("<I", 15) + good()[28:41], r"an answer of 41 bytes for 1 and 1 rows"),
        (good()[:41], r"0 states of 1 actors that go on and 0 that ended"),
        (good()[:-1], r"an answer of 55 bytes for 1 and 1 rows"),
        (good() + b"x", r"an answer of 57 bytes for 1 and 1 rows"),
        (good()[:20], r"an answer without its numbers"),
    ],
)
def test_answers_that_are_none(content, message):
    with pytest.raises(WireError, match=message):
        SINGLE.unpack_answer(memoryview(bytes(content)), 1)


def test_truth_values_are_zero_or_one():
    content = good()
    content[-4] = 2
    with pytest.raises(WireError, match=r"a truth value of 2"):
        SINGLE.unpack_answer(memoryview(bytes(content)), 1)


def test_answers_of_the_wrong_actors():
    answer = Answer(states_of(dict(picture=bytes(12), speed=[0, 0], flags=bytes(4)), 2), 0, 0.0, [0, 0])
    with pytest.raises(WireError, match=r"actors that there are not"):
        TEAM.unpack_answer(memoryview(TEAM.pack_answer(answer, None, acted=False)), 0)
    with pytest.raises(WireError, match=r"an answer of 0 and 2 rows for 3 of 3 actors"):
        TEAM.unpack_answer(memoryview(TEAM.pack_answer(answer, None, acted=False)), 3)


@given(st.integers(0, 2), st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=2))
def test_actions_arrive_as_they_were(move, push):
    flat = SPACES.actions.check(dict(move=move, push=push))
    _, content, acted = SINGLE.pack_request(flat)
    back = SINGLE.unpack_actions(memoryview(content), acted)
    assert back["move"] == move and back["push"].tolist() == push


def test_actions_that_are_none():
    _, content, _ = SINGLE.pack_request(SPACES.actions.check(dict(move=0, push=[0.0, 0.0])))
    with pytest.raises(WireError, match=r"12 bytes of actions instead of 24"):
        SINGLE.unpack_actions(memoryview(content), 2)
    with pytest.raises(SpaceError, match=r"action 'move' must be one of its 3 values"):
        SINGLE.unpack_actions(memoryview(struct.pack("<iff", 3, 0, 0)), 1)
    with pytest.raises(SpaceError, match=r"action 'push' must be"):
        SINGLE.unpack_actions(memoryview(struct.pack("<iff", 0, math.nan, 0)), 1)


@pytest.mark.parametrize("seed", [None, 0, 7, 2**63 - 1])
def test_seeds(seed):
    assert wire.unpack_seed(memoryview(SINGLE.pack_request(seed)[1])) == seed


@pytest.mark.parametrize("content", [b"", bytes(7), bytes(9), struct.pack("<q", -2)])
def test_seeds_that_are_none(content):
    with pytest.raises(WireError, match=r"seed"):
        wire.unpack_seed(memoryview(content))


# Descriptions


def test_descriptions_arrive_as_they_were():
    for description in (EnvDescription("A", SPACES, None, 1), EnvDescription("B", SPACES, 500, 3)):
        assert wire.unpack_description(memoryview(wire.pack_description(description))) == description


PLAIN = json.loads(wire.pack_description(EnvDescription("A", SPACES, None, 1)))


@pytest.mark.parametrize(
    "change",
    [
        dict(states=3),
        dict(actions=dict(type="eval")),
        dict(actions=dict(type="int", num_values=3, dtype="object")),
        dict(name=None),
        dict(num_actors=0),
        dict(num_actors=True),
        dict(num_actors="3"),
        dict(max_episode_timesteps=-1),
        dict(masks=["jump"]),
        dict(layout=dict(observation=[], action=[])),
        dict(layout=3),
        dict(states=dict(type="float", shape=[2**31])),
        dict(states=dict(type="float", shape=[2, 2**29], min_value=[[0], [1]])),
        dict(actions=dict(type="int", shape=[2**20], num_values=2**20), masks=["action"]),
    ],
    ids=str,
)
def test_descriptions_that_are_none(change):
    with pytest.raises(WireError, match=r"an? (invalid )?description"):
        wire.unpack_description(memoryview(json.dumps({**PLAIN, **change}).encode()))


@settings(max_examples=40)
@given(
    st.binary(max_size=100)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda x: json.dumps(x).encode())
)
def test_random_content_is_no_description(content):
    with pytest.raises(WireError):
        wire.unpack_description(memoryview(content))
    with pytest.raises(WireError):
        wire.unpack_fault(memoryview(content))


def test_deep_descriptions_are_refused():
    with pytest.raises(WireError):
        wire.unpack_description(memoryview(b"[" * 100_000))


def test_texts_of_the_other_side_steer_no_terminal():
    forged = "\x1b[2J\r\nINFO \u202eall fine\x07"
    assert wire.unpack_fault(memoryview(wire.pack_fault("E", forged, forged))) == (
        "E",
        *["[2J\nINFO all fine"] * 2,
    )
    assert SINGLE.unpack_answer(memoryview(good(lost=forged)), 1)[0].lost == "[2J\nINFO all fine"
    description = wire.pack_description(EnvDescription(forged, SPACES, None, 1))
    assert wire.unpack_description(memoryview(description)).name == "[2JINFO all fine"


def test_states_beyond_the_longest_frame_are_refused():
    with pytest.raises(SpecError, match=r"take \d+ bytes, and at most 67108864 can be sent"):
        Schema(SPACES, 4_000_000)


def test_the_table_of_dtypes_is_that_of_the_spaces():
    from operant.spec.spaces.fields import STORAGE

    assert set(wire.DTYPES) == {dtype for dtypes in STORAGE.values() for dtype in dtypes}
    assert not any("O" in dtype for dtype in wire.DTYPES.values())
