"""All rules, and what they find in a run. The order of the modules is that of importance."""

from __future__ import annotations

from collections.abc import Collection

from rookery.diagnostics.history import History
from rookery.diagnostics.rules import RUN_RULES, RunFinding

from rookery.diagnostics import rules_settings  # isort: skip  # noqa: F401
from rookery.diagnostics import rules_updates  # isort: skip  # noqa: F401
from rookery.diagnostics import rules_policy  # isort: skip  # noqa: F401


def find_faults(history: History, names: Collection[str] | None = None) -> list[RunFinding]:
    """Return what the rules find, the most important first; symptoms of a fault that was found are
    left out. With `names` only these rules are asked."""
    found: dict[str, RunFinding] = {}
    explained: set[str] = set()
    for name, each in RUN_RULES.items():
        if names is not None and name not in names:
            continue
        symptom = each.find(history)
        if symptom is not None:
            found[name] = RunFinding(name, *symptom, each.remedy, each.source)
            explained |= set(each.explains)
    return [finding for name, finding in found.items() if name not in explained]
