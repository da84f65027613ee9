"""A rank started by `launch`: python -m rookery.runtime.worker RUN [--resume]."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from rookery.errors import RookeryError
from rookery.runtime.launch import CONSOLE, tell_failure


def main() -> None:
    """Take part in the run in the folder named on the command line."""
    from rookery.training import take_part

    path, *flags = sys.argv[1:]
    try:
        with ExitStack() as stack:
            terminal = os.environ.get(CONSOLE)
            console = stack.enter_context(open(terminal, "w")) if terminal else None
            take_part(Path(path), resume="--resume" in flags, console=console)
    except RookeryError as error:
        tell_failure(Path(path), error)
        # Not sys.exit: leaving MPI in order would wait for ranks that wait for this one.
        sys.stdout.flush()
        os._exit(error.exit_status)


if __name__ == "__main__":
    main()
