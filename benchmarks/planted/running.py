"""Runs of the benchmark of planted faults, each in processes of its own, and what judges them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from planted.inside import HEALTHY
from planted.runs import RunSettings, Settings
from planted.table import Fault
from rookery.backends.ranks.launch import free_port
from rookery.runs.run import Run, file_safe

TIMEOUT_S = 600.0
FOLDER = Path(__file__).parents[1]
Found = dict[str, Any]
"""A JSON object that a command of rookery prints."""


class Verdict(NamedTuple):
    """Findings of the instruments about a run."""

    findings: list[str] | None
    """Rules of `doctor RUN`, most important first; None: it could not be asked."""
    named_by: str | None
    """The instrument that named the fault and the finding, such as "run: dead_units"."""


def flags(settings: Settings) -> list[str]:
    """Return settings as options of a command line."""
    words = []
    for name, value in settings.items():
        words.append(f"--{name}")
        if name != "no-preset":
            words.append(str(value).lower() if isinstance(value, bool) else str(value))
    return words


class Bench:
    """Runs commands of rookery with a fault planted, in a folder of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.healthy: dict[str, Path] = {}
        """Healthy runs by their command: several faults are planted into the same run."""

    def command(
        self, fault: str, words: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command with the fault planted; its random returns are cached apart from those
        of other faults."""
        own = {
            "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]),
            "XDG_CACHE_HOME": str(self.folder / "cache" / fault),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "planted.inside", fault, *words],
            env=os.environ | own | dict(variables or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self, fault: str, words: Sequence[str]) -> Found | None:
        """Return the JSON object that a command prints; None if it prints none."""
        output, errors = self.command(fault, [*words, "--json"]).communicate(timeout=TIMEOUT_S)
        try:
            return dict(json.loads(output))
        except ValueError:
            print(f"{' '.join(words)}: {errors.strip()}", file=sys.stderr)
            return None

    def train(self, fault: str, run: RunSettings, seed: int) -> Path:
        """Train with the fault planted, in one process or in several ranks; return the run's
        folder. The run may fail, such as by diverging."""
        words = ["train", run.algorithm, run.environment, *flags(run.settings)]
        words += ["--seed", str(seed), "--runs-dir", str(self.folder / "runs")]
        key = " ".join(words)
        if fault == HEALTHY and key in self.healthy:
            return self.healthy[key]
        name = f"{fault}-{seed}"
        if fault == HEALTHY:
            name = f"{run.algorithm}-{file_safe(run.environment)}-{seed}-{len(self.healthy) + 1}"
        path = self.folder / "runs" / name
        if path.exists():
            raise SystemExit(f"--runs-dir: {path} exists; remove it, or choose another folder")
        places: list[dict[str, str]] = [{}]
        if run.ranks > 1:
            # As torchrun would start them: the fault must be planted in every rank.
            meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            meet |= {"WORLD_SIZE": str(run.ranks)}
            places = [
                meet | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(run.ranks)
            ]
        started = [self.command(fault, [*words, "--name", name], place) for place in places]
        errors = [process.communicate(timeout=TIMEOUT_S)[1] for process in started]
        if not path.is_dir():
            raise SystemExit(f"{key} failed: {errors[0].strip()}")
        if fault == HEALTHY:
            self.healthy[key] = path
        return path

    def examine(self, fault: str, path: Path) -> list[str] | None:
        """Return the rules that `doctor RUN` finds broken, most important first."""
        found = self.ask(fault, ["doctor", str(path)])
        return None if found is None else [finding["rule"] for finding in found["findings"]]

    def judge(self, fault: Fault, path: Path) -> Verdict:
        """Return what the instruments say of the broken run, and which named the fault."""
        findings = self.examine(fault.name, path)
        for rule in (findings or [])[:2]:
            if rule in fault.rules:
                return Verdict(findings, f"run: {rule}")
        if fault.checks:
            words = ["inspect", fault.run.environment, "--no-picture"]
            settings = {k: v for k, v in fault.run.settings.items() if k.startswith("env.")}
            found = self.ask(fault.name, [*words, *flags(settings)]) or {"findings": []}
            for finding in found["findings"][:2]:
                if finding["check"] in fault.checks:
                    return Verdict(findings, f"inspect: {finding['check']}")
        if fault.probes:
            words = ["doctor", fault.run.algorithm, *flags(fault.probe_settings)]
            found = self.ask(fault.name, words) or {"probes": []}
            failed = [probe for probe in found["probes"] if probe["status"] == "failed"]
            if failed and failed[0]["probe"] in fault.probes:
                return Verdict(findings, f"probe {failed[0]['probe']}: {failed[0]['title']}")
        return Verdict(findings, None)


def mean_return(path: Path) -> float | None:
    """Return the mean return of a run's last 100 episodes; None if no episode ended."""
    means = [row.get("episode_return_mean") for row in Run.open(path).progress()]
    found = [float(mean) for mean in means if mean is not None]
    return found[-1] if found else None


def measure_fault(bench: Bench, fault: Fault, seed: int) -> Found:
    """Train healthy and broken, judge the broken run, and return a row of the table."""
    healthy = mean_return(bench.train(HEALTHY, fault.run, seed))
    path = bench.train(fault.name, fault.broken_run, seed)
    broken = mean_return(path)
    verdict = bench.judge(fault, path)
    return {
        "fault": fault.name,
        "planted": fault.planted,
        "place": fault.place,
        "run": f"{fault.run.algorithm} {fault.run.environment}",
        "seed": seed,
        "healthy": healthy,
        "broken": None if broken is None else broken / fault.unit,
        "findings": verdict.findings,
        "named_by": verdict.named_by,
    }


def measure_healthy(bench: Bench, run: RunSettings, seed: int) -> Found:
    """Train a healthy run and return its findings and the alarms of its traps, each of which is a
    false alarm."""
    path = bench.train(HEALTHY, run, seed)
    result = Run.open(path).result or {}
    findings = bench.examine(HEALTHY, path)
    return {
        "run": f"{run.algorithm} {run.environment}",
        "settings": dict(run.settings),
        "seed": seed,
        "return": mean_return(path),
        "seconds": result.get("seconds"),
        "findings": None if findings is None else findings + alarms_of(path),
    }


def alarms_of(path: Path) -> list[str]:
    """Return the traps that found something while a run went on."""
    events = map(json.loads, (path / "events.jsonl").read_text().splitlines())
    return [f"trap {event['trap']}" for event in events if event["event"] == "alarm"]
