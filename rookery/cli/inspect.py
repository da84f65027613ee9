"""rookery inspect ENV"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rookery.diagnostics.inspection import Inspection, inspect_env
from rookery.diagnostics.inspection_checks import CHECKS
from rookery.diagnostics.inspection_picture import draw_env
from rookery.envs import EnvOptions
from rookery.errors import require
from rookery.fields import flags_of, from_dict, help_text, nest, parse_flags
from rookery.runs.files import to_json
from rookery.runs.run import file_safe

USAGE = "rookery inspect ENV [options]  look at an environment as training uses it, and check it\n"


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """Options of the command."""

    envs: int = 4
    """Environments that are played in parallel."""
    seed: int = 1
    """Seed of the environments and of random actions."""
    seconds: float = 10.0
    """Most seconds of random play, and of the measurement of the random return."""
    picture: str | None = None
    """File of the picture; none: inspect_ENV.png in the working directory."""
    no_picture: bool = False
    """Draw no picture."""
    json: bool = False
    """Print one JSON object on standard output."""
    env: EnvOptions = field(default_factory=EnvOptions)
    """Preprocessing of the environment, as of 'rookery train'."""

    def __post_init__(self) -> None:
        require(self.envs >= 1, f"envs must be at least 1, got {self.envs}")
        require(self.seed >= 0, f"seed must be 0 or more, got {self.seed}")
        require(self.seconds > 0, f"seconds must be positive, got {self.seconds}")


def main(args: Sequence[str]) -> int:
    """Inspect an environment and print the result; 1 if an error was found."""
    if {"-h", "--help"} & set(args):
        print(USAGE + "\nOptions:\n" + help_text(InspectOptions))
        return 0
    given, names = parse_flags(args, flags_of(InspectOptions))
    options = from_dict(InspectOptions, nest(given))
    require(len(names) == 1, f"inspect: expected one environment, got {len(names)}")
    require(
        not (options.no_picture and options.picture),
        f"--picture {options.picture} has no effect with --no-picture; remove one of them",
    )
    file = Path(options.picture or f"inspect_{file_safe(names[0])}.png")
    require(file.parent.is_dir(), f"picture: {file.parent} is not a folder; make it first")
    found = inspect_env(
        names[0], options.env, num_envs=options.envs, seed=options.seed, seconds=options.seconds
    )
    notes = [] if options.no_picture else draw_env(names[0], options.env, options.seed, file)
    if options.json:
        print(to_json({**found.to_dict(), "notes": notes}))
    else:
        print_facts(found)
        print_checks(found)
        for note in notes:
            print(note)
    return int(any(finding.severity == "error" for finding in found.findings))


def print_facts(found: Inspection) -> None:
    """Print what was seen."""
    facts = found.facts
    print(f"{facts['environment']}: {facts['engine']} engine, {facts['num_envs']} environments")
    lines = {
        "observations": facts["observation_space"],
        "network gets": facts["network_input"],
        "actions": facts["action_space"],
        "wrappers": " < ".join([*facts["wrappers"], *facts["single_wrappers"]]),
        "autoreset": facts["autoreset"],
        "frames": f"skip {facts['frame_skip']}, stack {facts['frame_stack']}",
        "time limit": f"{facts['time_limit']:,} steps" if facts["time_limit"] else "none known",
        "seeds": seeds_text(facts),
        "ranges": ", ".join(f"{k} {v[0]:.4g} to {v[1]:.4g}" for k, v in facts["ranges"].items()),
    }
    if facts["rows"]:
        lines |= {
            "rewards": f"{facts['reward_min']:.4g} to {facts['reward_max']:.4g}",
            "episodes": episodes_text(facts),
            "speed": f"{facts['env_steps_per_second']:,.0f} steps/s with random actions",
            "random return": random_text(found),
        }
    for name, text in lines.items():
        print(f"  {name:<14} {text}")


def random_text(found: Inspection) -> str:
    """Return the random policy's return in words."""
    if (baseline := found.baseline) is None:
        return "not measured: the environment failed, or --seconds is too short for 8 episodes"
    return f"{baseline} (95 % interval, {baseline.episodes} episodes)"


def seeds_text(facts: dict[str, Any]) -> str:
    """Return in words what seeds do."""
    repeats = "repeats" if facts["same_seed_repeats"] else "does not repeat"
    other = "differs" if facts["other_seed_differs"] else "is the same"
    lanes = "differ" if facts["lanes_differ"] else "are the same"
    return f"the same seed {repeats}, another {other}, parallel environments {lanes}"


def episodes_text(facts: dict[str, Any]) -> str:
    """Return in words how episodes ended."""
    if not facts["episodes"]:
        return f"none ended in {facts['rows']:,} rows"
    return (
        f"{facts['episodes']} in {facts['rows']:,} rows: {facts['terminated']} terminated,"
        f" {facts['truncated']} truncated, {facts['length_min']} to {facts['length_max']} steps"
    )


def print_checks(found: Inspection) -> None:
    """Print the findings, and what could not be checked."""
    for finding in found.findings:
        print(f"{finding.severity}: {finding.check}: {finding.message}\n  remedy: {finding.remedy}")
    for name, reason in found.unchecked.items():
        print(f"not checked: {name}: {reason}")
    passed = len(CHECKS) - len(found.findings) - len(found.unchecked)
    print(f"{passed} of {len(CHECKS)} checks passed")
