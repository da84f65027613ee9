"""The command `rookery`: finds the subcommand, and turns errors into one line and a status."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Sequence

from rookery import __version__
from rookery.errors import RookeryError, nearest

COMMANDS = {
    "train": "ALGO ENV      train an agent",
    "evaluate": "RUN           score a trained agent, or 'random ENV' a random one",
    "export": "RUN           write a policy as ONNX and for LibTorch",
    "scaling": "ALGO ENV      measure how speed grows with the actors",
    "sweep": "ALGO ENV      search for good settings",
    "slurm": "ALGO ENV      write a batch script for a Slurm cluster, and submit it",
    "bench": "SPEC...       run the benchmarks of YAML specs",
    "serve": "ENV           let agents in other processes play an environment",
    "envs": "[WORD]        list the environments there are",
    "algorithms": "[ALGO]        list the algorithms, or the settings and presets of one",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit status."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if args else 2
    if args[0] == "--version":
        print(f"rookery {__version__}")
        return 0
    if args[0] not in COMMANDS:
        print(
            f'rookery: there is no command "{args[0]}".{nearest(args[0], COMMANDS)}'
            " 'rookery --help' lists them.",
            file=sys.stderr,
        )
        return 2
    if args[0] != "bench":  # the commands it runs are to find the environment as it is
        prepare_threads(args)
    try:
        return importlib.import_module(f"rookery.cli.{args[0]}").main(args[1:])
    except RookeryError as error:
        print(f"rookery: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; without this Python complains once more on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def usage() -> str:
    """What there is to call."""
    lines = [f"  rookery {name:<11}{text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "Trains deep reinforcement-learning agents in parallel.",
            "",
            *lines,
            "",
            "'rookery COMMAND --help' tells more of each.",
        ]
    )


def prepare_threads(args: Sequence[str]) -> None:
    """Set what OpenMP reads only when numpy and torch load: the number of threads, and how long
    they spin while they wait. By default that is so long that one busy neighbour slows small
    operations tenfold; this is as fast on a quiet machine, and bears a busy one."""
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    words = " ".join(args).replace("--threads=", "--threads ").split()
    threads = next((b for a, b in itertools.pairwise(words) if a == "--threads"), None)
    if threads is not None and threads.isdigit():
        os.environ["OMP_NUM_THREADS"] = threads
