"""Run the variants of benchmarks one after the other, and save the results after each."""

from __future__ import annotations

import datetime
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from rookery import __version__
from rookery.bench.metrics import kind_of_interval, measure, summarize
from rookery.bench.spec import DURATION, Benchmark
from rookery.bench.tables import csv_text, markdown_text
from rookery.bench.variants import (
    Value,
    command_of,
    environment_of,
    is_training,
    seed_of,
    variant_label,
    with_profile,
)
from rookery.errors import BadInput, require
from rookery.machine import host_and_cores, versions
from rookery.processes import ProcessTree, termination_as_interrupt
from rookery.runs.files import write_json, write_text, writing
from rookery.runs.run import file_safe

RESULTS = "benchmark_results"
MAX_OUTPUT_BYTES = 64 * 2**20
MAX_COMMAND_WAIT_S = 1e6
"""Longest timeout that the operating system's poll() takes."""
SPEED_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT", "CUDA_VISIBLE_DEVICES")
"""Inherited variables that affect the speed of a command, and so are saved with its results."""


@dataclass
class BenchmarkResults:
    """Results so far: one row per variant, and `status`, which is running, finished, stopped (by
    --stop-on-error) or interrupted."""

    benchmarks: Sequence[Benchmark]
    log_dir: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    status: str = "running"
    baseline: dict[str, Any] | None = None

    @property
    def failed(self) -> int:
        """Number of variants that failed."""
        return sum(row["result"] != "ok" for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of benchmark_results.json."""
        found = {"status": self.status, "log_dir": str(self.log_dir), "rows": self.rows}
        return found if self.baseline is None else {**found, "baseline": self.baseline}

    def save(self) -> None:
        """Write the result files, each atomically."""
        write_json(self.log_dir / f"{RESULTS}.json", self.to_dict())
        write_text(self.log_dir / f"{RESULTS}.csv", csv_text(self.rows))
        write_text(self.log_dir / f"{RESULTS}.md", markdown_text(self.benchmarks, self.rows))


class ProgressBar:
    """Shows which variant runs and how each one ended."""

    def __init__(self, total: int, stream: TextIO | None = None):
        self._total, self._done = total, 0
        self._stream: TextIO = sys.stderr if stream is None else stream
        self._bar: Any = None
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            # No refresh thread: forking in a process with threads can deadlock.
            self._bar = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}", markup=False),
                console=Console(file=self._stream),
                auto_refresh=False,
            )
            self._task = self._bar.add_task("", total=total)
            self._bar.start()

    def begin(self, label: str) -> None:
        if self._bar:
            self._bar.update(self._task, description=label, refresh=True)

    def end(self, label: str, outcome: str, failed: bool) -> None:
        """Show that a variant has ended; above a bar only failures are printed."""
        self._done += 1
        if failed or not self._bar:
            self.print_line(f"{self._done}/{self._total} {label}: {outcome}")
        if self._bar:
            self._bar.update(self._task, completed=self._done, refresh=True)

    def print_line(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs variants with these settings."""

    log_dir: Path
    timeout: float | None = None
    repeat: int = 1
    stop_on_error: bool = False
    profile: bool = False

    def run(self, benchmarks: Sequence[Benchmark]) -> BenchmarkResults:
        """Run every variant; after Ctrl-C the results have those that were finished."""
        variants = [(each, values) for each in benchmarks for values in each.variants]
        results = BenchmarkResults(benchmarks, self.log_dir)
        results.save()
        shown = ProgressBar(len(variants))
        try:
            with termination_as_interrupt():
                for number, (benchmark, values) in enumerate(variants, 1):
                    name = variant_label(benchmark.name, values)
                    shown.begin(name)
                    row = self._run_variant(number, benchmark, values)
                    results.rows.append(row)
                    results.save()
                    if row["profile"] is False:
                        why = "the command does not run 'rookery train'"
                        shown.print_line(f"{name}: no profile, {why}")
                    if row["result"] == "ok":
                        shown.end(name, f"ok in {row[DURATION]:.2f} s", False)
                        continue
                    shown.end(name, f"failed: {row['reason']}", True)
                    if self.stop_on_error:
                        results.status = "stopped"
                        break
                else:
                    results.status = "finished"
        except KeyboardInterrupt:
            results.status = "interrupted"
        finally:
            shown.close()
        results.save()
        return results

    def _run_variant(
        self, number: int, benchmark: Benchmark, values: dict[str, Value]
    ) -> dict[str, Any]:
        """Run a variant, the `number`th of all, and return its row of the results."""
        settings = benchmark.settings
        env: dict[str, str] = {}
        command: list[str] | None = None
        profile = None
        if settings is not None:
            env = environment_of(settings.env, values)
            command = command_of(benchmark.words, env, values)
            if self.profile:
                profile = is_training(command)
                command = with_profile(command) if profile else command
        inherited = {name: os.environ[name] for name in SPEED_VARIABLES if name in os.environ}
        row: dict[str, Any] = {
            "benchmark": benchmark.name,
            "parameters": values,
            "command": command,
            "environment": {**inherited, **env},
            "seed": seed_of(command or [], values),
            "profile": profile,
            "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            **git_state(),
            **host_and_cores(),
            "versions": versions() | {"rookery": __version__},
            "repeats_asked": self.repeat,
        }
        repeats: list[dict[str, Any]] = []
        reason = benchmark.problem
        stem = f"{number:03d}_{file_safe(benchmark.name)[:80]}"
        while not reason and len(repeats) < self.repeat:
            part = f"_repeat{len(repeats) + 1}" if self.repeat > 1 else ""
            repeats.append(self._run_once(benchmark, values, command or [], env, stem + part))
            reason = repeats[-1]["reason"]
            if reason and self.repeat > 1:
                reason = f"repeat {len(repeats)} of {self.repeat}: {reason}"
        taken = [repeat[DURATION] for repeat in repeats if repeat[DURATION] is not None]
        names = [] if reason else list(repeats[0]["metrics"])
        found = {name: summarize([repeat["metrics"][name] for repeat in repeats]) for name in names}
        return row | {
            "interval": kind_of_interval(self.repeat),
            "result": "failed" if reason else "ok",
            "reason": reason or None,
            DURATION: summarize(taken).median if taken else None,
            "metrics": {name: value.median for name, value in found.items()},
            "intervals": {name: [value.low, value.high] for name, value in found.items()},
            "repeats": [repeat | {"reason": repeat["reason"] or None} for repeat in repeats],
        }

    def _run_once(
        self,
        benchmark: Benchmark,
        values: dict[str, Value],
        command: list[str],
        env: dict[str, str],
        stem: str,
    ) -> dict[str, Any]:
        """Run the command; return result, reason, duration, metrics and the files of its output."""
        assert benchmark.settings is not None
        own = benchmark.settings.timeout
        timeout = self.timeout if own is None else own
        stdout, stderr = (self.log_dir / f"{stem}.{end}.log" for end in ("stdout", "stderr"))
        found: dict[str, Any] = {DURATION: None, "metrics": {}}
        reason = ""
        try:
            ended = run_command(command, env, stdout, stderr, timeout)
            found[DURATION] = ended.duration
            require(ended.status is not None, f"timed out after {timeout} s")
            if ended.status:
                raise BadInput(status_text(ended.status) + last_line(stderr))
            printed = read_output(stdout), read_output(stderr)
            found["metrics"] = measure(benchmark, *printed, ended.duration, values)
        except BadInput as error:
            reason = str(error)
        files = {"stdout": stdout.name, "stderr": stderr.name}
        return {"result": "failed" if reason else "ok", "reason": reason, **found, **files}


class CommandEnd(NamedTuple):
    """End of a command: its exit status, None if it timed out, and the seconds it took."""

    status: int | None
    duration: float


def run_command(
    command: Sequence[str],
    env: Mapping[str, str],
    stdout: Path,
    stderr: Path,
    timeout_s: float | None,
) -> CommandEnd:
    """Run a command without a shell, its output in files; BadInput if it cannot be started.

    When this returns or raises, on Ctrl-C too, all processes of the command have ended.
    """
    with ExitStack() as files:
        with writing(stdout):
            out, err = (files.enter_context(open(path, "wb")) for path in (stdout, stderr))
        begin = time.perf_counter()
        try:
            tree = ProcessTree(
                command, stdout=out, stderr=err, env={**os.environ, **env}, adopt_orphans=True
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadInput(f"{command[0]} cannot be started: {reason}") from None
        try:
            status = tree.wait(None if timeout_s is None else min(timeout_s, MAX_COMMAND_WAIT_S))
            duration = time.perf_counter() - begin
        finally:
            tree.end()
    return CommandEnd(status, duration)


def status_text(status: int) -> str:
    """Describe an exit status other than 0."""
    if status > 0:
        return f"exit status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


def last_line(path: Path) -> str:
    """Return ": " and the last line of a log, to append to an exit status."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").split("\n")
    lines = [" ".join(line.split()) for line in lines if line.strip()]
    return f": {lines[-1][:300]}" if lines else ""


def read_output(path: Path) -> str:
    """Return a command's output; BadInput if it is too large to search."""
    size = path.stat().st_size
    require(
        size <= MAX_OUTPUT_BYTES, f"{path.name} has {size:,} bytes, too many to search for metrics"
    )
    return path.read_text(encoding="utf-8", errors="replace")


def git_state() -> dict[str, Any]:
    """Return the current folder's commit and whether files differ; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # do not lock a repository in use
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=env)
    except (OSError, subprocess.TimeoutExpired):
        return {"git_commit": None, "git_dirty": None}
    text = done.stdout.strip()
    commit = text.removesuffix("-dirty") or None
    return {"git_commit": commit, "git_dirty": text.endswith("-dirty") if commit else None}


def make_log_dir(path: str | None) -> Path:
    """Create and return the folder `path`, or a new one in bench_logs/ named by the time."""
    if path is not None:
        folder = Path(path)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    names = itertools.chain([stamp], (f"{stamp}_{number}" for number in itertools.count(2)))
    while True:
        folder = Path("bench_logs") / next(names)
        with writing(folder), suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
