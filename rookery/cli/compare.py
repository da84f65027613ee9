"""rookery compare RUN..."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rookery.errors import require
from rookery.fields import flags_of, from_dict, help_text, nest, parse_flags
from rookery.reports.comparison.figure import draw_comparison
from rookery.reports.comparison.groups import RETURN, EnvironmentComparison, compare_runs
from rookery.reports.comparison.page import require_plotly, write_page
from rookery.reports.comparison.runs import AXIS_COLUMNS, Axis
from rookery.reports.comparison.table import comparison_text
from rookery.reports.figures import require_matplotlib
from rookery.runs.files import to_json, writing

USAGE = """rookery compare RUN... [options]

Compare runs: folders of runs, folders that hold some, or globs. Runs that differ only in their
seed form a group. Prints a table, and writes compare.png, compare.svg and compare.html.
"""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of the command."""

    x: Axis | None = None
    """Axis of the curves; none: steps beside seconds, and all four in compare.html."""
    metric: str = RETURN
    """Column of progress.csv that is compared."""
    smooth: int = 1
    """Number of reports that each point of a curve is a mean over."""
    threshold: float | None = None
    """Value to reach; none: the runs' stop_return, or the goal in Gymnasium's registry."""
    out: str = "."
    """Folder for the pictures and the page, or one file: .png, .svg, .pdf or .html."""
    plot: bool = True
    """Write the pictures and the page."""
    json: bool = False
    """Print one JSON object on standard output."""


PICTURES, PAGE = (".png", ".svg", ".pdf"), ".html"


def main(args: Sequence[str]) -> int:
    """Compare, draw and print."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(CompareOptions))
        return 0
    given, paths = parse_flags(args, flags_of(CompareOptions))
    options = from_dict(CompareOptions, nest(given))
    require(paths, "compare: expected the folders of runs")
    suffix = Path(options.out).suffix
    require(
        suffix in ("", *PICTURES, PAGE) or Path(options.out).is_dir(),
        "out: expected a folder, or a file that ends in .png, .svg, .pdf or .html,"
        f' got "{options.out}"',
    )
    if options.plot:
        require_matplotlib("a picture of the comparison (--no-plot leaves it out)")
        require_plotly("a page of the comparison (--no-plot leaves it out)")
    found = compare_runs(paths, options.metric, options.smooth, options.threshold)
    if len(found) > 1 and not options.json:
        names = ", ".join(each.environment for each in found)
        print(f"{len(found)} environments, each compared by itself: {names}\n", file=sys.stderr)
    written = write_files(found, options) if options.plot else []
    if options.json:
        comparisons = [each.to_dict() for each in found]
        print(to_json({"comparisons": comparisons, "files": written}))
    else:
        print("\n\n".join(map(comparison_text, found)))
        if written:
            print("\n" + "  ".join(map(str, written)))
    return 0


def write_files(found: Sequence[EnvironmentComparison], options: CompareOptions) -> list[Path]:
    """Write the files that the options ask for, and return them."""
    out = Path(options.out)
    if out.suffix in (*PICTURES, PAGE):
        files = [out]
    else:
        files = [out / name for name in ("compare.png", "compare.svg", "compare.html")]
    for folder in {file.parent for file in files}:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
    one: list[Axis] = [] if options.x is None else [options.x]
    pictures = [file for file in files if file.suffix in PICTURES]
    if pictures:
        draw_comparison(found, one or ["steps", "seconds"], pictures)
    for page in files:
        if page.suffix == PAGE:
            write_page(found, one or list(AXIS_COLUMNS), page)
    return files
