"""Results as text: CSV, Markdown, and a table for the terminal."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rookery.bench.spec import DURATION, Benchmark
from rookery.bench.variants import text_of, variant_label

TableRow = Mapping[str, Any]
TABLE_COLUMNS = (
    *("benchmark", "result", "reason", DURATION, "seed"),
    *("git_commit", "git_dirty", "host", "cores", "profile"),
)


def csv_text(rows: Sequence[TableRow]) -> str:
    """Return CSV with a row per variant and a column per parameter, metric and version."""
    flat = [_flat(row) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return file.getvalue()


def _flat(row: TableRow) -> dict[str, Any]:
    flat = {name: row[name] for name in TABLE_COLUMNS}
    flat |= {f"parameter.{name}": text_of(value) for name, value in row["parameters"].items()}
    for name, value in row["metrics"].items():
        flat[f"metric.{name}"] = value
        if row["repeats_asked"] > 1:
            ends = (f"metric.{name}.low", f"metric.{name}.high")
            flat |= zip(ends, row["intervals"][name], strict=True)
    flat["command"] = shlex.join(row["command"] or [])
    flat["environment"] = json.dumps(row["environment"])
    return flat | {f"version.{name}": version for name, version in row["versions"].items()}


def markdown_text(benchmarks: Iterable[Benchmark], rows: Sequence[TableRow]) -> str:
    """Return Markdown with a table per benchmark, and the machine it was measured on."""
    parts = ["# Benchmark results"]
    for benchmark in benchmarks:
        own = [row for row in rows if row["benchmark"] == benchmark.name]
        if not own:
            continue
        header, *lines = _cells(benchmark, own, reasons=True)
        table = [header, ["---"] * len(header), *lines]
        parts.append(f"## {benchmark.name}")
        parts += [" ".join(benchmark.description.split())] if benchmark.description else []
        parts.append("\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in table))
    if rows:
        parts.append(_measured(rows[-1]))
    return "\n\n".join(parts) + "\n"


def _measured(row: TableRow) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    dirty = " with changes" if row["git_dirty"] else ""
    commit = f"commit {row['git_commit']}{dirty}" if row["git_commit"] else "no commit"
    repeats = row["repeats_asked"]
    interval = f" Medians of {repeats} repeats, with {row['interval']}." if repeats > 1 else ""
    return f"{row['host']}, {row['cores']} cores, {commit}; {versions}.{interval}"


def plain_text(benchmarks: Iterable[Benchmark], rows: Sequence[TableRow]) -> str:
    """Return tables for the terminal, each with the reasons of failures below it."""
    parts = []
    for benchmark in benchmarks:
        own = [row for row in rows if row["benchmark"] == benchmark.name]
        if not own:
            continue
        cells = _cells(benchmark, own, reasons=False)
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in cells
        ]
        parts.append("\n".join([benchmark.name, *lines, *_reasons(benchmark, own)]))
    if rows and rows[0]["repeats_asked"] > 1:
        parts.append(f"medians of {rows[0]['repeats_asked']} repeats, with {rows[0]['interval']}")
    return "\n\n".join(parts)


def _reasons(benchmark: Benchmark, rows: Sequence[TableRow]) -> list[str]:
    """Return why variants failed; a problem of the whole benchmark is reported once."""
    if benchmark.problem:
        return [f"failed: {benchmark.problem}"]
    return [
        f"failed: {variant_label(benchmark.name, row['parameters'])}: {row['reason']}"
        for row in rows
        if row["reason"]
    ]


def _cells(benchmark: Benchmark, rows: Sequence[TableRow], reasons: bool) -> list[list[str]]:
    """Return a header and a row per variant: parameters, metrics, duration and result."""
    names = list(benchmark.variants[0])
    header = [*names, *(label for label, _ in benchmark.columns), "seconds", "result"]
    lines = []
    for row in rows:
        metrics = {**row["metrics"], DURATION: row[DURATION]}
        line = [text_of(row["parameters"][name]) for name in names]
        line += [_measurement(row, metrics.get(metric), metric) for _, metric in benchmark.columns]
        line.append(_number(row[DURATION]))
        failed = reasons and row["reason"]
        line.append(f"{row['result']}: {row['reason']}" if failed else row["result"])
        lines.append(line)
    return [header, *lines]


def _measurement(row: TableRow, value: float | None, metric: str) -> str:
    low_high = row["intervals"].get(metric)
    if value is None or low_high is None or row["repeats_asked"] == 1:
        return _number(value)
    return f"{_number(value)} ({_number(low_high[0])}..{_number(low_high[1])})"


def _number(value: float | None) -> str:
    """Return a number with about four digits and thousands separators."""
    if value is None:
        return ""
    if not 1000 <= abs(value) < 1e15:
        return f"{value:.4g}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _escaped(cell: str) -> str:
    return " ".join(cell.replace("\\", "\\\\").replace("|", "\\|").split())
