"""rookery doctor RUN | ENV | ALGO"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rookery.algorithms import ALGORITHMS, algorithm_class
from rookery.cli.inspect import print_checks, print_facts
from rookery.cli.train import TrainOptions, parse_settings
from rookery.config import default_config
from rookery.diagnostics.doctor import RunExamination, examine_run, learned_text
from rookery.diagnostics.inspection import inspect_env
from rookery.diagnostics.trap_replay import replay_trap
from rookery.envs import EnvOptions
from rookery.errors import BadInput, nearest, require
from rookery.fields import flag_name, flags_of, from_dict, help_text, nest, parse_flags
from rookery.runs.files import to_json
from rookery.training.probe_runs import PROBE_GAMMA, PROBE_PRESET, ProbeResult, run_probes

USAGE = """rookery doctor RUN   say whether a run learned, what looks wrong, and what to try
rookery doctor ENV   check an environment, and an algorithm on small probe environments
rookery doctor ALGO  train an algorithm on the probes alone, with any options of train
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
class RunOptions:
    """Options of `doctor RUN`."""

    replay: str | None = None
    """Repeat the update that a trap of this name saved when it stopped the run."""
    rules: tuple[str, ...] = ()
    """Modules with rules of your own, which are imported first."""
    json: bool = False
    """Print one JSON object on standard output."""


@dataclass(frozen=True, kw_only=True)
class DoctorEnvOptions:
    """Options of `doctor ENV`."""

    algorithm: str = "ppo"
    """Algorithm that is trained on the probes."""
    seconds: float = 10.0
    """Most seconds of random play."""
    seed: int = 1
    """Seed of the environments and of random actions."""
    json: bool = False
    """Print one JSON object on standard output."""
    env: EnvOptions = field(default_factory=EnvOptions)
    """Preprocessing of the environment, as of 'rookery train'."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Options of `doctor ALGO`, beside those of `train`."""

    probes: tuple[int, ...] = ()
    """Numbers of the probes to run, such as 3,4; none given: all of them."""
    runs_dir: str | None = None
    """Folder in which the runs are kept; none: they are removed."""
    json: bool = False
    """Print one JSON object on standard output."""


def main(args: Sequence[str]) -> int:
    """Examine what the first argument names; return 0, or 1 if something is wrong."""
    if {"-h", "--help"} & set(args):
        print(USAGE)
        for title, options in (("RUN", RunOptions), ("ENV", DoctorEnvOptions)):
            print(f"Options of 'doctor {title}':\n{help_text(options)}\n")
        print(f"Options of 'doctor ALGO':\n{help_text(DoctorOptions)}")
        print("\n'rookery train ALGO --help' lists the options of train.")
        return 0
    require(
        args and not args[0].startswith("-"),
        "doctor: expected a run's folder, an environment or an algorithm first",
    )
    subject = args[0]
    if subject in ALGORITHMS:
        return examine_algorithm(subject, args[1:])
    if Path(subject).is_dir():
        return show_run(subject, args[1:])
    return examine_env(subject, args[1:])


def show_run(path: str, args: Sequence[str]) -> int:
    """Examine a run and print; return 0, or 1 if something looks wrong."""
    given, names = parse_flags(args, flags_of(RunOptions))
    require(not names, f"doctor: expected one run, got also {', '.join(names)}")
    options = from_dict(RunOptions, nest(given))
    if options.replay is not None:
        return show_replay(path, options.replay, options.json)
    found = examine_run(path, options.rules)
    if options.json:
        print(to_json(found.to_dict()))
    else:
        print_examination(found)
    return int(bool(found.findings))


def show_replay(path: str, trap: str, json: bool) -> int:
    """Repeat the update of a trap and print its figures."""
    found = replay_trap(path, trap)
    if json:
        print(to_json(found.to_dict()))
        return 0
    print(f"{found.trap}: {found.text}")
    print(f"the repeated update: {found.error or 'is finite'}")
    for name, value in found.columns.items():
        print(f"  {name:<44} {value:.5g}")
    return 0


def print_examination(found: RunExamination) -> None:
    """Print whether a run learned, and the findings."""
    print(f"{found.algorithm} on {found.environment}, {found.env_steps:,} steps, {found.status}")
    print(learned_text(found.verdict))
    if not found.has_diagnosis:
        print("no columns of --diagnose: rules about layers, values and data could not be judged")
    for number, finding in enumerate(found.findings, 1):
        print(f"\n{number}. {finding.line}")
        print(f"   rests on: {finding.column} = {finding.figure:.4g}; {finding.source}")
        print(f"   try: {finding.remedy}")
    if not found.findings:
        print("nothing looks wrong")


def examine_env(environment: str, args: Sequence[str]) -> int:
    """Inspect an environment and run the probes; return 0, or 1 if something is wrong."""
    given, names = parse_flags(args, flags_of(DoctorEnvOptions))
    require(not names, f"doctor: expected one environment, got also {', '.join(names)}")
    options = from_dict(DoctorEnvOptions, nest(given))
    algorithm_class(options.algorithm)  # an unknown one is refused before the environment is played
    try:
        found = inspect_env(environment, options.env, seed=options.seed, seconds=options.seconds)
    except BadInput as error:
        close = nearest(environment, ALGORITHMS)
        raise BadInput(
            f'doctor: "{environment}" is neither an algorithm nor a folder.{close} As an'
            f" environment: {error}"
        ) from None
    if not options.json:
        print_facts(found)
        print_checks(found)
        print(f"\nprobes of {options.algorithm}")
    results, failed = examine_probes(options.algorithm, options.json, overrides={})
    if options.json:
        probes = [result.to_dict() for result in results]
        print(to_json({"inspection": found.to_dict(), "probes": probes}))
    wrong = any(finding.severity == "error" for finding in found.findings)
    return int(wrong or failed)


def examine_probes(algorithm: str, quiet: bool, **options: Any) -> tuple[list[ProbeResult], bool]:
    """Run the probes of an algorithm and print a line for each, on standard error if `quiet`; say
    what the first failure means. Return the results, and True if one failed."""
    results: list[ProbeResult] = []
    for result in run_probes(algorithm, **options):
        if not results and options.get("use_preset", True):
            text = f"preset: {PROBE_PRESET}, algo.gamma {PROBE_GAMMA} (--no-preset leaves them out)"
            print(text, file=sys.stderr)
        results.append(result)
        print(probe_line(result), file=sys.stderr if quiet else sys.stdout, flush=True)
    failed = [result for result in results if result.status == "failed"]
    if failed and not quiet:
        print(f"\n{meaning_of(failed[0], algorithm)}")
    return results, bool(failed)


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
    results, failed = examine_probes(
        algorithm,
        options.json,
        overrides=settings,
        numbers=options.probes,
        preset=train.preset,
        use_preset=not train.no_preset,
        runs_dir=options.runs_dir,
        callbacks=train.callbacks,
    )
    if options.json:
        probes = [result.to_dict() for result in results]
        print(to_json({"algorithm": algorithm, "passed": not failed, "probes": probes}))
    return int(failed)


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
