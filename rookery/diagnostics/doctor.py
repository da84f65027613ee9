"""Examine a run: whether it learned, and what looks wrong."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rookery.diagnostics.all_rules import find_faults
from rookery.diagnostics.history import History, Verdict
from rookery.diagnostics.rules import LEAST_MEASUREMENTS, RunFinding
from rookery.errors import BadInput, require
from rookery.runs.run import Run


@dataclass(frozen=True)
class RunExamination:
    """The state of a run, in figures and findings."""

    run: str
    algorithm: str
    environment: str
    status: str
    env_steps: int
    verdict: Verdict
    findings: list[RunFinding]
    """The most important first."""
    has_diagnosis: bool
    """False if the run was made with --diagnose 0, or by a version without it."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict."""
        learned = self.verdict._asdict() | {"confidence": self.verdict.confidence}
        return {
            "run": self.run,
            "algorithm": self.algorithm,
            "environment": self.environment,
            "status": self.status,
            "env_steps": self.env_steps,
            "learned": learned,
            "findings": [finding._asdict() for finding in self.findings],
            "has_diagnosis": self.has_diagnosis,
        }


def examine_run(path: str, modules: Sequence[str] = ()) -> RunExamination:
    """Examine the run in the folder `path`; `modules` are imported before, and may add rules."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise BadInput(f'rules: cannot import "{module}": {error}') from None
    run = Run.open(path)
    for name in ("algorithm", "environment"):
        require(
            isinstance(run.config.get(name), str),
            f"{path}: made by another version: config.json has no {name}",
        )
    require(run.progress_path.is_file(), f"{path}: no reports: it has no progress.csv")
    history = History.of_run(run)
    require(
        "env_steps" in history.columns or not run.progress(),
        f"{path}: made by another version: progress.csv has no column env_steps",
    )
    require(
        history.rows >= LEAST_MEASUREMENTS,
        f"{path}: cut short: {history.rows} reports, a run is judged by {LEAST_MEASUREMENTS} or"
        " more; train longer",
    )
    return RunExamination(
        run=str(path),
        algorithm=run.config["algorithm"],
        environment=run.config["environment"],
        status=str((history.result or {}).get("status", "not finished")),
        env_steps=int(history.last("env_steps") or 0),
        verdict=history.verdict(),
        findings=find_faults(history),
        has_diagnosis="policy_churn" in history.columns,
    )


def learned_text(verdict: Verdict) -> str:
    """Return in words whether a run learned."""
    if verdict.mean is None:
        return "no episode has ended yet"
    if verdict.random is None:
        return f"mean return {verdict.mean:.4g}; the return of a random policy is not known"
    words = {"better": "learned", "worse": "worse than random", "equal": "no better than random"}
    figures = f"mean return {verdict.mean:.4g}, random policy {verdict.random:.4g}"
    confidence = verdict.confidence or 0.0
    sure = "more than 99.9" if confidence > 0.999 else f"{100 * confidence:.1f}"
    return f"{words[verdict.kind]}: {figures} (they differ with a confidence of {sure} %)"
