"""rookery slurm ALGO ENV"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookery.cli.printing import print_json
from rookery.cli.train import Options as TrainOptions
from rookery.config import default_config, resolve
from rookery.errors import require
from rookery.fields import flag_name, flags_of, from_dict, help_text, nest, parse_flags, take_all
from rookery.runs.files import write_text, writing
from rookery.runs.run import checked_name, default_name
from rookery.slurm.job import Job
from rookery.slurm.script import Work, implied, script
from rookery.slurm.submit import submit

USAGE = """rookery slurm ALGO ENV [options] [options of train]  write a batch script, and submit it
"""
TAKEN = {
    "resume": "submit the script of the run again, and it goes on",
    "ray_address": "the job starts a cluster of its own",
    "config": "name the algorithm and the environment, and give the settings as options",
}
"""Options of `train` that say nothing to a script, and what to do instead."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command that are none of the job's."""

    script: str | None = None
    """File for the script; none: it is printed, or with --submit it goes beside the run."""
    submit: bool = False
    """Hand the script to sbatch."""
    json: bool = False
    """Print one JSON object on standard output."""


def main(args: Sequence[str]) -> int:
    """Write the script, submit it, and tell."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(Options) + "\n\nThe job:\n" + help_text(Job))
        print("\n'rookery train ALGO --help' lists the options of train.")
        return 0
    job, work, options = plan(args)
    text = script(job, work)
    path = Path(options.script) if options.script else None
    if options.submit and path is None:
        path = work.run.with_name(f"{work.run.name}.sbatch")
    if path is not None:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    number = submit(path) if options.submit and path is not None else None
    if options.json:
        told = {"job": number, "run": str(work.run), "script": path, "text": text}
        print_json(told)
    elif path is None:
        print(text, end="")
    else:
        print(f"script: {path}\nrun: {work.run}" + (f"\njob: {number}" if number else ""))
    return 0


def plan(args: Sequence[str]) -> tuple[Job, Work, Options]:
    """What is to be done, checked as `rookery train` would."""
    names = list(itertools.takewhile(lambda arg: not arg.startswith("-"), args))[:2]
    require(len(names) == 2, "slurm: name an algorithm and an environment")
    others, rest = take_all(args[2:], "--sbatch")
    of_job, own, of_train = flags_of(Job), flags_of(Options), flags_of(TrainOptions)
    known = flags_of(default_config(*names)) | of_train | of_job | own
    given, extra = parse_flags(rest, known)
    require(not extra, f'"{extra[0] if extra else ""}": one algorithm and one environment, please')
    for name, remedy in TAKEN.items():
        require(name not in given, f"{flag_name(name)} is not for a script; {remedy}")
    asked = {key: given.pop(key) for key in list(given) if key in of_job}
    job = from_dict(Job, {**asked, "sbatch": others})
    options = from_dict(Options, {key: given.pop(key) for key in list(given) if key in own})
    told = {key: given.pop(key) for key in list(given) if key in of_train}
    return job, work_of(job, names, given, told), options


def work_of(job: Job, names: list[str], given: dict[str, Any], told: dict[str, Any]) -> Work:
    """What the job trains, and where."""
    train = from_dict(TrainOptions, told)
    settings = {**given, **implied(job, given)}
    algorithm, environment = names
    overrides, use_preset = nest(settings), not train.no_preset
    config = resolve(algorithm, environment, overrides, train.preset, use_preset).config
    require(
        job.kind != "ranks" or config.actors == "auto",
        f"actors={config.actors}: the job starts as many ranks as --nodes and --tasks-per-node"
        " say; leave it out",
    )
    name = train.name or default_name({"algorithm": algorithm, "environment": environment})
    presets = {key: value for key, value in told.items() if key in ("preset", "no_preset")}
    run = Path(train.runs_dir).resolve() / checked_name(name)
    return Work(algorithm, environment, run, settings, presets)
