"""Hyperparameters and specifications: declared once, read everywhere; without JAX, for help comes at once.

A `Config` is a frozen dataclass whose fields are made by `option`. Command-line flags and help tables,
constructor arguments, search ranges, docs tables and checkpoint headers all derive from it. A `Registry`
turns a specification (an object, a name, a dict with `type`, a JSON file, an importable class) into the thing
it names.
"""

from operant.spec.config import (
    Config,
    FolderConfig,
    Option,
    Scalar,
    Search,
    aliases,
    build,
    canonical,
    checked,
    default,
    effective,
    option,
    optional,
    options,
    traced,
)
from operant.spec.registry import Registry, followed
from operant.spec.schedule import SCHEDULE_FORMS, Schedule
from operant.spec.sources import MODEL_FILES, data_only, import_object, read_json, refuse_code, refuse_places
from operant.spec.values import from_json, plain

__all__ = [
    "MODEL_FILES",
    "SCHEDULE_FORMS",
    "Config",
    "FolderConfig",
    "Option",
    "Registry",
    "Scalar",
    "Schedule",
    "Search",
    "aliases",
    "build",
    "canonical",
    "checked",
    "data_only",
    "default",
    "effective",
    "followed",
    "from_json",
    "import_object",
    "option",
    "optional",
    "options",
    "plain",
    "read_json",
    "refuse_code",
    "refuse_places",
    "traced",
]
