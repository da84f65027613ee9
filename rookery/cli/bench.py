"""rookery bench SPEC..."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rookery.bench.baseline import compare, notes, read_baseline
from rookery.bench.runner import RESULTS, Runner, make_log_dir
from rookery.bench.spec import Benchmark, read_specs, select_benchmarks
from rookery.bench.tables import plain_text
from rookery.errors import require
from rookery.fields import flag_name, flags_of, from_dict, help_text, parse_flags, require_least
from rookery.runs.files import to_json

USAGE = "rookery bench SPEC... [options]  run the benchmarks of YAML specs\n"


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of the command."""

    benchmark: tuple[str, ...] | None = None
    """Run only the benchmark of this name; may be given several times."""
    list: bool = False
    """List the benchmarks instead of running them."""
    timeout: float | None = None
    """Seconds after which a command is ended, for benchmarks without a timeout of their own."""
    log_dir: str | None = None
    """Folder for logs and results; none: bench_logs/ and the time."""
    stop_on_error: bool = False
    """Stop after the first variant that fails."""
    repeat: int = 1
    """Number of runs of each variant; medians are reported with min..max, or from 6 repeats on
    with the 95 % interval of the median."""
    baseline: str | None = None
    """A benchmark_results.json to compare with; a regression ends with status 1."""
    tolerance: float | None = None
    """Largest loss against the baseline, as a fraction of it; none: 0.1."""
    profile: bool = False
    """Add --profile to commands that run 'rookery train'."""
    json: bool = False
    """Print one JSON object on standard output."""

    def __post_init__(self) -> None:
        require(
            self.timeout is None or self.timeout > 0,
            f"--timeout must be above 0 seconds, got {self.timeout}",
        )
        require_least(self, 1, ["repeat"], flag_name)
        require_least(self, 0, ["tolerance"], flag_name)
        require(
            self.tolerance is None or self.baseline is not None,
            "--tolerance has no effect without --baseline; remove it",
        )


def main(args: Sequence[str]) -> int:
    """Run benchmarks; return 0, 1 on a failure or regression, 130 if interrupted."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(BenchOptions))
        return 0
    given, specs = parse_flags(args, flags_of(BenchOptions), repeatable=["benchmark"])
    options = from_dict(BenchOptions, given)
    require(specs, "bench: expected at least one spec file")
    benchmarks = select_benchmarks(read_specs(specs), options.benchmark or ())
    if options.list:
        return print_list(benchmarks, options.json)
    earlier = None if options.baseline is None else read_baseline(Path(options.baseline))
    require(
        options.baseline is None
        or options.log_dir is None
        or Path(options.baseline).resolve() != Path(options.log_dir, f"{RESULTS}.json").resolve(),
        f"--log-dir: results in {options.log_dir} would overwrite the baseline; choose another",
    )
    results = Runner(
        log_dir=make_log_dir(options.log_dir),
        timeout=options.timeout,
        repeat=options.repeat,
        stop_on_error=options.stop_on_error,
        profile=options.profile,
    ).run(benchmarks)
    lines: list[str] = []
    if earlier is not None:
        tolerance = 0.1 if options.tolerance is None else options.tolerance
        compared = compare(results.benchmarks, results.rows, earlier, tolerance)
        remarks = notes(results.rows, earlier)
        results.baseline = {
            "file": options.baseline,
            "tolerance": tolerance,
            "regressions": sum(each.verdict == "regression" for each in compared),
            "comparisons": [each._asdict() for each in compared],
            "notes": remarks,
        }
        results.save()
        lines = [*(each.line() for each in compared), *remarks]
    if options.json:
        print(to_json(results.to_dict()))
    else:
        total = sum(len(benchmark.variants) for benchmark in benchmarks)
        count = len(results.rows)
        missing = f", {total - count} not run" if count < total else ""
        counts = f"{count - results.failed} ok, {results.failed} failed{missing}"
        end = f"{results.status}: {counts}\n{results.log_dir}"
        parts = [plain_text(benchmarks, results.rows), "\n".join(lines), end]
        print("\n\n".join(filter(None, parts)))
    worse = results.baseline is not None and results.baseline["regressions"] > 0
    return 130 if results.status == "interrupted" else int(results.failed > 0 or worse)


def print_list(benchmarks: Sequence[Benchmark], json: bool) -> int:
    """Print the benchmarks; return 1 if one of them cannot run."""
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
        print(to_json(found))
    for each in [] if json else benchmarks:
        count = f"{len(each.variants)} variant{'s' if len(each.variants) > 1 else ''}"
        print(f"{each.name:<28} {count:<13} {each.problem or ' '.join(each.description.split())}")
    return int(any(each.problem for each in benchmarks))
