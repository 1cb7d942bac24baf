"""Log lines, the live display, the fan-out to loggers and the table of metrics."""

import io
import math
import re
import sys
import time
import types
from contextlib import nullcontext
from pathlib import Path

import pytest

from operant.execution.runner.bar import Bar
from operant.tracking import METRICS, Console, EpisodeRecord, LoggerGroup, Record
from operant.tracking.console import Ticker, say, wait
from operant.tracking.record import Logger, Origin
from operant.training.loop import Outcome

ROOT = Path(__file__).parents[2]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def record(step, seconds, games=None, mean=None, best=None):
    values = {"episode/count": games, "episode/reward_mean": mean, "episode/reward_best": best}
    return Record(step, seconds, {name: float(x) for name, x in values.items() if x is not None})


def lines(*records, **options):
    stream = io.StringIO()
    console = Console(stream=stream, **options)
    for one in records:
        console.record(one)
    console.close()
    return stream.getvalue().splitlines()


def test_documented_line():
    # 240 steps - 120 before = 120, in 2.634234 - 2.1 = 0.534234 s: 224.6 steps/s
    shown = lines(
        record(120, 2.1, games=5, mean=12.346, best=25.5),
        record(240, 2.634234, games=10, mean=22.7, best=25.5),
    )
    assert shown[0] == "Best mean return updated: - -> 25.5"
    assert shown[2] == (
        "time: 0:00:02, steps: 240, episodes: 10, speed: 225 steps/s, mean return: 22.7, "
        "best mean return: 25.5"
    )
    assert "speed: 57 steps/s, mean return: 12.35," in shown[1]  # 120 / 2.1 = 57.1
    assert len(shown) == 3


def test_best_is_compared_at_its_own_log_point():
    shown = lines(record(1, 1, 1, 10, 10), record(2, 2, 2, 8, 10), record(3, 3, 3, 12.5, 12.5))
    assert [line.split(", ")[-1] for line in shown if line.startswith("time")] == [
        "best mean return: 10.0", "best mean return: 10.0", "best mean return: 12.5",
    ]  # fmt: skip
    assert [line for line in shown if line.startswith("Best")] == [
        "Best mean return updated: - -> 10.0", "Best mean return updated: 10.0 -> 12.5",
    ]  # fmt: skip


def test_before_the_first_episode():
    assert lines(record(100, 2.0)) == [
        "time: 0:00:02, steps: 100, episodes: 0, speed: 50 steps/s, mean return: -, best mean return: -"
    ]


def test_precision():
    assert (
        "mean return: 1.0, best mean return: 2.0"
        in lines(record(1, 1, 1, 1.04, 1.96), display_precision=1)[-1]
    )
    assert (
        "mean return: -0.1235, best mean return: 0.0"
        in lines(record(1, 1, 1, -0.12345, 0), display_precision=4)[-1]
    )


def test_how_a_run_ended():
    ended = Outcome("max_steps", "Done", 1000, 2, 20.5, 21.0, 3.25)
    assert ended.summary == "Done: mean return 20.50 after 1,000 steps (3.25 s, 2 episodes)"
    reached = ended._replace(reason="target", skipped=7, seconds=95.4)
    assert reached.summary == (
        "Done: mean return 20.50 reached after 1,000 steps "
        "(1 min 35 s, 2 episodes, 7 gradient step(s) left out)"
    )
    early = ended._replace(episodes=0, mean_reward=math.nan, seconds=7380.0)
    assert early.summary == "Done: no episode has ended in 1,000 steps (2 h 3 min, 0 episodes)"
    warm = ended._replace(mean_reward=math.nan)
    assert warm.summary == "Done: 1,000 steps, no mean return yet (3.25 s, 2 episodes)"


def test_a_resumed_run_takes_its_speed_from_where_it_began():
    # 1100 - 1000 = 100 steps in 51 - 50 = 1 s
    assert "speed: 100 steps/s" in lines(record(1100, 51.0), start=Origin(1000, 50.0))[0]


def test_a_resumed_run_knows_its_best():
    assert "updated" not in "".join(lines(record(9, 1.0, mean=1, best=7.5), start=Origin(best_reward=7.5)))
    assert (
        lines(record(9, 1.0, mean=8, best=8), start=Origin(best_reward=7.5))[0]
        == "Best mean return updated: 7.5 -> 8.0"
    )
    assert lines(record(9, 1.0, mean=8, best=8))[0] == "Best mean return updated: - -> 8.0"


def test_episodes_count_where_records_do_not():
    stream = io.StringIO()
    console = Console(stream=stream)
    console.episodes(
        [EpisodeRecord(10, 1.0, 3.0, 10, 0, 3.0, 3.0), EpisodeRecord(10, 1.0, 5.0, 10, 1, 4.0, 4.0)]
    )
    console.record(Record(10, 1.0, {}))
    assert "episodes: 2, speed: 10 steps/s, mean return: 4.0" in stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_quiet_says_nothing(stream):
    console = Console(quiet=True, stream=stream)
    console.episodes([EpisodeRecord(10, 1.0, 3.0, 10, 0, 3.0, 3.0)])
    console.record(record(10, 1.0, 1, 1, 1))
    console.message("hello")
    console.close()
    assert stream.getvalue() == ""


@pytest.mark.parametrize("max_steps", [1000, None])
def test_live_display(max_steps, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    console = Console(max_steps=max_steps, target_reward=475, stream=stream)
    console.message("before")
    console.record(Record(0, 0.0, {}))
    console.episodes([EpisodeRecord(250, 2.0, 20.0, 250, 0, 20.126, 21.0)])
    console.message("[in between]")
    console.close()
    console.close()
    console.message("after")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert text.startswith("before\n")
    assert "0 steps  0 episodes  - steps/s  mean -  best -  target 475" in text
    # 250 steps in 2 s
    assert "250 steps  1 episodes  125 steps/s  mean 20.13  best 21.0  target 475" in text
    assert "[in between]\n" in text
    assert text.endswith("after\n")
    assert ("25%" in text) is (max_steps is not None)
    assert "time:" not in text


def test_messages_above_the_live_display_are_as_they_are(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    console = Console(max_steps=1000, stream=stream)
    console.record(Record(0, 0.0, {}))
    command = f"Continue: operant train --resume '{'long name ' * 9}:x:'"
    console.message(command)
    console.close()
    assert f"{command}\n" in stream.getvalue()


def test_in_a_notebook_one_output_is_drawn_over(monkeypatch):
    shown = []

    class Cell:
        def update(self, data, raw):
            shown.append(data["text/plain"])

    class OutStream(io.StringIO):
        __module__ = "ipykernel.iostream"

    def display(data, raw, display_id):
        shown.append(data["text/plain"])
        return Cell()

    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    monkeypatch.setattr(sys, "stdout", OutStream())
    console = Console(max_steps=1000)
    console.record(record(250, 2.0, games=1, mean=20.125, best=21))
    console.record(record(255, 2.1))  # too soon to draw again
    console._drawn = 0.0
    console.record(record(500, 3.0))
    console.message("Done")
    console.close()
    first, second, last = shown
    assert " 25% " in first and "250 steps  1 episodes" in first and "mean 20.12" in first
    assert " 50% " in second and "500 steps" in second and "\x1b" not in first + second
    assert last == "" and sys.stdout.getvalue() == "Done\n"


# The group of loggers


class Memory(Logger):
    def __init__(self):
        self.seen = []

    def episodes(self, episodes):
        self.seen.append(("episodes", episodes))

    def record(self, record):
        self.seen.append(("record", record))

    def message(self, text):
        self.seen.append(("message", text))

    def flush(self):
        self.seen.append(("flush",))

    def close(self):
        self.seen.append(("close",))


class Broken(Memory):
    must_write = True

    def record(self, record):
        raise OSError("disk full")

    def close(self):
        raise OSError("disk full")


def test_all_loggers_get_everything():
    one, two = Memory(), Memory()
    group = LoggerGroup([one, two])
    episodes, scalars = [EpisodeRecord(10, 1.0, 3.0, 10, 0, 3.0, 3.0)], Record(10, 1.0, {})
    group.episodes(episodes)
    group.episodes([])
    group.record(scalars)
    group.message("hello")
    group.flush()
    group.close()
    assert (
        one.seen
        == two.seen
        == [("episodes", episodes), ("record", scalars), ("message", "hello"), ("flush",), ("close",)]
    )


def test_a_failing_logger_is_reported_once_and_stops_no_other():
    broken, other = Broken(), Memory()
    group = LoggerGroup([broken, other])
    with pytest.warns(RuntimeWarning, match="Broken failed, training goes on: OSError: disk full") as caught:
        group.record(Record(1, 1.0, {}))
        group.record(Record(2, 1.0, {}))
        with pytest.raises(OSError, match="Broken could not write everything: disk full"):
            group.close()
    assert len(caught) == 1
    group.message("still")
    assert broken.seen == [("message", "still")]
    assert [kind for kind, *_ in other.seen] == ["record", "record", "close", "message"]


def test_a_failure_is_reported_again_after_a_minute(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    group = LoggerGroup([Broken()])
    with pytest.warns(RuntimeWarning, match="Broken failed") as caught:
        for clock[0] in (0.0, 30.0, 61.0, 62.0):
            group.record(Record(1, 1.0, {}))
    assert len(caught) == 2


def test_what_cannot_be_written_at_the_end_hides_no_other_error():
    def fails():
        with LoggerGroup([Broken()]):
            raise ValueError("first")

    with pytest.warns(RuntimeWarning, match="Broken failed"), pytest.raises(ValueError, match="first"):
        fails()


def test_what_only_shows_need_not_be_written():
    class Terminal(Broken):
        must_write = False

    with pytest.warns(RuntimeWarning, match="Terminal failed, training goes on"), LoggerGroup([Terminal()]):
        pass


def test_an_error_that_is_handled_already_hides_none():
    with pytest.warns(RuntimeWarning), pytest.raises(OSError, match="Broken could not write everything"):
        try:
            raise ValueError("handled")
        except ValueError:
            with LoggerGroup([Broken()]):
                pass


def test_an_interrupt_is_not_swallowed():
    class Interrupted(Memory):
        def message(self, text):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LoggerGroup([Interrupted()]).message("x")


# Metrics


def test_metrics_are_described():
    for name, (meaning, unit) in METRICS.items():
        assert re.fullmatch(r"[a-z]+/[a-z_]+", name)
        assert meaning.endswith(".") and meaning[0].isupper(), name
        assert "|" not in meaning + unit, "would break the table"


def reported(text):
    """Names of metrics that a source file mentions."""
    groups = "|".join({name.split("/")[0] for name in METRICS})
    return set(re.findall(rf"[\"']((?:{groups})/[a-z_]+)[\"']", text))


def test_every_reported_metric_is_documented():
    for folder in ("agents", "execution"):
        for path in (ROOT / "src" / "operant" / folder).rglob("*.py"):
            unknown = reported(path.read_text(encoding="utf-8")) - METRICS.keys()
            assert not unknown, f"{path.name} reports {unknown}"
    assert reported('{"loss/nothing": x}') - METRICS.keys() == {"loss/nothing"}  # control


def test_every_documented_metric_is_reported():
    """By somebody: a name that stands in the table alone promises a number that never comes."""
    package = ROOT / "src" / "operant"
    tables = {package / "tracking" / "metric_table.py", package / "tracking" / "summaries.py"}
    files = set(package.rglob("*.py")) - tables
    found = set().union(*(reported(path.read_text(encoding="utf-8")) for path in files))
    assert METRICS.keys() <= found, METRICS.keys() - found


# Streams that are no files


class WriteAlone:
    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


class Failing(Terminal):
    def isatty(self):
        raise OSError(9, "Bad file descriptor")

    def write(self, text):
        raise RuntimeError("gone")


@pytest.mark.parametrize(
    "make", [WriteAlone, closed, Failing, lambda: None], ids=["write", "closed", "failing", "none"]
)
def test_training_outlives_any_standard_output(make, monkeypatch):
    stream = make()
    monkeypatch.setattr(sys, "stdout", stream)
    gone = make in (closed, Failing)
    group = LoggerGroup([Console()])
    with pytest.warns(RuntimeWarning, match="Console failed, training goes on") if gone else nullcontext():
        group.message("begins")
    group.record(record(240, 2.6, games=10, mean=22.7, best=25.5))  # within a minute: no second warning
    group.close()
    say("ends")
    if make is WriteAlone:
        assert stream.text.startswith("begins\n") and stream.text.endswith("ends\n")
        assert "steps: 240" in stream.text


@pytest.mark.parametrize(
    "make", [WriteAlone, closed, Failing, lambda: None], ids=["write", "closed", "failing", "none"]
)
def test_a_bar_outlives_any_standard_error(make, monkeypatch):
    stream = make()
    monkeypatch.setattr(sys, "stderr", stream)
    bar = Bar("episodes", 4)
    bar.show(2)
    bar.close()
    if make is WriteAlone:
        assert stream.text == "episodes 2/4  0 s\n"


def test_what_goes_on_is_one_line_with_seconds_on_a_terminal_until_anything_is_printed(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    wait("Compiling")
    wait("Building")
    while terminal.getvalue().count("Building ... 0 s\r") < 2:  # it goes on by itself
        time.sleep(0.01)
    Console(stream=terminal).message("Training")
    assert Ticker._shown is None
    first, _, rest = terminal.getvalue().partition("\x1b[K")
    assert first.startswith("Compiling ... 0 s\r") and rest.startswith("Building ... 0 s\r")
    assert rest.endswith("\x1b[KTraining\n")


def test_what_goes_on_is_a_line_where_no_terminal_is(monkeypatch, capsys):
    wait("Building")
    wait("The first steps", line=False)  # the next line comes soon
    assert capsys.readouterr().out == "Building ...\n"
    monkeypatch.setattr(sys, "stdout", None)
    wait("Building")
