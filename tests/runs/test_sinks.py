"""Reports reach the CSV file, TensorBoard and the console as they should."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rookery.errors import BadInput
from rookery.runs import files
from rookery.runs.callbacks import (
    Callback,
    ConsoleSink,
    CsvSink,
    close_all,
)
from rookery.runs.files import read_rows
from rookery.runs.tensorboard import TensorBoardSink, tag_of


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_each_row_is_on_disk_at_once(tmp_path: Path):
    path = tmp_path / "progress.csv"
    sink = CsvSink(path)
    sink.on_report({"env_steps": 10, "updates": 1, "loss": 0.25})
    assert lines(path) == ["env_steps,updates,loss", "10,1,0.25"]
    sink.on_report({"env_steps": 20, "loss": float("nan")})
    assert lines(path)[2] == "20,,nan"
    sink.close()


def test_env_steps_is_one_column_also_when_the_report_has_it(tmp_path: Path):
    sink = CsvSink(tmp_path / "progress.csv")
    sink.on_report({"loss": 1.0, "env_steps": 10})
    sink.close()
    assert lines(sink.path) == ["env_steps,loss", "10,1"]


def test_a_later_column_widens_the_rows_so_far(tmp_path: Path):
    sink = CsvSink(tmp_path / "progress.csv")
    sink.on_report({"env_steps": 10, "loss": 1.5})
    sink.on_report({"env_steps": 20, "entropy": 0.5, "loss": 2.5})
    sink.on_report({"env_steps": 30, "loss": 3.5})
    sink.close()
    assert lines(sink.path) == ["env_steps,loss,entropy", "10,1.5,", "20,2.5,0.5", "30,3.5,"]


def test_a_crash_while_widening_keeps_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sink = CsvSink(tmp_path / "progress.csv")
    sink.on_report({"env_steps": 10, "loss": 1.5})

    def full_disk(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(files.os, "replace", full_disk)
    with pytest.raises(BadInput, match=r"progress.csv: cannot be written: No space left"):
        sink.on_report({"env_steps": 20, "entropy": 0.5})
    assert lines(sink.path) == ["env_steps,loss", "10,1.5"]
    sink.on_report({"env_steps": 30, "loss": 2.5})
    assert lines(sink.path) == ["env_steps,loss", "10,1.5", "30,2.5"]


def test_a_resumed_run_drops_the_rows_it_makes_again(tmp_path: Path):
    path = tmp_path / "progress.csv"
    path.write_text("env_steps,loss\n10,1\n20,2\n30,3\n40,")
    sink = CsvSink(path, resume_step=20)
    assert lines(path) == ["env_steps,loss", "10,1", "20,2"]
    sink.on_report({"env_steps": 30, "loss": 9.0})
    sink.close()
    assert [row["loss"] for row in read_rows(path)] == [1, 2, 9]


def test_without_a_step_to_resume_from_every_whole_row_stays(tmp_path: Path):
    path = tmp_path / "progress.csv"
    path.write_text("env_steps,loss\n10,1\n20,2\n3")
    CsvSink(path).close()
    assert lines(path) == ["env_steps,loss", "10,1", "20,2"]


def test_a_csv_that_cannot_be_written_is_named(tmp_path: Path):
    with pytest.raises(BadInput, match=r"nowhere/progress.csv: cannot be written"):
        CsvSink(tmp_path / "nowhere" / "progress.csv")


@pytest.mark.parametrize(
    ("column", "tag"),
    [
        ("episode_return_mean", "episode/return_mean"),
        ("episodes", "episode/count"),
        ("eval_return_mean", "evaluation/return_mean"),
        ("env_s", "time/env_s"),
        ("env_steps_per_second", "throughput/env_steps_per_second"),
        ("entropy", "policy/entropy"),
        ("gradient_norm/head.linear", "gradient/gradient_norm/head.linear"),
        ("action_share/0", "policy/action_share/0"),
        ("explained_variance", "value/explained_variance"),
        ("loss", "learner/loss"),
        ("cpu_percent", "machine/cpu_percent"),
        ("memory_mb", "machine/memory_mb"),
        ("epsilon", "actor/epsilon"),
        ("mine/own", "mine/own"),
    ],
)
def test_tags(column: str, tag: str):
    assert tag_of(column) == tag


def events_in(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def test_tensorboard_reads_back_what_was_written(tmp_path: Path):
    sink = TensorBoardSink(tmp_path)
    sink.on_report({"env_steps": 10, "loss": 0.5, "episode_return_mean": 20.0})
    sink.on_report({"env_steps": 20, "loss": 0.25})
    events = events_in(tmp_path)  # before close: a crash loses nothing
    sink.close()
    assert events.Tags()["scalars"] == [
        "progress/env_steps",
        "learner/loss",
        "episode/return_mean",
    ]
    assert [(e.step, e.value) for e in events.Scalars("learner/loss")] == [(10, 0.5), (20, 0.25)]


def test_tensorboard_drops_the_steps_a_resumed_run_makes_again(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = TensorBoardSink(tmp_path)
    for step in (10, 20, 30):
        first.on_report({"env_steps": step, "loss": float(step)})
    first.close()
    second = TensorBoardSink(tmp_path, resume_step=20)
    second.on_report({"env_steps": 30, "loss": -1.0})
    second.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("learner/loss")] == [
        (10, 10.0),
        (20, 20.0),
        (30, -1.0),
    ]


def test_an_event_file_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"file.*cannot be written"):
        TensorBoardSink(tmp_path / "file")


class Clock:
    """Seconds that pass only when told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


REPORT = {"episode_return_mean": 123.44, "env_steps_per_second": 51_200.2, "loss": 0.1234}


def test_a_plain_line(capsys: pytest.CaptureFixture[str]):
    sink = ConsoleSink(200_000)
    sink.on_report({"env_steps": 40_960, **REPORT})
    sink.close()
    assert capsys.readouterr().out == (
        "step 40,960/200,000  20%  return 123.4  51,200 steps/s  loss 0.123\n"
    )


def test_plain_lines_come_at_most_every_two_seconds_and_the_last_always():
    stream, clock = io.StringIO(), Clock()
    sink = ConsoleSink(100, stream, clock=clock)
    for step, clock.now in ((10, 0.5), (20, 1.0), (30, 2.4), (40, 2.6), (50, 2.7)):
        sink.on_report({"env_steps": step, "env_steps_per_second": 1.0})
    sink.close()
    sink.close()
    shown = [line.split("/")[0] for line in stream.getvalue().splitlines()]
    assert shown == ["step 10", "step 40", "step 50"]


def test_a_line_without_return_and_loss():
    stream = io.StringIO()
    report = {"env_steps": 300, "episode_return_mean": float("nan"), "env_steps_per_second": 100.0}
    ConsoleSink(1_000, stream).on_report(report)
    assert stream.getvalue() == "step 300/1,000  30%  100 steps/s\n"


def test_a_diverged_loss_is_shown():
    stream = io.StringIO()
    ConsoleSink(10, stream).on_report(
        {"env_steps": 10, "loss": float("nan"), "env_steps_per_second": 0.0}
    )
    assert "loss nan" in stream.getvalue()


class Closed(io.StringIO):
    """A pipe whose reader has gone."""

    tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise BrokenPipeError


def test_a_closed_pipe_does_not_stop_training():
    stream = Closed()
    sink = ConsoleSink(100, stream, interval_s=0)
    sink.on_report({"env_steps": 1, "env_steps_per_second": 1.0})
    sink.on_report({"env_steps": 2, "env_steps_per_second": 1.0})
    sink.close()
    assert stream.tries == 1


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    sink = ConsoleSink(200_000, stream)
    sink.on_report({"env_steps": 100_000, **REPORT, "env_steps_per_second": 1_000.0})
    sink.close()
    text = stream.getvalue()
    for part in ("━", "50%", "100,000/200,000", "1,000 steps/s", "return 123.4", "ETA 0:01:40"):
        assert part in text


def test_slow_imports_wait_until_they_are_needed(tmp_path: Path):
    code = (
        "import io, sys; from rookery.runs.callbacks import ConsoleSink;"
        "from rookery.runs.tensorboard import TensorBoardSink;"
        "ConsoleSink(1, io.StringIO());"
        "print({'torch', 'tensorboard', 'rich', 'numpy'} & set(sys.modules));"
        "TensorBoardSink(sys.argv[1]); print('tensorflow' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["set()", "False False"]


class Recorder(Callback):
    """Remembers whether it was closed; `fails` makes closing fail."""

    def __init__(self, fails: bool):
        self.fails, self.closed = fails, False

    def close(self) -> None:
        self.closed = True
        if self.fails:
            raise BadInput("disk full")


def test_every_callback_is_closed_even_if_one_fails():
    callbacks = [Recorder(fails=True), Recorder(fails=False), Recorder(fails=True)]
    with pytest.raises(BadInput, match="disk full"):
        close_all(callbacks)
    assert all(callback.closed for callback in callbacks)
