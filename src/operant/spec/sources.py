"""What specifications name besides registered things (files, objects to import), and when they may not."""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from operant.errors import SpecError, reading, suggest, told, working_directory
from operant.spec.values import from_json


class _Source(NamedTuple):
    name: str
    remedy: str


_SOURCE: contextvars.ContextVar[_Source | None] = contextvars.ContextVar("_SOURCE", default=None)


@contextlib.contextmanager
def data_only(source: str, remedy: str) -> Iterator[None]:
    """Within this context specifications may come from somebody else: what they name is neither imported nor
    opened, and whatever fails is an error that names it.

    Registered names still work, as do classes that this program has registered with Keras. For the message,
    `source` says where they come from, and `remedy` what the user can do.
    """
    token = _SOURCE.set(_Source(source, remedy))
    try:
        with reading(source, SpecError):
            yield
    finally:
        _SOURCE.reset(token)


def refuse_code(named: object, what: str) -> None:
    """Refuse (SpecError) to import or open something while specifications are data only."""
    if (source := _SOURCE.get()) is not None:
        raise SpecError(
            f"{source.name} names the {what} {str(named)!r}, which is not operant's own: a file never says "
            f"what to import or to open. {source.remedy}"
        )


def refuse_places(value: Any, what: str) -> None:
    """Refuse (SpecError) strings in a value that could name a file or a module, while it is data only."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            refuse_places(part, what)
    elif isinstance(value, str) and any(mark in value for mark in "./\\:"):
        refuse_code(value, what)


MODEL_FILES = Path(__file__).parents[1] / "agents" / "models"
"""Folder of the `.cfg` files that come with operant; `models.json` says which agent each belongs to."""


def read_json(path: str | Path, what: str) -> dict[str, Any]:
    """Read a JSON file that holds one object."""
    refuse_code(path, f"{what} file")
    path = Path(path)
    try:
        data = from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(f"The {what} file {str(path)!r} does not exist.") from None
    except json.JSONDecodeError as error:
        raise SpecError(
            f"The {what} file {str(path)!r} is not JSON: {error.msg} (line {error.lineno})."
        ) from None
    except (OSError, ValueError) as error:
        raise SpecError(f"The {what} file {str(path)!r} cannot be read: {error}.") from None
    if not isinstance(data, dict):
        raise SpecError(
            f"The {what} file {str(path)!r} must hold one JSON object, not a {type(data).__name__}."
        )
    return data


def import_object(path: str, what: str) -> Any:
    """Import ``package.module.Name`` or ``package.module:Name``."""
    refuse_code(path, what)
    return imported(path, what)


def _named_by_file(path: str, what: str, stem: str, name: str | None) -> SpecError:
    """Return the error for something that is named by its file, with what the file defines."""
    defined = []
    with contextlib.suppress(OSError, UnicodeDecodeError):
        defined = re.findall(r"^class (\w+)", Path(f"{stem}.py").read_text(encoding="utf-8"), re.MULTILINE)
    right = f"{stem.removeprefix('./').replace('/', '.')}:{name or (defined or ['Name'])[0]}"
    return SpecError(
        f"The {what} {path!r} is a file, and is named by its module. Write: {right}"
        + (f" (it defines {', '.join(defined)})" if len(defined) > 1 and not name else "")
    )


NAMED_HERE = ("agent", "environment", "logger")
"""What the command line takes as `module:Name`, also from the current folder."""


def imported(path: str, what: str) -> Any:
    """Import what operant's own tables name (users: `import_object`); SpecError: it is not there."""
    if (file := re.fullmatch(r"(.+)\.py(?::(\w+))?", path)) is not None:
        raise _named_by_file(path, what, file[1], file[2])
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        source = importlib.import_module(module)
    except (ImportError, AttributeError, ValueError) as error:
        remedy = ""
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            remedy = " Install it, or put its folder on PYTHONPATH."
            if what in NAMED_HERE and {"", str(working_directory())} & set(sys.path):
                files = [file.stem for file in working_directory().glob("*.py")]
                remedy = (
                    f" It is not in the current folder either.{suggest(module, files, listed=False)}{remedy}"
                )
            elif what in NAMED_HERE:
                remedy += (
                    f" If it is in the current folder, give it on operant's command line as module:Name "
                    f"(for a run, too: --{'env' if what == 'environment' else what} module:Name)."
                )
        raise SpecError(f"The {what} {path!r} cannot be imported: {error}.{remedy}") from None
    except Exception as error:  # it may run anything
        raise SpecError(f"The {what} {path!r} cannot be imported: its module {told(error)}.") from error
    try:
        return getattr(source, name)
    except AttributeError as error:
        where = getattr(source, "__file__", None) or "built in"
        known = [public for public in vars(source) if not public.startswith("_")]
        raise SpecError(
            f"The {what} {path!r} cannot be imported: {error} ({where}).{suggest(name, known, listed=False)}"
        ) from None
