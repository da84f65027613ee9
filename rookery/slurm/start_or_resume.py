"""python -m rookery.slurm.start_or_resume RUN prints whether a job must "start" or "resume"."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from rookery.errors import BadInput
from rookery.runs import checkpoint
from rookery.runs.files import writing


def start_or_resume(run: Path) -> str:
    """Return "resume" if the run has a whole checkpoint, else "start".

    A folder without one, left by a job that ended too soon, is renamed.
    """
    if not run.exists():
        return "start"
    try:
        checkpoint.load_newest(run / "checkpoints")
        return "resume"
    except BadInput as error:
        asides = (run.with_name(f"{run.name}.aside{n}") for n in itertools.count(1))
        aside = next(path for path in asides if not path.exists())
        print(f"{error}; renamed to {aside.name}", file=sys.stderr)
    with writing(aside):
        run.rename(aside)
    return "start"


if __name__ == "__main__":
    try:
        print(start_or_resume(Path(sys.argv[1])))
    except BadInput as error:
        sys.exit(f"rookery: {error}")
