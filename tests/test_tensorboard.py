"""Event files, read back by TensorBoard itself."""

import pytest

from operant.tracking import Episode, Record, TensorBoard

accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="the viewer is an extra"
)


def scalars(directory):
    events = accumulator.EventAccumulator(str(directory)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_scalars_at_their_steps(tmp_path):
    sink = TensorBoard(tmp_path / "events")
    sink.record(Record(240, 1.5, {"episode/reward_mean": 22.5, "loss/policy": -0.25}))
    sink.record(Record(1_000_000, 3.0, {"episode/reward_mean": float("inf")}))
    sink.episodes([Episode(240, 1.0, 1.0, 10, 0, 1.0, 1.0)])
    sink.message("not for the file")
    sink.close()
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
