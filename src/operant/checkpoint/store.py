"""Saving, finding and loading checkpoints."""

from __future__ import annotations

import collections
import json
import math
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from platform import python_version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from operant import __version__
from operant.checkpoint import arrays, durable
from operant.checkpoint.manifest import FILE, FORMAT, KEYS, PYTHON, VERSION, digest
from operant.checkpoint.manifest import NAME as MANIFEST
from operant.checkpoint.manifest import read as read_manifest
from operant.errors import CheckpointError, MismatchError, as_folder, value_error, whole
from operant.spec import plain
from operant.types import Tree

MEMORY = "['train'].memory"
"""How the names of the leaves of a replay memory begin."""
_REPLACED = ".old-"
# File systems allow 255 characters, some of which are needed for the number at the end and for temporary
# names.
_NAME = re.compile(r"\w([\w .,+=@()-]*[\w.,+=@()-])?")
_MOST_BYTES = 220
_NUMBER = re.compile(r"-\d+$")
NAMED = (
    f"made of letters, digits, inner spaces and any of . _ - , + = @ ( ), of at most {_MOST_BYTES} bytes, "
    "with a letter or digit in front"
)
"""What the name of a checkpoint must be, in words."""
_LOOKS = 100
"""How often a folder is looked through that a writer changes meanwhile."""
_SHARD = 64 << 20  # a leaf of so many bytes or more gets a file of its own


def save(
    directory: str | Path, tree: Tree, header: dict[str, Any], *, keep: int | None = None, name: str
) -> Path:
    """Write the checkpoint `directory/name`, whole or not at all.

    It is written under a temporary name in `directory`, every file is forced to the disk, and the folder is
    renamed. A process that is killed at any moment leaves the earlier checkpoints as they were; what it left
    behind is removed by the next `save`. Writers in several processes take turns.

    Args:
        directory: folder of checkpoints; made if missing.
        tree: pytree of JAX and NumPy arrays, typed keys, Python numbers, strings and None.
        header: JSON data to store beside it (configs are written as dicts).
        keep: how many of the newest checkpoints to keep, of those named like this one except for the number
            at the end; None keeps all.
        name: folder name: letters, digits, ``.``, ``_``, ``-``. A checkpoint of that name, or an empty
            folder, is replaced.

    Returns:
        The path of the checkpoint.

    Raises:
        SpecError: for a bad `name` or `keep`, a `directory` that is a file, a header that is not JSON data,
            or a leaf that cannot be stored.
        CheckpointError: there is something else of that name (see `replaceable`).
    """
    if not named_well(name):
        raise value_error("name", NAMED, name)
    keep = whole("keep", keep, optional=True)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "versions": {
            "operant": __version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": python_version(),
        },
        "header": plain(dict(header)),
    }
    manifest["leaves"], shards = _plan(tree)
    place = as_folder("directory", directory)
    place.mkdir(parents=True, exist_ok=True)
    with durable.locked(place):
        _clean(place)
        _refuse_others(place / name)
        others = {path: order for path, order in _ordered(place) if path.name != name}
        manifest["order"] = 1 + max((order for order in others.values() if order < math.inf), default=0)
        temporary = place / f"{durable.TEMPORARY}{name}-{secrets.token_hex(4)}"
        temporary.mkdir()
        try:
            manifest["files"] = {
                file: arrays.write(temporary / file, content) for file, content in shards.items()
            }
            manifest["sha256"] = digest(manifest)
            durable.write(temporary / MANIFEST, [json.dumps(manifest, indent=1).encode()])
            durable.sync(temporary)
            _put(temporary, place / name)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if keep is not None:
            _prune(others, keep - 1, name)
    return place / name


def named_well(name: str) -> bool:
    """Whether a checkpoint may have this name."""
    return _NAME.fullmatch(name) is not None and len(name.encode()) <= _MOST_BYTES


def replaceable(path: str | Path) -> bool:
    """Whether a checkpoint may be put at a path: nothing is there but an empty folder or a checkpoint."""
    path = Path(path)
    if not (path.exists() or path.is_symlink()):
        return True
    return _is_own(path) and (is_checkpoint(path) or not any(path.iterdir()))


def _is_own(path: Path) -> bool:
    """Whether a path is a folder that holds nothing but what `save` writes, and may be removed."""
    if path.is_symlink() or not path.is_dir():
        return False
    return all(entry.name == MANIFEST or FILE.fullmatch(entry.name) for entry in path.iterdir())


def _refuse_others(final: Path) -> None:
    """Refuse to overwrite what is no checkpoint, under its final name or that for the meantime."""
    for path in (final, final.with_name(_REPLACED + final.name)):
        if not replaceable(path):
            raise CheckpointError(
                f"{path} is not a checkpoint, or holds other files, and is not replaced by one. Give "
                "another name, or move it away."
            )


def _named(tree: Tree) -> Iterator[tuple[str, Any]]:
    """Leaves by their path in the tree. None counts as a leaf, so that its place is checked on loading."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: x is None):
        yield jax.tree_util.keystr(path) or ".", leaf


def _describe(name: str, leaf: Any) -> dict[str, Any]:
    if not hasattr(leaf, "dtype"):
        if type(leaf) in PYTHON.values():
            return {"kind": "python", "dtype": type(leaf).__name__, "shape": []}
        raise value_error(f"leaf {name}", "an array, a number, a string or None", leaf)
    shape = [int(n) for n in leaf.shape]
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return {"kind": "key", "dtype": str(leaf.dtype), "shape": shape}
    if leaf.dtype.name not in arrays.DTYPES:
        raise value_error(f"leaf {name}", "of a boolean or numeric dtype", leaf.dtype)
    kind = "numpy" if isinstance(leaf, np.ndarray | np.generic) else "jax"
    return {"kind": kind, "dtype": leaf.dtype.name, "shape": shape}


def _plan(tree: Tree) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    leaves: dict[str, Any] = {}
    shards: dict[str, dict[str, Any]] = {}
    for name, leaf in _named(tree):
        entry = leaves[name] = _describe(name, leaf)
        if entry["kind"] == "python":
            entry["value"] = leaf
            continue
        if entry["kind"] == "key":
            entry["impl"] = str(jax.random.key_impl(leaf))
            if entry["impl"] not in KEYS:
                raise value_error(f"leaf {name}", f"a key of one of {', '.join(KEYS)}", entry["impl"])
            leaf = jax.random.key_data(leaf)
            entry["data_shape"] = list(leaf.shape)
        large = leaf.size * leaf.dtype.itemsize >= _SHARD
        file = f"arrays-{len(shards) + 1}.safetensors" if large else "arrays.safetensors"
        shards.setdefault(file, {})[name] = leaf
        entry["file"] = file
    return leaves, shards


def _put(temporary: Path, final: Path) -> None:
    """Rename a folder to its final name; an older one stays readable meanwhile (under `_REPLACED`)."""
    old = final.with_name(_REPLACED + final.name)
    if final.exists():
        os.rename(final, old)
    os.rename(temporary, final)
    durable.sync(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _clean(folder: Path) -> None:
    """Remove what killed writers left: the caller holds the lock, so no one is still writing.

    The folder may be anyone's: what could not be a checkpoint is left alone.
    """
    for path in filter(_is_own, folder.glob(f"{_REPLACED}*")):
        final = path.with_name(path.name.removeprefix(_REPLACED))
        if final.exists():
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.rename(path, final)
    for path in filter(_is_own, folder.glob(f"{durable.TEMPORARY}*")):
        shutil.rmtree(path, ignore_errors=True)


def _prune(others: dict[Path, float], keep: int, name: str) -> None:
    """Remove all but the `keep` newest checkpoints named like this one except for the number at the end.

    What has another name, or cannot be read, is left to the user.
    """
    kind = _NUMBER.sub("", name)
    if kind == name:
        return
    alike = {path: order for path, order in others.items() if _NUMBER.sub("", path.name) == kind != path.name}
    old = [p for p, order in alike.items() if order < math.inf and p.name != "best"]
    old = [p for p in old if _is_own(p)]
    for path in old[: max(len(old) - keep, 0)]:
        # Renamed first: a removal that is cut short must not look like a checkpoint.
        gone = path.with_name(f"{durable.TEMPORARY}{path.name}-{secrets.token_hex(4)}")
        os.rename(path, gone)
        shutil.rmtree(gone, ignore_errors=True)


def list_checkpoints(directory: str | Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first. Those whose manifest cannot be read come last."""
    return [path for path, _ in _ordered(Path(directory))]


class Checkpoint:
    """A checkpoint in a folder that `save` wrote. A file of several parts is read, and verified, once.

    Raises:
        CheckpointError: it has no manifest that can be read; naming the file and the reason.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _standing(Path(path))
        self._manifest = read_manifest(self.path)
        self._kept: dict[str, Any] = {}  # leaves that were read with others, and not yet taken

    @property
    def sha256(self) -> str:
        """Hash of everything in it: the manifest names those of its files."""
        return self._manifest["sha256"]

    @property
    def header(self) -> dict[str, Any]:
        """The caller's data beside the arrays."""
        header: dict[str, Any] = self._manifest["header"]
        return header

    def read(self, like: Tree = None, without: str | None = None) -> None:
        """Read and verify all of it, if it fits `like` (None: any), into memory; raises as `load`.

        Files that hold only leaves whose names begin with `without` are left alone.
        """
        entries = self._manifest["leaves"]
        if like is not None:
            _fit(self.path, entries, _named(like))  # before reading what may be large
        for file, entry in self._manifest["files"].items():
            durable.measure(self.path / file, entry["bytes"])
        self._keep(name for name in entries if without is None or not name.startswith(without))

    def load(self, like: Tree = None) -> Tree:
        """Take the whole tree: see the function `load`."""
        entries = self._manifest["leaves"]
        self.read(like)
        return _rebuild(self.path, entries, self._take(entries), like)

    def part(self, part: str, like: Tree, field: str | None = None) -> Tree:
        """Take what the saved dict holds under the name `part`, in the structure of `like`; raises as `load`.

        With `field`, only that field of the named tuple that is there; files that hold only other leaves are
        not read.
        """
        one: Any = collections.namedtuple("one", [field]) if field else lambda tree: tree
        wanted, prefix = {part: one(like)}, next(_named({part: one(0)}))[0]
        entries = {
            n: e
            for n, e in self._manifest["leaves"].items()
            if n == prefix or n.startswith((f"{prefix}[", f"{prefix}."))
        }
        _fit(self.path, entries, _named(wanted))
        result = _rebuild(self.path, entries, self._take(entries), wanted)[part]
        return result[0] if field else result

    def leaves(self, names: Iterable[str]) -> dict[str, Any]:
        """Take the leaves of these names (paths in the tree), if it has them; raises as `load`."""
        every = self._manifest["leaves"]
        entries = {name: every[name] for name in names if name in every}
        taken = self._take(entries)
        return {name: _leaf(self.path, name, entry, taken[name]) for name, entry in entries.items()}

    def fitting(self, names: Tree, like: Tree) -> Tree:
        """Take the leaves whose names a tree holds, in the place of those of `like`; raises as `load`."""
        wanted = list(zip(jax.tree.leaves(names), jax.tree.leaves(like), strict=True))
        every = self._manifest["leaves"]
        _fit(self.path, {name: every[name] for name, _ in wanted if name in every}, wanted)
        taken = self.leaves(name for name, _ in wanted)
        return jax.tree.map(taken.__getitem__, names)

    def stored(self, name: str) -> Any:
        """Take one leaf as stored: a NumPy array (of a key, its words) or a Python value; see `load`."""
        return self._take({name: self._manifest["leaves"][name]})[name]

    def _take(self, entries: dict[str, Any]) -> dict[str, Any]:
        """Return these leaves as read (keys as data), without a reference: the caller may write to them."""
        self._keep(entries)
        return {name: self._kept.pop(name) for name in entries}

    def _keep(self, entries: Iterable[str]) -> None:
        lacking = [name for name in entries if name not in self._kept]
        if lacking:
            self._kept |= _read_leaves(self.path, self._manifest, lacking)


def newest(directory: str | Path, name: str | None = None, without: str | None = None) -> Checkpoint | None:
    """Return the newest checkpoint that is whole, read and verified, or None.

    Newer ones are skipped with a warning. Beside a writer that removes older ones, the folder is looked
    through again.

    Args:
        directory: folder of checkpoints.
        name: only checkpoints of that name count, or of that name and a number: ``<name>-<number>``.
        without: files that hold only leaves whose names begin so are not read: only their sizes are looked
            at. Empty: no file is.
    """
    wanted = re.compile(".*" if name is None else rf"(?:{re.escape(_REPLACED)})?{re.escape(name)}(?:-\d+)?")
    for _ in range(_LOOKS):
        there = _entries(directory)
        for path in reversed(list_checkpoints(directory)):
            if wanted.fullmatch(path.name) is None:
                continue
            try:
                candidate = Checkpoint(path)
                candidate.read(without=without)
            except CheckpointError as error:
                if path.exists():
                    warnings.warn(f"Checkpoint skipped: {error}", RuntimeWarning, stacklevel=2)
            else:
                return candidate
        if _entries(directory) == there:
            break  # else a writer removed what was looked at, and has written another
    return None


def found(place: str | Path, without: str | None = None) -> Checkpoint | None:
    """Return the checkpoint that a place is, or else the newest whole one in it (see `newest`), or None."""
    if is_checkpoint(place):
        return Checkpoint(place)
    return newest(place, without=without) if Path(place).is_dir() else None


def latest(directory: str | Path, name: str | None = None) -> Path | None:
    """Return the path of the newest checkpoint that is whole (see `newest`), or None."""
    newest_whole = newest(directory, name)
    return None if newest_whole is None else newest_whole.path


def _standing(path: Path) -> Path:
    """The path, or what stands in for it since a writer was killed while replacing it."""
    if not path.name:  # the root, or the working directory as ".": neither has a name
        return path
    old = path.with_name(_REPLACED + path.name)
    return old if not path.exists() and old.exists() else path


def _ordered(folder: Path) -> list[tuple[Path, float]]:
    """Checkpoints in the order of their running numbers; infinite, if one cannot be read."""
    checkpoints = []
    for path in folder.iterdir() if folder.is_dir() else ():
        stands_in = path == _standing(folder / path.name.removeprefix(_REPLACED))
        if stands_in and not path.name.startswith(durable.TEMPORARY) and (path / MANIFEST).exists():
            try:
                order: float = read_manifest(path)["order"]
            except CheckpointError:
                order = math.inf
            checkpoints.append((path, order))
    return sorted(checkpoints, key=lambda pair: (pair[1], pair[0].name))


def _entries(folder: str | Path) -> set[str]:
    return set(os.listdir(folder)) if os.path.isdir(folder) else set()


def load(path: str | Path, like: Tree = None) -> tuple[Tree, dict[str, Any]]:
    """Read a checkpoint.

    Args:
        path: the folder that `save` wrote.
        like: a tree of arrays, `ShapeDtypeStruct`s and Python values like the one that was saved; None: any.

    Returns:
        The tree, of the structure of `like`, or a dict of leaves by their path in the tree; and the header.

    Raises:
        CheckpointError: if it is truncated, corrupted, not a checkpoint, of a later format version, or
            unsafe, naming the file and the reason; or if it does not fit `like`, naming each leaf that is
            missing, not expected, or of another shape or dtype.
    """
    saved = Checkpoint(path)
    return saved.load(like), saved.header


def is_checkpoint(path: str | Path) -> bool:
    """Whether a path is a checkpoint's folder, whole or not."""
    return (_standing(Path(path)) / MANIFEST).exists()


def _fit(path: Path, leaves: dict[str, Any], like: Iterable[tuple[str, Any]]) -> None:
    wanted = {name: _describe(name, leaf) for name, leaf in like}
    problems = [f"missing: {name}" for name in wanted if name not in leaves]
    problems += [f"not expected: {name}" for name in leaves if name not in wanted]
    for name in wanted.keys() & leaves.keys():
        have, want = ((e["dtype"], tuple(e["shape"])) for e in (leaves[name], wanted[name]))
        if have != want:
            problems.append(f"{name} is {have[0]}{list(have[1])} where {want[0]}{list(want[1])} is expected")
    if problems:
        shown = sorted(problems)[:20] + ([f"and {len(problems) - 20} more"] if len(problems) > 20 else [])
        raise MismatchError(f"{path} does not fit what it is loaded into:\n  " + "\n  ".join(shown))


def _read_leaves(path: Path, manifest: dict[str, Any], wanted: Container[str]) -> dict[str, Any]:
    """Read and check the files that hold wanted leaves.

    Return all leaves of these by name (keys as their data).
    """
    leaves = {name: leaf["value"] for name, leaf in manifest["leaves"].items() if leaf["kind"] == "python"}
    needed = {leaf.get("file") for name, leaf in manifest["leaves"].items() if name in wanted}
    for file, entry in manifest["files"].items():
        if file not in needed:
            continue
        data = durable.read(path / file, entry["bytes"], entry["bytes"], entry["sha256"])
        expected = {
            name: ("uint32", tuple(leaf["data_shape"]))
            if leaf["kind"] == "key"
            else (leaf["dtype"], tuple(leaf["shape"]))
            for name, leaf in manifest["leaves"].items()
            if leaf.get("file") == file
        }
        leaves.update(arrays.split(path / file, data, expected))
    return leaves


def _rebuild(path: Path, entries: dict[str, Any], leaves: dict[str, Any], like: Tree) -> Tree:
    built = {name: _leaf(path, name, entry, leaves.pop(name)) for name, entry in entries.items()}
    if like is None:
        return built
    structure = jax.tree.structure(like, is_leaf=lambda x: x is None)
    values = [
        np.asarray(built[name]) if isinstance(leaf, np.ndarray | np.generic) else built[name]
        for name, leaf in _named(like)
    ]
    return jax.tree.unflatten(structure, values)


def _leaf(path: Path, name: str, entry: dict[str, Any], value: Any) -> Any:
    if entry["kind"] == "python":
        return value
    if entry["kind"] == "numpy":
        # A view would keep the other arrays of its file alive, and is not aligned for every dtype.
        return value if value.nbytes >= _SHARD else value.copy()
    if jax.dtypes.canonicalize_dtype(value.dtype) != value.dtype:
        raise CheckpointError(
            f"{path}: leaf {name} is {value.dtype}, which JAX would cut to 32 bits. "
            "Set jax_enable_x64, as it was set when the checkpoint was written."
        )
    array = jnp.array(value)  # a copy: JAX writes to donated arrays, and must not share this memory
    if entry["kind"] != "key":
        return array
    key = jax.random.wrap_key_data(array, impl=entry["impl"])
    if list(key.shape) != entry["shape"]:
        raise CheckpointError(f"{path}: key {name} has the shape {list(key.shape)}, not {entry['shape']}.")
    return key
