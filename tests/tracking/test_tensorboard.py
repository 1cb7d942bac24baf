"""Event files, read back by TensorBoard itself."""

import os
import resource

import pytest

from operant.cli import main
from operant.tracking import EpisodeRecord, LoggerGroup, Record, TensorBoard

accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="the viewer is an extra"
)


def scalars(directory):
    events = accumulator.EventAccumulator(str(directory)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_scalars_at_their_steps(tmp_path):
    logger = TensorBoard(tmp_path / "events")
    logger.record(Record(240, 1.5, {"episode/reward_mean": 22.5, "loss/policy": -0.25}))
    logger.record(Record(1_000_000, 3.0, {"episode/reward_mean": float("inf")}))
    logger.episodes([EpisodeRecord(240, 1.0, 1.0, 10, 0, 1.0, 1.0)])
    logger.message("not for the file")
    logger.close()
    assert scalars(tmp_path / "events") == {
        "episode/reward_mean": [(240, 22.5), (1_000_000, float("inf"))],
        "loss/policy": [(240, -0.25)],
    }


def test_resuming_hides_what_is_written_again(tmp_path):
    first = TensorBoard(tmp_path)
    for step in (10, 20, 30):
        first.record(Record(step, 0.1, {"loss/value": float(step)}))
    first.close()
    second = TensorBoard(tmp_path, resume_at_step=20)
    second.record(Record(30, 0.2, {"loss/value": 31.0}))
    second.close()
    assert scalars(tmp_path) == {"loss/value": [(10, 10.0), (20, 20.0), (30, 31.0)]}


def test_what_was_written_is_forced_to_the_disk_before_a_checkpoint_counts_on_it(tmp_path, monkeypatch):
    logger, forced = TensorBoard(tmp_path), []
    monkeypatch.setattr("os.fsync", lambda descriptor: forced.append(os.fstat(descriptor).st_ino))
    logger.record(Record(10, 0.1, {"loss/value": 1.0}))
    assert not forced  # not with every record
    logger.flush()
    [file] = tmp_path.iterdir()
    assert forced == [file.stat().st_ino]


@pytest.mark.parametrize("room", [0, 5, 300])
def test_training_outlives_a_full_disk_and_what_it_did_not_take_follows(tmp_path, room):
    """A file may not grow for a while, as on a full disk: nobody waits, and the file is whole afterwards."""
    logger = TensorBoard(tmp_path)
    [file] = tmp_path.iterdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    group = LoggerGroup([logger])
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + room, limits[1]))
    try:
        with pytest.warns(RuntimeWarning, match="TensorBoard failed, training goes on: OSError"):
            for step in range(100):
                group.record(Record(step, 0.1, {"loss/value": float(step), "loss/policy": 1.0}))
        group.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    group.record(Record(100, 0.1, {"loss/value": 100.0}))
    group.close()
    assert scalars(tmp_path)["loss/value"] == [(step, float(step)) for step in range(101)]


def test_a_run_from_a_shell_outlives_a_full_disk(tmp_path, monkeypatch):
    def full(self, record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TensorBoard, "record", full)
    command = [
        "run",
        "--environment",
        "gym",
        "--level",
        "CartPole-v1",
        "--agent",
        "random",
        "--timesteps",
        "64",
    ]
    with pytest.warns(RuntimeWarning, match="TensorBoard failed, training goes on: OSError"):
        assert main([*command, "--summaries", str(tmp_path)]) == 0
