"""EnvPool's environments: vectors of any size, stepped in C++."""

from __future__ import annotations

from typing import Any

from operant.errors import SpecError, suggest, told


def make_vector(id: str, num_envs: int, **arguments: Any) -> Any:
    """Make a vector of EnvPool's, such as `Pong-v5`; SpecError: it cannot be made."""
    try:
        import envpool
    except ImportError as error:
        raise SpecError(
            f"Environment 'envpool:{id}' needs EnvPool ({error}). Install it: pip install envpool."
        ) from None
    known = envpool.list_all_envs()
    if id not in known:
        raise SpecError(f"Unknown environment 'envpool:{id}'.{suggest(id, known, listed=False)}")
    try:
        return envpool.make(id, env_type="gymnasium", num_envs=num_envs, **arguments)
    except Exception as error:  # it may raise anything
        raise SpecError(f"Environment 'envpool:{id}' cannot be made: it {told(error)}.") from error
