"""rookery train ALGO ENV"""

from __future__ import annotations

import functools
import itertools
import operator
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rookery.config import RunConfig, default_config, from_values, read_config, resolve
from rookery.errors import BadInput, require
from rookery.fields import flag_name, flags_of, from_dict, help_text, nest, parse_flags, peek_flag
from rookery.processes import rank_place
from rookery.runs.files import to_json
from rookery.training.start import new_run, resume, start
from rookery.training.trained import TrainedRun

USAGE = """rookery train ALGO ENV [options]      train an agent in a new run folder
rookery train --resume RUN [options]  go on with a run
rookery train --config FILE [options] repeat a run, or start from a file of settings
"""
USELESS_WITH = {
    "resume": ("preset", "no_preset", "name", "runs_dir"),
    "config": ("preset", "no_preset"),
}
"""Options that have no effect with another."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of the command that are no settings of the run."""

    runs_dir: str = "runs"
    """Folder that new run folders go to."""
    name: str | None = None
    """Name of the run's folder; none: algorithm, environment and time."""
    resume: str | None = None
    """Run folder to go on with, from its newest whole checkpoint."""
    config: str | None = None
    """JSON or YAML file of settings, such as a run's config.json."""
    preset: str | None = None
    """Tuned settings by name, or a YAML file of them; none: those for this algorithm and
    environment, if any. For Atari games they are laid over the preset Atari."""
    no_preset: bool = False
    """Start from the defaults even where a preset applies by itself, Atari's included."""
    ray_address: str | None = None
    """HOST:PORT of the Ray cluster to join with --backend ray; none: RAY_ADDRESS, or a Ray of the
    run's own on this machine."""
    callbacks: tuple[str, ...] = ()
    """Callbacks of your own, as package.module:Name[,...]."""
    json: bool = False
    """Print the result as one JSON object on standard output."""


def main(args: Sequence[str]) -> int:
    """Train; 0, or 130 if interrupted."""
    folder, file = peek_flag(args, "--resume"), peek_flag(args, "--config")
    source = folder or file
    names = [] if source else leading_names(args)
    asked = bool({"-h", "--help"} & set(args))
    if asked or (not source and len(names) < 2):
        return show_help(names, asked)
    require(not (folder and file), "--resume and --config: give one of them")
    values: dict[str, Any] = {}
    if source:
        values = dict(TrainedRun.open(source).config) if folder else read_config(source)
    base = from_values(values, {}) if source else default_config(*names)
    given, chosen = parse_settings(args[len(names) :], base, TrainOptions)
    options = from_dict(TrainOptions, chosen)
    for origin, useless in USELESS_WITH.items():
        for name in useless if origin in chosen else ():
            has_effect = name not in chosen
            require(has_effect, f"{flag_name(name)} has no effect with --{origin}; remove it")
    if options.ray_address is not None:
        os.environ["RAY_ADDRESS"] = options.ray_address
    output: dict[str, Any] = {
        "console": sys.stderr if options.json else sys.stdout,
        "callbacks": options.callbacks,
    }
    if options.resume is not None:
        return print_result(resume(options.resume, **output, **nest(given)), options.json)
    if source:
        config = from_values(values, nest(given))
    else:
        algorithm, environment = names
        use_preset = not options.no_preset
        config, presets = resolve(algorithm, environment, nest(given), options.preset, use_preset)
        for name in presets if first_rank() else ():
            remedy = "" if name == options.preset else " (--no-preset leaves it out)"
            print(f"preset: {name}{remedy}", file=sys.stderr)
    run = start(config, new_run(config, options.runs_dir, options.name), **output)
    return print_result(run, options.json)


def leading_names(args: Sequence[str]) -> list[str]:
    """Return the first two arguments, algorithm and environment; fewer if options begin before."""
    return list(itertools.takewhile(lambda arg: not arg.startswith("-"), args))[:2]


def parse_settings(
    args: Sequence[str], base: RunConfig, *kinds: type, repeatable: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the settings of a run, then for each of `kinds` its options, as given in `args`."""
    flags = [flags_of(kind) for kind in kinds]
    known = functools.reduce(operator.or_, flags, flags_of(base))
    given, extra = parse_flags(args, known | {"traps": known["traps.level"]}, repeatable)
    if "traps" in given:
        given["traps.level"] = given.pop("traps")
    if extra:
        raise BadInput(f'expected one algorithm and one environment, got "{extra[0]}" too')
    options = [{key: given.pop(key) for key in list(given) if key in own} for own in flags]
    return [given, *options]


def first_rank() -> bool:
    """True if this process prints for all ranks."""
    where = rank_place()
    return where is None or where.rank == 0


def show_help(names: list[str], asked: bool) -> int:
    """Print usage, and the settings of the algorithm if one is named; return the exit status."""
    print(USAGE)
    print("Options:\n" + help_text(TrainOptions))
    if names:
        flags = flags_of(default_config(names[0], ""))
        del flags["algorithm"], flags["environment"]
        print(f"\nSettings of {names[0]}:\n" + help_text(flags))
    else:
        print("\n'rookery train ALGO --help' lists the settings too.")
    return 0 if asked else 2


def print_result(run: TrainedRun, json: bool) -> int:
    """Print how the run ended; return the exit status."""
    result = run.result or {}
    if not first_rank():
        pass
    elif json:
        print(to_json({"run": str(run.path), **result}))
    else:
        mean = result.get("episode_return_mean")
        returns = "no episode ended" if mean is None else f"mean return {mean:.1f}"
        print(
            f"{result['status']}: {result['env_steps']:,} steps in {result['seconds']:.1f} s,"
            f" {returns}"
        )
        if "throughput" in result:
            print(
                f"throughput: {result['throughput']:,.0f} samples/s,"
                f" latency: {result['latency_ms']:.2f} ms an update"
            )
        print(run.path)
    return 130 if result.get("status") == "interrupted" else 0
