"""Text, JSON and CSV files, replaced atomically: written beside, then renamed."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rookery.errors import BadInput

Number = int | float
Row = dict[str, Number | None]
"""A row of a CSV file of numbers; None for an empty cell."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError in the body into BadInput that names the path and the reason."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise BadInput(f"{where}: cannot be written: {error.strerror or error}") from error


def new_folder(path: Path, what: str) -> None:
    """Create the folder of a run or sweep (`what`), which must not exist yet."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            raise BadInput(
                f"name: {path} already exists. Use another --name, or continue that {what}:"
                f" --resume {path}"
            ) from None


def write_text(path: Path, text: str) -> None:
    """Replace `path` atomically: after a crash the file has either the old text or the new."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with writing(path):
            with open(beside, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
    finally:
        with suppress(OSError):
            beside.unlink()


def write_json(path: Path, value: Any) -> None:
    """Replace `path` with `value` as JSON; NaN and infinities become null."""
    write_text(path, to_json(value) + "\n")


def to_json(value: Any, indent: int | None = 2) -> str:
    """Return strictly valid JSON, in one line if `indent` is None: NaN and infinities become
    null."""
    return json.dumps(jsonable(value), indent=indent, allow_nan=False)


def jsonable(value: Any) -> Any:
    """Return `value` in JSON types, with None for NaN and infinities."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item") and not isinstance(value, float):  # a numpy or torch scalar
        return jsonable(value.item())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    raise TypeError(f"{type(value).__name__} cannot be written as JSON: {value!r}")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise BadInput that names the file and the problem."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise BadInput(f"{path}: is not JSON: {error}") from error


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


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return the rows of a table as lines: the first `left` columns aligned left, the others, such
    as numbers, right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
