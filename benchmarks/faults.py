"""Plants one fault after another into training, and counts how many `rookery doctor` names.

    python benchmarks/faults.py                                      # every fault
    python benchmarks/faults.py --faults dead_units,reward_sign --seed 2
    python benchmarks/faults.py --healthy                            # healthy runs too
    python benchmarks/faults.py --healthy --json faults.json --docs docs/faults.md

Each fault has a healthy and a broken run of the same seed, in processes of their own. A fault is
named if one of the findings that the table lists for it is the first or second of `doctor RUN`, or
of `inspect ENV`, or the first probe of `doctor ALGO` that fails. A healthy run with a finding is a
false alarm.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from planted.running import Bench, Found, measure_fault, measure_healthy
from planted.runs import HEALTHY_RUNS
from planted.table import FAULTS

from rookery.runs.files import to_json, write_text

START, END = "<!-- faults.py: begin -->", "<!-- faults.py: end -->"


def main(args: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0."""
    parser = argparse.ArgumentParser(description="Plant faults and count those that are named.")
    parser.add_argument("--faults", default=",".join(FAULTS), help="names, separated by commas")
    parser.add_argument("--healthy", action="store_true", help="count false alarms too")
    parser.add_argument("--seed", type=int, default=1, help="seed of the runs with faults")
    parser.add_argument("--runs-dir", type=Path, help="keep the run folders here")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--docs", type=Path, help="write the tables between the marks in this file")
    options = parser.parse_args(args)
    names = [name for name in options.faults.split(",") if name]
    unknown = set(names) - set(FAULTS)
    if unknown:
        parser.error(f"unknown faults {', '.join(sorted(unknown))}; known: {', '.join(FAULTS)}")
    with kept_or_scratch(options.runs_dir) as folder:
        bench = Bench(folder)
        faults = []
        for name in names:
            faults.append(measure_fault(bench, FAULTS[name], options.seed))
            print(fault_row(faults[-1]), flush=True)
        healthy = []
        for run, seeds in HEALTHY_RUNS if options.healthy else ():
            for seed in seeds:
                healthy.append(measure_healthy(bench, run, seed))
                print(healthy_row(healthy[-1]), flush=True)
    text = summary(faults, healthy)
    print(text)
    if options.json:
        write_text(options.json, to_json({"faults": faults, "healthy": healthy}) + "\n")
    if options.docs:
        write_text(options.docs, with_tables(options.docs.read_text(), faults, healthy))
    return 0


@contextmanager
def kept_or_scratch(folder: Path | None) -> Iterator[Path]:
    """Yield the folder, or one that is removed afterwards."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)


def row(*cells: Any) -> str:
    """Return a row of a Markdown table; figures are rounded, and nothing known is a dash."""

    def shown(cell: Any) -> str:
        if cell is None or cell == "":
            return "-"
        return f"{cell:.3g}" if isinstance(cell, float) and abs(cell) < 100 else shown_whole(cell)

    def shown_whole(cell: Any) -> str:
        return f"{cell:,.0f}" if isinstance(cell, float) else str(cell)

    return f"| {' | '.join(shown(cell) for cell in cells)} |"


def fault_row(found: Found) -> str:
    """Return a fault's row of the table."""
    first, second = [*(found["findings"] or ()), None, None][:2]
    cells = (found["fault"], found["planted"], found["run"], found["healthy"], found["broken"])
    return row(*cells, first, second, found["named_by"])


def healthy_row(found: Found) -> str:
    """Return a healthy run's row of the table."""
    findings = found["findings"]
    text = None if findings is None else ", ".join(findings) or "none"
    return row(found["run"], found["seed"], found["return"], found["seconds"], text)


def summary(faults: Sequence[Found], healthy: Sequence[Found]) -> str:
    """Return how many faults were named, and how many healthy runs have a finding."""
    named = sum(found["named_by"] is not None for found in faults)
    alarms = sum(bool(found["findings"]) for found in healthy)
    parts = [f"{named} of {len(faults)} faults named"] if faults else []
    parts += [f"{alarms} false alarms in {len(healthy)} healthy runs"] if healthy else []
    return "; ".join(parts)


def with_tables(page: str, faults: Sequence[Found], healthy: Sequence[Found]) -> str:
    """Return a page with the tables between its marks."""
    head, _, rest = page.partition(START)
    _, end, tail = rest.partition(END)
    if not end:
        raise SystemExit(f"--docs: expected a page with the lines {START} and {END}")
    lines = [f"{summary(faults, healthy)}."]
    if faults:
        titles = ("fault", "planted", "run", "return, healthy", "return, broken")
        lines += [
            "",
            row(*titles, "first finding", "second finding", "named by"),
            row(*["---"] * 8),
        ]
        lines += [fault_row(found) for found in faults]
    if healthy:
        lines += ["", row("healthy run", "seed", "return", "seconds", "findings")]
        lines += [row(*["---"] * 5), *(healthy_row(found) for found in healthy)]
    return "\n".join([head + START, *lines, END + tail])


if __name__ == "__main__":
    raise SystemExit(main())
