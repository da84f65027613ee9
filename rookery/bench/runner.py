"""Runs the variants of benchmarks one after the other, and keeps what comes of them on disk."""

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
from rookery.bench import process
from rookery.bench.intervals import kind_of_interval, summaries, summary
from rookery.bench.metrics import measure
from rookery.bench.progress import Progress
from rookery.bench.spec import DURATION, Benchmark
from rookery.bench.tables import csv_text, markdown_text
from rookery.bench.variants import (
    Value,
    command_of,
    environment_of,
    label,
    profiled,
    seed_of,
    trains,
)
from rookery.errors import BadInput, require
from rookery.machine import host_and_cores, versions
from rookery.runs.files import write_json, write_text, writing
from rookery.runs.run import file_safe

RESULTS = "benchmark_results"
OWN = {"rookery": __version__}
MAX_OUTPUT_BYTES = 64 * 2**20
SPEED_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT", "CUDA_VISIBLE_DEVICES")
"""Inherited variables that decide how fast a command is, and so belong to its results."""


class Variant(NamedTuple):
    """One of the commands to run, numbered from 1 over all benchmarks."""

    number: int
    benchmark: Benchmark
    values: dict[str, Value]


@dataclass
class Results:
    """What has come of a run: a row a variant, and `status` running, finished, stopped or
    interrupted."""

    benchmarks: Sequence[Benchmark]
    log_dir: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    status: str = "running"
    baseline: dict[str, Any] | None = None

    @property
    def failed(self) -> int:
        """How many variants failed."""
        return sum(row["result"] != "ok" for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """As it stands in benchmark_results.json."""
        found = {"status": self.status, "log_dir": str(self.log_dir), "rows": self.rows}
        return found if self.baseline is None else {**found, "baseline": self.baseline}

    def save(self) -> None:
        """Replace the result files, each whole."""
        write_json(self.log_dir / f"{RESULTS}.json", self.to_dict())
        write_text(self.log_dir / f"{RESULTS}.csv", csv_text(self.rows))
        write_text(self.log_dir / f"{RESULTS}.md", markdown_text(self.benchmarks, self.rows))


@dataclass(frozen=True, kw_only=True)
class Runner:
    """How variants are run."""

    log_dir: Path
    timeout: float | None = None
    repeat: int = 1
    stop_on_error: bool = False
    profile: bool = False

    def run(self, benchmarks: Sequence[Benchmark], progress: Progress | None = None) -> Results:
        """Run every variant; after Ctrl-C the results are of those that had ended."""
        variants = list_variants(benchmarks)
        results = Results(benchmarks, self.log_dir)
        results.save()
        shown = Progress(len(variants)) if progress is None else progress
        try:
            with process.termination_interrupts():
                results.status = self._run_all(variants, results, shown)
        except KeyboardInterrupt:
            results.status = "interrupted"
        finally:
            shown.close()
        results.save()
        return results

    def _run_all(self, variants: list[Variant], results: Results, shown: Progress) -> str:
        for variant in variants:
            name = label(variant.benchmark.name, variant.values)
            shown.begin(name)
            row = self.row_of(variant)
            results.rows.append(row)
            results.save()
            if row["profile"] is False:
                shown.say(f"{name}: no profile, the command does not run 'rookery train'")
            failed = row["result"] != "ok"
            told = f"failed: {row['reason']}" if failed else f"ok in {row[DURATION]:.2f} s"
            shown.end(name, told, failed)
            if failed and self.stop_on_error:
                return "stopped"
        return "finished"

    def row_of(self, variant: Variant) -> dict[str, Any]:
        """Run a variant, and tell all there is to know of it."""
        benchmark, settings = variant.benchmark, variant.benchmark.settings
        env: dict[str, str] = {}
        command: list[str] | None = None
        profile = None
        if settings is not None:
            env = environment_of(settings.env, variant.values)
            command = command_of(benchmark.words, env, variant.values)
            if self.profile:
                profile = trains(command)
                command = profiled(command) if profile else command
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
            # Without an installed package there is no version of Rookery but its own.
            "versions": {name: version or OWN.get(name) for name, version in versions().items()},
            "repeats_asked": self.repeat,
        }
        repeats: list[dict[str, Any]] = []
        reason = benchmark.problem
        while not reason and len(repeats) < self.repeat:
            repeats.append(self._repeat(variant, command or [], env, len(repeats) + 1))
            reason = repeats[-1]["reason"]
            if reason and self.repeat > 1:
                reason = f"repeat {len(repeats)} of {self.repeat}: {reason}"
        row["interval"] = kind_of_interval(self.repeat)
        return row | outcome(repeats, reason)

    def _repeat(
        self, variant: Variant, command: list[str], env: dict[str, str], number: int
    ) -> dict[str, Any]:
        """Run the command once: result, reason, duration, metrics, and the files of its output."""
        assert variant.benchmark.settings is not None
        own = variant.benchmark.settings.timeout
        timeout = self.timeout if own is None else own
        part = f"_repeat{number}" if self.repeat > 1 else ""
        stem = f"{variant.number:03d}_{file_safe(variant.benchmark.name)[:80]}{part}"
        stdout, stderr = (self.log_dir / f"{stem}.{end}.log" for end in ("stdout", "stderr"))
        found: dict[str, Any] = {DURATION: None, "metrics": {}}
        reason = ""
        try:
            ended = process.run(command, env, stdout, stderr, timeout)
            found[DURATION] = ended.duration
            require(ended.status is not None, f"timed out after {timeout} s")
            if ended.status:
                raise BadInput(status_text(ended.status) + last_line(stderr))
            printed = printed_text(stdout), printed_text(stderr)
            found["metrics"] = measure(variant.benchmark, *printed, ended.duration, variant.values)
        except BadInput as error:
            reason = str(error)
        files = {"stdout": stdout.name, "stderr": stderr.name}
        return {"result": "failed" if reason else "ok", "reason": reason, **found, **files}


def list_variants(benchmarks: Sequence[Benchmark]) -> list[Variant]:
    """Every variant of the benchmarks in turn."""
    pairs = [(benchmark, values) for benchmark in benchmarks for values in benchmark.variants]
    return [Variant(number, *pair) for number, pair in enumerate(pairs, 1)]


def outcome(repeats: list[dict[str, Any]], reason: str) -> dict[str, Any]:
    """The repeats of a variant in one; a variant is as good as its worst repeat."""
    taken = [repeat[DURATION] for repeat in repeats if repeat[DURATION] is not None]
    found = {} if reason else summaries([repeat["metrics"] for repeat in repeats])
    return {
        "result": "failed" if reason else "ok",
        "reason": reason or None,
        DURATION: summary(taken).median if taken else None,
        "metrics": {name: value.median for name, value in found.items()},
        "intervals": {name: [value.low, value.high] for name, value in found.items()},
        "repeats": [repeat | {"reason": repeat["reason"] or None} for repeat in repeats],
    }


def status_text(status: int) -> str:
    """A status other than 0 in words."""
    if status > 0:
        return f"exit status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


def last_line(path: Path) -> str:
    """What a command said last, to go after its status."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").split("\n")
    said = [" ".join(line.split()) for line in lines if line.strip()]
    return f": {said[-1][:300]}" if said else ""


def printed_text(path: Path) -> str:
    """What a command printed; BadInput if it is too much to look through."""
    size = path.stat().st_size
    require(
        size <= MAX_OUTPUT_BYTES, f"{path.name} has {size:,} bytes, too many to find metrics in"
    )
    return path.read_text(encoding="utf-8", errors="replace")


def git_state() -> dict[str, Any]:
    """The commit of the current folder, and whether files differ from it; None outside of one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # others may be using the repository
        told = subprocess.run(command, capture_output=True, text=True, timeout=30, env=env)
    except (OSError, subprocess.TimeoutExpired):
        return {"git_commit": None, "git_dirty": None}
    text = told.stdout.strip()
    commit = text.removesuffix("-dirty") or None
    return {"git_commit": commit, "git_dirty": text.endswith("-dirty") if commit else None}


def make_log_dir(path: str | None) -> Path:
    """The folder at `path`, or a new one in bench_logs/ named by the time."""
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
    raise BadInput("bench_logs: too many runs of one second; give a --log-dir")
