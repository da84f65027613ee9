"""The command `rookery`: runs a subcommand and turns errors into one line and an exit status."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from rookery import __version__
from rookery.errors import RookeryError, nearest

COMMANDS = {
    "train": "ALGO ENV      train an agent",
    "evaluate": "RUN           score a trained agent, or 'random ENV' a random one",
    "compare": "RUN...        compare runs: groups of seeds, curves, scores, speed",
    "inspect": "ENV           check an environment, and draw what the network gets",
    "doctor": "ALGO          find what is wrong with an algorithm, by probes with exact answers",
    "export": "RUN           write a policy as ONNX and for LibTorch",
    "scaling": "ALGO ENV      measure how speed grows with the number of actors",
    "sweep": "ALGO ENV      search for good hyperparameters",
    "slurm": "ALGO ENV      write a batch script for a Slurm cluster, and submit it",
    "graph": "ALGO ENV      print the layers of the network and draw the graph of a loss",
    "bench": "SPEC...       run the benchmarks of YAML specs",
    "serve": "ENV           serve an environment to agents in other processes",
    "envs": "[WORD]        list the available environments",
    "algorithms": "[ALGO]        list the algorithms, or the settings and presets of one",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit status."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    if not args or args[0] in ("-h", "--help", "help"):
        print("Trains deep reinforcement-learning agents in parallel.\n")
        for name, text in COMMANDS.items():
            print(f"  rookery {name:<11}{text}")
        print("\n'rookery COMMAND --help' describes a command.")
        return 0 if args else 2
    if args[0] == "--version":
        print(f"rookery {__version__}")
        return 0
    if args[0] not in COMMANDS:
        unknown = f'unknown command "{args[0]}".{nearest(args[0], COMMANDS)}'
        print(f"rookery: {unknown} 'rookery --help' lists them.", file=sys.stderr)
        return 2
    if args[0] != "bench":  # its commands must inherit the environment unchanged
        prepare_threads(args)
    try:
        return importlib.import_module(f"rookery.cli.{args[0]}").main(args[1:])
    except RookeryError as error:
        print(f"rookery: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (`| head`) closed the pipe; without this Python prints an error on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def prepare_threads(args: Sequence[str]) -> None:
    """Set variables that OpenMP reads when NumPy and torch load: the number of threads, and how
    long waiting threads spin. The default spin count makes small operations ten times slower
    when another process uses a core; this one does not, and is as fast on an idle machine."""
    from rookery.fields import peek_flag  # not for --help, which answers at once

    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    threads = peek_flag(args, "--threads") or ""
    if threads.isdigit():
        os.environ["OMP_NUM_THREADS"] = threads
