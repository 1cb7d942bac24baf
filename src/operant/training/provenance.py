"""What a run was made with: versions, machine, files, state of the user's code. Nothing fails or waits."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from operant import __version__

PACKAGES = ("jax", "jaxlib", "keras", "optax", "numpy", "gymnasium")
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
"""Flag of XLA without which a GPU does not repeat bit for bit."""
GIT_SECONDS = 1.0
"""How long git may take for one answer: a working tree on a slow disk does not hold up a run."""


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute."""
    return {
        "python": platform.python_version(),
        "operant": __version__,
        **{name: version(name) for name in PACKAGES},
    }


def machine() -> dict[str, Any]:
    """Return what determines, beside versions, whether the same program gives the same bits."""
    import jax

    device = jax.devices()[0]
    facts = {
        "device": device.device_kind,
        "processor": processor(),
        "processors": os.cpu_count(),
        "system": platform.system(),
        "precision": jax.config.jax_default_matmul_precision or "default",  # type: ignore[attr-defined]
    }
    if device.platform == "gpu":
        facts["deterministic"] = DETERMINISTIC in os.environ.get("XLA_FLAGS", "")
    return facts


def processor() -> str:
    """Return the processor's model name, as far as the system tells; else its family."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_state(directory: str | Path = ".") -> dict[str, Any] | None:
    """Return commit, branch and whether tracked files have changes that are not committed.

    None if git or a repository with a commit is missing, or gives no answer in time. The branch is None if
    none is checked out; `changes` is None if looking for them takes too long.
    """
    answer = _git(directory, "rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    lines = [] if answer is None else answer.split()
    if len(lines) != 2:
        return None
    commit, branch = lines
    status = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        "branch": None if branch == "HEAD" else branch,
        "changes": None if status is None else bool(status.strip()),
    }


def _git(directory: str | Path, *arguments: str) -> str | None:
    """Return what git answers, or None; it takes no locks, and may run the repository's own filters."""
    try:
        result = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", *arguments],
            cwd=directory,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.decode(errors="replace")
