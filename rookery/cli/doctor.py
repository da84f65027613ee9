"""rookery doctor ALGO"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookery.algorithms import ALGORITHMS
from rookery.cli.train import TrainOptions, parse_settings
from rookery.config import default_config
from rookery.errors import BadInput, nearest, require
from rookery.fields import flag_name, from_dict, help_text, nest
from rookery.runs.files import to_json
from rookery.training.probe_runs import PROBE_GAMMA, PROBE_PRESET, ProbeResult, run_probes

USAGE = """rookery doctor ALGO [options] [options of train]

Train an algorithm on small probe environments with exact answers, and say what a wrong one means.
"""
UNUSABLE = {
    "environment": "probes are environments of their own",
    "algorithm": "name it first",
    "name": "use --runs-dir to keep the runs",
    "resume": "every probe is a new run",
    "config": "give the settings as options, or as a preset",
}
"""Options of `train` that cannot be used, and what to do instead."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Options of the command, beside those of `train`."""

    probes: tuple[int, ...] = ()
    """Numbers of the probes to run, such as 3,4; none given: all of them."""
    runs_dir: str | None = None
    """Folder in which the runs are kept; none: they are removed."""
    json: bool = False
    """Print one JSON object on standard output."""


def main(args: Sequence[str]) -> int:
    """Examine what the first argument names; return 0, or 1 if something is wrong."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(DoctorOptions))
        print("\n'rookery train ALGO --help' lists the options of train.")
        return 0
    require(args and not args[0].startswith("-"), "doctor: expected the name of an algorithm first")
    subject = args[0]
    if subject in ALGORITHMS:
        return examine_algorithm(subject, args[1:])
    kind = "a run's folder" if Path(subject).is_dir() else "an environment"
    raise BadInput(
        f'doctor: "{subject}" is not the name of an algorithm, and {kind} cannot be examined.'
        f"{nearest(subject, ALGORITHMS)} Possible: {', '.join(sorted(ALGORITHMS))}."
    )


def parse_options(
    algorithm: str, args: Sequence[str]
) -> tuple[dict[str, Any], DoctorOptions, TrainOptions]:
    """Return the settings of the probes' runs, and the options."""
    base = default_config(algorithm, "")
    given, own, of_train = parse_settings(args, base, DoctorOptions, TrainOptions)
    for name, remedy in UNUSABLE.items():
        usable = name not in given and name not in of_train
        require(usable, f"{flag_name(name)} cannot be used with doctor; {remedy}")
    return nest(given), from_dict(DoctorOptions, own), from_dict(TrainOptions, of_train)


def examine_algorithm(algorithm: str, args: Sequence[str]) -> int:
    """Run the probes of an algorithm and print; return 0, or 1 if one failed."""
    settings, options, train = parse_options(algorithm, args)
    if train.ray_address is not None:
        os.environ["RAY_ADDRESS"] = train.ray_address
    results: list[ProbeResult] = []
    for result in run_probes(
        algorithm,
        settings,
        numbers=options.probes,
        preset=train.preset,
        use_preset=not train.no_preset,
        runs_dir=options.runs_dir,
        callbacks=train.callbacks,
    ):
        if not results and not train.no_preset:
            text = f"preset: {PROBE_PRESET}, algo.gamma {PROBE_GAMMA} (--no-preset leaves them out)"
            print(text, file=sys.stderr)
        results.append(result)
        print(probe_line(result), file=sys.stderr if options.json else sys.stdout, flush=True)
    failed = [result for result in results if result.status == "failed"]
    if options.json:
        probes = [result.to_dict() for result in results]
        print(to_json({"algorithm": algorithm, "passed": not failed, "probes": probes}))
    elif failed:
        print(f"\n{meaning_of(failed[0], algorithm)}")
    return 1 if failed else 0


def probe_line(result: ProbeResult) -> str:
    """Return a probe's line."""
    probe, found = result.probe, result.found
    text = result.reason
    if found is not None:
        text = f"{found.what}: {found.figure:.3f}, expected {found.expected:.3f}"
    time = "" if result.status == "skipped" else f" ({result.seconds:.1f} s)"
    return f"{probe.number}  {probe.title:<24}{result.status:<8} {text}{time}"


def meaning_of(result: ProbeResult, algorithm: str) -> str:
    """Return what a failure means, where to look, and how to repeat it."""
    probe = result.probe
    return (
        f"The first failure is probe {probe.number}, {probe.title}: {probe.means}.\n"
        f"Look at: {probe.look}.\n"
        "Later failures may have the same cause."
        f" 'rookery doctor {algorithm} --probes {probe.number} --runs-dir runs' keeps the run."
    )
