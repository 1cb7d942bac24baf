"""Settings of JAX that operant runs best with.

They only take effect before JAX's backend starts, and never override the user's.

Measured on CPU: a policy call with NumPy in and out takes 90 microseconds with asynchronous dispatch and 20
without. Nothing is lost, since a driver waits for each call anyway. If XLA uses all cores, it is the other
way round: without asynchronous dispatch the calling thread would compute as well, one thread more than there
are cores, and updates of TD3, DDPG and SAC take up to 1.2 times as long (benchmarks/results/products.md).
Calls of small networks at the same time, each from a thread of its own, take as long either way.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from operant.errors import SpecError, UsageError
from operant.spec.program_cache import MOST_BYTES, ProgramCache, opened

LIBRARY_FLAG = "--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE"
"""Lets XLA compute matrix products, and convolutions as such products, with a library on CPU."""


_programs: ProgramCache | None = None
"""The cache that JAX was given; None: it has one of the user's, or none."""


def prepare(asynchronous: bool = False, threads: int | None = None) -> None:
    """Choose, before JAX runs anything, what the user did not: how calls are dispatched on CPU, and where
    compiled programs are kept for other processes.

    Args:
        asynchronous: let the calling thread leave the work to XLA's threads.
        threads: with which XLA is going to start on CPU; None: all.
    """
    import jax

    _set("jax_cpu_enable_async_dispatch", asynchronous)
    chosen: Any = jax.config
    limit = chosen.jax_compilation_cache_max_size
    if chosen.jax_compilation_cache_dir or limit == 0 or not chosen.jax_enable_compilation_cache:
        return
    try:  # JAX has no public way to bring a cache of one's own; without it, programs are compiled
        from jax._src import compilation_cache, xla_bridge

        module: Any = compilation_cache
        if module._cache is not None:
            return
        running = xla_bridge.backends_are_initialized()
    except (ImportError, AttributeError):
        return
    global _programs
    known = os.environ.get("NPROC") or (None if running else threads) or processors()
    module._cache = _programs = opened(known, MOST_BYTES if limit < 0 else limit)
    if _programs is not None:
        _set("jax_persistent_cache_min_compile_time_secs", 0.0)  # a second is most of what they take together


@contextlib.contextmanager
def on_compilation(tell: Callable[[str], None] | None) -> Iterator[None]:
    """Call `tell`, if there is one, with a line for the user before the first program inside is compiled.

    Not if JAX has a cache that the user told it of: then only JAX knows whether it compiles.
    """
    import jax

    cache = _programs
    chosen: Any = jax.config
    if tell is None or cache is None:
        if tell is not None and not chosen.jax_compilation_cache_dir:
            tell("Compiling (some seconds)")
        yield
        return

    def missed() -> None:
        cache.on_miss = None
        tell("Compiling (some seconds; kept for the next run)")

    cache.on_miss = missed
    try:
        yield
    finally:
        cache.on_miss = None


def _set(name: str, value: Any) -> None:
    """Set an option of JAX, unless an environment variable does."""
    import jax

    if name.upper() not in os.environ:
        jax.config.update(name, value)


LARGE_PRODUCT = 2**22
"""Multiplications of a matrix product from which on several threads pay off. Measured with two cores: with a
second thread, rollouts of 64 CartPoles in batches of 2,048 through 64-64 (2**23) gain 1.35x, TD3 and SAC with
256 through 256-256 (2**24) 1.4x; batches of 256 through 64-64 (2**20) lose up to 5 %."""

SAME_PRODUCT = 2**20
"""Multiplications of a matrix product up to which any number of threads adds up in the same order. Of
products that were tried with up to 32 threads, the smallest that differed had 1.5 times as many."""


def start(
    shapes: Sequence[tuple[int, ...]], threads: int | None = None, product: int = 0, calls: int = 1
) -> None:
    """Start JAX's backend as suits observations of these shapes; no effect if it runs already.

    With images, XLA computes convolutions on CPU with a library: the Nature CNN on 256 frames takes 59 ms of
    processor time instead of 180 (benchmarks/results/convolutions.md). Small dense networks gain nothing from
    it. A GPU does not read the flag.

    Args:
        shapes: of the components of one observation.
        threads: of XLA on CPU; None: see `threads_for`.
        product: multiplications of the largest matrix product of a gradient step.
        calls: of the compiled program that the process makes at the same time.
    """
    threads = threads_for(shapes, product, calls) if threads is None else threads
    prepare(threads is None or threads > calls, threads)
    variables = {}
    if threads is not None and "NPROC" not in os.environ:
        variables["NPROC"] = str(threads)
    flags = os.environ.get("XLA_FLAGS", "")
    fits = not flags.strip() or flags.lstrip().startswith("-")  # else it is the name of a file of flags
    if has_images(shapes) and fits and LIBRARY_FLAG.partition("=")[0] not in flags:
        variables["XLA_FLAGS"] = f"{LIBRARY_FLAG} {flags}".rstrip()
    _start_with(variables)


def devices() -> list[Any]:
    """Return JAX's devices.

    Raises:
        UsageError: it cannot start on those that it was told to use.
    """
    import jax

    try:
        return jax.devices()
    except (AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0] or "there is no such device, or its plugin is not installed"
        wanted = os.environ.get("JAX_PLATFORMS")
        raise UsageError(
            f"JAX cannot start on JAX_PLATFORMS={wanted!r}: {reason}. Leave JAX_PLATFORMS "
            "out, or install what it needs: pip install 'operant[cuda]' for NVIDIA's GPUs."
        ) from None


def _start_with(variables: dict[str, str]) -> None:
    """Start the backend with these environment variables, which it reads as it starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        devices()
    finally:
        for name, value in before.items():  # the new ones are meant for this process only
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def join(coordinator: str, n_processes: int | None, process_id: int | None) -> bool:
    """Join the processes that train together, on one machine or several, before anything is computed.

    Args:
        coordinator: ``HOST:PORT`` at which the first process is reached; 'auto': what Slurm, Open MPI,
            Kubernetes or a cloud's TPU machines tell about themselves (`jax.distributed.initialize`).
        n_processes: how many.
        process_id: which one this is, from 0.

    Returns:
        Whether this process is the first: the one that writes and speaks.

    Raises:
        UsageError: they cannot be joined.
    """
    import jax

    arguments: dict[str, Any] = {}
    if coordinator != "auto":
        arguments = {
            "coordinator_address": coordinator,
            "num_processes": n_processes,
            "process_id": process_id,
        }
    try:
        if not jax.distributed.is_initialized():
            jax.distributed.initialize(**arguments)
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"The processes that train together cannot be joined at {coordinator!r}: {error}"
        ) from None
    return (jax.process_index() if process_id is None else process_id) == 0


def device(name: str) -> Any:
    """Return the JAX device of a name: 'cpu', 'gpu', 'tpu', or 'gpu:1'; SpecError: there is none."""
    import jax

    platform, _, number = name.lower().partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (RuntimeError, ValueError, IndexError):
        known = ", ".join(f"{each.platform}:{each.id}" for each in devices())
        raise SpecError(f"There is no device {name!r}. JAX has: {known}.") from None


def threads_for(shapes: Sequence[tuple[int, ...]], product: int = 0, calls: int = 1) -> int | None:
    """Return how many threads suit such observations: one for each call at a time, or None: all.

    All are for images and large products. Small networks run as dozens of kernels of a microsecond each.
    Handing them from thread to thread costs more than running them: with one thread an update of DQN's 64-64
    network takes 165 microseconds instead of 285 (two cores).
    """
    return None if has_images(shapes) or product >= LARGE_PRODUCT else min(calls, processors())


def free_memory(device: Any) -> int | None:
    """Return how many more bytes a JAX device can hold; None if that is not known."""
    if device.platform == "cpu":
        return min(_free(Path("/")), default=None)
    stats = device.memory_stats() or {}
    return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None


def _free(root: Path) -> Iterator[int]:
    """Yield how many bytes the machine, this process's limit and each of its control groups leave; swapped
    memory is none.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        yield from (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        import resource  # Linux has it, not every system

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            yield limit - int((root / "proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:  # not Linux
        if hasattr(os, "sysconf"):
            yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return
    for _, controllers, name in groups:
        if "memory" in controllers.split(",") or not controllers:
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            files = files if controllers else ("memory.max", "memory.current", "inactive_file")
            group = root / "sys/fs/cgroup" / ("memory" if controllers else "") / name.strip("/")
            # A container may not see the folder of its group, but that of the one above it.
            for folder in (group, *group.parents):
                with contextlib.suppress(OSError, ValueError, KeyError):  # "max" is no number
                    limit, used = (int((folder / file).read_text()) for file in files[:2])
                    pairs = map(str.split, (folder / "memory.stat").read_text().splitlines())
                    yield limit - used + int(dict(pairs)[files[2]])  # files that are cached can make way


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_images(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Tell whether there are images among observations of these shapes."""
    return any(len(shape) >= 3 for shape in shapes)
