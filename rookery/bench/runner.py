"""Run the variants of benchmarks one after the other, and save the results after each."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rookery import __version__
from rookery.bench.command import run_command
from rookery.bench.intervals import kind_of_interval, summarize, summarize_metrics
from rookery.bench.metrics import measure
from rookery.bench.progress import ProgressBar
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
from rookery.processes import termination_as_interrupt
from rookery.runs.files import write_json, write_text, writing
from rookery.runs.run import file_safe

RESULTS = "benchmark_results"
MAX_OUTPUT_BYTES = 64 * 2**20
SPEED_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT", "CUDA_VISIBLE_DEVICES")
"""Inherited variables that affect the speed of a command, and so are saved with its results."""


class Variant(NamedTuple):
    """One command to run; `number` counts from 1 over all benchmarks."""

    number: int
    benchmark: Benchmark
    values: dict[str, Value]


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


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs variants with these settings."""

    log_dir: Path
    timeout: float | None = None
    repeat: int = 1
    stop_on_error: bool = False
    profile: bool = False

    def run(
        self, benchmarks: Sequence[Benchmark], progress: ProgressBar | None = None
    ) -> BenchmarkResults:
        """Run every variant; after Ctrl-C the results have those that were finished."""
        variants = list_variants(benchmarks)
        results = BenchmarkResults(benchmarks, self.log_dir)
        results.save()
        shown = ProgressBar(len(variants)) if progress is None else progress
        try:
            with termination_as_interrupt():
                results.status = self._run_all(variants, results, shown)
        except KeyboardInterrupt:
            results.status = "interrupted"
        finally:
            shown.close()
        results.save()
        return results

    def _run_all(
        self, variants: list[Variant], results: BenchmarkResults, shown: ProgressBar
    ) -> str:
        for variant in variants:
            name = variant_label(variant.benchmark.name, variant.values)
            shown.begin(name)
            row = self.run_variant(variant)
            results.rows.append(row)
            results.save()
            if row["profile"] is False:
                shown.print_line(f"{name}: no profile, the command does not run 'rookery train'")
            failed = row["result"] != "ok"
            ending = f"failed: {row['reason']}" if failed else f"ok in {row[DURATION]:.2f} s"
            shown.end(name, ending, failed)
            if failed and self.stop_on_error:
                return "stopped"
        return "finished"

    def run_variant(self, variant: Variant) -> dict[str, Any]:
        """Run a variant and return its row of the results."""
        benchmark, settings = variant.benchmark, variant.benchmark.settings
        env: dict[str, str] = {}
        command: list[str] | None = None
        profile = None
        if settings is not None:
            env = environment_of(settings.env, variant.values)
            command = command_of(benchmark.words, env, variant.values)
            if self.profile:
                profile = is_training(command)
                command = with_profile(command) if profile else command
        inherited = {name: os.environ[name] for name in SPEED_VARIABLES if name in os.environ}
        row: dict[str, Any] = {
            "benchmark": benchmark.name,
            "parameters": variant.values,
            "command": command,
            "environment": {**inherited, **env},
            "seed": seed_of(command or [], variant.values),
            "profile": profile,
            "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            **git_state(),
            **host_and_cores(),
            "versions": versions() | {"rookery": __version__},
            "repeats_asked": self.repeat,
        }
        repeats: list[dict[str, Any]] = []
        reason = benchmark.problem
        while not reason and len(repeats) < self.repeat:
            repeats.append(self._run_once(variant, command or [], env, len(repeats) + 1))
            reason = repeats[-1]["reason"]
            if reason and self.repeat > 1:
                reason = f"repeat {len(repeats)} of {self.repeat}: {reason}"
        row["interval"] = kind_of_interval(self.repeat)
        return row | combine_repeats(repeats, reason)

    def _run_once(
        self, variant: Variant, command: list[str], env: dict[str, str], number: int
    ) -> dict[str, Any]:
        """Run the command; return result, reason, duration, metrics and the files of its output."""
        assert variant.benchmark.settings is not None
        own = variant.benchmark.settings.timeout
        timeout = self.timeout if own is None else own
        part = f"_repeat{number}" if self.repeat > 1 else ""
        stem = f"{variant.number:03d}_{file_safe(variant.benchmark.name)[:80]}{part}"
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
            found["metrics"] = measure(variant.benchmark, *printed, ended.duration, variant.values)
        except BadInput as error:
            reason = str(error)
        files = {"stdout": stdout.name, "stderr": stderr.name}
        return {"result": "failed" if reason else "ok", "reason": reason, **found, **files}


def list_variants(benchmarks: Sequence[Benchmark]) -> list[Variant]:
    """Return the variants of all benchmarks in order."""
    pairs = [(benchmark, values) for benchmark in benchmarks for values in benchmark.variants]
    return [Variant(number, *pair) for number, pair in enumerate(pairs, 1)]


def combine_repeats(repeats: list[dict[str, Any]], reason: str) -> dict[str, Any]:
    """Return the result fields of a variant from its repeats; with a `reason` it has failed."""
    taken = [repeat[DURATION] for repeat in repeats if repeat[DURATION] is not None]
    found = {} if reason else summarize_metrics([repeat["metrics"] for repeat in repeats])
    return {
        "result": "failed" if reason else "ok",
        "reason": reason or None,
        DURATION: summarize(taken).median if taken else None,
        "metrics": {name: value.median for name, value in found.items()},
        "intervals": {name: [value.low, value.high] for name, value in found.items()},
        "repeats": [repeat | {"reason": repeat["reason"] or None} for repeat in repeats],
    }


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
    names = [stamp, *(f"{stamp}_{number}" for number in range(2, 100))]
    for name in names:
        folder = Path("bench_logs") / name
        with writing(folder):
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
        return folder
    raise BadInput("bench_logs: too many runs within one second; use --log-dir")
