"""Program of one rank: python -m rookery.backends.ranks.process RUN [--resume] [CALLBACK...]"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from rookery.backends.ranks.launch import CONSOLE, report_failure
from rookery.errors import RookeryError
from rookery.processes import rank_place
from rookery.runs.run import Run


def main() -> None:
    """Train as one rank of the run in the folder given on the command line."""
    from rookery.config import from_values
    from rookery.training.start import train_as_rank

    path, *rest = sys.argv[1:]
    callbacks = [name for name in rest if name != "--resume"]
    place = rank_place()
    assert place is not None
    try:
        with ExitStack() as stack:
            terminal = os.environ.get(CONSOLE)
            console = stack.enter_context(open(terminal, "w")) if terminal else None
            run = Run.open(path)
            config, resuming = from_values(run.config, {}), "--resume" in rest
            train_as_rank(place, config, lambda: run, resuming, console, callbacks)
    except RookeryError as error:
        report_failure(Path(path), error)
        # Not sys.exit: MPI's orderly shutdown would wait for ranks that wait for this one.
        sys.stdout.flush()
        os._exit(error.exit_status)


if __name__ == "__main__":
    main()
