"""Strict settings for every test: what passes silently elsewhere is an error here."""

import atexit
import faulthandler
import gc
import os
import pathlib
import shutil
import signal
import sys
import tempfile

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # GPUs round otherwise, and not always alike

# Most of a test's time is XLA's, on programs that other tests and their processes compile, too. All share a
# folder: a file that is read while another process writes it does not decompress, and its program is compiled
# once more.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="operant-compiled-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
# Nothing goes to the user's folder, not even from processes that lose the variable above.
os.environ["OPERANT_COMPILATION_CACHE"] = "0"
# XLA's own caches are for GPUs; their folder's name would be part of what a program is known by.
os.environ.setdefault("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# Programs here run for seconds at most: compiled as users' are, which run faster, they took two and a half
# times the processor's time. With XLA_FLAGS set, to nothing for example, all is as there; the exhaustive
# tests are run so.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    " --xla_cpu_copy_insertion_use_region_analysis=false"
    " --xla_cpu_enable_concurrency_optimized_scheduler=false",
)

import hypothesis
import jax
import pytest
from jax._src import compilation_cache

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)

# How long an example takes says how busy the machine is, not whether it holds: first calls import and
# compile.
hypothesis.settings.register_profile(
    "operant", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("operant")

# Who is started in the background of a shell ignores interrupts, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


FEW_MAPS = 5_000
"""Memory maps up to which compiled code is kept from file to file: some hundred programs, half a gigabyte."""
MANY_MAPS = 40_000
"""Memory maps from which on compiled code is freed within a file, too."""
LOOK = 4
"""Tests from one look at the maps to the next: one of a recurrent network in all drivers takes up to
6,000."""
LOADED = {}
"""Programs that the tests of this file have compiled or read, by key and devices."""


def _loaded_once(read, write):
    """Return functions that read and write JAX's folder of programs, and read none twice in a file.

    Most agents of a file are like one before, and loading its programs took a tenth of all time.
    """

    def read_once(key, options, backend, devices):
        known = key, tuple(devices)
        if known not in LOADED:
            found = read(key, options, backend, devices)
            if found[0] is None:
                return found
            LOADED[known] = found
        return LOADED[known]

    def write_and_keep(key, name, program, backend, seconds):
        LOADED[key, tuple(program.local_devices())] = program, seconds
        write(key, name, program, backend, seconds)

    return read_once, write_and_keep


compilation_cache.get_executable_and_time, compilation_cache.put_executable_and_time = _loaded_once(
    compilation_cache.get_executable_and_time, compilation_cache.put_executable_and_time
)


def _maps():
    maps = pathlib.Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0


def _free_compiled_code(modules):
    """Forget compiled programs, also those that functions of test modules keep."""
    for module in modules:
        for value in vars(module).values():
            if hasattr(value, "cache_clear") and getattr(value, "__module__", None) == module.__name__:
                value.cache_clear()
    LOADED.clear()
    gc.collect()
    jax.clear_caches()


GRACE = 60.0
"""Seconds after the time of a test until its process is ended."""
STDERR = pytest.StashKey[int]()


def pytest_configure(config):
    """Keep the process's own standard error, which tests are not given."""
    config.stash[STDERR] = os.dup(sys.__stderr__.fileno())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def _watched(item):
    """End the process, with where its threads stand, if a test's time did not end it: in native code that
    does not return, or in what is closed after it. The other tests go on in another process."""
    mark = item.get_closest_marker("timeout")
    seconds = float(mark.args[0] if mark else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = _watched


def pytest_collection_finish():
    """Garbage is not looked for among modules and tests, most of all objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _compiled_code_is_freed():
    """Each program that XLA compiles takes some memory maps, of which a process may have 65,530: a whole
    test run has more."""
    yield
    LOADED.clear()
    if _maps() > FEW_MAPS:
        _free_compiled_code([])


@pytest.fixture(autouse=True)
def _writes_that_fail_warn_in_each_test(monkeypatch):
    """Of what cannot be written there is one warning a minute."""
    monkeypatch.setattr("operant.checkpoint.durable._WARNED", {})


@pytest.fixture(autouse=True)
def _compiled_code_is_freed_in_time(request):
    """As above, where one file has as many: those of the exhaustive tests."""
    count = request.config.stash[TESTS] = request.config.stash.get(TESTS, 0) + 1
    if count % LOOK == 0 and _maps() > MANY_MAPS:
        from tests import small_agents

        _free_compiled_code([small_agents, request.module])


@pytest.fixture
def key():
    return jax.random.key(0)


TESTS = pytest.StashKey[int]()
EVERYDAY = ("dqn", "ppo")
"""Agents whose shared tests run every day: replay, rollouts."""
SLOW = ("td3",)
"""Agents whose shared tests are slow: continuous actions, deterministic.

Those of the others are exhaustive.
"""
OWN = (*EVERYDAY, "modular")
"""Agents whose own tests run every day, too."""
LONG = ("test_dropout.py", "test_knobs.py")
"""Files that compile for each of their many tests, slow as a whole."""
SHARED = (
    "test_batch_normalization.py",
    "test_conformance.py",
    "test_continuous_recurrent.py",
    "test_drivers.py",
    "test_dropout.py",
    "test_experience.py",
    "test_knobs.py",
    "test_modular.py",
    "test_probes.py",
    "test_untrained.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark as slow or exhaustive the tests of all agents that are about one beside those of every day."""
    from operant.agents.table import AGENTS

    modules = {entry.module for entry in AGENTS.values() if entry.learns}
    own = {f"test_{module}.py" for module in modules - {AGENTS[name].module for name in OWN}}
    for item in items:
        if item.path.name in {*own, *LONG} and not item.get_closest_marker("exhaustive"):
            item.add_marker(pytest.mark.slow)
        given = getattr(item, "callspec", None)
        if item.path.name not in SHARED or given is None or item.get_closest_marker("exhaustive"):
            continue
        about = {value for value in given.params.values() if isinstance(value, str)} & set(AGENTS)
        if about and not about & set(EVERYDAY):
            slow = about & set(SLOW) and item.path.name not in LONG
            item.add_marker(pytest.mark.slow if slow else pytest.mark.exhaustive)


@pytest.fixture(scope="module")
def tests_folder():
    """Let modules of this folder be imported by their bare names, as command lines and workers name them."""
    folder = str(pathlib.Path(__file__).parent)
    sys.path.insert(0, folder)
    yield folder
    sys.path.remove(folder)
