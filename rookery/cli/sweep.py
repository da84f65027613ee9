"""rookery sweep ALGO ENV"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rookery.cli.printing import print_json
from rookery.cli.scaling import check_environment
from rookery.config import default_config
from rookery.errors import RookeryError, require
from rookery.fields import flags_of, from_dict, help_text, parse_flags, value_of
from rookery.reports import require_matplotlib, sweep_plot
from rookery.runs.files import write_text
from rookery.runs.run import checked_name, default_name
from rookery.sweep.best import command, write_best
from rookery.sweep.cluster import connect, require_ray, share_out
from rookery.sweep.console import Console, opening
from rookery.sweep.plan import Options, first_point, joined, make_spec
from rookery.sweep.points import require_optuna
from rookery.sweep.records import Folder, Spec
from rookery.sweep.spec_file import read_spec
from rookery.sweep.tables import table, to_csv

USAGE = """rookery sweep ALGO ENV --SETTING SPACE... [options] [settings of train]
rookery sweep --spec FILE [options]      a sweep described in YAML
rookery sweep --resume FOLDER [options]  go on with a sweep

Searches for good settings. A SPACE is log:LOW:HIGH, uniform:LOW:HIGH, logint:LOW:HIGH,
int:LOW:HIGH or choice:A,B,C, as in --algo.learning_rate log:1e-5:1e-2
"""
ON_RESUMING = {"resume", "samples", "concurrent", "cpus", "gpus", "ray_address", "plot", "json"}


def main(args: Sequence[str]) -> int:
    """Search and print; 0, 1 if every trial failed, 130 if interrupted."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(Options))
        print("\n'rookery train ALGO --help' lists the settings.")
        return 0
    resuming = value_of(args, "--resume") is not None
    asked, options = reopen(args) if resuming else plan(args)
    spec = asked if isinstance(asked, Spec) else asked.spec
    check_extras(spec, options)
    stream = sys.stderr if options.json else sys.stdout
    if options.ray_address is not None:
        os.environ["RAY_ADDRESS"] = options.ray_address
    with connect():
        from rookery.sweep.study import carry_out

        places = share_out(spec, options)
        folder = Folder.create(new_path(spec, options), spec) if isinstance(asked, Spec) else asked
        print(opening(folder, places), file=stream, flush=True)
        with Console(folder, stream) as console:
            carry_out(folder, places, console)
    return tell(folder, options)


def plan(args: Sequence[str]) -> tuple[Spec, Options]:
    """What is to be run, checked before anything is."""
    words, own = joined(args), flags_of(Options)
    names = list(itertools.takewhile(lambda arg: not arg.startswith("-"), words))[:2]
    file = value_of(words, "--spec")
    told, settings = read_spec(file, set(own) - {"spec", "resume"}) if file else ({}, {})
    known = [told.pop(key, None) for key in ("algorithm", "environment")]
    algorithm, environment = names if len(names) == 2 else known
    require(
        isinstance(algorithm, str) and isinstance(environment, str),
        "sweep: name an algorithm and an environment, then the settings to search",
    )
    flags = flags_of(default_config(algorithm, environment))
    given, extra = parse_flags(words[len(names) :], flags | own)
    require(not extra, f'"{extra[0] if extra else ""}": one algorithm and one environment, please')
    told |= {key: given.pop(key) for key in list(given) if key in own}
    options = from_dict(Options, told)
    spec = make_spec(algorithm, environment, {**settings, **given}, options)
    check_environment(first_point(spec))
    return spec, options


def reopen(args: Sequence[str]) -> tuple[Folder, Options]:
    """The sweep to go on with, and how."""
    given, extra = parse_flags(args, flags_of(Options))
    require(not extra, f'"{extra[0] if extra else ""}": the sweep to resume names what it runs')
    for name in given:
        shown = name.replace("_", "-")
        require(name in ON_RESUMING, f"--{shown} says nothing to --resume; leave it out")
    options = from_dict(Options, given)
    folder = Folder.open(Path(str(options.resume)))
    if options.samples is not None:
        most = len(folder.records)
        require(folder.spec.search != "grid", "samples: a grid has all its points; leave it out")
        require(options.samples >= most, f"samples: the sweep has {most} trials already")
        folder.extend(options.samples)
    return folder, options


def check_extras(spec: Spec, options: Options) -> None:
    """BadInput if something is not installed."""
    require_ray()
    if spec.search == "optuna":
        require_optuna()
    if options.plot:
        require_matplotlib("a picture of the sweep (--no-plot leaves it out)")


def new_path(spec: Spec, options: Options) -> Path:
    """The folder of a new sweep."""
    named = {"algorithm": spec.algorithm, "environment": spec.environment}
    name = default_name(named) if options.name is None else checked_name(options.name)
    return Path(options.sweeps_dir) / name


def tell(folder: Folder, options: Options) -> int:
    """Write and print the results; the exit status."""
    write_text(folder.path / "results.csv", to_csv(folder))
    shown = Path(os.path.relpath(folder.path))
    best = folder.best
    told: dict[str, Any] = {"sweep": shown, "status": folder.status, "best": None}
    if best is not None:
        write_best(folder, best)
        preset = shown / "best.yaml"
        told |= {"best": vars(best), "preset": preset, "command": command(folder, best, preset)}
    told["picture"] = sweep_plot.draw(folder.path) if options.plot else None
    if options.json:
        print_json(told | {"trials": [vars(record) for record in folder.records]})
    else:
        print(f"\n{table(folder)}\n")
        if best is not None:
            print(f"The best, trial {best.number}, once more:\n  {told['command']}")
        if folder.status == "interrupted":
            print(f"To go on:\n  rookery sweep --resume {shown}")
        print(f"{folder.status}: {shown}")
    if folder.status == "failed":
        raise RookeryError(f"every trial failed; the first: {folder.records[0].reason}")
    return 130 if folder.status == "interrupted" else 0
