"""Frames and their content, without sockets. `docs/remote.md` describes the same for other languages.

All numbers are little-endian. A frame is its length (4 bytes, of what follows), its kind (1 byte), its
content, and, after the greeting, a tag of 16 bytes: HMAC-SHA256 over the frame's number and the frame. Arrays
are the plain bytes of the components in the order of the description; their dtypes are those of a fixed
table, and there are no other types.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from operant.envs.environment import rows as count_rows
from operant.envs.remote.connection import Answer, Connection, EnvDescription
from operant.envs.vector.base import Flat
from operant.envs.workers.restarts import LostError
from operant.errors import OperantError, SpaceError, SpecError
from operant.spec.spaces import Leaf, Spaces

VERSION = 1
HELLO, PROOF, WELCOME, REFUSED = 1, 2, 3, 4
DESCRIBE, RESET, STEP, CLOSE = 16, 17, 18, 19
"""What a client may request: nothing else can be called."""
DESCRIPTION, ANSWER, FAULT, CLOSED = 32, 33, 34, 35

MOST_BYTES = 1 << 26
"""The longest frame that any environment may need, 64 MiB."""
GREETING_BYTES = 256
"""The longest frame during the greeting."""
DESCRIPTION_BYTES = 1 << 20
TEXT_BYTES = 1 << 15
"""The longest error message."""
DTYPES = {
    "bool": "|u1",  # 0 or 1
    "int8": "|i1",
    "uint8": "|u1",
    "int16": "<i2",
    "uint16": "<u2",
    "int32": "<i4",
    "float16": "<f2",
    "float32": "<f4",
}

_HEAD = struct.Struct("<IB")
_SEED = struct.Struct("<q")
_ANSWER = struct.Struct("<ddIII")
_NUMBER = struct.Struct("<Q")
_TAG_BYTES = 16


class WireError(LostError):
    """What arrived is not a frame that may arrive here."""

    def __init__(self, what: str) -> None:
        super().__init__(f"sent {what}")


class MAC:
    """The tags of the frames in one direction: each covers the frame's number, so none can be replayed."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod=hashlib.sha256)
        self._count = 0

    def tag(self, *parts: bytes | memoryview) -> bytes:
        """Return the tag of the next frame."""
        code = self._keyed.copy()
        code.update(_NUMBER.pack(self._count))
        for part in parts:
            code.update(part)
        self._count += 1
        return code.digest()[:_TAG_BYTES]


def frame(kind: int, content: bytes = b"", mac: MAC | None = None) -> bytes:
    """Return the bytes of a frame."""
    tag = b"" if mac is None else bytes(_TAG_BYTES)
    head = _HEAD.pack(1 + len(content) + len(tag), kind)
    if mac is not None:
        tag = mac.tag(head, content)
    return b"".join((head, content, tag))


class Frames:
    """Takes bytes as they arrive, in pieces of any size, and returns whole frames.

    Frames are at most `limit` bytes after their length: a longer one is refused once its length is there.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.mac: MAC | None = None
        """Checks tags; None: frames have none yet."""
        self._buffer = bytearray()

    def add(self, data: bytes) -> None:
        """Take the bytes that arrived."""
        self._buffer += data

    def next(self) -> tuple[int, memoryview] | None:
        """Return kind and content of the next frame; None if it is incomplete."""
        if len(self._buffer) < 4:
            return None
        length = int.from_bytes(self._buffer[:4], "little")
        least = 1 if self.mac is None else 1 + _TAG_BYTES
        if not least <= length <= self.limit:
            raise WireError(f"a frame of {length} bytes, where {least} to {self.limit} may come")
        if len(self._buffer) < 4 + length:
            return None
        view = memoryview(self._buffer[: 4 + length])  # of a copy
        del self._buffer[: 4 + length]
        body = view
        if self.mac is not None:
            body = view[:-_TAG_BYTES]
            if not hmac.compare_digest(self.mac.tag(body), view[-_TAG_BYTES:]):
                raise WireError("a frame with a wrong tag")
        return body[4], body[_HEAD.size :]


class Schema:
    """What the frames of one environment hold, derived from its spaces and so equal on both sides.

    At most `num_actors` rows are in actions and in answers.
    """

    def __init__(self, spaces: Spaces, num_actors: int) -> None:
        self.spaces, self.num_actors = spaces, num_actors
        self.observation, self.action = spaces.observation_components, spaces.actions.components
        row = 13 + _row_bytes(self.observation)
        self.request_limit = 1 + _TAG_BYTES + max(_SEED.size, num_actors * _row_bytes(self.action))
        self.answer_limit = 1 + _TAG_BYTES + _ANSWER.size + num_actors * row + 2 * TEXT_BYTES
        if max(self.request_limit, self.answer_limit) > MOST_BYTES:
            raise SpecError(
                f"The states of {num_actors} actor(s) take {num_actors * row} bytes, and at most "
                f"{MOST_BYTES} can be sent. Make them smaller inside the environment."
            )

    def pack_request(self, request: int | Flat | None) -> tuple[int, bytes, int]:
        """Return kind, content and actors of the frame for a seed, to begin an episode, or for actions."""
        if not isinstance(request, dict):
            return RESET, _SEED.pack(-1 if request is None else request), 0
        acted = 1 if self.num_actors == 1 else len(next(iter(request.values())))
        return STEP, _pack(self.action, request), acted

    def unpack_actions(self, content: memoryview, rows: int) -> Any:
        """Return actions in the user's structure; WireError: of another size; SpaceError: not legal."""
        if len(content) != rows * _row_bytes(self.action):
            raise WireError(f"{len(content)} bytes of actions instead of {rows * _row_bytes(self.action)}")
        flat: dict[str, Any] = _unpack(self.action, content, rows)
        if self.num_actors == 1:
            flat = {name: array[0] for name, array in flat.items()}
        actions = self.spaces.actions.unflatten(flat)
        self.spaces.actions.check(actions, () if self.num_actors == 1 else (rows,))
        return actions

    def pack_answer(self, answer: Answer, episode_return: float | None, *, acted: bool) -> bytes:
        """Return the content of ANSWER."""
        single = self.num_actors == 1
        terminal = np.atleast_1d(np.asarray(answer.terminal, "|u1")) if acted else np.zeros(0, "|u1")
        reward = np.atleast_1d(np.asarray(answer.reward, "<f8")) if acted else np.zeros(0)
        parallel = np.zeros(1, "<u4") if single else np.asarray(answer.parallel, "<u4")
        lost = answer.lost.encode()[:TEXT_BYTES]
        parts = [
            _ANSWER.pack(
                answer.seconds,
                math.nan if episode_return is None else episode_return,
                len(terminal),
                len(parallel),
                len(lost),
            ),
            terminal.tobytes(),
            reward.astype("<f8").tobytes(),
            parallel.tobytes(),
        ]
        if observed := 1 if single else count_rows(answer.states):
            flat = self.spaces.observe(answer.states, () if single else (observed,), values=False)
            parts.append(_pack(self.observation, flat))
        return b"".join((*parts, lost))

    def unpack_answer(self, content: memoryview, acted: int) -> tuple[Answer, float | None]:
        """Return the answer of `acted` actors, and the environment's own return; WireError: it is none."""
        if len(content) < _ANSWER.size:
            raise WireError("an answer without its numbers")
        seconds, episode_return, n, rows, text = _ANSWER.unpack_from(content)
        single = self.num_actors == 1
        row = _row_bytes(self.observation)
        if n != acted or rows > self.num_actors or (single and rows != 1):
            raise WireError(f"an answer of {n} and {rows} rows for {acted} of {self.num_actors} actors")
        state_bytes = len(content) - _ANSWER.size - 9 * n - 4 * rows - text
        observed = state_bytes // row if row else rows
        if state_bytes < 0 or state_bytes != row * observed:
            raise WireError(f"an answer of {len(content)} bytes for {n} and {rows} rows")
        at = _ANSWER.size
        terminal = np.frombuffer(content, "|u1", n, at).astype(np.int64)
        reward = np.frombuffer(content, "<f8", n, at + n).copy()
        parallel = np.frombuffer(content, "<u4", rows, at + 9 * n).astype(np.int64)
        at += 9 * n + 4 * rows
        ended = 0 if single else int((terminal != 0).sum())
        if observed not in (rows, rows + ended):
            raise WireError(f"{observed} states of {rows} actors that go on and {ended} that ended")
        flat = _unpack(self.observation, content[at : at + row * observed], observed)
        first = {name: array[0] for name, array in flat.items()} if single else flat
        states = self.spaces.unflatten(first) if observed else None
        over = bool(terminal.any()) if single else np.arange(observed) >= rows
        try:
            if observed:
                self.spaces.observe(states, () if single else (observed,), over=over)
        except SpaceError as error:
            raise WireError(f"states that do not fit: {error}") from None
        finite = np.isfinite(reward).all() and math.isfinite(seconds) and not math.isinf(episode_return)
        if (terminal > 2).any() or not finite:
            raise WireError("an answer whose numbers are out of range")
        if len(set(parallel.tolist()) & set(range(self.num_actors))) != rows:
            raise WireError("an answer of actors that there are not")
        lost = printable(bytes(content[len(content) - text :]).decode(errors="replace"), "\n")
        if single:
            end = (int(terminal[0]), float(reward[0])) if n else (0, 0.0)
            answer = Answer(states, *end, None, seconds, lost)
        else:
            answer = Answer(states, terminal if n else 0, reward if n else 0.0, parallel, seconds, lost)
        return answer, None if math.isnan(episode_return) else episode_return


def unpack_seed(content: memoryview) -> int | None:
    """Return the seed of RESET."""
    if len(content) != _SEED.size:
        raise WireError(f"a seed of {len(content)} bytes")
    (seed,) = _SEED.unpack(content)
    if seed < -1:
        raise WireError("a negative seed")
    return None if seed == -1 else seed


def pack_description(environment: Connection | EnvDescription) -> bytes:
    """Return the content of DESCRIPTION: JSON."""
    spaces = environment.spaces
    return json.dumps(
        {
            "name": environment.name,
            **spaces.to_spec(),
            "max_episode_timesteps": environment.max_episode_timesteps,
            "num_actors": environment.num_actors,
            "layout": _layouts(spaces),
        }
    ).encode()


def unpack_description(content: memoryview) -> EnvDescription:
    """Read DESCRIPTION; WireError: it does not describe an environment."""
    try:
        data = json.loads(bytes(content))
        if (entries := _entries(data)) > MOST_BYTES:  # before arrays are made from the bounds
            raise SpecError(
                f"{entries} entries of states and actions, and at most {MOST_BYTES} bytes can be sent"
            )
        spaces = Spaces.from_spec(data)
        ours = _layouts(spaces)
        name, limit = data["name"], data.get("max_episode_timesteps")
        actors = data.get("num_actors", 1)
        layout = data.get("layout")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OperantError) as error:
        raise WireError(f"an invalid description: {error}") from None
    if not isinstance(name, str) or not _count(actors) or not (limit is None or _count(limit)):
        raise WireError(
            f"a description with name={name!r}, max_episode_timesteps={limit!r}, num_actors={actors!r}"
        )
    if layout is not None and layout != ours:
        raise WireError(f"a description whose layout is not that of its states and actions, {ours}")
    return EnvDescription(printable(name[:200]), spaces, limit, actors)


def pack_fault(kind: str, text: str, traceback: str) -> bytes:
    """Return the content of FAULT: JSON."""
    fault = {"type": kind, "text": text[: TEXT_BYTES // 8], "traceback": traceback[-TEXT_BYTES // 8 :]}
    return json.dumps(fault).encode()


def unpack_fault(content: memoryview) -> tuple[str, str, str]:
    """Read FAULT: type, text, traceback."""
    try:
        data = json.loads(bytes(content))
        kind, text, traceback = (printable(str(data[name]), "\n") for name in ("type", "text", "traceback"))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise WireError("an invalid error") from None
    return kind, text, traceback


def printable(text: str, also: str = "") -> str:
    """Return a text from the other side without characters that control a terminal, except those `also`."""
    return "".join(c for c in text if c.isprintable() or c in also)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _entries(spec: Any) -> int:
    if not isinstance(spec, dict):
        return 0
    shape = spec.get("shape", 0)
    sizes = [n for n in (shape if isinstance(shape, list) else [shape]) if isinstance(n, int)]
    return math.prod(sizes) + sum(map(_entries, spec.values()))


def _layouts(spaces: Spaces) -> dict[str, list[list[Any]]]:
    groups = {"observation": spaces.observation_components, "action": spaces.actions.components}
    return {
        group: [[name, leaf.dtype, list(leaf.shape)] for name, leaf in components.items()]
        for group, components in groups.items()
    }


def _row_bytes(components: Mapping[str, Leaf]) -> int:
    return sum(leaf.size * leaf.storage.itemsize for leaf in components.values())


def _pack(components: Mapping[str, Leaf], flat: Mapping[str, np.ndarray]) -> bytes:
    return b"".join(
        np.asarray(flat[name], leaf.storage.newbyteorder("<")).tobytes() for name, leaf in components.items()
    )


def _unpack(components: Mapping[str, Leaf], content: memoryview, rows: int) -> Flat:
    flat: Flat = {}
    at = 0
    for name, leaf in components.items():
        array = np.frombuffer(content, DTYPES[leaf.dtype], rows * leaf.size, at)
        at += array.nbytes
        if leaf.type == "bool" and (array > 1).any():
            raise WireError(f"a truth value of {int(array.max())}")
        flat[name] = array.astype(leaf.storage).reshape(rows, *leaf.shape)
    return flat
