"""Histories survive crashes and resumes, stay in few files, and read back as they were written."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.errors import SpecError
from operant.tracking import EpisodeRecord, History, Record, read_history
from operant.tracking import history as module

NAMES = ["mean_reward", "best_reward", "episode_reward", "step", "time", "episode_length", "actor"]


def episode(i):
    """Episode number i of a made-up run: ten steps each, a tenth of a second each."""
    return EpisodeRecord(10 * (i + 1), 0.1 * (i + 1), float(i % 7), 10, i % 4, float(i % 5), 4.0)


def assert_holds(path, count):
    rows = read_history(path)
    expected = [episode(i) for i in range(count)]
    assert rows["step"].tolist() == [e.step for e in expected]
    assert rows["time"].tolist() == [e.time for e in expected]
    assert rows["episode_reward"].tolist() == [e.episode_reward for e in expected]
    assert rows["mean_reward"].tolist() == [e.mean_reward for e in expected]
    assert rows["best_reward"].tolist() == [e.best_reward for e in expected]
    assert rows["episode_length"].tolist() == [e.length for e in expected]
    assert rows["actor"].tolist() == [e.actor for e in expected]


def test_documented_columns(tmp_path):
    history = History(tmp_path / "h.parquet")
    history.episodes([episode(0), episode(1)])
    history.close()
    rows = read_history(tmp_path / "h.parquet")
    assert list(rows) == NAMES
    assert {name: str(column.dtype) for name, column in rows.items()} == {
        **dict.fromkeys(NAMES, "float64"), "step": "int64", "episode_length": "int64", "actor": "int64",
    }  # fmt: skip
    assert_holds(tmp_path / "h.parquet", 2)
    table = pq.read_table(tmp_path / "h.parquet")  # as any other program would
    assert table.column_names == NAMES
    assert table.column("step").to_pylist() == [10, 20]


@settings(max_examples=15, deadline=None)
@given(
    batches=st.lists(st.integers(0, 9), max_size=12),
    part_rows=st.integers(1, 12),
    flush_rows=st.integers(1, 12),
    restart=st.integers(0, 12),
)
def test_any_batches_in_any_parts_with_a_restart(tmp_path_factory, batches, part_rows, flush_rows, restart):
    path = tmp_path_factory.mktemp("run") / "h.parquet"
    sizes = {"part_rows": part_rows, "flush_rows": flush_rows}
    history = History(path, **sizes)
    count = 0
    for i, batch in enumerate(batches):
        if i == restart:
            history.close()
            history = History(path, **sizes)
        history.episodes([episode(count + j) for j in range(batch)])
        count += batch
    history.close()
    assert_holds(path, count)
    assert len(list(path.iterdir())) == -(-count // part_rows)  # every part but the last is full


@settings(max_examples=15, deadline=None)
@given(
    first=st.integers(0, 30),
    resumed=st.integers(0, 31),
    part_rows=st.integers(1, 12),
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path_factory, first, resumed, part_rows):
    """The run was at episode `first` when it died.

    Its last checkpoint is of the step of episode `resumed`.
    """
    resumed = min(first, resumed)
    path = tmp_path_factory.mktemp("run") / "h.parquet"
    history = History(path, part_rows=part_rows)
    history.episodes([episode(i) for i in range(first)])
    history.close()
    history = History(path, part_rows=part_rows, resume_at_step=10 * resumed)
    assert_holds(path, resumed)
    history.episodes([episode(i) for i in range(resumed, 35)])
    history.close()
    assert_holds(path, 35)


def test_rows_at_the_resumed_step_stay(tmp_path):
    """Actors that step together end episodes at one step."""
    path = tmp_path / "h.parquet"
    history = History(path)
    history.episodes([episode(0), episode(0)._replace(actor=1), episode(1)])
    history.close()
    History(path, resume_at_step=10).close()
    assert read_history(path)["actor"].tolist() == [0, 1]


def test_flushes_by_count_and_by_clock(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    path = tmp_path / "h.parquet"
    history = History(path, flush_rows=3, flush_seconds=5.0)
    history.episodes([episode(0), episode(1)])
    assert list(path.iterdir()) == []
    history.episodes([episode(2)])
    assert_holds(path, 3)
    history.episodes([episode(3)])
    now[0] += 4.0
    history.record(Record(50, 1.0, {}))
    assert_holds(path, 3)
    now[0] += 1.0
    history.record(Record(60, 2.0, {}))  # no episode ends, but training goes on
    assert_holds(path, 4)


def test_a_failed_write_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "h.parquet"
    history = History(path, flush_rows=1)
    history.episodes([episode(0)])
    write = module._write

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(module, "_write", full)
    with pytest.raises(OSError, match="disk full"):
        history.episodes([episode(1)])
    monkeypatch.setattr(module, "_write", write)
    history.episodes([episode(2)])
    assert_holds(path, 3)


def test_a_folder_that_was_removed_is_made_anew(tmp_path):
    path = tmp_path / "run" / "h.parquet"
    history = History(path)
    history.episodes([episode(0), episode(1)])
    history.flush()
    shutil.rmtree(path.parent)
    history.episodes([episode(2)])
    history.close()
    assert_holds(path, 3)


def test_killed_while_writing(tmp_path):
    """What was flushed is there.

    The temporary file of a killed write is not read, and goes at the next start.
    """
    path = tmp_path / "h.parquet"
    program = f"""
import os, sys
sys.path.insert(0, {str(tmp_path.parent)!r})
from operant.tracking import EpisodeRecord, History
h = History({str(path)!r}, flush_rows=1)
h.episodes([EpisodeRecord(10, 0.1, 0.0, 10, 0, 0.0, 4.0), EpisodeRecord(20, 0.2, 1.0, 10, 1, 1.0, 4.0)])
os.replace = lambda a, b: os._exit(9)
h.episodes([EpisodeRecord(30, 0.3, 2.0, 10, 2, 2.0, 4.0)])
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert len(list(path.iterdir())) == 2
    assert_holds(path, 2)
    assert pq.read_table(path).num_rows == 2
    history = History(path)
    assert len(list(path.iterdir())) == 1
    history.episodes([episode(2)])
    history.close()
    assert_holds(path, 3)


def test_rows_are_forced_to_the_disk_before_a_checkpoint_counts_on_them(tmp_path, monkeypatch):
    """First the file, then its name."""
    path, done = tmp_path / "h.parquet", []
    fsync, replace = os.fsync, os.replace

    def force(descriptor):
        done.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", force)
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append("named"), replace(old, new)))
    history = History(path)
    history.episodes([episode(0)])
    history.flush()
    [part] = path.iterdir()
    assert done == [part.stat().st_ino, "named", path.stat().st_ino]


def test_memory_and_files_stay_few(tmp_path):
    path = tmp_path / "h.parquet"
    history = History(path, flush_rows=20, part_rows=100)
    for i in range(1000):
        history.episodes([episode(i)])
        assert len(history._waiting) < 20
        assert history._written is None or history._written.num_rows < 100
    assert len(list(path.iterdir())) == 10
    assert_holds(path, 1000)


def test_rows_are_in_the_order_of_their_steps(tmp_path):
    """Then of time: a part that another machine wrote may be of an earlier time."""
    history = History(tmp_path / "h.parquet")
    history.episodes(
        [
            episode(0)._replace(step=step, time=time)
            for step, time in ((10, 5.0), (30, 1.0), (20, 3.0), (20, 2.0))
        ]
    )
    history.close()
    rows = read_history(tmp_path / "h.parquet")
    assert (rows["step"].tolist(), rows["time"].tolist()) == ([10, 20, 20, 30], [5.0, 2.0, 3.0, 1.0])


def test_single_files_and_foreign_parts_are_read(tmp_path):
    table = pa.table(
        {
            "mean_reward": [float("-inf"), 1.0],
            "best_reward": [float("-inf"), 1.0],
            "episode_reward": [3.0, 2.0],
            "step": [20, 10],
            "time": [0.2, 0.1],
        }
    )
    pq.write_table(table, tmp_path / "old.parquet")
    rows = read_history(tmp_path / "old.parquet")
    assert rows["step"].tolist() == [10, 20]
    assert rows["episode_reward"].tolist() == [2.0, 3.0]
    assert rows["episode_length"].tolist() == rows["actor"].tolist() == [-1, -1]

    folder = tmp_path / "h.parquet"
    folder.mkdir()
    pq.write_table(table, folder / "0a1b2c.parquet")
    history = History(folder)
    history.episodes([episode(2)])
    history.close()
    assert read_history(folder)["step"].tolist() == [10, 20, 30]

    with pytest.raises(SpecError, match="is a single file, which cannot be continued"):
        History(tmp_path / "old.parquet")


def test_errors_say_what_is_wrong(tmp_path):
    with pytest.raises(SpecError, match=r"history must be a path that ends with \.parquet"):
        History(tmp_path / "h.csv")
    with pytest.raises(SpecError, match="does not exist"):
        read_history(tmp_path / "none.parquet")
    (tmp_path / "run" / "history.parquet").mkdir(parents=True)
    for folder in (tmp_path / "run", tmp_path):  # of a run, of runs
        with pytest.raises(
            SpecError, match=r"is not a history: .* Give the history of a run: RUN/history\.parquet"
        ):
            read_history(folder)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 is not enough")
    with pytest.raises(SpecError, match=r"bad\.parquet cannot be read"):
        read_history(tmp_path / "bad.parquet")
    columns = ["mean_reward", "best_reward", "episode_reward", "step", "time"]
    pq.write_table(pa.table({name: ["text"] for name in columns}), tmp_path / "text.parquet")
    with pytest.raises(SpecError, match=r"text\.parquet cannot be read"):
        read_history(tmp_path / "text.parquet")
    twice = pa.table([[1.0]] * 6, names=[*columns, "step"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(SpecError, match=r"twice\.parquet is not a history. .* got .*step, step, time"):
        read_history(tmp_path / "twice.parquet")
    pq.write_table(pa.table([[1.0, None]] * 5, names=columns), tmp_path / "null.parquet")
    with pytest.raises(
        SpecError, match=r"null\.parquet cannot be read: its column 'mean_reward' has rows with"
    ):
        read_history(tmp_path / "null.parquet")
    folder = tmp_path / "h.parquet"
    folder.mkdir()
    pq.write_table(pa.table({"step": [1], "loss": [0.5]}), folder / "x.parquet")
    expected = "Expected the following columns: mean_reward, best_reward, .* got loss, step"
    with pytest.raises(SpecError, match=expected):
        read_history(folder)
    with pytest.raises(SpecError, match=expected):
        History(folder)


def test_an_empty_history_has_no_rows(tmp_path):
    History(tmp_path / "h.parquet").close()
    assert {
        name: len(column) for name, column in read_history(tmp_path / "h.parquet").items()
    } == dict.fromkeys(NAMES, 0)
    assert np.array_equal(read_history(tmp_path / "h.parquet")["step"], np.zeros(0, np.int64))


WRITTEN = """
import sys
from operant.tracking import EpisodeRecord, History
history = History(sys.argv[1])
history.episodes([EpisodeRecord(4, 0.1, 2.0, 4, 0, 2.0, 2.0, {"won": True})])
history.close()
assert "pandas" not in sys.modules
"""


def test_writing_a_history_loads_no_pandas(tmp_path):
    """It takes longer than to write the history of a short run."""
    path = tmp_path / "h.parquet"
    subprocess.run([sys.executable, "-c", WRITTEN, str(path)], check=True, timeout=120)
    [row] = pq.read_table(path).to_pylist()
    assert (row["step"], row["episode_reward"], row["info/won"]) == (4, 2.0, 1.0)
