"""Compare benchmark results with those of an earlier run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rookery.bench.spec import Benchmark
from rookery.bench.variants import variant_label
from rookery.errors import require
from rookery.runs.files import read_json

BaselineRow = Mapping[str, Any]


class Comparison(NamedTuple):
    """One metric of one variant: its value in the baseline and now."""

    benchmark: str
    parameters: Mapping[str, Any]
    metric: str
    better: str | None
    baseline: float
    value: float
    change: float | None
    """Relative to the baseline; None where the baseline is 0."""
    verdict: str
    """regression, improvement, or same if within the tolerance; reported if `better` is None."""

    def line(self) -> str:
        """Return the comparison as a line of text."""
        change = "" if self.change is None else f" ({100 * self.change:+.1f} %)"
        return (
            f"{self.verdict}: {variant_label(self.benchmark, self.parameters)}: {self.metric}"
            f" {self.value:.6g} against {self.baseline:.6g}{change}"
        )


def read_baseline(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a benchmark_results.json; BadInput if the file is something else."""
    value = read_json(path)
    rows: Any = value.get("rows") if isinstance(value, dict) else None
    kinds = {"benchmark": str, "parameters": dict, "metrics": dict}
    fine = isinstance(rows, list) and all(
        isinstance(row, dict)
        and all(isinstance(row.get(name), kind) for name, kind in kinds.items())
        # An integer beyond 1e308 does not fit a float, and 'rookery bench' never writes one.
        and all(type(x) in (int, float) and -1e308 <= x <= 1e308 for x in row["metrics"].values())
        for row in rows
    )
    require(fine, f"{path}: is not a benchmark_results.json of 'rookery bench'")
    return rows


def compare(
    benchmarks: Iterable[Benchmark],
    rows: Sequence[BaselineRow],
    earlier: Sequence[BaselineRow],
    tolerance: float,
) -> list[Comparison]:
    """Compare each metric that a variant has in both; variants match by name and parameters."""
    directions = {benchmark.name: benchmark.better for benchmark in benchmarks}
    before = {_key(row): row["metrics"] for row in earlier}
    found = []
    for row in rows:
        for metric, now in row["metrics"].items():
            then = before.get(_key(row), {}).get(metric)
            if then is None:
                continue
            better = directions[row["benchmark"]].get(metric)
            gain = now - then if better == "higher" else then - now
            margin = tolerance * abs(then)
            if better is None:
                verdict = "reported"
            elif gain < -margin:
                verdict = "regression"
            else:
                verdict = "improvement" if gain > margin else "same"
            change = (now - then) / abs(then) if then else None
            where = row["benchmark"], row["parameters"]
            found.append(Comparison(*where, metric, better, then, now, change, verdict))
    return found


def notes(rows: Sequence[BaselineRow], earlier: Sequence[BaselineRow]) -> list[str]:
    """Return remarks on what could not be compared, or not reliably."""
    before = {_key(row): row for row in earlier}
    names, keys = {row["benchmark"] for row in rows}, {_key(row) for row in rows}
    found = [
        f"only in the baseline: {variant_label(row['benchmark'], row['parameters'])}"
        for row in earlier
        if row["benchmark"] in names and _key(row) not in keys
    ]
    for row in rows:
        where = variant_label(row["benchmark"], row["parameters"])
        old = before.get(_key(row))
        if row["result"] == "ok" and old is None:
            found.append(f"not in the baseline: {where}")
        elif row["result"] == "ok" and old is not None and old.get("result") != "ok":
            found.append(f"failed in the baseline: {where}")
        elif row["result"] == "ok" and old is not None:
            gone = sorted(set(old["metrics"]) ^ set(row["metrics"]))
            found += [f"only on one side: {where}: {metric}" for metric in gone]
    machines = [{(r.get("host"), r.get("cores")) for r in side} for side in (rows, earlier)]
    if rows and earlier and machines[0] != machines[1]:
        found.append("the baseline was measured on another machine")
    return found


def _key(row: BaselineRow) -> tuple[str, str]:
    return row["benchmark"], json.dumps(row["parameters"], sort_keys=True)
