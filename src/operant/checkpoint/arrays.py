"""Files of named arrays, hashed while they are written and read.

The format is safetensors (https://github.com/huggingface/safetensors): eight bytes of length, a JSON table,
raw bytes. It is written here directly, so that hashing overlaps with writing (a large replay memory is saved
as fast as the slower of the two), every dtype of JAX is exact, and reading costs no copy. Nothing in a file
is trusted: it is hashed whole, then its table is checked against what the caller expects.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from operant.checkpoint import durable
from operant.errors import CheckpointError

PIECE = 256 << 20
"""Bytes of an array on another device that are fetched at once."""

# Every dtype that an array may have, and its name in safetensors. Those unknown there are stored as bytes
# (U8).
DTYPES: dict[str, tuple[np.dtype, str]] = {
    name: (np.dtype(getattr(ml_dtypes, name, name)), tag)
    for name, tag in {
        "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
        "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
        "float16": "F16", "float32": "F32", "float64": "F64", "bfloat16": "BF16",
        "complex64": "C64", "complex128": "U8", "int2": "U8", "int4": "U8", "uint2": "U8", "uint4": "U8",
        "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e3m4": "U8", "float8_e4m3": "U8",
        "float8_e4m3b11fnuz": "U8", "float8_e4m3fnuz": "U8", "float8_e5m2fnuz": "U8", "float8_e8m0fnu": "U8",
        "float4_e2m1fn": "U8",
    }.items()
}  # fmt: skip


def write(path: Path, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Write JAX or NumPy arrays by name to a new file; return its size and hash as `durable.write` does."""
    table: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.size * array.dtype.itemsize
        tag = DTYPES[array.dtype.name][1]
        shape = [end - start] if _as_bytes(array.dtype.name) else list(array.shape)
        table[name] = {"dtype": tag, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % durable.ALIGN)

    def parts() -> Iterable[bytes | memoryview]:
        yield len(text).to_bytes(8, "little") + text
        for array in arrays.values():
            yield from map(_raw, _pieces(array))

    return durable.write(path, parts())


def fitted(x: np.ndarray, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array from a file of any format in the dtype in which it is used.

    Raises:
        ValueError: its shape or kind of numbers is another, or some of them are not finite or do not fit the
            dtype; the message continues the array's name.
    """
    kind = next(kind for kind in (np.floating, np.integer, np.bool_) if jnp.issubdtype(dtype, kind))
    if x.shape != shape or not jnp.issubdtype(x.dtype, kind):
        raise ValueError(f"is {x.dtype}{list(x.shape)} where {np.dtype(dtype)}{list(shape)} is expected")
    with np.errstate(over="ignore"):
        cast = x.astype(dtype)
    good = np.isfinite(cast) if kind is np.floating else cast == x
    if not good.all():
        raise ValueError(f"holds {x[~good].flat[0]}, which is no finite number of {np.dtype(dtype)}")
    return cast


def _as_bytes(dtype: str) -> bool:
    return DTYPES[dtype][1] == "U8" and dtype != "uint8"


def _pieces(array: Any) -> Iterator[Any]:
    """Yield an array, a large one of a device's own memory by and by: of one that is fetched whole JAX
    keeps the copy.
    """
    if not _elsewhere(array) or array.nbytes <= PIECE:
        yield array
        return
    array = array.addressable_data(0)
    rows = max(1, PIECE * len(array) // array.nbytes)
    for start in range(0, len(array), rows):
        size = min(rows, len(array) - start)
        yield jax.lax.dynamic_slice_in_dim(array, np.int32(start), size)


def _elsewhere(array: Any) -> bool:
    if not isinstance(array, jax.Array) or not array.is_fully_replicated or not array.ndim:
        return False
    return all(device.platform != "cpu" for device in array.devices())


def _raw(array: Any) -> memoryview:
    """The bytes of an array in C order, little-endian; not copied if they are so already."""
    host = np.asarray(array, order="C")
    if host.dtype.byteorder == ">":
        host = host.astype(host.dtype.newbyteorder("<"))
    return host.reshape(-1).view(np.uint8).data


def split(
    path: Path, data: np.ndarray, expected: Mapping[str, tuple[str, tuple[int, ...]]]
) -> dict[str, np.ndarray]:
    """Find the arrays in the bytes of a file at this path: views of `data`, what `durable.read` returned.

    Raises:
        CheckpointError: if the table is malformed or differs from what is expected.
    """
    length = int.from_bytes(data[:8].tobytes(), "little")
    body = data[8 + length :]
    try:
        if len(data) < 8 or length > len(data) - 8:
            raise ValueError("its table is longer than the file")
        table = json.loads(data[8 : 8 + length].tobytes())
        table.pop("__metadata__", None)
        if set(table) != set(expected):
            raise ValueError(f"it holds the arrays {sorted(table)} where {sorted(expected)} are expected")
        return {name: _array(body, name, table[name], *expected[name]) for name in expected}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise CheckpointError(f"{path} is malformed: {error}.") from None


def _array(body: np.ndarray, name: str, entry: Any, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    kind, tag = DTYPES[dtype]
    size = math.prod(shape) * kind.itemsize
    start, end = (int(x) for x in entry["data_offsets"])
    stored = [size] if _as_bytes(dtype) else list(shape)
    if entry["dtype"] != tag or entry["shape"] != stored:
        raise ValueError(
            f"array {name} is {entry['dtype']} {entry['shape']} where {tag} {stored} is expected"
        )
    if not 0 <= start <= end <= len(body) or end - start != size:
        raise ValueError(f"array {name} of {size} bytes has the place {start} to {end} of {len(body)}")
    raw = body[start:end]
    if dtype == "bool":
        raw = (raw != 0).view(np.uint8)  # a byte that is neither 0 nor 1 is not a bool
    return raw.view(kind).reshape(shape)
