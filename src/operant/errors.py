"""The errors that operant raises on a user's mistake, and the close-match suggestion they carry.

Every message follows one template: what must hold, what was received, what to do about it. `assert` is
kept for operant's own mistakes.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import numbers
import os
import re
import shlex
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


class OperantError(Exception):
    """Base of every error that operant raises on purpose."""


class SpecError(OperantError, ValueError):
    """A specification (agent, network, environment, option) is not understood."""


class SpaceError(OperantError, ValueError):
    """A state or action does not fit its space, or an agent cannot serve the space."""


class EnvError(OperantError, RuntimeError):
    """An environment broke its contract."""


class CheckpointError(OperantError, RuntimeError):
    """A file that should hold a checkpoint cannot be used."""


class MismatchError(CheckpointError):
    """A checkpoint holds other arrays than what it is loaded into."""


class UsageError(OperantError, RuntimeError):
    """A method was called out of order, or with arguments that exclude one another."""


class NumericalError(OperantError, ArithmeticError):
    """A number that must be finite is not."""


class BackendError(OperantError, RuntimeError):
    """JAX or Keras is set up in a way that operant cannot work with, or has too little memory."""


# Words of other libraries, and what is meant here. See docs/coming-from.md.

FIELD: dict[str, tuple[str, ...]] = {
    "total_timesteps": ("max_steps",), "num_envs": ("n_envs",), "env_id": ("env",),
    "n_eval_episodes": ("eval_episodes",), "learning_rate": ("lr",), "adam_eps": ("opt_epsilon",),
    "num_steps": ("n_steps",), "gae_lambda": ("lam",), "ent_coef": ("entropy_coef",),
    "vf_coef": ("value_loss_coef",), "max_grad_norm": ("grad_norm",), "norm_adv": ("normalize_advantage",),
    "num_minibatches": ("mini_batches",), "buffer_size": ("buffer_max_size",),
    "learning_starts": ("buffer_initial_size",),
    **dict.fromkeys(("n_epochs", "update_epochs"), ("ppo_epochs", "epochs")),
    **dict.fromkeys(("clip_range", "clip_coef"), ("clip_norm",)),
    **dict.fromkeys(("train_freq", "train_frequency"), ("train_every",)),
    **dict.fromkeys(("target_update_interval", "target_network_frequency"), ("target_sync_steps",)),
    **dict.fromkeys(("exploration_initial_eps", "start_e"), ("epsilon_start",)),
    **dict.fromkeys(("exploration_final_eps", "end_e"), ("epsilon_end",)),
}  # fmt: skip
"""The field's names of options, and those here of which the first that exists has them as aliases: they mean
the same (see `operant.spec.config.aliases`)."""
SYNONYMS: dict[str, tuple[str, ...]] = {
    **FIELD,
    "tensorboard_log": ("run_dir",),
    "minibatch_size": ("mini_batches",),
    "clip_range_vf": ("clip_value",),
    "exploration_fraction": ("epsilon_decay_steps",),
    "batch_size": ("buffer_batch_size", "mini_batches"),
    **dict.fromkeys(("hidden", "hidden_sizes", "net_arch", "policy_kwargs"), ("model", "actor_model")),
    "eval_freq": ("eval_frequency",),
}
"""These and names that mean something else, for which an option is only suggested."""
REMEDIES = {
    "device": "JAX chooses the device: set JAX_PLATFORMS=cpu or JAX_PLATFORMS=cuda in the environment.",
    "verbose": "Progress is printed unless it is quiet.",
    "list": "See: operant list.",
}
"""What to do instead of giving names that stand for no option."""
METHODS = {
    "learn": "fit(max_steps=...)",
    "train": "fit(max_steps=...)",
    "predict": "act(observation)",
    "num_timesteps": "steps",
    "policy": "act(observation), or session.learner.algorithm.models for its networks",
    "logger": "fit(callback=...): what it adds to record.values is recorded",
    "get_env": "envs",
    "env": "envs",
    "set_env": "another object with these environments, and load(directory)",
    "run": "fit; its options are run_config",
}
"""Methods of an algorithm's class."""
AGENT_METHODS = {
    "restore": "Agent.load(directory=...), which makes the agent from its file",
    "tracked_tensors": "a summarizer: Agent.create(..., summarizer=...)",
    "initialize": "Agent.create, which does it",
    "predict": "act(states=..., independent=True)",
    **dict.fromkeys(("learn", "fit", "train"), "a Runner, or act and observe"),
    "evaluate": "Runner(agent, environment).run(num_episodes=..., evaluation=True)",
}
"""Methods of `Agent`."""
POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")
"""Names of policies, which are an argument before the environment."""
NETWORK_LIBRARIES = {
    "flax": "Flax",
    "equinox": "Equinox",
    "haiku": "Haiku",
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
}
"""Packages whose networks look like functions, and cannot be used."""
NETWORK_KEYS = {"pi", "vf", "qf"}
"""Keys under which the widths of policy and value networks come in one dict."""
MOST_TEXT = 2000
"""Characters of somebody's exception that are shown."""
NO_DISPLAY = (
    ". There is no display here: put `xvfb-run -a` before the command, or let the library draw without one "
    "(MuJoCo, dm_control: MUJOCO_GL=egl; pyglet: PYGLET_HEADLESS=1; pygame: SDL_VIDEODRIVER=dummy)"
)
"""The remedy where something looks for a display in vain."""
_SHOWING = re.compile("display|gladload|glfw|glew|opengl|x server", re.IGNORECASE)


def minibatch_hint(name: str, value: Any, n_steps: Any, n_envs: int | None) -> str:
    """Say what rows in a gradient step are, where a rollout is cut into minibatches; else nothing.

    >>> minibatch_hint("batch_size", 64, 128, 8)
    ' 64 rows a gradient step are mini_batches=16 here (n_steps x n_envs = 128 x 8 = 1024 rows).'
    """
    value = as_whole(value)
    if _plain(name) not in ("batch_size", "minibatch_size") or not isinstance(value, int) or value < 1:
        return ""
    if n_envs is None or n_steps * n_envs < value:
        return f" {value} rows a gradient step are mini_batches = n_steps x n_envs / {value} here."
    rows = n_steps * n_envs
    nearly = "" if rows % value == 0 else "about "
    return (
        f" {nearly.capitalize()}{value} rows a gradient step are mini_batches={max(1, round(rows / value))} "
        f"here (n_steps x n_envs = {n_steps} x {n_envs} = {rows} rows)."
    )


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def suggest(name: str, known: Iterable[str], *, listed: bool = True, alike: float = 0.6) -> str:
    """Return `` Did you mean 'x'?`` for the closest of the known names, else the list of them, or with
    `listed` off nothing.

    Names are close from a similarity of `alike` on (1: identical).

    >>> suggest("ppoo", ["ppo", "dqn"])
    " Did you mean 'ppo'?"
    """
    names = sorted(str(k) for k in known)
    if remedy := REMEDIES.get(_plain(str(name))):
        return f" {remedy}"
    meant = SYNONYMS.get(_plain(str(name)))
    if meant is None:
        same = [known for known in names if known.lower() == str(name).lower()]
        close = same or difflib.get_close_matches(str(name), names, n=1, cutoff=alike)
    else:  # names that merely look like it would mislead
        close = [known for word in meant for known in names if _plain(known) == word]
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(names)}." if names and listed else ""


def instead(name: str, methods: Mapping[str, str]) -> str:
    """Return what to use here in place of an attribute of another library, if that is known."""
    return f" Use {methods[name]}." if name in methods else ""


def told(error: BaseException, how: str = "") -> str:
    """Say what somebody's code raised, and where: ``raised TYPE how: text (FILE, line N: SOURCE)``.

    The place is the innermost one outside operant and installed packages, if there is one; else the innermost
    one outside operant. What misses a display is told how to do without one.
    """
    kind, text = type(error).__name__, text_of(error).strip().rstrip(".")
    said = f"raised {kind}{f' {how}' if how else ''}{f': {text}' if text else ''}{raised_at(error)}"
    dark = not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return said + NO_DISPLAY if dark and _SHOWING.search(f"{kind} {text}") else said


def text_of(error: BaseException) -> str:
    """Return the text of somebody's exception, which may be huge, or itself raise."""
    try:
        return shortened(str(error))
    except Exception as fault:
        return f"(its text raises {type(fault).__name__})"


def shortened(text: str) -> str:
    """Return a text, or its beginning and how long it is."""
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}... ({len(text)} characters)"


def raised_at(error: BaseException) -> str:
    """Return where somebody's exception was raised, as in `told`: `` (FILE, line N: SOURCE)``, or nothing."""
    import sysconfig  # seldom needed, and slow to load

    standard = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
    package = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
    found = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in found if not frame.filename.startswith((package, "<frozen"))]
    own = [f for f in frames if not (f.filename.startswith(standard) or "-packages" in f.filename)]
    others = [f for f in frames if f"jax{os.sep}_src" not in f.filename]  # what called JAX
    if not frames:
        return ""
    frame = (own or others or frames)[-1]
    return f" ({frame.filename}, line {frame.lineno}{f': {frame.line}' if frame.line else ''})"


def naming_misspelt(function: _Function) -> _Function:
    """Decorate a function so that errors about a misspelt or missing argument name it, with a close match.

    A function without `**` arguments refuses unknown ones. One that passes them on adds the suggestion to
    errors that have none. For functions that a program calls once in a while: a call takes some microseconds
    more.
    """
    parameters = inspect.signature(function).parameters.values()
    passes_on = any(each.kind is each.VAR_KEYWORD for each in parameters)
    places = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    arguments = {each.name for each in places} - {"self"}
    needed = {each.name: place for place, each in enumerate(places) if each.default is each.empty}
    makes = function.__name__ == "__init__"
    name_of_function = function.__name__ if "self" in needed else function.__qualname__

    @functools.wraps(function)
    def checked(*values: Any, **named: Any) -> Any:
        unknown = [name for name in named if name not in arguments]
        label = type(values[0]).__name__ if makes else name_of_function
        if unknown and not passes_on:
            raise UsageError(f"{label} takes no argument {unknown[0]!r}.{suggest(unknown[0], arguments)}")
        missing = [name for name, place in needed.items() if place >= len(values) and name not in named]
        if missing:
            received = f" Received: {', '.join(unknown)}." if unknown else ""
            raise UsageError(f"{label} needs the argument {missing[0]!r}.{received}")
        try:
            return function(*values, **named)
        except (SpecError, UsageError) as error:
            for name in () if "Did you mean" in str(error) else unknown:
                # What is passed on may be right: no option's name is this similar to an argument's.
                close = suggest(name, arguments, listed=False, alike=0.8)
                if close and close not in str(error):
                    raise type(error)(f"{error} {label} has no argument {name!r}.{close}") from None
            raise

    return cast(_Function, checked)


def value_error(argument: str, must: str, received: object, remedy: str = "") -> SpecError:
    """Build the house message: ``x must be ... Received: x=... Remedy.``."""
    text = f"{argument} must be {must}. Received: {argument}={received!r}."
    return SpecError(f"{text} {remedy}".rstrip())


def whole(argument: str, value: Any, low: int = 1, *, optional: bool = False, remedy: str = "") -> Any:
    """Return a whole number of at least `low` as an `int`; it may be NumPy's, or written as a float (`1e6`).

    If `optional`, None is returned as it is.

    Raises:
        SpecError: it is something else; names the argument, and the remedy.
    """
    if value is None and optional:
        return None
    number = as_whole(value)
    if isinstance(number, numbers.Integral) and not isinstance(number, bool) and int(number) >= low:
        return int(number)
    must = f"a whole number of at least {low}{', or None' if optional else ''}"
    raise value_error(argument, must, value, remedy)


def as_number(value: Any) -> float | None:
    """Return a number as a float, also NumPy's or JAX's, a truth value as 0 or 1; None for what is none."""
    if isinstance(value, str | bytes) or getattr(value, "ndim", 0) != 0:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def as_whole(value: Any) -> Any:
    """Return a float that is a whole number (`1e6`) as an `int`, and anything else as it is."""
    fraction = isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral)
    return int(value) if fraction and float(value).is_integer() else value


def expect_like(argument: str, value: Any, default: Any) -> None:
    """Refuse (SpecError) a value that is no truth value, or no number, if the default is one."""
    switch = isinstance(default, bool)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, int | float) and not (isinstance(value, bool) if switch else number):
        must = "True or False" if switch else "a number"
        raise value_error(argument, must, value, f"The default is {default!r}.")


@contextlib.contextmanager
def reading(what: str, kind: type[OperantError] = CheckpointError) -> Iterator[None]:
    """Where a file is read, which may be damaged or forged: whatever fails inside is an error that names it.

    Args:
        what: the file, for the message: ``The trace 'a.npz'``.
        kind: the error in place of one that is not operant's.
    """
    try:
        yield
    except OperantError as error:
        if what in str(error):
            raise
        raise type(error)(f"{what}: {error}") from None
    except KeyError as error:
        raise kind(
            f"{what} comes from an earlier, unreleased state of operant ({error} is missing), whose files "
            "are not read. Train anew, in another folder."
        ) from error
    except Exception as error:
        raise kind(f"{what} cannot be read: {type(error).__name__}: {str(error).rstrip('.')}.") from error


def working_directory() -> Path:
    """Return it, absolute, or ``.`` if it was removed: only relative paths fail then."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path()


def shown(path: str | Path) -> str:
    """Return a path for a message: relative to the working directory, if it is within."""
    here = working_directory()
    return str(Path(path).relative_to(here) if Path(path).is_relative_to(here) else path)


def quoted(*words: str) -> str:
    """Return words of a command for a message, quoted for the shell."""
    return shlex.join(words)


def as_folder(argument: str, value: str | Path, received: object = None) -> Path:
    """Return the path of a folder that exists, or can be made; `received` is a path inside it that was given.

    Raises:
        SpecError: there is a file in its place, or in the place of a folder above.
    """
    path = Path(value)
    for place in (path, *path.parents):
        if place.is_dir():
            break
        if place.exists() or place.is_symlink():
            must = (
                f"in a folder: {shown(place)!r} is a file"
                if received
                else f"a folder: {shown(place)!r} is a file"
            )
            raise value_error(argument, must, received or shown(value), "Give another path.")
    return path
