"""rookery bench SPEC..."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookery.bench.baseline import compare, notes, read_baseline
from rookery.bench.runner import RESULTS, Results, Runner, make_log_dir
from rookery.bench.spec import Benchmark, chosen, read_specs
from rookery.bench.tables import plain_text
from rookery.cli.printing import print_json
from rookery.errors import require
from rookery.fields import flags_of, from_dict, help_text, parse_flags, take_all

USAGE = """rookery bench SPEC... [options]  run the benchmarks of YAML specs
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command."""

    benchmark: tuple[str, ...] | None = None
    """Run only this one; may be given several times."""
    list: bool = False
    """List the benchmarks instead of running them."""
    timeout: float | None = None
    """Seconds after which a command is ended, for benchmarks that do not say."""
    log_dir: str | None = None
    """Folder for logs and results; none: bench_logs/ and the time."""
    stop_on_error: bool = False
    """Run nothing more once a variant has failed."""
    repeat: int = 1
    """Run each variant so often, and report medians with min..max, or from 6 repeats on with
    the 95 % interval of the median."""
    baseline: str | None = None
    """A benchmark_results.json to compare with; a regression ends with status 1."""
    tolerance: float | None = None
    """How much worse than the baseline a metric may be, as a share of it; none: 0.1."""
    profile: bool = False
    """Add --profile to commands that run 'rookery train'."""
    json: bool = False
    """Print one JSON object on standard output."""

    def __post_init__(self) -> None:
        require(
            self.timeout is None or self.timeout > 0,
            f"--timeout must be above 0 seconds, got {self.timeout}",
        )
        require(self.repeat >= 1, f"--repeat must be at least 1, got {self.repeat}")
        require(
            self.tolerance is None or self.tolerance >= 0,
            f"--tolerance must be 0 or more, got {self.tolerance}",
        )
        require(
            self.tolerance is None or self.baseline is not None,
            "--tolerance says nothing without a --baseline; leave it out",
        )


def main(args: Sequence[str]) -> int:
    """Run benchmarks and print; 0, 1 if one failed or became worse, 130 if interrupted."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(Options))
        return 0
    names, rest = take_all(args, "--benchmark")
    given, specs = parse_flags(rest, flags_of(Options))
    options = from_dict(Options, {**given, "benchmark": names or None})
    require(specs, "bench: name at least one spec file")
    benchmarks = chosen(read_specs(specs), options.benchmark or ())
    return listing(benchmarks, options.json) if options.list else run(benchmarks, options)


def run(benchmarks: Sequence[Benchmark], options: Options) -> int:
    """Run, compare and tell."""
    earlier = None if options.baseline is None else read_baseline(Path(options.baseline))
    require(
        options.baseline is None
        or options.log_dir is None
        or Path(options.baseline).resolve() != Path(options.log_dir, f"{RESULTS}.json").resolve(),
        f"--log-dir: results in {options.log_dir} would replace the baseline; choose another",
    )
    results = Runner(
        log_dir=make_log_dir(options.log_dir),
        timeout=options.timeout,
        repeat=options.repeat,
        stop_on_error=options.stop_on_error,
        profile=options.profile,
    ).run(benchmarks)
    lines = [] if earlier is None else against(results, earlier, options)
    if options.json:
        print_json(results.to_dict())
    else:
        end = f"{summary(results)}\n{results.log_dir}"
        parts = [plain_text(benchmarks, results.rows), "\n".join(lines), end]
        print("\n\n".join(filter(None, parts)))
    worse = results.baseline is not None and results.baseline["regressions"] > 0
    return 130 if results.status == "interrupted" else int(results.failed > 0 or worse)


def against(results: Results, earlier: list[dict[str, Any]], options: Options) -> list[str]:
    """Compare with the baseline, add that to the results, and tell it in lines."""
    tolerance = 0.1 if options.tolerance is None else options.tolerance
    compared = compare(results.benchmarks, results.rows, earlier, tolerance)
    doubts = notes(results.rows, earlier)
    results.baseline = {
        "file": options.baseline,
        "tolerance": tolerance,
        "regressions": sum(each.verdict == "regression" for each in compared),
        "comparisons": [each._asdict() for each in compared],
        "notes": doubts,
    }
    results.save()
    return [*(each.line() for each in compared), *doubts]


def summary(results: Results) -> str:
    """How it ended, in a line."""
    total = sum(len(benchmark.variants) for benchmark in results.benchmarks)
    count = len(results.rows)
    missing = f", {total - count} not run" if count < total else ""
    return f"{results.status}: {count - results.failed} ok, {results.failed} failed{missing}"


def listing(benchmarks: Sequence[Benchmark], json: bool) -> int:
    """Print what there is; 1 if something of it cannot run."""
    if json:
        found = {
            each.name: {
                "description": each.description,
                "variants": len(each.variants),
                "metrics": list(each.better),
                "problem": each.problem or None,
            }
            for each in benchmarks
        }
        print_json(found)
    for each in [] if json else benchmarks:
        count = f"{len(each.variants)} variant{'s' if len(each.variants) > 1 else ''}"
        print(f"{each.name:<28} {count:<13} {each.problem or ' '.join(each.description.split())}")
    return int(any(each.problem for each in benchmarks))
