"""Results of a sweep as a text table and as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rookery.runs.files import to_cell, to_text
from rookery.scaling.tables import aligned
from rookery.sweep.records import SweepFolder, TrialRecord
from rookery.sweep.space import spell

MOST_ROWS = 30


def header(folder: SweepFolder) -> list[str]:
    """Return the column names of the table."""
    metric = folder.spec.metric.removeprefix("episode_").replace("_", " ")
    spread = ["(min..max)"] if folder.spec.seeds > 1 else []
    return ["trial", "status", "steps", metric, *spread, *folder.spec.space]


def trial_cells(folder: SweepFolder, record: TrialRecord) -> list[str]:
    """Return the cells of a trial."""
    score = "-" if record.score is None else f"{record.score:,.4g}"
    scores = record.seed_scores
    spread = f"({min(scores):,.4g}..{max(scores):,.4g})" if scores else ""
    values = [spell(record.values[name]) for name in folder.spec.space]
    cells = [f"{record.number}", record.status, f"{record.env_steps:,}", score]
    return [*cells, *([spread] if folder.spec.seeds > 1 else []), *values]


def trials_table(folder: SweepFolder) -> str:
    """Return the table of trials, best first, followed by the reasons of failures."""
    records = ranked(folder)
    shown = records[:MOST_ROWS]
    left_out = len(records) - len(shown)
    more = [f"... and {left_out} more in results.csv"] if left_out else []
    failed = [f"trial {r.number} failed: {r.reason}" for r in records if r.status == "failed"]
    lines = [trial_cells(folder, record) for record in shown]
    return "\n".join([*aligned([header(folder), *lines]), *more, *failed])


def ranked(folder: SweepFolder) -> list[TrialRecord]:
    """Return the trials, best first: finished ones, then those stopped early, then the others."""
    order = {"finished": 0, "stopped": 1}
    sign = -1 if folder.spec.mode == "max" else 1

    def key(record: TrialRecord) -> tuple[int, float, int]:
        score = 0.0 if record.score is None else sign * record.score
        return order.get(record.status, 2), score, record.number

    return sorted(folder.records, key=key)


def trials_csv(folder: SweepFolder) -> str:
    """Return CSV text with a row for each trial."""
    rows = [trial_row(folder, record) for record in folder.records]
    names = ["trial", "status", "env_steps", "score", *seed_columns(folder), *folder.spec.space]
    return to_text([*names, "reason"], rows)


def trial_row(folder: SweepFolder, record: TrialRecord) -> Mapping[str, str]:
    """Return the cells of a trial by column."""
    return {
        "trial": to_cell(record.number),
        "status": record.status,
        "env_steps": to_cell(record.env_steps),
        "score": to_cell(record.score),
        **dict(zip(seed_columns(folder), map(to_cell, record.seed_scores), strict=False)),
        **{name: setting_cell(value) for name, value in record.values.items()},
        "reason": record.reason or "",
    }


def seed_columns(folder: SweepFolder) -> Sequence[str]:
    """Return the names of the columns with the score of each seed."""
    return [f"score_seed_{seed}" for seed in folder.spec.run_seeds]


def setting_cell(value: Any) -> str:
    """Return a setting as a CSV cell, numbers in full precision."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return to_cell(value) if number else spell(value)
