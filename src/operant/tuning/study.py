"""Studies: where they are stored, what they record, and the best settings that they know.

A study's own attributes say what it tunes (`agent`, `env`, `trial_steps`); each trial's say with which
settings it trained, so a study may go on with other ranges, and its best trial can be trained without the
command that made it.
"""

from __future__ import annotations

import datetime
import importlib.util
import re
import secrets
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from operant.errors import SpecError, UsageError, reading, suggest

if TYPE_CHECKING:
    import optuna

FOLDER = "studies"
"""Where studies are, unless the user says otherwise: `studies/NAME/study.db` and the plots beside it."""
JOURNALS = (".journal", ".log")
"""Endings of paths that mean Optuna's journal file."""
DATABASES = (".db", ".sqlite", ".sqlite3")
_FORMS = "sqlite:///FILE.db, postgresql://USER@HOST/NAME, or the path of a journal file (FILE.journal)"
_LOCK_SECONDS = 60
"""How long one process waits for others that write to the same SQLite file."""
_ATTEMPTS = 5


class BestTrial(NamedTuple):
    """The best trial of a study."""

    study: str
    agent: str
    options: dict[str, Any]
    """Its hyperparameters: fixed and chosen ones."""
    run: dict[str, Any]
    """Its options of the run, `env`, `n_envs` and `max_steps` among them."""
    params: dict[str, Any]
    """What was chosen."""
    number: int
    value: float
    """Its mean return, by which the study compares trials."""


def need_optuna() -> None:
    """Refuse to go on without Optuna."""
    if importlib.util.find_spec("optuna") is None:
        raise SpecError("Studies need the package optuna. Install it: pip install 'operant[tune]'.")


def folder(name: str) -> Path:
    """Return the folder of a study's own files; SpecError: the name cannot be that of a folder."""
    if not name or name in (".", "..") or any(c in name for c in "/\\:?%\0"):
        raise SpecError(f"study must be a name without / \\ : ? and %. Received: study={name!r}.")
    return Path(FOLDER) / name


def fresh(agent: str, env: str) -> str:
    """Return a name that no study has yet."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    where = "".join(c if c.isalnum() or c in "-._" else "-" for c in env)
    return f"{agent.rpartition(':')[2]}-{where}-{stamp}-{secrets.token_hex(2)}"


def place(name: str, storage: str | None) -> str:
    """Return a study's storage in full: the user's, or its own SQLite file; SpecError: of no known kind."""
    if storage is None:
        return f"sqlite:///{folder(name) / 'study.db'}"
    folder(name)
    if "://" in storage or storage.endswith(JOURNALS):
        return storage
    if storage.endswith(DATABASES):
        return f"sqlite:///{storage}"
    raise SpecError(f"storage must be a database's URL: {_FORMS}. Received: storage={storage!r}.")


def shown(storage: str) -> str:
    """Return a storage for messages: without the password."""
    if "://" not in storage:
        return storage
    scheme, _, rest = storage.partition("://")
    account, at, host = rest.rpartition("@")
    user, colon, _ = account.partition(":")
    host = re.sub(r"(?<=[?&]password=)[^&]*", "***", host)
    return f"{scheme}://{user}{':***' if colon else ''}{at}{host}"


def file_of(storage: str) -> Path | None:
    """Return the file of a storage on this machine, None for a database server."""
    if "://" not in storage:
        return Path(storage)
    scheme, _, path = storage.partition(":///")
    path = path.partition("?")[0]
    return Path(path) if scheme.startswith("sqlite") and path and not path.startswith(":") else None


def connect(storage: str) -> Any:
    """Open a storage, made if missing; SpecError: it cannot be reached, or its driver is missing."""
    need_optuna()
    import sqlalchemy.exc
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    file = file_of(storage)
    try:
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        if "://" not in storage:
            return JournalStorage(JournalFileBackend(storage))
    except OSError as error:
        raise SpecError(f"The storage {shown(storage)!r} cannot be opened: {error}.") from None
    settings = {} if file is None else {"connect_args": {"timeout": _LOCK_SECONDS}}
    for attempt in range(_ATTEMPTS):
        try:
            opened = RDBStorage(_with_driver(storage), engine_kwargs=settings)
            weakref.finalize(opened, opened.engine.dispose)  # Optuna leaves closing connections to chance
            return opened
        except ImportError:
            raise SpecError(
                f"The storage {shown(storage)!r} needs a database driver that is not installed. For "
                "PostgreSQL: pip install 'operant[postgresql]'."
            ) from None
        except (sqlalchemy.exc.SQLAlchemyError, RuntimeError, ValueError) as error:
            # Processes that meet at a new database make its tables at the same time; all but one then find
            # them made.
            known = any(word in str(error).lower() for word in ("already exists", "unique", "locked"))
            if not known or attempt == _ATTEMPTS - 1:
                # Without the password, which the driver may repeat on other lines.
                first = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
                raise SpecError(
                    f"The storage {shown(storage)!r} cannot be used: {first} Known forms: {_FORMS}."
                ) from None
            time.sleep(0.2 * (attempt + 1))
    raise AssertionError


def _with_driver(storage: str) -> str:
    """Let a plain `postgresql://` mean the driver of the extra `postgresql`."""
    scheme, _, rest = storage.partition("://")
    return f"postgresql+psycopg://{rest}" if scheme in ("postgresql", "postgres") else storage


def load(name: str, storage: str | None) -> optuna.Study:
    """Open a study that exists; SpecError: there is none."""
    need_optuna()
    import optuna

    where = place(name, storage)
    file = file_of(where)
    remedy = "Give --storage if it is elsewhere." if storage is None else ""
    if file is not None and not file.is_file():
        raise SpecError(f"There is no study {name!r}: {shown(where)} does not exist. {remedy}".rstrip())
    with reading(f"The storage {shown(where)!r}", SpecError):
        opened = connect(where)
        names = optuna.get_all_study_names(opened)
        if name not in names:
            raise SpecError(f"There is no study {name!r} in {shown(where)}.{suggest(name, names)}")
        return optuna.load_study(study_name=name, storage=opened)


def create(name: str, storage: str, attributes: Mapping[str, Any], **settings: Any) -> optuna.Study:
    """Open a study with these attributes, sampler and pruner, in a storage as `place` returns it, or make it.

    Raises:
        SpecError: the study that exists tunes something else, or does not say what.
    """
    import optuna

    study = optuna.create_study(
        study_name=name,
        storage=connect(storage),
        direction="maximize",
        load_if_exists=True,
        **settings,
    )
    recorded = study.user_attrs
    for key, value in attributes.items():
        if key in recorded and recorded[key] != value:
            raise SpecError(
                f"The study {name!r} has {key} {recorded[key]!r}, not {value!r}: trials would not compare. "
                "Give another --study, or the same settings."
            )
    for key in attributes.keys() - recorded.keys():
        study.set_user_attr(key, attributes[key])
    return study


def check_ranges(study: optuna.Study, wanted: Mapping[str, Any]) -> None:
    """Refuse ranges that cannot be joined with the trials': other categorical values, another kind."""
    from optuna.distributions import check_distribution_compatibility

    known: dict[str, Any] = {}
    for trial in study.get_trials(deepcopy=False):
        known |= trial.distributions
    for name, distribution in wanted.items():
        try:
            if name in known:
                check_distribution_compatibility(known[name], distribution)
        except ValueError:
            raise SpecError(
                f"{name} was tuned over {_range(known[name])} in the study {study.study_name!r}, which "
                f"cannot change to {_range(distribution)}. Give the same values, or another --study."
            ) from None


def best(study: optuna.Study) -> BestTrial | None:
    """Return the best trial of a study; None if none was finished; UsageError: operant did not make it."""
    from optuna.trial import TrialState

    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if not finished:
        return None
    trial = max(finished, key=lambda trial: (trial.value, -trial.number))
    attributes = trial.user_attrs
    if "options" not in attributes or "agent" not in study.user_attrs:
        raise UsageError(
            f"The study {study.study_name!r} was not made by `operant tune`: it does not say what it tunes."
        )
    assert trial.value is not None
    return BestTrial(
        study.study_name,
        study.user_attrs["agent"],
        dict(attributes["options"]),
        dict(attributes["run"]),
        dict(trial.params),
        trial.number,
        trial.value,
    )


def from_study(name: str, storage: str | None = None) -> BestTrial:
    """Return the best trial of a study by name: what `operant train --from-study` trains.

    Without `storage` it is in the study's own file, `studies/NAME/study.db`.

    Raises:
        SpecError: there is no such study.
        UsageError: none of its trials was finished.
    """
    study = load(name, storage)
    with reading(f"The storage {shown(place(name, storage))!r}", SpecError):
        trial = best(study)
        if trial is None:
            raise UsageError(f"No trial of the study {name!r} was finished yet. Run more: operant tune ...")
        return trial


def _range(distribution: Any) -> str:
    if hasattr(distribution, "choices"):
        return " or ".join(map(str, distribution.choices))
    return f"{distribution.low} to {distribution.high}{', logarithmically' if distribution.log else ''}"
