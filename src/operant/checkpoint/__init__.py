"""Checkpoints: exact, atomic, data only.

A checkpoint is a folder that holds `manifest.json` and one or more `arrays*.safetensors`. The manifest names
every leaf with its shape, dtype and kind, carries the caller's header (specification, counters) and the
SHA-256 of every file and of itself. Reading one runs no code, imports nothing by name, unpickles nothing and
follows no link out of it, so a checkpoint from elsewhere is safe to open.
"""

from operant.checkpoint.store import (
    MEMORY,
    NAMED,
    Checkpoint,
    found,
    is_checkpoint,
    latest,
    list_checkpoints,
    load,
    named_well,
    newest,
    replaceable,
    save,
)
from operant.errors import CheckpointError

__all__ = [
    "MEMORY",
    "NAMED",
    "Checkpoint",
    "CheckpointError",
    "found",
    "is_checkpoint",
    "latest",
    "list_checkpoints",
    "load",
    "named_well",
    "newest",
    "replaceable",
    "save",
]
