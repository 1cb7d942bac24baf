"""Names and what they stand for."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from operant.errors import SpecError, suggest
from operant.spec.sources import import_object, imported, read_json
from operant.spec.values import understood

T = TypeVar("T")


def followed(spec: Any, what: str, keys: Sequence[str] = ("type",)) -> tuple[Any, list[dict[str, Any]]]:
    """Follow dicts (by the first of these keys that is there) and JSON files to what they name.

    Returns:
        That, and the other entries of each dict on the way.

    Raises:
        SpecError: a dict has none of the keys; a file cannot be read, or leads to itself.
    """
    given: list[dict[str, Any]] = []
    files: list[str] = []
    while True:
        if isinstance(spec, str | Path) and str(spec).endswith(".json"):
            if str(spec) in files:
                raise SpecError(f"The {what} file {str(spec)!r} names itself as its {keys[0]}.")
            files.append(str(spec))
            spec = read_json(spec, what)
        if not isinstance(spec, Mapping):
            return spec, given
        key = next((key for key in keys if key in spec), None)
        if key is None:
            received = ", ".join(map(str, spec)) or "nothing"
            raise SpecError(
                f"The {what} given as a dict needs the key {keys[0]!r}. Received the keys: {received}."
            )
        given.append({name: value for name, value in spec.items() if name != key})
        spec = spec[key]


class Registry(Generic[T]):
    """Names and what they stand for: objects, or import paths (``module:Name``) loaded when asked for."""

    def __init__(self, what: str, entries: Mapping[str, Callable[..., T] | str]) -> None:
        self.what = what
        self._entries: dict[str, Callable[..., T] | str] = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def get(self, name: str) -> Callable[..., T]:
        """Return what a name stands for; unknown names are errors with the close match."""
        if name not in self._entries:
            raise SpecError(f"Unknown {self.what} {name!r}.{suggest(name, self._entries)}")
        entry = self._entries[name]
        if isinstance(entry, str):
            entry = typing.cast("Callable[..., T]", imported(entry, self.what))
            self._entries[name] = entry
        return entry

    def parse(self, spec: Any) -> tuple[Callable[..., T], dict[str, Any], str]:
        """Split a specification into what to call, with which arguments, and its name in messages.

        Args:
            spec: a registered name, ``module.Class``, the path of a JSON file, a class, or a dict with one of
                these as `type`.
        """
        arguments: dict[str, Any] = {}
        spec, given = followed(spec, self.what)
        for inner in given:
            for key, value in inner.items():
                arguments.setdefault(str(key), value)
        if isinstance(spec, str):
            if spec in self or ("." not in spec and ":" not in spec):
                target = self.get(spec)
                return target, understood(target, arguments), spec
            return import_object(spec, self.what), arguments, spec
        if callable(spec):
            return spec, arguments, getattr(spec, "__name__", str(spec))
        raise SpecError(
            f"A {self.what} must be a name, a dict with 'type', a JSON file or a class. Received: {spec!r}."
        )
