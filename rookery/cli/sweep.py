"""rookery sweep ALGO ENV"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rookery.cli.scaling import check_environment
from rookery.cli.train import leading_names, parse_settings
from rookery.config import default_config, from_values
from rookery.errors import RookeryError, require
from rookery.fields import flag_name, flags_of, from_dict, help_text, nest, parse_flags, peek_flag
from rookery.reports.figures import require_matplotlib
from rookery.reports.sweep import draw_sweep
from rookery.runs.files import to_json, write_text
from rookery.runs.run import checked_name, default_name
from rookery.sweep.plan import (
    SweepOptions,
    attach_spaces,
    connect,
    make_spec,
    read_spec,
    require_extras,
    trial_resources,
)
from rookery.sweep.records import SweepFolder, SweepSpec
from rookery.sweep.results import (
    SweepConsole,
    headline,
    train_command,
    trials_csv,
    trials_table,
    write_best,
)

USAGE = """rookery sweep ALGO ENV --SETTING SPACE... [options] [settings of train]
rookery sweep --spec FILE [options]      a sweep described in YAML
rookery sweep --resume FOLDER [options]  continue a sweep

Searches for good hyperparameters. A SPACE is log:LOW:HIGH, uniform:LOW:HIGH,
logint:LOW:HIGH, int:LOW:HIGH or choice:A,B,C, as in --algo.learning_rate log:1e-5:1e-2
"""
WITH_RESUME = {"resume", "samples", "concurrent", "cpus", "gpus", "ray_address", "plot", "json"}
"""Options that may be given with --resume."""


def main(args: Sequence[str]) -> int:
    """Run a sweep; return 0, or 130 if it was interrupted."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(SweepOptions))
        print("\n'rookery train ALGO --help' lists the settings.")
        return 0
    folder: SweepFolder | None = None
    if peek_flag(args, "--resume") is None:
        spec, options = new_sweep(args)
    else:
        folder, options = resumed_sweep(args)
        spec = folder.spec
    require_extras(spec.search)
    if options.plot:
        require_matplotlib("a picture of the sweep (--no-plot skips it)")
    stream = sys.stderr if options.json else sys.stdout
    if options.ray_address is not None:
        os.environ["RAY_ADDRESS"] = options.ray_address
    with connect():
        from rookery.sweep.study import run_trials

        resources = trial_resources(spec, options)
        if folder is None:
            named = {"algorithm": spec.algorithm, "environment": spec.environment}
            name = default_name(named) if options.name is None else checked_name(options.name)
            folder = SweepFolder.create(Path(options.sweeps_dir) / name, spec)
        print(headline(folder, resources), file=stream, flush=True)
        with SweepConsole(folder, stream) as console:
            run_trials(folder, resources, console)
    return print_results(folder, options)


def new_sweep(args: Sequence[str]) -> tuple[SweepSpec, SweepOptions]:
    """Return the sweep that the command line or a --spec file describes, and the options."""
    words = attach_spaces(args)
    names, file = leading_names(words), peek_flag(words, "--spec")
    known_options = set(flags_of(SweepOptions)) - {"spec", "resume"}
    given_options, settings = read_spec(file, known_options) if file else ({}, {})
    known = [given_options.pop(key, None) for key in ("algorithm", "environment")]
    algorithm, environment = names if len(names) == 2 else known
    require(
        isinstance(algorithm, str) and isinstance(environment, str),
        "sweep: name an algorithm and an environment, then the settings to search",
    )
    base = default_config(algorithm, environment)
    given, own = parse_settings(words[len(names) :], base, SweepOptions)
    options = from_dict(SweepOptions, given_options | own)
    spec = make_spec(algorithm, environment, {**settings, **given}, options)
    point = {name: dimension.probes()[0] for name, dimension in spec.dimensions.items()}
    check_environment(from_values(spec.config, nest(point)))
    return spec, options


def resumed_sweep(args: Sequence[str]) -> tuple[SweepFolder, SweepOptions]:
    """Return the sweep to continue, and the options."""
    given, extra = parse_flags(args, flags_of(SweepOptions))
    got = f'got "{extra[0] if extra else ""}" too'
    require(not extra, f"--resume expects one folder of a sweep, {got}")
    for name in given:
        useless = f"{flag_name(name)} has no effect with --resume; remove it"
        require(name in WITH_RESUME, useless)
    options = from_dict(SweepOptions, given)
    folder = SweepFolder.open(Path(str(options.resume)))
    if options.samples is not None:
        most = len(folder.records)
        is_grid = folder.spec.search == "grid"
        require(not is_grid, "samples: a grid runs all its points; remove --samples")
        require(options.samples >= most, f"samples: the sweep already has {most} trials")
        folder.extend(options.samples)
    return folder, options


def print_results(folder: SweepFolder, options: SweepOptions) -> int:
    """Write results.csv, best.yaml and the picture, print the results, return the exit status."""
    write_text(folder.path / "results.csv", trials_csv(folder))
    shown = Path(os.path.relpath(folder.path))
    best = folder.best
    summary: dict[str, Any] = {"sweep": shown, "status": folder.status, "best": None}
    if best is not None:
        write_best(folder, best)
        preset = shown / "best.yaml"
        repeat = train_command(folder, best, preset)
        summary |= {"best": vars(best), "preset": preset, "command": repeat}
    summary["picture"] = draw_sweep(folder.path) if options.plot else None
    if options.json:
        print(to_json(summary | {"trials": [vars(record) for record in folder.records]}))
    else:
        print(f"\n{trials_table(folder)}\n")
        if best is not None:
            print(f"To repeat the best, trial {best.number}:\n  {summary['command']}")
        if folder.status == "interrupted":
            print(f"To continue:\n  rookery sweep --resume {shown}")
        print(f"{folder.status}: {shown}")
    if folder.status == "failed":
        raise RookeryError(f"every trial failed; the first: {folder.records[0].reason}")
    return 130 if folder.status == "interrupted" else 0
