"""How a job begins: python -m rookery.slurm.start_or_resume RUN prints "resume" or "start"."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from rookery.errors import BadInput
from rookery.runs import checkpoint
from rookery.runs.files import writing


def beginning(run: Path) -> str:
    """Whether the job goes on with the run or starts it.

    A folder without a whole checkpoint, left by a job that was ended too soon, is put aside.
    """
    if not run.exists():
        return "start"
    try:
        checkpoint.newest_whole(run / "checkpoints")
        return "resume"
    except BadInput as error:
        aside = next(path for path in asides(run) if not path.exists())
        print(f"{error}; it is put aside as {aside.name}", file=sys.stderr)
    with writing(aside):
        run.rename(aside)
    return "start"


def asides(run: Path) -> Iterator[Path]:
    """Names for folders that are put aside."""
    return (run.with_name(f"{run.name}.aside{n}") for n in itertools.count(1))


if __name__ == "__main__":
    try:
        print(beginning(Path(sys.argv[1])))
    except BadInput as error:
        sys.exit(f"rookery: {error}")
