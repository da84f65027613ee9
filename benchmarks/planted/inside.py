"""Run a command of rookery with a fault planted: python -m planted.inside FAULT COMMAND...

`healthy` plants nothing; the benchmark's environments are registered in either case.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext

from planted.table import FAULTS
from rookery.cli.main import main as rookery

HEALTHY = "healthy"


def main(args: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    name, *command = args
    with nullcontext() if name == HEALTHY else FAULTS[name].plant():
        return rookery(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
