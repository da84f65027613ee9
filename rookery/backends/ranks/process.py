"""A rank started by `launch`: python -m rookery.backends.ranks.process RUN [--resume]."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from rookery.backends.ranks.launch import CONSOLE, tell_failure
from rookery.errors import RookeryError


def main() -> None:
    """Take part in the run in the folder named on the command line."""
    from rookery.training.start import take_part

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
