"""Traps: rules that are asked at every report while a run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rookery.config import RunConfig, to_values
from rookery.diagnostics.all_rules import find_faults
from rookery.diagnostics.history import History
from rookery.diagnostics.rules import RUN_RULES, RunFinding
from rookery.runs.callbacks import Alarm, Callback


class Traps(Callback):
    """Calls `alarm` when a trap first finds a fault."""

    def __init__(
        self,
        config: RunConfig,
        baseline: Mapping[str, Any] | None,
        alarm: Callable[[Alarm], None],
    ):
        self.levels = trap_levels(config)
        self.history = History(to_values(config), baseline=baseline)
        self.alarm = alarm
        self.found: dict[str, RunFinding] = {}

    def on_report(self, report: Mapping[str, float]) -> None:
        """Ask the rules that found nothing yet."""
        self.history.add(report)
        for finding in find_faults(self.history, self.levels):
            if finding.rule not in self.found:
                self.found[finding.rule] = finding
                self.alarm(alarm_of(finding, self.levels[finding.rule]))

    def on_rewind(self, env_steps: int) -> None:
        """Forget all reports: those after the checkpoint will be made again."""
        self.history = History(self.history.config, baseline=self.history.baseline)


def trap_levels(config: RunConfig) -> dict[str, str]:
    """Return the level, "warn" or "stop", of every trap that is on."""
    levels = {
        name: getattr(config.traps, name, None) or config.traps.level
        for name, rule in RUN_RULES.items()
        if rule.is_trap
    }
    return {name: level for name, level in levels.items() if level != "off"}


def alarm_of(finding: RunFinding, level: str) -> Alarm:
    """Return a finding as an alarm."""
    return Alarm(finding.rule, level, finding.text, finding.remedy, finding.column, finding.figure)
