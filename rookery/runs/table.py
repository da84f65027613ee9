"""CSV files of numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

Number = int | float
Row = dict[str, Number | None]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of `path` as numbers, None for empty cells; [] if there is no file."""
    return [{name: parse_number(cell) for name, cell in row.items()} for row in read_cells(path)[1]]


def read_cells(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return header and rows as text, without a last line that a crash truncated."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return [], []
    whole = text[: text.rfind("\n") + 1]
    lines = list(csv.reader(io.StringIO(whole)))
    header = lines[0] if lines else []
    rows = [dict(zip(header, line, strict=False)) for line in lines[1:]]
    return header, [row for row in rows if len(row) == len(header)]


def to_text(header: list[str], rows: Iterable[Mapping[str, str]], with_header: bool = True) -> str:
    """Return CSV text; columns that a row lacks stay empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if with_header:
        writer.writerow(header)
    writer.writerows([row.get(name, "") for name in header] for row in rows)
    return out.getvalue()


def to_cell(value: Number | None) -> str:
    """Return a number as text: whole numbers exactly, others to ten significant digits."""
    if value is None:
        return ""
    if isinstance(value, int):
        return str(int(value))
    return format(float(value), ".10g")


def number(row: Row, name: str) -> float:
    """Return a cell as a float, 0 if it is empty."""
    return float(row.get(name) or 0)


def parse_number(text: str) -> Number | None:
    """Return the number in a cell; None if it is empty or not a number."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None
