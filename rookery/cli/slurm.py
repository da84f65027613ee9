"""rookery slurm ALGO ENV"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rookery.cli.train import TrainOptions, leading_names, parse_settings
from rookery.config import default_config, resolve
from rookery.errors import require
from rookery.fields import flag_name, from_dict, help_text, nest
from rookery.runs.files import to_json, write_text, writing
from rookery.runs.run import checked_name, default_name
from rookery.slurm.job import Job
from rookery.slurm.script import Work, batch_script, implied_settings, submit

USAGE = "rookery slurm ALGO ENV [options] [options of train]  write a batch script, and submit it\n"
SLURM_OPTIONS_TAKEN = {
    "resume": "submit the script of the run again to resume",
    "ray_address": "the job starts its own cluster",
    "config": "name the algorithm and the environment, and give the settings as options",
}
"""Options of `train` that cannot be used in a job, and what to do instead."""


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """Options of the command, beside those of the job."""

    script: str | None = None
    """File for the script; none: print it, or with --submit write it beside the run."""
    submit: bool = False
    """Submit the script with sbatch."""
    json: bool = False
    """Print one JSON object on standard output."""


def main(args: Sequence[str]) -> int:
    """Write the script, and submit it with --submit."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(SlurmOptions) + "\n\nThe job:\n" + help_text(Job))
        print("\n'rookery train ALGO --help' lists the options of train.")
        return 0
    job, work, options = plan_job(args)
    text = batch_script(job, work)
    path = Path(options.script) if options.script else None
    if options.submit and path is None:
        path = work.run.with_name(f"{work.run.name}.sbatch")
    if path is not None:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    number = submit(path) if options.submit and path is not None else None
    if options.json:
        print(to_json({"job": number, "run": str(work.run), "script": path, "text": text}))
    elif path is None:
        print(text, end="")
    else:
        print(f"script: {path}\nrun: {work.run}" + (f"\njob: {number}" if number else ""))
    return 0


def plan_job(args: Sequence[str]) -> tuple[Job, Work, SlurmOptions]:
    """Return the job, the run and the options, validated as by `rookery train`."""
    names = leading_names(args)
    require(len(names) == 2, "slurm: expected an algorithm and an environment")
    given, of_job, own, of_train = parse_settings(
        args[2:], default_config(*names), Job, SlurmOptions, TrainOptions, repeatable=["sbatch"]
    )
    for name, remedy in SLURM_OPTIONS_TAKEN.items():
        require(name not in of_train, f"{flag_name(name)} cannot be used with slurm; {remedy}")
    job, options = from_dict(Job, of_job), from_dict(SlurmOptions, own)
    train = from_dict(TrainOptions, of_train)
    settings = {**given, **implied_settings(job, given)}
    algorithm, environment = names
    overrides, use_preset = nest(settings), not train.no_preset
    config = resolve(algorithm, environment, overrides, train.preset, use_preset).config
    require(
        job.kind != "ranks" or config.actors == "auto",
        f"actors={config.actors}: the job starts as many ranks as --nodes and --tasks-per-node"
        " give; remove it",
    )
    name = train.name or default_name({"algorithm": algorithm, "environment": environment})
    presets = {key: value for key, value in of_train.items() if key in ("preset", "no_preset")}
    run = Path(train.runs_dir).resolve() / checked_name(name)
    return job, Work(algorithm, environment, run, settings, presets), options
