"""The best trial as a preset, and the command that repeats it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import yaml

from rookery.config import from_values, preset_base, to_values
from rookery.fields import nest
from rookery.runs.files import write_text
from rookery.sweep.records import SweepFolder, TrialRecord

PRESET = "best.yaml"
NOT_IN_PRESET = ("algorithm", "environment", "checkpoint_steps", "keep_checkpoints", "profile")
"""Settings that do not belong in a preset."""
PER_RUN = ("seed", "backend", "device", "act_device", "threads")
"""Settings of one run on one machine: the command gives them as flags instead."""

GROUPS = ("algo", "net", "env", "learner")


def write_best(folder: SweepFolder, record: TrialRecord) -> Path:
    """Write the settings of a trial to best.yaml, in the format of the built-in presets."""
    spec = folder.spec
    over = ", ".join(map(str, spec.run_seeds))
    head = (
        f"# {spec.algorithm} on {spec.environment}: trial {record.number} of"
        f" {len(folder.records)}, {spec.metric} {record.score:.6g} at"
        f" {record.env_steps:,} steps over seeds {over}\n"
    )
    text = yaml.safe_dump({spec.environment: preset_of(folder, record)}, sort_keys=False)
    write_text(folder.path / PRESET, head + text)
    return folder.path / PRESET


def preset_of(folder: SweepFolder, record: TrialRecord) -> dict[str, Any]:
    """Return the settings of a trial that were searched or differ from the values that a preset
    overrides."""
    searched = nest(record.values)
    config = to_values(from_values(folder.spec.config, searched))
    defaults = to_values(preset_base(folder.spec.algorithm, folder.spec.environment))
    kept = {k: v for k, v in config.items() if k not in (*NOT_IN_PRESET, *PER_RUN)}
    return differing(kept, defaults, searched)


def differing(
    values: dict[str, Any], defaults: dict[str, Any], searched: dict[str, Any]
) -> dict[str, Any]:
    """Return the values that were searched or differ from the default, nested like the config."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        default = defaults.get(name)
        if name in GROUPS:
            group = differing(value, defaults[name], searched.get(name, {}))
            found |= {name: group} if group else {}
        elif value != default or name in searched:
            found[name] = value
    return found


def train_command(folder: SweepFolder, record: TrialRecord, shown: Path) -> str:
    """Return the shell command that repeats the first run of a trial from the preset `shown`."""
    spec = folder.spec
    config = to_values(from_values(spec.config, nest(record.values)))
    defaults = to_values(preset_base(spec.algorithm, spec.environment))
    words = ["rookery", "train", spec.algorithm, spec.environment, "--preset", str(shown)]
    for name in PER_RUN:
        if name in ("seed", "backend") or config[name] != defaults[name]:
            words += [f"--{name.replace('_', '-')}", str(config[name])]
    return shlex.join(words)
