"""Damaged and forged files of every kind: each is read, or refused by an error of operant's that names it.

Every file is spoilt from a seed of its own. Many more by hand:
``OPERANT_DAMAGED=10000 pytest -m slow --timeout 0 tests/test_damaged_files.py``.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import shutil
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import operant
from operant import Agent
from operant.agents.table import config_class
from operant.checkpoint import manifest, weight_files
from operant.cli import main, run_file
from operant.cli.training import Extra
from operant.errors import OperantError
from operant.execution import traces
from operant.nn import Head, backend, build
from operant.nn.cfg_kinds import KINDS
from operant.spec.run import RunConfig
from operant.spec.spaces import Leaf, Spaces
from operant.tracking import read_history
from operant.tracking.metrics import MetricsFile
from operant.tracking.runs import read as read_runs
from operant.training.run_dir import read_and_unread
from operant.training.train import resumed, train
from operant.tuning import study

COUNT = int(os.environ.get("OPERANT_DAMAGED", "300"))
"""How many files are spoilt."""

STATE = {"type": "float", "shape": (3,)}
CHOICE = {"type": "int", "num_values": 3}
NET = [{"type": "dense", "size": 4}, {"type": "keras", "layer": "Dense", "units": 3, "activation": "relu"}]
PPO = {"agent": "ppo", "n_steps": 4, "mini_batches": 1, "ppo_epochs": 1, "model": NET}
INPUT, HEAD = {"state": Leaf("float", (3,))}, {"q": Head((2,))}
CFG = "[dense-0]\nunits=4\nactivation=tanh\n\n[dense-1]\noutput=1\n"
HOSTILE = (
    None, True, -1, 0, 1, 2, 2.5, 2**31, 2**40, 2**70, 1e308, float("nan"), float("-inf"), "", "x", "..",
    "a" * 5000, "\ud800", "keras_hub", "1e9", [], {}, [[]], [None], {"": {}}, {"type": "x"}, ["dense"],
    json.loads("[" * 90 + "]" * 90), json.loads("[" * 900 + "]" * 900),
)  # fmt: skip


class Damaged(NamedTuple):
    """Files of one kind, in a folder."""

    make: Callable[[Path], Any]
    """Writes them."""
    spoil: dict[str, Callable[[np.random.Generator, Path], None]]
    """What may be done, by pattern of the file's name."""
    read: Callable[[Path], Any]


def bytes_of(draw: np.random.Generator, path: Path) -> None:
    """Flip, cut, insert, repeat or blank some bytes."""
    data = bytearray(path.read_bytes())
    start, size = (int(draw.integers(max(len(data), 1))), int(draw.integers(1, 64)))
    match draw.integers(6):
        case 0:
            for place in draw.integers(0, max(len(data), 1), int(draw.integers(1, 9))):
                data[place : place + 1] = bytes([data[place] ^ (1 << int(draw.integers(8)))])
        case 1:
            del data[start:]
        case 2:
            del data[start : start + size]
        case 3:
            data[start:start] = draw.bytes(size)
        case 4:
            data[start:start] = data[start : start + size]
        case _:
            data[start : start + size] = bytes(size)
    path.write_bytes(data)


def changed(draw: np.random.Generator, data: Any) -> Any:
    """Put something hostile in the place of one part of JSON data, or leave it out."""
    places = []

    def note(part):
        for key in range(len(part)) if isinstance(part, list) else list(part):
            places.append((part, key))
            if isinstance(part[key], dict | list):
                note(part[key])

    note(data)
    part, key = places[draw.integers(len(places))]
    match draw.integers(6):
        case 0:
            del part[key]
        case 1:
            other, name = places[draw.integers(len(places))]
            part[key] = (
                json.loads(json.dumps(other[name])) if name in range(len(other)) or name in other else 0
            )
        case 2 if isinstance(part, dict):
            part[str(HOSTILE[draw.integers(len(HOSTILE))])] = part.pop(key)
        case _:
            part[key] = HOSTILE[draw.integers(len(HOSTILE))]
    return data


def json_of(draw: np.random.Generator, path: Path) -> None:
    path.write_text(json.dumps(changed(draw, json.loads(path.read_text()))))


def lines_of(draw: np.random.Generator, path: Path) -> None:
    """Change one line of JSON."""
    lines = path.read_text().splitlines()
    place = draw.integers(len(lines))
    lines[place] = json.dumps(changed(draw, [json.loads(lines[place])]))[1:-1]
    path.write_text("".join(f"{line}\n" for line in lines))


def signed(draw: np.random.Generator, path: Path) -> None:
    """Change a checkpoint's manifest, with the right hash."""
    data = json.loads(path.read_text())
    part = ("header", "header", "header", "leaves", "files")[draw.integers(5)]
    with contextlib.suppress(Exception):
        data[part] = changed(draw, [data[part]])[0]
        path.write_text(json.dumps({**data, "sha256": manifest.digest(data)}))


def array(draw: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Change numbers, dtype or shape of an array."""
    x = np.array(x)
    with np.errstate(all="ignore"):
        match draw.integers(8):
            case 0:
                return x.astype(("f8", "f2", "i4", "i8", "u1", "bool", "c8")[draw.integers(7)])
            case 1:
                return x[None]
            case 2:
                return x.ravel()[:-1] if x.ndim else np.array([x, x])
            case 3:
                return x - np.asarray((np.nan, np.inf, 1e300)[draw.integers(3)])
            case 4:
                return np.full(x.shape, "abc")
            case 5:
                return np.full(x.shape, np.datetime64("2020-01-01"))
            case 6:
                return np.zeros(x.shape, [("a", "f4")])
            case _:
                return np.full(x.shape, (-1, 2**40, 2**63 - 1)[draw.integers(3)])


def arrays_of(draw: np.random.Generator, path: Path) -> None:
    """Change, drop, add or rename an array of a file of weights, or of a trace."""
    arrays = weight_files.read(path)
    name = sorted(arrays)[draw.integers(len(arrays))]
    match draw.integers(6):
        case 0:
            del arrays[name]
        case 1:
            arrays[("x", "../x", "model/params/x", "terminal")[draw.integers(4)]] = arrays.pop(name)
        case _:
            arrays[name] = array(draw, arrays[name])
    with contextlib.suppress(Exception):  # not every format holds everything
        weight_files._WRITERS[next(k for k, suffix in weight_files.FORMATS.items() if suffix == path.suffix)](
            path, arrays
        )


def table_of(draw: np.random.Generator, path: Path) -> None:
    """Change a column of a Parquet file."""
    table = pq.read_table(path)
    place = int(draw.integers(table.num_columns))
    name, column = table.column_names[place], table.column(place)
    match draw.integers(7):
        case 0:
            table = table.append_column(name, column)
        case 1:
            table = table.drop_columns(name)
        case 2:
            table = table.set_column(place, name, pa.array([None, *column.to_pylist()[1:]], column.type))
        case 3:
            kind = (pa.string(), pa.float16(), pa.bool_(), pa.int8())[draw.integers(4)]
            table = table.set_column(place, name, pa.array([None] * len(column), kind))
        case 4:
            table = table.set_column(place, name, pa.array([[1.0]] * len(column)))
        case 5:
            values = [(float("nan"), -1.0, 1e300, 2.5)[draw.integers(4)]] * len(column)
            table = table.set_column(place, name, pa.array(values))
        case _:
            table = table.rename_columns([f"{n}x" if n == name else n for n in table.column_names])
    pq.write_table(table, path)


def keras_of(draw: np.random.Generator, path: Path) -> None:
    """Change the configuration in a .keras file."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files["config.json"] = json.dumps(changed(draw, json.loads(files["config.json"]))).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def cfg_of(draw: np.random.Generator, path: Path) -> None:
    """Change a line of a .cfg file."""
    lines = path.read_text().splitlines()
    kinds = sorted(KINDS)
    new = (
        f"[{kinds[draw.integers(len(kinds))]}-{draw.integers(3)}]",
        f"{sorted(KINDS[kinds[draw.integers(len(kinds))]].keys or ['x'])[0]}={HOSTILE[draw.integers(18)]}",
    )
    lines[draw.integers(len(lines))] = new[draw.integers(2)]
    path.write_text("\n".join(lines), errors="replace")


def agent(folder: Path, **more: Any) -> Agent:
    made = Agent.create(**PPO, states=STATE, actions=CHOICE, seed=0, max_episode_timesteps=9, **more)
    for i in range(7):
        made.act(states=np.full(3, i, "f4"))
        made.observe(reward=1.0, terminal=i == 4)
    return made


def keras_file(folder: Path) -> None:
    k = backend.keras()
    with backend.numpy_promotion():
        x = k.Input((3,))
        k.Model(x, k.layers.Dense(2, kernel_initializer="he_normal")(k.layers.Dense(3)(x))).save(
            folder / "net.keras"
        )


def run(folder: Path) -> None:
    flags = [
        "train",
        "a2c",
        "--env",
        "jax:CartPole-v1",
        "--n-envs",
        "2",
        "--n-steps",
        "8",
        "--max-steps",
        "64",
    ]
    more = ["--model", "[4]", "--seed", "1", "--quiet", "--run-dir", str(folder / "run")]
    assert main([*flags, *more]) == 0


def read_run_folder(folder: Path) -> None:
    with contextlib.chdir(folder):
        read_and_unread(".")
        read_runs(["run"])
        train(resumed("run", {"max_steps": 96, "quiet": True}))


OPTIONS = {
    "agent": "ppo",
    "env": "jax:CartPole-v1",
    "max-steps": 1000,
    "lr": "linear:1e-3:1e-4:1000",
    "model": [4],
    "env_kwargs": {"gravity": 9.0},
}
"""What a run file says."""


def run_files(folder: Path) -> None:
    for name in ("run.toml", "run.yaml", "run.json"):
        run_file.write(str(folder / name), "ppo", {k: v for k, v in OPTIONS.items() if k != "agent"})


def read_run_files(folder: Path) -> None:
    for path in folder.iterdir():
        file = run_file.RunFile(str(path))
        file.values([RunConfig, Extra, config_class(file.agent or "ppo")])


def trials(folder: Path) -> None:
    made = study.create("s", str(folder / "s.journal"), {"agent": "ppo", "env": "CartPole-v1"})
    for value in (1.0, 2.0):
        trial = made.ask()
        trial.suggest_float("lr", 0.001, 0.1)
        trial.set_user_attr("options", {"lr": 0.01})
        trial.set_user_attr("run", {"env": "CartPole-v1"})
        made.tell(trial, value)


def act(folder: Path) -> None:
    policy = operant.load_policy(folder)
    policy.act(np.zeros(3, "f4"))


def learn(folder: Path, steps: int = 5) -> None:
    loaded = Agent.load(folder)
    with contextlib.suppress(OperantError):  # what it says is possible, and not what the program does
        for i in range(steps):
            loaded.act(states=np.full(3, i, "f4"))
            loaded.observe(reward=1.0)


def network(name: str) -> Callable[[Path], Any]:
    return lambda folder: build(folder / name, INPUT, HEAD).init(jax.random.key(0))


def weights(format: str) -> Damaged:
    name = f"agent{weight_files.FORMATS[format]}"
    spoil = {"agent.json": json_of, name: arrays_of, "agent*": bytes_of}
    return Damaged(
        lambda folder: agent(folder).save(folder, format=format), spoil, lambda folder: learn(folder, 1)
    )


SPACES = Spaces.read(STATE, CHOICE)
KINDS_OF_FILES = {
    "checkpoint": Damaged(
        lambda folder: agent(folder).save(folder),
        {"agent/manifest.json": signed, "agent/*": bytes_of},
        learn,
    ),
    **{format: weights(format) for format in weight_files.FORMATS},
    "network": Damaged(
        lambda folder: (folder / "net.json").write_text(json.dumps([*NET, {"type": "gru", "size": 3}])),
        {"net.json": json_of, "net.*": bytes_of},
        network("net.json"),
    ),
    "keras": Damaged(keras_file, {"net.keras": keras_of, "net.*": bytes_of}, network("net.keras")),
    "cfg": Damaged(
        lambda folder: (folder / "net.cfg").write_text(CFG),
        {"net.cfg": cfg_of, "net.*": bytes_of},
        network("net.cfg"),
    ),
    "history": Damaged(
        lambda folder: (run(folder), shutil.move(folder / "run" / "history.parquet", folder / "h.parquet")),
        {"h.parquet/*.parquet": table_of, "h.parquet/*": bytes_of},
        lambda folder: read_history(folder / "h.parquet"),
    ),
    "run": Damaged(
        run,
        {"run/run.json": json_of, "run/*.json": bytes_of, "run/checkpoints/*/manifest.json": signed},
        read_run_folder,
    ),
    "options": Damaged(
        run_files,
        {"run.json": json_of, "run.*": bytes_of, "run.yaml": bytes_of, "run.toml": bytes_of},
        read_run_files,
    ),
    "metrics": Damaged(
        run,
        {"run/metrics.jsonl": lines_of, "run/metrics.*": bytes_of},
        lambda folder: MetricsFile(folder / "run" / "metrics.jsonl", resume_at_step=32).close(),
    ),
    "study": Damaged(
        trials,
        {"s.journal": lines_of, "s.*": bytes_of},
        lambda folder: study.from_study("s", str(folder / "s.journal")),
    ),
    "trace": Damaged(
        lambda folder: agent(folder, recorder=str(folder)).close(),
        {"trace-*.npz": arrays_of, "trace-*": bytes_of},
        lambda folder: [traces.read(path, SPACES) for path in traces.files(folder)],
    ),
    "policy": Damaged(
        lambda folder: agent(folder).save(folder, format="stablehlo"),
        {"agent.stablehlo.json": json_of, "agent.stablehlo": bytes_of},
        act,
    ),
}


def spoilt(kind: str, seed: int, source: Path, folder: Path) -> str | None:
    """Spoil and read one file; return what is wrong with the error, if anything is."""
    damaged, draw = KINDS_OF_FILES[kind], np.random.default_rng([2026, seed])
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    pattern = list(damaged.spoil)[draw.integers(len(damaged.spoil))]
    files = sorted(path for path in folder.glob(pattern) if path.is_file())
    file = files[draw.integers(len(files))]
    damaged.spoil[pattern](draw, file)
    try:
        damaged.read(folder)
    except OperantError as error:
        place = file.relative_to(folder).parts[0]
        if place not in str(error) and str(folder) not in str(error):
            return f"{type(error).__name__} names no file: {str(error)[:300]}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return None


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS_OF_FILES)
def test_damaged_files_are_refused_by_name(kind, tmp_path):
    if kind == "study":
        pytest.importorskip("optuna", reason="studies need optuna")
    source = tmp_path / "whole"
    source.mkdir()
    KINDS_OF_FILES[kind].make(source)
    faults, took = {}, collections.Counter[int]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        KINDS_OF_FILES[kind].read(shutil.copytree(source, tmp_path / "good"))  # the files are not bad already
        for seed in range(COUNT // len(KINDS_OF_FILES) // (4 if kind == "run" else 1)):
            begun = time.perf_counter()
            if (fault := spoilt(kind, seed, source, tmp_path / "bad")) is not None:
                faults[seed] = fault
            took[seed] = round(1000 * (time.perf_counter() - begun))
    print(f"{kind}: {len(took)} files, slowest (seed, ms): {took.most_common(2)}")
    assert not faults
