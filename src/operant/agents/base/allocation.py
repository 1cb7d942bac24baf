"""Whether what a run allocates fits into memory, asked before anything is allocated.

XLA on CPU may wait for ever for an array that cannot be had (JAX 0.11), and what the system promises but
does not have ends a program without a word, hours later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax

from operant.agents.base.learner import Learner, without_buffer
from operant.errors import BackendError, SpecError
from operant.spec.runtime import free_memory
from operant.types import Tree

_OPTIONS = {
    "the replay memory": ("buffer_max_size", "capacity"),
    "the rollouts": ("train_every", "n_steps", "batch_size"),
    "a batch within the networks": ("buffer_batch_size", "n_steps", "batch_size"),
}
"""What needs memory, and the options that determine how much; the first that an agent has is named."""
_CHEAP: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""With which XLA compiles for a CPU in the least time."""


def initializer(
    learner: Learner, n: int, init: Callable[..., Tree], *arguments: Any, device: Any = None, copies: int = 1
) -> Callable[..., Tree]:
    """Compile a function that makes the `TrainState` of one run, or of several with one more axis.

    Args:
        learner: the algorithm.
        n: actors of one run.
        init: the function.
        arguments: what it is called with.
        device: where the arrays are made; None: JAX's first.
        copies: how often the result, and its rollouts, are held there.

    Raises:
        SpecError: the device has too little memory for them; names the option to change.
    """
    config = learner.algorithm.config
    # A memory that is refused is refused here: outside of a trace, of which JAX would add a remark.
    rows = 1 if learner.replays else learner.rows * n
    rows = max(rows, config.batch(n) if hasattr(config, "batch") else 1)
    lowered = jax.jit(init).lower(*arguments)
    train = cast(Any, lowered.out_info)
    runs = math.prod(train.counters.rows.shape) * copies
    learnt, block = without_buffer(train), learner.block_shape(n)
    widest = max((model.widest for model in learner.algorithm.models.values()), default=0)
    parts = {
        "the replay memory": (_bytes(train) - _bytes(learnt)) * copies,
        "the networks and their optimizers": _bytes(learnt) * copies,
        "the rollouts": _bytes(block) * runs,
        "a batch within the networks": 4 * rows * widest * runs,
    }
    expect_room(parts, device, {**vars(config), "environments": n})
    # It runs once: on CPU, better code would take XLA 2.3 s more for PPO's two networks.
    here = jax.local_devices()[0] if device is None else device
    program = lowered.compile(compiler_options=_CHEAP if here.platform == "cpu" else None)

    def initialize(*arguments: Any) -> Tree:
        with memory_errors:
            return jax.block_until_ready(program(*arguments))

    return initialize


def expect_room(
    parts: Mapping[str, int], device: Any = None, options: Mapping[str, Any] | None = None
) -> None:
    """Refuse what a device has too little memory for.

    Args:
        parts: bytes by what needs them.
        device: where; None: JAX's first.
        options: of the agent, to name those that determine the largest part.

    Raises:
        SpecError: there is too little.
    """
    device = jax.local_devices()[0] if device is None else device
    total, free = sum(parts.values()), free_memory(device)
    if free is None or total <= free:
        return
    largest = max(parts, key=lambda part: parts[part])
    options = options or {}
    names = [name for name in _OPTIONS.get(largest, ()) if options.get(name) is not None][:1]
    if names and largest != "the replay memory":
        names.append("environments")
    received = ", ".join(f"{name}={options[name]!r}" for name in names)
    raise SpecError(
        f"The agent must fit into the memory of the device {device.platform}:{device.id}, where "
        f"{free / 1e9:,.2f} GB are free. It needs at least {total / 1e9:,.2f} GB, "
        f"{parts[largest] / 1e9:,.2f} of them for {largest}. "
        + (f"Received: {received}. Lower {' or the '.join(names)}." if names else "Use smaller networks.")
    )


class _MemoryErrors:
    """A context that says in one sentence that memory ran out: XLA's own words fill a page."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, jax.errors.JaxRuntimeError) and str(error).startswith("RESOURCE_EXHAUSTED"):
            raise BackendError(
                f"The device has too little memory: {str(error).splitlines()[0]} Use a smaller batch or "
                "rollout, a smaller replay memory, smaller networks or fewer environments."
            ) from None


memory_errors = _MemoryErrors()
"""For all calls of compiled functions: one for all, since one more for each would take as long as a small
call."""


def compiled(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Compile a jitted function for these arguments, if there is room for what it computes in between.

    Raises:
        SpecError: the device has too little memory for that.
    """
    program = function.lower(*arguments).compile()
    if (analysis := program.memory_analysis()) is not None:
        results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
        expect_room({"intermediate results": analysis.temp_size_in_bytes + results})
    return program


def _bytes(tree: Tree) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))
