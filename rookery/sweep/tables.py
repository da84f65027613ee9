"""A sweep's results as text for the eye, and as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rookery.runs.table import cell, to_text
from rookery.scaling.tables import aligned
from rookery.sweep.records import Folder, Record
from rookery.sweep.space import spell

MOST_ROWS = 30


def header(folder: Folder) -> list[str]:
    """The columns of the table."""
    metric = folder.spec.metric.removeprefix("episode_").replace("_", " ")
    spread = ["(min..max)"] if folder.spec.seeds > 1 else []
    return ["trial", "status", "steps", metric, *spread, *folder.spec.space]


def line(folder: Folder, record: Record) -> list[str]:
    """The cells of a trial."""
    score = "-" if record.score is None else f"{record.score:,.4g}"
    scores = record.seed_scores
    spread = f"({min(scores):,.4g}..{max(scores):,.4g})" if scores else ""
    values = [spell(record.values[name]) for name in folder.spec.space]
    cells = [f"{record.number}", record.status, f"{record.env_steps:,}", score]
    return [*cells, *([spread] if folder.spec.seeds > 1 else []), *values]


def table(folder: Folder) -> str:
    """The trials, best first, and why some failed."""
    records = ranked(folder)
    shown = records[:MOST_ROWS]
    left_out = len(records) - len(shown)
    more = [f"... and {left_out} more in results.csv"] if left_out else []
    failed = [f"trial {r.number} failed: {r.reason}" for r in records if r.status == "failed"]
    lines = [line(folder, record) for record in shown]
    return "\n".join([*aligned([header(folder), *lines]), *more, *failed])


def ranked(folder: Folder) -> list[Record]:
    """The trials, best first: those that ran to their end, those stopped, and the others."""
    order = {"finished": 0, "stopped": 1}
    sign = -1 if folder.spec.mode == "max" else 1

    def key(record: Record) -> tuple[int, float, int]:
        score = 0.0 if record.score is None else sign * record.score
        return order.get(record.status, 2), score, record.number

    return sorted(folder.records, key=key)


def to_csv(folder: Folder) -> str:
    """A row for each trial."""
    rows = [csv_row(folder, record) for record in folder.records]
    names = ["trial", "status", "env_steps", "score", *seed_columns(folder), *folder.spec.space]
    return to_text([*names, "reason"], rows)


def csv_row(folder: Folder, record: Record) -> Mapping[str, str]:
    """A trial's cells by column."""
    return {
        "trial": cell(record.number),
        "status": record.status,
        "env_steps": cell(record.env_steps),
        "score": cell(record.score),
        **dict(zip(seed_columns(folder), map(cell, record.seed_scores), strict=False)),
        **{name: plain(value) for name, value in record.values.items()},
        "reason": record.reason or "",
    }


def seed_columns(folder: Folder) -> Sequence[str]:
    """The columns of the seeds' scores."""
    return [f"score_seed_{seed}" for seed in folder.spec.run_seeds]


def plain(value: Any) -> str:
    """A setting in a cell: numbers as numbers."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return cell(value) if number else spell(value)
